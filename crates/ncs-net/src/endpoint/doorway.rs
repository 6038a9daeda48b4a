//! Refusals of handshakes at the socket, before QUIC sees them.
//!
//! A crowd that finds the server full attempts handshakes at many times the rate at which it is let
//! in. QUIC refuses a client only after it has decrypted its packet, kept it, and given it to the
//! task that accepts. And QUIC's refusal cannot tell when to come again, so clients guess, and
//! attempt again soon. Here a refusal takes the connection ids of the first packet and one small
//! packet in return, which names a time ([`refusal`]).
//!
//! The answer has at most a tenth of the bytes that it answers, so an address that is not the
//! sender's gains nothing from it (RFC 9000, section 8.1). A handshake that has begun is not
//! touched: its client may send its first packet again. A refused client that does so is told the
//! rest of its time.

mod times;

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use ncs_proto::wire::refusal;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, ConnectionError, ConnectionIdGenerator as _, UdpPoller};
use quinn_proto::{ConnectionId, TransportErrorCode, crypto};

use super::ids::Owner;
use super::steering;
use times::Times;

/// When a client may come again, if the server has told it with the refusal of its handshake.
pub fn retry_after(error: &ConnectionError) -> Option<Duration> {
    match error {
        ConnectionError::ConnectionClosed(close)
            if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
        {
            refusal::retry_after(&close.reason)
        }
        _ => None,
    }
}

/// Decides at the door of a server, before handshakes.
pub trait Doorkeeper: fmt::Debug + Send + Sync {
    /// A client wants to begin a handshake. If there is no room for it, the time after which it may
    /// come again.
    fn refuses(&self, now: Instant) -> Option<Duration>;
}

/// QUIC's version 1, the only one that is answered here (RFC 9000, section 15).
const VERSION: u32 = 1;
/// The first octet of an Initial packet, apart from the protected bits (RFC 9000, section 17.2.2).
const INITIAL: u8 = 0b1100_0000;
const INITIAL_MASK: u8 = 0b1111_0000;
/// The least size of a datagram with a client's Initial packet, the least and most of the
/// connection id that it chooses for the server, and the most of its own (RFC 9000, sections 14.1,
/// 7.2 and 17.2).
const DATAGRAM_MIN: usize = 1200;
const CHOSEN_MIN: usize = 8;
const ID_MAX: usize = 20;
/// The frame type of CONNECTION_CLOSE by QUIC itself (RFC 9000, section 19.19).
const CLOSE: u8 = 0x1c;
/// The time for which a handshake that has begun is remembered. The server gives it no longer.
const REMEMBERED: Duration = Duration::from_secs(10);
/// The entries for handshakes that have begun, and for refused ones. A client sends its first
/// packet again after a second. In that time, 4,000 others take the place of every eighth entry,
/// and a flood of 80,000 that of nine in ten.
const ENTRIES: usize = 1 << 15;

/// Refusals in one call. It receives for all connections of the socket, so a flood of first packets
/// must not hold it up. Further ones are dropped, and their clients send them again.
const REFUSALS_MAX: u32 = 64;

/// A socket that refuses handshakes.
pub(super) struct Doorway {
    inner: Arc<dyn AsyncUdpSocket>,
    keeper: Arc<dyn Doorkeeper>,
    crypto: Arc<dyn crypto::ServerConfig>,
    owner: Owner,
    /// The sockets of this address.
    workers: u8,
    /// Another process, and whether it has connections on the same sockets.
    other: (u8, Arc<AtomicBool>),
    /// When handshakes have begun, by the connection ids that their clients chose.
    begun: Times,
    /// When refused clients may come again, by the same.
    refused: Times,
}

impl Doorway {
    pub(super) fn new(
        inner: Arc<dyn AsyncUdpSocket>,
        keeper: Arc<dyn Doorkeeper>,
        crypto: Arc<dyn crypto::ServerConfig>,
        owner: Owner,
        workers: u8,
        other: (u8, Arc<AtomicBool>),
    ) -> Self {
        let now = Instant::now();
        Self {
            inner,
            keeper,
            crypto,
            owner,
            workers,
            other,
            begun: Times::new(ENTRIES, now),
            refused: Times::new(ENTRIES, now),
        }
    }

    /// Takes the datagrams that are refused out of a buffer.
    fn sift(&self, now: Instant, left: &mut u32, meta: &mut RecvMeta, buffer: &mut [u8]) {
        meta.len = keep(&mut buffer[..meta.len], meta.stride, |datagram| {
            !self.is_refused(now, left, meta, datagram)
        });
    }

    /// Whether a datagram is for another worker or process. The kernel may merge datagrams of one
    /// sender, and steers them by the first. A worker that does not know a connection would answer
    /// with its stateless reset, which ends it (RFC 9000, section 21.11); a lost datagram is
    /// repaired.
    fn is_misplaced(&self, datagram: &[u8]) -> bool {
        let (process, is_beside) = &self.other;
        let other = is_beside.load(Ordering::Relaxed).then_some(*process);
        steering::id(datagram).is_some_and(|id| self.owner.is_of_another(id, self.workers, other))
    }

    fn is_refused(&self, now: Instant, left: &mut u32, meta: &RecvMeta, datagram: &[u8]) -> bool {
        if self.is_misplaced(datagram) {
            return true;
        }
        let Some(first) = First::parse(datagram) else {
            return false;
        };
        // Later packets of handshakes have ids of this server.
        if self.owner.is_own(first.destination) {
            return false;
        }
        let id = first.destination;
        if self.begun.get(id).is_some_and(|at| now < at + REMEMBERED) {
            return false;
        }
        if *left == 0 {
            return true;
        }
        let told = self.refused.get(id).filter(|at| now < *at);
        let retry_after = match told {
            Some(at) => at - now,
            None => {
                let Some(retry_after) = self.keeper.refuses(now) else {
                    self.begun.set(id, now);
                    return false;
                };
                self.refused.set(id, now + retry_after);
                retry_after
            }
        };
        *left -= 1;
        let own = Owner::generate_cid(&mut self.owner.clone());
        if let Some(contents) = first.refusal(&*self.crypto, own, retry_after) {
            // One that is lost counts as lost on the path: the client sends its packet again.
            let _ = self.inner.try_send(&Transmit {
                destination: meta.addr,
                ecn: None,
                contents: &contents,
                segment_size: None,
                src_ip: meta.dst_ip,
            });
        }
        true
    }
}

impl AsyncUdpSocket for Doorway {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.inner.poll_recv(cx, bufs, meta))?;
        let (now, mut left) = (Instant::now(), REFUSALS_MAX);
        for (meta, buffer) in meta.iter_mut().zip(bufs.iter_mut()).take(count) {
            self.sift(now, &mut left, meta, buffer);
        }
        Poll::Ready(Ok(count))
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

impl fmt::Debug for Doorway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Doorway").field(&self.inner).finish()
    }
}

/// The connection ids of a datagram that may begin a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct First<'a> {
    destination: &'a [u8],
    source: &'a [u8],
}

impl<'a> First<'a> {
    /// Reads the header of an Initial packet up to the connection ids (RFC 9000, section 17.2).
    fn parse(datagram: &'a [u8]) -> Option<Self> {
        if datagram.len() < DATAGRAM_MIN {
            return None;
        }
        let (&first, rest) = datagram.split_first()?;
        let (version, rest) = rest.split_first_chunk()?;
        if first & INITIAL_MASK != INITIAL || u32::from_be_bytes(*version) != VERSION {
            return None;
        }
        let (destination, rest) = id(rest)?;
        let (source, _) = id(rest)?;
        (destination.len() >= CHOSEN_MIN).then_some(Self {
            destination,
            source,
        })
    }

    /// An Initial packet with CONNECTION_CLOSE and CONNECTION_REFUSED from the connection id `own`.
    fn refusal(
        &self,
        crypto: &dyn crypto::ServerConfig,
        own: ConnectionId,
        retry_after: Duration,
    ) -> Option<Vec<u8>> {
        let destination = ConnectionId::new(self.destination);
        let keys = crypto.initial_keys(VERSION, &destination).ok()?;
        let (key, mask) = (&keys.packet.local, &keys.header.local);
        let reason = refusal::reason(retry_after);
        let code = u64::from(TransportErrorCode::CONNECTION_REFUSED);
        let mut frame = vec![CLOSE];
        // The code, the type of the frame that led to it (none), and the length of the reason: all
        // of them numbers of one octet.
        frame.extend([
            u8::try_from(code).ok()?,
            0,
            u8::try_from(reason.len()).ok()?,
        ]);
        frame.extend(reason.into_bytes());

        let mut packet = vec![INITIAL];
        packet.extend(VERSION.to_be_bytes());
        for id in [self.source, &own] {
            packet.push(u8::try_from(id.len()).ok()?);
            packet.extend(id);
        }
        // No token. The length of what follows is a number of two octets.
        packet.push(0);
        let length = u16::try_from(NUMBER.len() + frame.len() + key.tag_len()).ok()?;
        packet.extend((length | 0x4000).to_be_bytes());
        let number_at = packet.len();
        packet.extend(NUMBER);
        let header = packet.len();
        packet.extend(frame);
        packet.resize(packet.len() + key.tag_len(), 0);
        key.encrypt(0, &mut packet, header);
        mask.encrypt(number_at, &mut packet);
        Some(packet)
    }
}

/// Keeps those of the datagrams in `bytes`, `stride` bytes each and the last one perhaps shorter,
/// that `is_kept` accepts: side by side from the beginning on, in order. Returns how many bytes
/// they have.
pub fn keep(bytes: &mut [u8], stride: usize, mut is_kept: impl FnMut(&[u8]) -> bool) -> usize {
    let mut kept = 0;
    for begin in (0..bytes.len()).step_by(stride.max(1)) {
        let end = bytes.len().min(begin + stride.max(1));
        if is_kept(&bytes[begin..end]) {
            bytes.copy_within(begin..end, kept);
            kept += end - begin;
        }
    }
    kept
}

/// The packet number 0 in its shortest form.
const NUMBER: [u8; 1] = [0];

/// A connection id behind its length, and the rest.
fn id(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = bytes.split_first()?;
    let length = usize::from(length);
    (length <= ID_MAX && length <= rest.len()).then(|| rest.split_at(length))
}

#[cfg(test)]
mod tests;
