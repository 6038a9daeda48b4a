//! Publishing points: what a path of a stream is, resolved once however many ask.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One publishing point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// URL that paths of the stream are appended to.
    pub origin: Option<String>,
    /// Directory that is watched instead of an origin.
    pub directory: Option<PathBuf>,
    /// Most blocks in a generation.
    pub n_max: u16,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Which blocks a peer gets first.
    pub first_pass: FirstPass,
    /// How long a segment that left the playlist is kept.
    #[serde(with = "crate::config::duration")]
    pub retention: Duration,
}

/// Which blocks a peer gets first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FirstPass {
    /// Coded blocks from the ring.
    Coded,
    /// The source blocks, then coded ones.
    Systematic,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            origin: None,
            directory: None,
            n_max: 128,
            block_bytes: 4096,
            first_pass: FirstPass::Coded,
            retention: Duration::from_secs(60),
        }
    }
}
