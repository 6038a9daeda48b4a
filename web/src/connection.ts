/** One server: its session of WebTransport, and the next one when it ends. */

import type { Peer } from './module.js';
import { unhex, type Server } from './server.js';
import type { ServerState } from './types.js';

/** DONE of docs/protocol.md, section 9. */
const DONE = 0x4e4300;
/** A frame that every side skips: a page has no PING. */
const KEEP_ALIVE = Uint8Array.of(0x40, 0x5f, 0x00);
const SILENCE_MS = 2000;
/**
 * The pause before another attempt is random, below a bound. It doubles when the server refuses,
 * or ends the session. While nobody answers it is an eighth of that time: the path may live again
 * at any moment.
 */
const PAUSE_MS = { least: 500, most: 30_000 };
const SILENT_PART = 8;
/** Refusals come sooner. */
const REFUSED_MS = 3000;
/** Datagrams that wait for this script. The browser drops others, and coding repairs that. */
const DATAGRAMS = 4096;

/** A connection, which is made again whenever it ends. */
export class Connection {
  private session: WebTransport | undefined;
  private writer: WritableStreamDefaultWriter<Uint8Array> | undefined;
  private readonly streams = new Map<number, ReadableStreamDefaultReader<Uint8Array>>();
  private nextStream = 0;
  private said = 0;
  private bound = PAUSE_MS.least;
  private heard = performance.now();
  private isClosed = false;
  private isRunning = false;
  private wake = () => {};
  state: ServerState = 'connecting';
  private readonly visit = crypto.getRandomValues(new BigUint64Array(1))[0]!;

  constructor(
    private readonly peer: Peer,
    readonly source: number,
    readonly server: Server,
    private readonly token: string | undefined,
    /** How long an attempt may take, in milliseconds, if not as long as the browser has it. */
    private readonly timeout: number | undefined,
    private readonly pump: () => void,
    private readonly changed: (state: ServerState) => void,
  ) {}

  /** Connects again and again until it is closed. */
  async run(): Promise<void> {
    if (this.isRunning) return this.wake();
    this.isRunning = true;
    // It may have been resumed while it ended.
    do await this.keepConnected();
    while (!this.isClosed);
    this.isRunning = false;
  }

  /** Connects again, after it was closed for good. */
  resume(): void {
    this.isClosed = false;
    this.bound = PAUSE_MS.least;
    this.become('connecting');
    void this.run();
  }

  private async keepConnected(): Promise<void> {
    while (!this.isClosed) {
      const begun = performance.now();
      const isOutage = await this.converse();
      this.session = this.writer = undefined;
      this.streams.clear();
      this.peer.disconnected(this.source, isOutage);
      this.pump();
      if (this.isClosed) return;
      if (this.state !== 'refusing') this.become('waiting');
      const pause = Math.random() * this.nextBound(begun);
      let timer: ReturnType<typeof setTimeout> | undefined;
      await new Promise<void>((resolve) => {
        this.wake = resolve;
        timer = setTimeout(resolve, pause);
      });
      clearTimeout(timer);
    }
  }

  /** The bound of the pause after an attempt, or a session, that began then. */
  private nextBound(begun: number): number {
    const now = performance.now();
    if (this.heard < begun && now - begun > REFUSED_MS) {
      this.bound = PAUSE_MS.least;
      const bound = (now - this.heard) / SILENT_PART;
      return Math.min(Math.max(bound, PAUSE_MS.least), PAUSE_MS.most);
    }
    const { bound } = this;
    this.bound = Math.min(2 * bound, PAUSE_MS.most);
    return bound;
  }

  /** Tells a change of the state. */
  become(state: ServerState): void {
    if (this.state === state) return;
    this.state = state;
    this.changed(state);
  }

  /** Sends what the peer has to say to this server, and refuses streams. */
  flush(): void {
    if (!this.writer) return;
    const bytes = this.peer.messages(this.source);
    if (bytes.length > 0) this.write(bytes);
    for (let stream; (stream = this.peer.stop(this.source)) !== undefined; ) {
      const reader = this.streams.get(stream);
      reader?.cancel(new WebTransportError({ streamErrorCode: DONE } as never)).catch(ignore);
    }
  }

  /** Ends the session. It is not made again if the server lies, or this side goes. */
  close(code: number, reason: string, isForGood: boolean): void {
    this.isClosed ||= isForGood;
    this.session?.close({ closeCode: code, reason });
    if (isForGood) this.wake();
  }

  /** A session until it ends. Returns whether that was an outage. */
  private async converse(): Promise<boolean> {
    const options: WebTransportOptions = {};
    if (this.server.hashes) {
      options.serverCertificateHashes = this.server.hashes.map((hash) => ({
        algorithm: 'sha-256',
        value: unhex(hash),
      }));
    }
    let alive: ReturnType<typeof setInterval> | undefined;
    let attempt: ReturnType<typeof setTimeout> | undefined;
    try {
      const session = new WebTransport(new URL('/ncs', this.server.url), options);
      this.session = session;
      // Nobody else waits for it.
      session.closed.catch(ignore);
      if (this.timeout) attempt = setTimeout(() => session.close(), this.timeout);
      await session.ready;
      const control = await session.createBidirectionalStream();
      clearTimeout(attempt);
      this.writer = control.writable.getWriter();
      this.peer.connected(this.source, this.visit, this.token);
      session.datagrams.incomingHighWaterMark = DATAGRAMS;
      this.pump();
      alive = setInterval(() => {
        if (performance.now() - this.said >= SILENCE_MS) this.write(KEEP_ALIVE);
        if ('getStats' in session) this.observe(session).catch(ignore);
      }, SILENCE_MS / 4);
      this.takeDatagrams(session).catch(ignore);
      this.takeStreams(session).catch(ignore);
      this.takeControl(control.readable).catch(ignore);
      const { closeCode, reason } = await session.closed;
      this.peer.closed(this.source, closeCode ?? 0, reason ?? '');
      return closeCode === 0 || closeCode === DONE + 14;
    } catch {
      return true;
    } finally {
      clearInterval(alive);
      clearTimeout(attempt);
    }
  }

  private write(bytes: Uint8Array<ArrayBuffer>): void {
    this.said = performance.now();
    this.writer?.write(bytes).catch(ignore);
  }

  private async takeControl(readable: ReadableStream<Uint8Array>): Promise<void> {
    const reader = readable.getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done || !this.writer) return;
      this.bound = PAUSE_MS.least;
      this.heard = performance.now();
      this.peer.control(this.source, value);
      this.pump();
    }
  }

  /** Where the browser tells the round-trip time, it is taken from there. */
  private async observe(session: WebTransport): Promise<void> {
    const { smoothedRtt } = await (session as Observed).getStats!();
    if (session === this.session && smoothedRtt > 0) this.peer.setRtt(this.source, smoothedRtt);
  }

  private async takeDatagrams(session: WebTransport): Promise<void> {
    const reader = session.datagrams.readable.getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done || session !== this.session) return;
      this.heard = performance.now();
      this.peer.datagram(this.source, value);
      this.pump();
    }
  }

  private async takeStreams(session: WebTransport): Promise<void> {
    const incoming = session.incomingUnidirectionalStreams.getReader();
    for (;;) {
      const { value, done } = await incoming.read();
      if (done || session !== this.session) return;
      this.takeStream(session, this.nextStream++, value as ReadableStream<Uint8Array>);
    }
  }

  private async takeStream(
    session: WebTransport,
    stream: number,
    readable: ReadableStream<Uint8Array>,
  ): Promise<void> {
    const reader = readable.getReader();
    this.streams.set(stream, reader);
    let reset: number | undefined;
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (session !== this.session) return;
        if (done) break;
        this.peer.stream(this.source, stream, value);
        this.pump();
      }
    } catch (error) {
      reset = (error as WebTransportError).streamErrorCode ?? DONE;
    }
    this.streams.delete(stream);
    if (session !== this.session) return;
    this.peer.streamEnd(this.source, stream, reset);
    this.pump();
  }
}

/** What not all browsers have. */
type Observed = WebTransport & { getStats?(): Promise<{ smoothedRtt: number }> };

/** For errors that the end of the session tells, too. */
function ignore(): void {}
