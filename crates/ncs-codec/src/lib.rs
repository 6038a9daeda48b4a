//! Codecs: the rows of each code, and encoding, recoding, elimination and decoding.
//!
//! This crate does no I/O and knows no clock; randomness is an argument. Malformed input is an
//! [`Error`]; a redundant block is an [`Outcome`]. A decoder allocates by the shape that it was
//! made with, never by a number from a block.
//!
//! # Random linear coding
//!
//! A generation of eight blocks; three of its blocks are lost, and three coded ones take their
//! place:
//!
//! ```
//! use ncs_codec::Outcome;
//! use ncs_codec::block::Vector;
//! use ncs_codec::rlnc::{Decoder, Encoder};
//! use ncs_codec::shape::Shape;
//! use ncs_gf::{Kernels, RowKey};
//!
//! let source: Vec<u8> = (0..500_u16).map(|byte| byte.to_be_bytes()[1]).collect();
//! let shape = Shape::new(500, 64, 8)?;
//! let generation = shape.generation(0).expect("a segment has a generation");
//! let (key, kernels) = (RowKey { key: 7, generation: 0 }, Kernels::detect());
//! let encoder = Encoder::new(&generation, &source, key, kernels)?;
//!
//! let mut decoder = Decoder::new(generation, key, kernels);
//! // Source blocks travel without padding: the last one is shorter.
//! for (index, block) in (0..).zip(source.chunks(64)).filter(|(index, _)| index % 3 != 0) {
//!     assert_eq!(decoder.absorb(&Vector::Source(index), block)?, Outcome::Innovative);
//! }
//! for seed in 1.. {
//!     let mut block = [0; 64];
//!     encoder.block(seed, &mut block);
//!     if decoder.absorb(&Vector::Seed(seed), &block)? == Outcome::Complete {
//!         break;
//!     }
//! }
//! assert_eq!(decoder.into_bytes()?, source);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Reed-Solomon
//!
//! Four chunks and two parity chunks, any four of which rebuild the others:
//!
//! ```
//! use std::num::NonZeroUsize;
//!
//! use ncs_codec::rs::{Code, Matrix};
//! use ncs_gf::Kernels;
//!
//! let (kernels, threads) = (Kernels::detect(), NonZeroUsize::MIN);
//! let code = Code::new(Matrix::Cauchy, 4, 6)?;
//! let data = [b"four", b"data", b"chun", b"ks.."].map(|chunk| &chunk[..]);
//! let (mut p, mut q) = ([0; 4], [0; 4]);
//! code.encode(kernels, &data, &mut [&mut p[..], &mut q[..]], threads)?;
//!
//! // Chunks 0 and 2 are lost.
//! let chunks = [data[0], data[1], data[2], data[3], &p[..], &q[..]];
//! let repair = code.repair(kernels, &[1, 3, 4, 5], &[0, 2])?;
//! let sources: Vec<&[u8]> = repair.sources().iter().map(|&index| chunks[index]).collect();
//! let (mut first, mut third) = ([0; 4], [0; 4]);
//! repair.run(kernels, &sources, &mut [&mut first[..], &mut third[..]], threads)?;
//! assert_eq!((&first, &third), (b"four", b"chun"));
//! # Ok::<(), ncs_codec::rs::Error>(())
//! ```
//!
//! # RaptorQ
//!
//! A block of ten symbols, of which the receiver gets repair symbols alone:
//!
//! ```
//! use ncs_codec::raptorq::{Decoder, Encoder, EncodingPlan, Error, Method};
//! use ncs_gf::Kernels;
//!
//! let source: Vec<u8> = (0..160).collect();
//! let kernels = Kernels::detect();
//! let encoder = Encoder::new(source.clone(), 16, &EncodingPlan::new(10)?, kernels)?;
//! let mut decoder = Decoder::new(10, 16, Method::Inactivation, kernels)?;
//! let decoded = (10..).find_map(|esi| {
//!     let mut symbol = [0; 16];
//!     encoder.symbol(esi, &mut symbol).ok()?;
//!     decoder.push(esi, &symbol).ok()?;
//!     decoder.decode().ok()
//! });
//! assert_eq!(decoded, Some(source));
//! # Ok::<(), Error>(())
//! ```

use crate::block::Vector;
use crate::shape::{Codec, Generation};

pub mod block;
mod elimination;
pub mod gfq;
pub mod numbers;
pub mod raptor;
pub mod raptor10;
pub mod raptorq;
pub mod rlnc;
pub mod rs;
pub mod shape;

pub use gfq::hash;

/// The effect of a block on a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The block raised the rank.
    Innovative,
    /// The block raised the rank to n: the generation can be finished.
    Complete,
    /// The block is a combination of stored blocks. This happens now and then, with honest senders
    /// too.
    Redundant,
}

/// A block or a call that does not fit the generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A source block with an index outside the generation.
    #[error("source block {index} is out of range: the generation has {n}")]
    Index {
        /// Its index.
        index: u16,
        /// Blocks of the generation.
        n: u16,
    },
    /// A vector with a wrong number of coefficients.
    #[error("the coding vector has {length} coefficients, but the generation has {n} blocks")]
    Vector {
        /// Its number of coefficients.
        length: usize,
        /// Blocks of the generation.
        n: u16,
    },
    /// A payload with a wrong length.
    #[error("the payload has {length} bytes, expected {expected}")]
    Payload {
        /// Its length in bytes.
        length: usize,
        /// Bytes of such a block.
        expected: usize,
    },
    /// A vector of another code than the generation's, or with a number that the code does not
    /// have.
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
        /// How many blocks are missing.
        missing: u16,
    },
}

/// Writes the coefficients of a checked vector that is a number, over zeros.
///
/// # Panics
/// If it is one of random linear coding, of either field, or the number is not one of a generation
/// of as many blocks as `row` is long.
pub fn write_number(vector: &Vector, row: &mut [u8]) {
    match vector {
        Vector::Source(index) => row[usize::from(*index)] = 1,
        Vector::Shard(number) => rs::cauchy_row(usize::from(*number), row),
        Vector::Symbol(esi) => raptorq::Generator::of(row.len()).row(*esi, row),
        Vector::Seed(_) | Vector::Explicit(_) | Vector::Unverified(_) => {
            panic!("a row of random linear coding")
        }
        Vector::Narrow(_) | Vector::Wide(_) => panic!("a row over another field"),
    }
}

/// Refuses a block that cannot belong to `generation`.
fn check(generation: &Generation, vector: &Vector, payload: &[u8]) -> Result<(), Error> {
    let expected = check_vector(generation, vector)?;
    if payload.len() != expected {
        return Err(Error::Payload {
            length: payload.len(),
            expected,
        });
    }
    Ok(())
}

/// The payload length of a block with this vector, which must fit the generation.
fn check_vector(generation: &Generation, vector: &Vector) -> Result<usize, Error> {
    let n = generation.n;
    if !is_made_by(generation, vector) {
        return Err(Error::Foreign {
            codec: generation.codec,
            n,
        });
    }
    match vector {
        Vector::Source(index) if *index >= n => Err(Error::Index { index: *index, n }),
        Vector::Source(index) => Ok(generation.block_length(*index)),
        Vector::Explicit(coefficients) | Vector::Unverified(coefficients)
            if coefficients.len() != usize::from(n) =>
        {
            Err(Error::Vector {
                length: coefficients.len(),
                n,
            })
        }
        Vector::Seed(_)
        | Vector::Explicit(_)
        | Vector::Unverified(_)
        | Vector::Shard(_)
        | Vector::Symbol(_) => Ok(block_bytes(generation)),
        Vector::Narrow(_) | Vector::Wide(_) => Err(Error::Foreign {
            codec: generation.codec,
            n,
        }),
    }
}

/// Whether the code of a generation makes blocks of this kind, with this number. Every code has
/// source blocks.
fn is_made_by(generation: &Generation, vector: &Vector) -> bool {
    match (vector, generation.codec) {
        // Of none that these decoders solve.
        (Vector::Narrow(_) | Vector::Wide(_), _) | (_, Codec::RlncQ { .. }) => false,
        (Vector::Source(_), _) => true,
        (Vector::Seed(_) | Vector::Explicit(_) | Vector::Unverified(_), codec) => {
            codec == Codec::Rlnc
        }
        (Vector::Shard(number), Codec::ReedSolomon { .. }) => {
            (generation.n..generation.numbered()).contains(number)
        }
        (Vector::Symbol(esi), Codec::RaptorQ) => {
            (u32::from(generation.n)..raptorq::ESI_END).contains(esi)
        }
        (Vector::Shard(_) | Vector::Symbol(_), _) => false,
    }
}

fn block_bytes(generation: &Generation) -> usize {
    usize::try_from(generation.block_bytes).expect("a block fits in memory")
}

fn length(generation: &Generation) -> usize {
    usize::try_from(generation.length).expect("a generation fits in memory")
}
