/** The client of a page, whose work a worker does. */

import { ROOM, type Settings } from './local.js';
import { Mesh, type MeshNews, type MeshOrder } from './mesh.js';
import {
  ReadError,
  type Client,
  type Fetched,
  type FetchOptions,
  type Statistics,
} from './types.js';

/** What the page tells the worker. An `id` names a read, a subscription or a question. */
export type Order =
  | { kind: 'start'; settings: Settings }
  | { kind: 'fetch'; id: number; path: string; options: Omit<FetchOptions, 'signal'> }
  | { kind: 'room'; id: number; bytes: number }
  | { kind: 'cancel'; id: number }
  | { kind: 'subscribe'; id: number; stream: string }
  | { kind: 'statistics'; id: number }
  | { kind: 'mesh'; news: MeshNews }
  | { kind: 'close' };

/** What the worker answers. */
export type Answer =
  | { kind: 'started'; error?: string }
  | { kind: 'opened'; id: number; length: number | undefined; contentType: string }
  | { kind: 'bytes'; id: number; bytes: Uint8Array<ArrayBuffer> }
  | { kind: 'path'; id: number; path: string }
  | { kind: 'ended'; id: number }
  | { kind: 'failed'; id: number; name: string; message: string }
  | { kind: 'statistics'; id: number; statistics: Statistics }
  | { kind: 'mesh'; order: MeshOrder }
  | { kind: 'event'; type: string; detail: unknown };

interface Pending {
  opened?(info: { length: number | undefined; contentType: string }): void;
  bytes?(bytes: Uint8Array<ArrayBuffer>): void;
  path?(path: string): void;
  ended?(): void;
  failed(error: Error): void;
  statistics?(statistics: Statistics): void;
}

export class RemoteClient extends EventTarget implements Client {
  private readonly pending = new Map<number, Pending>();
  private nextId = 0;
  private isClosed = false;
  private readonly mesh: Mesh | undefined;

  /** `settings` are those of the worker. Data channels exist in the thread of the page alone. */
  private constructor(
    private readonly worker: Worker,
    { share }: Settings,
  ) {
    super();
    if (share) {
      this.mesh = new Mesh(share.iceServers, (news) => {
        this.order({ kind: 'mesh', news }, 'bytes' in news ? [news.bytes.buffer] : []);
      });
    }
    worker.onmessage = ({ data }) => this.handle(data);
    worker.onerror = (event) => this.end(new ReadError(`the worker has failed: ${event.message}`));
  }

  /** Starts a worker. `undefined`: the page may not. */
  static async start(settings: Settings): Promise<RemoteClient | undefined> {
    let worker;
    try {
      worker = open();
    } catch {
      return undefined;
    }
    const started = new Promise<{ error?: string } | undefined>((resolve) => {
      worker.onmessage = ({ data }) => resolve(data);
      // It is not to be had, or may not be loaded here.
      worker.onerror = () => resolve(undefined);
    });
    worker.postMessage({ kind: 'start', settings } satisfies Order);
    const answer = await started;
    if (answer && answer.error === undefined) return new RemoteClient(worker, settings);
    worker.terminate();
    if (answer) throw new ReadError(answer.error);
    return undefined;
  }

  fetch(path: string, options: FetchOptions = {}): Promise<Fetched> {
    const { signal, range, deadline, due } = options;
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      if (this.isClosed) throw new ReadError('the client is closed');
      const id = this.nextId++;
      const over = () => {
        signal?.removeEventListener('abort', abort);
        this.pending.delete(id);
      };
      const abort = () => {
        this.order({ kind: 'cancel', id });
        this.pending.get(id)?.failed(signal!.reason);
      };
      const body = new ReadableStream<Uint8Array<ArrayBuffer>>(
        {
          start: (controller) => {
            this.pending.set(id, {
              opened: (info) => resolve({ ...info, body }),
              bytes: (bytes) => controller.enqueue(bytes),
              ended: () => {
                over();
                controller.close();
              },
              failed: (error) => {
                over();
                controller.error(error);
                reject(error);
              },
            });
            this.order({
              kind: 'fetch',
              id,
              path,
              options: { range, deadline, due } as FetchOptions,
            });
          },
          pull: (controller) => {
            const bytes = Math.max(0, controller.desiredSize ?? 0);
            this.order({ kind: 'room', id, bytes });
          },
          cancel: () => {
            over();
            this.order({ kind: 'cancel', id });
          },
        },
        new ByteLengthQueuingStrategy({ highWaterMark: ROOM }),
      );
      signal?.addEventListener('abort', abort, { once: true });
    });
  }

  subscribe(stream: string): ReadableStream<string> {
    const id = this.nextId++;
    return new ReadableStream({
      start: (controller) => {
        this.pending.set(id, {
          path: (path) => controller.enqueue(path),
          failed: (error) => {
            this.pending.delete(id);
            controller.error(error);
          },
        });
        this.order({ kind: 'subscribe', id, stream });
      },
      cancel: () => {
        this.pending.delete(id);
        this.order({ kind: 'cancel', id });
      },
    });
  }

  statistics(): Promise<Statistics> {
    const id = this.nextId++;
    return new Promise((resolve, reject) => {
      if (this.isClosed) throw new ReadError('the client is closed');
      this.pending.set(id, {
        statistics: (statistics) => {
          this.pending.delete(id);
          resolve(statistics);
        },
        failed: reject,
      });
      this.order({ kind: 'statistics', id });
    });
  }

  close(): void {
    // It ends by itself when its connections have told the servers.
    this.order({ kind: 'close' });
    this.end(new ReadError('the client is closed'));
  }

  private end(error: ReadError): void {
    this.isClosed = true;
    this.mesh?.handle({ op: 'close' });
    for (const pending of [...this.pending.values()]) pending.failed(error);
    this.pending.clear();
  }

  private order(order: Order, transfer: Transferable[] = []): void {
    if (!this.isClosed) this.worker.postMessage(order, transfer);
  }

  private handle(answer: Answer): void {
    if (answer.kind === 'event') {
      this.dispatchEvent(new CustomEvent(answer.type, { detail: answer.detail }));
      return;
    }
    if (answer.kind === 'started') return;
    if (answer.kind === 'mesh') return this.isClosed ? undefined : this.mesh?.handle(answer.order);
    const pending = this.pending.get(answer.id);
    switch (answer.kind) {
      case 'opened':
        return pending?.opened?.(answer);
      case 'bytes':
        return pending?.bytes?.(answer.bytes);
      case 'path':
        return pending?.path?.(answer.path);
      case 'ended':
        return pending?.ended?.();
      case 'failed': {
        const Kind = answer.name === 'TypeError' ? TypeError : ReadError;
        return pending?.failed(new Kind(answer.message));
      }
      case 'statistics':
        return pending?.statistics?.(answer.statistics);
    }
  }
}

/** A worker. Its script may be at another site than the page: then the page's own imports it. */
function open(): Worker {
  const script = new URL('./worker.js', import.meta.url);
  if (script.origin === location.origin) {
    // Bundlers find the script by these words.
    return new Worker(new URL('./worker.js', import.meta.url), { type: 'module' });
  }
  const text = `import ${JSON.stringify(script.href)};`;
  const own = URL.createObjectURL(new Blob([text], { type: 'text/javascript' }));
  // It is fetched as soon as the worker is made.
  setTimeout(() => URL.revokeObjectURL(own), 60_000);
  return new Worker(own, { type: 'module' });
}
