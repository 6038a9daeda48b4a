//! How programs are told to end, and how they do.

use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::process::Process;

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
}
