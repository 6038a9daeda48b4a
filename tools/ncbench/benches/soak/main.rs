//! Watches a server for hours while its environment changes, until it shuts down.
//!
//! `cargo bench --bench soak -- [--minutes M] [--viewers N] [--bitrate BITS] [--join-rate RATE]
//! [--churn RATE] [--verify SHARE]`, or `-- --smoke` for two minutes of 200 viewers. Needs no
//! privileges; everything is on loopback and ends with this program.
//!
//! `ncbench swarm` watches a live stream of `ncserverd serve`, whose origin is in this program. The
//! origin fails, first briefly and then for longer than viewers have buffered; the batch size
//! changes with SIGHUP; a second swarm joins and leaves for up to a minute, and later does so
//! again; the certificate changes; and in the end comes SIGTERM. Every five seconds the server's
//! memory, descriptors and metrics are sampled. The program fails, and prints the reason, if memory
//! or descriptors grow, a counter goes backwards or overflows, a viewer loses its connection, a
//! segment is late for another reason than the origin, a segment is wrong, a change is not applied,
//! or the drain refuses a viewer without saying so.
//!
//! Prints tables in Markdown.

mod metrics;
mod origin;
mod samples;
mod server;
mod viewers;
mod watched;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use nctest::exposition::Exposition;
use nctest::live::SEGMENT;
use origin::Source;
use samples::Sample;
use server::{DRAIN, Server};
use viewers::{Line, Plan, Report, Swarm, describe};

/// Options of the run.
#[derive(Debug, Clone, Copy, Parser)]
struct Arguments {
    /// Duration in minutes, after all viewers have joined
    #[arg(long, value_name = "M", default_value_t = 120.0, value_parser = minutes)]
    minutes: f64,
    /// Number of viewers that stay
    #[arg(
        long,
        value_name = "N",
        default_value_t = 300,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000),
    )]
    viewers: u64,
    /// Bit rate of each viewer, in bits per second
    #[arg(
        long,
        value_name = "BITS",
        default_value_t = 768_000,
        value_parser = clap::value_parser!(u64).range(8_000..=1_000_000_000),
    )]
    bitrate: u64,
    /// Viewers that join per second
    #[arg(long, value_name = "RATE", default_value_t = 50.0, value_parser = above_zero)]
    join_rate: f64,
    /// Viewers that join and leave per second, for up to a minute each
    #[arg(
        long,
        value_name = "RATE",
        default_value_t = 500,
        value_parser = clap::value_parser!(u64).range(1..=100_000),
    )]
    churn: u64,
    /// Share of the staying viewers that decode and verify everything, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = share)]
    verify: f64,
    /// Run two minutes with 200 viewers, one short outage of the origin, one SIGHUP and the drain
    #[arg(long, conflicts_with_all = ["minutes", "viewers", "churn"])]
    smoke: bool,
    /// Ignored: cargo passes it
    #[arg(long, hide = true)]
    bench: bool,
}

/// What happens to the server.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// The origin is away for so long.
    Outage(Duration),
    /// SIGHUP with another size of batches.
    Batch,
    /// Viewers join and leave all the time.
    Joiners,
    /// SIGHUP with another certificate.
    Certificate,
}

/// When, as shares of the time. Memory that joiners once had may stay with the process for others
/// to come, so they come twice: what the last quarter has more than the second is what the second
/// time left behind.
const SOAK: [(f64, Event); 6] = [
    (0.02, Event::Joiners),
    (0.20, Event::Outage(SHORT)),
    (0.30, Event::Outage(LONG)),
    (0.42, Event::Batch),
    (0.55, Event::Joiners),
    (0.75, Event::Certificate),
];
const SMOKE: [(f64, Event); 2] = [(0.25, Event::Outage(SHORT)), (0.5, Event::Batch)];
const SMOKE_TIME: Duration = Duration::from_secs(100);
const SMOKE_VIEWERS: u64 = 200;

/// What viewers have in hand: they play two segments behind what they ask for, and begin three
/// before the end of the playlist.
const SHORT: Duration = Duration::from_secs(2 * SEGMENT.as_secs());
const LONG: Duration = Duration::from_secs(10 * SEGMENT.as_secs());
/// How long after the origin has come back segments may be late for its sake: a refused viewer asks
/// again within five seconds.
const RECOVERY: Duration = Duration::from_secs(5 + 2 * SEGMENT.as_secs());

const SAMPLE: Duration = Duration::from_secs(5);
const ROWS: u32 = 24;
/// From the last to join to the beginning.
const SETTLE: Duration = Duration::from_secs(3);

const JOINERS_TIME: Duration = Duration::from_secs(60);
const JOINERS_STAY: Duration = Duration::from_secs(1);
/// They are to cost handshakes, not bytes.
const JOINERS_BITRATE: u64 = 64_000;
/// How long their sessions may outlast them.
const FORGET: Duration = Duration::from_secs(30);

const BATCH_BEFORE: u32 = 1024;
const BATCH_AFTER: u32 = 32;
const BATCHES: &str = "ncserverd_encoder_batch_blocks";
/// How long a batch from before a change may be under way.
const BATCH_DONE: Duration = Duration::from_secs(2);
/// What went wrong first says most.
const FAULTS_MAX: usize = 40;

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    if arguments.smoke {
        (arguments.minutes, arguments.viewers) = (SMOKE_TIME.as_secs_f64() / 60.0, SMOKE_VIEWERS);
    }
    let files = tempfile::tempdir().expect("a temporary directory");
    let mut soak = Soak::start(arguments, files.path());
    if let Err(reason) = soak.run() {
        soak.fault(reason);
    }
    let faults = soak.end();
    if faults.is_empty() {
        println!("\npassed");
        return ExitCode::SUCCESS;
    }
    println!("\nfailed:");
    faults
        .iter()
        .take(FAULTS_MAX)
        .for_each(|fault| println!("- {fault}"));
    ExitCode::FAILURE
}

/// A run.
struct Soak {
    arguments: Arguments,
    directory: PathBuf,
    time: Duration,
    begun: Instant,
    viewers: Swarm,
    server: Server,
    source: Source,
    joiners_path: String,
    samples: Vec<Sample>,
    exposition: Exposition,
    /// Batches above the new size when it had been taken.
    large_batches: Option<f64>,
    /// When segments may be late.
    excused: Vec<(Instant, Instant)>,
    /// What the next row of the table tells, and the lines of the swarm that it covers.
    note: String,
    told: usize,
    faults: Vec<String>,
}

impl Soak {
    /// Returns when all viewers have joined.
    fn start(arguments: Arguments, directory: &Path) -> Self {
        let time = Duration::from_secs_f64(60.0 * arguments.minutes);
        let media = directory.join("origin");
        std::fs::create_dir(&media).expect("a folder");
        let mut source = Source::start(&media);
        let [path, joiners_path] = [("viewers", arguments.bitrate), ("joiners", JOINERS_BITRATE)]
            .map(|(name, bitrate)| source.add(name, bitrate));
        let connections_max = 2 * (arguments.viewers + arguments.churn) + 100;
        let server = Server::start(directory, &source.url(), connections_max, BATCH_BEFORE);
        let ramp = Duration::from_secs_f64(arguments.viewers as f64 / arguments.join_rate);
        // It is ended by a signal, long before.
        let plan = Plan {
            viewers: arguments.viewers,
            join_rate: arguments.join_rate,
            stay: None,
            time: 2 * time + Duration::from_secs(600),
            verify: arguments.verify,
        };
        let viewers = Swarm::start(
            &server.url(),
            &format!("/live/{path}"),
            directory.join("viewers.json"),
            plan,
        );
        println!(
            "{} viewers of {} bits a second in segments of {} s for {:.1} minutes\n",
            arguments.viewers,
            arguments.bitrate,
            SEGMENT.as_secs(),
            arguments.minutes
        );
        std::thread::sleep(ramp + SETTLE);
        Self {
            arguments,
            directory: directory.to_owned(),
            time,
            begun: Instant::now(),
            viewers,
            server,
            source,
            joiners_path: format!("/live/{joiners_path}"),
            samples: Vec::new(),
            exposition: Exposition::default(),
            large_batches: None,
            excused: Vec::new(),
            note: String::new(),
            told: 0,
            faults: Vec::new(),
        }
    }

    /// Everything but the end.
    fn run(&mut self) -> Result<(), String> {
        println!(
            "{} in time | late | lost | |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
            Sample::HEAD
        );
        let events: &[(f64, Event)] = if self.arguments.smoke { &SMOKE } else { &SOAK };
        for (share, event) in events {
            self.go_on(self.begun + self.time.mul_f64(*share))?;
            match event {
                Event::Outage(time) => self.outage(*time)?,
                Event::Batch => self.batch()?,
                Event::Joiners => self.joiners()?,
                Event::Certificate => self.certificate()?,
            }
        }
        self.go_on(self.begun + self.time)?;
        self.row();
        if let (Some(before), now) = (
            self.large_batches,
            self.exposition.above(BATCHES, BATCH_AFTER),
        ) && now != Some(before)
        {
            self.fault(format!(
                "batches of more than {BATCH_AFTER} blocks after that was the limit: from \
                 {before} to {now:?}"
            ));
        }
        let sessions = self.samples.last().map(|sample| sample.sessions);
        if sessions != Some(self.arguments.viewers as f64) {
            self.fault(format!("sessions before the drain: {sessions:?}"));
        }
        Ok(())
    }

    /// Looks at the server until then.
    fn go_on(&mut self, until: Instant) -> Result<(), String> {
        loop {
            let due = self.begun + SAMPLE * u32::try_from(self.samples.len()).unwrap_or(u32::MAX);
            std::thread::sleep(due.min(until).saturating_duration_since(Instant::now()));
            if Instant::now() < due {
                return Ok(());
            }
            self.sample()?;
        }
    }

    fn sample(&mut self) -> Result<(), String> {
        let usage = self.server.usage().ok_or("the server has ended")?;
        let exposition = self.server.metrics()?;
        metrics::faults(&exposition, &self.exposition)
            .into_iter()
            .for_each(|fault| self.fault(fault));
        let read = |name| {
            exposition
                .sum(name)
                .ok_or_else(|| format!("no series {name}"))
        };
        let [sessions, held, ring_used] = [
            "ncserverd_session_open_sessions",
            "ncserverd_store_resident_bytes",
            "ncserverd_ring_used_bytes",
        ]
        .map(read);
        let sample = Sample {
            at: self.begun.elapsed(),
            usage,
            sessions: sessions?,
            held: held?,
            ring_used: ring_used?,
        };
        self.exposition = exposition;
        self.samples.push(sample);
        if self.server.has_panicked() {
            self.fault("something in the server has panicked".to_owned());
        }
        if self.viewers.is_over() {
            return Err("the swarm has ended".to_owned());
        }
        let every = (self.time / ROWS)
            .as_secs()
            .div_ceil(SAMPLE.as_secs())
            .max(1);
        if (self.samples.len() as u64 - 1).is_multiple_of(every) {
            self.row();
        }
        Ok(())
    }

    /// Prints the newest sample, and what viewers have had since the last row.
    fn row(&mut self) {
        let lines = self.viewers.lines();
        let new = &lines[self.told..];
        if new.is_empty() && self.note.is_empty() {
            return;
        }
        let sum = |of: fn(&Line) -> u64| new.iter().map(of).sum::<u64>();
        let (on_time, late, lost) = (
            sum(|line| line.on_time),
            sum(|line| line.late),
            sum(|line| line.lost),
        );
        if let Some(sample) = self.samples.last() {
            println!(
                "{} {on_time} | {late} | {lost} | {} |",
                sample.row(),
                self.note
            );
        }
        self.told = lines.len();
        self.note.clear();
    }

    fn outage(&mut self, time: Duration) -> Result<(), String> {
        self.say("origin stopped");
        self.source.stop();
        let from = Instant::now();
        self.go_on(from + time)?;
        self.source.restart();
        self.say("origin started");
        if time > SHORT {
            self.excused.push((from, Instant::now() + RECOVERY));
        }
        Ok(())
    }

    fn batch(&mut self) -> Result<(), String> {
        self.server.set_batch(BATCH_AFTER)?;
        self.say(&format!("batches of {BATCH_AFTER} blocks"));
        self.go_on(Instant::now() + BATCH_DONE)?;
        self.large_batches = self.server.metrics()?.above(BATCHES, BATCH_AFTER);
        if !self.large_batches.is_some_and(|count| count > 0.0) {
            self.fault(format!(
                "batches of more than {BATCH_AFTER} blocks before that was the limit: {:?}",
                self.large_batches
            ));
        }
        Ok(())
    }

    fn joiners(&mut self) -> Result<(), String> {
        let rate = self.arguments.churn;
        let time = JOINERS_TIME.min(self.time / 8);
        let plan = Plan {
            viewers: rate,
            join_rate: rate as f64,
            stay: Some(JOINERS_STAY),
            time,
            verify: 0.01,
        };
        let mut joiners = Swarm::start(
            &self.server.url(),
            &self.joiners_path,
            self.directory.join("joiners.json"),
            plan,
        );
        self.say("joiners come");
        let until = Instant::now() + time + FORGET;
        while !joiners.is_over() && Instant::now() < until {
            self.go_on(Instant::now() + Duration::from_secs(1))?;
        }
        let Report {
            totals,
            failures,
            elapsed_seconds,
        } = joiners.end()?;
        let rate = totals.joined as f64 / elapsed_seconds;
        self.say(&format!(
            "joiners gone: {} came, {rate:.0} a second, {} were refused",
            totals.joined, totals.refused
        ));
        if totals.failed + totals.corrupt + totals.late > 0 || totals.left == 0 {
            self.fault(format!(
                "those who joined and left: {}; failed for {failures:?}",
                describe(&totals)
            ));
        }
        let until = Instant::now() + FORGET;
        let sessions = |soak: &Self| {
            soak.server
                .metrics()
                .map(|metrics| metrics.sum("ncserverd_session_open_sessions"))
        };
        while sessions(self)? != Some(self.arguments.viewers as f64) {
            if Instant::now() > until {
                self.fault(format!(
                    "sessions after those who joined and left are gone: {:?}",
                    sessions(self)?
                ));
                break;
            }
            self.go_on(Instant::now() + Duration::from_secs(1))?;
        }
        Ok(())
    }

    fn certificate(&mut self) -> Result<(), String> {
        self.say("certificate replaced");
        self.server.replace_certificate()
    }

    /// Drains the server, hears what became of the viewers, and judges.
    fn end(mut self) -> Vec<String> {
        let terminated = Instant::now();
        self.server.terminate();
        let status = self.server.wait();
        println!(
            "\nSIGTERM: {status:?} after {:.1} s, of {} s",
            terminated.elapsed().as_secs_f64(),
            DRAIN.as_secs()
        );
        if status.and_then(|status| status.code()) != Some(0) {
            self.fault(format!("the server ended with {status:?}"));
        }
        // Who is put out tries again after five seconds: the swarm is to end before there is nobody
        // to refuse it.
        std::thread::sleep(Duration::from_secs(1));
        let Self {
            arguments,
            time,
            viewers,
            samples,
            excused,
            mut faults,
            ..
        } = self;
        println!("\n{}", samples::table(&samples, time));
        if !arguments.smoke {
            faults.extend(samples::growth(&samples, time));
        }
        let lines = viewers.lines();
        match viewers.end() {
            Ok(report) => {
                println!("viewers: {}", describe(&report.totals));
                faults.extend(judge(
                    &report, &lines, terminated, &excused, arguments, time,
                ));
            }
            Err(reason) => faults.push(reason),
        }
        faults
    }

    fn say(&mut self, what: &str) {
        if !self.note.is_empty() {
            self.note += "; ";
        }
        self.note += what;
    }

    fn fault(&mut self, fault: String) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        }
    }
}

/// What is wrong with what viewers got.
fn judge(
    report: &Report,
    lines: &[Line],
    terminated: Instant,
    excused: &[(Instant, Instant)],
    arguments: Arguments,
    time: Duration,
) -> Vec<String> {
    let totals = report.totals;
    let mut faults = Vec::new();
    let mut check = |is_right: bool, what: &str| {
        if !is_right {
            faults.push(format!("{what}: {}", describe(&totals)));
        }
    };
    let is_excused = |line: &&Line| {
        excused
            .iter()
            .any(|(from, to)| (*from..=*to).contains(&line.at))
    };
    let late = totals.late
        - lines
            .iter()
            .filter(is_excused)
            .map(|line| line.late)
            .sum::<u64>();
    check(
        late == 0,
        &format!("{late} segments were late, and not for the origin's sake"),
    );
    check(totals.corrupt == 0, "segments were wrong");
    check(totals.failed == 0, "connections failed without a refusal");
    let lost: u64 = lines
        .iter()
        .filter(|line| line.at < terminated)
        .map(|line| line.lost)
        .sum();
    check(
        lost == 0,
        &format!("{lost} connections were lost before the drain"),
    );
    check(
        totals.joined == arguments.viewers,
        "not every viewer joined once",
    );
    check(
        totals.refused + totals.put_out_times >= arguments.viewers,
        "the drain did not refuse everybody",
    );
    let segments = arguments.viewers as f64 * time.as_secs_f64() / SEGMENT.as_secs_f64();
    check(
        totals.on_time as f64 > segments / 2.0,
        "hardly anything was played",
    );
    match arguments.verify {
        1.0 => check(
            (totals.on_time..=totals.on_time + totals.late).contains(&totals.verified),
            "not everything was verified",
        ),
        share => check(share == 0.0 || totals.verified > 0, "nothing was verified"),
    }
    faults
}

fn above_zero(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if number > 0.0 && number.is_finite() {
        Ok(number)
    } else {
        Err("above 0".to_owned())
    }
}

fn minutes(text: &str) -> Result<f64, String> {
    above_zero(text).and_then(|minutes| {
        if (4.0..=10_000.0).contains(&minutes) {
            Ok(minutes)
        } else {
            Err("4 to 10000".to_owned())
        }
    })
}

fn share(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if (0.0..=1.0).contains(&number) {
        Ok(number)
    } else {
        Err("0 to 1".to_owned())
    }
}
