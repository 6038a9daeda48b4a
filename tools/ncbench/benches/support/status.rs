//! What the system tells of a process.

use std::fs;

/// A number of `/proc/PID/status` by its name, such as `VmRSS`, which is in KiB; `None` when the process has ended.
pub(crate) fn status(process: u32, name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}
