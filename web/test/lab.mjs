// Servers, lossy paths, a site and a browser for tests. NCSERVERD and CHROMIUM name the programs.
import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import dgram from 'node:dgram';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { extname, join, normalize } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import puppeteer from 'puppeteer-core';

export const root = fileURLToPath(new URL('..', import.meta.url));
const program = process.env.NCSERVERD ?? join(root, '../target/release/ncserverd');
const chromium = process.env.CHROMIUM ?? '/usr/bin/chromium';
const types = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript',
  '.m3u8': 'application/vnd.apple.mpegurl',
  '.mjs': 'text/javascript',
  '.ts': 'video/mp2t',
  '.wasm': 'application/wasm',
};

export const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex');
export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits until `check` has something to say, for at most so many milliseconds. */
export async function until(what, ms, check) {
  const end = Date.now() + ms;
  for (;;) {
    const answer = await check();
    if (answer) return answer;
    if (Date.now() > end) throw new Error(`not within ${ms} ms: ${what}`);
    await sleep(100);
  }
}

/** Everything that a test starts, and that ends with it. */
export class Lab {
  directory = mkdtempSync(join(tmpdir(), 'ncserverd-peer-'));
  #ends = [];
  #count = 0;

  /** A folder that the servers publish as the stream `live`. */
  get media() {
    return join(this.directory, 'media');
  }

  /** Runs a program to its end. */
  run(name, args, options = {}) {
    const { status, stderr } = spawnSync(name, args, {
      encoding: 'utf8',
      maxBuffer: 1 << 26,
      ...options,
    });
    if (status !== 0) throw new Error(`${name} ${args.join(' ')}:\n${stderr}`);
  }

  /** Starts a program that is killed at the end. */
  start(name, args, options = {}) {
    const child = spawn(name, args, { stdio: ['ignore', 'ignore', 'pipe'], ...options });
    this.#ends.push(async () => {
      if (child.exitCode !== null || child.signalCode !== null) return;
      const ended = new Promise((resolve) => child.once('exit', resolve));
      child.kill('SIGKILL');
      await ended;
    });
    return child;
  }

  /**
   * A site with these folders, by default the package, the players and the media. Its origin is
   * what servers let in.
   */
  async site(
    folders = {
      '/dist/': join(root, 'dist'),
      '/node_modules/': join(root, 'node_modules'),
      '/media/': this.media,
      '/test/': join(root, 'test'),
    },
  ) {
    const server = http.createServer(({ url }, response) => {
      const path = normalize(decodeURIComponent(url.split('?')[0]));
      const [under, folder] = Object.entries(folders).find(([name]) => path.startsWith(name)) ?? [];
      const file = folder && join(folder, path.slice(under.length));
      if (!file || !existsSync(file)) return response.writeHead(404).end();
      const type = types[extname(file)] ?? 'application/octet-stream';
      response.writeHead(200, { 'content-type': type }).end(readFileSync(file));
    });
    await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
    this.#ends.push(() => {
      server.close();
      server.closeAllConnections();
    });
    this.origin = `http://127.0.0.1:${server.address().port}`;
  }

  /** A server with a state of its own. */
  serve() {
    const state = join(this.directory, `state-${(this.#count += 1)}`);
    const child = this.start(
      program,
      [
        'serve',
        '--listen',
        '127.0.0.1:0',
        '--metrics',
        '127.0.0.1:0',
        '--directory',
        `live=${this.media}`,
        '--set',
        `web.origins=${this.origin}`,
        '--set',
        'telemetry.log_format=json',
        '--set',
        'stream.live.block_bytes=1088',
        '--set',
        'ring.bytes=16MiB',
        '--set',
        'device.cpu_threads=1',
        '--set',
        'ingest.segment_max_bytes=1MiB',
      ],
      { env: { STATE_DIRECTORY: state } },
    );
    return new Promise((resolve, reject) => {
      let hashes;
      const seen = [];
      createInterface({ input: child.stderr }).on('line', (line) => {
        seen.push(line);
        const pages = line.match(
          /"present":"(?:sha256:)?([0-9a-f]{64})","next":"(?:sha256:)?([0-9a-f]{64})"/,
        );
        if (pages) hashes = [pages[1], pages[2]];
        const peers = line.match(/ncpeer gateway ncs:\/\/127\.0\.0\.1:(\d+)/);
        if (peers) resolve({ child, port: Number(peers[1]), hashes });
      });
      child.on('exit', () => reject(new Error(`the server has ended:\n${seen.join('\n')}`)));
    });
  }

  /**
   * A path to a server that loses packets in each direction, in an order that is always the same.
   * `loss` and `rate`, in bytes a second towards the page, can be changed.
   */
  async path(server, { loss = 0, rate = Infinity, delay = 0 } = {}) {
    const front = dgram.createSocket('udp4');
    const backs = new Map();
    let state = 1;
    // When the last packet of the queue has left.
    let free = 0;
    const path = { loss, rate, delay, taken: 0, ...server };
    const isLost = () => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return state / 2 ** 32 < path.loss;
    };
    const down = (packet, { port, address }) => {
      path.taken += packet.length;
      if (isLost()) return;
      const now = performance.now();
      free = Math.max(free, now) + (packet.length / path.rate) * 1000;
      // What would wait longer is dropped: a router's queue.
      if (free - now > QUEUE_MS) free -= (packet.length / path.rate) * 1000;
      else later(free - now + path.delay, () => front.send(packet, port, address));
    };
    front.on('message', (packet, from) => {
      const key = `${from.address}:${from.port}`;
      let back = backs.get(key);
      if (!back) {
        back = dgram.createSocket('udp4');
        back.on('message', (answer) => down(answer, from));
        backs.set(key, back);
      }
      if (!isLost()) later(path.delay, () => back.send(packet, server.port, '127.0.0.1'));
    });
    let isClosed = false;
    const later = (ms, send) => {
      const run = () => isClosed || send();
      if (ms < 1) run();
      else setTimeout(run, ms);
    };
    this.#ends.push(() => {
      isClosed = true;
      [front, ...backs.values()].forEach((socket) => socket.close());
    });
    await new Promise((resolve) => front.bind(0, '127.0.0.1', resolve));
    path.port = front.address().port;
    path.server = { url: `https://127.0.0.1:${path.port}`, hashes: server.hashes };
    path.ncs = `ncs://127.0.0.1:${path.port}`;
    return path;
  }

  /** A page of the site in Chromium. `errors` are those that nobody has caught. */
  async page(url = '/test/page.html') {
    if (!this.browser) {
      this.browser = await puppeteer.launch({
        executablePath: chromium,
        headless: true,
        userDataDir: join(this.directory, 'profile'),
        args: [
          '--no-sandbox',
          '--disable-gpu',
          '--disable-dev-shm-usage',
          '--no-first-run',
          '--disable-background-networking',
          '--disable-component-update',
          '--disable-sync',
          '--autoplay-policy=no-user-gesture-required',
          '--mute-audio',
        ],
      });
      this.#ends.push(() => this.browser.close());
    }
    const page = await this.browser.newPage();
    page.setDefaultTimeout(180_000);
    page.errors = [];
    page.on('pageerror', (error) => page.errors.push(String(error.stack ?? error)));
    await page.goto(this.origin + url);
    return page;
  }

  async end() {
    for (const end of this.#ends.reverse()) await end();
    rmSync(this.directory, { recursive: true, force: true, maxRetries: 10, retryDelay: 200 });
  }
}

/** How long packets may wait at a rate. */
const QUEUE_MS = 200;
