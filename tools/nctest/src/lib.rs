//! What tests and benches of several packages share.
//!
//! It does not depend on `ncserverd`, whose tests use it: the crates below it have what is needed.
//! Cargo tells only the tests of a package where its programs are, so they pass these paths.

#![expect(missing_debug_implementations, reason = "no test prints them")]

#[cfg(feature = "network")]
pub mod chromium;
#[cfg(feature = "bench")]
pub mod cpu_time;
#[cfg(feature = "network")]
pub mod daemon;
pub mod exposition;
pub mod fleet;
pub mod http;
#[cfg(feature = "network")]
pub mod live;
#[cfg(feature = "network")]
pub mod mint;
pub mod netns;
pub mod nginx;
pub mod number;
#[cfg(feature = "network")]
pub mod origin;
#[cfg(feature = "network")]
pub mod page;
pub mod pipes;
pub mod process;
pub mod program;
#[cfg(feature = "network")]
pub mod script;
pub mod shake256;
pub mod skip;
#[cfg(feature = "bench")]
pub mod turns;
