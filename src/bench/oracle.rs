//! What the results have to be: sums of products as [`gf256::mul`] defines them, one coefficient after the other.
//!
//! The products are put in a table once, or checking would take longer than measuring. Nothing here is shared with the kernels.

use std::sync::LazyLock;

use crate::gf::gf256;

/// The sum of `row[i]` times block i of `blocks`, whose last one may be short.
pub(super) fn combine(row: &[u8], blocks: &[u8], block_bytes: usize) -> Vec<u8> {
    let mut sum = vec![0; block_bytes];
    for (&c, block) in row.iter().zip(blocks.chunks(block_bytes)) {
        let products = &PRODUCTS[usize::from(c)];
        sum.iter_mut().zip(block).for_each(|(sum, &byte)| *sum ^= products[usize::from(byte)]);
    }
    sum
}

static PRODUCTS: LazyLock<Vec<[u8; 256]>> = LazyLock::new(|| {
    let row = |c| std::array::from_fn(|byte| gf256::mul(c, u8::try_from(byte).expect("an index below 256")));
    (0..=u8::MAX).map(row).collect()
});
