//! What distinguishes the two codes, besides their rows.

use std::fmt;

use super::held::Held;
use super::system::System;
use ncs_gf::Kernels;

/// One of the two codes: the constants of a block, from which its rows follow.
pub trait Code: System + Copy + PartialEq + fmt::Debug {
    /// Why blocks and symbols of this code are refused.
    type Error: From<Refusal> + PartialEq + fmt::Debug;

    /// What a decoder finds missing symbols with, besides the symbols.
    type Solver: fmt::Debug;

    /// Encoding symbol ids are below this.
    const ESI_END: u32;

    /// The constants of a block of `k` source symbols.
    fn of(k: u32) -> Result<Self, Self::Error>;

    /// The block, unless more symbols are needed, or the solver has failed.
    fn decode(
        &self,
        solver: &Self::Solver,
        held: &mut Held,
        kernels: Kernels,
    ) -> Result<Vec<u8>, Self::Error>;
}

/// Why both codes refuse an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Symbols, or a block, with a wrong length.
    #[error("got {length} bytes, expected {expected}")]
    Length {
        /// The given length in bytes.
        length: usize,
        /// The required length in bytes.
        expected: usize,
    },
    /// An encoding symbol id that the code does not have, or that came twice.
    #[error("encoding symbol {esi} is out of range, or came twice")]
    Esi {
        /// The id.
        esi: u32,
    },
    /// A plan, or a stored inverse, for another number of symbols, or for other symbols.
    #[error("the plan or stored inverse belongs to other symbols")]
    Mismatch,
    /// Symbols are missing.
    #[error("{missing} more symbols are needed")]
    Incomplete {
        /// Lower bound of their number.
        missing: usize,
    },
}
