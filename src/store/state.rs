//! The segments held, in which form, and which of them are evicted. Decides under one lock; loads,
//! tasks and clocks are elsewhere.
//!
//! With a device that has memory of its own there are two tiers. The host's holds the bytes of
//! every segment within one budget, the device's holds copies of some of them within another. So a
//! copy may be evicted whenever no batch reads it, and is made again on demand. With a device that
//! works in this process's memory there is one tier, which holds only the device's form of a
//! segment. Segments coded over the prime field have their bytes as copies, and nobody waits for
//! these: until a copy exists, blocks are made of the bytes on the host.
//!
//! Demand at one time may exceed the device's room. Then every segment gets a turn. A copy for
//! which a caller waited is *owed*: it stays until it was handed out once, or for a limited time.
//! Copies that a waiting load is to replace are *retiring*: their readers finish, and nobody else
//! gets them before the load has its room.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::budget::Budget;
use super::index::{Cause, Index, Tier};
use super::named::Named;
use super::{OnDevice, Placement, Plain};
use crate::device::{Kept, Resident};
use crate::integrity::hashes::BlockHashes;
use crate::object::{
    Birth, FirstPass, Held, Lease, Loan, SegmentId, SegmentKey, Shape, Standing, Tree,
};

pub(super) struct State {
    pub(super) index: Index,
    pub(super) host: Budget,
    /// `None` with one tier.
    pub(super) device: Option<Budget>,
    slots: HashMap<SegmentKey, Slot>,
    /// Segments just named to clients.
    named: Named,
    retiring: HashSet<SegmentKey>,
    /// Whether segments coded over the prime field have copies: true until the device declines to
    /// keep one.
    keeps: bool,
    /// The size of the segment last refused for lack of room.
    refused: Option<u64>,
}

/// A held segment.
struct Slot {
    id: SegmentId,
    shape: Shape,
    form: Form,
    first_pass: FirstPass,
    row_weight: Option<NonZeroU16>,
    birth: Option<Arc<Birth>>,
    path: Option<Arc<str>>,
    tree: Option<Tree>,
    hashes: Option<Hashes>,
    /// Shared by its leases.
    loan: Arc<Loan>,
}

/// Hashes of a segment's source blocks.
#[derive(Clone)]
pub(super) struct Hashes {
    pub(super) blocks: BlockHashes,
    digest: [u8; 32],
}

impl Hashes {
    /// Computes the hashes of a whole segment.
    pub(super) fn of(bytes: &[u8], shape: &Shape) -> Self {
        let blocks = BlockHashes::of(bytes, shape);
        Self {
            digest: blocks.digest(),
            blocks,
        }
    }

    /// Takes hashes of a segment of this shape that were computed elsewhere, concatenated.
    pub(super) fn made(hashes: Vec<u8>, shape: &Shape) -> Self {
        let blocks = BlockHashes::made(hashes.into(), shape);
        Self {
            digest: blocks.digest(),
            blocks,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.blocks.as_bytes().len() as u64
    }
}

/// The form in which a segment is held.
pub(super) enum Form {
    /// On one tier: the device's form.
    Resident(Arc<Resident>),
    /// On two tiers, and where blocks are made of plain bytes: the bytes, the device's copy if
    /// there is one, and the load that will make one.
    Bytes {
        bytes: Bytes,
        copy: Option<Copy>,
        load: Option<Load>,
    },
}

pub(super) struct Copy {
    image: Image,
    /// How long it stays because a caller waited for it.
    owed: Option<Instant>,
}

/// A segment's data on a device.
pub(super) enum Image {
    /// The device's form.
    Resident(Arc<Resident>),
    /// The plain bytes.
    Kept(Arc<dyn Kept>),
}

impl Image {
    fn bytes(&self) -> u64 {
        match self {
            Self::Resident(resident) => resident.resident_bytes(),
            Self::Kept(kept) => kept.bytes(),
        }
    }

    fn is_alive(&self) -> bool {
        match self {
            Self::Resident(resident) => resident.is_alive(),
            Self::Kept(kept) => kept.is_alive(),
        }
    }

    /// Whether a batch holds it.
    fn is_read(&self) -> bool {
        let owners = match self {
            Self::Resident(resident) => Arc::strong_count(resident),
            Self::Kept(kept) => Arc::strong_count(kept),
        };
        owners > 1
    }
}

pub(super) struct Load {
    /// Whether a caller waits for it.
    is_wanted: bool,
}

/// An evicted segment or copy, to be reported. Must be dropped without the lock.
pub(super) struct Evicted {
    pub(super) key: SegmentKey,
    pub(super) id: SegmentId,
    pub(super) tier: Tier,
    pub(super) cause: Cause,
    _remains: Remains,
}

#[expect(dead_code, reason = "they are kept to be dropped")]
enum Remains {
    Segment(Box<Slot>),
    Copy(Copy),
}

/// The answer to the encoder's request for a segment.
pub(super) enum Found {
    Ready(OnDevice),
    Plain(Plain),
    /// A load is in progress.
    Loading,
    /// A load has to be begun.
    Missing,
    Gone,
}

/// The answer to a load's request for room.
pub(super) enum Room {
    /// Room is reserved.
    Free {
        bytes: Bytes,
        shape: Shape,
        cost: u64,
    },
    /// Ask again when a copy is no longer in use.
    Wait,
    /// The segment has a copy, or was evicted.
    Needless,
}

impl State {
    pub(super) fn new(host: u64, device: Option<u64>) -> Self {
        let (slots, retiring) = (HashMap::new(), HashSet::new());
        let named = Named::new(host / NAMED_PART);
        let (index, host, device) = (Index::default(), Budget::new(host), device.map(Budget::new));
        Self {
            index,
            host,
            device,
            slots,
            named,
            retiring,
            keeps: true,
            refused: None,
        }
    }

    pub(super) fn is_held(&self, key: SegmentKey) -> bool {
        self.slots.contains_key(&key)
    }

    pub(super) fn held(&self, key: SegmentKey) -> Option<Held> {
        let slot = self.slots.get(&key)?;
        let lease = Lease::new(key, slot.id, slot.shape, Arc::clone(&slot.loan));
        let Slot {
            first_pass,
            row_weight,
            birth,
            path,
            tree,
            hashes,
            ..
        } = slot;
        Some(Held {
            lease,
            first_pass: *first_pass,
            row_weight: *row_weight,
            is_recoded: false,
            birth: birth.clone(),
            path: path.clone(),
            blocks_digest: hashes.as_ref().map(|hashes| hashes.digest),
            tree: tree.clone(),
        })
    }

    /// A segment inserted again stays at least until the new expiry.
    pub(super) fn renew(&mut self, key: SegmentKey, placement: &Placement) {
        let before = self.index.expires(key);
        self.index.set_expiry(
            key,
            before
                .zip(placement.expires)
                .map(|(before, now)| before.max(now)),
        );
        self.index.touch(Tier::Host, key);
        if let (Some(slot), Some(path)) = (self.slots.get_mut(&key), &placement.path) {
            slot.path = Some(Arc::clone(path));
        }
    }

    /// Inserts a new segment, and corrects its `reserved` bytes of the host's budget to `cost`.
    pub(super) fn admit(
        &mut self,
        (id, tree): (SegmentId, Option<Tree>),
        shape: Shape,
        form: Form,
        (reserved, cost): (u64, u64),
        placement: &Placement,
        now: Instant,
    ) -> SegmentKey {
        let key = self
            .index
            .insert((id, shape.coding()), cost, placement.expires)
            .expect("the segment is not held");
        self.host.correct(reserved, cost);
        let Placement {
            first_pass,
            row_weight,
            birth,
            path,
            ..
        } = placement.clone();
        let slot = Slot {
            id,
            shape,
            form,
            first_pass,
            row_weight,
            birth,
            path,
            tree,
            hashes: None,
            loan: Loan::new(now),
        };
        self.slots.insert(key, slot);
        key
    }

    /// Keeps the hashes of a held segment's blocks, which count towards its size, and corrects
    /// their `reserved` bytes of the host's budget. False if the segment is gone or has hashes: the
    /// reservation is untouched.
    pub(super) fn keep_hashes(&mut self, key: SegmentKey, hashes: Hashes, reserved: u64) -> bool {
        let Some(slot) = self
            .slots
            .get_mut(&key)
            .filter(|slot| slot.hashes.is_none())
        else {
            return false;
        };
        let bytes = hashes.bytes();
        slot.hashes = Some(hashes);
        self.index.grow(key, bytes);
        self.host.correct(reserved, bytes);
        true
    }

    /// The hashes of a segment's blocks, if kept.
    pub(super) fn hashes(&self, key: SegmentKey) -> Option<&Hashes> {
        self.slots.get(&key)?.hashes.as_ref()
    }

    /// The form of a held segment.
    pub(super) fn form(&self, key: SegmentKey) -> Option<&Form> {
        self.slots.get(&key).map(|slot| &slot.form)
    }

    /// Evicts until the host's budget holds, or all remaining segments are in use.
    pub(super) fn shrink(&mut self, now: Instant, gone: &mut Vec<Evicted>) {
        while self.host.used() > self.host.limit() {
            let Some(victim) = self.evict(now) else { break };
            gone.push(victim);
        }
    }

    /// Evicts the first segment in order.
    pub(super) fn evict(&mut self, now: Instant) -> Option<Evicted> {
        let (key, cause) = self.victim(now)?;
        self.remove(key, cause)
    }

    /// The same; if nothing else is left, evicts a segment in use, provided that those in use take
    /// so much that a new segment would find no room for long.
    pub(super) fn evict_for_newcomer(&mut self, now: Instant) -> Option<Evicted> {
        let (key, cause) = self.victim(now).or_else(|| self.least_read(now))?;
        self.remove(key, cause)
    }

    /// If the segments in use take more than their part: the one with the fewest blocks sent for
    /// its size.
    fn least_read(&self, now: Instant) -> Option<(SegmentKey, Cause)> {
        let cost = |key: SegmentKey| self.index.cost(Tier::Host, key).unwrap_or_default();
        let in_use = || {
            self.slots
                .iter()
                .filter(|(_, slot)| slot.loan.standing(now) == Standing::InUse)
        };
        let limit = self.host.limit();
        if in_use().map(|(key, _)| cost(*key)).sum::<u64>() <= limit - limit / KEPT_PART {
            return None;
        }
        // A batch that reads a segment keeps its memory until it ends.
        let may_go = in_use().filter(|(_, slot)| !slot.is_read());
        let pace = |key: SegmentKey, slot: &Slot| {
            (u128::from(slot.loan.pace(now)) << 32) / u128::from(cost(key).max(1))
        };
        may_go
            .min_by_key(|(key, slot)| (pace(**key, slot), **key))
            .map(|(key, _)| (*key, Cause::Slow))
    }

    /// Notes that an account was told of a segment and may request it.
    pub(super) fn note_named(&mut self, key: SegmentKey, account: u128, now: Instant) {
        if let Some(bytes) = self.index.cost(Tier::Host, key) {
            self.named.note(key, account, bytes, now);
        }
    }

    /// The segment to evict first: an unused one; else one whose viewers have read nothing for a
    /// while; else one whose viewers have just got all they requested; else one just named to a
    /// client.
    pub(super) fn victim(&self, now: Instant) -> Option<(SegmentKey, Cause)> {
        let up_to = |most| {
            self.index.victim(Tier::Host, now, |key| {
                self.standing_with_named(key, now) > most
            })
        };
        let stalled = || up_to(Standing::Stalled).map(|(key, _)| (key, Cause::Stalled));
        up_to(Standing::Idle)
            .or_else(stalled)
            .or_else(|| up_to(Standing::Recent))
            .or_else(|| up_to(Standing::Named))
    }

    /// Evicts expired segments.
    pub(super) fn sweep(&mut self, now: Instant, gone: &mut Vec<Evicted>) {
        while let Some(key) = self
            .index
            .expired(now, |key| self.standing(key, now) > Standing::Idle)
        {
            gone.extend(self.remove(key, Cause::Expired));
        }
    }

    /// Removes the segments at matching paths, even if in use.
    pub(super) fn withdraw(&mut self, is_meant: impl Fn(&str) -> bool, gone: &mut Vec<Evicted>) {
        let meant = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.path.as_deref().is_some_and(&is_meant));
        let meant: Vec<SegmentKey> = meant.map(|(key, _)| *key).collect();
        gone.extend(
            meant
                .into_iter()
                .filter_map(|key| self.remove(key, Cause::Withdrawn)),
        );
    }

    /// The size refused because all held segments are in use, if that is still so.
    pub(super) fn refused(&mut self, now: Instant) -> Option<u64> {
        let bytes = self.refused?;
        let is_free = self.host.used().saturating_add(bytes) <= self.host.limit();
        if is_free || self.victim(now).or_else(|| self.least_read(now)).is_some() {
            self.refused = None;
        }
        self.refused
    }

    /// Notes a refusal for lack of room.
    pub(super) fn note_refused(&mut self, bytes: u64) {
        self.refused = Some(bytes);
    }

    /// Whether copies were lost with a device. A loss takes all copies, so the least recently used
    /// one tells.
    pub(super) fn has_dead_copies(&self) -> bool {
        self.index
            .copies()
            .next()
            .and_then(|key| self.slots.get(&key))
            .is_some_and(Slot::is_dead)
    }

    /// Drops everything on lost devices: copies, and segments that had no other form.
    pub(super) fn drop_dead(&mut self, gone: &mut Vec<Evicted>) {
        let dead: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.is_dead())
            .map(|(key, _)| *key)
            .collect();
        for key in dead {
            gone.extend(
                self.drop_copy(key, Cause::Lost)
                    .or_else(|| self.remove(key, Cause::Lost)),
            );
        }
    }

    /// Whether the device has a segment.
    pub(super) fn is_resident(&self, key: SegmentKey) -> bool {
        let slot = self.slots.get(&key);
        slot.is_some_and(|slot| match &slot.form {
            Form::Resident(_) => true,
            Form::Bytes { copy, .. } => copy.is_some(),
        })
    }

    /// Looks up a segment whose blocks are to be combined.
    pub(super) fn find(&mut self, key: SegmentKey, gone: &mut Vec<Evicted>) -> Found {
        if self.slots.get(&key).is_some_and(Slot::is_dead) {
            gone.extend(
                self.drop_copy(key, Cause::Lost)
                    .or_else(|| self.remove(key, Cause::Lost)),
            );
        }
        let Some(slot) = self.slots.get_mut(&key) else {
            return Found::Gone;
        };
        let Slot {
            id,
            shape,
            row_weight,
            ..
        } = *slot;
        if let Some(bytes) = slot.plain().cloned() {
            let kept = match slot.copy() {
                Some(Copy {
                    image: Image::Kept(kept),
                    ..
                }) if !self.retiring.contains(&key) => Some(Arc::clone(kept)),
                _ => None,
            };
            if kept.is_some() {
                self.index.touch(Tier::Device, key);
            }
            return Found::Plain(Plain { bytes, shape, kept });
        }
        let ready = |resident: &Arc<Resident>| {
            let resident = Arc::clone(resident);
            Found::Ready(OnDevice {
                resident,
                shape,
                id,
                row_weight,
            })
        };
        match &mut slot.form {
            Form::Resident(resident) => ready(resident),
            Form::Bytes {
                copy:
                    Some(Copy {
                        image: Image::Resident(resident),
                        owed,
                    }),
                ..
            } if !self.retiring.contains(&key) => {
                *owed = None;
                self.index.touch(Tier::Device, key);
                ready(resident)
            }
            Form::Bytes {
                load: Some(load), ..
            } => {
                load.is_wanted = true;
                Found::Loading
            }
            Form::Bytes { .. } => Found::Missing,
        }
    }

    /// Notes that a load has begun. False if one is in progress already, if a copy exists and stays
    /// or is impossible, or if the segment is gone.
    pub(super) fn begin_load(&mut self, key: SegmentKey, is_wanted: bool) -> bool {
        let keeps = self.keeps && self.device.is_some();
        let slot = self
            .slots
            .get_mut(&key)
            .filter(|slot| keeps || slot.plain().is_none());
        match slot.map(|slot| &mut slot.form) {
            Some(Form::Bytes {
                copy,
                load: load @ None,
                ..
            }) if copy.is_none() || self.retiring.contains(&key) => {
                *load = Some(Load { is_wanted });
                true
            }
            _ => false,
        }
    }

    /// Notes that the device declines copies of segments coded over the prime field.
    pub(super) fn keep_nothing(&mut self) {
        self.keeps = false;
    }

    pub(super) fn end_load(&mut self, key: SegmentKey) {
        if let Some(Form::Bytes { load, .. }) = self.slots.get_mut(&key).map(|slot| &mut slot.form)
        {
            *load = None;
        }
    }

    /// Reserves room for a segment's copy, within the device's budget and `ceiling`, and evicts
    /// other copies for it. One load at a time asks, until it has its room.
    pub(super) fn find_room(
        &mut self,
        key: SegmentKey,
        ceiling: u64,
        now: Instant,
        gone: &mut Vec<Evicted>,
    ) -> Room {
        let slot = self.slots.get(&key).map(|slot| (&slot.form, slot.shape));
        let (bytes, shape) = match slot {
            Some((Form::Bytes { bytes, copy, .. }, shape))
                if copy.as_ref().is_none_or(Copy::is_dead) =>
            {
                (bytes.clone(), shape)
            }
            _ => {
                self.retiring.clear();
                return Room::Needless;
            }
        };
        gone.extend(self.drop_copy(key, Cause::Lost));
        let cost = padded(&shape);
        while !self.device_budget().reserve_copy(cost, ceiling) {
            let Some((victim, cause)) = self
                .index
                .victim(Tier::Device, now, |key| self.is_copy_in_use(key, now))
            else {
                self.retire(cost, ceiling, now);
                return Room::Wait;
            };
            let is_short = ceiling < self.device_budget().limit();
            let victim = self.drop_copy(victim, cause);
            gone.extend(if is_short {
                victim.map(Evicted::for_memory)
            } else {
                victim
            });
        }
        self.retiring.clear();
        Room::Free { bytes, shape, cost }
    }

    /// Takes in a copy for which `cost` was reserved. Any excess over the budget is then evicted,
    /// but not this copy.
    pub(super) fn place(
        &mut self,
        key: SegmentKey,
        image: Image,
        cost: u64,
        now: Instant,
        gone: &mut Vec<Evicted>,
    ) {
        let actual = image.bytes();
        let Some(Form::Bytes { copy, load, .. }) =
            self.slots.get_mut(&key).map(|slot| &mut slot.form)
        else {
            return self.device_budget().release(cost);
        };
        let owed = load
            .as_ref()
            .is_some_and(|load| load.is_wanted)
            .then(|| now + OWED_MAX);
        *copy = Some(Copy { image, owed });
        self.index.add_copy(key, actual);
        self.device_budget().correct(cost, actual);
        while self.device_budget().used() > self.device_budget().limit() {
            let in_use = |other| other == key || self.is_copy_in_use(other, now);
            let Some((victim, cause)) = self.index.victim(Tier::Device, now, in_use) else {
                break;
            };
            gone.extend(self.drop_copy(victim, cause));
        }
    }

    /// The device's budget; called only where copies exist.
    pub(super) fn device_budget(&mut self) -> &mut Budget {
        self.device
            .as_mut()
            .expect("there are copies on two tiers alone")
    }

    /// Marks copies, least recently used first, that have to make room for `cost` bytes once their
    /// readers finish.
    fn retire(&mut self, cost: u64, ceiling: u64, now: Instant) {
        let budget = self.device_budget();
        let mut missing = budget
            .used()
            .saturating_add(cost)
            .saturating_sub(ceiling.min(budget.limit()));
        for key in self.index.copies() {
            if missing == 0 {
                break;
            }
            if !self.is_owed(key, now) {
                missing =
                    missing.saturating_sub(self.index.cost(Tier::Device, key).unwrap_or_default());
                self.retiring.insert(key);
            }
        }
    }

    /// The use of a segment. One that a batch reads is in use.
    fn standing(&self, key: SegmentKey, now: Instant) -> Standing {
        match self.slots.get(&key) {
            None => Standing::Idle,
            Some(slot) if slot.is_read() => Standing::InUse,
            Some(slot) => slot.loan.standing(now),
        }
    }

    /// The same, and counts segments just named to clients.
    fn standing_with_named(&self, key: SegmentKey, now: Instant) -> Standing {
        match self.standing(key, now) {
            standing if standing < Standing::Named && self.named.has(key, now) => Standing::Named,
            standing => standing,
        }
    }

    fn is_copy_in_use(&self, key: SegmentKey, now: Instant) -> bool {
        self.slots.get(&key).is_some_and(Slot::is_read) || self.is_owed(key, now)
    }

    fn is_owed(&self, key: SegmentKey, now: Instant) -> bool {
        match self.slots.get(&key).map(|slot| &slot.form) {
            Some(Form::Bytes {
                copy: Some(copy), ..
            }) => copy.owed.is_some_and(|until| until > now),
            _ => false,
        }
    }

    /// Drops the copy of a segment, if it has one beside its bytes.
    fn drop_copy(&mut self, key: SegmentKey, cause: Cause) -> Option<Evicted> {
        let slot = self.slots.get_mut(&key)?;
        let Form::Bytes { copy, .. } = &mut slot.form else {
            return None;
        };
        let (copy, id) = (copy.take()?, slot.id);
        let cost = self.index.remove_copy(key).unwrap_or_default();
        self.device_budget().release(cost);
        Some(Evicted {
            key,
            id,
            tier: Tier::Device,
            cause,
            _remains: Remains::Copy(copy),
        })
    }

    fn remove(&mut self, key: SegmentKey, cause: Cause) -> Option<Evicted> {
        let removed = self.index.remove(key)?;
        self.host.release(removed.host);
        if let Some(device) = &mut self.device {
            device.release(removed.device);
        }
        self.retiring.remove(&key);
        self.named.forget(key);
        let slot = self.slots.remove(&key)?;
        slot.loan.end();
        Some(Evicted {
            key,
            id: slot.id,
            tier: Tier::Host,
            cause,
            _remains: Remains::Segment(Box::new(slot)),
        })
    }
}

impl Evicted {
    /// The same with the cause that the device has less memory than its budget.
    pub(super) fn for_memory(self) -> Self {
        let cause = if self.cause == Cause::Room {
            Cause::Memory
        } else {
            self.cause
        };
        Self { cause, ..self }
    }
}

impl Slot {
    /// Its bytes, if its blocks are made of them alone.
    fn plain(&self) -> Option<&Bytes> {
        match &self.form {
            Form::Bytes { bytes, .. } if self.shape.codec().is_gfq() => Some(bytes),
            _ => None,
        }
    }

    /// The device's copy, if held beside the bytes.
    fn copy(&self) -> Option<&Copy> {
        match &self.form {
            Form::Resident(_) => None,
            Form::Bytes { copy, .. } => copy.as_ref(),
        }
    }

    /// Whether a batch reads it.
    fn is_read(&self) -> bool {
        match &self.form {
            Form::Resident(resident) => Arc::strong_count(resident) > 1,
            Form::Bytes { .. } => self.copy().is_some_and(|copy| copy.image.is_read()),
        }
    }

    fn is_dead(&self) -> bool {
        match &self.form {
            Form::Resident(resident) => !resident.is_alive(),
            Form::Bytes { .. } => self.copy().is_some_and(Copy::is_dead),
        }
    }
}

impl Copy {
    fn is_dead(&self) -> bool {
        !self.image.is_alive()
    }
}

/// The approximate size of a segment on the device.
pub(super) fn padded(shape: &Shape) -> u64 {
    shape.blocks().saturating_mul(shape.block_bytes().into())
}

/// The part of the host's budget kept free of segments in use (one in this many).
pub(super) const KEPT_PART: u64 = 4;
/// The part of the host's budget that one account can protect by being told of segments.
const NAMED_PART: u64 = 8;
/// How long a copy is kept for the caller that waited for it.
const OWED_MAX: Duration = Duration::from_millis(200);
