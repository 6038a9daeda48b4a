//! Metrics of the directory.

use ncs_net::telemetry::register;
use prometheus::{Error, IntCounter, IntGauge, Registry};

/// Counters and gauges of the directory.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(super) offers: IntGauge,
    pub(super) introductions: IntCounter,
}

impl Metrics {
    /// Registers all metrics of the directory.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        Ok(Self {
            offers: register::gauge(
                registry,
                "ncserverd_directory_peers",
                "Connected peers that offer to serve others.",
            )?,
            introductions: register::counter(
                registry,
                "ncserverd_directory_introductions_total",
                "Times a peer was named to another.",
            )?,
        })
    }
}
