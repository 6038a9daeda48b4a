//! Signs of flows that do not heed losses: lulls.
//!
//! BBR's first version, which Linux sends by, measures the path's round trip by sending almost
//! nothing for 200 ms whenever ten seconds have passed (ProbeRTT; draft-cardwell-iccrg-bbr-00,
//! section 4.3.5). Several such flows soon do it at the same time, because all see the queue empty.
//! Flows that heed losses leave no such trace: their queue falls by a part, or comes back slowly.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Looks for lulls in the queue of round after round.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lulls {
    /// The usual queue, in seconds.
    level: f64,
    /// Since when it is almost empty.
    low: Option<Instant>,
    /// When the last lull began.
    last: Option<Instant>,
}

impl Lulls {
    /// Takes the shortest queue of a round that began then. Answers whether a lull has ended that
    /// came as long after another as BBR's do.
    pub(super) fn take(&mut self, began: Instant, queue: Duration) -> bool {
        let queue = queue.as_secs_f64();
        if self.level > LEVEL_MIN && queue < LOW_MIN + LOW * self.level {
            self.low.get_or_insert(began);
            return false;
        }
        self.level += (queue - self.level) * WEIGHT;
        let Some(low) = self.low.take() else {
            return false;
        };
        if !LASTS.contains(&began.saturating_duration_since(low)) {
            return false;
        }
        let last = self.last.replace(low);
        last.is_some_and(|last| APART.contains(&low.saturating_duration_since(last)))
    }

    /// Rounds in which this flow itself has emptied the queue prove nothing.
    pub(super) const fn skip(&mut self) {
        self.low = None;
    }
}

/// A queue this long, in seconds, can be missed.
const LEVEL_MIN: f64 = 0.005;
/// A queue this long, in seconds, is almost empty, or longer by this part of the usual one. Where
/// flows heed losses, the shortest queue between two losses may be taken for an empty one, but does
/// not stay as short for as long.
const LOW_MIN: f64 = 0.002;
const LOW: f64 = 1.0 / 16.0;
/// The weight of a round in the usual queue.
const WEIGHT: f64 = 1.0 / 16.0;
/// 200 ms, and the time in which the queue drains and fills.
const LASTS: RangeInclusive<Duration> = Duration::from_millis(150)..=Duration::from_millis(600);
/// Ten seconds after the end of the last, and never a whole number of beats: flows of this
/// controller leave lulls, too.
const APART: RangeInclusive<Duration> =
    Duration::from_millis(10_150)..=Duration::from_millis(11_700);

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether lulls are noticed of a queue of 20 ms, in rounds of 50 ms, that is empty for
    /// `lasts` every `apart`.
    fn noticed(apart: u64, lasts: u64) -> bool {
        let start = Instant::now();
        let mut lulls = Lulls::default();
        (0..600).any(|round| {
            let at = 50 * round;
            let is_low = at > 2000 && at % apart < lasts;
            let queue = Duration::from_millis(if is_low { 1 } else { 20 });
            lulls.take(start + Duration::from_millis(at), queue)
        })
    }

    #[test]
    fn lulls_as_long_and_as_far_apart_as_those_of_bbr_are_noticed() {
        assert!(noticed(10_300, 250));
        assert!(!noticed(10_300, 100), "too short");
        assert!(!noticed(10_300, 1000), "too long");
        assert!(!noticed(10_000, 250), "five beats of this controller");
        assert!(!noticed(5000, 250), "too often");
    }
}
