//! What the machine reports to the program.

use bytes::Bytes;
use ncs_codec::block::Block;

use super::gfq::Trial;
use super::ids::{FetchId, SourceId};
use super::order::Cut;
use super::rebuilder::Rebuilder;
use crate::integrity::hashes::BlockHashes;
use crate::object::{Refusal, SegmentId};
use crate::wire::message::{self, Meta};

/// Something that has happened.
#[derive(Debug)]
pub enum Event {
    /// A source has sent HELLO.
    Ready(SourceId),
    /// A GET has an answer.
    Answered {
        /// The GET.
        request: u64,
        /// The answer.
        answer: Result<Answer, Failure>,
    },
    /// A subscribed stream has a new segment.
    Announced {
        /// The subscription.
        request: u64,
        /// The segment.
        meta: Meta,
    },
    /// A subscription has ended.
    Unsubscribed {
        /// The subscription.
        request: u64,
        /// Why.
        refusal: Refusal,
    },
    /// An innovative block has come.
    Brought {
        /// The segment.
        cut: Cut,
        /// Index of the generation.
        generation: u32,
        /// Its sender.
        source: SourceId,
        /// The block.
        block: Block,
        /// Whether it was tested.
        is_checked: bool,
    },
    /// All blocks of a generation so far have been tested, and later ones will be.
    Checked {
        /// The segment.
        cut: Cut,
        /// Index of the generation.
        generation: u32,
        /// The right ones.
        rows: Vec<Block>,
    },
    /// The hashes of a segment's blocks over the prime field have come, signed by the stream's key.
    /// Its blocks are tested by them.
    Hashed {
        /// The segment.
        cut: Cut,
        /// The hashes.
        hashes: BlockHashes,
    },
    /// Blocks over the prime field are to be tested. The driver does this, and hands the result to
    /// [`Proto::tested`](super::Proto::tested).
    Test(Box<Trial>),
    /// A generation is complete. The driver multiplies its payloads, here or, if the decoder
    /// [`is_to_be_solved`](Rebuilder::is_to_be_solved), elsewhere. When all generations of a fetch
    /// have come, it compares their hash, and calls [`Proto::confirm`](super::Proto::confirm).
    Decoded {
        /// The fetch.
        fetch: FetchId,
        /// A decoder at full rank.
        decoder: Box<Rebuilder>,
    },
    /// A fetch has failed.
    Failed {
        /// The fetch.
        fetch: FetchId,
        /// Why.
        failure: Failure,
    },
    /// A source has rejected the token, or has stopped accepting it.
    TokenRefused(SourceId),
    /// A source takes no new requests.
    GoingAway(SourceId),
    /// A server has named others that hold something of a segment. For those that are to be used,
    /// call [`Proto::add_neighbour`](super::Proto::add_neighbour) and
    /// [`Proto::note_holding`](super::Proto::note_holding).
    Peers {
        /// The segment.
        segment: SegmentId,
        /// Where they are.
        peers: Vec<message::Introduction>,
    },
    /// A server has named others of the same streams, instead of those named before.
    Alternates {
        /// The server.
        source: SourceId,
        /// Whether this side is to go to one of them now.
        moves: bool,
        /// Where they are, best first.
        servers: Vec<message::Alternate>,
    },
    /// The trusted server has named this page: others know it by this identity.
    Page {
        /// The identity.
        identity: [u8; 32],
    },
    /// The trusted server has named other pages that hold something of a segment.
    Pages {
        /// The segment.
        segment: SegmentId,
        /// Their identities and tickets.
        pages: Vec<message::PageIntroduction>,
    },
    /// Another page has sent this through the trusted server.
    Signal {
        /// The page.
        page: [u8; 32],
        /// The bytes that it has sent.
        bytes: Bytes,
    },
    /// A source has sent data that was proved wrong. Close its connection with POLLUTION, and do
    /// not connect to it again.
    Polluter(SourceId),
}

/// Metadata, and the bytes of an object that is not coded. Nothing is verified yet.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The metadata.
    pub meta: Meta,
    /// The bytes of an object that is not coded.
    pub bytes: Option<Bytes>,
    /// The source of the answer.
    pub source: SourceId,
}

/// Why a GET or a fetch failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Every available source refused; this is the last refusal.
    Refused(Refusal),
    /// The deadline passed.
    Deadline,
    /// Nothing came for too long.
    Stalled,
    /// The one source that was asked is gone, silent or about to leave.
    Gone,
    /// Too little came for too long.
    Slow,
    /// The bytes were wrong, twice.
    Corrupt,
}
