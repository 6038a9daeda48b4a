//! `device.kernel = "auto"`: measures the kernels on this card with the expected work, and takes
//! the fastest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use ncs_codec::shape::Shape;
use ncs_gf::{RowKey, Rows};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::HOPPER;
use super::card::Card;
use super::driver::Fault;
use super::engine::Engine;
use super::host::HostMemory;
use super::kernels::{COMBINES, Combine};
use crate::backend::{Backend, Loading, ResidentId, Share, Work};
use crate::{Error, Kernel, Resident, Workload};

/// A candidate and its rate: 10^9 bytes of coded blocks per second.
type Measured = (&'static Combine, f64);

/// Finds the fastest kernel. Returns an engine that uses it, and a sentence with the reason.
pub(super) fn fastest(
    mut card: Card,
    workload: &Workload,
    host: &HostMemory,
) -> Result<(Engine, String), Fault> {
    let begun = Instant::now();
    let mut measured: Vec<Measured> = Vec::new();
    for combine in candidates(card.capability) {
        if begun.elapsed() > TIME_MAX && !measured.is_empty() {
            break;
        }
        let mut engine = Engine::new(card, combine, host.clone())?;
        // A candidate that fails here is not used; a lost driver fails again below.
        measured.extend(rate(&mut engine, workload).ok().map(|rate| (combine, rate)));
        card = engine.into_card();
    }
    measured.sort_by(|one, other| other.1.total_cmp(&one.1));
    let &(combine, _) = measured
        .first()
        .ok_or_else(|| Fault::Driver("no kernel runs on this GPU".to_owned()))?;
    let Workload {
        n,
        block_bytes,
        batch_blocks,
    } = workload;
    let rates: Vec<String> = measured
        .iter()
        .map(|(combine, rate)| format!("{} {rate:.1}", combine.kernel))
        .collect();
    let why = format!(
        "GB/s at n = {n}, k = {block_bytes}, {batch_blocks} blocks a batch: {}",
        rates.join(", ")
    );
    Ok((Engine::new(card, combine, host.clone())?, why))
}

/// The product's kernels that run on this card.
fn candidates(capability: u32) -> impl Iterator<Item = &'static Combine> {
    const OURS: [Kernel; 5] = [
        Kernel::Tensor,
        Kernel::Bitsliced,
        Kernel::Prmt,
        Kernel::Product,
        Kernel::Table,
    ];
    let found = OURS.iter().filter_map(|kernel| {
        COMBINES
            .iter()
            .find(|combine| combine.kernel == kernel.name())
    });
    found.filter(move |combine| !combine.is_hopper_only || capability == HOPPER)
}

/// The rate of the kernels alone, the best of a few batches.
fn rate(engine: &mut Engine, workload: &Workload) -> Result<f64, Error> {
    let generation_bytes = u64::from(workload.n) * u64::from(workload.block_bytes);
    let rows = u32::from(workload.n).min(workload.batch_blocks).max(1);
    let wanted = u64::from(workload.batch_blocks.div_ceil(rows));
    let generations = wanted.clamp(1, (Shape::LENGTH_MAX / generation_bytes).max(1));
    let shape = Shape::local(
        generations * generation_bytes,
        workload.block_bytes,
        workload.n,
    );
    let shape = shape.map_err(|error| Error::Unavailable(error.to_string()))?;
    let mut bytes = vec![0; usize::try_from(shape.length()).expect("at most LENGTH_MAX")];
    SmallRng::seed_from_u64(1).fill_bytes(&mut bytes);
    let id = ResidentId(u64::MAX);
    engine.load(Loading {
        id,
        bytes: Bytes::from(bytes),
        shape,
        share: Share::ALL,
    });
    while engine.loaded().transpose()?.is_none() {
        std::hint::spin_loop();
    }
    let resident = Arc::new(Resident {
        shape,
        parts: Vec::new(),
        epoch: 0,
        now: Arc::default(),
    });
    let mut out: Vec<Vec<BytesMut>> = Vec::new();
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let works = shape.iter().enumerate().map(|(task, generation)| Work {
            id,
            _resident: Arc::clone(&resident),
            generation,
            rows: Rows::Seeded {
                key: RowKey {
                    key: 1,
                    generation: u64::from(generation.index),
                },
                first_seed: 0,
                count: rows,
            },
            first_row: 0,
            out: out.pop().unwrap_or_else(|| {
                vec![BytesMut::zeroed(workload.block_bytes as usize); rows as usize]
            }),
            out_offset: 0,
            task,
        });
        engine.start(works.collect());
        let ended = loop {
            match engine.ended() {
                Some(ended) => break ended,
                None => std::hint::spin_loop(),
            }
        };
        ended.result?;
        best = best.min(engine.take_counts().kernel);
        out.extend(ended.batch.into_iter().map(|work| work.out));
    }
    engine.release(id);
    let coded = generations * u64::from(rows) * u64::from(workload.block_bytes);
    Ok(rate_of(coded, best))
}

#[expect(clippy::cast_precision_loss, reason = "a rate shown to people")]
fn rate_of(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-9) / 1e9
}

const ROUNDS: usize = 5;
/// Time for trying candidates, which come in the order of their expected rate.
const TIME_MAX: Duration = Duration::from_millis(700);
