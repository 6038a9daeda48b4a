//! `nccodec`, for tests that run it as a user does.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// What it exits with where more is needed.
pub(crate) const INCOMPLETE: i32 = 7;

/// Where it is.
pub(crate) fn program() -> PathBuf {
    nctest::program::path("nccodec", env!("CARGO_BIN_EXE_nccodec"))
}

pub(crate) fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(program());
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may end without reading all.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// What it said.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn random(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}
