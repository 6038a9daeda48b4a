//! A thread that receives, for each socket.
//!
//! Connections send for themselves, from all worker threads, but what comes to a socket is taken by one task, for all of them. Among thousands of
//! tasks that are ready it would get one turn in ten or twenty milliseconds, and fifty microseconds each time: acknowledgements
//! and handshakes would be lost in the socket's buffer just when the server has the most to do. So it has a thread and a runtime of its own, which the system
//! schedules like any other that has waited.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::train::{Driver, Station};

/// What runs an endpoint: its own task, which is the first that is spawned, on a thread apart or where it is made; and those of connections,
/// which send in trains, where they are made.
struct Apart {
    /// Of the thread, if there is one.
    handle: Handle,
    /// Takes the endpoint's task.
    receiver: Mutex<Option<Receiver>>,
    station: Station,
}

/// What receives.
enum Receiver {
    /// A thread that waits for the endpoint's task.
    Thread(oneshot::Sender<Driver>),
    /// The runtime of whoever makes the endpoint.
    Here,
}

impl fmt::Debug for Apart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Apart").finish_non_exhaustive()
    }
}

/// Starts a thread that ends with the endpoint that is made with this; without `gso` each call sends one packet.
pub(super) fn start(gso: bool) -> io::Result<Arc<dyn Runtime>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let handle = runtime.handle().clone();
    let (sender, receiver) = oneshot::channel::<Driver>();
    thread::Builder::new().name("quic-receive".to_owned()).spawn(move || {
        runtime.block_on(async {
            // Without an endpoint there is nothing to do.
            if let Ok(driver) = receiver.await {
                driver.await;
            }
        });
    })?;
    Ok(Apart::new(handle, Receiver::Thread(sender), gso))
}

/// The same without a thread: the current runtime receives.
pub(super) fn here(gso: bool) -> Arc<dyn Runtime> {
    Apart::new(Handle::current(), Receiver::Here, gso)
}

impl Apart {
    fn new(handle: Handle, receiver: Receiver, gso: bool) -> Arc<dyn Runtime> {
        Arc::new(Self { handle, receiver: Mutex::new(Some(receiver)), station: Station::new(gso) })
    }
}

impl Runtime for Apart {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Driver) {
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
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
