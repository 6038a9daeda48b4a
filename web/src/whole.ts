/** Objects as a whole, for players that do not take pieces. */

import { ReadError, type Fetched, type FetchOptions } from './types.js';

/** Bytes that a read brings; 0 if that is not known. */
export function size({ length }: Fetched, range: FetchOptions['range']): number {
  if (!range) return length ?? 0;
  return Math.max(0, Math.min(range.end ?? Infinity, length ?? Infinity) - range.start);
}

/** All bytes of a body; each piece is told as it comes. */
export async function collect(
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
export function ahead(media: HTMLMediaElement): number | undefined {
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
