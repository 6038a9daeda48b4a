//! Plays a recorded client to today's server: its bytes as they are, each when the server has given
//! the answers that the recorded one had given by then.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use bytesize::ByteSize;
use ncserverd::block::{Block, Vector};
use ncserverd::codec::Outcome;
use ncserverd::codec::gfq::{self, Cores};
use ncserverd::codec::rlnc;
use ncserverd::endpoint;
use ncserverd::gf::Kernels;
use ncserverd::object::{Codec, Generation, SegmentId, Shape, row_key};
use ncserverd::tls::{self, Trust};
use ncserverd::wire::CloseCode;
use ncserverd::wire::block::{Records, StreamHead, parse_block, parse_datagram};
use ncserverd::wire::frame::Reader;
use ncserverd::wire::message::{Delivery, Message, Meta, Request, RequestCode, StopReason};
use nctest::program::PATIENCE;
use quinn::{Connection, ConnectionError, Endpoint, RecvStream, SendStream, TransportConfig};

use crate::later::Age;
use crate::place::{Member, object};
use crate::record::{Conversation, Scene, Sent, Side, framed};

/// How long to wait when all blocks have come and do not suffice.
const SILENCE: Duration = Duration::from_millis(50);

/// What the server has sent.
#[derive(Default)]
struct Heard {
    messages: Vec<Message>,
    /// Datagrams, and what came on streams of blocks, by the alias of their request.
    datagrams: BTreeMap<u16, Vec<Bytes>>,
    records: BTreeMap<u16, Vec<u8>>,
    /// What came on streams of objects and of hashes, by the number of their GET.
    objects: BTreeMap<u64, Vec<u8>>,
    last: Option<Instant>,
}

/// A recorded client on a connection to today's server.
pub(crate) struct Viewer {
    connection: Connection,
    endpoint: Endpoint,
    send: SendStream,
    heard: Arc<Mutex<Heard>>,
    /// The requests of the recorded client, by their aliases, and their credit so far.
    requests: BTreeMap<u16, (Request, u32)>,
    subscriptions: Vec<u64>,
    /// The segments of the scene. A client may know one from another server.
    shapes: BTreeMap<SegmentId, Shape>,
    age: Age,
}

/// Plays the client of a conversation. `ends` ends the server, and is called where the recorded
/// server said that it would go.
pub(crate) async fn play(
    member: &Member,
    conversation: &Conversation,
    shapes: &BTreeMap<SegmentId, Shape>,
    age: Age,
    mut ends: impl FnMut(),
) {
    let mut viewer = Viewer::connect(member, shapes.clone(), age).await;
    let (mut answered, mut streams) = (Vec::new(), BTreeMap::<u64, Vec<u8>>::new());
    for (side, sent) in &conversation.events {
        match (side, sent) {
            (Side::Server, Sent::Control(frame)) => {
                let message = parse(frame);
                match &message {
                    Some(Message::GoAway { .. }) => ends(),
                    // What is announced differs from time to time.
                    Some(Message::Meta(meta)) if viewer.subscriptions.contains(&meta.request) => {
                        continue;
                    }
                    _ => {}
                }
                answered.extend(message);
            }
            (Side::Server, Sent::Stream(stream, bytes)) => {
                streams.entry(*stream).or_default().extend_from_slice(bytes);
            }
            (Side::Client, Sent::Control(frame)) => {
                for message in &answered {
                    viewer.await_answer(message).await;
                }
                viewer.say(frame).await;
            }
            (Side::Client, Sent::Close(code, reason)) => {
                viewer.check(&answered, &streams).await;
                let code = quinn::VarInt::from_u64(*code).unwrap();
                viewer.connection.close(code, reason);
                return;
            }
            _ => {}
        }
    }
    viewer.check(&answered, &streams).await;
}

/// The segments that the servers of a scene have named.
pub(crate) fn shapes(scene: &Scene) -> BTreeMap<SegmentId, Shape> {
    let events = scene.conversations.iter().flat_map(|one| &one.events);
    let named = events.filter_map(|(_, sent)| match sent {
        Sent::Control(frame) => match parse(frame) {
            Some(Message::Meta(Meta {
                id,
                delivery: Delivery::Coded(shape),
                ..
            })) => Some((id, shape)),
            _ => None,
        },
        _ => None,
    });
    named.collect()
}

/// The message of a recorded frame; `None` if it has no meaning.
pub(crate) fn parse(frame: &[u8]) -> Option<Message> {
    let mut reader = Reader::new();
    reader.push(frame);
    reader
        .next()
        .expect("today's reader takes what was recorded")
}

impl Viewer {
    async fn connect(member: &Member, shapes: BTreeMap<SegmentId, Shape>, age: Age) -> Self {
        let buffer = ByteSize::mib(4);
        let socket = endpoint::udp_socket((Ipv4Addr::LOCALHOST, 0).into(), buffer, buffer).unwrap();
        let endpoint = Endpoint::new(
            quinn::EndpointConfig::default(),
            None,
            socket,
            Arc::new(quinn::TokioRuntime),
        );
        let endpoint = endpoint.unwrap();
        let crypto = tls::client_config(&Trust::Fingerprint(member.pin), None).unwrap();
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        let mut transport = TransportConfig::default();
        transport.max_concurrent_uni_streams(512_u32.into());
        transport.keep_alive_interval(Some(Duration::from_secs(1)));
        config.transport_config(Arc::new(transport));
        let connection = endpoint
            .connect_with(config, member.listens, "localhost")
            .unwrap()
            .await
            .unwrap();
        let (send, receive) = connection.open_bi().await.unwrap();
        let heard = Arc::new(Mutex::new(Heard::default()));
        tokio::spawn(hear_messages(receive, Arc::clone(&heard)));
        tokio::spawn(hear_datagrams(connection.clone(), Arc::clone(&heard)));
        tokio::spawn(hear_streams(connection.clone(), Arc::clone(&heard)));
        Self {
            connection,
            endpoint,
            send,
            heard,
            requests: BTreeMap::new(),
            subscriptions: Vec::new(),
            shapes,
            age,
        }
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Heard) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so(&self.heard.lock().unwrap()) {
            let closed = self.connection.close_reason();
            assert!(closed.is_none(), "{what}: {closed:?}");
            assert!(Instant::now() < end, "{what} does not come");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until the server has given an answer to what this one answered. What comes unasked,
    /// and announcements, need not come.
    async fn await_answer(&self, recorded: &Message) {
        match recorded {
            Message::Hello(_) => {
                let is_hello = |message: &Message| matches!(message, Message::Hello(_));
                self.until("HELLO", |heard| heard.messages.iter().any(is_hello))
                    .await;
            }
            Message::Grant { lasts_ms } => {
                // The token is valid as it was.
                let is_same = |message: &Message| match message {
                    Message::Grant { lasts_ms: now } => (*now > 0) == (*lasts_ms > 0),
                    _ => false,
                };
                self.until("GRANT", |heard| heard.messages.iter().any(is_same))
                    .await;
            }
            Message::Meta(meta) => {
                let what = format!("META {}", meta.path);
                self.until(&what, |heard| heard.meta(meta).is_some()).await;
                let now = self.heard.lock().unwrap().meta(meta).unwrap().clone();
                // The client goes on to request what the recorded server has named.
                assert_eq!(
                    (now.id, now.offset, now.length, now.object_length),
                    (meta.id, meta.offset, meta.length, meta.object_length),
                    "{what}"
                );
                assert_eq!(now.delivery, meta.delivery, "{what}");
                assert_eq!(now.signature.is_some(), meta.signature.is_some(), "{what}");
            }
            Message::Error(error) => {
                let is_same = |message: &Message| match message {
                    Message::Error(now) => (now.request, now.code) == (error.request, error.code),
                    _ => false,
                };
                self.until("ERROR", |heard| heard.messages.iter().any(is_same))
                    .await;
            }
            Message::SubscribeOk { .. } => {
                self.until("SUBSCRIBE_OK", |heard| heard.messages.contains(recorded))
                    .await;
            }
            Message::GoAway { .. } => {
                // A server that owes nothing closes at once: what it has sent before may be lost.
                let has_gone = || match self.connection.close_reason() {
                    Some(ConnectionError::ApplicationClosed(close)) => {
                        close.error_code == CloseCode::GoingAway.quic().into()
                    }
                    _ => false,
                };
                let is_such = |message: &Message| matches!(message, Message::GoAway { .. });
                self.until("GOAWAY", |heard| {
                    has_gone() || heard.messages.iter().any(is_such)
                })
                .await;
            }
            _ => {}
        }
    }

    /// Sends a frame of the recorded client.
    async fn say(&mut self, frame: &[u8]) {
        match parse(frame) {
            Some(Message::Request(request)) => {
                let credit = request.credit;
                self.requests.insert(request.alias, (request, credit));
            }
            Some(Message::Subscribe(subscribe)) => self.subscriptions.push(subscribe.request),
            Some(Message::Credit { alias, blocks }) => {
                if let Some((_, credit)) = self.requests.get_mut(&alias) {
                    *credit += blocks;
                }
            }
            // The recorded client had all blocks by then.
            Some(Message::Stop {
                alias,
                reason: StopReason::Complete,
            }) => self.complete(alias).await,
            _ => {}
        }
        self.send.write_all(&self.age.frame(frame)).await.unwrap();
    }

    /// Waits until what the client has requested decodes.
    async fn complete(&mut self, alias: u16) {
        let request = self.requests[&alias].0.clone();
        let mut rejected = 0;
        // Rows that the server draws at random may depend on each other, once in 256 generations.
        let mut asked = 0;
        let mut since = Instant::now();
        loop {
            let rebuilt = self.rebuilt(&request);
            if rebuilt.is_some() {
                return;
            }
            let (last, come) = {
                let heard = self.heard.lock().unwrap();
                let shape = self.shapes[&request.segment];
                let generation = shape.generation(request.generation).unwrap();
                (heard.last, heard.blocks(alias, &generation).len())
            };
            let owes = come < self.requests[&alias].1 as usize;
            since = since.max(last.unwrap_or(since));
            // Another server had named the segment, and this one has it a moment later today.
            let is_unknown = |message: &&Message| match message {
                Message::Reject {
                    alias: of, code, ..
                } => (*of, *code) == (alias, RequestCode::Unknown),
                _ => false,
            };
            let unknown = self.heard(|heard| heard.messages.iter().filter(is_unknown).count());
            if unknown > rejected {
                rejected = unknown;
                tokio::time::sleep(SILENCE).await;
                let credit = self.requests[&alias].1;
                let again = Message::Request(Request {
                    credit,
                    ..request.clone()
                });
                let again = self.age.frame(&again.to_frame());
                self.send.write_all(&again).await.unwrap();
            }
            if since.elapsed() > if owes { PATIENCE } else { SILENCE } {
                let closed = self.connection.close_reason();
                assert!(closed.is_none(), "{closed:?}");
                assert!(
                    asked < 3 && !owes,
                    "the credit of the recorded client does not suffice: {come} of {} blocks came \
                     for {request:?}; its socket lost {} packets",
                    self.requests[&alias].1,
                    self.lost()
                );
                asked += 1;
                // CREDIT for another block, as the protocol has it.
                let body = [&alias.to_be_bytes()[..], &[1]].concat();
                self.send.write_all(&framed(0x12, &body)).await.unwrap();
                self.requests
                    .entry(alias)
                    .and_modify(|(_, credit)| *credit += 1);
                since = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn heard<T>(&self, look: impl FnOnce(&Heard) -> T) -> T {
        look(&self.heard.lock().unwrap())
    }

    /// Packets for which the socket had no room, as the kernel says.
    fn lost(&self) -> String {
        let port = self.endpoint.local_addr().unwrap().port();
        let sockets = std::fs::read_to_string("/proc/net/udp").unwrap_or_default();
        let is_own = |line: &&str| line.contains(&format!(":{port:04X} "));
        let own = sockets.lines().find(is_own);
        own.and_then(|line| line.split_whitespace().last())
            .unwrap_or("?")
            .to_owned()
    }

    /// The generation of this request, if what has come for it suffices.
    fn rebuilt(&self, request: &Request) -> Option<Vec<u8>> {
        let heard = self.heard.lock().unwrap();
        let shape = self.shapes[&request.segment];
        let generation = shape.generation(request.generation).unwrap();
        let mut blocks = Vec::new();
        for (alias, (other, credit)) in &self.requests {
            if (other.segment, other.generation) == (request.segment, request.generation) {
                let come = heard.blocks(*alias, &generation);
                assert!(come.len() <= *credit as usize, "blocks beyond the credit");
                blocks.extend(come);
            }
        }
        decode(&request.segment, &shape, &generation, &blocks)
    }

    /// What the recorded client got, this one has got, too.
    async fn check(&mut self, answered: &[Message], streams: &BTreeMap<u64, Vec<u8>>) {
        for bytes in streams.values() {
            // Objects and hashes are the same ones.
            if let Some((StreamHead::Object { request } | StreamHead::Hashes { request }, head)) =
                StreamHead::parse(bytes).expect("a head")
            {
                let is_same = |heard: &Heard| {
                    heard
                        .objects
                        .get(&request)
                        .is_some_and(|now| *now == bytes[head..])
                };
                self.until("an object or hashes", is_same).await;
            }
        }
        for message in answered {
            self.await_answer(message).await;
            let Message::Meta(meta) = message else {
                continue;
            };
            let right = object(&meta.path);
            let asked: Vec<Request> = self
                .requests
                .values()
                .map(|(request, _)| request.clone())
                .filter(|request| request.segment == meta.id)
                .collect();
            let now = self.heard.lock().unwrap().meta(meta).unwrap().clone();
            match now.delivery {
                Delivery::Inline(bytes) => assert!(bytes == right, "{}", meta.path),
                Delivery::Stream => {
                    let is_whole = |heard: &Heard| heard.objects.get(&meta.request) == Some(&right);
                    self.until(&meta.path, is_whole).await;
                }
                Delivery::Coded(shape) => {
                    for request in asked {
                        let generation = shape.generation(request.generation).unwrap();
                        let start = usize::try_from(generation.offset).unwrap();
                        let end = start + usize::try_from(generation.length).unwrap();
                        if let Some(bytes) = self.rebuilt(&request) {
                            assert!(bytes == right[start..end], "{}", meta.path);
                        }
                    }
                }
            }
        }
        let closed = self.connection.close_reason();
        let leaves = |message: &Message| matches!(message, Message::GoAway { .. });
        assert!(
            closed.is_none() || answered.iter().any(leaves),
            "{closed:?}"
        );
    }
}

impl Heard {
    /// The META that answers the same as this one.
    fn meta(&self, recorded: &Meta) -> Option<&Meta> {
        self.messages.iter().find_map(|message| match message {
            Message::Meta(meta)
                if (meta.request, &meta.path, meta.offset)
                    == (recorded.request, &recorded.path, recorded.offset) =>
            {
                Some(meta)
            }
            _ => None,
        })
    }

    /// The blocks that came for a request, all of which are well-formed.
    fn blocks(&self, alias: u16, generation: &Generation) -> Vec<Block> {
        let datagrams = self.datagrams.get(&alias).into_iter().flatten();
        let mut blocks: Vec<Block> = datagrams
            .map(|datagram| {
                let mut rest = datagram.clone();
                let head = parse_datagram(&mut rest).expect("a block");
                parse_block(head.kind, generation, rest).expect("a block of the generation")
            })
            .collect();
        let mut records = Records::new(*generation);
        records.push(self.records.get(&alias).map_or(&[], Vec::as_slice));
        blocks.extend(std::iter::from_fn(|| records.next().expect("records")));
        blocks
    }
}

fn decode(
    id: &SegmentId,
    shape: &Shape,
    generation: &Generation,
    blocks: &[Block],
) -> Option<Vec<u8>> {
    if let Codec::RlncQ { .. } = generation.codec {
        let words = u16::try_from(shape.words()).unwrap();
        let coded = gfq::Shape::new(generation.n, words).unwrap();
        let mut decoder = gfq::Decoder::new(coded);
        for Block { vector, payload } in blocks {
            let block = match vector {
                Vector::Source(index) => {
                    gfq::Coded::source(coded, usize::from(*index), payload).unwrap()
                }
                Vector::Narrow(row) => gfq::Coded {
                    vector: gfq::Vector::parse_source(coded, row).unwrap(),
                    payload: gfq::Payload::parse(coded, payload.clone()).unwrap(),
                },
                other => panic!("{other:?}"),
            };
            decoder.absorb(block).unwrap();
        }
        let mut bytes = decoder
            .is_complete()
            .then(|| decoder.into_bytes(&Cores::all()).unwrap())?;
        bytes.truncate(usize::try_from(generation.length).unwrap());
        return Some(bytes);
    }
    let key = row_key(id, generation);
    let mut decoder = rlnc::Decoder::new(*generation, key, Kernels::detect());
    for Block { vector, payload } in blocks {
        if decoder.absorb(vector, payload).unwrap() == Outcome::Complete {
            return Some(decoder.into_bytes().unwrap());
        }
    }
    None
}

async fn hear_messages(mut receive: RecvStream, heard: Arc<Mutex<Heard>>) {
    let mut reader = Reader::new();
    while let Ok(Some(chunk)) = receive.read_chunk(65_536, true).await {
        reader.push(&chunk.bytes);
        while let Some(message) = reader.next().expect("messages") {
            heard.lock().unwrap().messages.push(message);
        }
    }
}

async fn hear_datagrams(connection: Connection, heard: Arc<Mutex<Heard>>) {
    while let Ok(datagram) = connection.read_datagram().await {
        let head = parse_datagram(&mut datagram.clone()).expect("a block");
        let mut heard = heard.lock().unwrap();
        heard
            .datagrams
            .entry(head.alias)
            .or_default()
            .push(datagram);
        heard.last = Some(Instant::now());
    }
}

async fn hear_streams(connection: Connection, heard: Arc<Mutex<Heard>>) {
    while let Ok(mut stream) = connection.accept_uni().await {
        let heard = Arc::clone(&heard);
        tokio::spawn(async move {
            let (mut held, mut head) = (Vec::new(), None);
            while let Ok(Some(chunk)) = stream.read_chunk(65_536, true).await {
                held.extend_from_slice(&chunk.bytes);
                if head.is_none() {
                    let Some((kind, length)) = StreamHead::parse(&held).expect("a head") else {
                        continue;
                    };
                    held.drain(..length);
                    head = Some(kind);
                }
                let mut heard = heard.lock().unwrap();
                heard.last = Some(Instant::now());
                match head {
                    Some(StreamHead::Blocks { alias }) => {
                        heard.records.entry(alias).or_default().append(&mut held);
                    }
                    Some(StreamHead::Object { request } | StreamHead::Hashes { request }) => {
                        heard.objects.entry(request).or_default().append(&mut held);
                    }
                    None => {}
                }
            }
        });
    }
}
