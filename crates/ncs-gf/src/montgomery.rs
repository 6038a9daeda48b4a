//! Montgomery products modulo a large odd number, of 1024 or 2048 bits, many at a time: the
//! arithmetic of the groups of homomorphic hashes.
//!
//! Numbers are in Montgomery's form (Math. Comp. 44, 1985) and stored in tables, one after the
//! other, in the layout of [`Lanes`]. A multiplication takes one number for each lane, each from
//! its own place. An algorithm is therefore written once for one lane, for four and for eight.

#[cfg(target_arch = "x86_64")]
use crate::simd::{fma, ifma::Ifma};

pub use crate::limbs::{is_below, negative_inverse, negative_inverse_wide, power_of_two, subtract};
pub use lanes::Lanes;
pub use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub use several::{Instructions, Several};

mod lanes;
mod portable;
#[cfg(target_arch = "x86_64")]
mod several;

/// The instructions of this processor that multiply large numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Multiplier {
    /// Eight at a time, by AVX-512 IFMA.
    #[cfg(target_arch = "x86_64")]
    Ifma(Ifma),
    /// Eight at a time, by doubles of AVX-512 F.
    #[cfg(target_arch = "x86_64")]
    Eight(fma::Eight),
    /// Four at a time, by doubles of AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Four(fma::Four),
    /// One at a time, in plain Rust.
    Portable,
}

impl Multiplier {
    /// All multipliers of this processor, the fastest first.
    pub fn available() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        let wide = [
            Ifma::detect().map(Self::Ifma),
            fma::Eight::detect().map(Self::Eight),
            fma::Four::detect().map(Self::Four),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let wide: [Option<Self>; 0] = [];
        wide.into_iter().flatten().chain([Self::Portable]).collect()
    }

    /// The name shown to people.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Ifma(_) => "AVX-512 IFMA",
            #[cfg(target_arch = "x86_64")]
            Self::Eight(_) => "AVX-512 F",
            #[cfg(target_arch = "x86_64")]
            Self::Four(_) => "AVX2 and FMA",
            Self::Portable => "plain Rust",
        }
    }
}

#[cfg(test)]
mod tests {
    use num_bigint::BigUint;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    #[cfg(target_arch = "x86_64")]
    use super::several::Instructions;
    use super::*;

    fn big(limbs: &[u64]) -> BigUint {
        BigUint::from_bytes_be(
            &limbs
                .iter()
                .rev()
                .flat_map(|limb| limb.to_be_bytes())
                .collect::<Vec<_>>(),
        )
    }

    /// Montgomery's product with what `square` gives is a number times R, and with one a number
    /// divided by R; R is 2^`radix`.
    fn check<L: Lanes>(lanes: &L, modulus: &[u64], radix: usize) {
        let (mut rng, p) = (SmallRng::seed_from_u64(1), big(modulus));
        let below = |mut limbs: Vec<u64>| {
            while !is_below(&limbs, modulus) {
                subtract(&mut limbs, modulus);
            }
            limbs
        };
        let mut last = modulus.to_vec();
        last[0] -= 1;
        let mut all = vec![vec![0; modulus.len()], last.clone(), last];
        all[0][0] = 1;
        all.extend(
            (0..2 * L::WIDTH).map(|_| below(modulus.iter().map(|_| rng.next_u64()).collect())),
        );
        all.push(lanes.square());
        let mut table = vec![0; all.len() * L::STRIDE];
        all.iter()
            .zip(table.chunks_exact_mut(L::STRIDE))
            .for_each(|(limbs, place)| lanes.write(limbs, place));
        all.iter()
            .zip(table.chunks_exact(L::STRIDE))
            .for_each(|(limbs, place)| assert_eq!(lanes.read(place), *limbs));
        let radix = BigUint::from(1_u8) << radix;
        assert_eq!(big(&lanes.square()), &radix * &radix % &p);
        let count = u32::try_from(all.len()).unwrap();
        for (first, second) in
            (0..count).flat_map(|first| (0..count).map(move |second| (first, second)))
        {
            let places = |at: u32| {
                (0..u32::try_from(L::WIDTH).unwrap())
                    .map(|lane| (at + lane) % count)
                    .collect::<Vec<_>>()
            };
            let product = lanes.mul(
                &lanes.gather(&table, &places(first)),
                &lanes.gather(&table, &places(second)),
            );
            let mut out = vec![0; L::WIDTH * L::STRIDE];
            lanes.scatter(
                &product,
                &mut out,
                &(0..u32::try_from(L::WIDTH).unwrap()).collect::<Vec<_>>(),
            );
            for ((place, a), b) in out
                .chunks_exact(L::STRIDE)
                .zip(places(first))
                .zip(places(second))
            {
                let expected = big(&all[a as usize]) * big(&all[b as usize]) % &p;
                assert_eq!(big(&lanes.read(place)) * &radix % &p, expected);
            }
        }
    }

    /// Of numbers that are not below the modulus, and of limbs that round up, down, and in the
    /// middle where they are doubles. What comes of numbers below twice the modulus is below that,
    /// too.
    #[cfg(target_arch = "x86_64")]
    fn check_limbs<L: Lanes>(lanes: &L, modulus: &[u64]) {
        let (bits, limbs) = (52, (64 * modulus.len()).next_multiple_of(1040) / 52);
        let (p, radix) = (big(modulus), BigUint::from(1_u8) << (bits * limbs));
        let every = |limb: u64| (0..limbs).fold(BigUint::ZERO, |all, _| (all << bits) + limb);
        let all = [
            BigUint::ZERO,
            &p - 1_u8,
            p.clone(),
            &p + 1_u8,
            &p * 2_u8 - 2_u8,
            &p * 2_u8 - 1_u8,
            BigUint::from(1_u8),
            BigUint::from(3_u8),
            every(1),
            every(3),
            every(1 << 51),
            every((1 << 51) - 1),
            every((1 << 51) + 1),
            every((1 << 52) - 1),
        ];
        let mut table = vec![0; all.len() * L::STRIDE];
        all.iter()
            .zip(table.chunks_exact_mut(L::STRIDE))
            .for_each(|(number, place)| lanes.write(&number.to_u64_digits(), place));
        let lane_places: Vec<u32> = (0..u32::try_from(L::WIDTH).unwrap()).collect();
        for (first, a) in (0..).zip(&all) {
            for (second, b) in (0..).zip(&all) {
                // The other lanes have others, so that a lane that knew of its neighbour would
                // show.
                let count = u32::try_from(all.len()).unwrap();
                let places = |at: u32| {
                    lane_places
                        .iter()
                        .map(|lane| (at + 5 * lane) % count)
                        .collect::<Vec<_>>()
                };
                let product = lanes.mul(
                    &lanes.gather(&table, &places(first)),
                    &lanes.gather(&table, &places(second)),
                );
                let mut out = vec![0; L::WIDTH * L::STRIDE];
                lanes.scatter(&product, &mut out, &lane_places);
                let raw = out[..limbs]
                    .iter()
                    .rev()
                    .fold(BigUint::ZERO, |all, &limb| (all << bits) + limb);
                assert_eq!(
                    &raw * &radix % &p,
                    a * b % &p,
                    "numbers {first} and {second}"
                );
                let bound = &p * 2_u8;
                assert!(
                    raw < bound || *a >= bound || *b >= bound,
                    "numbers {first} and {second}"
                );
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn check_several<I: Instructions>(instructions: I, modulus: &[u64]) {
        if modulus.len() == 16 {
            let several = Several::<_, 20>::new(instructions, modulus);
            check(&several, modulus, 1040);
            check_limbs(&several, modulus);
        } else {
            let several = Several::<_, 40>::new(instructions, modulus);
            check(&several, modulus, 2080);
            check_limbs(&several, modulus);
        }
    }

    #[test]
    fn inverses_are_negative() {
        for odd in [
            1,
            3,
            u128::MAX,
            1 << 127 | 1,
            0x1234_5678_9abc_def0_0fed_cba9_8765_4321,
        ] {
            assert_eq!(odd.wrapping_mul(negative_inverse_wide(odd)), u128::MAX);
        }
    }

    #[test]
    fn products_are_those_of_large_numbers() {
        let mut rng = SmallRng::seed_from_u64(2);
        for limbs in [16, 32] {
            let mut random: Vec<u64> = (0..limbs).map(|_| rng.next_u64()).collect();
            (random[0], random[limbs - 1]) = (random[0] | 1, random[limbs - 1] | 1 << 63);
            let mut least = vec![0; limbs];
            (least[0], least[limbs - 1]) = (1, 1 << 63);
            for modulus in [random, vec![u64::MAX; limbs], least] {
                for multiplier in Multiplier::available() {
                    println!("{limbs} limbs, {}", multiplier.name());
                    match (multiplier, limbs) {
                        (Multiplier::Portable, 16) => {
                            check(&Portable::<16>::new(&modulus), &modulus, 1024)
                        }
                        (Multiplier::Portable, _) => {
                            check(&Portable::<32>::new(&modulus), &modulus, 2048)
                        }
                        #[cfg(target_arch = "x86_64")]
                        (Multiplier::Ifma(ifma), _) => check_several(ifma, &modulus),
                        #[cfg(target_arch = "x86_64")]
                        (Multiplier::Eight(eight), _) => check_several(eight, &modulus),
                        #[cfg(target_arch = "x86_64")]
                        (Multiplier::Four(four), _) => check_several(four, &modulus),
                    }
                }
            }
        }
    }
}
