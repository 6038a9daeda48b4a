//! Products modulo a large odd number, of 1024 or 2048 bits, many at a time.
//!
//! Numbers are in Montgomery's form (Math. Comp. 44, 1985) and lie in tables, one behind the other, as [`Lanes`] keeps them: who
//! multiplies takes as many at a time as it has lanes, each from its own place. An algorithm is so written once for one lane and for
//! eight.

#[cfg(target_arch = "x86_64")]
pub(crate) use eight::Eight;
pub(crate) use portable::Portable;

#[cfg(target_arch = "x86_64")]
mod eight;
mod portable;

/// Who multiplies numbers modulo an odd number.
pub(crate) trait Lanes: Sync {
    /// One number in each lane.
    type Wide: Copy;

    /// How many numbers are multiplied at a time.
    const WIDTH: usize;

    /// 64-bit limbs of a number in a table.
    const STRIDE: usize;

    /// What a number is multiplied by to bring it into Montgomery's form: 64-bit limbs.
    fn square(&self) -> Vec<u64>;

    /// Writes the number with these 64-bit limbs, as many as the modulus has or fewer, as it is.
    fn write(&self, limbs: &[u64], place: &mut [u64]);

    /// The limbs of the number that is there as it is, below the modulus.
    fn read(&self, place: &[u64]) -> Vec<u64>;

    /// The numbers at these places of a table, one for each lane.
    fn gather(&self, table: &[u64], places: &[u32]) -> Self::Wide;

    /// Writes the first lanes' numbers, one for each of the places.
    fn scatter(&self, wide: &Self::Wide, table: &mut [u64], places: &[u32]);

    /// The products, lane by lane.
    fn mul(&self, a: &Self::Wide, b: &Self::Wide) -> Self::Wide;
}

/// -1 / `odd` modulo 2^64, by Newton's iteration.
pub(crate) const fn negative_inverse(odd: u64) -> u64 {
    let (mut inverse, mut step) = (odd, 0);
    while step < 6 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse.wrapping_neg()
}

/// 2^`exponent` modulo `modulus`, whose top bit is set.
pub(crate) fn power_of_two(exponent: usize, modulus: &[u64]) -> Vec<u64> {
    let mut power = vec![0; modulus.len()];
    power[0] = 1;
    for _ in 0..exponent {
        let mut carry = 0;
        for limb in &mut power {
            let top = *limb >> 63;
            *limb = *limb << 1 | carry;
            carry = top;
        }
        if carry == 1 || !is_below(&power, modulus) {
            subtract(&mut power, modulus);
        }
    }
    power
}

/// Whether a < b, of as many limbs.
pub(crate) fn is_below(a: &[u64], b: &[u64]) -> bool {
    a.iter().rev().lt(b.iter().rev())
}

/// a - b modulo a power of 2.
pub(crate) fn subtract(a: &mut [u64], b: &[u64]) {
    let mut borrow = false;
    for (a, &b) in a.iter_mut().zip(b) {
        let (first, is_first) = a.overflowing_sub(b);
        let (second, is_second) = first.overflowing_sub(u64::from(borrow));
        (*a, borrow) = (second, is_first || is_second);
    }
}
