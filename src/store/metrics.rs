//! What the store counts.

use prometheus::{IntCounter, IntGauge, Registry};

use super::index::Cause;
use crate::telemetry::register;

/// Counters and gauges of the store.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Bytes that held segments occupy on the device.
    pub resident_bytes: IntGauge,
    /// Segments held.
    pub resident_segments: IntGauge,
    /// Bytes that may be occupied.
    pub budget_bytes: IntGauge,
    /// Segments taken in.
    pub inserted: IntCounter,
    /// Segments refused because everything held is in use.
    pub refused: IntCounter,
    evicted_expired: IntCounter,
    evicted_room: IntCounter,
}

impl Metrics {
    /// Registers every series.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let evictions = register::counters(
            registry,
            "ncserverd_store_evictions_total",
            "Segments that went: expired, or least recently used when room was needed.",
            &["cause"],
        )?;
        Ok(Self {
            resident_bytes: register::gauge(
                registry,
                "ncserverd_store_resident_bytes",
                "Bytes that held segments occupy on the device.",
            )?,
            resident_segments: register::gauge(registry, "ncserverd_store_resident_segments", "Segments held.")?,
            budget_bytes: register::gauge(registry, "ncserverd_store_budget_bytes", "Bytes that held segments may occupy.")?,
            inserted: register::counter(registry, "ncserverd_store_inserted_total", "Segments taken in.")?,
            refused: register::counter(
                registry,
                "ncserverd_store_refused_total",
                "Segments refused because everything held is in use.",
            )?,
            evicted_expired: evictions.with_label_values(&["expired"]),
            evicted_room: evictions.with_label_values(&["room"]),
        })
    }

    /// The counter of evictions for this cause.
    pub fn evicted(&self, cause: Cause) -> &IntCounter {
        match cause {
            Cause::Expired => &self.evicted_expired,
            Cause::Room => &self.evicted_room,
        }
    }
}
