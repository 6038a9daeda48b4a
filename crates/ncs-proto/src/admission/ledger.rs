//! The memory that a session, an address, or a token keeps: segments by its requests, and objects
//! and hashes that are on their way; and its rate of queries.
//!
//! A segment counts once, however many requests are for it. When room is needed, first those
//! segments make room whose requests have had no block for a second: peers that do not read keep
//! nothing from others of their address. Then the session with the most bytes makes room, for one
//! that has less even with its new request. Shares in what makes room are revoked, and their
//! requests end.
//!
//! The rate of queries outlives connections: a peer that leaves and comes back does not begin anew.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::object::{GRACE, SegmentKey};
use crate::time::Instant;

/// The ledger of one session, address, or token.
#[derive(Debug, Default)]
pub struct Ledger {
    books: Mutex<Books>,
    /// When all queries so far, and those of [`DEPTH`] more, fit the rate.
    earned_at: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Books {
    entries: HashMap<Kept, Entry>,
    bytes: u64,
    /// Entries that are not read, and since when.
    unread: BTreeSet<(Instant, Kept)>,
    sessions: HashMap<u64, Held>,
    /// Sessions by their bytes, each segment counted in full.
    by_bytes: BTreeSet<(u64, u64)>,
}

/// Something that is kept in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kept {
    /// A segment, for any number of requests.
    Segment(SegmentKey),
    /// A delivery of a session on a stream of its own, by its number.
    Delivery(u64, u64),
}

/// An entry of the ledger.
#[derive(Debug)]
struct Entry {
    bytes: u64,
    /// Requests that receive blocks of it.
    readers: u32,
    /// When they last did, or when it was first counted.
    read_at: Instant,
    holders: HashMap<u64, Holder>,
}

/// The part of a session in an entry.
#[derive(Debug, Default)]
struct Holder {
    shares: u32,
    readers: u32,
    is_revoked: Arc<AtomicBool>,
}

/// The entries of a session.
#[derive(Debug, Default)]
struct Held {
    bytes: u64,
    all: BTreeSet<Kept>,
}

/// The share of a request in its segment, or of a delivery; dropping it gives it back.
#[derive(Debug)]
pub struct Share {
    ledger: Arc<Ledger>,
    kept: Kept,
    session: u64,
    is_revoked: Arc<AtomicBool>,
    reads: bool,
    read_at: Instant,
}

impl Ledger {
    /// Counts an entry of this many bytes for a session, where `most` bytes are allowed in all; a
    /// single entry may be larger. `None` if that is too much.
    pub fn take(
        self: &Arc<Self>,
        now: Instant,
        (kept, bytes): (Kept, u64),
        session: u64,
        most: u64,
    ) -> Option<Share> {
        let mut books = self.books();
        if !books.entries.contains_key(&kept) && !books.make_room(now, (bytes, most), session) {
            return None;
        }
        let is_revoked = books.hold(now, kept, bytes, session);
        Some(Share {
            ledger: Arc::clone(self),
            kept,
            session,
            is_revoked,
            reads: false,
            read_at: now,
        })
    }

    /// Counts queries, with `most` allowed in a second.
    pub fn ask(&self, now: Instant, questions: u32, most: u32) {
        let mut earned_at = self.earned_at();
        let earned = earned_at.unwrap_or(now).max(now) + DEPTH * questions / most.max(1);
        *earned_at = Some(earned.min(now + DEBT_MAX));
    }

    /// When more queries may come, if not now.
    pub fn resumes(&self, now: Instant) -> Option<Instant> {
        let resumes = self.earned_at().and_then(|at| at.checked_sub(DEPTH));
        resumes.filter(|at| *at > now)
    }

    /// Whether queries exceed the rate.
    pub(super) fn owes(&self, now: Instant) -> bool {
        self.earned_at().is_some_and(|at| at > now)
    }

    fn earned_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.earned_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes counted.
    pub fn bytes(&self) -> u64 {
        self.books().bytes
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    /// Revokes unread entries, those unread longest first, and then entries of the session with the
    /// most bytes, until there is room for this many bytes.
    fn make_room(&mut self, now: Instant, (bytes, most): (u64, u64), session: u64) -> bool {
        let fits = |books: &Self| books.bytes == 0 || books.bytes.saturating_add(bytes) <= most;
        while !fits(self) {
            match self.unread.first() {
                Some((since, kept)) if *since + GRACE <= now => self.remove(*kept),
                _ => break,
            }
        }
        let with_it = self
            .sessions
            .get(&session)
            .map_or(0, |held| held.bytes)
            .saturating_add(bytes);
        while !fits(self) {
            let Some((_, largest)) = self.by_bytes.last().filter(|(bytes, _)| *bytes > with_it)
            else {
                return false;
            };
            let Some(kept) = self.sessions.get(largest).and_then(|held| held.all.first()) else {
                return false;
            };
            self.revoke(*kept, *largest);
        }
        true
    }

    /// Counts a request of a session for a segment, or a delivery.
    fn hold(&mut self, now: Instant, kept: Kept, bytes: u64, session: u64) -> Arc<AtomicBool> {
        let Self {
            entries,
            bytes: total,
            unread,
            ..
        } = self;
        let entry = entries.entry(kept).or_insert_with(|| {
            *total += bytes;
            unread.insert((now, kept));
            Entry {
                bytes,
                readers: 0,
                read_at: now,
                holders: HashMap::new(),
            }
        });
        let bytes = entry.bytes;
        let holder = entry.holders.entry(session).or_default();
        holder.shares += 1;
        let (is_first, is_revoked) = (holder.shares == 1, Arc::clone(&holder.is_revoked));
        if is_first {
            self.charge(session, |held| {
                held.all.insert(kept);
                held.bytes += bytes;
            });
        }
        is_revoked
    }

    /// Returns the share of a request.
    fn give_back(&mut self, share: &Share) {
        self.note(share, false);
        let Some(holder) = self.holder(share) else {
            return;
        };
        holder.shares -= 1;
        if holder.shares == 0 {
            self.revoke(share.kept, share.session);
        }
    }

    /// Notes whether the request of a share receives blocks.
    fn note(&mut self, share: &Share, reads: bool) {
        let Some(holder) = self.holder(share) else {
            return;
        };
        let before = holder.readers;
        holder.readers = if reads {
            before + 1
        } else {
            before - u32::from(share.reads)
        };
        let after = holder.readers;
        self.count_readers(share.kept, (before, after), share.read_at);
    }

    /// Updates the number of requests that read an entry.
    fn count_readers(&mut self, kept: Kept, (before, after): (u32, u32), at: Instant) {
        let Some(entry) = self.entries.get_mut(&kept) else {
            return;
        };
        self.unread.remove(&(entry.read_at, kept));
        entry.readers = entry.readers - before + after;
        entry.read_at = entry.read_at.max(at);
        if entry.readers == 0 {
            self.unread.insert((entry.read_at, kept));
        }
    }

    /// The part of a share's session in its entry. After a revocation the entry may have been
    /// counted anew.
    fn holder(&mut self, share: &Share) -> Option<&mut Holder> {
        let holder = self
            .entries
            .get_mut(&share.kept)?
            .holders
            .get_mut(&share.session)?;
        Arc::ptr_eq(&holder.is_revoked, &share.is_revoked).then_some(holder)
    }

    fn remove(&mut self, kept: Kept) {
        let holders = self
            .entries
            .get(&kept)
            .map(|entry| entry.holders.keys().copied().collect::<Vec<_>>());
        holders
            .into_iter()
            .flatten()
            .for_each(|session| self.revoke(kept, session));
    }

    /// Stops counting an entry for a session, and altogether if it was the last.
    fn revoke(&mut self, kept: Kept, session: u64) {
        let Some(entry) = self.entries.get_mut(&kept) else {
            return;
        };
        let Some(holder) = entry.holders.remove(&session) else {
            return;
        };
        holder.is_revoked.store(true, Ordering::Release);
        let (bytes, read_at, is_last) = (entry.bytes, entry.read_at, entry.holders.is_empty());
        self.count_readers(kept, (holder.readers, 0), read_at);
        if is_last {
            self.unread.remove(&(read_at, kept));
            self.entries.remove(&kept);
            self.bytes -= bytes;
        }
        self.charge(session, |held| {
            held.all.remove(&kept);
            held.bytes -= bytes;
        });
    }

    fn charge(&mut self, session: u64, change: impl FnOnce(&mut Held)) {
        let held = self.sessions.entry(session).or_default();
        self.by_bytes.remove(&(held.bytes, session));
        change(held);
        if held.all.is_empty() {
            self.sessions.remove(&session);
        } else {
            self.by_bytes.insert((held.bytes, session));
        }
    }
}

impl Share {
    /// Whether it is revoked, because room was needed and nobody read, or others of its account had
    /// less.
    pub fn is_revoked(&self) -> bool {
        self.is_revoked.load(Ordering::Acquire)
    }

    /// Its request has received blocks of the segment, or the peer has taken some of the delivery.
    pub fn note_read(&mut self, now: Instant) {
        self.read_at = now;
        if !self.reads {
            self.ledger.books().note(self, true);
            self.reads = true;
        }
    }

    /// It has not been read for a while.
    pub fn note_stalled(&mut self) {
        if self.reads {
            self.ledger.books().note(self, false);
            self.reads = false;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.ledger.books().give_back(self);
    }
}

/// The burst that the rate of queries allows, and the largest debt: a single asker does not hold up
/// all.
const DEPTH: Duration = Duration::from_secs(1);
const DEBT_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(key: u64, bytes: u64) -> (Kept, u64) {
        (Kept::Segment(SegmentKey(key)), bytes)
    }

    /// Whether nothing is counted.
    fn is_empty(ledger: &Ledger) -> bool {
        let books = ledger.books();
        let counts = [
            books.entries.len(),
            books.unread.len(),
            books.sessions.len(),
            books.by_bytes.len(),
        ];
        counts == [0; 4] && books.bytes == 0
    }

    #[test]
    fn questions_are_earned_over_time() {
        let (ledger, now) = (Ledger::default(), Instant::now());
        (0..10).for_each(|_| ledger.ask(now, 1, 10));
        assert_eq!((ledger.resumes(now), ledger.owes(now)), (None, true));
        ledger.ask(now, 2, 10);
        assert_eq!(ledger.resumes(now), Some(now + Duration::from_millis(200)));
        ledger.ask(now, u32::MAX, u32::MAX);
        assert_eq!(ledger.resumes(now), Some(now + DEPTH), "no more is owed");
        assert_eq!(
            (ledger.resumes(now + DEPTH), ledger.owes(now + DEBT_MAX)),
            (None, false)
        );
    }

    #[test]
    fn a_segment_counts_once_and_one_alone_may_be_larger() {
        let (ledger, now) = (Arc::new(Ledger::default()), Instant::now());
        let (large, small) = (segment(1, 1000), segment(2, 10));
        let shares = [
            ledger.take(now, large, 1, 100).unwrap(),
            ledger.take(now, large, 1, 100).unwrap(),
        ];
        assert_eq!(ledger.bytes(), 1000);
        assert!(ledger.take(now, small, 1, 100).is_none());
        drop(shares);
        assert!(is_empty(&ledger));
        let first = ledger.take(now, small, 1, 100).unwrap();
        let second = ledger.take(now, segment(3, 90), 1, 100).unwrap();
        assert!(ledger.take(now, segment(4, 1), 1, 100).is_none());
        drop((first, second));
        assert!(is_empty(&ledger));
    }

    #[test]
    fn what_nobody_reads_makes_room() {
        let (ledger, now) = (Arc::new(Ledger::default()), Instant::now());
        let segments = [segment(1, 50), segment(2, 50)];
        let mut shares: Vec<Share> = segments
            .iter()
            .map(|segment| ledger.take(now, *segment, 1, 100).unwrap())
            .collect();
        let (later, third) = (now + GRACE, segment(3, 50));
        assert!(
            ledger
                .take(later - Duration::from_millis(1), third, 1, 100)
                .is_none(),
            "they have just come"
        );
        shares[0].note_read(later);
        let taken = ledger
            .take(later, third, 1, 100)
            .expect("the second is not read");
        assert_eq!(
            (
                shares[0].is_revoked(),
                shares[1].is_revoked(),
                ledger.bytes()
            ),
            (false, true, 100)
        );
        assert!(
            ledger.take(later, segments[1], 1, 100).is_none(),
            "it is counted as a new one"
        );
        shares[1].note_read(later + GRACE);
        let again = ledger
            .take(later + GRACE, segments[1], 1, 100)
            .expect("the third is not read");
        assert!(taken.is_revoked() && !shares[0].is_revoked());
        drop((shares, taken));
        assert_eq!(ledger.bytes(), 50, "what was revoked is given back once");
        drop(again);
        assert!(is_empty(&ledger));
    }

    #[test]
    fn what_one_request_reads_counts_for_no_other() {
        let (ledger, now) = (Arc::new(Ledger::default()), Instant::now());
        let (first, second) = (segment(1, 100), segment(2, 100));
        let unread = ledger.take(now, first, 1, 100).unwrap();
        // Another request reads a block now and then, and counts only that long.
        for second in 1..4 {
            let at = now + second * GRACE;
            ledger.take(at, first, 1, 100).unwrap().note_read(at);
        }
        let at = now + 3 * GRACE;
        assert!(
            ledger.take(at, second, 1, 100).is_none(),
            "it was read just now"
        );
        let taken = ledger
            .take(at + GRACE, second, 1, 100)
            .expect("its request reads nothing");
        assert!(unread.is_revoked());
        drop((unread, taken));
        assert!(is_empty(&ledger));
    }

    #[test]
    fn the_session_that_has_most_makes_room_for_one_that_has_less() {
        let (ledger, now) = (Arc::new(Ledger::default()), Instant::now());
        let segments: Vec<(Kept, u64)> = (0..12).map(|key| segment(key, 10)).collect();
        let take = |at: usize, session: u64| {
            let mut share = ledger.take(now, segments[at], session, 100)?;
            share.note_read(now);
            Some(share)
        };
        let crowd: Vec<Share> = (0..10).map(|at| take(at, at as u64 / 7).unwrap()).collect();
        assert!(take(10, 0).is_none(), "it has most itself");
        let newcomer = take(10, 2).expect("it has nothing");
        let revoked = |shares: &[Share]| shares.iter().filter(|share| share.is_revoked()).count();
        assert_eq!(
            (revoked(&crowd[..7]), revoked(&crowd[7..]), ledger.bytes()),
            (1, 0, 100)
        );
        let rest: Vec<Share> = (0..2).map(|_| take(11, 2).unwrap()).collect();
        assert_eq!(
            (revoked(&crowd[..7]), revoked(&crowd[7..])),
            (2, 0),
            "as many as there are requests"
        );
        // An entry that another session has, too, stays, and counts for that session.
        let shared = take(2, 3).unwrap();
        let more = take(0, 3).expect("the largest has five");
        assert!(
            crowd[2].is_revoked()
                && crowd[3].is_revoked()
                && !crowd[4].is_revoked()
                && !shared.is_revoked()
        );
        drop((crowd, newcomer, rest, shared, more));
        assert!(is_empty(&ledger));
    }
}
