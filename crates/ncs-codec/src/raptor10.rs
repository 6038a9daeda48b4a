//! Raptor10 (RFC 5053), the older sibling of RaptorQ: the same idea over GF(2) alone, for blocks of
//! 4 to 8,192 source symbols.
//!
//! The source symbols are sent unchanged. Repair symbols follow them: sums of some of L = K + S + H
//! *intermediate symbols*, which S sparse rows (LDPC) and H dense ones (Half) tie together. Each
//! encoding symbol is a row of a system, which is built and solved like RaptorQ's
//! (`super::raptor`), with zeros and ones where RaptorQ's dense rows have bytes. The rows of
//! arrived symbols are therefore dependent more often: a block takes about two symbols more than K
//! on average, where RaptorQ seldom takes one.
//!
//! There is no padding: each K has parameters of its own, and an [`EncodingPlan`] serves blocks of
//! one K.

mod decoder;
mod encoder;
mod parameters;
mod tables;
#[cfg(test)]
mod tests;

pub use decoder::{Decoder, DecodingPlan, deficit};
pub use encoder::{Encoder, EncodingPlan};
pub use parameters::{Parameters, Triple};

pub use super::raptor::{Arrival, Plan};

/// Encoding symbol ids are below this. From 65,521 on they repeat the first ones, because ids count
/// modulo 65,521 (section 5.4.4.4).
pub const ESI_END: u32 = 1 << 16;

/// Why a block cannot be encoded or decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A number of source symbols that no block has.
    #[error("{k} source symbols: a source block must have 4 to 8192")]
    Symbols {
        /// Source symbols.
        k: u32,
    },
    /// Symbols, or a block, with a wrong length.
    #[error("got {length} bytes, expected {expected}")]
    Length {
        /// The given length in bytes.
        length: usize,
        /// The required length in bytes.
        expected: usize,
    },
    /// An encoding symbol id that does not fit into 16 bits.
    #[error("encoding symbol {esi}: ids must be below 2^16")]
    Esi {
        /// The id.
        esi: u32,
    },
    /// A plan for another K, or for other symbols.
    #[error("the plan belongs to other symbols")]
    Mismatch,
    /// Symbols are missing.
    #[error("{missing} more symbols are needed")]
    Incomplete {
        /// Lower bound of their number.
        missing: usize,
    },
}
