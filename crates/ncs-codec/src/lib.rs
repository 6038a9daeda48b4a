//! Which rows are asked for, and what is done with those that arrive: encode, recode, eliminate, decode.
//!
//! Nothing here does I/O or knows a clock, and randomness is an argument. Malformed input is an [`Error`]; a block that brings
//! nothing new is an [`Outcome`]. A decoder allocates from the shape it was made with, never from a number that a block brings.

use crate::block::Vector;
use crate::shape::{Codec, Generation};

pub mod block;
mod elimination;
pub mod hash;
pub mod numbers;
mod raptor;
pub mod raptor10;
pub mod raptorq;
pub mod rlnc;
pub mod rlnc_q;
pub mod rs;
pub mod shape;

/// What a block did for a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It raised the rank.
    Innovative,
    /// It raised the rank to n: the generation can be finished.
    Complete,
    /// It is a combination of blocks held already. Expected now and then, from honest senders too.
    Redundant,
}

/// A block or a call that does not fit the generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A source block with an index that the generation does not have.
    #[error("source block {index} is out of range: the generation has {n}")]
    Index {
        /// The index it came with.
        index: u16,
        /// Blocks of the generation.
        n: u16,
    },
    /// A vector with another number of coefficients.
    #[error("the coding vector has {length} coefficients, but the generation has {n} blocks")]
    Vector {
        /// Coefficients that it has.
        length: usize,
        /// Blocks of the generation.
        n: u16,
    },
    /// A payload of another length.
    #[error("the payload has {length} bytes, expected {expected}")]
    Payload {
        /// Bytes that it has.
        length: usize,
        /// Bytes that such a block has.
        expected: usize,
    },
    /// A vector of another code than the generation's, or of a number that the code does not have.
    #[error("{codec} makes no such block of a generation of {n}", codec = .codec.name())]
    Foreign {
        /// The code.
        codec: Codec,
        /// Blocks of the generation.
        n: u16,
    },
    /// Blocks are missing.
    #[error("{missing} more independent blocks are needed")]
    Incomplete {
        /// How many.
        missing: u16,
    },
}

/// Writes the coefficients of a checked vector over zeros, where a number stands for them.
///
/// # Panics
/// If it is one of random linear coding, of either field, or the number is not one of a generation of as many blocks as `row` is long.
pub fn write_number(vector: &Vector, row: &mut [u8]) {
    match vector {
        Vector::Source(index) => row[usize::from(*index)] = 1,
        Vector::Shard(number) => rs::cauchy_row(usize::from(*number), row),
        Vector::Symbol(esi) => raptorq::Generator::of(row.len()).row(*esi, row),
        Vector::Seed(_) | Vector::Explicit(_) | Vector::Unverified(_) => panic!("a row of random linear coding"),
        Vector::Narrow(_) | Vector::Wide(_) => panic!("a row over another field"),
    }
}

/// Refuses a block that cannot belong to `generation`.
fn check(generation: &Generation, vector: &Vector, payload: &[u8]) -> Result<(), Error> {
    let expected = check_vector(generation, vector)?;
    if payload.len() != expected {
        return Err(Error::Payload { length: payload.len(), expected });
    }
    Ok(())
}

/// The bytes of payload of a block with this vector, which must be one of the generation.
fn check_vector(generation: &Generation, vector: &Vector) -> Result<usize, Error> {
    let n = generation.n;
    if !is_made_by(generation, vector) {
        return Err(Error::Foreign { codec: generation.codec, n });
    }
    match vector {
        Vector::Source(index) if *index >= n => Err(Error::Index { index: *index, n }),
        Vector::Source(index) => Ok(generation.block_length(*index)),
        Vector::Explicit(coefficients) | Vector::Unverified(coefficients) if coefficients.len() != usize::from(n) => {
            Err(Error::Vector { length: coefficients.len(), n })
        }
        Vector::Seed(_) | Vector::Explicit(_) | Vector::Unverified(_) | Vector::Shard(_) | Vector::Symbol(_) => {
            Ok(block_bytes(generation))
        }
        Vector::Narrow(_) | Vector::Wide(_) => Err(Error::Foreign { codec: generation.codec, n }),
    }
}

/// Whether the code of a generation makes blocks of this kind, and one with this number. Source blocks are everyone's.
fn is_made_by(generation: &Generation, vector: &Vector) -> bool {
    match (vector, generation.codec) {
        // Of none that these decoders solve.
        (Vector::Narrow(_) | Vector::Wide(_), _) | (_, Codec::RlncQ { .. }) => false,
        (Vector::Source(_), _) => true,
        (Vector::Seed(_) | Vector::Explicit(_) | Vector::Unverified(_), codec) => codec == Codec::Rlnc,
        (Vector::Shard(number), Codec::ReedSolomon { .. }) => (generation.n..generation.numbered()).contains(number),
        (Vector::Symbol(esi), Codec::RaptorQ) => (u32::from(generation.n)..raptorq::ESI_END).contains(esi),
        (Vector::Shard(_) | Vector::Symbol(_), _) => false,
    }
}

fn block_bytes(generation: &Generation) -> usize {
    usize::try_from(generation.block_bytes).expect("a block fits in memory")
}

fn length(generation: &Generation) -> usize {
    usize::try_from(generation.length).expect("a generation fits in memory")
}
