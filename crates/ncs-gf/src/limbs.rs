//! Numbers in limbs of 64 bits, the least significant first.

/// -1 / `odd` modulo 2^64, by Newton's iteration.
pub const fn negative_inverse(odd: u64) -> u64 {
    let (mut inverse, mut step) = (odd, 0);
    while step < 6 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse.wrapping_neg()
}

/// The same modulo 2^128, by one more step.
#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
pub const fn negative_inverse_wide(odd: u128) -> u128 {
    let inverse = negative_inverse(odd as u64).wrapping_neg() as u128;
    inverse
        .wrapping_mul(2_u128.wrapping_sub(odd.wrapping_mul(inverse)))
        .wrapping_neg()
}

/// 2^`exponent` modulo `modulus`, whose top bit is set.
pub fn power_of_two(exponent: usize, modulus: &[u64]) -> Vec<u64> {
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

/// Whether a < b, where both have the same number of limbs.
pub fn is_below(a: &[u64], b: &[u64]) -> bool {
    a.iter().rev().lt(b.iter().rev())
}

/// a - b modulo a power of 2.
pub fn subtract(a: &mut [u64], b: &[u64]) {
    let mut borrow = false;
    for (a, &b) in a.iter_mut().zip(b) {
        let (first, is_first) = a.overflowing_sub(b);
        let (second, is_second) = first.overflowing_sub(u64::from(borrow));
        (*a, borrow) = (second, is_first || is_second);
    }
}

/// The low and the high half.
#[expect(clippy::cast_possible_truncation, reason = "the halves are meant")]
#[inline]
pub(crate) const fn split(number: u128) -> (u64, u64) {
    (number as u64, (number >> 64) as u64)
}
