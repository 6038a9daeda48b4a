//! Decides which fetch is next. [`Turns`] is a plain value, in which fetches are numbers; [`Gate`]
//! lets tasks wait for their turns.
//!
//! A stream has a number of places for fetches, which two kinds of wishes share: objects that the
//! server itself follows (playlists and the live edge), and other objects that peers request. Each
//! kind leaves some places to the other, so that many requests for old segments delay no playlist,
//! and many playlists delay no viewer. Of the followed objects, configured playlists and their
//! segments go first, in order of arrival. The others are followed because a peer asked, possibly
//! for an invented name. Among these, and among other requests, accounts take turns ([`AskedBy`]),
//! and within an account its sessions. No account takes all places, so that others need not wait
//! for the origin's slowest answer. A fetch with several waiting requests starts with the first
//! turn of any of them. One without any is cancelled before it begins.
//!
//! Bounds: the waiting wishes of a session, and all waiting wishes of a kind. At the second bound,
//! the newest wish of the account with the most is refused in favour of an account with fewer.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ncs_proto::object::AskedBy;
use tokio::sync::oneshot;

/// The turns of a stream's fetches, and the tasks that wait for them.
#[derive(Debug)]
pub struct Gate {
    inner: Mutex<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    turns: Turns,
    /// Sent when a fetch begins, dropped when it is refused or cancelled.
    begins: HashMap<u64, oneshot::Sender<()>>,
    /// Refused or cancelled fetches whose tasks have not noticed.
    over: HashSet<u64>,
    next: u64,
}

/// A waiting or running fetch; dropping this frees its place.
#[derive(Debug)]
pub struct Place {
    gate: Arc<Gate>,
    fetch: u64,
    begins: Option<oneshot::Receiver<()>>,
}

/// A wish for a fetch, until this is dropped.
#[derive(Debug)]
pub struct Wish {
    gate: Arc<Gate>,
    fetch: u64,
    by: Wanted,
}

/// The reason for a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The server itself follows the object.
    Own,
    /// The server follows the object because of a peer's request: the account of the first, or of
    /// this request.
    Followed(AskedBy),
    /// A peer requests the object.
    Asked(AskedBy),
}

impl Wanted {
    /// The account that it is charged to, if any.
    pub fn account(self) -> Option<u128> {
        match self {
            Self::Own => None,
            Self::Followed(by) | Self::Asked(by) => Some(by.account),
        }
    }
}

/// The fetch will never begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IsOver;

impl Gate {
    /// A gate at which nobody waits yet.
    pub fn new(limits: Limits) -> Arc<Self> {
        let (turns, begins, over) = (Turns::new(limits), HashMap::new(), HashSet::new());
        Arc::new(Self {
            inner: Mutex::new(Waiting {
                turns,
                begins,
                over,
                next: 0,
            }),
        })
    }

    /// A place for a new fetch.
    pub fn enter(self: &Arc<Self>, by: Wanted) -> Result<(Place, Wish), Refused> {
        let mut inner = self.lock();
        let fetch = inner.next;
        if let Some(refused) = inner.turns.wish(fetch, by)? {
            inner.give_up(refused);
        }
        inner.next += 1;
        let (ring, begins) = oneshot::channel();
        inner.begins.insert(fetch, ring);
        inner.start();
        drop(inner);
        let place = Place {
            gate: Arc::clone(self),
            fetch,
            begins: Some(begins),
        };
        Ok((
            place,
            Wish {
                gate: Arc::clone(self),
                fetch,
                by,
            },
        ))
    }

    /// Adds a wish for a fetch. If the account may have no more wishes, it waits for the turn of
    /// the others.
    pub fn join(self: &Arc<Self>, fetch: u64, by: Wanted) -> Result<Option<Wish>, IsOver> {
        let mut inner = self.lock();
        if inner.over.contains(&fetch) {
            return Err(IsOver);
        }
        let is_noted = inner.turns.join(fetch, by);
        inner.start();
        Ok(is_noted.then(|| Wish {
            gate: Arc::clone(self),
            fetch,
            by,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn start(&mut self) {
        while let Some(fetch) = self.turns.poll_start() {
            // A task that has stopped waiting drops its place.
            let _ = self.begins.remove(&fetch).map(|begins| begins.send(()));
        }
    }

    fn give_up(&mut self, fetch: u64) {
        if self.begins.remove(&fetch).is_some() {
            self.over.insert(fetch);
        }
    }
}

impl Place {
    /// The number of the fetch.
    pub fn fetch(&self) -> u64 {
        self.fetch
    }

    /// Waits for the turn.
    pub async fn turn(&mut self) -> Result<(), Refused> {
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
        inner.over.remove(&self.fetch);
        inner.turns.ended(self.fetch);
        inner.start();
    }
}

impl Drop for Wish {
    fn drop(&mut self) {
        let mut inner = self.gate.lock();
        if inner.turns.withdraw(self.fetch, self.by) {
            inner.give_up(self.fetch);
        }
    }
}

/// Running and waiting fetches of a stream.
#[derive(Debug)]
pub(super) struct Turns {
    limits: Limits,
    /// The account of each running fetch.
    running: HashMap<u64, Runs>,
    /// Waiting fetches, with their number of wishes.
    waiting: HashMap<u64, Wishes>,
    own: VecDeque<u64>,
    followed: Lines,
    asked: Lines,
    was_own: bool,
}

/// The account of a running fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    Own,
    Followed(u128),
    Asked(u128),
}

/// Numbers of wishes for a fetch, by kind.
#[derive(Debug, Default)]
struct Wishes {
    own: usize,
    followed: usize,
    asked: usize,
}

/// The limits of a stream's fetches.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Running fetches.
    pub places: usize,
    /// Waiting fetches of one kind.
    pub queued: usize,
    /// Waiting fetches of one session.
    pub queued_by_session: usize,
}

/// Wishes of one kind, by account.
#[derive(Debug, Default)]
struct Lines {
    lines: HashMap<u128, Line>,
    /// Accounts with wishes, the next first.
    order: VecDeque<u128>,
    /// The number of fetches with a wish here.
    fetches: usize,
}

/// The wishes of one account.
#[derive(Debug, Default)]
struct Line {
    sessions: BTreeMap<u64, VecDeque<u64>>,
    /// The session with the last turn.
    last: Option<u64>,
    len: usize,
}

/// Why a wish is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The queue is full.
    Full,
    /// The session has the maximum of wishes.
    Session,
}

impl Turns {
    pub(super) fn new(limits: Limits) -> Self {
        let (followed, asked) = (Lines::default(), Lines::default());
        Self {
            limits,
            running: HashMap::new(),
            waiting: HashMap::new(),
            own: VecDeque::new(),
            followed,
            asked,
            was_own: false,
        }
    }

    /// Notes a wish for a fetch that is not running; it may be waiting. Returns a fetch that is
    /// refused to make room, if there is one.
    pub(super) fn wish(&mut self, fetch: u64, wanted: Wanted) -> Result<Option<u64>, Refused> {
        if self.running.contains_key(&fetch) {
            return Ok(None);
        }
        let queued = self.limits.queued;
        let is_new = self
            .waiting
            .get_mut(&fetch)
            .is_none_or(|wishes| *wishes.of(wanted) == 0);
        let mut refused = None;
        match wanted {
            Wanted::Own if self.own.len() >= queued => return Err(Refused::Full),
            Wanted::Own => self.own.push_back(fetch),
            Wanted::Asked(by) | Wanted::Followed(by) => {
                let has = self.asked.of_session(by);
                if matches!(wanted, Wanted::Asked(_)) && has >= self.limits.queued_by_session {
                    return Err(Refused::Session);
                }
                let is_full = self
                    .lines(wanted)
                    .is_some_and(|lines| lines.fetches >= queued);
                if is_new && is_full {
                    refused = self.displace(wanted, by)?;
                }
                if let Some(lines) = self.lines(wanted) {
                    lines.push(by, fetch);
                    lines.fetches += usize::from(is_new);
                }
            }
        }
        *self.waiting.entry(fetch).or_default().of(wanted) += 1;
        Ok(refused)
    }

    /// The same for a waiting fetch; returns whether the wish was noted. One that is running, or
    /// has run, needs no wish.
    pub(super) fn join(&mut self, fetch: u64, by: Wanted) -> bool {
        self.waiting.contains_key(&fetch) && self.wish(fetch, by).is_ok()
    }

    /// Withdraws a wish, if it is still there. True if it was the last of the fetch.
    pub(super) fn withdraw(&mut self, fetch: u64, wanted: Wanted) -> bool {
        let is_there = match (self.lines(wanted), wanted) {
            (Some(lines), Wanted::Asked(by) | Wanted::Followed(by)) => lines.remove(by, fetch),
            // Fetches that the server follows are not cancelled.
            _ => false,
        };
        is_there && self.unwish(fetch, wanted) == Some(true)
    }

    /// A fetch to begin now, if there is one and a place for it. Call until `None`.
    pub(super) fn poll_start(&mut self) -> Option<u64> {
        if self.running.len() >= self.limits.places {
            return None;
        }
        let kept = self.limits.kept();
        let asked = self
            .running
            .values()
            .filter(|runs| matches!(runs, Runs::Asked(_)))
            .count();
        let may_own = self.running.len() - asked + kept < self.limits.places;
        let may_ask = asked + kept < self.limits.places;
        // With too few places to reserve any, the kinds take turns.
        let is_own_first = kept > 0 || !self.was_own;
        for is_own in [is_own_first, !is_own_first] {
            let next = match is_own {
                true => {
                    if may_own {
                        self.next_own()
                    } else {
                        None
                    }
                }
                false => {
                    if may_ask {
                        self.next_of(Runs::Asked)
                    } else {
                        None
                    }
                }
            };
            if let Some((fetch, runs)) = next {
                self.forget(fetch);
                self.running.insert(fetch, runs);
                self.was_own = is_own;
                return Some(fetch);
            }
        }
        None
    }

    /// Notes that a fetch has ended or was cancelled.
    pub(super) fn ended(&mut self, fetch: u64) {
        self.running.remove(&fetch);
        self.forget(fetch);
    }

    fn next_own(&mut self) -> Option<(u64, Runs)> {
        while let Some(fetch) = self.own.pop_front() {
            if self.waiting.contains_key(&fetch) {
                return Some((fetch, Runs::Own));
            }
        }
        self.next_of(Runs::Followed)
    }

    /// The next wish by turns, and its account.
    fn next_of(&mut self, runs: fn(u128) -> Runs) -> Option<(u64, Runs)> {
        let Self {
            limits,
            running,
            waiting,
            followed,
            asked,
            ..
        } = self;
        let lines = if matches!(runs(0), Runs::Asked(_)) {
            asked
        } else {
            followed
        };
        let has_enough = |account| {
            running
                .values()
                .filter(|other| **other == runs(account))
                .count()
                >= limits.of_one()
        };
        lines
            .next(has_enough, |fetch| waiting.contains_key(&fetch))
            .map(|(fetch, account)| (fetch, runs(account)))
    }

    /// Refuses a wish of the account with the most of this kind. Returns the fetch if that was its
    /// last wish.
    fn displace(&mut self, wanted: Wanted, by: AskedBy) -> Result<Option<u64>, Refused> {
        loop {
            let fetch = self
                .lines(wanted)
                .and_then(|lines| lines.displace(by))
                .ok_or(Refused::Full)?;
            match self.unwish(fetch, wanted) {
                Some(true) => return Ok(Some(fetch)),
                Some(false)
                    if self
                        .waiting
                        .get_mut(&fetch)
                        .is_some_and(|wishes| *wishes.of(wanted) == 0) =>
                {
                    return Ok(None);
                }
                _ => {}
            }
        }
    }

    /// Removes one wish of this kind from a waiting fetch. Returns whether none is left of any
    /// kind; `None` if there was none of this kind.
    fn unwish(&mut self, fetch: u64, wanted: Wanted) -> Option<bool> {
        let wishes = self.waiting.get_mut(&fetch)?;
        let of_kind = wishes.of(wanted);
        *of_kind = of_kind.checked_sub(1)?;
        let (is_last_of_kind, is_last) = (*of_kind == 0, wishes.is_empty());
        if is_last {
            self.waiting.remove(&fetch);
        }
        if is_last_of_kind && let Some(lines) = self.lines(wanted) {
            lines.fetches -= 1;
        }
        Some(is_last)
    }

    /// Removes a fetch from those waiting. Its entries in lines are skipped later.
    fn forget(&mut self, fetch: u64) {
        if let Some(wishes) = self.waiting.remove(&fetch) {
            self.followed.fetches -= usize::from(wishes.followed > 0);
            self.asked.fetches -= usize::from(wishes.asked > 0);
        }
    }

    fn lines(&mut self, wanted: Wanted) -> Option<&mut Lines> {
        match wanted {
            Wanted::Own => None,
            Wanted::Followed(_) => Some(&mut self.followed),
            Wanted::Asked(_) => Some(&mut self.asked),
        }
    }
}

impl Wishes {
    fn of(&mut self, wanted: Wanted) -> &mut usize {
        match wanted {
            Wanted::Own => &mut self.own,
            Wanted::Followed(_) => &mut self.followed,
            Wanted::Asked(_) => &mut self.asked,
        }
    }

    fn is_empty(&self) -> bool {
        self.own + self.followed + self.asked == 0
    }
}

impl Limits {
    /// Places that each kind leaves to the other.
    fn kept(&self) -> usize {
        self.places / 4
    }

    /// The maximum number of places for one account.
    fn of_one(&self) -> usize {
        let asked = self.places - self.kept();
        asked - (asked / 4).max(usize::from(asked > 1))
    }
}

impl Lines {
    fn push(&mut self, by: AskedBy, fetch: u64) {
        if !self.lines.contains_key(&by.account) {
            self.order.push_back(by.account);
        }
        self.lines
            .entry(by.account)
            .or_default()
            .push(by.session, fetch);
    }

    /// The number of a session's wishes.
    fn of_session(&self, by: AskedBy) -> usize {
        self.lines
            .get(&by.account)
            .map_or(0, |line| line.of_session(by.session))
    }

    /// The next wish for a waiting fetch, of an account that has not reached its maximum.
    fn next(
        &mut self,
        has_enough: impl Fn(u128) -> bool,
        waits: impl Fn(u64) -> bool,
    ) -> Option<(u64, u128)> {
        for _ in 0..self.order.len() {
            let account = self.order.pop_front()?;
            let line = self.lines.get_mut(&account)?;
            if has_enough(account) {
                self.order.push_back(account);
                continue;
            }
            let mut next = line.pop();
            while next.is_some_and(|fetch| !waits(fetch)) {
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

    /// Takes the newest wish of the account with the most, for an account that has none, or at
    /// least two fewer. Otherwise takes one from the session with the most within the same account,
    /// by the same rule. Among equals, the one with the newest wish loses it.
    fn displace(&mut self, by: AskedBy) -> Option<u64> {
        let has = self.lines.get(&by.account).map_or(0, |line| line.len);
        let most = self
            .lines
            .iter()
            .max_by_key(|(_, line)| (line.len, line.newest()));
        let most = most
            .filter(|(account, line)| **account != by.account && is_more(line.len, has))
            .map(|(account, _)| *account);
        let account = match most {
            Some(account) => account,
            None => {
                let line = self.lines.get(&by.account)?;
                let most = line.sessions.values().map(VecDeque::len).max()?;
                if !is_more(most, line.of_session(by.session)) {
                    return None;
                }
                by.account
            }
        };
        let fetch = self.lines.get_mut(&account)?.pop_newest();
        self.tidy(account);
        fetch
    }

    fn remove(&mut self, by: AskedBy, fetch: u64) -> bool {
        let is_there = self
            .lines
            .get_mut(&by.account)
            .is_some_and(|line| line.remove(by.session, fetch));
        self.tidy(by.account);
        is_there
    }

    /// Forgets an account without wishes.
    fn tidy(&mut self, account: u128) {
        if self.lines.get(&account).is_some_and(|line| line.len == 0) {
            self.lines.remove(&account);
            self.order.retain(|other| *other != account);
        }
    }
}

/// Whether an account with `most` wishes has to give one up for one with `has`.
fn is_more(most: usize, has: usize) -> bool {
    most > has + usize::from(has > 0)
}

impl Line {
    fn push(&mut self, session: u64, fetch: u64) {
        self.sessions.entry(session).or_default().push_back(fetch);
        self.len += 1;
    }

    fn of_session(&self, session: u64) -> usize {
        self.sessions.get(&session).map_or(0, VecDeque::len)
    }

    fn newest(&self) -> Option<u64> {
        self.sessions
            .values()
            .filter_map(VecDeque::back)
            .max()
            .copied()
    }

    fn remove(&mut self, session: u64, fetch: u64) -> bool {
        let Some(line) = self.sessions.get_mut(&session) else {
            return false;
        };
        let Some(at) = line.iter().position(|other| *other == fetch) else {
            return false;
        };
        line.remove(at);
        if line.is_empty() {
            self.sessions.remove(&session);
        }
        self.len -= 1;
        true
    }

    /// The oldest wish of the session whose turn it is.
    fn pop(&mut self) -> Option<u64> {
        let after = self
            .last
            .and_then(|last| self.sessions.range(last.checked_add(1)?..).next());
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

    /// The newest wish of the session with the most.
    fn pop_newest(&mut self) -> Option<u64> {
        let (session, line) = self
            .sessions
            .iter_mut()
            .max_by_key(|(_, line)| (line.len(), line.back().copied()))?;
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
        Turns::new(Limits {
            places,
            queued,
            queued_by_session: 32,
        })
    }

    fn by(account: u128, session: u64) -> Wanted {
        Wanted::Asked(AskedBy { account, session })
    }

    fn followed(account: u128) -> Wanted {
        Wanted::Followed(AskedBy {
            account,
            session: 0,
        })
    }

    /// The number of running fetches that peers requested.
    fn asked(turns: &Turns) -> usize {
        turns
            .running
            .values()
            .filter(|runs| matches!(runs, Runs::Asked(_)))
            .count()
    }

    fn wish(turns: &mut Turns, fetch: u64, by: Wanted) {
        assert_eq!(turns.wish(fetch, by), Ok(None));
    }

    /// All fetches that begin now.
    fn start(turns: &mut Turns) -> Vec<u64> {
        std::iter::from_fn(|| turns.poll_start()).collect()
    }

    /// Ends running fetches and begins the next ones, until `wanted` has begun; returns the number
    /// of rounds.
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
        assert!(
            rounds_until(&mut turns, 5001) <= 5,
            "another session of the same address, after one turn of each at most"
        );
    }

    #[test]
    fn playlists_and_the_live_edge_have_places_of_their_own_and_leave_some() {
        let mut turns = turns(16, 1024);
        (0..100).for_each(|number| wish(&mut turns, number, by(u128::from(number), number)));
        assert_eq!(start(&mut turns).len(), 12);
        (1000..1100).for_each(|number| wish(&mut turns, number, Wanted::Own));
        assert_eq!(start(&mut turns), [1000, 1001, 1002, 1003]);
        (0..12).for_each(|number| turns.ended(number));
        assert_eq!(start(&mut turns).len(), 12);
        assert_eq!(
            (turns.running.len() - asked(&turns), asked(&turns)),
            (12, 4)
        );
    }

    #[test]
    fn with_one_place_both_kinds_have_turns() {
        let mut turns = turns(1, 1024);
        (0..10).for_each(|number| wish(&mut turns, number, Wanted::Own));
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
        turns.wish(28, Wanted::Own).unwrap();
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
        assert!(
            turns.asked.lines.is_empty()
                && turns.asked.order.is_empty()
                && turns.waiting.is_empty()
        );
    }

    #[test]
    fn a_full_queue_makes_room_for_who_has_little() {
        let mut turns = turns(1, 100);
        for number in 0..100 {
            turns.wish(number, by(1, number % 4)).unwrap();
        }
        assert_eq!(
            turns.wish(100, by(1, 1)),
            Err(Refused::Full),
            "its own crowd"
        );
        assert!(
            turns
                .wish(101, by(2, 9))
                .unwrap()
                .is_some_and(|refused| refused >= 96),
            "the newest goes"
        );
        for number in 200..300 {
            let _ = turns.wish(number, by(2, number % 4));
        }
        let lens: Vec<usize> = turns.asked.lines.values().map(|line| line.len).collect();
        assert!(
            turns.waiting.len() == 100 && lens.iter().all(|len| (49..=51).contains(len)),
            "{lens:?}"
        );
    }

    #[test]
    fn a_full_queue_makes_room_for_a_session_that_has_little_beside_others_of_its_address() {
        let mut turns = turns(1, 60);
        for session in 0..2 {
            (0..30).for_each(|number| wish(&mut turns, 100 * session + number, by(1, session)));
        }
        assert_eq!(
            turns.wish(1000, by(1, 2)),
            Ok(Some(129)),
            "the newest of a session that has most"
        );
        assert_eq!(
            turns.wish(1001, by(1, 0)),
            Err(Refused::Full),
            "who has most makes no room for itself"
        );
    }

    #[test]
    fn a_session_waits_for_so_many() {
        let mut turns = turns(1, 1024);
        let taken = (0..100)
            .filter(|number| turns.wish(*number, by(1, 1)).is_ok())
            .count();
        assert_eq!(
            (taken, turns.wish(200, by(1, 1))),
            (32, Err(Refused::Session))
        );
        assert_eq!(turns.wish(200, by(1, 2)), Ok(None));
    }

    #[test]
    fn what_somebody_has_followed_waits_for_its_turn_behind_what_is_configured() {
        let mut turns = turns(16, 1024);
        (0..1024).for_each(|number| wish(&mut turns, number, followed(1)));
        assert_eq!(start(&mut turns).len(), 9, "places stay for others");
        wish(&mut turns, 2000, Wanted::Own);
        wish(&mut turns, 2001, followed(2));
        wish(&mut turns, 2002, by(3, 3));
        assert_eq!(
            start(&mut turns),
            [2000, 2001, 2002],
            "a full queue of one kind holds up no other"
        );
        // The queue is full: an account without wishes displaces one of another.
        (3000..3009).for_each(|number| wish(&mut turns, number, followed(1)));
        assert_eq!(turns.wish(3009, followed(1)), Err(Refused::Full));
        assert_eq!(turns.wish(3010, followed(4)), Ok(Some(3008)));
        assert_eq!(start(&mut turns), [3010]);
    }

    #[test]
    fn who_has_none_displaces_the_newest_of_those_who_have_one() {
        let mut turns = turns(1, 100);
        (0..50).for_each(|number| wish(&mut turns, number, by(1, number)));
        (50..100).for_each(|number| wish(&mut turns, number, by(u128::from(number), number)));
        // A session of an address with wishes: without its own, the address still has more than any
        // other.
        assert_eq!(turns.wish(100, by(1, 100)), Ok(Some(49)));
        // An address without wishes.
        assert_eq!(turns.wish(101, by(101, 101)), Ok(Some(100)));
        for number in 102..150 {
            assert!(matches!(
                turns.wish(number, by(1000 + u128::from(number), number)),
                Ok(Some(_))
            ));
        }
        assert_eq!(
            turns.wish(150, by(2000, 1)),
            Ok(Some(149)),
            "all have one: whoever has come last"
        );
        assert_eq!(
            turns.wish(151, by(2000, 2)),
            Ok(Some(150)),
            "another session of an address"
        );
        assert_eq!(turns.wish(152, by(2000, 2)), Err(Refused::Full));
    }

    #[test]
    fn a_wish_that_is_taken_back_leaves_room_and_no_fetch() {
        let mut turns = turns(1, 2);
        (0..2).for_each(|number| wish(&mut turns, number, by(u128::from(number), 1)));
        assert_eq!(start(&mut turns), [0]);
        wish(&mut turns, 2, by(2, 1));
        assert!(
            turns.join(2, by(3, 1)) && !turns.join(0, by(3, 1)),
            "what runs is not wished for"
        );
        assert!(!turns.withdraw(2, by(2, 1)), "another waits for it");
        assert!(
            !turns.withdraw(2, by(2, 1)),
            "nobody takes back what others wish for"
        );
        assert!(turns.withdraw(2, by(3, 1)));
        assert!(turns.withdraw(1, by(1, 1)) && !turns.withdraw(0, by(0, 1)));
        assert!(
            turns.waiting.is_empty()
                && turns.asked.lines.is_empty()
                && turns.asked.order.is_empty()
        );
        assert_eq!((turns.asked.fetches, turns.running.len()), (0, 1));
    }

    #[tokio::test]
    async fn a_fetch_that_nobody_waits_for_is_given_up() {
        let gate = Gate::new(Limits {
            places: 1,
            queued: 1,
            queued_by_session: 1,
        });
        let (running, _wish) = gate.enter(by(1, 1)).unwrap();
        let (mut place, wish) = gate.enter(by(2, 2)).unwrap();
        let other = gate
            .join(place.fetch(), by(3, 3))
            .unwrap()
            .expect("it waits");
        drop(wish);
        assert!(
            gate.join(place.fetch(), by(4, 4))
                .is_ok_and(|wish| wish.is_some())
        );
        assert!(gate.enter(by(3, 3)).is_err(), "it still waits");
        drop(other);
        assert!(
            gate.join(place.fetch(), by(3, 3))
                .is_err_and(|over| over == IsOver)
        );
        assert_eq!(place.turn().await, Err(Refused::Full));
        drop((place, running));
        let (mut place, _wish) = gate.enter(by(3, 3)).unwrap();
        assert_eq!(place.turn().await, Ok(()));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_bounds_are_kept(
            places in 1_usize..9,
            steps in proptest::collection::vec((0_u64..40, 0_u128..7, 0_u64..6, 0_u8..5), 0..200),
        ) {
            let wanted = |account, session| match account {
                0 => Wanted::Own,
                1..5 => by(account, session),
                _ => followed(account),
            };
            let mut turns = Turns::new(Limits { places, queued: 12, queued_by_session: 4 });
            let mut open = std::collections::BTreeSet::new();
            for (fetch, account, session, step) in steps {
                match step {
                    0 => turns.ended(fetch),
                    1 => if turns.withdraw(fetch, by(account, session)) {
                        open.remove(&fetch);
                    },
                    _ => if let Ok(refused) = turns.wish(fetch, wanted(account, session)) {
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
                prop_assert!(turns.waiting.len() <= 36);
                prop_assert_eq!(turns.running.len() + turns.waiting.len(), open.len());
                for (lines, fetches) in [
                    (
                        &turns.asked,
                        turns
                            .waiting
                            .values()
                            .filter(|wishes| wishes.asked > 0)
                            .count(),
                    ),
                    (
                        &turns.followed,
                        turns
                            .waiting
                            .values()
                            .filter(|wishes| wishes.followed > 0)
                            .count(),
                    ),
                ] {
                    let counted = |line: &Line| {
                        line.sessions.values().map(VecDeque::len).sum::<usize>() == line.len
                    };
                    prop_assert!(lines.lines.values().all(|line| line.len > 0 && counted(line)));
                    prop_assert_eq!(
                        (lines.order.len(), lines.fetches),
                        (lines.lines.len(), fetches)
                    );
                }
            }
            // Every waiting fetch begins in the end.
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
