//! Blocks over the prime field: made of a segment's bytes, by whoever has the arithmetic. Where that is a card, it has a copy of them as a rule.

use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{Ended, Part};
use crate::block::Vector;
use crate::codec::rlnc_q::{Arithmetic, Encode, Failed, Kept, Place, Shape};
use crate::device::{Device, Error, Maker};
use crate::object::{Codec, Generation};
use crate::ring::{Blocks, Order, Slot};
use crate::store::Plain;

/// Blocks of a generation that are to be made.
#[derive(Debug)]
pub(crate) struct Wanted {
    blocks: Blocks,
    generation: Generation,
    shape: Shape,
    /// The generation's bytes without padding.
    source: Bytes,
    /// What the arithmetic has of the segment.
    kept: Option<Arc<dyn Kept>>,
}

impl Wanted {
    /// `source` are the generation's bytes, without padding. `None` where its code is not over the prime field.
    pub(crate) fn new(blocks: Blocks, generation: Generation, source: Bytes) -> Option<Self> {
        let words = u16::try_from(generation.block_bytes / Codec::WORD_BYTES).ok()?;
        let shape = Shape::new(generation.n, words).filter(|_| generation.codec.is_proving())?;
        Some(Self { blocks, generation, shape, source, kept: None })
    }

    /// Makes no more than so many.
    pub(crate) fn truncate(&mut self, blocks: usize) {
        match &mut self.blocks {
            Blocks::Coded(count) => *count = (*count).min(u32::try_from(blocks).unwrap_or(u32::MAX)),
            Blocks::Source(numbers) => numbers.truncate(blocks),
        }
    }

    /// Fills a slot for each block, with rows that are drawn for each, and says what each of them is.
    pub(crate) fn make(
        &self,
        slots: &mut [Slot],
        arithmetic: &dyn Arithmetic,
        random: &mut impl Rng,
    ) -> Result<Vec<Vector>, Failed> {
        make(&mut [(self, slots)], arithmetic, random).map(|mut vectors| vectors.pop().unwrap_or_default())
    }

    fn coded_blocks(&self) -> usize {
        match &self.blocks {
            Blocks::Coded(count) => *count as usize,
            Blocks::Source(_) => 0,
        }
    }

    /// Copies a source block into its slot; the last one without its padding, which does not travel.
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

/// Rows of 32-bit coefficients, and as they travel.
pub(super) fn draw(random: &mut impl Rng, count: usize, shape: Shape) -> (Vec<u32>, Vec<Vector>) {
    let each = shape.source_vector_bytes();
    let (mut rows, mut vectors) = (Vec::with_capacity(count * shape.n()), Vec::with_capacity(count));
    for first in (0..count).step_by(VECTORS_TOGETHER) {
        let mut bytes = BytesMut::zeroed(VECTORS_TOGETHER.min(count - first) * each);
        bytes.chunks_exact_mut(each).for_each(|vector| draw_vector(random, vector));
        rows.extend(bytes.as_chunks().0.iter().map(|coefficient| u32::from_be_bytes(*coefficient)));
        let mut bytes = bytes.freeze();
        vectors.extend(std::iter::from_fn(|| (!bytes.is_empty()).then(|| Vector::Narrow(bytes.split_to(each)))));
    }
    (rows, vectors)
}

/// Coefficients of a block, not all of them 0: that would be a block of nothing, which no peer takes.
fn draw_vector(random: &mut impl Rng, vector: &mut [u8]) {
    random.fill_bytes(vector);
    while vector.iter().all(|byte| *byte == 0) {
        random.fill_bytes(vector);
    }
}

/// Makes blocks of several generations, those of one size together; for each generation, what its blocks are.
fn make(
    all: &mut [(&Wanted, &mut [Slot])],
    arithmetic: &dyn Arithmetic,
    random: &mut impl Rng,
) -> Result<Vec<Vec<Vector>>, Failed> {
    let (mut rows, mut vectors) = (Vec::with_capacity(all.len()), Vec::with_capacity(all.len()));
    for (wanted, slots) in &mut *all {
        let (own, of_blocks) = match &wanted.blocks {
            Blocks::Coded(count) => draw(random, *count as usize, wanted.shape),
            Blocks::Source(numbers) => {
                numbers.iter().zip(&mut **slots).for_each(|(number, slot)| wanted.copy(*number, slot));
                (Vec::new(), numbers.iter().map(|number| Vector::Source(*number)).collect())
            }
        };
        rows.push(own);
        vectors.push(of_blocks);
    }
    let mut calls: Vec<(Shape, Vec<Encode<'_>>)> = Vec::new();
    for ((wanted, slots), rows) in all.iter_mut().zip(&rows).filter(|(_, rows)| !rows.is_empty()) {
        let out = slots.iter_mut().map(Slot::payload_mut).collect();
        let task = Encode { source: &wanted.source, kept: wanted.place(), rows, out };
        match calls.iter_mut().find(|(shape, _)| *shape == wanted.shape) {
            Some((_, tasks)) => tasks.push(task),
            None => calls.push((wanted.shape, vec![task])),
        }
    }
    calls.iter_mut().try_for_each(|(shape, tasks)| arithmetic.encode(*shape, tasks))?;
    Ok(vectors)
}

/// An order with its slots, and what its blocks are made of.
pub(super) struct Job {
    order: Order,
    slots: Vec<Slot>,
    wanted: Wanted,
}

impl Job {
    /// `None` for a generation that its segment does not have.
    pub(super) fn new(order: Order, slots: Vec<Slot>, found: Plain) -> Option<Self> {
        let Plain { bytes, shape, kept } = found;
        let generation = shape.generation(order.line.generation.index)?;
        let place = |at: u64| usize::try_from(at).expect("a segment fits in memory");
        let source = bytes.slice(place(generation.offset)..place(generation.offset + generation.length));
        let wanted = Wanted { kept, ..Wanted::new(order.blocks.clone(), generation, source)? };
        Some(Self { order, slots, wanted })
    }
}

/// Makes the blocks of these jobs where that holds nobody up, with rows that follow from `seed`.
pub(super) async fn run(mut jobs: Vec<Job>, device: Device, seed: u64) -> Ended {
    let launched = Instant::now();
    let coded = |job: &Job| job.wanted.coded_blocks();
    let blocks: usize = jobs.iter().map(coded).sum();
    let bytes: usize = jobs.iter().map(|job| coded(job) * job.wanted.shape.payload_bytes()).sum();
    let maker = Maker { backend: device.backend(), kernel: KERNEL, coded_blocks: blocks as u64, coded_bytes: bytes as u64 };
    let orders: Vec<Order> = jobs.iter().map(|job| job.order.clone()).collect();
    let done = device.compute(move |arithmetic| {
        let mut all: Vec<(&Wanted, &mut [Slot])> = jobs.iter_mut().map(|job| (&job.wanted, &mut job.slots[..])).collect();
        let made = make(&mut all, arithmetic, &mut SmallRng::seed_from_u64(seed));
        (jobs, made)
    });
    let (jobs, made) = match done.await {
        Ok(done) => done,
        Err(error @ Error::Lost(_)) => {
            // The slots stay where a card may write into them yet.
            let part = |order| Part { order, slots: Vec::new(), vectors: Vec::new() };
            return Ended { parts: orders.into_iter().map(part).collect(), outcome: Err(error), launched };
        }
        Err(error) => panic!("making blocks does not panic: {error}"),
    };
    let (vectors, outcome) = match made {
        Ok(vectors) => (vectors, Ok(vec![maker])),
        Err(failed) => (vec![Vec::new(); jobs.len()], Err(Error::Unavailable(failed.to_string()))),
    };
    let part = |(Job { order, slots, .. }, vectors)| Part { order, slots, vectors };
    Ended { parts: jobs.into_iter().zip(vectors).map(part).collect(), outcome, launched }
}

/// What the arithmetic is called among kernels.
const KERNEL: &str = "prime";
/// So many vectors share memory, which is there until the last of them has been sent.
const VECTORS_TOGETHER: usize = 16;
