//! Evidence against senders of wrong blocks: the rows that are kept, and the queries about them.
//!
//! Rows that raised a rank are kept until their segment is verified, for each segment under way in
//! which an untrusted source takes part. They are tested by data that the stream's key vouches for:
//! hashes of source blocks, and checksums ([`RowChecks`]). Checksums from the trusted source also
//! serve for later rows. Those that another source has passed on serve only for rows that were
//! there when they were requested, because whoever has seen checksums can make wrong rows that
//! pass.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::BytesMut;
use ncs_codec::block::{Block, Vector};
use ncs_gf::Kernels;

use super::config::Secret;
use super::ids::{FetchId, SourceId};
use super::keyring::{FIRST, Proof};
use super::order::{Cut, Order, Place, Urgency};
use crate::integrity::checks::RowChecks;
use crate::integrity::hashes::BlockHashes;
use crate::object::{Generation, SegmentId, row_key};
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::message::{Checks, GetChecks, Meant, Message};

/// Queries that a source may leave unanswered.
const QUESTIONS_MAX: usize = 8;
/// How long an answer may take; for one in pieces, the time from one piece to the next.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long all pieces may take. Homomorphic hashes may have hundreds of kilobytes.
const PIECES_MAX: Duration = Duration::from_secs(20);
/// How long a trial may take.
const TRIAL_MAX: Duration = Duration::from_secs(30);
/// How often an overloaded source is asked again.
const RETRIES: u8 = 40;
/// Trials of one segment. Each of them drops rows, or is the last.
const TRIALS_MAX: u32 = 8;

/// Rows of all segments that are not verified yet, and the queries about them.
#[derive(Debug)]
pub(super) struct Evidence {
    kernels: Kernels,
    bytes_max: u64,
    secret: Secret,
    bytes: u64,
    cases: BTreeMap<FetchId, Case>,
    wants: Vec<Want>,
    questions: BTreeMap<u64, Question>,
    /// Segments over the prime field whose hashes have come, and have not been reported.
    learnt: Vec<FetchId>,
    /// Whether a wrong row has ever come. From then on rows are tested as they come.
    is_alarmed: bool,
}

/// A segment.
#[derive(Debug)]
struct Case {
    order: Order,
    place: Option<Place>,
    /// What the stream's key has signed about it.
    proof: Option<Proof>,
    parts: BTreeMap<u32, Part>,
    hashes: Option<BlockHashes>,
    wants_hashes: bool,
    refused: BTreeSet<(SourceId, Topic)>,
    /// Sources that have named this segment themselves, with this coding.
    named_by: BTreeSet<SourceId>,
    /// Sources that have sent homomorphic hashes which differ from the signed ones. They are not
    /// asked again, on any connection.
    forgers: BTreeSet<SourceId>,
    stage: Stage,
    trials: u32,
    /// Wrong generations, to be repaired when the trial is over.
    refuted: BTreeSet<u32>,
    /// Generations that were complete, and have lost rows.
    dropped: BTreeSet<u32>,
    /// When a trial ends, whatever has been found.
    tried_until: Option<Instant>,
    /// Generations that were fetched anew.
    again: BTreeSet<u32>,
}

#[derive(Debug)]
enum Stage {
    /// Its blocks are on their way.
    Coming,
    /// Some of its bytes are wrong; these generations are to be tested.
    Trial(BTreeSet<u32>),
}

/// A generation.
#[derive(Debug, Default)]
struct Part {
    rows: Vec<Row>,
    /// Checksums for rows as they come.
    checks: Option<RowChecks>,
    /// Rows that have come and are not tested yet.
    waiting: Vec<Row>,
    is_asked: bool,
}

/// A block as it came, and its sender.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) source: SourceId,
    pub(super) block: Block,
    /// Whether it was tested.
    pub(super) is_right: bool,
}

/// The subject of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Topic {
    Hashes,
    Checks,
}

/// A query to be sent.
#[derive(Debug, Clone, Copy)]
struct Want {
    fetch: FetchId,
    /// The generation whose checksums are wanted. Without one, the hashes of all blocks are wanted.
    generation: Option<u32>,
    /// Whether the answer is for later rows, and so useless from any but the trusted source.
    is_early: bool,
    not_before: Option<Instant>,
    retries: u8,
}

#[derive(Debug)]
struct Question {
    source: SourceId,
    want: Want,
    due: Instant,
    /// The latest that it may become due.
    until: Instant,
    asked: Asked,
}

#[derive(Debug)]
enum Asked {
    Hashes {
        received: BytesMut,
    },
    /// `rows`: the number of rows when the query was sent.
    Checks {
        question: GetChecks,
        rows: usize,
    },
}

/// The result of a test.
#[derive(Debug)]
pub(super) struct Findings {
    pub(super) fetch: FetchId,
    pub(super) generation: u32,
    pub(super) wrong: Vec<Row>,
    /// Whether all rows so far are tested, and later ones will be.
    pub(super) is_checked: bool,
}

/// A source has sent blocks that were proved wrong.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pollution {
    pub(super) source: SourceId,
    pub(super) segment: SegmentId,
    pub(super) generation: u32,
    pub(super) blocks: u32,
}

/// The verdict on a block that has just come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Unknown.
    Unproved,
    /// It is right.
    Right,
    /// It is wrong.
    Wrong,
    /// It is kept, to be tested together with others.
    Later,
}

impl Evidence {
    pub(super) fn new(kernels: Kernels, bytes_max: u64, secret: Secret) -> Self {
        let (cases, wants, questions) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        Self { kernels, bytes_max, secret, bytes: 0, cases, wants, questions, learnt: Vec::new(), is_alarmed: false }
    }

    /// Opens the case of a segment to be fetched.
    pub(super) fn open(&mut self, id: FetchId, order: Order, place: Option<Place>, proof: Option<Proof>) {
        let case = Case {
            order,
            place,
            proof,
            parts: BTreeMap::new(),
            hashes: None,
            wants_hashes: false,
            refused: BTreeSet::new(),
            named_by: BTreeSet::new(),
            forgers: BTreeSet::new(),
            stage: Stage::Coming,
            trials: 0,
            refuted: BTreeSet::new(),
            dropped: BTreeSet::new(),
            tried_until: None,
            again: BTreeSet::new(),
        };
        self.cases.insert(id, case);
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

    /// Whether a wrong row has ever come.
    pub(super) fn is_alarmed(&self) -> bool {
        self.is_alarmed
    }

    /// Whether any segment is under trial.
    pub(super) fn is_trying(&self) -> bool {
        self.cases.values().any(Case::is_tried)
    }

    /// Whether this segment is under trial.
    pub(super) fn is_tried(&self, id: FetchId) -> bool {
        self.cases.get(&id).is_some_and(Case::is_tried)
    }

    /// The order of a segment, and its path.
    pub(super) fn order(&self, id: FetchId) -> Option<(Order, Option<Place>)> {
        self.cases.get(&id).map(|case| (case.order, case.place.clone()))
    }

    /// A source has named this segment itself.
    pub(super) fn note_named(&mut self, id: FetchId, source: SourceId) {
        if let Some(case) = self.cases.get_mut(&id) {
            case.named_by.insert(source);
        }
    }

    /// Whether a source has named this segment itself.
    pub(super) fn is_named_by(&self, id: FetchId, source: SourceId) -> bool {
        self.cases.get(&id).is_some_and(|case| case.named_by.contains(&source))
    }

    /// Judges a block of an open request.
    pub(super) fn look(&mut self, id: FetchId, generation: &Generation, source: SourceId, block: &Block) -> Look {
        let Some(case) = self.cases.get_mut(&id) else { return Look::Unproved };
        if source != FIRST
            && let Some(fits) = case.fits(generation, block)
        {
            self.is_alarmed |= !fits;
            return if fits { Look::Right } else { Look::Wrong };
        }
        match case.parts.get_mut(&generation.index) {
            Some(part) if part.checks.is_some() => {
                part.waiting.push(Row { source, block: block.clone(), is_right: false });
                Look::Later
            }
            _ => Look::Unproved,
        }
    }

    /// Tests waiting rows. Returns them by generation, each marked right or wrong.
    pub(super) fn test_waiting(&mut self) -> Vec<(FetchId, u32, Vec<Row>)> {
        let mut tested = Vec::new();
        for (id, case) in &mut self.cases {
            for (index, part) in case.parts.iter_mut().filter(|(_, part)| !part.waiting.is_empty()) {
                let Some(checks) = &part.checks else { continue };
                let mut rows = std::mem::take(&mut part.waiting);
                let blocks: Vec<_> = rows.iter().map(|row| (&row.block.vector, &row.block.payload[..])).collect();
                let verdicts = checks.are_right(&blocks);
                rows.iter_mut().zip(verdicts).for_each(|(row, is_right)| row.is_right = is_right);
                self.is_alarmed |= rows.iter().any(|row| !row.is_right);
                tested.push((*id, *index, rows));
            }
        }
        tested
    }

    /// Keeps a row that has raised a rank, if there is room. Otherwise a wrong segment is fetched
    /// anew.
    pub(super) fn keep(&mut self, id: FetchId, generation: u32, row: Row) {
        let Some(case) = self.cases.get_mut(&id) else { return };
        let bytes = row.bytes();
        if self.bytes + bytes > self.bytes_max {
            return;
        }
        self.bytes += bytes;
        case.parts.entry(generation).or_default().rows.push(row);
    }

    /// The hashes of a segment's blocks, if they have come.
    pub(super) fn hashes(&self, id: FetchId) -> Option<&BlockHashes> {
        self.cases.get(&id)?.hashes.as_ref()
    }

    /// Whether hashes of a segment's blocks can be checked.
    pub(super) fn is_signed(&self, id: FetchId) -> bool {
        self.cases.get(&id).is_some_and(|case| case.proof.is_some())
    }

    /// The next segment over the prime field whose hashes have come.
    pub(super) fn next_learnt(&mut self) -> Option<(Cut, BlockHashes)> {
        let case = self.cases.get(&self.learnt.pop()?)?;
        Some((case.order.cut(), case.hashes.clone()?))
    }

    /// Notes that a wrong row has come.
    pub(super) fn alarm(&mut self) {
        self.is_alarmed = true;
    }

    /// Wants the hashes of a segment's blocks, if they can be checked.
    pub(super) fn want_hashes(&mut self, id: FetchId) {
        if let Some(case) = self.cases.get_mut(&id)
            && case.proof.is_some()
            && !std::mem::replace(&mut case.wants_hashes, true)
        {
            self.wants.push(Want { fetch: id, generation: None, is_early: false, not_before: None, retries: 0 });
        }
    }

    /// Wants checksums of a generation from the trusted source.
    pub(super) fn want_checks(&mut self, id: FetchId, generation: u32) {
        let Some(case) = self.cases.get_mut(&id) else { return };
        if case.refused.contains(&(FIRST, Topic::Checks)) {
            return;
        }
        let part = case.parts.entry(generation).or_default();
        if part.checks.is_none() && !std::mem::replace(&mut part.is_asked, true) {
            let generation = Some(generation);
            self.wants.push(Want { fetch: id, generation, is_early: true, not_before: None, retries: 0 });
        }
    }

    /// A generation is complete. No more of its rows come.
    pub(super) fn finished(&mut self, id: FetchId, generation: u32) {
        if let Some(part) = self.cases.get_mut(&id).and_then(|case| case.parts.get_mut(&generation)) {
            part.checks = None;
            part.waiting.clear();
            part.is_asked = false;
        }
        self.wants.retain(|want| !(want.is_early && want.fetch == id && want.generation == Some(generation)));
    }

    /// A generation is complete and proven. Its rows are not kept any longer.
    pub(super) fn settle(&mut self, id: FetchId, generation: u32) {
        if let Some(case) = self.cases.get_mut(&id) {
            self.bytes -= case.parts.remove(&generation).iter().flat_map(|part| &part.rows).map(Row::bytes).sum::<u64>();
        }
    }

    /// Begins or extends a trial of generations of which some bytes are wrong. False if a trial is
    /// useless: there are no rows, or no source can tell which of them are wrong.
    pub(super) fn begin_trial(
        &mut self,
        now: Instant,
        id: FetchId,
        generations: &BTreeSet<u32>,
        open: &BTreeSet<SourceId>,
    ) -> bool {
        self.is_alarmed = true;
        let Some(case) = self.cases.get_mut(&id) else { return false };
        let mut known = open.iter().filter(|source| **source == FIRST || case.proof.is_some());
        let can_ask = known.any(|source| !case.refused.contains(&(*source, Topic::Checks)));
        let untested =
            case.parts.iter().filter(|(index, part)| generations.contains(index) && part.rows.iter().any(|row| !row.is_right));
        let untested: BTreeSet<u32> = untested.map(|(index, _)| *index).collect();
        let has_dropped = !case.dropped.is_disjoint(generations);
        if case.trials >= TRIALS_MAX || !(has_dropped || (can_ask && !untested.is_empty())) {
            return false;
        }
        let want =
            |generation: &u32| Want { fetch: id, generation: Some(*generation), is_early: false, not_before: None, retries: 0 };
        self.wants.retain(|want| want.fetch != id || want.generation.is_none_or(|index| !untested.contains(&index)));
        self.wants.extend(untested.iter().map(want));
        case.refuted.extend(generations);
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
    pub(super) fn next_concluded(&mut self) -> Option<(FetchId, BTreeSet<u32>, bool)> {
        let is_over = |case: &Case| matches!(&case.stage, Stage::Trial(left) if left.is_empty());
        let (id, case) = self.cases.iter_mut().find(|(_, case)| is_over(case))?;
        case.stage = Stage::Coming;
        let refuted = std::mem::take(&mut case.refuted);
        let has_dropped = !case.dropped.is_disjoint(&refuted);
        case.dropped.retain(|generation| !refuted.contains(generation));
        Some((*id, refuted, has_dropped))
    }

    /// Trials of fetches whose deadline has passed.
    pub(super) fn overdue(&self, now: Instant) -> Vec<FetchId> {
        let is_overdue =
            |case: &Case| matches!(case.stage, Stage::Trial(_)) && case.order.deadline.is_some_and(|deadline| deadline <= now);
        self.cases.iter().filter(|(_, case)| is_overdue(case)).map(|(id, _)| *id).collect()
    }

    /// Changes whether somebody waits for a segment.
    pub(super) fn set_urgency(&mut self, id: FetchId, urgency: Urgency) {
        if let Some(case) = self.cases.get_mut(&id) {
            case.order.urgency = urgency;
        }
    }

    /// The kept rows of a generation.
    pub(super) fn rows(&self, id: FetchId, generation: u32) -> &[Row] {
        self.cases.get(&id).and_then(|case| case.parts.get(&generation)).map_or(&[], |part| &part.rows)
    }

    /// Forgets generations that are fetched anew. False if all of them were before: they stay
    /// wrong. Where two generations share wrong bytes, either of them may be to blame. So a
    /// generation is fetched anew more than once as long as another one was not.
    pub(super) fn begin_anew(&mut self, id: FetchId, generations: &BTreeSet<u32>) -> bool {
        let Some(case) = self.cases.get_mut(&id).filter(|case| !generations.is_subset(&case.again)) else { return false };
        for generation in generations {
            self.bytes -= case.parts.remove(generation).iter().flat_map(|part| &part.rows).map(Row::bytes).sum::<u64>();
            case.dropped.remove(generation);
        }
        case.again.extend(generations);
        let is_anew =
            |want: &Want| want.fetch == id && want.generation.is_some_and(|generation| generations.contains(&generation));
        self.wants.retain(|want| !is_anew(want));
        // An open query is about rows that are gone. Later rows may be made by a source that has
        // seen the answer.
        for question in self.questions.values_mut().filter(|question| is_anew(&question.want)) {
            if let Asked::Checks { rows, .. } = &mut question.asked {
                *rows = 0;
            }
        }
        true
    }

    /// The number of queries that a source has not answered.
    pub(super) fn unanswered(&self, source: SourceId) -> usize {
        self.questions.values().filter(|question| question.source == source).count()
    }

    /// The next query to a source; `open` are the servers that can be asked, and `number` gives the
    /// query its number.
    pub(super) fn next_question(
        &mut self,
        now: Instant,
        source: SourceId,
        open: &BTreeSet<SourceId>,
        number: impl FnOnce() -> u64,
    ) -> Option<Message> {
        if self.wants.is_empty() || self.unanswered(source) >= QUESTIONS_MAX {
            return None;
        }
        let is_due = |want: &Want| want.not_before.is_none_or(|at| at <= now);
        let index = self.wants.iter().position(|want| is_due(want) && self.choose(want, open) == Some(source))?;
        let want = self.wants.remove(index);
        let case = self.cases.get(&want.fetch)?;
        let (request, segment) = (number(), case.order.segment);
        let meant = Meant::Coded(case.order.shape.coding());
        let (asked, message) = match want.generation {
            None => (Asked::Hashes { received: BytesMut::new() }, Message::GetHashes { request, segment, meant }),
            Some(generation) => {
                let question = GetChecks { request, segment, generation, nonce: self.secret.nonce(request), meant };
                let rows = case.parts.get(&generation).map_or(0, |part| part.rows.len());
                (Asked::Checks { question: question.clone(), rows }, Message::GetChecks(question))
            }
        };
        self.questions.insert(request, Question { source, want, due: now + PATIENCE, until: now + PIECES_MAX, asked });
        Some(message)
    }

    /// The generation whose checksums a source was asked for under this number.
    pub(super) fn asked_about(&self, source: SourceId, request: u64) -> Option<(FetchId, u32)> {
        let is_ours = |question: &&Question| question.source == source && matches!(question.asked, Asked::Checks { .. });
        let Question { want, .. } = self.questions.get(&request).filter(is_ours)?;
        Some((want.fetch, want.generation?))
    }

    /// Takes checksums, the answer to the query of [`Evidence::asked_about`]. `is_open`: rows of
    /// the generation still come. `None` if they are useless.
    pub(super) fn checks(&mut self, source: SourceId, answer: &Checks, is_open: bool) -> Option<Findings> {
        let Question { want, asked: Asked::Checks { question, rows }, .. } = self.questions.remove(&answer.request)? else {
            return None;
        };
        let case = self.cases.get_mut(&want.fetch)?;
        let generation = case.order.shape.generation(question.generation)?;
        let is_vouched_for = match &case.proof {
            Some(proof) => proof.key.vouches_for(&question, answer),
            None => source == FIRST,
        };
        let key = row_key(&question.segment, &generation);
        let checks = RowChecks::new(self.kernels, &question.segment, key, generation, answer).filter(|_| is_vouched_for);
        let Some(checks) = checks else {
            case.refused.insert((source, Topic::Checks));
            self.wants.push(want);
            return None;
        };
        let part = case.parts.entry(generation.index).or_default();
        // A source that passed the checksums on could have made rows that pass.
        let count = if source == FIRST { part.rows.len() } else { rows.min(part.rows.len()) };
        let wrong = part.test(&checks, count);
        let is_trial = match &mut case.stage {
            Stage::Trial(left) => left.remove(&generation.index),
            Stage::Coming => false,
        };
        let is_checked = source == FIRST;
        part.checks = Some(checks).filter(|_| is_checked && (is_open || is_trial));
        part.is_asked = part.checks.is_some();
        self.found(&wrong);
        self.wants.retain(|other| (other.fetch, other.generation) != (want.fetch, want.generation));
        Some(Findings { fetch: want.fetch, generation: generation.index, wrong, is_checked })
    }

    /// Takes bytes of hashes. False if they belong to no query.
    pub(super) fn hash_bytes(&mut self, now: Instant, request: u64, source: SourceId, bytes: &[u8]) -> Result<bool, Violation> {
        let Some(Question { want, due, until, asked: Asked::Hashes { received }, .. }) =
            self.questions.get_mut(&request).filter(|question| question.source == source)
        else {
            return Ok(false);
        };
        let Some(case) = self.cases.get(&want.fetch) else { return Ok(false) };
        if (received.len() + bytes.len()) as u64 > BlockHashes::bytes(&case.order.shape) {
            return Err(Violation::Malformed("hashes stream"));
        }
        received.extend_from_slice(bytes);
        *due = (now + PATIENCE).min(*until);
        Ok(true)
    }

    /// Takes the end of a stream of hashes. Returns what they say about the kept rows.
    pub(super) fn hashes_finished(&mut self, request: u64, source: SourceId) -> Result<Vec<Findings>, Violation> {
        let is_ours = |question: &Question| question.source == source && matches!(question.asked, Asked::Hashes { .. });
        if !self.questions.get(&request).is_some_and(is_ours) {
            return Ok(Vec::new());
        }
        let Some(Question { want, asked: Asked::Hashes { received }, .. }) = self.questions.remove(&request) else {
            return Ok(Vec::new());
        };
        let Some(case) = self.cases.get_mut(&want.fetch) else { return Ok(Vec::new()) };
        let (shape, Some(proof)) = (case.order.shape, case.proof) else { return Ok(Vec::new()) };
        if (received.len() as u64) < BlockHashes::bytes(&shape) {
            return Err(Violation::Malformed("hashes stream"));
        }
        case.hashes = BlockHashes::checked(received.freeze(), &shape, &proof.blocks);
        if case.hashes.is_none() {
            // Other sources may have the right ones.
            case.refused.insert((source, Topic::Hashes));
            self.wants.push(want);
            if !shape.codec().is_proving() {
                // The source that passed these on may have received them wrong.
                return Ok(Vec::new());
            }
            // A source tests homomorphic hashes before it passes them on.
            case.forgers.insert(source);
            return Err(Violation::Unexpected("hashes that nobody has signed"));
        }
        if shape.codec().is_proving() {
            self.learnt.push(want.fetch);
        }
        let mut all = Vec::new();
        for index in case.parts.keys().copied().collect::<Vec<_>>() {
            let Some(generation) = shape.generation(index) else { continue };
            let wrong = case.test_sources(&generation);
            if !wrong.is_empty() {
                all.push(Findings { fetch: want.fetch, generation: index, wrong, is_checked: false });
            }
        }
        // The remaining rows have moved up: those that were there when checksums were requested are
        // among the first.
        for Findings { fetch, generation, wrong, .. } in &all {
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
    pub(super) fn refused(&mut self, now: Instant, request: u64, source: SourceId, retry_after: Option<Duration>) -> bool {
        if self.questions.get(&request).is_none_or(|question| question.source != source) {
            return false;
        }
        let Some(Question { mut want, .. }) = self.questions.remove(&request) else { return false };
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
    pub(super) fn disconnected(&mut self, source: SourceId) {
        let gone: Vec<u64> =
            self.questions.iter().filter(|(_, question)| question.source == source).map(|(request, _)| *request).collect();
        for request in gone {
            let Some(Question { want, .. }) = self.questions.remove(&request) else { continue };
            self.ask_again(want);
        }
        // The next connection may lead to a server that knows more.
        self.cases.values_mut().for_each(|case| case.refused.retain(|(refused, _)| *refused != source));
    }

    /// Gives up queries that are not answered in time, and those that no source can be asked.
    pub(super) fn expire(&mut self, now: Instant, open: &BTreeSet<SourceId>) {
        let late: Vec<u64> =
            self.questions.iter().filter(|(_, question)| question.due <= now).map(|(request, _)| *request).collect();
        for request in late {
            let Some(Question { source, want, .. }) = self.questions.remove(&request) else { continue };
            self.give_up(source, want);
            self.ask_again(want);
        }
        for (id, case) in &mut self.cases {
            if let Stage::Trial(left) = &mut case.stage
                && case.tried_until.is_some_and(|until| until <= now)
            {
                left.clear();
                self.wants.retain(|want| want.fetch != *id || want.generation.is_none() || want.is_early);
            }
        }
        // A query that may be sent now has no due time any more: it waits for its turn.
        for want in &mut self.wants {
            want.not_before.take_if(|at| *at <= now);
        }
        let (wants, hopeless): (Vec<Want>, Vec<Want>) =
            std::mem::take(&mut self.wants).into_iter().partition(|want| self.choose(want, open).is_some());
        self.wants = wants;
        for Want { fetch, generation, is_early, .. } in hopeless {
            let Some(case) = self.cases.get_mut(&fetch) else { continue };
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
    pub(super) fn due(&self) -> Option<Instant> {
        let wants = self.wants.iter().filter_map(|want| want.not_before);
        let trials = self.cases.values().filter(|case| matches!(case.stage, Stage::Trial(_)));
        let ends = trials.flat_map(|case| [case.tried_until, case.order.deadline].into_iter().flatten());
        self.questions.values().map(|question| question.due).chain(wants).chain(ends).min()
    }

    fn give_up(&mut self, source: SourceId, want: Want) {
        let topic = if want.generation.is_some() { Topic::Checks } else { Topic::Hashes };
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
    fn choose(&self, want: &Want, open: &BTreeSet<SourceId>) -> Option<SourceId> {
        let case = self.cases.get(&want.fetch)?;
        let topic = if want.generation.is_some() { Topic::Checks } else { Topic::Hashes };
        let may_be_asked = |source: &SourceId| {
            let is_forger = topic == Topic::Hashes && case.forgers.contains(source);
            open.contains(source) && !case.refused.contains(&(*source, topic)) && !is_forger
        };
        if may_be_asked(&FIRST) {
            return Some(FIRST);
        }
        let serves = !want.is_early && case.proof.is_some();
        open.iter().copied().find(|source| serves && may_be_asked(source))
    }

    /// Notes that wrong rows were dropped.
    fn found(&mut self, wrong: &[Row]) {
        self.is_alarmed |= !wrong.is_empty();
        self.bytes -= wrong.iter().map(Row::bytes).sum::<u64>();
    }
}

impl Case {
    fn is_tried(&self) -> bool {
        matches!(self.stage, Stage::Trial(_))
    }

    fn bytes(&self) -> u64 {
        self.parts.values().flat_map(|part| &part.rows).map(Row::bytes).sum()
    }

    /// Whether a source block matches its hash, if that is known.
    fn fits(&self, generation: &Generation, block: &Block) -> Option<bool> {
        let Vector::Source(index) = block.vector else { return None };
        let hashes = self.hashes.as_ref()?;
        let first = generation.offset / u64::from(generation.block_bytes);
        Some(hashes.fit(first + u64::from(index), &block.payload, generation.block_bytes))
    }

    /// Tests the source blocks of a generation by their hashes, and removes the wrong ones.
    fn test_sources(&mut self, generation: &Generation) -> Vec<Row> {
        let Some(mut part) = self.parts.remove(&generation.index) else { return Vec::new() };
        let wrong = |row: &mut Row| match self.fits(generation, &row.block) {
            Some(fits) => {
                row.is_right |= fits;
                !fits
            }
            None => false,
        };
        let wrong = part.rows.extract_if(.., wrong).collect();
        self.parts.insert(generation.index, part);
        wrong
    }
}

impl Part {
    /// Tests the first `count` rows, and removes the wrong ones.
    fn test(&mut self, checks: &RowChecks, count: usize) -> Vec<Row> {
        let rows = || self.rows.iter().take(count).filter(|row| !row.is_right);
        let blocks: Vec<_> = rows().map(|row| (&row.block.vector, &row.block.payload[..])).collect();
        let mut verdicts = checks.are_right(&blocks).into_iter();
        for row in self.rows.iter_mut().take(count).filter(|row| !row.is_right) {
            row.is_right = verdicts.next().unwrap_or_default();
        }
        self.rows.extract_if(..count, |row| !row.is_right).collect()
    }
}

impl Row {
    /// About how much memory it occupies, in bytes.
    fn bytes(&self) -> u64 {
        let vector = match &self.block.vector {
            Vector::Explicit(vector) | Vector::Unverified(vector) | Vector::Narrow(vector) | Vector::Wide(vector) => vector.len(),
            _ => 0,
        };
        (self.block.payload.len() + vector + size_of::<Self>()) as u64
    }
}

#[cfg(test)]
mod tests;
