//! What is counted of a run.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::viewer::Seen;
use crate::world::World;

/// What viewers saw of the segments that were due in a time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sight {
    pub(crate) segments: u64,
    /// Those that came late or not at all, and the viewers to whom that happened.
    pub(crate) late: u64,
    pub(crate) late_at: BTreeSet<usize>,
    pub(crate) wrong: u64,
    /// Questions and fetches that failed, after which players tried again.
    pub(crate) errors: u64,
    /// The least time between the arrival of a segment and its show.
    pub(crate) spare: Duration,
}

impl World {
    pub(crate) fn sight(&self, time: &Range<Instant>) -> Sight {
        let mut sight = Sight {
            spare: Duration::MAX,
            ..Sight::default()
        };
        for (number, viewer) in self.viewers.iter().enumerate() {
            let Seen {
                came,
                went,
                first,
                played,
                wrong,
                errors,
                ..
            } = &viewer.seen;
            (sight.wrong, sight.errors) = (sight.wrong + wrong, sight.errors + errors);
            // One that has nothing yet waits for what was published after it came.
            let numbers = 0..self.stream.segments.len() as u64;
            let first = first.or_else(|| {
                let is_after = |number: &u64| self.stream.published(*number) > *came;
                numbers.clone().find(is_after)
            });
            let until = went.map_or(time.end, |went| went.min(time.end));
            let seen = numbers.filter(|number| {
                let due = self.stream.due(*number);
                Some(*number) >= first && (time.start..until).contains(&due)
            });
            for segment in seen {
                sight.segments += 1;
                let at = usize::try_from(segment - first.unwrap_or(segment)).expect("a short run");
                let there = played.get(at).copied().flatten();
                let due = self.stream.due(segment);
                match there.and_then(|there| due.checked_duration_since(there)) {
                    Some(spare) => sight.spare = sight.spare.min(spare),
                    None => {
                        sight.late += 1;
                        sight.late_at.insert(number);
                    }
                }
            }
        }
        sight
    }

    /// Who loses their only servers now, if each viewer keeps those that it still reaches, without
    /// `gone`.
    pub(crate) fn losers(&self, gone: &[usize]) -> Loss {
        let must_move = |viewer: &usize| {
            let reached = self.reached(*viewer);
            let servers = self.viewers[*viewer].servers();
            let is_left = |server: &usize| reached.contains(server) && !gone.contains(server);
            !servers.is_empty() && !servers.iter().any(is_left)
        };
        Loss {
            at: self.net.now,
            viewers: self.here().filter(must_move).collect(),
        }
    }

    /// How long they took to be at another server, or at theirs again.
    pub(crate) fn moves(&self, loss: &Loss) -> Moves {
        let mut moves = Moves::default();
        for viewer in &loss.viewers {
            let seen = &self.viewers[*viewer].seen;
            let is_next = |(at, _, is_up): &&(Instant, usize, bool)| *at > loss.at && *is_up;
            match (seen.changes.iter().find(is_next), seen.went) {
                (Some((at, ..)), _) => moves.took.push(*at - loss.at),
                (None, Some(_)) => {}
                (None, None) => moves.lost += 1,
            }
        }
        moves.took.sort_unstable();
        moves
    }

    /// The most servers that a viewer has tried in its time, by the word of others.
    pub(crate) fn most_tried(&self) -> usize {
        let tried = self.viewers.iter().map(|viewer| viewer.seen.tried.len());
        tried.max().unwrap_or(0)
    }

    /// The load of the fullest server that takes newcomers, and the mean of them.
    pub(crate) fn load(&self) -> (u32, f64) {
        let loads = self.loads();
        let sum: u32 = loads.iter().sum();
        let mean = f64::from(sum) / loads.len() as f64;
        (loads.into_iter().max().unwrap_or(0), mean)
    }

    /// Everything that viewers have seen and servers have done, by the time since the beginning.
    pub(crate) fn story(&self) -> Vec<String> {
        let since = |at: &Instant| at.saturating_duration_since(self.start);
        let viewers = self.viewers.iter().map(|viewer| {
            let seen = &viewer.seen;
            let played = seen.played.iter().map(|at| at.as_ref().map(since));
            let changes = seen.changes.iter();
            let changes = changes.map(|(at, server, is_up)| (since(at), *server, *is_up));
            let tried = seen.tried.iter().map(since);
            format!(
                "{:?} {:?} {:?} {} {} {}",
                played.collect::<Vec<_>>(),
                changes.collect::<Vec<_>>(),
                tried.collect::<Vec<_>>(),
                seen.handshakes,
                seen.errors,
                seen.wrong
            )
        });
        let servers = self.servers.iter().map(|server| {
            let counts = &server.counts;
            format!("{} {} {}", counts.newcomers, counts.sent_on, counts.blocks)
        });
        viewers.chain(servers).collect()
    }
}

/// Viewers who have lost their servers.
#[derive(Debug)]
pub(crate) struct Loss {
    pub(crate) at: Instant,
    pub(crate) viewers: Vec<usize>,
}

/// What became of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Moves {
    /// In order.
    pub(crate) took: Vec<Duration>,
    /// Those who are at no server.
    pub(crate) lost: usize,
}

impl Moves {
    pub(crate) fn add(&mut self, other: &Self) {
        self.took.extend(&other.took);
        self.took.sort_unstable();
        self.lost += other.lost;
    }

    /// Whether 99 of 100 were done within this time; of few, all but one.
    pub(crate) fn are_swift(&self, within: Duration) -> bool {
        let slow = self.took.iter().filter(|took| **took >= within);
        slow.count() <= self.took.len().div_ceil(100)
    }

    /// The time within which this part of the moves, of 100, was done.
    pub(crate) fn within(&self, percent: usize) -> Duration {
        let at = (self.took.len() * percent).div_ceil(100).saturating_sub(1);
        self.took.get(at).copied().unwrap_or_default()
    }
}
