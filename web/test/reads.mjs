// Reads of objects by the library, through paths that lose a tenth of the packets in each direction.
import assert from 'node:assert/strict';
import { createPublicKey, randomBytes } from 'node:crypto';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Lab, sha256 } from './lab.mjs';

const LOSS = 0.1;
/** Blocks of a generation. */
const N = 32;
const film = randomBytes(3 << 20);
const long = randomBytes(24 << 20);
const small = randomBytes(3000);

export async function reads(test) {
  const lab = new Lab();
  try {
    await lab.site();
    mkdirSync(lab.media);
    for (const [name, bytes] of Object.entries({
      'film.ts': film,
      'long.ts': long,
      'small.bin': small,
    })) {
      writeFileSync(join(lab.media, name), bytes);
    }
    await test('what the pinned key has not signed is refused', async () => {
      const file = join(lab.directory, 'live.pem');
      const signed = await lab.serve([`stream.live.signing_key=${file}`]);
      const { x } = createPublicKey(readFileSync(file)).export({ format: 'jwk' });
      const right = Buffer.from(x, 'base64url').toString('hex');
      const { server } = await lab.path(signed);
      const page = await lab.page();
      await page.waitForFunction('globalThis.isLoaded');
      const read = (key) =>
        page.evaluate(
          async (server, key) => {
            const client = await peer.connect({ servers: [server], key });
            try {
              return await digest(await all((await client.fetch('/live/film.ts')).body));
            } catch (error) {
              return error.name;
            } finally {
              client.close();
            }
          },
          server,
          key,
        );
      const other = right.replace(/^./, (digit) => (digit === '0' ? '1' : '0'));
      assert.equal(await read(right), sha256(film));
      assert.equal(await read([`other=${other}`, `live=${right}`]), sha256(film));
      assert.equal(await read(other), 'ReadError');
      await assert.rejects(read('live'), /not the key of a stream/);
      await page.close();
    });
    const servers = [await lab.serve(), await lab.serve()];
    const paths = await Promise.all(servers.map((server) => lab.path(server, { loss: LOSS })));
    const all = paths.map(({ server }) => server);
    const one = [all[0]];
    const page = await lab.page();
    await page.waitForFunction('globalThis.isLoaded');
    await page.exposeFunction('kill', () => servers[0].child.kill('SIGKILL'));

    for (const worker of [false, true]) {
      const where = worker ? 'worker' : 'page';
      await test(`a film comes whole through loss, in the ${where}`, async () => {
        const options = { servers: one, worker };
        const result = await page.evaluate(async (options) => {
          const client = await peer.connect(options);
          const begun = performance.now();
          const film = await client.fetch('/live/film.ts', { due: 60_000 });
          const bytes = await all(film.body);
          const ms = Math.round(performance.now() - begun);
          const statistics = await client.statistics();
          client.close();
          return {
            hash: await digest(bytes),
            length: film.length,
            type: film.contentType,
            ms,
            statistics,
          };
        }, options);
        const { hash, length, type, statistics } = result;
        assert.deepEqual([hash, length, type], [sha256(film), film.length, 'video/mp2t']);
        const {
          blocks,
          bytes,
          generations,
          reads,
          servers: [of],
        } = statistics;
        assert.equal(statistics.thread, where);
        assert.ok(bytes >= film.length && bytes < 2 * film.length, `${bytes} bytes`);
        assert.ok(
          blocks.innovative >= film.length / 1088 && blocks.lost > 0 && blocks.repaired > 0,
        );
        assert.ok(generations >= film.length / (N * 1088), `${generations} generations`);
        assert.deepEqual([reads.done, reads.failed, reads.late], [1, 0, 0]);
        assert.ok(reads.margin > 0 && reads.margin < 60_000, `${reads.margin}`);
        assert.deepEqual([of.state, of.received], ['ready', blocks.received]);
        assert.ok(of.rtt > 0 && of.loss > 0.02 && of.loss < 0.3, `${of.rtt} ${of.loss}`);
        return { ms: result.ms };
      });
      await test(`a range of it, in the ${where}`, async () => {
        const got = await page.evaluate(
          async (options) => {
            const client = await peer.connect(options);
            const range = { start: 70_001, end: 90_000 };
            const { body } = await client.fetch('/live/film.ts', { range });
            const bytes = await all(body);
            client.close();
            return digest(bytes);
          },
          { servers: one, worker },
        );
        assert.equal(got, sha256(film.subarray(70_001, 90_000)));
      });
      await test(`what does not exist, and no path, in the ${where}`, async () => {
        const got = await page.evaluate(
          async (options) => {
            const client = await peer.connect(options);
            const small = await digest(await all((await client.fetch('/live/small.bin')).body));
            const failing = (path) => client.fetch(path).catch((error) => error);
            const missing = await failing('/live/nothing.bin');
            const wrong = await failing('nothing');
            client.close();
            const closed = await failing('/live/small.bin');
            return {
              small,
              is: [missing, closed].map((error) => error instanceof peer.ReadError),
              wrong: wrong.name,
              reason: missing.message,
            };
          },
          { servers: one, worker },
        );
        assert.deepEqual(got.is, [true, true], got.reason);
        assert.deepEqual([got.small, got.wrong], [sha256(small), 'TypeError']);
      });
      await test(`a read that is aborted, in the ${where}`, async () => {
        const error = await page.evaluate(
          async (options) => {
            const client = await peer.connect(options);
            const abort = new AbortController();
            const { body } = await client.fetch('/live/film.ts', { signal: abort.signal });
            const reader = body.getReader();
            await reader.read();
            abort.abort();
            try {
              for (;;) if ((await reader.read()).done) return 'it ended';
            } catch (error) {
              return error.name;
            } finally {
              client.close();
            }
          },
          { servers: one, worker },
        );
        assert.equal(error, 'AbortError');
      });
      await test(`a reader that stops holds up the rest, in the ${where}`, async () => {
        const before = paths[0].taken;
        await page.evaluate(
          async (options) => {
            const client = await peer.connect(options);
            const { body } = await client.fetch('/live/long.ts');
            const reader = body.getReader();
            await reader.read();
            await new Promise((resolve) => setTimeout(resolve, 3000));
            await reader.cancel();
            client.close();
          },
          { servers: one, worker },
        );
        const taken = paths[0].taken - before;
        assert.ok(taken > 1 << 20 && taken < 14 << 20, `${taken} bytes were sent`);
        return { taken };
      });
    }
    await test('a stream tells of new objects', async () => {
      const news = page.evaluate(
        async (options) => {
          const client = await peer.connect(options);
          const reader = client.subscribe('live').getReader();
          setTimeout(() => (globalThis.isSubscribed = true), 1000);
          const { value } = await reader.read();
          client.close();
          return value;
        },
        { servers: one },
      );
      await page.waitForFunction('globalThis.isSubscribed');
      writeFileSync(join(lab.media, 'new.ts'), small);
      assert.equal(await news, '/live/new.ts');
    });
    await test('events tell states and statistics', async () => {
      const got = await page.evaluate(
        async (options) => {
          const client = await peer.connect(options);
          const states = [];
          client.addEventListener('server', ({ detail }) => states.push(detail.state));
          const told = await new Promise((resolve) => {
            client.addEventListener('statistics', ({ detail }) => resolve(detail), { once: true });
          });
          client.close();
          return { states, count: told.servers.length };
        },
        { servers: all },
      );
      assert.deepEqual(got, { states: ['ready', 'ready'], count: 2 });
    });
    await test('two servers, and one of them is killed', async () => {
      const got = await page.evaluate(
        async (options) => {
          const client = await peer.connect(options);
          let count = 0;
          const film = await client.fetch('/live/long.ts');
          const bytes = await all(film.body, (length) => {
            const before = count;
            count += length;
            if (before < 2e6 && count >= 2e6) kill();
          });
          const { servers } = await client.statistics();
          client.close();
          return { hash: await digest(bytes), bytes: servers.map(({ bytes }) => bytes) };
        },
        { servers: all },
      );
      assert.equal(got.hash, sha256(long));
      assert.ok(
        got.bytes.every((bytes) => bytes > 0),
        `${got.bytes}`,
      );
    });
    assert.deepEqual(page.errors, []);
  } finally {
    await lab.end();
  }
}
