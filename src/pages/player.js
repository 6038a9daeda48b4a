// The page of `web.listen`: plays what `?play=/stream/playlist.m3u8` names.
import { NcVideo } from './peer/element.js';
import Hls from './hls.js';

NcVideo.Hls = Hls;
const at = (id) => document.getElementById(id);
const say = (text) => (at('note').textContent = text);

/** Plays a path by the servers that this site names. */
function play(path, { servers }) {
  const [first, ...others] = servers.map(({ port, hashes }) => ({
    at: `${location.hostname}:${port}`,
    hashes: hashes.join(),
  }));
  const video = document.createElement('nc-video');
  video.setAttribute('src', `ncs://${first.at}${path}`);
  if (first.hashes) video.setAttribute('hashes', first.hashes);
  const names = others.map(({ at, hashes }) => `ncs://${at}#${hashes}`);
  if (names.length > 0) video.setAttribute('servers', names.join(' '));
  // A fragment stays in the browser, unlike a query.
  const token = new URLSearchParams(location.hash.slice(1)).get('token');
  if (token) video.setAttribute('token', token);
  for (const name of ['controls', 'autoplay', 'muted', 'playsinline']) video.setAttribute(name, '');
  video.addEventListener('error', ({ message }) => say(message));
  video.addEventListener('statistics', ({ detail }) => show(detail));
  at('place').replaceChildren(video);
}

function show({ buffered, stalls, peer }) {
  at('numbers').hidden = false;
  at('buffered').textContent = `${buffered.toFixed(1)} s`;
  at('stalls').textContent = `${stalls}`;
  if (!peer) return;
  const { blocks, reads, servers } = peer;
  at('received').textContent = blocks.received.toLocaleString('en');
  at('repaired').textContent =
    `${blocks.lost.toLocaleString('en')}, ${blocks.repaired.toLocaleString('en')}`;
  at('redundant').textContent = blocks.redundant.toLocaleString('en');
  at('late').textContent = `${reads.late}`;
  const { state, rtt } = servers[0];
  at('rtt').textContent = rtt === undefined ? state : `${rtt.toFixed(1)} ms`;
}

const facts = await (await fetch('facts.json')).json();
const wanted = new URLSearchParams(location.search).get('play');
if (wanted && /^\/[^/]/.test(wanted)) {
  at('path').value = wanted;
  play(wanted, facts);
}
