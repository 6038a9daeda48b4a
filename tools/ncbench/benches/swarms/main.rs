//! Swarms that do not fit on a machine, in virtual time and without sockets: a live stream to thousands of viewers.
//!
//! `cargo bench --bench swarms -- [sizes] [uploads] [trouble] [relays] [--peers N] [--segments N] [--upload R] [--download R] [--loss P]
//! [--seed N] [--plots DIRECTORY]`. Needs no privileges and one core; the same seed gives the same figures. Viewers run the client's
//! protocol (`peer::proto`) and its choice of neighbours, the server its directory, and whoever serves before it is complete the relay's
//! rows. What is modelled is the network between them (`world`), and of sessions which request is served next (`sender`).
//!
//! Prints tables in Markdown, and draws them where a directory is named.

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

/// What is asked for.
#[derive(Debug, Parser)]
struct Arguments {
    /// Which tables; all without any
    tables: Vec<Table>,
    /// Viewers of the largest swarm
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(10..=50_000))]
    peers: u32,
    /// Segments of the stream, the first four of which do not count
    #[arg(long, value_name = "N", default_value_t = 14, value_parser = clap::value_parser!(u32).range(5..=1000))]
    segments: u32,
    /// What a viewer sends at most, in bitrates of the stream
    #[arg(long, value_name = "RATE", default_value_t = 1.0, value_parser = positive)]
    upload: f64,
    /// What a viewer takes at most, in bitrates of the stream
    #[arg(long, value_name = "RATE", default_value_t = 10.0, value_parser = positive)]
    download: f64,
    /// Share of the datagrams that each path loses
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = share)]
    loss: f64,
    /// What is random is drawn from this
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Where figures are drawn
    #[arg(long, value_name = "DIRECTORY")]
    plots: Option<PathBuf>,
    /// What cargo passes
    #[arg(long, hide = true)]
    bench: bool,
}

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Table {
    /// From 10 viewers to the most: each alone with the server, all together, and in local networks
    Sizes,
    /// 50 viewers with little and much upload
    Uploads,
    /// 1,000 viewers who come and go, are silent, or send wrong blocks
    Trouble,
    /// Chains of relays that recode beside such that pass on what arrives
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
    let bench = Bench { usual, peers: arguments.peers as usize, plots: arguments.plots };
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
    text.parse().ok().filter(|rate| (0.01..=1000.0).contains(rate)).ok_or_else(|| "a number from 0.01 to 1000".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|share| (0.0..=0.5).contains(share)).ok_or_else(|| "a number from 0 to 0.5".to_owned())
}
