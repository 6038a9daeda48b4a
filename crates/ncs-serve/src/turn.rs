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
    /// Makes the task runnable now, as blocks and acknowledgements make sessions runnable: from
    /// outside of the runtime's threads, or behind what these have to run.
    pub fn of(runtime: &Handle, now: Instant) -> Self {
        let is_within = Handle::try_current().is_ok_and(|current| current.id() == runtime.id());
        let probe = async move {
            // A thread first runs the task that it has made runnable itself.
            if is_within {
                tokio::task::yield_now().await;
            }
            now.elapsed()
        };
        Self {
            ready: now,
            task: runtime.spawn(probe),
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
