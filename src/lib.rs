//! The map of the crate, in the order in which a segment passes through it.
//!
//! ```text
//! origin ─▶ ingest ─▶ store ─▶ encoder ─▶ ring ─▶ session ─▶ wire ══QUIC══▶ wire ─▶ peer ─▶ player
//!                       │          │
//!                       └─ device ─┘      segments are on the device, which combines their blocks
//! ```
//!
//! `ARCHITECTURE.md` says what each module owns and which others it may know.

// They panic when the reader is gone: use `console` for both outputs.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod allocator;
pub mod bench;
pub mod cluster;
pub mod config;
pub mod device;
pub mod doctor;
pub mod document;
pub mod encoder;
pub mod endpoint;
pub mod ingest;
pub mod lab;
pub mod pages;
pub mod plan;
pub mod server;
pub mod store;
pub mod stream;

pub use ncpeer as peer;
pub use ncpeer::relay;
pub use ncs_codec as codec;
pub use ncs_codec::block;
pub use ncs_gf as gf;
pub use ncs_net::{admin, console, host, machine, secret, supervise, telemetry, tls, units, web};
pub use ncs_proto::{integrity, object, wire};
pub use ncs_serve::{admission, directory, fleet, ring, session, sizes};
