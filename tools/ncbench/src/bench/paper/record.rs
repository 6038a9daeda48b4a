//! What was measured: as a table, as JSON, as a figure.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use ncserverd::device::Field;
use serde::{Deserialize, Serialize};

use super::catalogue::{Bar, Case, Row};
use super::measure::{Measure, Unit};
use super::{Error, Sample, all_rows, field_name};
use crate::bench::machine::Machine;
use crate::plot::{Figure, Panel, Series};

/// A run, with where it was made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    /// The name of its file; empty if it was not read from one.
    #[serde(skip)]
    pub(super) name: String,
    pub(super) machine: serde_json::Value,
    pub(super) gpus: Vec<String>,
    pub(super) field: String,
    /// Shapes were cut down, so that figures mean nothing.
    pub(super) quick: bool,
    pub(super) rows: Vec<RowResult>,
}

/// What a row has come to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RowResult {
    pub(super) row: String,
    pub(super) title: String,
    pub(super) axis: String,
    /// The beginning of the series that others are compared with; empty if none is.
    #[serde(default)]
    pub(super) base: String,
    pub(super) note: String,
    /// What the paper reports: what, and the figure.
    pub(super) paper: Vec<(String, String)>,
    /// What is inside the timer of each measure.
    pub(super) timers: Vec<String>,
    pub(super) points: Vec<Point>,
    /// Cases that were not measured, and why.
    pub(super) skipped: Vec<(String, String)>,
}

/// A value.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Point {
    pub(super) case: String,
    pub(super) panel: String,
    pub(super) series: String,
    pub(super) x: f64,
    /// Median of the rounds, and the extremes.
    pub(super) value: f64,
    pub(super) best: f64,
    pub(super) worst: f64,
    pub(super) unit: String,
    pub(super) by: By,
    pub(super) n: u16,
    pub(super) k: u32,
    pub(super) rows: u32,
    pub(super) generations: u32,
    pub(super) rounds: usize,
    pub(super) repeats: u32,
    pub(super) bytes: u64,
}

/// Who made it, for ratios.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum By {
    Cpu,
    Gpu,
    GpuToHost,
    /// What is not compared.
    Other,
}

impl Sample {
    /// From the times of rounds that did the work so many times each.
    pub(super) fn of_times(
        case: &Case,
        mut times: Vec<Duration>,
        repeats: u32,
        bytes: u64,
    ) -> Self {
        times.sort_unstable();
        let value = |time: &Duration| {
            let nanoseconds = u64::try_from(time.as_nanos()).expect("less than centuries");
            in_unit(
                case.measure.unit(),
                as_f64(nanoseconds) / f64::from(repeats),
                bytes,
            )
        };
        Self {
            value: times.get(times.len() / 2).map_or(0.0, value),
            best: times.first().map_or(0.0, value),
            worst: times.last().map_or(0.0, value),
            rounds: times.len(),
            repeats,
            bytes,
        }
    }

    /// What one loop of so many repetitions has come to.
    pub(super) fn once(value: f64, repeats: u32) -> Self {
        Self {
            value,
            best: value,
            worst: value,
            rounds: 1,
            repeats,
            bytes: 0,
        }
    }

    /// The part of a time that another one is, both as medians, in percent.
    pub(super) fn share(
        case: &Case,
        part: &(Vec<Duration>, u32),
        whole: &(Vec<Duration>, u32),
    ) -> Self {
        let of = |(times, repeats): &(Vec<Duration>, u32)| {
            Self::of_times(case, times.clone(), *repeats, 0)
        };
        let (part, whole) = (of(part), of(whole));
        let share = |part: f64, whole: f64| 100.0 * part / whole;
        let value = share(part.value, whole.value);
        Self {
            value,
            best: share(part.best, whole.best),
            worst: share(part.worst, whole.worst),
            ..whole
        }
    }
}

/// Converts nanoseconds to the unit of a record, so that a single measurement is as short a number
/// there as the clock's. A share is made of two values, which are converted here unchanged; counts
/// are not converted.
fn in_unit(unit: Unit, nanoseconds: f64, bytes: u64) -> f64 {
    match unit {
        Unit::Gigabytes | Unit::Coefficients => as_f64(bytes) / nanoseconds.max(1e-3),
        Unit::Microseconds => nanoseconds / 1e3,
        Unit::Percent
        | Unit::Blocks
        | Unit::Millijoules
        | Unit::Watts
        | Unit::Bytes
        | Unit::Rows => nanoseconds,
    }
}

impl Point {
    pub(super) fn new(row: &Row, case: &Case, suffix: &str, sample: Sample) -> Self {
        let Sample {
            value,
            best,
            worst,
            rounds,
            repeats,
            bytes,
        } = sample;
        let by = match case.measure {
            measure if !measure.is_comparable() => By::Other,
            measure if measure.is_cpu() => By::Cpu,
            Measure::ToHost | Measure::Store | Measure::DecodeToHost | Measure::SplitDecode => {
                By::GpuToHost
            }
            Measure::ChunksThrough | Measure::RebuildThrough | Measure::ProductThrough => {
                By::GpuToHost
            }
            Measure::ReplayThrough | Measure::ReplayWhole => By::GpuToHost,
            Measure::SystemsThrough | Measure::SystemsWhole => By::GpuToHost,
            measure if measure.is_gfq_through() => By::GpuToHost,
            _ => By::Gpu,
        };
        Self {
            case: case.name(row) + suffix,
            panel: case.panel.clone(),
            series: format!("{}{suffix}", case.series),
            x: case.x,
            value,
            best,
            worst,
            unit: case.measure.unit().name().into(),
            by,
            n: case.n,
            k: case.k,
            rows: case.rows,
            generations: case.generations,
            rounds,
            repeats,
            bytes,
        }
    }

    /// Threads of the CPU, by the name of the series.
    fn threads(&self) -> Option<u64> {
        self.series.split(", ").find_map(threads_of)
    }

    /// The name of the series without them.
    fn contender(&self) -> Vec<&str> {
        self.series
            .split(", ")
            .filter(|word| threads_of(word).is_none())
            .collect()
    }

    fn is_rate(&self) -> bool {
        self.unit == Unit::Gigabytes.name() || self.unit == Unit::Coefficients.name()
    }
}

impl RowResult {
    pub(super) fn new(row: &Row, cases: &[Case]) -> Self {
        let timers: BTreeSet<&str> = cases.iter().map(|case| case.measure.timer()).collect();
        Self {
            row: row.id.into(),
            title: row.title.into(),
            axis: row.axis.label().into(),
            base: row.base.into(),
            note: row.note.into(),
            paper: row
                .bars
                .iter()
                .map(|bar| (bar.what.into(), bar.paper.into()))
                .collect(),
            timers: timers.into_iter().map(str::to_owned).collect(),
            points: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// The ratio of the best of the GPU to the best of the CPU at `x` of a panel: the
    /// same work, of the most generations that both have, and all `cores` of the host. Below 1 the
    /// GPU loses. The reason where both have values and there is no ratio.
    pub(super) fn ratio(
        &self,
        points: &[&Point],
        by: By,
        x: f64,
        cores: Option<u64>,
    ) -> Option<Result<f64, &'static str>> {
        let at = |by: By| {
            points
                .iter()
                .filter(move |point| point.by == by && point.x == x)
                .filter_map(|point| self.work(point))
        };
        let cpus: Vec<Work<'_>> = at(By::Cpu).collect();
        let mut gpus: Vec<Work<'_>> = at(by).collect();
        gpus.sort_by(|a, b| {
            b.generations()
                .cmp(&a.generations())
                .then(b.speed().total_cmp(&a.speed()))
        });
        let over_cpu = |gpu: &Work<'_>| {
            let equal = cpus
                .iter()
                .filter(|cpu| cpu.generations() == gpu.generations());
            let cpu = equal
                .max_by(|a, b| a.speed().total_cmp(&b.speed()))
                .ok_or(OTHER_GENERATIONS)?;
            let reason = NOT_AT_BEST
                .into_iter()
                .find(|(row, _)| *row == self.row)
                .map(|(_, reason)| reason);
            let reason = reason.or_else(|| gpu.difference(cpu));
            let reason = reason.or_else(|| {
                (cpu.point.threads() != cores)
                    .then_some("the best of the CPU is not by all of its cores")
            });
            reason.map_or_else(|| Ok(gpu.speed() / cpu.speed()), Err)
        };
        let is_better = |first: &Result<f64, &str>, other: &Result<f64, &str>| {
            *first == Err(OTHER_GENERATIONS) || first.is_err() && other.is_ok()
        };
        let found = gpus.iter().map(over_cpu).reduce(|first, other| {
            if is_better(&first, &other) {
                other
            } else {
                first
            }
        });
        found.filter(|_| !cpus.is_empty())
    }

    /// The ratio of a series to the base at x: the same work on the same kind of
    /// processor, by the base's contender on more threads or by another on as many.
    pub(super) fn gain(&self, points: &[&Point], series: &str, x: f64) -> Option<f64> {
        let is_base = |point: &Point| !self.base.is_empty() && point.series.starts_with(&self.base);
        let at = |is_it: &dyn Fn(&Point) -> bool| {
            points.iter().find(|point| point.x == x && is_it(point))
        };
        let base = self.work(at(&is_base)?)?;
        let other = self.work(at(&|point| point.series == series && !is_base(point))?)?;
        let is_one_step = other.point.threads() == base.point.threads()
            || other.point.contender() == base.point.contender();
        let is_equal =
            other.point.by == base.point.by && is_one_step && other.difference(&base).is_none();
        is_equal.then(|| other.speed() / base.speed())
    }

    /// Nothing where a point is not compared, or not in the catalogue.
    fn work<'a>(&self, point: &'a Point) -> Option<Work<'a>> {
        let row = all_rows()
            .find(|row| row.id == self.row)
            .filter(|_| point.by != By::Other)?;
        let (measure, kernel) = row.maker(&point.panel, &point.series)?;
        Some(Work {
            point,
            measure,
            kernel,
        })
    }

    /// Panels in the order of their first point.
    pub(super) fn panels(&self) -> Vec<(&str, Vec<&Point>)> {
        let mut panels: Vec<(&str, Vec<&Point>)> = Vec::new();
        for point in &self.points {
            match panels.iter_mut().find(|panel| panel.0 == point.panel) {
                Some(panel) => panel.1.push(point),
                None => panels.push((&point.panel, vec![point])),
            }
        }
        panels
    }

    /// As text: a block for each panel, a line for each series, ratios below.
    pub(super) fn table(&self, cores: Option<u64>) -> String {
        let mut text = String::new();
        self.write_table(&mut text, cores)
            .expect("a string takes everything");
        text
    }

    fn write_table(&self, text: &mut String, cores: Option<u64>) -> std::fmt::Result {
        writeln!(text, "\n# {}: {}", self.row, self.title)?;
        self.paper
            .iter()
            .try_for_each(|(what, paper)| writeln!(text, "# paper, {what}: {paper}"))?;
        if !self.note.is_empty() {
            writeln!(text, "# {}", self.note)?;
        }
        self.timers
            .iter()
            .try_for_each(|timer| writeln!(text, "# {timer}"))?;
        for (name, points) in self.panels() {
            let grid = Grid::new(self, &points, cores);
            writeln!(text, "# {name}; {}", grid.unit)?;
            write!(text, "{:<48}", format!("# {}", self.axis))?;
            grid.xs.iter().try_for_each(|x| write!(text, " {x:>9}"))?;
            writeln!(text)?;
            for (series, values) in &grid.lines {
                write!(text, "{series:<48}")?;
                values.iter().try_for_each(|value| {
                    write!(text, " {:>9}", value.map_or_else(|| "-".into(), digits))
                })?;
                writeln!(text)?;
            }
        }
        let reasons: BTreeSet<&str> = self
            .skipped
            .iter()
            .map(|skipped| skipped.1.as_str())
            .collect();
        for reason in reasons {
            let count = self
                .skipped
                .iter()
                .filter(|skipped| skipped.1 == reason)
                .count();
            writeln!(text, "# not measured: {count} cases, {reason}")?;
        }
        Ok(())
    }

    /// The same as diagrams.
    pub(super) fn figure(&self) -> Figure {
        let bars = all_rows()
            .find(|row| row.id == self.row)
            .map_or(&[][..], |row| row.bars);
        let panel = |(name, points): (&str, Vec<&Point>)| {
            let mut series: Vec<Series> = Vec::new();
            for point in &points {
                match series.iter_mut().find(|series| series.name == point.series) {
                    Some(series) => series.points.push((point.x, point.value)),
                    None => series.push(Series {
                        name: point.series.clone(),
                        points: vec![(point.x, point.value)],
                    }),
                }
            }
            series
                .iter_mut()
                .for_each(|series| series.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
            Panel {
                title: name.to_owned(),
                x: self.axis.clone(),
                y: points
                    .first()
                    .map_or_else(String::new, |point| point.unit.clone()),
                series,
                marks: bars
                    .iter()
                    .filter(|bar| name.starts_with(bar.panel))
                    .filter_map(mark)
                    .collect(),
            }
        };
        Figure {
            title: format!("{}: {}", self.row, self.title),
            panels: self.panels().into_iter().map(panel).collect(),
        }
    }
}

fn mark(bar: &Bar) -> Option<(String, f64)> {
    bar.mark
        .map(|value| (format!("paper: {}", bar.paper), value))
}

/// A point, and what it measures.
struct Work<'a> {
    point: &'a Point,
    measure: Measure,
    kernel: &'static str,
}

impl Work<'_> {
    fn generations(&self) -> u32 {
        if self.measure.has_streams() {
            1
        } else {
            self.point.generations
        }
    }

    fn speed(&self) -> f64 {
        if self.point.is_rate() {
            self.point.value
        } else {
            1.0 / self.point.value
        }
    }

    /// Whether the CPU has more threads than its work has parts.
    fn has_idle_threads(&self) -> bool {
        let Point {
            n,
            k,
            rows,
            generations,
            ..
        } = *self.point;
        let parts = || self.measure.parts(self.kernel, n, k, rows, generations);
        self.point.by == By::Cpu
            && self
                .point
                .threads()
                .is_some_and(|threads| threads > parts())
    }

    /// Why this is not the work of the other, done by all threads; none if it is.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        let apart = self.measure.apart(self.kernel);
        if self.generations() != other.generations() {
            Some(OTHER_GENERATIONS)
        } else if apart.is_some() && apart != other.measure.apart(other.kernel) {
            apart
        } else if self.has_idle_threads() || other.has_idle_threads() {
            Some("some threads of the CPU have no work")
        } else {
            None
        }
    }
}

/// The number in "16 threads".
fn threads_of(word: &str) -> Option<u64> {
    word.strip_suffix(" threads")
        .or_else(|| word.strip_suffix(" thread"))?
        .parse()
        .ok()
}

const OTHER_GENERATIONS: &str = "the numbers of generations differ";
const OTHER_THREADS: &str = "the best number of threads is not measured here";
/// Rows whose CPU is known not to be at its best, and why.
const NOT_AT_BEST: [(&str, &str); 8] = [
    ("S1-9", OTHER_THREADS),
    ("S1-12", OTHER_THREADS),
    ("S2-4", OTHER_THREADS),
    ("S4-14", OTHER_THREADS),
    ("figure-invert", OTHER_THREADS),
    ("figure-crossover", OTHER_THREADS),
    ("S5-5", "the CPU has tables without vector instructions"),
    ("S5-6", "the CPU has tables without vector instructions"),
];

/// The values of a panel by series and x.
struct Grid {
    unit: String,
    xs: Vec<f64>,
    lines: Vec<(String, Vec<Option<f64>>)>,
}

impl Grid {
    fn new(row: &RowResult, points: &[&Point], cores: Option<u64>) -> Self {
        let mut xs: Vec<f64> = points.iter().map(|point| point.x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let mut lines: Vec<(String, Vec<Option<f64>>)> = Vec::new();
        for point in points {
            let column = xs.iter().position(|x| *x == point.x).expect("its own x");
            let index = lines
                .iter()
                .position(|line| line.0 == point.series)
                .unwrap_or(lines.len());
            if index == lines.len() {
                lines.push((point.series.clone(), vec![None; xs.len()]));
            }
            lines[index].1[column] = Some(point.value);
        }
        for (by, name) in SIDES {
            let ratio = |&x: &f64| row.ratio(points, by, x, cores).and_then(Result::ok);
            let ratios: Vec<Option<f64>> = xs.iter().map(ratio).collect();
            if ratios.iter().any(Option::is_some) {
                lines.push((name.to_owned(), ratios));
            }
        }
        let names: Vec<String> = lines.iter().map(|line| line.0.clone()).collect();
        for name in names {
            let gains: Vec<Option<f64>> = xs.iter().map(|&x| row.gain(points, &name, x)).collect();
            if gains.iter().any(Option::is_some) {
                lines.push((format!("  {name}: times as fast"), gains));
            }
        }
        Self {
            unit: points
                .first()
                .map_or_else(String::new, |point| point.unit.clone()),
            xs,
            lines,
        }
    }
}

/// The ratios to the CPU.
pub(super) const SIDES: [(By, &str); 2] = [
    (By::Gpu, "GPU : CPU"),
    (By::GpuToHost, "GPU to the host : CPU"),
];

/// Four digits that count.
pub(super) fn digits(value: f64) -> String {
    let places = match value.abs() {
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        size if size >= 0.0995 => 3,
        _ => 5,
    };
    format!("{value:.places$}")
}

impl Record {
    pub(super) fn new(machine: Machine, gpus: Vec<String>, field: Field, quick: bool) -> Self {
        let machine = serde_json::to_value(machine).expect("plain fields");
        Self {
            name: String::new(),
            machine,
            gpus,
            field: field_name(field).into(),
            quick,
            rows: Vec::new(),
        }
    }

    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let text = fs::read(path).map_err(Error::Output)?;
        let read: Self = serde_json::from_slice(&text).map_err(|error| Error::Record {
            path: path.into(),
            reason: error.to_string(),
        })?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self {
            name: name.into_owned(),
            ..read
        })
    }

    /// A row of the papers is a line, so that two records can be compared.
    pub(super) fn write(&self, path: &Path) -> Result<(), Error> {
        let json =
            |value: serde_json::Result<String>| value.map_err(|error| Error::Output(error.into()));
        let head = json(serde_json::to_string(&Self {
            rows: Vec::new(),
            ..self.clone()
        }))?;
        let rows = self
            .rows
            .iter()
            .map(|row| json(serde_json::to_string(row)))
            .collect::<Result<Vec<_>, _>>()?;
        let head = head.strip_suffix("]}").expect("rows are the last field");
        Ok(fs::write(
            path,
            format!("{head}\n{}\n]}}\n", rows.join(",\n")),
        )?)
    }

    /// Where and with what.
    pub(super) fn head(&self) -> String {
        let fact = |(name, value): (&String, &serde_json::Value)| match value {
            serde_json::Value::String(text) => format!("# {name}: {text}"),
            serde_json::Value::Array(values) => {
                let words: Vec<&str> = values
                    .iter()
                    .filter_map(serde_json::Value::as_str)
                    .collect();
                format!("# {name}: {}", words.join(" "))
            }
            other => format!("# {name}: {other}"),
        };
        let mut lines: Vec<String> = self
            .machine
            .as_object()
            .into_iter()
            .flatten()
            .map(fact)
            .collect();
        lines.extend(self.gpus.iter().map(|gpu| format!("# gpu: {gpu}")));
        lines.push(format!(
            "# field of the GPU's encode kernels: {}",
            self.field
        ));
        lines.push(
            "# every case was compared with the definition of the field before it was measured; \
             medians"
                .into(),
        );
        if self.quick {
            lines.push("# quick: shapes are cut down, figures mean nothing".into());
        }
        lines.join("\n")
    }

    /// Those of the host.
    pub(super) fn cores(&self) -> Option<u64> {
        self.machine.get("cores")?.as_u64()
    }

    /// One line that names the machine.
    pub(super) fn place(&self) -> String {
        let fact = |name| {
            self.machine.get(name).map_or_else(String::new, |value| {
                value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned)
            })
        };
        let gpus = if self.gpus.is_empty() {
            String::new()
        } else {
            format!(", {}", self.gpus.join(" and "))
        };
        format!(
            "{}, {} cores{gpus}; {}, commit {}",
            fact("processor"),
            fact("cores"),
            fact("date"),
            fact("commit")
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a batch")]
fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}
