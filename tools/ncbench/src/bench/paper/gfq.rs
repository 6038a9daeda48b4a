//! Coding over GF(q) and homomorphic hashes, after Chu, Zhao and Wang ("Practical Random Linear
//! Network Coding on GPUs", NETWORKING 2009): the measurements of rows S3 on a card, in its memory,
//! and on the CPU beside it, on the same blocks.
//!
//! A case's n is the number of blocks of a generation and its k the bytes of a block, m = k / 32
//! words. A contender's name may end in the bits of the hashes' prime; `TB=64` means thread blocks
//! of 64 threads, as many as the case has generations.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::lab::{Gfq, Lab, Pin};
use bytesize::ByteSize;
use ncs_codec::gfq::{
    Arithmetic, Coded, Cores, Decode, Encode, Failed, Kept, Payload, Place, Rebuilt, Recode, Shape,
    Vector, draw_factors, draw_rows,
};
use ncs_codec::hash::{Batch, Group, Hashes};
use ncs_gf::gfq::dots::{Dots, Factors, Row, RowMut};
use ncs_gf::gfq::{Element, WORD_BYTES, matrix};
use ncserverd::device;
use ncserverd::object::Codec;
use ncserverd::ring::{self, LineKind, Ring, Slot};
use prometheus::Registry;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use super::catalogue::Case;
use super::gpu::rounds_of;
use super::load::SEED;
use super::measure::Measure;
use super::{Error, Outcome, Run, Sample, Settings};

/// What a case is about, and what has to come of it.
struct GfqCase {
    shape: Shape,
    rows: usize,
    /// A generation.
    source: Vec<u8>,
    /// As the source draws them, for all rows.
    coefficients: Vec<u32>,
    /// Any, n for each row.
    factors: Vec<Element>,
    rng: SmallRng,
}

impl GfqCase {
    fn new(case: &Case) -> Self {
        let words = u16::try_from(case.k as usize / WORD_BYTES).expect("blocks of 64 KiB at most");
        let shape = Shape::new(case.n, words).expect("cases have possible shapes");
        let is_decoded = matches!(
            case.measure,
            Measure::CpuGfqDecode | Measure::GfqDecode | Measure::GfqDecodeThrough
        );
        // As many as the generation has, though quick runs make fewer rows of anything.
        let rows = if is_decoded {
            shape.n()
        } else {
            case.rows as usize
        };
        let mut rng = SmallRng::seed_from_u64(SEED);
        let mut source = vec![0; shape.source_bytes()];
        rng.fill_bytes(&mut source);
        let (coefficients, factors) = (
            draw_rows(shape, rows, &mut rng),
            draw_factors(shape.n(), rows, &mut rng),
        );
        Self {
            shape,
            rows,
            source,
            coefficients,
            factors,
            rng,
        }
    }

    fn payload_bytes(&self) -> usize {
        self.rows * self.shape.payload_bytes()
    }

    /// Empty if it fails.
    fn encoded(&self, arithmetic: &dyn Arithmetic) -> Vec<u8> {
        let mut out = vec![0; self.payload_bytes()];
        let task = Encode::new(self.shape, &self.source, &self.coefficients, &mut out);
        let encoded = arithmetic.encode(self.shape, &mut [task]);
        encoded.map(|()| out).unwrap_or_default()
    }

    /// Source blocks, as if each had come.
    fn plain(&self) -> Vec<Coded> {
        let blocks = self
            .source
            .chunks_exact(self.shape.block_bytes())
            .enumerate();
        blocks
            .map(|(index, block)| {
                Coded::source(self.shape, index, block).expect("a block of the shape")
            })
            .collect()
    }

    /// Payloads of source blocks, one behind the other.
    fn payloads(&self) -> Vec<u8> {
        self.plain()
            .iter()
            .flat_map(|block| block.payload.as_bytes().to_vec())
            .collect()
    }

    /// What the factors make of the source: blocks of which the rows can be recoded or rebuilt.
    fn recoded(&self) -> Vec<u8> {
        let (blocks, mut out) = (self.plain(), vec![0; self.payload_bytes()]);
        let mut vectors = vec![0; self.rows * self.shape.recoded_vector_bytes()];
        let held: Vec<&Coded> = blocks.iter().collect();
        let task = Recode {
            held: &held,
            rows: &self.factors,
            vectors: &mut vectors,
            payloads: &mut out,
        };
        Cores::all()
            .recode(self.shape, &mut [task])
            .expect("the CPU does not fail");
        out
    }

    /// Blocks with any vectors, as many as there are rows, made of the source.
    fn coded(&self) -> Vec<Coded> {
        let payloads = self.recoded();
        let rows = self
            .factors
            .chunks_exact(self.shape.n())
            .zip(payloads.chunks_exact(self.shape.payload_bytes()));
        rows.map(|(row, payload)| Coded {
            vector: Vector::Recoded(row.into()),
            payload: parsed(self.shape, payload),
        })
        .collect()
    }

    /// Blocks from the source.
    fn coded_at_source(&self) -> Vec<Coded> {
        let payloads = self.encoded(&Cores::all());
        let rows = self
            .coefficients
            .chunks_exact(self.shape.n())
            .zip(payloads.chunks_exact(self.shape.payload_bytes()));
        rows.map(|(row, payload)| Coded {
            vector: Vector::Source(row.into()),
            payload: parsed(self.shape, payload),
        })
        .collect()
    }

    /// Any bytes, as many blocks as there are rows: what is hashed.
    fn data(&mut self) -> Vec<u8> {
        let mut data = vec![0; self.rows * self.shape.block_bytes()];
        self.rng.fill_bytes(&mut data);
        data
    }

    fn hashes(&self, group: Group) -> Hashes {
        let blocks: Vec<&[u8]> = self.source.chunks_exact(self.shape.block_bytes()).collect();
        let hashes = Cores::all()
            .hash(group, self.shape.words(), &blocks)
            .expect("the CPU does not fail");
        Hashes::signed(group, self.shape, &hashes).expect("hashes of the shape")
    }

    /// Some words of what was made, against sums of products one by one.
    fn is_sum(&self, made: &[u8], coefficient: impl Fn(usize, usize) -> Element) -> bool {
        let (n, words, bytes) = (
            self.shape.n(),
            self.shape.words(),
            self.shape.payload_bytes(),
        );
        let word = |block: usize, index: usize| {
            let at = (block * words + index) * WORD_BYTES;
            Element::from_word(self.source[at..].first_chunk().expect("a word"))
        };
        let is_right = |row: usize, index: usize| {
            let sum = (0..n).fold(Element::ZERO, |sum, block| {
                sum.add(&coefficient(row, block).mul(&word(block, index)))
            });
            Payload::parse(self.shape, made[row * bytes..][..bytes].to_vec().into())
                .is_ok_and(|made| made.element(index) == sum)
        };
        [0, self.rows - 1].into_iter().all(|row| {
            [0, words / 2, words - 1]
                .into_iter()
                .all(|index| is_right(row, index))
        })
    }
}

fn parsed(shape: Shape, payload: &[u8]) -> Payload {
    Payload::parse(shape, payload.to_vec().into()).expect("words below q")
}

/// A contender's name, and the group of its hashes.
fn name_and_group(kernel: &str) -> (&str, Group) {
    kernel
        .strip_suffix("p2048")
        .map_or((kernel, Group::P1024), |name| {
            (name.trim_end(), Group::P2048)
        })
}

fn wrong(case: &Case) -> Error {
    Error::Wrong {
        case: format!("{} {}", case.series, case.panel),
    }
}

/// Checks what the CPU makes, and returns what measures it; none if it is wrong.
pub(super) fn prepare(case: &Case) -> Option<Run> {
    let threads = NonZeroUsize::new(case.threads).unwrap_or(NonZeroUsize::MIN);
    let (job, cores, generations) = (
        GfqCase::new(case),
        Cores::new(threads),
        case.generations as usize,
    );
    match case.measure {
        Measure::CpuGfqEncode => encode(job, Box::new(cores), generations),
        Measure::CpuGfqCombine => combine(job, threads),
        Measure::CpuGfqInvert => invert(&job, threads),
        Measure::CpuGfqDecode => decode(&job, Box::new(cores), generations),
        Measure::CpuGfqHash => hash(job, Box::new(cores), name_and_group(case.kernel).1),
        _ => check(
            &job,
            Box::new(cores),
            name_and_group(case.kernel).1,
            generations,
        ),
    }
}

/// The same by the card as coders have it, from the host's memory to the host's memory.
fn through(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let (job, generations, (card, pin)) = (
        GfqCase::new(case),
        case.generations as usize,
        lab.arithmetic()?,
    );
    let run = match case.measure {
        Measure::GfqEncodeServed => serve(job, card, pin, generations),
        Measure::GfqEncodeThrough => encode(job, card, generations),
        Measure::GfqDecodeThrough => decode(&job, card, generations),
        Measure::GfqHashThrough => hash(job, card, name_and_group(case.kernel).1),
        _ => check(&job, card, name_and_group(case.kernel).1, generations),
    };
    let (times, repeats) = settings.rounds(run.ok_or_else(|| wrong(case))?);
    Ok(Outcome::of(Sample::of_times(
        case,
        times,
        repeats,
        case.bytes(),
    )))
}

/// The time of so many calls.
fn timed(mut work: impl FnMut() + 'static) -> Run {
    Box::new(move |repeats| {
        let start = Instant::now();
        (0..repeats).for_each(|_| work());
        start.elapsed()
    })
}

fn encode(job: GfqCase, arithmetic: Box<dyn Arithmetic>, generations: usize) -> Option<Run> {
    let made = job.encoded(arithmetic.as_ref());
    if !job.is_sum(&made, |row, block| {
        u64::from(job.coefficients[row * job.shape.n() + block]).into()
    }) {
        return None;
    }
    let mut outs = vec![made; generations];
    Some(timed(move || {
        let task = |out| Encode::new(job.shape, &job.source, &job.coefficients, out);
        let mut tasks: Vec<_> = outs.iter_mut().map(|out| task(out)).collect();
        arithmetic.encode(job.shape, &mut tasks).expect(IT_HAS);
    }))
}

/// A segment of some generations, and what a card keeps of it.
struct Segment {
    source: Vec<u8>,
    kept: Option<Arc<dyn Kept>>,
}

/// What a server has: segments that are kept, and slots of its ring.
struct Served {
    segments: Vec<Segment>,
    /// Of each generation.
    slots: Vec<Vec<Slot>>,
}

impl Served {
    /// Generations that differ, those of a segment together; `None` if the card has too little
    /// memory.
    fn new(
        job: &mut GfqCase,
        arithmetic: &dyn Arithmetic,
        pin: Pin,
        generations: usize,
    ) -> Option<Self> {
        let shape = job.shape;
        let counts = (0..generations)
            .step_by(SEGMENT)
            .map(|first| SEGMENT.min(generations - first));
        let segment = |count: usize| {
            let mut source = vec![0; count * shape.source_bytes()];
            job.rng.fill_bytes(&mut source);
            let kept = arithmetic.keep(&source, source.len()).ok()?;
            Some(Segment { source, kept })
        };
        let segments = counts.map(segment).collect::<Option<_>>()?;
        let n = u16::try_from(shape.n()).expect("a possible shape");
        let headroom = LineKind::Coded.headroom(
            Codec::RlncQ {
                group: Group::P1024,
            },
            n,
        );
        let bytes =
            ByteSize::b(((headroom + shape.payload_bytes()) * job.rows * generations) as u64);
        let metrics = ring::Metrics::new(&Registry::new()).expect("a registry of its own");
        let ring = Ring::pinned(
            &ring::Config {
                bytes: ring::Capacity::Bytes(bytes),
                ..ring::Config::default()
            },
            metrics,
            pin,
        );
        let [payload, rows] =
            [shape.payload_bytes(), job.rows].map(|number| u32::try_from(number).expect("few"));
        let slots: Vec<_> = (0..generations)
            .map(|_| ring.reserve(headroom, payload, rows, Waker::noop()))
            .collect();
        slots
            .iter()
            .all(|slots| slots.len() == job.rows)
            .then_some(Self { segments, slots })
    }

    /// A generation, and where it is kept.
    fn source(&self, shape: Shape, index: usize) -> (&[u8], Option<Place<'_>>) {
        let Segment { source, kept } = &self.segments[index / SEGMENT];
        let offset = index % SEGMENT * shape.source_bytes();
        (
            &source[offset..][..shape.source_bytes()],
            kept.as_deref().map(|kept| Place { kept, offset }),
        )
    }

    fn encode(&mut self, job: &GfqCase, arithmetic: &dyn Arithmetic) -> Result<(), Failed> {
        let mut slots = std::mem::take(&mut self.slots);
        let mut tasks = Vec::with_capacity(slots.len());
        for (index, slots) in slots.iter_mut().enumerate() {
            let (source, kept) = self.source(job.shape, index);
            let out = slots.iter_mut().map(Slot::payload_mut).collect();
            tasks.push(Encode {
                source,
                kept,
                rows: &job.coefficients,
                out,
            });
        }
        let encoded = arithmetic.encode(job.shape, &mut tasks);
        drop(tasks);
        self.slots = slots;
        encoded
    }

    /// Some generations, against what the CPU makes of them.
    fn is_right(&self, job: &GfqCase) -> bool {
        [0, self.slots.len() / 2, self.slots.len() - 1]
            .into_iter()
            .all(|index| {
                let (source, _) = self.source(job.shape, index);
                let mut expected = vec![0; job.payload_bytes()];
                let task = Encode::new(job.shape, source, &job.coefficients, &mut expected);
                Cores::all()
                    .encode(job.shape, &mut [task])
                    .expect("the CPU does not fail");
                let blocks = expected.chunks_exact(job.shape.payload_bytes());
                self.slots[index]
                    .iter()
                    .zip(blocks)
                    .all(|(slot, block)| slot.payload() == block)
            })
    }
}

fn serve(
    mut job: GfqCase,
    arithmetic: Box<dyn Arithmetic>,
    pin: Pin,
    generations: usize,
) -> Option<Run> {
    let mut served = Served::new(&mut job, arithmetic.as_ref(), pin, generations)?;
    served
        .encode(&job, arithmetic.as_ref())
        .ok()
        .filter(|()| served.is_right(&job))?;
    Some(timed(move || {
        served.encode(&job, arithmetic.as_ref()).expect(IT_HAS)
    }))
}

/// Payloads alone, each thread its part of the rows.
fn combine(job: GfqCase, threads: NonZeroUsize) -> Option<Run> {
    let (shape, dots, n) = (job.shape, Dots::detect(), job.shape.n());
    let share = job.rows.div_ceil(threads.get());
    let factors: Vec<Factors> = job
        .factors
        .chunks(share * n)
        .map(|factors| Factors::new(dots, factors))
        .collect();
    let (payloads, mut out) = (job.payloads(), vec![0; job.payload_bytes()]);
    let work = move |out: &mut [u8]| {
        let sources: Vec<Row<'_>> = payloads
            .chunks_exact(shape.payload_bytes())
            .map(|payload| Row::packed(payload, shape.words()))
            .collect();
        std::thread::scope(|scope| {
            for (factors, out) in factors
                .iter()
                .zip(out.chunks_mut(share * shape.payload_bytes()))
            {
                let sources = &sources;
                let mut part = move || {
                    let mut outs: Vec<RowMut<'_>> = out
                        .chunks_exact_mut(shape.payload_bytes())
                        .map(|out| RowMut::packed(out, shape.words()))
                        .collect();
                    dots.combine(factors, sources, &mut outs);
                };
                if threads.get() == 1 {
                    part()
                } else {
                    drop(scope.spawn(part))
                }
            }
        });
    };
    work(&mut out);
    if !job.is_sum(&out, |row, block| job.factors[row * n + block]) {
        return None;
    }
    Some(timed(move || work(&mut out)))
}

fn invert(job: &GfqCase, threads: NonZeroUsize) -> Option<Run> {
    let (n, matrix) = (job.shape.n(), square(job));
    matrix::invert(Dots::detect(), n, &matrix, threads)?;
    Some(timed(move || {
        std::hint::black_box(matrix::invert(Dots::detect(), n, &matrix, threads));
    }))
}

/// As many rows as columns.
fn square(job: &GfqCase) -> Vec<Element> {
    let n = job.shape.n();
    draw_factors(n, n, &mut job.rng.clone())
}

fn decode(job: &GfqCase, arithmetic: Box<dyn Arithmetic>, generations: usize) -> Option<Run> {
    let (shape, blocks) = (job.shape, job.coded());
    let mut outs = vec![vec![0; shape.source_bytes()]; generations];
    let source = job.source.clone();
    let mut run = move |is_looked_at: bool| {
        let held: Vec<&Coded> = blocks.iter().collect();
        let mut tasks: Vec<_> = outs
            .iter_mut()
            .map(|out| Decode { blocks: &held, out })
            .collect();
        let rebuilt = arithmetic.decode(shape, &mut tasks);
        rebuilt.is_ok_and(|rebuilt| rebuilt.iter().all(|rebuilt| *rebuilt == Rebuilt::Whole))
            && (!is_looked_at || outs.iter().all(|out| *out == source))
    };
    if !run(true) {
        return None;
    }
    Some(timed(move || assert!(run(false), "{IT_HAS}")))
}

fn hash(mut job: GfqCase, arithmetic: Box<dyn Arithmetic>, group: Group) -> Option<Run> {
    let (data, shape) = (job.data(), job.shape);
    // Who hashes one block alone and who hashes it among others come to the same.
    let first = Cores::all()
        .hash(group, shape.words(), &[&data[..shape.block_bytes()]])
        .ok()?;
    let run = move || {
        let blocks: Vec<&[u8]> = data.chunks_exact(shape.block_bytes()).collect();
        arithmetic.hash(group, shape.words(), &blocks)
    };
    run()
        .ok()?
        .starts_with(&first)
        .then(|| timed(move || drop(std::hint::black_box(run().expect(IT_HAS)))))
}

fn check(
    job: &GfqCase,
    arithmetic: Box<dyn Arithmetic>,
    group: Group,
    generations: usize,
) -> Option<Run> {
    let (hashes, blocks, mut rng) = (job.hashes(group), job.coded_at_source(), job.rng.clone());
    let mut run = move || {
        let batches: Vec<_> = (0..generations)
            .map(|_| Batch::new(&hashes, blocks.iter().collect(), &mut rng))
            .collect();
        arithmetic
            .holds(&batches)
            .is_ok_and(|holds| holds.iter().all(|holds| *holds))
    };
    run().then(|| timed(move || assert!(run(), "{IT_HAS}")))
}

/// Checks what a card makes and measures, or says why not.
pub(super) fn measure(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let outcome = match case.measure {
        Measure::GfqSteps => steps(lab, case, settings),
        measure if measure.is_gfq_through() => through(lab, case, settings),
        _ => on_card(lab, case, settings),
    };
    match outcome {
        Err(Error::Device(device::Error::Memory { bytes })) => {
            Ok(Outcome::skipped(format!("no {bytes} bytes on the card")))
        }
        outcome => outcome,
    }
}

/// What is right, of each generation.
enum Expected {
    /// These bytes.
    Bytes(Vec<u8>),
    /// The rows of this matrix's inverse.
    Inverse(Vec<Element>),
    /// Two numbers that are the same.
    Same,
    /// What another way made.
    Other(Vec<u8>),
}

impl Expected {
    fn is(&self, made: &[u8]) -> bool {
        match self {
            Self::Bytes(bytes) | Self::Other(bytes) => bytes == made,
            Self::Inverse(matrix) => is_inverse(matrix, &elements_of(made, matrix.len().isqrt())),
            Self::Same => made[..made.len() / 2] == made[made.len() / 2..],
        }
    }
}

/// Rows of n elements in the form of payloads.
fn elements_of(rows: &[u8], n: usize) -> Vec<Element> {
    let shape = Shape::new(1, u16::try_from(n).expect("a small order")).expect("an order");
    rows.chunks_exact(shape.payload_bytes())
        .flat_map(|row| parsed(shape, row).elements().collect::<Vec<_>>())
        .collect()
}

/// Whether both together leave a vector as it is: one that nobody knew before.
fn is_inverse(matrix: &[Element], inverse: &[Element]) -> bool {
    let n = matrix.len().isqrt();
    let vector = draw_factors(n, 1, &mut SmallRng::seed_from_u64(SEED + 1));
    let times = |matrix: &[Element], vector: &[Element]| -> Vec<Element> {
        let dot = |row: &[Element]| {
            row.iter()
                .zip(vector)
                .fold(Element::ZERO, |sum, (a, b)| sum.add(&a.mul(b)))
        };
        matrix.chunks_exact(n).map(dot).collect()
    };
    matrix.len() == inverse.len() && times(matrix, &times(inverse, &vector)) == vector
}

fn on_card(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let mut job = GfqCase::new(case);
    let (shape, generations) = (job.shape, case.generations);
    let (kernel, group) = name_and_group(case.kernel);
    let (data, matrix) = (job.data(), square(&job));
    let weights: Vec<u128> = (0..job.rows)
        .map(|_| job.rng.random::<u128>() >> 32)
        .collect();
    let window = kernel
        .strip_prefix("window-")
        .map_or(4, |bits| bits.parse().expect("a number of bits"));
    let hashed = |job: &GfqCase| {
        let blocks: Vec<&[u8]> = data.chunks_exact(job.shape.block_bytes()).collect();
        Cores::all()
            .hash(group, shape.words(), &blocks)
            .expect("the CPU does not fail")
    };
    // What plans borrow.
    let (payloads, elements, hashes);
    let (plan, expected) = match case.measure {
        Measure::GfqEncode => {
            let (source, rows) = (&job.source[..], &job.coefficients[..]);
            let plan = Gfq::Encode {
                shape,
                generations,
                kernel,
                source,
                rows,
            };
            (plan, Expected::Bytes(job.encoded(&Cores::all())))
        }
        Measure::GfqCombine => {
            payloads = job.payloads();
            let is_paper = kernel == "paper";
            let plan = Gfq::Combine {
                shape,
                generations,
                is_paper,
                payloads: &payloads,
                rows: &job.factors,
            };
            (plan, Expected::Bytes(job.recoded()))
        }
        Measure::GfqInvert => (
            Gfq::Invert {
                n: shape.n(),
                count: generations,
                matrix: &matrix,
            },
            Expected::Inverse(matrix.clone()),
        ),
        Measure::GfqDecode => {
            payloads = job.recoded();
            let plan = Gfq::Decode {
                shape,
                generations,
                matrix: &job.factors,
                payloads: &payloads,
            };
            (plan, Expected::Bytes(job.payloads()))
        }
        Measure::GfqPowers => {
            let threads = kernel
                .strip_prefix("TB=")
                .expect("a number of threads")
                .parse()
                .expect("a number of threads");
            let plan = Gfq::Powers {
                group,
                words: shape.words(),
                data: &data,
                threads,
                blocks: generations,
            };
            (plan, Expected::Bytes(hashed(&job)))
        }
        Measure::GfqHash => {
            let plan = Gfq::Hashes {
                group,
                words: shape.words(),
                data: &data,
                window,
            };
            (plan, Expected::Bytes(hashed(&job)))
        }
        Measure::GfqLadder => {
            let plan = |is_by_lanes| Gfq::Ladder {
                group,
                words: shape.n(),
                sets: generations,
                window: 4,
                is_by_lanes,
            };
            let is_by_lanes = kernel == "lanes";
            let mut other = lab.gfq(&plan(!is_by_lanes))?;
            other.time(1)?;
            (plan(is_by_lanes), Expected::Other(other.read(0)?))
        }
        _ => {
            payloads = job.encoded(&Cores::all());
            elements = job
                .coefficients
                .iter()
                .map(|&coefficient| u64::from(coefficient).into())
                .collect::<Vec<Element>>();
            hashes = job.hashes(group);
            let plan = Gfq::Check {
                group,
                shape,
                batches: generations,
                payloads: &payloads,
                vectors: &elements,
                weights: &weights,
                hashes: hashes.numbers(),
            };
            (plan, Expected::Same)
        }
    };
    let mut work = lab.gfq(&plan)?;
    work.poison()?;
    work.time(1)?;
    let count = if case.measure == Measure::GfqPowers || case.measure == Measure::GfqHash {
        1
    } else {
        generations as usize
    };
    for index in [0, count / 2, count - 1] {
        if !expected.is(&work.read(index)?) {
            return Err(wrong(case));
        }
    }
    let (times, repeats) = rounds_of(settings.short_pace(), |repeats| work.time(repeats));
    Ok(Outcome::of(sample(case, times, repeats)))
}

/// Of one matrix or base where times are told, of all blocks where rates are.
fn sample(case: &Case, times: Vec<Duration>, repeats: u32) -> Sample {
    let share = if case.measure == Measure::GfqInvert {
        case.generations
    } else {
        1
    };
    Sample::of_times(
        case,
        times.into_iter().map(|time| time / share).collect(),
        repeats,
        case.bytes(),
    )
}

fn steps(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let job = GfqCase::new(case);
    let matrix = square(&job);
    let mut work = lab.word_elimination(job.shape.n(), &matrix)?;
    let start = Instant::now();
    work.run()?;
    if !work
        .inverse()
        .is_some_and(|inverse| is_inverse(&matrix, inverse))
    {
        return Err(wrong(case));
    }
    // Hundreds of steps with the host between: once more is enough where one takes long.
    let (times, repeats) = if start.elapsed() > settings.lasting() {
        (vec![work.run()?], 1)
    } else {
        rounds_of(settings.short_pace(), |repeats| {
            (0..repeats).map(|_| work.run()).sum()
        })
    };
    Ok(Outcome::of(Sample::of_times(
        case,
        times,
        repeats,
        case.bytes(),
    )))
}

/// Generations of a segment of 8 MiB.
const SEGMENT: usize = 4;
const IT_HAS: &str = "it has done the same before";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inverse_is_known_from_anything_else() {
        let matrix = draw_factors(3, 3, &mut SmallRng::seed_from_u64(1));
        let identity: Vec<Element> = (0..9)
            .map(|index| u64::from(index % 4 == 0).into())
            .collect();
        assert!(is_inverse(&identity, &identity) && !is_inverse(&matrix, &identity));
        // The first word of each row, or the second, or the third; no top bits.
        let row = |index: usize| {
            (0..97)
                .map(|at| u8::from(at == 32 * index + 31))
                .collect::<Vec<_>>()
        };
        assert_eq!(elements_of(&[row(0), row(1), row(2)].concat(), 3), identity);
    }

    #[test]
    fn names_say_how_large_a_prime_is() {
        assert_eq!(name_and_group("window-4 p2048"), ("window-4", Group::P2048));
        assert_eq!(name_and_group("p2048"), ("", Group::P2048));
        assert_eq!(name_and_group("TB=32"), ("TB=32", Group::P1024));
    }
}
