//! One conversation with one peer: its requests, credits and pacing.
//!
//! [`proto`] decides and knows no socket. [`driver`] is one task per connection; it carries
//! messages and blocks between `proto`, the [`Ring`](crate::ring::Ring) and QUIC. A session sees
//! neither the store nor the device: it asks questions ([`Ask`]), and claims blocks from the ring.
//! Peers come over QUIC itself, web pages by WebTransport (`opening`); the driver serves both in
//! the same way.
//!
//! Bounds, and what happens at each:
//!
//! - open requests, credit and unanswered GETs, including GET_HASHES until their hashes have left:
//!   the connection is closed, because the peer was told the limits;
//! - subscriptions: refused;
//! - control bytes and questions per second: the control stream is not read until the rate allows;
//! - offers, and a peer's lists of what it holds: ignored;
//! - blocks registered at the ring: the rest of the credit waits;
//! - bytes kept in memory for the session: refused;
//! - unacknowledged blocks: nothing is claimed until some are acknowledged.
//!
//! A peer that does not read costs one window of encoded blocks, until its deadline.

mod audience;
pub mod driver;
mod end;
mod metrics;
mod opening;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bytesize::ByteSize;
use ncs_net::tls::Fingerprint;
use ncs_proto::object::{AskedBy, Coding, Held, Refusal, Resolved, SegmentId, SegmentKey};
use ncs_proto::wire::message::{Checks, Get, GetChecks};
use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, oneshot};

pub use audience::Audience;
pub use metrics::Metrics;
pub use ncs_proto::session as proto;
pub use proto::Ledgers;

use crate::admission::token::Holder;

/// Limits of one session, and how much is prepared for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Open requests, one per generation; also the limit on unanswered questions.
    pub requests_max: u16,
    /// Unspent credit of a request, in blocks.
    pub credit_max: u32,
    /// Streams that one peer may subscribe to.
    pub subscriptions_max: u16,
    /// Segments for which a session remembers the path under which it announced them to its peer.
    pub known_segments_max: u16,
    /// Blocks of one request that are encoded ahead of those sent.
    pub window_blocks: u32,
    /// Blocks in flight to a peer without its acknowledgement.
    pub unacknowledged_blocks_max: u32,
    /// Control frame bytes read from a peer per second; more have to wait.
    #[serde(with = "ncs_net::units::size")]
    pub control_bytes_per_second: ByteSize,
    /// Questions accepted from a peer per second, including REQUESTs; a GET or SUBSCRIBE counts as
    /// four. More have to wait.
    pub questions_per_second: u32,
    /// The same per IPv4 address or 64 bits of IPv6. Sessions that ask little are not delayed.
    pub address_questions_per_second: u32,
    /// The same per token or client certificate.
    pub token_questions_per_second: u32,
    /// A peer that sends nothing for this long is disconnected.
    #[serde(with = "ncs_net::units::duration")]
    pub idle_timeout: Duration,
    /// Ends three things that make no progress for this long: a session whose peer acknowledges no
    /// block in flight, a request without new credit, and the delivery of an object that the peer
    /// does not read.
    #[serde(with = "ncs_net::units::duration")]
    pub stall_timeout: Duration,
    /// Bytes that one session may keep in memory: segments of its requests, and objects and hashes
    /// being delivered to it. A single one may be larger.
    #[serde(with = "ncs_net::units::size")]
    pub leased_bytes_max: ByteSize,
    /// The same per IPv4 address or 64 bits of IPv6.
    #[serde(with = "ncs_net::units::size")]
    pub address_leased_bytes_max: ByteSize,
    /// The same per token or client certificate.
    #[serde(with = "ncs_net::units::size")]
    pub token_leased_bytes_max: ByteSize,
    /// The time in which a new connection must say HELLO.
    #[serde(with = "ncs_net::units::duration")]
    pub hello_timeout: Duration,
    /// Whether blocks are sent in datagrams where they fit.
    pub datagrams: bool,
}

impl Default for Config {
    fn default() -> Self {
        let proto::Config {
            agent: _,
            requests_max,
            credit_max,
            subscriptions_max,
            known_segments_max,
            window_blocks,
            control_bytes_per_second,
            questions_per_second,
            address_questions_per_second,
            token_questions_per_second,
            stall_timeout,
            leased_bytes_max,
            address_leased_bytes_max,
            token_leased_bytes_max,
            hello_timeout,
            datagrams,
        } = proto::Config::default();
        Self {
            requests_max,
            credit_max,
            subscriptions_max,
            known_segments_max,
            window_blocks,
            unacknowledged_blocks_max: 512,
            control_bytes_per_second: ByteSize(control_bytes_per_second),
            questions_per_second,
            address_questions_per_second,
            token_questions_per_second,
            idle_timeout: Duration::from_secs(15),
            stall_timeout,
            leased_bytes_max: ByteSize(leased_bytes_max),
            address_leased_bytes_max: ByteSize(address_leased_bytes_max),
            token_leased_bytes_max: ByteSize(token_leased_bytes_max),
            hello_timeout,
            datagrams,
        }
    }
}

/// The protocol machine's part of the configuration; the rest is the driver's.
impl From<Config> for proto::Config {
    fn from(config: Config) -> Self {
        Self {
            agent: concat!("ncserverd/", env!("CARGO_PKG_VERSION")),
            requests_max: config.requests_max,
            credit_max: config.credit_max,
            subscriptions_max: config.subscriptions_max,
            known_segments_max: config.known_segments_max,
            window_blocks: config.window_blocks,
            control_bytes_per_second: config.control_bytes_per_second.as_u64(),
            questions_per_second: config.questions_per_second,
            address_questions_per_second: config.address_questions_per_second,
            token_questions_per_second: config.token_questions_per_second,
            stall_timeout: config.stall_timeout,
            leased_bytes_max: config.leased_bytes_max.as_u64(),
            address_leased_bytes_max: config.address_leased_bytes_max.as_u64(),
            token_leased_bytes_max: config.token_leased_bytes_max.as_u64(),
            hello_timeout: config.hello_timeout,
            datagrams: config.datagrams,
        }
    }
}

/// The maximum memory of a streaming viewer's connection and session; idle ones take half
/// (docs/benchmarks/servers.md, "Many viewers on one host").
pub const MEMORY_BYTES: u64 = 128 << 10;

/// Capacity of the queue for questions of all sessions; each session has a bound of its own.
pub const ASKS_QUEUED: usize = 1024;

/// A question of a session to the rest of the server. An answer may take as long as an origin
/// takes.
#[derive(Debug)]
pub enum Ask {
    /// Resolve a path.
    Resolve {
        /// The question.
        get: Get,
        /// The account and session that ask.
        by: AskedBy,
        /// The accounts that fetched segments are charged to.
        ledgers: Ledgers,
        /// Receives the answer.
        reply: oneshot::Sender<Result<Resolved, Refusal>>,
    },
    /// Find a segment in the store.
    Find {
        /// Its id.
        id: SegmentId,
        /// The coding of the segment; without it, any of this id matches.
        coding: Option<Coding>,
        /// The segment that the peer was told of, if it was, where several have this id and coding.
        told: Option<SegmentKey>,
        /// The accounts that fetched segments are charged to.
        ledgers: Ledgers,
        /// Receives the answer.
        reply: oneshot::Sender<Option<Held>>,
    },
    /// Get the hashes of a segment's blocks.
    Hashes {
        /// The segment.
        held: Held,
        /// The accounts that fetched segments are charged to.
        ledgers: Ledgers,
        /// Receives the answer.
        reply: oneshot::Sender<Result<Bytes, Refusal>>,
    },
    /// Get checksums of a generation of the segment.
    Checks {
        /// The segment.
        held: Held,
        /// The question.
        asked: GetChecks,
        /// Receives the answer.
        reply: oneshot::Sender<Result<Checks, Refusal>>,
    },
    /// A peer reports that another sent wrong blocks. There is no answer; the report is dropped
    /// when the queue is full.
    Blame(Blame),
    /// Subscribe to new segments of a stream.
    Subscribe {
        /// The name of the stream.
        stream: String,
        /// Receives the answer.
        reply: oneshot::Sender<Result<broadcast::Receiver<Arc<Resolved>>, Refusal>>,
    },
}

/// A peer's report, which cannot be proved, that another has sent it wrong blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blame {
    /// Address of the reporting peer.
    pub reporter: SocketAddr,
    /// The holder of its token, if it has shown one.
    pub holder: Option<Holder>,
    /// The segment of the reported blocks.
    pub segment: SegmentId,
    /// The generation's index in the segment.
    pub generation: u32,
    /// The number of wrong blocks.
    pub blocks: u32,
    /// SHA-256 of the certificate that the accused peer showed.
    pub identity: [u8; 32],
}

impl Blame {
    /// Logs it at debug level.
    pub fn log(&self) {
        let Self {
            reporter,
            segment,
            generation,
            blocks,
            identity,
            ..
        } = self;
        let accused = Fingerprint::from_bytes(*identity);
        tracing::debug!(
            %reporter,
            ?segment,
            generation,
            blocks,
            %accused,
            "a peer reports wrong blocks",
        );
    }
}
