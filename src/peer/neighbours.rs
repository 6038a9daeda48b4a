//! Peers that servers name: which of them are drawn on, and for how long.
//!
//! A few at a time. One that does not answer, breaks the rules or has brought nothing for a while makes room for another; one that has
//! broken the rules is not taken again.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use crate::peer::proto::SourceId;
use crate::wire::message::Introduction;

/// Attempts to connect that may fail one after the other.
const FAILURES_MAX: u32 = 2;
/// Who has brought nothing for so long makes room, where somebody else is named.
const IDLE_MAX: Duration = Duration::from_secs(20);
/// Identities that are not taken again; of more, all are forgiven.
const BANNED_MAX: usize = 4096;

/// The peers that are drawn on.
#[derive(Debug)]
pub struct Neighbours {
    most: usize,
    /// What this side shows itself, if it serves.
    own: Option<[u8; 32]>,
    by_identity: BTreeMap<[u8; 32], Neighbour>,
    banned: HashSet<[u8; 32]>,
    next: u32,
}

#[derive(Debug)]
struct Neighbour {
    source: SourceId,
    failures: u32,
    /// Bytes that it had brought when that was last more than before, and when that was.
    brought: (u64, Instant),
}

/// What to do about a peer that was named.
#[derive(Debug, PartialEq, Eq)]
pub enum Advice {
    /// Connect to it, under this name.
    Take(SourceId),
    /// It is one already.
    Known(SourceId),
    /// Connect to it under the first name, in the place of the second.
    Exchange(SourceId, SourceId),
    /// Nothing.
    Leave,
}

impl Neighbours {
    /// None, and at most so many; `first` is the first name that is free.
    pub fn new(most: usize, first: u32) -> Self {
        Self { most, own: None, by_identity: BTreeMap::new(), banned: HashSet::new(), next: first }
    }

    /// What this side shows others.
    pub fn set_own(&mut self, identity: [u8; 32]) {
        self.own = Some(identity);
    }

    /// A server has named one.
    pub fn named(&mut self, now: Instant, peer: &Introduction) -> Advice {
        if let Some(known) = self.by_identity.get(&peer.identity) {
            return Advice::Known(known.source);
        }
        if self.most == 0 || self.own == Some(peer.identity) || self.banned.contains(&peer.identity) {
            return Advice::Leave;
        }
        let left = if self.by_identity.len() < self.most {
            None
        } else {
            let idle =
                self.by_identity.iter().filter(|(_, neighbour)| now.saturating_duration_since(neighbour.brought.1) >= IDLE_MAX);
            match idle.min_by_key(|(_, neighbour)| neighbour.brought.1).map(|(identity, _)| *identity) {
                Some(identity) => self.by_identity.remove(&identity).map(|neighbour| neighbour.source),
                None => return Advice::Leave,
            }
        };
        let source = SourceId(self.next);
        self.next += 1;
        self.by_identity.insert(peer.identity, Neighbour { source, failures: 0, brought: (0, now) });
        left.map_or(Advice::Take(source), |left| Advice::Exchange(source, left))
    }

    /// What one has brought so far.
    pub fn brought(&mut self, now: Instant, source: SourceId, bytes: u64) {
        if let Some(neighbour) = self.by_identity.values_mut().find(|neighbour| neighbour.source == source)
            && neighbour.brought.0 != bytes
        {
            neighbour.brought = (bytes, now);
            neighbour.failures = 0;
        }
    }

    /// A connection to one has ended or could not be made. True if it is none any more.
    pub fn failed(&mut self, source: SourceId, broke_the_rules: bool) -> bool {
        let Some((identity, neighbour)) = self.by_identity.iter_mut().find(|(_, neighbour)| neighbour.source == source) else {
            return false;
        };
        neighbour.failures += 1;
        if !broke_the_rules && neighbour.failures < FAILURES_MAX {
            return false;
        }
        let identity = *identity;
        self.by_identity.remove(&identity);
        if broke_the_rules {
            self.ban(identity);
        }
        true
    }

    /// Whoever shows this is not taken again.
    pub fn ban(&mut self, identity: [u8; 32]) {
        if self.banned.len() >= BANNED_MAX {
            self.banned.clear();
        }
        self.banned.insert(identity);
    }

    /// It could not be taken after all.
    pub fn remove(&mut self, source: SourceId) {
        self.by_identity.retain(|_, neighbour| neighbour.source != source);
    }

    /// Whether this is, or was, the name of one.
    pub fn is_one(&self, source: SourceId) -> bool {
        self.by_identity.values().any(|neighbour| neighbour.source == source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::message::Ticket;

    fn peer(number: u8) -> Introduction {
        let (address, ticket) = (([10, 0, 0, number], 1).into(), Ticket(vec![number].into()));
        Introduction { address, identity: [number; 32], lasts_ms: 1000, ticket }
    }

    #[test]
    fn a_few_are_taken_and_those_that_bring_nothing_make_room() {
        let (mut neighbours, start) = (Neighbours::new(2, 5), Instant::now());
        neighbours.set_own([9; 32]);
        assert_eq!(neighbours.named(start, &peer(1)), Advice::Take(SourceId(5)));
        assert_eq!(neighbours.named(start, &peer(2)), Advice::Take(SourceId(6)));
        assert_eq!(neighbours.named(start, &peer(1)), Advice::Known(SourceId(5)));
        assert_eq!(neighbours.named(start, &peer(3)), Advice::Leave);
        assert_eq!(neighbours.named(start, &peer(9)), Advice::Leave, "this side itself");
        let later = start + IDLE_MAX;
        neighbours.brought(later, SourceId(5), 10);
        assert_eq!(neighbours.named(later, &peer(3)), Advice::Exchange(SourceId(7), SourceId(6)));
        assert!(neighbours.is_one(SourceId(7)) && !neighbours.is_one(SourceId(6)));
        assert_eq!(neighbours.named(later, &peer(4)), Advice::Leave);
        assert_eq!(Neighbours::new(0, 1).named(start, &peer(1)), Advice::Leave);
    }

    #[test]
    fn those_that_fail_are_let_go_and_those_that_break_the_rules_for_good() {
        let (mut neighbours, now) = (Neighbours::new(2, 1), Instant::now());
        neighbours.named(now, &peer(1));
        assert!(!neighbours.failed(SourceId(1), false));
        neighbours.brought(now, SourceId(1), 10);
        assert!(!neighbours.failed(SourceId(1), false) && neighbours.failed(SourceId(1), false));
        assert!(!neighbours.failed(SourceId(1), false), "it is none any more");
        assert_eq!(neighbours.named(now, &peer(1)), Advice::Take(SourceId(2)));
        assert!(neighbours.failed(SourceId(2), true));
        assert_eq!(neighbours.named(now, &peer(1)), Advice::Leave);
    }
}
