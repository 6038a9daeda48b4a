//! The messages of the control stream as values.

use bytes::Bytes;

pub use crate::object::RefusalCode as RequestCode;
use crate::object::{SegmentId, Shape};

/// A frame of the control stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// First frame of each side.
    Hello(Hello),
    /// Asks for the metadata of an object, or of the part of it that covers `offset`.
    Get(Get),
    /// Answers GET with metadata, or announces a new segment to a subscriber.
    Meta(Meta),
    /// Answers GET or SUBSCRIBE with a refusal.
    Error(RequestError),
    /// Asks to be told of new segments of a stream.
    Subscribe(Subscribe),
    /// The subscription stands.
    SubscribeOk {
        /// The request it answers.
        request: u64,
    },
    /// Ends a subscription.
    Unsubscribe {
        /// The request that opened it.
        request: u64,
    },
    /// Asks for blocks of one generation.
    Request(Request),
    /// Adds credit to an open request.
    Credit {
        /// The request.
        alias: u16,
        /// How many more blocks may come.
        blocks: u32,
    },
    /// Ends a request: the generation is complete, or nobody wants it any more.
    Stop {
        /// The request.
        alias: u16,
        /// Why.
        reason: StopReason,
    },
    /// Refuses or ends a request from the sender's side.
    Reject {
        /// The request.
        alias: u16,
        /// Why.
        code: RequestCode,
        /// When asking again makes sense, in milliseconds; 0 for never.
        retry_after_ms: u64,
    },
    /// The receiver's progress (ignorable).
    Rank {
        /// The request.
        alias: u16,
        /// Independent blocks held, from all senders.
        rank: u32,
        /// Blocks of this request that brought nothing.
        useless: u32,
        /// Datagrams of this request that never came, by gaps in their sequence numbers.
        lost: u32,
    },
    /// The sender is about to leave: no new requests, open ones may finish.
    GoAway {
        /// How long open requests may take, in milliseconds.
        drain_ms: u64,
    },
}

/// What one side can take. The lower of both sides' values applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Lowest and highest minor version spoken.
    pub minor: (u64, u64),
    /// Most blocks in a generation.
    pub n_max: u16,
    /// Largest block in bytes.
    pub block_bytes_max: u32,
    /// Largest segment in bytes.
    pub segment_bytes_max: u64,
    /// Most open requests a peer may have towards the sender of this HELLO.
    pub requests_max: u16,
    /// Most blocks of unspent credit a request may have.
    pub credit_max: u32,
    /// Who speaks, at most 64 bytes of printable ASCII.
    pub agent: String,
}

/// Asks for metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Get {
    /// Chosen by the asker, unique among its unanswered requests.
    pub request: u64,
    /// Path of the object with its query, starting with `/` and the name of the stream.
    pub path: String,
    /// Byte of the object that the answer must cover.
    pub offset: u64,
    /// How many bytes from `offset` on the asker wants in all, if it knows: lets the server cut at a playlist's byte ranges.
    pub length: Option<u64>,
}

/// Asks for announcements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribe {
    /// Chosen by the asker; announcements carry it.
    pub request: u64,
    /// Name of the stream, without `/`.
    pub stream: String,
}

/// What an object, or one part of it, is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// The GET or SUBSCRIBE it belongs to.
    pub request: u64,
    /// Path of the object with its query.
    pub path: String,
    /// BLAKE3 of the bytes described: of the segment, or of the whole mutable object.
    pub id: SegmentId,
    /// Where these bytes start in the object.
    pub offset: u64,
    /// How many they are.
    pub length: u64,
    /// Bytes of the whole object, if the origin said.
    pub object_length: Option<u64>,
    /// Changes when the object's ETag, Last-Modified or length at the origin changes; parts of different versions do not belong together.
    pub version: u64,
    /// How long the answer may be kept without asking again, in milliseconds.
    pub max_age_ms: u64,
    /// The object's media type, empty if unknown.
    pub content_type: String,
    /// How the bytes come.
    pub delivery: Delivery,
    /// Signature of the stream's key; empty until signing exists.
    pub signature: Bytes,
}

/// How the bytes of a META come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// Coded: ask for its generations. Length of the shape is the META's.
    Coded(Shape),
    /// Whole, here.
    Inline(Bytes),
    /// Whole, on a unidirectional stream that names the request.
    Stream,
}

/// Asks for blocks of one generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Chosen by the asker, unique among its open requests on this connection; blocks carry it.
    pub alias: u16,
    /// The segment.
    pub segment: SegmentId,
    /// Index of the generation in the segment.
    pub generation: u32,
    /// When the blocks are of no use any more, in milliseconds from now.
    pub deadline_ms: u64,
    /// How many blocks may come at first.
    pub credit: u32,
    /// What may come.
    pub accept: Accept,
    /// Source blocks wanted first, as (first index, count), disjoint and ascending; empty leaves the choice to the sender.
    pub ranges: Vec<(u16, u16)>,
}

/// Which blocks a request takes, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept {
    /// Coded blocks.
    pub coded: bool,
    /// Source blocks.
    pub systematic: bool,
    /// Datagrams, where header and block fit one.
    pub datagrams: bool,
    /// Blocks with an explicit vector.
    pub recoded: bool,
}

/// Refuses a GET or SUBSCRIBE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestError {
    /// The GET or SUBSCRIBE.
    pub request: u64,
    /// Why.
    pub code: RequestCode,
    /// When asking again makes sense, in milliseconds; 0 for never.
    pub retry_after_ms: u64,
    /// For people, at most 256 bytes.
    pub reason: String,
}

/// Why a consumer ended a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// The generation is complete.
    Complete,
    /// Its deadline passed.
    Deadline,
    /// Nobody wants it any more.
    Cancelled,
}
