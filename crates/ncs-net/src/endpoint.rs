//! UDP sockets and QUIC endpoints.
//!
//! One endpoint an address. quinn sends from every core through one socket, so more sockets would buy handshakes only, at the price
//! of connections lost when a peer's address changes. The kernel's default buffers lose a burst of first packets, which then
//! wait a second for their repetition, so larger ones are asked for, and what was given is logged.
//!
//! What comes to a socket is taken by a thread of its own ([`receiver`]), and what leaves by it does so in trains ([`train`]). How fast a
//! connection sends is [`congestion`]'s to say.

mod congestion;
mod receiver;
mod task;
mod train;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use ncs_proto::wire::CloseCode;
use quinn::{ConnectionIdGenerator, Endpoint, EndpointConfig, Runtime, ServerConfig, TransportConfig, VarInt};
use quinn_proto::RandomConnectionIdGenerator;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::sync::watch;

pub use congestion::{Congestion, close};

use crate::tls::{self, ServerIdentity};

/// The round trip that QUIC assumes until it has measured one, on both sides. It times out after three of them, so that every flight
/// of a handshake that is lost costs that, and twice that if lost again: 333 ms, which RFC 9002 (section 6.2.2) recommends, makes a
/// handshake over a path that loses a fifth of its packets take many seconds. A path that is slower than 300 ms gets a few packets
/// twice. Chromium assumes as much.
pub const INITIAL_RTT: Duration = Duration::from_millis(100);

/// As long as quinn's own.
const CONNECTION_ID_BYTES: usize = 8;

/// Between stateless resets at least. After a restart every peer of before needs one, so quinn's 20 ms would make ten thousand of them
/// wait for minutes. A reset is smaller than the packet that it answers, and nothing is kept for it.
const RESET_INTERVAL_MIN: Duration = Duration::from_micros(200);

/// How long connections may take to hear that they are closed.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Where peers connect, and how many may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// UDP addresses to listen on.
    #[serde(deserialize_with = "crate::units::one_or_many")]
    pub listen: Vec<SocketAddr>,
    /// Most connections at a time, handshakes included.
    pub connections_max: u32,
    /// Half-open handshakes from which on a new one must prove its address first.
    pub retry_above: u32,
    /// How long blocks that are asked for may take until they can leave before newcomers are sent away.
    #[serde(with = "crate::units::duration")]
    pub wait_max: Duration,
    /// Receive buffer asked of the kernel for each socket.
    #[serde(with = "crate::units::size")]
    pub receive_buffer: ByteSize,
    /// Send buffer asked of the kernel for each socket.
    #[serde(with = "crate::units::size")]
    pub send_buffer: ByteSize,
    /// Generic segmentation offload.
    pub gso: bool,
    /// What decides how fast a connection sends.
    pub congestion: Congestion,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 4443))],
            connections_max: 10_000,
            retry_above: 64,
            wait_max: Duration::from_secs(1),
            receive_buffer: ByteSize::mib(4),
            send_buffer: ByteSize::mib(4),
            gso: true,
            congestion: Congestion::default(),
        }
    }
}

/// Why an endpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be had.
    #[error("cannot listen on UDP {address}: {source}")]
    Bind {
        /// As configured.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The certificate cannot be used with QUIC.
    #[error(transparent)]
    Tls(#[from] tls::Error),
}

/// Opens a socket and an endpoint on each configured address.
pub fn open(config: &Config, idle_timeout: Duration, identity: &ServerIdentity) -> Result<Vec<Endpoint>, Error> {
    open_with(config, idle_timeout, identity, || receiver::start(config.gso))
}

/// The same, but the runtime of the caller receives, too: for who counts what all of it takes.
pub fn open_here(config: &Config, idle_timeout: Duration, identity: &ServerIdentity) -> Result<Vec<Endpoint>, Error> {
    open_with(config, idle_timeout, identity, || Ok(receiver::here(config.gso)))
}

fn open_with(
    config: &Config,
    idle_timeout: Duration,
    identity: &ServerIdentity,
    runtime: impl Fn() -> io::Result<Arc<dyn Runtime>>,
) -> Result<Vec<Endpoint>, Error> {
    let server = server_config(config, idle_timeout, identity)?;
    config.listen.iter().map(|address| bind(config, *address, server.clone(), identity, &runtime)).collect()
}

/// Takes no newcomers, has sessions finish what is open for at most `bound` (they hear of it by `drain`), then closes what is left.
pub async fn drain(endpoints: &[Endpoint], drain: &watch::Sender<Option<Duration>>, bound: Duration) {
    for endpoint in endpoints {
        endpoint.set_server_config(None);
    }
    drain.send_replace(Some(bound));
    let idle = async {
        for endpoint in endpoints {
            endpoint.wait_idle().await;
        }
    };
    if tokio::time::timeout(bound + CLOSE_GRACE, idle).await.is_err() {
        tracing::warn!("some peers did not close their connections in time");
    }
    for endpoint in endpoints {
        endpoint.close(VarInt::from_u32(CloseCode::GoingAway.quic()), b"the server goes away");
    }
    for endpoint in endpoints {
        // What is left after this has not acknowledged the close; it learns by its idle timeout.
        let _ = tokio::time::timeout(CLOSE_GRACE, endpoint.wait_idle()).await;
    }
}

fn bind(
    config: &Config,
    address: SocketAddr,
    server: ServerConfig,
    identity: &ServerIdentity,
    runtime: impl Fn() -> io::Result<Arc<dyn Runtime>>,
) -> Result<Endpoint, Error> {
    let failed = |source| Error::Bind { address, source };
    let socket = udp_socket(address, config.receive_buffer, config.send_buffer).map_err(failed)?;
    let runtime = runtime().map_err(failed)?;
    let mut endpoint = EndpointConfig::default();
    endpoint.cid_generator(connection_ids);
    endpoint.reset_key(Arc::new(identity.reset_key(socket.local_addr().map_err(failed)?)));
    endpoint.min_reset_interval(RESET_INTERVAL_MIN);
    Endpoint::new(endpoint, Some(server), socket, runtime).map_err(failed)
}

/// Names for connections, of 64 random bits.
///
/// A newcomer that has been sent a Retry goes on under the name in it. If a connection bears that name already, quinn gives it what the newcomer
/// sends from then on, and nobody ever answers. quinn's own names have 24 random bits, and a connection to one of our peers has five of
/// them: of those who were sent a Retry beside 2,000 connections, one in 1,700 was lost, and beside 35,000 it would be one in a hundred.
fn connection_ids() -> Box<dyn ConnectionIdGenerator> {
    Box::new(RandomConnectionIdGenerator::new(CONNECTION_ID_BYTES))
}

/// A UDP socket with these buffers, as far as the kernel grants them.
pub fn udp_socket(address: SocketAddr, receive: ByteSize, send: ByteSize) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    let bytes = |size: ByteSize| usize::try_from(size.as_u64()).unwrap_or(usize::MAX);
    socket.set_recv_buffer_size(bytes(receive))?;
    socket.set_send_buffer_size(bytes(send))?;
    let (granted, _) = granted_buffers(SockRef::from(&socket))?;
    if granted < bytes(receive) {
        tracing::warn!(
            "the UDP receive buffer on {address} has {granted} bytes, not {receive}: raise net.core.rmem_max, or bursts are lost"
        );
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Bytes of its receive and its send buffer that the kernel has granted a socket. Linux counts its own bookkeeping as half of a
/// buffer and says the whole (`man 7 socket`); what was asked for is compared with the other half.
pub fn granted_buffers(socket: SockRef<'_>) -> io::Result<(usize, usize)> {
    const SAYS_TIMES: usize = if cfg!(target_os = "linux") { 2 } else { 1 };
    Ok((socket.recv_buffer_size()? / SAYS_TIMES, socket.send_buffer_size()? / SAYS_TIMES))
}

fn server_config(config: &Config, idle_timeout: Duration, identity: &ServerIdentity) -> Result<ServerConfig, Error> {
    let mut server = ServerConfig::with_crypto(Arc::new(identity.quic()?));
    server.transport_config(Arc::new(transport(config, idle_timeout)));
    server.max_incoming(4096).incoming_buffer_size(64 << 10).incoming_buffer_size_total(16 << 20);
    Ok(server)
}

/// The most bytes of streams that QUIC holds for a connection until they are acknowledged.
pub const SEND_WINDOW: u64 = 1 << 20;

/// What a connection may hold. A peer sends little, so little is buffered for it; what is sent to it is bounded by the send window,
/// beside the session's own bound on slots.
fn transport(config: &Config, idle_timeout: Duration) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(idle_timeout.try_into().ok());
    transport.initial_rtt(INITIAL_RTT);
    transport.max_concurrent_bidi_streams(VarInt::from_u32(1));
    transport.max_concurrent_uni_streams(VarInt::from_u32(0));
    transport.stream_receive_window(VarInt::from_u32(64 << 10));
    transport.receive_window(VarInt::from_u32(128 << 10));
    transport.send_window(SEND_WINDOW);
    transport.datagram_receive_buffer_size(Some(64 << 10));
    transport.datagram_send_buffer_size(64 << 10);
    transport.enable_segmentation_offload(config.gso);
    transport.congestion_controller_factory(config.congestion.factory());
    transport
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_of_connections_do_not_meet() {
        let mut ids = connection_ids();
        assert_eq!(ids.cid_len(), CONNECTION_ID_BYTES);
        let mut met = HashSet::new();
        // Of 24 bits, 128 would have been there before.
        assert!((0..1 << 16).all(|_| met.insert(ids.generate_cid())));
    }
}
