//! Sources come and go: connections, neighbours, and the segments that neighbours hold.

use super::fetch::Stranger;
use super::state::Fetches;
use crate::object::SegmentId;
use crate::peer::counts::SourceCounts;
use crate::peer::ids::SourceId;
use crate::peer::path::Trust;
use crate::time::Instant;
use crate::wire::message::{Hello, stream_of};

/// Segments that a neighbour is known to hold. Beyond that, those named first are forgotten.
const HELD_MAX: usize = 256;

impl Fetches {
    /// Adds a source that a server has named.
    pub(in crate::peer) fn add_neighbour(&mut self, source: SourceId) {
        self.sources.entry(source).is_neighbour = true;
        for fetch in self.fetches.values_mut() {
            fetch.strangers.insert(source, Stranger::Refused);
        }
    }

    /// A neighbour holds something of a segment.
    pub(in crate::peer) fn note_holding(&mut self, source: SourceId, segment: SegmentId) {
        let Some(path) = self
            .sources
            .get_mut(source)
            .filter(|path| path.is_neighbour)
        else {
            return;
        };
        path.holds.retain(|other| *other != segment);
        path.holds.push_back(segment);
        if path.holds.len() > HELD_MAX {
            path.holds.pop_front();
        }
        for fetch in self
            .fetches
            .values_mut()
            .filter(|fetch| fetch.order.segment == segment && !fetch.is_alone)
        {
            fetch.strangers.insert(source, Stranger::Introduced);
            if let Some(place) = &fetch.place {
                path.follow(stream_of(&place.path));
            }
        }
        self.stirred = true;
    }

    /// Removes a source whose connection is gone for good. Its counts stay.
    pub(in crate::peer) fn remove_source(&mut self, source: SourceId) {
        let Some(path) = self.sources.paths.remove(&source) else {
            return;
        };
        let SourceCounts {
            blocks,
            innovative,
            useless,
            systematic,
            lost,
            payload_bytes,
            wrong,
            ..
        } = path.counts;
        self.counts.blocks += blocks;
        self.counts.innovative += innovative;
        self.counts.useless += useless;
        self.counts.systematic += systematic;
        self.counts.lost += lost;
        self.counts.wrong += wrong;
        self.counts.payload_bytes += payload_bytes;
        self.counts.late += path.late;
        if path.is_neighbour {
            self.counts.neighbour_bytes += payload_bytes;
        }
        for fetch in self.fetches.values_mut() {
            fetch.strangers.remove(&source);
        }
    }

    /// A source has sent HELLO.
    pub(in crate::peer) fn opened(&mut self, source: SourceId, hello: &Hello) {
        let requests_max = self
            .config
            .requests_max
            .min(usize::from(hello.requests_max));
        let path = self.sources.entry(source);
        path.is_open = true;
        path.trust = Trust::New;
        path.requests_max = requests_max;
        path.credit_max = hello.credit_max;
        path.streams_from = None;
        if path.is_doubted && !path.is_neighbour {
            let places = self
                .fetches
                .iter()
                .filter_map(|(id, fetch)| Some((*id, fetch.place.clone()?)));
            for (id, place) in places.collect::<Vec<_>>() {
                self.ask_to_name(id, source, place);
            }
        }
        self.stirred = true;
    }

    /// A source takes no new requests.
    pub(in crate::peer) fn leaving(&mut self, source: SourceId) {
        if let Some(path) = self.sources.get_mut(source) {
            path.is_open = false;
        }
    }

    /// The requests of a source are gone. The blocks that have come stay.
    pub(in crate::peer) fn disconnected(&mut self, now: Instant, source: SourceId) {
        if let Some(path) = self.sources.get_mut(source) {
            path.is_open = false;
            path.aliases.clear();
            path.pace.idle();
        }
        let is_last = self.sources.open().next().is_none();
        for fetch in self.fetches.values_mut() {
            fetch.trickles = false;
            // Once only: a source that comes and goes and sends nothing must not delay the failure
            // for ever.
            if is_last && !std::mem::replace(&mut fetch.is_put_off, true) {
                fetch.touched = fetch.touched.max(now);
            }
            match fetch.strangers.get_mut(&source) {
                // What a neighbour holds is known from its server.
                Some(stranger) if self.sources.is_neighbour(source) => {
                    if !self
                        .sources
                        .get(source)
                        .is_some_and(|path| path.holds.contains(&fetch.order.segment))
                    {
                        *stranger = Stranger::Refused;
                    }
                }
                _ => drop(fetch.strangers.remove(&source)),
            }
            fetch.exclude_others(self.sources.paths.keys());
            fetch.works.values_mut().for_each(|work| {
                work.asked.remove(&source);
                work.paused.remove(&source);
                // Its next connection may bring as many redundant blocks again.
                work.useless.remove(&source);
            });
        }
        self.accused.retain(|(_, accused), _| *accused != source);
        self.unnamed
            .retain(|(introduction, _)| introduction.source != source);
        self.naming
            .retain(|introduction| introduction.source != source);
        self.evidence.disconnected(source);
        self.stirred = true;
    }
}
