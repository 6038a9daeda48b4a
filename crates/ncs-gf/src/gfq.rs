//! GF(q), the prime field of 257 bits, for blocks that are checked by homomorphic hashes
//! (`codec::gfq`).
//!
//! q lies between 2^256 and 2^257, so every word of 32 bytes is an element without conversion;
//! docs/hashes.md gives its origin. An [`Element`] is always below q. Sums of products are
//! accumulated without reduction and reduced once, at the end: [`Sum`] for products of elements,
//! [`NarrowSum`] for products of words with 32-bit numbers. [`Sum`] uses Montgomery's method (Math.
//! Comp. 44, 1985). One side of each of its products is therefore a [`Factor`], an element times
//! 2^320; this costs the sum nothing.

use std::fmt;

use rand::{Rng, RngExt};

use crate::limbs::split;
pub use crate::order::{LIMBS, Q, Q_INVERSE, RECIPROCAL};

pub mod dots;
pub mod matrix;
#[cfg(test)]
mod tests;

/// 32-bit limbs of an element, as GPU cards use them.
pub const LIMBS_32: usize = 9;
/// Bits of the modulus.
pub const BITS: usize = 257;
/// Bytes of an encoded element, big-endian.
pub const BYTES: usize = 33;
/// Bytes of a word of data, big-endian. Any such word is an element.
pub const WORD_BYTES: usize = 32;
/// Maximum number of products in a sum of either kind.
pub const TERMS_MAX: usize = 1 << 20;

/// The modulus in the encoding of an element.
pub const Q_BYTES: [u8; BYTES] = Element(Q).bytes();
/// 2^640 modulo q.
const R_SQUARED: [u64; LIMBS] = power_of_two(640);

/// A number below q.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Element([u64; LIMBS]);

impl Element {
    /// The neutral element of addition.
    pub const ZERO: Self = Self([0; LIMBS]);
    /// The neutral element of multiplication.
    pub const ONE: Self = Self([1, 0, 0, 0, 0]);

    /// The element with these limbs, unless they are q or more.
    pub const fn from_limbs(limbs: [u64; LIMBS]) -> Option<Self> {
        if subtract(&limbs, &Q).1 {
            Some(Self(limbs))
        } else {
            None
        }
    }

    /// Its limbs.
    pub const fn limbs(&self) -> &[u64; LIMBS] {
        &self.0
    }

    /// The element with these limbs of 32 bits, unless it is q or more.
    pub fn from_limbs_32(limbs: &[u32; LIMBS_32]) -> Option<Self> {
        let limb = |index: usize| limbs.get(index).map_or(0, |&limb| u64::from(limb));
        Self::from_limbs(std::array::from_fn(|index| {
            limb(2 * index) | limb(2 * index + 1) << 32
        }))
    }

    /// Its limbs of 32 bits, the least significant first.
    #[expect(clippy::cast_possible_truncation, reason = "half a limb is meant")]
    pub fn limbs_32(&self) -> [u32; LIMBS_32] {
        std::array::from_fn(|index| (self.0[index / 2] >> (32 * (index % 2))) as u32)
    }

    /// The element in these bytes, big-endian, unless it is q or more.
    pub fn from_bytes(bytes: &[u8; BYTES]) -> Option<Self> {
        let (top, word) = bytes.split_first()?;
        let mut element = Self::from_word(word.try_into().ok()?);
        element.0[LIMBS - 1] = u64::from(*top);
        Self::from_limbs(element.0)
    }

    /// The encoding of the element, big-endian.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        self.bytes()
    }

    #[expect(clippy::cast_possible_truncation, reason = "a byte is meant")]
    const fn bytes(self) -> [u8; BYTES] {
        let (mut bytes, mut index) = ([0; BYTES], 0);
        while index < BYTES {
            bytes[BYTES - 1 - index] = (self.0[index / 8] >> (8 * (index % 8))) as u8;
            index += 1;
        }
        bytes
    }

    /// The element of a word of data, big-endian. All words are below q.
    pub fn from_word(word: &[u8; WORD_BYTES]) -> Self {
        let mut limbs = [0; LIMBS];
        for (limb, bytes) in limbs.iter_mut().zip(word.as_chunks::<8>().0.iter().rev()) {
            *limb = u64::from_be_bytes(*bytes);
        }
        Self(limbs)
    }

    /// Its low 256 bits, big-endian: all of it, unless [`Self::is_wide`].
    pub fn low_word(&self) -> [u8; WORD_BYTES] {
        let mut word = [0; WORD_BYTES];
        for (bytes, limb) in word.as_chunks_mut::<8>().0.iter_mut().rev().zip(&self.0) {
            *bytes = limb.to_be_bytes();
        }
        word
    }

    /// The element of a word of data and its top bit, unless the number is q or more.
    pub fn from_word_and_bit(word: &[u8; WORD_BYTES], is_wide: bool) -> Option<Self> {
        let mut element = Self::from_word(word);
        element.0[LIMBS - 1] = u64::from(is_wide);
        Self::from_limbs(element.0)
    }

    /// Whether the element is 2^256 or more, so that it does not fit a word of data.
    pub const fn is_wide(&self) -> bool {
        self.0[LIMBS - 1] != 0
    }

    /// A random element, uniform over the field.
    pub fn random(rng: &mut impl Rng) -> Self {
        loop {
            // One in two is below q.
            let [a, b, c, d, e] = rng.random::<[u64; LIMBS]>();
            if let Some(element) = Self::from_limbs([a, b, c, d, e & 1]) {
                return element;
            }
        }
    }

    /// The sum.
    #[must_use]
    pub fn add(&self, other: &Self) -> Self {
        let mut limbs = [0; LIMBS];
        let mut carry = 0;
        for ((limb, &a), &b) in limbs.iter_mut().zip(&self.0).zip(&other.0) {
            (*limb, carry) = split(u128::from(a) + u128::from(b) + u128::from(carry));
        }
        Self(reduce_once(limbs))
    }

    /// The difference.
    #[must_use]
    pub fn sub(&self, other: &Self) -> Self {
        let (limbs, is_below) = subtract(&self.0, &other.0);
        if !is_below {
            return Self(limbs);
        }
        let mut sum = [0; LIMBS];
        let mut carry = 0;
        for ((sum, &limb), &q) in sum.iter_mut().zip(&limbs).zip(&Q) {
            (*sum, carry) = split(u128::from(limb) + u128::from(q) + u128::from(carry));
        }
        Self(sum)
    }

    /// The additive inverse.
    #[must_use]
    pub fn neg(&self) -> Self {
        Self::ZERO.sub(self)
    }

    /// The product. If one side stays the same, its [`Factor`] halves the work.
    #[must_use]
    pub fn mul(&self, other: &Self) -> Self {
        self.factor().times(other)
    }

    /// The element times 2^320, as a factor.
    #[must_use]
    pub fn factor(&self) -> Factor {
        Factor(Factor(Self(R_SQUARED)).times(self))
    }

    /// The multiplicative inverse; `None` for zero. By the binary form of Euclid's algorithm
    /// (Knuth, TAOCP 4.5.2, algorithm B extended), whose time depends on the number.
    #[must_use]
    pub fn inverse(&self) -> Option<Self> {
        if *self == Self::ZERO {
            return None;
        }
        // Invariants: `self` times `a_factor` is a, and times `b_factor` is b, modulo q; both are
        // odd where the loop begins.
        let (mut a, mut b, mut a_factor, mut b_factor) = (self.0, Q, Self::ONE, Self::ZERO);
        halve_until_odd(&mut a, &mut a_factor);
        while a != Self::ONE.0 {
            let (difference, is_below) = subtract(&a, &b);
            if is_below {
                (b, _) = subtract(&b, &a);
                b_factor = b_factor.sub(&a_factor);
                halve_until_odd(&mut b, &mut b_factor);
                (a, b, a_factor, b_factor) = (b, a, b_factor, a_factor);
            } else {
                a = difference;
                a_factor = a_factor.sub(&b_factor);
                halve_until_odd(&mut a, &mut a_factor);
            }
        }
        Some(a_factor)
    }

    /// The product of a weight and a coefficient that together have fewer bits than q.
    #[must_use]
    pub fn product(weight: u128, coefficient: u32) -> Self {
        let (low, high) = split(weight);
        let (first, carry) = split(u128::from(low) * u128::from(coefficient));
        let (second, third) = split(u128::from(high) * u128::from(coefficient) + u128::from(carry));
        Self([first, second, third, 0, 0])
    }
}

/// Halves a number that is not zero while it is even, and its factor as often, modulo q.
fn halve_until_odd(number: &mut [u64; LIMBS], factor: &mut Element) {
    while number[0] & 1 == 0 {
        halve(number);
        if factor.0[0] & 1 == 1 {
            let mut carry = 0;
            for (limb, &q) in factor.0.iter_mut().zip(&Q) {
                (*limb, carry) = split(u128::from(*limb) + u128::from(q) + u128::from(carry));
            }
        }
        halve(&mut factor.0);
    }
}

fn halve(number: &mut [u64; LIMBS]) {
    for index in 0..LIMBS - 1 {
        number[index] = number[index] >> 1 | number[index + 1] << 63;
    }
    number[LIMBS - 1] >>= 1;
}

impl From<u64> for Element {
    fn from(number: u64) -> Self {
        Self([number, 0, 0, 0, 0])
    }
}

impl From<u128> for Element {
    fn from(number: u128) -> Self {
        let (low, high) = split(number);
        Self([low, high, 0, 0, 0])
    }
}

impl fmt::Debug for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.to_bytes()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Inverts all elements by one inversion and three products each (Montgomery, Math. Comp. 48,
/// 1987). Returns false, and changes nothing, if one is zero.
pub fn invert_all(elements: &mut [Element]) -> bool {
    let mut product = Element::ONE;
    let mut before = Vec::with_capacity(elements.len());
    for element in elements.iter() {
        before.push(product);
        product = product.mul(element);
    }
    let Some(mut inverse) = product.inverse() else {
        return false;
    };
    for (element, before) in elements.iter_mut().zip(before).rev() {
        let factor = inverse.factor();
        inverse = factor.times(element);
        *element = factor.times(&before);
    }
    true
}

/// An element times 2^320, below q: the side of a product that is used often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Factor(Element);

impl Factor {
    /// The product of the factor's element and `other`.
    #[must_use]
    pub fn times(&self, other: &Element) -> Element {
        let mut sum = Sum::default();
        sum.add(self, other);
        sum.reduce()
    }

    /// The factor's element.
    #[must_use]
    pub fn element(&self) -> Element {
        self.times(&Element::ONE)
    }
}

/// A sum of products of elements: at most [`TERMS_MAX`] of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sum([u64; 2 * LIMBS]);

impl Sum {
    /// Adds a product.
    #[inline]
    pub fn add(&mut self, factor: &Factor, other: &Element) {
        for (index, &a) in factor.0.0.iter().enumerate() {
            let mut carry = 0;
            for (limb, &b) in self.0[index..].iter_mut().zip(&other.0) {
                (*limb, carry) =
                    split(u128::from(a) * u128::from(b) + u128::from(*limb) + u128::from(carry));
            }
            for limb in &mut self.0[index + LIMBS..] {
                let (sum, overflow) = limb.overflowing_add(carry);
                (*limb, carry) = (sum, u64::from(overflow));
            }
        }
    }

    /// The sum, modulo q.
    pub fn reduce(mut self) -> Element {
        for index in 0..LIMBS {
            let factor = self.0[index].wrapping_mul(Q_INVERSE);
            let mut carry = 0;
            for (limb, &q) in self.0[index..].iter_mut().zip(&Q) {
                (*limb, carry) = split(
                    u128::from(factor) * u128::from(q) + u128::from(*limb) + u128::from(carry),
                );
            }
            for limb in &mut self.0[index + LIMBS..] {
                let (sum, overflow) = limb.overflowing_add(carry);
                (*limb, carry) = (sum, u64::from(overflow));
            }
        }
        let [.., a, b, c, d, e] = self.0;
        Element(reduce_once([a, b, c, d, e]))
    }
}

/// A sum of products of words of data with 32-bit numbers: at most [`TERMS_MAX`] of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct NarrowSum([u64; LIMBS]);

impl NarrowSum {
    /// Adds a product.
    ///
    /// # Panics
    /// In debug builds, if the element is not a word of data.
    #[inline]
    pub fn add(&mut self, factor: u32, word: &Element) {
        debug_assert!(!word.is_wide(), "a word of data");
        let mut carry = 0;
        for (limb, &b) in self.0.iter_mut().zip(&word.0) {
            (*limb, carry) =
                split(u128::from(factor) * u128::from(b) + u128::from(*limb) + u128::from(carry));
        }
    }

    /// The sum, modulo q.
    pub fn reduce(self) -> Element {
        reduce_wide(self.0)
    }
}

/// A sum of products of elements with weights below 2^104: at most [`TERMS_MAX`] of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct WeightedSum([u64; LIMBS + 1]);

impl WeightedSum {
    /// Adds a product.
    ///
    /// # Panics
    /// In debug builds, if the weight has more than 104 bits.
    #[inline]
    pub fn add(&mut self, weight: u128, other: &Element) {
        debug_assert!(weight >> 104 == 0, "a weight of 104 bits");
        let (low, high) = split(weight);
        for (index, weight) in [low, high].into_iter().enumerate() {
            let mut carry = 0;
            for (limb, &b) in self.0[index..].iter_mut().zip(&other.0) {
                (*limb, carry) = split(
                    u128::from(weight) * u128::from(b) + u128::from(*limb) + u128::from(carry),
                );
            }
            // There is room for what the lower half carries, and the upper one carries nothing.
            if index == 0 {
                self.0[LIMBS] += carry;
            }
        }
    }

    /// The sum, modulo q.
    pub fn reduce(self) -> Element {
        let mut sum = Sum::default();
        sum.0[..=LIMBS].copy_from_slice(&self.0);
        sum.reduce().factor().0
    }
}

/// Any number of 320 bits, modulo q: Barrett's method, with the top limb for the quotient.
fn reduce_wide(limbs: [u64; LIMBS]) -> Element {
    // At most two too small: one for what the lower limbs, one for what the fraction of the
    // reciprocal would have added.
    let (_, quotient) = split(u128::from(limbs[LIMBS - 1]) * u128::from(RECIPROCAL));
    let mut rest = [0; LIMBS];
    let mut carry = 0;
    for ((rest, &limb), &q) in rest.iter_mut().zip(&limbs).zip(&Q) {
        let (low, high) = split(u128::from(quotient) * u128::from(q) + u128::from(carry));
        let (difference, borrow) = limb.overflowing_sub(low);
        (*rest, carry) = (difference, high + u64::from(borrow));
    }
    Element(reduce_once(reduce_once(rest)))
}

/// The difference modulo 2^320, and whether it is below zero.
const fn subtract(a: &[u64; LIMBS], b: &[u64; LIMBS]) -> ([u64; LIMBS], bool) {
    let (mut difference, mut borrow, mut index) = ([0; LIMBS], false, 0);
    while index < LIMBS {
        let (first, is_first) = a[index].overflowing_sub(b[index]);
        let (second, is_second) = first.overflowing_sub(borrow as u64);
        (difference[index], borrow) = (second, is_first || is_second);
        index += 1;
    }
    (difference, borrow)
}

/// A number below 2q, modulo q.
const fn reduce_once(limbs: [u64; LIMBS]) -> [u64; LIMBS] {
    let (difference, is_below) = subtract(&limbs, &Q);
    if is_below { limbs } else { difference }
}

/// 2^`exponent` modulo q.
const fn power_of_two(exponent: usize) -> [u64; LIMBS] {
    let (mut power, mut step) = ([1, 0, 0, 0, 0], 0);
    while step < exponent {
        let (mut index, mut carry) = (0, 0);
        while index < LIMBS {
            let limb: u64 = power[index];
            power[index] = limb << 1 | carry;
            carry = limb >> 63;
            index += 1;
        }
        power = reduce_once(power);
        step += 1;
    }
    power
}
