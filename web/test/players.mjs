// Players in a page that get their segments from our servers: hls.js by its loader and in
// `<nc-video>`, dash.js, Shaka Player.
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { coded, hashes, make, SEGMENT_S, source } from './clips.mjs';
import { Lab, until } from './lab.mjs';
import { loaded, played, playHls, watch, withVideo } from './watch.mjs';

/** Seconds of the clip that most tests play. */
const SOME_S = 14;

export async function players(test) {
  const lab = new Lab();
  try {
    await lab.separate();
    await lab.site();
    mkdirSync(lab.media);
    make(lab);
    const right = hashes(lab);
    const servers = [await lab.serve(), await lab.serve()];

    for (const loss of [0, 0.05, 0.2]) {
      await test(`hls.js plays TS at a loss of ${loss}`, async () => {
        const path = await lab.path(servers[0], { loss, delay: 10 });
        const page = await withVideo(lab);
        await playHls(page, path, [path.server]);
        // One of them to the end.
        const { stalls, errors, ended, first, levels } = await played(
          page,
          loss === 0 ? undefined : SOME_S,
        );
        assert.deepEqual([stalls, errors, ended], [0, [], loss === 0]);
        assert.ok(levels.at(-1) > 0, 'it measures the path');
        const got = await loaded(page);
        assert.ok(Object.keys(got).length >= SOME_S / SEGMENT_S);
        for (const [name, hash] of Object.entries(got)) assert.equal(hash, right[name], name);
        assert.deepEqual(page.errors, []);
        const { blocks, reads } = await page.evaluate(() => client.statistics());
        // Bursts overflow a socket's buffer now and then, also on a path that loses nothing.
        assert.ok(blocks.lost > 0 || loss === 0);
        assert.equal(blocks.lost > 0, blocks.repaired > 0);
        await page.close();
        return { first, levels, lost: blocks.lost, repaired: blocks.repaired, late: reads.late };
      });
    }
    await test('hls.js plays fragments of MP4, and seeks', async () => {
      const path = await lab.path(servers[0], { loss: 0.05, delay: 10 });
      const page = await withVideo(lab);
      await playHls(
        page,
        path,
        [path.server],
        { maxBufferLength: 4, maxBufferSize: 0 },
        '/live/dash/master.m3u8',
      );
      await played(page, 3);
      for (const at of [18, 6, 20]) {
        const ms = await page.evaluate(async (at) => {
          const begun = performance.now();
          video.currentTime = at;
          await new Promise((resolve) => video.addEventListener('seeked', resolve, { once: true }));
          return performance.now() - begun;
        }, at);
        assert.ok(ms < 5000, `a seek took ${ms} ms`);
        const { currentTime } = await played(page, at + 1);
        assert.ok(currentTime >= at + 1 && currentTime < at + 3, `${currentTime} after ${at}`);
      }
      assert.deepEqual(await page.evaluate(() => seen.errors), []);
      const got = await loaded(page);
      for (const [name, hash] of Object.entries(got)) assert.equal(hash, right[name], name);
      await page.close();
    });
    await test('hls.js adapts to the rate of the path', async () => {
      const path = await lab.path(servers[0], { rate: 1_500_000, delay: 10 });
      const page = await withVideo(lab);
      await playHls(page, path, [path.server], {
        maxBufferLength: 8,
        maxBufferSize: 0,
        abrEwmaDefaultEstimate: 4e6,
        // It weighs by the time that segments take, which is short.
        abrEwmaFastVoD: 0.2,
        abrEwmaSlowVoD: 0.5,
      });
      await played(page, 4);
      path.rate = 200_000;
      await until('a lower rendition', 20_000, () => page.evaluate(() => seen.levels.at(-1) < 2));
      const low = await page.evaluate(() => seen.levels.at(-1));
      path.rate = 1_500_000;
      await until('a higher one', 20_000, () =>
        page.evaluate((low) => seen.levels.at(-1) > low || video.ended, low),
      );
      const { stalls, errors, levels } = await played(page);
      assert.deepEqual([stalls, errors], [0, []]);
      assert.ok(levels.at(-1) > low, `${levels}`);
      await page.close();
      return { levels };
    });
    for (const [format, loss] of Object.entries({ ts: 0.2, mp4: 0.2 })) {
      await test(`<nc-video> plays ${format} at a loss of ${loss}`, async () => {
        const path = await lab.path(servers[0], { loss, delay: 10 });
        const url = format === 'ts' ? '/live/master.m3u8' : '/live/dash/master.m3u8';
        const page = await lab.page();
        await page.waitForFunction('globalThis.isLoaded');
        await page.evaluate(
          async (src, hashes) => {
            await import('/dist/element.js');
            document.body.innerHTML = `<nc-video src="${src}" hashes="${hashes}" muted autoplay></nc-video>`;
            const element = document.querySelector('nc-video');
            globalThis.video = element.video;
            globalThis.problems = [];
            globalThis.told = [];
            element.addEventListener('error', ({ message }) => problems.push(message));
            element.addEventListener('statistics', ({ detail }) => told.push(detail));
          },
          `${path.ncs}${url}`,
          path.hashes.join(),
        );
        await watch(page);
        const { stalls, currentTime, errors, first } = await played(page, SOME_S);
        const { problems, last } = await page.evaluate(() => ({ problems, last: told.at(-1) }));
        assert.deepEqual([stalls, errors, problems], [0, [], []]);
        assert.ok(currentTime >= SOME_S, `${currentTime}`);
        assert.deepEqual([last.mode, last.stalls, last.peer.thread], ['peer', 0, 'worker']);
        assert.ok(last.peer.blocks.repaired > 0);
        await page.close();
        return { first };
      });
    }
    await test('two servers, and one of them is killed in mid-play', async () => {
      const killed = await lab.serve();
      const paths = await Promise.all(
        [killed, servers[1]].map((server) => lab.path(server, { loss: 0.05, delay: 10 })),
      );
      const page = await withVideo(lab);
      await playHls(
        page,
        paths[0],
        paths.map(({ server }) => server),
        { maxBufferLength: 6, maxBufferSize: 0 },
      );
      await played(page, 4);
      killed.child.kill('SIGKILL');
      const { stalls, errors, currentTime } = await played(page, SOME_S + 4);
      assert.deepEqual([stalls, errors], [0, []]);
      assert.ok(currentTime >= SOME_S + 4, `${currentTime}`);
      const got = await loaded(page);
      for (const [name, hash] of Object.entries(got)) assert.equal(hash, right[name], name);
      await page.close();
    });
    await test('a live playlist', async () => {
      const folder = join(lab.media, 'now');
      mkdirSync(folder);
      lab.start('ffmpeg', [
        '-hide_banner',
        '-loglevel',
        'error',
        '-re',
        ...source(60),
        ...coded(900_000, 360),
        '-f',
        'hls',
        '-hls_time',
        '1',
        '-g',
        '25',
        '-hls_list_size',
        '6',
        '-hls_flags',
        'delete_segments+temp_file',
        '-hls_segment_filename',
        join(folder, '%d.ts'),
        join(folder, 'index.m3u8'),
      ]);
      await until('a playlist', 20_000, () => {
        try {
          return readFileSync(join(folder, 'index.m3u8'), 'utf8').split('#EXTINF').length > 4;
        } catch {
          return false;
        }
      });
      const path = await lab.path(servers[0], { loss: 0.05, delay: 10 });
      const page = await withVideo(lab);
      await playHls(page, path, [path.server], {}, '/live/now/index.m3u8');
      await until('it plays', 20_000, () => page.evaluate(() => seen.isPlaying));
      const from = await page.evaluate(() => video.currentTime);
      const begun = Date.now();
      const { stalls, errors, currentTime } = await played(page, from + 15, 30_000);
      const took = (Date.now() - begun) / 1000;
      assert.deepEqual([stalls, errors], [0, []]);
      assert.ok(currentTime >= from + 15 && took < 18, `${currentTime - from} s took ${took} s`);
      await page.close();
    });
    await test('without WebTransport, the element plays from the origin', async () => {
      const page = await lab.page();
      await page.waitForFunction('globalThis.isLoaded');
      const play = (src, fallback) =>
        page.evaluate(
          async (src, fallback) => {
            await import('/dist/element.js');
            document.body.innerHTML = `<nc-video src="${src}" fallback="${fallback}" muted autoplay></nc-video>`;
            const element = document.querySelector('nc-video');
            globalThis.video = element.video;
            globalThis.reasons = [];
            element.addEventListener('fallback', ({ detail }) => reasons.push(detail.reason));
          },
          src,
          fallback,
        );
      const fallback = `${lab.origin}/media/360/index.m3u8`;
      // Nobody listens there: as behind a wall that lets no UDP through.
      await play('ncs://127.0.0.1:9/live/360/index.m3u8', fallback);
      await watch(page);
      assert.ok((await played(page, 3)).currentTime >= 3);
      assert.deepEqual(await page.evaluate(() => reasons), ['no server answers']);
      await page.evaluate(() => delete globalThis.WebTransport);
      await play('ncs://127.0.0.1:9/live/360/index.m3u8', fallback);
      await watch(page);
      assert.ok((await played(page, 3)).currentTime >= 3);
      const { mode, reason, peer } = await page.evaluate(() =>
        document.querySelector('nc-video').statistics(),
      );
      assert.deepEqual(
        [mode, reason, peer],
        ['fallback', 'this browser has no WebTransport', undefined],
      );
      await page.close();
    });
    await test('dash.js plays', async () => {
      const path = await lab.path(servers[0], { loss: 0.05, delay: 10 });
      const page = await withVideo(lab, '/node_modules/dashjs/dist/modern/umd/dash.all.min.js');
      await page.evaluate(
        async (ncs, servers) => {
          globalThis.client = await peer.connect({ servers });
          const player = dashjs.MediaPlayer().create();
          player.extend('XHRLoader', peer.dashLoader(client, { media: video }), true);
          player.on(dashjs.MediaPlayer.events.ERROR, ({ error }) =>
            seen.errors.push(error.message),
          );
          player.initialize(video, ncs, true);
        },
        `${path.ncs}/live/dash/clip.mpd`,
        [path.server],
      );
      const { stalls, errors, currentTime } = await played(page, SOME_S);
      assert.deepEqual([stalls, errors], [0, []]);
      assert.ok(currentTime >= SOME_S, `${currentTime}`);
      const { blocks, bytes } = await page.evaluate(() => client.statistics());
      assert.ok(blocks.repaired > 0 && bytes > 1e6, `${blocks.repaired} ${bytes}`);
      await page.close();
    });
    await test('Shaka Player plays', async () => {
      const path = await lab.path(servers[0], { loss: 0.05, delay: 10 });
      const page = await withVideo(lab, '/node_modules/shaka-player/dist/shaka-player.compiled.js');
      await page.evaluate(
        async (ncs, servers) => {
          globalThis.client = await peer.connect({ servers });
          const { NetworkingEngine } = shaka.net;
          const scheme = peer.shakaScheme(client, shaka, { media: video });
          NetworkingEngine.registerScheme(
            'ncs',
            scheme,
            NetworkingEngine.PluginPriority.APPLICATION,
            true,
          );
          const player = new shaka.Player();
          player.addEventListener('error', ({ detail }) => seen.errors.push(`${detail.code}`));
          await player.attach(video);
          await player.load(ncs);
          await video.play();
        },
        `${path.ncs}/live/dash/clip.mpd`,
        [path.server],
      );
      const { stalls, errors, currentTime } = await played(page, SOME_S);
      assert.deepEqual([stalls, errors], [0, []]);
      assert.ok(currentTime >= SOME_S, `${currentTime}`);
      await page.close();
    });
  } finally {
    await lab.end();
  }
}
