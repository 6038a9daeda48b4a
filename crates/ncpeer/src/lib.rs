//! The other end: fetch, decode, verify and hand over.
//!
//! A [`Client`] is a handle to one task (`driver`), which keeps a connection to each of its servers, carries bytes between QUIC and
//! [`proto`], and gives full decoders to the blocking pool, or to a device where it is given one: no payload is multiplied on an
//! async worker. Whoever holds a client
//! may open objects; what several ask for at once is fetched once, and what was verified stays in a cache of bounded size. No byte
//! is handed out before the segment that it lies in has the hash that names it.
//!
//! When full: a reader that does not read stops its own object after one part; the cache drops what was used longest ago;
//! prefetches beyond the bound are dropped; everything else waits.
//!
//! Features: `gateway` serves players over HTTP, `relay` serves other peers, `cli` is the program
//! `ncpeer`, `cuda` has GPUs decode. An application that embeds a client needs none of them.

// They panic where nobody reads: `console` has the words for both outputs.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod assembly;
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
use ncs_proto::wire::message::{self, Hello};
use proto::{Cut, Failure, Progress, SourceCounts, SourceId};

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Server {
    /// Name or address, an IPv6 one without brackets.
    pub host: String,
    /// UDP port.
    pub port: u16,
    /// The certificate that it has to show, where it is not the client's [`Trust`] that decides.
    pub fingerprint: Option<Fingerprint>,
}

impl Server {
    /// Where it is, whatever certificate it has to show.
    pub fn address(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("ncs://[{host}]:{port}") } else { format!("ncs://{host}:{port}") }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address())?;
        self.fingerprint.map_or(Ok(()), |fingerprint| write!(f, "#{fingerprint}"))
    }
}

impl FromStr for Server {
    type Err = ParseServerError;

    /// Reads `ncs://host:port#fingerprint`; all but the host may be left out.
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
                (host, port.strip_prefix(':').or_else(|| port.is_empty().then_some("")))
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
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'%');
        if host.is_empty() || !host.bytes().all(valid) {
            return Err(fault());
        }
        Ok(Self { host: host.to_owned(), port, fingerprint })
    }
}

/// A text that names no server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a server address: expected ncs://HOST[:PORT][#FINGERPRINT], such as ncs://media.example:4443")]
pub struct ParseServerError(String);

/// What a client connects to and how much it takes.
#[derive(Debug, Clone)]
pub struct Config {
    /// Servers and relays of the same content, all of which are used at the same time.
    pub servers: Vec<Server>,
    /// Which certificates servers may show that name none themselves.
    pub trust: Trust,
    /// The certificate to show where a server asks for one.
    pub certificate: Option<ClientPair>,
    /// The token to bring: to the first server, and to those named in `entrusted`. Whoever gets it could use it.
    pub token: Option<TokenSource>,
    /// Servers besides the first that get the token, too.
    pub entrusted: Vec<Server>,
    /// Keys that streams are known to be signed with. Of others the first server names it.
    pub keys: proto::Keys,
    /// Whether blocks may come in datagrams.
    pub datagrams: bool,
    /// What decides how fast it sends; a client sends little.
    pub congestion: Congestion,
    /// How long a connection attempt may take, name look-up included; HELLO may take as long again.
    pub connect_timeout: Duration,
    /// The longest pause between attempts to connect again; at a server that wants a token which there is not, while something is asked of it.
    pub reconnect_max: Duration,
    /// How long the answer to a path may take; the server may have to ask its origin.
    pub answer_timeout: Duration,
    /// How long a segment may make no progress before it is given up.
    pub stall_timeout: Duration,
    /// Bytes a second that are to come over that time of what is fetched first, or it is given up; `None` puts up with everything.
    pub rate_min: Option<ByteSize>,
    /// Within which time a segment is of use; `None` waits as long as it progresses.
    pub deadline: Option<Duration>,
    /// Verified segments kept in memory.
    pub cache: ByteSize,
    /// Bytes of credit in flight, at least and at most: between them it follows the path.
    pub window: (ByteSize, ByteSize),
    /// Blocks kept until their segments are verified, at most, to tell who sent a wrong one: where others than the first server send them.
    pub rows: ByteSize,
    /// Generations asked for at the same time, at most.
    pub requests_max: u16,
    /// Prefetches at the same time; more are dropped.
    pub prefetches_max: usize,
    /// Peers that servers name, drawn on at the same time at most; none without any.
    pub neighbours_max: usize,
    /// Whether a server may name peers at addresses of private networks and of this machine.
    pub private_neighbours: bool,
    /// What decodes, several generations at a time; without one each is decoded here as soon as it is complete.
    pub device: Option<Device>,
    /// Who is told of every block that brings something.
    pub listener: Option<Arc<dyn Listener>>,
}

/// Who passes blocks on as they come.
pub trait Listener: fmt::Debug + Send + Sync {
    /// A block has come that brought something; `is_checked` if it is known to be right. Called by the task that carries all blocks: it must
    /// not wait.
    fn brought(&self, cut: &Cut, generation: u32, source: SourceId, block: Block, is_checked: bool);

    /// All blocks of a generation that had come have been tested, and `rows` are those that are right. It must not wait.
    fn checked(&self, cut: &Cut, generation: u32, rows: Vec<Block>);

    /// The hashes of a segment's blocks have come, by which blocks over the prime field are tested: those that it was named with. It must not wait.
    fn hashed(&self, _cut: &Cut, _hashes: BlockHashes) {}

    /// A segment is going to be fetched.
    fn begun(&self, _meta: &Arc<message::Meta>) {}

    /// A segment that was fetched is there, verified, or could not be had.
    fn ended(&self, _cut: &Cut, _bytes: Option<&Bytes>) {}
}

impl Config {
    /// One server with everything else as it usually is.
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
            window: (ByteSize::kib(256), ByteSize::mib(16)),
            rows: ByteSize::mib(128),
            requests_max: 64,
            prefetches_max: 8,
            neighbours_max: 0,
            private_neighbours: false,
            device: None,
            listener: None,
        }
    }
}

/// What has become of the work so far.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Whether any connection stands.
    pub connected: bool,
    /// Where the server is that the first of them leads to, or led to last.
    pub address: Option<SocketAddr>,
    /// What that server said of itself.
    pub server: Option<Hello>,
    /// Connections that were lost and made again.
    pub reconnects: u64,
    /// Blocks that were asked for and came.
    pub blocks_received: u64,
    /// Those that brought something.
    pub blocks_innovative: u64,
    /// Those that brought nothing.
    pub blocks_useless: u64,
    /// Those that came after their generation was complete.
    pub blocks_late: u64,
    /// Those that are source blocks.
    pub blocks_systematic: u64,
    /// Blocks asked of another server because the one that had them to send was silent, or far slower than it had been.
    pub blocks_reassigned: u64,
    /// Datagrams lost on the way.
    pub datagrams_lost: u64,
    /// Lost datagrams that other blocks made up for.
    pub blocks_repaired: u64,
    /// Blocks asked for ahead of need, because a deadline left no time to ask again for what the path would lose.
    pub blocks_ahead: u64,
    /// Those of them, at least, that stood in for others that were lost.
    pub blocks_ahead_used: u64,
    /// Generations that these completed without another round trip.
    pub generations_spared: u64,
    /// Generations that came in full.
    pub generations: u64,
    /// Those of them that were decoded block by block, because their deadline was near.
    pub generations_progressive: u64,
    /// Those of them that a device has decoded.
    pub generations_on_device: u64,
    /// Back end and kernel that decoded the last of these.
    pub device: Option<(&'static str, &'static str)>,
    /// Segments and whole objects with the right hash.
    pub segments_verified: u64,
    /// Segments and whole objects with a wrong one.
    pub segments_corrupt: u64,
    /// Segments with a wrong one that were mended: the wrong blocks were found, dropped and made up for.
    pub segments_mended: u64,
    /// Blocks over the prime field that were tested by homomorphic hashes.
    pub blocks_tested: u64,
    /// Batches in which they were.
    pub tests: u64,
    /// Blocks that were proved wrong, and dropped.
    pub blocks_wrong: u64,
    /// Servers that sent such as their own, or forged answers, and are not used any more.
    pub polluters: u64,
    /// Bytes of blocks kept at present until their segments are verified.
    pub rows_bytes: u64,
    /// Verified bytes.
    pub bytes: u64,
    /// Bytes of payload in blocks that were asked for.
    pub payload_bytes: u64,
    /// Those of them that came from peers that a server has named.
    pub neighbour_bytes: u64,
    /// Bytes of UDP that came, headers and encryption included.
    pub wire_bytes: u64,
    /// The round trip to that server.
    pub rtt: Duration,
    /// Share of the datagrams that are lost at present.
    pub loss: f64,
    /// Bytes of blocks a second at present.
    pub rate: f64,
    /// How long no server could send anything, in all: outages that are over.
    pub outages: Duration,
    /// Generations under way.
    pub progress: Vec<Progress>,
    /// Every server, in the order of the configuration.
    pub sources: Vec<SourceStats>,
}

/// What has become of the work with one server.
#[derive(Debug, Clone)]
pub struct SourceStats {
    /// Which it is.
    pub server: Server,
    /// What it said of itself, while it is connected and takes requests.
    pub hello: Option<Hello>,
    /// SHA-256 of the certificate that it has shown.
    pub identity: Option<Fingerprint>,
    /// Where it is, while a connection stands.
    pub address: Option<SocketAddr>,
    /// The round trip.
    pub rtt: Duration,
    /// Its blocks, and the path.
    pub counts: SourceCounts,
}

/// Why an object cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server said so.
    #[error("refused: {}", if .0.reason.is_empty() { .0.code.name().to_owned() } else { .0.reason.clone() })]
    Refused(Refusal),
    /// It was not complete in time.
    #[error("the deadline passed before the segment was complete")]
    Deadline,
    /// Nothing came for too long; with what had gone wrong last, if anything had.
    #[error("{}", .0.as_deref().unwrap_or("timed out: no data arrived"))]
    Stalled(Option<String>),
    /// So little came for so long that it was given up.
    #[error("too slow: the transfer stayed below the minimum rate")]
    Slow,
    /// There is no connection, and none could be made.
    #[error("no connection: {0}")]
    Connection(String),
    /// The bytes do not have the hash that names them, twice.
    #[error("the decoded bytes do not match the segment's hash")]
    Corrupt,
    /// The object changed at the origin between two of its parts.
    #[error("the object changed at the origin during the transfer")]
    Changed,
    /// Parts of the object are there, and those from this byte on are not.
    #[error("the object is incomplete: the server has nothing from byte {0} on")]
    Missing(u64),
    /// Not a path that can be asked for.
    #[error("`{0}` is not a valid path")]
    Path(String),
    /// The range does not lie in the object.
    #[error("the range is outside the object, which has {0} bytes")]
    Range(u64),
    /// The configuration does not work.
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
            Error::Refused(Refusal { code, retry_after: None, reason }).to_string()
        };
        assert_eq!((error(""), error("gone")), ("refused: GOING_AWAY".to_owned(), "refused: gone".to_owned()));
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
            assert_eq!((server.host.as_str(), server.port, server.fingerprint), (host, port, None));
            assert_eq!(server.to_string().parse(), Ok(server.clone()));
            let pinned: Server = format!("{text}#{}", "ab".repeat(32)).parse().unwrap();
            assert_eq!((&pinned.host, pinned.port, pinned.fingerprint.is_some()), (&server.host, port, true));
            assert_eq!(pinned.to_string().parse(), Ok(pinned));
        }
        for text in ["", "ncs://", "http://a/b", "a:b", "a:", "[::1", "[x]:1", "a b", "ncs://a/b", "a:70000", "a#", "a#00", "#"] {
            assert!(text.parse::<Server>().is_err(), "{text}");
        }
    }
}
