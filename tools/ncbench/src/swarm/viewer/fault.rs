//! What ends a connection that the viewer did not end, and whether it is a refusal.

use ncserverd::wire::{CloseCode, Violation};
use quinn::{ConnectionError, TransportErrorCode};

/// What ends a connection that the viewer did not end.
pub(super) enum Fault {
    Connection(ConnectionError),
    Violation(Violation),
    Stream(String),
}

impl Fault {
    pub(super) fn read(error: quinn::ReadError) -> Self {
        match error {
            quinn::ReadError::ConnectionLost(error) => Self::Connection(error),
            other => Self::Stream(other.to_string()),
        }
    }

    pub(super) fn written(error: quinn::WriteError) -> Self {
        match error {
            quinn::WriteError::ConnectionLost(error) => Self::Connection(error),
            other => Self::Stream(other.to_string()),
        }
    }
}

impl From<ConnectionError> for Fault {
    fn from(error: ConnectionError) -> Self {
        Self::Connection(error)
    }
}

impl From<Violation> for Fault {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

/// Whether the server has said that it does not serve: in a code of ours, or, where it knows of no
/// end of the handshake yet, in the transport's word for any such code (RFC 9000, section 10.2.3).
pub(super) fn is_refusal(error: &ConnectionError, is_greeted: bool) -> bool {
    match error {
        ConnectionError::ApplicationClosed(close) => [CloseCode::Overload, CloseCode::GoingAway]
            .map(|code| code.quic().into())
            .contains(&close.error_code),
        ConnectionError::ConnectionClosed(close) => {
            !is_greeted && close.error_code == TransportErrorCode::APPLICATION_ERROR
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use quinn::{ApplicationClose, ConnectionClose};

    use super::*;

    #[test]
    fn who_is_told_to_come_again_is_refused_and_nobody_else() {
        let ours = |code: CloseCode| {
            ConnectionError::ApplicationClosed(ApplicationClose {
                error_code: code.quic().into(),
                reason: Bytes::new(),
            })
        };
        let transport = |error_code| {
            ConnectionError::ConnectionClosed(ConnectionClose {
                error_code,
                frame_type: None,
                reason: Bytes::new(),
            })
        };
        for (error, before, after) in [
            (ours(CloseCode::Overload), true, true),
            (ours(CloseCode::GoingAway), true, true),
            (ours(CloseCode::Done), false, false),
            // What becomes of a code of ours that is said before the end of the handshake is known.
            (
                transport(TransportErrorCode::APPLICATION_ERROR),
                true,
                false,
            ),
            (
                transport(TransportErrorCode::PROTOCOL_VIOLATION),
                false,
                false,
            ),
            (ConnectionError::TimedOut, false, false),
        ] {
            assert_eq!(
                (is_refusal(&error, false), is_refusal(&error, true)),
                (before, after),
                "{error}"
            );
        }
    }
}
