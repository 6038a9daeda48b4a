//! The CPU's cases of the thesis: its schemes as it writes them, and ours, on one core and on all,
//! with one block and with many in flight.
//!
//! Each takes [`Blocks`] and the name of a contender. A GPU takes part as another contender on the
//! same blocks.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ncs_codec::raptorq::{
    self, Decoder, DecodingPlan, Encoder, EncodingPlan, Inverse, Method, Parameters,
};
use ncs_gf::dense::{Algebra, Cores};
use ncs_gf::{Isa, Kernels};
use ncserverd::bench::oracle;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Run;
use super::blocks::{Block, Blocks, generator};
use super::catalogue::{Case, Kind};
use super::cpu::{UNTOUCHED, part};
use super::load::{SEED, invertible};
use super::measure::Measure;
use super::thesis::{self, First, FirstBoard, Grid, PrecodeBoard, Second, SecondBoard};
use crate::bench::team::{self, Member};

/// Whether a contender inverts dense matrices, for which K has a limit.
pub(super) fn is_dense(contender: &str) -> bool {
    !contender.starts_with("inactivation")
}

/// Products of two bytes that the thesis' own code makes, one by one, per repetition (for blocks:
/// per block); zero for all others.
pub(super) fn slow_products(case: &Case) -> u64 {
    let [n, t, lost] = [case.n.into(), case.k, case.rows].map(u64::from);
    match (case.measure, case.kernel) {
        (Measure::CpuGaussJordan, _) => 2 * n.pow(3),
        (Measure::CpuProduct, "thesis") => lost * n * t,
        (_, "thesis" | "thesis-1" | "thesis-2") => {
            let Ok(of) = Parameters::new(case.n.into()) else {
                return 0;
            };
            let [l, k, coded, h] = [of.l, of.k_prime, of.k_prime + of.s, of.h].map(u64::from);
            match case.kernel {
                "thesis" => h * coded * coded,
                "thesis-1" => 2 * l.pow(3) + l * l * t + lost * l * t,
                _ => lost * l * k + lost * k * t + 2 * lost.pow(3) + lost * lost * t,
            }
        }
        _ => 0,
    }
}

/// Blocks per repetition. A block takes the thesis' code up to minutes and our first scheme
/// seconds, and all blocks take about the same: few are enough.
pub(super) fn in_flight(case: &Case) -> u32 {
    let products = slow_products(case).max(inverted_products(case) / TIMES_AS_FAST);
    let fit = SLOW_PRODUCTS
        .checked_div(products)
        .map_or(u32::MAX, |fit| u32::try_from(fit).unwrap_or(u32::MAX));
    case.generations
        .min(fit.max(u32::try_from(case.threads).expect("fewer threads than that")))
}

/// Decodes and checks every block; `None` if one is wrong. The time is that of a block.
pub(super) fn decode(case: &Case) -> Option<Run> {
    let blocks = Blocks::new(case);
    let count = usize::try_from(in_flight(case)).expect("a count");
    let kernels = if case.kernel.ends_with("-scalar") {
        Kernels::new(Isa::Scalar)?
    } else {
        Kernels::detect()
    };
    let is_together = case.generations == 1 && case.threads > 1;
    match case.kernel {
        "thesis-1" => thesis_first(blocks, case.threads, count),
        "thesis-2" => thesis_second(blocks, case.threads, count),
        "inactivation" if is_together => replay_together(blocks, kernels, case.threads),
        name => {
            let method = match name {
                "scheme-1" => Method::Inversion,
                "scheme-2" | "scheme-2-scalar" => {
                    Method::Reduction(Arc::new(Inverse::new(blocks.parameters.k, kernels).ok()?))
                }
                _ => Method::Inactivation,
            };
            // All threads on one block, or each with blocks of its own.
            let (teams, threads) = if is_together {
                (1, case.threads)
            } else {
                (case.threads, 1)
            };
            let cores = Cores::new(kernels, NonZeroUsize::new(threads)?);
            each(blocks, &method, kernels, cores, teams, count)
        }
    }
}

/// Products of two bytes that inverting the first scheme's matrix takes; zero for all others.
fn inverted_products(case: &Case) -> u64 {
    let order = Parameters::new(case.n.into()).map_or(0, |of| u64::from(of.l));
    if case.kernel == "scheme-1" {
        order.pow(3)
    } else {
        0
    }
}

/// Of a run, if its first repetition was right: the time of one of `count` blocks.
fn checked(count: usize, mut run: impl FnMut(u32) -> (Duration, bool) + 'static) -> Option<Run> {
    let count = u32::try_from(count).expect("few blocks");
    run(1)
        .1
        .then(|| Box::new(move |repeats| run(repeats).0 / count) as Run)
}

/// Our decoders, each thread with every T-th block.
fn each(
    blocks: Blocks,
    method: &Method,
    kernels: Kernels,
    cores: Cores,
    threads: usize,
    count: usize,
) -> Option<Run> {
    let (method, algebra) = (method.clone(), Arc::new(cores));
    let decode = move |blocks: &Blocks, block: &Block| {
        decode_one(blocks, block, &method, kernels, Arc::clone(&algebra) as _)
            .expect("symbols that suffice")
    };
    if blocks
        .blocks
        .iter()
        .any(|block| decode(&blocks, block) != block.source)
    {
        return None;
    }
    checked(count, move |repeats| {
        let block = |index: usize| &blocks.blocks[index % blocks.blocks.len()];
        let work = |last: &mut Option<(usize, Vec<u8>)>, member: &Member<'_>, _| {
            for index in (member.index..count).step_by(member.threads) {
                *last = Some((index, black_box(decode(&blocks, block(index)))));
            }
        };
        let (elapsed, last) = team::time(threads, repeats, |_| None, work);
        (
            elapsed,
            last.iter()
                .flatten()
                .all(|(index, bytes)| *bytes == block(*index).source),
        )
    })
}

/// A block by our decoder, whose dense matrices `algebra` inverts and multiplies.
pub(super) fn decode_one(
    blocks: &Blocks,
    block: &Block,
    method: &Method,
    kernels: Kernels,
    algebra: Arc<dyn Algebra>,
) -> Result<Vec<u8>, raptorq::Error> {
    let (k, t) = (blocks.parameters.k, blocks.symbol_bytes);
    let mut decoder = Decoder::new(k, t, method.clone(), kernels)?.with_algebra(algebra);
    push(&mut decoder, block, t, 0..t);
    decoder.decode()
}

/// Gives a decoder these bytes of all symbols.
fn push(decoder: &mut Decoder, block: &Block, symbol_bytes: usize, bytes: Range<usize>) {
    for (&esi, symbol) in block
        .esis
        .iter()
        .zip(block.symbols.chunks_exact(symbol_bytes))
    {
        decoder
            .push(esi, &symbol[bytes.clone()])
            .expect("a symbol of this block");
    }
}

fn thesis_first(blocks: Blocks, threads: usize, count: usize) -> Option<Run> {
    let jobs: Vec<First> = blocks
        .blocks
        .iter()
        .map(|block| blocks.first(block))
        .collect();
    let work = |job: &First, board: &FirstBoard, member: &Member<'_>| {
        assert!(job.run(board, member), "symbols that suffice")
    };
    thesis_each(
        blocks,
        jobs,
        FirstBoard::new,
        work,
        |board| &board.made,
        threads,
        count,
    )
}

fn thesis_second(blocks: Blocks, threads: usize, count: usize) -> Option<Run> {
    let stored = blocks.stored(Kernels::detect());
    let jobs: Vec<Second> = blocks
        .blocks
        .iter()
        .map(|block| blocks.second(block))
        .collect();
    let work = move |job: &Second, board: &SecondBoard, member: &Member<'_>| {
        assert!(job.run(&stored, board, member), "symbols that suffice");
    };
    thesis_each(
        blocks,
        jobs,
        SecondBoard::new,
        work,
        |board| &board.made,
        threads,
        count,
    )
}

/// The thesis' code: all threads on one block, or each thread with every T-th of many.
fn thesis_each<J: Sync + 'static, B: Send + Sync + 'static>(
    blocks: Blocks,
    jobs: Vec<J>,
    board: impl Fn(&J) -> B + Sync + 'static,
    work: impl Fn(&J, &B, &Member<'_>) + Sync + 'static,
    made: impl Fn(&B) -> &Grid + 'static,
    threads: usize,
    count: usize,
) -> Option<Run> {
    let shared = board(&jobs[0]);
    let is_right = |(job, block): (&J, &Block)| {
        work(job, &shared, &Member::ALONE);
        blocks.are_missing(block, &made(&shared).bytes())
    };
    if !jobs.iter().zip(&blocks.blocks).take(count).all(is_right) {
        return None;
    }
    checked(count, move |repeats| {
        if count == 1 {
            let (elapsed, _) = team::time(
                threads,
                repeats,
                |_| (),
                |(), member, _| work(&jobs[0], &shared, member),
            );
            return (
                elapsed,
                blocks.are_missing(&blocks.blocks[0], &made(&shared).bytes()),
            );
        }
        let of_member = |own: &mut (usize, B), member: &Member<'_>, _| {
            for index in (member.index..count).step_by(member.threads) {
                own.0 = index % jobs.len();
                work(&jobs[own.0], &own.1, &Member::ALONE);
            }
        };
        let (elapsed, last) = team::time(
            threads,
            repeats,
            |index| (index % jobs.len(), board(&jobs[index % jobs.len()])),
            of_member,
        );
        let is_right = |(index, board): &(usize, B)| {
            blocks.are_missing(&blocks.blocks[*index], &made(board).bytes())
        };
        (elapsed, last.iter().take(count).all(is_right))
    })
}

/// Rows times sources into outs that lie one behind the other.
fn combine<'a>(
    kernels: Kernels,
    rows: impl Iterator<Item = &'a [u8]>,
    sources: &[&[u8]],
    outs: &mut [u8],
    bytes: usize,
) {
    if sources.is_empty() {
        return outs.fill(0);
    }
    kernels.combine_scattered(
        &rows.collect::<Vec<_>>(),
        sources,
        &mut outs.chunks_exact_mut(bytes).collect::<Vec<_>>(),
    );
}

/// Our default by all threads on one block: one makes the plan, then each replays it on its part of
/// every symbol's bytes.
fn replay_together(blocks: Blocks, kernels: Kernels, threads: usize) -> Option<Run> {
    checked(1, move |repeats| {
        let (k, t, block) = (blocks.parameters.k, blocks.symbol_bytes, &blocks.blocks[0]);
        let plans: Vec<OnceLock<DecodingPlan>> = (0..repeats).map(|_| OnceLock::new()).collect();
        let work = |out: &mut Vec<u8>, member: &Member<'_>, repeat: u32| {
            let (bytes, plan) = (part(t, threads, member.index, 64), &plans[repeat as usize]);
            if member.index == 0 {
                plan.get_or_init(|| {
                    DecodingPlan::new(k, &block.esis).expect("symbols that suffice")
                });
            }
            let decoder = (!bytes.is_empty()).then(|| {
                let mut decoder = Decoder::new(k, bytes.len(), Method::Inactivation, kernels)
                    .expect("a K of RaptorQ");
                push(&mut decoder, block, t, bytes);
                decoder
            });
            member.wait();
            if let Some(decoder) = decoder {
                *out = decoder
                    .decode_by(plan.get().expect("made before"))
                    .expect("a plan for these symbols");
            }
        };
        let (elapsed, outs) = team::time(threads, repeats, |_| Vec::new(), work);
        let is_right = |(index, out): (usize, &Vec<u8>)| {
            let bytes = part(t, threads, index, 64);
            out.iter().eq(block
                .source
                .chunks_exact(t)
                .flat_map(|symbol| &symbol[bytes.clone()]))
        };
        (elapsed, outs.iter().enumerate().all(is_right))
    })
}

/// Makes all intermediate symbols and the case's repair symbols, from a plan or a matrix that is
/// kept for the K'.
pub(super) fn encode(case: &Case) -> Option<Run> {
    let (blocks, kernels) = (Blocks::new(case), Kernels::detect());
    let (of, t) = (blocks.parameters, blocks.symbol_bytes);
    let stored = Inverse::new(of.k, kernels).ok()?;
    let dense = move |source: &[u8], repair: &[u32]| {
        let (width, sources) = (
            of.k_prime as usize,
            source.chunks_exact(t).collect::<Vec<_>>(),
        );
        let mut intermediate = vec![0; of.l as usize * t];
        combine(
            kernels,
            stored.rows().chunks_exact(width),
            &sources,
            &mut intermediate,
            t,
        );
        let mut symbols = vec![0; repair.len() * t];
        let mut columns = Vec::with_capacity(32);
        for (symbol, &esi) in symbols.chunks_exact_mut(t).zip(repair) {
            columns.clear();
            of.columns(of.isi(esi), &mut columns);
            columns
                .iter()
                .for_each(|&column| kernels.add(symbol, &intermediate[column as usize * t..][..t]));
        }
        symbols
    };
    let plan = EncodingPlan::new(of.k).ok()?;
    let planned = move |source: &[u8], repair: &[u32]| {
        let encoder = Encoder::new(source.to_vec(), t, &plan, kernels).expect("whole symbols");
        let mut symbols = vec![0; repair.len() * t];
        let all = symbols.chunks_exact_mut(t).zip(repair);
        all.for_each(|(symbol, &esi)| encoder.symbol(esi, symbol).expect("a valid id"));
        symbols
    };
    let is_planned = case.kernel == "plan";
    let block = &blocks.blocks[0];
    let repair: Vec<u32> = block.repair().collect();
    // The two have nothing in common but the tuples.
    let is_right = dense(&block.source, &repair) == planned(&block.source, &repair);
    let run = move |repeats: u32| {
        let source = &blocks.blocks[0].source;
        let start = Instant::now();
        for _ in 0..repeats {
            black_box(if is_planned {
                planned(source, &repair)
            } else {
                dense(source, &repair)
            });
        }
        start.elapsed()
    };
    is_right.then(|| Box::new(run) as Run)
}

/// The thesis' Gauss-Jordan, and ours beside it is the inversion of the other papers' rows.
pub(super) fn gauss_jordan(case: &Case) -> Option<Run> {
    let (n, threads) = (usize::from(case.n), case.threads);
    let (matrix, expected) = invertible(n, 0, Kind::Dense, Kernels::detect());
    let inverse = Grid::zeros(n, n);
    let run = move |repeats: u32| {
        let mut elapsed = Duration::ZERO;
        for _ in 0..repeats {
            let fresh = Grid::of(&matrix, n);
            let invert = |is_regular: &mut bool, member: &Member<'_>, _| {
                *is_regular = thesis::invert(&fresh, &inverse, member)
            };
            elapsed += team::time(threads, 1, |_| false, invert).0;
        }
        (elapsed, inverse.bytes() == expected)
    };
    run(1)
        .1
        .then(|| Box::new(move |repeats| run(repeats).0) as Run)
}

/// R rows of K elements, K symbols of T bytes, and what some rows of their product are.
pub(super) struct Factors {
    pub(super) left: Vec<u8>,
    pub(super) right: Vec<u8>,
    wanted: [(usize, Vec<u8>); 3],
}

impl Factors {
    pub(super) fn new(case: &Case) -> Self {
        let (inner, bytes, rows) = Self::shape(case);
        let (mut left, mut right) = (vec![0; rows * inner], vec![0; inner * bytes]);
        let mut rng = SmallRng::seed_from_u64(SEED);
        [&mut left, &mut right]
            .into_iter()
            .for_each(|side| rng.fill_bytes(side));
        let wanted = [0, rows / 2, rows - 1].map(|row| {
            (
                row,
                oracle::combine(&left[row * inner..][..inner], &right, bytes),
            )
        });
        Self {
            left,
            right,
            wanted,
        }
    }

    /// K, T and R.
    fn shape(case: &Case) -> (usize, usize, usize) {
        let size = |size: u32| usize::try_from(size).expect("it fits in memory");
        (case.n.into(), size(case.k), size(case.rows))
    }

    /// Whether this is their product, as far as it is looked at.
    pub(super) fn is_right(&self, made: &[u8]) -> bool {
        self.wanted
            .iter()
            .all(|(row, expected)| made[row * expected.len()..][..expected.len()] == *expected)
    }
}

/// The multiplication that the second scheme is made of.
pub(super) fn product(case: &Case) -> Option<Run> {
    let (inner, bytes, rows) = Factors::shape(case);
    let factors = Factors::new(case);
    let threads = case.threads;
    if case.kernel == "thesis" {
        let (a, b, c) = (
            Grid::of(&factors.left, inner),
            Grid::of(&factors.right, bytes),
            Grid::zeros(rows, bytes),
        );
        return checked(1, move |repeats| {
            let (elapsed, _) = team::time(
                threads,
                repeats,
                |_| (),
                |(), member, _| thesis::multiply(&a, &b, &c, member),
            );
            (elapsed, factors.is_right(&c.bytes()))
        });
    }
    let kernels = Kernels::detect();
    checked(1, move |repeats| {
        let sources: Vec<&[u8]> = factors.right.chunks_exact(bytes).collect();
        let mine = |index| part(rows, threads, index, 1);
        let work = |out: &mut Vec<u8>, member: &Member<'_>, _| {
            combine(
                kernels,
                factors
                    .left
                    .chunks_exact(inner)
                    .take(mine(member.index).end)
                    .skip(mine(member.index).start),
                &sources,
                out,
                bytes,
            );
        };
        let (elapsed, outs) = team::time(
            threads,
            repeats,
            |index| vec![UNTOUCHED; mine(index).len() * bytes],
            work,
        );
        (elapsed, factors.is_right(&outs.concat()))
    })
}

/// The precode matrix as the thesis makes it and as we do, and what we keep for a K' in its place.
pub(super) fn precode(case: &Case) -> Option<Run> {
    let of = Parameters::new(case.n.into()).ok()?;
    let ours = move || {
        let mut matrix = raptorq::precode(&of);
        matrix.extend(generator(&of, 0..of.k_prime));
        matrix
    };
    let (kernels, threads) = (Kernels::detect(), case.threads);
    let timed = |work: Box<dyn Fn()>| {
        let run = move |repeats: u32| {
            let start = Instant::now();
            (0..repeats).for_each(|_| work());
            start.elapsed()
        };
        Some(Box::new(run) as Run)
    };
    match case.kernel {
        "thesis" => {
            let board = PrecodeBoard::new(&of);
            checked(1, move |repeats| {
                let (elapsed, _) = team::time(
                    threads,
                    repeats,
                    |_| (),
                    |(), member, _| thesis::precode(&of, &board, member),
                );
                (elapsed, board.matrix.bytes() == ours())
            })
        }
        "plan" => timed(Box::new(move || drop(black_box(EncodingPlan::new(of.k))))),
        "inverse" => {
            let stored = Inverse::new(of.k, kernels).ok()?;
            let is_right = is_inverse(&of, stored.rows());
            is_right.then(|| {
                timed(Box::new(move || {
                    drop(black_box(Inverse::new(of.k, kernels)))
                }))
            })?
        }
        _ => timed(Box::new(move || drop(black_box(ours())))),
    }
}

/// Whether source symbols are themselves again when the intermediate symbols are made of them.
fn is_inverse(of: &Parameters, rows: &[u8]) -> bool {
    let (width, mut columns) = (of.k_prime as usize, Vec::new());
    (0..of.k_prime).all(|source| {
        columns.clear();
        of.columns(source, &mut columns);
        let at = |place: usize| {
            columns.iter().fold(0, |sum, &column| {
                sum ^ rows[column as usize * width + place]
            })
        };
        (0..width).all(|place| at(place) == u8::from(place == source as usize))
    })
}

/// Products of the thesis' code after which no more blocks are taken: less than a second of a core.
const SLOW_PRODUCTS: u64 = 1 << 28;
/// By how much more of them our inversion makes in that time.
const TIMES_AS_FAST: u64 = 64;
