//! Contenders take turns.

use std::time::{Duration, Instant};

use ncserverd::bench::clock::Lap;

/// Does the work so many times and says what the measured part of it took.
pub(super) type Runner = Box<dyn FnMut(u32) -> Lap>;

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Rounds for each contender.
    pub(super) rounds: usize,
    /// A round repeats the work until it takes this long.
    pub(super) round: Duration,
    /// Maximum time of a contender, after which it takes part in no further rounds once it has had
    /// three.
    pub(super) case_max: Duration,
}

/// What a contender has done.
#[derive(Debug, Clone, Default)]
pub(super) struct Laps {
    /// Times that the work was done in each round.
    pub(super) repeats: u32,
    /// The rounds.
    pub(super) laps: Vec<Lap>,
}

impl Pace {
    /// The laps of each runner. An uncounted round first finds how often the work fits.
    pub(super) fn run(&self, runners: &mut [impl FnMut(u32) -> Lap]) -> Vec<Laps> {
        let repeats = |runner: &mut _| Laps {
            repeats: self.repeats(runner),
            laps: Vec::new(),
        };
        let mut results: Vec<Laps> = runners.iter_mut().map(repeats).collect();
        let mut spent = vec![Duration::ZERO; runners.len()];
        for round in 0..self.rounds {
            for turn in 0..runners.len() {
                let index = (round + turn) % runners.len();
                if round >= ROUNDS_MIN && spent[index] > self.case_max {
                    continue;
                }
                let start = Instant::now();
                let lap = runners[index](results[index].repeats);
                results[index].laps.push(lap);
                spent[index] += start.elapsed();
            }
        }
        results
    }

    fn repeats(&self, runner: &mut impl FnMut(u32) -> Lap) -> u32 {
        let mut repeats = 1;
        loop {
            let start = Instant::now();
            runner(repeats);
            let elapsed = start.elapsed();
            if elapsed * 2 >= self.round {
                let scale = self.round.as_secs_f64() / elapsed.as_secs_f64();
                return scaled(repeats, scale);
            }
            repeats = repeats.saturating_mul(2);
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a float stops at the limits"
)]
fn scaled(repeats: u32, scale: f64) -> u32 {
    ((f64::from(repeats) * scale).round() as u32).max(1)
}

const ROUNDS_MIN: usize = 3;
