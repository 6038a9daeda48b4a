//! Parts of files, and what a GPU that codes them does: the interface of file coding, which is a
//! tool (`nccodec`).
//!
//! A *portion* is a part of a file that is coded by itself: a stripe of Reed-Solomon, the source
//! blocks of a segment. A GPU takes a *bite* at a time: as many portions as are worth a launch.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::thread;

use ncs_codec::raptorq::Plan;
use ncs_gf::Kernels;

use super::Error;

/// What portions of a file are like.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// Bytes that one of them reads at most.
    pub input_bytes: usize,
    /// Bytes that one of them makes at most.
    pub output_bytes: usize,
    /// Bytes that a GPU should have at a time, so that a launch is worth it.
    pub bite_bytes: usize,
}

/// A part of a file, and what is to be made of it.
#[derive(Debug)]
pub struct Portion {
    /// What is to be made.
    pub work: Work,
    /// What it is made of; as many bytes as `work` says are read.
    pub input: Memory,
    /// What is made; as many bytes as `work` says are written.
    pub output: Memory,
}

/// What is done with a portion.
#[derive(Debug, Clone)]
pub enum Work {
    /// Nothing: it only keeps its place.
    Nothing,
    /// Rows over n sources of `bytes` bytes, one behind the other: as many results, one behind the
    /// other.
    Product {
        /// n coefficients a row.
        rows: Arc<[u8]>,
        /// Sources.
        n: usize,
        /// Of each.
        bytes: usize,
    },
    /// Plans over source blocks, one behind the other. A plan may have fewer inputs and outputs
    /// than there is room for.
    Replay {
        /// One a source block.
        plans: Vec<Arc<Plan>>,
        /// Of a symbol.
        symbol_bytes: usize,
        /// Symbols of a source block that there is room for.
        inputs: usize,
        /// Symbols that there is room for of what is made of it.
        outputs: usize,
    },
}

impl Work {
    /// Bytes that it reads.
    pub fn input_bytes(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Product { n, bytes, .. } => n * bytes,
            Self::Replay { plans, symbol_bytes, inputs, .. } => plans.len() * inputs * symbol_bytes,
        }
    }

    /// Bytes that it makes.
    pub fn output_bytes(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Product { rows, n, bytes } => rows.len() / n * bytes,
            Self::Replay { plans, symbol_bytes, outputs, .. } => plans.len() * outputs * symbol_bytes,
        }
    }

    /// Whether nothing is made.
    pub fn is_nothing(&self) -> bool {
        self.output_bytes() == 0
    }

    /// Whether a GPU may do both at once: with the same rows, or plans over source blocks that lie
    /// alike.
    pub fn goes_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Product { rows, n, .. }, Self::Product { rows: others, n: of_others, .. }) => {
                Arc::ptr_eq(rows, others) && n == of_others
            }
            (
                Self::Replay { symbol_bytes, inputs, outputs, .. },
                Self::Replay { symbol_bytes: bytes, inputs: ins, outputs: outs, .. },
            ) => (symbol_bytes, inputs, outputs) == (bytes, ins, outs),
            _ => false,
        }
    }

    /// On the CPU, with at most so many threads.
    pub fn run(&self, kernels: Kernels, threads: NonZeroUsize, input: &[u8], output: &mut [u8]) {
        match self {
            Self::Nothing => {}
            Self::Product { rows, n, bytes } => {
                let rows: Vec<&[u8]> = rows.chunks_exact(*n).collect();
                let sources: Vec<&[u8]> = input.chunks_exact(*bytes).take(*n).collect();
                let mut outs: Vec<&mut [u8]> = output.chunks_exact_mut(*bytes).take(rows.len()).collect();
                kernels.combine_threaded(&rows, &sources, &mut outs, threads);
            }
            Self::Replay { plans, symbol_bytes, inputs, outputs } => {
                let (input_bytes, output_bytes) = (inputs * symbol_bytes, outputs * symbol_bytes);
                let run = |plans: &[Arc<Plan>], input: &[u8], output: &mut [u8]| {
                    let blocks = input.chunks(input_bytes).zip(output.chunks_mut(output_bytes));
                    for (plan, (input, output)) in plans.iter().zip(blocks) {
                        let mut outs: Vec<&mut [u8]> = output.chunks_exact_mut(*symbol_bytes).take(plan.outputs()).collect();
                        plan.apply(kernels, &input[..plan.inputs() * symbol_bytes], &mut outs);
                    }
                };
                let each = plans.len().div_ceil(threads.get()).max(1);
                let bytes = input.chunks(each * input_bytes).zip(output.chunks_mut(each * output_bytes));
                let (run, count) = (&run, plans.len());
                thread::scope(|scope| {
                    for (index, (plans, (input, output))) in plans.chunks(each).zip(bytes).enumerate() {
                        if (index + 1) * each >= count {
                            run(plans, input, output)
                        } else {
                            drop(scope.spawn(move || run(plans, input, output)))
                        }
                    }
                });
            }
        }
    }

    /// Whether what it made is the same in both, where it means anything.
    pub fn is_same(&self, one: &[u8], other: &[u8]) -> bool {
        match self {
            Self::Nothing => true,
            Self::Product { .. } => one[..self.output_bytes()] == other[..self.output_bytes()],
            Self::Replay { plans, symbol_bytes, outputs, .. } => {
                let blocks = one.chunks(outputs * symbol_bytes).zip(other.chunks(outputs * symbol_bytes));
                plans.iter().zip(blocks).all(|(plan, (one, other))| {
                    let bytes = plan.outputs() * symbol_bytes;
                    one[..bytes] == other[..bytes]
                })
            }
        }
    }
}

/// Bytes that are allocated once; for a GPU where it reads and writes them fastest.
pub enum Memory {
    /// Anywhere.
    Plain(Vec<u8>),
    /// Where the GPU reads and writes.
    Pinned(Box<dyn DerefMut<Target = [u8]> + Send>),
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Pinned(bytes) => bytes,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Pinned(bytes) => bytes,
        }
    }
}

/// Without the bytes.
impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("bytes", &self.len()).field("is_pinned", &matches!(self, Self::Pinned(_))).finish()
    }
}

/// A GPU that codes portions. It belongs to the thread that opens it.
pub trait Coder {
    /// How many bites may be under way at once.
    fn depth(&self) -> usize;
    /// Begins a bite: portions that go with each other, one at least.
    fn begin(&mut self, bite: Vec<Portion>) -> Result<(), Spat>;
    /// Waits for the bite begun first, of which there has to be one.
    fn end(&mut self) -> (Vec<Portion>, Result<(), Error>);
    /// What allocates memory that it reads and writes fast, if there is a difference; `None` of it
    /// if there is no room.
    fn pinner(&self) -> Option<Pinner>;
}

/// A bite that could not be begun.
#[derive(Debug)]
pub struct Spat {
    /// As it was handed in.
    pub bite: Vec<Portion>,
    /// Why.
    pub error: Error,
}

/// Allocates so many bytes of memory that a GPU reads and writes fast; `None` if there is no room.
pub type Pinner = Box<dyn Fn(usize) -> Option<Memory> + Send + Sync>;
/// Opens a GPU on the thread that it is going to belong to.
pub type Opener = Box<dyn FnOnce() -> Result<Box<dyn Coder>, Error> + Send>;

/// Bites of a GPU that are under way at once: one on its way up, one that is worked on, one on its
/// way back.
pub const LANES: usize = 3;
