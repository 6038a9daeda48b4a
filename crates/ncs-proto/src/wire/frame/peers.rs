//! AUTH, HAVE, OFFER and PEERS: credentials, the segments that a peer holds, and introductions.

use super::body::{Body, Fault, write_text, write_ticket};
use super::coding::{parse_said, write_coding};
use super::kind;
use crate::object::SegmentId;
use crate::wire::message::{
    ADDRESS_MAX, Credential, HOLDINGS_MAX, Holding, HoldingState, Introduction, Meant, Message,
    PEERS_MAX, TOKEN_MAX, Token, is_token,
};
use crate::wire::varint;

/// Kinds of credentials in AUTH.
mod scheme {
    pub(super) const TOKEN: u64 = 1;
    pub(super) const TICKET: u64 = 2;
}

pub(super) fn write_auth(credential: &Credential, out: &mut Vec<u8>) -> u64 {
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

pub(super) fn parse_auth(body: &mut Body) -> Result<Message, Fault> {
    match body.varint()? {
        scheme::TOKEN => {
            let token = body.text(TOKEN_MAX)?;
            if is_token(&token) {
                Ok(Message::Auth(Credential::Token(Token(token))))
            } else {
                Err(Fault::Malformed)
            }
        }
        scheme::TICKET => Ok(Message::Auth(Credential::Ticket(body.ticket()?))),
        _ => Err(Fault::Malformed),
    }
}

pub(super) fn write_have(holdings: &[Holding], out: &mut Vec<u8>) -> u64 {
    debug_assert!(
        holdings.len() <= HOLDINGS_MAX,
        "{} holdings",
        holdings.len()
    );
    varint::write(holdings.len() as u64, out);
    for Holding { segment, state, .. } in holdings {
        out.extend_from_slice(segment.as_bytes());
        out.push(match state {
            HoldingState::Gone => 0,
            HoldingState::Partial => 1,
            HoldingState::Complete => 2,
        });
    }
    if holdings
        .iter()
        .any(|holding| holding.meant != Meant::LastNamed)
    {
        holdings
            .iter()
            .for_each(|holding| write_coding(holding.meant, out));
    }
    kind::HAVE
}

pub(super) fn parse_have(body: &mut Body) -> Result<Message, Fault> {
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
        holdings.push(Holding {
            segment,
            meant: Meant::LastNamed,
            state,
        });
    }
    if !body.is_empty() {
        for holding in &mut holdings {
            holding.meant = parse_said(body)?;
        }
    }
    Ok(Message::Have(holdings))
}

pub(super) fn write_offer(port: u16, identity: &[u8; 32], out: &mut Vec<u8>) -> u64 {
    out.extend_from_slice(&port.to_be_bytes());
    out.extend_from_slice(identity);
    kind::OFFER
}

pub(super) fn parse_offer(body: &mut Body) -> Result<Message, Fault> {
    Ok(Message::Offer {
        port: body.u16()?,
        identity: body.array()?,
    })
}

pub(super) fn write_peers(segment: SegmentId, peers: &[Introduction], out: &mut Vec<u8>) -> u64 {
    debug_assert!(peers.len() <= PEERS_MAX, "{} peers", peers.len());
    out.extend_from_slice(segment.as_bytes());
    varint::write(peers.len() as u64, out);
    for Introduction {
        address,
        identity,
        lasts_ms,
        ticket,
    } in peers
    {
        write_text(&address.to_string(), ADDRESS_MAX, out);
        out.extend_from_slice(identity);
        varint::write(*lasts_ms, out);
        write_ticket(ticket, out);
    }
    kind::PEERS
}

pub(super) fn parse_peers(body: &mut Body) -> Result<Message, Fault> {
    let segment = body.segment()?;
    let count = body.length(PEERS_MAX)?;
    let mut peers = Vec::with_capacity(count);
    for _ in 0..count {
        let address = body
            .text(ADDRESS_MAX)?
            .parse()
            .map_err(|_| Fault::Malformed)?;
        let (identity, lasts_ms) = (body.array()?, body.varint()?);
        peers.push(Introduction {
            address,
            identity,
            lasts_ms,
            ticket: body.ticket()?,
        });
    }
    Ok(Message::Peers { segment, peers })
}
