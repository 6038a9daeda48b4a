//! Several products at a time, in 52-bit limbs.

use super::lanes::Lanes;
use crate::limbs::{is_below, negative_inverse_wide, power_of_two, subtract};
use crate::simd::fma::{Eight, Four, Quad};
use crate::simd::ifma::{Ifma, LIMB, LIMB_BITS, Octet};

/// Instructions that multiply numbers in 52-bit limbs.
pub trait Instructions: Copy + Sync {
    /// A limb of each number.
    type Limb: Copy + AsRef<[u64]>;

    /// Numbers multiplied at a time.
    const WIDTH: usize;

    /// The form in which [`Self::montgomery`] takes a limb of a modulus, or of its inverse.
    fn form(limb: u64) -> u64;

    /// a · b / 2^(52 L) modulo a number, in each lane. The factors may be up to twice the modulus,
    /// and so may the product, if the modulus is below 2^(52 L - 2). `inverse` is -1 / modulus,
    /// modulo 2^104.
    fn montgomery<const L: usize>(
        self,
        modulus: &[u64; L],
        inverse: [u64; 2],
        a: &[Self::Limb; L],
        b: &[Self::Limb; L],
    ) -> [Self::Limb; L];

    /// The numbers that begin at `start(lane)` for each lane, in a table that has whole groups of
    /// [`Self::WIDTH`] limbs of each.
    fn gather<const L: usize>(
        self,
        table: &[u64],
        start: impl Fn(usize) -> usize,
    ) -> [Self::Limb; L];
}

impl Instructions for Ifma {
    type Limb = Octet;

    const WIDTH: usize = 8;

    fn form(limb: u64) -> u64 {
        limb
    }

    fn montgomery<const L: usize>(
        self,
        modulus: &[u64; L],
        inverse: [u64; 2],
        a: &[Octet; L],
        b: &[Octet; L],
    ) -> [Octet; L] {
        self.montgomery(modulus, inverse[0], a, b)
    }

    fn gather<const L: usize>(self, table: &[u64], start: impl Fn(usize) -> usize) -> [Octet; L] {
        self.gather(table, std::array::from_fn(start))
    }
}

/// Instructions that multiply doubles.
macro_rules! doubles {
    ($instructions:ty, $limb:ty, $width:literal) => {
        impl Instructions for $instructions {
            type Limb = $limb;

            const WIDTH: usize = $width;

            #[expect(clippy::cast_precision_loss, reason = "52 bits of 53")]
            fn form(limb: u64) -> u64 {
                (limb as f64).to_bits()
            }

            fn montgomery<const L: usize>(
                self,
                modulus: &[u64; L],
                inverse: [u64; 2],
                a: &[$limb; L],
                b: &[$limb; L],
            ) -> [$limb; L] {
                self.montgomery(modulus, inverse, a, b)
            }

            fn gather<const L: usize>(
                self,
                table: &[u64],
                start: impl Fn(usize) -> usize,
            ) -> [$limb; L] {
                self.gather(table, std::array::from_fn(start))
            }
        }
    };
}

doubles!(Eight, Octet, 8);
doubles!(Four, Quad, 4);

/// A modulus in `L` limbs of 52 bits, of which it leaves at least sixteen bits free: numbers are
/// below twice the modulus.
#[derive(Debug)]
pub struct Several<I, const L: usize> {
    instructions: I,
    /// 64-bit limbs.
    modulus: Box<[u64]>,
    /// In the instructions' form, like the inverse.
    limbs: [u64; L],
    /// -1 / modulus, modulo 2^104.
    inverse: [u64; 2],
}

impl<I: Instructions, const L: usize> Several<I, L> {
    /// # Panics
    /// If the modulus is even, or does not leave sixteen bits of the limbs.
    pub fn new(instructions: I, modulus: &[u64]) -> Self {
        assert!(
            modulus[0] & 1 == 1 && 64 * modulus.len() + 16 <= LIMB_BITS * L,
            "an odd modulus"
        );
        let (mut limbs, mut inverse) = ([0; L], [0; 2]);
        narrow(modulus, &mut limbs);
        let lowest = u128::from(modulus[0]) | u128::from(modulus[1]) << 64;
        narrow(&halves(negative_inverse_wide(lowest)), &mut inverse);
        Self {
            instructions,
            modulus: modulus.into(),
            limbs: limbs.map(I::form),
            inverse: inverse.map(I::form),
        }
    }
}

impl<I: Instructions, const L: usize> Lanes for Several<I, L> {
    type Wide = [I::Limb; L];

    const WIDTH: usize = I::WIDTH;
    const STRIDE: usize = L.next_multiple_of(I::WIDTH);

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

    fn gather(&self, table: &[u64], places: &[u32]) -> Self::Wide {
        self.instructions
            .gather(table, |lane| places[lane] as usize * Self::STRIDE)
    }

    fn scatter(&self, wide: &Self::Wide, table: &mut [u64], places: &[u32]) {
        for (lane, &place) in places.iter().enumerate() {
            let place = &mut table[place as usize * Self::STRIDE..][..L];
            place
                .iter_mut()
                .zip(wide)
                .for_each(|(limb, all)| *limb = all.as_ref()[lane]);
        }
    }

    fn mul(&self, a: &Self::Wide, b: &Self::Wide) -> Self::Wide {
        self.instructions
            .montgomery(&self.limbs, self.inverse, a, b)
    }
}

/// A number in limbs of 52 bits.
fn narrow(number: &[u64], limbs: &mut [u64]) {
    for (index, limb) in limbs.iter_mut().enumerate() {
        let (whole, shift) = (index * LIMB_BITS / 64, index * LIMB_BITS % 64);
        let at = |index: usize| number.get(index).copied().unwrap_or(0);
        let high = if shift == 0 {
            0
        } else {
            at(whole + 1) << (64 - shift)
        };
        *limb = (at(whole) >> shift | high) & LIMB;
    }
}

/// A number of two 64-bit limbs.
#[expect(clippy::cast_possible_truncation, reason = "the halves are meant")]
fn halves(number: u128) -> [u64; 2] {
    [number as u64, (number >> 64) as u64]
}
