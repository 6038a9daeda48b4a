//! Filters over samples: the shortest round trip, the best rate, the share of losses.

use std::time::{Duration, Instant};

/// The shortest round trip of the last seconds: at least one span, at most two.
#[derive(Debug, Clone, Default)]
pub(in crate::endpoint) struct Floor {
    began: Option<Instant>,
    current: Option<Duration>,
    previous: Option<Duration>,
    kept: bool,
}

impl Floor {
    pub(in crate::endpoint) fn add(&mut self, now: Instant, sample: Duration) {
        let age = now.saturating_duration_since(*self.began.get_or_insert(now));
        if age > SPAN && !self.kept {
            self.began = Some(now);
            self.previous = self.current.take();
        }
        self.current = Some(self.current.map_or(sample, |shortest| shortest.min(sample)));
    }

    pub(in crate::endpoint) fn get(&self) -> Option<Duration> {
        self.current.into_iter().chain(self.previous).min()
    }

    /// Raises the shortest round trip.
    pub(super) fn raise(&mut self, now: Instant, by: Duration) {
        (self.began, self.current, self.previous) =
            (Some(now), self.get().map(|shortest| shortest + by), None);
    }

    /// Whether to stop forgetting: beside flows that never let the queue empty, a forgotten floor
    /// cannot be measured again.
    pub(super) const fn keep(&mut self, kept: bool) {
        self.kept = kept;
    }
}

/// A longer route is accepted after one to two spans.
const SPAN: Duration = Duration::from_secs(10);

/// The highest of the last rates.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Peak {
    last: [f64; ROUNDS],
    next: usize,
}

impl Peak {
    /// Adds a round's rate. If the sender had too little to send, it is only a lower bound.
    pub(super) fn push(&mut self, rate: f64, app_limited: bool) {
        if app_limited && rate < self.max() {
            return;
        }
        self.last[self.next] = rate;
        self.next = (self.next + 1) % ROUNDS;
    }

    pub(super) fn max(&self) -> f64 {
        self.last.iter().copied().fold(0.0, f64::max)
    }
}

const ROUNDS: usize = 10;

/// Bytes acknowledged and lost.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) acked: f64,
    pub(super) lost: f64,
}

impl Tally {
    pub(super) fn share(&self) -> f64 {
        let all = self.acked + self.lost;
        if all > 0.0 { self.lost / all } else { 0.0 }
    }

    /// The variance of the share. Without any counts it is large.
    pub(super) fn variance(&self) -> f64 {
        let packets = (self.acked + self.lost) / PACKET;
        // Laplace's rule of succession, so that a few packets without a loss prove nothing.
        let share = (self.lost / PACKET + 1.0) / (packets + 2.0);
        share * (1.0 - share) / (packets + 2.0)
    }

    /// Reduces the weight of old counts.
    pub(super) fn fade(&mut self) {
        self.acked *= FADE;
        self.lost *= FADE;
    }
}

/// The approximate size of a packet.
const PACKET: f64 = 1250.0;
const FADE: f64 = 0.9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_forgets_after_one_to_two_spans() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut floor = Floor::default();
        floor.add(at(0), Duration::from_millis(50));
        for second in 1..=SPAN.as_secs() + 1 {
            floor.add(at(second), Duration::from_millis(80));
        }
        assert_eq!(
            floor.get(),
            Some(Duration::from_millis(50)),
            "of the previous span"
        );
        floor.add(at(2 * SPAN.as_secs() + 2), Duration::from_millis(80));
        assert_eq!(floor.get(), Some(Duration::from_millis(80)));
    }

    #[test]
    fn a_sender_with_little_to_send_does_not_lower_the_rate() {
        let mut rates = Peak::default();
        rates.push(100.0, false);
        (0..20).for_each(|_| rates.push(1.0, true));
        assert_eq!(rates.max(), 100.0);
        (0..20).for_each(|_| rates.push(1.0, false));
        assert_eq!(rates.max(), 1.0);
    }

    #[test]
    fn few_packets_prove_little() {
        let few = Tally {
            acked: 10.0 * PACKET,
            lost: 0.0,
        };
        let many = Tally {
            acked: 1000.0 * PACKET,
            lost: 0.0,
        };
        assert!(few.variance().sqrt() > 0.05 && many.variance().sqrt() < 0.002);
    }
}
