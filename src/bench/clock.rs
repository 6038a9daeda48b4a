//! The two clocks.

use std::ops::{Add, AddAssign};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// What a piece of work took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lap {
    /// Processor time.
    pub cpu: Duration,
    /// Time on the wall.
    pub wall: Duration,
}

impl Lap {
    /// Of this thread.
    pub fn thread(work: impl FnOnce()) -> Self {
        Self::on(ClockId::ThreadCPUTime, work)
    }

    /// Of all threads of this process.
    pub fn process(work: impl FnOnce()) -> Self {
        Self::on(ClockId::ProcessCPUTime, work)
    }

    fn on(clock: ClockId, work: impl FnOnce()) -> Self {
        let (wall, cpu) = (Instant::now(), now(clock));
        work();
        Self { cpu: now(clock).saturating_sub(cpu), wall: wall.elapsed() }
    }
}

impl Add for Lap {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { cpu: self.cpu + other.cpu, wall: self.wall + other.wall }
    }
}

impl AddAssign for Lap {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

fn now(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).expect("these clocks count from zero")
}
