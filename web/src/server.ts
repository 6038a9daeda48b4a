/** Addresses of servers. */

/** Where a server is. */
export interface Server {
  /** `https://host:port`. */
  url: string;
  /** SHA-256 of certificates that no authority has signed, in hexadecimal digits. */
  hashes?: string[];
}

/** The port of `ncs://host`, as docs/protocol.md has it. */
const PORT = 4443;

/** Reads `ncs://host:port#hash,hash`, or checks what is a server already. */
export function parseServer(server: Server | string): Server {
  const { url, hashes }: Server = typeof server === 'string' ? { url: server } : server;
  const parsed = /^(ncs|https):\/\/([^/?#@\s]+)\/?(?:#([0-9a-fA-F,]*))?$/.exec(url);
  if (!parsed) throw new TypeError(`not the address of a server: ${url}`);
  const [, scheme, host, pinned] = parsed as unknown as [string, string, string, string?];
  const all = [...(hashes ?? []), ...(pinned ? pinned.split(',') : [])];
  const wrong = all.find((hash) => !/^[0-9a-fA-F]{64}$/.test(hash));
  if (wrong !== undefined) throw new TypeError(`not the SHA-256 of a certificate: ${wrong}`);
  const hasPort = /:\d+$/.test(host);
  const place = scheme === 'ncs' && !hasPort ? `${host}:${PORT}` : host;
  return { url: new URL(`https://${place}`).origin, ...(all.length > 0 && { hashes: all }) };
}

/** `host:port` of a server. */
export function placeOf(server: Server): string {
  const { hostname, port } = new URL(server.url);
  return `${hostname}:${port || 443}`;
}

const PRIVATE =
  /^(localhost|.*\.localhost|(0|10|127)\..*|169\.254\..*|172\.(1[6-9]|2\d|3[01])\..*|192\.168\..*|\[(::1?|::ffff:.*|f[cd].*|fe[89ab].*)\])$/;

/** Whether the address is literally one of a private network, a link, or this machine. */
export function isPrivate(server: Server): boolean {
  return PRIVATE.test(new URL(server.url).hostname);
}

/** The path, with the query, of an object's URL; `undefined` if no server of ours has it. */
export function pathOf(url: string): string | undefined {
  const parsed = new URL(url);
  return parsed.protocol === 'ncs:' ? parsed.pathname + parsed.search : undefined;
}

/** The bytes of a SHA-256. */
export function unhex(digits: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(digits.match(/../g)!, (byte) => parseInt(byte, 16));
}
