//! Additions that a later version may make, and that every version has to skip.

use ncserverd::wire::message::{Meant, Message};
use nctest::number::varint;

use crate::record::{frame, framed};
use crate::viewer::parse;

/// Whether a recorded side speaks as it did, or as a later version of it might.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Age {
    AsRecorded,
    /// With types, parameters, fields and flags that nobody knows.
    Later,
}

/// An odd type and parameter without meaning.
const UNKNOWN: u64 = 0x2001;
/// What an unknown field has.
const FIELD: &[u8] = &[0xab, 0xcd, 0xef];

const HELLO: u64 = 0x00;
const META: u64 = 0x0e;
const REQUEST: u64 = 0x10;
const HAVE: u64 = 0x19;
const GET_CHECKS: u64 = 0x1a;
const GET: u64 = 0x24;
const GET_HASHES: u64 = 0x26;

impl Age {
    /// A frame of the recorded side as this one sends it.
    pub(crate) fn frame(self, bytes: &[u8]) -> Vec<u8> {
        let Some((kind, body, _)) = frame(bytes).filter(|_| self == Self::Later) else {
            return bytes.to_vec();
        };
        let unknown = framed(UNKNOWN, FIELD);
        let body = match kind {
            HELLO => {
                // The count of parameters is below 64, and takes a byte.
                let parameter = [&varint(UNKNOWN)[..], &[3], FIELD].concat();
                [&[body[0] + 1], &body[1..], &parameter, FIELD].concat()
            }
            // Their last field may be left out, and recorded messages of these kinds have it, or
            // not: a field behind it would be taken for it.
            HAVE | GET_CHECKS | GET_HASHES => body.to_vec(),
            META if !has_tree(bytes) => [body, &[0], FIELD].concat(),
            // Their last field, flags, is left out where it is 0.
            GET => [body, &[0], FIELD].concat(),
            REQUEST if !names_coding(bytes) => [body, &[0], FIELD].concat(),
            _ => [body, FIELD].concat(),
        };
        [unknown, framed(kind, &body)].concat()
    }

    /// The byte of flags in a datagram.
    pub(crate) fn flags(self, flags: u8) -> u8 {
        match self {
            Self::AsRecorded => flags,
            Self::Later => flags | 0x80,
        }
    }
}

fn has_tree(bytes: &[u8]) -> bool {
    matches!(parse(bytes), Some(Message::Meta(meta)) if meta.tree.is_some())
}

fn names_coding(bytes: &[u8]) -> bool {
    matches!(parse(bytes), Some(Message::Request(request)) if request.meant != Meant::LastNamed)
}
