//! Whose fetch is next. [`Turns`] is a plain value, to which fetches are numbers; [`Gate`] lets tasks wait for it.
//!
//! A stream has some places for fetches. Two kinds of wishes share them: what the server itself follows, which is playlists and the live
//! edge and comes in the order in which it was wished, and what peers ask for. Each kind leaves some places to the other, so that a crowd
//! that asks for old segments holds up no playlist, and an origin with many playlists no viewer. Of what peers ask for, those have turns
//! who are counted together ([`AskedBy`]), and among those their sessions; and nobody takes all of the places, so that who comes next
//! need not wait for the slowest answer of the origin's. A fetch that several wait for leaves with the first turn of any of them.
//!
//! Bounds: the wishes of one session that wait; and all that wait, where the newest wish of whoever has most is refused for that of
//! somebody who has fewer.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::object::AskedBy;

/// The turns of a stream's fetches, and the tasks that wait for theirs.
#[derive(Debug)]
pub(super) struct Gate {
    inner: Mutex<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    turns: Turns,
    /// Rung when a fetch begins, dropped when it is refused.
    begins: HashMap<u64, oneshot::Sender<()>>,
    next: u64,
}

/// A fetch that waits or runs; its place is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    gate: Arc<Gate>,
    fetch: u64,
    begins: Option<oneshot::Receiver<()>>,
}

impl Gate {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { inner: Mutex::new(Waiting { turns: Turns::new(limits), begins: HashMap::new(), next: 0 }) })
    }

    /// A place for a new fetch.
    pub(super) fn enter(self: &Arc<Self>, by: Option<AskedBy>) -> Result<Place, Refused> {
        let mut inner = self.lock();
        let fetch = inner.next;
        if let Some(refused) = inner.turns.wish(fetch, by)? {
            inner.begins.remove(&refused);
        }
        inner.next += 1;
        let (ring, begins) = oneshot::channel();
        inner.begins.insert(fetch, ring);
        inner.start();
        drop(inner);
        Ok(Place { gate: Arc::clone(self), fetch, begins: Some(begins) })
    }

    /// Somebody else waits for a fetch, too.
    pub(super) fn join(&self, fetch: u64, by: Option<AskedBy>) {
        let mut inner = self.lock();
        inner.turns.join(fetch, by);
        inner.start();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn start(&mut self) {
        while let Some(fetch) = self.turns.poll_start() {
            // Whoever does not wait any more drops its place.
            let _ = self.begins.remove(&fetch).map(|begins| begins.send(()));
        }
    }
}

impl Place {
    /// What it is called.
    pub(super) fn fetch(&self) -> u64 {
        self.fetch
    }

    /// Waits for its turn.
    pub(super) async fn turn(&mut self) -> Result<(), Refused> {
        match self.begins.take() {
            Some(begins) => begins.await.map_err(|_| Refused::Full),
            None => Ok(()),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = self.gate.lock();
        inner.begins.remove(&self.fetch);
        inner.turns.ended(self.fetch);
        inner.start();
    }
}

/// Fetches of a stream that run and wait.
#[derive(Debug)]
pub(super) struct Turns {
    limits: Limits,
    /// Whom each fetch that runs counts for; `None` for the server itself.
    running: HashMap<u64, Option<u128>>,
    /// What waits, and for how many wishes.
    waiting: HashMap<u64, usize>,
    own: VecDeque<u64>,
    lines: HashMap<u128, Line>,
    /// Those with wishes, the next first.
    order: VecDeque<u128>,
    was_own: bool,
}

/// How much there may be at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Fetches that run.
    pub(super) places: usize,
    /// Fetches that wait.
    pub(super) queued: usize,
    /// Fetches that one session waits for.
    pub(super) queued_by_session: usize,
}

/// What waits for those who are counted together.
#[derive(Debug, Default)]
struct Line {
    sessions: BTreeMap<u64, VecDeque<u64>>,
    /// The session that had the last turn.
    last: Option<u64>,
    len: usize,
}

/// Why a wish is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// All that may wait do.
    Full,
    /// All that a session may wait for does.
    Session,
}

impl Turns {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            running: HashMap::new(),
            waiting: HashMap::new(),
            own: VecDeque::new(),
            lines: HashMap::new(),
            order: VecDeque::new(),
            was_own: false,
        }
    }

    /// Notes that somebody, or the server itself, wants a fetch that does not run yet; it may wait already. Returns one that is refused
    /// to make room, if there is one.
    pub(super) fn wish(&mut self, fetch: u64, by: Option<AskedBy>) -> Result<Option<u64>, Refused> {
        if self.running.contains_key(&fetch) {
            return Ok(None);
        }
        let is_new = !self.waiting.contains_key(&fetch);
        let Some(AskedBy { account, session }) = by else {
            if self.own.len() >= self.limits.queued {
                return if is_new { Err(Refused::Full) } else { Ok(None) };
            }
            *self.waiting.entry(fetch).or_default() += 1;
            self.own.push_back(fetch);
            return Ok(None);
        };
        let line = self.lines.get(&account);
        if line.and_then(|line| line.sessions.get(&session)).map_or(0, VecDeque::len) >= self.limits.queued_by_session {
            return Err(Refused::Session);
        }
        let has = line.map_or(0, |line| line.len);
        let mut refused = None;
        if is_new && self.waiting.len() >= self.limits.queued {
            refused = Some(self.displace(account, session, has).ok_or(Refused::Full)?);
        }
        *self.waiting.entry(fetch).or_default() += 1;
        if !self.lines.contains_key(&account) {
            self.order.push_back(account);
        }
        self.lines.entry(account).or_default().push(session, fetch);
        Ok(refused)
    }

    /// The same of a fetch that others want. If it runs already, or has run, there is nothing to wish for.
    pub(super) fn join(&mut self, fetch: u64, by: Option<AskedBy>) {
        if self.waiting.contains_key(&fetch) {
            // Whoever may wish for nothing more waits for the turn of the others.
            let _ = self.wish(fetch, by);
        }
    }

    /// A fetch that begins now, if there is one and a place for it. Ask until there is none.
    pub(super) fn poll_start(&mut self) -> Option<u64> {
        if self.running.len() >= self.limits.places {
            return None;
        }
        let kept = self.limits.kept();
        let asked = self.running.values().flatten().count();
        let may_own = self.running.len() - asked + kept < self.limits.places;
        let may_ask = asked + kept < self.limits.places;
        // With too few places to keep any, the kinds take turns.
        let is_own_first = kept > 0 || !self.was_own;
        for is_own in [is_own_first, !is_own_first] {
            let next = match is_own {
                true => if may_own { self.next_own() } else { None }.map(|fetch| (fetch, None)),
                false => if may_ask { self.next_asked() } else { None }.map(|(fetch, account)| (fetch, Some(account))),
            };
            if let Some((fetch, account)) = next {
                self.waiting.remove(&fetch);
                self.running.insert(fetch, account);
                self.was_own = is_own;
                return Some(fetch);
            }
        }
        None
    }

    /// Notes that a fetch has ended, or is not wanted any more.
    pub(super) fn ended(&mut self, fetch: u64) {
        self.running.remove(&fetch);
        self.waiting.remove(&fetch);
    }

    fn next_own(&mut self) -> Option<u64> {
        while let Some(fetch) = self.own.pop_front() {
            if self.waiting.contains_key(&fetch) {
                return Some(fetch);
            }
        }
        None
    }

    /// The next wish of a peer, and whom it counts for.
    fn next_asked(&mut self) -> Option<(u64, u128)> {
        let most = self.limits.of_one();
        for _ in 0..self.order.len() {
            let account = self.order.pop_front()?;
            let line = self.lines.get_mut(&account)?;
            if self.running.values().flatten().filter(|running| **running == account).count() >= most {
                self.order.push_back(account);
                continue;
            }
            let mut next = line.pop();
            while next.is_some_and(|fetch| !self.waiting.contains_key(&fetch)) {
                next = line.pop();
            }
            if line.len == 0 {
                self.lines.remove(&account);
            } else {
                self.order.push_back(account);
            }
            if let Some(fetch) = next {
                return Some((fetch, account));
            }
        }
        None
    }

    /// Refuses the newest wish of those who have most, for somebody who has so many; or else that of the session of the same account that
    /// has most, where this one has fewer. Returns what nobody waits for any more, if that is so then.
    fn displace(&mut self, account: u128, session: u64, has: usize) -> Option<u64> {
        loop {
            let most = self.lines.iter_mut().max_by_key(|(_, line)| line.len).filter(|(_, line)| line.len > has + 1);
            let fetch = match most {
                Some((other, line)) if *other != account => line.pop_newest()?,
                _ => {
                    let line = self.lines.get_mut(&account)?;
                    let own = line.sessions.get(&session).map_or(0, VecDeque::len);
                    let most = line.sessions.values().map(VecDeque::len).max()?;
                    (most > own + 1).then(|| line.pop_newest())??
                }
            };
            let Some(wishes) = self.waiting.get_mut(&fetch) else { continue };
            *wishes -= 1;
            if *wishes == 0 {
                self.waiting.remove(&fetch);
                return Some(fetch);
            }
        }
    }
}

impl Limits {
    /// Places that each kind leaves to the other.
    fn kept(&self) -> usize {
        self.places / 4
    }

    /// Places that those may take at most who are counted together.
    fn of_one(&self) -> usize {
        let asked = self.places - self.kept();
        asked - (asked / 4).max(usize::from(asked > 1))
    }
}

impl Line {
    fn push(&mut self, session: u64, fetch: u64) {
        self.sessions.entry(session).or_default().push_back(fetch);
        self.len += 1;
    }

    /// The oldest wish of the session whose turn it is.
    fn pop(&mut self) -> Option<u64> {
        let after = self.last.and_then(|last| self.sessions.range(last.checked_add(1)?..).next());
        let session = *after.or_else(|| self.sessions.first_key_value())?.0;
        let line = self.sessions.get_mut(&session)?;
        let fetch = line.pop_front();
        if line.is_empty() {
            self.sessions.remove(&session);
        }
        self.last = Some(session);
        self.len -= usize::from(fetch.is_some());
        fetch
    }

    /// The newest wish of the session that has most.
    fn pop_newest(&mut self) -> Option<u64> {
        let (session, line) = self.sessions.iter_mut().max_by_key(|(_, line)| line.len())?;
        let (session, fetch) = (*session, line.pop_back());
        if line.is_empty() {
            self.sessions.remove(&session);
        }
        self.len -= usize::from(fetch.is_some());
        fetch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn turns(places: usize, queued: usize) -> Turns {
        Turns::new(Limits { places, queued, queued_by_session: 32 })
    }

    fn by(account: u128, session: u64) -> Option<AskedBy> {
        Some(AskedBy { account, session })
    }

    fn wish(turns: &mut Turns, fetch: u64, by: Option<AskedBy>) {
        assert_eq!(turns.wish(fetch, by), Ok(None));
    }

    /// Everything that begins now.
    fn start(turns: &mut Turns) -> Vec<u64> {
        std::iter::from_fn(|| turns.poll_start()).collect()
    }

    /// Ends what runs and begins what follows, until a fetch has begun; how many rounds that takes.
    fn rounds_until(turns: &mut Turns, wanted: u64) -> usize {
        for round in 0..10_000 {
            if start(turns).contains(&wanted) || turns.running.contains_key(&wanted) {
                return round;
            }
            let running: Vec<u64> = turns.running.keys().copied().collect();
            running.into_iter().for_each(|fetch| turns.ended(fetch));
        }
        panic!("it never began");
    }

    #[test]
    fn a_crowd_holds_up_nobody_who_asks_for_little() {
        let mut turns = turns(16, 1024);
        for number in 0..1000 {
            turns.wish(number, by(1, number % 40)).unwrap();
        }
        assert_eq!(start(&mut turns).len(), 9, "places stay for others");
        turns.wish(5000, by(2, 100)).unwrap();
        assert_eq!(start(&mut turns), [5000], "another address");
        turns.wish(5001, by(1, 101)).unwrap();
        assert!(rounds_until(&mut turns, 5001) <= 5, "another session of the same address, after one turn of each at most");
    }

    #[test]
    fn playlists_and_the_live_edge_have_places_of_their_own_and_leave_some() {
        let mut turns = turns(16, 1024);
        (0..100).for_each(|number| wish(&mut turns, number, by(u128::from(number), number)));
        assert_eq!(start(&mut turns).len(), 12);
        (1000..1100).for_each(|number| wish(&mut turns, number, None));
        assert_eq!(start(&mut turns), [1000, 1001, 1002, 1003]);
        (0..12).for_each(|number| turns.ended(number));
        assert_eq!(start(&mut turns).len(), 12);
        let asked = turns.running.values().flatten().count();
        assert_eq!((turns.running.len() - asked, asked), (12, 4));
    }

    #[test]
    fn with_one_place_both_kinds_have_turns() {
        let mut turns = turns(1, 1024);
        (0..10).for_each(|number| wish(&mut turns, number, None));
        (10..20).for_each(|number| wish(&mut turns, number, by(1, 1)));
        let mut order = Vec::new();
        while let Some(fetch) = turns.poll_start() {
            turns.ended(fetch);
            order.push(fetch);
        }
        assert_eq!(order[..6], [0, 10, 1, 11, 2, 12]);
        assert_eq!(order.len(), 20);
    }

    #[test]
    fn a_fetch_that_several_want_leaves_with_the_first_turn() {
        let mut turns = turns(4, 1024);
        (0..30).for_each(|number| wish(&mut turns, number, by(1, 1)));
        assert_eq!(start(&mut turns), [0, 1]);
        turns.wish(29, by(2, 2)).unwrap();
        assert_eq!(start(&mut turns), [29]);
        turns.wish(28, None).unwrap();
        assert_eq!(start(&mut turns), [28]);
        let mut rest = Vec::new();
        for fetch in [0, 1, 28, 29] {
            turns.ended(fetch);
        }
        while let Some(fetch) = turns.poll_start() {
            turns.ended(fetch);
            rest.push(fetch);
        }
        assert_eq!(rest, (2..28).collect::<Vec<_>>(), "and not once more");
        assert!(turns.lines.is_empty() && turns.order.is_empty() && turns.waiting.is_empty());
    }

    #[test]
    fn a_full_queue_makes_room_for_who_has_little() {
        let mut turns = turns(1, 100);
        for number in 0..100 {
            turns.wish(number, by(1, number % 4)).unwrap();
        }
        assert_eq!(turns.wish(100, by(1, 1)), Err(Refused::Full), "its own crowd");
        assert!(turns.wish(101, by(2, 9)).unwrap().is_some_and(|refused| refused >= 96), "the newest goes");
        for number in 200..300 {
            let _ = turns.wish(number, by(2, number % 4));
        }
        let lens: Vec<usize> = turns.lines.values().map(|line| line.len).collect();
        assert!(turns.waiting.len() == 100 && lens.iter().all(|len| (49..=51).contains(len)), "{lens:?}");
    }

    #[test]
    fn a_full_queue_makes_room_for_a_session_that_has_little_beside_others_of_its_address() {
        let mut turns = turns(1, 60);
        for session in 0..2 {
            (0..30).for_each(|number| wish(&mut turns, 100 * session + number, by(1, session)));
        }
        assert_eq!(turns.wish(1000, by(1, 2)), Ok(Some(129)), "the newest of a session that has most");
        assert_eq!(turns.wish(1001, by(1, 0)), Err(Refused::Full), "who has most makes no room for itself");
    }

    #[test]
    fn a_session_waits_for_so_many() {
        let mut turns = turns(1, 1024);
        let taken = (0..100).filter(|number| turns.wish(*number, by(1, 1)).is_ok()).count();
        assert_eq!((taken, turns.wish(200, by(1, 1))), (32, Err(Refused::Session)));
        assert_eq!(turns.wish(200, by(1, 2)), Ok(None));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_bounds_are_kept(
            places in 1_usize..9,
            steps in proptest::collection::vec((0_u64..40, 0_u128..5, 0_u64..6, 0_u8..4), 0..200),
        ) {
            let mut turns = Turns::new(Limits { places, queued: 12, queued_by_session: 4 });
            let mut open = std::collections::BTreeSet::new();
            for (fetch, account, session, step) in steps {
                match step {
                    0 => turns.ended(fetch),
                    _ => if let Ok(refused) = turns.wish(fetch, by(account, session).filter(|_| account > 0)) {
                        open.insert(fetch);
                        if let Some(refused) = refused {
                            open.remove(&refused);
                        }
                    },
                }
                if step == 0 {
                    open.remove(&fetch);
                }
                while turns.poll_start().is_some() {}
                prop_assert!(turns.running.len() <= places);
                prop_assert!(turns.waiting.len() <= 24);
                prop_assert_eq!(turns.running.len() + turns.waiting.len(), open.len());
                let counted: usize = turns.lines.values().map(|line| line.sessions.values().map(VecDeque::len).sum::<usize>()).sum();
                prop_assert_eq!(counted, turns.lines.values().map(|line| line.len).sum::<usize>());
                prop_assert_eq!(turns.order.len(), turns.lines.len());
            }
            // Everything that waits begins in the end.
            for _ in 0..200 {
                let running: Vec<u64> = turns.running.keys().copied().collect();
                for fetch in running {
                    turns.ended(fetch);
                    open.remove(&fetch);
                }
                while turns.poll_start().is_some() {}
            }
            prop_assert!(open.is_empty(), "{:?}", open);
        }
    }
}
