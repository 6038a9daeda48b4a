//! A waker that tells whether a task has more to do from whether it is to be woken later.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Wake};

use futures_util::task::AtomicWaker;

/// Wakes a task, but while that runs notes only that it is to go on.
#[derive(Default)]
pub(super) struct Signal {
    state: AtomicU8,
    task: AtomicWaker,
}

const IDLE: u8 = 0;
const RUNS: u8 = 1;
const GOES_ON: u8 = 2;

impl Signal {
    /// Wakes whom `cx` is of from now on.
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.task.register(cx.waker());
    }

    /// The task runs.
    pub(super) fn begin(&self) {
        self.state.store(RUNS, Ordering::Release);
    }

    /// Whether it has been woken since it began.
    pub(super) fn goes_on(&self) -> bool {
        self.state.load(Ordering::Acquire) == GOES_ON
    }

    /// The task does not run any more. Whether it has been woken since it began: later it is so by its own waker.
    pub(super) fn end(&self) -> bool {
        self.state.swap(IDLE, Ordering::AcqRel) == GOES_ON
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let goes_on = |state| (state != IDLE).then_some(GOES_ON);
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, goes_on).is_err() {
            self.task.wake();
        }
    }
}
