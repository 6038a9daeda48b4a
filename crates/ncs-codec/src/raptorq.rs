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
mod error;
mod generator;
mod object;
mod parameters;
mod system;
mod tables;
#[cfg(test)]
mod tests;

pub use decoder::{Decoder, DecodingPlan, Method, Solver, deficit};
pub use dense::{DENSE_K_MAX, Inverse, precode};
pub use encoder::{Encoder, EncodingPlan};
pub use error::Error;
pub use generator::Generator;
pub use object::{ObjectDecoder, ObjectEncoder, Oti, Partition, PayloadId};
pub use parameters::{Parameters, Tuple};

pub use super::raptor::{Arrival, Plan, Refusal};
pub use crate::block::ESI_END;
