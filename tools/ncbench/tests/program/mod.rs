//! `ncbench`, for tests that run it as a user does.

use std::io::pipe;
use std::path::PathBuf;
use std::process::Stdio;

/// 128 and SIGPIPE.
pub(crate) const CLOSED_PIPE: i32 = 141;

/// Where it is. On a host that got the tests without the package its folder is `NCTEST_BIN_DIR`.
fn program() -> PathBuf {
    let built = env!("CARGO_BIN_EXE_ncbench").into();
    std::env::var_os("NCTEST_BIN_DIR").map_or(built, |directory| PathBuf::from(directory).join("ncbench"))
}

/// Runs it into a pipe whose reader has gone: its exit code, and what it says on standard error.
pub(crate) async fn into_a_closed_pipe(arguments: &[&str]) -> (Option<i32>, String) {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let mut command = std::process::Command::new(program());
    command.args(arguments).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}
