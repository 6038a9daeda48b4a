// Pages of a fleet: servers that name each other, with a real NATS between them.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Lab, metric, sha256, until } from './lab.mjs';

/** Bytes of a segment, and how many there are. */
const BYTES = 200_000;
const SEGMENTS = 40;
/** How often a server is upgraded. */
const UPGRADES = 3;
/** How long a segment may take, in milliseconds: a player holds more. */
const LATE = 3000;

export async function fleet(test) {
  const lab = new Lab();
  try {
    const engine = await lab.nats();
    if (!engine) return;
    await lab.site();
    mkdirSync(lab.media);
    const hashes = Array.from({ length: SEGMENTS }, (_, number) => {
      const bytes = randomBytes(BYTES);
      writeFileSync(join(lab.media, `${number}.ts`), bytes);
      return sha256(bytes);
    });

    /** Two servers that know each other. */
    const pair = async (settings = []) => {
      const one = async (name) => {
        const port = await lab.freePort();
        const cluster = [
          'cluster.engine=nats',
          `cluster.nats.urls=${engine}`,
          `cluster.name=${name}`,
          `cluster.advertise=127.0.0.1:${port}`,
          'cluster.steer=false',
        ];
        return lab.serve([...cluster, ...settings], port);
      };
      const servers = [await one('a'), await one('b')];
      for (const server of servers) {
        const members = () => metric(server, 'ncserverd_cluster_members');
        await until('both servers', 10_000, async () => (await members()) === 2);
      }
      return servers;
    };
    const url = ({ port }) => `https://127.0.0.1:${port}`;
    /** A page whose client knows one server, in `globalThis.client`. */
    const viewer = async (server) => {
      const page = await lab.page();
      await page.waitForFunction('globalThis.isLoaded');
      await page.evaluate(
        async (server) => {
          globalThis.client = await peer.connect({ servers: [server] });
        },
        { url: url(server), hashes: server.hashes },
      );
      return page;
    };
    /**
     * Plays segments one after the other, with a pause after each. Returns the longest time that
     * one has taken.
     */
    const play = async (page, from, to, pause = 100) => {
      const played = await page.evaluate(
        async (from, to, pause) => {
          const played = [];
          for (let number = from; number < to; number += 1) {
            const begun = performance.now();
            const { body } = await client.fetch(`/live/${number}.ts`);
            const hash = await digest(await all(body));
            played.push({ hash, ms: performance.now() - begun });
            await new Promise((resolve) => setTimeout(resolve, pause));
          }
          return played;
        },
        from,
        to,
        pause,
      );
      assert.deepEqual(
        played.map(({ hash }) => hash),
        hashes.slice(from, to),
      );
      return Math.round(Math.max(...played.map(({ ms }) => ms)));
    };
    /** The servers of a page, and their states. */
    const states = async (page) => {
      const { servers } = await page.evaluate(() => client.statistics());
      return Object.fromEntries(servers.map(({ url, state }) => [url, state]));
    };
    const end = async (servers) => {
      for (const { child } of servers) child.kill('SIGKILL');
    };

    for (const [signal, what] of [
      ['SIGKILL', 'killed'],
      ['SIGSTOP', 'silent'],
    ]) {
      await test(`a page goes on at another server when its own is ${what}`, async () => {
        const servers = await pair();
        const page = await viewer(servers[0]);
        await play(page, 0, 5);
        assert.deepEqual(Object.keys(await states(page)), [url(servers[0])]);
        const playing = play(page, 5, SEGMENTS);
        setTimeout(() => servers[0].child.kill(signal), 1000);
        const longest = await playing;
        assert.ok(longest < LATE, `${longest} ms`);
        assert.equal((await states(page))[url(servers[1])], 'ready');
        // Some seconds after its connection has ended, the first is not tried any more.
        const rests = async () => (await states(page))[url(servers[0])] === 'resting';
        if (signal === 'SIGKILL') await until('the end of attempts', 20_000, rests);
        await page.close();
        await end(servers);
        return { longest };
      });
    }

    await test('a page leaves a server that drains, and misses nothing', async () => {
      const servers = await pair(['server.drain_timeout=20s']);
      const page = await viewer(servers[0]);
      await play(page, 0, 5);
      const playing = play(page, 5, SEGMENTS);
      setTimeout(() => servers[0].child.kill('SIGTERM'), 1000);
      const longest = await playing;
      assert.ok(longest < LATE, `${longest} ms`);
      const now = await states(page);
      assert.deepEqual([now[url(servers[0])], now[url(servers[1])]], ['resting', 'ready']);
      await page.close();
      await end(servers);
      return { longest };
    });

    await test('a page stays with a server that is upgraded, and misses nothing', async () => {
      const [port, state] = [await lab.freePort(), lab.state()];
      const upgrade = [`server.handover=${join(lab.directory, 'handover')}`];
      const start = () => lab.serve(upgrade, port, state);
      const servers = [await start()];
      const page = await viewer(servers[0]);
      await play(page, 0, 2);
      const playing = play(page, 2, SEGMENTS, 500);
      for (let upgrades = 0; upgrades < UPGRADES; upgrades += 1) {
        const [before] = servers.slice(-1);
        const ended = new Promise((resolve) => before.child.once('exit', resolve));
        servers.push(await start());
        assert.equal(await ended, 0, 'the old process has nobody left');
      }
      const longest = await playing;
      assert.ok(longest < LATE, `${longest} ms`);
      assert.deepEqual(await states(page), { [url(servers[0])]: 'ready' });
      await page.close();
      await end(servers);
      return { longest };
    });

    await test('a page that finds no place is told where there is one', async () => {
      const servers = await pair(['endpoint.connections_max=1']);
      const first = await viewer(servers[0]);
      await play(first, 0, 2);
      const second = await viewer(servers[0]);
      const longest = await play(second, 0, 5);
      assert.equal((await states(second))[url(servers[1])], 'ready');
      assert.equal((await states(first))[url(servers[0])], 'ready');
      await first.close();
      await second.close();
      await end(servers);
      return { longest };
    });
  } finally {
    await lab.end();
  }
}
