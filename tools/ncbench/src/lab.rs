//! A GPU under measurement ([`Lab`]), and the plans of what is measured on it. A lab runs any
//! kernel by name, on all of the card or a part of it, and each stage of a batch by itself. The
//! card's own events time it, and every byte can be read.
//!
//! The product's back end launches one kernel and hides the rest. The papers' tables need what it
//! hides, and kernels that it never launches. Times are those of warm launches: a job allocates its
//! memory when it is made, and callers run it once before they measure.

// The interfaces of the driver and of NVML. Every block says who keeps its promise.
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

/// Pins memory. Dropping the result unpins it; `None` if that is impossible.
pub(crate) type Pin = Box<dyn Fn(&mut [u8]) -> Option<Box<dyn Any + Send + Sync>> + Send + Sync>;

/// A plan to encode: rows of generations, all of one shape.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Encode<'a> {
    /// Name of the encode kernel.
    pub(crate) kernel: &'a str,
    /// The field that it computes in.
    pub(crate) field: Field,
    /// Blocks of a generation.
    pub(crate) n: u16,
    /// Bytes of a block.
    pub(crate) k: u32,
    /// Number of generations.
    pub(crate) generations: u32,
    /// Rows of each generation.
    pub(crate) rows: u32,
    /// Contiguous whole generations, n * k bytes each. If there are fewer than `generations`, they
    /// are used in turn; each generation has memory of its own.
    pub(crate) sources: &'a [u8],
    /// The rows' coefficients.
    pub(crate) coefficients: Coefficients<'a>,
    /// Multiprocessors to use; all if `None`. The others are kept busy, and the grid has as many
    /// thread blocks as the used ones hold at once.
    pub(crate) sms: Option<u32>,
}

/// The source of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Coefficients<'a> {
    /// Row r of generation g has the seed `first_seed` + r, and is drawn with `key` and g.
    Seeded {
        /// The segment's key.
        key: u64,
        /// The seed of row 0 of each generation.
        first_seed: u32,
    },
    /// `rows` * n bytes per generation; fewer generations are used in turn.
    Explicit(&'a [u8]),
}

/// A plan to decode: for each generation as many coded blocks as it has source blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decode<'a> {
    /// Name of the encode kernel that multiplies. A progressive decoder does not use it.
    pub(crate) kernel: &'a str,
    /// The method.
    pub(crate) decoder: Decoder<'a>,
    /// Blocks of a generation.
    pub(crate) n: u16,
    /// Bytes of a block.
    pub(crate) k: u32,
    /// Number of generations.
    pub(crate) generations: u32,
    /// The blocks' coefficients, n * n bytes per generation (for `Decoder::Given` their inverse);
    /// fewer generations are used in turn.
    pub(crate) matrices: &'a [u8],
    /// Payloads, n * k bytes per generation; fewer generations are used in turn.
    pub(crate) payloads: &'a [u8],
    /// Multiprocessors to use; all if `None`.
    pub(crate) sms: Option<u32>,
}

/// How coded blocks become source blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decoder<'a> {
    /// The matrices are inverses that the host has computed.
    Given,
    /// This kernel inverts all matrices, then payloads are multiplied.
    Invert(&'a str),
    /// This kernel takes block after block, and works on the payloads at once.
    Progressive(&'a str),
}

/// A step of the work for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Converts plain source blocks, or received payloads, into the kernel's resident form.
    Form,
    /// Makes rows in the kernel's form, from seeds or from bytes.
    Rows,
    /// Combines rows into device memory: encoding, or the last step of decoding.
    Multiply,
    /// Combines rows, and stores the blocks straight into pinned host memory.
    Store,
    /// Inverts all matrices.
    Invert,
    /// Decodes all blocks of all generations progressively.
    Progressive,
    /// Uploads from pinned memory: matrices and payloads to decode, sources to encode.
    Upload,
    /// Downloads the results into pinned host memory.
    Download,
}

/// A plan to make Reed-Solomon code chunks from native ones, all of one length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunks<'a> {
    /// `stripes`, `tensor`, or a step of the talk's ladder: `rs-mod`, `rs-zero-words` and so on.
    pub(crate) kernel: &'a str,
    /// Number of native chunks.
    pub(crate) n: u8,
    /// n coefficients per code chunk.
    pub(crate) matrix: &'a [u8],
    /// Bytes of a chunk, a multiple of 16.
    pub(crate) bytes: usize,
    /// Contents of the native chunks, repeated chunk by chunk; a multiple of 16 bytes.
    pub(crate) sources: &'a [u8],
    /// Rows and columns of a tile, for kernels that have tiles; by default 1 x 256.
    pub(crate) tile: Option<(u32, u32)>,
    /// Number of GPUs that take pieces in turn when chunks pass through: this one and the first
    /// others of the host.
    pub(crate) gpus: u16,
}

/// A plan to replay RaptorQ's plans on symbols.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replay<'a> {
    /// Plans for the source blocks in turn; all have equally many inputs and outputs.
    pub(crate) plans: &'a [&'a Plan],
    /// Number of source blocks, each in memory of its own.
    pub(crate) blocks: usize,
    /// Bytes of a symbol, a multiple of 4.
    pub(crate) symbol_bytes: usize,
    /// The inputs of whole source blocks, contiguous and used in turn.
    pub(crate) symbols: &'a [u8],
}

/// Returns the plans of some source blocks, by their numbers.
pub(crate) type Planner<'a> = dyn FnMut(Range<usize>) -> Vec<Vec<u8>> + 'a;

/// A plan to multiply two matrices with one thread per element (Vicente 2015, Algorithms 2 and 3).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product<'a> {
    /// Rows of `a`.
    pub(crate) rows: u32,
    /// The left matrix, row by row.
    pub(crate) a: &'a [u8],
    /// Columns of `b`, which has as many rows as `a` has columns.
    pub(crate) columns: u32,
    /// The right matrix, row by row.
    pub(crate) b: &'a [u8],
    /// The shape of a thread block.
    pub(crate) group: Group,
}

/// The shape of a thread block, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group {
    /// Columns.
    pub(crate) width: u32,
    /// Rows.
    pub(crate) height: u32,
}

/// A plan to invert by Gauss-Jordan as three kernels, where the host reads the matrix after each
/// (Vicente 2015, Algorithm 10).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Elimination<'a> {
    /// Rows and columns.
    pub(crate) order: u32,
    /// The matrix, row by row.
    pub(crate) matrix: &'a [u8],
    /// The shape of a thread block.
    pub(crate) group: Group,
}

/// A plan to solve dense systems of one shape side by side, as in decoding RaptorQ with dense
/// matrices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Systems<'a> {
    /// The distinct systems, used in turn. All have equally many rows and wanted symbols.
    pub(crate) systems: &'a [System<'a>],
    /// A product for each of them that is added to its symbols first; empty if there is none.
    pub(crate) before: &'a [Before<'a>],
    /// Number of systems, each in memory of its own.
    pub(crate) count: usize,
    /// Bytes of a symbol.
    pub(crate) symbol_bytes: usize,
}

/// As many rows as the system has, and the symbols that they multiply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before<'a> {
    /// Contiguous rows with as many elements as there are symbols.
    pub(crate) rows: &'a [u8],
    /// `None` for a symbol of zeros.
    pub(crate) known: &'a [Option<&'a [u8]>],
}

/// A plan for words of 257 bits (Chu, Zhao and Wang, NETWORKING 2009). All generations, matrices or
/// batches have the same contents, and each has memory of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Gfq<'a> {
    /// Encodes source blocks.
    Encode {
        /// The shape of a generation.
        shape: Shape,
        /// Number of them.
        generations: u32,
        /// `paper-64`: the paper's kernel in thread blocks of 64. `ours-8`: our kernel with 8 rows
        /// per thread. `ours`: our kernel with as many rows as fit.
        kernel: &'a str,
        /// A generation with all its padding.
        source: &'a [u8],
        /// n coefficients for each block.
        rows: &'a [u32],
    },
    /// Combines payloads with arbitrary elements.
    Combine {
        /// The shape of a generation.
        shape: Shape,
        /// Number of them.
        generations: u32,
        /// Whether the paper's kernel does it.
        is_paper: bool,
        /// n contiguous payloads.
        payloads: &'a [u8],
        /// n coefficients for each block.
        rows: &'a [Element],
    },
    /// Inverts matrices.
    Invert {
        /// Rows and columns of a matrix.
        n: usize,
        /// Number of matrices.
        count: u32,
        /// n contiguous rows.
        matrix: &'a [Element],
    },
    /// Decodes generations from n coded blocks each.
    Decode {
        /// The shape of a generation.
        shape: Shape,
        /// Number of them.
        generations: u32,
        /// The blocks' vectors, contiguous.
        matrix: &'a [Element],
        /// Their payloads.
        payloads: &'a [u8],
    },
    /// Hashes plain blocks by the paper's method: one thread per power, in `blocks` thread blocks
    /// of `threads` threads.
    Powers {
        /// The group of the hashes.
        group: HashGroup,
        /// Words of a block.
        words: usize,
        /// Contiguous blocks.
        data: &'a [u8],
        /// Threads of a thread block.
        threads: u32,
        /// Number of thread blocks.
        blocks: u32,
    },
    /// Hashes plain blocks by tables of the generators' powers.
    Hashes {
        /// The group of the hashes.
        group: HashGroup,
        /// Words of a block.
        words: usize,
        /// Contiguous blocks.
        data: &'a [u8],
        /// Bits of a digit.
        window: u32,
    },
    /// Makes the first entries of tables: each generator to the power of 2^window, squared again
    /// and again, for each set of tables.
    Ladder {
        /// The group of the hashes.
        group: HashGroup,
        /// Words of a block.
        words: usize,
        /// Number of sets of tables.
        sets: u32,
        /// Bits of a digit.
        window: u32,
        /// Whether a warp takes a generator, or a thread does.
        is_by_lanes: bool,
    },
    /// Checks batches of coded blocks.
    Check {
        /// The group of the hashes.
        group: HashGroup,
        /// The shape of a generation.
        shape: Shape,
        /// Number of them.
        batches: u32,
        /// The payloads of a batch's blocks, contiguous.
        payloads: &'a [u8],
        /// Their vectors, contiguous.
        vectors: &'a [Element],
        /// One weight per block, below 2^96.
        weights: &'a [u128],
        /// Hashes of the source blocks: limbs of 64 bits, the least significant first.
        hashes: &'a [Box<[u64]>],
    },
}

/// Opens a GPU by its number.
pub(crate) fn open(ordinal: u16) -> Result<Lab, Error> {
    cuda::look_for(ordinal)?;
    Ok(Lab::open(ordinal)?)
}
