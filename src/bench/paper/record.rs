//! What was measured: as a table, as JSON, as a figure.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::catalogue::{Bar, Case, Row};
use super::measure::{Measure, Unit};
use super::{Error, Sample, all_rows, field_name};
use crate::bench::machine::Machine;
use crate::device::Field;
use crate::lab::plot::{Figure, Panel, Series};

/// A run, with where it was made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
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
    pub(super) fn of_times(case: &Case, mut times: Vec<Duration>, repeats: u32, bytes: u64) -> Self {
        times.sort_unstable();
        let value = |time: &Duration| {
            let nanoseconds = u64::try_from(time.as_nanos()).expect("less than centuries");
            in_unit(case.measure.unit(), as_f64(nanoseconds) / f64::from(repeats), bytes)
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
        Self { value, best: value, worst: value, rounds: 1, repeats, bytes: 0 }
    }

    /// The part of a time that another one is, both as medians, in percent.
    pub(super) fn share(case: &Case, part: &(Vec<Duration>, u32), whole: &(Vec<Duration>, u32)) -> Self {
        let of = |(times, repeats): &(Vec<Duration>, u32)| Self::of_times(case, times.clone(), *repeats, 0);
        let (part, whole) = (of(part), of(whole));
        let share = |part: f64, whole: f64| 100.0 * part / whole;
        let value = share(part.value, whole.value);
        Self { value, best: share(part.best, whole.best), worst: share(part.worst, whole.worst), ..whole }
    }
}

/// A share is made of two values, which come through here as they are; counts do not come through here. From nanoseconds, so that what was
/// measured once is as short a number in a record as the clock's.
fn in_unit(unit: Unit, nanoseconds: f64, bytes: u64) -> f64 {
    match unit {
        Unit::Gigabytes | Unit::Coefficients => as_f64(bytes) / nanoseconds.max(1e-3),
        Unit::Microseconds => nanoseconds / 1e3,
        Unit::Percent | Unit::Blocks | Unit::Millijoules | Unit::Watts | Unit::Bytes | Unit::Rows => nanoseconds,
    }
}

impl Point {
    pub(super) fn new(row: &Row, case: &Case, suffix: &str, sample: Sample) -> Self {
        let Sample { value, best, worst, rounds, repeats, bytes } = sample;
        let by = match case.measure {
            measure if !measure.is_comparable() => By::Other,
            measure if measure.is_cpu() => By::Cpu,
            Measure::ToHost | Measure::Store | Measure::DecodeToHost | Measure::SplitDecode => By::GpuToHost,
            Measure::ChunksThrough | Measure::RebuildThrough | Measure::ProductThrough => By::GpuToHost,
            Measure::ReplayThrough | Measure::ReplayWhole => By::GpuToHost,
            Measure::SystemsThrough | Measure::SystemsWhole => By::GpuToHost,
            measure if measure.is_words_through() => By::GpuToHost,
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

    /// Whether what the others do inside the timer was done before: plans for the losses of each block.
    fn is_prepared(&self) -> bool {
        self.series.starts_with("replayed")
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
            paper: row.bars.iter().map(|bar| (bar.what.into(), bar.paper.into())).collect(),
            timers: timers.into_iter().map(str::to_owned).collect(),
            points: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// How many times as fast the GPU is as the CPU at `x` of a panel, where the row has the same work on both sides.
    pub(super) fn ratio(&self, points: &[&Point], by: By, x: f64) -> Option<f64> {
        if UNEQUAL.contains(&self.row.as_str()) { None } else { ratio(points, by, x) }
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
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        self.write_table(&mut text).expect("a string takes everything");
        text
    }

    fn write_table(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "\n# {}: {}", self.row, self.title)?;
        self.paper.iter().try_for_each(|(what, paper)| writeln!(text, "# paper, {what}: {paper}"))?;
        if !self.note.is_empty() {
            writeln!(text, "# {}", self.note)?;
        }
        self.timers.iter().try_for_each(|timer| writeln!(text, "# {timer}"))?;
        for (name, points) in self.panels() {
            let grid = Grid::new(self, &points);
            writeln!(text, "# {name}; {}", grid.unit)?;
            write!(text, "{:<48}", format!("# {}", self.axis))?;
            grid.xs.iter().try_for_each(|x| write!(text, " {x:>9}"))?;
            writeln!(text)?;
            for (series, values) in &grid.lines {
                write!(text, "{series:<48}")?;
                values.iter().try_for_each(|value| write!(text, " {:>9}", value.map_or_else(|| "-".into(), digits)))?;
                writeln!(text)?;
            }
        }
        let reasons: BTreeSet<&str> = self.skipped.iter().map(|skipped| skipped.1.as_str()).collect();
        for reason in reasons {
            let count = self.skipped.iter().filter(|skipped| skipped.1 == reason).count();
            writeln!(text, "# not measured: {count} cases, {reason}")?;
        }
        Ok(())
    }

    /// The same as diagrams.
    pub(super) fn figure(&self) -> Figure {
        let bars = all_rows().find(|row| row.id == self.row).map_or(&[][..], |row| row.bars);
        let panel = |(name, points): (&str, Vec<&Point>)| {
            let mut series: Vec<Series> = Vec::new();
            for point in &points {
                match series.iter_mut().find(|series| series.name == point.series) {
                    Some(series) => series.points.push((point.x, point.value)),
                    None => series.push(Series { name: point.series.clone(), points: vec![(point.x, point.value)] }),
                }
            }
            series.iter_mut().for_each(|series| series.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
            Panel {
                title: name.to_owned(),
                x: self.axis.clone(),
                y: points.first().map_or_else(String::new, |point| point.unit.clone()),
                series,
                marks: bars.iter().filter(|bar| name.starts_with(bar.panel)).filter_map(mark).collect(),
            }
        };
        Figure { title: format!("{}: {}", self.row, self.title), panels: self.panels().into_iter().map(panel).collect() }
    }
}

fn mark(bar: &Bar) -> Option<(String, f64)> {
    bar.mark.map(|value| (format!("paper: {}", bar.paper), value))
}

/// Rows whose CPU is not all that the host has: one core (S3-2), a few (S3-3), tables without vector instructions (S5-5, S5-6).
const UNEQUAL: [&str; 4] = ["S3-2", "S3-3", "S5-5", "S5-6"];
/// In the name of a series: every thread has a generation of its own.
const A_GENERATION_A_THREAD: &str = "a generation a thread";

/// The values of a panel by series and x.
struct Grid {
    unit: String,
    xs: Vec<f64>,
    lines: Vec<(String, Vec<Option<f64>>)>,
}

impl Grid {
    fn new(row: &RowResult, points: &[&Point]) -> Self {
        let mut xs: Vec<f64> = points.iter().map(|point| point.x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let mut lines: Vec<(String, Vec<Option<f64>>)> = Vec::new();
        for point in points {
            let column = xs.iter().position(|x| *x == point.x).expect("its own x");
            let index = lines.iter().position(|line| line.0 == point.series).unwrap_or(lines.len());
            if index == lines.len() {
                lines.push((point.series.clone(), vec![None; xs.len()]));
            }
            lines[index].1[column] = Some(point.value);
        }
        for (by, name) in [(By::Gpu, "GPU : CPU"), (By::GpuToHost, "GPU to the host : CPU")] {
            let ratios: Vec<Option<f64>> = xs.iter().map(|&x| row.ratio(points, by, x)).collect();
            if ratios.iter().any(Option::is_some) {
                lines.push((name.to_owned(), ratios));
            }
        }
        lines.extend(gains(points, &row.base, &xs));
        Self { unit: points.first().map_or_else(String::new, |point| point.unit.clone()), xs, lines }
    }
}

/// How many times as fast the best of the GPU is as the best of the CPU at the same work: below 1, the GPU loses. Both have as many generations,
/// the most of which both have values; a CPU that has a generation for each thread has enough of them. What was prepared before the
/// timer began on one side alone does not count.
fn ratio(points: &[&Point], by: By, x: f64) -> Option<f64> {
    let at = |by: By| points.iter().filter(move |point| point.by == by && point.x == x && !point.is_prepared());
    let best = |values: &mut dyn Iterator<Item = &&Point>| {
        values.map(|point| if point.is_rate() { point.value } else { -point.value }).max_by(f64::total_cmp)
    };
    let is_same = |cpu: &Point, generations: u32| cpu.generations == generations || cpu.series.contains(A_GENERATION_A_THREAD);
    let mut amounts: Vec<u32> = at(by).map(|point| point.generations).collect();
    amounts.sort_unstable();
    let generations = amounts.into_iter().rev().find(|amount| at(By::Cpu).any(|cpu| is_same(cpu, *amount)))?;
    let gpu = best(&mut at(by).filter(|point| point.generations == generations))?;
    let cpu = best(&mut at(By::Cpu).filter(|point| is_same(point, generations)))?;
    Some(if gpu < 0.0 { cpu / gpu } else { gpu / cpu })
}

/// How many times as fast as the base each other series of a panel is, with the series' names.
fn gains(points: &[&Point], base: &str, xs: &[f64]) -> Vec<(String, Vec<Option<f64>>)> {
    let mut names: Vec<&str> = Vec::new();
    for point in points {
        if !names.contains(&point.series.as_str()) {
            names.push(&point.series);
        }
    }
    let values = |name: &str| xs.iter().map(|&x| gain(points, base, name, x)).collect::<Vec<_>>();
    let lines = names.into_iter().map(|name| (format!("  {name}: times as fast"), values(name)));
    lines.filter(|(_, values)| values.iter().any(Option::is_some)).collect()
}

/// How many times as fast as the base a series is at x. None for the base itself, and where there is none.
pub(super) fn gain(points: &[&Point], base: &str, series: &str, x: f64) -> Option<f64> {
    let is_base = |point: &Point| !base.is_empty() && point.series.starts_with(base);
    let base = points.iter().find(|point| is_base(point) && point.x == x)?;
    let other = points.iter().find(|point| point.series == series && point.x == x && !is_base(point) && !point.is_prepared())?;
    Some(if base.is_rate() { other.value / base.value } else { base.value / other.value })
}

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
        Self { machine, gpus, field: field_name(field).into(), quick, rows: Vec::new() }
    }

    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let text = fs::read(path).map_err(Error::Output)?;
        serde_json::from_slice(&text).map_err(|error| Error::Record { path: path.into(), reason: error.to_string() })
    }

    /// A row of the papers is a line, so that two records can be compared.
    pub(super) fn write(&self, path: &Path) -> Result<(), Error> {
        let json = |value: serde_json::Result<String>| value.map_err(|error| Error::Output(error.into()));
        let head = json(serde_json::to_string(&Self { rows: Vec::new(), ..self.clone() }))?;
        let rows = self.rows.iter().map(|row| json(serde_json::to_string(row))).collect::<Result<Vec<_>, _>>()?;
        let head = head.strip_suffix("]}").expect("rows are the last field");
        Ok(fs::write(path, format!("{head}\n{}\n]}}\n", rows.join(",\n")))?)
    }

    /// Where and with what.
    pub(super) fn head(&self) -> String {
        let fact = |(name, value): (&String, &serde_json::Value)| match value {
            serde_json::Value::String(text) => format!("# {name}: {text}"),
            serde_json::Value::Array(values) => {
                let words: Vec<&str> = values.iter().filter_map(serde_json::Value::as_str).collect();
                format!("# {name}: {}", words.join(" "))
            }
            other => format!("# {name}: {other}"),
        };
        let mut lines: Vec<String> = self.machine.as_object().into_iter().flatten().map(fact).collect();
        lines.extend(self.gpus.iter().map(|gpu| format!("# gpu: {gpu}")));
        lines.push(format!("# field of the GPU's encode kernels: {}", self.field));
        lines.push("# every case was compared with the definition of the field before it was measured; medians".into());
        if self.quick {
            lines.push("# quick: shapes are cut down, figures mean nothing".into());
        }
        lines.join("\n")
    }

    /// One line that names the machine.
    pub(super) fn place(&self) -> String {
        let fact = |name| {
            self.machine
                .get(name)
                .map_or_else(String::new, |value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        };
        let gpus = if self.gpus.is_empty() { String::new() } else { format!(", {}", self.gpus.join(" and ")) };
        format!("{}, {} cores{gpus}; {}, commit {}", fact("processor"), fact("cores"), fact("date"), fact("commit"))
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a batch")]
fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}
