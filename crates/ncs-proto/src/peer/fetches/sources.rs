//! All sources: their paths taken together, what is in flight at each, and how long neighbours are
//! waited for.

use std::collections::VecDeque;
use std::time::Duration;

use super::fetch::{Fetch, Stranger};
use crate::object::SegmentId;
use crate::peer::counts::{Counts, SourceCounts};
use crate::peer::effects::Effects;
use crate::peer::ids::{FetchId, SourceId};
use crate::peer::keyring::FIRST;
use crate::peer::order::Place;
use crate::peer::pace::Pace;
use crate::peer::path::{Load, Path, Trust, together};
use crate::peer::work::Work;
use crate::sorted::{SortedMap, SortedSet};
use crate::time::Instant;
use crate::wire::message::{Message, StopReason, stream_of};

/// A source is suspect after as many of the silences after which a datagram counts as lost. A
/// stream that repeats lost packets needs one or two.
pub(super) const SUSPECT_AFTER: u32 = 3;
/// How long neighbours are waited for at least and at most, and as long as the interval between two
/// segments of the stream is unknown. A peer that reads as fast as it can waits a moment, too.
const PATIENCE_MIN: Duration = Duration::from_millis(250);
const PATIENCE_MAX: Duration = Duration::from_secs(8);
const PATIENCE: Duration = Duration::from_secs(1);
/// Segments from which the interval of a stream is measured: those of two or three tracks come at
/// the same time.
const CADENCE_SEGMENTS: usize = 6;
/// Streams whose interval is known.
const CADENCES_MAX: usize = 64;

/// All sources, and the intervals of the streams that come from them.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) paths: SortedMap<SourceId, Path>,
    /// When the last segments of each stream were ordered.
    cadences: SortedMap<String, VecDeque<Instant>>,
}

impl Sources {
    pub(super) fn get(&self, source: SourceId) -> Option<&Path> {
        self.paths.get(&source)
    }

    pub(super) fn get_mut(&mut self, source: SourceId) -> Option<&mut Path> {
        self.paths.get_mut(&source)
    }

    /// A source, which may be new.
    pub(super) fn entry(&mut self, source: SourceId) -> &mut Path {
        self.paths.get_or_default(source)
    }

    pub(super) fn is_neighbour(&self, source: SourceId) -> bool {
        self.get(source).is_some_and(|path| path.is_neighbour)
    }

    /// Those that take requests.
    pub(super) fn open(&self) -> impl Iterator<Item = (SourceId, &Path)> {
        self.paths
            .iter()
            .filter(|(_, path)| path.is_open)
            .map(|(source, path)| (*source, path))
    }

    /// The servers among them.
    pub(super) fn open_servers(&self) -> SortedSet<SourceId> {
        self.open()
            .filter(|(_, path)| !path.is_neighbour)
            .map(|(source, _)| source)
            .collect()
    }

    /// Whether more than one source takes requests.
    pub(super) fn is_several(&self) -> bool {
        self.open().nth(1).is_some()
    }

    /// How many sources besides the trusted one take requests.
    pub(super) fn untrusted(&self) -> usize {
        self.open().filter(|(source, _)| *source != FIRST).count()
    }

    /// Whether suspects are left out of a fetch, because another source can be asked.
    pub(super) fn shuns(&self, fetch: &Fetch) -> bool {
        self.open()
            .any(|(source, path)| path.trust != Trust::Suspect && fetch.may_ask(&source))
    }

    /// The shortest round trip to a source that takes requests.
    pub(super) fn rtt(&self) -> Duration {
        self.open()
            .map(|(_, path)| path.pace.rtt())
            .min()
            .unwrap_or_else(|| Pace::new().rtt())
    }

    /// Bytes a second that come on all open paths.
    pub(super) fn rate(&self) -> f64 {
        self.loss_and_rate().1
    }

    /// Loss and rate of all open paths together.
    pub(super) fn loss_and_rate(&self) -> (f64, f64) {
        together(self.open().map(|(_, path)| path), Pace::loss)
    }

    /// The part of the loss that the paths themselves cause, without full queues.
    pub(super) fn path_loss(&self) -> f64 {
        together(self.open().map(|(_, path)| path), Pace::path_loss).0
    }

    /// Whether no request is open.
    pub(super) fn is_quiet(&self) -> bool {
        self.paths.values().all(|path| path.aliases.is_empty())
    }

    pub(super) fn is_quiet_at(&self, source: SourceId) -> bool {
        self.get(source).is_none_or(|path| path.aliases.is_empty())
    }

    /// `counts`, and the counts of all sources added to it.
    pub(super) fn counts(&self, counts: Counts) -> Counts {
        self.paths.values().fold(counts, |counts, path| Counts {
            blocks: counts.blocks + path.counts.blocks,
            innovative: counts.innovative + path.counts.innovative,
            useless: counts.useless + path.counts.useless,
            systematic: counts.systematic + path.counts.systematic,
            lost: counts.lost + path.counts.lost,
            payload_bytes: counts.payload_bytes + path.counts.payload_bytes,
            late: counts.late + path.late,
            neighbour_bytes: counts.neighbour_bytes
                + if path.is_neighbour {
                    path.counts.payload_bytes
                } else {
                    0
                },
            wrong: counts.wrong + path.counts.wrong,
            ..counts
        })
    }

    pub(super) fn source_counts(&self, source: SourceId) -> SourceCounts {
        let counts = |path: &Path| SourceCounts {
            loss: path.pace.loss(),
            rate: path.pace.rate(),
            rtt: path.pace.measured_rtt(),
            ..path.counts
        };
        self.get(source).map(counts).unwrap_or_default()
    }

    /// How sources stand to a segment that was never requested: a neighbour has the segments that
    /// it was named for, and may have others of the same stream.
    pub(super) fn strangers(
        &self,
        segment: &SegmentId,
        place: Option<&Place>,
    ) -> SortedMap<SourceId, Stranger> {
        let stream = place.map(|place| stream_of(&place.path));
        let stands = |path: &Path| match path.holds.contains(segment) {
            true => Stranger::Introduced,
            false if stream.is_some_and(|stream| path.follows.contains_key(stream)) => {
                Stranger::Expected
            }
            false => Stranger::Refused,
        };
        let neighbours = self.paths.iter().filter(|(_, path)| path.is_neighbour);
        neighbours
            .map(|(source, path)| (*source, stands(path)))
            .collect()
    }

    /// How long neighbours may take for a segment that is ordered now: most of the usual interval
    /// between two segments of the stream.
    pub(super) fn patience_with_neighbours(
        &mut self,
        now: Instant,
        place: Option<&Place>,
    ) -> Duration {
        let Some(stream) = place.map(|place| stream_of(&place.path)) else {
            return PATIENCE;
        };
        if !self.cadences.contains_key(stream) && self.cadences.len() >= CADENCES_MAX {
            self.cadences.clear();
        }
        let ordered = self.cadences.get_or_default(stream.to_owned());
        ordered.push_back(now);
        if ordered.len() > CADENCE_SEGMENTS + 1 {
            ordered.pop_front();
        }
        let gaps = ordered
            .iter()
            .zip(ordered.iter().skip(1))
            .map(|(one, next)| next.saturating_duration_since(*one));
        // The longest but one: behind a segment that was late there is a longer gap than usual, and
        // to wait as long again would make the next one late.
        let (longest, second) = gaps.fold((None, None), |(longest, second), gap| {
            let gap = Some(gap);
            (gap.max(longest), gap.min(longest).max(second))
        });
        // A part of it: servers need time for what does not come, and a reader that waits for this
        // segment orders the next one later, which must not lengthen the wait for that one.
        second
            .or(longest)
            .map_or(PATIENCE, |gap| gap * 15 / 16)
            .clamp(PATIENCE_MIN, PATIENCE_MAX)
    }

    /// Adds up what is in flight at each source, and marks silent sources as suspect.
    pub(super) fn weigh(&mut self, now: Instant, fetches: &SortedMap<FetchId, Fetch>) {
        let is_several = self.is_several();
        let load = Load {
            is_only: !is_several,
            ..Load::default()
        };
        self.paths.values_mut().for_each(|path| path.load = load);
        // Since when neighbours have had something to send.
        let mut waiting: SortedMap<SourceId, Instant> = SortedMap::new();
        for (fetch, work) in fetches
            .values()
            .flat_map(|fetch| fetch.works.values().map(move |work| (fetch, work)))
        {
            for (source, asked) in &work.asked {
                let Some(path) = self.paths.get_mut(source) else {
                    continue;
                };
                path.load.add(
                    fetch.order.urgency,
                    1,
                    u64::from(asked.in_flight()) * u64::from(work.block_bytes()),
                );
                let silence = path.silence(work.block_bytes(), 0);
                path.load.silence = silence.max(path.load.silence);
                if !path.is_neighbour {
                    path.load.heard = path.load.heard.max(Some(asked.heard()));
                    continue;
                }
                // A neighbour gets new requests more often than its silence would be noticed, if
                // each of them began that time anew.
                path.load.heard = path
                    .load
                    .heard
                    .max(asked.flight.came_at())
                    .max(asked.served_before);
                if asked.in_flight() > 0 {
                    let since = waiting.get_or_insert_with(*source, || asked.flight.begun_at());
                    *since = asked.flight.begun_at().min(*since);
                }
            }
        }
        for (source, since) in waiting {
            if let Some(path) = self.paths.get_mut(&source) {
                path.load.heard = path.load.heard.max(Some(since));
            }
        }
        if is_several {
            for path in self.paths.values_mut().filter(|path| path.load.all.1 > 0) {
                if path
                    .load
                    .heard
                    .is_some_and(|heard| heard + path.load.silence * SUSPECT_AFTER <= now)
                {
                    path.trust = Trust::Suspect;
                }
            }
        }
    }

    /// Adds a generation to what is in flight up to it, in the order in which generations are
    /// served.
    pub(super) fn add_ahead(&mut self, work: &Work) {
        for (source, asked) in &work.asked {
            let Some(path) = self.paths.get_mut(source) else {
                continue;
            };
            path.load.ahead += u64::from(asked.in_flight()) * u64::from(work.block_bytes());
            path.load.heard_ahead = path.load.heard_ahead.max(Some(asked.heard()));
        }
    }

    /// Stops a request.
    pub(super) fn stop(
        &mut self,
        source: SourceId,
        alias: u16,
        reason: StopReason,
        effects: &mut Effects,
    ) {
        self.free_alias(source, alias);
        effects.send(source, Message::Stop { alias, reason });
    }

    /// The alias of a request that is over becomes free.
    pub(super) fn free_alias(&mut self, source: SourceId, alias: u16) {
        if let Some(path) = self.paths.get_mut(&source) {
            path.aliases.remove(&alias);
        }
    }
}
