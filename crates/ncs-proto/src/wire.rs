//! Bytes and messages of `ncs/1`: their layout, limits and error codes. `docs/protocol.md` is the
//! authority.
//!
//! Everything here is a pure function from bytes to values or back. Parsing checks every limit
//! before it allocates, and yields types that cannot be wrong. Nothing in this module knows a
//! socket, a clock or a task.

pub mod block;
mod codes;
pub mod elsewhere;
pub mod frame;
pub mod message;
pub mod refusal;
pub mod text;
mod varint;
mod version;
mod violation;

pub use codes::{CODE_BASE, CloseCode};
pub use version::{ALPN, DEFAULT_PORT, MINOR};
pub use violation::Violation;
