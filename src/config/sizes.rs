//! What the configuration comes to on a machine: the sizes that are `"auto"`, and the files that
//! the server may have open.
//!
//! The server, `plan` and `doctor` ask here, so that they tell the same.

use super::{Config, check};
use crate::admin;
use crate::device::BackendChoice;
use crate::machine::Machine;
use crate::pages;
use crate::ring::HEADROOM;
use crate::sizes::{Load, Sizes};
use crate::stream;

impl Config {
    /// The limits on connections and on the ring's memory on this machine.
    pub fn sizes(&self, machine: &Machine) -> Sizes {
        let of_streams = self.stream.values().map(check::slot_bytes).max();
        let slot_bytes =
            of_streams.unwrap_or_else(|| stream::Config::default().block_bytes as usize + HEADROOM);
        let load = Load {
            held_bytes: self.store.bytes.as_u64(),
            slot_bytes: slot_bytes as u64,
            batch_blocks: self.encoder.batch_blocks_max,
        };
        Sizes::of(machine, &self.endpoint, &self.ring, &load)
    }

    /// The maximum number of files for sockets, scrapers, fetches of every stream, watches of
    /// directories, and the process itself. Peers need none, because they share the sockets.
    pub fn files_needed(&self) -> u64 {
        let peers = self.endpoint.listen.len() * usize::from(self.endpoint.sockets.count());
        let viewers = self.web.listen.map_or(0, |_| 1 + pages::CONNECTIONS_MAX);
        let sockets = peers * FILES_OF_SOCKET + 1 + admin::CONNECTIONS_MAX + viewers;
        // Each fetch has a connection or an open file, and as many idle connections are kept.
        let fetches: u64 = self
            .stream
            .values()
            .map(|_| 2 * u64::from(self.ingest.fetches_max) + 1)
            .sum();
        let gpus = if self.device.backend == BackendChoice::Cpu {
            0
        } else {
            FILES_OF_DRIVER
        };
        FILES_OF_PROCESS + sockets as u64 + fetches + gpus
    }
}

/// For the runtime, logs, signals and a terminal.
const FILES_OF_PROCESS: u64 = 64;
/// A socket for peers, and the event queue of its receiving thread.
const FILES_OF_SOCKET: usize = 4;
/// For the NVIDIA driver, with all cards of a host.
const FILES_OF_DRIVER: u64 = 128;
