//! Plays a recorded server to today's client: the answers as they are, where the client asks what
//! the recorded one has asked. Only numbers that a client chooses are put in: those of its GETs and
//! its requests.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use ncserverd::object::{RefusalCode, SegmentId, Shape};
use ncserverd::tls::{Fingerprint, ServerIdentity};
use ncserverd::wire::block::{Records, StreamHead, record_header_len};
use ncserverd::wire::message::{Delivery, Message, Meta, Request, RequestError};
use nctest::number::varint;
use quinn::{Connection, ConnectionError, Endpoint, SendStream, TransportConfig};
use tokio::sync::watch;

use crate::later::Age;
use crate::record::{Conversation, Scene, Sent, Side, frame, framed, number};
use crate::viewer::parse;

const HELLO: u64 = 0x00;
const GRANT: u64 = 0x04;
const SUBSCRIBE_OK: u64 = 0x08;
const ERROR: u64 = 0x0a;
const META: u64 = 0x0e;
const REJECT: u64 = 0x16;
const GOAWAY: u64 = 0x22;
const ALTERNATES: u64 = 0x33;
/// How long a client that is to go may take: a part of what the recorded server gave it.
const LEAVES_WITHIN: Duration = Duration::from_millis(500);

type Said = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// A recorded server, for today's clients.
pub(crate) struct Sender {
    endpoint: Endpoint,
    pin: Fingerprint,
    leaves: watch::Sender<bool>,
    ends: Arc<Mutex<Vec<ConnectionError>>>,
}

/// An answer of the recorded server, and what it had sent unasked before.
#[derive(Debug, Clone)]
struct Answer {
    unasked: Vec<Vec<u8>>,
    kind: u64,
    /// The body behind the number of the GET.
    rest: Vec<u8>,
    /// What came on a stream of its own.
    object: Option<Vec<u8>>,
}

/// A block as it travelled.
#[derive(Debug, Clone)]
struct Stored {
    /// The flags of the datagram, if it came in one.
    flags: Option<u8>,
    /// Kind, vector and payload.
    record: Vec<u8>,
}

/// All that the recorded server has said.
#[derive(Debug, Default)]
struct Library {
    hello: Vec<u8>,
    answers: HashMap<(String, u64), Answer>,
    grants: VecDeque<Vec<u8>>,
    subscribed: Option<Vec<u8>>,
    announced: Vec<Vec<u8>>,
    leaving: Vec<Vec<u8>>,
    close: Option<(u64, Vec<u8>)>,
    blocks: HashMap<(SegmentId, u32), Vec<Stored>>,
    /// The hashes of a segment's blocks.
    hashes: HashMap<SegmentId, Vec<u8>>,
}

impl Sender {
    /// Plays server `letter` of a scene. `other` is the server that takes the place of those that
    /// the recorded one has named.
    pub(crate) fn start(scene: &Scene, letter: char, age: Age, other: Option<&Self>) -> Self {
        let mut library = Library::default();
        let conversations = scene.conversations.iter();
        for conversation in conversations.filter(|one| one.server == letter) {
            library.read(conversation);
        }
        if let Some(other) = other {
            library.rename(&other.address().to_string(), other.pin.as_bytes());
        }
        let identity = ServerIdentity::ephemeral().unwrap();
        let crypto = Arc::new(identity.quic().unwrap());
        let mut config = quinn::ServerConfig::with_crypto(crypto);
        let mut transport = TransportConfig::default();
        transport.max_idle_timeout(Some(Duration::from_secs(15).try_into().unwrap()));
        config.transport_config(Arc::new(transport));
        let endpoint = Endpoint::server(config, (Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let (leaves, told) = watch::channel(false);
        let ends = Arc::new(Mutex::new(Vec::new()));
        let (incoming, library, ended) = (endpoint.clone(), Arc::new(library), Arc::clone(&ends));
        tokio::spawn(async move {
            while let Some(connecting) = incoming.accept().await {
                let (library, told) = (Arc::clone(&library), told.clone());
                let ended = Arc::clone(&ended);
                tokio::spawn(async move {
                    let Ok(connection) = connecting.await else {
                        return;
                    };
                    // It ends as the client leaves.
                    let _ = converse(&connection, &library, age, told).await;
                    let end = connection.closed().await;
                    ended.lock().unwrap().push(end);
                });
            }
        });
        Self {
            endpoint,
            pin: identity.fingerprint(),
            leaves,
            ends,
        }
    }

    fn address(&self) -> SocketAddr {
        self.endpoint.local_addr().unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("ncs://{}#{}", self.address(), self.pin)
    }

    /// Says what the recorded server said when it ended.
    pub(crate) fn leave(&self) {
        self.leaves.send_replace(true);
    }

    /// How connections have ended so far: the codes of the clients.
    pub(crate) fn ends(&self) -> Vec<Option<u64>> {
        let code = |end: &ConnectionError| match end {
            ConnectionError::ApplicationClosed(close) => Some(close.error_code.into_inner()),
            ConnectionError::LocallyClosed => None,
            other => panic!("{other}"),
        };
        self.ends.lock().unwrap().iter().map(code).collect()
    }
}

impl Library {
    fn read(&mut self, conversation: &Conversation) {
        let (mut gets, mut subscriptions) = (HashMap::new(), Vec::new());
        let mut hashes = HashMap::new();
        let (mut requests, mut shapes) = (HashMap::<u16, Request>::new(), HashMap::new());
        let (mut streams, mut unasked) = (BTreeMap::<u64, Vec<u8>>::new(), Vec::new());
        for (side, sent) in &conversation.events {
            match (side, sent) {
                (Side::Client, Sent::Control(bytes)) => match parse(bytes) {
                    Some(Message::Get(get)) => {
                        gets.insert(get.request, (get.path, get.offset));
                    }
                    Some(Message::GetHashes {
                        request, segment, ..
                    }) => {
                        hashes.insert(request, segment);
                    }
                    Some(Message::Subscribe(subscribe)) => subscriptions.push(subscribe.request),
                    Some(Message::Request(request)) => {
                        requests.insert(request.alias, request);
                    }
                    _ => {}
                },
                (Side::Server, Sent::Control(bytes)) => {
                    if let Some(Message::Meta(Meta {
                        id,
                        delivery: Delivery::Coded(shape),
                        ..
                    })) = parse(bytes)
                    {
                        shapes.insert(id, shape);
                    }
                    let (kind, body, _) = frame(bytes).unwrap();
                    match kind {
                        HELLO => self.hello.clone_from(bytes),
                        GRANT => self.grants.push_back(bytes.clone()),
                        META | ERROR | SUBSCRIBE_OK => {
                            let (request, length) = number(body).unwrap();
                            let rest = body[length..].to_vec();
                            if kind == SUBSCRIBE_OK {
                                self.subscribed = Some(rest);
                            } else if subscriptions.contains(&request) {
                                self.announced.push(rest);
                            } else {
                                let unasked = std::mem::take(&mut unasked);
                                let answer = Answer {
                                    unasked,
                                    kind,
                                    rest,
                                    object: None,
                                };
                                self.answers.insert(gets[&request].clone(), answer);
                            }
                        }
                        GOAWAY => {
                            self.leaving = std::mem::take(&mut unasked);
                            self.leaving.push(bytes.clone());
                        }
                        REJECT => {}
                        _ => unasked.push(bytes.clone()),
                    }
                }
                (Side::Server, Sent::Stream(stream, bytes)) => {
                    streams.entry(*stream).or_default().extend_from_slice(bytes);
                }
                (Side::Server, Sent::Datagram(bytes)) => {
                    let alias = u16::from_be_bytes([bytes[2], bytes[3]]);
                    let stored = Stored {
                        flags: Some(bytes[1]),
                        record: [&bytes[..1], &bytes[6..]].concat(),
                    };
                    self.store(&requests[&alias], stored);
                }
                (Side::Server, Sent::Close(code, reason)) => {
                    self.close = Some((*code, reason.clone()));
                }
                _ => {}
            }
        }
        for bytes in streams.values() {
            match StreamHead::parse(bytes).unwrap() {
                Some((StreamHead::Object { request }, head)) => {
                    let answer = self.answers.get_mut(&gets[&request]).unwrap();
                    answer.object = Some(bytes[head..].to_vec());
                }
                Some((StreamHead::Blocks { alias }, head)) => {
                    let request = &requests[&alias];
                    for record in records(&bytes[head..], &shapes[&request.segment], request) {
                        let flags = None;
                        self.store(request, Stored { flags, record });
                    }
                }
                Some((StreamHead::Hashes { request }, head)) => {
                    self.hashes.insert(hashes[&request], bytes[head..].to_vec());
                }
                None => {}
            }
        }
    }

    fn store(&mut self, request: &Request, stored: Stored) {
        let key = (request.segment, request.generation);
        self.blocks.entry(key).or_default().push(stored);
    }

    /// Puts this address and identity in the place of those of the servers that were named.
    fn rename(&mut self, address: &str, identity: &[u8; 32]) {
        let mut named = Vec::new();
        let frames = self
            .answers
            .values_mut()
            .flat_map(|answer| &mut answer.unasked);
        for bytes in frames.chain(&mut self.leaving) {
            let Some((ALTERNATES, body, _)) = frame(bytes) else {
                continue;
            };
            let (urgency, first) = number(body).unwrap();
            let (count, second) = number(&body[first..]).unwrap();
            let mut rest = &body[first + second..];
            let mut renamed = [varint(urgency), varint(count)].concat();
            for _ in 0..count {
                let mut field = || {
                    let (length, head) = number(rest).unwrap();
                    let end = head + usize::try_from(length).unwrap();
                    let field = rest[head..end].to_vec();
                    rest = &rest[end..];
                    field
                };
                named.push((field(), field()));
                for field in [address.as_bytes(), &identity[..]] {
                    renamed.extend(varint(field.len() as u64));
                    renamed.extend(field);
                }
            }
            *bytes = framed(ALTERNATES, &[&renamed[..], rest].concat());
        }
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        if let Some((_, reason)) = &mut self.close {
            let mut text = String::from_utf8(reason.clone()).unwrap();
            for (was, pin) in named {
                text = text.replace(std::str::from_utf8(&was).unwrap(), address);
                text = text.replace(&hex(&pin), &hex(identity));
            }
            *reason = text.into_bytes();
        }
    }
}

/// The records on a stream, each by itself.
fn records(bytes: &[u8], shape: &Shape, request: &Request) -> Vec<Vec<u8>> {
    let mut reader = Records::new(shape.generation(request.generation).unwrap());
    reader.push(bytes);
    let (mut at, mut found) = (0, Vec::new());
    while let Some(block) = reader
        .next()
        .expect("today's reader takes what was recorded")
    {
        let length = record_header_len(&block.vector) + block.payload.len();
        found.push(bytes[at..at + length].to_vec());
        at += length;
    }
    found
}

/// What a client asks, read by the rules of the protocol and not by today's reader, which may have
/// changed along with the client.
enum Asked {
    Auth,
    Get {
        request: u64,
        path: String,
        offset: u64,
    },
    Hashes {
        request: u64,
        segment: SegmentId,
    },
    Subscribe(u64),
    Request {
        alias: u16,
        key: (SegmentId, u32),
        credit: u32,
        takes_datagrams: bool,
    },
    Credit {
        alias: u16,
        blocks: u32,
    },
    Stop(u16),
}

/// The fields of a message, one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn number(&mut self) -> Option<u64> {
        let (value, length) = number(self.0)?;
        self.bytes(length)?;
        Some(value)
    }

    fn alias(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.bytes(2)?.try_into().ok()?))
    }

    fn segment(&mut self) -> Option<SegmentId> {
        Some(SegmentId::from_bytes(self.bytes(32)?.try_into().ok()?))
    }

    fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }
}

/// `None` for what a server of streams has no answer to. Others are malformed.
fn asked(kind: u64, body: &[u8]) -> Option<Asked> {
    let mut fields = Fields(body);
    let asked = match kind {
        0x02 => Some(Asked::Auth),
        0x24 => (|| {
            let request = fields.number()?;
            let length = usize::try_from(fields.number()?).ok()?;
            let path = String::from_utf8(fields.bytes(length)?.to_vec()).ok()?;
            let offset = fields.number()?;
            fields.number()?;
            Some(Asked::Get {
                request,
                path,
                offset,
            })
        })(),
        0x26 => (|| {
            let request = fields.number()?;
            Some(Asked::Hashes {
                request,
                segment: fields.segment()?,
            })
        })(),
        0x06 => fields.number().map(Asked::Subscribe),
        0x10 => (|| {
            let alias = fields.alias()?;
            let key = (fields.segment()?, fields.small()?);
            let deadline = fields.number()?;
            assert!(deadline >= 1000, "a deadline of {deadline} ms");
            let credit = fields.small()?;
            let takes_datagrams = fields.bytes(1)?[0] & 4 != 0;
            Some(Asked::Request {
                alias,
                key,
                credit,
                takes_datagrams,
            })
        })(),
        0x12 => (|| {
            Some(Asked::Credit {
                alias: fields.alias()?,
                blocks: fields.small()?,
            })
        })(),
        0x14 => fields.alias().map(Asked::Stop),
        _ => return None,
    };
    assert!(
        asked.is_some(),
        "a malformed message of type {kind:#04x}: {body:02x?}"
    );
    asked
}

/// A request of today's client.
struct Open {
    key: (SegmentId, u32),
    takes_datagrams: bool,
    credit: u32,
    seq: u16,
    stream: Option<SendStream>,
}

struct Talk<'a> {
    connection: &'a Connection,
    library: &'a Library,
    age: Age,
    send: SendStream,
    open: HashMap<u16, Open>,
    /// How many blocks of each generation were sent.
    sent: HashMap<(SegmentId, u32), usize>,
}

async fn converse(
    connection: &Connection,
    library: &Library,
    age: Age,
    mut told: watch::Receiver<bool>,
) -> Said {
    let (send, mut receive) = connection.accept_bi().await?;
    let mut talk = Talk {
        connection,
        library,
        age,
        send,
        open: HashMap::new(),
        sent: HashMap::new(),
    };
    talk.say(&library.hello).await?;
    let (mut held, mut grants) = (Vec::new(), library.grants.clone());
    loop {
        let chunk = tokio::select! {
            chunk = receive.read_chunk(65_536, true) => chunk?,
            _ = told.wait_for(|leaves| *leaves) => break,
        };
        let Some(chunk) = chunk else { return Ok(()) };
        held.extend_from_slice(&chunk.bytes);
        for asked in taken(&mut held) {
            match asked {
                Asked::Auth => {
                    let grant = grants.pop_front().expect("a recorded GRANT");
                    talk.say(&grant).await?;
                }
                asked => talk.answer(asked).await?,
            }
        }
    }
    for bytes in &library.leaving {
        talk.say(bytes).await?;
    }
    let left = tokio::time::timeout(LEAVES_WITHIN, async {
        while let Ok(Some(chunk)) = receive.read_chunk(65_536, true).await {
            held.extend_from_slice(&chunk.bytes);
            for asked in taken(&mut held) {
                let _ = talk.answer(asked).await;
            }
        }
    });
    if left.await.is_err()
        && let Some((code, reason)) = &library.close
    {
        connection.close(quinn::VarInt::from_u64(*code)?, reason);
    }
    Ok(())
}

/// Takes the whole frames off these bytes.
fn taken(held: &mut Vec<u8>) -> Vec<Asked> {
    let mut all = Vec::new();
    while let Some((kind, body, length)) = frame(held) {
        all.extend(asked(kind, body));
        held.drain(..length);
    }
    all
}

impl Talk<'_> {
    async fn say(&mut self, bytes: &[u8]) -> Said {
        Ok(self.send.write_all(&self.age.frame(bytes)).await?)
    }

    async fn answer(&mut self, asked: Asked) -> Said {
        match asked {
            Asked::Get {
                request,
                path,
                offset,
            } => {
                let Some(answer) = self.library.answers.get(&(path, offset)) else {
                    let error = Message::Error(RequestError {
                        request,
                        code: RefusalCode::Unknown,
                        retry_after_ms: 0,
                        reason: String::new(),
                    });
                    return self.say(&error.to_frame()).await;
                };
                for bytes in &answer.unasked {
                    self.say(bytes).await?;
                }
                let body = [&varint(request)[..], &answer.rest].concat();
                self.say(&framed(answer.kind, &body)).await?;
                if let Some(object) = &answer.object {
                    self.stream(0x51, request, object).await?;
                }
            }
            Asked::Hashes { request, segment } => {
                let hashes = self.library.hashes.get(&segment).expect("recorded hashes");
                self.stream(0x52, request, hashes).await?;
            }
            Asked::Subscribe(request) => {
                let Some(rest) = &self.library.subscribed else {
                    return Ok(());
                };
                let request = varint(request);
                let body = [&request[..], rest].concat();
                self.say(&framed(SUBSCRIBE_OK, &body)).await?;
                for rest in &self.library.announced {
                    let body = [&request[..], rest].concat();
                    self.say(&framed(META, &body)).await?;
                }
            }
            Asked::Request {
                alias,
                key,
                credit,
                takes_datagrams,
            } => {
                let open = Open {
                    key,
                    takes_datagrams,
                    credit,
                    seq: 0,
                    stream: None,
                };
                self.open.insert(alias, open);
                self.blocks(alias).await?;
            }
            Asked::Credit { alias, blocks } => {
                if let Some(open) = self.open.get_mut(&alias) {
                    open.credit += blocks;
                    self.blocks(alias).await?;
                }
            }
            Asked::Stop(alias) => drop(self.open.remove(&alias)),
            Asked::Auth => {}
        }
        Ok(())
    }

    /// Sends an object or hashes on a stream of its own.
    async fn stream(&mut self, kind: u8, request: u64, bytes: &[u8]) -> Said {
        let mut stream = self.connection.open_uni().await?;
        let head = [&[kind][..], &varint(request)].concat();
        stream.write_all(&head).await?;
        stream.write_all(bytes).await?;
        Ok(stream.finish()?)
    }

    /// Sends as many of the recorded blocks as the client has credit for.
    async fn blocks(&mut self, alias: u16) -> Said {
        let open = self.open.get_mut(&alias).expect("it is open");
        let sent = self.sent.entry(open.key).or_default();
        let stored = self
            .library
            .blocks
            .get(&open.key)
            .map_or(&[][..], Vec::as_slice);
        while let Some(block) = stored.get(*sent)
            && open.credit > 0
        {
            (*sent, open.credit) = (*sent + 1, open.credit - 1);
            match block.flags.filter(|_| open.takes_datagrams) {
                Some(flags) => {
                    let flags = flags & !1 | u8::from(open.credit == 0);
                    let head = [&alias.to_be_bytes()[..], &open.seq.to_be_bytes()].concat();
                    open.seq += 1;
                    let (kind, rest) = block.record.split_first().expect("a kind");
                    let datagram = [&[*kind, self.age.flags(flags)], &head[..], rest].concat();
                    self.connection.send_datagram_wait(datagram.into()).await?;
                    if self.age == Age::Later {
                        // Of a kind that nobody knows.
                        let strange = [&[0x4f, 0], &head[..], rest].concat();
                        self.connection
                            .send_datagram_wait(Bytes::from(strange))
                            .await?;
                    }
                }
                None => {
                    if open.stream.is_none() {
                        let mut stream = self.connection.open_uni().await?;
                        let head = [&[0x50][..], &alias.to_be_bytes()].concat();
                        stream.write_all(&head).await?;
                        open.stream = Some(stream);
                    }
                    let stream = open.stream.as_mut().expect("it was opened");
                    // A client that has enough stops it.
                    if stream.write_all(&block.record).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}
