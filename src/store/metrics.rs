//! Metrics of the store.

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Registry};

use super::index::{Cause, Tier};
use crate::telemetry::register;

/// Counters and gauges of the store.
#[derive(Debug, Clone)]
pub struct Metrics {
    host: TierMetrics,
    device: TierMetrics,
    /// Segments added to the store.
    pub inserted: IntCounter,
    /// Segments refused because every held segment is in use.
    pub refused: IntCounter,
    /// Segment copies to the device begun.
    pub loads: IntCounter,
    /// Failed attempts to copy a segment to the device.
    pub load_failures: IntCounter,
    /// Copies to the device that are in progress, or wait for their turn or for room.
    pub loads_pending: IntGauge,
    /// Homomorphic block hashes computed.
    pub homomorphic_hashes: IntCounter,
    /// Time to compute the homomorphic hashes of a segment.
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
    /// Sets the bytes that segments occupy on the tier, and the number of segments.
    pub fn resident(&self, bytes: u64, segments: usize) {
        self.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.segments
            .set(i64::try_from(segments).unwrap_or(i64::MAX));
    }

    /// Sets the maximum bytes of segments on the tier.
    pub fn budget(&self, bytes: u64) {
        self.budget_bytes
            .set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

impl Metrics {
    /// Registers all metrics of the store.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauges = |name: &str, help: &str| register::gauges(registry, name, help, &["tier"]);
        let bytes = gauges(
            "ncserverd_store_resident_bytes",
            "Bytes that held segments occupy on a tier.",
        )?;
        let segments = gauges("ncserverd_store_resident_segments", "Segments on a tier.")?;
        let budgets = gauges(
            "ncserverd_store_budget_bytes",
            "Maximum bytes of segments on a tier.",
        )?;
        let tier = |tier: Tier| TierMetrics {
            bytes: bytes.with_label_values(&[tier.name()]),
            segments: segments.with_label_values(&[tier.name()]),
            budget_bytes: budgets.with_label_values(&[tier.name()]),
        };
        let counter = |name: &str, help: &str| register::counter(registry, name, help);
        let metrics = Self {
            host: tier(Tier::Host),
            device: tier(Tier::Device),
            inserted: counter(
                "ncserverd_store_inserted_total",
                "Segments added to the store.",
            )?,
            refused: counter(
                "ncserverd_store_refused_total",
                "Segments refused because every held segment is in use.",
            )?,
            loads: counter(
                "ncserverd_store_loads_total",
                "Segment copies to the device begun.",
            )?,
            load_failures: counter(
                "ncserverd_store_load_failures_total",
                "Failed attempts to copy a segment to the device. The store repeats each of them.",
            )?,
            loads_pending: register::gauge(
                registry,
                "ncserverd_store_loads_pending",
                "Copies to the device that are in progress, or wait for their turn or for room.",
            )?,
            homomorphic_hashes: counter(
                "ncserverd_store_homomorphic_hashes_total",
                "Homomorphic block hashes computed, for segments coded over the prime field.",
            )?,
            homomorphic_seconds: register::histogram(
                registry,
                "ncserverd_store_homomorphic_seconds",
                "Time to compute the homomorphic hashes of a segment.",
                &prometheus::exponential_buckets(1e-3, 2.0, 16)?,
            )?,
            evictions: register::counters(
                registry,
                "ncserverd_store_evictions_total",
                "Segments evicted from a tier, by cause. Eviction from the device removes only the \
                 copy there.",
                &["tier", "cause"],
            )?,
        };
        for tier in Tier::ALL {
            CAUSES
                .into_iter()
                .for_each(|cause| drop(metrics.evicted(tier, cause)));
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
        self.evictions
            .with_label_values(&[tier.name(), name(cause)])
    }
}

const CAUSES: [Cause; 7] = [
    Cause::Expired,
    Cause::Room,
    Cause::Stalled,
    Cause::Slow,
    Cause::Memory,
    Cause::Lost,
    Cause::Withdrawn,
];

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
