//! The events of the last hour, for a page: warnings, errors and milestones, as the logs have them.
//!
//! They are kept in memory, [`EVENTS_MAX`] at most, and [`OF_A_PLACE_MAX`] of one place in the
//! program, so that one noisy cause does not push out the others. An event that occurs again is
//! counted. The log's filter does not matter here. Texts are those of the logs, which contain no
//! secrets; URLs are redacted once more.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::secret::redacted;

/// The name of an event at `info` that is kept, too: `info!(name: MILESTONE, "started")`.
pub const MILESTONE: &str = "milestone";

/// The events of this process. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Events {
    ring: Arc<Mutex<Ring>>,
}

#[derive(Debug, Default)]
struct Ring {
    /// The latest last.
    kept: VecDeque<Kept>,
    revision: u64,
}

#[derive(Debug)]
struct Kept {
    event: Event,
    place: Identifier,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    /// When it last occurred, in milliseconds since 1970.
    pub time_ms: u64,
    /// Its level.
    #[serde(serialize_with = "name_of_level")]
    pub level: Level,
    /// The message and its fields.
    pub text: String,
    /// How often it occurred.
    pub count: u64,
}

impl Events {
    /// The events of the hour before `now_ms`, the latest first, and a number that changes with
    /// them.
    pub fn since_an_hour(&self, now_ms: u64) -> (u64, Vec<Event>) {
        let since = now_ms.saturating_sub(HOUR_MS);
        let mut ring = self.lock();
        let before = ring.kept.len();
        ring.kept.retain(|kept| kept.event.time_ms >= since);
        if ring.kept.len() != before {
            ring.revision += 1;
        }
        let events = ring.kept.iter().rev().map(|kept| kept.event.clone());
        (ring.revision, events.collect())
    }

    /// The number that changes with the events.
    pub fn revision(&self) -> u64 {
        self.lock().revision
    }

    /// A layer of subscribers that keeps events.
    pub(super) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let filter = filter_fn(is_kept).with_max_level_hint(LevelFilter::INFO);
        Keeper(self.clone()).with_filter(filter)
    }

    fn keep(&self, event: Event, place: Identifier) {
        let mut ring = self.lock();
        ring.revision += 1;
        let is_same = |kept: &Kept| kept.place == place && kept.event.text == event.text;
        let known = ring.kept.iter().position(is_same);
        if let Some(mut known) = known.and_then(|at| ring.kept.remove(at)) {
            known.event.time_ms = event.time_ms;
            known.event.count = known.event.count.saturating_add(event.count);
            return ring.kept.push_back(known);
        }
        let is_of_place = |kept: &&Kept| kept.place == place;
        if ring.kept.iter().filter(is_of_place).count() >= OF_A_PLACE_MAX {
            let oldest = ring.kept.iter().position(|kept| kept.place == place);
            oldest.and_then(|at| ring.kept.remove(at));
        } else if ring.kept.len() >= EVENTS_MAX {
            ring.kept.pop_front();
        }
        ring.kept.push_back(Kept { event, place });
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Now, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

/// Libraries' events are left out: an operator cannot act on them.
fn is_kept(metadata: &Metadata<'_>) -> bool {
    let is_ours = || {
        let package = metadata.target().split("::").next().unwrap_or_default();
        package == "ncserverd" || package == "ncpeer" || package.starts_with("ncs_")
    };
    let matters = *metadata.level() <= Level::WARN
        || (*metadata.level() == Level::INFO && metadata.name() == MILESTONE);
    metadata.is_event() && matters && is_ours()
}

struct Keeper(Events);

impl<S: Subscriber> Layer<S> for Keeper {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut words = Words::default();
        event.record(&mut words);
        let metadata = event.metadata();
        let kept = Event {
            time_ms: now_ms(),
            level: *metadata.level(),
            text: words.text(),
            count: words.suppressed.saturating_add(1),
        };
        self.0.keep(kept, metadata.callsite());
    }
}

/// The message and the fields of an event.
#[derive(Default)]
struct Words {
    message: Short,
    fields: Short,
    suppressed: u64,
}

impl Words {
    fn text(&self) -> String {
        let text = match self.fields.0.is_empty() {
            true => self.message.0.clone(),
            false => format!("{} ({})", self.message.0, self.fields.0),
        };
        let mut text = redacted(&text);
        if text.len() > TEXT_MAX {
            text.truncate(text.floor_char_boundary(TEXT_MAX - '…'.len_utf8()));
            text.push('…');
        }
        text
    }
}

impl Visit for Words {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "suppressed" {
            self.suppressed = value;
        } else {
            self.record_debug(field, &value);
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.record_debug(field, &format_args!("{value:.1}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // A text that does not fit is cut.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            let comma = if self.fields.0.is_empty() { "" } else { ", " };
            write!(self.fields, "{comma}{}: {value:?}", field.name())
        };
    }
}

/// A text that takes a bounded number of bytes, and no more than an error after them.
#[derive(Default)]
struct Short(String);

impl Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = WORDS_MAX.saturating_sub(self.0.len());
        self.0.push_str(&text[..text.floor_char_boundary(room)]);
        if text.len() > room {
            return Err(fmt::Error);
        }
        Ok(())
    }
}

fn name_of_level<S: Serializer>(level: &Level, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match *level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        _ => "info",
    })
}

/// Events that are kept.
const EVENTS_MAX: usize = 256;
/// Of these, events of one place in the program.
const OF_A_PLACE_MAX: usize = 32;
/// The bytes of a text.
const TEXT_MAX: usize = 300;
/// The bytes of a message, or of its fields, before they are redacted and cut.
const WORDS_MAX: usize = 2048;
const HOUR_MS: u64 = Duration::from_secs(3600).as_secs() * 1000;

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn kept(log: impl FnOnce()) -> Vec<Event> {
        let events = Events::default();
        let subscriber = tracing_subscriber::registry().with(events.layer());
        tracing::subscriber::with_default(subscriber, log);
        events.since_an_hour(now_ms()).1
    }

    fn texts(events: &[Event]) -> Vec<&str> {
        events.iter().map(|event| &event.text[..]).collect()
    }

    #[test]
    fn warnings_errors_and_milestones_are_kept() {
        let events = kept(|| {
            tracing::info!("no milestone");
            tracing::info!(name: MILESTONE, "started");
            tracing::debug!(name: MILESTONE, "too fine");
            tracing::warn!(stream = "live", wait_s = 0.62, "a fetch failed");
            tracing::error!(error = %"it broke", ?MILESTONE, "lost");
            tracing::warn!(target: "quinn", "a library's");
            tracing::warn!(target: "ncsx", "another's");
        });
        assert_eq!(
            texts(&events),
            [
                "lost (error: it broke, MILESTONE: \"milestone\")",
                "a fetch failed (stream: live, wait_s: 0.6)",
                "started",
            ]
        );
        let json = serde_json::to_value(&events).unwrap();
        let levels = [0, 1, 2].map(|at: usize| json[at]["level"].as_str().unwrap());
        assert_eq!(levels, ["error", "warning", "info"]);
        assert!(events[0].time_ms > 1_600_000_000_000);
    }

    #[test]
    fn repeated_events_are_counted() {
        let events = kept(|| {
            for number in 0..10_u64 {
                let suppressed = (number > 0).then_some(4_u64);
                tracing::warn!(suppressed, "again");
                if number == 4 {
                    tracing::warn!("between");
                }
            }
        });
        assert_eq!(texts(&events), ["again", "between"]);
        assert_eq!(events[0].count, 10 + 9 * 4);
    }

    #[test]
    fn events_are_bounded_in_number_and_length() {
        let noisy = |number: u32| tracing::warn!(number, "noisy");
        let events = kept(|| {
            tracing::error!("rare");
            (0..10_000).for_each(noisy);
        });
        assert_eq!(events.len(), OF_A_PLACE_MAX + 1, "the rare one stays");
        assert_eq!(events[0].text, "noisy (number: 9999)");

        let long = "ä".repeat(100_000);
        let events = kept(|| tracing::warn!(%long, "long"));
        assert!(events[0].text.len() <= TEXT_MAX && events[0].text.ends_with("ä…"));

        let events = Events::default();
        let place = kept_place();
        for number in 0..2 * EVENTS_MAX {
            let event = Event {
                time_ms: now_ms(),
                level: Level::WARN,
                text: number.to_string(),
                count: 1,
            };
            events.keep(event, place[number % place.len()].clone());
        }
        let (_, all) = events.since_an_hour(now_ms());
        assert!(all.len() <= EVENTS_MAX && all[0].text == "511");
    }

    /// Places in the program, as many as fill the ring.
    fn kept_place() -> Vec<Identifier> {
        macro_rules! places {
            ($($number:literal)*) => {
                vec![$({
                    let callsite = tracing::callsite!(
                        name: $number,
                        kind: tracing::metadata::Kind::EVENT,
                        fields: message
                    );
                    tracing::Callsite::metadata(callsite).callsite()
                }),*]
            };
        }
        places!("0" "1" "2" "3" "4" "5" "6" "7" "8" "9")
    }

    #[test]
    fn old_events_are_not_shown() {
        let events = Events::default();
        let subscriber = tracing_subscriber::registry().with(events.layer());
        tracing::subscriber::with_default(subscriber, || tracing::warn!("old"));
        let (first, shown) = events.since_an_hour(now_ms() + HOUR_MS - 60_000);
        assert_eq!((shown.len(), events.revision()), (1, first));
        let (second, shown) = events.since_an_hour(now_ms() + HOUR_MS + 60_000);
        assert!(shown.is_empty() && second != first);
    }

    #[test]
    fn urls_are_redacted() {
        let events = kept(|| {
            tracing::warn!(
                url = "http://me:hunter2@o.test/a?token=hunter2",
                "no answer"
            );
        });
        let text = &events[0].text;
        assert!(
            text.contains("o.test/a") && !text.contains("hunter2"),
            "{text}"
        );
    }
}
