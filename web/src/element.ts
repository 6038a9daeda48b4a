/**
 * The element `<nc-video>`: a video from servers of ncserverd, which plays HLS by hls.js.
 *
 * - `src`: `ncs://host:port/path/of/a/playlist.m3u8`.
 * - `hashes`: SHA-256 of the certificates of that server, with commas, if no authority signed them.
 * - `servers`: more servers of the same objects, with blanks: `ncs://host:port#hash,hash`.
 * - `token`: what entitles to the stream.
 * - `share`: viewers serve each other, where the stream allows it, and see each other's addresses.
 * - `fallback`: the URL of the same playlist at an origin, for browsers without WebTransport and
 *   for networks without UDP.
 * - `controls`, `autoplay`, `muted`, `loop`, `playsinline`, `poster`, `preload`, `crossorigin`: as
 *   of `<video>`, which is the property `video`.
 */

import { connect } from './client.js';
import { hlsLoader, type HlsLike } from './hls.js';
import type { Client, Statistics } from './types.js';

/** What of hls.js is used. */
interface Hls {
  loadSource(url: string): void;
  attachMedia(media: HTMLMediaElement): void;
  on(event: string, listener: (event: string, data: HlsError) => void): void;
  startLoad(): void;
  recoverMediaError(): void;
  destroy(): void;
}

interface HlsError {
  fatal: boolean;
  type: string;
  details: string;
  error?: Error;
}

interface HlsClass extends HlsLike {
  new (config: object): Hls;
  isSupported(): boolean;
  Events: { ERROR: string };
}

/** `peer`: from our servers. `fallback`: from the origin, over HTTP. */
export type Mode = 'peer' | 'fallback';

/** What `<nc-video>` tells once a second, with the event `statistics`. */
export interface VideoStatistics {
  mode: Mode;
  /** Why it is not the peer. */
  reason: string | undefined;
  /** Seconds that are buffered ahead. */
  buffered: number;
  /** How often it had nothing to play, after the beginning. */
  stalls: number;
  /** What the client counts; `undefined` without one. */
  peer: Statistics | undefined;
}

/** Milliseconds for a server to answer, if there is something else to play. */
const PATIENCE_MS = 5000;
const STATISTICS_MS = 1000;
/** The pause before what hls.js has given up is loaded again. */
const AGAIN_MS = 1000;
/** Recoveries of errors of the decoder, within the time below. */
const RECOVERIES_MAX = 2;
const RECOVERIES_MS = 10_000;
const COPIED = [
  'controls',
  'autoplay',
  'muted',
  'loop',
  'playsinline',
  'poster',
  'preload',
  'crossorigin',
];
const OWN = ['src', 'hashes', 'servers', 'token', 'key', 'fallback', 'share'];
const STYLE =
  ':host{display:inline-block}:host([hidden]){display:none}' +
  'video{width:100%;height:100%;display:block}';

/** The class of `<nc-video>`. */
export class NcVideo extends HTMLElement {
  static observedAttributes = [...COPIED, ...OWN];
  /** hls.js, if it is neither `globalThis.Hls` nor to be imported as `hls.js`. */
  static Hls: HlsClass | undefined;
  /** The inner element. */
  readonly video = document.createElement('video');
  /** Options of hls.js beside the loader. */
  hlsConfig: object = {};
  /** The WebAssembly module, if it is not beside this script. */
  module: URL | string | undefined;
  /** With `share`: servers of STUN and TURN, and bytes a second to other viewers, at most. */
  iceServers: RTCIceServer[] | undefined;
  uploadMax: number | undefined;
  private playback: Playback | undefined;
  private isDue = false;

  constructor() {
    super();
    const root = this.attachShadow({ mode: 'open' });
    // A policy of the page's content does not forbid this kind of style.
    const style = new CSSStyleSheet();
    style.replaceSync(STYLE);
    root.adoptedStyleSheets = [style];
    root.append(this.video);
  }

  /** Statistics now. */
  async statistics(): Promise<VideoStatistics | undefined> {
    return this.playback?.statistics();
  }

  connectedCallback(): void {
    this.restart();
  }

  disconnectedCallback(): void {
    this.restart();
  }

  attributeChangedCallback(name: string, _: string | null, value: string | null): void {
    if (OWN.includes(name)) return this.restart();
    if (name === 'muted') this.video.muted = value !== null;
    if (value === null) this.video.removeAttribute(name);
    else this.video.setAttribute(name, value);
  }

  /** Attributes that change together start it once. */
  private restart(): void {
    if (this.isDue) return;
    this.isDue = true;
    queueMicrotask(() => {
      this.isDue = false;
      this.playback?.close();
      this.playback = undefined;
      if (this.isConnected && this.hasAttribute('src')) this.playback = new Playback(this);
    });
  }
}

/** What plays one source. */
class Playback {
  private client: Client | undefined;
  private hls: Hls | undefined;
  private mode: Mode = 'peer';
  private reason: string | undefined;
  private stalls = 0;
  private isClosed = false;
  private hasPlayed = false;
  private recoveries: number[] = [];
  private readonly ticker: ReturnType<typeof setInterval>;
  private readonly listening = new AbortController();

  constructor(private readonly element: NcVideo) {
    const { signal } = this.listening;
    const { video } = element;
    video.addEventListener('playing', () => (this.hasPlayed = true), { signal });
    const stalled = () => (this.stalls += this.hasPlayed && !video.seeking ? 1 : 0);
    video.addEventListener('waiting', stalled, { signal });
    this.ticker = setInterval(() => void this.tick(), STATISTICS_MS);
    this.start().catch((error) => this.failed(error));
  }

  async statistics(): Promise<VideoStatistics> {
    const { video } = this.element;
    const { buffered, currentTime } = video;
    const last = buffered.length - 1;
    return {
      mode: this.mode,
      reason: this.reason,
      buffered: last < 0 ? 0 : Math.max(0, buffered.end(last) - currentTime),
      stalls: this.stalls,
      peer: await this.client?.statistics(),
    };
  }

  close(): void {
    this.isClosed = true;
    clearInterval(this.ticker);
    this.listening.abort();
    this.hls?.destroy();
    this.client?.close();
    this.element.video.removeAttribute('src');
    this.element.video.load();
  }

  private async tick(): Promise<void> {
    const detail = await this.statistics();
    if (!this.isClosed) this.element.dispatchEvent(new CustomEvent('statistics', { detail }));
  }

  private async start(): Promise<void> {
    const Hls = await findHls();
    if (this.isClosed) return;
    const src = this.element.getAttribute('src')!;
    const reason = await this.connect(src);
    if (this.isClosed) return;
    if (reason !== undefined) return this.fallBack(Hls, reason);
    if (!Hls?.isSupported()) throw new Error('hls.js is not there, or not supported here');
    const { video, hlsConfig } = this.element;
    const loader = hlsLoader(this.client!, Hls, { media: video });
    this.play(Hls, src, { ...hlsConfig, loader });
  }

  /** Connects. What is returned is why another way is to be taken. */
  private async connect(src: string): Promise<string | undefined> {
    const url = new URL(src);
    if (url.protocol !== 'ncs:') throw new TypeError(`not an ncs:// URL: ${src}`);
    const { element } = this;
    const hasFallback = element.hasAttribute('fallback');
    if (typeof WebTransport === 'undefined') {
      const reason = 'this browser has no WebTransport';
      if (hasFallback) return reason;
      throw new Error(reason);
    }
    const hashes = element.getAttribute('hashes')?.split(',').filter(Boolean);
    const others = element.getAttribute('servers')?.split(/\s+/).filter(Boolean) ?? [];
    const { module, iceServers, uploadMax } = element;
    const token = element.getAttribute('token');
    const key = element.getAttribute('key')?.split(/\s+/).filter(Boolean) ?? [];
    const first = `ncs://${url.host}#${hashes?.join(',') ?? ''}`;
    const client = await connect({
      servers: [first, ...others],
      ...(token && { token }),
      key,
      ...(module && { module }),
      share: element.hasAttribute('share'),
      ...(iceServers && { iceServers }),
      ...(uploadMax !== undefined && { uploadMax }),
    });
    this.client = client;
    if (this.isClosed) client.close();
    if (this.isClosed || !hasFallback) return undefined;
    const answers = await new Promise<boolean>((resolve) => {
      client.addEventListener('server', ({ detail }) => {
        if (detail.state === 'ready') resolve(true);
      });
      setTimeout(() => resolve(false), PATIENCE_MS);
    });
    if (answers) return undefined;
    client.close();
    this.client = undefined;
    return 'no server answers';
  }

  private fallBack(Hls: HlsClass | undefined, reason: string): void {
    [this.mode, this.reason] = ['fallback', reason];
    const src = this.element.getAttribute('fallback')!;
    this.element.dispatchEvent(new CustomEvent('fallback', { detail: { reason } }));
    if (Hls?.isSupported()) return this.play(Hls, src, this.element.hlsConfig);
    // Safari plays HLS by itself.
    this.element.video.src = src;
  }

  private play(Hls: HlsClass, src: string, config: object): void {
    const hls = new Hls(config);
    this.hls = hls;
    hls.on(Hls.Events.ERROR, (_, data) => {
      if (!data.fatal) return;
      if (data.type === 'mediaError' && this.mayRecover()) return hls.recoverMediaError();
      this.failed(data.error ?? new Error(data.details));
      if (data.type === 'networkError') this.loadAgain(hls, data.details, src);
    });
    hls.loadSource(src);
    hls.attachMedia(this.element.video);
  }

  /** hls.js stops loading after a minute without network. The network may come back. */
  private loadAgain(hls: Hls, details: string, src: string): void {
    setTimeout(() => {
      if (this.isClosed) return;
      // Without a list of renditions it begins anew.
      if (details.startsWith('manifest')) hls.loadSource(src);
      else hls.startLoad();
    }, AGAIN_MS);
  }

  private mayRecover(): boolean {
    const now = performance.now();
    this.recoveries = this.recoveries.filter((at) => now - at < RECOVERIES_MS);
    return this.recoveries.push(now) <= RECOVERIES_MAX;
  }

  private failed(error: Error): void {
    if (this.isClosed) return;
    this.element.dispatchEvent(new ErrorEvent('error', { error, message: error.message }));
  }
}

async function findHls(): Promise<HlsClass | undefined> {
  const known = NcVideo.Hls ?? (globalThis as { Hls?: HlsClass }).Hls;
  if (known) return known;
  try {
    // A bundler, or an import map of the page, knows where it is.
    return (await import('hls.js')).default as unknown as HlsClass;
  } catch {
    return undefined;
  }
}

if (!customElements.get('nc-video')) customElements.define('nc-video', NcVideo);
