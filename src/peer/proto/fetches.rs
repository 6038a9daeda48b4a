//! Segments under way: which generations are asked for, and with how much credit.
//!
//! Fetches are served in the order of their urgency, deadline and age, generations in theirs. A request is opened while the credit in
//! flight is below the window that the path needs, and at least two are, so that the last round trip of one is hidden behind the
//! next. Decoders exist for open requests alone, and for interrupted ones.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::flight::{Arrival, Flight};
use super::pace::Pace;
use super::rebuilder::Rebuilder;
use super::{Config, Counts, Event, Failure, FetchId, Order, Progress, Urgency};
use crate::block::{Block, Vector};
use crate::codec::Outcome;
use crate::codec::rlnc::{Decoder, Progressive, row_key};
use crate::object::{Generation, Refusal, RefusalCode};
use crate::wire::Violation;
use crate::wire::block::{self, DatagramHead};
use crate::wire::message::{Accept, Hello, Message, Request, StopReason};

/// Requests that are open however little the path holds.
const REQUESTS_MIN: usize = 2;
/// Blocks beyond the credit of a request that are put up with.
const EXCESS_MAX: u32 = 8;
/// Useless seeded blocks of a generation that are put up with while more than two are missing: an honest sender's chance is 2^-64.
const USELESS_MAX: u32 = 8;
/// Datagrams that belong to nothing, put up with whatever their share.
const STRAY_MAX: u64 = 1000;
/// Aliases back from the newest whose blocks count as late and not as stray.
const LATE_ALIASES: u16 = 4096;
/// RANK goes out after at least this many blocks.
const RANK_BLOCKS: u32 = 8;
/// The pause after GOING_AWAY, in which the connection ends.
const LEAVING_PAUSE: Duration = Duration::from_secs(1);

/// All segments under way.
#[derive(Debug)]
pub(super) struct Fetches {
    config: Config,
    pace: Pace,
    fetches: BTreeMap<FetchId, Fetch>,
    next_fetch: u64,
    aliases: HashMap<u16, (FetchId, u32)>,
    next_alias: u16,
    counts: Counts,
    /// Credit that one request may have at this server.
    credit_max: u32,
    /// When anything last brought something.
    progress_at: Option<Instant>,
    stirred: bool,
}

#[derive(Debug)]
struct Fetch {
    order: Order,
    works: BTreeMap<u32, Work>,
    /// The first generation that was never asked for.
    next: u32,
    /// When it last progressed, or began to be asked for.
    touched: Instant,
}

/// A generation under way.
#[derive(Debug)]
struct Work {
    decoder: Box<Rebuilder>,
    asked: Option<Asked>,
    paused_until: Option<Instant>,
    lost: u64,
    useless_seeded: u32,
}

/// An open request.
#[derive(Debug)]
struct Asked {
    alias: u16,
    deadline: Instant,
    flight: Flight,
    /// Whether the deadline leaves no time for a round trip.
    near: bool,
    excess: u32,
    useless: u32,
    unreported: u32,
    reported_at: Instant,
}

impl Fetches {
    pub(super) fn new(config: Config) -> Self {
        Self {
            config,
            pace: Pace::new(),
            fetches: BTreeMap::new(),
            next_fetch: 0,
            aliases: HashMap::new(),
            next_alias: 0,
            counts: Counts::default(),
            credit_max: 0,
            progress_at: None,
            stirred: false,
        }
    }

    pub(super) fn add(&mut self, now: Instant, order: Order) -> FetchId {
        let id = FetchId(self.next_fetch);
        self.next_fetch += 1;
        self.fetches.insert(id, Fetch { order, works: BTreeMap::new(), next: 0, touched: now });
        self.stirred = true;
        id
    }

    pub(super) fn hurry(&mut self, id: FetchId) {
        if let Some(fetch) = self.fetches.get_mut(&id) {
            fetch.order.urgency = Urgency::Now;
            self.stirred = true;
        }
    }

    pub(super) fn cancel(&mut self, id: FetchId, outbox: &mut VecDeque<Message>) {
        self.remove(id, StopReason::Cancelled, outbox);
    }

    pub(super) fn set_rtt(&mut self, rtt: Duration) {
        self.pace.set_rtt(rtt);
    }

    /// Whether [`Fetches::advance`] has something to do besides what is due.
    pub(super) fn is_stirred(&self) -> bool {
        self.stirred
    }

    /// Something happened elsewhere that lets requests go out.
    pub(super) fn stir(&mut self) {
        self.stirred = true;
    }

    /// Whether no request is open.
    pub(super) fn is_quiet(&self) -> bool {
        self.aliases.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fetches.is_empty()
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn path(&self) -> (f64, f64) {
        (self.pace.loss(), self.pace.rate())
    }

    pub(super) fn progress(&self) -> Vec<Progress> {
        let works = self.fetches.values().flat_map(|fetch| fetch.works.iter().map(|work| (fetch.order.segment, work)));
        works
            .map(|(segment, (index, work))| Progress {
                segment,
                generation: *index,
                rank: work.decoder.rank(),
                n: work.decoder.n(),
            })
            .collect()
    }

    /// The generation that an open request asks for.
    pub(super) fn generation(&self, alias: u16) -> Option<Generation> {
        let (fetch, index) = self.aliases.get(&alias)?;
        self.fetches.get(fetch)?.order.shape.generation(*index)
    }

    /// All requests are gone; what was decoded is not.
    pub(super) fn disconnected(&mut self, now: Instant) {
        self.aliases.clear();
        self.pace.idle();
        for fetch in self.fetches.values_mut() {
            fetch.touched = fetch.touched.max(now);
            fetch.works.values_mut().for_each(|work| {
                work.asked = None;
                work.paused_until = None;
            });
        }
    }

    pub(super) fn rejected(
        &mut self,
        now: Instant,
        alias: u16,
        refusal: Refusal,
        outbox: &mut VecDeque<Message>,
        events: &mut VecDeque<Event>,
    ) {
        // Stopped here while it was rejected there.
        let Some((id, index)) = self.aliases.remove(&alias) else { return };
        let Some(work) = self.fetches.get_mut(&id).and_then(|fetch| fetch.works.get_mut(&index)) else { return };
        work.asked = None;
        self.stirred = true;
        match (refusal.code, refusal.retry_after) {
            (RefusalCode::Deadline, _) => {}
            (RefusalCode::GoingAway, _) => work.paused_until = Some(now + LEAVING_PAUSE),
            (_, Some(after)) => work.paused_until = Some(now + after),
            (_, None) => {
                self.remove(id, StopReason::Cancelled, outbox);
                events.push_back(Event::Failed { fetch: id, failure: Failure::Refused(refusal) });
            }
        }
    }

    /// A datagram that belongs to nothing.
    pub(super) fn stray(&mut self) -> Result<(), Violation> {
        self.counts.stray += 1;
        let all = self.counts.blocks + self.counts.late + self.counts.stray;
        if self.counts.stray > STRAY_MAX && self.counts.stray * 10 > all {
            return Err(Violation::Flood("blocks that nobody asked for"));
        }
        Ok(())
    }

    pub(super) fn datagram(
        &mut self,
        now: Instant,
        head: DatagramHead,
        rest: Bytes,
        outbox: &mut VecDeque<Message>,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Violation> {
        let Some((id, index)) = self.aliases.get(&head.alias).copied() else { return self.late(head.alias) };
        let Some((work, _)) = find(&mut self.fetches, id, index) else { return Ok(()) };
        let Some(asked) = &mut work.asked else { return Ok(()) };
        let (arrival, given_up) = asked.flight.datagram(now, head.seq, head.last);
        note_lost(given_up, work, &mut self.pace, &mut self.counts);
        if arrival == Arrival::Returned {
            work.lost = work.lost.saturating_sub(1);
            self.counts.lost = self.counts.lost.saturating_sub(1);
        }
        self.stirred = true;
        match arrival {
            Arrival::Duplicate => {
                self.counts.duplicate += 1;
                Ok(())
            }
            Arrival::Excess => self.excess(id, index),
            Arrival::New | Arrival::Returned => match block::parse_block(head.kind, work.decoder.generation(), rest) {
                Some(block) => self.absorb(now, id, index, &block, outbox, events),
                None => self.stray(),
            },
        }
    }

    /// A block came on the stream of a request. False if the request is over.
    pub(super) fn record(
        &mut self,
        now: Instant,
        alias: u16,
        block: &Block,
        outbox: &mut VecDeque<Message>,
        events: &mut VecDeque<Event>,
    ) -> Result<bool, Violation> {
        let Some((id, index)) = self.aliases.get(&alias).copied() else {
            self.counts.late += 1;
            return Ok(false);
        };
        let Some((work, _)) = find(&mut self.fetches, id, index) else { return Ok(false) };
        let Some(asked) = &mut work.asked else { return Ok(false) };
        self.stirred = true;
        match asked.flight.record(now) {
            Arrival::New | Arrival::Returned => self.absorb(now, id, index, block, outbox, events)?,
            Arrival::Duplicate | Arrival::Excess => self.excess(id, index)?,
        }
        Ok(true)
    }

    /// Gives credit, opens requests, and ends what is too late. To be called when something has come and when something is due.
    pub(super) fn advance(
        &mut self,
        now: Instant,
        server: Option<&Hello>,
        outbox: &mut VecDeque<Message>,
        events: &mut VecDeque<Event>,
    ) {
        self.stirred = false;
        self.credit_max = server.map_or(self.credit_max, |server| server.credit_max);
        let order = self.order();
        for &id in &order {
            if let Some(failure) = self.failure(id, now) {
                self.remove(id, StopReason::Deadline, outbox);
                events.push_back(Event::Failed { fetch: id, failure });
            }
        }
        let mut heard = None;
        for &id in &order {
            let Some(fetch) = self.fetches.get_mut(&id) else { continue };
            for work in fetch.works.values_mut() {
                work.paused_until = work.paused_until.filter(|until| *until > now);
                if let Some(alias) = work.expired(now) {
                    self.aliases.remove(&alias);
                    outbox.push_back(Message::Stop { alias, reason: StopReason::Deadline });
                }
                let hard = fetch.order.deadline;
                outbox.extend(work.tend(now, hard, &mut heard, self.credit_max, &mut self.pace, &mut self.counts));
            }
        }
        if let Some(server) = server {
            self.open_requests(now, server, &order, outbox);
        }
        if self.aliases.is_empty() {
            self.pace.idle();
        }
    }

    /// When [`Fetches::advance`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let mut heard = None;
        let mut due: Option<Instant> = None;
        let mut at = |instant: Option<Instant>| due = due.into_iter().chain(instant).min();
        for id in self.order() {
            let Some(fetch) = self.fetches.get(&id) else { continue };
            at(Some(self.stalls_at(fetch)));
            at(fetch.order.deadline);
            for work in fetch.works.values() {
                at(work.paused_until);
                at(work.due(fetch.order.deadline, &mut heard, self.credit_max, &self.pace));
            }
        }
        due
    }

    /// Fetches in the order in which they are served.
    fn order(&self) -> Vec<FetchId> {
        let mut order: Vec<_> = self.fetches.iter().map(|(id, fetch)| (fetch.order, *id)).collect();
        order.sort_by_key(|(order, id)| (order.urgency, order.deadline.is_none(), order.deadline, *id));
        order.into_iter().map(|(_, id)| id).collect()
    }

    fn failure(&self, id: FetchId, now: Instant) -> Option<Failure> {
        let fetch = self.fetches.get(&id)?;
        if fetch.order.deadline.is_some_and(|deadline| deadline <= now) {
            return Some(Failure::Deadline);
        }
        (self.stalls_at(fetch) <= now).then_some(Failure::Stalled)
    }

    /// A fetch that is not asked for yet waits as long as others progress.
    fn stalls_at(&self, fetch: &Fetch) -> Instant {
        let others = self.progress_at.filter(|_| fetch.works.is_empty());
        fetch.touched.max(others.unwrap_or(fetch.touched)) + self.config.stall_timeout
    }

    fn open_requests(&mut self, now: Instant, server: &Hello, order: &[FetchId], outbox: &mut VecDeque<Message>) {
        let requests_max = self.config.requests_max.min(usize::from(server.requests_max));
        let window = self.pace.window(self.config.window_min, self.config.window_max);
        for &id in order {
            while self.aliases.len() < requests_max {
                let urgency = self.fetches.get(&id).map_or(Urgency::Ahead, |fetch| fetch.order.urgency);
                let (requests, bytes) = self.in_flight(urgency);
                if (requests >= REQUESTS_MIN && bytes >= window) || !self.open_next(now, server, id, outbox) {
                    break;
                }
            }
        }
    }

    /// Requests and bytes of credit in flight for what is at least this urgent.
    fn in_flight(&self, urgency: Urgency) -> (usize, u64) {
        let fetches = self.fetches.values().filter(|fetch| fetch.order.urgency <= urgency);
        let asked = fetches.flat_map(|fetch| {
            let block_bytes = u64::from(fetch.order.shape.block_bytes());
            let asked = fetch.works.values().filter_map(|work| work.asked.as_ref());
            asked.map(move |asked| asked.flight.in_flight() * block_bytes)
        });
        asked.fold((0, 0), |(requests, bytes), more| (requests + 1, bytes + more))
    }

    /// Asks for the next generation of a fetch: an interrupted one, or a new one. False if there is none.
    fn open_next(&mut self, now: Instant, server: &Hello, id: FetchId, outbox: &mut VecDeque<Message>) -> bool {
        let alias = self.free_alias();
        let Some(fetch) = self.fetches.get_mut(&id) else { return false };
        let left = fetch.order.deadline.map(|deadline| deadline.saturating_duration_since(now));
        let interrupted = fetch.works.iter().find(|(_, work)| work.asked.is_none() && work.paused_until.is_none());
        let index = match interrupted {
            Some((index, _)) => *index,
            None => {
                let Some(generation) = fetch.order.shape.generation(fetch.next) else { return false };
                if fetch.works.is_empty() {
                    fetch.touched = now;
                }
                fetch.next += 1;
                let is_pressed = left.is_some_and(|left| self.pace.is_pressed(left, &generation));
                let (key, kernels) = (row_key(&fetch.order.segment, &generation), self.config.kernels);
                let decoder = Box::new(match (self.config.gathers, is_pressed) {
                    (true, _) => Rebuilder::Blocked(Decoder::gathering(generation, key, kernels)),
                    (false, false) => Rebuilder::Blocked(Decoder::new(generation, key, kernels)),
                    (false, true) => Rebuilder::Progressive(Progressive::new(generation, key, kernels)),
                });
                let work = Work { decoder, asked: None, paused_until: None, lost: 0, useless_seeded: 0 };
                fetch.works.insert(generation.index, work);
                generation.index
            }
        };
        let Some(work) = fetch.works.get_mut(&index) else { return false };
        // Later requests get later deadlines, so that the server serves them in this order too.
        let patience = self.config.stall_timeout * if fetch.order.urgency == Urgency::Now { 1 } else { 2 };
        let deadline = fetch.order.deadline.unwrap_or(now + patience);
        let near = left.is_some_and(|left| self.pace.is_near(left));
        let credit = self.pace.target(work.decoder.missing(), near).min(server.credit_max);
        let accept = Accept {
            coded: true,
            // The server would begin with the source blocks that are held already.
            systematic: work.decoder.rank() == 0,
            datagrams: self.config.datagrams,
            recoded: true,
        };
        outbox.push_back(Message::Request(Request {
            alias,
            segment: fetch.order.segment,
            generation: index,
            deadline_ms: millis(deadline.saturating_duration_since(now)).max(1),
            credit,
            accept,
            ranges: Vec::new(),
        }));
        work.asked = Some(Asked::new(now, alias, deadline, credit, near));
        self.aliases.insert(alias, (id, index));
        self.next_alias = alias.wrapping_add(1);
        true
    }

    /// The alias whose last use is the longest ago.
    fn free_alias(&self) -> u16 {
        let mut alias = self.next_alias;
        while self.aliases.contains_key(&alias) {
            alias = alias.wrapping_add(1);
        }
        alias
    }

    fn late(&mut self, alias: u16) -> Result<(), Violation> {
        if (1..=LATE_ALIASES).contains(&self.next_alias.wrapping_sub(alias)) {
            self.counts.late += 1;
            return Ok(());
        }
        self.stray()
    }

    fn excess(&mut self, id: FetchId, index: u32) -> Result<(), Violation> {
        let asked = find(&mut self.fetches, id, index).and_then(|(work, _)| work.asked.as_mut());
        let excess = asked.map_or(0, |asked| {
            asked.excess += 1;
            asked.excess
        });
        self.counts.stray += 1;
        if excess > EXCESS_MAX { Err(Violation::Flood("blocks without credit")) } else { Ok(()) }
    }

    fn absorb(
        &mut self,
        now: Instant,
        id: FetchId,
        index: u32,
        block: &Block,
        outbox: &mut VecDeque<Message>,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Violation> {
        let Some((work, touched)) = find(&mut self.fetches, id, index) else { return Ok(()) };
        let Some(asked) = &mut work.asked else { return Ok(()) };
        let Ok(outcome) = work.decoder.absorb(&block.vector, &block.payload) else { return self.stray() };
        self.counts.blocks += 1;
        self.counts.systematic += u64::from(matches!(block.vector, Vector::Source(_)));
        self.counts.payload_bytes += block.payload.len() as u64;
        self.pace.arrived(now, block.payload.len());
        asked.unreported += 1;
        match outcome {
            Outcome::Redundant => {
                self.counts.useless += 1;
                asked.useless += 1;
                work.useless_seeded += u32::from(matches!(block.vector, Vector::Seed(_)));
                if work.useless_seeded > USELESS_MAX && work.decoder.missing() > 2 {
                    return Err(Violation::Flood("useless blocks"));
                }
            }
            Outcome::Innovative | Outcome::Complete => {
                self.counts.innovative += 1;
                *touched = now;
                self.progress_at = Some(now);
            }
        }
        if outcome == Outcome::Complete {
            self.finish(id, index, outbox, events);
        } else if asked.unreported >= RANK_BLOCKS && asked.reported_at + self.pace.rtt() / 2 <= now {
            outbox.push_back(asked.rank(work.decoder.rank()));
            asked.unreported = 0;
            asked.reported_at = now;
        }
        Ok(())
    }

    /// A generation is complete.
    fn finish(&mut self, id: FetchId, index: u32, outbox: &mut VecDeque<Message>, events: &mut VecDeque<Event>) {
        let Some(fetch) = self.fetches.get_mut(&id) else { return };
        let Some(work) = fetch.works.remove(&index) else { return };
        if let Some(asked) = work.asked {
            self.aliases.remove(&asked.alias);
            outbox.push_back(asked.rank(work.decoder.rank()));
            outbox.push_back(Message::Stop { alias: asked.alias, reason: StopReason::Complete });
        }
        self.counts.repaired += work.lost;
        self.counts.generations += 1;
        self.counts.generations_progressive += u64::from(work.decoder.is_progressive());
        if fetch.works.is_empty() && fetch.next >= fetch.order.shape.generations() {
            self.fetches.remove(&id);
        }
        events.push_back(Event::Decoded { fetch: id, decoder: work.decoder });
    }

    fn remove(&mut self, id: FetchId, reason: StopReason, outbox: &mut VecDeque<Message>) {
        let Some(fetch) = self.fetches.remove(&id) else { return };
        for asked in fetch.works.into_values().filter_map(|work| work.asked) {
            self.aliases.remove(&asked.alias);
            outbox.push_back(Message::Stop { alias: asked.alias, reason });
        }
        self.stirred = true;
    }
}

impl Work {
    /// The request, if its own deadline has passed; it is to be asked again.
    fn expired(&mut self, now: Instant) -> Option<u16> {
        self.asked.take_if(|asked| asked.deadline <= now).map(|asked| asked.alias)
    }

    /// Gives the credit that is due. `heard` is when something last came for this request or one before it: while those are
    /// served, this one's silence means nothing.
    fn tend(
        &mut self,
        now: Instant,
        hard: Option<Instant>,
        heard: &mut Option<Instant>,
        credit_max: u32,
        pace: &mut Pace,
        counts: &mut Counts,
    ) -> Option<Message> {
        let given_up = self.asked.as_mut().map_or(0, |asked| asked.flight.give_up(now, pace.patience()));
        note_lost(given_up, self, pace, counts);
        let missing = self.decoder.missing();
        let block_bytes = self.decoder.generation().block_bytes;
        let asked = self.asked.as_mut()?;
        *heard = Some(heard.map_or(asked.flight.heard(), |before| before.max(asked.flight.heard())));
        asked.near = hard.is_some_and(|hard| pace.is_near(hard.saturating_duration_since(now)));
        let target = pace.target(missing, asked.near);
        let room = asked.room(credit_max);
        let lacking = target.saturating_sub(asked.in_flight()).min(room);
        if lacking > 0 && asked.flight.credited_at() + pace.rtt() <= now {
            asked.flight.credit(now, lacking);
            counts.credits += 1;
            return Some(Message::Credit { alias: asked.alias, blocks: lacking });
        }
        let silent_at = asked.silent_at(*heard, block_bytes, pace)?;
        // Two at first where time is short: one of them may be lost too.
        let probe = if asked.near { target } else { (1 + u32::from(hard.is_some())) << asked.flight.silences().min(10) };
        let probe = probe.min(u32::from(missing)).min(room);
        if lacking > 0 || probe == 0 || silent_at > now {
            return None;
        }
        asked.flight.probe(now, probe);
        counts.credits += 1;
        Some(Message::Credit { alias: asked.alias, blocks: probe })
    }

    /// When [`Work::tend`] has something to do.
    fn due(&self, hard: Option<Instant>, heard: &mut Option<Instant>, credit_max: u32, pace: &Pace) -> Option<Instant> {
        let asked = self.asked.as_ref()?;
        *heard = Some(heard.map_or(asked.flight.heard(), |before| before.max(asked.flight.heard())));
        let target = pace.target(self.decoder.missing(), asked.near);
        let room = asked.room(credit_max);
        let next = if room == 0 {
            None
        } else if asked.in_flight() < target {
            Some(asked.flight.credited_at() + pace.rtt())
        } else {
            asked.silent_at(*heard, self.decoder.generation().block_bytes, pace)
        };
        let near_at = hard.filter(|_| !asked.near).and_then(|hard| hard.checked_sub(pace.rtt() * 5 / 2));
        [Some(asked.deadline), asked.flight.give_up_at(pace.patience()), next, near_at].into_iter().flatten().min()
    }
}

impl Asked {
    fn new(now: Instant, alias: u16, deadline: Instant, credit: u32, near: bool) -> Self {
        let flight = Flight::new(now, credit);
        Self { alias, deadline, flight, near, excess: 0, useless: 0, unreported: 0, reported_at: now }
    }

    fn in_flight(&self) -> u32 {
        saturated(self.flight.in_flight())
    }

    /// Credit that the server allows besides what is in flight.
    fn room(&self, credit_max: u32) -> u32 {
        credit_max.saturating_sub(self.in_flight())
    }

    /// When silence means loss; never on a stream, and not while nothing is in flight.
    fn silent_at(&self, heard: Option<Instant>, block_bytes: u32, pace: &Pace) -> Option<Instant> {
        let waiting = self.flight.in_flight() > 0 && !self.flight.is_reliable();
        heard.filter(|_| waiting).map(|heard| heard + pace.silence(block_bytes, self.flight.silences()))
    }

    fn rank(&self, rank: u16) -> Message {
        Message::Rank { alias: self.alias, rank: u32::from(rank), useless: self.useless, lost: saturated(self.flight.lost()) }
    }
}

/// A generation under way, and when its fetch last progressed.
fn find(fetches: &mut BTreeMap<FetchId, Fetch>, id: FetchId, index: u32) -> Option<(&mut Work, &mut Instant)> {
    let fetch = fetches.get_mut(&id)?;
    Some((fetch.works.get_mut(&index)?, &mut fetch.touched))
}

fn note_lost(given_up: u64, work: &mut Work, pace: &mut Pace, counts: &mut Counts) {
    work.lost += given_up;
    pace.lost(given_up);
    counts.lost += given_up;
}

fn saturated(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
