//! One conversation in which another page is the consumer.
//!
//! The machine is that of a server's session. What a server does in several tasks happens here at
//! once: blocks are made when the data channel has room for them. Nothing that comes is trusted:
//! sizes and rates are bounded, and what breaks the rules ends the connection.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ncs_codec::block::Vector;
use ncs_codec::rlnc::Encoder;
use ncs_proto::admission::{Access, Scope};
use ncs_proto::integrity::signing::{Admitted, StreamKey};
use ncs_proto::object::{Codec, Generation, GenerationKey, Refusal, RefusalCode, Shape};
use ncs_proto::ring::{LineKind, SessionId};
use ncs_proto::rows::{Heap, plan};
use ncs_proto::session::{self, Claim, Event, Proto, Route, Want};
use ncs_proto::time::Instant;
use ncs_proto::wire::Violation;
use ncs_proto::wire::frame::{self, Reader};
use ncs_proto::wire::message::{Credential, Message, Ticket};
use rand::Rng;

use super::holdings::{Holdings, MESSAGE_MAX, Supply, recoded};

/// How long a consumer may go without a ticket, and how long one counts.
const GRACE: Duration = Duration::from_secs(10);
const TICKET_LASTS: Duration = Duration::from_secs(300);
/// Blocks that are registered for one consumer at a time.
const SHARE: u32 = 1024;
/// Blocks that are made at once: four or more at a time are cheaper than one by one.
const AT_ONCE: u32 = 16;
/// Generations of which it is remembered what a consumer got.
const MADE_MAX: usize = 512;

/// The conversation.
#[derive(Debug)]
pub(super) struct Serving {
    proto: Proto,
    frames: Reader,
    access: Access,
    /// The blocks that requests name.
    numbers: BTreeMap<GenerationKey, VecDeque<u16>>,
    /// The blocks made of each heap of rows.
    made: BTreeMap<GenerationKey, BTreeMap<Heap, u32>>,
    seed: u32,
    /// Bytes of blocks that have left.
    pub(super) sent: u64,
}

impl Serving {
    pub(super) fn new(now: Instant, number: u32, seed: u32) -> Self {
        let access = Access::Refused { until: now + GRACE };
        let mut proto = Proto::new(SessionId(number.into()), config(), now);
        proto.set_access(access.clone());
        Self {
            proto,
            frames: Reader::new(),
            access,
            numbers: BTreeMap::new(),
            made: BTreeMap::new(),
            seed,
            sent: 0,
        }
    }

    /// Takes bytes of frames. `key_of` knows the keys of streams, and `identity` is this page's.
    pub(super) fn control(
        &mut self,
        now: Instant,
        bytes: &[u8],
        identity: Option<[u8; 32]>,
        key_of: impl Fn(&str) -> Option<StreamKey>,
    ) -> Result<(), Violation> {
        self.proto.handle_control_bytes(now, bytes.len());
        self.frames.push(bytes);
        while let Some(message) = self.frames.next()? {
            self.proto.handle_message(now, message)?;
            if let Some(credential) = self.proto.poll_credential() {
                let access = match &credential {
                    Credential::Ticket(ticket) => admit(now, ticket, identity, &key_of),
                    Credential::Token(_) => None,
                };
                let counts = access.is_some();
                self.access = access.unwrap_or_else(|| self.access.clone());
                self.proto.judged(now, counts, self.access.clone());
            }
        }
        match self.proto.control_resumes(now) {
            // Nothing can hold up a data channel.
            Some(_) => Err(Violation::Flood("messages")),
            None => Ok(()),
        }
    }

    /// Does what is due.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Result<(), Violation> {
        self.proto.handle_timeout(now)
    }

    /// When something is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.proto.poll_timeout()
    }

    /// Bytes of frames for the consumer.
    pub(super) fn poll_control(
        &mut self,
        now: Instant,
        holdings: &Holdings,
    ) -> Result<Vec<u8>, Violation> {
        self.act(now, holdings)?;
        let mut out = Vec::new();
        while let Some(message) = self.proto.poll_message() {
            match message {
                Message::Hello(hello) => frame::encode_greeting(&hello, self.seed, &mut out),
                other => other.encode(&mut out),
            }
        }
        Ok(out)
    }

    /// Makes blocks for so many bytes, and appends them to `out`: the length of each in two bytes,
    /// and the datagram.
    pub(super) fn push(
        &mut self,
        now: Instant,
        holdings: &mut Holdings,
        room: usize,
        random: &mut impl Rng,
        out: &mut Vec<u8>,
    ) -> Result<(), Violation> {
        self.act(now, holdings)?;
        self.proto.set_datagram_max(Some(MESSAGE_MAX));
        let end = out.len() + room;
        while let Some((want, _)) = self.proto.poll_want(SHARE) {
            if let Want::Source(key, range) = want {
                self.numbers.entry(key).or_default().extend(range);
            }
        }
        for claim in self.proto.claims() {
            // Blocks of requests that take no datagrams have no way to go.
            let mut left = claim.blocks;
            while claim.route == Route::Datagram && left > 0 && out.len() < end {
                match self.send(now, holdings, &claim, left.min(AT_ONCE), random, out) {
                    0 => break,
                    sent => left = left.saturating_sub(sent),
                }
            }
        }
        while self.made.len() > MADE_MAX {
            self.made.pop_first();
        }
        Ok(())
    }

    /// Sends so many blocks of a claim, or fewer. Returns their number.
    fn send(
        &mut self,
        now: Instant,
        holdings: &mut Holdings,
        claim: &Claim,
        count: u32,
        random: &mut impl Rng,
        out: &mut Vec<u8>,
    ) -> u32 {
        let key = claim.line.generation;
        let Some((shape, supply)) = holdings.supply(key) else {
            return 0;
        };
        let Some(generation) = shape.generation(key.index) else {
            return 0;
        };
        let is_source = matches!(claim.line.kind, LineKind::Source(_));
        let blocks = match supply {
            Supply::Whole(encoder) if is_source => {
                let numbers = self.numbers.entry(key).or_default();
                let count = numbers.len().min(count as usize);
                let vectors = numbers
                    .drain(..count)
                    .map(|number| Vector::numbered(number, generation.n))
                    .collect();
                numbered(encoder, vectors)
            }
            Supply::Whole(encoder) => {
                let first = self.seed;
                self.seed = self.seed.wrapping_add(count);
                seeded(encoder, &shape, &generation, first, count)
            }
            Supply::Rows(part) => {
                let is_tainted = part.is_tainted;
                let rows = part.rows();
                let made = self.made.entry(key).or_default();
                let plan = plan(count, &rows.ranks(), made, is_tainted);
                let size = shape.block_bytes() as usize;
                let parts = plan.into_iter();
                parts
                    .flat_map(|(heap, count)| recoded(rows, heap, count as usize, size, random))
                    .collect()
            }
        };
        let (mut sent, mut coded, mut bytes) = (0_u32, 0_u64, 0_u64);
        for (vector, payload) in blocks {
            let Some(stamp) = self.proto.stamp(claim.alias, &vector, Route::Datagram) else {
                break;
            };
            let payload = &payload[..stamp.payload.min(payload.len())];
            let length = stamp.header().len() + payload.len();
            let Ok(length) = u16::try_from(length) else {
                break;
            };
            out.extend_from_slice(&length.to_le_bytes());
            out.extend_from_slice(stamp.header());
            out.extend_from_slice(payload);
            sent += 1;
            coded += u64::from(!matches!(vector, Vector::Source(_)));
            bytes += payload.len() as u64;
        }
        self.proto
            .note_sent(now, claim.alias, sent.into(), coded, bytes);
        self.sent += bytes;
        sent
    }

    /// Answers what the machine asks.
    fn act(&mut self, now: Instant, holdings: &Holdings) -> Result<(), Violation> {
        while let Some(event) = self.proto.poll_event() {
            match event {
                Event::Find {
                    ticket, id, coding, ..
                } => {
                    let held = holdings.find(id, coding);
                    self.proto.found(now, ticket, held)?;
                }
                Event::Resolve(get) => self.proto.resolved(now, get.request, Err(nothing())),
                Event::Hashes { ticket, .. } => self.proto.hashes(now, ticket, Err(nothing())),
                Event::Checks { ticket, .. } => self.proto.checks(now, ticket, Err(nothing())),
                Event::Subscribe(subscribe) => {
                    self.proto.subscribed(subscribe.request, Err(nothing()));
                }
                Event::Lost { line, blocks } => {
                    if let Some(made) = self.made.get_mut(&line.generation) {
                        made.values_mut()
                            .for_each(|made| *made = made.saturating_sub(blocks));
                    }
                }
                Event::Ended(ended) => {
                    self.numbers.remove(&ended.line.generation);
                }
                // For servers, which have streams of their own and name others.
                Event::AskAdmission
                | Event::Unsubscribed { .. }
                | Event::Deliver { .. }
                | Event::DeliverHashes { .. }
                | Event::Offer { .. }
                | Event::OfferPage { .. }
                | Event::Signal { .. }
                | Event::Have(_)
                | Event::Introduce { .. }
                | Event::Blame { .. }
                | Event::Rescheduled { .. }
                | Event::Watches { .. } => {}
            }
        }
        self.proto.take_tally();
        while self.proto.poll_stream_tally().is_some() {}
        Ok(())
    }
}

/// The rights that a ticket brings: all of its stream, for a while. Its own end is not looked at,
/// because clocks of viewers differ: nobody gets here whom the server has not named lately.
fn admit(
    now: Instant,
    ticket: &Ticket,
    identity: Option<[u8; 32]>,
    key_of: impl Fn(&str) -> Option<StreamKey>,
) -> Option<Access> {
    let says = Admitted::by(ticket, |stream| key_of(stream))?;
    if Some(says.identity) != identity {
        return None;
    }
    Some(Access::Granted {
        scope: Scope::parse(&[format!("/{}/*", says.stream)]).ok()?,
        until: Some(now + TICKET_LASTS),
        grace: Some(GRACE),
    })
}

fn numbered(encoder: &Encoder, vectors: Vec<Vector>) -> Vec<(Vector, Vec<u8>)> {
    let mut payloads = vec![vec![0; encoder.block_bytes()]; vectors.len()];
    let mut outs: Vec<&mut [u8]> = payloads.iter_mut().map(|out| &mut out[..]).collect();
    encoder.numbered(&vectors, &mut outs);
    vectors.into_iter().zip(payloads).collect()
}

fn seeded(
    encoder: &Encoder,
    shape: &Shape,
    generation: &Generation,
    first: u32,
    count: u32,
) -> Vec<(Vector, Vec<u8>)> {
    if shape.codec() == Codec::RaptorQ {
        let vector = |i| Vector::repair(first.wrapping_add(i), generation.n);
        return numbered(encoder, (0..count).map(vector).collect());
    }
    let mut payloads = vec![vec![0; encoder.block_bytes()]; count as usize];
    let mut outs: Vec<&mut [u8]> = payloads.iter_mut().map(|out| &mut out[..]).collect();
    encoder.blocks(first, &mut outs);
    let vector = |i| Vector::Seed(first.wrapping_add(i));
    (0..count).map(vector).zip(payloads).collect()
}

fn nothing() -> Refusal {
    Refusal {
        code: RefusalCode::Unknown,
        retry_after: None,
        reason: "this side knows no paths".to_owned(),
    }
}

fn config() -> session::Config {
    session::Config {
        agent: concat!("ncs-web/", env!("CARGO_PKG_VERSION")),
        requests_max: 32,
        credit_max: 512,
        subscriptions_max: 0,
        known_segments_max: 1,
        control_bytes_per_second: 256 << 10,
        questions_per_second: 1000,
        ..session::Config::default()
    }
}
