//! One run: a server, a swarm, and what both say.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Deserialize;

use crate::host::{Host, on};
use crate::record::{Record, Second, Server, Swarm};
use crate::usage::{Look, Watch};
use crate::{Arguments, Backend};
use nctest::daemon::{Daemon, certify};
use nctest::process::Process;

/// The file that is played.
const FILE_BYTES: usize = 50 << 20;
/// From the last to join to where means begin, where a run is long enough.
const SETTLE: Duration = Duration::from_secs(5);
/// How long a swarm may take to leave, and a server to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long `ncbench plain` takes to listen.
const PLAIN_START: Duration = Duration::from_millis(500);

/// Counters that a record keeps, by the beginning of their names.
const COUNTERS: [&str; 8] = [
    "ncserverd_session_sent_blocks_total",
    "ncserverd_session_refused_total",
    "ncserverd_encoder_blocks_total",
    "ncserverd_encoder_batch_blocks_",
    "ncserverd_ring_dropped_blocks_total",
    "ncserverd_device_",
    "ncserverd_endpoint_handshakes",
    "ncserverd_session_useless_blocks_total",
];

/// What the swarm writes.
#[derive(Deserialize)]
struct Report {
    #[serde(flatten)]
    swarm: Swarm,
    seconds: Vec<Second>,
}

/// Whom viewers ask.
enum Served {
    Coded(Box<Daemon>),
    Plain(Process),
}

/// Serves so many viewers, and ends.
pub(crate) fn run(arguments: &Arguments, viewers: u64, host: &Host) -> Result<Record, String> {
    let directory =
        tempfile::tempdir().map_err(|error| format!("a temporary directory: {error}"))?;
    let uses_gpu = arguments.backend == Backend::Cuda && !arguments.plain;
    let (mut served, url) = serve(arguments, viewers, directory.path())?;
    let watch = Watch::start(served.process().0.id(), uses_gpu && host.has_gpu());
    let report = directory.path().join("swarm.json");
    let begin = Instant::now();
    let mut swarm = Process::start(&mut swarm(arguments, viewers, &url, &report));
    let joining = Duration::from_secs_f64(viewers as f64 / arguments.join_rate.max(1) as f64);
    let time = Duration::from_secs(arguments.time);
    let end = begin + joining + time;
    while Instant::now() < end {
        if swarm.ended().is_some() || served.process().ended().is_some() {
            return Err("the swarm or the server ended early".to_owned());
        }
        std::thread::sleep(
            Duration::from_millis(200).min(end.saturating_duration_since(Instant::now())),
        );
    }
    let looks = watch.looks();
    drop(watch);
    let status = swarm.wait(PATIENCE).ok_or("the swarm does not end")?;
    if !status.success() {
        return Err(format!("the swarm ended with {status}"));
    }
    let counters = served.counters()?;
    served.process().signal("TERM");
    served
        .process()
        .wait(PATIENCE)
        .ok_or("the server does not end")?;
    let text =
        fs::read(&report).map_err(|error| format!("the swarm has left no report: {error}"))?;
    let Report { swarm, mut seconds } =
        serde_json::from_slice(&text).map_err(|error| format!("the swarm's report: {error}"))?;
    let from = begin + joining + SETTLE.min(time / 2);
    let server = judge(&looks, &seconds, begin, from..end, counters);
    add_cores(&mut seconds, &looks, begin);
    Ok(Record {
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        host: host.clone(),
        asked: arguments.clone(),
        viewers,
        swarm,
        server,
        seconds,
    })
}

fn serve(
    arguments: &Arguments,
    viewers: u64,
    directory: &Path,
) -> Result<(Served, String), String> {
    if arguments.plain {
        let address = free_address().map_err(|error| format!("a port: {error}"))?;
        let mut command = on(arguments.server_cores.as_deref(), "ncbench");
        command
            .args(["plain", "--listen", &address])
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = Process::start(&mut command);
        let line = first_line(process.errors())?;
        std::thread::sleep(PLAIN_START);
        let url = line
            .split_whitespace()
            .find(|word| word.starts_with("ncs://"))
            .ok_or("no address of plain streams")?;
        return Ok((Served::Plain(process), url.to_owned()));
    }
    let text = configuration(arguments, viewers, directory);
    let write = || {
        let media = directory.join("media");
        fs::create_dir(&media)?;
        fs::write(media.join("movie.bin"), noise())?;
        fs::write(directory.join("ncserverd.toml"), text)
    };
    write().map_err(|error: io::Error| format!("the server's files: {error}"))?;
    let fingerprint = certify(directory);
    let mut command = on(arguments.server_cores.as_deref(), "ncserverd");
    let daemon = Daemon::start(
        command
            .arg("--config")
            .arg(directory.join("ncserverd.toml"))
            .arg("serve"),
    );
    let url = format!("ncs://{}#{fingerprint}", daemon.address);
    Ok((Served::Coded(Box::new(daemon)), url))
}

/// What is not asked for stays as it is, but for limits on how many may come, and generations as
/// long as records have them.
fn configuration(arguments: &Arguments, viewers: u64, directory: &Path) -> String {
    let Arguments {
        segment,
        ring,
        max_reuse,
        backend,
        kernel,
        systematic,
        datagrams,
        ..
    } = arguments;
    let directory = directory.display();
    let backend = backend.name();
    let kernel = kernel
        .as_ref()
        .map_or_else(String::new, |kernel| format!("kernel = \"{kernel}\"\n"));
    let pass = if *systematic { "systematic" } else { "coded" };
    let block = if *datagrams {
        "block_bytes = 1088\n"
    } else {
        ""
    };
    let connections = viewers * 2 + 1000;
    format!(
        "[endpoint]\nlisten = [\"127.0.0.1:0\"]\n\
         connections_max = {connections}\nretry_above = {connections}\n\
         [telemetry]\nlisten = \"127.0.0.1:0\"\nlog_filter = \"info\"\n\
         [tls]\ncert = \"{directory}/cert.pem\"\nkey = \"{directory}/key.pem\"\n\
         directory = \"{directory}/state\"\n\
         [ingest]\nsegment_max_bytes = \"{segment}\"\n[ring]\nbytes = \"{ring}\"\n\
         max_reuse = {max_reuse}\n\
         [device]\nbackend = \"{backend}\"\n{kernel}\
         [stream.live]\ndirectory = \"{directory}/media\"\nfirst_pass = \"{pass}\"\n\
         n_max = 128\ngenerations_min = 1\n{block}"
    )
}

fn swarm(arguments: &Arguments, viewers: u64, url: &str, report: &Path) -> Command {
    let mut command = on(arguments.viewer_cores.as_deref(), "ncbench");
    command.args(["swarm", url]);
    if arguments.plain {
        command.args(["--against", "plain", "--plain-segment", &arguments.segment]);
    } else {
        command.args(["/live/movie.bin", "--from-start"]);
    }
    let numbers = [
        ("--viewers", viewers.to_string()),
        ("--bitrate", arguments.bitrate.to_string()),
        ("--join-rate", arguments.join_rate.to_string()),
        ("--time", format!("{}s", arguments.time)),
        ("--verify", arguments.verify.to_string()),
        ("--loss", arguments.loss.to_string()),
    ];
    for (name, value) in numbers {
        command.args([name, &value]);
    }
    for (is_asked, flag) in [
        (arguments.systematic, "--systematic"),
        (arguments.datagrams, "--datagrams"),
    ] {
        command.args(is_asked.then_some(flag));
    }
    command
        .arg("--json")
        .arg(report)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

impl Served {
    fn process(&mut self) -> &mut Process {
        match self {
            Self::Coded(daemon) => &mut daemon.process,
            Self::Plain(process) => process,
        }
    }

    /// Those that a record keeps, where they are not zero.
    fn counters(&self) -> Result<BTreeMap<String, f64>, String> {
        let Self::Coded(daemon) = self else {
            return Ok(BTreeMap::new());
        };
        let exposition = daemon.metrics()?;
        if daemon.has_panicked() {
            return Err("something in the server has panicked".to_owned());
        }
        let is_kept = |name: &str| {
            exposition.counters.contains(name)
                && COUNTERS.iter().any(|begin| name.starts_with(begin))
        };
        let kept = exposition
            .series
            .iter()
            .filter(|(name, value)| **value != 0.0 && is_kept(name) && !name.contains("_bucket{"));
        Ok(kept.map(|(name, value)| (name.clone(), *value)).collect())
    }
}

/// Means over some of the time.
fn judge(
    looks: &[Look],
    seconds: &[Second],
    begin: Instant,
    over: std::ops::Range<Instant>,
    counters: BTreeMap<String, f64>,
) -> Server {
    let inside: Vec<&Look> = looks
        .iter()
        .filter(|look| over.contains(&look.at))
        .collect();
    let (mut cores, mut window) = (BTreeMap::new(), 0.0);
    if let (Some(first), Some(last)) = (inside.first(), inside.last()) {
        window = (last.at - first.at).as_secs_f64();
        for (name, time) in &last.threads {
            let taken = time - first.threads.get(name).copied().unwrap_or(0.0);
            cores.insert(name.clone(), taken / window.max(1e-3));
        }
    }
    let gpu: Vec<f64> = inside.iter().filter_map(|look| look.gpu).collect();
    let lines: Vec<&Second> = seconds
        .iter()
        .filter(|line| over.contains(&(begin + Duration::from_secs_f64(line.second))))
        .collect();
    let mean = |of: fn(&Second) -> f64| {
        lines.iter().map(|line| of(line)).sum::<f64>() / lines.len().max(1) as f64
    };
    Server {
        cores,
        window,
        viewer_cores: mean(|line| line.cores),
        viewers: mean(|line| line.viewers as f64),
        megabits: mean(|line| line.megabits),
        gpu_busy: (!gpu.is_empty()).then(|| gpu.iter().sum::<f64>() / gpu.len() as f64),
        resident: (
            looks.first().map_or(0, |look| look.resident),
            looks.iter().map(|look| look.resident).max().unwrap_or(0),
        ),
        counters,
    }
}

/// Adds what the server took in each of the seconds, and drops digits that mean nothing.
fn add_cores(seconds: &mut [Second], looks: &[Look], begin: Instant) {
    for pair in looks.windows(2) {
        let [before, after] = pair else { continue };
        let sum = |look: &Look| look.threads.values().sum::<f64>();
        let taken = (sum(after) - sum(before)) / (after.at - before.at).as_secs_f64().max(1e-3);
        let at = after.at.saturating_duration_since(begin).as_secs_f64();
        if let Some(line) = seconds.iter_mut().find(|line| line.second >= at) {
            line.server_cores = taken;
        }
    }
    for line in seconds {
        for value in [
            &mut line.second,
            &mut line.megabits,
            &mut line.cores,
            &mut line.server_cores,
        ] {
            *value = (*value * 1000.0).round() / 1000.0;
        }
    }
}

fn noise() -> Vec<u8> {
    let mut bytes = vec![0; FILE_BYTES];
    SmallRng::seed_from_u64(1).fill(&mut bytes[..]);
    bytes
}

fn free_address() -> io::Result<String> {
    Ok(UdpSocket::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

/// What a program says first; what it says later is read, too, so that it never waits for a reader.
fn first_line(errors: impl io::Read + Send + 'static) -> Result<String, String> {
    let (mut line, mut errors) = (String::new(), io::BufReader::new(errors));
    io::BufRead::read_line(&mut errors, &mut line).map_err(|error| error.to_string())?;
    std::thread::spawn(move || drop(io::copy(&mut errors, &mut io::sink())));
    Ok(line)
}
