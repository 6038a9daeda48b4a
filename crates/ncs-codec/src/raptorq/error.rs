//! What symbols and blocks are refused for.

use crate::raptor::Refusal;
use ncs_gf::dense::Failed;

/// Why a block or object cannot be encoded or decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number of source symbols that no block has.
    #[error("{k} source symbols: a source block must have 1 to 56403")]
    Symbols {
        /// Source symbols.
        k: u32,
    },
    /// Too many source symbols for a method with dense matrices.
    #[error("{k} source symbols: dense matrices support at most 4096")]
    Dense {
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
    /// An encoding symbol id that does not fit into 24 bits.
    #[error("encoding symbol {esi}: ids must be below 2^24")]
    Esi {
        /// The id.
        esi: u32,
    },
    /// A source block that the object does not have.
    #[error("source block {block} is out of range: the object has {blocks}")]
    Block {
        /// Its number.
        block: u8,
        /// Blocks of the object.
        blocks: u8,
    },
    /// A plan, or a stored inverse, for another K', or for other symbols.
    #[error("the plan or stored inverse belongs to other symbols")]
    Mismatch,
    /// Invalid transmission information: a field and its value.
    #[error("{field} must not be {value}")]
    Oti {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The processor of dense matrices has failed.
    #[error("dense matrices could not be inverted or multiplied")]
    Algebra,
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

impl From<Failed> for Error {
    fn from(_: Failed) -> Self {
        Self::Algebra
    }
}
