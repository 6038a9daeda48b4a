/** The worker of remote.ts: a client, and the page's reads of it. */

import { LocalClient } from './local.js';
import type { Answer, Order } from './remote.js';

/** A read or a subscription of the page. */
interface Read {
  abort: AbortController;
  /** Bytes that the page has room for. */
  room: number;
  wake(): void;
}

const reads = new Map<number, Read>();
/** What of a worker's scope is used: the types are those of a page. */
const scope = globalThis as unknown as {
  onmessage: (event: MessageEvent<Order>) => void;
  postMessage(answer: Answer, transfer?: Transferable[]): void;
  close(): void;
};
let client: LocalClient | undefined;

scope.onmessage = ({ data }: MessageEvent<Order>) => {
  switch (data.kind) {
    case 'start':
      return void start(data);
    case 'fetch':
      return void run(data.id, (read) => fetch(data, read));
    case 'subscribe':
      return void run(data.id, (read) => subscribe(data, read));
    case 'room': {
      const read = reads.get(data.id);
      if (read) read.room = data.bytes;
      return read?.wake();
    }
    case 'cancel':
      reads.get(data.id)?.abort.abort();
      return reads.get(data.id)?.wake();
    case 'statistics':
      return void client!
        .statistics()
        .then((statistics) => answer({ kind: 'statistics', id: data.id, statistics }));
    case 'mesh':
      return client!.meshTells(data.news);
    case 'close':
      client!.close();
      // What is to be sent is with the browser then.
      return void setTimeout(() => scope.close(), CLOSING_MS);
  }
};

const CLOSING_MS = 500;

async function start({ settings }: Order & { kind: 'start' }): Promise<void> {
  try {
    client = await LocalClient.start(settings, (order) => {
      const transfer = 'bytes' in order ? [order.bytes.buffer] : [];
      scope.postMessage({ kind: 'mesh', order }, transfer);
    });
    const pass = ({ type, detail }: CustomEvent) => answer({ kind: 'event', type, detail });
    for (const type of ['statistics', 'server']) {
      client.addEventListener(type, pass as EventListener);
    }
    answer({ kind: 'started' });
  } catch (error) {
    answer({ kind: 'started', error: String((error as Error).message) });
  }
}

/** Runs a read, and tells how it has ended. */
async function run(id: number, work: (read: Read) => Promise<void>): Promise<void> {
  const read: Read = { abort: new AbortController(), room: 0, wake() {} };
  reads.set(id, read);
  try {
    await work(read);
    answer({ kind: 'ended', id });
  } catch (error) {
    const { name, message } = error as Error;
    answer({ kind: 'failed', id, name, message });
  }
  reads.delete(id);
}

async function fetch(order: Order & { kind: 'fetch' }, read: Read): Promise<void> {
  const { id, path, options } = order;
  const { signal } = read.abort;
  const { length, contentType, body } = await client!.fetch(path, { ...options, signal });
  answer({ kind: 'opened', id, length, contentType });
  const reader = body.getReader();
  for (;;) {
    while (read.room <= 0 && !signal.aborted) {
      await new Promise<void>((resolve) => (read.wake = resolve));
    }
    const { value, done } = await reader.read();
    if (done) return;
    read.room -= value.length;
    scope.postMessage({ kind: 'bytes', id, bytes: value }, [value.buffer]);
  }
}

async function subscribe({ id, stream }: Order & { kind: 'subscribe' }, read: Read): Promise<void> {
  const reader = client!.subscribe(stream).getReader();
  read.abort.signal.addEventListener('abort', () => void reader.cancel());
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    answer({ kind: 'path', id, path: value });
  }
}

function answer(answer: Answer): void {
  scope.postMessage(answer);
}
