//! The client: fetches, decodes, verifies and hands over objects.
//!
//! A [`Client`] is a handle to one task (`driver`), which keeps a connection to each of its servers
//! and carries bytes between QUIC and [`proto`]. Complete decoders go to the blocking pool, or to a
//! device if one is given: no async worker multiplies payloads. Any holder of a client may open
//! objects. Concurrent requests share one fetch, and verified data stays in a cache of bounded
//! size. No byte is handed out before its segment, or its group of the hash tree, is verified.
//!
//! When full: a reader that does not read stops its own object after one part; the cache drops the
//! least recently used; prefetches beyond the limit are dropped; everything else waits.
//!
//! Features: `gateway` serves players over HTTP, `relay` serves other peers, `cli` is the program
//! `ncpeer`, and `cuda` decodes on GPUs. An application that embeds a client needs none of them.

// They panic when the reader is gone: use `console` for both outputs.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod bulk;
#[cfg(feature = "cli")]
pub mod cli;
mod client;
mod driver;
#[cfg(feature = "cli")]
pub mod fetch;
mod flow;
#[cfg(feature = "gateway")]
pub mod gateway;
pub mod http;
#[cfg(feature = "cli")]
pub mod info;
mod keys;
#[cfg(feature = "gateway")]
mod manifest;
mod metrics;
pub mod neighbours;
#[cfg(feature = "cli")]
mod pause;
#[cfg(feature = "gateway")]
pub mod playlist;
#[cfg(feature = "relay")]
pub mod relay;
mod token;

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bytesize::ByteSize;

pub use client::{Client, Meta, Object};
pub use keys::KnownKeys;
pub use metrics::Metrics;
pub use ncs_proto::peer as proto;
pub use token::TokenSource;

use ncs_codec::block::Block;
use ncs_device::Device;
use ncs_net::endpoint::Congestion;
use ncs_net::tls::{ClientPair, Fingerprint, Trust};
use ncs_proto::integrity::hashes::BlockHashes;
use ncs_proto::object::Refusal;
use ncs_proto::wire::DEFAULT_PORT;
use ncs_proto::wire::message::{self, Alternate, Hello};
use proto::{Cut, Failure, Progress, SourceCounts, SourceId};

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Server {
    /// Name or address; IPv6 without brackets.
    pub host: String,
    /// UDP port.
    pub port: u16,
    /// The certificate that it has to show; without this the client's [`Trust`] decides.
    pub fingerprint: Option<Fingerprint>,
}

impl Server {
    /// Its address as a URL, without the fingerprint.
    pub fn address(&self) -> String {
        format!("ncs://{}", self.place())
    }

    /// Host and port.
    fn place(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        }
    }
}

/// As ALTERNATES names it.
impl From<&Server> for Alternate {
    fn from(server: &Server) -> Self {
        Self {
            address: server.place(),
            identity: server.fingerprint.map(|pin| *pin.as_bytes()),
        }
    }
}

impl TryFrom<&Alternate> for Server {
    type Error = ParseServerError;

    fn try_from(named: &Alternate) -> Result<Self, ParseServerError> {
        Ok(Self {
            fingerprint: named.identity.map(Fingerprint::from_bytes),
            ..named.address.parse()?
        })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address())?;
        self.fingerprint
            .map_or(Ok(()), |fingerprint| write!(f, "#{fingerprint}"))
    }
}

impl FromStr for Server {
    type Err = ParseServerError;

    /// Parses `ncs://host:port#fingerprint`; all but the host may be omitted.
    fn from_str(text: &str) -> Result<Self, ParseServerError> {
        let fault = || ParseServerError(text.to_owned());
        let place = text.strip_prefix("ncs://").unwrap_or(text);
        let (place, fingerprint) = match place.split_once('#') {
            Some((place, hex)) => (place, Some(hex.parse().map_err(|_| fault())?)),
            None => (place, None),
        };
        let place = place.strip_suffix('/').unwrap_or(place);
        let (host, port) = match place.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(fault)?;
                host.parse::<std::net::Ipv6Addr>().map_err(|_| fault())?;
                (
                    host,
                    port.strip_prefix(':')
                        .or_else(|| port.is_empty().then_some("")),
                )
            }
            None => match place.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (place, Some("")),
            },
        };
        let port = match port.ok_or_else(fault)? {
            "" if place.ends_with(':') => return Err(fault()),
            "" => DEFAULT_PORT,
            digits => digits.parse().map_err(|_| fault())?,
        };
        let valid = |byte: u8| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'%')
        };
        if host.is_empty() || !host.bytes().all(valid) {
            return Err(fault());
        }
        Ok(Self {
            host: host.to_owned(),
            port,
            fingerprint,
        })
    }
}

/// The text is not a server address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a server address: expected ncs://HOST[:PORT][#FINGERPRINT], such as \
     ncs://media.example:4443"
)]
pub struct ParseServerError(String);

/// The servers of a client, and its limits.
#[derive(Debug, Clone)]
pub struct Config {
    /// Servers and relays of the same content, all used at the same time.
    pub servers: Vec<Server>,
    /// The certificates accepted from servers without a fingerprint.
    pub trust: Trust,
    /// The certificate for servers that ask for one.
    pub certificate: Option<ClientPair>,
    /// The token for the first server, and for those in `entrusted`. Every server that gets it
    /// could use it.
    pub token: Option<TokenSource>,
    /// Other servers that get the token.
    pub entrusted: Vec<Server>,
    /// Known keys of streams. For other streams the first server names the key.
    pub keys: proto::Keys,
    /// Whether blocks may arrive in datagrams.
    pub datagrams: bool,
    /// The congestion controller of this side, which sends little.
    pub congestion: Congestion,
    /// The maximum time of a connection attempt, including name resolution; HELLO may take as long
    /// again.
    pub connect_timeout: Duration,
    /// The maximum pause between attempts to reconnect. Exception: a server that requires a missing
    /// token is tried rarely until it is needed.
    pub reconnect_max: Duration,
    /// The maximum time for the answer to a path; the server may have to ask its origin.
    pub answer_timeout: Duration,
    /// The maximum time without progress of a segment.
    pub stall_timeout: Duration,
    /// The minimum rate in bytes per second, over that time, of the segments fetched first; `None`
    /// for no minimum.
    pub rate_min: Option<ByteSize>,
    /// The time within which a segment is useful; `None` waits as long as it progresses.
    pub deadline: Option<Duration>,
    /// The cache of verified segments.
    pub cache: ByteSize,
    /// Memory for the metadata of objects.
    pub metas: ByteSize,
    /// Minimum and maximum credit in flight, in bytes; in between it follows the path. The first
    /// request of a segment that somebody waits for may exceed it, up to twice.
    pub window: (ByteSize, ByteSize),
    /// Memory for blocks kept until their segments are verified, to identify the sender of a wrong
    /// one; used if sources other than the first server send blocks.
    pub rows: ByteSize,
    /// The maximum number of generations requested at once.
    pub requests_max: u16,
    /// The maximum number of prefetches at once; more are dropped.
    pub prefetches_max: usize,
    /// Whether the client goes to other servers that servers name. Otherwise it asks not to be sent
    /// on.
    pub follows: bool,
    /// The maximum number of peers, named by servers, that are used at once; 0 for none.
    pub neighbours_max: usize,
    /// Whether servers may name peers at private addresses and on this machine.
    pub private_neighbours: bool,
    /// The device that decodes, several generations at a time; without one, the CPU decodes each as
    /// soon as it is complete.
    pub device: Option<Device>,
    /// The receiver of every innovative block.
    pub listener: Option<Arc<dyn Listener>>,
}

/// Receives blocks as they arrive, to pass them on.
pub trait Listener: fmt::Debug + Send + Sync {
    /// An innovative block has arrived; `is_checked` if it is known to be right. Called by the task
    /// that receives all blocks: it must not wait.
    fn brought(&self, cut: &Cut, generation: u32, source: SourceId, block: Block, is_checked: bool);

    /// All received blocks of a generation were tested; `rows` are the right ones. It must not
    /// wait.
    fn checked(&self, cut: &Cut, generation: u32, rows: Vec<Block>);

    /// The signed hashes of a segment's blocks have arrived, for tests over the prime field. It
    /// must not wait.
    fn hashed(&self, _cut: &Cut, _hashes: BlockHashes) {}

    /// The fetch of a segment begins.
    fn begun(&self, _meta: &Arc<message::Meta>) {}

    /// The fetch of a segment has ended, with its verified bytes or without.
    fn ended(&self, _cut: &Cut, _bytes: Option<&Bytes>) {}
}

impl Config {
    /// One server, and defaults for the rest.
    pub fn new(server: Server, trust: Trust) -> Self {
        Self {
            servers: vec![server],
            trust,
            certificate: None,
            token: None,
            entrusted: Vec::new(),
            keys: proto::Keys::default(),
            datagrams: true,
            congestion: Congestion::default(),
            connect_timeout: Duration::from_secs(10),
            reconnect_max: Duration::from_secs(8),
            answer_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            rate_min: Some(ByteSize::kib(1)),
            deadline: None,
            cache: ByteSize::mib(64),
            metas: ByteSize::mib(32),
            window: (ByteSize::kib(256), ByteSize::mib(16)),
            rows: ByteSize::mib(128),
            requests_max: 64,
            prefetches_max: 8,
            follows: true,
            neighbours_max: 0,
            private_neighbours: false,
            device: None,
            listener: None,
        }
    }
}

/// Statistics of a client.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Whether any server is connected.
    pub connected: bool,
    /// The address of the first connected server, or the last known one.
    pub address: Option<SocketAddr>,
    /// The HELLO of that server.
    pub server: Option<Hello>,
    /// Connections that were lost and made again.
    pub reconnects: u64,
    /// Requested blocks that arrived.
    pub blocks_received: u64,
    /// Of these, innovative ones.
    pub blocks_innovative: u64,
    /// Redundant ones.
    pub blocks_useless: u64,
    /// Blocks that arrived after their generation was complete.
    pub blocks_late: u64,
    /// Source blocks.
    pub blocks_systematic: u64,
    /// Blocks requested again from another server, because theirs was silent or had become far
    /// slower.
    pub blocks_reassigned: u64,
    /// Datagrams lost.
    pub datagrams_lost: u64,
    /// Lost datagrams replaced by other blocks.
    pub blocks_repaired: u64,
    /// Blocks requested in advance, because a deadline left no time to repeat lost ones.
    pub blocks_ahead: u64,
    /// Of these, the minimum number that replaced lost ones.
    pub blocks_ahead_used: u64,
    /// Generations that these completed without another round trip.
    pub generations_spared: u64,
    /// Generations received completely.
    pub generations: u64,
    /// Of these, decoded block by block because of a near deadline.
    pub generations_progressive: u64,
    /// Of these, decoded by a device.
    pub generations_on_device: u64,
    /// Back end and kernel of the last one decoded by a device.
    pub device: Option<(&'static str, &'static str)>,
    /// Segments and whole objects with the right hash.
    pub segments_verified: u64,
    /// Segments and whole objects with a wrong hash.
    pub segments_corrupt: u64,
    /// Segments with a wrong hash that were repaired: the wrong blocks were found, dropped and
    /// replaced.
    pub segments_mended: u64,
    /// Blocks over the prime field tested by homomorphic hashes.
    pub blocks_tested: u64,
    /// Batches of these tests.
    pub tests: u64,
    /// Blocks proved wrong, and dropped.
    pub blocks_wrong: u64,
    /// Sources no longer used, because they sent wrong blocks as their own, or forged answers.
    pub polluters: u64,
    /// Bytes of blocks kept until their segments are verified.
    pub rows_bytes: u64,
    /// Verified bytes.
    pub bytes: u64,
    /// Payload bytes of requested blocks.
    pub payload_bytes: u64,
    /// Of these, from peers that a server has named.
    pub neighbour_bytes: u64,
    /// UDP bytes received, including headers and encryption.
    pub wire_bytes: u64,
    /// The round trip to the first connected server.
    pub rtt: Duration,
    /// The present loss rate of datagrams.
    pub loss: f64,
    /// The present rate of blocks, in bytes per second.
    pub rate: f64,
    /// The total time of past outages, in which no server could send.
    pub outages: Duration,
    /// Generations in progress.
    pub progress: Vec<Progress>,
    /// Every server, in the order of the configuration.
    pub sources: Vec<SourceStats>,
}

/// Statistics of one server.
#[derive(Debug, Clone)]
pub struct SourceStats {
    /// Its address.
    pub server: Server,
    /// Its HELLO, while it is connected and accepts requests.
    pub hello: Option<Hello>,
    /// SHA-256 of its certificate.
    pub identity: Option<Fingerprint>,
    /// Its resolved address, while connected.
    pub address: Option<SocketAddr>,
    /// The round trip.
    pub rtt: Duration,
    /// Counts of its blocks, and the state of the path.
    pub counts: SourceCounts,
}

/// Why an object is not available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused it.
    #[error(
        "refused: {}",
        if .0.reason.is_empty() { .0.code.name().to_owned() } else { .0.reason.clone() },
    )]
    Refused(Refusal),
    /// The deadline has passed.
    #[error("the deadline passed before the segment was complete")]
    Deadline,
    /// Nothing arrived for too long; contains the last fault, if there was one.
    #[error("{}", .0.as_deref().unwrap_or("timed out: no data arrived"))]
    Stalled(Option<String>),
    /// The one source that was asked is gone.
    #[error("the server is gone")]
    Gone,
    /// The rate was too low for too long.
    #[error("too slow: the transfer stayed below the minimum rate")]
    Slow,
    /// There is no connection, and none could be made.
    #[error("no connection: {0}")]
    Connection(String),
    /// The client rejects the server's certificate.
    #[error("no connection: {0}")]
    Untrusted(String),
    /// The hash was wrong twice.
    #[error("the decoded bytes do not match the segment's hash")]
    Corrupt,
    /// The object changed at the origin between two of its parts.
    #[error("the object changed at the origin during the transfer")]
    Changed,
    /// The object is incomplete: nothing is available from this byte on.
    #[error("the object is incomplete: the server has nothing from byte {0} on")]
    Missing(u64),
    /// The path is invalid.
    #[error("`{0}` is not a valid path")]
    Path(String),
    /// The range is outside the object.
    #[error("the range is outside the object, which has {0} bytes")]
    Range(u64),
    /// The configuration is unusable.
    #[error("{0}")]
    Setup(String),
    /// The client's task has ended.
    #[error("the client is closed")]
    Closed,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(refusal) => Self::Refused(refusal),
            Failure::Deadline => Self::Deadline,
            Failure::Stalled => Self::Stalled(None),
            Failure::Gone => Self::Gone,
            Failure::Slow => Self::Slow,
            Failure::Corrupt => Self::Corrupt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_without_a_reason_is_told_by_its_name() {
        let error = |reason: &str| {
            let (code, reason) = (ncs_proto::object::RefusalCode::GoingAway, reason.to_owned());
            Error::Refused(Refusal {
                code,
                retry_after: None,
                reason,
            })
            .to_string()
        };
        assert_eq!(
            (error(""), error("gone")),
            ("refused: GOING_AWAY".to_owned(), "refused: gone".to_owned())
        );
    }

    #[test]
    fn servers_are_read_and_written() {
        for (text, host, port) in [
            ("ncs://example.org:4000", "example.org", 4000),
            ("ncs://example.org", "example.org", DEFAULT_PORT),
            ("ncs://[::1]:7/", "::1", 7),
            ("[::1]", "::1", DEFAULT_PORT),
            ("127.0.0.1:1", "127.0.0.1", 1),
        ] {
            let server: Server = text.parse().unwrap();
            assert_eq!(
                (server.host.as_str(), server.port, server.fingerprint),
                (host, port, None)
            );
            assert_eq!(server.to_string().parse(), Ok(server.clone()));
            let pinned: Server = format!("{text}#{}", "ab".repeat(32)).parse().unwrap();
            assert_eq!(
                (&pinned.host, pinned.port, pinned.fingerprint.is_some()),
                (&server.host, port, true)
            );
            assert_eq!(pinned.to_string().parse(), Ok(pinned));
        }
        for text in [
            "",
            "ncs://",
            "http://a/b",
            "a:b",
            "a:",
            "[::1",
            "[x]:1",
            "a b",
            "ncs://a/b",
            "a:70000",
            "a#",
            "a#00",
            "#",
        ] {
            assert!(text.parse::<Server>().is_err(), "{text}");
        }
    }
}
