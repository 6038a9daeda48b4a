//! How many viewers one host serves, and what limits it: the server and `ncbench swarm` beside each
//! other over loopback, each on processors of its own.
//!
//! `cargo bench --bench viewers -- [--viewers N,…] [--bitrate BITS] [--segment SIZE] [--time
//! SECONDS] [--backend cuda|cpu] [--kernel NAME] [--max-reuse N]
//! [--systematic] [--datagrams] [--loss SHARE] [--plain] [--server-cores LIST] [--viewer-cores
//! LIST] [--record FILE]` runs each number of viewers after the other, prints a table in Markdown,
//! and appends what it measured to FILE, a line of JSON a run. `-- --draw DIRECTORY FILE…` draws
//! such files. Needs no privileges; the system is to be set as `ncserverd doctor` advises.
//!
//! Every viewer plays segments of a file by its own clock. A segment is late that cannot be decoded
//! two durations after it was due to be asked for. Where nothing else is asked for, all blocks are
//! coded and none is sent to two viewers. What the server takes is measured from five seconds after
//! the last viewer has joined to the end.

mod draw;
mod host;
mod record;
mod run;
mod usage;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};

use host::Host;
use record::Record;

/// Options of the run.
#[derive(Debug, Clone, Parser, Serialize, Deserialize)]
struct Arguments {
    /// Number of viewers of each run
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "1000,3050,10000"
    )]
    viewers: Vec<u64>,
    /// Bit rate of each viewer, in bits per second
    #[arg(long, value_name = "BITS", default_value_t = 768_000)]
    bitrate: u64,
    /// Viewers that join per second
    #[arg(long, value_name = "RATE", default_value_t = 1000)]
    join_rate: u64,
    /// Duration in seconds, after all viewers have joined
    #[arg(long, value_name = "SECONDS", default_value_t = 90)]
    time: u64,
    /// `ingest.segment_max_bytes`, and the segment size of plain streams
    #[arg(long, value_name = "SIZE", default_value = "512KiB")]
    segment: String,
    /// Share of the viewers that decode and verify everything, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    verify: f64,
    /// Back end that encodes
    #[arg(long, value_enum, default_value_t)]
    backend: Backend,
    /// `device.kernel`, by default the server's own default
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// `ring.max_reuse`
    #[arg(long, value_name = "N", default_value_t = 1)]
    max_reuse: u32,
    /// `ring.bytes`
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    ring: String,
    /// Send source blocks first, and coded blocks for lost ones
    #[arg(long)]
    systematic: bool,
    /// Send blocks of 1,088 bytes in datagrams instead of 4,096 bytes on streams
    #[arg(long)]
    datagrams: bool,
    /// Share of the packets that viewers lose, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    loss: f64,
    /// Measure plain QUIC streams with the same number of bytes, for comparison
    #[arg(long)]
    plain: bool,
    /// Processors of the server, such as 0-7; by default all
    #[arg(long, value_name = "LIST")]
    server_cores: Option<String>,
    /// Processors of the viewers; by default all
    #[arg(long, value_name = "LIST")]
    viewer_cores: Option<String>,
    /// Commit that the programs were built from, for the record
    #[arg(long, value_name = "TEXT", default_value = "unknown")]
    commit: String,
    /// File to append the results to
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    record: Option<PathBuf>,
    /// Plot the given records into this directory instead of measuring
    #[arg(long, value_name = "DIRECTORY", requires = "files")]
    #[serde(skip)]
    draw: Option<PathBuf>,
    /// Records to plot
    #[arg(requires = "draw")]
    #[serde(skip)]
    files: Vec<PathBuf>,
    /// Ignored: cargo passes it
    #[arg(long, hide = true)]
    #[serde(skip)]
    bench: bool,
}

/// What encodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Backend {
    /// A GPU, or no run.
    Cuda,
    /// The CPU.
    #[default]
    Cpu,
}

impl Backend {
    /// As the configuration has it.
    const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Cpu => "cpu",
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.draw {
        Some(directory) => draw(&arguments.files, directory),
        None => measure(&arguments),
    };
    if let Err(reason) = done {
        eprintln!("error: {reason}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn measure(arguments: &Arguments) -> Result<(), String> {
    let host = Host::here();
    println!("{host}; commit {}\n\n{}", arguments.commit, Record::HEAD);
    for viewers in &arguments.viewers {
        let record = run::run(arguments, *viewers, &host)?;
        println!("{}", record.row());
        if let Some(file) = &arguments.record {
            record
                .append(file)
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
    }
    Ok(())
}

fn draw(files: &[PathBuf], directory: &Path) -> Result<(), String> {
    let mut records = Vec::new();
    for file in files {
        records.extend(Record::read(file).map_err(|error| format!("{}: {error}", file.display()))?);
    }
    draw::all(&records, directory).map_err(|error| format!("{}: {error}", directory.display()))
}
