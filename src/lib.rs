//! The map of the crate, in the order in which a segment passes through it.
//!
//! ```text
//! origin ─▶ ingest ─▶ store ─▶ encoder ─▶ ring ─▶ session ─▶ wire ══QUIC══▶ wire ─▶ peer ─▶ player
//!                       │          │
//!                       └─ device ─┘      segments live on the device; the encoder asks it to combine
//! ```
//!
//! `ARCHITECTURE.md` says what each module owns and which others it may know.

// They panic where nobody reads: `console` has the words for both outputs.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod admin;
pub mod admission;
pub mod bench;
pub mod config;
pub mod console;
pub mod device;
pub mod directory;
pub mod doctor;
pub mod encoder;
pub mod endpoint;
mod files;
pub mod ingest;
pub mod lab;
mod listener;
pub mod peer;
pub mod plan;
pub mod relay;
pub mod ring;
pub mod secret;
pub mod server;
pub mod session;
pub mod store;
pub mod stream;
pub mod supervise;
pub mod telemetry;
pub mod tls;
mod turn;
pub mod units;

pub use ncs_codec as codec;
pub use ncs_codec::block;
pub use ncs_gf as gf;
pub use ncs_proto::{integrity, object, wire};
