//! A thread for the few tasks that all sessions wait for.
//!
//! Among thousands of runnable sessions, a task runs only every few milliseconds. If one that
//! gathers batches or answers questions for all sessions had to wait that long, they all would, and
//! the GPU would idle. On a separate thread, the kernel lets it run as soon as it has work.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// The thread. Dropping this ends it and its tasks.
#[derive(Debug)]
pub struct Aside(Option<Runtime>);

impl Aside {
    /// Starts a thread with this name.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(name)
            .enable_time()
            .build()?;
        Ok(Self(Some(runtime)))
    }

    /// Runs a task on it.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.0
            .as_ref()
            .expect("there until it is dropped")
            .spawn(task)
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // It is dropped within another runtime, which must not block.
            runtime.shutdown_background();
        }
    }
}
