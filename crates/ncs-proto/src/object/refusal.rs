//! Refusals of requests.

use std::time::Duration;

/// Why a request was refused or ended. The connection stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalCode {
    /// No such stream, object or segment, or none that this peer may have: one answer for both.
    Unknown,
    /// The request could not be served before its deadline.
    Deadline,
    /// Overloaded.
    Overload,
    /// A limit of HELLO does not allow it.
    Limit,
    /// The origin did not deliver the object: it failed, was too slow, or contradicted itself.
    Origin,
    /// The object changed at the origin while its parts were fetched.
    Changed,
    /// The origin denies the server the object.
    Forbidden,
    /// The server is going away.
    GoingAway,
    /// A fault of the server.
    Internal,
}

/// The refusal of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, as far as programs need it.
    pub code: RefusalCode,
    /// When to ask again; `None` for never.
    pub retry_after: Option<Duration>,
    /// The reason, for people.
    pub reason: String,
}
