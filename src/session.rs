//! One conversation with one peer: its requests, credits and pacing.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What one peer may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Open requests of a peer.
    pub requests_max: u16,
    /// Unspent credit of a request, in blocks.
    pub credit_max: u32,
    /// Blocks handed to the network and not yet acknowledged, of one peer.
    pub unacknowledged_blocks_max: u32,
    /// A peer that sends nothing for this long is gone.
    #[serde(with = "crate::config::duration")]
    pub idle_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { requests_max: 16, credit_max: 512, unacknowledged_blocks_max: 512, idle_timeout: Duration::from_secs(15) }
    }
}
