//! Packet trains: the packets that a connection sends in one turn leave in few system calls.
//!
//! quinn hands the socket ten packets at a time, and yields to all other connections after twenty.
//! A connection that sends 64 blocks would need nine turns, each with its state out of the caches,
//! and 18 calls, each of which wakes the receiver. So a connection's task runs for up to
//! [`ROUNDS_MAX`] rounds while it has more to send, and its packets are joined, as many as one call
//! takes with generic segmentation offload. Neither packets nor pacing change, because QUIC has
//! released the packets before they come here.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

use super::task::{Driver, Task};

/// The maximum number of rounds per turn. A round is twenty packets.
const ROUNDS_MAX: u32 = 9;

/// The maximum size of a train: what one call takes, with any headers.
const BYTES_MAX: usize = 64_000;

thread_local! {
    /// The train of the connection that is running on this thread.
    static TRAIN: RefCell<Train> = const {
        RefCell::new(Train { socket: 0, bytes: Vec::new(), engine: None })
    };
}

/// Joins the packets of one endpoint into trains.
pub(super) struct Station {
    couples: bool,
    socket: OnceLock<Arc<Socket>>,
}

impl Station {
    /// If `couples` is false, each call sends one packet.
    pub(super) fn new(couples: bool) -> Self {
        Self {
            couples,
            socket: OnceLock::new(),
        }
    }

    /// Wraps the socket of the endpoint's connections.
    pub(super) fn wrap(&self, inner: Arc<dyn AsyncUdpSocket>) -> Arc<dyn AsyncUdpSocket> {
        let socket = Socket::new(inner, self.couples);
        // Packets of any further socket would leave unjoined.
        let _ = self.socket.set(Arc::clone(&socket));
        socket
    }

    /// Runs the task of a connection.
    pub(super) fn spawn(&self, driver: Driver) {
        match self.socket.get() {
            Some(socket) => drop(tokio::spawn(Turns::new(driver, Arc::clone(socket)))),
            None => drop(tokio::spawn(driver)),
        }
    }
}

/// A socket that joins packets sent within a [`Turns`].
struct Socket {
    inner: Arc<dyn AsyncUdpSocket>,
    /// Whether one call may carry several packets.
    couples: bool,
    /// Whether it was full at the last send. Otherwise nobody asks the system before sending.
    is_full: AtomicBool,
}

/// Datagrams in one buffer, all but the last of one length.
struct Train {
    /// The address of its [`Socket`]; 0 outside of turns.
    socket: usize,
    bytes: Vec<u8>,
    engine: Option<Engine>,
}

/// What all datagrams of a train share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Engine {
    destination: SocketAddr,
    source: Option<IpAddr>,
    ecn: Option<EcnCodepoint>,
    datagram: usize,
}

impl Socket {
    fn new(inner: Arc<dyn AsyncUdpSocket>, couples: bool) -> Arc<Self> {
        Arc::new(Self {
            inner,
            couples,
            is_full: AtomicBool::new(false),
        })
    }

    fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let result = self.inner.try_send(transmit);
        if result
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        {
            self.is_full.store(true, Ordering::Relaxed);
        }
        result
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller {
            socket: self,
            inner: None,
        })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        TRAIN.with_borrow_mut(|train| {
            if !self.couples || train.socket != self.address() {
                return self.send(transmit);
            }
            if !train.takes(transmit, self.inner.max_transmit_segments()) {
                train.leave(self)?;
            }
            train.couple(transmit);
            Ok(())
        })
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Socket").field(&self.inner).finish()
    }
}

/// Asks the system only where the socket was full.
struct Poller {
    socket: Arc<Socket>,
    inner: Option<Pin<Box<dyn UdpPoller>>>,
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.socket.is_full.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let this = &mut *self;
        let inner = this
            .inner
            .get_or_insert_with(|| Arc::clone(&this.socket.inner).create_io_poller());
        ready!(inner.as_mut().poll_writable(cx))?;
        this.socket.is_full.store(false, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

impl Engine {
    fn of(transmit: &Transmit<'_>) -> Self {
        let datagram = transmit.segment_size.unwrap_or(transmit.contents.len());
        Self {
            destination: transmit.destination,
            source: transmit.src_ip,
            ecn: transmit.ecn,
            datagram,
        }
    }

    fn send(&self, bytes: &[u8], socket: &Socket) -> io::Result<()> {
        socket.send(&Transmit {
            destination: self.destination,
            ecn: self.ecn,
            contents: bytes,
            segment_size: (bytes.len() > self.datagram).then_some(self.datagram),
            src_ip: self.source,
        })
    }
}

impl Train {
    /// Whether these datagrams can be appended, with at most `datagrams_max` per call.
    fn takes(&self, transmit: &Transmit<'_>, datagrams_max: usize) -> bool {
        let Some(engine) = self.engine else {
            return true;
        };
        let next = Engine::of(transmit);
        let bytes = self.bytes.len() + transmit.contents.len();
        // A shorter one can only be the last.
        let fits = match transmit.segment_size {
            Some(datagram) => datagram == engine.datagram,
            None => next.datagram <= engine.datagram,
        };
        fits && self.bytes.len().is_multiple_of(engine.datagram)
            && Engine {
                datagram: engine.datagram,
                ..next
            } == engine
            && bytes.div_ceil(engine.datagram) <= datagrams_max
            && bytes <= BYTES_MAX
    }

    fn couple(&mut self, transmit: &Transmit<'_>) {
        self.engine.get_or_insert_with(|| Engine::of(transmit));
        self.bytes.extend_from_slice(transmit.contents);
    }

    /// Sends the train. It stays if the socket is full; any other error counts as loss of the
    /// packets.
    fn leave(&mut self, socket: &Socket) -> io::Result<()> {
        if let Some(engine) = self.engine {
            match engine.send(&self.bytes, socket) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(error),
                sent => {
                    self.clear();
                    sent?;
                }
            }
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.engine = None;
        self.bytes.clear();
    }
}

/// Marks this thread's train as one connection's.
struct Boarding<'a>(&'a Socket);

impl<'a> Boarding<'a> {
    fn begin(socket: &'a Socket) -> Self {
        TRAIN.with_borrow_mut(|train| train.socket = socket.address());
        Self(socket)
    }

    /// Sends the train, or returns it if the socket is full.
    fn end(self) -> Option<Held> {
        TRAIN.with_borrow_mut(|train| {
            // Any other error was logged at its source, and the packets are lost.
            let _ = train.leave(self.0);
            train.engine.map(|engine| Held {
                engine,
                bytes: std::mem::take(&mut train.bytes),
            })
        })
    }
}

impl Drop for Boarding<'_> {
    fn drop(&mut self) {
        TRAIN.with_borrow_mut(|train| {
            train.clear();
            train.socket = 0;
        });
    }
}

/// A train that a full socket did not take.
struct Held {
    engine: Engine,
    bytes: Vec<u8>,
}

/// A connection's task that runs several rounds per turn, and sends its datagrams in trains.
struct Turns {
    task: Task,
    poller: Poller,
    held: Option<Held>,
}

impl Turns {
    /// The task of a connection that sends by this socket.
    fn new(driver: Driver, socket: Arc<Socket>) -> Self {
        Self {
            task: Task::new(driver),
            poller: Poller {
                socket,
                inner: None,
            },
            held: None,
        }
    }

    /// Sends a train that the socket did not take before.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(held) = &self.held {
            // If even polling the socket fails, the train is lost.
            let _ = ready!(Pin::new(&mut self.poller).poll_writable(cx));
            match held.engine.send(&held.bytes, &self.poller.socket) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => self.held = None,
            }
        }
        Poll::Ready(())
    }
}

impl Future for Turns {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        ready!(this.poll_held(cx));
        let boarding = Boarding::begin(&this.poller.socket);
        let end = this.task.poll_rounds(cx, ROUNDS_MAX);
        this.held = boarding.end();
        if end.is_pending() {
            let _ = this.poll_held(cx);
        }
        end
    }
}

#[cfg(test)]
mod tests;
