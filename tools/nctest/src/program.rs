//! Programs that tests start: where they are, their log and their metrics.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use bytesize::ByteSize;

use crate::exposition::Exposition;
use crate::http::get;
use crate::process::Process;

/// Far longer than anything takes, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The path of a program: `built`, which cargo told the test, or its name in the folder
/// `NCTEST_BIN_DIR` on a host that has the tests without the package.
pub fn path(name: &str, built: &str) -> PathBuf {
    std::env::var_os("NCTEST_BIN_DIR")
        .map_or_else(|| built.into(), |folder| PathBuf::from(folder).join(name))
}

/// The path of a program for a bench: beside the folder that this bench was built into, or in the
/// folder `NCTEST_BIN_DIR` on a host that got the programs without the package.
///
/// # Panics
/// If it is not there: only `ncbench` is built with the benches.
pub fn beside(name: &str) -> PathBuf {
    let folder = std::env::var_os("NCTEST_BIN_DIR")
        .map(PathBuf::from)
        .unwrap_or_else(|| {
            let bench = std::env::current_exe().expect("a program knows its file");
            bench
                .ancestors()
                .nth(2)
                .expect("benches are built into a folder of the programs'")
                .to_owned()
        });
    let program = folder.join(name);
    assert!(
        program.is_file(),
        "{} is missing: build the programs with the bench's profile first, as in `cargo build \
         --profile dist --bins`",
        program.display()
    );
    program
}

/// The command of this `ncserverd` that serves peers at `listen`, with metrics on a free port of
/// loopback, an otherwise empty environment, and its state in `state`.
pub fn serve(program: &Path, listen: &str, state: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("STATE_DIRECTORY", state).args([
        "serve",
        "--listen",
        listen,
        "--metrics",
        "127.0.0.1:0",
    ]);
    command
}

/// A program that runs until this is dropped.
pub struct Program {
    process: Process,
    log: Receiver<String>,
}

impl Program {
    /// Starts it without input, and with its log available.
    pub fn start(command: &mut Command) -> Self {
        let mut process = Process::start(command.stderr(Stdio::piped()).stdin(Stdio::null()));
        let lines = BufReader::new(process.errors()).lines();
        let (said, log) = channel();
        // The log is read to its end, so that the program never blocks on it.
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| drop(said.send(line)))
        });
        Self { process, log }
    }

    /// For the next line of the log with the first text: what follows each text, up to a blank or a
    /// quotation mark.
    pub fn says<const N: usize>(&self, texts: [&str; N]) -> [String; N] {
        let (mut seen, end) = (String::new(), Instant::now() + PATIENCE);
        while let Ok(line) = self
            .log
            .recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            if line.contains(texts[0]) {
                return texts.map(|text| {
                    let (_, rest) = line
                        .split_once(text)
                        .unwrap_or_else(|| panic!("no `{text}` in {line}"));
                    rest.split([' ', '"']).next().unwrap_or_default().to_owned()
                });
            }
            seen = seen + &line + "\n";
        }
        panic!("the log has no line with `{}`:\n{seen}", texts[0]);
    }

    /// Its output that has not been read yet.
    pub fn said(&self) -> String {
        self.log.try_iter().collect::<Vec<_>>().join("\n")
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.process.0.id()
    }

    /// Its peak memory so far; `None` once it has ended.
    pub fn peak(&self) -> Option<ByteSize> {
        status(self.id(), "VmHWM").map(ByteSize::kib)
    }

    /// Its exit status, if it has ended.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }
}

/// A number of `/proc/PID/status` by its name, such as `VmRSS`, in KiB, or `Threads`; `None` once
/// the process has ended.
pub fn status(process: u32, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Seconds that a process has run, in hundredths: its metric has whole seconds.
///
/// # Panics
/// If the process has ended and was waited for.
pub fn cpu_seconds(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))
        .expect("the process is not waited for");
    let (_, fields) = stat.rsplit_once(')').expect("a name in brackets");
    // proc(5): utime and stime, in ticks.
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: f64 = ticks.filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / TICKS_PER_SECOND
}

const TICKS_PER_SECOND: f64 = 100.0;

/// The sum of a series over its labels, from the metrics listener at this address; `None` if there
/// is no such series.
pub fn metric(at: SocketAddr, name: &str) -> Option<f64> {
    let page = get(at, "/metrics").unwrap();
    Exposition::parse(&String::from_utf8_lossy(&page))
        .unwrap()
        .sum(name)
}
