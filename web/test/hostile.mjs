// Pages that break the rules of docs/protocol.md, section 10, in Chromium, beside one that plays.
// tests/hostile_web has the whole list of violations, by a client that is no browser. Here it is
// seen that a page can do it, that a browser tells the page why its session ended, and that the
// other sessions of the same browser go on.
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { make } from './clips.mjs';
import { Lab, metric, until } from './lab.mjs';
import { playElement, played } from './watch.mjs';

/** Sessions that a page tries to open, and how many an address may have. */
const SESSIONS = 1100;
const ADDRESS_MAX = 1000;
const PLAYLIST = '/live/180/index.m3u8';
/** Seconds that a viewer has to play on. */
const MORE_S = 4;
/** Codes of section 9. */
const [PROTOCOL, TIMEOUT] = [1, 7];
const HELLO = [0x00, 0x01, 0x00];
const GET = [0x24, 0x0b, 0x01, 0x07, ...Buffer.from('/live/x'), 0x00, 0x00];

/** What a page sends on its control stream, what it does then, and the code of the end. */
const VIOLATIONS = {
  'GET before HELLO': { bytes: GET, code: PROTOCOL },
  'HELLO twice': { bytes: [...HELLO, ...HELLO], code: PROTOCOL },
  'an unknown even type': { bytes: [...HELLO, 0x2a, 0x00], code: PROTOCOL },
  'a GRANT': { bytes: [...HELLO, 0x04, 0x01, 0x00], code: PROTOCOL },
  'a huge length': { bytes: [...HELLO, 0x24, ...Array(8).fill(0xff)], code: PROTOCOL },
  noise: { bytes: [0x00, 0x40, 0x40, ...Array(64).fill(0xa5)], code: PROTOCOL },
  'an end of the control stream': { bytes: HELLO, then: 'close', code: PROTOCOL },
  'a reset of the control stream': { bytes: HELLO, then: 'abort', code: PROTOCOL },
  'no HELLO': { bytes: [], code: TIMEOUT },
  'no HELLO, but datagrams': { bytes: [], then: 'datagrams', code: TIMEOUT },
  'no HELLO, but streams': { bytes: [], then: 'streams', code: TIMEOUT },
};

export async function hostile(test) {
  const lab = new Lab();
  try {
    await lab.site();
    mkdirSync(lab.media);
    make(lab);
    await test('pages that break rules end their own sessions only', async () => {
      const server = await lab.serve(['session.hello_timeout=1s']);
      const viewer = await view(lab, server);
      const page = await lab.page();
      await viewer.look();
      for (const [name, { bytes, then, code }] of Object.entries(VIOLATIONS)) {
        const got = await page.evaluate(breakRules, at(server), bytes, then);
        const what = `${name}: ${JSON.stringify(got)}`;
        assert.equal(got.code, 0x4e4300 + code, what);
        // The control stream is the only one that a page gets.
        assert.ok(got.streams === undefined || got.streams === 0, name);
      }
      const end = await page.evaluate(breakRules, at(server), [...HELLO, ...GET], 'go');
      assert.equal(end.code, undefined, 'a page that keeps to the rules');
      assert.ok(end.answer > 0);
      await until('all are counted', 5000, async () => {
        const count = await metric(server, 'ncserverd_session_violations_total');
        return count === Object.keys(VIOLATIONS).length;
      });
      await viewer.goesOn();
      await page.close();
    });
    await test('a page opens sessions until its address has all that it may have', async () => {
      const server = await lab.serve([`admission.address_connections_max=${ADDRESS_MAX}`]);
      const viewer = await view(lab, server);
      const page = await lab.page();
      await viewer.look();
      const got = await page.evaluate(open, at(server), SESSIONS, HELLO);
      const told = {
        ...got,
        open: await metric(server, 'ncserverd_session_open_sessions'),
        connections: await metric(server, 'ncserverd_endpoint_open_connections'),
        limited: await metric(server, 'ncserverd_admission_limited_total'),
      };
      const what = JSON.stringify(told);
      // The viewer has another address.
      assert.deepEqual([got.opened, got.ended, told.open], [ADDRESS_MAX, 0, ADDRESS_MAX + 1], what);
      assert.ok(told.connections >= told.open && told.connections <= told.open + 1, what);
      assert.ok(got.refused > 0 && told.limited >= got.refused, what);
      await viewer.goesOn();
      await page.close();
      // Chromium may close what a page leaves, or say nothing: then they time out.
      const left = () => metric(server, 'ncserverd_session_open_sessions');
      await until('the sessions end', 40_000, async () => (await left()) === 0);
      // There is room again, also for this address.
      const again = await lab.page();
      assert.equal((await again.evaluate(open, at(server), 1, HELLO)).opened, 1);
      await again.close();
      return told;
    });
  } finally {
    await lab.end();
  }
}

/** The address of a server for pages, without a relay. */
const at = ({ port, hashes }) => ({ url: `https://127.0.0.1:${port}/ncs`, hashes });

/** A page that plays, by another address than 127.0.0.1. */
async function view(lab, server) {
  const path = await lab.path(server, { loss: 0.02, delay: 10, address: '127.0.0.2' });
  const page = await playElement(lab, path, PLAYLIST, { maxBufferLength: 4, maxBufferSize: 0 });
  await played(page, 1, 20_000);
  return {
    /** A video without sound stands still in a page that nobody sees. */
    look: () => page.bringToFront(),
    /** Plays more, has played without a stall, and is still in its first session. */
    async goesOn() {
      const from = await page.evaluate(() => video.currentTime);
      const { stalls, errors, currentTime } = await played(page, from + MORE_S, 20_000);
      assert.deepEqual([stalls, errors], [0, []]);
      assert.ok(currentTime >= from + MORE_S, `${currentTime} after ${from}`);
      await page.close();
    },
  };
}

/* What runs in pages. */

/** Opens a session, sends these bytes on its control stream, and tells how the session ends. */
async function breakRules({ url, hashes }, bytes, then) {
  const value = (hash) => Uint8Array.from(hash.match(/../g), (byte) => parseInt(byte, 16));
  const serverCertificateHashes = hashes.map((hash) => ({
    algorithm: 'sha-256',
    value: value(hash),
  }));
  const session = new WebTransport(url, { serverCertificateHashes });
  await session.ready;
  const control = await session.createBidirectionalStream();
  const writer = control.writable.getWriter();
  writer.write(Uint8Array.from(bytes)).catch(() => {});
  const told = {};
  const reader = control.readable.getReader();
  if (then === 'go') {
    const { value } = await reader.read();
    told.answer = value.length;
    session.close({ closeCode: 0x4e4300 });
    return told;
  }
  if (then === 'close') writer.close().catch(() => {});
  // Before HELLO has come, a reset may overtake the head of the stream: no session exists then.
  if (then === 'abort')
    reader
      .read()
      .then(() => writer.abort())
      .catch(() => {});
  if (then === 'datagrams') {
    const datagrams = session.datagrams.writable.getWriter();
    for (let count = 0; count < 1000; count++) {
      datagrams.write(crypto.getRandomValues(new Uint8Array(1000))).catch(() => {});
    }
  }
  if (then === 'streams') {
    told.streams = 0;
    for (let count = 0; count < 100; count++) {
      session.createBidirectionalStream().then(
        () => (told.streams += 1),
        () => {},
      );
    }
  }
  try {
    const { closeCode, reason } = await session.closed;
    return { ...told, code: closeCode, reason };
  } catch (error) {
    return { ...told, error: String(error) };
  }
}

/** Opens so many sessions, and keeps those that are let in until the page is closed. */
async function open({ url, hashes }, most, hello) {
  const value = (hash) => Uint8Array.from(hash.match(/../g), (byte) => parseInt(byte, 16));
  const serverCertificateHashes = hashes.map((hash) => ({
    algorithm: 'sha-256',
    value: value(hash),
  }));
  const told = { opened: 0, refused: 0, ended: 0, reason: undefined };
  const begun = performance.now();
  const sessions = (globalThis.sessions = []);
  const one = async () => {
    const session = new WebTransport(url, { serverCertificateHashes });
    session.closed.catch(() => {});
    try {
      await session.ready;
      const control = await session.createBidirectionalStream();
      const writer = control.writable.getWriter();
      await writer.write(Uint8Array.from(hello));
      await control.readable.getReader().read();
      told.opened += 1;
      session.closed.then(
        () => (told.ended += 1),
        () => (told.ended += 1),
      );
      sessions.push(writer);
    } catch (error) {
      told.refused += 1;
      told.reason = String(error);
    }
  };
  // A frame that every side skips keeps them alive.
  const alive = Uint8Array.of(0x40, 0x5f, 0x00);
  setInterval(() => sessions.forEach((writer) => writer.write(alive).catch(() => {})), 4000);
  // Once it is refused, Chromium itself lets further attempts wait.
  while (told.opened < most && told.refused === 0) {
    await Promise.all(Array.from({ length: Math.min(10, most - told.opened) }, one));
    if (performance.now() - begun > 60_000) break;
  }
  return { ...told, ms: Math.round(performance.now() - begun) };
}
