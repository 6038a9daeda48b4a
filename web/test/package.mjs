// The package, packed and installed into a fresh folder, plays the first example of README.md.
import assert from 'node:assert/strict';
import { cpSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Lab, root } from './lab.mjs';

export async function packed(test) {
  await test('the package is installed, and plays the example of its README', async () => {
    const lab = new Lab();
    try {
      const site = join(lab.directory, 'site');
      mkdirSync(site);
      writeFileSync(join(site, 'package.json'), '{ "private": true }\n');
      lab.run('npm', ['pack', '--silent', '--pack-destination', lab.directory], { cwd: root });
      const file = readdirSync(lab.directory).find((name) => name.endsWith('.tgz'));
      lab.run('npm', ['install', '--no-audit', '--no-fund', join(lab.directory, file)], {
        cwd: site,
      });
      // What the test of players has already: it is not fetched again.
      cpSync(join(root, 'node_modules/hls.js'), join(site, 'node_modules/hls.js'), {
        recursive: true,
      });
      const installed = readdirSync(join(site, 'node_modules/ncserverd-peer'), { recursive: true });
      assert.ok(!installed.some((name) => /^(src|test)/.test(name)), `${installed}`);

      await lab.site({ '/': site });
      mkdirSync(lab.media);
      lab.run('ffmpeg', [
        '-hide_banner',
        '-loglevel',
        'error',
        '-f',
        'lavfi',
        '-i',
        'testsrc2=size=320x180:rate=25:duration=10',
        '-c:v',
        'libx264',
        '-preset',
        'ultrafast',
        '-pix_fmt',
        'yuv420p',
        '-g',
        '25',
        '-f',
        'hls',
        '-hls_time',
        '1',
        '-hls_playlist_type',
        'vod',
        join(lab.media, 'index.m3u8'),
      ]);
      const server = await lab.serve();
      const example = /```html\n([^]*?)```/.exec(readFileSync(join(root, 'README.md'), 'utf8'))[1];
      const mine = example.replace(
        'src="ncs://media.example:4443',
        `hashes="${server.hashes.join()}" src="ncs://127.0.0.1:${server.port}`,
      );
      assert.notEqual(mine, example);
      writeFileSync(join(site, 'index.html'), `<!doctype html>\n${mine}`);
      const page = await lab.page('/index.html');
      await page.waitForFunction("document.querySelector('nc-video').video?.currentTime > 3");
      const { mode, stalls, peer } = await page.evaluate(() =>
        document.querySelector('nc-video').statistics(),
      );
      assert.deepEqual([mode, stalls, peer.thread, peer.blocks.wrong], ['peer', 0, 'worker', 0]);
      assert.deepEqual(page.errors, []);
    } finally {
      await lab.end();
    }
  });
}
