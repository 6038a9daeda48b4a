//! The sockets of `ncs-net`, the admission of connections, and the detection of overload.

pub use ncs_net::endpoint::*;
pub use ncs_serve::accept::{Elsewhere, Metrics, accept};
pub use ncs_serve::headroom::Headroom;
