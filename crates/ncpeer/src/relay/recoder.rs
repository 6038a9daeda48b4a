//! Makes the blocks that a relay's sessions request, of the rows and segments it holds.
//!
//! One task, the relay's counterpart of the encoder. It takes orders from the ring, reserves slots,
//! and has the blocking pool fill them. Of an incomplete generation no session gets more blocks
//! than there are rows: the rest of its demand is held until another row arrives, or until the
//! session reports losses. Untested rows are mixed only with rows of the same source, and each
//! session gets as many blocks of each source's rows as that source has sent, so that it can still
//! reach the full rank. An order for a segment that is not being fetched starts its fetch.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use ncs_codec::block::Vector;
use ncs_codec::gfq::Cores;
use ncs_codec::rlnc::Encoder;
use ncs_proto::object::{Codec, Generation, GenerationKey, SegmentKey};
use ncs_proto::rows::{Heap, News, Plan, Rows, plan};
use ncs_serve::gfq::Wanted;
use ncs_serve::planner::{Planner, Step, planned};
use ncs_serve::ring::{self, Blocks, LineKey, LineKind, Order, Ring, Slot};
use rand::rngs::{SmallRng, StdRng};
use rand::{Rng, SeedableRng};
use tokio::task::JoinHandle;

use super::Metrics;
use super::fetcher::Fetcher;
use super::holdings::{Holdings, Supply, Whole, counts};

/// The maximum number of blocks per batch.
pub(super) const BATCH_BLOCKS_MAX: u32 = 256;
/// How long the first requested block waits for others.
const BATCH_WAIT: Duration = Duration::from_micros(500);
/// The time from the first new row to a look at all of them: short if many have come, and otherwise
/// that of two blocks on a line of a megabit a second. Each look makes blocks for all who wait for
/// rows, and a look for every row would cost more than all other work.
const ROWS_AFTER: Duration = Duration::from_millis(2);
const ROWS_WITHIN: Duration = Duration::from_millis(20);
const ROWS_MANY: usize = 8;
/// A batch that reads at most so many bytes is made on the recoder's own thread: in less time than
/// another thread takes to begin.
const OWN_BYTES_MAX: usize = 1 << 20;
/// The interval of retries of held orders.
const RETRY_EVERY: Duration = Duration::from_millis(250);

/// The maximum number of block sizes with a guaranteed part of the ring; each keeps it for
/// `SIZE_KEPT` after the last request.
const SIZES_MAX: usize = 8;
const SIZE_KEPT: Duration = Duration::from_secs(60);
/// The number of entries in `made` and `seeds` above which they are pruned.
const BOOKS_MAX: usize = 1024;

/// The task's state.
pub(super) struct Recoder {
    ring: Ring,
    holdings: Arc<Holdings>,
    /// Fetches requested segments, if the relay does so.
    fetcher: Option<Fetcher>,
    metrics: Metrics,
    planner: Planner,
    /// Blocks made of each heap of incomplete generations, per session.
    made: HashMap<LineKey, BTreeMap<Heap, u32>>,
    seeds: HashMap<GenerationKey, u32>,
    /// Incomplete segments in demand: their held orders are retried from time to time.
    waiting: HashSet<SegmentKey>,
    sizes: Sizes,
    random: StdRng,
}

/// The block sizes in demand.
#[derive(Default)]
struct Sizes(BTreeMap<u32, Size>);

/// Slots for one block size.
struct Size {
    /// Enough for the header of any block of this size so far.
    headroom: usize,
    used_at: Instant,
}

/// The material of a job's blocks.
enum Source {
    Rows {
        rows: Arc<Mutex<Rows>>,
        pending: Vec<News>,
        plan: Plan,
    },
    Seeds(Arc<Encoder>, u32),
    Numbers(Arc<Encoder>, Vec<Vector>),
    Gfq(Wanted),
}

type Running = FuturesUnordered<JoinHandle<Vec<Made>>>;

/// The result of preparing an order.
enum Prepared {
    /// As much of it as can be made now.
    Ready(RecodeOrder),
    /// There are no slots; a returning slot wakes the task.
    NoSlots,
    /// It is held, or its segment is gone.
    Passed,
}

/// An order with slots.
struct RecodeOrder {
    line: LineKey,
    source: Source,
    slots: Vec<Slot>,
    /// The bytes that are read for each block.
    reads: usize,
}

/// A finished part: its blocks, and, if rows were absorbed, their number and the rank of each heap.
struct Made {
    line: LineKey,
    blocks: Vec<(Vector, Slot)>,
    absorbed: Option<(BTreeMap<Heap, u32>, BTreeMap<Heap, u32>)>,
}

impl Recoder {
    /// `fetcher` fetches requested segments; `None` if the relay does not.
    pub(super) fn new(
        ring: Ring,
        holdings: Arc<Holdings>,
        fetcher: Option<Fetcher>,
        metrics: Metrics,
        random: StdRng,
    ) -> Self {
        let planner = Planner::new(BATCH_BLOCKS_MAX, BATCH_WAIT);
        let (made, seeds) = (HashMap::new(), HashMap::new());
        Self {
            ring,
            holdings,
            fetcher,
            metrics,
            planner,
            made,
            seeds,
            waiting: HashSet::new(),
            sizes: Sizes::default(),
            random,
        }
    }

    /// Runs until it is aborted.
    pub(super) async fn run(mut self) {
        let mut running = Running::new();
        let mut retry = tokio::time::interval(RETRY_EVERY);
        retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let holdings = Arc::clone(&self.holdings);
        let changes = || async {
            holdings.changed().await;
            tokio::time::sleep(ROWS_AFTER).await;
            if holdings.news() < ROWS_MANY {
                tokio::time::sleep(ROWS_WITHIN - ROWS_AFTER).await;
            }
            holdings.take_changed()
        };
        let mut changed = Box::pin(changes());
        loop {
            let waker = ring::own_waker().await;
            let step = self.planner.step(Instant::now(), self.ring.needed(&waker));
            if let Step::Launch(blocks) = step
                && self.launch(blocks, &waker, &running)
            {
                continue;
            }
            tokio::select! {
                Some(made) = running.next() => self.finish(made.expect("no job panics")),
                segments = &mut changed => {
                    changed.set(changes());
                    segments.into_iter().for_each(|segment| self.ring.resume(Some(segment)));
                }
                _ = retry.tick() => {
                    let waiting = std::mem::take(&mut self.waiting);
                    waiting.into_iter().for_each(|segment| self.ring.resume(Some(segment)));
                    self.prune(Instant::now());
                }
                () = planned(step) => {}
                () = ring::next_wake() => {}
            }
        }
    }

    /// Begins a batch. False if the ring is full: a returning slot then wakes the task. If true,
    /// check demand again.
    fn launch(&mut self, blocks: u32, waker: &Waker, running: &Running) -> bool {
        let (mut parts, mut is_full) = (Vec::new(), false);
        for order in self.ring.take_orders(blocks) {
            match self.prepare(order, waker) {
                Prepared::Ready(part) => parts.push(part),
                Prepared::NoSlots => is_full = true,
                Prepared::Passed => {}
            }
        }
        if parts.is_empty() {
            return !is_full;
        }
        self.planner.launched();
        let mut random = SmallRng::seed_from_u64(self.random.next_u64());
        let bytes = parts.iter().map(RecodeOrder::bytes);
        let bytes = bytes.fold(0, usize::saturating_add);
        let make = move || {
            parts
                .into_iter()
                .map(|part| part.make(&mut random))
                .collect()
        };
        // A batch in the pool may lock the rows for longer.
        if bytes <= OWN_BYTES_MAX && running.is_empty() {
            self.finish(make());
        } else {
            running.push(tokio::task::spawn_blocking(make));
        }
        true
    }

    /// Finds the material and the slots for an order. The rest is ordered again later.
    fn prepare(&mut self, order: Order, waker: &Waker) -> Prepared {
        let (line, key) = (order.line, order.line.generation);
        let generation = self
            .holdings
            .shape(key.segment)
            .and_then(|shape| shape.generation(key.index));
        // Arithmetic over the prime field is slow.
        let reads = match generation {
            Some(own) if !own.codec.is_gfq() => usize::from(own.n) * own.block_bytes as usize,
            _ => usize::MAX,
        };
        let (source, order) = match self.holdings.supply(key) {
            Supply::Gone => {
                self.forget(key.segment);
                return Prepared::Passed;
            }
            Supply::None => {
                self.start(key.segment);
                self.ring.hold(&order);
                return Prepared::Passed;
            }
            Supply::Rows {
                rows,
                pending,
                held,
                is_tainted,
            } => {
                self.start(key.segment);
                match self.allow(order, &held, is_tainted) {
                    Some((order, plan)) => (
                        Source::Rows {
                            rows,
                            pending,
                            plan,
                        },
                        order,
                    ),
                    None if pending.is_empty() => return Prepared::Passed,
                    None => {
                        let source = Source::Rows {
                            rows,
                            pending,
                            plan: Plan::new(),
                        };
                        return Prepared::Ready(RecodeOrder {
                            line,
                            source,
                            slots: Vec::new(),
                            reads,
                        });
                    }
                }
            }
            Supply::Whole(Whole::Encoder(encoder)) => {
                let Some(generation) = generation else {
                    return Prepared::Passed;
                };
                (self.whole(encoder, &order, &generation), order)
            }
            Supply::Whole(Whole::Gfq(bytes)) => {
                let wanted = generation
                    .and_then(|generation| Wanted::new(order.blocks.clone(), generation, bytes));
                let Some(wanted) = wanted else {
                    return Prepared::Passed;
                };
                self.made.remove(&order.line);
                (Source::Gfq(wanted), order)
            }
        };
        let Some(shape) = self.holdings.shape(key.segment) else {
            return Prepared::Passed;
        };
        let headroom = LineKind::Recoded(ring::SessionId(0)).headroom(shape.codec(), shape.n_max());
        let (headroom, is_new) = self
            .sizes
            .take(Instant::now(), shape.coded_bytes(), headroom);
        if is_new {
            self.ring.promise(self.sizes.slots());
        }
        let slots = self
            .ring
            .reserve(headroom, shape.coded_bytes(), order.blocks.count(), waker);
        let (order, rest) = order.split(slots.len());
        let mut source = source;
        if let Some(rest) = rest {
            if let Source::Rows { plan, .. } = &mut source {
                self.take_back(&rest, plan);
            }
            self.ring.give_up(&rest);
        }
        if order.is_none() {
            return match source {
                // The pending rows have to be absorbed all the same.
                Source::Rows { ref pending, .. } if !pending.is_empty() => {
                    Prepared::Ready(RecodeOrder {
                        line,
                        source,
                        slots,
                        reads,
                    })
                }
                _ => Prepared::NoSlots,
            };
        }
        let source = match source {
            Source::Numbers(encoder, mut vectors) => {
                vectors.truncate(slots.len());
                Source::Numbers(encoder, vectors)
            }
            Source::Gfq(mut wanted) => {
                wanted.truncate(slots.len());
                Source::Gfq(wanted)
            }
            source => source,
        };
        Prepared::Ready(RecodeOrder {
            line,
            source,
            slots,
            reads,
        })
    }

    /// The source of an order whose generation is complete.
    fn whole(&mut self, encoder: Arc<Encoder>, order: &Order, generation: &Generation) -> Source {
        let count = match &order.blocks {
            Blocks::Source(numbers) => {
                return Source::Numbers(
                    encoder,
                    numbers
                        .iter()
                        .map(|number| Vector::numbered(*number, generation.n))
                        .collect(),
                );
            }
            Blocks::Coded(count) => *count,
        };
        self.made.remove(&order.line);
        let random = &mut self.random;
        let next = self
            .seeds
            .entry(order.line.generation)
            .or_insert_with(|| random.next_u32());
        let first = *next;
        *next = next.wrapping_add(count);
        if generation.codec == Codec::RaptorQ {
            let vector = |i| Vector::repair(first.wrapping_add(i), generation.n);
            return Source::Numbers(encoder, (0..count).map(vector).collect());
        }
        Source::Seeds(encoder, first)
    }

    /// The part of an order that a session may have of these rows, and the heaps to use; the rest
    /// is held.
    fn allow(
        &mut self,
        order: Order,
        held: &BTreeMap<Heap, u32>,
        is_tainted: bool,
    ) -> Option<(Order, Plan)> {
        let (Blocks::Coded(count), LineKind::Recoded(_)) = (&order.blocks, order.line.kind) else {
            // Source blocks, and blocks with seeds, need the whole generation.
            self.ring.hold(&order);
            return None;
        };
        let count = *count;
        let made = self.made.entry(order.line).or_default();
        // The heap of a lost block is unknown: each heap may supply as many more.
        let lost = self.ring.take_lost(order.line);
        made.values_mut()
            .for_each(|made| *made = made.saturating_sub(lost));
        let plan = plan(count, held, made, is_tainted);
        let now = plan.iter().map(|(_, count)| count).sum();
        if now < count {
            self.ring.hold(&Order {
                line: order.line,
                blocks: Blocks::Coded(count - now),
            });
        }
        (now > 0).then_some((
            Order {
                line: order.line,
                blocks: Blocks::Coded(now),
            },
            plan,
        ))
    }

    /// Takes back an allowance that was not used.
    fn take_back(&mut self, order: &Order, plan: &mut Plan) {
        let Some(made) = self.made.get_mut(&order.line) else {
            return;
        };
        let mut left = order.blocks.count();
        for (heap, count) in plan.iter_mut().rev() {
            let some = left.min(*count);
            (left, *count) = (left - some, *count - some);
            made.entry(*heap)
                .and_modify(|made| *made = made.saturating_sub(some));
        }
    }

    /// Fetches a segment that is missing. After a failure, or a lack of room, this is retried while
    /// there is demand.
    fn start(&mut self, segment: SegmentKey) {
        self.waiting.insert(segment);
        if let Some(fetcher) = &self.fetcher {
            fetcher.start(segment);
        }
    }

    fn finish(&mut self, made: Vec<Made>) {
        self.planner.done();
        for Made {
            line,
            blocks,
            absorbed,
        } in made
        {
            if let Some((counts, ranks)) = absorbed {
                self.holdings.absorbed(line.generation, &counts, &ranks);
            }
            let count = |is: fn(&Vector) -> bool| {
                blocks.iter().filter(|(vector, _)| is(vector)).count() as u64
            };
            let is_recoded = |vector: &Vector| {
                matches!(
                    vector,
                    Vector::Explicit(_) | Vector::Unverified(_) | Vector::Wide(_)
                )
            };
            self.metrics.recoded_blocks.inc_by(count(is_recoded));
            self.metrics
                .unverified_blocks
                .inc_by(count(|vector| matches!(vector, Vector::Unverified(_))));
            let is_coded = |vector: &Vector| {
                matches!(
                    vector,
                    Vector::Seed(_) | Vector::Shard(_) | Vector::Symbol(_) | Vector::Narrow(_)
                )
            };
            self.metrics.coded_blocks.inc_by(count(is_coded));
            self.metrics
                .source_blocks
                .inc_by(count(|vector| matches!(vector, Vector::Source(_))));
            if !blocks.is_empty() {
                self.ring.publish(line, blocks);
            }
        }
    }

    /// Forgets entries of segments that are complete or gone, since sessions do not report that,
    /// and block sizes without demand.
    fn prune(&mut self, now: Instant) {
        if self.sizes.forget_unused(now) {
            self.ring.promise(self.sizes.slots());
        }
        if self.made.len() + self.seeds.len() > BOOKS_MAX {
            self.made
                .retain(|line, _| self.holdings.is_coming(line.generation.segment));
            self.seeds
                .retain(|generation, _| self.holdings.shape(generation.segment).is_some());
        }
    }

    fn forget(&mut self, segment: SegmentKey) {
        self.ring.forget(segment);
        self.seeds
            .retain(|generation, _| generation.segment != segment);
        self.made
            .retain(|line, _| line.generation.segment != segment);
    }
}

impl Sizes {
    /// Notes demand for blocks of a size with this headroom. Returns the headroom of their slots,
    /// and whether that slot size is new. The headroom only grows: it differs among segments of one
    /// stream, and several slot sizes would each take a part of the ring.
    fn take(&mut self, now: Instant, block_bytes: u32, headroom: usize) -> (usize, bool) {
        if self.0.len() >= SIZES_MAX && !self.0.contains_key(&block_bytes) {
            return (headroom, false);
        }
        let size = self.0.entry(block_bytes).or_insert(Size {
            headroom: 0,
            used_at: now,
        });
        size.used_at = now;
        let is_new = headroom > size.headroom;
        size.headroom = size.headroom.max(headroom);
        (size.headroom, is_new)
    }

    /// Forgets sizes without demand for long; returns whether there were any.
    fn forget_unused(&mut self, now: Instant) -> bool {
        let before = self.0.len();
        self.0
            .retain(|_, size| now.saturating_duration_since(size.used_at) < SIZE_KEPT);
        self.0.len() < before
    }

    /// The slot size for each block size.
    fn slots(&self) -> impl Iterator<Item = usize> {
        self.0
            .iter()
            .map(|(block_bytes, size)| size.headroom + *block_bytes as usize)
    }
}

impl RecodeOrder {
    /// The bytes that are read to make its blocks, and to absorb rows, each of which takes no
    /// longer than a block.
    fn bytes(&self) -> usize {
        let rows = match &self.source {
            Source::Rows { pending, .. } => pending.len(),
            _ => 0,
        };
        (self.slots.len() + rows).saturating_mul(self.reads)
    }

    fn make(mut self, random: &mut SmallRng) -> Made {
        let (line, mut absorbed) = (self.line, None);
        let vectors = match self.source {
            Source::Gfq(wanted) => wanted
                .make(&mut self.slots, &Cores::all(), random)
                .expect("the CPU does not fail"),
            Source::Numbers(encoder, vectors) => {
                let mut outs: Vec<&mut [u8]> =
                    self.slots.iter_mut().map(Slot::payload_mut).collect();
                encoder.numbered(&vectors, &mut outs);
                vectors
            }
            Source::Seeds(encoder, first) => {
                let mut outs: Vec<&mut [u8]> =
                    self.slots.iter_mut().map(Slot::payload_mut).collect();
                encoder.blocks(first, &mut outs);
                (first..=u32::MAX)
                    .chain(0..=u32::MAX)
                    .take(self.slots.len())
                    .map(Vector::Seed)
                    .collect()
            }
            Source::Rows {
                rows,
                pending,
                plan,
            } => {
                let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
                let counts = counts(&pending);
                pending.into_iter().for_each(|news| rows.take(news));
                absorbed = Some((counts, rows.ranks()));
                let (mut vectors, mut left) = (Vec::new(), std::mem::take(&mut self.slots));
                for (heap, count) in plan {
                    let mut some: Vec<Slot> =
                        left.drain(..left.len().min(count as usize)).collect();
                    let mut payloads: Vec<&mut [u8]> =
                        some.iter_mut().map(Slot::payload_mut).collect();
                    let made = rows.recode(heap, random, &mut payloads);
                    // Slots of blocks that could not be made return to the ring.
                    some.truncate(made.len());
                    vectors.extend(made);
                    self.slots.extend(some);
                }
                vectors
            }
        };
        let vectors: Vec<Vector> = vectors;
        Made {
            line,
            blocks: vectors.into_iter().zip(self.slots).collect(),
            absorbed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments of a stream differ in length, hence in the number of blocks per generation, hence
    /// in headroom.
    #[test]
    fn a_size_of_blocks_has_one_size_of_slots_and_room_for_a_new_one_comes_back() {
        let (mut sizes, now) = (Sizes::default(), Instant::now());
        let mut take = |now, block_bytes, headroom| sizes.take(now, block_bytes, headroom);
        for block_bytes in [1088, 2048, 4096] {
            assert_eq!(
                [64, 192, 128].map(|headroom| take(now, block_bytes, headroom)),
                [(64, true), (192, true), (192, false)]
            );
        }
        (0..5).for_each(|more| assert_eq!(take(now, 8192 + more * 64, 64), (64, true)));
        assert_eq!(
            take(now, 16384, 64),
            (64, false),
            "there is room for no more"
        );
        let later = now + SIZE_KEPT;
        assert_eq!(
            take(later - Duration::from_millis(1), 1088, 64),
            (192, false)
        );
        assert!(sizes.forget_unused(later) && !sizes.forget_unused(later));
        assert_eq!(sizes.take(later, 16384, 64), (64, true));
        assert_eq!(sizes.slots().collect::<Vec<_>>(), [1088 + 192, 16384 + 64]);
    }
}
