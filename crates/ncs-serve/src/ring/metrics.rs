//! Metrics of the ring.

use ncs_net::telemetry::register;
use prometheus::{Error, IntCounter, IntGauge, Registry};

/// Counters and gauges of the ring.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Memory limit of the ring, in bytes.
    pub capacity_bytes: IntGauge,
    /// Bytes of slots in use: being filled, ready, or not yet acknowledged.
    pub used_bytes: IntGauge,
    /// Blocks ready to be claimed.
    pub ready_blocks: IntGauge,
    /// Generations with demand or blocks.
    pub lines: IntGauge,
    /// Times a session looked for blocks and found none ready.
    pub starved: IntCounter,
    /// Ready blocks dropped: without demand while room was needed, or of an evicted segment.
    pub dropped: IntCounter,
    /// Payload bytes copied because several sessions shared a block sent in a datagram.
    pub copied_bytes: IntCounter,
}

impl Metrics {
    /// Registers all metrics of the ring.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        Ok(Self {
            capacity_bytes: register::gauge(
                registry,
                "ncserverd_ring_capacity_bytes",
                "Memory limit of the ring.",
            )?,
            used_bytes: register::gauge(
                registry,
                "ncserverd_ring_used_bytes",
                "Memory of slots that are being filled, ready, or not yet acknowledged.",
            )?,
            ready_blocks: register::gauge(
                registry,
                "ncserverd_ring_ready_blocks",
                "Blocks ready to be claimed.",
            )?,
            lines: register::gauge(
                registry,
                "ncserverd_ring_lines",
                "Generations with demand or blocks in the ring.",
            )?,
            starved: register::counter(
                registry,
                "ncserverd_ring_starved_total",
                "Times a session looked for blocks and found none ready.",
            )?,
            dropped: register::counter(
                registry,
                "ncserverd_ring_dropped_blocks_total",
                "Ready blocks dropped: without demand while room was needed, or of an evicted \
                 segment.",
            )?,
            copied_bytes: register::counter(
                registry,
                "ncserverd_ring_copied_bytes_total",
                "Payload bytes copied because several sessions shared a block sent in a datagram.",
            )?,
        })
    }
}
