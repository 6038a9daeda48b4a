//! Programs that end with whoever started them.

use std::process::{Child, ChildStderr, Command};

/// A process, until it is dropped.
#[derive(Debug)]
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}")))
    }

    pub(crate) fn errors(&mut self) -> ChildStderr {
        self.0.stderr.take().expect("its errors go to this program, and are taken once")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
