//! One conversation with one peer: its requests, credits and pacing.
//!
//! [`proto`] decides and knows no socket; [`driver`] is one task a connection, which carries messages and blocks between it, the
//! [`Ring`](crate::ring::Ring) and QUIC. A session sees neither the store nor the device: what it wants to know it asks for
//! ([`Ask`]), what it sends it claims from the ring.
//!
//! What is bounded, and what happens at the bound: open requests, credit and unanswered GETs, among them GET_HASHES until their hashes
//! have left (the connection is closed: the peer was told the limits); subscriptions (refused); control bytes and questions a second (the control
//! stream is not read until they are earned); offers and what a peer holds (not heard); blocks registered at the ring (the rest of the
//! credit waits); bytes that are kept in memory for it (refused); blocks not yet acknowledged (nothing is claimed until some are). A peer that does not read costs one window of encoded blocks, until its
//! deadline.

mod audience;
pub mod driver;
mod metrics;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bytesize::ByteSize;
use ncs_proto::object::{AskedBy, Coding, Held, Refusal, Resolved, SegmentId, SegmentKey};
use ncs_proto::wire::message::{Checks, Get, GetChecks};
use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, oneshot};

pub use audience::Audience;
pub use metrics::Metrics;
pub use ncs_proto::session as proto;
pub use proto::Ledgers;

use crate::admission::token::Holder;

/// What a peer may do in one session, and how much is prepared for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Open requests, one for each generation under way; and as many questions that wait for an answer.
    pub requests_max: u16,
    /// Blocks of unspent credit of a request.
    pub credit_max: u32,
    /// Streams whose new segments are announced to one peer.
    pub subscriptions_max: u16,
    /// Segments of which a session remembers by which path it has told its peer of them.
    pub known_segments_max: u16,
    /// Blocks of one request that are encoded ahead of what has left.
    pub window_blocks: u32,
    /// Blocks that may be on their way to a peer without its acknowledgement.
    pub unacknowledged_blocks_max: u32,
    /// Bytes of control frames that are read of a peer in a second; more have to wait.
    #[serde(with = "ncs_net::units::size")]
    pub control_bytes_per_second: ByteSize,
    /// Questions that are taken of a peer in a second, REQUESTs among them; a GET or SUBSCRIBE counts as four. More have to wait.
    pub questions_per_second: u32,
    /// The same of one IPv4 address or 64 bits of IPv6. Who asks for little is not held up.
    pub address_questions_per_second: u32,
    /// The same of one token or client certificate.
    pub token_questions_per_second: u32,
    /// A peer that sends nothing for this long is gone.
    #[serde(with = "ncs_net::units::duration")]
    pub idle_timeout: Duration,
    /// A peer that acknowledges no block for this long, though some are on their way to it, is gone; a request that no credit comes for ends
    /// after the same time, and so does the delivery of an object that the peer takes nothing of.
    #[serde(with = "ncs_net::units::duration")]
    pub stall_timeout: Duration,
    /// Bytes that one session keeps in memory: segments by its requests, and objects and hashes on their way to it. One of them may be larger.
    #[serde(with = "ncs_net::units::size")]
    pub leased_bytes_max: ByteSize,
    /// The same of one IPv4 address or 64 bits of IPv6.
    #[serde(with = "ncs_net::units::size")]
    pub address_leased_bytes_max: ByteSize,
    /// The same of one token or client certificate.
    #[serde(with = "ncs_net::units::size")]
    pub token_leased_bytes_max: ByteSize,
    /// How long a new connection may take to say HELLO.
    #[serde(with = "ncs_net::units::duration")]
    pub hello_timeout: Duration,
    /// Whether blocks travel in datagrams where they fit.
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

/// What the protocol machine goes by; the rest is the driver's.
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

/// Memory of a streaming viewer's connection and session, at most: idle ones take half (docs/benchmarks.md, "Many viewers on one host").
pub const MEMORY_BYTES: u64 = 128 << 10;

/// Questions of sessions that wait to be taken up; each session has a bound of its own.
pub const ASKS_QUEUED: usize = 1024;

/// What a session asks the rest of the server. The answer may take as long as an origin takes.
#[derive(Debug)]
pub enum Ask {
    /// What is this path?
    Resolve {
        /// The question.
        get: Get,
        /// Whose it is.
        by: AskedBy,
        /// What counts the segments that are fetched for it.
        ledgers: Ledgers,
        /// Where the answer goes.
        reply: oneshot::Sender<Result<Resolved, Refusal>>,
    },
    /// Is this segment held?
    Find {
        /// Its id.
        id: SegmentId,
        /// How the one that is meant is coded; any of this id without.
        coding: Option<Coding>,
        /// Which one the peer was told of, if it was, where there are several of this id and coding.
        told: Option<SegmentKey>,
        /// What counts the segments that are fetched for it.
        ledgers: Ledgers,
        /// Where the answer goes.
        reply: oneshot::Sender<Option<Held>>,
    },
    /// What are the hashes of this segment's blocks?
    Hashes {
        /// The segment.
        held: Held,
        /// What counts the segments that are fetched for it.
        ledgers: Ledgers,
        /// Where the answer goes.
        reply: oneshot::Sender<Result<Bytes, Refusal>>,
    },
    /// What are checksums of this generation, which the segment has?
    Checks {
        /// The segment.
        held: Held,
        /// The question.
        asked: GetChecks,
        /// Where the answer goes.
        reply: oneshot::Sender<Result<Checks, Refusal>>,
    },
    /// Somebody has sent wrong blocks, says a peer: there is no answer, and it is dropped where too much is being asked.
    Blame(Blame),
    /// Tell me of new segments.
    Subscribe {
        /// The name of the stream.
        stream: String,
        /// Where the answer goes.
        reply: oneshot::Sender<Result<broadcast::Receiver<Arc<Resolved>>, Refusal>>,
    },
}

/// A peer's word, which nobody can prove, that another has sent it wrong blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blame {
    /// Who says so.
    pub reporter: SocketAddr,
    /// Whose token it has shown, if it has.
    pub holder: Option<Holder>,
    /// The segment that the blocks were said to be of.
    pub segment: SegmentId,
    /// Index of the generation in it.
    pub generation: u32,
    /// How many they were.
    pub blocks: u32,
    /// SHA-256 of the certificate that their sender showed.
    pub identity: [u8; 32],
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reporter, segment, generation, blocks, identity, .. } = self;
        write!(f, "{reporter} got {blocks} wrong blocks of segment {segment:?}, generation {generation}, from ")?;
        identity.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
