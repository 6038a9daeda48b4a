//! Whether a source that owes something says anything, so that others are turned to while there is
//! time ([`Alternates`](super::alternates::Alternates)).
//!
//! No I/O and no clock here: the driver counts the packets that come, and says what is owed.

use std::time::Duration;

use super::alternates::SILENT_AFTER;
use crate::time::Instant;

/// The interval of looks at received packets.
const LISTEN_EVERY: Duration = Duration::from_millis(100);
/// Frames sent in one silence, one after each look, to hear of lost packets: whatever arrives is
/// acknowledged, while QUIC's own probes come at doubling intervals (RFC 9002, section 6.2.1).
const KNOCKS_MAX: u32 = 16;
/// For how long a connection is young: QUIC knows little of its round trip, and waits for three of
/// them before it repeats what is lost. Such a connection is knocked at sooner.
const YOUNG: Duration = Duration::from_secs(3);

/// Whether the source at the other end of a connection says anything.
#[derive(Debug)]
pub struct Silence {
    begun: Instant,
    /// Packets received by the last look, and when their number last grew.
    heard: (u64, Instant),
    looked_at: Instant,
    /// Since when it has owed something.
    owes_since: Option<Instant>,
    /// How often it was sent something that it has to acknowledge since it was last heard, and when
    /// it was last sent that.
    knocks: u32,
    knocked_at: Option<Instant>,
    /// Whether it was silent for so long that others were turned to, and has said nothing since.
    is_mute: bool,
}

/// What a look has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// The source has owed something and said nothing for [`SILENT_AFTER`], or for two round trips
    /// if that is more, and nothing since.
    pub is_mute: bool,
    /// Send it something that it has to acknowledge.
    pub knocks: bool,
}

impl Silence {
    /// A connection that was made now.
    pub fn new(now: Instant) -> Self {
        Self {
            begun: now,
            heard: (0, now),
            looked_at: now,
            owes_since: None,
            knocks: 0,
            knocked_at: None,
            is_mute: false,
        }
    }

    /// Looks at the source. `owes`: it owes something now. `heard` counts the packets that have
    /// come. `can_write`: it can be sent something. After half of the time, and on a young
    /// connection sooner, it is to be knocked at again and again.
    pub fn look(
        &mut self,
        now: Instant,
        owes: bool,
        rtt: Duration,
        can_write: bool,
        heard: impl FnOnce() -> u64,
    ) -> Look {
        let after = SILENT_AFTER.max(2 * rtt);
        let silence = self.lasts(now, owes, heard);
        self.is_mute |= silence >= after;
        let is_young = now.saturating_duration_since(self.begun) < YOUNG;
        let soon = LISTEN_EVERY.max(rtt / 2).min(after / 2);
        let knocks_after = if is_young { soon } else { after / 2 };
        Look {
            is_mute: self.is_mute,
            knocks: silence >= knocks_after && can_write && self.takes_knock(now),
        }
    }

    /// When to look again, while the source owes something.
    pub fn due(&self) -> Option<Instant> {
        self.owes_since.map(|_| self.looked_at + LISTEN_EVERY)
    }

    /// How long the source has owed something and said nothing. One that is mute owes a word.
    fn lasts(&mut self, now: Instant, owes: bool, heard: impl FnOnce() -> u64) -> Duration {
        if !owes && !self.is_mute {
            self.owes_since = None;
            return Duration::ZERO;
        }
        let owes_since = *self.owes_since.get_or_insert(now);
        if now.saturating_duration_since(self.looked_at) >= LISTEN_EVERY {
            self.looked_at = now;
            let heard = heard();
            if heard != self.heard.0 {
                (self.heard, self.knocks, self.is_mute) = ((heard, now), 0, false);
            }
        }
        now.saturating_duration_since(owes_since.max(self.heard.1))
    }

    /// Notes a knock if one is due. Returns whether it is.
    fn takes_knock(&mut self, now: Instant) -> bool {
        let is_time = self.knocked_at.is_none_or(|at| at + LISTEN_EVERY <= now);
        let takes = is_time && self.knocks < KNOCKS_MAX;
        if takes {
            self.knocks += 1;
            self.knocked_at = Some(now);
        }
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A source that owes nothing may say nothing.
    #[test]
    fn silence_is_counted_from_when_the_source_owes_something() {
        let now = Instant::now();
        let mut silence = Silence::new(now);
        assert_eq!(silence.lasts(now + 5000 * MS, false, || 9), Duration::ZERO);
        assert_eq!(silence.lasts(now + 5000 * MS, true, || 9), Duration::ZERO);
        assert_eq!(silence.lasts(now + 5150 * MS, true, || 9), 150 * MS);
        assert_eq!(silence.lasts(now + 5600 * MS, true, || 9), 600 * MS);
        assert_eq!(silence.lasts(now + 5700 * MS, true, || 10), Duration::ZERO);
        assert_eq!(silence.lasts(now + 5800 * MS, false, || 10), Duration::ZERO);
        assert_eq!(silence.lasts(now + 9000 * MS, true, || 10), Duration::ZERO);
    }

    #[test]
    fn knocks_repeat_until_something_is_heard_and_are_bounded() {
        let now = Instant::now();
        let mut silence = Silence::new(now);
        silence.lasts(now, true, || 0);
        assert!(silence.takes_knock(now + 250 * MS));
        assert!(!silence.takes_knock(now + 300 * MS), "one after each look");
        let later = (0..30).map(|look| now + (350 + 100 * look) * MS);
        let taken = later.filter(|at| silence.takes_knock(*at)).count();
        assert_eq!(taken, KNOCKS_MAX as usize - 1);
        silence.lasts(now + 9000 * MS, true, || 1);
        assert!(silence.takes_knock(now + 9000 * MS));
    }

    /// Nothing is awaited of it any more, so that it owes nothing.
    #[test]
    fn a_source_that_fell_silent_is_mute_until_it_speaks() {
        let now = Instant::now();
        let mut silence = Silence::new(now);
        let mut look = |after: u32, owes, heard| {
            let at = now + after * MS;
            silence.look(at, owes, 10 * MS, true, || heard).is_mute
        };
        assert!(!look(0, true, 0) && !look(499, true, 0));
        assert!(look(600, true, 0) && look(3000, false, 0));
        assert!(!look(3200, false, 1));
    }

    /// A path of which little is known is tried before half of the time has passed.
    #[test]
    fn a_young_connection_is_knocked_at_sooner_and_a_slow_one_has_more_time() {
        let now = Instant::now();
        let first = |begun_before: u32, rtt: u32| {
            let mut silence = Silence::new(now);
            let owes_at = now + begun_before * MS;
            let mut look =
                |after: u32| silence.look(owes_at + after * MS, true, rtt * MS, true, || 0);
            look(0);
            let looks: Vec<(u32, Look)> = (1..40).map(|at| (50 * at, look(50 * at))).collect();
            let first = |is: fn(&Look) -> bool| {
                let found = looks.iter().find(|(_, look)| is(look));
                found.map(|(at, _)| *at)
            };
            (first(|look| look.knocks), first(|look| look.is_mute))
        };
        assert_eq!(first(0, 20), (Some(100), Some(500)));
        assert_eq!(first(5000, 20), (Some(250), Some(500)));
        assert_eq!(first(0, 400), (Some(200), Some(800)));
        assert_eq!(first(5000, 400), (Some(400), Some(800)));
    }

    #[test]
    fn nobody_is_knocked_at_who_cannot_be_written_to() {
        let now = Instant::now();
        let mut silence = Silence::new(now);
        silence.look(now, true, 10 * MS, false, || 0);
        let mut look = |can_write| silence.look(now + 300 * MS, true, 10 * MS, can_write, || 0);
        assert!(!look(false).knocks);
        assert!(look(true).knocks);
    }
}
