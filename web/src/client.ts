/** The client of a page. */

import { LocalClient } from './local.js';
import { hasMesh } from './mesh.js';
import { RemoteClient } from './remote.js';
import { parseServer } from './server.js';
import type { Client, Options } from './types.js';

/** Connects to servers. Reads may begin at once; they wait until one of the servers answers. */
export async function connect(options: Options): Promise<Client> {
  if (options.servers.length === 0) throw new TypeError('no servers');
  const { token, windowMax, module, iceServers = [], uploadMax } = options;
  const keys = [options.key ?? []].flat();
  const wrong = keys.find((key) => !/^([^=/]+=)?[0-9a-fA-F]{64}$/.test(key));
  if (wrong !== undefined) throw new TypeError(`not the key of a stream: ${wrong}`);
  const isShared = options.share === true && hasMesh();
  const settings = {
    servers: options.servers.map(parseServer),
    token,
    keys,
    windowMax,
    module: module instanceof URL ? module.href : module,
    share: isShared ? { iceServers, uploadMax } : undefined,
  };
  const isPage = typeof document !== 'undefined' && typeof Worker !== 'undefined';
  if (options.worker ?? isPage) {
    const remote = await RemoteClient.start(settings);
    if (remote) return remote;
  }
  return LocalClient.start(settings);
}
