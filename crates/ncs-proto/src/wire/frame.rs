//! The control stream: frames of type, length and body.
//!
//! A frame of an unknown type with the lowest bit set is skipped; with the bit clear it ends the
//! connection. The reader sees that from the first bytes of the frame, as well as a length above
//! [`BODY_MAX`]: it never waits for a body, or keeps one, that it will not take.
//!
//! This file has the frames and their types. The files beside it have the bodies: each message is
//! written and read next to its counterpart.

mod alternates;
mod body;
mod checks;
mod codec;
mod coding;
mod hello;
mod kind;
mod meta;
mod pages;
mod peers;
mod request;

use bytes::{Buf, Bytes, BytesMut};

use super::message::{Hello, Message};
use super::{Violation, varint};

use alternates::{parse_alternates, write_alternates};
pub use body::BODY_MAX;
use body::{Body, Fault, write_only};
use checks::{
    parse_blame, parse_checks, parse_get_checks, parse_get_hashes, write_blame, write_checks,
    write_get_checks, write_get_hashes,
};
use hello::{parse_hello, write_hello, write_hello_with};
use meta::{
    parse_error, parse_get, parse_meta, parse_subscribe, write_error, write_get, write_meta,
    write_subscribe,
};
use pages::{
    parse_offer_page, parse_page, parse_pages, parse_signal, write_offer_page, write_page,
    write_pages, write_signal,
};
use peers::{
    parse_auth, parse_have, parse_offer, parse_peers, write_auth, write_have, write_offer,
    write_peers,
};
use request::{
    parse_credit, parse_rank, parse_reject, parse_request, parse_reschedule, parse_stop,
    write_credit, write_rank, write_reject, write_request, write_reschedule, write_stop,
};

/// The distance between two numbers of grease, and how many of them are used: those that fit two
/// bytes.
const GREASE_STEP: u64 = 0x3e;
const GREASE_NUMBERS: u32 = 256;

type Parser = fn(&mut Body) -> Result<Message, Fault>;

/// Cuts the bytes of the control stream into messages, however they were split on the way.
///
/// Holds the bytes that were pushed and not taken yet. Drain it with [`Reader::next`] after every
/// push: then it holds less than one frame besides the last push.
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

    /// The next message, or `None` until more is pushed. After a violation the reader is useless.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator that ends and goes on would surprise"
    )]
    pub fn next(&mut self) -> Result<Option<Message>, Violation> {
        loop {
            let Some((kind, length, head)) = frame_head(&self.buffer)? else {
                return Ok(None);
            };
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

    /// Whether the stream may end here: no frame is received in part.
    pub fn is_between_frames(&self) -> bool {
        self.buffer.is_empty() && self.skip == 0
    }
}

/// The type and length of a frame, and how many bytes both take, once they are complete.
fn frame_head(input: &[u8]) -> Result<Option<(u64, usize, usize)>, Violation> {
    let Some((kind, kind_length)) =
        varint::read(input).map_err(|_| Violation::Malformed("frame type"))?
    else {
        return Ok(None);
    };
    if !kind::is_known(kind) && !kind::may_be_skipped(kind) {
        return Err(Violation::UnknownFrame(kind));
    }
    let rest = &input[kind_length..];
    let Some((length, length_length)) =
        varint::read(rest).map_err(|_| Violation::Malformed("frame length"))?
    else {
        return Ok(None);
    };
    let body = usize::try_from(length)
        .ok()
        .filter(|length| *length <= BODY_MAX)
        .ok_or(Violation::FrameTooLong(length))?;
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

    /// Writes the body, and returns the type of its frame.
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
            Self::Credit { alias, blocks } => write_credit(*alias, *blocks, out),
            Self::Reschedule { alias, deadline_ms } => write_reschedule(*alias, *deadline_ms, out),
            Self::Stop { alias, reason } => write_stop(*alias, *reason, out),
            Self::Reject {
                alias,
                code,
                retry_after_ms,
            } => write_reject(*alias, *code, *retry_after_ms, out),
            Self::Rank {
                alias,
                rank,
                useless,
                lost,
            } => write_rank(*alias, [*rank, *useless, *lost], out),
            Self::GoAway { drain_ms } => write_only(kind::GOAWAY, *drain_ms, out),
            Self::GetHashes {
                request,
                segment,
                meant,
            } => write_get_hashes(*request, *segment, *meant, out),
            Self::GetChecks(query) => write_get_checks(query, out),
            Self::Checks(checks) => write_checks(checks, out),
            Self::Blame {
                segment,
                generation,
                blocks,
                identity,
            } => write_blame(*segment, *generation, *blocks, identity, out),
            Self::Have(holdings) => write_have(holdings, out),
            Self::Offer { port, identity } => write_offer(*port, identity, out),
            Self::Peers { segment, peers } => write_peers(*segment, peers, out),
            Self::OfferPage { serves } => write_offer_page(*serves, out),
            Self::Page { identity } => write_page(identity, out),
            Self::Pages { segment, pages } => write_pages(*segment, pages, out),
            Self::Signal { page, bytes } => write_signal(page, bytes, out),
            Self::Alternates { moves, servers } => write_alternates(*moves, servers, out),
        }
    }

    /// Reads the message of a frame of this type, which [`kind::is_known`].
    fn parse(kind: u64, body: Bytes) -> Result<Self, Violation> {
        let (name, parser): (&'static str, Parser) = match kind {
            kind::HELLO => ("HELLO", parse_hello),
            kind::AUTH => ("AUTH", parse_auth),
            kind::GRANT => ("GRANT", |body| {
                Ok(Self::Grant {
                    lasts_ms: body.varint()?,
                })
            }),
            kind::GET => ("GET", |body| Ok(Self::Get(parse_get(body)?))),
            kind::META => ("META", |body| Ok(Self::Meta(parse_meta(body)?))),
            kind::ERROR => ("ERROR", |body| Ok(Self::Error(parse_error(body)?))),
            kind::SUBSCRIBE => ("SUBSCRIBE", |body| {
                Ok(Self::Subscribe(parse_subscribe(body)?))
            }),
            kind::SUBSCRIBE_OK => ("SUBSCRIBE_OK", |body| {
                Ok(Self::SubscribeOk {
                    request: body.varint()?,
                })
            }),
            kind::UNSUBSCRIBE => ("UNSUBSCRIBE", |body| {
                Ok(Self::Unsubscribe {
                    request: body.varint()?,
                })
            }),
            kind::REQUEST => ("REQUEST", |body| Ok(Self::Request(parse_request(body)?))),
            kind::CREDIT => ("CREDIT", parse_credit),
            kind::STOP => ("STOP", parse_stop),
            kind::REJECT => ("REJECT", parse_reject),
            kind::RANK => ("RANK", parse_rank),
            kind::GOAWAY => ("GOAWAY", |body| {
                Ok(Self::GoAway {
                    drain_ms: body.varint()?,
                })
            }),
            kind::GET_HASHES => ("GET_HASHES", parse_get_hashes),
            kind::GET_CHECKS => ("GET_CHECKS", parse_get_checks),
            kind::CHECKS => ("CHECKS", parse_checks),
            kind::BLAME => ("BLAME", parse_blame),
            kind::HAVE => ("HAVE", parse_have),
            kind::OFFER => ("OFFER", parse_offer),
            kind::RESCHEDULE => ("RESCHEDULE", parse_reschedule),
            kind::PEERS => ("PEERS", parse_peers),
            kind::OFFER_PAGE => ("OFFER_PAGE", parse_offer_page),
            kind::PAGE => ("PAGE", parse_page),
            kind::PAGES => ("PAGES", parse_pages),
            kind::SIGNAL => ("SIGNAL", parse_signal),
            kind::ALTERNATES => ("ALTERNATES", parse_alternates),
            other => return Err(Violation::UnknownFrame(other)),
        };
        // The rest of the body are fields of a newer version.
        parser(&mut Body(body)).map_err(|fault| match fault {
            Fault::Malformed => Violation::Malformed(name),
            Fault::Violation(violation) => violation,
        })
    }
}

/// Appends a HELLO with one unknown parameter, and an unknown frame behind it. A side that cannot
/// skip them fails at once, not when a newer version first needs it. `random` chooses both.
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

/// Appends an unknown frame without a body, chosen by `random`. It says nothing, but QUIC
/// acknowledges it: a side that hears nothing learns whether the other one still lives.
pub fn encode_knock(random: u32, out: &mut Vec<u8>) {
    varint::write(grease(random), out);
    varint::write(0, out);
}

/// A number that stays free for ever, both as a HELLO parameter and as a frame type. All of them
/// are odd: a frame of an unknown even type ends the connection.
const fn grease(random: u32) -> u64 {
    GREASE_STEP * (random % GREASE_NUMBERS + 1) as u64 + 0x21
}

#[cfg(test)]
mod tests;
