//! What measurements ask of a GPU: any kernel by name, on a part of the card, the stages of a batch apart, timed by the card's own
//! events, and every byte to look at.
//!
//! The product's back end launches one kernel and hides the rest; the papers' tables need what it hides, and kernels that it never
//! launches. Times are those of warm launches: an implementation allocates when a work is made, and runs it once before.

use std::time::Duration;

use super::{Error, Field};

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
}

/// The facts about a GPU that figures depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) name: String,
    pub(crate) driver: String,
    pub(crate) sms: u32,
    pub(crate) memory_bytes: u64,
    /// Such as 9.0.
    pub(crate) compute_capability: (u32, u32),
    /// The most that the processor clock can be, in MHz.
    pub(crate) clock_mhz: u32,
}

/// So many rows of so many generations, all alike in shape.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Encode<'a> {
    pub(crate) kernel: &'a str,
    pub(crate) field: Field,
    pub(crate) n: u16,
    pub(crate) k: u32,
    pub(crate) generations: u32,
    /// Of each generation.
    pub(crate) rows: u32,
    /// Whole generations one behind the other, n * k bytes each. Fewer than `generations` are used in turn, each in memory of its
    /// own.
    pub(crate) sources: &'a [u8],
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
    pub(crate) decoder: Decoder<'a>,
    pub(crate) n: u16,
    pub(crate) k: u32,
    pub(crate) generations: u32,
    /// The coefficients of the blocks, n * n bytes a generation (for `Decoder::Given` their inverse); fewer are used in turn.
    pub(crate) matrices: &'a [u8],
    /// Payloads, n * k bytes a generation; fewer are used in turn.
    pub(crate) payloads: &'a [u8],
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

/// Opens a GPU by its number.
pub(crate) fn open(gpu: u16) -> Result<Box<dyn Lab>, Error> {
    super::cuda::open_lab(gpu)
}
