// Plays one stream with one player for some seconds and posts what the viewer saw:
// `page.html?player=hls.js&url=…&seconds=60`. Players keep their defaults: they are what is tried.

const PLAYERS = {
    "hls.js": { script: "hls.js/dist/hls.min.js", start: startHls },
    "dash.js": { script: "dashjs/dist/modern/umd/dash.all.min.js", start: startDash },
    shaka: { script: "shaka-player/dist/shaka-player.compiled.js", start: startShaka },
};

// How often the picture is looked at, in milliseconds.
const TICK = 100;

const words = new URLSearchParams(location.search);
const video = document.getElementById("video");
const report = {
    startup: null, // seconds from the first request to the first moving picture
    stalls: 0,
    stalled: 0, // seconds without progress behind the start
    heights: {}, // seconds of play by the height of the picture, which names the rendition
    switches: 0,
    estimates: [], // the player's estimate of the path in kbit/s, once a second
    behind: [], // seconds since the picture was recorded, where the stream tells when; once a second
    errors: [],
};

main().catch((error) => finish(String(error?.stack ?? error)));

async function main() {
    const { script, start } = PLAYERS[words.get("player")];
    await load(`players/${script}`);
    const began = performance.now();
    const { estimate, recorded } = await start(words.get("url"));
    video.play().catch((error) => report.errors.push(`play: ${error}`));
    await watch(began, Number(words.get("seconds")), estimate, recorded);
    await finish();
}

// Looks at the picture until the time is up. A stall is a time of at least 150 ms in which play does not move.
async function watch(began, seconds, estimate, recorded) {
    let [at, position, height, still, isStalled, second] = [performance.now(), video.currentTime, 0, 0, false, 0];
    while (performance.now() - began < seconds * 1000 && !video.ended) {
        await new Promise((resolve) => setTimeout(resolve, TICK));
        const now = performance.now();
        const [passed, moved] = [(now - at) / 1000, video.currentTime - position];
        [at, position] = [now, video.currentTime];
        if (report.startup === null) {
            if (moved > 0) report.startup = (now - began) / 1000;
        } else if (moved < passed / 4) {
            still += passed;
            if (still >= 0.15) {
                report.stalled += isStalled ? passed : still;
                report.stalls += isStalled ? 0 : 1;
                isStalled = true;
            }
        } else {
            [still, isStalled] = [0, false];
            report.heights[video.videoHeight] = (report.heights[video.videoHeight] ?? 0) + passed;
            report.switches += height && height !== video.videoHeight ? 1 : 0;
            height = video.videoHeight;
        }
        if (Math.floor((now - began) / 1000) > second) {
            second = Math.floor((now - began) / 1000);
            report.estimates.push(Math.round(estimate() / 1000) || 0);
            const date = recorded?.();
            if (date && report.startup !== null) report.behind.push((Date.now() - date) / 1000);
        }
    }
}

async function finish(error) {
    if (error) report.errors.push(error);
    await fetch("result", { method: "POST", body: JSON.stringify(report) });
}

function load(source) {
    return new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.onload = resolve;
        script.onerror = () => reject(new Error(`${source} does not load`));
        script.src = source;
        document.head.append(script);
    });
}

// Each starts its player on the video. Returns its estimate of the path in bits a second, as a function, and
// where the player knows it, when the present picture was recorded.

async function startHls(url) {
    // By the peer in this page: ncs://host:port/path#hash.
    const [base, hash] = url.split("#");
    const options = hash && { loader: await peerLoader(base, hash) };
    const player = new Hls(options);
    player.on(Hls.Events.ERROR, (_, data) => data.fatal && report.errors.push(`${data.type}: ${data.details}`));
    player.loadSource(`${base}${words.get("playlist")}`);
    player.attachMedia(video);
    return { estimate: () => player.bandwidthEstimate, recorded: () => player.playingDate };
}

async function peerLoader(url, hash) {
    const { connect, hlsLoader } = await import("/peer/index.js");
    const { host } = new URL(url.replace("ncs:", "https:"));
    return hlsLoader(await connect({ servers: [`ncs://${host}#${hash}`] }), Hls);
}

async function startDash(url) {
    const player = dashjs.MediaPlayer().create();
    player.on("error", (event) => report.errors.push(`${event.error?.code}: ${event.error?.message}`));
    player.initialize(video, `${url}manifest.mpd`, true);
    return { estimate: () => player.getAverageThroughput("video") * 1000 };
}

async function startShaka(url) {
    const player = new shaka.Player();
    player.addEventListener("error", (event) => report.errors.push(`${event.detail?.code}: ${event.detail?.message}`));
    await player.attach(video);
    // Resolves when play can begin, which the watch is to see.
    player.load(`${url}manifest.mpd`).catch((error) => report.errors.push(`load: ${error?.code ?? error}`));
    return { estimate: () => player.getStats().estimatedBandwidth };
}
