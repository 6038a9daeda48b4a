//! Wall clock and CPU clock.

use std::ops::{Add, AddAssign};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The time of a piece of work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lap {
    /// CPU time.
    pub cpu: Duration,
    /// Wall-clock time.
    pub wall: Duration,
}

impl Lap {
    /// Measures the CPU time of this thread.
    pub fn thread(work: impl FnOnce()) -> Self {
        Self::on(ClockId::ThreadCPUTime, work)
    }

    /// Measures the CPU time of all threads of this process.
    pub fn process(work: impl FnOnce()) -> Self {
        Self::on(ClockId::ProcessCPUTime, work)
    }

    fn on(clock: ClockId, work: impl FnOnce()) -> Self {
        let (wall, cpu) = (Instant::now(), now(clock));
        work();
        Self {
            cpu: now(clock).saturating_sub(cpu),
            wall: wall.elapsed(),
        }
    }
}

impl Add for Lap {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            wall: self.wall + other.wall,
        }
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
