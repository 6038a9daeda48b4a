//! A lab without a GPU: the same results by the definition of the field, slowly. What is tested with it is the bench.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use crate::lab::{
    Card, ChunkWork, Chunks, Coefficients, Decode, Decoder, Elimination, EliminationWork, Encode, Gauge, Lab, Pin, Planner,
    Product, ProductWork, Replay, ReplayWork, Stage, Systems, SystemsWork, WordElimination, Words, WordsWork, Work,
};
use ncs_codec::gfq::{Arithmetic, Coded, Cores as WordCores, Decode as Rebuild, Encode as Code, Payload, Recode, Shape, Vector};
use ncs_codec::raptorq::Plan;
use ncs_gf::dense::{Algebra, Cores};
use ncs_gf::gfq::Element;
use ncs_gf::{Kernels, matrix};
use ncserverd::bench::oracle;
use ncserverd::device::portions::{Coder, Demand, LANES, Opener, Pinner, Portion, Spat};
use ncserverd::device::{Error, Field};

use super::load::key;

/// Knows a few kernels by name; `wrong` makes a mistake in its last byte.
#[derive(Debug)]
pub(super) struct StandIn(Card);

impl StandIn {
    pub(super) fn new() -> Self {
        let card = Card {
            name: "stand-in".into(),
            driver: "none".into(),
            sms: 8,
            memory_bytes: 1 << 30,
            compute_capability: (9, 0),
            clock_mhz: 1000,
        };
        Self(card)
    }
}

struct Job {
    n: usize,
    k: usize,
    rows: usize,
    field: Field,
    sources: Vec<u8>,
    /// Of each generation.
    coefficients: Vec<Vec<u8>>,
    inverts: bool,
    is_wrong: bool,
    made: Vec<Vec<u8>>,
}

impl Lab for StandIn {
    fn card(&self) -> &Card {
        &self.0
    }

    fn has(&self, name: &str, _n: u16) -> bool {
        ["table", "tensor", "loop", "tiled", "invert", "progressive", "stripes", "wrong"].contains(&name)
            || name.starts_with("rs-")
    }

    fn encode<'a>(&'a mut self, plan: &Encode<'_>) -> Result<Box<dyn Work + 'a>, Error> {
        let (n, rows) = (usize::from(plan.n), plan.rows as usize);
        let coefficients = (0..plan.generations as usize).map(|generation| match plan.coefficients {
            Coefficients::Seeded { first_seed, .. } => {
                let mut coefficients = vec![0; rows * n];
                let seeded = coefficients.chunks_exact_mut(n).zip(first_seed..);
                seeded.for_each(|(row, seed)| key(generation).fill(seed, row));
                coefficients
            }
            Coefficients::Explicit(given) => {
                let distinct = given.len() / (rows * n);
                given[generation % distinct * rows * n..][..rows * n].to_vec()
            }
        });
        let job = Job {
            n,
            k: plan.k as usize,
            rows,
            field: plan.field,
            sources: plan.sources.to_vec(),
            coefficients: coefficients.collect(),
            inverts: false,
            is_wrong: plan.kernel == "wrong",
            made: Vec::new(),
        };
        Ok(Box::new(job))
    }

    fn decode<'a>(&'a mut self, plan: &Decode<'_>) -> Result<Box<dyn Work + 'a>, Error> {
        let n = usize::from(plan.n);
        let matrices: Vec<&[u8]> = plan.matrices.chunks_exact(n * n).collect();
        let coefficients = (0..plan.generations as usize).map(|generation| matrices[generation % matrices.len()].to_vec());
        let job = Job {
            n,
            k: plan.k as usize,
            rows: n,
            field: Field::Standard,
            sources: plan.payloads.to_vec(),
            coefficients: coefficients.collect(),
            inverts: plan.decoder != Decoder::Given,
            is_wrong: false,
            made: Vec::new(),
        };
        Ok(Box::new(job))
    }

    fn chunks<'a>(&'a mut self, plan: &Chunks<'_>) -> Result<Box<dyn ChunkWork + 'a>, Error> {
        Ok(Box::new(ChunkJob::new(plan)))
    }

    fn replay<'a>(&'a mut self, plan: &Replay<'_>) -> Result<Box<dyn ReplayWork + 'a>, Error> {
        let plans = plan.plans.iter().map(|each| (*each).clone()).collect();
        let Replay { blocks, symbol_bytes, symbols, .. } = *plan;
        Ok(Box::new(ReplayJob { plans, blocks, symbol_bytes, symbols: symbols.to_vec(), made: Vec::new() }))
    }

    fn opener(&self, _: &Demand) -> Opener {
        Box::new(|| Ok(Box::new(FileCoder::default())))
    }

    fn product<'a>(&'a mut self, plan: &Product<'_>) -> Result<Box<dyn ProductWork + 'a>, Error> {
        let (inner, columns) = (plan.a.len() / plan.rows as usize, plan.columns as usize);
        Ok(Box::new(ProductJob { inner, columns, a: plan.a.to_vec(), b: plan.b.to_vec(), made: Vec::new() }))
    }

    fn elimination<'a>(&'a mut self, plan: &Elimination<'_>) -> Result<Box<dyn EliminationWork + 'a>, Error> {
        Ok(Box::new(EliminationJob { order: plan.order as usize, matrix: plan.matrix.to_vec(), inverse: None }))
    }

    fn systems<'a>(&'a mut self, plan: &Systems<'_>) -> Result<Box<dyn SystemsWork + 'a>, Error> {
        let one = |index: usize| {
            let (system, bytes) = (plan.systems[index % plan.systems.len()], plan.symbol_bytes);
            let mut symbols: Vec<u8> =
                system.symbols.iter().flat_map(|symbol| symbol.map_or(vec![0; bytes], <[u8]>::to_vec)).collect();
            if let Some(before) = plan.before.get(index % plan.systems.len()) {
                let known: Vec<u8> =
                    before.known.iter().flat_map(|symbol| symbol.map_or(vec![0; bytes], <[u8]>::to_vec)).collect();
                let rows = before.rows.chunks_exact(before.known.len());
                let product = rows.flat_map(|row| oracle::combine_in(Field::Standard, row, &known, bytes));
                symbols.iter_mut().zip(product).for_each(|(symbol, byte)| *symbol ^= byte);
            }
            let inverse = matrix::invert(Kernels::detect(), system.order, system.matrix, NonZeroUsize::MIN);
            OneSystem { order: system.order, inverse, symbols, sums: system.sums.to_vec() }
        };
        let systems = (0..plan.count).map(one).collect();
        Ok(Box::new(SystemsJob { systems, bytes: plan.symbol_bytes, made: Vec::new() }))
    }

    fn words<'a>(&'a mut self, plan: &Words<'_>) -> Result<Box<dyn WordsWork + 'a>, Error> {
        Ok(Box::new(WordsJob { result: words_of(plan), is_made: false }))
    }

    fn word_elimination<'a>(&'a mut self, n: usize, matrix: &[Element]) -> Result<Box<dyn WordElimination + 'a>, Error> {
        Ok(Box::new(WordInversion { n, matrix: matrix.to_vec(), inverse: None }))
    }

    fn arithmetic(&self) -> Result<(Box<dyn Arithmetic>, Pin), Error> {
        Ok((Box::new(WordCores::all()), Box::new(|_| None)))
    }

    fn algebra(&self) -> Result<Box<dyn Algebra>, Error> {
        Ok(Box::new(Cores::new(Kernels::detect(), NonZeroUsize::MIN)))
    }

    fn gauge(&self) -> Result<Box<dyn Gauge>, String> {
        Ok(Box::new(Lamp(Instant::now())))
    }
}

/// 100 watts since then.
struct Lamp(Instant);

impl Gauge for Lamp {
    fn millijoules(&self) -> Result<u64, String> {
        Ok(u64::try_from(self.0.elapsed().as_micros()).unwrap() / 10)
    }

    fn milliwatts(&self) -> Result<u32, String> {
        Ok(100_000)
    }
}

/// Chunks by the definition.
struct ChunkJob {
    is_wrong: bool,
    n: usize,
    bytes: usize,
    matrix: Vec<u8>,
    sources: Vec<u8>,
    made: Vec<u8>,
}

impl ChunkJob {
    fn new(plan: &Chunks<'_>) -> Self {
        let n = usize::from(plan.n);
        let sources = plan.sources.iter().cycle().take(n * plan.bytes).copied().collect();
        let is_wrong = plan.kernel == "rs-wrong";
        Self { is_wrong, n, bytes: plan.bytes, matrix: plan.matrix.to_vec(), sources, made: Vec::new() }
    }

    fn make(&mut self) -> Duration {
        let start = Instant::now();
        let rows = self.matrix.chunks_exact(self.n);
        self.made = rows.flat_map(|row| oracle::combine_in(Field::Standard, row, &self.sources, self.bytes)).collect();
        if self.is_wrong {
            *self.made.last_mut().unwrap() ^= 1;
        }
        start.elapsed()
    }
}

impl ChunkWork for ChunkJob {
    fn time(&mut self, repeats: u32) -> Result<Duration, Error> {
        Ok((0..repeats).map(|_| self.make()).sum())
    }

    fn time_copy(&mut self, repeats: u32) -> Result<Duration, Error> {
        Ok(Duration::from_micros(1) * repeats)
    }

    fn through(&mut self, _streams: u32, _piece: usize, code: bool) -> Result<Duration, Error> {
        Ok(if code { self.make() } else { Duration::from_micros(1) })
    }

    fn poison(&mut self) -> Result<(), Error> {
        self.made.fill(0xA5);
        Ok(())
    }

    fn read(&mut self, row: usize, at: usize, _is_on_host: bool, bytes: &mut [u8]) -> Result<(), Error> {
        bytes.copy_from_slice(&self.made[row * self.bytes + at..][..bytes.len()]);
        Ok(())
    }
}

/// Plans on the CPU.
struct ReplayJob {
    plans: Vec<Plan>,
    blocks: usize,
    symbol_bytes: usize,
    symbols: Vec<u8>,
    made: Vec<Vec<u8>>,
}

impl ReplayJob {
    fn make(&mut self) -> Duration {
        let start = Instant::now();
        let one = |block: usize| {
            let plan = &self.plans[block % self.plans.len()];
            let symbols: Vec<&[u8]> = self.symbols.chunks_exact(plan.inputs() * self.symbol_bytes).collect();
            let mut made = vec![0; plan.outputs() * self.symbol_bytes];
            let mut places: Vec<_> = made.chunks_exact_mut(self.symbol_bytes).collect();
            plan.apply(Kernels::detect(), symbols[block % symbols.len()], &mut places);
            made
        };
        self.made = (0..self.blocks).map(one).collect();
        start.elapsed()
    }
}

impl ReplayWork for ReplayJob {
    fn time(&mut self, repeats: u32) -> Result<Duration, Error> {
        Ok((0..repeats).map(|_| self.make()).sum())
    }

    fn through(&mut self, _piece: usize, replay: bool) -> Result<Duration, Error> {
        Ok(if replay { self.make() } else { Duration::from_micros(1) })
    }

    fn planned(&mut self, piece: usize, plans: &mut Planner<'_>) -> Result<(), Error> {
        for first in (0..self.blocks).step_by(piece) {
            let blocks = first..self.blocks.min(first + piece);
            let expected = blocks.clone().map(|block| self.plans[block % self.plans.len()].bytes());
            assert!(plans(blocks).into_iter().eq(expected), "plans of other blocks");
        }
        self.make();
        Ok(())
    }

    fn poison(&mut self) -> Result<(), Error> {
        self.made.iter_mut().for_each(|made| made.fill(0xA5));
        Ok(())
    }

    fn read(&mut self, block: usize, _is_on_host: bool, made: &mut [u8]) -> Result<(), Error> {
        made.copy_from_slice(&self.made[block]);
        Ok(())
    }
}

/// A product by the definition.
struct ProductJob {
    inner: usize,
    columns: usize,
    a: Vec<u8>,
    b: Vec<u8>,
    made: Vec<u8>,
}

impl ProductWork for ProductJob {
    fn time(&mut self, repeats: u32) -> Result<Duration, Error> {
        let start = Instant::now();
        for _ in 0..repeats {
            let rows = self.a.chunks_exact(self.inner);
            self.made = rows.flat_map(|row| oracle::combine_in(Field::Standard, row, &self.b, self.columns)).collect();
        }
        Ok(start.elapsed())
    }

    fn through(&mut self) -> Result<Duration, Error> {
        self.time(1)
    }

    fn poison(&mut self) -> Result<(), Error> {
        self.made.fill(0xA5);
        Ok(())
    }

    fn read(&mut self) -> Result<Vec<u8>, Error> {
        Ok(self.made.clone())
    }
}

/// An inversion on the CPU.
struct EliminationJob {
    order: usize,
    matrix: Vec<u8>,
    inverse: Option<Vec<u8>>,
}

impl EliminationWork for EliminationJob {
    fn run(&mut self) -> Result<Duration, Error> {
        let start = Instant::now();
        self.inverse = matrix::invert(Kernels::detect(), self.order, &self.matrix, NonZeroUsize::MIN);
        Ok(start.elapsed())
    }

    fn inverse(&self) -> Option<&[u8]> {
        self.inverse.as_deref()
    }
}

/// What a work over GF(q) comes to, of every generation the same.
struct WordsJob {
    result: Vec<u8>,
    is_made: bool,
}

impl WordsWork for WordsJob {
    fn time(&mut self, _repeats: u32) -> Result<Duration, Error> {
        self.is_made = true;
        Ok(Duration::from_micros(1))
    }

    fn poison(&mut self) -> Result<(), Error> {
        self.is_made = false;
        Ok(())
    }

    fn read(&mut self, _index: usize) -> Result<Vec<u8>, Error> {
        Ok(if self.is_made { self.result.clone() } else { vec![0xA5; self.result.len()] })
    }
}

fn words_of(plan: &Words<'_>) -> Vec<u8> {
    let cores = WordCores::all();
    match *plan {
        Words::Encode { shape, source, rows, .. } => {
            let mut out = vec![0; rows.len() / shape.n() * shape.payload_bytes()];
            cores.encode(shape, &mut [Code::new(shape, source, rows, &mut out)]).unwrap();
            out
        }
        Words::Combine { shape, payloads, rows, .. } => {
            let unit = |index| Vector::unit(shape, index).unwrap();
            let blocks = blocks_of(shape, payloads, unit);
            let (mut vectors, mut out) = (
                vec![0; rows.len() / shape.n() * shape.recoded_vector_bytes()],
                vec![0; rows.len() / shape.n() * shape.payload_bytes()],
            );
            let held: Vec<&Coded> = blocks.iter().collect();
            cores.recode(shape, &mut [Recode { held: &held, rows, vectors: &mut vectors, payloads: &mut out }]).unwrap();
            out
        }
        Words::Invert { n, matrix, .. } => {
            let inverse = inverse_of(n, matrix).unwrap();
            inverse.chunks_exact(n).flat_map(packed).collect()
        }
        Words::Decode { shape, matrix, payloads, .. } => {
            let row = |index: usize| Vector::Recoded(matrix[index * shape.n()..][..shape.n()].into());
            let blocks = blocks_of(shape, payloads, row);
            let mut source = vec![0; shape.source_bytes()];
            let blocks: Vec<&Coded> = blocks.iter().collect();
            cores.decode(shape, &mut [Rebuild { blocks: &blocks, out: &mut source }]).unwrap();
            let source = source.chunks_exact(shape.block_bytes());
            source.flat_map(|block| Payload::of_source(shape, block).unwrap().as_bytes().to_vec()).collect()
        }
        Words::Powers { group, words, data, .. } | Words::Hashes { group, words, data, .. } => {
            cores.hash(group, words, &data.chunks_exact(32 * words).collect::<Vec<_>>()).unwrap()
        }
        // Neither is looked at but for being the same twice.
        Words::Ladder { .. } | Words::Check { .. } => vec![7; 2],
    }
}

fn blocks_of(shape: Shape, payloads: &[u8], vector: impl Fn(usize) -> Vector) -> Vec<Coded> {
    let block = |(index, payload): (usize, &[u8])| {
        let payload = Payload::parse(shape, payload.to_vec().into()).unwrap();
        Coded { vector: vector(index), payload }
    };
    payloads.chunks_exact(shape.payload_bytes()).enumerate().map(block).collect()
}

/// A row in the form of a payload.
fn packed(row: &[Element]) -> Vec<u8> {
    let mut bytes: Vec<u8> = row.iter().flat_map(Element::low_word).collect();
    let bits =
        row.chunks(8).map(|eight| (0..).zip(eight).fold(0, |bits, (bit, element)| bits | u8::from(element.is_wide()) << bit));
    bytes.extend(bits.collect::<Vec<u8>>());
    bytes
}

/// Gauss-Jordan beside the identity.
fn inverse_of(n: usize, matrix: &[Element]) -> Option<Vec<Element>> {
    let unit = |row: usize| (0..n).map(move |column| Element::from(u64::from(row == column)));
    let mut rows: Vec<Vec<Element>> =
        matrix.chunks_exact(n).enumerate().map(|(index, row)| row.iter().copied().chain(unit(index)).collect()).collect();
    for lead in 0..n {
        let pivot = (lead..n).find(|&row| rows[row][lead] != Element::ZERO)?;
        rows.swap(lead, pivot);
        let inverse = rows[lead][lead].inverse()?;
        let pivot: Vec<Element> = rows[lead].iter().map(|element| element.mul(&inverse)).collect();
        for row in rows.iter_mut() {
            let factor = row[lead];
            row.iter_mut().zip(&pivot).for_each(|(element, pivot)| *element = element.sub(&factor.mul(pivot)));
        }
        rows[lead] = pivot;
    }
    Some(rows.iter().flat_map(|row| row[n..].to_vec()).collect())
}

/// The same, again and again.
struct WordInversion {
    n: usize,
    matrix: Vec<Element>,
    inverse: Option<Vec<Element>>,
}

impl WordElimination for WordInversion {
    fn run(&mut self) -> Result<Duration, Error> {
        let start = Instant::now();
        self.inverse = inverse_of(self.n, &self.matrix);
        Ok(start.elapsed())
    }

    fn inverse(&self) -> Option<&[Element]> {
        self.inverse.as_deref()
    }
}

/// A system whose inverse is there, and symbols to multiply.
struct OneSystem {
    order: usize,
    inverse: Option<Vec<u8>>,
    symbols: Vec<u8>,
    sums: Vec<Vec<u32>>,
}

/// Systems by the definition.
struct SystemsJob {
    systems: Vec<OneSystem>,
    bytes: usize,
    made: Vec<Vec<u8>>,
}

impl OneSystem {
    fn made(&self, bytes: usize) -> Vec<u8> {
        let inverse = self.inverse.as_ref().expect("a matrix with an inverse");
        let sum = |sum: &Vec<u32>| {
            let mut row = vec![0; self.order];
            sum.iter().for_each(|&term| Kernels::detect().add(&mut row, &inverse[term as usize * self.order..][..self.order]));
            oracle::combine_in(Field::Standard, &row, &self.symbols, bytes)
        };
        self.sums.iter().flat_map(sum).collect()
    }
}

impl SystemsWork for SystemsJob {
    fn time(&mut self, inverts_alone: bool, repeats: u32) -> Result<Duration, Error> {
        let start = Instant::now();
        for _ in 0..if inverts_alone { 0 } else { repeats } {
            self.made = self.systems.iter().map(|system| system.made(self.bytes)).collect();
        }
        Ok(start.elapsed())
    }

    fn through(&mut self) -> Result<Duration, Error> {
        self.time(false, 1)
    }

    fn poison(&mut self) -> Result<(), Error> {
        self.made.clear();
        Ok(())
    }

    fn inverse(&mut self, index: usize) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.systems[index].inverse.clone())
    }

    fn read(&mut self, index: usize, _is_on_host: bool, made: &mut [u8]) -> Result<(), Error> {
        made.copy_from_slice(&self.made[index]);
        Ok(())
    }
}

impl Job {
    fn make(&mut self) {
        let bytes = self.n * self.k;
        let sources: Vec<&[u8]> = self.sources.chunks_exact(bytes).collect();
        let one = |(generation, rows): (usize, &Vec<u8>)| {
            let source = sources[generation % sources.len()];
            let inverse = || matrix::invert(Kernels::detect(), self.n, rows, NonZeroUsize::MIN).unwrap();
            let rows = if self.inverts { inverse() } else { rows.clone() };
            rows.chunks_exact(self.n).flat_map(|row| oracle::combine_in(self.field, row, source, self.k)).collect()
        };
        self.made = self.coefficients.iter().enumerate().map(one).collect();
        if self.is_wrong {
            *self.made.last_mut().and_then(|block: &mut Vec<u8>| block.last_mut()).unwrap() ^= 1;
        }
    }
}

impl Work for Job {
    fn time(&mut self, stages: &[Stage], repeats: u32) -> Result<Duration, Error> {
        let start = Instant::now();
        let makes = [Stage::Multiply, Stage::Store, Stage::Progressive];
        for _ in 0..repeats {
            if stages.iter().any(|stage| makes.contains(stage)) {
                self.make();
            }
        }
        Ok(start.elapsed())
    }

    fn time_in_turn(&mut self, repeats: u32) -> Result<Duration, Error> {
        self.time(&[Stage::Multiply], repeats)
    }

    fn overlap(&mut self, chunk: u32, multiply: bool, repeats: u32) -> Result<Duration, Error> {
        assert!(chunk > 0);
        self.time(if multiply { &[Stage::Multiply] } else { &[Stage::Download] }, repeats)
    }

    fn answer(&mut self, stages: &[Stage]) -> Result<Duration, Error> {
        self.time(stages, 1)
    }

    fn poison(&mut self) -> Result<(), Error> {
        self.made.clear();
        Ok(())
    }

    fn read(&mut self, generation: u32, row: u32, _is_on_host: bool, block: &mut [u8]) -> Result<(), Error> {
        assert!((row as usize) < self.rows);
        block.copy_from_slice(&self.made[generation as usize][row as usize * self.k..][..self.k]);
        Ok(())
    }
}

/// Codes portions of files as the CPU does.
#[derive(Default)]
struct FileCoder(VecDeque<Vec<Portion>>);

impl Coder for FileCoder {
    fn depth(&self) -> usize {
        LANES
    }

    fn begin(&mut self, bite: Vec<Portion>) -> Result<(), Spat> {
        self.0.push_back(bite);
        Ok(())
    }

    fn end(&mut self) -> (Vec<Portion>, Result<(), Error>) {
        let mut bite = self.0.pop_front().expect("a bite is under way");
        for Portion { work, input, output } in &mut bite {
            work.run(Kernels::detect(), NonZeroUsize::MIN, input, output);
        }
        (bite, Ok(()))
    }

    fn pinner(&self) -> Option<Pinner> {
        None
    }
}
