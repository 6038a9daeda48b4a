//! Who keeps a segment in memory: leases, and what they share with whoever holds the segment.
//!
//! A lease says that blocks of the segment are about to be made, so that others go before it. A request that waits for its peer's
//! credit has [`Released`] its lease: it costs no memory, and takes the lease again when there is something to send.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{SegmentId, SegmentKey, Shape};

/// What the holder of a segment shares with its leases: how many there are, when blocks last left, and whether the segment has gone.
#[derive(Debug)]
pub struct Loan {
    leases: AtomicUsize,
    is_gone: AtomicBool,
    begun: Instant,
    /// Milliseconds from `begun` until blocks last left, and one; 0 if none have.
    used_ms: AtomicU64,
}

impl Loan {
    /// That of a segment that comes in now.
    pub fn new(now: Instant) -> Arc<Self> {
        let (leases, is_gone, used_ms) = Default::default();
        Arc::new(Self { leases, is_gone, begun: now, used_ms })
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

    /// Blocks of the segment leave.
    pub fn note_used(&self, now: Instant) {
        let ms = now.saturating_duration_since(self.begun).as_millis();
        self.used_ms.fetch_max(u64::try_from(ms).map_or(0, |ms| ms.saturating_add(1)), Ordering::Relaxed);
    }

    /// Who would miss the segment.
    pub fn standing(&self, now: Instant) -> Standing {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < GRACE;
        match (self.leases() > 0, self.used_at().is_some_and(is_recent)) {
            (true, true) => Standing::InUse,
            (true, false) if is_recent(self.begun) => Standing::InUse,
            (true, false) => Standing::Stalled,
            (false, true) => Standing::Recent,
            (false, false) => Standing::Idle,
        }
    }

    /// The segment is not held any more: no lease of it is given again.
    pub fn end(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }
}

/// Who would miss a segment, from nobody to those that get blocks of it now: the order in which segments go when room is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Nobody.
    Idle,
    /// It is leased, and blocks have left for nobody of those who lease it for a second.
    Stalled,
    /// It is not leased, and blocks have left lately: who has got them may ask for more.
    Recent,
    /// It is leased, and blocks leave or it has just come. It stays.
    InUse,
}

/// How long a segment counts as in use after it has come in, or after the last of its blocks left. A viewer whose path pauses for longer
/// asks for the segment again if the room was needed meanwhile.
const GRACE: Duration = Duration::from_secs(1);

/// A held segment and the wish that it stays held. Each clone is a lease of its own.
pub struct Lease {
    /// The segment in this process.
    pub key: SegmentKey,
    /// The segment on the wire.
    pub id: SegmentId,
    /// How it is cut.
    pub shape: Shape,
    loan: Arc<Loan>,
}

impl Lease {
    /// A lease of the segment with this loan, until it is dropped.
    pub fn new(key: SegmentKey, id: SegmentId, shape: Shape, loan: Arc<Loan>) -> Self {
        loan.leases.fetch_add(1, Ordering::AcqRel);
        Self { key, id, shape, loan }
    }

    /// How many leases of the segment there are, this one included.
    pub fn holders(&self) -> usize {
        self.loan.leases()
    }

    /// What it shares with other leases of the segment.
    pub fn loan(&self) -> &Loan {
        &self.loan
    }

    /// Whether the segment has gone all the same: nothing can be made of it.
    pub fn is_void(&self) -> bool {
        self.loan.is_gone()
    }

    /// Lets the segment go, if room is needed.
    pub fn release(&self) -> Released {
        Released { key: self.key, id: self.id, shape: self.shape, loan: Arc::clone(&self.loan) }
    }
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        Self::new(self.key, self.id, self.shape, Arc::clone(&self.loan))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.loan.leases.fetch_sub(1, Ordering::AcqRel);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("key", &self.key).field("id", &self.id).field("shape", &self.shape).finish()
    }
}

/// The way to a lease of a segment, which keeps nothing by itself.
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
    /// The way to the first lease of a segment that comes in now.
    pub fn new(key: SegmentKey, id: SegmentId, shape: Shape, now: Instant) -> Self {
        Self { key, id, shape, loan: Loan::new(now) }
    }

    /// What leases of the segment share.
    pub fn loan(&self) -> &Loan {
        &self.loan
    }

    /// A lease again, unless the segment has gone meanwhile.
    pub fn renew(&self) -> Option<Lease> {
        let lease = Lease::new(self.key, self.id, self.shape, Arc::clone(&self.loan));
        // Looked at last: whoever lets it go now finds a lease, or is found out.
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
        let lease = Lease::new(SegmentKey(1), SegmentId::of(b"a"), Shape::new(100, 64, 8).unwrap(), Arc::clone(&loan));
        let other = lease.clone();
        assert_eq!((loan.leases(), lease.holders()), (2, 2));
        drop(other);
        let released = lease.release();
        drop(lease);
        assert_eq!(loan.leases(), 0);
        let again = released.renew().expect("the segment is there");
        assert_eq!((again.key, loan.leases()), (SegmentKey(1), 1));
        loan.end();
        assert!(again.is_void() && released.renew().is_none());
        assert_eq!(loan.leases(), 1, "what was refused counts for nothing");
    }

    #[test]
    fn use_is_dated_and_never_goes_back() {
        let now = Instant::now();
        let loan = Loan::new(now);
        assert_eq!(loan.used_at(), None);
        let later = now + Duration::from_millis(1500);
        loan.note_used(later);
        loan.note_used(now);
        assert_eq!(loan.used_at(), Some(later));
    }
}
