//! REQUEST and the messages about open requests: CREDIT, RESCHEDULE, STOP, REJECT and RANK.

use super::body::{Body, Fault};
use super::coding::{parse_meant, write_meant};
use super::kind;
use crate::object::{SegmentId, Shape};
use crate::wire::message::{Accept, Message, RANGES_MAX, Request, RequestCode, StopReason};
use crate::wire::varint;

/// Bits of a REQUEST's flags.
mod accept {
    pub(super) const CODED: u8 = 1;
    pub(super) const SYSTEMATIC: u8 = 2;
    pub(super) const DATAGRAMS: u8 = 4;
    pub(super) const RECODED: u8 = 8;
}

pub(super) fn write_request(request: &Request, out: &mut Vec<u8>) -> u64 {
    debug_assert!(
        request.ranges.len() <= RANGES_MAX,
        "{} ranges",
        request.ranges.len()
    );
    out.extend_from_slice(&request.alias.to_be_bytes());
    out.extend_from_slice(request.segment.as_bytes());
    varint::write(u64::from(request.generation), out);
    varint::write(request.deadline_ms, out);
    varint::write(u64::from(request.credit), out);
    let Accept {
        coded,
        systematic,
        datagrams,
        recoded,
    } = request.accept;
    let bits = [
        (coded, accept::CODED),
        (systematic, accept::SYSTEMATIC),
        (datagrams, accept::DATAGRAMS),
        (recoded, accept::RECODED),
    ];
    out.push(
        bits.into_iter()
            .filter(|(set, _)| *set)
            .fold(0, |flags, (_, bit)| flags | bit),
    );
    varint::write(request.ranges.len() as u64, out);
    for (first, count) in &request.ranges {
        varint::write(u64::from(*first), out);
        varint::write(u64::from(*count), out);
    }
    write_meant(request.meant, out);
    kind::REQUEST
}

pub(super) fn parse_request(body: &mut Body) -> Result<Request, Fault> {
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
        let next = first
            .checked_add(blocks)
            .filter(|next| blocks > 0 && first >= end && *next <= Shape::N_LIMIT);
        end = next.ok_or(Fault::Malformed)?;
        ranges.push((first, blocks));
    }
    let meant = parse_meant(body)?;
    Ok(Request {
        alias,
        segment,
        generation,
        deadline_ms,
        credit,
        accept,
        ranges,
        meant,
    })
}

pub(super) fn write_credit(alias: u16, blocks: u32, out: &mut Vec<u8>) -> u64 {
    out.extend_from_slice(&alias.to_be_bytes());
    varint::write(u64::from(blocks), out);
    kind::CREDIT
}

pub(super) fn parse_credit(body: &mut Body) -> Result<Message, Fault> {
    let (alias, blocks) = (body.u16()?, body.at_most()?);
    if blocks > 0 {
        Ok(Message::Credit { alias, blocks })
    } else {
        Err(Fault::Malformed)
    }
}

pub(super) fn write_reschedule(alias: u16, deadline_ms: u64, out: &mut Vec<u8>) -> u64 {
    out.extend_from_slice(&alias.to_be_bytes());
    varint::write(deadline_ms, out);
    kind::RESCHEDULE
}

pub(super) fn parse_reschedule(body: &mut Body) -> Result<Message, Fault> {
    Ok(Message::Reschedule {
        alias: body.u16()?,
        deadline_ms: body.varint()?,
    })
}

pub(super) fn write_stop(alias: u16, reason: StopReason, out: &mut Vec<u8>) -> u64 {
    out.extend_from_slice(&alias.to_be_bytes());
    varint::write(stop_value(reason), out);
    kind::STOP
}

pub(super) fn parse_stop(body: &mut Body) -> Result<Message, Fault> {
    Ok(Message::Stop {
        alias: body.u16()?,
        reason: stop_reason(body.varint()?),
    })
}

pub(super) fn write_reject(
    alias: u16,
    code: RequestCode,
    retry_after_ms: u64,
    out: &mut Vec<u8>,
) -> u64 {
    out.extend_from_slice(&alias.to_be_bytes());
    varint::write(u64::from(code.value()), out);
    varint::write(retry_after_ms, out);
    kind::REJECT
}

pub(super) fn parse_reject(body: &mut Body) -> Result<Message, Fault> {
    let (alias, code) = (body.u16()?, RequestCode::from_value(body.varint()?));
    Ok(Message::Reject {
        alias,
        code,
        retry_after_ms: body.varint()?,
    })
}

/// `counts` are the rank, and the redundant and lost blocks.
pub(super) fn write_rank(alias: u16, counts: [u32; 3], out: &mut Vec<u8>) -> u64 {
    out.extend_from_slice(&alias.to_be_bytes());
    counts
        .into_iter()
        .for_each(|count| varint::write(u64::from(count), out));
    kind::RANK
}

pub(super) fn parse_rank(body: &mut Body) -> Result<Message, Fault> {
    let alias = body.u16()?;
    Ok(Message::Rank {
        alias,
        rank: body.at_most()?,
        useless: body.at_most()?,
        lost: body.at_most()?,
    })
}

/// The number of a reason.
const fn stop_value(reason: StopReason) -> u64 {
    match reason {
        StopReason::Complete => 0,
        StopReason::Deadline => 1,
        StopReason::Cancelled => 2,
    }
}

/// The reason of a number. An unknown one counts as a cancellation.
const fn stop_reason(value: u64) -> StopReason {
    match value {
        0 => StopReason::Complete,
        1 => StopReason::Deadline,
        _ => StopReason::Cancelled,
    }
}
