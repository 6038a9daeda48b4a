//! The data of all contenders.

use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::thread;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::oracle;
use crate::block::Vector;
use crate::codec::Outcome;
use crate::codec::rlnc::Decoder;
use crate::gf::{Kernels, RowKey, matrix};
use crate::object::{Generation, Shape};

/// A generation, n independent coded blocks of it, and their expected payloads.
#[derive(Debug)]
pub struct Work {
    /// Its shape.
    pub generation: Generation,
    /// The key from which coefficients are drawn.
    pub key: RowKey,
    /// Its blocks, concatenated.
    pub source: Vec<u8>,
    /// The first seed of the coded blocks; the others follow.
    pub first_seed: u32,
    /// The expected payloads of the coded blocks, concatenated.
    pub coded: Vec<u8>,
    inverse: OnceLock<Option<Vec<u8>>>,
}

impl Work {
    /// The same bytes in each run.
    ///
    /// # Panics
    /// If the shape is impossible.
    pub fn new(n: u16, k: u32) -> Self {
        let shape = Shape::new(u64::from(n) * u64::from(k), k, n)
            .expect("shapes are checked when options are read");
        let generation = shape.generation(0).expect("no segment is empty");
        let block_bytes = usize::try_from(k).expect("a block fits in memory");
        let mut source = vec![0; usize::from(n) * block_bytes];
        SmallRng::seed_from_u64(SEED).fill_bytes(&mut source);
        let key = RowKey {
            key: SEED,
            generation: 0,
        };
        let first_seed = independent(n, key);
        let mut work = Self {
            generation,
            key,
            source,
            first_seed,
            coded: Vec::new(),
            inverse: OnceLock::new(),
        };
        work.coded = combine_all(&work.rows(), &work.source, usize::from(n), block_bytes);
        work
    }

    /// The number of blocks in the generation.
    pub fn n(&self) -> usize {
        usize::from(self.generation.n)
    }

    /// The size of a block.
    pub fn block_bytes(&self) -> usize {
        self.source.len() / self.n()
    }

    /// The coefficients of the coded blocks, row by row.
    pub fn rows(&self) -> Vec<u8> {
        let mut rows = vec![0; self.n() * self.n()];
        let seeds = seeds(self.first_seed, self.generation.n);
        seeds
            .zip(rows.chunks_exact_mut(self.n()))
            .for_each(|(seed, row)| self.key.fill(seed, row));
        rows
    }

    /// The inverse of these rows, computed once; `None` if the result is not the inverse.
    pub fn inverse(&self) -> Option<&[u8]> {
        let inverse = self.inverse.get_or_init(|| {
            let (n, rows) = (self.n(), self.rows());
            let inverse = matrix::invert(Kernels::detect(), n, &rows, NonZeroUsize::MIN)?;
            let product = combine_all(&inverse, &rows, n, n);
            let is_unit = product
                .iter()
                .enumerate()
                .all(|(i, &c)| c == u8::from(i / n == i % n));
            is_unit.then_some(inverse)
        });
        inverse.as_deref()
    }

    /// The coded blocks as they would be received.
    pub fn blocks(&self) -> Vec<(Vector, &[u8])> {
        let vectors = seeds(self.first_seed, self.generation.n).map(Vector::Seed);
        vectors
            .zip(self.coded.chunks_exact(self.block_bytes()))
            .collect()
    }
}

/// Multiplies every row of `n` coefficients by the blocks, by the definition. Uses all cores,
/// because n = 1024 takes seconds.
fn combine_all(rows: &[u8], blocks: &[u8], n: usize, block_bytes: usize) -> Vec<u8> {
    let each =
        (rows.len() / n).div_ceil(thread::available_parallelism().map_or(1, NonZeroUsize::get));
    let combine = |rows: &[u8]| {
        rows.chunks_exact(n)
            .flat_map(|row| oracle::combine(row, blocks, block_bytes))
            .collect::<Vec<u8>>()
    };
    thread::scope(|scope| {
        let parts: Vec<_> = rows
            .chunks(each * n)
            .map(|rows| scope.spawn(move || combine(rows)))
            .collect();
        parts
            .into_iter()
            .flat_map(|part| part.join().expect("sums do not panic"))
            .collect()
    })
}

fn seeds(first: u32, n: u16) -> impl Iterator<Item = u32> {
    (0..u32::from(n)).map(move |offset| first.wrapping_add(offset))
}

/// A seed from which n consecutive rows are independent.
fn independent(n: u16, key: RowKey) -> u32 {
    let k = Shape::BLOCK_BYTES_MIN;
    let shape = Shape::new(u64::from(n) * u64::from(k), k, n).expect("a possible shape");
    let generation = shape.generation(0).expect("no segment is empty");
    let payload = [0; Shape::BLOCK_BYTES_MIN as usize];
    let is_independent = |first: &u32| {
        let mut decoder = Decoder::new(generation, key, Kernels::detect());
        seeds(*first, n)
            .all(|seed| decoder.absorb(&Vector::Seed(seed), &payload) != Ok(Outcome::Redundant))
    };
    (0..).find(is_independent).expect("996 of 1,000 are")
}

const SEED: u64 = 0x0123_4567_89ab_cdef;
