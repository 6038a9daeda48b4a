//! Measures the papers' figures on this machine: `ncbench papers --paper s1`, `--row S1-6,S2-12`.
//!
//! A *row* is a claim of a paper, or a figure of this program's own; `s1`, `s2` and `own` list
//! them. Its cases run on the GPU if there is one, and on all cores of the same host. The bytes of
//! every case are checked first: whole outputs on small shapes for each kernel, and whole blocks of
//! several generations at each measured setting. Results go into tables, a record as JSON, and
//! plots; `--from` makes tables, plots and the document from records without measuring.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use crate::lab::{self, Lab};
use ncserverd::bench::clock::Lap;
use ncserverd::device::Field;

use super::machine::Machine;
use super::rounds::Pace;
use super::{Error, Options};

mod blocks;
mod card;
mod catalogue;
mod cpu;
mod dense;
mod document;
mod energy;
mod fountain;
mod gfq;
mod gpu;
mod load;
mod measure;
mod own;
mod record;
mod s1;
mod s2;
mod s3;
mod s4;
mod s5;
mod stripes;
mod talk;
mod thesis;
mod work_items;

pub use catalogue::Group;

use catalogue::{Case, Row, Scope};
use energy::{Meter, Packages, Taken};
use gpu::Gpus;
use measure::{Measure, Unit};
use record::{Point, Record, RowResult};

/// Which rows to measure, and how.
#[derive(Debug, Clone, Default)]
pub struct Papers {
    /// Every row of these.
    pub groups: Vec<Group>,
    /// Rows by name.
    pub rows: Vec<String>,
    /// Kernels of the GPU to measure; all that rows ask for if empty.
    pub kernels: Vec<String>,
    /// All sizes of the figures of S4 and S5, where some stand for them otherwise.
    pub full: bool,
    /// What takes part.
    pub backend: Backend,
    /// The field of the GPU's encode kernels.
    pub field: Field,
    /// Where plots go.
    pub plots: Option<PathBuf>,
    /// The directory of pages whose generated parts are to be written anew.
    pub document: Option<PathBuf>,
    /// Records to read in place of measuring.
    pub from: Vec<PathBuf>,
}

/// What takes part in a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// The CPU, and a GPU if there is one.
    #[default]
    All,
    /// The CPU alone.
    Cpu,
    /// GPUs alone; without one there is no start.
    Cuda,
}

/// Work that can be repeated: the time that so many repetitions take.
type Run = Box<dyn FnMut(u32) -> Duration>;

/// How to measure.
struct Settings {
    pace: Pace,
    field: Field,
    is_quick: bool,
    is_full: bool,
}

/// What a case has come to.
struct Outcome {
    /// Each with what its series is called beside the case's own name.
    samples: Vec<(&'static str, Sample)>,
    /// Why there are none.
    skipped: Option<String>,
}

impl Outcome {
    fn of(sample: Sample) -> Self {
        Self {
            samples: vec![("", sample)],
            skipped: None,
        }
    }

    /// Of what a loop took, in each repetition for so many blocks.
    fn of_energy(case: &Case, blocks: u32, taken: Result<Taken, String>) -> Self {
        let Taken {
            joules,
            watts_max,
            watts_mean,
            repeats,
        } = match taken {
            Ok(taken) => taken,
            Err(reason) => return Self::skipped(reason),
        };
        if case.measure.unit() != Unit::Watts {
            return Self::of(Sample::once(joules * 1e3 / f64::from(blocks), repeats));
        }
        let samples = [("", watts_max), (", mean", watts_mean)]
            .map(|(name, watts)| (name, Sample::once(watts, repeats)));
        Self {
            samples: samples.into(),
            skipped: None,
        }
    }

    fn skipped(reason: String) -> Self {
        Self {
            samples: Vec::new(),
            skipped: Some(reason),
        }
    }
}

/// The rounds of a case as values in its unit, the middle one first.
#[derive(Debug, Clone)]
struct Sample {
    value: f64,
    best: f64,
    worst: f64,
    rounds: usize,
    repeats: u32,
    bytes: u64,
}

/// Measures the rows that are wanted, or reads records, and prints, writes and draws.
pub(super) fn run(options: &Options, papers: &Papers, out: &mut impl Write) -> Result<(), Error> {
    if !papers.from.is_empty() {
        let records = papers
            .from
            .iter()
            .map(|path| Record::read(path))
            .collect::<Result<Vec<_>, _>>()?;
        for record in &records {
            writeln!(out, "{}", record.head())?;
            record
                .rows
                .iter()
                .try_for_each(|result| write!(out, "{}", result.table(record.cores())))?;
        }
        return deliver(papers, &records);
    }
    let rows = papers.wanted()?;
    let labs = if options.list {
        Vec::new()
    } else {
        open(papers, &rows, out)?
    };
    let record = measure(options, papers, &rows, Gpus::new(labs), out)?;
    if options.list {
        return Ok(());
    }
    if let Some(path) = &options.json {
        record.write(path)?;
    }
    deliver(papers, &[record])
}

/// Plots and document.
fn deliver(papers: &Papers, records: &[Record]) -> Result<(), Error> {
    if let Some(directory) = &papers.plots {
        fs::create_dir_all(directory)?;
        for result in records
            .iter()
            .flat_map(|record| &record.rows)
            .filter(|result| !result.points.is_empty())
        {
            fs::write(
                directory.join(format!("{}.svg", result.row)),
                result.figure().svg(),
            )?;
        }
    }
    papers
        .document
        .as_ref()
        .map_or(Ok(()), |path| document::write(path, records))
}

/// The GPUs that these rows can use.
fn open(papers: &Papers, rows: &[&'static Row], out: &mut impl Write) -> Result<Vec<Lab>, Error> {
    if papers.backend == Backend::Cpu {
        return Ok(Vec::new());
    }
    let most = rows
        .iter()
        .flat_map(|row| row.sweeps)
        .map(|sweep| sweep.gpus.most())
        .max()
        .unwrap_or(1);
    let most = u16::try_from(most).expect("few GPUs");
    let mut labs = Vec::new();
    for gpu in 0..most {
        match lab::open(gpu) {
            Ok(lab) => labs.push(lab),
            Err(error) if gpu == 0 && papers.backend == Backend::Cuda => return Err(error.into()),
            Err(error) if gpu == 0 => {
                writeln!(out, "# no GPU takes part: {error}")?;
                break;
            }
            Err(_) => break,
        }
    }
    Ok(labs)
}

fn measure(
    options: &Options,
    papers: &Papers,
    rows: &[&'static Row],
    mut gpus: Gpus,
    out: &mut impl Write,
) -> Result<Record, Error> {
    let scope = papers.scope(options, &gpus);
    let settings = papers.settings(options);
    let mut record = Record::new(
        Machine::here(options),
        gpus.cards(),
        papers.field,
        options.quick,
    );
    if !options.list {
        writeln!(out, "{}", record.head())?;
    }
    for row in rows {
        let wanted = |case: &Case| {
            options
                .filter
                .as_ref()
                .is_none_or(|filter| case.name(row).contains(filter))
        };
        let cases: Vec<Case> = row.cases(&scope).into_iter().filter(wanted).collect();
        if options.list {
            list(row, &cases, out)?;
            continue;
        }
        let mut result = RowResult::new(row, &cases);
        for case in &cases {
            let outcome = one(case, &mut gpus, papers, &settings)?;
            result
                .skipped
                .extend(outcome.skipped.map(|reason| (case.name(row), reason)));
            let points = outcome
                .samples
                .into_iter()
                .map(|(suffix, sample)| Point::new(row, case, suffix, sample));
            result.points.extend(points);
        }
        write!(out, "{}", result.table(record.cores()))?;
        out.flush()?;
        record.rows.push(result);
    }
    Ok(record)
}

fn list(row: &Row, cases: &[Case], out: &mut impl Write) -> Result<(), Error> {
    writeln!(out, "# {}: {}", row.id, row.title)?;
    if row.sweeps.is_empty() {
        writeln!(out, "# {}: {}", row.id, row.note)?;
    }
    Ok(cases
        .iter()
        .try_for_each(|case| writeln!(out, "{}", case.name(row)))?)
}

/// Checks and measures a case, or says why not.
fn one(
    case: &Case,
    gpus: &mut Gpus,
    papers: &Papers,
    settings: &Settings,
) -> Result<Outcome, Error> {
    if let Some(reason) = case.refusal(settings.is_full) {
        return Ok(Outcome::skipped(reason));
    }
    if !case.measure.is_cpu() {
        return match gpus.sms() {
            None => Ok(Outcome::skipped("no GPU".into())),
            Some(_) => gpus.measure(case, settings),
        };
    }
    if papers.backend == Backend::Cuda {
        return Ok(Outcome::skipped("the CPU does not take part".into()));
    }
    if case.measure.is_count() {
        let trials = if settings.is_quick {
            TRIALS_QUICK
        } else {
            TRIALS
        };
        let samples = match case.measure {
            Measure::Stored => stripes::stored(case).ok_or_else(|| wrong(case))?,
            _ => cpu::extra(case, trials),
        };
        return Ok(Outcome {
            samples,
            skipped: None,
        });
    }
    if settings.field != Field::Standard {
        return Ok(Outcome::skipped(format!(
            "the CPU's kernels have {} alone",
            field_name(Field::Standard)
        )));
    }
    let meter = match case.measure {
        Measure::CpuEnergy | Measure::CpuPower => match Packages::here() {
            Ok(meter) => Some(meter),
            Err(reason) => return Ok(Outcome::skipped(reason)),
        },
        _ => None,
    };
    let mut run = cpu::prepare(case)?.ok_or_else(|| wrong(case))?;
    if let Some(meter) = meter {
        let mut once = || {
            run(1);
        };
        let taken = meter.measure(&mut once, settings.lasting());
        return Ok(Outcome::of_energy(case, fountain::in_flight(case), taken));
    }
    let (times, repeats) = settings.rounds(run);
    Ok(Outcome::of(Sample::of_times(
        case,
        times,
        repeats,
        case.bytes(),
    )))
}

fn wrong(case: &Case) -> Error {
    Error::Wrong {
        case: format!("{} {}", case.series, case.panel),
    }
}

impl Papers {
    /// In the order of the catalogue.
    fn wanted(&self) -> Result<Vec<&'static Row>, Error> {
        let unknown = self
            .rows
            .iter()
            .find(|name| !all_rows().any(|row| row.id.eq_ignore_ascii_case(name)));
        if let Some(name) = unknown {
            return Err(Error::Row(name.clone()));
        }
        let is_wanted = |row: &&Row| {
            self.groups.contains(&row.group)
                || self
                    .rows
                    .iter()
                    .any(|name| row.id.eq_ignore_ascii_case(name))
        };
        Ok(all_rows().filter(is_wanted).collect())
    }

    fn scope(&self, options: &Options, gpus: &Gpus) -> Scope {
        Scope {
            threads: options.threads.count(),
            gpus: gpus.count(),
            sms: gpus.sms().unwrap_or(SMS),
            n: options.n.clone(),
            k: options.k.clone(),
            kernels: self.kernels.clone(),
            is_quick: options.quick,
            is_full: self.full,
        }
    }

    fn settings(&self, options: &Options) -> Settings {
        let pace = if options.quick {
            Pace {
                rounds: 1,
                round: Duration::ZERO,
                case_max: Duration::ZERO,
            }
        } else {
            Pace {
                rounds: 21,
                round: Duration::from_millis(5),
                case_max: Duration::from_millis(1500),
            }
        };
        Settings {
            pace,
            field: self.field,
            is_quick: options.quick,
            is_full: self.full,
        }
    }
}

impl Settings {
    /// For what the card times itself: launches are short, and its clock is exact.
    fn short_pace(&self) -> Pace {
        Pace {
            round: self.pace.round / 2,
            ..self.pace
        }
    }

    /// The pace for measures that pay off over many batches in a row: the only copy without work
    /// beside it is then one of fifty.
    fn long_pace(&self) -> Pace {
        Pace {
            round: self.pace.round * 3,
            ..self.pace
        }
    }

    /// How long energy is measured.
    const fn lasting(&self) -> Duration {
        if self.is_quick {
            Duration::from_millis(20)
        } else {
            Duration::from_secs(2)
        }
    }

    /// The rounds of one contender on the CPU, and how often a round repeats its work.
    fn rounds(&self, mut run: Run) -> (Vec<Duration>, u32) {
        let runner = |repeats: u32| Lap {
            cpu: Duration::ZERO,
            wall: run(repeats),
        };
        let laps = self.pace.run(&mut [runner]).pop().expect("one runner");
        (
            laps.laps.into_iter().map(|lap| lap.wall).collect(),
            laps.repeats,
        )
    }
}

/// By its polynomial.
const fn field_name(field: Field) -> &'static str {
    match field {
        Field::Standard => "0x11d",
        Field::Rijndael => "0x11b",
    }
}

fn all_rows() -> impl Iterator<Item = &'static Row> {
    [
        s1::ROWS,
        s2::ROWS,
        s3::ROWS,
        s4::ROWS,
        s5::ROWS,
        own::CLAIM,
        own::FIGURES,
    ]
    .into_iter()
    .flatten()
}

/// Generations over which extra blocks are counted: twenty of them lie beyond the 99.9th
/// percentile.
const TRIALS: u32 = 20_000;
const TRIALS_QUICK: u32 = 20;

/// Multiprocessors of the card that rows are written for, where there is none to ask.
const SMS: u32 = 132;

#[cfg(test)]
mod tests;
