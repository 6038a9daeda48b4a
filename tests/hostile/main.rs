//! Hostile peers against the running programs: their messages end the connection with the right
//! code or stay unread, memory stays within stated limits, and other peers are still served.
//!
//! One attack per test, and one test at a time, because memory and delays are measured. `attacker`
//! is a client and `imposter` a server that send arbitrary data; `ground` has the programs and an
//! honest viewer that streams meanwhile and checks every byte. `tests/hostile_web` has the same
//! attacks by web pages.

use ncserverd::web::Binding;

mod attacker;
mod crowd;
mod flood;
mod ground;
mod imposter;
mod leases;
mod peer;
#[path = "../program/mod.rs"]
mod program;
mod quic;
mod rates;
mod relay;
mod server;

/// How attackers connect.
const BINDING: Binding = Binding::Quic;
