//! Hostile peers against the running programs: what they say ends their connection with the right code or is left unread, takes
//! no more memory than is stated, and others go on meanwhile.
//!
//! One attack a test, and one test at a time: memory and patience are measured. `attacker` is a connection that says whatever it
//! likes, `imposter` a server that does, `ground` the programs and an honest viewer that streams during all of it, and checks every byte.

mod attacker;
mod crowd;
mod flood;
mod ground;
mod imposter;
mod leases;
#[path = "../admission/mint.rs"]
#[expect(dead_code, reason = "shared with the tests of admission, which need more of it")]
mod mint;
#[path = "../ingest/origin.rs"]
#[expect(dead_code, reason = "shared with the tests of ingest, which need more of it")]
mod origin;
mod peer;
#[path = "../program/mod.rs"]
mod program;
mod rates;
mod relay;
#[path = "../program/running.rs"]
mod running;
mod server;
