//! What publishing points count.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};

use crate::object::{Refusal, RefusalCode};
use crate::telemetry::register;

/// Counters of all streams together.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Questions answered from what is held.
    pub held: IntCounter,
    /// Questions answered after a fetch.
    pub fetched: IntCounter,
    /// Questions that waited for a fetch somebody else had begun.
    pub coalesced: IntCounter,
    /// Objects that changed at the origin while parts of them were held.
    pub changed: IntCounter,
    /// Segments announced to subscribers.
    pub announced: IntCounter,
    /// Segments of the live edge that could not be fetched ahead.
    pub prefetch_failed: IntCounter,
    /// Live playlists refused because they had stood still for too long.
    pub playlists_standing: IntCounter,
    /// Playlists older than one already seen, which were passed over.
    pub playlists_lagging: IntCounter,
    /// Signatures made over metadata.
    pub signed_metas: IntCounter,
    /// Signatures made over checksums of blocks.
    pub signed_checks: IntCounter,
    /// Memory that what followed playlists list takes, in bytes.
    pub listed_bytes: IntGauge,
    refused: IntCounterVec,
}

impl Metrics {
    /// Registers every series.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let name = |noun: &str| format!("ncserverd_stream_{noun}_total");
        let counter = |noun: &str, help: &str| register::counter(registry, &name(noun), help);
        let answered = register::counters(
            registry,
            &name("answers"),
            "Questions for an object that were answered, from what is held or after a fetch.",
            &["from"],
        )?;
        let stale = register::counters(
            registry,
            &name("stale_playlists"),
            "Live playlists that stood still for too long, and playlists older than one already seen.",
            &["kind"],
        )?;
        let signed = register::counters(
            registry,
            &name("signatures"),
            "Signatures made with the keys of streams, over metadata (once for each answer of the origin's) or checksums of blocks.",
            &["over"],
        )?;
        let refused = register::counters(registry, &name("refusals"), "Questions for an object that were refused.", &["code"])?;
        for code in CODES {
            refused.with_label_values(&[label(code)]);
        }
        Ok(Self {
            held: answered.with_label_values(&["held"]),
            fetched: answered.with_label_values(&["fetch"]),
            coalesced: counter("coalesced", "Questions that waited for a fetch somebody else had begun.")?,
            changed: counter("changed_objects", "Objects that changed at the origin while parts of them were held.")?,
            announced: counter("announced", "New segments announced to subscribers.")?,
            prefetch_failed: counter("prefetch_failed", "Segments of the live edge that could not be fetched ahead.")?,
            playlists_standing: stale.with_label_values(&["standing"]),
            playlists_lagging: stale.with_label_values(&["lagging"]),
            signed_metas: signed.with_label_values(&["metadata"]),
            signed_checks: signed.with_label_values(&["checks"]),
            listed_bytes: register::gauge(
                registry,
                "ncserverd_stream_listed_bytes",
                "Memory that what followed playlists list takes.",
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

/// Those that streams answer with.
const CODES: [RefusalCode; 7] = [
    RefusalCode::Unknown,
    RefusalCode::Overload,
    RefusalCode::Limit,
    RefusalCode::Origin,
    RefusalCode::Changed,
    RefusalCode::Forbidden,
    RefusalCode::Internal,
];
