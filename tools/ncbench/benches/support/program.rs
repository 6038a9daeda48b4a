//! The programs that benches start: the server, the peer, and this tool.

use std::path::PathBuf;

/// Where it is: beside the folder that this bench was built into, or in the folder `NCTEST_BIN_DIR`
/// on a host that got the programs without the package.
///
/// # Panics
/// If it is not there: only `ncbench` is built with the benches.
pub(crate) fn program(name: &str) -> PathBuf {
    let folder = std::env::var_os("NCTEST_BIN_DIR").map(PathBuf::from).unwrap_or_else(|| {
        let bench = std::env::current_exe().expect("a program knows its file");
        bench.ancestors().nth(2).expect("benches are built into a folder of the programs'").to_owned()
    });
    let program = folder.join(name);
    assert!(
        program.is_file(),
        "{} is missing: build the programs with the bench's profile first, as in `cargo build --profile dist --bins`",
        program.display()
    );
    program
}
