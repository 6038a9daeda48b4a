//! Metrics of a device.

use prometheus::{
    Counter, CounterVec, Error, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Registry,
};

use super::{Event, Recorder, Tally};
use crate::telemetry::register;

/// The metric families, registered once. Each back end has its own series in them.
#[derive(Debug, Clone)]
pub struct Metrics {
    combine_seconds: HistogramVec,
    load_seconds: HistogramVec,
    decode_seconds: HistogramVec,
    failures: IntCounterVec,
    coded_bytes: IntCounterVec,
    decoded_bytes: IntCounterVec,
    resident_bytes: IntGaugeVec,
    resident_segments: IntGaugeVec,
    memory_total_bytes: IntGaugeVec,
    memory_free_bytes: IntGaugeVec,
    in_flight: IntGaugeVec,
    kernel_seconds: CounterVec,
    copy_seconds: CounterVec,
    copied_bytes: IntCounterVec,
    stored_bytes: IntCounterVec,
    /// Back ends lost and replaced by the CPU.
    fallbacks: IntCounter,
}

/// Series of one back end, labelled with its name, its kernel, and which device it is: `cpu`, or
/// the number of a GPU.
#[derive(Debug)]
struct Series {
    combine_seconds: Histogram,
    load_seconds: Histogram,
    decode_seconds: Histogram,
    failures: IntCounter,
    coded_bytes: IntCounter,
    decoded_bytes: IntCounter,
    resident_bytes: IntGauge,
    resident_segments: IntGauge,
    memory_total_bytes: IntGauge,
    memory_free_bytes: IntGauge,
    in_flight: IntGauge,
    kernel_seconds: Counter,
    copy_seconds: Counter,
    copied_bytes: IntCounter,
    stored_bytes: IntCounter,
}

const LABELS: [&str; 3] = ["backend", "kernel", "device"];

impl Metrics {
    /// Registers the families.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let buckets = prometheus::exponential_buckets(12.5e-6, 2.0, 19)?;
        let histograms = |name, help| register::histograms(registry, name, help, &LABELS, &buckets);
        let counters = |name, help| register::counters(registry, name, help, &LABELS);
        let seconds = |name, help| register::float_counters(registry, name, help, &LABELS);
        let gauges = |name, help| register::gauges(registry, name, help, &LABELS);
        Ok(Self {
            combine_seconds: histograms(
                "ncserverd_device_combine_seconds",
                "Time to combine one batch, without queueing.",
            )?,
            load_seconds: histograms(
                "ncserverd_device_load_seconds",
                "Time to bring one segment into its resident form, without queueing.",
            )?,
            decode_seconds: histograms(
                "ncserverd_device_decode_seconds",
                "Time to decode the generations of one call, without queueing.",
            )?,
            failures: counters(
                "ncserverd_device_failures_total",
                "Batches, loads and decodings that failed.",
            )?,
            coded_bytes: counters(
                "ncserverd_device_coded_bytes_total",
                "Payload bytes of coded blocks made.",
            )?,
            decoded_bytes: counters(
                "ncserverd_device_decoded_bytes_total",
                "Bytes of generations decoded.",
            )?,
            resident_bytes: gauges(
                "ncserverd_device_resident_bytes",
                "Memory of resident segments, in the device's own form.",
            )?,
            resident_segments: gauges("ncserverd_device_resident_segments", "Resident segments.")?,
            memory_total_bytes: gauges(
                "ncserverd_device_memory_total_bytes",
                "Memory of the device; 0 for the CPU.",
            )?,
            memory_free_bytes: gauges(
                "ncserverd_device_memory_free_bytes",
                "Device memory that no process uses; 0 for the CPU.",
            )?,
            in_flight: gauges("ncserverd_device_batches_in_flight", "Batches in progress.")?,
            kernel_seconds: seconds(
                "ncserverd_device_kernel_seconds_total",
                "Time that kernels of batches took on a GPU.",
            )?,
            copy_seconds: seconds(
                "ncserverd_device_copy_seconds_total",
                "Time to copy blocks from a GPU to the host, including the wait for earlier \
                 copies.",
            )?,
            copied_bytes: counters(
                "ncserverd_device_copied_bytes_total",
                "Bytes of blocks copied from a GPU to the host.",
            )?,
            stored_bytes: counters(
                "ncserverd_device_stored_bytes_total",
                "Bytes of blocks that kernels wrote directly into host memory.",
            )?,
            fallbacks: register::counter(
                registry,
                "ncserverd_device_fallbacks_total",
                "Back ends lost. The CPU has taken over their work.",
            )?,
        })
    }
}

impl Recorder for Metrics {
    fn opened(&self, backend: &str, kernel: &str, device: &str) -> Box<dyn Tally> {
        let values = [backend, kernel, device];
        Box::new(Series {
            combine_seconds: self.combine_seconds.with_label_values(&values),
            load_seconds: self.load_seconds.with_label_values(&values),
            decode_seconds: self.decode_seconds.with_label_values(&values),
            failures: self.failures.with_label_values(&values),
            coded_bytes: self.coded_bytes.with_label_values(&values),
            decoded_bytes: self.decoded_bytes.with_label_values(&values),
            resident_bytes: self.resident_bytes.with_label_values(&values),
            resident_segments: self.resident_segments.with_label_values(&values),
            memory_total_bytes: self.memory_total_bytes.with_label_values(&values),
            memory_free_bytes: self.memory_free_bytes.with_label_values(&values),
            in_flight: self.in_flight.with_label_values(&values),
            kernel_seconds: self.kernel_seconds.with_label_values(&values),
            copy_seconds: self.copy_seconds.with_label_values(&values),
            copied_bytes: self.copied_bytes.with_label_values(&values),
            stored_bytes: self.stored_bytes.with_label_values(&values),
        })
    }

    fn fell_back(&self) {
        self.fallbacks.inc();
    }
}

impl Tally for Series {
    fn note(&self, event: Event) {
        match event {
            Event::BatchBegun => self.in_flight.inc(),
            Event::BatchEnded => self.in_flight.dec(),
            Event::Combined {
                elapsed,
                coded_bytes,
            } => {
                self.combine_seconds.observe(elapsed.as_secs_f64());
                self.coded_bytes.inc_by(coded_bytes);
            }
            Event::Decoded { elapsed, bytes } => {
                self.decode_seconds.observe(elapsed.as_secs_f64());
                self.decoded_bytes.inc_by(bytes);
            }
            Event::Loaded {
                elapsed,
                resident_bytes,
            } => {
                self.load_seconds.observe(elapsed.as_secs_f64());
                self.resident_bytes.add(gauge(resident_bytes));
                self.resident_segments.inc();
            }
            Event::Released { resident_bytes } => {
                self.resident_bytes.sub(gauge(resident_bytes));
                self.resident_segments.dec();
            }
            Event::Failed => self.failures.inc(),
            Event::Worked {
                kernel,
                copy,
                copied_bytes,
                stored_bytes,
            } => {
                self.kernel_seconds.inc_by(kernel.as_secs_f64());
                self.copy_seconds.inc_by(copy.as_secs_f64());
                self.copied_bytes.inc_by(copied_bytes);
                self.stored_bytes.inc_by(stored_bytes);
            }
            Event::Memory(memory) => {
                self.memory_free_bytes.set(gauge(memory.free));
                self.memory_total_bytes.set(gauge(memory.total));
            }
        }
    }
}

fn gauge(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
