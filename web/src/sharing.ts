/** Other pages, between the peer and the mesh: what is ready goes to each, as far as it has room. */

import { BUFFERED_MAX, type MeshNews, type MeshOrder } from './mesh.js';
import type { Peer, PeerEvent } from './module.js';

const UPLOAD_MAX = 1 << 20;
/** How long the page waits for more of what it may upload. */
const UPLOAD_MS = 50;

export class Sharing {
  /** Open links, and the bytes of datagrams that each has room for. */
  private readonly rooms = new Map<number, number>();
  /** Bytes that may be uploaded now, and since when that is so. */
  private allowance: number;
  private since = performance.now();
  private turn = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly peer: Peer,
    private readonly order: (order: MeshOrder) => void,
    private readonly uploadMax = UPLOAD_MAX,
    private readonly pump: () => void,
  ) {
    this.allowance = uploadMax;
  }

  /** Takes what the mesh tells. */
  take(news: MeshNews): void {
    const { link } = news;
    switch (news.op) {
      case 'say':
        return this.peer.signal(link, news.bytes);
      case 'opened':
        this.rooms.set(link, BUFFERED_MAX);
        return this.peer.linkOpened(link);
      case 'closed':
        this.rooms.delete(link);
        return this.peer.linkClosed(link);
      case 'control':
        return this.peer.linkControl(link, news.asConsumer, news.bytes);
      case 'datagram':
        return this.peer.linkDatagram(link, news.bytes);
      case 'rtt':
        return this.peer.linkRtt(link, news.ms);
      case 'left': {
        const room = this.rooms.get(link);
        if (room !== undefined) this.rooms.set(link, room + news.count);
      }
    }
  }

  /** Does what the peer decides. */
  handle(event: PeerEvent & { kind: 'call' | 'signal' | 'hang-up' }): void {
    const { link } = event;
    switch (event.kind) {
      case 'call':
        return this.order({ op: 'call', link, isFirst: event.isFirst });
      case 'signal':
        return this.order({ op: 'hear', link, isFirst: event.isFirst, bytes: event.bytes });
      case 'hang-up':
        this.rooms.delete(link);
        return this.order({ op: 'hang-up', link });
    }
  }

  /** Sends what is ready. */
  flush(): void {
    // Another one begins each time, because the first may take all that may be uploaded.
    const links = [...this.rooms.keys()];
    const first = links.length > 0 ? (this.turn += 1) % links.length : 0;
    for (const link of [...links.slice(first), ...links.slice(0, first)]) {
      const room = this.rooms.get(link) ?? 0;
      for (const asConsumer of [true, false]) {
        const bytes = this.peer.linkMessages(link, asConsumer);
        if (bytes.length > 0) this.order({ op: 'control', link, asConsumer, bytes });
      }
      const most = Math.min(room, this.allowed());
      if (most <= 0) continue;
      const bytes = this.peer.linkBlocks(link, most);
      if (bytes.length === 0) continue;
      this.rooms.set(link, room - bytes.length);
      this.allowance -= bytes.length;
      this.order({ op: 'blocks', link, bytes });
    }
  }

  close(): void {
    clearTimeout(this.timer);
    this.rooms.clear();
    this.order({ op: 'close' });
  }

  /** Bytes that may be uploaded now. If there are none, it is tried again. */
  private allowed(): number {
    const now = performance.now();
    const more = ((now - this.since) / 1000) * this.uploadMax;
    this.allowance = Math.min(this.allowance + more, this.uploadMax);
    this.since = now;
    if (this.allowance <= 0) {
      this.timer ??= setTimeout(() => {
        this.timer = undefined;
        this.pump();
      }, UPLOAD_MS);
    }
    return this.allowance;
  }
}
