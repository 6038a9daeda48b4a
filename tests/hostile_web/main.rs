//! The attacks of `tests/hostile` on a server by web pages: the same rules hold over WebTransport.
//! And those that only pages can make.

use ncserverd::web::Binding;

#[path = "../hostile/attacker.rs"]
mod attacker;
#[path = "../hostile/crowd.rs"]
mod crowd;
#[path = "../hostile/flood.rs"]
mod flood;
#[path = "../hostile/ground.rs"]
mod ground;
#[path = "../hostile/leases.rs"]
mod leases;
mod pages;
#[path = "../program/mod.rs"]
mod program;
#[path = "../hostile/rates.rs"]
mod rates;
#[path = "../hostile/server.rs"]
mod server;

/// How attackers connect.
const BINDING: Binding = Binding::Web;
