//! What a program takes of the machine.

use std::fs;

use nctest::process::Process;
use nctest::program::status;

/// What it takes of the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    /// Bytes of memory that it occupies.
    pub(crate) resident: u64,
    pub(crate) descriptors: usize,
    pub(crate) threads: u64,
}

/// What a program takes now; `None` when it has ended.
pub(crate) fn usage(process: &Process) -> Option<Usage> {
    let id = process.0.id();
    let descriptors = fs::read_dir(format!("/proc/{id}/fd")).ok()?.count();
    Some(Usage {
        resident: status(id, "VmRSS")? << 10,
        descriptors,
        threads: status(id, "Threads")?,
    })
}
