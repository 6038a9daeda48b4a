//! Which segments are held, within which budget, and which go first.
//!
//! The store owns every segment on the device. Whoever wants one that is used while it is wanted gets a [`Held`] with a lease,
//! and as long as a clone of the lease lives the segment stays. Room is made by eviction: what has expired first, then what was
//! used least recently; if all that is held is in use, the new segment is refused, and nothing waits for a viewer to finish.
//! Which one goes is [`index`]'s decision, how much there may be [`budget`]'s; neither does I/O.
//!
//! There is no task. Work is done in the task of the caller; a lock is held for moments only and never across an `await`.
//! Bytes that are on their way to the device count against the budget from before they are sent.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use crate::device::{self, Device, Resident};
use crate::object::{Birth, FirstPass, Held, Lease, SegmentId, SegmentKey, Shape};

pub mod budget;
pub mod index;
pub mod metrics;

pub use metrics::Metrics;

use budget::Budget;
use index::{Cause, Index};

/// Section `[store]` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How much memory of the device held segments may occupy.
    #[serde(with = "crate::config::size")]
    pub bytes: ByteSize,
}

impl Default for Config {
    fn default() -> Self {
        Self { bytes: ByteSize::mib(512) }
    }
}

/// A handle on the store. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

/// What is known of a segment when it is taken in.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    /// When it may go before all others; `None` for when room is needed.
    pub expires: Option<Instant>,
    /// How its stream wants it sent.
    pub first_pass: FirstPass,
    /// When it came to be, if it is live.
    pub birth: Option<Arc<Birth>>,
}

/// Why a segment was not taken in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It would not fit if everything else went.
    #[error("a segment of {bytes} bytes does not fit into store.bytes = {budget}")]
    TooLarge {
        /// What it takes.
        bytes: u64,
        /// What there is.
        budget: u64,
    },
    /// Everything held is in use. Trying again later may help.
    #[error("no room for {bytes} bytes: every held segment is in use")]
    Full {
        /// What it takes.
        bytes: u64,
    },
    /// The device did not take it.
    #[error("the device does not take the segment: {0}")]
    Device(#[from] device::Error),
}

struct Shared {
    device: Device,
    metrics: Metrics,
    evicted: broadcast::Sender<SegmentKey>,
    state: Mutex<State>,
}

struct State {
    index: Index,
    budget: Budget,
    slots: HashMap<SegmentKey, Slot>,
}

/// A held segment.
struct Slot {
    id: SegmentId,
    shape: Shape,
    resident: Arc<Resident>,
    first_pass: FirstPass,
    birth: Option<Arc<Birth>>,
    /// Its other owners are leases.
    guard: Arc<Guard>,
}

/// What leases share.
struct Guard;

impl Store {
    /// An empty store on this device.
    pub fn new(config: &Config, device: Device, metrics: Metrics) -> Self {
        let limit = config.bytes.as_u64();
        metrics.budget_bytes.set(i64::try_from(limit).unwrap_or(i64::MAX));
        let (evicted, _) = broadcast::channel(EVICTIONS_MAX);
        let state = State { index: Index::default(), budget: Budget::new(limit), slots: HashMap::new() };
        Self { shared: Arc::new(Shared { device, metrics, evicted, state: Mutex::new(state) }) }
    }

    /// Takes a segment in, and gives the one already held if these bytes are. Makes room if it has to; waits for the device.
    pub async fn insert(&self, bytes: Bytes, shape: Shape, placement: Placement) -> Result<Held, Error> {
        let id = identify(&bytes).await;
        if let Some(held) = self.shared.hold_again(&id, &placement) {
            return Ok(held);
        }
        let reservation = self.shared.reserve(shape.blocks().saturating_mul(shape.block_bytes().into()))?;
        let resident = self.load(bytes, shape).await?;
        Ok(self.shared.admit(id, resident, reservation, placement))
    }

    /// A held segment, kept until the last clone of its lease is dropped.
    pub fn lookup(&self, id: &SegmentId) -> Option<Held> {
        let mut state = self.shared.state();
        let key = state.index.find(id)?;
        state.index.touch(key);
        state.held(key)
    }

    /// What the device knows a held segment by. It stays while the `Arc` lives, like under a lease.
    pub fn resident(&self, key: SegmentKey) -> Option<(Arc<Resident>, Shape, SegmentId)> {
        let state = self.shared.state();
        let slot = state.slots.get(&key)?;
        Some((Arc::clone(&slot.resident), slot.shape, slot.id))
    }

    /// Whether a segment is held.
    pub fn is_held(&self, key: SegmentKey) -> bool {
        self.shared.state().slots.contains_key(&key)
    }

    /// Notes that a segment is used, so that others go before it.
    pub fn touch(&self, key: SegmentKey) {
        self.shared.state().index.touch(key);
    }

    /// Lets a segment go at `at`, before all that have not expired then.
    pub fn expire(&self, id: &SegmentId, at: Instant) {
        let mut state = self.shared.state();
        if let Some(key) = state.index.find(id) {
            state.index.set_expiry(key, Some(at));
        }
    }

    /// Evicts what has expired and is not in use. Call it every second or so.
    pub fn sweep(&self, now: Instant) {
        let mut gone = Vec::new();
        let mut state = self.shared.state();
        while let Some(key) = state.index.expired(now, |key| state.is_in_use(key)) {
            gone.extend(state.remove(key).map(|slot| (key, slot, Cause::Expired)));
        }
        self.shared.evicted(state, gone);
    }

    /// The keys of segments that have gone, from now on. A receiver that lags asks [`Store::is_held`] about the keys it keeps.
    pub fn evictions(&self) -> broadcast::Receiver<SegmentKey> {
        self.shared.evicted.subscribe()
    }

    /// Bytes that held segments occupy, and how many segments that is.
    pub fn usage(&self) -> (u64, usize) {
        let state = self.shared.state();
        (state.index.bytes(), state.index.len())
    }

    /// Brings the bytes to the device, which may have less memory than the budget says.
    async fn load(&self, bytes: Bytes, shape: Shape) -> Result<Resident, Error> {
        for _ in 0..LOADS_MAX {
            match self.shared.device.load(bytes.clone(), shape).await {
                Err(device::Error::Memory { .. }) if self.shared.evict_one() => {}
                outcome => return Ok(outcome?),
            }
        }
        Err(Error::Device(device::Error::Memory { bytes: shape.length() }))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold_again(&self, id: &SegmentId, placement: &Placement) -> Option<Held> {
        let mut state = self.state();
        let key = state.index.find(id)?;
        state.renew(key, placement);
        state.held(key)
    }

    fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation, Error> {
        let mut gone = Vec::new();
        let mut state = self.state();
        let budget = state.budget.limit();
        let outcome = loop {
            if bytes > budget {
                break Err(Error::TooLarge { bytes, budget });
            }
            if state.budget.reserve(bytes) {
                break Ok(Reservation { shared: Arc::clone(self), bytes });
            }
            match state.evict(Instant::now()) {
                Some(victim) => gone.push(victim),
                None => break Err(Error::Full { bytes }),
            }
        };
        self.evicted(state, gone);
        if outcome.is_err() {
            self.metrics.refused.inc();
        }
        outcome
    }

    fn admit(&self, id: SegmentId, resident: Resident, reservation: Reservation, placement: Placement) -> Held {
        let bytes = resident.resident_bytes();
        let shape = *resident.shape();
        let mut state = self.state();
        let Some(key) = state.index.insert(id, bytes, placement.expires) else {
            // Somebody else was faster; `resident` and the reservation end here.
            let key = state.index.find(&id).expect("an id that cannot be inserted is held");
            state.renew(key, &placement);
            return state.held(key).expect("what the index holds has a slot");
        };
        state.budget.correct(reservation.keep(), bytes);
        let Placement { first_pass, birth, .. } = placement;
        let slot = Slot { id, shape, resident: Arc::new(resident), first_pass, birth, guard: Arc::new(Guard) };
        state.slots.insert(key, slot);
        let held = state.held(key).expect("it was put there a line ago");
        let mut gone = Vec::new();
        while state.budget.used() > state.budget.limit() {
            let Some(victim) = state.evict(Instant::now()) else { break };
            gone.push(victim);
        }
        self.metrics.inserted.inc();
        self.evicted(state, gone);
        held
    }

    fn evict_one(&self) -> bool {
        let mut state = self.state();
        let victim = state.evict(Instant::now());
        let is_one = victim.is_some();
        self.evicted(state, victim.into_iter().collect());
        is_one
    }

    /// Tells of evictions once the lock is free, and brings the gauges up to date.
    fn evicted(&self, state: MutexGuard<'_, State>, gone: Vec<(SegmentKey, Slot, Cause)>) {
        self.metrics.resident_bytes.set(i64::try_from(state.index.bytes()).unwrap_or(i64::MAX));
        self.metrics.resident_segments.set(i64::try_from(state.index.len()).unwrap_or(i64::MAX));
        drop(state);
        for (key, slot, cause) in gone {
            tracing::trace!(id = %slot.id, ?cause, "segment evicted");
            self.metrics.evicted(cause).inc();
            // Nobody may be listening yet.
            let _ = self.evicted.send(key);
        }
    }
}

impl State {
    fn held(&self, key: SegmentKey) -> Option<Held> {
        let slot = self.slots.get(&key)?;
        let lease = Lease::new(key, slot.id, slot.shape, Arc::clone(&slot.guard) as _);
        Some(Held { lease, first_pass: slot.first_pass, birth: slot.birth.clone() })
    }

    fn is_in_use(&self, key: SegmentKey) -> bool {
        self.slots.get(&key).is_some_and(|slot| Arc::strong_count(&slot.guard) > 1 || Arc::strong_count(&slot.resident) > 1)
    }

    /// A segment that is wanted again stays at least as long as the new wish says.
    fn renew(&mut self, key: SegmentKey, placement: &Placement) {
        let before = self.index.entry(key).and_then(|entry| entry.expires);
        self.index.set_expiry(key, before.zip(placement.expires).map(|(before, now)| before.max(now)));
        self.index.touch(key);
    }

    fn evict(&mut self, now: Instant) -> Option<(SegmentKey, Slot, Cause)> {
        let (key, cause) = self.index.victim(now, |key| self.is_in_use(key))?;
        self.remove(key).map(|slot| (key, slot, cause))
    }

    fn remove(&mut self, key: SegmentKey) -> Option<Slot> {
        let entry = self.index.remove(key)?;
        self.budget.release(entry.bytes);
        self.slots.remove(&key)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("device", &self.device).field("budget", &self.state().budget).finish_non_exhaustive()
    }
}

/// Bytes spoken for before they are there; given back on drop.
struct Reservation {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Reservation {
    /// Leaves the bytes with the budget. May be called while the lock is held.
    fn keep(mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.shared.state().budget.release(self.bytes);
        }
    }
}

/// Hashes long segments where they hold nobody up.
async fn identify(bytes: &Bytes) -> SegmentId {
    if bytes.len() < HASHED_IN_PLACE {
        return SegmentId::of(bytes);
    }
    let copy = bytes.clone();
    tokio::task::spawn_blocking(move || SegmentId::of(&copy)).await.unwrap_or_else(|_| SegmentId::of(bytes))
}

const EVICTIONS_MAX: usize = 4096;
const LOADS_MAX: usize = 64;
const HASHED_IN_PLACE: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const K: u32 = 64;

    fn store(bytes: u64) -> Store {
        let registry = prometheus::Registry::new();
        let config = device::Config { backend: device::BackendChoice::Cpu, ..device::Config::default() };
        let (device, thread) = Device::open(&config, &registry).unwrap();
        // The thread ends with the last handle of the device.
        std::mem::forget(thread);
        Store::new(&Config { bytes: ByteSize::b(bytes) }, device, Metrics::new(&registry).unwrap())
    }

    fn segment(number: u8) -> (Bytes, Shape) {
        (Bytes::from(vec![number; 1024]), Shape::new(1024, K, 8).unwrap())
    }

    /// What the device takes for one of these segments.
    async fn cost() -> u64 {
        let store = store(1 << 20);
        insert(&store, 0, None).await.unwrap();
        store.usage().0
    }

    async fn insert(store: &Store, number: u8, expires: Option<Instant>) -> Result<Held, Error> {
        let (bytes, shape) = segment(number);
        store.insert(bytes, shape, Placement { expires, ..Placement::default() }).await
    }

    fn id(number: u8) -> SegmentId {
        SegmentId::of(&segment(number).0)
    }

    #[tokio::test]
    async fn the_same_bytes_are_held_once() {
        let store = store(1 << 20);
        let (one, again) = (insert(&store, 1, None).await.unwrap(), insert(&store, 1, None).await.unwrap());
        assert_eq!(one.lease.key, again.lease.key);
        assert_eq!(store.usage().1, 1);
        assert_eq!(store.lookup(&id(1)).unwrap().lease.id, id(1));
        assert!(store.lookup(&id(2)).is_none());
        assert_eq!(store.resident(one.lease.key).unwrap().2, id(1));
    }

    #[tokio::test]
    async fn many_at_once_of_the_same_are_one() {
        let store = store(1 << 20);
        let inserts = (0..16).map(|_| insert(&store, 1, None));
        let held: Vec<Held> = futures_util::future::join_all(inserts).await.into_iter().map(Result::unwrap).collect();
        assert!(held.iter().all(|other| other.lease.key == held[0].lease.key));
        assert_eq!(store.usage().1, 1);
        let used = store.shared.state().budget.used();
        assert_eq!(used, store.usage().0);
    }

    #[tokio::test]
    async fn the_least_recently_used_goes() {
        let store = store(cost().await * 3);
        let mut evictions = store.evictions();
        let mut keys = Vec::new();
        for number in 0..3 {
            keys.push(insert(&store, number, None).await.unwrap().lease.key);
        }
        store.lookup(&id(0)).unwrap();
        insert(&store, 3, None).await.unwrap();
        assert_eq!(evictions.try_recv(), Ok(keys[1]));
        assert!(!store.is_held(keys[1]) && store.is_held(keys[0]));
        store.touch(keys[2]);
        insert(&store, 4, None).await.unwrap();
        assert_eq!(evictions.try_recv(), Ok(keys[0]));
    }

    #[tokio::test]
    async fn the_expired_go_first() {
        let store = store(cost().await * 3);
        insert(&store, 0, None).await.unwrap();
        insert(&store, 1, None).await.unwrap();
        let expired = insert(&store, 2, Some(Instant::now())).await.unwrap().lease.key;
        insert(&store, 3, None).await.unwrap();
        assert!(!store.is_held(expired));
        assert!(store.lookup(&id(0)).is_some());
        assert_eq!(store.shared.metrics.evicted(Cause::Expired).get(), 1);
    }

    #[tokio::test]
    async fn what_is_leased_stays() {
        let store = store(cost().await * 2);
        let leases = (insert(&store, 0, Some(Instant::now())).await.unwrap(), insert(&store, 1, None).await.unwrap());
        assert!(matches!(insert(&store, 2, None).await, Err(Error::Full { .. })));
        store.sweep(Instant::now() + Duration::from_secs(1));
        assert_eq!(store.usage().1, 2);
        assert_eq!(store.shared.metrics.refused.get(), 1);

        let batch = store.resident(leases.0.lease.key).unwrap();
        drop(leases.0);
        assert!(matches!(insert(&store, 2, None).await, Err(Error::Full { .. })), "a batch reads it");
        drop(batch);
        insert(&store, 2, None).await.unwrap();
        assert!(store.lookup(&id(0)).is_none());
        assert!(store.lookup(&id(1)).is_some());
    }

    #[tokio::test]
    async fn a_sweep_takes_what_has_expired() {
        let store = store(1 << 20);
        let now = Instant::now();
        drop((insert(&store, 0, Some(now)).await, insert(&store, 1, None).await, insert(&store, 2, None).await));
        store.expire(&id(1), now + Duration::from_secs(10));
        store.sweep(now);
        assert_eq!(store.usage().1, 2);
        // Wanted again without an end.
        insert(&store, 1, None).await.unwrap();
        store.sweep(now + Duration::from_secs(10));
        assert_eq!(store.usage().1, 2);
        store.expire(&id(1), now);
        store.sweep(now);
        assert_eq!(store.usage().1, 1);
        assert_eq!(store.shared.metrics.resident_segments.get(), 1);
    }

    #[tokio::test]
    async fn what_can_never_fit_is_said_to() {
        let store = store(100);
        assert!(matches!(insert(&store, 0, None).await, Err(Error::TooLarge { .. })));
        assert_eq!(store.shared.state().budget.used(), 0);
    }
}
