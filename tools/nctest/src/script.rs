//! A small server for tests: streams only, without ring or store, and with faults on request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use ncpeer::{Config, Server};
use ncs_codec::block::Vector;
use ncs_codec::gfq::{self, Arithmetic as _, Cores};
use ncs_codec::rlnc::Encoder;
use ncs_gf::Kernels;
use ncs_net::tls::{ServerIdentity, Trust};
use ncs_proto::integrity::checks::{COLUMNS, project};
use ncs_proto::integrity::hashes::BlockHashes;
use ncs_proto::integrity::signing::SigningKey;
use ncs_proto::object::row_key;
use ncs_proto::object::{Codec, Generation, RefusalCode, SegmentId, Shape, Tree};
use ncs_proto::wire::block::{self, StreamHead};
use ncs_proto::wire::frame::Reader;
use ncs_proto::wire::message::{
    Checks, Delivery, Get, GetChecks, Hello, INLINE_MAX, Message, Meta, Request, RequestError,
};
use quinn::{Connection, ConnectionError, Endpoint, SendStream};

const BLOCK_BYTES: u32 = 1024;
const N_MAX: u16 = 16;
/// The interval of looks at held blocks.
const HELD: Duration = Duration::from_millis(10);
/// The stated length of a segment that has fewer bytes.
const STRETCHED: usize = 131_072;

/// What the server does wrong, for a given number of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A block, or the bytes of a whole object, are wrong.
    Corrupt,
    /// A part after the first has another version.
    OtherVersion,
    /// A REQUEST is answered by closing the connection.
    Disconnect,
    /// A REQUEST is rejected: the segment no longer exists.
    RejectUnknown,
    /// A GET is refused with a retry time.
    Busy,
    /// A REQUEST is not answered.
    Silent,
    /// A block is a repetition of the previous one.
    Repeat,
    /// A META has the signature of another one.
    Forge,
    /// A META has no signature.
    Unsigned,
    /// A block of another code.
    Foreign,
    /// A block has a number that the code lacks.
    Beyond,
    /// A META states more bytes than the segment has, for an object of unknown length.
    Stretch,
    /// A META does not give the object's length.
    Lengthless,
}

/// What the server has seen.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// GETs.
    pub gets: usize,
    /// REQUESTs.
    pub requests: usize,
    /// STOPs.
    pub stops: usize,
    /// Connections, ended ones included.
    pub connections: usize,
    /// Requests for checksums.
    pub checks: usize,
    /// Requests for hashes of blocks.
    pub hashes: usize,
    /// Whom the last BLAME was about.
    pub blamed: Option<[u8; 32]>,
    /// The code that closed the last connection.
    pub closed: Option<u64>,
}

/// The server; its faults and contents change while it runs.
pub struct Script {
    endpoint: Endpoint,
    trust: Trust,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    objects: HashMap<String, Object>,
    faults: HashMap<Fault, u32>,
    seen: Seen,
    /// The maximum number of blocks for a connection.
    blocks_max: Option<u32>,
    /// The key that signs METAs and checksums, and the time in METAs.
    key: Option<Arc<SigningKey>>,
    issued_ms: u64,
    /// Whether checksums are given.
    gives_checks: bool,
    max_age_ms: Option<u64>,
    /// Whether source blocks come first.
    is_systematic: bool,
    codec: Codec,
    /// Whether METAs have trees.
    gives_trees: bool,
    /// No block of this generation or a later one is sent.
    held_from: Option<u32>,
    /// The pause after each block.
    rest: Duration,
    /// A generation, and how many of its blocks will be wrong.
    spoiled: Option<(u32, u32)>,
}

struct Object {
    bytes: Bytes,
    /// Bytes of a part; `None` if the object is sent whole.
    part: Option<usize>,
}

struct Open {
    encoder: Maker,
    generation: Generation,
    /// Numbered blocks still to be sent, the last first.
    numbered: Vec<Vector>,
    seed: u32,
    /// Blocks that it has credit for.
    credit: u32,
    stream: SendStream,
}

/// Makes blocks of a generation.
enum Maker {
    Bytes(Encoder),
    /// Over the prime field.
    Gfq {
        shape: gfq::Shape,
        source: Vec<u8>,
    },
}

impl Maker {
    fn new(id: &SegmentId, generation: &Generation, bytes: &[u8]) -> Self {
        if let Codec::RlncQ { .. } = generation.codec {
            let words = u16::try_from(generation.block_bytes / Codec::WORD_BYTES).unwrap();
            return Self::Gfq {
                shape: gfq::Shape::new(generation.n, words).unwrap(),
                source: bytes.to_vec(),
            };
        }
        Self::Bytes(
            Encoder::new(
                generation,
                bytes,
                row_key(id, generation),
                Kernels::detect(),
            )
            .unwrap(),
        )
    }

    /// A valid block over the prime field, at random like a recoder's or a server's.
    fn draw(&self) -> Option<Vector> {
        let Self::Gfq { shape, .. } = self else {
            return None;
        };
        let row = gfq::draw_rows(*shape, 1, &mut rand::rng());
        Some(Vector::Narrow(
            row.iter()
                .flat_map(|coefficient| coefficient.to_be_bytes())
                .collect(),
        ))
    }

    /// Writes the payload, but nothing for a block of another code.
    fn make(&self, vector: &Vector, out: &mut [u8]) {
        match (self, vector) {
            (Self::Bytes(encoder), Vector::Seed(seed)) => encoder.block(*seed, out),
            (Self::Bytes(encoder), vector) => {
                encoder.numbered(std::slice::from_ref(vector), &mut [out])
            }
            (Self::Gfq { shape, source }, Vector::Narrow(row)) => {
                let rows: Vec<u32> = row
                    .chunks(4)
                    .map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap()))
                    .collect();
                Cores::all()
                    .encode(*shape, &mut [gfq::Encode::new(*shape, source, &rows, out)])
                    .unwrap();
            }
            (Self::Gfq { shape, source }, Vector::Source(index)) => {
                let block = source
                    .chunks(shape.block_bytes())
                    .nth(usize::from(*index))
                    .unwrap();
                out[..block.len()].copy_from_slice(block);
            }
            (Self::Gfq { .. }, _) => {}
        }
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

/// Bytes that differ with the seed.
pub fn bytes(seed: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new_keyed(&[seed; 32])
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

impl Script {
    /// Starts one at this address, with a new certificate and without objects.
    pub async fn start(address: &str) -> Self {
        let identity = ServerIdentity::ephemeral().unwrap();
        let quic = quinn::ServerConfig::with_crypto(Arc::new(identity.quic().unwrap()));
        let endpoint = Endpoint::server(quic, address.parse().unwrap()).unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let script = Self {
            endpoint: endpoint.clone(),
            trust: Trust::Fingerprint(identity.fingerprint()),
            state: state.clone(),
        };
        tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                let state = state.clone();
                tokio::spawn(async move {
                    if let Ok(connection) = incoming.await {
                        state.lock().unwrap().seen.connections += 1;
                        // It ends when the client leaves, or by a fault.
                        let _ = converse(&connection, &state).await;
                        if let ConnectionError::ApplicationClosed(close) = connection.closed().await
                        {
                            state.lock().unwrap().seen.closed = Some(close.error_code.into_inner());
                        }
                    }
                });
            }
        });
        script
    }

    /// The configuration of a client of this server.
    pub fn config(&self) -> Config {
        let address = self.endpoint.local_addr().unwrap();
        Config::new(
            Server {
                host: address.ip().to_string(),
                port: address.port(),
                fingerprint: None,
            },
            self.trust,
        )
    }

    /// Its address and certificate, for a client that also knows others.
    pub fn server(&self) -> Server {
        let Trust::Fingerprint(fingerprint) = self.trust else {
            unreachable!("it has a certificate of its own")
        };
        Server {
            fingerprint: Some(fingerprint),
            ..self.config().servers.remove(0)
        }
    }

    /// Publishes an object in coded parts of this many bytes.
    pub fn publish(&self, path: &str, bytes: &[u8], part: usize) {
        let object = Object {
            bytes: Bytes::copy_from_slice(bytes),
            part: Some(part),
        };
        self.state
            .lock()
            .unwrap()
            .objects
            .insert(path.to_owned(), object);
    }

    /// Makes a key that signs METAs.
    pub fn key() -> Arc<SigningKey> {
        Arc::new(SigningKey::from_pem(SigningKey::generate(&mut rand::rng()).as_bytes()).unwrap())
    }

    /// Publishes an object that is sent whole, without coding.
    pub fn publish_whole(&self, path: &str, bytes: &[u8]) {
        let object = Object {
            bytes: Bytes::copy_from_slice(bytes),
            part: None,
        };
        self.state
            .lock()
            .unwrap()
            .objects
            .insert(path.to_owned(), object);
    }

    /// Removes an object.
    pub fn withdraw(&self, path: &str) {
        self.state.lock().unwrap().objects.remove(path);
    }

    /// Signs METAs with this key and issue time from now on, and gives checksums.
    pub fn sign(&self, key: &Arc<SigningKey>, issued_ms: u64) {
        let mut state = self.state.lock().unwrap();
        (state.key, state.issued_ms, state.gives_checks) = (Some(key.clone()), issued_ms, true);
    }

    /// Sets whether checksums are given.
    pub fn give_checks(&self, gives: bool) {
        self.state.lock().unwrap().gives_checks = gives;
    }

    /// Sets how long answers may be cached.
    pub fn age(&self, max_age_ms: u64) {
        self.state.lock().unwrap().max_age_ms = Some(max_age_ms);
    }

    /// Sends source blocks first from now on.
    pub fn send_sources(&self) {
        self.state.lock().unwrap().is_systematic = true;
    }

    /// Codes segments like this from now on.
    pub fn code_with(&self, codec: Codec) {
        self.state.lock().unwrap().codec = codec;
    }

    /// Adds trees to METAs from now on.
    pub fn give_trees(&self) {
        self.state.lock().unwrap().gives_trees = true;
    }

    /// Sends nothing of this generation or later ones, until called with `None`.
    pub fn hold_from(&self, generation: Option<u32>) {
        self.state.lock().unwrap().held_from = generation;
    }

    /// Pauses this long after each block, like a slow path.
    pub fn rest(&self, time: Duration) {
        self.state.lock().unwrap().rest = time;
    }

    /// Makes this many blocks of the generation wrong.
    pub fn spoil_generation(&self, generation: u32, blocks: u32) {
        self.state.lock().unwrap().spoiled = Some((generation, blocks));
    }

    /// The fingerprint of its certificate.
    pub fn identity(&self) -> [u8; 32] {
        let Trust::Fingerprint(fingerprint) = self.trust else {
            unreachable!("it has a certificate of its own")
        };
        *fingerprint.as_bytes()
    }

    /// Makes this fault this many times.
    pub fn spoil(&self, fault: Fault, times: u32) {
        self.state.lock().unwrap().faults.insert(fault, times);
    }

    /// Sends each connection this many blocks, and no more.
    pub fn ration(&self, blocks: u32) {
        self.state.lock().unwrap().blocks_max = Some(blocks);
    }

    /// What it has seen so far.
    pub fn seen(&self) -> Seen {
        self.state.lock().unwrap().seen
    }
}

impl State {
    fn cut(&self, length: usize) -> Shape {
        Shape::new(length as u64, BLOCK_BYTES, N_MAX)
            .unwrap()
            .coded_with(self.codec)
            .unwrap()
    }

    /// Whether the blocks of this generation are held.
    fn holds(&self, generation: u32) -> bool {
        self.held_from.is_some_and(|from| generation >= from)
    }

    /// Whether to apply this fault now.
    fn take(&mut self, fault: Fault) -> bool {
        let left = self.faults.entry(fault).or_default();
        let due = *left > 0;
        *left = left.saturating_sub(1);
        due
    }

    /// Whether the next block of this generation is to be wrong.
    fn takes_wrong(&mut self, index: u32) -> bool {
        if let Some((spoiled, left)) = &mut self.spoiled
            && *spoiled == index
            && *left > 0
        {
            *left -= 1;
            return true;
        }
        self.take(Fault::Corrupt)
    }

    fn answer(&mut self, get: &Get) -> (Message, Option<Bytes>) {
        self.seen.gets += 1;
        let error = |code, retry_after_ms| {
            Message::Error(RequestError {
                request: get.request,
                code,
                retry_after_ms,
                reason: String::new(),
            })
        };
        if self.take(Fault::Busy) {
            return (error(RefusalCode::Overload, 20), None);
        }
        let other_version = get.offset > 0 && self.take(Fault::OtherVersion);
        let Some(object) = self.objects.get(&get.path) else {
            return (error(RefusalCode::Unknown, 0), None);
        };
        let (bytes, part) = (object.bytes.clone(), object.part);
        if get.offset > 0 && get.offset >= bytes.len() as u64 {
            return (error(RefusalCode::Unknown, 0), None);
        }
        let (start, delivery, whole) = match part {
            None => {
                let mut sent = bytes.to_vec();
                sent[0] ^= u8::from(self.take(Fault::Corrupt));
                if sent.len() <= INLINE_MAX {
                    (0..bytes.len(), Delivery::Inline(sent.into()), None)
                } else {
                    (0..bytes.len(), Delivery::Stream, Some(sent.into()))
                }
            }
            Some(part) => {
                let start = usize::try_from(get.offset).unwrap() / part * part;
                let range = start..(start + part).min(bytes.len());
                (range.clone(), Delivery::Coded(self.cut(range.len())), None)
            }
        };
        let described = bytes.slice(start.clone());
        let digest = match &delivery {
            Delivery::Coded(shape) => Some(hashes_of(&described, shape).digest()),
            _ => None,
        };
        let id = match &delivery {
            Delivery::Coded(shape) => SegmentId::of_coded(&described, shape.codec()),
            _ => SegmentId::of(&described),
        };
        let tree = match &delivery {
            Delivery::Coded(shape) if self.gives_trees => Tree::of(&described, shape.codec()).1,
            _ => None,
        };
        let mut meta = Meta {
            request: get.request,
            path: get.path.clone(),
            id,
            offset: start.start as u64,
            length: described.len() as u64,
            object_length: Some(bytes.len() as u64),
            version: 1 + u64::from(other_version),
            max_age_ms: self.max_age_ms.unwrap_or(60_000),
            content_type: "video/mp4".to_owned(),
            delivery,
            signature: None,
            tree,
        };
        if let Delivery::Coded(shape) = &mut meta.delivery
            && self.take(Fault::Stretch)
        {
            (*shape, meta.length, meta.object_length, meta.tree) =
                (self.cut(STRETCHED), STRETCHED as u64, None, None);
        }
        if self.take(Fault::Lengthless) {
            meta.object_length = None;
        }
        if let Some(key) = self.key.clone().filter(|_| !self.take(Fault::Unsigned)) {
            key.sign_meta(&mut meta, self.issued_ms, digest);
            meta.version += u64::from(self.take(Fault::Forge));
        }
        (Message::Meta(meta), whole)
    }

    fn checks(&mut self, asked: &GetChecks) -> Message {
        self.seen.checks += 1;
        let Some(segment) = self.segment(asked.segment).filter(|_| self.gives_checks) else {
            let (request, code, reason) = (asked.request, RefusalCode::Unknown, String::new());
            return Message::Error(RequestError {
                request,
                code,
                retry_after_ms: 0,
                reason,
            });
        };
        let generation = Shape::new(segment.len() as u64, BLOCK_BYTES, N_MAX)
            .unwrap()
            .generation(asked.generation)
            .unwrap();
        let start = usize::try_from(generation.offset).unwrap();
        let own = &segment[start..start + usize::try_from(generation.length).unwrap()];
        let seed = rand::random();
        let projections = project(
            Kernels::detect(),
            &seed,
            &asked.segment,
            &generation,
            COLUMNS,
            own,
        )
        .into();
        let mut answer = Checks {
            request: asked.request,
            seed,
            columns: COLUMNS,
            projections,
            signature: None,
        };
        if let Some(key) = &self.key {
            key.sign_checks(asked, &mut answer);
        }
        Message::Checks(answer)
    }

    fn segment(&self, id: SegmentId) -> Option<Bytes> {
        self.objects.values().find_map(|object| {
            let part = object.part?;
            let mut parts = (0..object.bytes.len()).step_by(part);
            parts.find_map(|start| {
                let bytes = object
                    .bytes
                    .slice(start..(start + part).min(object.bytes.len()));
                (SegmentId::of_coded(&bytes, self.codec) == id).then_some(bytes)
            })
        })
    }
}

async fn converse(
    connection: &Connection,
    state: &Mutex<State>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (mut send, mut receive) = connection.accept_bi().await?;
    send.write_all(
        &Message::Hello(Hello {
            agent: "script".to_owned(),
            ..Hello::defaults()
        })
        .to_frame(),
    )
    .await?;
    let (mut reader, mut open, mut ration) = (
        Reader::new(),
        HashMap::new(),
        state.lock().unwrap().blocks_max,
    );
    loop {
        // What is held is looked at again. A read that is given up loses nothing.
        let Ok(chunk) = tokio::time::timeout(HELD, receive.read_chunk(4096, true)).await else {
            for request in open.values_mut() {
                send_blocks(request, state, &mut ration).await?;
            }
            continue;
        };
        let Some(chunk) = chunk? else {
            return Ok(());
        };
        reader.push(&chunk.bytes);
        while let Some(message) = reader.next()? {
            match message {
                Message::Get(get) => {
                    let (message, whole) = state.lock().unwrap().answer(&get);
                    // The stream may arrive before META.
                    if let Some(whole) = whole {
                        let mut stream = connection.open_uni().await?;
                        let mut head = Vec::new();
                        StreamHead::Object {
                            request: get.request,
                        }
                        .encode(&mut head);
                        stream.write_all(&head).await?;
                        stream.write_all(&whole).await?;
                        stream.finish()?;
                    }
                    send.write_all(&message.to_frame()).await?;
                }
                Message::Subscribe(subscribe) => {
                    send.write_all(
                        &Message::SubscribeOk {
                            request: subscribe.request,
                        }
                        .to_frame(),
                    )
                    .await?;
                    let path = format!("/{}/1", subscribe.stream);
                    let get = Get {
                        request: subscribe.request,
                        path,
                        offset: 0,
                        length: None,
                        held_only: false,
                    };
                    let (message, _) = state.lock().unwrap().answer(&get);
                    state.lock().unwrap().seen.gets -= 1;
                    send.write_all(&message.to_frame()).await?;
                }
                Message::Request(request) => {
                    if let Some(message) =
                        begin(connection, state, &request, &mut open, &mut ration).await?
                    {
                        send.write_all(&message.to_frame()).await?;
                    }
                }
                Message::Credit { alias, blocks } => {
                    if let Some(request) = open.get_mut(&alias) {
                        request.credit += blocks;
                        send_blocks(request, state, &mut ration).await?;
                    }
                }
                Message::GetChecks(asked) => {
                    let answer = state.lock().unwrap().checks(&asked);
                    send.write_all(&answer.to_frame()).await?;
                }
                Message::GetHashes {
                    request, segment, ..
                } => {
                    let segment = {
                        let mut state = state.lock().unwrap();
                        state.seen.hashes += 1;
                        state.segment(segment)
                    };
                    let Some(segment) = segment else {
                        let (code, reason) = (RefusalCode::Unknown, String::new());
                        let error = Message::Error(RequestError {
                            request,
                            code,
                            retry_after_ms: 0,
                            reason,
                        });
                        send.write_all(&error.to_frame()).await?;
                        continue;
                    };
                    let mut out = Vec::new();
                    StreamHead::Hashes { request }.encode(&mut out);
                    let shape = state.lock().unwrap().cut(segment.len());
                    out.extend_from_slice(hashes_of(&segment, &shape).as_bytes());
                    let mut stream = connection.open_uni().await?;
                    stream.write_all(&out).await?;
                    stream.finish()?;
                }
                Message::Blame { identity, .. } => {
                    state.lock().unwrap().seen.blamed = Some(identity)
                }
                Message::Stop { alias, .. } => {
                    state.lock().unwrap().seen.stops += 1;
                    open.remove(&alias);
                }
                _ => {}
            }
        }
    }
}

async fn begin(
    connection: &Connection,
    state: &Mutex<State>,
    request: &Request,
    open: &mut HashMap<u16, Open>,
    ration: &mut Option<u32>,
) -> Result<Option<Message>, Box<dyn std::error::Error + Send + Sync>> {
    let (segment, disconnect, reject, silent) = {
        let mut state = state.lock().unwrap();
        state.seen.requests += 1;
        let faults = (
            state.take(Fault::Disconnect),
            state.take(Fault::RejectUnknown),
            state.take(Fault::Silent),
        );
        (state.segment(request.segment), faults.0, faults.1, faults.2)
    };
    if disconnect {
        connection.close(0u32.into(), b"a fault");
    }
    if silent {
        return Ok(None);
    }
    let Some(segment) = segment.filter(|_| !reject) else {
        return Ok(Some(Message::Reject {
            alias: request.alias,
            code: RefusalCode::Unknown,
            retry_after_ms: 0,
        }));
    };
    let shape = state.lock().unwrap().cut(segment.len());
    let generation = shape.generation(request.generation).unwrap();
    let start = usize::try_from(generation.offset).unwrap();
    let bytes = &segment[start..start + usize::try_from(generation.length).unwrap()];
    let encoder = Maker::new(&request.segment, &generation, bytes);
    let mut stream = connection.open_uni().await?;
    let mut head = Vec::new();
    StreamHead::Blocks {
        alias: request.alias,
    }
    .encode(&mut head);
    stream.write_all(&head).await?;
    let seed = rand::random();
    let is_systematic = (state.lock().unwrap().is_systematic || !generation.codec.is_recodable())
        && request.accept.systematic;
    let ranges = if request.ranges.is_empty() {
        vec![(0, generation.numbered())]
    } else {
        request.ranges.clone()
    };
    let numbers = ranges
        .into_iter()
        .flat_map(|(first, count)| first..first + count)
        .filter(|_| is_systematic);
    let mut numbered: Vec<_> = numbers
        .map(|number| Vector::numbered(number, generation.n))
        .collect();
    numbered.reverse();
    let open = open.entry(request.alias).or_insert(Open {
        encoder,
        generation,
        numbered,
        seed,
        credit: request.credit,
        stream,
    });
    send_blocks(open, state, ration).await?;
    Ok(None)
}

/// Sends the blocks that a request has credit for, unless they are held.
async fn send_blocks(
    open: &mut Open,
    state: &Mutex<State>,
    ration: &mut Option<u32>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    if state.lock().unwrap().holds(open.generation.index) {
        return Ok(());
    }
    for _ in 0..std::mem::take(&mut open.credit).min(ration.unwrap_or(u32::MAX)) {
        if let Some(left) = ration {
            *left -= 1;
        }
        let repeats = state.lock().unwrap().take(Fault::Repeat);
        open.seed = open.seed.wrapping_add(u32::from(!repeats));
        let (generation, [foreign, beyond]) = (open.generation, {
            let mut state = state.lock().unwrap();
            [Fault::Foreign, Fault::Beyond].map(|fault| state.take(fault))
        });
        let vector = match (open.numbered.pop(), generation.codec) {
            _ if foreign => Vector::Seed(open.seed),
            _ if beyond => Vector::Shard(generation.numbered()),
            (Some(vector), _) => vector,
            (None, Codec::Rlnc) => Vector::Seed(open.seed),
            (None, Codec::RaptorQ) => Vector::repair(open.seed, generation.n),
            (None, Codec::ReedSolomon { .. }) => break,
            (None, Codec::RlncQ { .. }) => open.encoder.draw().unwrap(),
        };
        let mut record = vec![0; block::record_header_len(&vector)];
        block::write_record_header(&mut record, &vector);
        let header = record.len();
        record.resize(header + generation.coded_bytes() as usize, 0);
        if !beyond {
            open.encoder.make(&vector, &mut record[header..]);
        }
        if let Vector::Source(index) = vector {
            record.truncate(header + generation.block_length(index));
        }
        // Over the prime field the lowest bit of a word, so that the block stays well-formed.
        record[header + 31] ^= u8::from(state.lock().unwrap().takes_wrong(generation.index));
        // The client may have stopped the stream because it has enough.
        if open.stream.write_all(&record).await.is_err() {
            break;
        }
        let rest = state.lock().unwrap().rest;
        if !rest.is_zero() {
            tokio::time::sleep(rest).await;
        }
    }
    Ok(())
}
