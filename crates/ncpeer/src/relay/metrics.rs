//! Metrics of a relay, in addition to those of its sessions, its ring and its client.

use ncs_net::telemetry::register;
use prometheus::{Error, IntCounter, IntGauge, Registry};

/// Counters and gauges of a relay.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Bytes of held segments, complete or not.
    pub held_bytes: IntGauge,
    /// Held segments, complete or not.
    pub segments: IntGauge,
    /// Segments received completely and verified.
    pub completed: IntCounter,
    /// Failed attempts to fetch a segment.
    pub failed: IntCounter,
    /// Blocks recoded from incomplete segments.
    pub recoded_blocks: IntCounter,
    /// Recoded blocks whose rows could not be tested.
    pub unverified_blocks: IntCounter,
    /// Coded blocks made from complete segments.
    pub coded_blocks: IntCounter,
    /// Source blocks taken from complete segments.
    pub source_blocks: IntCounter,
}

impl Metrics {
    /// Registers all metrics of a relay.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let gauge = |name: &str, help: &str| register::gauge(registry, name, help);
        let counter = |name: &str, help: &str| register::counter(registry, name, help);
        Ok(Self {
            held_bytes: gauge(
                "ncserverd_relay_held_bytes",
                "Bytes of held segments, complete or not.",
            )?,
            segments: gauge(
                "ncserverd_relay_held_segments",
                "Held segments, complete or not.",
            )?,
            completed: counter(
                "ncserverd_relay_segments_completed_total",
                "Segments received completely and verified.",
            )?,
            failed: counter(
                "ncserverd_relay_segments_failed_total",
                "Failed attempts to fetch a segment.",
            )?,
            recoded_blocks: counter(
                "ncserverd_relay_recoded_blocks_total",
                "Blocks recoded from incomplete segments.",
            )?,
            unverified_blocks: counter(
                "ncserverd_relay_unverified_blocks_total",
                "Recoded blocks whose rows could not be tested.",
            )?,
            coded_blocks: counter(
                "ncserverd_relay_coded_blocks_total",
                "Coded blocks made from complete segments.",
            )?,
            source_blocks: counter(
                "ncserverd_relay_source_blocks_total",
                "Source blocks taken from complete segments.",
            )?,
        })
    }
}
