//! What programs take of the machine, and how they end.

use std::fs;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

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
    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.0.id().to_string()]).status().expect("`kill` is installed");
        assert!(status.success(), "kill -s {name} of a process that is not waited for");
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("a process of ours can be waited for")
    }

    /// Waits for its end, so long at most.
    pub(crate) fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + patience;
        loop {
            match self.ended() {
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
                ended => return ended,
            }
        }
    }

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
