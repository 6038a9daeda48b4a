//! Coefficient rows: drawn from a seed in the same way by every server, peer and GPU, or given
//! explicitly.
//!
//! A seeded row is the output of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
//! 1, 2, 3", SC11) read as bytes: key = the two halves of a 64-bit key, counter = [q, seed,
//! generation low half, generation high half], and the four words of the q-th call, little-endian,
//! are coefficients 16q to 16q + 15. The generator is counter-based, so any part of any row can be
//! made independently. It is not linear: rows of a generator that is linear over GF(2), with a
//! state of 64 bits, span at most 64 dimensions and never decode a larger generation.

use bytes::Bytes;

pub mod sparse;

/// The parameters of the rows of one generation, except the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowKey {
    /// The segment's key (`SegmentId::coefficient_key`).
    pub key: u64,
    /// The generation's index in its segment.
    pub generation: u64,
}

impl RowKey {
    /// Writes the row of `seed`: as many coefficients as `row` is long. A shorter row is a prefix
    /// of a longer one.
    pub fn fill(&self, seed: u32, row: &mut [u8]) {
        self.fill_from(0, seed, row);
    }

    /// Like [`fill`](Self::fill), from call number `first` on.
    ///
    /// Never inlined: in the loop of draws of a sparse row, rustc 1.95 compiled it to code that
    /// reads uninitialized memory. The known answers in `tests/vectors` detect this.
    #[inline(never)]
    fn fill_from(&self, first: u32, seed: u32, row: &mut [u8]) {
        for (group, first) in row.chunks_mut(16 * LANES).zip((first..).step_by(LANES)) {
            if group.len() <= 16 * LANES / 2 {
                write(self.words::<{ LANES / 2 }>(first, seed), group);
            } else {
                write(self.words::<LANES>(first, seed), group);
            }
        }
    }

    /// The outputs of consecutive calls from number `first` on, word by word. The calls are
    /// independent, so the multiplications of one hide the latency of the others.
    fn words<const LANES: usize>(&self, first: u32, seed: u32) -> [[u32; LANES]; 4] {
        let [low, high] = halves(self.generation);
        let mut c = [[0; LANES], [seed; LANES], [low; LANES], [high; LANES]];
        c[0].iter_mut()
            .zip(first..)
            .for_each(|(q, value)| *q = value);
        let mut key = halves(self.key);
        for _ in 0..ROUNDS {
            for lane in 0..LANES {
                let next = round([c[0][lane], c[1][lane], c[2][lane], c[3][lane]], key);
                for (words, word) in c.iter_mut().zip(next) {
                    words[lane] = word;
                }
            }
            key = bump(key);
        }
        c
    }
}

/// Writes these outputs, as far as there is room.
fn write<const LANES: usize>(words: [[u32; LANES]; 4], row: &mut [u8]) {
    for (lane, out) in row.chunks_mut(16).enumerate() {
        let mut bytes = [0; 16];
        for (word, place) in words.iter().zip(bytes.chunks_exact_mut(4)) {
            place.copy_from_slice(&word[lane].to_le_bytes());
        }
        out.copy_from_slice(&bytes[..out.len()]);
    }
}

/// One call of the generator, as published: four words from a counter and a key.
pub fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        counter = round(counter, key);
        key = bump(key);
    }
    counter
}

/// The rows that a back end combines one generation with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rows {
    /// Rows drawn from consecutive seeds, modulo 2^32.
    Seeded {
        /// Their key.
        key: RowKey,
        /// The seed of row 0.
        first_seed: u32,
        /// The number of rows.
        count: u32,
    },
    /// Explicit rows, one after the other.
    Explicit {
        /// Coefficients of a row.
        n: u16,
        /// All rows: a multiple of `n` bytes.
        coefficients: Bytes,
    },
    /// Source blocks themselves: unit vectors.
    Source {
        /// The indices of the source blocks.
        indices: Vec<u16>,
    },
}

impl Rows {
    /// The number of rows.
    pub fn count(&self) -> usize {
        match self {
            Self::Seeded { count, .. } => *count as usize,
            Self::Explicit { n: 0, .. } => 0,
            Self::Explicit { n, coefficients } => coefficients.len() / usize::from(*n),
            Self::Source { indices } => indices.len(),
        }
    }

    /// The coefficients of each explicit row; nothing for other rows.
    pub fn coefficients(&self) -> impl Iterator<Item = Bytes> + '_ {
        let (n, all) = match self {
            Self::Explicit { n, coefficients } => (usize::from(*n), coefficients.clone()),
            Self::Seeded { .. } | Self::Source { .. } => (0, Bytes::new()),
        };
        (0..all.len().checked_div(n).unwrap_or_default())
            .map(move |row| all.slice(row * n..(row + 1) * n))
    }

    /// Whether these rows fit a generation of `n` blocks: no index is out of range, and no row is
    /// cut short.
    pub fn fit(&self, n: u16) -> bool {
        match self {
            Self::Seeded { .. } => true,
            Self::Explicit {
                n: length,
                coefficients,
            } => *length == n && coefficients.len() % usize::from(n.max(1)) == 0,
            Self::Source { indices } => indices.iter().all(|&index| index < n),
        }
    }

    /// Writes row `i` into `row`, which is n long.
    ///
    /// # Panics
    /// If there is no row `i`, or the rows do not [`fit`](Self::fit) a generation of `row.len()`
    /// blocks.
    pub fn fill(&self, i: usize, row: &mut [u8]) {
        assert!(i < self.count(), "row {i} of {}", self.count());
        match self {
            Self::Seeded {
                key, first_seed, ..
            } => {
                let offset = u32::try_from(i).expect("fewer rows than 2^32");
                key.fill(first_seed.wrapping_add(offset), row);
            }
            Self::Explicit { n, coefficients } => {
                let n = usize::from(*n);
                row.copy_from_slice(&coefficients[i * n..(i + 1) * n]);
            }
            Self::Source { indices } => {
                row.fill(0);
                row[usize::from(indices[i])] = 1;
            }
        }
    }
}

fn round([c0, c1, c2, c3]: [u32; 4], [k0, k1]: [u32; 2]) -> [u32; 4] {
    let [low0, high0] = halves(u64::from(c0) * MULTIPLIERS[0]);
    let [low1, high1] = halves(u64::from(c2) * MULTIPLIERS[1]);
    [high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0]
}

fn bump([k0, k1]: [u32; 2]) -> [u32; 2] {
    [k0.wrapping_add(WEYL[0]), k1.wrapping_add(WEYL[1])]
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
const fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;
/// Calls made side by side: 64 coefficients. Short rows use half of them.
const LANES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// From the known-answer file of Random123 (`kat_vectors`, "philox4x32 10").
    #[test]
    fn random123_known_answers() {
        for (counter, key, expected) in [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ] {
            assert_eq!(philox4x32_10(counter, key), expected);
        }
    }

    #[test]
    fn a_row_is_the_generators_output_as_bytes() {
        let key = RowKey {
            key: 0x0123_4567_89ab_cdef,
            generation: 0x1_0000_002a,
        };
        let mut row = [0; 200];
        key.fill(7, &mut row);
        for (q, bytes) in (0..).zip(row.chunks(16)) {
            let words = philox4x32_10([q, 7, 0x2a, 1], [0x89ab_cdef, 0x0123_4567]);
            let expected: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(bytes, &expected[..bytes.len()]);
        }
    }

    #[test]
    fn a_shorter_row_is_the_beginning_of_a_longer_one() {
        let key = RowKey {
            key: 1,
            generation: 2,
        };
        let mut longest = [0; 1024];
        key.fill(3, &mut longest);
        for n in [1, 2, 15, 16, 17, 63, 64, 65, 100, 1023] {
            let mut row = vec![0; n];
            key.fill(3, &mut row);
            assert_eq!(row, longest[..n]);
        }
    }

    #[test]
    fn seeds_wrap() {
        let key = RowKey {
            key: 1,
            generation: 2,
        };
        let rows = Rows::Seeded {
            key,
            first_seed: u32::MAX,
            count: 2,
        };
        let (mut row, mut expected) = ([0; 32], [0; 32]);
        rows.fill(1, &mut row);
        key.fill(0, &mut expected);
        assert_eq!(row, expected);
    }

    #[test]
    fn rows_that_do_not_fit_are_known() {
        let explicit = |n, bytes: usize| Rows::Explicit {
            n,
            coefficients: vec![0; bytes].into(),
        };
        assert!(explicit(4, 12).fit(4) && explicit(4, 12).count() == 3);
        assert!(!explicit(4, 13).fit(4) && !explicit(4, 12).fit(3) && !explicit(0, 1).fit(4));
        assert!(
            Rows::Source {
                indices: vec![0, 3]
            }
            .fit(4)
                && !Rows::Source { indices: vec![4] }.fit(4)
        );
    }
}
