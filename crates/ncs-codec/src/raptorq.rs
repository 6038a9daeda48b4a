//! RaptorQ (RFC 6330): any number of encoding symbols of a block of K source symbols. Any K of
//! them, seldom one or two more, restore the block.
//!
//! The source symbols are sent unchanged. Repair symbols follow them: sums of a few of L
//! *intermediate symbols*, which S sparse rows (LDPC) and H dense ones over GF(2^8) (HDPC) tie
//! together. Each symbol, source or repair, is a row of a system. The decoder solves the arrived
//! rows for the intermediate symbols; a missing symbol is a sum of those.
//!
//! Three decoders find the same bytes from the same symbols ([`Method`]). The default analyses the
//! structure first, like that of Raptor10: `parameters` has the RFC's numbers, `super::raptor`
//! solves the system, and a [`Plan`] has the resulting operations on symbols. These operations
//! never depend on the symbols' bytes, so a plan can be kept. Keep an encoder's plan
//! ([`EncodingPlan`]), because one serves all blocks of the same K'.
//!
//! RaptorQ cannot be recoded: it is for a server and its direct receivers.

mod decoder;
mod dense;
mod encoder;
mod generator;
mod object;
mod parameters;
mod system;
mod tables;
#[cfg(test)]
mod tests;

pub use decoder::{Decoder, DecodingPlan, deficit};
pub use dense::Inverse;
pub use dense::precode;
pub use encoder::{Encoder, EncodingPlan};
pub use generator::Generator;
pub use object::{ObjectDecoder, ObjectEncoder, Oti, Partition, PayloadId};
pub(super) use parameters::next_prime;
pub use parameters::{Parameters, Tuple};
pub(super) use tables::RANDOM;

pub use super::raptor::{Arrival, Plan};

use std::sync::Arc;

use ncs_gf::dense::Failed;

/// The method of finding missing symbols. All methods succeed on the same sets of symbols.
#[derive(Debug, Clone, Default)]
pub enum Method {
    /// Inactivation decoding (RFC 6330, section 5.4.2): sparse as far as the structure is, for
    /// every K.
    #[default]
    Inactivation,
    /// Dense inversion of the whole system: the first scheme of the thesis of Vicente (2015). For K
    /// up to [`DENSE_K_MAX`].
    Inversion,
    /// Inversion of the missing source symbols' part of the repair symbols only: the second scheme,
    /// matrix-dimensionality reduction (Guo 2014), with the inverse that source symbols have in
    /// common. For K up to [`DENSE_K_MAX`].
    Reduction(Arc<Inverse>),
}

/// Maximum number of source symbols for the methods with dense matrices: their memory grows with
/// the square of K, and the time of the first with its cube.
pub const DENSE_K_MAX: u32 = 4096;

pub use crate::block::ESI_END;

/// Why a block or object cannot be encoded or decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
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

impl From<Failed> for Error {
    fn from(_: Failed) -> Self {
        Self::Algebra
    }
}
