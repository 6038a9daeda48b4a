// `<nc-video>` in Firefox: over WebTransport with certificates by their hashes, through loss.
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { hashes, make } from './clips.mjs';
import { Lab } from './lab.mjs';
import { loaded, playElement, played } from './watch.mjs';

const SOME_S = 6;

export async function inFirefox(test) {
  const lab = new Lab();
  try {
    await test('<nc-video> plays TS in Firefox', async () => {
      await lab.site();
      mkdirSync(lab.media);
      make(lab);
      const right = hashes(lab);
      const path = await lab.path(await lab.serve(), { loss: 0.05, delay: 10 });
      await lab.useFirefox();
      const page = await playElement(lab, path, '/live/360/index.m3u8', {});
      const { stalls, errors, currentTime, first } = await played(page, SOME_S);
      assert.deepEqual([stalls, errors, page.errors], [0, [], []]);
      assert.ok(currentTime >= SOME_S, `${currentTime}`);
      const all = Object.entries(await loaded(page));
      assert.ok(all.length >= SOME_S / 2);
      for (const [name, hash] of all) assert.equal(hash, right[name], name);
      const { mode, peer } = await page.evaluate(() =>
        document.querySelector('nc-video').statistics(),
      );
      assert.deepEqual([mode, peer.thread, peer.blocks.wrong], ['peer', 'worker', 0]);
      assert.ok(peer.blocks.repaired > 0);
      const [version, { lost, repaired }] = [await lab.browser.version(), peer.blocks];
      return { version, first, lost, repaired };
    });
  } finally {
    await lab.end();
  }
}
