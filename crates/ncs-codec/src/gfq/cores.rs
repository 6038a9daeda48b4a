//! Arithmetic over GF(q) on the CPU, with several threads.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::arithmetic::{Arithmetic, Decode, Encode, Kept, NotKept, Rebuilt, Recode};
use super::block::{Coded, Vector, pack};
use super::hash::batch::Batch;
use super::hash::powers::Exponent;
use super::shape::Shape;
use crate::shape::HashGroup as Group;
use ncs_gf::dense::Failed;
use ncs_gf::gfq::dots::{Dots, Factors, Row, RowMut};
use ncs_gf::gfq::{self, Element, WORD_BYTES, matrix};
use ncs_gf::montgomery::Multiplier;

/// The CPU, which does not fail. It has a number of threads, of which a call starts as many as it
/// has parts for.
#[derive(Debug, Clone, Copy)]
pub struct Cores {
    multiplier: Multiplier,
    dots: Dots,
    threads: NonZeroUsize,
}

impl Cores {
    /// The CPU with at most `threads` threads, each with the widest available instructions.
    pub fn new(threads: NonZeroUsize) -> Self {
        let fastest = Multiplier::available()[0];
        Self {
            multiplier: fastest,
            dots: fastest.into(),
            threads,
        }
    }

    /// The CPU with as many threads as the process may use.
    pub fn all() -> Self {
        Self::new(thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
    }

    /// The maximum number of threads.
    pub fn threads(&self) -> NonZeroUsize {
        self.threads
    }

    /// One thread for each multiplication method of this processor, the fastest first: for
    /// comparisons.
    pub fn available() -> Vec<Self> {
        let one = |multiplier: Multiplier| Self {
            multiplier,
            dots: multiplier.into(),
            threads: NonZeroUsize::MIN,
        };
        Multiplier::available().into_iter().map(one).collect()
    }

    /// The name of the instructions that multiply large numbers, for people.
    pub fn instructions(&self) -> &'static str {
        self.multiplier.name()
    }

    /// Processes all parts, each on some thread.
    fn share<T: Send>(&self, parts: Vec<T>, work: impl Fn(T) + Sync) {
        let threads = self.threads.get().min(parts.len());
        let parts = Mutex::new(parts.into_iter());
        let run = || {
            loop {
                // Not in the condition of the loop, where it would stay locked while the part is
                // done.
                let part = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(part) = part else { return };
                work(part);
            }
        };
        thread::scope(|scope| {
            (1..threads).for_each(|_| drop(scope.spawn(run)));
            run();
        });
    }
}

impl Arithmetic for Cores {
    /// Cores need no copy.
    fn keep(&self, _: &[u8], _: usize) -> Result<Option<Arc<dyn Kept>>, NotKept> {
        Ok(None)
    }

    fn encode(&self, shape: Shape, tasks: &mut [Encode<'_>]) -> Result<(), Failed> {
        let mut parts = Vec::new();
        for task in tasks {
            task.count(shape);
            let rows = task.rows.chunks(ROWS_A_PART * shape.n());
            let outs = task.out.chunks_mut(ROWS_A_PART);
            parts.extend(rows.zip(outs).map(|(rows, outs)| (task.source, rows, outs)));
        }
        self.share(parts, |(source, rows, outs)| {
            let block = |index: usize| source.get(index * shape.block_bytes()..).unwrap_or(&[]);
            let blocks = (0..shape.n())
                .map(block)
                .map(|rest| Row::plain(&rest[..rest.len().min(shape.block_bytes())]));
            let mut outs: Vec<RowMut<'_>> = outs
                .iter_mut()
                .map(|out| RowMut::packed(out, shape.words()))
                .collect();
            self.dots
                .encode(rows, &blocks.collect::<Vec<_>>(), &mut outs);
        });
        Ok(())
    }

    fn recode(&self, shape: Shape, tasks: &mut [Recode<'_>]) -> Result<(), Failed> {
        for task in tasks {
            task.count(shape);
            let held = task.held.len();
            let vectors: Vec<Vec<u8>> = task
                .held
                .iter()
                .map(|block| packed_vector(&block.vector))
                .collect();
            let vectors: Vec<Row<'_>> = vectors
                .iter()
                .map(|vector| Row::packed(vector, shape.n()))
                .collect();
            let payloads = payloads(shape, task.held);
            let outs = task
                .vectors
                .chunks_mut(ROWS_A_PART * shape.recoded_vector_bytes());
            let outs = outs.zip(
                task.payloads
                    .chunks_mut(ROWS_A_PART * shape.payload_bytes()),
            );
            let parts = task.rows.chunks(ROWS_A_PART * held).zip(outs).collect();
            self.share(parts, |(rows, (vectors_out, payloads_out))| {
                let factors = Factors::new(self.dots, rows);
                self.dots.combine(
                    &factors,
                    &payloads,
                    &mut packed(payloads_out, shape.payload_bytes(), shape.words()),
                );
                let length = shape.n() * WORD_BYTES + shape.n().div_ceil(8);
                let mut all = vec![0; rows.len() / held * length];
                self.dots
                    .combine(&factors, &vectors, &mut packed(&mut all, length, shape.n()));
                for (row, out) in all
                    .chunks_exact(length)
                    .zip(vectors_out.chunks_exact_mut(shape.recoded_vector_bytes()))
                {
                    let (low, bits) = row.split_at(shape.n() * WORD_BYTES);
                    for (index, (low, out)) in low
                        .as_chunks::<WORD_BYTES>()
                        .0
                        .iter()
                        .zip(out.as_chunks_mut().0)
                        .enumerate()
                    {
                        let [top, rest @ ..]: &mut [u8; gfq::BYTES] = out;
                        (*top, *rest) = (bits[index / 8] >> (index % 8) & 1, *low);
                    }
                }
            });
        }
        Ok(())
    }

    fn decode(&self, shape: Shape, tasks: &mut [Decode<'_>]) -> Result<Vec<Rebuilt>, Failed> {
        tasks.iter().for_each(|task| task.check(shape));
        if let [task] = tasks {
            return Ok(vec![self.decode_one(shape, task)]);
        }
        // A generation each, so that no thread waits for another's inverse.
        let each = Self {
            threads: NonZeroUsize::MIN,
            ..*self
        };
        let mut rebuilt = vec![Rebuilt::Singular; tasks.len()];
        self.share(
            tasks.iter_mut().zip(&mut rebuilt).collect(),
            |(task, rebuilt)| *rebuilt = each.decode_one(shape, task),
        );
        Ok(rebuilt)
    }

    fn hash(&self, group: Group, words: usize, blocks: &[&[u8]]) -> Result<Vec<u8>, Failed> {
        assert!(
            words <= usize::from(Shape::WORDS_MAX),
            "blocks of {words} words"
        );
        assert!(
            blocks.iter().all(|block| block.len() <= words * WORD_BYTES),
            "blocks of {words} words"
        );
        group.generators(words);
        let mut hashes = vec![0; blocks.len() * group.hash_bytes()];
        self.share(
            blocks
                .iter()
                .zip(hashes.chunks_exact_mut(group.hash_bytes()))
                .collect(),
            |(block, hash)| {
                let mut bytes = block.to_vec();
                bytes.resize(words * WORD_BYTES, 0);
                let exponents: Vec<Exponent> = bytes
                    .as_chunks::<WORD_BYTES>()
                    .0
                    .iter()
                    .map(|word| *Element::from_word(word).limbs())
                    .collect();
                hash.copy_from_slice(&group.power(self.multiplier, &exponents));
            },
        );
        Ok(hashes)
    }

    fn holds(&self, batches: &[Batch<'_>]) -> Result<Vec<bool>, Failed> {
        let mut holds = vec![false; batches.len()];
        self.share(
            batches.iter().zip(&mut holds).collect(),
            |(batch, holds)| *holds = self.holds_one(batch),
        );
        Ok(holds)
    }
}

impl Cores {
    fn decode_one(&self, shape: Shape, task: &mut Decode<'_>) -> Rebuilt {
        let rows: Vec<Element> = task
            .blocks
            .iter()
            .flat_map(|block| block.vector.elements())
            .collect();
        let Some(inverse) = matrix::invert(self.dots, shape.n(), &rows, self.threads) else {
            return Rebuilt::Singular;
        };
        let payloads = payloads(shape, task.blocks);
        let is_wide = AtomicBool::new(false);
        let parts = task
            .out
            .chunks_mut(ROWS_A_PART * shape.block_bytes())
            .enumerate()
            .collect();
        self.share(parts, |(part, outs): (usize, &mut [u8])| {
            let mut outs: Vec<RowMut<'_>> = outs
                .chunks_exact_mut(shape.block_bytes())
                .map(RowMut::plain)
                .collect();
            let first = part * ROWS_A_PART * shape.n();
            self.dots.combine(
                &inverse.part(first..first + outs.len() * shape.n()),
                &payloads,
                &mut outs,
            );
            is_wide.fetch_or(outs.iter().any(RowMut::is_wide), Ordering::Relaxed);
        });
        if is_wide.into_inner() {
            Rebuilt::Overflow
        } else {
            Rebuilt::Whole
        }
    }

    fn holds_one(&self, batch: &Batch<'_>) -> bool {
        let shape = batch.hashes().shape();
        let words = self.dots.fold(
            batch.weights(),
            &payloads(shape, batch.blocks()),
            shape.words(),
        );
        let words: Vec<Exponent> = words.iter().map(|word| *word.limbs()).collect();
        batch.is_product(self.multiplier, &words, &coefficients(self.dots, batch))
    }
}

/// The weighted sums of a batch's coefficients.
fn coefficients(dots: Dots, batch: &Batch<'_>) -> Vec<Exponent> {
    let n = batch.hashes().shape().n();
    let (mut rows, mut weights, mut sums) = (Vec::new(), Vec::new(), vec![Element::ZERO; n]);
    for (block, &weight) in batch.blocks().iter().zip(batch.weights()) {
        match &block.vector {
            // Far shorter than q, and so is the sum: fewer products of hashes.
            Vector::Source(coefficients) => {
                for (sum, &coefficient) in sums.iter_mut().zip(coefficients) {
                    *sum = sum.add(&Element::product(weight, coefficient));
                }
            }
            Vector::Recoded(_) => {
                rows.push(packed_vector(&block.vector));
                weights.push(weight);
            }
        }
    }
    let rows: Vec<Row<'_>> = rows.iter().map(|row| Row::packed(row, n)).collect();
    let folded = dots.fold(&weights, &rows, n);
    sums.iter()
        .zip(folded)
        .map(|(sum, folded)| *sum.add(&folded).limbs())
        .collect()
}

fn payloads<'a>(shape: Shape, blocks: &[&'a Coded]) -> Vec<Row<'a>> {
    blocks
        .iter()
        .map(|block| Row::packed(block.payload.as_bytes(), shape.words()))
        .collect()
}

fn packed(bytes: &mut [u8], length: usize, words: usize) -> Vec<RowMut<'_>> {
    bytes
        .chunks_exact_mut(length)
        .map(|row| RowMut::packed(row, words))
        .collect()
}

/// A vector in the form of a payload.
fn packed_vector(vector: &Vector) -> Vec<u8> {
    let mut bytes = vec![0; vector.n() * WORD_BYTES + vector.n().div_ceil(8)];
    pack(vector.elements(), &mut bytes);
    bytes
}

/// Rows that a thread makes at a time: enough to justify converting the sources to the form that it
/// multiplies.
pub const ROWS_A_PART: usize = 32;
