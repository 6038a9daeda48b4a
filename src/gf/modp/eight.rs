//! Eight products at a time, in 52-bit limbs.

use super::{Lanes, is_below, negative_inverse, power_of_two, subtract};
use crate::gf::simd::ifma::{Ifma, LIMB, LIMB_BITS, Octet, WIDTH};

/// A modulus of `L` limbs of 52 bits, at least sixteen of which are not its own: numbers lie below twice the modulus.
#[derive(Debug)]
pub(crate) struct Eight<const L: usize> {
    ifma: Ifma,
    /// 64-bit limbs.
    modulus: Box<[u64]>,
    limbs: [u64; L],
    /// -1 / modulus, modulo 2^52.
    inverse: u64,
}

impl<const L: usize> Eight<L> {
    /// # Panics
    /// If the modulus is even, or does not leave sixteen bits of the limbs.
    pub(crate) fn new(ifma: Ifma, modulus: &[u64]) -> Self {
        assert!(modulus[0] & 1 == 1 && 64 * modulus.len() + 16 <= LIMB_BITS * L, "an odd modulus");
        let mut limbs = [0; L];
        narrow(modulus, &mut limbs);
        Self { ifma, modulus: modulus.into(), limbs, inverse: negative_inverse(modulus[0]) & LIMB }
    }
}

impl<const L: usize> Lanes for Eight<L> {
    type Wide = [Octet; L];

    const WIDTH: usize = WIDTH;
    const STRIDE: usize = L.next_multiple_of(WIDTH);

    fn square(&self) -> Vec<u64> {
        power_of_two(2 * LIMB_BITS * L, &self.modulus)
    }

    fn write(&self, limbs: &[u64], place: &mut [u64]) {
        narrow(limbs, place);
    }

    fn read(&self, place: &[u64]) -> Vec<u64> {
        let mut number = vec![0; self.modulus.len() + 1];
        for (index, &limb) in place[..L].iter().enumerate() {
            let (whole, shift) = (index * LIMB_BITS / 64, index * LIMB_BITS % 64);
            number[whole] |= limb << shift;
            if shift > 64 - LIMB_BITS {
                number[whole + 1] |= limb >> (64 - shift);
            }
        }
        let modulus: Vec<u64> = self.modulus.iter().copied().chain([0]).collect();
        while !is_below(&number, &modulus) {
            subtract(&mut number, &modulus);
        }
        number.truncate(self.modulus.len());
        number
    }

    fn gather(&self, table: &[u64], places: &[u32]) -> [Octet; L] {
        self.ifma.gather(table, std::array::from_fn(|lane| places[lane] as usize * Self::STRIDE))
    }

    fn scatter(&self, wide: &[Octet; L], table: &mut [u64], places: &[u32]) {
        for (lane, &place) in places.iter().enumerate() {
            let place = &mut table[place as usize * Self::STRIDE..][..L];
            place.iter_mut().zip(wide).for_each(|(limb, octet)| *limb = octet.0[lane]);
        }
    }

    fn mul(&self, a: &[Octet; L], b: &[Octet; L]) -> [Octet; L] {
        self.ifma.montgomery(&self.limbs, self.inverse, a, b)
    }
}

/// A number in limbs of 52 bits.
fn narrow(number: &[u64], limbs: &mut [u64]) {
    for (index, limb) in limbs.iter_mut().enumerate() {
        let (whole, shift) = (index * LIMB_BITS / 64, index * LIMB_BITS % 64);
        let at = |index: usize| number.get(index).copied().unwrap_or(0);
        let high = if shift == 0 { 0 } else { at(whole + 1) << (64 - shift) };
        *limb = (at(whole) >> shift | high) & LIMB;
    }
}
