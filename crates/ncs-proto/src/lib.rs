//! The protocol `ncs/1` without I/O: its messages, the values in them, and the decisions of both
//! sides.
//!
//! Everything here is a plain value: no socket, task or thread, and no clock. Time is an argument,
//! of the type [`time::Instant`]. So the same code serves a daemon, a test in virtual time, and a
//! page in a browser.

pub mod admission;
pub mod cache;
pub mod hex;
pub mod integrity;
pub mod media;
pub mod object;
pub mod peer;
pub mod ring;
pub mod rows;
pub mod session;
pub mod sorted;
pub mod time;
pub mod wire;
