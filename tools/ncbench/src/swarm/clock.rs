//! What one viewer plays and when: decided from its seed and the time alone.

use std::time::{Duration, Instant};

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// One stretch of the stream, played as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// The object, and the bytes of it from `offset` to `end`, or to its end.
    pub(super) path: String,
    pub(super) offset: u64,
    pub(super) end: Option<u64>,
    pub(super) duration: Duration,
}

/// When a viewer asks for what it plays, and when that has to be there.
///
/// A viewer that begins at t asks for its i-th segment when those before it have played for their
/// time, at t + d(0) + … + d(i-1), and plays two durations behind that: a segment is late if it
/// cannot be decoded two durations after it was due to be asked for.
#[derive(Debug, Clone)]
pub(super) struct Playout {
    ask_at: Instant,
    buffer: Duration,
    /// Index of the segment that is asked for next.
    pub(super) position: usize,
}

impl Playout {
    /// Begins now with the segment at `position`, which lasts so long.
    pub(super) fn new(now: Instant, position: usize, duration: Duration) -> Self {
        Self {
            ask_at: now,
            buffer: BUFFERED * duration,
            position,
        }
    }

    /// When the next segment is asked for.
    pub(super) fn ask_at(&self) -> Instant {
        self.ask_at
    }

    /// When it has to be decodable.
    pub(super) fn due(&self) -> Instant {
        self.ask_at + self.buffer
    }

    /// For how long its blocks are of use: until it is due. One that is late already is waited for
    /// as long as another, for it is shown as soon as it comes.
    pub(super) fn patience(&self, now: Instant) -> Duration {
        let left = self.due().saturating_duration_since(now);
        if left.is_zero() { self.buffer } else { left }
    }

    /// Goes on to the one behind.
    pub(super) fn advance(&mut self, duration: Duration) {
        self.ask_at += duration;
        self.position += 1;
    }
}

/// What chance has a viewer do.
#[derive(Debug)]
pub(super) struct Whims {
    random: Xoshiro256PlusPlus,
    stay: Option<Duration>,
    seek: Option<Duration>,
}

impl Whims {
    /// Of this viewer. `stay` and `seek` are means: how long it stays, and until it plays something
    /// else.
    pub(super) fn new(
        seed: u64,
        number: u64,
        stay: Option<Duration>,
        seek: Option<Duration>,
    ) -> Self {
        let random =
            Xoshiro256PlusPlus::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self { random, stay, seek }
    }

    /// For how long it stays from now on.
    pub(super) fn stays(&mut self) -> Option<Duration> {
        self.stay.map(|mean| self.wait(mean))
    }

    /// For how long it plays on before it seeks.
    pub(super) fn plays(&mut self) -> Option<Duration> {
        self.seek.map(|mean| self.wait(mean))
    }

    /// One of so many.
    pub(super) fn choose(&mut self, count: usize) -> usize {
        self.random.random_range(0..count.max(1))
    }

    /// A random part of this time.
    pub(super) fn part_of(&mut self, time: Duration) -> Duration {
        time.mul_f64(self.random.random())
    }

    /// Whether it is one of this share.
    pub(super) fn is_among(&mut self, share: f64) -> bool {
        self.random.random_bool(share.clamp(0.0, 1.0))
    }

    /// Exponentially distributed, as the time between events is that know nothing of each other.
    fn wait(&mut self, mean: Duration) -> Duration {
        let uniform: f64 = self.random.random();
        mean.mul_f64(-(1.0 - uniform).max(f64::MIN_POSITIVE).ln())
            .min(LONGEST)
    }
}

/// Durations between asking and playing.
const BUFFERED: u32 = 2;
/// Nobody waits for longer than this.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_due_two_durations_after_they_are_asked_for() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut playout = Playout::new(now, 7, 5 * second);
        assert_eq!(
            (playout.ask_at(), playout.due(), playout.position),
            (now, now + 10 * second, 7)
        );
        assert_eq!(playout.patience(now + 3 * second), 7 * second);
        assert_eq!(playout.patience(now + 10 * second), 10 * second);
        playout.advance(5 * second);
        playout.advance(4 * second);
        assert_eq!(
            (playout.ask_at(), playout.due(), playout.position),
            (now + 9 * second, now + 19 * second, 9)
        );
    }

    #[test]
    fn whims_come_of_the_seed_and_have_their_mean() {
        let mean = Duration::from_secs(10);
        let waits = |seed, number| {
            let mut whims = Whims::new(seed, number, Some(mean), None);
            (0..4000)
                .map(|_| whims.stays().unwrap().as_secs_f64())
                .collect::<Vec<_>>()
        };
        assert_eq!(waits(1, 2), waits(1, 2));
        assert!(waits(1, 2) != waits(1, 3) && waits(1, 2) != waits(2, 2));
        let average = waits(1, 2).iter().sum::<f64>() / 4000.0;
        assert!((9.0..11.0).contains(&average), "{average}");
        assert_eq!(Whims::new(1, 1, None, None).plays(), None);
    }
}
