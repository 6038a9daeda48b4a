//! A fetch: a peer's machine and a server's, joined by a path of 20 ms each way that loses
//! datagrams, in virtual time.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use ncs_codec::block::Vector;
use ncs_codec::gfq::{self, Arithmetic as _, Cores};
use ncs_codec::rlnc::Encoder;
use ncs_codec::write_number;
use ncs_gf::Kernels;
use ncs_proto::integrity::hashes::BlockHashes;
use ncs_proto::integrity::signing::SigningKey;
use ncs_proto::object::{
    Body, Codec, FirstPass, Generation, HashGroup, Held, Lease, Loan, Resolved, SegmentId,
    SegmentKey, Shape, Signature, Tree, row_key,
};
use ncs_proto::peer::{self, Event, Order, Place, Proof, SourceId, StreamEnd, Urgency};
use ncs_proto::ring::{LineKey, LineKind, SessionId};
use ncs_proto::session::{self, Route, Want};
use ncs_proto::time::Instant;
use ncs_proto::wire::block::StreamHead;
use ncs_proto::wire::frame::Reader;
use ncs_proto::wire::message::{Codecs, Delivery, Hello, Meta};
use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;

const DELAY: Duration = Duration::from_millis(20);
const SOURCE: SourceId = SourceId(0);
const PATH: &str = "/live/1.ts";
const LENGTH: usize = 100_000;
const STEPS_MAX: usize = 100_000;

/// How a segment travels.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// How it is coded.
    pub codec: Codec,
    /// Bytes of the longest datagram; none travel without.
    pub datagram_max: Option<usize>,
    /// Of so many datagrams one is lost.
    pub lose_one_of: u64,
}

/// What was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Datagrams.
    pub datagrams: u64,
    /// Those of them that were lost.
    pub lost: u64,
    /// Blocks on streams.
    pub records: u64,
    /// Milliseconds from the question to the last byte.
    pub ms: u128,
}

/// Each code, and both ways to travel.
pub fn setups() -> Vec<(&'static str, Setup)> {
    let lossy = |codec| Setup {
        codec,
        datagram_max: Some(1162),
        lose_one_of: 7,
    };
    vec![
        ("random linear combinations", lossy(Codec::Rlnc)),
        (
            "streams",
            Setup {
                datagram_max: None,
                ..lossy(Codec::Rlnc)
            },
        ),
        ("Reed-Solomon", lossy(Codec::ReedSolomon { parity: 16 })),
        ("RaptorQ", lossy(Codec::RaptorQ)),
        // Its blocks travel on streams alone, and are tested one and all.
        (
            "the prime field",
            Setup {
                datagram_max: None,
                ..lossy(Codec::RlncQ {
                    group: HashGroup::P1024,
                })
            },
        ),
    ]
}

/// Fetches a segment.
///
/// # Panics
/// If other bytes come than were sent, or none.
pub fn fetch(setup: Setup) -> Sent {
    let mut world = World::new(setup);
    let begun = world.now;
    for _ in 0..STEPS_MAX {
        world.settle();
        if let Some(bytes) = world.decoded() {
            assert!(bytes == world.bytes, "other bytes came than were sent");
            world.sent.ms = (world.now - begun).as_millis();
            return world.sent;
        }
        world.advance();
    }
    panic!(
        "nothing came of it in {STEPS_MAX} steps: {:?} {:?}",
        world.sent,
        world.peer.counts()
    );
}

/// The moment at which everything begins.
pub(crate) fn beginning() -> Instant {
    #[cfg(all(target_family = "wasm", target_os = "unknown"))]
    return Instant::from_epoch(Duration::from_secs(1_000_000));
    #[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
    Instant::now()
}

enum Packet {
    Control(Bytes),
    Datagram(Bytes),
    Stream(u64, Bytes),
    StreamEnd(u64),
}

struct World {
    setup: Setup,
    now: Instant,
    peer: peer::Proto,
    server: session::Proto,
    to_peer: Reader,
    to_server: Reader,
    down: VecDeque<(Instant, Packet)>,
    up: VecDeque<(Instant, Bytes)>,
    bytes: Bytes,
    resolved: Resolved,
    hashes: Option<BlockHashes>,
    streams: HashMap<u16, u64>,
    next_stream: u64,
    numbered: HashMap<LineKey, VecDeque<u16>>,
    seed: u32,
    random: Pcg64Mcg,
    generations: Vec<(u64, Vec<u8>)>,
    sent: Sent,
}

impl World {
    fn new(setup: Setup) -> Self {
        let now = beginning();
        let ten = Duration::from_secs(10);
        let hello = Hello {
            codecs: Codecs::ALL,
            n_max: Shape::N_LIMIT,
            block_bytes_max: 65_536,
            segment_bytes_max: 64 << 20,
            ..Hello::defaults()
        };
        let mut peer = peer::Proto::new(peer::Config {
            hello,
            datagrams: true,
            requests_max: 64,
            window_min: 128 << 10,
            window_max: 8 << 20,
            answer_timeout: ten,
            hello_timeout: ten,
            stall_timeout: ten,
            rate_min: 1024,
            kernels: Kernels::detect(),
            gathers: false,
            tells: false,
            keys: peer::Keys::default(),
            tests_max: 2,
            rows_max: 64 << 20,
            secret: peer::Secret::new([1; 32]),
        });
        let server = session::Proto::new(SessionId(1), session::Config::default(), now);
        let bytes: Bytes = (0..LENGTH)
            .map(|at| u8::try_from(at * at % 251).expect("it is below 251"))
            .collect();
        let (resolved, hashes) = published(&bytes, setup.codec, now);
        peer.handle_connected(now, SOURCE, None);
        peer.get(now, PATH, 0, None);
        Self {
            setup,
            now,
            peer,
            server,
            to_peer: Reader::new(),
            to_server: Reader::new(),
            down: VecDeque::new(),
            up: VecDeque::new(),
            bytes,
            resolved,
            hashes,
            streams: HashMap::new(),
            next_stream: 3,
            numbered: HashMap::new(),
            seed: 0,
            random: Pcg64Mcg::seed_from_u64(1),
            generations: Vec::new(),
            sent: Sent::default(),
        }
    }

    /// The segment, once all of it has come.
    fn decoded(&mut self) -> Option<Vec<u8>> {
        self.generations.sort_unstable_by_key(|(offset, _)| *offset);
        let bytes = self
            .generations
            .iter()
            .flat_map(|(_, bytes)| bytes)
            .copied()
            .collect::<Vec<u8>>();
        (bytes.len() == LENGTH).then_some(bytes)
    }

    /// Both sides say and do all that they want to now.
    fn settle(&mut self) {
        self.peer.set_rtt(SOURCE, 2 * DELAY);
        self.settle_peer();
        self.settle_server();
        self.settle_peer();
    }

    /// To when something happens next, which is then done.
    fn advance(&mut self) {
        let down = self.down.front().map(|(at, _)| *at);
        let up = self.up.front().map(|(at, _)| *at);
        let next = [
            down,
            up,
            self.peer.poll_timeout(),
            self.server.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min();
        self.now = self.now.max(next.expect("something is still to happen"));
        while let Some((_, packet)) = self.down.pop_front_if(|(at, _)| *at <= self.now) {
            self.take(packet);
        }
        while let Some((_, bytes)) = self.up.pop_front_if(|(at, _)| *at <= self.now) {
            self.server.handle_control_bytes(self.now, bytes.len());
            self.to_server.push(&bytes);
            while let Some(message) = self.to_server.next().expect("frames") {
                self.server
                    .handle_message(self.now, message)
                    .expect("the peer keeps to the rules");
            }
        }
        self.peer
            .handle_timeout(self.now)
            .expect("the server is in time");
        self.server
            .handle_timeout(self.now)
            .expect("the peer is in time");
    }

    fn take(&mut self, packet: Packet) {
        let taken = match packet {
            Packet::Datagram(bytes) => self.peer.handle_datagram(self.now, SOURCE, bytes),
            Packet::Stream(stream, bytes) => {
                self.peer.handle_stream(self.now, SOURCE, stream, &bytes)
            }
            Packet::StreamEnd(stream) => {
                self.peer
                    .handle_stream_end(SOURCE, stream, StreamEnd::Finished)
            }
            Packet::Control(bytes) => {
                self.to_peer.push(&bytes);
                while let Some(message) = self.to_peer.next().expect("frames") {
                    self.peer
                        .handle_message(self.now, SOURCE, message)
                        .expect("the server keeps to the rules");
                }
                Ok(())
            }
        };
        taken.expect("the server keeps to the rules");
    }

    fn settle_peer(&mut self) {
        while let Some(event) = self.peer.poll_event() {
            match event {
                Event::Answered { answer, .. } => {
                    let meta = answer.expect("the path is known").meta;
                    let Delivery::Coded(shape) = meta.delivery else {
                        panic!("it is coded")
                    };
                    let proof = Proof::of(&meta);
                    let order = Order {
                        segment: meta.id,
                        shape,
                        proof,
                        deadline: None,
                        urgency: Urgency::Now,
                    };
                    let place = Place {
                        path: meta.path,
                        offset: 0,
                        length: None,
                    };
                    self.peer.fetch(self.now, order, proof.map(|_| place));
                }
                Event::Test(trial) => {
                    let tested = trial.run(&Cores::all(), &mut self.random);
                    self.peer.tested(self.now, tested);
                }
                Event::Decoded { decoder, .. } => {
                    let offset = decoder.generation().offset;
                    self.generations.push((
                        offset,
                        decoder.into_bytes(&Cores::all()).expect("it is complete"),
                    ));
                }
                Event::Failed { failure, .. } => panic!("{failure:?}"),
                Event::Polluter(_) => panic!("the server sends what is right"),
                _ => {}
            }
        }
        while self.peer.poll_stop(SOURCE).is_some() {}
        let mut out = Vec::new();
        while let Some(message) = self.peer.poll_message(self.now, SOURCE) {
            message.encode(&mut out);
        }
        if !out.is_empty() {
            self.up.push_back((self.now + DELAY, out.into()));
        }
    }

    fn settle_server(&mut self) {
        while let Some(event) = self.server.poll_event() {
            self.act(event);
        }
        self.server.set_datagram_max(self.setup.datagram_max);
        self.register();
        while self.send_blocks() {
            self.register();
        }
        let mut out = Vec::new();
        while let Some(message) = self.server.poll_message() {
            message.encode(&mut out);
        }
        if !out.is_empty() {
            self.post(Packet::Control(out.into()));
        }
    }

    fn act(&mut self, event: session::Event) {
        match event {
            session::Event::Resolve(get) => {
                self.server
                    .resolved(self.now, get.request, Ok(self.resolved.clone()))
            }
            session::Event::Find { ticket, .. } => {
                let Body::Coded(held) = &self.resolved.body else {
                    panic!("it is coded")
                };
                self.server
                    .found(self.now, ticket, Some(held.clone()))
                    .expect("the peer keeps to the rules");
            }
            session::Event::Hashes { ticket, .. } => {
                let hashes = self
                    .hashes
                    .as_ref()
                    .expect("they are asked for where there are some");
                self.server
                    .hashes(self.now, ticket, Ok(hashes.as_bytes().clone()));
            }
            session::Event::DeliverHashes { request, bytes, .. } => {
                let stream = self.open(StreamHead::Hashes { request });
                self.post(Packet::Stream(stream, bytes));
                self.post(Packet::StreamEnd(stream));
                self.server.hashes_left();
            }
            session::Event::Ended(ended) => {
                if let Some(stream) = self.streams.remove(&ended.alias) {
                    self.post(Packet::StreamEnd(stream));
                }
            }
            _ => {}
        }
    }

    /// Keeps which blocks are wanted by number; others are made when they are claimed.
    fn register(&mut self) {
        while let Some((want, _)) = self.server.poll_want(u32::MAX) {
            if let Want::Source(generation, range) = want {
                let line = LineKey {
                    generation,
                    kind: LineKind::Source(SessionId(1)),
                };
                self.numbered.entry(line).or_default().extend(range);
            }
        }
    }

    /// Sends a block of each request that may have one. Whether there was any.
    fn send_blocks(&mut self) -> bool {
        let claims = self.server.claims();
        for claim in &claims {
            let generation = self
                .shape()
                .generation(claim.line.generation.index)
                .expect("there is one");
            let vector = match self
                .numbered
                .get_mut(&claim.line)
                .and_then(VecDeque::pop_front)
            {
                Some(number) => Vector::numbered(number, generation.n),
                None => self.next_vector(&generation),
            };
            let stamp = self
                .server
                .stamp(claim.alias, &vector, claim.route)
                .expect("it was claimed");
            let mut block = stamp.header().to_vec();
            block.extend_from_slice(&self.payload(&generation, &vector)[..stamp.payload]);
            self.send(claim.alias, claim.route, block.into());
        }
        !claims.is_empty()
    }

    fn send(&mut self, alias: u16, route: Route, block: Bytes) {
        match route {
            Route::Datagram => {
                self.sent.datagrams += 1;
                if self.sent.datagrams.is_multiple_of(self.setup.lose_one_of) {
                    self.sent.lost += 1;
                } else {
                    self.post(Packet::Datagram(block));
                }
            }
            Route::Stream => {
                self.sent.records += 1;
                let stream = match self.streams.get(&alias) {
                    Some(stream) => *stream,
                    None => self.open(StreamHead::Blocks { alias }),
                };
                self.streams.insert(alias, stream);
                self.post(Packet::Stream(stream, block));
            }
        }
    }

    fn open(&mut self, head: StreamHead) -> u64 {
        let stream = self.next_stream;
        self.next_stream += 4;
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        self.post(Packet::Stream(stream, bytes.into()));
        stream
    }

    fn post(&mut self, packet: Packet) {
        self.down.push_back((self.now + DELAY, packet));
    }

    fn shape(&self) -> Shape {
        let Body::Coded(held) = &self.resolved.body else {
            panic!("it is coded")
        };
        held.lease.shape
    }

    /// A block that no other was like.
    fn next_vector(&mut self, generation: &Generation) -> Vector {
        self.seed += 1;
        match generation.codec {
            Codec::RaptorQ => Vector::repair(self.seed, generation.n),
            Codec::RlncQ { .. } => {
                let row = gfq::draw_rows(prime_shape(generation), 1, &mut self.random);
                Vector::Narrow(
                    row.iter()
                        .flat_map(|coefficient| coefficient.to_be_bytes())
                        .collect(),
                )
            }
            Codec::Rlnc | Codec::ReedSolomon { .. } => Vector::Seed(self.seed),
        }
    }

    fn payload(&self, generation: &Generation, vector: &Vector) -> Vec<u8> {
        let begin = usize::try_from(generation.offset).expect("it is in memory");
        let source =
            &self.bytes[begin..][..usize::try_from(generation.length).expect("it is in memory")];
        let block_bytes = generation.block_bytes as usize;
        match vector {
            Vector::Source(index) => source
                .chunks(block_bytes)
                .nth(usize::from(*index))
                .expect("there are so many")
                .to_vec(),
            Vector::Seed(seed) => {
                let key = row_key(&self.resolved.id, generation);
                let encoder = Encoder::new(generation, source, key, Kernels::detect())
                    .expect("the source of a generation");
                let mut out = vec![0; encoder.block_bytes()];
                encoder.block(*seed, &mut out);
                out
            }
            Vector::Narrow(row) => {
                let shape = prime_shape(generation);
                let rows: Vec<u32> = row
                    .as_chunks()
                    .0
                    .iter()
                    .map(|bytes| u32::from_be_bytes(*bytes))
                    .collect();
                let mut out = vec![0; shape.payload_bytes()];
                let mut tasks = [gfq::Encode::new(shape, source, &rows, &mut out)];
                Cores::all()
                    .encode(shape, &mut tasks)
                    .expect("the CPU does not fail");
                out
            }
            numbered => {
                let mut row = vec![0; generation.n.into()];
                write_number(numbered, &mut row);
                let mut sum = vec![0; block_bytes];
                for (block, &coefficient) in source.chunks(block_bytes).zip(&row) {
                    Kernels::detect().mul_add(&mut sum[..block.len()], block, coefficient);
                }
                sum
            }
        }
    }
}

fn prime_shape(generation: &Generation) -> gfq::Shape {
    let words =
        u16::try_from(generation.block_bytes / Codec::WORD_BYTES).expect("blocks are short");
    gfq::Shape::new(generation.n, words).expect("the shape of a generation")
}

/// The segment at [`PATH`], and the hashes of its blocks where these prove themselves.
fn published(bytes: &Bytes, codec: Codec, now: Instant) -> (Resolved, Option<BlockHashes>) {
    let shape = Shape::new(bytes.len() as u64, 1088, 32)
        .and_then(|shape| shape.coded_with(codec))
        .expect("a shape");
    let (id, tree) = Tree::of(bytes, codec);
    let held = Held {
        lease: Lease::new(SegmentKey(1), id, shape, Loan::new(now)),
        first_pass: FirstPass::Coded,
        row_weight: None,
        is_recoded: false,
        birth: None,
        path: Some(PATH.into()),
        blocks_digest: None,
        tree,
    };
    let hashes = codec.is_gfq().then(|| hashes_of(bytes, &shape));
    let resolved = Resolved {
        path: PATH.to_owned(),
        id,
        offset: 0,
        length: bytes.len() as u64,
        object_length: Some(bytes.len() as u64),
        version: 1,
        max_age: Duration::from_secs(1),
        content_type: "video/mp2t".to_owned(),
        body: Body::Coded(held),
        signature: hashes.as_ref().map(|hashes| signature(id, shape, hashes)),
    };
    (resolved, hashes)
}

fn hashes_of(bytes: &[u8], shape: &Shape) -> BlockHashes {
    let Codec::RlncQ { group } = shape.codec() else {
        panic!("its blocks prove nothing")
    };
    let blocks: Vec<&[u8]> = bytes.chunks(shape.block_bytes() as usize).collect();
    let hashes = Cores::all()
        .hash(group, shape.words(), &blocks)
        .expect("the CPU does not fail");
    BlockHashes::made(hashes.into(), shape)
}

/// By the key of RFC 8032, section 7.1, test 1.
fn signature(id: SegmentId, shape: Shape, hashes: &BlockHashes) -> Signature {
    let pem = "-----BEGIN PRIVATE KEY-----\n\
               MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
               -----END PRIVATE KEY-----\n";
    let key = SigningKey::from_pem(pem.as_bytes()).expect("it is a key");
    let mut meta = Meta {
        request: 0,
        path: PATH.to_owned(),
        id,
        offset: 0,
        length: shape.length(),
        object_length: Some(shape.length()),
        version: 1,
        max_age_ms: 0,
        content_type: "video/mp2t".to_owned(),
        delivery: Delivery::Coded(shape),
        signature: None,
        tree: None,
    };
    key.sign_meta(&mut meta, 1, Some(hashes.digest()));
    meta.signature.expect("it was signed just now")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_comes_whole_with_every_code() {
        for (name, setup) in setups() {
            let sent = fetch(setup);
            println!("{name}: {sent:?}");
            assert_eq!(
                sent.datagrams > 0,
                setup.datagram_max.is_some(),
                "{name}: {sent:?}"
            );
        }
    }
}
