/** Reads of objects from several servers, in this thread. */

import { Connection } from './connection.js';
import { Mesh, type MeshNews, type MeshOrder } from './mesh.js';
import { Peer, type PeerEvent } from './module.js';
import { isPrivate, namedServer, placeOf, type Server } from './server.js';
import { Sharing } from './sharing.js';
import {
  ReadError,
  type Client,
  type Fetched,
  type FetchOptions,
  type ServerState,
  type Statistics,
} from './types.js';

/** The options of `connect`, as they are handed to a worker, too. */
export interface Settings {
  servers: Server[];
  token: string | undefined;
  /** Keys of all streams, or of one: `stream=key`. */
  keys: string[];
  windowMax: number | undefined;
  module: string | BufferSource | undefined;
  /** How pages serve each other, if they do. */
  share: { iceServers: RTCIceServer[]; uploadMax: number | undefined } | undefined;
}

/** Bytes that wait for a reader. */
export const ROOM = 1 << 20;
const WINDOW_MAX = 4 << 20;
const STATISTICS_MS = 1000;
/** An attempt to connect to a server that another one has named: it may not exist. */
const NAMED_MS = 3000;
/** The code with which a page goes: DONE of docs/protocol.md, section 9. */
const DONE = 0x4e4300;

interface Read {
  controller: ReadableStreamDefaultController<Uint8Array<ArrayBuffer>>;
  /** When its bytes are late. */
  due: number | undefined;
  opened(info: { length: number | undefined; contentType: string }): void;
  failed(error: unknown): void;
}

export class LocalClient extends EventTarget implements Client {
  /** By source. */
  private readonly connections = new Map<number, Connection>();
  private readonly reads = new Map<number, Read>();
  private readonly news = new Map<number, ReadableStreamDefaultController<string>>();
  private readonly counts = {
    done: 0,
    failed: 0,
    late: 0,
    margin: undefined as number | undefined,
  };
  private readonly ticker: ReturnType<typeof setInterval>;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private isDue = false;
  private isClosed = false;
  private readonly sharing: Sharing | undefined;

  /** `orders` takes what is ordered of the mesh where it is elsewhere. */
  private constructor(
    private readonly peer: Peer,
    private readonly settings: Settings,
    orders: ((order: MeshOrder) => void) | undefined,
  ) {
    super();
    if (settings.share) {
      const { iceServers, uploadMax } = settings.share;
      const mesh = orders ? undefined : new Mesh(iceServers, (news) => this.meshTells(news));
      const order = orders ?? ((order: MeshOrder) => mesh!.handle(order));
      this.sharing = new Sharing(peer, order, uploadMax, () => this.pumpSoon());
    }
    if (!peer.setServers(settings.servers.map(placeOf)))
      console.warn('servers with such names are not left for others that they name');
    settings.servers.forEach((server, source) => this.connect(source, server));
    this.ticker = setInterval(() => this.tell('statistics', this.count()), STATISTICS_MS);
  }

  static async start(
    settings: Settings,
    orders?: (order: MeshOrder) => void,
  ): Promise<LocalClient> {
    const own = settings.share
      ? new URL('./ncs_web_share.wasm', import.meta.url)
      : new URL('./ncs_web.wasm', import.meta.url);
    const module = settings.module ?? own.href;
    let client: LocalClient | undefined;
    const failed = () => client?.end(new ReadError('the module has failed'));
    const { windowMax = WINDOW_MAX, share, keys } = settings;
    const peer = await Peer.load(module, windowMax, share !== undefined, failed);
    const wrong = keys.find((key) => !peer.pin(key));
    if (wrong !== undefined) throw new TypeError(`not the key of a stream: ${wrong}`);
    client = new LocalClient(peer, settings, orders);
    return client;
  }

  /** Connects to a server. `timeout`: each attempt takes so long at most, in milliseconds. */
  private connect(source: number, server: Server, timeout?: number): void {
    const changed = (state: ServerState) => this.tell('server', { url: server.url, state });
    const pump = () => this.pumpSoon();
    const { token } = this.settings;
    const connection = new Connection(this.peer, source, server, token, timeout, pump, changed);
    this.connections.set(source, connection);
    void connection.run();
  }

  fetch(path: string, options: FetchOptions = {}): Promise<Fetched> {
    const { range, deadline, signal } = options;
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      if (this.isClosed) throw new ReadError('the client is closed');
      const read = this.peer.read(path, range?.start ?? 0, range?.end, deadline);
      if (read === undefined) throw new TypeError(`no path, or an empty range: ${path}`);
      const late = options.due ?? deadline;
      const due = late === undefined ? undefined : performance.now() + late;
      const abort = () => {
        this.peer.cancel(read);
        this.take(read)?.failed(signal!.reason);
        this.pumpSoon();
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
            this.reads.set(read, { controller, due, opened, failed });
          },
          pull: (controller) => {
            this.peer.setRoom(read, Math.max(0, controller.desiredSize ?? 0));
            this.pumpSoon();
          },
          cancel: () => {
            over();
            this.take(read);
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

  /** Takes what comes of the orders to the mesh. */
  meshTells(news: MeshNews): void {
    if (this.isClosed) return;
    this.sharing?.take(news);
    this.pumpSoon();
  }

  statistics(): Promise<Statistics> {
    return Promise.resolve(this.count());
  }

  close(): void {
    for (const read of this.reads.keys()) this.peer.cancel(read);
    this.end(new ReadError('the client is closed'));
  }

  private end(error: ReadError): void {
    if (this.isClosed) return;
    this.isClosed = true;
    clearInterval(this.ticker);
    clearTimeout(this.timer);
    for (const read of [...this.reads.keys()]) this.take(read)?.failed(error);
    for (const news of this.news.values()) news.error(error);
    this.news.clear();
    this.sharing?.close();
    for (const connection of this.connections.values()) connection.close(DONE, '', true);
  }

  private tell(type: string, detail: unknown): void {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  private count(): Statistics {
    const { of, ...all } = this.peer.statistics([...this.connections.keys()]);
    return {
      thread: typeof document === 'undefined' ? 'worker' : 'page',
      ...all,
      reads: { ...this.counts },
      servers: [...this.connections.values()].map((connection, index) => ({
        url: connection.server.url,
        state: connection.state,
        ...of[index]!,
      })),
      pages: this.sharing && this.peer.shared(),
    };
  }

  /** What is ready is carried out together, after all that has come at once. */
  private pumpSoon(): void {
    if (this.isDue || this.isClosed) return;
    this.isDue = true;
    queueMicrotask(() => {
      this.isDue = false;
      if (!this.isClosed) this.pump();
    });
  }

  private pump(): void {
    this.flush();
    for (let event; (event = this.peer.event()); ) this.handle(event);
    this.flush();
    clearTimeout(this.timer);
    const due = this.peer.due();
    if (due === undefined || this.isClosed) return;
    this.timer = setTimeout(() => {
      this.peer.handleTimeout();
      this.pump();
    }, due);
  }

  private flush(): void {
    for (const connection of this.connections.values()) connection.flush();
    this.sharing?.flush();
  }

  private handle(event: PeerEvent): void {
    switch (event.kind) {
      case 'opened':
        return this.reads.get(event.read)?.opened(event);
      case 'bytes':
        return this.reads.get(event.read)?.controller.enqueue(event.bytes);
      case 'ended': {
        this.counts.done += 1;
        const read = this.take(event.read);
        this.time(read);
        return read?.controller.close();
      }
      case 'failed': {
        this.counts.failed += 1;
        const read = this.take(event.read);
        this.time(read);
        return read?.failed(new ReadError(event.reason));
      }
      case 'announced':
        return this.news.get(event.request)?.enqueue(event.path);
      case 'unsubscribed': {
        const news = this.news.get(event.request);
        this.news.delete(event.request);
        return news?.error(new ReadError(event.reason));
      }
      case 'ready':
        return this.connections.get(event.source)?.become('ready');
      case 'token-refused':
        return this.connections.get(event.source)?.become('refusing');
      case 'going-away':
        return this.connections.get(event.source)?.become('leaving');
      case 'close': {
        const connection = this.connections.get(event.source);
        if (event.isPolluter) connection?.become('lying');
        return connection?.close(event.code, event.reason, event.isPolluter);
      }
      case 'open': {
        const server = namedServer(event.url);
        const by = this.connections.get(event.by)?.server;
        // A server on the internet names no hosts of the viewer's own network.
        if (!server || (isPrivate(server) && !(by && isPrivate(by)))) {
          console.warn(`a server has named ${event.url}, which is not connected`);
          return this.peer.disconnected(event.source, false);
        }
        // Another process at the same address shows the same certificates.
        const isSame = by && placeOf(by) === placeOf(server);
        return this.connect(event.source, isSame ? by : server, NAMED_MS);
      }
      case 'rest': {
        const connection = this.connections.get(event.source);
        if (connection?.state !== 'lying') connection?.become('resting');
        return connection?.close(DONE, '', true);
      }
      case 'resume':
        return this.connections.get(event.source)?.resume();
      case 'forget':
        this.connections.get(event.source)?.close(DONE, '', true);
        return void this.connections.delete(event.source);
      case 'call':
      case 'signal':
      case 'hang-up':
        return this.sharing?.handle(event);
    }
  }

  /** Counts whether a read that ends is in time. */
  private time(read: Read | undefined): void {
    if (read?.due === undefined) return;
    this.counts.margin = read.due - performance.now();
    if (this.counts.margin < 0) this.counts.late += 1;
  }

  private take(read: number): Read | undefined {
    const taken = this.reads.get(read);
    this.reads.delete(read);
    return taken;
  }
}
