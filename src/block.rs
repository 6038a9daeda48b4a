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
    /// The parity block of Reed-Solomon with this number: n is the first, behind the source blocks.
    Shard(u16),
    /// The repair symbol of RaptorQ with this encoding symbol id: n is the first.
    Symbol(u32),
}

impl Vector {
    /// The block with this number in a generation of `n` blocks: a source block, or a parity block behind them.
    pub const fn numbered(number: u16, n: u16) -> Self {
        if number < n { Self::Source(number) } else { Self::Shard(number) }
    }

    /// The repair symbol of RaptorQ that a counter stands for, in a generation of `n` blocks: each of them, one after the other.
    pub const fn repair(counter: u32, n: u16) -> Self {
        Self::Symbol(n as u32 + counter % (ESI_END - n as u32))
    }
}

/// Encoding symbol ids of RaptorQ are below this: they travel in 24 bits (RFC 6330, section 3.2).
pub const ESI_END: u32 = 1 << 24;

/// A coded or source block: its vector and its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Which combination it is.
    pub vector: Vector,
    /// `block_bytes` bytes; for [`Vector::Source`] the last block of a generation comes without padding.
    pub payload: Bytes,
}
