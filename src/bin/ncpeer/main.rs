//! `ncpeer`: reads the command line and hands over.

#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use clap::Parser;
use ncserverd::console;

mod cli;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            console::note(format_args!("ncpeer: cannot start worker threads: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(cli::run(cli));
    // A reader that has stopped reading our output must not keep us from ending.
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_closed_pipe() {
                console::note(format_args!("ncpeer: {failure}"));
            }
            ExitCode::from(failure.exit())
        }
    }
}
