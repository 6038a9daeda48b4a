//! REQUESTs: how they open, change, and end.
//!
//! A request is credit that runs down. It is ended at its deadline, when its segment goes, or when
//! no credit comes for [`Config::stall_timeout`](super::Config::stall_timeout).

use std::time::Duration;

use super::event::{Ended, Event};
use super::known::named;
use super::ledgers::LEASES_RETRY;
use super::millis::{deadline_of, millis};
use super::open::{Open, Tenancy, Tenure, Unleased, numbered};
use super::proto::Proto;
use crate::admission::Share;
use crate::admission::intake::Answer;
use crate::object::{FirstPass, GenerationKey, Held};
use crate::ring::{LineKey, LineKind};
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::message::{Message, Request, RequestCode, stream_of};

/// When to ask a relay again that cannot send a segment in the requested way.
pub(super) const RECODED_RETRY: Duration = Duration::from_millis(500);

impl Proto {
    /// Takes REQUEST.
    pub(super) fn handle_request(
        &mut self,
        now: Instant,
        request: Request,
    ) -> Result<(), Violation> {
        if self.requests.len() + self.finding.len() >= usize::from(self.config.requests_max) {
            return Err(Violation::Limit("open requests"));
        }
        if request.credit > self.config.credit_max {
            return Err(Violation::Limit("credit"));
        }
        if self.requests.contains_key(&request.alias)
            || self
                .finding
                .values()
                .any(|other| other.alias == request.alias)
        {
            return Err(Violation::Unexpected("alias that is open already"));
        }
        self.count_question(now, 1);
        let told = self.known.find(request.segment, request.meant);
        self.streams.open(
            now,
            request.alias,
            told.map_or("", |(_, told)| stream_of(&told.path)),
        );
        if self.draining {
            self.reject(request.alias, RequestCode::GoingAway, None);
            return Ok(());
        }
        let Some((ticket, find)) = self.search(request.segment, request.meant) else {
            self.reject(request.alias, RequestCode::Unknown, None);
            return Ok(());
        };
        self.finding.insert(ticket, request);
        if self.is_admitted {
            self.events.push_back(find);
        } else {
            if self.at_door.is_empty() {
                self.events.push_back(Event::AskAdmission);
            }
            self.at_door.push((ticket, find));
        }
        Ok(())
    }

    /// The answer to [`Event::AskAdmission`]: goes on with the REQUESTs that wait, or rejects them.
    pub fn asked_admission(&mut self, answer: Answer) {
        let at_door = std::mem::take(&mut self.at_door);
        match answer {
            Answer::Admitted => {
                self.is_admitted = true;
                self.events
                    .extend(at_door.into_iter().map(|(_, find)| find));
            }
            Answer::Wait(again) => {
                for (ticket, _) in at_door {
                    if let Some(request) = self.finding.remove(&ticket) {
                        self.reject(request.alias, RequestCode::Overload, Some(again));
                    }
                }
            }
        }
    }

    /// Opens a request whose segment is found.
    pub(super) fn open(
        &mut self,
        now: Instant,
        request: Request,
        held: Held,
    ) -> Result<(), Violation> {
        let Some(generation) = held.lease.shape.generation(request.generation) else {
            return Err(Violation::Malformed("index of the generation"));
        };
        let key = GenerationKey {
            segment: held.lease.key,
            index: generation.index,
        };
        if self.requests.values().any(|open| open.key == key) {
            self.reject(request.alias, RequestCode::Limit, None);
            return Ok(());
        }
        let codec = generation.codec;
        // A peer that takes both kinds of blocks gets those that the stream is configured to begin
        // with. With a code that cannot be recoded these are source blocks.
        let begins_with_source = held.first_pass == FirstPass::Systematic
            || !request.accept.coded
            || !codec.is_recodable();
        let numbered = numbered(&request, &generation, begins_with_source)?;
        if !self
            .peer
            .as_ref()
            .is_some_and(|peer| peer.codecs.have(codec))
        {
            self.reject(request.alias, RequestCode::Limit, None);
            return Ok(());
        }
        let deadline = deadline_of(now, request.deadline_ms);
        if held.is_recoded
            && ((request.accept.coded && !request.accept.recoded) || !codec.is_recodable())
        {
            // Seeds and numbers need the whole segment, which may come.
            self.reject(request.alias, RequestCode::Overload, Some(RECODED_RETRY));
            return Ok(());
        }
        // Sparse rows have no seed that the peer could draw them from: a peer that does not take
        // explicit vectors gets dense rows.
        let kind = match held.is_recoded {
            true => LineKind::Recoded(self.session),
            false => LineKind::coded(
                held.row_weight.filter(|_| request.accept.recoded),
                generation.n,
            ),
        };
        if let Some(path) = held.path.as_deref() {
            self.events
                .extend(self.streams.watch_by(now, request.alias, stream_of(path)));
        }
        let name = named(&held);
        let Held {
            lease, path, birth, ..
        } = held;
        let mut open = Open {
            name,
            path,
            birth,
            tenure: Tenure::Idle(lease.release(), now),
            generation,
            key,
            kind,
            accept: request.accept,
            deadline,
            credit: request.credit,
            numbered,
            source_wanted: 0,
            coded_wanted: 0,
            seq: 0,
            on_stream: false,
            reported: (0, 0),
            left: 0,
            is_held_back: request.credit == 0,
        };
        if let Err(unleased) = open.settle(now, &self.ledgers) {
            self.reject_unleased(request.alias, &unleased);
            return Ok(());
        }
        self.tally.requests += 1;
        self.events
            .extend(self.known.introduce(now, name, &self.access));
        self.requests.insert(request.alias, open);
        Ok(())
    }

    /// Takes CREDIT.
    pub(super) fn handle_credit(
        &mut self,
        now: Instant,
        alias: u16,
        blocks: u32,
    ) -> Result<(), Violation> {
        let waiting = self
            .finding
            .values_mut()
            .find(|request| request.alias == alias)
            .map(|request| &mut request.credit);
        let credit = self
            .requests
            .get_mut(&alias)
            .map(|open| &mut open.credit)
            .or(waiting);
        // Without one, the request ended here while the credit was on its way.
        let Some(credit) = credit else { return Ok(()) };
        *credit = credit.saturating_add(blocks);
        if *credit > self.config.credit_max {
            return Err(Violation::Limit("credit"));
        }
        let Self {
            requests, ledgers, ..
        } = self;
        if let Some(Err(unleased)) = requests
            .get_mut(&alias)
            .map(|open| open.settle(now, ledgers))
        {
            self.end_unleased(alias, &unleased);
        }
        Ok(())
    }

    /// Takes RESCHEDULE. The request may have ended here while the message was on its way. However
    /// often a request is moved, the ring hears of it once a turn.
    pub(super) fn handle_reschedule(&mut self, now: Instant, alias: u16, deadline_ms: u64) {
        self.count_question(now, 1);
        if let Some(request) = self
            .finding
            .values_mut()
            .find(|request| request.alias == alias)
        {
            request.deadline_ms = deadline_ms;
        }
        let Some(open) = self.requests.get_mut(&alias) else {
            return;
        };
        open.deadline = deadline_of(now, deadline_ms);
        self.rescheduled.insert(alias);
    }

    /// The next request whose deadline has moved, as it is now.
    pub(super) fn next_rescheduled(&mut self) -> Option<Event> {
        std::iter::from_fn(|| self.rescheduled.pop_first()).find_map(|alias| {
            let open = self.requests.get(&alias)?;
            let source = LineKey {
                generation: open.key,
                kind: LineKind::Source(self.session),
            };
            let lines = [
                (open.source_wanted > 0).then_some(source),
                (open.coded_wanted > 0).then(|| open.line()),
            ];
            lines
                .iter()
                .any(Option::is_some)
                .then_some(Event::Rescheduled {
                    alias,
                    lines,
                    deadline: open.deadline,
                })
        })
    }

    /// Takes STOP.
    pub(super) fn handle_stop(&mut self, alias: u16) {
        let Self {
            finding, at_door, ..
        } = self;
        finding.retain(|_, request| request.alias != alias);
        at_door.retain(|(ticket, _)| finding.contains_key(ticket));
        self.streams.close(alias);
        self.end(alias, true);
    }

    /// Takes RANK. At most the blocks that have left can be redundant or lost. So however often a
    /// peer reports more, it causes no more events than it has had blocks.
    pub(super) fn handle_rank(&mut self, alias: u16, useless: u32, lost: u32) {
        let Some(open) = self.requests.get_mut(&alias) else {
            return;
        };
        let left = u32::try_from(open.left).unwrap_or(u32::MAX);
        let (useless, lost) = (useless.min(left), lost.min(left));
        self.tally.useless += u64::from(useless.saturating_sub(open.reported.0));
        let newly_lost = lost.saturating_sub(open.reported.1);
        self.tally.lost += u64::from(newly_lost);
        if newly_lost > 0 && matches!(open.kind, LineKind::Recoded(_)) {
            self.events.push_back(Event::Lost {
                line: open.line(),
                blocks: newly_lost,
            });
        }
        open.reported = (useless.max(open.reported.0), lost.max(open.reported.1));
    }

    /// The peer has refused to read the stream of a request any further.
    pub fn stream_stopped(&mut self, alias: u16) {
        self.end(alias, true);
    }

    /// Blocks are on their way to the peer without its acknowledgement: it may be about to give
    /// credit.
    pub fn note_unacknowledged(&mut self, now: Instant) {
        self.unacknowledged_at = now;
    }

    /// The peer has acknowledged blocks. A stream reports its own progress ([`Proto::note_taken`]).
    /// Of those in datagrams, the request that is due first is sent first, so it is taken to be the
    /// one that progresses.
    pub fn note_progress(&mut self, now: Instant) {
        let in_datagrams = self
            .requests
            .values_mut()
            .filter(|open| open.accept.datagrams && !open.on_stream);
        let leased = in_datagrams.filter_map(|open| Some((open.deadline, open.tenancy()?)));
        if let Some((_, tenancy)) = leased.min_by_key(|(deadline, _)| *deadline) {
            tenancy.note_used(now, 0);
        }
    }

    /// QUIC has taken more of the blocks on a request's stream.
    pub fn note_taken(&mut self, now: Instant, alias: u16) {
        if let Some(tenancy) = self.requests.get_mut(&alias).and_then(Open::tenancy) {
            tenancy.note_used(now, 0);
        }
    }

    /// When a request that has nothing to send ends, if no credit comes.
    pub(super) fn idle_until(&self, open: &Open) -> Option<Instant> {
        match open.tenure {
            Tenure::Leased(_) => None,
            Tenure::Idle(_, since) => {
                Some(since.max(self.unacknowledged_at) + self.config.stall_timeout)
            }
        }
    }

    /// Ends the requests that are due: at their deadline, without credit, or without their segment.
    pub(super) fn end_due(&mut self, now: Instant) {
        let late: Vec<u16> = self
            .requests
            .iter()
            .filter(|(_, open)| open.deadline <= now)
            .map(|(alias, _)| *alias)
            .collect();
        for alias in late {
            self.tally.late += 1;
            self.reject(alias, RequestCode::Deadline, None);
            self.end(alias, true);
        }
        self.end_idle(now);
        self.end_void();
        self.requests
            .values_mut()
            .filter_map(Open::tenancy)
            .for_each(|tenancy| tenancy.look(now));
        self.looked_at = now;
    }

    /// Ends the requests that have waited too long for credit.
    fn end_idle(&mut self, now: Instant) {
        let is_over = |open: &Open| self.idle_until(open).is_some_and(|until| until <= now);
        let idle: Vec<u16> = self
            .requests
            .iter()
            .filter(|(_, open)| is_over(open))
            .map(|(alias, _)| *alias)
            .collect();
        for alias in idle {
            self.tally.idle += 1;
            self.send(Message::Reject {
                alias,
                code: RequestCode::Deadline,
                retry_after_ms: 0,
            });
            // The peer may still read the blocks that have left.
            self.end(alias, false);
        }
    }

    /// Ends the requests whose segment has gone, or is not kept for them any more while they have
    /// blocks to send.
    fn end_void(&mut self) {
        let why = |open: &Open| match &open.tenure {
            Tenure::Leased(Tenancy { lease, .. }) if lease.is_void() => Some(Unleased::Gone),
            Tenure::Idle(released, _) if released.is_void() => Some(Unleased::Gone),
            Tenure::Leased(Tenancy { shares, .. }) if shares.iter().any(Share::is_revoked) => {
                Some(Unleased::Full)
            }
            _ => None,
        };
        let void: Vec<_> = self
            .requests
            .iter()
            .filter_map(|(alias, open)| Some((*alias, why(open)?)))
            .collect();
        void.into_iter()
            .for_each(|(alias, unleased)| self.end_unleased(alias, &unleased));
    }

    /// Ends a request that cannot keep its segment.
    fn end_unleased(&mut self, alias: u16, unleased: &Unleased) {
        self.reject_unleased(alias, unleased);
        self.end(alias, false);
    }

    /// Rejects a request that cannot keep its segment.
    fn reject_unleased(&mut self, alias: u16, unleased: &Unleased) {
        match unleased {
            Unleased::Gone => {
                self.tally.evicted += 1;
                self.reject(alias, RequestCode::Unknown, None);
            }
            Unleased::Full => {
                self.tally.unleased += 1;
                self.reject(alias, RequestCode::Overload, Some(LEASES_RETRY));
            }
        }
    }

    /// Sends REJECT.
    pub(super) fn reject(&mut self, alias: u16, code: RequestCode, retry_after: Option<Duration>) {
        self.tally.refused += 1;
        let tally = self.streams.tally(alias);
        match code {
            RequestCode::Deadline => tally.late += 1,
            _ => tally.refused += 1,
        }
        self.streams.close(alias);
        self.send(Message::Reject {
            alias,
            code,
            retry_after_ms: retry_after.map_or(0, millis),
        });
    }

    /// Ends a request. `abandon`: its blocks on the way have become useless.
    pub(super) fn end(&mut self, alias: u16, abandon: bool) {
        self.streams.close(alias);
        if let Some(open) = self.requests.remove(&alias) {
            self.events.push_back(Event::Ended(Ended {
                alias,
                line: open.line(),
                abandon,
            }));
        }
    }
}
