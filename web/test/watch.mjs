// Videos in a page, and how they play.

/** Plays in the page until `at` seconds, or the end, and tells how that went. */
export const played = (page, at = Infinity, patience = 90_000) =>
  page.evaluate(
    async (at, patience) => {
      const { video } = globalThis;
      const end = performance.now() + patience;
      while (!video.ended && video.currentTime < (at ?? Infinity)) {
        if (performance.now() > end) break;
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      const { currentTime, ended } = video;
      return { currentTime, ended, ...globalThis.seen };
    },
    at,
    patience,
  );

/** What is watched of a video from the beginning on, in the page. */
export const watch = (page) =>
  page.evaluate(() => {
    const { video } = globalThis;
    const seen = (globalThis.seen = { stalls: 0, isPlaying: false, errors: [], first: 0 });
    const begun = performance.now();
    video.addEventListener('playing', () => {
      seen.first ||= Math.round(performance.now() - begun);
      seen.isPlaying = true;
    });
    video.addEventListener(
      'waiting',
      () => (seen.stalls += seen.isPlaying && !video.seeking ? 1 : 0),
    );
    video.addEventListener('error', () => seen.errors.push(String(video.error?.message)));
  });

/** A page with an empty video, whose script is at this path of the site, if it needs one. */
export const withVideo = async (lab, script) => {
  const page = await lab.page();
  await page.waitForFunction('globalThis.isLoaded');
  if (script) await page.addScriptTag({ url: script });
  await page.evaluate(() => {
    globalThis.video = document.body.appendChild(document.createElement('video'));
    video.muted = true;
  });
  await watch(page);
  return page;
};

/** hls.js by its loader. What it has loaded is hashed. */
export const playHls = async (page, path, servers, config = {}, url = '/live/master.m3u8') => {
  await page.evaluate(
    async (ncs, servers, config) => {
      const { default: Hls } = await import('hls.js');
      globalThis.client = await peer.connect({ servers });
      const loader = peer.hlsLoader(client, Hls, { media: video });
      const hls = (globalThis.hls = new Hls({ ...config, loader }));
      globalThis.loaded = {};
      seen.levels = [];
      hls.on(Hls.Events.FRAG_LOADED, (_, { frag, payload }) => {
        const name = new URL(frag.url).pathname;
        loaded[name] = digest(payload.slice(0));
      });
      hls.on(Hls.Events.LEVEL_SWITCHED, (_, { level }) => seen.levels.push(level));
      hls.on(Hls.Events.ERROR, (_, { details, fatal }) => {
        // Renditions of ffmpeg have small holes between them.
        if (fatal || /Load|Parsing|Append/.test(details)) seen.errors.push(details);
      });
      hls.loadSource(ncs);
      hls.attachMedia(video);
      await video.play();
    },
    `${path.ncs}${url}`,
    servers,
    config,
  );
};

export const loaded = (page) =>
  page.evaluate(async () => {
    const all = await Promise.all(
      Object.entries(globalThis.loaded).map(async ([name, hash]) => [name, await hash]),
    );
    return Object.fromEntries(all);
  });
