//! Raptor10 (RFC 5053) and RaptorQ (RFC 6330): encoder, decoder and solver, written once for both.
//!
//! The encoding symbols of a block are sums of a few of its L *intermediate symbols*. S sparse rows
//! (LDPC) and H dense rows tie these together. With the rows of enough encoding symbols, they form
//! a system with one solution, and every other symbol follows from it. The two codes differ in
//! these rows, which a [`System`] describes, and in few numbers, which a [`Code`] adds. The
//! solution is found on the structure alone: `rows` has the sparse system, `peel` and `solution`
//! solve it, and a [`Plan`] has the resulting operations on symbols. These operations never depend
//! on the symbols' bytes, so a plan can be kept.

mod block;
mod code;
mod decoder;
mod encoder;
mod held;
mod peel;
mod plan;
mod planning;
mod random;
mod rows;
mod solution;
mod system;
#[cfg(test)]
pub(super) mod testing;

pub use code::{Code, Refusal};
pub use decoder::{Decoder, DecodingPlan, deficit};
pub use encoder::{Encoder, EncodingPlan};
pub use held::{Arrival, Held};
pub use plan::Plan;
pub(super) use random::{RANDOM, next_prime};
pub(super) use system::columns;
pub use system::{Size, System, Walk, WalkEnd};
