//! Evidence against senders of wrong blocks: the rows that are kept, and the queries about them.
//!
//! Rows that raised a rank are kept until their segment is verified, for each segment under way in
//! which an untrusted source takes part. They are tested by data that the stream's key vouches for:
//! hashes of source blocks, and checksums (`RowChecks`). Checksums from the trusted source also
//! serve for later rows. Those that another source has passed on serve only for rows that were
//! there when they were requested, because whoever has seen checksums can make wrong rows that
//! pass.
//!
//! This file has the rows and the trials of wrong segments; `queries` asks sources about the rows.

mod case;
mod queries;
mod state;

use std::time::Duration;

use ncs_codec::block::Block;

use super::ids::{FetchId, SourceId};
use super::keyring::{FIRST, Proof};
use super::order::{Cut, Order, Place, Urgency};
use crate::integrity::hashes::BlockHashes;
use crate::object::Generation;
use crate::sorted::{SortedMap, SortedSet};
use crate::time::Instant;

use case::{Case, Stage, Topic};
pub(super) use case::{Findings, Look, Pollution, Row};
pub(super) use state::Evidence;
use state::{Asked, Want};

/// How long a trial may take.
const TRIAL_MAX: Duration = Duration::from_secs(30);
/// Trials of one segment. Each of them drops rows, or is the last.
const TRIALS_MAX: u32 = 8;

impl Evidence {
    /// Opens the case of a segment to be fetched.
    pub(super) fn open(
        &mut self,
        id: FetchId,
        order: Order,
        place: Option<Place>,
        proof: Option<Proof>,
    ) {
        self.cases.insert(id, Case::new(order, place, proof));
    }

    /// Closes the case of a segment that is verified, or not wanted any more.
    pub(super) fn close(&mut self, id: FetchId) {
        if let Some(case) = self.cases.remove(&id) {
            self.bytes -= case.bytes();
        }
        self.wants.retain(|want| want.fetch != id);
    }

    /// Bytes of rows kept.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The order of a segment, and its path.
    pub(super) fn order(&self, id: FetchId) -> Option<(Order, Option<Place>)> {
        self.cases
            .get(&id)
            .map(|case| (case.order, case.place.clone()))
    }

    /// Changes whether somebody waits for a segment.
    pub(super) fn set_urgency(&mut self, id: FetchId, urgency: Urgency) {
        if let Some(case) = self.cases.get_mut(&id) {
            case.order.urgency = urgency;
        }
    }

    /// Whether hashes of a segment's blocks can be checked.
    pub(super) fn is_signed(&self, id: FetchId) -> bool {
        self.cases.get(&id).is_some_and(|case| case.proof.is_some())
    }

    /// The hashes of a segment's blocks, if they have come.
    pub(super) fn hashes(&self, id: FetchId) -> Option<&BlockHashes> {
        self.cases.get(&id)?.hashes.as_ref()
    }

    /// The next segment over the prime field whose hashes have come.
    pub(super) fn next_learnt(&mut self) -> Option<(Cut, BlockHashes)> {
        let case = self.cases.get(&self.learnt.pop()?)?;
        Some((case.order.cut(), case.hashes.clone()?))
    }

    /// A source has named this segment itself.
    pub(super) fn note_named(&mut self, id: FetchId, source: SourceId) {
        if let Some(case) = self.cases.get_mut(&id) {
            case.named_by.insert(source);
        }
    }

    /// Whether a source has named this segment itself.
    pub(super) fn is_named_by(&self, id: FetchId, source: SourceId) -> bool {
        self.cases
            .get(&id)
            .is_some_and(|case| case.named_by.contains(&source))
    }

    /// Charges a server with wrong blocks. It is judged with the bytes of the segment.
    pub(super) fn charge(&mut self, id: FetchId, pollution: Pollution) {
        if let Some(case) = self.cases.get_mut(&id) {
            let charge = Pollution {
                blocks: 0,
                ..pollution
            };
            let known = case.charges.get_or_insert(pollution.source, charge);
            known.blocks += pollution.blocks;
        }
    }

    /// Segments for which servers are charged, and these servers.
    pub(super) fn charged(&self) -> impl Iterator<Item = (FetchId, SourceId)> {
        self.cases
            .iter()
            .flat_map(|(id, case)| case.charges.keys().map(|source| (*id, *source)))
    }

    /// Takes the charges of a segment, because it is known whether they are true.
    pub(super) fn take_charges(&mut self, id: FetchId) -> SortedMap<SourceId, Pollution> {
        let case = self.cases.get_mut(&id);
        case.map(|case| std::mem::take(&mut case.charges))
            .unwrap_or_default()
    }

    /// The trusted source lies: what it said about the blocks of others means nothing, and what it
    /// has sent may come anew, once more. Returns the rows that wait to be tested by its checksums.
    pub(super) fn acquit_all(&mut self) -> Vec<(FetchId, u32, Row)> {
        let mut waiting = Vec::new();
        for (id, case) in &mut self.cases {
            case.charges.clear();
            case.is_alone = false;
            case.again.clear();
            for (index, part) in &mut case.parts {
                part.checks = None;
                let rows = part.waiting.drain(..);
                waiting.extend(rows.map(|row| (*id, *index, row)));
            }
        }
        waiting
    }

    /// Whether a wrong row has ever come.
    pub(super) fn is_alarmed(&self) -> bool {
        self.is_alarmed
    }

    /// Notes that a wrong row has come.
    pub(super) fn alarm(&mut self) {
        self.is_alarmed = true;
    }

    /// Judges a block of an open request.
    pub(super) fn look(
        &mut self,
        id: FetchId,
        generation: &Generation,
        source: SourceId,
        block: &Block,
    ) -> Look {
        let Some(case) = self.cases.get_mut(&id) else {
            return Look::Unproved;
        };
        if source != FIRST
            && let Some(fits) = case.fits(generation, block)
        {
            self.is_alarmed |= !fits;
            return if fits { Look::Right } else { Look::Wrong };
        }
        match case.parts.get_mut(&generation.index) {
            Some(part) if part.checks.is_some() => {
                part.waiting.push(Row {
                    source,
                    block: block.clone(),
                    is_right: false,
                });
                Look::Later
            }
            _ => Look::Unproved,
        }
    }

    /// Tests waiting rows. Returns them by generation, each marked right or wrong.
    pub(super) fn test_waiting(&mut self) -> Vec<(FetchId, u32, Vec<Row>)> {
        let mut tested = Vec::new();
        for (id, case) in &mut self.cases {
            for (index, part) in case
                .parts
                .iter_mut()
                .filter(|(_, part)| !part.waiting.is_empty())
            {
                let Some(checks) = &part.checks else { continue };
                let mut rows = std::mem::take(&mut part.waiting);
                let blocks: Vec<_> = rows
                    .iter()
                    .map(|row| (&row.block.vector, &row.block.payload[..]))
                    .collect();
                let verdicts = checks.are_right(&blocks);
                rows.iter_mut()
                    .zip(verdicts)
                    .for_each(|(row, is_right)| row.is_right = is_right);
                self.is_alarmed |= rows.iter().any(|row| !row.is_right);
                tested.push((*id, *index, rows));
            }
        }
        tested
    }

    /// Keeps a row that has raised a rank, if there is room. Otherwise a wrong segment is fetched
    /// anew.
    pub(super) fn keep(&mut self, id: FetchId, generation: u32, row: Row) {
        let Some(case) = self.cases.get_mut(&id) else {
            return;
        };
        let bytes = row.bytes();
        if self.bytes + bytes > self.bytes_max {
            return;
        }
        self.bytes += bytes;
        case.parts.get_or_default(generation).rows.push(row);
    }

    /// The kept rows of a generation.
    pub(super) fn rows(&self, id: FetchId, generation: u32) -> &[Row] {
        self.cases
            .get(&id)
            .and_then(|case| case.parts.get(&generation))
            .map_or(&[], |part| &part.rows)
    }

    /// A generation is complete. No more of its rows come.
    pub(super) fn finished(&mut self, id: FetchId, generation: u32) {
        if let Some(part) = self
            .cases
            .get_mut(&id)
            .and_then(|case| case.parts.get_mut(&generation))
        {
            part.checks = None;
            part.waiting.clear();
            part.is_asked = false;
        }
        self.wants.retain(|want| {
            !(want.is_early && want.fetch == id && want.generation == Some(generation))
        });
    }

    /// A generation is complete and proven. Its rows are not kept any longer.
    pub(super) fn settle(&mut self, id: FetchId, generation: u32) {
        if let Some(case) = self.cases.get_mut(&id) {
            self.bytes -= case
                .parts
                .remove(&generation)
                .iter()
                .flat_map(|part| &part.rows)
                .map(Row::bytes)
                .sum::<u64>();
        }
    }

    /// Whether any segment is under trial.
    pub(super) fn is_trying(&self) -> bool {
        self.cases.values().any(Case::is_tried)
    }

    /// Whether this segment is under trial.
    pub(super) fn is_tried(&self, id: FetchId) -> bool {
        self.cases.get(&id).is_some_and(Case::is_tried)
    }

    /// Begins or extends a trial of generations of which some bytes are wrong. False if a trial is
    /// useless: there are no rows, or no source can tell which of them are wrong.
    pub(super) fn begin_trial(
        &mut self,
        now: Instant,
        id: FetchId,
        generations: &SortedSet<u32>,
        open: &SortedSet<SourceId>,
    ) -> bool {
        self.is_alarmed = true;
        let Some(case) = self.cases.get_mut(&id) else {
            return false;
        };
        let mut known = open
            .iter()
            .filter(|source| **source == FIRST || case.proof.is_some());
        let can_ask = known.any(|source| !case.refused.contains(&(*source, Topic::Checks)));
        let untested = case.parts.iter().filter(|(index, part)| {
            generations.contains(index) && part.rows.iter().any(|row| !row.is_right)
        });
        let untested: SortedSet<u32> = untested.map(|(index, _)| *index).collect();
        let has_dropped = !case.dropped.is_disjoint(generations);
        if case.trials >= TRIALS_MAX || !(has_dropped || (can_ask && !untested.is_empty())) {
            return false;
        }
        let want = |generation: &u32| Want {
            fetch: id,
            generation: Some(*generation),
            is_early: false,
            not_before: None,
            retries: 0,
        };
        self.wants.retain(|want| {
            want.fetch != id
                || want
                    .generation
                    .is_none_or(|index| !untested.contains(&index))
        });
        self.wants.extend(untested.iter().map(want));
        case.refuted.extend(generations.iter().copied());
        match &mut case.stage {
            Stage::Trial(left) => left.extend(untested),
            Stage::Coming => {
                case.trials += 1;
                case.stage = Stage::Trial(untested);
                case.tried_until = Some(now + TRIAL_MAX);
            }
        }
        true
    }

    /// Rows of a generation that was complete have turned out to be wrong.
    pub(super) fn note_dropped(&mut self, id: FetchId, generation: u32) {
        if let Some(case) = self.cases.get_mut(&id) {
            case.dropped.insert(generation);
        }
    }

    /// The next trial that is over: the wrong generations, and whether any of them has lost rows.
    pub(super) fn next_concluded(&mut self) -> Option<(FetchId, SortedSet<u32>, bool)> {
        let is_over = |case: &Case| matches!(&case.stage, Stage::Trial(left) if left.is_empty());
        let (id, case) = self.cases.iter_mut().find(|(_, case)| is_over(case))?;
        case.stage = Stage::Coming;
        let refuted = std::mem::take(&mut case.refuted);
        let has_dropped = !case.dropped.is_disjoint(&refuted);
        case.dropped
            .retain(|generation| !refuted.contains(generation));
        Some((*id, refuted, has_dropped))
    }

    /// Trials of fetches whose deadline has passed.
    pub(super) fn overdue(&self, now: Instant) -> Vec<FetchId> {
        let is_overdue = |case: &Case| {
            matches!(case.stage, Stage::Trial(_))
                && case.order.deadline.is_some_and(|deadline| deadline <= now)
        };
        self.cases
            .iter()
            .filter(|(_, case)| is_overdue(case))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Says whether generations that are fetched anew come from the trusted source alone.
    pub(super) fn set_alone(&mut self, id: FetchId, is_alone: bool) {
        if let Some(case) = self.cases.get_mut(&id) {
            case.is_alone = is_alone;
        }
    }

    /// Whether wrong generations have come from the trusted source alone. They may then be fetched
    /// anew once more, without it.
    pub(super) fn refutes_trusted(&mut self, id: FetchId) -> bool {
        let case = self.cases.get_mut(&id);
        let Some(case) = case.filter(|case| case.is_alone) else {
            return false;
        };
        case.is_alone = false;
        case.again.clear();
        true
    }

    /// Forgets generations that are fetched anew. False if all of them were before: they stay
    /// wrong. Where two generations share wrong bytes, either of them may be to blame. So a
    /// generation is fetched anew more than once as long as another one was not.
    pub(super) fn begin_anew(&mut self, id: FetchId, generations: &SortedSet<u32>) -> bool {
        let Some(case) = self
            .cases
            .get_mut(&id)
            .filter(|case| !generations.is_subset(&case.again))
        else {
            return false;
        };
        for generation in generations {
            self.bytes -= case
                .parts
                .remove(generation)
                .iter()
                .flat_map(|part| &part.rows)
                .map(Row::bytes)
                .sum::<u64>();
            case.dropped.remove(generation);
        }
        case.again.extend(generations.iter().copied());
        let is_anew = |want: &Want| {
            want.fetch == id
                && want
                    .generation
                    .is_some_and(|generation| generations.contains(&generation))
        };
        self.wants.retain(|want| !is_anew(want));
        // An open query is about rows that are gone. Later rows may be made by a source that has
        // seen the answer.
        for question in self
            .questions
            .values_mut()
            .filter(|question| is_anew(&question.want))
        {
            if let Asked::Checks { rows, .. } = &mut question.asked {
                *rows = 0;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
