//! The expected results: sums of products by the field's definition, one coefficient after another.
//!
//! A table of products is made once, because checking would otherwise take longer than measuring.
//! Nothing here is shared with the kernels.

use std::sync::LazyLock;

use crate::device::Field;
use crate::gf::gf256;

/// The sum of `row[i]` times block i of `blocks` in a field; the last block may be short.
pub fn combine_in(field: Field, row: &[u8], blocks: &[u8], block_bytes: usize) -> Vec<u8> {
    let products: &Products = match field {
        Field::Standard => &STANDARD,
        Field::Rijndael => &RIJNDAEL,
    };
    let mut sum = vec![0; block_bytes];
    for (&c, block) in row.iter().zip(blocks.chunks(block_bytes)) {
        let products = &products[usize::from(c)];
        sum.iter_mut()
            .zip(block)
            .for_each(|(sum, &byte)| *sum ^= products[usize::from(byte)]);
    }
    sum
}

/// The same in the field that streams use.
pub fn combine(row: &[u8], blocks: &[u8], block_bytes: usize) -> Vec<u8> {
    combine_in(Field::Standard, row, blocks, block_bytes)
}

type Products = Vec<[u8; 256]>;

static STANDARD: LazyLock<Products> = LazyLock::new(|| products(gf256::mul));
static RIJNDAEL: LazyLock<Products> = LazyLock::new(|| products(rijndael));

fn products(mul: impl Fn(u8, u8) -> u8) -> Products {
    let row =
        |c| std::array::from_fn(|byte| mul(c, u8::try_from(byte).expect("an index below 256")));
    (0..=u8::MAX).map(row).collect()
}

/// By the definition in FIPS 197: sums of doubled values.
fn rijndael(a: u8, b: u8) -> u8 {
    let double = |value: u8| (value << 1) ^ if value & 0x80 != 0 { 0x1B } else { 0 };
    let doubled = std::iter::successors(Some(a), |&value| Some(double(value)));
    doubled
        .zip(0..8)
        .filter(|(_, bit)| b >> bit & 1 != 0)
        .fold(0, |sum, (value, _)| sum ^ value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_fields_have_their_known_products() {
        assert_eq!(rijndael(0x57, 0x83), 0xC1, "the example of FIPS 197");
        assert_eq!(rijndael(0x53, 0xCA), 1);
        assert_eq!(
            combine_in(Field::Rijndael, &[0x57, 1], &[0x83, 0x10], 1),
            [0xD1]
        );
        assert_eq!(
            combine_in(Field::Standard, &[0x53, 0], &[0xCA, 9], 1),
            [0x8F]
        );
    }
}
