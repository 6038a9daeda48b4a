//! Sockets of `ncs-net`, who may connect to them, and whether there is time for newcomers.

mod accept;
mod headroom;

pub use accept::{Metrics, accept};
pub use headroom::Headroom;
pub use ncs_net::endpoint::*;
