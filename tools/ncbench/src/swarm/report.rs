//! What a swarm tells: a line a second while it runs, a summary, and all of it as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ncserverd::console;
use serde::Serialize;
use tokio::time::MissedTickBehavior;

use super::Options;
use super::totals::{Percentiles, Snapshot, Spread, Totals};

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What was asked for.
    pub asked: Asked,
    /// A line a second.
    pub seconds: Vec<Line>,
    /// What was counted in all.
    pub totals: Snapshot,
    /// Why connections failed, and how many for each reason; beyond sixteen of a thread "others".
    pub failures: BTreeMap<String, u64>,
    /// By how much the late segments were late.
    pub lateness: Percentiles,
    /// From a request to its first block.
    pub first_block: Percentiles,
    /// From the first packet to the server's HELLO.
    pub joining: Percentiles,
    /// From a viewer's first attempt to its first whole segment, refusals included.
    pub first_segment: Percentiles,
    /// From the attempt that was granted to the first whole segment.
    pub startup: Percentiles,
    /// From the first attempt to the first block, of viewers that were refused and let in later.
    pub waiting: Percentiles,
    /// Viewers served over viewers that asked.
    pub served_share: f64,
    /// Bits of segments in time, a second of the run.
    pub goodput_bits: f64,
    /// What was played in time over what the viewers that asked would play.
    pub played_share: f64,
    /// Processor time of this program, in seconds.
    pub cpu_seconds: f64,
    /// How long it ran, in seconds.
    pub elapsed_seconds: f64,
}

/// The options, as far as they matter for what came out.
#[derive(Debug, Clone, Serialize)]
pub struct Asked {
    /// Viewers.
    pub viewers: u64,
    /// How many of them join a second.
    pub join_rate: f64,
    /// Bits a second that each plays, where that was said.
    pub bitrate: Option<f64>,
    /// Seconds for which each stays in the mean.
    pub stay: Option<f64>,
    /// Seconds after which each seeks in the mean.
    pub seek: Option<f64>,
    /// The share that decodes and verifies.
    pub verify: f64,
    /// The share of packets that they lose.
    pub loss: f64,
    /// What is at the other end.
    pub against: String,
    /// Where chance begins.
    pub seed: u64,
}

/// A second.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Line {
    /// Since the beginning.
    pub second: f64,
    /// Connected at its end.
    pub viewers: u64,
    /// Let in at its end: those that have had a block since they came.
    pub inside: u64,
    /// Joined in it.
    pub joined: u64,
    /// Let in in it.
    pub admitted: u64,
    /// Attempts refused in it.
    pub refused: u64,
    /// Put out in it, after they had been served.
    pub put_out: u64,
    /// Segments in time.
    pub on_time: u64,
    /// Segments late.
    pub late: u64,
    /// Blocks.
    pub blocks: u64,
    /// Blocks of no use.
    pub useless: u64,
    /// Refused, put out or failed.
    pub lost: u64,
    /// Megabits of blocks a second.
    pub megabits: f64,
    /// Megabits a second that were played in it, of segments that were in time.
    pub goodput: f64,
    /// Processors that this program kept busy.
    pub cores: f64,
}

/// Prints a line a second until the time is over, `stop` says so, or nobody reads them.
pub(super) async fn watch(
    options: &Options,
    (totals, present): (&[Arc<Totals>], &AtomicU64),
    begin: Instant,
    time: Duration,
    stop: impl Future<Output = ()>,
) -> io::Result<Report> {
    let bar = ProgressBar::new(time.as_secs().max(1));
    // A table on the terminal is progress enough.
    if !console::is_watched() || io::stdout().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar.set_style(
        ProgressStyle::with_template("{bar:40} {pos}/{len} s {msg}")
            .expect("the template is valid"),
    );
    let mut report = Report::new(options);
    let is_table = options.json.as_deref() != Some(Path::new("-"));
    if is_table {
        console::print(format_args!("{}\n", Line::HEAD))?;
    }
    let (mut before, mut cpu_before, mut last) = (Snapshot::default(), cpu_seconds(), begin);
    let (cpu_begin, mut counted) = (cpu_before, 0);
    let second = Duration::from_secs(1);
    let mut ticks = tokio::time::interval_at((begin + second).into(), second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(stop);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = &mut stop => break,
        }
        let (now, sum, cpu) = (
            Instant::now(),
            Totals::sum(totals.iter().map(Arc::as_ref)),
            cpu_seconds(),
        );
        let seconds = (now - last).as_secs_f64();
        let over = (now - begin).as_secs();
        let played: f64 = totals.iter().map(|totals| totals.take_played(over)).sum();
        let line = Line {
            second: (now - begin).as_secs_f64(),
            viewers: present.load(Ordering::Relaxed),
            inside: sum.inside(),
            joined: sum.joined - before.joined,
            admitted: sum.admitted - before.admitted,
            refused: sum.refused - before.refused,
            put_out: sum.put_out_times - before.put_out_times,
            on_time: sum.on_time - before.on_time,
            late: sum.late - before.late,
            blocks: sum.blocks - before.blocks,
            useless: sum.useless - before.useless,
            lost: lost(&sum) - lost(&before),
            megabits: (sum.bytes - before.bytes) as f64 * 8e-6 / seconds,
            goodput: played.max(0.0) * 8e-6 / (over - counted).max(1) as f64,
            cores: (cpu - cpu_before) / seconds,
        };
        if is_table {
            console::print(format_args!("{line}\n"))?;
        }
        bar.set_position((now - begin).as_secs());
        bar.set_message(format!("{} viewers, {} late", line.viewers, sum.late));
        report.seconds.push(line);
        (before, cpu_before, last, counted) = (sum, cpu, now, over);
        if now - begin >= time {
            break;
        }
    }
    bar.finish_and_clear();
    report.elapsed_seconds = begin.elapsed().as_secs_f64();
    report.cpu_seconds = cpu_seconds() - cpu_begin;
    Ok(report)
}

impl Report {
    fn new(options: &Options) -> Self {
        let asked = Asked {
            viewers: options.viewers,
            join_rate: options.join_rate,
            bitrate: options.bitrate,
            stay: options.stay.map(|stay| stay.as_secs_f64()),
            seek: options.seek.map(|seek| seek.as_secs_f64()),
            verify: options.verify,
            loss: options.loss,
            against: format!("{:?}", options.against).to_lowercase(),
            seed: options.seed,
        };
        let (totals, none) = (Snapshot::default(), Percentiles::default());
        let (failures, lateness, first_block, joining) = (BTreeMap::new(), none, none, none);
        let (cpu_seconds, elapsed_seconds) = (0.0, 0.0);
        Self {
            asked,
            seconds: Vec::new(),
            totals,
            failures,
            lateness,
            first_block,
            joining,
            first_segment: none,
            startup: none,
            waiting: none,
            served_share: 0.0,
            goodput_bits: 0.0,
            played_share: 0.0,
            cpu_seconds,
            elapsed_seconds,
        }
    }

    /// Takes over what was counted until everybody had left.
    pub(super) fn close(mut self, totals: &[Arc<Totals>]) -> Self {
        self.totals = Totals::sum(totals.iter().map(Arc::as_ref));
        self.failures = Totals::failures(totals.iter().map(Arc::as_ref));
        self.lateness = Spread::percentiles(totals.iter().map(|totals| &totals.lateness));
        self.first_block = Spread::percentiles(totals.iter().map(|totals| &totals.first_block));
        self.joining = Spread::percentiles(totals.iter().map(|totals| &totals.joining));
        self.first_segment = Spread::percentiles(totals.iter().map(|totals| &totals.first_segment));
        self.startup = Spread::percentiles(totals.iter().map(|totals| &totals.startup));
        self.waiting = Spread::percentiles(totals.iter().map(|totals| &totals.waiting));
        self.served_share = self.totals.served_share();
        self.played_share = self.totals.played_share();
        self.goodput_bits =
            self.totals.goodput_bytes() as f64 * 8.0 / self.elapsed_seconds.max(1e-3);
        self
    }

    /// Writes it as JSON; `-` is standard output.
    pub(super) fn write(&self, file: &Path) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self).expect("numbers and texts");
        text.push('\n');
        if file == Path::new("-") {
            console::print(text)
        } else {
            std::fs::write(file, text)
        }
    }

    /// Why less than this share was delivered: of viewers served, or of what they would play.
    pub fn shortfall(&self, required: f64) -> Option<String> {
        let Snapshot { served, asked, .. } = self.totals;
        if asked == 0 || self.served_share < required {
            return Some(format!("served {served} of {asked} viewers"));
        }
        (self.played_share < required).then(|| {
            format!(
                "{:.1} % of what the viewers would play was played in time",
                self.played_share * 100.0
            )
        })
    }

    /// Whether everybody had everything in time, and nothing was wrong.
    pub fn is_clean(&self) -> bool {
        let Snapshot {
            asked,
            served,
            put_out_times,
            late,
            corrupt,
            refused,
            failed,
            ..
        } = self.totals;
        late + corrupt + refused + put_out_times + failed == 0 && served == asked
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Snapshot {
            asked,
            served,
            refused_viewers,
            never_in,
            unserved,
            put_out,
            put_out_times,
            joined,
            left,
            refused,
            failed,
            on_time,
            late,
            verified,
            corrupt,
            blocks,
            useless,
            bytes,
            wire_bytes,
            ..
        } = self.totals;
        let percent = |share: f64| share * 100.0;
        let times = |times: &Percentiles| {
            format!(
                "half {:.1}, 99 % {:.1}, all {:.1} ms",
                times.p50_ms, times.p99_ms, times.max_ms
            )
        };
        writeln!(
            f,
            "served         {served} of {asked} viewers ({:.1} %)",
            percent(self.served_share)
        )?;
        writeln!(
            f,
            "goodput        {:.1} Mbit/s, {:.1} % of what the viewers that asked would play",
            self.goodput_bits / 1e6,
            percent(self.played_share)
        )?;
        writeln!(
            f,
            "put out        {put_out} viewers after they had been served, {put_out_times} times"
        )?;
        writeln!(
            f,
            "refused        {refused_viewers} viewers at first, {never_in} of them never let in; \
             {unserved} others got no segment"
        )?;
        if self.waiting.count > 0 {
            writeln!(f, "let in         later, after {}", times(&self.waiting))?;
        }
        writeln!(
            f,
            "first segment  after {}, from the first attempt on",
            times(&self.first_segment)
        )?;
        writeln!(
            f,
            "               after {}, from the attempt on that was granted",
            times(&self.startup)
        )?;
        writeln!(
            f,
            "joined         {joined} ({left} left, {refused} attempts refused, {failed} failed), \
             within {}",
            times(&self.joining)
        )?;
        for (reason, count) in &self.failures {
            writeln!(f, "failed         {count}: {reason}")?;
        }
        writeln!(
            f,
            "segments       {on_time} in time, {late} late, {verified} verified, {corrupt} corrupt"
        )?;
        if late > 0 {
            writeln!(f, "late by        {}", times(&self.lateness))?;
        }
        writeln!(f, "first block    after {}", times(&self.first_block))?;
        let (useless, overhead) = (
            100.0 * useless as f64 / blocks.max(1) as f64,
            wire_bytes as f64 / bytes.max(1) as f64,
        );
        writeln!(
            f,
            "blocks         {blocks}, {useless:.2} % useless; {bytes} bytes, {overhead:.4} bytes \
             of UDP each"
        )?;
        let cores = self.cpu_seconds / self.elapsed_seconds.max(1e-3);
        write!(
            f,
            "this program   {:.1} s of processor time in {:.1} s, {cores:.2} cores",
            self.cpu_seconds, self.elapsed_seconds
        )
    }
}

impl Line {
    const HEAD: &str = "  second  viewers   inside   joined  refused  put out  on time     late  \
                        \x20blocks  useless     lost      Mbit/s     goodput    cores";
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            second,
            viewers,
            inside,
            joined,
            admitted: _,
            refused,
            put_out,
            on_time,
            late,
            blocks,
            useless,
            lost,
            megabits,
            goodput,
            cores,
        } = self;
        write!(
            f,
            "{second:8.1} {viewers:8} {inside:8} {joined:8} {refused:8} {put_out:8} {on_time:8} \
             {late:8} {blocks:8} {useless:8} {lost:8} {megabits:11.1} {goodput:11.1} {cores:8.2}"
        )
    }
}

/// Attempts and connections that came to nothing.
fn lost(sum: &Snapshot) -> u64 {
    sum.refused + sum.put_out_times + sum.failed
}

/// Processor time that this process has taken.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stand_under_their_heads() {
        let line = Line {
            second: 1.0,
            viewers: 30_000,
            inside: 29_000,
            joined: 0,
            admitted: 8,
            refused: 6,
            put_out: 7,
            on_time: 1,
            late: 2,
            blocks: 3,
            useless: 4,
            lost: 5,
            megabits: 23_000.0,
            goodput: 22_000.0,
            cores: 7.5,
        };
        assert_eq!(line.to_string().len(), Line::HEAD.len());
    }

    #[test]
    fn none_late_with_half_of_the_viewers_gone_is_no_success() {
        let parsed = <crate::swarm::tests::Line as clap::Parser>::parse_from(["swarm"]);
        let totals = Totals::default();
        totals.asked.add(10);
        totals.served.add(5);
        totals.wanted.add(100);
        totals.played.add(50);
        let report = Report::new(&parsed.options).close(&[Arc::new(totals)]);
        assert_eq!(report.totals.late, 0);
        assert!(!report.is_clean());
        let text = report.to_string();
        assert!(
            text.starts_with("served         5 of 10 viewers (50.0 %)\n"),
            "{text}"
        );
        assert_eq!(
            report.shortfall(0.9).as_deref(),
            Some("served 5 of 10 viewers")
        );
        assert_eq!(report.shortfall(0.5), None);
    }

    #[test]
    fn processor_time_passes_with_work() {
        let (before, begun) = (cpu_seconds(), Instant::now());
        while begun.elapsed() < Duration::from_millis(30) {
            std::hint::spin_loop();
        }
        assert!(cpu_seconds() > before);
    }
}
