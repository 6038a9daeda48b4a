// One of two servers lies: its blocks are not of the object that it names. A page trusts the first
// (docs/protocol.md, appendix B) until a segment that comes from it alone is wrong.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Lab, metric, sha256 } from './lab.mjs';

const film = randomBytes(1 << 20);
const later = randomBytes(1 << 20);
/** Longer than all pauses between attempts of a server that is only away. */
const AFTER_MS = 8000;

export async function lies(test) {
  const lab = new Lab();
  try {
    await lab.site();
    mkdirSync(lab.media);
    writeFileSync(join(lab.media, 'film.ts'), film);
    writeFileSync(join(lab.media, 'later.ts'), later);
    for (const [worker, at] of [
      [true, 1],
      [false, 1],
      [true, 0],
    ]) {
      const [place, thread] = [at === 0 ? 'first' : 'second', worker ? 'worker' : 'page'];
      await test(`the ${place} server lies and is left for ever, in the ${thread}`, async () => {
        const [honest, liar] = [await lab.serve(), await lab.serve()];
        const both = at === 0 ? [liar, honest] : [honest, liar];
        const paths = await Promise.all(both.map((server) => lab.path(server, { delay: 5 })));
        const servers = paths.map(({ server }) => server);
        const page = await lab.page();
        await page.waitForFunction('globalThis.isLoaded');
        const read = (servers, name, ms) => page.evaluate(fetchAll, { servers, worker }, name, ms);
        // It holds the film from now on.
        assert.equal((await read([servers[at]], '/live/film.ts', 0)).hash, sha256(film));
        const spoiled = lab.spoil(liar, film);
        assert.ok(spoiled > film.length / 2, `${spoiled} bytes`);
        const opened = await metric(liar, 'ncserverd_session_opened_total');

        const got = await read(servers, '/live/film.ts', AFTER_MS);
        const what = JSON.stringify(got.told);
        assert.equal(got.hash, sha256(film), what);
        const { told, states } = got;
        assert.deepEqual(
          told.servers.map(({ state }) => state),
          at === 0 ? ['lying', 'ready'] : ['ready', 'lying'],
          what,
        );
        assert.equal(told.servers[1 - at].wrong, 0, what);
        // What has come from one source alone is dropped as a whole.
        assert.equal(told.blocks.wrong > 0, at === 1, what);
        // After what it did it was not connected again, and the other one serves on.
        assert.deepEqual(states[at], ['ready', 'lying'], what);
        assert.equal(await metric(liar, 'ncserverd_session_opened_total'), opened + 1);
        assert.equal(await metric(liar, 'ncserverd_session_open_sessions'), 0);
        assert.equal(got.later, sha256(later));
        await page.close();
        return { ms: got.ms, spoiled, wrong: told.blocks.wrong, unused: told.blocks.redundant };
      });
    }
  } finally {
    await lab.end();
  }
}

/** In the page: reads an object, waits, and reads another one with the same client. */
async function fetchAll(options, name, ms) {
  const client = await peer.connect(options);
  const states = options.servers.map(() => []);
  client.addEventListener('server', ({ detail }) => {
    const index = options.servers.findIndex(({ url }) => url === detail.url);
    states[index].push(detail.state);
  });
  const begun = performance.now();
  const hash = await digest(await all((await client.fetch(name)).body));
  const took = Math.round(performance.now() - begun);
  await new Promise((resolve) => setTimeout(resolve, ms));
  const rest = ms && (await digest(await all((await client.fetch('/live/later.ts')).body)));
  const told = await client.statistics();
  client.close();
  return { hash, ms: took, later: rest, told, states };
}
