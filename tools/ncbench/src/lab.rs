//! A GPU under measurement ([`Lab`]), and the plans of what is measured on it. A lab runs any kernel by
//! name, on all of the card or a part of it, and each stage of a batch by itself. The card's own events
//! time it, and every byte can be read.
//!
//! The product's back end launches one kernel and hides the rest. The papers' tables need what it hides,
//! and kernels that it never launches. Times are those of warm launches: a job allocates its memory when
//! it is made, and callers run it once before they measure.

// The driver's interface, and NVML's. Every block says who keeps its promise.
#![allow(unsafe_code)]

use std::any::Any;
use std::ops::Range;

use ncs_codec::gfq::Shape;
use ncs_codec::raptorq::Plan;
use ncs_gf::dense::System;
use ncs_gf::gfq::Element;
pub(crate) use ncserverd::device::Gpu as Card;
use ncserverd::device::cuda;
use ncserverd::device::{Error, Field};
use ncserverd::object::HashGroup;

mod gpu;
mod nvml;

#[cfg(test)]
pub(crate) use gpu::is_here;
pub(crate) use gpu::{BatchJob, Lab, ReplayJob};
pub(crate) use nvml::Gauge;

/// Pins memory until what it returns is dropped; `None` if that cannot be.
pub(crate) type Pin = Box<dyn Fn(&mut [u8]) -> Option<Box<dyn Any + Send + Sync>> + Send + Sync>;

/// So many rows of so many generations, all alike in shape.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Encode<'a> {
    /// The encode kernel, by name.
    pub(crate) kernel: &'a str,
    /// In which it computes.
    pub(crate) field: Field,
    /// Blocks of a generation.
    pub(crate) n: u16,
    /// Bytes of a block.
    pub(crate) k: u32,
    /// Alike in shape.
    pub(crate) generations: u32,
    /// Of each generation.
    pub(crate) rows: u32,
    /// Whole generations one behind the other, n * k bytes each. Fewer than `generations` are used in turn, each in memory of its
    /// own.
    pub(crate) sources: &'a [u8],
    /// Of the rows.
    pub(crate) coefficients: Coefficients<'a>,
    /// Streaming multiprocessors to use: the others are kept busy, and the grid has as many thread blocks as these hold at once. All
    /// if not given.
    pub(crate) sms: Option<u32>,
}

/// Where rows come from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Coefficients<'a> {
    /// Row r of generation g is that of seed `first_seed` + r, drawn with `key` and g.
    Seeded {
        /// The segment's key.
        key: u64,
        /// The seed of row 0 of each generation.
        first_seed: u32,
    },
    /// `rows` * n bytes a generation; fewer are used in turn.
    Explicit(&'a [u8]),
}

/// As many coded blocks as source blocks, of each of so many generations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decode<'a> {
    /// The encode kernel that multiplies. A progressive decoder has no use for it.
    pub(crate) kernel: &'a str,
    /// How the source is found.
    pub(crate) decoder: Decoder<'a>,
    /// Blocks of a generation.
    pub(crate) n: u16,
    /// Bytes of a block.
    pub(crate) k: u32,
    /// Alike in shape.
    pub(crate) generations: u32,
    /// The coefficients of the blocks, n * n bytes a generation (for `Decoder::Given` their inverse); fewer are used in turn.
    pub(crate) matrices: &'a [u8],
    /// Payloads, n * k bytes a generation; fewer are used in turn.
    pub(crate) payloads: &'a [u8],
    /// Streaming multiprocessors to use; all if not given.
    pub(crate) sms: Option<u32>,
}

/// How coefficients become the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decoder<'a> {
    /// The matrices are inverses already: the host has made them.
    Given,
    /// This kernel inverts all matrices, then payloads are multiplied.
    Invert(&'a str),
    /// This kernel takes block after block, dragging payloads along.
    Progressive(&'a str),
}

/// A part of what is done for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Source blocks, or payloads that came in, from plain rows into the kernel's resident form.
    Form,
    /// Coefficients from seeds, or from bytes, into the kernel's row form.
    Rows,
    /// Row combination, into device memory: encoding, or the last step of decoding.
    Multiply,
    /// Row combination, storing straight into pinned host memory.
    Store,
    /// All matrices.
    Invert,
    /// All blocks of all generations, one after the other.
    Progressive,
    /// From pinned host memory: for a decode matrices and payloads, for an encode sources.
    Upload,
    /// What was made, into pinned host memory.
    Download,
}

/// Code chunks of native ones, all of one length: Reed-Solomon.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunks<'a> {
    /// `stripes`, `tensor`, or a step of the talk's ladder: `rs-mod`, `rs-zero-words` and so on.
    pub(crate) kernel: &'a str,
    /// Native chunks.
    pub(crate) n: u8,
    /// n coefficients a code chunk.
    pub(crate) matrix: &'a [u8],
    /// Of a chunk, a multiple of 16.
    pub(crate) bytes: usize,
    /// What native chunks are filled with, chunk by chunk and over again; a multiple of 16 bytes.
    pub(crate) sources: &'a [u8],
    /// Rows and columns of a tile, for kernels that have tiles; 1 x 256 without.
    pub(crate) tile: Option<(u32, u32)>,
    /// GPUs that take pieces in turn on the way through: this one, and the first others of the host.
    pub(crate) gpus: u16,
}

/// Plans of RaptorQ, and symbols to replay them on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replay<'a> {
    /// For source blocks in turn; all for as many inputs and outputs.
    pub(crate) plans: &'a [&'a Plan],
    /// Source blocks, each in memory of its own.
    pub(crate) blocks: usize,
    /// A multiple of 4.
    pub(crate) symbol_bytes: usize,
    /// The inputs of whole source blocks, one behind the other, which are used in turn.
    pub(crate) symbols: &'a [u8],
}

/// Who has the plans of source blocks, by their numbers.
pub(crate) type Planner<'a> = dyn FnMut(Range<usize>) -> Vec<Vec<u8>> + 'a;

/// A matrix times another, a thread an element (Vicente 2015, Algorithms 2 and 3).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product<'a> {
    /// So many rows, one behind the other.
    pub(crate) rows: u32,
    /// The left one.
    pub(crate) a: &'a [u8],
    /// So many columns; as many rows as `a` has columns.
    pub(crate) columns: u32,
    /// The right one.
    pub(crate) b: &'a [u8],
    /// Of a thread block.
    pub(crate) group: Group,
}

/// The shape of a thread block: so many columns and rows of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group {
    /// Columns.
    pub(crate) width: u32,
    /// Rows.
    pub(crate) height: u32,
}

/// Gauss-Jordan as three kernels, with the host's look at the matrix behind each (Vicente 2015, Algorithm 10).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Elimination<'a> {
    /// Rows and columns.
    pub(crate) order: u32,
    /// Row by row.
    pub(crate) matrix: &'a [u8],
    /// Of a thread block.
    pub(crate) group: Group,
}

/// Dense systems of one shape, solved side by side: what decoding RaptorQ with dense matrices takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Systems<'a> {
    /// Those that differ, used in turn: all of as many rows and wanted symbols.
    pub(crate) systems: &'a [System<'a>],
    /// A product for each of them that is added to its symbols first, or none at all.
    pub(crate) before: &'a [Before<'a>],
    /// Systems, each in memory of its own.
    pub(crate) count: usize,
    /// Of a symbol.
    pub(crate) symbol_bytes: usize,
}

/// Rows, as many as the system has, times symbols: none is one of zeros.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before<'a> {
    /// One behind the other, of as many elements as there are symbols.
    pub(crate) rows: &'a [u8],
    /// Nothing where the symbol is zeros.
    pub(crate) known: &'a [Option<&'a [u8]>],
}

/// What is done with words of 257 bits (Chu, Zhao and Wang, NETWORKING 2009). Generations, matrices and batches are alike, and each has memory of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Words<'a> {
    /// Coded blocks of source blocks.
    Encode {
        /// Of a generation.
        shape: Shape,
        /// Alike in shape.
        generations: u32,
        /// `paper-64`, as the paper does it in thread blocks of so many; `ours-8`, as we do, a thread so many rows; `ours`, as fits.
        kernel: &'a str,
        /// A generation, with all padding.
        source: &'a [u8],
        /// n coefficients for each block.
        rows: &'a [u32],
    },
    /// Combinations with any elements.
    Combine {
        /// Of a generation.
        shape: Shape,
        /// Alike in shape.
        generations: u32,
        /// By the paper's kernel.
        is_paper: bool,
        /// n payloads, one behind the other.
        payloads: &'a [u8],
        /// n coefficients for each block.
        rows: &'a [Element],
    },
    /// Inverses of so many matrices.
    Invert {
        /// Rows and columns.
        n: usize,
        /// Matrices.
        count: u32,
        /// n rows, one behind the other.
        matrix: &'a [Element],
    },
    /// Generations from as many coded blocks as they have.
    Decode {
        /// Of a generation.
        shape: Shape,
        /// Alike in shape.
        generations: u32,
        /// The blocks' vectors, one behind the other.
        matrix: &'a [Element],
        /// Their payloads.
        payloads: &'a [u8],
    },
    /// Hashes of plain blocks as the paper makes them: a thread a power, in so many thread blocks of so many threads.
    Powers {
        /// Which hashes.
        group: HashGroup,
        /// Words of a block.
        words: usize,
        /// Blocks, one behind the other.
        data: &'a [u8],
        /// Of a thread block.
        threads: u32,
        /// Thread blocks.
        blocks: u32,
    },
    /// Hashes of plain blocks by tables of the generators' powers.
    Hashes {
        /// Which hashes.
        group: HashGroup,
        /// Words of a block.
        words: usize,
        /// Blocks, one behind the other.
        data: &'a [u8],
        /// Bits that a look-up covers.
        window: u32,
    },
    /// The first entries of tables: each generator to the power of 2^window, squared again and again, for so many sets of them; a warp a generator, or a
    /// thread.
    Ladder {
        /// Which hashes.
        group: HashGroup,
        /// Words of a block.
        words: usize,
        /// Sets of tables.
        sets: u32,
        /// Bits that a look-up covers.
        window: u32,
        /// A warp a generator.
        is_by_lanes: bool,
    },
    /// Checks of batches of coded blocks.
    Check {
        /// Which hashes.
        group: HashGroup,
        /// Of a generation.
        shape: Shape,
        /// Alike in shape.
        batches: u32,
        /// Of the blocks of a batch, one behind the other.
        payloads: &'a [u8],
        /// One behind the other.
        vectors: &'a [Element],
        /// Below 2^96, one a block.
        weights: &'a [u128],
        /// Of the source blocks: limbs of 64 bits, the least significant first.
        hashes: &'a [Box<[u64]>],
    },
}

/// Opens a GPU by its number.
pub(crate) fn open(ordinal: u16) -> Result<Lab, Error> {
    cuda::look_for(ordinal)?;
    Ok(Lab::open(ordinal)?)
}
