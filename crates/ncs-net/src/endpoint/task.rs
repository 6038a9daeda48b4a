//! A task of quinn that runs several times in one turn.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// A task as quinn spawns it.
pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Such a task, and its wake signal.
pub(super) struct Task {
    driver: Driver,
    signal: Arc<Signal>,
    pub(super) waker: Waker,
}

impl Task {
    pub(super) fn new(driver: Driver) -> Self {
        let signal = Arc::new(Signal::default());
        let waker = Waker::from(Arc::clone(&signal));
        Self {
            driver,
            signal,
            waker,
        }
    }

    /// Polls again while the task wakes itself, at most `rounds_max` times; then other tasks run
    /// first. Ready when it has ended.
    pub(super) fn poll_rounds(&mut self, cx: &Context<'_>, rounds_max: u32) -> Poll<()> {
        self.signal.task.register(cx.waker());
        for _ in 0..rounds_max {
            self.signal.state.store(RUNS, Ordering::Release);
            if self
                .driver
                .as_mut()
                .poll(&mut Context::from_waker(&self.waker))
                .is_ready()
            {
                return Poll::Ready(());
            }
            if self.signal.state.swap(IDLE, Ordering::AcqRel) != GOES_ON {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Wakes a task; if it is running, only notes that it has to go on.
#[derive(Default)]
struct Signal {
    state: AtomicU8,
    task: AtomicWaker,
}

const IDLE: u8 = 0;
const RUNS: u8 = 1;
const GOES_ON: u8 = 2;

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let goes_on = |state| (state != IDLE).then_some(GOES_ON);
        if self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, goes_on)
            .is_err()
        {
            self.task.wake();
        }
    }
}
