//! Waiting at the ring. Its slots, quotas and lines wake a task without saying why: the task checks
//! all of them again.

use std::future::poll_fn;
use std::task::{Poll, Waker};

/// The waker of the running task, to register elsewhere.
pub async fn own_waker() -> Waker {
    poll_fn(|context| Poll::Ready(context.waker().clone())).await
}

/// Pending once: ready when the task is woken for any reason.
pub async fn next_wake() {
    let mut asked = false;
    poll_fn(|_| {
        if std::mem::replace(&mut asked, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}
