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
    /// An input that both Raptor codes refuse.
    #[error(transparent)]
    Refused(#[from] Refusal),
}
