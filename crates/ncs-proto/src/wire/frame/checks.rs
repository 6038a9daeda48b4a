//! GET_HASHES, GET_CHECKS, CHECKS and BLAME: hashes and checksums of blocks, and reports of wrong
//! ones.

use super::body::{Body, Fault};
use super::coding::{parse_meant, write_meant};
use super::kind;
use crate::object::{SegmentId, Shape};
use crate::wire::message::{COLUMNS_MAX, Checks, GetChecks, Meant, Message};
use crate::wire::varint;

pub(super) fn write_get_hashes(
    request: u64,
    segment: SegmentId,
    meant: Meant,
    out: &mut Vec<u8>,
) -> u64 {
    varint::write(request, out);
    out.extend_from_slice(segment.as_bytes());
    write_meant(meant, out);
    kind::GET_HASHES
}

pub(super) fn parse_get_hashes(body: &mut Body) -> Result<Message, Fault> {
    Ok(Message::GetHashes {
        request: body.varint()?,
        segment: body.segment()?,
        meant: parse_meant(body)?,
    })
}

pub(super) fn write_get_checks(query: &GetChecks, out: &mut Vec<u8>) -> u64 {
    let GetChecks {
        request,
        segment,
        generation,
        nonce,
        meant,
    } = query;
    varint::write(*request, out);
    out.extend_from_slice(segment.as_bytes());
    varint::write(u64::from(*generation), out);
    out.extend_from_slice(nonce);
    write_meant(*meant, out);
    kind::GET_CHECKS
}

pub(super) fn parse_get_checks(body: &mut Body) -> Result<Message, Fault> {
    let (request, segment, generation) = (body.varint()?, body.segment()?, body.at_most()?);
    let nonce = body.array()?;
    Ok(Message::GetChecks(GetChecks {
        request,
        segment,
        generation,
        nonce,
        meant: parse_meant(body)?,
    }))
}

pub(super) fn write_checks(checks: &Checks, out: &mut Vec<u8>) -> u64 {
    debug_assert!(
        (1..=COLUMNS_MAX).contains(&checks.columns),
        "{} columns",
        checks.columns
    );
    varint::write(checks.request, out);
    out.extend_from_slice(&checks.seed);
    out.push(checks.columns);
    varint::write(
        (checks.projections.len() / usize::from(checks.columns)) as u64,
        out,
    );
    out.extend_from_slice(&checks.projections);
    let signature = checks
        .signature
        .as_ref()
        .map_or(&[][..], |signature| signature);
    varint::write(signature.len() as u64, out);
    out.extend_from_slice(signature);
    kind::CHECKS
}

pub(super) fn parse_checks(body: &mut Body) -> Result<Message, Fault> {
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
    Ok(Message::Checks(Checks {
        request,
        seed,
        columns,
        projections,
        signature,
    }))
}

impl Checks {
    /// The bytes that are signed in the answer to `asked`: `docs/protocol.md`, section 3.
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

pub(super) fn write_blame(
    segment: SegmentId,
    generation: u32,
    blocks: u32,
    identity: &[u8; 32],
    out: &mut Vec<u8>,
) -> u64 {
    out.extend_from_slice(segment.as_bytes());
    varint::write(u64::from(generation), out);
    varint::write(u64::from(blocks), out);
    out.extend_from_slice(identity);
    kind::BLAME
}

pub(super) fn parse_blame(body: &mut Body) -> Result<Message, Fault> {
    let (segment, generation, blocks) = (body.segment()?, body.at_most()?, body.at_most()?);
    Ok(Message::Blame {
        segment,
        generation,
        blocks,
        identity: body.array()?,
    })
}
