//! What an intake remembers of the waits.

use std::collections::VecDeque;
use std::time::Duration;

/// The time of a minimum of waits, and how many are remembered.
const STEP: Duration = Duration::from_millis(250);
const STEPS: usize = 16;
/// The steps that are compared for the growth of the wait.
const GROWTH_STEPS: usize = STEPS / 2;

/// The waits of the last seconds, as minima of steps, and the loads of these. A minimum above zero
/// is a standing queue (RFC 8289, section 3.2).
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Of full steps, the newest first.
    steps: VecDeque<Step>,
    step: Step,
    passed: Duration,
    now: f64,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    wait: f64,
    load: f64,
}

impl Default for Step {
    fn default() -> Self {
        Self {
            wait: f64::MAX,
            load: 0.0,
        }
    }
}

impl Waits {
    pub(super) fn note(&mut self, passed: Duration, load: f64, wait: Duration) {
        self.now = wait.as_secs_f64();
        self.step.wait = self.step.wait.min(self.now);
        self.step.load += load * passed.as_secs_f64();
        self.passed += passed;
        if self.passed >= STEP {
            let mut step = std::mem::take(&mut self.step);
            step.load /= self.passed.as_secs_f64();
            self.passed = Duration::ZERO;
            self.steps.push_front(step);
            self.steps.truncate(STEPS);
        }
    }

    /// The last wait.
    pub(super) fn now(&self) -> f64 {
        self.now
    }

    /// The least wait of this time; zero if less is known.
    pub(super) fn standing(&self, window: Duration) -> f64 {
        let steps = steps(window);
        if self.steps.len() < steps {
            return 0.0;
        }
        let waits = self.steps.iter().take(steps).map(|step| step.wait);
        waits.chain([self.now]).fold(f64::MAX, f64::min)
    }

    /// The highest load of a step in this time; one if less is known.
    pub(super) fn load(&self, window: Duration) -> f64 {
        let steps = steps(window);
        if self.steps.len() < steps {
            return 1.0;
        }
        let loads = self.steps.iter().take(steps).map(|step| step.load);
        loads.fold(0.0, f64::max)
    }

    /// By how much the wait grows, in seconds a second.
    pub(super) fn growth(&self) -> f64 {
        let least = |from: usize| {
            let steps = self.steps.iter().skip(from).take(GROWTH_STEPS);
            steps.map(|step| step.wait).fold(f64::MAX, f64::min)
        };
        if self.steps.len() < 2 * GROWTH_STEPS {
            return 0.0;
        }
        let apart = STEP.as_secs_f64() * GROWTH_STEPS as f64;
        (least(0) - least(GROWTH_STEPS)) / apart
    }
}

fn steps(window: Duration) -> usize {
    (window.as_millis() / STEP.as_millis()) as usize
}
