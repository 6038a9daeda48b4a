//! Reads HLS playlists for the gateway: their URIs, to rewrite them, and their next segments.
//!
//! Rewriting is textual. A parser would lose unknown tags, which players depend on; this way every
//! byte outside a URI stays as it was, including unknown tags, comments and line ends. Prefetching
//! uses the parser, because there unknown tags do not matter.

use std::ops::Range;
use std::time::Duration;

use m3u8_rs::Playlist;
use url::Url;

/// Whether these bytes are an HLS playlist, whatever their name and type (RFC 8216, section 4).
pub fn is_playlist(bytes: &[u8]) -> bool {
    bytes
        .strip_prefix(BYTE_ORDER_MARK)
        .unwrap_or(bytes)
        .starts_with(b"#EXTM3U")
}

/// All URIs of the playlist as written: lines, and `URI` attributes of tags.
pub fn uris(text: &str) -> impl Iterator<Item = &str> {
    spans(text).into_iter().filter_map(|span| text.get(span))
}

/// The playlist with each URI replaced by the result of `map`; `None` keeps it.
pub fn rewrite(text: &str, mut map: impl FnMut(&str) -> Option<String>) -> String {
    let mut rewritten = String::with_capacity(text.len());
    let mut done = 0;
    for span in spans(text) {
        if let Some(uri) = text.get(span.clone()).and_then(&mut map) {
            rewritten.push_str(text.get(done..span.start).unwrap_or_default());
            rewritten.push_str(&uri);
            done = span.end;
        }
    }
    rewritten.push_str(text.get(done..).unwrap_or_default());
    rewritten
}

/// A file that a player of a media playlist will request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upcoming {
    /// Its URI as written.
    pub uri: String,
    /// The byte range, if it is not the whole file.
    pub range: Option<Range<u64>>,
}

/// The parts of a media playlist needed for prefetching.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Media {
    /// Initialisation sections (`EXT-X-MAP`), each once.
    pub maps: Vec<Upcoming>,
    /// Media segments in playing order.
    pub segments: Vec<Upcoming>,
    /// The durations of the segments.
    pub durations: Vec<Duration>,
    /// Whether the playlist is complete: a player then starts at the front, not at the live edge.
    pub ended: bool,
}

impl Media {
    /// Parses a media playlist; `None` for a master playlist and for invalid ones.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
        let Ok(Playlist::MediaPlaylist(playlist)) = m3u8_rs::parse_playlist_res(bytes) else {
            return None;
        };
        let mut media = Self {
            ended: playlist.end_list,
            ..Self::default()
        };
        let mut previous: Option<(String, u64)> = None;
        for segment in playlist.segments {
            if let Some(map) = segment.map {
                let range = map
                    .byte_range
                    .and_then(|range| span(range.offset.unwrap_or(0), range.length));
                let map = Upcoming {
                    uri: map.uri,
                    range,
                };
                if !media.maps.contains(&map) {
                    media.maps.push(map);
                }
            }
            // A byte range without an offset starts at the end of the one before it in the same
            // file.
            let range = segment.byte_range.and_then(|range| {
                let follows = previous
                    .as_ref()
                    .filter(|(uri, _)| *uri == segment.uri)
                    .map(|(_, end)| *end);
                span(range.offset.or(follows)?, range.length)
            });
            previous = range.as_ref().map(|range| (segment.uri.clone(), range.end));
            media.segments.push(Upcoming {
                uri: segment.uri,
                range,
            });
            media
                .durations
                .push(Duration::try_from_secs_f32(segment.duration).unwrap_or_default());
        }
        Some(media)
    }
}

/// The path and query of a URI in the playlist at the path `base`; `None` if it leads elsewhere.
pub fn resolve(base: &str, uri: &str) -> Option<String> {
    let here = Url::parse("http://here/").ok()?;
    let url = here.join(base).ok()?.join(uri).ok()?;
    let same = url.host_str() == here.host_str() && url.scheme() == here.scheme();
    let query = url
        .query()
        .map_or_else(String::new, |query| format!("?{query}"));
    same.then(|| format!("{}{query}", url.path()))
}

fn span(start: u64, length: u64) -> Option<Range<u64>> {
    start.checked_add(length).map(|end| start..end)
}

/// The positions of the URIs in a playlist, in order.
fn spans(text: &str) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let content = line.trim_start_matches(['\u{feff}', ' ', '\t']);
        let start = at + (line.len() - content.len());
        at += line.len();
        let content = content.trim_end();
        if !content.starts_with('#') {
            if !content.is_empty() {
                spans.push(start..start + content.len());
            }
        } else if let Some((tag, list)) = content
            .split_once(':')
            .filter(|(tag, _)| TAGS_WITH_URI.contains(tag))
        {
            let start = start + tag.len() + 1;
            spans.extend(uri_attribute(list).map(|span| start + span.start..start + span.end));
        }
    }
    spans
}

/// The position of the value of the attribute `URI` in an attribute list, without quotes. Values of
/// other attributes may contain commas, equal signs and the letters `URI=`.
fn uri_attribute(list: &str) -> Option<Range<usize>> {
    let mut rest = list;
    loop {
        let (name, value) = rest.split_once('=')?;
        if let Some(quoted) = value.strip_prefix('"') {
            let (value, after) = quoted.split_once('"')?;
            if name.trim() == "URI" {
                let start = list.len() - quoted.len();
                return Some(start..start + value.len());
            }
            rest = after.trim_start().strip_prefix(',')?;
        } else {
            rest = value.split_once(',')?.1;
        }
    }
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The tags whose attribute `URI` names something to fetch over HTTP.
const TAGS_WITH_URI: [&str; 10] = [
    "#EXT-X-I-FRAME-STREAM-INF",
    "#EXT-X-IMAGE-STREAM-INF",
    "#EXT-X-KEY",
    "#EXT-X-MAP",
    "#EXT-X-MEDIA",
    "#EXT-X-PART",
    "#EXT-X-PRELOAD-HINT",
    "#EXT-X-RENDITION-REPORT",
    "#EXT-X-SESSION-DATA",
    "#EXT-X-SESSION-KEY",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_outside_a_uri_stays() {
        let text = "\u{feff}#EXTM3U\r\n#EXT-X-NEW:URI=\"http://o/n\"\r\n  seg.ts  \r\n\r\n\
                    # note http://o/c\r\nhttp://o/b.ts?x=1";
        assert_eq!(rewrite(text, |_| None), text);
        assert_eq!(
            uris(text).collect::<Vec<_>>(),
            ["seg.ts", "http://o/b.ts?x=1"]
        );
        let rewritten = rewrite(text, |uri| uri.strip_prefix("http://o").map(str::to_owned));
        assert_eq!(rewritten, text.replace("http://o/b.ts", "/b.ts"));
    }

    #[test]
    fn attributes_with_uris_are_found() {
        for (line, uri) in [
            ("#EXT-X-MAP:URI=\"init.mp4\"", "init.mp4"),
            (
                "#EXT-X-MEDIA:TYPE=AUDIO,NAME=\"URI=\\x, y\",DEFAULT=YES,\
                 URI=\"http://o/a.m3u8\",CHANNELS=\"2\"",
                "http://o/a.m3u8",
            ),
            (
                "#EXT-X-KEY:METHOD=AES-128,URI=\"https://o/k?a=b,c\",IV=0x1",
                "https://o/k?a=b,c",
            ),
            (
                "#EXT-X-I-FRAME-STREAM-INF:BANDWIDTH=1,URI=\"/i.m3u8\"",
                "/i.m3u8",
            ),
            (
                "#EXT-X-PART:DURATION=0.3, URI=\"p.mp4\",INDEPENDENT=YES",
                "p.mp4",
            ),
        ] {
            assert_eq!(uris(line).collect::<Vec<_>>(), [uri], "{line}");
        }
        for line in [
            "#EXT-X-MAP:URI=init",
            "#EXT-X-MAP:URI=\"",
            "#EXT-X-MAP:",
            "#EXT-X-KEY:METHOD=NONE",
            "#EXT-X-PART:X-URI=\"a\"",
            "#",
        ] {
            assert_eq!(uris(line).count(), 0, "{line}");
        }
    }

    #[test]
    fn byte_ranges_follow_each_other_in_a_file() {
        let text = "#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-TARGETDURATION:2\n\
                    #EXT-X-MAP:URI=\"a.mp4\",BYTERANGE=\"10@0\"\n\
                    #EXTINF:2,\n#EXT-X-BYTERANGE:20@10\na.mp4\n#EXTINF:2,\n#EXT-X-BYTERANGE:5\n\
                    a.mp4\n#EXTINF:2,\nb.mp4\n#EXT-X-ENDLIST\n";
        let media = Media::parse(text.as_bytes()).unwrap();
        assert!(media.ended);
        assert_eq!(
            media.maps,
            [Upcoming {
                uri: "a.mp4".into(),
                range: Some(0..10)
            }]
        );
        let ranges = media
            .segments
            .into_iter()
            .map(|segment| segment.range)
            .collect::<Vec<_>>();
        assert_eq!(ranges, [Some(10..30), Some(30..35), None]);
    }

    #[test]
    fn only_media_playlists_are_looked_into() {
        assert_eq!(
            Media::parse(b"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\nv.m3u8\n"),
            None
        );
        assert_eq!(Media::parse(b"<MPD/>"), None);
        assert!(is_playlist("\u{feff}#EXTM3U\n".as_bytes()) && !is_playlist(b"<MPD/>"));
    }
}
