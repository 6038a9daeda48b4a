//! Products of powers modulo a large prime: of generators, whose repeated squares are stored, and
//! of any numbers.
//!
//! Both put factors into buckets, one for each digit, and combine the buckets' products by running
//! products (Brickell, Gordon, McCurley and Wilson, EUROCRYPT 1992, for bases known in advance;
//! Pippenger, 1980, in the form of Bernstein and others, INDOCRYPT 2012, section 4, for others).
//! Factors are sorted by bucket first, so that each bucket's product stays in one lane until it is
//! done.

use std::sync::{Arc, PoisonError, RwLock};

use ncs_gf::gfq;
use ncs_gf::montgomery::Lanes;
use ncs_gf::simd::cache::prefetch;

/// An exponent: a number of 320 bits, of which those above q's do not count.
pub type Exponent = [u64; gfq::LIMBS];

/// The arithmetic that a group needs.
pub(super) trait Powers: Send + Sync {
    /// Each base to the power of one exponent, of any number of limbs.
    fn raise(&self, bases: &[Box<[u64]>], exponent: &[u64]) -> Vec<Box<[u64]>>;

    /// The product of the first generators, each to the power of its exponent. `generators` returns
    /// at least as many as its argument.
    fn fixed(
        &self,
        generators: &dyn Fn(usize) -> Arc<[Box<[u64]>]>,
        exponents: &[Exponent],
    ) -> Box<[u64]>;

    /// The product of the bases, each to the power of its exponent.
    fn product(&self, bases: &[Box<[u64]>], exponents: &[Exponent]) -> Box<[u64]>;
}

/// Lanes, and powers of the generators in their form.
pub(super) struct Machine<L> {
    lanes: L,
    one: Vec<u64>,
    /// The factor that brings a number into Montgomery's form.
    square: Vec<u64>,
    /// Numbers that stand for the factor one, then for each generator g the powers g^(2^(w i)).
    powers: RwLock<Arc<Vec<u64>>>,
}

impl<L: Lanes + Send> Machine<L> {
    pub(super) fn new(lanes: L) -> Self {
        let mut square = vec![0; L::STRIDE];
        lanes.write(&lanes.square(), &mut square);
        let mut machine = Self {
            lanes,
            one: vec![0; L::STRIDE],
            square,
            powers: RwLock::default(),
        };
        let mut one = machine.one.clone();
        machine.enter(&[[1].into()], &mut one, &[ONE]);
        machine.one = one;
        machine
    }

    /// A table with room for so many numbers behind the number one.
    fn table(&self, numbers: usize) -> Vec<u64> {
        let mut table = Vec::with_capacity((1 + numbers) * L::STRIDE);
        table.extend(&self.one);
        table.resize((1 + numbers) * L::STRIDE, 0);
        table
    }

    /// Writes numbers below the modulus, in limbs, to places of a table.
    fn enter(&self, numbers: &[Box<[u64]>], table: &mut [u64], places: &[u32]) {
        for (number, &place) in numbers.iter().zip(places) {
            self.lanes.write(
                number,
                &mut table[place as usize * L::STRIDE..][..L::STRIDE],
            );
        }
        let square = self.lanes.gather(&self.square, &[0; WIDTH_MAX][..L::WIDTH]);
        for places in places.chunks(L::WIDTH) {
            let entered = self
                .lanes
                .mul(&self.gather(table, places.iter().copied()), &square);
            self.lanes.scatter(&entered, table, places);
        }
    }

    /// The limbs of numbers in a table.
    fn leave(&self, table: &[u64], places: &[u32]) -> Vec<Box<[u64]>> {
        let (mut one, mut out) = (vec![0; L::STRIDE], vec![0; L::WIDTH * L::STRIDE]);
        self.lanes.write(&[1], &mut one);
        let one = self.lanes.gather(&one, &[0; WIDTH_MAX][..L::WIDTH]);
        let mut numbers = Vec::with_capacity(places.len());
        for places in places.chunks(L::WIDTH) {
            let left = self
                .lanes
                .mul(&self.gather(table, places.iter().copied()), &one);
            let all: Vec<u32> = (0..number(places.len())).collect();
            self.lanes.scatter(&left, &mut out, &all);
            numbers.extend(
                out.chunks_exact(L::STRIDE)
                    .take(places.len())
                    .map(|place| self.lanes.read(place).into()),
            );
        }
        numbers
    }

    /// The limbs of the number in the first lane.
    fn leave_one(&self, wide: &L::Wide) -> Box<[u64]> {
        let mut table = self.table(0);
        self.lanes.scatter(wide, &mut table, &[ONE]);
        self.leave(&table, &[ONE]).remove(0)
    }

    /// The numbers at so many of these places; lanes without a place have the factor one.
    fn gather(&self, table: &[u64], places: impl IntoIterator<Item = u32>) -> L::Wide {
        let mut all = [ONE; WIDTH_MAX];
        all.iter_mut()
            .zip(places)
            .for_each(|(all, place)| *all = place);
        self.lanes.gather(table, &all[..L::WIDTH])
    }

    fn prefetch(&self, table: &[u64], places: impl IntoIterator<Item = u32>) {
        places
            .into_iter()
            .for_each(|place| prefetch(&table[place as usize * L::STRIDE..][..L::STRIDE]));
    }

    /// The table of powers of the generators, of at least so many.
    fn powers_of(
        &self,
        generators: &dyn Fn(usize) -> Arc<[Box<[u64]>]>,
        count: usize,
    ) -> Arc<Vec<u64>> {
        let is_enough =
            |table: &Arc<Vec<u64>>| table.len() >= (1 + count * FIXED_DIGITS) * L::STRIDE;
        let held = Arc::clone(&self.powers.read().unwrap_or_else(PoisonError::into_inner));
        if is_enough(&held) {
            return held;
        }
        // Whoever wants it meanwhile waits.
        let mut held = self.powers.write().unwrap_or_else(PoisonError::into_inner);
        if is_enough(&held) {
            return Arc::clone(&held);
        }
        let bases = generators(count);
        let mut table = self.table(bases.len() * FIXED_DIGITS);
        let place = |base: usize, digit: usize| number(1 + base * FIXED_DIGITS + digit);
        self.enter(
            &bases,
            &mut table,
            &(0..bases.len())
                .map(|base| place(base, 0))
                .collect::<Vec<_>>(),
        );
        for first in (0..bases.len()).step_by(L::WIDTH) {
            let own = first..(first + L::WIDTH).min(bases.len());
            let mut power = self.gather(&table, own.clone().map(|base| place(base, 0)));
            for digit in 1..FIXED_DIGITS {
                for _ in 0..FIXED_BITS {
                    power = self.lanes.mul(&power, &power);
                }
                let places: Vec<u32> = own.clone().map(|base| place(base, digit)).collect();
                self.lanes.scatter(&power, &mut table, &places);
            }
        }
        *held = Arc::new(table);
        Arc::clone(&held)
    }

    /// Products of the factors in each of so many buckets, behind the number one. A factor is its
    /// bucket and its place in the table.
    fn fill(&self, table: &[u64], buckets: usize, factors: &[(u32, u32)]) -> Vec<u64> {
        let mut ends = vec![0_u32; buckets + 1];
        factors
            .iter()
            .for_each(|&(bucket, _)| ends[bucket as usize + 1] += 1);
        for bucket in 0..buckets {
            ends[bucket + 1] += ends[bucket];
        }
        let starts = ends.clone();
        let mut places = vec![ONE; factors.len()];
        // From here on `ends` is the next free place of each bucket.
        for &(bucket, place) in factors {
            let next = &mut ends[bucket as usize];
            places[*next as usize] = place;
            *next += 1;
        }
        let of = |bucket: u32| {
            &places[starts[bucket as usize] as usize..starts[bucket as usize + 1] as usize]
        };
        // Buckets of about one size at a time, so that no lane waits long for another.
        let mut order: Vec<u32> = (0..number(buckets)).collect();
        order.sort_by_key(|&bucket| std::cmp::Reverse(of(bucket).len()));
        let mut products = self.table(buckets);
        let groups: Vec<&[u32]> = order.chunks(L::WIDTH).collect();
        for (index, group) in groups.iter().enumerate() {
            let most = of(group[0]).len();
            let at = |step: usize| {
                group
                    .iter()
                    .map(move |&bucket| of(bucket).get(step).copied().unwrap_or(ONE))
            };
            let mut product = self.gather(table, at(0));
            for step in 1..=most {
                // What comes next is anywhere in the table.
                match groups.get(index + 1) {
                    Some(next) if step + 1 >= most => {
                        self.prefetch(
                            table,
                            next.iter()
                                .filter_map(|&bucket| of(bucket).get(step + 1 - most).copied()),
                        );
                    }
                    _ => self.prefetch(table, at(step + 1)),
                }
                if step < most {
                    product = self.lanes.mul(&product, &self.gather(table, at(step)));
                }
            }
            let into: Vec<u32> = group.iter().map(|bucket| bucket + 1).collect();
            self.lanes.scatter(&product, &mut products, &into);
        }
        products
    }

    /// For each row of `digits` buckets from these places on, the product of all, and that of each
    /// to the power of its number in the row.
    fn run(&self, buckets: &[u64], rows: &[u32], digits: usize) -> (L::Wide, L::Wide) {
        let at = |digit: usize| self.gather(buckets, rows.iter().map(|row| row + number(digit)));
        let (mut all, mut weighted) = (self.gather(buckets, []), self.gather(buckets, []));
        for digit in (1..digits).rev() {
            all = self.lanes.mul(&all, &at(digit));
            weighted = self.lanes.mul(&weighted, &all);
        }
        (self.lanes.mul(&all, &at(0)), weighted)
    }

    /// The product of what is in the buckets, each to the power of its number: the buckets are
    /// behind the number one, 2^`FIXED_BITS` of them.
    fn weigh(&self, buckets: &[u64]) -> Box<[u64]> {
        // Each lane has a part of them; its first one's number stands for all of the part.
        let part = (1 << FIXED_BITS) / L::WIDTH;
        let rows: Vec<u32> = (0..L::WIDTH).map(|lane| number(1 + lane * part)).collect();
        let (all, weighted) = self.run(buckets, &rows, part);
        let mut table = self.table(2 * L::WIDTH);
        let places: Vec<u32> = (1..=number(L::WIDTH)).collect();
        self.lanes.scatter(&all, &mut table, &places);
        let (mut running, mut total) = (self.gather(&table, []), self.gather(&table, []));
        for &place in places[1..].iter().rev() {
            running = self.lanes.mul(&running, &self.gather(&table, [place]));
            total = self.lanes.mul(&total, &running);
        }
        for _ in 0..part.ilog2() {
            total = self.lanes.mul(&total, &total);
        }
        self.lanes.scatter(&weighted, &mut table, &places);
        for &place in &places {
            total = self.lanes.mul(&total, &self.gather(&table, [place]));
        }
        self.leave_one(&total)
    }
}

impl<L: Lanes + Send> Powers for Machine<L> {
    fn raise(&self, bases: &[Box<[u64]>], exponent: &[u64]) -> Vec<Box<[u64]>> {
        let mut table = self.table(bases.len());
        let all: Vec<u32> = (1..=number(bases.len())).collect();
        self.enter(bases, &mut table, &all);
        for places in all.chunks(L::WIDTH) {
            let one = self.gather(&table, []);
            let mut small = vec![one, self.gather(&table, places.iter().copied())];
            for index in 2..1 << RAISE_BITS {
                small.push(self.lanes.mul(&small[index - 1], &small[1]));
            }
            let mut power = one;
            for digit in (0..(64 * exponent.len()).div_ceil(RAISE_BITS)).rev() {
                for _ in 0..RAISE_BITS {
                    power = self.lanes.mul(&power, &power);
                }
                power = self.lanes.mul(
                    &power,
                    &small[bits(exponent, digit * RAISE_BITS, RAISE_BITS)],
                );
            }
            self.lanes.scatter(&power, &mut table, places);
        }
        self.leave(&table, &all)
    }

    fn fixed(
        &self,
        generators: &dyn Fn(usize) -> Arc<[Box<[u64]>]>,
        exponents: &[Exponent],
    ) -> Box<[u64]> {
        let table = self.powers_of(generators, exponents.len());
        let place = |digit: usize, index: usize| 1 + index * FIXED_DIGITS + digit;
        let factors = factors(exponents, FIXED_BITS, FIXED_DIGITS, place, |_, value| value);
        self.weigh(&self.fill(&table, 1 << FIXED_BITS, &factors))
    }

    fn product(&self, bases: &[Box<[u64]>], exponents: &[Exponent]) -> Box<[u64]> {
        let mut table = self.table(bases.len());
        self.enter(
            bases,
            &mut table,
            &(1..=number(bases.len())).collect::<Vec<_>>(),
        );
        let width = exponents.iter().map(length).max().unwrap_or(0);
        let (digits, buckets) = (width.div_ceil(FREE_BITS), 1 << FREE_BITS);
        let factors = factors(
            exponents,
            FREE_BITS,
            digits,
            |_, index| 1 + index,
            |digit, value| digit * buckets + value,
        );
        let products = self.fill(&table, digits * buckets, &factors);
        let mut weighted = self.table(digits);
        let all: Vec<u32> = (0..number(digits)).collect();
        for digits in all.chunks(L::WIDTH) {
            let rows: Vec<u32> = digits
                .iter()
                .map(|digit| 1 + digit * number(buckets))
                .collect();
            let places: Vec<u32> = digits.iter().map(|digit| 1 + digit).collect();
            self.lanes.scatter(
                &self.run(&products, &rows, buckets).1,
                &mut weighted,
                &places,
            );
        }
        let mut total = self.gather(&weighted, []);
        for digit in all.iter().rev() {
            for _ in 0..FREE_BITS {
                total = self.lanes.mul(&total, &total);
            }
            total = self.lanes.mul(&total, &self.gather(&weighted, [1 + digit]));
        }
        self.leave_one(&total)
    }
}

/// The factors of a product of powers: for each digit of each exponent that is not zero, its bucket
/// and its place.
fn factors(
    exponents: &[Exponent],
    width: usize,
    digits: usize,
    place: impl Fn(usize, usize) -> usize,
    bucket: impl Fn(usize, usize) -> usize,
) -> Vec<(u32, u32)> {
    let mut factors = Vec::with_capacity(exponents.len() * digits);
    for (index, exponent) in exponents.iter().enumerate() {
        for digit in 0..digits {
            let value = bits(exponent, digit * width, width);
            if value > 0 {
                factors.push((number(bucket(digit, value)), number(place(digit, index))));
            }
        }
    }
    factors
}

/// Bits of an exponent from `start` on.
fn bits(exponent: &[u64], start: usize, count: usize) -> usize {
    let limb = |index: usize| exponent.get(index).copied().unwrap_or(0);
    let (index, shift) = (start / 64, start % 64);
    let low = limb(index) >> shift;
    let high = if shift == 0 {
        0
    } else {
        limb(index + 1) << (64 - shift)
    };
    usize::try_from((low | high) & ((1 << count) - 1)).expect("few bits")
}

/// Bits of an exponent without zeros in front.
fn length(exponent: &Exponent) -> usize {
    exponent
        .iter()
        .rposition(|&limb| limb != 0)
        .map_or(0, |top| {
            (64 * (top + 1)) - exponent[top].leading_zeros() as usize
        })
}

/// A place or a bucket. There are fewer than 2^32 of either.
fn number(index: usize) -> u32 {
    u32::try_from(index).expect("a small table")
}

/// The place of the number one in every table.
const ONE: u32 = 0;
/// Lanes of the widest machine.
const WIDTH_MAX: usize = 8;
/// Bits of a digit where powers of the bases are kept: for 512 bases, 26 powers of each and 1024
/// buckets take the fewest products.
const FIXED_BITS: usize = 10;
/// Digits of an element there.
const FIXED_DIGITS: usize = gfq::BITS.div_ceil(FIXED_BITS);
/// Bits of a digit where none are, likewise for 128 bases.
const FREE_BITS: usize = 5;
/// Bits of a digit where all bases have one exponent.
const RAISE_BITS: usize = 4;
