//! Metrics of the directory.

use ncs_net::telemetry::register;
use prometheus::{Error, IntCounter, IntGauge, Registry};

/// Counters and gauges of the directory.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(super) offers: IntGauge,
    pub(super) introductions: IntCounter,
    pub(super) fleet_introductions: IntCounter,
    pub(super) pages: IntGauge,
    pub(super) page_introductions: IntCounter,
    pub(super) signals: IntCounter,
}

impl Metrics {
    /// Registers all metrics of the directory.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        Ok(Self {
            offers: register::gauge(
                registry,
                "ncserverd_directory_peers",
                "Connected peers that offer to serve others, without web pages.",
            )?,
            introductions: register::counter(
                registry,
                "ncserverd_directory_introductions_total",
                "Times a peer was named to another, without web pages.",
            )?,
            fleet_introductions: register::counter(
                registry,
                "ncserverd_directory_fleet_introductions_total",
                "Times a peer of another server of the fleet was named. They are among \
                 ncserverd_directory_introductions_total.",
            )?,
            pages: register::gauge(
                registry,
                "ncserverd_directory_pages",
                "Connected web pages that offer to serve others.",
            )?,
            page_introductions: register::counter(
                registry,
                "ncserverd_directory_page_introductions_total",
                "Times a web page was named to another.",
            )?,
            signals: register::counter(
                registry,
                "ncserverd_directory_signals_total",
                "Messages passed on from one web page to another, to connect.",
            )?,
        })
    }
}
