//! Assembly: starts the parts in order, and stops them in order.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What concerns the process as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How long open requests may take to finish after SIGTERM.
    #[serde(with = "crate::config::duration")]
    pub drain_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { drain_timeout: Duration::from_secs(10) }
    }
}
