//! One product at a time, in 64-bit limbs.

use super::lanes::Lanes;
use crate::limbs::{is_below, negative_inverse, power_of_two, split, subtract};

/// A modulus of `L` limbs, whose top bit is set.
#[derive(Debug)]
pub struct Portable<const L: usize> {
    modulus: [u64; L],
    /// -1 / modulus, modulo 2^64.
    inverse: u64,
}

impl<const L: usize> Portable<L> {
    /// # Panics
    /// If the modulus has another number of limbs, is even, or its top bit is not set.
    pub fn new(modulus: &[u64]) -> Self {
        assert!(
            modulus.len() == L && modulus[0] & 1 == 1 && modulus[L - 1] >> 63 == 1,
            "an odd modulus of {L} limbs"
        );
        Self {
            modulus: modulus.try_into().expect("as many limbs"),
            inverse: negative_inverse(modulus[0]),
        }
    }

    /// a · b / 2^(64 L): Montgomery's product, limb by limb of a (Koç, Acar and Kaliski, "Analyzing
    /// and Comparing Montgomery Multiplication Algorithms", 1996: CIOS).
    fn product(&self, a: &[u64; L], b: &[u64; L]) -> [u64; L] {
        let (mut sum, mut top) = ([0; L], 0);
        for &a in a {
            let mut carry = 0;
            for (sum, &b) in sum.iter_mut().zip(b) {
                (*sum, carry) =
                    split(u128::from(a) * u128::from(b) + u128::from(*sum) + u128::from(carry));
            }
            let (above, is_over) = carry.overflowing_add(top);
            let factor = sum[0].wrapping_mul(self.inverse);
            let (_, mut carry) =
                split(u128::from(factor) * u128::from(self.modulus[0]) + u128::from(sum[0]));
            for index in 1..L {
                (sum[index - 1], carry) = split(
                    u128::from(factor) * u128::from(self.modulus[index])
                        + u128::from(sum[index])
                        + u128::from(carry),
                );
            }
            let (last, is_over_again) = above.overflowing_add(carry);
            sum[L - 1] = last;
            top = u64::from(is_over) + u64::from(is_over_again);
        }
        if top > 0 || !is_below(&sum, &self.modulus) {
            subtract(&mut sum, &self.modulus);
        }
        sum
    }
}

impl<const L: usize> Lanes for Portable<L> {
    type Wide = [u64; L];

    const WIDTH: usize = 1;
    const STRIDE: usize = L;

    fn square(&self) -> Vec<u64> {
        power_of_two(128 * L, &self.modulus)
    }

    fn write(&self, limbs: &[u64], place: &mut [u64]) {
        place.fill(0);
        place[..limbs.len()].copy_from_slice(limbs);
    }

    fn read(&self, place: &[u64]) -> Vec<u64> {
        place.to_vec()
    }

    fn gather(&self, table: &[u64], places: &[u32]) -> [u64; L] {
        table[places[0] as usize * L..][..L]
            .try_into()
            .expect("a number")
    }

    fn scatter(&self, wide: &[u64; L], table: &mut [u64], places: &[u32]) {
        if let Some(&place) = places.first() {
            table[place as usize * L..][..L].copy_from_slice(wide);
        }
    }

    fn mul(&self, a: &[u64; L], b: &[u64; L]) -> [u64; L] {
        self.product(a, b)
    }
}
