//! The times with which the answers of a stream are issued, by which viewers tell an older playlist
//! from a newer one, whichever server it comes from.
//!
//! A server that is alone goes by the wall clock. In a fleet that would not do: if the wall clock
//! of one server jumps ahead, viewers who go from there to another one refuse what that one says.
//! So a server that has heard another one of its fleet goes by the monotonic clock from then on,
//! which never jumps, and by the time of whoever is furthest ahead. It hears with each answer from
//! there that the stream's key has signed.

use std::time::{Duration, Instant};

/// The clock of a stream.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// A moment and its time, since another server was heard.
    agreed: Option<(Instant, u64)>,
    /// What was issued last.
    last: u64,
}

impl Clock {
    /// The time of a new answer of the origin, in milliseconds since 1970: later than all before.
    /// `wall` is what the wall clock shows.
    pub(super) fn issue(&mut self, now: Instant, wall: Duration) -> u64 {
        self.last = self.time(now, wall).max(self.last.saturating_add(1));
        self.last
    }

    /// Another server has issued an answer with this time.
    pub(super) fn hear(&mut self, now: Instant, wall: Duration, issued_ms: u64) {
        self.agreed = Some((now, self.time(now, wall).max(issued_ms)));
        self.last = self.last.max(issued_ms);
    }

    fn time(&self, now: Instant, wall: Duration) -> u64 {
        let Some((at, time)) = self.agreed else {
            return milliseconds(wall);
        };
        time.saturating_add(milliseconds(now.saturating_duration_since(at)))
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: Duration = Duration::from_secs(1_800_000_000);
    const HOUR: Duration = Duration::from_secs(3600);

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn every_answer_is_issued_later_than_the_one_before() {
        let begun = Instant::now();
        let mut clock = Clock::default();
        let first = clock.issue(begun, WALL);
        assert_eq!(u128::from(first), WALL.as_millis());
        assert_eq!(clock.issue(begun, WALL), first + 1);
        // Whatever the wall clock does.
        assert_eq!(clock.issue(begun, WALL - HOUR), first + 2);
        // It is followed as long as nobody else is heard.
        assert_eq!(clock.issue(begun, WALL + HOUR), first + 3_600_000);
    }

    #[test]
    fn a_server_that_is_behind_follows_the_other_and_stays_with_it() {
        let begun = Instant::now();
        let (mut ahead, mut behind) = (Clock::default(), Clock::default());
        let issued = ahead.issue(begun, WALL + HOUR);
        behind.hear(begun + ms(10), WALL + ms(10), issued);
        assert!(behind.issue(begun + ms(11), WALL + ms(11)) > issued);
        // The way took 10 ms, by which it is behind from then on.
        let one = ahead.issue(begun + ms(9000), WALL + HOUR + ms(9000));
        assert_eq!(behind.issue(begun + ms(9010), WALL + ms(9010)), one);
        // The one that is ahead does not follow.
        let other = behind.issue(begun + ms(9020), WALL + ms(9020));
        ahead.hear(begun + ms(9020), WALL + HOUR + ms(9020), other);
        assert_eq!(ahead.issue(begun + ms(9020), WALL + HOUR), one + 20);
    }

    #[test]
    fn a_wall_clock_that_jumps_in_a_fleet_changes_nothing() {
        let begun = Instant::now();
        let mut clock = Clock::default();
        clock.hear(begun, WALL, 7);
        let first = clock.issue(begun, WALL);
        assert_eq!(u128::from(first), WALL.as_millis());
        assert_eq!(clock.issue(begun + ms(500), WALL + HOUR), first + 500);
        assert_eq!(clock.issue(begun + ms(900), WALL - HOUR), first + 900);
    }

    #[test]
    fn no_time_that_is_heard_ends_it() {
        let begun = Instant::now();
        let mut clock = Clock::default();
        clock.hear(begun, WALL, u64::MAX);
        assert_eq!(clock.issue(begun + ms(5), WALL), u64::MAX);
        assert_eq!(clock.issue(begun + ms(6), WALL), u64::MAX);
    }

    /// Servers whose wall clocks differ, and jump, hear each other at random. What they issue never
    /// goes back, and who has just heard another one issues later than what it has heard.
    #[test]
    fn clocks_that_hear_each_other_at_random_agree() {
        for _ in 0..200 {
            let begun = Instant::now();
            let mut clocks: Vec<Clock> = (0..4).map(|_| Clock::default()).collect();
            let mut last = [0; 4];
            for step in 0..100 {
                let now = begun + ms(step * 100);
                let wall = || WALL + ms(rand::random_range(0..3_600_000));
                let (from, to) = (rand::random_range(0..4), rand::random_range(0..4));
                let issued = clocks[from].issue(now, wall());
                assert!(issued > last[from]);
                last[from] = issued;
                clocks[to].hear(now, wall(), issued);
                let answer = clocks[to].issue(now, wall());
                assert!(answer > issued && answer > last[to]);
                last[to] = answer;
            }
        }
    }
}
