//! Where segments come from: origins over HTTP and watched directories.
//!
//! A [`Source`] answers one question, "give me this object or these bytes of it", and answers it with the right bytes or with
//! an [`Error`]: what was cut short, too long, or changed while it was read is never handed on. It keeps nothing; coalescing,
//! caching and cutting are `stream`'s. What an HLS playlist means for prefetching and expiry is [`planner`]'s, which does no
//! I/O.
//!
//! HTTP fetches run in the task of whoever awaits them. A watched directory has one task of its own, which turns file system
//! events and periodic scans into [`Change`]s on a bounded channel; when that is full the task waits, and the kernel's queue
//! behind it may overflow, which the next scan repairs.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::object::RefusalCode;
use crate::telemetry::quiet::{self, RateLimited};

pub mod directory;
pub mod http;
pub mod metrics;
pub mod names;
pub mod path;
pub mod planner;
pub mod settle;

pub use metrics::Metrics;
pub use path::{ObjectPath, Parameters, PathError};

/// How origins are read; the same for every stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Objects up to this size are one segment; larger ones are cut into parts of it.
    #[serde(with = "crate::units::size")]
    pub segment_max_bytes: ByteSize,
    /// How long a connection to an origin may take.
    #[serde(with = "crate::units::duration")]
    pub connect_timeout: Duration,
    /// How long an origin may send nothing in the middle of an answer.
    #[serde(with = "crate::units::duration")]
    pub read_timeout: Duration,
    /// How often a fetch is tried again after a fault that may pass.
    pub retries: u8,
    /// How long to wait before the first retry; doubles with each.
    #[serde(with = "crate::units::duration")]
    pub retry_delay: Duration,
    /// How many redirects one fetch may follow.
    pub redirects_max: u8,
    /// How many fetches a stream has open at once; more wait.
    pub fetches_max: u16,
    /// How many fetches of a stream may wait; more are refused.
    pub fetches_queued_max: u16,
    /// How many peers' requests may wait for a stream's fetches; more are refused.
    pub waiters_max: u32,
    /// How long a refusal by the origin is remembered before it is asked again.
    #[serde(with = "crate::units::duration")]
    pub negative_age: Duration,
    /// How often a watched directory is scanned for what its events did not tell.
    #[serde(with = "crate::units::duration")]
    pub rescan: Duration,
    /// How long size and time of a file must stand still before a scan takes it as complete.
    #[serde(with = "crate::units::duration")]
    pub settle: Duration,
    /// How many objects of a stream are known at once; the least recently used are forgotten.
    pub objects_max: u32,
    /// How many bytes of playlists and small objects of a stream are kept at once.
    #[serde(with = "crate::units::size")]
    pub small_bytes_max: ByteSize,
    /// How many bytes of memory what the playlists of a stream list may take; more are answered, and not followed.
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

    /// What changes at the source by itself, for a source that can tell. The first call has the receiver, later ones `None`.
    fn changes(&self) -> Option<mpsc::Receiver<Change>>;

    /// Where the URIs of playlists that are not relative lead into the stream, for a source that has a URL.
    fn base(&self) -> Option<&url::Url>;

    /// Whether what follows `?` selects another object.
    fn has_queries(&self) -> bool;
}

/// What an asynchronous method of an object-safe trait returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What to read.
#[derive(Debug, Clone)]
pub struct Fetch {
    /// The object.
    pub path: ObjectPath,
    /// Which bytes of it.
    pub want: Want,
    /// Answer [`Fetched::NotModified`] if the object still has these.
    pub known: Option<Validators>,
    /// What the parts had that are held already: a part of another version is of no use.
    pub part_of: Option<Validators>,
}

/// Which bytes of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// All of them, or [`Error::TooLarge`] if there are more than this.
    Whole(u64),
    /// All of them, or the first of them if there are more than this.
    Head(u64),
    /// An aligned part; it ends early where the object does.
    Part(Range<u64>),
    /// Bytes that a playlist lists; it is an error if the object ends before them. The object may grow behind them.
    Listed(Range<u64>),
}

/// The answer of a source.
#[derive(Debug, Clone)]
pub enum Fetched {
    /// The object is the one that was known.
    NotModified,
    /// Its bytes.
    Object(Object),
}

/// Bytes of an object.
#[derive(Debug, Clone)]
pub struct Object {
    /// The bytes asked for.
    pub bytes: Bytes,
    /// Where they start in the object.
    pub offset: u64,
    /// Bytes of the whole object, if the source said.
    pub length: Option<u64>,
    /// What tells one version of the object from the next.
    pub validators: Validators,
    /// The media type that the source gave it.
    pub content_type: Option<String>,
    /// When the object was complete at the source, as far as it can be known: its file closed, or its last byte read.
    pub complete: Instant,
}

/// What tells one version of an object from the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Validators {
    /// `ETag`, as the origin wrote it.
    pub etag: Option<String>,
    /// `Last-Modified`, as the origin wrote it.
    pub last_modified: Option<String>,
}

impl Validators {
    /// A number for this version of an object of this length; below 2^62, so that it fits a QUIC variable-length integer.
    pub fn version(&self, length: Option<u64>) -> u64 {
        let mut hasher = blake3::Hasher::new();
        for text in [&self.etag, &self.last_modified] {
            let text = text.as_deref();
            hasher.update(&[u8::from(text.is_some())]);
            hasher.update(&u64::try_from(text.map_or(0, str::len)).unwrap_or(u64::MAX).to_le_bytes());
            hasher.update(text.unwrap_or_default().as_bytes());
        }
        hasher.update(&[u8::from(length.is_some())]);
        hasher.update(&length.unwrap_or_default().to_le_bytes());
        let mut low = [0; 8];
        low.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        u64::from_le_bytes(low) >> 2
    }

    /// The tag by which an origin can tell whether a part is of the same bytes: a strong one (RFC 9110, section 13.1.5).
    pub fn strong(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| etag.starts_with('"'))
    }

    /// Whether there is anything to compare by.
    pub fn is_empty(&self) -> bool {
        self.etag.is_none() && self.last_modified.is_none()
    }
}

/// Something that happened at a source by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The object.
    pub path: ObjectPath,
    /// What happened to it.
    pub kind: ChangeKind,
}

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was there when watching began.
    Present,
    /// It is complete, new or with new content.
    Complete,
    /// It is being written: what was read of it before is out of date.
    Written,
    /// It is gone.
    Gone,
}

/// Why a source did not give the bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such object.
    #[error("the origin has no such object")]
    NotFound,
    /// The origin does not let this server have the object: 401, 403 or 407, or a file that it may not read.
    #[error("the origin denies the server access to this object: status {0}")]
    Forbidden(u16),
    /// The origin has too much to do: 429, or 503 with a time. When asking again makes sense, as far as it said.
    #[error("the origin is overloaded: status {0}")]
    Busy(u16, Option<Duration>),
    /// The origin answers, but not this.
    #[error("the origin refuses the request: status {0}")]
    Refused(u16),
    /// The origin has a fault.
    #[error("the origin failed: status {0}")]
    Unavailable(u16),
    /// No connection.
    #[error("the origin cannot be reached: {0}")]
    Connect(String),
    /// Too slow.
    #[error("the origin did not answer in time")]
    Timeout,
    /// The answer ended before it was complete.
    #[error("the origin's answer ended early: {0}")]
    Truncated(String),
    /// The answer is not as long as it must be.
    #[error("the origin's answer has the wrong length: {0}")]
    Length(String),
    /// The object is larger than it may be.
    #[error("the object is larger than {0} bytes")]
    TooLarge(u64),
    /// The range lies behind the end of the object.
    #[error("the object ends before the range{}", .0.map(|length| format!(" at {length} bytes")).unwrap_or_default())]
    OutOfRange(Option<u64>),
    /// The origin ignores ranges, without which large objects cannot be served.
    #[error("the origin does not support range requests")]
    NoRanges,
    /// A redirect to where this stream may not go, or one too many.
    #[error("the origin redirects {0}")]
    Redirect(String),
    /// The file is being written.
    #[error("the file is still being written")]
    Incomplete,
    /// The object is another than the parts of it that came before.
    #[error("the object changed at the origin while the server fetched its parts")]
    Changed,
    /// An answer that makes no sense.
    #[error("the origin's answer is invalid: {0}")]
    Protocol(String),
    /// The file system failed.
    #[error("the directory cannot be read: {0}")]
    Io(String),
}

impl Error {
    /// Whether asking again soon may help.
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

    /// What a peer is told.
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

    /// The status that the origin answered with, if it is that which is wrong.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Forbidden(status) | Self::Busy(status, _) | Self::Refused(status) | Self::Unavailable(status) => Some(*status),
            _ => None,
        }
    }

    /// When asking again makes sense, where a refusal is remembered for `age`.
    pub fn retry_after(&self, age: Duration) -> Option<Duration> {
        match self {
            Self::Busy(_, Some(after)) => Some((*after).max(age)),
            // It has answered so several times in a row: whoever asks at once again, and on whose behalf others do, makes many of that.
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

/// Tells the operator of a fetch that failed: one line in a while for one kind of fault.
fn complain(complaints: &RateLimited<(&'static str, u16)>, error: &Error, place: impl FnOnce() -> String) {
    let kind = (error.kind(), error.status().unwrap_or_default());
    let Some(more) = complaints.admit(kind, Instant::now()) else { return };
    let more = quiet::more(more);
    match error {
        Error::NotFound => tracing::info!("{}: {error}{more}", place()),
        _ => tracing::warn!("{}: {error}{more}", place()),
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
