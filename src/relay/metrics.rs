//! What a relay counts besides its sessions and its ring.

use prometheus::{Error, IntCounter, IntGauge, Registry};
use tokio::sync::watch;

use crate::peer::Stats;
use crate::telemetry::register;

/// Counters and gauges of a relay.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Bytes of segments held, complete or not.
    pub held_bytes: IntGauge,
    /// Segments held.
    pub segments: IntGauge,
    /// Segments that came in full and were right.
    pub completed: IntCounter,
    /// Segments that could not be fetched.
    pub failed: IntCounter,
    /// Blocks recoded of what was there.
    pub recoded_blocks: IntCounter,
    /// Those of them whose rows nobody had tested.
    pub unverified_blocks: IntCounter,
    /// Blocks from sources that were proved wrong.
    pub wrong_blocks: IntCounter,
    /// Sources that sent such as their own, or forged answers, and are not used any more.
    pub polluters: IntCounter,
    /// Coded blocks made of complete segments.
    pub coded_blocks: IntCounter,
    /// Source blocks of complete segments.
    pub source_blocks: IntCounter,
    /// Blocks asked of sources ahead of need.
    pub ahead_blocks: IntCounter,
    /// Those of them that stood in for lost ones.
    pub ahead_used_blocks: IntCounter,
    /// Generations that these completed without another round trip.
    pub spared_generations: IntCounter,
    /// Bytes of blocks that servers sent, and that peers sent which servers had named.
    pub received: [IntCounter; 2],
}

impl Metrics {
    /// Registers them.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let gauge = |name: &str, help: &str| register::gauge(registry, name, help);
        let counter = |name: &str, help: &str| register::counter(registry, name, help);
        let received = register::counters(
            registry,
            "ncserverd_relay_received_bytes_total",
            "Bytes of blocks that came, from servers and from peers that servers had named.",
            &["from"],
        )?;
        Ok(Self {
            held_bytes: gauge("ncserverd_relay_held_bytes", "Bytes of segments that the relay holds, complete or not.")?,
            segments: gauge("ncserverd_relay_held_segments", "Segments that the relay holds, complete or not.")?,
            completed: counter("ncserverd_relay_segments_completed_total", "Segments that came in full and were verified.")?,
            failed: counter("ncserverd_relay_segments_failed_total", "Attempts to fetch a segment that failed.")?,
            recoded_blocks: counter("ncserverd_relay_recoded_blocks_total", "Blocks recoded of incomplete segments.")?,
            unverified_blocks: counter(
                "ncserverd_relay_unverified_blocks_total",
                "Those recoded blocks whose rows could not be tested.",
            )?,
            wrong_blocks: counter("ncserverd_relay_wrong_blocks_total", "Blocks of sources that were proved wrong.")?,
            polluters: counter(
                "ncserverd_relay_polluters_total",
                "Sources that sent wrong blocks as their own, or forged answers, and are not used any more.",
            )?,
            coded_blocks: counter("ncserverd_relay_coded_blocks_total", "Coded blocks made of complete segments.")?,
            source_blocks: counter("ncserverd_relay_source_blocks_total", "Source blocks taken of complete segments.")?,
            ahead_blocks: counter(
                "ncserverd_relay_ahead_blocks_total",
                "Blocks asked of sources ahead of need, near a deadline.",
            )?,
            ahead_used_blocks: counter("ncserverd_relay_ahead_used_blocks_total", "Those of them that stood in for lost ones.")?,
            spared_generations: counter(
                "ncserverd_relay_spared_generations_total",
                "Generations that blocks asked for ahead of need completed without another round trip.",
            )?,
            received: ["server", "peer"].map(|from| received.with_label_values(&[from])),
        })
    }

    /// Takes over what fetching has counted, as often as that is told.
    pub(super) async fn follow(self, mut stats: watch::Receiver<Stats>) {
        while stats.changed().await.is_ok() {
            let stats = stats.borrow_and_update();
            let from_servers = stats.payload_bytes.saturating_sub(stats.neighbour_bytes);
            let [servers, peers] = &self.received;
            for (counter, count) in [
                (&self.wrong_blocks, stats.blocks_wrong),
                (&self.polluters, stats.polluters),
                (&self.ahead_blocks, stats.blocks_ahead),
                (&self.ahead_used_blocks, stats.blocks_ahead_used),
                (&self.spared_generations, stats.generations_spared),
                (servers, from_servers),
                (peers, stats.neighbour_bytes),
            ] {
                counter.inc_by(count.saturating_sub(counter.get()));
            }
        }
    }
}
