//! Random linear network coding over GF(q), a prime field of 257 bits, with homomorphic hashes that
//! verify its blocks ([`hash`]).
//!
//! After Chu, Zhao and Wang, "Practical Random Linear Network Coding on GPUs" (NETWORKING 2009). A
//! block is m words of 32 bytes, big-endian, each of them an element. An encoder that has the
//! source combines its blocks with coefficients of 32 bits, at a fifth of the cost of full ones,
//! and as much less on the wire. A recoder combines coded blocks with coefficients of the whole
//! field. A coded word no longer fits 32 bytes: with this q one word in 23 is 2^256 or more. A
//! coded payload is therefore m × 32 bytes, the low 256 bits of each word, followed by ceil(m / 8)
//! bytes with the words' top bits. The top bit of word i is bit i mod 8, counted from the least
//! significant, of byte i / 8. Bits without a word are zero.
//!
//! Every block has exactly one form: parsers refuse coefficients and words of q or more
//! ([`Vector`], [`Payload`]), and recoded blocks are reduced. [`Arithmetic`] hides the processor
//! that computes: [`Cores`], or a card.

mod arithmetic;
mod block;
mod cores;
mod decoder;
mod error;
pub mod hash;
mod shape;
#[cfg(test)]
mod tests;

pub use arithmetic::{
    Arithmetic, Decode, Encode, Kept, NotKept, Place, Rebuilt, Recode, draw_factors, draw_rows,
};
pub use block::{Coded, Payload, Vector};
pub use cores::{Cores, ROWS_A_PART};
pub use decoder::Decoder;
pub use error::Error;
pub use ncs_gf::dense::Failed;
pub use shape::Shape;
