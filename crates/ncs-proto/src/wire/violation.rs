//! What no correct peer sends.

use super::codes::CloseCode;

/// Something that no correct peer sends. The connection ends with [`Violation::close_code`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A control frame of a type that may not be skipped.
    #[error("control frame of unknown type {0:#x}")]
    UnknownFrame(u64),
    /// A control frame above [`BODY_MAX`](super::frame::BODY_MAX).
    #[error("control frame too long: {0} bytes")]
    FrameTooLong(u64),
    /// A field that is cut short, out of range, not minimally encoded, or followed by unknown
    /// bytes.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// A message that the state of the conversation does not allow.
    #[error("unexpected {0}")]
    Unexpected(&'static str),
    /// More than HELLO allowed.
    #[error("limit exceeded: {0}")]
    Limit(&'static str),
    /// Blocks or frames that were not requested.
    #[error("flooded with {0}")]
    Flood(&'static str),
    /// The other side supports no minor version of ours.
    #[error("no common minor version")]
    Version,
    /// The other side lacks our codec, field or coefficient generator.
    #[error("no common {0}")]
    Unsupported(&'static str),
    /// The other side has shown no valid credential.
    #[error("not authorised")]
    Unauthorised,
    /// The other side did not do something in time.
    #[error("no {0} in time")]
    Timeout(&'static str),
}

impl Violation {
    /// The code of CONNECTION_CLOSE.
    pub const fn close_code(self) -> CloseCode {
        match self {
            Self::UnknownFrame(_)
            | Self::FrameTooLong(_)
            | Self::Malformed(_)
            | Self::Unexpected(_) => CloseCode::Protocol,
            Self::Limit(_) => CloseCode::Limit,
            Self::Flood(_) => CloseCode::Flood,
            Self::Version => CloseCode::Version,
            Self::Unsupported(_) => CloseCode::Unsupported,
            Self::Unauthorised => CloseCode::Auth,
            Self::Timeout(_) => CloseCode::Timeout,
        }
    }
}
