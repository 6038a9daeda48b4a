//! The CPU: so many threads of it.

use std::num::NonZeroUsize;
use std::thread;

use super::{Arithmetic, Coded, Decode, Encode, Failed, Rebuilt, Recode, Shape, pack};
use crate::codec::hash::{Batch, Exponent, Group};
use crate::gf::gfq::{Element, Factor, NarrowSum, Sum, WORD_BYTES, matrix};

/// The CPU, which does not fail.
#[derive(Debug, Clone, Copy)]
pub struct Cores {
    threads: NonZeroUsize,
}

impl Cores {
    /// So many threads at most.
    pub fn new(threads: NonZeroUsize) -> Self {
        Self { threads }
    }

    /// As many as the process may use.
    pub fn all() -> Self {
        Self::new(thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
    }

    /// Threads at most.
    pub fn threads(&self) -> NonZeroUsize {
        self.threads
    }
}

impl Arithmetic for Cores {
    fn encode(&self, shape: Shape, tasks: &mut [Encode<'_>]) -> Result<(), Failed> {
        for task in tasks {
            task.count(shape);
            let mut bytes = task.source.to_vec();
            bytes.resize(shape.source_bytes(), 0);
            let words: Vec<Element> = bytes.as_chunks::<WORD_BYTES>().0.iter().map(Element::from_word).collect();
            for (row, out) in task.rows.chunks_exact(shape.n()).zip(task.out.chunks_exact_mut(shape.payload_bytes())) {
                let sum = |word: usize| {
                    let mut sum = NarrowSum::default();
                    let column = words[word..].iter().step_by(shape.words());
                    row.iter().zip(column).for_each(|(&factor, word)| sum.add(factor, word));
                    sum.reduce()
                };
                pack((0..shape.words()).map(sum), out);
            }
        }
        Ok(())
    }

    fn recode(&self, shape: Shape, tasks: &mut [Recode<'_>]) -> Result<(), Failed> {
        for task in tasks {
            task.count(shape);
            let vectors: Vec<Vec<Element>> = task.held.iter().map(|block| block.vector.elements().collect()).collect();
            let payloads: Vec<Vec<Element>> = task.held.iter().map(|block| block.payload.elements().collect()).collect();
            let outs = task.vectors.chunks_exact_mut(shape.recoded_vector_bytes());
            let outs = outs.zip(task.payloads.chunks_exact_mut(shape.payload_bytes()));
            for (row, (vector, payload)) in task.rows.chunks_exact(task.held.len()).zip(outs) {
                let row: Vec<Factor> = row.iter().map(Element::factor).collect();
                let sum = |sources: &[Vec<Element>], index: usize| {
                    let mut sum = Sum::default();
                    row.iter().zip(sources).for_each(|(factor, source)| sum.add(factor, &source[index]));
                    sum.reduce()
                };
                for (index, out) in vector.as_chunks_mut().0.iter_mut().enumerate() {
                    *out = sum(&vectors, index).to_bytes();
                }
                pack((0..shape.words()).map(|index| sum(&payloads, index)), payload);
            }
        }
        Ok(())
    }

    fn decode(&self, shape: Shape, tasks: &mut [Decode<'_>]) -> Result<Vec<Rebuilt>, Failed> {
        tasks.iter().for_each(|task| task.check(shape));
        Ok(tasks.iter_mut().map(|task| decode(shape, task)).collect())
    }

    fn hash(&self, group: Group, words: usize, blocks: &[&[u8]]) -> Result<Vec<u8>, Failed> {
        let mut hashes = Vec::with_capacity(blocks.len() * group.hash_bytes());
        for block in blocks {
            let mut bytes = block.to_vec();
            assert!(bytes.len() <= words * WORD_BYTES, "a block of {words} words");
            bytes.resize(words * WORD_BYTES, 0);
            let exponents: Vec<Exponent> =
                bytes.as_chunks::<WORD_BYTES>().0.iter().map(|word| *Element::from_word(word).limbs()).collect();
            hashes.extend(group.power(&exponents));
        }
        Ok(hashes)
    }

    fn holds(&self, batches: &[Batch<'_>]) -> Result<Vec<bool>, Failed> {
        Ok(batches.iter().map(holds).collect())
    }
}

fn decode(shape: Shape, task: &mut Decode<'_>) -> Rebuilt {
    let rows: Vec<Element> = task.blocks.iter().flat_map(|block| block.vector.elements()).collect();
    let Some(inverse) = matrix::invert(shape.n(), &rows) else { return Rebuilt::Singular };
    let payloads: Vec<Vec<Element>> = task.blocks.iter().map(|block| block.payload.elements().collect()).collect();
    let mut is_wide = false;
    for (row, out) in inverse.chunks_exact(shape.n()).zip(task.out.chunks_exact_mut(shape.block_bytes())) {
        let row: Vec<Factor> = row.iter().map(Element::factor).collect();
        for (index, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let mut sum = Sum::default();
            row.iter().zip(&payloads).for_each(|(factor, payload)| sum.add(factor, &payload[index]));
            let word = sum.reduce();
            is_wide |= word.is_wide();
            *out = word.low_word();
        }
    }
    if is_wide { Rebuilt::Overflow } else { Rebuilt::Whole }
}

fn holds(batch: &Batch<'_>) -> bool {
    let shape = batch.hashes().shape();
    let (mut words, mut coefficients) = (vec![Sum::default(); shape.words()], vec![Sum::default(); shape.n()]);
    for (block, &weight) in batch.blocks().iter().zip(batch.weights()) {
        let Coded { vector, payload }: &Coded = block;
        let weight = Element::from(weight).factor();
        words.iter_mut().zip(payload.elements()).for_each(|(sum, word)| sum.add(&weight, &word));
        coefficients.iter_mut().zip(vector.elements()).for_each(|(sum, coefficient)| sum.add(&weight, &coefficient));
    }
    let exponents = |sums: Vec<Sum>| sums.into_iter().map(|sum| *sum.reduce().limbs()).collect::<Vec<_>>();
    batch.is_product(&exponents(words), &exponents(coefficients))
}
