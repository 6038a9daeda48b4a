// Calls compiled modules, which trap if something is wrong: the tests of a crate, or ncs_wasm_check.
// Prints the lines that the latter tells, and the speed of a row operation with each instruction set.
import { readFileSync } from 'node:fs';

// What web/README.md promises of a read's memory: two parts of 15 MiB, and as much again for what is
// on its way and for gaps. 31 MiB are needed.
const PEER_BYTES_MAX = 48 << 20;

for (const file of process.argv.slice(2)) {
  let memory;
  const said = [];
  const decoder = new TextDecoder();
  // What the module of pages imports. Nothing here calls it.
  const page = { say() {}, fill_random() {} };
  const say = (text, length) =>
    said.push(decoder.decode(new Uint8Array(memory.buffer, text, length)));
  const module = await WebAssembly.instantiate(readFileSync(file), { node: { say }, page });
  const { exports } = module.instance;
  memory = exports.memory;
  if (!exports.check) {
    if (exports.main(0, 0) !== 0) throw new Error(`${file}: tests failed`);
    console.log(`${file.split('/').pop()}: tests passed`);
    continue;
  }
  try {
    exports.check();
  } finally {
    said.splice(0).forEach((line) => console.log(line));
  }
  const grown = exports.read_slowly();
  console.log(`${said.pop()}: the module's memory has grown by ${(grown / 2 ** 20).toFixed(0)} MiB`);
  if (grown > PEER_BYTES_MAX) throw new Error(`more than ${PEER_BYTES_MAX} bytes`);
  const speeds = [];
  for (let index = 0; index < exports.instruction_sets(); index++) {
    exports.name(index);
    exports.add_rows(index, 1000);
    let best = 0;
    for (let run = 0; run < 5; run++) {
      const start = performance.now();
      const bytes = exports.add_rows(index, 2000);
      best = Math.max(best, bytes / 1000 / (performance.now() - start));
    }
    speeds.push(best);
    const ratio = (best / speeds[0]).toFixed(1);
    console.log(`rows with ${said.pop()}: ${Math.round(best)} MB/s, ${ratio} times scalar`);
  }
}
