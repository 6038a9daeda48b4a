//! `ncserverd`: parses the command line and runs the command.

#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::io;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use ncserverd::allocator::Allocator;
use ncserverd::config::Sources;
use ncserverd::lab::demo;
use ncserverd::{
    bench, cluster, config, console, doctor, document, pages, plan, server, supervise, telemetry,
};

use crate::cli::{Cli, ClusterCommand, Command, ConfigCommand};

mod cli;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_closed_pipe() {
                console::note(format_args!("ncserverd: {failure}"));
            }
            failure.exit().into()
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let (sources, filter) = (cli.sources(), cli.log_filter());
    match cli.command {
        None | Some(Command::Serve(_)) => {
            let loaded = sources.load()?;
            let runtime = runtime()?;
            let served = runtime.block_on(server::run(sources, loaded));
            let ended = end(runtime);
            // The reason of the stop is more useful than the fact that something else hangs.
            served?;
            ended
        }
        Some(Command::Cluster(command)) => runtime()?.block_on(fleet(&sources, command)),
        Some(Command::Config(ConfigCommand::Check)) => {
            let loaded = sources.load()?;
            print(&loaded.explain())?;
            told(&doctor::Report::of_named(&loaded), |report| {
                format!("What it names:\n{report}")
            })
        }
        Some(Command::Config(ConfigCommand::Print)) => print(&sources.load()?.config.to_toml()),
        Some(Command::Doctor(doctor)) => {
            let report = doctor::Report::examine(&sources.load()?);
            told(&report, |report| {
                if doctor.json {
                    report.to_json()
                } else {
                    report.to_string()
                }
            })
        }
        Some(Command::Plan(options)) => {
            let plan = plan::Plan::make(&options.options(), &sources.load()?.config)?;
            print(&plan.to_string())
        }
        Some(Command::Bench(bench)) => Ok(bench::run(&bench.options(), &mut io::stdout().lock())?),
        Some(Command::Demo(demo)) => {
            // The server's messages would disturb the moving lines.
            let logs = telemetry::Config {
                log_filter: filter.unwrap_or("warn").into(),
                ..Default::default()
            };
            telemetry::init(&logs).map_err(server::Error::from)?;
            let report = runtime()?.block_on(demo::run(demo.options()))?;
            if report.is_complete() {
                Ok(())
            } else {
                Err(Failure::Differs)
            }
        }
    }
}

/// What an operator does with the fleet.
async fn fleet(sources: &Sources, command: ClusterCommand) -> Result<(), Failure> {
    match command {
        ClusterCommand::Status { once } => {
            cluster::status(&sources.load()?.config.cluster, once).await?;
        }
        ClusterCommand::Apply {
            file,
            base,
            dry_run,
            yes,
        } => {
            let options = document::Apply {
                file,
                base,
                dry_run,
                yes,
            };
            document::apply(sources, &options).await?;
        }
        ClusterCommand::Config { revision } => document::show(sources, revision).await?,
        ClusterCommand::Rollback { revision, force } => {
            document::roll_back(sources, revision, force).await?;
        }
    }
    Ok(())
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)
}

/// Waits for threads that access files, but only for a limited time: if a file system hangs, they
/// never end.
fn end(runtime: tokio::runtime::Runtime) -> Result<(), Failure> {
    let begun = Instant::now();
    runtime.shutdown_timeout(server::END_WITHIN);
    if begun.elapsed() < server::END_WITHIN {
        Ok(())
    } else {
        Err(Failure::Stuck)
    }
}

/// Prints a report, and fails if it does.
fn told(
    report: &doctor::Report,
    text: impl FnOnce(&doctor::Report) -> String,
) -> Result<(), Failure> {
    print(&text(report))?;
    if report.is_failed() {
        Err(Failure::Unfit)
    } else {
        Ok(())
    }
}

fn print(text: &str) -> Result<(), Failure> {
    console::print(text).map_err(Failure::Output)
}

/// Errors that end the process early.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("invalid configuration\n{0}")]
    Config(#[from] config::Error),
    #[error("{0}")]
    Server(#[from] server::Error),
    #[error("cannot start worker threads: {0}")]
    Runtime(#[source] io::Error),
    #[error("cannot write: {0}")]
    Output(#[source] io::Error),
    #[error("{0}")]
    Bench(#[from] bench::Error),
    #[error("{0}")]
    Demo(#[from] demo::Error),
    #[error("{0}")]
    Cluster(#[from] cluster::StatusError),
    #[error("{0}")]
    Document(#[from] document::CommandError),
    #[error("segments are missing or differ from the origin's")]
    Differs,
    #[error("stopped, but a thread still waits for the file system, which hangs")]
    Stuck,
    #[error("this machine cannot serve this configuration: see the failed checks")]
    Unfit,
    #[error("{0}")]
    Plan(#[from] plan::Error),
}

/// Exit codes that scripts and service managers can distinguish. The help text lists them.
#[derive(Debug, Clone, Copy)]
enum Exit {
    Failed = 1,
    Usage = 2,
    Config = 3,
    Certificate = 4,
    Device = 5,
    Listen = 6,
    Incomplete = 7,
    Unfit = 8,
    Stuck = server::STUCK as isize,
    Died = supervise::DIED as isize,
    ClosedPipe = console::CLOSED_PIPE as isize,
}

impl Failure {
    /// Whether only the reader of the output is gone.
    fn is_closed_pipe(&self) -> bool {
        match self {
            Self::Output(error)
            | Self::Bench(bench::Error::Output(error))
            | Self::Cluster(cluster::StatusError::Print(error))
            | Self::Document(document::CommandError::Print(error))
            | Self::Demo(demo::Error::Output(error)) => console::is_closed_pipe(error),
            _ => false,
        }
    }

    fn exit(&self) -> Exit {
        match self {
            _ if self.is_closed_pipe() => Exit::ClosedPipe,
            Self::Config(_) => Exit::Config,
            Self::Server(error) | Self::Demo(demo::Error::Server(error)) => exit_of(error),
            Self::Demo(demo::Error::Gateway(_) | demo::Error::Page(_)) => Exit::Listen,
            Self::Bench(error) | Self::Plan(plan::Error::Encode(error)) => exit_of_bench(error),
            Self::Differs | Self::Document(document::CommandError::NotYet { .. }) => {
                Exit::Incomplete
            }
            Self::Unfit => Exit::Unfit,
            Self::Stuck => Exit::Stuck,
            Self::Plan(plan::Error::Options(_) | plan::Error::Shape(_)) => Exit::Usage,
            Self::Plan(plan::Error::Endpoint(_)) => Exit::Listen,
            Self::Cluster(cluster::StatusError::Alone)
            | Self::Document(
                document::CommandError::Config(_)
                | document::CommandError::Engine
                | document::CommandError::Document { .. }
                | document::CommandError::Named { .. },
            ) => Exit::Config,
            Self::Plan(_)
            | Self::Demo(_)
            | Self::Cluster(_)
            | Self::Document(_)
            | Self::Runtime(_)
            | Self::Output(_) => Exit::Failed,
        }
    }
}

fn exit_of_bench(error: &bench::Error) -> Exit {
    match error {
        bench::Error::Device(_) => Exit::Device,
        bench::Error::Wrong { .. } => Exit::Incomplete,
        bench::Error::Shape(_) => Exit::Usage,
        _ => Exit::Failed,
    }
}

fn exit_of(error: &server::Error) -> Exit {
    match error {
        server::Error::Stream(_)
        | server::Error::Admission(_)
        | server::Error::StillBound(_)
        | server::Error::Handover(
            server::HandoverError::NoSocket(_)
            | server::HandoverError::Stranger(_)
            | server::HandoverError::Message
            | server::HandoverError::Unable(_)
            | server::HandoverError::NotTaken(_),
        )
        | server::Error::Document(_)
        | server::Error::Telemetry(
            telemetry::Error::Filter { .. }
            | telemetry::Error::Credential(_)
            | telemetry::Error::Host(_),
        ) => Exit::Config,
        server::Error::Died(_) => Exit::Died,
        server::Error::Tls(_) | server::Error::Telemetry(telemetry::Error::Certificate(_)) => {
            Exit::Certificate
        }
        server::Error::Device(_) => Exit::Device,
        server::Error::Pages(pages::Error::Certificate(_)) => Exit::Certificate,
        server::Error::Pages(pages::Error::Plain(_)) => Exit::Config,
        server::Error::Endpoint(_)
        | server::Error::Pages(_)
        | server::Error::Telemetry(telemetry::Error::Listen { .. }) => Exit::Listen,
        _ => Exit::Failed,
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
