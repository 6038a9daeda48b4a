/** A peer of ncserverd in a web page. */
export { connect, Client, ReadError } from './client.js';
export type { FetchOptions, Fetched, Options, Server } from './client.js';
