// Pages that serve each other over data channels of WebRTC.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Lab, metric, sha256, sleep } from './lab.mjs';

const SEGMENTS = 12;
const SEGMENT_BYTES = 400_000;

/** A site, a stream of segments, and a server whose viewers are told of each other by a policy. */
async function laboratory(policy) {
  const lab = new Lab();
  await lab.site();
  mkdirSync(lab.media);
  lab.segments = Array.from({ length: SEGMENTS }, () => randomBytes(SEGMENT_BYTES));
  lab.segments.forEach((bytes, index) => writeFileSync(join(lab.media, `${index}.ts`), bytes));
  lab.server = await lab.serve([
    `stream.live.signing_key=${join(lab.directory, 'live.pem')}`,
    `stream.live.peers=${policy}`,
    'stream.live.generations_min=1',
  ]);
  lab.path = await lab.path(lab.server, { delay: 10 });
  return lab;
}

/** A viewer, in a context of its own. */
async function viewer(lab, options = {}) {
  const page = await lab.page('/test/page.html', { isApart: true });
  await page.waitForFunction('globalThis.isLoaded');
  await page.evaluate(
    async (options) => {
      globalThis.client = await peer.connect(options);
      [globalThis.hashes, globalThis.times] = [[], []];
      /** Reads segments, one after the other, not before their times. */
      globalThis.view = async (first, last, everyMs) => {
        const begun = performance.now();
        for (let index = first; index < last; index += 1) {
          const wait = begun + (index - first) * everyMs - performance.now();
          if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
          const from = performance.now();
          const { body } = await client.fetch(`/live/${index}.ts`);
          hashes[index] = await digest(await all(body));
          times[index] = Math.round(performance.now() - from);
        }
      };
    },
    { servers: [lab.path.server], share: true, ...options },
  );
  return page;
}

const view = (page, ...numbers) => page.evaluate((...numbers) => view(...numbers), ...numbers);
const pages = async (page) => (await page.evaluate(() => client.statistics())).pages;

/** Compares what a viewer has read with the origin. */
async function compare(lab, page, first = 0) {
  const hashes = await page.evaluate(() => hashes);
  assert.deepEqual(hashes.slice(first), lab.segments.slice(first).map(sha256));
}

export async function sharing(test) {
  for (const worker of [false, true]) {
    await test(`two pages share a stream, in the ${worker ? 'worker' : 'page'}`, async () => {
      const lab = await laboratory('all');
      try {
        const [one, other] = [await viewer(lab, { worker }), await viewer(lab, { worker })];
        const before = lab.path.taken;
        await Promise.all([
          view(one, 0, SEGMENTS, 800),
          sleep(300).then(() => view(other, 0, SEGMENTS, 800)),
        ]);
        const sent = lab.path.taken - before;
        await compare(lab, one);
        await compare(lab, other);
        const [of, ofOther] = [await pages(one), await pages(other)];
        const whole = SEGMENTS * SEGMENT_BYTES;
        const told = {
          sent: Number((sent / whole).toFixed(2)),
          shares: [of, ofOther].map(({ received }) => Number((received / whole).toFixed(2))),
          signals: await metric(lab.server, 'ncserverd_directory_signals_total'),
          times: await Promise.all([one, other].map((page) => page.evaluate(() => times))),
        };
        assert.ok(ofOther.received > 0.2 * whole, JSON.stringify(told));
        assert.ok(sent < 1.8 * whole, JSON.stringify(told));
        assert.deepEqual([one.errors, other.errors], [[], []]);
        return told;
      } finally {
        await lab.end();
      }
    });
  }

  await test('two elements that share play a clip', async () => {
    const lab = await laboratory('all');
    try {
      lab.run('ffmpeg', [
        '-hide_banner',
        '-loglevel',
        'error',
        '-f',
        'lavfi',
        '-i',
        'testsrc2=size=640x360:rate=25:duration=24',
        '-c:v',
        'libx264',
        '-preset',
        'ultrafast',
        '-b:v',
        '1500k',
        '-pix_fmt',
        'yuv420p',
        '-g',
        '50',
        '-f',
        'hls',
        '-hls_time',
        '2',
        '-hls_playlist_type',
        'vod',
        join(lab.media, 'index.m3u8'),
      ]);
      const play = async () => {
        const page = await lab.page('/test/page.html', { isApart: true });
        await page.waitForFunction('globalThis.isLoaded');
        await page.evaluate(
          async (src, hashes) => {
            await import('/dist/element.js');
            const video = document.createElement('nc-video');
            for (const name of ['share', 'muted', 'autoplay']) video.setAttribute(name, '');
            video.setAttribute('hashes', hashes.join());
            // As in a live stream, little is fetched ahead.
            video.hlsConfig = { maxBufferLength: 4, maxMaxBufferLength: 4 };
            video.setAttribute('src', src);
            document.body.append(video);
            globalThis.video = video;
          },
          `${lab.path.ncs}/live/index.m3u8`,
          lab.server.hashes,
        );
        return page;
      };
      const one = await play();
      await sleep(2000);
      const other = await play();
      const ended = (page) => page.waitForFunction('video.video.currentTime > 20');
      await Promise.all([ended(one), ended(other)]);
      const told = await Promise.all(
        [one, other].map((page) => page.evaluate(() => video.statistics())),
      );
      const shares = told.map(({ stalls, peer: { bytes, pages, thread } }) => {
        const share = Number((pages.received / bytes).toFixed(2));
        return { stalls, thread, share, lying: pages.lying };
      });
      assert.ok(shares[1].share > 0.2, JSON.stringify(shares));
      // Stalls are told: two players that decode with four seconds ahead may take all of a machine.
      for (const { thread, lying } of shares) {
        assert.deepEqual([thread, lying], ['worker', 0], JSON.stringify(shares));
      }
      return shares;
    } finally {
      await lab.end();
    }
  });

  await test('a page that lies among three is left and reported', async () => {
    const lab = await laboratory('all');
    try {
      const liar = await viewer(lab);
      // One bit of each block that it sends is wrong.
      await liar.evaluate(() => {
        const { send } = RTCDataChannel.prototype;
        RTCDataChannel.prototype.send = function (data) {
          if (this.id % 2 === 0) return send.call(this, data);
          const wrong = data.slice();
          wrong[wrong.length - 1] ^= 1;
          return send.call(this, wrong);
        };
      });
      const others = [await viewer(lab), await viewer(lab)];
      await Promise.all([
        view(liar, 0, SEGMENTS, 700),
        ...others.map((page) => sleep(2500).then(() => view(page, 0, SEGMENTS, 700))),
      ]);
      for (const page of [liar, ...others]) await compare(lab, page);
      const counts = await Promise.all(others.map(pages));
      const blames = 'ncserverd_session_blames_total\\{result="heard"\\}';
      const told = {
        lying: counts.map(({ lying }) => lying),
        received: counts.map(({ received }) => received),
        blames: await metric(lab.server, blames),
      };
      assert.deepEqual(told.lying, [1, 1], JSON.stringify(told));
      assert.ok(told.blames >= 2, JSON.stringify(told));
      assert.ok(Math.min(...told.received) > 0, JSON.stringify(told));
      return told;
    } finally {
      await lab.end();
    }
  });

  await test('pages of a stream that keeps viewers apart are not introduced', async () => {
    const lab = await laboratory('off');
    try {
      const [one, other] = [await viewer(lab), await viewer(lab)];
      await view(one, 0, 4, 0);
      await view(other, 0, 4, 0);
      for (const page of [one, other]) {
        const { connected, received, sent } = await pages(page);
        assert.deepEqual([connected, received, sent], [0, 0, 0]);
      }
      assert.equal(await metric(lab.server, 'ncserverd_directory_pages'), 2);
      assert.equal(await metric(lab.server, 'ncserverd_directory_page_introductions_total'), 0);
      assert.equal(await metric(lab.server, 'ncserverd_directory_signals_total'), 0);
    } finally {
      await lab.end();
    }
  });

  await test('viewers that do not share are told of nobody', async () => {
    const lab = await laboratory('all');
    try {
      const [one, other] = [await viewer(lab, { share: false }), await viewer(lab)];
      await view(one, 0, 4, 0);
      await view(other, 0, 4, 0);
      assert.equal(await pages(one), undefined);
      assert.equal((await pages(other)).connected, 0);
      assert.equal(await metric(lab.server, 'ncserverd_directory_pages'), 1);
      assert.equal(await metric(lab.server, 'ncserverd_directory_page_introductions_total'), 0);
    } finally {
      await lab.end();
    }
  });
}
