//! Everything that measures `ncserverd` and is no part of it: cases of its arithmetic, the papers'
//! figures with their records and plots.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod bench;
pub mod plot;
