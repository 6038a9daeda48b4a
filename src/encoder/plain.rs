//! Blocks over the prime field, made of a segment's bytes by the CPU or a card. A card usually has
//! a copy of the bytes.

use std::time::Instant;

use ncs_serve::gfq::{Wanted, make};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::{BatchOrder, Ended};
use crate::device::{Device, Error, Maker};
use crate::ring::{Order, Slot};
use crate::store::Plain;

/// An order with its slots and its source bytes.
pub(super) struct PlainOrder {
    order: Order,
    slots: Vec<Slot>,
    wanted: Wanted,
}

impl PlainOrder {
    /// `None` if the segment does not have the generation.
    pub(super) fn new(order: Order, slots: Vec<Slot>, found: Plain) -> Option<Self> {
        let Plain { bytes, shape, kept } = found;
        let generation = shape.generation(order.line.generation.index)?;
        let place = |at: u64| usize::try_from(at).expect("a segment fits in memory");
        let source =
            bytes.slice(place(generation.offset)..place(generation.offset + generation.length));
        let wanted = Wanted::new(order.blocks.clone(), generation, source)?.with_kept(kept);
        Some(Self {
            order,
            slots,
            wanted,
        })
    }
}

/// Makes the blocks of these jobs on the blocking pool, with rows derived from `seed`.
pub(super) async fn run(mut jobs: Vec<PlainOrder>, device: Device, seed: u64) -> Ended {
    let launched = Instant::now();
    let coded = |job: &PlainOrder| job.wanted.coded_blocks();
    let blocks: usize = jobs.iter().map(coded).sum();
    let bytes: usize = jobs
        .iter()
        .map(|job| coded(job) * job.wanted.payload_bytes())
        .sum();
    let maker = Maker {
        backend: device.backend(),
        kernel: KERNEL,
        coded_blocks: blocks as u64,
        coded_bytes: bytes as u64,
    };
    let orders: Vec<Order> = jobs.iter().map(|job| job.order.clone()).collect();
    let done = device.compute(move |arithmetic| {
        let mut all: Vec<(&Wanted, &mut [Slot])> = jobs
            .iter_mut()
            .map(|job| (&job.wanted, &mut job.slots[..]))
            .collect();
        let made = make(&mut all, arithmetic, &mut SmallRng::seed_from_u64(seed));
        (jobs, made)
    });
    let (jobs, made) = match done.await {
        Ok(done) => done,
        Err(error @ Error::Lost(_)) => {
            // The slots stay with the closure: a hanging card may still write into them.
            let part = |order| BatchOrder {
                order,
                slots: Vec::new(),
                vectors: Vec::new(),
            };
            return Ended {
                parts: orders.into_iter().map(part).collect(),
                outcome: Err(error),
                launched,
            };
        }
        Err(error) => panic!("making blocks does not panic: {error}"),
    };
    let (vectors, outcome) = match made {
        Ok(vectors) => (vectors, Ok(vec![maker])),
        Err(failed) => (
            vec![Vec::new(); jobs.len()],
            Err(Error::Unavailable(failed.to_string())),
        ),
    };
    let part = |(PlainOrder { order, slots, .. }, vectors)| BatchOrder {
        order,
        slots,
        vectors,
    };
    Ended {
        parts: jobs.into_iter().zip(vectors).map(part).collect(),
        outcome,
        launched,
    }
}

/// The label of this arithmetic among kernels.
const KERNEL: &str = "prime";
