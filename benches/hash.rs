//! Compares coding over GF(q) and homomorphic hashes by this crate and by GMP, in turn, on one
//! thread.
//!
//!     cargo bench --bench hash --features bench-peers                    everything
//!     cargo bench --bench hash --features bench-peers -- hash verify     these benchmarks only
//!
//! The benchmarks are encode, inverse, decode, hash and verify.
//!
//! GMP is linked (Debian: libgmp-dev). It is used in the usual way: `mpn_addmul_1` for sums of
//! products and one `mpz_mod` for each sum, `mpz_addmul` and `mpz_mod` for the inverse, and
//! `mpz_powm` for powers by definition. For products of powers it uses our algorithm with the same
//! tables and buckets, on Montgomery products of `mpn_mul_n` and `mpn_addmul_1`. Its numbers are
//! limbs before a timer starts, where ours are bytes of blocks. Tables of generators are made
//! before in both.
//!
//! Ours runs with everything this processor has, one after the other: products modulo p by AVX-512
//! IFMA, AVX-512 F, AVX2 and FMA, and in plain Rust. Sums over GF(q), a part of verification, use
//! IFMA or plain Rust, so encoding and decoding have these two only.
//!
//! A generation has n = 128 blocks of m = 512 words, 2 MiB; the groups are those of 1024 and of
//! 2048 bits. Times are the thread's processor time, as medians of rounds in which each contender
//! had its turn. Every result is compared with GMP's before it is timed.
#![allow(unsafe_code)]

#[path = "support/gmp.rs"]
mod gmp;

use std::time::Duration;

use gmp::{Integer, Limb, Montgomery, add_product};
use ncserverd::codec::gfq::{
    Arithmetic, Coded, Cores, Decode, Encode, Payload, Recode, Shape, Vector, draw_factors,
    draw_rows,
};
use ncserverd::codec::hash::{Batch, Group, Hashes};
use ncserverd::gf::gfq::{Element, LIMBS, Q};
use nctest::turns::{ROUNDS, calls, median, time};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// What is coded and hashed.
struct Scene {
    shape: Shape,
    source: Vec<u8>,
    /// Rows of the source.
    rows: Vec<u32>,
    recoded: Vec<Coded>,
}

impl Scene {
    fn new(cores: &Cores) -> Self {
        let (shape, mut rng) = (
            Shape::new(128, 512).expect("a shape"),
            SmallRng::seed_from_u64(1),
        );
        let mut source = vec![0; shape.source_bytes()];
        rng.fill_bytes(&mut source);
        let rows = draw_rows(shape, 128, &mut rng);
        let mut payloads = vec![0; 128 * shape.payload_bytes()];
        cores
            .encode(
                shape,
                &mut [Encode::new(shape, &source, &rows, &mut payloads)],
            )
            .expect("cores do not fail");
        let coded: Vec<Coded> = rows
            .chunks_exact(shape.n())
            .zip(payloads.chunks_exact(shape.payload_bytes()))
            .map(|(row, bytes)| Coded {
                vector: Vector::Source(row.into()),
                payload: payload(shape, bytes),
            })
            .collect();
        let factors = draw_factors(128, 256, &mut rng);
        let (mut vectors, mut bytes) = (
            vec![0; 256 * shape.recoded_vector_bytes()],
            vec![0; 256 * shape.payload_bytes()],
        );
        let held: Vec<&Coded> = coded.iter().collect();
        let task = Recode {
            held: &held,
            rows: &factors,
            vectors: &mut vectors,
            payloads: &mut bytes,
        };
        cores.recode(shape, &mut [task]).expect("cores do not fail");
        let recoded = vectors
            .chunks_exact(shape.recoded_vector_bytes())
            .zip(bytes.chunks_exact(shape.payload_bytes()));
        let recoded = recoded.map(|(vector, bytes)| Coded {
            vector: Vector::parse_recoded(shape, vector).expect("a vector"),
            payload: payload(shape, bytes),
        });
        let recoded = recoded.collect();
        Self {
            shape,
            source,
            rows,
            recoded,
        }
    }

    fn hashes(&self, cores: &Cores, group: Group) -> Hashes {
        let blocks: Vec<&[u8]> = self.source.chunks(self.shape.block_bytes()).collect();
        let hashes = cores
            .hash(group, self.shape.words(), &blocks)
            .expect("cores do not fail");
        Hashes::signed(group, self.shape, &hashes).expect("hashes")
    }
}

fn payload(shape: Shape, bytes: &[u8]) -> Payload {
    Payload::parse(shape, bytes.to_vec().into()).expect("a payload")
}

fn limbs(elements: impl Iterator<Item = Element>) -> Vec<[Limb; LIMBS]> {
    elements.map(|element| *element.limbs()).collect()
}

fn integer(element: &Element) -> Integer {
    Integer::new(element.limbs())
}

/// The rest modulo q of a sum, as an element.
fn rest(sum: &Integer, q: &Integer) -> Element {
    let mut rest = Integer::new(&[]);
    rest.set_rest(sum, q);
    Element::from_limbs(rest.limbs(LIMBS).try_into().expect("five limbs")).expect("below q")
}

/// Products of powers by GMP: the algorithm of `codec::hash`, one product at a time, on numbers of
/// `L` limbs.
struct Powers<const L: usize> {
    group: Group,
    montgomery: Montgomery<L>,
    one: [Limb; L],
    square: [Limb; L],
    /// For each generator its powers to 2^(10 i).
    fixed: Vec<[Limb; L]>,
}

impl<const L: usize> Powers<L> {
    const FIXED: usize = 10;
    const FIXED_DIGITS: usize = 26;
    const FREE: usize = 5;
    const FREE_DIGITS: usize = 52;

    fn new(group: Group, words: usize) -> Self {
        let modulus: [Limb; L] = group.modulus().try_into().expect("the group's limbs");
        let p = Integer::new(&modulus);
        let power_of_two = |bits: usize| -> [Limb; L] {
            let mut limbs = vec![0; bits / 64 + 1];
            limbs[bits / 64] = 1;
            let mut rest = Integer::new(&[]);
            rest.set_rest(&Integer::new(&limbs), &p);
            rest.limbs(L).try_into().expect("the group's limbs")
        };
        let mut powers = Self {
            group,
            montgomery: Montgomery::new(modulus),
            one: power_of_two(64 * L),
            square: power_of_two(128 * L),
            fixed: Vec::new(),
        };
        for generator in group.generators(words).iter().take(words) {
            let mut power = powers.enter(generator);
            for _ in 0..Self::FIXED_DIGITS {
                powers.fixed.push(power);
                power = (0..Self::FIXED)
                    .fold(power, |power, _| powers.montgomery.product(&power, &power));
            }
        }
        powers
    }

    fn enter(&self, limbs: &[Limb]) -> [Limb; L] {
        self.montgomery
            .product(&self.square, limbs.try_into().expect("the group's limbs"))
    }

    /// The product of buckets, each to the power of its number.
    fn weigh(&self, buckets: &[Option<[Limb; L]>]) -> [Limb; L] {
        let (mut all, mut weighted) = (self.one, self.one);
        for bucket in buckets[1..].iter().rev() {
            if let Some(bucket) = bucket {
                all = self.montgomery.product(&all, bucket);
            }
            weighted = self.montgomery.product(&weighted, &all);
        }
        weighted
    }

    fn put(&self, bucket: &mut Option<[Limb; L]>, factor: &[Limb; L]) {
        *bucket = Some(bucket.map_or(*factor, |bucket| self.montgomery.product(&bucket, factor)));
    }

    fn of_generators(&self, exponents: &[Element]) -> [Limb; L] {
        let mut buckets = vec![None; 1 << Self::FIXED];
        for (exponent, powers) in exponents
            .iter()
            .zip(self.fixed.chunks_exact(Self::FIXED_DIGITS))
        {
            for (digit, power) in powers.iter().enumerate() {
                self.put(
                    &mut buckets[bits(exponent, digit * Self::FIXED, Self::FIXED)],
                    power,
                );
            }
        }
        self.weigh(&buckets)
    }

    fn of_hashes(&self, hashes: &[Box<[Limb]>], exponents: &[Element]) -> [Limb; L] {
        let hashes: Vec<[Limb; L]> = hashes.iter().map(|hash| self.enter(hash)).collect();
        (0..Self::FREE_DIGITS).rev().fold(self.one, |total, digit| {
            let mut buckets = vec![None; 1 << Self::FREE];
            for (hash, exponent) in hashes.iter().zip(exponents) {
                self.put(
                    &mut buckets[bits(exponent, digit * Self::FREE, Self::FREE)],
                    hash,
                );
            }
            let total =
                (0..Self::FREE).fold(total, |total, _| self.montgomery.product(&total, &total));
            self.montgomery.product(&total, &self.weigh(&buckets))
        })
    }

    /// Big-endian, out of Montgomery's form.
    fn bytes(&self, number: &[Limb; L]) -> Vec<u8> {
        let mut one = [0; L];
        one[0] = 1;
        self.montgomery
            .product(number, &one)
            .iter()
            .rev()
            .flat_map(|limb| limb.to_be_bytes())
            .collect()
    }
}

fn bits(exponent: &Element, start: usize, count: usize) -> usize {
    let limb = |index: usize| exponent.limbs().get(index).copied().unwrap_or(0);
    let (index, shift) = (start / 64, start % 64);
    let high = if shift == 0 {
        0
    } else {
        limb(index + 1) << (64 - shift)
    };
    usize::try_from((limb(index) >> shift | high) & ((1 << count) - 1)).expect("few bits")
}

/// Sums of columns of numbers, each times its row's factor of so many limbs, modulo q.
fn dots<const A: usize, const F: usize>(
    factors: &[[Limb; F]],
    rows: &[Vec<[Limb; A]>],
    words: usize,
    q: &Integer,
) -> Vec<Element> {
    let word = |word: usize| {
        let mut sum = [0; 11];
        factors
            .iter()
            .zip(rows)
            .for_each(|(factor, row)| add_product(&mut sum, &row[word], factor));
        rest(&Integer::new(&sum), q)
    };
    (0..words).map(word).collect()
}

/// The inverse by Gauss and Jordan's method, with one reduction a product.
fn inverse(matrix: &[Vec<Element>], q: &Integer) -> Vec<Vec<Element>> {
    let order = matrix.len();
    let unit = |row: usize| (0..order).map(move |column| Element::from(u64::from(row == column)));
    let mut rows: Vec<Vec<Integer>> = matrix
        .iter()
        .enumerate()
        .map(|(index, row)| {
            row.iter()
                .copied()
                .chain(unit(index))
                .map(|element| integer(&element))
                .collect()
        })
        .collect();
    let (mut product, mut factor) = (Integer::new(&[]), Integer::new(&[]));
    for column in 0..order {
        let pivot = (column..order)
            .find(|&row| rows[row][column].limbs(LIMBS) != [0; LIMBS])
            .expect("a regular matrix");
        rows.swap(column, pivot);
        factor.set_inverse(&rows[column][column], q);
        let used = column..order + column + 1;
        for element in &mut rows[column][used.clone()] {
            product.set_product(element, &factor);
            element.set_rest(&product, q);
        }
        let own: Vec<Integer> = rows[column][used.clone()]
            .iter()
            .map(|element| Integer::new(&element.limbs(LIMBS)))
            .collect();
        for (_, row) in rows
            .iter_mut()
            .enumerate()
            .filter(|&(row, _)| row != column)
        {
            let less =
                Element::from_limbs(row[column].limbs(LIMBS).try_into().expect("five limbs"))
                    .expect("below q")
                    .neg();
            let less = integer(&less);
            for (element, own) in row[used.clone()].iter_mut().zip(&own) {
                element.add_product(&less, own);
                product.set_rest(element, q);
                std::mem::swap(element, &mut product);
            }
        }
    }
    rows.iter()
        .map(|row| {
            row[order..]
                .iter()
                .map(|element| rest(element, q))
                .collect()
        })
        .collect()
}

/// Times theirs and each of ours in turn, and says what of `bytes` each does a second.
fn compare(name: &str, bytes: usize, theirs: &dyn Fn(), ours: &[Cores], run: &dyn Fn(&Cores)) {
    let mine: Vec<Box<dyn Fn() + '_>> = ours
        .iter()
        .map(|cores| -> Box<dyn Fn() + '_> { Box::new(|| run(cores)) })
        .collect();
    let contenders: Vec<&dyn Fn()> = std::iter::once(theirs)
        .chain(mine.iter().map(|mine| &**mine))
        .collect();
    let calls: Vec<usize> = contenders
        .iter()
        .map(|run| calls(time(|| (), |()| run(), 1)))
        .collect();
    let mut times = vec![Vec::new(); contenders.len()];
    for round in 0..ROUNDS {
        for turn in 0..contenders.len() {
            let index = (round + turn) % contenders.len();
            times[index].push(time(|| (), |()| contenders[index](), calls[index]));
        }
    }
    let middle: Vec<Duration> = times.iter().cloned().map(median).collect();
    let line = |who: &str, time: Duration| {
        let rate = bytes as f64 * 8.0 / 1e6 / time.as_secs_f64();
        format!(
            "    {who:<14} {:>10.3} ms {rate:>9.2} Mbit/s",
            time.as_secs_f64() * 1e3
        )
    };
    println!("{name}\n{}", line("GMP", middle[0]));
    for (index, cores) in (1..).zip(ours) {
        let ratio =
            |(theirs, ours): (&Duration, &Duration)| theirs.as_secs_f64() / ours.as_secs_f64();
        let ratios = times[0].iter().zip(&times[index]).map(ratio);
        let (least, most) = ratios.fold((f64::MAX, 0_f64), |(least, most), ratio| {
            (least.min(ratio), most.max(ratio))
        });
        let line = line(cores.instructions(), middle[index]);
        println!(
            "{line}   {:.2}x ({least:.2} to {most:.2} in a round)",
            ratio((&middle[0], &middle[index]))
        );
    }
}

/// Those that make sums over GF(q) in another way than others.
fn with_own_sums(cores: &[Cores]) -> Vec<Cores> {
    let is_own = |index: &usize| *index == 0 || index + 1 == cores.len();
    (0..cores.len())
        .filter(is_own)
        .map(|index| cores[index])
        .collect()
}

fn encode(scene: &Scene, cores: &[Cores], q: &Integer) {
    let (shape, count) = (scene.shape, 32);
    let word = |word: &[u8; 32]| -> [Limb; 4] {
        Element::from_word(word).limbs()[..4]
            .try_into()
            .expect("four limbs")
    };
    let blocks = scene.source.chunks_exact(shape.block_bytes());
    let blocks: Vec<Vec<[Limb; 4]>> = blocks
        .map(|block| block.as_chunks().0.iter().map(word).collect())
        .collect();
    let theirs = || -> Vec<Vec<Element>> {
        let row = |row: &[u32]| {
            dots(
                &row.iter()
                    .map(|&factor| [factor.into()])
                    .collect::<Vec<_>>(),
                &blocks,
                shape.words(),
                q,
            )
        };
        scene
            .rows
            .chunks_exact(shape.n())
            .take(count)
            .map(row)
            .collect()
    };
    let ours = |cores: &Cores| {
        let mut out = vec![0; count * shape.payload_bytes()];
        let task = Encode::new(
            shape,
            &scene.source,
            &scene.rows[..count * shape.n()],
            &mut out,
        );
        cores.encode(shape, &mut [task]).expect("cores do not fail");
        out
    };
    let cores = with_own_sums(cores);
    for out in cores.iter().map(ours) {
        for (words, bytes) in theirs().iter().zip(out.chunks_exact(shape.payload_bytes())) {
            assert!(
                payload(shape, bytes).elements().eq(words.iter().copied()),
                "encode is wrong"
            );
        }
    }
    let run = |cores: &Cores| drop(std::hint::black_box(ours(cores)));
    let name = "encode 32 blocks, n = 128, m = 512";
    compare(
        name,
        count * shape.block_bytes(),
        &|| drop(std::hint::black_box(theirs())),
        &cores,
        &run,
    );
}

/// `words` of each block, so that with one it is the inversion.
fn decode(name: &str, scene: &Scene, cores: &[Cores], q: &Integer, words: u16) {
    let shape = Shape::new(128, words).expect("a shape");
    let cut = |block: &Coded| {
        let low = &block.payload.as_bytes()[..shape.block_bytes()];
        let bits = block.payload.elements().take(shape.words()).enumerate();
        let mut bytes = [low, &vec![0; shape.words().div_ceil(8)]].concat();
        bits.for_each(|(index, word)| {
            bytes[shape.block_bytes() + index / 8] |= u8::from(word.is_wide()) << (index % 8)
        });
        Coded {
            vector: block.vector.clone(),
            payload: payload(shape, &bytes),
        }
    };
    let blocks: Vec<Coded> = scene.recoded[..shape.n()].iter().map(cut).collect();
    let blocks: Vec<&Coded> = blocks.iter().collect();
    let matrix: Vec<Vec<Element>> = blocks
        .iter()
        .map(|block| block.vector.elements().collect())
        .collect();
    let payloads: Vec<_> = blocks
        .iter()
        .map(|block| limbs(block.payload.elements()))
        .collect();
    let theirs = || -> Vec<Vec<Element>> {
        let row = |row: Vec<Element>| dots(&limbs(row.into_iter()), &payloads, shape.words(), q);
        inverse(&matrix, q).into_iter().map(row).collect()
    };
    let ours = |cores: &Cores| {
        let mut out = vec![0; shape.source_bytes()];
        cores
            .decode(
                shape,
                &mut [Decode {
                    blocks: &blocks,
                    out: &mut out,
                }],
            )
            .expect("cores do not fail");
        out
    };
    let cores = with_own_sums(cores);
    let expected: Vec<u8> = theirs()
        .iter()
        .flatten()
        .flat_map(Element::low_word)
        .collect();
    assert!(
        cores.iter().all(|cores| ours(cores) == expected),
        "{name} is wrong"
    );
    let run = |cores: &Cores| drop(std::hint::black_box(ours(cores)));
    compare(
        name,
        shape.source_bytes(),
        &|| drop(std::hint::black_box(theirs())),
        &cores,
        &run,
    );
}

fn hash<const L: usize>(scene: &Scene, cores: &[Cores], powers: &Powers<L>) {
    let (block, group) = (&scene.source[..scene.shape.block_bytes()], powers.group);
    let exponents: Vec<Element> = block.as_chunks().0.iter().map(Element::from_word).collect();
    let p = Integer::new(group.modulus());
    let bases: Vec<Integer> = group
        .generators(exponents.len())
        .iter()
        .map(|generator| Integer::new(generator))
        .collect();
    let integers: Vec<Integer> = exponents.iter().map(integer).collect();
    let plain = || {
        let (mut hash, mut power, mut product) =
            (Integer::new(&[1]), Integer::new(&[]), Integer::new(&[]));
        for (base, exponent) in bases.iter().zip(&integers) {
            power.set_power(base, exponent, &p);
            product.set_product(&hash, &power);
            hash.set_rest(&product, &p);
        }
        hash.limbs(L)
            .iter()
            .rev()
            .flat_map(|limb| limb.to_be_bytes())
            .collect::<Vec<u8>>()
    };
    let buckets = || powers.bytes(&powers.of_generators(&exponents));
    let ours = |cores: &Cores| {
        cores
            .hash(group, exponents.len(), &[block])
            .expect("cores do not fail")
    };
    let expected = plain();
    assert!(
        buckets() == expected && cores.iter().all(|cores| ours(cores) == expected),
        "hash is wrong"
    );
    let (run, bits) = (
        |cores: &Cores| drop(std::hint::black_box(ours(cores))),
        64 * L,
    );
    let theirs = || drop(std::hint::black_box(plain()));
    compare(
        &format!("hash of a block, {bits} bits, GMP by powm"),
        block.len(),
        &theirs,
        cores,
        &run,
    );
    let theirs = || drop(std::hint::black_box(buckets()));
    compare(
        &format!("hash of a block, {bits} bits, GMP by buckets"),
        block.len(),
        &theirs,
        cores,
        &run,
    );
}

fn verify<const L: usize>(scene: &Scene, cores: &[Cores], powers: &Powers<L>, q: &Integer) {
    let hashes = scene.hashes(&cores[0], powers.group);
    for count in [1, 32, 256] {
        let shape = scene.shape;
        let blocks: Vec<&Coded> = scene.recoded[..count].iter().collect();
        let ours = |cores: &Cores, seed| {
            let batch = Batch::new(&hashes, blocks.clone(), &mut SmallRng::seed_from_u64(seed));
            cores.holds(&[batch]).expect("cores do not fail")[0]
        };
        let words: Vec<_> = blocks
            .iter()
            .map(|block| limbs(block.payload.elements()))
            .collect();
        let vectors: Vec<_> = blocks
            .iter()
            .map(|block| limbs(block.vector.elements()))
            .collect();
        let theirs = |vectors: &[Vec<[Limb; LIMBS]>]| {
            let mut rng = SmallRng::seed_from_u64(1);
            let weights: Vec<[Limb; 2]> = blocks
                .iter()
                .map(|_| [rng.next_u64(), rng.next_u64() >> 32])
                .collect();
            let exponents = dots(&weights, &words, shape.words(), q);
            let coefficients = dots(&weights, vectors, shape.n(), q);
            powers.of_generators(&exponents) == powers.of_hashes(hashes.numbers(), &coefficients)
        };
        assert!(
            cores.iter().all(|cores| ours(cores, 1)) && theirs(&vectors),
            "right blocks are refused"
        );
        let mut wrong = vectors.clone();
        wrong[0][0][0] ^= 1;
        assert!(!theirs(&wrong), "a wrong block is accepted");
        compare(
            &format!("verify {count} recoded, n = 128, m = 512, {} bits", 64 * L),
            count * shape.block_bytes(),
            &|| assert!(theirs(&vectors)),
            cores,
            &|cores| assert!(ours(cores, 2)),
        );
    }
}

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    let cores = Cores::available();
    let (scene, q) = (Scene::new(&cores[0]), Integer::new(&Q));
    println!("one thread; {ROUNDS} rounds");
    if is_wanted("encode") {
        encode(&scene, &cores, &q);
    }
    if is_wanted("inverse") {
        decode("inverse, n = 128 (decode of m = 1)", &scene, &cores, &q, 1);
    }
    if is_wanted("decode") {
        decode("decode, n = 128, m = 512", &scene, &cores, &q, 512);
    }
    if is_wanted("hash") || is_wanted("verify") {
        let small = Powers::<16>::new(Group::P1024, scene.shape.words());
        let large = Powers::<32>::new(Group::P2048, scene.shape.words());
        if is_wanted("hash") {
            hash(&scene, &cores, &small);
            hash(&scene, &cores, &large);
        }
        if is_wanted("verify") {
            verify(&scene, &cores, &small, &q);
            verify(&scene, &cores, &large, &q);
        }
    }
}
