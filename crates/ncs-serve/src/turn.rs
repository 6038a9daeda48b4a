//! How long what is ready waits until a thread takes it: measured by a task that does nothing.

use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// A task that waits for its turn, or has had it.
#[derive(Debug)]
pub struct Turn {
    ready: Instant,
    task: JoinHandle<Duration>,
}

impl Turn {
    /// Made ready now, from outside of the runtime's threads, as blocks and acknowledgements make sessions ready.
    pub fn of(runtime: &Handle, now: Instant) -> Self {
        Self { ready: now, task: runtime.spawn(async move { now.elapsed() }) }
    }

    /// For how long it has been ready: if its turn has not come, that takes at least as long.
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.ready)
    }

    /// Whether its turn has come.
    pub fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// What it has waited once its turn has come. `None` when the runtime is gone.
    pub async fn wait(&mut self) -> Option<Duration> {
        (&mut self.task).await.ok()
    }
}
