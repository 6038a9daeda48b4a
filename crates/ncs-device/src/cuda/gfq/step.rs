//! The kernels of GF(q) and its hashes, each with its arguments and its grid (`kernels/gfq.cu`,
//! `kernels/hash.cu`).

use ncs_codec::hash::Group;
use ncs_gf::gfq;

use super::super::card::{Card, number};
use super::super::driver::{Address, Fault, Stream};
use super::super::image::Image;
use super::super::launch::{self, Grid};
use super::layout::row_pitch;
use crate::abi::{self, define};

/// A kernel with its grid and its task. The task's addresses point to memory as large as `nc_abi.h`
/// says.
#[derive(Debug, Clone)]
pub enum Step {
    /// Combines rows of words.
    Product(&'static str, Grid, Box<abi::GfqProduct>),
    /// A step of inverting matrices.
    Invert(&'static str, Grid, Box<abi::GfqInversion>),
    /// Computes powers, and products of them.
    Hash(&'static str, Grid, Box<abi::Hash>),
}

/// Which kernel encodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoder {
    /// The paper's: one thread per codeword, in thread blocks of this many threads.
    Paper(u32),
    /// Ours: a thread computes 1, 2, 4 or 8 rows of a word.
    Rows(u32),
    /// Ours, with as many rows per thread as keep the whole card busy.
    Fitting,
}

impl Encoder {
    /// Parses `paper-64`, `ours-8` or `ours`.
    pub fn named(name: &str) -> Option<Self> {
        match name.split_once('-') {
            Some(("paper", threads)) => threads.parse().ok().map(Self::Paper),
            Some(("ours", rows)) => rows.parse().ok().map(Self::Rows),
            _ => (name == "ours").then_some(Self::Fitting),
        }
    }
}

impl Step {
    /// Combines with coefficients of 32 bits, for each generation.
    pub fn encode(encoder: Encoder, product: abi::GfqProduct, generations: u32, sms: u32) -> Self {
        let (words, rows) = (product.words, product.rows);
        let (entry, blocks, threads) = match encoder {
            Encoder::Paper(threads) => (
                "nc_gfq_encode_paper",
                (words.div_ceil(threads), rows),
                threads,
            ),
            Encoder::Rows(_) | Encoder::Fitting => {
                let across = words.div_ceil(ENCODE_THREADS);
                let fills = |each: u32| {
                    2 * across * rows.div_ceil(each) * generations >= BLOCKS_A_PAIR_OF_SMS * sms
                };
                let fits = |&(_, each): &(&str, u32)| {
                    if let Encoder::Rows(asked) = encoder {
                        each == asked
                    } else {
                        fills(each)
                    }
                };
                let (entry, each) = ENCODERS.into_iter().find(fits).unwrap_or(ENCODERS[3]);
                (entry, (across, rows.div_ceil(each)), ENCODE_THREADS)
            }
        };
        Self::Product(
            entry,
            Grid {
                blocks: (blocks.0, blocks.1, generations),
                threads,
                shared_bytes: 0,
            },
            Box::new(product),
        )
    }

    /// Combines with arbitrary elements as coefficients, for each generation.
    pub fn combine(is_paper: bool, product: abi::GfqProduct, generations: u32) -> Self {
        let (entry, (columns, rows), threads) = match is_paper {
            true => (
                "nc_gfq_combine_paper",
                (PAPER_TILE, PAPER_TILE),
                PAPER_TILE * PAPER_TILE,
            ),
            false => ("nc_gfq_combine", (WARP, COMBINE_ROWS), COMBINE_THREADS),
        };
        let blocks = (
            product.words.div_ceil(columns),
            product.rows.div_ceil(rows),
            generations,
        );
        Self::Product(
            entry,
            Grid {
                blocks,
                threads,
                shared_bytes: 0,
            },
            Box::new(product),
        )
    }

    /// Combines into one row with weights below 2^96, for each generation.
    pub fn fold(product: abi::GfqProduct, generations: u32) -> Self {
        let blocks = (product.words.div_ceil(WARP), 1, generations);
        Self::Product(
            "nc_gfq_fold",
            Grid {
                blocks,
                threads: FOLD_THREADS,
                shared_bytes: 0,
            },
            Box::new(product),
        )
    }

    /// The steps that invert `count` matrices, in order.
    pub fn invert(inversion: abi::GfqInversion, count: u32, sms: u32) -> Vec<Self> {
        let n = inversion.n;
        let fits = |&&(_, _, width): &&(&str, &str, u32)| {
            invert_shared_bytes(width, n) <= INVERT_SHARED_MAX
        };
        let &(panel, update, width) = INVERTERS.iter().find(fits).unwrap_or(&INVERTERS[2]);
        let (across, step) = (n.next_multiple_of(WARP), |entry, grid, task| {
            Self::Invert(entry, grid, Box::new(task))
        });
        // A warp has some rows of 32 columns. It has fewer if multiprocessors would be left idle.
        let filling = (UPDATE_BLOCKS_A_SM * sms).div_ceil(count * (across / WARP));
        let parts = n
            .div_ceil(UPDATE_ROWS)
            .max(filling.min(n.div_ceil(UPDATE_THREADS / WARP)));
        let grid = |blocks, threads| Grid {
            blocks: (blocks, count, 1),
            threads,
            shared_bytes: 0,
        };
        let mut steps = vec![step(
            "nc_gfq_invert_begin",
            grid((n * across).div_ceil(STEP_THREADS), STEP_THREADS),
            inversion,
        )];
        for first in (0..n).step_by(width as usize) {
            let task = abi::GfqInversion {
                first,
                parts,
                ..inversion
            };
            steps.push(step(
                panel,
                Grid::line(count, INVERT_THREADS, invert_shared_bytes(width, n)),
                task,
            ));
            steps.push(step(
                update,
                grid(across / WARP * parts, UPDATE_THREADS),
                task,
            ));
        }
        steps.push(step(
            "nc_gfq_invert_end",
            grid(n.div_ceil(STEP_THREADS / WARP), STEP_THREADS),
            inversion,
        ));
        steps
    }

    /// Raises each base to each of its exponents, by the paper's method.
    pub fn power_paper(group: Group, hash: abi::Hash, threads: u32, blocks: u32) -> Self {
        let entry = of(
            group,
            ["nc_hash_power_paper_1024", "nc_hash_power_paper_2048"],
        );
        Self::Hash(entry, Grid::line(blocks, threads, 0), Box::new(hash))
    }

    /// Raises each base to the powers that its table begins with, for `sets` sets of bases. A warp
    /// takes a base, or a thread does if there are many.
    pub fn ladder(group: Group, hash: abi::Hash, sets: u32, is_by_lanes: bool) -> Self {
        let (entry, across) = match is_by_lanes {
            true => (
                of(group, ["nc_hash_lanes_1024", "nc_hash_lanes_2048"]),
                hash.words,
            ),
            false => (
                of(group, ["nc_hash_ladder_1024", "nc_hash_ladder_2048"]),
                hash.words.div_ceil(WARP),
            ),
        };
        Self::Hash(
            entry,
            Grid {
                blocks: (across, sets, 1),
                threads: WARP,
                shared_bytes: 0,
            },
            Box::new(hash),
        )
    }

    /// Fills in the rest of the tables.
    pub fn table(group: Group, hash: abi::Hash, sets: u32) -> Self {
        let blocks = ((hash.words * hash.windows).div_ceil(HASH_THREADS), sets, 1);
        let entry = of(group, ["nc_hash_table_1024", "nc_hash_table_2048"]);
        Self::Hash(
            entry,
            Grid {
                blocks,
                threads: HASH_THREADS,
                shared_bytes: 0,
            },
            Box::new(hash),
        )
    }

    /// Computes partial products of each row, by tables.
    pub fn fixed(group: Group, hash: abi::Hash) -> Self {
        let grid = Grid {
            blocks: (hash.count, hash.rows, 1),
            threads: HASH_THREADS,
            shared_bytes: 0,
        };
        Self::Hash(
            of(group, ["nc_hash_fixed_1024", "nc_hash_fixed_2048"]),
            grid,
            Box::new(hash),
        )
    }

    /// Multiplies the partial products of each row.
    pub fn join(group: Group, hash: abi::Hash) -> Self {
        let entry = of(group, ["nc_hash_join_1024", "nc_hash_join_2048"]);
        Self::Hash(
            entry,
            Grid::line(hash.rows, HASH_THREADS, 0),
            Box::new(hash),
        )
    }

    /// Begins the step.
    ///
    /// # Safety
    /// All memory is as large as the task and `nc_abi.h` say, and stays allocated until the stream
    /// has passed this step. Nothing else writes there meanwhile. Results of earlier steps are
    /// computed on the same stream.
    pub unsafe fn start(&self, card: &Card, stream: &Stream) -> Result<(), Fault> {
        // SAFETY: the constructors give each entry its structure and a grid that `nc_abi.h` allows;
        // the caller promises the rest.
        unsafe {
            match self {
                Self::Product(entry, grid, task) => {
                    launch::words(card, (Image::Gfq, entry), *grid, &**task, stream)
                }
                Self::Invert(entry, grid, task) => {
                    launch::words(card, (Image::Gfq, entry), *grid, &**task, stream)
                }
                Self::Hash(entry, grid, task) => {
                    launch::words(card, (Image::Hash, entry), *grid, &**task, stream)
                }
            }
        }
    }
}

const fn of(group: Group, entries: [&'static str; 2]) -> &'static str {
    match group {
        Group::P1024 => entries[0],
        Group::P2048 => entries[1],
    }
}

/// A task that combines `inner` sources of `words` words into rows. Distances and top bits are set
/// for one generation of elements.
pub(super) fn product(
    (rows, inner, words): (usize, usize, usize),
    [source, coefficients, out]: [Address; 3],
    field: abi::GfqField,
) -> abi::GfqProduct {
    abi::GfqProduct {
        source,
        coefficients,
        out,
        source_step: 0,
        coefficients_step: 0,
        out_step: 0,
        source_pitch: number(row_pitch(words)),
        coefficients_pitch: number(row_pitch(inner)),
        out_pitch: number(row_pitch(words)),
        n: number(inner),
        rows: number(rows),
        words: number(words),
        tops: 1,
        reserved: 0,
        field,
    }
}

/// A task that inverts consecutive matrices of order n into consecutive inverses, with rows
/// [`row_pitch`] apart.
pub fn inversion(
    n: usize,
    [matrices, inverses, work, status]: [Address; 4],
    field: abi::GfqField,
) -> abi::GfqInversion {
    let (step, pitch) = ((n * row_pitch(n)) as u64, number(row_pitch(n)));
    abi::GfqInversion {
        matrices,
        inverses,
        work,
        status,
        matrices_step: step,
        inverses_step: step,
        matrices_pitch: pitch,
        inverses_pitch: pitch,
        n: number(n),
        first: 0,
        parts: 0,
        reserved: 0,
        field,
    }
}

/// Working memory for inverting a matrix: `NC_GFQ_INVERT_WORK`.
pub const fn invert_work_bytes(n: usize) -> usize {
    let (element, width) = (4 * gfq::LIMBS_32, INVERT_WIDTH as usize);
    (n + width) * n.next_multiple_of(WARP as usize) * element
        + n.next_multiple_of(2) * (element * width + 8)
}

/// Shared memory for inverting by panels of `width` columns: `NC_GFQ_INVERT_SHARED`.
const fn invert_shared_bytes(width: u32, n: u32) -> u32 {
    (36 * width + 4) * n
}

const WARP: u32 = 32;
const ENCODERS: [(&str, u32); 4] = [
    ("nc_gfq_encode_8", 8),
    ("nc_gfq_encode_4", 4),
    ("nc_gfq_encode_2", 2),
    ("nc_gfq_encode_1", 1),
];
const ENCODE_THREADS: u32 = define("NC_GFQ_ENCODE_THREADS");
const COMBINE_THREADS: u32 = define("NC_GFQ_COMBINE_THREADS");
const COMBINE_ROWS: u32 = define("NC_GFQ_COMBINE_ROWS");
const FOLD_THREADS: u32 = define("NC_GFQ_FOLD_THREADS");
const INVERT_THREADS: u32 = define("NC_GFQ_INVERT_THREADS");
const INVERT_WIDTH: u32 = define("NC_GFQ_INVERT_WIDTH");
const UPDATE_THREADS: u32 = define("NC_GFQ_UPDATE_THREADS");
const STEP_THREADS: u32 = define("NC_GFQ_STEP_THREADS");
/// The kernel that eliminates a panel, the kernel that updates the rest, and the columns of a
/// panel.
const INVERTERS: [(&str, &str, u32); 3] = [
    (
        "nc_gfq_invert_panel_8",
        "nc_gfq_invert_update_8",
        INVERT_WIDTH,
    ),
    ("nc_gfq_invert_panel_4", "nc_gfq_invert_update_4", 4),
    ("nc_gfq_invert_panel_2", "nc_gfq_invert_update_2", 2),
];
/// Rows per thread block of an update if there are enough matrices, and wanted thread blocks per
/// multiprocessor.
const UPDATE_ROWS: u32 = 64;
const UPDATE_BLOCKS_A_SM: u32 = 4;
/// Shared memory that a thread block may have on every card of compute capability 8.0 and above,
/// besides the kernels' static part.
const INVERT_SHARED_MAX: u32 = 98 << 10;
pub(super) const HASH_THREADS: u32 = define("NC_HASH_THREADS");
/// Rows and columns of the paper's tiles.
const PAPER_TILE: u32 = 16;
/// Thread blocks that an encoder should have per two multiprocessors. With fewer, its threads take
/// fewer rows each.
const BLOCKS_A_PAIR_OF_SMS: u32 = 3;
/// Maximum rows of a launch, a limit of grids.
pub(super) const ROWS_MAX: usize = 32_768;
