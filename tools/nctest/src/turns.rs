//! Turns: contenders run one after the other, round after round, so that a slow phase of the
//! machine slows all of them.

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::Measurement;

use crate::cpu_time::CpuTime;

/// Processor time of a call, in the mean of a turn. `prepare` is outside of the timer.
pub fn time<I, O>(prepare: impl Fn() -> I, run: impl Fn(I) -> O, calls: usize) -> Duration {
    let inputs: Vec<I> = (0..calls).map(|_| prepare()).collect();
    let start = CpuTime.start();
    inputs
        .into_iter()
        .for_each(|input| drop(black_box(run(input))));
    CpuTime.end(start) / u32::try_from(calls).expect("few calls")
}

/// Calls that make a turn.
pub fn calls(once: Duration) -> usize {
    usize::try_from(TURN.as_nanos() / once.as_nanos().max(1))
        .unwrap_or(1)
        .clamp(1, 1000)
}

/// The middle one.
pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Turns of each contender.
pub const ROUNDS: usize = 11;
/// A contender's turn in a round, about.
const TURN: Duration = Duration::from_millis(6);
