//! When refused clients come again.
//!
//! A client that is refused before its handshake leaves nothing behind, so its place in the queue
//! cannot be kept. But it can be told a time. The queue outside is a number: each client that is
//! refused lengthens it by one, and time shortens it at the rate at which clients are to return.
//! The length divided by that rate is the time that the next client is told. So clients return at
//! this rate, in the order in which they have been refused. When the rate falls, the queue is cut
//! to what returns within the longest time that is told: the others have been told shorter times.

use std::time::Duration;

use super::spread::spread;
use crate::time::Instant;

/// Clients that are to return, for each that is let in: some do not, and newcomers take places.
const RETURNS: f64 = 1.5;
/// Returns a second of a server that lets nobody in.
const RETURNS_LEAST: f64 = 2.0;
/// The shortest and longest time that a client is told. A longer one would outlast what is known of
/// the rate.
const RETURN_LEAST: Duration = Duration::from_millis(1000);
const RETURN_MOST: Duration = Duration::from_secs(30);
/// The part of the longest time over which those are spread that are told to come after it.
const SPREAD: f64 = 0.5;

/// The queue of refused clients, beside the [`Intake`](super::Intake) that refuses them: whoever
/// sends first packets from addresses that are not its own takes no place there.
#[derive(Debug, Default)]
pub struct Returns {
    /// Admissions per second.
    rate: f64,
    /// Clients that have been told a time that has not come.
    length: f64,
    since: Option<Instant>,
    told: u64,
}

impl Returns {
    /// So many clients are let in per second from now on.
    pub fn set_rate(&mut self, now: Instant, rate: f64) {
        self.pass(now);
        self.rate = rate;
    }

    /// A client is refused: the time after which it may come again.
    pub fn tell(&mut self, now: Instant) -> Duration {
        self.pass(now);
        self.told += 1;
        let wait = RETURN_LEAST + Duration::from_secs_f64(self.length / self.rate());
        if wait > RETURN_MOST {
            return RETURN_MOST.mul_f64(1.0 - SPREAD * spread(self.told));
        }
        self.length += 1.0;
        wait
    }

    /// Those whose time has come are not in the queue any longer.
    fn pass(&mut self, now: Instant) {
        let since = self.since.replace(now).unwrap_or(now);
        let passed = now.saturating_duration_since(since).as_secs_f64();
        let most = RETURN_MOST.as_secs_f64() * self.rate();
        self.length = (self.length - passed * self.rate()).clamp(0.0, most);
    }

    /// Clients that are to return per second.
    fn rate(&self) -> f64 {
        self.rate * RETURNS + RETURNS_LEAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_that_comes_at_once_returns_at_the_rate_in_its_order() {
        let (mut returns, now) = (Returns::default(), Instant::now());
        returns.set_rate(now, 100.0);
        let told: Vec<Duration> = (0..1000).map(|_| returns.tell(now)).collect();
        assert!(told.is_sorted() && told[0] == RETURN_LEAST);
        let second = |from: u64| {
            let second = Duration::from_secs(from)..Duration::from_secs(from + 1);
            told.iter().filter(|time| second.contains(time)).count()
        };
        for from in 1..7 {
            assert!((151..=153).contains(&second(from)), "{}", second(from));
        }
        // Whoever comes later does not come behind times that are over.
        assert_eq!(returns.tell(now + RETURN_MOST), RETURN_LEAST);
    }

    #[test]
    fn nobody_is_told_a_time_out_of_bounds_and_those_at_the_end_are_spread() {
        let (mut returns, now) = (Returns::default(), Instant::now());
        let told: Vec<Duration> = (0..10_000).map(|_| returns.tell(now)).collect();
        assert!(
            told.iter()
                .all(|time| (RETURN_LEAST..=RETURN_MOST).contains(time))
        );
        for second in 15..30 {
            let part = told.iter().filter(|time| time.as_secs() == second);
            assert!((620..700).contains(&part.count()), "{second}");
        }
        // They do not lengthen the queue.
        assert_eq!(returns.tell(now + RETURN_MOST), RETURN_LEAST);
    }

    #[test]
    fn a_queue_is_over_soon_when_the_rate_has_fallen() {
        let (mut returns, now) = (Returns::default(), Instant::now());
        returns.set_rate(now, 4000.0);
        for _ in 0..200_000 {
            returns.tell(now);
        }
        returns.set_rate(now, 0.0);
        returns.tell(now);
        let told: Vec<Duration> = (0..3).map(|_| returns.tell(now + RETURN_MOST)).collect();
        assert_eq!(told[0], RETURN_LEAST);
        assert!(
            told.is_sorted() && told[2] <= Duration::from_secs(2),
            "{told:?}"
        );
    }
}
