// A path of UDP to a server, with the conditions of real networks.
import dgram from 'node:dgram';

/** The conditions of a path without effects. */
export const PLAIN = {
  loss: 0,
  bursts: undefined,
  delay: 0,
  jitter: 0,
  overtaken: 0,
  rate: Infinity,
  isDead: false,
};

/**
 * A relay on 127.0.0.1. Its conditions hold for each direction by itself and can be changed at any
 * time; losses and delays are drawn in an order that is always the same.
 *
 * - `loss`: the part of the packets that is lost.
 * - `bursts`: `{ share, ms, loss }`, or nothing: the model of Gilbert and Elliott. Beside the
 *   good state, where `loss` holds, there is a bad one with a loss of its own. It has this share of
 *   the time, and lasts for so many milliseconds on average.
 * - `delay`: milliseconds that each packet takes.
 * - `jitter`: milliseconds that are added, at most. They change every 20 ms, and packets stay in
 *   order, as in a queue that grows and shrinks.
 * - `overtaken`: the part of the packets that takes another way, which is longer by up to
 *   `jitter`: the others overtake them.
 * - `rate`: bytes a second towards the client; 200 ms of them wait, and the rest is dropped.
 * - `isDead`: nothing comes through.
 * - `address`: of the clients, as the server sees them.
 */
export class Relay {
  address = '127.0.0.1';
  /** Bytes that the server has sent, and packets of both directions by their fate. */
  taken = 0;
  packets = { passed: 0, lost: 0, overtaken: 0 };
  #front = dgram.createSocket('udp4');
  #clients = new Map();
  #up = new Direction(this, 1);
  #down = new Direction(this, 2);
  #server;

  constructor(server, conditions) {
    this.#server = server;
    Object.assign(this, PLAIN, server, conditions);
    this.#front.on('message', (packet, from) => {
      const key = `${from.address}:${from.port}`;
      const client = this.#clients.get(key) ?? { from };
      if (!client.back) this.#open(client);
      this.#clients.set(key, client);
      this.#up.carry(packet.length, () => client.back.send(packet, this.#server.port, '127.0.0.1'));
    });
  }

  async listen() {
    await new Promise((resolve) => this.#front.bind(0, '127.0.0.1', resolve));
    this.port = this.#front.address().port;
    this.server = { url: `https://127.0.0.1:${this.port}`, hashes: this.#server.hashes };
    this.ncs = `ncs://127.0.0.1:${this.port}`;
  }

  /**
   * Gives all clients another port and this address, as a new binding of a NAT does, or the change
   * from one network to another. What is on its way to the old ones is lost.
   */
  move(address = this.address) {
    this.address = address;
    for (const client of this.#clients.values()) {
      client.back.close();
      this.#open(client);
    }
  }

  close() {
    [this.#up, this.#down].forEach((direction) => direction.stop());
    this.#front.close();
    for (const { back } of this.#clients.values()) back.close();
  }

  #open(client) {
    client.back = dgram.createSocket('udp4').bind(0, this.address);
    client.back.on('message', (packet) => {
      this.taken += packet.length;
      const { port, address } = client.from;
      this.#down.carry(packet.length, () => this.#front.send(packet, port, address), this.rate);
    });
  }
}

/** Packets that are on their way in one direction. */
export class Direction {
  #relay;
  #ofLoss;
  #ofBursts;
  #ofDelay;
  #state = { isBad: true, until: 0 };
  /** Sorted by when they arrive. */
  #packets = [];
  #timer;
  /** When the narrowest place is free again, and when the last packet in order arrives. */
  #free = 0;
  #last = 0;
  #added = { ms: 0, until: 0 };

  constructor(relay, seed) {
    this.#relay = relay;
    this.#ofLoss = random(seed);
    this.#ofBursts = random(seed + 2);
    this.#ofDelay = random(seed + 4);
  }

  /** Delivers a packet of so many bytes later, or never. */
  carry(bytes, deliver, rate = Infinity) {
    const { packets } = this.#relay;
    const now = performance.now();
    const free = Math.max(this.#free, now) + (bytes / rate) * 1000;
    // What would wait longer is dropped: a router's queue.
    if (this.#isLost(now) || free - now > QUEUE_MS) return (packets.lost += 1);
    this.#free = free;
    packets.passed += 1;
    let due = Math.max(this.#last, free + this.#relay.delay + this.#jitter(now));
    if (this.#relay.overtaken > 0 && this.#ofDelay() < this.#relay.overtaken) {
      packets.overtaken += 1;
      due += this.#ofDelay() * this.#relay.jitter;
    } else this.#last = due;
    const at = this.#packets.findLastIndex((other) => other.due <= due) + 1;
    this.#packets.splice(at, 0, { due, deliver });
    if (at === 0) this.#deliver();
  }

  stop() {
    clearTimeout(this.#timer);
    this.#packets = [];
  }

  #isLost(now) {
    const { bursts, isDead, loss } = this.#relay;
    while (bursts && this.#state.until <= now) {
      const isBad = !this.#state.isBad;
      const mean = isBad ? bursts.ms : bursts.ms * (1 / bursts.share - 1);
      this.#state = { isBad, until: this.#state.until - Math.log(1 - this.#ofBursts()) * mean };
    }
    return this.#ofLoss() < (bursts && this.#state.isBad ? bursts.loss : loss) || isDead;
  }

  #jitter(now) {
    if (now >= this.#added.until) {
      this.#added = { ms: this.#ofDelay() * this.#relay.jitter, until: now + JITTER_MS };
    }
    return this.#added.ms;
  }

  #deliver() {
    clearTimeout(this.#timer);
    const soon = performance.now() + 1;
    while (this.#packets.length > 0 && this.#packets[0].due < soon) this.#packets.shift().deliver();
    if (this.#packets.length === 0) return;
    this.#timer = setTimeout(() => this.#deliver(), this.#packets[0].due - performance.now());
  }
}

/** Numbers from 0 to 1. */
function random(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** How long packets may wait at a rate. */
const QUEUE_MS = 200;
/** How long packets are delayed alike. */
const JITTER_MS = 20;
