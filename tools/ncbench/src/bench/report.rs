//! Results as a table that grows, and as JSON at the end.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::machine::Machine;
use super::operation::{Operation, Unit};
use super::rounds::Laps;
use super::{Error, Options};

/// A case with its figures.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Measured {
    case: String,
    unit: &'static str,
    /// Of the processor's time: median and best round.
    cpu: f64,
    cpu_best: f64,
    /// Of the wall's time.
    wall: f64,
    wall_best: f64,
    rounds: usize,
    repeats: u32,
    /// What a repetition makes: bytes for MB/s, otherwise how many of what is counted.
    made: usize,
    cpu_ns: Vec<u128>,
    wall_ns: Vec<u128>,
}

impl Measured {
    pub(super) fn new(case: String, unit: Unit, made: usize, laps: Laps) -> Self {
        let Laps { repeats, laps } = laps;
        let mut cpu: Vec<Duration> = laps.iter().map(|lap| lap.cpu).collect();
        let mut wall: Vec<Duration> = laps.iter().map(|lap| lap.wall).collect();
        cpu.sort_unstable();
        wall.sort_unstable();
        let value = |sorted: &[Duration], index: usize| {
            let seconds = sorted.get(index).map_or(0.0, Duration::as_secs_f64) / f64::from(repeats);
            unit.value(seconds, made)
        };
        Self {
            case,
            unit: unit.name(),
            cpu: value(&cpu, cpu.len() / 2),
            cpu_best: value(&cpu, 0),
            wall: value(&wall, wall.len() / 2),
            wall_best: value(&wall, 0),
            rounds: laps.len(),
            repeats,
            made,
            cpu_ns: laps.iter().map(|lap| lap.cpu.as_nanos()).collect(),
            wall_ns: laps.iter().map(|lap| lap.wall.as_nanos()).collect(),
        }
    }
}

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Self::Megabytes => "MB/s",
            Self::Microseconds => "us",
            Self::Rows => "Mrows/s",
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "at most some GB")]
    fn value(self, seconds: f64, made: usize) -> f64 {
        match self {
            Self::Megabytes | Self::Rows => made as f64 / seconds / 1e6,
            Self::Microseconds => seconds * 1e6 / made as f64,
        }
    }
}

/// The report while it is written.
pub(super) struct Report<'a, W: Write> {
    out: &'a mut W,
    machine: Machine,
    json: Option<PathBuf>,
    results: Vec<Measured>,
    /// The operation whose title is the last one printed.
    operation: Option<&'static str>,
    /// Cases that have been listed or measured: two shapes may share one.
    names: Vec<String>,
}

impl<'a, W: Write> Report<'a, W> {
    pub(super) fn new(options: &Options, out: &'a mut W) -> Result<Self, Error> {
        let machine = Machine::here(options);
        let json = options.json.clone();
        let report = Self {
            out,
            machine,
            json,
            results: Vec::new(),
            operation: None,
            names: Vec::new(),
        };
        if !options.list {
            report
                .machine
                .lines()
                .iter()
                .try_for_each(|line| writeln!(report.out, "{line}"))?;
            writeln!(
                report.out,
                "# every case was compared with the definition of the field before it was measured"
            )?;
            options
                .left_out()
                .iter()
                .try_for_each(|line| writeln!(report.out, "# {line}"))?;
        }
        Ok(report)
    }

    /// Whether this case is in the report already.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// Whether there is no case in it.
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// A name in a list.
    pub(super) fn line(&mut self, name: &str) -> io::Result<()> {
        self.names.push(name.into());
        writeln!(self.out, "{name}")
    }

    /// What the cases that follow are, once.
    pub(super) fn title(&mut self, operation: &Operation) -> io::Result<()> {
        if self.operation.replace(operation.word) == Some(operation.word) {
            return Ok(());
        }
        writeln!(self.out)?;
        operation
            .describe
            .lines()
            .try_for_each(|line| writeln!(self.out, "# {line}"))?;
        let (unit, name) = (operation.unit.name(), operation.word);
        writeln!(
            self.out,
            "# {name:<34} {:>12} {:>12} {:>12} {:>12}",
            "cpu median",
            "cpu best",
            "wall median",
            format!("wall best, {unit}")
        )
    }

    pub(super) fn add(&mut self, measured: Measured) -> io::Result<()> {
        let Measured {
            case,
            cpu,
            cpu_best,
            wall,
            wall_best,
            ..
        } = &measured;
        writeln!(
            self.out,
            "{case:<36} {cpu:>12.2} {cpu_best:>12.2} {wall:>12.2} {wall_best:>12.2}"
        )?;
        self.out.flush()?;
        self.names.push(case.clone());
        self.results.push(measured);
        Ok(())
    }

    pub(super) fn finish(self) -> Result<(), Error> {
        #[derive(Serialize)]
        struct Record<'a> {
            machine: &'a Machine,
            results: &'a [Measured],
        }
        if let Some(path) = &self.json {
            let record = Record {
                machine: &self.machine,
                results: &self.results,
            };
            let text = serde_json::to_string_pretty(&record).map_err(io::Error::from)?;
            fs::write(path, text + "\n")?;
        }
        Ok(())
    }
}
