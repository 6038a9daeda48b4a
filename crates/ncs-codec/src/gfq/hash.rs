//! Homomorphic hashes of blocks over GF(q): with the hashes of the source blocks, any party can
//! verify a coded block.
//!
//! After Krohn, Freedman and Mazières ("On-the-fly verification of rateless erasure codes", IEEE
//! S&P 2004), as Chu, Zhao and Wang compute them (NETWORKING 2009): the hash of a block of words
//! b_k is the product of g_k^b_k modulo p, for fixed generators g_k of the group of order q. The
//! hash of a combination of blocks is then the product of their hashes, each to the power of its
//! coefficient. A second block with the same hash gives a relation between generators, that is, a
//! discrete logarithm. docs/hashes.md gives the origin of p, q and the generators, and their
//! derivation.
//!
//! A check of one block takes as many products modulo p as a check of hundreds. Blocks are
//! therefore checked in batches ([`Batch`]), after Bellare, Garay and Rabin (EUROCRYPT 1998). Each
//! block gets a weight that its maker cannot have known. The weighted sum is right if all blocks
//! are right. If one is wrong, the sum is wrong, except with probability 2^-96.
//!
//! **Hashes prove nothing unless the maker of the source has signed them** ([`Hashes::signed`]).
//! The code does not check that a hash is in the group of order q: hashes outside of it, chosen by
//! the same party as the blocks, may cancel.

pub(super) mod batch;
mod group;
mod hashes;
pub(super) mod powers;
mod sort_out;
#[cfg(test)]
mod tests;

pub use crate::shape::HashGroup as Group;
pub use batch::{Batch, WEIGHT_BITS, Weight};
#[cfg(test)]
pub(crate) use group::shake_256;
pub use hashes::{Error, Hashes};
pub use powers::Exponent;
pub use sort_out::{Finding, Sorted, sort_out};
