#!/bin/sh
# Makes the clip of `ncserverd demo` from ffmpeg's own test sources: 12 s of HLS in six fMP4
# segments. Everything here is generated; nothing is anybody's film. Run it in this folder.
set -eu
cd "$(dirname "$0")"
rm -f ./*.m3u8 ./*.mp4 ./*.m4s
ffmpeg -hide_banner -loglevel error \
    -f lavfi -i 'testsrc2=size=480x270:rate=25:duration=12' \
    -f lavfi -i 'sine=frequency=440:beep_factor=4:sample_rate=48000:duration=12' \
    -c:v libx264 -preset veryslow -profile:v main -pix_fmt yuv420p -threads 1 -b:v 260k -maxrate 300k -bufsize 300k \
    -g 50 -keyint_min 50 -sc_threshold 0 \
    -c:a aac -b:a 48k -ac 1 -flags +bitexact -fflags +bitexact -map_metadata -1 \
    -f hls -hls_time 2 -hls_playlist_type vod -hls_segment_type fmp4 -hls_flags independent_segments \
    -hls_fmp4_init_filename init.mp4 -hls_segment_filename 'segment%d.m4s' -master_pl_name master.m3u8 video.m3u8
