//! The circles of which this server lacks peers, and those that others have.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ncs_serve::directory::{Circle, Sharer};

use super::owned::LASTS;
use super::wire::{Found, ServerId};

/// The time between two questions about a circle in which others have peers.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(8);
/// The same where nobody has any, or answers: it grows from the one to the other.
pub(super) const PAUSE_MIN: Duration = Duration::from_secs(2);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long a circle is asked for after it was wanted last.
pub(super) const WANTED_FOR: Duration = Duration::from_secs(60);
/// Circles, and peers found in all of them. Further ones are ignored.
pub(super) const CIRCLES_MAX: usize = 1 << 14;
pub(super) const FOUND_TOTAL_MAX: usize = 1 << 14;
/// Questions of one round.
const ASKED_PER_ROUND: usize = 1 << 10;

#[derive(Debug, Default)]
pub(super) struct Asked {
    circles: HashMap<Circle, Question>,
    found: usize,
}

#[derive(Debug)]
struct Question {
    wanted_at: Instant,
    next_at: Instant,
    pause: Duration,
    /// Questions so far.
    asked: usize,
    /// What was found, and when.
    found: Vec<Found>,
    found_at: Instant,
}

impl Asked {
    /// Viewers of this server would be told of more peers of a circle.
    pub(super) fn want(&mut self, now: Instant, circle: Circle) {
        if let Some(question) = self.circles.get_mut(&circle) {
            question.wanted_at = now;
        } else if self.circles.len() < CIRCLES_MAX {
            let question = Question {
                wanted_at: now,
                next_at: now,
                pause: PAUSE_MIN,
                asked: 0,
                found: Vec::new(),
                found_at: now,
            };
            self.circles.insert(circle, question);
        }
    }

    /// The circles to ask for in this round, and how often each was asked for before.
    pub(super) fn ask(&mut self, now: Instant) -> Vec<(Circle, usize)> {
        let due = self.circles.iter_mut();
        let due = due.filter(|(_, question)| question.next_at <= now);
        let ask = |(circle, question): (&Circle, &mut Question)| {
            question.next_at = now + question.pause;
            question.pause = (2 * question.pause).min(PAUSE_MAX);
            question.asked += 1;
            (*circle, question.asked - 1)
        };
        due.take(ASKED_PER_ROUND).map(ask).collect()
    }

    /// Others have these peers of a circle. Whether that is new.
    pub(super) fn answer(&mut self, now: Instant, circle: Circle, found: Vec<Found>) -> bool {
        let Some(question) = self.circles.get_mut(&circle) else {
            return false;
        };
        let others = self.found - question.found.len();
        if others + found.len() > FOUND_TOTAL_MAX {
            return false;
        }
        self.found = others + found.len();
        if !found.is_empty() {
            (question.next_at, question.pause) = (now + ASK_AGAIN, ASK_AGAIN);
        }
        question.found_at = now;
        let before = std::mem::replace(&mut question.found, found);
        before != question.found
    }

    /// Forgets the peers of servers that do not live. Returns the circles that have changed.
    pub(super) fn retain(&mut self, lives: impl Fn(ServerId) -> bool) -> Vec<Circle> {
        self.change(|question| question.found.retain(|(server, _)| lives(*server)))
    }

    /// Forgets circles that nobody wants, and peers of which nobody has said anything for too long.
    /// Returns the circles that have changed.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Circle> {
        let is_wanted = |question: &Question| question.wanted_at + WANTED_FOR > now;
        let changed = self.change(|question| {
            if question.found_at + LASTS <= now || !is_wanted(question) {
                question.found.clear();
            }
        });
        self.circles.retain(|_, question| is_wanted(question));
        changed
    }

    fn change(&mut self, change: impl Fn(&mut Question)) -> Vec<Circle> {
        let mut changed = Vec::new();
        for (circle, question) in &mut self.circles {
            let before = question.found.len();
            change(question);
            if question.found.len() != before {
                self.found -= before - question.found.len();
                changed.push(*circle);
            }
        }
        changed
    }

    /// The peers of other servers in a circle.
    pub(super) fn sharers(&self, circle: Circle) -> Vec<Sharer> {
        let question = self.circles.get(&circle).into_iter();
        let found = question.flat_map(|question| &question.found);
        found.map(|(_, sharer)| *sharer).collect()
    }

    /// The number of peers that were found.
    pub(super) fn len(&self) -> usize {
        self.found
    }
}
