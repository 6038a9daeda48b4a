//! Everything that measures `ncserverd` and is no part of it: cases of its arithmetic, the papers'
//! figures with their records and plots, and swarms of viewers that load a server.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod bench;
mod lab;
pub mod plot;
pub mod swarm;
