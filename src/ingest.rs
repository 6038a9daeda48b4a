//! Sources of segments: origins over HTTP, and watched folders.
//!
//! A [`Source`] answers one question, "give me this object, or these bytes of it", with the right
//! bytes or with an [`Error`]. It never returns bytes that were cut short, too long, or changed
//! while being read. It keeps nothing: coalescing, caching and cutting belong to `stream`.
//! [`planner`] derives prefetching and expiry from HLS playlists, without I/O.
//!
//! HTTP fetches run in the caller's task. A watched folder has one task, which turns file system
//! events and periodic scans into [`Change`]s on a bounded channel. When that is full, the task
//! waits; if the kernel's queue overflows meanwhile, the next scan repairs that.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::integrity::signing::StreamKey;
use crate::object::RefusalCode;
use crate::telemetry::quiet::{self, RateLimited};

pub mod folder;
pub mod http;
pub mod members;
pub mod metrics;
pub mod names;
pub mod path;
pub mod planner;
pub mod settle;

pub use metrics::Metrics;
pub use path::{ObjectPath, Parameters, PathError};

/// How origins are read, for all streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The maximum size of a segment; larger objects are cut into parts of this size.
    #[serde(with = "crate::units::size")]
    pub segment_max_bytes: ByteSize,
    /// The maximum time to connect to an origin.
    #[serde(with = "crate::units::duration")]
    pub connect_timeout: Duration,
    /// The maximum pause of an origin within a response.
    #[serde(with = "crate::units::duration")]
    pub read_timeout: Duration,
    /// Retries of a fetch after a transient fault.
    pub retries: u8,
    /// The pause before the first retry; it doubles with each.
    #[serde(with = "crate::units::duration")]
    pub retry_delay: Duration,
    /// The maximum number of redirects per fetch.
    pub redirects_max: u8,
    /// Concurrent fetches of a stream; more wait.
    pub fetches_max: u16,
    /// Waiting fetches of a stream; more are refused.
    pub fetches_queued_max: u16,
    /// Requests of peers that may wait for a stream's fetches; more are refused.
    pub waiters_max: u32,
    /// How long an origin's refusal is remembered before it is asked again.
    #[serde(with = "crate::units::duration")]
    pub negative_age: Duration,
    /// The interval of scans of a watched folder, for changes without events.
    #[serde(with = "crate::units::duration")]
    pub rescan: Duration,
    /// How long size and time of a file must stay unchanged before a scan considers it complete.
    #[serde(with = "crate::units::duration")]
    pub settle: Duration,
    /// Objects of a stream remembered at once; the least recently used are forgotten.
    pub objects_max: u32,
    /// Bytes of playlists and small objects of a stream kept at once.
    #[serde(with = "crate::units::size")]
    pub small_bytes_max: ByteSize,
    /// Memory for the listings of a stream's playlists, in bytes; further playlists are served, but
    /// not followed.
    #[serde(with = "crate::units::size")]
    pub listed_bytes_max: ByteSize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            segment_max_bytes: ByteSize::mib(8),
            connect_timeout: Duration::from_secs(3),
            read_timeout: Duration::from_secs(5),
            retries: 3,
            retry_delay: Duration::from_millis(100),
            redirects_max: 5,
            fetches_max: 16,
            fetches_queued_max: 1024,
            waiters_max: 65_536,
            negative_age: Duration::from_secs(1),
            rescan: Duration::from_secs(2),
            settle: Duration::from_secs(1),
            objects_max: 65_536,
            small_bytes_max: ByteSize::mib(64),
            listed_bytes_max: ByteSize::mib(64),
        }
    }
}

/// An origin.
pub trait Source: Send + Sync + fmt::Debug {
    /// Reads an object or a part of it.
    fn fetch(&self, fetch: Fetch) -> BoxFuture<'_, Result<Fetched, Error>>;

    /// Changes at the source, if it can detect them. The first call returns the receiver, later
    /// ones `None`.
    fn changes(&self) -> Option<mpsc::Receiver<Change>>;

    /// The base of absolute URIs in playlists, for a source with a URL.
    fn base(&self) -> Option<&url::Url>;

    /// Whether a query (after `?`) selects another object.
    fn has_queries(&self) -> bool;

    /// The key that signs the stream from now on, for a source whose answers are signed.
    fn set_key(&self, key: Option<StreamKey>) {
        let _ = key;
    }
}

/// The return type of asynchronous methods in an object-safe trait.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A request to a source.
#[derive(Debug, Clone)]
pub struct Fetch {
    /// The object.
    pub path: ObjectPath,
    /// The bytes to read.
    pub want: Want,
    /// Return [`Fetched::NotModified`] if the object still has these.
    pub known: Option<Validators>,
    /// The validators of parts fetched before: a part of another version is useless.
    pub part_of: Option<Validators>,
}

/// The bytes of an object to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// The whole object, or [`Error::TooLarge`] if it is larger than this.
    Whole(u64),
    /// The whole object, or its beginning if it is larger than this.
    Head(u64),
    /// An aligned part; it ends early at the end of the object.
    Part(Range<u64>),
    /// Bytes listed in a playlist. All must exist; the object may grow behind them.
    Listed(Range<u64>),
}

/// The answer of a source.
#[derive(Debug, Clone)]
pub enum Fetched {
    /// The object has not changed.
    NotModified,
    /// Its bytes.
    Object(Object),
}

/// Bytes of an object.
#[derive(Debug, Clone)]
pub struct Object {
    /// The requested bytes.
    pub bytes: Bytes,
    /// Their offset in the object.
    pub offset: u64,
    /// The size of the whole object, if the source gave it.
    pub length: Option<u64>,
    /// Identify the version of the object.
    pub validators: Validators,
    /// The media type, if the source gave one.
    pub content_type: Option<String>,
    /// When the object was complete at the source, as far as known: its file was closed, or its
    /// last byte read.
    pub complete: Instant,
    /// When another server of the fleet has issued it, in milliseconds since 1970 by the clock of
    /// that server, if it comes from there and the stream's key has signed it.
    pub issued_ms: Option<u64>,
}

/// Identify one version of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Validators {
    /// `ETag`, as the origin wrote it.
    pub etag: Option<String>,
    /// `Last-Modified`, as the origin wrote it.
    pub last_modified: Option<String>,
    /// The number of the version, if another server has told it and nothing else is known.
    pub told: Option<u64>,
}

impl Validators {
    /// Those of an object of which another server has told the version.
    pub fn told(version: u64) -> Self {
        Self {
            told: Some(version),
            ..Self::default()
        }
    }

    /// A number for this version of an object of this length, below 2^62, so that it fits a QUIC
    /// variable-length integer.
    pub fn version(&self, length: Option<u64>) -> u64 {
        if let Some(version) = self.told {
            return version;
        }
        let mut hasher = blake3::Hasher::new();
        for text in [&self.etag, &self.last_modified] {
            let text = text.as_deref();
            hasher.update(&[u8::from(text.is_some())]);
            hasher.update(
                &u64::try_from(text.map_or(0, str::len))
                    .unwrap_or(u64::MAX)
                    .to_le_bytes(),
            );
            hasher.update(text.unwrap_or_default().as_bytes());
        }
        hasher.update(&[u8::from(length.is_some())]);
        hasher.update(&length.unwrap_or_default().to_le_bytes());
        let mut low = [0; 8];
        low.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        u64::from_le_bytes(low) >> 2
    }

    /// A strong tag, by which an origin can tell whether a part belongs to the same version (RFC
    /// 9110, section 13.1.5).
    pub fn strong(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| etag.starts_with('"'))
    }

    /// Whether there is no validator.
    pub fn is_empty(&self) -> bool {
        self.etag.is_none() && self.last_modified.is_none() && self.told.is_none()
    }
}

/// A change at a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The object.
    pub path: ObjectPath,
    /// The kind of change.
    pub kind: ChangeKind,
}

/// The kinds of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It existed when watching began.
    Present,
    /// It is complete, new or with new content.
    Complete,
    /// It is being written: bytes read before are out of date.
    Written,
    /// It was removed.
    Gone,
}

/// Why a source did not return the bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The object does not exist.
    #[error("the origin has no such object")]
    NotFound,
    /// The origin denies this server access: 401, 403 or 407; also for a file without read
    /// permission (403).
    #[error("the origin denies the server access to this object: status {0}")]
    Forbidden(u16),
    /// The origin is overloaded: 429, or 503 with `Retry-After`. Contains the time to wait, if the
    /// origin gave one.
    #[error("the origin is overloaded: status {0}")]
    Busy(u16, Option<Duration>),
    /// The origin answers, but refuses this request.
    #[error("the origin refuses the request: status {0}")]
    Refused(u16),
    /// The origin failed.
    #[error("the origin failed: status {0}")]
    Unavailable(u16),
    /// The connection failed.
    #[error("the origin cannot be reached: {0}")]
    Connect(String),
    /// The origin was too slow.
    #[error("the origin did not answer in time")]
    Timeout,
    /// The response ended early.
    #[error("the origin's answer ended early: {0}")]
    Truncated(String),
    /// The response has the wrong length.
    #[error("the origin's answer has the wrong length: {0}")]
    Length(String),
    /// The object is larger than the limit.
    #[error("the object is larger than {0} bytes")]
    TooLarge(u64),
    /// The range begins beyond the end of the object.
    #[error(
        "the object ends before the range{}",
        .0.map(|length| format!(" at {length} bytes")).unwrap_or_default(),
    )]
    OutOfRange(Option<u64>),
    /// The origin ignores ranges, without which large objects cannot be served.
    #[error("the origin does not support range requests")]
    NoRanges,
    /// A redirect to a place that is not allowed, or too many redirects.
    #[error("the origin redirects {0}")]
    Redirect(String),
    /// The file is being written.
    #[error("the file is still being written")]
    Incomplete,
    /// The object is not the one of the parts fetched before.
    #[error("the object changed at the origin while the server fetched its parts")]
    Changed,
    /// An invalid response.
    #[error("the origin's answer is invalid: {0}")]
    Protocol(String),
    /// The file system failed.
    #[error("the folder cannot be read: {0}")]
    Io(String),
}

impl Error {
    /// Whether a retry soon may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Busy(..)
            | Self::Unavailable(_)
            | Self::Connect(_)
            | Self::Timeout
            | Self::Truncated(_)
            | Self::Incomplete
            | Self::Io(_) => true,
            Self::NotFound
            | Self::Forbidden(_)
            | Self::Refused(_)
            | Self::Length(_)
            | Self::TooLarge(_)
            | Self::OutOfRange(_)
            | Self::NoRanges
            | Self::Redirect(_)
            | Self::Changed
            | Self::Protocol(_) => false,
        }
    }

    /// The refusal code sent to a peer.
    pub fn code(&self) -> RefusalCode {
        match self {
            Self::NotFound | Self::OutOfRange(_) => RefusalCode::Unknown,
            Self::TooLarge(_) => RefusalCode::Limit,
            Self::Forbidden(_) => RefusalCode::Forbidden,
            Self::Busy(..) => RefusalCode::Overload,
            Self::Changed => RefusalCode::Changed,
            _ => RefusalCode::Origin,
        }
    }

    /// The status of the origin's response, if that is the fault.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Forbidden(status)
            | Self::Busy(status, _)
            | Self::Refused(status)
            | Self::Unavailable(status) => Some(*status),
            _ => None,
        }
    }

    /// When a retry makes sense, where refusals are remembered for `age`.
    pub fn retry_after(&self, age: Duration) -> Option<Duration> {
        match self {
            Self::Busy(_, Some(after)) => Some((*after).max(age)),
            // Retries have failed several times already. A peer's retries, and those of peers
            // behind it, would multiply the requests.
            Self::Unavailable(_) => None,
            _ => (self.is_transient() || *self == Self::NotFound).then_some(age),
        }
    }

    /// The value of the label `kind`; one of [`Error::KINDS`].
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Forbidden(_) => "forbidden",
            Self::Busy(..) => "busy",
            Self::Refused(_) => "refused",
            Self::Unavailable(_) => "unavailable",
            Self::Connect(_) => "connect",
            Self::Timeout => "timeout",
            Self::Truncated(_) => "truncated",
            Self::Length(_) => "length",
            Self::TooLarge(_) => "too_large",
            Self::OutOfRange(_) => "out_of_range",
            Self::NoRanges => "no_ranges",
            Self::Redirect(_) => "redirect",
            Self::Incomplete => "incomplete",
            Self::Changed => "changed",
            Self::Protocol(_) => "protocol",
            Self::Io(_) => "io",
        }
    }

    /// Every value of the label `kind`.
    pub const KINDS: [&str; 17] = [
        "not_found",
        "forbidden",
        "busy",
        "refused",
        "unavailable",
        "connect",
        "timeout",
        "truncated",
        "length",
        "too_large",
        "out_of_range",
        "no_ranges",
        "redirect",
        "incomplete",
        "changed",
        "protocol",
        "io",
    ];
}

/// Logs a failed fetch, at most one line per interval for each kind of fault.
fn complain(
    complaints: &RateLimited<(&'static str, u16)>,
    error: &Error,
    place: impl FnOnce() -> String,
) {
    let kind = (error.kind(), error.status().unwrap_or_default());
    let Some(more) = complaints.admit(kind, Instant::now()) else {
        return;
    };
    let suppressed = quiet::suppressed(more);
    match error {
        Error::NotFound => {
            tracing::info!(place = place(), %error, suppressed, "an object is not at its origin")
        }
        _ => tracing::warn!(place = place(), %error, suppressed, "a fetch from an origin failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_differ_where_validators_do() {
        let validators = |etag: Option<&str>, last: Option<&str>| Validators {
            etag: etag.map(Into::into),
            last_modified: last.map(Into::into),
            told: None,
        };
        let versions = [
            validators(None, None).version(None),
            validators(None, None).version(Some(0)),
            validators(Some("ab"), None).version(None),
            validators(None, Some("ab")).version(None),
            validators(Some("a"), Some("b")).version(None),
            validators(Some("ab"), None).version(Some(1)),
        ];
        for (at, version) in versions.iter().enumerate() {
            assert!(*version < 1 << 62);
            assert!(!versions[..at].contains(version));
        }
    }
}
