//! Servers that other servers have named: when one of them is tried, and who is left for whom.
//!
//! A consumer is told to use some servers (*home*), and these may name others of the same streams
//! (*alternates*; `docs/protocol.md`, ALTERNATES). An alternate is tried in two cases: no server in
//! use answers, or the server in use says that another one is to serve. No I/O and no clock here:
//! the driver says how its servers are ([`Alternates::look`]), and carries out the [`Step`]s.
//!
//! Whoever can name servers can make consumers connect to anybody. So only few are tried, and
//! seldom.

use std::time::Duration;

use super::ids::SourceId;
use crate::sorted::{SortedMap, SortedSet};
use crate::time::Instant;
use crate::wire::message::{ALTERNATES_MAX, Alternate};

/// How long a server that owes an answer may be silent; two round trips if that is more.
pub const SILENT_AFTER: Duration = Duration::from_millis(500);
/// Alternates in use or tried at a time.
const USED_MAX: usize = 2;
/// How long an alternate may take to answer before the next one is tried beside it, and how long
/// before it takes no place of others any more.
const NEXT_AFTER: Duration = Duration::from_millis(500);
const COMES_WITHIN: Duration = Duration::from_secs(1);
/// How long an alternate that has failed is left alone, and how long if nobody else serves.
const REST: Duration = Duration::from_secs(10);
const REST_ALONE: Duration = Duration::from_secs(2);
/// For how long those come first that were not tried, and then those that were tried before others.
const TRIED_FOR: Duration = Duration::from_secs(60);
/// How long a server must have answered without a break before others are left for it.
const SETTLED_AFTER: Duration = Duration::from_secs(5);
/// For how long the word of a server to go to another one counts.
const GOING_MAX: Duration = Duration::from_secs(10);
/// Attempts that may begin at once, and the time after which one more may.
const ATTEMPTS_MAX: u32 = 4;
const ATTEMPT_EVERY: Duration = Duration::from_secs(5);
/// Servers that have sent wrong blocks and are remembered.
const BANNED_MAX: usize = 16;
/// Ids of alternates begin here, so that they are nobody else's.
pub const FIRST_ID: u32 = 1 << 31;

/// How a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It takes requests, and answers.
    Good,
    /// It is connected, or about to be, and has not sent HELLO yet.
    Coming,
    /// It owes an answer, and has sent nothing for [`SILENT_AFTER`].
    Silent,
    /// It takes no new requests.
    Leaving,
    /// It has no connection.
    Down,
}

/// The connection to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// It is there.
    Connected {
        /// The server owes an answer, and has sent nothing for [`SILENT_AFTER`].
        is_mute: bool,
    },
    /// It is being made for the first time.
    Coming,
    /// There is none.
    Down,
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Connect to a server that `by` has named.
    Open {
        /// Its id from now on.
        source: SourceId,
        /// Where it is.
        server: Alternate,
        /// Who has named it: the new one gets the same credentials.
        by: SourceId,
    },
    /// Send it no new requests, and close the connection when the open ones have finished.
    Leave(SourceId),
    /// Forget an alternate, which has no connection any more.
    Forget(SourceId),
    /// Make no more attempts to connect to a home server, until [`Step::Resume`].
    Rest(SourceId),
    /// Connect to a home server again.
    Resume(SourceId),
}

/// The servers that a consumer knows, and those of them that it uses.
#[derive(Debug)]
pub struct Alternates {
    homes: SortedMap<SourceId, Home>,
    /// Those that each server has named last, best first.
    named: SortedMap<SourceId, Vec<Alternate>>,
    /// Those that were tried lately and have not answered, and when.
    tried: Vec<(Alternate, Instant)>,
    used: SortedMap<SourceId, Used>,
    next: u32,
    /// A server has said that another one is to serve.
    going: Option<Going>,
    /// When an alternate was last tried.
    opened_at: Option<Instant>,
    attempts: (u32, Option<Instant>),
    /// Since when each server has answered without a break.
    good_since: SortedMap<SourceId, Instant>,
    /// Those that have sent wrong blocks.
    banned: Vec<Alternate>,
    due: Option<Instant>,
}

/// A server that the consumer was told to use.
#[derive(Debug)]
struct Home {
    server: Alternate,
    /// Whether an alternate serves in its place.
    rests: bool,
}

/// An alternate in use.
#[derive(Debug)]
struct Used {
    server: Alternate,
    opened_at: Instant,
    /// Whether it was left for another server.
    is_left: bool,
    /// Whether it is the next process of a home server, and counts as one.
    stands_in: bool,
}

#[derive(Debug, Clone, Copy)]
struct Going {
    from: SourceId,
    since: Instant,
    /// Whether it is to connect again to the same address, where another process serves.
    again: bool,
}

impl Alternates {
    /// Nobody has named anybody. The servers to use are numbered from 0.
    pub fn new(homes: impl IntoIterator<Item = Alternate>) -> Self {
        let home = |server| Home {
            server,
            rests: false,
        };
        Self {
            homes: (0..)
                .map(SourceId)
                .zip(homes.into_iter().map(home))
                .collect(),
            named: SortedMap::new(),
            tried: Vec::new(),
            used: SortedMap::new(),
            next: FIRST_ID,
            going: None,
            opened_at: None,
            attempts: (ATTEMPTS_MAX, None),
            good_since: SortedMap::new(),
            banned: Vec::new(),
            due: None,
        }
    }

    /// Whether this is the id of an alternate.
    pub fn is_one(&self, source: SourceId) -> bool {
        self.used.contains_key(&source)
    }

    /// Whether this server may name others.
    fn may_name(&self, source: SourceId) -> bool {
        self.homes.contains_key(&source) || self.is_one(source)
    }

    /// Whether others are known, so that silence is worth noticing early.
    pub fn are_known(&self) -> bool {
        self.goes_again() || self.named.values().any(|named| !named.is_empty())
    }

    fn goes_again(&self) -> bool {
        self.going.is_some_and(|going| going.again)
    }

    /// Whether any of them is in use.
    pub fn are_used(&self) -> bool {
        !self.used.is_empty()
    }

    /// A server has sent wrong blocks: it is not tried again.
    pub fn ban(&mut self, source: SourceId) {
        if let Some(server) = self.server(source).cloned() {
            if self.banned.len() >= BANNED_MAX {
                self.banned.remove(0);
            }
            self.banned.push(server);
        }
    }

    /// A server has named others, instead of those named before, and may want the consumer to go to
    /// one of them now. If it names none then, another process has taken its place, and the
    /// consumer connects again to its address.
    pub fn told(&mut self, now: Instant, by: SourceId, moves: bool, servers: Vec<Alternate>) {
        if !self.may_name(by) {
            return;
        }
        let named: Vec<Alternate> = servers.into_iter().take(ALTERNATES_MAX).collect();
        let again = moves && named.is_empty();
        if !again {
            self.named.insert(by, named);
        }
        let is_news = self.going.is_none_or(|going| going.from != by);
        if moves && is_news && !self.has_left(by) {
            self.going = Some(Going {
                from: by,
                since: now,
                again,
            });
        }
    }

    /// Whether an alternate may be tried soon although nobody answers now.
    pub fn may_help(&self, now: Instant) -> bool {
        let is_known = || self.candidate(|at| at + REST <= now).is_some();
        !self.used.is_empty() || (self.attempts.0 > 0 && is_known())
    }

    /// What to do, now that the servers are like this: all that are in use, each home server that
    /// does not rest and each alternate.
    pub fn look(&mut self, now: Instant, health: &[(SourceId, Health)]) -> Vec<Step> {
        if !self.are_known() && self.used.is_empty() {
            return Vec::new();
        }
        self.tried.retain(|(_, at)| *at + TRIED_FOR > now);
        let of = |source: SourceId| health.iter().find(|(other, _)| *other == source);
        let is = |source: SourceId, wanted: Health| of(source).is_some_and(|(_, is)| *is == wanted);
        let good: SortedSet<SourceId> = health
            .iter()
            .filter(|(_, health)| *health == Health::Good)
            .map(|(source, _)| *source)
            .collect();
        self.good_since.retain(|source, _| good.contains(source));
        for source in good.iter() {
            self.good_since.get_or_insert(*source, now);
            // It may be needed again as soon as it is left.
            if let Some(used) = self.used.get(source) {
                self.tried
                    .retain(|(server, _)| !is_same(server, &used.server));
            }
        }
        let mut steps = Vec::new();
        self.forget(
            |source| is(source, Health::Down) || of(source).is_none(),
            &mut steps,
        );
        let is_served = good.iter().any(|source| match self.going {
            None => true,
            Some(going) if going.again => self.is_again(going.from, *source),
            Some(going) => going.from != *source,
        });
        if let Some(going) = self.going {
            if is_served {
                // Somebody else serves: the one that has sent us away is left, however it is.
                match is(going.from, Health::Down) {
                    true => self.rest(going.from, &mut steps),
                    false => self.leave(going.from, &mut steps),
                }
                self.going = None;
            } else if going.since + GOING_MAX <= now {
                self.going = None;
            }
        }
        let is_busy = |(source, used): &(&SourceId, &Used)| {
            let comes = is(**source, Health::Coming) && used.opened_at + COMES_WITHIN > now;
            comes || is(**source, Health::Good)
        };
        let busy = self.used.keys().zip(self.used.values());
        let busy = busy.filter(is_busy).count();
        let is_coming = health.iter().any(|(_, health)| *health == Health::Coming);
        // What was just opened is not among them yet.
        let is_young = self.opened_at.is_some_and(|at| at + NEXT_AFTER > now);
        let is_waited_for = is_young && is_coming;
        if !is_served && (self.going.is_some() || good.is_empty()) && !is_waited_for {
            self.find_another(now, good.is_empty(), busy, &mut steps);
        }
        self.settle(now, &of, &mut steps);
        self.due = self.next_due(now, is_served);
        steps
    }

    /// When [`Alternates::look`] has something to do although nothing else has changed.
    pub fn due(&self) -> Option<Instant> {
        self.due.filter(|_| self.are_known() || self.are_used())
    }

    fn next_due(&self, now: Instant, is_served: bool) -> Option<Instant> {
        let mut due: Option<Instant> = None;
        let mut add = |at: Instant| {
            if at > now && due.is_none_or(|due| at < due) {
                due = Some(at);
            }
        };
        for since in self.good_since.values() {
            add(*since + SETTLED_AFTER);
        }
        if let Some(going) = self.going {
            add(going.since + GOING_MAX);
        }
        if !is_served {
            for (_, at) in &self.tried {
                add(*at + REST_ALONE);
                add(*at + REST);
            }
            if let Some(at) = self.opened_at {
                add(at + NEXT_AFTER);
            }
            for used in self.used.values() {
                add(used.opened_at + COMES_WITHIN);
            }
            if let Some(since) = self.attempts.1 {
                add(since + ATTEMPT_EVERY);
            }
        }
        due
    }

    /// Those named, with who has named them: the word of alternates in use, which know more of the
    /// present, goes before that of home servers.
    fn candidates(&self) -> impl Iterator<Item = (&Alternate, SourceId)> {
        let named = self.named.keys().zip(self.named.values()).rev();
        named.flat_map(|(by, named)| named.iter().map(|server| (server, *by)))
    }

    /// The first of those named that is not in use, and that has rested if it was tried lately.
    /// Those that were tried go behind the others: who answers again may be any of them.
    fn candidate(&self, has_rested: impl Fn(Instant) -> bool) -> Option<(Alternate, SourceId)> {
        let tried_at = |server: &Alternate| {
            let mut tried = self.tried.iter();
            let tried = tried.find(|(other, _)| is_same(other, server));
            tried.map(|(_, at)| *at)
        };
        let is_tried = |server: &Alternate| tried_at(server).is_some_and(|at| !has_rested(at));
        let is_new = |server: &Alternate| {
            let is = |other: &Alternate| is_same(other, server);
            let is_in_use = self.homes.values().any(|home| is(&home.server))
                || self.used.values().any(|used| is(&used.server));
            !is_in_use && !is_tried(server) && !self.banned.iter().any(is)
        };
        let new = self.candidates().filter(|(server, _)| is_new(server));
        let found = new.min_by_key(|(server, _)| tried_at(server));
        found.map(|(server, by)| (server.clone(), by))
    }

    /// Whether one of two connections leads to the same address as the other.
    fn is_again(&self, one: SourceId, other: SourceId) -> bool {
        let both = self.server(one).zip(self.server(other));
        one != other && both.is_some_and(|(one, other)| is_same(one, other))
    }

    /// The server with this id.
    fn server(&self, source: SourceId) -> Option<&Alternate> {
        let home = self.homes.get(&source).map(|home| &home.server);
        home.or_else(|| self.used.get(&source).map(|used| &used.server))
    }

    /// Connects again to the address of a server, unless that was done.
    fn connect_again(&mut self, now: Instant, from: SourceId, steps: &mut Vec<Step>) {
        let again = |id: &SourceId| self.is_again(from, *id);
        let used = self.used.keys().filter(|id| !self.has_left(**id));
        let is_open = used.copied().any(|id| again(&id));
        let home = self.homes.keys().copied().find(again);
        let Some(server) = self.server(from).cloned().filter(|_| !is_open) else {
            return;
        };
        if let Some(home) = home {
            if self.resume(home, steps) {
                self.opened_at = Some(now);
            }
            return;
        }
        let was_tried =
            |(other, at): &(Alternate, Instant)| is_same(other, &server) && *at + REST_ALONE > now;
        let is_banned = self.banned.iter().any(|other| is_same(other, &server));
        if !is_banned && !self.tried.iter().any(was_tried) {
            let stands_in = self.used.get(&from).is_none_or(|used| used.stands_in);
            self.open(now, (server, stands_in), from, steps);
        }
    }

    /// Has a home server connect again, if it rests.
    fn resume(&mut self, source: SourceId, steps: &mut Vec<Step>) -> bool {
        let home = self.homes.get_mut(&source);
        let rests = home.is_some_and(|home| std::mem::replace(&mut home.rests, false));
        if rests {
            steps.push(Step::Resume(source));
        }
        rests
    }

    /// Tries the next alternate, and home servers that rest.
    fn find_another(&mut self, now: Instant, is_alone: bool, busy: usize, steps: &mut Vec<Step>) {
        if let Some(going) = self.going.filter(|going| going.again) {
            return self.connect_again(now, going.from, steps);
        }
        let named: Vec<Alternate> = self
            .candidates()
            .map(|(server, _)| server.clone())
            .collect();
        let is_named = |home: &Home| named.iter().any(|server| is_same(server, &home.server));
        let homes = self.homes.iter();
        let homes = homes.filter(|(_, home)| is_alone || is_named(home));
        for source in homes.map(|(source, _)| *source).collect::<Vec<_>>() {
            if self.resume(source, steps) {
                self.opened_at = Some(now);
            }
        }
        let rest = if is_alone { REST_ALONE } else { REST };
        let Some((server, by)) = self.candidate(|at| at + rest <= now) else {
            return;
        };
        // Dead ones take no place of others.
        if busy < USED_MAX {
            self.open(now, (server, false), by, steps);
        }
    }

    /// Has a server connected that `by` has named, if there is an attempt left.
    fn open(
        &mut self,
        now: Instant,
        (server, stands_in): (Alternate, bool),
        by: SourceId,
        steps: &mut Vec<Step>,
    ) {
        if !self.may_try(now) {
            return;
        }
        let source = SourceId(self.next);
        self.next = self.next.checked_add(1).unwrap_or(FIRST_ID);
        self.tried.retain(|(other, _)| !is_same(other, &server));
        self.tried.push((server.clone(), now));
        let used = Used {
            server: server.clone(),
            opened_at: now,
            is_left: false,
            stands_in,
        };
        self.used.insert(source, used);
        self.opened_at = Some(now);
        steps.push(Step::Open { source, server, by });
    }

    /// Takes one of the attempts, if there is one.
    fn may_try(&mut self, now: Instant) -> bool {
        let (left, since) = &mut self.attempts;
        let begun = *since.get_or_insert(now);
        let passed = now.saturating_duration_since(begun).as_secs() / ATTEMPT_EVERY.as_secs();
        if passed > 0 {
            let more = u32::try_from(passed).unwrap_or(u32::MAX);
            *left = left.saturating_add(more).min(ATTEMPTS_MAX);
            *since = Some(now);
        }
        if *left == 0 {
            return false;
        }
        *left -= 1;
        true
    }

    /// Forgets alternates that have no connection any more.
    fn forget(&mut self, is_gone: impl Fn(SourceId) -> bool, steps: &mut Vec<Step>) {
        let gone: Vec<SourceId> = self
            .used
            .keys()
            .copied()
            .filter(|id| is_gone(*id))
            .collect();
        for source in gone {
            let used = self.used.remove(&source);
            self.good_since.remove(&source);
            self.named.remove(&source);
            steps.push(Step::Forget(source));
            let stood_in = used.filter(|used| used.stands_in && !used.is_left);
            let Some(Used { server, .. }) = stood_in else {
                continue;
            };
            let mut homes = self.homes.iter();
            let home = homes.find(|(_, home)| is_same(&home.server, &server));
            if let Some(home) = home.map(|(id, _)| *id) {
                self.resume(home, steps);
            }
        }
    }

    /// One server serves in the end: the home server, if it still answers, or else the alternate.
    fn settle<'a>(
        &mut self,
        now: Instant,
        of: &impl Fn(SourceId) -> Option<&'a (SourceId, Health)>,
        steps: &mut Vec<Step>,
    ) {
        let is_settled = |since: &Instant| *since + SETTLED_AFTER <= now;
        let since = &self.good_since;
        let settled = |source: &SourceId| since.get(source).is_some_and(is_settled);
        let stands_in = |source: &SourceId| {
            let used = self.used.get(source);
            used.is_some_and(|used| used.stands_in)
        };
        let homes = self.homes.keys();
        let homes = homes.chain(self.used.keys().filter(|id| stands_in(id)));
        let homes_settled = homes.into_iter().any(settled);
        let kept = self.used.keys().copied().find(settled);
        if !homes_settled && kept.is_none() {
            return;
        }
        let is_helper = |source: &SourceId| since.contains_key(source);
        let helpers = self.used.keys().copied().filter(is_helper);
        let helpers = helpers.filter(|source| !stands_in(source));
        let helpers = helpers.filter(|source| homes_settled || kept != Some(*source));
        for source in helpers.collect::<Vec<_>>() {
            self.leave(source, steps);
        }
        let is_down = |source: &SourceId| of(*source).is_some_and(|(_, is)| *is == Health::Down);
        let down = self.homes.keys().copied().filter(is_down);
        for source in down.filter(|_| !homes_settled).collect::<Vec<_>>() {
            self.rest(source, steps);
        }
    }

    /// Another server serves in place of a home server that has no connection.
    fn rest(&mut self, source: SourceId, steps: &mut Vec<Step>) {
        if let Some(home) = self.homes.get_mut(&source)
            && !std::mem::replace(&mut home.rests, true)
        {
            steps.push(Step::Rest(source));
        }
    }

    fn leave(&mut self, source: SourceId, steps: &mut Vec<Step>) {
        self.good_since.remove(&source);
        steps.push(Step::Leave(source));
        if let Some(home) = self.homes.get_mut(&source) {
            home.rests = true;
        }
        if let Some(used) = self.used.get_mut(&source) {
            used.is_left = true;
        }
    }

    /// Whether a connection is kept, although its server takes no more requests, until another one
    /// to the same address is there.
    pub fn waits_at(&self, source: SourceId) -> bool {
        self.going
            .is_some_and(|going| going.again && going.from == source)
    }

    /// Whether a server was left for another one.
    pub fn has_left(&self, source: SourceId) -> bool {
        self.rests(source) || self.used.get(&source).is_some_and(|used| used.is_left)
    }

    /// Whether an alternate serves in place of a home server.
    pub fn rests(&self, source: SourceId) -> bool {
        self.homes.get(&source).is_some_and(|home| home.rests)
    }
}

/// Whether two names are those of one server. Certificates do not tell: servers may share one.
fn is_same(one: &Alternate, other: &Alternate) -> bool {
    one.address == other.address
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: SourceId = SourceId(0);
    const FIRST_USED: SourceId = SourceId(FIRST_ID);
    const SECOND_USED: SourceId = SourceId(FIRST_ID + 1);
    const MS: Duration = Duration::from_millis(1);

    fn server(name: &str) -> Alternate {
        Alternate {
            address: format!("{name}:4443"),
            identity: None,
        }
    }

    fn open(source: SourceId, name: &str) -> Step {
        Step::Open {
            source,
            server: server(name),
            by: HOME,
        }
    }

    /// A consumer of one server, which has named two others.
    fn told(now: Instant, moves: bool) -> Alternates {
        let mut alternates = Alternates::new([server("home")]);
        alternates.told(now, HOME, moves, vec![server("a"), server("b")]);
        alternates
    }

    #[test]
    fn alternates_wait_while_the_server_answers() {
        let now = Instant::now();
        let mut alternates = told(now, false);
        for seconds in 0..100 {
            let now = now + seconds * 1000 * MS;
            assert_eq!(alternates.look(now, &[(HOME, Health::Good)]), []);
        }
    }

    #[test]
    fn they_are_tried_one_after_the_other_when_nobody_answers() {
        for health in [Health::Silent, Health::Down, Health::Leaving] {
            let now = Instant::now();
            let mut alternates = told(now, false);
            let home = (HOME, health);
            assert_eq!(alternates.look(now, &[home]), [open(FIRST_USED, "a")]);
            let coming = (FIRST_USED, Health::Coming);
            assert_eq!(alternates.look(now + 499 * MS, &[home, coming]), []);
            assert_eq!(alternates.due(), Some(now + NEXT_AFTER));
            let second = alternates.look(now + 500 * MS, &[home, coming]);
            assert_eq!(second, [open(SECOND_USED, "b")]);
        }
    }

    /// The network is divided: those named first are in the other half.
    #[test]
    fn who_does_not_answer_does_not_keep_others_from_being_tried() {
        let now = Instant::now();
        let mut alternates = Alternates::new([server("home")]);
        let names = ["a", "b", "c", "d"];
        alternates.told(now, HOME, false, names.map(server).into());
        let mut health = vec![(HOME, Health::Silent)];
        for (ticks, name) in (0u32..).zip(names) {
            let now = now + ticks * NEXT_AFTER;
            let source = SourceId(FIRST_ID + ticks);
            assert_eq!(alternates.look(now, &health), [open(source, name)]);
            health.push((source, Health::Coming));
            assert_eq!(alternates.look(now + 499 * MS, &health), []);
            assert_eq!(alternates.due(), Some(now + NEXT_AFTER));
        }
    }

    /// All are gone, and one of those named last comes back first.
    #[test]
    fn all_that_are_named_are_tried_in_turn_while_nobody_answers() {
        let begun = Instant::now();
        let mut alternates = Alternates::new([server("home")]);
        let names = ["a", "b", "c", "d"];
        alternates.told(begun, HOME, false, names.map(server).into());
        let (mut running, mut opened) = (Vec::new(), Vec::new());
        for tick in 0..400u32 {
            let now = begun + tick * 100 * MS;
            // An attempt takes three seconds to fail.
            let health = |(source, at): &(SourceId, Instant)| match *at + 3000 * MS > now {
                true => (*source, Health::Coming),
                false => (*source, Health::Down),
            };
            let mut all = vec![(HOME, Health::Down)];
            all.extend(running.iter().map(health));
            for step in alternates.look(now, &all) {
                match step {
                    Step::Open { source, server, .. } => {
                        running.push((source, now));
                        opened.push(server.address);
                    }
                    Step::Forget(gone) => running.retain(|(source, _)| *source != gone),
                    _ => {}
                }
            }
        }
        // Four at once, then one every five seconds.
        assert!((10..=12).contains(&opened.len()), "{opened:?}");
        for four in opened.windows(4) {
            let four: Vec<_> = SortedSet::from_iter(four).into_iter().collect();
            assert_eq!(four.len(), 4, "{opened:?}");
        }
    }

    /// A server that only paused goes on serving, and the helper is left.
    #[test]
    fn a_helper_is_left_when_the_home_server_answers_again() {
        let now = Instant::now();
        let mut alternates = told(now, false);
        alternates.look(now, &[(HOME, Health::Silent)]);
        let both = [(HOME, Health::Good), (FIRST_USED, Health::Good)];
        assert_eq!(alternates.look(now + 100 * MS, &both), []);
        assert_eq!(alternates.due(), Some(now + 100 * MS + SETTLED_AFTER));
        let settled = now + 100 * MS + SETTLED_AFTER;
        assert_eq!(alternates.look(settled, &both), [Step::Leave(FIRST_USED)]);
        let left = [(HOME, Health::Good), (FIRST_USED, Health::Down)];
        assert_eq!(alternates.look(settled, &left), [Step::Forget(FIRST_USED)]);
        assert!(!alternates.is_one(FIRST_USED));
    }

    #[test]
    fn a_home_server_that_is_gone_rests_until_it_is_needed() {
        let now = Instant::now();
        let mut alternates = told(now, false);
        alternates.look(now, &[(HOME, Health::Down)]);
        let served = [(HOME, Health::Down), (FIRST_USED, Health::Good)];
        assert_eq!(alternates.look(now, &served), []);
        let settled = now + SETTLED_AFTER;
        assert_eq!(alternates.look(settled, &served), [Step::Rest(HOME)]);
        assert!(alternates.rests(HOME));
        assert_eq!(alternates.look(settled, &served[1..]), []);
        let alone = [(FIRST_USED, Health::Silent)];
        let steps = alternates.look(settled + 100 * MS, &alone);
        assert_eq!(steps, [Step::Resume(HOME), open(SECOND_USED, "b")]);
    }

    #[test]
    fn a_consumer_that_is_sent_on_leaves_when_it_has_arrived() {
        let now = Instant::now();
        let mut alternates = told(now, true);
        let home = (HOME, Health::Good);
        assert_eq!(alternates.look(now, &[home]), [open(FIRST_USED, "a")]);
        let coming = [home, (FIRST_USED, Health::Coming)];
        assert_eq!(alternates.look(now + 100 * MS, &coming), []);
        let there = [home, (FIRST_USED, Health::Good)];
        assert_eq!(alternates.look(now + 200 * MS, &there), [Step::Leave(HOME)]);
        // It is closed when its requests have finished, and not used again meanwhile.
        let leaving = [(HOME, Health::Leaving), (FIRST_USED, Health::Good)];
        for seconds in 1..30 {
            assert_eq!(alternates.look(now + seconds * 1000 * MS, &leaving), []);
        }
        assert!(alternates.rests(HOME));
    }

    /// The new server knows others, and sends nobody back.
    #[test]
    fn an_alternate_names_others_and_home_is_found_again() {
        let now = Instant::now();
        let mut alternates = told(now, true);
        alternates.look(now, &[(HOME, Health::Good)]);
        alternates.look(now, &[(HOME, Health::Good), (FIRST_USED, Health::Good)]);
        alternates.told(now, FIRST_USED, false, vec![server("home")]);
        let alone = [(FIRST_USED, Health::Leaving)];
        let steps = alternates.look(now + 1000 * MS, &alone);
        assert_eq!(steps, [Step::Resume(HOME), open(SECOND_USED, "b")]);
        let found = [
            (HOME, Health::Good),
            (FIRST_USED, Health::Leaving),
            (SECOND_USED, Health::Coming),
        ];
        assert_eq!(alternates.look(now + 2000 * MS, &found), []);
    }

    /// Ten upgrades of a server, each of which is another process at its address.
    #[test]
    fn a_consumer_follows_a_server_from_process_to_process() {
        let start = Instant::now();
        let mut alternates = Alternates::new([server("home"), server("other")]);
        let other = (SourceId(1), Health::Good);
        let (mut serves, mut opened) = (HOME, 0);
        for round in 0..10u32 {
            let now = start + round * 30_000 * MS;
            alternates.told(now, serves, false, vec![server("a")]);
            assert_eq!(alternates.look(now, &[(serves, Health::Good), other]), []);
            alternates.told(now, serves, true, Vec::new());
            let steps = alternates.look(now, &[(serves, Health::Good), other]);
            let next = match &steps[..] {
                [Step::Open { source, server, by }] => {
                    opened += 1;
                    assert_eq!((&server.address[..], *by), ("home:4443", serves));
                    *source
                }
                [Step::Resume(HOME)] => HOME,
                steps => panic!("{steps:?}"),
            };
            assert_ne!(next, serves);
            let coming = [(serves, Health::Leaving), (next, Health::Coming), other];
            assert_eq!(alternates.look(now + 10 * MS, &coming), []);
            assert_eq!(alternates.look(now + 600 * MS, &coming), []);
            let both = [(serves, Health::Leaving), (next, Health::Good), other];
            assert_eq!(
                alternates.look(now + 700 * MS, &both),
                [Step::Leave(serves)]
            );
            let gone = [(serves, Health::Down), (next, Health::Good), other];
            let forgotten = match serves {
                HOME => vec![],
                _ => vec![Step::Forget(serves)],
            };
            assert_eq!(alternates.look(now + 1000 * MS, &gone), forgotten);
            // The next process counts as the home server: it is kept beside the other one.
            let both = [(next, Health::Good), other];
            assert_eq!(alternates.look(now + 20_000 * MS, &both), []);
            serves = next;
        }
        assert_eq!(opened, 5);
    }

    #[test]
    fn a_home_server_connects_again_when_its_next_process_is_lost() {
        let now = Instant::now();
        let mut alternates = Alternates::new([server("home")]);
        alternates.told(now, HOME, true, Vec::new());
        let home = (HOME, Health::Good);
        assert_eq!(alternates.look(now, &[home]), [open(FIRST_USED, "home")]);
        let both = [home, (FIRST_USED, Health::Good)];
        let left = alternates.look(now + 100 * MS, &both);
        assert_eq!(left, [Step::Leave(HOME)]);
        assert!(alternates.rests(HOME));
        let lost = [(FIRST_USED, Health::Down)];
        assert_eq!(
            alternates.look(now + 200 * MS, &lost),
            [Step::Forget(FIRST_USED), Step::Resume(HOME)]
        );
        assert!(!alternates.rests(HOME));
    }

    /// It serves as long as it can where the next process cannot be reached.
    #[test]
    fn a_server_is_kept_until_its_next_process_answers() {
        let now = Instant::now();
        let mut alternates = Alternates::new([server("home")]);
        alternates.told(now, HOME, true, Vec::new());
        let home = (HOME, Health::Good);
        assert_eq!(alternates.look(now, &[home]), [open(FIRST_USED, "home")]);
        let down = [home, (FIRST_USED, Health::Down)];
        let soon = alternates.look(now + 100 * MS, &down);
        assert_eq!(soon, [Step::Forget(FIRST_USED)]);
        assert_eq!(alternates.look(now + 1000 * MS, &[home]), []);
        let again = alternates.look(now + REST_ALONE, &[home]);
        assert_eq!(again, [open(SECOND_USED, "home")]);
        for second in 10..100 {
            let down = [home, (SECOND_USED, Health::Down)];
            let steps = alternates.look(now + second * 1000 * MS, &down);
            assert!(!steps.contains(&Step::Leave(HOME)), "{steps:?}");
        }
    }

    #[test]
    fn who_cannot_be_reached_is_left_alone_for_a_while() {
        let now = Instant::now();
        let mut alternates = told(now, true);
        let home = (HOME, Health::Good);
        alternates.look(now, &[home]);
        let down = [home, (FIRST_USED, Health::Down)];
        let next = alternates.look(now + 10 * MS, &down);
        assert_eq!(next, [Step::Forget(FIRST_USED), open(SECOND_USED, "b")]);
        let down = [home, (SECOND_USED, Health::Down)];
        alternates.look(now + 510 * MS, &down);
        // Its word has lapsed when the first could be tried again.
        for half in 2..60 {
            assert_eq!(alternates.look(now + half * 500 * MS, &[home]), []);
        }
    }

    /// A home server that is lost soon after it only paused has the same helper again.
    #[test]
    fn a_helper_that_has_answered_is_tried_again_at_once() {
        let now = Instant::now();
        let mut alternates = Alternates::new([server("home")]);
        alternates.told(now, HOME, false, vec![server("a")]);
        alternates.look(now, &[(HOME, Health::Silent)]);
        let both = [(HOME, Health::Good), (FIRST_USED, Health::Good)];
        alternates.look(now + 100 * MS, &both);
        let settled = now + 100 * MS + SETTLED_AFTER;
        assert_eq!(alternates.look(settled, &both), [Step::Leave(FIRST_USED)]);
        let lost = [(HOME, Health::Silent), (FIRST_USED, Health::Down)];
        let steps = alternates.look(settled + 200 * MS, &lost);
        assert_eq!(steps, [Step::Forget(FIRST_USED), open(SECOND_USED, "a")]);
    }

    /// It may have come back meanwhile.
    #[test]
    fn who_has_failed_is_tried_again_sooner_when_nobody_else_serves() {
        let now = Instant::now();
        let mut alternates = Alternates::new([server("home")]);
        alternates.told(now, HOME, false, vec![server("a")]);
        let home = (HOME, Health::Silent);
        assert_eq!(alternates.look(now, &[home]), [open(FIRST_USED, "a")]);
        let down = [home, (FIRST_USED, Health::Down)];
        let soon = now + 1000 * MS;
        assert_eq!(alternates.look(soon, &down), [Step::Forget(FIRST_USED)]);
        assert_eq!(alternates.due(), Some(now + REST_ALONE));
        let again = alternates.look(now + REST_ALONE, &[home]);
        assert_eq!(again, [open(SECOND_USED, "a")]);
    }

    /// Whoever names servers without end causes few attempts.
    #[test]
    fn attempts_are_few() {
        let (start, mut opened) = (Instant::now(), 0u32);
        let mut alternates = Alternates::new([server("home")]);
        let mut used: Vec<SourceId> = Vec::new();
        for tick in 0..600u32 {
            let now = start + tick * 100 * MS;
            let names = [0, 1, 2, 3].map(|index| server(&format!("{tick}-{index}")));
            alternates.told(now, HOME, true, names.into());
            let mut health = vec![(HOME, Health::Good)];
            health.extend(used.drain(..).map(|source| (source, Health::Down)));
            for step in alternates.look(now, &health) {
                if let Step::Open { source, .. } = step {
                    opened += 1;
                    used.push(source);
                }
            }
        }
        assert!((8..=ATTEMPTS_MAX + 12).contains(&opened), "{opened}");
    }

    #[test]
    fn a_server_that_is_used_already_is_not_tried_again() {
        let now = Instant::now();
        let mut alternates = Alternates::new([server("a"), server("b")]);
        alternates.told(now, HOME, true, vec![server("a"), server("b")]);
        let health = [(HOME, Health::Down), (SourceId(1), Health::Down)];
        assert_eq!(alternates.look(now, &health), []);
    }

    /// One certificate with the names of all is usual.
    #[test]
    fn servers_that_share_a_certificate_are_several() {
        let now = Instant::now();
        let pinned = |name: &str| Alternate {
            identity: Some([7; 32]),
            ..server(name)
        };
        let mut alternates = Alternates::new([pinned("home")]);
        alternates.told(now, HOME, false, vec![pinned("a"), pinned("b")]);
        let health = (HOME, Health::Down);
        let opens = |steps: &[Step]| matches!(steps.last(), Some(Step::Open { .. }));
        assert!(opens(&alternates.look(now, &[health])));
        let failed = [health, (FIRST_USED, Health::Down)];
        assert!(opens(&alternates.look(now, &failed)));
    }

    /// A server that drains closes as soon as it owes nothing.
    #[test]
    fn a_server_that_has_closed_by_itself_is_left_like_others() {
        let now = Instant::now();
        let mut alternates = told(now, true);
        alternates.look(now, &[(HOME, Health::Leaving)]);
        let served = [(HOME, Health::Down), (FIRST_USED, Health::Good)];
        assert_eq!(alternates.look(now, &served), [Step::Rest(HOME)]);
        assert!(alternates.rests(HOME));
    }

    #[test]
    fn of_two_helpers_one_serves_in_the_end() {
        let now = Instant::now();
        let mut alternates = told(now, false);
        alternates.look(now, &[(HOME, Health::Down)]);
        let coming = [(HOME, Health::Down), (FIRST_USED, Health::Coming)];
        alternates.look(now + NEXT_AFTER, &coming);
        let both = [
            (HOME, Health::Down),
            (FIRST_USED, Health::Good),
            (SECOND_USED, Health::Good),
        ];
        assert_eq!(alternates.look(now + NEXT_AFTER, &both), []);
        let steps = alternates.look(now + NEXT_AFTER + SETTLED_AFTER, &both);
        assert_eq!(steps, [Step::Leave(SECOND_USED), Step::Rest(HOME)]);
    }

    /// Nobody is connected, and nobody comes: waiting would end what is open.
    #[test]
    fn a_home_server_that_rests_is_tried_at_once_when_nobody_is_left() {
        let now = Instant::now();
        let mut alternates = told(now, true);
        alternates.look(now, &[(HOME, Health::Good)]);
        alternates.look(now, &[(HOME, Health::Good), (FIRST_USED, Health::Good)]);
        let steps = alternates.look(now + 100 * MS, &[(FIRST_USED, Health::Down)]);
        assert_eq!(steps[..2], [Step::Forget(FIRST_USED), Step::Resume(HOME)]);
    }

    /// The driver does not look any more, so nothing may be due.
    #[test]
    fn nothing_is_due_when_nobody_is_named_any_more() {
        let now = Instant::now();
        let mut alternates = told(now, false);
        alternates.look(now, &[(HOME, Health::Good)]);
        assert_eq!(alternates.due(), Some(now + SETTLED_AFTER));
        alternates.told(now, HOME, false, Vec::new());
        assert_eq!(alternates.due(), None);
    }

    #[test]
    fn neighbours_name_nobody() {
        let now = Instant::now();
        let mut alternates = Alternates::new([server("home")]);
        alternates.told(now, SourceId(1), true, vec![server("a")]);
        assert!(!alternates.are_known());
        assert_eq!(alternates.look(now, &[(HOME, Health::Down)]), []);
    }
}
