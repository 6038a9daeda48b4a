//! What tests of both codes need.

use std::collections::HashSet;

use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

pub(crate) fn rng(seed: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed)
}

pub(crate) fn bytes(length: usize, rng: &mut SmallRng) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// So many ids, none twice.
pub(crate) fn random_esis(count: usize, end: u32, rng: &mut SmallRng) -> Vec<u32> {
    let mut esis = HashSet::new();
    std::iter::repeat_with(|| rng.random_range(0..end)).filter(|esi| esis.insert(*esi)).take(count).collect()
}
