//! Codes, and the coding that a message means a segment with.

use super::body::{Body, Fault};
use super::codec;
use crate::object::{Codec, Coding, HashGroup};
use crate::wire::message::{CODING_MAX, Meant};
use crate::wire::{Violation, varint};

/// Writes a code and its parameters.
pub(super) fn write_codec(codec: Codec, out: &mut Vec<u8>) {
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

/// Reads a code other than random linear coding over bytes, which needs no number in META.
pub(super) fn parse_codec(body: &mut Body) -> Result<Codec, Fault> {
    Ok(match body.varint()? {
        codec::RAPTORQ => Codec::RaptorQ,
        codec::REED_SOLOMON => Codec::ReedSolomon {
            parity: body.at_most()?,
        },
        codec::RLNC_Q => Codec::RlncQ {
            group: HashGroup::from_number(body.varint()?).ok_or(Fault::Malformed)?,
        },
        // Our HELLO does not list it.
        _ => return Err(Fault::Violation(Violation::Limit("codec of META"))),
    })
}

/// Writes the coding of the segment that a query means, behind its last field: peers that do not
/// know this field skip it.
pub(super) fn write_meant(meant: Meant, out: &mut Vec<u8>) {
    if meant != Meant::LastNamed {
        write_coding(meant, out);
    }
}

/// Writes the length of a coding, and the coding.
pub(super) fn write_coding(meant: Meant, out: &mut Vec<u8>) {
    let mut coding = Vec::new();
    match meant {
        Meant::LastNamed => {}
        Meant::Foreign => coding.push(0),
        Meant::Coded(Coding {
            block_bytes,
            n_max,
            codec,
        }) => {
            varint::write(u64::from(block_bytes), &mut coding);
            varint::write(u64::from(n_max), &mut coding);
            write_codec(codec, &mut coding);
        }
    }
    varint::write(coding.len() as u64, out);
    out.append(&mut coding);
}

/// Reads the coding that a query means, if it names one.
pub(super) fn parse_meant(body: &mut Body) -> Result<Meant, Fault> {
    if body.is_empty() {
        Ok(Meant::LastNamed)
    } else {
        parse_said(body)
    }
}

/// Reads the length of a coding, and the coding. A coding that makes no sense to this version may
/// make sense to a newer one: no such segment exists here, and that is the answer.
pub(super) fn parse_said(body: &mut Body) -> Result<Meant, Fault> {
    let length = body.length(CODING_MAX)?;
    let mut coding = Body(body.take(length)?);
    if length == 0 {
        return Ok(Meant::LastNamed);
    }
    Ok(parse_coding(&mut coding).map_or(Meant::Foreign, Meant::Coded))
}

/// Reads a coding; `None` if it makes no sense here.
fn parse_coding(body: &mut Body) -> Option<Coding> {
    let (block_bytes, n_max) = (body.at_most().ok()?, body.at_most().ok()?);
    let is_linear = matches!(varint::read(&body.0), Ok(Some((codec::RLNC, 1))));
    let codec = if is_linear {
        body.u8().map(|_| Codec::Rlnc)
    } else {
        parse_codec(body)
    }
    .ok()?;
    body.is_empty().then_some(Coding {
        block_bytes,
        n_max,
        codec,
    })
}
