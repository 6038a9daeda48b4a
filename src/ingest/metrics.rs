//! What reading from origins counts.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, Registry};

use super::Error;
use crate::telemetry::register;

/// Counters of every source of one kind; clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Sources over HTTP.
    pub http: SourceMetrics,
    /// Watched directories.
    pub directory: SourceMetrics,
    /// Playlists in which the parser met something it could not read.
    pub playlist_errors: IntCounter,
}

/// Counters of one kind of source.
#[derive(Debug, Clone)]
pub struct SourceMetrics {
    /// Requests sent, retries and redirects included.
    pub requests: IntCounter,
    /// Requests sent again after a fault.
    pub retries: IntCounter,
    /// Answers that the object has not changed.
    pub not_modified: IntCounter,
    /// Bytes of objects read.
    pub bytes: IntCounter,
    /// Answers of an origin over HTTP, by their status.
    statuses: Vec<IntCounter>,
    /// How long a fetch took, with its retries.
    pub seconds: Histogram,
    errors: Vec<IntCounter>,
}

impl Metrics {
    /// Registers every series.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let name = |noun: &str| format!("ncserverd_ingest_{noun}");
        let source = &["source"];
        let requests = register::counters(
            registry,
            &name("requests_total"),
            "Requests to origins, retries and redirects included.",
            source,
        )?;
        let retries =
            register::counters(registry, &name("retries_total"), "Requests to origins sent again after a fault.", source)?;
        let not_modified = register::counters(
            registry,
            &name("not_modified_total"),
            "Answers of origins that an object has not changed.",
            source,
        )?;
        let bytes = register::counters(registry, &name("bytes_total"), "Bytes of objects read from origins.", source)?;
        let seconds = register::histograms(
            registry,
            &name("fetch_seconds"),
            "How long origins took to give an object or a part, with retries.",
            source,
            &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
        )?;
        let errors =
            register::counters(registry, &name("errors_total"), "Fetches that failed, by what was wrong.", &["source", "kind"])?;
        let statuses = register::counters(
            registry,
            &name("responses_total"),
            "Answers of origins over HTTP, retries and redirects included, by status; `4xx` and the like are those of a class that have no \
             counter of their own.",
            &["status"],
        )?;
        let statuses: Vec<_> = STATUSES.iter().map(|status| statuses.with_label_values(&[status])).collect();
        let of = |source: &str| SourceMetrics {
            statuses: statuses.clone(),
            requests: requests.with_label_values(&[source]),
            retries: retries.with_label_values(&[source]),
            not_modified: not_modified.with_label_values(&[source]),
            bytes: bytes.with_label_values(&[source]),
            seconds: seconds.with_label_values(&[source]),
            errors: Error::KINDS.iter().map(|kind| errors.with_label_values(&[source, kind])).collect(),
        };
        Ok(Self {
            http: of("http"),
            directory: of("directory"),
            playlist_errors: register::counter(
                registry,
                &name("playlist_errors_total"),
                "Playlists that could not be read to their end, and were passed on without prefetching.",
            )?,
        })
    }
}

impl SourceMetrics {
    /// Counts an answer of an origin over HTTP.
    pub fn answered(&self, status: u16) {
        let place = |label: &str| STATUSES.iter().position(|known| *known == label);
        let class = || place(&format!("{}xx", status / 100));
        let at = place(&status.to_string()).or_else(class).or_else(|| place("other"));
        self.statuses[at.expect("`other` is a label")].inc();
    }

    /// Counts a fetch that has ended.
    pub fn finished<T>(&self, took: Duration, outcome: &Result<T, Error>) {
        self.seconds.observe(took.as_secs_f64());
        if let Err(error) = outcome {
            self.error(error).inc();
        }
    }

    fn error(&self, error: &Error) -> &IntCounter {
        let at = Error::KINDS.iter().position(|kind| *kind == error.kind()).expect("every kind of error has its counter");
        &self.errors[at]
    }
}

/// Every value of the label `status`.
const STATUSES: [&str; 20] = [
    "200", "206", "2xx", "304", "3xx", "400", "401", "403", "404", "408", "410", "416", "429", "4xx", "500", "502", "503", "504",
    "5xx", "other",
];
