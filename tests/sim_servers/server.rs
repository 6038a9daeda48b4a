//! A server: its roster, its table of the fleet, and a session for each connection, all of them as
//! they are shipped. The drivers around them are those of `src/cluster.rs` and
//! `ncs-serve/session/driver.rs`, without what no viewer here needs; the ring makes blocks at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncserverd::block::Vector;
use ncserverd::cluster::CHANGE_EVERY;
use ncserverd::cluster::beat::{Beat, Load};
use ncserverd::cluster::roster::{Change, INTERVAL, Roster};
use ncserverd::fleet::{Advice, Fleet, Key};
use ncserverd::object::GenerationKey;
use ncserverd::ring::SessionId;
use ncserverd::session::proto::{self as session, Event, Route};
use ncserverd::web::Binding;
use ncserverd::wire::message::{Alternate, VisitId};
use ncserverd::wire::{CloseCode, elsewhere, frame};
use rand::RngExt as _;
use tokio::sync::watch;

use crate::net::{Net, Packet, Way, What, WireId};
use crate::stream::{PLAYLIST, Stream, unknown};

/// How long a server may take to end: the default of `server.drain_timeout`.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Without a packet for so long, a connection is over: the default of `session.idle_timeout`.
const IDLE: Duration = Duration::from_secs(15);
/// How long a server takes to fetch a segment, in milliseconds, and to answer what it has.
const FETCH_MS: (u64, u64) = (30, 150);
const ANSWERS: Duration = Duration::from_millis(1);
/// How long a beat takes to another server, in milliseconds, and how many in a thousand are lost.
const BEAT_MS: (u64, u64) = (1, 50);
const BEATS_LOST: f64 = 0.001;
/// Blocks that fit a datagram.
const DATAGRAM_MAX: usize = 1162;
/// How often a server that ends looks whether all have gone.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// For how long QUIC repeats a close to whoever still sends.
const CLOSES_FOR: Duration = Duration::from_millis(300);

pub(crate) struct Server {
    number: usize,
    template: Beat,
    sequence: u64,
    beats_at: Instant,
    told_at: Instant,
    roster: Roster,
    pub(crate) fleet: Fleet,
    changes: watch::Receiver<()>,
    published_at: Instant,
    is_stale: bool,
    wake: Option<Instant>,
    /// While it drains: when it ends at the latest.
    drains: Option<Instant>,
    /// When it was last seen to have a session.
    occupied_at: Instant,
    /// Whether it has told its last beat.
    pub(crate) has_ended: bool,
    /// Connections that it has accepted.
    known: BTreeSet<WireId>,
    sessions: BTreeMap<WireId, Box<Session>>,
    /// Connections that it has closed, and why.
    closed: BTreeMap<WireId, (CloseCode, String)>,
    visits: HashMap<VisitId, WireId>,
    /// When it has each segment that was asked for.
    held: BTreeMap<u64, Instant>,
    /// As at a server, the seeds of each generation count up from a random one.
    seeds: HashMap<GenerationKey, u32>,
    pub(crate) counts: Counts,
}

/// What a server has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Viewers that came without being sent, and those of them that were sent on.
    pub(crate) newcomers: u64,
    pub(crate) sent_on: u64,
    /// Viewers that another server had sent.
    pub(crate) sent_here: u64,
    /// When each viewer was told to leave a server that drains.
    pub(crate) told_to_leave: Vec<Instant>,
    pub(crate) blocks: u64,
}

struct Session {
    proto: session::Proto,
    frames: frame::Reader,
    address: IpAddr,
    placed: Option<Key>,
    leaves: Option<(Instant, Instant)>,
    draining: Option<Instant>,
    /// GETs that are answered later.
    resolving: Vec<(Instant, u64, String)>,
    heard_at: Instant,
    wake: Option<Instant>,
}

impl Server {
    /// The process of this number of a server.
    pub(crate) fn new((number, process): (usize, u64), net: &mut Net, places: u32) -> Self {
        let address = net.sites[number].address.clone();
        let json = format!(
            r#"{{"server":"s{number}","started_ms":{process},"sequence":0,"addresses":["{address}"],
            "fingerprint":"{}","zone":"east","version":"0.1.0",
            "load":{{"viewers":0,"viewers_max":{places},"busy":0,"wait_s":0,"is_full":false}}}}"#,
            "00".repeat(32),
        );
        let fleet = Fleet::new(true);
        let beats_at = net.now + net.between(0, 2000);
        let mut server = Self {
            number,
            template: Beat::from_bytes(json.as_bytes()).expect("a good beat"),
            sequence: 0,
            beats_at,
            told_at: net.now,
            roster: Roster::new(),
            changes: fleet.changes(),
            fleet,
            published_at: net.now,
            is_stale: false,
            wake: None,
            drains: None,
            occupied_at: net.now,
            has_ended: false,
            known: BTreeSet::new(),
            sessions: BTreeMap::new(),
            closed: BTreeMap::new(),
            visits: HashMap::new(),
            held: BTreeMap::new(),
            seeds: HashMap::new(),
            counts: Counts::default(),
        };
        server.tell(net, false);
        server.wake_later(net);
        server
    }

    pub(crate) fn viewers(&self) -> u32 {
        u32::try_from(self.sessions.len()).expect("there are few")
    }

    pub(crate) fn is_open(&self) -> bool {
        self.drains.is_none()
    }

    /// Servers in its roster, itself among them.
    pub(crate) fn roster(&self) -> usize {
        self.roster.len()
    }

    pub(crate) fn alternate(&self) -> Alternate {
        self.template
            .member(self.told_at)
            .expect("it has an address")
            .server
    }

    /// The server ends, and sends its viewers to the others.
    pub(crate) fn drain(&mut self, net: &mut Net, stream: &Stream) {
        let until = net.now + DRAIN_TIMEOUT;
        self.drains = Some(until);
        self.tell(net, false);
        let viewers = self.viewers();
        let wires: Vec<WireId> = self.sessions.keys().copied().collect();
        for wire in wires {
            let time = self.fleet.time_to_leave(viewers).min(DRAIN_TIMEOUT / 2);
            let at = net.now + time.mul_f64(net.random.random_range(0.0..1.0));
            let session = self.sessions.get_mut(&wire).expect("it is open");
            session.leaves = Some((at, until));
            self.turn(wire, net, stream);
        }
        self.wake_later(net);
    }

    /// Does what is due of the fleet.
    pub(crate) fn tick(&mut self, net: &mut Net, stream: &Stream) {
        let now = net.now;
        if self.has_ended || self.wake.take_if(|at| *at <= now).is_none() {
            return;
        }
        self.is_stale |= !self.roster.expire(now).is_empty();
        if self.beats_at <= now {
            self.beats_at = now + INTERVAL;
            self.tell(net, false);
        }
        if self.is_stale && self.published_at + CHANGE_EVERY <= now {
            self.publish(now);
        }
        if !self.sessions.is_empty() {
            self.occupied_at = now;
        }
        let is_over = |until| until <= now || self.occupied_at + CLOSES_FOR <= now;
        if self.drains.is_some_and(is_over) {
            self.tell(net, true);
            self.has_ended = true;
            net.sites[self.number].is_alive = false;
            return;
        }
        self.tell_sessions(net, stream);
        self.wake_later(net);
    }

    fn wake_later(&mut self, net: &mut Net) {
        let drains = self.drains.map(|_| net.now + LOOK_EVERY);
        let stale = self.is_stale.then(|| self.published_at + CHANGE_EVERY);
        let due = [Some(self.beats_at), self.roster.due(), stale, drains];
        let due = due.into_iter().flatten().min();
        if let Some(due) = due.filter(|due| self.wake.is_none_or(|wake| *due < wake)) {
            self.wake = Some(due);
            net.post(due, What::Server(self.number));
        }
    }

    /// Hears another server.
    pub(crate) fn hear(&mut self, net: &mut Net, beat: &Beat) {
        if self.has_ended {
            return;
        }
        let heard = self.roster.hear(net.now, beat.clone());
        self.is_stale |= heard.is_some();
        if let Some(Change::Joined(_) | Change::Restarted(_)) = heard {
            // Who is new is to know this one soon.
            let greets_at = self.told_at + CHANGE_EVERY;
            self.beats_at = self.beats_at.min(greets_at.max(net.now));
        }
        self.wake_later(net);
    }

    fn tell(&mut self, net: &mut Net, is_last: bool) {
        let beat = Beat {
            sequence: self.sequence,
            load: Load {
                viewers: self.viewers(),
                is_full: self.viewers() >= self.template.load.viewers_max,
                ..self.template.load
            },
            is_draining: self.drains.is_some(),
            is_last,
            ..self.template.clone()
        };
        self.sequence += 1;
        self.told_at = net.now;
        self.roster.hear(net.now, beat.clone());
        self.publish(net.now);
        let beat = Arc::new(beat);
        for to in (0..net.sites.len()).filter(|to| *to != self.number) {
            let takes = net.between(BEAT_MS.0, BEAT_MS.1);
            if !net.random.random_bool(BEATS_LOST) {
                let what = What::Beat(self.number, to, Arc::clone(&beat));
                net.post(net.now + takes, what);
            }
        }
    }

    fn publish(&mut self, now: Instant) {
        let members = self.roster.members();
        let members = members.filter_map(|known| known.beat.member(known.heard_at()));
        self.fleet.set(self.template.server.as_str(), members);
        (self.published_at, self.is_stale) = (now, false);
    }

    /// Viewers are told of other servers when these have changed.
    fn tell_sessions(&mut self, net: &mut Net, stream: &Stream) {
        if !self.changes.has_changed().expect("the fleet is there") {
            return;
        }
        self.changes.mark_unchanged();
        for wire in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.tell_of_others(wire, false);
            self.turn(wire, net, stream);
        }
    }

    /// A viewer begins to connect.
    pub(crate) fn greeted(&mut self, wire: WireId, net: &mut Net) {
        let answer = match self.drains {
            None => Packet::Accept,
            Some(_) => Packet::Refuse,
        };
        self.known.extend(self.drains.is_none().then_some(wire));
        net.send(wire, Way::Down, answer);
    }

    /// Whether this process has accepted a connection.
    pub(crate) fn knows(&self, wire: WireId) -> bool {
        self.known.contains(&wire)
    }

    pub(crate) fn has_closed(&self, wire: WireId) -> bool {
        self.closed.contains_key(&wire)
    }

    /// Says once more that a connection is closed.
    pub(crate) fn close_again(&self, wire: WireId, net: &mut Net) {
        if let Some((code, reason)) = self.closed.get(&wire).cloned() {
            net.close(wire, Way::Down, code, reason);
        }
    }

    /// A packet has come on a connection.
    pub(crate) fn heard(&mut self, wire: WireId, now: Instant) {
        if let Some(session) = self.sessions.get_mut(&wire) {
            session.heard_at = now;
        }
    }

    /// Takes pieces of a control stream.
    pub(crate) fn control(
        &mut self,
        wire: WireId,
        address: IpAddr,
        pieces: Vec<Bytes>,
        net: &mut Net,
        stream: &Stream,
    ) {
        let now = net.now;
        for bytes in pieces {
            let session = self.sessions.entry(wire).or_insert_with(|| {
                Box::new(Session {
                    proto: session::Proto::new(
                        SessionId(wire as u64),
                        ncserverd::session::Config::default(),
                        now,
                    ),
                    frames: frame::Reader::new(),
                    address,
                    placed: None,
                    leaves: None,
                    draining: None,
                    resolving: Vec::new(),
                    heard_at: now,
                    wake: None,
                })
            });
            session.proto.handle_control_bytes(now, bytes.len());
            session.frames.push(&bytes);
            while let Some(session) = self.sessions.get_mut(&wire)
                && let Some(message) = session.frames.next().expect("frames are right")
            {
                session
                    .proto
                    .handle_message(now, message)
                    .expect("viewers keep the rules");
                if let Some(name) = session.proto.poll_place() {
                    session.placed = Some(Key::new(&name, session.address));
                    self.tell_of_others(wire, true);
                }
                self.resume(wire, net);
            }
        }
        // Whoever had begun to connect before leaves at once.
        let session = self.sessions.get_mut(&wire);
        if let (Some(until), Some(session)) = (self.drains, session)
            && session.leaves.is_none()
            && session.draining.is_none()
        {
            session.leaves = Some((now, until));
        }
        self.turn(wire, net, stream);
    }

    /// Another connection of the same visit replaces the one before.
    fn resume(&mut self, wire: WireId, net: &mut Net) {
        let session = self.sessions.get_mut(&wire);
        let Some(visit) = session.and_then(|session| session.proto.poll_visit()) else {
            return;
        };
        let before = self
            .visits
            .insert(visit, wire)
            .filter(|before| *before != wire);
        if let Some(before) = before.filter(|before| self.sessions.contains_key(before)) {
            let reason = "another connection of the same client replaced this one";
            self.end(before, CloseCode::Done, reason.to_owned(), net);
        }
    }

    fn end(&mut self, wire: WireId, code: CloseCode, reason: String, net: &mut Net) {
        self.sessions.remove(&wire);
        net.close(wire, Way::Down, code, reason.clone());
        self.closed.insert(wire, (code, reason));
    }

    /// The viewer has closed a connection.
    pub(crate) fn closed(&mut self, wire: WireId, net: &mut Net) {
        self.sessions.remove(&wire);
        net.forget(wire, Way::Down);
        self.closed.insert(wire, (CloseCode::Done, String::new()));
    }

    /// Tells a viewer of other servers, and sends a newcomer to the one that should serve it.
    fn tell_of_others(&mut self, wire: WireId, is_new: bool) {
        let Some(session) = self.sessions.get_mut(&wire) else {
            return;
        };
        let is_leaving = session.leaves.is_some() || session.draining.is_some();
        let Some(key) = session.placed.filter(|_| !is_leaving) else {
            return;
        };
        let is_sent = session.proto.is_sent();
        let may_send = is_new && !is_sent;
        let Advice { moves, servers } = self.fleet.advise((key, Binding::Quic), may_send);
        if is_new {
            self.counts.newcomers += u64::from(!is_sent);
            self.counts.sent_here += u64::from(is_sent);
        }
        if self.name(wire, moves, servers) {
            self.counts.sent_on += 1;
        }
    }

    /// Names other servers. Whether the viewer is sent to one of them.
    fn name(&mut self, wire: WireId, moves: bool, servers: Vec<Alternate>) -> bool {
        let Some(session) = self.sessions.get_mut(&wire) else {
            return false;
        };
        let is_sent = session.proto.name_alternates(moves, servers.clone()) && moves;
        if is_sent {
            self.fleet.count_sent(&servers);
        }
        is_sent
    }

    /// Tells a viewer to leave when it is its turn.
    fn leave_now(&mut self, wire: WireId, now: Instant) {
        let Some(session) = self.sessions.get_mut(&wire) else {
            return;
        };
        let Some((_, until)) = session.leaves.take_if(|(at, _)| *at <= now) else {
            return;
        };
        self.counts.told_to_leave.push(now);
        if let Some(key) = session.placed {
            let Advice { moves, servers } = self.fleet.elsewhere((key, Binding::Quic));
            if moves {
                self.name(wire, moves, servers);
            }
        }
        if let Some(session) = self.sessions.get_mut(&wire) {
            let left = until.saturating_duration_since(now);
            session.proto.go_away(left);
            session.draining = Some(until);
        }
    }

    /// Carries everything that is ready at a session, and notes when more is due.
    pub(crate) fn turn(&mut self, wire: WireId, net: &mut Net, stream: &Stream) {
        let now = net.now;
        self.leave_now(wire, now);
        let Some(mut session) = self.sessions.remove(&wire) else {
            return;
        };
        if session.heard_at + IDLE <= now {
            self.known.remove(&wire);
            net.forget(wire, Way::Down);
            return;
        }
        session
            .proto
            .handle_timeout(now)
            .expect("viewers keep the rules");
        self.answer(&mut session, net, stream);
        self.send_blocks(wire, &mut session, net, stream);
        let mut out = Vec::new();
        while let Some(message) = session.proto.poll_message() {
            message.encode(&mut out);
        }
        if !out.is_empty() {
            net.write(wire, Way::Down, out.into());
        }
        while session.proto.poll_stream_tally().is_some() {}
        let is_idle = session.proto.is_idle() && session.resolving.is_empty();
        if let Some(until) = session.draining
            && (is_idle || until <= now)
        {
            let others = |key| self.fleet.elsewhere((key, Binding::Quic)).servers;
            let others = session.placed.map(others).unwrap_or_default();
            let reason = elsewhere::write("the server goes away", &others);
            return self.end(wire, CloseCode::GoingAway, reason, net);
        }
        let waits = !session.proto.claims().is_empty();
        let resolving = session.resolving.iter().map(|(at, ..)| *at).min();
        let due = [
            session.proto.poll_timeout(),
            resolving,
            session.leaves.map(|(at, _)| at),
            session.draining,
            waits.then(|| net.room_at(wire)),
            Some(session.heard_at + IDLE),
        ];
        let due = due.into_iter().flatten().min().map(|due| due.max(now));
        if let Some(due) = due.filter(|due| session.wake.is_none_or(|wake| *due < wake)) {
            session.wake = Some(due);
            net.post(due, What::Session(wire));
        }
        self.sessions.insert(wire, session);
    }

    /// A session has something due.
    pub(crate) fn wake(&mut self, wire: WireId, net: &mut Net, stream: &Stream) {
        let session = self.sessions.get_mut(&wire);
        if session.is_some_and(|session| session.wake.take_if(|at| *at <= net.now).is_some()) {
            self.turn(wire, net, stream);
        }
    }

    fn answer(&mut self, session: &mut Session, net: &mut Net, stream: &Stream) {
        let now = net.now;
        let ready = session.resolving.extract_if(.., |(at, ..)| *at <= now);
        for (_, request, path) in ready.collect::<Vec<_>>() {
            let answer = match stream.at(now, &path) {
                Some(number) => Ok(stream.segment(number).resolved()),
                None if path == PLAYLIST => Ok(stream.playlist(now)),
                None => Err(unknown()),
            };
            session.proto.resolved(now, request, answer);
        }
        while let Some(event) = session.proto.poll_event() {
            match event {
                Event::Resolve(get) => {
                    let at = self.ready_at(&get.path, net, stream);
                    session.resolving.push((at, get.request, get.path));
                }
                Event::Find { ticket, id, .. } => {
                    let held = stream.find(id).map(|segment| segment.held());
                    session
                        .proto
                        .found(now, ticket, held)
                        .expect("viewers keep the rules");
                }
                Event::Checks { ticket, asked, .. } => {
                    let checks = stream.checks(&asked, net.random.random());
                    session.proto.checks(now, ticket, checks);
                }
                Event::Hashes { .. }
                | Event::Blame { .. }
                | Event::Deliver { .. }
                | Event::DeliverHashes { .. } => panic!("nobody needs this here: {event:?}"),
                // Sessions are admitted, and there is no ring.
                Event::AskAdmission
                | Event::Subscribe(_)
                | Event::Unsubscribed { .. }
                | Event::Offer { .. }
                | Event::OfferPage { .. }
                | Event::Signal { .. }
                | Event::Have(_)
                | Event::Introduce { .. }
                | Event::Lost { .. }
                | Event::Rescheduled { .. }
                | Event::Ended(_)
                | Event::Watches { .. } => {}
            }
        }
    }

    /// When the server has what is at a path: it fetches a segment when it is asked first.
    fn ready_at(&mut self, path: &str, net: &mut Net, stream: &Stream) -> Instant {
        let soon = net.now + ANSWERS;
        let Some(number) = stream.at(net.now, path) else {
            return soon;
        };
        let known = self.held.get(&number).copied();
        let at = known.unwrap_or_else(|| net.now + net.between(FETCH_MS.0, FETCH_MS.1));
        self.held.insert(number, at);
        at.max(soon)
    }

    /// Sends what requests may claim, in turn one block each, while the viewer's line has room.
    fn send_blocks(&mut self, wire: WireId, session: &mut Session, net: &mut Net, stream: &Stream) {
        session.proto.set_datagram_max(Some(DATAGRAM_MAX));
        loop {
            while session.proto.poll_want(u32::MAX).is_some() {}
            let mut is_over = true;
            for claim in session.proto.claims() {
                if net.room_at(wire) > net.now {
                    return;
                }
                let random = &mut net.random;
                let seed = self
                    .seeds
                    .entry(claim.line.generation)
                    .or_insert_with(|| random.random());
                *seed = seed.wrapping_add(1);
                let vector = Vector::Seed(*seed);
                let payload = stream.block(claim.line.generation, *seed);
                assert_eq!(claim.route, Route::Datagram, "blocks are small");
                let stamp = session
                    .proto
                    .stamp(claim.alias, &vector, claim.route)
                    .expect("the request is open");
                let mut block = stamp.header().to_vec();
                block.extend_from_slice(&payload[..stamp.payload]);
                session
                    .proto
                    .note_sent(net.now, claim.alias, 1, 1, payload.len() as u64);
                net.send(wire, Way::Down, Packet::Block(block.into()));
                self.counts.blocks += 1;
                is_over = false;
            }
            if is_over {
                return;
            }
        }
    }
}
