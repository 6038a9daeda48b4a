//! Bytes and messages of `ncs/1`: what travels, its limits and its error codes. `docs/protocol.md` is the authority.
//!
//! Everything here is a pure function from bytes to values or back. Parsing checks every limit before it allocates and yields
//! types that cannot be wrong; nothing in this module knows a socket, a clock or a task.

pub mod message;
