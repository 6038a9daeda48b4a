//! What the configuration comes to on a machine: the files that the server may have open.
//!
//! The server and `doctor` ask here, so that they tell the same.

use super::Config;
use crate::admin;
use crate::device::BackendChoice;

impl Config {
    /// The maximum number of files for sockets, scrapers, fetches of every stream, watches of
    /// directories, and the process itself. Peers need none, because they share the sockets.
    pub fn files_needed(&self) -> u64 {
        let peers = self.endpoint.listen.len() * usize::from(self.endpoint.sockets.count());
        let sockets = peers * FILES_OF_SOCKET + 1 + admin::CONNECTIONS_MAX;
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
