//! The paths that a peer may ask for, and until when.
//!
//! A pattern is a path, `/stream/object`, or the beginning of one with `*` at its end. Pattern and
//! path are compared percent-decoded and without the query, so that every spelling of a path is
//! judged alike. Decoding cannot lead out of a pattern: where a path would gain a separator or a
//! dot component by it, the server refuses the path.

use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::time::Instant;

/// Most patterns of a scope.
pub const PATTERNS_MAX: usize = 64;

/// The paths that a peer may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope(Arc<[Pattern]>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    /// Percent-decoded.
    text: Vec<u8>,
    /// Whether any text may follow.
    open: bool,
}

/// A list of patterns that is not a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a scope must be 1 to {PATTERNS_MAX} paths that start with `/`, have no query and may end \
     with `*`"
)]
pub struct ScopeError;

impl Scope {
    /// All paths.
    pub fn everything() -> Self {
        Self(Arc::new([Pattern {
            text: b"/".to_vec(),
            open: true,
        }]))
    }

    /// The paths that one of these patterns covers.
    pub fn parse<T: AsRef<str>>(patterns: &[T]) -> Result<Self, ScopeError> {
        if !(1..=PATTERNS_MAX).contains(&patterns.len()) {
            return Err(ScopeError);
        }
        patterns
            .iter()
            .map(|pattern| Pattern::parse(pattern.as_ref()))
            .collect::<Result<Arc<[_]>, _>>()
            .map(Self)
    }

    /// Whether a path with or without a query may be asked for.
    pub fn allows(&self, path: &str) -> bool {
        let bare = path.split_once('?').map_or(path, |(bare, _)| bare);
        let decoded: Vec<u8> = percent_decode_str(bare).collect();
        self.0.iter().any(|pattern| pattern.covers(&decoded))
    }

    /// Whether every path of this stream may be asked for.
    pub fn covers(&self, stream: &str) -> bool {
        let top = format!("/{stream}/").into_bytes();
        self.0
            .iter()
            .any(|pattern| pattern.open && top.starts_with(&pattern.text))
    }

    /// Whether any path of this stream may be asked for.
    pub fn touches(&self, stream: &str) -> bool {
        let top = format!("/{stream}/").into_bytes();
        self.0.iter().any(|pattern| {
            pattern.text.starts_with(&top) || (pattern.open && top.starts_with(&pattern.text))
        })
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, ScopeError> {
        let (bare, open) = text
            .strip_suffix('*')
            .map_or((text, false), |bare| (bare, true));
        if !bare.starts_with('/') || bare.contains(['*', '?', '#']) {
            return Err(ScopeError);
        }
        Ok(Self {
            text: percent_decode_str(bare).collect(),
            open,
        })
    }

    fn covers(&self, path: &[u8]) -> bool {
        if self.open {
            path.starts_with(&self.text)
        } else {
            path == self.text
        }
    }
}

/// The rights of a peer at present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Everything: this server requires no token or certificate.
    Free,
    /// The paths of a scope.
    Granted {
        /// The paths.
        scope: Scope,
        /// When it ends; `None` for no time of its own.
        until: Option<Instant>,
        /// How long the connection may stay after that, without any right; `None` where no right is
        /// required.
        grace: Option<Duration>,
    },
    /// Nothing.
    Refused {
        /// When the connection is closed.
        until: Instant,
    },
}

impl Access {
    /// Whether this path may be asked for.
    pub fn allows(&self, path: &str) -> bool {
        match self {
            Self::Free => true,
            Self::Granted { scope, .. } => scope.allows(path),
            Self::Refused { .. } => false,
        }
    }

    /// Whether a segment at this path may be asked for. A segment without a known path may be asked
    /// for by peers that may have everything.
    pub fn allows_segment(&self, path: Option<&str>) -> bool {
        match (self, path) {
            (Self::Granted { scope, .. }, None) => *scope == Scope::everything(),
            (_, path) => self.allows(path.unwrap_or_default()),
        }
    }

    /// Whether every path of this stream may be asked for.
    pub fn covers(&self, stream: &str) -> bool {
        match self {
            Self::Free => true,
            Self::Granted { scope, .. } => scope.covers(stream),
            Self::Refused { .. } => false,
        }
    }

    /// Whether any path of this stream may be asked for.
    pub fn touches(&self, stream: &str) -> bool {
        match self {
            Self::Free => true,
            Self::Granted { scope, .. } => scope.touches(stream),
            Self::Refused { .. } => false,
        }
    }

    /// The rights after its end, if that has come.
    pub fn lapsed(&self, now: Instant) -> Option<Self> {
        match self {
            Self::Granted {
                until: Some(until),
                grace,
                ..
            } if *until <= now => Some(grace.map_or(Self::Free, |grace| Self::Refused {
                until: *until + grace,
            })),
            _ => None,
        }
    }

    /// When the rights change, or the connection ends.
    pub fn due(&self) -> Option<Instant> {
        match self {
            Self::Free => None,
            Self::Granted { until, .. } => *until,
            Self::Refused { until } => Some(*until),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(patterns: &[&str]) -> Scope {
        Scope::parse(patterns).unwrap()
    }

    #[test]
    fn patterns_cover_paths_and_beginnings_of_paths() {
        let scope = scope(&["/live/bunny/*", "/files/clip.mp4"]);
        for (path, allowed) in [
            ("/live/bunny/1.ts", true),
            ("/live/bunny/a/b?x=/../../secret", true),
            ("/live/bunn%79/1.ts", true),
            ("/live/bunny", false),
            ("/live/bunny2/1.ts", false),
            ("/live/", false),
            ("/files/clip.mp4", true),
            ("/files/clip.mp4?a", true),
            ("/files/clip.mp4x", false),
            ("/files/cli", false),
            ("/?/live/bunny/1.ts", false),
            ("", false),
        ] {
            assert_eq!(scope.allows(path), allowed, "{path}");
        }
        assert!(Scope::everything().allows("/any/thing"));
        assert_eq!(Scope::parse(&["/*"]), Ok(Scope::everything()));
        assert!(
            Scope::parse(&["/live/%62unny/*"])
                .unwrap()
                .allows("/live/bunny/1.ts"),
            "patterns are decoded, too"
        );
    }

    #[test]
    fn streams_are_touched_by_patterns_inside_and_around_them() {
        for (pattern, touches) in [
            ("/live/bunny/*", true),
            ("/live/x.ts", true),
            ("/li*", true),
            ("/*", true),
            ("/live", false),
            ("/lives/*", false),
        ] {
            assert_eq!(scope(&[pattern]).touches("live"), touches, "{pattern}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_no_scope() {
        for pattern in [
            "",
            "*",
            "live/*",
            "/live/*/x",
            "/live/**",
            "/live/x?a=b",
            "/live/x#a",
        ] {
            assert_eq!(Scope::parse(&[pattern]), Err(ScopeError), "{pattern}");
        }
        assert!(Scope::parse::<&str>(&[]).is_err());
        assert!(Scope::parse(&vec!["/a/*"; PATTERNS_MAX + 1]).is_err());
    }

    #[test]
    fn segments_of_unknown_paths_are_for_those_who_may_have_everything() {
        let granted = |patterns: &[&str]| Access::Granted {
            scope: scope(patterns),
            until: None,
            grace: None,
        };
        for (access, known, unknown) in [
            (Access::Free, true, true),
            (granted(&["/*"]), true, true),
            (granted(&["/live/*"]), true, false),
            (granted(&["/files/*"]), false, false),
            (
                Access::Refused {
                    until: Instant::now(),
                },
                false,
                false,
            ),
        ] {
            assert_eq!(
                access.allows_segment(Some("/live/1.ts")),
                known,
                "{access:?}"
            );
            assert_eq!(access.allows_segment(None), unknown, "{access:?}");
        }
    }
}
