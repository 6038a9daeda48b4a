//! The control stream: frames of type, length and body.
//!
//! A frame of an unknown type with the lowest bit set is skipped; with the bit clear it ends the connection. That is seen from
//! its first bytes, as is a length above [`BODY_MAX`]: the reader never waits for, or keeps, a body that it will not take.

use bytes::{Buf, Bytes, BytesMut};

use super::message::{
    ADDRESS_MAX, AGENT_MAX, Accept, CODING_MAX, COLUMNS_MAX, CONTENT_TYPE_MAX, Checks, Codecs, Credential, Delivery, Get,
    GetChecks, HOLDINGS_MAX, Hello, Holding, HoldingState, INLINE_MAX, Introduction, Meant, Message, Meta, PARAMETERS_MAX,
    PATH_MAX, PEERS_MAX, RANGES_MAX, REASON_MAX, Request, RequestCode, RequestError, SIGNATURE_MAX, STREAM_NAME_MAX, Signature,
    StopReason, Subscribe, TICKET_MAX, TOKEN_MAX, Ticket, Token, Tree, VisitId, is_path, is_stream_name, is_token,
};
use super::text::{is_plain, plain};
use super::{Violation, varint};
use crate::object::{Codec, Coding, HashGroup, SegmentId, Shape};

/// Most bytes of a frame's body.
pub const BODY_MAX: usize = 65_535;

/// Frame types. Even ones that a side does not know end the connection, odd ones are skipped.
mod kind {
    pub(super) const HELLO: u64 = 0x00;
    pub(super) const AUTH: u64 = 0x02;
    pub(super) const GRANT: u64 = 0x04;
    pub(super) const SUBSCRIBE: u64 = 0x06;
    pub(super) const SUBSCRIBE_OK: u64 = 0x08;
    pub(super) const ERROR: u64 = 0x0a;
    pub(super) const UNSUBSCRIBE: u64 = 0x0c;
    pub(super) const META: u64 = 0x0e;
    pub(super) const REQUEST: u64 = 0x10;
    pub(super) const CREDIT: u64 = 0x12;
    pub(super) const STOP: u64 = 0x14;
    pub(super) const REJECT: u64 = 0x16;
    pub(super) const RANK: u64 = 0x17;
    pub(super) const HAVE: u64 = 0x19;
    pub(super) const GET_CHECKS: u64 = 0x1a;
    pub(super) const CHECKS: u64 = 0x1c;
    pub(super) const BLAME: u64 = 0x1d;
    pub(super) const PEERS: u64 = 0x1f;
    pub(super) const GOAWAY: u64 = 0x22;
    pub(super) const GET: u64 = 0x24;
    pub(super) const GET_HASHES: u64 = 0x26;
    pub(super) const OFFER: u64 = 0x27;
    pub(super) const RESCHEDULE: u64 = 0x29;

    pub(super) const fn is_known(kind: u64) -> bool {
        matches!(
            kind,
            HELLO
                | AUTH
                | GRANT
                | SUBSCRIBE
                | SUBSCRIBE_OK
                | ERROR
                | UNSUBSCRIBE
                | META
                | REQUEST
                | CREDIT
                | STOP
                | REJECT
                | RANK
                | HAVE
                | GET_CHECKS
                | CHECKS
                | BLAME
                | PEERS
                | GOAWAY
                | GET
                | GET_HASHES
                | OFFER
                | RESCHEDULE
        )
    }

    pub(super) const fn may_be_skipped(kind: u64) -> bool {
        kind & 1 == 1
    }
}

/// HELLO parameters. 2 (roles) and 9, 12 to 14 of the drafts are reserved; `0x3e * N + 0x21` are there to be skipped.
mod parameter {
    pub(super) const MINOR: u64 = 1;
    pub(super) const CODECS: u64 = 3;
    pub(super) const FIELDS: u64 = 4;
    pub(super) const GENERATORS: u64 = 5;
    pub(super) const N_MAX: u64 = 6;
    pub(super) const BLOCK_BYTES_MAX: u64 = 7;
    pub(super) const SEGMENT_BYTES_MAX: u64 = 8;
    pub(super) const REQUESTS_MAX: u64 = 10;
    pub(super) const CREDIT_MAX: u64 = 11;
    pub(super) const AGENT: u64 = 15;
    pub(super) const VISIT: u64 = 17;
}

/// Codes, in HELLO and META.
mod codec {
    /// Random linear coding over bytes.
    pub(super) const RLNC: u64 = 1;
    pub(super) const RAPTORQ: u64 = 2;
    pub(super) const REED_SOLOMON: u64 = 3;
    pub(super) const RLNC_Q: u64 = 4;
}
/// GF(2^8) with polynomial 0x11D and generator 2.
const FIELD_11D: u64 = 0x1d;
/// Philox4x32-10.
const GENERATOR_PHILOX: u64 = 1;

/// Between two numbers of grease, and how many of them are used: those that fit two bytes.
const GREASE_STEP: u64 = 0x3e;
const GREASE_NUMBERS: u32 = 256;

/// How META's bytes come.
mod delivery {
    pub(super) const INLINE: u8 = 0;
    pub(super) const CODED: u8 = 1;
    pub(super) const STREAM: u8 = 2;
    pub(super) const CODED_WITH: u8 = 3;
}

/// Bits of a REQUEST's flags.
mod accept {
    pub(super) const CODED: u8 = 1;
    pub(super) const SYSTEMATIC: u8 = 2;
    pub(super) const DATAGRAMS: u8 = 4;
    pub(super) const RECODED: u8 = 8;
}

/// Cuts what the control stream brings into messages, however it was split on its way.
///
/// Holds what was pushed and not taken yet. Drain it with [`Reader::next`] after every push: then it holds less than one frame
/// besides the last push.
#[derive(Debug, Default)]
pub struct Reader {
    buffer: BytesMut,
    skip: usize,
}

impl Reader {
    /// An empty reader.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        self.buffer.extend_from_slice(&bytes[skipped..]);
    }

    /// The next message, or `None` until more is pushed. After a violation the reader is of no use any more.
    #[expect(clippy::should_implement_trait, reason = "an iterator that ends and goes on would surprise")]
    pub fn next(&mut self) -> Result<Option<Message>, Violation> {
        loop {
            let Some((kind, length, head)) = frame_head(&self.buffer)? else { return Ok(None) };
            if !kind::is_known(kind) {
                self.buffer.advance(head);
                let skipped = length.min(self.buffer.len());
                self.buffer.advance(skipped);
                self.skip = length - skipped;
                continue;
            }
            if self.buffer.len() < head + length {
                return Ok(None);
            }
            self.buffer.advance(head);
            let body = self.buffer.split_to(length).freeze();
            return Message::parse(kind, body).map(Some);
        }
    }

    /// Whether the stream may end here: no frame is half received.
    pub fn is_between_frames(&self) -> bool {
        self.buffer.is_empty() && self.skip == 0
    }
}

/// Type, length and the bytes that both take, once they are all there.
fn frame_head(input: &[u8]) -> Result<Option<(u64, usize, usize)>, Violation> {
    let Some((kind, kind_length)) = varint::read(input).map_err(|_| Violation::Malformed("frame type"))? else { return Ok(None) };
    if !kind::is_known(kind) && !kind::may_be_skipped(kind) {
        return Err(Violation::UnknownFrame(kind));
    }
    let rest = &input[kind_length..];
    let Some((length, length_length)) = varint::read(rest).map_err(|_| Violation::Malformed("frame length"))? else {
        return Ok(None);
    };
    let body = usize::try_from(length).ok().filter(|length| *length <= BODY_MAX).ok_or(Violation::FrameTooLong(length))?;
    Ok(Some((kind, body, kind_length + length_length)))
}

impl Message {
    /// Appends the message as a frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        let kind = self.write_body(&mut body);
        debug_assert!(body.len() <= BODY_MAX, "a frame of {} bytes", body.len());
        varint::write(kind, out);
        varint::write(body.len() as u64, out);
        out.append(&mut body);
    }

    /// The message as a frame.
    pub fn to_frame(&self) -> Bytes {
        let mut out = Vec::new();
        self.encode(&mut out);
        out.into()
    }

    fn write_body(&self, out: &mut Vec<u8>) -> u64 {
        match self {
            Self::Hello(hello) => write_hello(hello, out),
            Self::Auth(credential) => write_auth(credential, out),
            Self::Grant { lasts_ms } => write_only(kind::GRANT, *lasts_ms, out),
            Self::Get(get) => write_get(get, out),
            Self::Meta(meta) => write_meta(meta, out),
            Self::Error(error) => write_error(error, out),
            Self::Subscribe(subscribe) => write_subscribe(subscribe, out),
            Self::SubscribeOk { request } => write_only(kind::SUBSCRIBE_OK, *request, out),
            Self::Unsubscribe { request } => write_only(kind::UNSUBSCRIBE, *request, out),
            Self::Request(request) => write_request(request, out),
            Self::Credit { alias, blocks } => {
                out.extend_from_slice(&alias.to_be_bytes());
                varint::write(u64::from(*blocks), out);
                kind::CREDIT
            }
            Self::Reschedule { alias, deadline_ms } => {
                out.extend_from_slice(&alias.to_be_bytes());
                varint::write(*deadline_ms, out);
                kind::RESCHEDULE
            }
            Self::Stop { alias, reason } => {
                out.extend_from_slice(&alias.to_be_bytes());
                varint::write(stop_value(*reason), out);
                kind::STOP
            }
            Self::Reject { alias, code, retry_after_ms } => {
                out.extend_from_slice(&alias.to_be_bytes());
                varint::write(u64::from(code.value()), out);
                varint::write(*retry_after_ms, out);
                kind::REJECT
            }
            Self::Rank { alias, rank, useless, lost } => {
                out.extend_from_slice(&alias.to_be_bytes());
                [rank, useless, lost].into_iter().for_each(|count| varint::write(u64::from(*count), out));
                kind::RANK
            }
            Self::GoAway { drain_ms } => write_only(kind::GOAWAY, *drain_ms, out),
            Self::GetHashes { request, segment, meant } => {
                varint::write(*request, out);
                out.extend_from_slice(segment.as_bytes());
                write_meant(*meant, out);
                kind::GET_HASHES
            }
            Self::GetChecks(GetChecks { request, segment, generation, nonce, meant }) => {
                varint::write(*request, out);
                out.extend_from_slice(segment.as_bytes());
                varint::write(u64::from(*generation), out);
                out.extend_from_slice(nonce);
                write_meant(*meant, out);
                kind::GET_CHECKS
            }
            Self::Checks(checks) => write_checks(checks, out),
            Self::Blame { segment, generation, blocks, identity } => {
                out.extend_from_slice(segment.as_bytes());
                varint::write(u64::from(*generation), out);
                varint::write(u64::from(*blocks), out);
                out.extend_from_slice(identity);
                kind::BLAME
            }
            Self::Have(holdings) => write_have(holdings, out),
            Self::Offer { port, identity } => {
                out.extend_from_slice(&port.to_be_bytes());
                out.extend_from_slice(identity);
                kind::OFFER
            }
            Self::Peers { segment, peers } => write_peers(*segment, peers, out),
        }
    }

    /// The message in a frame of this type, which [`kind::is_known`].
    fn parse(kind: u64, body: Bytes) -> Result<Self, Violation> {
        let (name, parser): (&'static str, Parser) = match kind {
            kind::HELLO => ("HELLO", parse_hello),
            kind::AUTH => ("AUTH", parse_auth),
            kind::GRANT => ("GRANT", |body| Ok(Self::Grant { lasts_ms: body.varint()? })),
            kind::GET => ("GET", |body| Ok(Self::Get(parse_get(body)?))),
            kind::META => ("META", |body| Ok(Self::Meta(parse_meta(body)?))),
            kind::ERROR => ("ERROR", |body| Ok(Self::Error(parse_error(body)?))),
            kind::SUBSCRIBE => ("SUBSCRIBE", |body| Ok(Self::Subscribe(parse_subscribe(body)?))),
            kind::SUBSCRIBE_OK => ("SUBSCRIBE_OK", |body| Ok(Self::SubscribeOk { request: body.varint()? })),
            kind::UNSUBSCRIBE => ("UNSUBSCRIBE", |body| Ok(Self::Unsubscribe { request: body.varint()? })),
            kind::REQUEST => ("REQUEST", |body| Ok(Self::Request(parse_request(body)?))),
            kind::CREDIT => ("CREDIT", parse_credit),
            kind::STOP => ("STOP", |body| Ok(Self::Stop { alias: body.u16()?, reason: stop_reason(body.varint()?) })),
            kind::REJECT => ("REJECT", parse_reject),
            kind::RANK => ("RANK", parse_rank),
            kind::GOAWAY => ("GOAWAY", |body| Ok(Self::GoAway { drain_ms: body.varint()? })),
            kind::GET_HASHES => ("GET_HASHES", |body| {
                Ok(Self::GetHashes { request: body.varint()?, segment: body.segment()?, meant: parse_meant(body)? })
            }),
            kind::GET_CHECKS => ("GET_CHECKS", parse_get_checks),
            kind::CHECKS => ("CHECKS", parse_checks),
            kind::BLAME => ("BLAME", parse_blame),
            kind::HAVE => ("HAVE", parse_have),
            kind::OFFER => ("OFFER", |body| Ok(Self::Offer { port: body.u16()?, identity: body.array()? })),
            kind::RESCHEDULE => ("RESCHEDULE", |body| Ok(Self::Reschedule { alias: body.u16()?, deadline_ms: body.varint()? })),
            kind::PEERS => ("PEERS", parse_peers),
            other => return Err(Violation::UnknownFrame(other)),
        };
        // What is left of the body are fields of a newer version.
        parser(&mut Body(body)).map_err(|fault| match fault {
            Fault::Malformed => Violation::Malformed(name),
            Fault::Violation(violation) => violation,
        })
    }
}

/// Appends a HELLO with one parameter that nobody knows, and behind it a frame that nobody knows: a side
/// that cannot skip them fails at once, not when a newer version first needs it. `random` chooses both.
pub fn encode_greeting(hello: &Hello, random: u32, out: &mut Vec<u8>) {
    let grease = grease(random);
    let filling = random.to_be_bytes();
    let mut body = Vec::new();
    write_hello_with(hello, Some((grease, &filling)), &mut body);
    for (kind, body) in [(kind::HELLO, &body[..]), (grease, &filling[..])] {
        varint::write(kind, out);
        varint::write(body.len() as u64, out);
        out.extend_from_slice(body);
    }
}

/// A number that is free for ever, both as a HELLO parameter and as a type of frame. All of them are odd:
/// a frame of an unknown even type ends the connection.
const fn grease(random: u32) -> u64 {
    GREASE_STEP * (random % GREASE_NUMBERS + 1) as u64 + 0x21
}

type Parser = fn(&mut Body) -> Result<Message, Fault>;

fn write_only(kind: u64, value: u64, out: &mut Vec<u8>) -> u64 {
    varint::write(value, out);
    kind
}

fn write_text(text: &str, max: usize, out: &mut Vec<u8>) {
    debug_assert!(text.len() <= max, "a text of {} bytes where {max} are the most", text.len());
    varint::write(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

fn write_hello(hello: &Hello, out: &mut Vec<u8>) -> u64 {
    write_hello_with(hello, None, out)
}

/// HELLO, with a parameter of the caller's behind those that it has.
fn write_hello_with(hello: &Hello, extra: Option<(u64, &[u8])>, out: &mut Vec<u8>) -> u64 {
    let mut codecs = vec![codec::RLNC];
    codecs.extend(hello.codecs.raptorq.then_some(codec::RAPTORQ));
    codecs.extend(hello.codecs.reed_solomon.then_some(codec::REED_SOLOMON));
    codecs.extend(hello.codecs.rlnc_q.then_some(codec::RLNC_Q));
    let numbers: [(u64, &[u64]); 9] = [
        (parameter::MINOR, &[hello.minor.0, hello.minor.1]),
        (parameter::CODECS, &codecs),
        (parameter::FIELDS, &[FIELD_11D]),
        (parameter::GENERATORS, &[GENERATOR_PHILOX]),
        (parameter::N_MAX, &[u64::from(hello.n_max)]),
        (parameter::BLOCK_BYTES_MAX, &[u64::from(hello.block_bytes_max)]),
        (parameter::SEGMENT_BYTES_MAX, &[hello.segment_bytes_max]),
        (parameter::REQUESTS_MAX, &[u64::from(hello.requests_max)]),
        (parameter::CREDIT_MAX, &[u64::from(hello.credit_max)]),
    ];
    varint::write(numbers.len() as u64 + 1 + u64::from(hello.visit.is_some()) + u64::from(extra.is_some()), out);
    for (id, values) in numbers {
        let mut value = Vec::new();
        values.iter().for_each(|number| varint::write(*number, &mut value));
        varint::write(id, out);
        varint::write(value.len() as u64, out);
        out.append(&mut value);
    }
    varint::write(parameter::AGENT, out);
    write_text(&hello.agent, AGENT_MAX, out);
    let visit = hello.visit.as_ref().map(|visit| (parameter::VISIT, &visit.0[..]));
    for (id, value) in visit.into_iter().chain(extra) {
        varint::write(id, out);
        varint::write(value.len() as u64, out);
        out.extend_from_slice(value);
    }
    kind::HELLO
}

fn parse_hello(body: &mut Body) -> Result<Message, Fault> {
    let mut hello = Hello::defaults();
    let mut seen = Vec::new();
    let count = body.varint()?;
    if count > PARAMETERS_MAX {
        return Err(Fault::Malformed);
    }
    for _ in 0..count {
        let id = body.varint()?;
        let length = body.length(BODY_MAX)?;
        if seen.contains(&id) {
            return Err(Fault::Malformed);
        }
        seen.push(id);
        let mut value = Body(body.take(length)?);
        match id {
            parameter::MINOR => hello.minor = (value.varint()?, value.varint()?),
            parameter::CODECS => {
                hello.codecs = Codecs::default();
                value.list_with(codec::RLNC, "codec", |listed| match listed {
                    codec::RAPTORQ => hello.codecs.raptorq = true,
                    codec::REED_SOLOMON => hello.codecs.reed_solomon = true,
                    codec::RLNC_Q => hello.codecs.rlnc_q = true,
                    _ => {}
                })?;
            }
            parameter::FIELDS => value.list_with(FIELD_11D, "field", |_| {})?,
            parameter::GENERATORS => value.list_with(GENERATOR_PHILOX, "coefficient generator", |_| {})?,
            parameter::N_MAX => hello.n_max = value.at_most()?,
            parameter::BLOCK_BYTES_MAX => hello.block_bytes_max = value.at_most()?,
            parameter::SEGMENT_BYTES_MAX => hello.segment_bytes_max = value.varint()?,
            parameter::REQUESTS_MAX => hello.requests_max = value.at_most()?,
            parameter::CREDIT_MAX => hello.credit_max = value.at_most()?,
            parameter::AGENT => hello.agent = value.rest_as_agent()?,
            parameter::VISIT => hello.visit = Some(VisitId(value.array()?)),
            _ => continue,
        }
        if !value.0.is_empty() {
            return Err(Fault::Malformed);
        }
    }
    if hello.minor.0 > hello.minor.1 {
        return Err(Fault::Malformed);
    }
    Ok(Message::Hello(hello))
}

/// Ways to be entitled that AUTH knows.
mod scheme {
    pub(super) const TOKEN: u64 = 1;
    pub(super) const TICKET: u64 = 2;
}

fn write_auth(credential: &Credential, out: &mut Vec<u8>) -> u64 {
    match credential {
        Credential::Token(token) => {
            debug_assert!(is_token(&token.0), "not a token");
            varint::write(scheme::TOKEN, out);
            write_text(&token.0, TOKEN_MAX, out);
        }
        Credential::Ticket(ticket) => {
            varint::write(scheme::TICKET, out);
            write_ticket(ticket, out);
        }
    }
    kind::AUTH
}

fn parse_auth(body: &mut Body) -> Result<Message, Fault> {
    match body.varint()? {
        scheme::TOKEN => {
            let token = body.text(TOKEN_MAX)?;
            if is_token(&token) { Ok(Message::Auth(Credential::Token(Token(token)))) } else { Err(Fault::Malformed) }
        }
        scheme::TICKET => Ok(Message::Auth(Credential::Ticket(body.ticket()?))),
        _ => Err(Fault::Malformed),
    }
}

fn write_ticket(ticket: &Ticket, out: &mut Vec<u8>) {
    debug_assert!((1..=TICKET_MAX).contains(&ticket.0.len()), "a ticket of {} bytes", ticket.0.len());
    varint::write(ticket.0.len() as u64, out);
    out.extend_from_slice(&ticket.0);
}

fn write_get(get: &Get, out: &mut Vec<u8>) -> u64 {
    debug_assert!(is_path(&get.path), "not a path: {:?}", get.path);
    varint::write(get.request, out);
    write_text(&get.path, PATH_MAX, out);
    varint::write(get.offset, out);
    varint::write(get.length.unwrap_or(0), out);
    kind::GET
}

fn parse_get(body: &mut Body) -> Result<Get, Fault> {
    let (request, path) = (body.varint()?, body.path()?);
    let (offset, length) = (body.varint()?, body.varint()?);
    Ok(Get { request, path, offset, length: (length > 0).then_some(length) })
}

fn write_meta(meta: &Meta, out: &mut Vec<u8>) -> u64 {
    varint::write(meta.request, out);
    write_described(meta, out);
    varint::write(meta.max_age_ms, out);
    write_text(&meta.content_type, CONTENT_TYPE_MAX, out);
    write_delivery(meta, out);
    if let Delivery::Inline(bytes) = &meta.delivery {
        debug_assert!(bytes.len() <= INLINE_MAX && bytes.len() as u64 == meta.length, "inline bytes of another length");
        out.extend_from_slice(bytes);
    }
    write_signature(meta.signature.as_ref(), out);
    if let Some(tree) = &meta.tree {
        write_tree(tree, out);
    }
    kind::META
}

/// What META says of the object from its path to its version.
fn write_described(meta: &Meta, out: &mut Vec<u8>) {
    debug_assert!(is_path(&meta.path), "not a path: {:?}", meta.path);
    write_text(&meta.path, PATH_MAX, out);
    out.extend_from_slice(meta.id.as_bytes());
    varint::write(meta.offset, out);
    varint::write(meta.length, out);
    varint::write(meta.object_length.map_or(0, |length| length.saturating_add(1)), out);
    out.extend_from_slice(&meta.version.to_be_bytes());
}

/// How the bytes come, without those that come inline.
fn write_delivery(meta: &Meta, out: &mut Vec<u8>) {
    match &meta.delivery {
        Delivery::Inline(_) => out.push(delivery::INLINE),
        Delivery::Coded(shape) => {
            debug_assert_eq!(shape.length(), meta.length, "the shape belongs to other bytes");
            // Those who know of no other code know delivery 1 alone, and are told of no other.
            out.push(if shape.codec() == Codec::Rlnc { delivery::CODED } else { delivery::CODED_WITH });
            varint::write(u64::from(shape.block_bytes()), out);
            varint::write(u64::from(shape.n_max()), out);
            if shape.codec() != Codec::Rlnc {
                write_codec(shape.codec(), out);
            }
        }
        Delivery::Stream => out.push(delivery::STREAM),
    }
}

/// A code with what belongs to it.
fn write_codec(codec: Codec, out: &mut Vec<u8>) {
    match codec {
        Codec::Rlnc => varint::write(codec::RLNC, out),
        Codec::RaptorQ => varint::write(codec::RAPTORQ, out),
        Codec::ReedSolomon { parity } => {
            varint::write(codec::REED_SOLOMON, out);
            varint::write(u64::from(parity), out);
        }
        Codec::RlncQ { group } => {
            varint::write(codec::RLNC_Q, out);
            varint::write(u64::from(group.number()), out);
        }
    }
}

/// A code other than the one that all speak.
fn parse_codec(body: &mut Body) -> Result<Codec, Fault> {
    Ok(match body.varint()? {
        codec::RAPTORQ => Codec::RaptorQ,
        codec::REED_SOLOMON => Codec::ReedSolomon { parity: body.at_most()? },
        codec::RLNC_Q => Codec::RlncQ { group: HashGroup::from_number(body.varint()?).ok_or(Fault::Malformed)? },
        // No HELLO of ours lists it.
        _ => return Err(Fault::Violation(Violation::Limit("codec of META"))),
    })
}

/// Which segment a question is about, behind its last field: who knows no such field skips it.
fn write_meant(meant: Meant, out: &mut Vec<u8>) {
    if meant != Meant::LastNamed {
        write_coding(meant, out);
    }
}

fn write_coding(meant: Meant, out: &mut Vec<u8>) {
    let mut coding = Vec::new();
    match meant {
        Meant::LastNamed => {}
        Meant::Foreign => coding.push(0),
        Meant::Coded(Coding { block_bytes, n_max, codec }) => {
            varint::write(u64::from(block_bytes), &mut coding);
            varint::write(u64::from(n_max), &mut coding);
            write_codec(codec, &mut coding);
        }
    }
    varint::write(coding.len() as u64, out);
    out.append(&mut coding);
}

/// A coding that makes no sense here may do so to newer versions: nobody has such a segment, and that is the answer.
fn parse_meant(body: &mut Body) -> Result<Meant, Fault> {
    if body.0.is_empty() { Ok(Meant::LastNamed) } else { parse_said(body) }
}

fn parse_said(body: &mut Body) -> Result<Meant, Fault> {
    let length = body.length(CODING_MAX)?;
    let mut coding = Body(body.take(length)?);
    if length == 0 {
        return Ok(Meant::LastNamed);
    }
    Ok(parse_coding(&mut coding).map_or(Meant::Foreign, Meant::Coded))
}

fn parse_coding(body: &mut Body) -> Option<Coding> {
    let (block_bytes, n_max) = (body.at_most().ok()?, body.at_most().ok()?);
    let is_linear = matches!(varint::read(&body.0), Ok(Some((codec::RLNC, 1))));
    let codec = if is_linear { body.u8().map(|_| Codec::Rlnc) } else { parse_codec(body) }.ok()?;
    body.0.is_empty().then_some(Coding { block_bytes, n_max, codec })
}

/// Ed25519 with what belongs to it.
const SIGNATURE_ED25519: u8 = 1;
/// Bytes of a signature of that scheme.
const ED25519_LEN: usize = 1 + 32 + 8 + 32 + 64;

fn write_signature(signature: Option<&Signature>, out: &mut Vec<u8>) {
    let Some(Signature { key, issued_ms, blocks, bytes }) = signature else {
        varint::write(0, out);
        return;
    };
    varint::write(ED25519_LEN as u64, out);
    out.push(SIGNATURE_ED25519);
    out.extend_from_slice(key);
    out.extend_from_slice(&issued_ms.to_be_bytes());
    out.extend_from_slice(blocks);
    out.extend_from_slice(bytes);
}

/// A signature of a scheme that this version does not know counts as none.
fn parse_signature(body: &mut Body) -> Result<Option<Signature>, Fault> {
    let length = body.length(SIGNATURE_MAX)?;
    let mut rest = Body(body.take(length)?);
    if length == 0 || rest.u8()? != SIGNATURE_ED25519 {
        return Ok(None);
    }
    let signature = Signature {
        key: rest.array()?,
        issued_ms: u64::from_be_bytes(rest.array()?),
        blocks: rest.array()?,
        bytes: rest.array()?,
    };
    if rest.0.is_empty() { Ok(Some(signature)) } else { Err(Fault::Malformed) }
}

/// Most bytes of a tree: the size of its groups and their values.
const TREE_MAX: usize = 1 + Tree::GROUPS_MAX * Tree::VALUE_LEN;

fn write_tree(tree: &Tree, out: &mut Vec<u8>) {
    varint::write(1 + tree.values().len() as u64, out);
    out.push(tree.group_log());
    out.extend_from_slice(tree.values());
}

/// None where the message ends before it, or says that there is none. One that is not the tree of the bytes described is malformed.
fn parse_tree(body: &mut Body, id: &SegmentId, length: u64, codec: Codec) -> Result<Option<Tree>, Fault> {
    if body.0.is_empty() {
        return Ok(None);
    }
    let bytes = body.length(TREE_MAX)?;
    if bytes == 0 {
        return Ok(None);
    }
    let mut rest = Body(body.take(bytes)?);
    let group_log = rest.u8()?;
    Tree::checked(id, length, codec, group_log, rest.0).map(Some).ok_or(Fault::Malformed)
}

impl Meta {
    /// The bytes that a signature with this time and this hash of block hashes stands for: `docs/protocol.md`, section 3.
    pub fn signed_part(&self, issued_ms: u64, blocks: &[u8; 32]) -> Vec<u8> {
        let mut out = b"ncs/1 META\0".to_vec();
        out.extend_from_slice(&issued_ms.to_be_bytes());
        out.extend_from_slice(blocks);
        write_described(self, &mut out);
        write_text(&self.content_type, CONTENT_TYPE_MAX, &mut out);
        write_delivery(self, &mut out);
        out
    }
}

impl Checks {
    /// The bytes that the signature of an answer to `asked` stands for: `docs/protocol.md`, section 3.
    pub fn signed_part(&self, asked: &GetChecks) -> Vec<u8> {
        let mut out = b"ncs/1 CHECKS\0".to_vec();
        out.extend_from_slice(asked.segment.as_bytes());
        out.extend_from_slice(&asked.generation.to_be_bytes());
        out.extend_from_slice(&asked.nonce);
        out.extend_from_slice(&self.seed);
        out.push(self.columns);
        out.extend_from_slice(&self.projections);
        out
    }
}

fn parse_meta(body: &mut Body) -> Result<Meta, Fault> {
    let (request, path) = (body.varint()?, body.path()?);
    let id = SegmentId::from_bytes(body.array()?);
    let (offset, length) = (body.varint()?, body.varint()?);
    let object_length = body.varint()?.checked_sub(1);
    let end = offset.checked_add(length).filter(|end| *end <= varint::MAX).ok_or(Fault::Malformed)?;
    if object_length.is_some_and(|object_length| end > object_length) {
        return Err(Fault::Malformed);
    }
    let version = u64::from_be_bytes(body.array()?);
    let max_age_ms = body.varint()?;
    let content_type = body.text(CONTENT_TYPE_MAX)?;
    if !content_type.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
        return Err(Fault::Malformed);
    }
    let delivery = match body.u8()? {
        delivery::INLINE => {
            let length = usize::try_from(length).ok().filter(|length| *length <= INLINE_MAX).ok_or(Fault::Malformed)?;
            Delivery::Inline(body.take(length)?)
        }
        delivery::CODED => {
            let (block_bytes, n_max) = (body.at_most()?, body.at_most()?);
            Delivery::Coded(Shape::new(length, block_bytes, n_max).map_err(|_| Fault::Malformed)?)
        }
        delivery::CODED_WITH => {
            let (block_bytes, n_max) = (body.at_most()?, body.at_most()?);
            let shape = Shape::new(length, block_bytes, n_max).map_err(|_| Fault::Malformed)?;
            let codec = parse_codec(body)?;
            Delivery::Coded(shape.coded_with(codec).map_err(|_| Fault::Malformed)?)
        }
        delivery::STREAM => Delivery::Stream,
        _ => return Err(Fault::Malformed),
    };
    let signature = parse_signature(body)?;
    let tree = parse_tree(body, &id, length, delivery.codec())?;
    Ok(Meta { request, path, id, offset, length, object_length, version, max_age_ms, content_type, delivery, signature, tree })
}

fn write_error(error: &RequestError, out: &mut Vec<u8>) -> u64 {
    varint::write(error.request, out);
    varint::write(u64::from(error.code.value()), out);
    varint::write(error.retry_after_ms, out);
    debug_assert!(error.reason.chars().all(is_plain), "a reason that is not plain: {:?}", error.reason);
    write_text(&error.reason, REASON_MAX, out);
    kind::ERROR
}

fn parse_error(body: &mut Body) -> Result<RequestError, Fault> {
    Ok(RequestError {
        request: body.varint()?,
        code: RequestCode::from_value(body.varint()?),
        retry_after_ms: body.varint()?,
        // One that is not plain is no reason to hang up, and nothing to show as it is.
        reason: plain(&body.text(REASON_MAX)?, REASON_MAX),
    })
}

fn write_subscribe(subscribe: &Subscribe, out: &mut Vec<u8>) -> u64 {
    debug_assert!(is_stream_name(&subscribe.stream), "not the name of a stream: {:?}", subscribe.stream);
    varint::write(subscribe.request, out);
    write_text(&subscribe.stream, STREAM_NAME_MAX, out);
    kind::SUBSCRIBE
}

fn parse_subscribe(body: &mut Body) -> Result<Subscribe, Fault> {
    let (request, stream) = (body.varint()?, body.text(STREAM_NAME_MAX)?);
    if is_stream_name(&stream) { Ok(Subscribe { request, stream }) } else { Err(Fault::Malformed) }
}

fn write_request(request: &Request, out: &mut Vec<u8>) -> u64 {
    debug_assert!(request.ranges.len() <= RANGES_MAX, "{} ranges", request.ranges.len());
    out.extend_from_slice(&request.alias.to_be_bytes());
    out.extend_from_slice(request.segment.as_bytes());
    varint::write(u64::from(request.generation), out);
    varint::write(request.deadline_ms, out);
    varint::write(u64::from(request.credit), out);
    let Accept { coded, systematic, datagrams, recoded } = request.accept;
    let bits =
        [(coded, accept::CODED), (systematic, accept::SYSTEMATIC), (datagrams, accept::DATAGRAMS), (recoded, accept::RECODED)];
    out.push(bits.into_iter().filter(|(set, _)| *set).fold(0, |flags, (_, bit)| flags | bit));
    varint::write(request.ranges.len() as u64, out);
    for (first, count) in &request.ranges {
        varint::write(u64::from(*first), out);
        varint::write(u64::from(*count), out);
    }
    write_meant(request.meant, out);
    kind::REQUEST
}

fn parse_request(body: &mut Body) -> Result<Request, Fault> {
    let alias = body.u16()?;
    let segment = SegmentId::from_bytes(body.array()?);
    let (generation, deadline_ms, credit) = (body.at_most()?, body.varint()?, body.at_most()?);
    let flags = body.u8()?;
    let accept = Accept {
        coded: flags & accept::CODED != 0,
        systematic: flags & accept::SYSTEMATIC != 0,
        datagrams: flags & accept::DATAGRAMS != 0,
        recoded: flags & accept::RECODED != 0,
    };
    if !accept.coded && !accept.systematic {
        return Err(Fault::Malformed);
    }
    let count = body.length(RANGES_MAX)?;
    let mut ranges = Vec::with_capacity(count);
    let mut end = 0;
    for _ in 0..count {
        let (first, blocks): (u16, u16) = (body.at_most()?, body.at_most()?);
        let next = first.checked_add(blocks).filter(|next| blocks > 0 && first >= end && *next <= Shape::N_LIMIT);
        end = next.ok_or(Fault::Malformed)?;
        ranges.push((first, blocks));
    }
    let meant = parse_meant(body)?;
    Ok(Request { alias, segment, generation, deadline_ms, credit, accept, ranges, meant })
}

fn parse_credit(body: &mut Body) -> Result<Message, Fault> {
    let (alias, blocks) = (body.u16()?, body.at_most()?);
    if blocks > 0 { Ok(Message::Credit { alias, blocks }) } else { Err(Fault::Malformed) }
}

fn parse_reject(body: &mut Body) -> Result<Message, Fault> {
    let (alias, code) = (body.u16()?, RequestCode::from_value(body.varint()?));
    Ok(Message::Reject { alias, code, retry_after_ms: body.varint()? })
}

fn parse_rank(body: &mut Body) -> Result<Message, Fault> {
    let alias = body.u16()?;
    Ok(Message::Rank { alias, rank: body.at_most()?, useless: body.at_most()?, lost: body.at_most()? })
}

fn parse_get_checks(body: &mut Body) -> Result<Message, Fault> {
    let (request, segment, generation) = (body.varint()?, body.segment()?, body.at_most()?);
    let nonce = body.array()?;
    Ok(Message::GetChecks(GetChecks { request, segment, generation, nonce, meant: parse_meant(body)? }))
}

fn write_checks(checks: &Checks, out: &mut Vec<u8>) -> u64 {
    debug_assert!((1..=COLUMNS_MAX).contains(&checks.columns), "{} columns", checks.columns);
    varint::write(checks.request, out);
    out.extend_from_slice(&checks.seed);
    out.push(checks.columns);
    varint::write((checks.projections.len() / usize::from(checks.columns)) as u64, out);
    out.extend_from_slice(&checks.projections);
    let signature = checks.signature.as_ref().map_or(&[][..], |signature| signature);
    varint::write(signature.len() as u64, out);
    out.extend_from_slice(signature);
    kind::CHECKS
}

fn parse_checks(body: &mut Body) -> Result<Message, Fault> {
    let (request, seed, columns) = (body.varint()?, body.array()?, body.u8()?);
    let n = body.length(usize::from(Shape::N_LIMIT))?;
    if !(1..=COLUMNS_MAX).contains(&columns) || n == 0 {
        return Err(Fault::Malformed);
    }
    let projections = body.take(n * usize::from(columns))?;
    let signature = match body.varint()? {
        0 => None,
        64 => Some(body.array()?),
        _ => return Err(Fault::Malformed),
    };
    Ok(Message::Checks(Checks { request, seed, columns, projections, signature }))
}

fn parse_blame(body: &mut Body) -> Result<Message, Fault> {
    let (segment, generation, blocks) = (body.segment()?, body.at_most()?, body.at_most()?);
    Ok(Message::Blame { segment, generation, blocks, identity: body.array()? })
}

fn write_have(holdings: &[Holding], out: &mut Vec<u8>) -> u64 {
    debug_assert!(holdings.len() <= HOLDINGS_MAX, "{} holdings", holdings.len());
    varint::write(holdings.len() as u64, out);
    for Holding { segment, state, .. } in holdings {
        out.extend_from_slice(segment.as_bytes());
        out.push(match state {
            HoldingState::Gone => 0,
            HoldingState::Partial => 1,
            HoldingState::Complete => 2,
        });
    }
    if holdings.iter().any(|holding| holding.meant != Meant::LastNamed) {
        holdings.iter().for_each(|holding| write_coding(holding.meant, out));
    }
    kind::HAVE
}

fn parse_have(body: &mut Body) -> Result<Message, Fault> {
    let count = body.length(HOLDINGS_MAX)?;
    let mut holdings = Vec::with_capacity(count);
    for _ in 0..count {
        let segment = body.segment()?;
        let state = match body.u8()? {
            0 => HoldingState::Gone,
            1 => HoldingState::Partial,
            2 => HoldingState::Complete,
            _ => return Err(Fault::Malformed),
        };
        holdings.push(Holding { segment, meant: Meant::LastNamed, state });
    }
    if !body.0.is_empty() {
        for holding in &mut holdings {
            holding.meant = parse_said(body)?;
        }
    }
    Ok(Message::Have(holdings))
}

fn write_peers(segment: SegmentId, peers: &[Introduction], out: &mut Vec<u8>) -> u64 {
    debug_assert!(peers.len() <= PEERS_MAX, "{} peers", peers.len());
    out.extend_from_slice(segment.as_bytes());
    varint::write(peers.len() as u64, out);
    for Introduction { address, identity, lasts_ms, ticket } in peers {
        write_text(&address.to_string(), ADDRESS_MAX, out);
        out.extend_from_slice(identity);
        varint::write(*lasts_ms, out);
        write_ticket(ticket, out);
    }
    kind::PEERS
}

fn parse_peers(body: &mut Body) -> Result<Message, Fault> {
    let segment = body.segment()?;
    let count = body.length(PEERS_MAX)?;
    let mut peers = Vec::with_capacity(count);
    for _ in 0..count {
        let address = body.text(ADDRESS_MAX)?.parse().map_err(|_| Fault::Malformed)?;
        let (identity, lasts_ms) = (body.array()?, body.varint()?);
        peers.push(Introduction { address, identity, lasts_ms, ticket: body.ticket()? });
    }
    Ok(Message::Peers { segment, peers })
}

const fn stop_value(reason: StopReason) -> u64 {
    match reason {
        StopReason::Complete => 0,
        StopReason::Deadline => 1,
        StopReason::Cancelled => 2,
    }
}

/// A reason that this version does not know is a cancellation.
const fn stop_reason(value: u64) -> StopReason {
    match value {
        0 => StopReason::Complete,
        1 => StopReason::Deadline,
        _ => StopReason::Cancelled,
    }
}

/// Why a body is not taken.
enum Fault {
    Malformed,
    Violation(Violation),
}

/// What is left of a body.
struct Body(Bytes);

impl Body {
    fn varint(&mut self) -> Result<u64, Fault> {
        let (value, length) = varint::read(&self.0).ok().flatten().ok_or(Fault::Malformed)?;
        self.0.advance(length);
        Ok(value)
    }

    /// A varint that fits the narrower type of its field.
    fn at_most<T: TryFrom<u64>>(&mut self) -> Result<T, Fault> {
        T::try_from(self.varint()?).map_err(|_| Fault::Malformed)
    }

    /// A varint that counts at most `max` things.
    fn length(&mut self, max: usize) -> Result<usize, Fault> {
        usize::try_from(self.varint()?).ok().filter(|length| *length <= max).ok_or(Fault::Malformed)
    }

    fn take(&mut self, length: usize) -> Result<Bytes, Fault> {
        if length > self.0.len() { Err(Fault::Malformed) } else { Ok(self.0.split_to(length)) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let bytes = self.take(N)?;
        <[u8; N]>::try_from(&bytes[..]).map_err(|_| Fault::Malformed)
    }

    fn u8(&mut self) -> Result<u8, Fault> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, Fault> {
        self.array().map(u16::from_be_bytes)
    }

    fn segment(&mut self) -> Result<SegmentId, Fault> {
        self.array().map(SegmentId::from_bytes)
    }

    fn ticket(&mut self) -> Result<Ticket, Fault> {
        let length = self.length(TICKET_MAX)?;
        if length == 0 { Err(Fault::Malformed) } else { self.take(length).map(Ticket) }
    }

    fn text(&mut self, max: usize) -> Result<String, Fault> {
        let length = self.length(max)?;
        let bytes = self.take(length)?;
        String::from_utf8(bytes.into()).map_err(|_| Fault::Malformed)
    }

    fn path(&mut self) -> Result<String, Fault> {
        let path = self.text(PATH_MAX)?;
        if is_path(&path) { Ok(path) } else { Err(Fault::Malformed) }
    }

    /// The whole rest as the name of an agent.
    fn rest_as_agent(&mut self) -> Result<String, Fault> {
        let bytes = self.take(self.0.len())?;
        if bytes.len() > AGENT_MAX || !bytes.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ') {
            return Err(Fault::Malformed);
        }
        String::from_utf8(bytes.into()).map_err(|_| Fault::Malformed)
    }

    /// The whole rest as a list of numbers that has to contain `wanted`.
    fn list_with(&mut self, wanted: u64, what: &'static str, mut tell: impl FnMut(u64)) -> Result<(), Fault> {
        let mut found = false;
        while !self.0.is_empty() {
            let value = self.varint()?;
            found |= value == wanted;
            tell(value);
        }
        if found { Ok(()) } else { Err(Fault::Violation(Violation::Unsupported(what))) }
    }
}

#[cfg(test)]
mod tests;
