//! Creates and registers a metric in one call.

use prometheus::core::Collector;
use prometheus::{
    CounterVec, Error, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter,
    IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// A counter.
pub fn counter(registry: &Registry, name: &str, help: &str) -> Result<IntCounter, Error> {
    registered(registry, IntCounter::new(name, help)?)
}

/// Counters by label.
pub fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntCounterVec, Error> {
    registered(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
}

/// Counters of any number by label.
pub fn float_counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<CounterVec, Error> {
    registered(registry, CounterVec::new(Opts::new(name, help), labels)?)
}

/// A gauge of whole numbers.
pub fn gauge(registry: &Registry, name: &str, help: &str) -> Result<IntGauge, Error> {
    registered(registry, IntGauge::new(name, help)?)
}

/// Gauges of whole numbers by label.
pub fn gauges(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntGaugeVec, Error> {
    registered(registry, IntGaugeVec::new(Opts::new(name, help), labels)?)
}

/// A gauge of any number.
pub fn float_gauge(registry: &Registry, name: &str, help: &str) -> Result<Gauge, Error> {
    registered(registry, Gauge::new(name, help)?)
}

/// Gauges of any number by label.
pub fn float_gauges(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<GaugeVec, Error> {
    registered(registry, GaugeVec::new(Opts::new(name, help), labels)?)
}

/// A histogram with these upper bounds.
pub fn histogram(
    registry: &Registry,
    name: &str,
    help: &str,
    buckets: &[f64],
) -> Result<Histogram, Error> {
    registered(
        registry,
        Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?,
    )
}

/// Histograms by label with these upper bounds.
pub fn histograms(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
    buckets: &[f64],
) -> Result<HistogramVec, Error> {
    registered(
        registry,
        HistogramVec::new(
            HistogramOpts::new(name, help).buckets(buckets.to_vec()),
            labels,
        )?,
    )
}

fn registered<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> Result<C, Error> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
