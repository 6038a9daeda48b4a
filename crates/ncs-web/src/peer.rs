//! The peer: connections in, messages and verified bytes out.

mod servers;
#[cfg(feature = "share")]
mod share;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use ncs_gf::Kernels;
use ncs_proto::integrity::signing::StreamKey;
use ncs_proto::object::{SegmentId, Shape};
use ncs_proto::peer::assembly::{Assembly, Taken as Assembled, examine, join};
use ncs_proto::peer::{
    self as proto, Answer, Failure, FetchId, Keys, Order, Place, Proof, Proto, Rebuilder, Secret,
    SourceId, StreamEnd, Urgency,
};
use ncs_proto::sorted::SortedMap;
use ncs_proto::time::Instant;
use ncs_proto::wire::frame::Reader;
use ncs_proto::wire::message::{
    Alternate, Codecs, Credential, Delivery, Hello, Meant, Message, Meta, Token, VisitId, is_path,
    is_stream_name, is_token,
};
use ncs_proto::wire::{CloseCode, Violation, frame};

use self::servers::Servers;
use crate::read::{Next, Question, Read, Taken, WRONG, is_right};
#[cfg(feature = "share")]
pub use share::{LinkId, SharedCounts};
#[cfg(feature = "share")]
use share::{Share, link_of};

/// The name of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u32);

/// What has happened.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A server has sent HELLO.
    Ready(SourceId),
    /// A read has its first answer.
    Opened {
        /// The read.
        read: ReadId,
        /// Bytes of the object, if known.
        length: Option<u64>,
        /// Its media type; may be empty.
        content_type: String,
    },
    /// The next verified bytes of a read, in order.
    Bytes(ReadId, Bytes),
    /// A read has had all of its bytes.
    Ended(ReadId),
    /// A read has failed. The bytes so far are right.
    Failed {
        /// The read.
        read: ReadId,
        /// Why.
        reason: String,
    },
    /// A subscribed stream has a new object at this path.
    Announced {
        /// The subscription.
        request: u64,
        /// The path.
        path: String,
    },
    /// A subscription has ended.
    Unsubscribed {
        /// The subscription.
        request: u64,
        /// Why.
        reason: String,
    },
    /// A server has rejected the token.
    TokenRefused(SourceId),
    /// A server takes no new requests.
    GoingAway(SourceId),
    /// The connection is to be closed, because the server has broken the rules.
    Close {
        /// The server.
        source: SourceId,
        /// With this code.
        code: CloseCode,
        /// And this reason.
        reason: String,
        /// Whether it lies, and is not to be connected again.
        is_polluter: bool,
    },
    /// A server that another one has named is to be connected. If that may not be, its connection
    /// ends at once.
    Open {
        /// What it is called from now on.
        source: SourceId,
        /// Where it is.
        server: Alternate,
        /// Who has named it.
        by: SourceId,
    },
    /// A server is to be closed with DONE, if it is connected, and not to be connected again.
    Rest(SourceId),
    /// A server is to be connected again.
    Resume(SourceId),
    /// A server that another one has named is of no use any more.
    Forget(SourceId),
    /// A link with another page is to be made. True: this page is the caller if both call at once.
    #[cfg(feature = "share")]
    Call(LinkId, bool),
    /// The page of a link says something, through the server. True: as above.
    #[cfg(feature = "share")]
    Signal(LinkId, bool, Bytes),
    /// A link is to be ended.
    #[cfg(feature = "share")]
    HangUp(LinkId),
}

/// A peer without I/O. After any call that puts something in, poll
/// [`poll_messages`](Peer::poll_messages) of every source and [`poll_stop`](Peer::poll_stop), then
/// [`poll_event`](Peer::poll_event), then read [`poll_timeout`](Peer::poll_timeout).
#[derive(Debug)]
pub struct Peer {
    proto: Proto,
    sources: SortedMap<SourceId, Source>,
    servers: Servers,
    reads: SortedMap<ReadId, Read>,
    next_read: u32,
    gets: SortedMap<u64, ReadId>,
    fetches: SortedMap<FetchId, ReadId>,
    events: VecDeque<Event>,
    #[cfg(feature = "share")]
    share: Option<Share>,
}

#[derive(Debug)]
struct Source {
    frames: Reader,
    /// None of a page, whose connections are no visits.
    visit: Option<VisitId>,
    grease: u32,
    heard_at: Instant,
    /// When it was first asked for something since then.
    asked_at: Option<Instant>,
    probe: Probe,
}

/// A question that a server answers at once. A page does not see what QUIC acknowledges, so nothing
/// else tells a server that is slow from one that is gone.
#[derive(Debug)]
struct Probe {
    /// How long it owes an answer and is silent before it is asked. It grows with each probe that
    /// brings nothing else.
    patience: Duration,
    is_due: bool,
    asked_at: Option<Instant>,
}

impl Probe {
    const NONE: Self = Self {
        patience: PROBED_AFTER,
        is_due: false,
        asked_at: None,
    };
}

impl Peer {
    /// A peer without servers. `secret` is random; `window_max` bounds the bytes that are requested
    /// and have not come.
    pub fn new(secret: [u8; 32], window_max: u64) -> Self {
        Self::with(secret, window_max, false)
    }

    /// The same; `shares`: it passes on what comes.
    fn with(secret: [u8; 32], window_max: u64, shares: bool) -> Self {
        let hello = Hello {
            codecs: Codecs {
                gfq: false,
                ..Codecs::ALL
            },
            n_max: Shape::N_LIMIT,
            block_bytes_max: Shape::BLOCK_BYTES_MAX,
            segment_bytes_max: SEGMENT_MAX,
            // On these connections a page serves nothing.
            requests_max: 0,
            credit_max: 0,
            agent: concat!("ncs-web/", env!("CARGO_PKG_VERSION")).to_owned(),
            ..Hello::defaults()
        };
        let proto = Proto::new(proto::Config {
            hello,
            datagrams: true,
            requests_max: 64,
            window_min: WINDOW_MIN.min(window_max),
            window_max,
            hello_timeout: PATIENCE,
            answer_timeout: PATIENCE,
            stall_timeout: STALLED,
            rate_min: RATE_MIN,
            kernels: Kernels::detect(),
            gathers: false,
            tells: shares,
            keys: Keys::default(),
            tests_max: 1,
            rows_max: ROWS_MAX,
            secret: Secret::new(secret),
        });
        Self {
            proto,
            sources: SortedMap::new(),
            servers: Servers::new(),
            reads: SortedMap::new(),
            next_read: 0,
            gets: SortedMap::new(),
            fetches: SortedMap::new(),
            events: VecDeque::new(),
            #[cfg(feature = "share")]
            share: None,
        }
    }

    /// Pins the key of every stream, `key`, or of one, `name=key`: 64 hexadecimal digits. Returns
    /// whether it is one.
    pub fn pin(&mut self, text: &str) -> bool {
        let (stream, key) = match text.rsplit_once('=') {
            Some((stream, key)) => (Some(stream.to_owned()), key),
            None => (None, text),
        };
        let is_name = stream.as_deref().is_none_or(is_stream_name);
        match key.parse::<StreamKey>() {
            Ok(key) if is_name => self.proto.pin(stream, key),
            _ => return false,
        }
        true
    }

    /// A server is connected. `visit` is random, and the same for all connections to this server;
    /// `grease` is any number. A token that cannot be one is not shown.
    pub fn connected(
        &mut self,
        now: Instant,
        source: SourceId,
        token: Option<String>,
        visit: [u8; 16],
        grease: u32,
    ) {
        let token = token.filter(|token| is_token(token));
        let credential = token.map(|token| Credential::Token(Token(token)));
        self.connect(now, source, credential, Some(VisitId(visit)), grease);
    }

    /// A source is connected, which is a server or, without a visit, a page.
    fn connect(
        &mut self,
        now: Instant,
        source: SourceId,
        credential: Option<Credential>,
        visit: Option<VisitId>,
        grease: u32,
    ) {
        let frames = Reader::new();
        self.servers.connected(source);
        self.sources.insert(
            source,
            Source {
                frames,
                visit,
                grease,
                heard_at: now,
                asked_at: None,
                probe: Probe::NONE,
            },
        );
        self.proto.handle_connected(now, source, credential);
    }

    /// A connection, or an attempt to make one, has ended. `is_outage`: it has fallen silent, or
    /// the server goes away.
    pub fn disconnected(&mut self, now: Instant, source: SourceId, is_outage: bool) {
        if self.servers.disconnected(source) {
            self.events.push_back(Event::Rest(source));
        }
        if self.sources.remove(&source).is_some() {
            self.proto.handle_disconnected(now, source, is_outage);
        }
    }

    /// The round-trip time to a server, as QUIC measures it. Without it, answers tell.
    pub fn set_rtt(&mut self, source: SourceId, rtt: Duration) {
        self.proto.set_rtt(source, rtt);
    }

    /// Something has come from a server.
    fn heard(&mut self, now: Instant, source: SourceId) {
        let Some(known) = self.sources.get_mut(&source) else {
            return;
        };
        (known.heard_at, known.asked_at) = (now, None);
        if known.probe.asked_at.take().is_some() {
            known.probe.patience = PROBED_AFTER_MAX.min(2 * known.probe.patience);
        }
        self.proto.set_silent(source, false);
    }

    /// A part of what it owes has come.
    fn heard_bytes(&mut self, now: Instant, source: SourceId) {
        self.heard(now, source);
        if let Some(known) = self.sources.get_mut(&source) {
            known.probe = Probe::NONE;
        }
    }

    /// This page passes nothing on.
    #[cfg(not(feature = "share"))]
    fn take_shared(&mut self, _: Instant, _: proto::Event) {}

    /// Whether it draws on other pages.
    fn shares(&self) -> bool {
        #[cfg(feature = "share")]
        return self.share.is_some();
        #[cfg(not(feature = "share"))]
        return false;
    }

    /// Servers that owe answers, and when they are probed, or count as silent, unless something
    /// comes.
    fn silences(&self) -> impl Iterator<Item = (SourceId, Instant)> {
        let shares = self.shares();
        let servers = self.sources.values().filter(|known| known.visit.is_some());
        // What pages are asked for is not asked of a server until they have had their time. So a
        // server that has sent all it was asked for has nothing to say, and is not left for them.
        let is_one_of_several = servers.count() > 1 || self.servers.are_known();
        let owes = move |(source, known): &(&SourceId, &Source)| {
            known.visit.is_some()
                && !self.proto.is_silent(**source)
                && (!shares || (is_one_of_several && known.asked_at.is_some()))
                && self.proto.owes(**source)
        };
        self.sources.iter().filter(owes).map(|(source, known)| {
            let since = known.asked_at.unwrap_or(known.heard_at);
            let due = match known.probe.asked_at {
                Some(at) => {
                    let rtt = self.proto.source_counts(*source).rtt.unwrap_or_default();
                    at + (SILENCE - PROBED_AFTER).max(2 * rtt)
                }
                None if self.servers.are_known() => since + known.probe.patience,
                None => since + SILENCE,
            };
            (*source, due)
        })
    }

    /// Takes bytes of a server's control stream.
    pub fn control(&mut self, now: Instant, source: SourceId, bytes: &[u8]) {
        self.heard(now, source);
        let Some(known) = self.sources.get_mut(&source) else {
            return;
        };
        known.frames.push(bytes);
        loop {
            let next = match self.sources.get_mut(&source) {
                Some(known) => known.frames.next(),
                None => return,
            };
            let taken = match next {
                Ok(Some(message)) => self.proto.handle_message(now, source, message),
                Ok(None) => return,
                Err(violation) => Err(violation),
            };
            if let Err(violation) = taken {
                return self.close(now, source, violation);
            }
        }
    }

    /// Takes a datagram of a server.
    pub fn datagram(&mut self, now: Instant, source: SourceId, bytes: Bytes) {
        self.heard_bytes(now, source);
        if let Err(violation) = self.proto.handle_datagram(now, source, bytes) {
            self.close(now, source, violation);
        }
    }

    /// Takes bytes of a stream of a server; `stream` is any number that names it.
    pub fn stream(&mut self, now: Instant, source: SourceId, stream: u64, bytes: &[u8]) {
        self.heard_bytes(now, source);
        if let Err(violation) = self.proto.handle_stream(now, source, stream, bytes) {
            self.close(now, source, violation);
        }
    }

    /// A stream of a server has ended, or was reset with this code of section 9.
    pub fn stream_end(&mut self, now: Instant, source: SourceId, stream: u64, reset: Option<u64>) {
        let end = reset.map_or(StreamEnd::Finished, StreamEnd::Reset);
        if let Err(violation) = self.proto.handle_stream_end(source, stream, end) {
            self.close(now, source, violation);
        }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Err((source, violation)) = self.proto.handle_timeout(now) {
            self.close(now, source, violation);
        }
        let silent: Vec<SourceId> = self
            .silences()
            .filter(|(_, at)| *at <= now)
            .map(|(source, _)| source)
            .collect();
        for source in silent {
            let is_known = self.servers.are_known();
            match self.sources.get_mut(&source) {
                Some(known) if is_known && known.probe.asked_at.is_none() => {
                    (known.probe.is_due, known.probe.asked_at) = (true, Some(now));
                }
                _ => self.proto.set_silent(source, true),
            }
        }
        let late: Vec<ReadId> = self
            .reads
            .iter()
            .filter(|(_, read)| read.deadline.is_some_and(|deadline| deadline <= now))
            .map(|(id, _)| *id)
            .collect();
        for read in late {
            self.fail(read, "the deadline has passed");
        }
        #[cfg(feature = "share")]
        self.handle_shared_timeout(now);
    }

    /// When [`Peer::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let reads = self.reads.values();
        let reads =
            reads.filter_map(|read| [read.due(), read.deadline].into_iter().flatten().min());
        let silences = self.silences().map(|(_, at)| at);
        let due = [
            reads.min(),
            silences.min(),
            self.servers.due(),
            self.proto.poll_timeout(),
            #[cfg(feature = "share")]
            self.share.as_ref().and_then(Share::poll_timeout),
        ];
        due.into_iter().flatten().min()
    }

    /// Reads these bytes of an object, once its reader has room ([`Peer::set_room`]). `None`: this
    /// is no path, or no byte.
    pub fn read(
        &mut self,
        path: &str,
        range: Range<u64>,
        deadline: Option<Instant>,
    ) -> Option<ReadId> {
        if !is_path(path) || range.is_empty() {
            return None;
        }
        let id = ReadId(self.next_read);
        self.next_read = self.next_read.wrapping_add(1);
        self.reads
            .insert(id, Read::new(path.to_owned(), range, deadline));
        Some(id)
    }

    /// The reader now has room for so many bytes, less what is handed on from here on. Without room
    /// nothing is handed on, and a few parts are fetched ahead.
    pub fn set_room(&mut self, id: ReadId, bytes: u64) {
        if let Some(read) = self.reads.get_mut(&id) {
            read.set_room(bytes);
        }
    }

    /// Ends a read that is not wanted any more.
    pub fn cancel(&mut self, id: ReadId) {
        let Some(read) = self.reads.remove(&id) else {
            return;
        };
        if let Question::Asked(get) | Question::Confirming(get, _) = read.question {
            self.gets.remove(&get);
            self.proto.cancel_get(get);
        }
        for fetch in read.fetches() {
            self.fetches.remove(&fetch);
            self.proto.cancel_fetch(fetch);
        }
    }

    /// Subscribes to the objects that a stream gets.
    pub fn subscribe(&mut self, stream: &str) -> u64 {
        self.proto.subscribe(stream)
    }

    /// Ends a subscription.
    pub fn unsubscribe(&mut self, request: u64) {
        self.proto.unsubscribe(request);
    }

    /// Bytes for a server's control stream.
    pub fn poll_messages(&mut self, now: Instant, source: SourceId) -> Vec<u8> {
        self.advance(now);
        let mut out = Vec::new();
        let Some(known) = self.sources.get_mut(&source) else {
            return out;
        };
        let (visit, grease) = (known.visit, known.grease);
        if std::mem::take(&mut known.probe.is_due) {
            let question = Message::GetHashes {
                request: PROBE,
                segment: NO_SEGMENT,
                meant: Meant::LastNamed,
            };
            question.encode(&mut out);
        }
        while let Some(message) = self.proto.poll_message(now, source) {
            if let Message::Get(_) | Message::Request(_) | Message::Credit { .. } = message {
                known.asked_at.get_or_insert(now);
            }
            match message {
                Message::Hello(hello) => {
                    let hello = Hello {
                        visit,
                        is_sent: self.servers.is_alternate(source),
                        ..hello
                    };
                    frame::encode_greeting(&hello, grease, &mut out);
                }
                other => other.encode(&mut out),
            }
        }
        out
    }

    /// A stream of a server to refuse, with STOP_SENDING and DONE.
    pub fn poll_stop(&mut self, source: SourceId) -> Option<u64> {
        self.proto.poll_stop(source)
    }

    /// The next event.
    pub fn poll_event(&mut self, now: Instant) -> Option<Event> {
        self.advance(now);
        self.look(now);
        self.events.pop_front()
    }

    /// Innovative, redundant and lost blocks of all servers so far, and generations decoded.
    pub fn counts(&self) -> proto::Counts {
        self.proto.counts()
    }

    /// Blocks of one server so far, and the present state of the path to it.
    pub fn source_counts(&self, source: SourceId) -> proto::SourceCounts {
        self.proto.source_counts(source)
    }

    /// Rank and size of the generations under way.
    pub fn progress(&self) -> Vec<proto::Progress> {
        self.proto.progress()
    }

    /// Carries out what the machine has decided, and what reads need.
    fn advance(&mut self, now: Instant) {
        loop {
            while let Some(event) = self.proto.poll_event() {
                self.take(now, event);
            }
            self.give_up_on_incomplete();
            let reads: Vec<ReadId> = self.reads.keys().copied().collect();
            let mut is_asked = false;
            for id in reads {
                is_asked |= self.carry_on(now, id);
            }
            if !is_asked {
                return;
            }
        }
    }

    /// Returns whether something was asked.
    fn carry_on(&mut self, now: Instant, id: ReadId) -> bool {
        let mut is_asked = false;
        while let Some(read) = self.reads.get_mut(&id) {
            match read.next(now) {
                None => break,
                Some(Next::Bytes(bytes)) => self.events.push_back(Event::Bytes(id, bytes)),
                Some(Next::Get(offset, length)) => {
                    let get = self.proto.get(now, &read.path, offset, length);
                    read.question = Question::Asked(get);
                    self.gets.insert(get, id);
                    is_asked = true;
                }
                Some(Next::Ended) => {
                    self.reads.remove(&id);
                    self.events.push_back(Event::Ended(id));
                }
            }
        }
        is_asked
    }

    fn take(&mut self, now: Instant, event: proto::Event) {
        match event {
            proto::Event::Ready(source) => self.events.push_back(Event::Ready(source)),
            proto::Event::Answered { request, answer } => self.answered(now, request, answer),
            proto::Event::Announced { request, meta } => self.events.push_back(Event::Announced {
                request,
                path: meta.path,
            }),
            proto::Event::Unsubscribed { request, refusal } => {
                self.events.push_back(Event::Unsubscribed {
                    request,
                    reason: refusal.reason,
                });
            }
            proto::Event::Decoded { fetch, decoder } => self.decoded(now, fetch, *decoder),
            proto::Event::Failed { fetch, failure } => self.fetch_failed(now, fetch, failure),
            proto::Event::TokenRefused(source) => {
                self.events.push_back(Event::TokenRefused(source));
            }
            proto::Event::GoingAway(source) => self.events.push_back(Event::GoingAway(source)),
            #[cfg(feature = "share")]
            proto::Event::Polluter(source) if self.take_liar(now, source) => {}
            proto::Event::Polluter(source) => {
                self.servers.ban(now, source);
                self.events.push_back(Event::Close {
                    source,
                    code: CloseCode::Pollution,
                    reason: "it has sent what is wrong".to_owned(),
                    is_polluter: true,
                });
                self.disconnected(now, source, false);
            }
            proto::Event::Alternates {
                source,
                moves,
                servers,
            } => self.servers.told(now, source, moves, servers),
            // A page has no neighbours with addresses, and no code over the prime field.
            proto::Event::Hashed { .. } | proto::Event::Test(_) | proto::Event::Peers { .. } => {}
            news @ (proto::Event::Brought { .. }
            | proto::Event::Checked { .. }
            | proto::Event::Page { .. }
            | proto::Event::Pages { .. }
            | proto::Event::Signal { .. }) => self.take_shared(now, news),
        }
    }

    fn answered(&mut self, now: Instant, request: u64, answer: Result<Answer, Failure>) {
        let Some(id) = self.gets.remove(&request) else {
            return;
        };
        let Some(read) = self.reads.get_mut(&id) else {
            return;
        };
        let question = std::mem::replace(&mut read.question, Question::Over);
        let taken = match (answer, question) {
            (Err(failure), _) => {
                if let Err(unfit) = read.question_failed(now, failure) {
                    self.fail(id, &unfit);
                }
                return;
            }
            (Ok(answer), _) if !is_right(&answer) => {
                return self.fail(id, WRONG);
            }
            (Ok(before), Question::Confirming(_, answer)) => read.confirmed(&before.meta, *answer),
            (Ok(answer), _) => {
                if read.is_new() {
                    self.events.push_back(Event::Opened {
                        read: id,
                        length: answer.meta.object_length,
                        content_type: answer.meta.content_type.clone(),
                    });
                }
                read.answered(answer)
            }
        };
        match taken {
            Err(unfit) => self.fail(id, &unfit),
            Ok(Taken::Whole) => {}
            Ok(Taken::Fetch(meta)) => self.fetch(now, id, &meta),
            Ok(Taken::Confirm((offset, length, source), answer)) => {
                let path = read.path.clone();
                let get = self
                    .proto
                    .get_of(now, (source, false), &path, offset, Some(length));
                self.gets.insert(get, id);
                if let Some(read) = self.reads.get_mut(&id) {
                    read.question = Question::Confirming(get, answer);
                }
            }
        }
    }

    fn fetch(&mut self, now: Instant, id: ReadId, meta: &Meta) {
        let (Delivery::Coded(shape), Some(read)) = (&meta.delivery, self.reads.get_mut(&id)) else {
            return;
        };
        let order = Order {
            segment: meta.id,
            shape: *shape,
            proof: Proof::of(meta),
            deadline: read.deadline,
            urgency: Urgency::Now,
        };
        let place = Place {
            path: meta.path.clone(),
            offset: meta.offset,
            length: Some(meta.length),
        };
        let fetch = self.proto.fetch(now, order, Some(place));
        #[cfg(feature = "share")]
        if let Some(share) = &mut self.share {
            share.retain(|fetch| self.fetches.contains_key(fetch));
            share.begin(now, fetch, meta, order.cut());
        }
        let assembly = Assembly::new(meta.id, *shape, meta.tree.clone());
        read.fetching(meta.offset, fetch, assembly);
        self.fetches.insert(fetch, id);
    }

    fn decoded(&mut self, now: Instant, fetch: FetchId, decoder: Rebuilder) {
        let Some(id) = self.fetches.get(&fetch).copied() else {
            return;
        };
        let Some(assembly) = self
            .reads
            .get_mut(&id)
            .and_then(|read| read.assembly(fetch))
        else {
            return;
        };
        let generation = *decoder.generation();
        let bytes = decoder.into_bytes_of_bytes().ok().map(Bytes::from);
        let examined = examine(&generation, bytes, assembly.tree());
        let Assembled {
            refuted,
            settled,
            released: (_, mut pieces),
        } = assembly.take(examined);
        let mut is_proven = assembly.is_proven();
        let mut comes_again = true;
        if assembly.awaits_proof() {
            let bytes = join(&assembly.parts().unwrap_or_default());
            is_proven = SegmentId::of_coded(&bytes, generation.codec) == assembly.id();
            comes_again = self.proto.confirm(now, fetch, is_proven);
            match is_proven {
                true => pieces = vec![bytes],
                false => assembly.forget(),
            }
        } else if is_proven {
            self.proto.confirm(now, fetch, true);
        }
        for generation in settled {
            self.proto.settle(fetch, generation);
        }
        if !refuted.is_empty() {
            comes_again = self.proto.refute(now, fetch, &refuted);
        }
        let Some(read) = self.reads.get_mut(&id) else {
            return;
        };
        #[cfg(feature = "share")]
        if let Some(share) = &mut self.share {
            share.proved(fetch, &pieces, is_proven);
        }
        read.proved(fetch, pieces);
        if is_proven {
            read.complete(fetch);
            self.fetches.remove(&fetch);
        } else if !comes_again {
            self.fail(id, WRONG);
        }
    }

    /// Fails reads whose generations have all come, and are wrong: nothing more would arrive, and
    /// no timer runs.
    fn give_up_on_incomplete(&mut self) {
        let over = |(fetch, _): &(&FetchId, _)| !self.proto.is_under_way(**fetch);
        let reads: Vec<ReadId> = self
            .fetches
            .iter()
            .filter(over)
            .map(|(_, id)| *id)
            .collect();
        for id in reads {
            self.fail(id, WRONG);
        }
    }

    fn fetch_failed(&mut self, now: Instant, fetch: FetchId, failure: Failure) {
        let Some(id) = self.fetches.remove(&fetch) else {
            return;
        };
        let Some(read) = self.reads.get_mut(&id) else {
            return;
        };
        let before: Vec<FetchId> = read.fetches().collect();
        // A question under way is for the part behind those that are asked for again.
        let question = match &read.question {
            Question::Asked(get) | Question::Confirming(get, _) => Some(*get),
            _ => None,
        };
        if let Err(unfit) = read.fetch_failed(now, fetch, failure) {
            return self.fail(id, &unfit);
        }
        let left: Vec<FetchId> = read.fetches().collect();
        if let Some(get) = question {
            self.gets.remove(&get);
            self.proto.cancel_get(get);
        }
        for gone in before.into_iter().filter(|fetch| !left.contains(fetch)) {
            self.fetches.remove(&gone);
            self.proto.cancel_fetch(gone);
        }
    }

    fn fail(&mut self, read: ReadId, reason: impl ToString) {
        let reason = reason.to_string();
        self.cancel(read);
        self.events.push_back(Event::Failed { read, reason });
    }

    fn close(&mut self, now: Instant, source: SourceId, violation: Violation) {
        #[cfg(feature = "share")]
        if let Some(link) = link_of(source) {
            return self.hang_up(now, link);
        }
        self.events.push_back(Event::Close {
            source,
            code: violation.close_code(),
            reason: violation.to_string(),
            is_polluter: false,
        });
        self.sources.remove(&source);
        self.proto.handle_disconnected(now, source, false);
    }
}

/// The largest part that a page takes: it is in its memory as a whole.
const SEGMENT_MAX: u64 = 16 << 20;
/// The least bytes that are requested and have not come.
const WINDOW_MIN: u64 = 128 << 10;
/// Memory for rows that are kept until they are verified.
const ROWS_MAX: u64 = 16 << 20;
/// A server that owes an answer and says nothing for so long is asked for nothing new while there
/// are others.
const SILENCE: Duration = Duration::from_millis(500);
/// After how long it is probed, at first and at most.
const PROBED_AFTER: Duration = Duration::from_millis(250);
const PROBED_AFTER_MAX: Duration = Duration::from_secs(2);
/// The number of a probe, which is that of no other question, and what it asks for: the hashes of a
/// segment that nobody has.
const PROBE: u64 = 0;
const NO_SEGMENT: SegmentId = SegmentId::from_bytes([0; 32]);
/// How long a server may take for HELLO, and for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a segment may make no progress, and the least rate meanwhile, in bytes a second.
const STALLED: Duration = Duration::from_secs(30);
const RATE_MIN: u64 = 1024;
