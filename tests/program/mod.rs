//! The package's own programs, for tests that start them.

use std::path::PathBuf;

/// The path of the server, or of the peer with `ncpeer`.
pub(crate) fn program(name: &str) -> PathBuf {
    let built = if name == "ncpeer" {
        env!("CARGO_BIN_EXE_ncpeer")
    } else {
        env!("CARGO_BIN_EXE_ncserverd")
    };
    nctest::program::path(name, built)
}
