//! `ncbench`: reads the command line and hands over.

#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::io;
use std::process::ExitCode;

use clap::Parser;
use ncbench::bench::{self, Error, Set};
use ncserverd::console;

use crate::cli::{Cli, Command};

mod cli;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !is_closed_pipe(&failure) {
                console::note(format_args!("ncbench: {failure}"));
            }
            ExitCode::from(exit_of(&failure))
        }
    }
}

fn run(cli: Cli) -> Result<(), Error> {
    let options = match cli.command {
        Command::Cases(cases) => cases.options(Set::All),
        Command::Cpu(cases) => cases.options(Set::Cpu),
        Command::Papers(papers) => papers.options(),
    };
    bench::run(&options, &mut io::stdout().lock())
}

/// Whether it is only that nobody reads the output any more.
fn is_closed_pipe(failure: &Error) -> bool {
    matches!(failure, Error::Output(error) if console::is_closed_pipe(error))
}

/// The exit code; the help text lists them.
fn exit_of(failure: &Error) -> u8 {
    use ncserverd::bench::Error as Batch;
    match failure {
        _ if is_closed_pipe(failure) => console::CLOSED_PIPE,
        Error::Device(_) | Error::Isa(_) | Error::Batch(Batch::Device(_)) => 5,
        Error::Wrong { .. } | Error::Batch(Batch::Wrong { .. }) => 7,
        _ => 1,
    }
}
