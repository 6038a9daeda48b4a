//! The other end: fetch, decode, verify and hand over.
//!
//! A [`Client`] is a handle to one task (`driver`), which keeps a connection to a server, carries bytes between QUIC and
//! [`proto`], and gives full decoders to the blocking pool: no payload is multiplied on an async worker. Whoever holds a client
//! may open objects; what several ask for at once is fetched once, and what was verified stays in a cache of bounded size. No byte
//! is handed out before the segment that it lies in has the hash that names it.
//!
//! When full: a reader that does not read stops its own object after one part; the cache drops what was used longest ago;
//! prefetches beyond the bound are dropped; everything else waits.

mod cache;
mod client;
mod driver;
pub mod http;
pub mod playlist;
pub mod proto;
                (host, port.strip_prefix(':').or_else(|| port.is_empty().then_some("")))
                None => (place, Some("")),
                Some((host, port)) => (host, Some(port)),
                host.parse::<std::net::Ipv6Addr>().map_err(|_| fault())?;
                let (host, port) = rest.split_once(']').ok_or_else(fault)?;
            "" => DEFAULT_PORT,
            "" if place.ends_with(':') => return Err(fault()),
            ("127.0.0.1:1", "127.0.0.1", 1),
            ("[::1]", "::1", DEFAULT_PORT),
            ("ncs://[::1]:7/", "::1", 7),
            ("ncs://example.org", "example.org", DEFAULT_PORT),
            ("ncs://example.org:4000", "example.org", 4000),
            Failure::Deadline => Self::Deadline,
            Failure::Refused(refusal) => Self::Refused(refusal),
            Failure::Stalled => Self::Stalled,
            None => match place.split_once(':') {
            Some(rest) => {
            answer_timeout: Duration::from_secs(30),
            assert!(text.parse::<Server>().is_err(), "{text}");
            assert_eq!((server.host.as_str(), server.port), (host, port));
            assert_eq!(server.to_string().parse(), Ok(server));
            cache: ByteSize::mib(64),
            connect_timeout: Duration::from_secs(10),
            datagrams: true,
            deadline: None,
            digits => digits.parse().map_err(|_| fault())?,
            let server: Server = text.parse().unwrap();
            prefetches_max: 8,
            reconnect_max: Duration::from_secs(8),
            requests_max: 64,
            return Err(fault());
            servers: vec![server],
            stall_timeout: Duration::from_secs(30),
            trust,
            window: (ByteSize::kib(256), ByteSize::mib(16)),
            write!(f, "ncs://[{}]:{}", self.host, self.port)
            write!(f, "ncs://{}:{}", self.host, self.port)
            }
            },
        Ok(Self { host: host.to_owned(), port })
        Self {
        ] {
        for (text, host, port) in [
        for text in ["", "ncs://", "http://a/b", "a:b", "a:", "[::1", "[x]:1", "a b", "ncs://a/b", "a:70000"] {
        if host.is_empty() || !host.bytes().all(valid) {
        if self.host.contains(':') {
        let (host, port) = match place.strip_prefix('[') {
        let fault = || ParseServerError(text.to_owned());
        let place = place.strip_suffix('/').unwrap_or(place);
        let place = text.strip_prefix("ncs://").unwrap_or(text);
        let port = match port.ok_or_else(fault)? {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'%');
        match failure {
        }
        } else {
        };
    #[error("`{0}` is not a path")]
    #[error("no connection: {0}")]
    #[error("nothing came for too long")]
    #[error("refused: {}", if .0.reason.is_empty() { format!("{:?}", .0.code).to_lowercase() } else { .0.reason.clone() })]
    #[error("the bytes that came are not those of the segment")]
    #[error("the client is closed")]
    #[error("the object changed at its origin")]
    #[error("the range lies outside the object's {0} bytes")]
    #[error("too late")]
    #[error("{0}")]
    #[test]
    /// Blocks that were asked for and came.
    /// Bytes of UDP that came, headers and encryption included.
    /// Bytes of blocks a second at present.
    /// Bytes of credit in flight, at least and at most: between them it follows the path.
    /// Connections that were lost and made again.
    /// Datagrams lost on the way.
    /// Generations asked for at the same time, at most.
    /// Generations decoded.
    /// Generations under way.
    /// How long a connection attempt may take, name look-up and HELLO included.
    /// How long a segment may make no progress before it is given up.
    /// How long the answer to a path may take; the server may have to ask its origin.
    /// It was not complete in time.
    /// Lost datagrams that other blocks made up for.
    /// Name or address, an IPv6 one without brackets.
    /// Not a path that can be asked for.
    /// Nothing came for too long.
    /// One server with everything else as it usually is.
    /// Prefetches at the same time; more are dropped.
    /// Reads `ncs://host:port`; scheme and port may be left out.
    /// Segments and whole objects with a wrong one.
    /// Segments and whole objects with the right hash.
    /// Servers of the same content. The first that answers is used; when it is lost, the next.
    /// Share of the datagrams that are lost at present.
    /// The bytes do not have the hash that names them, twice.
    /// The client's task has ended.
    /// The configuration does not work.
    /// The longest pause between attempts to connect again.
    /// The object changed at the origin between two of its parts.
    /// The range does not lie in the object.
    /// The round trip.
    /// The server said so.
    /// There is no connection, and none could be made.
    /// Those that are source blocks.
    /// Those that brought nothing.
    /// Those that brought something.
    /// Those that came after their generation was complete.
    /// UDP port.
    /// Verified bytes.
    /// Verified segments kept in memory.
    /// Whether a connection stands.
    /// Whether blocks may come in datagrams.
    /// Which certificate the server may show.
    /// Within which time a segment is of use; `None` waits as long as it progresses.
    Changed,
    Closed,
    Connection(String),
    Corrupt,
    Deadline,
    Path(String),
    Range(u64),
    Refused(Refusal),
    Setup(String),
    Stalled,
    pub answer_timeout: Duration,
    pub blocks_innovative: u64,
    pub blocks_late: u64,
    pub blocks_received: u64,
    pub blocks_repaired: u64,
    pub blocks_systematic: u64,
    pub blocks_useless: u64,
    pub bytes: u64,
    pub cache: ByteSize,
    pub connect_timeout: Duration,
    pub connected: bool,
    pub datagrams: bool,
    pub datagrams_lost: u64,
    pub deadline: Option<Duration>,
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    fn from(failure: Failure) -> Self {
    fn from_str(text: &str) -> Result<Self, ParseServerError> {
    pub fn new(server: Server, trust: Trust) -> Self {
    fn servers_are_read_and_written() {
    pub generations: u64,
    pub host: String,
    pub loss: f64,
    pub port: u16,
    pub prefetches_max: usize,
    pub progress: Vec<Progress>,
    pub rate: f64,
    pub reconnect_max: Duration,
    pub reconnects: u64,
    pub requests_max: u16,
    pub rtt: Duration,
    pub segments_corrupt: u64,
    pub segments_verified: u64,
    pub servers: Vec<Server>,
    pub stall_timeout: Duration,
    pub trust: Trust,
    type Err = ParseServerError;
    use super::*;
    pub window: (ByteSize, ByteSize),
    pub wire_bytes: u64,
    }
#[cfg(test)]
#[derive(Debug, Clone)]
#[derive(Debug, Clone, Default)]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no server address such as ncs://host:4443")]
/// A text that names no server.
/// What a client connects to and how much it takes.
/// What has become of the work so far.
/// Where a server is.
/// Why an object cannot be had.
pub enum Error {
impl Config {
impl From<Failure> for Error {
impl FromStr for Server {
impl fmt::Display for Server {
mod tests {
pub struct Config {
pub struct ParseServerError(String);
pub struct Server {
pub struct Stats {
use bytesize::ByteSize;
pub use client::{Client, Meta, Object};
use crate::object::Refusal;
use crate::tls::Trust;
use crate::wire::DEFAULT_PORT;
use proto::{Failure, Progress};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
}
