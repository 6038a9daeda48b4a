/**
 * A scheme of Shaka Player:
 * `shaka.net.NetworkingEngine.registerScheme('ncs', shakaScheme(client, shaka), 1, true)`.
 */

import { pathOf } from './server.js';
import type { Client } from './types.js';
import { load, rangeOf, type LoaderOptions } from './whole.js';

/** What of Shaka Player is used. It is no dependency: the page has its own. */
export interface ShakaLike {
  util: {
    AbortableOperation: new <T>(promise: Promise<T>, abort: () => Promise<void>) => unknown;
    Error: {
      new (severity: number, category: number, code: number, ...data: unknown[]): unknown;
      Severity: { RECOVERABLE: number };
      Category: { NETWORK: number };
      Code: { HTTP_ERROR: number; OPERATION_ABORTED: number };
    };
  };
}

interface ShakaRequest {
  headers: Record<string, string>;
}

/** A segment is late if it comes after `media` has run out of what it plays. */
export function shakaScheme(client: Client, shaka: ShakaLike, { media }: LoaderOptions = {}) {
  const { AbortableOperation, Error: ShakaError } = shaka.util;
  const failed = (code: number, ...data: unknown[]) =>
    new ShakaError(ShakaError.Severity.RECOVERABLE, ShakaError.Category.NETWORK, code, ...data);

  return (
    uri: string,
    request: ShakaRequest,
    requestType: number,
    progressed: (ms: number, bytes: number, left: number) => void,
    headed: (headers: Record<string, string>) => void,
  ): unknown => {
    const aborting = new AbortController();
    const run = async () => {
      const begun = performance.now();
      let last = begun;
      let headers = {};
      const { data } = await load(client, pathOf(uri)!, {
        media,
        range: rangeOf(request.headers['Range']),
        signal: aborting.signal,
        opened: (_, contentType) => headed((headers = { 'content-type': contentType })),
        came: (chunk, loaded, total) => {
          const now = performance.now();
          progressed(now - last, chunk.length, Math.max(0, total - loaded));
          last = now;
        },
      });
      const timeMs = performance.now() - begun;
      return { uri, originalUri: uri, data, status: 200, headers, timeMs, fromCache: false };
    };
    const promise = run().catch((error) => {
      throw aborting.signal.aborted
        ? failed(ShakaError.Code.OPERATION_ABORTED, uri, requestType)
        : failed(ShakaError.Code.HTTP_ERROR, uri, error, requestType);
    });
    return new AbortableOperation(promise, async () => aborting.abort());
  };
}
