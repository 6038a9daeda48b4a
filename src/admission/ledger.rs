//! How many bytes of segments those who are counted together keep in memory: the requests of a session, of an address, or of a token.
//!
//! A segment counts once, however many requests are for it. Where there is no room left, what its requests have got no block of for a second
//! makes room: those who do not read keep nothing from others of their address. Its shares are revoked, and their requests end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::object::{Lease, Released, SegmentKey};

/// The books of those who are counted together.
#[derive(Debug, Default)]
pub struct Ledger {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    entries: HashMap<SegmentKey, Entry>,
    bytes: u64,
}

/// A segment that is counted.
#[derive(Debug)]
struct Entry {
    /// Keeps nothing by itself: it tells when blocks last left.
    lease: Released,
    bytes: u64,
    since: Instant,
    shares: u32,
    is_revoked: Arc<AtomicBool>,
}

/// A request that its segment is counted for; given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    ledger: Arc<Ledger>,
    segment: SegmentKey,
    is_revoked: Arc<AtomicBool>,
}

impl Ledger {
    /// Counts a segment, of which there may be `most` bytes in all; one alone may be larger. `None` if that is too much.
    pub fn take(self: &Arc<Self>, now: Instant, lease: &Lease, most: u64) -> Option<Share> {
        let mut books = self.books();
        let bytes = lease.shape.length();
        if !books.entries.contains_key(&lease.key) && !books.make_room(now, bytes, most) {
            return None;
        }
        let new = || Entry { lease: lease.release(), bytes, since: now, shares: 0, is_revoked: Arc::default() };
        let Books { entries, bytes: total } = &mut *books;
        let entry = entries.entry(lease.key).or_insert_with(|| {
            *total += bytes;
            new()
        });
        entry.shares += 1;
        let is_revoked = Arc::clone(&entry.is_revoked);
        Some(Share { ledger: Arc::clone(self), segment: lease.key, is_revoked })
    }

    /// Bytes that are counted.
    pub fn bytes(&self) -> u64 {
        self.books().bytes
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    /// Revokes what nobody reads, longest unread first, if that makes room for so many bytes.
    fn make_room(&mut self, now: Instant, bytes: u64, most: u64) -> bool {
        let fits = |total: u64| total == 0 || total.saturating_add(bytes) <= most;
        if fits(self.bytes) {
            return true;
        }
        let mut unread: Vec<_> = self
            .entries
            .iter()
            .map(|(key, entry)| (entry.used_at(), *key, entry.bytes))
            .filter(|(at, ..)| *at + GRACE <= now)
            .collect();
        if !fits(self.bytes - unread.iter().map(|(.., bytes)| bytes).sum::<u64>()) {
            return false;
        }
        unread.sort_unstable();
        for (_, key, _) in unread {
            if fits(self.bytes) {
                break;
            }
            self.remove(key);
        }
        true
    }

    fn remove(&mut self, key: SegmentKey) {
        if let Some(entry) = self.entries.remove(&key) {
            self.bytes -= entry.bytes;
            entry.is_revoked.store(true, Ordering::Release);
        }
    }
}

impl Entry {
    /// When blocks last left; when it was first counted if none have since.
    fn used_at(&self) -> Instant {
        self.lease.loan().used_at().map_or(self.since, |at| at.max(self.since))
    }
}

impl Share {
    /// Whether it counts no more, because room was needed and nobody read.
    pub fn is_revoked(&self) -> bool {
        self.is_revoked.load(Ordering::Acquire)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut books = self.ledger.books();
        let Some(entry) = books.entries.get_mut(&self.segment) else { return };
        // After it was revoked the segment may have been counted anew, for others.
        if !Arc::ptr_eq(&entry.is_revoked, &self.is_revoked) {
            return;
        }
        entry.shares -= 1;
        if entry.shares == 0 {
            books.remove(self.segment);
        }
    }
}

/// How long a segment counts that nobody reads.
const GRACE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{Loan, SegmentId, Shape};

    fn lease(key: u64, bytes: u64, now: Instant) -> Lease {
        let shape = Shape::new(bytes, 64, 64).unwrap();
        Lease::new(SegmentKey(key), SegmentId::of(&key.to_le_bytes()), shape, Loan::new(now))
    }

    #[test]
    fn a_segment_counts_once_and_one_alone_may_be_larger() {
        let (ledger, now) = (Arc::new(Ledger::default()), Instant::now());
        let (large, small) = (lease(1, 1000, now), lease(2, 10, now));
        let shares = [ledger.take(now, &large, 100).unwrap(), ledger.take(now, &large, 100).unwrap()];
        assert_eq!(ledger.bytes(), 1000);
        assert!(ledger.take(now, &small, 100).is_none());
        drop(shares);
        assert_eq!(ledger.bytes(), 0);
        let first = ledger.take(now, &small, 100).unwrap();
        let second = ledger.take(now, &lease(3, 90, now), 100).unwrap();
        assert!(ledger.take(now, &lease(4, 1, now), 100).is_none());
        drop((first, second));
        assert_eq!(ledger.bytes(), 0);
    }

    #[test]
    fn what_nobody_reads_makes_room() {
        let (ledger, now) = (Arc::new(Ledger::default()), Instant::now());
        let leases = [lease(1, 50, now), lease(2, 50, now)];
        let shares: Vec<Share> = leases.iter().map(|lease| ledger.take(now, lease, 100).unwrap()).collect();
        let (later, third) = (now + GRACE, lease(3, 50, now));
        assert!(ledger.take(later - Duration::from_millis(1), &third, 100).is_none(), "they have just come");
        leases[0].loan().note_used(later);
        let taken = ledger.take(later, &third, 100).expect("the second is not read");
        assert_eq!((shares[0].is_revoked(), shares[1].is_revoked(), ledger.bytes()), (false, true, 100));
        assert!(ledger.take(later, &leases[1], 100).is_none(), "it is counted as a new one");
        drop(shares);
        assert_eq!(ledger.bytes(), 50, "what was revoked is given back once");
        let again = ledger.take(later, &leases[1], 100).unwrap();
        drop((again, taken));
        assert_eq!(ledger.bytes(), 0);
    }
}
