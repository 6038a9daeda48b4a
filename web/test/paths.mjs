// Players on paths as they are: `<nc-video>` in a page, and a player of HTTP at `ncpeer gateway`,
// at the same time, each at the end of a path of its own.
//
// What must hold under every condition, and under two of them at once: all bytes are the origin's,
// and no player runs dry after its start where the path carries the rate. A change of address does
// not end the session. When a path has been dead, its players go on by themselves, within
// RECOVERY_MS after it lives again, and do not run dry again.
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { hashes, make, SEGMENT_S } from './clips.mjs';
import { Lab, metric, sleep, until } from './lab.mjs';
import { HttpPlayer, loaded, playElement, played } from './watch.mjs';

/**
 * A rendition of 0.12 MB a second. Where round trips are not steady, one of 0.05 MB: the server's
 * congestion control by delay takes jitter for a queue, and sends little (docs/operating.md).
 */
const playlist = (names) =>
  `/live/${names.some((name) => CONDITIONS[name].path.jitter) ? 180 : 360}/index.m3u8`;
/** Seconds that players fetch ahead. */
const AHEAD_S = 6;
/** Where conditions begin to change, and how far tests play. */
const FROM_S = 3;
const TO_S = 20;
/** Players go on after an outage within this time, and the part of it after which they try anew. */
const RECOVERY_MS = 5000;
const RECOVERY_PART = 8;
const PATH = { delay: 15 };
const OPENED = 'ncserverd_session_opened_total';

/** Conditions: those from the beginning on, and what changes while it plays. */
const CONDITIONS = {
  bursts: { path: { loss: 0.01, bursts: { share: 0.1, ms: 40, loss: 0.7 } } },
  jitter: { path: { jitter: 30 } },
  reordering: { path: { jitter: 30, overtaken: 0.1 } },
  swings: {
    path: { rate: 400_000 },
    async change(path) {
      for (const rate of [200_000, 400_000, 800_000, 400_000, 200_000, 400_000]) {
        path.rate = rate;
        await sleep(2000);
      }
    },
  },
  moves: {
    path: {},
    async change(path) {
      path.move();
      await sleep(4000);
      // From Wi-Fi to a mobile network.
      path.move('127.0.0.2');
      path.delay += 25;
    },
  },
  outage: {
    path: {},
    async change(path, ms) {
      path.isDead = true;
      await sleep(ms);
      path.isDead = false;
      path.aliveAt = Date.now();
    },
  },
};
/** What CI has time for. */
const PAIRS = [
  ['bursts', 'jitter'],
  ['reordering', 'moves'],
  ['swings', 'moves'],
  ['bursts', 'outage'],
];

/** The pairs that CI tests, with an outage of 15 s. */
export const paths = (test) => suite(test, PAIRS, 15_000);

/** Each condition and each pair of them, with an outage of a minute. */
export const allPaths = (test) => {
  const names = Object.keys(CONDITIONS);
  const pairs = names.flatMap((one, at) => names.slice(at + 1).map((other) => [one, other]));
  return suite(test, [...names.map((name) => [name]), ...pairs], 60_000);
};

async function suite(test, cells, outageMs) {
  const lab = new Lab();
  try {
    await lab.site();
    mkdirSync(lab.media);
    make(lab);
    const right = hashes(lab);
    const server = await lab.serve();
    for (const names of cells) {
      await test(`players on a path with ${names.join(' and ')}`, async () => {
        const before = await metric(server, OPENED);
        const at = { page: await open(lab, server, names), http: await open(lab, server, names) };
        const gateway = await lab.gateway(at.http);
        const page = await playElement(lab, at.page, playlist(names), {
          maxBufferLength: AHEAD_S,
          maxBufferSize: 0,
        });
        const http = new HttpPlayer(`${gateway.url}${playlist(names)}`, AHEAD_S);
        const ended = Promise.all([played(page, TO_S, 150_000), http.play(TO_S)]);
        await until('both play', 20_000, async () => {
          const seconds = await page.evaluate(() => video.currentTime);
          return seconds >= FROM_S && http.position >= FROM_S;
        });
        await Promise.all(Object.values(at).map((path) => change(path, names, outageMs)));
        const [seen] = await ended;
        const opened = (await metric(server, OPENED)) - before;

        const got = { page: await loaded(page), http: http.loaded };
        for (const [where, all] of Object.entries(got)) {
          assert.ok(Object.keys(all).length >= TO_S / SEGMENT_S, where);
          for (const [name, hash] of Object.entries(all)) assert.equal(hash, right[name], name);
        }
        const { progress, problems } = await page.evaluate(() => ({ progress, problems }));
        const told = {
          page: { first: seen.first, stalls: seen.stalls, ...recovery(progress, at.page) },
          http: { first: http.first, stalls: http.stalls, ...recovery(http.progress, at.http) },
          failures: http.failures,
          problems,
          opened,
        };
        await page.close();
        gateway.child.kill('SIGKILL');

        const what = JSON.stringify(told);
        assert.ok(seen.currentTime >= TO_S, what);
        assert.deepEqual([seen.errors, page.errors], [[], []], what);
        for (const { stalls, recovered } of [told.page, told.http]) {
          if (names.includes('outage')) {
            const most = RECOVERY_MS + outageMs / RECOVERY_PART;
            // One in the outage, and one where little has come when it goes on.
            assert.ok(stalls <= 2 && recovered <= most, what);
          } else assert.deepEqual([stalls, opened, problems, http.failures], [0, 2, [], 0], what);
        }
        for (const { packets } of Object.values(at)) {
          assert.ok(packets.lost > 0 || !names.includes('bursts'));
          assert.ok(packets.overtaken > 0 || !names.includes('reordering'));
        }
        return told;
      });
    }
  } finally {
    await lab.end();
  }
}

/** A path with all of these conditions as they are at the beginning. */
const open = (lab, server, names) =>
  lab.path(server, Object.assign({}, PATH, ...names.map((name) => CONDITIONS[name].path)));

/** Changes a path as these conditions do. */
const change = (path, names, outageMs) =>
  Promise.all(names.map((name) => CONDITIONS[name].change?.(path, outageMs)));

/** Milliseconds after an outage until a player went on. */
function recovery(progress, { aliveAt }) {
  if (!aliveAt) return {};
  const stood = progress.findLast(({ at }) => at <= aliveAt).position;
  return { recovered: progress.find(({ position }) => position > stood).at - aliveAt };
}
