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
mod error;
mod parameters;
mod tables;
#[cfg(test)]
mod tests;

pub use decoder::{Decoder, DecodingPlan, deficit};
pub use encoder::{Encoder, EncodingPlan};
pub use error::Error;
pub use parameters::{ESI_END, Parameters, Triple};

pub use super::raptor::{Arrival, Plan, Refusal};
