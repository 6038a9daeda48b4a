//! Blocks that are checked together, and their weights.

use rand::Rng;

use super::group::Parameters;
use super::hashes::Hashes;
use super::powers::Exponent;
use crate::gfq::block::Coded;
use ncs_gf::montgomery::Multiplier;

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
        Self {
            hashes,
            blocks,
            weights,
        }
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
    pub fn is_product(
        &self,
        multiplier: Multiplier,
        words: &[Exponent],
        coefficients: &[Exponent],
    ) -> bool {
        let (group, parameters) = (self.hashes.group(), Parameters::of(self.hashes.group()));
        parameters.fixed(group, multiplier, words)
            == parameters.product(multiplier, self.hashes.numbers(), coefficients)
    }
}

/// A non-zero weight, so that each block counts.
fn weight(rng: &mut impl Rng) -> Weight {
    loop {
        let weight = (u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()))
            >> (u128::BITS - WEIGHT_BITS);
        if weight != 0 {
            return weight;
        }
    }
}
