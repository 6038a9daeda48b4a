// The page of `ncserverd demo --web`: one clip by coded blocks and by a plain stream, side by side.
import { connect, hlsLoader } from './peer/index.js';
import Hls from './hls.js';

const at = (id) => document.getElementById(id);
const facts = await (await fetch('facts.json')).json();
const LOOK_MS = 100;
/** Seconds that a plot shows. */
const SPAN_S = 15;

/** Objects on one bidirectional stream, one after another: a path and a line's end; then a length of
 * 8 bytes, and the bytes. `Client.fetch` of ncserverd-peer has the same form. */
class PlainClient {
  constructor({ url, hashes }) {
    const value = (hash) => Uint8Array.from(hash.match(/../g), (byte) => parseInt(byte, 16));
    this.session = new WebTransport(`${url}/ncs`, {
      serverCertificateHashes: hashes.map((hash) => ({ algorithm: 'sha-256', value: value(hash) })),
    });
    this.turn = this.session.ready.then(async () => {
      const stream = await this.session.createBidirectionalStream();
      this.reader = stream.readable.getReader();
      this.writer = stream.writable.getWriter();
      this.rest = new Uint8Array();
    });
  }

  fetch(path) {
    const fetched = this.turn.then(() => this.begin(path));
    // The next one comes when this one has been read.
    this.turn = fetched.then(
      ({ over }) => over,
      () => {},
    );
    return fetched;
  }

  async begin(path) {
    await this.writer.write(new TextEncoder().encode(`${path}\n`));
    let head = new Uint8Array();
    while (head.length < 8) head = joined(head, await this.next(8 - head.length));
    const length = Number(new DataView(head.buffer).getBigUint64(0));
    let left = length;
    let end;
    const over = new Promise((resolve) => (end = resolve));
    const body = new ReadableStream({
      pull: async (controller) => {
        if (left > 0) {
          const bytes = await this.next(left);
          left -= bytes.length;
          controller.enqueue(bytes);
        }
        if (left === 0) {
          controller.close();
          end();
        }
      },
    });
    return { length, contentType: '', body, over };
  }

  /** The next bytes of the stream, so many at most. */
  async next(most) {
    while (this.rest.length === 0) {
      const { value, done } = await this.reader.read();
      if (done) throw new Error('the plain stream has ended');
      this.rest = value;
    }
    const bytes = this.rest.slice(0, most);
    this.rest = this.rest.subarray(bytes.length);
    return bytes;
  }

  close() {
    this.session.close();
  }
}

function joined(one, other) {
  const all = new Uint8Array(one.length + other.length);
  all.set(one);
  all.set(other, one.length);
  return all;
}

/** One of the two players. */
class Side {
  constructor(name, client, begun) {
    Object.assign(this, { name, client, begun, stalls: 0, line: [] });
    this.video = at(name);
    this.hls = new Hls({
      loader: hlsLoader(client, Hls),
      maxBufferLength: 60,
      enableWorker: false,
    });
    this.over = new AbortController();
    const { signal } = this.over;
    const since = () => ((performance.now() - begun) / 1000).toFixed(2);
    this.video.addEventListener(
      'playing',
      () => {
        if (!this.hasPlayed) at(`${name}-first`).textContent = `${since()} s`;
        this.hasPlayed = true;
      },
      { signal },
    );
    this.video.addEventListener('waiting', () => this.wait(), { signal });
    this.hls.on(Hls.Events.BUFFER_EOS, () => (at(`${name}-whole`).textContent = `${since()} s`));
    this.hls.on(Hls.Events.ERROR, (_, { fatal, details, error }) => {
      if (fatal) at('note').textContent = `${name}: ${error?.message ?? details}`;
    });
    this.hls.loadSource(`ncs://demo${facts.path}`);
    this.hls.attachMedia(this.video);
    this.video.play().catch(() => {});
    for (const part of ['first', 'whole']) at(`${name}-${part}`).textContent = '–';
    at(`${name}-stalls`).textContent = '0';
  }

  wait() {
    const { currentTime, duration, seeking } = this.video;
    if (!this.hasPlayed || seeking || currentTime > duration - 0.3) return;
    this.stalls += 1;
    at(`${this.name}-stalls`).textContent = `${this.stalls}`;
  }

  /** Seconds that are buffered ahead. */
  ahead() {
    const { buffered, currentTime } = this.video;
    const last = buffered.length - 1;
    return last < 0 ? 0 : Math.max(0, buffered.end(last) - currentTime);
  }

  end() {
    this.over.abort();
    this.hls.destroy();
    this.client.close();
  }
}

const SVG = 'http://www.w3.org/2000/svg';
const make = (name, attributes) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

/** Lines of points (second, value) over the same axes, which begin at zero. */
function plot(id, lines) {
  const points = lines.flatMap(({ line }) => line);
  const right = Math.max(SPAN_S, ...points.map(([second]) => second));
  const top = Math.max(1, ...points.map(([, value]) => value));
  const paths = lines.map(({ name, line }) => {
    const steps = line.map(([second, value], index) => {
      const place = [(300 * second) / right, 100 - (100 * value) / top];
      return `${index === 0 ? 'M' : 'L'}${place.map((number) => number.toFixed(1)).join(' ')}`;
    });
    return make('path', { class: name, d: steps.join('') });
  });
  at(id).replaceChildren(make('path', { class: 'axis', d: 'M0 0V100H300' }), ...paths);
}

function bars(ranks) {
  const width = 300 / Math.max(ranks.length, 8);
  const bar = (name, index, height) =>
    make('rect', { class: name, x: index * width, y: 100 - height, width: width * 0.8, height });
  at('ranks').replaceChildren(
    ...ranks.flatMap(({ rank, n }, index) => [
      bar('need', index, 100),
      bar('have', index, (100 * rank) / n),
    ]),
  );
}

let sides = [];
let repair = [];

async function look() {
  if (sides.length === 0) return;
  const [coded, plain] = sides;
  const second = (performance.now() - coded.begun) / 1000;
  const isOver = coded.video.ended && plain.video.ended;
  const { blocks, bytes, ranks } = await coded.client.statistics();
  if (!isOver && sides[0] === coded) {
    for (const side of sides) side.line.push([second, side.ahead()]);
    plot(
      'buffer',
      sides.map(({ name, line }) => ({ name, line })),
    );
    repair.push([second, blocks.lost, blocks.repaired]);
    plot('repair', [
      { name: 'lost', line: repair.map(([at, lost]) => [at, lost]) },
      { name: 'coded', line: repair.map(([at, , repaired]) => [at, repaired]) },
    ]);
    at('buffer-text').textContent = sides
      .map(({ name, line }) => `${name} ${line.at(-1)[1].toFixed(1)} s`)
      .join(', ');
    at('repair-text').textContent =
      `${blocks.lost} lost, ${blocks.repaired} repaired, ${blocks.redundant} redundant`;
    at('coded-bytes').textContent = `${(bytes / facts.bytes).toFixed(2)} times`;
  }
  bars(ranks);
  const held = ranks.reduce((sum, { rank }) => sum + rank, 0);
  const needed = ranks.reduce((sum, { n }) => sum + n, 0);
  at('ranks-text').textContent =
    ranks.length === 0
      ? 'none under way'
      : `${ranks.length} generations: ${held} of ${needed} blocks`;
}

async function play() {
  for (const side of sides) side.end();
  [sides, repair] = [[], []];
  at('note').textContent = '';
  const client = await connect({ servers: [facts.coded] });
  const begun = performance.now();
  sides = [
    new Side('coded', client, begun),
    new Side('plain', new PlainClient(facts.plain), begun),
  ];
}

at('loss').textContent = `${(facts.loss * 100).toLocaleString('en')} %`;
at('again').addEventListener('click', play);
await play();
setInterval(look, LOOK_MS);
setInterval(async () => {
  const { lost } = (await (await fetch('facts.json')).json()).plain;
  at('plain-lost').textContent = `${lost}`;
}, 1000);
