//! UDP sockets and QUIC endpoints, and who may connect.
