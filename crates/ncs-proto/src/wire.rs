//! Bytes and messages of `ncs/1`: what travels, its limits and its error codes. `docs/protocol.md` is the authority.
//!
//! Everything here is a pure function from bytes to values or back. Parsing checks every limit before it allocates and yields
//! types that cannot be wrong; nothing in this module knows a socket, a clock or a task.

pub mod block;
pub mod frame;
pub mod message;
pub mod text;
mod varint;

use message::RequestCode;

/// The protocol and its major version, negotiated by TLS.
pub const ALPN: &[u8] = b"ncs/1";

/// The UDP port of a server that names none.
pub const DEFAULT_PORT: u16 = 4443;

/// The only minor version there is.
pub const MINOR: u64 = 0;

/// Added to a [`CloseCode`] or [`RequestCode`] where QUIC carries it: CONNECTION_CLOSE, RESET_STREAM and STOP_SENDING.
pub const CODE_BASE: u32 = 0x4e_4300;

/// Why a connection was closed or a stream abandoned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseCode {
    /// Nothing is wrong; on STOP_SENDING: enough blocks have come.
    Done,
    /// A malformed frame, or a stream that may not be there.
    Protocol,
    /// No common minor version.
    Version,
    /// Not authorised.
    Auth,
    /// A declared limit was exceeded.
    Limit,
    /// Blocks without credit, or useless ones without end.
    Flood,
    /// A block was proved to be wrong.
    Pollution,
    /// No HELLO, or no progress, in time.
    Timeout,
    /// Too much to do now.
    Overload,
    /// No common codec, field or coefficient generator.
    Unsupported,
    /// A fault of the side that closes.
    Internal,
    /// The side that closes restarts or drains.
    GoingAway,
}

impl CloseCode {
    const ALL: [Self; 12] = [
        Self::Done,
        Self::Protocol,
        Self::Version,
        Self::Auth,
        Self::Limit,
        Self::Flood,
        Self::Pollution,
        Self::Timeout,
        Self::Overload,
        Self::Unsupported,
        Self::Internal,
        Self::GoingAway,
    ];

    /// The number in QUIC's frames, [`CODE_BASE`] included.
    pub const fn quic(self) -> u32 {
        CODE_BASE
            + match self {
                Self::Done => 0,
                Self::Protocol => 1,
                Self::Version => 2,
                Self::Auth => 3,
                Self::Limit => 4,
                Self::Flood => 5,
                Self::Pollution => 6,
                Self::Timeout => 7,
                Self::Overload => 11,
                Self::Unsupported => 12,
                Self::Internal => 13,
                Self::GoingAway => 14,
            }
    }

    /// As `docs/protocol.md` names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "DONE",
            Self::Protocol => "PROTOCOL",
            Self::Version => "VERSION",
            Self::Auth => "AUTH",
            Self::Limit => "LIMIT",
            Self::Flood => "FLOOD",
            Self::Pollution => "POLLUTION",
            Self::Timeout => "TIMEOUT",
            Self::Overload => "OVERLOAD",
            Self::Unsupported => "UNSUPPORTED",
            Self::Internal => "INTERNAL",
            Self::GoingAway => "GOING_AWAY",
        }
    }

    /// The code behind a number in QUIC's frames; `None` for one that `ncs/1` does not define.
    pub fn from_quic(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|known| u64::from(known.quic()) == code)
    }
}

impl RequestCode {
    /// The number in ERROR and REJECT. It shares its table with [`CloseCode`].
    pub const fn value(self) -> u8 {
        match self {
            Self::Limit => 4,
            Self::Unknown => 8,
            Self::Deadline => 10,
            Self::Overload => 11,
            Self::Internal => 13,
            Self::GoingAway => 14,
            Self::Origin => 15,
            Self::Changed => 16,
            Self::Forbidden => 17,
        }
    }

    /// As `docs/protocol.md` names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Limit => "LIMIT",
            Self::Unknown => "UNKNOWN",
            Self::Deadline => "DEADLINE",
            Self::Overload => "OVERLOAD",
            Self::Internal => "INTERNAL",
            Self::GoingAway => "GOING_AWAY",
            Self::Origin => "ORIGIN",
            Self::Changed => "CHANGED",
            Self::Forbidden => "FORBIDDEN",
        }
    }

    /// The code behind a number; one that this version does not know counts as a fault of the sender.
    pub const fn from_value(value: u64) -> Self {
        match value {
            4 => Self::Limit,
            8 => Self::Unknown,
            10 => Self::Deadline,
            11 => Self::Overload,
            14 => Self::GoingAway,
            15 => Self::Origin,
            16 => Self::Changed,
            17 => Self::Forbidden,
            _ => Self::Internal,
        }
    }

    /// The number in RESET_STREAM, [`CODE_BASE`] included.
    pub const fn quic(self) -> u32 {
        CODE_BASE + self.value() as u32
    }
}

/// Something that no correct peer sends. The connection ends with [`Violation::close_code`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A control frame of a type that may not be skipped.
    #[error("control frame of unknown type {0:#x}")]
    UnknownFrame(u64),
    /// A control frame above [`frame::BODY_MAX`].
    #[error("control frame too long: {0} bytes")]
    FrameTooLong(u64),
    /// A field that is cut short, out of its range, not minimally encoded, or followed by bytes that belong to nothing.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// A message where the state of the conversation has no place for it.
    #[error("unexpected {0}")]
    Unexpected(&'static str),
    /// More than HELLO allowed.
    #[error("limit exceeded: {0}")]
    Limit(&'static str),
    /// Blocks or frames that were not asked for.
    #[error("flooded with {0}")]
    Flood(&'static str),
    /// The other side speaks no minor version of ours.
    #[error("no common minor version")]
    Version,
    /// The other side lacks our codec, field or coefficient generator.
    #[error("no common {0}")]
    Unsupported(&'static str),
    /// The other side has shown nothing that entitles it to anything.
    #[error("not authorised")]
    Unauthorised,
    /// The other side did not do something in time.
    #[error("no {0} in time")]
    Timeout(&'static str),
}

impl Violation {
    /// What CONNECTION_CLOSE says about it.
    pub const fn close_code(self) -> CloseCode {
        match self {
            Self::UnknownFrame(_) | Self::FrameTooLong(_) | Self::Malformed(_) | Self::Unexpected(_) => CloseCode::Protocol,
            Self::Limit(_) => CloseCode::Limit,
            Self::Flood(_) => CloseCode::Flood,
            Self::Version => CloseCode::Version,
            Self::Unsupported(_) => CloseCode::Unsupported,
            Self::Unauthorised => CloseCode::Auth,
            Self::Timeout(_) => CloseCode::Timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_codes_survive_the_wire() {
        for code in CloseCode::ALL {
            assert_eq!(CloseCode::from_quic(u64::from(code.quic())), Some(code));
        }
        assert_eq!(CloseCode::from_quic(0), None);
        assert_eq!(CloseCode::from_quic(u64::from(CODE_BASE) + 9), None);
    }

    #[test]
    fn request_codes_survive_the_wire() {
        use RequestCode::{Changed, Deadline, Forbidden, GoingAway, Internal, Limit, Origin, Overload, Unknown};
        for code in [Unknown, Deadline, Overload, Limit, Origin, Changed, Forbidden, GoingAway, Internal] {
            assert_eq!(RequestCode::from_value(u64::from(code.value())), code);
        }
        assert_eq!(RequestCode::from_value(u64::MAX), Internal);
    }
}
