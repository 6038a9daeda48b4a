//! The UDP sockets of an address.
//!
//! One socket has one endpoint of quinn, which makes all handshakes under its lock: a few thousand
//! a second, however many cores there are. So a server has a socket for each core, and [`steering`]
//! says which packet is whose. Where that is refused, there is one socket, and the log says so.
//!
//! The first socket is bound alone and shared only then. So a second server on the same address
//! still fails to start, although it could otherwise join the sockets of the first unnoticed, and
//! take a part of its clients.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::num::NonZeroU8;
use std::str::FromStr;

use bytesize::ByteSize;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::{Config, steering};

/// `endpoint.sockets`: a number, or `"auto"` for one socket per core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sockets {
    /// One socket for each core that this process may use, at most 16.
    #[default]
    Auto,
    /// This many sockets.
    Count(NonZeroU8),
}

impl Sockets {
    /// One socket.
    pub const ONE: Self = Self::Count(NonZeroU8::MIN);

    /// The number of sockets of each address on this machine.
    pub fn count(self) -> u8 {
        match self {
            Self::Auto => std::thread::available_parallelism()
                .map_or(1, |cores| u8::try_from(cores.get()).unwrap_or(u8::MAX))
                .min(AUTO_MAX),
            Self::Count(count) => count.get(),
        }
    }
}

impl fmt::Display for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Count(count) => write!(f, "{count}"),
        }
    }
}

impl FromStr for Sockets {
    type Err = NotSockets;

    fn from_str(text: &str) -> Result<Self, NotSockets> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => text
                .parse()
                .ok()
                .filter(|count| *count <= SOCKETS_MAX)
                .map(Self::Count)
                .ok_or(NotSockets),
        }
    }
}

/// A text that is not a number of sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected \"auto\" or a number of sockets from 1 to {SOCKETS_MAX}")]
pub struct NotSockets;

impl Serialize for Sockets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Count(count) => serializer.serialize_u8(count.get()),
        }
    }
}

impl<'de> Deserialize<'de> for Sockets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Sockets;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"auto\" or a number from 1 to {SOCKETS_MAX}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Sockets, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Sockets, E> {
                number.to_string().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Sockets, E> {
                number.to_string().parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// Gives the kernel the program that chooses a socket.
pub(super) type Attach = fn(&SockRef<'_>, &[steering::Instruction]) -> io::Result<()>;

/// Opens the sockets of an address: as many as configured for each of so many processes, or one
/// where that is refused. All packets go to those of the first process.
pub(super) fn open(
    config: &Config,
    processes: u8,
    address: SocketAddr,
    attach: Attach,
) -> io::Result<Vec<UdpSocket>> {
    let first = udp_socket(address, config.receive_buffer, config.send_buffer)?;
    let (address, wanted) = (first.local_addr()?, config.sockets.count());
    let mut sockets = vec![first];
    if wanted > 1 || processes > 1 {
        match share(config, &sockets[0], (wanted, processes), attach) {
            Ok(others) => {
                sockets.extend(others);
                tracing::info!(
                    %address,
                    sockets = wanted,
                    "packets are spread over sockets by connection ids",
                );
            }
            Err(error) => {
                // No other process may join the socket.
                SockRef::from(&sockets[0]).set_reuse_port(false)?;
                tracing::warn!(
                    %address,
                    sockets = 1,
                    wanted,
                    %error,
                    "the system refuses several sockets on one address: handshakes use one core \
                     at a time"
                );
            }
        }
    }
    Ok(sockets)
}

/// Whether this system lets the configured number of sockets share an address like this one. The
/// port is the system's choice.
pub fn check_sharing(config: &Config, ip: IpAddr) -> io::Result<()> {
    let address = SocketAddr::new(ip, 0);
    let first: UdpSocket = unbound(address, config.receive_buffer, config.send_buffer)
        .and_then(|socket| socket.bind(&address.into()).map(|()| socket.into()))?;
    let wanted = (config.sockets.count(), 1);
    share(config, &first, wanted, steering::attach).map(drop)
}

/// Opens the other sockets of an address, in the order of their workers.
fn share(
    config: &Config,
    first: &UdpSocket,
    (wanted, processes): (u8, u8),
    attach: Attach,
) -> io::Result<Vec<UdpSocket>> {
    let address = first.local_addr()?;
    let first = SockRef::from(first);
    first.set_reuse_port(true)?;
    let others = (1..u16::from(wanted) * u16::from(processes))
        .map(|_| {
            let socket = unbound(address, config.receive_buffer, config.send_buffer)?;
            socket.set_reuse_port(true)?;
            socket.bind(&address.into())?;
            Ok(socket.into())
        })
        .collect::<io::Result<_>>()?;
    let plan = steering::Plan::alone(wanted);
    attach(&first, &steering::program(&plan))?;
    Ok(others)
}

/// Opens a UDP socket with these buffers, as far as the kernel grants them.
pub fn udp_socket(address: SocketAddr, receive: ByteSize, send: ByteSize) -> io::Result<UdpSocket> {
    let socket = unbound(address, receive, send)?;
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
    socket.bind(&address.into())?;
    Ok(socket.into())
}

fn unbound(address: SocketAddr, receive: ByteSize, send: ByteSize) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.set_recv_buffer_size(bytes(receive))?;
    socket.set_send_buffer_size(bytes(send))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
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

fn bytes(size: ByteSize) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}

/// Each socket has a receiving thread. More handshakes than this many sockets take are beyond any
/// machine of today.
const AUTO_MAX: u8 = 16;
/// More would not be filled evenly by one octet of an id.
const SOCKETS_MAX: NonZeroU8 = NonZeroU8::new(64).expect("64 is not zero");
