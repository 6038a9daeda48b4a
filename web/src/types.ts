/** What a page sees of a client, in whichever thread it runs. */

import type { Server } from './server.js';

/** How a client connects. */
export interface Options {
  /**
   * All of them are used at once. The first is trusted. A text is an address as `ncpeer` takes it:
   * `ncs://host:port#hash,hash`.
   */
  servers: (Server | string)[];
  /** What entitles to streams, where servers ask for it. */
  token?: string;
  /**
   * The key that has signed all streams, in hexadecimal digits, or `stream=key` for one, or several
   * of these. What no such key has signed is refused. Without it, the first server names the keys.
   */
  key?: string | string[];
  /** Bytes that are requested and have not come, at most; 4 MiB by default. */
  windowMax?: number;
  /** Whether it runs in a worker, which is the default in a page. */
  worker?: boolean;
  /** The WebAssembly module, if it is not beside this script. With `share` it is another one. */
  module?: URL | string | BufferSource;
  /**
   * Whether this page and those of other viewers serve each other, where the stream allows it.
   * Viewers that are connected see each other's addresses.
   */
  share?: boolean;
  /** Servers of STUN and TURN that help pages to connect; none by default. */
  iceServers?: RTCIceServer[];
  /** Bytes a second that this page sends to others, at most; 1 MiB by default. */
  uploadMax?: number;
}

/** What is read of an object. */
export interface FetchOptions {
  /** Its first byte, and the one behind the last. */
  range?: { start: number; end?: number };
  /** Milliseconds after which the bytes are of no use. The read fails then. */
  deadline?: number;
  /** Milliseconds after which the bytes are late. They are read to the end, and counted. */
  due?: number;
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

/** What is counted since the client began. */
export interface Statistics {
  /** The thread in which the client runs. */
  thread: 'page' | 'worker';
  /** Blocks of all servers. */
  blocks: {
    received: number;
    innovative: number;
    redundant: number;
    /** Blocks that are a part of the object itself. */
    systematic: number;
    /** Datagrams that never came. */
    lost: number;
    /** Those of them whose generation was completed without them. */
    repaired: number;
    /** Blocks of requests that had ended. */
    late: number;
    /** Blocks that were proved wrong. */
    wrong: number;
  };
  /** Bytes of payload in blocks. */
  bytes: number;
  /** Generations decoded. */
  generations: number;
  /** Independent blocks held, and blocks needed, of generations under way: 64 at most. */
  ranks: { rank: number; n: number }[];
  reads: {
    done: number;
    failed: number;
    /** Those that had a time, by `due` or `deadline`, and ended after it. */
    late: number;
    /** Milliseconds between the end of the last read that had a time, and that time. */
    margin: number | undefined;
  };
  servers: ServerStatistics[];
  /** What is shared with other pages; `undefined` without `share`. */
  pages:
    | {
        connected: number;
        /** Bytes of payload from them, of all `bytes`, and to them. */
        received: number;
        sent: number;
        /** Pages that have lied, and are not connected again. */
        lying: number;
      }
    | undefined;
}

/** What is counted of one server. */
export interface ServerStatistics {
  url: string;
  state: ServerState;
  /** Milliseconds. */
  rtt: number | undefined;
  received: number;
  innovative: number;
  redundant: number;
  lost: number;
  wrong: number;
  bytes: number;
  /** Share of the datagrams that are lost at present. */
  loss: number;
  /** Bytes of payload a second at present. */
  rate: number;
}

/**
 * `waiting`: it is connected again after a pause. `refusing`: it rejects the token. `leaving`: it
 * takes no new requests. `resting`: another server, which it has named, serves in its place.
 * `lying`: it has sent what is wrong, and is not connected again.
 */
export type ServerState =
  | 'connecting'
  | 'ready'
  | 'waiting'
  | 'refusing'
  | 'leaving'
  | 'resting'
  | 'lying';

/** A client until it is closed. Make it with `connect`. */
export interface Client extends EventTarget {
  /** Reads an object. It is resolved when a server has named it. */
  fetch(path: string, options?: FetchOptions): Promise<Fetched>;
  /** The paths of objects that a stream gets from now on. */
  subscribe(stream: string): ReadableStream<string>;
  statistics(): Promise<Statistics>;
  /** Ends all reads and connections. */
  close(): void;

  addEventListener<K extends keyof ClientEvents>(
    type: K,
    listener: (event: ClientEvents[K]) => void,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
}

/** What a client tells. */
export interface ClientEvents {
  /** Once a second. */
  statistics: CustomEvent<Statistics>;
  /** The state of a server has changed. */
  server: CustomEvent<{ url: string; state: ServerState }>;
}
