// Videos in a page, a player without a screen, and how they play.
import { createHash } from 'node:crypto';
import { sleep } from './lab.mjs';

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

/**
 * `<nc-video>` in a page of its own, until the element plays by itself. What it has loaded is
 * hashed, and `progress` has where it was, ten times a second.
 */
export const playElement = async (lab, path, url, config) => {
  const page = await lab.page();
  await page.waitForFunction('globalThis.isLoaded');
  await page.evaluate(
    async (src, hashes, config) => {
      const { NcVideo } = await import('/dist/element.js');
      const { default: Hls } = await import('hls.js');
      globalThis.loaded = {};
      NcVideo.Hls = class extends Hls {
        constructor(config) {
          super(config);
          this.on(Hls.Events.FRAG_LOADED, (_, { frag, payload }) => {
            loaded[new URL(frag.url).pathname] = digest(payload.slice(0));
          });
        }
      };
      const element = document.createElement('nc-video');
      element.hlsConfig = config;
      for (const [name, value] of Object.entries({ src, hashes, muted: '', autoplay: '' })) {
        element.setAttribute(name, value);
      }
      globalThis.video = element.video;
      globalThis.problems = [];
      element.addEventListener('error', ({ message }) => problems.push(message));
      document.body.append(element);
      globalThis.progress = [];
      setInterval(() => progress.push({ at: Date.now(), position: video.currentTime }), 100);
    },
    `${path.ncs}${url}`,
    path.hashes.join(),
    config,
  );
  await watch(page);
  return page;
};

/**
 * A player of HTTP without a screen: it fetches the segments of a playlist in turn, at most
 * `ahead` seconds before they are due, plays them by the clock, and waits when it runs dry. What
 * fails is fetched again after half a second.
 */
export class HttpPlayer {
  loaded = {};
  stalls = 0;
  failures = 0;
  first = undefined;
  progress = [];
  /** Seconds that it has, and when it has played them. */
  #end = 0;
  #dry = 0;

  constructor(playlist, ahead) {
    this.playlist = playlist;
    this.ahead = ahead;
  }

  /** Seconds that it has played. */
  get position() {
    return Math.max(0, this.#end - Math.max(0, this.#dry - Date.now()) / 1000);
  }

  /** Plays until `to` seconds. */
  async play(to) {
    const begun = Date.now();
    const ticker = setInterval(
      () => this.progress.push({ at: Date.now(), position: this.position }),
      100,
    );
    try {
      const text = (await this.#fetch(this.playlist)).toString();
      for (const [, seconds, name] of text.matchAll(/#EXTINF:([\d.]+),\n(.+)/g)) {
        await sleep(this.#dry - Date.now() - this.ahead * 1000);
        const url = new URL(name, this.playlist);
        const bytes = await this.#fetch(url);
        this.loaded[url.pathname] = createHash('sha256').update(bytes).digest('hex');
        const now = Date.now();
        this.first ??= now - begun;
        if (this.#end > 0 && now > this.#dry) this.stalls += 1;
        this.#end += Number(seconds);
        this.#dry = Math.max(this.#dry, now) + seconds * 1000;
        if (this.#end >= to) break;
      }
      await sleep((to - this.position) * 1000);
    } finally {
      clearInterval(ticker);
    }
  }

  async #fetch(url) {
    for (;;) {
      try {
        const response = await fetch(url, { signal: AbortSignal.timeout(10_000) });
        if (!response.ok) throw new Error(`${response.status}`);
        return Buffer.from(await response.arrayBuffer());
      } catch {
        this.failures += 1;
        await sleep(500);
      }
    }
  }
}
