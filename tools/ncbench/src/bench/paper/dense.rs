//! The thesis' two schemes on a GPU: dense systems solved in its memory and through it, and our
//! decoder with the card for its dense matrices.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lab::{Before, Lab, Systems};
use ncs_codec::raptorq::{self, Inverse, Method, Parameters};
use ncs_gf::Kernels;
use ncs_gf::dense::{Algebra, Cores, System};
use ncserverd::device;

use super::blocks::{Block, Blocks, generator};
use super::catalogue::{Case, Kind};
use super::gpu::rounds_of;
use super::load::invertible;
use super::measure::Measure;
use super::{Error, Outcome, Sample, Settings, fountain};

/// Checks bytes and measures, or says why not.
pub(super) fn measure(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    match case.measure {
        Measure::SystemsWhole => whole(lab, case, settings),
        Measure::InvertWide => invert(lab, case, settings),
        Measure::Crossover => crossover(lab, case),
        _ => systems(lab, case, settings),
    }
}

fn wrong(case: &Case) -> Error {
    Error::Wrong {
        case: format!("{} {}", case.series, case.panel),
    }
}

/// A block's system, as our decoders make it of the symbols that came.
struct DenseSystem {
    order: usize,
    matrix: Vec<u8>,
    sums: Vec<Vec<u32>>,
    /// Of each row of the matrix, which of the symbols that came belongs to it.
    places: Vec<Option<usize>>,
    /// Rows that take what is known from the symbols, for the second scheme.
    rows: Vec<u8>,
}

impl DenseSystem {
    /// The first scheme: all of the constraint matrix.
    fn first(of: &Parameters, block: &Block) -> Self {
        let (order, zeros) = (of.l as usize, (of.s + of.h) as usize);
        let mut matrix = raptorq::precode(of);
        let isis = block
            .esis
            .iter()
            .map(|&esi| of.isi(esi))
            .chain(of.k..of.k_prime);
        matrix.extend(generator(of, isis));
        let places = (0..order)
            .map(|row| {
                row.checked_sub(zeros)
                    .filter(|&place| place < block.esis.len())
            })
            .collect();
        let sums = block
            .missing
            .iter()
            .map(|&source| columns(of, source))
            .collect();
        Self {
            order,
            matrix,
            sums,
            places,
            rows: Vec::new(),
        }
    }

    /// The second scheme: what is missing in the repair symbols.
    fn second(of: &Parameters, block: &Block, stored: &Inverse, kernels: Kernels) -> Self {
        let (order, width, mut rows) = (block.missing.len(), of.k_prime as usize, Vec::new());
        for esi in block.repair() {
            let mut row = vec![0; width];
            columns(of, of.isi(esi)).into_iter().for_each(|column| {
                kernels.add(&mut row, &stored.rows()[column as usize * width..][..width])
            });
            rows.extend(row);
        }
        let of_missing = |row: &[u8]| {
            block
                .missing
                .iter()
                .map(|&source| row[source as usize])
                .collect::<Vec<u8>>()
        };
        let matrix = rows.chunks_exact(width).flat_map(of_missing).collect();
        let places = (block.known()..block.esis.len()).map(Some).collect();
        Self {
            order,
            matrix,
            sums: (0..).take(order).map(|row| vec![row]).collect(),
            places,
            rows,
        }
    }

    /// Those that belong to the rows of the matrix.
    fn symbols<'a>(&self, block: &'a Block, bytes: usize) -> Vec<Option<&'a [u8]>> {
        self.places
            .iter()
            .map(|place| place.map(|place| &block.symbols[place * bytes..][..bytes]))
            .collect()
    }
}

/// The source symbols that came, in the places of all K'.
fn known<'a>(of: &Parameters, block: &'a Block, bytes: usize) -> Vec<Option<&'a [u8]>> {
    let mut known = vec![None; of.k_prime as usize];
    for (&source, symbol) in block.esis[..block.known()]
        .iter()
        .zip(block.symbols.chunks_exact(bytes))
    {
        known[source as usize] = Some(symbol);
    }
    known
}

fn columns(of: &Parameters, isi: u32) -> Vec<u32> {
    let mut columns = Vec::with_capacity(32);
    of.columns(isi, &mut columns);
    columns
}

fn systems(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let (blocks, kernels) = (Blocks::new(case), Kernels::detect());
    let (of, t) = (&blocks.parameters, blocks.symbol_bytes);
    let jobs: Vec<DenseSystem> = match case.kernel {
        "scheme-1" => blocks
            .blocks
            .iter()
            .map(|block| DenseSystem::first(of, block))
            .collect(),
        _ => {
            let stored = Inverse::new(of.k, kernels).map_err(|_| wrong(case))?;
            blocks
                .blocks
                .iter()
                .map(|block| DenseSystem::second(of, block, &stored, kernels))
                .collect()
        }
    };
    let symbols: Vec<Vec<Option<&[u8]>>> = jobs
        .iter()
        .zip(&blocks.blocks)
        .map(|(job, block)| job.symbols(block, t))
        .collect();
    let known: Vec<Vec<Option<&[u8]>>> = blocks
        .blocks
        .iter()
        .map(|block| known(of, block, t))
        .collect();
    let systems: Vec<System<'_>> = jobs
        .iter()
        .zip(&symbols)
        .map(|(job, symbols)| System {
            order: job.order,
            matrix: &job.matrix,
            sums: &job.sums,
            symbols,
        })
        .collect();
    let before: Vec<Before<'_>> = match case.kernel {
        "scheme-1" => Vec::new(),
        _ => jobs
            .iter()
            .zip(&known)
            .map(|(job, known)| Before {
                rows: &job.rows,
                known,
            })
            .collect(),
    };
    let is_through = case.measure == Measure::SystemsThrough;
    let count = fitting(
        case,
        jobs[0].order,
        if is_through {
            PINNED_BYTES
        } else {
            RESIDENT_BYTES
        },
    );
    let mut work = match lab.systems(&Systems {
        systems: &systems,
        before: &before,
        count,
        symbol_bytes: t,
    }) {
        Err(device::Error::Memory { bytes }) => {
            return Ok(Outcome::skipped(format!("no {bytes} bytes on the card")));
        }
        work => work?,
    };
    work.poison()?;
    if is_through {
        work.through()?;
        work.poison()?;
        work.through()?;
    } else {
        work.time(false, 1)?;
    }
    let mut made = vec![0; case.rows as usize * t];
    for index in 0..count {
        work.read(index, is_through, &mut made)?;
        if !blocks.are_missing(&blocks.blocks[index % blocks.blocks.len()], &made) {
            return Err(wrong(case));
        }
    }
    let (times, repeats) = rounds_of(settings.short_pace(), |repeats| {
        if is_through {
            (0..repeats).map(|_| work.through()).sum()
        } else {
            work.time(false, repeats)
        }
    });
    let count = u32::try_from(count).expect("a count");
    let times = times.into_iter().map(|time| time / count).collect();
    Ok(Outcome::of(Sample::of_times(
        case,
        times,
        repeats,
        case.bytes(),
    )))
}

/// As many of the case's blocks as have matrices of so many bytes together, one at least.
fn fitting(case: &Case, order: usize, bytes: usize) -> usize {
    let count = usize::try_from(case.generations).expect("a count");
    count.min(bytes / (order * order)).max(1)
}

/// Our decoder, whose dense matrices the card inverts and multiplies.
fn whole(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let (blocks, kernels) = (Blocks::new(case), Kernels::detect());
    let algebra: Arc<dyn Algebra> = lab.algebra()?.into();
    let method = match case.kernel {
        "scheme-1" => Method::Inversion,
        _ => Method::Reduction(Arc::new(
            Inverse::new(blocks.parameters.k, kernels).map_err(|_| wrong(case))?,
        )),
    };
    let decode = |block: &Block| {
        fountain::decode_one(&blocks, block, &method, kernels, Arc::clone(&algebra))
    };
    if blocks
        .blocks
        .iter()
        .any(|block| decode(block).as_ref() != Ok(&block.source))
    {
        return Err(wrong(case));
    }
    let (times, repeats) = rounds_of(settings.short_pace(), |repeats| {
        let start = Instant::now();
        for _ in 0..repeats {
            std::hint::black_box(decode(&blocks.blocks[0])?);
        }
        Ok::<Duration, raptorq::Error>(start.elapsed())
    });
    Ok(Outcome::of(Sample::of_times(
        case,
        times,
        repeats,
        case.bytes(),
    )))
}

fn invert(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let order = usize::from(case.n);
    let (matrix, inverse) = invertible(order, 0, Kind::Dense, Kernels::detect());
    let symbols = vec![None; order];
    let system = System {
        order,
        matrix: &matrix,
        sums: &[],
        symbols: &symbols,
    };
    let mut work = lab.systems(&Systems {
        systems: &[system],
        before: &[],
        count: 1,
        symbol_bytes: 0,
    })?;
    work.poison()?;
    work.time(true, 1)?;
    if work.inverse(0)? != Some(inverse) {
        return Err(wrong(case));
    }
    let (times, repeats) = rounds_of(settings.short_pace(), |repeats| work.time(true, repeats));
    Ok(Outcome::of(Sample::of_times(
        case,
        times,
        repeats,
        case.bytes(),
    )))
}

/// Not a time, but the order from which on the card takes less of it.
fn crossover(lab: &mut Lab, case: &Case) -> Result<Outcome, Error> {
    let threads = case.threads.try_into().expect("one thread at least");
    let order = device::dense::crossover(
        &Cores::new(Kernels::detect(), threads),
        lab.algebra()?.as_ref(),
    );
    let value = f64::from(u32::try_from(order).expect("a small order"));
    Ok(Outcome::of(Sample {
        value,
        best: value,
        worst: value,
        rounds: 3,
        repeats: 1,
        bytes: 0,
    }))
}

/// Of matrices that are on the card at once.
const RESIDENT_BYTES: usize = 1 << 30;
/// Of matrices that go through it at once.
const PINNED_BYTES: usize = 256 << 20;
