//! The package's own programs, for tests that start them.

use std::path::PathBuf;

/// The server, or with `ncpeer` the peer. On a host that got the tests without the package their folder is `NCTEST_BIN_DIR`.
pub(crate) fn program(name: &str) -> PathBuf {
    let built = if name == "ncpeer" { env!("CARGO_BIN_EXE_ncpeer") } else { env!("CARGO_BIN_EXE_ncserverd") };
    std::env::var_os("NCTEST_BIN_DIR").map_or_else(|| built.into(), |directory| PathBuf::from(directory).join(name))
}
