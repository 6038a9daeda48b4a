//! The peer's side of a conversation, without I/O: what to ask for, how much of it, and what has come.
//!
//! There may be any number of *sources*: servers and relays of the same content, each with a connection of its own. A path is asked of
//! one of them, and of the next if that one refuses it, is gone or takes long. The blocks of a generation are asked of all, each
//! for a part; no source knows of another (`docs/protocol.md`, section 7, says how credit is reckoned and split).
//!
//! What the network brings goes in with the `handle_` calls, what the program wants with [`Proto::get`], [`Proto::fetch`] and
//! [`Proto::subscribe`]. Out come messages for each source ([`Proto::poll_message`]), answers and full decoders
//! ([`Proto::poll_event`]) and streams to refuse ([`Proto::poll_stop`]). After any call that puts something in, poll all three until
//! they are empty, then read [`Proto::poll_timeout`], which may have changed. Several calls may go in before one round of polling;
//! polling too often is harmless. A [`Violation`] is one source's: its connection is to be closed, the others know nothing of it.
//!
//! Wishes outlive connections: what is not answered when one ends is asked of another source or on the next connection, and decoders
//! keep what they hold, for a segment is the same segment everywhere.
//!
//! The first source is trusted, the others are believed what proves itself (`keyring`, `evidence`): one that sends wrong blocks or forged answers
//! is done with for good ([`Event::Polluter`]). Blocks over the prime field prove themselves, all of them (`words`), and nobody who sends wrong ones is
//! trusted.

mod config;
mod counts;
mod effects;
mod event;
mod evidence;
mod fetches;
mod flight;
mod gets;
mod ids;
mod keyring;
mod order;
mod pace;
mod path;
mod rebuilder;
mod refusal;
mod shares;
mod words;
mod work;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::integrity::signing::StreamKey;
use crate::object::{Refusal, RefusalCode, SegmentId};
use crate::time::Instant;
use crate::wire::block::{self, Records, StreamHead};
use crate::wire::message::{
    self, Credential, Get, GetChecks, HOLDINGS_MAX, Hello, Holding, HoldingState, Message, Meta, Subscribe,
};
use crate::wire::{CODE_BASE, Violation};

pub use config::{Config, Secret};
pub use counts::{Counts, Progress, SourceCounts};
use effects::Effects;
pub use event::{Answer, Event, Failure};
use evidence::Pollution;
use fetches::Fetches;
use gets::Gets;
pub use ids::{FetchId, SourceId};
use keyring::{FIRST, Keyring, Verdict};
pub use keyring::{Keys, Proof};
pub use order::{Cut, Order, Place, Urgency};
pub use rebuilder::Rebuilder;
use refusal::{refusal, refused};
pub use words::{Tested, Trial, Words, parsed};

/// Certificates of sources that are remembered.
const IDENTITIES_MAX: usize = 1024;
/// Segments that a server is told of which connects later than they came.
const HOLDINGS_TOLD_MAX: usize = 1024;
/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// With FIN.
    Finished,
    /// With this code.
    Reset(u64),
}

/// The peer's side of conversations with any number of sources.
#[derive(Debug)]
pub struct Proto {
    config: Config,
    sources: BTreeMap<SourceId, Source>,
    gets: Gets,
    fetches: Fetches,
    subscriptions: BTreeMap<u64, Subscription>,
    effects: Effects,
    /// Sources that servers have named.
    neighbours: BTreeSet<SourceId>,
    /// What this side offers to others.
    offer: Option<Offer>,
    keyring: Keyring,
    /// SHA-256 of the certificates that sources have shown.
    identities: BTreeMap<SourceId, [u8; 32]>,
    polluters: BTreeSet<SourceId>,
    /// What has gone wrong last, and with whom.
    trouble: Option<(Instant, SourceId, String)>,
    /// When a question was last answered well.
    answered_at: Option<Instant>,
    /// Sources whose connections are silent.
    silent: BTreeSet<SourceId>,
}

/// What servers are told that this side would serve.
#[derive(Debug)]
struct Offer {
    port: u16,
    identity: [u8; 32],
    /// For servers that are connected later.
    held: VecDeque<Holding>,
}

/// A source that is, or has been, connected.
#[derive(Debug)]
struct Source {
    link: Link,
    streams: HashMap<u64, Incoming>,
    stops: VecDeque<u64>,
    /// Whether it has been shown something.
    is_shown: bool,
    /// Whether it does not admit this side: then it answers as if nothing were there.
    refuses: bool,
}

/// A stream subscribed to: at every source, because one may fall silent.
#[derive(Debug)]
struct Subscription {
    stream: String,
    refused: BTreeSet<SourceId>,
}

/// Where the connection stands.
#[derive(Debug)]
enum Link {
    Greeting { due: Instant },
    Open { server: Hello },
    Leaving,
}

/// A stream that a source has opened.
#[derive(Debug)]
enum Incoming {
    Head(BytesMut),
    Blocks {
        alias: u16,
        records: Records,
    },
    Object {
        request: u64,
    },
    Hashes {
        request: u64,
    },
    /// What still comes before STOP_SENDING has arrived.
    Refused,
}

impl Proto {
    /// A peer without a connection.
    pub fn new(config: Config) -> Self {
        Self {
            gets: Gets::new(config.hello.segment_bytes_max),
            fetches: Fetches::new(config.clone()),
            keyring: Keyring::new(config.keys.clone()),
            config,
            sources: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            effects: Effects::default(),
            neighbours: BTreeSet::new(),
            offer: None,
            identities: BTreeMap::new(),
            polluters: BTreeSet::new(),
            trouble: None,
            answered_at: None,
            silent: BTreeSet::new(),
        }
    }

    /// Asks what a path is, from `offset` on. The answer carries the number that is returned.
    pub fn get(&mut self, now: Instant, path: &str, offset: u64, length: Option<u64>) -> u64 {
        self.gets.ask(Place { path: path.to_owned(), offset, length }, now + self.config.answer_timeout)
    }

    /// Asks one source what a path is, and no other.
    pub fn get_of(&mut self, now: Instant, source: SourceId, path: &str, offset: u64, length: Option<u64>) -> u64 {
        self.gets.ask_only(source, Place { path: path.to_owned(), offset, length }, now + self.config.answer_timeout)
    }

    /// Nobody waits for this answer any more.
    pub fn cancel_get(&mut self, request: u64) {
        self.gets.cancel(request);
    }

    /// Fetches a segment. Sources that do not know it are asked for the path that led to it, if there is one.
    pub fn fetch(&mut self, now: Instant, order: Order, place: Option<Place>) -> FetchId {
        let key = place.as_ref().and_then(|place| self.keyring.key(&place.path));
        let proof = order.proof.filter(|proof| key == Some(proof.key));
        let fetch = self.fetches.add(now, order, place, proof);
        self.ask_to_name(now);
        fetch
    }

    /// Says whether the bytes of a fetch, all of whose generations have come, have the hash that names them. True if they have not, and all
    /// generations will come again.
    pub fn confirm(&mut self, now: Instant, fetch: FetchId, is_right: bool) -> bool {
        self.fetches.confirm(now, fetch, is_right)
    }

    /// Says that the bytes of these generations, which have come, are not all right: some part of them does not have the hash that its segment's
    /// tree gives it. True if they will come again; else the fetch is over.
    pub fn refute(&mut self, now: Instant, fetch: FetchId, generations: &BTreeSet<u32>) -> bool {
        self.fetches.refute(now, fetch, generations)
    }

    /// Says that all bytes of a generation, which has come, are proven. Nothing is kept to test it by.
    pub fn settle(&mut self, fetch: FetchId, generation: u32) {
        self.fetches.settle(fetch, generation);
    }

    /// Whether generations of a fetch are still to come, or to be tried. Those that have come are the driver's.
    pub fn is_under_way(&self, fetch: FetchId) -> bool {
        self.fetches.is_under_way(fetch)
    }

    /// Blocks that [`Event::Test`] gave away are tested.
    pub fn tested(&mut self, now: Instant, tested: Tested) {
        self.fetches.tested(now, tested, &mut self.effects);
    }

    /// Somebody waits for this one after all, or nobody does any more.
    pub fn set_urgency(&mut self, now: Instant, fetch: FetchId, urgency: Urgency) {
        self.fetches.set_urgency(now, fetch, urgency, &mut self.effects);
    }

    /// Nobody waits for this one any more.
    pub fn cancel_fetch(&mut self, fetch: FetchId) {
        self.fetches.cancel(fetch, &mut self.effects);
    }

    /// Asks to be told of new segments of a stream, by every source: news may come more than once.
    pub fn subscribe(&mut self, stream: &str) -> u64 {
        let request = self.gets.number();
        for source in self.servers() {
            self.effects.send(source, Message::Subscribe(Subscribe { request, stream: stream.to_owned() }));
        }
        self.subscriptions.insert(request, Subscription { stream: stream.to_owned(), refused: BTreeSet::new() });
        request
    }

    /// Ends a subscription.
    pub fn unsubscribe(&mut self, request: u64) {
        if self.subscriptions.remove(&request).is_some() {
            for source in self.servers() {
                self.effects.send(source, Message::Unsubscribe { request });
            }
        }
    }

    /// Shows something newer to a source.
    pub fn authorise(&mut self, source: SourceId, credential: Credential) {
        if let Some(source) = self.sources.get_mut(&source) {
            source.is_shown = true;
        }
        self.effects.send(source, Message::Auth(credential));
    }

    /// A source that a server has named, for a connection that is to come. It is asked for segments that it holds and for nothing else.
    pub fn add_neighbour(&mut self, source: SourceId) {
        self.neighbours.insert(source);
        self.fetches.add_neighbour(source);
    }

    /// A neighbour holds something of a segment.
    pub fn note_holding(&mut self, source: SourceId, segment: SegmentId) {
        self.fetches.note_holding(source, segment);
    }

    /// A neighbour is none any more; it has no connection.
    pub fn remove_neighbour(&mut self, source: SourceId) {
        if self.neighbours.remove(&source) {
            self.fetches.remove_neighbour(source);
        }
    }

    /// Offers to serve others, to all servers: on this UDP port, with the certificate of this SHA-256.
    pub fn offer(&mut self, port: u16, identity: [u8; 32]) {
        self.offer = Some(Offer { port, identity, held: VecDeque::new() });
        // Others are told when they have said HELLO.
        for source in self.open_servers() {
            self.effects.send(source, Message::Offer { port, identity });
        }
    }

    /// Tells all servers what has changed of what is held, if anything is offered. To be called a few times a second at most.
    pub fn tell_holdings(&mut self, changed: &[Holding]) {
        let Some(offer) = &mut self.offer else { return };
        for holding in changed {
            offer.held.retain(|other| (other.segment, other.meant) != (holding.segment, holding.meant));
            if holding.state != HoldingState::Gone {
                offer.held.push_back(*holding);
            }
        }
        while offer.held.len() > HOLDINGS_TOLD_MAX {
            offer.held.pop_front();
        }
        for source in self.open_servers() {
            for some in changed.chunks(HOLDINGS_MAX) {
                self.effects.send(source, Message::Have(some.to_vec()));
            }
        }
    }

    /// Nothing comes from a source though it was to answer, or something does again. While it is silent, paths are asked of others at once.
    pub fn set_silent(&mut self, source: SourceId, is_silent: bool) {
        if is_silent {
            self.silent.insert(source);
            self.gets.press(source);
        } else {
            self.silent.remove(&source);
        }
    }

    /// A connection to a source stands; this is shown before anything is asked.
    pub fn handle_connected(&mut self, now: Instant, source: SourceId, credential: Option<Credential>) {
        if self.polluters.contains(&source) {
            self.effects.report(Event::Polluter(source));
            return;
        }
        let link = Link::Greeting { due: now + self.config.hello_timeout };
        let (streams, stops, is_shown) = (HashMap::new(), VecDeque::new(), credential.is_some());
        self.sources.insert(source, Source { link, streams, stops, is_shown, refuses: false });
        self.effects.outbox.open(source);
        self.effects.send(source, Message::Hello(self.config.hello.clone()));
        if let Some(credential) = credential {
            self.effects.send(source, Message::Auth(credential));
        }
        if self.neighbours.contains(&source) {
            return;
        }
        for (request, subscription) in &mut self.subscriptions {
            subscription.refused.remove(&source);
            self.effects.send(source, Message::Subscribe(Subscribe { request: *request, stream: subscription.stream.clone() }));
        }
    }

    /// Who a source is: SHA-256 of the certificate that it has shown.
    pub fn identify(&mut self, source: SourceId, identity: [u8; 32]) {
        self.identities.insert(source, identity);
        // Peers come and go under new names. What is known of those of long ago is of no use any more.
        if self.identities.len() > IDENTITIES_MAX
            && let Some(oldest) = self.identities.keys().copied().find(|source| *source != FIRST)
        {
            self.identities.remove(&oldest);
        }
    }

    /// Who a source is, as far as it is known.
    pub fn identity(&self, source: SourceId) -> Option<[u8; 32]> {
        self.identities.get(&source).copied()
    }

    /// The key that is pinned for the stream of this path.
    pub fn key(&self, path: &str) -> Option<StreamKey> {
        self.keyring.key(path)
    }

    /// Something has gone wrong with a server: whoever waits in vain is told of the last such thing. Neighbours come and go, and say what they
    /// like.
    pub fn note_trouble(&mut self, now: Instant, source: SourceId, what: String) {
        if !self.neighbours.contains(&source) {
            self.trouble = Some((now, source, what));
        }
    }

    /// What has gone wrong last, if nothing has gone well since.
    pub fn trouble(&self) -> Option<(SourceId, &str)> {
        let good = self.answered_at.max(self.fetches.progress_at());
        let (at, source, what) = self.trouble.as_ref()?;
        good.is_none_or(|good| good <= *at).then_some((*source, what))
    }

    /// The connection to a source is gone; `is_outage` if the source has fallen silent or leaves, and has not ended it for what happened on it.
    /// The time without any server is left out of account after an outage.
    pub fn handle_disconnected(&mut self, now: Instant, source: SourceId, is_outage: bool) {
        self.sources.remove(&source);
        self.silent.remove(&source);
        self.effects.outbox.close(source);
        self.gets.disconnected(source);
        self.fetches.disconnected(now, source);
        // Who is proved to send what is wrong does not come again.
        let comes_again = !self.polluters.contains(&source) && !self.neighbours.contains(&source);
        if is_outage && comes_again && self.open_servers().is_empty() {
            self.gets.darken(now);
            self.fetches.set_dark(now, true);
        }
    }

    /// What QUIC knows of the path to a source. To be called before a round of polling.
    pub fn set_rtt(&mut self, source: SourceId, rtt: Duration) {
        self.fetches.set_rtt(source, rtt);
    }

    /// Takes a message of a source's control stream.
    pub fn handle_message(&mut self, now: Instant, source: SourceId, message: Message) -> Result<(), Violation> {
        match self.sources.get(&source).map(|source| &source.link) {
            None => return Ok(()),
            Some(Link::Greeting { .. }) => return self.handle_hello(now, source, message),
            Some(Link::Open { .. } | Link::Leaving) => {}
        }
        match message {
            Message::Meta(meta) => self.handle_meta(now, source, meta),
            Message::Error(error) if error.code == RefusalCode::GoingAway => {
                // What was asked too late is asked of others, or again on the next connection, subscriptions too.
                self.leave(source);
                if !self.fetches.question_refused(now, error.request, source, None) {
                    self.gets.postpone(error.request, source);
                }
                Ok(())
            }
            Message::Error(error) => {
                self.note_trouble(now, source, refused("the question", error.code, error.retry_after_ms, &error.reason));
                let refusal = self.in_plain_words(source, refusal(error.code, error.retry_after_ms, error.reason));
                if self.fetches.question_refused(now, error.request, source, refusal.retry_after) {
                    return Ok(());
                }
                if self.unsubscribed(source, error.request, &refusal) {
                    return Ok(());
                }
                let others = self.open_servers();
                self.gets.refused(error.request, source, refusal, &others, &mut self.effects)
            }
            Message::Reject { alias, code, retry_after_ms } => {
                if code == RefusalCode::GoingAway {
                    self.leave(source);
                }
                self.note_trouble(now, source, refused("the request", code, retry_after_ms, ""));
                let refusal = refusal(code, retry_after_ms, String::new());
                let stranger = self.fetches.rejected(now, source, alias, refusal, &mut self.effects);
                if let Some((introduction, place)) = stranger {
                    self.gets.introduce(introduction, place, now + self.config.answer_timeout);
                }
                Ok(())
            }
            Message::Grant { lasts_ms } => {
                self.sources.entry(source).and_modify(|source| source.refuses = lasts_ms == 0);
                if lasts_ms > 0 {
                    return Ok(());
                }
                self.effects.report(Event::TokenRefused(source));
                Ok(())
            }
            Message::SubscribeOk { .. } => Ok(()),
            Message::GoAway { .. } => {
                self.leave(source);
                Ok(())
            }
            Message::Hello(_) => Err(Violation::Unexpected("HELLO")),
            // A peer that serves nobody has nothing of what these ask for.
            Message::Get(Get { request, .. })
            | Message::GetHashes { request, .. }
            | Message::GetChecks(GetChecks { request, .. }) => {
                let reason = "this side serves nothing".to_owned();
                let error = message::RequestError { request, code: RefusalCode::Unknown, retry_after_ms: 0, reason };
                self.effects.send(source, Message::Error(error));
                self.effects.outbox.check(source)
            }
            Message::Request(request) => {
                let (alias, code) = (request.alias, RefusalCode::Unknown);
                self.effects.send(source, Message::Reject { alias, code, retry_after_ms: 0 });
                self.effects.outbox.check(source)
            }
            Message::Subscribe(_) => Err(Violation::Unexpected("SUBSCRIBE")),
            // Who is known to us by a server's word does not name others.
            Message::Peers { segment, peers } if !self.neighbours.contains(&source) => {
                self.effects.report(Event::Peers { segment, peers });
                Ok(())
            }
            Message::Checks(checks) => {
                if self.fetches.checks(source, &checks, &mut self.effects) {
                    return Ok(());
                }
                self.gets.check_known(checks.request)
            }
            // Nothing of this was asked for, or it is for those who serve.
            Message::Peers { .. }
            | Message::Have(_)
            | Message::Offer { .. }
            | Message::Blame { .. }
            | Message::Auth(_)
            | Message::Unsubscribe { .. }
            | Message::Credit { .. }
            | Message::Reschedule { .. }
            | Message::Stop { .. }
            | Message::Rank { .. } => Ok(()),
        }
    }

    /// Why a source refuses something. One that does not admit this side says that nothing is there, and has said before what it lacks.
    fn in_plain_words(&self, source: SourceId, refusal: Refusal) -> Refusal {
        let reason = match self.sources.get(&source) {
            Some(Source { refuses: true, is_shown: true, .. }) => "the server rejects the token",
            Some(Source { refuses: true, .. }) => "the server requires a token or a client certificate",
            _ => return refusal,
        };
        if refusal.code != RefusalCode::Unknown {
            return refusal;
        }
        Refusal { code: RefusalCode::Forbidden, retry_after: None, reason: reason.to_owned() }
    }

    /// Takes a datagram of a source.
    pub fn handle_datagram(&mut self, now: Instant, source: SourceId, mut datagram: Bytes) -> Result<(), Violation> {
        if !self.sources.contains_key(&source) {
            return Ok(());
        }
        match block::parse_datagram(&mut datagram) {
            Some(head) => self.fetches.datagram(now, source, head, datagram, &mut self.effects),
            None => self.fetches.stray(source),
        }
    }

    /// Takes the next bytes of a stream that a source has opened; `stream` is QUIC's number for it. Streams end with
    /// [`Proto::handle_stream_end`], refused ones too.
    pub fn handle_stream(&mut self, now: Instant, source: SourceId, stream: u64, bytes: &[u8]) -> Result<(), Violation> {
        let Some(peer) = self.sources.get_mut(&source) else { return Ok(()) };
        match peer.streams.entry(stream).or_insert_with(|| Incoming::Head(BytesMut::new())) {
            Incoming::Blocks { alias, records } => {
                records.push(bytes);
                let alias = *alias;
                self.fetches.note_bytes(source, alias);
                self.take_records(now, source, stream, alias)
            }
            Incoming::Object { request } => {
                let request = *request;
                self.take_object(source, stream, request, bytes)
            }
            Incoming::Hashes { request } => {
                let request = *request;
                self.take_hashes(now, source, stream, request, bytes)
            }
            Incoming::Refused => Ok(()),
            Incoming::Head(head) => {
                head.extend_from_slice(bytes);
                let Some((kind, length)) = StreamHead::parse(head)? else { return Ok(()) };
                let rest = head.split_off(length).freeze();
                self.begin(now, source, stream, kind, &rest)
            }
        }
    }

    /// A stream of a source has ended.
    pub fn handle_stream_end(&mut self, source: SourceId, stream: u64, end: StreamEnd) -> Result<(), Violation> {
        let Some(peer) = self.sources.get_mut(&source) else { return Ok(()) };
        match (peer.streams.remove(&stream), end) {
            (Some(Incoming::Object { request }), StreamEnd::Finished) => self.gets.finished(request, source, &mut self.effects),
            (Some(Incoming::Object { request }), StreamEnd::Reset(code)) => {
                let code = RefusalCode::from_value(code.wrapping_sub(u64::from(CODE_BASE)));
                let refusal = refusal(code, 0, "the object's stream was reset".to_owned());
                let others = self.open_servers();
                self.gets.refused(request, source, refusal, &others, &mut self.effects)
            }
            (Some(Incoming::Hashes { request }), StreamEnd::Finished) => {
                self.fetches.hashes_finished(request, source, &mut self.effects)
            }
            (Some(Incoming::Blocks { records, .. }), StreamEnd::Finished) if !records.is_between_records() => {
                Err(Violation::Malformed("block record"))
            }
            _ => Ok(()),
        }
    }

    /// Does what is due. Calling it early is harmless. A source that has broken the rules by saying nothing is named; when it is
    /// disconnected there may be another one.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), (SourceId, Violation)> {
        for (id, source) in &self.sources {
            if let Link::Greeting { due } = source.link
                && due <= now
            {
                return Err((*id, Violation::Timeout("HELLO")));
            }
        }
        self.gets.expire(now, &mut self.effects);
        self.take_introductions();
        self.advance(now);
        self.fetches.next_broken().map_or(Ok(()), Err)
    }

    /// When [`Proto::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let hello = self.sources.values().filter_map(|source| match source.link {
            Link::Greeting { due } => Some(due),
            _ => None,
        });
        let due = [self.gets.due(), self.fetches.due()];
        hello.chain(due.into_iter().flatten()).min()
    }

    /// The next message to send to a source.
    pub fn poll_message(&mut self, now: Instant, source: SourceId) -> Option<Message> {
        self.take_introductions();
        if self.fetches.is_stirred() {
            self.advance(now);
        }
        if self.effects.outbox.is_empty_for(source)
            && !self.neighbours.contains(&source)
            && let Some(unanswered_max) = self.sources.get(&source).and_then(|source| source.link.unanswered_max())
            && let Some(question) = self.next_question(now, source, unanswered_max)
        {
            return Some(question);
        }
        self.effects.outbox.pop(source)
    }

    /// The next thing that has come. To be asked after [`Proto::poll_message`], which may bring something about.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.effects.events.pop_front()
    }

    /// The next stream of a source to refuse with STOP_SENDING and DONE.
    pub fn poll_stop(&mut self, source: SourceId) -> Option<u64> {
        self.sources.get_mut(&source)?.stops.pop_front()
    }

    /// What was counted since the start.
    pub fn counts(&self) -> Counts {
        Counts { polluters: self.polluters.len() as u64, ..self.fetches.counts() }
    }

    /// The same for one source.
    pub fn source_counts(&self, source: SourceId) -> SourceCounts {
        SourceCounts { is_polluter: self.polluters.contains(&source), ..self.fetches.source_counts(source) }
    }

    /// How far the open generations are.
    pub fn progress(&self) -> Vec<Progress> {
        self.fetches.progress()
    }

    /// Share of the datagrams that are lost at present, and bytes of payload a second, from all sources.
    pub fn path(&self) -> (f64, f64) {
        self.fetches.path()
    }

    /// How long no server could send anything, in all: outages that are over.
    pub fn outages(&self) -> Duration {
        self.fetches.outages()
    }

    /// Whether a source takes nothing new.
    pub fn is_leaving(&self, source: SourceId) -> bool {
        self.sources.get(&source).is_some_and(|source| matches!(source.link, Link::Leaving))
    }

    /// Whether nothing is asked of a source at present.
    pub fn is_quiet_at(&self, source: SourceId) -> bool {
        self.fetches.is_quiet_at(source) && self.effects.outbox.is_empty_for(source)
    }

    /// Whether nothing is asked of anybody at present.
    pub fn is_quiet(&self) -> bool {
        self.fetches.is_quiet() && self.effects.outbox.is_empty()
    }

    /// What a source has said of itself, while its connection stands and it takes requests.
    pub fn server(&self, source: SourceId) -> Option<&Hello> {
        self.sources.get(&source)?.link.server()
    }

    /// Whether everything wished for has been granted or refused.
    pub fn is_idle(&self) -> bool {
        self.gets.is_empty() && self.fetches.is_empty() && self.effects.outbox.is_empty()
    }

    /// Lets fetches go on, and is done with whoever they have found to lie.
    fn advance(&mut self, now: Instant) {
        // What they have sent besides is not to be tested.
        self.condemn_polluters(now);
        self.ask_to_name(now);
        self.fetches.advance(now, &mut self.effects);
        self.ask_to_name(now);
        if self.condemn_polluters(now) {
            // What they were to send is asked of the others.
            self.fetches.advance(now, &mut self.effects);
        }
    }

    /// Asks for the path of a segment who is to name it before anything else is made of it.
    fn ask_to_name(&mut self, now: Instant) {
        while let Some((introduction, place)) = self.fetches.next_unnamed(&mut self.effects) {
            self.gets.introduce(introduction, place, now + self.config.answer_timeout);
        }
    }

    /// Whether anybody has been found to lie.
    fn condemn_polluters(&mut self, now: Instant) -> bool {
        let mut has_polluted = false;
        while let Some(pollution) = self.fetches.next_polluter() {
            has_polluted = true;
            self.condemn(now, pollution.source, Some(pollution));
        }
        has_polluted
    }

    /// A source has been proved to lie.
    fn condemn(&mut self, now: Instant, source: SourceId, pollution: Option<Pollution>) {
        if let Some(Pollution { segment, generation, blocks, .. }) = pollution
            && source != FIRST
            && let Some(identity) = self.identities.get(&source).copied()
        {
            self.effects.send(FIRST, Message::Blame { segment, generation, blocks, identity });
        }
        if self.polluters.insert(source) {
            self.note_trouble(now, source, "it sent blocks that are proved wrong and is no longer used".to_owned());
            self.handle_disconnected(now, source, false);
            self.fetches.forget(source);
            self.effects.report(Event::Polluter(source));
        }
    }

    /// What is asked of a source next: a path, or about blocks.
    fn next_question(&mut self, now: Instant, source: SourceId, unanswered_max: usize) -> Option<Message> {
        let answers = |id: &SourceId, source: &Source| source.link.server().is_some() && !self.silent.contains(id);
        let mut others = self.sources.iter().filter(|(id, _)| **id != source && !self.neighbours.contains(id));
        if self.silent.contains(&source) && others.any(|(id, other)| answers(id, other)) {
            return None;
        }
        let left = unanswered_max.saturating_sub(self.fetches.questions(source));
        // Who names the key of a stream is to be asked first.
        let first_is_open = source != FIRST && self.sources.get(&FIRST).is_some_and(|first| answers(&FIRST, first));
        let keyring = &self.keyring;
        let waits_for_key = |path: &str| first_is_open && keyring.key(path).is_none();
        if let Some(get) = self.gets.next_question(now, source, left, waits_for_key) {
            return Some(Message::Get(get));
        }
        if self.gets.unanswered(source) >= left {
            return None;
        }
        let gets = &mut self.gets;
        self.fetches.next_question(now, source, || gets.number())
    }

    /// Tells fetches which sources have heard of their segments.
    fn take_introductions(&mut self) {
        while let Some((introduction, named)) = self.gets.next_introduced() {
            self.fetches.introduced(introduction, named, &mut self.effects);
        }
    }

    /// Those that are connected and not neighbours.
    fn servers(&self) -> Vec<SourceId> {
        self.sources.keys().copied().filter(|source| !self.neighbours.contains(source)).collect()
    }

    /// Those of them that take requests.
    fn open_servers(&self) -> BTreeSet<SourceId> {
        self.servers()
            .into_iter()
            .filter(|id| self.sources.get(id).is_some_and(|source| source.link.server().is_some()))
            .collect()
    }

    fn handle_hello(&mut self, now: Instant, source: SourceId, message: Message) -> Result<(), Violation> {
        let Message::Hello(server) = message else { return Err(Violation::Unexpected("message before HELLO")) };
        self.config.hello.agree(&server)?;
        self.fetches.opened(source, &server);
        if let Some(source) = self.sources.get_mut(&source) {
            source.link = Link::Open { server };
        }
        if !self.neighbours.contains(&source) {
            self.gets.lighten(now);
            self.fetches.set_dark(now, false);
        }
        self.effects.report(Event::Ready(source));
        if let Some(Offer { port, identity, held }) = self.offer.as_ref().filter(|_| !self.neighbours.contains(&source)) {
            self.effects.send(source, Message::Offer { port: *port, identity: *identity });
            let held: Vec<_> = held.iter().copied().collect();
            held.chunks(HOLDINGS_MAX).for_each(|some| self.effects.send(source, Message::Have(some.to_vec())));
        }
        Ok(())
    }

    /// The source takes nothing new.
    fn leave(&mut self, id: SourceId) {
        let Some(source) = self.sources.get_mut(&id) else { return };
        if matches!(source.link, Link::Open { .. }) {
            source.link = Link::Leaving;
            self.fetches.leaving(id);
            self.effects.report(Event::GoingAway(id));
        }
    }

    /// Whether that was an answer to a SUBSCRIBE. The subscription ends when no source is left that may have news.
    fn unsubscribed(&mut self, source: SourceId, request: u64, refusal: &Refusal) -> bool {
        let Some(subscription) = self.subscriptions.get_mut(&request) else { return false };
        subscription.refused.insert(source);
        let mut servers = self.sources.keys().filter(|source| !self.neighbours.contains(source));
        if servers.all(|source| subscription.refused.contains(source)) {
            self.subscriptions.remove(&request);
            self.effects.report(Event::Unsubscribed { request, refusal: refusal.clone() });
        }
        true
    }

    fn handle_meta(&mut self, now: Instant, source: SourceId, meta: Meta) -> Result<(), Violation> {
        let fits = match &meta.delivery {
            message::Delivery::Coded(shape) => self.config.hello.takes(shape),
            _ => meta.length <= self.config.hello.segment_bytes_max,
        };
        if !fits {
            return Err(Violation::Limit("META"));
        }
        if let Some(subscription) = self.subscriptions.get(&meta.request) {
            if message::stream_of(&meta.path) != subscription.stream {
                return Err(Violation::Unexpected("news of another stream"));
            }
            match self.keyring.judge(source, None, &meta) {
                Verdict::Taken => self.effects.report(Event::Announced { request: meta.request, meta }),
                Verdict::Refused(_) => {}
                Verdict::Forged => self.condemn(now, source, None),
            }
            return Ok(());
        }
        let Some(path) = self.gets.path(meta.request, source) else {
            return self.gets.answered(source, meta, &mut self.effects);
        };
        match self.keyring.judge(source, Some(path), &meta) {
            Verdict::Taken => {
                self.answered_at = Some(now);
                self.gets.answered(source, meta, &mut self.effects)
            }
            Verdict::Refused(reason) => {
                let others = self.open_servers();
                let refusal = refusal(RefusalCode::Origin, 0, reason.to_owned());
                self.gets.refused(meta.request, source, refusal, &others, &mut self.effects)
            }
            Verdict::Forged => {
                let others = self.open_servers();
                let refusal = refusal(RefusalCode::Origin, 0, "the answer is forged".to_owned());
                self.gets.refused(meta.request, source, refusal, &others, &mut self.effects)?;
                self.condemn(now, source, None);
                Ok(())
            }
        }
    }

    /// The head of a stream has come, and perhaps more.
    fn begin(&mut self, now: Instant, source: SourceId, stream: u64, head: StreamHead, rest: &[u8]) -> Result<(), Violation> {
        let Some(peer) = self.sources.get_mut(&source) else { return Ok(()) };
        match head {
            StreamHead::Blocks { alias } => {
                let Some(generation) = self.fetches.generation(source, alias) else {
                    peer.refuse(stream);
                    return Ok(());
                };
                let mut records = Records::new(generation);
                records.push(rest);
                peer.streams.insert(stream, Incoming::Blocks { alias, records });
                self.take_records(now, source, stream, alias)
            }
            StreamHead::Object { request } => {
                peer.streams.insert(stream, Incoming::Object { request });
                self.take_object(source, stream, request, rest)
            }
            StreamHead::Hashes { request } => {
                peer.streams.insert(stream, Incoming::Hashes { request });
                self.take_hashes(now, source, stream, request, rest)
            }
        }
    }

    fn take_records(&mut self, now: Instant, source: SourceId, stream: u64, alias: u16) -> Result<(), Violation> {
        let Some(peer) = self.sources.get_mut(&source) else { return Ok(()) };
        let Some(Incoming::Blocks { records, .. }) = peer.streams.get_mut(&stream) else { return Ok(()) };
        while let Some(block) = records.next()? {
            if !self.fetches.record(now, source, alias, block, &mut self.effects)? {
                peer.refuse(stream);
                return Ok(());
            }
        }
        Ok(())
    }

    fn take_hashes(&mut self, now: Instant, source: SourceId, stream: u64, request: u64, bytes: &[u8]) -> Result<(), Violation> {
        if !self.fetches.hash_bytes(now, request, source, bytes)?
            && let Some(peer) = self.sources.get_mut(&source)
        {
            peer.refuse(stream);
        }
        Ok(())
    }

    fn take_object(&mut self, source: SourceId, stream: u64, request: u64, bytes: &[u8]) -> Result<(), Violation> {
        if !self.gets.object_bytes(request, source, bytes)?
            && let Some(peer) = self.sources.get_mut(&source)
        {
            peer.refuse(stream);
        }
        Ok(())
    }
}

impl Source {
    fn refuse(&mut self, stream: u64) {
        self.streams.insert(stream, Incoming::Refused);
        self.stops.push_back(stream);
    }
}

impl Link {
    /// The source, where it takes new requests.
    fn server(&self) -> Option<&Hello> {
        match self {
            Self::Open { server } => Some(server),
            _ => None,
        }
    }

    /// How many GETs may be unanswered, where any may be sent.
    fn unanswered_max(&self) -> Option<usize> {
        match self {
            // GETs may go out behind our HELLO, before the source's has come.
            Self::Greeting { .. } => Some(usize::from(Hello::defaults().requests_max)),
            Self::Open { server } => Some(usize::from(server.requests_max)),
            Self::Leaving => None,
        }
    }
}

#[cfg(test)]
mod tests;
