//! `ncpeer`: the crate of this name is all of it.

use std::process::ExitCode;

fn main() -> ExitCode {
    ncpeer::cli::main()
}
