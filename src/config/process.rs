//! Section `[server]`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Settings of the process as a whole: section `[server]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Process {
    /// How long open requests may take to finish after SIGTERM.
    #[serde(with = "crate::units::duration")]
    pub drain_timeout: Duration,
    /// A Unix socket by which another process with this configuration takes the place of this one.
    pub handover: Option<PathBuf>,
}

impl Process {
    /// Makes the path absolute, so that it survives changes of the working directory.
    pub fn resolve(&mut self) {
        if let Some(path) = &mut self.handover {
            *path = crate::units::absolute(path);
        }
    }
}

impl Default for Process {
    fn default() -> Self {
        Self {
            drain_timeout: Duration::from_secs(10),
            handover: None,
        }
    }
}
