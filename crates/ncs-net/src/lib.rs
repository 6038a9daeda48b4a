//! What a program of the protocol `ncs/1` needs beside it: sockets, TLS and congestion control of
//! QUIC, its sessions with web pages, HTTP listeners, logs and metrics, units of a configuration,
//! secrets, guards of tasks, and what the machine offers.
//!
//! Nothing here knows what is sent. A server, a relay and a client share it.

// They panic when the reader is gone: use `console` for both outputs.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

#[cfg(feature = "http")]
pub mod admin;
pub mod console;
pub mod endpoint;
#[cfg(feature = "http")]
pub mod feed;
pub mod files;
#[cfg(feature = "http")]
pub mod host;
#[cfg(feature = "http")]
pub mod listener;
pub mod machine;
#[cfg(feature = "http")]
pub mod page;
pub mod path;
pub mod secret;
pub mod supervise;
pub mod telemetry;
pub mod tls;
pub mod units;
pub mod web;
