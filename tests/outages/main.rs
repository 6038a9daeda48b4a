//! Outages of a fleet under viewers of a live stream: nothing is late, and nothing is wrong.
//!
//! A real nginx, three nodes of NATS, servers and viewers, each on a host of its own: a network
//! namespace. That takes root, `unshare`, `ip`, and for some outages `nft`, `tc` and `cc`. Every
//! scenario has its own fleet and writes a report: it is printed, and put into the folder
//! `NCTEST_OUT`, if that is set. What is asserted is what has to hold on a slow machine, too; how
//! long viewers took to move is only told.
//!
//! CI has a small fleet. `make outages` has a large one, by the variables that `scale.rs` reads.

mod fleet;
mod moves;
mod net;
#[path = "../program/mod.rs"]
mod program;
mod report;
mod scale;
mod scenarios;
mod viewers;
