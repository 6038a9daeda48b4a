//! The command line of `ncserverd`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use ncserverd::bench;
use ncserverd::codec::rs::Matrix;
use ncserverd::config::{Sources, parse_override};
use ncserverd::console;
use ncserverd::device::{BackendChoice, Choice, Field, Threads};
use ncserverd::gf::{Isa, RowKey};
use ncserverd::lab::demo;
use ncserverd::object::Shape;
use ncserverd::offline::{self, Amount, ChunkPlan, Code, Fountain, Raw};
use ncserverd::plan;

/// Network-coding streaming server: fetches media segments from an origin, encodes them in batches
/// and sends coded blocks to peers over QUIC.
///
/// Without a command the server starts. Without a configuration it listens on loopback and
/// publishes no stream; try
/// `ncserverd demo` first.
#[derive(Debug, Parser)]
#[command(name = "ncserverd", version, args_conflicts_with_subcommands = false, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) global: Global,
}

/// Flags that every command takes.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Configuration file (TOML); no file is read by default
    #[arg(long, short, global = true, value_name = "FILE", env = "NCSERVERD_CONFIG")]
    config: Option<PathBuf>,
    /// Set one key and override file and environment: --set ring.bytes=1GiB (repeatable)
    #[arg(long = "set", global = true, value_name = "SECTION.KEY=VALUE", value_parser = parse_override)]
    overrides: Vec<(String, String)>,
    /// Log more: -v logs debug messages of ncserverd, -vv those of its libraries too
    #[arg(long, short, global = true, action = ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve streams to peers (the default)
    Serve(Serve),
    /// Run a demonstration: origin, server, lossy network and peers in one process
    Demo(Demo),
    /// Measure encoding, recoding and decoding on this machine; every result is verified first
    Bench(Box<Bench>),
    /// Check whether this machine can serve this configuration, and say what to change
    Doctor(Doctor),
    /// Estimate the resources that a number of viewers needs, from a few seconds of measurement on
    /// this machine
    Plan(Plan),
    /// Check or print the configuration without starting the server
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Encode and decode files offline
    #[command(subcommand)]
    Codec(CodecCommand),
}

/// Shortcuts for frequently set keys.
#[derive(Debug, Default, Args)]
pub(crate) struct Serve {
    /// UDP address for peers; short for --set endpoint.listen=… (repeatable). Addresses other than
    /// loopback require [admission]
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// TCP address for /metrics, /healthz and /readyz; short for --set telemetry.listen=…
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// Publish a stream from an HTTP origin; short for --set stream.NAME.origin=URL (repeatable)
    #[arg(long, value_name = "NAME=URL", value_parser = parse_stream)]
    origin: Vec<(String, String)>,
    /// Publish a watched directory; short for --set stream.NAME.directory=PATH (repeatable)
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_stream)]
    directory: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Keep the server and the gateway running at the end, for a player
    #[arg(long)]
    pub(crate) keep: bool,
    /// Seed of the packet loss: the same seed loses the same packets
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Random packet loss in each direction, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = parse_percent)]
    pub(crate) loss: f64,
    /// Number of peers that fetch the stream
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) peers: u16,
    /// One-way delay
    #[arg(long, value_name = "DURATION", default_value = "10ms", value_parser = humantime::parse_duration)]
    pub(crate) delay: Duration,
    /// Fetch at full speed, the default without a terminal; on a terminal peers fetch at the clip's
    /// playback rate
    #[arg(long)]
    pub(crate) fast: bool,
    /// Address of the gateway that --keep leaves running
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
}

impl Demo {
    pub(crate) fn options(&self) -> demo::Options {
        demo::Options {
            peers: self.peers,
            loss: self.loss / 100.0,
            delay: self.delay,
            seed: self.seed,
            keep: self.keep,
            paced: !self.fast && console::is_watched(),
            gateway: self.listen,
            quiet: false,
        }
    }
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    set: Option<BenchSet>,
    #[command(flatten)]
    cases: Cases,
    #[command(flatten)]
    paper: Paper,
}

#[derive(Debug, Subcommand)]
enum BenchSet {
    /// Encode, decode, recode and invert for all n and k with every instruction set, on one core
    /// and on all; takes minutes
    Cpu(Cases),
}

/// Cases to measure.
#[derive(Debug, Args)]
struct Cases {
    /// Measure only cases whose name contains this text, such as encode/ or /128x4096
    filter: Option<String>,
    /// List the cases and exit
    #[arg(long)]
    list: bool,
    /// Use few shapes and short rounds; the figures are rough
    #[arg(long)]
    quick: bool,
    /// Blocks per generation, combined with every --k (repeatable, or separated by commas). In s4
    /// source symbols per source block, in s5 native chunks
    #[arg(long, value_name = "BLOCKS", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=56_403))]
    n: Vec<u16>,
    /// Bytes per block, combined with every --n (repeatable, or separated by commas). In s4 bytes
    /// per symbol, in s5 per chunk
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    k: Vec<u32>,
    /// Instruction sets to compare, by default all that this processor supports (repeatable, or
    /// separated by commas)
    #[arg(long, value_name = "ISA", value_delimiter = ',')]
    isa: Vec<Isa>,
    /// Threads of the device and of cases that use all cores; by default one per core
    #[arg(long, value_name = "COUNT", default_value_t = Threads::Auto)]
    threads: Threads,
    /// Also write the results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Rows of the papers, measured in place of the cases.
#[derive(Debug, Args)]
#[command(next_help_heading = "The papers' figures")]
pub(crate) struct Paper {
    /// Measure the rows of s1, s2, s4, s5, claim (GPU beside CPU), figures (our own) or all
    /// (repeatable, or separated by commas)
    #[arg(long, value_name = "PAPER", value_delimiter = ',')]
    paper: Vec<PaperName>,
    /// Measure these rows, such as S1-6 (repeatable, or separated by commas)
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    row: Vec<String>,
    /// Measure only these GPU kernels and these contenders of s4 and s5 (repeatable, or separated
    /// by commas)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    kernel: Vec<String>,
    /// Measure all sizes in the figures of s4 and s5 instead of a selection; takes hours and up to
    /// 4 GB of memory
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Back ends to measure
    #[arg(long, value_name = "BACKEND", default_value = "all")]
    backend: BenchBackend,
    /// Field polynomial of the GPU's encode kernels: 0x11d, or Rijndael's 0x11b as in S2
    #[arg(long, value_name = "POLYNOMIAL", default_value = "0x11d", value_parser = parse_field)]
    field: Field,
    /// Plot every row into this directory, as SVG
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Read records written by --json instead of measuring (repeatable, or separated by commas)
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    from: Vec<PathBuf>,
    /// Write the results of all rows into this document, between its markers
    #[arg(long, value_name = "FILE", requires = "from")]
    document: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PaperName {
    S1,
    S2,
    S3,
    S4,
    S5,
    Claim,
    Figures,
    All,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum BenchBackend {
    All,
    Cpu,
    Cuda,
}

impl Paper {
    /// None if no row is asked for.
    fn papers(self) -> Option<bench::Papers> {
        let Self { paper, row: rows, kernel: kernels, full, backend, field, plots, from, document } = self;
        if paper.is_empty() && rows.is_empty() && from.is_empty() {
            return None;
        }
        let is_wanted = |group: &bench::Group| {
            paper.iter().any(|paper| match paper {
                PaperName::All => true,
                PaperName::S1 => *group == bench::Group::S1,
                PaperName::S2 => *group == bench::Group::S2,
                PaperName::S3 => *group == bench::Group::S3,
                PaperName::S4 => *group == bench::Group::S4,
                PaperName::S5 => *group == bench::Group::S5,
                PaperName::Claim => *group == bench::Group::Claim,
                PaperName::Figures => *group == bench::Group::Figures,
            })
        };
        let groups = bench::Group::ALL.into_iter().filter(is_wanted).collect();
        let backend = match backend {
            BenchBackend::All => bench::Backend::All,
            BenchBackend::Cpu => bench::Backend::Cpu,
            BenchBackend::Cuda => bench::Backend::Cuda,
        };
        Some(bench::Papers { groups, rows, kernels, full, backend, field, plots, document, from })
    }
}

impl Bench {
    pub(crate) fn options(self) -> bench::Options {
        let papers = self.paper.papers();
        let (set, cases) = match self.set {
            None => (bench::Set::All, self.cases),
            Some(BenchSet::Cpu(cases)) => (bench::Set::Cpu, cases),
        };
        let Cases { filter, list, quick, n, k, isa, threads, json } = cases;
        let command = std::env::args().collect::<Vec<_>>().join(" ");
        bench::Options { set, filter, list, quick, n, k, isas: isa, threads, json, papers, command }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The configuration's first stream gives n and k; without a stream they are chosen.
#[derive(Debug, Args)]
pub(crate) struct Plan {
    /// Concurrent viewers
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    peers: u32,
    /// Bit rate of each viewer in bits per second, such as 768000, 768k or 3M
    #[arg(long, value_name = "RATE", value_parser = parse_bitrate)]
    bitrate: f64,
    /// Packet loss rate between server and viewers, such as 0.01 or 1%
    #[arg(long, value_name = "PART", default_value = "0", value_parser = parse_loss)]
    loss: f64,
    /// Playback duration of a segment
    #[arg(long, value_name = "DURATION", default_value = "4s", value_parser = humantime::parse_duration)]
    segment: Duration,
    /// Round-trip time to the viewers
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = humantime::parse_duration)]
    rtt: Duration,
    /// Concurrent streams
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    streams: u32,
}

impl Plan {
    pub(crate) fn options(&self) -> plan::Options {
        let Self { peers, bitrate, loss, segment, rtt, streams } = *self;
        plan::Options { peers, bitrate, loss, segment, rtt, streams }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the configuration, and show its sources, the keys they set and warnings
    Check,
    /// Print the complete configuration as TOML
    Print,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CodecCommand {
    /// Print one coefficient vector in hexadecimal
    Row(Row),
    /// Encode a file: into raw coded blocks with --key, otherwise into a directory of
    /// self-describing block files; into symbols with --codec raptorq or raptor10, into chunks with
    /// --codec rs
    Encode(Encode),
    /// Decode a file from a directory of block files or chunk files, and verify it
    Decode(Decode),
}

#[derive(Debug, Args)]
pub(crate) struct Row {
    /// Key of the segment, such as 0x0123456789abcdef
    #[arg(long, value_parser = parse_integer)]
    pub(crate) key: u64,
    /// Index of the generation
    #[arg(long, value_parser = parse_integer)]
    pub(crate) generation: u64,
    /// Seed of the coefficient vector
    #[arg(long)]
    pub(crate) seed: u32,
    /// Blocks in the generation, which is the number of coefficients
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) n: u16,
}

#[derive(Debug, Args)]
pub(crate) struct Encode {
    /// File to encode, - for standard input
    pub(crate) file: PathBuf,
    /// Code to use
    #[arg(long, value_enum, default_value_t = Codec::Rlnc)]
    pub(crate) codec: Codec,
    /// Bytes per block or symbol, by default 4096. With --codec rs: native chunks, by default 4;
    /// any k chunks rebuild the file
    #[arg(long)]
    pub(crate) k: Option<u32>,
    /// Blocks in the generation, up to 1024; by default as many as the file needs. For block files:
    /// blocks per generation at most, by default 128. With --codec raptorq: source symbols per
    /// source block at most, by default 56403; with raptor10 8192. With --codec rs: chunks in
    /// total, up to 256, by default 6
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) n: Option<u16>,
    /// Generator matrix of the code chunks, by default cauchy: cauchy, as ISA-L
    /// (gf_gen_cauchy1_matrix); vand-bb, as Backblaze and reed-solomon-erasure; vand-jerasure, as
    /// Jerasure (reed_sol_van); isal-rs, as ISA-L (gf_gen_rs_matrix)
    #[arg(long)]
    pub(crate) matrix: Option<Matrix>,
    /// Bytes of each chunk in a stripe, by default 262144. Each stripe is checked and rebuilt on
    /// its own
    #[arg(long, value_name = "BYTES")]
    pub(crate) piece: Option<u32>,
    /// Key of the coefficient vectors; writes concatenated raw blocks
    #[arg(long, value_parser = parse_integer)]
    pub(crate) key: Option<u64>,
    /// Index of the generation, by default 0
    #[arg(long, requires = "key", value_parser = parse_integer)]
    pub(crate) generation: Option<u64>,
    /// Seed of the first block; later blocks count up and wrap. By default 0 for raw blocks and
    /// random for block files
    #[arg(long)]
    pub(crate) seed: Option<u32>,
    /// Id of the first encoding symbol, by default 0. Source symbols have the lowest ids, and
    /// repair symbols follow them
    #[arg(long, value_name = "ID")]
    pub(crate) esi: Option<u32>,
    /// Number of coded blocks or symbols to write, by default 1. For block files: per generation,
    /// by default one eighth more than its source blocks
    #[arg(long)]
    pub(crate) count: Option<u32>,
    /// Number of block files per generation beyond its source blocks, or per source block beyond
    /// its source symbols
    #[arg(long, value_name = "BLOCKS", conflicts_with_all = ["count", "key"])]
    pub(crate) extra: Option<u32>,
    /// File for raw blocks (- for standard output), or directory for block files. For chunks:
    /// directory, by default FILE.chunks
    #[arg(long, short)]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) coders: Coders,
}

/// Back ends that encode or decode.
#[derive(Debug, Args)]
pub(crate) struct Coders {
    /// Back end: the CPU, a GPU, or hybrid, where both take the next work item as soon as they are
    /// free. auto uses a GPU if one works
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// Number of the GPU in the driver's order, by default 0
    #[arg(long, value_name = "NUMBER")]
    gpu: Option<u16>,
}

/// As in the configuration of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Backend {
    Auto,
    Cpu,
    Cuda,
    Hybrid,
}

impl Coders {
    /// Who is meant, unless a GPU is named and none is to take part.
    pub(crate) fn choice(&self) -> Result<Choice, clap::Error> {
        let backend = match self.backend {
            Backend::Auto => BackendChoice::Auto,
            Backend::Cpu => BackendChoice::Cpu,
            Backend::Cuda => BackendChoice::Cuda,
            Backend::Hybrid => BackendChoice::Hybrid,
        };
        if self.gpu.is_some() && self.backend == Backend::Cpu {
            let text = "--gpu selects a GPU and needs --backend auto, cuda or hybrid";
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, text));
        }
        Ok(Choice { backend, gpu: self.gpu.unwrap_or(0) })
    }
}

/// What a file can be made into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Codec {
    /// Random linear network coding over GF(2^8)/0x11D: blocks
    Rlnc,
    /// Reed-Solomon over GF(2^8)/0x11D: k native and n - k code chunks; any k of them rebuild the
    /// file
    Rs,
    /// RaptorQ (RFC 6330): source and repair symbols, as blocks
    #[value(name = "raptorq")]
    RaptorQ,
    /// Raptor10 (RFC 5053): source and repair symbols, as blocks
    Raptor10,
}

/// What `codec encode` is to write.
#[derive(Debug)]
pub(crate) enum Coding {
    /// Payloads into a file.
    Raw(Raw, PathBuf),
    /// Block files into a directory.
    Blocks(offline::Plan, PathBuf),
    /// Chunk files into a directory, or beside the file.
    Chunks(ChunkPlan, Option<PathBuf>),
}

impl Encode {
    /// What is meant, or which options do not go with each other.
    pub(crate) fn coding(&self) -> Result<Coding, clap::Error> {
        let usage = |kind, text: &str| Cli::command().error(kind, text);
        if self.codec == Codec::Rs {
            let numbers = [self.seed, self.esi, self.count, self.extra];
            if self.key.is_some() || self.generation.is_some() || numbers.iter().any(Option::is_some) {
                let text = "--key, --generation, --seed, --esi, --count and --extra are for blocks, not for --codec rs";
                return Err(usage(ErrorKind::ArgumentConflict, text));
            }
            let Ok(k) = u16::try_from(self.k.unwrap_or(4)) else {
                return Err(usage(ErrorKind::ValueValidation, "--codec rs takes at most 255 native chunks (--k)"));
            };
            return Ok(Coding::Chunks(self.chunks(k), self.output.clone()));
        }
        if self.matrix.is_some() || self.piece.is_some() {
            return Err(usage(ErrorKind::ArgumentConflict, "--matrix and --piece are for chunks: they need --codec rs"));
        }
        let Some(output) = self.output.clone() else {
            return Err(usage(ErrorKind::MissingRequiredArgument, "blocks need an output file or directory: --output <OUTPUT>"));
        };
        let Some(fountain) = self.fountain() else {
            if self.esi.is_some() {
                return Err(usage(
                    ErrorKind::ArgumentConflict,
                    "--esi is for encoding symbols: it needs --codec raptorq or raptor10",
                ));
            }
            if self.n.is_some_and(|n| n > Shape::N_LIMIT) {
                return Err(usage(ErrorKind::ValueValidation, "a generation has at most 1024 blocks (--n)"));
            }
            if self.key.is_some() && self.coders.backend != Backend::Cpu {
                return Err(usage(
                    ErrorKind::ArgumentConflict,
                    "only the CPU makes raw blocks: --backend is for block files and chunks",
                ));
            }
            let raw = self.raw().map(|raw| Coding::Raw(raw, output.clone()));
            return Ok(raw.unwrap_or_else(|| Coding::Blocks(self.plan(), output)));
        };
        if self.key.is_some() || self.seed.is_some() {
            let text = "--key and --seed are for random linear blocks: symbols have ids (--esi)";
            return Err(usage(ErrorKind::ArgumentConflict, text));
        }
        let (n_max, first) = (self.n.unwrap_or_else(|| fountain.n_limit()), self.esi.unwrap_or(0));
        Ok(Coding::Blocks(offline::Plan { code: Code::Fountain(fountain), n_max, first, ..self.plan() }, output))
    }

    /// The code whose symbols are meant, if symbols are.
    fn fountain(&self) -> Option<Fountain> {
        match self.codec {
            Codec::Rlnc | Codec::Rs => None,
            Codec::RaptorQ => Some(Fountain::RaptorQ),
            Codec::Raptor10 => Some(Fountain::Raptor10),
        }
    }

    /// What chunks are meant. What there cannot be is refused where codes are made.
    fn chunks(&self, k: u16) -> ChunkPlan {
        let (matrix, piece_bytes) = (self.matrix.unwrap_or_default(), self.piece.unwrap_or(ChunkPlan::PIECE_BYTES));
        ChunkPlan { matrix, k, n: self.n.unwrap_or(6), piece_bytes, set: rand::random() }
    }

    /// Which raw blocks are meant, if raw ones are.
    fn raw(&self) -> Option<Raw> {
        let key = RowKey { key: self.key?, generation: self.generation.unwrap_or(0) };
        let (first_seed, count) = (self.seed.unwrap_or(0), self.count.unwrap_or(1));
        Some(Raw { key, first_seed, count, n: self.n, block_bytes: self.block_bytes() })
    }

    fn block_bytes(&self) -> u32 {
        self.k.unwrap_or(4096)
    }

    /// What block files are meant. Seeds start anywhere, so that a second run makes other blocks.
    fn plan(&self) -> offline::Plan {
        let amount = match (self.count, self.extra) {
            (Some(count), _) => Amount::Count(count),
            (None, Some(extra)) => Amount::Extra(extra),
            (None, None) => Amount::Auto,
        };
        offline::Plan {
            code: Code::Rlnc,
            block_bytes: self.block_bytes(),
            n_max: self.n.unwrap_or(128),
            first: self.seed.unwrap_or_else(rand::random),
            amount,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Decode {
    /// Directory with block files or chunk files
    pub(crate) directory: PathBuf,
    /// File to write, - for standard output
    #[arg(long, short)]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) coders: Coders,
}

impl Cli {
    /// What `-v` asks for.
    pub(crate) fn log_filter(&self) -> Option<&'static str> {
        match self.global.verbose {
            0 => None,
            1 => Some("info,ncserverd=debug"),
            _ => Some(VERBOSE),
        }
    }

    /// Where the configuration comes from: shortcuts are overrides too, and stand before `--set`,
    /// which wins.
    pub(crate) fn sources(&self) -> Sources {
        let mut overrides = Vec::new();
        if let Some(filter) = self.log_filter() {
            overrides.push(("telemetry.log_filter".into(), filter.into()));
        }
        if let Some(Command::Serve(serve)) = &self.command {
            overrides.extend(serve.overrides());
        }
        overrides.extend(self.global.overrides.iter().cloned());
        // Variables that are not Unicode cannot name a key.
        let environment =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Sources { file: self.global.config.clone(), environment: environment.collect(), overrides }
    }
}

impl Serve {
    fn overrides(&self) -> Vec<(String, String)> {
        let listen = (!self.listen.is_empty()).then(|| ("endpoint.listen".to_owned(), self.listen.join(",")));
        let metrics = self.metrics.iter().map(|address| ("telemetry.listen".to_owned(), address.clone()));
        let origins = self.origin.iter().map(|(name, url)| (format!("stream.{name}.origin"), url.clone()));
        let directories = self.directory.iter().map(|(name, path)| (format!("stream.{name}.directory"), path.clone()));
        listen.into_iter().chain(metrics).chain(origins).chain(directories).collect()
    }
}

fn parse_stream(text: &str) -> Result<(String, String), String> {
    let name_and_source =
        text.split_once('=').filter(|(name, source)| !name.is_empty() && !name.contains('.') && !source.is_empty());
    name_and_source
        .map(|(name, source)| (name.into(), source.into()))
        .ok_or_else(|| "expected NAME=SOURCE: a stream's name and its URL or directory".into())
}

fn parse_field(text: &str) -> Result<Field, String> {
    match text.to_ascii_lowercase().as_str() {
        "0x11d" => Ok(Field::Standard),
        "0x11b" => Ok(Field::Rijndael),
        _ => Err("expected 0x11d or 0x11b".into()),
    }
}

fn parse_percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse() {
        Ok(percent) if (0.0..100.0).contains(&percent) => Ok(percent),
        _ => Err("expected a percentage from 0 to less than 100".into()),
    }
}

/// A part, or a percentage if it says so.
fn parse_loss(text: &str) -> Result<f64, String> {
    let part = match text.strip_suffix('%') {
        Some(percent) => percent.trim_end().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    match part {
        Ok(part) if (0.0..1.0).contains(&part) => Ok(part),
        _ => Err("expected a loss rate below 1, such as 0.01, or a percentage, such as 1%".into()),
    }
}

fn parse_bitrate(text: &str) -> Result<f64, String> {
    let units = [('k', 1e3), ('M', 1e6), ('G', 1e9)];
    let unit = units.into_iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (number, factor) = unit.unwrap_or((text, 1.0));
    match number.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate * factor),
        _ => Err("expected bits per second, such as 768000, 768k or 3M".into()),
    }
}

fn parse_integer(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| error.to_string())
}

const VERBOSE: &str = "debug,quinn=debug,rustls=debug,hyper=debug,reqwest=debug,h2=debug,axum=debug,notify=debug";

const AFTER_HELP: &str = "\
Examples:
  ncserverd demo                                     watch network coding repair packet loss
  ncserverd serve --origin live=http://127.0.0.1:8080/hls/
                                                     publish an HLS origin as stream `live`
  ncserverd --config ncserverd.toml config check     check and explain a configuration
  ncserverd --config ncserverd.toml doctor           check whether this machine can serve it
  ncserverd plan --peers 10000 --bitrate 768k        estimate the resources for 10000 viewers

Exit codes: 0 done, 1 failed while running, 2 wrong usage, 3 invalid configuration,
4 no certificate, 5 no device, 6 cannot listen, 7 result incomplete or wrong,
8 a check of doctor or config check failed, 9 stopped, but a thread hung and did not end,
10 an essential part of the server died, 141 the output pipe was closed.";

#[cfg(test)]
mod tests {
    use super::*;

    fn overrides(arguments: &[&str]) -> Vec<(String, String)> {
        Cli::try_parse_from(["ncserverd"].iter().chain(arguments)).unwrap().sources().overrides
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn shortcuts_stand_before_set() {
        let given =
            overrides(&["serve", "--listen", "[::]:1", "--origin", "a=http://x/?q=1", "--set", "endpoint.listen=[::]:2", "-v"]);
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            given,
            [
                pair("telemetry.log_filter", "info,ncserverd=debug"),
                pair("endpoint.listen", "[::]:1"),
                pair("stream.a.origin", "http://x/?q=1"),
                pair("endpoint.listen", "[::]:2"),
            ]
        );
    }

    #[test]
    fn flags_may_stand_before_or_after_the_command() {
        assert_eq!(overrides(&["--set", "ring.bytes=1GiB", "serve"]), overrides(&["serve", "--set", "ring.bytes=1GiB"]));
        assert_eq!(overrides(&["--set", "ring.bytes=1GiB"]).len(), 1);
    }

    #[test]
    fn a_bench_is_of_one_set() {
        let options =
            |arguments: &[&str]| match Cli::try_parse_from(["ncserverd", "bench"].iter().chain(arguments)).unwrap().command {
                Some(Command::Bench(bench)) => bench.options(),
                other => panic!("{other:?}"),
            };
        let cpu = options(&["cpu", "--n", "64", "--isa", "ssse3", "--threads", "3", "encode/"]);
        assert_eq!(
            (cpu.set, cpu.n, cpu.isas, cpu.filter.as_deref()),
            (bench::Set::Cpu, vec![64], vec![Isa::Ssse3], Some("encode/"))
        );
        assert_eq!(cpu.threads.count(), 3);
        let all = options(&["--k", "1024", "decode/"]);
        assert_eq!((all.set, all.k, all.filter.as_deref()), (bench::Set::All, vec![1024], Some("decode/")));
        assert_eq!(options(&[]).set, bench::Set::All);
    }

    #[test]
    fn rates_and_losses_have_units() {
        assert_eq!(["768000", "768k", "0.768M"].map(|text| parse_bitrate(text).unwrap()), [768_000.0; 3]);
        assert_eq!(["0.01", "1%", "1 %"].map(|text| parse_loss(text).unwrap()), [0.01; 3]);
    }

    #[test]
    fn odd_values_are_refused() {
        for arguments in [
            &["--set", "bytes=1"][..],
            &["--set", "ring.bytes"],
            &["serve", "--origin", "=x"],
            &["demo", "--loss", "100"],
            &["demo", "--loss", "nan"],
            &["demo", "--peers", "0"],
            &["bench", "cpu", "--row", "S1-6"],
            &["plan", "--bitrate", "768k"],
            &["plan", "--peers", "0", "--bitrate", "768k"],
            &["plan", "--peers", "1", "--bitrate", "0"],
            &["plan", "--peers", "1", "--bitrate", "-1k"],
            &["plan", "--peers", "1", "--bitrate", "inf"],
            &["plan", "--peers", "1", "--bitrate", "768k", "--loss", "1"],
            &["plan", "--peers", "1", "--bitrate", "768k", "--loss", "100%"],
            &["plan", "--peers", "1", "--bitrate", "768k", "--loss", "nan"],
            &["codec", "row", "--key", "0xg", "--generation", "1", "--seed", "1", "--n", "1"],
            &["codec", "row", "--key", "1", "--generation", "1", "--seed", "1", "--n", "0"],
        ] {
            assert!(Cli::try_parse_from(["ncserverd"].iter().chain(arguments)).is_err(), "{arguments:?}");
        }
    }
}
