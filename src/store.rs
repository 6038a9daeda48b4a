//! Which segments are held, within which budget, and which go first.

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

/// How much is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Bytes of all resident segments.
    #[serde(with = "crate::config::size")]
    pub bytes: ByteSize,
}

impl Default for Config {
    fn default() -> Self {
        Self { bytes: ByteSize::mib(512) }
    }
}
