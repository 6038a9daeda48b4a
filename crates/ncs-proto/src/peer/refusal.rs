//! Refusals as they come in messages, for the program and for people.

use std::time::Duration;

use crate::object::{Refusal, RefusalCode};

/// A source that has refused something is asked again after this time at the earliest, whatever
/// time it names.
pub(super) const RETRY_MIN: Duration = Duration::from_millis(50);

/// The refusal that a message carries.
pub(super) fn refusal(code: RefusalCode, retry_after_ms: u64, reason: String) -> Refusal {
    let retry_after =
        (retry_after_ms > 0).then(|| Duration::from_millis(retry_after_ms).max(RETRY_MIN));
    Refusal {
        code,
        retry_after,
        reason,
    }
}

/// A sentence about something that a source has refused.
pub(super) fn refused(what: &str, code: RefusalCode, retry_after_ms: u64, reason: &str) -> String {
    let again = if retry_after_ms > 0 {
        format!(", retry after {retry_after_ms} ms")
    } else {
        String::new()
    };
    let reason = if reason.is_empty() {
        String::new()
    } else {
        format!(": {reason}")
    };
    format!("{what} was refused: {}{again}{reason}", code.name())
}
