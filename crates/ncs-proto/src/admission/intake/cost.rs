//! The work that viewers and newcomers request, and the rate of newcomers that follows from it.
//!
//! A server that can carry `S` viewers, and has `V` of them and `N` newcomers a second that cost
//! `c` seconds of viewing each, has to do this work, in seconds a second:
//!
//! ```text
//! demand = (V + c N) / S
//! ```
//!
//! Neither `S` nor `c` is known. So the rate is not computed from estimates of both; the measured
//! demand corrects it, with a cost `C` that is assumed:
//!
//! ```text
//! effort = V + C N                        viewers
//! room   = effort * limit / demand - V    viewers
//! rate   = room / C                       newcomers per second
//!        = N * limit / demand + V / C * (limit / demand - 1)
//! ```
//!
//! Where the demand is the limit, the rate stays as it is, whatever `C`. So it settles at
//! `(limit S - V) / c` although `S` and `c` are unknown, and falls with every viewer that comes.
//! `C` is the gain: beside many viewers, each step corrects `c / C` of an error of the rate. If `C`
//! is lower than `c`, the rate swings; if it is higher, the rate follows more slowly.
//!
//! Where few newcomers come to much room, the rate need not wait for this correction: by the least
//! cost of a newcomer, the room is surely there, and is given out within [`TAKES`].
//!
//! Three things keep this true where many newcomers come:
//!
//! - The load ends at one. Requests beyond it wait, so the growth of the standing wait, in seconds
//!   of work a second, is added to the load. While the wait falls, the load itself counts.
//! - A newcomer is a handshake and its first segments, and these may be far apart. Each of the two
//!   counts as half a newcomer when it is done, so clients that wait after their handshakes do not
//!   make newcomers look expensive now and cheap later.
//! - A viewer's further segments come later ([`SETTLES`]), so its viewing counts later too.

use std::time::Duration;

/// The cost of a newcomer that is assumed, in time of viewing: about the highest measured, so that
/// no correction is much larger than the error. On eight cores a handshake and a segment cost up to
/// 10 to 14 s, a handshake and two segments of 512 KiB about 10 s (ADR 0018). With 7 s instead of
/// 10 s, simulated servers take 4 to 10 % longer to fill.
const COST: Duration = Duration::from_secs(12);
/// The least cost, that of the first segment, and the time in which newcomers may take the room
/// that is left by it.
const COST_LEAST: Duration = Duration::from_secs(2);
const TAKES: Duration = Duration::from_secs(7);
/// The share of a newcomer that its handshake counts; the rest is its admission.
const HANDSHAKE: f64 = 0.5;
/// The time in which new viewers begin to request segments beyond their first.
const SETTLES: Duration = Duration::from_millis(1500);
/// The times over which work is averaged: short, to see newcomers, and long, because the load of
/// segments that begin together swings.
const MEMORIES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(4)];
/// Most work, in seconds a second, by which the wait grows; a stall is no work.
const GROWS_MOST: f64 = 4.0;
/// The least demand that is taken for true.
const DEMAND_LEAST: f64 = 0.01;

/// What a look has found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// The share of its time that the server has worked.
    pub(super) load: f64,
    /// The standing wait, in seconds of work.
    pub(super) wait: f64,
    pub(super) viewers: f64,
    /// Per second.
    pub(super) admissions: f64,
    pub(super) handshakes: f64,
}

/// Demand and effort, averaged over each of the times.
#[derive(Debug, Default)]
pub(super) struct Cost {
    means: [Mean; MEMORIES.len()],
    /// Viewers that request segments beyond their first.
    settled: f64,
    /// The wait, followed at the speed of work.
    wait: f64,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Mean {
    load: f64,
    /// The load, and the growth of the wait.
    work: f64,
    /// Those that request segments beyond their first.
    viewers: f64,
    /// Per second.
    newcomers: f64,
}

impl Cost {
    pub(super) fn note(&mut self, passed: Duration, sample: Sample) {
        let seconds = passed.as_secs_f64();
        let grown = (sample.wait - self.wait).clamp(-seconds, GROWS_MOST * seconds);
        self.wait += grown;
        let settling = (sample.viewers - self.settled) * weight(passed, SETTLES);
        self.settled = (self.settled + settling).min(sample.viewers);
        let newcomers = HANDSHAKE * sample.handshakes + (1.0 - HANDSHAKE) * sample.admissions;
        let now = Mean {
            load: sample.load.clamp(0.0, 1.0),
            work: sample.load.clamp(0.0, 1.0) + grown / seconds,
            viewers: self.settled,
            newcomers,
        };
        for (mean, memory) in self.means.iter_mut().zip(MEMORIES) {
            mean.follow(now, weight(passed, memory));
        }
    }

    /// The means over each of the times.
    pub(super) fn means(&self) -> impl Iterator<Item = Mean> {
        self.means.into_iter()
    }

    /// The highest of the mean loads.
    pub(super) fn load(&self) -> f64 {
        self.means().map(|mean| mean.load).fold(0.0, f64::max)
    }
}

impl Mean {
    fn follow(&mut self, now: Self, weight: f64) {
        let follow = |mean: &mut f64, now: f64| *mean += (now - *mean) * weight;
        follow(&mut self.load, now.load);
        follow(&mut self.work, now.work);
        follow(&mut self.viewers, now.viewers);
        follow(&mut self.newcomers, now.newcomers);
    }

    /// Seconds of work that are requested per second; while a queue empties, those that are done.
    pub(super) fn demand(&self) -> f64 {
        self.work.max(self.load).max(DEMAND_LEAST)
    }

    /// The admissions per second that take the load to this limit, beside so many viewers.
    pub(super) fn rate(&self, limit: f64, viewers: f64) -> f64 {
        let rate = |cost: Duration, within: Duration| {
            let effort = self.viewers + self.newcomers * cost.as_secs_f64();
            let room = (effort * limit / self.demand() - viewers).max(0.0);
            room / within.as_secs_f64()
        };
        rate(COST, COST).max(rate(COST_LEAST, TAKES))
    }
}

/// The weight of the last time in a mean over this memory.
fn weight(passed: Duration, memory: Duration) -> f64 {
    1.0 - (-passed.as_secs_f64() / memory.as_secs_f64()).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newcomers_get_the_time_that_is_left_whatever_they_cost() {
        let (capacity, viewers, limit, step) = (1000.0, 500.0, 0.9, Duration::from_millis(20));
        for seconds in [2.5, 5.0, 12.0] {
            let (mut cost, mut rate) = (Cost::default(), 10.0);
            for _ in 0..3000 {
                let sample = Sample {
                    load: (viewers + seconds * rate) / capacity,
                    wait: 0.0,
                    viewers,
                    admissions: rate,
                    handshakes: rate,
                };
                cost.note(step, sample);
                let rates = cost.means().map(|mean| mean.rate(limit, viewers));
                rate += (rates.fold(f64::MAX, f64::min) - rate) / 25.0;
            }
            let fits = (limit * capacity - viewers) / seconds;
            assert!(
                (rate / fits - 1.0).abs() < 0.01,
                "{rate} a second, {fits} would fit"
            );
        }
    }
}
