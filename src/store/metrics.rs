//! What the store counts.

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Registry};

use super::index::{Cause, Tier};
use crate::telemetry::register;

/// Counters and gauges of the store.
#[derive(Debug, Clone)]
pub struct Metrics {
    host: TierMetrics,
    device: TierMetrics,
    /// Segments taken in.
    pub inserted: IntCounter,
    /// Segments refused because everything held is in use.
    pub refused: IntCounter,
    /// Copies of segments begun to be brought to the device.
    pub loads: IntCounter,
    /// Attempts to bring a copy to the device that failed.
    pub load_failures: IntCounter,
    /// Copies under way to the device, or waiting for their turn or for room.
    pub loads_pending: IntGauge,
    /// Homomorphic hashes of blocks made.
    pub homomorphic_hashes: IntCounter,
    /// The time that those of one segment took.
    pub homomorphic_seconds: Histogram,
    evictions: IntCounterVec,
}

/// Gauges of one tier.
#[derive(Debug, Clone)]
pub struct TierMetrics {
    bytes: IntGauge,
    segments: IntGauge,
    budget_bytes: IntGauge,
}

impl TierMetrics {
    /// Bytes that segments occupy on the tier, and how many they are.
    pub fn resident(&self, bytes: u64, segments: usize) {
        self.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.segments.set(i64::try_from(segments).unwrap_or(i64::MAX));
    }

    /// Bytes that they may occupy.
    pub fn budget(&self, bytes: u64) {
        self.budget_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

impl Metrics {
    /// Registers every series.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauges = |name: &str, help: &str| register::gauges(registry, name, help, &["tier"]);
        let bytes = gauges("ncserverd_store_resident_bytes", "Bytes that held segments occupy on a tier.")?;
        let segments = gauges("ncserverd_store_resident_segments", "Segments on a tier.")?;
        let budgets = gauges("ncserverd_store_budget_bytes", "Bytes that segments may occupy on a tier.")?;
        let tier = |tier: Tier| TierMetrics {
            bytes: bytes.with_label_values(&[tier.name()]),
            segments: segments.with_label_values(&[tier.name()]),
            budget_bytes: budgets.with_label_values(&[tier.name()]),
        };
        let counter = |name: &str, help: &str| register::counter(registry, name, help);
        let metrics = Self {
            host: tier(Tier::Host),
            device: tier(Tier::Device),
            inserted: counter("ncserverd_store_inserted_total", "Segments taken in.")?,
            refused: counter("ncserverd_store_refused_total", "Segments refused because everything held is in use.")?,
            loads: counter("ncserverd_store_loads_total", "Copies of segments begun to be brought to the device.")?,
            load_failures: counter(
                "ncserverd_store_load_failures_total",
                "Attempts to bring a copy to the device that failed; each is repeated.",
            )?,
            loads_pending: register::gauge(
                registry,
                "ncserverd_store_loads_pending",
                "Copies under way to the device, or waiting for their turn or for room.",
            )?,
            homomorphic_hashes: counter(
                "ncserverd_store_homomorphic_hashes_total",
                "Homomorphic hashes of blocks made, of segments that are coded over the prime field.",
            )?,
            homomorphic_seconds: register::histogram(
                registry,
                "ncserverd_store_homomorphic_seconds",
                "Time that the homomorphic hashes of a segment took.",
                &prometheus::exponential_buckets(1e-3, 2.0, 16)?,
            )?,
            evictions: register::counters(
                registry,
                "ncserverd_store_evictions_total",
                "Segments that went from a tier; from the host's, they went altogether.",
                &["tier", "cause"],
            )?,
        };
        for tier in Tier::ALL {
            CAUSES.into_iter().for_each(|cause| drop(metrics.evicted(tier, cause)));
        }
        Ok(metrics)
    }

    /// The gauges of a tier.
    pub fn tier(&self, tier: Tier) -> &TierMetrics {
        match tier {
            Tier::Host => &self.host,
            Tier::Device => &self.device,
        }
    }

    /// The counter of evictions from this tier for this cause.
    pub fn evicted(&self, tier: Tier, cause: Cause) -> IntCounter {
        self.evictions.with_label_values(&[tier.name(), name(cause)])
    }
}

const CAUSES: [Cause; 7] =
    [Cause::Expired, Cause::Room, Cause::Stalled, Cause::Slow, Cause::Memory, Cause::Lost, Cause::Withdrawn];

const fn name(cause: Cause) -> &'static str {
    match cause {
        Cause::Expired => "expired",
        Cause::Room => "room",
        Cause::Stalled => "stalled",
        Cause::Slow => "slow",
        Cause::Memory => "memory",
        Cause::Lost => "lost",
        Cause::Withdrawn => "withdrawn",
    }
}
