//! Rows with few non-zero coefficients, drawn from a seed.
//!
//! The sender alone chooses a sparse row and sends it coefficient by coefficient, so no other party
//! depends on how it is drawn. It comes from the same generator and key as the dense row of its
//! seed, from counters that dense rows do not reach. A word is a draw: its upper byte is the value,
//! the rest selects a place below a bound. Draws with the value zero are skipped, and so are draws
//! that would make some places more likely than others (Lemire, "Fast random integer generation in
//! an interval", 2019). Places are chosen by Floyd's method, which takes one draw for each place
//! and makes every set of places equally likely.
//!
//! A source block that no row covers cannot be decoded, and n rows of w coefficients leave about
//! n·e^-w blocks uncovered. Each further row covers one of them with probability w / n only, so the
//! number of blocks beyond n has a long tail below [`weight_min`].

use std::num::NonZeroU16;

use bytes::Bytes;

use super::{RowKey, Rows};

/// The minimum weight (number of non-zero coefficients) with which rows of `n` coefficients are as
/// good as dense ones: ceil(ln n) + 8.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the logarithm of a u16 is 0 to 12"
)]
pub fn weight_min(n: u16) -> u16 {
    f64::from(n.max(1)).ln().ceil() as u16 + 8
}

/// The minimum weight with which receivers do not take an honest sender for a flooding one: they
/// tolerate 2n redundant explicit vectors in a generation (`docs/protocol.md`, section 10).
///
/// It is half of [`weight_min`]. Where d blocks are missing, 2n + d rows leave d·e^-(2w + dw/n) of
/// them uncovered: at most 2 in 100,000, for every d and n.
pub fn weight_floor(n: u16) -> u16 {
    weight_min(n).div_ceil(2)
}

impl RowKey {
    /// Writes the sparse row of `seed`: `weight` non-zero coefficients, or all of them if the row
    /// is shorter. Every set of places is equally likely, and so is every value from 1 to 255.
    ///
    /// # Panics
    /// If the row is longer than 2^24.
    pub fn fill_sparse(&self, seed: u32, weight: u16, row: &mut [u8]) {
        let n = u32::try_from(row.len())
            .ok()
            .filter(|n| *n <= 1 << PLACE_BITS)
            .expect("a row of 2^24 coefficients at most");
        row.fill(0);
        let mut draws = Draws {
            key: *self,
            seed,
            bytes: [0; BYTES],
            used: BYTES,
            next: FIRST_COUNTER,
        };
        for last in n - n.min(weight.into())..n {
            let (place, value) = draws.below(last + 1);
            // A place that is taken stands for the last one, which could not be drawn before.
            let place = if row[place] == 0 {
                place
            } else {
                last as usize
            };
            row[place] = value;
        }
    }
}

impl Rows {
    /// The sparse rows of consecutive seeds, modulo 2^32, for a generation of `n` blocks.
    pub fn sparse(key: RowKey, first_seed: u32, count: u32, weight: NonZeroU16, n: u16) -> Self {
        let mut coefficients = vec![0; count as usize * usize::from(n)];
        let mut seed = first_seed;
        for row in coefficients.chunks_exact_mut(n.max(1).into()) {
            key.fill_sparse(seed, weight.get(), row);
            seed = seed.wrapping_add(1);
        }
        Self::Explicit {
            n,
            coefficients: Bytes::from(coefficients),
        }
    }
}

/// The generator's output, a word at a time.
struct Draws {
    key: RowKey,
    seed: u32,
    bytes: [u8; BYTES],
    used: usize,
    next: u32,
}

impl Draws {
    /// A place below `bound` and a non-zero value, each uniform.
    fn below(&mut self, bound: u32) -> (usize, u8) {
        loop {
            let [value, low @ ..] = self.word().to_be_bytes();
            let product =
                u64::from(u32::from_be_bytes([0, low[0], low[1], low[2]])) * u64::from(bound);
            let rest = product % (1 << PLACE_BITS);
            let is_even = rest >= u64::from(bound) || rest >= (1 << PLACE_BITS) % u64::from(bound);
            if value != 0 && is_even {
                return (
                    usize::try_from(product >> PLACE_BITS).expect("below the bound"),
                    value,
                );
            }
        }
    }

    fn word(&mut self) -> u32 {
        if self.used == BYTES {
            self.key.fill_from(self.next, self.seed, &mut self.bytes);
            self.next = self.next.wrapping_add(CALLS);
            self.used = 0;
        }
        let word = self.bytes[self.used..]
            .first_chunk()
            .expect("whole words are used");
        self.used += 4;
        u32::from_le_bytes(*word)
    }
}

/// Bits of a word that select a place.
const PLACE_BITS: u32 = 24;
/// Calls of the generator made at a time: as many as it makes side by side.
const CALLS: u32 = 4;
/// Bytes of their output.
const BYTES: usize = 64;
/// The first counter of sparse rows. Dense rows would reach it at 2^35 coefficients.
const FIRST_COUNTER: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: RowKey = RowKey {
        key: 0x0123_4567_89ab_cdef,
        generation: 42,
    };

    fn row(seed: u32, weight: u16, n: usize) -> Vec<u8> {
        let mut row = vec![0xEE; n];
        KEY.fill_sparse(seed, weight, &mut row);
        row
    }

    fn count(row: &[u8]) -> usize {
        row.iter().filter(|c| **c != 0).count()
    }

    /// The sum of (seen - expected)^2 / expected, which has a mean of one less than there are
    /// cells.
    fn chi_square(seen: &[u32]) -> f64 {
        let expected = f64::from(seen.iter().sum::<u32>()) / seen.len() as f64;
        seen.iter()
            .map(|&count| (f64::from(count) - expected).powi(2) / expected)
            .sum()
    }

    #[test]
    fn rows_have_exactly_their_weight() {
        for n in [1, 2, 3, 16, 64, 100, 128, 1024] {
            for weight in [0, 1, 2, 3, 13, 63, 64, 1023, 1024, u16::MAX] {
                for seed in [0, 1, 7, u32::MAX] {
                    assert_eq!(
                        count(&row(seed, weight, n)),
                        n.min(weight.into()),
                        "n = {n}, weight {weight}, seed {seed}"
                    );
                }
            }
        }
        assert!(row(1, 3, 0).is_empty());
    }

    #[test]
    fn a_seed_is_a_row() {
        assert_eq!(row(7, 13, 128), row(7, 13, 128));
        let mut rows: Vec<Vec<u8>> = (0..1000).map(|seed| row(seed, 5, 64)).collect();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), 1000, "seeds differ");
        let other = RowKey {
            generation: 43,
            ..KEY
        };
        let mut differs = vec![0; 64];
        other.fill_sparse(0, 5, &mut differs);
        assert_ne!(differs, row(0, 5, 64));
    }

    /// Bounds are five standard deviations of chi-square with so many degrees of freedom:
    /// sqrt(2·127) = 16, sqrt(2·254) = 23.
    #[test]
    fn places_and_values_are_uniform() {
        for weight in [1, 5, 13, 100] {
            let (mut places, mut values) = ([0; 128], [0; 255]);
            for seed in 0..4000 {
                for (place, &c) in row(seed, weight, 128)
                    .iter()
                    .enumerate()
                    .filter(|(_, c)| **c != 0)
                {
                    places[place] += 1;
                    values[usize::from(c) - 1] += 1;
                }
            }
            let (places, values) = (chi_square(&places), chi_square(&values));
            assert!(places < 127.0 + 80.0, "weight {weight}: places {places}");
            assert!(
                (254.0 - 115.0..254.0 + 115.0).contains(&values),
                "weight {weight}: values {values}"
            );
        }
    }

    /// Which places go together is uniform too: all ten pairs of five places, 9 degrees of freedom.
    #[test]
    fn sets_of_places_are_uniform() {
        let mut pairs = [0; 25];
        for seed in 0..20_000 {
            let row = row(seed, 2, 5);
            let mut places = (0..5).filter(|&place| row[place] != 0);
            let (first, second) = (places.next().unwrap(), places.next().unwrap());
            pairs[first * 5 + second] += 1;
        }
        let pairs: Vec<u32> = pairs.into_iter().filter(|&count| count > 0).collect();
        assert!(
            pairs.len() == 10 && chi_square(&pairs) < 9.0 + 22.0,
            "{pairs:?}"
        );
    }

    #[test]
    fn rows_of_a_task_are_those_of_its_seeds() {
        let rows = Rows::sparse(KEY, u32::MAX, 3, NonZeroU16::new(4).unwrap(), 20);
        assert!(rows.fit(20) && rows.count() == 3);
        for (i, seed) in [u32::MAX, 0, 1].into_iter().enumerate() {
            let mut given = vec![0; 20];
            rows.fill(i, &mut given);
            assert_eq!(given, row(seed, 4, 20));
        }
    }

    #[test]
    fn the_least_weight_is_that_of_the_rule() {
        let expected = [
            (0, 8),
            (1, 8),
            (2, 9),
            (7, 10),
            (8, 11),
            (32, 12),
            (64, 13),
            (128, 13),
            (148, 13),
            (149, 14),
            (1024, 15),
        ];
        for (n, weight) in expected {
            assert_eq!(weight_min(n), weight, "n = {n}");
        }
    }
}
