/** Reads of objects from several servers. */

import { Connection, type Server } from './connection.js';
import { Peer, type PeerEvent } from './module.js';

export type { Server } from './connection.js';

/** How a client connects. */
export interface Options {
  /** All of them are used at once. The first is trusted. */
  servers: Server[];
  /** What entitles to streams, where servers ask for it. */
  token?: string;
  /** Bytes that are requested and have not come, at most; 4 MiB by default. */
  windowMax?: number;
  /** The WebAssembly module, if it is not beside this script. */
  module?: URL | BufferSource;
}

/** What is read of an object. */
export interface FetchOptions {
  /** Its first byte, and the one behind the last. */
  range?: { start: number; end?: number };
  /** Milliseconds after which the bytes are of no use. */
  deadline?: number;
  signal?: AbortSignal;
}

/** An object, whose bytes are verified before they come. */
export interface Fetched {
  /** Bytes of the whole object, if known. */
  length: number | undefined;
  contentType: string;
  body: ReadableStream<Uint8Array<ArrayBuffer>>;
}

/** Why a read has failed. */
export class ReadError extends Error {
  override name = 'ReadError';
}

/** Bytes that wait for a reader. */
const ROOM = 1 << 20;
const WINDOW_MAX = 4 << 20;

interface Read {
  controller: ReadableStreamDefaultController<Uint8Array<ArrayBuffer>>;
  opened(info: { length: number | undefined; contentType: string }): void;
  failed(error: unknown): void;
}

/** Connects to servers. Reads may begin at once; they wait until one of the servers answers. */
export async function connect(options: Options): Promise<Client> {
  if (options.servers.length === 0) throw new TypeError('no servers');
  const module = options.module ?? new URL('./ncs_web.wasm', import.meta.url);
  return new Client(await Peer.load(module, options.windowMax ?? WINDOW_MAX), options);
}

/** A client until it is closed. Make it with {@link connect}. */
export class Client {
  private readonly connections: Connection[];
  private readonly reads = new Map<number, Read>();
  private readonly news = new Map<number, ReadableStreamDefaultController<string>>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private isDue = false;

  /** @internal */
  constructor(
    private readonly peer: Peer,
    options: Options,
  ) {
    const pump = () => this.pumpSoon();
    this.connections = options.servers.map(
      (server, source) => new Connection(peer, source, server, options.token, pump),
    );
    for (const connection of this.connections) void connection.run();
  }

  /** Reads an object. It is resolved when a server has named it. */
  fetch(path: string, options: FetchOptions = {}): Promise<Fetched> {
    const { range, deadline, signal } = options;
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const read = this.peer.read(path, range?.start ?? 0, range?.end, deadline);
      if (read === undefined) throw new TypeError(`no path, or an empty range: ${path}`);
      const abort = () => {
        this.peer.cancel(read);
        this.end(read)?.failed(signal!.reason);
      };
      const over = () => signal?.removeEventListener('abort', abort);
      const body = new ReadableStream<Uint8Array<ArrayBuffer>>(
        {
          start: (controller) => {
            const opened: Read['opened'] = (info) => resolve({ ...info, body });
            const failed = (error: unknown) => {
              over();
              controller.error(error);
              reject(error);
            };
            this.reads.set(read, { controller, opened, failed });
          },
          pull: (controller) => {
            this.peer.setRoom(read, Math.max(0, controller.desiredSize ?? 0));
            this.pumpSoon();
          },
          cancel: () => {
            over();
            this.end(read);
            this.peer.cancel(read);
            this.pumpSoon();
          },
        },
        new ByteLengthQueuingStrategy({ highWaterMark: ROOM }),
      );
      signal?.addEventListener('abort', abort, { once: true });
      this.pumpSoon();
    });
  }

  /** The paths of objects that a stream gets from now on. */
  subscribe(stream: string): ReadableStream<string> {
    const request = this.peer.subscribe(stream);
    this.pumpSoon();
    return new ReadableStream({
      start: (controller) => void this.news.set(request, controller),
      cancel: () => {
        this.news.delete(request);
        this.peer.unsubscribe(request);
        this.pumpSoon();
      },
    });
  }

  /** Ends all reads and connections. */
  close(): void {
    const error = new ReadError('the client is closed');
    for (const read of [...this.reads.keys()]) {
      this.peer.cancel(read);
      this.end(read)?.failed(error);
    }
    for (const connection of this.connections) connection.close(0x4e4300, '', true);
    clearTimeout(this.timer);
  }

  /** What is ready is carried out together, after all that has come at once. */
  private pumpSoon(): void {
    if (this.isDue) return;
    this.isDue = true;
    queueMicrotask(() => {
      this.isDue = false;
      this.pump();
    });
  }

  private pump(): void {
    for (const connection of this.connections) connection.flush();
    for (let event; (event = this.peer.event()); ) this.take(event);
    for (const connection of this.connections) connection.flush();
    clearTimeout(this.timer);
    const due = this.peer.due();
    if (due === undefined) return;
    this.timer = setTimeout(() => {
      this.peer.handleTimeout();
      this.pump();
    }, due);
  }

  private take(event: PeerEvent): void {
    switch (event.kind) {
      case 'opened':
        return this.reads.get(event.read)?.opened(event);
      case 'bytes':
        return this.reads.get(event.read)?.controller.enqueue(event.bytes);
      case 'ended':
        return this.end(event.read)?.controller.close();
      case 'failed':
        return this.end(event.read)?.failed(new ReadError(event.reason));
      case 'announced':
        return this.news.get(event.request)?.enqueue(event.path);
      case 'unsubscribed': {
        const news = this.news.get(event.request);
        this.news.delete(event.request);
        return news?.error(new ReadError(event.reason));
      }
      case 'close':
        return this.connections[event.source]?.close(event.code, event.reason, event.isPolluter);
    }
  }

  private end(read: number): Read | undefined {
    const ended = this.reads.get(read);
    this.reads.delete(read);
    return ended;
  }
}
