//! OFFER_PAGE, PAGE, PAGES and SIGNAL: web pages that serve each other.

use super::body::{Body, Fault, write_ticket};
use super::kind;
use crate::object::SegmentId;
use crate::wire::message::{Message, PEERS_MAX, PageIntroduction, SIGNAL_MAX};
use crate::wire::varint;

pub(super) fn write_offer_page(serves: bool, out: &mut Vec<u8>) -> u64 {
    out.push(serves.into());
    kind::OFFER_PAGE
}

pub(super) fn parse_offer_page(body: &mut Body) -> Result<Message, Fault> {
    let serves = match body.u8()? {
        0 => false,
        1 => true,
        _ => return Err(Fault::Malformed),
    };
    Ok(Message::OfferPage { serves })
}

pub(super) fn write_page(identity: &[u8; 32], out: &mut Vec<u8>) -> u64 {
    out.extend_from_slice(identity);
    kind::PAGE
}

pub(super) fn parse_page(body: &mut Body) -> Result<Message, Fault> {
    let identity = body.array()?;
    Ok(Message::Page { identity })
}

pub(super) fn write_pages(
    segment: SegmentId,
    pages: &[PageIntroduction],
    out: &mut Vec<u8>,
) -> u64 {
    debug_assert!(pages.len() <= PEERS_MAX, "{} pages", pages.len());
    out.extend_from_slice(segment.as_bytes());
    varint::write(pages.len() as u64, out);
    for PageIntroduction {
        identity,
        lasts_ms,
        ticket,
    } in pages
    {
        out.extend_from_slice(identity);
        varint::write(*lasts_ms, out);
        write_ticket(ticket, out);
    }
    kind::PAGES
}

pub(super) fn parse_pages(body: &mut Body) -> Result<Message, Fault> {
    let segment = body.segment()?;
    let count = body.length(PEERS_MAX)?;
    let mut pages = Vec::with_capacity(count);
    for _ in 0..count {
        pages.push(PageIntroduction {
            identity: body.array()?,
            lasts_ms: body.varint()?,
            ticket: body.ticket()?,
        });
    }
    Ok(Message::Pages { segment, pages })
}

pub(super) fn write_signal(page: &[u8; 32], bytes: &[u8], out: &mut Vec<u8>) -> u64 {
    debug_assert!(
        (1..=SIGNAL_MAX).contains(&bytes.len()),
        "a signal of {} bytes",
        bytes.len()
    );
    out.extend_from_slice(page);
    varint::write(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
    kind::SIGNAL
}

pub(super) fn parse_signal(body: &mut Body) -> Result<Message, Fault> {
    let page = body.array()?;
    let length = body.length(SIGNAL_MAX)?;
    if length == 0 {
        return Err(Fault::Malformed);
    }
    let bytes = body.take(length)?;
    Ok(Message::Signal { page, bytes })
}
