//! The scheduling probe: measures how long a runnable task waits for a thread.

use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// A task that waits for a thread, or has run.
#[derive(Debug)]
pub struct Turn {
    ready: Instant,
    task: JoinHandle<Duration>,
}

impl Turn {
    /// Makes the task runnable now, from outside of the runtime's threads, as blocks and
    /// acknowledgements make sessions runnable.
    pub fn of(runtime: &Handle, now: Instant) -> Self {
        Self {
            ready: now,
            task: runtime.spawn(async move { now.elapsed() }),
        }
    }

    /// The time since it became runnable: a lower bound of its wait until it runs.
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.ready)
    }

    /// Whether it has run.
    pub fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// Its wait, once it has run. `None` when the runtime has ended.
    pub async fn wait(&mut self) -> Option<Duration> {
        (&mut self.task).await.ok()
    }
}
