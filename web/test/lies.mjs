// One of two servers lies: its blocks are not of the object that it names, and its checks fit its
// blocks. A page asks the first server for checks, and believes nobody against the hash
// (docs/protocol.md, appendix B).
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
    for (const [worker, isFirst] of [
      [true, false],
      [false, true],
    ]) {
      const where = worker ? 'worker' : 'page';
      const which = isFirst ? 'first' : 'second';
      await test(`the ${which} of two servers lies and is left for ever, in the ${where}`, async () => {
        const [honest, liar] = [await lab.serve(), await lab.serve()];
        const paths = [await lab.path(honest, { delay: 5 }), await lab.path(liar, { delay: 5 })];
        const servers = paths.map(({ server }) => server);
        const page = await lab.page();
        await page.waitForFunction('globalThis.isLoaded');
        const read = (servers, name, ms) => page.evaluate(fetchAll, { servers, worker }, name, ms);
        // It holds the film from now on.
        assert.equal((await read([servers[1]], '/live/film.ts', 0)).hash, sha256(film));
        const spoiled = lab.spoil(liar, film);
        assert.ok(spoiled > film.length / 2, `${spoiled} bytes`);
        const opened = await metric(liar, 'ncserverd_session_opened_total');

        const order = isFirst ? servers.toReversed() : servers;
        const got = await read(order, '/live/film.ts', AFTER_MS);
        const what = JSON.stringify(got.told);
        assert.equal(got.hash, sha256(film), what);
        const [good, bad] = isFirst ? [1, 0] : [0, 1];
        const { told, states } = got;
        assert.equal(told.servers[good].state, 'ready', what);
        assert.equal(told.servers[bad].state, 'lying', what);
        // After what it did it was not connected again, and the other one serves on.
        assert.deepEqual(states[bad], ['ready', 'lying'], what);
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
  // A server that is slow at first may not be asked for blocks of the first read.
  let hash;
  for (let turn = 0; turn < (ms ? 8 : 1); turn += 1) {
    const read = await digest(await all((await client.fetch(name)).body));
    if (hash && hash !== read) throw new Error('two reads differ');
    hash = read;
    if (states.some((told) => told.includes('lying'))) break;
  }
  const took = Math.round(performance.now() - begun);
  await new Promise((resolve) => setTimeout(resolve, ms));
  const rest = ms && (await digest(await all((await client.fetch('/live/later.ts')).body)));
  const told = await client.statistics();
  client.close();
  return { hash, ms: took, later: rest, told, states };
}
