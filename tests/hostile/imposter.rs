//! A server that sends arbitrary messages.

use std::net::Ipv4Addr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use ncserverd::block::Vector;
use ncserverd::object::{RefusalCode, SegmentId, Shape};
use ncserverd::tls::{Fingerprint, ServerIdentity};
use ncserverd::wire::CloseCode;
use ncserverd::wire::block::{self, StreamHead};
use ncserverd::wire::frame::Reader;
use ncserverd::wire::message::{Delivery, Get, Hello, Message, Meta, Request};
use quinn::{Connection, ConnectionError, Endpoint, SendStream};
use tokio::sync::mpsc;

use crate::attacker::{HUGE, frame, get, varint};
use crate::ground::{LARGE_BYTES, LARGE_SEED, PATIENCE, bytes};

/// The large object, and the size of its first generation.
static OBJECT: LazyLock<Vec<u8>> = LazyLock::new(|| bytes(LARGE_SEED, LARGE_BYTES));
pub(crate) const SEGMENT_BYTES: usize = BLOCK_BYTES * N as usize;

/// How the streams here are cut unless servers are configured otherwise.
pub(crate) const BLOCK_BYTES: usize = 4096;
pub(crate) const N: u16 = 128;

/// Its behaviour once something is requested from it.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// Sends these bytes.
    Says(Vec<u8>),
    /// Answers each GET with a META that ends like this after the path.
    Names(Vec<u8>),
    /// Answers each GET with this many bytes on an object stream, preceded by a META with this
    /// length, if any.
    Sends { bytes: usize, named: Option<u64> },
    /// Sends this many unrequested datagrams.
    Datagrams(u32),
    /// Opens this many unrequested streams of blocks.
    Streams(u32),
    /// Opens a stream that begins like this.
    Stream(Vec<u8>),
    /// Answers each REQUEST with this many blocks more than its credit, and each later CREDIT with
    /// as many blocks as it allows.
    Blocks { excess: u32, row: Row },
    /// Answers each GET with a META that ends like this, and each REQUEST with blocks of noise.
    Lies(Vec<u8>),
    /// Answers each GET with a META that ends like this, and each REQUEST with OVERLOAD.
    Rejects(Vec<u8>),
    /// Closes the connection with this code and reason.
    Closes(CloseCode, Vec<u8>),
    /// Sends requests endlessly, and does not read the answers.
    Asks,
    /// Announces the same segment at every offset, as part of an object of this length, and sends
    /// it; from `other_from` on, the object has another version.
    Repeats {
        object_length: Option<u64>,
        other_from: u64,
    },
    /// The same, but requests are rejected with these codes.
    RejectsWith(Vec<RefusalCode>),
}

/// The rows of its blocks. Their payload is noise unless stated otherwise.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Row {
    /// Always the same seed.
    Seed,
    /// Only zero coefficients.
    Zero,
    /// Coefficients from a space of two dimensions, with the right payload.
    Low,
    /// A new seed each time.
    Fresh,
    /// Source blocks, written as explicit vectors.
    Right,
}

pub(crate) struct Imposter {
    endpoint: Endpoint,
    fingerprint: Fingerprint,
    ends: mpsc::UnboundedReceiver<ConnectionError>,
    heard: mpsc::UnboundedReceiver<Message>,
}

impl Imposter {
    pub(crate) fn start(act: Act) -> Self {
        let identity = ServerIdentity::ephemeral().unwrap();
        let quic = quinn::ServerConfig::with_crypto(Arc::new(identity.quic().unwrap()));
        let endpoint = Endpoint::server(quic, (Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let (ended, ends) = mpsc::unbounded_channel();
        let (hears, heard) = mpsc::unbounded_channel();
        let incoming = endpoint.clone();
        tokio::spawn(async move {
            while let Some(connecting) = incoming.accept().await {
                let (act, ended, hears) = (act.clone(), ended.clone(), hears.clone());
                tokio::spawn(async move {
                    let Ok(connection) = connecting.await else {
                        return;
                    };
                    tokio::select! {
                        // Messages that can no longer be sent are skipped.
                        _ = converse(&connection, &act, &hears) => {}
                        _ = connection.closed() => {}
                    }
                    let _ = ended.send(connection.closed().await);
                });
            }
        });
        Self {
            endpoint,
            fingerprint: identity.fingerprint(),
            ends,
            heard,
        }
    }

    /// In the form of the command line.
    pub(crate) fn url(&self) -> String {
        format!(
            "ncs://{}#{}",
            self.endpoint.local_addr().unwrap(),
            self.fingerprint
        )
    }

    /// The next message received, on any connection.
    pub(crate) async fn hears(&mut self) -> Message {
        tokio::time::timeout(PATIENCE, self.heard.recv())
            .await
            .expect("a message")
            .expect("a peer")
    }

    /// Whether such a message is among those received since the last call.
    pub(crate) fn has_heard(&mut self, is_such: impl Fn(&Message) -> bool) -> bool {
        std::iter::from_fn(|| self.heard.try_recv().ok()).any(|message| is_such(&message))
    }

    /// The code of the first connection to it that was closed.
    pub(crate) async fn close_code(&mut self) -> Result<CloseCode, ConnectionError> {
        match tokio::time::timeout(PATIENCE, self.ends.recv())
            .await
            .expect("a closed connection")
            .unwrap()
        {
            ConnectionError::ApplicationClosed(close) => {
                Ok(CloseCode::from_quic(close.error_code.into_inner()).unwrap())
            }
            other => Err(other),
        }
    }
}

type Said = Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn converse(
    connection: &Connection,
    act: &Act,
    hears: &mpsc::UnboundedSender<Message>,
) -> Said {
    let (mut send, mut receive) = connection.accept_bi().await?;
    send.write_all(
        &Message::Hello(Hello {
            agent: "imposter".to_owned(),
            ..Hello::defaults()
        })
        .to_frame(),
    )
    .await?;
    let (mut reader, mut streams) = (Reader::new(), std::collections::HashMap::new());
    let mut rejected = 0;
    while let Some(chunk) = receive.read_chunk(4096, true).await? {
        reader.push(&chunk.bytes);
        while let Some(message) = reader.next()? {
            let _ = hears.send(message.clone());
            match (act, message) {
                (Act::Names(tail) | Act::Lies(tail) | Act::Rejects(tail), Message::Get(get)) => {
                    send.write_all(&meta(&get, tail)).await?
                }
                (Act::Sends { bytes, named }, Message::Get(get)) => {
                    if let Some(named) = named {
                        send.write_all(&meta(&get, &stream_of(*named))).await?;
                    }
                    send_object(connection, &get, *bytes).await?;
                }
                (
                    Act::Repeats {
                        object_length,
                        other_from,
                    },
                    Message::Get(get),
                ) => {
                    send.write_all(&repeated(&get, *object_length, *other_from).to_frame())
                        .await?;
                }
                (Act::RejectsWith(_), Message::Get(get)) => {
                    send.write_all(&repeated(&get, None, u64::MAX).to_frame())
                        .await?
                }
                (Act::RejectsWith(codes), Message::Request(Request { alias, .. })) => {
                    rejected += 1;
                    let code = codes[rejected % codes.len()];
                    send.write_all(
                        &Message::Reject {
                            alias,
                            code,
                            retry_after_ms: (rejected % 2) as u64,
                        }
                        .to_frame(),
                    )
                    .await?;
                }
                (
                    Act::Blocks { .. } | Act::Lies(_) | Act::Repeats { .. },
                    Message::Request(Request {
                        alias,
                        credit,
                        generation,
                        ..
                    }),
                ) => {
                    let (excess, row) = match act {
                        Act::Blocks { excess, row } => (*excess, *row),
                        Act::Repeats { .. } => (0, Row::Right),
                        _ => (0, Row::Fresh),
                    };
                    let mut stream = connection.open_uni().await?;
                    let mut head = Vec::new();
                    StreamHead::Blocks { alias }.encode(&mut head);
                    stream.write_all(&head).await?;
                    let mut blocks = Blocks {
                        stream,
                        row,
                        generation: generation as usize,
                        sent: 0,
                    };
                    blocks.send(credit + excess).await;
                    streams.insert(alias, blocks);
                }
                (
                    Act::Blocks { .. } | Act::Lies(_) | Act::Repeats { .. },
                    Message::Credit { alias, blocks },
                ) => {
                    if let Some(open) = streams.get_mut(&alias) {
                        open.send(blocks).await;
                    }
                }
                (Act::Rejects(_), Message::Request(Request { alias, .. })) => {
                    let reject = Message::Reject {
                        alias,
                        code: RefusalCode::Overload,
                        retry_after_ms: 200,
                    };
                    send.write_all(&reject.to_frame()).await?;
                }
                (act, Message::Get(_)) => begin(connection, &mut send, act).await?,
                (_, Message::Stop { alias, .. }) => drop(streams.remove(&alias)),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Acts once something is requested: by then the peer uses it as a source.
async fn begin(connection: &Connection, send: &mut SendStream, act: &Act) -> Said {
    match act {
        Act::Says(bytes) => send.write_all(bytes).await?,
        Act::Datagrams(count) => {
            for seed in 0..*count {
                let datagram = [
                    &[0x41, 0, 0xff, 0xf0, 0, 0][..],
                    &seed.to_be_bytes(),
                    &[7; 1088],
                ]
                .concat();
                connection.send_datagram_wait(Bytes::from(datagram)).await?;
            }
        }
        Act::Streams(count) => {
            for _ in 0..*count {
                let mut stream = connection.open_uni().await?;
                // The other side may already have stopped the stream.
                let _ = stream
                    .write_all(&[&[0x50, 0xff, 0xf0][..], &[7; 5000]].concat())
                    .await;
                let _ = stream.finish();
            }
        }
        Act::Stream(bytes) => connection.open_uni().await?.write_all(bytes).await?,
        Act::Closes(code, reason) => connection.close(code.quic().into(), reason),
        Act::Asks => {
            let questions: Vec<u8> = (0..1000)
                .flat_map(|number| get(number, "/live/0.ts").to_frame())
                .collect();
            loop {
                send.write_all(&questions).await?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// A META for a GET, with this end after the path.
fn meta(get: &Get, tail: &[u8]) -> Vec<u8> {
    let path = get.path.as_bytes();
    frame(
        0x0e,
        &[
            &varint(get.request)[..],
            &varint(path.len() as u64),
            path,
            tail,
        ]
        .concat(),
    )
}

/// The end of a META of a segment, with unchecked values.
pub(crate) fn coded(length: u64, block_bytes: u64, n_max: u64) -> Vec<u8> {
    [
        &described(length)[..],
        &[1],
        &varint(block_bytes),
        &varint(n_max),
        &[0],
    ]
    .concat()
}

/// The end of a META of an object on a stream.
fn stream_of(length: u64) -> Vec<u8> {
    [&described(length)[..], &[2, 0]].concat()
}

/// Id, offset, length, object length, version, age, type.
fn described(length: u64) -> Vec<u8> {
    let all = if length < HUGE { length + 1 } else { 0 };
    [
        &[5; 32][..],
        &[0],
        &varint(length),
        &varint(all),
        &[0; 8],
        &[0],
        &[0],
    ]
    .concat()
}

/// A META of the large object's first generation, claimed to be at the requested offset.
fn repeated(get: &Get, object_length: Option<u64>, other_from: u64) -> Message {
    let segment = &OBJECT[..SEGMENT_BYTES];
    let length = SEGMENT_BYTES as u64;
    Message::Meta(Meta {
        request: get.request,
        path: get.path.clone(),
        id: SegmentId::of(segment),
        offset: get.offset,
        length,
        object_length,
        version: 1 + u64::from(get.offset >= other_from),
        max_age_ms: 0,
        content_type: String::new(),
        delivery: Delivery::Coded(
            Shape::new(length, u32::try_from(BLOCK_BYTES).unwrap(), N).unwrap(),
        ),
        tree: None,
        signature: None,
    })
}

async fn send_object(connection: &Connection, get: &Get, bytes: usize) -> Said {
    let mut stream = connection.open_uni().await?;
    let mut head = Vec::new();
    StreamHead::Object {
        request: get.request,
    }
    .encode(&mut head);
    stream.write_all(&head).await?;
    let noise = vec![7; 1 << 16];
    for _ in 0..bytes / noise.len() {
        stream.write_all(&noise).await?;
    }
    stream.finish()?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(())
}

/// The blocks that it sends for a request.
struct Blocks {
    stream: SendStream,
    row: Row,
    generation: usize,
    sent: u32,
}

impl Blocks {
    async fn send(&mut self, count: u32) {
        for _ in 0..count {
            self.sent += 1;
            let (vector, payload) = self.next();
            let mut record = vec![0; block::record_header_len(&vector)];
            block::write_record_header(&mut record, &vector);
            record.extend_from_slice(&payload);
            // A receiver that has enough stops the stream, which is no error.
            if self.stream.write_all(&record).await.is_err() {
                return;
            }
        }
    }

    fn next(&self) -> (Vector, Vec<u8>) {
        let noise = || vec![7; BLOCK_BYTES];
        match self.row {
            Row::Seed => (Vector::Seed(1), noise()),
            Row::Fresh => (Vector::Seed(self.sent), noise()),
            Row::Zero => (
                Vector::Explicit(vec![0; N.into()].into()),
                vec![0; BLOCK_BYTES],
            ),
            Row::Right => {
                let index = (self.sent as usize - 1) % usize::from(N);
                let mut row = vec![0; N.into()];
                row[index] = 1;
                (Vector::Explicit(row.into()), self.source(index).to_vec())
            }
            Row::Low => {
                let (one, other) =
                    [(true, false), (false, true), (true, true)][self.sent as usize % 3];
                let mut row = vec![0; N.into()];
                (row[0], row[1]) = (one.into(), other.into());
                let [first, second] = [0, 1].map(|index| self.source(index));
                let payload = first
                    .iter()
                    .zip(second)
                    .map(|(a, b)| (a * u8::from(one)) ^ (b * u8::from(other)))
                    .collect();
                (Vector::Explicit(row.into()), payload)
            }
        }
    }

    /// A source block of the generation: the object is one segment of whole generations.
    fn source(&self, index: usize) -> &'static [u8] {
        let block = self.generation * usize::from(N) + index;
        &OBJECT[block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES]
    }
}
