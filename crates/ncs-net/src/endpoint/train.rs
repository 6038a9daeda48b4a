//! Packet trains: what a connection sends in one turn leaves in few system calls.
//!
//! quinn hands the socket ten packets at a time, and after twenty gives its place to all other connections. A connection that sends a
//! portion of 64 blocks would take nine turns for it, each of which finds its state out of the caches, and 18 calls, each of
//! which wakes the receiver. So a connection's task stays for [`ROUNDS_MAX`] rounds while it has more to do, and what it sends meanwhile is put
//! behind each other, as far as one call takes it by generic segmentation offload. The packets are the same and so is their pace: QUIC has
//! let go of them when they come here.

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

/// How often a task goes on at once. A round is twenty packets.
const ROUNDS_MAX: u32 = 9;

/// Most bytes of a train: what one call takes, with headers of any kind.
const BYTES_MAX: usize = 64_000;

thread_local! {
    /// The train of the connection whose turn it is on this thread.
    static TRAIN: RefCell<Train> = const { RefCell::new(Train { socket: 0, bytes: Vec::new(), engine: None }) };
}

/// Where trains of one endpoint leave.
pub(super) struct Station {
    couples: bool,
    socket: OnceLock<Arc<Socket>>,
}

impl Station {
    /// Each call sends one packet if they are not to be coupled.
    pub(super) fn new(couples: bool) -> Self {
        Self { couples, socket: OnceLock::new() }
    }

    /// The socket that connections of the endpoint send by.
    pub(super) fn wrap(&self, inner: Arc<dyn AsyncUdpSocket>) -> Arc<dyn AsyncUdpSocket> {
        let socket = Socket::new(inner, self.couples);
        // What is sent by another one, if there ever is, leaves as it comes.
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

/// A socket that couples what is sent to it within a [`Turns`].
struct Socket {
    inner: Arc<dyn AsyncUdpSocket>,
    /// Whether one call may carry several.
    couples: bool,
    /// Whether it lately took no more. While it is not, nobody asks the system before it sends.
    is_full: AtomicBool,
}

/// Datagrams in one piece of memory, all but the last of one length.
struct Train {
    /// The address of the [`Socket`] that it leaves by; 0 outside of turns.
    socket: usize,
    bytes: Vec<u8>,
    engine: Option<Engine>,
}

/// What all datagrams of a train have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Engine {
    destination: SocketAddr,
    source: Option<IpAddr>,
    ecn: Option<EcnCodepoint>,
    datagram: usize,
}

impl Socket {
    fn new(inner: Arc<dyn AsyncUdpSocket>, couples: bool) -> Arc<Self> {
        Arc::new(Self { inner, couples, is_full: AtomicBool::new(false) })
    }

    fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let result = self.inner.try_send(transmit);
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
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
        Box::pin(Poller { socket: self, inner: None })
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

    fn poll_recv(&self, cx: &mut Context<'_>, bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> Poll<io::Result<usize>> {
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
        let inner = this.inner.get_or_insert_with(|| Arc::clone(&this.socket.inner).create_io_poller());
        ready!(inner.as_mut().poll_writable(cx))?;
        this.socket.is_full.store(false, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Engine {
    fn of(transmit: &Transmit<'_>) -> Self {
        let datagram = transmit.segment_size.unwrap_or(transmit.contents.len());
        Self { destination: transmit.destination, source: transmit.src_ip, ecn: transmit.ecn, datagram }
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
    /// Whether these datagrams can go behind the others, where a call takes so many.
    fn takes(&self, transmit: &Transmit<'_>, datagrams_max: usize) -> bool {
        let Some(engine) = self.engine else { return true };
        let next = Engine::of(transmit);
        let bytes = self.bytes.len() + transmit.contents.len();
        // A shorter one can only be the last.
        let fits = match transmit.segment_size {
            Some(datagram) => datagram == engine.datagram,
            None => next.datagram <= engine.datagram,
        };
        fits && self.bytes.len().is_multiple_of(engine.datagram)
            && Engine { datagram: engine.datagram, ..next } == engine
            && bytes.div_ceil(engine.datagram) <= datagrams_max
            && bytes <= BYTES_MAX
    }

    fn couple(&mut self, transmit: &Transmit<'_>) {
        self.engine.get_or_insert_with(|| Engine::of(transmit));
        self.bytes.extend_from_slice(transmit.contents);
    }

    /// Sends it. It stays as it is where the socket is full; what else goes wrong is the loss of packets.
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

/// The train of this thread while it is a connection's.
struct Boarding<'a>(&'a Socket);

impl<'a> Boarding<'a> {
    fn begin(socket: &'a Socket) -> Self {
        TRAIN.with_borrow_mut(|train| train.socket = socket.address());
        Self(socket)
    }

    /// Sends what is there, or returns it if the socket is full.
    fn end(self) -> Option<Held> {
        TRAIN.with_borrow_mut(|train| {
            // An error other than that has been logged where it came from, and the packets are lost.
            let _ = train.leave(self.0);
            train.engine.map(|engine| Held { engine, bytes: std::mem::take(&mut train.bytes) })
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

/// A train that the socket would not take.
struct Held {
    engine: Engine,
    bytes: Vec<u8>,
}

/// A connection's task that takes several turns at once, and whose datagrams leave as trains.
struct Turns {
    task: Task,
    poller: Poller,
    held: Option<Held>,
}

impl Turns {
    /// The task of a connection that sends by this socket.
    fn new(driver: Driver, socket: Arc<Socket>) -> Self {
        Self { task: Task::new(driver), poller: Poller { socket, inner: None }, held: None }
    }

    /// Sends what the socket would not take before.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(held) = &self.held {
            // A socket that cannot even say so loses what it is given.
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
