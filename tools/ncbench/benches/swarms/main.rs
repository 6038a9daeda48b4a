//! Simulates swarms that do not fit on a machine, in virtual time and without sockets: a live
//! stream to thousands of viewers.
//!
//! `cargo bench --bench swarms -- [sizes] [uploads] [trouble] [relays] [--peers N] [--segments N]
//! [--upload R] [--download R] [--loss P] [--seed N] [--plots DIRECTORY]`. Needs no privileges and
//! one core; the same seed gives the same figures. Viewers run the client's protocol
//! (`peer::proto`) and its choice of neighbours, the server its directory, and a node that serves
//! an incomplete segment the relay's rows. The network between them (`world`) is a model, and so is
//! the scheduling of a session's requests (`sender`).
//!
//! Prints tables in Markdown, and plots them if a directory is given.

mod figures;
mod sender;
mod setup;
mod stream;
mod tables;
mod viewer;
mod world;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use setup::Setup;
use tables::Bench;

/// Options of the run.
#[derive(Debug, Parser)]
struct Arguments {
    /// Tables to make, by default all
    tables: Vec<Table>,
    /// Number of viewers in the largest swarm
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(10..=50_000),
    )]
    peers: u32,
    /// Segments of the stream; the first four are not counted
    #[arg(
        long,
        value_name = "N",
        default_value_t = 14,
        value_parser = clap::value_parser!(u32).range(5..=1000),
    )]
    segments: u32,
    /// Maximum upload of a viewer, as a multiple of the stream's bit rate
    #[arg(long, value_name = "RATE", default_value_t = 1.0, value_parser = positive)]
    upload: f64,
    /// Maximum download of a viewer, as a multiple of the stream's bit rate
    #[arg(long, value_name = "RATE", default_value_t = 10.0, value_parser = positive)]
    download: f64,
    /// Share of the datagrams that each path loses, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = share)]
    loss: f64,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Directory for plots
    #[arg(long, value_name = "DIRECTORY")]
    plots: Option<PathBuf>,
    /// Ignored: cargo passes it
    #[arg(long, hide = true)]
    bench: bool,
}

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Table {
    /// From 10 viewers to the maximum: without sharing, sharing with all, and in local networks
    Sizes,
    /// 50 viewers with different upload rates
    Uploads,
    /// 1,000 viewers, some of which come and go, fall silent, or send wrong blocks
    Trouble,
    /// Chains of relays that recode, compared with chains that only forward
    Relays,
}

fn main() {
    let arguments = Arguments::parse();
    let usual = Setup {
        segments: arguments.segments as usize,
        upload: arguments.upload,
        download: arguments.download,
        loss: arguments.loss,
        seed: arguments.seed,
        ..Setup::default()
    };
    let bench = Bench {
        usual,
        peers: arguments.peers as usize,
        plots: arguments.plots,
    };
    for table in Table::value_variants() {
        if arguments.tables.is_empty() || arguments.tables.contains(table) {
            match table {
                Table::Sizes => bench.sizes(),
                Table::Uploads => bench.uploads(),
                Table::Trouble => bench.trouble(),
                Table::Relays => bench.relays(),
            }
        }
    }
}

fn positive(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|rate| (0.01..=1000.0).contains(rate))
        .ok_or_else(|| "a number from 0.01 to 1000".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share| (0.0..=0.5).contains(share))
        .ok_or_else(|| "a number from 0 to 0.5".to_owned())
}
