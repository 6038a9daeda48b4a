//! Programs whose output nobody reads.

use std::io::pipe;
use std::process::{Command, Stdio};

/// The exit code of a program that a closed pipe ends: 128 + SIGPIPE.
pub const CLOSED_PIPE: i32 = 141;

/// Runs a command with its output in a pipe whose reader has gone; returns its exit code and
/// standard error.
pub fn into_a_closed_pipe(command: &mut Command) -> (Option<i32>, String) {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let output = command
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}
