//! Segments that have turned out to be wrong, and how they are repaired.
//!
//! A row is tested as it comes if hashes or checksums for it are known. Other rows are tested when
//! their segment is wrong: a *trial*. Wrong rows leave their generation, which is decoded again
//! from the other rows and continues from there. Where no source can tell right rows from wrong,
//! the segment is fetched once more, from the trusted source alone.

use ncs_codec::numbers::Numbers;

use super::fetch::{Fetch, Stranger, find};
use super::state::Fetches;
use crate::object::{Generation, SegmentId};
use crate::peer::effects::Effects;
use crate::peer::event::{Event, Failure};
use crate::peer::evidence::{Pollution, Row};
use crate::peer::ids::{FetchId, WorkId};
use crate::peer::keyring::FIRST;
use crate::peer::rebuilder::Rebuilder;
use crate::peer::work::Work;
use crate::sorted::{SortedMap, SortedSet};
use crate::time::Instant;
use crate::wire::message::StopReason;

impl Fetches {
    /// Takes the verdict on the bytes of a segment, from the comparison of their hash. True if they
    /// are wrong and all generations of the segment come again.
    pub(in crate::peer) fn confirm(&mut self, now: Instant, id: FetchId, is_right: bool) -> bool {
        if is_right {
            self.polluters
                .extend(self.evidence.take_charges(id).into_values());
            self.stirred |= !self.polluters.is_empty();
            self.evidence.close(id);
            return false;
        }
        let shape = self.evidence.order(id).map(|(order, _)| order.shape);
        let all = shape
            .map(|shape| (0..shape.generations()).collect())
            .unwrap_or_default();
        self.refute(now, id, &all)
    }

    /// A generation, which was complete, is proven.
    pub(in crate::peer) fn settle(&mut self, id: FetchId, generation: u32) {
        // A program that passes rows on is told which of them are right when checksums come.
        if !self.config.tells {
            self.evidence.settle(id, generation);
        }
    }

    /// These generations were complete, and some of their bytes are wrong. True if they come again;
    /// otherwise the fetch is over.
    pub(in crate::peer) fn refute(
        &mut self,
        now: Instant,
        id: FetchId,
        generations: &SortedSet<u32>,
    ) -> bool {
        self.stirred = true;
        let open = self.sources.open_servers();
        if self.evidence.begin_trial(now, id, generations, &open)
            || self.begin_anew(now, id, generations)
        {
            return true;
        }
        self.drop_case(id);
        self.given_up.push(id);
        false
    }

    /// Tests waiting rows, and ends trials.
    pub(super) fn try_rows(&mut self, now: Instant, effects: &mut Effects) {
        self.begin_tests(now, effects);
        for (fetch, index, rows) in self.evidence.test_waiting() {
            let id = WorkId { fetch, index };
            let (right, wrong): (Vec<Row>, Vec<Row>) =
                rows.into_iter().partition(|row| row.is_right);
            self.turn_away(now, id, wrong);
            for row in right {
                let source = row.source;
                if let Err(violation) = self.absorb(now, id, row, effects) {
                    self.broken.push_back((now, source, violation));
                }
            }
        }
        let open = self.sources.open_servers();
        self.evidence.expire(now, &open);
        for id in self.evidence.overdue(now) {
            self.fail(id, Failure::Deadline, StopReason::Deadline, effects);
        }
        while let Some((id, refuted, has_dropped)) = self.evidence.next_concluded() {
            if has_dropped {
                self.reopen(now, id, &refuted, effects);
            } else if !self.begin_anew(now, id, &refuted) {
                self.fail(id, Failure::Corrupt, StopReason::Cancelled, effects);
            }
        }
        for id in std::mem::take(&mut self.given_up) {
            self.remove(id, StopReason::Cancelled, effects);
        }
        self.stop_charged(effects);
    }

    /// Decodes a generation under way again, from its remaining rows.
    pub(super) fn rebuild(&mut self, id: WorkId) {
        let Some((order, _)) = self.evidence.order(id.fetch) else {
            return;
        };
        let Some(generation) = order.shape.generation(id.index) else {
            return;
        };
        let is_progressive =
            find(&mut self.fetches, id).is_some_and(|work| work.decoder.is_progressive());
        let decoder = self.decoder_of_rows(id.fetch, &order.segment, generation, is_progressive);
        let held = self.numbers_of_rows(id);
        if let Some(work) = find(&mut self.fetches, id) {
            (work.decoder, work.held) = (decoder, held);
        }
    }

    /// A decoder with all kept rows of a generation.
    fn decoder_of_rows(
        &self,
        id: FetchId,
        segment: &SegmentId,
        generation: Generation,
        is_progressive: bool,
    ) -> Box<Rebuilder> {
        let mut decoder =
            Rebuilder::for_generation(&self.config, segment, generation, is_progressive);
        for row in self.evidence.rows(id, generation.index) {
            // No error: a decoder has absorbed it before.
            let _ = decoder.absorb(&row.block.vector, &row.block.payload);
        }
        decoder
    }

    /// The numbers of the kept rows of a generation, where blocks have numbers.
    fn numbers_of_rows(&self, id: WorkId) -> Numbers {
        self.evidence
            .rows(id.fetch, id.index)
            .iter()
            .filter_map(|row| Numbers::number(&row.block.vector))
            .collect()
    }

    /// Decodes generations after a trial again from their remaining rows. Missing blocks are
    /// requested.
    fn reopen(
        &mut self,
        now: Instant,
        id: FetchId,
        refuted: &SortedSet<u32>,
        effects: &mut Effects,
    ) {
        let Some((order, place)) = self.evidence.order(id) else {
            return;
        };
        let due = self.schedule().first_due(now, order);
        let mut works = SortedMap::new();
        for generation in refuted
            .iter()
            .filter_map(|index| order.shape.generation(*index))
        {
            let decoder = self.decoder_of_rows(id, &order.segment, generation, false);
            if decoder.missing() == 0 {
                effects.report(Event::Decoded { fetch: id, decoder });
            } else {
                // Its source blocks were requested before.
                let held = self.numbers_of_rows(WorkId {
                    fetch: id,
                    index: generation.index,
                });
                works.insert(
                    generation.index,
                    Box::new(Work {
                        next_source: generation.n,
                        held,
                        ..Work::new(decoder, due)
                    }),
                );
            }
        }
        self.counts.mended += 1;
        self.stirred = true;
        if !works.is_empty() {
            let next = order.shape.generations();
            let strangers = self.sources.strangers(&order.segment, place.as_ref());
            let fetch = self.fetches.get_or_insert_with(id, || Fetch {
                next,
                ..Fetch::new(now, order, place.clone())
            });
            fetch.strangers = strangers;
            fetch.works.extend(works);
            self.ask_doubted(id, place.as_ref());
        }
    }

    /// Requests generations once more, where no source knows which of their rows are wrong: from
    /// the trusted source alone, if it can be asked. If they are wrong again, that source lies, and
    /// the other servers are asked. False if all of them have come so often already.
    fn begin_anew(&mut self, now: Instant, id: FetchId, refuted: &SortedSet<u32>) -> bool {
        let Some((order, place)) = self.evidence.order(id) else {
            return false;
        };
        let mut is_without = false;
        if !self.evidence.begin_anew(id, refuted) {
            is_without = self.has_other_server() && self.evidence.refutes_trusted(id);
            if !is_without || !self.evidence.begin_anew(id, refuted) {
                return false;
            }
            // Nothing else was there to be wrong, and its word against others is worth nothing.
            self.evidence.take_charges(id);
            let pollution = Pollution {
                source: FIRST,
                segment: order.segment,
                generation: refuted.iter().next().copied().unwrap_or_default(),
                blocks: 1,
            };
            if !self.doubt(id, pollution) {
                self.polluters.push_back(pollution);
            }
        }
        let count = order.shape.generations();
        let is_all = refuted.len() as u64 == u64::from(count) && !self.fetches.contains_key(&id);
        let generations = refuted
            .iter()
            .filter(|_| !is_all)
            .filter_map(|index| order.shape.generation(*index));
        let decoder =
            |generation| Rebuilder::for_generation(&self.config, &order.segment, generation, false);
        let works: Vec<_> = generations
            .map(|generation| (generation.index, decoder(generation)))
            .collect();
        let is_open = self.sources.get(FIRST).is_some_and(|path| path.is_open);
        let is_alone = is_open && !is_without;
        self.evidence.set_alone(id, is_alone);
        let strangers = self.sources.strangers(&order.segment, place.as_ref());
        let due = self.schedule().first_due(now, order);
        let next = if is_all { 0 } else { count };
        let fetch = self.fetches.get_or_insert_with(id, || Fetch {
            next,
            ..Fetch::new(now, order, place)
        });
        (fetch.is_alone, fetch.strangers, fetch.touched) = (is_alone, strangers, now);
        fetch.works.extend(
            works
                .into_iter()
                .map(|(index, decoder)| (index, Box::new(Work::new(decoder, due)))),
        );
        fetch.exclude_others(self.sources.paths.keys());
        if is_without {
            fetch.strangers.insert(FIRST, Stranger::Excluded);
        }
        self.stirred = true;
        true
    }

    /// Whether a server besides the trusted one takes requests.
    fn has_other_server(&self) -> bool {
        self.sources
            .open()
            .any(|(source, path)| source != FIRST && !path.is_neighbour)
    }
}
