//! A peer's side of the protocol and those of one or several servers, each on its own path, in
//! virtual time.
//!
//! The server's side is `session::proto` with a replacement for the ring that encodes immediately;
//! the peer's is `peer::proto`. Nothing here uses a socket or a real clock, so a seed repeats a run
//! exactly.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::num::NonZeroU16;
use std::ops::Range;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncserverd::block::Vector;
use ncserverd::codec::gfq::{self, Arithmetic as _, Cores};
use ncserverd::codec::rlnc::Encoder;
use ncserverd::codec::write_number;
use ncserverd::gf::Kernels;
use ncserverd::integrity::hashes::BlockHashes;
use ncserverd::integrity::signing::SigningKey;
use ncserverd::object::row_key;
use ncserverd::object::{
    Body, Codec, FirstPass, Generation, GenerationKey, Held, Lease, Loan, Refusal, RefusalCode,
    Resolved, SegmentId, SegmentKey, Shape, Signature,
};
use ncserverd::peer::proto::{
    self as peer, Answer, Event, Failure, FetchId, Order, SourceId, StreamEnd, Urgency,
};
use ncserverd::ring::{LineKey, LineKind, SessionId};
use ncserverd::session::proto as session;
use ncserverd::wire::block::StreamHead;
use ncserverd::wire::frame::Reader;
use ncserverd::wire::message::{Codecs, Delivery, Hello, Meta};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::link::{Conditions, Link};

/// More steps than any scenario needs, so that one without progress fails instead of running
/// forever.
const STEPS_MAX: usize = 2_000_000;

/// The settings of a scenario.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) down: Conditions,
    pub(crate) up: Conditions,
    pub(crate) seed: u64,
    pub(crate) datagram_max: Option<usize>,
    pub(crate) first_pass: FirstPass,
    pub(crate) row_weight: Option<NonZeroU16>,
    pub(crate) codec: Codec,
    /// The peer's rate of reading a stream, and its window.
    pub(crate) reader: Option<(u64, usize)>,
    /// Whether the peer leaves decoding to others.
    pub(crate) gathers: bool,
    /// The minimum credit in flight of the peer, in bytes.
    pub(crate) window_min: u64,
}

impl Default for Setup {
    fn default() -> Self {
        let path = Conditions::default();
        Self {
            down: path,
            up: path,
            seed: 1,
            datagram_max: Some(1162),
            first_pass: FirstPass::Coded,
            row_weight: None,
            codec: Codec::Rlnc,
            reader: None,
            gathers: false,
            window_min: 128 << 10,
        }
    }
}

pub(crate) struct World {
    pub(crate) now: Instant,
    started: Instant,
    setup: Setup,
    pub(crate) peer: peer::Proto,
    pub(crate) sites: Vec<Site>,
    packets: BinaryHeap<Reverse<(Instant, u64)>>,
    contents: HashMap<u64, (usize, Packet, Instant)>,
    next_packet: u64,
    library: HashMap<String, Published>,
    encoders: HashMap<GenerationKey, Encoder>,
    /// As at a server, each generation's seeds count up from a random one, for all requests
    /// together.
    seeds: HashMap<GenerationKey, u32>,
    pub(crate) answers: HashMap<u64, Result<Answer, Failure>>,
    pub(crate) failures: HashMap<FetchId, Failure>,
    generations: HashMap<FetchId, Vec<(u64, Vec<u8>)>>,
    /// Generations left to others for decoding.
    pub(crate) left_to_others: u64,
    pub(crate) announced: Vec<String>,
    pub(crate) sent: Sent,
    /// Numbered blocks that any server had sent before.
    pub(crate) doubled_sources: u64,
    sent_sources: HashSet<(GenerationKey, u16)>,
    /// Random coefficients for testing blocks, which senders must not know.
    random: StdRng,
    /// Called before each datagram is sent; true loses it.
    pub(crate) doom: Doom,
}

/// Arguments: what was sent before, and the request if this block is its last.
type Doom = Box<dyn FnMut(&Sent, Option<u16>) -> bool>;

/// A server and the path to it.
pub(crate) struct Site {
    server: Option<Server>,
    conditions: (Conditions, Conditions),
    rtt: Duration,
    down: Link,
    up: Link,
    to_peer: Reader,
    /// Stream bytes that the peer has not read yet.
    unread: usize,
    /// Whether all its packets are lost, without any sign.
    pub(crate) is_mute: bool,
    /// Whether it knows no path, and how many GETs it has therefore refused.
    pub(crate) is_ignorant: bool,
    pub(crate) refused: u64,
    pub(crate) sent: Sent,
}

struct Server {
    proto: session::Proto,
    from_peer: Reader,
    streams: HashMap<u16, u64>,
    next_stream: u64,
    sources: HashMap<u16, VecDeque<u16>>,
    resolving: Vec<(Instant, u64, String)>,
}

#[derive(Clone)]
struct Published {
    bytes: Bytes,
    resolved: Resolved,
}

/// What the server has sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) datagrams: u64,
    pub(crate) records: u64,
    pub(crate) dropped: u64,
}

enum Packet {
    ControlDown(Bytes),
    ControlUp(Bytes),
    Datagram(Bytes),
    Stream(u64, Bytes),
    StreamEnd(u64),
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
        Self::with_sites(setup, &[(setup.down, setup.up)])
    }

    /// With a server at the end of each of these paths, given as towards the peer and back.
    pub(crate) fn with_sites(setup: Setup, paths: &[(Conditions, Conditions)]) -> Self {
        let now = Instant::now();
        let config = peer::Config {
            hello: Hello {
                codecs: Codecs::ALL,
                n_max: Shape::N_LIMIT,
                block_bytes_max: 65_536,
                segment_bytes_max: 64 << 20,
                ..Hello::defaults()
            },
            datagrams: true,
            requests_max: 64,
            window_min: setup.window_min,
            window_max: 8 << 20,
            answer_timeout: Duration::from_secs(10),
            hello_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(10),
            rate_min: 1024,
            kernels: Kernels::detect(),
            gathers: setup.gathers,
            tells: false,
            keys: peer::Keys::default(),
            tests_max: 2,
            rows_max: 64 << 20,
            secret: peer::Secret::new([1; 32]),
        };
        let mut world = Self {
            now,
            started: now,
            setup,
            peer: peer::Proto::new(config),
            sites: Vec::new(),
            packets: BinaryHeap::new(),
            contents: HashMap::new(),
            next_packet: 0,
            library: HashMap::new(),
            encoders: HashMap::new(),
            seeds: HashMap::new(),
            answers: HashMap::new(),
            failures: HashMap::new(),
            generations: HashMap::new(),
            left_to_others: 0,
            announced: Vec::new(),
            sent: Sent::default(),
            doubled_sources: 0,
            sent_sources: HashSet::new(),
            random: StdRng::seed_from_u64(setup.seed),
            doom: Box::new(|_, _| false),
        };
        for (index, &(down, up)) in paths.iter().enumerate() {
            let seed = setup.seed + 1000 * index as u64;
            world.sites.push(Site {
                server: None,
                conditions: (down, up),
                rtt: down.delay + up.delay,
                down: Link::new(down, seed, now),
                up: Link::new(up, seed ^ 0xffff, now),
                to_peer: Reader::new(),
                unread: 0,
                is_mute: false,
                is_ignorant: false,
                refused: 0,
                sent: Sent::default(),
            });
            world.connect(index);
        }
        world
    }

    /// Makes a new connection to a server that has the same library.
    pub(crate) fn connect(&mut self, site: usize) {
        let proto = session::Proto::new(
            SessionId(1),
            ncserverd::session::Config::default(),
            self.now,
        );
        self.sites[site].server = Some(Server {
            proto,
            from_peer: Reader::new(),
            streams: HashMap::new(),
            next_stream: 3,
            sources: HashMap::new(),
            resolving: Vec::new(),
        });
        self.sites[site].to_peer = Reader::new();
        self.peer.handle_connected(self.now, source(site), None);
    }

    /// Breaks the connection; packets on their way are lost.
    pub(crate) fn disconnect(&mut self, site: usize) {
        self.sites[site].server = None;
        self.sites[site].unread = 0;
        self.contents.retain(|_, (of, ..)| *of != site);
        self.packets
            .retain(|Reverse((_, number))| self.contents.contains_key(number));
        self.peer.handle_disconnected(self.now, source(site), true);
    }

    /// Sets the rate of a server's path.
    pub(crate) fn slow_down(&mut self, site: usize, bytes_per_second: u64) {
        self.sites[site].down.set_rate(bytes_per_second);
    }

    pub(crate) fn server(&mut self) -> &mut session::Proto {
        &mut self.sites[0].server.as_mut().expect("connected").proto
    }

    /// Publishes bytes that no other path has, for coded delivery.
    pub(crate) fn publish(
        &mut self,
        path: &str,
        length: usize,
        block_bytes: u32,
        n_max: u16,
    ) -> Bytes {
        let key = self.library.len() as u64;
        let mut bytes = vec![0; length];
        StdRng::seed_from_u64(key).fill(&mut bytes[..]);
        let bytes = Bytes::from(bytes);
        let shape = Shape::new(length as u64, block_bytes, n_max)
            .unwrap()
            .coded_with(self.setup.codec)
            .unwrap();
        let lease = Lease::new(
            SegmentKey(key),
            SegmentId::of_coded(&bytes, shape.codec()),
            shape,
            Loan::new(Instant::now()),
        );
        let (first_pass, row_weight) = (self.setup.first_pass, self.setup.row_weight);
        let held = Held {
            lease,
            first_pass,
            row_weight,
            is_recoded: false,
            birth: None,
            path: None,
            blocks_digest: None,
            tree: None,
        };
        self.add(path, bytes.clone(), Body::Coded(held));
        bytes
    }

    /// Publishes bytes for whole delivery.
    pub(crate) fn publish_whole(&mut self, path: &str, bytes: &Bytes) {
        self.add(path, bytes.clone(), Body::Whole(bytes.clone()));
    }

    fn add(&mut self, path: &str, bytes: Bytes, body: Body) {
        let mut resolved = Resolved {
            path: path.to_owned(),
            id: if let Body::Coded(held) = &body {
                held.lease.id
            } else {
                SegmentId::of(&bytes)
            },
            offset: 0,
            length: bytes.len() as u64,
            object_length: Some(bytes.len() as u64),
            version: 1,
            max_age: Duration::from_secs(1),
            content_type: String::new(),
            body,
            signature: None,
        };
        if let Body::Coded(held) = &resolved.body
            && held.lease.shape.codec().is_gfq()
        {
            resolved.signature = Some(signed(&resolved, held.lease.shape, &bytes));
        }
        self.library
            .insert(path.to_owned(), Published { bytes, resolved });
    }

    /// Runs until the condition holds, and fails if it does not within this virtual time.
    pub(crate) fn run(
        &mut self,
        limit: Duration,
        mut until: impl FnMut(&Self) -> bool,
    ) -> Duration {
        let begin = self.now;
        for _ in 0..STEPS_MAX {
            self.settle();
            if until(self) {
                return self.now - begin;
            }
            let next = self.next_at().expect("something is still to happen");
            assert!(
                next - begin <= limit,
                "nothing came of it in {limit:?}: {:?} {:?}",
                self.sent,
                self.peer.counts()
            );
            self.now = self.now.max(next);
            self.arrive();
        }
        panic!(
            "no progress after {STEPS_MAX} steps at {:?}",
            self.now - self.started
        );
    }

    /// Runs for this time, or until there are no more events.
    pub(crate) fn idle(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..STEPS_MAX {
            self.settle();
            match self.next_at().filter(|next| *next <= end) {
                Some(next) => self.now = self.now.max(next),
                None => {
                    self.now = end;
                    return;
                }
            }
            self.arrive();
        }
        panic!("no end after {STEPS_MAX} steps");
    }

    /// Asks for a path, and fetches the segment of the answer.
    pub(crate) fn fetch(&mut self, path: &str, deadline: Option<Duration>) -> FetchId {
        let request = self.peer.get(self.now, path, 0, None);
        self.run(Duration::from_secs(5), |world| {
            world.answers.contains_key(&request)
        });
        let answer = self.answers[&request].clone().unwrap();
        let Delivery::Coded(shape) = answer.meta.delivery else {
            panic!("not coded")
        };
        let deadline = deadline.map(|deadline| self.now + deadline);
        let proof = peer::Proof::of(&answer.meta);
        let order = Order {
            segment: answer.meta.id,
            shape,
            proof,
            deadline,
            urgency: Urgency::Now,
        };
        // The path determines the key of the stream.
        let place = peer::Place {
            path: answer.meta.path,
            offset: 0,
            length: None,
        };
        self.peer
            .fetch(self.now, order, proof.is_some().then_some(place))
    }

    /// The offsets of a fetch's complete generations, in the order of their completion.
    pub(crate) fn completed(&self, fetch: FetchId) -> Vec<u64> {
        self.generations
            .get(&fetch)
            .into_iter()
            .flatten()
            .map(|(offset, _)| *offset)
            .collect()
    }

    /// The decoded bytes of a fetch, once all are there.
    pub(crate) fn decoded(&self, fetch: FetchId, length: usize) -> Option<Vec<u8>> {
        let mut generations: Vec<_> = self.generations.get(&fetch)?.iter().collect();
        if generations
            .iter()
            .map(|(_, bytes)| bytes.len())
            .sum::<usize>()
            != length
        {
            return None;
        }
        generations.sort_by_key(|(offset, _)| *offset);
        Some(
            generations
                .into_iter()
                .flat_map(|(_, bytes)| bytes)
                .copied()
                .collect(),
        )
    }

    /// Fetches a path, checks every byte, and returns the time taken.
    pub(crate) fn fetch_and_check(
        &mut self,
        path: &str,
        bytes: &Bytes,
        limit: Duration,
    ) -> Duration {
        let fetch = self.fetch(path, None);
        let time = self.run(limit, |world| world.decoded(fetch, bytes.len()).is_some());
        assert_eq!(
            self.decoded(fetch, bytes.len()).as_deref(),
            Some(&bytes[..])
        );
        time
    }

    fn next_at(&self) -> Option<Instant> {
        let packet = self.packets.peek().map(|Reverse((at, _))| *at);
        let sites = self.sites.iter().flat_map(|site| {
            let resolving = site
                .server
                .iter()
                .flat_map(|server| server.resolving.iter().map(|(at, ..)| *at))
                .min();
            let server = site
                .server
                .as_ref()
                .and_then(|server| server.proto.poll_timeout());
            // Blocks that wait for room on the path continue when there is some.
            let room = Some(site.down.has_room_at()).filter(|at| *at > self.now);
            [server, resolving, room]
        });
        sites
            .chain([packet, self.peer.poll_timeout()])
            .flatten()
            .min()
    }

    /// Delivers everything that has arrived by now.
    fn arrive(&mut self) {
        while let Some(Reverse((at, number))) = self.packets.peek().copied() {
            if at > self.now {
                break;
            }
            self.packets.pop();
            let (site, packet, sent) = self.contents.remove(&number).unwrap();
            if matches!(packet, Packet::Datagram(_) | Packet::ControlDown(_)) {
                // Smoothed like QUIC's, including the queue at the bottleneck.
                let Site {
                    rtt,
                    conditions: (_, up),
                    ..
                } = &mut self.sites[site];
                *rtt = *rtt * 7 / 8 + (self.now.saturating_duration_since(sent) + up.delay) / 8;
            }
            self.take(site, packet);
        }
        let now = self.now;
        self.peer.handle_timeout(now).unwrap();
        for server in self
            .sites
            .iter_mut()
            .filter_map(|site| site.server.as_mut())
        {
            server.proto.handle_timeout(now).unwrap();
        }
    }

    fn take(&mut self, index: usize, packet: Packet) {
        let (now, site, from) = (self.now, &mut self.sites[index], source(index));
        match packet {
            Packet::Datagram(bytes) => self.peer.handle_datagram(now, from, bytes).unwrap(),
            Packet::Stream(stream, bytes) => {
                site.unread -= bytes.len();
                self.peer.handle_stream(now, from, stream, &bytes).unwrap();
            }
            Packet::StreamEnd(stream) => self
                .peer
                .handle_stream_end(from, stream, StreamEnd::Finished)
                .unwrap(),
            Packet::ControlDown(bytes) => {
                site.to_peer.push(&bytes);
                while let Some(message) = site.to_peer.next().unwrap() {
                    self.peer.handle_message(now, from, message).unwrap();
                }
            }
            Packet::ControlUp(bytes) => {
                let Some(server) = &mut site.server else {
                    return;
                };
                server.proto.handle_control_bytes(now, bytes.len());
                server.from_peer.push(&bytes);
                while let Some(message) = server.from_peer.next().unwrap() {
                    server.proto.handle_message(now, message).unwrap();
                }
            }
        }
    }

    /// Lets all sides send and do everything that is due.
    fn settle(&mut self) {
        for (index, site) in self.sites.iter().enumerate() {
            self.peer.set_rtt(source(index), site.rtt);
        }
        self.settle_peer();
        (0..self.sites.len()).for_each(|site| self.settle_server(site));
        self.settle_peer();
    }

    fn settle_peer(&mut self) {
        for site in 0..self.sites.len() {
            let mut out = Vec::new();
            while let Some(message) = self.peer.poll_message(self.now, source(site)) {
                message.encode(&mut out);
            }
            if !out.is_empty() {
                let at = self.sites[site].up.ordered(self.now, out.len());
                self.post(site, at, Packet::ControlUp(out.into()));
            }
        }
        while let Some(event) = self.peer.poll_event() {
            match event {
                Event::Answered { request, answer } => drop(self.answers.insert(request, answer)),
                Event::Decoded { fetch, decoder } => {
                    let offset = decoder.generation().offset;
                    self.left_to_others += u64::from(decoder.is_to_be_solved());
                    self.generations
                        .entry(fetch)
                        .or_default()
                        .push((offset, decoder.into_bytes(&Cores::all()).unwrap()));
                }
                Event::Failed { fetch, failure } => drop(self.failures.insert(fetch, failure)),
                Event::Announced { meta, .. } => self.announced.push(meta.path),
                Event::Test(trial) => {
                    let tested = trial.run(&Cores::all(), &mut self.random);
                    self.peer.tested(self.now, tested);
                }
                Event::Ready(_)
                | Event::Hashed { .. }
                | Event::Brought { .. }
                | Event::Peers { .. }
                | Event::Alternates { .. }
                | Event::Page { .. }
                | Event::Pages { .. }
                | Event::Signal { .. }
                | Event::Checked { .. }
                | Event::Polluter(_)
                | Event::TokenRefused(_)
                | Event::GoingAway(_)
                | Event::Unsubscribed { .. } => {}
            }
        }
        (0..self.sites.len()).for_each(|site| while self.peer.poll_stop(source(site)).is_some() {});
    }

    fn settle_server(&mut self, site: usize) {
        let now = self.now;
        let Some(mut server) = self.sites[site].server.take() else {
            return;
        };
        let (ready, waiting) = std::mem::take(&mut server.resolving)
            .into_iter()
            .partition(|(at, ..)| *at <= now);
        server.resolving = waiting;
        for (_, request, path) in Vec::from_iter::<Vec<(Instant, u64, String)>>(ready) {
            let unknown = || Refusal {
                code: RefusalCode::Unknown,
                retry_after: None,
                reason: String::new(),
            };
            let known = self
                .library
                .get(&path)
                .filter(|_| !self.sites[site].is_ignorant);
            let answer = known
                .map(|published| published.resolved.clone())
                .ok_or_else(unknown);
            self.sites[site].refused += u64::from(answer.is_err());
            server.proto.resolved(now, request, answer);
        }
        while let Some(event) = server.proto.poll_event() {
            self.act(site, &mut server, event);
        }
        server.proto.set_datagram_max(self.setup.datagram_max);
        while let Some((want, _)) = server.proto.poll_want(u32::MAX) {
            if let session::Want::Source(generation, range) = want {
                let alias = server
                    .proto
                    .claims()
                    .iter()
                    .find(|claim| claim.line.generation == generation)
                    .map(|claim| claim.alias);
                server
                    .sources
                    .entry(alias.expect("what is wanted can be claimed"))
                    .or_default()
                    .extend(range);
            }
        }
        self.send_blocks(site, &mut server);
        let mut out = Vec::new();
        while let Some(message) = server.proto.poll_message() {
            message.encode(&mut out);
        }
        if !out.is_empty() {
            let at = self.sites[site].down.ordered(now, out.len());
            self.post(site, at, Packet::ControlDown(out.into()));
        }
        self.sites[site].server = Some(server);
    }

    fn act(&mut self, site: usize, server: &mut Server, event: session::Event) {
        let now = self.now;
        match event {
            session::Event::Resolve(get) => {
                server
                    .resolving
                    .push((now + Duration::from_millis(1), get.request, get.path))
            }
            session::Event::Find { ticket, id, .. } => {
                let found = self
                    .library
                    .values()
                    .find(|published| published.resolved.id == id);
                let held = found.and_then(|published| match &published.resolved.body {
                    Body::Coded(held) => Some(held.clone()),
                    _ => None,
                });
                server.proto.found(now, ticket, held).unwrap();
            }
            session::Event::Subscribe(subscribe) => {
                let _ = server.proto.subscribed(subscribe.request, Ok(()));
            }
            session::Event::Unsubscribed { .. } => {}
            session::Event::Deliver { request, bytes, .. } => {
                let mut head = Vec::new();
                StreamHead::Object { request }.encode(&mut head);
                self.send_whole(site, server, head, &bytes);
            }
            // Only servers serve here.
            session::Event::Offer { .. }
            | session::Event::Have(_)
            | session::Event::Introduce { .. } => {}
            // Nor is anybody a web page.
            session::Event::OfferPage { .. } | session::Event::Signal { .. } => {}
            // No peer here requests these, or blames another.
            session::Event::Hashes { ticket, held } => {
                let published = self
                    .library
                    .values()
                    .find(|published| published.resolved.id == held.lease.id)
                    .unwrap();
                let hashes = hashes_of(&published.bytes, &held.lease.shape);
                server
                    .proto
                    .hashes(now, ticket, Ok(hashes.as_bytes().clone()));
                while let Some(event) = server.proto.poll_event() {
                    self.act(site, server, event);
                }
            }
            session::Event::DeliverHashes { request, bytes, .. } => {
                let mut head = Vec::new();
                StreamHead::Hashes { request }.encode(&mut head);
                self.send_whole(site, server, head, &bytes);
                server.proto.hashes_left();
            }
            session::Event::Lost { .. }
            | session::Event::Checks { .. }
            | session::Event::Blame { .. } => {}
            // There is no ring here, and claims are already in the order of their deadlines.
            session::Event::Rescheduled { .. }
            | session::Event::Watches { .. }
            | session::Event::AskAdmission => {}
            session::Event::Ended(ended) => {
                server.sources.remove(&ended.alias);
                if let Some(stream) = server.streams.remove(&ended.alias) {
                    let at = self.sites[site].down.ordered(now, 0);
                    self.post(site, at, Packet::StreamEnd(stream));
                }
            }
        }
    }

    /// Sends an object on its own stream.
    fn send_whole(&mut self, site: usize, server: &mut Server, head: Vec<u8>, bytes: &Bytes) {
        let stream = server.open_stream();
        for chunk in [head.into()]
            .into_iter()
            .chain(bytes.chunks(1000).map(Bytes::copy_from_slice))
        {
            self.send_stream(site, stream, chunk);
        }
        let at = self.sites[site].down.ordered(self.now, 0);
        self.post(site, at, Packet::StreamEnd(stream));
    }

    /// Sends what requests may claim, in turn one block each, while the path has room.
    fn send_blocks(&mut self, site: usize, server: &mut Server) {
        loop {
            let mut sent = false;
            for claim in server.proto.claims() {
                let window = self.setup.reader.map_or(usize::MAX, |(_, window)| window);
                let blocked =
                    claim.route == session::Route::Stream && self.sites[site].unread >= window;
                if self.sites[site].down.has_room_at() > self.now || blocked {
                    continue;
                }
                let generation = self.generation(claim.line.generation);
                let vector = match claim.line.kind {
                    LineKind::Source(_) => {
                        let next = server
                            .sources
                            .get_mut(&claim.alias)
                            .and_then(VecDeque::pop_front);
                        let index = next.expect("as many as are claimed");
                        self.doubled_sources +=
                            u64::from(!self.sent_sources.insert((claim.line.generation, index)));
                        Vector::numbered(index, generation.n)
                    }
                    LineKind::Coded | LineKind::Sparse(_) | LineKind::Recoded(_) => {
                        let seed = self
                            .seeds
                            .entry(claim.line.generation)
                            .or_insert(u32::MAX - 10);
                        *seed = seed.wrapping_add(1);
                        let seed = *seed;
                        self.vector(claim.line, generation, seed)
                    }
                };
                let stamp = server
                    .proto
                    .stamp(claim.alias, &vector, claim.route)
                    .unwrap();
                let mut block = stamp.header().to_vec();
                block.extend_from_slice(
                    &self.payload(claim.line.generation, generation, &vector)[..stamp.payload],
                );
                self.send_block(site, server, claim.alias, claim.route, block.into());
                sent = true;
            }
            // Sent blocks make room in the window of credit.
            server.register();
            if !sent {
                return;
            }
        }
    }

    fn send_block(
        &mut self,
        site: usize,
        server: &mut Server,
        alias: u16,
        route: session::Route,
        block: Bytes,
    ) {
        match route {
            session::Route::Datagram => {
                let ends = (block[1] & 1 == 1).then_some(alias);
                let doomed = (self.doom)(&self.sent, ends);
                for sent in [&mut self.sent, &mut self.sites[site].sent] {
                    sent.datagrams += 1;
                    sent.dropped += u64::from(doomed);
                }
                let arrivals = self.sites[site].down.datagram(self.now, block.len());
                for at in arrivals.into_iter().filter(|_| !doomed) {
                    self.post(site, at, Packet::Datagram(block.clone()));
                }
            }
            session::Route::Stream => {
                self.sent.records += 1;
                self.sites[site].sent.records += 1;
                if !server.streams.contains_key(&alias) {
                    let stream = server.open_stream();
                    server.streams.insert(alias, stream);
                    let mut head = Vec::new();
                    StreamHead::Blocks { alias }.encode(&mut head);
                    self.send_stream(site, stream, head.into());
                }
                self.send_stream(site, server.streams[&alias], block);
            }
        }
    }

    fn send_stream(&mut self, site: usize, stream: u64, bytes: Bytes) {
        let mut at = self.sites[site].down.ordered(self.now, bytes.len());
        self.sites[site].unread += bytes.len();
        if let Some((bytes_per_second, _)) = self.setup.reader {
            // The reader takes what has arrived at its own rate.
            at += Duration::from_secs_f64(self.sites[site].unread as f64 / bytes_per_second as f64);
        }
        self.post(site, at, Packet::Stream(stream, bytes));
    }

    fn generation(&self, key: GenerationKey) -> Generation {
        let (_, held) = self.held(key);
        held.lease.shape.generation(key.index).unwrap()
    }

    fn held(&self, key: GenerationKey) -> (&Published, &Held) {
        let coded = self
            .library
            .values()
            .filter_map(|published| match &published.resolved.body {
                Body::Coded(held) if held.lease.key == key.segment => Some((published, held)),
                _ => None,
            });
        coded.into_iter().next().unwrap()
    }

    fn vector(&self, line: LineKey, generation: Generation, seed: u32) -> Vector {
        if generation.codec == Codec::RaptorQ {
            return Vector::repair(seed, generation.n);
        }
        if generation.codec.is_gfq() {
            let shape = gfq::Shape::new(
                generation.n,
                u16::try_from(generation.block_bytes / 32).unwrap(),
            )
            .unwrap();
            let row = gfq::draw_rows(shape, 1, &mut StdRng::seed_from_u64(seed.into()));
            return Vector::Narrow(
                row.iter()
                    .flat_map(|coefficient| coefficient.to_be_bytes())
                    .collect(),
            );
        }
        let LineKind::Sparse(weight) = line.kind else {
            return Vector::Seed(seed);
        };
        let (_, held) = self.held(line.generation);
        let mut row = vec![0; generation.n.into()];
        row_key(&held.lease.id, &generation).fill_sparse(seed, weight.get(), &mut row);
        Vector::Explicit(row.into())
    }

    fn payload(&mut self, key: GenerationKey, generation: Generation, vector: &Vector) -> Vec<u8> {
        let (published, held) = self.held(key);
        let (bytes, id) = (published.bytes.clone(), held.lease.id);
        let part = |range: Range<u64>| {
            bytes.slice(usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap())
        };
        match vector {
            Vector::Source(index) => part(generation.block_range(*index)).to_vec(),
            Vector::Seed(seed) => {
                let encoder = self.encoders.entry(key).or_insert_with(|| {
                    let source = part(generation.offset..generation.offset + generation.length);
                    Encoder::new(
                        &generation,
                        &source,
                        row_key(&id, &generation),
                        Kernels::detect(),
                    )
                    .unwrap()
                });
                let mut out = vec![0; encoder.block_bytes()];
                encoder.block(*seed, &mut out);
                out
            }
            Vector::Narrow(row) => {
                let shape = gfq::Shape::new(
                    generation.n,
                    u16::try_from(generation.block_bytes / 32).unwrap(),
                )
                .unwrap();
                let rows: Vec<u32> = row
                    .chunks(4)
                    .map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap()))
                    .collect();
                let (source, mut out) = (
                    part(generation.offset..generation.offset + generation.length),
                    vec![0; shape.payload_bytes()],
                );
                Cores::all()
                    .encode(
                        shape,
                        &mut [gfq::Encode::new(shape, &source, &rows, &mut out)],
                    )
                    .unwrap();
                out
            }
            Vector::Shard(_) | Vector::Symbol(_) | Vector::Wide(_) => {
                let mut row = vec![0; generation.n.into()];
                write_number(vector, &mut row);
                self.payload(key, generation, &Vector::Explicit(row.into()))
            }
            Vector::Explicit(row) | Vector::Unverified(row) => {
                let mut sum = vec![0; generation.block_bytes as usize];
                for (&c, index) in row.iter().zip(0..generation.n) {
                    let block = part(generation.block_range(index));
                    Kernels::detect().mul_add(&mut sum[..block.len()], &block, c);
                }
                sum
            }
        }
    }

    /// Delivers something later, unless the server that sent it is mute.
    fn post(&mut self, site: usize, at: Instant, packet: Packet) {
        if self.sites[site].is_mute {
            return;
        }
        self.packets.push(Reverse((at, self.next_packet)));
        self.contents
            .insert(self.next_packet, (site, packet, self.now));
        self.next_packet += 1;
    }
}

/// The peer's id for the server at a site.
fn source(site: usize) -> SourceId {
    SourceId(u32::try_from(site).unwrap())
}

impl Server {
    /// Records the wanted source blocks; coded ones are made when claimed.
    fn register(&mut self) {
        while let Some((want, _)) = self.proto.poll_want(u32::MAX) {
            if let session::Want::Source(generation, range) = want {
                let claims = self.proto.claims();
                let alias = claims
                    .iter()
                    .find(|claim| claim.line.generation == generation)
                    .map(|claim| claim.alias);
                self.sources
                    .entry(alias.expect("what is wanted can be claimed"))
                    .or_default()
                    .extend(range);
            }
        }
    }

    fn open_stream(&mut self) -> u64 {
        self.next_stream += 4;
        self.next_stream - 4
    }
}

/// The key of all signed streams here.
static KEY: LazyLock<SigningKey> = LazyLock::new(|| {
    SigningKey::from_pem(SigningKey::generate(&mut rand::rng()).as_bytes()).unwrap()
});

/// The homomorphic hashes of a segment.
fn hashes_of(bytes: &[u8], shape: &Shape) -> BlockHashes {
    let Codec::RlncQ { group } = shape.codec() else {
        panic!("its blocks prove nothing")
    };
    let blocks: Vec<&[u8]> = bytes.chunks(shape.block_bytes() as usize).collect();
    BlockHashes::made(
        Cores::all()
            .hash(group, shape.words(), &blocks)
            .unwrap()
            .into(),
        shape,
    )
}

/// The key's signature of a segment.
fn signed(resolved: &Resolved, shape: Shape, bytes: &[u8]) -> Signature {
    let mut meta = Meta {
        request: 0,
        path: resolved.path.clone(),
        id: resolved.id,
        offset: resolved.offset,
        length: resolved.length,
        object_length: resolved.object_length,
        version: resolved.version,
        max_age_ms: 0,
        content_type: resolved.content_type.clone(),
        delivery: Delivery::Coded(shape),
        signature: None,
        tree: None,
    };
    KEY.sign_meta(&mut meta, 1, Some(hashes_of(bytes, &shape).digest()));
    meta.signature.expect("it was signed just now")
}
