//! `ncserverd` as an operator uses it: its answers, reloads, ends and exit codes.

#[cfg(target_arch = "x86_64")]
mod death;
mod metrics;
mod page;
mod pipes;
#[path = "../program/mod.rs"]
mod program;
mod secrets;
mod serve;
mod server;
mod sizes;
