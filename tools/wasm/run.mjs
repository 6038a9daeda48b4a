// Calls `check` of a compiled module; it says what it does line by line, and traps if something is wrong.
import { readFileSync } from 'node:fs';

const [file] = process.argv.slice(2);
let memory;
const say = (text, length) => console.log(new TextDecoder().decode(new Uint8Array(memory.buffer, text, length)));
const { instance } = await WebAssembly.instantiate(readFileSync(file), { node: { say } });
memory = instance.exports.memory;
instance.exports.check();
