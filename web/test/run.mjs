// The tests of this package: `node test/run.mjs`, or with a part of the names of those to run.
// `--paths`: instead of them, players under all pairs of conditions of paths.
import { inFirefox } from './firefox.mjs';
import { fleet } from './fleet.mjs';
import { hostile } from './hostile.mjs';
import { lies } from './lies.mjs';
import { packed } from './package.mjs';
import { allPaths, paths } from './paths.mjs';
import { players } from './players.mjs';
import { reads } from './reads.mjs';
import { sharing } from './sharing.mjs';

const chosen = process.argv.slice(2).filter((part) => part !== '--paths');
const suites = process.argv.includes('--paths')
  ? [allPaths]
  : [reads, fleet, sharing, players, paths, hostile, lies, inFirefox, packed];
const failed = [];
let count = 0;

/** Runs a test, and tells what it took. */
async function test(name, run) {
  if (chosen.length > 0 && !chosen.some((part) => name.includes(part))) return;
  const begun = performance.now();
  count += 1;
  try {
    const told = await run();
    const ms = Math.round(performance.now() - begun);
    console.log(`ok ${name} (${ms} ms)${told ? ` ${JSON.stringify(told)}` : ''}`);
  } catch (error) {
    failed.push(name);
    // The first line says what was wrong: CI repeats it in its summary.
    console.log(`FAILED ${name}: ${error.stack ?? error}`);
  }
}

for (const suite of suites) await suite(test);
console.log(`${count - failed.length} of ${count} tests passed`);
process.exit(failed.length === 0 && count > 0 ? 0 : 1);
