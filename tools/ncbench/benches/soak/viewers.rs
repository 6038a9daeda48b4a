//! Viewers: `ncbench swarm`, what it says every second, and what it reports in the end.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ncbench::swarm::Snapshot;
use serde::Deserialize;

use nctest::process::Process;
use nctest::program::beside as program;

/// How long a swarm may take to leave and to write its report.
const PATIENCE: Duration = Duration::from_secs(30);

/// Who joins, and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) viewers: u64,
    pub(crate) join_rate: f64,
    /// For how long each stays in the mean; all the time without.
    pub(crate) stay: Option<Duration>,
    /// How long it lasts once all have joined.
    pub(crate) time: Duration,
    /// The share that decodes and verifies.
    pub(crate) verify: f64,
}

/// A second of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line {
    /// Its end.
    pub(crate) at: Instant,
    pub(crate) on_time: u64,
    pub(crate) late: u64,
    /// Connections refused, put out or failed.
    pub(crate) lost: u64,
}

/// What it reports.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Report {
    pub(crate) totals: Snapshot,
    /// Why connections failed.
    pub(crate) failures: BTreeMap<String, u64>,
    pub(crate) elapsed_seconds: f64,
}

/// A running swarm, until it is dropped.
pub(crate) struct Swarm {
    process: Process,
    lines: Arc<Mutex<Vec<Line>>>,
    report: PathBuf,
}

impl Swarm {
    /// At this server, with its fingerprint, for this path.
    pub(crate) fn start(url: &str, path: &str, report: PathBuf, plan: Plan) -> Self {
        let mut command = Command::new(program("ncbench"));
        command.args([
            "swarm",
            url,
            path,
            "--viewers",
            &plan.viewers.to_string(),
            "--join-rate",
            &plan.join_rate.to_string(),
        ]);
        command.args([
            "--time",
            &format!("{}ms", plan.time.as_millis()),
            "--verify",
            &plan.verify.to_string(),
        ]);
        if let Some(stay) = plan.stay {
            command.args(["--stay", &format!("{}ms", stay.as_millis())]);
        }
        command
            .arg("--json")
            .arg(&report)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = Process::start(&mut command);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let output = process
            .0
            .stdout
            .take()
            .expect("its output goes to this program");
        let (output, log) = (BufReader::new(output), Arc::clone(&lines));
        std::thread::spawn(move || {
            for line in output
                .lines()
                .map_while(Result::ok)
                .filter_map(|line| Line::parse(&line))
            {
                log.lock().expect("nobody panics with it").push(line);
            }
        });
        Self {
            process,
            lines,
            report,
        }
    }

    /// What it has said so far.
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.lines.lock().expect("nobody panics with it").clone()
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.process.ended().is_some()
    }

    /// Has everybody leave, unless they have, and reads the report.
    pub(crate) fn end(mut self) -> Result<Report, String> {
        if !self.is_over() {
            self.process.signal("INT");
        }
        let status = self.process.wait(PATIENCE).ok_or("a swarm does not end")?;
        if !status.success() {
            return Err(format!("a swarm ended with {status}"));
        }
        let text = std::fs::read(&self.report)
            .map_err(|error| format!("a swarm has left no report: {error}"))?;
        serde_json::from_slice(&text).map_err(|error| format!("a swarm's report: {error}"))
    }
}

/// Totals on a line.
pub(crate) fn describe(totals: &Snapshot) -> String {
    let Snapshot {
        joined,
        left,
        refused,
        failed,
        on_time,
        late,
        verified,
        corrupt,
        rejected,
        ..
    } = totals;
    format!(
        "{joined} joined, {left} left, {refused} refused, {failed} failed; segments: {on_time} in \
         time, {late} late, {verified} verified, {corrupt} wrong; {rejected} requests refused"
    )
}

impl Line {
    /// Parses a table row: second, viewers, inside, joined, refused, put out, on time, late,
    /// blocks, useless, lost, Mbit/s, goodput, cores. `None` for any other line.
    fn parse(text: &str) -> Option<Self> {
        let numbers: Vec<f64> = text
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        let [_, _, _, _, _, _, on_time, late, _, _, lost, _, _, _] = numbers[..] else {
            return None;
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "counts that were printed as such"
        )]
        let [on_time, late, lost] = [on_time, late, lost].map(|count| count as u64);
        Some(Self {
            at: Instant::now(),
            on_time,
            late,
            lost,
        })
    }
}
