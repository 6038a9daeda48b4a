//! A thread for the few tasks that all sessions wait for.
//!
//! Among thousands of sessions that are ready a task gets a turn every few milliseconds. One that gathers batches, or answers questions, for all of
//! them would make each wait for it as long, and the GPU idle meanwhile; on a thread of its own the system lets it run as soon as it has
//! something to do.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// The thread. It ends, and what runs on it, when this is dropped.
#[derive(Debug)]
pub struct Aside(Option<Runtime>);

impl Aside {
    /// Starts a thread with this name.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_time().build()?;
        Ok(Self(Some(runtime)))
    }

    /// Runs a task on it.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.0.as_ref().expect("there until it is dropped").spawn(task)
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // It is dropped within another runtime, which must not wait.
            runtime.shutdown_background();
        }
    }
}
