//! The input of a case, and its expected output.
//!
//! Up to 16 generations differ; a case with more uses them in turn. The case determines all of it,
//! so that two contenders of one shape get the same.

use std::num::NonZeroUsize;
use std::thread;

use ncs_gf::{Kernels, RowKey, matrix};
use ncserverd::bench::oracle;
use ncserverd::device::Field;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use super::catalogue::{Case, Kind};

/// Source blocks, and the rows they are combined with.
pub(super) struct Load {
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) rows: usize,
    pub(super) generations: usize,
    pub(super) field: Field,
    /// Generations that differ, one behind the other.
    pub(super) sources: Vec<u8>,
    /// Rows of as many generations, unless they come from seeds.
    pub(super) given: Option<Vec<u8>>,
}

impl Load {
    pub(super) fn new(case: &Case, field: Field) -> Self {
        let (n, k) = (
            usize::from(case.n),
            usize::try_from(case.k).expect("a block fits in memory"),
        );
        let [rows, generations] =
            [case.rows, case.generations].map(|count| usize::try_from(count).expect("a count"));
        let bytes = n * k.max(if case.coefficients == Kind::Dense {
            0
        } else {
            rows
        });
        let distinct = (DISTINCT_BYTES / bytes)
            .clamp(1, DISTINCT_MAX)
            .min(generations);
        let mut rng = SmallRng::seed_from_u64(SEED);
        let mut sources = vec![0; distinct * n * k];
        rng.fill_bytes(&mut sources);
        let given = match case.coefficients {
            Kind::Dense => None,
            Kind::NonZero => Some(non_zero(distinct * rows * n, &mut rng)),
            Kind::Sparse => Some(
                (0..distinct * rows)
                    .flat_map(|index| sparse(n, case.weight, index / rows, index % rows))
                    .collect(),
            ),
        };
        Self {
            n,
            k,
            rows,
            generations,
            field,
            sources,
            given,
        }
    }

    /// Generations that differ.
    pub(super) fn distinct(&self) -> usize {
        self.sources.len() / (self.n * self.k)
    }

    pub(super) fn source(&self, generation: usize) -> &[u8] {
        let bytes = self.n * self.k;
        &self.sources[generation % self.distinct() * bytes..][..bytes]
    }

    /// The coefficients of a row.
    pub(super) fn row(&self, generation: usize, row: usize) -> Vec<u8> {
        match &self.given {
            Some(given) => given[(generation % self.distinct() * self.rows + row) * self.n..]
                [..self.n]
                .to_vec(),
            None => {
                let mut coefficients = vec![0; self.n];
                key(generation).fill(seed(row), &mut coefficients);
                coefficients
            }
        }
    }

    /// All rows of a generation, one behind the other.
    pub(super) fn all_rows(&self, generation: usize) -> Vec<u8> {
        (0..self.rows)
            .flat_map(|row| self.row(generation, row))
            .collect()
    }

    /// What the coded block has to be.
    pub(super) fn expected(&self, generation: usize, row: usize) -> Vec<u8> {
        oracle::combine_in(
            self.field,
            &self.row(generation, row),
            self.source(generation),
            self.k,
        )
    }

    /// What all blocks to look at have to be.
    pub(super) fn expectations(&self) -> Vec<((usize, usize), Vec<u8>)> {
        let expect = |places: &[(usize, usize)]| {
            places
                .iter()
                .map(|&place| (place, self.expected(place.0, place.1)))
                .collect::<Vec<_>>()
        };
        let places = self.sample();
        parallel(
            places.chunks(places.len().div_ceil(PARTS)).collect(),
            expect,
        )
        .concat()
    }

    /// Blocks to check: the first, the last and one between of three generations, or all of them if
    /// they are few.
    pub(super) fn sample(&self) -> Vec<(usize, usize)> {
        let all = self.generations * self.rows;
        if all * self.n * self.k <= WHOLE_PRODUCTS {
            return (0..all)
                .map(|index| (index / self.rows, index % self.rows))
                .collect();
        }
        let some = |count: usize| {
            let mut some = vec![0, count / 3 + 1, count - 1];
            some.retain(|&index| index < count);
            some.dedup();
            some
        };
        let generations = some(self.generations);
        generations
            .into_iter()
            .flat_map(|generation| {
                some(self.rows)
                    .into_iter()
                    .map(move |row| (generation, row))
            })
            .collect()
    }
}

/// Coded blocks to decode: for each generation an invertible matrix, its inverse, and payloads.
pub(super) struct Coded {
    pub(super) load: Load,
    pub(super) matrices: Vec<u8>,
    pub(super) inverses: Vec<u8>,
    pub(super) payloads: Vec<u8>,
}

impl Coded {
    /// In the product's field. The fastest kernels here make the payloads: if they were wrong, no
    /// decoder would find the source.
    pub(super) fn new(case: &Case) -> Self {
        let kind = case.coefficients;
        let load = Load::new(
            &Case {
                rows: u32::from(case.n),
                coefficients: Kind::Dense,
                ..case.clone()
            },
            Field::Standard,
        );
        let kernels = Kernels::detect();
        let pairs = parallel((0..load.distinct()).collect(), |generation| {
            invertible(load.n, generation, kind, kernels)
        });
        let (matrices, inverses): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        // Some rows of a generation at a time, so that a single large one also keeps all threads
        // busy.
        let step = load.n.div_ceil(PARTS);
        let parts = matrices
            .iter()
            .enumerate()
            .flat_map(|(generation, matrix)| {
                matrix
                    .chunks(step * load.n)
                    .map(move |rows| (generation, rows))
            });
        let payloads = parallel(parts.collect(), |(generation, rows)| {
            multiply(rows, load.source(generation), load.n, load.k, kernels)
        });
        let payloads = payloads.concat();
        Self {
            matrices: matrices.concat(),
            inverses: inverses.concat(),
            payloads,
            load,
        }
    }

    pub(super) fn matrix(&self, generation: usize) -> &[u8] {
        let bytes = self.load.n * self.load.n;
        &self.matrices[generation % self.load.distinct() * bytes..][..bytes]
    }

    pub(super) fn inverse(&self, generation: usize) -> &[u8] {
        let bytes = self.load.n * self.load.n;
        &self.inverses[generation % self.load.distinct() * bytes..][..bytes]
    }

    pub(super) fn payloads(&self, generation: usize) -> &[u8] {
        let bytes = self.load.n * self.load.k;
        &self.payloads[generation % self.load.distinct() * bytes..][..bytes]
    }
}

/// The results of some jobs, each by a thread of its own.
fn parallel<T: Send, R: Send>(jobs: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = jobs
            .into_iter()
            .map(|job| scope.spawn(move || work(job)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    })
}

/// What the rows of a generation are drawn with.
pub(super) fn key(generation: usize) -> RowKey {
    RowKey {
        key: SEED,
        generation: generation as u64,
    }
}

/// A matrix with an inverse, and the inverse.
pub(super) fn invertible(
    n: usize,
    generation: usize,
    kind: Kind,
    kernels: Kernels,
) -> (Vec<u8>, Vec<u8>) {
    let mut rng = SmallRng::seed_from_u64(SEED ^ generation as u64);
    loop {
        let matrix = if kind == Kind::NonZero {
            non_zero(n * n, &mut rng)
        } else {
            any(n * n, &mut rng)
        };
        if let Some(inverse) = matrix::invert(kernels, n, &matrix, NonZeroUsize::MIN) {
            return (matrix, inverse);
        }
    }
}

/// All rows times all blocks.
fn multiply(rows: &[u8], blocks: &[u8], n: usize, k: usize, kernels: Kernels) -> Vec<u8> {
    let (rows, blocks): (Vec<&[u8]>, Vec<&[u8]>) = (
        rows.chunks_exact(n).collect(),
        blocks.chunks_exact(k).collect(),
    );
    let mut sums = vec![0; rows.len() * k];
    kernels.combine_scattered(
        &rows,
        &blocks,
        &mut sums.chunks_exact_mut(k).collect::<Vec<_>>(),
    );
    sums
}

fn any(length: usize, rng: &mut SmallRng) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rng.fill_bytes(&mut bytes);
    bytes
}

fn non_zero(length: usize, rng: &mut SmallRng) -> Vec<u8> {
    let mut bytes = any(length, rng);
    for byte in bytes.iter_mut().filter(|byte| **byte == 0) {
        *byte = rng.random_range(1..=255);
    }
    bytes
}

/// A row in which `weight` coefficients are not zero, as the product draws it.
fn sparse(n: usize, weight: u16, generation: usize, row: usize) -> Vec<u8> {
    let mut coefficients = vec![0; n];
    key(generation).fill_sparse(seed(row), weight, &mut coefficients);
    coefficients
}

/// The seed of a row of a generation.
fn seed(row: usize) -> u32 {
    FIRST_SEED.wrapping_add(u32::try_from(row).expect("fewer rows than 2^32"))
}

pub(super) const SEED: u64 = 0x0123_4567_89ab_cdef;
pub(super) const FIRST_SEED: u32 = 7;
const DISTINCT_MAX: usize = 16;
/// Threads that prepare data.
const PARTS: usize = 8;
const DISTINCT_BYTES: usize = 32 << 20;
/// Products that the definition makes in some milliseconds.
const WHOLE_PRODUCTS: usize = 4 << 20;
