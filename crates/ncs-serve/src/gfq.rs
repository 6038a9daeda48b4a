//! Blocks over the prime field, made from a generation's bytes, with rows that are drawn for each
//! block and travel with it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ncs_codec::block::Vector;
use ncs_codec::gfq::{Arithmetic, Encode, Failed, Kept, Place, Shape};
use ncs_proto::object::{Codec, Generation};
use rand::Rng;

use crate::ring::{Blocks, Slot};

/// Blocks of a generation to be made.
#[derive(Debug)]
pub struct Wanted {
    blocks: Blocks,
    generation: Generation,
    shape: Shape,
    /// The generation's bytes without padding.
    source: Bytes,
    /// What the arithmetic has of the segment.
    kept: Option<Arc<dyn Kept>>,
}

impl Wanted {
    /// `source` holds the generation's bytes without padding. `None` if its code is not over the
    /// prime field.
    pub fn new(blocks: Blocks, generation: Generation, source: Bytes) -> Option<Self> {
        let words = u16::try_from(generation.block_bytes / Codec::WORD_BYTES).ok()?;
        let shape = Shape::new(generation.n, words).filter(|_| generation.codec.is_gfq())?;
        Some(Self {
            blocks,
            generation,
            shape,
            source,
            kept: None,
        })
    }

    /// Makes no more than so many.
    pub fn truncate(&mut self, blocks: usize) {
        match &mut self.blocks {
            Blocks::Coded(count) => {
                *count = (*count).min(u32::try_from(blocks).unwrap_or(u32::MAX))
            }
            Blocks::Source(numbers) => numbers.truncate(blocks),
        }
    }

    /// Fills a slot for each block, with a new random row for each, and returns their vectors.
    pub fn make(
        &self,
        slots: &mut [Slot],
        arithmetic: &dyn Arithmetic,
        random: &mut impl Rng,
    ) -> Result<Vec<Vector>, Failed> {
        make(&mut [(self, slots)], arithmetic, random)
            .map(|mut vectors| vectors.pop().unwrap_or_default())
    }

    /// The same, with what the arithmetic has of its segment.
    pub fn with_kept(self, kept: Option<Arc<dyn Kept>>) -> Self {
        Self { kept, ..self }
    }

    /// Blocks of it that are combinations.
    pub fn coded_blocks(&self) -> usize {
        match &self.blocks {
            Blocks::Coded(count) => *count as usize,
            Blocks::Source(_) => 0,
        }
    }

    /// Bytes of a block's payload.
    pub fn payload_bytes(&self) -> usize {
        self.shape.payload_bytes()
    }

    /// Copies a source block into its slot; the last one without its padding, which is not sent.
    fn copy(&self, number: u16, slot: &mut Slot) {
        let start = usize::from(number) * self.shape.block_bytes();
        let block = &self.source[start..start + self.generation.block_length(number)];
        slot.payload_mut()[..block.len()].copy_from_slice(block);
    }

    fn place(&self) -> Option<Place<'_>> {
        let offset = usize::try_from(self.generation.offset).ok()?;
        self.kept.as_deref().map(|kept| Place { kept, offset })
    }
}

/// Random rows of 32-bit coefficients, and the same as vectors on the wire.
pub fn draw(random: &mut impl Rng, count: usize, shape: Shape) -> (Vec<u32>, Vec<Vector>) {
    let each = shape.source_vector_bytes();
    let (mut rows, mut vectors) = (
        Vec::with_capacity(count * shape.n()),
        Vec::with_capacity(count),
    );
    for first in (0..count).step_by(VECTORS_TOGETHER) {
        let mut bytes = BytesMut::zeroed(VECTORS_TOGETHER.min(count - first) * each);
        bytes
            .chunks_exact_mut(each)
            .for_each(|vector| draw_vector(random, vector));
        rows.extend(
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|coefficient| u32::from_be_bytes(*coefficient)),
        );
        let mut bytes = bytes.freeze();
        vectors.extend(std::iter::from_fn(|| {
            (!bytes.is_empty()).then(|| Vector::Narrow(bytes.split_to(each)))
        }));
    }
    (rows, vectors)
}

/// Draws a block's coefficients, but never all zero: peers reject such blocks.
fn draw_vector(random: &mut impl Rng, vector: &mut [u8]) {
    random.fill_bytes(vector);
    while vector.iter().all(|byte| *byte == 0) {
        random.fill_bytes(vector);
    }
}

/// Makes blocks of several generations, those of one shape in one call. Returns the vectors of each
/// generation.
pub fn make(
    all: &mut [(&Wanted, &mut [Slot])],
    arithmetic: &dyn Arithmetic,
    random: &mut impl Rng,
) -> Result<Vec<Vec<Vector>>, Failed> {
    let (mut rows, mut vectors) = (Vec::with_capacity(all.len()), Vec::with_capacity(all.len()));
    for (wanted, slots) in &mut *all {
        let (own, of_blocks) = match &wanted.blocks {
            Blocks::Coded(count) => draw(random, *count as usize, wanted.shape),
            Blocks::Source(numbers) => {
                numbers
                    .iter()
                    .zip(&mut **slots)
                    .for_each(|(number, slot)| wanted.copy(*number, slot));
                (
                    Vec::new(),
                    numbers
                        .iter()
                        .map(|number| Vector::Source(*number))
                        .collect(),
                )
            }
        };
        rows.push(own);
        vectors.push(of_blocks);
    }
    let mut calls: Vec<(Shape, Vec<Encode<'_>>)> = Vec::new();
    for ((wanted, slots), rows) in all
        .iter_mut()
        .zip(&rows)
        .filter(|(_, rows)| !rows.is_empty())
    {
        let out = slots.iter_mut().map(Slot::payload_mut).collect();
        let task = Encode {
            source: &wanted.source,
            kept: wanted.place(),
            rows,
            out,
        };
        match calls.iter_mut().find(|(shape, _)| *shape == wanted.shape) {
            Some((_, tasks)) => tasks.push(task),
            None => calls.push((wanted.shape, vec![task])),
        }
    }
    calls
        .iter_mut()
        .try_for_each(|(shape, tasks)| arithmetic.encode(*shape, tasks))?;
    Ok(vectors)
}

/// The number of vectors that share an allocation, which is freed after the last of them was sent.
const VECTORS_TOGETHER: usize = 16;
