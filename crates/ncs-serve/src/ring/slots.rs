//! The memory of the ring: slots that the encoder takes, the device fills and a session sends, and
//! that then return.
//!
//! A slot is headroom for a block's header, followed by the block's bytes, so that header and
//! payload leave as one piece without a copy. The headroom is larger where headers carry all
//! coefficients. Slots of one size are cut from slabs, each of one allocation; the steady state
//! allocates no memory for payloads. When the budget is used up and another size is needed, a slab
//! with all of its slots at home is cut anew for that size.
//!
//! A peer that does not read may keep a slot in each slab of a size, and such slabs are never cut
//! anew. So each size that streams use is *promised* an equal part of half of the budget
//! ([`Pool::promise`]): other sizes leave it free even while it is unused. If others used it before
//! it was promised, as after a reload, some of their slabs are *drained*: their slots are not taken
//! again until all have returned.
//!
//! Slots are taken in memory order, starting after the last one taken. Blocks return roughly in the
//! order in which they left, so slots taken together lie side by side, and a GPU can fill them with
//! few copies. The pool cycles through no more memory than it needs, so that memory sent a moment
//! ago is rewritten while it is in the caches. For a GPU, slabs are larger, page-aligned and
//! pinned.
//!
//! Dropping a slot, or the last [`bytes::Bytes`] over it, returns it to the pool, credits the
//! session that held it, and wakes the task that waits for room. This happens in QUIC's own tasks,
//! on all threads and for every block. So a slot is first put on one of several shelves, each
//! contended by few threads, and is sorted into its place when slots are next taken.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::task::Waker;

use bytes::BytesMut;

use super::sync::{Arc, AtomicUsize, Mutex, Ordering, SHELVES};

/// The approximate size of one allocation.
pub(super) const SLAB_BYTES: usize = 1 << 20;
/// The same for pinned memory: as much as one launch of a GPU fills.
const PINNED_SLAB_BYTES: usize = 16 << 20;
/// This many slots that were taken together return to the same shelf.
const TOGETHER: usize = 32;
/// The pool cycles through this much memory, plus twice the slots that are out: about a core's
/// caches, and with a device one slab.
const FRONT: usize = 1 << 20;
const PINNED_FRONT: usize = PINNED_SLAB_BYTES;
/// The number of slot sizes whose free room is recorded separately.
const ROOMS: usize = 8;
/// The alignment of pinned slabs.
const PAGE: usize = 4096;

/// Pins memory for a device until the returned value is dropped; `None` on failure.
pub type Pin = Box<dyn Fn(&mut [u8]) -> Option<Box<dyn Any + Send + Sync>> + Send + Sync>;

/// All slots of the ring, within one budget of bytes.
pub(super) struct Pool {
    state: Mutex<State>,
    /// Slots that have returned but are not yet sorted into their places.
    shelves: [Shelf; SHELVES],
    /// Not 0 while a task waits for a slot.
    waits: AtomicUsize,
    /// Number and bytes of slots that are out or on a shelf, as of when slots were last taken.
    out: AtomicUsize,
    out_bytes: AtomicUsize,
    /// Not 0 after a device has kept memory of slots.
    is_torn: AtomicUsize,
    /// Free room for the smallest sizes, as of when slots were last taken.
    rooms: [Room; ROOMS],
    budget: usize,
    pin: Option<Pin>,
}

/// Free bytes for slots of one size; unused while the size is 0.
#[derive(Default)]
struct Room {
    size: AtomicUsize,
    bytes: AtomicUsize,
}

/// Alone on its cache line.
#[repr(align(128))]
struct Shelf(Mutex<Vec<(usize, BytesMut)>>);

/// The shelf to which a few slots that were taken together return. Each slot keeps the pool alive
/// through this, so that not all threads change one counter for each slot.
struct Home {
    pool: Arc<Pool>,
    shelf: usize,
}

struct State {
    classes: BTreeMap<usize, Class>,
    /// Sizes with a reserved part of the budget.
    promised: Vec<usize>,
    allocated: usize,
    /// The shelf to which the next slots will return.
    next_shelf: usize,
    waiting: Option<Waker>,
}

/// The slots of one size, numbered in memory order: each slab's numbers start at a multiple of `1
/// << shift`.
#[derive(Default)]
struct Class {
    shift: u32,
    slabs: Vec<Option<Slab>>,
    /// The memory of slots at home.
    slots: Vec<BytesMut>,
    /// One bit for each slot at home that may be taken.
    home: Vec<u64>,
    free: usize,
    out: usize,
    /// Bytes of all slabs.
    bytes: usize,
    /// The number from which the next slot is searched.
    next: usize,
}

/// Memory that is cut into slots of one size.
struct Slab {
    /// Dropped before the memory.
    pin: Option<Box<dyn Any + Send + Sync>>,
    slots: usize,
    home: usize,
    bytes: usize,
    /// The remainder, too short for a slot.
    tail: BytesMut,
    /// Whether its slots are held back until all have returned.
    is_draining: bool,
}

/// A buffer of the pool: headroom, and a block's payload. Returns to the pool when dropped.
pub struct Slot {
    bytes: BytesMut,
    headroom: usize,
    /// Bytes of headroom and payload.
    size: usize,
    number: usize,
    home: Arc<Home>,
    held_by: Option<Arc<Quota>>,
}

/// The limit on a session's slots without an acknowledgement of its peer.
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

    /// The same with pinned memory.
    pub(super) fn pinned(budget: usize, pin: Pin) -> Arc<Self> {
        Self::with(budget, Some(pin))
    }

    fn with(budget: usize, pin: Option<Pin>) -> Arc<Self> {
        let state = State {
            classes: BTreeMap::new(),
            promised: Vec::new(),
            allocated: 0,
            next_shelf: 0,
            waiting: None,
        };
        let [waits, out, out_bytes, is_torn] = [0; 4].map(AtomicUsize::new);
        let shelves = std::array::from_fn(|_| Shelf(Mutex::new(Vec::new())));
        let rooms = std::array::from_fn(|_| Room::default());
        Arc::new(Self {
            state: Mutex::new(state),
            shelves,
            waits,
            out,
            out_bytes,
            is_torn,
            rooms,
            budget,
            pin,
        })
    }

    /// From now on, half of the budget is divided equally among these slot sizes (headroom
    /// included), a part reserved for each. A single size may use everything.
    pub(super) fn promise(&self, sizes: impl IntoIterator<Item = usize>) {
        let mut sizes: Vec<usize> = sizes.into_iter().collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut state = self.lock();
        state.promised = sizes;
        self.tell_rooms(&state);
    }

    /// Whether a slot of this size, headroom included, can be taken. If not, `waker` is called when
    /// any slot returns.
    pub(super) fn has_room(&self, size: usize, waker: &Waker) -> bool {
        let mut state = self.lock();
        self.clear_shelves(&mut state);
        if state.has_free(size) || state.grow(size, self) {
            return true;
        }
        state.waiting = Some(waker.clone());
        self.waits.store(1, Ordering::Release);
        // As in `take`.
        self.clear_shelves(&mut state);
        state.has_free(size) || state.grow(size, self)
    }

    /// Whether any slot of this size exists, at home or out.
    pub(super) fn has_any(&self, size: usize) -> bool {
        self.lock()
            .classes
            .get(&size)
            .is_some_and(|class| class.bytes > 0)
    }

    /// Takes up to `count` slots with this much headroom before payloads of `block_bytes` bytes. If
    /// the pool is used up, it returns fewer or none, and `waker`, if given, is called when a slot
    /// returns.
    pub(super) fn take(
        pool: &Arc<Self>,
        headroom: usize,
        block_bytes: usize,
        count: usize,
        waker: Option<&Waker>,
    ) -> Vec<Slot> {
        let size = headroom + block_bytes;
        let mut taken = Vec::with_capacity(count);
        let mut state = pool.lock();
        pool.clear_shelves(&mut state);
        let front = if pool.pin.is_some() {
            PINNED_FRONT
        } else {
            FRONT
        };
        state.class(size, pool).turn_back(front / size);
        let mut waits = false;
        let mut home = state.next_home(pool);
        while taken.len() < count {
            let class = state.class(size, pool);
            if let Some((number, bytes)) = class.take() {
                if taken.len() % TOGETHER == TOGETHER - 1 {
                    home = state.next_home(pool);
                }
                taken.push(Slot {
                    bytes,
                    headroom,
                    size,
                    number,
                    home: Arc::clone(&home),
                    held_by: None,
                });
                continue;
            }
            if state.grow(size, pool) {
                continue;
            }
            let Some(waker) = waker.filter(|_| !waits) else {
                break;
            };
            waits = true;
            state.waiting = Some(waker.clone());
            pool.waits.store(1, Ordering::Release);
            // A slot may have returned between the look and the registration.
            pool.clear_shelves(&mut state);
        }
        pool.out.fetch_add(taken.len(), Ordering::Relaxed);
        pool.out_bytes
            .fetch_add(taken.len() * size, Ordering::Relaxed);
        pool.tell_rooms(&state);
        taken
    }

    /// Bytes in use, and the budget in bytes.
    pub(super) fn usage(&self) -> (usize, usize) {
        let mut state = self.lock();
        self.clear_shelves(&mut state);
        self.tell_rooms(&state);
        drop(state);
        (self.out_bytes.load(Ordering::Relaxed), self.budget)
    }

    /// Free bytes for slots of this size or the next larger one, if `spare` slots that are out came
    /// back: as of when slots were last taken, or [`Pool::usage`] was called.
    pub(super) fn room(&self, size: usize, spare: usize) -> usize {
        let (slots, bytes) = (
            self.out.load(Ordering::Relaxed),
            self.out_bytes.load(Ordering::Relaxed),
        );
        let of_size = self
            .rooms
            .iter()
            .find(|room| room.size.load(Ordering::Relaxed) >= size);
        let left = of_size.map_or_else(
            || self.budget.saturating_sub(bytes),
            |room| room.bytes.load(Ordering::Relaxed),
        );
        // The mean of all sizes is precise enough.
        left + spare.min(slots) * bytes.checked_div(slots).unwrap_or(0)
    }

    /// Records the free room of each size, to be read without the lock.
    fn tell_rooms(&self, state: &State) {
        let out: usize = state
            .classes
            .iter()
            .map(|(size, class)| size * class.out)
            .sum();
        let mut sizes = state.classes.keys().copied();
        for room in &self.rooms {
            let size = sizes.next().unwrap_or(0);
            let kept = state.kept_for_others(size, self.budget, |other, class| other * class.out);
            room.size.store(size, Ordering::Relaxed);
            room.bytes
                .store(self.budget.saturating_sub(out + kept), Ordering::Relaxed);
        }
    }

    /// Size of a slab.
    fn slab_bytes(&self) -> usize {
        if self.pin.is_some() {
            (self.budget / 8).clamp(SLAB_BYTES, PINNED_SLAB_BYTES)
        } else {
            SLAB_BYTES
        }
    }

    /// Allocates memory; for a device, pinned and page-aligned.
    fn allocate(&self, bytes: usize) -> (BytesMut, Option<Box<dyn Any + Send + Sync>>) {
        let Some(pin) = &self.pin else {
            return (BytesMut::zeroed(bytes), None);
        };
        let mut memory = BytesMut::zeroed(bytes + PAGE);
        let before = memory.as_ptr().align_offset(PAGE).min(PAGE);
        let _ = memory.split_to(before);
        memory.truncate(bytes);
        let pin = pin(&mut memory);
        (memory, pin)
    }

    fn give_back(&self, shelf: usize, number: usize, bytes: BytesMut) {
        self.shelf(shelf).push((number, bytes));
        // A waiting task looks at the shelves after it has set `waits`: either it finds this slot,
        // or this code sees that it waits.
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

    /// Sorts returned slots into their places.
    fn clear_shelves(&self, state: &mut State) {
        for shelf in 0..SHELVES {
            for (number, bytes) in self.shelf(shelf).drain(..) {
                self.out.fetch_sub(1, Ordering::Relaxed);
                self.out_bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
                // A class exists as long as one of its slots is not in its place.
                let class = state.classes.get_mut(&bytes.len()).expect("it has slabs");
                class.give_back(number, bytes);
            }
        }
    }

    fn shelf(&self, shelf: usize) -> impl std::ops::DerefMut<Target = Vec<(usize, BytesMut)>> + '_ {
        self.shelves[shelf]
            .0
            .lock()
            .expect("no code panics while it holds a shelf")
    }

    fn lock(&self) -> impl std::ops::DerefMut<Target = State> + '_ {
        self.state
            .lock()
            .expect("no code panics while it holds the pool")
    }
}

impl State {
    fn next_home(&mut self, pool: &Arc<Pool>) -> Arc<Home> {
        self.next_shelf = (self.next_shelf + 1) % SHELVES;
        Arc::new(Home {
            pool: Arc::clone(pool),
            shelf: self.next_shelf,
        })
    }

    fn class(&mut self, size: usize, pool: &Pool) -> &mut Class {
        self.classes.entry(size).or_insert_with(|| {
            let most = (pool.slab_bytes() / size).max(1).next_power_of_two();
            Class {
                shift: most.trailing_zeros(),
                ..Class::default()
            }
        })
    }

    fn has_free(&self, size: usize) -> bool {
        self.classes.get(&size).is_some_and(|class| class.free > 0)
    }

    /// Bytes reserved for each promised size.
    fn part(&self, budget: usize) -> usize {
        if self.promised.len() < 2 {
            0
        } else {
            budget / 2 / self.promised.len()
        }
    }

    fn part_of(&self, size: usize, budget: usize) -> usize {
        if self.promised.binary_search(&size).is_ok() {
            self.part(budget)
        } else {
            0
        }
    }

    /// Bytes promised to sizes other than `size` and not used yet, where `used` measures the use.
    fn kept_for_others(
        &self,
        size: usize,
        budget: usize,
        used: impl Fn(usize, &Class) -> usize,
    ) -> usize {
        let part = self.part(budget);
        let others = self.promised.iter().filter(|other| **other != size);
        others
            .map(|other| {
                part.saturating_sub(
                    self.classes
                        .get(other)
                        .map_or(0, |class| used(*other, class)),
                )
            })
            .sum()
    }

    /// Bytes that slots of this size may take in addition to those that they have.
    fn affordable(&self, size: usize, budget: usize) -> usize {
        budget.saturating_sub(
            self.allocated + self.kept_for_others(size, budget, |_, class| class.bytes),
        )
    }

    /// Makes more slots of `size` bytes: in new memory while the budget allows, then in idle slabs
    /// of other sizes.
    fn grow(&mut self, size: usize, pool: &Pool) -> bool {
        loop {
            let slots =
                (self.affordable(size, pool.budget) / size).min((pool.slab_bytes() / size).max(1));
            if slots > 0 {
                let (memory, pin) = pool.allocate(slots * size);
                self.allocated += memory.len();
                self.class(size, pool).add(size, memory, pin);
                return true;
            }
            let Some((memory, pin)) = self.take_idle(size, pool) else {
                break;
            };
            if memory.len() >= size {
                self.class(size, pool).add(size, memory, pin);
                return true;
            }
            self.allocated -= memory.len();
        }
        if let Some(class) = self.classes.get_mut(&size)
            && class.stop_draining()
        {
            return true;
        }
        self.drain_for(size, pool.budget);
        false
    }

    /// The memory of an idle slab of another size that has more than its promised part.
    fn take_idle(
        &mut self,
        size: usize,
        pool: &Pool,
    ) -> Option<(BytesMut, Option<Box<dyn Any + Send + Sync>>)> {
        let parts: Vec<usize> = self
            .classes
            .keys()
            .map(|other| self.part_of(*other, pool.budget))
            .collect();
        let (memory, mut pin) = self
            .classes
            .iter_mut()
            .zip(parts)
            .filter(|((other, _), _)| **other != size)
            .find_map(|((_, class), part)| class.take_idle(part))?;
        self.classes
            .retain(|other, class| *other == size || class.bytes > 0);
        if pool.is_torn.load(Ordering::Acquire) != 0 {
            // A hanging device may still write there.
            std::mem::forget(pin.take());
        }
        Some((memory, pin))
    }

    /// Drains slabs of sizes with more than their part, as many as this size lacks of its own part.
    fn drain_for(&mut self, size: usize, budget: usize) {
        let mut lacks = self
            .part_of(size, budget)
            .saturating_sub(self.classes.get(&size).map_or(0, |class| class.bytes));
        let parts: Vec<usize> = self
            .classes
            .keys()
            .map(|other| self.part_of(*other, budget))
            .collect();
        for ((other, class), part) in self.classes.iter_mut().zip(parts) {
            if *other != size {
                lacks = class.drain(lacks, size, part);
            }
        }
    }
}

impl Class {
    /// Cuts memory into adjacent slots.
    fn add(&mut self, size: usize, mut memory: BytesMut, pin: Option<Box<dyn Any + Send + Sync>>) {
        let (bytes, slots) = (memory.len(), (memory.len() / size).min(1 << self.shift));
        let index = self
            .slabs
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.slabs.len());
        if index == self.slabs.len() {
            self.slabs.push(None);
            self.slots
                .resize_with(self.slabs.len() << self.shift, BytesMut::new);
            self.home.resize(self.slots.len().div_ceil(64), 0);
        }
        let first = index << self.shift;
        for number in first..first + slots {
            self.slots[number] = memory.split_to(size);
            self.home[number / 64] |= 1 << (number % 64);
        }
        self.slabs[index] = Some(Slab {
            pin,
            slots,
            home: slots,
            bytes,
            tail: memory,
            is_draining: false,
        });
        self.free += slots;
        self.bytes += bytes;
        self.next = first;
    }

    /// Takes out the memory of the last slab with all slots at home, if at least `part` bytes
    /// remain.
    fn take_idle(&mut self, part: usize) -> Option<(BytesMut, Option<Box<dyn Any + Send + Sync>>)> {
        let left = self.bytes.saturating_sub(part);
        let is_idle = |slab: &Option<Slab>| {
            slab.as_ref()
                .is_some_and(|slab| slab.home == slab.slots && slab.bytes <= left)
        };
        let index = self.slabs.iter().rposition(is_idle)?;
        let slab = self.slabs[index].take()?;
        let first = index << self.shift;
        let mut memory = BytesMut::new();
        for number in first..first + slab.slots {
            // Adjacent slots become one piece again without a copy.
            memory.unsplit(std::mem::take(&mut self.slots[number]));
            self.home[number / 64] &= !(1 << (number % 64));
        }
        memory.unsplit(slab.tail);
        if !slab.is_draining {
            self.free -= slab.slots;
        }
        self.bytes -= slab.bytes;
        Some((memory, slab.pin))
    }

    /// Drains the last slabs until less than one `slot` of another size is lacking, and keeps
    /// `part` bytes. Slabs already draining count. Returns the bytes still lacking.
    fn drain(&mut self, mut lacks: usize, slot: usize, part: usize) -> usize {
        let mut left = self.bytes;
        for index in (0..self.slabs.len()).rev() {
            let Some(slab) = &mut self.slabs[index] else {
                continue;
            };
            if lacks < slot || left.saturating_sub(slab.bytes) < part {
                break;
            }
            (lacks, left) = (lacks.saturating_sub(slab.bytes), left - slab.bytes);
            if std::mem::replace(&mut slab.is_draining, true) {
                continue;
            }
            self.free -= slab.home;
            let first = index << self.shift;
            (first..first + slab.slots)
                .for_each(|number| self.home[number / 64] &= !(1 << (number % 64)));
        }
        lacks
    }

    /// Ends the draining of one slab whose slots are all at home but unclaimed. Returns whether
    /// there was one.
    fn stop_draining(&mut self) -> bool {
        let is_left = |slab: &Option<Slab>| {
            slab.as_ref()
                .is_some_and(|slab| slab.is_draining && slab.home == slab.slots)
        };
        let Some(index) = self.slabs.iter().position(is_left) else {
            return false;
        };
        let Some(slab) = &mut self.slabs[index] else {
            return false;
        };
        slab.is_draining = false;
        self.free += slab.slots;
        let first = index << self.shift;
        (first..first + slab.slots).for_each(|number| self.home[number / 64] |= 1 << (number % 64));
        true
    }

    /// Starts at the front again when the next slot is far beyond the number in use. Recently sent
    /// memory is still in the processor's caches, to which a device writes; a cycle through a whole
    /// large pool would never hit them.
    fn turn_back(&mut self, front: usize) {
        if self.next > 2 * self.out + front {
            self.next = 0;
        }
    }

    /// Takes the next free slot in memory order, wrapping around.
    fn take(&mut self) -> Option<(usize, BytesMut)> {
        if self.free == 0 {
            return None;
        }
        let (words, start) = (self.home.len(), self.next / 64);
        let from_next = self.home[start] & (u64::MAX << (self.next % 64));
        let word = if from_next != 0 {
            start
        } else {
            (1..=words)
                .map(|step| (start + step) % words)
                .find(|&word| self.home[word] != 0)?
        };
        let bits = if from_next != 0 {
            from_next
        } else {
            self.home[word]
        };
        let number = word * 64 + bits.trailing_zeros() as usize;
        self.home[word] &= !(1 << (number % 64));
        self.free -= 1;
        self.out += 1;
        if let Some(slab) = &mut self.slabs[number >> self.shift] {
            slab.home -= 1;
        }
        self.next = if number + 1 < self.slots.len() {
            number + 1
        } else {
            0
        };
        Some((number, std::mem::take(&mut self.slots[number])))
    }

    fn give_back(&mut self, number: usize, bytes: BytesMut) {
        self.slots[number] = bytes;
        self.out -= 1;
        let Some(slab) = &mut self.slabs[number >> self.shift] else {
            return;
        };
        slab.home += 1;
        if !slab.is_draining {
            self.home[number / 64] |= 1 << (number % 64);
            self.free += 1;
        }
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
    /// If the header is longer than the headroom.
    pub fn write_header(&mut self, header: &[u8]) -> usize {
        let start = self.headroom - header.len();
        self.bytes[start..self.headroom].copy_from_slice(header);
        start
    }

    /// Bytes of headroom and payload.
    pub fn size(&self) -> usize {
        self.size
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
            // A dead or hanging device has kept the memory: replace it.
            self.home.pool.is_torn.store(1, Ordering::Release);
            bytes = BytesMut::zeroed(self.size);
        }
        self.home
            .pool
            .give_back(self.home.shelf, self.number, bytes);
        if let Some(quota) = self.held_by.take() {
            quota.release();
        }
    }
}

impl Quota {
    /// A quota of `limit` slots.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            held: AtomicUsize::new(0),
            released: AtomicUsize::new(0),
            limit,
            waiting: Mutex::new(None),
        })
    }

    /// How many more slots the session may hold with this `share` of the ring. If none, `waker` is
    /// called when one is acknowledged.
    pub fn room(&self, share: usize, waker: &Waker) -> usize {
        let room = self.free(share);
        if room > 0 {
            return room;
        }
        *self
            .waiting
            .lock()
            .expect("no code panics while it holds a quota") = Some(waker.clone());
        // A slot may have returned between the look and the registration.
        self.free(share)
    }

    /// The number of slots held.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Acquire)
    }

    /// The number of slots returned in all.
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
        let woken = self
            .waiting
            .lock()
            .expect("no code panics while it holds a quota")
            .take();
        if let Some(waker) = woken {
            waker.wake();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("out_bytes", &self.out_bytes)
            .field("budget_bytes", &self.budget)
            .finish()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}
