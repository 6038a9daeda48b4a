//! A viewer: the shipped machines of a consumer, a player, and between them and the network what
//! `ncpeer/driver.rs` and `ncpeer/driver/alternates.rs` do.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncserverd::gf::Kernels;
use ncserverd::object::{SegmentId, Shape};
use ncserverd::peer::proto::alternates::{Alternates, Health, Reach, Step};
use ncserverd::peer::proto::assembly::{Assembly, examine, join};
use ncserverd::peer::proto::{
    Answer, Config, Event, FetchId, Keys, Order, Place, Proto, Rebuilder, Secret, SourceId, Urgency,
};
use ncserverd::wire::message::{Alternate, Codecs, Delivery, Hello, Message};
use ncserverd::wire::{CloseCode, Violation, elsewhere, frame};
use rand::RngExt as _;

use crate::link::{Link, Passed, State};
use crate::net::{Net, Packet, Way, What, WireId};
use crate::stream::{PLAYLIST, Stream, path};

/// How often the player asks for the playlist, and when it tries again after an error.
const ASKS: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(200);
/// Viewers of one network.
const NETWORK: usize = 4;

pub(crate) struct Viewer {
    number: usize,
    pub(crate) address: IpAddr,
    proto: Proto,
    alternates: Alternates,
    links: BTreeMap<SourceId, Link>,
    /// Whom each server has named last.
    named: BTreeMap<SourceId, Vec<Alternate>>,
    hushed: BTreeSet<SourceId>,
    dismissed: Vec<SourceId>,
    player: Player,
    /// When it last asked for the playlist, and the newest segment in it.
    listed_at: Instant,
    newest: u64,
    wake: Option<Instant>,
    pub(crate) seen: Seen,
}

/// What a viewer does next.
enum Player {
    Waits(Instant),
    /// For the playlist, or for a segment.
    Asks(u64),
    Fetches(FetchId, Box<Assembly>),
    /// It has gone.
    Over,
}

/// What a viewer has seen, and done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    pub(crate) came: Instant,
    pub(crate) went: Option<Instant>,
    /// Its first segment, and when each one from there on was there; `None` if the playlist named
    /// it no more.
    pub(crate) first: Option<u64>,
    pub(crate) played: Vec<Option<Instant>>,
    pub(crate) wrong: u64,
    pub(crate) errors: u64,
    /// When it was connected to a server, and when not any more.
    pub(crate) changes: Vec<(Instant, usize, bool)>,
    /// When it tried servers that others had named.
    pub(crate) tried: Vec<Instant>,
    /// Handshakes that it began.
    pub(crate) handshakes: u64,
}

impl Viewer {
    /// A viewer that begins at this server.
    pub(crate) fn new(number: usize, server: usize, home: Alternate, net: &mut Net) -> Self {
        let network = u32::try_from(number / NETWORK).expect("there are few");
        let last = u32::try_from(number % NETWORK).expect("it is small");
        let seen = Seen {
            came: net.now,
            went: None,
            first: None,
            played: Vec::new(),
            wrong: 0,
            errors: 0,
            changes: Vec::new(),
            tried: Vec::new(),
            handshakes: 0,
        };
        let link = Link::new(SourceId(0), server, None, net);
        let player = Player::Waits(net.now);
        Self {
            number,
            address: IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | network << 8 | last)),
            proto: Proto::new(config()),
            alternates: Alternates::new([home]),
            links: [(SourceId(0), link)].into(),
            named: BTreeMap::new(),
            hushed: BTreeSet::new(),
            dismissed: Vec::new(),
            player,
            listed_at: net.now,
            newest: 0,
            wake: None,
            seen,
        }
    }

    /// The viewer goes.
    pub(crate) fn leave(&mut self, net: &mut Net) {
        if self.seen.went.is_some() {
            return;
        }
        self.seen.went = Some(net.now);
        self.player = Player::Over;
        for link in self.links.values_mut() {
            if let Some(wire) = link.wire() {
                net.close(wire, Way::Up, CloseCode::Done, "closed".to_owned());
            }
            link.give_up(net);
        }
        self.links.clear();
    }

    /// The servers that serve it.
    pub(crate) fn servers(&self) -> BTreeSet<usize> {
        let is_served = |link: &&Link| link.wire().is_some() && self.is_known(link.id);
        self.links
            .values()
            .filter(is_served)
            .map(|link| link.server)
            .collect()
    }

    fn is_known(&self, source: SourceId) -> bool {
        self.proto.server(source).is_some() || self.proto.is_leaving(source)
    }

    /// Whether it has this connection, or tries to make it.
    pub(crate) fn knows(&self, wire: WireId, source: SourceId) -> bool {
        let link = self.links.get(&source);
        link.is_some_and(|link| link.knows(wire))
    }

    /// Whether it waits for blocks of a segment.
    pub(crate) fn is_amid(&self) -> bool {
        matches!(self.player, Player::Fetches(..))
    }

    /// Takes a packet on a connection that it knows.
    pub(crate) fn take(
        &mut self,
        wire: WireId,
        source: SourceId,
        packet: Packet,
        net: &mut Net,
        stream: &Stream,
    ) {
        let now = net.now;
        let Some(link) = self.links.get_mut(&source) else {
            return;
        };
        link.heard(wire, now);
        let is_current = link.wire() == Some(wire);
        match packet {
            Packet::Accept if !is_current => self.connected(wire, source, net),
            Packet::Refuse if !is_current => link.refused(wire, net),
            Packet::Ack(number) => net.acknowledged(wire, Way::Up, number),
            Packet::Piece(number, bytes) if is_current => {
                for bytes in net.take(wire, Way::Down, number, bytes) {
                    self.control(source, &bytes, now);
                }
            }
            Packet::Block(bytes) if is_current => self
                .proto
                .handle_datagram(now, source, bytes)
                .expect("servers keep the rules"),
            Packet::Close(code, reason) if is_current => {
                let others = match code {
                    CloseCode::GoingAway => elsewhere::read(&reason),
                    _ => Vec::new(),
                };
                if !others.is_empty() {
                    self.told(now, source, true, others);
                }
                self.end(source, (true, code == CloseCode::GoingAway), false, net);
            }
            Packet::Reset if is_current => self.end(source, (false, true), false, net),
            _ => {}
        }
        self.turn(net, stream);
    }

    fn control(&mut self, source: SourceId, bytes: &Bytes, now: Instant) {
        let Some(up) = self.links.get_mut(&source).and_then(Link::up_mut) else {
            return;
        };
        up.frames.push(bytes);
        let mut messages = Vec::new();
        while let Some(message) = up.frames.next().expect("frames are right") {
            messages.push(message);
        }
        for message in messages {
            self.proto
                .handle_message(now, source, message)
                .expect("servers keep the rules");
        }
    }

    /// A server has named others, and may want the viewer to go to one of them.
    fn told(&mut self, now: Instant, by: SourceId, moves: bool, servers: Vec<Alternate>) {
        self.named.insert(by, servers.clone());
        self.alternates.told(now, by, moves, servers);
    }

    /// The servers that it may turn to: its own, those in use, and those that these have named.
    pub(crate) fn known(&self, net: &Net) -> BTreeSet<usize> {
        let used = self.links.values().map(|link| link.server);
        let named = self.named.values().flatten();
        used.chain(named.map(|server| net.site(server))).collect()
    }

    /// A handshake is complete.
    fn connected(&mut self, wire: WireId, source: SourceId, net: &mut Net) {
        let is_up = |link: &Link| link.wire().is_some();
        if self.links.get(&source).is_some_and(is_up) {
            // The connection was silent, and this one was answered first.
            self.end(source, (false, true), true, net);
        }
        let Some(link) = self.links.get_mut(&source) else {
            return;
        };
        if matches!(link.state, State::Over) {
            return net.forget(wire, Way::Up);
        }
        link.accepted(wire, net);
        self.proto.handle_connected(net.now, source, None);
    }

    /// Ends a connection. `soon`: the server has ended it on purpose.
    fn end(
        &mut self,
        source: SourceId,
        (soon, is_outage): (bool, bool),
        is_replaced: bool,
        net: &mut Net,
    ) {
        let was_known = self.is_known(source);
        let Some(link) = self.links.get_mut(&source) else {
            return;
        };
        let Some(wire) = link.wire() else { return };
        if was_known {
            self.seen.changes.push((net.now, link.server, false));
        }
        net.close(wire, Way::Up, CloseCode::Done, String::new());
        link.end(soon, is_replaced, net);
        self.hushed.remove(&source);
        // However it ends, a server that was left is not connected again.
        if self.alternates.has_left(source) {
            link.give_up(net);
        }
        self.proto.handle_disconnected(net.now, source, is_outage);
    }

    /// The viewer has something due.
    pub(crate) fn wake(&mut self, net: &mut Net, stream: &Stream) {
        if self.wake.take_if(|at| *at <= net.now).is_some() {
            self.turn(net, stream);
        }
    }

    /// Does all that is due, and notes when more is.
    pub(crate) fn turn(&mut self, net: &mut Net, stream: &Stream) {
        if self.seen.went.is_some() {
            return;
        }
        self.pass(net);
        self.play(net.now);
        self.exchange(net, stream);
        self.find_servers(net);
        self.dismiss(net);
        // What was decided last may have more to send.
        self.exchange(net, stream);
        let player = match self.player {
            Player::Waits(at) => Some(at),
            _ => None,
        };
        let listens = self.links.values().filter_map(Link::listens_at);
        let listens = listens.filter(|_| self.alternates.are_known());
        let due = self
            .links
            .values()
            .filter_map(Link::due)
            .chain(listens)
            .chain(
                [self.proto.poll_timeout(), self.alternates.due(), player]
                    .into_iter()
                    .flatten(),
            )
            .min()
            .map(|due| due.max(net.now));
        if let Some(due) = due.filter(|due| self.wake.is_none_or(|wake| *due < wake)) {
            self.wake = Some(due);
            net.post(due, What::Viewer(self.number));
        }
    }

    fn pass(&mut self, net: &mut Net) {
        let now = net.now;
        for source in self.links.keys().copied().collect::<Vec<_>>() {
            let Some(link) = self.links.get_mut(&source) else {
                continue;
            };
            let before = link.begun();
            let passed = link.pass(self.number, net);
            self.seen.handshakes += link.begun() - before;
            match passed {
                Some(Passed::Silence(is_silent)) => self.proto.set_silent(source, is_silent),
                Some(Passed::Idle) => self.end(source, (false, true), false, net),
                Some(Passed::NotConnected) => {
                    let reason = "it does not answer".to_owned();
                    self.proto.note_trouble(now, source, reason);
                }
                None => {}
            }
        }
        while let Err((source, violation)) = self.proto.handle_timeout(now) {
            // A server that has fallen silent says no HELLO.
            let is_late = matches!(violation, Violation::Timeout(_));
            assert!(is_late, "servers keep the rules: {violation}");
            self.end(source, (true, false), false, net);
        }
    }

    /// Sends what the machine says, and takes its events.
    fn exchange(&mut self, net: &mut Net, stream: &Stream) {
        let mut over = Vec::new();
        for link in self.links.values() {
            let (source, visit, is_sent) = (link.id, Some(link.visit), link.is_sent);
            let Some(wire) = link.wire() else { continue };
            self.proto.set_rtt(source, net.rtt(wire));
            let mut out = Vec::new();
            while let Some(message) = self.proto.poll_message(net.now, source) {
                match message {
                    Message::Hello(hello) => {
                        let hello = Hello {
                            visit,
                            is_sent,
                            ..hello
                        };
                        frame::encode_greeting(&hello, net.random.random(), &mut out);
                    }
                    other => other.encode(&mut out),
                }
            }
            if !out.is_empty() {
                net.write(wire, Way::Up, out.into());
            } else if self.proto.is_leaving(source) && self.proto.is_quiet_at(source) {
                over.push(source);
            }
        }
        while let Some(event) = self.proto.poll_event() {
            self.happened(event, net.now, stream);
        }
        for source in over {
            if !self.alternates.waits_at(source) {
                self.end(source, (true, true), false, net);
            }
        }
    }

    fn happened(&mut self, event: Event, now: Instant, stream: &Stream) {
        match event {
            Event::Ready(source) => {
                let server = self.links[&source].server;
                self.seen.changes.push((now, server, true));
            }
            Event::Answered { request, answer } => {
                if matches!(self.player, Player::Asks(asked) if asked == request) {
                    match answer {
                        Ok(answer) => self.answered(answer, now),
                        Err(_) => self.failed(now),
                    }
                }
            }
            Event::Decoded { fetch, decoder } => self.decoded(fetch, *decoder, now, stream),
            Event::Failed { fetch, .. } => {
                if matches!(&self.player, Player::Fetches(fetched, _) if *fetched == fetch) {
                    self.failed(now);
                }
            }
            Event::Alternates {
                source,
                moves,
                servers,
            } => self.told(now, source, moves, servers),
            Event::Polluter(_) => self.seen.wrong += 1,
            Event::GoingAway(_) => {}
            Event::Test(_)
            | Event::Brought { .. }
            | Event::Checked { .. }
            | Event::Hashed { .. }
            | Event::Peers { .. }
            | Event::Page { .. }
            | Event::Pages { .. }
            | Event::Signal { .. }
            | Event::TokenRefused(_)
            | Event::Announced { .. }
            | Event::Unsubscribed { .. } => panic!("nobody causes this here: {event:?}"),
        }
    }

    fn failed(&mut self, now: Instant) {
        self.seen.errors += 1;
        self.player = Player::Waits(now + RETRY);
    }

    fn play(&mut self, now: Instant) {
        if matches!(self.player, Player::Waits(at) if at <= now) {
            self.listed_at = now;
            self.player = Player::Asks(self.proto.get(now, PLAYLIST, 0, None));
        }
    }

    fn answered(&mut self, answer: Answer, now: Instant) {
        if let Some(bytes) = answer.bytes {
            let text = String::from_utf8(bytes.to_vec()).expect("a playlist is text");
            let mut named = text.lines().filter_map(|line| line.strip_suffix(".ts"));
            let oldest: u64 = named
                .next()
                .and_then(|number| number.parse().ok())
                .expect("it names some");
            self.newest = oldest + named.count() as u64;
            self.seen.first.get_or_insert(self.newest);
            // What the playlist names no more was missed.
            while self.next() < oldest {
                self.seen.played.push(None);
            }
            return self.go_on(now);
        }
        let Delivery::Coded(shape) = answer.meta.delivery else {
            panic!("a segment is coded");
        };
        let order = Order {
            segment: answer.meta.id,
            shape,
            proof: None,
            deadline: None,
            urgency: Urgency::Now,
        };
        let place = Place {
            path: answer.meta.path,
            offset: 0,
            length: None,
        };
        let fetch = self.proto.fetch(now, order, Some(place));
        let assembly = Assembly::new(order.segment, shape, None);
        self.player = Player::Fetches(fetch, Box::new(assembly));
    }

    fn next(&self) -> u64 {
        self.seen.first.unwrap_or_default() + self.seen.played.len() as u64
    }

    /// Asks for the next segment, or for the playlist when there is none.
    fn go_on(&mut self, now: Instant) {
        self.player = match self.next() {
            next if next <= self.newest => Player::Asks(self.proto.get(now, &path(next), 0, None)),
            _ => Player::Waits((self.listed_at + ASKS).max(now)),
        };
    }

    fn decoded(&mut self, fetch: FetchId, decoder: Rebuilder, now: Instant, stream: &Stream) {
        let Player::Fetches(fetched, assembly) = &mut self.player else {
            return;
        };
        if *fetched != fetch {
            return;
        }
        let generation = *decoder.generation();
        let bytes = decoder.into_bytes_of_bytes().ok().map(Bytes::from);
        let taken = assembly.take(examine(&generation, bytes, None));
        for settled in taken.settled {
            self.proto.settle(fetch, settled);
        }
        if !assembly.awaits_proof() {
            return;
        }
        let bytes = join(&assembly.parts().unwrap_or_default());
        let is_right = SegmentId::of_coded(&bytes, generation.codec) == assembly.id();
        let comes_again = self.proto.confirm(now, fetch, is_right);
        if !is_right {
            self.seen.wrong += 1;
            match comes_again {
                true => assembly.forget(),
                false => self.failed(now),
            }
            return;
        }
        self.seen.wrong += u64::from(bytes != stream.segment(self.next()).bytes);
        self.seen.played.push(Some(now));
        self.go_on(now);
    }

    /// Looks how the servers are, and turns to others where that is needed.
    fn find_servers(&mut self, net: &mut Net) {
        let is_quiet = !self.alternates.are_known() && !self.alternates.are_used();
        if is_quiet && self.hushed.is_empty() {
            return;
        }
        let mut health = Vec::new();
        for source in self.links.keys().copied().collect::<Vec<_>>() {
            let is_mute = self.is_mute(source, net);
            if is_mute && self.alternates.has_left(source) {
                // Others are asked for what it still owes.
                self.end(source, (true, true), false, net);
            }
            if !self.alternates.rests(source) {
                health.push((source, self.health(source, is_mute)));
            }
        }
        let is_connected = |source| self.links[&source].wire().is_some();
        self.proto.hush(&mut self.hushed, &health, is_connected);
        for step in self.alternates.look(net.now, &health) {
            self.carry_out(step, net);
        }
    }

    fn is_mute(&mut self, source: SourceId, net: &mut Net) -> bool {
        // One that is not known yet owes HELLO.
        let owes = !self.is_known(source) || self.proto.owes(source);
        let link = self.links.get_mut(&source);
        link.is_some_and(|link| link.is_mute(owes, net))
    }

    fn health(&self, source: SourceId, is_mute: bool) -> Health {
        let link = &self.links[&source];
        let reach = match link.wire() {
            Some(_) => Reach::Connected { is_mute },
            None if link.is_down() || !self.alternates.is_one(source) => Reach::Down,
            None => Reach::Coming,
        };
        self.proto.health(source, reach)
    }

    fn carry_out(&mut self, step: Step, net: &mut Net) {
        match step {
            Step::Open { source, server, by } => {
                let site = net.site(&server);
                let near = self.links.get(&by).and_then(Link::wire);
                let rtt = near.map(|wire| net.rtt(wire));
                self.seen.tried.push(net.now);
                let link = Link::new(source, site, Some(rtt), net);
                self.links.insert(source, link);
            }
            Step::Forget(source) => self.dismissed.push(source),
            Step::Leave(source) => {
                self.proto.leave_source(source);
                let is_leaving = self.proto.is_leaving(source);
                let Some(link) = self.links.get_mut(&source) else {
                    return;
                };
                match link.wire().is_some() {
                    true if is_leaving && !self.proto.is_quiet_at(source) => {}
                    // It owes nothing; perhaps it takes no requests yet.
                    true => self.end(source, (true, true), false, net),
                    false => link.give_up(net),
                }
            }
            Step::Rest(source) => {
                if let Some(link) = self.links.get_mut(&source) {
                    link.give_up(net);
                }
            }
            Step::Resume(source) => {
                if let Some(link) = self.links.get_mut(&source) {
                    link.resume(net.now);
                }
            }
        }
    }

    /// Forgets former alternates.
    fn dismiss(&mut self, net: &mut Net) {
        for source in std::mem::take(&mut self.dismissed) {
            self.end(source, (true, false), false, net);
            if let Some(mut link) = self.links.remove(&source) {
                link.give_up(net);
            }
            self.proto.remove_source(source);
            self.hushed.remove(&source);
            self.named.remove(&source);
        }
    }
}

/// The settings of a program that plays, which are the defaults of `ncpeer`.
fn config() -> Config {
    Config {
        hello: Hello {
            codecs: Codecs::ALL,
            n_max: Shape::N_LIMIT,
            block_bytes_max: Shape::BLOCK_BYTES_MAX,
            segment_bytes_max: Shape::LENGTH_MAX,
            requests_max: 0,
            credit_max: 0,
            ..Hello::defaults()
        },
        datagrams: true,
        requests_max: 64,
        window_min: 256 << 10,
        window_max: 16 << 20,
        hello_timeout: Duration::from_secs(10),
        answer_timeout: Duration::from_secs(30),
        stall_timeout: Duration::from_secs(30),
        rate_min: 1024,
        kernels: Kernels::detect(),
        gathers: false,
        tells: false,
        keys: Keys::default(),
        tests_max: 2,
        rows_max: 128 << 20,
        secret: Secret::new([1; 32]),
    }
}
