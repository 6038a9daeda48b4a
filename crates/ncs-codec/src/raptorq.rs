//! RaptorQ (RFC 6330): as many encoding symbols as anybody wants of a block of K source symbols, of which any K, and now and then one
//! or two more, give the block back.
//!
//! The source symbols are sent as they are. Behind them are repair symbols: sums of a few of L *intermediate symbols*, which S sparse
//! rows (LDPC) and H dense ones over GF(2^8) (HDPC) tie together. Each symbol, of source or repair, is a row of a system; what
//! arrives is solved for the intermediate symbols, and a symbol that is missing is a sum of those.
//!
//! Three decoders find the same bytes from the same symbols ([`Method`]). The default looks at the structure first, as that of Raptor10
//! does: `parameters` has the RFC's numbers, `super::raptor` what solves the system, and a [`Plan`] is the operations on symbols that
//! this takes. Nothing that one does to symbols depends on their bytes, so a plan can be kept. An encoder's ([`EncodingPlan`]) should
//! be, for one serves all blocks of the same K'.
//!
//! RaptorQ cannot be recoded: it is for a server and those who receive from it.

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

/// How missing symbols are found. All find them from the same sets of symbols.
#[derive(Debug, Clone, Default)]
pub enum Method {
    /// Inactivation decoding (RFC 6330, section 5.4.2): sparse as far as the structure is, for every K.
    #[default]
    Inactivation,
    /// The whole system, dense, is inverted: the first scheme of the thesis of Vicente (2015). For K up to [`DENSE_K_MAX`].
    Inversion,
    /// Only what the missing source symbols are in the repair symbols is inverted: the second scheme, matrix-dimensionality reduction
    /// (Guo 2014), with the inverse that source symbols have in common. For K up to [`DENSE_K_MAX`].
    Reduction(Arc<Inverse>),
}

/// Source symbols that the methods with dense matrices take at most: their memory grows with the square of K, and the time of the first
/// with its cube.
pub const DENSE_K_MAX: u32 = 4096;

pub use crate::block::ESI_END;

/// What cannot be encoded or decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A number of source symbols that no block has.
    #[error("{k} source symbols: a source block must have 1 to 56403")]
    Symbols {
        /// Source symbols.
        k: u32,
    },
    /// More source symbols than a method with dense matrices takes.
    #[error("{k} source symbols: dense matrices support at most 4096")]
    Dense {
        /// Source symbols.
        k: u32,
    },
    /// Symbols, or a block, of another length.
    #[error("got {length} bytes, expected {expected}")]
    Length {
        /// Bytes that came.
        length: usize,
        /// Bytes that belong there.
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
    /// Transmission information that no object has: a field and its value.
    #[error("{field} must not be {value}")]
    Oti {
        /// Which field.
        field: &'static str,
        /// What it was.
        value: u64,
    },
    /// Who inverts and multiplies dense matrices has failed.
    #[error("dense matrices could not be inverted or multiplied")]
    Algebra,
    /// Symbols are missing.
    #[error("{missing} more symbols are needed")]
    Incomplete {
        /// How many at least.
        missing: usize,
    },
}

impl From<Failed> for Error {
    fn from(_: Failed) -> Self {
        Self::Algebra
    }
}
