//! How a session ends, and what its peer is told.

use ncs_proto::wire::message::Alternate;
use ncs_proto::wire::{CloseCode, Violation, elsewhere};
use quinn::ConnectionError;

use crate::admission::{Ending, Limited};

/// How a session ended.
pub(super) enum End {
    Violation(Violation),
    /// Its token, or all connections together, reached the maximum.
    Limited,
    Connection,
    /// Another connection of the same client replaced it.
    Replaced,
    /// The server goes away; these others take its peers.
    Drained(Vec<Alternate>),
    Internal,
}

impl End {
    /// Maps the end of a session to a close code, here only.
    pub(super) fn close(&self) -> (CloseCode, String) {
        match self {
            Self::Violation(violation) => (violation.close_code(), violation.to_string()),
            Self::Limited => (
                CloseCode::Limit,
                "too many connections of this token or in total".to_owned(),
            ),
            Self::Connection => (CloseCode::Done, String::new()),
            Self::Replaced => (
                CloseCode::Done,
                "another connection of the same client replaced this one".to_owned(),
            ),
            Self::Drained(others) => (
                CloseCode::GoingAway,
                elsewhere::write("the server goes away", others),
            ),
            Self::Internal => (CloseCode::Internal, "the server stopped".to_owned()),
        }
    }
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl From<Limited> for End {
    fn from(Limited: Limited) -> Self {
        Self::Limited
    }
}

impl From<Ending> for End {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Replaced => Self::Replaced,
            Ending::Limited => Self::Limited,
        }
    }
}

impl From<ConnectionError> for End {
    fn from(_: ConnectionError) -> Self {
        Self::Connection
    }
}
