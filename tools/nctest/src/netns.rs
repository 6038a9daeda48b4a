//! Network namespaces by the programs that make them.

use std::process::{Command, Stdio};

/// A command that runs in a namespace, without input.
pub fn within(namespace: &str) -> Command {
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", namespace])
        .stdin(Stdio::null());
    command
}

/// Runs `ip` with these words, and says what it said where it fails.
pub fn ip(words: &str) -> Result<(), String> {
    run("ip", words)
}

/// The same with another program.
pub fn run(program: &str, words: &str) -> Result<(), String> {
    let output = Command::new(program)
        .args(words.split(' '))
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{program} {words}: {}", said.trim()))
    }
}
