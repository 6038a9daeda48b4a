//! What blocks are refused for.

use ncs_gf::dense::Failed;

/// Why bytes are not a block of a generation, or why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The length does not fit the shape.
    #[error("got {length} bytes, expected {expected}")]
    Length {
        /// The given length in bytes.
        length: usize,
        /// The required length in bytes.
        expected: usize,
    },
    /// A coefficient that is not below q.
    #[error("coefficient {0} is not below q")]
    Coefficient(usize),
    /// A word that is not below q.
    #[error("word {0} is not below q")]
    Word(usize),
    /// A bit after the last word's top bit is set.
    #[error("padding bits are set")]
    UnusedBits,
    /// A source block with an index outside the generation.
    #[error("source block {index} is out of range: the generation has {n}")]
    Index {
        /// Its index.
        index: usize,
        /// Blocks of the generation.
        n: usize,
    },
    /// Blocks are missing.
    #[error("{0} more independent blocks are needed")]
    Incomplete(usize),
    /// A decoded word does not fit 32 bytes: the received blocks were not combinations of source
    /// blocks.
    #[error("a decoded word has more than 256 bits")]
    Overflow,
    /// The processor failed.
    #[error(transparent)]
    Failed(#[from] Failed),
}
