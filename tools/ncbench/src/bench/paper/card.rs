//! The GPU's cases of the thesis and of the talk, on the blocks and chunks of the CPU's contenders.
//!
//! A contender's name may end in a shape: `rs-zero 16x16` has tiles of 16 rows and 16 columns,
//! `thesis 256x1` work-groups of 256 columns and one row.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{iter, thread};

use crate::lab::{Chunks, Elimination, Group, Lab, Product, Replay, ReplayJob};
use ncs_codec::raptorq::{DecodingPlan, Plan};
use ncs_gf::Kernels;
use ncserverd::device;

use super::blocks::{Block, Blocks};
use super::catalogue::{Case, Kind};
use super::energy::{self, Meter};
use super::fountain::Factors;
use super::gpu::rounds_of;
use super::load::invertible;
use super::measure::{Family, Measure};
use super::stripes::ChunkProduct;
use super::{Error, Outcome, Sample, Settings, dense, gfq, work_items};

/// Checks bytes and measures, or says why not.
pub(super) fn measure(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    if case.measure.is_of_systems() {
        return dense::measure(lab, case, settings);
    }
    match case.measure.family() {
        _ if case.measure == Measure::WorkItems => work_items::by_gpu(lab, case, settings),
        Family::Chunks => chunks(lab, case, settings),
        Family::Gfq => gfq::measure(lab, case, settings),
        Family::Symbols => symbols(lab, case, settings),
        _ => match case.measure {
            Measure::Product | Measure::ProductThrough => product(lab, case, settings),
            _ => elimination(lab, case, settings),
        },
    }
}

fn wrong(case: &Case) -> Error {
    Error::Wrong {
        case: format!("{} {}", case.series, case.panel),
    }
}

/// A contender's name and its shape.
fn name_and_shape(kernel: &str) -> (&str, Option<(u32, u32)>) {
    let Some((name, shape)) = kernel.split_once(' ') else {
        return (kernel, None);
    };
    let numbers = shape
        .split_once('x')
        .and_then(|(first, second)| Some((first.parse().ok()?, second.parse().ok()?)));
    (name, Some(numbers.expect("a shape such as 16x16")))
}

fn chunks(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let (kernel, tile) = name_and_shape(case.kernel);
    if !lab.has(kernel, case.n) {
        return Ok(Outcome::skipped(format!("no kernel {kernel} here")));
    }
    let job = ChunkProduct::new(case).ok_or_else(|| wrong(case))?;
    let bytes = usize::try_from(case.k).expect("a chunk fits in memory");
    let n = u8::try_from(case.n).expect("codes have 256 chunks at most");
    if !bytes.is_multiple_of(16) {
        return Ok(Outcome::skipped(
            "chunks of whole words of 16 bytes alone".into(),
        ));
    }
    let gpus = u16::try_from(case.gpus).expect("few GPUs");
    let plan = Chunks {
        kernel,
        n,
        matrix: &job.rows,
        bytes,
        sources: &job.sources,
        tile,
        gpus,
    };
    let mut work = match lab.chunks(&plan) {
        Err(device::Error::Unavailable(reason)) => return Ok(Outcome::skipped(reason)),
        work => work?,
    };
    let streams = case.generations;
    // Every stream of every GPU has something to do.
    let share = bytes
        .div_ceil(streams as usize * case.gpus)
        .next_multiple_of(16);
    let piece = PIECE.min(share);
    work.poison()?;
    let (is_through, is_copied) = match case.measure {
        Measure::Chunks | Measure::Rebuild => (false, false),
        Measure::ChunksCopy => (false, true),
        Measure::ChunksThrough | Measure::RebuildThrough => (true, false),
        _ => (true, true),
    };
    if !is_copied {
        if is_through {
            work.through(streams, piece, false)?;
            work.poison()?;
            work.through(streams, piece, true)?;
        } else {
            work.time(1)?;
        }
        let read = |row: usize, at: usize, made: &mut [u8]| work.read(row, at, is_through, made);
        check(read, &job, bytes, piece).ok_or_else(|| wrong(case))?;
    }
    let (times, repeats) = rounds_of(settings.short_pace(), |repeats| {
        match (is_through, is_copied) {
            (false, false) => work.time(repeats),
            (false, true) => work.time_copy(repeats),
            (true, _) => (0..repeats)
                .map(|_| work.through(streams, piece, !is_copied))
                .sum(),
        }
    });
    Ok(Outcome::of(Sample::of_times(
        case,
        times,
        repeats,
        case.bytes(),
    )))
}

/// Compares code chunks, at the start of a piece and at the end of the chunk, with those of the
/// CPU's kernels, which have been compared with the definition. `read` takes a code chunk and an
/// offset in it, and fills in the bytes that were made.
pub(super) fn check(
    mut read: impl FnMut(usize, usize, &mut [u8]) -> Result<(), device::Error>,
    job: &ChunkProduct,
    bytes: usize,
    piece: usize,
) -> Option<()> {
    let mut made = vec![0; CHECKED.min(bytes)];
    let last = bytes - made.len();
    for (row, expected) in job.expected.chunks_exact(bytes).enumerate() {
        for at in [0, piece.saturating_sub(CHECKED / 2).min(last), last] {
            read(row, at, &mut made).ok()?;
            if made != expected[at..][..made.len()] {
                return None;
            }
        }
    }
    Some(())
}

fn symbols(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let meter = match case
        .measure
        .is_of_energy()
        .then(|| energy::Card::of(lab))
        .transpose()
    {
        Ok(meter) => meter,
        Err(reason) => return Ok(Outcome::skipped(reason)),
    };
    let blocks = Blocks::new(case);
    let (k, count) = (
        blocks.parameters.k,
        usize::try_from(case.generations).expect("a count"),
    );
    let plan_of = |block: &Block| DecodingPlan::new(k, &block.esis).expect("symbols that suffice");
    let plans: Vec<DecodingPlan> = blocks.blocks.iter().map(plan_of).collect();
    let replays: Vec<&Plan> = plans.iter().map(DecodingPlan::plan).collect();
    let symbols: Vec<u8> = blocks
        .blocks
        .iter()
        .flat_map(|block| &block.symbols)
        .copied()
        .collect();
    let replay = Replay {
        plans: &replays,
        blocks: count,
        symbol_bytes: blocks.symbol_bytes,
        symbols: &symbols,
    };
    let mut work = lab.replay(&replay)?;
    let is_through = case.measure != Measure::Replay;
    let piece = count.div_ceil(PIECES);
    work.poison()?;
    if is_through {
        work.through(piece, true)?;
    } else {
        work.time(1)?;
    }
    let mut made = vec![0; plans[0].missing().len() * blocks.symbol_bytes];
    for index in 0..count {
        work.read(index, is_through, &mut made)?;
        if !blocks.are_missing(&blocks.blocks[index % blocks.blocks.len()], &made) {
            return Err(wrong(case));
        }
    }
    if let Some(meter) = meter {
        let mut through = || {
            work.through(piece, true)
                .expect("it has done the same before");
        };
        return Ok(Outcome::of_energy(
            case,
            case.generations,
            meter.measure(&mut through, settings.lasting()),
        ));
    }
    let (times, repeats) = match case.measure {
        Measure::Replay => rounds_of(settings.short_pace(), |repeats| work.time(repeats)),
        Measure::ReplayThrough => rounds_of(settings.short_pace(), |repeats| {
            (0..repeats).map(|_| work.through(piece, true)).sum()
        }),
        _ => rounds_of(settings.short_pace(), |repeats| {
            let bytes_of = |index: usize| {
                plan_of(&blocks.blocks[index % blocks.blocks.len()])
                    .plan()
                    .bytes()
            };
            (0..repeats)
                .map(|_| planned(&mut work, count, piece, case.threads, &bytes_of))
                .sum()
        }),
    };
    let times = times
        .into_iter()
        .map(|time| time / case.generations)
        .collect();
    Ok(Outcome::of(Sample::of_times(
        case,
        times,
        repeats,
        case.bytes(),
    )))
}

/// The host's time until the outputs of so many source blocks are ready, with a plan for each:
/// blocks may have different losses.
fn planned(
    work: &mut ReplayJob<'_>,
    count: usize,
    piece: usize,
    threads: usize,
    bytes_of: &(impl Fn(usize) -> Vec<u8> + Sync),
) -> Result<Duration, device::Error> {
    let (next, (done, plans)) = (AtomicUsize::new(0), mpsc::channel());
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..threads {
            let (next, done) = (&next, done.clone());
            scope.spawn(move || {
                let taken = iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed))
                    .take_while(|&index| index < count);
                // Nobody receives any more when the card has failed.
                taken
                    .map(|index| done.send((index, bytes_of(index))))
                    .take_while(Result::is_ok)
                    .for_each(drop);
            });
        }
        let mut made = vec![None; count];
        work.planned(piece, &mut |wanted| {
            while made[wanted.clone()].iter().any(Option::is_none) {
                let (index, plan) = plans
                    .recv()
                    .expect("threads make the plans of all source blocks");
                made[index] = Some(plan);
            }
            made[wanted]
                .iter_mut()
                .map(|plan| plan.take().expect("looked at a line ago"))
                .collect()
        })
    })?;
    Ok(start.elapsed())
}

fn product(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let factors = Factors::new(case);
    let mut best: Option<Sample> = None;
    for group in groups(case.kernel) {
        let plan = Product {
            rows: case.rows,
            a: &factors.left,
            columns: case.k,
            b: &factors.right,
            group,
        };
        let mut work = lab.product(&plan)?;
        let is_through = case.measure == Measure::ProductThrough;
        work.poison()?;
        if is_through {
            work.through()?
        } else {
            work.time(1)?
        };
        if !factors.is_right(&work.read()?) {
            return Err(wrong(case));
        }
        let (times, repeats) = rounds_of(settings.short_pace(), |repeats| {
            if is_through {
                (0..repeats).map(|_| work.through()).sum()
            } else {
                work.time(repeats)
            }
        });
        best = faster(best, Sample::of_times(case, times, repeats, case.bytes()));
    }
    Ok(Outcome::of(best.expect("one shape at least")))
}

fn elimination(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let (matrix, inverse) = invertible(case.n.into(), 0, Kind::Dense, Kernels::detect());
    let mut best: Option<Sample> = None;
    for group in groups(case.kernel) {
        let mut work = lab.elimination(&Elimination {
            order: case.n.into(),
            matrix: &matrix,
            group,
        })?;
        let start = Instant::now();
        work.run()?;
        if work.inverse() != Some(&inverse) {
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
        best = faster(best, Sample::of_times(case, times, repeats, case.bytes()));
    }
    Ok(Outcome::of(best.expect("one shape at least")))
}

/// The shape that a contender names, as columns x rows, or all there are to choose from.
fn groups(kernel: &str) -> Vec<Group> {
    let (_, shape) = name_and_shape(kernel);
    shape.map_or_else(
        || GROUPS.to_vec(),
        |(width, height)| vec![Group { width, height }],
    )
}

/// The one that took less time.
fn faster(best: Option<Sample>, other: Sample) -> Option<Sample> {
    Some(
        best.filter(|best| best.value <= other.value)
            .unwrap_or(other),
    )
}

/// Of chunks, on the way through the card.
const PIECE: usize = 8 << 20;
/// Of many blocks.
const PIECES: usize = 16;
/// Bytes that are looked at in each place of a chunk.
const CHECKED: usize = 4096;
/// Work-groups to choose from where none is named.
const GROUPS: [Group; 6] = [
    Group {
        width: 16,
        height: 16,
    },
    Group {
        width: 32,
        height: 8,
    },
    Group {
        width: 64,
        height: 4,
    },
    Group {
        width: 256,
        height: 1,
    },
    Group {
        width: 32,
        height: 32,
    },
    Group {
        width: 1024,
        height: 1,
    },
];
