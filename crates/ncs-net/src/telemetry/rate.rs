//! The periodic log line about the encoder's rate and each stream. Without viewers none is written.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use prometheus::Registry;
use prometheus::proto::MetricFamily;
use tokio::time::{Instant, MissedTickBehavior};

/// Writes a line every `interval` for as long as it is polled.
pub async fn log(registry: Registry, interval: Duration) {
    let mut timer = tokio::time::interval_at(Instant::now() + interval, interval);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut then, mut before) = (Instant::now(), Seen::read(&registry));
    loop {
        let now = timer.tick().await;
        let seen = Seen::read(&registry);
        if let Some(Line {
            rate,
            viewers,
            streams,
        }) = seen.line_since(&before, now - then)
        {
            let coded_bytes_total = seen.coded_bytes;
            tracing::info!(
                encode_mb_per_s = rate,
                coded_bytes_total,
                viewers,
                "encoded {rate:.1} MB/s{streams}"
            );
        }
        (then, before) = (now, seen);
    }
}

/// The line's data, read from the registry.
#[derive(Debug, Default)]
struct Seen {
    /// The encoder's counter, summed over all back ends and kernels.
    coded_bytes: f64,
    streams: BTreeMap<String, [f64; STREAM.len()]>,
}

/// The content of the line.
#[derive(Debug, PartialEq)]
struct Line {
    rate: f64,
    viewers: f64,
    streams: String,
}

impl Seen {
    fn read(registry: &Registry) -> Self {
        let mut seen = Self::default();
        for family in registry.gather() {
            if family.name() == CODED_BYTES {
                seen.coded_bytes = family
                    .get_metric()
                    .iter()
                    .map(|counter| counter.get_counter().get_value())
                    .sum();
            } else if let Some(column) = STREAM.iter().position(|name| *name == family.name()) {
                seen.read_streams(column, &family);
            }
        }
        seen
    }

    fn read_streams(&mut self, column: usize, family: &MetricFamily) {
        for metric in family.get_metric() {
            let Some(stream) = metric
                .get_label()
                .iter()
                .find(|label| label.name() == "stream")
            else {
                continue;
            };
            // A metric has one of the two; the other is zero.
            let value = metric.get_gauge().get_value() + metric.get_counter().get_value();
            self.streams.entry(stream.value().to_owned()).or_default()[column] = value;
        }
    }

    /// The line, if a stream has viewers or changes.
    fn line_since(&self, before: &Self, time: Duration) -> Option<Line> {
        let coded = self.coded_bytes - before.coded_bytes;
        let streams = self.streams_since(before, time);
        // Blocks coded in advance alone are no news.
        (!streams.is_empty()).then(|| Line {
            rate: megabytes_per_second(coded, time),
            viewers: self.viewers(),
            streams,
        })
    }

    /// Viewers of all streams; one that watches two counts twice.
    fn viewers(&self) -> f64 {
        self.streams.values().map(|values| values[VIEWERS]).sum()
    }

    /// All streams with viewers or changes, those with most viewers first, for the end of the line.
    fn streams_since(&self, before: &Self, time: Duration) -> String {
        let since = |name: &String, values: &[f64; STREAM.len()]| {
            let before = before.streams.get(name).copied().unwrap_or_default();
            // A stream that was removed and added again begins at zero.
            let mut since =
                std::array::from_fn(|column| (values[column] - before[column]).max(0.0));
            since[VIEWERS] = values[VIEWERS];
            since
        };
        let streams = self
            .streams
            .iter()
            .map(|(name, values)| (name, since(name, values)));
        let mut streams: Vec<(&String, [f64; STREAM.len()])> = streams
            .filter(|(_, since)| since.iter().any(|value| *value > 0.0))
            .collect();
        streams.sort_by(|(_, one), (_, other)| other[VIEWERS].total_cmp(&one[VIEWERS]));
        let mut text = String::new();
        for (name, [viewers, bytes, coded, repair, late, refused]) in
            streams.iter().take(STREAMS_SHOWN)
        {
            let rate = megabytes_per_second(*bytes, time);
            write!(
                text,
                "; {name}: {viewers} viewers, {rate:.1} MB/s, {coded} coded, {repair} repair, \
                 {late} late, {refused} refused"
            )
            .expect("a string takes everything");
        }
        if let Some(more @ 1..) = streams.len().checked_sub(STREAMS_SHOWN) {
            write!(text, "; {more} more streams").expect("a string takes everything");
        }
        text
    }
}

fn megabytes_per_second(bytes: f64, time: Duration) -> f64 {
    bytes / 1e6 / time.as_secs_f64().max(1e-3)
}

const CODED_BYTES: &str = "ncserverd_encoder_coded_bytes_total";
/// The metrics of a stream, in the order of the line.
const STREAM: [&str; 6] = [
    "ncserverd_session_stream_viewers",
    "ncserverd_session_stream_sent_bytes_total",
    "ncserverd_session_stream_coded_blocks_total",
    "ncserverd_session_stream_repair_blocks_total",
    "ncserverd_session_stream_late_requests_total",
    "ncserverd_session_stream_refused_total",
];
const VIEWERS: usize = 0;
/// The maximum number of streams in the line.
const STREAMS_SHOWN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{IntCounterVec, IntGaugeVec, Opts};

    fn counters(registry: &Registry, name: &str, label: &str) -> IntCounterVec {
        let counter = IntCounterVec::new(Opts::new(name, "help"), &[label]).unwrap();
        registry.register(Box::new(counter.clone())).unwrap();
        counter
    }

    #[test]
    fn the_rate_adds_up_all_kernels() {
        let registry = Registry::new();
        assert_eq!(Seen::read(&registry).coded_bytes, 0.0);
        let counter = counters(&registry, CODED_BYTES, "kernel");
        counter.with_label_values(&["avx2"]).inc_by(90_000_000);
        counter.with_label_values(&["table"]).inc_by(30_000_000);
        assert_eq!(
            megabytes_per_second(Seen::read(&registry).coded_bytes, Duration::from_secs(60)),
            2.0
        );
    }

    #[test]
    fn the_line_says_how_each_stream_fares() {
        let registry = Registry::new();
        let viewers = IntGaugeVec::new(Opts::new(STREAM[VIEWERS], "help"), &["stream"]).unwrap();
        registry.register(Box::new(viewers.clone())).unwrap();
        let [bytes, coded, repair, late, refused] =
            [1, 2, 3, 4, 5].map(|at| counters(&registry, STREAM[at], "stream"));
        refused.with_label_values(&["other"]).inc_by(1);
        let before = Seen::read(&registry);
        for (stream, count) in [("live", 7), ("sport", 40), ("idle", 0)] {
            viewers.with_label_values(&[stream]).set(count);
        }
        bytes.with_label_values(&["sport"]).inc_by(90_000_000);
        coded.with_label_values(&["sport"]).inc_by(9);
        repair.with_label_values(&["sport"]).inc_by(2);
        late.with_label_values(&["sport"]).inc_by(3);
        refused.with_label_values(&["other"]).inc_by(5);
        let seen = Seen::read(&registry);
        assert_eq!(seen.viewers(), 47.0);
        let said = "; sport: 40 viewers, 1.5 MB/s, 9 coded, 2 repair, 3 late, 0 refused\
                    ; live: 7 viewers, 0.0 MB/s, 0 coded, 0 repair, 0 late, 0 refused\
                    ; other: 0 viewers, 0.0 MB/s, 0 coded, 0 repair, 0 late, 5 refused";
        let minute = Duration::from_secs(60);
        assert_eq!(
            seen.line_since(&before, minute)
                .map(|line| (line.viewers, line.streams)),
            Some((47.0, said.to_owned()))
        );
        // With viewers there is a line, however little is sent; without viewers there is none.
        assert!(seen.line_since(&seen, minute).is_some());
        ["live", "sport"]
            .iter()
            .for_each(|stream| viewers.with_label_values(&[stream]).set(0));
        let encoder = counters(&registry, CODED_BYTES, "kernel");
        encoder.with_label_values(&["avx2"]).inc_by(65_536);
        assert_eq!(
            Seen::read(&registry).line_since(&seen, minute),
            None,
            "a playlist is followed, and the first blocks are made"
        );
        ["live", "sport"]
            .iter()
            .for_each(|stream| viewers.with_label_values(&[stream]).set(1));
        for index in 0..20 {
            viewers
                .with_label_values(&[&format!("channel-{index}")])
                .set(1);
        }
        assert!(
            Seen::read(&registry)
                .streams_since(&seen, Duration::from_secs(60))
                .ends_with("; 14 more streams")
        );
    }
}
