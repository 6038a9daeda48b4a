//! What an outage came to: counted, checked, and told as a text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use crate::fleet::{Fleet, Server};
use crate::moves::Loss;
use crate::scale::Scale;
use crate::viewers::HOLDS;

/// Around a change objects may have two homes: from the segment before to the one after.
const AROUND: Duration = Duration::from_secs(2);
/// Segments are requested within this time, or at the end.
const REQUESTED_WITHIN: Duration = Duration::from_secs(4);

/// An outage, as it goes on.
pub(crate) struct Outage {
    name: &'static str,
    /// When viewers play and all is well.
    begun: Instant,
    /// Where the logs end then.
    logs: Vec<u64>,
    /// When something changes, and when all is well again.
    pub(crate) changes: Vec<Range<Instant>>,
    pub(crate) losses: Vec<Loss>,
    pub(crate) notes: Vec<String>,
}

impl Outage {
    pub(crate) fn begin(name: &'static str, fleet: &Fleet) -> Self {
        Self {
            name,
            begun: Instant::now(),
            logs: fleet.servers.iter().map(Server::log_length).collect(),
            changes: Vec::new(),
            losses: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Something changes while this runs.
    pub(crate) fn change<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        let from = Instant::now();
        let done = change(self);
        self.changes.push(from..Instant::now());
        done
    }

    /// Writes the report, and checks it. A segment may be requested so often from the origin around
    /// a change, and once more for each further change that it meets.
    pub(crate) fn end(self, fleet: &mut Fleet, scale: &Scale, requests_max: usize) {
        let until = Instant::now();
        let all = self.begun..until;
        let sight = fleet.crowd.sight(&all);
        let moves = fleet.crowd.moves(&self.losses);
        let (steady, changing) = self.requests(fleet, &(self.begun..until - REQUESTED_WITHIN));

        let mut text = self.head(scale);
        let mut row = |what: &str, value: String| {
            writeln!(text, "| {what} | {value} |").expect("a text takes more");
        };
        row(
            "late segments",
            format!("{} of {}", sight.late, sight.segments),
        );
        row("segments with wrong bytes", sight.wrong.to_string());
        let (least, most) = (sight.least.as_secs_f64(), sight.most_had.as_secs_f64());
        row(
            "time to spare before a segment is shown, of 6 s",
            format!("{least:.2} s at least, {most:.2} s for 99 of 100"),
        );
        row(
            "segments requested from the origin, steady",
            frequencies(&steady),
        );
        row("…, around a change", frequencies(&changing));
        let (count, seconds) = (moves.took.len(), |percent| {
            moves.within(percent).as_secs_f64()
        });
        let moved = match count {
            0 => "none".to_owned(),
            _ => format!(
                "{count}; half within {:.2} s, 99 % within {:.2} s, the slowest {:.2} s",
                seconds(50),
                seconds(99),
                seconds(100)
            ),
        };
        row(
            "viewers that moved, because all their servers were gone",
            moved,
        );
        row(
            "… and that found no server until the end",
            moves.lost.to_string(),
        );
        let errors: usize = sight.errors.values().sum();
        row(
            "requests of viewers that failed, and were repeated",
            errors.to_string(),
        );
        for note in &self.notes {
            writeln!(text, "\n- {note}").expect("a text takes more");
        }
        for (error, count) in &sight.errors {
            writeln!(text, "\n- an error at viewers, {count} times: {error}").expect("a text");
        }
        self.tell_readiness(&mut text, fleet);
        self.tell_logs(&mut text, fleet);
        println!("{text}");
        if let Some(folder) = std::env::var_os("NCTEST_OUT").map(PathBuf::from) {
            std::fs::write(folder.join(format!("outages-{}.md", self.name)), &text).unwrap();
            fleet.keep_logs(&folder, self.name);
        }

        assert!(fleet.has_origin(), "nginx runs");
        assert_eq!((sight.late, sight.wrong), (0, 0), "late and wrong segments");
        assert!(sight.segments >= scale.viewers, "viewers have played");
        // All servers order playlists by one time.
        let mut errors = sight.errors.keys();
        assert!(
            !errors.any(|error| error.contains("older")),
            "{:?}",
            sight.errors
        );
        assert_eq!(moves.lost, 0, "viewers without a server");
        for server in &fleet.servers {
            server.looks(|looks| {
                let then = looks.readiness.iter().filter(|(at, _)| *at >= self.begun);
                let serves = |said: &str| said.starts_with("200 ") || said == "no answer";
                assert!(
                    then.clone().all(|(_, said)| serves(said)),
                    "{:?}",
                    looks.readiness
                );
            });
        }
        // A busy machine may be late once or twice.
        let often = |requests: &BTreeMap<u64, usize>| requests.values().copied().max();
        assert!(often(&steady) <= Some(2), "{steady:?}");
        let twice = steady.values().filter(|count| **count > 1).count();
        assert!(twice <= 2 + steady.len() / 20, "{steady:?}");
        for (number, count) in &changing {
            let most = requests_max + self.changes_near(fleet, *number).saturating_sub(1);
            assert!(*count <= most, "{number} of {changing:?}, at most {most}");
        }
    }

    /// The changes that a segment may have met: it was published while they went on, or was not
    /// shown yet when they began. A server that dies and one that comes back are two: the one that
    /// comes back has lost what it had, and is the home of a part of it.
    fn changes_near(&self, fleet: &Fleet, number: u64) -> usize {
        let at = fleet.stream.published(number);
        let meets = |change: &&Range<Instant>| (change.start - HOLDS..change.end).contains(&at);
        self.changes.iter().filter(meets).count()
    }

    /// How often each segment was requested: of those that were published while nothing changed,
    /// and of the others.
    fn requests(
        &self,
        fleet: &Fleet,
        time: &Range<Instant>,
    ) -> (BTreeMap<u64, usize>, BTreeMap<u64, usize>) {
        let is_steady = |number: &u64| {
            let at = fleet.stream.published(*number);
            let is_near = |change: &Range<Instant>| {
                (change.start - AROUND..change.end + AROUND).contains(&at)
            };
            !self.changes.iter().any(is_near)
        };
        let requests = fleet.requests(time).into_iter();
        requests.partition(|(number, _)| is_steady(number))
    }

    fn head(&self, scale: &Scale) -> String {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpu = read("/proc/cpuinfo");
        let model = cpu
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let model = model.map_or("unknown processor", |(_, model)| model);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let kernel = read("/proc/sys/kernel/osrelease");
        let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| "not told".to_owned());
        let date = humantime::format_rfc3339_seconds(SystemTime::now());
        let variables = std::env::vars().filter(|(name, _)| name.starts_with("NCTEST_"));
        let variables: Vec<String> = variables
            .filter(|(name, _)| {
                !["NCTEST_COMMIT", "NCTEST_OUT", "NCTEST_BIN_DIR"].contains(&&**name)
            })
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        format!(
            "# {}, {date}\n\n\
             - Machine: {cores} processors, {model}, Linux {}\n\
             - Commit: {}\n\
             - Command: `{} outages {}`\n\
             - {} servers, 3 nodes of NATS, nginx, {} viewers on {} hosts, segments of 2 s with \
             {} kB\n\n| what | how much |\n|---|---|\n",
            self.name,
            kernel.trim(),
            variable("NCTEST_COMMIT"),
            variables.join(" "),
            self.name.replace('-', "_"),
            scale.servers,
            scale.viewers,
            scale.networks,
            scale.bitrate / 4000,
        )
    }

    /// What each `/readyz` answered: before the first change, until the last, and after it.
    fn tell_readiness(&self, text: &mut String, fleet: &Fleet) {
        let from = self
            .changes
            .first()
            .map_or(self.begun, |change| change.start);
        let until = self.changes.last().map_or(self.begun, |change| change.end);
        let line = "\n| `/readyz` of | before | during | after |\n|---|---|---|---|";
        writeln!(text, "{line}").expect("a text takes more");
        for server in &fleet.servers {
            let said = |time: Range<Instant>| {
                server.looks(|looks| {
                    let looks = &looks.readiness;
                    // What it said when the time began, and what it said then.
                    let first = looks
                        .iter()
                        .rposition(|(at, _)| *at <= time.start)
                        .unwrap_or(0);
                    let said = looks[first..].iter().take_while(|(at, _)| *at < time.end);
                    let mut distinct: Vec<&String> = Vec::new();
                    for (_, said) in said {
                        if !distinct.contains(&said) {
                            distinct.push(said);
                        }
                    }
                    let distinct: Vec<String> =
                        distinct.iter().map(|said| said.to_string()).collect();
                    distinct.join("<br>")
                })
            };
            let (before, during) = (said(self.begun..from), said(from..until));
            let after = said(until..Instant::now());
            writeln!(text, "| {} | {before} | {during} | {after} |", server.name)
                .expect("a text takes more");
        }
    }

    fn tell_logs(&self, text: &mut String, fleet: &Fleet) {
        let mut complaints: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for (server, from) in fleet.servers.iter().zip(&self.logs) {
            for (complaint, count) in server.complaints(*from) {
                let (servers, times) = complaints.entry(complaint).or_default();
                (*servers, *times) = (*servers + 1, *times + count);
            }
        }
        let line = "\n| log, warnings and above | servers | times |\n|---|---:|---:|";
        writeln!(text, "{line}").expect("a text takes more");
        for (complaint, (servers, times)) in complaints {
            let complaint = complaint.replace('|', "/");
            writeln!(text, "| {complaint} | {servers} | {times} |").expect("a text takes more");
        }
    }
}

/// So many segments once, so many twice, and so on.
fn frequencies(requests: &BTreeMap<u64, usize>) -> String {
    let mut of: BTreeMap<usize, usize> = BTreeMap::new();
    for count in requests.values() {
        *of.entry(*count).or_default() += 1;
    }
    if of.is_empty() {
        return "none".to_owned();
    }
    let sum: usize = requests.values().sum();
    let mean = sum as f64 / requests.len() as f64;
    let of: Vec<String> = of
        .into_iter()
        .map(|(times, segments)| format!("{segments} × {times}"))
        .collect();
    format!("{} (mean {mean:.2})", of.join(", "))
}
