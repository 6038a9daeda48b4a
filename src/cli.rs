//! The command line of `ncserverd`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand};
use ncserverd::bench;
use ncserverd::config::{Sources, parse_override};
use ncserverd::console;
use ncserverd::device::Threads;
use ncserverd::lab::demo;
use ncserverd::plan;

/// Network-coding streaming server: fetches media segments from an origin, encodes them in batches
/// and sends coded blocks to peers over QUIC.
///
/// Without a command the server starts. Without a configuration it listens on loopback and
/// publishes no stream; try `ncserverd demo` first.
#[derive(Debug, Parser)]
#[command(
    name = "ncserverd",
    version,
    args_conflicts_with_subcommands = false,
    after_help = AFTER_HELP,
)]
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
    #[arg(
        long,
        short,
        global = true,
        value_name = "FILE",
        env = "NCSERVERD_CONFIG"
    )]
    config: Option<PathBuf>,
    /// Set one key and override file and environment: --set ring.bytes=1GiB (repeatable)
    #[arg(
        long = "set",
        global = true,
        value_name = "SECTION.KEY=VALUE",
        value_parser = parse_override,
    )]
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
    /// Measure how fast each instruction set and each GPU kernel of this machine encodes; every
    /// result is verified first
    Bench(Bench),
    /// Check whether this machine can serve this configuration, and say what to change
    Doctor(Doctor),
    /// Estimate the resources that a number of viewers needs, from a few seconds of measurement on
    /// this machine
    Plan(Plan),
    /// Look at the fleet that this configuration names
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Check or print the configuration without starting the server
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Print the servers that beat, with their load; on a terminal until it is interrupted
    Status {
        /// Print once, on a terminal too
        #[arg(long)]
        once: bool,
    },
    /// Check a document of streams and keys as this server would, show what it changes, and have
    /// all servers take it
    Apply {
        /// The document (TOML): sections [stream.NAME] and [admission]
        file: PathBuf,
        /// Refuse unless this revision is the newest one; 0 for none
        #[arg(long, value_name = "REVISION")]
        base: Option<u64>,
        /// Only show what changes
        #[arg(long)]
        dry_run: bool,
        /// Agree to what changes. Without it the command asks on a terminal; elsewhere it refuses
        /// to remove a stream or the keys of tokens
        #[arg(long)]
        yes: bool,
    },
    /// Print the configuration that the servers share, and which revisions are kept
    Config {
        /// A revision other than the newest
        revision: Option<u64>,
    },
    /// Have all servers take an earlier revision again
    Rollback {
        /// The revision to take up; by default the one before
        revision: Option<u64>,
        /// Write it although servers that beat cannot open its secrets
        #[arg(long)]
        force: bool,
    },
}

/// Shortcuts for frequently set keys.
#[derive(Debug, Default, Args)]
pub(crate) struct Serve {
    /// UDP address for peers; short for --set endpoint.listen=… (repeatable). Addresses other than
    /// loopback require [admission]
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// TCP address for the page for operators, /metrics, /healthz and /readyz; short for --set
    /// telemetry.listen=…
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// Publish a stream from an HTTP origin; short for --set stream.NAME.origin=URL (repeatable)
    #[arg(long, value_name = "NAME=URL", value_parser = parse_stream)]
    origin: Vec<(String, String)>,
    /// Publish a watched folder; short for --set stream.NAME.directory=PATH (repeatable)
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
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 3,
        value_parser = clap::value_parser!(u16).range(1..=64),
    )]
    pub(crate) peers: u16,
    /// One-way delay
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "10ms",
        value_parser = humantime::parse_duration,
    )]
    pub(crate) delay: Duration,
    /// Fetch at full speed, the default without a terminal; on a terminal peers fetch at the clip's
    /// playback rate
    #[arg(long)]
    pub(crate) fast: bool,
    /// Print the URL of a page that plays the clip in a browser through the same loss, beside a
    /// plain stream, and keep it running
    #[arg(long, conflicts_with_all = ["keep", "peers"])]
    pub(crate) web: bool,
    /// Address of the gateway that --keep leaves running, or of the page of --web
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
            web: self.web,
            paced: !self.fast && (self.web || console::is_watched()),
            gateway: self.listen,
            quiet: false,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Blocks per generation
    #[arg(
        long,
        value_name = "BLOCKS",
        default_value_t = 128,
        value_parser = clap::value_parser!(u16).range(1..=1024),
    )]
    n: u16,
    /// Bytes per block
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    k: u32,
    /// Threads of the CPU; by default one per core
    #[arg(long, value_name = "COUNT", default_value_t = Threads::Auto)]
    threads: Threads,
    /// How long each kernel is measured
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1s",
        value_parser = humantime::parse_duration,
    )]
    time: Duration,
}

impl Bench {
    pub(crate) fn options(&self) -> bench::Options {
        let Self {
            n,
            k,
            threads,
            time,
        } = *self;
        bench::Options {
            n,
            k,
            threads,
            time,
        }
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
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "4s",
        value_parser = humantime::parse_duration,
    )]
    segment: Duration,
    /// Round-trip time to the viewers
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "50ms",
        value_parser = humantime::parse_duration,
    )]
    rtt: Duration,
    /// Concurrent streams
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    streams: u32,
}

impl Plan {
    pub(crate) fn options(&self) -> plan::Options {
        let Self {
            peers,
            bitrate,
            loss,
            segment,
            rtt,
            streams,
        } = *self;
        plan::Options {
            peers,
            bitrate,
            loss,
            segment,
            rtt,
            streams,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the configuration, and show its sources, the keys they set and warnings
    Check,
    /// Print the complete configuration as TOML
    Print,
}

impl Cli {
    /// The log filter of `-v`.
    pub(crate) fn log_filter(&self) -> Option<&'static str> {
        match self.global.verbose {
            0 => None,
            1 => Some("info,ncserverd=debug"),
            _ => Some(VERBOSE),
        }
    }

    /// The sources of the configuration. Shortcuts are overrides too; `--set` comes after them and
    /// wins.
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
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Sources {
            file: self.global.config.clone(),
            environment: environment.collect(),
            overrides,
            document: None,
        }
    }
}

impl Serve {
    fn overrides(&self) -> Vec<(String, String)> {
        let listen = (!self.listen.is_empty())
            .then(|| ("endpoint.listen".to_owned(), self.listen.join(",")));
        let metrics = self
            .metrics
            .iter()
            .map(|address| ("telemetry.listen".to_owned(), address.clone()));
        let origins = self
            .origin
            .iter()
            .map(|(name, url)| (format!("stream.{name}.origin"), url.clone()));
        let directories = self
            .directory
            .iter()
            .map(|(name, path)| (format!("stream.{name}.directory"), path.clone()));
        listen
            .into_iter()
            .chain(metrics)
            .chain(origins)
            .chain(directories)
            .collect()
    }
}

fn parse_stream(text: &str) -> Result<(String, String), String> {
    let name_and_source = text
        .split_once('=')
        .filter(|(name, source)| !name.is_empty() && !name.contains('.') && !source.is_empty());
    name_and_source
        .map(|(name, source)| (name.into(), source.into()))
        .ok_or_else(|| "expected NAME=SOURCE: a stream's name and its URL or folder".into())
}

fn parse_percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse() {
        Ok(percent) if (0.0..100.0).contains(&percent) => Ok(percent),
        _ => Err("expected a percentage from 0 to less than 100".into()),
    }
}

/// A fraction, or a percentage with `%`.
fn parse_loss(text: &str) -> Result<f64, String> {
    let part = match text.strip_suffix('%') {
        Some(percent) => percent
            .trim_end()
            .parse::<f64>()
            .map(|percent| percent / 100.0),
        None => text.parse(),
    };
    match part {
        Ok(part) if (0.0..1.0).contains(&part) => Ok(part),
        _ => Err("expected a loss rate below 1, such as 0.01, or a percentage, such as 1%".into()),
    }
}

fn parse_bitrate(text: &str) -> Result<f64, String> {
    let units = [('k', 1e3), ('M', 1e6), ('G', 1e9)];
    let unit = units
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (number, factor) = unit.unwrap_or((text, 1.0));
    match number.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate * factor),
        _ => Err("expected bits per second, such as 768000, 768k or 3M".into()),
    }
}

const VERBOSE: &str =
    "debug,quinn=debug,rustls=debug,hyper=debug,reqwest=debug,h2=debug,axum=debug,notify=debug";

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
    use clap::CommandFactory;

    use super::*;

    fn overrides(arguments: &[&str]) -> Vec<(String, String)> {
        Cli::try_parse_from(["ncserverd"].iter().chain(arguments))
            .unwrap()
            .sources()
            .overrides
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn shortcuts_stand_before_set() {
        let given = overrides(&[
            "serve",
            "--listen",
            "[::]:1",
            "--origin",
            "a=http://x/?q=1",
            "--set",
            "endpoint.listen=[::]:2",
            "-v",
        ]);
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
        assert_eq!(
            overrides(&["--set", "ring.bytes=1GiB", "serve"]),
            overrides(&["serve", "--set", "ring.bytes=1GiB"])
        );
        assert_eq!(overrides(&["--set", "ring.bytes=1GiB"]).len(), 1);
    }

    #[test]
    fn rates_and_losses_have_units() {
        assert_eq!(
            ["768000", "768k", "0.768M"].map(|text| parse_bitrate(text).unwrap()),
            [768_000.0; 3]
        );
        assert_eq!(
            ["0.01", "1%", "1 %"].map(|text| parse_loss(text).unwrap()),
            [0.01; 3]
        );
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
            &["bench", "--n", "0"],
            &["plan", "--bitrate", "768k"],
            &["plan", "--peers", "0", "--bitrate", "768k"],
            &["plan", "--peers", "1", "--bitrate", "0"],
            &["plan", "--peers", "1", "--bitrate", "-1k"],
            &["plan", "--peers", "1", "--bitrate", "inf"],
            &["plan", "--peers", "1", "--bitrate", "768k", "--loss", "1"],
            &[
                "plan",
                "--peers",
                "1",
                "--bitrate",
                "768k",
                "--loss",
                "100%",
            ],
            &["plan", "--peers", "1", "--bitrate", "768k", "--loss", "nan"],
        ] {
            assert!(
                Cli::try_parse_from(["ncserverd"].iter().chain(arguments)).is_err(),
                "{arguments:?}"
            );
        }
    }
}
