//! Codes that tell why a connection was closed, or a request refused. Both share one table.

use crate::object::RefusalCode;

/// Added to a [`CloseCode`] or [`RefusalCode`] where QUIC carries it: CONNECTION_CLOSE,
/// RESET_STREAM and STOP_SENDING.
pub const CODE_BASE: u32 = 0x4e_4300;

/// Why a connection was closed or a stream abandoned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseCode {
    /// No error; on STOP_SENDING: enough blocks have come.
    Done,
    /// A malformed frame, or a stream that is not allowed.
    Protocol,
    /// No common minor version.
    Version,
    /// Not authorised.
    Auth,
    /// A declared limit was exceeded.
    Limit,
    /// Blocks without credit, or redundant ones without end.
    Flood,
    /// A block was proved wrong.
    Pollution,
    /// No HELLO, or no progress, in time.
    Timeout,
    /// Overloaded.
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

    /// Its name in `docs/protocol.md`.
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
        Self::ALL
            .into_iter()
            .find(|known| u64::from(known.quic()) == code)
    }
}

impl RefusalCode {
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

    /// Its name in `docs/protocol.md`.
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

    /// The code behind a number. An unknown one counts as a fault of the sender.
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
        use RefusalCode::{
            Changed, Deadline, Forbidden, GoingAway, Internal, Limit, Origin, Overload, Unknown,
        };
        for code in [
            Unknown, Deadline, Overload, Limit, Origin, Changed, Forbidden, GoingAway, Internal,
        ] {
            assert_eq!(RefusalCode::from_value(u64::from(code.value())), code);
        }
        assert_eq!(RefusalCode::from_value(u64::MAX), Internal);
    }
}
