//! Metrics of publishing points.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};

use crate::object::{Refusal, RefusalCode};
use crate::telemetry::register;

/// Counters of all streams together.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Object requests answered from the store.
    pub held: IntCounter,
    /// Object requests answered after a fetch.
    pub fetched: IntCounter,
    /// Object requests that waited for a fetch already in progress.
    pub coalesced: IntCounter,
    /// Objects that changed at the origin while the server held parts of them.
    pub changed: IntCounter,
    /// Segments announced to subscribers.
    pub announced: IntCounter,
    /// Live-edge segments that could not be prefetched.
    pub prefetch_failed: IntCounter,
    /// Live playlists refused because they had not changed for too long.
    pub playlists_standing: IntCounter,
    /// Playlists skipped because they were older than one already seen.
    pub playlists_lagging: IntCounter,
    /// Signatures made over metadata.
    pub signed_metas: IntCounter,
    /// Signatures made over block checksums.
    pub signed_checks: IntCounter,
    /// Memory for the entries of followed playlists, in bytes.
    pub listed_bytes: IntGauge,
    refused: IntCounterVec,
}

impl Metrics {
    /// Registers all metrics of streams.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let name = |noun: &str| format!("ncserverd_stream_{noun}_total");
        let counter = |noun: &str, help: &str| register::counter(registry, &name(noun), help);
        let answered = register::counters(
            registry,
            &name("answers"),
            "Object requests answered, from the store or after a fetch.",
            &["from"],
        )?;
        let stale = register::counters(
            registry,
            &name("stale_playlists"),
            "Stale live playlists: unchanged for too long, or older than one already seen.",
            &["kind"],
        )?;
        let signed = register::counters(
            registry,
            &name("signatures"),
            "Signatures made with stream keys, over metadata (one for each response of the origin) \
             or over block checksums.",
            &["over"],
        )?;
        let refused = register::counters(
            registry,
            &name("refusals"),
            "Object requests refused, by code.",
            &["code"],
        )?;
        for code in CODES {
            refused.with_label_values(&[label(code)]);
        }
        Ok(Self {
            held: answered.with_label_values(&["held"]),
            fetched: answered.with_label_values(&["fetch"]),
            coalesced: counter(
                "coalesced",
                "Object requests that waited for a fetch already in progress.",
            )?,
            changed: counter(
                "changed_objects",
                "Objects that changed at the origin while the server held parts of them.",
            )?,
            announced: counter("announced", "New segments announced to subscribers.")?,
            prefetch_failed: counter(
                "prefetch_failed",
                "Live-edge segments that could not be prefetched.",
            )?,
            playlists_standing: stale.with_label_values(&["standing"]),
            playlists_lagging: stale.with_label_values(&["lagging"]),
            signed_metas: signed.with_label_values(&["metadata"]),
            signed_checks: signed.with_label_values(&["checks"]),
            listed_bytes: register::gauge(
                registry,
                "ncserverd_stream_listed_bytes",
                "Memory for the entries of followed playlists.",
            )?,
            refused,
        })
    }

    /// Counts a refusal.
    pub fn refused(&self, refusal: &Refusal) {
        self.refused.with_label_values(&[label(refusal.code)]).inc();
    }
}

fn label(code: RefusalCode) -> &'static str {
    match code {
        RefusalCode::Unknown => "unknown",
        RefusalCode::Deadline => "deadline",
        RefusalCode::Overload => "overload",
        RefusalCode::Limit => "limit",
        RefusalCode::Origin => "origin",
        RefusalCode::Changed => "changed",
        RefusalCode::Forbidden => "forbidden",
        RefusalCode::GoingAway => "going_away",
        RefusalCode::Internal => "internal",
    }
}

/// Codes of refusals by streams.
const CODES: [RefusalCode; 7] = [
    RefusalCode::Unknown,
    RefusalCode::Overload,
    RefusalCode::Limit,
    RefusalCode::Origin,
    RefusalCode::Changed,
    RefusalCode::Forbidden,
    RefusalCode::Internal,
];
