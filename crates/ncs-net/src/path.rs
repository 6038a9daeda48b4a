//! One direction of a path: a bottleneck with a drop-tail queue, then a delay, then random effects.
//!
//! Decides without sockets or clocks: time is an argument, and randomness is seeded. Used by the
//! simulator of the congestion controllers, and by `ncbench paths`.

use std::time::{Duration, Instant};

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// The properties of a direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// The rate of the bottleneck; infinity for none.
    pub bits_per_second: f64,
    /// The maximum queue. A packet that finds a longer one is dropped.
    pub buffer: Duration,
    /// The propagation delay after the bottleneck.
    pub delay: Duration,
    /// Probability of loss after the bottleneck, 0 to 1.
    pub loss: f64,
    /// Probability that a packet that is not lost is delayed by `reorder_by`, 0 to 1.
    pub reorder: f64,
    /// See `reorder`.
    pub reorder_by: Duration,
    /// Probability that a packet that is not lost arrives twice, 0 to 1.
    pub duplicate: f64,
}

impl Default for Shape {
    /// A path without any effect.
    fn default() -> Self {
        Self {
            bits_per_second: f64::INFINITY,
            buffer: Duration::ZERO,
            delay: Duration::ZERO,
            loss: 0.0,
            reorder: 0.0,
            reorder_by: Duration::ZERO,
            duplicate: 0.0,
        }
    }
}

/// A number is out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a probability must be from 0 to 1, and a rate must be above 0")]
pub struct InvalidShape;

/// Counts of packets, and samples of the queue.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    /// Offered to the bottleneck.
    pub offered: u64,
    /// Dropped because its queue was full.
    pub overflowed: u64,
    /// Sent by the bottleneck.
    pub bytes: u64,
    /// Lost at random.
    pub lost: u64,
    /// The queue in milliseconds, sampled every millisecond.
    queue: Vec<f32>,
}

impl Counts {
    /// The queue over time in milliseconds: its mean and 95th percentile.
    pub fn queue(&self) -> (f64, f64) {
        let mut sorted = self.queue.clone();
        sorted.sort_by(f32::total_cmp);
        let sum: f64 = sorted.iter().map(|length| f64::from(*length)).sum();
        let mean = sum / sorted.len().max(1) as f64;
        (
            mean,
            sorted
                .get(sorted.len() * 95 / 100)
                .copied()
                .unwrap_or_default()
                .into(),
        )
    }
}

/// The state of one direction of a path.
#[derive(Debug)]
pub struct PathDirection {
    shape: Shape,
    dice: Xoshiro256PlusPlus,
    /// When the bottleneck will have sent its queue.
    free: Instant,
    sampled: Instant,
    counts: Counts,
}

impl PathDirection {
    /// An idle direction.
    pub fn new(shape: Shape, seed: u64, now: Instant) -> Result<Self, InvalidShape> {
        let possible = |probability: f64| (0.0..=1.0).contains(&probability);
        if !possible(shape.loss)
            || !possible(shape.reorder)
            || !possible(shape.duplicate)
            || shape.bits_per_second.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater)
        {
            return Err(InvalidShape);
        }
        let dice = Xoshiro256PlusPlus::seed_from_u64(seed);
        Ok(Self {
            shape,
            dice,
            free: now,
            sampled: now,
            counts: Counts::default(),
        })
    }

    /// Changes rate and delay; queued packets keep theirs.
    pub fn change(&mut self, bits_per_second: f64, delay: Duration) {
        (self.shape.bits_per_second, self.shape.delay) = (bits_per_second, delay);
    }

    /// Takes a packet of this size, and returns its arrivals: none, one or two.
    pub fn take(&mut self, now: Instant, bytes: usize) -> impl Iterator<Item = Instant> + use<> {
        self.observe(now);
        self.counts.offered += 1;
        let waits = self.free.saturating_duration_since(now);
        if waits > self.shape.buffer {
            self.counts.overflowed += 1;
            return [None, None].into_iter().flatten();
        }
        self.counts.bytes += bytes as u64;
        self.free =
            now + waits + Duration::from_secs_f64(bytes as f64 * 8.0 / self.shape.bits_per_second);
        // Every packet draws every random number, so that one packet's fate does not affect the
        // others.
        let [lost, late, twice] = [self.shape.loss, self.shape.reorder, self.shape.duplicate]
            .map(|probability| self.dice.random_bool(probability));
        self.counts.lost += u64::from(lost);
        let arrives = self.free + self.shape.delay;
        let first = arrives
            + if late {
                self.shape.reorder_by
            } else {
                Duration::ZERO
            };
        [
            (!lost).then_some(first),
            (twice && !lost).then_some(arrives),
        ]
        .into_iter()
        .flatten()
    }

    /// Counts since the last call.
    pub fn counts(&mut self, now: Instant) -> Counts {
        self.observe(now);
        std::mem::take(&mut self.counts)
    }

    fn observe(&mut self, now: Instant) {
        while self.sampled < now {
            self.counts.queue.push(
                self.free
                    .saturating_duration_since(self.sampled)
                    .as_secs_f32()
                    * 1e3,
            );
            self.sampled += Duration::from_millis(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn packets_wait_for_those_before_them_and_a_full_queue_drops() {
        let start = Instant::now();
        let shape = Shape {
            bits_per_second: 1e6,
            buffer: 25 * MS,
            delay: 5 * MS,
            ..Shape::default()
        };
        let mut direction = PathDirection::new(shape, 0, start).unwrap();
        // Ten milliseconds each.
        let mut arrives = |at| {
            direction
                .take(at, 1250)
                .map(|due| due - start)
                .collect::<Vec<_>>()
        };
        assert_eq!(arrives(start), [15 * MS]);
        assert_eq!(arrives(start), [25 * MS]);
        assert_eq!(arrives(start), [35 * MS]);
        assert_eq!(
            arrives(start),
            Vec::new() as Vec<Duration>,
            "30 ms of queue are more than fit"
        );
        assert_eq!(arrives(start + 10 * MS), [45 * MS]);
        let counts = direction.counts(start + 50 * MS);
        assert_eq!(
            (counts.offered, counts.overflowed, counts.bytes, counts.lost),
            (5, 1, 5000, 0)
        );
        let (mean, most) = counts.queue();
        assert!(
            (14.0..15.0).contains(&mean) && (25.0..=30.0).contains(&most),
            "{mean} {most}"
        );
    }

    #[test]
    fn chance_loses_reorders_and_doubles_its_share() {
        let start = Instant::now();
        let shape = Shape {
            loss: 0.1,
            reorder: 0.2,
            reorder_by: MS,
            duplicate: 0.3,
            ..Shape::default()
        };
        let fates = |seed| {
            let mut direction = PathDirection::new(shape, seed, start).unwrap();
            (0..10_000)
                .map(|_| {
                    direction
                        .take(start, 1)
                        .map(|due| due - start)
                        .collect::<Vec<_>>()
                })
                .collect::<Vec<_>>()
        };
        let all = fates(3);
        assert!(all == fates(3) && all != fates(4));
        let share = |test: fn(&Vec<Duration>) -> bool| {
            all.iter().filter(|fate| test(fate)).count() as f64 / 10_000.0
        };
        assert!((share(|fate| fate.is_empty()) - 0.1).abs() < 0.01);
        assert!((share(|fate| fate.first() == Some(&MS)) - 0.18).abs() < 0.015);
        assert!((share(|fate| fate.len() == 2) - 0.27).abs() < 0.015);
    }

    #[test]
    fn impossible_shapes_are_refused() {
        for shape in [
            Shape {
                loss: 1.1,
                ..Shape::default()
            },
            Shape {
                duplicate: f64::NAN,
                ..Shape::default()
            },
            Shape {
                bits_per_second: 0.0,
                ..Shape::default()
            },
        ] {
            assert_eq!(
                PathDirection::new(shape, 0, Instant::now()).err(),
                Some(InvalidShape)
            );
        }
    }
}
