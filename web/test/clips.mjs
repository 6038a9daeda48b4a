// Clips for players, and their hashes.
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { sha256 } from './lab.mjs';

/** Seconds of the clip, and of a segment. */
const CLIP_S = 30;
export const SEGMENT_S = 2;
/** Bits a second of the renditions, and lines. */
const RENDITIONS = [
  { bits: 300_000, lines: 180 },
  { bits: 900_000, lines: 360 },
  { bits: 2_500_000, lines: 540 },
];
export const source = (seconds) => [
  '-f',
  'lavfi',
  '-i',
  `testsrc2=size=960x540:rate=25:duration=${seconds}`,
  '-f',
  'lavfi',
  '-i',
  `sine=frequency=440:duration=${seconds}`,
];
export const coded = (bits, lines) => [
  '-vf',
  `scale=-2:${lines},noise=alls=20:allf=t`,
  '-c:v',
  'libx264',
  '-preset',
  'ultrafast',
  '-b:v',
  `${bits}`,
  '-maxrate',
  `${bits}`,
  '-bufsize',
  `${bits}`,
  '-pix_fmt',
  'yuv420p',
  '-g',
  `${25 * SEGMENT_S}`,
  '-keyint_min',
  `${25 * SEGMENT_S}`,
  '-sc_threshold',
  '0',
  '-c:a',
  'aac',
  '-b:a',
  '64k',
];

/** Makes the clips: TS in three renditions, and fragments of MP4 with playlists of HLS and DASH. */
export function make(lab) {
  const quiet = ['-hide_banner', '-loglevel', 'error', '-y'];
  const master = ['#EXTM3U'];
  for (const { bits, lines } of RENDITIONS) {
    mkdirSync(join(lab.media, `${lines}`), { recursive: true });
    lab.run('ffmpeg', [
      ...quiet,
      ...source(CLIP_S),
      ...coded(bits, lines),
      '-f',
      'hls',
      '-hls_time',
      `${SEGMENT_S}`,
      '-hls_playlist_type',
      'vod',
      '-hls_segment_filename',
      join(lab.media, `${lines}/%d.ts`),
      join(lab.media, `${lines}/index.m3u8`),
    ]);
    master.push(
      `#EXT-X-STREAM-INF:BANDWIDTH=${Math.round(bits * 1.2)},CODECS="avc1.42c01e,mp4a.40.2"`,
      `${lines}/index.m3u8`,
    );
  }
  writeFileSync(join(lab.media, 'master.m3u8'), `${master.join('\n')}\n`);
  mkdirSync(join(lab.media, 'dash'));
  lab.run('ffmpeg', [
    ...quiet,
    ...source(CLIP_S),
    ...coded(900_000, 360),
    '-f',
    'dash',
    '-seg_duration',
    `${SEGMENT_S}`,
    '-use_timeline',
    '0',
    '-use_template',
    '1',
    '-hls_playlist',
    '1',
    join(lab.media, 'dash/clip.mpd'),
  ]);
}

/** The hash of each file of the media, as the origin has it. */
export function hashes(lab) {
  const all = {};
  for (const name of readdirSync(lab.media, { recursive: true })) {
    if (/\.(ts|m4s|mp4)$/.test(name))
      all[`/live/${name}`] = sha256(readFileSync(join(lab.media, name)));
  }
  return all;
}
