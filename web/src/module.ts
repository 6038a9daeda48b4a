/** The module of crates/ncs-web: its functions, and copies of bytes into and out of its memory. */

import type { ServerStatistics, Statistics } from './types.js';

/** What exports.rs exports. Times are milliseconds; a number below zero stands for nothing. */
interface Exports {
  memory: WebAssembly.Memory;
  create(windowMax: number): number;
  pin(peer: number, length: number): number;
  set_servers(peer: number, length: number): number;
  input(peer: number, length: number): number;
  output(peer: number): number;
  output_length(peer: number): number;
  connected(peer: number, now: number, source: number, visit: bigint, length: number): void;
  closed(peer: number, now: number, source: number, code: number, length: number): void;
  disconnected(peer: number, now: number, source: number, isOutage: number): void;
  set_rtt(peer: number, source: number, ms: number): void;
  control(peer: number, now: number, source: number, length: number): void;
  datagram(peer: number, now: number, source: number, length: number): void;
  stream(peer: number, now: number, source: number, stream: number, length: number): void;
  stream_end(peer: number, now: number, source: number, stream: number, reset: number): void;
  handle_timeout(peer: number, now: number): void;
  due(peer: number): number;
  read(peer: number, start: number, end: number, deadline: number, length: number): number;
  set_room(peer: number, read: number, bytes: number): void;
  cancel(peer: number, read: number): void;
  subscribe(peer: number, length: number): number;
  unsubscribe(peer: number, request: number): void;
  messages(peer: number, now: number, source: number): number;
  stop(peer: number, source: number): number;
  event(peer: number, now: number): number;
  event_number(peer: number, index: number): number;
  statistics(peer: number, length: number): number;
  // What ncs_web_share.wasm has in addition. A link is a connection with another page.
  create_sharing?(windowMax: number): number;
  signal?(peer: number, link: number, length: number): void;
  link_opened?(peer: number, now: number, link: number): void;
  link_rtt?(peer: number, link: number, ms: number): void;
  link_closed?(peer: number, now: number, link: number): void;
  link_control?(peer: number, now: number, link: number, asConsumer: number, length: number): void;
  link_datagram?(peer: number, now: number, link: number, length: number): void;
  link_messages?(peer: number, now: number, link: number, asConsumer: number): number;
  link_blocks?(peer: number, now: number, link: number, room: number): number;
  shared?(peer: number): number;
}

/** What `statistics` of exports.rs counts, in its order. */
const ALL = [
  'received',
  'innovative',
  'redundant',
  'systematic',
  'lost',
  'repaired',
  'late',
  'wrong',
] as const;
const ONE = [
  'received',
  'innovative',
  'redundant',
  'lost',
  'wrong',
  'bytes',
  'loss',
  'rate',
  'rtt',
] as const;

/** Counts of the machine, and of each server. */
export interface Counted extends Pick<Statistics, 'blocks' | 'bytes' | 'generations' | 'ranks'> {
  of: Omit<ServerStatistics, 'url' | 'state'>[];
}

/** What has happened, as `event` of exports.rs numbers it. */
export type PeerEvent =
  | { kind: 'ready' | 'token-refused' | 'going-away'; source: number }
  | { kind: 'open'; source: number; by: number; url: string }
  | { kind: 'rest' | 'resume' | 'forget'; source: number }
  | { kind: 'opened'; read: number; length: number | undefined; contentType: string }
  | { kind: 'bytes'; read: number; bytes: Uint8Array<ArrayBuffer> }
  | { kind: 'ended'; read: number }
  | { kind: 'failed'; read: number; reason: string }
  | { kind: 'announced'; request: number; path: string }
  | { kind: 'unsubscribed'; request: number; reason: string }
  | { kind: 'close'; source: number; code: number; reason: string; isPolluter: boolean }
  | { kind: 'call'; link: number; isFirst: boolean }
  | { kind: 'signal'; link: number; isFirst: boolean; bytes: Uint8Array<ArrayBuffer> }
  | { kind: 'hang-up'; link: number };

const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** A peer without I/O. */
export class Peer {
  private constructor(
    private readonly exports: Exports,
    private readonly peer: number,
  ) {}

  /**
   * Loads the module from an address or from its bytes. `failed`: it has, and is of no use.
   * `shares`: the peer serves other pages, which takes ncs_web_share.wasm.
   */
  static async load(
    module: string | BufferSource,
    windowMax: number,
    shares: boolean,
    failed: () => void,
  ): Promise<Peer> {
    let memory: WebAssembly.Memory | undefined;
    const bytes = (at: number, length: number) => new Uint8Array(memory!.buffer, at, length);
    const page = {
      fill_random: (at: number, length: number) => crypto.getRandomValues(bytes(at, length)),
      say: (at: number, length: number) => console.error(decoder.decode(bytes(at, length).slice())),
    };
    const source =
      typeof module === 'string'
        ? await WebAssembly.instantiateStreaming(fetch(module), { page })
        : await WebAssembly.instantiate(module, { page });
    const exports = source.instance.exports as unknown as Exports;
    memory = exports.memory;
    if (shares && !exports.create_sharing) throw new TypeError('this module cannot share');
    const peer = shares ? exports.create_sharing!(windowMax) : exports.create(windowMax);
    return new Peer(guarded(exports, failed), peer);
  }

  /** Pins a key. False: it is none. */
  pin(key: string): boolean {
    return this.exports.pin(this.peer, this.put(encoder.encode(key))) !== 0;
  }

  /** The servers of the page, `host:port` each. Others that these name are turned to. */
  setServers(servers: string[]): boolean {
    const length = this.put(encoder.encode(servers.join(' ')));
    return this.exports.set_servers(this.peer, length) !== 0;
  }

  connected(source: number, visit: bigint, token: string | undefined): void {
    const length = this.put(encoder.encode(token ?? ''));
    this.exports.connected(this.peer, now(), source, visit, length);
  }

  /** A server has closed the session, and may have said where to go. */
  closed(source: number, code: number, reason: string): void {
    this.exports.closed(this.peer, now(), source, code, this.put(encoder.encode(reason)));
  }

  disconnected(source: number, isOutage: boolean): void {
    this.exports.disconnected(this.peer, now(), source, isOutage ? 1 : 0);
  }

  setRtt(source: number, ms: number): void {
    this.exports.set_rtt(this.peer, source, ms);
  }

  control(source: number, bytes: Uint8Array): void {
    this.exports.control(this.peer, now(), source, this.put(bytes));
  }

  datagram(source: number, bytes: Uint8Array): void {
    this.exports.datagram(this.peer, now(), source, this.put(bytes));
  }

  stream(source: number, stream: number, bytes: Uint8Array): void {
    this.exports.stream(this.peer, now(), source, stream, this.put(bytes));
  }

  streamEnd(source: number, stream: number, reset: number | undefined): void {
    this.exports.stream_end(this.peer, now(), source, stream, reset ?? -1);
  }

  handleTimeout(): void {
    this.exports.handle_timeout(this.peer, now());
  }

  /** The time until something is due, in milliseconds. */
  due(): number | undefined {
    const due = this.exports.due(this.peer);
    return due < 0 ? undefined : Math.max(0, due - now());
  }

  /** Begins a read. `undefined`: this is no path, or no byte. */
  read(path: string, start: number, end: number | undefined, deadline: number | undefined) {
    const length = this.put(encoder.encode(path));
    const until = deadline === undefined ? -1 : now() + deadline;
    const read = this.exports.read(this.peer, start, end ?? -1, until, length);
    return read < 0 ? undefined : read;
  }

  /** The reader of a read now has room for so many bytes. */
  setRoom(read: number, bytes: number): void {
    this.exports.set_room(this.peer, read, bytes);
  }

  cancel(read: number): void {
    this.exports.cancel(this.peer, read);
  }

  subscribe(stream: string): number {
    return this.exports.subscribe(this.peer, this.put(encoder.encode(stream)));
  }

  unsubscribe(request: number): void {
    this.exports.unsubscribe(this.peer, request);
  }

  /** Bytes for a server's control stream. */
  messages(source: number): Uint8Array<ArrayBuffer> {
    this.exports.messages(this.peer, now(), source);
    return this.output();
  }

  /** A stream of a server to refuse. */
  stop(source: number): number | undefined {
    const stream = this.exports.stop(this.peer, source);
    return stream < 0 ? undefined : stream;
  }

  event(): PeerEvent | undefined {
    const kind = this.exports.event(this.peer, now());
    const number = (index: number) => this.exports.event_number(this.peer, index);
    const text = () => decoder.decode(this.output());
    switch (kind) {
      case 0:
        return undefined;
      case 1:
        return { kind: 'ready', source: number(0) };
      case 2: {
        const length = number(1) < 0 ? undefined : number(1);
        return { kind: 'opened', read: number(0), length, contentType: text() };
      }
      case 3:
        return { kind: 'bytes', read: number(0), bytes: this.output() };
      case 4:
        return { kind: 'ended', read: number(0) };
      case 5:
        return { kind: 'failed', read: number(0), reason: text() };
      case 6:
        return { kind: 'announced', request: number(0), path: text() };
      case 7:
        return { kind: 'unsubscribed', request: number(0), reason: text() };
      case 8:
        return { kind: 'token-refused', source: number(0) };
      case 9:
        return { kind: 'going-away', source: number(0) };
      case 12:
        return { kind: 'call', link: number(0), isFirst: number(1) === 1 };
      case 13: {
        const [link, isFirst, bytes] = [number(0), number(1) === 1, this.output()];
        return { kind: 'signal', link, isFirst, bytes };
      }
      case 14:
        return { kind: 'hang-up', link: number(0) };
      case 15:
        return { kind: 'open', source: number(0), by: number(1), url: text() };
      case 16:
        return { kind: 'rest', source: number(0) };
      case 17:
        return { kind: 'resume', source: number(0) };
      case 18:
        return { kind: 'forget', source: number(0) };
      default: {
        const [source, code, isPolluter] = [number(0), number(1), kind === 11];
        return { kind: 'close', source, code, reason: text(), isPolluter };
      }
    }
  }

  /** What is counted of these servers, and of all. */
  statistics(servers: number[]): Counted {
    const ids = new Uint8Array(Uint32Array.from(servers).buffer);
    this.exports.statistics(this.peer, this.put(ids));
    const numbers = new Float64Array(this.output().buffer);
    let at = 0;
    const take = <K extends string>(names: readonly K[]) =>
      Object.fromEntries(names.map((name) => [name, numbers[at++]])) as Record<K, number>;
    const blocks = take(ALL);
    const { bytes, generations } = take(['bytes', 'generations']);
    const one = () => {
      const { rtt, ...counts } = take(ONE);
      return { ...counts, rtt: rtt < 0 ? undefined : rtt };
    };
    const of = servers.map(one);
    const ranks = Array.from({ length: (numbers.length - at) / 2 }, () => take(['rank', 'n']));
    return { blocks, bytes, generations, ranks, of };
  }

  /** What this page says to that of a link. */
  signal(link: number, bytes: Uint8Array): void {
    this.exports.signal!(this.peer, link, this.put(bytes));
  }

  linkOpened(link: number): void {
    this.exports.link_opened!(this.peer, now(), link);
  }

  linkRtt(link: number, ms: number): void {
    this.exports.link_rtt!(this.peer, link, ms);
  }

  linkClosed(link: number): void {
    this.exports.link_closed!(this.peer, now(), link);
  }

  /** Bytes of frames: as a consumer of the other page, or as its sender. */
  linkControl(link: number, asConsumer: boolean, bytes: Uint8Array): void {
    const length = this.put(bytes);
    this.exports.link_control!(this.peer, now(), link, asConsumer ? 1 : 0, length);
  }

  linkDatagram(link: number, bytes: Uint8Array): void {
    this.exports.link_datagram!(this.peer, now(), link, this.put(bytes));
  }

  linkMessages(link: number, asConsumer: boolean): Uint8Array<ArrayBuffer> {
    this.exports.link_messages!(this.peer, now(), link, asConsumer ? 1 : 0);
    return this.output();
  }

  /** Datagrams for a link, as mesh.ts takes them, for so many bytes and a few more. */
  linkBlocks(link: number, room: number): Uint8Array<ArrayBuffer> {
    this.exports.link_blocks!(this.peer, now(), link, room);
    return this.output();
  }

  /** What is counted of other pages. */
  shared(): Statistics['pages'] {
    if (!this.exports.shared) return undefined;
    this.exports.shared(this.peer);
    const [connected, received, sent, lying] = new Float64Array(this.output().buffer);
    return { connected: connected!, received: received!, sent: sent!, lying: lying! };
  }

  private put(bytes: Uint8Array): number {
    const at = this.exports.input(this.peer, bytes.length);
    // The buffer is another one after the memory has grown.
    new Uint8Array(this.exports.memory.buffer, at, bytes.length).set(bytes);
    return bytes.length;
  }

  private output(): Uint8Array<ArrayBuffer> {
    const at = this.exports.output(this.peer);
    const length = this.exports.output_length(this.peer);
    return new Uint8Array(this.exports.memory.buffer, at, length).slice();
  }
}

/** Functions that tell when one of them traps. No other can be called after that. */
function guarded(exports: Exports, failed: () => void): Exports {
  const guard =
    (call: (...numbers: never[]) => unknown) =>
    (...numbers: never[]) => {
      try {
        return call(...numbers);
      } catch (error) {
        failed();
        throw error;
      }
    };
  const functions = Object.entries(exports).filter(([, value]) => typeof value === 'function');
  const all = Object.fromEntries(functions.map(([name, call]) => [name, guard(call)]));
  return { ...all, memory: exports.memory } as unknown as Exports;
}

function now(): number {
  return performance.now();
}
