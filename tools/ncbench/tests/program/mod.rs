//! `ncbench`, for tests that run it as a user does.

use std::path::PathBuf;
use std::process::Command;

pub(crate) use nctest::pipes::CLOSED_PIPE;

/// Where it is.
fn program() -> PathBuf {
    nctest::program::path("ncbench", env!("CARGO_BIN_EXE_ncbench"))
}

/// Runs it into a pipe whose reader has gone: its exit code, and what it says on standard error.
pub(crate) async fn into_a_closed_pipe(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(program());
    command.args(arguments);
    tokio::task::spawn_blocking(move || nctest::pipes::into_a_closed_pipe(&mut command))
        .await
        .unwrap()
}
