//! The product of large numbers, written once for both instruction sets.

/// The products, for one instruction set.
///
/// The file that uses the macro defines the proof that the processor has the features, `Limb` (one
/// of each of so many numbers), `Bits` and `Double` (vectors of as many), and, with the same
/// features enabled, the functions `broadcast`, `load`, `store`, `add`, `sub`, `and`, `or`,
/// `above_limb` (shifted down by 52 bits), `double` and `bits` (one vector as the other), `minus`,
/// and `fused` (a · b + c).
macro_rules! products {
    ($proof:ident, $features:literal) => {
        use std::array;
        use std::hint::black_box;

        use super::products::{BIAS, BOTH, HIGH, LOW, ONE, start};
        use crate::simd::ifma::LIMB;

        impl $proof {
            /// a · b / 2^(52 L) modulo a number, in each lane, without a last subtraction: the
            /// factors may be up to twice the modulus, and so may the product, if the modulus is
            /// below 2^(52 L - 2). `inverse` is -1 / modulus, modulo 2^104. Both are the bits of
            /// doubles. `L` is even, and at least four.
            pub fn montgomery<const L: usize>(
                self,
                modulus: &[u64; L],
                inverse: [u64; 2],
                a: &[Limb; L],
                b: &[Limb; L],
            ) -> [Limb; L] {
                const {
                    assert!(
                        L.is_multiple_of(2) && 4 <= L && L <= 64,
                        "pairs of limbs, and sums below 2^60"
                    )
                };
                // SAFETY: `self` is the proof that the processor has the features.
                unsafe { montgomery(modulus, inverse, a, b) }
            }
        }

        /// A limb of the first factor, and one of the modulus.
        #[derive(Clone, Copy)]
        struct Row {
            a: Double,
            modulus: Double,
        }

        /// Two limbs of the second factor, and the multiplier of the modulus for each.
        struct Pair {
            b: [Double; 2],
            factors: [Double; 2],
        }

        #[target_feature(enable = $features)]
        fn montgomery<const L: usize>(
            modulus: &[u64; L],
            inverse: [u64; 2],
            a: &[Limb; L],
            b: &[Limb; L],
        ) -> [Limb; L] {
            let inverse = inverse.map(|limb| double(broadcast(limb)));
            let row = |index: usize| Row {
                a: number(load(&a[index])),
                modulus: double(broadcast(modulus[index])),
            };
            let rows: [Row; L] = array::from_fn(row);
            let pair = |index: usize| [number(load(&b[index])), number(load(&b[index + 1]))];
            let mut sums = [[broadcast(0); L]; 2];
            let sums = sums.as_flattened_mut();
            sums[..L]
                .iter_mut()
                .enumerate()
                .for_each(|(index, sum)| *sum = broadcast(start(index, L)));
            // Not known to the compiler: loops that it writes out have more vectors at a time than
            // there are registers.
            let half = black_box(L / 2);
            add_lowest(&mut sums[..2], &rows, pair(0));
            let mut this = divide(&sums[..2], inverse, pair(0));
            let mut carried = settle(&sums[..2], &rows, &this);
            for place in (2..=L).step_by(2) {
                let sums = &mut sums[place..][..L];
                carried = pass(&mut sums[..2], &rows[2..4], &this, carried);
                if place < L {
                    add_lowest(&mut sums[..2], &rows, pair(place));
                }
                carried = pass(&mut sums[2..half], &rows[4..half + 2], &this, carried);
                let next = (place < L).then(|| divide(&sums[..2], inverse, pair(place)));
                carried = pass(&mut sums[half..L - 2], &rows[half + 2..], &this, carried);
                sums[L - 2] = add(broadcast(start(place + L - 2, L)), carried[0]);
                sums[L - 1] = add(broadcast(start(place + L - 1, L)), carried[1]);
                let Some(next) = next else { break };
                carried = settle(&sums[..2], &rows, &next);
                this = next;
            }
            let mut carry = broadcast(0);
            array::from_fn(|index| {
                let sum = add(sums[L + index], carry);
                carry = above_limb(sum);
                let mut limb = Limb::default();
                // What is carried out of the last stays there.
                store(
                    &mut limb,
                    if index + 1 < L {
                        and(sum, broadcast(LIMB))
                    } else {
                        sum
                    },
                );
                limb
            })
        }

        /// Adds the contributions of two more limbs to the lowest two sums only.
        #[inline]
        #[target_feature(enable = $features)]
        fn add_lowest(sums: &mut [Bits], rows: &[Row], b: [Double; 2]) {
            let (high_0, low_0) = product(rows[0].a, b[0]);
            let (_, low_1) = product(rows[0].a, b[1]);
            let (_, low_2) = product(rows[1].a, b[0]);
            sums[0] = sub(sums[0], low_0);
            sums[1] = sub(add(sums[1], high_0), add(low_1, low_2));
        }

        /// The multiplier of the modulus that makes the lowest two sums zero: two of their limbs
        /// times two of the inverse, the lower half.
        #[inline]
        #[target_feature(enable = $features)]
        fn divide(sums: &[Bits], inverse: [Double; 2], b: [Double; 2]) -> Pair {
            let limb = broadcast(LIMB);
            let lower = number(and(sums[0], limb));
            let upper = number(and(add(sums[1], above_limb(sums[0])), limb));
            let (high, low) = product(lower, inverse[0]);
            let low = sub(broadcast(LOW.wrapping_add(BIAS)), low);
            let (_, cross_0) = product(lower, inverse[1]);
            let (_, cross_1) = product(upper, inverse[0]);
            // The bits of 2^104 and those of -3 2^52 do not reach into a limb.
            let high = sub(add(high, above_limb(low)), broadcast(BIAS >> 52));
            let high = sub(high, add(cross_0, cross_1));
            Pair {
                b,
                factors: [number(and(low, limb)), number(and(high, limb))],
            }
        }

        /// The contributions to the third and to the fourth sum: the carries of the lowest two
        /// sums, which are now zero otherwise, and the products of the lowest two rows.
        #[inline]
        #[target_feature(enable = $features)]
        fn settle(sums: &[Bits], rows: &[Row], pair: &Pair) -> [Bits; 2] {
            let (high_0, _) = product(rows[0].a, pair.b[1]);
            let (high_1, _) = product(rows[1].a, pair.b[0]);
            let (high_2, low_2) = product(rows[1].a, pair.b[1]);
            let (high_3, low_3) = product(rows[0].modulus, pair.factors[0]);
            let (high_4, low_4) = product(rows[0].modulus, pair.factors[1]);
            let (high_5, low_5) = product(rows[1].modulus, pair.factors[0]);
            let (high_6, low_6) = product(rows[1].modulus, pair.factors[1]);
            let carry = above_limb(add(sums[0], sub(broadcast(LOW), low_3)));
            let carry = above_limb(sub(add(add(sums[1], high_3), carry), add(low_4, low_5)));
            let third = sub(
                add(add(high_0, high_1), add(high_4, high_5)),
                add(low_2, low_6),
            );
            [add(third, carry), add(high_2, high_6)]
        }

        /// Adds the products of rows and a pair to sums, and the carries of the previous ones.
        /// Returns the carries to the next two sums.
        #[inline]
        #[target_feature(enable = $features)]
        fn pass(sums: &mut [Bits], rows: &[Row], pair: &Pair, carried: [Bits; 2]) -> [Bits; 2] {
            let [mut next, mut after] = carried;
            for (sum, row) in sums.iter_mut().zip(rows) {
                let (high_0, low_0) = product(row.a, pair.b[0]);
                let (high_1, low_1) = product(row.modulus, pair.factors[0]);
                *sum = sub(add(*sum, next), add(low_0, low_1));
                let (high_2, low_2) = product(row.a, pair.b[1]);
                let (high_3, low_3) = product(row.modulus, pair.factors[1]);
                next = add(sub(after, add(low_2, low_3)), add(high_0, high_1));
                after = add(high_2, high_3);
            }
            [next, after]
        }

        /// The bits of 2^104 plus the upper half of a product of limbs, and those of -1.5 2^52 less
        /// the remainder.
        #[inline]
        #[target_feature(enable = $features)]
        fn product(a: Double, b: Double) -> (Bits, Bits) {
            let high = fused(a, b, double(broadcast(HIGH)));
            let low = fused(a, b, minus(double(broadcast(BOTH)), high));
            (bits(high), bits(low))
        }

        /// A limb as a double.
        #[inline]
        #[target_feature(enable = $features)]
        fn number(limb: Bits) -> Double {
            minus(double(or(limb, broadcast(ONE))), double(broadcast(ONE)))
        }
    };
}

/// The bits of the double 2^52, whose last one counts ones.
pub(super) const ONE: u64 = (1023 + 52) << 52;
/// Those of 2^104.
pub(super) const HIGH: u64 = (1023 + 104) << 52;
/// Those of -1.5 2^52.
pub(super) const LOW: u64 = 1 << 63 | ONE | 1 << 51;
/// Those of 2^104 - 1.5 2^52. Below 2^104 the last one counts 2^51.
pub(super) const BOTH: u64 = HIGH - 3;
/// More than a sum can be below zero, and a multiple of a limb's size.
pub(super) const BIAS: u64 = 1 << 60;

/// The initial value of sum `index` of a product of so many limbs.
pub(super) const fn start(index: usize, limbs: usize) -> u64 {
    // It gets lower halves of products of both factors and of the modulus, and the upper ones of
    // those of the sum before.
    let (low, high) = (
        2 * pairs(index, limbs),
        if index > 0 {
            2 * pairs(index - 1, limbs)
        } else {
            0
        },
    );
    let mut start = LOW.wrapping_mul(low).wrapping_sub(HIGH.wrapping_mul(high));
    if index < limbs && index.is_multiple_of(2) {
        // The last of these brings its own, since the sum's lowest limb is looked at before.
        start = start.wrapping_sub(LOW);
    }
    if index + 1 < 2 * limbs {
        start = start.wrapping_add(BIAS);
    }
    if index > 0 {
        // What the sum before carries has that of its own.
        start = start.wrapping_sub(BIAS >> 52);
    }
    start
}

/// The number of pairs of limbs, of two numbers with `limbs` limbs, whose places add up to `place`.
const fn pairs(place: usize, limbs: usize) -> u64 {
    let pairs = if place < limbs {
        place + 1
    } else {
        (2 * limbs - 1).saturating_sub(place)
    };
    pairs as u64
}
