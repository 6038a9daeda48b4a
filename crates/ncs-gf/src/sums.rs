//! Programs of row operations on *pieces*: adjacent ranges of memory with a fixed number of lines
//! each, named by their numbers.
//!
//! A sparse code processes its symbols by thousands of short sums, which are known long before the
//! symbols. A program of them is a plain value, and one call runs it: each sum stays in registers,
//! and its sources are read in place.

/// Sums of pieces, made one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sums {
    heads: Vec<Head>,
    /// The sources of all sums, in their order.
    sources: Vec<u32>,
}

/// The target of a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    target: u32,
    count: u32,
    /// Whether the target's contents are one of its terms.
    accumulate: bool,
}

impl Sums {
    /// An empty program, with room for `sums` sums and `sources` sources in all.
    pub fn with_capacity(sums: usize, sources: usize) -> Self {
        Self {
            heads: Vec::with_capacity(sums),
            sources: Vec::with_capacity(sources),
        }
    }

    /// Adds a sum of `sources` to the program. It is added to the contents of `target` if
    /// `accumulate`, and replaces them otherwise.
    pub fn push(&mut self, target: u32, accumulate: bool, sources: impl IntoIterator<Item = u32>) {
        let before = self.sources.len();
        self.sources.extend(sources);
        let count = u32::try_from(self.sources.len() - before).expect("fewer than 2^32 sources");
        self.heads.push(Head {
            target,
            count,
            accumulate,
        });
    }

    /// The sums in their order: the target, whether the sum accumulates, and its sources.
    pub fn each(&self) -> impl Iterator<Item = (u32, bool, &[u32])> {
        let mut all = self.sources.as_slice();
        self.heads.iter().map(move |head| {
            let (sources, behind) = all.split_at(head.count as usize);
            all = behind;
            (head.target, head.accumulate, sources)
        })
    }

    /// The number of sums, and of their sources in all.
    pub fn len(&self) -> (usize, usize) {
        (self.heads.len(), self.sources.len())
    }
}

/// A value that is doubled, grows by a piece, and is added to two others, at every step: the HDPC
/// constraint of RaptorQ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fold {
    /// The steps, in their order.
    pub steps: Vec<Step>,
    /// The piece of one more step, or [`Fold::NOTHING`].
    pub last: u32,
    /// The targets of the final value: times 1, 2, 4 and so on.
    pub powers: Vec<u32>,
}

/// One step of a [`Fold`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The piece to add, or [`Fold::NOTHING`].
    pub source: u32,
    /// Pieces that the value is then added to; no piece twice.
    pub targets: [u32; 2],
}

impl Fold {
    /// No piece.
    pub const NOTHING: u32 = u32::MAX;
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, RngExt, SeedableRng};

    use super::super::gf256;
    use super::super::simd::{Kernels, Line};
    use super::*;

    const PIECES: u32 = 40;

    fn random_lines(width: usize, rng: &mut SmallRng) -> Vec<Line> {
        let mut lines = vec![Line::ZERO; PIECES as usize * width];
        rng.fill_bytes(Line::bytes_mut(&mut lines));
        lines
    }

    /// What `run` makes of the same pieces with each instruction set, against the scalar one, which
    /// is compared with `expected`.
    fn check(
        width: usize,
        seed: u64,
        run: impl Fn(Kernels, &mut [Line]),
        expected: impl Fn(&mut [Vec<u8>]),
    ) {
        let before = random_lines(width, &mut SmallRng::seed_from_u64(seed));
        let mut pieces: Vec<Vec<u8>> = Line::bytes(&before)
            .chunks_exact(width * Line::BYTES)
            .map(<[u8]>::to_vec)
            .collect();
        expected(&mut pieces);
        for kernels in Kernels::available() {
            let mut lines = before.clone();
            run(kernels, &mut lines);
            assert!(
                Line::bytes(&lines) == pieces.concat(),
                "{kernels:?}, {width} lines"
            );
        }
    }

    fn add(sum: &mut [u8], other: &[u8]) {
        sum.iter_mut()
            .zip(other)
            .for_each(|(sum, byte)| *sum ^= byte);
    }

    #[test]
    fn sums_are_made_in_order() {
        let mut rng = SmallRng::seed_from_u64(1);
        for width in 1..=4 {
            let mut sums = Sums::with_capacity(0, 0);
            let mut list = Vec::new();
            for _ in 0..200 {
                let (target, accumulate) = (rng.random_range(0..PIECES), rng.random());
                let sources: Vec<u32> = (0..rng.random_range(0..9))
                    .map(|_| rng.random_range(0..PIECES))
                    .collect();
                sums.push(target, accumulate, sources.iter().copied());
                list.push((target, accumulate, sources));
            }
            assert_eq!(
                sums.len(),
                (200, list.iter().map(|(.., sources)| sources.len()).sum())
            );
            // A target is written when its sum is complete, so it may be among its own sources.
            let expected = |pieces: &mut [Vec<u8>]| {
                for (target, accumulate, sources) in &list {
                    let mut sum = vec![0; width * Line::BYTES];
                    let own = accumulate.then_some(target);
                    own.into_iter()
                        .chain(sources)
                        .for_each(|source| add(&mut sum, &pieces[*source as usize]));
                    pieces[*target as usize] = sum;
                }
            };
            check(
                width,
                2,
                |kernels, lines| kernels.sum(&sums, lines, width),
                expected,
            );
        }
    }

    #[test]
    fn a_fold_is_horners_rule() {
        let mut rng = SmallRng::seed_from_u64(3);
        for (width, last) in [(1, 7), (2, Fold::NOTHING), (3, 0), (4, 39)] {
            let step = |at: u32| Step {
                source: if at.is_multiple_of(5) {
                    Fold::NOTHING
                } else {
                    at % 30
                },
                targets: [30 + at % 7, 37 + at % 3],
            };
            let steps: Vec<Step> = (0..300).map(|_| step(rng.random_range(0..1000))).collect();
            let fold = Fold {
                steps,
                last,
                powers: (30..40).collect(),
            };
            let expected = |pieces: &mut [Vec<u8>]| {
                let mut running = vec![0; width * Line::BYTES];
                let grow = |running: &mut Vec<u8>, pieces: &[Vec<u8>], source: u32| {
                    running
                        .iter_mut()
                        .for_each(|byte| *byte = gf256::mul(*byte, 2));
                    if source != Fold::NOTHING {
                        add(running, &pieces[source as usize]);
                    }
                };
                for step in &fold.steps {
                    grow(&mut running, pieces, step.source);
                    step.targets
                        .iter()
                        .for_each(|target| add(&mut pieces[*target as usize], &running));
                }
                grow(&mut running, pieces, fold.last);
                for (target, power) in fold
                    .powers
                    .iter()
                    .zip([1, 2, 4, 8, 16, 32, 64, 128, 29, 58])
                {
                    let product: Vec<u8> = running
                        .iter()
                        .map(|&byte| gf256::mul(byte, power))
                        .collect();
                    add(&mut pieces[*target as usize], &product);
                }
            };
            check(
                width,
                4,
                |kernels, lines| kernels.fold(&fold, lines, width),
                expected,
            );
        }
    }

    #[test]
    #[should_panic(expected = "out of")]
    fn a_number_that_leads_to_no_piece_is_no_read() {
        let mut sums = Sums::with_capacity(1, 1);
        sums.push(0, false, [2]);
        Kernels::detect().sum(&sums, &mut [Line::ZERO; 2], 1);
    }
}
