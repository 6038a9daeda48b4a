//! Waiting at the ring. Its slots, quotas and lines wake a task and do not say for what: the task looks at all of them again.

use std::future::poll_fn;
use std::task::{Poll, Waker};

/// The waker of the running task, to leave with whoever is to wake it.
pub async fn own_waker() -> Waker {
    poll_fn(|context| Poll::Ready(context.waker().clone())).await
}

/// Pending once: ready when the task is woken for whatever reason.
pub async fn next_wake() {
    let mut asked = false;
    poll_fn(|_| if std::mem::replace(&mut asked, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}
