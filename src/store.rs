//! Which segments are held, where, within which budget, and which go first.
//!
//! Whoever wants a segment that is used while it is wanted gets a [`Held`] with a lease, and as long as a clone of the lease lives and
//! blocks leave, the segment stays. Room is made by eviction: what has expired first, then what was used least recently, then what is
//! leased though no block of it has left for a second: its leases are void then. Of what is not in use that goes last which somebody has
//! just been told of (`named`), who may be about to ask for its blocks. What is in use stays as long as it takes no more than
//! three quarters of the budget; beyond that goes what is read slowest for its size. If that leaves no room either, the new segment is
//! refused, and nothing waits for a viewer to finish.
//!
//! A device with memory of its own makes a second tier: the bytes of every segment are in this process's memory, and copies of
//! some in the device's, each tier within its budget. The newest live segments are copied when they come in, others when the
//! encoder first asks for them ([`Store::resident`]); a copy that makes room for another costs its segment nothing but the next
//! upload. A device that works in this process's memory has its form of each segment, and nothing else is held. What goes to make
//! room is [`index`]'s decision, how much there may be [`budget`]'s; neither does I/O.
//!
//! Segments that are coded over the prime field have no form of a device's own: their bytes are held, beside the homomorphic hashes of their blocks, which
//! are made when they are taken in, one segment after the other, and count as part of them. Where a card does that arithmetic it has copies of the bytes,
//! as of other segments; but nobody waits for one, because blocks can be made without.
//!
//! A copy on its way to the device has a task (`loading`); everything else is done in the task of the caller. A lock is held for
//! moments only and never across an `await`. Bytes that are on their way count against their budget from before they are sent.

use std::fmt;
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, Semaphore, broadcast};

use crate::device::{self, Batch, Device, Kept, Resident, Task};
use crate::gf::Rows;
use crate::integrity::hashes::BlockHashes;
use crate::object::{Birth, Codec, Coding, FirstPass, Generation, HashGroup, Held, Lease, SegmentId, SegmentKey, Shape, Tree};

pub mod budget;
pub mod index;
mod loading;
pub mod metrics;
mod named;
mod order;
mod portion;
mod state;

pub use metrics::Metrics;
pub use portion::{NoPortion, Portion};

use index::{Name, Tier};
use state::{Evicted, Form, Found, Hashes, State};

/// Section `[store]` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How much memory of this process held segments may occupy.
    #[serde(with = "crate::units::size")]
    pub bytes: ByteSize,
    /// How much memory of the device their copies may occupy, if it has memory of its own.
    pub device_bytes: Portion,
}

impl Default for Config {
    fn default() -> Self {
        Self { bytes: ByteSize::mib(512), device_bytes: Portion::Percent(80) }
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
    /// Coefficients other than zero in a row of its coded blocks, where rows are sparse.
    pub row_weight: Option<NonZeroU16>,
    /// When it came to be, if it is live.
    pub birth: Option<Arc<Birth>>,
    /// Whether it is copied to the device before anybody asks.
    pub eager: bool,
    /// Where it lies, with the stream's name in front.
    pub path: Option<Arc<str>>,
    /// Whether the hashes of its blocks are kept with it.
    pub hashed: bool,
    /// Whether its stream is published no more; looked at while nobody else changes what is held. Set it before [`Store::withdraw`].
    pub withdrawn: Arc<AtomicBool>,
}

/// Why a segment was not taken in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It would not fit if everything else went.
    #[error("a segment of {bytes} bytes does not fit into the store: raise store.bytes = {budget}")]
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
    /// Its stream is published no more.
    #[error("the stream is no longer published")]
    Withdrawn,
    /// The device did not take it.
    #[error("cannot load the segment into the device: {0}")]
    Device(#[from] device::Error),
}

/// What there is of a segment on the device.
#[derive(Debug, Clone)]
pub enum Residency {
    /// It is there.
    Ready(OnDevice),
    /// Its blocks are made of its bytes as they are, wherever those are: they are no combinations of bytes.
    Plain(Plain),
    /// It is on its way; [`Store::loads`] tells when to ask again.
    Loading,
    /// The segment is not held any more.
    Gone,
}

/// A held segment that is on the device.
#[derive(Debug, Clone)]
pub struct OnDevice {
    /// The device knows it by this. It stays while the `Arc` lives, so let go of it soon.
    pub resident: Arc<Resident>,
    /// How it is cut.
    pub shape: Shape,
    /// The segment on the wire.
    pub id: SegmentId,
    /// Coefficients other than zero in a row of its coded blocks, where rows are sparse.
    pub row_weight: Option<NonZeroU16>,
}

/// A held segment whose blocks are made of its bytes.
#[derive(Debug, Clone)]
pub struct Plain {
    /// All of them.
    pub bytes: Bytes,
    /// How the segment is cut.
    pub shape: Shape,
    /// What the device has of them, if it has. It stays while the `Arc` lives, so let go of it soon.
    pub kept: Option<Arc<dyn Kept>>,
}

struct Shared {
    config: Config,
    device: Device,
    memory: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    metrics: Metrics,
    evicted: broadcast::Sender<SegmentKey>,
    loaded: broadcast::Sender<SegmentKey>,
    state: Mutex<State>,
    /// Places for loads that have left the queue.
    loads: Semaphore,
    /// The turn to wait for room on the device.
    room: tokio::sync::Mutex<()>,
    /// The turn to make homomorphic hashes.
    hashing: Turns,
    /// Rung when copies may be in use no longer.
    unused: Notify,
    is_failing: AtomicBool,
}

/// Turns at something that one has at a time. Of those who have time one waits beside those in a hurry, whom it delays once at most.
#[derive(Default)]
struct Turns {
    turn: tokio::sync::Mutex<()>,
    patience: tokio::sync::Mutex<()>,
}

impl Turns {
    /// The turn, until it is dropped. Both kinds have theirs in the order in which they came.
    async fn turn(&self, is_urgent: bool) -> tokio::sync::MutexGuard<'_, ()> {
        let _patience = if is_urgent { None } else { Some(self.patience.lock().await) };
        self.turn.lock().await
    }
}

impl Store {
    /// An empty store on this device.
    pub fn new(config: &Config, device: Device, metrics: Metrics) -> Self {
        let asked = device.clone();
        Self::with_tiers(config, device, metrics, move || asked.memory().map(|memory| memory.total))
    }

    /// The same where `memory` says how much memory of its own the device has: `None` from the start means one tier, and later that it
    /// was lost.
    pub(crate) fn with_tiers(
        config: &Config,
        device: Device,
        metrics: Metrics,
        memory: impl Fn() -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        let host = config.bytes.as_u64();
        let state = State::new(host, memory().map(|total| config.device_bytes.of(total)));
        metrics.tier(Tier::Host).budget(host);
        metrics.tier(Tier::Device).budget(state.device.map_or(0, |budget| budget.limit()));
        Self {
            shared: Arc::new(Shared {
                config: config.clone(),
                device,
                memory: Box::new(memory),
                metrics,
                evicted: broadcast::channel(TOLD_MAX).0,
                loaded: broadcast::channel(TOLD_MAX).0,
                state: Mutex::new(state),
                loads: Semaphore::new(loading::LOADS_AT_ONCE),
                room: tokio::sync::Mutex::default(),
                hashing: Turns::default(),
                unused: Notify::new(),
                is_failing: AtomicBool::new(false),
            }),
        }
    }

    /// Takes a segment in, and gives the one already held if these bytes are, with this coding. Makes room if it has to. Waits for the device only
    /// where that is all that holds it. Must be called within a tokio runtime.
    pub async fn insert(&self, bytes: Bytes, shape: Shape, placement: Placement) -> Result<Held, Error> {
        if bytes.len() as u64 != shape.length() {
            return Err(device::Error::Length { length: bytes.len(), shape: shape.length() }.into());
        }
        let (id, tree) = identify(&bytes, shape.codec()).await;
        if let Some(held) = self.shared.hold_again(&(id, shape.coding()), &placement)? {
            return if placement.hashed { self.with_hashes(held, &bytes, &placement).await } else { Ok(held) };
        }
        let is_bytes = self.shared.has_two_tiers() || shape.codec().is_proving();
        let length = if is_bytes { shape.length() } else { state::padded(&shape) };
        // Before anything is made of it, which may take long.
        let tree_bytes = tree.as_ref().map_or(0, |tree| tree.values().len() as u64);
        let hash_bytes = if placement.hashed { BlockHashes::bytes(&shape) } else { 0 };
        let reservation = self.shared.reserve(length + tree_bytes + hash_bytes)?;
        let hashes = if placement.hashed { Some(self.hash(&bytes, shape, &placement).await?) } else { None };
        let (form, cost) = if is_bytes {
            (Form::Bytes { bytes, copy: None, load: None }, shape.length() + tree_bytes)
        } else {
            let resident = self.load(bytes, shape).await?;
            let cost = resident.resident_bytes() + tree_bytes;
            (Form::Resident(Arc::new(resident)), cost)
        };
        self.shared.admit((id, tree), shape, (form, hashes), cost, reservation, &placement)
    }

    /// The same segment with its hashes, which were not asked for when it was taken in.
    async fn with_hashes(&self, held: Held, bytes: &Bytes, placement: &Placement) -> Result<Held, Error> {
        if held.blocks_digest.is_some() {
            return Ok(held);
        }
        let key = held.lease.key;
        let hashes = self.hash(bytes, held.lease.shape, placement).await?;
        let mut gone = Vec::new();
        let mut state = self.shared.state();
        state.keep_hashes(key, hashes);
        state.shrink(Instant::now(), &mut gone);
        let with_hashes = state.held(key);
        self.shared.publish(state, gone);
        Ok(with_hashes.unwrap_or(held))
    }

    /// Hashes the blocks of a segment, of a long one where that holds nobody up. Homomorphic hashes take far longer than any others: such segments wait
    /// for their turn, so that all that there is to hash with is on one of them, and what is live does not wait for what is not.
    async fn hash(&self, bytes: &Bytes, shape: Shape, placement: &Placement) -> Result<Hashes, Error> {
        let Codec::RlncQ { group } = shape.codec() else { return Ok(hash(bytes, shape).await) };
        let turn = self.shared.hashing.turn(placement.birth.is_some()).await;
        let begun = Instant::now();
        let made = match self.homomorphic_hashes(group, bytes, shape).await {
            // A card has hung over them: the cores make them.
            Err(device::Error::Lost(_)) => self.homomorphic_hashes(group, bytes, shape).await?,
            made => made?,
        };
        drop(turn);
        self.shared.metrics.homomorphic_hashes.inc_by(shape.blocks());
        self.shared.metrics.homomorphic_seconds.observe(begun.elapsed().as_secs_f64());
        Ok(Hashes::made(made, &shape))
    }

    async fn homomorphic_hashes(&self, group: HashGroup, bytes: &Bytes, shape: Shape) -> Result<Vec<u8>, device::Error> {
        let bytes = bytes.clone();
        let made = self.shared.device.compute(move |arithmetic| {
            let blocks: Vec<&[u8]> = bytes.chunks(shape.block_bytes() as usize).collect();
            arithmetic.hash(group, shape.words(), &blocks)
        });
        made.await?.map_err(|failed| device::Error::Unavailable(failed.to_string()))
    }

    /// The hashes of a held segment's blocks, if they are kept.
    pub fn hashes(&self, key: SegmentKey) -> Option<BlockHashes> {
        self.shared.state().hashes(key).map(|hashes| hashes.blocks.clone())
    }

    /// The bytes of a generation, perhaps with the padding of its last block; `None` if the segment is not held any more. Waits for the
    /// device where the segment is held in its form alone.
    pub async fn generation(&self, lease: &Lease, generation: &Generation) -> Result<Option<Bytes>, device::Error> {
        let place = |at: u64| usize::try_from(at).expect("a segment fits in memory");
        let resident = match self.shared.state().form(lease.key) {
            None => return Ok(None),
            Some(Form::Bytes { bytes, .. }) => {
                return Ok(Some(bytes.slice(place(generation.offset)..place(generation.offset + generation.length))));
            }
            Some(Form::Resident(resident)) => Arc::clone(resident),
        };
        let mut rest = BytesMut::zeroed(place(generation.padded_length()));
        let out = (0..generation.n).map(|_| rest.split_to(place(generation.block_bytes.into()))).collect();
        let rows = Rows::Source { indices: (0..generation.n).collect() };
        let task = Task { resident, generation: generation.index, rows, out, out_offset: 0 };
        let done = self.shared.device.combine(Batch { tasks: vec![task] }).await;
        self.settled();
        let mut slots = done.map_err(|failed| failed.error)?.batch.tasks.into_iter().flat_map(|task| task.out);
        let mut bytes = slots.next().unwrap_or_default();
        slots.for_each(|slot| bytes.unsplit(slot));
        Ok(Some(bytes.freeze()))
    }

    /// A held segment, kept until the last clone of its lease is dropped. Without a coding the one that was taken in last of those with these bytes.
    pub fn lookup(&self, id: &SegmentId, coding: Option<Coding>) -> Option<Held> {
        let mut state = self.shared.state();
        let key = match coding {
            Some(coding) => state.index.find(&(*id, coding)),
            None => state.index.newest(id),
        }?;
        state.index.touch(Tier::Host, key);
        state.held(key)
    }

    /// What the device knows a held segment by. If it does not have it, it is told to load it: once, however many ask. Of what is coded over the
    /// prime field the bytes are there at once. Must be called within a tokio runtime.
    pub fn resident(&self, key: SegmentKey) -> Residency {
        let mut gone = Vec::new();
        let mut state = self.shared.state();
        let found = state.find(key, &mut gone);
        match &found {
            Found::Missing => self.shared.begin_load(&mut state, key, true),
            Found::Plain(Plain { kept: None, .. }) => self.shared.begin_load(&mut state, key, false),
            _ => {}
        }
        if gone.is_empty() {
            drop(state);
        } else {
            self.shared.publish(state, gone);
        }
        match found {
            Found::Ready(found) => Residency::Ready(found),
            Found::Plain(found) => Residency::Plain(found),
            Found::Loading | Found::Missing => Residency::Loading,
            Found::Gone => Residency::Gone,
        }
    }

    /// Segments whose loads have ended, from now on, well or not: [`Store::resident`] says which. A receiver that lags asks again
    /// about all that it waits for.
    pub fn loads(&self) -> broadcast::Receiver<SegmentKey> {
        self.shared.loaded.subscribe()
    }

    /// To be called when a batch has ended and what it read is let go: a load may wait for just that.
    pub fn settled(&self) {
        self.shared.unused.notify_one();
    }

    /// Whether a segment is held.
    pub fn is_held(&self, key: SegmentKey) -> bool {
        self.shared.state().is_held(key)
    }

    /// Notes that a segment is used, so that others go before it.
    pub fn touch(&self, key: SegmentKey) {
        self.shared.state().index.touch(Tier::Host, key);
    }

    /// Notes that an account was just told of a held segment in answer to its question: it may ask for its blocks soon.
    pub fn note_named(&self, lease: &Lease, account: u128, now: Instant) {
        self.shared.state().note_named(lease.key, account, now);
    }

    /// Lets a segment go at `at`, before all that have not expired then.
    pub fn expire(&self, id: &SegmentId, coding: Coding, at: Instant) {
        let mut state = self.shared.state();
        if let Some(key) = state.index.find(&(*id, coding)) {
            state.index.set_expiry(key, Some(at));
        }
    }

    /// Lets segments go at once that lie at such paths, whoever uses them.
    pub fn withdraw(&self, is_meant: impl Fn(&str) -> bool) {
        let mut gone = Vec::new();
        let mut state = self.shared.state();
        state.withdraw(is_meant, &mut gone);
        self.shared.publish(state, gone);
    }

    /// Evicts what has expired and is not in use, and what lost devices had. Call it every second or so.
    pub fn sweep(&self, now: Instant) {
        let mut gone = Vec::new();
        let mut state = self.shared.state();
        self.shared.heed_losses(&mut state, &mut gone);
        // A load may have ended on a device just lost.
        state.drop_dead(&mut gone);
        state.sweep(now, &mut gone);
        self.shared.publish(state, gone);
    }

    /// Bytes of a segment that was refused because every held one is in use, as long as that is so.
    pub fn refused(&self, now: Instant) -> Option<u64> {
        self.shared.state().refused(now)
    }

    /// The keys of segments that have gone, from now on. A receiver that lags asks [`Store::is_held`] about the keys it keeps.
    pub fn evictions(&self) -> broadcast::Receiver<SegmentKey> {
        self.shared.evicted.subscribe()
    }

    /// Bytes that held segments occupy on a tier, and how many segments that is.
    pub fn usage(&self, tier: Tier) -> (u64, usize) {
        let state = self.shared.state();
        (state.index.bytes(tier), state.index.len(tier))
    }

    /// Brings the bytes to a device that shares this process's memory, of which there may be less than the budget says.
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

    fn has_two_tiers(&self) -> bool {
        self.state().device.is_some()
    }

    fn hold_again(self: &Arc<Self>, name: &Name, placement: &Placement) -> Result<Option<Held>, Error> {
        let mut state = self.state();
        placement.check()?;
        let Some(key) = state.index.find(name) else { return Ok(None) };
        state.renew(key, placement);
        if placement.eager {
            self.begin_load(&mut state, key, false);
        }
        Ok(state.held(key))
    }

    /// Speaks for room on the host's tier.
    fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation, Error> {
        let mut gone = Vec::new();
        let mut state = self.state();
        self.heed_losses(&mut state, &mut gone);
        let budget = state.host.limit();
        let outcome = loop {
            if bytes > budget {
                break Err(Error::TooLarge { bytes, budget });
            }
            if state.host.reserve(bytes) {
                break Ok(Reservation { shared: Arc::clone(self), tier: Tier::Host, bytes });
            }
            match state.evict_for_newcomer(Instant::now()) {
                Some(victim) => gone.push(victim),
                None => {
                    state.note_refused(bytes);
                    break Err(Error::Full { bytes });
                }
            }
        };
        self.publish(state, gone);
        if outcome.is_err() {
            self.metrics.refused.inc();
        }
        outcome
    }

    fn admit(
        self: &Arc<Self>,
        (id, tree): (SegmentId, Option<Tree>),
        shape: Shape,
        (form, hashes): (Form, Option<Hashes>),
        cost: u64,
        reservation: Reservation,
        placement: &Placement,
    ) -> Result<Held, Error> {
        let (now, mut gone) = (Instant::now(), Vec::new());
        let mut state = self.state();
        if let Err(error) = placement.check() {
            // What was spoken for is given back when the lock is free.
            drop(state);
            return Err(error);
        }
        let key = match state.index.find(&(id, shape.coding())) {
            // Somebody else was faster: what was made in vain, and what was spoken for, ends when the lock is free.
            Some(key) => {
                state.renew(key, placement);
                key
            }
            None => {
                self.metrics.inserted.inc();
                state.admit((id, tree), shape, form, (reservation.keep(), cost), placement, now)
            }
        };
        if let Some(hashes) = hashes {
            state.keep_hashes(key, hashes);
        }
        if placement.eager {
            self.begin_load(&mut state, key, false);
        }
        let held = state.held(key).expect("what the index holds has a slot");
        state.shrink(now, &mut gone);
        self.publish(state, gone);
        Ok(held)
    }

    fn begin_load(self: &Arc<Self>, state: &mut State, key: SegmentKey, is_wanted: bool) {
        if state.begin_load(key, is_wanted) {
            self.metrics.loads.inc();
            self.metrics.loads_pending.inc();
            tokio::spawn(loading::bring(Arc::clone(self), key));
        }
    }

    fn evict_one(&self) -> bool {
        let mut state = self.state();
        let victim = state.evict(Instant::now());
        let is_one = victim.is_some();
        self.publish(state, victim.map(Evicted::for_memory).into_iter().collect());
        is_one
    }

    /// Lets go what went with a device, and keeps to the memory of the one that works now.
    fn heed_losses(&self, state: &mut State, gone: &mut Vec<Evicted>) {
        if state.has_dead_copies() {
            state.drop_dead(gone);
        }
        let Some(budget) = &mut state.device else { return };
        // Copies beside their bytes in this process's own memory: a part of what it may have is enough for what is in demand.
        let own = || self.config.bytes.as_u64() / OWN_MEMORY_PART;
        let limit = (self.memory)().map_or_else(own, |total| self.config.device_bytes.of(total));
        if budget.limit() != limit {
            budget.set_limit(limit);
            self.metrics.tier(Tier::Device).budget(limit);
        }
    }

    /// Tells of evictions once the lock is free, and brings the gauges up to date.
    fn publish(&self, state: MutexGuard<'_, State>, gone: Vec<Evicted>) {
        for tier in Tier::ALL {
            self.metrics.tier(tier).resident(state.index.bytes(tier), state.index.len(tier));
        }
        drop(state);
        for Evicted { key, id, tier, cause, .. } in gone {
            tracing::trace!(%id, ?tier, ?cause, "segment evicted");
            self.metrics.evicted(tier, cause).inc();
            if tier == Tier::Host {
                // Nobody may be listening yet.
                let _ = self.evicted.send(key);
            }
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, device) = {
            let state = self.state();
            (state.host, state.device)
        };
        let mut shown = f.debug_struct("Shared");
        shown.field("device", &self.device).field("host_budget", &host).field("device_budget", &device).finish_non_exhaustive()
    }
}

impl Placement {
    /// Whether its stream is still published.
    fn check(&self) -> Result<(), Error> {
        if self.withdrawn.load(Ordering::Acquire) { Err(Error::Withdrawn) } else { Ok(()) }
    }
}

/// Bytes spoken for before they are there; given back on drop.
struct Reservation {
    shared: Arc<Shared>,
    tier: Tier,
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
            let mut state = self.shared.state();
            match self.tier {
                Tier::Host => state.host.release(self.bytes),
                Tier::Device => state.device_budget().release(self.bytes),
            }
        }
    }
}

/// Hashes long segments where they hold nobody up.
async fn identify(bytes: &Bytes, codec: Codec) -> (SegmentId, Option<Tree>) {
    if bytes.len() < HASHED_IN_PLACE {
        return Tree::of(bytes, codec);
    }
    let copy = bytes.clone();
    let made = tokio::task::spawn_blocking(move || Tree::of(&copy, codec)).await;
    made.unwrap_or_else(|_| Tree::of(bytes, codec))
}

/// Hashes the blocks of long segments where that holds nobody up.
async fn hash(bytes: &Bytes, shape: Shape) -> Hashes {
    if bytes.len() < HASHED_IN_PLACE {
        return Hashes::of(bytes, &shape);
    }
    let copy = bytes.clone();
    tokio::task::spawn_blocking(move || Hashes::of(&copy, &shape)).await.unwrap_or_else(|_| Hashes::of(bytes, &shape))
}

/// Notices that a receiver may fall behind by.
const TOLD_MAX: usize = 4096;
const LOADS_MAX: usize = 64;
const HASHED_IN_PLACE: usize = 256 << 10;
/// What part of `store.bytes` copies may take besides, where the device has lost its own memory: half of it, and so always a segment.
const OWN_MEMORY_PART: u64 = 2;

#[cfg(test)]
mod tests;
