//! Rolls: the connections of each holder that has a limit, in the order in which they came.
//!
//! The servers of a fleet count these holders together. They learn here which of them use how much
//! ([`Rolls::use_of`]), and say here how much of a limit this server has ([`Rolls::restrict`]). A
//! connection is admitted without waiting for either. Holders without a limit are on no roll.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use ncs_proto::admission::account::Place;

use super::token::Holder;
use super::visits::{Ending, Visit};

/// What a holder uses at this server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// Its number ([`Holder::as_u128`]).
    pub holder: u128,
    /// Its connections. After the last one has gone, this is said once.
    pub connections: u32,
    /// When they came, the oldest first: at most [`MARKS_MAX`] times, each of which stands for an
    /// equal part of them.
    pub marks: Vec<Instant>,
    /// Connections that it may have.
    pub limit: Option<u32>,
    /// Bytes a second that it may spend.
    pub rate: Option<u64>,
    /// Bytes that it has spent.
    pub spent: u64,
}

/// A server's part of a holder's limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// Connections that may stay: of more than these, the newest are closed.
    pub keep: Option<u32>,
    /// Whether newcomers beyond them are refused at once.
    pub is_strict: bool,
    /// Bytes a second, instead of the holder's own rate.
    pub rate: Option<u64>,
}

/// Times in a [`Use`].
pub const MARKS_MAX: usize = 16;

/// All rolls of a server.
#[derive(Debug, Default)]
pub(super) struct Rolls {
    pages: Mutex<Pages>,
    /// Connections that have come.
    came: AtomicU64,
}

#[derive(Debug, Default)]
struct Pages {
    rolls: HashMap<u128, Roll>,
    /// Those that have changed since they were asked for. None before the first time: nobody asks
    /// for them at a server without a fleet.
    changed: Option<HashSet<u128>>,
}

/// The connections of a holder.
#[derive(Debug, Default)]
struct Roll {
    /// By the order in which they came.
    seats: BTreeMap<u64, (Instant, Weak<Seat>)>,
    limit: Option<u32>,
    rate: Option<u64>,
    share: Share,
}

impl Roll {
    fn connections(&self) -> u32 {
        u32::try_from(self.seats.len()).unwrap_or(u32::MAX)
    }

    fn is_idle(&self) -> bool {
        self.seats.is_empty() && self.share == Share::default()
    }
}

/// A connection's place among those of its holder. Dropping it takes it off the roll.
#[derive(Debug)]
pub(super) struct Seat {
    place: Place<Holder>,
    /// Its position in the order of all.
    number: u64,
    came_at: Instant,
    is_enrolled: AtomicBool,
    /// Whether its connection has to end because the holder has too many.
    is_revoked: AtomicBool,
    rolls: Arc<Rolls>,
    /// The connection that has it now.
    visit: Mutex<Weak<Visit>>,
}

impl Seat {
    pub(super) fn place(&self) -> &Place<Holder> {
        &self.place
    }

    /// This connection has it from now on.
    pub(super) fn belongs_to(&self, visit: &Arc<Visit>) {
        *lock(&self.visit) = Arc::downgrade(visit);
        if self.is_revoked.load(Ordering::Relaxed) {
            visit.end(Ending::Limited);
        }
    }

    /// Whether it was not revoked before.
    fn revoke(&self) -> bool {
        let is_new = !self.is_revoked.swap(true, Ordering::Relaxed);
        if let Some(visit) = lock(&self.visit).upgrade() {
            visit.end(Ending::Limited);
        }
        is_new
    }

    /// Sets the limits of its holder as its credential has them, and puts it on the roll if there
    /// are any.
    pub(super) fn limit(self: &Arc<Self>, limit: Option<u32>, rate: Option<u64>) {
        let is_limited = limit.is_some() || rate.is_some();
        if !is_limited && !self.is_enrolled.load(Ordering::Relaxed) {
            self.place.set_rate(None);
            return;
        }
        let key = self.place.key().as_u128();
        let mut pages = self.rolls.lock();
        let roll = pages.rolls.entry(key).or_default();
        let mut has_changed = (roll.limit, roll.rate) != (limit, rate);
        (roll.limit, roll.rate) = (limit, rate);
        if is_limited {
            let seat = (self.came_at, Arc::downgrade(self));
            has_changed |= roll.seats.insert(self.number, seat).is_none();
        } else {
            has_changed |= roll.seats.remove(&self.number).is_some();
        }
        self.is_enrolled.store(is_limited, Ordering::Relaxed);
        self.place.set_rate(effective(rate, roll.share));
        if has_changed {
            pages.note(key);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.is_enrolled.load(Ordering::Relaxed) {
            return;
        }
        let key = self.place.key().as_u128();
        let mut pages = self.rolls.lock();
        if let Some(roll) = pages.rolls.get_mut(&key) {
            roll.seats.remove(&self.number);
            pages.note(key);
        }
    }
}

impl Pages {
    fn note(&mut self, key: u128) {
        if let Some(changed) = &mut self.changed {
            changed.insert(key);
        }
        if self.rolls.get(&key).is_some_and(Roll::is_idle) {
            self.rolls.remove(&key);
        }
    }
}

impl Rolls {
    /// Whether the fleet has said that this holder has no place here.
    pub(super) fn is_full(&self, holder: Holder) -> bool {
        let pages = self.lock();
        let roll = pages.rolls.get(&holder.as_u128());
        roll.is_some_and(|roll| {
            let keep = roll.share.keep.filter(|_| roll.share.is_strict);
            keep.is_some_and(|keep| roll.connections() >= keep)
        })
    }

    /// A connection that has come just now. It is on no roll until its limits are set.
    pub(super) fn seat(self: &Arc<Self>, now: Instant, place: Place<Holder>) -> Arc<Seat> {
        Arc::new(Seat {
            place,
            number: self.came.fetch_add(1, Ordering::Relaxed),
            came_at: now,
            is_enrolled: AtomicBool::new(false),
            is_revoked: AtomicBool::new(false),
            rolls: Arc::clone(self),
            visit: Mutex::default(),
        })
    }

    /// The holders that have changed since the last call; all at the first one.
    pub(super) fn take_changed(&self) -> Vec<u128> {
        let mut pages = self.lock();
        match pages.changed.replace(HashSet::new()) {
            Some(changed) => changed.into_iter().collect(),
            None => pages.rolls.keys().copied().collect(),
        }
    }

    /// What a holder uses here.
    pub(super) fn use_of(&self, holder: u128) -> Use {
        let mut used = Use {
            holder,
            connections: 0,
            marks: Vec::new(),
            limit: None,
            rate: None,
            spent: 0,
        };
        let pages = self.lock();
        let Some(roll) = pages.rolls.get(&holder) else {
            return used;
        };
        let count = roll.seats.len();
        let marks = count.min(MARKS_MAX);
        let times: Vec<Instant> = roll.seats.values().map(|(came_at, _)| *came_at).collect();
        used.marks = (0..marks).map(|mark| times[mark * count / marks]).collect();
        used.connections = roll.connections();
        (used.limit, used.rate) = (roll.limit, roll.rate);
        let seat = roll.seats.values().find_map(|(_, seat)| seat.upgrade());
        used.spent = seat.as_ref().map_or(0, |seat| seat.place.spent());
        // Dropping a seat takes the lock.
        drop(pages);
        used
    }

    /// This is what the server has of the holder's limits from now on; [`Share::default`]: all.
    /// Returns the connections that are closed for it.
    pub(super) fn restrict(&self, holder: u128, share: Share) -> u32 {
        let mut pages = self.lock();
        let roll = match pages.rolls.get_mut(&holder) {
            Some(roll) => roll,
            None if share == Share::default() => return 0,
            None => pages.rolls.entry(holder).or_default(),
        };
        roll.share = share;
        let rate = effective(roll.rate, share);
        let keep = share.keep.map_or(usize::MAX, |keep| keep as usize);
        let excess = roll.seats.len().saturating_sub(keep);
        let newest = roll.seats.values().rev().take(excess.max(1));
        let seats: Vec<Arc<Seat>> = newest.filter_map(|(_, seat)| seat.upgrade()).collect();
        if roll.is_idle() {
            pages.rolls.remove(&holder);
        }
        drop(pages);
        if let Some(seat) = seats.first() {
            // They all spend from one purse.
            seat.place.set_rate(rate);
        }
        let revoked = seats.iter().take(excess).filter(|seat| seat.revoke());
        u32::try_from(revoked.count()).unwrap_or(u32::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        lock(&self.pages)
    }
}

/// The rate of a holder at a server with this share.
fn effective(rate: Option<u64>, share: Share) -> Option<u64> {
    rate.map(|rate| share.rate.map_or(rate, |share| share.min(rate)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use ncs_proto::admission::account::Book;

    use super::*;

    struct Rig {
        rolls: Arc<Rolls>,
        book: Book<Holder>,
        now: Instant,
        holder: Holder,
    }

    impl Rig {
        fn new() -> Self {
            Self {
                rolls: Arc::default(),
                book: Book::new(),
                now: Instant::now(),
                holder: Holder::of("subject", &[b"ann"]),
            }
        }

        /// Connection number so and so.
        fn come(&self, number: u32) -> (Arc<Seat>, Arc<Visit>) {
            let now = self.now + number * Duration::from_secs(1);
            let place = self.book.enter(now, self.holder, None).unwrap();
            let (seat, visit) = (self.rolls.seat(now, place), Arc::<Visit>::default());
            seat.belongs_to(&visit);
            (seat, visit)
        }

        fn used(&self) -> Use {
            self.rolls.use_of(self.holder.as_u128())
        }
    }

    fn ends(visit: &Visit) -> Option<Ending> {
        visit.ended().now_or_never()
    }

    #[test]
    fn a_roll_is_kept_of_holders_with_a_limit() {
        let rig = Rig::new();
        let (one, _) = rig.come(0);
        one.limit(None, None);
        one.limit(Some(3), Some(1000));
        assert_eq!(
            rig.rolls.take_changed(),
            [rig.holder.as_u128()],
            "all of before"
        );
        let (other, _) = rig.come(1);
        other.limit(Some(3), Some(1000));
        other.place().spend(rig.now, 70);
        assert_eq!(rig.rolls.take_changed(), [rig.holder.as_u128()]);
        assert_eq!(rig.rolls.take_changed(), [], "once");
        let used = rig.used();
        assert_eq!((used.connections, used.spent), (2, 70));
        assert_eq!(used.marks, [rig.now, rig.now + Duration::from_secs(1)]);
        // The same again is no change.
        one.limit(Some(3), Some(1000));
        assert_eq!(rig.rolls.take_changed(), []);
        drop((one, other));
        assert_eq!(rig.rolls.take_changed(), [rig.holder.as_u128()]);
        assert_eq!(rig.used().connections, 0);
        assert!(rig.rolls.lock().rolls.is_empty());
    }

    #[test]
    fn the_newest_go_and_newcomers_are_refused_where_it_is_strict() {
        let rig = Rig::new();
        let key = rig.holder.as_u128();
        let seats: Vec<_> = (0..4).map(|number| rig.come(number)).collect();
        seats.iter().for_each(|(seat, _)| seat.limit(Some(9), None));
        let share = |keep, is_strict| Share {
            keep: Some(keep),
            is_strict,
            rate: None,
        };
        assert_eq!(rig.rolls.restrict(key, share(4, false)), 0);
        assert!(
            !rig.rolls.is_full(rig.holder),
            "newcomers are reported first"
        );
        assert_eq!(rig.rolls.restrict(key, share(2, true)), 2);
        assert_eq!(rig.rolls.restrict(key, share(2, true)), 0, "they are going");
        assert!(rig.rolls.is_full(rig.holder));
        let limited = Some(Ending::Limited);
        let ended: Vec<_> = seats.iter().map(|(_, visit)| ends(visit)).collect();
        assert_eq!(ended, [None, None, limited, limited]);
        // The connection that takes over a revoked one ends, too.
        let heir = Arc::<Visit>::default();
        seats[3].0.belongs_to(&heir);
        assert_eq!(ends(&heir), limited);
        drop(seats);
        assert!(!rig.rolls.is_full(rig.holder));
        assert_eq!(rig.rolls.restrict(key, Share::default()), 0);
        assert!(rig.rolls.lock().rolls.is_empty());
        rig.rolls.restrict(key, share(0, true));
        assert!(rig.rolls.is_full(rig.holder), "before it has a connection");
    }

    #[test]
    fn a_share_replaces_the_rate_and_stays_when_rights_are_reviewed() {
        let rig = Rig::new();
        let key = rig.holder.as_u128();
        let share = Share {
            rate: Some(400),
            ..Share::default()
        };
        let (seat, _visit) = rig.come(0);
        let allowance = || seat.place().allowance(rig.now).unwrap();
        seat.limit(None, Some(1000));
        assert_eq!(allowance(), 1000);
        rig.rolls.restrict(key, share);
        assert_eq!(allowance(), 400);
        seat.limit(None, Some(1000));
        assert_eq!(allowance(), 400);
        rig.rolls.restrict(key, Share::default());
        assert_eq!(allowance(), 1000);
        seat.limit(None, None);
        assert_eq!(allowance(), u64::MAX);
        assert_eq!(rig.used().connections, 0);
    }

    #[test]
    fn marks_stand_for_equal_parts_of_many_connections() {
        let rig = Rig::new();
        let seats: Vec<_> = (0..100).map(|number| rig.come(number)).collect();
        seats
            .iter()
            .for_each(|(seat, _)| seat.limit(Some(200), None));
        let used = rig.used();
        assert_eq!((used.connections, used.marks.len()), (100, MARKS_MAX));
        assert!(used.marks.is_sorted());
        assert_eq!(used.marks[8], rig.now + Duration::from_secs(50));
    }
}
