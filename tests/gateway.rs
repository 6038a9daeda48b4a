//! The gateway as a player sees it: playlists that ffmpeg wrote, and HTTP against a server with its own origin.

use ncserverd::peer::playlist::{Media, is_playlist, rewrite, uris};

/// Written by ffmpeg 5.1 with `-hls_base_url`, `-hls_key_info_file`, `-hls_flags single_file` and `-var_stream_map`.
const ABSOLUTE: &str = include_str!("playlists/absolute.m3u8");
const ENCRYPTED: &str = include_str!("playlists/encrypted.m3u8");
const RANGES: &str = include_str!("playlists/ranges.m3u8");
const MASTER: &str = include_str!("playlists/master.m3u8");

fn turned(text: &str) -> String {
    rewrite(text, |uri| {
        let path = uri.strip_prefix("http://origin.example").unwrap_or(uri);
        path.strip_prefix("/vod/bunny/").map(|file| format!("/live/{file}"))
    })
}

#[test]
fn only_absolute_uris_of_ffmpegs_playlists_change() {
    assert_eq!(turned(ABSOLUTE), ABSOLUTE.replace("http://origin.example/vod/bunny/", "/live/"));
    assert_eq!(turned(ENCRYPTED), ENCRYPTED.replace("http://origin.example/vod/bunny/", "/live/"));
    assert_eq!(turned(RANGES), RANGES.replace("/vod/bunny/", "/live/"));
    assert_eq!(turned(MASTER), MASTER);
    assert_eq!(uris(MASTER).collect::<Vec<_>>(), ["v0.m3u8", "v1.m3u8"]);
    assert_eq!(uris(ENCRYPTED).next(), Some("http://origin.example/vod/bunny/k.key"));
}

#[test]
fn ffmpegs_media_playlists_are_understood() {
    for (text, segments, maps) in [(ABSOLUTE, 3, 0), (ENCRYPTED, 3, 0), (RANGES, 3, 1)] {
        assert!(is_playlist(text.as_bytes()));
        let media = Media::parse(text.as_bytes()).expect("a media playlist");
        assert_eq!((media.segments.len(), media.maps.len(), media.ended), (segments, maps, true), "{text}");
    }
    let ranges = Media::parse(RANGES.as_bytes()).unwrap();
    assert_eq!(ranges.segments.last().unwrap().range, Some(84_835..128_954));
    assert_eq!(Media::parse(MASTER.as_bytes()), None);
}
