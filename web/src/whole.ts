/** Objects as a whole, for players that do not take pieces. */

import { ReadError, type Client, type Fetched, type FetchOptions } from './types.js';

/** How a loader works. */
export interface LoaderOptions {
  /** What plays it: a segment is late if it comes after this has run out of what it plays. */
  media?: HTMLMediaElement;
}

/** What a loader reads of an object, and what it is told meanwhile. */
export interface Loading extends LoaderOptions {
  range: FetchOptions['range'];
  signal: AbortSignal;
  /** A server has named the object. The total is 0 if it is not known. */
  opened?(total: number, contentType: string): void;
  /** A piece has come: the sum is what has come so far. */
  came(chunk: Uint8Array<ArrayBuffer>, sum: number, total: number): void;
}

/** Reads all of it, and tells each piece as it comes. */
export async function load(
  client: Client,
  path: string,
  loading: Loading,
): Promise<{ data: ArrayBuffer; contentType: string }> {
  const { media, range, signal, opened, came } = loading;
  const due = media && ahead(media);
  const fetched = await client.fetch(path, { range, due, signal });
  const { contentType } = fetched;
  const total = size(fetched, range);
  opened?.(total, contentType);
  const data = await collect(fetched, total, (chunk, sum) => came(chunk, sum, total));
  return { data, contentType };
}

/** Bytes that a read brings; 0 if that is not known. */
function size({ length }: Fetched, range: FetchOptions['range']): number {
  if (!range) return length ?? 0;
  return Math.max(0, Math.min(range.end ?? Infinity, length ?? Infinity) - range.start);
}

/** All bytes of a body; each piece is told as it comes. */
async function collect(
  { body }: Fetched,
  expected: number,
  came: (chunk: Uint8Array<ArrayBuffer>, sum: number) => void,
): Promise<ArrayBuffer> {
  const chunks: Uint8Array<ArrayBuffer>[] = [];
  const reader = body.getReader();
  let sum = 0;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    chunks.push(value);
    sum += value.length;
    came(value, sum);
  }
  if (expected !== 0 && Number.isFinite(expected) && sum !== expected) {
    throw new ReadError(`${sum} bytes came, and ${expected} were expected`);
  }
  const all = new Uint8Array(sum);
  let at = 0;
  for (const chunk of chunks) {
    all.set(chunk, at);
    at += chunk.length;
  }
  return all.buffer;
}

/** Milliseconds until a media element has played what it has; `undefined` while it does not play. */
function ahead(media: HTMLMediaElement): number | undefined {
  const { buffered, currentTime, paused, playbackRate } = media;
  if (paused || media.readyState < HTMLMediaElement.HAVE_CURRENT_DATA) return undefined;
  let end = currentTime;
  for (let index = 0; index < buffered.length; index++) {
    if (buffered.start(index) <= end + GAP_S) end = Math.max(end, buffered.end(index));
  }
  return ((end - currentTime) * 1000) / (playbackRate || 1);
}

/** Gaps that players pass over. */
const GAP_S = 0.1;

/** The bytes that a header `Range: bytes=first-last` means. */
export function rangeOf(header: string | undefined): FetchOptions['range'] {
  const range = /^bytes=(\d+)-(\d*)$/.exec(header ?? '');
  if (!range) return undefined;
  const start = Number(range[1]);
  return range[2] ? { start, end: Number(range[2]) + 1 } : { start };
}
