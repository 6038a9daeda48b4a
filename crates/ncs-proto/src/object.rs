//! What is published: streams, objects, segments and their generations, as plain values.
//!
//! An *object* is one file of a stream at the origin. An immutable object, or an aligned part of a large one, is a *segment*,
//! known by the BLAKE3 hash of its bytes. A segment is cut into *generations* of at most `n_max` blocks of `block_bytes` bytes,
//! and each generation is coded by itself (RFC 8406 section 2.1), with the [`Codec`] of its stream.

mod lease;
mod tree;

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ncs_gf::RowKey;
use serde::{Deserialize, Serialize};

pub use ncs_codec::shape::{Codec, Coding, Generation, HashGroup, Shape, ShapeError};

use crate::time::Instant;
pub use lease::{GRACE, Lease, Loan, Released, Standing};
pub use tree::Tree;

/// Content address of a segment: a BLAKE3 hash of its bytes.
///
/// Two servers behind the same origin give the same segment the same id, whatever it is called there, so their coded blocks
/// combine. Segments whose blocks prove themselves have ids of their own, one for each group of hashes: two streams may have the same
/// bytes, and who asks for a segment by its id means one of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId([u8; 32]);

impl SegmentId {
    /// The id of bytes that are sent as they are, or in blocks that are combinations of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The id of a segment with these bytes whose blocks are made by this code.
    pub fn of_coded(bytes: &[u8], codec: Codec) -> Self {
        match codec {
            Codec::RlncQ { group } => Self(blake3::derive_key(context(group), bytes)),
            Codec::Rlnc | Codec::ReedSolomon { .. } | Codec::RaptorQ => Self::of(bytes),
        }
    }

    /// An id received from elsewhere.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes of the hash.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first eight bytes as a little-endian integer: the key that coefficient rows of this segment are drawn with.
    pub fn coefficient_key(&self) -> u64 {
        let mut low = [0; 8];
        low.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(low)
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..6].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for SegmentId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(ParseIdError);
        }
        let mut id = [0; 32];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            let text = std::str::from_utf8(pair).map_err(|_| ParseIdError)?;
            *byte = u8::from_str_radix(text, 16).map_err(|_| ParseIdError)?;
        }
        Ok(Self(id))
    }
}

/// What segments with such hashes are named in, for BLAKE3 in its mode of deriving keys.
const fn context(group: HashGroup) -> &'static str {
    match group {
        HashGroup::P1024 => "ncserverd 2026-11-23 segment id, codec 4, group 1",
        HashGroup::P2048 => "ncserverd 2026-11-23 segment id, codec 4, group 2",
    }
}

/// What the rows of `generation` in the segment `id` are drawn with.
pub fn row_key(id: &SegmentId, generation: &Generation) -> RowKey {
    RowKey { key: id.coefficient_key(), generation: u64::from(generation.index) }
}

/// A text that is not 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a segment id must be 64 hexadecimal digits")]
pub struct ParseIdError;

/// Who asks for something, so that nobody's questions hold up everybody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AskedBy {
    /// Who is counted together: the holder of a token, or an address.
    pub account: u128,
    /// The session.
    pub session: u64,
}

/// A segment while this process holds it. Never reused in one run, and never sent: the wire speaks of [`SegmentId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentKey(pub u64);

/// A generation of a held segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GenerationKey {
    /// The segment.
    pub segment: SegmentKey,
    /// Index of the generation in it.
    pub index: u32,
}

/// Which blocks a server sends first when a request leaves it the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FirstPass {
    /// Coded blocks throughout: whatever arrives from whomever is of use.
    #[default]
    Coded,
    /// The source blocks once, then coded ones: cheaper for a viewer alone on one server.
    Systematic,
}

/// A held segment together with how its stream wants it sent.
#[derive(Debug, Clone)]
pub struct Held {
    /// Keeps it held.
    pub lease: Lease,
    /// What goes first.
    pub first_pass: FirstPass,
    /// Coefficients other than zero in a row of its coded blocks, where rows are sparse.
    pub row_weight: Option<NonZeroU16>,
    /// Whether who holds it may not have all of it yet, and recodes what there is for each peer.
    pub is_recoded: bool,
    /// When a live segment was complete at its source; `None` for what was fetched because somebody asked.
    pub birth: Option<Arc<Birth>>,
    /// Where it lies, with the stream's name in front; where its bytes lie at several paths, the last that was fetched.
    pub path: Option<Arc<str>>,
    /// BLAKE3 of the hashes of its source blocks, where these are kept.
    pub blocks_digest: Option<[u8; 32]>,
    /// What proves its parts alone, unless it is short.
    pub tree: Option<Tree>,
}

/// When a live segment came to be, and whether any of it has been sent.
#[derive(Debug)]
pub struct Birth {
    at: Instant,
    sent: AtomicBool,
}

impl Birth {
    /// A segment that was complete at its source at `at`: its file closed, or its last byte read.
    pub fn new(at: Instant) -> Arc<Self> {
        Arc::new(Self { at, sent: AtomicBool::new(false) })
    }

    /// When it was complete at its source.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// Whether nothing of it has been sent before: true on the first call.
    pub fn is_first_sent(&self) -> bool {
        !self.sent.load(Ordering::Relaxed) && !self.sent.swap(true, Ordering::Relaxed)
    }
}

/// A live segment has arrived: it is the newest of its stream.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// The stream.
    pub stream: Arc<str>,
    /// The segment in this process.
    pub segment: SegmentKey,
    /// How it is cut.
    pub shape: Shape,
    /// As [`Held::row_weight`].
    pub row_weight: Option<NonZeroU16>,
}

/// What a path of a stream is: the answer to GET, and what subscribers are told.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// Path of the object with its query.
    pub path: String,
    /// BLAKE3 of the bytes described: of the segment, or of the whole object.
    pub id: SegmentId,
    /// Where these bytes start in the object.
    pub offset: u64,
    /// How many they are.
    pub length: u64,
    /// Bytes of the whole object, if the origin said.
    pub object_length: Option<u64>,
    /// Changes when the object changes at the origin; parts of different versions do not belong together.
    pub version: u64,
    /// How long the answer may be kept without asking again.
    pub max_age: Duration,
    /// The object's media type, empty if unknown.
    pub content_type: String,
    /// The bytes, or where they are held.
    pub body: Body,
    /// What the stream's key says of all this, if it has one.
    pub signature: Option<Signature>,
}

/// What the key of a stream says of an answer: it vouches for all of a [`Resolved`] but its age, and for how its bytes travel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// Ed25519 public key of the stream.
    pub key: [u8; 32],
    /// When the origin's answer came that is described, in milliseconds since 1970. What is older than another answer for the same path is
    /// not taken instead of it.
    pub issued_ms: u64,
    /// BLAKE3 of the hashes of all source blocks; zeros where the bytes do not travel coded.
    pub blocks: [u8; 32],
    /// Ed25519 signature over what META says.
    pub bytes: [u8; 64],
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = u64::from_be_bytes(*self.key.first_chunk().expect("a key has 32 bytes"));
        f.debug_struct("Signature")
            .field("key", &format_args!("{key:016x}…"))
            .field("issued_ms", &self.issued_ms)
            .finish_non_exhaustive()
    }
}

/// The bytes of a [`Resolved`].
#[derive(Debug, Clone)]
pub enum Body {
    /// Held as a segment, to be sent as coded blocks.
    Coded(Held),
    /// Short enough to travel with the metadata.
    Inline(Bytes),
    /// A mutable object, sent whole on a stream of its own.
    Whole(Bytes),
}

/// Why a request was refused or ended. The connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalCode {
    /// No such stream, object or segment, or none that this peer may have: one answer for all.
    Unknown,
    /// The request could not be served before its deadline.
    Deadline,
    /// Too much to do now.
    Overload,
    /// A limit of HELLO does not allow it.
    Limit,
    /// The origin did not give the object: it failed, was too slow, or sent something else than it said.
    Origin,
    /// The object changed at the origin while its parts were fetched.
    Changed,
    /// The origin does not let the server have the object.
    Forbidden,
    /// The server is going away.
    GoingAway,
    /// A fault of the server.
    Internal,
}

/// An answer that is not one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What the asker can do about it.
    pub code: RefusalCode,
    /// When asking again makes sense; `None` for never.
    pub retry_after: Option<Duration>,
    /// For people.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_print_and_parse() {
        let id = SegmentId::of(b"abc");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("".parse::<SegmentId>().is_err());
        assert!("zz".repeat(32).parse::<SegmentId>().is_err());
    }
}
