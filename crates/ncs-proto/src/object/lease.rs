//! Leases, which keep a segment in memory, and what they share with the holder of the segment.
//!
//! A lease says that blocks of the segment are about to be made, so that other segments are evicted
//! first. A request that waits for its peer's credit has [`Released`] its lease: it costs no
//! memory, and takes the lease again when there is something to send.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ncs_codec::shape::Shape;

use super::id::{SegmentId, SegmentKey};
use crate::time::Instant;

/// The facts that the holder of a segment shares with its leases: how many there are and how many
/// get blocks, when and how fast blocks left, and whether the segment has gone.
#[derive(Debug)]
pub struct Loan {
    leases: AtomicUsize,
    readers: AtomicUsize,
    is_gone: AtomicBool,
    begun: Instant,
    /// Milliseconds from `begun` until the whole segment had come.
    came_ms: AtomicU64,
    /// Milliseconds from `begun` until blocks last left, plus one; 0 if none have left.
    used_ms: AtomicU64,
    /// KiB that left in an even second after `begun`, and in an odd one. The second is in the upper
    /// half.
    left: [AtomicU64; 2],
}

impl Loan {
    /// The loan of a segment that comes in now.
    pub fn new(now: Instant) -> Arc<Self> {
        let (leases, readers, is_gone, came_ms, used_ms, left) = Default::default();
        Arc::new(Self {
            leases,
            readers,
            is_gone,
            begun: now,
            came_ms,
            used_ms,
            left,
        })
    }

    /// How many leases there are.
    pub fn leases(&self) -> usize {
        self.leases.load(Ordering::Acquire)
    }

    /// When blocks of the segment last left, to within a millisecond, if any have.
    pub fn used_at(&self) -> Option<Instant> {
        let ms = self.used_ms.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.begun + Duration::from_millis(ms))
    }

    /// The whole segment has come: those that waited for it have had no time yet.
    pub fn note_come(&self, now: Instant) {
        self.came_ms.fetch_max(self.millis(now), Ordering::Relaxed);
    }

    /// KiB of blocks that left in this second and the one before.
    pub fn pace(&self, now: Instant) -> u64 {
        let second = self.millis(now) / 1000;
        let left = self.left.iter().map(|left| left.load(Ordering::Relaxed));
        left.filter(|left| (left >> 32) + 1 >= (second & LOW))
            .map(|left| left & LOW)
            .sum()
    }

    /// How much the segment would be missed.
    pub fn standing(&self, now: Instant) -> Standing {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < GRACE;
        let is_used = self.used_at().is_some_and(is_recent);
        let has_come =
            is_recent(self.begun + Duration::from_millis(self.came_ms.load(Ordering::Relaxed)));
        let is_read = is_used && self.readers.load(Ordering::Acquire) > 0;
        match self.leases() > 0 {
            true if is_read || has_come => Standing::InUse,
            _ if is_used => Standing::Recent,
            true => Standing::Stalled,
            false => Standing::Idle,
        }
    }

    /// The segment is not held any more: no lease of it is given again.
    pub fn end(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    /// Blocks of the segment leave, with this many bytes.
    fn note_used(&self, now: Instant, bytes: u64) {
        let ms = self.millis(now);
        self.used_ms
            .fetch_max(ms.saturating_add(1), Ordering::Relaxed);
        let (second, kib) = ((ms / 1000) & LOW, bytes.div_ceil(1024));
        let add = |left: u64| {
            let before = if left >> 32 == second { left & LOW } else { 0 };
            Some((second << 32) | (before + kib).min(LOW))
        };
        let left = &self.left[usize::from(second % 2 == 1)];
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .expect("there is always a next one");
    }

    fn millis(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.begun).as_millis()).unwrap_or(u64::MAX)
    }

    fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }
}

/// The lower half of a word.
const LOW: u64 = u32::MAX as u64;

/// How much a segment would be missed, from not at all to that of a segment whose blocks leave now:
/// the order in which segments are evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Not at all.
    Idle,
    /// It is leased, and no blocks of it have left for a second.
    Stalled,
    /// Blocks have left lately, for no present lease: their receivers may request more.
    Recent,
    /// A peer has just been told of it, and may request its blocks. A loan does not know that;
    /// whoever told the peer does.
    Named,
    /// It is leased, and blocks leave for a lease, or it has just come. It stays, unless too many
    /// do.
    InUse,
}

/// How long a segment counts as in use after it has come in, or after its last block left. A viewer
/// whose path pauses for longer requests the segment again if it was evicted meanwhile.
pub const GRACE: Duration = Duration::from_secs(1);

/// A held segment that is to stay held. Each clone is a lease of its own.
pub struct Lease {
    /// The segment in this process.
    pub key: SegmentKey,
    /// The segment on the wire.
    pub id: SegmentId,
    /// How it is cut.
    pub shape: Shape,
    loan: Arc<Loan>,
    /// Whether blocks leave for its owner.
    reads: AtomicBool,
}

impl Lease {
    /// A lease of the segment with this loan, until it is dropped.
    pub fn new(key: SegmentKey, id: SegmentId, shape: Shape, loan: Arc<Loan>) -> Self {
        loan.leases.fetch_add(1, Ordering::AcqRel);
        Self {
            key,
            id,
            shape,
            loan,
            reads: AtomicBool::new(false),
        }
    }

    /// How many leases of the segment there are, this one included.
    pub fn holders(&self) -> usize {
        self.loan.leases()
    }

    /// What it shares with other leases of the segment.
    pub fn loan(&self) -> &Loan {
        &self.loan
    }

    /// Blocks of the segment leave for the lease's owner, with this many bytes.
    pub fn note_used(&self, now: Instant, bytes: u64) {
        self.loan.note_used(now, bytes);
        if !self.reads.swap(true, Ordering::AcqRel) {
            self.loan.readers.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// No blocks have left for the lease's owner for a while: blocks for others do not count for
    /// it.
    pub fn note_stalled(&self) {
        if self.reads.swap(false, Ordering::AcqRel) {
            self.loan.readers.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Whether the segment has gone all the same, so that no blocks can be made of it.
    pub fn is_void(&self) -> bool {
        self.loan.is_gone()
    }

    /// Allows the segment to be evicted.
    pub fn release(&self) -> Released {
        Released {
            key: self.key,
            id: self.id,
            shape: self.shape,
            loan: Arc::clone(&self.loan),
        }
    }
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        Self::new(self.key, self.id, self.shape, Arc::clone(&self.loan))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.note_stalled();
        self.loan.leases.fetch_sub(1, Ordering::AcqRel);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", &self.key)
            .field("id", &self.id)
            .field("shape", &self.shape)
            .finish()
    }
}

/// Permits a later lease of a segment, and keeps nothing by itself.
#[derive(Debug, Clone)]
pub struct Released {
    /// The segment in this process.
    pub key: SegmentKey,
    /// The segment on the wire.
    pub id: SegmentId,
    /// How it is cut.
    pub shape: Shape,
    loan: Arc<Loan>,
}

impl Released {
    /// The first one of a segment that comes in now.
    pub fn new(key: SegmentKey, id: SegmentId, shape: Shape, now: Instant) -> Self {
        Self {
            key,
            id,
            shape,
            loan: Loan::new(now),
        }
    }

    /// What leases of the segment share.
    pub fn loan(&self) -> &Loan {
        &self.loan
    }

    /// Whether the segment has gone: no lease of it is given again.
    pub fn is_void(&self) -> bool {
        self.loan.is_gone()
    }

    /// A new lease, unless the segment has gone meanwhile.
    pub fn renew(&self) -> Option<Lease> {
        let lease = Lease::new(self.key, self.id, self.shape, Arc::clone(&self.loan));
        // Checked last: an eviction at this moment either finds the lease, or is found here.
        (!lease.is_void()).then_some(lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_lease_keeps_nothing_and_comes_back_while_the_segment_is_there() {
        let now = Instant::now();
        let loan = Loan::new(now);
        let lease = Lease::new(
            SegmentKey(1),
            SegmentId::of(b"a"),
            Shape::new(100, 64, 8).unwrap(),
            Arc::clone(&loan),
        );
        let other = lease.clone();
        assert_eq!((loan.leases(), lease.holders()), (2, 2));
        drop(other);
        let released = lease.release();
        drop(lease);
        assert_eq!(loan.leases(), 0);
        let again = released.renew().expect("the segment is there");
        assert_eq!((again.key, loan.leases()), (SegmentKey(1), 1));
        loan.end();
        assert!(again.is_void() && released.is_void() && released.renew().is_none());
        assert_eq!(loan.leases(), 1, "what was refused counts for nothing");
    }

    #[test]
    fn use_is_dated_and_never_goes_back() {
        let now = Instant::now();
        let loan = Loan::new(now);
        assert_eq!(loan.used_at(), None);
        let later = now + Duration::from_millis(1500);
        loan.note_used(later, 1);
        loan.note_used(now, 1);
        assert_eq!(loan.used_at(), Some(later));
    }

    #[test]
    fn a_lease_that_reads_nothing_keeps_nothing_by_what_others_read() {
        let now = Instant::now();
        let loan = Loan::new(now);
        let lease = || {
            Lease::new(
                SegmentKey(1),
                SegmentId::of(b"a"),
                Shape::new(100, 64, 8).unwrap(),
                Arc::clone(&loan),
            )
        };
        let unread = lease();
        assert_eq!(loan.standing(now), Standing::InUse, "it has just come");
        // Another reads a block a second, and leases the segment only that long.
        for second in 1..5 {
            let at = now + second * GRACE;
            let other = lease();
            other.note_used(at, 64);
            assert_eq!(loan.standing(at), Standing::InUse, "both lease it");
            drop(other);
            assert_eq!(loan.standing(at), Standing::Recent);
        }
        let at = now + 5 * GRACE;
        assert_eq!(loan.standing(at), Standing::Stalled);
        unread.note_used(at, 64);
        assert_eq!(loan.standing(at), Standing::InUse);
        unread.note_stalled();
        assert_eq!(loan.standing(at), Standing::Recent);
        loan.note_come(at);
        assert_eq!(loan.standing(at), Standing::InUse);
        drop(unread);
        assert_eq!(
            (loan.standing(at), loan.standing(at + GRACE)),
            (Standing::Recent, Standing::Idle)
        );
    }

    #[test]
    fn the_pace_is_that_of_the_last_two_seconds() {
        let now = Instant::now();
        let (loan, at) = (Loan::new(now), |ms| now + Duration::from_millis(ms));
        loan.note_used(at(900), 10 << 10);
        loan.note_used(at(1100), 1);
        loan.note_used(at(1900), 5 << 10);
        assert_eq!([1900, 2500, 3000].map(|ms| loan.pace(at(ms))), [16, 6, 0]);
        loan.note_used(at(7000), 3 << 10);
        assert_eq!(loan.pace(at(7000)), 3);
    }
}
