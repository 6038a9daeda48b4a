//! The memory of the ring: slots that are taken by the encoder, filled by the device, sent by a session, and come back.
//!
//! A slot is headroom for a block's header followed by the block's bytes, so that header and payload leave as one piece without
//! a copy; where headers carry all coefficients it is larger. Slots of one size come from slabs, each one allocation that is cut
//! once and stays; the steady state allocates no memory for payloads. When the budget is spent on slabs of one size and another size
//! is needed (a stream was reconfigured), slabs none of whose slots is out are given up.
//!
//! Slots are taken in the order in which they lie in memory, from where the last one was taken on: blocks come home about in the
//! order in which they left, so what is taken together lies side by side, and a GPU can write it with few copies. No more of a pool is used in
//! turn than is needed, so that what was sent a moment ago is written anew while it is in the caches. For a GPU slabs
//! are larger, begin at a page, and are pinned.
//!
//! A slot knows its way home: dropping it, or the last [`bytes::Bytes`] over it, returns it to the pool, credits the session that
//! held it and wakes whoever waits for room. That happens in the QUIC stack's own tasks, on all threads and for every block, so a slot is left
//! on one of several shelves, which few threads want at the same time, and is put in its place when slots are next taken.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::task::Waker;

use bytes::BytesMut;

use super::sync::{Arc, AtomicUsize, Mutex, Ordering, SHELVES};

/// Bytes before a block's payload in its slot: room for the header of a block with a seed or an index (10 bytes) and a cache line of
/// alignment.
pub const HEADROOM: usize = 64;

/// The same where the header ends with so many bytes of coefficients: [`HEADROOM`] where there are few, and always a multiple of it.
pub const fn headroom(coefficients: usize) -> usize {
    (HEAD_MAX + coefficients).next_multiple_of(HEADROOM)
}

/// Bytes of a header in front of its coefficients: 6 at most.
const HEAD_MAX: usize = 16;

/// About how many bytes are allocated at once.
const SLAB_BYTES: usize = 1 << 20;
/// The same for memory that is pinned: as much as one launch of a GPU fills.
const PINNED_SLAB_BYTES: usize = 16 << 20;
/// So many slots that were taken together come home to one shelf.
const TOGETHER: usize = 32;
/// How much of a pool is gone through in turn, beside twice what is out.
const FRONT: usize = 16 << 20;
/// What pinned slabs begin at multiples of.
const PAGE: usize = 4096;

/// Pins memory for a device, until what it returns is dropped; `None` if that cannot be.
pub type Pin = Box<dyn Fn(&mut [u8]) -> Option<Box<dyn Any + Send + Sync>> + Send + Sync>;

/// All slots of the ring, within one budget of bytes.
pub(super) struct Pool {
    state: Mutex<State>,
    /// Slots that have come home and are not in their places yet.
    shelves: [Shelf; SHELVES],
    /// Not 0 while somebody waits for a slot.
    waits: AtomicUsize,
    /// Slots that are out or on a shelf, and their bytes: as counted when slots were last taken.
    out: AtomicUsize,
    out_bytes: AtomicUsize,
    /// Not 0 once a device has kept memory of slots.
    is_torn: AtomicUsize,
    budget: usize,
    pin: Option<Pin>,
}

/// On a line of the cache that no other shelf is on.
#[repr(align(128))]
struct Shelf(Mutex<Vec<(usize, BytesMut)>>);

/// Where a few slots that were taken together come home to. Every slot counts the pool as in use, by this, so that not all threads change one
/// counter for each.
struct Home {
    pool: Arc<Pool>,
    shelf: usize,
}

struct State {
    classes: BTreeMap<usize, Class>,
    allocated: usize,
    /// What the next slots that are taken come home to.
    next_shelf: usize,
    waiting: Option<Waker>,
}

/// The slots of one size, numbered as they lie in memory.
#[derive(Default)]
struct Class {
    /// Pins of its slabs, which go before their memory does.
    pins: Vec<Box<dyn Any + Send + Sync>>,
    /// The memory of the slots that are at home.
    slots: Vec<BytesMut>,
    /// One bit for each slot that is at home.
    home: Vec<u64>,
    free: usize,
    /// Where the next one is looked for.
    next: usize,
}

/// A buffer of the pool: room for a header, and a block's payload. Returns to the pool when dropped.
pub struct Slot {
    bytes: BytesMut,
    headroom: usize,
    /// Bytes of headroom and payload.
    size: usize,
    number: usize,
    home: Arc<Home>,
    held_by: Option<Arc<Quota>>,
}

/// How many slots one session may hold that its peer has not acknowledged.
#[derive(Debug)]
pub struct Quota {
    held: AtomicUsize,
    released: AtomicUsize,
    limit: usize,
    waiting: Mutex<Option<Waker>>,
}

impl Pool {
    /// An empty pool that will allocate at most `budget` bytes.
    pub(super) fn new(budget: usize) -> Arc<Self> {
        Self::with(budget, None)
    }

    /// The same in memory that is pinned.
    pub(super) fn pinned(budget: usize, pin: Pin) -> Arc<Self> {
        Self::with(budget, Some(pin))
    }

    fn with(budget: usize, pin: Option<Pin>) -> Arc<Self> {
        let state = State { classes: BTreeMap::new(), allocated: 0, next_shelf: 0, waiting: None };
        let [waits, out, out_bytes, is_torn] = [0; 4].map(AtomicUsize::new);
        let shelves = std::array::from_fn(|_| Shelf(Mutex::new(Vec::new())));
        Arc::new(Self { state: Mutex::new(state), shelves, waits, out, out_bytes, is_torn, budget, pin })
    }

    /// Takes up to `count` slots with this much room in front of payloads of `block_bytes` bytes. Fewer, or none, if the pool is
    /// spent: then `waker`, if given, is woken when a slot comes home.
    pub(super) fn take(pool: &Arc<Self>, headroom: usize, block_bytes: usize, count: usize, waker: Option<&Waker>) -> Vec<Slot> {
        let size = headroom + block_bytes;
        let mut taken = Vec::with_capacity(count);
        let mut state = pool.lock();
        pool.clear_shelves(&mut state);
        state.classes.entry(size).or_default().turn_back(size);
        let mut waits = false;
        let mut home = state.next_home(pool);
        while taken.len() < count {
            let class = state.classes.entry(size).or_default();
            if let Some((number, bytes)) = class.take() {
                if taken.len() % TOGETHER == TOGETHER - 1 {
                    home = state.next_home(pool);
                }
                taken.push(Slot { bytes, headroom, size, number, home: Arc::clone(&home), held_by: None });
                continue;
            }
            if state.grow(size, pool.budget, pool.pin.as_ref()) {
                continue;
            }
            let Some(waker) = waker.filter(|_| !waits) else { break };
            waits = true;
            state.waiting = Some(waker.clone());
            pool.waits.store(1, Ordering::Release);
            // A slot may have come home between the look and the registration.
            pool.clear_shelves(&mut state);
        }
        pool.out.fetch_add(taken.len(), Ordering::Relaxed);
        pool.out_bytes.fetch_add(taken.len() * size, Ordering::Relaxed);
        taken
    }

    /// Bytes that are out of the pool, and bytes it may have.
    pub(super) fn usage(&self) -> (usize, usize) {
        self.clear_shelves(&mut self.lock());
        (self.out_bytes.load(Ordering::Relaxed), self.budget)
    }

    /// Bytes that are not taken, if so many slots that are out came home: as it was when slots were last taken, or [`Pool::usage`] asked for.
    pub(super) fn room(&self, spare: usize) -> usize {
        let (slots, bytes) = (self.out.load(Ordering::Relaxed), self.out_bytes.load(Ordering::Relaxed));
        // Slots of several sizes are rare enough for a mean.
        self.budget.saturating_sub(bytes) + spare.min(slots) * bytes.checked_div(slots).unwrap_or(0)
    }

    fn give_back(&self, shelf: usize, number: usize, bytes: BytesMut) {
        self.shelf(shelf).push((number, bytes));
        // Whoever waits looks at the shelves after it has said so: either it finds this slot or this finds it.
        if self.waits.load(Ordering::Acquire) == 0 {
            return;
        }
        let woken = {
            let mut state = self.lock();
            self.waits.store(0, Ordering::Release);
            state.waiting.take()
        };
        if let Some(waker) = woken {
            waker.wake();
        }
    }

    /// Puts what has come home in its place.
    fn clear_shelves(&self, state: &mut State) {
        for shelf in 0..SHELVES {
            for (number, bytes) in self.shelf(shelf).drain(..) {
                self.out.fetch_sub(1, Ordering::Relaxed);
                self.out_bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
                // The class is there as long as one of its slots is not in its place.
                state.classes.entry(bytes.len()).or_default().give_back(number, bytes);
            }
        }
    }

    fn shelf(&self, shelf: usize) -> impl std::ops::DerefMut<Target = Vec<(usize, BytesMut)>> + '_ {
        self.shelves[shelf].0.lock().expect("no code panics while it holds a shelf")
    }

    fn lock(&self) -> impl std::ops::DerefMut<Target = State> + '_ {
        self.state.lock().expect("no code panics while it holds the pool")
    }
}

impl State {
    fn next_home(&mut self, pool: &Arc<Pool>) -> Arc<Home> {
        self.next_shelf = (self.next_shelf + 1) % SHELVES;
        Arc::new(Home { pool: Arc::clone(pool), shelf: self.next_shelf })
    }

    /// Allocates one more slab of slots of `size` bytes, giving up idle slabs of other sizes if that makes the room.
    fn grow(&mut self, size: usize, budget: usize, pin: Option<&Pin>) -> bool {
        let slab = if pin.is_some() { (budget / 8).clamp(SLAB_BYTES, PINNED_SLAB_BYTES) } else { SLAB_BYTES };
        let slots = (slab / size).max(1).min((budget / size).max(1));
        let wanted = slots * size;
        if wanted > budget {
            return false;
        }
        if self.allocated + wanted > budget {
            self.give_up_idle(size);
        }
        let affordable = (budget - self.allocated) / size;
        if affordable == 0 {
            return false;
        }
        let slots = slots.min(affordable);
        self.classes.entry(size).or_default().grow(slots, size, pin);
        self.allocated += slots * size;
        true
    }

    /// Frees the classes of other sizes that have every slot at home.
    fn give_up_idle(&mut self, wanted_size: usize) {
        let mut freed = 0;
        self.classes.retain(|size, class| {
            let idle = *size != wanted_size && class.slots.len() == class.free;
            if idle {
                freed += size * class.slots.len();
            }
            !idle
        });
        self.allocated -= freed;
    }
}

impl Class {
    /// Adds slots that lie side by side.
    fn grow(&mut self, slots: usize, size: usize, pin: Option<&Pin>) {
        let mut slab = match pin {
            None => BytesMut::zeroed(slots * size),
            Some(pin) => {
                let mut slab = BytesMut::zeroed(slots * size + PAGE);
                let before = slab.as_ptr().align_offset(PAGE).min(PAGE);
                let _ = slab.split_to(before);
                self.pins.extend(pin(&mut slab[..slots * size]));
                slab
            }
        };
        let first = self.slots.len();
        self.slots.extend((0..slots).map(|_| slab.split_to(size)));
        self.home.resize(self.slots.len().div_ceil(64), 0);
        (first..first + slots).for_each(|number| self.home[number / 64] |= 1 << (number % 64));
        self.free += slots;
        self.next = first;
    }

    /// Begins at the front again, where there is much more behind it than is out. What was sent a moment ago is still in the processor's caches,
    /// which a device writes to; all of a large pool in turn never is.
    fn turn_back(&mut self, size: usize) {
        let out = self.slots.len() - self.free;
        if self.next > 2 * out + FRONT / size {
            self.next = 0;
        }
    }

    /// The slot that comes next in memory, after the last in turn the first.
    fn take(&mut self) -> Option<(usize, BytesMut)> {
        if self.free == 0 {
            return None;
        }
        let (words, start) = (self.home.len(), self.next / 64);
        let from_next = self.home[start] & (u64::MAX << (self.next % 64));
        let word = if from_next != 0 {
            start
        } else {
            (1..=words).map(|step| (start + step) % words).find(|&word| self.home[word] != 0)?
        };
        let bits = if from_next != 0 { from_next } else { self.home[word] };
        let number = word * 64 + bits.trailing_zeros() as usize;
        self.home[word] &= !(1 << (number % 64));
        self.free -= 1;
        self.next = if number + 1 < self.slots.len() { number + 1 } else { 0 };
        Some((number, std::mem::take(&mut self.slots[number])))
    }

    fn give_back(&mut self, number: usize, bytes: BytesMut) {
        self.slots[number] = bytes;
        self.home[number / 64] |= 1 << (number % 64);
        self.free += 1;
    }
}

impl Slot {
    /// The payload's bytes.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.headroom..]
    }

    /// The payload's bytes.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[self.headroom..]
    }

    /// Takes the memory out, for the device to fill; [`Slot::restore`] puts it back.
    pub fn take_bytes(&mut self) -> BytesMut {
        std::mem::take(&mut self.bytes)
    }

    /// Puts back the memory that [`Slot::take_bytes`] took.
    pub fn restore(&mut self, bytes: BytesMut) {
        self.bytes = bytes;
    }

    /// Writes a header right before the payload and returns where it starts.
    ///
    /// # Panics
    /// If the header is longer than the room for it.
    pub fn write_header(&mut self, header: &[u8]) -> usize {
        let start = self.headroom - header.len();
        self.bytes[start..self.headroom].copy_from_slice(header);
        start
    }

    /// Bytes before the payload.
    pub fn headroom(&self) -> usize {
        self.headroom
    }

    /// Header and payload from `start` on.
    pub fn from(&self, start: usize) -> &[u8] {
        &self.bytes[start..]
    }

    /// Counts this slot against a session until it is dropped.
    pub fn charge(&mut self, quota: &Arc<Quota>) {
        quota.held.fetch_add(1, Ordering::AcqRel);
        self.held_by = Some(Arc::clone(quota));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        if bytes.is_empty() {
            // A device has died, or hangs, with the memory: other memory takes its place.
            self.home.pool.is_torn.store(1, Ordering::Release);
            bytes = BytesMut::zeroed(self.size);
        }
        self.home.pool.give_back(self.home.shelf, self.number, bytes);
        if let Some(quota) = self.held_by.take() {
            quota.release();
        }
    }
}

impl Quota {
    /// Room for `limit` slots.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { held: AtomicUsize::new(0), released: AtomicUsize::new(0), limit, waiting: Mutex::new(None) })
    }

    /// How many more slots the session may hold, where it may have `share` of the ring. If none, `waker` is woken when one is
    /// acknowledged.
    pub fn room(&self, share: usize, waker: &Waker) -> usize {
        let room = self.free(share);
        if room > 0 {
            return room;
        }
        *self.waiting.lock().expect("no code panics while it holds a quota") = Some(waker.clone());
        // A slot may have come home between the look and the registration.
        self.free(share)
    }

    /// How many slots are held.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Acquire)
    }

    /// How many slots have come home in all.
    pub fn released(&self) -> usize {
        self.released.load(Ordering::Acquire)
    }

    fn free(&self, share: usize) -> usize {
        self.limit.min(share).saturating_sub(self.held())
    }

    pub(crate) fn add(&self) {
        self.held.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn release(&self) {
        self.held.fetch_sub(1, Ordering::AcqRel);
        self.released.fetch_add(1, Ordering::AcqRel);
        let woken = self.waiting.lock().expect("no code panics while it holds a quota").take();
        if let Some(waker) = woken {
            waker.wake();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("out_bytes", &self.out_bytes).field("budget_bytes", &self.budget).finish()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}
