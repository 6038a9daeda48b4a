//! Everything for trying out the system: a clip, an origin that serves it, a lossy path, and the
//! demo that joins them. Tests use the same parts.
//!
//! All of it runs in the calling process, on loopback, on ports chosen by the system. Randomness is
//! seeded, so that runs can be repeated.

pub mod clip;
pub mod demo;
pub mod fleet;
pub mod lossy;
pub mod origin;
pub mod plain;

pub use ncs_net::path;
