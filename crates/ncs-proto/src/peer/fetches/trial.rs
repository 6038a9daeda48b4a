//! Wrong blocks: found, dropped, laid at their sender's door, and made up for.
//!
//! A row is tested as it comes where there is something to test it by, and else when a segment has turned out to be wrong. What is found to be
//! wrong leaves its generation, which is rebuilt of the other rows and goes on from there. Where nobody can tell right rows from wrong, the
//! segment is fetched once more, from the trusted source alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ncs_codec::block::{Block, Vector};
use ncs_codec::numbers::Numbers;

use super::{Fetch, Fetches, Stranger, Turn, find};
use crate::object::{Generation, SegmentId};
use crate::peer::evidence::{Findings, Look, Row};
use crate::peer::gets::Introduction;
use crate::peer::keyring::FIRST;
use crate::peer::rebuilder::Rebuilder;
use crate::peer::words::{Tested, Verdict};
use crate::peer::work::Work;
use crate::peer::{Effects, Event, Failure, FetchId, Place, SourceId};
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::message::{Checks, Message, StopReason};

/// A source has sent blocks that were proved wrong.
#[derive(Debug, Clone, Copy)]
pub(in crate::peer) struct Lie {
    pub(in crate::peer) source: SourceId,
    pub(in crate::peer) segment: SegmentId,
    pub(in crate::peer) generation: u32,
    pub(in crate::peer) blocks: u32,
}

impl Fetches {
    /// Takes a block that a request has asked for.
    pub(super) fn take(
        &mut self,
        now: Instant,
        source: SourceId,
        id: FetchId,
        index: u32,
        block: Block,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let Some(generation) = self.fetches.get(&id).and_then(|fetch| fetch.order.shape.generation(index)) else { return Ok(()) };
        let asked = find(&mut self.fetches, id, index).and_then(|work| work.asked.get_mut(&source));
        if !asked.is_none_or(|asked| asked.expects(&block.vector)) {
            return self.stray(source);
        }
        if generation.codec.is_proving() {
            self.gather(now, source, id, index, block);
            return Ok(());
        }
        if source != FIRST && matches!(block.vector, Vector::Source(_)) {
            self.evidence.want_hashes(id);
        }
        if self.tests_early() {
            self.evidence.want_checks(id, index);
        }
        match self.evidence.look(id, &generation, source, &block) {
            look @ (Look::Unproved | Look::Right) => self.absorb(now, source, id, index, block, look == Look::Right, effects),
            Look::Wrong => {
                self.turn_away(now, id, index, vec![Row { source, block, is_right: false }]);
                Ok(())
            }
            Look::Later => Ok(()),
        }
    }

    /// The driver has the bytes of a segment, and has compared their hash. True if they are wrong and the segment comes again, all of its
    /// generations.
    pub(in crate::peer) fn confirm(&mut self, now: Instant, id: FetchId, is_right: bool) -> bool {
        if is_right {
            self.evidence.close(id);
            return false;
        }
        let shape = self.evidence.order(id).map(|(order, _)| order.shape);
        let all = shape.map(|shape| (0..shape.generations()).collect()).unwrap_or_default();
        self.refute(now, id, &all)
    }

    /// A generation, which was complete, is proven.
    pub(in crate::peer) fn settle(&mut self, id: FetchId, generation: u32) {
        // Who passes rows on is told which of them are right when checksums come.
        if !self.config.tells {
            self.evidence.settle(id, generation);
        }
    }

    /// These generations were complete, and some of their bytes are wrong. True if they come again; else the fetch is over.
    pub(in crate::peer) fn refute(&mut self, now: Instant, id: FetchId, generations: &BTreeSet<u32>) -> bool {
        self.stirred = true;
        let open = self.open();
        if self.evidence.begin_trial(now, id, generations, &open) || self.begin_anew(now, id, generations) {
            return true;
        }
        self.evidence.close(id);
        self.given_up.push(id);
        false
    }

    /// Keeps a block over the prime field until it is tested.
    fn gather(&mut self, now: Instant, source: SourceId, id: FetchId, index: u32, block: Block) {
        // They may have been refused by all before.
        self.evidence.want_hashes(id);
        if let Some(path) = self.paths.get_mut(&source) {
            path.pace.arrived(now, block.payload.len());
        }
        let Some(work) = find(&mut self.fetches, id, index) else { return };
        work.silences.remove(&source);
        if let Rebuilder::Words(words) = &mut *work.decoder {
            words.gather(now, source, block);
        }
    }

    /// Gives away what has gathered, to be tested: what is wanted first goes first, and no more than is done at a time. The rest gathers, and a liar that
    /// is found meanwhile costs nothing more.
    fn begin_tests(&mut self, now: Instant, effects: &mut Effects) {
        let proving = self.fetches.iter().filter(|(_, fetch)| fetch.order.shape.codec().is_proving());
        let mut turns: Vec<Turn> = proving.map(|(id, fetch)| fetch.turn(*id)).collect();
        turns.sort_unstable();
        for (.., id) in turns {
            let Some(hashes) = self.evidence.hashes(id) else { continue };
            let Some(fetch) = self.fetches.get_mut(&id) else { continue };
            let segment = fetch.order.segment;
            for work in fetch.works.values_mut() {
                if self.testing >= self.config.tests_max {
                    return;
                }
                let Rebuilder::Words(words) = &mut *work.decoder else { continue };
                let own = hashes.of_generation(words.generation());
                if let Some(trial) = words.begin_trial(now, (id, segment), self.next_trial, own) {
                    self.next_trial += 1;
                    self.testing += 1;
                    effects.report(Event::Test(Box::new(trial)));
                }
            }
        }
    }

    /// What was given away is tested: right blocks are absorbed, and wrong ones nobody's any more.
    pub(in crate::peer) fn tested(&mut self, now: Instant, mut tested: Tested, effects: &mut Effects) {
        let Tested { fetch: id, segment, index, tested: (blocks, batches), is_hopeless, .. } = tested;
        self.testing = self.testing.saturating_sub(1);
        self.stirred = true;
        self.counts.tested += blocks;
        self.counts.tests += batches;
        let rows = std::mem::take(&mut tested.rows);
        // It may be over, or begun anew: then its blocks bring nothing. Who has sent wrong ones has done it all the same.
        let is_wanted = match find(&mut self.fetches, id, index).map(|work| &mut *work.decoder) {
            Some(Rebuilder::Words(words)) => words.end_trial(tested),
            _ => false,
        };
        if is_hopeless && is_wanted {
            self.evidence.close(id);
            self.remove(id, StopReason::Cancelled, effects);
            return effects.report(Event::Failed { fetch: id, failure: Failure::Corrupt });
        }
        let mut wrong = Vec::new();
        for (row, verdict) in rows {
            if !matches!(verdict, Verdict::Right(_))
                && let Some(path) = self.paths.get_mut(&row.source)
            {
                path.counts.blocks += 1;
                path.counts.payload_bytes += row.block.payload.len() as u64;
            }
            let outcome = match verdict {
                Verdict::Right(outcome) if is_wanted => outcome,
                Verdict::Right(_) | Verdict::Untested => continue,
                Verdict::Wrong => {
                    wrong.push(row);
                    continue;
                }
            };
            let Row { source, block, .. } = row;
            if let Err(violation) = self.brought(now, source, id, index, block, outcome, true, effects) {
                self.broken.push_back((now, source, violation));
            }
        }
        if !wrong.is_empty() {
            self.evidence.alarm();
            self.accuse(id, segment, index, true, &wrong);
        }
    }

    /// A source is done with: what it has sent and nobody has tested goes, too.
    pub(in crate::peer) fn forget(&mut self, source: SourceId) {
        for work in self.fetches.values_mut().flat_map(|fetch| fetch.works.values_mut()) {
            if let Rebuilder::Words(words) = &mut *work.decoder {
                words.forget(source);
            }
        }
        self.stirred = true;
    }

    /// Tests what has come, and ends trials.
    pub(super) fn try_rows(&mut self, now: Instant, effects: &mut Effects) {
        self.begin_tests(now, effects);
        for (id, index, rows) in self.evidence.test_waiting() {
            let (right, wrong): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(|row| row.is_right);
            self.turn_away(now, id, index, wrong);
            for Row { source, block, .. } in right {
                if let Err(violation) = self.absorb(now, source, id, index, block, true, effects) {
                    self.broken.push_back((now, source, violation));
                }
            }
        }
        let open = self.open();
        self.evidence.expire(now, &open);
        for id in self.evidence.overdue(now) {
            self.evidence.close(id);
            self.remove(id, StopReason::Deadline, effects);
            effects.report(Event::Failed { fetch: id, failure: Failure::Deadline });
        }
        while let Some((id, refuted, has_dropped)) = self.evidence.next_concluded() {
            if has_dropped {
                self.reopen(now, id, &refuted, effects);
            } else if !self.begin_anew(now, id, &refuted) {
                self.evidence.close(id);
                self.remove(id, StopReason::Cancelled, effects);
                effects.report(Event::Failed { fetch: id, failure: Failure::Corrupt });
            }
        }
        for id in std::mem::take(&mut self.given_up) {
            self.remove(id, StopReason::Cancelled, effects);
        }
    }

    /// The next source that has been proved to send wrong blocks.
    pub(in crate::peer) fn next_lie(&mut self) -> Option<Lie> {
        self.liars.pop_front()
    }

    /// A source that has broken the rules by what came earlier.
    pub(in crate::peer) fn next_broken(&mut self) -> Option<(SourceId, Violation)> {
        self.broken.pop_front().map(|(_, source, violation)| (source, violation))
    }

    /// Questions that a source has not answered.
    pub(in crate::peer) fn questions(&self, source: SourceId) -> usize {
        self.evidence.unanswered(source)
    }

    /// The next question to a source about blocks.
    pub(in crate::peer) fn next_question(
        &mut self,
        now: Instant,
        source: SourceId,
        number: impl FnOnce() -> u64,
    ) -> Option<Message> {
        let open = self.open();
        self.evidence.next_question(now, source, &open, number)
    }

    /// Checksums have come. False if nobody waits for them.
    pub(in crate::peer) fn checks(&mut self, source: SourceId, answer: &Checks, effects: &mut Effects) -> bool {
        let Some((id, index)) = self.evidence.asked_about(source, answer.request) else { return false };
        let is_open = find(&mut self.fetches, id, index).is_some();
        if let Some(findings) = self.evidence.checks(source, answer, is_open) {
            self.judge(findings, effects);
        }
        self.stirred = true;
        true
    }

    pub(in crate::peer) fn hash_bytes(
        &mut self,
        now: Instant,
        request: u64,
        source: SourceId,
        bytes: &[u8],
    ) -> Result<bool, Violation> {
        self.evidence.hash_bytes(now, request, source, bytes)
    }

    pub(in crate::peer) fn hashes_finished(
        &mut self,
        request: u64,
        source: SourceId,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        for findings in self.evidence.hashes_finished(request, source)? {
            self.judge(findings, effects);
        }
        while let Some((cut, hashes)) = self.evidence.next_learnt() {
            if self.config.tells {
                effects.report(Event::Hashed { cut, hashes });
            }
        }
        self.stirred = true;
        Ok(())
    }

    /// A source does not answer a question about blocks. False if it was asked none of this number.
    pub(in crate::peer) fn question_refused(
        &mut self,
        now: Instant,
        request: u64,
        source: SourceId,
        retry_after: Option<Duration>,
    ) -> bool {
        let is_ours = self.evidence.refused(now, request, source, retry_after);
        self.stirred |= is_ours;
        is_ours
    }

    /// Whether rows of a source are kept until their segment is verified.
    pub(super) fn keeps_rows_of(&self, source: SourceId) -> bool {
        source != FIRST || self.tests_early() || self.untrusted() > 0
    }

    /// Whether checksums are wanted from the beginning: one liar among several would not be known without, somebody passes rows on,
    /// or it has happened before.
    fn tests_early(&self) -> bool {
        self.config.tells || self.evidence.is_alarmed() || self.untrusted() > 1
    }

    fn untrusted(&self) -> usize {
        self.paths.iter().filter(|(source, path)| **source != FIRST && path.is_open).count()
    }

    fn open(&self) -> BTreeSet<SourceId> {
        let open = self.paths.iter().filter(|(_, path)| path.is_open && !path.is_neighbour);
        open.map(|(source, _)| *source).collect()
    }

    /// What a test has brought counts.
    fn judge(&mut self, findings: Findings, effects: &mut Effects) {
        let Findings { fetch: id, generation: index, wrong, is_checked } = findings;
        if !wrong.is_empty() {
            self.blame(id, index, &wrong);
            if find(&mut self.fetches, id, index).is_some() {
                self.rebuild(id, index);
            } else {
                self.evidence.note_dropped(id, index);
            }
        }
        if is_checked
            && self.config.tells
            && let Some((order, _)) = self.evidence.order(id)
        {
            let rows = self.evidence.rows(id, index).iter().map(|row| row.block.clone()).collect();
            effects.report(Event::Checked { cut: order.cut(), generation: index, rows });
        }
        self.stirred = true;
    }

    /// Rows that were found to be wrong before they brought anything.
    fn turn_away(&mut self, now: Instant, id: FetchId, index: u32, wrong: Vec<Row>) {
        for row in &wrong {
            let Some(path) = self.paths.get_mut(&row.source) else { continue };
            path.counts.blocks += 1;
            path.counts.payload_bytes += row.block.payload.len() as u64;
            path.pace.arrived(now, row.block.payload.len());
        }
        self.blame(id, index, &wrong);
    }

    /// Lays wrong rows of a segment under way at their senders' door.
    fn blame(&mut self, id: FetchId, index: u32, wrong: &[Row]) {
        if let Some((order, _)) = self.evidence.order(id) {
            self.accuse(id, order.segment, index, order.shape.codec().is_proving(), wrong);
        }
    }

    /// Lays wrong rows at their senders' door. Whoever marks a row as unverified may have got it so, and the trusted source is believed by whoever named
    /// it: of these it is counted and no more. But for blocks that prove themselves: whoever passes on wrong ones has not looked at them.
    fn accuse(&mut self, id: FetchId, segment: SegmentId, index: u32, proves_itself: bool, wrong: &[Row]) {
        let mut lies: BTreeMap<SourceId, u32> = BTreeMap::new();
        for Row { source, block, .. } in wrong {
            if let Some(path) = self.paths.get_mut(source) {
                path.counts.wrong += 1;
            }
            let is_believed = *source == FIRST && !proves_itself;
            if !is_believed && !matches!(block.vector, Vector::Unverified(_)) {
                *lies.entry(*source).or_default() += 1;
            }
        }
        for (source, blocks) in lies {
            let lie = Lie { source, segment, generation: index, blocks };
            if proves_itself || !self.doubt(id, lie) {
                self.liars.push_back(lie);
            }
        }
    }

    /// Whether wrong blocks may be right ones of another segment with the same bytes: those of a server that has not named this one. It is asked to,
    /// and held to what it says; neighbours are named by what they are asked for.
    fn doubt(&mut self, id: FetchId, lie: Lie) -> bool {
        let Some((order, Some(place))) = self.evidence.order(id) else { return false };
        let Some(path) = self.paths.get_mut(&lie.source) else { return false };
        if path.is_neighbour || self.evidence.is_named_by(id, lie.source) {
            return false;
        }
        path.is_doubted = true;
        if let Some((known, _)) = self.accused.get_mut(&(id, lie.source)) {
            known.blocks += lie.blocks;
        } else if path.is_open {
            self.accused.insert((id, lie.source), (lie, order.shape));
            self.ask_to_name(id, lie.source, place);
        }
        true
    }

    /// A source is to name a segment before it is asked for it.
    pub(super) fn ask_to_name(&mut self, id: FetchId, source: SourceId, place: Place) {
        if let Some(fetch) = self.fetches.get_mut(&id) {
            fetch.strangers.insert(source, Stranger::AskedForPath);
        }
        let introduction = Introduction { fetch: id, source };
        if self.naming.insert(introduction) {
            self.unnamed.push_back((introduction, place));
        }
        self.stirred = true;
    }

    /// The next source that is to name a segment. What it sends of it meanwhile is of no use.
    pub(in crate::peer) fn next_unnamed(&mut self, effects: &mut Effects) -> Option<(Introduction, Place)> {
        let (introduction, place) = self.unnamed.pop_front()?;
        let Introduction { fetch, source } = introduction;
        let works = self.fetches.get_mut(&fetch).into_iter().flat_map(|fetch| fetch.works.values_mut());
        for asked in works.filter_map(|work| work.asked.remove(&source)) {
            if let Some(path) = self.paths.get_mut(&source) {
                path.aliases.remove(&asked.alias);
            }
            effects.send(source, Message::Stop { alias: asked.alias, reason: StopReason::Cancelled });
        }
        Some((introduction, place))
    }

    /// Those that have to name a segment before they are asked for it.
    pub(super) fn ask_doubted(&mut self, id: FetchId, place: Option<&Place>) {
        let Some(place) = place else { return };
        let doubted = self.paths.iter().filter(|(_, path)| path.is_doubted && path.is_open && !path.is_neighbour);
        for source in doubted.map(|(source, _)| *source).collect::<Vec<_>>() {
            if !self.evidence.is_named_by(id, source) {
                self.ask_to_name(id, source, place.clone());
            }
        }
    }

    /// A generation under way goes on with the rows that are left.
    fn rebuild(&mut self, id: FetchId, index: u32) {
        let Some((order, _)) = self.evidence.order(id) else { return };
        let Some(generation) = order.shape.generation(index) else { return };
        let is_progressive = find(&mut self.fetches, id, index).is_some_and(|work| work.decoder.is_progressive());
        let decoder = self.decoder_of_rows(id, &order.segment, generation, is_progressive);
        let held = self.numbers_of_rows(id, index);
        if let Some(work) = find(&mut self.fetches, id, index) {
            (work.decoder, work.held) = (decoder, held);
        }
    }

    /// A decoder with all rows that are kept of a generation.
    fn decoder_of_rows(&self, id: FetchId, segment: &SegmentId, generation: Generation, is_progressive: bool) -> Box<Rebuilder> {
        let mut decoder = self.decoder(segment, generation, is_progressive);
        for row in self.evidence.rows(id, generation.index) {
            // They fitted when they came.
            let _ = decoder.absorb(&row.block.vector, &row.block.payload);
        }
        decoder
    }

    /// The numbers of these rows, as far as they have some.
    fn numbers_of_rows(&self, id: FetchId, generation: u32) -> Numbers {
        self.evidence.rows(id, generation).iter().filter_map(|row| Numbers::number(&row.block.vector)).collect()
    }

    /// Generations that were tried are decoded again of the rows that are left, and what is missing now is asked for.
    fn reopen(&mut self, now: Instant, id: FetchId, refuted: &BTreeSet<u32>, effects: &mut Effects) {
        let Some((order, place)) = self.evidence.order(id) else { return };
        let due = self.first_due(now, order);
        let mut works = BTreeMap::new();
        for generation in refuted.iter().filter_map(|index| order.shape.generation(*index)) {
            let decoder = self.decoder_of_rows(id, &order.segment, generation, false);
            if decoder.missing() == 0 {
                effects.report(Event::Decoded { fetch: id, decoder });
            } else {
                // Source blocks have had their turn.
                let held = self.numbers_of_rows(id, generation.index);
                works.insert(generation.index, Work { next_source: generation.n, held, ..Work::new(decoder, due) });
            }
        }
        self.counts.mended += 1;
        self.stirred = true;
        if !works.is_empty() {
            let next = order.shape.generations();
            let strangers = self.strangers(&order.segment, place.as_ref());
            let fetch = self.fetches.entry(id).or_insert_with(|| Fetch { next, ..Fetch::new(now, order, place.clone()) });
            fetch.strangers = strangers;
            fetch.works.append(&mut works);
            self.ask_doubted(id, place.as_ref());
        }
    }

    /// Nobody knows which rows are wrong: these generations come once more, from the trusted source if it can be asked. False if all of them have
    /// before.
    fn begin_anew(&mut self, now: Instant, id: FetchId, refuted: &BTreeSet<u32>) -> bool {
        let Some((order, place)) = self.evidence.order(id) else { return false };
        if !self.evidence.begin_anew(id, refuted) {
            return false;
        }
        let count = order.shape.generations();
        let is_all = refuted.len() as u64 == u64::from(count) && !self.fetches.contains_key(&id);
        let generations = refuted.iter().filter(|_| !is_all).filter_map(|index| order.shape.generation(*index));
        let works: Vec<_> =
            generations.map(|generation| (generation.index, self.decoder(&order.segment, generation, false))).collect();
        let is_alone = self.paths.get(&FIRST).is_some_and(|path| path.is_open);
        let (strangers, due) = (self.strangers(&order.segment, place.as_ref()), self.first_due(now, order));
        let next = if is_all { 0 } else { count };
        let fetch = self.fetches.entry(id).or_insert_with(|| Fetch { next, ..Fetch::new(now, order, place) });
        (fetch.is_alone, fetch.strangers, fetch.touched) = (is_alone, strangers, now);
        fetch.works.extend(works.into_iter().map(|(index, decoder)| (index, Work::new(decoder, due))));
        fetch.exclude_others(self.paths.keys());
        self.stirred = true;
        true
    }
}
