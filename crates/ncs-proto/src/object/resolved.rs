//! What a path leads to: the answer to GET, and the news of a stream.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::held::Held;
use super::id::SegmentId;

/// What a path of a stream leads to: the answer to GET, and the news for subscribers.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// Path of the object with its query.
    pub path: String,
    /// BLAKE3 of the described bytes: of the segment, or of the whole object.
    pub id: SegmentId,
    /// Where these bytes start in the object.
    pub offset: u64,
    /// Their number.
    pub length: u64,
    /// Bytes of the whole object, if the origin has told.
    pub object_length: Option<u64>,
    /// Changes when the object changes at the origin. Parts of different versions must not be
    /// combined.
    pub version: u64,
    /// How long the answer may be kept without asking again.
    pub max_age: Duration,
    /// The object's media type, empty if unknown.
    pub content_type: String,
    /// The bytes, or where they are held.
    pub body: Body,
    /// The signature of the stream's key, if it has one.
    pub signature: Option<Signature>,
}

/// The signature of a stream's key on an answer. It vouches for all of a [`Resolved`] except its
/// age, and for how its bytes travel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// Ed25519 public key of the stream.
    pub key: [u8; 32],
    /// When the origin's answer came that it describes, in milliseconds since 1970. An older
    /// answer for the same path does not replace a newer one.
    pub issued_ms: u64,
    /// BLAKE3 of the hashes of all source blocks; zeros where the bytes are not coded.
    pub blocks: [u8; 32],
    /// Ed25519 signature of the content of META.
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
