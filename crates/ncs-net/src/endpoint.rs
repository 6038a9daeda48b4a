//! UDP sockets and QUIC endpoints.
//!
//! A [`Listener`] is an address and its *workers*: one endpoint per socket ([`sockets`]), to which
//! the kernel gives packets by their connection ids ([`ids`], [`steering`]). The workers of all
//! addresses share keys, so each of them accepts the tokens of the others, and resets their
//! connections. Limits hold for all of them together. The kernel's default buffers lose a burst of
//! Initial packets, which are then repeated only after a second. So larger buffers are requested,
//! and a smaller grant is logged.
//!
//! A thread per socket receives packets ([`receiver`]), and refuses clients for which there is no
//! room ([`doorway`]). Packets are sent in trains ([`train`]).
//! [`congestion`] decides how fast a connection sends, and [`Uplink`] when, where all of them share
//! a slow line.

mod congestion;
mod connections;
mod doorway;
mod ids;
mod ports;
mod receiver;
mod sockets;
mod steering;
mod task;
mod train;
mod uplink;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytesize::ByteSize;
use ncs_proto::wire::CloseCode;
use quinn::{
    AckFrequencyConfig, BloomTokenLog, Endpoint, EndpointConfig, Runtime, ServerConfig, TokenLog,
    TransportConfig, ValidationTokenConfig, VarInt,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub use congestion::{Congestion, close, close_with};
pub use connections::{Connections, NotConnections};
pub use doorway::{Doorkeeper, keep, retry_after};
pub use ports::{NotTaken, Port, Ports};
pub use sockets::{NotSockets, Sockets, check_sharing, granted_buffers, udp_socket};
pub use uplink::Uplink;

use crate::tls::{self, ServerIdentity};
use doorway::Doorway;
use ids::Owner;

/// The round trip that both sides assume until they have measured one. QUIC times out after three
/// of them, so every lost flight of a handshake costs that, and twice that if lost again. With 333
/// ms, which RFC 9002 (section 6.2.2) recommends, a handshake takes many seconds on a path with 20
/// % loss. On a path slower than 300 ms a few packets are sent twice. Chromium uses the same value.
pub const INITIAL_RTT: Duration = Duration::from_millis(100);

/// The minimum interval of stateless resets of an address. After a restart every earlier peer needs
/// one, so quinn's 20 ms would make ten thousand of them wait for minutes. A reset is smaller than
/// the packet that it answers, and needs no state.
const RESET_INTERVAL_MIN: Duration = Duration::from_micros(200);

/// The maximum number of new clients of an address that wait to be accepted. Further first packets
/// are ignored.
const INCOMING_MAX: usize = 4096;

/// The maximum bytes of packets that all of these have sent after their first.
const INCOMING_BYTES_MAX: u64 = 16 << 20;

/// The streams that a web page opens: the CONNECT request and the control stream; those of HTTP/3
/// for SETTINGS and for QPACK's encoder and decoder.
const PAGE_BIDIRECTIONAL: u32 = 2;
pub(crate) const PAGE_UNIDIRECTIONAL: u32 = 3;

/// A peer acknowledges at once what exceeds this number of packets. The fourth is, at a megabit a
/// second, the last of a turn ([`Uplink`]). Acknowledgements take a part of a line that is as slow.
const ACK_AFTER: u32 = 3;

/// The interval of looks at connections that a drain waits for.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// How long peers may take to acknowledge the close of a connection.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// The addresses to listen on, and the limits on connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// UDP addresses to listen on.
    #[serde(deserialize_with = "crate::units::one_or_many")]
    pub listen: Vec<SocketAddr>,
    /// The number of sockets of each address, each with an endpoint of its own.
    pub sockets: Sockets,
    /// The maximum number of connections, including handshakes.
    pub connections_max: Connections,
    /// The number of open handshakes above which a new client must validate its address first.
    pub retry_above: u32,
    /// The maximum time until requested blocks can be sent. If it stays above, viewers are asked to
    /// leave.
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
    /// Whether a program serves a few peers beside its own work: its runtime also receives and
    /// recodes, because threads for that would have to be woken, and to wake the runtime, for every
    /// few packets.
    #[serde(skip)]
    pub is_aside: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 4443))],
            sockets: Sockets::Auto,
            connections_max: Connections::Auto,
            retry_above: 64,
            wait_max: Duration::from_secs(1),
            receive_buffer: ByteSize::mib(4),
            send_buffer: ByteSize::mib(4),
            gso: true,
            congestion: Congestion::default(),
            is_aside: false,
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

/// An address, and an endpoint for each of its sockets.
#[derive(Debug)]
pub struct Listener {
    /// The address, with its port if the configuration leaves the choice to the system.
    pub address: SocketAddr,
    /// The endpoints, in the order of their workers. All must accept connections.
    pub endpoints: Vec<Endpoint>,
}

/// Opens the sockets and endpoints of each configured address.
pub fn open(
    config: &Config,
    idle_timeout: Duration,
    identity: &ServerIdentity,
) -> Result<Vec<Listener>, Error> {
    open_with(config, idle_timeout, identity, || {
        receiver::start(config.gso)
    })
}

/// The same on these sockets, but `keeper` may refuse handshakes, and `uplink` measures the line
/// that all connections share.
pub fn open_guarded(
    config: &Config,
    ports: &Ports,
    idle_timeout: Duration,
    identity: &ServerIdentity,
    keeper: Arc<dyn Doorkeeper>,
    uplink: Option<&Uplink>,
) -> Result<Vec<Listener>, Error> {
    let server = server_config(config, idle_timeout, identity, uplink)?;
    open_each(ports, &server, identity, Some(keeper), || {
        if config.is_aside {
            Ok(receiver::here(config.gso))
        } else {
            receiver::start(config.gso)
        }
    })
}

/// The same, but the caller's runtime also receives: for measurements that count all of the work.
pub fn open_here(
    config: &Config,
    idle_timeout: Duration,
    identity: &ServerIdentity,
) -> Result<Vec<Listener>, Error> {
    open_with(config, idle_timeout, identity, || {
        Ok(receiver::here(config.gso))
    })
}

/// The same on this runtime, which also sends and receives: for baselines on quinn's own.
pub fn open_with(
    config: &Config,
    idle_timeout: Duration,
    identity: &ServerIdentity,
    runtime: impl Fn() -> io::Result<Arc<dyn Runtime>>,
) -> Result<Vec<Listener>, Error> {
    let ports = Ports::open(config, false)?;
    let server = server_config(config, idle_timeout, identity, None)?;
    open_each(&ports, &server, identity, None, runtime)
}

fn open_each(
    ports: &Ports,
    server: &ServerConfig,
    identity: &ServerIdentity,
    keeper: Option<Arc<dyn Doorkeeper>>,
    runtime: impl Fn() -> io::Result<Arc<dyn Runtime>>,
) -> Result<Vec<Listener>, Error> {
    let listener = |port: &Port| {
        let keeper = keeper.as_ref();
        listen((ports, port), server, identity, keeper, &runtime).map_err(|source| Error::Bind {
            address: port.configured,
            source,
        })
    };
    ports.ports.iter().map(listener).collect()
}

/// How a server ends its sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departure {
    /// How long open requests may take.
    pub bound: Duration,
    /// Whether another process serves at the same addresses, to which peers are to connect.
    pub is_replaced: bool,
}

impl Departure {
    /// The server ends.
    pub const fn within(bound: Duration) -> Self {
        Self {
            bound,
            is_replaced: false,
        }
    }
}

/// Accepts no new connections, and lets sessions finish open requests (announced through `drain`).
/// Does not wait for `others`, the number of connections that are still open and no sessions.
pub async fn drain(
    endpoints: &[Endpoint],
    drain: &watch::Sender<Option<Departure>>,
    departure: Departure,
    others: impl Fn() -> usize,
) {
    for endpoint in endpoints {
        endpoint.set_server_config(None);
    }
    drain.send_replace(Some(departure));
    let open = || {
        endpoints
            .iter()
            .map(Endpoint::open_connections)
            .sum::<usize>()
    };
    let idle = async {
        while open() > others() {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    };
    if tokio::time::timeout(departure.bound + CLOSE_GRACE, idle)
        .await
        .is_err()
    {
        tracing::warn!("some peers did not close their connections in time");
    }
}

/// Closes all connections that are still open.
pub async fn close_all(endpoints: &[Endpoint]) {
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

fn listen(
    (ports, port): (&Ports, &Port),
    server: &ServerConfig,
    identity: &ServerIdentity,
    keeper: Option<&Arc<dyn Doorkeeper>>,
    runtime: impl Fn() -> io::Result<Arc<dyn Runtime>>,
) -> io::Result<Listener> {
    let (sockets, workers) = (port.of(ports.process)?, port.workers());
    let address = sockets[0].local_addr()?;
    let mut server = server.clone();
    server
        .max_incoming(INCOMING_MAX / usize::from(workers))
        .incoming_buffer_size_total(INCOMING_BYTES_MAX / u64::from(workers));
    let endpoints = sockets.into_iter().zip(0..workers).map(|(socket, worker)| {
        let owner = Owner {
            process: ports.process,
            worker,
        };
        let mut endpoint = EndpointConfig::new(Arc::new(identity.reset_key(address)));
        endpoint.cid_generator(move || Box::new(owner));
        endpoint.min_reset_interval(RESET_INTERVAL_MIN * u32::from(workers));
        let runtime = runtime()?;
        let mut socket = runtime.wrap_udp_socket(socket)?;
        if let Some(keeper) = keeper {
            let (keeper, crypto) = (Arc::clone(keeper), Arc::clone(&server.crypto));
            let other = (ports.next_process(), Arc::clone(&ports.is_beside));
            let door = Doorway::new(socket, keeper, crypto, owner, workers, other);
            socket = Arc::new(door);
        }
        Endpoint::new_with_abstract_socket(endpoint, Some(server.clone()), socket, runtime)
    });
    Ok(Listener {
        address,
        endpoints: endpoints.collect::<io::Result<_>>()?,
    })
}

fn server_config(
    config: &Config,
    idle_timeout: Duration,
    identity: &ServerIdentity,
    uplink: Option<&Uplink>,
) -> Result<ServerConfig, Error> {
    let (tls, tokens) = (Arc::new(identity.quic()?), Arc::new(identity.token_key()));
    let mut server = ServerConfig::new(tls, tokens);
    let mut transport = transport(config, idle_timeout, uplink);
    if identity.speaks_web() {
        transport.max_concurrent_bidi_streams(VarInt::from_u32(PAGE_BIDIRECTIONAL));
        transport.max_concurrent_uni_streams(VarInt::from_u32(PAGE_UNIDIRECTIONAL));
    }
    server.transport_config(Arc::new(transport));
    server.incoming_buffer_size(64 << 10);
    let mut tokens = ValidationTokenConfig::default();
    tokens.lifetime(TOKEN_LIFETIME).log(Arc::new(token_log()));
    server.validation_token_config(tokens);
    Ok(server)
}

/// The lifetime of a token that proves a client's address: the default of quinn.
const TOKEN_LIFETIME: Duration = Duration::from_secs(14 * 24 * 3600);

/// Takes each of these tokens once, in any order, also those that the process before has issued.
///
/// A log of quinn reckons from the first token that it is shown, and refuses all that were issued
/// before that one: most clients who come to a server that has started again. So it is shown one
/// first that was issued as long ago as a token lasts.
fn token_log() -> BloomTokenLog {
    let log = BloomTokenLog::default();
    let issued = SystemTime::now() - TOKEN_LIFETIME;
    // An empty log knows no token.
    let _ = log.check_and_insert(rand::random(), issued, TOKEN_LIFETIME);
    log
}

/// The maximum bytes of streams that QUIC holds for a connection until acknowledged.
pub const SEND_WINDOW: u64 = 1 << 20;

/// The limits on a connection's memory. A peer sends little, so receive buffers are small. Data
/// sent to it is bounded by the send window, and by the session's limit on slots.
fn transport(config: &Config, idle_timeout: Duration, uplink: Option<&Uplink>) -> TransportConfig {
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
    transport.congestion_controller_factory(config.congestion.factory_on(uplink));
    if uplink.is_some() {
        let mut often = AckFrequencyConfig::default();
        often.ack_eliciting_threshold(VarInt::from_u32(ACK_AFTER));
        transport.ack_frequency_config(Some(often));
    }
    transport
}

#[cfg(test)]
mod tests;
