//! Coded blocks on their way from the encoder to the sessions, in a bounded pool of slots.

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

/// How much is coded ahead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Bytes of all slots.
    #[serde(with = "crate::config::size")]
    pub bytes: ByteSize,
    /// How many sessions one coded block may serve.
    pub max_reuse: u16,
}

impl Default for Config {
    fn default() -> Self {
        Self { bytes: ByteSize::mib(64), max_reuse: 1 }
    }
}
