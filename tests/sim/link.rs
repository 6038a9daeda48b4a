//! One direction of a path: what it does to datagrams, and when bytes of streams arrive.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// What a path is like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conditions {
    pub(crate) delay: Duration,
    /// Further delay, drawn for each datagram: more than the gap between two of them reorders.
    pub(crate) jitter: Duration,
    /// Share of the packets lost.
    pub(crate) loss: f64,
    /// Share of the packets doubled.
    pub(crate) double: f64,
    pub(crate) bytes_per_second: u64,
    /// What the sender's congestion control lets wait at the bottleneck.
    pub(crate) queue: Duration,
}

impl Default for Conditions {
    fn default() -> Self {
        let (delay, queue) = (Duration::from_millis(25), Duration::from_millis(5));
        Self { delay, jitter: Duration::ZERO, loss: 0.0, double: 0.0, bytes_per_second: 2_000_000, queue }
    }
}

pub(crate) struct Link {
    conditions: Conditions,
    rng: StdRng,
    free_at: Instant,
    /// Streams are in order: nothing of them arrives before what was sent earlier.
    ordered_at: Instant,
}

impl Link {
    pub(crate) fn new(conditions: Conditions, seed: u64, now: Instant) -> Self {
        Self { conditions, rng: StdRng::seed_from_u64(seed), free_at: now, ordered_at: now }
    }

    pub(crate) fn set_rate(&mut self, bytes_per_second: u64) {
        self.conditions.bytes_per_second = bytes_per_second;
    }

    /// When the sender's congestion control would let the next block go.
    pub(crate) fn has_room_at(&self) -> Instant {
        self.free_at - self.conditions.queue
    }

    /// When a datagram that is sent now arrives: never, once, or twice.
    pub(crate) fn datagram(&mut self, now: Instant, bytes: usize) -> Vec<Instant> {
        let leaves = self.transmit(now, bytes);
        let copies = if self.rng.random_bool(self.conditions.double) { 2 } else { 1 };
        let copies = if self.rng.random_bool(self.conditions.loss) { 0 } else { copies };
        (0..copies).map(|_| leaves + self.conditions.delay + self.conditions.jitter.mul_f64(self.rng.random())).collect()
    }

    /// When bytes of a stream that are sent now arrive; a lost packet comes again a round trip later.
    pub(crate) fn ordered(&mut self, now: Instant, bytes: usize) -> Instant {
        let mut arrives = self.transmit(now, bytes) + self.conditions.delay;
        while self.rng.random_bool(self.conditions.loss) {
            arrives += self.conditions.delay * 2;
        }
        self.ordered_at = self.ordered_at.max(arrives);
        self.ordered_at
    }

    fn transmit(&mut self, now: Instant, bytes: usize) -> Instant {
        let time = Duration::from_secs_f64((bytes + 60) as f64 / self.conditions.bytes_per_second as f64);
        self.free_at = self.free_at.max(now) + time;
        self.free_at
    }
}
