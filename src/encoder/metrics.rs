//! Metrics of the encoder.

use prometheus::{Error, GaugeVec, Histogram, IntCounter, IntCounterVec, Registry};

use crate::block::Vector;
use crate::telemetry::register;

/// Counters of the encoder.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Payload bytes of coded blocks made, by back end and kernel.
    pub coded_bytes: IntCounterVec,
    /// Payload rate of coded blocks, over the last second.
    pub coded_bytes_per_second: GaugeVec,
    /// Coded blocks with dense rows made.
    pub coded_blocks: IntCounter,
    /// Coded blocks with sparse rows made.
    pub sparse_blocks: IntCounter,
    /// Source blocks copied into slots.
    pub source_blocks: IntCounter,
    /// Reed-Solomon parity blocks made.
    pub parity_blocks: IntCounter,
    /// RaptorQ repair symbols made.
    pub repair_blocks: IntCounter,
    /// Coded blocks over the prime field made.
    pub gfq_blocks: IntCounter,
    /// Blocks per batch.
    pub batch_blocks: Histogram,
    /// Time from the launch of a batch until its blocks are in the ring.
    pub batch_seconds: Histogram,
    /// Batches that the device failed to make.
    pub failed_batches: IntCounter,
    /// Times a batch waited because the ring had no free slots.
    pub ring_full: IntCounter,
    /// Orders postponed until their segment was on the device.
    pub parked: IntCounter,
}

impl Metrics {
    /// Counts blocks made: source blocks, and blocks of one other kind.
    pub(super) fn count(&self, vectors: &[Vector]) {
        let is_source = |vector: &&Vector| matches!(vector, Vector::Source(_));
        let sources = vectors.iter().filter(is_source).count();
        self.source_blocks.inc_by(sources as u64);
        let counter = match vectors.iter().find(|vector| !is_source(vector)) {
            Some(Vector::Seed(_)) => &self.coded_blocks,
            Some(Vector::Explicit(_) | Vector::Unverified(_)) => &self.sparse_blocks,
            Some(Vector::Shard(_)) => &self.parity_blocks,
            Some(Vector::Symbol(_)) => &self.repair_blocks,
            Some(Vector::Narrow(_) | Vector::Wide(_)) => &self.gfq_blocks,
            Some(Vector::Source(_)) | None => return,
        };
        counter.inc_by((vectors.len() - sources) as u64);
    }

    /// Registers all metrics of the encoder. The series of this back end and kernel exist from the
    /// start; others appear with their first block.
    pub fn new(registry: &Registry, backend: &str, kernel: &str) -> Result<Self, Error> {
        let labels = ["backend", "kernel"];
        let coded = "Payload bytes of coded blocks made.";
        let coded_bytes = register::counters(
            registry,
            "ncserverd_encoder_coded_bytes_total",
            coded,
            &labels,
        )?;
        let rate = "Payload rate of coded blocks in bytes a second, over the last second.";
        let rate = register::float_gauges(
            registry,
            "ncserverd_encoder_coded_bytes_per_second",
            rate,
            &labels,
        )?;
        let blocks = register::counters(
            registry,
            "ncserverd_encoder_blocks_total",
            "Blocks made, by kind.",
            &["kind"],
        )?;
        let sizes: Vec<f64> = (0..=14).map(|exponent| f64::from(1 << exponent)).collect();
        let times = prometheus::exponential_buckets(25e-6, 2.0, 16)?;
        coded_bytes.with_label_values(&[backend, kernel]);
        rate.with_label_values(&[backend, kernel]);
        Ok(Self {
            coded_bytes,
            coded_bytes_per_second: rate,
            coded_blocks: blocks.with_label_values(&["coded"]),
            sparse_blocks: blocks.with_label_values(&["sparse"]),
            source_blocks: blocks.with_label_values(&["source"]),
            parity_blocks: blocks.with_label_values(&["parity"]),
            repair_blocks: blocks.with_label_values(&["repair"]),
            gfq_blocks: blocks.with_label_values(&["prime"]),
            batch_blocks: register::histogram(
                registry,
                "ncserverd_encoder_batch_blocks",
                "Blocks per batch.",
                &sizes,
            )?,
            batch_seconds: register::histogram(
                registry,
                "ncserverd_encoder_batch_seconds",
                "Time from the launch of a batch until its blocks are in the ring.",
                &times,
            )?,
            failed_batches: register::counter(
                registry,
                "ncserverd_encoder_failed_batches_total",
                "Batches that the device failed to make.",
            )?,
            ring_full: register::counter(
                registry,
                "ncserverd_encoder_ring_full_total",
                "Times the encoder waited because the ring had no free slots.",
            )?,
            parked: register::counter(
                registry,
                "ncserverd_encoder_parked_total",
                "Orders postponed until their segment was on the device.",
            )?,
        })
    }
}
