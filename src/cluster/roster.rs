//! The servers of a fleet, as one of them knows them by their beats.
//!
//! No I/O and no clock here. A server counts as dead when three of its beats in a row have not
//! come, by this server's clock: that of the other may be wrong, and may jump. The number of
//! servers is bounded, because whoever may publish on the engine may invent names.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::beat::{Beat, Name};

/// The time between two beats of a server.
pub const INTERVAL: Duration = Duration::from_secs(2);
/// How long a server lives without a beat: three of them are missing, and the fourth is due. A
/// server that has to find another server of its engine does so in this time.
pub const DEAD_AFTER: Duration = Duration::from_secs(8);
/// How long a server that has fallen silent is remembered.
pub const LOST_FOR: Duration = Duration::from_secs(3600);
/// Servers that are known at most.
pub const MEMBERS_MAX: usize = 1024;

/// The servers that live.
#[derive(Debug)]
pub struct Roster {
    members: BTreeMap<Name, Member>,
    /// Names of servers that more than one process uses, and when that was last seen.
    twins: BTreeMap<Name, Instant>,
    /// Servers that have fallen silent and not come back, and when.
    lost: BTreeMap<Name, Instant>,
}

/// A server that lives.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Its last beat.
    pub beat: Beat,
    heard_at: Instant,
}

impl Member {
    /// When its last beat came.
    pub fn heard_at(&self) -> Instant {
        self.heard_at
    }
}

/// What a beat, or the lack of beats, has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A server has come.
    Joined(Name),
    /// Another process has taken over the name.
    Restarted(Name),
    /// A server has begun to drain.
    Drains(Name),
    /// A server has said that it ends.
    Left(Name),
    /// A server has fallen silent.
    Lost(Name),
    /// Two processes use one name.
    Twins(Name),
    /// There are too many servers; this one is not taken in.
    Refused(Name),
}

impl Change {
    /// What [`Change::kind`] says.
    pub const KINDS: [&'static str; 7] = [
        "joined",
        "restarted",
        "draining",
        "left",
        "lost",
        "twins",
        "refused",
    ];

    /// The server that it is about.
    pub fn server(&self) -> &Name {
        match self {
            Self::Joined(server)
            | Self::Restarted(server)
            | Self::Drains(server)
            | Self::Left(server)
            | Self::Lost(server)
            | Self::Twins(server)
            | Self::Refused(server) => server,
        }
    }

    /// The change in one word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Joined(_) => "joined",
            Self::Restarted(_) => "restarted",
            Self::Drains(_) => "draining",
            Self::Left(_) => "left",
            Self::Lost(_) => "lost",
            Self::Twins(_) => "twins",
            Self::Refused(_) => "refused",
        }
    }
}

impl Roster {
    /// Nobody is known yet.
    pub fn new() -> Self {
        Self {
            members: BTreeMap::new(),
            twins: BTreeMap::new(),
            lost: BTreeMap::new(),
        }
    }

    /// Takes a beat.
    pub fn hear(&mut self, now: Instant, beat: Beat) -> Option<Change> {
        let name = beat.server.clone();
        let Some(known) = self.members.get_mut(&name) else {
            return self.welcome(now, beat);
        };
        let last = (known.beat.started_ms, known.beat.sequence);
        let this = (beat.started_ms, beat.sequence);
        if this.0 < last.0 {
            // The elder process still runs. It tells nothing that counts.
            return self.note_twin(now, name);
        }
        if this <= last {
            // Again, or late.
            return None;
        }
        let is_restarted = this.0 > last.0;
        if beat.is_last && is_restarted {
            return None;
        }
        if beat.is_last {
            self.remove(&name);
            return Some(Change::Left(name));
        }
        let begins_to_drain = beat.is_draining && (is_restarted || !known.beat.is_draining);
        *known = Member {
            beat,
            heard_at: now,
        };
        match (is_restarted, begins_to_drain) {
            (true, _) => Some(Change::Restarted(name)),
            (false, true) => Some(Change::Drains(name)),
            (false, false) => None,
        }
    }

    /// Another process beats under the name of a server that is known.
    pub fn note_twin(&mut self, now: Instant, name: Name) -> Option<Change> {
        let is_new = self.twins.insert(name.clone(), now).is_none();
        is_new.then_some(Change::Twins(name))
    }

    fn remove(&mut self, name: &Name) {
        self.members.remove(name);
        self.twins.remove(name);
    }

    fn welcome(&mut self, now: Instant, beat: Beat) -> Option<Change> {
        if beat.is_last {
            return None;
        }
        let name = beat.server.clone();
        if self.members.len() >= MEMBERS_MAX {
            return Some(Change::Refused(name));
        }
        let member = Member {
            beat,
            heard_at: now,
        };
        self.members.insert(name.clone(), member);
        self.lost.remove(&name);
        Some(Change::Joined(name))
    }

    /// Forgets the servers that have been silent for too long. Call it when [`Roster::due`] says;
    /// earlier calls change nothing.
    pub fn expire(&mut self, now: Instant) -> Vec<Change> {
        self.twins.retain(|_, seen| *seen + DEAD_AFTER > now);
        let is_dead = |member: &Member| member.heard_at + DEAD_AFTER <= now;
        let dead = self.members.iter().filter(|(_, member)| is_dead(member));
        let dead: Vec<Name> = dead.map(|(name, _)| name.clone()).collect();
        dead.iter().for_each(|name| self.remove(name));
        self.lost.retain(|_, lost_at| *lost_at + LOST_FOR > now);
        self.lost
            .extend(dead.iter().map(|name| (name.clone(), now)));
        while self.lost.len() > MEMBERS_MAX {
            self.lost.pop_first();
        }
        dead.into_iter().map(Change::Lost).collect()
    }

    /// When [`Roster::expire`] has something to do.
    pub fn due(&self) -> Option<Instant> {
        let heard = self.members.values().map(|member| member.heard_at);
        let due = heard.chain(self.twins.values().copied()).min();
        due.map(|at| at + DEAD_AFTER)
    }

    /// The servers that live, in the order of their names.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// The last beat of a server that lives.
    pub fn beat(&self, server: &Name) -> Option<&Beat> {
        self.members.get(server).map(|member| &member.beat)
    }

    /// The number of servers that have fallen silent within [`LOST_FOR`] and not come back. Each
    /// may still serve, where this server does not reach it.
    pub fn lost(&self, now: Instant) -> usize {
        let recent = self
            .lost
            .values()
            .filter(|lost_at| **lost_at + LOST_FOR > now);
        recent.count()
    }

    /// The number of servers that live.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

impl Default for Roster {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::beat::tests::beat;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn names(roster: &Roster) -> Vec<String> {
        let names = roster
            .members()
            .map(|member| member.beat.server.to_string());
        names.collect()
    }

    fn nth(server: &str, sequence: u64) -> Beat {
        Beat {
            sequence,
            ..beat(server)
        }
    }

    #[test]
    fn servers_join_and_three_missing_beats_are_the_end() {
        let (mut roster, now) = (Roster::new(), Instant::now());
        assert_eq!(roster.due(), None);
        for server in ["b", "a"] {
            let joined = Some(Change::Joined(name(server)));
            assert_eq!(roster.hear(now, beat(server)), joined);
        }
        assert_eq!(names(&roster), ["a", "b"]);
        assert_eq!(roster.hear(now + 5 * SECOND, nth("a", 1)), None);
        assert_eq!(roster.due(), Some(now + DEAD_AFTER));
        assert_eq!(roster.expire(now + DEAD_AFTER - SECOND), []);
        assert_eq!(roster.expire(now + DEAD_AFTER), [Change::Lost(name("b"))]);
        assert_eq!(names(&roster), ["a"]);
        let lost = |roster: &Roster, after| roster.lost(now + DEAD_AFTER + after);
        assert_eq!(lost(&roster, SECOND), 1);
        assert_eq!(lost(&roster, LOST_FOR), 0);
        // It was cut off, and goes on where it was.
        let back = Some(Change::Joined(name("b")));
        assert_eq!(roster.hear(now + 9 * SECOND, nth("b", 4)), back);
        assert_eq!(lost(&roster, SECOND), 0);
    }

    #[test]
    fn a_server_that_says_goodbye_is_gone_at_once() {
        let (mut roster, now) = (Roster::new(), Instant::now());
        roster.hear(now, beat("a"));
        let drains = Beat {
            is_draining: true,
            ..nth("a", 1)
        };
        let change = Some(Change::Drains(name("a")));
        assert_eq!(roster.hear(now, drains.clone()), change);
        assert_eq!(
            roster.hear(
                now,
                Beat {
                    sequence: 2,
                    ..drains.clone()
                }
            ),
            None
        );
        let last = Beat {
            sequence: 3,
            is_last: true,
            ..drains
        };
        assert_eq!(
            roster.hear(now, last.clone()),
            Some(Change::Left(name("a")))
        );
        assert_eq!(roster.hear(now, last), None, "it comes twice");
        assert_eq!(names(&roster), Vec::<String>::new());
    }

    #[test]
    fn the_later_of_two_processes_counts() {
        let (mut roster, now) = (Roster::new(), Instant::now());
        let later = |sequence| Beat {
            started_ms: beat("a").started_ms + 1,
            ..nth("a", sequence)
        };
        roster.hear(now, nth("a", 50));
        let restarted = Some(Change::Restarted(name("a")));
        assert_eq!(roster.hear(now, later(0)), restarted);
        // The elder one was not the last of its name after all.
        let twins = Some(Change::Twins(name("a")));
        assert_eq!(roster.hear(now, nth("a", 51)), twins);
        assert_eq!(roster.hear(now + SECOND, nth("a", 52)), None, "said once");
        roster.hear(now + DEAD_AFTER, later(1));
        assert_eq!(roster.expire(now + DEAD_AFTER + SECOND), []);
        // It is said again if it happens again.
        let twins = Some(Change::Twins(name("a")));
        assert_eq!(roster.hear(now + DEAD_AFTER + SECOND, nth("a", 53)), twins);
        assert_eq!(names(&roster), ["a"]);
    }

    /// Only the process that is known can say that it ends.
    #[test]
    fn nobody_says_goodbye_for_another_process() {
        let (mut roster, now) = (Roster::new(), Instant::now());
        roster.hear(now, nth("a", 5));
        for started_ms in [0, u64::MAX] {
            let last = Beat {
                started_ms,
                is_last: true,
                ..nth("a", 6)
            };
            roster.hear(now, last);
            assert_eq!(names(&roster), ["a"]);
        }
    }

    #[test]
    fn a_late_or_repeated_beat_makes_nobody_live_longer() {
        let (mut roster, now) = (Roster::new(), Instant::now());
        roster.hear(now, nth("a", 7));
        for sequence in [7, 6] {
            assert_eq!(roster.hear(now + 3 * SECOND, nth("a", sequence)), None);
        }
        assert_eq!(roster.expire(now + DEAD_AFTER), [Change::Lost(name("a"))]);
    }

    #[test]
    fn invented_names_fill_no_memory() {
        let (mut roster, now) = (Roster::new(), Instant::now());
        for number in 0..MEMBERS_MAX + 10 {
            roster.hear(now, beat(&format!("m{number}")));
        }
        assert_eq!(roster.members().count(), MEMBERS_MAX);
        let refused = Some(Change::Refused(name("late")));
        assert_eq!(roster.hear(now, beat("late")), refused);
    }
}
