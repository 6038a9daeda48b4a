//! A viewer, relays, servers and polluters in virtual time: every consumer runs `peer::proto`,
//! every relay the relay's rows, and senders just send. Nothing here uses a socket or a real clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncserverd::block::{Block, Vector};
use ncserverd::codec::gfq::{self, Arithmetic as _, Cores};
use ncserverd::codec::rlnc::Encoder;
use ncserverd::gf::Kernels;
use ncserverd::integrity::checks::{self, COLUMNS};
use ncserverd::integrity::hashes::BlockHashes;
use ncserverd::integrity::signing::SigningKey;
use ncserverd::object::row_key;
use ncserverd::object::{Codec, Generation, RefusalCode, SegmentId, Shape};
use ncserverd::peer::proto::{
    Config, Counts, Event, FetchId, Keys, Order, Place, Proof, Proto, Secret, SourceId, StreamEnd,
    Urgency,
};
use ncserverd::relay::{Heap, News, Rows, plan};
use ncserverd::wire::block::{self, StreamHead};
use ncserverd::wire::message::{
    Checks, Codecs, Delivery, GetChecks, Hello, Message, Meta, Request, RequestError,
};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

const DELAY: Duration = Duration::from_millis(10);
const GAP: Duration = Duration::from_micros(400);
const STEPS_MAX: usize = 200_000;
const BLOCK_BYTES: u32 = 64;
const N_MAX: u16 = 12;

static KEY: LazyLock<SigningKey> = LazyLock::new(|| {
    SigningKey::from_pem(SigningKey::generate(&mut rand::rng()).as_bytes()).unwrap()
});

/// The role of a node.
#[derive(Debug, Clone)]
pub(crate) enum Role {
    /// Has all segments and sends right blocks. `answers`: it gives checksums.
    Server { answers: bool },
    /// Has all segments, and sends wrong blocks: the first of each request, and this share of the
    /// others.
    Liar { share: f64 },
    /// Has the same bytes in another shape. Sends its blocks, unless it heeds the coding in a
    /// request.
    Other { heeds: bool },
    /// Passes on blocks from these nodes.
    Relay { sources: Vec<usize> },
    /// Fetches from these nodes.
    Viewer { sources: Vec<usize> },
}

pub(crate) struct Swarm {
    pub(crate) now: Instant,
    rng: StdRng,
    loss: f64,
    is_signed: bool,
    segments: Vec<Segment>,
    next_stream: u64,
    pub(crate) nodes: Vec<Node>,
    queue: BinaryHeap<Reverse<(Instant, u64)>>,
    parcels: HashMap<u64, Parcel>,
    next: u64,
    /// BLAMEs received by nodes: by which, and about which.
    pub(crate) blames: Vec<(usize, usize)>,
}

struct Segment {
    path: String,
    id: SegmentId,
    bytes: Bytes,
    shape: Shape,
    meta: Meta,
}

pub(crate) struct Node {
    role: Role,
    consumer: Option<Consumer>,
    open: BTreeMap<(usize, u16), Sending>,
    encoders: HashMap<(usize, u32), Encoder>,
}

/// The receiving side of a node.
struct Consumer {
    proto: Proto,
    sources: Vec<usize>,
    fetches: HashMap<FetchId, Coming>,
    /// Verified segments, and those being fetched.
    whole: Vec<usize>,
    wanted: Vec<usize>,
    answers: HashMap<u64, usize>,
    rows: HashMap<(usize, u32), Rows>,
    /// Sources that it found to be polluters, each with the segment at which it did.
    polluters: Vec<(SourceId, usize)>,
}

struct Coming {
    segment: usize,
    generations: BTreeMap<u32, Vec<u8>>,
}

/// An open request at a node.
struct Sending {
    source: SourceId,
    segment: usize,
    generation: Generation,
    credit: u32,
    seq: u16,
    /// The stream for blocks that do not travel in datagrams.
    stream: Option<u64>,
    seed: u32,
    sources: Vec<u16>,
    made: BTreeMap<Heap, u32>,
    sent: u32,
}

enum Parcel {
    /// From a consumer to one of its sources.
    Up {
        from: usize,
        source: SourceId,
        to: usize,
        message: Box<Message>,
    },
    Down {
        to: usize,
        source: SourceId,
        what: Down,
    },
}

#[derive(Clone)]
enum Down {
    Message(Box<Message>),
    Datagram(Bytes),
    /// A whole stream.
    Stream(u64, Bytes),
    /// A part of one.
    Piece(u64, Bytes),
}

impl Swarm {
    /// A swarm of these nodes with this many segments, signed or not.
    pub(crate) fn new(
        seed: u64,
        roles: Vec<Role>,
        segments: usize,
        is_signed: bool,
        loss: f64,
    ) -> Self {
        Self::coded_with(Codec::Rlnc, seed, roles, segments, is_signed, loss)
    }

    /// The same with this code; blocks over the prime field travel on streams, which lose nothing.
    pub(crate) fn coded_with(
        codec: Codec,
        seed: u64,
        roles: Vec<Role>,
        segments: usize,
        is_signed: bool,
        loss: f64,
    ) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let now = Instant::now();
        let segments = (0..segments)
            .map(|index| Segment::new(index, is_signed, codec, &mut rng))
            .collect();
        let nodes = roles.into_iter().map(|role| Node::new(role, now)).collect();
        let mut swarm = Self {
            now,
            rng,
            loss,
            is_signed,
            segments,
            // Streams of hashes have the numbers of their requests.
            next_stream: (1 << 40) + 3,
            nodes,
            queue: BinaryHeap::new(),
            parcels: HashMap::new(),
            next: 0,
            blames: Vec::new(),
        };
        for node in 0..swarm.nodes.len() {
            swarm.settle(node);
        }
        swarm
    }

    /// Lets the viewer fetch all segments in turn. Fails if that takes longer than this.
    pub(crate) fn watch(&mut self, viewer: usize, limit: Duration) {
        let end = self.now + limit;
        for segment in 0..self.segments.len() {
            self.want(viewer, segment);
            for step in 0.. {
                if self.consumer(viewer).whole.contains(&segment) {
                    break;
                }
                assert!(
                    step < STEPS_MAX && self.now < end,
                    "segment {segment}: {:?}",
                    self.counts(viewer)
                );
                self.step();
            }
        }
        // Time for nodes accused last to report the sources that they found.
        let end = self.now + 10 * DELAY;
        for _ in 0..STEPS_MAX {
            if self.next_at().is_none_or(|at| at > end) {
                break;
            }
            self.step();
        }
    }

    /// The nodes that a consumer found to be polluters, each with its segment.
    pub(crate) fn polluters(&self, node: usize) -> Vec<(usize, usize)> {
        let consumer = self.consumer(node);
        consumer
            .polluters
            .iter()
            .map(|(source, segment)| (consumer.sources[source.0 as usize], *segment))
            .collect()
    }

    pub(crate) fn counts(&self, node: usize) -> Counts {
        self.consumer(node).proto.counts()
    }

    /// Blocks that a consumer got from a node.
    pub(crate) fn blocks_from(&self, node: usize, from: usize) -> u64 {
        let consumer = self.consumer(node);
        let index = consumer
            .sources
            .iter()
            .position(|source| *source == from)
            .unwrap();
        consumer.proto.source_counts(id(index)).blocks
    }

    /// Blocks of a segment.
    pub(crate) fn blocks(&self) -> u64 {
        self.segments[0]
            .shape
            .iter()
            .map(|generation| u64::from(generation.n))
            .sum()
    }

    fn consumer(&self, node: usize) -> &Consumer {
        self.nodes[node].consumer.as_ref().expect("it asks")
    }

    fn want(&mut self, node: usize, segment: usize) {
        let now = self.now;
        let consumer = self.nodes[node].consumer.as_mut().expect("it asks");
        if consumer.wanted.contains(&segment) {
            return;
        }
        consumer.wanted.push(segment);
        let request = consumer
            .proto
            .get(now, &self.segments[segment].path, 0, None);
        consumer.answers.insert(request, segment);
        self.settle(node);
    }

    fn next_at(&self) -> Option<Instant> {
        let parcel = self.queue.peek().map(|Reverse((at, _))| *at);
        let timers = self
            .nodes
            .iter()
            .filter_map(|node| node.consumer.as_ref()?.proto.poll_timeout());
        timers.chain(parcel).min()
    }

    /// Processes the next event.
    fn step(&mut self) {
        let at = self.next_at().expect("something is still to happen");
        self.now = self.now.max(at);
        while let Some(Reverse((at, number))) = self
            .queue
            .peek()
            .copied()
            .filter(|Reverse((at, _))| *at <= self.now)
        {
            let _ = at;
            self.queue.pop();
            match self.parcels.remove(&number).expect("it was posted") {
                Parcel::Up {
                    from,
                    source,
                    to,
                    message,
                } => self.ask(from, source, to, *message),
                Parcel::Down { to, source, what } => self.tell(to, source, what),
            }
        }
        for node in 0..self.nodes.len() {
            let now = self.now;
            if let Some(consumer) = self.nodes[node].consumer.as_mut()
                && consumer.proto.poll_timeout().is_some_and(|due| due <= now)
            {
                consumer.proto.handle_timeout(now).unwrap();
                self.settle(node);
            }
        }
    }

    /// Lets a consumer send and do everything that is due.
    fn settle(&mut self, node: usize) {
        let now = self.now;
        let Some(mut consumer) = self.nodes[node].consumer.take() else {
            return;
        };
        loop {
            for (index, to) in consumer.sources.clone().into_iter().enumerate() {
                consumer.proto.set_rtt(id(index), DELAY * 2);
                while let Some(message) = consumer.proto.poll_message(now, id(index)) {
                    let message = Box::new(message);
                    self.post(
                        now + DELAY,
                        Parcel::Up {
                            from: node,
                            source: id(index),
                            to,
                            message,
                        },
                    );
                }
            }
            let Some(event) = consumer.proto.poll_event() else {
                break;
            };
            self.happened(&mut consumer, event);
        }
        (0..consumer.sources.len())
            .for_each(|index| while consumer.proto.poll_stop(id(index)).is_some() {});
        self.nodes[node].consumer = Some(consumer);
        // A relay may now have more to pass on.
        for key in self.nodes[node].open.keys().copied().collect::<Vec<_>>() {
            self.send(node, key);
        }
    }

    fn happened(&mut self, consumer: &mut Consumer, event: Event) {
        let now = self.now;
        match event {
            Event::Answered { request, answer } => {
                let segment = consumer.answers.remove(&request).unwrap();
                let meta = answer.expect("somebody knows it").meta;
                let Delivery::Coded(shape) = meta.delivery else {
                    panic!("not coded")
                };
                let (proof, deadline, urgency) = (Proof::of(&meta), None, Urgency::Now);
                let order = Order {
                    segment: meta.id,
                    shape,
                    proof,
                    deadline,
                    urgency,
                };
                let place = Place {
                    path: meta.path,
                    offset: 0,
                    length: None,
                };
                let fetch = consumer.proto.fetch(now, order, Some(place));
                consumer.fetches.insert(
                    fetch,
                    Coming {
                        segment,
                        generations: BTreeMap::new(),
                    },
                );
            }
            Event::Decoded { fetch, decoder } => {
                let coming = consumer.fetches.get_mut(&fetch).unwrap();
                let Segment { shape, id, .. } = &self.segments[coming.segment];
                coming.generations.insert(
                    decoder.generation().index,
                    decoder.into_bytes(&Cores::all()).unwrap(),
                );
                if coming.generations.len() < shape.generations() as usize {
                    return;
                }
                let bytes: Vec<u8> = std::mem::take(&mut coming.generations)
                    .into_values()
                    .flatten()
                    .collect();
                let is_right = SegmentId::of_coded(&bytes, shape.codec()) == *id;
                let segment = coming.segment;
                if is_right {
                    consumer.whole.push(segment);
                    consumer.fetches.remove(&fetch);
                }
                assert!(
                    consumer.proto.confirm(now, fetch, is_right) || is_right,
                    "{:?}",
                    consumer.proto.counts()
                );
            }
            Event::Failed { fetch, failure } => {
                panic!("{fetch:?} {failure:?} {:?}", consumer.proto.counts())
            }
            Event::Brought {
                cut,
                generation,
                source,
                block,
                is_checked,
            } => {
                let index = self.index(cut.segment);
                consumer
                    .rows_of(&self.segments[index], index, generation)
                    .take(News::Row {
                        source,
                        block,
                        is_checked,
                    });
            }
            Event::Checked {
                cut,
                generation,
                rows,
            } => {
                let index = self.index(cut.segment);
                consumer
                    .rows_of(&self.segments[index], index, generation)
                    .take(News::Checked(rows));
            }
            Event::Test(trial) => {
                let tested = trial.run(&Cores::all(), &mut self.rng);
                consumer.proto.tested(now, tested);
            }
            Event::Hashed { .. } => {}
            Event::Polluter(source) => {
                let segment = consumer.wanted.len() - 1;
                consumer.polluters.push((source, segment));
            }
            Event::Ready(_)
            | Event::Peers { .. }
            | Event::Alternates { .. }
            | Event::Page { .. }
            | Event::Pages { .. }
            | Event::Signal { .. }
            | Event::Announced { .. }
            | Event::Unsubscribed { .. }
            | Event::TokenRefused(_)
            | Event::GoingAway(_) => {}
        }
    }

    fn index(&self, id: SegmentId) -> usize {
        self.segments
            .iter()
            .position(|segment| segment.id == id)
            .expect("a segment of the library")
    }

    /// Delivers something to a consumer.
    fn tell(&mut self, node: usize, source: SourceId, what: Down) {
        let now = self.now;
        let consumer = self.nodes[node].consumer.as_mut().expect("it asks");
        match what {
            Down::Message(message) => consumer
                .proto
                .handle_message(now, source, *message)
                .unwrap(),
            Down::Datagram(bytes) => consumer.proto.handle_datagram(now, source, bytes).unwrap(),
            Down::Piece(stream, bytes) => consumer
                .proto
                .handle_stream(now, source, stream, &bytes)
                .unwrap(),
            Down::Stream(stream, bytes) => {
                consumer
                    .proto
                    .handle_stream(now, source, stream, &bytes)
                    .unwrap();
                consumer
                    .proto
                    .handle_stream_end(source, stream, StreamEnd::Finished)
                    .unwrap();
            }
        }
        self.settle(node);
    }

    /// Delivers a message from a consumer to a node, which is `source` to it.
    fn ask(&mut self, from: usize, source: SourceId, node: usize, message: Message) {
        match message {
            Message::Hello(_) => self.answer(from, source, Message::Hello(Hello::defaults())),
            Message::Get(get) => {
                let meta = self
                    .segments
                    .iter()
                    .find(|segment| segment.path == get.path)
                    .map(|segment| segment.meta.clone());
                let mut meta = meta.expect("nobody asks for what is not there");
                if let (Role::Other { .. }, Delivery::Coded(shape)) =
                    (&self.nodes[node].role, &mut meta.delivery)
                {
                    *shape =
                        Shape::new(shape.length(), 2 * shape.block_bytes(), shape.n_max()).unwrap();
                    if self.is_signed {
                        KEY.sign_meta(&mut meta, 1000, Some([1; 32]));
                    }
                }
                self.answer(
                    from,
                    source,
                    Message::Meta(Meta {
                        request: get.request,
                        ..meta
                    }),
                );
            }
            Message::GetHashes {
                request, segment, ..
            } => {
                let Segment { bytes, shape, .. } = &self.segments[self.index(segment)];
                let mut out = Vec::new();
                StreamHead::Hashes { request }.encode(&mut out);
                out.extend_from_slice(hashes_of(bytes, shape).as_bytes());
                let what = Down::Stream(request * 4 + 3, out.into());
                self.post(
                    self.now + DELAY,
                    Parcel::Down {
                        to: from,
                        source,
                        what,
                    },
                );
            }
            Message::GetChecks(asked) => {
                let answer = match self.nodes[node].role {
                    Role::Server { answers: true } => Message::Checks(self.checks(&asked)),
                    _ => {
                        let (request, code, reason) =
                            (asked.request, RefusalCode::Unknown, String::new());
                        Message::Error(RequestError {
                            request,
                            code,
                            retry_after_ms: 0,
                            reason,
                        })
                    }
                };
                self.answer(from, source, answer);
            }
            Message::Request(request)
                if matches!(self.nodes[node].role, Role::Other { heeds: true }) =>
            {
                let (alias, code) = (request.alias, RefusalCode::Unknown);
                self.answer(
                    from,
                    source,
                    Message::Reject {
                        alias,
                        code,
                        retry_after_ms: 0,
                    },
                );
            }
            Message::Request(request) => {
                let segment = self.index(request.segment);
                if let Role::Relay { .. } = self.nodes[node].role {
                    self.want(node, segment);
                }
                let sending = self.sending(source, segment, &request);
                self.nodes[node].open.insert((from, request.alias), sending);
                self.send(node, (from, request.alias));
            }
            Message::Credit { alias, blocks } => {
                if let Some(sending) = self.nodes[node].open.get_mut(&(from, alias)) {
                    sending.credit += blocks;
                    self.send(node, (from, alias));
                }
            }
            Message::Stop { alias, .. } => drop(self.nodes[node].open.remove(&(from, alias))),
            Message::Blame { identity, .. } => self.blames.push((node, identity[0].into())),
            Message::Rank { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn answer(&mut self, to: usize, source: SourceId, message: Message) {
        self.post(
            self.now + DELAY,
            Parcel::Down {
                to,
                source,
                what: Down::Message(Box::new(message)),
            },
        );
    }

    fn checks(&mut self, asked: &GetChecks) -> Checks {
        let seed = self.rng.random();
        let Segment {
            bytes, shape, id, ..
        } = &self.segments[self.index(asked.segment)];
        let generation = shape.generation(asked.generation).unwrap();
        let projections = checks::project(
            Kernels::detect(),
            &seed,
            id,
            &generation,
            COLUMNS,
            &part(bytes, &generation),
        )
        .into();
        let mut answer = Checks {
            request: asked.request,
            seed,
            columns: COLUMNS,
            projections,
            signature: None,
        };
        if self.is_signed {
            KEY.sign_checks(asked, &mut answer);
        }
        answer
    }

    fn sending(&mut self, source: SourceId, segment: usize, request: &Request) -> Sending {
        let generation = self.segments[segment]
            .shape
            .generation(request.generation)
            .unwrap();
        let ranges: Vec<(u16, u16)> = if request.ranges.is_empty() {
            vec![(0, generation.n)]
        } else {
            request.ranges.clone()
        };
        let sources = ranges
            .into_iter()
            .flat_map(|(first, count)| first..first + count);
        let mut sources: Vec<u16> = sources.filter(|_| request.accept.systematic).collect();
        sources.reverse();
        let seed = self.rng.next_u32();
        let (credit, made) = (request.credit, BTreeMap::new());
        Sending {
            source,
            segment,
            generation,
            credit,
            seq: 0,
            stream: None,
            seed,
            sources,
            made,
            sent: 0,
        }
    }

    /// Lets a node send as many blocks as its credit allows.
    fn send(&mut self, node: usize, key: (usize, u16)) {
        let Some(mut sending) = self.nodes[node].open.remove(&key) else {
            return;
        };
        let mut at = self.now + DELAY;
        while sending.credit > 0 {
            let blocks = self.next_blocks(node, &mut sending);
            if blocks.is_empty() {
                break;
            }
            for Block { vector, payload } in blocks {
                sending.credit -= 1;
                if sending.generation.codec.is_gfq() {
                    let mut out = Vec::new();
                    let stream = *sending.stream.get_or_insert_with(|| {
                        StreamHead::Blocks { alias: key.1 }.encode(&mut out);
                        self.next_stream += 4;
                        self.next_stream
                    });
                    let head = out.len();
                    out.resize(head + block::record_header_len(&vector), 0);
                    block::write_record_header(&mut out[head..], &vector);
                    out.extend_from_slice(&payload);
                    sending.sent += 1;
                    at += GAP;
                    self.post(
                        at,
                        Parcel::Down {
                            to: key.0,
                            source: sending.source,
                            what: Down::Piece(stream, out.into()),
                        },
                    );
                    continue;
                }
                let length = block::datagram_header_len(&vector);
                let mut out = vec![0; length];
                block::write_datagram_header(
                    &mut out,
                    &vector,
                    key.1,
                    sending.seq,
                    sending.credit == 0,
                );
                out.extend_from_slice(&payload);
                sending.seq = sending.seq.wrapping_add(1);
                sending.sent += 1;
                at += GAP;
                if !self.rng.random_bool(self.loss) {
                    let what = Down::Datagram(out.into());
                    self.post(
                        at,
                        Parcel::Down {
                            to: key.0,
                            source: sending.source,
                            what,
                        },
                    );
                }
            }
        }
        self.nodes[node].open.insert(key, sending);
    }

    /// The next blocks of a node for a request.
    fn next_blocks(&mut self, node: usize, sending: &mut Sending) -> Vec<Block> {
        let Segment { bytes, id, .. } = &self.segments[sending.segment];
        let (generation, rng) = (sending.generation, &mut self.rng);
        let node = &mut self.nodes[node];
        if let (Role::Relay { .. }, Some(consumer)) = (&node.role, &mut node.consumer)
            && !consumer.whole.contains(&sending.segment)
        {
            let Some(rows) = consumer.rows.get(&(sending.segment, generation.index)) else {
                return Vec::new();
            };
            let Some((heap, _)) = plan(1, &rows.ranks(), &mut sending.made, true).pop() else {
                return Vec::new();
            };
            let mut payload = vec![0; generation.coded_bytes() as usize];
            let vectors = rows.recode(heap, rng, &mut [&mut payload]);
            return vectors
                .into_iter()
                .map(|vector| Block {
                    vector,
                    payload: payload.clone().into(),
                })
                .collect();
        }
        let own = part(bytes, &generation);
        let mut next = match sending.sources.pop() {
            Some(index) => {
                let start = usize::from(index) * BLOCK_BYTES as usize;
                let payload = own.slice(start..start + generation.block_length(index));
                Block {
                    vector: Vector::Source(index),
                    payload,
                }
            }
            None if generation.codec.is_gfq() => {
                let shape = gfq::Shape::new(
                    generation.n,
                    u16::try_from(BLOCK_BYTES / Codec::WORD_BYTES).unwrap(),
                )
                .unwrap();
                let (rows, mut payload) = (
                    gfq::draw_rows(shape, 1, rng),
                    vec![0; shape.payload_bytes()],
                );
                let task = gfq::Encode::new(shape, &own, &rows, &mut payload);
                Cores::all().encode(shape, &mut [task]).unwrap();
                let row = rows
                    .iter()
                    .flat_map(|coefficient| coefficient.to_be_bytes())
                    .collect();
                Block {
                    vector: Vector::Narrow(row),
                    payload: payload.into(),
                }
            }
            None => {
                let encoder = node
                    .encoders
                    .entry((sending.segment, generation.index))
                    .or_insert_with(|| {
                        Encoder::new(
                            &generation,
                            &own,
                            row_key(id, &generation),
                            Kernels::detect(),
                        )
                        .unwrap()
                    });
                sending.seed = sending.seed.wrapping_add(1);
                let mut payload = vec![0; BLOCK_BYTES as usize];
                encoder.block(sending.seed, &mut payload);
                Block {
                    vector: Vector::Seed(sending.seed),
                    payload: payload.into(),
                }
            }
        };
        let share = match node.role {
            Role::Liar { share } => Some(share),
            Role::Other { .. } => Some(1.0),
            _ => None,
        };
        if let Some(share) = share
            && (sending.sent == 0 || rng.random_bool(share))
        {
            let mut wrong = next.payload.to_vec();
            // Over the prime field the lowest bits of a word, so that the result is still a word.
            let is_gfq = generation.codec.is_gfq();
            let at = if is_gfq {
                31 + 32 * rng.random_range(0..2)
            } else {
                rng.random_range(0..wrong.len())
            };
            let at = at.min(wrong.len() - 1);
            wrong[at] ^= rng.random_range(1..=255u8);
            next.payload = wrong.into();
            if is_gfq {
                return vec![next];
            }
            // Now and then the coefficients are invented, too.
            if rng.random_bool(0.3) && !matches!(next.vector, Vector::Source(_)) {
                next.vector = Vector::Explicit(
                    (0..generation.n)
                        .map(|_| rng.random())
                        .collect::<Vec<u8>>()
                        .into(),
                );
            }
        }
        vec![next]
    }

    fn post(&mut self, at: Instant, parcel: Parcel) {
        self.queue.push(Reverse((at, self.next)));
        self.parcels.insert(self.next, parcel);
        self.next += 1;
    }
}

impl Segment {
    fn new(index: usize, is_signed: bool, codec: Codec, rng: &mut StdRng) -> Self {
        // Two generations with a short last block.
        let mut bytes = vec![0; 20 * BLOCK_BYTES as usize - 13];
        rng.fill(&mut bytes[..]);
        let bytes = Bytes::from(bytes);
        let shape = Shape::new(bytes.len() as u64, BLOCK_BYTES, N_MAX)
            .unwrap()
            .coded_with(codec)
            .unwrap();
        let (path, id) = (
            format!("/live/{index}.m4s"),
            SegmentId::of_coded(&bytes, codec),
        );
        let mut meta = Meta {
            request: 0,
            path: path.clone(),
            id,
            offset: 0,
            length: bytes.len() as u64,
            object_length: Some(bytes.len() as u64),
            version: 1,
            max_age_ms: 1000,
            content_type: String::new(),
            delivery: Delivery::Coded(shape),
            signature: None,
            tree: None,
        };
        if is_signed {
            KEY.sign_meta(&mut meta, 1000, Some(hashes_of(&bytes, &shape).digest()));
        }
        Self {
            path,
            id,
            bytes,
            shape,
            meta,
        }
    }
}

impl Node {
    fn new(role: Role, now: Instant) -> Self {
        let consumer = match &role {
            Role::Relay { sources } => Some(Consumer::new(sources.clone(), true, now)),
            Role::Viewer { sources } => Some(Consumer::new(sources.clone(), false, now)),
            Role::Server { .. } | Role::Liar { .. } | Role::Other { .. } => None,
        };
        Self {
            role,
            consumer,
            open: BTreeMap::new(),
            encoders: HashMap::new(),
        }
    }
}

impl Consumer {
    fn new(sources: Vec<usize>, tells: bool, now: Instant) -> Self {
        let mut proto = Proto::new(Config {
            hello: Hello {
                codecs: Codecs::ALL,
                ..Hello::defaults()
            },
            datagrams: true,
            requests_max: 16,
            window_min: 1 << 20,
            window_max: 1 << 20,
            answer_timeout: Duration::from_secs(10),
            hello_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(20),
            rate_min: 1024,
            kernels: Kernels::detect(),
            gathers: false,
            tells,
            keys: Keys::default(),
            tests_max: 2,
            rows_max: 1 << 20,
            secret: Secret::new([1; 32]),
        });
        for (index, node) in sources.iter().enumerate() {
            proto.handle_connected(now, id(index), None);
            proto.identify(id(index), [u8::try_from(*node).unwrap(); 32]);
        }
        Self {
            proto,
            sources,
            fetches: HashMap::new(),
            whole: Vec::new(),
            wanted: Vec::new(),
            answers: HashMap::new(),
            rows: HashMap::new(),
            polluters: Vec::new(),
        }
    }

    fn rows_of(&mut self, segment: &Segment, index: usize, generation: u32) -> &mut Rows {
        let generation = segment.shape.generation(generation).unwrap();
        let key = row_key(&segment.id, &generation);
        self.rows
            .entry((index, generation.index))
            .or_insert_with(|| Rows::new(generation, key))
    }
}

/// The hashes of a segment's blocks, of its code's kind.
fn hashes_of(bytes: &[u8], shape: &Shape) -> BlockHashes {
    let Codec::RlncQ { group } = shape.codec() else {
        return BlockHashes::of(bytes, shape);
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

fn id(index: usize) -> SourceId {
    SourceId(u32::try_from(index).unwrap())
}

fn part(bytes: &Bytes, generation: &Generation) -> Bytes {
    let start = usize::try_from(generation.offset).unwrap();
    bytes.slice(start..start + usize::try_from(generation.length).unwrap())
}
