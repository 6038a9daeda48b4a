//! Blocks over the prime field: made of a segment's bytes, by whoever has the arithmetic.

use std::time::Instant;

use bytes::Bytes;
use rand::Rng;

use super::{Ended, Part};
use crate::block::Vector;
use crate::codec::rlnc_q::{Arithmetic, Encode, Failed, Shape, draw_rows};
use crate::device::{Device, Error, Maker};
use crate::object::{Codec, Generation};
use crate::ring::{Blocks, Order, Slot};

/// Blocks of a generation that are to be made.
#[derive(Debug)]
pub(crate) struct Wanted {
    generation: Generation,
    shape: Shape,
    /// The generation's bytes without padding.
    source: Bytes,
    /// n coefficients for each coded block; none where source blocks are wanted.
    rows: Vec<u32>,
    /// What is said of each block.
    pub(crate) vectors: Vec<Vector>,
}

impl Wanted {
    /// Draws rows where coded blocks are wanted. `bytes` are those of the generation, without padding. `None` where its code is not over the prime field.
    pub(crate) fn new(blocks: &Blocks, generation: Generation, source: Bytes, random: &mut impl Rng) -> Option<Self> {
        let words = u16::try_from(generation.block_bytes / Codec::WORD_BYTES).ok()?;
        let shape = Shape::new(generation.n, words).filter(|_| generation.codec.is_proving())?;
        let (rows, vectors) = match blocks {
            Blocks::Coded(count) => draw(random, *count as usize, shape),
            Blocks::Source(numbers) => (Vec::new(), numbers.iter().map(|number| Vector::Source(*number)).collect()),
        };
        Some(Self { generation, shape, source, rows, vectors })
    }

    /// Makes no more than so many.
    pub(crate) fn truncate(&mut self, blocks: usize) {
        self.vectors.truncate(blocks);
        self.rows.truncate(blocks * self.shape.n());
    }

    /// Fills a slot for each block.
    pub(crate) fn make(&self, slots: &mut [Slot], arithmetic: &dyn Arithmetic) -> Result<(), Failed> {
        make(&mut [(self, slots)], arithmetic)
    }

    fn coded_bytes(&self) -> usize {
        self.rows.len() / self.shape.n() * self.shape.payload_bytes()
    }

    /// Copies source blocks into their slots; the last one without its padding, which does not travel.
    fn copy(&self, slots: &mut [Slot]) {
        for (vector, slot) in self.vectors.iter().zip(slots) {
            if let Vector::Source(index) = vector {
                let start = usize::from(*index) * self.shape.block_bytes();
                let block = &self.source[start..start + self.generation.block_length(*index)];
                slot.payload_mut()[..block.len()].copy_from_slice(block);
            }
        }
    }
}

/// Rows of 32-bit coefficients, and as they travel.
fn draw(random: &mut impl Rng, count: usize, shape: Shape) -> (Vec<u32>, Vec<Vector>) {
    let rows = draw_rows(shape, count, random);
    let vector = |row: &[u32]| Vector::Narrow(row.iter().flat_map(|coefficient| coefficient.to_be_bytes()).collect());
    let vectors = rows.chunks_exact(shape.n()).map(vector).collect();
    (rows, vectors)
}

/// Makes blocks of several generations; those of one size that follow each other go together.
fn make(all: &mut [(&Wanted, &mut [Slot])], arithmetic: &dyn Arithmetic) -> Result<(), Failed> {
    all.iter_mut().for_each(|(wanted, slots)| wanted.copy(slots));
    for some in all.chunk_by_mut(|(one, _), (next, _)| one.shape == next.shape) {
        let mut outs: Vec<Vec<u8>> = some.iter().map(|(wanted, _)| vec![0; wanted.coded_bytes()]).collect();
        let coded = some.iter().zip(&mut outs).filter(|(_, out)| !out.is_empty());
        let mut tasks: Vec<Encode<'_>> =
            coded.map(|((wanted, _), out)| Encode { source: &wanted.source, rows: &wanted.rows, out }).collect();
        let shape = some[0].0.shape;
        if !tasks.is_empty() {
            arithmetic.encode(shape, &mut tasks)?;
        }
        for ((_, slots), out) in some.iter_mut().zip(&outs) {
            let payloads = out.chunks_exact(shape.payload_bytes());
            slots.iter_mut().zip(payloads).for_each(|(slot, payload)| slot.payload_mut().copy_from_slice(payload));
        }
    }
    Ok(())
}

/// An order with its slots, and what its blocks are made of.
pub(super) struct Job {
    order: Order,
    slots: Vec<Slot>,
    wanted: Wanted,
}

impl Job {
    /// `None` for a generation that its segment does not have.
    pub(super) fn new(
        order: Order,
        slots: Vec<Slot>,
        bytes: &Bytes,
        shape: crate::object::Shape,
        random: &mut impl Rng,
    ) -> Option<Self> {
        let generation = shape.generation(order.line.generation.index)?;
        let place = |at: u64| usize::try_from(at).expect("a segment fits in memory");
        let source = bytes.slice(place(generation.offset)..place(generation.offset + generation.length));
        let wanted = Wanted::new(&order.blocks, generation, source, random)?;
        Some(Self { order, slots, wanted })
    }
}

/// Makes the blocks of these jobs where that holds nobody up.
pub(super) async fn run(mut jobs: Vec<Job>, device: Device) -> Ended {
    let launched = Instant::now();
    let bytes: usize = jobs.iter().map(|job| job.wanted.coded_bytes()).sum();
    let blocks = jobs.iter().filter(|job| !job.wanted.rows.is_empty()).map(|job| job.slots.len() as u64).sum();
    let maker = Maker { backend: device.backend(), kernel: KERNEL, coded_blocks: blocks, coded_bytes: bytes as u64 };
    let done = tokio::task::spawn_blocking(move || {
        let mut all: Vec<(&Wanted, &mut [Slot])> = jobs.iter_mut().map(|job| (&job.wanted, &mut job.slots[..])).collect();
        let outcome = make(&mut all, &*device.prime());
        (jobs, outcome)
    });
    let (jobs, outcome) = done.await.expect("making blocks does not panic");
    let outcome = outcome.map(|()| vec![maker]).map_err(|failed| Error::Unavailable(failed.to_string()));
    let part = |Job { order, slots, wanted }| Part { order, slots, vectors: wanted.vectors };
    Ended { parts: jobs.into_iter().map(part).collect(), outcome, launched }
}

/// What the arithmetic is called among kernels.
const KERNEL: &str = "prime";
