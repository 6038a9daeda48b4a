//! Coded blocks on their way from the encoder to the sessions, in a bounded pool of slots.
//!
//! Demand and supply meet in the ring. A session registers how many blocks of a generation its
//! connection has room for. The encoder takes the sum over all sessions as orders, has the device
//! fill slots, and publishes them. A session claims them, writes the block's header into the slot's
//! headroom, and hands QUIC a `Bytes` over the slot. When the last clone of these bytes is dropped,
//! after the packet's acknowledgement, the slot is free again. No payload is copied, with one
//! exception: if `max_reuse` lets one block serve several sessions, a datagram, which must be one
//! piece, gets a copy.
//!
//! When the pool is used up, the encoder waits. Blocks without demand are dropped first, oldest
//! first. A session holds at most its [`Quota`] of unacknowledged slots, and fewer the fuller the
//! ring is ([`Ring::share`]): peers that do not read, however many, cannot empty the ring for the
//! others. Each block size that streams use has a guaranteed part of the ring ([`Ring::promise`]).
//!
//! One lock guards the books ([`Board`]), another the slots ([`slots::Pool`]). Both are held only
//! for table look-ups: once per batch by the encoder, and, the books alone, once per wake-up by a
//! session. Wakers are called after both are released, because a woken task takes them at once.

mod capacity;
mod metrics;
mod slots;
mod sync;
mod wait;

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::MutexGuard;
use std::task::Waker;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use ncs_proto::ring::Board;
use ncs_proto::wire::block;
use serde::{Deserialize, Serialize};

pub use capacity::{Capacity, NotCapacity};
pub use metrics::Metrics;
pub use ncs_proto::ring::{Blocks, HEADROOM, LineKey, LineKind, Order, SessionId, headroom};
pub use slots::{Pin, Quota, Slot};
pub use wait::{Waiter, next_wake, own_waker};

use ncs_codec::block::Vector;
use ncs_proto::object::{GenerationKey, SegmentKey};
use slots::Pool;
use sync::{Arc, AtomicUsize, Mutex, Ordering};

/// The part of the ring's free room that a session may request, and again the part that it may
/// hold: of 64 MiB, 2 MiB each.
const SHARE_PART: usize = 32;
/// A session's minimum where no room is left: enough to get its turn.
const SHARE_MIN: u32 = 8;

/// The number of blocks without demand that are dropped at a time to make room.
const DROPPED_AT_ONCE: usize = 64;

/// The capacity of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Memory for coded blocks, header room included.
    pub bytes: Capacity,
    /// How many sessions one coded block may serve.
    pub max_reuse: u16,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bytes: Capacity::Auto,
            max_reuse: 1,
        }
    }
}

/// The ring. Clones are handles to the same one.
#[derive(Clone)]
pub struct Ring {
    shared: Arc<Shared>,
}

struct Shared {
    board: Mutex<Board<Ready>>,
    /// Copies of two counts, from when the books were last unlocked: ready blocks without demand,
    /// and blocks to be made.
    spare: AtomicUsize,
    to_make: AtomicUsize,
    /// The number of blocks ever published.
    made: AtomicUsize,
    pool: Arc<Pool>,
    max_reuse: u32,
    metrics: Metrics,
}

/// A block in the ring.
struct Ready {
    vector: Vector,
    payload: Payload,
}

enum Payload {
    Sole(Slot),
    Shared(Arc<Slot>),
}

/// A block that a session has claimed.
#[derive(Debug)]
pub struct Claimed {
    /// The coefficients of the block.
    pub vector: Vector,
    payload: Payload,
    charge: Charge,
}

/// Counts a shared block against the session that holds it.
#[derive(Debug)]
struct Charge(Option<Arc<Quota>>);

impl Ring {
    /// An empty ring.
    pub fn new(config: &Config, metrics: Metrics) -> Self {
        Self::over(config, metrics, Pool::new)
    }

    /// An empty ring in memory that a device writes to directly.
    pub fn pinned(config: &Config, metrics: Metrics, pin: Pin) -> Self {
        Self::over(config, metrics, |bytes| Pool::pinned(bytes, pin))
    }

    fn over(config: &Config, metrics: Metrics, pool: impl FnOnce(usize) -> Arc<Pool>) -> Self {
        let bytes = usize::try_from(config.bytes.size().as_u64()).unwrap_or(usize::MAX);
        metrics
            .capacity_bytes
            .set(i64::try_from(bytes).unwrap_or(i64::MAX));
        let board = Mutex::new(Board::new(u32::from(config.max_reuse), Ready::share));
        let [spare, to_make, made] = [0; 3].map(AtomicUsize::new);
        let max_reuse = u32::from(config.max_reuse.max(1));
        Self {
            shared: Arc::new(Shared {
                board,
                spare,
                to_make,
                made,
                pool: pool(bytes),
                max_reuse,
                metrics,
            }),
        }
    }

    /// Adds to a session's demand for coded blocks of a line. After the deadline they are of no use
    /// to it. The earliest deadline is served first.
    pub fn want_coded(&self, session: SessionId, line: LineKey, blocks: u32, deadline: Instant) {
        self.board().want_coded(session, line, blocks, deadline);
    }

    /// Adds to a session's demand for source blocks of a generation.
    pub fn want_source(
        &self,
        session: SessionId,
        generation: GenerationKey,
        blocks: Range<u16>,
        deadline: Instant,
    ) {
        self.board()
            .want_source(session, generation, blocks, deadline);
    }

    /// Moves the deadline of a session's remaining demand for these lines.
    pub fn reschedule(
        &self,
        session: SessionId,
        lines: impl IntoIterator<Item = LineKey>,
        deadline: Instant,
    ) {
        let mut board = self.board();
        lines
            .into_iter()
            .for_each(|line| board.reschedule(session, line, deadline));
    }

    /// Takes up to `max` ready blocks of a line for a session with demand, and counts them against
    /// its quota. If none is ready, `waker` is called when one is.
    pub fn claim(
        &self,
        session: SessionId,
        line: LineKey,
        max: u32,
        quota: &Arc<Quota>,
        waker: &Waker,
    ) -> Vec<Claimed> {
        let ready = self.board().claim(session, line, max, waker);
        if ready.is_empty() {
            self.shared.metrics.starved.inc();
        }
        ready
            .into_iter()
            .map(|ready| ready.claimed_by(quota))
            .collect()
    }

    /// Ends a session's demand for a line.
    pub fn leave(&self, session: SessionId, line: LineKey) {
        self.board().leave(session, line);
    }

    /// Keeps this many coded blocks of a line ready without demand; 0 ends that.
    pub fn keep_ready(&self, line: LineKey, blocks: u32) {
        self.board().keep_ready(line, blocks);
    }

    /// The number of blocks to be made, as of the last change of the books.
    pub fn to_make(&self) -> u64 {
        self.shared.to_make.load(Ordering::Relaxed) as u64
    }

    /// The number of blocks made in all.
    pub fn made(&self) -> u64 {
        self.shared.made.load(Ordering::Relaxed) as u64
    }

    /// The number of blocks to be made. If it is zero, `waker` is called when there are some.
    pub fn needed(&self, waker: &Waker) -> u64 {
        self.board().needed(waker)
    }

    /// Takes orders for at most `max` blocks in all, oldest first.
    pub fn take_orders(&self, max: u32) -> Vec<Order> {
        self.board().take_orders(max)
    }

    /// Returns an order that was not made: its blocks are in demand as before.
    pub fn give_up(&self, order: &Order) {
        self.board().give_up(order);
    }

    /// Parks an order that cannot be made yet: demand for its blocks, and for all others of its
    /// segment, stays, but is not ordered again until the segment is resumed.
    pub fn park(&self, order: &Order) {
        self.board().park(order);
    }

    /// Holds an order that cannot be made yet: demand for its blocks stays, but is not ordered
    /// again until the segment is resumed, or some blocks sent of the line are lost.
    pub fn hold(&self, order: &Order) {
        self.board().hold(order);
    }

    /// Notes that blocks of a line did not reach a session's peer.
    pub fn note_lost(&self, line: LineKey, blocks: u32) {
        self.board().note_lost(line, blocks);
    }

    /// The number of blocks of a line lost since the last call.
    pub fn take_lost(&self, line: LineKey) -> u32 {
        self.board().take_lost(line)
    }

    /// Lets blocks of a parked segment, and of its held lines, be ordered again; without a segment,
    /// all that are parked or held.
    pub fn resume(&self, segment: Option<SegmentKey>) {
        match segment {
            Some(segment) => self.board().resume(segment),
            None => self.board().resume_all(),
        }
    }

    /// Up to `count` empty slots with this much headroom. Blocks without demand are dropped to make
    /// room; if that is not enough, `waker` is called when a slot returns.
    pub fn reserve(
        &self,
        headroom: usize,
        block_bytes: u32,
        count: u32,
        waker: &Waker,
    ) -> Vec<Slot> {
        let (size, count) = (block_bytes as usize, count as usize);
        let mut slots = Pool::take(&self.shared.pool, headroom, size, count, Some(waker));
        if slots.len() < count {
            self.make_room(headroom + size, count - slots.len());
            slots.extend(Pool::take(
                &self.shared.pool,
                headroom,
                size,
                count - slots.len(),
                Some(waker),
            ));
        }
        slots
    }

    /// Whether a slot of this size can be taken, if need be after blocks without demand were
    /// dropped. If not, `waker` is called when any slot returns.
    pub fn has_room(&self, headroom: usize, block_bytes: u32, waker: &Waker) -> bool {
        let (pool, slot_bytes) = (&self.shared.pool, headroom + block_bytes as usize);
        if pool.has_room(slot_bytes, waker) {
            return true;
        }
        self.make_room(slot_bytes, DROPPED_AT_ONCE);
        pool.has_room(slot_bytes, waker)
    }

    /// Drops up to `count` blocks without demand. If the pool has slots of this size, only blocks
    /// of this size count.
    fn make_room(&self, slot_bytes: usize, count: usize) {
        let has_any = self.shared.pool.has_any(slot_bytes);
        let is_of_use = |ready: &Ready| !has_any || ready.slot().size() == slot_bytes;
        // Dropped after the lock is released: slots take the pool's.
        let dropped = self.board().drop_unwanted(count, is_of_use);
        self.shared.metrics.dropped.inc_by(dropped.len() as u64);
    }

    /// From now on, half of the ring is divided equally among these slot sizes (headroom included):
    /// each part is reserved for its size, whatever the others use. The other half is first come,
    /// first served. A single size may use everything.
    pub fn promise(&self, slot_bytes: impl IntoIterator<Item = usize>) {
        self.shared.pool.promise(slot_bytes);
    }

    /// Publishes the blocks made for an order.
    pub fn publish(&self, line: LineKey, blocks: impl IntoIterator<Item = (Vector, Slot)>) {
        let share = line.kind.is_reused(self.shared.max_reuse);
        let ready = blocks.into_iter().map(|(vector, slot)| Ready {
            vector,
            payload: if share {
                Payload::Shared(Arc::new(slot))
            } else {
                Payload::Sole(slot)
            },
        });
        let ready: Vec<_> = ready.collect();
        self.shared.made.fetch_add(ready.len(), Ordering::Relaxed);
        // Dropped after the lock is released: slots take the pool's.
        let unwanted = self.board().publish(line, ready);
        self.shared.metrics.dropped.inc_by(unwanted.len() as u64);
    }

    /// Drops all blocks of a removed segment, and serves no more of it.
    pub fn forget(&self, segment: SegmentKey) {
        let dropped = self.board().forget(segment);
        self.shared.metrics.dropped.inc_by(dropped.len() as u64);
    }

    /// The number of blocks of this size that one session may have requested, and the number that
    /// it may hold in addition: a part of the unused room, at least `SHARE_MIN`. Earlier sessions
    /// keep what they have, so the part is small: after 64 sessions that return nothing, 1.6 % of
    /// the ring is left for the next.
    pub fn share(&self, block_bytes: u32) -> u32 {
        // Every session calls this all the time, so it takes no lock; the result is out of date at
        // once in any case.
        let [spare, wanted] =
            [&self.shared.spare, &self.shared.to_make].map(|count| count.load(Ordering::Relaxed));
        let slot_bytes = block_bytes as usize + HEADROOM;
        let room = self.shared.pool.room(slot_bytes, spare) / slot_bytes;
        // Blocks to be made need room too, but count for at most half of it: they may be far more
        // than are made at a time, and small portions would make that worse.
        let room = room - wanted.min(room / 2);
        u32::try_from(room / SHARE_PART)
            .unwrap_or(u32::MAX)
            .max(SHARE_MIN)
    }

    /// Bytes of the slots in use: being filled, ready, or not yet acknowledged.
    pub fn used_bytes(&self) -> usize {
        self.shared.pool.usage().0
    }

    /// Brings the gauges up to date.
    pub fn publish_metrics(&self) {
        let (ready, lines) = {
            let board = self.board();
            (board.ready(), board.lines())
        };
        let used = self.used_bytes();
        let metrics = &self.shared.metrics;
        metrics
            .ready_blocks
            .set(i64::try_from(ready).unwrap_or(i64::MAX));
        metrics.lines.set(i64::try_from(lines).unwrap_or(i64::MAX));
        metrics
            .used_bytes
            .set(i64::try_from(used).unwrap_or(i64::MAX));
    }

    /// Payload bytes that were copied because several sessions share a block.
    pub fn count_copied(&self, bytes: usize) {
        if bytes > 0 {
            self.shared.metrics.copied_bytes.inc_by(bytes as u64);
        }
    }

    fn board(&self) -> Books<'_> {
        let board = self
            .shared
            .board
            .lock()
            .expect("no code panics while it holds the books");
        Books {
            board: Some(board),
            shared: &self.shared,
        }
    }
}

/// The books, locked. Tasks to be woken are woken after they are unlocked.
struct Books<'a> {
    board: Option<MutexGuard<'a, Board<Ready>>>,
    shared: &'a Shared,
}

impl Deref for Books<'_> {
    type Target = Board<Ready>;

    fn deref(&self) -> &Board<Ready> {
        self.board.as_ref().expect(OPEN)
    }
}

impl DerefMut for Books<'_> {
    fn deref_mut(&mut self) -> &mut Board<Ready> {
        self.board.as_mut().expect(OPEN)
    }
}

impl Drop for Books<'_> {
    fn drop(&mut self) {
        let Some(mut board) = self.board.take() else {
            return;
        };
        self.shared.spare.store(board.spare(), Ordering::Relaxed);
        self.shared.to_make.store(
            usize::try_from(board.to_make()).unwrap_or(usize::MAX),
            Ordering::Relaxed,
        );
        let woken = board.take_woken();
        drop(board);
        woken.into_iter().for_each(Waker::wake);
    }
}

const OPEN: &str = "the books are closed when they are dropped";

impl Ready {
    fn slot(&self) -> &Slot {
        match &self.payload {
            Payload::Sole(slot) => slot,
            Payload::Shared(slot) => slot,
        }
    }

    fn share(&self) -> Option<Self> {
        match &self.payload {
            Payload::Sole(_) => None,
            Payload::Shared(slot) => Some(Self {
                vector: self.vector.clone(),
                payload: Payload::Shared(Arc::clone(slot)),
            }),
        }
    }

    fn claimed_by(mut self, quota: &Arc<Quota>) -> Claimed {
        let charge = match &mut self.payload {
            Payload::Sole(slot) => {
                slot.charge(quota);
                Charge(None)
            }
            Payload::Shared(_) => {
                quota.add();
                Charge(Some(Arc::clone(quota)))
            }
        };
        Claimed {
            vector: self.vector,
            payload: self.payload,
            charge,
        }
    }
}

impl Claimed {
    /// Bytes of the payload.
    pub fn payload(&self) -> &[u8] {
        match &self.payload {
            Payload::Sole(slot) => slot.payload(),
            Payload::Shared(slot) => slot.payload(),
        }
    }

    /// The approximate size of a datagram with it.
    pub fn datagram_bytes(&self) -> u64 {
        (block::datagram_header_len(&self.vector) + self.payload().len()) as u64
    }

    /// The header and the first `length` bytes of the payload in one piece, and the number of bytes
    /// copied for that: zero, except for a block shared with other sessions.
    pub fn into_datagram(self, header: &[u8], length: usize) -> (Bytes, usize) {
        match self.payload {
            Payload::Sole(mut slot) => {
                let start = slot.write_header(header);
                let mut bytes = Bytes::from_owner(Filled { slot, start });
                bytes.truncate(header.len() + length);
                (bytes, 0)
            }
            Payload::Shared(slot) => {
                let mut bytes = BytesMut::with_capacity(header.len() + length);
                bytes.extend_from_slice(header);
                bytes.extend_from_slice(&slot.payload()[..length]);
                (bytes.freeze(), length)
            }
        }
    }

    /// The header and the first `length` bytes of the payload as pieces for a stream; no payload is
    /// copied.
    pub fn into_chunks(self, header: &[u8], length: usize) -> (Bytes, Option<Bytes>) {
        match self.payload {
            Payload::Sole(_) => (self.into_datagram(header, length).0, None),
            Payload::Shared(slot) => {
                let start = slot.headroom();
                let piece = Bytes::from_owner(SharedSlot {
                    slot,
                    _charge: self.charge,
                })
                .slice(start..start + length);
                (Bytes::copy_from_slice(header), Some(piece))
            }
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(quota) = self.0.take() {
            quota.release();
        }
    }
}

/// A slot that is being sent, owned by the `Bytes` over it.
struct Filled {
    slot: Slot,
    start: usize,
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        self.slot.from(self.start)
    }
}

struct SharedSlot {
    slot: Arc<Slot>,
    _charge: Charge,
}

impl AsRef<[u8]> for SharedSlot {
    fn as_ref(&self) -> &[u8] {
        self.slot.from(0)
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("pool", &self.shared.pool)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sole(slot) => f.debug_tuple("Sole").field(slot).finish(),
            Self::Shared(slot) => f.debug_tuple("Shared").field(slot).finish(),
        }
    }
}

#[cfg(test)]
mod tests;
