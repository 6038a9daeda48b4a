/** A peer of ncserverd in a web page. */
export { connect } from './client.js';
export { dashLoader } from './dash.js';
export { hlsLoader } from './hls.js';
export { shakaScheme } from './shaka.js';
export { ReadError } from './types.js';
export type { Server } from './server.js';
export type {
  Client,
  ClientEvents,
  Fetched,
  FetchOptions,
  Options,
  ServerState,
  ServerStatistics,
  Statistics,
} from './types.js';
