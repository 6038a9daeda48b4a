//! `ncserverd` as an operator meets it: what it answers, how it reloads and stops, and what it exits with.

mod metrics;
mod pipes;
#[path = "../program/mod.rs"]
mod program;
mod secrets;
mod serve;
mod server;
