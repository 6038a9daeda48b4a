//! Senders of wrong blocks, and how they are told from sources that were misled.
//!
//! A sender may have received a row that it marks as unverified already wrong, and the trusted
//! source is believed by the source that named it: such rows are counted, and nobody is accused.
//! Blocks that prove themselves are an exception: a sender that passes on wrong ones has not tested
//! them.

use ncs_codec::block::Vector;

use super::fetch::Stranger;
use super::state::Fetches;
use crate::object::SegmentId;
use crate::peer::effects::Effects;
use crate::peer::evidence::{Pollution, Row};
use crate::peer::ids::{FetchId, SourceId, WorkId};
use crate::peer::keyring::FIRST;
use crate::sorted::SortedMap;
use crate::time::Instant;
use crate::wire::Violation;

impl Fetches {
    /// Drops rows that were found to be wrong before they were absorbed, and blames their senders.
    pub(super) fn turn_away(&mut self, now: Instant, id: WorkId, wrong: Vec<Row>) {
        for row in &wrong {
            let Some(path) = self.sources.get_mut(row.source) else {
                continue;
            };
            path.note_received(&row.block);
            path.pace.arrived(now, row.block.payload.len());
        }
        self.blame(id, &wrong);
    }

    /// Blames the senders of wrong rows of a segment under way.
    pub(super) fn blame(&mut self, id: WorkId, wrong: &[Row]) {
        if let Some((order, _)) = self.evidence.order(id.fetch) {
            self.accuse(id, order.segment, order.shape.codec().is_gfq(), wrong);
        }
    }

    /// Counts wrong rows, and accuses their senders.
    pub(super) fn accuse(
        &mut self,
        id: WorkId,
        segment: SegmentId,
        proves_itself: bool,
        wrong: &[Row],
    ) {
        let mut senders: SortedMap<SourceId, u32> = SortedMap::new();
        for Row { source, block, .. } in wrong {
            if let Some(path) = self.sources.get_mut(*source) {
                path.counts.wrong += 1;
            }
            let is_believed = *source == FIRST && !proves_itself;
            if !is_believed && !matches!(block.vector, Vector::Unverified(_)) {
                *senders.get_or_default(*source) += 1;
            }
        }
        for (source, blocks) in senders {
            let pollution = Pollution {
                source,
                segment,
                generation: id.index,
                blocks,
            };
            if proves_itself || self.sources.is_neighbour(source) {
                self.polluters.push_back(pollution);
            } else if !self.doubt(id.fetch, pollution) {
                self.charge(id.fetch, pollution);
            }
        }
    }

    /// Leaves a server out for a segment that it has sent wrong blocks of. Who said that they are
    /// wrong may lie, too, so the server is judged when the bytes of the segment are known to be
    /// right without it.
    pub(super) fn charge(&mut self, id: FetchId, pollution: Pollution) {
        self.evidence.charge(id, pollution);
        self.stirred = true;
    }

    /// Leaves out servers that are charged, whatever they have named since.
    pub(super) fn exclude_charged(&mut self) {
        for (id, source) in self.evidence.charged() {
            if let Some(fetch) = self.fetches.get_mut(&id) {
                fetch.strangers.insert(source, Stranger::Excluded);
            }
        }
    }

    /// Stops the requests at servers that are charged.
    pub(super) fn stop_charged(&mut self, effects: &mut Effects) {
        for (id, source) in self.evidence.charged().collect::<Vec<_>>() {
            self.stop_at(source, id, effects);
        }
    }

    /// Closes the case of a segment whose bytes are not known to be right: nobody is judged.
    pub(super) fn drop_case(&mut self, id: FetchId) {
        self.evidence.close(id);
        self.accused.retain(|(fetch, _), _| *fetch != id);
    }

    /// The trusted source lies. Whom it has accused is asked again, and nothing is left to it
    /// alone.
    pub(in crate::peer) fn acquit_all(&mut self, now: Instant, effects: &mut Effects) {
        for fetch in self.fetches.values_mut() {
            fetch.is_alone = false;
            fetch
                .strangers
                .retain(|_, stranger| *stranger != Stranger::Excluded);
        }
        self.accused.retain(|(_, source), _| *source == FIRST);
        for (fetch, index, row) in self.evidence.acquit_all() {
            let (id, source) = (WorkId { fetch, index }, row.source);
            if let Err(violation) = self.absorb(now, id, row, effects) {
                self.broken.push_back((now, source, violation));
            }
        }
        self.stirred = true;
    }

    /// Whether wrong blocks may be right ones of another segment with the same bytes. That is so
    /// for a server that has not named this segment itself. It is asked to, and judged by the
    /// answer. A neighbour is named for the very segment that it is asked for.
    pub(super) fn doubt(&mut self, id: FetchId, pollution: Pollution) -> bool {
        let source = pollution.source;
        let Some((order, Some(place))) = self.evidence.order(id) else {
            return false;
        };
        let Some(path) = self.sources.get_mut(source) else {
            return false;
        };
        if path.is_neighbour || self.evidence.is_named_by(id, source) {
            return false;
        }
        path.is_doubted = true;
        if let Some((known, _)) = self.accused.get_mut(&(id, source)) {
            known.blocks += pollution.blocks;
        } else if path.is_open {
            self.accused.insert((id, source), (pollution, order.shape));
            self.ask_to_name(id, source, place);
        }
        true
    }

    /// The next source that was proved to send wrong blocks.
    pub(in crate::peer) fn next_polluter(&mut self) -> Option<Pollution> {
        self.polluters.pop_front()
    }

    /// The next source that has broken the rules with blocks that were tested later.
    pub(in crate::peer) fn next_broken(&mut self) -> Option<(SourceId, Violation)> {
        self.broken
            .pop_front()
            .map(|(_, source, violation)| (source, violation))
    }
}
