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
    /// A source block that the object does not have.
    #[error("source block {block} is out of range: the object has {blocks}")]
    Block {
        /// Its number.
        block: u8,
        /// Blocks of the object.
        blocks: u8,
    },
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
    /// An input that both Raptor codes refuse.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<Failed> for Error {
    fn from(_: Failed) -> Self {
        Self::Algebra
    }
}
