//! What the program orders: segments, their urgency, and the paths that lead to them.

use super::keyring::Proof;
use crate::object::{SegmentId, Shape};
use crate::time::Instant;
use crate::wire::message::Meta;

/// A segment to fetch.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// Its id.
    pub segment: SegmentId,
    /// How it is cut.
    pub shape: Shape,
    /// What its META proves, if it is signed.
    pub proof: Option<Proof>,
    /// When it becomes useless. Without a deadline, the fetch lasts as long as it progresses.
    pub deadline: Option<Instant>,
    /// Whether somebody waits for it.
    pub urgency: Urgency,
}

impl Order {
    /// The segment, as this order names it.
    pub fn cut(&self) -> Cut {
        Cut {
            segment: self.segment,
            shape: self.shape,
            blocks: self.proof.map(|proof| proof.blocks),
        }
    }
}

/// A segment as META has named it. The same bytes with another shape, code or digest of block
/// hashes are another cut: blocks of two cuts must not be mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cut {
    /// Its id.
    pub segment: SegmentId,
    /// How it is cut and coded.
    pub shape: Shape,
    /// BLAKE3 of the hashes of all source blocks, where it is signed.
    pub blocks: Option<[u8; 32]>,
}

impl Cut {
    /// The segment that `meta` names, with this shape.
    pub fn of(meta: &Meta, shape: Shape) -> Self {
        Self {
            segment: meta.id,
            shape,
            blocks: meta.signature.map(|signature| signature.blocks),
        }
    }
}

/// The path of an object, and the part of it that is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its path.
    pub path: String,
    /// A byte of the part.
    pub offset: u64,
    /// How many bytes are wanted from there on, if known.
    pub length: Option<u64>,
}

/// Whether somebody waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Urgency {
    /// Somebody waits.
    Now,
    /// Nobody waits yet: this comes after everything that is urgent.
    Ahead,
}
