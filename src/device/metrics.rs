//! What the device's thread counts.

use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// Series of one device, labelled with its back end and kernel.
#[derive(Debug, Clone)]
pub(super) struct Metrics {
    /// Time to combine one batch, without its time in the queue.
    pub(super) combine_seconds: Histogram,
    /// Time to bring one segment into its resident form, without its time in the queue.
    pub(super) load_seconds: Histogram,
    /// Batches and loads that failed.
    pub(super) failures: IntCounter,
    /// Memory that resident segments take, in the device's own form.
    pub(super) resident_bytes: IntGauge,
    /// Segments that are resident.
    pub(super) resident_segments: IntGauge,
}

impl Metrics {
    pub(super) fn new(registry: &Registry, backend: &str, kernel: &str) -> Result<Self, prometheus::Error> {
        let labels = ["backend", "kernel"];
        let values = [backend, kernel];
        let histogram = |name: &str, help: &str| {
            let buckets = prometheus::exponential_buckets(25e-6, 2.0, 18)?;
            let family = HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), &labels)?;
            registry.register(Box::new(family.clone()))?;
            family.get_metric_with_label_values(&values)
        };
        let gauge = |name: &str, help: &str| {
            let family = IntGaugeVec::new(Opts::new(name, help), &labels)?;
            registry.register(Box::new(family.clone()))?;
            family.get_metric_with_label_values(&values)
        };
        let failures =
            IntCounterVec::new(Opts::new("ncserverd_device_failures_total", "Batches and loads that failed."), &labels)?;
        registry.register(Box::new(failures.clone()))?;
        Ok(Self {
            combine_seconds: histogram(
                "ncserverd_device_combine_seconds",
                "Time to combine one batch, without its time in the queue.",
            )?,
            load_seconds: histogram(
                "ncserverd_device_load_seconds",
                "Time to bring one segment into its resident form, without its time in the queue.",
            )?,
            failures: failures.get_metric_with_label_values(&values)?,
            resident_bytes: gauge(
                "ncserverd_device_resident_bytes",
                "Memory that resident segments take, in the device's own form.",
            )?,
            resident_segments: gauge("ncserverd_device_resident_segments", "Segments that are resident.")?,
        })
    }
}
