//! Which segment of a tier goes first. A plain value: `now` and what is in use are arguments.
//!
//! What has expired goes first, the longest expired at the head; then what was used least recently. What is in use never goes,
//! and neither call nor entry changes that: whether a segment is in use is asked anew each time.

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

/// Why a segment goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Its time was over.
    Expired,
    /// Room was needed, and it was used least recently.
    Room,
    /// Room was needed, and those who used it had taken nothing of it for a while.
    Stalled,
    /// Room was needed, too much was in use, and of this the fewest blocks left for its size.
    Slow,
    /// As for `Room`, and it was the device that had less memory than its budget.
    Memory,
    /// The device that had it was lost.
    Lost,
    /// Its stream is published no more.
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

    /// What a segment costs here.
    pub(super) fn cost(&self, key: SegmentKey) -> Option<u64> {
        self.entries.get(&key).map(|entry| entry.bytes)
    }

    pub(super) fn expires(&self, key: SegmentKey) -> Option<Instant> {
        self.entries.get(&key).and_then(|entry| entry.expires)
    }

    /// Takes a segment in as the one most recently used, instead of what was known of it.
    pub(super) fn insert(&mut self, key: SegmentKey, bytes: u64, expires: Option<Instant>) {
        self.remove(key);
        self.uses += 1;
        self.entries.insert(key, Entry { bytes, expires, used: self.uses });
        self.by_use.insert(self.uses, key);
        self.by_expiry.extend(expires.map(|expires| (expires, key)));
        self.bytes += bytes;
    }

    /// Notes that a segment costs so much more.
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

    /// Returns what the segment cost.
    pub(super) fn remove(&mut self, key: SegmentKey) -> Option<u64> {
        let entry = self.entries.remove(&key)?;
        self.by_use.remove(&entry.used);
        if let Some(expires) = entry.expires {
            self.by_expiry.remove(&(expires, key));
        }
        self.bytes -= entry.bytes;
        Some(entry.bytes)
    }

    /// All of them, least recently used first.
    pub(super) fn by_use(&self) -> impl Iterator<Item = SegmentKey> + '_ {
        self.by_use.values().copied()
    }

    /// The segment that goes first if room is needed; `None` if all are in use.
    pub(super) fn victim(&self, now: Instant, in_use: impl Fn(SegmentKey) -> bool) -> Option<(SegmentKey, Cause)> {
        let expired = self.expired(now, &in_use).map(|key| (key, Cause::Expired));
        expired.or_else(|| self.by_use().find(|key| !in_use(*key)).map(|key| (key, Cause::Room)))
    }

    /// A segment whose time is over and that is not in use.
    pub(super) fn expired(&self, now: Instant, in_use: impl Fn(SegmentKey) -> bool) -> Option<SegmentKey> {
        let over = self.by_expiry.iter().take_while(|(expires, _)| *expires <= now);
        over.map(|(_, key)| *key).find(|key| !in_use(*key))
    }
}

#[cfg(test)]
impl Order {
    /// As many in each of the books.
    pub(super) fn is_consistent(&self) -> bool {
        let expiring = self.entries.values().filter(|entry| entry.expires.is_some()).count();
        self.by_use.len() == self.entries.len() && self.by_expiry.len() == expiring
    }
}
