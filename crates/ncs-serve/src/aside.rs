//! A thread for the few tasks that all sessions wait for.
//!
//! Among thousands of runnable sessions, a task runs only every few milliseconds. If one that
//! gathers batches or answers questions for all sessions had to wait that long, they all would, and
//! the GPU would idle. On a separate thread, the kernel lets it run as soon as it has work.
//!
//! A program that serves a few peers needs none: there the switches between the threads would take
//! more time than the work.

use std::future::Future;
use std::io;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{AbortHandle, JoinHandle};

/// The thread. Dropping this ends it and its tasks.
#[derive(Debug)]
pub struct Aside(Place);

#[derive(Debug)]
enum Place {
    Thread(Option<Runtime>),
    Here(Handle, Mutex<Vec<AbortHandle>>),
}

impl Aside {
    /// Starts a thread with this name.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(name)
            .enable_time()
            .build()?;
        Ok(Self(Place::Thread(Some(runtime))))
    }

    /// No thread: its tasks run on the current runtime.
    pub fn here() -> Self {
        Self(Place::Here(Handle::current(), Mutex::default()))
    }

    /// Runs a task on it.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        match &self.0 {
            Place::Thread(runtime) => runtime
                .as_ref()
                .expect("there until it is dropped")
                .spawn(task),
            Place::Here(runtime, tasks) => {
                let task = runtime.spawn(task);
                let mut tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
                tasks.push(task.abort_handle());
                task
            }
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        match &mut self.0 {
            // It is dropped within another runtime, which must not block.
            Place::Thread(runtime) => runtime.take().map_or((), Runtime::shutdown_background),
            Place::Here(_, tasks) => {
                let tasks = tasks.get_mut().unwrap_or_else(PoisonError::into_inner);
                tasks.iter().for_each(AbortHandle::abort);
            }
        }
    }
}
