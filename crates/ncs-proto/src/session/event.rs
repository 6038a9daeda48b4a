//! What the machine wants the driver to do.

use std::sync::Arc;

use bytes::Bytes;

use crate::admission::Share;
use crate::object::{Coding, Held, SegmentId, SegmentKey};
use crate::ring::LineKey;
use crate::time::Instant;
use crate::wire::message::{Get, GetChecks, Holding, Subscribe};

/// Something for the driver to do.
#[derive(Debug)]
pub enum Event {
    /// Resolve a path; answer with [`Proto::resolved`](super::Proto::resolved).
    Resolve(Get),
    /// Ask for the admission of the peer, which requests blocks; answer with
    /// [`Proto::asked_admission`](super::Proto::asked_admission).
    AskAdmission,
    /// Look for the segment of a REQUEST or of a query; answer with
    /// [`Proto::found`](super::Proto::found).
    Find {
        /// Names the query.
        ticket: u64,
        /// The segment.
        id: SegmentId,
        /// How it is coded. `None` stands for any segment of this id, where the peer has named no
        /// coding and was told of none.
        coding: Option<Coding>,
        /// The segment that the peer was told of by this id and coding, if any.
        told: Option<SegmentKey>,
    },
    /// Ask for the hashes of a segment's blocks; answer with
    /// [`Proto::hashes`](super::Proto::hashes).
    Hashes {
        /// Names the query.
        ticket: u64,
        /// The segment.
        held: Held,
    },
    /// Ask for checksums of a generation that the segment has; answer with
    /// [`Proto::checks`](super::Proto::checks).
    Checks {
        /// Names the query.
        ticket: u64,
        /// The segment.
        held: Held,
        /// The query.
        asked: GetChecks,
    },
    /// Start to announce a stream; answer with [`Proto::subscribed`](super::Proto::subscribed),
    /// then [`Proto::announced`](super::Proto::announced).
    Subscribe(Subscribe),
    /// Stop announcing for a SUBSCRIBE.
    Unsubscribed {
        /// The SUBSCRIBE.
        request: u64,
    },
    /// Send a whole object on a stream of its own.
    Deliver {
        /// The GET it answers.
        request: u64,
        /// The object.
        bytes: Bytes,
        /// Count the object until it has left. A revoked share ends the delivery.
        shares: Vec<Share>,
    },
    /// The peer serves others on this port of its address, with the certificate of this SHA-256.
    /// Port 0 ends that.
    Offer {
        /// The UDP port.
        port: u16,
        /// SHA-256 of the certificate.
        identity: [u8; 32],
    },
    /// The peer, a web page, serves other pages that are introduced to it, or ends that; answer
    /// with [`Proto::name_page`](super::Proto::name_page).
    OfferPage {
        /// Whether it serves.
        serves: bool,
    },
    /// Pass on what the page says to another page, if they were introduced.
    Signal {
        /// The other page.
        page: [u8; 32],
        /// What it says.
        bytes: Bytes,
    },
    /// Segments that the peer has begun to hold, has completed, or holds no longer.
    Have(Vec<Holding>),
    /// Name other peers that hold a segment, if there are any; answer with
    /// [`Proto::introduce`](super::Proto::introduce) or
    /// [`Proto::introduce_pages`](super::Proto::introduce_pages).
    Introduce {
        /// The segment.
        segment: SegmentId,
        /// How it is coded.
        coding: Coding,
        /// Its stream.
        stream: String,
    },
    /// Send hashes on a stream of their own; call [`Proto::hashes_left`](super::Proto::hashes_left)
    /// when that is over.
    DeliverHashes {
        /// The GET_HASHES.
        request: u64,
        /// The hashes.
        bytes: Bytes,
        /// Count the hashes until they have left. A revoked share ends the delivery.
        shares: Vec<Share>,
    },
    /// The peer reports wrong blocks.
    Blame {
        /// Their segment.
        segment: SegmentId,
        /// Their generation.
        generation: u32,
        /// Their number.
        blocks: u32,
        /// SHA-256 of their sender's certificate.
        identity: [u8; 32],
    },
    /// Recoded blocks of a line have not arrived.
    Lost {
        /// The line.
        line: LineKey,
        /// Their number.
        blocks: u32,
    },
    /// The deadline of a request has moved.
    Rescheduled {
        /// The request.
        alias: u16,
        /// The lines that it waits for.
        lines: [Option<LineKey>; 2],
        /// When their blocks become useless.
        deadline: Instant,
    },
    /// A request is over: leave its lines, and end its stream.
    Ended(Ended),
    /// The peer has begun to watch a stream, or has stopped.
    Watches {
        /// The stream's name, as it stands in paths.
        stream: Arc<str>,
        /// Whether it watches the stream now.
        is_watched: bool,
    },
}

/// A request that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The request.
    pub alias: u16,
    /// Its line of coded blocks.
    pub line: LineKey,
    /// Whether blocks on the way have become useless.
    pub abandon: bool,
}
