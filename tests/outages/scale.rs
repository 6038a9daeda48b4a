//! How large the fleet is, and how long outages last.

use std::time::Duration;

/// The sizes: those of CI, or what the environment says.
pub(crate) struct Scale {
    pub(crate) servers: usize,
    pub(crate) viewers: usize,
    /// Hosts that viewers share.
    pub(crate) networks: usize,
    /// Bits a second of the stream.
    pub(crate) bitrate: u64,
    /// How often programs are killed.
    pub(crate) kills: usize,
    /// How long an outage lasts, and how long the fleet is watched before and after it.
    pub(crate) outage: Duration,
    pub(crate) calm: Duration,
}

impl Scale {
    pub(crate) fn read() -> Self {
        let number = |name: &str, short: usize| {
            let set = std::env::var(format!("NCTEST_{name}"));
            set.map_or(short, |set| set.parse().expect("a number"))
        };
        let seconds = |name, short| Duration::from_secs(number(name, short) as u64);
        let viewers = number("VIEWERS", 12);
        Self {
            servers: number("SERVERS", 3),
            viewers,
            // Even, so that both halves have as many.
            networks: (viewers / 25).max(2) * 2,
            bitrate: number("BITRATE", 400_000) as u64,
            kills: number("KILLS", 2),
            outage: seconds("OUTAGE", 11),
            calm: seconds("CALM", 3),
        }
    }
}
