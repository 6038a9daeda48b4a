//! Refusals of GETs, SUBSCRIBEs and queries.

use super::millis::millis;
use super::proto::Proto;
use crate::admission::Access;
use crate::object::Refusal;
use crate::wire::message::{Message, REASON_MAX, RequestCode, RequestError};
use crate::wire::text::plain;

/// The reason for whatever does not exist, for peers that may not have everything.
const NOT_THERE: &str = "no such object";

impl Proto {
    /// Answers a GET or SUBSCRIBE with ERROR, which ends a subscription.
    pub(super) fn refuse(&mut self, request: u64, refusal: &Refusal) {
        self.subscriptions.retain(|open| *open != request);
        self.tally.refused += 1;
        self.streams.refused(request);
        self.say_no(request, refusal);
    }

    /// Sends ERROR.
    pub(super) fn say_no(&mut self, request: u64, refusal: &Refusal) {
        // A peer with limited rights must not learn which other objects exist.
        let uniform = not_there();
        let is_unknown = refusal.code == RequestCode::Unknown && self.access != Access::Free;
        let refusal = if is_unknown { &uniform } else { refusal };
        // The reason may contain text of an origin.
        let reason = plain(&refusal.reason, REASON_MAX);
        let retry_after_ms = refusal.retry_after.map_or(0, |after| millis(after).max(1));
        self.send(Message::Error(RequestError {
            request,
            code: refusal.code,
            retry_after_ms,
            reason,
        }));
    }
}

/// The refusal of a server that goes away.
pub(super) fn going_away() -> Refusal {
    Refusal {
        code: RequestCode::GoingAway,
        retry_after: None,
        reason: "the server is going away".to_owned(),
    }
}

/// The refusal of whatever does not exist.
pub(super) fn not_there() -> Refusal {
    Refusal {
        code: RequestCode::Unknown,
        retry_after: None,
        reason: NOT_THERE.to_owned(),
    }
}
