//! The other end: fetch, decode, verify and hand over.

pub mod http;
pub mod playlist;
pub mod proto;
