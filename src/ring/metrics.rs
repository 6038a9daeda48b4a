//! What the ring counts.

use prometheus::{Error, IntCounter, IntGauge, Registry};

use crate::telemetry::register;

/// Counters and gauges of the ring.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Bytes of memory that the ring may use.
    pub capacity_bytes: IntGauge,
    /// Bytes of slots that are out: being filled, ready, or not yet acknowledged.
    pub used_bytes: IntGauge,
    /// Blocks that are ready to be claimed.
    pub ready_blocks: IntGauge,
    /// Generations with demand or blocks.
    pub lines: IntGauge,
    /// Times a session came for blocks and found none ready.
    pub starved: IntCounter,
    /// Ready blocks dropped: nobody wanted them and the room was needed, or their segment went.
    pub dropped: IntCounter,
    /// Payload bytes copied because several sessions shared a block that left in a datagram.
    pub copied_bytes: IntCounter,
}

impl Metrics {
    /// Registers them.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        Ok(Self {
            capacity_bytes: register::gauge(registry, "ncserverd_ring_capacity_bytes", "Memory that the ring may use.")?,
            used_bytes: register::gauge(
                registry,
                "ncserverd_ring_used_bytes",
                "Memory of slots that are being filled, ready, or not yet acknowledged.",
            )?,
            ready_blocks: register::gauge(registry, "ncserverd_ring_ready_blocks", "Blocks that are ready to be claimed.")?,
            lines: register::gauge(registry, "ncserverd_ring_lines", "Generations with demand or blocks in the ring.")?,
            starved: register::counter(
                registry,
                "ncserverd_ring_starved_total",
                "Times a session came for blocks and found none ready.",
            )?,
            dropped: register::counter(
                registry,
                "ncserverd_ring_dropped_blocks_total",
                "Ready blocks dropped because nobody wanted them and the room was needed, or because their segment went.",
            )?,
            copied_bytes: register::counter(
                registry,
                "ncserverd_ring_copied_bytes_total",
                "Payload bytes copied because several sessions shared a block that left in a datagram.",
            )?,
        })
    }
}
