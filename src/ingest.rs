//! Where segments come from: origins over HTTP and watched directories.

use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

/// What holds for every origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Larger objects are cut into parts of this size.
    #[serde(with = "crate::config::size")]
    pub segment_max_bytes: ByteSize,
    /// The most time one request to an origin may take.
    #[serde(with = "crate::config::duration")]
    pub timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { segment_max_bytes: ByteSize::mib(8), timeout: Duration::from_secs(10) }
    }
}
