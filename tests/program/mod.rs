//! The package's own programs, for tests that start them.

use std::path::PathBuf;

/// The path of the server, or of the peer with `ncpeer`. `NCTEST_BIN_DIR` is their folder on a host
/// that has the tests without the package.
pub(crate) fn program(name: &str) -> PathBuf {
    let built = if name == "ncpeer" { env!("CARGO_BIN_EXE_ncpeer") } else { env!("CARGO_BIN_EXE_ncserverd") };
    std::env::var_os("NCTEST_BIN_DIR").map_or_else(|| built.into(), |directory| PathBuf::from(directory).join(name))
}
