//! `ncbench`: reads the command line and hands over.

#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::io;
use std::process::ExitCode;

use clap::Parser;
use ncbench::bench::{self, Set};
use ncbench::swarm;
use ncserverd::allocator::Allocator;
use ncserverd::object::RefusalCode;
use ncserverd::tls::ServerIdentity;
use ncserverd::{console, endpoint, peer, telemetry, tls};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Cli, Command, Plain, Swarm};

mod cli;

/// The same as that of `ncserverd`, so that neither side of a comparison has the better one.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_closed_pipe() {
                console::note(format_args!("ncbench: {failure}"));
            }
            ExitCode::from(failure.exit())
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let options = match cli.command {
        Command::Cases(cases) => cases.options(Set::All),
        Command::Cpu(cases) => cases.options(Set::Cpu),
        Command::Papers(papers) => papers.options(),
        Command::Swarm(command) => return with_runtime(load(&command)),
        Command::Plain(plain) => return with_runtime(serve_plain(plain)),
    };
    Ok(bench::run(&options, &mut io::stdout().lock())?)
}

/// Has many viewers load a server.
async fn load(command: &Swarm) -> Result<(), Failure> {
    let filter = ["warn", "info", "debug"]
        .get(usize::from(command.verbose))
        .unwrap_or(&"trace");
    // What the verifier logs is in the error that follows it.
    let log_filter = format!("{filter},rustls_platform_verifier=off");
    let log_format = telemetry::LogFormat::Pretty;
    telemetry::init(&telemetry::Config {
        log_filter,
        log_format,
        ..Default::default()
    })?;
    let source = command.source().map_err(Failure::Credential)?;
    let stop = interrupted()?;
    let report = swarm::run(&command.options, source, command.path.as_deref(), stop).await?;
    console::note(&report);
    let required = command.options.require;
    match required.and_then(|required| report.shortfall(required)) {
        Some(shortfall) => Err(Failure::Shortfall(shortfall)),
        None => Ok(()),
    }
}

/// Serves what coded streams are compared with.
async fn serve_plain(Plain { listen, congestion }: Plain) -> Result<(), Failure> {
    let identity = ServerIdentity::ephemeral()?;
    console::note(format_args!(
        "plain streams at ncs://{listen}#{} (Ctrl-C stops)",
        identity.fingerprint()
    ));
    let stop = interrupted()?;
    Ok(swarm::serve_plain(swarm::PlainConfig { listen, congestion }, &identity, stop).await?)
}

fn with_runtime(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    let done = runtime.block_on(work);
    // A reader that has stopped reading our output must not keep us from ending.
    runtime.shutdown_background();
    done
}

/// Ends when SIGINT or SIGTERM comes.
fn interrupted() -> Result<impl Future<Output = ()>, Failure> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::Signals)?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Why `ncbench` ends early.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Bench(#[from] bench::Error),
    #[error("{0}")]
    Swarm(#[from] swarm::Error),
    #[error("less was delivered than --require says: {0}")]
    Shortfall(String),
    #[error("{0}")]
    Plain(#[from] endpoint::Error),
    #[error("{0}")]
    Credential(String),
    #[error("certificate: {0}")]
    Certificate(#[from] tls::Error),
    #[error("cannot set up logs: {0}")]
    Logs(#[from] telemetry::Error),
    #[error("cannot handle signals: {0}")]
    Signals(#[source] io::Error),
    #[error("cannot start worker threads: {0}")]
    Runtime(#[source] io::Error),
}

impl Failure {
    /// Whether it is only that nobody reads the output any more.
    fn is_closed_pipe(&self) -> bool {
        match self {
            Self::Bench(bench::Error::Output(error))
            | Self::Swarm(swarm::Error::Write(_, error)) => console::is_closed_pipe(error),
            _ => false,
        }
    }

    /// The exit code; the help text lists them.
    fn exit(&self) -> u8 {
        use ncserverd::bench::Error as Batch;
        match self {
            _ if self.is_closed_pipe() => console::CLOSED_PIPE,
            Self::Bench(
                bench::Error::Device(_)
                | bench::Error::Isa(_)
                | bench::Error::Batch(Batch::Device(_)),
            ) => 5,
            Self::Bench(bench::Error::Wrong { .. } | bench::Error::Batch(Batch::Wrong { .. })) => 7,
            Self::Swarm(swarm::Error::Program(_)) | Self::Credential(_) => 2,
            Self::Swarm(swarm::Error::Name(_)) => 3,
            Self::Swarm(swarm::Error::Peer(error)) => exit_of(error),
            Self::Plain(_) => 6,
            Self::Bench(_)
            | Self::Swarm(_)
            | Self::Shortfall(_)
            | Self::Certificate(_)
            | Self::Logs(_)
            | Self::Signals(_)
            | Self::Runtime(_) => 1,
        }
    }
}

fn exit_of(error: &peer::Error) -> u8 {
    use peer::Error;
    match error {
        Error::Connection(_) | Error::Untrusted(_) | Error::Closed => 3,
        Error::Refused(refusal) if refusal.code == RefusalCode::Unknown => 4,
        Error::Path(_) | Error::Range(_) => 2,
        _ => 1,
    }
}
