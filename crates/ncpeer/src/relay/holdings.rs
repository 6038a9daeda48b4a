//! The segments that a relay holds, complete or in part.
//!
//! A segment is *named* once a source has described it, *coming* from the first request for its
//! fetch, and *whole* once its bytes are verified. Only coming and whole segments take memory. They
//! are charged from the beginning with the segment's length, with its hashes where these are
//! signed, and over the prime field, until whole, with the vectors of all rows. The task that
//! receives blocks only queues them; they are eliminated when a combination is requested.
//!
//! A fetch may begin before its segment is leased: it runs *ahead*. Its bytes are charged to the
//! session that asked, and to its address and token. All such fetches together are limited to a
//! part of the budget, and give way to leased segments.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncs_codec::block::Block;
use ncs_codec::gfq::{Arithmetic as _, Cores};
use ncs_codec::rlnc::Encoder;
use ncs_gf::Kernels;
use ncs_proto::integrity::hashes::BlockHashes;
use ncs_proto::object::row_key;
use ncs_proto::object::{
    Codec, Coding, FirstPass, Generation, GenerationKey, Held, Released, SegmentId, SegmentKey,
    Shape, Standing,
};
use ncs_proto::rows::{Heap, News, Rows};
use ncs_proto::wire::message::{Delivery, Holding, HoldingState, Meant, Meta};
use ncs_serve::admission::Share;
use ncs_serve::session::Ledgers;
use tokio::sync::{Notify, oneshot};

use super::Metrics;
use crate::Listener;
use crate::proto::{Cut, SourceId};

/// Named segments that take no memory are kept up to this number; beyond it, those without a lease
/// are dropped.
const NAMED_MAX: usize = 4096;
/// The pause between a failed fetch and the next.
const PAUSE: Duration = Duration::from_secs(1);
/// The part of the budget kept free of segments in use (one in this many).
const KEPT_PART: u64 = 4;
/// The part of the budget for fetches ahead (one in this many), and their maximum number.
const AHEAD_PART: u64 = 2;
const AHEAD_MAX: usize = 256;
/// A fetch ahead that received rows within this time gives way only after unused whole segments.
const ROWS_RECENT: Duration = Duration::from_secs(1);

/// What a relay holds. Shared by the tasks that answer, fetch and recode.
#[derive(Debug)]
pub(super) struct Holdings {
    state: Mutex<State>,
    changed: Notify,
    metrics: Metrics,
}

#[derive(Debug)]
struct State {
    budget: u64,
    used: u64,
    segments: HashMap<SegmentKey, Segment>,
    keys: HashMap<Cut, SegmentKey>,
    /// The latest segment of each name.
    named: BTreeMap<(SegmentId, Coding), SegmentKey>,
    next: u64,
    clock: u64,
    /// Segments of which more blocks can be made than before.
    changed: HashSet<SegmentKey>,
    /// The number of rows, and of whole segments, that have come since these were taken.
    news: usize,
    /// Changes that servers have not been told of.
    untold: HashMap<(SegmentId, Coding), HoldingState>,
    tells: bool,
    /// The size last refused for lack of room.
    refused: Option<u64>,
}

#[derive(Debug)]
struct Segment {
    meta: Arc<Meta>,
    cut: Cut,
    lease: Released,
    /// Bytes of the budget charged to it.
    charged: u64,
    used_at: u64,
    /// Whether servers were told that part of it is held.
    is_told: bool,
    body: Body,
    /// Hashes of its blocks that the stream's key has signed.
    hashes: Option<BlockHashes>,
}

#[derive(Debug)]
enum Body {
    Named,
    Coming {
        parts: Vec<PartialGeneration>,
        fetch: Fetch,
    },
    Whole(Vec<Whole>),
}

/// A complete generation.
#[derive(Debug, Clone)]
pub(super) enum Whole {
    /// The encoder over its bytes.
    Encoder(Arc<Encoder>),
    /// Its bytes without padding: words of the prime field.
    Gfq(Bytes),
}

/// The state of a fetch.
#[derive(Debug)]
enum Fetch {
    UnderWay {
        number: u64,
        /// When rows arrived last, or the fetch began.
        brought_at: Instant,
        /// The accounts that it is charged to, if it began ahead.
        shares: Vec<Share>,
        /// Dropped when the segment gives way.
        _until: oneshot::Sender<()>,
    },
    FailedAt(Instant),
}

/// A fetch to be started.
#[derive(Debug)]
pub(super) struct Begun {
    /// The segment.
    pub(super) meta: Arc<Meta>,
    /// Identifies this fetch among those of the segment.
    pub(super) number: u64,
    /// Ends when the fetch is no longer needed.
    pub(super) until: oneshot::Receiver<()>,
}

/// An incomplete generation.
#[derive(Debug)]
struct PartialGeneration {
    rows: Arc<Mutex<Rows>>,
    /// Received rows that have not been absorbed.
    pending: Vec<News>,
    /// Rows of each heap that are being absorbed.
    given: BTreeMap<Heap, u32>,
    /// The ranks of the heaps, as last reported.
    ranks: BTreeMap<Heap, u32>,
    /// Blocks of the generation.
    n: u32,
    /// Whether rows were tested; untested ones are useless then.
    is_checked: bool,
    /// Whether some received rows were wrong.
    is_tainted: bool,
}

/// The material for blocks of a generation.
#[derive(Debug)]
pub(super) enum Supply {
    /// Rows: their number in each heap, including the pending ones that the caller has to absorb.
    Rows {
        rows: Arc<Mutex<Rows>>,
        pending: Vec<News>,
        held: BTreeMap<Heap, u32>,
        is_tainted: bool,
    },
    /// The complete generation.
    Whole(Whole),
    /// Nothing yet.
    None,
    /// The segment is no longer held.
    Gone,
}

impl Holdings {
    /// Empty holdings of at most `budget` bytes. `tells`: whether changes are reported
    /// ([`Holdings::take_untold`]).
    pub(super) fn new(budget: u64, tells: bool, metrics: Metrics) -> Self {
        let state = State {
            budget,
            used: 0,
            segments: HashMap::new(),
            keys: HashMap::new(),
            named: BTreeMap::new(),
            next: 0,
            clock: 0,
            changed: HashSet::new(),
            news: 0,
            untold: HashMap::new(),
            tells,
            refused: None,
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
            metrics,
        }
    }

    /// The segment that a source has described, with a lease for a session.
    pub(super) fn name(&self, meta: &Arc<Meta>, shape: Shape) -> Held {
        let mut state = self.state();
        let cut = Cut::of(meta, shape);
        let key = match state.keys.get(&cut) {
            Some(key) => *key,
            None => {
                state.forget_named();
                let key = SegmentKey(state.next);
                state.next += 1;
                let lease = Released::new(key, meta.id, shape, Instant::now());
                state.keys.insert(cut, key);
                state.segments.insert(
                    key,
                    Segment {
                        meta: Arc::clone(meta),
                        cut,
                        lease,
                        charged: 0,
                        used_at: 0,
                        is_told: false,
                        body: Body::Named,
                        hashes: None,
                    },
                );
                key
            }
        };
        state.named.insert((meta.id, shape.coding()), key);
        state.held(key).expect("it was found or put there")
    }

    /// A known segment, with this coding if given: the one that the peer was told of, if it is
    /// still there, else the one named or used last.
    pub(super) fn find(
        &self,
        id: &SegmentId,
        coding: Option<Coding>,
        told: Option<SegmentKey>,
    ) -> Option<Held> {
        let mut state = self.state();
        let is_meant = |lease: &Released| {
            lease.id == *id && coding.is_none_or(|coding| lease.shape.coding() == coding)
        };
        let told = told.filter(|key| {
            state
                .segments
                .get(key)
                .is_some_and(|segment| is_meant(&segment.lease))
        });
        let named = || match coding {
            Some(coding) => state.named.get(&(*id, coding)).copied(),
            None => state
                .named_of(*id)
                .max_by_key(|key| state.segments.get(key).map(|segment| segment.used_at)),
        };
        let key = told.or_else(named)?;
        state.held(key)
    }

    /// Begins a fetch because blocks of a segment are requested. `None` while it is coming or
    /// whole, right after a failure, or while there is no room.
    pub(super) fn start(&self, key: SegmentKey, now: Instant) -> Option<Begun> {
        self.begin(key, now, None)
    }

    /// The same before the segment is leased: also `None` if the asker's accounts are full.
    pub(super) fn start_ahead(
        &self,
        key: SegmentKey,
        now: Instant,
        asker: &Ledgers,
    ) -> Option<Begun> {
        self.begin(key, now, Some(asker))
    }

    fn begin(&self, key: SegmentKey, now: Instant, asker: Option<&Ledgers>) -> Option<Begun> {
        let mut state = self.state();
        let segment = state.segments.get(&key)?;
        match &segment.body {
            Body::Named => {}
            Body::Coming {
                fetch: Fetch::FailedAt(at),
                ..
            } if *at + PAUSE <= now => {}
            Body::Coming { .. } | Body::Whole(_) => return None,
        }
        let cost = whole_bytes(&segment.cut) + rows_bytes(&segment.lease.shape);
        let more = cost.saturating_sub(segment.charged);
        let shares = match asker {
            Some(asker) => asker.keep(now, key, segment.lease.shape.length())?,
            None => Vec::new(),
        };
        if asker.is_some() {
            state.make_room_ahead(cost);
        }
        if !state.make_room(more, now, asker.is_some()) {
            return None;
        }
        // Making room does not remove named segments, and a failed fetch needs no more room.
        let State {
            segments,
            used,
            clock,
            ..
        } = &mut *state;
        let segment = segments.get_mut(&key)?;
        *used += more;
        *clock += 1;
        let number = *clock;
        let (_until, until) = oneshot::channel();
        let fetch = Fetch::UnderWay {
            number,
            brought_at: now,
            shares,
            _until,
        };
        (segment.used_at, segment.charged) = (number, cost);
        match &mut segment.body {
            Body::Coming { fetch: failed, .. } => *failed = fetch,
            body => {
                let parts = segment
                    .lease
                    .shape
                    .iter()
                    .map(|own| PartialGeneration::new(&segment.lease.id, own))
                    .collect();
                *body = Body::Coming { parts, fetch };
            }
        }
        let meta = Arc::clone(&segment.meta);
        self.show(&state);
        Some(Begun {
            meta,
            number,
            until,
        })
    }

    /// Completes a segment with its verified bytes. Costs a copy, and hashes of all blocks if they
    /// are missing: not for an async task.
    pub(super) fn complete(&self, key: SegmentKey, bytes: &Bytes) {
        let known = |segment: &Segment| {
            (
                segment.lease.shape,
                segment.signed_blocks().filter(|_| segment.hashes.is_none()),
            )
        };
        let Some((shape, signed)) = self.state().segments.get(&key).map(known) else {
            return;
        };
        // Homomorphic hashes arrived before the first block could be tested, unless the source
        // changed the segment's shape meanwhile.
        if let Some(signed) = signed {
            let hashes = hashes_of(bytes, &shape);
            if hashes.digest() == signed {
                self.keep_hashes(key, hashes);
            }
        }
        let id = SegmentId::of_coded(bytes, shape.codec());
        let encoder = |generation: Generation| {
            let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
            let range = place(generation.offset)..place(generation.offset + generation.length);
            let own = bytes.get(range.clone())?;
            if shape.codec().is_gfq() {
                return Some(Whole::Gfq(bytes.slice(range)));
            }
            let encoder = Encoder::new(
                &generation,
                own,
                row_key(&id, &generation),
                Kernels::detect(),
            )
            .ok()?;
            Some(Whole::Encoder(Arc::new(encoder)))
        };
        let Some(encoders) = shape.iter().map(encoder).collect::<Option<Vec<_>>>() else {
            return;
        };
        let mut state = self.state();
        // A segment that gave way meanwhile takes no memory any more.
        if let Some(segment) = state
            .segments
            .get_mut(&key)
            .filter(|segment| matches!(segment.body, Body::Coming { .. }))
        {
            segment.body = Body::Whole(encoders);
            segment.lease.loan().note_come(Instant::now());
            let whole = whole_bytes(&segment.cut);
            let before = std::mem::replace(&mut segment.charged, whole);
            state.used = state.used + whole - before;
            self.show(&state);
            state.change(key);
            state.note((id, shape.coding()), HoldingState::Complete);
            self.metrics.completed.inc();
            self.changed.notify_one();
        }
    }

    /// Keeps the hashes of a segment's blocks, which match its signed digest.
    pub(super) fn keep_hashes(&self, key: SegmentKey, hashes: BlockHashes) {
        let mut state = self.state();
        if let Some(segment) = state.segments.get_mut(&key)
            && segment.hashes.is_none()
            && !matches!(segment.body, Body::Named)
        {
            segment.hashes = Some(hashes);
        }
    }

    /// The hashes of a segment's blocks, if known.
    pub(super) fn hashes(&self, key: SegmentKey) -> Option<Bytes> {
        self.state()
            .segments
            .get(&key)?
            .hashes
            .as_ref()
            .map(|hashes| hashes.as_bytes().clone())
    }

    /// Whether blocks of a segment are tested by hashes that have not arrived yet.
    pub(super) fn awaits_hashes(&self, key: SegmentKey) -> bool {
        let state = self.state();
        let segment = state
            .segments
            .get(&key)
            .filter(|segment| segment.hashes.is_none());
        segment.is_some_and(|segment| {
            segment.lease.shape.codec().is_gfq() && !matches!(segment.body, Body::Whole(_))
        })
    }

    /// Notes the failure of this fetch. Rows received so far stay useful.
    fn fail(&self, key: SegmentKey, failed: u64, now: Instant) {
        if let Some(Segment {
            body: Body::Coming { fetch, .. },
            ..
        }) = self.state().segments.get_mut(&key)
            && let Fetch::UnderWay { number, .. } = fetch
            && *number == failed
        {
            *fetch = Fetch::FailedAt(now);
            self.metrics.failed.inc();
        }
    }

    /// The material for blocks of this generation. Pending rows are handed to the caller, which has
    /// to absorb them.
    pub(super) fn supply(&self, key: GenerationKey) -> Supply {
        let mut state = self.state();
        state.clock += 1;
        let clock = state.clock;
        let Some(segment) = state.segments.get_mut(&key.segment) else {
            return Supply::Gone;
        };
        segment.used_at = clock;
        let index = key.index as usize;
        match &mut segment.body {
            Body::Named => Supply::None,
            Body::Whole(encoders) => encoders
                .get(index)
                .map_or(Supply::Gone, |whole| Supply::Whole(whole.clone())),
            Body::Coming { parts, .. } => match parts.get_mut(index) {
                None => Supply::Gone,
                Some(part) => {
                    let held = part.held();
                    if held.values().all(|rows| *rows == 0) {
                        return Supply::None;
                    }
                    let pending = std::mem::take(&mut part.pending);
                    for (heap, rows) in counts(&pending) {
                        *part.given.entry(heap).or_default() += rows;
                    }
                    Supply::Rows {
                        rows: Arc::clone(&part.rows),
                        pending,
                        held,
                        is_tainted: part.is_tainted,
                    }
                }
            },
        }
    }

    /// Notes how many pending rows of each heap were absorbed, and the ranks after that.
    pub(super) fn absorbed(
        &self,
        key: GenerationKey,
        counts: &BTreeMap<Heap, u32>,
        ranks: &BTreeMap<Heap, u32>,
    ) {
        if let Some(Segment {
            body: Body::Coming { parts, .. },
            ..
        }) = self.state().segments.get_mut(&key.segment)
            && let Some(part) = parts.get_mut(key.index as usize)
        {
            for (heap, count) in counts {
                part.given
                    .entry(*heap)
                    .and_modify(|given| *given = given.saturating_sub(*count));
            }
            for (heap, rank) in ranks {
                let known = part.ranks.entry(*heap).or_default();
                *known = (*known).max(*rank);
            }
        }
    }

    /// A handle that ends the fetch of an incomplete segment.
    pub(super) fn fetching(self: &Arc<Self>, key: SegmentKey) -> Option<Fetching> {
        let state = self.state();
        let Body::Coming { fetch, .. } = &state.segments.get(&key)?.body else {
            return None;
        };
        let number = match fetch {
            Fetch::UnderWay { number, .. } => *number,
            // It has failed already.
            Fetch::FailedAt(_) => 0,
        };
        Some(Fetching {
            holdings: Arc::clone(self),
            key,
            number,
        })
    }

    /// Whether a segment is incomplete.
    pub(super) fn is_coming(&self, key: SegmentKey) -> bool {
        self.state()
            .segments
            .get(&key)
            .is_some_and(|segment| matches!(segment.body, Body::Coming { .. }))
    }

    /// The shape of a known segment.
    pub(super) fn shape(&self, key: SegmentKey) -> Option<Shape> {
        self.state()
            .segments
            .get(&key)
            .map(|segment| segment.lease.shape)
    }

    /// The size of a segment refused because all held ones are in use, while that is still so.
    pub(super) fn refused(&self, now: Instant) -> Option<u64> {
        self.state().refused(now)
    }

    /// Waits until more blocks of some segments can be made than before.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The number of rows, and of whole segments, since the changed segments were last taken.
    pub(super) fn news(&self) -> usize {
        self.state().news
    }

    /// The segments of which more blocks can be made than before. May be empty.
    pub(super) fn take_changed(&self) -> HashSet<SegmentKey> {
        let mut state = self.state();
        state.news = 0;
        std::mem::take(&mut state.changed)
    }

    /// Changes of the segments held since the last call.
    pub(super) fn take_untold(&self) -> Vec<Holding> {
        let untold = std::mem::take(&mut self.state().untold);
        untold
            .into_iter()
            .map(|((segment, coding), state)| Holding {
                segment,
                meant: Meant::Coded(coding),
                state,
            })
            .collect()
    }

    /// Adds to an incomplete generation.
    fn add(&self, cut: &Cut, generation: u32, put: impl FnOnce(&mut PartialGeneration)) {
        let mut state = self.state();
        let Some(key) = state.keys.get(cut).copied() else {
            return;
        };
        let Some(Segment {
            body: Body::Coming { parts, fetch },
            is_told,
            ..
        }) = state.segments.get_mut(&key)
        else {
            return;
        };
        let Some(part) = parts.get_mut(generation as usize) else {
            return;
        };
        put(part);
        if let Fetch::UnderWay { brought_at, .. } = fetch {
            *brought_at = Instant::now();
        }
        if !std::mem::replace(is_told, true) {
            state.note((cut.segment, cut.shape.coding()), HoldingState::Partial);
        }
        state.change(key);
        self.changed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, state: &State) {
        let held = state
            .segments
            .values()
            .filter(|segment| !matches!(segment.body, Body::Named))
            .count();
        self.metrics
            .segments
            .set(i64::try_from(held).unwrap_or(i64::MAX));
        self.metrics
            .held_bytes
            .set(i64::try_from(state.used).unwrap_or(i64::MAX));
    }
}

/// A fetch in progress. Dropping it before all bytes have arrived, for any reason, makes it a
/// failure.
#[derive(Debug)]
pub(super) struct Fetching {
    pub(super) holdings: Arc<Holdings>,
    pub(super) key: SegmentKey,
    pub(super) number: u64,
}

impl Fetching {
    /// Completes the segment with its verified bytes. Not for an async task.
    pub(super) fn complete(self, bytes: &Bytes) {
        self.holdings.complete(self.key, bytes);
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.holdings.fail(self.key, self.number, Instant::now());
    }
}

/// Puts what a client fetches into the holdings: requested segments, or all.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) holdings: Arc<Holdings>,
    pub(super) keeps_all: bool,
}

impl Listener for Keeper {
    fn brought(
        &self,
        cut: &Cut,
        generation: u32,
        source: SourceId,
        block: Block,
        is_checked: bool,
    ) {
        // A block tested only by its hashes is no reason to drop untested rows: tested rows arrive
        // all together.
        self.holdings.add(cut, generation, |part| {
            let is_checked = is_checked && part.is_checked;
            part.pending.push(News::Row {
                source,
                block,
                is_checked,
            });
        });
    }

    fn checked(&self, cut: &Cut, generation: u32, rows: Vec<Block>) {
        self.holdings.add(cut, generation, |part| {
            let before: u32 = part.held().values().sum();
            part.is_tainted |= u32::try_from(rows.len()).unwrap_or(u32::MAX) < before;
            part.is_checked = true;
            part.pending.retain(|news| news.count(Heap::Checked) > 0);
            part.pending.push(News::Checked(rows));
        });
    }

    fn hashed(&self, cut: &Cut, hashes: BlockHashes) {
        let key = self.holdings.state().keys.get(cut).copied();
        if let Some(key) = key {
            self.holdings.keep_hashes(key, hashes);
        }
    }

    fn begun(&self, meta: &Arc<Meta>) {
        if self.keeps_all
            && let Delivery::Coded(shape) = meta.delivery
        {
            // Without room it is not kept. If it gives way, the relay's own program gets it all the
            // same.
            let _ = self
                .holdings
                .start(self.holdings.name(meta, shape).lease.key, Instant::now());
        }
    }

    fn ended(&self, cut: &Cut, bytes: Option<&Bytes>) {
        let key = self
            .holdings
            .state()
            .keys
            .get(cut)
            .copied()
            .filter(|_| self.keeps_all);
        let Some(fetching) = key.and_then(|key| self.holdings.fetching(key)) else {
            return;
        };
        if let Some(bytes) = bytes.cloned() {
            tokio::task::spawn_blocking(move || fetching.complete(&bytes));
        }
    }
}

/// Memory of a whole segment.
fn whole_bytes(cut: &Cut) -> u64 {
    cut.shape.length() + cut.blocks.map_or(0, |_| BlockHashes::bytes(&cut.shape))
}

/// Memory of a coming segment's rows, beyond its length. Over the prime field, vectors may be
/// larger than blocks, and the client that fetches holds them too.
fn rows_bytes(shape: &Shape) -> u64 {
    let more = |generation: Generation| {
        let all_bytes = Rows::proven_bytes(&generation)?;
        let (all, payloads) = (
            all_bytes,
            u64::from(generation.coded_bytes()) * u64::from(generation.n),
        );
        Some((2 * all as u64 - payloads).saturating_sub(generation.length))
    };
    shape.iter().filter_map(more).sum()
}

fn hashes_of(bytes: &Bytes, shape: &Shape) -> BlockHashes {
    let Codec::RlncQ { group } = shape.codec() else {
        return BlockHashes::of(bytes, shape);
    };
    let blocks: Vec<&[u8]> = bytes.chunks(shape.block_bytes() as usize).collect();
    let hashes = Cores::all()
        .hash(group, shape.words(), &blocks)
        .expect("the CPU does not fail");
    BlockHashes::made(hashes.into(), shape)
}

impl PartialGeneration {
    /// A generation without rows.
    fn new(id: &SegmentId, generation: Generation) -> Self {
        Self {
            rows: Arc::new(Mutex::new(Rows::new(generation, row_key(id, &generation)))),
            pending: Vec::new(),
            given: BTreeMap::new(),
            ranks: BTreeMap::new(),
            n: generation.n.into(),
            // Blocks over the prime field are tested before they arrive here.
            is_checked: generation.codec.is_gfq(),
            is_tainted: false,
        }
    }

    /// The number of rows in each heap, as far as known.
    fn held(&self) -> BTreeMap<Heap, u32> {
        let mut held = self.ranks.clone();
        for (heap, rows) in self
            .given
            .iter()
            .map(|(heap, rows)| (*heap, *rows))
            .chain(counts(&self.pending))
        {
            *held.entry(heap).or_default() += rows;
        }
        held.retain(|heap, _| !self.is_checked || *heap == Heap::Checked);
        // Tested rows may have been counted before.
        held.values_mut()
            .for_each(|rows| *rows = (*rows).min(self.n));
        held
    }
}

/// The number of rows in each heap.
pub(super) fn counts(news: &[News]) -> BTreeMap<Heap, u32> {
    let mut counts = BTreeMap::new();
    for some in news {
        let heap = match some {
            News::Row {
                source,
                is_checked: false,
                ..
            } => Heap::Of(*source),
            News::Row { .. } | News::Checked(_) => Heap::Checked,
        };
        *counts.entry(heap).or_default() += u32::try_from(some.count(heap)).unwrap_or(u32::MAX);
    }
    counts
}

impl State {
    /// More blocks of this segment can be made than before.
    fn change(&mut self, key: SegmentKey) {
        self.changed.insert(key);
        self.news += 1;
    }

    /// Records a change to report.
    fn note(&mut self, segment: (SegmentId, Coding), state: HoldingState) {
        if self.tells {
            self.untold.insert(segment, state);
        }
    }

    /// A segment with a new lease.
    fn held(&mut self, key: SegmentKey) -> Option<Held> {
        self.clock += 1;
        let segment = self.segments.get_mut(&key)?;
        segment.used_at = self.clock;
        let is_recoded = !matches!(segment.body, Body::Whole(_));
        let first_pass = if is_recoded {
            FirstPass::Coded
        } else {
            FirstPass::Systematic
        };
        Some(Held {
            lease: segment.lease.renew()?,
            first_pass,
            row_weight: None,
            is_recoded,
            birth: None,
            path: Some(segment.meta.path.as_str().into()),
            blocks_digest: segment.signed_blocks(),
            tree: segment.meta.tree.clone(),
        })
    }

    /// Evicts segments, the least missed and of these the least recently used first, until there is
    /// room. A fetch ahead evicts nothing in use.
    fn make_room(&mut self, bytes: u64, now: Instant, is_ahead: bool) -> bool {
        if bytes > self.budget {
            return false;
        }
        while self.used + bytes > self.budget {
            let victim = if is_ahead {
                self.unused(now)
            } else {
                self.victim(now)
            };
            let Some(victim) = victim else {
                if !is_ahead {
                    self.refused = Some(bytes);
                }
                return false;
            };
            self.evict(victim);
        }
        true
    }

    /// Ends fetches ahead whose charges were revoked, and the oldest ones, until there is room for
    /// one more of this size.
    fn make_room_ahead(&mut self, bytes: u64) {
        loop {
            let ahead = self.segments.values().filter(|segment| segment.is_ahead());
            let (count, charged) = ahead.clone().fold((0, 0), |(count, sum), segment| {
                (count + 1, sum + segment.charged)
            });
            let is_full = count >= AHEAD_MAX || charged + bytes > self.budget / AHEAD_PART;
            let first = ahead.filter(|segment| is_full || segment.is_revoked());
            let Some(first) = first.min_by_key(|segment| (!segment.is_revoked(), segment.used_at))
            else {
                return;
            };
            self.evict(first.lease.key);
        }
    }

    /// The segment to evict first. If those in use take too much: the one with the fewest blocks
    /// sent for its memory.
    fn victim(&self, now: Instant) -> Option<SegmentKey> {
        let first = self.unused(now);
        if first.is_some() {
            return first;
        }
        let taking = || {
            self.segments
                .values()
                .filter(|segment| !matches!(segment.body, Body::Named))
        };
        if taking().map(|segment| segment.charged).sum::<u64>()
            <= self.budget - self.budget / KEPT_PART
        {
            return None;
        }
        let may_go = taking().filter(|segment| !segment.is_being_fetched());
        let pace = |segment: &Segment| {
            (u128::from(segment.lease.loan().pace(now)) << 32) / u128::from(segment.charged.max(1))
        };
        may_go
            .map(|segment| (pace(segment), segment.used_at, segment.lease.key))
            .min()
            .map(|(.., key)| key)
    }

    /// Of the segments with memory that are not in use, the one least missed.
    fn unused(&self, now: Instant) -> Option<SegmentKey> {
        let taking = self
            .segments
            .values()
            .filter(|segment| !matches!(segment.body, Body::Named));
        let ranked =
            taking.map(|segment| (segment.standing(now), segment.used_at, segment.lease.key));
        let first = ranked
            .filter(|(standing, ..)| *standing < Standing::InUse)
            .min();
        first.map(|(.., key)| key)
    }

    /// The size refused because all segments are in use, if that is still so.
    fn refused(&mut self, now: Instant) -> Option<u64> {
        let bytes = self.refused?;
        if self.used + bytes <= self.budget || self.victim(now).is_some() {
            self.refused = None;
        }
        self.refused
    }

    /// Limits the number of segments that are only named.
    fn forget_named(&mut self) {
        if self.segments.len() < NAMED_MAX {
            return;
        }
        let idle = |segment: &&Segment| {
            segment.lease.loan().leases() == 0 && matches!(segment.body, Body::Named)
        };
        let idle: Vec<SegmentKey> = self
            .segments
            .values()
            .filter(idle)
            .map(|segment| segment.lease.key)
            .collect();
        idle.into_iter().for_each(|key| self.remove(key));
    }

    /// Frees a segment's memory. If no blocks of it were sent, it stays named: a peer that was told
    /// of it may still want them.
    fn evict(&mut self, key: SegmentKey) {
        let is_new = |segment: &Segment| {
            segment.lease.loan().leases() == 0 && segment.lease.loan().used_at().is_none()
        };
        if self.segments.get(&key).is_some_and(is_new) {
            self.empty(key);
        } else {
            self.remove(key);
        }
    }

    /// Drops everything received of a segment.
    fn empty(&mut self, key: SegmentKey) {
        let Some(segment) = self
            .segments
            .get_mut(&key)
            .filter(|segment| !matches!(segment.body, Body::Named))
        else {
            return;
        };
        (segment.body, segment.hashes, segment.is_told) = (Body::Named, None, false);
        self.used -= std::mem::take(&mut segment.charged);
        self.changed.remove(&key);
        let name = (segment.lease.id, segment.lease.shape.coding());
        if self.named.get(&name) == Some(&key) {
            self.note(name, HoldingState::Gone);
        }
    }

    fn remove(&mut self, key: SegmentKey) {
        self.empty(key);
        let Some(segment) = self.segments.remove(&key) else {
            return;
        };
        segment.lease.loan().end();
        self.keys.remove(&segment.cut);
        let name = (segment.lease.id, segment.lease.shape.coding());
        if self.named.get(&name) == Some(&key) {
            // One with other hashes is found again when it is named again.
            self.named.remove(&name);
        }
    }

    /// Segments of this id, one per coding.
    fn named_of(&self, id: SegmentId) -> impl Iterator<Item = SegmentKey> {
        self.named
            .range((id, Coding::LEAST)..)
            .take_while(move |((other, _), _)| *other == id)
            .map(|(_, key)| *key)
    }
}

impl Segment {
    /// The digest of its blocks' hashes that the stream's key has signed, if any.
    fn signed_blocks(&self) -> Option<[u8; 32]> {
        self.cut.blocks
    }

    /// Its use. A fetch for a leased segment counts as in use.
    fn standing(&self, now: Instant) -> Standing {
        match &self.body {
            Body::Coming {
                fetch: Fetch::UnderWay { .. },
                ..
            } if !self.is_ahead() => Standing::InUse,
            Body::Coming {
                fetch: Fetch::UnderWay { brought_at, .. },
                ..
            } if now.saturating_duration_since(*brought_at) < ROWS_RECENT => Standing::Recent,
            _ => self.lease.loan().standing(now),
        }
    }

    fn is_being_fetched(&self) -> bool {
        matches!(
            self.body,
            Body::Coming {
                fetch: Fetch::UnderWay { .. },
                ..
            }
        )
    }

    /// Whether it is being fetched without a lease.
    fn is_ahead(&self) -> bool {
        self.is_being_fetched() && self.lease.loan().leases() == 0
    }

    /// Whether an account that its fetch ahead is charged to has revoked the charge.
    fn is_revoked(&self) -> bool {
        match &self.body {
            Body::Coming {
                fetch: Fetch::UnderWay { shares, .. },
                ..
            } => shares.iter().any(Share::is_revoked),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;
    use ncs_codec::block::Vector;
    use ncs_proto::object::{HashGroup, Signature};
    use ncs_serve::ring::SessionId;

    const ONE: SourceId = SourceId(1);

    fn holdings(budget: u64) -> Keeper {
        let holdings = Holdings::new(budget, true, Metrics::new(&Registry::new()).unwrap());
        Keeper {
            holdings: Arc::new(holdings),
            keeps_all: false,
        }
    }

    fn bytes() -> Bytes {
        (0..1000u32)
            .map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1])
            .collect()
    }

    /// A segment over the prime field with generations of up to `n_max` blocks, and this digest of
    /// hashes.
    fn meta(n_max: u16, blocks: [u8; 32]) -> (Arc<Meta>, Shape) {
        let (bytes, codec) = (
            bytes(),
            Codec::RlncQ {
                group: HashGroup::P1024,
            },
        );
        let shape = Shape::new(1000, 64, n_max)
            .unwrap()
            .coded_with(codec)
            .unwrap();
        let meta = Meta {
            request: 1,
            path: "/a/b".to_owned(),
            id: SegmentId::of_coded(&bytes, codec),
            offset: 0,
            length: 1000,
            object_length: Some(1000),
            version: 1,
            max_age_ms: 0,
            content_type: String::new(),
            delivery: Delivery::Coded(shape),
            signature: Some(Signature {
                key: [1; 32],
                issued_ms: 1,
                blocks,
                bytes: [0; 64],
            }),
            tree: None,
        };
        (Arc::new(meta), shape)
    }

    fn plain_bytes(number: usize) -> Bytes {
        bytes()
            .iter()
            .map(|byte| byte.wrapping_add(u8::try_from(number).unwrap()))
            .collect()
    }

    /// A different segment for each number.
    fn plain(number: usize) -> (Arc<Meta>, Shape) {
        let shape = Shape::new(1000, 64, 16).unwrap();
        let (meta, _) = meta(8, [0; 32]);
        let (id, path) = (SegmentId::of(&plain_bytes(number)), format!("/a/{number}"));
        (
            Arc::new(Meta {
                id,
                path,
                delivery: Delivery::Coded(shape),
                signature: None,
                ..Meta::clone(&meta)
            }),
            shape,
        )
    }

    /// A source block in the form of a recoded one.
    fn block(n: u16, index: u16) -> Block {
        let at = usize::from(index) * 64;
        let vector = (0..n)
            .flat_map(|column| [&[0; 32][..], &[u8::from(column == index)]].concat())
            .collect();
        Block {
            vector: Vector::Wide(vector),
            payload: [&bytes()[at..at + 64], &[0]].concat().into(),
        }
    }

    fn rows(keeper: &Keeper, segment: SegmentKey) -> u32 {
        match keeper.holdings.supply(GenerationKey { segment, index: 0 }) {
            Supply::Rows { held, .. } => held.values().sum(),
            Supply::None => 0,
            other => panic!("{other:?}"),
        }
    }

    /// Two of three segments fit: those in use stay as long as blocks of them leave.
    #[test]
    fn what_sessions_do_not_read_gives_way() {
        let metas: Vec<(Arc<Meta>, Shape)> = (0..3).map(plain).collect();
        let keeper = holdings(2 * 1000 + 700);
        let holdings = &keeper.holdings;
        let held: Vec<Held> = metas
            .iter()
            .map(|(meta, shape)| holdings.name(meta, *shape))
            .collect();
        let now = Instant::now();
        let whole = |number: usize, now| {
            let is_begun = holdings.start(held[number].lease.key, now).is_some();
            if is_begun {
                holdings.complete(held[number].lease.key, &plain_bytes(number));
            }
            is_begun
        };
        assert!(whole(0, now) && whole(1, now));
        assert!(
            !whole(2, now) && holdings.refused(now) == Some(1000),
            "both have just come"
        );
        let later = now + Duration::from_secs(60);
        held[0].lease.note_used(later, 1);
        assert_eq!(
            holdings.refused(later),
            None,
            "blocks of the second have not left for long"
        );
        assert!(whole(2, later));
        assert!(held[1].lease.is_void() && !held[0].lease.is_void() && !held[2].lease.is_void());
    }

    /// Segments in use have three quarters; beyond that, the one read slowest goes.
    #[test]
    fn a_newcomer_finds_room_though_all_is_read() {
        let metas: Vec<(Arc<Meta>, Shape)> = (0..4).map(plain).collect();
        let keeper = holdings(3 * 1000);
        let holdings = &keeper.holdings;
        let held: Vec<Held> = metas
            .iter()
            .map(|(meta, shape)| holdings.name(meta, *shape))
            .collect();
        let now = Instant::now();
        for (number, held) in held.iter().enumerate() {
            if number == 3 {
                assert!(
                    holdings
                        .start_ahead(held.lease.key, now, &asker(1 << 20))
                        .is_none(),
                    "before its blocks are wanted"
                );
                assert!(
                    holdings.start(held.lease.key, now).is_some(),
                    "room for a newcomer"
                );
                break;
            }
            assert!(holdings.start(held.lease.key, now).is_some());
            assert!(
                number > 0 || holdings.state().victim(now).is_none(),
                "what is being fetched stays"
            );
            holdings.complete(held.lease.key, &plain_bytes(number));
            held.lease
                .note_used(now, if number == 1 { 1 << 10 } else { 20 << 10 });
        }
        assert_eq!(
            [0, 1, 2].map(|number| held[number].lease.is_void()),
            [false, true, false]
        );
    }

    /// Ledgers of a new session that may keep this many bytes in memory.
    fn asker(most: u64) -> Ledgers {
        Ledgers::new(
            SessionId(1),
            &ncs_serve::session::proto::Config {
                leased_bytes_max: most,
                ..Default::default()
            },
        )
    }

    /// The keys of different segments that a source has named and nobody leases.
    fn named(holdings: &Holdings, count: usize) -> Vec<SegmentKey> {
        (0..count)
            .map(plain)
            .map(|(meta, shape)| holdings.name(&meta, shape).lease.key)
            .collect()
    }

    /// Whether its fetch is in progress.
    fn comes(holdings: &Holdings, key: SegmentKey) -> bool {
        holdings.state().segments[&key].is_being_fetched()
    }

    #[test]
    fn fetches_that_nobody_leases_pin_no_memory() {
        let Keeper { holdings, .. } = holdings(4 * 1000);
        let (keys, now) = (named(&holdings, 7), Instant::now());
        let mut ahead: Vec<Begun> = keys[..3]
            .iter()
            .filter_map(|key| holdings.start_ahead(*key, now, &asker(1 << 20)))
            .collect();
        assert_eq!(ahead.len(), 3);
        assert_eq!(
            holdings.state().used,
            2 * 1000,
            "they have half of the budget"
        );
        assert!(
            ahead[0].until.try_recv() == Err(TryRecvError::Closed)
                && ahead[1].until.try_recv() == Err(TryRecvError::Empty)
        );
        // Blocks of the others are requested. Those stay, though no rows arrive.
        let leased: Vec<Held> = (3..7)
            .map(plain)
            .map(|(meta, shape)| holdings.name(&meta, shape))
            .collect();
        let later = now + Duration::from_secs(60);
        leased
            .iter()
            .for_each(|held| assert!(holdings.start(held.lease.key, later).is_some()));
        assert_eq!(holdings.state().used, 4 * 1000);
        ahead
            .iter_mut()
            .for_each(|begun| assert_eq!(begun.until.try_recv(), Err(TryRecvError::Closed)));
        // A segment that gave way stays known to peers that were told of it.
        assert!(
            keys[..3]
                .iter()
                .all(|key| !comes(&holdings, *key) && holdings.shape(*key).is_some())
        );
        assert!(holdings.start(keys[0], later).is_none() && holdings.refused(later) == Some(1000));
    }

    #[test]
    fn fetches_ahead_are_counted_with_those_who_ask() {
        let Keeper { holdings, .. } = holdings(1 << 20);
        let (keys, now, one) = (named(&holdings, 4), Instant::now(), asker(2000));
        assert!(
            keys[..2]
                .iter()
                .all(|key| holdings.start_ahead(*key, now, &one).is_some())
        );
        assert!(
            holdings.start_ahead(keys[2], now, &one).is_none(),
            "it has two already"
        );
        assert!(
            holdings.start_ahead(keys[3], now, &asker(2000)).is_some(),
            "another has none"
        );
        // An unread segment makes room for another of the same session.
        let later = now + Duration::from_secs(2);
        assert!(holdings.start_ahead(keys[2], later, &one).is_some());
        assert_eq!(
            [0, 1, 2, 3].map(|number| comes(&holdings, keys[number])),
            [false, true, true, true]
        );
        // A failed or finished fetch is no longer charged.
        drop([1, 2].map(|number: usize| holdings.fetching(keys[number])));
        let last = later + PAUSE + Duration::from_secs(60);
        assert!(
            keys[1..3]
                .iter()
                .all(|key| holdings.start_ahead(*key, last, &one).is_some())
        );
    }

    #[test]
    fn a_fetch_whose_task_panics_has_failed() {
        let Keeper { holdings, .. } = holdings(1000);
        let (keys, now) = (named(&holdings, 1), Instant::now());
        assert!(holdings.start(keys[0], now).is_some() && holdings.start(keys[0], now).is_none());
        let fetching = holdings.fetching(keys[0]).unwrap();
        let panicked = std::thread::spawn(move || {
            let _fetching = fetching;
            panic!("as completing might");
        });
        assert!(panicked.join().is_err() && !comes(&holdings, keys[0]));
        let later = Instant::now() + PAUSE;
        let begun = holdings.start(keys[0], later).expect("it is begun again");
        // The rest of the first fetch ends nothing.
        drop(Fetching {
            holdings: Arc::clone(&holdings),
            key: keys[0],
            number: begun.number - 1,
        });
        assert!(comes(&holdings, keys[0]));
    }

    /// Rows of a fetch belong to what it fetched: other shapes, or other signed hashes, are never
    /// mixed.
    #[test]
    fn the_same_bytes_that_are_named_in_two_ways_are_kept_apart() {
        let keeper = holdings(1 << 30);
        let named: Vec<(Cut, SegmentKey)> = [(8, [1; 32]), (4, [1; 32]), (8, [2; 32])]
            .into_iter()
            .map(|(n_max, blocks)| {
                let (meta, shape) = meta(n_max, blocks);
                let held = keeper.holdings.name(&meta, shape);
                assert!(
                    keeper
                        .holdings
                        .start(held.lease.key, Instant::now())
                        .is_some()
                );
                assert_eq!(
                    keeper
                        .holdings
                        .find(&meta.id, None, None)
                        .unwrap()
                        .lease
                        .key,
                    held.lease.key,
                    "the last is the one that is meant"
                );
                assert_eq!(
                    keeper.holdings.name(&meta, shape).lease.key,
                    held.lease.key,
                    "it is known"
                );
                (Cut::of(&meta, shape), held.lease.key)
            })
            .collect();
        let (first, shape) = (named[0].0, named[0].0.shape);
        for (cut, key) in &named {
            let found = keeper
                .holdings
                .find(&cut.segment, None, Some(*key))
                .unwrap();
            assert_eq!(found.lease.key, *key, "but for who was told of another");
            let found = keeper
                .holdings
                .find(&cut.segment, Some(cut.shape.coding()), Some(named[1].1))
                .unwrap();
            assert_eq!(
                found.lease.shape, cut.shape,
                "a coding that is named counts more"
            );
        }
        let other = Coding {
            n_max: 5,
            ..first.shape.coding()
        };
        assert!(
            keeper
                .holdings
                .find(&first.segment, Some(other), Some(named[0].1))
                .is_none(),
            "nobody has named such a one"
        );
        assert!(
            keeper
                .holdings
                .find(&SegmentId::of(b""), None, Some(named[0].1))
                .is_none(),
            "it has another id"
        );
        keeper.brought(&first, 0, ONE, block(8, 0), true);
        keeper.hashed(&first, hashes_of(&bytes(), &shape));
        assert_eq!(
            named
                .iter()
                .map(|(_, key)| rows(&keeper, *key))
                .collect::<Vec<_>>(),
            [1, 0, 0]
        );
        let hashed: Vec<bool> = named
            .iter()
            .map(|(_, key)| keeper.holdings.hashes(*key).is_some())
            .collect();
        assert_eq!(hashed, [true, false, false]);
        // It is not reported as gone while another segment of the same name is there.
        keeper.holdings.take_untold();
        keeper.holdings.state().remove(named[0].1);
        let coding = Some(first.shape.coding());
        assert!(
            keeper.holdings.take_untold().is_empty()
                && keeper
                    .holdings
                    .find(&first.segment, coding, Some(named[0].1))
                    .is_some()
        );
        for (cut, key) in [named[2], named[1]] {
            keeper.holdings.state().remove(key);
            assert!(
                keeper
                    .holdings
                    .find(&cut.segment, Some(cut.shape.coding()), None)
                    .is_none()
            );
            let (meant, state) = (Meant::Coded(cut.shape.coding()), HoldingState::Gone);
            assert_eq!(
                keeper.holdings.take_untold(),
                [Holding {
                    segment: cut.segment,
                    meant,
                    state
                }]
            );
        }
    }

    #[test]
    fn who_has_all_of_a_segment_has_its_hashes() {
        let keeper = holdings(1 << 30);
        let right = hashes_of(&bytes(), &meta(8, [0; 32]).1);
        for (blocks, expected) in [(right.digest(), Some(right.as_bytes())), ([1; 32], None)] {
            let (meta, shape) = meta(8, blocks);
            let key = keeper.holdings.name(&meta, shape).lease.key;
            keeper.holdings.start(key, Instant::now());
            keeper.holdings.complete(key, &bytes());
            assert_eq!(keeper.holdings.hashes(key).as_ref(), expected);
        }
    }
    /// The size of rows beyond their payloads is known before the first arrives.
    #[test]
    fn a_segment_over_the_prime_field_is_charged_with_what_its_rows_take() {
        let (meta, shape) = meta(8, [1; 32]);
        // Two generations of eight blocks: payloads, hashes, and twice the vectors, as received and
        // as eliminated.
        let vectors = 2 * (8 * 8 + 8 * 9 / 2) * 40;
        let (coming, whole) = (2 * (8 * 65 + vectors) + 16 * 128, 1000 + 16 * 128);
        assert_eq!(
            rows_bytes(&shape) + whole_bytes(&Cut::of(&meta, shape)),
            coming
        );
        for (budget, fits) in [(coming - 1, false), (coming, true)] {
            let keeper = holdings(budget);
            let key = keeper.holdings.name(&meta, shape).lease.key;
            assert_eq!(keeper.holdings.start(key, Instant::now()).is_some(), fits);
            let used = || keeper.holdings.state().used;
            assert_eq!(used(), if fits { coming } else { 0 });
            keeper.hashed(&Cut::of(&meta, shape), hashes_of(&bytes(), &shape));
            assert_eq!(
                used(),
                if fits { coming } else { 0 },
                "hashes are reckoned with"
            );
            if fits {
                keeper.holdings.complete(key, &bytes());
                assert_eq!(
                    (used(), keeper.holdings.metrics.held_bytes.get()),
                    (whole, i64::try_from(whole).unwrap())
                );
            }
            keeper.holdings.state().remove(key);
            assert_eq!(used(), 0);
        }
        let plain = Shape::new(1000, 64, 8).unwrap();
        assert_eq!(rows_bytes(&plain), 0);
    }
}
