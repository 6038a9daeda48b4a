//! `ncserverd` as an operator meets it: what it answers, how it reloads and stops, and what it exits with.

#[cfg(target_arch = "x86_64")]
mod death;
mod metrics;
mod pipes;
#[path = "../program/mod.rs"]
mod program;
mod secrets;
mod serve;
mod server;
