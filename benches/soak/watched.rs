//! What a program takes of the machine.

use std::fs;

use crate::process::Process;

/// What it takes of the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    /// Bytes of memory that it occupies.
    pub(crate) resident: u64,
    pub(crate) descriptors: usize,
    pub(crate) threads: u64,
}

impl Process {
    /// What it takes now; `None` when it has ended.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let place = format!("/proc/{}", self.0.id());
        let status = fs::read_to_string(format!("{place}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let descriptors = fs::read_dir(format!("{place}/fd")).ok()?.count();
        Some(Usage { resident: field("VmRSS:")? << 10, descriptors, threads: field("Threads:")? })
    }
}
