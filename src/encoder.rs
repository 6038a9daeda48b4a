//! What to encode next: gathers the demand of all sessions into batches for the device.
//!
//! The encoder is one task. It takes orders from the [`Ring`], earliest deadline first and over
//! many generations at once, reserves slots, has the [`Device`] fill them, and publishes the
//! blocks. While one batch is on the device, the next gathers. Without demand nothing runs, except
//! that a few blocks of the newest live segments are kept ready, so that a segment's first peer
//! does not wait for a launch. An order without free slots of its size is parked until one returns.
//! While sessions lag behind the encoder ([`Pace`]), nothing is launched. Demand for a segment that
//! is not on the device yet is parked at the ring until the store reports the end of its load;
//! other orders go on.
//!
//! Seeds of a generation's coded blocks count up from a random start, so that independent servers
//! of the same origin do not send the same blocks; encoding symbol ids of RaptorQ do the same.
//! Where a stream has sparse rows, they are drawn here from the same seeds, and travel with their
//! blocks. Blocks of Reed-Solomon and RaptorQ are rows too, identified by numbers ([`codec`]): the
//! device combines them like any others. Blocks over the prime field are made of a segment's bytes,
//! or of a card's copy of them, beside the device's queue ([`plain`]), with new random rows that
//! travel with them.

mod metrics;
mod pace;
mod plain;

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rand::Rng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, watch};

pub use metrics::Metrics;
pub use ncs_serve::planner;
pub use pace::Pace;

use crate::block::Vector;
use crate::codec;
use crate::device::{Batch, Device, Maker, Task};
use crate::gf::rows::{RowKey, Rows};
use crate::object::{Arrival, Codec, Generation, GenerationKey, SegmentId, SegmentKey, Shape};
use crate::ring::{self, Blocks, LineKey, LineKind, Order, Ring, Slot};
use crate::store::{OnDevice, Plain, Residency, Store};
use planner::{Planner, Step, planned};

/// How batches are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The maximum number of blocks per launch.
    pub batch_blocks_max: u32,
    /// How long the first requested block waits for others to share its launch.
    #[serde(with = "crate::units::duration")]
    pub batch_wait: Duration,
    /// Coded blocks of each of the newest live segments, of its first generations, that are kept
    /// ready before any request.
    pub prefill_blocks: u32,
    /// The number of a stream's newest segments with blocks kept ready.
    pub prefill_segments: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            batch_blocks_max: 1024,
            batch_wait: Duration::from_micros(500),
            prefill_blocks: 8,
            prefill_segments: 2,
        }
    }
}

/// The task's state.
#[derive(Debug)]
pub struct Encoder {
    ring: Ring,
    store: Store,
    device: Device,
    metrics: Metrics,
    planner: Planner,
    pace: Pace,
    config: Config,
    seeds: HashMap<GenerationKey, u32>,
    newest: HashMap<Arc<str>, VecDeque<Arrival>>,
    /// Segments parked until slots of their size are free; the key is headroom and block size.
    spent: HashMap<(usize, u32), HashSet<SegmentKey>>,
    rates: Rates,
    random: StdRng,
}

/// An order of a batch in progress.
struct BatchOrder {
    order: Order,
    slots: Vec<Slot>,
    /// The vector of each block.
    vectors: Vec<Vector>,
}

/// The result of preparing an order.
enum Prepared {
    /// As much of it as there were slots for.
    Ready(Task, BatchOrder),
    /// The same for a segment whose blocks are made of plain bytes.
    Plain(plain::PlainOrder),
    /// Nothing: it is parked, because slots or its segment are missing, or its segment is gone.
    Passed,
}

/// A finished batch: its parts, with filled slots if it succeeded.
struct Ended {
    parts: Vec<BatchOrder>,
    outcome: Result<Vec<Maker>, crate::device::Error>,
    launched: Instant,
}

type Running = FuturesUnordered<Pin<Box<dyn Future<Output = Ended> + Send>>>;

impl Encoder {
    /// An encoder that draws the first seeds from `random`.
    pub fn new(
        config: Config,
        ring: Ring,
        store: Store,
        device: Device,
        metrics: Metrics,
        random: StdRng,
    ) -> Self {
        let planner = Planner::new(config.batch_blocks_max, config.batch_wait);
        let rates = Rates::new(Instant::now());
        let (pace, seeds, newest, spent) = (
            Pace::unlimited(),
            HashMap::new(),
            HashMap::new(),
            HashMap::new(),
        );
        Self {
            ring,
            store,
            device,
            metrics,
            planner,
            pace,
            config,
            seeds,
            newest,
            spent,
            rates,
            random,
        }
    }

    /// The same, limited by `pace`.
    pub fn paced(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self.apply(self.config);
        self
    }

    /// Runs until a channel that it listens to closes.
    pub async fn run(
        mut self,
        mut arrivals: broadcast::Receiver<Arrival>,
        mut settings: watch::Receiver<Config>,
    ) {
        let (mut evictions, mut loads) = (self.store.evictions(), self.store.loads());
        let mut running = Running::new();
        let mut second = tokio::time::interval(Duration::from_secs(1));
        loop {
            let waker = ring::own_waker().await;
            self.resume_spent(&waker);
            let step = self.planner.step(Instant::now(), self.ring.needed(&waker));
            let mut is_held = false;
            if let Step::Launch(blocks) = step {
                is_held = self.pace.holds(Instant::now(), self.ring.used_bytes());
                if !is_held {
                    self.launch(blocks, &waker, &mut running);
                    continue;
                }
            }
            tokio::select! {
                Some(ended) = running.next() => self.finish(ended),
                arrival = arrivals.recv() => match arrival {
                    Ok(arrival) => self.arrived(arrival),
                    // Newer ones follow.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                },
                evicted = evictions.recv() => match evicted {
                    Ok(segment) => self.forget(segment),
                    Err(broadcast::error::RecvError::Lagged(_)) => self.forget_what_is_gone(),
                    Err(broadcast::error::RecvError::Closed) => return,
                },
                loaded = loads.recv() => match loaded {
                    Ok(segment) => self.ring.resume(Some(segment)),
                    Err(broadcast::error::RecvError::Lagged(_)) => self.ring.resume(None),
                    Err(broadcast::error::RecvError::Closed) => return,
                },
                changed = settings.changed() => match changed {
                    Ok(()) => self.apply(*settings.borrow_and_update()),
                    Err(_) => return,
                },
                () = planned(step) => {}
                () = self.pace.changed(), if is_held => {}
                _ = second.tick() => self.rates.tick(Instant::now(), |backend, kernel, rate| {
                    self.metrics
                        .coded_bytes_per_second
                        .with_label_values(&[backend, kernel])
                        .set(rate);
                }),
                () = ring::next_wake() => {}
            }
        }
    }

    /// Sends one batch to the device. Check demand again afterwards: if no order could be made now,
    /// nothing was launched, and those orders are not repeated before they can be made.
    fn launch(&mut self, blocks: u32, waker: &Waker, running: &mut Running) {
        let orders = self.ring.take_orders(blocks);
        let mut batch = Batch {
            tasks: Vec::with_capacity(orders.len()),
        };
        let mut parts = Vec::with_capacity(orders.len());
        let mut plain = Vec::new();
        for order in orders {
            match self.prepare(order, waker) {
                Prepared::Plain(job) => plain.push(job),
                Prepared::Ready(task, part) => {
                    batch.tasks.push(task);
                    parts.push(part);
                }
                Prepared::Passed => {}
            }
        }
        if !plain.is_empty() {
            self.planner.launched();
            running.push(Box::pin(plain::run(
                plain,
                self.device.clone(),
                self.random.next_u64(),
            )));
        }
        if parts.is_empty() {
            return;
        }
        self.planner.launched();
        let device = self.device.clone();
        let launched = Instant::now();
        running.push(Box::pin(async move {
            let (batch, outcome) = match device.combine(batch).await {
                Ok(done) => (done.batch, Ok(done.makers)),
                Err(failed) => (failed.batch, Err(failed.error)),
            };
            for (part, task) in parts.iter_mut().zip(batch.tasks) {
                part.slots
                    .iter_mut()
                    .zip(task.out)
                    .for_each(|(slot, bytes)| slot.restore(bytes));
            }
            Ended {
                parts,
                outcome,
                launched,
            }
        }));
    }

    /// Parks an order without slots until some of its size return, so that others are not held up.
    fn park_spent(&mut self, order: &Order, headroom: usize, block_bytes: u32) {
        self.metrics.ring_full.inc();
        self.ring.park(order);
        self.spent
            .entry((headroom, block_bytes))
            .or_default()
            .insert(order.line.generation.segment);
    }

    /// Parks an order if earlier orders already wait for slots of its size.
    fn has_no_slots(&mut self, order: &Order, headroom: usize, block_bytes: u32) -> bool {
        let is_spent = self.spent.contains_key(&(headroom, block_bytes));
        if is_spent {
            self.park_spent(order, headroom, block_bytes);
        }
        is_spent
    }

    /// Resumes orders for whose size slots are free. Where there are none, a returning slot wakes
    /// the task.
    fn resume_spent(&mut self, waker: &Waker) {
        let ring = &self.ring;
        self.spent.retain(|(headroom, block_bytes), segments| {
            let has_room = ring.has_room(*headroom, *block_bytes, waker);
            if has_room {
                segments
                    .drain()
                    .for_each(|segment| ring.resume(Some(segment)));
            }
            !has_room
        });
    }

    /// Finds the segment and the slots for an order. The rest that finds no slots is ordered again
    /// later.
    fn prepare(&mut self, order: Order, waker: &Waker) -> Prepared {
        let key = order.line.generation;
        let OnDevice {
            resident,
            shape,
            id,
            row_weight,
        } = match self.store.resident(key.segment) {
            Residency::Ready(found) => found,
            Residency::Plain(found) => return self.prepare_plain(order, found, waker),
            Residency::Loading => {
                self.metrics.parked.inc();
                self.ring.park(&order);
                return Prepared::Passed;
            }
            Residency::Gone => {
                self.ring.forget(key.segment);
                return Prepared::Passed;
            }
        };
        // The same headroom for all of a segment's blocks, though few need it: slots of one size do
        // not wait for another.
        let headroom =
            LineKind::coded(row_weight, shape.n_max()).headroom(shape.codec(), shape.n_max());
        if self.has_no_slots(&order, headroom, shape.coded_bytes()) {
            return Prepared::Passed;
        }
        let mut slots =
            self.ring
                .reserve(headroom, shape.coded_bytes(), order.blocks.count(), waker);
        let (order, rest) = order.split(slots.len());
        if let Some(rest) = rest {
            self.park_spent(&rest, headroom, shape.coded_bytes());
        }
        let Some(order) = order else {
            return Prepared::Passed;
        };
        let Some((rows, vectors)) = self.rows(&order, shape, id) else {
            // Cannot happen: sessions request only generations that the segment has.
            self.ring.forget(key.segment);
            return Prepared::Passed;
        };
        let out = slots.iter_mut().map(Slot::take_bytes).collect();
        let task = Task {
            resident,
            generation: key.index,
            rows,
            out,
            out_offset: headroom,
        };
        Prepared::Ready(
            task,
            BatchOrder {
                order,
                slots,
                vectors,
            },
        )
    }

    /// The same for a segment whose blocks are made of plain bytes.
    fn prepare_plain(&mut self, order: Order, found: Plain, waker: &Waker) -> Prepared {
        let shape = found.shape;
        let headroom = order.line.kind.headroom(shape.codec(), shape.n_max());
        if self.has_no_slots(&order, headroom, shape.coded_bytes()) {
            return Prepared::Passed;
        }
        let slots = self
            .ring
            .reserve(headroom, shape.coded_bytes(), order.blocks.count(), waker);
        let (order, rest) = order.split(slots.len());
        if let Some(rest) = rest {
            self.park_spent(&rest, headroom, shape.coded_bytes());
        }
        let Some(order) = order else {
            return Prepared::Passed;
        };
        let segment = order.line.generation.segment;
        match plain::PlainOrder::new(order, slots, found) {
            Some(job) => Prepared::Plain(job),
            None => {
                // Cannot happen: sessions request only generations that the segment has.
                self.ring.forget(segment);
                Prepared::Passed
            }
        }
    }

    /// The rows and the vectors of an order's blocks. `None` if the generation does not exist.
    fn rows(&mut self, order: &Order, shape: Shape, id: SegmentId) -> Option<(Rows, Vec<Vector>)> {
        let key = order.line.generation;
        let generation = shape.generation(key.index)?;
        let count = match &order.blocks {
            Blocks::Coded(count) => *count,
            Blocks::Source(numbers) => return Some(by_number(numbers, &generation)),
        };
        let first = self.next_seeds(key, count);
        let key = RowKey {
            key: id.coefficient_key(),
            generation: u64::from(key.index),
        };
        let seeds = (0..count).map(|i| first.wrapping_add(i));
        Some(match (order.line.kind, generation.codec) {
            (_, Codec::RaptorQ) => explicit(
                seeds
                    .map(|seed| Vector::repair(seed, generation.n))
                    .collect(),
                generation.n,
            ),
            (LineKind::Sparse(weight), _) => {
                let rows = Rows::sparse(key, first, count, weight, generation.n);
                let vectors = rows.coefficients().map(Vector::Explicit).collect();
                (rows, vectors)
            }
            _ => (
                Rows::Seeded {
                    key,
                    first_seed: first,
                    count,
                },
                seeds.map(Vector::Seed).collect(),
            ),
        })
    }

    fn next_seeds(&mut self, generation: GenerationKey, count: u32) -> u32 {
        let random = &mut self.random;
        let next = self
            .seeds
            .entry(generation)
            .or_insert_with(|| random.next_u32());
        let first = *next;
        *next = next.wrapping_add(count);
        first
    }

    fn finish(&mut self, ended: Ended) {
        self.planner.done();
        self.store.settled();
        let makers = match ended.outcome {
            Ok(makers) => makers,
            Err(error) => {
                tracing::warn!(%error, "cannot encode a batch");
                self.metrics.failed_batches.inc();
                // A segment on a lost device; the store already knows, and loads it again. Nothing
                // is broken.
                if error != crate::device::Error::Stale {
                    self.planner.failed(Instant::now());
                }
                return ended
                    .parts
                    .iter()
                    .for_each(|part| self.ring.give_up(&part.order));
            }
        };
        for Maker {
            backend,
            kernel,
            coded_bytes,
            ..
        } in makers
        {
            self.metrics
                .coded_bytes
                .with_label_values(&[backend, kernel])
                .inc_by(coded_bytes);
            self.rates.add(backend, kernel, coded_bytes);
        }
        let mut blocks = 0;
        for part in ended.parts {
            blocks += part.slots.len();
            self.publish(part);
        }
        self.metrics
            .batch_blocks
            .observe(f64::from(u32::try_from(blocks).unwrap_or(u32::MAX)));
        self.metrics
            .batch_seconds
            .observe(ended.launched.elapsed().as_secs_f64());
    }

    fn publish(&self, part: BatchOrder) {
        self.metrics.count(&part.vectors);
        self.ring
            .publish(part.order.line, part.vectors.into_iter().zip(part.slots));
    }

    fn forget(&mut self, segment: SegmentKey) {
        self.ring.forget(segment);
        for segments in self.spent.values_mut() {
            segments.remove(&segment);
        }
        self.seeds
            .retain(|generation, _| generation.segment != segment);
        for newest in self.newest.values_mut() {
            newest.retain(|arrival| arrival.segment != segment);
        }
    }

    /// More segments were evicted at once than the channel holds.
    fn forget_what_is_gone(&mut self) {
        let known: HashSet<SegmentKey> = self
            .seeds
            .keys()
            .map(|generation| generation.segment)
            .collect();
        known
            .into_iter()
            .filter(|segment| !self.store.is_held(*segment))
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|segment| self.forget(segment));
    }

    fn arrived(&mut self, arrival: Arrival) {
        let newest = self.newest.entry(Arc::clone(&arrival.stream)).or_default();
        newest.push_back(arrival.clone());
        while newest.len() > self.config.prefill_segments as usize {
            let Some(old) = newest.pop_front() else { break };
            keep_ready(&self.ring, &old, 0);
        }
        if newest.iter().any(|held| held.segment == arrival.segment) {
            keep_ready(&self.ring, &arrival, self.config.prefill_blocks);
        }
    }

    fn apply(&mut self, config: Config) {
        self.config = config;
        let blocks_max = config.batch_blocks_max.min(self.pace.batch_blocks_max());
        self.planner.set(blocks_max, config.batch_wait);
    }
}

/// The rows of blocks that a session requested by number: source blocks, and parity blocks after
/// them.
fn by_number(numbers: &[u16], generation: &Generation) -> (Rows, Vec<Vector>) {
    let vectors = numbers
        .iter()
        .map(|number| Vector::numbered(*number, generation.n))
        .collect();
    // Both kinds in one order occur only when lost blocks are requested again: few enough to
    // combine source blocks like the others.
    match numbers.iter().all(|number| *number < generation.n) {
        true => (
            Rows::Source {
                indices: numbers.to_vec(),
            },
            vectors,
        ),
        false => explicit(vectors, generation.n),
    }
}

/// The explicit rows of these vectors.
fn explicit(vectors: Vec<Vector>, n: u16) -> (Rows, Vec<Vector>) {
    let mut coefficients = vec![0; vectors.len() * usize::from(n)];
    for (vector, row) in vectors.iter().zip(coefficients.chunks_exact_mut(n.into())) {
        codec::write_number(vector, row);
    }
    (
        Rows::Explicit {
            n,
            coefficients: coefficients.into(),
        },
        vectors,
    )
}

/// Keeps `blocks` blocks of a segment ready in all: of the generations that are requested first,
/// and of each at most as many as rebuild it.
fn keep_ready(
    ring: &Ring,
    Arrival {
        segment,
        shape,
        row_weight,
        ..
    }: &Arrival,
    mut blocks: u32,
) {
    if !shape.codec().is_endless() {
        // Numbered blocks are made only on request.
        return;
    }
    for Generation { index, n, .. } in shape.iter() {
        let generation = GenerationKey {
            segment: *segment,
            index,
        };
        let here = blocks.min(n.into());
        ring.keep_ready(
            LineKey {
                generation,
                kind: LineKind::coded(*row_weight, n),
            },
            here,
        );
        blocks -= here;
    }
}

/// The coding rate of each back end and kernel, of which there are few.
#[derive(Debug)]
struct Rates {
    bytes: Vec<(&'static str, &'static str, u64)>,
    since: Instant,
}

impl Rates {
    fn new(now: Instant) -> Self {
        Self {
            bytes: Vec::new(),
            since: now,
        }
    }

    fn add(&mut self, backend: &'static str, kernel: &'static str, bytes: u64) {
        match self
            .bytes
            .iter_mut()
            .find(|known| (known.0, known.1) == (backend, kernel))
        {
            Some(known) => known.2 += bytes,
            None => self.bytes.push((backend, kernel, bytes)),
        }
    }

    /// Reports the rates since the last call.
    #[expect(clippy::cast_precision_loss, reason = "a rate shown to people")]
    fn tick(&mut self, now: Instant, mut tell: impl FnMut(&str, &str, f64)) {
        let seconds = now.duration_since(self.since).as_secs_f64();
        for (backend, kernel, bytes) in &mut self.bytes {
            tell(
                backend,
                kernel,
                if seconds > 0.0 {
                    std::mem::take(bytes) as f64 / seconds
                } else {
                    0.0
                },
            );
        }
        self.since = now;
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "numbers of a test")]
mod tests;
