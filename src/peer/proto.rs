//! The peer's side of a conversation, without I/O: what to ask for, how much of it, and what has come.
//!
//! What the network brings goes in with the `handle_` calls, what the program wants with [`Proto::get`], [`Proto::fetch`] and
//! [`Proto::subscribe`]. Out come messages ([`Proto::poll_message`]), answers and full decoders ([`Proto::poll_event`]) and
//! streams to refuse ([`Proto::poll_stop`]). After any call that puts something in, poll all three until they are empty, then
//! read [`Proto::poll_timeout`], which may have changed. Several calls may go in before one round of polling; polling too often
//! is harmless.
//!
//! Wishes outlive connections: what is not answered when one ends is asked again on the next, and decoders keep what they hold,
//! for a segment is the same segment on every server. `docs/protocol.md`, section 7, says how credit is reckoned.

mod fetches;
mod flight;
mod gets;
mod pace;
mod rebuilder;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use crate::gf::Kernels;
use crate::object::{Refusal, RefusalCode, SegmentId, Shape};
use crate::wire::block::{self, Records, StreamHead};
use crate::wire::message::{Hello, Message, Meta, Subscribe};
use crate::wire::{CODE_BASE, Violation};

use fetches::Fetches;
use gets::Gets;
pub use rebuilder::Rebuilder;

/// What a peer takes, and how patient it is.
#[derive(Debug, Clone)]
pub struct Config {
    /// What the server is told.
    pub hello: Hello,
    /// Whether blocks may come in datagrams.
    pub datagrams: bool,
    /// Most requests open at a time.
    pub requests_max: usize,
    /// Bytes of credit in flight, at least.
    pub window_min: u64,
    /// Bytes of credit in flight, at most.
    pub window_max: u64,
    /// A server that has not said HELLO for so long has failed.
    pub hello_timeout: Duration,
    /// A GET that is not answered for so long has failed.
    pub answer_timeout: Duration,
    /// A segment that makes no progress for so long has failed.
    pub stall_timeout: Duration,
    /// The arithmetic of this machine.
    pub kernels: Kernels,
    /// Whether generations are decoded elsewhere: then blocks are gathered, and tried for what they bring, and no more.
    pub gathers: bool,
}

/// A segment to fetch.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// Its id.
    pub segment: SegmentId,
    /// How it is cut.
    pub shape: Shape,
    /// When it is of no use any more; `None` waits as long as it progresses.
    pub deadline: Option<Instant>,
    /// Whether somebody waits for it.
    pub urgency: Urgency,
}

/// Whether somebody waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Urgency {
    /// Somebody does.
    Now,
    /// Somebody may: after everything that is urgent.
    Ahead,
}

/// Names a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(u64);

/// What has come of the wishes.
#[derive(Debug)]
pub enum Event {
    /// The server has said HELLO.
    Ready,
    /// A GET is answered.
    Answered {
        /// The GET.
        request: u64,
        /// What it is.
        answer: Result<Answer, Failure>,
    },
    /// A subscribed stream has a new segment.
    Announced {
        /// The subscription.
        request: u64,
        /// The segment.
        meta: Meta,
    },
    /// A subscription has ended.
    Unsubscribed {
        /// The subscription.
        request: u64,
        /// Why.
        refusal: Refusal,
    },
    /// A generation is complete; multiplying its payloads is the driver's work, here or, if the decoder
    /// [`is_to_be_solved`](Rebuilder::is_to_be_solved), elsewhere. A fetch is over when all its generations have come.
    Decoded {
        /// The fetch.
        fetch: FetchId,
        /// All that is needed.
        decoder: Box<Rebuilder>,
    },
    /// A fetch has failed.
    Failed {
        /// The fetch.
        fetch: FetchId,
        /// Why.
        failure: Failure,
    },
    /// The server takes nothing new.
    GoingAway,
}

/// Metadata, and the bytes where they came whole. Nothing is verified yet.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The metadata.
    pub meta: Meta,
    /// The bytes of an object that is not coded.
    pub bytes: Option<Bytes>,
}

/// Why a wish was not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The server said so.
    Refused(Refusal),
    /// The deadline passed.
    Deadline,
    /// Nothing came for too long.
    Stalled,
}

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// With FIN.
    Finished,
    /// With this code.
    Reset(u64),
}

/// What was counted since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks of open requests.
    pub blocks: u64,
    /// Those that brought something.
    pub innovative: u64,
    /// Those that brought nothing.
    pub useless: u64,
    /// Those that are source blocks.
    pub systematic: u64,
    /// Datagrams of open requests that never came.
    pub lost: u64,
    /// Those of them whose generation was completed without them.
    pub repaired: u64,
    /// Blocks of requests that had ended.
    pub late: u64,
    /// Blocks that the network doubled.
    pub duplicate: u64,
    /// Datagrams that belong to nothing, or are no blocks.
    pub stray: u64,
    /// Bytes of payload in blocks of open requests.
    pub payload_bytes: u64,
    /// Generations completed.
    pub generations: u64,
    /// Those of them whose payloads were worked on as they came, because their deadline was near.
    pub generations_progressive: u64,
    /// CREDITs sent: top-ups and probes.
    pub credits: u64,
}

/// How far a generation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The segment.
    pub segment: SegmentId,
    /// Index of the generation.
    pub generation: u32,
    /// Independent blocks held.
    pub rank: u16,
    /// Blocks needed.
    pub n: u16,
}

/// The peer's side of conversations with servers, one at a time.
#[derive(Debug)]
pub struct Proto {
    config: Config,
    link: Link,
    gets: Gets,
    fetches: Fetches,
    /// Streams subscribed to, and whether SUBSCRIBE has gone out on this connection.
    subscriptions: BTreeMap<u64, String>,
    streams: HashMap<u64, Incoming>,
    outbox: VecDeque<Message>,
    events: VecDeque<Event>,
    stops: VecDeque<u64>,
}

/// Where the connection stands.
#[derive(Debug)]
enum Link {
    Down,
    Greeting { due: Instant },
    Open { server: Hello },
    Leaving,
}

/// A stream that the server has opened.
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
    /// What still comes before STOP_SENDING has arrived.
    Refused,
}

impl Proto {
    /// A peer without a connection.
    pub fn new(config: Config) -> Self {
        Self {
            gets: Gets::new(config.hello.segment_bytes_max),
            fetches: Fetches::new(config.clone()),
            config,
            link: Link::Down,
            subscriptions: BTreeMap::new(),
            streams: HashMap::new(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
            stops: VecDeque::new(),
        }
    }

    /// Asks what a path is, from `offset` on. The answer carries the number that is returned.
    pub fn get(&mut self, now: Instant, path: &str, offset: u64, length: Option<u64>) -> u64 {
        self.gets.ask(path, offset, length, now + self.config.answer_timeout)
    }

    /// Nobody waits for this answer any more.
    pub fn cancel_get(&mut self, request: u64) {
        self.gets.cancel(request);
    }

    /// Fetches a segment.
    pub fn fetch(&mut self, now: Instant, order: Order) -> FetchId {
        self.fetches.add(now, order)
    }

    /// Somebody waits for this one after all.
    pub fn hurry(&mut self, fetch: FetchId) {
        self.fetches.hurry(fetch);
    }

    /// Nobody waits for this one any more.
    pub fn cancel_fetch(&mut self, fetch: FetchId) {
        self.fetches.cancel(fetch, &mut self.outbox);
    }

    /// Asks to be told of new segments of a stream.
    pub fn subscribe(&mut self, stream: &str) -> u64 {
        let request = self.gets.number();
        self.subscriptions.insert(request, stream.to_owned());
        if !matches!(self.link, Link::Down) {
            self.outbox.push_back(Message::Subscribe(Subscribe { request, stream: stream.to_owned() }));
        }
        request
    }

    /// Ends a subscription.
    pub fn unsubscribe(&mut self, request: u64) {
        if self.subscriptions.remove(&request).is_some() && !matches!(self.link, Link::Down) {
            self.outbox.push_back(Message::Unsubscribe { request });
        }
    }

    /// A connection stands.
    pub fn handle_connected(&mut self, now: Instant) {
        self.link = Link::Greeting { due: now + self.config.hello_timeout };
        self.outbox.push_back(Message::Hello(self.config.hello.clone()));
        for (request, stream) in &self.subscriptions {
            self.outbox.push_back(Message::Subscribe(Subscribe { request: *request, stream: stream.clone() }));
        }
    }

    /// The connection is gone.
    pub fn handle_disconnected(&mut self, now: Instant) {
        self.link = Link::Down;
        self.outbox.clear();
        self.stops.clear();
        self.streams.clear();
        self.gets.disconnected();
        self.fetches.disconnected(now);
    }

    /// What QUIC knows of the path. To be called before a round of polling.
    pub fn set_rtt(&mut self, rtt: Duration) {
        self.fetches.set_rtt(rtt);
    }

    /// Takes a message of the control stream.
    pub fn handle_message(&mut self, now: Instant, message: Message) -> Result<(), Violation> {
        if let Link::Greeting { .. } = self.link {
            return self.handle_hello(message);
        }
        match message {
            Message::Meta(meta) => self.handle_meta(meta),
            Message::Error(error) if error.code == RefusalCode::GoingAway => {
                // What was asked too late is asked again on the next connection, subscriptions too.
                self.leave();
                self.gets.postpone(error.request);
                Ok(())
            }
            Message::Error(error) => {
                let refusal = refusal(error.code, error.retry_after_ms, error.reason);
                if self.subscriptions.remove(&error.request).is_some() {
                    self.events.push_back(Event::Unsubscribed { request: error.request, refusal });
                    return Ok(());
                }
                self.gets.refused(error.request, refusal, &mut self.events)
            }
            Message::Reject { alias, code, retry_after_ms } => {
                if code == RefusalCode::GoingAway {
                    self.leave();
                }
                let refusal = refusal(code, retry_after_ms, String::new());
                self.fetches.rejected(now, alias, refusal, &mut self.outbox, &mut self.events);
                Ok(())
            }
            Message::SubscribeOk { .. } => Ok(()),
            Message::GoAway { .. } => {
                self.leave();
                Ok(())
            }
            Message::Hello(_) => Err(Violation::Unexpected("HELLO")),
            // A peer that serves nobody has nothing of what these ask for.
            Message::Get(get) => {
                let reason = "this side serves nothing".to_owned();
                let error = crate::wire::message::RequestError {
                    request: get.request,
                    code: RefusalCode::Unknown,
                    retry_after_ms: 0,
                    reason,
                };
                self.outbox.push_back(Message::Error(error));
                self.check_outbox()
            }
            Message::Request(request) => {
                let (alias, code) = (request.alias, RefusalCode::Unknown);
                self.outbox.push_back(Message::Reject { alias, code, retry_after_ms: 0 });
                self.check_outbox()
            }
            Message::Subscribe(_) => Err(Violation::Unexpected("SUBSCRIBE")),
            Message::Unsubscribe { .. } | Message::Credit { .. } | Message::Stop { .. } | Message::Rank { .. } => Ok(()),
        }
    }

    /// Takes a datagram.
    pub fn handle_datagram(&mut self, now: Instant, mut datagram: Bytes) -> Result<(), Violation> {
        match block::parse_datagram(&mut datagram) {
            Some(head) => self.fetches.datagram(now, head, datagram, &mut self.outbox, &mut self.events),
            None => self.fetches.stray(),
        }
    }

    /// Takes the next bytes of a stream that the server has opened; `stream` is QUIC's number for it. Streams end with
    /// [`Proto::handle_stream_end`], refused ones too.
    pub fn handle_stream(&mut self, now: Instant, stream: u64, bytes: &[u8]) -> Result<(), Violation> {
        match self.streams.entry(stream).or_insert_with(|| Incoming::Head(BytesMut::new())) {
            Incoming::Blocks { alias, records } => {
                records.push(bytes);
                let alias = *alias;
                self.take_records(now, stream, alias)
            }
            Incoming::Object { request } => {
                let request = *request;
                self.take_object(stream, request, bytes)
            }
            Incoming::Refused => Ok(()),
            Incoming::Head(head) => {
                head.extend_from_slice(bytes);
                let Some((kind, length)) = StreamHead::parse(head)? else { return Ok(()) };
                let rest = head.split_off(length).freeze();
                self.begin(now, stream, kind, &rest)
            }
        }
    }

    /// A stream has ended.
    pub fn handle_stream_end(&mut self, stream: u64, end: StreamEnd) -> Result<(), Violation> {
        match (self.streams.remove(&stream), end) {
            (Some(Incoming::Object { request }), StreamEnd::Finished) => self.gets.finished(request, &mut self.events),
            (Some(Incoming::Object { request }), StreamEnd::Reset(code)) => {
                let code = RefusalCode::from_value(code.wrapping_sub(u64::from(CODE_BASE)));
                self.gets.refused(request, refusal(code, 0, "the object's stream was reset".to_owned()), &mut self.events)
            }
            (Some(Incoming::Blocks { records, .. }), StreamEnd::Finished) if !records.is_between_records() => {
                Err(Violation::Malformed("block record"))
            }
            _ => Ok(()),
        }
    }

    /// Does what is due. Calling it early is harmless.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), Violation> {
        if let Link::Greeting { due } = self.link
            && due <= now
        {
            return Err(Violation::Timeout("HELLO"));
        }
        self.gets.expire(now, &mut self.events);
        self.fetches.advance(now, self.link.server(), &mut self.outbox, &mut self.events);
        Ok(())
    }

    /// When [`Proto::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let hello = match self.link {
            Link::Greeting { due } => Some(due),
            _ => None,
        };
        [hello, self.gets.due(), self.fetches.due()].into_iter().flatten().min()
    }

    /// The next message to send.
    pub fn poll_message(&mut self, now: Instant) -> Option<Message> {
        if self.outbox.is_empty() {
            if self.fetches.is_stirred() {
                self.fetches.advance(now, self.link.server(), &mut self.outbox, &mut self.events);
            }
            if let Some(unanswered_max) = self.link.unanswered_max() {
                self.outbox.extend(self.gets.next_question(unanswered_max).map(Message::Get));
            }
        }
        self.outbox.pop_front()
    }

    /// The next thing that has come. To be asked after [`Proto::poll_message`], which may bring something about.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next stream to refuse with STOP_SENDING and DONE.
    pub fn poll_stop(&mut self) -> Option<u64> {
        self.stops.pop_front()
    }

    /// What was counted since the start.
    pub fn counts(&self) -> Counts {
        self.fetches.counts()
    }

    /// How far the open generations are.
    pub fn progress(&self) -> Vec<Progress> {
        self.fetches.progress()
    }

    /// Share of the datagrams that are lost at present, and bytes of payload a second.
    pub fn path(&self) -> (f64, f64) {
        self.fetches.path()
    }

    /// Whether the server takes nothing new.
    pub fn is_leaving(&self) -> bool {
        matches!(self.link, Link::Leaving)
    }

    /// Whether nothing is asked of the server at present.
    pub fn is_quiet(&self) -> bool {
        self.fetches.is_quiet() && self.outbox.is_empty()
    }

    /// What the server has said of itself, while a connection stands.
    pub fn server(&self) -> Option<&Hello> {
        self.link.server()
    }

    /// Whether everything wished for has been granted or refused.
    pub fn is_idle(&self) -> bool {
        self.gets.is_empty() && self.fetches.is_empty() && self.outbox.is_empty()
    }

    fn handle_hello(&mut self, message: Message) -> Result<(), Violation> {
        let Message::Hello(server) = message else { return Err(Violation::Unexpected("message before HELLO")) };
        self.config.hello.agree(&server)?;
        self.link = Link::Open { server };
        self.fetches.stir();
        self.events.push_back(Event::Ready);
        Ok(())
    }

    /// The server takes nothing new.
    fn leave(&mut self) {
        if matches!(self.link, Link::Open { .. }) {
            self.link = Link::Leaving;
            self.events.push_back(Event::GoingAway);
        }
    }

    fn handle_meta(&mut self, meta: Meta) -> Result<(), Violation> {
        let fits = match &meta.delivery {
            crate::wire::message::Delivery::Coded(shape) => self.config.hello.takes(shape),
            _ => meta.length <= self.config.hello.segment_bytes_max,
        };
        if !fits {
            return Err(Violation::Limit("META"));
        }
        if self.subscriptions.contains_key(&meta.request) {
            self.events.push_back(Event::Announced { request: meta.request, meta });
            return Ok(());
        }
        self.gets.answered(meta, &mut self.events)
    }

    /// The head of a stream has come, and perhaps more.
    fn begin(&mut self, now: Instant, stream: u64, head: StreamHead, rest: &[u8]) -> Result<(), Violation> {
        match head {
            StreamHead::Blocks { alias } => {
                let Some(generation) = self.fetches.generation(alias) else {
                    self.refuse_stream(stream);
                    return Ok(());
                };
                let mut records = Records::new(generation);
                records.push(rest);
                self.streams.insert(stream, Incoming::Blocks { alias, records });
                self.take_records(now, stream, alias)
            }
            StreamHead::Object { request } => {
                self.streams.insert(stream, Incoming::Object { request });
                self.take_object(stream, request, rest)
            }
        }
    }

    fn take_records(&mut self, now: Instant, stream: u64, alias: u16) -> Result<(), Violation> {
        let Some(Incoming::Blocks { records, .. }) = self.streams.get_mut(&stream) else { return Ok(()) };
        while let Some(block) = records.next()? {
            if !self.fetches.record(now, alias, &block, &mut self.outbox, &mut self.events)? {
                self.refuse_stream(stream);
                return Ok(());
            }
        }
        Ok(())
    }

    fn take_object(&mut self, stream: u64, request: u64, bytes: &[u8]) -> Result<(), Violation> {
        if !self.gets.object_bytes(request, bytes)? {
            self.refuse_stream(stream);
        }
        Ok(())
    }

    fn refuse_stream(&mut self, stream: u64) {
        self.streams.insert(stream, Incoming::Refused);
        self.stops.push_back(stream);
    }

    /// A server that asks and does not read what it is told is no server.
    fn check_outbox(&self) -> Result<(), Violation> {
        if self.outbox.len() > 4096 { Err(Violation::Flood("questions")) } else { Ok(()) }
    }
}

impl Link {
    /// The server, where it takes new requests.
    fn server(&self) -> Option<&Hello> {
        match self {
            Self::Open { server } => Some(server),
            _ => None,
        }
    }

    /// How many GETs may be unanswered, where any may be sent.
    fn unanswered_max(&self) -> Option<usize> {
        match self {
            Self::Down => None,
            // GETs may go out behind our HELLO, before the server's has come.
            Self::Greeting { .. } => Some(usize::from(Hello::defaults().requests_max)),
            Self::Open { server } => Some(usize::from(server.requests_max)),
            Self::Leaving => None,
        }
    }
}

fn refusal(code: RefusalCode, retry_after_ms: u64, reason: String) -> Refusal {
    let retry_after = (retry_after_ms > 0).then(|| Duration::from_millis(retry_after_ms));
    Refusal { code, retry_after, reason }
}

#[cfg(test)]
mod tests;
