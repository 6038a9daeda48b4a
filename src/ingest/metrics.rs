//! Metrics of reading from origins.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, Registry};

use super::Error;
use crate::telemetry::register;

/// Counters of all sources, by kind of source. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Sources over HTTP.
    pub http: SourceMetrics,
    /// Watched folders.
    pub folder: SourceMetrics,
    /// Playlists that could not be parsed to the end.
    pub playlist_errors: IntCounter,
}

/// Counters of one kind of source.
#[derive(Debug, Clone)]
pub struct SourceMetrics {
    /// Requests, including retries and redirects.
    pub requests: IntCounter,
    /// Requests repeated after a fault.
    pub retries: IntCounter,
    /// Responses that report an unchanged object.
    pub not_modified: IntCounter,
    /// Bytes of objects read.
    pub bytes: IntCounter,
    /// HTTP responses of an origin, by status.
    statuses: Vec<IntCounter>,
    /// Time of a fetch, including retries.
    pub seconds: Histogram,
    errors: Vec<IntCounter>,
}

impl Metrics {
    /// Registers all metrics of ingest.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let name = |noun: &str| format!("ncserverd_ingest_{noun}");
        let source = &["source"];
        let requests = register::counters(
            registry,
            &name("requests_total"),
            "Requests to origins, including retries and redirects.",
            source,
        )?;
        let retries = register::counters(
            registry,
            &name("retries_total"),
            "Requests to origins repeated after a fault.",
            source,
        )?;
        let not_modified = register::counters(
            registry,
            &name("not_modified_total"),
            "Responses of origins that report an unchanged object.",
            source,
        )?;
        let bytes = register::counters(
            registry,
            &name("bytes_total"),
            "Bytes of objects read from origins.",
            source,
        )?;
        let seconds = register::histograms(
            registry,
            &name("fetch_seconds"),
            "Time to fetch an object or a part of one from an origin, including retries.",
            source,
            &[
                0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
            ],
        )?;
        let errors = register::counters(
            registry,
            &name("errors_total"),
            "Failed fetches, by kind of error.",
            &["source", "kind"],
        )?;
        let statuses = register::counters(
            registry,
            &name("responses_total"),
            "HTTP responses of origins, including retries and redirects, by status. Statuses \
             without a counter of their own count by class, such as `4xx`.",
            &["status"],
        )?;
        let statuses: Vec<_> = STATUSES
            .iter()
            .map(|status| statuses.with_label_values(&[status]))
            .collect();
        let of = |source: &str| SourceMetrics {
            statuses: statuses.clone(),
            requests: requests.with_label_values(&[source]),
            retries: retries.with_label_values(&[source]),
            not_modified: not_modified.with_label_values(&[source]),
            bytes: bytes.with_label_values(&[source]),
            seconds: seconds.with_label_values(&[source]),
            errors: Error::KINDS
                .iter()
                .map(|kind| errors.with_label_values(&[source, kind]))
                .collect(),
        };
        Ok(Self {
            http: of("http"),
            folder: of("directory"),
            playlist_errors: register::counter(
                registry,
                &name("playlist_errors_total"),
                "Playlists that could not be parsed to the end, and were passed on without \
                 prefetching.",
            )?,
        })
    }
}

impl SourceMetrics {
    /// Counts an HTTP response of an origin.
    pub fn answered(&self, status: u16) {
        let place = |label: &str| STATUSES.iter().position(|known| *known == label);
        let class = || place(&format!("{}xx", status / 100));
        let at = place(&status.to_string())
            .or_else(class)
            .or_else(|| place("other"));
        self.statuses[at.expect("`other` is a label")].inc();
    }

    /// Counts a finished fetch.
    pub fn finished<T>(&self, took: Duration, outcome: &Result<T, Error>) {
        self.seconds.observe(took.as_secs_f64());
        if let Err(error) = outcome {
            self.error(error).inc();
        }
    }

    fn error(&self, error: &Error) -> &IntCounter {
        let at = Error::KINDS
            .iter()
            .position(|kind| *kind == error.kind())
            .expect("every kind of error has its counter");
        &self.errors[at]
    }
}

/// Every value of the label `status`.
const STATUSES: [&str; 20] = [
    "200", "206", "2xx", "304", "3xx", "400", "401", "403", "404", "408", "410", "416", "429",
    "4xx", "500", "502", "503", "504", "5xx", "other",
];
