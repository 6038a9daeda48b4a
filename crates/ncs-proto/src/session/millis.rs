//! Times on the wire, in milliseconds.

use std::time::Duration;

use crate::time::Instant;

/// The farthest deadline that is kept; later ones count as this.
const DEADLINE_MAX: Duration = Duration::from_secs(3600);

/// The time that is this many milliseconds from now.
pub(super) fn deadline_of(now: Instant, milliseconds: u64) -> Instant {
    now + Duration::from_millis(milliseconds).min(DEADLINE_MAX)
}

/// A duration in milliseconds, as far as a varint goes.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .min((1 << 62) - 1)
}
