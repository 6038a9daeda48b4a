//! The server's side of a conversation, without I/O: what may be asked, what is owed, in which
//! order.
//!
//! Messages go in with [`Proto::handle_message`], answers of the rest of the server with
//! [`Proto::resolved`], [`Proto::found`] and [`Proto::announced`]. Out come messages
//! ([`Proto::poll_message`]), questions and endings ([`Proto::poll_event`]), demand for the ring
//! ([`Proto::poll_want`]), and the order in which requests may claim blocks ([`Proto::claims`]).
//! After any call that puts something in, poll all of them until they are empty; polling too often
//! is harmless. [`Proto::poll_timeout`] may have changed after any call.
//!
//! Hashes and checksums of a segment's blocks are judged by where the segment lies, like blocks of
//! it: it is found first, and only then asked about ([`Event::Hashes`], [`Event::Checks`]).
//!
//! What a peer may ask for is an [`Access`], which the driver brings with [`Proto::set_access`]
//! and, when [`Proto::poll_credential`] gives it a token to judge, with [`Proto::judged`].
//! Questions that it does not allow are put all the same, as questions for what is nowhere: they
//! take the way, and the time, of a question for a stream that does not exist.
//!
//! A request is credit that runs down. A window of it is registered at the ring, so that nothing is
//! encoded for a peer that does not read; the rest waits until blocks have left. Requests are
//! served by earliest deadline.
//!
//! A request leases its segment while blocks of it are to leave, and no longer: one without credit
//! keeps nothing in memory, takes the lease again when credit comes, and is ended if its segment
//! goes meanwhile, or if none comes for [`Config::stall_timeout`].

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ncs_codec::block::Vector;

use crate::admission::{Access, Kept, Ledger, Share};
use crate::object::{
    Birth, Body, Codec, Coding, FirstPass, GRACE, Generation, GenerationKey, Held, Lease, Refusal, Released, Resolved, SegmentId,
    SegmentKey, Shape,
};
use crate::ring::{HEADROOM, Lane, LineKey, SessionId};
use crate::time::Instant;
use crate::wire::message::{
    Accept, Checks, Codecs, Credential, Delivery, GRANT_FOREVER, Get, GetChecks, Hello, Holding, Introduction, Meant, Message,
    Meta, REASON_MAX, Request, RequestCode, RequestError, StopReason, Subscribe, VisitId, stream_of,
};
use crate::wire::text::plain;
use crate::wire::{MINOR, Violation, block};

/// Messages that wait for the control stream; a peer that lets more pile up is not reading.
const OUTBOX_MAX: usize = 1024;

/// How long a peer counts as a viewer of a stream after a question for it; and how often it is
/// looked whether one still has a request open.
const WATCHES_FOR: Duration = Duration::from_secs(30);
const WATCH_LOOK_EVERY: Duration = Duration::from_secs(1);

/// Streams that are told apart between two looks at what a session has counted.
const STREAMS_TALLIED_MAX: usize = 32;

/// How long it is remembered by which path a peer was told of a segment.
const TOLD_FOR: Duration = Duration::from_secs(30);
/// How often a request is looked at, whether its segment is still there: a peer that says and reads
/// nothing wakes nobody.
const LEASE_LOOK_EVERY: Duration = Duration::from_secs(1);
/// When a question or REQUEST may be made again that would keep too much in memory.
const LEASES_RETRY: Duration = Duration::from_millis(200);
/// When a newcomer may ask again that there is no time for, and for how long a peer is one: about
/// until it is found that there were too many.
const CROWDED_RETRY: Duration = Duration::from_secs(2);
const NEWCOMER_FOR: Duration = Duration::from_secs(10);
/// When to ask a relay again that cannot send a segment in the way that was asked for.
const RECODED_RETRY: Duration = Duration::from_millis(500);

/// The farthest deadline that is kept; later ones count as this.
const DEADLINE_MAX: Duration = Duration::from_secs(3600);

/// How much of a peer's rate of control bytes it may send at once.
const BUDGET_DEPTH: Duration = Duration::from_secs(1);

/// Stands for every path that may not be asked for: no stream can have its name.
const NOWHERE: &str = "/?/";
const NO_STREAM: &str = "?";

/// What is said of whatever is not there, to those who may not have everything.
const NOT_THERE: &str = "no such object";

/// What a GET or SUBSCRIBE costs, where a lookup of a segment is one: paths are parsed, and signed
/// answers made.
const GET_COST: u32 = 4;
/// How many questions are taken of a session in a second though others of its address or token have
/// asked for more than their share.
const ASSURED_PER_SECOND: u64 = 100;

/// How many OFFERs and HAVEs may come at once, as after a new connection, and one more in which
/// time.
const OFFERS_MAX: u32 = 32;
const OFFERS_EVERY: Duration = Duration::from_millis(200);

/// How often those who go on asking for a segment are told anew who else has it.
pub const INTRODUCE_EVERY: Duration = Duration::from_secs(1);

/// How many tokens may come at once, and one more in which time.
const TOKENS_MAX: u32 = 8;
const TOKEN_EVERY: Duration = Duration::from_secs(5);

/// How many questions for checksums may come at once, and one more in which time: each costs a pass
/// over a generation.
const CHECKS_MAX: u32 = 16;
const CHECKS_EVERY: Duration = Duration::from_millis(250);

/// How many reports of wrong blocks are heard at once, and one more in which time.
const BLAMES_MAX: u32 = 8;
const BLAMES_EVERY: Duration = Duration::from_secs(10);

/// What a peer may do in one session, and how much is prepared for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// What the server calls itself.
    pub agent: &'static str,
    /// Open requests, one for each generation under way; and as many questions that wait for an
    /// answer.
    pub requests_max: u16,
    /// Blocks of unspent credit of a request.
    pub credit_max: u32,
    /// Streams whose new segments are announced to one peer.
    pub subscriptions_max: u16,
    /// Segments of which a session remembers by which path it has told its peer of them.
    pub known_segments_max: u16,
    /// Blocks of one request that are encoded ahead of what has left.
    pub window_blocks: u32,
    /// Bytes of control frames that are read of a peer in a second; more have to wait.
    pub control_bytes_per_second: u64,
    /// Questions that are taken of a peer in a second, REQUESTs among them; a GET or SUBSCRIBE
    /// counts as four. More have to wait.
    pub questions_per_second: u32,
    /// The same of those who share an address. Who asks for little is not held up.
    pub address_questions_per_second: u32,
    /// The same of those who share a token or client certificate.
    pub token_questions_per_second: u32,
    /// A request that no credit comes for ends after this time.
    pub stall_timeout: Duration,
    /// Bytes that one session keeps in memory: segments by its requests, and objects and hashes on
    /// their way to it. One of them may be larger.
    pub leased_bytes_max: u64,
    /// The same of those who share an address.
    pub address_leased_bytes_max: u64,
    /// The same of those who share a token or client certificate.
    pub token_leased_bytes_max: u64,
    /// How long a new connection may take to say HELLO.
    pub hello_timeout: Duration,
    /// Whether blocks travel in datagrams where they fit.
    pub datagrams: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            agent: concat!("ncs-proto/", env!("CARGO_PKG_VERSION")),
            requests_max: 32,
            credit_max: 2048,
            subscriptions_max: 8,
            known_segments_max: 64,
            window_blocks: 64,
            control_bytes_per_second: 1 << 20,
            questions_per_second: 4000,
            address_questions_per_second: 40_000,
            token_questions_per_second: 40_000,
            stall_timeout: Duration::from_secs(10),
            leased_bytes_max: 64 << 20,
            address_leased_bytes_max: 128 << 20,
            token_leased_bytes_max: 128 << 20,
            hello_timeout: Duration::from_secs(10),
            datagrams: true,
        }
    }
}

impl Config {
    /// What the server says of itself.
    pub fn hello(&self) -> Hello {
        Hello {
            minor: (MINOR, MINOR),
            codecs: Codecs::ALL,
            n_max: Shape::N_LIMIT,
            block_bytes_max: Shape::BLOCK_BYTES_MAX,
            segment_bytes_max: Shape::LENGTH_MAX,
            requests_max: self.requests_max,
            credit_max: self.credit_max,
            agent: self.agent.to_owned(),
            visit: None,
        }
    }
}

/// The server's side of one conversation.
#[derive(Debug)]
pub struct Proto {
    session: SessionId,
    config: Config,
    access: Access,
    /// What waits to be judged.
    credential: Option<Credential>,
    /// How fast tokens and tickets, questions for checksums, reports of wrong blocks, and news of
    /// what a peer holds may come.
    tokens: Rate,
    checks: Rate,
    blames: Rate,
    offers: Rate,
    has_offered: bool,
    /// Whether the peer has shown something, or was told that it has to.
    knows_credentials: bool,
    /// What HELLO has said and nobody has asked for.
    visit: Option<VisitId>,
    hello_due: Option<Instant>,
    peer: Option<Hello>,
    draining: bool,
    /// Whether newcomers are sent away; and what tells whether this peer is one.
    is_crowded: bool,
    is_served: bool,
    begun: Instant,
    outbox: VecDeque<Message>,
    events: VecDeque<Event>,
    unanswered: usize,
    subscriptions: Vec<u64>,
    told: BTreeMap<(SegmentId, Coding), Told>,
    finding: HashMap<u64, Request>,
    /// Questions about segments that wait for the segment, or for the answer.
    asked: HashMap<u64, Asked>,
    next_ticket: u64,
    /// How often the peer was told of a segment.
    names: u64,
    requests: BTreeMap<u16, Open>,
    /// Requests whose deadline has moved, and the ring has not heard of it.
    rescheduled: BTreeSet<u16>,
    ledgers: Ledgers,
    /// When leases were last looked at.
    looked_at: Instant,
    /// When blocks were last on their way to the peer without its acknowledgement.
    unacknowledged_at: Instant,
    control: Budget,
    /// Of this session, and how many are taken of it whatever others of its address or token ask.
    questions: Budget,
    assured: Budget,
    datagram_max: Option<usize>,
    tally: Tally,
    /// GETs and SUBSCRIBEs without an answer yet, and REQUESTs that are looked for or open: of
    /// which streams, and since when.
    asking: HashMap<u64, Asking>,
    aliases: HashMap<u16, Asking>,
    /// The streams that the peer watches, and until when if nothing happens.
    watched: Vec<(Arc<str>, Instant)>,
    by_stream: Vec<(Arc<str>, StreamTally)>,
}

/// What the driver is to do.
#[derive(Debug)]
pub enum Event {
    /// Ask what a path is; answer with [`Proto::resolved`].
    Resolve(Get),
    /// Look for the segment of a REQUEST or of a question; answer with [`Proto::found`].
    Find {
        /// Names the question.
        ticket: u64,
        /// The segment.
        id: SegmentId,
        /// How it is coded; any of this id if the peer has neither said so nor been told of one.
        coding: Option<Coding>,
        /// What the peer was told of by this id and coding, if it was told of anything.
        told: Option<SegmentKey>,
    },
    /// Ask for the hashes of a segment's blocks; answer with [`Proto::hashes`].
    Hashes {
        /// Names the question.
        ticket: u64,
        /// The segment.
        held: Held,
    },
    /// Ask for checksums of a generation that the segment has; answer with [`Proto::checks`].
    Checks {
        /// Names the question.
        ticket: u64,
        /// The segment.
        held: Held,
        /// As it came.
        asked: GetChecks,
    },
    /// Start to announce a stream; answer with [`Proto::subscribed`], then [`Proto::announced`].
    Subscribe(Subscribe),
    /// Announce nothing more for this SUBSCRIBE.
    Unsubscribed {
        /// The SUBSCRIBE.
        request: u64,
    },
    /// Send a whole object on a stream of its own.
    Deliver {
        /// The GET it answers.
        request: u64,
        /// The object.
        bytes: Bytes,
        /// Where it is counted until it has left. One that is revoked ends the delivery.
        shares: Vec<Share>,
    },
    /// The peer serves others on this port of its address, with the certificate of this SHA-256;
    /// not any more, on port 0.
    Offer {
        /// UDP.
        port: u16,
        /// Of the certificate.
        identity: [u8; 32],
    },
    /// What has changed of what the peer holds.
    Have(Vec<Holding>),
    /// Name others that hold a segment, if there are any; answer with [`Proto::introduce`].
    Introduce {
        /// The segment.
        segment: SegmentId,
        /// How it is coded.
        coding: Coding,
        /// The stream that it is of.
        stream: String,
    },
    /// Send hashes on a stream of their own; say [`Proto::hashes_left`] when that is over.
    DeliverHashes {
        /// The GET_HASHES that they answer.
        request: u64,
        /// The hashes.
        bytes: Bytes,
        /// Where they are counted until they have left. One that is revoked ends the delivery.
        shares: Vec<Share>,
    },
    /// The peer reports wrong blocks.
    Blame {
        /// Of this segment.
        segment: SegmentId,
        /// Of this generation of it.
        generation: u32,
        /// How many.
        blocks: u32,
        /// SHA-256 of the certificate that their sender showed.
        identity: [u8; 32],
    },
    /// Recoded blocks of a line have not arrived.
    Lost {
        /// The line.
        line: LineKey,
        /// How many.
        blocks: u32,
    },
    /// What a request waits for is due at another time.
    Rescheduled {
        /// The request.
        alias: u16,
        /// The lines that it waits for blocks of.
        lines: [Option<LineKey>; 2],
        /// When they are of no use any more.
        deadline: Instant,
    },
    /// A request is over: leave its lines, and end its stream.
    Ended(Ended),
    /// The peer has begun to watch a stream, or has stopped.
    Watches {
        /// The stream's name, as it stands in paths.
        stream: Arc<str>,
        /// Whether it does now.
        is_watched: bool,
    },
}

/// A request that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The request.
    pub alias: u16,
    /// Its line of coded blocks.
    pub line: LineKey,
    /// Whether what is on the way is of no use any more.
    pub abandon: bool,
}

/// Demand to register at the ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// This many blocks of a line of coded ones.
    Coded(LineKey, u32),
    /// These blocks by their numbers: source blocks, and parity blocks behind them.
    Source(GenerationKey, Range<u16>),
}

/// A request that may claim blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The request.
    pub alias: u16,
    /// Where its blocks lie.
    pub line: LineKey,
    /// How many it may take.
    pub blocks: u32,
    /// How they travel.
    pub route: Route,
    /// When they are of no use any more.
    pub deadline: Instant,
}

/// How blocks travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// One datagram each.
    Datagram,
    /// As records of the request's stream.
    Stream,
}

/// A header made for a block.
#[derive(Debug, Clone)]
pub struct Stamp {
    header: Header,
    /// Bytes of the payload that travel.
    pub payload: usize,
}

impl Stamp {
    /// The header.
    pub fn header(&self) -> &[u8] {
        match &self.header {
            Header::Short { bytes, length } => &bytes[..*length],
            Header::Long(bytes) => bytes,
        }
    }
}

/// The bytes of a header, in place unless they are many coefficients.
#[derive(Debug, Clone)]
enum Header {
    Short { bytes: [u8; HEADROOM], length: usize },
    Long(Vec<u8>),
}

impl Header {
    fn write(length: usize, write: impl FnOnce(&mut [u8])) -> Self {
        if length > HEADROOM {
            let mut bytes = vec![0; length];
            write(&mut bytes);
            return Self::Long(bytes);
        }
        let mut bytes = [0; HEADROOM];
        write(&mut bytes[..length]);
        Self::Short { bytes, length }
    }
}

/// Counts since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests opened.
    pub requests: u64,
    /// Blocks that peers reported useless.
    pub useless: u64,
    /// Datagrams that peers reported lost.
    pub lost: u64,
    /// Requests that met their deadline.
    pub late: u64,
    /// Requests that went from datagrams to a stream because their blocks no longer fit.
    pub moved: u64,
    /// GETs, SUBSCRIBEs and REQUESTs refused.
    pub refused: u64,
    /// Requests ended because no credit came for them.
    pub idle: u64,
    /// Requests ended because their segment had been evicted.
    pub evicted: u64,
    /// Requests rejected because too much would be kept in memory for them.
    pub unleased: u64,
    /// Grants that have ended.
    pub lapsed: u64,
    /// GET_HASHES answered, and refused.
    pub hashes: (u64, u64),
    /// GET_CHECKS answered, and refused.
    pub checks: (u64, u64),
    /// Reports of wrong blocks heard, and passed over.
    pub blames: (u64, u64),
}

/// Counts of one stream since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamTally {
    /// Payload bytes of blocks that left.
    pub sent_bytes: u64,
    /// Coded blocks that left.
    pub coded: u64,
    /// Blocks that left beyond the n of their request's generation.
    pub repair: u64,
    /// Requests that met their deadline.
    pub late: u64,
    /// GETs, SUBSCRIBEs and REQUESTs refused otherwise.
    pub refused: u64,
}

/// A question of the peer.
#[derive(Debug)]
struct Asking {
    /// The name of the stream that it is about; empty where that is not known.
    stream: Arc<str>,
    /// When it came.
    at: Instant,
}

/// A question about a segment.
#[derive(Debug)]
struct Asked {
    request: u64,
    about: About,
    /// Where the segment lies, once it is found.
    path: Option<Arc<str>>,
}

#[derive(Debug)]
enum About {
    Hashes,
    Checks(GetChecks),
}

/// What the peer was told of by the id of a segment. It holds no lease: a peer that asks for
/// nothing but names must not keep segments in the store.
#[derive(Debug)]
struct Told {
    path: Arc<str>,
    key: SegmentKey,
    /// Its place in the order in which the peer was told of anything.
    named: u64,
    until: Instant,
    /// How long the peer's question waited for the answer, once the segment was complete at its
    /// source.
    waited: Duration,
    /// When the peer was last told who else has it.
    introduced: Option<Instant>,
}

#[derive(Debug)]
struct Open {
    /// What its segment is known by.
    name: (SegmentId, Coding),
    path: Option<Arc<str>>,
    birth: Option<Arc<Birth>>,
    tenure: Tenure,
    generation: Generation,
    key: GenerationKey,
    /// Where its coded blocks lie.
    lane: Lane,
    accept: Accept,
    deadline: Instant,
    /// Blocks that may still leave.
    credit: u32,
    /// Blocks to send by their numbers before any other, not yet registered at the ring: source
    /// blocks, and parity blocks behind them.
    numbered: VecDeque<Range<u16>>,
    source_wanted: u32,
    coded_wanted: u32,
    seq: u16,
    on_stream: bool,
    reported: (u32, u32),
    /// Blocks that have left.
    left: u64,
    /// Whether blocks have had to wait for the peer: for its credit, its path, or its
    /// acknowledgements.
    is_held_back: bool,
}

/// Whether a request keeps its segment in memory.
#[derive(Debug)]
enum Tenure {
    /// Blocks are to leave.
    Leased(Tenancy),
    /// None can before more credit comes, since then.
    Idle(Released, Instant),
}

/// A lease, and where it is counted.
#[derive(Debug)]
struct Tenancy {
    lease: Lease,
    shares: Vec<Share>,
    /// When blocks last left, or the lease was taken.
    used_at: Instant,
}

/// What counts what a session keeps in memory, and how many bytes each may count. Clones count in
/// the same books.
#[derive(Debug, Clone)]
pub struct Ledgers {
    by: SessionId,
    /// Deliveries that have been counted.
    deliveries: u64,
    session: (Arc<Ledger>, u64),
    address: (Option<Arc<Ledger>>, u64),
    token: (Option<Arc<Ledger>>, u64),
    /// Questions of the address and of the token in a second.
    questions: (u32, u32),
}

/// Why a request cannot keep its segment.
#[derive(Debug)]
enum Unleased {
    /// It has gone.
    Gone,
    /// Others are kept for the same session, address or token.
    Full,
}

impl Ledgers {
    /// Those of a new session, whose address and token are not known yet.
    pub fn new(by: SessionId, config: &Config) -> Self {
        Self {
            by,
            deliveries: 0,
            session: (Arc::default(), config.leased_bytes_max),
            address: (None, config.address_leased_bytes_max),
            token: (None, config.token_leased_bytes_max),
            questions: (config.address_questions_per_second, config.token_questions_per_second),
        }
    }

    fn ask(&self, now: Instant, questions: u32) {
        for ((ledger, _), most) in [(&self.address, self.questions.0), (&self.token, self.questions.1)] {
            ledger.iter().for_each(|ledger| ledger.ask(now, questions, most));
        }
    }

    /// When address and token may ask more, if not now.
    fn resumes(&self, now: Instant) -> Option<Instant> {
        [&self.address, &self.token].into_iter().filter_map(|(ledger, _)| ledger.as_ref()?.resumes(now)).max()
    }

    /// Counts a segment everywhere, or nowhere if that is too much.
    pub fn keep(&self, now: Instant, segment: SegmentKey, bytes: u64) -> Option<Vec<Share>> {
        self.take(now, (Kept::Segment(segment), bytes))
    }

    fn lease(&self, now: Instant, lease: &Lease) -> Result<Vec<Share>, Unleased> {
        self.keep(now, lease.key, lease.shape.length()).ok_or(Unleased::Full)
    }

    fn deliver(&mut self, now: Instant, bytes: &Bytes) -> Result<Vec<Share>, Refusal> {
        self.deliveries += 1;
        let shares = self.take(now, (Kept::Delivery(self.by.0, self.deliveries), bytes.len() as u64));
        shares.ok_or_else(|| {
            let reason = "too much is on the way".to_owned();
            Refusal { code: RequestCode::Overload, retry_after: Some(LEASES_RETRY), reason }
        })
    }

    /// Counts something everywhere, or nowhere.
    fn take(&self, now: Instant, kept: (Kept, u64)) -> Option<Vec<Share>> {
        let shared = [&self.address, &self.token].into_iter().filter_map(|(ledger, most)| Some((ledger.as_ref()?, *most)));
        let all = std::iter::once((&self.session.0, self.session.1)).chain(shared);
        all.map(|(ledger, most)| ledger.take(now, kept, self.by.0, most)).collect()
    }
}

impl Tenancy {
    /// Blocks with so many bytes have left for the request.
    fn note_used(&mut self, now: Instant, bytes: u64) {
        self.used_at = now;
        self.lease.note_used(now, bytes);
        self.shares.iter_mut().for_each(|share| share.note_read(now));
    }

    /// A request that has got nothing for a while keeps nothing by what others get.
    fn look(&mut self, now: Instant) {
        if self.used_at + GRACE <= now {
            self.lease.note_stalled();
            self.shares.iter_mut().for_each(Share::note_stalled);
        }
    }
}

impl Proto {
    /// A conversation on a connection that has stood since `now`.
    pub fn new(session: SessionId, config: impl Into<Config>, now: Instant) -> Self {
        let config = config.into();
        let mut proto = Self {
            session,
            config,
            access: Access::Free,
            credential: None,
            tokens: Rate::new(TOKENS_MAX, TOKEN_EVERY, now),
            checks: Rate::new(CHECKS_MAX, CHECKS_EVERY, now),
            blames: Rate::new(BLAMES_MAX, BLAMES_EVERY, now),
            offers: Rate::new(OFFERS_MAX, OFFERS_EVERY, now),
            has_offered: false,
            knows_credentials: false,
            visit: None,
            hello_due: Some(now + config.hello_timeout),
            peer: None,
            draining: false,
            is_crowded: false,
            is_served: false,
            begun: now,
            outbox: VecDeque::new(),
            events: VecDeque::new(),
            unanswered: 0,
            subscriptions: Vec::new(),
            told: BTreeMap::new(),
            finding: HashMap::new(),
            asked: HashMap::new(),
            next_ticket: 0,
            names: 0,
            requests: BTreeMap::new(),
            rescheduled: BTreeSet::new(),
            ledgers: Ledgers::new(session, &config),
            looked_at: now,
            unacknowledged_at: now,
            control: Budget::new(config.control_bytes_per_second, now),
            questions: Budget::new(config.questions_per_second.into(), now),
            assured: Budget::new(ASSURED_PER_SECOND, now),
            datagram_max: None,
            tally: Tally::default(),
            asking: HashMap::new(),
            aliases: HashMap::new(),
            watched: Vec::new(),
            by_stream: Vec::new(),
        };
        proto.outbox.push_back(Message::Hello(config.hello()));
        proto
    }

    /// Bytes arrived on the control stream.
    pub fn handle_control_bytes(&mut self, now: Instant, bytes: usize) {
        self.control.spend(now, bytes as u64);
    }

    /// When the control stream may be read again, if the peer has sent more than its share of bytes
    /// or questions: until then QUIC's flow control holds it back.
    pub fn control_resumes(&self, now: Instant) -> Option<Instant> {
        // Who asks for little takes no lock that is its neighbours'.
        let shared = self.assured.resumes(now).and_then(|_| self.ledgers.resumes(now));
        self.control.resumes(now).max(self.questions.resumes(now)).max(shared)
    }

    /// Takes a message.
    pub fn handle_message(&mut self, now: Instant, message: Message) -> Result<(), Violation> {
        if self.peer.is_none() {
            return self.handle_hello(message);
        }
        match message {
            Message::Auth(credential) => self.handle_auth(now, credential),
            Message::Get(get) => self.handle_get(now, get),
            Message::Subscribe(subscribe) => self.handle_subscribe(now, subscribe),
            Message::Unsubscribe { request } => {
                self.subscriptions.retain(|open| *open != request);
                self.asking.remove(&request);
                self.events.push_back(Event::Unsubscribed { request });
                Ok(())
            }
            Message::Request(request) => self.handle_request(now, request),
            Message::Credit { alias, blocks } => self.handle_credit(now, alias, blocks),
            Message::Reschedule { alias, deadline_ms } => {
                self.handle_reschedule(now, alias, deadline_ms);
                Ok(())
            }
            Message::Stop { alias, reason } => {
                self.handle_stop(alias, reason);
                Ok(())
            }
            Message::Rank { alias, useless, lost, .. } => {
                self.handle_rank(alias, useless, lost);
                Ok(())
            }
            // A peer that leaves says so; what it still wants it goes on asking for.
            Message::GoAway { .. } => Ok(()),
            Message::GetHashes { request, segment, meant } => self.handle_question(now, request, (segment, meant), About::Hashes),
            Message::GetChecks(asked) => {
                self.handle_question(now, asked.request, (asked.segment, asked.meant), About::Checks(asked))
            }
            Message::Blame { segment, generation, blocks, identity } => {
                match self.blames.take(now) {
                    Ok(()) if !matches!(self.access, Access::Refused { .. }) => {
                        self.tally.blames.0 += 1;
                        self.events.push_back(Event::Blame { segment, generation, blocks, identity });
                    }
                    // Too many, or of somebody who may have nothing here.
                    _ => self.tally.blames.1 += 1,
                }
                Ok(())
            }
            // Whoever may have nothing here, or talks too much, is not heard.
            Message::Offer { .. } | Message::Have(_)
                if matches!(self.access, Access::Refused { .. }) || self.offers.take(now).is_err() =>
            {
                Ok(())
            }
            Message::Offer { port, identity } => {
                self.has_offered = port != 0;
                self.events.push_back(Event::Offer { port, identity });
                Ok(())
            }
            Message::Have(holdings) => {
                self.events.push_back(Event::Have(holdings));
                Ok(())
            }
            Message::Peers { .. } => Ok(()),
            Message::Checks(_) => Err(Violation::Unexpected("CHECKS")),
            Message::Hello(_) => Err(Violation::Unexpected("HELLO")),
            Message::Grant { .. } => Err(Violation::Unexpected("GRANT")),
            Message::Meta(_) => Err(Violation::Unexpected("META")),
            Message::Error(_) => Err(Violation::Unexpected("ERROR")),
            Message::SubscribeOk { .. } => Err(Violation::Unexpected("SUBSCRIBE_OK")),
            Message::Reject { .. } => Err(Violation::Unexpected("REJECT")),
        }
    }

    /// The visit that the peer has just said to be of.
    pub fn poll_visit(&mut self) -> Option<VisitId> {
        self.visit.take()
    }

    /// The token or ticket that the last message has brought, to be judged before the next message
    /// is taken. Answer with [`Proto::judged`].
    pub fn poll_credential(&mut self) -> Option<Credential> {
        self.credential.take()
    }

    /// The answer to [`Proto::poll_credential`]: whether it counts, and what the peer may have.
    pub fn judged(&mut self, now: Instant, counts: bool, access: Access) {
        self.set_access(access);
        let lasts_ms = match &self.access {
            _ if !counts => 0,
            Access::Free | Access::Granted { until: None, .. } => GRANT_FOREVER,
            Access::Granted { until: Some(until), .. } => millis(until.saturating_duration_since(now)).max(1),
            Access::Refused { .. } => 0,
        };
        self.send(Message::Grant { lasts_ms });
    }

    /// What the peer may have from now on. What it has open and may not have any more ends.
    pub fn set_access(&mut self, access: Access) {
        if let (Access::Refused { .. }, Access::Refused { .. }) = (&self.access, &access) {
            // The time of those who may have nothing runs from when that began.
            return;
        }
        let before = std::mem::replace(&mut self.access, access);
        if let (Access::Granted { .. }, Access::Refused { .. }) = (&before, &self.access) {
            self.tally.lapsed += 1;
            self.send(Message::Grant { lasts_ms: 0 });
            // Whoever has lost its right is not named to others either.
            if std::mem::take(&mut self.has_offered) {
                self.events.push_back(Event::Offer { port: 0, identity: [0; 32] });
            }
        }
        if let (Access::Granted { scope: before, .. }, Access::Granted { scope, .. }) = (&before, &self.access)
            && before == scope
        {
            return;
        }
        let access = &self.access;
        self.told.retain(|_, told| access.allows(&told.path));
        let is_over = |open: &Open| !access.allows_segment(open.path.as_deref());
        let over: Vec<u16> = self.requests.iter().filter(|(_, open)| is_over(open)).map(|(alias, _)| *alias).collect();
        for alias in over {
            self.reject(alias, RequestCode::Unknown, None);
            self.end(alias, true);
        }
    }

    /// The answer to [`Event::Resolve`].
    pub fn resolved(&mut self, now: Instant, request: u64, answer: Result<Resolved, Refusal>) {
        self.unanswered = self.unanswered.saturating_sub(1);
        match answer {
            Ok(resolved) if self.access.allows(&resolved.path) => self.answer(now, request, resolved),
            // The peer's right to it has ended meanwhile.
            Ok(_) => self.refuse(request, &not_there()),
            Err(refusal) => self.refuse(request, &refusal),
        }
        self.asking.remove(&request);
    }

    /// The answer to [`Event::Find`].
    pub fn found(&mut self, now: Instant, ticket: u64, held: Option<Held>) -> Result<(), Violation> {
        let held = held.map(|held| self.as_told(now, held));
        if let Some(asked) = self.asked.remove(&ticket) {
            return match held.filter(|held| self.access.allows_segment(held.path.as_deref())) {
                Some(held) => self.ask(ticket, asked, held),
                None => {
                    self.answered(now, asked, Err(not_there()));
                    Ok(())
                }
            };
        }
        // Stopped meanwhile: nobody waits.
        let Some(request) = self.finding.remove(&ticket) else { return Ok(()) };
        match held.filter(|held| self.access.allows_segment(held.path.as_deref())) {
            Some(held) => self.open(now, request, held),
            None => {
                self.reject(request.alias, RequestCode::Unknown, None);
                Ok(())
            }
        }
    }

    /// The answer to [`Event::Introduce`], where there is anybody to name.
    pub fn introduce(&mut self, segment: SegmentId, peers: Vec<Introduction>) {
        self.send(Message::Peers { segment, peers });
    }

    /// The answer to [`Event::Hashes`].
    pub fn hashes(&mut self, now: Instant, ticket: u64, answer: Result<Bytes, Refusal>) {
        if let Some(asked) = self.asked.remove(&ticket) {
            self.answered(now, asked, answer.map(Found::Hashes));
        }
    }

    /// Hashes have left, or are not wanted any more.
    pub fn hashes_left(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    /// The answer to [`Event::Checks`].
    pub fn checks(&mut self, now: Instant, ticket: u64, answer: Result<Checks, Refusal>) {
        if let Some(asked) = self.asked.remove(&ticket) {
            self.answered(now, asked, answer.map(Found::Checks));
        }
    }

    /// The answer to [`Event::Subscribe`]. False if nothing is to be announced.
    pub fn subscribed(&mut self, request: u64, answer: Result<(), Refusal>) -> bool {
        if !self.subscriptions.contains(&request) {
            // Ended meanwhile.
            return false;
        }
        match answer {
            Ok(()) => {
                self.asking.remove(&request);
                self.send(Message::SubscribeOk { request });
                true
            }
            Err(refusal) => {
                self.refuse(request, &refusal);
                false
            }
        }
    }

    /// A new segment of a stream that the peer subscribed to. False if it no longer is.
    pub fn announced(&mut self, now: Instant, request: u64, resolved: Resolved) -> bool {
        if self.subscriptions.contains(&request) && self.access.allows(&resolved.path) {
            self.answer(now, request, resolved);
        }
        self.subscriptions.contains(&request)
    }

    /// A subscribed stream is published no more.
    pub fn subscription_ended(&mut self, request: u64) {
        if self.subscriptions.contains(&request) {
            let reason = "the stream is published no more".to_owned();
            self.refuse(request, &Refusal { code: RequestCode::Unknown, retry_after: None, reason });
        }
    }

    /// The largest datagram that the path carries now; `None` if the peer takes none. To be read
    /// before each round of claims.
    pub fn set_datagram_max(&mut self, bytes: Option<usize>) {
        self.datagram_max = bytes.filter(|_| self.config.datagrams);
    }

    /// Whether any open request may have its blocks in datagrams, so that their room is of
    /// interest.
    pub fn takes_datagrams(&self) -> bool {
        self.requests.values().any(|open| open.accept.datagrams && !open.on_stream)
    }

    /// The peer refused to read a request's stream any further.
    pub fn stream_stopped(&mut self, alias: u16) {
        self.end(alias, true);
    }

    /// Nothing new from now on; open requests may finish.
    pub fn go_away(&mut self, drain: Duration) {
        if !self.draining {
            self.draining = true;
            self.send(Message::GoAway { drain_ms: millis(drain) });
        }
    }

    /// Whether a peer that has just come, or has had no blocks yet, is asked to come again later.
    pub fn set_crowded(&mut self, is_crowded: bool) {
        self.is_crowded = is_crowded;
    }

    /// What the peer's address keeps in memory, and the holder of its token: what is leased from
    /// now on is counted there.
    pub fn set_ledgers(&mut self, address: Arc<Ledger>, token: Option<Arc<Ledger>>) {
        (self.ledgers.address.0, self.ledgers.token.0) = (Some(address), token);
    }

    /// What counts the segments that it keeps in memory.
    pub fn ledgers(&self) -> &Ledgers {
        &self.ledgers
    }

    /// Blocks are on their way to the peer, which has not acknowledged them: it may be about to
    /// give credit.
    pub fn note_unacknowledged(&mut self, now: Instant) {
        self.unacknowledged_at = now;
    }

    /// The peer has acknowledged blocks. A stream says itself that it gets on
    /// ([`Proto::note_taken`]); of what travels in datagrams, the request that is due first goes
    /// before others, so it is taken to be the one that gets on.
    pub fn note_progress(&mut self, now: Instant) {
        let in_datagrams = self.requests.values_mut().filter(|open| open.accept.datagrams && !open.on_stream);
        let leased = in_datagrams.filter_map(|open| Some((open.deadline, open.tenancy()?)));
        if let Some((_, tenancy)) = leased.min_by_key(|(deadline, _)| *deadline) {
            tenancy.note_used(now, 0);
        }
    }

    /// QUIC has taken more of what has left on a request's stream.
    pub fn note_taken(&mut self, now: Instant, alias: u16) {
        if let Some(tenancy) = self.requests.get_mut(&alias).and_then(Open::tenancy) {
            tenancy.note_used(now, 0);
        }
    }

    /// Whether nothing is owed to the peer.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.finding.is_empty() && self.unanswered == 0 && self.outbox.is_empty()
    }

    /// When [`Proto::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadlines = self.requests.values().map(|open| open.deadline);
        let look = (!self.requests.is_empty()).then_some(self.looked_at + LEASE_LOOK_EVERY);
        let due = self.requests.values().filter_map(|open| self.idle_until(open)).chain(look);
        let told = self.told.values().map(|told| told.until);
        let watched = self.watched.iter().map(|(_, until)| *until);
        deadlines.chain(due).chain(told).chain(watched).chain(self.hello_due).chain(self.access.due()).min()
    }

    /// Does what is due. Calling it early is harmless.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), Violation> {
        if self.hello_due.is_some_and(|due| due <= now) {
            return Err(Violation::Timeout("HELLO"));
        }
        if let Some(lapsed) = self.access.lapsed(now) {
            self.set_access(lapsed);
        }
        if matches!(self.access, Access::Refused { until } if until <= now) {
            return Err(Violation::Unauthorised);
        }
        self.told.retain(|_, told| told.until > now);
        self.look_at_watched(now);
        let late: Vec<u16> = self.requests.iter().filter(|(_, open)| open.deadline <= now).map(|(alias, _)| *alias).collect();
        for alias in late {
            self.tally.late += 1;
            self.reject(alias, RequestCode::Deadline, None);
            self.end(alias, true);
        }
        self.end_idle(now);
        self.end_void();
        self.requests.values_mut().filter_map(Open::tenancy).for_each(|tenancy| tenancy.look(now));
        self.looked_at = now;
        if self.outbox.len() > OUTBOX_MAX { Err(Violation::Timeout("reading of the control stream")) } else { Ok(()) }
    }

    /// Bytes of the largest block of an open request, if there is one.
    pub fn block_bytes_max(&self) -> Option<u32> {
        self.requests.values().map(|open| open.generation.block_bytes).max()
    }

    /// Messages that wait to be sent.
    pub fn backlog(&self) -> usize {
        self.outbox.len()
    }

    /// The next message to send.
    pub fn poll_message(&mut self) -> Option<Message> {
        self.outbox.pop_front()
    }

    /// The next thing to do.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front().or_else(|| self.next_rescheduled())
    }

    /// The next demand to register at the ring, where the session may have so many blocks there in
    /// all, and its deadline.
    pub fn poll_want(&mut self, share: u32) -> Option<(Want, Instant)> {
        let registered: u32 = self.requests.values().map(|open| open.source_wanted + open.coded_wanted).sum();
        let (room, window) = (share.saturating_sub(registered), self.config.window_blocks);
        if room == 0 {
            return None;
        }
        let mut requests: Vec<&mut Open> = self.requests.values_mut().collect();
        // What little there is room for goes to what is due first, as the blocks will.
        requests.sort_by_key(|open| open.deadline);
        requests.into_iter().find_map(|open| open.next_want(window, room).map(|want| (want, open.deadline)))
    }

    /// The requests that wait for blocks, earliest deadline first.
    pub fn claims(&mut self) -> Vec<Claim> {
        let (session, datagram_max) = (self.session, self.datagram_max);
        let mut claims = Vec::new();
        for (alias, open) in &mut self.requests {
            if open.source_wanted + open.coded_wanted == 0 {
                continue;
            }
            let route = open.route(datagram_max, &mut self.tally);
            let mut add = |lane, blocks| {
                let line = LineKey { generation: open.key, lane };
                claims.push(Claim { alias: *alias, line, blocks, route, deadline: open.deadline });
            };
            if open.source_wanted > 0 {
                add(Lane::Source(session), open.source_wanted);
            }
            if open.coded_wanted > 0 {
                add(open.lane, open.coded_wanted);
            }
        }
        claims.sort_by_key(|claim| claim.deadline);
        claims
    }

    /// Spends one block of a request's credit and makes the header of the block that leaves for it.
    /// `None` if the request has ended.
    pub fn stamp(&mut self, alias: u16, vector: &Vector, route: Route) -> Option<Stamp> {
        let open = self.requests.get_mut(&alias)?;
        let payload = block::payload_len(vector, &open.generation)?;
        match vector {
            Vector::Source(_) | Vector::Shard(_) => open.source_wanted = open.source_wanted.saturating_sub(1),
            Vector::Seed(_)
            | Vector::Explicit(_)
            | Vector::Unverified(_)
            | Vector::Symbol(_)
            | Vector::Narrow(_)
            | Vector::Wide(_) => {
                open.coded_wanted = open.coded_wanted.saturating_sub(1);
            }
        }
        open.credit = open.credit.saturating_sub(1);
        self.is_served = true;
        let header = match route {
            Route::Datagram => {
                let (seq, last) = (open.seq, open.credit == 0);
                open.seq = open.seq.wrapping_add(1);
                let write = |out: &mut [u8]| block::write_datagram_header(out, vector, alias, seq, last);
                Header::write(block::datagram_header_len(vector), write)
            }
            Route::Stream => Header::write(block::record_header_len(vector), |out| block::write_record_header(out, vector)),
        };
        Some(Stamp { header, payload })
    }

    /// So many blocks of a request have left, coded ones among them, with so many bytes of payload.
    /// To be called for a batch at a time.
    pub fn note_sent(&mut self, now: Instant, alias: u16, blocks: u64, coded: u64, bytes: u64) {
        let Some(open) = self.requests.get_mut(&alias) else { return };
        open.note_used(now, bytes, &self.ledgers);
        let n = u64::from(open.generation.n);
        let repair = (open.left + blocks).saturating_sub(n.max(open.left));
        open.left += blocks;
        let tally = self.of_alias(alias);
        tally.sent_bytes += bytes;
        tally.coded += coded;
        tally.repair += repair;
    }

    /// Blocks of a request have to wait for its peer.
    pub fn note_held_back(&mut self, alias: u16) {
        if let Some(open) = self.requests.get_mut(&alias) {
            open.is_held_back = true;
        }
    }

    /// The first block of a live segment leaves, if none has left before: how long the server took
    /// for it. That is the time from the peer's question, or from when the segment was complete at
    /// its source if that was later, to META; and from REQUEST until now. `None` also where blocks
    /// had to wait for the peer.
    pub fn first_sent(&mut self, now: Instant, alias: u16) -> Option<Duration> {
        let open = self.requests.get(&alias)?;
        let is_first = open.birth.as_ref().is_some_and(|birth| birth.is_first_sent());
        if !is_first || open.is_held_back {
            return None;
        }
        let waited = self.told.get(&open.name).map_or(Duration::ZERO, |told| told.waited);
        let asked = self.aliases.get(&alias).map_or(now, |asking| asking.at);
        Some(waited + now.saturating_duration_since(asked))
    }

    /// Bytes of a coded block of an open request.
    pub fn block_bytes(&self, alias: u16) -> Option<u32> {
        self.requests.get(&alias).map(|open| open.generation.coded_bytes())
    }

    /// The lines of coded blocks of the open requests.
    pub fn lines(&self) -> impl Iterator<Item = LineKey> {
        self.requests.values().map(Open::line)
    }

    /// What happened of a stream since the last call; `None` when that is all.
    pub fn poll_stream_tally(&mut self) -> Option<(Arc<str>, StreamTally)> {
        self.by_stream.pop()
    }

    /// What happened since the last call.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    fn handle_hello(&mut self, message: Message) -> Result<(), Violation> {
        let Message::Hello(hello) = message else { return Err(Violation::Unexpected("message before HELLO")) };
        self.config.hello().agree(&hello)?;
        self.visit = hello.visit;
        self.peer = Some(hello);
        self.hello_due = None;
        Ok(())
    }

    fn handle_get(&mut self, now: Instant, mut get: Get) -> Result<(), Violation> {
        self.check_unused(get.request)?;
        // Peers ask before they know this side's HELLO.
        if self.unanswered >= usize::from(self.config.requests_max.max(Hello::defaults().requests_max)) {
            return Err(Violation::Limit("unanswered GETs"));
        }
        self.count_question(now, GET_COST);
        let stream = self.stream_named(stream_of(&get.path));
        self.asking.insert(get.request, Asking { stream, at: now });
        if self.draining {
            self.refuse(get.request, &going_away());
            return Ok(());
        }
        self.want_credential();
        if !self.access.allows(&get.path) {
            NOWHERE.clone_into(&mut get.path);
        }
        self.unanswered += 1;
        self.events.push_back(Event::Resolve(get));
        Ok(())
    }

    /// Counts what costs the rest of the server as much as so many lookups.
    fn count_question(&mut self, now: Instant, lookups: u32) {
        self.questions.spend(now, lookups.into());
        self.assured.spend(now, lookups.into());
        self.ledgers.ask(now, lookups);
    }

    fn handle_subscribe(&mut self, now: Instant, mut subscribe: Subscribe) -> Result<(), Violation> {
        self.check_unused(subscribe.request)?;
        self.count_question(now, GET_COST);
        let stream = self.stream_named(&subscribe.stream);
        self.asking.insert(subscribe.request, Asking { stream, at: now });
        if self.draining {
            self.refuse(subscribe.request, &going_away());
            return Ok(());
        }
        // HELLO does not say how many there may be, and a relay has those of all its peers: no
        // reason to close.
        if self.subscriptions.len() >= usize::from(self.config.subscriptions_max) {
            let reason = "too many subscriptions".to_owned();
            self.refuse(subscribe.request, &Refusal { code: RequestCode::Limit, retry_after: None, reason });
            return Ok(());
        }
        self.want_credential();
        if !self.access.touches(&subscribe.stream) {
            NO_STREAM.clone_into(&mut subscribe.stream);
        }
        self.subscriptions.push(subscribe.request);
        self.events.push_back(Event::Subscribe(subscribe));
        Ok(())
    }

    /// A number names one question at a time: two answers by one number could not be told apart.
    fn check_unused(&self, request: u64) -> Result<(), Violation> {
        let is_used = self.asking.contains_key(&request)
            || self.subscriptions.contains(&request)
            || self.asked.values().any(|asked| asked.request == request);
        if is_used { Err(Violation::Unexpected("number of a request that is in use")) } else { Ok(()) }
    }

    /// Tells a peer once that it has to show something, if it asks without. Whatever it asks, so it
    /// learns nothing of what is there; it would be closed for it soon.
    fn want_credential(&mut self) {
        if matches!(self.access, Access::Refused { .. }) && !std::mem::replace(&mut self.knows_credentials, true) {
            self.send(Message::Grant { lasts_ms: 0 });
        }
    }

    fn handle_auth(&mut self, now: Instant, credential: Credential) -> Result<(), Violation> {
        self.tokens.take(now).map_err(|_| Violation::Limit("tokens"))?;
        self.knows_credentials = true;
        self.credential = Some(credential);
        Ok(())
    }

    /// A question about a segment. It counts as unanswered until all of the answer has left.
    fn handle_question(
        &mut self,
        now: Instant,
        request: u64,
        (segment, meant): (SegmentId, Meant),
        about: About,
    ) -> Result<(), Violation> {
        self.check_unused(request)?;
        if self.unanswered >= usize::from(self.config.requests_max) {
            return Err(Violation::Limit("unanswered GETs"));
        }
        self.unanswered += 1;
        self.count_question(now, 1);
        let is_dear = matches!(about, About::Checks(_));
        let asked = Asked { request, about, path: None };
        if self.draining {
            self.answered(now, asked, Err(going_away()));
            return Ok(());
        }
        if is_dear && let Err(free) = self.checks.take(now) {
            let reason = "too many questions for checksums".to_owned();
            let refusal = Refusal { code: RequestCode::Overload, retry_after: Some(free.saturating_duration_since(now)), reason };
            self.answered(now, asked, Err(refusal));
            return Ok(());
        }
        match self.look_for(segment, meant) {
            Some(ticket) => drop(self.asked.insert(ticket, asked)),
            None => self.answered(now, asked, Err(not_there())),
        }
        Ok(())
    }

    /// Puts a question about a segment that the peer may have.
    fn ask(&mut self, ticket: u64, asked: Asked, held: Held) -> Result<(), Violation> {
        let path = held.path.clone();
        self.events.push_back(match &asked.about {
            About::Hashes => Event::Hashes { ticket, held },
            About::Checks(asked) if held.lease.shape.generation(asked.generation).is_none() => {
                return Err(Violation::Malformed("index of the generation"));
            }
            About::Checks(asked) => Event::Checks { ticket, held, asked: asked.clone() },
        });
        self.asked.insert(ticket, Asked { path, ..asked });
        Ok(())
    }

    /// Answers a question about a segment, unless the peer's right to it has ended meanwhile.
    fn answered(&mut self, now: Instant, asked: Asked, answer: Result<Found, Refusal>) {
        let Asked { request, path, about } = asked;
        let is_allowed = self.access.allows_segment(path.as_deref());
        let answer = answer.and_then(|found| {
            let shares = match &found {
                _ if !is_allowed => return Err(not_there()),
                Found::Hashes(bytes) => self.ledgers.deliver(now, bytes)?,
                Found::Checks(_) => Vec::new(),
            };
            Ok((found, shares))
        });
        let counts = match about {
            About::Hashes => &mut self.tally.hashes,
            About::Checks(_) => &mut self.tally.checks,
        };
        match &answer {
            Ok(_) => counts.0 += 1,
            Err(_) => counts.1 += 1,
        }
        match answer {
            Ok((Found::Hashes(bytes), shares)) => {
                return self.events.push_back(Event::DeliverHashes { request, bytes, shares });
            }
            Ok((Found::Checks(checks), _)) => self.send(Message::Checks(Checks { request, ..checks })),
            Err(refusal) => self.say_no(request, &refusal),
        }
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    fn handle_request(&mut self, now: Instant, request: Request) -> Result<(), Violation> {
        if self.requests.len() + self.finding.len() >= usize::from(self.config.requests_max) {
            return Err(Violation::Limit("open requests"));
        }
        if request.credit > self.config.credit_max {
            return Err(Violation::Limit("credit"));
        }
        if self.requests.contains_key(&request.alias) || self.finding.values().any(|other| other.alias == request.alias) {
            return Err(Violation::Unexpected("alias that is open already"));
        }
        self.count_question(now, 1);
        let told = self.told_of(request.segment, request.meant).map(|(_, told)| Arc::clone(&told.path));
        let stream = self.stream_named(told.as_deref().map_or("", stream_of));
        self.aliases.insert(request.alias, Asking { stream, at: now });
        if self.draining {
            self.reject(request.alias, RequestCode::GoingAway, None);
            return Ok(());
        }
        if self.is_crowded && (!self.is_served || now < self.begun + NEWCOMER_FOR) {
            self.reject(request.alias, RequestCode::Overload, Some(CROWDED_RETRY));
            return Ok(());
        }
        match self.look_for(request.segment, request.meant) {
            Some(ticket) => drop(self.finding.insert(ticket, request)),
            None => self.reject(request.alias, RequestCode::Unknown, None),
        }
        Ok(())
    }

    fn handle_credit(&mut self, now: Instant, alias: u16, blocks: u32) -> Result<(), Violation> {
        let waiting = self.finding.values_mut().find(|request| request.alias == alias).map(|request| &mut request.credit);
        let credit = self.requests.get_mut(&alias).map(|open| &mut open.credit).or(waiting);
        // Unknown: the request ended here while the credit was on its way.
        let Some(credit) = credit else { return Ok(()) };
        *credit = credit.saturating_add(blocks);
        if *credit > self.config.credit_max {
            return Err(Violation::Limit("credit"));
        }
        let Self { requests, ledgers, .. } = self;
        if let Some(Err(unleased)) = requests.get_mut(&alias).map(|open| open.settle(now, ledgers)) {
            self.end_unleased(alias, &unleased);
        }
        Ok(())
    }

    /// Of an alias that is not open: the request ended here while the message was on its way. How
    /// often a request is moved, the ring hears of it once a turn.
    fn handle_reschedule(&mut self, now: Instant, alias: u16, deadline_ms: u64) {
        self.count_question(now, 1);
        if let Some(request) = self.finding.values_mut().find(|request| request.alias == alias) {
            request.deadline_ms = deadline_ms;
        }
        let Some(open) = self.requests.get_mut(&alias) else { return };
        open.deadline = deadline_of(now, deadline_ms);
        self.rescheduled.insert(alias);
    }

    /// What has been rescheduled since the last call, as it is now.
    fn next_rescheduled(&mut self) -> Option<Event> {
        std::iter::from_fn(|| self.rescheduled.pop_first()).find_map(|alias| {
            let open = self.requests.get(&alias)?;
            let source = LineKey { generation: open.key, lane: Lane::Source(self.session) };
            let lines = [(open.source_wanted > 0).then_some(source), (open.coded_wanted > 0).then(|| open.line())];
            lines.iter().any(Option::is_some).then_some(Event::Rescheduled { alias, lines, deadline: open.deadline })
        })
    }

    fn handle_stop(&mut self, alias: u16, _reason: StopReason) {
        self.finding.retain(|_, request| request.alias != alias);
        self.aliases.remove(&alias);
        self.end(alias, true);
    }

    fn handle_rank(&mut self, alias: u16, useless: u32, lost: u32) {
        let Some(open) = self.requests.get_mut(&alias) else { return };
        self.tally.useless += u64::from(useless.saturating_sub(open.reported.0));
        let newly_lost = lost.saturating_sub(open.reported.1);
        self.tally.lost += u64::from(newly_lost);
        if newly_lost > 0 && matches!(open.lane, Lane::Recoded(_)) {
            self.events.push_back(Event::Lost { line: open.line(), blocks: newly_lost });
        }
        open.reported = (useless.max(open.reported.0), lost.max(open.reported.1));
    }

    fn open(&mut self, now: Instant, request: Request, held: Held) -> Result<(), Violation> {
        let Some(generation) = held.lease.shape.generation(request.generation) else {
            return Err(Violation::Malformed("index of the generation"));
        };
        let key = GenerationKey { segment: held.lease.key, index: generation.index };
        if self.requests.values().any(|open| open.key == key) {
            self.reject(request.alias, RequestCode::Limit, None);
            return Ok(());
        }
        let codec = generation.codec;
        // Who takes both gets what the stream is configured to begin with; with a code that is not
        // recoded these are source blocks.
        let begins_with_source = held.first_pass == FirstPass::Systematic || !request.accept.coded || !codec.is_recodable();
        let numbered = numbered(&request, &generation, begins_with_source)?;
        if !self.peer.as_ref().is_some_and(|peer| peer.codecs.have(codec)) {
            self.reject(request.alias, RequestCode::Limit, None);
            return Ok(());
        }
        let deadline = deadline_of(now, request.deadline_ms);
        if held.is_recoded && ((request.accept.coded && !request.accept.recoded) || !codec.is_recodable()) {
            // Seeds and numbers go with the whole of it, which may come.
            self.reject(request.alias, RequestCode::Overload, Some(RECODED_RETRY));
            return Ok(());
        }
        // Sparse rows have no seed that anybody else could draw them from: who does not take
        // vectors as they are gets dense ones.
        let lane = match held.is_recoded {
            true => Lane::Recoded(self.session),
            false => Lane::coded(held.row_weight.filter(|_| request.accept.recoded), generation.n),
        };
        if let Some(path) = held.path.as_deref() {
            let stream = self.stream_named(stream_of(path));
            self.watch(now, &stream);
            self.aliases.entry(request.alias).and_modify(|asking| asking.stream = stream);
        }
        let name = named(&held);
        let Held { lease, path, birth, .. } = held;
        let mut open = Open {
            name,
            path,
            birth,
            tenure: Tenure::Idle(lease.release(), now),
            generation,
            key,
            lane,
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
        self.consider_introducing(now, name);
        self.requests.insert(request.alias, open);
        Ok(())
    }

    /// When a request that has nothing to send is ended, if no credit comes.
    fn idle_until(&self, open: &Open) -> Option<Instant> {
        match open.tenure {
            Tenure::Leased(_) => None,
            Tenure::Idle(_, since) => Some(since.max(self.unacknowledged_at) + self.config.stall_timeout),
        }
    }

    /// Ends the requests that no credit has come for.
    fn end_idle(&mut self, now: Instant) {
        let is_over = |open: &Open| self.idle_until(open).is_some_and(|until| until <= now);
        let idle: Vec<u16> = self.requests.iter().filter(|(_, open)| is_over(open)).map(|(alias, _)| *alias).collect();
        for alias in idle {
            self.tally.idle += 1;
            self.send(Message::Reject { alias, code: RequestCode::Deadline, retry_after_ms: 0 });
            // What has left may still be read.
            self.end(alias, false);
        }
    }

    /// Ends the requests for a segment that has gone, and those that have blocks to send of one
    /// that is not kept for them any more.
    fn end_void(&mut self) {
        let why = |open: &Open| match &open.tenure {
            Tenure::Leased(Tenancy { lease, .. }) if lease.is_void() => Some(Unleased::Gone),
            Tenure::Idle(released, _) if released.is_void() => Some(Unleased::Gone),
            Tenure::Leased(Tenancy { shares, .. }) if shares.iter().any(Share::is_revoked) => Some(Unleased::Full),
            _ => None,
        };
        let void: Vec<_> = self.requests.iter().filter_map(|(alias, open)| Some((*alias, why(open)?))).collect();
        void.into_iter().for_each(|(alias, unleased)| self.end_unleased(alias, &unleased));
    }

    fn end_unleased(&mut self, alias: u16, unleased: &Unleased) {
        self.reject_unleased(alias, unleased);
        self.end(alias, false);
    }

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

    fn end(&mut self, alias: u16, abandon: bool) {
        self.aliases.remove(&alias);
        if let Some(open) = self.requests.remove(&alias) {
            self.events.push_back(Event::Ended(Ended { alias, line: open.line(), abandon }));
        }
    }

    fn answer(&mut self, now: Instant, request: u64, resolved: Resolved) {
        let length = resolved.length;
        if self.peer.as_ref().is_none_or(|peer| length > peer.segment_bytes_max) {
            let reason = format!("the segment has {length} bytes, more than this peer accepts");
            return self.refuse(request, &Refusal { code: RequestCode::Limit, retry_after: None, reason });
        }
        let (delivery, tree, after) = match resolved.body {
            Body::Coded(held) => {
                let shape = held.lease.shape;
                if !self.peer.as_ref().is_some_and(|peer| peer.takes(&shape)) {
                    let is_coded_so = self.peer.as_ref().is_some_and(|peer| peer.codecs.have(shape.codec()));
                    let reason = match is_coded_so {
                        true => "the segment's block size or generation size exceeds this peer's limits".to_owned(),
                        false => format!("the stream is coded with {}, which this peer does not support", shape.codec().name()),
                    };
                    return self.refuse(request, &Refusal { code: RequestCode::Limit, retry_after: None, reason });
                }
                let since = self.asking.get(&request).map_or(now, |asking| asking.at);
                let since = held.birth.as_ref().map_or(since, |birth| birth.at().max(since));
                self.remember(now, &held.lease, &resolved.path, now.saturating_duration_since(since));
                self.consider_introducing(now, named(&held));
                (Delivery::Coded(shape), held.tree, None)
            }
            Body::Inline(bytes) => (Delivery::Inline(bytes), None, None),
            Body::Whole(bytes) => match self.ledgers.deliver(now, &bytes) {
                Ok(shares) => (Delivery::Stream, None, Some(Event::Deliver { request, bytes, shares })),
                Err(refusal) => return self.refuse(request, &refusal),
            },
        };
        if self.asking.contains_key(&request) {
            let stream = self.stream_named(stream_of(&resolved.path));
            self.watch(now, &stream);
        }
        self.send(Message::Meta(Meta {
            request,
            path: resolved.path,
            id: resolved.id,
            offset: resolved.offset,
            length,
            object_length: resolved.object_length,
            version: resolved.version,
            max_age_ms: millis(resolved.max_age),
            content_type: resolved.content_type,
            delivery,
            signature: resolved.signature,
            tree,
        }));
        self.events.extend(after);
    }

    /// Of the paths that a segment's bytes lie at, the one that this peer has asked for counts.
    fn as_told(&mut self, now: Instant, held: Held) -> Held {
        let told = self.told.get_mut(&named(&held)).map(|told| {
            told.until = now + TOLD_FOR;
            Arc::clone(&told.path)
        });
        Held { path: told.or(held.path), ..held }
    }

    /// Asks for a segment: for the one that the peer means, where there are several of one id.
    /// `None` if nobody here has such a one.
    fn look_for(&mut self, id: SegmentId, meant: Meant) -> Option<u64> {
        let (coding, told) = match (meant, self.told_of(id, meant)) {
            (Meant::Foreign, _) => return None,
            (_, Some((coding, told))) => (Some(coding), Some(told.key)),
            (Meant::Coded(coding), None) => (Some(coding), None),
            (Meant::LastNamed, None) => (None, None),
        };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.events.push_back(Event::Find { ticket, id, coding, told });
        Some(ticket)
    }

    /// What the peer was told of that it means.
    fn told_of(&self, id: SegmentId, meant: Meant) -> Option<(Coding, &Told)> {
        match meant {
            Meant::Coded(coding) => self.told.get(&(id, coding)).map(|told| (coding, told)),
            Meant::LastNamed => {
                let of_this_id = self.told.range((id, Coding::LEAST)..).take_while(|((other, _), _)| *other == id);
                of_this_id.max_by_key(|(_, told)| told.named).map(|((_, coding), told)| (*coding, told))
            }
            Meant::Foreign => None,
        }
    }

    /// Remembers by which path the peer knows a segment, for the request that follows its META.
    fn remember(&mut self, now: Instant, lease: &Lease, path: &str, waited: Duration) {
        let name = (lease.id, lease.shape.coding());
        let introduced = self.told.remove(&name).and_then(|told| told.introduced);
        if self.told.len() >= usize::from(self.config.known_segments_max)
            && let Some(oldest) = self.told.iter().min_by_key(|(_, told)| told.until).map(|(name, _)| *name)
        {
            self.told.remove(&oldest);
        }
        self.names += 1;
        let told = Told { path: path.into(), key: lease.key, named: self.names, until: now + TOLD_FOR, waited, introduced };
        self.told.insert(name, told);
    }

    /// A peer that asks for a segment may want to know who else has it: now, and once in a while as
    /// long as it goes on asking.
    fn consider_introducing(&mut self, now: Instant, name: (SegmentId, Coding)) {
        let Some(told) = self.told.get_mut(&name) else { return };
        let (segment, coding) = name;
        // A ticket is for the whole stream: it must not bring more than there was.
        let stream = stream_of(&told.path);
        if !self.access.covers(stream) {
            return;
        }
        if told.introduced.is_none_or(|at| now.saturating_duration_since(at) >= INTRODUCE_EVERY) {
            told.introduced = Some(now);
            self.events.push_back(Event::Introduce { segment, coding, stream: stream.to_owned() });
        }
    }

    /// Answers a GET or SUBSCRIBE with ERROR, which ends a subscription.
    fn refuse(&mut self, request: u64, refusal: &Refusal) {
        self.subscriptions.retain(|open| *open != request);
        self.tally.refused += 1;
        let stream = self.asking.remove(&request).map_or_else(|| "".into(), |asking| asking.stream);
        self.of_stream(&stream).refused += 1;
        self.say_no(request, refusal);
    }

    fn say_no(&mut self, request: u64, refusal: &Refusal) {
        // Whoever may not have everything is not told what is there that it may not have.
        let uniform = not_there();
        let is_unknown = refusal.code == RequestCode::Unknown && self.access != Access::Free;
        let refusal = if is_unknown { &uniform } else { refusal };
        // It may speak of what an origin has said.
        let reason = plain(&refusal.reason, REASON_MAX);
        let retry_after_ms = refusal.retry_after.map_or(0, |after| millis(after).max(1));
        self.send(Message::Error(RequestError { request, code: refusal.code, retry_after_ms, reason }));
    }

    fn reject(&mut self, alias: u16, code: RequestCode, retry_after: Option<Duration>) {
        self.tally.refused += 1;
        let tally = self.of_alias(alias);
        match code {
            RequestCode::Deadline => tally.late += 1,
            _ => tally.refused += 1,
        }
        self.aliases.remove(&alias);
        self.send(Message::Reject { alias, code, retry_after_ms: retry_after.map_or(0, millis) });
    }

    /// The peer watches a stream.
    fn watch(&mut self, now: Instant, stream: &Arc<str>) {
        let until = now + WATCHES_FOR;
        match self.watched.iter_mut().find(|(watched, _)| watched == stream) {
            Some((_, before)) => *before = until,
            None => {
                self.watched.push((Arc::clone(stream), until));
                self.events.push_back(Event::Watches { stream: Arc::clone(stream), is_watched: true });
            }
        }
    }

    /// Ends what the peer does not watch any more.
    fn look_at_watched(&mut self, now: Instant) {
        let Self { watched, requests, aliases, events, .. } = self;
        watched.retain_mut(|(stream, until)| {
            if *until > now {
                return true;
            }
            let is_open = requests.keys().any(|alias| aliases.get(alias).is_some_and(|asking| asking.stream == *stream));
            match is_open {
                true => *until = now + WATCH_LOOK_EVERY,
                false => events.push_back(Event::Watches { stream: Arc::clone(stream), is_watched: false }),
            }
            is_open
        });
    }

    /// The name of a stream, shared where it is known.
    fn stream_named(&self, name: &str) -> Arc<str> {
        let known = self.watched.iter().find(|(watched, _)| **watched == *name);
        known.map_or_else(|| name.into(), |(watched, _)| Arc::clone(watched))
    }

    fn of_alias(&mut self, alias: u16) -> &mut StreamTally {
        let stream = self.aliases.get(&alias).map_or_else(|| "".into(), |asking| Arc::clone(&asking.stream));
        self.of_stream(&stream)
    }

    fn of_stream(&mut self, stream: &Arc<str>) -> &mut StreamTally {
        // Names are the peer's: of many at once the rest counts with those whose stream is not
        // known.
        let name = if self.by_stream.len() < STREAMS_TALLIED_MAX { Arc::clone(stream) } else { "".into() };
        let at = self.by_stream.iter().position(|(counted, _)| *counted == *stream || *counted == name).unwrap_or_else(|| {
            self.by_stream.push((name, StreamTally::default()));
            self.by_stream.len() - 1
        });
        &mut self.by_stream[at].1
    }

    fn send(&mut self, message: Message) {
        self.outbox.push_back(message);
    }
}

impl Open {
    /// Whether blocks of it are to leave: asked for and not sent, or still to be asked for.
    fn is_due(&self) -> bool {
        let has_more = !self.numbered.is_empty() || (self.accept.coded && self.generation.codec.is_endless());
        self.source_wanted + self.coded_wanted > 0 || (self.credit > 0 && has_more)
    }

    /// Takes or gives up the lease, as blocks are to leave or not.
    fn settle(&mut self, now: Instant, ledgers: &Ledgers) -> Result<(), Unleased> {
        self.tenure = match (&self.tenure, self.is_due()) {
            (Tenure::Leased(tenancy), false) => Tenure::Idle(tenancy.lease.release(), now),
            (Tenure::Idle(released, _), true) => {
                let lease = released.renew().ok_or(Unleased::Gone)?;
                let shares = ledgers.lease(now, &lease)?;
                Tenure::Leased(Tenancy { lease, shares, used_at: now })
            }
            _ => return Ok(()),
        };
        Ok(())
    }

    fn tenancy(&mut self) -> Option<&mut Tenancy> {
        match &mut self.tenure {
            Tenure::Leased(tenancy) => Some(tenancy),
            Tenure::Idle(..) => None,
        }
    }

    /// Blocks with so many bytes have left.
    fn note_used(&mut self, now: Instant, bytes: u64, ledgers: &Ledgers) {
        if let Some(tenancy) = self.tenancy() {
            tenancy.note_used(now, bytes);
            self.settle(now, ledgers).expect("what is leased is not leased again");
        }
    }

    /// Registers what the window has room for: blocks by their numbers first, then coded ones,
    /// never more than the credit.
    fn next_want(&mut self, window: u32, room: u32) -> Option<Want> {
        let registered = self.source_wanted + self.coded_wanted;
        let room = self.credit.min(window).saturating_sub(registered).min(room);
        if room == 0 {
            return None;
        }
        while let Some(range) = self.numbered.front_mut() {
            let count = u32::from(range.end - range.start).min(room);
            let first = range.start;
            range.start += u16::try_from(count).expect("no more than the range has");
            let end = range.start;
            if range.start >= range.end {
                self.numbered.pop_front();
            }
            if count > 0 {
                self.source_wanted += count;
                return Some(Want::Source(self.key, first..end));
            }
        }
        if !self.accept.coded || !self.generation.codec.is_endless() {
            return None;
        }
        self.coded_wanted += room;
        Some(Want::Coded(self.line(), room))
    }

    fn line(&self) -> LineKey {
        LineKey { generation: self.key, lane: self.lane }
    }

    /// Datagrams where the peer takes them and every block of the request fits; once on the stream
    /// a request stays there.
    fn route(&mut self, datagram_max: Option<usize>, tally: &mut Tally) -> Route {
        if !self.accept.datagrams || self.on_stream {
            return Route::Stream;
        }
        let vector = match self.generation.codec {
            Codec::Rlnc if self.lane.is_explicit() => block::Kind::Explicit,
            Codec::Rlnc => block::Kind::Seeded,
            Codec::ReedSolomon { .. } => block::Kind::Shard,
            Codec::RaptorQ => block::Kind::Symbol,
            Codec::RlncQ { .. } => return Route::Stream,
        };
        let needed = vector.datagram_header_len(self.generation.n) + self.generation.block_bytes as usize;
        if datagram_max.is_some_and(|max| needed <= max) {
            return Route::Datagram;
        }
        self.on_stream = true;
        tally.moved += u64::from(self.seq > 0);
        Route::Stream
    }
}

/// Which blocks a request takes by their numbers, in the order in which they go.
fn numbered(request: &Request, generation: &Generation, begins_with_source: bool) -> Result<VecDeque<Range<u16>>, Violation> {
    let (n, end) = (generation.n, generation.numbered());
    let is_there = |(first, count): &(u16, u16)| {
        let last = first.checked_add(*count).filter(|last| *last <= end);
        last.map(|last| *first..last).ok_or(Violation::Malformed("range of blocks"))
    };
    let all = request.ranges.is_empty().then_some(Ok(0..end));
    let ranges: Vec<Range<u16>> = request.ranges.iter().map(is_there).chain(all).collect::<Result<_, _>>()?;
    let first = if request.accept.systematic && begins_with_source { 0 } else { n };
    let last = if request.accept.coded { end } else { n };
    let taken = ranges.into_iter().map(|range| range.start.max(first)..range.end.min(last));
    Ok(taken.filter(|range| !range.is_empty()).collect())
}

/// What is known about a segment that was asked about.
enum Found {
    Hashes(Bytes),
    Checks(Checks),
}

/// So many at once, and one more in a time.
#[derive(Debug)]
struct Rate {
    burst: u32,
    every: Duration,
    /// When so many would have come in good order as have come.
    at: Instant,
}

impl Rate {
    fn new(burst: u32, every: Duration, now: Instant) -> Self {
        Self { burst, every, at: now }
    }

    /// Counts one, or says when it would be one too many no longer.
    fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let at = self.at.max(now) + self.every;
        let full = self.burst * self.every;
        if at > now + full {
            return Err(at.checked_sub(full).unwrap_or(now));
        }
        self.at = at;
        Ok(())
    }
}

/// A token bucket for control bytes, or for questions: a second's worth at most. The last read may
/// overdraw it.
#[derive(Debug)]
struct Budget {
    rate: u64,
    /// When the bucket is full again.
    full_at: Instant,
}

impl Budget {
    fn new(rate: u64, now: Instant) -> Self {
        Self { rate: rate.max(1), full_at: now }
    }

    fn spend(&mut self, now: Instant, bytes: u64) {
        let micros = bytes.saturating_mul(1_000_000) / self.rate;
        self.full_at = self.full_at.max(now) + Duration::from_micros(micros);
    }

    fn resumes(&self, now: Instant) -> Option<Instant> {
        let empty_at = self.full_at.checked_sub(BUDGET_DEPTH)?;
        (empty_at > now).then_some(empty_at)
    }
}

/// What a segment is known by, where its bytes may be coded in several ways.
fn named(held: &Held) -> (SegmentId, Coding) {
    (held.lease.id, held.lease.shape.coding())
}

fn going_away() -> Refusal {
    Refusal { code: RequestCode::GoingAway, retry_after: None, reason: "the server is going away".to_owned() }
}

fn not_there() -> Refusal {
    Refusal { code: RequestCode::Unknown, retry_after: None, reason: NOT_THERE.to_owned() }
}

/// When something is due that is due so many milliseconds from now.
fn deadline_of(now: Instant, milliseconds: u64) -> Instant {
    now + Duration::from_millis(milliseconds).min(DEADLINE_MAX)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).min((1 << 62) - 1)
}

#[cfg(test)]
mod tests;
