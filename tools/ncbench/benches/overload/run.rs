//! One cell: a server, a swarm, and what both say.

use std::fs;
use std::io;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nctest::daemon::{Daemon, certify};
use nctest::process::Process;
use nctest::program::beside as program;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::Arguments;
use crate::host::Host;
use crate::usage::{Look, Watch};

/// Who asks, and for what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) viewers: u64,
    pub(crate) rate: u64,
    pub(crate) time: u64,
    pub(crate) is_plain: bool,
    pub(crate) bitrate: u64,
}

/// What both sides say.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) swarm: Swarm,
    pub(crate) server: Server,
    pub(crate) seconds: Vec<Second>,
}

/// What the swarm writes.
#[derive(Deserialize)]
struct Report {
    #[serde(flatten)]
    swarm: Swarm,
    seconds: Vec<Second>,
}

/// What the viewers report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Swarm {
    pub(crate) totals: Totals,
    pub(crate) first_segment: Times,
    pub(crate) waiting: Times,
    pub(crate) served_share: f64,
    pub(crate) goodput_bits: f64,
    pub(crate) played_share: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) elapsed_seconds: f64,
}

/// What a record keeps of what the swarm counts.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub(crate) asked: u64,
    pub(crate) served: u64,
    pub(crate) refused: u64,
    pub(crate) refused_viewers: u64,
    pub(crate) never_in: u64,
    pub(crate) put_out: u64,
    pub(crate) put_out_times: u64,
    pub(crate) joined: u64,
    pub(crate) failed: u64,
    pub(crate) on_time: u64,
    pub(crate) late: u64,
    pub(crate) verified: u64,
    pub(crate) corrupt: u64,
}

/// Times that half and nearly all lie below, in milliseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) count: u64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

/// A second, from the beginning on.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Second {
    pub(crate) second: f64,
    pub(crate) viewers: u64,
    pub(crate) joined: u64,
    pub(crate) refused: u64,
    pub(crate) put_out: u64,
    pub(crate) late: u64,
    pub(crate) goodput: f64,
    /// Of the viewers.
    pub(crate) cores: f64,
}

/// What the server took.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Server {
    /// Processors, from the time when all viewers have asked to the end.
    pub(crate) cores: f64,
    /// Bytes of memory at most.
    pub(crate) resident: u64,
    /// Percent of the time that the GPU is busy, at most.
    pub(crate) gpu_busy: Option<f64>,
}

/// Whom viewers ask.
enum Served {
    Coded(Box<Daemon>),
    Plain(Process),
}

impl Served {
    fn process(&mut self) -> &mut Process {
        match self {
            Self::Coded(daemon) => &mut daemon.process,
            Self::Plain(process) => process,
        }
    }
}

/// How many viewers the server has time for, from what a few take.
pub(crate) fn estimate(arguments: &Arguments, host: &Host) -> Result<u64, String> {
    let load = Load {
        viewers: PROBE_VIEWERS,
        rate: PROBE_VIEWERS,
        time: PROBE_SECONDS,
        is_plain: false,
        bitrate: arguments.bitrate,
    };
    let Outcome { server, .. } = run(arguments, load, host)?;
    let processors = match &arguments.server_cores {
        Some(list) => count(list)?,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let each = server.cores / PROBE_VIEWERS as f64;
    let processors = processors as f64;
    Ok(crate::viewers(1, FULL * processors / each.max(1e-6)))
}

/// Serves such a load, and ends.
pub(crate) fn run(arguments: &Arguments, load: Load, host: &Host) -> Result<Outcome, String> {
    let directory =
        tempfile::tempdir().map_err(|error| format!("a temporary directory: {error}"))?;
    let (mut served, url) = serve(arguments, load, directory.path())?;
    let asks_gpu = arguments.backend == "cuda" && !load.is_plain && host.has_gpu();
    let watch = Watch::start(served.process().0.id(), asks_gpu);
    let report = directory.path().join("swarm.json");
    let begin = Instant::now();
    let mut swarm = Process::start(&mut swarm(arguments, load, &url, &report));
    let asking = Duration::from_secs_f64(load.viewers as f64 / load.rate as f64);
    let time = Duration::from_secs(load.time);
    let status = swarm
        .wait(asking + time + PATIENCE)
        .ok_or("the swarm does not end")?;
    if !status.success() {
        return Err(format!("the swarm ended with {status}"));
    }
    let looks = watch.looks();
    drop(watch);
    if served.process().ended().is_some() {
        return Err("the server has ended early".to_owned());
    }
    served.process().signal("TERM");
    served
        .process()
        .wait(PATIENCE)
        .ok_or("the server does not end")?;
    let text =
        fs::read(&report).map_err(|error| format!("the swarm has left no report: {error}"))?;
    let Report { swarm, seconds } =
        serde_json::from_slice(&text).map_err(|error| format!("the swarm's report: {error}"))?;
    let server = judge(&looks, begin + asking, begin + asking + time);
    Ok(Outcome {
        swarm,
        server,
        seconds,
    })
}

fn serve(arguments: &Arguments, load: Load, directory: &Path) -> Result<(Served, String), String> {
    let cores = arguments.server_cores.as_deref();
    if load.is_plain {
        let socket = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let address = socket
            .map_err(|error| format!("a port: {error}"))?
            .to_string();
        let mut command = on(cores, "ncbench");
        command
            .args(["plain", "--listen", &address])
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = Process::start(&mut command);
        let (mut line, mut errors) = (String::new(), io::BufReader::new(process.errors()));
        io::BufRead::read_line(&mut errors, &mut line).map_err(|error| error.to_string())?;
        std::thread::spawn(move || drop(io::copy(&mut errors, &mut io::sink())));
        std::thread::sleep(PLAIN_START);
        let url = line
            .split_whitespace()
            .find(|word| word.starts_with("ncs://"))
            .ok_or("no address of plain streams")?;
        return Ok((Served::Plain(process), url.to_owned()));
    }
    let configuration = directory.join("ncserverd.toml");
    let write = || {
        let (media, mut bytes) = (directory.join("media"), vec![0_u8; FILE_BYTES]);
        SmallRng::seed_from_u64(1).fill(&mut bytes[..]);
        fs::create_dir(&media)?;
        fs::write(media.join("movie.bin"), bytes)?;
        fs::write(&configuration, text(arguments, load, directory))
    };
    write().map_err(|error: io::Error| format!("the server's files: {error}"))?;
    let fingerprint = certify(directory);
    let mut command = on(cores, "ncserverd");
    let daemon = Daemon::start(command.arg("--config").arg(configuration).arg("serve"));
    let url = format!("ncs://{}#{fingerprint}", daemon.address);
    Ok((Served::Coded(Box::new(daemon)), url))
}

/// The configuration. Not the number of connections is to be the limit, but the processors.
fn text(arguments: &Arguments, load: Load, directory: &Path) -> String {
    let Arguments {
        segment,
        ring,
        backend,
        ..
    } = arguments;
    let (directory, connections) = (directory.display(), load.viewers * 2 + 1000);
    format!(
        "[endpoint]\nlisten = [\"127.0.0.1:0\"]\nconnections_max = {connections}\n\
         retry_above = {connections}\n\
         [telemetry]\nlisten = \"127.0.0.1:0\"\nlog_filter = \"info\"\n\
         [tls]\ncert = \"{directory}/cert.pem\"\nkey = \"{directory}/key.pem\"\n\
         directory = \"{directory}/state\"\n\
         [ingest]\nsegment_max_bytes = \"{segment}\"\n\
         [ring]\nbytes = \"{ring}\"\nmax_reuse = 1\n\
         [device]\nbackend = \"{backend}\"\n\
         [stream.live]\ndirectory = \"{directory}/media\"\nfirst_pass = \"coded\"\n\
         n_max = 128\ngenerations_min = 1\n"
    )
}

fn swarm(arguments: &Arguments, load: Load, url: &str, report: &Path) -> Command {
    let mut command = on(arguments.viewer_cores.as_deref(), "ncbench");
    command.args(["swarm", url]);
    if load.is_plain {
        command.args(["--against", "plain", "--plain-segment", &arguments.segment]);
    } else {
        command.args(["/live/movie.bin", "--from-start"]);
    }
    for (name, value) in [
        ("--viewers", load.viewers.to_string()),
        ("--bitrate", load.bitrate.to_string()),
        ("--join-rate", load.rate.to_string()),
        ("--time", format!("{}s", load.time)),
    ] {
        command.args([name, &value]);
    }
    command
        .arg("--json")
        .arg(report)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// One of our programs, on these processors.
fn on(cores: Option<&str>, name: &str) -> Command {
    let Some(cores) = cores else {
        return Command::new(program(name));
    };
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", cores]).arg(program(name));
    command
}

fn judge(looks: &[Look], from: Instant, to: Instant) -> Server {
    let inside: Vec<&Look> = looks
        .iter()
        .filter(|look| (from..to).contains(&look.at))
        .collect();
    let taken = |look: &Look| look.threads.values().sum::<f64>();
    let cores = match (inside.first(), inside.last()) {
        (Some(first), Some(last)) if last.at > first.at => {
            (taken(last) - taken(first)) / (last.at - first.at).as_secs_f64()
        }
        _ => 0.0,
    };
    Server {
        cores,
        resident: looks.iter().map(|look| look.resident).max().unwrap_or(0),
        gpu_busy: inside
            .iter()
            .filter_map(|look| look.gpu)
            .max_by(f64::total_cmp),
    }
}

/// Processors in a list such as `0-3,8`.
fn count(list: &str) -> Result<usize, String> {
    let parts = list.split(',').map(|part| match part.split_once('-') {
        Some((first, last)) => {
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            Some((last + 1).saturating_sub(first))
        }
        None => part.parse::<usize>().ok().map(|_| 1),
    });
    parts
        .sum::<Option<usize>>()
        .ok_or_else(|| format!("`{list}` is no list of processors"))
}

/// The file that is played.
const FILE_BYTES: usize = 50 << 20;
/// How long a swarm may take to leave, and a server to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long `ncbench plain` takes to listen.
const PLAIN_START: Duration = Duration::from_millis(500);
const PROBE_VIEWERS: u64 = 500;
const PROBE_SECONDS: u64 = 12;
/// The part of the processors' time that viewers can take.
const FULL: f64 = 0.9;
