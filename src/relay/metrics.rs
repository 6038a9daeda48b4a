//! What a relay counts besides its sessions, its ring and what it fetches.

use prometheus::{Error, IntCounter, IntGauge, Registry};

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
    /// Coded blocks made of complete segments.
    pub coded_blocks: IntCounter,
    /// Source blocks of complete segments.
    pub source_blocks: IntCounter,
}

impl Metrics {
    /// Registers them.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let gauge = |name: &str, help: &str| register::gauge(registry, name, help);
        let counter = |name: &str, help: &str| register::counter(registry, name, help);
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
            coded_blocks: counter("ncserverd_relay_coded_blocks_total", "Coded blocks made of complete segments.")?,
            source_blocks: counter("ncserverd_relay_source_blocks_total", "Source blocks taken of complete segments.")?,
        })
    }
}
