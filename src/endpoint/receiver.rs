//! A thread that receives, for each socket.
//!
//! Connections send for themselves, from all worker threads, but what comes to a socket is taken by one task, for all of them. Among thousands of
//! tasks that are ready it would get one turn in ten or twenty milliseconds, and fifty microseconds each time: acknowledgements
//! and handshakes would be lost in the socket's buffer just when the server has the most to do. So it has a thread and a runtime of its own, which the system
//! schedules like any other that has waited.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::train::{Driver, Socket, Turns};

/// What runs an endpoint: its own task on a thread apart, those of connections where they are made.
struct Apart {
    /// The thread's.
    handle: Handle,
    /// Takes the endpoint's task, which is the first that is spawned.
    driver: Mutex<Option<oneshot::Sender<Driver>>>,
    /// Whether packets may leave in trains.
    gso: bool,
    /// What connections send by, once it is there.
    socket: OnceLock<Arc<Socket>>,
}

impl fmt::Debug for Apart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Apart").finish_non_exhaustive()
    }
}

/// Starts a thread that ends with the endpoint that is made with this.
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
    Ok(Arc::new(Apart { handle, driver: Mutex::new(Some(sender)), gso, socket: OnceLock::new() }))
}

impl Runtime for Apart {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Driver) {
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
        match driver {
            // The thread waits for it.
            Some(driver) => drop(driver.send(future)),
            None => match self.socket.get() {
                Some(socket) => drop(tokio::spawn(Turns::new(future, Arc::clone(socket)))),
                None => TokioRuntime.spawn(future),
            },
        }
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let _inside = self.handle.enter();
        let socket = Socket::new(TokioRuntime.wrap_udp_socket(socket)?, self.gso);
        // What is sent by another one, if there ever is, leaves as it comes.
        let _ = self.socket.set(Arc::clone(&socket));
        Ok(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}
