//! What measurements ask of a GPU: any kernel by name, on a part of the card, the stages of a batch apart, timed by the card's own
//! events, and every byte to look at.
//!
//! The product's back end launches one kernel and hides the rest; the papers' tables need what it hides, and kernels that it never
//! launches. Times are those of warm launches: an implementation allocates when a work is made, and runs it once before.

// The driver's interface, and NVML's. Every block says who keeps its promise.
#![allow(unsafe_code)]

use std::any::Any;
use std::ops::Range;
use std::time::Duration;

use ncs_codec::gfq::{Arithmetic, Shape};
use ncs_codec::raptorq::Plan;
use ncs_gf::dense::{Algebra, System};
use ncs_gf::gfq::Element;
pub(crate) use ncserverd::device::Gpu as Card;
use ncserverd::device::cuda;
use ncserverd::device::portions::{Demand, Opener};
use ncserverd::device::{Error, Field};
use ncserverd::object::HashGroup;

mod gpu;
mod nvml;

/// One GPU under measurement.
pub(crate) trait Lab: Send {
    /// What it is.
    fn card(&self) -> &Card;
    /// Whether there is an encode kernel, inverter or decoder of this name that the card can run for generations of n blocks.
    fn has(&self, name: &str, n: u16) -> bool;
    /// Brings generations onto the card, to be combined with rows.
    fn encode<'a>(&'a mut self, plan: &Encode<'_>) -> Result<Box<dyn Work + 'a>, Error>;
    /// Brings coded blocks onto the card, to be decoded.
    fn decode<'a>(&'a mut self, plan: &Decode<'_>) -> Result<Box<dyn Work + 'a>, Error>;
    /// Brings native chunks onto the card, to be coded.
    fn chunks<'a>(&'a mut self, plan: &Chunks<'_>) -> Result<Box<dyn ChunkWork + 'a>, Error>;
    /// Brings plans of RaptorQ and symbols onto the card.
    fn replay<'a>(&'a mut self, plan: &Replay<'_>) -> Result<Box<dyn ReplayWork + 'a>, Error>;
    /// What opens the card for portions of files.
    fn opener(&self, demand: &Demand) -> Opener;
    /// Brings two matrices onto the card, to be multiplied as the thesis on RaptorQ does it.
    fn product<'a>(&'a mut self, plan: &Product<'_>) -> Result<Box<dyn ProductWork + 'a>, Error>;
    /// Takes a matrix that is to be inverted as that thesis does it.
    fn elimination<'a>(&'a mut self, plan: &Elimination<'_>) -> Result<Box<dyn EliminationWork + 'a>, Error>;
    /// Brings dense systems onto the card, to be solved.
    fn systems<'a>(&'a mut self, plan: &Systems<'_>) -> Result<Box<dyn SystemsWork + 'a>, Error>;
    /// Brings blocks over GF(q), or what is to be hashed, onto the card.
    fn words<'a>(&'a mut self, plan: &Words<'_>) -> Result<Box<dyn WordsWork + 'a>, Error>;
    /// Takes a matrix over GF(q), row by row, that is to be inverted as the paper does it: steps on the card, inverses of elements on the CPU.
    fn word_elimination<'a>(&'a mut self, n: usize, matrix: &[Element]) -> Result<Box<dyn WordElimination + 'a>, Error>;
    /// The card as coders over GF(q) have it, and what pins memory that it is to write blocks into.
    fn arithmetic(&self) -> Result<(Box<dyn Arithmetic>, Pin), Error>;
    /// The card as decoders with dense matrices have it.
    fn algebra(&self) -> Result<Box<dyn Algebra>, Error>;
    /// What counts its energy, or why nothing here does.
    fn gauge(&self) -> Result<Box<dyn Gauge>, String>;
}

/// Pins memory until what it returns is dropped; `None` if that cannot be.
pub(crate) type Pin = Box<dyn Fn(&mut [u8]) -> Option<Box<dyn Any + Send + Sync>> + Send + Sync>;

/// What a card tells of the energy that it takes: all of it, whoever has it work. Errors are reasons in words.
pub(crate) trait Gauge: Send + Sync {
    /// Millijoules from some moment on.
    fn millijoules(&self) -> Result<u64, String>;
    /// Milliwatts: at the moment, or over the last second of a card that tells no more.
    fn milliwatts(&self) -> Result<u32, String>;
}

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

/// Something on the card that can be done again and again.
pub(crate) trait Work {
    /// The time that these stages take so many times over, one behind the other on one stream, between two events of it.
    fn time(&mut self, stages: &[Stage], repeats: u32) -> Result<Duration, Error>;
    /// The time that row combination alone takes so many times over, on two streams in turn: one launch begins where the other leaves
    /// room, as with the batches of a server.
    fn time_in_turn(&mut self, repeats: u32) -> Result<Duration, Error>;
    /// The host's time for all generations so many times over, in chunks of so many: each is combined and then copied to pinned
    /// memory, on two streams in turn. Without `multiply` the copies alone.
    fn overlap(&mut self, chunk: u32, multiply: bool, repeats: u32) -> Result<Duration, Error>;
    /// The host's time from the first call for these stages until all that they made is there.
    fn answer(&mut self, stages: &[Stage]) -> Result<Duration, Error>;
    /// Fills everything that the stages make with a pattern that they would not make.
    fn poison(&mut self) -> Result<(), Error>;
    /// A block that was made. `is_on_host`: as it lies in pinned memory.
    fn read(&mut self, generation: u32, row: u32, is_on_host: bool, block: &mut [u8]) -> Result<(), Error>;
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

/// Chunks on the card that can be coded again and again.
pub(crate) trait ChunkWork {
    /// The card's time for coding so many times over, in its own memory.
    fn time(&mut self, repeats: u32) -> Result<Duration, Error>;
    /// The card's time for copying within its memory so many times over: half as many bytes as coding reads and writes, each of
    /// which is read and written.
    fn time_copy(&mut self, repeats: u32) -> Result<Duration, Error>;
    /// The host's time from native chunks in pinned memory to code chunks there: in pieces of so many bytes of each chunk, on so many streams of
    /// each GPU in turn. Without `code` the copies alone.
    fn through(&mut self, streams: u32, piece: usize, code: bool) -> Result<Duration, Error>;
    /// Fills code chunks with a pattern.
    fn poison(&mut self) -> Result<(), Error>;
    /// Bytes of a code chunk, as it lies on the card or in pinned memory.
    fn read(&mut self, row: usize, at: usize, is_on_host: bool, bytes: &mut [u8]) -> Result<(), Error>;
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

/// Plans on the card that can be replayed again and again.
pub(crate) trait ReplayWork {
    /// The card's time for all source blocks so many times over, in its own memory.
    fn time(&mut self, repeats: u32) -> Result<Duration, Error>;
    /// The host's time from inputs in pinned memory to outputs there, in pieces of so many source blocks, on streams in turn.
    /// Without `replay` the copies alone.
    fn through(&mut self, piece: usize, replay: bool) -> Result<Duration, Error>;
    /// The same by plans that come with the pieces, until outputs are in the host's memory. `plans` is asked for those of some source
    /// blocks, as [`Plan::bytes`] has them, when their piece is next; what has been put on streams before goes on meanwhile.
    fn planned(&mut self, piece: usize, plans: &mut Planner<'_>) -> Result<(), Error>;
    /// Fills outputs with a pattern.
    fn poison(&mut self) -> Result<(), Error>;
    /// All outputs of a source block, as they lie on the card or in pinned memory.
    fn read(&mut self, block: usize, is_on_host: bool, made: &mut [u8]) -> Result<(), Error>;
}

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

/// A product that can be made again and again.
pub(crate) trait ProductWork {
    /// The card's time for the product so many times over.
    fn time(&mut self, repeats: u32) -> Result<Duration, Error>;
    /// The host's time from all three matrices in memory that is not pinned until the product is there (Algorithm 2).
    fn through(&mut self) -> Result<Duration, Error>;
    /// Fills the product with a pattern.
    fn poison(&mut self) -> Result<(), Error>;
    /// All of the product, row by row.
    fn read(&mut self) -> Result<Vec<u8>, Error>;
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

/// An inversion that can be made again and again.
pub(crate) trait EliminationWork {
    /// The host's time from the matrix to its inverse, which is in the host's memory then.
    fn run(&mut self) -> Result<Duration, Error>;
    /// What the last run came to: nothing if the matrix has no inverse.
    fn inverse(&self) -> Option<&[u8]>;
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

/// Systems on the card that can be solved again and again.
pub(crate) trait SystemsWork {
    /// The card's time for all systems so many times over, in its own memory, or for inverting their matrices alone.
    fn time(&mut self, inverts_alone: bool, repeats: u32) -> Result<Duration, Error>;
    /// The host's time from matrices and symbols in pinned memory until what was made is there.
    fn through(&mut self) -> Result<Duration, Error>;
    /// Fills inverses and what is made with a pattern.
    fn poison(&mut self) -> Result<(), Error>;
    /// An inverse, row by row; none if the matrix has none.
    fn inverse(&mut self, index: usize) -> Result<Option<Vec<u8>>, Error>;
    /// All wanted symbols of a system, as they lie on the card or in pinned memory.
    fn read(&mut self, index: usize, is_on_host: bool, made: &mut [u8]) -> Result<(), Error>;
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

/// Such work on the card that can be done again and again.
pub(crate) trait WordsWork {
    /// The card's time for all of it so many times over, in its own memory.
    fn time(&mut self, repeats: u32) -> Result<Duration, Error>;
    /// Fills what is made with a pattern.
    fn poison(&mut self) -> Result<(), Error>;
    /// What was made of a generation, matrix or batch: payloads one behind the other, rows of a matrix in the form of payloads, all hashes, the first
    /// entries of tables in the form that kernels have them, or the two numbers of a batch that are the same if it holds.
    fn read(&mut self, index: usize) -> Result<Vec<u8>, Error>;
}

/// An inversion over GF(q) that can be made again and again.
pub(crate) trait WordElimination {
    /// The host's time from the matrix to its inverse, which is in the host's memory then.
    fn run(&mut self) -> Result<Duration, Error>;
    /// What the last run came to: nothing if the matrix has no inverse.
    fn inverse(&self) -> Option<&[Element]>;
}

/// Opens a GPU by its number.
pub(crate) fn open(ordinal: u16) -> Result<Box<dyn Lab>, Error> {
    cuda::look_for(ordinal)?;
    Ok(Box::new(gpu::GpuLab::open(ordinal)?))
}
