//! Waiting at the ring. Its slots, quotas and lines wake a task without saying why: the task checks
//! all of them again.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

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

/// A task that waits at the ring and for other things, and looks at the ring only when the ring has
/// woken it.
#[derive(Debug)]
pub struct Waiter {
    call: Arc<Call>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Call {
    is_woken: AtomicBool,
    task: AtomicWaker,
}

impl Waiter {
    /// The waker to register at the ring.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Call it before the task looks at the ring: what has woken it until now is seen then.
    pub fn look(&self) {
        self.call.is_woken.store(false, Ordering::SeqCst);
    }

    /// Ready when the ring has woken the task since the last [`Waiter::look`].
    pub async fn woken(&self) {
        poll_fn(|context| {
            self.call.task.register(context.waker());
            if self.call.is_woken.load(Ordering::SeqCst) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

impl Default for Waiter {
    fn default() -> Self {
        let call = Arc::<Call>::default();
        let waker = Waker::from(Arc::clone(&call));
        Self { call, waker }
    }
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        self.task.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn only_the_ring_wakes_a_waiter() {
        let waiter = Waiter::default();
        assert_eq!(waiter.woken().now_or_never(), None);
        let waker = waiter.waker().clone();
        waker.wake_by_ref();
        assert_eq!(waiter.woken().now_or_never(), Some(()));
        assert_eq!(waiter.woken().now_or_never(), Some(()), "it has not looked");
        waiter.look();
        assert_eq!(waiter.woken().now_or_never(), None);
        let waiting = tokio::spawn(async move {
            // A wake by the timer is none by the ring.
            let early = tokio::time::timeout(Duration::from_millis(1), waiter.woken()).await;
            assert!(early.is_err());
            waiter.woken().await;
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!waiting.is_finished());
        waker.wake();
        waiting.await.unwrap();
    }
}
