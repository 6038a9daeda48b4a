//! Section `[server]`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Settings of the process as a whole: section `[server]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Process {
    /// How long open requests may take to finish after SIGTERM.
    #[serde(with = "crate::units::duration")]
    pub drain_timeout: Duration,
}

impl Default for Process {
    fn default() -> Self {
        Self {
            drain_timeout: Duration::from_secs(10),
        }
    }
}
