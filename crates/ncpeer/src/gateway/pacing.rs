//! The pace at which an answer's bytes are handed to a player.
//!
//! A player that adapts takes the time that a segment needs for the measure of the path. What comes while it asks has the path's pace by
//! itself. What the gateway had fetched ahead, which is there until a piece has to be waited for, is handed on as fast as the path would
//! bring it, so that the player does not take memory for the network and choose more than the path carries. No I/O: the gateway says how
//! long a piece was waited for and how fast the path is.

use std::time::{Duration, Instant};

use bytes::Bytes;

/// When the pieces of one answer are handed on.
#[derive(Debug)]
pub(super) struct Pacing {
    /// When the path would have brought what was handed on so far; `None` once a piece has come from the path.
    due: Option<Instant>,
}

impl Pacing {
    /// An answer that begins now.
    pub(super) fn new(now: Instant) -> Self {
        Self { due: Some(now) }
    }

    /// These bytes are there, after they were waited for so long, on a path of `rate` bytes a second; 0 if that is not known. What to hand on of
    /// them, and when; `None` for at once.
    pub(super) fn next(&mut self, now: Instant, waited: Duration, there: &mut Bytes, rate: f64) -> (Bytes, Option<Instant>) {
        if waited >= COMING {
            self.due = None;
        }
        let Some(due) = self.due.filter(|_| rate > 0.0) else { return (std::mem::take(there), None) };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, never negative")]
        let most = ((rate * CUT.as_secs_f64()) as usize).max(CUT_MIN);
        let piece = there.split_to(most.min(there.len()));
        let takes = Duration::from_secs_f64((piece.len() as f64 / rate).min(TAKES_MAX));
        // Who reads more slowly than the path brings does not save up for later.
        let due = due.max(now.checked_sub(GRAIN).unwrap_or(now)) + takes;
        self.due = Some(due);
        (piece, (due > now + GRAIN).then_some(due))
    }
}

/// What was waited for this long comes from the path, and all behind it; less may be the time of a task.
const COMING: Duration = Duration::from_millis(10);
/// Below this a timer is not worth setting.
const GRAIN: Duration = Duration::from_millis(2);
/// The longest that a piece is held, in seconds: a path that has nearly stopped says nothing.
const TAKES_MAX: f64 = 2.0;
/// How long a piece takes at most, where it is longer than [`CUT_MIN`] bytes.
const CUT: Duration = Duration::from_millis(50);
const CUT_MIN: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(length: usize) -> Bytes {
        vec![7; length].into()
    }

    #[test]
    fn what_is_there_takes_as_long_as_on_the_path() {
        let begin = Instant::now();
        let (mut now, mut pacing, mut handed) = (begin, Pacing::new(begin), 0);
        for _ in 0..10 {
            let mut there = bytes(10_000);
            while !there.is_empty() {
                let (piece, at) = pacing.next(now, Duration::ZERO, &mut there, 50_000.0);
                assert!(piece.len() <= 4096, "in pieces that the path brings in a moment");
                handed += piece.len();
                now = at.unwrap_or(now);
            }
        }
        let took = now - begin;
        assert!(handed == 100_000 && (1.99..=2.01).contains(&took.as_secs_f64()), "{took:?}");
    }

    #[test]
    fn what_comes_is_handed_on_as_it_comes() {
        let begin = Instant::now();
        let mut pacing = Pacing::new(begin);
        for number in 1..50 {
            // The path is twice as fast as it was thought to be.
            let now = begin + Duration::from_millis(100) * number;
            let handed = pacing.next(now, Duration::from_millis(100), &mut bytes(10_000), 50_000.0);
            assert_eq!(handed, (bytes(10_000), None));
        }
        let handed = pacing.next(begin, Duration::ZERO, &mut bytes(100_000), 50_000.0);
        assert_eq!(handed, (bytes(100_000), None), "what came at once behind what was late");
        let handed = Pacing::new(begin).next(begin, Duration::ZERO, &mut bytes(100_000), 0.0);
        assert_eq!(handed, (bytes(100_000), None), "a path that nothing is known of");
    }

    #[test]
    fn a_fast_path_costs_nothing_and_who_waits_saves_nothing_up() {
        let begin = Instant::now();
        let mut pacing = Pacing::new(begin);
        assert_eq!(pacing.next(begin, Duration::ZERO, &mut bytes(100_000), 1e9), (bytes(100_000), None));
        let later = begin + Duration::from_secs(5);
        let (_, at) = pacing.next(later, Duration::ZERO, &mut bytes(4096), 4096.0);
        assert!(at.unwrap() > later + Duration::from_millis(990), "the time before counts for nothing");
    }
}
