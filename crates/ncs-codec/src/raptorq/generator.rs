//! Encoding symbols as rows: the combination of its block's source symbols that each symbol is.
//!
//! A repair symbol is a sum of intermediate symbols, and these are combinations of the source
//! symbols with elements of GF(2^8). It is therefore a row of K such elements, like a block of a
//! random linear code. The intermediate symbols in terms of source symbols are found by encoding
//! the identity, whose symbol i is the i-th unit vector. The row is the same for all blocks of K
//! symbols, and dense: a symbol made by its row costs K multiplications, where an [`Encoder`] adds
//! a handful of symbols. In return, the code for any other row makes, tests and solves these
//! symbols, on any device, and one by one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::encoder::{Encoder, EncodingPlan};
use ncs_gf::Kernels;

/// The cache of generators, the most recently used ones.
static KNOWN: Mutex<VecDeque<(usize, Arc<Generator>)>> = Mutex::new(VecDeque::new());
/// Size of the cache. A segment has generations of two lengths; at K = 1024 each takes 2.2 MB.
const KNOWN_MAX: usize = 8;

/// The rows of all encoding symbols of blocks of K source symbols.
#[derive(Debug)]
pub struct Generator {
    encoder: Encoder,
}

impl Generator {
    /// The generator for blocks of `k` source symbols. The last few are cached: making one takes
    /// about as long as coding a block of K² bytes.
    ///
    /// # Panics
    /// If no block has so many symbols.
    pub fn of(k: usize) -> Arc<Self> {
        let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = known().iter().find(|(other, _)| *other == k) {
            return Arc::clone(found);
        }
        let made = Arc::new(Self::new(k));
        let mut known = known();
        if known.len() >= KNOWN_MAX {
            known.pop_front();
        }
        known.push_back((k, Arc::clone(&made)));
        made
    }

    /// Writes the row of the encoding symbol `esi`, K coefficients.
    ///
    /// # Panics
    /// If `esi` is 2^24 or more, or `row` is not K long.
    pub fn row(&self, esi: u32, row: &mut [u8]) {
        self.encoder
            .symbol(esi, row)
            .expect("ids of encoding symbols are checked when they come");
    }

    fn new(k: usize) -> Self {
        let plan = u32::try_from(k)
            .ok()
            .and_then(|k| EncodingPlan::new(k).ok())
            .expect("a block of the RFC");
        let identity = (0..k * k).map(|at| u8::from(at / k == at % k)).collect();
        let encoder = Encoder::new(identity, k, &plan, Kernels::detect())
            .expect("K symbols of K bytes, and their plan");
        Self { encoder }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raptorq::ESI_END;
    use ncs_gf::gf256;

    #[test]
    fn a_row_makes_the_symbol_that_the_encoder_makes() {
        for k in [1_u8, 2, 9, 10, 11, 33, 101] {
            let source: Vec<u8> = (0..u16::from(k) * 7)
                .map(|at| at.wrapping_mul(37).to_le_bytes()[0] ^ at.to_le_bytes()[1])
                .collect();
            let plan = EncodingPlan::new(k.into()).unwrap();
            let encoder = Encoder::new(source.clone(), 7, &plan, Kernels::detect()).unwrap();
            for esi in [0, u32::from(k), u32::from(k) + 1, 1000, 70_000, ESI_END - 1] {
                let (mut symbol, mut row) = ([0; 7], vec![0; k.into()]);
                encoder.symbol(esi, &mut symbol).unwrap();
                Generator::of(k.into()).row(esi, &mut row);
                for (at, byte) in symbol.into_iter().enumerate() {
                    let sum = row
                        .iter()
                        .zip(source.chunks(7))
                        .fold(0, |sum, (c, block)| sum ^ gf256::mul(*c, block[at]));
                    assert_eq!(byte, sum, "K = {k}, symbol {esi}");
                }
            }
        }
    }

    #[test]
    fn few_generators_are_remembered() {
        (1..=3 * KNOWN_MAX).for_each(|k| drop(Generator::of(k)));
        assert!(KNOWN.lock().unwrap().len() <= KNOWN_MAX);
    }
}
