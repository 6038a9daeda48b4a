//! What symbols and blocks are refused for.

use crate::raptor::Refusal;

/// Why a block cannot be encoded or decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
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

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Length { length, expected } => Self::Length { length, expected },
            Refusal::Esi { esi } => Self::Esi { esi },
            Refusal::Mismatch => Self::Mismatch,
            Refusal::Incomplete { missing } => Self::Incomplete { missing },
        }
    }
}
