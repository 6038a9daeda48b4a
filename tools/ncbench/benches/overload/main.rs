//! What a server delivers when more viewers ask than it can carry: `ncbench swarm` beside a server
//! over loopback, each on processors of its own, at multiples of the capacity and at several rates
//! of joining.
//!
//! `cargo bench --bench overload -- [--capacity N] [--cells FACTOR@RATE,…] [--time SECONDS]
//! [--backend cuda|cpu] [--server-cores LIST] [--viewer-cores LIST] [--out DIRECTORY]` prints a
//! table in Markdown, and writes a record (a line of JSON a cell) and a figure over time. Without
//! `--capacity`, it first raises the load until the server's processors are busy or a segment is
//! late. `--cells` may name a part of the table: `--out` adds to the record that is there, and
//! draws the last line of each cell; `--collect` only prints and draws these. `--smoke` is one cell
//! of a minute at twice the capacity, and fails if the goodput is below 90 % of the
//! capacity or somebody is put out. `--generator` shows what the viewers' side itself can do,
//! against plain QUIC streams. Needs no privileges.

#[path = "../viewers/host.rs"]
mod host;
mod record;
mod run;
#[path = "../viewers/usage.rs"]
mod usage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Parser;
use serde::{Deserialize, Serialize};

use host::Host;
use record::Record;
use run::Load;

/// Options of the run.
#[derive(Debug, Clone, Parser, Serialize, Deserialize)]
struct Arguments {
    /// Viewers that the server can carry; without it, found by raising the load
    #[arg(long, value_name = "N")]
    capacity: Option<u64>,
    /// Offered load as a multiple of the capacity, and viewers that join per second
    #[arg(
        long,
        value_name = "FACTOR@RATE,…",
        value_delimiter = ',',
        default_value = "2@1000,2@3000,2@6000,2@20000,4@1000,4@3000,4@6000,4@20000,0.5@3000,\
                         0.9@3000,1.1@3000"
    )]
    cells: Vec<Cell>,
    /// Duration of each cell in seconds, after all viewers have asked
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    time: u64,
    /// Seconds for which each step of the search for the capacity is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    probe: u64,
    /// Bit rate of each viewer, in bits per second
    #[arg(long, value_name = "BITS", default_value_t = 768_000)]
    bitrate: u64,
    /// `ingest.segment_max_bytes`, and the segment size of plain streams
    #[arg(long, value_name = "SIZE", default_value = "512KiB")]
    segment: String,
    /// Back end that encodes: cuda or cpu
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    backend: String,
    /// `ring.bytes`
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    ring: String,
    /// Processors of the server, such as 0-7; by default all
    #[arg(long, value_name = "LIST")]
    server_cores: Option<String>,
    /// Processors of the viewers; by default all
    #[arg(long, value_name = "LIST")]
    viewer_cores: Option<String>,
    /// Commit that the programs were built from, for the record
    #[arg(long, value_name = "TEXT", default_value = "unknown")]
    commit: String,
    /// Directory for the record and the figure; the record of earlier runs is continued
    #[arg(long, value_name = "DIRECTORY")]
    #[serde(skip)]
    out: Option<PathBuf>,
    /// Run nothing, and print and draw the records in the directory of --out
    #[arg(long, requires = "out")]
    #[serde(skip)]
    collect: bool,
    /// Run one short cell on two processors, and fail if too little is delivered
    #[arg(long)]
    #[serde(skip)]
    smoke: bool,
    /// Measure the viewers' side against plain QUIC streams instead
    #[arg(long)]
    #[serde(skip)]
    generator: bool,
    /// Ignored: cargo passes it
    #[arg(long, hide = true)]
    #[serde(skip)]
    bench: bool,
}

/// An offered load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// Multiple of the capacity.
    pub(crate) factor: f64,
    /// Joins a second.
    pub(crate) rate: u64,
}

impl FromStr for Cell {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('@').and_then(|(factor, rate)| {
            Some((factor.parse::<f64>().ok()?, rate.parse::<u64>().ok()?))
        });
        match parts {
            Some((factor, rate)) if factor > 0.0 && factor.is_finite() && rate > 0 => {
                Ok(Self { factor, rate })
            }
            _ => Err("expected a factor and joins a second, such as 2@3000".to_owned()),
        }
    }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    if arguments.smoke {
        arguments.cells = vec![Cell {
            factor: 2.0,
            rate: 3000,
        }];
        (arguments.time, arguments.probe) = (SMOKE_SECONDS, SMOKE_PROBE_SECONDS);
        arguments.segment = "128KiB".to_owned();
        arguments.ring = "256MiB".to_owned();
        arguments.server_cores.get_or_insert_with(|| "0".to_owned());
        arguments.viewer_cores.get_or_insert_with(|| "1".to_owned());
    }
    let done = if arguments.collect {
        collect(&arguments)
    } else if arguments.generator {
        generator(&arguments)
    } else {
        measure(&arguments)
    };
    if let Err(reason) = done {
        eprintln!("error: {reason}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn measure(arguments: &Arguments) -> Result<(), String> {
    let host = Host::here();
    println!("{host}; commit {}\n", arguments.commit);
    let capacity = match arguments.capacity {
        Some(capacity) => capacity,
        None => {
            let capacity = run::capacity(arguments)?;
            println!("capacity: {capacity} viewers were carried without a late segment\n");
            capacity
        }
    };
    println!("{}", Record::HEAD);
    for cell in &arguments.cells {
        let load = Load {
            viewers: viewers(capacity, cell.factor),
            rate: cell.rate,
            time: arguments.time,
            is_plain: false,
            is_joining: false,
            bitrate: arguments.bitrate,
        };
        let mut runs = if arguments.smoke { SMOKE_RUNS } else { 1 };
        let record = loop {
            let swarm = run::run(arguments, load, &host)?;
            let record = Record::new(arguments, &host, *cell, capacity, load, swarm);
            println!("{}", record.row());
            runs -= 1;
            let reasons = record.shortfall().join("; ");
            if !arguments.smoke || reasons.is_empty() {
                break record;
            }
            if runs == 0 {
                return Err(reasons);
            }
            println!("once more: {reasons}");
        };
        if let Some(directory) = &arguments.out {
            record
                .append(directory)
                .and_then(|()| record::draw(directory))
                .map_err(|error| format!("{}: {error}", directory.display()))?;
        }
    }
    Ok(())
}

/// Prints and draws what earlier runs have recorded.
fn collect(arguments: &Arguments) -> Result<(), String> {
    let directory = arguments.out.clone().unwrap_or_default();
    let records =
        record::read(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    println!("{}", Record::HEAD);
    for record in &records {
        println!("{}", record.row());
    }
    record::draw(&directory).map_err(|error| format!("{}: {error}", directory.display()))
}

/// What the viewers' side can do: handshakes with a small segment each, and bytes.
fn generator(arguments: &Arguments) -> Result<(), String> {
    let host = Host::here();
    println!(
        "{host}; commit {}\n\n| plain QUIC streams | viewers | joins a second | served | first \
         segment, ms: half, 99 %, all | goodput, Mbit/s | % of what they play | viewers' cores | \
         server's cores |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        arguments.commit
    );
    let row = |what: &str, load: Load| {
        let segment = if load.bitrate == HANDSHAKE_BITRATE {
            "16KiB".to_owned()
        } else {
            arguments.segment.clone()
        };
        let asked = Arguments {
            segment,
            ..arguments.clone()
        };
        let run::Outcome { swarm, server, .. } = run::run(&asked, load, &host)?;
        println!(
            "| {what} | {} | {} | {} of {} | {:.1}, {:.1}, {:.1} | {:.0} | {:.1} | {:.2} | {:.2} |",
            load.viewers,
            load.rate,
            swarm.totals.served,
            swarm.totals.asked,
            swarm.first_segment.p50_ms,
            swarm.first_segment.p99_ms,
            swarm.first_segment.max_ms,
            swarm.goodput_bits / 1e6,
            swarm.played_share * 100.0,
            swarm.cpu_seconds / swarm.elapsed_seconds.max(1e-3),
            server.cores,
        );
        Ok::<(), String>(())
    };
    for cell in &arguments.cells {
        if cell.factor == arguments.cells[0].factor {
            let load = Load {
                viewers: cell.rate * HANDSHAKE_SECONDS,
                rate: cell.rate,
                time: HANDSHAKE_SECONDS,
                is_plain: true,
                is_joining: true,
                bitrate: HANDSHAKE_BITRATE,
            };
            row("handshakes, 16 KiB each", load)?;
        }
    }
    let capacity = arguments.capacity.unwrap_or(GENERATOR_VIEWERS);
    let load = Load {
        viewers: viewers(capacity, 2.0),
        rate: 1000,
        time: arguments.time,
        is_plain: true,
        is_joining: false,
        bitrate: arguments.bitrate,
    };
    row("bytes, at twice the capacity", load)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of viewers"
)]
fn viewers(capacity: u64, factor: f64) -> u64 {
    (capacity as f64 * factor).round().max(1.0) as u64
}

/// One segment of 16 KiB in more than two minutes: a viewer asks for its first only.
const HANDSHAKE_BITRATE: u64 = 1000;
const HANDSHAKE_SECONDS: u64 = 5;
const GENERATOR_VIEWERS: u64 = 2000;
/// A server whose newcomers cost as much as 10 s of viewing needs half of this time to fill.
const SMOKE_SECONDS: u64 = 60;
const SMOKE_PROBE_SECONDS: u64 = 3;
/// One of these has to meet the figures. A machine that is slower for a few seconds, because of its
/// neighbours, asks viewers to leave as it should.
const SMOKE_RUNS: u32 = 4;
