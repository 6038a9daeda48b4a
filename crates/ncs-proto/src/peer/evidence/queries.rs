//! The queries about rows: for hashes of source blocks, and for checksums of generations.
//!
//! The trusted source is asked first, and others where the stream's key vouches for the answer. A
//! query that is refused or lost goes to the next source.

use std::time::Duration;

use bytes::BytesMut;

use super::case::{Findings, Row, Stage, Topic};
use super::state::{Asked, Evidence, Question, Want};
use crate::integrity::checks::RowChecks;
use crate::integrity::hashes::BlockHashes;
use crate::object::row_key;
use crate::peer::ids::{FetchId, SourceId};
use crate::peer::keyring::FIRST;
use crate::sorted::SortedSet;
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::message::{Checks, GetChecks, Meant, Message};

/// Queries that a source may leave unanswered.
const QUESTIONS_MAX: usize = 8;
/// How long an answer may take; for one in pieces, the time from one piece to the next.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// How long all pieces may take. Homomorphic hashes may have hundreds of kilobytes.
pub(super) const PIECES_MAX: Duration = Duration::from_secs(20);
/// How often an overloaded source is asked again.
const RETRIES: u8 = 40;

impl Evidence {
    /// Wants the hashes of a segment's blocks, if they can be checked.
    pub(in crate::peer) fn want_hashes(&mut self, id: FetchId) {
        if let Some(case) = self.cases.get_mut(&id)
            && case.proof.is_some()
            && !std::mem::replace(&mut case.wants_hashes, true)
        {
            self.wants.push(Want {
                fetch: id,
                generation: None,
                is_early: false,
                not_before: None,
                retries: 0,
            });
        }
    }

    /// Wants checksums of a generation from the trusted source.
    pub(in crate::peer) fn want_checks(&mut self, id: FetchId, generation: u32) {
        let Some(case) = self.cases.get_mut(&id) else {
            return;
        };
        if case.refused.contains(&(FIRST, Topic::Checks)) {
            return;
        }
        let part = case.parts.get_or_default(generation);
        if part.checks.is_none() && !std::mem::replace(&mut part.is_asked, true) {
            let generation = Some(generation);
            self.wants.push(Want {
                fetch: id,
                generation,
                is_early: true,
                not_before: None,
                retries: 0,
            });
        }
    }

    /// The number of queries that a source has not answered.
    pub(in crate::peer) fn unanswered(&self, source: SourceId) -> usize {
        self.questions
            .values()
            .filter(|question| question.source == source)
            .count()
    }

    /// The next query to a source; `open` are the servers that can be asked, and `number` gives the
    /// query its number.
    pub(in crate::peer) fn next_question(
        &mut self,
        now: Instant,
        source: SourceId,
        open: &SortedSet<SourceId>,
        number: impl FnOnce() -> u64,
    ) -> Option<Message> {
        if self.wants.is_empty() || self.unanswered(source) >= QUESTIONS_MAX {
            return None;
        }
        let is_due = |want: &Want| want.not_before.is_none_or(|at| at <= now);
        let index = self
            .wants
            .iter()
            .position(|want| is_due(want) && self.choose(want, open) == Some(source))?;
        let want = self.wants.remove(index);
        let case = self.cases.get(&want.fetch)?;
        let (request, segment) = (number(), case.order.segment);
        let meant = Meant::Coded(case.order.shape.coding());
        let (asked, message) = match want.generation {
            None => (
                Asked::Hashes {
                    received: BytesMut::new(),
                },
                Message::GetHashes {
                    request,
                    segment,
                    meant,
                },
            ),
            Some(generation) => {
                let question = GetChecks {
                    request,
                    segment,
                    generation,
                    nonce: self.secret.nonce(request),
                    meant,
                };
                let rows = case
                    .parts
                    .get(&generation)
                    .map_or(0, |part| part.rows.len());
                (
                    Asked::Checks {
                        question: question.clone(),
                        rows,
                    },
                    Message::GetChecks(question),
                )
            }
        };
        self.questions.insert(
            request,
            Question {
                source,
                want,
                due: now + PATIENCE,
                until: now + PIECES_MAX,
                asked,
            },
        );
        Some(message)
    }

    /// The generation whose checksums a source was asked for under this number.
    pub(in crate::peer) fn asked_about(
        &self,
        source: SourceId,
        request: u64,
    ) -> Option<(FetchId, u32)> {
        let is_ours = |question: &&Question| {
            question.source == source && matches!(question.asked, Asked::Checks { .. })
        };
        let Question { want, .. } = self.questions.get(&request).filter(is_ours)?;
        Some((want.fetch, want.generation?))
    }

    /// Takes checksums, the answer to the query of [`Evidence::asked_about`]. `is_open`: rows of
    /// the generation still come. `None` if they are useless.
    pub(in crate::peer) fn checks(
        &mut self,
        source: SourceId,
        answer: &Checks,
        is_open: bool,
    ) -> Option<Findings> {
        let Question {
            want,
            asked: Asked::Checks { question, rows },
            ..
        } = self.questions.remove(&answer.request)?
        else {
            return None;
        };
        let case = self.cases.get_mut(&want.fetch)?;
        let generation = case.order.shape.generation(question.generation)?;
        let is_vouched_for = match &case.proof {
            Some(proof) => proof.key.vouches_for(&question, answer),
            None => source == FIRST,
        };
        let key = row_key(&question.segment, &generation);
        let checks = RowChecks::new(self.kernels, &question.segment, key, generation, answer)
            .filter(|_| is_vouched_for);
        let Some(checks) = checks else {
            case.refused.insert((source, Topic::Checks));
            self.wants.push(want);
            return None;
        };
        let part = case.parts.get_or_default(generation.index);
        // A source that passed the checksums on could have made rows that pass.
        let count = if source == FIRST {
            part.rows.len()
        } else {
            rows.min(part.rows.len())
        };
        let wrong = part.test(&checks, count);
        let is_trial = match &mut case.stage {
            Stage::Trial(left) => left.remove(&generation.index),
            Stage::Coming => false,
        };
        let is_checked = source == FIRST;
        part.checks = Some(checks).filter(|_| is_checked && (is_open || is_trial));
        part.is_asked = part.checks.is_some();
        self.found(&wrong);
        self.wants
            .retain(|other| (other.fetch, other.generation) != (want.fetch, want.generation));
        Some(Findings {
            fetch: want.fetch,
            generation: generation.index,
            wrong,
            is_checked,
        })
    }

    /// Takes bytes of hashes. False if they belong to no query.
    pub(in crate::peer) fn hash_bytes(
        &mut self,
        now: Instant,
        request: u64,
        source: SourceId,
        bytes: &[u8],
    ) -> Result<bool, Violation> {
        let Some(Question {
            want,
            due,
            until,
            asked: Asked::Hashes { received },
            ..
        }) = self
            .questions
            .get_mut(&request)
            .filter(|question| question.source == source)
        else {
            return Ok(false);
        };
        let Some(case) = self.cases.get(&want.fetch) else {
            return Ok(false);
        };
        if (received.len() + bytes.len()) as u64 > BlockHashes::bytes(&case.order.shape) {
            return Err(Violation::Malformed("hashes stream"));
        }
        received.extend_from_slice(bytes);
        *due = (now + PATIENCE).min(*until);
        Ok(true)
    }

    /// Takes the end of a stream of hashes. Returns what they say about the kept rows.
    pub(in crate::peer) fn hashes_finished(
        &mut self,
        request: u64,
        source: SourceId,
    ) -> Result<Vec<Findings>, Violation> {
        let is_ours = |question: &Question| {
            question.source == source && matches!(question.asked, Asked::Hashes { .. })
        };
        if !self.questions.get(&request).is_some_and(is_ours) {
            return Ok(Vec::new());
        }
        let Some(Question {
            want,
            asked: Asked::Hashes { received },
            ..
        }) = self.questions.remove(&request)
        else {
            return Ok(Vec::new());
        };
        let Some(case) = self.cases.get_mut(&want.fetch) else {
            return Ok(Vec::new());
        };
        let (shape, Some(proof)) = (case.order.shape, case.proof) else {
            return Ok(Vec::new());
        };
        if (received.len() as u64) < BlockHashes::bytes(&shape) {
            return Err(Violation::Malformed("hashes stream"));
        }
        case.hashes = BlockHashes::checked(received.freeze(), &shape, &proof.blocks);
        if case.hashes.is_none() {
            // Other sources may have the right ones.
            case.refused.insert((source, Topic::Hashes));
            self.wants.push(want);
            if !shape.codec().is_gfq() {
                // The source that passed these on may have received them wrong.
                return Ok(Vec::new());
            }
            // A source tests homomorphic hashes before it passes them on.
            case.forgers.insert(source);
            return Err(Violation::Unexpected("hashes that nobody has signed"));
        }
        if shape.codec().is_gfq() {
            self.learnt.push(want.fetch);
        }
        let mut all = Vec::new();
        for index in case.parts.keys().copied().collect::<Vec<_>>() {
            let Some(generation) = shape.generation(index) else {
                continue;
            };
            let wrong = case.test_sources(&generation);
            if !wrong.is_empty() {
                all.push(Findings {
                    fetch: want.fetch,
                    generation: index,
                    wrong,
                    is_checked: false,
                });
            }
        }
        // The remaining rows have moved up: those that were there when checksums were requested are
        // among the first.
        for Findings {
            fetch,
            generation,
            wrong,
            ..
        } in &all
        {
            for question in self.questions.values_mut() {
                if (question.want.fetch, question.want.generation) == (*fetch, Some(*generation))
                    && let Asked::Checks { rows, .. } = &mut question.asked
                {
                    *rows = rows.saturating_sub(wrong.len());
                }
            }
        }
        all.iter().for_each(|findings| self.found(&findings.wrong));
        Ok(all)
    }

    /// A source has refused to answer a query. False if it is none of these.
    pub(in crate::peer) fn refused(
        &mut self,
        now: Instant,
        request: u64,
        source: SourceId,
        retry_after: Option<Duration>,
    ) -> bool {
        if self
            .questions
            .get(&request)
            .is_none_or(|question| question.source != source)
        {
            return false;
        }
        let Some(Question { mut want, .. }) = self.questions.remove(&request) else {
            return false;
        };
        match retry_after.filter(|_| want.retries < RETRIES) {
            Some(after) => {
                want.retries += 1;
                // The retry time of one source holds back the query to all.
                want.not_before = Some(now + after.min(PATIENCE));
            }
            None => self.give_up(source, want),
        }
        self.ask_again(want);
        true
    }

    /// The queries to a source are sent to others.
    pub(in crate::peer) fn disconnected(&mut self, source: SourceId) {
        let gone: Vec<u64> = self
            .questions
            .iter()
            .filter(|(_, question)| question.source == source)
            .map(|(request, _)| *request)
            .collect();
        for request in gone {
            let Some(Question { want, .. }) = self.questions.remove(&request) else {
                continue;
            };
            self.ask_again(want);
        }
        // The next connection may lead to a server that knows more.
        self.cases
            .values_mut()
            .for_each(|case| case.refused.retain(|(refused, _)| *refused != source));
    }

    /// Gives up queries that are not answered in time, and those that no source can be asked.
    pub(in crate::peer) fn expire(&mut self, now: Instant, open: &SortedSet<SourceId>) {
        let late: Vec<u64> = self
            .questions
            .iter()
            .filter(|(_, question)| question.due <= now)
            .map(|(request, _)| *request)
            .collect();
        for request in late {
            let Some(Question { source, want, .. }) = self.questions.remove(&request) else {
                continue;
            };
            self.give_up(source, want);
            self.ask_again(want);
        }
        for (id, case) in &mut self.cases {
            if let Stage::Trial(left) = &mut case.stage
                && case.tried_until.is_some_and(|until| until <= now)
            {
                left.clear();
                self.wants
                    .retain(|want| want.fetch != *id || want.generation.is_none() || want.is_early);
            }
        }
        // A query that may be sent now has no due time any more: it waits for its turn.
        for want in &mut self.wants {
            want.not_before.take_if(|at| *at <= now);
        }
        let (wants, hopeless): (Vec<Want>, Vec<Want>) = std::mem::take(&mut self.wants)
            .into_iter()
            .partition(|want| self.choose(want, open).is_some());
        self.wants = wants;
        for Want {
            fetch,
            generation,
            is_early,
            ..
        } in hopeless
        {
            let Some(case) = self.cases.get_mut(&fetch) else {
                continue;
            };
            let Some(generation) = generation else {
                // A source that connects later may know them.
                case.wants_hashes = false;
                continue;
            };
            // Others may still be asked, for the trial.
            if let Stage::Trial(left) = &mut case.stage
                && !is_early
            {
                left.remove(&generation);
            }
            if let Some(part) = case.parts.get_mut(&generation) {
                part.is_asked = false;
            }
        }
    }

    /// When [`Evidence::expire`] or [`Evidence::next_question`] has something to do.
    pub(in crate::peer) fn due(&self) -> Option<Instant> {
        let wants = self.wants.iter().filter_map(|want| want.not_before);
        let trials = self
            .cases
            .values()
            .filter(|case| matches!(case.stage, Stage::Trial(_)));
        let ends = trials.flat_map(|case| {
            [case.tried_until, case.order.deadline]
                .into_iter()
                .flatten()
        });
        self.questions
            .values()
            .map(|question| question.due)
            .chain(wants)
            .chain(ends)
            .min()
    }

    fn give_up(&mut self, source: SourceId, want: Want) {
        let topic = if want.generation.is_some() {
            Topic::Checks
        } else {
            Topic::Hashes
        };
        if let Some(case) = self.cases.get_mut(&want.fetch) {
            case.refused.insert((source, topic));
        }
    }

    fn ask_again(&mut self, want: Want) {
        if self.cases.contains_key(&want.fetch) {
            self.wants.push(want);
        }
    }

    /// Chooses the source of an answer: the trusted source, or another one where the stream's key
    /// vouches for the answer.
    fn choose(&self, want: &Want, open: &SortedSet<SourceId>) -> Option<SourceId> {
        let case = self.cases.get(&want.fetch)?;
        let topic = if want.generation.is_some() {
            Topic::Checks
        } else {
            Topic::Hashes
        };
        let may_be_asked = |source: &SourceId| {
            let is_forger = topic == Topic::Hashes && case.forgers.contains(source);
            open.contains(source) && !case.refused.contains(&(*source, topic)) && !is_forger
        };
        if may_be_asked(&FIRST) {
            return Some(FIRST);
        }
        let serves = !want.is_early && case.proof.is_some();
        open.iter()
            .copied()
            .find(|source| serves && may_be_asked(source))
    }

    /// Notes that wrong rows were dropped.
    fn found(&mut self, wrong: &[Row]) {
        self.is_alarmed |= !wrong.is_empty();
        self.bytes -= wrong.iter().map(Row::bytes).sum::<u64>();
    }
}
