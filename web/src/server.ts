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

/** Reads the URL of a server that another one has named; nothing if no browser would. */
export function namedServer(url: string): Server | undefined {
  try {
    return parseServer(url);
  } catch {
    return undefined;
  }
}

/** `host:port` of a server. */
export function placeOf(server: Server): string {
  const { hostname, port } = new URL(server.url);
  return `${hostname}:${port || 443}`;
}

/**
 * Addresses that are not of the public internet (RFC 6890), as a URL writes them, and names of this
 * machine. Forms of IPv6 that carry an address of IPv4 count as private.
 */
const PRIVATE = [
  /^(.*\.)?localhost\.?$/,
  /^(0|10|127|192\.168|169\.254|172\.(1[6-9]|2\d|3[01])|198\.1[89])\.[\d.]+$/,
  /^100\.(6[4-9]|[7-9]\d|1[01]\d|12[0-7])\.[\d.]+$/,
  /^(22[4-9]|2[345]\d)\.[\d.]+$/,
  /^\[(::|f[c-f]|fe[89a-f]|2002:|64:ff9b:)/,
];

/** Whether the address is literally one of a private network, a link, or this machine. */
export function isPrivate(server: Server): boolean {
  const { hostname } = new URL(server.url);
  return PRIVATE.some((form) => form.test(hostname));
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
