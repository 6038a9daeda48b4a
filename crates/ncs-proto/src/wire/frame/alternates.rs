//! ALTERNATES: other servers of the same streams.

use super::body::{Body, Fault, write_text};
use super::kind;
use crate::wire::message::{
    ALTERNATES_MAX, Alternate, Message, SERVER_ADDRESS_MAX, is_server_address,
};
use crate::wire::varint;

/// When to go to one of them.
mod urgency {
    pub(super) const WHEN_SILENT: u64 = 0;
    pub(super) const NOW: u64 = 1;
}

pub(super) fn write_alternates(moves: bool, servers: &[Alternate], out: &mut Vec<u8>) -> u64 {
    debug_assert!(servers.len() <= ALTERNATES_MAX, "{} servers", servers.len());
    let urgency = match moves {
        true => urgency::NOW,
        false => urgency::WHEN_SILENT,
    };
    varint::write(urgency, out);
    varint::write(servers.len() as u64, out);
    for Alternate { address, identity } in servers {
        debug_assert!(is_server_address(address), "{address} is no address");
        write_text(address, SERVER_ADDRESS_MAX, out);
        let identity = identity.as_ref().map_or(&[][..], |identity| identity);
        varint::write(identity.len() as u64, out);
        out.extend_from_slice(identity);
    }
    kind::ALTERNATES
}

pub(super) fn parse_alternates(body: &mut Body) -> Result<Message, Fault> {
    // Another urgency, of a newer version, does not press.
    let moves = body.varint()? == urgency::NOW;
    let count = body.length(ALTERNATES_MAX)?;
    let mut servers = Vec::with_capacity(count);
    for _ in 0..count {
        let address = body.text(SERVER_ADDRESS_MAX)?;
        if !is_server_address(&address) {
            return Err(Fault::Malformed);
        }
        let identity = match body.varint()? {
            0 => None,
            32 => Some(body.array()?),
            _ => return Err(Fault::Malformed),
        };
        servers.push(Alternate { address, identity });
    }
    Ok(Message::Alternates { moves, servers })
}
