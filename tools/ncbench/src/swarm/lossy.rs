//! A socket that loses a share of the packets that come to it, as a path would.
//! [`lab::lossy`](ncserverd::lab::lossy) is a relay, which the packets of ten thousand viewers are
//! too many for, and the system's own means are not on every machine.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use ncserverd::endpoint::keep;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// Loses packets after the system has delivered them, each by itself. What is sent goes its way.
pub(super) struct Lossy {
    inner: Arc<dyn AsyncUdpSocket>,
    /// How many of all are lost, 0 to 1.
    share: f64,
    random: Mutex<Xoshiro256PlusPlus>,
}

impl Lossy {
    pub(super) fn new(inner: Arc<dyn AsyncUdpSocket>, share: f64, seed: u64) -> Self {
        Self {
            inner,
            share,
            random: Mutex::new(Xoshiro256PlusPlus::seed_from_u64(seed)),
        }
    }
}

impl AsyncUdpSocket for Lossy {
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
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        for (buffer, meta) in bufs.iter_mut().zip(meta).take(count) {
            meta.len = keep(&mut buffer[..meta.len], meta.stride, |_| {
                !random.random_bool(self.share)
            });
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

impl fmt::Debug for Lossy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lossy")
            .field("share", &self.share)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept of `packets` of four bytes and a rest where these are lost.
    fn left(length: usize, lost: &[usize]) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..length).map(|at| u8::try_from(at).unwrap()).collect();
        let mut number = 0;
        let kept = keep(&mut bytes, 4, |_| {
            number += 1;
            !lost.contains(&(number - 1))
        });
        bytes.truncate(kept);
        bytes
    }

    #[test]
    fn packets_are_lost_whole_and_the_others_keep_their_order() {
        assert_eq!(left(10, &[]), (0..10).collect::<Vec<u8>>());
        assert_eq!(left(10, &[0]), [4, 5, 6, 7, 8, 9]);
        assert_eq!(left(10, &[1]), [0, 1, 2, 3, 8, 9]);
        assert_eq!(left(10, &[2]), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(left(8, &[0, 1]).is_empty());
        assert!(left(0, &[]).is_empty());
    }

    #[test]
    fn a_packet_without_a_stride_is_taken_by_the_byte_and_nothing_runs_over() {
        let mut bytes = [1, 2, 3];
        assert_eq!(keep(&mut bytes, 0, |_| true), 3);
    }
}
