//! The parameters, proven; and hashes against powers by another implementation of large numbers.

use num_bigint::{BigInt, BigUint, Sign};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::group::{derived, limbs, machine};
use super::*;
use crate::gfq::Shape;
use ncs_gf::gfq::{self, Element};
use ncs_gf::montgomery::Multiplier;

pub(super) fn big(limbs: &[u64]) -> BigUint {
    BigUint::from_bytes_be(&group::bytes(limbs))
}

fn p_of(group: Group) -> BigUint {
    big(group.modulus())
}

fn q() -> BigUint {
    BigUint::from_bytes_be(&gfq::Q_BYTES)
}

fn hex(number: &BigUint) -> String {
    number.to_str_radix(16)
}

/// The first candidates are no primes, which Fermat's test shows, and the one that is taken is what
/// the derivation gives.
#[test]
fn parameters_are_the_first_primes_of_their_derivation() {
    let one = BigUint::from(1_u8);
    let passes_fermat =
        |number: &BigUint| BigUint::from(2_u8).modpow(&(number - 1_u8), number) == one;
    let candidate = |counter| {
        let number = BigUint::from_bytes_be(&derived("q", counter, gfq::BYTES));
        (number & ((&one << 257_usize) - 1_u8)) | (&one << 256_usize) | &one
    };
    assert!((0..24).all(|counter| !passes_fermat(&candidate(counter))));
    assert_eq!(candidate(24), q());

    for (group, label, prime) in [(Group::P1024, "p", 513), (Group::P2048, "p2048", 1307)] {
        let bits = 8 * group.hash_bytes();
        let step = q() * 2_u8;
        let candidate = |counter| {
            let x = BigUint::from_bytes_be(&derived(label, counter, group.hash_bytes()))
                | (&one << (bits - 1));
            &x - &x % &step + 1_u8
        };
        assert_eq!(candidate(prime), p_of(group), "{group:?}");
        // A few small factors settle most of the others.
        let is_small = |number: &BigUint| {
            (3_u32..2000)
                .step_by(2)
                .any(|factor| (number % factor) == BigUint::ZERO)
        };
        let is_none = |number: &BigUint| {
            number.bits() != bits as u64 || is_small(number) || !passes_fermat(number)
        };
        assert!(
            (0..prime).all(|counter| is_none(&candidate(counter))),
            "{group:?}"
        );
        assert_eq!((p_of(group) - 1_u8) % q(), BigUint::ZERO);
    }
}

/// By certificates of Atkin and Morain's elliptic curve test (Math. Comp. 61, 1993), which PARI/GP
/// 2.15 made and anyone can check.
#[test]
fn parameters_are_proven_prime() {
    prove(&q(), include_str!("../../../tests/vectors/hash/q.ecpp"));
    prove(
        &p_of(Group::P1024),
        include_str!("../../../tests/vectors/hash/p1024.ecpp"),
    );
    prove(
        &p_of(Group::P2048),
        include_str!("../../../tests/vectors/hash/p2048.ecpp"),
    );
}

#[test]
#[should_panic(expected = "a multiple of the point is nothing")]
fn a_certificate_proves_no_other_number() {
    // The same curve and multiples, modulo a number without small factors.
    let others = (1_u32..).map(|step| q() + 2 * step);
    let other = others
        .into_iter()
        .find(|number| (3_u32..2000).all(|factor| number % factor != BigUint::ZERO));
    prove(
        &other.expect("there are many"),
        include_str!("../../../tests/vectors/hash/q.ecpp"),
    );
}

/// Goldwasser and Kilian's theorem, line by line: on y² = x³ + a x + b modulo N lies a point P; m =
/// N + 1 - t is s r; s P is another point than the neutral one modulo each factor of N, and r s P
/// is that one. If r is a prime above (N^(1/4) + 1)², so is N. Each r is the next N.
fn prove(number: &BigUint, certificate: &str) {
    let mut n = number.clone();
    for line in certificate.lines() {
        let numbers: Vec<BigInt> = line
            .split(' ')
            .map(|text| BigInt::parse_bytes(text.as_bytes(), 16).expect("hexadecimal"))
            .collect();
        let [t, s, a, b, x] = numbers.try_into().expect("five numbers");
        let [s, a, b, x] = [s, a, b, x].map(|number| number.to_biguint().expect("not negative"));
        let m = (BigInt::from_biguint(Sign::Plus, &n + 1_u8) - t)
            .to_biguint()
            .expect("points of a curve");
        // Whether t is right does not matter: what is shown is that the point's order is a multiple
        // of r.
        let r = &m / &s;
        let root = n.sqrt().sqrt() + 2_u8;
        assert!(r > &root * &root, "a factor of this size");
        let curve = Curve { n: &n, a, b };
        let discriminant = (BigUint::from(4_u8) * &curve.a * &curve.a * &curve.a
            + BigUint::from(27_u8) * &curve.b * &curve.b)
            % &n;
        assert!(
            is_unit(&discriminant, &n) && is_unit(&x, &n),
            "a curve and a point"
        );
        let (x, z) = curve.multiple(&s, &x);
        assert!(is_unit(&z, &n), "a multiple of the point");
        let x = x * z.modinv(&n).expect("a unit") % &n;
        assert!(is_unit(&x, &n), "a point that is not on the axis");
        let (x, z) = curve.multiple(&r, &x);
        assert!(
            z == BigUint::ZERO && is_unit(&x, &n),
            "a multiple of the point is nothing"
        );
        n = r;
    }
    // Strong tests to the first twelve primes are a proof below 3.3e24 (Sorenson and Webster, Math.
    // Comp. 86, 2017).
    assert!(
        n.bits() <= 64
            && [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37]
                .iter()
                .all(|&base| passes_strong(&n, base))
    );
}

fn is_unit(number: &BigUint, n: &BigUint) -> bool {
    number.modinv(n).is_some()
}

fn passes_strong(n: &BigUint, base: u32) -> bool {
    let less = n - 1_u8;
    let twos = less.trailing_zeros().expect("n is not one");
    let mut power = BigUint::from(base).modpow(&(&less >> twos), n);
    (power == BigUint::from(1_u8))
        || (0..twos).any(|_| {
            let is_minus_one = power == less;
            power = &power * &power % n;
            is_minus_one
        })
}

struct Curve<'a> {
    n: &'a BigUint,
    a: BigUint,
    b: BigUint,
}

impl Curve<'_> {
    /// X and Z of so many times the point with this x, by Montgomery's ladder, which needs no y
    /// (Brier and Joye, PKC 2002).
    fn multiple(&self, count: &BigUint, x: &BigUint) -> (BigUint, BigUint) {
        let mut pair = [
            (x.clone(), BigUint::from(1_u8)),
            self.double(&(x.clone(), BigUint::from(1_u8))),
        ];
        for bit in (0..count.bits() - 1).rev() {
            let sum = self.add(&pair[0], &pair[1], x);
            let double = self.double(&pair[usize::from(count.bit(bit))]);
            pair = if count.bit(bit) {
                [sum, double]
            } else {
                [double, sum]
            };
        }
        let [multiple, _] = pair;
        multiple
    }

    fn double(&self, (x, z): &(BigUint, BigUint)) -> (BigUint, BigUint) {
        let n = self.n;
        let (xx, zz, xz) = (x * x % n, z * z % n, x * z % n);
        let azz = &self.a * &zz % n;
        let difference = &xx + n - &azz;
        let eight = BigUint::from(8_u8) * &self.b % n * &xz % n * &zz % n;
        let first = (&difference * &difference + n - eight) % n;
        let second = (&xz * (&xx + &azz) + &self.b * &zz % n * &zz) * 4_u8 % n;
        (first, second)
    }

    /// The sum of two points whose difference has this x.
    fn add(
        &self,
        (x1, z1): &(BigUint, BigUint),
        (x2, z2): &(BigUint, BigUint),
        x: &BigUint,
    ) -> (BigUint, BigUint) {
        let n = self.n;
        let (x1z2, x2z1, zz) = (x1 * z2 % n, x2 * z1 % n, z1 * z2 % n);
        let product = (x1 * x2 + (n - &self.a) * &zz) % n;
        let four = BigUint::from(4_u8) * &self.b % n * &zz % n * (&x1z2 + &x2z1) % n;
        let difference = (&x1z2 + n - &x2z1) % n;
        (
            (&product * &product + n - four) % n,
            &difference * &difference % n * x % n,
        )
    }
}

/// Trap 6: of order q and none of them one; each from its own hash, so that nobody knows a
/// relation.
#[test]
fn generators_are_of_order_q() {
    for (group, first) in [
        (
            Group::P1024,
            [
                "774b783f8ca98cf78f9203e22e818041",
                "ad250ef33aed86a7d952036f0655f269",
                "0fcbf5f7b3d082dc6110be8404f8c06a",
            ],
        ),
        (
            Group::P2048,
            [
                "6eeb493de7571d9c6ce07e105941dc73",
                "97472061e8c35716ce624f33856942a8",
                "91eb0670ded4c9383c894d1520409b6d",
            ],
        ),
    ] {
        // In two steps, as blocks of more words come.
        group.generators(3);
        let (p, generators) = (p_of(group), group.generators(20));
        let mut seen = std::collections::HashSet::new();
        for generator in generators.iter().take(20) {
            assert_eq!(big(generator).modpow(&q(), &p), BigUint::from(1_u8));
            assert!(
                big(generator) > BigUint::from(1_u8)
                    && big(generator) < p
                    && seen.insert(generator.clone())
            );
        }
        for (generator, expected) in generators.iter().zip(first) {
            assert_eq!(
                &format!(
                    "{:0>width$}",
                    hex(&big(generator)),
                    width = 2 * group.hash_bytes()
                )[..32],
                expected
            );
        }
        let index = 17;
        let x = BigUint::from_bytes_be(&derived(
            &format!("{}{index}", group.generator_label()),
            0,
            group.hash_bytes() + 16,
        ));
        assert_eq!(
            (x % &p).modpow(&((&p - 1_u8) / q()), &p),
            big(&generators[index])
        );
    }
}

/// A number of 320 bits as an exponent.
fn exponent(number: &BigUint) -> Exponent {
    let mut digits = number.to_u64_digits();
    digits.resize(gfq::LIMBS, 0);
    digits.try_into().expect("five limbs")
}

/// Traps 3 and 8: what is above q is reduced by q, and makes no other hash. Trap 11: first and last
/// numbers.
#[test]
fn powers_are_those_of_large_numbers_on_every_machine() {
    let mut rng = SmallRng::seed_from_u64(4);
    let one = BigUint::from(1_u8);
    for group in Group::ALL {
        let (p, generators) = (p_of(group), group.generators(20));
        let mut exponents = vec![
            BigUint::ZERO,
            one.clone(),
            q() - 1_u8,
            q(),
            q() + 5_u8,
            (&one << 257_usize) - 1_u8,
            &one << 250_usize,
        ];
        exponents
            .extend((0..7).map(|_| BigUint::from_bytes_be(&Element::random(&mut rng).to_bytes())));
        let bases: Vec<BigUint> = generators
            .iter()
            .take(exponents.len())
            .map(|generator| big(generator))
            .collect();
        let product = |exponents: &[BigUint]| {
            bases
                .iter()
                .zip(exponents)
                .fold(BigUint::from(1_u8), |all, (base, exponent)| {
                    all * base.modpow(exponent, &p) % &p
                })
        };
        let (all, reduced): (Vec<Exponent>, Vec<Exponent>) = exponents
            .iter()
            .map(|number| (exponent(number), exponent(&(number % q()))))
            .unzip();
        let expected = product(&exponents);
        for multiplier in Multiplier::available() {
            println!("{group:?}, {}", multiplier.name());
            let machine = machine(multiplier, group, group.modulus());
            for exponents in [&all, &reduced] {
                assert_eq!(
                    big(&machine.fixed(&|count| group.generators(count), exponents)),
                    expected
                );
                assert_eq!(
                    big(&machine.product(&generators[..all.len()], exponents)),
                    expected
                );
            }
            assert_eq!(big(&machine.product(&[], &[])), BigUint::from(1_u8));
            assert_eq!(
                big(&machine.fixed(&|count| group.generators(count), &[])),
                BigUint::from(1_u8)
            );
            let raised = machine.raise(&generators[..9], &[77, 3]);
            let expected =
                |base: &[u64]| big(base).modpow(&((BigUint::from(3_u8) << 64_usize) + 77_u8), &p);
            assert!(
                raised
                    .iter()
                    .zip(generators.iter())
                    .all(|(raised, base)| big(raised) == expected(base))
            );
            assert_eq!(
                BigUint::from_bytes_be(&group.power(multiplier, &all)),
                product(&exponents)
            );
        }
    }
}

#[test]
fn hashes_that_are_no_numbers_of_the_group_are_refused() {
    let shape = Shape::new(2, 1).expect("a shape");
    for group in Group::ALL {
        let length = group.hash_bytes();
        let p = group::bytes(group.modulus());
        let mut one = vec![0; length];
        one[length - 1] = 1;
        let hashes = |second: &[u8]| {
            Hashes::signed(group, shape, &[&one, second].concat())
                .map(|hashes| hashes.numbers().len())
        };
        assert_eq!(hashes(&one), Ok(2));
        assert_eq!(hashes(&p), Err(Error::Number(1)));
        assert_eq!(hashes(&vec![0xff; length]), Err(Error::Number(1)));
        assert_eq!(hashes(&vec![0; length]), Err(Error::Number(1)));
        assert_eq!(
            hashes(&one[1..]),
            Err(Error::Length {
                length: 2 * length - 1,
                expected: 2 * length
            })
        );
        assert_eq!(limbs(&p)[..], *group.modulus());
    }
}

#[test]
fn groups_have_numbers_on_the_wire() {
    assert_eq!(Group::ALL.map(Group::number), [1, 2]);
    Group::ALL
        .into_iter()
        .for_each(|group| assert_eq!(Group::from_number(group.number().into()), Some(group)));
    assert_eq!(Group::from_number(0), None);
}
