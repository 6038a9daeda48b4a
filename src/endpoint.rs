//! Sockets of `ncs-net`, who may connect to them, and whether there is time for newcomers.

pub use ncs_net::endpoint::*;
pub use ncs_serve::accept::{Metrics, accept};
pub use ncs_serve::headroom::Headroom;
