// Namespaces of the network for a server and a viewer, and the path between them.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { outer, VXLAN_PORT } from './box.mjs';
import { PLAIN } from './relay.mjs';

/** The ends of the path, in the order of their addresses. */
const ENDS = ['viewer', 'server'];

export class Network {
  /** The server's address. */
  address = address('server');
  #names = Object.fromEntries(
    [...ENDS, 'middle'].map((place) => [place, `ncw${process.pid}-${place}`]),
  );
  #box;
  /** Fails when the box ends. */
  #ended;

  /** Whether this process may make namespaces. Where every test must run, it has to. */
  static isAllowed() {
    return process.getuid() === 0 || process.env.NCTEST_REQUIRE_ALL === '1';
  }

  async open() {
    for (const name of Object.values(this.#names)) {
      ip(`netns add ${name}`);
      // A browser that learns of a new address aborts its requests.
      ip(`netns exec ${name} sysctl -q net.ipv6.conf.default.disable_ipv6=1`);
      ip(`-n ${name} link set lo up`);
    }
    ENDS.forEach((end, number) => this.#join(end, number));
    const { middle } = this.#names;
    const program = fileURLToPath(new URL('box.mjs', import.meta.url));
    this.#box = spawn('ip', ['netns', 'exec', middle, process.execPath, program], {
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
      serialization: 'advanced',
    });
    this.#ended = once(this.#box, 'exit').then(([code]) => {
      throw new Error(`the path between the namespaces has ended with ${code}`);
    });
    this.#ended.catch(() => {});
    await this.#heard();
  }

  /** Program and words of a command that runs at an end. */
  at(end, program, words) {
    return ['ip', ['netns', 'exec', this.#names[end], program, ...words]];
  }

  /** A program that runs another at an end. */
  wrapper(end, program, file) {
    const [command, words] = this.at(end, program, []);
    writeFileSync(file, `#!/bin/sh\nexec ${command} ${words.join(' ')} "$@"\n`, { mode: 0o755 });
    return file;
  }

  /** Sets the conditions between the ends. Those that are not named have no effect. */
  async set(conditions) {
    this.#box.send({ ...PLAIN, ...conditions });
    await this.#heard();
  }

  /** The next word of the box, which must not end. */
  async #heard() {
    await Promise.race([once(this.#box, 'message'), this.#ended]);
  }

  close() {
    this.#box?.kill('SIGKILL');
    // Some may be missing, if they could not be made.
    for (const name of Object.values(this.#names)) spawnSync('ip', ['netns', 'del', name]);
  }

  /** Gives an end its device, whose packets cross the middle. */
  #join(end, number) {
    const [name, veth] = [this.#names[end], `v-${end}`];
    const { middle } = this.#names;
    ip(`link add ${veth} netns ${name} type veth peer name ${veth} netns ${middle}`);
    for (const [where, isBox] of [
      [name, false],
      [middle, true],
    ]) {
      ip(`-n ${where} addr add ${outer(number, isBox)}/24 dev ${veth}`);
      ip(`-n ${where} link set ${veth} mtu 1600 up gso_max_segs 1`);
    }
    const [local, remote] = [outer(number, false), outer(number, true)];
    ip(
      `-n ${name} link add path type vxlan id 7 local ${local} remote ${remote} ` +
        `dstport ${VXLAN_PORT} nolearning`,
    );
    ip(`-n ${name} addr add ${address(end)}/24 dev path`);
    // One packet of the path is one packet of the box.
    ip(`-n ${name} link set path mtu 1500 up gso_max_segs 1`);
  }
}

function address(end) {
  return `10.77.0.${1 + ENDS.indexOf(end)}`;
}

function ip(words) {
  const { status, stderr } = spawnSync('ip', words.split(' '), { encoding: 'utf8' });
  if (status !== 0) throw new Error(`ip ${words}: ${stderr}`);
}
