//! Queries for the hashes and checksums of blocks, and what their answers say about kept rows.

use std::time::Duration;

use super::fetch::find;
use super::state::Fetches;
use crate::peer::effects::Effects;
use crate::peer::event::Event;
use crate::peer::evidence::Findings;
use crate::peer::ids::{SourceId, WorkId};
use crate::peer::keyring::FIRST;
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::message::{Checks, Message};

impl Fetches {
    /// Whether rows of a source are kept until their segment is verified.
    pub(super) fn keeps_rows_of(&self, source: SourceId) -> bool {
        source != FIRST || self.tests_early() || self.sources.untrusted() > 0
    }

    /// Whether checksums are wanted from the beginning: the program passes rows on, wrong rows have
    /// come before, or there are several untrusted sources, of which one polluter could not be told
    /// from the others.
    pub(super) fn tests_early(&self) -> bool {
        self.config.tells || self.evidence.is_alarmed() || self.sources.untrusted() > 1
    }

    /// The number of queries that a source has not answered.
    pub(in crate::peer) fn questions(&self, source: SourceId) -> usize {
        self.evidence.unanswered(source)
    }

    /// The next query to a source.
    pub(in crate::peer) fn next_question(
        &mut self,
        now: Instant,
        source: SourceId,
        number: impl FnOnce() -> u64,
    ) -> Option<Message> {
        let open = self.sources.open_servers();
        self.evidence.next_question(now, source, &open, number)
    }

    /// Takes checksums. False if they belong to no query.
    pub(in crate::peer) fn checks(
        &mut self,
        source: SourceId,
        answer: &Checks,
        effects: &mut Effects,
    ) -> bool {
        let Some((fetch, index)) = self.evidence.asked_about(source, answer.request) else {
            return false;
        };
        let is_open = find(&mut self.fetches, WorkId { fetch, index }).is_some();
        if let Some(findings) = self.evidence.checks(source, answer, is_open) {
            self.judge(findings, effects);
        }
        self.stirred = true;
        true
    }

    /// Takes bytes of hashes. False if they belong to no query.
    pub(in crate::peer) fn hash_bytes(
        &mut self,
        now: Instant,
        request: u64,
        source: SourceId,
        bytes: &[u8],
    ) -> Result<bool, Violation> {
        self.evidence.hash_bytes(now, request, source, bytes)
    }

    /// The stream of an answer with hashes has ended.
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

    /// A source has refused to answer. False if it was asked no query of this number.
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

    /// Acts on the findings about a generation: drops wrong rows, and reports tested ones.
    fn judge(&mut self, findings: Findings, effects: &mut Effects) {
        let Findings {
            fetch,
            generation: index,
            wrong,
            is_checked,
        } = findings;
        let id = WorkId { fetch, index };
        if !wrong.is_empty() {
            self.blame(id, &wrong);
            if find(&mut self.fetches, id).is_some() {
                self.rebuild(id);
            } else {
                self.evidence.note_dropped(fetch, index);
            }
        }
        if is_checked
            && self.config.tells
            && let Some((order, _)) = self.evidence.order(fetch)
        {
            let rows = self
                .evidence
                .rows(fetch, index)
                .iter()
                .map(|row| row.block.clone())
                .collect();
            effects.report(Event::Checked {
                cut: order.cut(),
                generation: index,
                rows,
            });
        }
        self.stirred = true;
    }
}
