//! A lab without a GPU: the same results by the definition of the field, slowly. What is tested with it is the bench.

use std::time::{Duration, Instant};

use super::load::key;
use crate::bench::oracle;
use crate::device::lab::{Card, Coefficients, Decode, Decoder, Encode, Lab, Stage, Work};
use crate::device::{Error, Field};
use crate::gf::{Kernels, matrix};

/// Knows a few kernels by name; `wrong` makes a mistake in its last byte.
#[derive(Debug)]
pub(super) struct StandIn(Card);

impl StandIn {
    pub(super) fn new() -> Self {
        let card = Card {
            name: "stand-in".into(),
            driver: "none".into(),
            sms: 8,
            memory_bytes: 1 << 30,
            compute_capability: (9, 0),
            clock_mhz: 1000,
        };
        Self(card)
    }
}

struct Job {
    n: usize,
    k: usize,
    rows: usize,
    field: Field,
    sources: Vec<u8>,
    /// Of each generation.
    coefficients: Vec<Vec<u8>>,
    inverts: bool,
    is_wrong: bool,
    made: Vec<Vec<u8>>,
}

impl Lab for StandIn {
    fn card(&self) -> &Card {
        &self.0
    }

    fn has(&self, name: &str, _n: u16) -> bool {
        ["table", "tensor", "loop", "tiled", "invert", "progressive", "wrong"].contains(&name)
    }

    fn encode<'a>(&'a mut self, plan: &Encode<'_>) -> Result<Box<dyn Work + 'a>, Error> {
        let (n, rows) = (usize::from(plan.n), plan.rows as usize);
        let coefficients = (0..plan.generations as usize).map(|generation| match plan.coefficients {
            Coefficients::Seeded { first_seed, .. } => {
                let mut coefficients = vec![0; rows * n];
                let seeded = coefficients.chunks_exact_mut(n).zip(first_seed..);
                seeded.for_each(|(row, seed)| key(generation).fill(seed, row));
                coefficients
            }
            Coefficients::Explicit(given) => {
                let distinct = given.len() / (rows * n);
                given[generation % distinct * rows * n..][..rows * n].to_vec()
            }
        });
        let job = Job {
            n,
            k: plan.k as usize,
            rows,
            field: plan.field,
            sources: plan.sources.to_vec(),
            coefficients: coefficients.collect(),
            inverts: false,
            is_wrong: plan.kernel == "wrong",
            made: Vec::new(),
        };
        Ok(Box::new(job))
    }

    fn decode<'a>(&'a mut self, plan: &Decode<'_>) -> Result<Box<dyn Work + 'a>, Error> {
        let n = usize::from(plan.n);
        let matrices: Vec<&[u8]> = plan.matrices.chunks_exact(n * n).collect();
        let coefficients = (0..plan.generations as usize).map(|generation| matrices[generation % matrices.len()].to_vec());
        let job = Job {
            n,
            k: plan.k as usize,
            rows: n,
            field: Field::Standard,
            sources: plan.payloads.to_vec(),
            coefficients: coefficients.collect(),
            inverts: plan.decoder != Decoder::Given,
            is_wrong: false,
            made: Vec::new(),
        };
        Ok(Box::new(job))
    }
}

impl Job {
    fn make(&mut self) {
        let bytes = self.n * self.k;
        let sources: Vec<&[u8]> = self.sources.chunks_exact(bytes).collect();
        let one = |(generation, rows): (usize, &Vec<u8>)| {
            let source = sources[generation % sources.len()];
            let inverse = || matrix::invert(Kernels::detect(), self.n, rows, std::num::NonZeroUsize::MIN).unwrap();
            let rows = if self.inverts { inverse() } else { rows.clone() };
            rows.chunks_exact(self.n).flat_map(|row| oracle::combine_in(self.field, row, source, self.k)).collect()
        };
        self.made = self.coefficients.iter().enumerate().map(one).collect();
        if self.is_wrong {
            *self.made.last_mut().and_then(|block: &mut Vec<u8>| block.last_mut()).unwrap() ^= 1;
        }
    }
}

impl Work for Job {
    fn time(&mut self, stages: &[Stage], repeats: u32) -> Result<Duration, Error> {
        let start = Instant::now();
        let makes = [Stage::Multiply, Stage::Store, Stage::Progressive];
        for _ in 0..repeats {
            if stages.iter().any(|stage| makes.contains(stage)) {
                self.make();
            }
        }
        Ok(start.elapsed())
    }

    fn time_in_turn(&mut self, repeats: u32) -> Result<Duration, Error> {
        self.time(&[Stage::Multiply], repeats)
    }

    fn overlap(&mut self, chunk: u32, multiply: bool, repeats: u32) -> Result<Duration, Error> {
        assert!(chunk > 0);
        self.time(if multiply { &[Stage::Multiply] } else { &[Stage::Download] }, repeats)
    }

    fn answer(&mut self, stages: &[Stage]) -> Result<Duration, Error> {
        self.time(stages, 1)
    }

    fn poison(&mut self) -> Result<(), Error> {
        self.made.clear();
        Ok(())
    }

    fn read(&mut self, generation: u32, row: u32, _is_on_host: bool, block: &mut [u8]) -> Result<(), Error> {
        assert!((row as usize) < self.rows);
        block.copy_from_slice(&self.made[generation as usize][row as usize * self.k..][..self.k]);
        Ok(())
    }
}
