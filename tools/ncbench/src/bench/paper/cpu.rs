//! What the CPU of the host does: the same work by all of its cores; and what its rows are worth.

use std::any::Any;
use std::hint::black_box;
use std::num::{NonZeroU16, NonZeroUsize};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use ncs_codec::Outcome;
use ncs_codec::block::{Block, Vector};
use ncs_codec::rlnc::{Decoder, Progressive};
use ncs_gf::matrix::{Inversion, Share};
use ncs_gf::{Kernels, Panel, Rows};
use ncserverd::bench::oracle;
use ncserverd::device::{
    self, BackendChoice, Batch, Config, Device, Field, Kernel, KernelChoice, Task, Threads,
};
use ncserverd::object::{Codec, Generation, Shape};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::runtime::{Builder, Runtime};

use super::catalogue::{Case, Kind};
use super::load::{Coded, FIRST_SEED, Load, invertible, key};
use super::measure::{Family, Measure};
use super::{Error, Run, Sample, fountain, gfq, stripes, work_items};
use crate::bench::team::{self, Member};

/// Checks what the case makes, and returns what measures it; none if bytes are wrong.
pub(super) fn prepare(case: &Case) -> Result<Option<Run>, Error> {
    Ok(match case.measure {
        Measure::CpuEncode => return encode(case),
        Measure::CpuWhole | Measure::CpuPartedAtOnce => team_encode(case, at_once),
        Measure::CpuParted => team_encode(case, in_turn),
        Measure::CpuGather => team_encode(case, gather),
        Measure::CpuInvert => invert(case),
        Measure::CpuDecode => decode(case),
        Measure::CpuDecodeMany => decode_many(case),
        Measure::CpuProgressive => progressive(case),
        Measure::CpuDependent => dependent(case),
        Measure::CpuRecode => recode(case),
        Measure::CpuBlocks | Measure::CpuEnergy | Measure::CpuPower => fountain::decode(case),
        Measure::CpuSymbols => fountain::encode(case),
        Measure::CpuProduct => fountain::product(case),
        Measure::CpuGaussJordan => fountain::gauss_jordan(case),
        Measure::CpuPrecode => fountain::precode(case),
        Measure::CpuChunks | Measure::CpuRebuild => stripes::code(case),
        Measure::CpuWorkItems => work_items::by_cpu(case),
        measure if measure.family() == Family::Gfq => gfq::prepare(case),
        _ => unreachable!("measures of the GPU are prepared elsewhere"),
    })
}

/// A device with a batch for it, as in the daemon: slots are cut from memory that a GPU may write
/// to. The fields' order matters: the pin is dropped before the memory, and the thread ends with
/// the last handle of the device.
pub(super) struct Bed {
    _pin: Option<Box<dyn Any + Send + Sync>>,
    batch: Batch,
    device: Device,
    _thread: device::Thread,
    runtime: Runtime,
}

impl Bed {
    pub(super) fn open(config: &Config, load: &Load) -> Result<Self, Error> {
        let runtime = Builder::new_current_thread().enable_time().build()?;
        let (device, thread) = Device::open(config, device::Unrecorded)?;
        let (n, k) = (
            u16::try_from(load.n).expect("a possible shape"),
            u32::try_from(load.k).expect("a possible shape"),
        );
        let shape = Shape::local(load.sources.len() as u64, k, n).map_err(Error::Shape)?;
        let resident =
            Arc::new(runtime.block_on(device.load(Bytes::from(load.sources.clone()), shape))?);
        let count = u32::try_from(load.rows).expect("a count");
        let mut slab = BytesMut::zeroed(load.generations * load.rows * load.k);
        let pin = device.pin(&mut slab);
        let task = |generation: usize| {
            let rows = match &load.given {
                None => Rows::Seeded {
                    key: key(generation),
                    first_seed: FIRST_SEED,
                    count,
                },
                Some(_) => Rows::Explicit {
                    n,
                    coefficients: load.all_rows(generation).into(),
                },
            };
            let out = (0..load.rows).map(|_| slab.split_to(load.k)).collect();
            let index = u32::try_from(generation % load.distinct()).expect("16 at most");
            Task {
                resident: Arc::clone(&resident),
                generation: index,
                rows,
                out,
                out_offset: 0,
            }
        };
        let batch = Batch {
            tasks: (0..load.generations).map(task).collect(),
        };
        Ok(Self {
            _pin: pin,
            batch,
            device,
            _thread: thread,
            runtime,
        })
    }

    pub(super) fn combine(&mut self) -> Result<Duration, Error> {
        self.combine_timed().map(|(turnaround, _)| turnaround)
    }

    /// The time from submitting the batch to its return, and the time on the device's thread from
    /// the launch on.
    pub(super) fn combine_timed(&mut self) -> Result<(Duration, Duration), Error> {
        let batch = std::mem::take(&mut self.batch);
        let start = Instant::now();
        let done = self.runtime.block_on(self.device.combine(batch));
        let turnaround = start.elapsed();
        let done = done.map_err(|failed| Error::Device(failed.error))?;
        self.batch = done.batch;
        Ok((turnaround, done.elapsed))
    }

    pub(super) fn is_right(&self, load: &Load) -> bool {
        load.expectations()
            .into_iter()
            .all(|((generation, row), expected)| self.batch.tasks[generation].out[row] == expected)
    }
}

/// The configuration of a CPU device with this kernel.
pub(super) fn config(kernel: &str, threads: usize) -> Config {
    let kernel = if kernel == "table" {
        Kernel::Table
    } else {
        Kernel::Simd
    };
    let threads = u16::try_from(threads)
        .ok()
        .and_then(NonZeroU16::new)
        .expect("at least one thread");
    Config {
        backend: BackendChoice::Cpu,
        kernel: KernelChoice::Named(kernel),
        cpu_threads: Threads::Count(threads),
        queue_batches: NonZeroU16::MIN,
        ..Config::default()
    }
}

fn encode(case: &Case) -> Result<Option<Run>, Error> {
    let load = Load::new(case, Field::Standard);
    let mut bed = Bed::open(&config(case.kernel, case.threads), &load)?;
    bed.combine()?;
    if !bed.is_right(&load) {
        return Ok(None);
    }
    Ok(Some(Box::new(move |repeats| {
        (0..repeats)
            .map(|_| bed.combine().expect("it has done the same before"))
            .sum()
    })))
}

/// What one member of a team makes of a load: its coded blocks, or its part of all of them.
type Encode = fn(&Load, &[Vec<u8>], &mut Made, &Member<'_>);

/// What a member holds: sources in its own form, and room for what it makes.
struct Made {
    panel: Option<Panel>,
    rows: Range<usize>,
    bytes: Range<usize>,
    blocks: Vec<Vec<u8>>,
}

fn team_encode(case: &Case, work: Encode) -> Option<Run> {
    let load = Load::new(case, Field::Standard);
    let rows: Vec<Vec<u8>> = (0..load.rows).map(|row| load.row(0, row)).collect();
    let (threads, measure) = (case.threads, case.measure);
    let run = move |repeats| {
        let prepare = |index| Made::new(&load, measure, index, threads);
        let (elapsed, made) = team::time(threads, repeats, prepare, |made, member, _| {
            work(&load, &rows, made, member)
        });
        (elapsed, made.iter().all(|made| made.is_right(&load)))
    };
    let is_right = run(1).1;
    is_right.then(|| Box::new(move |repeats| run(repeats).0) as Run)
}

impl Made {
    fn new(load: &Load, measure: Measure, index: usize, threads: usize) -> Self {
        let is_parted = matches!(measure, Measure::CpuParted | Measure::CpuPartedAtOnce);
        let bytes = if is_parted {
            part(load.k, threads, index, 64)
        } else {
            0..load.k
        };
        let rows = if is_parted {
            0..load.rows
        } else {
            part(load.rows, threads, index, Kernels::ROWS)
        };
        let panel = (!bytes.is_empty()).then(|| {
            let mut panel = Panel::new(load.n, bytes.len());
            let blocks = load.source(0).chunks_exact(load.k).enumerate();
            blocks.for_each(|(index, block)| panel.put(index, &block[bytes.clone()]));
            panel
        });
        let blocks = rows.clone().map(|_| vec![0; bytes.len()]).collect();
        Self {
            panel,
            rows,
            bytes,
            blocks,
        }
    }

    /// All its blocks, as the CPU's device does.
    fn combine(
        &mut self,
        rows: &[Vec<u8>],
        combine: impl Fn(&Kernels, &[&[u8]], &Panel, &mut [&mut [u8]]),
    ) {
        let Some(panel) = &self.panel else { return };
        let rows: Vec<&[u8]> = rows[self.rows.clone()].iter().map(Vec::as_slice).collect();
        let mut outs: Vec<&mut [u8]> = self.blocks.iter_mut().map(Vec::as_mut_slice).collect();
        combine(&Kernels::detect(), &rows, panel, &mut outs);
    }

    fn is_right(&self, load: &Load) -> bool {
        let sample = load
            .sample()
            .into_iter()
            .filter(|(_, row)| self.rows.contains(row));
        sample.into_iter().all(|(_, row)| {
            self.blocks[row - self.rows.start] == load.expected(0, row)[self.bytes.clone()]
        })
    }
}

fn at_once(_: &Load, rows: &[Vec<u8>], made: &mut Made, _: &Member<'_>) {
    made.combine(rows, Kernels::combine);
}

fn gather(_: &Load, rows: &[Vec<u8>], made: &mut Made, _: &Member<'_>) {
    made.combine(rows, |kernels, rows, panel, outs| {
        kernels.combine_sparse(rows, panel, 0..panel.block_bytes(), outs)
    });
}

fn in_turn(_: &Load, rows: &[Vec<u8>], made: &mut Made, member: &Member<'_>) {
    let kernels = Kernels::detect();
    for (row, out) in rows.iter().zip(&mut made.blocks) {
        if let Some(panel) = &made.panel {
            kernels.combine(&[row.as_slice()], panel, &mut [out.as_mut_slice()]);
        }
        member.wait();
    }
}

/// The `index`-th of `count` parts of 0..whole, each but the last a multiple of `step`.
pub(super) fn part(whole: usize, count: usize, index: usize, step: usize) -> Range<usize> {
    let each = whole.div_ceil(count).next_multiple_of(step);
    (index * each).min(whole)..((index + 1) * each).min(whole)
}

fn invert(case: &Case) -> Option<Run> {
    let (n, kernels) = (usize::from(case.n), Kernels::detect());
    let (matrix, inverse) = invertible(n, 0, case.coefficients, kernels);
    let threads = NonZeroUsize::new(case.threads).expect("at least one thread");
    let run = move |repeats: u32| {
        let inversions: Vec<_> = (0..repeats)
            .map(|_| Inversion::new(kernels, n, &matrix, threads))
            .collect();
        let work = |share: &mut Option<Share>, member: &Member<'_>, repeat: u32| {
            *share = black_box(inversions[repeat as usize].run(member.index));
        };
        team::time(threads.get(), repeats, |_| None, work)
    };
    // The inverse was made by one thread; that it is one, the definition says.
    let (matrix, _) = invertible(n, 0, case.coefficients, kernels);
    let rows =
        [0, n / 2, n - 1].map(|row| (row, oracle::combine(&inverse[row * n..][..n], &matrix, n)));
    let is_unit = rows.into_iter().all(|(row, product)| {
        product
            .iter()
            .enumerate()
            .all(|(i, &c)| c == u8::from(i == row))
    });
    let shares = run(1).1;
    let mut made = shares.iter().flatten().flat_map(Share::rows);
    let is_same = made.all(|(index, row)| row == &inverse[index * n..][..n]);
    (is_unit && is_same && shares.iter().all(Option::is_some))
        .then(|| Box::new(move |repeats| run(repeats).0) as Run)
}

/// The time of the inversion, and the inverse.
pub(super) fn timed_inverse(n: usize, matrix: &[u8], threads: usize) -> (Duration, Vec<u8>) {
    let inversion = Inversion::new(
        Kernels::detect(),
        n,
        matrix,
        NonZeroUsize::new(threads).expect("at least one thread"),
    );
    let work =
        |share: &mut Option<Share>, member: &Member<'_>, _| *share = inversion.run(member.index);
    let (elapsed, shares) = team::time(threads, 1, |_| None, work);
    let mut inverse = vec![0; n * n];
    for (index, row) in shares.iter().flatten().flat_map(Share::rows) {
        inverse[index * n..][..n].copy_from_slice(row);
    }
    (elapsed, inverse)
}

/// All threads decode one generation: they invert together, then each multiplies its part of every
/// block.
fn decode(case: &Case) -> Option<Run> {
    let (coded, kernels, threads) = (Coded::new(case), Kernels::detect(), case.threads);
    let (n, k) = (coded.load.n, coded.load.k);
    let run = move |repeats: u32| {
        let many = NonZeroUsize::new(threads).expect("at least one thread");
        let new = |_| {
            (
                Inversion::new(kernels, n, coded.matrix(0), many),
                (0..threads).map(|_| OnceLock::new()).collect(),
            )
        };
        let boards: Vec<(Inversion<'_>, Vec<OnceLock<Share>>)> = (0..repeats).map(new).collect();
        let work = |out: &mut Vec<u8>, member: &Member<'_>, repeat: u32| {
            let (inversion, shares) = &boards[repeat as usize];
            let share = inversion.run(member.index).expect("an invertible matrix");
            shares[member.index].set(share).expect("each member once");
            member.wait();
            let bytes = part(k, member.threads, member.index, 64);
            let sources = coded
                .payloads(0)
                .chunks_exact(k)
                .map(|payload| &payload[bytes.clone()]);
            let mut rows: Vec<(usize, &[u8])> = shares
                .iter()
                .flat_map(OnceLock::get)
                .flat_map(Share::rows)
                .collect();
            rows.sort_unstable_by_key(|row| row.0);
            let rows: Vec<&[u8]> = rows.into_iter().map(|row| row.1).collect();
            if !bytes.is_empty() {
                let mut outs: Vec<&mut [u8]> = out.chunks_exact_mut(bytes.len()).collect();
                kernels.combine_scattered(&rows, &sources.collect::<Vec<_>>(), &mut outs);
            }
        };
        let prepare = |index| vec![0; n * part(k, threads, index, 64).len()];
        let (elapsed, outs) = team::time(threads, repeats, prepare, work);
        let is_right = outs.iter().enumerate().all(|(index, out)| {
            let bytes = part(k, threads, index, 64);
            let expected = coded
                .load
                .source(0)
                .chunks_exact(k)
                .flat_map(|block| &block[bytes.clone()]);
            out.iter().eq(expected)
        });
        (elapsed, is_right)
    };
    let is_right = run(1).1;
    is_right.then(|| Box::new(move |repeats| run(repeats).0) as Run)
}

fn generation(coded: &Coded) -> Generation {
    let (n, k) = (
        u16::try_from(coded.load.n).expect("a shape"),
        u32::try_from(coded.load.k).expect("a shape"),
    );
    Generation {
        index: 0,
        n,
        block_bytes: k,
        offset: 0,
        length: u64::from(n) * u64::from(k),
        codec: Codec::Rlnc,
    }
}

/// The blocks of a generation as they would arrive.
fn blocks(coded: &Coded, generation: usize) -> Vec<(Vector, Bytes)> {
    let vectors = coded
        .matrix(generation)
        .chunks_exact(coded.load.n)
        .map(|row| Vector::Explicit(row.to_vec().into()));
    let payloads = coded
        .payloads(generation)
        .chunks_exact(coded.load.k)
        .map(Bytes::copy_from_slice);
    vectors.zip(payloads).collect()
}

fn absorbed(coded: &Coded, blocks: &[(Vector, Bytes)]) -> Decoder {
    let mut decoder = Decoder::new(generation(coded), key(0), Kernels::detect());
    for (vector, payload) in blocks {
        decoder
            .absorb(vector, payload)
            .expect("blocks of this generation");
    }
    decoder
}

/// Each thread takes every T-th generation.
fn decode_many(case: &Case) -> Option<Run> {
    let (coded, threads) = (Coded::new(case), case.threads);
    let arrived: Vec<_> = (0..coded.load.distinct())
        .map(|generation| blocks(&coded, generation))
        .collect();
    let run = move |repeats| {
        let work = |last: &mut Option<(usize, Vec<u8>)>, member: &Member<'_>, _| {
            for generation in (member.index..coded.load.generations).step_by(member.threads) {
                let blocks = &arrived[generation % arrived.len()];
                let bytes = absorbed(&coded, blocks)
                    .into_bytes()
                    .expect("n independent blocks");
                *last = Some((generation, black_box(bytes)));
            }
        };
        let (elapsed, last) = team::time(threads, repeats, |_| None, work);
        (
            elapsed,
            last.into_iter()
                .flatten()
                .all(|(generation, bytes)| bytes == coded.load.source(generation)),
        )
    };
    let is_right = run(1).1;
    is_right.then(|| Box::new(move |repeats| run(repeats).0) as Run)
}

fn progressive(case: &Case) -> Option<Run> {
    let coded = Coded::new(case);
    let blocks = blocks(&coded, 0);
    let run = move |repeats: u32| {
        let mut bytes = vec![0; coded.load.n * coded.load.k];
        let start = Instant::now();
        for _ in 0..repeats {
            let mut decoder = Progressive::new(generation(&coded), key(0), Kernels::detect());
            for (vector, payload) in &blocks {
                decoder
                    .absorb(vector, payload)
                    .expect("blocks of this generation");
            }
            decoder
                .finish(black_box(&mut bytes))
                .expect("n independent blocks");
        }
        (start.elapsed(), bytes == coded.load.source(0))
    };
    let is_right = run(1).1;
    is_right.then(|| Box::new(move |repeats| run(repeats).0) as Run)
}

/// Blocks beyond n that a decoder needs: the mean, and the 99.9th percentile. Rows alone determine
/// it, so every run gives the same.
pub(super) fn extra(case: &Case, trials: u32) -> Vec<(&'static str, Sample)> {
    let (all, threads) = (trials as usize, case.threads);
    let work = |extras: &mut Vec<u32>, member: &Member<'_>, _| {
        extras.extend(
            (member.index..all)
                .step_by(threads)
                .map(|trial| extra_blocks(case, trial)),
        );
    };
    let mut extras = team::time(threads, 1, |_| Vec::new(), work).1.concat();
    extras.sort_unstable();
    let at = |index: usize| f64::from(extras[index]);
    let mean = extras.iter().copied().map(f64::from).sum::<f64>() / f64::from(trials);
    let sample = |value| Sample {
        value,
        best: at(0),
        worst: at(all - 1),
        rounds: all,
        repeats: 1,
        bytes: 0,
    };
    vec![
        (", mean", sample(mean)),
        (
            ", 99.9th percentile",
            sample(at((all * 999).div_ceil(1000) - 1)),
        ),
    ]
}

/// Of one generation, by elimination on the coefficients alone.
fn extra_blocks(case: &Case, trial: usize) -> u32 {
    let (n, key) = (usize::from(case.n), key(trial));
    let length = u64::from(case.n);
    let generation = Generation {
        index: 0,
        n: case.n,
        block_bytes: 1,
        offset: 0,
        length,
        codec: Codec::Rlnc,
    };
    let mut decoder = Decoder::gathering(generation, key, Kernels::detect());
    let mut row = vec![0; n];
    for seed in 0.. {
        if case.coefficients == Kind::Sparse {
            key.fill_sparse(seed, case.weight, &mut row);
        } else {
            key.fill(seed, &mut row);
        }
        let outcome = decoder.absorb(&Vector::Explicit(Bytes::copy_from_slice(&row)), &[0]);
        if outcome.expect("a block of this generation") == Outcome::Complete {
            return seed + 1 - u32::from(case.n);
        }
    }
    unreachable!("some 2^32 rows span every generation")
}

/// The sum of two blocks held brings nothing, and changes nothing.
fn dependent(case: &Case) -> Option<Run> {
    let coded = Coded::new(case);
    let (n, k) = (coded.load.n, coded.load.k);
    let blocks = blocks(&coded, 0);
    let mut decoder = Progressive::new(generation(&coded), key(0), Kernels::detect());
    for (vector, payload) in &blocks[..n - 1] {
        decoder
            .absorb(vector, payload)
            .expect("blocks of this generation");
    }
    let sum = |bytes: &[u8], each: usize| {
        bytes[..each]
            .iter()
            .zip(&bytes[each..])
            .map(|(a, b)| a ^ b)
            .collect::<Vec<u8>>()
    };
    let (vector, payload) = (
        Vector::Explicit(sum(coded.matrix(0), n).into()),
        sum(coded.payloads(0), k),
    );
    let is_right = decoder.absorb(&vector, &payload) == Ok(Outcome::Redundant);
    let run = move |repeats: u32| {
        let start = Instant::now();
        for _ in 0..repeats {
            let _ = black_box(decoder.absorb(&vector, &payload));
        }
        start.elapsed()
    };
    is_right.then(|| Box::new(run) as Run)
}

/// Each thread recodes from a generation of its own.
fn recode(case: &Case) -> Option<Run> {
    let case = &Case {
        coefficients: Kind::NonZero,
        ..case.clone()
    };
    let (coded, threads) = (Coded::new(case), case.threads);
    let (n, k) = (coded.load.n, coded.load.k);
    let run = move |repeats| {
        let prepare = |index: usize| {
            let decoder = absorbed(&coded, &blocks(&coded, index % coded.load.distinct()));
            (decoder, SmallRng::seed_from_u64(index as u64), Vec::new())
        };
        let work = |state: &mut (Decoder, SmallRng, Vec<Block>), _: &Member<'_>, _| {
            state.2 = state.0.recode(n, &mut state.1)
        };
        let (elapsed, states) = team::time(threads, repeats, prepare, work);
        let is_sum = |generation: usize, block: &Block| match &block.vector {
            Vector::Explicit(row) => {
                block.payload == oracle::combine(row, coded.load.source(generation), k)
            }
            _ => false,
        };
        let is_right = |(index, state): (usize, &(Decoder, SmallRng, Vec<Block>))| {
            state.2.len() == n
                && state
                    .2
                    .iter()
                    .take(RECODED_CHECKED)
                    .all(|block| is_sum(index % coded.load.distinct(), block))
        };
        (
            elapsed,
            if repeats == 1 {
                states.iter().enumerate().all(is_right)
            } else {
                true
            },
        )
    };
    let is_right = run(1).1;
    is_right.then(|| Box::new(move |repeats| run(repeats).0) as Run)
}

const RECODED_CHECKED: usize = 3;
/// Fill byte of outputs before they are made: zeros would be pages that the system allocates inside
/// the timer.
pub(super) const UNTOUCHED: u8 = 0xEE;
