//! Makes the blocks that a relay's sessions want, of what is there.
//!
//! One task, the relay's counterpart of the encoder. It takes orders from the ring, reserves slots, and has the blocking pool fill them.
//! Of an incomplete generation no session gets more blocks than there are rows: what goes beyond is held back until another row
//! comes, or until the session says that some were lost. Rows that were not tested are mixed with those of the same source alone, and each session gets
//! as many blocks of each source's rows as that has sent: nothing of what is there is missing in the end. Orders for a segment that does not come yet make it come.

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
use ncs_serve::planner::{Planner, Step, planned};
use ncs_serve::ring::{self, Blocks, Lane, LineKey, Order, Ring, Slot};
use ncs_serve::words::Wanted;
use rand::rngs::{SmallRng, StdRng};
use rand::{Rng, SeedableRng};
use tokio::task::JoinHandle;

use super::Metrics;
use super::fetcher::Fetcher;
use super::holdings::{Holdings, Supply, Whole, counts};
use super::rows::{Heap, News, Plan, Rows, plan};

/// The most blocks of one batch.
const BATCH_BLOCKS_MAX: u32 = 256;
/// How long the first wanted block waits for others.
const BATCH_WAIT: Duration = Duration::from_micros(500);
/// New rows are not looked at more often than this.
const ROWS_EVERY: Duration = Duration::from_millis(2);
/// How often what is held is tried again.
const RETRY_EVERY: Duration = Duration::from_millis(250);

/// Sizes of blocks that have a part of the ring for themselves, each as long as somebody has wanted blocks of it within this time.
const SIZES_MAX: usize = 8;
const SIZE_KEPT: Duration = Duration::from_secs(60);
/// Entries in the books from which on they are looked through.
const BOOKS_MAX: usize = 1024;

/// The task's state.
pub(super) struct Recoder {
    ring: Ring,
    holdings: Arc<Holdings>,
    /// Fetches what is wanted and is not there, if anybody is to.
    fetcher: Option<Fetcher>,
    metrics: Metrics,
    planner: Planner,
    /// Blocks made of each heap of incomplete generations, for each session.
    made: HashMap<LineKey, BTreeMap<Heap, u32>>,
    seeds: HashMap<GenerationKey, u32>,
    /// Segments that are wanted and not complete: what is held of them is tried again now and then.
    waiting: HashSet<SegmentKey>,
    sizes: Sizes,
    random: StdRng,
}

/// The sizes of blocks that are wanted.
#[derive(Default)]
struct Sizes(BTreeMap<u32, Size>);

/// Slots of one size of blocks.
struct Size {
    /// Room for the header of any block of this size that was wanted.
    headroom: usize,
    used_at: Instant,
}

/// What a job makes blocks of.
enum Source {
    Rows { rows: Arc<Mutex<Rows>>, pending: Vec<News>, plan: Plan },
    Seeds(Arc<Encoder>, u32),
    Numbers(Arc<Encoder>, Vec<Vector>),
    Words(Wanted),
}

type Running = FuturesUnordered<JoinHandle<Vec<Made>>>;

/// What became of an order.
enum Prepared {
    /// As much of it as can be made now.
    Ready(Part),
    /// There are no slots, and one that comes home wakes the task.
    NoSlots,
    /// It is held, or its segment is gone.
    Passed,
}

/// An order for which there are slots.
struct Part {
    line: LineKey,
    source: Source,
    slots: Vec<Slot>,
}

/// A part that is done: its blocks, and where rows were absorbed their number and rank, heap by heap.
struct Made {
    line: LineKey,
    blocks: Vec<(Vector, Slot)>,
    absorbed: Option<(BTreeMap<Heap, u32>, BTreeMap<Heap, u32>)>,
}

impl Recoder {
    /// `fetcher` fetches what is wanted and is not there, if anybody is to.
    pub(super) fn new(ring: Ring, holdings: Arc<Holdings>, fetcher: Option<Fetcher>, metrics: Metrics, random: StdRng) -> Self {
        let planner = Planner::new(BATCH_BLOCKS_MAX, BATCH_WAIT);
        let (made, seeds) = (HashMap::new(), HashMap::new());
        Self { ring, holdings, fetcher, metrics, planner, made, seeds, waiting: HashSet::new(), sizes: Sizes::default(), random }
    }

    /// Runs until it is aborted.
    pub(super) async fn run(mut self) {
        let mut running = Running::new();
        let mut retry = tokio::time::interval(RETRY_EVERY);
        retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let holdings = Arc::clone(&self.holdings);
        let changes = || async {
            let changed = holdings.changes().await;
            tokio::time::sleep(ROWS_EVERY).await;
            changed
        };
        let mut changed = Box::pin(changes());
        loop {
            let waker = ring::own_waker().await;
            let step = self.planner.step(Instant::now(), self.ring.needed(&waker));
            if let Step::Launch(blocks) = step
                && self.launch(blocks, &waker, &mut running)
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

    /// Begins a batch. False if the ring is full: then its slots wake the task. If true, ask again whether more is needed.
    fn launch(&mut self, blocks: u32, waker: &Waker, running: &mut Running) -> bool {
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
        let seed = self.random.next_u64();
        running.push(tokio::task::spawn_blocking(move || {
            let mut random = SmallRng::seed_from_u64(seed);
            parts.into_iter().map(|part| part.make(&mut random)).collect()
        }));
        true
    }

    /// Finds what an order can be made of, and slots for it. What is too much now is ordered again later.
    fn prepare(&mut self, order: Order, waker: &Waker) -> Prepared {
        let (line, key) = (order.line, order.line.generation);
        let generation = self.holdings.shape(key.segment).and_then(|shape| shape.generation(key.index));
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
            Supply::Rows { rows, pending, held, is_tainted } => {
                self.start(key.segment);
                match self.allow(order, &held, is_tainted) {
                    Some((order, plan)) => (Source::Rows { rows, pending, plan }, order),
                    None if pending.is_empty() => return Prepared::Passed,
                    None => {
                        let source = Source::Rows { rows, pending, plan: Plan::new() };
                        return Prepared::Ready(Part { line, source, slots: Vec::new() });
                    }
                }
            }
            Supply::Whole(Whole::Encoder(encoder)) => {
                let Some(generation) = generation else { return Prepared::Passed };
                (self.whole(encoder, &order, &generation), order)
            }
            Supply::Whole(Whole::Words(bytes)) => {
                let wanted = generation.and_then(|generation| Wanted::new(order.blocks.clone(), generation, bytes));
                let Some(wanted) = wanted else { return Prepared::Passed };
                self.made.remove(&order.line);
                (Source::Words(wanted), order)
            }
        };
        let Some(shape) = self.holdings.shape(key.segment) else { return Prepared::Passed };
        let headroom = Lane::Recoded(ring::SessionId(0)).headroom(shape.codec(), shape.n_max());
        let (headroom, is_new) = self.sizes.take(Instant::now(), shape.coded_bytes(), headroom);
        if is_new {
            self.ring.promise(self.sizes.slots());
        }
        let slots = self.ring.reserve(headroom, shape.coded_bytes(), order.blocks.count(), waker);
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
                // What was given away is to be absorbed all the same.
                Source::Rows { ref pending, .. } if !pending.is_empty() => Prepared::Ready(Part { line, source, slots }),
                _ => Prepared::NoSlots,
            };
        }
        let source = match source {
            Source::Numbers(encoder, mut vectors) => {
                vectors.truncate(slots.len());
                Source::Numbers(encoder, vectors)
            }
            Source::Words(mut wanted) => {
                wanted.truncate(slots.len());
                Source::Words(wanted)
            }
            source => source,
        };
        Prepared::Ready(Part { line, source, slots })
    }

    /// What an order is made of where all of its generation is there.
    fn whole(&mut self, encoder: Arc<Encoder>, order: &Order, generation: &Generation) -> Source {
        let count = match &order.blocks {
            Blocks::Source(numbers) => {
                return Source::Numbers(encoder, numbers.iter().map(|number| Vector::numbered(*number, generation.n)).collect());
            }
            Blocks::Coded(count) => *count,
        };
        self.made.remove(&order.line);
        let random = &mut self.random;
        let next = self.seeds.entry(order.line.generation).or_insert_with(|| random.next_u32());
        let first = *next;
        *next = next.wrapping_add(count);
        if generation.codec == Codec::RaptorQ {
            let vector = |i| Vector::repair(first.wrapping_add(i), generation.n);
            return Source::Numbers(encoder, (0..count).map(vector).collect());
        }
        Source::Seeds(encoder, first)
    }

    /// As much of an order as a session may have of so many rows, and of which heaps; the rest is held.
    fn allow(&mut self, order: Order, held: &BTreeMap<Heap, u32>, is_tainted: bool) -> Option<(Order, Plan)> {
        let (Blocks::Coded(count), Lane::Recoded(_)) = (&order.blocks, order.line.lane) else {
            // Source blocks, and blocks with seeds, take all of it.
            self.ring.hold(&order);
            return None;
        };
        let count = *count;
        let made = self.made.entry(order.line).or_default();
        // Of which heap those were that were lost is not known: each may send as many more.
        let lost = self.ring.take_lost(order.line);
        made.values_mut().for_each(|made| *made = made.saturating_sub(lost));
        let plan = plan(count, held, made, is_tainted);
        let now = plan.iter().map(|(_, count)| count).sum();
        if now < count {
            self.ring.hold(&Order { line: order.line, blocks: Blocks::Coded(count - now) });
        }
        (now > 0).then_some((Order { line: order.line, blocks: Blocks::Coded(now) }, plan))
    }

    /// What was allowed is not made.
    fn take_back(&mut self, order: &Order, plan: &mut Plan) {
        let Some(made) = self.made.get_mut(&order.line) else { return };
        let mut left = order.blocks.count();
        for (heap, count) in plan.iter_mut().rev() {
            let some = left.min(*count);
            (left, *count) = (left - some, *count - some);
            made.entry(*heap).and_modify(|made| *made = made.saturating_sub(some));
        }
    }

    /// Has a segment fetched that is not. A failure is tried again as long as somebody wants it, and so is one that has no room.
    fn start(&mut self, segment: SegmentKey) {
        self.waiting.insert(segment);
        if let Some(fetcher) = &self.fetcher {
            fetcher.start(segment);
        }
    }

    fn finish(&mut self, made: Vec<Made>) {
        self.planner.done();
        for Made { line, blocks, absorbed } in made {
            if let Some((counts, ranks)) = absorbed {
                self.holdings.absorbed(line.generation, &counts, &ranks);
            }
            let count = |is: fn(&Vector) -> bool| blocks.iter().filter(|(vector, _)| is(vector)).count() as u64;
            let is_recoded = |vector: &Vector| matches!(vector, Vector::Explicit(_) | Vector::Unverified(_) | Vector::Wide(_));
            self.metrics.recoded_blocks.inc_by(count(is_recoded));
            self.metrics.unverified_blocks.inc_by(count(|vector| matches!(vector, Vector::Unverified(_))));
            let is_coded =
                |vector: &Vector| matches!(vector, Vector::Seed(_) | Vector::Shard(_) | Vector::Symbol(_) | Vector::Narrow(_));
            self.metrics.coded_blocks.inc_by(count(is_coded));
            self.metrics.source_blocks.inc_by(count(|vector| matches!(vector, Vector::Source(_))));
            if !blocks.is_empty() {
                self.ring.publish(line, blocks);
            }
        }
    }

    /// Forgets the books of segments that are complete or gone, since sessions do not say that they are, and sizes that nobody wants.
    fn prune(&mut self, now: Instant) {
        if self.sizes.forget_unused(now) {
            self.ring.promise(self.sizes.slots());
        }
        if self.made.len() + self.seeds.len() > BOOKS_MAX {
            self.made.retain(|line, _| self.holdings.is_coming(line.generation.segment));
            self.seeds.retain(|generation, _| self.holdings.shape(generation.segment).is_some());
        }
    }

    fn forget(&mut self, segment: SegmentKey) {
        self.ring.forget(segment);
        self.seeds.retain(|generation, _| generation.segment != segment);
        self.made.retain(|line, _| line.generation.segment != segment);
    }
}

impl Sizes {
    /// Notes that blocks of a size are wanted with this headroom. Returns the headroom of their slots, and whether slots of this size are new.
    /// It only grows: segments of one stream differ in it, and slots of several sizes would each have a part of the ring.
    fn take(&mut self, now: Instant, block_bytes: u32, headroom: usize) -> (usize, bool) {
        if self.0.len() >= SIZES_MAX && !self.0.contains_key(&block_bytes) {
            return (headroom, false);
        }
        let size = self.0.entry(block_bytes).or_insert(Size { headroom: 0, used_at: now });
        size.used_at = now;
        let is_new = headroom > size.headroom;
        size.headroom = size.headroom.max(headroom);
        (size.headroom, is_new)
    }

    /// Whether there were sizes that nobody has wanted for long.
    fn forget_unused(&mut self, now: Instant) -> bool {
        let before = self.0.len();
        self.0.retain(|_, size| now.saturating_duration_since(size.used_at) < SIZE_KEPT);
        self.0.len() < before
    }

    /// Bytes of the slots of each size.
    fn slots(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|(block_bytes, size)| size.headroom + *block_bytes as usize)
    }
}

impl Part {
    fn make(mut self, random: &mut SmallRng) -> Made {
        let (line, mut absorbed) = (self.line, None);
        let vectors = match self.source {
            Source::Words(wanted) => wanted.make(&mut self.slots, &Cores::all(), random).expect("the CPU does not fail"),
            Source::Numbers(encoder, vectors) => {
                let mut outs: Vec<&mut [u8]> = self.slots.iter_mut().map(Slot::payload_mut).collect();
                encoder.numbered(&vectors, &mut outs);
                vectors
            }
            Source::Seeds(encoder, first) => {
                let mut outs: Vec<&mut [u8]> = self.slots.iter_mut().map(Slot::payload_mut).collect();
                encoder.blocks(first, &mut outs);
                (first..=u32::MAX).chain(0..=u32::MAX).take(self.slots.len()).map(Vector::Seed).collect()
            }
            Source::Rows { rows, pending, plan } => {
                let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
                let counts = counts(&pending);
                pending.into_iter().for_each(|news| rows.take(news));
                absorbed = Some((counts, rows.ranks()));
                let (mut vectors, mut left) = (Vec::new(), std::mem::take(&mut self.slots));
                for (heap, count) in plan {
                    let mut some: Vec<Slot> = left.drain(..left.len().min(count as usize)).collect();
                    let mut payloads: Vec<&mut [u8]> = some.iter_mut().map(Slot::payload_mut).collect();
                    let made = rows.recode(heap, random, &mut payloads);
                    // Slots of what could not be made go home.
                    some.truncate(made.len());
                    vectors.extend(made);
                    self.slots.extend(some);
                }
                vectors
            }
        };
        let vectors: Vec<Vector> = vectors;
        Made { line, blocks: vectors.into_iter().zip(self.slots).collect(), absorbed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments of a stream differ in length, and the number of blocks in a generation, which headroom is for, follows it.
    #[test]
    fn a_size_of_blocks_has_one_size_of_slots_and_room_for_a_new_one_comes_back() {
        let (mut sizes, now) = (Sizes::default(), Instant::now());
        let mut take = |now, block_bytes, headroom| sizes.take(now, block_bytes, headroom);
        for block_bytes in [1088, 2048, 4096] {
            assert_eq!([64, 192, 128].map(|headroom| take(now, block_bytes, headroom)), [(64, true), (192, true), (192, false)]);
        }
        (0..5).for_each(|more| assert_eq!(take(now, 8192 + more * 64, 64), (64, true)));
        assert_eq!(take(now, 16384, 64), (64, false), "there is room for no more");
        let later = now + SIZE_KEPT;
        assert_eq!(take(later - Duration::from_millis(1), 1088, 64), (192, false));
        assert!(sizes.forget_unused(later) && !sizes.forget_unused(later));
        assert_eq!(sizes.take(later, 16384, 64), (64, true));
        assert_eq!(sizes.slots().collect::<Vec<_>>(), [1088 + 192, 16384 + 64]);
    }
}
