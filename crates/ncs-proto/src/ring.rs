//! The ring's books as a plain value: which coded blocks are wanted, by whom, and which are ready.
//!
//! A *line* is the demand and the ready blocks of one generation. Sessions register demand for a
//! line and claim ready blocks. The encoder takes orders, which are the difference, and publishes
//! the blocks that it has made. When there is less than is wanted, the blocks that are due first
//! are made first, and the session with the earliest deadline gets them; of equals the one that has
//! waited longest. Demand and supply are counted in blocks, so that every operation costs about the
//! same for any number of sessions, except for `max_reuse` above one.
//!
//! A segment is *parked* while its blocks cannot be made: its demand is kept, and is no order until
//! it is resumed. A single line can be *held* in the same way.
//!
//! Coded blocks of a generation serve any session and lie in one line, or in two: sparse rows
//! travel as explicit vectors, and a peer that does not take these gets dense rows. Source blocks,
//! and parity blocks of Reed-Solomon, are ordered by number for one session, and lie in a line of
//! that session. So do recoded blocks, because a relay without the whole generation has no more for
//! a session than its own rows.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::num::NonZeroU16;
use std::ops::Range;
use std::task::Waker;

use ncs_codec::block::ELEMENT_BYTES;

use crate::object::{Codec, GenerationKey, SegmentKey};
use crate::time::Instant;

/// Bytes before a block's payload in its slot: room for the header of a block with a seed or an
/// index (10 bytes) and a cache line of alignment.
pub const HEADROOM: usize = 64;

/// The same where the header ends with this many bytes of coefficients: [`HEADROOM`] for few of
/// them, and always a multiple of it.
pub const fn headroom(coefficients: usize) -> usize {
    (HEAD_MAX + coefficients).next_multiple_of(HEADROOM)
}

/// Bytes of a header in front of its coefficients: 6 at most.
const HEAD_MAX: usize = 16;

/// A session in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// One line of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LineKey {
    /// Its generation.
    pub generation: GenerationKey,
    /// The kind of its blocks.
    pub kind: LineKind,
}

/// The kind of blocks in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LineKind {
    /// Coded blocks of dense rows, for any session.
    Coded,
    /// Coded blocks of rows with this many non-zero coefficients, for any session.
    Sparse(NonZeroU16),
    /// Blocks that this session ordered by their numbers: source blocks, and parity blocks behind
    /// them.
    Source(SessionId),
    /// Recoded blocks for this session.
    Recoded(SessionId),
}

impl LineKind {
    /// The kind of coded blocks of a generation of `n` blocks whose rows have this many non-zero
    /// coefficients. As many as `n` make a row dense.
    pub fn coded(row_weight: Option<NonZeroU16>, n: u16) -> Self {
        row_weight
            .filter(|weight| weight.get() < n)
            .map_or(Self::Coded, Self::Sparse)
    }

    /// Room that slots of a segment with this code need in front of the payload, for coded blocks
    /// of this kind with rows of `n` or fewer coefficients.
    pub fn headroom(self, codec: Codec, n: u16) -> usize {
        let n = usize::from(n);
        match (codec, self) {
            // All of them travel with their coefficients.
            (Codec::RlncQ { .. }, Self::Recoded(_)) => headroom(ELEMENT_BYTES * n),
            (Codec::RlncQ { .. }, _) => headroom(4 * n),
            _ if self.is_explicit() => headroom(n),
            _ => HEADROOM,
        }
    }

    /// Whether its blocks travel with their coefficients.
    pub fn is_explicit(self) -> bool {
        matches!(self, Self::Sparse(_) | Self::Recoded(_))
    }

    /// Whether its blocks serve any session.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::Coded | Self::Sparse(_))
    }

    /// Whether one of its blocks serves several sessions, where up to this many are allowed.
    pub fn is_reused(self, max_reuse: u32) -> bool {
        max_reuse > 1 && self.is_shared()
    }

    /// Whether blocks are ordered by their numbers, not by how many are wanted.
    fn is_source(self) -> bool {
        matches!(self, Self::Source(_))
    }
}

/// Blocks that the encoder is to make next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Their line.
    pub line: LineKey,
    /// Their kind and number.
    pub blocks: Blocks,
}

impl Order {
    /// The part of it that fits this many slots, and the rest.
    pub fn split(self, slots: usize) -> (Option<Self>, Option<Self>) {
        let Self { line, blocks } = self;
        let with = |blocks: Blocks| (blocks.count() > 0).then_some(Self { line, blocks });
        match blocks {
            Blocks::Coded(count) => {
                let now = count.min(u32::try_from(slots).unwrap_or(u32::MAX));
                (with(Blocks::Coded(now)), with(Blocks::Coded(count - now)))
            }
            Blocks::Source(mut indices) => {
                let rest = indices.split_off(slots.min(indices.len()));
                (with(Blocks::Source(indices)), with(Blocks::Source(rest)))
            }
        }
    }
}

/// The blocks of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blocks {
    /// This many coded blocks.
    Coded(u32),
    /// Blocks by their numbers.
    Source(Vec<u16>),
}

impl Blocks {
    /// The number of blocks.
    pub fn count(&self) -> u32 {
        match self {
            Self::Coded(count) => *count,
            Self::Source(indices) => {
                u32::try_from(indices.len()).expect("an order has at most a generation of them")
            }
        }
    }
}

/// The books. `T` is a ready block.
#[derive(Debug)]
pub struct Board<T> {
    lines: HashMap<LineKey, Line<T>>,
    /// Lines with blocks to make, the most urgent first, and of equals those that have waited
    /// longest.
    hungry: BTreeMap<Place, LineKey>,
    next_place: u64,
    /// Parked segments, and which of their lines have blocks to make. May name lines that are gone.
    parked: HashMap<SegmentKey, HashSet<LineKey>>,
    /// Held lines, by their segments. May name lines that are gone.
    held: HashMap<SegmentKey, HashSet<LineKey>>,
    max_reuse: u32,
    /// Hands out a block and keeps it at once, where `max_reuse` is above one.
    share: fn(&T) -> Option<T>,
    ready: usize,
    spare: usize,
    needed: u64,
    clock: u64,
    encoder: Option<Waker>,
    /// Sessions to wake once the books are unlocked.
    woken: Vec<Waker>,
}

/// How soon blocks of a line are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    /// By a session, at this time.
    Wanted(Instant),
    /// By no session yet.
    Spare,
}

/// A line's place in the queue.
type Place = (Urgency, u64);

#[derive(Debug)]
struct Line<T> {
    ready: VecDeque<Ready<T>>,
    next_number: u64,
    making: u32,
    /// The number of ready blocks to keep without demand.
    floor: u32,
    wants: HashMap<SessionId, Want>,
    wanted: u64,
    /// Ordered source blocks that the encoder has not taken yet.
    to_make: VecDeque<Range<u16>>,
    /// Sessions that want blocks, and those of them to be woken for the next ones, each by their
    /// deadlines.
    wanting: BTreeSet<(Instant, SessionId)>,
    waiters: BTreeMap<(Instant, SessionId), Waker>,
    /// Ready blocks reserved for the sessions that were woken.
    promised: usize,
    /// Blocks to make, as counted in [`Board::needed`], and its place in the queue for that.
    need: u32,
    place: Option<Place>,
    /// Its surplus, as counted in [`Board::spare`].
    spare: usize,
    published_at: u64,
    /// Blocks that sessions have reported lost, since the last call of [`Board::take_lost`].
    lost: u32,
}

#[derive(Debug)]
struct Ready<T> {
    number: u64,
    uses_left: u32,
    block: T,
}

#[derive(Debug)]
struct Want {
    blocks: u32,
    deadline: Instant,
    /// Ready blocks reserved for it.
    promised: u32,
    /// This session has seen the blocks before this number.
    cursor: u64,
}

impl<T> Board<T> {
    /// Empty books, where a coded block serves up to `max_reuse` sessions, each but the last with a
    /// copy from `share`.
    pub fn new(max_reuse: u32, share: fn(&T) -> Option<T>) -> Self {
        let (lines, parked) = (HashMap::new(), HashMap::new());
        Self {
            lines,
            hungry: BTreeMap::new(),
            next_place: 0,
            parked,
            held: HashMap::new(),
            max_reuse: max_reuse.max(1),
            share,
            ready: 0,
            spare: 0,
            needed: 0,
            clock: 0,
            encoder: None,
            woken: Vec::new(),
        }
    }

    /// Sessions to wake because of the calls since the last one of this.
    pub fn take_woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }

    /// Registers a session's demand for this many more blocks of a line of coded ones. The deadline
    /// is the first that it names as long as it wants some.
    pub fn want_coded(&mut self, session: SessionId, key: LineKey, blocks: u32, deadline: Instant) {
        self.line(key).add_want(session, blocks, deadline);
        self.settle(key);
    }

    /// Registers a session's demand for source blocks of a generation.
    pub fn want_source(
        &mut self,
        session: SessionId,
        generation: GenerationKey,
        blocks: Range<u16>,
        deadline: Instant,
    ) {
        let key = LineKey {
            generation,
            kind: LineKind::Source(session),
        };
        let line = self.line(key);
        line.add_want(
            session,
            u32::from(blocks.end.saturating_sub(blocks.start)),
            deadline,
        );
        line.to_make.push_back(blocks);
        self.settle(key);
    }

    /// Moves the deadline of a session's remaining demand for a line.
    pub fn reschedule(&mut self, session: SessionId, key: LineKey, deadline: Instant) {
        let Some(line) = self.lines.get_mut(&key) else {
            return;
        };
        line.reschedule(session, deadline);
        self.settle(key);
    }

    /// Takes up to `max` ready blocks for a session that wants them. If there are none, it is woken
    /// when there are.
    pub fn claim(&mut self, session: SessionId, key: LineKey, max: u32, waker: &Waker) -> Vec<T> {
        let (max_reuse, share) = (self.max_reuse, self.share);
        let Some(line) = self.lines.get_mut(&key) else {
            return Vec::new();
        };
        let wanted = line
            .wants
            .get(&session)
            .map_or(0, |want| want.blocks)
            .min(max);
        if wanted == 0 {
            return Vec::new();
        }
        let before = line.ready.len();
        let is_reused = key.kind.is_reused(max_reuse);
        let claimed = if is_reused {
            line.take_shared(session, wanted, share)
        } else {
            line.take(session, wanted)
        };
        self.ready -= before - line.ready.len();
        line.satisfy(session, claimed.len());
        if claimed.is_empty() {
            line.wait(session, waker);
        } else {
            line.pass_on(is_reused, &mut self.woken);
        }
        self.settle(key);
        claimed
    }

    /// Drops the remaining demand of a session for a line.
    pub fn leave(&mut self, session: SessionId, key: LineKey) {
        let Some(line) = self.lines.get_mut(&key) else {
            return;
        };
        if let Some(want) = line.wants.remove(&session) {
            line.wanted -= u64::from(want.blocks);
            line.promised -= want.promised as usize;
            line.wanting.remove(&(want.deadline, session));
            line.waiters.remove(&(want.deadline, session));
        }
        if !key.kind.is_shared() {
            line.to_make.clear();
            self.ready -= line.ready.len();
            line.ready.clear();
            if let Some(held) = self.held.get_mut(&key.generation.segment) {
                held.remove(&key);
            }
        }
        line.pass_on(key.kind.is_reused(self.max_reuse), &mut self.woken);
        self.settle(key);
    }

    /// Keeps this many blocks of a line of coded ones ready without demand; 0 ends that.
    pub fn keep_ready(&mut self, key: LineKey, blocks: u32) {
        self.line(key).floor = blocks;
        self.settle(key);
    }

    /// The number of blocks to make. If there are none, `waker` is woken when there are.
    pub fn needed(&mut self, waker: &Waker) -> u64 {
        if self.needed == 0 {
            self.encoder = Some(waker.clone());
        }
        self.needed
    }

    /// Takes orders of at most `max` blocks in all, of the most urgent lines.
    pub fn take_orders(&mut self, max: u32) -> Vec<Order> {
        let mut orders = Vec::new();
        let mut room = max;
        while room > 0 {
            let Some((_, key)) = self.hungry.pop_first() else {
                break;
            };
            let Some(line) = self.lines.get_mut(&key) else {
                continue;
            };
            line.place = None;
            if let Some(waiting) = self.parked.get_mut(&key.generation.segment) {
                waiting.insert(key);
                self.needed -= u64::from(std::mem::take(&mut line.need));
                continue;
            }
            let count = line.need.min(room);
            if count == 0 {
                continue;
            }
            orders.push(Order {
                line: key,
                blocks: line.start(key, count),
            });
            room -= count;
            // The rest of the line's need goes behind that of others with the same urgency.
            self.needed -= u64::from(line.need);
            line.need = 0;
            self.settle(key);
        }
        orders
    }

    /// An order was not made: its blocks stay wanted.
    pub fn give_up(&mut self, order: &Order) {
        let Some(line) = self.lines.get_mut(&order.line) else {
            return;
        };
        line.making = line.making.saturating_sub(order.blocks.count());
        if let Blocks::Source(indices) = &order.blocks {
            indices
                .iter()
                .rev()
                .for_each(|index| line.to_make.push_front(*index..index.saturating_add(1)));
        }
        self.settle(order.line);
    }

    /// Parks the segment of an order that cannot be made now. All demand for it is kept until it is
    /// resumed.
    ///
    /// Its other lines are taken out of the queue as they come to its head, so this costs the same
    /// for any number of lines.
    pub fn park(&mut self, order: &Order) {
        self.parked
            .entry(order.line.generation.segment)
            .or_default();
        self.give_up(order);
    }

    /// Holds the line of an order that cannot be made now. Its demand is kept until the segment is
    /// resumed.
    pub fn hold(&mut self, order: &Order) {
        self.held
            .entry(order.line.generation.segment)
            .or_default()
            .insert(order.line);
        self.give_up(order);
    }

    /// Blocks of a segment can be made again.
    pub fn resume(&mut self, segment: SegmentKey) {
        let held = self.held.remove(&segment).into_iter().flatten();
        for key in self
            .parked
            .remove(&segment)
            .into_iter()
            .flatten()
            .chain(held)
        {
            self.settle(key);
        }
    }

    /// Blocks of a line have not arrived. If it was held, more may be made now.
    pub fn note_lost(&mut self, key: LineKey, blocks: u32) {
        let Some(line) = self.lines.get_mut(&key) else {
            return;
        };
        line.lost = line.lost.saturating_add(blocks);
        if self
            .held
            .get_mut(&key.generation.segment)
            .is_some_and(|held| held.remove(&key))
        {
            self.settle(key);
        }
    }

    /// Blocks of a line that have not arrived, since the last call.
    pub fn take_lost(&mut self, key: LineKey) -> u32 {
        self.lines
            .get_mut(&key)
            .map_or(0, |line| std::mem::take(&mut line.lost))
    }

    /// Resumes all parked segments.
    pub fn resume_all(&mut self) {
        for key in std::mem::take(&mut self.parked).into_values().flatten() {
            self.settle(key);
        }
    }

    /// Takes blocks from the encoder, in the order of the orders. Returns those that no session can
    /// have any more.
    pub fn publish(&mut self, key: LineKey, blocks: Vec<T>) -> Vec<T> {
        self.clock += 1;
        let (clock, uses_left) = (
            self.clock,
            if key.kind.is_shared() {
                self.max_reuse
            } else {
                1
            },
        );
        let Some(line) = self.lines.get_mut(&key) else {
            return blocks;
        };
        let count = u32::try_from(blocks.len()).expect("a batch is bounded");
        line.making = line.making.saturating_sub(count);
        if !key.kind.is_shared() && line.wants.is_empty() {
            self.settle(key);
            return blocks;
        }
        line.published_at = clock;
        for block in blocks {
            line.ready.push_back(Ready {
                number: line.next_number,
                uses_left,
                block,
            });
            line.next_number += 1;
        }
        self.ready += count as usize;
        if uses_left > 1 {
            line.wake_for(u64::from(count) * u64::from(uses_left), &mut self.woken);
        } else {
            line.promise(&mut self.woken);
        }
        self.settle(key);
        Vec::new()
    }

    /// Removes up to `count` ready blocks without demand, from the lines that were served longest
    /// ago and whose blocks are `of_use`: those of a line are alike.
    pub fn drop_unwanted(&mut self, count: usize, of_use: impl Fn(&T) -> bool) -> Vec<T> {
        let has_some = |line: &Line<T>| {
            line.surplus() > 0 && line.ready.front().is_some_and(|ready| of_use(&ready.block))
        };
        let idle = self.lines.iter().filter(|(_, line)| has_some(line));
        let mut idle: Vec<_> = idle.map(|(key, line)| (line.published_at, *key)).collect();
        idle.sort_unstable_by_key(|(at, _)| *at);
        let mut dropped = Vec::new();
        for (_, key) in idle {
            let Some(line) = self.lines.get_mut(&key) else {
                continue;
            };
            let take = line.surplus().min(count - dropped.len());
            dropped.extend(line.ready.drain(..take).map(|ready| ready.block));
            // They are not to be made again at once: the room is needed elsewhere.
            line.floor = 0;
            self.ready -= take;
            self.settle(key);
            if dropped.len() == count {
                break;
            }
        }
        dropped
    }

    /// A segment is gone: its ready blocks are returned, and no session gets more of it.
    pub fn forget(&mut self, segment: SegmentKey) -> Vec<T> {
        self.parked.remove(&segment);
        self.held.remove(&segment);
        let keys: Vec<_> = self
            .lines
            .keys()
            .filter(|key| key.generation.segment == segment)
            .copied()
            .collect();
        let mut dropped = Vec::new();
        for line in keys
            .iter()
            .filter_map(|key| self.lines.remove(key))
            .collect::<Vec<_>>()
        {
            self.ready -= line.ready.len();
            self.needed -= u64::from(line.need);
            self.spare -= line.spare;
            line.place.map(|place| self.hungry.remove(&place));
            dropped.extend(line.ready.into_iter().map(|ready| ready.block));
            self.woken.extend(line.waiters.into_values());
        }
        dropped
    }

    /// Ready blocks in all lines.
    pub fn ready(&self) -> usize {
        self.ready
    }

    /// Blocks to make.
    pub fn to_make(&self) -> u64 {
        self.needed
    }

    /// Ready blocks without demand.
    pub fn spare(&self) -> usize {
        self.spare
    }

    /// Lines with demand or blocks.
    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    fn line(&mut self, key: LineKey) -> &mut Line<T> {
        self.lines.entry(key).or_insert_with(Line::new)
    }

    /// Updates the order book after any change to a line, and forgets the line if nothing is left
    /// of it.
    fn settle(&mut self, key: LineKey) {
        let max_reuse = self.max_reuse;
        let Some(line) = self.lines.get_mut(&key) else {
            return;
        };
        let mut need = line.count_need(key.kind, max_reuse);
        if need > 0
            && let Some(waiting) = self.parked.get_mut(&key.generation.segment)
        {
            waiting.insert(key);
            need = 0;
        }
        if need > 0
            && self
                .held
                .get(&key.generation.segment)
                .is_some_and(|held| held.contains(&key))
        {
            need = 0;
        }
        let before = std::mem::replace(&mut line.need, need);
        self.needed = self.needed + u64::from(line.need) - u64::from(before);
        if before == 0 && line.need > 0 {
            self.woken.extend(self.encoder.take());
        }
        let urgency = (line.need > 0).then(|| line.urgency());
        if line.place.map(|(urgency, _)| urgency) != urgency {
            line.place.take().map(|place| self.hungry.remove(&place));
            if let Some(urgency) = urgency {
                let place = (urgency, self.next_place);
                self.next_place += 1;
                line.place = Some(place);
                self.hungry.insert(place, key);
            }
        }
        let spare = line.surplus();
        self.spare = self.spare + spare - std::mem::replace(&mut line.spare, spare);
        if line.is_idle() {
            self.lines.remove(&key);
        }
    }
}

impl<T> Line<T> {
    fn new() -> Self {
        Self {
            ready: VecDeque::new(),
            next_number: 0,
            making: 0,
            floor: 0,
            wants: HashMap::new(),
            wanted: 0,
            to_make: VecDeque::new(),
            wanting: BTreeSet::new(),
            waiters: BTreeMap::new(),
            promised: 0,
            need: 0,
            place: None,
            spare: 0,
            published_at: 0,
            lost: 0,
        }
    }

    fn add_want(&mut self, session: SessionId, blocks: u32, deadline: Instant) {
        let want = self.wants.entry(session).or_insert(Want {
            blocks: 0,
            deadline,
            promised: 0,
            cursor: 0,
        });
        if want.blocks == 0 {
            want.deadline = deadline;
        }
        want.blocks += blocks;
        self.wanted += u64::from(blocks);
        if want.blocks > 0 {
            self.wanting.insert((want.deadline, session));
        }
    }

    fn reschedule(&mut self, session: SessionId, deadline: Instant) {
        let Some(want) = self.wants.get_mut(&session) else {
            return;
        };
        let before = std::mem::replace(&mut want.deadline, deadline);
        if self.wanting.remove(&(before, session)) {
            self.wanting.insert((deadline, session));
        }
        if let Some(waker) = self.waiters.remove(&(before, session)) {
            self.waiters.insert((deadline, session), waker);
        }
    }

    fn satisfy(&mut self, session: SessionId, count: usize) {
        let count = u32::try_from(count).expect("no more than was wanted");
        if let Some(want) = self.wants.get_mut(&session) {
            want.blocks -= count;
            self.wanted -= u64::from(count);
            if count > 0 {
                self.waiters.remove(&(want.deadline, session));
            }
            if want.blocks == 0 {
                self.wanting.remove(&(want.deadline, session));
            }
        }
    }

    fn urgency(&self) -> Urgency {
        self.wanting
            .first()
            .map_or(Urgency::Spare, |(deadline, _)| Urgency::Wanted(*deadline))
    }

    /// Takes blocks that are reserved for a session, or for none.
    fn take(&mut self, session: SessionId, count: u32) -> Vec<T> {
        let Some(want) = self.wants.get_mut(&session) else {
            return Vec::new();
        };
        let count = (count as usize).min(self.ready.len() - self.promised + want.promised as usize);
        let kept = count.min(want.promised as usize);
        self.promised -= kept;
        want.promised -= u32::try_from(kept).expect("no more than was promised");
        self.ready.drain(..count).map(|ready| ready.block).collect()
    }

    /// Reserves ready blocks for waiting sessions, as many as each wants, and wakes them: a session
    /// that comes meanwhile must not leave them with less.
    fn promise(&mut self, woken: &mut Vec<Waker>) {
        while self.ready.len() > self.promised {
            let Some(((_, session), waker)) = self.waiters.pop_first() else {
                break;
            };
            let want = self
                .wants
                .get_mut(&session)
                .expect("whoever waits wants some");
            let more =
                (self.ready.len() - self.promised).min((want.blocks - want.promised) as usize);
            want.promised += u32::try_from(more).expect("no more than is wanted");
            self.promised += more;
            woken.push(waker);
        }
    }

    /// A session has taken its share, or wants no more: the rest is for others.
    fn pass_on(&mut self, is_reused: bool, woken: &mut Vec<Waker>) {
        if is_reused {
            self.wake_next(woken)
        } else {
            self.promise(woken)
        }
    }

    fn take_shared(
        &mut self,
        session: SessionId,
        count: u32,
        share: fn(&T) -> Option<T>,
    ) -> Vec<T> {
        let seen = self.wants.get(&session).map_or(0, |want| want.cursor);
        let mut cursor = seen;
        let mut taken = Vec::new();
        for ready in self
            .ready
            .iter_mut()
            .filter(|ready| ready.number >= seen && ready.uses_left > 0)
            .take(count as usize)
        {
            let Some(block) = share(&ready.block) else {
                break;
            };
            taken.push(block);
            ready.uses_left -= 1;
            cursor = ready.number + 1;
        }
        if let Some(want) = self.wants.get_mut(&session) {
            want.cursor = cursor;
        }
        self.ready.retain(|ready| ready.uses_left > 0);
        taken
    }

    /// Blocks to make beyond those that are being made.
    fn count_need(&self, kind: LineKind, max_reuse: u32) -> u32 {
        if kind.is_source() {
            return self
                .to_make
                .iter()
                .map(|range| u32::from(range.end.saturating_sub(range.start)))
                .sum();
        }
        let ready = self.ready.len() as u64;
        let missing = if kind.is_reused(max_reuse) {
            self.missing_shared(max_reuse)
        } else {
            (self.wanted + u64::from(self.floor)).saturating_sub(ready)
        };
        u32::try_from(missing.saturating_sub(u64::from(self.making))).unwrap_or(u32::MAX)
    }

    /// With reuse a session needs blocks that it has not seen, and all sessions together need
    /// enough uses.
    fn missing_shared(&self, max_reuse: u32) -> u64 {
        let unseen = |cursor: u64| {
            self.ready
                .iter()
                .rev()
                .take_while(|ready| ready.number >= cursor)
                .count() as u64
        };
        let longest = self
            .wants
            .values()
            .map(|want| u64::from(want.blocks).saturating_sub(unseen(want.cursor)))
            .max()
            .unwrap_or(0);
        let uses: u64 = self
            .ready
            .iter()
            .map(|ready| u64::from(ready.uses_left))
            .sum();
        let shared = self
            .wanted
            .saturating_sub(uses)
            .div_ceil(u64::from(max_reuse));
        longest
            .max(shared)
            .max(u64::from(self.floor).saturating_sub(self.ready.len() as u64))
    }

    fn start(&mut self, key: LineKey, count: u32) -> Blocks {
        self.making += count;
        if !key.kind.is_source() {
            return Blocks::Coded(count);
        }
        let mut indices = Vec::with_capacity(count as usize);
        while indices.len() < count as usize {
            let Some(range) = self.to_make.front_mut() else {
                break;
            };
            match range.next() {
                Some(index) => indices.push(index),
                None => drop(self.to_make.pop_front()),
            }
        }
        Blocks::Source(indices)
    }

    /// Ready blocks beyond the demand.
    fn surplus(&self) -> usize {
        self.ready
            .len()
            .saturating_sub(usize::try_from(self.wanted).unwrap_or(usize::MAX))
    }

    fn wait(&mut self, session: SessionId, waker: &Waker) {
        if let Some(want) = self.wants.get(&session) {
            self.waiters.insert((want.deadline, session), waker.clone());
        }
    }

    /// With reuse: wakes as many sessions as these blocks can serve. Each of them wakes the next
    /// when it has taken its share, so that no block stays unclaimed while a session waits for it.
    fn wake_for(&mut self, mut blocks: u64, woken: &mut Vec<Waker>) {
        while blocks > 0 {
            let Some((waker, wanted)) = self.next_waiter() else {
                break;
            };
            blocks = blocks.saturating_sub(wanted);
            woken.push(waker);
        }
    }

    fn wake_next(&mut self, woken: &mut Vec<Waker>) {
        if !self.ready.is_empty() {
            woken.extend(self.next_waiter().map(|(waker, _)| waker));
        }
    }

    /// The waiting session with the earliest deadline, and how many blocks it wants.
    fn next_waiter(&mut self) -> Option<(Waker, u64)> {
        let ((_, session), waker) = self.waiters.pop_first()?;
        Some((
            waker,
            self.wants
                .get(&session)
                .map_or(0, |want| want.blocks.into()),
        ))
    }

    fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.making == 0 && self.floor == 0 && self.wants.is_empty()
    }
}

#[cfg(test)]
mod tests;
