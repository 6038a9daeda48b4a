//! Calculates the resources of all peers from the measured constants. No I/O.

use super::Options;
use super::layout::{Layout, Way};
use super::measure::QuicCost;
use super::overhead::OnWire;
use crate::bench::EncodeRate;
use crate::config::Config;
use crate::device::Memory;
use crate::endpoint::Connections;
use crate::machine::Machine;
use crate::object::Codec;
use crate::session;

/// The measurements on this machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Constants {
    pub(super) encode: EncodeRate,
    pub(super) quic: QuicCost,
    /// Cores that this process may use.
    pub(super) cores: usize,
}

/// The results.
#[derive(Debug, Clone, Copy)]
pub(super) struct Estimate {
    /// Bytes on the wire per byte of media: headers, padding, repair.
    pub(super) wire_factor: f64,
    /// Bits per second on the server's link, towards the peers.
    pub(super) link: f64,
    /// Packets per second.
    pub(super) packets: f64,
    /// Blocks per second.
    pub(super) blocks: f64,
    /// Coded blocks per second: all, or, if source blocks are sent first, those that replace lost
    /// ones.
    pub(super) coded: f64,
    /// Full batches per second.
    pub(super) batches: f64,
    /// The part of the device's time that they take; above 1 it is impossible.
    pub(super) device_share: f64,
    /// Cores for QUIC and sessions.
    pub(super) quic_cores: f64,
    /// Cores for encoding.
    pub(super) encode_cores: f64,
    /// The number of peers that the cores of this machine could serve.
    pub(super) peers_here: f64,
    pub(super) ring_bytes: u64,
    pub(super) store_bytes: u64,
    /// Memory for copies on a device, and the device's memory, if it has its own.
    pub(super) device_bytes: Option<(u64, Memory)>,
    /// Memory of all sessions.
    pub(super) peers_bytes: u64,
    /// Seconds to complete the handshakes of all peers at once.
    pub(super) cold_start: f64,
    pub(super) connections_max: u32,
    /// The ring that a server on this machine would have for as many connections, if it were left
    /// to it.
    pub(super) ring_here: u64,
}

impl Estimate {
    pub(super) fn new(
        options: &Options,
        config: &Config,
        machine: &Machine,
        layout: &Layout,
        constants: &Constants,
    ) -> Self {
        let connections_max = options.peers.saturating_add(options.peers.div_ceil(10));
        let mut planned = config.clone();
        planned.endpoint.connections_max = Connections::at_most(connections_max);
        let shape = &layout.shape;
        let (peers, k) = (f64::from(options.peers), f64::from(layout.block_bytes()));
        let media = peers * options.bitrate / 8.0;
        let sent_again = 1.0 / (1.0 - options.loss);
        // Padding of the last block, and the average of redundant blocks.
        let sources = media * shape.blocks() as f64 / shape.length() as f64;
        let needed = sources * (1.0 + useless(layout.codec) / f64::from(layout.n()));
        let blocks = if layout.way == Way::Datagrams {
            needed * sent_again
        } else {
            needed
        };
        let coded = match (layout.is_source_first, layout.way) {
            (false, _) => blocks,
            (true, Way::Datagrams) => (blocks - sources).max(0.0),
            // QUIC retransmits the same block.
            (true, Way::Streams) => 0.0,
        };
        let on_wire = OnWire::new(layout);
        let (packets, wire) = (
            needed * sent_again * on_wire.packets,
            needed * sent_again * on_wire.wire_bytes,
        );

        let Constants {
            encode,
            quic,
            cores,
        } = constants;
        let quic_cores = packets * quic.cpu_per_packet;
        let encode_cores = coded * k * encode.cpu_per_byte;
        let shaking_cores = f64::from(config.endpoint.sockets.count()).min(*cores as f64);
        let batch_blocks = f64::from(config.encoder.batch_blocks_max);

        let segment = config.ingest.segment_max_bytes.as_u64();
        let seconds = config_retention(config) + WINDOW_SEGMENTS * options.segment.as_secs_f64();
        let watched =
            bytes(f64::from(options.streams) * options.bitrate / 8.0 * seconds).max(2 * segment);
        Self {
            wire_factor: wire / media,
            link: 8.0 * wire,
            packets,
            blocks,
            coded,
            batches: blocks / batch_blocks,
            device_share: coded * k / encode.bytes_per_second,
            quic_cores,
            encode_cores,
            peers_here: *cores as f64 * peers / (quic_cores + encode_cores),
            ring_bytes: ring_bytes(options, config, layout, blocks),
            store_bytes: whole_mib(watched),
            device_bytes: encode.memory.map(|memory| (whole_mib(watched), memory)),
            peers_bytes: u64::from(options.peers) * session::MEMORY_BYTES,
            cold_start: peers * quic.cpu_per_handshake / shaking_cores
                + 2.0 * options.rtt.as_secs_f64(),
            connections_max,
            ring_here: planned.sizes(machine).ring.as_u64(),
        }
    }

    pub(super) fn cores(&self) -> f64 {
        self.quic_cores + self.encode_cores
    }
}

/// By docs/operating.md, "Sizes", the maximum of: twice all bitrates times the round trip; two
/// batches; and 32 times what the fastest peer has in flight, because no peer gets more than a 32nd
/// of the free room.
fn ring_bytes(options: &Options, config: &Config, layout: &Layout, blocks: f64) -> u64 {
    let (slot, rtt) = (layout.slot_bytes() as f64, options.rtt.as_secs_f64());
    let on_the_way = 2.0 * blocks * rtt * slot;
    let batches = 2.0 * f64::from(config.encoder.batch_blocks_max) * slot;
    let fastest =
        32.0 * FASTEST * options.bitrate / 8.0 * rtt * slot / f64::from(layout.block_bytes());
    whole_mib(bytes(on_the_way.max(batches).max(fastest)))
}

/// The longest retention of the configured streams, or the default.
fn config_retention(config: &Config) -> f64 {
    let retention = config.stream.values().map(|stream| stream.retention).max();
    retention
        .unwrap_or_else(|| crate::stream::Config::default().retention)
        .as_secs_f64()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a float stops at the limits"
)]
fn bytes(bytes: f64) -> u64 {
    bytes.ceil() as u64
}

fn whole_mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20) << 20
}

/// The rate of the fastest peer, in multiples of the bitrate.
pub(super) const FASTEST: f64 = 10.0;
/// Segments listed in a playlist.
pub(super) const WINDOW_SEGMENTS: f64 = 6.0;
/// The mean number of redundant blocks per generation.
fn useless(codec: Codec) -> f64 {
    match codec {
        // Rows are random.
        Codec::Rlnc => 0.004,
        // Over the prime field, a random row is redundant once in 2^32.
        Codec::ReedSolomon { .. } | Codec::RlncQ { .. } => 0.0,
        // One generation in a hundred needs one more: RFC 6330, section 5.8.
        Codec::RaptorQ => 0.01,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::OPTIONS;
    use super::*;
    use crate::endpoint::Sockets;
    use crate::object::FirstPass;
    use crate::stream::{self, CodecName};

    fn constants() -> Constants {
        let encode = EncodeRate {
            backend: "cpu",
            kernel: "simd-gfni",
            bytes_per_second: 4e9,
            cpu_per_byte: 1e-9,
            batch_blocks: 512,
            memory: None,
        };
        let quic = QuicCost {
            cpu_per_packet: 2e-6,
            cpu_per_handshake: 250e-6,
            ..QuicCost::default()
        };
        Constants {
            encode,
            quic,
            cores: 4,
        }
    }

    pub(crate) fn estimate(options: &Options) -> Estimate {
        let mut config = Config::default();
        config.endpoint.sockets = Sockets::ONE;
        Estimate::new(
            options,
            &config,
            &MACHINE,
            &Layout::choose(options, &config).unwrap(),
            &constants(),
        )
    }

    const MACHINE: Machine = Machine {
        cores: 4,
        memory: Some(16 << 30),
    };

    fn is_near(one: f64, other: f64) -> bool {
        (one / other - 1.0).abs() < 0.01
    }

    #[test]
    fn the_figures_are_those_of_the_arithmetic() {
        let plan = estimate(&OPTIONS);
        // 94 blocks of 4096 bytes for 384,000 bytes, 2.892 packets per block.
        let blocks = 10_000.0 * 94.0 / 4.0;
        assert!(
            is_near(plan.blocks, blocks) && is_near(plan.packets, blocks * 2.892),
            "{plan:?}"
        );
        assert!(
            is_near(plan.link, plan.packets * 1480.0 * 8.0)
                && is_near(plan.wire_factor, plan.link / 7.68e9)
        );
        assert!(
            is_near(plan.quic_cores, plan.packets * 2e-6)
                && is_near(plan.encode_cores, blocks * 4096e-9)
        );
        assert!(
            is_near(plan.device_share, blocks * 4096.0 / 4e9)
                && is_near(plan.batches, blocks / 1024.0)
        );
        assert!(is_near(plan.peers_here, 4.0 / plan.cores() * 10_000.0));
        assert!(is_near(plan.cold_start, 2.6));
        assert_eq!(
            (plan.peers_bytes, plan.connections_max),
            (10_000 << 17, 11_000)
        );
        assert!(
            plan.ring_bytes as f64 >= 2.0 * 0.05 * 960e6 && plan.store_bytes == 16 << 20,
            "{plan:?}"
        );
    }

    #[test]
    fn what_is_lost_is_sent_again() {
        let (without, with) = (
            estimate(&OPTIONS),
            estimate(&Options {
                loss: 0.005,
                ..OPTIONS
            }),
        );
        assert!(
            is_near(with.packets, without.packets / 0.995) && is_near(with.blocks, without.blocks),
            "QUIC repairs streams"
        );
        let [some, much] = [0.01, 0.5].map(|loss| estimate(&Options { loss, ..OPTIONS }));
        assert!(
            is_near(much.blocks, some.blocks * 0.99 / 0.5),
            "coding repairs datagrams"
        );
    }

    #[test]
    fn where_source_blocks_go_first_only_losses_are_coded() {
        let with = |codec, parity, first_pass, loss| {
            let mut config = Config::default();
            let (n_max, block_bytes) = (64, 1088);
            let stream = stream::Config {
                n_max,
                block_bytes,
                codec,
                parity,
                first_pass,
                ..stream::Config::default()
            };
            config.stream.insert("live".into(), stream);
            let options = Options { loss, ..OPTIONS };
            Estimate::new(
                &options,
                &config,
                &MACHINE,
                &Layout::choose(&options, &config).unwrap(),
                &constants(),
            )
        };
        let dense = with(CodecName::Rlnc, None, FirstPass::Coded, 0.1);
        assert!(is_near(dense.coded, dense.blocks));
        for (codec, parity) in [
            (CodecName::Rs, Some(16)),
            (CodecName::RaptorQ, None),
            (CodecName::Rlnc, None),
        ] {
            let [none, some] =
                [0.0, 0.1].map(|loss| with(codec, parity, FirstPass::Systematic, loss));
            assert!(
                none.coded < none.blocks * 0.001 && none.encode_cores < 0.001 * none.quic_cores,
                "{codec:?} {none:?}"
            );
            assert!(
                is_near(some.coded / some.blocks, 0.1) && is_near(some.blocks, dense.blocks),
                "{codec:?} {some:?}"
            );
            assert!(
                is_near(some.device_share, some.coded * 1088.0 / 4e9),
                "{codec:?}"
            );
        }
    }

    #[test]
    fn few_peers_need_two_batches_of_ring() {
        let plan = estimate(&Options {
            peers: 1,
            ..OPTIONS
        });
        assert_eq!((plan.ring_bytes, plan.connections_max), (9 << 20, 2));
        assert_eq!(plan.ring_here, 64 << 20);
    }

    #[test]
    fn many_peers_need_the_ring_that_a_server_has_for_them() {
        let plan = estimate(&OPTIONS);
        assert_eq!(plan.ring_here, 344 << 20, "32 KiB for each of 11,000");
    }
}
