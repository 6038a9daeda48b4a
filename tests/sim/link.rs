//! One direction of a path: the fate of datagrams, and the arrival of stream bytes.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The properties of a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conditions {
    pub(crate) delay: Duration,
    /// Additional random delay of each datagram: more than the gap between two of them reorders.
    pub(crate) jitter: Duration,
    /// Share of packets that are lost.
    pub(crate) loss: f64,
    /// Share of packets that are duplicated.
    pub(crate) double: f64,
    pub(crate) bytes_per_second: u64,
    /// The queue at the bottleneck that the sender's congestion control permits.
    pub(crate) queue: Duration,
}

impl Default for Conditions {
    fn default() -> Self {
        let (delay, queue) = (Duration::from_millis(25), Duration::from_millis(5));
        Self {
            delay,
            jitter: Duration::ZERO,
            loss: 0.0,
            double: 0.0,
            bytes_per_second: 2_000_000,
            queue,
        }
    }
}

pub(crate) struct Link {
    conditions: Conditions,
    rng: StdRng,
    free_at: Instant,
    /// Streams are in order: none of their bytes arrive before earlier ones.
    ordered_at: Instant,
}

impl Link {
    pub(crate) fn new(conditions: Conditions, seed: u64, now: Instant) -> Self {
        Self {
            conditions,
            rng: StdRng::seed_from_u64(seed),
            free_at: now,
            ordered_at: now,
        }
    }

    pub(crate) fn set_rate(&mut self, bytes_per_second: u64) {
        self.conditions.bytes_per_second = bytes_per_second;
    }

    /// When the sender's congestion control permits the next block.
    pub(crate) fn has_room_at(&self) -> Instant {
        self.free_at - self.conditions.queue
    }

    /// The arrival times of a datagram that is sent now: none, one or two.
    pub(crate) fn datagram(&mut self, now: Instant, bytes: usize) -> Vec<Instant> {
        let leaves = self.transmit(now, bytes);
        let copies = if self.rng.random_bool(self.conditions.double) {
            2
        } else {
            1
        };
        let copies = if self.rng.random_bool(self.conditions.loss) {
            0
        } else {
            copies
        };
        (0..copies)
            .map(|_| {
                leaves + self.conditions.delay + self.conditions.jitter.mul_f64(self.rng.random())
            })
            .collect()
    }

    /// When stream bytes that are sent now arrive; a lost packet is resent after a round trip.
    pub(crate) fn ordered(&mut self, now: Instant, bytes: usize) -> Instant {
        let mut arrives = self.transmit(now, bytes) + self.conditions.delay;
        while self.rng.random_bool(self.conditions.loss) {
            arrives += self.conditions.delay * 2;
        }
        self.ordered_at = self.ordered_at.max(arrives);
        self.ordered_at
    }

    fn transmit(&mut self, now: Instant, bytes: usize) -> Instant {
        let time =
            Duration::from_secs_f64((bytes + 60) as f64 / self.conditions.bytes_per_second as f64);
        self.free_at = self.free_at.max(now) + time;
        self.free_at
    }
}
