//! The rows: a claim of a paper each, and the sweeps that answer it.
//!
//! Rows are data. [`Row::cases`] expands the sweeps of a row into cases, each of which is one
//! measurement: an operation on a shape, with a kernel, on a part of the machine.

use ncs_codec::gfq::Shape;
use ncs_codec::raptorq::{DENSE_K_MAX, Parameters};

use super::fountain;
use super::measure::{Family, Measure};

/// Where rows belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Group {
    /// Chu, Zhao and Wang, "Accelerating Network Coding on Many-core GPUs and Multi-core CPUs"
    /// (2009).
    S1,
    /// Shojania and Li, "Pushing the Envelope: Extreme Network Coding on the GPU" (2009).
    S2,
    /// Chu, Zhao and Wang, "Practical Random Linear Network Coding on GPUs" (NETWORKING 2009).
    S3,
    /// Vicente, "RaptorQ decoder using heterogeneous computing on a mobile multi-core platform"
    /// (2015).
    S4,
    /// The talk on Reed-Solomon codes on GPUs.
    S5,
    /// The papers' common claim: a GPU beside all cores of its host.
    Claim,
    /// The figures that this program sets itself.
    Figures,
}

impl Group {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::S1,
        Self::S2,
        Self::S3,
        Self::S4,
        Self::S5,
        Self::Claim,
        Self::Figures,
    ];
}

/// A claim and how it is answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) id: &'static str,
    pub(super) group: Group,
    pub(super) title: &'static str,
    pub(super) bars: &'static [Bar],
    pub(super) axis: Axis,
    /// The beginning of the series that the others of a panel are compared with, if there is one.
    pub(super) base: &'static str,
    /// None if the row is answered elsewhere; the note says where.
    pub(super) sweeps: &'static [Sweep],
    pub(super) note: &'static str,
}

/// What the paper reports, and which of our values stands beside it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bar {
    pub(super) what: &'static str,
    pub(super) paper: &'static str,
    /// The same in the unit of the panel, for the plot.
    pub(super) mark: Option<f64>,
    /// The panel to look in: its beginning.
    pub(super) panel: &'static str,
    /// Where in it; the best over all if not given.
    pub(super) x: Option<f64>,
}

/// What the cases of a panel differ by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Axis {
    N,
    K,
    Rows,
    Generations,
    Weight,
    /// Source symbols of a RaptorQ block: n.
    Symbols,
    /// Rows of a square matrix: n.
    Order,
    /// Bytes of a Reed-Solomon chunk: k.
    Chunk,
    /// All chunks of a Reed-Solomon code: n and rows.
    Chunks,
    /// Thread blocks of a launch, or sets of hashes: generations.
    Grid,
}

impl Axis {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::N => "n, blocks of a generation",
            Self::K => "k, bytes of a block",
            Self::Rows => "p, coded blocks of a generation",
            Self::Generations => "generations",
            Self::Weight => "coefficients of a row that are not zero",
            Self::Symbols => "K, source symbols of a block",
            Self::Order => "N, rows of a matrix",
            Self::Chunk => "bytes of a chunk",
            Self::Chunks => "n, chunks in all",
            Self::Grid => "NB, thread blocks, or sets of hashes",
        }
    }

    /// What a case's n is called in the name of a panel, and its k.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::N | Self::K | Self::Rows | Self::Generations | Self::Weight | Self::Grid => {
                ("n", "k")
            }
            Self::Symbols => ("K", "T"),
            Self::Order => ("N", "k"),
            Self::Chunk | Self::Chunks => ("k", "chunk"),
        }
    }
}

/// Cases as a product of lists.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sweep {
    pub(super) measure: Measure,
    /// Kernels of the GPU (encode kernels, inverters or decoders) or of the CPU.
    pub(super) kernels: &'static [&'static str],
    pub(super) n: &'static [u16],
    pub(super) k: &'static [u32],
    /// In place of `n` and `k` if all sizes of the figure are asked for; the same if empty.
    pub(super) full_n: &'static [u16],
    pub(super) full_k: &'static [u32],
    pub(super) rows: &'static [Amount],
    pub(super) generations: &'static [Amount],
    pub(super) part: &'static [CardShare],
    pub(super) threads: &'static [Crew],
    pub(super) coefficients: Kind,
    /// Coefficients of a row other than zero, for `Kind::Sparse`.
    pub(super) weights: &'static [u16],
    /// GPUs to use.
    pub(super) gpus: Cards,
    /// Stands in front of a panel's name, if sweeps of a row measure different things.
    pub(super) panel: &'static str,
}

/// The base sweep, from which others state their differences: 32 MiB of coded blocks of one
/// generation of 128 x 4096.
pub(super) const SWEEP: Sweep = Sweep {
    measure: Measure::Multiply,
    kernels: &[],
    n: &[128],
    k: &[4096],
    full_n: &[],
    full_k: &[],
    rows: &[Amount::Output(32 << 20)],
    generations: &[Amount::Count(1)],
    part: &[CardShare::All],
    threads: &[Crew::All],
    coefficients: Kind::Dense,
    weights: &[0],
    gpus: Cards::Count(1),
    panel: "",
};

/// How many rows, or generations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Amount {
    Count(u32),
    /// As many as source blocks.
    N,
    /// So many of a hundred source symbols, one at least.
    Percent(u32),
    /// As many rows as give this many bytes of coded blocks over all generations, at most 16,384
    /// per generation.
    Output(u64),
    /// So many a streaming multiprocessor of the GPU.
    PerSm(u32),
    /// So many a thread of the CPU.
    PerThread(u32),
}

/// How much of the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CardShare {
    Quarter,
    Half,
    /// All of it, and said so.
    Whole,
    /// All of it, as always.
    All,
}

/// How many GPUs. Where there is one alone, all of them are the one that stands there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cards {
    Count(usize),
    All,
}

impl Cards {
    /// So many may be asked for.
    pub(super) const fn most(self) -> usize {
        match self {
            Self::Count(count) => count,
            Self::All => CARDS_MAX,
        }
    }
}

/// How many threads of the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crew {
    Count(usize),
    All,
}

/// What coefficients are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Drawn from seeds as the product does: one of 256 is zero.
    Dense,
    /// None is zero, as in S2.
    NonZero,
    /// So few are not zero as the weight says.
    Sparse,
}

/// One measurement.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) panel: String,
    pub(super) series: String,
    pub(super) x: f64,
    pub(super) measure: Measure,
    pub(super) kernel: &'static str,
    pub(super) n: u16,
    pub(super) k: u32,
    pub(super) rows: u32,
    pub(super) generations: u32,
    pub(super) sms: Option<u32>,
    pub(super) threads: usize,
    pub(super) coefficients: Kind,
    pub(super) weight: u16,
    pub(super) gpus: usize,
}

/// The machine, as far as cases depend on it, and what of them is wanted.
#[derive(Debug, Clone)]
pub(super) struct Scope {
    pub(super) threads: usize,
    pub(super) gpus: usize,
    pub(super) sms: u32,
    /// In place of every sweep's own, if not empty.
    pub(super) n: Vec<u16>,
    pub(super) k: Vec<u32>,
    /// Only these, if not empty.
    pub(super) kernels: Vec<String>,
    /// Shapes that take no time.
    pub(super) is_quick: bool,
    /// All sizes of the figures.
    pub(super) is_full: bool,
}

impl Row {
    /// All cases, those of a panel together.
    pub(super) fn cases(&self, scope: &Scope) -> Vec<Case> {
        let mut cases: Vec<Case> = Vec::new();
        for sweep in self.sweeps {
            for case in sweep.cases(self.axis, scope) {
                let is_known = |known: &Case| {
                    (&known.panel, &known.series, known.x) == (&case.panel, &case.series, case.x)
                };
                if !cases.iter().any(is_known) {
                    cases.push(case);
                }
            }
        }
        cases
    }

    /// The measure and the kernel of a series in a record, which has its name alone.
    pub(super) fn maker(&self, panel: &str, series: &str) -> Option<(Measure, &'static str)> {
        let sweeps = self
            .sweeps
            .iter()
            .filter(|sweep| panel.starts_with(sweep.panel));
        let makers = sweeps.flat_map(|sweep| {
            sweep
                .kernels()
                .iter()
                .map(move |&kernel| (sweep.measure, kernel))
        });
        let is_of = |name: &str| {
            series
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(", "))
        };
        let named = makers
            .map(|maker| (maker.0.series(maker.1), maker))
            .filter(|(name, _)| is_of(name));
        named
            .max_by_key(|(name, _)| name.len())
            .map(|(_, maker)| maker)
    }
}

impl Sweep {
    /// One without a name, where none has one.
    const fn kernels(&self) -> &'static [&'static str] {
        if self.kernels.is_empty() {
            &[""]
        } else {
            self.kernels
        }
    }

    fn cases(&self, axis: Axis, scope: &Scope) -> Vec<Case> {
        let ns = sizes(&scope.n, self.n, self.full_n, scope.is_full);
        let ks = sizes(&scope.k, self.k, self.full_k, scope.is_full);
        let wanted = |kernel: &&&str| {
            scope.kernels.is_empty()
                || kernel.is_empty()
                || scope.kernels.iter().any(|k| k == **kernel)
        };
        let mut cases = Vec::new();
        for &kernel in self.kernels().iter().filter(wanted) {
            for (&n, &k) in ns.iter().flat_map(|n| ks.iter().map(move |k| (n, k))) {
                for (&rows, &generations) in self
                    .rows
                    .iter()
                    .flat_map(|rows| self.generations.iter().map(move |g| (rows, g)))
                {
                    for (&part, &threads) in self
                        .part
                        .iter()
                        .flat_map(|part| self.threads.iter().map(move |t| (part, t)))
                    {
                        let dimensions = Dimensions {
                            kernel,
                            n,
                            k,
                            rows,
                            generations,
                            part,
                            threads,
                        };
                        cases.extend(
                            self.weights
                                .iter()
                                .map(|&weight| self.case(axis, scope, dimensions, weight)),
                        );
                    }
                }
            }
        }
        cases
    }

    fn case(&self, axis: Axis, scope: &Scope, of: Dimensions, weight: u16) -> Case {
        let (n, k) = if scope.is_quick {
            (of.n.min(QUICK_N), of.k.min(QUICK_K))
        } else {
            (of.n, of.k)
        };
        let generations = of.generations.resolve(n, k, 1, scope);
        let rows = of.rows.resolve(n, k, generations, scope);
        let (rows, generations) = if scope.is_quick {
            (rows.min(QUICK_ROWS), generations.min(3))
        } else {
            (rows, generations)
        };
        let threads = match of.threads {
            Crew::All => scope.threads,
            Crew::Count(count) => count,
        };
        let sms = match of.part {
            CardShare::All => None,
            CardShare::Whole => Some(scope.sms),
            CardShare::Half => Some(scope.sms / 2),
            CardShare::Quarter => Some(scope.sms / 4),
        };
        let gpus = match self.gpus {
            Cards::All => scope.gpus.max(1),
            Cards::Count(count) => count,
        };
        let weight = weight.min(n);
        let x = match axis {
            Axis::N | Axis::Symbols | Axis::Order => f64::from(n),
            Axis::K | Axis::Chunk => f64::from(k),
            Axis::Rows => f64::from(rows),
            Axis::Generations | Axis::Grid => f64::from(generations),
            Axis::Chunks => f64::from(u32::from(n) + rows),
            Axis::Weight => f64::from(if self.coefficients == Kind::Sparse {
                weight
            } else {
                n
            }),
        };
        let mut case = Case {
            panel: String::new(),
            series: String::new(),
            x,
            measure: self.measure,
            kernel: of.kernel,
            n,
            k,
            rows,
            generations,
            sms,
            threads,
            coefficients: self.coefficients,
            weight,
            gpus,
        };
        case.panel = self.panel_name(axis, &case);
        case.series = self.series_name(axis, &case);
        case
    }

    /// What the axis does not tell.
    fn panel_name(&self, axis: Axis, case: &Case) -> String {
        let mut words = Vec::new();
        if !self.panel.is_empty() {
            words.push(self.panel.to_owned());
        }
        let (n, k) = axis.words();
        if !matches!(axis, Axis::N | Axis::Symbols | Axis::Order) {
            words.push(format!("{n}={}", case.n));
        }
        if axis == Axis::Chunk {
            words.push(format!("n={}", u32::from(case.n) + case.rows));
        }
        if self.k.len() > 1 && !matches!(axis, Axis::K | Axis::Chunk) {
            words.push(format!("{k}={}", case.k));
        }
        if self.rows.len() > 1 && axis != Axis::Rows && axis != Axis::Chunks {
            words.push(format!("p={}", case.rows));
        }
        if words.is_empty() {
            format!("all {n}")
        } else {
            words.join(", ")
        }
    }

    fn series_name(&self, axis: Axis, case: &Case) -> String {
        let mut name = self.measure.series(case.kernel);
        let generations = case.generations;
        if case.measure.has_streams() {
            name += &format!(
                ", {generations} stream{}",
                if generations == 1 { "" } else { "s" }
            );
        } else if self.generations.len() > 1 && axis != Axis::Generations && axis != Axis::Grid {
            name += &format!(", {generations} generations");
        }
        if let Some(sms) = case.sms {
            name += &format!(", {sms} SMs");
        }
        if case.gpus > 1 {
            name += &format!(", {} GPUs", case.gpus);
        }
        if (self.measure.is_cpu() || self.measure.has_threads()) && !self.measure.is_count() {
            name += &format!(
                ", {} thread{}",
                case.threads,
                if case.threads == 1 { "" } else { "s" }
            );
        }
        name
    }
}

#[derive(Debug, Clone, Copy)]
struct Dimensions {
    kernel: &'static str,
    n: u16,
    k: u32,
    rows: Amount,
    generations: Amount,
    part: CardShare,
    threads: Crew,
}

impl Amount {
    fn resolve(self, n: u16, k: u32, generations: u32, scope: &Scope) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::N => u32::from(n),
            Self::Percent(percent) => ((u32::from(n) * percent + 50) / 100).max(1),
            Self::Output(bytes) => {
                let blocks = bytes / (u64::from(k) * u64::from(generations));
                u32::try_from(blocks.clamp(1, 16_384)).expect("no more than 16,384")
            }
            Self::PerSm(count) => count * scope.sms,
            Self::PerThread(count) => {
                count * u32::try_from(scope.threads).expect("fewer threads than that")
            }
        }
    }
}

impl Case {
    /// A name to select and to list it by.
    pub(super) fn name(&self, row: &Row) -> String {
        let word = |text: &str| text.replace(", ", "/").replace(' ', "-");
        format!(
            "{}/{}/{}/{}",
            row.id,
            word(&self.panel),
            word(&self.series),
            self.x
        )
    }

    /// Bytes of coded blocks, or of source, that one repetition makes.
    pub(super) fn bytes(&self) -> u64 {
        if self.measure.is_of_source() {
            return u64::from(self.k) * u64::from(self.n);
        }
        let generations = if self.measure.has_grids() {
            1
        } else {
            self.generations
        };
        u64::from(self.k) * u64::from(self.rows) * u64::from(generations)
    }

    /// Why there can be no such case, or none without being asked for all sizes.
    pub(super) fn refusal(&self, is_full: bool) -> Option<String> {
        let is_too_many = |most: u32, of: u32| of > most;
        if self.k == 0 {
            return Some("there is nothing to do with no bytes".into());
        }
        match self.measure.family() {
            Family::Generations if is_too_many(GENERATION_MAX, self.n.into()) => {
                Some(format!("generations have {GENERATION_MAX} blocks at most"))
            }
            Family::Symbols if is_too_many(Parameters::K_MAX, self.n.into()) => Some(format!(
                "blocks have {} source symbols at most",
                Parameters::K_MAX
            )),
            Family::Symbols
                if fountain::is_dense(self.kernel) && is_too_many(DENSE_K_MAX, self.n.into()) =>
            {
                Some(format!(
                    "dense matrices serve {DENSE_K_MAX} source symbols at most"
                ))
            }
            Family::Gfq if is_too_many(Shape::N_MAX.into(), self.n.into()) => {
                Some(format!("generations have {} blocks at most", Shape::N_MAX))
            }
            Family::Gfq
                if !self.k.is_multiple_of(WORD)
                    || is_too_many(u32::from(Shape::WORDS_MAX) * WORD, self.k) =>
            {
                Some(format!(
                    "blocks have 1 to {} words of {WORD} bytes",
                    Shape::WORDS_MAX
                ))
            }
            Family::Chunks if u32::from(self.n) + self.rows > CHUNKS_MAX => {
                Some(format!("codes have {CHUNKS_MAX} chunks at most"))
            }
            _ if !is_full && fountain::slow_products(self) > PRODUCTS_MAX => {
                Some("these take seconds to minutes each: --full measures them".into())
            }
            _ => None,
        }
    }
}

/// What has been asked for, or all sizes, or some.
fn sizes<T: Copy>(asked: &[T], some: &[T], all: &[T], is_full: bool) -> Vec<T> {
    match asked {
        [] if is_full && !all.is_empty() => all.to_vec(),
        [] => some.to_vec(),
        asked => asked.to_vec(),
    }
}

const QUICK_N: u16 = 24;
const QUICK_K: u32 = 256;
const QUICK_ROWS: u32 = 20;
const GENERATION_MAX: u32 = 1024;
const CHUNKS_MAX: u32 = 256;
/// Bytes of a word over GF(q).
const WORD: u32 = 32;
/// Of a host.
const CARDS_MAX: usize = 16;
/// Maximum products of the thesis' own code in a case measured by default: about a second.
const PRODUCTS_MAX: u64 = 1 << 30;
