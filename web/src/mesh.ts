/**
 * Connections with other pages, over data channels of WebRTC. They exist in a window only: where
 * the client runs in a worker, its orders and what comes of them go through messages.
 *
 * Nothing is decided here, and nothing that comes is believed: crates/ncs-web checks it.
 */

/** What the client orders. A `link` is a connection with one page. */
export type MeshOrder =
  /** Connect. `isFirst`: this page is the caller if both call at once. */
  | { op: 'call'; link: number; isFirst: boolean }
  /** The other page says this, through the server. */
  | { op: 'hear'; link: number; isFirst: boolean; bytes: Uint8Array<ArrayBuffer> }
  /** Frames. `asConsumer`: of the conversation in which this page is the consumer. */
  | { op: 'control'; link: number; asConsumer: boolean; bytes: Uint8Array<ArrayBuffer> }
  /** Datagrams, each with its length before it in two bytes, the lower one first. */
  | { op: 'blocks'; link: number; bytes: Uint8Array<ArrayBuffer> }
  | { op: 'hang-up'; link: number }
  | { op: 'close' };

/** What comes of it. */
export type MeshNews =
  /** Something to say to the other page, through the server. */
  | { op: 'say'; link: number; bytes: Uint8Array<ArrayBuffer> }
  | { op: 'opened'; link: number }
  | { op: 'closed'; link: number }
  | { op: 'control'; link: number; asConsumer: boolean; bytes: Uint8Array<ArrayBuffer> }
  | { op: 'datagram'; link: number; bytes: Uint8Array<ArrayBuffer> }
  /** So many bytes of datagrams have left since the last time. */
  | { op: 'left'; link: number; count: number }
  /** The round-trip time to the other page, in milliseconds. */
  | { op: 'rtt'; link: number; ms: number };

/** Bytes of datagrams that may wait for the network. */
export const BUFFERED_MAX = 64 << 10;
const BUFFERED_LOW = 16 << 10;
/** How long candidates are waited for: those that come later are left out. */
const GATHER_MS = 1000;
/** Bytes of a SIGNAL of docs/protocol.md, section 2. */
const SIGNAL_MAX = 8192;
/** Candidates of another page, at most: the browser sends something to each. */
const CANDIDATES_MAX = 32;
/** How often the round-trip time is looked at. */
const RTT_MS = 1000;
/** Bytes of frames that may wait for the network. */
const CONTROL_MAX = 256 << 10;

interface Link {
  connection: RTCPeerConnection;
  isCaller: boolean;
  /** By their ids. */
  channels: RTCDataChannel[];
  isOpen: boolean;
  /** Bytes of datagrams that were handed over, and those of them that are known to have left. */
  given: number;
  told: number;
}

export class Mesh {
  private readonly links = new Map<number, Link>();

  constructor(
    private readonly iceServers: RTCIceServer[],
    private readonly tell: (news: MeshNews) => void,
  ) {}

  handle(order: MeshOrder): void {
    switch (order.op) {
      case 'call':
        return void this.call(order.link).catch(() => this.fail(order.link));
      case 'hear':
        return void this.hear(order).catch(() => this.fail(order.link));
      case 'control':
        return this.control(order.link, order.asConsumer, order.bytes);
      case 'blocks':
        return this.blocks(order.link, order.bytes);
      case 'hang-up':
        return this.end(order.link);
      case 'close':
        return [...this.links.keys()].forEach((link) => this.end(link));
    }
  }

  private async call(id: number): Promise<void> {
    const link = this.make(id, true);
    await link.connection.setLocalDescription();
    await this.say(id, link, 'offer');
  }

  private async hear({ link: id, isFirst, bytes }: MeshOrder & { op: 'hear' }): Promise<void> {
    const said = parse(bytes);
    const known = this.links.get(id);
    if (said.answer !== undefined) {
      if (known?.connection.signalingState !== 'have-local-offer') return;
      await known.connection.setRemoteDescription({ type: 'answer', sdp: said.answer });
    } else if (said.offer !== undefined) {
      if (known && (!known.isCaller || known.isOpen || isFirst)) return;
      this.end(id);
      const link = this.make(id, false);
      await link.connection.setRemoteDescription({ type: 'offer', sdp: said.offer });
      await link.connection.setLocalDescription();
      await this.say(id, link, 'answer');
    }
  }

  private make(id: number, isCaller: boolean): Link {
    const connection = new RTCPeerConnection({ iceServers: this.iceServers });
    const channels = [0, 1, 2, 3].map((channel) => {
      const kind = channel % 2 === 0 ? { ordered: true } : { ordered: false, maxRetransmits: 0 };
      return connection.createDataChannel('ncs/1', { negotiated: true, id: channel, ...kind });
    });
    const link: Link = { connection, isCaller, channels, isOpen: false, given: 0, told: 0 };
    this.links.set(id, link);
    channels.forEach((channel, index) => {
      channel.binaryType = 'arraybuffer';
      channel.onopen = () => this.opened(id, link);
      channel.onclose = () => this.links.get(id) === link && this.fail(id);
      channel.onmessage = ({ data }) => this.take(id, link, index, data);
    });
    const out = channels[this.index(link, false) + 1]!;
    out.bufferedAmountLowThreshold = BUFFERED_LOW;
    out.onbufferedamountlow = () => this.left(id, link);
    connection.onconnectionstatechange = () => {
      if (connection.connectionState === 'failed' && this.links.get(id) === link) this.fail(id);
    };
    return link;
  }

  /** The channel of frames of a conversation. That of its datagrams is the next. */
  private index(link: Link, asConsumer: boolean): number {
    return link.isCaller === asConsumer ? 0 : 2;
  }

  private async say(id: number, link: Link, type: 'offer' | 'answer'): Promise<void> {
    const { connection } = link;
    await new Promise<void>((resolve) => {
      const look = () => connection.iceGatheringState === 'complete' && resolve();
      connection.onicegatheringstatechange = look;
      setTimeout(resolve, GATHER_MS);
      look();
    });
    if (this.links.get(id) !== link) return;
    const said = { [type]: connection.localDescription!.sdp };
    const bytes = new TextEncoder().encode(JSON.stringify(said));
    if (bytes.length > SIGNAL_MAX) return this.fail(id);
    this.tell({ op: 'say', link: id, bytes });
  }

  private opened(id: number, link: Link): void {
    if (link.isOpen || link.channels.some(({ readyState }) => readyState !== 'open')) return;
    link.isOpen = true;
    this.tell({ op: 'opened', link: id });
    void this.observe(id, link).catch(() => {});
  }

  /** Tells the round-trip time from time to time. */
  private async observe(id: number, link: Link): Promise<void> {
    while (this.links.get(id) === link) {
      for (const of of (await link.connection.getStats()).values()) {
        const seconds = of.type === 'candidate-pair' && of.nominated && of.currentRoundTripTime;
        if (seconds > 0) this.tell({ op: 'rtt', link: id, ms: seconds * 1000 });
      }
      await new Promise((resolve) => setTimeout(resolve, RTT_MS));
    }
  }

  private take(id: number, link: Link, index: number, data: unknown): void {
    // A text is nothing that this side understands.
    if (this.links.get(id) !== link || !(data instanceof ArrayBuffer)) return;
    const bytes = new Uint8Array(data);
    const asConsumer = this.index(link, true) === (index & 2);
    if (index % 2 === 0) this.tell({ op: 'control', link: id, asConsumer, bytes });
    else if (asConsumer) this.tell({ op: 'datagram', link: id, bytes });
  }

  private control(id: number, asConsumer: boolean, bytes: Uint8Array<ArrayBuffer>): void {
    const link = this.links.get(id);
    const channel = link?.channels[this.index(link, asConsumer)];
    if (channel?.readyState !== 'open') return;
    // Who does not read is left.
    if (channel.bufferedAmount > CONTROL_MAX) return this.fail(id);
    channel.send(bytes);
  }

  private blocks(id: number, bytes: Uint8Array<ArrayBuffer>): void {
    const link = this.links.get(id);
    const channel = link?.channels[this.index(link, false) + 1];
    if (!link || channel?.readyState !== 'open') return;
    for (let at = 0; at + 2 <= bytes.length; ) {
      const length = bytes[at]! | (bytes[at + 1]! << 8);
      channel.send(bytes.subarray(at + 2, at + 2 + length));
      at += 2 + length;
    }
    link.given += bytes.length;
    if (channel.bufferedAmount <= BUFFERED_LOW) this.left(id, link);
  }

  private left(id: number, link: Link): void {
    const { bufferedAmount } = link.channels[this.index(link, false) + 1]!;
    // Nothing tells when the last few bytes have left.
    const waiting = bufferedAmount <= BUFFERED_LOW ? 0 : bufferedAmount;
    const count = link.given - waiting - link.told;
    if (count <= 0 || this.links.get(id) !== link) return;
    link.told += count;
    this.tell({ op: 'left', link: id, count });
  }

  private fail(id: number): void {
    this.end(id);
    this.tell({ op: 'closed', link: id });
  }

  private end(id: number): void {
    const link = this.links.get(id);
    this.links.delete(id);
    link?.connection.close();
  }
}

/** Whether pages can be connected from here. */
export function hasMesh(): boolean {
  return typeof RTCPeerConnection !== 'undefined';
}

/** What another page says; nothing if it makes no sense. */
function parse(bytes: Uint8Array): { offer?: string; answer?: string } {
  try {
    const said: unknown = JSON.parse(new TextDecoder().decode(bytes));
    const { offer, answer } = Object(said) as Record<string, unknown>;
    const sdp = answer ?? offer;
    if (typeof sdp !== 'string') return {};
    const lines = sdp.split(/[\r\n]+/);
    if (lines.filter(isCandidate).length > CANDIDATES_MAX) return {};
    const text = lines.filter((line) => !isCandidate(line) || mayBeTried(line)).join('\r\n');
    return answer === undefined ? { offer: text } : { answer: text };
  } catch {
    return {};
  }
}

const isCandidate = (line: string) => line.startsWith('a=candidate:');

/**
 * Whether a candidate is what browsers name for data channels: UDP, to an address, or to a name
 * that hides one in the own network. Another page cannot have this browser look up names, or
 * connect by TCP.
 */
function mayBeTried(line: string): boolean {
  const [, , transport = '', , address = ''] = line.split(' ');
  return (
    transport.toLowerCase() === 'udp' &&
    /^([\d.]+|[\da-f:.]*:[\da-f:.]*|[^.]+\.local)$/i.test(address)
  );
}
