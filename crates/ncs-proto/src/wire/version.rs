//! The name and version of the protocol.

/// The protocol and its major version, negotiated by TLS.
pub const ALPN: &[u8] = b"ncs/1";

/// The UDP port of a server that names none.
pub const DEFAULT_PORT: u16 = 4443;

/// The only minor version so far.
pub const MINOR: u64 = 0;
