//! The sizes that `"auto"` stands for: how many connections, and how large a ring.
//!
//! One function, [`Sizes::of`], is used by a server, a relay, and the commands that tell what a
//! server would do, so that they agree. Its inputs are the configuration and what does not change
//! while a process runs ([`Machine`]): the same machine has the same sizes at each start, however
//! busy it is.
//!
//! **Connections** are what memory and cores suffice for. Of the memory, segments and the ring take
//! their part first. One half of the rest is for connections, at [`MEMORY_BYTES`] each; the other
//! half is for everything else. A core serves about 5,000 viewers at 768 kbit/s
//! (docs/benchmarks/servers.md). The limit is twice as much, because many have less to send, and
//! because admission, which measures the load, should refuse viewers before the limit does.
//!
//! **The ring** has room for 32 KiB of each connection. That is the smallest part that a session
//! gets, eight blocks of 4 KiB, however full the ring is ([`Ring::share`]). So everybody can have
//! this part at the same time. In steady state viewers at 768 kbit/s had less than 1 KiB each in
//! the ring, and 12 KiB after the server was held up for a moment. The ring allocates memory as it
//! needs it, so a large limit costs nothing in itself. A GPU's ring is memory of the process, too,
//! and pinned: the system can neither swap it out nor take it back. So it is at most an eighth of
//! the memory, on every machine. It takes none of the card's memory, which therefore does not
//! bound it.
//!
//! [`Ring::share`]: crate::ring::Ring::share

use std::num::NonZeroU32;

use bytesize::ByteSize;
use ncs_net::endpoint::{self, Connections};
use ncs_net::machine::Machine;

use crate::ring::{self, Capacity};
use crate::session::MEMORY_BYTES;

/// What a server is to hold and to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Memory for segments.
    pub held_bytes: u64,
    /// Bytes of the largest slot, headroom included.
    pub slot_bytes: u64,
    /// Blocks of the largest batch.
    pub batch_blocks: u32,
}

/// The sizes of a server on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// The maximum number of connections.
    pub connections: u32,
    /// The memory of the ring.
    pub ring: ByteSize,
}

impl Sizes {
    /// The configured sizes; those that are left to the machine are derived from it.
    pub fn of(
        machine: &Machine,
        endpoint: &endpoint::Config,
        ring: &ring::Config,
        load: &Load,
    ) -> Self {
        let memory = machine.memory.unwrap_or(MEMORY_ASSUMED);
        let ring_max = memory / RING_PART;
        let connections = match endpoint.connections_max {
            Connections::Count(count) => count.get(),
            Connections::Auto => {
                let of_ring = match ring.bytes {
                    Capacity::Bytes(bytes) => bytes.as_u64(),
                    Capacity::Auto => ring_max,
                };
                let left = memory.saturating_sub(load.held_bytes.saturating_add(of_ring));
                let by_memory = left / 2 / MEMORY_BYTES;
                let by_cores = (machine.cores as u64).saturating_mul(CONNECTIONS_OF_CORE);
                u32::try_from(by_memory.min(by_cores))
                    .unwrap_or(u32::MAX)
                    .clamp(CONNECTIONS_MIN, Connections::AUTO_MAX)
            }
        };
        let ring = match ring.bytes {
            Capacity::Bytes(bytes) => bytes,
            Capacity::Auto => {
                let batches = 2 * u64::from(load.batch_blocks) * load.slot_bytes;
                let least = Capacity::AUTO_MIN.as_u64().max(batches);
                let wanted = u64::from(connections) * RING_BYTES_OF_CONNECTION;
                ByteSize(wanted.min(ring_max).max(least).next_multiple_of(MIB))
            }
        };
        Self { connections, ring }
    }

    /// Replaces what the configuration leaves to the machine.
    pub fn settle(&self, endpoint: &mut endpoint::Config, ring: &mut ring::Config) {
        let connections = NonZeroU32::new(self.connections).unwrap_or(NonZeroU32::MIN);
        endpoint.connections_max = Connections::Count(connections);
        ring.bytes = Capacity::Bytes(self.ring);
    }

    /// Logs them.
    pub fn tell(&self, machine: &Machine) {
        tracing::info!(
            connections_max = self.connections,
            ring_bytes = self.ring.as_u64(),
            cores = machine.cores,
            memory_bytes = machine.memory,
            "the limits on connections and on the ring's memory, on this machine",
        );
    }
}

/// Where the system does not tell how much memory there is.
const MEMORY_ASSUMED: u64 = 4 << 30;
/// The ring has this part of the memory at most.
const RING_PART: u64 = 8;
/// Room in the ring for each connection.
const RING_BYTES_OF_CONNECTION: u64 = 32 << 10;
/// Connections for each core.
const CONNECTIONS_OF_CORE: u64 = 10_000;
/// The smallest limit on connections, however little memory there is.
const CONNECTIONS_MIN: u32 = 1_000;
const MIB: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const LOAD: Load = Load {
        held_bytes: 512 << 20,
        slot_bytes: 4096 + 64,
        batch_blocks: 1024,
    };

    fn sizes(cores: usize, memory: Option<u64>, connections: &str, ring: &str) -> (u32, u64) {
        let endpoint = endpoint::Config {
            connections_max: connections.parse().unwrap(),
            ..endpoint::Config::default()
        };
        let ring = ring::Config {
            bytes: ring.parse().unwrap(),
            ..ring::Config::default()
        };
        let Sizes { connections, ring } =
            Sizes::of(&Machine { cores, memory }, &endpoint, &ring, &LOAD);
        (connections, ring.as_u64())
    }

    #[test]
    fn sizes_grow_with_the_machine_within_bounds() {
        for (cores, memory, connections, ring) in [
            // A control group that the store alone would fill.
            (2, 512 << 20, 1_000, 64 << 20),
            (2, GIB, 1_536, 64 << 20),
            (2, 2 * GIB, 5_120, 160 << 20),
            // Half of what 0.5 GiB of segments and 0.5 GiB of ring leave.
            (2, 4 * GIB, 12_288, 384 << 20),
            // Two cores are the limit.
            (2, 64 * GIB, 20_000, 625 << 20),
            (8, 16 * GIB, 55_296, 1_728 << 20),
            (8, 128 * GIB, 80_000, 2_500 << 20),
            (16, 128 * GIB, 100_000, 3_125 << 20),
            (128, 2048 * GIB, 100_000, 3_125 << 20),
        ] {
            assert_eq!(
                sizes(cores, Some(memory), "auto", "auto"),
                (connections, ring),
                "{cores} cores, {memory} bytes"
            );
        }
        assert_eq!(
            sizes(2, None, "auto", "auto"),
            sizes(2, Some(4 * GIB), "auto", "auto")
        );
    }

    #[test]
    fn the_ring_is_for_the_connections_that_are_asked_for() {
        assert_eq!(
            sizes(2, Some(16 * GIB), "1000", "auto"),
            (1_000, Capacity::AUTO_MIN.as_u64())
        );
        assert_eq!(
            sizes(2, Some(16 * GIB), "40000", "auto"),
            (40_000, 1_250 << 20)
        );
        assert_eq!(
            sizes(2, Some(8 * GIB), "4000000", "auto"),
            (4_000_000, GIB),
            "an eighth of the memory"
        );
    }

    #[test]
    fn what_is_configured_stays() {
        assert_eq!(
            sizes(2, Some(GIB), "70000", "1GiB"),
            (70_000, GIB),
            "even where it does not fit"
        );
        let [small, large] = ["64MiB", "2GiB"].map(|ring| sizes(8, Some(4 * GIB), "auto", ring));
        assert_eq!(small, (14_080, 64 << 20));
        assert_eq!(large, (6_144, 2 * GIB), "its memory is not for connections");
    }

    #[test]
    fn the_ring_holds_two_batches_of_the_largest_block() {
        let load = Load {
            slot_bytes: 65_536 + 64,
            batch_blocks: 4096,
            ..LOAD
        };
        let machine = Machine {
            cores: 1,
            memory: Some(GIB),
        };
        let Sizes { ring, .. } = Sizes::of(
            &machine,
            &endpoint::Config::default(),
            &ring::Config::default(),
            &load,
        );
        assert!(ring.as_u64() >= 2 * 4096 * (65_536 + 64), "{ring}");
    }

    #[test]
    fn settled_configurations_leave_nothing_to_the_machine() {
        let (mut endpoint, mut ring) = (endpoint::Config::default(), ring::Config::default());
        let machine = Machine {
            cores: 2,
            memory: Some(4 * GIB),
        };
        let sizes = Sizes::of(&machine, &endpoint, &ring, &LOAD);
        sizes.settle(&mut endpoint, &mut ring);
        assert_eq!(endpoint.connections_max, Connections::at_most(12_288));
        assert_eq!(ring.bytes, Capacity::Bytes(ByteSize::mib(384)));
        let others = Machine {
            cores: 128,
            memory: Some(1024 * GIB),
        };
        assert_eq!(Sizes::of(&others, &endpoint, &ring, &LOAD), sizes);
    }
}
