//! What the results have to be: sums of products as the field's definition has them, one coefficient after the other.
//!
//! The products are put in a table once, or checking would take longer than measuring. Nothing here is shared with the kernels.

use std::sync::LazyLock;

use crate::gf::gf256;

/// A byte field that something is measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Field {
    /// The product's, modulo x^8 + x^4 + x^3 + x^2 + 1.
    #[default]
    P11D,
    /// Rijndael's, modulo x^8 + x^4 + x^3 + x + 1, in which S2 measured. Kernels of the GPU alone take it.
    P11B,
}

impl Field {
    /// The reducing polynomial with its x^8.
    pub(super) const fn polynomial(self) -> u16 {
        match self {
            Self::P11D => gf256::POLYNOMIAL,
            Self::P11B => 0x11B,
        }
    }

    /// The sum of `row[i]` times block i of `blocks`, whose last one may be short.
    pub(super) fn combine(self, row: &[u8], blocks: &[u8], block_bytes: usize) -> Vec<u8> {
        let products: &Products = match self {
            Self::P11D => &P11D,
            Self::P11B => &P11B,
        };
        let mut sum = vec![0; block_bytes];
        for (&c, block) in row.iter().zip(blocks.chunks(block_bytes)) {
            let products = &products[usize::from(c)];
            sum.iter_mut().zip(block).for_each(|(sum, &byte)| *sum ^= products[usize::from(byte)]);
        }
        sum
    }
}

/// In the product's field.
pub(super) fn combine(row: &[u8], blocks: &[u8], block_bytes: usize) -> Vec<u8> {
    Field::P11D.combine(row, blocks, block_bytes)
}

impl std::str::FromStr for Field {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "0x11d" => Ok(Self::P11D),
            "0x11b" => Ok(Self::P11B),
            _ => Err("0x11d and 0x11b are known".into()),
        }
    }
}

impl std::fmt::Display for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.polynomial())
    }
}

type Products = Vec<[u8; 256]>;

static P11D: LazyLock<Products> = LazyLock::new(|| products(gf256::mul));
static P11B: LazyLock<Products> = LazyLock::new(|| products(rijndael));

fn products(mul: impl Fn(u8, u8) -> u8) -> Products {
    let row = |c| std::array::from_fn(|byte| mul(c, u8::try_from(byte).expect("an index below 256")));
    (0..=u8::MAX).map(row).collect()
}

/// As FIPS 197 defines it: sums of doubled values.
fn rijndael(a: u8, b: u8) -> u8 {
    let double = |value: u8| (value << 1) ^ if value & 0x80 != 0 { 0x1B } else { 0 };
    let doubled = std::iter::successors(Some(a), |&value| Some(double(value)));
    doubled.zip(0..8).filter(|(_, bit)| b >> bit & 1 != 0).fold(0, |sum, (value, _)| sum ^ value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_fields_have_their_known_products() {
        assert_eq!(rijndael(0x57, 0x83), 0xC1, "the example of FIPS 197");
        assert_eq!(rijndael(0x53, 0xCA), 1);
        assert_eq!(Field::P11B.combine(&[0x57, 1], &[0x83, 0x10], 1), [0xD1]);
        assert_eq!(Field::P11D.combine(&[0x53, 0], &[0xCA, 9], 1), [0x8F]);
        assert_eq!("0x11B".parse(), Ok(Field::P11B));
        assert_eq!(Field::P11D.to_string(), "0x11d");
    }
}
