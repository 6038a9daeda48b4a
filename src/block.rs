//! A block of a generation as it travels: which combination of the source blocks it is, and its bytes.

use bytes::Bytes;

/// Which combination of a generation's n source blocks a block is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Vector {
    /// Source block `index` itself (a *systematic* block): the unit vector. Its payload travels without padding.
    Source(u16),
    /// The dense row that every side draws from this seed, the segment id and the generation.
    Seed(u32),
    /// The n coefficients, one byte each: the only form a recoder can emit before it has decoded.
    Explicit(Bytes),
    /// The same, from a recoder that has not checked what it combined: a receiver that finds it wrong cannot blame the sender.
    Unverified(Bytes),
}

/// A coded or source block: its vector and its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Which combination it is.
    pub vector: Vector,
    /// `block_bytes` bytes; for [`Vector::Source`] the last block of a generation comes without padding.
    pub payload: Bytes,
}
