//! The order of eviction on one tier. A plain value: `now` and the segments in use are arguments.
//!
//! Expired segments go first, the longest expired at the head; then the least recently used.
//! Segments in use never go; `in_use` is evaluated anew in each call.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use crate::object::SegmentKey;

/// The segments of a tier.
#[derive(Debug, Default)]
pub(super) struct Order {
    entries: HashMap<SegmentKey, Entry>,
    by_use: BTreeMap<u64, SegmentKey>,
    by_expiry: BTreeSet<(Instant, SegmentKey)>,
    bytes: u64,
    uses: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    bytes: u64,
    expires: Option<Instant>,
    used: u64,
}

/// Why a segment was evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// It had expired.
    Expired,
    /// Room was needed, and it was used least recently.
    Room,
    /// Room was needed, and its users had read nothing of it for a while.
    Stalled,
    /// Room was needed, too much was in use, and it had the fewest blocks sent for its size.
    Slow,
    /// As `Room`, but because the device had less memory than its budget.
    Memory,
    /// The device that held it was lost.
    Lost,
    /// Its stream was withdrawn.
    Withdrawn,
}

impl Order {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The size of a segment on this tier.
    pub(super) fn cost(&self, key: SegmentKey) -> Option<u64> {
        self.entries.get(&key).map(|entry| entry.bytes)
    }

    pub(super) fn expires(&self, key: SegmentKey) -> Option<Instant> {
        self.entries.get(&key).and_then(|entry| entry.expires)
    }

    /// Inserts a segment as the most recently used, and replaces an earlier entry.
    pub(super) fn insert(&mut self, key: SegmentKey, bytes: u64, expires: Option<Instant>) {
        self.remove(key);
        self.uses += 1;
        self.entries.insert(
            key,
            Entry {
                bytes,
                expires,
                used: self.uses,
            },
        );
        self.by_use.insert(self.uses, key);
        self.by_expiry.extend(expires.map(|expires| (expires, key)));
        self.bytes += bytes;
    }

    /// Adds to a segment's size.
    pub(super) fn grow(&mut self, key: SegmentKey, bytes: u64) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.bytes += bytes;
            self.bytes += bytes;
        }
    }

    pub(super) fn touch(&mut self, key: SegmentKey) {
        if let Some(entry) = self.entries.get_mut(&key) {
            self.uses += 1;
            self.by_use.remove(&entry.used);
            self.by_use.insert(self.uses, key);
            entry.used = self.uses;
        }
    }

    pub(super) fn set_expiry(&mut self, key: SegmentKey, expires: Option<Instant>) {
        if let Some(entry) = self.entries.get_mut(&key) {
            if let Some(before) = entry.expires {
                self.by_expiry.remove(&(before, key));
            }
            self.by_expiry.extend(expires.map(|expires| (expires, key)));
            entry.expires = expires;
        }
    }

    /// Returns the segment's size.
    pub(super) fn remove(&mut self, key: SegmentKey) -> Option<u64> {
        let entry = self.entries.remove(&key)?;
        self.by_use.remove(&entry.used);
        if let Some(expires) = entry.expires {
            self.by_expiry.remove(&(expires, key));
        }
        self.bytes -= entry.bytes;
        Some(entry.bytes)
    }

    /// All segments, least recently used first.
    pub(super) fn by_use(&self) -> impl Iterator<Item = SegmentKey> + '_ {
        self.by_use.values().copied()
    }

    /// The segment to evict first if room is needed; `None` if all are in use.
    pub(super) fn victim(
        &self,
        now: Instant,
        in_use: impl Fn(SegmentKey) -> bool,
    ) -> Option<(SegmentKey, Cause)> {
        let expired = self.expired(now, &in_use).map(|key| (key, Cause::Expired));
        expired.or_else(|| {
            self.by_use()
                .find(|key| !in_use(*key))
                .map(|key| (key, Cause::Room))
        })
    }

    /// An expired segment that is not in use.
    pub(super) fn expired(
        &self,
        now: Instant,
        in_use: impl Fn(SegmentKey) -> bool,
    ) -> Option<SegmentKey> {
        let over = self
            .by_expiry
            .iter()
            .take_while(|(expires, _)| *expires <= now);
        over.map(|(_, key)| *key).find(|key| !in_use(*key))
    }
}

#[cfg(test)]
impl Order {
    /// Whether the maps agree in their numbers of entries.
    pub(super) fn is_consistent(&self) -> bool {
        let expiring = self
            .entries
            .values()
            .filter(|entry| entry.expires.is_some())
            .count();
        self.by_use.len() == self.entries.len() && self.by_expiry.len() == expiring
    }
}
