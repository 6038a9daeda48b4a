//! One cell: a server, a swarm, and what both say.

use std::fs;
use std::io::{self, BufRead as _};
use std::iter::Sum;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nctest::daemon::{Daemon, certify};
use nctest::process::Process;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::Arguments;
use crate::host::{Host, on};
use crate::usage::{Look, Watch};

/// Who asks, and for what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) viewers: u64,
    pub(crate) rate: u64,
    pub(crate) time: u64,
    pub(crate) is_plain: bool,
    /// Whether it is the viewers' coming that is measured, and not their viewing.
    pub(crate) is_joining: bool,
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
    pub(crate) startup: Times,
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
    pub(crate) unserved: u64,
    pub(crate) put_out: u64,
    pub(crate) put_out_times: u64,
    pub(crate) admitted: u64,
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

impl Times {
    /// Half, 99 % and all of them, in seconds.
    pub(crate) fn seconds(&self) -> String {
        format!(
            "{:.2}, {:.2}, {:.2}",
            self.p50_ms / 1e3,
            self.p99_ms / 1e3,
            self.max_ms / 1e3
        )
    }
}

/// A second, from the beginning on.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Second {
    pub(crate) second: f64,
    pub(crate) viewers: u64,
    pub(crate) inside: u64,
    pub(crate) joined: u64,
    pub(crate) admitted: u64,
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
    /// Processors: from the time when all viewers have asked to the end, or before, where joins are
    /// measured.
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

/// Finds how many viewers the server can carry: lets more and more come until its processors are
/// busy, or a segment is late.
pub(crate) fn capacity(arguments: &Arguments) -> Result<u64, String> {
    let processors = match &arguments.server_cores {
        Some(list) => count(list)?,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    } as f64;
    let directory =
        tempfile::tempdir().map_err(|error| format!("a temporary directory: {error}"))?;
    let mut load = Load {
        viewers: PROBE_MAX,
        rate: crate::viewers(PROBE_RATE, processors),
        time: PROBE_TIME,
        is_plain: false,
        is_joining: false,
        bitrate: arguments.bitrate,
    };
    let (mut served, url) = serve(arguments, load, directory.path())?;
    let watch = Watch::start(served.process().0.id(), false);
    let (mut crowds, mut viewers): (Vec<Crowd>, u64) = (Vec::new(), 0);
    let (mut carried, mut carried_busy) = (0, 0.0);
    load.viewers = crate::viewers(PROBE_VIEWERS, processors * BITRATE / load.bitrate as f64);
    println!("{}", Said::HEAD);
    for _ in 0..STEPS_MAX {
        viewers += load.viewers;
        crowds.push(Crowd::start(arguments, load, &url));
        let asking = Duration::from_secs_f64(load.viewers as f64 / load.rate as f64);
        std::thread::sleep(asking + SETTLE);
        let most = wait_until_inside(&mut crowds, viewers)?;
        let from = Instant::now();
        std::thread::sleep(Duration::from_secs(arguments.probe));
        let busy = judge(&watch.looks(), from, Instant::now()).cores / processors;
        let said = said(&mut crowds)?;
        println!("{}", said.row(viewers, busy));
        if !said.is_clean() {
            break;
        }
        if said.inside < viewers {
            carried = most.max(said.inside).max(carried);
            break;
        }
        if busy > FULL {
            // It may last for a moment only: between the load before and this one.
            let part = (AIM - carried_busy) / (busy - carried_busy);
            carried += crate::viewers(viewers - carried, part);
            break;
        }
        (carried, carried_busy) = (viewers, busy);
        if busy > BUSY {
            break;
        }
        let growth = (AIM / busy.max(1e-3)).clamp(GROWTH_MIN, GROWTH);
        load.viewers = crate::viewers(viewers, growth - 1.0).min(PROBE_MAX - viewers);
        if load.viewers == 0 {
            break;
        }
    }
    println!();
    match carried {
        0 => Err("the server does not carry the first load without late segments".to_owned()),
        carried => Ok(carried),
    }
}

/// Waits until so many viewers are inside, or hardly any more come in: the most that were inside.
fn wait_until_inside(crowds: &mut [Crowd], viewers: u64) -> Result<u64, String> {
    let begun = Instant::now();
    let (mut most, mut before, mut grown_at) = (0, 0, begun);
    while begun.elapsed() < LETS_IN && grown_at.elapsed() < LETS_FEW_IN {
        let inside = said(crowds)?.inside;
        most = most.max(inside);
        if inside >= viewers {
            break;
        }
        if inside > before + before / 200 {
            (before, grown_at) = (inside, Instant::now());
        }
        std::thread::sleep(SETTLE);
    }
    Ok(most)
}

fn said(crowds: &mut [Crowd]) -> Result<Said, String> {
    crowds.iter_mut().map(Crowd::said).sum()
}

/// A swarm that stays until it is dropped.
struct Crowd {
    process: Process,
    said: Arc<Mutex<Said>>,
}

/// What swarms have said so far.
#[derive(Debug, Clone, Copy, Default)]
struct Said {
    /// Viewers that are let in now.
    inside: u64,
    put_out: u64,
    late: u64,
}

impl Crowd {
    fn start(arguments: &Arguments, load: Load, url: &str) -> Self {
        let mut command = swarm(arguments, load, url);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Process::start(&mut command);
        let output = process.0.stdout.take();
        let output = io::BufReader::new(output.expect("its output goes to this program"));
        let said = Arc::<Mutex<Said>>::default();
        let log = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                log.lock().expect("nobody panics with it").hear(&line);
            }
        });
        Self { process, said }
    }

    fn said(&mut self) -> Result<Said, String> {
        match self.process.ended() {
            Some(status) => Err(format!("a swarm has ended early with {status}")),
            None => Ok(*self.said.lock().expect("nobody panics with it")),
        }
    }
}

impl Said {
    const HEAD: &str = "| viewers | let in | put out | late | server's processors busy, % |\n\
                        |---:|---:|---:|---:|---:|";

    /// Takes a row of the table: second, viewers, inside, joined, refused, put out, on time, late
    /// and others.
    fn hear(&mut self, line: &str) {
        let mut words = line.split_whitespace().map(str::parse::<u64>);
        let mut number = |skip| words.nth(skip).and_then(Result::ok);
        if let (Some(inside), Some(put_out), Some(late)) = (number(2), number(2), number(1)) {
            self.inside = inside;
            self.put_out += put_out;
            self.late += late;
        }
    }

    /// Whether those inside have had everything in time.
    fn is_clean(&self) -> bool {
        self.put_out + self.late == 0
    }

    fn row(&self, viewers: u64, busy: f64) -> String {
        format!(
            "| {viewers} | {} | {} | {} | {:.0} |",
            self.inside,
            self.put_out,
            self.late,
            busy * 100.0
        )
    }
}

impl Sum for Said {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            inside: sum.inside + one.inside,
            put_out: sum.put_out + one.put_out,
            late: sum.late + one.late,
        })
    }
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
    let mut swarm = Process::start(swarm(arguments, load, &url).arg("--json").arg(&report));
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
    let (from, to) = if load.is_joining {
        (begin, begin + asking)
    } else {
        (begin + asking, begin + asking + time)
    };
    let server = judge(&looks, from, to);
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
        errors
            .read_line(&mut line)
            .map_err(|error| error.to_string())?;
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

fn swarm(arguments: &Arguments, load: Load, url: &str) -> Command {
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
        ("--sockets", SOCKETS.to_owned()),
        ("--time", format!("{}s", load.time)),
    ] {
        command.args([name, &value]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
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
/// Sockets of each of the viewers' threads.
const SOCKETS: &str = "4";
/// The first load, at `BITRATE`, and joins a second, for each of the server's processors: most of
/// their time is left for viewing.
const PROBE_VIEWERS: u64 = 1000;
const BITRATE: f64 = 768_000.0;
const PROBE_RATE: u64 = 400;
const PROBE_MAX: u64 = 500_000;
/// Longer than the search takes, in seconds.
const PROBE_TIME: u64 = 3600;
/// From the last to ask, and to be let in, until the server's time is measured.
const SETTLE: Duration = Duration::from_secs(1);
/// The search waits so long at most for the server to let viewers in, and no longer when less than
/// one in two hundred is added in the second time: refused viewers pause for 30 s at most.
const LETS_IN: Duration = Duration::from_secs(90);
const LETS_FEW_IN: Duration = Duration::from_secs(35);
/// The server is full when this part of its processors' time is taken.
const BUSY: f64 = 0.85;
/// Above this part, requests may wait longer and longer.
const FULL: f64 = 0.95;
/// What the next load aims at, and how much larger than the last it is.
const AIM: f64 = 0.9;
const GROWTH_MIN: f64 = 1.05;
const GROWTH: f64 = 1.6;
const STEPS_MAX: usize = 12;
