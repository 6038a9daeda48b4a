// Runs page.html in Chromium against two servers behind paths that lose a tenth of the packets in
// each direction. NCSERVERD and CHROMIUM name the programs.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import dgram from 'node:dgram';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const server = process.env.NCSERVERD ?? here('../../target/release/ncserverd');
const chromium = process.env.CHROMIUM ?? 'chromium';
const PATIENCE_MS = 180_000;
const LOSS = 0.1;

const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex');
const directory = mkdtempSync(join(tmpdir(), 'ncserverd-peer-'));
const media = join(directory, 'media');
const film = randomBytes(3 << 20);
const long = randomBytes(24 << 20);
const small = randomBytes(3000);
const children = new Set();

const start = (program, args, options = {}) => {
  // A group of its own, because Chromium is many processes.
  const child = spawn(program, args, {
    stdio: ['ignore', 'ignore', 'pipe'],
    detached: true,
    ...options,
  });
  children.add(child);
  return child;
};

/** A server with a state of its own; its address, and the hashes of its certificates. */
const serve = (number, origin) => {
  const state = join(directory, `state-${number}`);
  const child = start(server, [
    'serve', '--listen', '127.0.0.1:0', '--metrics', '127.0.0.1:0',
    '--directory', `live=${media}`,
    '--set', `web.origins=${origin}`, '--set', 'telemetry.log_format=json',
    '--set', 'stream.live.block_bytes=1088', '--set', 'ring.bytes=16MiB',
    '--set', 'device.cpu_threads=1', '--set', 'ingest.segment_max_bytes=1MiB',
  ], { env: { STATE_DIRECTORY: state } });
  return new Promise((resolve, reject) => {
    let hashes;
    const seen = [];
    createInterface({ input: child.stderr }).on('line', (line) => {
      seen.push(line);
      const pages = line.match(/"present":"(?:sha256:)?([0-9a-f]{64})","next":"(?:sha256:)?([0-9a-f]{64})"/);
      if (pages) hashes = [pages[1], pages[2]];
      const peers = line.match(/ncpeer gateway ncs:\/\/127\.0\.0\.1:(\d+)/);
      if (peers) resolve({ child, port: Number(peers[1]), hashes });
    });
    child.on('exit', () => reject(new Error(`the server has ended:\n${seen.join('\n')}`)));
  });
};

/** A relay that loses packets, in an order that is always the same. */
const lossy = (port) => {
  const front = dgram.createSocket('udp4');
  const backs = new Map();
  let state = 1;
  const isLost = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32 < LOSS;
  };
  const relay = { taken: 0 };
  front.on('message', (packet, from) => {
    const key = `${from.address}:${from.port}`;
    let back = backs.get(key);
    if (!back) {
      back = dgram.createSocket('udp4');
      back.on('message', (packet) => {
        relay.taken += packet.length;
        if (!isLost()) front.send(packet, from.port, from.address);
      });
      backs.set(key, back);
    }
    if (!isLost()) back.send(packet, port, '127.0.0.1');
  });
  relay.close = () => [front, ...backs.values()].forEach((socket) => socket.close());
  return new Promise((resolve) => {
    front.bind(0, '127.0.0.1', () => resolve(Object.assign(relay, { port: front.address().port })));
  });
};

const reports = [];
let config;
let relays = [];
let killed;
let heard = () => {};
const types = { html: 'text/html', js: 'text/javascript', wasm: 'application/wasm' };
const site = http.createServer((request, response) => {
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => {
    const answer = (type, body) => response.writeHead(200, { 'content-type': type }).end(body);
    const json = (value) => answer('application/json', JSON.stringify(value));
    if (request.url === '/config') return json(config);
    if (request.url === '/taken') return json({ taken: relays[0].taken - relays[0].before });
    if (request.url === '/kill') {
      killed.kill('SIGKILL');
      return json({});
    }
    if (request.url === '/report') {
      reports.push(JSON.parse(Buffer.concat(chunks)));
      heard();
      return json({});
    }
    const path = request.url === '/' ? './page.html' : `..${request.url}`;
    if (request.url !== '/' && !request.url.startsWith('/dist/')) return response.writeHead(404).end();
    answer(types[path.split('.').pop()], readFileSync(here(path)));
  });
});

const report = async () => {
  const until = Date.now() + PATIENCE_MS;
  while (reports.length === 0) {
    await new Promise((resolve, reject) => {
      heard = resolve;
      setTimeout(() => reject(new Error('the page reports nothing')), until - Date.now()).unref();
    });
  }
  return reports.shift();
};

try {
  await new Promise((resolve) => site.listen(0, '127.0.0.1', resolve));
  const origin = `http://127.0.0.1:${site.address().port}`;
  mkdirSync(media);
  for (const [name, bytes] of [['film.ts', film], ['long.ts', long], ['small.bin', small]]) {
    writeFileSync(join(media, name), bytes);
  }
  const servers = [await serve(1, origin), await serve(2, origin)];
  relays = await Promise.all(servers.map(({ port }) => lossy(port)));
  config = {
    servers: servers.map(({ hashes }, index) => ({
      url: `https://127.0.0.1:${relays[index].port}`,
      hashes,
    })),
  };
  killed = servers[0].child;
  killed.removeAllListeners('exit');
  start(chromium, [
    '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
    '--disable-background-networking', '--disable-component-update', '--disable-sync',
    `--user-data-dir=${join(directory, 'profile')}`, origin,
  ], { stdio: 'ignore' });

  const expect = async (name, check) => {
    if (name === 'a reader that stops holds up the rest') relays[0].before = relays[0].taken;
    const said = await report();
    assert.equal(said.name, name);
    assert.equal(said.error, undefined);
    check(said.result);
    console.log(`ok ${name} ${JSON.stringify(said.result)}`);
    return said.result;
  };
  relays[0].before = 0;
  await expect('a film comes whole through loss', ({ hash, length, type }) => {
    assert.deepEqual([hash, length, type], [sha256(film), film.length, 'video/mp2t']);
  });
  await expect('a range of it', ({ hash, length }) => {
    assert.deepEqual([hash, length], [sha256(film.subarray(70_001, 90_000)), 19_999]);
  });
  await expect('a small object, and one that does not exist', ({ hash, is, reason }) => {
    assert.equal(hash, sha256(small));
    assert.ok(is, reason);
  });
  await expect('a read that is aborted', ({ error }) => assert.equal(error, 'AbortError'));
  await expect('a reader that stops holds up the rest', ({ taken }) => {
    assert.ok(taken > 0 && taken < 12 << 20, `${taken} bytes were sent`);
  });
  await expect('two servers, and one of them is killed', ({ hash }) => {
    assert.equal(hash, sha256(long));
  });
  await expect('end', () => {});
} finally {
  for (const child of children) {
    if (child.exitCode !== null || child.signalCode !== null) continue;
    child.removeAllListeners('exit');
    const ended = new Promise((resolve) => child.once('exit', resolve));
    process.kill(-child.pid, 'SIGKILL');
    await ended;
  }
  relays.forEach((relay) => relay.close());
  site.close();
  site.closeAllConnections();
  rmSync(directory, { recursive: true, force: true, maxRetries: 10, retryDelay: 200 });
}
