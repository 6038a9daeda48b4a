//! What a peer may do in one session, and how much is prepared for it.

use std::time::Duration;

use crate::object::Shape;
use crate::wire::MINOR;
use crate::wire::message::{Codecs, Hello};

/// What a peer may do in one session, and how much is prepared for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// The name of the server's program.
    pub agent: &'static str,
    /// Most open requests, one for each generation under way; and most queries without an answer.
    pub requests_max: u16,
    /// Most blocks of unspent credit of a request.
    pub credit_max: u32,
    /// Most streams whose new segments are announced to one peer.
    pub subscriptions_max: u16,
    /// Most segments for which a session remembers the path that it has named to its peer.
    pub known_segments_max: u16,
    /// Blocks of one request that are encoded ahead of those that have left.
    pub window_blocks: u32,
    /// Bytes of control frames that are read from a peer in a second. More have to wait.
    pub control_bytes_per_second: u64,
    /// Queries that are taken from a peer in a second, REQUESTs included; a GET or SUBSCRIBE counts
    /// as four. More have to wait.
    pub questions_per_second: u32,
    /// The same for all peers of an address. A peer with few queries is not held up.
    pub address_questions_per_second: u32,
    /// The same for all peers of a token or client certificate.
    pub token_questions_per_second: u32,
    /// A request without new credit ends after this time.
    pub stall_timeout: Duration,
    /// Most bytes that one session keeps in memory: segments by its requests, and objects and
    /// hashes on their way to it. A single one may be larger.
    pub leased_bytes_max: u64,
    /// The same for all peers of an address.
    pub address_leased_bytes_max: u64,
    /// The same for all peers of a token or client certificate.
    pub token_leased_bytes_max: u64,
    /// How long a new connection may take to send HELLO.
    pub hello_timeout: Duration,
    /// Whether blocks travel in datagrams where they fit.
    pub datagrams: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            agent: concat!("ncs-proto/", env!("CARGO_PKG_VERSION")),
            requests_max: 32,
            credit_max: 2048,
            subscriptions_max: 8,
            known_segments_max: 64,
            window_blocks: 64,
            control_bytes_per_second: 1 << 20,
            questions_per_second: 4000,
            address_questions_per_second: 40_000,
            token_questions_per_second: 40_000,
            stall_timeout: Duration::from_secs(10),
            leased_bytes_max: 64 << 20,
            address_leased_bytes_max: 128 << 20,
            token_leased_bytes_max: 128 << 20,
            hello_timeout: Duration::from_secs(10),
            datagrams: true,
        }
    }
}

impl Config {
    /// HELLO of the server.
    pub fn hello(&self) -> Hello {
        Hello {
            minor: (MINOR, MINOR),
            codecs: Codecs::ALL,
            n_max: Shape::N_LIMIT,
            block_bytes_max: Shape::BLOCK_BYTES_MAX,
            segment_bytes_max: Shape::LENGTH_MAX,
            requests_max: self.requests_max,
            credit_max: self.credit_max,
            agent: self.agent.to_owned(),
            visit: None,
            is_sent: false,
        }
    }
}
