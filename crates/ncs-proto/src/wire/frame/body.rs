//! The body of a frame: its fields as they are read, and the common ones as they are written.

use bytes::{Buf, Bytes};

use crate::object::SegmentId;
use crate::wire::message::{AGENT_MAX, PATH_MAX, TICKET_MAX, Ticket, is_path};
use crate::wire::{Violation, varint};

/// Most bytes of a frame's body.
pub const BODY_MAX: usize = 65_535;

/// Why a body is not accepted.
pub(super) enum Fault {
    Malformed,
    Violation(Violation),
}

/// The unread rest of a body.
pub(super) struct Body(pub(super) Bytes);

impl Body {
    /// Whether everything is read.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A varint.
    pub(super) fn varint(&mut self) -> Result<u64, Fault> {
        let (value, length) = varint::read(&self.0)
            .ok()
            .flatten()
            .ok_or(Fault::Malformed)?;
        self.0.advance(length);
        Ok(value)
    }

    /// A varint that fits the narrower type of its field.
    pub(super) fn at_most<T: TryFrom<u64>>(&mut self) -> Result<T, Fault> {
        T::try_from(self.varint()?).map_err(|_| Fault::Malformed)
    }

    /// A varint that counts at most `max` things.
    pub(super) fn length(&mut self, max: usize) -> Result<usize, Fault> {
        usize::try_from(self.varint()?)
            .ok()
            .filter(|length| *length <= max)
            .ok_or(Fault::Malformed)
    }

    /// This many bytes.
    pub(super) fn take(&mut self, length: usize) -> Result<Bytes, Fault> {
        if length > self.0.len() {
            Err(Fault::Malformed)
        } else {
            Ok(self.0.split_to(length))
        }
    }

    /// An array of a fixed length.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let bytes = self.take(N)?;
        <[u8; N]>::try_from(&bytes[..]).map_err(|_| Fault::Malformed)
    }

    /// A byte.
    pub(super) fn u8(&mut self) -> Result<u8, Fault> {
        self.array().map(u8::from_be_bytes)
    }

    /// A number of two bytes, the higher one first.
    pub(super) fn u16(&mut self) -> Result<u16, Fault> {
        self.array().map(u16::from_be_bytes)
    }

    /// The id of a segment.
    pub(super) fn segment(&mut self) -> Result<SegmentId, Fault> {
        self.array().map(SegmentId::from_bytes)
    }

    /// A ticket, which is not empty.
    pub(super) fn ticket(&mut self) -> Result<Ticket, Fault> {
        let length = self.length(TICKET_MAX)?;
        if length == 0 {
            Err(Fault::Malformed)
        } else {
            self.take(length).map(Ticket)
        }
    }

    /// A text of at most `max` bytes.
    pub(super) fn text(&mut self, max: usize) -> Result<String, Fault> {
        let length = self.length(max)?;
        let bytes = self.take(length)?;
        String::from_utf8(bytes.into()).map_err(|_| Fault::Malformed)
    }

    /// The path of an object.
    pub(super) fn path(&mut self) -> Result<String, Fault> {
        let path = self.text(PATH_MAX)?;
        if is_path(&path) {
            Ok(path)
        } else {
            Err(Fault::Malformed)
        }
    }

    /// The whole rest as the name of a program.
    pub(super) fn rest_as_agent(&mut self) -> Result<String, Fault> {
        let bytes = self.take(self.0.len())?;
        if bytes.len() > AGENT_MAX
            || !bytes
                .iter()
                .all(|byte| byte.is_ascii_graphic() || *byte == b' ')
        {
            return Err(Fault::Malformed);
        }
        String::from_utf8(bytes.into()).map_err(|_| Fault::Malformed)
    }

    /// The whole rest as a list of numbers that has to contain `wanted`. `tell` gets each of them.
    pub(super) fn list_with(
        &mut self,
        wanted: u64,
        what: &'static str,
        mut tell: impl FnMut(u64),
    ) -> Result<(), Fault> {
        let mut found = false;
        while !self.0.is_empty() {
            let value = self.varint()?;
            found |= value == wanted;
            tell(value);
        }
        if found {
            Ok(())
        } else {
            Err(Fault::Violation(Violation::Unsupported(what)))
        }
    }
}

/// Writes a body of one varint, and returns its type.
pub(super) fn write_only(kind: u64, value: u64, out: &mut Vec<u8>) -> u64 {
    varint::write(value, out);
    kind
}

/// Writes the length of a text, and the text.
pub(super) fn write_text(text: &str, max: usize, out: &mut Vec<u8>) {
    debug_assert!(
        text.len() <= max,
        "a text of {} bytes where {max} are the most",
        text.len()
    );
    varint::write(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

/// Writes the length of a ticket, and the ticket.
pub(super) fn write_ticket(ticket: &Ticket, out: &mut Vec<u8>) {
    debug_assert!(
        (1..=TICKET_MAX).contains(&ticket.0.len()),
        "a ticket of {} bytes",
        ticket.0.len()
    );
    varint::write(ticket.0.len() as u64, out);
    out.extend_from_slice(&ticket.0);
}
