//! Finds the path at the gateway for an absolute URI of a playlist.
//!
//! A playlist may name its files by URIs of the origin, `http://origin/vod/bunny/1.ts` or
//! `/vod/bunny/1.ts`. The player should request them from the gateway, but only the server knows
//! its stream's URL. The path below the stream must be a suffix of the URI's path. So the gateway
//! asks the server for the possible suffixes, longest first, and keeps the one that exists: once
//! per stream and host, not per URI. A URI without any stays as it is.
//!
//! No I/O here: [`Origins::map`] answers from memory, [`candidates`] lists the paths to ask for,
//! [`Origins::learn`] takes the result.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The parts of an absolute URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Absolute<'a> {
    /// Host and port; empty if the URI has none.
    authority: &'a str,
    /// The rest from the first slash on, with the query.
    path: &'a str,
}

impl<'a> Absolute<'a> {
    /// `None` for a relative reference, and for schemes other than HTTP.
    pub(super) fn parse(uri: &'a str) -> Option<Self> {
        let scheme = ["http://", "https://", "//"].into_iter().find(|scheme| {
            uri.get(..scheme.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        });
        match scheme {
            Some(scheme) => {
                let rest = uri.get(scheme.len()..)?;
                let (authority, path) = rest.split_at_checked(rest.find('/')?)?;
                Some(Self { authority, path })
            }
            None => uri.starts_with('/').then_some(Self {
                authority: "",
                path: uri,
            }),
        }
    }
}

/// Possible paths of the URI below `/stream/`, the likeliest first.
pub(super) fn candidates(stream: &str, absolute: Absolute<'_>) -> Vec<String> {
    let path = absolute.path.split(['?', '#']).next().unwrap_or_default();
    let query = absolute.path.get(path.len()..).unwrap_or_default();
    let ends = path
        .match_indices('/')
        .filter_map(|(slash, _)| path.get(slash + 1..));
    let same = path
        .strip_prefix('/')
        .and_then(|path| path.strip_prefix(stream))
        .and_then(|path| path.strip_prefix('/'));
    let mut candidates = Vec::new();
    for end in same.into_iter().chain(ends).filter(|end| !end.is_empty()) {
        let candidate = format!("/{stream}/{end}{query}");
        if !candidates.contains(&candidate) && candidates.len() < CANDIDATES_MAX {
            candidates.push(candidate);
        }
    }
    candidates
}

/// Known locations of streams at their origins.
#[derive(Debug, Default)]
pub(super) struct Origins {
    known: HashMap<(String, String), Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Path prefixes at the origin that stand for `/stream/`.
    bases: Vec<String>,
    /// Do not ask again before this.
    unknown_until: Option<Instant>,
}

/// The result of [`Origins::map`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mapping {
    /// The path at the gateway.
    Path(String),
    /// Ask for the candidates, then call [`Origins::learn`].
    Ask,
    /// Not part of the stream, by a recent result.
    Elsewhere,
}

impl Origins {
    /// Maps a URI.
    pub(super) fn map(&self, stream: &str, absolute: Absolute<'_>, now: Instant) -> Mapping {
        let Some(known) = self.known.get(&key(stream, absolute)) else {
            return Mapping::Ask;
        };
        let below = known
            .bases
            .iter()
            .find_map(|base| absolute.path.strip_prefix(base.as_str()));
        match below {
            Some(below) => Mapping::Path(format!("/{stream}/{below}")),
            None if known.unknown_until.is_some_and(|until| now < until) => Mapping::Elsewhere,
            None => Mapping::Ask,
        }
    }

    /// Records the candidate that exists, or that none does.
    pub(super) fn learn(
        &mut self,
        stream: &str,
        absolute: Absolute<'_>,
        found: Option<&str>,
        now: Instant,
    ) {
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        let known = self.known.entry(key(stream, absolute)).or_default();
        let below = found.and_then(|path| {
            path.strip_prefix('/')?
                .strip_prefix(stream)?
                .strip_prefix('/')
        });
        match below.and_then(|below| absolute.path.strip_suffix(below)) {
            Some(base) if known.bases.len() < BASES_MAX => known.bases.push(base.to_owned()),
            _ => known.unknown_until = Some(now + UNKNOWN_FOR),
        }
    }
}

fn key(stream: &str, absolute: Absolute<'_>) -> (String, String) {
    (stream.to_owned(), absolute.authority.to_ascii_lowercase())
}

/// The maximum depth of a stream's folder at its origin.
const CANDIDATES_MAX: usize = 8;
/// Streams and hosts remembered.
const KNOWN_MAX: usize = 64;
/// Locations of one stream at one host.
const BASES_MAX: usize = 8;
/// How long a host without a match is not asked about.
const UNKNOWN_FOR: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_uris_are_told_from_others() {
        assert_eq!(
            Absolute::parse("HTTP://o:80/a?b").unwrap(),
            Absolute {
                authority: "o:80",
                path: "/a?b"
            }
        );
        assert_eq!(
            Absolute::parse("//o/a").unwrap(),
            Absolute {
                authority: "o",
                path: "/a"
            }
        );
        assert_eq!(
            Absolute::parse("/a/b").unwrap(),
            Absolute {
                authority: "",
                path: "/a/b"
            }
        );
        for uri in [
            "a.ts",
            "../a.ts",
            "a:b",
            "data:text/plain,x",
            "skd://key",
            "http://o",
            "é",
            "",
        ] {
            assert_eq!(Absolute::parse(uri), None, "{uri}");
        }
    }

    #[test]
    fn the_path_itself_is_tried_first_and_then_its_ends() {
        let absolute = Absolute::parse("http://o/vod/live/1.ts?a=/b").unwrap();
        assert_eq!(
            candidates("live", absolute),
            [
                "/live/vod/live/1.ts?a=/b",
                "/live/live/1.ts?a=/b",
                "/live/1.ts?a=/b"
            ]
        );
        let absolute = Absolute::parse("/live/1.ts").unwrap();
        assert_eq!(
            candidates("live", absolute),
            ["/live/1.ts", "/live/live/1.ts"]
        );
        assert!(candidates("live", Absolute::parse("http://o/").unwrap()).is_empty());
    }

    #[test]
    fn one_answer_serves_the_whole_playlist() {
        let now = Instant::now();
        let mut origins = Origins::default();
        let first = Absolute::parse("http://o/vod/bunny/1.ts").unwrap();
        assert_eq!(origins.map("live", first, now), Mapping::Ask);
        origins.learn("live", first, Some("/live/bunny/1.ts"), now);
        let second = Absolute::parse("https://O/vod/other/2.ts?q").unwrap();
        assert_eq!(
            origins.map("live", second, now),
            Mapping::Path("/live/other/2.ts?q".into())
        );
        assert_eq!(origins.map("another", second, now), Mapping::Ask);
    }

    #[test]
    fn what_is_not_there_is_not_asked_for_again_at_once() {
        let now = Instant::now();
        let mut origins = Origins::default();
        let absolute = Absolute::parse("http://elsewhere/1.ts").unwrap();
        origins.learn("live", absolute, None, now);
        assert_eq!(origins.map("live", absolute, now), Mapping::Elsewhere);
        assert_eq!(
            origins.map("live", absolute, now + UNKNOWN_FOR),
            Mapping::Ask
        );
    }
}
