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

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::Rng;

use super::rlnc_q::{Arithmetic, Coded, Failed, Shape};
pub use crate::shape::HashGroup as Group;
use group::Parameters;
use ncs_gf::gfq;
use ncs_gf::modp::{Multiplier, is_below};

#[cfg(test)]
pub(crate) use group::shake_256;

mod group;
mod powers;
#[cfg(test)]
mod tests;

impl Group {
    /// p, in limbs of 64 bits, the least significant first.
    pub fn modulus(self) -> &'static [u64] {
        &Parameters::of(self).p
    }

    /// The first generators, at least `count`, each a number below p in as many limbs. The first
    /// call derives them, once in a process, by a power modulo p each.
    ///
    /// # Panics
    /// If there are more than [`Shape::WORDS_MAX`].
    pub fn generators(self, count: usize) -> Arc<[Box<[u64]>]> {
        assert!(count <= usize::from(Shape::WORDS_MAX), "a block of {count} words");
        Parameters::of(self).generators(self, count)
    }

    /// The product of the first generators, each to the power of its exponent: big-endian,
    /// [`Self::hash_bytes`] long.
    pub fn power(self, multiplier: Multiplier, exponents: &[Exponent]) -> Vec<u8> {
        group::bytes(&Parameters::of(self).fixed(self, multiplier, exponents))
    }

    /// The label from which generators are derived, followed by their numbers.
    const fn generator_label(self) -> &'static str {
        match self {
            Self::P1024 => "g",
            Self::P2048 => "p2048g",
        }
    }
}

/// An exponent: a number of 320 bits, of which those above q's do not count.
pub type Exponent = [u64; gfq::LIMBS];

/// Why bytes are not hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The length is not that of n hashes.
    #[error("got {length} bytes of hashes, expected {expected}")]
    Length {
        /// Length of the given bytes.
        length: usize,
        /// Required length.
        expected: usize,
    },
    /// A hash that is zero, or not below p.
    #[error("hash {0} is not between 0 and p")]
    Number(usize),
}

/// The hashes of a generation's source blocks.
#[derive(Debug, Clone)]
pub struct Hashes {
    group: Group,
    shape: Shape,
    numbers: Arc<[Box<[u64]>]>,
}

impl Hashes {
    /// The hashes of the blocks of one generation, one after the other. **The caller must have
    /// checked that the maker of the source signed these bytes**: against any others, a check
    /// proves nothing.
    pub fn signed(group: Group, shape: Shape, bytes: &[u8]) -> Result<Self, Error> {
        let expected = shape.n() * group.hash_bytes();
        if bytes.len() != expected {
            return Err(Error::Length { length: bytes.len(), expected });
        }
        let number = |(index, bytes): (usize, &[u8])| {
            let limbs = group::limbs(bytes);
            let is_number = limbs.iter().any(|&limb| limb != 0) && is_below(&limbs, group.modulus());
            if is_number { Ok(limbs) } else { Err(Error::Number(index)) }
        };
        let numbers = bytes.chunks_exact(group.hash_bytes()).enumerate().map(number).collect::<Result<_, _>>()?;
        Ok(Self { group, shape, numbers })
    }

    /// The group of the hashes.
    pub fn group(&self) -> Group {
        self.group
    }

    /// The shape of the generation.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The numbers, each in as many limbs as the group's modulus, the least significant first.
    pub fn numbers(&self) -> &[Box<[u64]>] {
        &self.numbers
    }

    /// Approximate bytes of memory in use.
    pub fn memory_bytes(&self) -> usize {
        self.numbers.len() * (self.group.hash_bytes() + size_of::<Box<[u64]>>())
    }
}

/// The weight of a block in a batch, below 2^[`WEIGHT_BITS`].
pub type Weight = u128;

/// Bits of a weight: three limbs of a GPU card, two of AVX-512 IFMA.
pub const WEIGHT_BITS: u32 = 96;

/// Blocks of one generation, and the weights with which they are checked against its hashes.
#[derive(Debug)]
pub struct Batch<'a> {
    hashes: &'a Hashes,
    blocks: Vec<&'a Coded>,
    weights: Vec<Weight>,
}

impl<'a> Batch<'a> {
    /// A batch of received blocks, with weights from `rng`. **No party with influence on the blocks
    /// may be able to predict `rng`**: a sender that knows the weights can forge the batch. Draw
    /// from the operating system, after the blocks have arrived. Tests pass a seed.
    ///
    /// # Panics
    /// If a block does not have the hashes' shape.
    pub fn new(hashes: &'a Hashes, blocks: Vec<&'a Coded>, rng: &mut impl Rng) -> Self {
        let shape = hashes.shape();
        blocks.iter().for_each(|block| block.check(shape));
        let weights = blocks.iter().map(|_| weight(rng)).collect();
        Self { hashes, blocks, weights }
    }

    /// The hashes that verify the blocks.
    pub fn hashes(&self) -> &'a Hashes {
        self.hashes
    }

    /// The blocks.
    pub fn blocks(&self) -> &[&'a Coded] {
        &self.blocks
    }

    /// A weight for each block: secret until the batch has been checked.
    pub fn weights(&self) -> &[Weight] {
        &self.weights
    }

    /// Whether the product of generators to the power of `words` equals that of the hashes to the
    /// power of `coefficients`. The arguments are the two weighted sums of the batch; this is the
    /// last step of its check.
    pub fn is_product(&self, multiplier: Multiplier, words: &[Exponent], coefficients: &[Exponent]) -> bool {
        let (group, parameters) = (self.hashes.group, Parameters::of(self.hashes.group));
        parameters.fixed(group, multiplier, words) == parameters.product(multiplier, &self.hashes.numbers, coefficients)
    }
}

/// A non-zero weight, so that each block counts.
fn weight(rng: &mut impl Rng) -> Weight {
    loop {
        let weight = (u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64())) >> (u128::BITS - WEIGHT_BITS);
        if weight != 0 {
            return weight;
        }
    }
}

/// The verdict of [`sort_out`] on a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// The block matches its coefficients.
    Right,
    /// The block does not match its coefficients.
    Wrong,
    /// Not tested: its sender had already sent a wrong block.
    Untested,
}

/// The result of [`sort_out`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sorted {
    /// The finding on each block.
    pub findings: Vec<Finding>,
    /// The number of batches tested.
    pub batches: u64,
}

/// Separates right blocks from wrong ones. It tests all blocks at once, then those of each sender,
/// and bisects the blocks of a sender of a wrong one until the first is found. The sender's later
/// blocks are not tested: the sender is no longer used, and must not be able to cause as many tests
/// as it sends wrong blocks.
///
/// # Panics
/// If [`Batch::new`] does.
pub fn sort_out<S: Copy + Ord>(
    arithmetic: &dyn Arithmetic,
    hashes: &Hashes,
    blocks: &[(S, &Coded)],
    rng: &mut impl Rng,
) -> Result<Sorted, Failed> {
    let mut sorted = Sorted { findings: vec![Finding::Right; blocks.len()], batches: 0 };
    let Sorted { findings, batches } = &mut sorted;
    let mut holds = |some: &[&[usize]]| {
        *batches += some.len() as u64;
        let of = |places: &&[usize]| Batch::new(hashes, places.iter().map(|place| blocks[*place].1).collect(), rng);
        arithmetic.holds(&some.iter().map(of).collect::<Vec<_>>())
    };
    let all: Vec<usize> = (0..blocks.len()).collect();
    if all.is_empty() || holds(&[&all])?[0] {
        return Ok(sorted);
    }
    let mut senders: BTreeMap<S, Vec<usize>> = BTreeMap::new();
    for (place, (sender, _)) in blocks.iter().enumerate() {
        senders.entry(*sender).or_default().push(place);
    }
    let senders: Vec<Vec<usize>> = senders.into_values().collect();
    let mut suspects: Vec<&[usize]> = senders.iter().map(Vec::as_slice).collect();
    if suspects.len() > 1 {
        let verdicts = holds(&suspects)?;
        suspects = suspects.into_iter().zip(verdicts).filter_map(|(places, holds)| (!holds).then_some(places)).collect();
    }
    // Each has a wrong one among these, and everything before them is right.
    while !suspects.is_empty() {
        suspects.retain(|places| {
            if let [only] = places {
                findings[*only] = Finding::Wrong;
            }
            places.len() > 1
        });
        let halves: Vec<&[usize]> = suspects.iter().map(|places| &places[..places.len() / 2]).collect();
        if halves.is_empty() {
            break;
        }
        for (places, holds) in suspects.iter_mut().zip(holds(&halves)?) {
            let (first, second) = places.split_at(places.len() / 2);
            *places = if holds { second } else { first };
            if !holds {
                second.iter().for_each(|place| findings[*place] = Finding::Untested);
            }
        }
    }
    Ok(sorted)
}
