//! A peer of the protocol `ncs/1` for web pages, as WebAssembly.
//!
//! [`Peer`] reads objects from any number of servers, and verifies every byte. It does no I/O: the
//! page (`web/`) carries the bytes of WebTransport, and tells the time. [`Peer`] joins the protocol
//! machine of `ncs-proto`, the decoders of `ncs-codec`, and the proof of segments.
//!
//! With the feature `share`, pages serve each other over data channels of WebRTC, which the page
//! carries, too.
//!
//! A peer in a page has all codes but the one over the prime field, whose numbers need more code
//! than everything else. It decodes in the thread that calls.

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
mod exports;
mod peer;
mod read;

pub use peer::{Event, Peer, ReadId};
#[cfg(feature = "share")]
pub use peer::{LinkId, SharedCounts};
