//! A competitor for tests: BBR's first version as Linux sends by it, which quinn's is not (quinn
//! paces by the window alone, so that its BBR fills the queue).
//!
//! quinn offers only a window. The rate of pacing is expressed by it: the gain times the rate times
//! the round trip, and never more than two path's contents.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory};
use quinn_proto::RttEstimator;

/// Makes a [`Bbr`] for each path.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct BbrConfig;

impl ControllerFactory for BbrConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Bbr::new(now, f64::from(current_mtu)))
    }
}

#[derive(Debug, Clone)]
struct Bbr {
    mtu: f64,
    phase: Phase,
    /// Bytes acknowledged so far, and since when.
    delivered: f64,
    delivered_at: Instant,
    /// Of packets in flight: when they were sent, what had been delivered then, and when that was.
    sent: VecDeque<(Instant, f64, Instant)>,
    /// The best rate of each of the last rounds, in bytes per second.
    rates: VecDeque<f64>,
    round_ends: f64,
    shortest: (Duration, Instant),
    smoothed: Duration,
    in_flight: f64,
    lost: bool,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Startup {
        best: f64,
        flat: u32,
    },
    Drain,
    /// The number of a phase of the cycle, and its start.
    Probe(usize, Instant),
    /// Its end, once little is in flight.
    ShortestRound(Option<Instant>),
}

impl Bbr {
    fn new(now: Instant, mtu: f64) -> Self {
        Self {
            mtu,
            phase: Phase::Startup { best: 0.0, flat: 0 },
            delivered: 0.0,
            delivered_at: now,
            sent: VecDeque::new(),
            rates: VecDeque::from([0.0]),
            round_ends: 0.0,
            shortest: (Duration::MAX, now),
            smoothed: Duration::ZERO,
            in_flight: 0.0,
            lost: false,
        }
    }

    fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// What the path contains at that rate.
    fn content(&self) -> f64 {
        self.rate() * self.shortest.0.as_secs_f64()
    }

    fn gain(&self) -> f64 {
        match self.phase {
            Phase::Startup { .. } => STARTUP_GAIN,
            Phase::Drain => 1.0 / STARTUP_GAIN,
            Phase::Probe(number, _) => GAINS[number],
            Phase::ShortestRound(_) => 1.0,
        }
    }

    /// A phase to begin with, of all but the one that sends less.
    fn any_phase(&self) -> usize {
        // What has arrived so far is as good as a random number.
        [0, 2, 3, 4, 5, 6, 7][(bytes(self.delivered) / 97 % 7) as usize]
    }

    fn end_round(&mut self) {
        let rate = self.rate();
        if let Phase::Startup { best, flat } = &mut self.phase {
            if rate > *best * 1.25 {
                (*best, *flat) = (rate, 0);
            } else {
                *flat += 1;
            }
            if *flat >= 3 {
                self.phase = Phase::Drain;
            }
        }
        self.rates.push_front(0.0);
        self.rates.truncate(ROUNDS);
    }

    fn step(&mut self, now: Instant) {
        let (content, any_phase) = (self.content(), self.any_phase());
        if now.saturating_duration_since(self.shortest.1) > SHORTEST_LASTS
            && !matches!(self.phase, Phase::ShortestRound(_))
        {
            self.phase = Phase::ShortestRound(None);
        }
        match &mut self.phase {
            Phase::Startup { .. } => {}
            Phase::Drain => {
                if self.in_flight <= content {
                    self.phase = Phase::Probe(any_phase, now);
                }
            }
            Phase::Probe(number, since) => {
                let lasted = now.saturating_duration_since(*since) > self.shortest.0;
                let over = match *number {
                    0 => lasted && (self.lost || self.in_flight >= 1.25 * content),
                    1 => lasted || self.in_flight <= content,
                    _ => lasted,
                };
                if over {
                    (*number, *since) = ((*number + 1) % GAINS.len(), now);
                    self.lost = false;
                }
            }
            Phase::ShortestRound(until) => match *until {
                None if self.in_flight <= 5.0 * self.mtu => *until = Some(now + SHORTEST_TAKES),
                Some(until) if now >= until => {
                    self.shortest.1 = now;
                    self.phase = Phase::Probe(any_phase, now);
                }
                _ => {}
            },
        }
    }
}

impl Controller for Bbr {
    fn on_sent(&mut self, now: Instant, _bytes: u64, _last_packet_number: u64) {
        if self.sent.is_empty() {
            self.delivered_at = now;
        }
        self.sent
            .push_back((now, self.delivered, self.delivered_at));
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        _app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.delivered += bytes as f64;
        self.delivered_at = now;
        self.smoothed = rtt.get();
        let sample = now.saturating_duration_since(sent);
        let old = now.saturating_duration_since(self.shortest.1) > SHORTEST_LASTS;
        if sample < self.shortest.0 || old && matches!(self.phase, Phase::ShortestRound(_)) {
            self.shortest = (sample, now);
        }
        while self.sent.get(1).is_some_and(|(at, ..)| *at <= sent) {
            self.sent.pop_front();
        }
        let Some((at, before, before_at)) = self.sent.front().copied() else {
            return;
        };
        let took = now
            .saturating_duration_since(before_at)
            .max(at.saturating_duration_since(before_at));
        if took >= self.shortest.0 {
            let rate = (self.delivered - before) / took.as_secs_f64();
            self.rates[0] = self.rates[0].max(rate);
        }
        if before >= self.round_ends {
            self.round_ends = self.delivered;
            self.end_round();
        }
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, _: bool, _: Option<u64>) {
        self.in_flight = in_flight as f64;
        self.step(now);
    }

    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, lost_bytes: u64) {
        self.lost |= lost_bytes > 0;
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = f64::from(new_mtu);
    }

    fn window(&self) -> u64 {
        let content = self.content();
        let window = match self.phase {
            Phase::ShortestRound(_) => 4.0 * self.mtu,
            Phase::Startup { .. } if content == 0.0 => 10.0 * self.mtu,
            Phase::Startup { .. } => STARTUP_GAIN * content,
            _ => {
                let paced = self.gain() * self.rate() * self.smoothed.as_secs_f64();
                paced.min(2.0 * content) + 2.0 * self.mtu
            }
        };
        bytes(window.max(4.0 * self.mtu))
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        12_000
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts are positive and far below 2^53"
)]
const fn bytes(count: f64) -> u64 {
    count as u64
}

const STARTUP_GAIN: f64 = 2.885;
const GAINS: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const ROUNDS: usize = 10;
const SHORTEST_LASTS: Duration = Duration::from_secs(10);
const SHORTEST_TAKES: Duration = Duration::from_millis(200);
