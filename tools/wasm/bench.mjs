// Decodes with each code as WebAssembly, here, and natively, in another process, in turn; prints the
// medians of the rounds in MB (10^6 bytes) of source a second, and of their ratios, and the best
// rounds. Seconds are of processor time, so that other programs on the machine matter less; decoding
// has one thread.
// Called by bench.sh with the module and the program.
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';

const ROUNDS = 41;
const [module, program] = process.argv.slice(2);
const { instance } = await WebAssembly.instantiate(readFileSync(module), {
  node: { say() {} },
  page: { say() {}, fill_random() {} },
});
const native = spawn(program, { stdio: ['pipe', 'pipe', 'inherit'] });
const lines = createInterface({ input: native.stdout })[Symbol.asyncIterator]();

const works = ['rlnc', 'rs', 'raptorq'].map((name, code) => {
  return { name, code, at: instance.exports.work(code) };
});
const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];

async function natively(code) {
  native.stdin.write(`${code}\n`);
  const [bytes, ms] = (await lines.next()).value.split(' ').map(Number);
  return bytes / 1000 / ms;
}

function here(work) {
  const begun = process.cpuUsage();
  const bytes = instance.exports.decode(work.at, 0);
  const { user, system } = process.cpuUsage(begun);
  return bytes / (user + system);
}

console.log('MB/s of source, n = 64, k = 1088, one thread, medians of', ROUNDS, 'rounds in turn');
for (const work of works) {
  instance.exports.decode(work.at, 1);
  for (let warm = 0; warm < 3; warm++) {
    here(work);
    await natively(work.code);
  }
  const rounds = [];
  for (let round = 0; round < ROUNDS; round++) {
    rounds.push([here(work), await natively(work.code)]);
  }
  const sides = [0, 1].map((side) => rounds.map((round) => round[side]));
  const [wasm, plain] = sides.map(median).map((rate) => rate.toFixed(0));
  const [most, plainMost] = sides.map((rates) => Math.max(...rates).toFixed(0));
  const ratio = median(rounds.map(([wasm, plain]) => wasm / plain));
  console.log(
    `${work.name.padEnd(8)} WebAssembly ${wasm} (best ${most}), native ${plain} (best ${plainMost}),`,
    `ratio ${ratio.toFixed(2)}`,
  );
}
native.stdin.end();
