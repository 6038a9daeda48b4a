//! UDP sockets and QUIC endpoints.
//!
//! There is one endpoint per address. quinn sends from every core through one socket, so more
//! sockets would speed up only handshakes, and lose connections when a peer's address changes. The
//! kernel's default buffers lose a burst of Initial packets, which are then repeated only after a
//! second. So larger buffers are requested, and a smaller grant is logged.
//!
//! A thread per socket receives packets ([`receiver`]). Packets are sent in trains ([`train`]).
//! [`congestion`] decides how fast a connection sends.

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
use quinn::{
    ConnectionIdGenerator, Endpoint, EndpointConfig, Runtime, ServerConfig, TransportConfig, VarInt,
};
use quinn_proto::RandomConnectionIdGenerator;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::sync::watch;

pub use congestion::{Congestion, close};

use crate::tls::{self, ServerIdentity};

/// The round trip that both sides assume until they have measured one. QUIC times out after three
/// of them, so every lost flight of a handshake costs that, and twice that if lost again. With 333
/// ms, which RFC 9002 (section 6.2.2) recommends, a handshake takes many seconds on a path with 20
/// % loss. On a path slower than 300 ms a few packets are sent twice. Chromium uses the same value.
pub const INITIAL_RTT: Duration = Duration::from_millis(100);

/// As long as quinn's own.
const CONNECTION_ID_BYTES: usize = 8;

/// The minimum interval of stateless resets. After a restart every earlier peer needs one, so
/// quinn's 20 ms would make ten thousand of them wait for minutes. A reset is smaller than the
/// packet that it answers, and needs no state.
const RESET_INTERVAL_MIN: Duration = Duration::from_micros(200);

/// How long peers may take to acknowledge the close of a connection.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// The addresses to listen on, and the limits on connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// UDP addresses to listen on.
    #[serde(deserialize_with = "crate::units::one_or_many")]
    pub listen: Vec<SocketAddr>,
    /// The maximum number of connections, including handshakes.
    pub connections_max: u32,
    /// The number of open handshakes above which a new client must validate its address first.
    pub retry_above: u32,
    /// The maximum time until requested blocks can be sent. Above it, new clients are refused.
    #[serde(with = "crate::units::duration")]
    pub wait_max: Duration,
    /// The receive buffer requested for each socket.
    #[serde(with = "crate::units::size")]
    pub receive_buffer: ByteSize,
    /// The send buffer requested for each socket.
    #[serde(with = "crate::units::size")]
    pub send_buffer: ByteSize,
    /// Generic segmentation offload.
    pub gso: bool,
    /// The congestion controller.
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
#[non_exhaustive]
pub enum Error {
    /// The address is not available.
    #[error("cannot listen on UDP {address}: {source}")]
    Bind {
        /// The configured address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The certificate cannot be used with QUIC.
    #[error(transparent)]
    Tls(#[from] tls::Error),
}

/// Opens a socket and an endpoint on each configured address.
pub fn open(
    config: &Config,
    idle_timeout: Duration,
    identity: &ServerIdentity,
) -> Result<Vec<Endpoint>, Error> {
    open_with(config, idle_timeout, identity, || {
        receiver::start(config.gso)
    })
}

/// The same, but the caller's runtime also receives: for measurements that count all of the work.
pub fn open_here(
    config: &Config,
    idle_timeout: Duration,
    identity: &ServerIdentity,
) -> Result<Vec<Endpoint>, Error> {
    open_with(config, idle_timeout, identity, || {
        Ok(receiver::here(config.gso))
    })
}

fn open_with(
    config: &Config,
    idle_timeout: Duration,
    identity: &ServerIdentity,
    runtime: impl Fn() -> io::Result<Arc<dyn Runtime>>,
) -> Result<Vec<Endpoint>, Error> {
    let server = server_config(config, idle_timeout, identity)?;
    config
        .listen
        .iter()
        .map(|address| bind(config, *address, server.clone(), identity, &runtime))
        .collect()
}

/// Accepts no new connections, lets sessions finish open requests for at most `bound` (announced
/// through `drain`), then closes the rest.
pub async fn drain(
    endpoints: &[Endpoint],
    drain: &watch::Sender<Option<Duration>>,
    bound: Duration,
) {
    for endpoint in endpoints {
        endpoint.set_server_config(None);
    }
    drain.send_replace(Some(bound));
    let idle = async {
        for endpoint in endpoints {
            endpoint.wait_idle().await;
        }
    };
    if tokio::time::timeout(bound + CLOSE_GRACE, idle)
        .await
        .is_err()
    {
        tracing::warn!("some peers did not close their connections in time");
    }
    for endpoint in endpoints {
        endpoint.close(
            VarInt::from_u32(CloseCode::GoingAway.quic()),
            b"the server goes away",
        );
    }
    for endpoint in endpoints {
        // Connections that remain have not acknowledged the close; their peers end by the idle
        // timeout.
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
    endpoint.reset_key(Arc::new(
        identity.reset_key(socket.local_addr().map_err(failed)?),
    ));
    endpoint.min_reset_interval(RESET_INTERVAL_MIN);
    Endpoint::new(endpoint, Some(server), socket, runtime).map_err(failed)
}

/// Generates connection ids of 64 random bits.
///
/// After a Retry, a client continues under the connection id that it contains. If another
/// connection has that id already, quinn gives it the client's packets, and nobody ever answers
/// them. quinn's own ids have 24 random bits, and a connection to one of our peers has five of
/// them: beside 2,000 connections, one in 1,700 clients with a Retry was lost, and beside 35,000 it
/// would be one in a hundred.
fn connection_ids() -> Box<dyn ConnectionIdGenerator> {
    Box::new(RandomConnectionIdGenerator::new(CONNECTION_ID_BYTES))
}

/// Opens a UDP socket with these buffers, as far as the kernel grants them.
pub fn udp_socket(
    address: SocketAddr,
    receive: ByteSize,
    send: ByteSize,
) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    let bytes = |size: ByteSize| usize::try_from(size.as_u64()).unwrap_or(usize::MAX);
    socket.set_recv_buffer_size(bytes(receive))?;
    socket.set_send_buffer_size(bytes(send))?;
    let (granted, _) = granted_buffers(SockRef::from(&socket))?;
    if granted < bytes(receive) {
        let (granted_bytes, wanted_bytes) = (granted, receive.as_u64());
        tracing::warn!(
            %address,
            granted_bytes,
            wanted_bytes,
            "the UDP receive buffer is too small: raise net.core.rmem_max, or bursts are lost"
        );
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// The sizes of the receive and send buffers that the kernel has granted. Linux reports twice the
/// usable size, to include its own bookkeeping (`man 7 socket`); the requested size is compared
/// with half of it.
pub fn granted_buffers(socket: SockRef<'_>) -> io::Result<(usize, usize)> {
    const SAYS_TIMES: usize = if cfg!(target_os = "linux") { 2 } else { 1 };
    Ok((
        socket.recv_buffer_size()? / SAYS_TIMES,
        socket.send_buffer_size()? / SAYS_TIMES,
    ))
}

fn server_config(
    config: &Config,
    idle_timeout: Duration,
    identity: &ServerIdentity,
) -> Result<ServerConfig, Error> {
    let mut server = ServerConfig::with_crypto(Arc::new(identity.quic()?));
    server.transport_config(Arc::new(transport(config, idle_timeout)));
    server
        .max_incoming(4096)
        .incoming_buffer_size(64 << 10)
        .incoming_buffer_size_total(16 << 20);
    Ok(server)
}

/// The maximum bytes of streams that QUIC holds for a connection until acknowledged.
pub const SEND_WINDOW: u64 = 1 << 20;

/// The limits on a connection's memory. A peer sends little, so receive buffers are small. Data
/// sent to it is bounded by the send window, and by the session's limit on slots.
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
        // With 24 bits, 128 of them would repeat.
        assert!((0..1 << 16).all(|_| met.insert(ids.generate_cid())));
    }
}
