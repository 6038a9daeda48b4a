/** A loader for dash.js: `player.extend('XHRLoader', dashLoader(client), true)`. */

import { pathOf } from './server.js';
import { ReadError, type Client } from './types.js';
import { load as loadWhole, rangeOf, type LoaderOptions } from './whole.js';

interface DashRequest {
  url: string;
  responseType?: string;
  headers?: Record<string, string>;
  timeout?: number;
  customData: {
    onloadend(): void;
    onprogress(event: { loaded: number; total: number; lengthComputable: boolean }): void;
    onabort(): void;
    ontimeout(event: { loaded: number; total: number; lengthComputable: boolean }): void;
    abort?(): void;
  };
}

interface DashResponse {
  url?: string;
  status?: number;
  statusText?: string;
  headers?: Record<string, string>;
  data?: unknown;
}

interface DashLoader {
  load(request: DashRequest, response: DashResponse): boolean;
  abort(): void;
  reset(): void;
  resetInitialSettings(): void;
}

/**
 * A factory that dash.js calls for each request. Other URLs than `ncs://` are left to dash.js. A
 * segment is late if it comes after `media` has run out of what it plays.
 */
export function dashLoader(
  client: Client,
  { media }: LoaderOptions = {},
): (this: { parent: DashLoader }) => DashLoader {
  return function (this: { parent: DashLoader }): DashLoader {
    // The methods of the parent are replaced afterwards.
    const parent = { ...this.parent };
    let aborting: AbortController | undefined;
    let onabort = () => {};

    async function run(
      path: string,
      request: DashRequest,
      response: DashResponse,
      signal: AbortSignal,
    ): Promise<void> {
      const { customData } = request;
      const range = rangeOf(request.headers?.['Range']);
      const { data, contentType } = await loadWhole(client, path, {
        media,
        range,
        signal,
        came: (_, loaded, total) =>
          customData.onprogress({ loaded, total, lengthComputable: total > 0 }),
      });
      response.url = request.url;
      response.status = range ? 206 : 200;
      response.statusText = 'OK';
      response.headers = { 'content-type': contentType };
      response.data =
        request.responseType === 'arraybuffer' ? data : new TextDecoder().decode(data);
    }

    function load(request: DashRequest, response: DashResponse): boolean {
      const path = pathOf(request.url);
      if (path === undefined) return parent.load(request, response);
      const own = new AbortController();
      const { customData } = request;
      aborting = own;
      onabort = () => customData.onabort();
      customData.abort = abort;
      const timer =
        request.timeout &&
        setTimeout(() => {
          own.abort();
          customData.ontimeout({ loaded: 0, total: 0, lengthComputable: false });
          customData.onloadend();
        }, request.timeout);
      run(path, request, response, own.signal)
        .catch((error) => {
          if (own.signal.aborted) return;
          response.status = error instanceof ReadError ? 404 : 0;
          response.statusText = String(error.message);
        })
        .finally(() => {
          clearTimeout(timer);
          if (own.signal.aborted) return;
          aborting = undefined;
          customData.onloadend();
        });
      return true;
    }

    function abort(): void {
      if (!aborting) return parent.abort();
      aborting.abort();
      aborting = undefined;
      onabort();
    }

    function reset(): void {
      if (aborting) abort();
      parent.reset();
    }

    return { load, abort, reset, resetInitialSettings: reset };
  };
}
