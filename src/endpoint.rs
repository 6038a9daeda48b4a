//! UDP sockets and QUIC endpoints, and who may connect.

use std::net::{Ipv4Addr, SocketAddr};

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

/// Where peers connect, and how many may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// UDP addresses to listen on.
    #[serde(deserialize_with = "crate::config::one_or_many")]
    pub listen: Vec<SocketAddr>,
    /// Most connections at a time, handshakes included.
    pub connections_max: u32,
    /// Half-open handshakes from which on a new one must prove its address first.
    pub retry_above: u32,
    /// Receive buffer asked of the kernel for each socket.
    #[serde(with = "crate::config::size")]
    pub receive_buffer: ByteSize,
    /// Send buffer asked of the kernel for each socket.
    #[serde(with = "crate::config::size")]
    pub send_buffer: ByteSize,
    /// Generic segmentation offload.
    pub gso: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 4443))],
            connections_max: 10_000,
            retry_above: 64,
            receive_buffer: ByteSize::mib(2),
            send_buffer: ByteSize::mib(2),
            gso: true,
        }
    }
}
