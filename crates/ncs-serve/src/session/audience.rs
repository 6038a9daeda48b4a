//! Figures of each configured stream, which all sessions count together.
//!
//! A session's [`Proto`](super::proto::Proto) counts by the names that peers ask for. Here a name
//! becomes one of the configured streams or [`OTHER`], so that no peer can add a series. A reload
//! removes the series of removed streams, and adds those of new ones at zero. The table is read
//! without a lock; sessions look names up again when it changes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwap;
use ncs_net::telemetry::register;
use prometheus::{Error, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::proto::StreamTally;

/// The label for everything that belongs to no configured stream.
const OTHER: &str = "other";

/// The figures of all streams. Clones share them.
#[derive(Debug, Clone)]
pub struct Audience {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    families: Families,
    other: Arc<Stream>,
    streams: ArcSwap<Table>,
}

/// The configured streams by their names.
type Table = BTreeMap<String, Arc<Stream>>;

#[derive(Debug)]
struct Families {
    viewers: IntGaugeVec,
    sent_bytes: IntCounterVec,
    coded: IntCounterVec,
    repair: IntCounterVec,
    late: IntCounterVec,
    refused: IntCounterVec,
}

/// The figures of one stream.
#[derive(Debug)]
struct Stream {
    viewers: IntGauge,
    sent_bytes: IntCounter,
    coded: IntCounter,
    repair: IntCounter,
    late: IntCounter,
    refused: IntCounter,
}

impl Audience {
    /// Registers the figures, at first without any stream.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let counters =
            |name: &str, help: &str| register::counters(registry, name, help, &["stream"]);
        let families = Families {
            viewers: register::gauges(
                registry,
                "ncserverd_session_stream_viewers",
                "Sessions with an open REQUEST for the stream, or whose GET or REQUEST for it was \
                 accepted in the last 30 s.",
                &["stream"],
            )?,
            sent_bytes: counters(
                "ncserverd_session_stream_sent_bytes_total",
                "Payload bytes of blocks handed to QUIC.",
            )?,
            coded: counters(
                "ncserverd_session_stream_coded_blocks_total",
                "Blocks handed to QUIC, other than source blocks.",
            )?,
            repair: counters(
                "ncserverd_session_stream_repair_blocks_total",
                "Blocks handed to QUIC beyond the n of a REQUEST's generation.",
            )?,
            late: counters(
                "ncserverd_session_stream_late_requests_total",
                "REQUESTs whose deadline passed before completion.",
            )?,
            refused: counters(
                "ncserverd_session_stream_refused_total",
                "GETs, SUBSCRIBEs and REQUESTs refused, without late requests.",
            )?,
        };
        let other = Arc::new(families.stream(OTHER));
        Ok(Self {
            inner: Arc::new(Inner {
                families,
                other,
                streams: ArcSwap::default(),
            }),
        })
    }

    /// Replaces the set of streams. Streams that stay keep their figures.
    pub fn set_streams<'a>(&self, names: impl IntoIterator<Item = &'a String>) {
        let Inner {
            families,
            other,
            streams,
        } = &*self.inner;
        let before = streams.load_full();
        let stream = |name: &String| match before.get(name) {
            Some(stream) => Arc::clone(stream),
            None if name == OTHER => Arc::clone(other),
            None => Arc::new(families.stream(name)),
        };
        let now: Table = names
            .into_iter()
            .map(|name| (name.clone(), stream(name)))
            .collect();
        for name in before
            .keys()
            .filter(|name| !now.contains_key(*name) && *name != OTHER)
        {
            families.remove(name);
        }
        streams.store(Arc::new(now));
    }

    /// Adds a session's counts of a stream.
    pub(super) fn add(&self, name: &str, tally: StreamTally) {
        let streams = self.inner.streams.load();
        let stream = streams.get(name).unwrap_or(&self.inner.other);
        let StreamTally {
            sent_bytes,
            coded,
            repair,
            late,
            refused,
        } = tally;
        let counts = [
            (&stream.sent_bytes, sent_bytes),
            (&stream.coded, coded),
            (&stream.repair, repair),
            (&stream.late, late),
            (&stream.refused, refused),
        ];
        // Most are zero, and even an addition of zero takes the counter's cache line from the other
        // processors.
        counts
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .for_each(|(counter, count)| counter.inc_by(count));
    }
}

impl Families {
    fn stream(&self, name: &str) -> Stream {
        Stream {
            viewers: self.viewers.with_label_values(&[name]),
            sent_bytes: self.sent_bytes.with_label_values(&[name]),
            coded: self.coded.with_label_values(&[name]),
            repair: self.repair.with_label_values(&[name]),
            late: self.late.with_label_values(&[name]),
            refused: self.refused.with_label_values(&[name]),
        }
    }

    fn remove(&self, name: &str) {
        // An error means that the series does not exist, which is fine.
        let _ = self.viewers.remove_label_values(&[name]);
        for family in [
            &self.sent_bytes,
            &self.coded,
            &self.repair,
            &self.late,
            &self.refused,
        ] {
            let _ = family.remove_label_values(&[name]);
        }
    }
}

/// The streams that one session watches: it counts once for each, until this is dropped.
#[derive(Debug)]
pub(super) struct Viewing {
    audience: Audience,
    /// The table in which `watched` was last looked up.
    table: Arc<Table>,
    watched: HashMap<Arc<str>, Arc<Stream>>,
}

impl Viewing {
    pub(super) fn new(audience: Audience) -> Self {
        let table = audience.inner.streams.load_full();
        Self {
            audience,
            table,
            watched: HashMap::new(),
        }
    }

    /// Notes that the session begins or stops to watch a stream of this name.
    pub(super) fn set(&mut self, name: Arc<str>, is_watched: bool) {
        match is_watched {
            true => self.begin(name),
            false => self.end(&name),
        }
    }

    /// Follows a changed table. Call it from time to time; without a change it costs nothing.
    pub(super) fn heed(&mut self) {
        if Arc::ptr_eq(&*self.audience.inner.streams.load(), &self.table) {
            return;
        }
        let names: Vec<Arc<str>> = self.watched.keys().cloned().collect();
        names.iter().for_each(|name| self.end(name));
        self.table = self.audience.inner.streams.load_full();
        names.into_iter().for_each(|name| self.begin(name));
    }

    fn begin(&mut self, name: Arc<str>) {
        if self.watched.contains_key(&name) {
            return;
        }
        let stream = Arc::clone(self.table.get(&*name).unwrap_or(&self.audience.inner.other));
        if !self.watches(&stream) {
            stream.viewers.inc();
        }
        self.watched.insert(name, stream);
    }

    fn end(&mut self, name: &str) {
        if let Some(stream) = self.watched.remove(name)
            && !self.watches(&stream)
        {
            stream.viewers.dec();
        }
    }

    /// Several names may share one series: that of streams that are not configured.
    fn watches(&self, stream: &Arc<Stream>) -> bool {
        self.watched
            .values()
            .any(|other| Arc::ptr_eq(other, stream))
    }
}

impl Drop for Viewing {
    fn drop(&mut self) {
        let names: Vec<Arc<str>> = self.watched.keys().cloned().collect();
        names.iter().for_each(|name| self.end(name));
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn shown(registry: &Registry) -> String {
        TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap()
    }

    fn viewers(registry: &Registry, stream: &str) -> Option<i64> {
        let line = format!("ncserverd_session_stream_viewers{{stream=\"{stream}\"}} ");
        shown(registry)
            .lines()
            .find_map(|shown| shown.strip_prefix(&line)?.parse().ok())
    }

    #[test]
    fn removed_streams_leave_the_exposition_and_added_ones_appear() {
        let registry = Registry::new();
        let audience = Audience::new(&registry).unwrap();
        audience.set_streams(&names(&["live", "sport"]));
        let mut viewing = Viewing::new(audience.clone());
        viewing.set("live".into(), true);
        audience.add(
            "live",
            StreamTally {
                coded: 3,
                ..StreamTally::default()
            },
        );
        assert_eq!(
            [
                viewers(&registry, "live"),
                viewers(&registry, "sport"),
                viewers(&registry, "other")
            ],
            [Some(1), Some(0), Some(0)]
        );
        audience.set_streams(&names(&["sport", "news"]));
        let text = shown(&registry);
        assert!(!text.contains("\"live\""), "{text}");
        assert_eq!(text.matches("stream=\"news\"").count(), 6, "{text}");
        // A viewer of a stream that was removed counts as "other", and as before when the stream is
        // back.
        viewing.heed();
        assert_eq!(viewers(&registry, "other"), Some(1));
        audience.set_streams(&names(&["live"]));
        viewing.heed();
        assert_eq!(
            (viewers(&registry, "live"), viewers(&registry, "other")),
            (Some(1), Some(0))
        );
        assert!(
            shown(&registry)
                .contains("ncserverd_session_stream_coded_blocks_total{stream=\"live\"} 0")
        );
        drop(viewing);
        assert_eq!(viewers(&registry, "live"), Some(0));
    }

    #[test]
    fn names_that_peers_make_up_share_one_series_and_a_session_counts_once() {
        let registry = Registry::new();
        let audience = Audience::new(&registry).unwrap();
        audience.set_streams(&names(&["live"]));
        let mut viewing = Viewing::new(audience.clone());
        for index in 0..100 {
            audience.add(
                &format!("made-up-{index}"),
                StreamTally {
                    refused: 1,
                    ..StreamTally::default()
                },
            );
            viewing.set(format!("made-up-{index}").into(), true);
        }
        assert_eq!(viewers(&registry, "other"), Some(1));
        let text = shown(&registry);
        assert!(
            text.contains("ncserverd_session_stream_refused_total{stream=\"other\"} 100"),
            "{text}"
        );
        assert_eq!(text.matches("stream=").count(), 12, "{text}");
        viewing.set("made-up-0".into(), false);
        assert_eq!(viewers(&registry, "other"), Some(1));
        drop(viewing);
        assert_eq!(viewers(&registry, "other"), Some(0));
    }
}
