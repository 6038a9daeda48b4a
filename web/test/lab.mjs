// Servers, paths, gateways, a site and a browser for tests. NCSERVERD, NCPEER, CHROMIUM and
// FIREFOX name the programs, and NATS_SERVER a server of NATS.
import { spawn, spawnSync } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import {
  closeSync,
  existsSync,
  mkdtempSync,
  openSync,
  readFileSync,
  readSync,
  rmSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import http from 'node:http';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, extname, join, normalize } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import puppeteer from 'puppeteer-core';
import { Network } from './network.mjs';
import { Relay } from './relay.mjs';

export const root = fileURLToPath(new URL('..', import.meta.url));
const program = process.env.NCSERVERD ?? join(root, '../target/release/ncserverd');
const peer = process.env.NCPEER ?? join(dirname(program), 'ncpeer');
const chromium = process.env.CHROMIUM ?? '/usr/bin/chromium';
const nats = process.env.NATS_SERVER ?? 'nats-server';
const firefox = process.env.FIREFOX ?? '/usr/bin/firefox-esr';
const types = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript',
  '.m3u8': 'application/vnd.apple.mpegurl',
  '.mjs': 'text/javascript',
  '.ts': 'video/mp2t',
  '.wasm': 'application/wasm',
};

const SITE_PORT = 8080;
/** Bytes of which servers keep as many in one piece, whatever the form of their memory. */
const PIECE = 64;

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

/** The sum of a metric of a server over all of its labels. */
export async function metric(server, name) {
  const text = await (await fetch(server.metrics)).text();
  const samples = text.split('\n').filter((line) => new RegExp(`^${name}[ {]`).test(line));
  return samples.reduce((sum, line) => sum + Number(line.split(' ').at(-1)), 0);
}

/** Everything that a test starts, and that ends with it. */
export class Lab {
  directory = mkdtempSync(join(tmpdir(), 'ncserverd-peer-'));
  #ends = [];
  #count = 0;
  #network;
  /** Where servers listen. */
  #address = '127.0.0.1';

  /**
   * From now on servers and pages are in network namespaces of their own, with one path between
   * them. Without the right to make these, all of them stay on loopback.
   */
  async separate() {
    if (!Network.isAllowed()) return console.log('not root: servers and pages are on loopback');
    this.#network = new Network();
    this.#ends.push(() => this.#network.close());
    await this.#network.open();
    this.#address = this.#network.address;
  }

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
    if (this.#network) return this.#distantSite(folders);
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

  /** The same where the servers are. */
  async #distantSite(folders) {
    const mime = Object.entries(types).map(
      ([end, type]) => `${type.split(';')[0]} ${end.slice(1)};`,
    );
    const locations = Object.entries(folders).map(
      ([name, folder]) => `location ${name} { alias ${folder}/; }`,
    );
    const config = join(this.directory, 'nginx.conf');
    writeFileSync(
      config,
      `daemon off; master_process off; user root; pid ${this.directory}/nginx.pid; error_log stderr; events {}
      http {
        types { ${mime.join(' ')} }
        charset utf-8;
        access_log off;
        server { listen ${this.#address}:${SITE_PORT}; ${locations.join(' ')} }
      }`,
    );
    const words = ['-e', 'stderr', '-c', config];
    const [command, args] = this.#network.at('server', 'nginx', words);
    this.start(command, args, { stdio: 'ignore' });
    this.origin = `http://${this.#address}:${SITE_PORT}`;
    const asks = this.#network.at('viewer', 'curl', ['-s', '-m', '1', `${this.origin}/`]);
    await until('the site', 5000, () => spawnSync(...asks).status === 0);
  }

  /** A port of loopback that nothing uses. */
  async freePort() {
    const server = createServer();
    await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address();
    await new Promise((resolve) => server.close(resolve));
    return port;
  }

  /** A server of NATS: its URL, or nothing, and a line that says so, if there is no program. */
  async nats() {
    if (spawnSync(nats, ['--version']).status !== 0) {
      if (process.env.NCTEST_REQUIRE_ALL) throw new Error(`there is no ${nats}`);
      return console.log(`skipped: there is no ${nats}`);
    }
    const port = await this.freePort();
    const child = this.start(nats, ['-a', '127.0.0.1', '-p', `${port}`]);
    return said(child, (line) => line.includes('Server is ready') && `nats://127.0.0.1:${port}`);
  }

  /** A folder for the state of a server. */
  state() {
    return join(this.directory, `state-${(this.#count += 1)}`);
  }

  /** A server on this port, with a state of its own or this one. */
  serve(settings = [], port = 0, state = this.state()) {
    // In a namespace nobody reaches them but the viewer.
    const admission = this.#network ? ['admission.insecure=true'] : [];
    const words = [
      'serve',
      '--listen',
      `${this.#address}:${port}`,
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
      ...[...admission, ...settings].flatMap((setting) => ['--set', setting]),
    ];
    const [command, args] = this.#network?.at('server', program, words) ?? [program, words];
    const child = this.start(command, args, {
      env: { PATH: process.env.PATH, STATE_DIRECTORY: state },
    });
    let [hashes, metrics] = [];
    return said(child, (line) => {
      const pages = /"present":"([0-9a-f]{64})","next":"([0-9a-f]{64})"/.exec(line);
      if (pages) hashes = pages.slice(1);
      metrics ??= /(http:\/\/127\.0\.0\.1:\d+\/metrics)/.exec(line)?.[1];
      const peers = /gateway ncs:\/\/[\d.]+:(\d+) --fingerprint (\w+)/.exec(line);
      return peers && { child, port: Number(peers[1]), fingerprint: peers[2], hashes, metrics };
    });
  }

  /**
   * A path to a server, under conditions that relay.mjs describes. Between namespaces there is one
   * for all servers, with the conditions set last.
   */
  async path(server, conditions = {}) {
    if (this.#network) return this.#distant(server, conditions);
    const relay = new Relay(server, conditions);
    this.#ends.push(() => relay.close());
    await relay.listen();
    return relay;
  }

  async #distant({ port, hashes }, conditions) {
    const network = this.#network;
    const place = `${this.#address}:${port}`;
    await network.set(conditions);
    return {
      ncs: `ncs://${place}`,
      hashes,
      server: { url: `https://${place}`, hashes },
      set rate(rate) {
        network.set({ ...conditions, rate });
      },
    };
  }

  /**
   * Overwrites an object that a server holds in its memory, as a faulty memory would: what it says
   * of the object stays right, and the blocks that it makes of it are wrong. Tells how many bytes
   * were overwritten; the server holds some of them more than once.
   */
  spoil({ child }, object) {
    const pieces = new Map();
    const known = new Uint8Array(1 << 20);
    for (let at = 0; at + PIECE <= object.length; at += PIECE) {
      const head = object.readUInt32LE(at);
      pieces.set(head, object.subarray(at, at + PIECE));
      known[head >>> 12] = 1;
    }
    const memory = openSync(`/proc/${child.pid}/mem`, 'r+');
    const some = new Uint32Array(1 << 22);
    const bytes = Buffer.from(some.buffer);
    let spoiled = 0;
    const search = (from, length) => {
      readSync(memory, bytes, 0, length, from);
      for (let word = 0; word < length / 4; word += 4) {
        if (known[some[word] >>> 12] === 0) continue;
        const [piece, at] = [pieces.get(some[word]), word * 4];
        if (!piece || !bytes.subarray(at, at + PIECE).equals(piece)) continue;
        writeSync(memory, randomBytes(PIECE), 0, PIECE, from + at);
        spoiled += PIECE;
      }
    };
    const maps = readFileSync(`/proc/${child.pid}/maps`, 'utf8');
    for (const [, from, to] of maps.matchAll(/^(\w+)-(\w+) rw/gm)) {
      const [start, end] = [from, to].map((hex) => Number(`0x${hex}`));
      for (let at = start; at < end; at += bytes.length)
        search(at, Math.min(bytes.length, end - at));
    }
    closeSync(memory);
    return spoiled;
  }

  /** `ncpeer gateway` at the end of a path. Players load from its `url`. */
  async gateway(path) {
    const child = this.start(peer, [
      'gateway',
      path.ncs,
      '--fingerprint',
      path.fingerprint,
      '--listen',
      '127.0.0.1:0',
    ]);
    return said(child, (line) => {
      const [url] = /http:\/\/127\.0\.0\.1:\d+/.exec(line) ?? [];
      return url && { child, url };
    });
  }

  /** From now on, pages are those of Firefox. */
  async useFirefox() {
    this.browser = await puppeteer.launch({
      browser: 'firefox',
      executablePath: firefox,
      headless: true,
      extraPrefsFirefox: { 'media.autoplay.default': 0 },
    });
    this.#ends.push(() => this.browser.close());
  }

  /**
   * A page of the site, in Chromium by default. `errors` are those that nobody has caught.
   * `isApart`: it shares nothing with the others but the program, as another viewer's.
   */
  async page(url = '/test/page.html', { isApart = false } = {}) {
    if (!this.browser) {
      const wrapper = join(this.directory, 'chromium');
      this.browser = await puppeteer.launch({
        executablePath: this.#network?.wrapper('viewer', chromium, wrapper) ?? chromium,
        headless: true,
        // It has no address that this process reaches.
        pipe: this.#network !== undefined,
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
          // Pages of one machine connect with each other, and their names need no multicast.
          '--allow-loopback-in-peer-connection',
          '--disable-features=WebRtcHideLocalIpsWithMdns',
          // Pages that have not come from this machine need TLS for what they use.
          `--unsafely-treat-insecure-origin-as-secure=${this.origin}`,
          // All of them are watched.
          '--disable-background-timer-throttling',
          '--disable-backgrounding-occluded-windows',
          '--disable-renderer-backgrounding',
        ],
      });
      this.#ends.push(() => this.browser.close());
    }
    const context = isApart ? await this.browser.createBrowserContext() : this.browser;
    const page = await context.newPage();
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

/** Waits until `find` finds something in a line that a program prints. */
function said(child, find) {
  return new Promise((resolve, reject) => {
    const seen = [];
    createInterface({ input: child.stderr }).on('line', (line) => {
      seen.push(line);
      const found = find(line);
      if (found) resolve(found);
    });
    child.on('exit', () => reject(new Error(`a program has ended:\n${seen.join('\n')}`)));
  });
}
