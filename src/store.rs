//! The segments held: where, within which budget, and in which order they are evicted.
//!
//! A user of a segment gets a [`Held`] with a lease. As long as a clone of the lease lives and
//! blocks leave, the segment stays. Eviction makes room in this order: expired segments, then the
//! least recently used, then leased segments of which no block has left for a second (their leases
//! become void). Of the segments that are not in use, those just named to a client (`named`), who
//! may soon request their blocks, go last. Segments in use stay while they take no more than three
//! quarters of the budget; beyond that, the one read slowest for its size goes. If even that leaves
//! no room, the new segment is refused; nothing waits for a viewer to finish.
//!
//! A device with memory of its own makes a second tier. The bytes of every segment are in this
//! process's memory, and copies of some in the device's, each tier within its budget. New live
//! segments are copied when they come in, others when the encoder first asks for them
//! ([`Store::resident`]). Evicting a copy costs its segment nothing but the next upload. A device
//! that works in this process's memory keeps its form of each segment, and nothing else is held.
//! [`index`] decides what is evicted, [`budget`] how much may be held; neither does I/O.
//!
//! Segments coded over the prime field have no device form. Their bytes are held, with the
//! homomorphic hashes of their blocks; these are computed on insertion, one segment after the
//! other, and count as part of the segment. Where a card does that arithmetic it has copies of the
//! bytes, as of other segments. Nobody waits for such a copy, because blocks can be made without
//! it.
//!
//! A copy on its way to the device has a task (`loading`); everything else runs in the caller's
//! task. Locks are held briefly and never across an `await`. Bytes on their way count against their
//! budget before they are sent.

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
use crate::object::{
    Birth, Codec, Coding, FirstPass, Generation, HashGroup, Held, Lease, SegmentId, SegmentKey,
    Shape, Tree,
};

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
    /// The maximum memory of this process for held segments.
    #[serde(with = "crate::units::size")]
    pub bytes: ByteSize,
    /// The maximum memory of the device for their copies, if it has memory of its own.
    pub device_bytes: Portion,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bytes: ByteSize::mib(512),
            device_bytes: Portion::Percent(80),
        }
    }
}

/// A handle on the store. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

/// Properties of a segment on insertion.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    /// When it may be evicted before all others; `None`: only when room is needed.
    pub expires: Option<Instant>,
    /// How its blocks are sent first, by its stream's settings.
    pub first_pass: FirstPass,
    /// Non-zero coefficients in a row of its coded blocks, where rows are sparse.
    pub row_weight: Option<NonZeroU16>,
    /// When it was produced, if it is live.
    pub birth: Option<Arc<Birth>>,
    /// Whether it is copied to the device before any request.
    pub eager: bool,
    /// Its path, beginning with the stream's name.
    pub path: Option<Arc<str>>,
    /// Whether the hashes of its blocks are kept with it.
    pub hashed: bool,
    /// Whether its stream has been withdrawn; read under the store's lock. Set it before
    /// [`Store::withdraw`].
    pub withdrawn: Arc<AtomicBool>,
}

/// Why a segment was not taken in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Larger than the whole budget.
    #[error("a segment of {bytes} bytes does not fit into the store: raise store.bytes = {budget}")]
    TooLarge {
        /// The size of the segment.
        bytes: u64,
        /// The budget.
        budget: u64,
    },
    /// All held segments are in use. A later attempt may succeed.
    #[error("no room for {bytes} bytes: every held segment is in use")]
    Full {
        /// The size of the segment.
        bytes: u64,
    },
    /// Its stream was withdrawn.
    #[error("the stream is no longer published")]
    Withdrawn,
    /// The device refused it.
    #[error("cannot load the segment into the device: {0}")]
    Device(#[from] device::Error),
}

/// The state of a segment on the device.
#[derive(Debug, Clone)]
pub enum Residency {
    /// Resident on the device.
    Ready(OnDevice),
    /// Its blocks are made of its plain bytes, wherever those are: they are not combinations over
    /// bytes.
    Plain(Plain),
    /// Being loaded; [`Store::loads`] tells when to ask again.
    Loading,
    /// Not held any more.
    Gone,
}

/// A held segment that is on the device.
#[derive(Debug, Clone)]
pub struct OnDevice {
    /// The device's handle. The copy stays while the `Arc` lives, so drop it soon.
    pub resident: Arc<Resident>,
    /// Its shape.
    pub shape: Shape,
    /// Its id on the wire.
    pub id: SegmentId,
    /// Non-zero coefficients in a row of its coded blocks, where rows are sparse.
    pub row_weight: Option<NonZeroU16>,
}

/// A held segment whose blocks are made of its plain bytes.
#[derive(Debug, Clone)]
pub struct Plain {
    /// All bytes of the segment.
    pub bytes: Bytes,
    /// Its shape.
    pub shape: Shape,
    /// The device's copy of the bytes, if there is one. It stays while the `Arc` lives, so drop it
    /// soon.
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
    /// Permits for loads that have left the queue.
    loads: Semaphore,
    /// The turn to wait for room on the device.
    room: tokio::sync::Mutex<()>,
    /// The turn to compute homomorphic hashes.
    hashing: Turns,
    /// Notified when copies may have become unused.
    unused: Notify,
    is_failing: AtomicBool,
}

/// Turns for a resource used by one task at a time. Only one task that is not urgent waits beside
/// the urgent ones, so it delays each of them at most once.
#[derive(Default)]
struct Turns {
    turn: tokio::sync::Mutex<()>,
    patience: tokio::sync::Mutex<()>,
}

impl Turns {
    /// The turn, until it is dropped. Urgent and other tasks are each served in order of arrival.
    async fn turn(&self, is_urgent: bool) -> tokio::sync::MutexGuard<'_, ()> {
        let _patience = if is_urgent {
            None
        } else {
            Some(self.patience.lock().await)
        };
        self.turn.lock().await
    }
}

impl Store {
    /// An empty store on this device.
    pub fn new(config: &Config, device: Device, metrics: Metrics) -> Self {
        let asked = device.clone();
        Self::with_tiers(config, device, metrics, move || {
            asked.memory().map(|memory| memory.total)
        })
    }

    /// The same, where `memory` tells how much memory of its own the device has: `None` at the
    /// start means one tier; `None` later, that the memory was lost.
    pub(crate) fn with_tiers(
        config: &Config,
        device: Device,
        metrics: Metrics,
        memory: impl Fn() -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        let host = config.bytes.as_u64();
        let state = State::new(host, memory().map(|total| config.device_bytes.of(total)));
        metrics.tier(Tier::Host).budget(host);
        metrics
            .tier(Tier::Device)
            .budget(state.device.map_or(0, |budget| budget.limit()));
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

    /// Inserts a segment, or returns the one already held with these bytes and this coding. Makes
    /// room if necessary. Waits for the device only if the device alone holds the segment. Must be
    /// called within a tokio runtime.
    pub async fn insert(
        &self,
        bytes: Bytes,
        shape: Shape,
        placement: Placement,
    ) -> Result<Held, Error> {
        if bytes.len() as u64 != shape.length() {
            return Err(device::Error::Length {
                length: bytes.len(),
                shape: shape.length(),
            }
            .into());
        }
        let (id, tree) = identify(&bytes, shape.codec()).await;
        if let Some(held) = self.shared.hold_again(&(id, shape.coding()), &placement)? {
            if !placement.hashed || held.blocks_digest.is_some() {
                return Ok(held);
            }
            if let Some(held) = self.with_hashes(&held, &bytes, &placement).await? {
                return Ok(held);
            }
        }
        let is_bytes = self.shared.has_two_tiers() || shape.codec().is_gfq();
        let length = if is_bytes {
            shape.length()
        } else {
            state::padded(&shape)
        };
        // Before the hashes or the device's form are made, which may take long.
        let tree_bytes = tree.as_ref().map_or(0, |tree| tree.values().len() as u64);
        let hash_bytes = if placement.hashed {
            BlockHashes::bytes(&shape)
        } else {
            0
        };
        let reservation = self.shared.reserve(length + tree_bytes + hash_bytes)?;
        let hashes = if placement.hashed {
            Some(self.hash(&bytes, shape, &placement).await?)
        } else {
            None
        };
        let (form, cost) = if is_bytes {
            (
                Form::Bytes {
                    bytes,
                    copy: None,
                    load: None,
                },
                shape.length() + tree_bytes,
            )
        } else {
            let resident = self.load(bytes, shape).await?;
            let cost = resident.resident_bytes() + tree_bytes;
            (Form::Resident(Arc::new(resident)), cost)
        };
        self.shared.admit(
            (id, tree),
            shape,
            (form, hashes),
            cost,
            reservation,
            &placement,
        )
    }

    /// Adds hashes to a segment that was inserted without them, if there is room for them. `None`
    /// if the segment was evicted meanwhile.
    async fn with_hashes(
        &self,
        held: &Held,
        bytes: &Bytes,
        placement: &Placement,
    ) -> Result<Option<Held>, Error> {
        let key = held.lease.key;
        // Before they are made, which may take long.
        let reservation = self.shared.reserve(BlockHashes::bytes(&held.lease.shape))?;
        let hashes = self.hash(bytes, held.lease.shape, placement).await?;
        let mut state = self.shared.state();
        // If they are there already, the reservation is dropped after the lock is released.
        let unused = match state.keep_hashes(key, hashes, reservation.bytes) {
            true => {
                reservation.keep();
                None
            }
            false => Some(reservation),
        };
        let with_hashes = state.held(key);
        self.shared.publish(state, Vec::new());
        drop(unused);
        Ok(with_hashes)
    }

    /// Hashes the blocks of a segment; of a long one outside of the async threads. Homomorphic
    /// hashes take far longer than others. Such segments wait for their turn, so that all cores or
    /// cards work on one of them, and live segments do not wait for the others.
    async fn hash(
        &self,
        bytes: &Bytes,
        shape: Shape,
        placement: &Placement,
    ) -> Result<Hashes, Error> {
        let Codec::RlncQ { group } = shape.codec() else {
            return Ok(hash(bytes, shape).await);
        };
        let turn = self.shared.hashing.turn(placement.birth.is_some()).await;
        let begun = Instant::now();
        let made = match self.homomorphic_hashes(group, bytes, shape).await {
            // A card has hung: the CPU computes them.
            Err(device::Error::Lost(_)) => self.homomorphic_hashes(group, bytes, shape).await?,
            made => made?,
        };
        drop(turn);
        self.shared
            .metrics
            .homomorphic_hashes
            .inc_by(shape.blocks());
        self.shared
            .metrics
            .homomorphic_seconds
            .observe(begun.elapsed().as_secs_f64());
        Ok(Hashes::made(made, &shape))
    }

    async fn homomorphic_hashes(
        &self,
        group: HashGroup,
        bytes: &Bytes,
        shape: Shape,
    ) -> Result<Vec<u8>, device::Error> {
        let bytes = bytes.clone();
        let made = self.shared.device.compute(move |arithmetic| {
            let blocks: Vec<&[u8]> = bytes.chunks(shape.block_bytes() as usize).collect();
            arithmetic.hash(group, shape.words(), &blocks)
        });
        made.await?
            .map_err(|failed| device::Error::Unavailable(failed.to_string()))
    }

    /// The hashes of a held segment's blocks, if kept.
    pub fn hashes(&self, key: SegmentKey) -> Option<BlockHashes> {
        self.shared
            .state()
            .hashes(key)
            .map(|hashes| hashes.blocks.clone())
    }

    /// The bytes of a generation, possibly with the padding of its last block; `None` if the
    /// segment is not held any more. Waits for the device if only the device's form is held.
    pub async fn generation(
        &self,
        lease: &Lease,
        generation: &Generation,
    ) -> Result<Option<Bytes>, device::Error> {
        let place = |at: u64| usize::try_from(at).expect("a segment fits in memory");
        let resident = match self.shared.state().form(lease.key) {
            None => return Ok(None),
            Some(Form::Bytes { bytes, .. }) => {
                return Ok(Some(bytes.slice(
                    place(generation.offset)..place(generation.offset + generation.length),
                )));
            }
            Some(Form::Resident(resident)) => Arc::clone(resident),
        };
        let mut rest = BytesMut::zeroed(place(generation.padded_length()));
        let out = (0..generation.n)
            .map(|_| rest.split_to(place(generation.block_bytes.into())))
            .collect();
        let rows = Rows::Source {
            indices: (0..generation.n).collect(),
        };
        let task = Task {
            resident,
            generation: generation.index,
            rows,
            out,
            out_offset: 0,
        };
        let done = self
            .shared
            .device
            .combine(Batch { tasks: vec![task] })
            .await;
        self.settled();
        let mut slots = done
            .map_err(|failed| failed.error)?
            .batch
            .tasks
            .into_iter()
            .flat_map(|task| task.out);
        let mut bytes = slots.next().unwrap_or_default();
        slots.for_each(|slot| bytes.unsplit(slot));
        Ok(Some(bytes.freeze()))
    }

    /// A held segment, kept until the last clone of its lease is dropped. Without a coding: of
    /// those with these bytes, the one inserted last.
    pub fn lookup(&self, id: &SegmentId, coding: Option<Coding>) -> Option<Held> {
        let mut state = self.shared.state();
        let key = match coding {
            Some(coding) => state.index.find(&(*id, coding)),
            None => state.index.newest(id),
        }?;
        state.index.touch(Tier::Host, key);
        state.held(key)
    }

    /// The state of a held segment on the device. If the device lacks it, a load is begun, one for
    /// all callers. Segments coded over the prime field return their bytes at once. Must be called
    /// within a tokio runtime.
    pub fn resident(&self, key: SegmentKey) -> Residency {
        let mut gone = Vec::new();
        let mut state = self.shared.state();
        let found = state.find(key, &mut gone);
        match &found {
            Found::Missing => self.shared.begin_load(&mut state, key, true),
            Found::Plain(Plain { kept: None, .. }) => {
                self.shared.begin_load(&mut state, key, false)
            }
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

    /// The keys of segments whose loads end from now on, successful or not: [`Store::resident`]
    /// tells which. A receiver that lags has to ask again about all it waits for.
    pub fn loads(&self) -> broadcast::Receiver<SegmentKey> {
        self.shared.loaded.subscribe()
    }

    /// Call this when a batch has ended and dropped its residents: a load may wait for that.
    pub fn settled(&self) {
        self.shared.unused.notify_one();
    }

    /// Whether the device has a segment that is held, in its own form or as a copy.
    pub fn is_resident(&self, key: SegmentKey) -> bool {
        self.shared.state().is_resident(key)
    }

    /// Whether a segment of this length fits without another one being evicted.
    pub fn has_room(&self, length: u64) -> bool {
        let (used, _) = self.usage(Tier::Host);
        used.saturating_add(length) <= self.shared.config.bytes.as_u64()
    }

    /// Whether a segment is held.
    pub fn is_held(&self, key: SegmentKey) -> bool {
        self.shared.state().is_held(key)
    }

    /// Marks a segment as used most recently.
    pub fn touch(&self, key: SegmentKey) {
        self.shared.state().index.touch(Tier::Host, key);
    }

    /// Notes that an answer has just named a held segment to an account, which may soon request its
    /// blocks.
    pub fn note_named(&self, lease: &Lease, account: u128, now: Instant) {
        self.shared.state().note_named(lease.key, account, now);
    }

    /// Lets a segment expire at `at`.
    pub fn expire(&self, id: &SegmentId, coding: Coding, at: Instant) {
        let mut state = self.shared.state();
        if let Some(key) = state.index.find(&(*id, coding)) {
            state.index.set_expiry(key, Some(at));
        }
    }

    /// Evicts the segments at matching paths at once, even if in use.
    pub fn withdraw(&self, is_meant: impl Fn(&str) -> bool) {
        let mut gone = Vec::new();
        let mut state = self.shared.state();
        state.withdraw(is_meant, &mut gone);
        self.shared.publish(state, gone);
    }

    /// Evicts expired segments that are not in use, and those on lost devices. Call it about once a
    /// second.
    pub fn sweep(&self, now: Instant) {
        let mut gone = Vec::new();
        let mut state = self.shared.state();
        self.shared.heed_losses(&mut state, &mut gone);
        // A load may have ended on a device that was just lost.
        state.drop_dead(&mut gone);
        state.sweep(now, &mut gone);
        self.shared.publish(state, gone);
    }

    /// The size of a segment that was refused because all held ones are in use, while that is still
    /// so.
    pub fn refused(&self, now: Instant) -> Option<u64> {
        self.shared.state().refused(now)
    }

    /// The keys of segments evicted from now on. A receiver that lags asks [`Store::is_held`] about
    /// the keys it keeps.
    pub fn evictions(&self) -> broadcast::Receiver<SegmentKey> {
        self.shared.evicted.subscribe()
    }

    /// Bytes and number of the segments on a tier.
    pub fn usage(&self, tier: Tier) -> (u64, usize) {
        let state = self.shared.state();
        (state.index.bytes(tier), state.index.len(tier))
    }

    /// Loads the bytes into a device that shares this process's memory, which may have less room
    /// than the budget says.
    async fn load(&self, bytes: Bytes, shape: Shape) -> Result<Resident, Error> {
        for _ in 0..LOADS_MAX {
            match self.shared.device.load(bytes.clone(), shape).await {
                Err(device::Error::Memory { .. }) if self.shared.evict_one() => {}
                outcome => return Ok(outcome?),
            }
        }
        Err(Error::Device(device::Error::Memory {
            bytes: shape.length(),
        }))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_two_tiers(&self) -> bool {
        self.state().device.is_some()
    }

    fn hold_again(
        self: &Arc<Self>,
        name: &Name,
        placement: &Placement,
    ) -> Result<Option<Held>, Error> {
        let mut state = self.state();
        placement.check()?;
        let Some(key) = state.index.find(name) else {
            return Ok(None);
        };
        state.renew(key, placement);
        if placement.eager {
            self.begin_load(&mut state, key, false);
        }
        Ok(state.held(key))
    }

    /// Reserves room on the host's tier.
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
                break Ok(Reservation {
                    shared: Arc::clone(self),
                    tier: Tier::Host,
                    bytes,
                });
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
            // The reservation is dropped after the lock is released.
            drop(state);
            return Err(error);
        }
        let key = match state.index.find(&(id, shape.coding())) {
            // Another insertion was faster: this one's work and reservation are dropped after the
            // lock is released.
            Some(key) => {
                state.renew(key, placement);
                key
            }
            None => {
                self.metrics.inserted.inc();
                state.admit(
                    (id, tree),
                    shape,
                    form,
                    (reservation.keep(), cost),
                    placement,
                    now,
                )
            }
        };
        if let Some(hashes) = hashes {
            state.keep_hashes(key, hashes, 0);
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

    /// Drops segments and copies lost with a device, and adapts the budget to the memory of the
    /// device in use now.
    fn heed_losses(&self, state: &mut State, gone: &mut Vec<Evicted>) {
        if state.has_dead_copies() {
            state.drop_dead(gone);
        }
        let Some(budget) = &mut state.device else {
            return;
        };
        // Without device memory, copies lie beside their bytes in this process: a part of its
        // budget is enough for those in demand.
        let own = || self.config.bytes.as_u64() / OWN_MEMORY_PART;
        let limit = (self.memory)().map_or_else(own, |total| self.config.device_bytes.of(total));
        if budget.limit() != limit {
            budget.set_limit(limit);
            self.metrics.tier(Tier::Device).budget(limit);
        }
    }

    /// Reports evictions after the lock is released, and updates the gauges.
    fn publish(&self, state: MutexGuard<'_, State>, gone: Vec<Evicted>) {
        for tier in Tier::ALL {
            self.metrics
                .tier(tier)
                .resident(state.index.bytes(tier), state.index.len(tier));
        }
        drop(state);
        for Evicted {
            key,
            id,
            tier,
            cause,
            ..
        } in gone
        {
            tracing::trace!(%id, ?tier, ?cause, "segment evicted");
            self.metrics.evicted(tier, cause).inc();
            if tier == Tier::Host {
                // There may be no receiver yet.
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
        shown
            .field("device", &self.device)
            .field("host_budget", &host)
            .field("device_budget", &device)
            .finish_non_exhaustive()
    }
}

impl Placement {
    /// Whether its stream is still published.
    fn check(&self) -> Result<(), Error> {
        if self.withdrawn.load(Ordering::Acquire) {
            Err(Error::Withdrawn)
        } else {
            Ok(())
        }
    }
}

/// Bytes reserved before they are used; returned on drop.
struct Reservation {
    shared: Arc<Shared>,
    tier: Tier,
    bytes: u64,
}

impl Reservation {
    /// Leaves the bytes charged to the budget. May be called under the lock.
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

/// Hashes a segment; a long one on the blocking pool.
async fn identify(bytes: &Bytes, codec: Codec) -> (SegmentId, Option<Tree>) {
    if bytes.len() < HASHED_IN_PLACE {
        return Tree::of(bytes, codec);
    }
    let copy = bytes.clone();
    let made = tokio::task::spawn_blocking(move || Tree::of(&copy, codec)).await;
    made.unwrap_or_else(|_| Tree::of(bytes, codec))
}

/// Hashes a segment's blocks; those of a long one on the blocking pool.
async fn hash(bytes: &Bytes, shape: Shape) -> Hashes {
    if bytes.len() < HASHED_IN_PLACE {
        return Hashes::of(bytes, &shape);
    }
    let copy = bytes.clone();
    tokio::task::spawn_blocking(move || Hashes::of(&copy, &shape))
        .await
        .unwrap_or_else(|_| Hashes::of(bytes, &shape))
}

/// Notices by which a receiver may fall behind.
const TOLD_MAX: usize = 4096;
const LOADS_MAX: usize = 64;
const HASHED_IN_PLACE: usize = 256 << 10;
/// Part of `store.bytes` that copies may take in addition after the device has lost its own memory:
/// half of it, so always a segment.
const OWN_MEMORY_PART: u64 = 2;

#[cfg(test)]
mod tests;
