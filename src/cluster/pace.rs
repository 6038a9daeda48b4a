//! Rate limits for the messages of other servers: one that floods does not drown the rest.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a window lasts.
const WINDOW: Duration = Duration::from_secs(1);
/// Senders that are told apart in a window. Further ones are not heard in it: whoever may send
/// under any name can invent them.
pub(super) const SENDERS_MAX: usize = 2048;

/// Counts what senders say in each second.
#[derive(Debug)]
pub(super) struct Pace {
    /// Messages of one sender in a second, at most.
    most: u32,
    since: Instant,
    said: HashMap<String, u32>,
    /// Whether a sender has found no place.
    is_crowd: bool,
}

/// The judgement of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Heard,
    /// The first one that is too much in this second.
    TooMuch,
    /// Another one.
    Dropped,
    /// The first one in this second for whose sender there is no place.
    Crowd,
}

impl Pace {
    /// Each sender may say so much in a second.
    pub(super) fn new(now: Instant, most: u32) -> Self {
        Self {
            most,
            since: now,
            said: HashMap::new(),
            is_crowd: false,
        }
    }

    /// Judges a message of this sender.
    pub(super) fn judge(&mut self, now: Instant, sender: &str) -> Verdict {
        if self.since + WINDOW <= now {
            self.since = now;
            self.said.clear();
            self.is_crowd = false;
        }
        let Some(said) = self.said.get_mut(sender) else {
            if self.said.len() >= SENDERS_MAX {
                return match std::mem::replace(&mut self.is_crowd, true) {
                    false => Verdict::Crowd,
                    true => Verdict::Dropped,
                };
            }
            self.said.insert(sender.to_owned(), 1);
            return Verdict::Heard;
        };
        *said = said.saturating_add(1);
        match *said {
            said if said <= self.most => Verdict::Heard,
            said if said == self.most + 1 => Verdict::TooMuch,
            _ => Verdict::Dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Crowd, Dropped, Heard, TooMuch};

    #[test]
    fn who_says_too_much_is_not_heard_until_the_next_second() {
        let begun = Instant::now();
        let mut pace = Pace::new(begun, 3);
        let mut judge = |at, sender| pace.judge(begun + Duration::from_millis(at), sender);
        let of_one = [0, 1, 2, 3, 4].map(|at| judge(at, "one"));
        assert_eq!(of_one, [Heard, Heard, Heard, TooMuch, Dropped]);
        assert_eq!(judge(6, "two"), Heard, "others are");
        assert_eq!(judge(999, "one"), Dropped);
        assert_eq!(judge(1000, "one"), Heard);
    }

    #[test]
    fn invented_senders_take_bounded_memory() {
        let now = Instant::now();
        let mut pace = Pace::new(now, 1);
        let verdicts = (0..10_000).map(|sender| pace.judge(now, &format!("{sender}")));
        let verdicts: Vec<Verdict> = verdicts.collect();
        let count = |of| verdicts.iter().filter(|verdict| **verdict == of).count();
        assert_eq!((count(Heard), count(Crowd)), (SENDERS_MAX, 1));
        assert_eq!(pace.said.len(), SENDERS_MAX);
        assert_eq!(pace.judge(now + WINDOW, "10000"), Heard);
    }
}
