//! What a server says when it refuses a handshake.
//!
//! The refusal is QUIC's own: CONNECTION_CLOSE with CONNECTION_REFUSED in an Initial packet. Its
//! reason phrase (RFC 9000, section 19.19) is text for people, and is the only part that a server
//! may choose. So the time after which the client may come again is in there.

use std::time::Duration;

/// What the reason begins with. Decimal digits follow.
const PREFIX: &str = "retry-after-ms=";
/// A time of more digits, 11 days and more, is not a time to wait for.
const DIGITS_MAX: usize = 9;
const MS_MAX: u128 = 999_999_999;

/// The longest [`reason`], in bytes.
pub const REASON_MAX: usize = PREFIX.len() + DIGITS_MAX;

/// The reason of a refusal that tells the client to come again after this time, in milliseconds.
pub fn reason(retry_after: Duration) -> String {
    format!("{PREFIX}{}", retry_after.as_millis().min(MS_MAX))
}

/// The time after which a refused client may come again; `None` where the reason has none. It is
/// not authenticated: callers bound it.
pub fn retry_after(reason: &[u8]) -> Option<Duration> {
    let digits = reason.strip_prefix(PREFIX.as_bytes())?;
    if digits.len() > DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = std::str::from_utf8(digits).ok()?;
    digits.parse().ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_survives_and_anything_else_is_no_time() {
        for ms in [0, 1, 12_345, 999_999_999] {
            let time = Duration::from_millis(ms);
            let reason = reason(time);
            assert!(reason.len() <= REASON_MAX);
            assert_eq!(retry_after(reason.as_bytes()), Some(time));
        }
        assert_eq!(reason(Duration::MAX).len(), REASON_MAX);
        for other in [
            "",
            "retry-after-ms=",
            "retry-after-ms=+5",
            "retry-after-ms=-5",
            "retry-after-ms=5 ",
            "retry-after-ms=5s",
            "retry-after-ms=1000000000",
            "Retry-After-Ms=5",
            "the server is full",
        ] {
            assert_eq!(retry_after(other.as_bytes()), None, "{other:?}");
        }
        assert_eq!(retry_after(b"retry-after-ms=\xff"), None);
    }
}
