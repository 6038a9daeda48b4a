//! `ncbench cases`: measures the coding engine on this machine, checking bytes first.
//!
//! A *case* is an operation by a contender on a shape: `encode/avx512/128x4096`. Before it is
//! measured, its output is compared with the definition of the field (`oracle`); a contender that
//! is wrong ends the run. The contenders of an operation on a shape take turns, round after round,
//! so that a slow phase of the machine hits all of them. The median of the rounds counts, and the
//! best one is shown beside it.
//!
//! `ncbench cpu` measures the operations of servers and peers (encode, decode, recode, invert) over
//! more shapes, on one core and on all.
//!
//! Rows of the papers (`paper`) are measured the same way, in wall time and by the GPU's clock,
//! over the shapes of their figures.
//!
//! There are two clocks: the processor time of the thread, which excludes other work on the
//! machine, and wall time. The device works on several threads, and so do the cases for all cores;
//! there wall time counts, and the processor time of the whole process.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ncs_gf::{Isa, Kernels};
use ncserverd::bench::work::Work;
use ncserverd::device::{self, Threads};
use ncserverd::object::{Shape, ShapeError};

mod engine;
mod machine;
mod operation;
mod paper;
mod report;
mod rounds;
mod team;

pub use paper::{Backend, Group, Papers};

use operation::{Contender, OPERATIONS, Operation};
use report::{Measured, Report};

/// What to measure, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which operations, and on which shapes if none is given.
    pub set: Set,
    /// Only cases whose name contains this.
    pub filter: Option<String>,
    /// Print the names of the cases and measure nothing.
    pub list: bool,
    /// Few shapes and short rounds.
    pub quick: bool,
    /// Blocks of a generation; with `k` empty too, a fixed list of shapes.
    pub n: Vec<u16>,
    /// Bytes of a block.
    pub k: Vec<u32>,
    /// Instruction sets; all that this processor has if empty.
    pub isas: Vec<Isa>,
    /// Threads of the device, and of the cases for all cores.
    pub threads: Threads,
    /// Where the results go as JSON.
    pub json: Option<PathBuf>,
    /// Rows of the papers in place of the cases.
    pub papers: Option<Papers>,
    /// The command line, for the record.
    pub command: String,
}

/// A choice of operations and shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// All operations on the shapes of the papers, of streams and of published comparisons.
    All,
    /// Encode, decode, recode and invert, over n and k.
    Cpu,
}

/// Measures and prints as results come.
pub fn run(options: &Options, out: &mut impl Write) -> Result<(), Error> {
    if let Some(papers) = &options.papers {
        return paper::run(options, papers, out);
    }
    let kernels = options.kernels()?;
    let shapes = options.shapes()?;
    let mut report = Report::new(options, out)?;
    let mut works = HashMap::new();
    for operation in OPERATIONS
        .iter()
        .filter(|operation| operation.is_core || options.set == Set::All)
    {
        for shape in &shapes {
            let mut wanted = Vec::new();
            for contender in (operation.contenders)(&options.fitting(&kernels, *shape)) {
                let name = operation.name(&contender, *shape);
                if options
                    .filter
                    .as_ref()
                    .is_none_or(|filter| name.contains(filter))
                    && !report.has(&name)
                {
                    wanted.push((name, contender));
                }
            }
            if options.list {
                wanted.iter().try_for_each(|(name, _)| report.line(name))?;
                continue;
            }
            if wanted.is_empty() {
                continue;
            }
            let work = Arc::clone(
                works
                    .entry(*shape)
                    .or_insert_with(|| Arc::new(Work::new(shape.0, shape.1))),
            );
            report.title(operation)?;
            for measured in measure(operation, &work, wanted, options)? {
                report.add(measured)?;
            }
        }
    }
    match &options.filter {
        Some(filter) if report.is_empty() => Err(Error::Filter(filter.clone())),
        _ => report.finish(),
    }
}

/// Checks the contenders and lets them take turns.
fn measure(
    operation: &Operation,
    work: &Arc<Work>,
    wanted: Vec<(String, Contender)>,
    options: &Options,
) -> Result<Vec<Measured>, Error> {
    let (mut cases, mut runners) = (Vec::new(), Vec::new());
    for (name, contender) in wanted {
        let checked = (contender.prepare)(work, options.threads)?
            .ok_or_else(|| Error::Wrong { case: name.clone() })?;
        cases.push((name, checked.made));
        runners.push(checked.runner);
    }
    let results = options.pace().run(&mut runners);
    let measured = cases
        .into_iter()
        .zip(results)
        .map(|((name, made), laps)| Measured::new(name, operation.unit, made, laps));
    Ok(measured.collect())
}

impl Options {
    fn kernels(&self) -> Result<Vec<Kernels>, Error> {
        if self.isas.is_empty() {
            return Ok(Kernels::available().collect());
        }
        self.isas
            .iter()
            .map(|&isa| Kernels::new(isa).ok_or(Error::Isa(isa)))
            .collect()
    }

    /// The instruction sets that take part on a shape: of `ncbench cpu` not the scalar one where a
    /// case takes seconds, unless it is asked for.
    fn fitting(&self, kernels: &[Kernels], (n, k): (u16, u32)) -> Vec<Kernels> {
        let is_too_slow = u64::from(n) * u64::from(n) * u64::from(k) > SCALAR_PRODUCTS_MAX;
        let is_left_out =
            |isa| self.set == Set::Cpu && self.isas.is_empty() && isa == Isa::Scalar && is_too_slow;
        kernels
            .iter()
            .copied()
            .filter(|kernels| !is_left_out(kernels.isa()))
            .collect()
    }

    /// What is not measured, in words.
    fn left_out(&self) -> Option<String> {
        let is_complete = self.set == Set::All || !self.isas.is_empty();
        (!is_complete).then(|| {
            format!(
                "scalar is left out where n * n * k is more than {SCALAR_PRODUCTS_MAX}: --isa \
                 scalar measures it"
            )
        })
    }

    fn shapes(&self) -> Result<Vec<(u16, u32)>, Error> {
        if self.n.is_empty() && self.k.is_empty() {
            return Ok(match (self.set, self.quick) {
                (Set::All, false) => SHAPES.to_vec(),
                (Set::Cpu, false) => CPU_N.iter().flat_map(|&n| CPU_K.map(|k| (n, k))).collect(),
                (_, true) => QUICK_SHAPES.to_vec(),
            });
        }
        let ns = if self.n.is_empty() {
            &[128][..]
        } else {
            &self.n
        };
        let ks = if self.k.is_empty() {
            &[4096][..]
        } else {
            &self.k
        };
        let shapes = ns.iter().flat_map(|&n| ks.iter().map(move |&k| (n, k)));
        shapes
            .map(|(n, k)| {
                Shape::new(u64::from(n) * u64::from(k), k, n)
                    .map(|_| (n, k))
                    .map_err(Error::Shape)
            })
            .collect()
    }

    const fn pace(&self) -> rounds::Pace {
        if self.quick {
            rounds::Pace {
                rounds: 3,
                round: Duration::from_millis(5),
                case_max: Duration::from_millis(300),
            }
        } else if matches!(self.set, Set::Cpu) {
            rounds::Pace {
                rounds: 7,
                round: Duration::from_millis(12),
                case_max: Duration::from_millis(600),
            }
        } else {
            rounds::Pace {
                rounds: 9,
                round: Duration::from_millis(25),
                case_max: Duration::from_secs(3),
            }
        }
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A contender makes other bytes than the definition.
    #[error("{case} computes wrong bytes; nothing was measured")]
    Wrong {
        /// Which one.
        case: String,
    },
    /// An instruction set that was asked for is not there.
    #[error("this processor does not support {0}")]
    Isa(Isa),
    /// A shape that cannot be.
    #[error("{0}")]
    Shape(ShapeError),
    /// A filter that leaves nothing.
    #[error("no case has `{0}` in its name: --list shows all cases")]
    Filter(String),
    /// A row that no paper has.
    #[error("unknown row {0}: `ncbench papers --paper all --list` shows all rows")]
    Row(String),
    /// A file that is not what it should be.
    #[error("{path}: {reason}")]
    Record {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The device does not open or fails.
    #[error("the device: {0}")]
    Device(#[from] device::Error),
    /// A batch cannot be measured.
    #[error(transparent)]
    Batch(#[from] ncserverd::bench::Error),
    /// The results cannot be written.
    #[error("cannot write the results: {0}")]
    Output(#[from] io::Error),
}

/// Blocks of a generation and bytes of a block: those of the papers, of streams over datagrams, and
/// of published comparisons.
const SHAPES: [(u16, u32); 8] = [
    (32, 1088),
    (64, 1088),
    (32, 4096),
    (128, 1024),
    (128, 4096),
    (128, 16_384),
    (256, 4096),
    (512, 4096),
];
const QUICK_SHAPES: [(u16, u32); 2] = [(64, 1088), (128, 4096)];
const CPU_N: [u16; 6] = [32, 64, 128, 256, 512, 1024];
const CPU_K: [u32; 3] = [1024, 4096, 16_384];
/// About a fifth of a second's.
const SCALAR_PRODUCTS_MAX: u64 = 1 << 27;

#[cfg(test)]
mod tests {
    use super::*;

    fn options(filter: &str) -> Options {
        Options {
            set: Set::All,
            filter: Some(filter.into()),
            list: false,
            quick: true,
            n: vec![5],
            k: vec![80],
            isas: Vec::new(),
            threads: Threads::Count(2.try_into().unwrap()),
            json: None,
            papers: None,
            command: "ncbench cases".into(),
        }
    }

    fn text(options: &Options) -> String {
        let mut out = Vec::new();
        run(options, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// Which is also a check of every operation on every instruction set.
    #[test]
    fn every_case_is_right_and_is_listed() {
        let listed = text(&Options {
            list: true,
            ..options("")
        });
        let measured = text(&options(""));
        let names: Vec<&str> = listed
            .lines()
            .filter(|line| !line.starts_with('#'))
            .collect();
        assert!(names.len() > 16 * Kernels::available().count(), "{listed}");
        for name in names {
            assert!(
                measured
                    .lines()
                    .any(|line| line.split_whitespace().next() == Some(name)),
                "{name}: {measured}"
            );
        }
    }

    #[test]
    fn json_says_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let json = directory.path().join("bench.json");
        let text = text(&Options {
            json: Some(json.clone()),
            ..options("encode/scalar")
        });
        assert!(text.contains("encode/scalar/5x80"));
        let value: serde_json::Value =
            serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        let results = value["results"].as_array().unwrap();
        assert_eq!(results.len(), 1);
        assert_eq!(results[0]["case"], "encode/scalar/5x80");
        assert!(value["machine"]["processor"].is_string());
    }

    #[test]
    fn the_set_for_the_cpu_goes_over_n_and_k_on_one_core_and_on_all() {
        let set = Options {
            set: Set::Cpu,
            list: true,
            filter: None,
            n: Vec::new(),
            k: Vec::new(),
            quick: false,
            ..options("")
        };
        let listed = text(&set);
        let has = |case: &str| listed.lines().any(|line| line == case);
        for kernels in Kernels::available().filter(|kernels| kernels.isa() != Isa::Scalar) {
            for (n, k) in CPU_N.into_iter().flat_map(|n| CPU_K.map(|k| (n, k))) {
                for operation in [
                    "encode",
                    "decode",
                    "recode",
                    "encode-all",
                    "decode-all",
                    "recode-all",
                ] {
                    assert!(
                        has(&format!("{operation}/{}/{n}x{k}", kernels.isa())),
                        "{operation} {n}x{k}"
                    );
                }
                assert!(has(&format!("invert/{}/{n}", kernels.isa())));
                for way in ["side-by-side", "one-matrix"] {
                    assert!(has(&format!("invert-all/{}-{way}/{n}", kernels.isa())));
                }
            }
        }
        assert!(
            has("encode/scalar/128x4096")
                && !has("encode/scalar/1024x16384")
                && !listed.contains("device")
        );
        assert!(
            text(&Options {
                isas: vec![Isa::Scalar],
                ..set
            })
            .contains("encode/scalar/1024x16384")
        );
    }

    #[test]
    fn a_filter_that_leaves_nothing_is_refused() {
        for list in [false, true] {
            let ended = run(
                &Options {
                    list,
                    ..options("cpu")
                },
                &mut Vec::new(),
            );
            assert!(matches!(ended, Err(Error::Filter(filter)) if filter == "cpu"));
        }
    }

    #[test]
    fn impossible_shapes_are_refused() {
        assert!(
            matches!(options("").kernels().map(|kernels| kernels.len()), Ok(count) if count > 0)
        );
        assert!(matches!(
            Options {
                k: vec![81],
                ..options("")
            }
            .shapes(),
            Err(Error::Shape(_))
        ));
    }
}
