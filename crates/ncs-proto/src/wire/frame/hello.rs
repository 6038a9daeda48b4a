//! HELLO: what a side supports, as a list of parameters.

use super::body::{BODY_MAX, Body, Fault, write_text};
use super::codec;
use super::kind;
use crate::wire::message::{AGENT_MAX, Codecs, Hello, Message, PARAMETERS_MAX, VisitId};
use crate::wire::varint;

/// HELLO parameters. 2 (roles), 9, and 12 to 14 of the drafts are reserved; `0x3e * N + 0x21` exist
/// to be skipped.
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
    pub(super) const SENT: u64 = 19;
}

/// GF(2^8) with polynomial 0x11D and generator 2.
const FIELD_11D: u64 = 0x1d;
/// Philox4x32-10.
const GENERATOR_PHILOX: u64 = 1;

pub(super) fn write_hello(hello: &Hello, out: &mut Vec<u8>) -> u64 {
    write_hello_with(hello, None, out)
}

/// Writes HELLO with an additional parameter behind its own.
pub(super) fn write_hello_with(
    hello: &Hello,
    extra: Option<(u64, &[u8])>,
    out: &mut Vec<u8>,
) -> u64 {
    let mut codecs = vec![codec::RLNC];
    codecs.extend(hello.codecs.raptorq.then_some(codec::RAPTORQ));
    codecs.extend(hello.codecs.reed_solomon.then_some(codec::REED_SOLOMON));
    codecs.extend(hello.codecs.gfq.then_some(codec::RLNC_Q));
    let numbers: [(u64, &[u64]); 9] = [
        (parameter::MINOR, &[hello.minor.0, hello.minor.1]),
        (parameter::CODECS, &codecs),
        (parameter::FIELDS, &[FIELD_11D]),
        (parameter::GENERATORS, &[GENERATOR_PHILOX]),
        (parameter::N_MAX, &[u64::from(hello.n_max)]),
        (
            parameter::BLOCK_BYTES_MAX,
            &[u64::from(hello.block_bytes_max)],
        ),
        (parameter::SEGMENT_BYTES_MAX, &[hello.segment_bytes_max]),
        (parameter::REQUESTS_MAX, &[u64::from(hello.requests_max)]),
        (parameter::CREDIT_MAX, &[u64::from(hello.credit_max)]),
    ];
    varint::write(
        numbers.len() as u64
            + 1
            + u64::from(hello.visit.is_some())
            + u64::from(hello.is_sent)
            + u64::from(extra.is_some()),
        out,
    );
    for (id, values) in numbers {
        let mut value = Vec::new();
        values
            .iter()
            .for_each(|number| varint::write(*number, &mut value));
        varint::write(id, out);
        varint::write(value.len() as u64, out);
        out.append(&mut value);
    }
    varint::write(parameter::AGENT, out);
    write_text(&hello.agent, AGENT_MAX, out);
    let visit = hello
        .visit
        .as_ref()
        .map(|visit| (parameter::VISIT, &visit.0[..]));
    let sent = hello.is_sent.then_some((parameter::SENT, &[1][..]));
    for (id, value) in visit.into_iter().chain(sent).chain(extra) {
        varint::write(id, out);
        varint::write(value.len() as u64, out);
        out.extend_from_slice(value);
    }
    kind::HELLO
}

pub(super) fn parse_hello(body: &mut Body) -> Result<Message, Fault> {
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
                    codec::RLNC_Q => hello.codecs.gfq = true,
                    _ => {}
                })?;
            }
            parameter::FIELDS => value.list_with(FIELD_11D, "field", |_| {})?,
            parameter::GENERATORS => {
                value.list_with(GENERATOR_PHILOX, "coefficient generator", |_| {})?
            }
            parameter::N_MAX => hello.n_max = value.at_most()?,
            parameter::BLOCK_BYTES_MAX => hello.block_bytes_max = value.at_most()?,
            parameter::SEGMENT_BYTES_MAX => hello.segment_bytes_max = value.varint()?,
            parameter::REQUESTS_MAX => hello.requests_max = value.at_most()?,
            parameter::CREDIT_MAX => hello.credit_max = value.at_most()?,
            parameter::AGENT => hello.agent = value.rest_as_agent()?,
            parameter::SENT => hello.is_sent = value.varint()? != 0,
            parameter::VISIT => hello.visit = Some(VisitId(value.array()?)),
            _ => continue,
        }
        if !value.is_empty() {
            return Err(Fault::Malformed);
        }
    }
    if hello.minor.0 > hello.minor.1 {
        return Err(Fault::Malformed);
    }
    Ok(Message::Hello(hello))
}
