//! What ends a connection that the viewer did not end, and whether it is a refusal.

use ncserverd::wire::message::REASON_MAX;
use ncserverd::wire::text::plain;
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

/// Whether the server has said that it restarts or drains.
pub(super) fn is_leaving(error: &ConnectionError) -> bool {
    matches!(error, ConnectionError::ApplicationClosed(close)
        if close.error_code == CloseCode::GoingAway.quic().into())
}

/// Whether the server has refused the handshake: only such a refusal comes before its end.
pub(super) fn is_refused_handshake(error: &ConnectionError) -> bool {
    match error {
        ConnectionError::ConnectionClosed(close)
            if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
        {
            true
        }
        _ => is_refusal(error, false),
    }
}

/// Whether the server has closed the connection, whatever its code.
pub(super) fn is_closed(error: &ConnectionError) -> bool {
    matches!(
        error,
        ConnectionError::ApplicationClosed(_) | ConnectionError::ConnectionClosed(_)
    )
}

/// Why a connection is over: by the code of a close, whose text is the server's own.
pub(in crate::swarm) fn reason(error: &ConnectionError) -> String {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            match CloseCode::from_quic(close.error_code.into_inner()) {
                Some(code) => format!("closed by the server: {}", code.name()),
                None => format!("closed by the server: unknown code {}", close.error_code),
            }
        }
        ConnectionError::ConnectionClosed(close) => {
            format!("closed by the server's transport: {}", close.error_code)
        }
        other => plain(&other.to_string(), REASON_MAX),
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
            (
                transport(TransportErrorCode::CONNECTION_REFUSED),
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
        let refused = transport(TransportErrorCode::CONNECTION_REFUSED);
        assert!(is_refused_handshake(&refused) && is_closed(&refused));
        assert!(is_refused_handshake(&ours(CloseCode::Overload)));
        let full = transport(TransportErrorCode::PROTOCOL_VIOLATION);
        assert!(!is_refused_handshake(&full) && !is_closed(&ConnectionError::TimedOut));
        assert!(is_leaving(&ours(CloseCode::GoingAway)) && !is_leaving(&refused));
        assert_eq!(reason(&ours(CloseCode::Auth)), "closed by the server: AUTH");
    }
}
