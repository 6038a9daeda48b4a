//! Everything to try the system with and nothing else: a clip, an origin that serves it, a lossy path, and the demo that joins
//! them. Tests use the same parts.
//!
//! All of it runs in the process that asks for it, on loopback, on ports the system chooses. Whatever is random is drawn from a
//! seed, so that a run can be repeated.

pub mod clip;
pub mod demo;
pub mod lossy;
pub mod origin;

pub use ncs_net::path;
