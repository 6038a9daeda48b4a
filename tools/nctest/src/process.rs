//! Programs that end with the program that started them.

use std::process::{Child, ChildStderr, Command, ExitStatus};
use std::time::{Duration, Instant};

/// A process, until it is dropped.
#[derive(Debug)]
pub struct Process(pub Child);

impl Process {
    /// Starts the command.
    ///
    /// # Panics
    /// It does not start.
    pub fn start(command: &mut Command) -> Self {
        Self(
            command
                .spawn()
                .unwrap_or_else(|error| panic!("{command:?} does not start: {error}")),
        )
    }

    /// Its standard error, which the command pipes.
    ///
    /// # Panics
    /// It is not piped, or was taken before.
    pub fn errors(&mut self) -> ChildStderr {
        self.0
            .stderr
            .take()
            .expect("its errors go to this program, and are taken once")
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args(["-s", name, &self.0.id().to_string()])
            .status()
            .expect("`kill` is installed");
        assert!(
            status.success(),
            "kill -s {name} of a process that is not waited for"
        );
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0
            .try_wait()
            .expect("a process of ours can be waited for")
    }

    /// Waits for its end, so long at most.
    pub fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + patience;
        loop {
            match self.ended() {
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
                ended => return ended,
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
