//! A receiving thread for each socket.
//!
//! Connections send for themselves, from all worker threads, but one task receives packets for all
//! connections of a socket. Among thousands of runnable tasks it would run once in ten or twenty
//! milliseconds, for fifty microseconds: the socket's buffer would overflow, and lose
//! acknowledgements and handshakes just when the server is busiest. So it has a thread and a
//! runtime of its own, which the kernel schedules like any other thread that has waited.
//!
//! If every packet woke it, it would take one at a time, and CPU time from the senders: a fifth of
//! a fully loaded CPU. So it sleeps for a quarter of a millisecond after each round, and takes all
//! packets that have arrived meanwhile, as network cards do that moderate interrupts. Only then
//! does it wait for more. If it slept after the wait, it would be switched out twice a round.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::task::{Driver, Task};
use super::train::Station;

/// The interval between rounds under load: much shorter than a path's delay, and long enough for a
/// busy server to receive many packets.
const ROUND: Duration = Duration::from_micros(250);

/// Runs the tasks of an endpoint. The first task spawned is the endpoint's own; it runs on a
/// separate thread, or on the current runtime. The tasks of connections, which send in trains, run
/// on the current runtime.
struct Apart {
    /// The runtime that receives.
    handle: Handle,
    /// Takes the endpoint's task.
    receiver: Mutex<Option<Receiver>>,
    station: Station,
}

/// Where the endpoint's task runs.
enum Receiver {
    /// A thread that waits for the endpoint's task.
    Thread(oneshot::Sender<Driver>),
    /// The runtime that creates the endpoint.
    Here,
}

impl fmt::Debug for Apart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Apart").finish_non_exhaustive()
    }
}

/// Starts a thread that ends with the endpoint made with this. Without `gso`, each call sends one
/// packet.
pub(super) fn start(gso: bool) -> io::Result<Arc<dyn Runtime>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let handle = runtime.handle().clone();
    let (sender, receiver) = oneshot::channel::<Driver>();
    thread::Builder::new()
        .name("quic-receive".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                // Without an endpoint there is nothing to do.
                if let Ok(driver) = receiver.await {
                    Rounds::new(driver).await;
                }
            });
        })?;
    Ok(Arc::new(Apart::new(handle, Receiver::Thread(sender), gso)))
}

/// The same without a thread: the current runtime receives.
pub(super) fn here(gso: bool) -> Arc<dyn Runtime> {
    Arc::new(Apart::new(Handle::current(), Receiver::Here, gso))
}

impl Apart {
    fn new(handle: Handle, receiver: Receiver, gso: bool) -> Self {
        Self {
            handle,
            receiver: Mutex::new(Some(receiver)),
            station: Station::new(gso),
        }
    }
}

/// Receives in rounds, each of which begins at least [`ROUND`] after the end of the last.
struct Rounds(Task);

impl Rounds {
    fn new(driver: Driver) -> Self {
        Self(Task::new(driver))
    }
}

impl Future for Rounds {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let end = self.0.poll_rounds(cx, u32::MAX);
        // Nothing else runs on this thread. What arrives meanwhile is there when it looks again.
        if end.is_pending() {
            thread::sleep(ROUND);
        }
        end
    }
}

impl Runtime for Apart {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Driver) {
        let receiver = self
            .receiver
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match receiver {
            // The thread waits for it.
            Some(Receiver::Thread(thread)) => drop(thread.send(future)),
            Some(Receiver::Here) => TokioRuntime.spawn(future),
            None => self.station.spawn(future),
        }
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let _inside = self.handle.enter();
        Ok(self.station.wrap(TokioRuntime.wrap_udp_socket(socket)?))
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Waker;

    use super::*;

    /// A task that wakes itself `times` times, and then waits.
    fn busy(times: u32, polls: &Arc<AtomicU32>) -> Driver {
        let polls = Arc::clone(polls);
        Box::pin(std::future::poll_fn(move |cx| {
            if polls.fetch_add(1, Ordering::Relaxed) + 1 < times {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        }))
    }

    #[test]
    fn a_round_takes_all_there_is_and_the_next_begins_later() {
        let polls = Arc::default();
        let mut rounds = Rounds::new(busy(1000, &polls));
        let mut cx = Context::from_waker(Waker::noop());
        let begun = Instant::now();
        assert_eq!(Pin::new(&mut rounds).poll(&mut cx), Poll::Pending);
        assert_eq!(polls.load(Ordering::Relaxed), 1000);
        assert_eq!(Pin::new(&mut rounds).poll(&mut cx), Poll::Pending);
        assert_eq!(polls.load(Ordering::Relaxed), 1001);
        assert!(begun.elapsed() >= 2 * ROUND);
    }
}
