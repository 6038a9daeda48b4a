//! `nccodec`: reads the command line and hands over.

#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::io;
use std::process::ExitCode;

use clap::Parser;
use ncs_gf::RowKey;
use ncs_net::{console, telemetry};

use crate::cli::{Cli, Coding, Command};

mod cli;

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_closed_pipe() {
                console::note(format_args!("nccodec: {failure}"));
            }
            ExitCode::from(failure.exit())
        }
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    let log_filter = match cli.verbose {
        0 => "warn",
        1 => "info,nccodec=debug,ncserverd=debug",
        _ => "debug",
    };
    let (log_filter, log_format) = (log_filter.into(), telemetry::LogFormat::Pretty);
    telemetry::init(&telemetry::Config {
        log_filter,
        log_format,
        ..Default::default()
    })?;
    match &cli.command {
        Command::Row(row) => {
            let key = RowKey {
                key: row.key,
                generation: row.generation,
            };
            console::print(format_args!("{}\n", nccodec::row(key, row.seed, row.n)))
                .map_err(Failure::Output)
        }
        Command::Encode(encode) => {
            let choice = encode.coders.choice().unwrap_or_else(|error| error.exit());
            match encode.coding().unwrap_or_else(|error| error.exit()) {
                Coding::Raw(raw, output) => nccodec::encode_raw(&raw, &encode.file, &output)?,
                Coding::Blocks(plan, directory) => {
                    console::note(nccodec::encode(&plan, &encode.file, &directory, choice)?);
                }
                Coding::Chunks(plan, directory) => {
                    console::note(nccodec::encode_chunks(
                        &plan,
                        &encode.file,
                        directory.as_deref(),
                        choice,
                    )?);
                }
            }
            Ok(())
        }
        Command::Decode(decode) => {
            let choice = decode.coders.choice().unwrap_or_else(|error| error.exit());
            console::note(nccodec::decode(&decode.directory, &decode.output, choice)?);
            Ok(())
        }
    }
}

/// Everything that ends the process early.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Codec(#[from] nccodec::Error),
    #[error("{0}")]
    Logs(#[from] telemetry::Error),
    #[error("cannot write: {0}")]
    Output(#[source] io::Error),
}

impl Failure {
    /// Whether it is only that nobody reads the output any more.
    fn is_closed_pipe(&self) -> bool {
        match self {
            Self::Output(error) | Self::Codec(nccodec::Error::Write { source: error, .. }) => {
                console::is_closed_pipe(error)
            }
            _ => false,
        }
    }

    /// The exit code; the help text lists them.
    fn exit(&self) -> u8 {
        match self {
            _ if self.is_closed_pipe() => console::CLOSED_PIPE,
            Self::Codec(error) if error.is_incomplete() => 7,
            Self::Codec(nccodec::Error::Device { .. }) => 5,
            Self::Codec(_) | Self::Logs(_) | Self::Output(_) => 1,
        }
    }
}
