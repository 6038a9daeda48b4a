//! What a viewer's player has in its buffer, and in which second of the run it plays it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::totals::Totals;

/// The player of a viewer. It plays the segments that come in time one after the other, and stops
/// when it is dropped.
#[derive(Debug)]
pub(super) struct Player {
    totals: Arc<Totals>,
    /// The beginning of the run.
    begin: Instant,
    /// Segments that are not played to their end, by rising time.
    buffer: VecDeque<Span>,
    /// When the last of them has been played, since the beginning.
    until: Duration,
}

/// When a segment is played, since the beginning of the run.
#[derive(Debug, Clone, Copy)]
struct Span {
    from: Duration,
    to: Duration,
    bytes: u64,
}

impl Player {
    pub(super) fn new(totals: &Arc<Totals>, begin: Instant) -> Self {
        Self {
            totals: Arc::clone(totals),
            begin,
            buffer: VecDeque::new(),
            until: Duration::ZERO,
        }
    }

    /// A segment of this length and playing time has come in time: it is played after those in the
    /// buffer.
    pub(super) fn take(&mut self, now: Instant, bytes: u64, time: Duration) {
        let now = now.saturating_duration_since(self.begin);
        while self.buffer.front().is_some_and(|span| span.to <= now) {
            self.buffer.pop_front();
        }
        let from = self.until.max(now);
        self.until = from.saturating_add(time);
        self.buffer.push_back(Span {
            from,
            to: self.until,
            bytes,
        });
        self.totals.play(bytes, from, self.until);
    }

    /// The rest of the buffer is not played.
    pub(super) fn stop(&mut self, now: Instant) {
        let now = now.saturating_duration_since(self.begin);
        for span in self.buffer.drain(..).filter(|span| span.to > now) {
            let from = span.from.max(now);
            let share = (span.to - from).as_secs_f64() / (span.to - span.from).as_secs_f64();
            self.totals
                .drop_ahead(span.bytes as f64 * share, from, span.to);
        }
        self.until = now;
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.stop(Instant::now());
    }
}

/// Bytes that are played, by the second of the run.
#[derive(Debug, Default)]
pub(super) struct Seconds {
    /// The seconds before this one have been taken.
    first: u64,
    bytes: VecDeque<f64>,
}

impl Seconds {
    /// Spreads bytes evenly over a time. Negative bytes take back what was added before.
    pub(super) fn add(&mut self, bytes: f64, from: Duration, to: Duration) {
        let length = (to - from).as_secs_f64().max(f64::MIN_POSITIVE);
        let mut at = from;
        loop {
            let second = at.as_secs();
            let end = Duration::from_secs(second.saturating_add(1)).min(to);
            let share = if to == from {
                1.0
            } else {
                (end - at).as_secs_f64() / length
            };
            if let Ok(index) = usize::try_from(second.saturating_sub(self.first))
                && index < AHEAD_MAX
            {
                if self.bytes.len() <= index {
                    self.bytes.resize(index + 1, 0.0);
                }
                self.bytes[index] += bytes * share;
            } else {
                return;
            }
            at = end;
            if at >= to {
                return;
            }
        }
    }

    /// Removes the seconds before this one: their bytes.
    pub(super) fn take(&mut self, before: u64) -> f64 {
        let count = usize::try_from(before.saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.first = self.first.max(before);
        self.bytes.drain(..count.min(self.bytes.len())).sum()
    }
}

/// Seconds that are kept. What is played later is left out of the lines of each second.
const AHEAD_MAX: usize = 24 * 3600;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn close(found: f64, right: f64) -> bool {
        (found - right).abs() < 1e-6
    }

    #[test]
    fn bytes_are_spread_over_the_seconds_in_which_they_are_played() {
        let mut seconds = Seconds::default();
        seconds.add(3000.0, SECOND / 2, SECOND * 7 / 2);
        assert!(close(seconds.take(1), 500.0));
        assert!(close(seconds.take(3), 2000.0));
        assert!(close(seconds.take(3), 0.0));
        seconds.add(-250.0, SECOND * 13 / 4, SECOND * 7 / 2);
        assert!(close(seconds.take(10), 250.0));
        seconds.add(7.0, 11 * SECOND, 11 * SECOND);
        assert!(close(seconds.take(12), 7.0));
        // Nobody waits for it.
        seconds.add(7.0, SECOND * 12, Duration::MAX);
        assert!(seconds.take(100) < 1e-6);
    }

    #[test]
    fn segments_are_played_one_after_the_other() {
        let (totals, begin) = (Arc::new(Totals::default()), Instant::now());
        let mut player = Player::new(&totals, begin);
        // The second comes while the first is played, and the third after a pause of a second.
        player.take(begin + SECOND, 2000, 2 * SECOND);
        player.take(begin + SECOND * 3 / 2, 2000, 2 * SECOND);
        player.take(begin + 6 * SECOND, 2000, 2 * SECOND);
        let played: Vec<f64> = (1..=8).map(|before| totals.take_played(before)).collect();
        for (found, right) in played
            .iter()
            .zip([0.0, 1000.0, 1000.0, 1000.0, 1000.0, 0.0, 1000.0, 1000.0])
        {
            assert!(close(*found, right), "{played:?}");
        }
        drop(player);
    }

    #[test]
    fn what_lies_ahead_when_the_viewer_stops_is_not_played() {
        let (totals, begin) = (Arc::new(Totals::default()), Instant::now());
        let mut player = Player::new(&totals, begin);
        player.take(begin, 1000, 2 * SECOND);
        player.take(begin, 1000, 2 * SECOND);
        player.stop(begin + SECOND);
        let sum = Totals::sum([totals.as_ref()]);
        assert_eq!((sum.played_us, sum.unplayed_us), (4_000_000, 3_000_000));
        assert_eq!((sum.played_bytes, sum.unplayed_bytes), (2000, 1500));
        assert!(close(totals.take_played(10), 500.0));
        // A viewer that goes on begins with an empty buffer.
        player.take(begin + 11 * SECOND, 1000, SECOND);
        assert!(close(totals.take_played(12), 1000.0));
    }
}
