//! What to encode next: demand of all sessions gathered into batches for the device.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How demand becomes batches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Most coded blocks in a batch.
    pub batch_blocks_max: u32,
    /// How long the first block asked for may wait for others to share its batch.
    #[serde(with = "crate::config::duration")]
    pub batch_wait: Duration,
    /// Coded blocks of each new live generation made before anybody asks.
    pub prefill_blocks: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { batch_blocks_max: 1024, batch_wait: Duration::from_micros(500), prefill_blocks: 8 }
    }
}
