/** A loader for hls.js: `new Hls({ loader: hlsLoader(client, Hls) })`. */

import { pathOf } from './server.js';
import { ReadError, type Client } from './types.js';
import { load, type LoaderOptions } from './whole.js';

/** What of hls.js is used. It is no dependency: the page has its own. */
export interface HlsLike {
  DefaultConfig: { loader: new (config: never) => HlsLoader };
}

export interface HlsLoader {
  context: HlsContext | null;
  stats: HlsStats;
  load(context: HlsContext, config: HlsPolicy, callbacks: HlsCallbacks): void;
  abort(): void;
  destroy(): void;
  getCacheAge?(): number | null;
  getResponseHeader?(name: string): string | null;
}

interface HlsContext {
  url: string;
  responseType: string;
  rangeStart?: number;
  rangeEnd?: number;
  progressData?: boolean;
}

interface HlsPolicy {
  loadPolicy: { maxTimeToFirstByteMs: number; maxLoadTimeMs: number };
}

interface HlsStats {
  aborted: boolean;
  loaded: number;
  retry: number;
  total: number;
  chunkCount: number;
  bwEstimate: number;
  loading: { start: number; first: number; end: number };
  parsing: { start: number; end: number };
  buffering: { start: number; first: number; end: number };
}

interface HlsCallbacks {
  onSuccess(
    response: { url: string; data: unknown; code: number },
    stats: HlsStats,
    context: HlsContext,
    details: unknown,
  ): void;
  onError(
    error: { code: number; text: string },
    context: HlsContext,
    details: unknown,
    stats: HlsStats,
  ): void;
  onTimeout(stats: HlsStats, context: HlsContext, details: unknown): void;
  onAbort?(stats: HlsStats, context: HlsContext, details: unknown): void;
  onProgress?(stats: HlsStats, context: HlsContext, data: unknown, details: unknown): void;
}

/**
 * A class that loads `ncs://` URLs by a client, and others by the loader of hls.js. Progress is
 * told as verified bytes come, so that hls.js adapts to what the path carries.
 */
export function hlsLoader(
  client: Client,
  hls: HlsLike,
  { media }: LoaderOptions = {},
): new (config: never) => HlsLoader {
  return class PeerLoader implements HlsLoader {
    context: HlsContext | null = null;
    stats = newStats();
    private readonly aborting = new AbortController();
    private readonly other: HlsLoader;
    private timer: ReturnType<typeof setTimeout> | undefined;
    private callbacks: HlsCallbacks | undefined;
    private isOther = false;

    constructor(config: never) {
      this.other = new hls.DefaultConfig.loader(config);
    }

    load(context: HlsContext, policy: HlsPolicy, callbacks: HlsCallbacks): void {
      const path = pathOf(context.url);
      if (path === undefined) {
        this.isOther = true;
        this.stats = this.other.stats;
        this.context = context;
        return this.other.load(context, policy, callbacks);
      }
      [this.context, this.callbacks] = [context, callbacks];
      this.stats.loading.start = performance.now();
      const { maxTimeToFirstByteMs, maxLoadTimeMs } = policy.loadPolicy;
      this.expect(isTimer(maxTimeToFirstByteMs) ? maxTimeToFirstByteMs : maxLoadTimeMs);
      void this.run(context, path, maxLoadTimeMs).catch((error) => {
        clearTimeout(this.timer);
        if (this.stats.aborted) return;
        this.callbacks = undefined;
        const code = error instanceof ReadError ? 404 : 0;
        callbacks.onError({ code, text: String(error.message) }, context, null, this.stats);
      });
    }

    abort(): void {
      if (this.isOther) return this.other.abort();
      if (!this.callbacks || !this.context) return;
      this.stop();
      this.callbacks.onAbort?.(this.stats, this.context, null);
      this.callbacks = undefined;
    }

    destroy(): void {
      // What has ended is not aborted: hls.js would not measure by it.
      if (this.callbacks) this.stop();
      this.callbacks = undefined;
      this.other.destroy();
      this.context = null;
    }

    getCacheAge(): number | null {
      return (this.isOther && this.other.getCacheAge?.()) || null;
    }

    getResponseHeader(name: string): string | null {
      return (this.isOther && this.other.getResponseHeader?.(name)) || null;
    }

    private async run(context: HlsContext, path: string, most: number): Promise<void> {
      const { stats } = this;
      const { rangeStart: start, rangeEnd: end } = context;
      const { data } = await load(client, path, {
        media,
        range: end ? { start: start ?? 0, end } : undefined,
        signal: this.aborting.signal,
        opened: (total) => (stats.total = total),
        came: (chunk) => {
          if (stats.loaded === 0) {
            stats.loading.first = performance.now();
            this.expect(most - (stats.loading.first - stats.loading.start));
          }
          stats.loaded += chunk.length;
          stats.chunkCount += 1;
          // The player may give a piece away to a worker.
          const piece = context.progressData ? chunk.slice().buffer : null;
          this.callbacks?.onProgress?.(stats, context, piece, null);
        },
      });
      clearTimeout(this.timer);
      const { callbacks } = this;
      if (!callbacks) return;
      this.callbacks = undefined;
      const now = performance.now();
      stats.loading.first ||= now;
      stats.loading.end = now;
      stats.total = stats.loaded;
      const isText = context.responseType === 'text' || context.responseType === '';
      const text = () => new TextDecoder().decode(data);
      const body = context.responseType === 'json' ? JSON.parse(text()) : isText ? text() : data;
      callbacks.onSuccess({ url: context.url, data: body, code: 200 }, stats, context, null);
    }

    /** Something is to happen within so many milliseconds. */
    private expect(ms: number): void {
      clearTimeout(this.timer);
      if (!(ms < 2 ** 31)) return;
      this.timer = setTimeout(() => {
        const { callbacks, context } = this;
        if (!callbacks || !context) return;
        this.callbacks = undefined;
        this.stop();
        callbacks.onTimeout(this.stats, context, null);
      }, ms);
    }

    private stop(): void {
      clearTimeout(this.timer);
      this.stats.aborted = true;
      this.aborting.abort();
    }
  };
}

/** Whether a timer can wait for so long; longer than that stands for ever. */
function isTimer(ms: number): boolean {
  return ms > 0 && ms < 2 ** 31;
}

function newStats(): HlsStats {
  return {
    aborted: false,
    loaded: 0,
    retry: 0,
    total: 0,
    chunkCount: 0,
    bwEstimate: 0,
    loading: { start: 0, first: 0, end: 0 },
    parsing: { start: 0, end: 0 },
    buffering: { start: 0, first: 0, end: 0 },
  };
}
