//! The pace at which an answer's bytes are sent to a player.
//!
//! An adaptive player measures the path by the time that a segment takes. Bytes that arrive during
//! the request have the path's pace by themselves. Prefetched bytes, which last until a piece has
//! to be waited for, are sent as fast as the path would deliver them, so that the player does not
//! mistake memory for the network and choose too high a rate. No I/O: the gateway passes in how
//! long it waited for a piece, and the rate of the path.

use std::time::{Duration, Instant};

use bytes::Bytes;

/// The schedule of one answer's pieces.
#[derive(Debug)]
pub(super) struct Pacing {
    /// When the path would have delivered the bytes sent so far; `None` once a piece came from the
    /// path.
    due: Option<Instant>,
}

impl Pacing {
    /// An answer that begins now.
    pub(super) fn new(now: Instant) -> Self {
        Self { due: Some(now) }
    }

    /// The next piece of the bytes in `there`, and when to send it; `None` for at once. The caller
    /// waited for `waited`; `rate` is that of the path in bytes per second, 0 if unknown.
    pub(super) fn next(
        &mut self,
        now: Instant,
        waited: Duration,
        there: &mut Bytes,
        rate: f64,
    ) -> (Bytes, Option<Instant>) {
        if waited >= COMING {
            self.due = None;
        }
        let Some(due) = self.due.filter(|_| rate > 0.0) else {
            return (std::mem::take(there), None);
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates, never negative"
        )]
        let most = ((rate * CUT.as_secs_f64()) as usize).max(CUT_MIN);
        let piece = there.split_to(most.min(there.len()));
        let takes = Duration::from_secs_f64((piece.len() as f64 / rate).min(TAKES_MAX));
        // A slow reader does not accumulate credit for later.
        let due = due.max(now.checked_sub(GRAIN).unwrap_or(now)) + takes;
        self.due = Some(due);
        (piece, (due > now + GRAIN).then_some(due))
    }
}

/// Bytes with a longer wait come from the path, and so do all later ones; a shorter wait may be
/// scheduling.
const COMING: Duration = Duration::from_millis(10);
/// Shorter pauses are not worth a timer.
const GRAIN: Duration = Duration::from_millis(2);
/// The maximum pause of a piece in seconds, since the rate of a nearly stalled path means nothing.
const TAKES_MAX: f64 = 2.0;
/// The maximum duration of a piece longer than [`CUT_MIN`] bytes.
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
                assert!(
                    piece.len() <= 4096,
                    "in pieces that the path brings in a moment"
                );
                handed += piece.len();
                now = at.unwrap_or(now);
            }
        }
        let took = now - begin;
        assert!(
            handed == 100_000 && (1.99..=2.01).contains(&took.as_secs_f64()),
            "{took:?}"
        );
    }

    #[test]
    fn what_comes_is_handed_on_as_it_comes() {
        let begin = Instant::now();
        let mut pacing = Pacing::new(begin);
        for number in 1..50 {
            // The path is twice as fast as estimated.
            let now = begin + Duration::from_millis(100) * number;
            let handed = pacing.next(
                now,
                Duration::from_millis(100),
                &mut bytes(10_000),
                50_000.0,
            );
            assert_eq!(handed, (bytes(10_000), None));
        }
        let handed = pacing.next(begin, Duration::ZERO, &mut bytes(100_000), 50_000.0);
        assert_eq!(
            handed,
            (bytes(100_000), None),
            "what came at once behind what was late"
        );
        let handed = Pacing::new(begin).next(begin, Duration::ZERO, &mut bytes(100_000), 0.0);
        assert_eq!(
            handed,
            (bytes(100_000), None),
            "a path that nothing is known of"
        );
    }

    #[test]
    fn a_fast_path_costs_nothing_and_who_waits_saves_nothing_up() {
        let begin = Instant::now();
        let mut pacing = Pacing::new(begin);
        assert_eq!(
            pacing.next(begin, Duration::ZERO, &mut bytes(100_000), 1e9),
            (bytes(100_000), None)
        );
        let later = begin + Duration::from_secs(5);
        let (_, at) = pacing.next(later, Duration::ZERO, &mut bytes(4096), 4096.0);
        assert!(
            at.unwrap() > later + Duration::from_millis(990),
            "the time before counts for nothing"
        );
    }
}
