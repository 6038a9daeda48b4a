//! Decides, without I/O, when to launch a batch and how large it may be.
//!
//! A launch costs the same for one block as for thousands. So the first requested block waits
//! briefly for others, and while a batch runs, the next one gathers by itself. At most two batches
//! are in progress: one on the device, and one prepared behind it.

use std::time::{Duration, Instant};

/// Decides when to launch.
#[derive(Debug)]
pub struct Planner {
    batch_blocks_max: u32,
    batch_wait: Duration,
    in_flight: u32,
    gathering_since: Option<Instant>,
    /// Set after a failed batch: the earliest time of the next launch.
    not_before: Option<Instant>,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Launch a batch of at most this many blocks.
    Launch(u32),
    /// Ask again at this time, or when demand grows or a batch ends.
    WaitUntil(Instant),
    /// Ask again when demand appears or a batch ends.
    Idle,
}

/// Batches in progress at once.
const IN_FLIGHT_MAX: u32 = 2;

/// The pause after a failed batch.
const AFTER_FAILURE: Duration = Duration::from_millis(50);

impl Planner {
    /// A planner for batches of at most `batch_blocks_max` blocks, where the first block waits at
    /// most `batch_wait`.
    pub fn new(batch_blocks_max: u32, batch_wait: Duration) -> Self {
        Self {
            batch_blocks_max: batch_blocks_max.max(1),
            batch_wait,
            in_flight: 0,
            gathering_since: None,
            not_before: None,
        }
    }

    /// Changes the settings, from the next decision on.
    pub fn set(&mut self, batch_blocks_max: u32, batch_wait: Duration) {
        self.batch_blocks_max = batch_blocks_max.max(1);
        self.batch_wait = batch_wait;
    }

    /// What to do when `needed` blocks are to be made. Asking too often is harmless.
    pub fn step(&mut self, now: Instant, needed: u64) -> Step {
        if needed == 0 {
            self.gathering_since = None;
            return Step::Idle;
        }
        let since = *self.gathering_since.get_or_insert(now);
        if let Some(until) = self.not_before.filter(|until| *until > now) {
            return Step::WaitUntil(until);
        }
        if self.in_flight >= IN_FLIGHT_MAX {
            return Step::Idle;
        }
        let due = since + self.batch_wait;
        if needed >= u64::from(self.batch_blocks_max) || now >= due {
            Step::Launch(self.batch_blocks_max)
        } else {
            Step::WaitUntil(due)
        }
    }

    /// Notes that a batch was launched.
    pub fn launched(&mut self) {
        self.in_flight += 1;
        self.gathering_since = None;
    }

    /// Notes that a batch ended.
    pub fn done(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Notes that a batch failed: the next launch waits for a moment.
    pub fn failed(&mut self, now: Instant) {
        self.not_before = Some(now + AFTER_FAILURE);
    }
}

/// Waits until the time that a step names; forever if it names none.
pub async fn planned(step: Step) {
    match step {
        Step::WaitUntil(at) => tokio::time::sleep_until(at.into()).await,
        Step::Launch(_) | Step::Idle => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(1);

    #[test]
    fn the_first_want_waits_for_company() {
        let (mut planner, start) = (Planner::new(100, WAIT), Instant::now());
        assert_eq!(planner.step(start, 0), Step::Idle);
        assert_eq!(planner.step(start, 1), Step::WaitUntil(start + WAIT));
        assert_eq!(
            planner.step(start + WAIT / 2, 60),
            Step::WaitUntil(start + WAIT)
        );
        assert_eq!(planner.step(start + WAIT, 60), Step::Launch(100));
    }

    #[test]
    fn a_full_batch_goes_at_once() {
        let mut planner = Planner::new(100, WAIT);
        assert_eq!(planner.step(Instant::now(), 100), Step::Launch(100));
    }

    #[test]
    fn two_batches_are_under_way_at_most() {
        let (mut planner, now) = (Planner::new(100, Duration::ZERO), Instant::now());
        for _ in 0..2 {
            assert_eq!(planner.step(now, 500), Step::Launch(100));
            planner.launched();
        }
        assert_eq!(planner.step(now, 500), Step::Idle);
        planner.done();
        assert_eq!(planner.step(now, 500), Step::Launch(100));
    }

    #[test]
    fn a_failure_is_followed_by_a_pause() {
        let (mut planner, now) = (Planner::new(100, Duration::ZERO), Instant::now());
        planner.failed(now);
        assert_eq!(planner.step(now, 500), Step::WaitUntil(now + AFTER_FAILURE));
        assert_eq!(planner.step(now + AFTER_FAILURE, 500), Step::Launch(100));
    }
}
