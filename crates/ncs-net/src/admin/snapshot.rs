//! What the page for operators shows: the state of the process now, as JSON.
//!
//! It is made from the metrics, from readiness and from what the program says of its origins.
//! Counters are totals: the page makes rates of two snapshots. Metrics that this program does not
//! have are left out, so that the page of a relay shows what a relay has.

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus::Registry;
use prometheus::proto::{LabelPair, Metric, MetricFamily};
use serde::Serialize;

use crate::supervise::advice::advice;
use crate::telemetry::{Reason, Status, now_ms};

/// The origin of a stream, for the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// The stream.
    pub stream: String,
    /// The fault at the last fetch, if there was one.
    pub fault: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Snapshot {
    time_ms: u64,
    uptime_seconds: u64,
    version: &'static str,
    status: Status,
    /// What `/readyz` complains of, and then faults of origins.
    attention: Vec<Advised>,
    numbers: BTreeMap<&'static str, f64>,
    /// Those with most viewers, at most [`ROWS_MAX`].
    streams: Vec<Row>,
    streams_left_out: usize,
    devices: Vec<Row>,
    sources: Vec<Row>,
    /// The servers of the fleet, in the order of their names, at most [`ROWS_MAX`].
    members: Vec<Row>,
    /// Failed fetches by kind, without those that have not occurred.
    faults: BTreeMap<String, f64>,
    origins: Vec<Origin>,
}

#[derive(Debug, Serialize)]
struct Advised {
    part: String,
    reason: String,
    advice: &'static str,
}

impl Advised {
    fn of(Reason { part, reason }: Reason) -> Self {
        Self {
            part: part.to_owned(),
            advice: advice(part, &reason),
            reason,
        }
    }

    fn of_origin(origin: &Origin) -> Option<Self> {
        let reason = origin.fault.clone()?;
        Some(Self {
            part: format!("origin of {}", origin.stream),
            advice: advice("origin", &reason),
            reason,
        })
    }
}

/// A row of a table: its labels and its columns.
#[derive(Debug, Default, Serialize)]
struct Row {
    labels: BTreeMap<String, String>,
    numbers: BTreeMap<&'static str, f64>,
}

impl Snapshot {
    pub(super) fn take(
        registry: &Registry,
        (status, reasons): (Status, Vec<Reason>),
        origins: Vec<Origin>,
        uptime: Duration,
    ) -> Self {
        let families = Families(registry.gather());
        let mut streams = families.rows(&STREAM);
        let viewers = |row: &Row| row.numbers.get("viewers").copied().unwrap_or_default();
        streams.sort_by(|one, other| viewers(other).total_cmp(&viewers(one)));
        let mut members = families.rows(&MEMBER);
        members.truncate(ROWS_MAX);
        let streams_left_out = streams.len().saturating_sub(ROWS_MAX);
        streams.truncate(ROWS_MAX);
        let faulty = origins.iter().filter_map(Advised::of_origin);
        let attention = reasons
            .into_iter()
            .map(Advised::of)
            .chain(faulty.take(FAULTY_MAX));
        Self {
            time_ms: now_ms(),
            uptime_seconds: uptime.as_secs(),
            version: env!("CARGO_PKG_VERSION"),
            status,
            attention: attention.collect(),
            numbers: families.numbers(),
            streams,
            streams_left_out,
            devices: families.rows(&DEVICE),
            sources: families.rows(&SOURCE),
            members,
            faults: families.faults(),
            origins,
        }
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers")
    }
}

struct Families(Vec<MetricFamily>);

impl Families {
    fn of(&self, name: &str) -> impl Iterator<Item = &Metric> {
        let family = self.0.iter().find(|family| family.name() == name);
        family.into_iter().flat_map(MetricFamily::get_metric)
    }

    fn numbers(&self) -> BTreeMap<&'static str, f64> {
        let sum = |(key, name): (&'static str, &str)| {
            let values = self.of(name).map(value);
            Some((key, values.reduce(|sum, value| sum + value)?))
        };
        NUMBERS.into_iter().filter_map(sum).collect()
    }

    /// One row for each set of labels.
    fn rows(&self, columns: &[(&'static str, &str)]) -> Vec<Row> {
        let mut rows = BTreeMap::<Vec<String>, Row>::new();
        for (key, name) in columns {
            for metric in self.of(name) {
                let labels = metric.get_label();
                let values = labels.iter().map(|label| label.value().to_owned());
                let row = rows.entry(values.collect()).or_insert_with(|| Row {
                    labels: labels.iter().map(pair).collect(),
                    ..Row::default()
                });
                row.numbers.insert(key, value(metric));
            }
        }
        rows.into_values().collect()
    }

    fn faults(&self) -> BTreeMap<String, f64> {
        let mut faults = BTreeMap::new();
        for metric in self.of("ncserverd_ingest_errors_total") {
            let labels = metric.get_label();
            let kind = labels.iter().find(|label| label.name() == "kind");
            if let Some(kind) = kind.filter(|_| value(metric) > 0.0) {
                *faults.entry(kind.value().to_owned()).or_default() += value(metric);
            }
        }
        faults
    }
}

fn pair(label: &LabelPair) -> (String, String) {
    (label.name().to_owned(), label.value().to_owned())
}

/// Of a counter or a gauge, or the count of a histogram: a metric has one, the others are zero.
fn value(metric: &Metric) -> f64 {
    let count = metric.get_histogram().get_sample_count() as f64;
    metric.get_gauge().get_value() + metric.get_counter().get_value() + count
}

/// Sums over all labels.
pub(super) const NUMBERS: [(&str, &str); 34] = [
    ("coded_bytes", "ncserverd_encoder_coded_bytes_total"),
    ("failed_batches", "ncserverd_encoder_failed_batches_total"),
    ("ring_full", "ncserverd_encoder_ring_full_total"),
    ("ring_used", "ncserverd_ring_used_bytes"),
    ("ring_capacity", "ncserverd_ring_capacity_bytes"),
    ("ring_starved", "ncserverd_ring_starved_total"),
    ("store_used", "ncserverd_store_resident_bytes"),
    ("store_budget", "ncserverd_store_budget_bytes"),
    ("store_segments", "ncserverd_store_resident_segments"),
    ("sent_bytes", "ncserverd_session_sent_bytes_total"),
    ("sent_blocks", "ncserverd_session_sent_blocks_total"),
    ("sessions", "ncserverd_session_open_sessions"),
    ("requests", "ncserverd_session_requests_total"),
    ("late", "ncserverd_session_late_requests_total"),
    ("refused", "ncserverd_session_refused_total"),
    ("useless_blocks", "ncserverd_session_useless_blocks_total"),
    ("lost_datagrams", "ncserverd_session_lost_datagrams_total"),
    ("viewers", "ncserverd_session_stream_viewers"),
    ("repaired", "ncserverd_session_stream_repair_blocks_total"),
    ("connections", "ncserverd_endpoint_open_connections"),
    ("connections_max", "ncserverd_endpoint_max_connections"),
    ("busy", "ncserverd_endpoint_busy_ratio"),
    ("wait_seconds", "ncserverd_endpoint_wait_seconds"),
    ("waiting_peers", "ncserverd_intake_waiting_peers"),
    ("fallbacks", "ncserverd_device_fallbacks_total"),
    (
        "certificate_expires",
        "ncserverd_tls_certificate_expires_seconds",
    ),
    ("cpu_seconds", "process_cpu_seconds_total"),
    ("memory_bytes", "process_resident_memory_bytes"),
    ("members", "ncserverd_cluster_members"),
    ("engine_up", "ncserverd_cluster_engine_up"),
    ("fetched_blocks", "ncserverd_peer_blocks_total"),
    ("fetched_bytes", "ncserverd_peer_received_bytes_total"),
    ("fetch_lost", "ncserverd_peer_lost_datagrams_total"),
    ("fetch_repaired", "ncserverd_peer_repaired_datagrams_total"),
];

pub(super) const STREAM: [(&str, &str); 6] = [
    ("viewers", "ncserverd_session_stream_viewers"),
    ("sent_bytes", "ncserverd_session_stream_sent_bytes_total"),
    ("coded", "ncserverd_session_stream_coded_blocks_total"),
    ("repaired", "ncserverd_session_stream_repair_blocks_total"),
    ("late", "ncserverd_session_stream_late_requests_total"),
    ("refused", "ncserverd_session_stream_refused_total"),
];

pub(super) const DEVICE: [(&str, &str); 7] = [
    ("coded_bytes", "ncserverd_device_coded_bytes_total"),
    ("in_flight", "ncserverd_device_batches_in_flight"),
    ("resident_bytes", "ncserverd_device_resident_bytes"),
    ("segments", "ncserverd_device_resident_segments"),
    ("memory_free", "ncserverd_device_memory_free_bytes"),
    ("memory_total", "ncserverd_device_memory_total_bytes"),
    ("failures", "ncserverd_device_failures_total"),
];

pub(super) const SOURCE: [(&str, &str); 5] = [
    ("requests", "ncserverd_ingest_requests_total"),
    ("retries", "ncserverd_ingest_retries_total"),
    ("not_modified", "ncserverd_ingest_not_modified_total"),
    ("bytes", "ncserverd_ingest_bytes_total"),
    ("fetches", "ncserverd_ingest_fetch_seconds"),
];

pub(super) const MEMBER: [(&str, &str); 4] = [
    ("viewers", "ncserverd_cluster_member_viewers"),
    ("viewers_max", "ncserverd_cluster_member_max_viewers"),
    ("busy", "ncserverd_cluster_member_busy_ratio"),
    ("draining", "ncserverd_cluster_member_draining"),
];

const ROWS_MAX: usize = 100;
/// Faulty origins that need attention; the table of streams has all.
const FAULTY_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use crate::telemetry::{Readiness, register};

    use super::*;

    #[test]
    fn a_snapshot_has_what_the_registry_has() {
        let registry = Registry::new();
        let labels = &["backend", "kernel"];
        let coded = register::counters(&registry, NUMBERS[0].1, "h", labels).unwrap();
        coded.with_label_values(&["cpu", "avx2"]).inc_by(30);
        coded.with_label_values(&["cpu", "table"]).inc_by(12);
        let viewers = register::gauges(&registry, STREAM[0].1, "h", &["stream"]).unwrap();
        for number in 0..ROWS_MAX + 7 {
            let name = format!("<script>{number}");
            viewers
                .with_label_values(&[&name])
                .set(i64::try_from(number % 50).unwrap());
        }
        let late = register::counters(&registry, STREAM[4].1, "h", &["stream"]).unwrap();
        late.with_label_values(&["<script>49"]).inc_by(3);
        let errors = register::counters(
            &registry,
            "ncserverd_ingest_errors_total",
            "h",
            &["source", "kind"],
        )
        .unwrap();
        errors.with_label_values(&["http", "connect"]).inc_by(2);
        errors.with_label_values(&["http", "timeout"]);
        let seconds =
            register::histograms(&registry, SOURCE[4].1, "h", &["source"], &[1.0]).unwrap();
        seconds.with_label_values(&["http"]).observe(0.5);
        let members = register::gauges(&registry, MEMBER[0].1, "h", &["server"]).unwrap();
        for (server, viewers) in [("b", 7), ("a", 3)] {
            members.with_label_values(&[server]).set(viewers);
        }
        let readiness = Readiness::new();
        readiness.ready("server");
        readiness.degraded("device", "lost");
        let origins = vec![Origin {
            stream: "live".into(),
            fault: Some("no answer".into()),
        }];
        let uptime = Duration::from_secs(5);
        let snapshot = Snapshot::take(&registry, readiness.status(), origins, uptime);
        let json: serde_json::Value = serde_json::from_slice(&snapshot.to_json()).unwrap();

        assert_eq!(json["numbers"]["coded_bytes"], 42.0);
        assert!(json["numbers"].get("ring_used").is_none(), "not there");
        assert_eq!(json["streams"].as_array().unwrap().len(), ROWS_MAX);
        assert_eq!(json["streams_left_out"], 7);
        let first = &json["streams"][0];
        assert_eq!(first["labels"]["stream"], "<script>49");
        assert_eq!(first["numbers"]["viewers"], 49.0);
        assert_eq!(first["numbers"]["late"], 3.0);
        assert_eq!(json["faults"], serde_json::json!({"connect": 2.0}));
        assert_eq!(json["sources"][0]["numbers"]["fetches"], 1.0);
        let member = |at: usize| &json["members"][at];
        assert_eq!(member(0)["labels"]["server"], "a");
        assert_eq!(member(1)["numbers"]["viewers"], 7.0);
        assert_eq!(json["status"], "degraded");
        let part = |at: usize, key: &str| json["attention"][at][key].as_str().unwrap();
        assert_eq!([part(0, "part"), part(0, "reason")], ["device", "lost"]);
        assert!(part(0, "advice").contains("nvidia-smi"));
        assert_eq!(part(1, "part"), "origin of live");
        assert!(part(1, "advice").contains("stream.NAME.origin"));
        assert_eq!(json["origins"][0]["fault"], "no answer");
        assert_eq!(json["uptime_seconds"], 5);
    }
}
