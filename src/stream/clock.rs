//! The times with which the answers of a stream are issued, by which viewers tell an older playlist
//! from a newer one, whichever server it comes from.
//!
//! A server that is alone goes by the wall clock. In a fleet that would not do: if the wall clock
//! of one server jumps ahead, viewers who go from there to another one refuse what that one says.
//! So a server that has heard another one of its fleet goes by the monotonic clock from then on,
//! which never jumps. One that begins takes the time that the others tell in their beats, whatever
//! its wall clock shows. Beats are not signed: where two others tell a time, its wall clock has a
//! vote, too, so that one false time of several sets nobody's. Later it goes by the time of whoever
//! is furthest ahead, which it hears with each answer from there that the stream's key has signed.

use std::time::{Duration, Instant};

/// How far the time of the only other server may be from the wall clock.
const APART_MAX_MS: u64 = 24 * 3600 * 1000;
/// The first moment of 2026, in milliseconds since 1970. A wall clock before that was not set.
const SET_FROM_MS: u64 = 1_767_225_600_000;

/// The clock of a stream.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// A moment and its time, since another server was heard.
    agreed: Option<(Instant, u64)>,
    /// What was issued or heard last, 0 for nothing.
    last: u64,
    /// Whether the time of the only other server was refused.
    has_refused: bool,
}

impl Clock {
    /// The time of a new answer of the origin, in milliseconds since 1970: later than all before.
    /// `wall` is what the wall clock shows.
    pub(super) fn issue(&mut self, now: Instant, wall: Duration) -> u64 {
        self.last = self.time(now, wall).max(self.last.saturating_add(1));
        self.last
    }

    /// Others issue answers with the times that `others` finds now. They count for a clock that
    /// does not know any server yet: it takes the one in the middle, the later one of four. One
    /// that has issued something does not go back.
    ///
    /// Beside two times the wall clock's is the third. A single one is taken, unless it is more
    /// than a day away from a wall clock that was set; then it is returned once.
    pub(super) fn agree(
        &mut self,
        now: Instant,
        wall: Duration,
        others: impl FnOnce() -> Vec<u64>,
    ) -> Option<u64> {
        if self.agreed.is_some() {
            return None;
        }
        let (mut times, wall_ms) = (others(), milliseconds(wall));
        match *times {
            [] => return None,
            [other] if wall_ms >= SET_FROM_MS && other.abs_diff(wall_ms) > APART_MAX_MS => {
                let has_refused = std::mem::replace(&mut self.has_refused, true);
                return (!has_refused).then_some(other);
            }
            [_, _] => times.push(wall_ms),
            _ => {}
        }
        times.sort_unstable();
        let own = self.now(now, wall).unwrap_or(0);
        self.agreed = Some((now, times[times.len() / 2].max(own)));
        None
    }

    /// The process before, which was this server, has issued an answer with this time.
    pub(super) fn inherit(&mut self, issued_ms: u64) {
        self.last = self.last.max(issued_ms);
    }

    /// The time now; nothing if none was issued or heard.
    pub(super) fn now(&self, now: Instant, wall: Duration) -> Option<u64> {
        (self.last != 0).then(|| self.time(now, wall).max(self.last))
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
    fn a_server_that_begins_takes_the_time_of_the_others_whatever_its_clock_shows() {
        let begun = Instant::now();
        let fleet = milliseconds(WALL);
        for wall in [Duration::ZERO, WALL - HOUR, WALL, WALL + 2 * HOUR] {
            let mut clock = Clock::default();
            assert_eq!(clock.now(begun, wall), None, "it has none to tell");
            clock.agree(begun, wall, || vec![fleet]);
            assert_eq!(clock.issue(begun + ms(5), wall), fleet + 5);
            clock.agree(begun + ms(6), wall, || vec![fleet + 3_600_000]);
            assert_eq!(
                clock.now(begun + ms(7), wall),
                Some(fleet + 7),
                "later only answers that the stream's key has signed count"
            );
        }
    }

    /// Whoever may send beats as one server can tell any time.
    #[test]
    fn one_false_time_sets_nobodys() {
        let begun = Instant::now();
        let (fleet, hour) = (milliseconds(WALL), milliseconds(HOUR));
        for false_ms in [
            0,
            1,
            fleet - hour,
            fleet + hour,
            253_402_300_799_999,
            u64::MAX,
        ] {
            // Those of two and more others, and of the wall clock, which is right or is not.
            for (others, wall) in [
                (vec![fleet, false_ms], WALL),
                (vec![false_ms, fleet], WALL),
                (vec![fleet, false_ms, fleet], WALL + HOUR),
                (vec![false_ms, fleet, fleet], Duration::ZERO),
                (vec![fleet, fleet, false_ms, fleet], Duration::ZERO),
            ] {
                let mut clock = Clock::default();
                assert_eq!(clock.agree(begun, wall, || others.clone()), None);
                assert_eq!(clock.issue(begun, wall), fleet, "{others:?} at {wall:?}");
            }
        }
        // That of the only other one, which is far away.
        for false_ms in [0, 1, 253_402_300_799_999, u64::MAX] {
            let mut clock = Clock::default();
            let mut agree = || clock.agree(begun, WALL, || vec![false_ms]);
            assert_eq!(
                (agree(), agree()),
                (Some(false_ms), None),
                "it is said once"
            );
            assert_eq!(clock.issue(begun, WALL), fleet);
        }
    }

    #[test]
    fn what_the_process_before_has_issued_is_older() {
        let begun = Instant::now();
        let inherited = milliseconds(WALL + HOUR);
        let mut clock = Clock::default();
        clock.inherit(inherited);
        clock.inherit(inherited - 5);
        assert_eq!(clock.issue(begun, WALL), inherited + 1);
        // It was ahead, and stays there.
        clock.agree(begun, WALL, || vec![milliseconds(WALL)]);
        assert_eq!(clock.issue(begun + ms(50), WALL), inherited + 51);
    }

    #[test]
    fn a_server_that_was_alone_does_not_go_back() {
        let begun = Instant::now();
        for (wall, expected) in [(WALL - HOUR, WALL), (WALL + HOUR, WALL + HOUR)] {
            let mut clock = Clock::default();
            clock.agree(begun, wall, Vec::new);
            let first = clock.issue(begun, wall);
            assert_eq!(u128::from(first), wall.as_millis());
            clock.agree(begun + ms(9), wall + ms(9), || {
                vec![milliseconds(WALL + ms(9))]
            });
            assert_eq!(
                u128::from(clock.issue(begun + ms(9), wall)),
                (expected + ms(9)).as_millis()
            );
        }
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
