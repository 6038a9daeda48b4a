//! Parts of files, and the interface of a GPU that codes them. The tool `nccodec` uses it.
//!
//! A *portion* is a part of a file that is coded by itself: a stripe of Reed-Solomon, or the source
//! blocks of a segment. A GPU takes a *bite* at a time: as many portions as are worth a launch.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::thread;

use ncs_codec::raptorq::Plan;
use ncs_gf::Kernels;

use super::Error;

/// The sizes of a file's portions.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// Maximum input bytes of a portion.
    pub input_bytes: usize,
    /// Maximum output bytes of a portion.
    pub output_bytes: usize,
    /// Bytes that a GPU should get at a time, so that a launch is worth its cost.
    pub bite_bytes: usize,
}

/// A part of a file, and the work on it.
#[derive(Debug)]
pub struct Portion {
    /// The work.
    pub work: Work,
    /// Its input; `work` says how many bytes of it are read.
    pub input: Memory,
    /// Its output; `work` says how many bytes of it are written.
    pub output: Memory,
}

/// The work on a portion.
#[derive(Debug, Clone)]
pub enum Work {
    /// Nothing: the portion only keeps its place in the order.
    Nothing,
    /// A matrix times n contiguous sources of `bytes` bytes. Results are contiguous as well.
    Product {
        /// n coefficients per row.
        rows: Arc<[u8]>,
        /// Number of sources.
        n: usize,
        /// Bytes of a source.
        bytes: usize,
    },
    /// Plans over contiguous source blocks. A plan may have fewer inputs and outputs than there is
    /// room for.
    Replay {
        /// One plan per source block.
        plans: Vec<Arc<Plan>>,
        /// Bytes of a symbol.
        symbol_bytes: usize,
        /// Input symbols of a source block that there is room for.
        inputs: usize,
        /// Output symbols of a source block that there is room for.
        outputs: usize,
    },
    /// Work that no GPU does.
    Cpu(Arc<dyn CpuWork>),
}

/// Work that only the CPU does, on one thread.
pub trait CpuWork: fmt::Debug + Send + Sync {
    /// Bytes of its input.
    fn input_bytes(&self) -> usize;
    /// Bytes of its output.
    fn output_bytes(&self) -> usize;
    /// Does the work. Both may have more bytes than it reads and writes.
    fn run(&self, input: &[u8], output: &mut [u8]);
}

impl Work {
    /// Bytes of its input.
    pub fn input_bytes(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Product { n, bytes, .. } => n * bytes,
            Self::Replay {
                plans,
                symbol_bytes,
                inputs,
                ..
            } => plans.len() * inputs * symbol_bytes,
            Self::Cpu(work) => work.input_bytes(),
        }
    }

    /// Bytes of its output.
    pub fn output_bytes(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Product { rows, n, bytes } => rows.len() / n * bytes,
            Self::Replay {
                plans,
                symbol_bytes,
                outputs,
                ..
            } => plans.len() * outputs * symbol_bytes,
            Self::Cpu(work) => work.output_bytes(),
        }
    }

    /// Whether it has no output.
    pub fn is_nothing(&self) -> bool {
        self.output_bytes() == 0
    }

    /// Whether a GPU can do both in one bite: they have the same rows, or plans over source blocks
    /// of the same layout.
    pub fn goes_with(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Product { rows, n, .. },
                Self::Product {
                    rows: others,
                    n: of_others,
                    ..
                },
            ) => Arc::ptr_eq(rows, others) && n == of_others,
            (
                Self::Replay {
                    symbol_bytes,
                    inputs,
                    outputs,
                    ..
                },
                Self::Replay {
                    symbol_bytes: bytes,
                    inputs: ins,
                    outputs: outs,
                    ..
                },
            ) => (symbol_bytes, inputs, outputs) == (bytes, ins, outs),
            _ => false,
        }
    }

    /// Does the work on the CPU with at most `threads` threads.
    pub fn run(&self, kernels: Kernels, threads: NonZeroUsize, input: &[u8], output: &mut [u8]) {
        match self {
            Self::Nothing => {}
            Self::Product { rows, n, bytes } => {
                let rows: Vec<&[u8]> = rows.chunks_exact(*n).collect();
                let sources: Vec<&[u8]> = input.chunks_exact(*bytes).take(*n).collect();
                let mut outs: Vec<&mut [u8]> =
                    output.chunks_exact_mut(*bytes).take(rows.len()).collect();
                kernels.combine_threaded(&rows, &sources, &mut outs, threads);
            }
            Self::Replay {
                plans,
                symbol_bytes,
                inputs,
                outputs,
            } => {
                let (input_bytes, output_bytes) = (inputs * symbol_bytes, outputs * symbol_bytes);
                let run = |plans: &[Arc<Plan>], input: &[u8], output: &mut [u8]| {
                    let blocks = input
                        .chunks(input_bytes)
                        .zip(output.chunks_mut(output_bytes));
                    for (plan, (input, output)) in plans.iter().zip(blocks) {
                        let mut outs: Vec<&mut [u8]> = output
                            .chunks_exact_mut(*symbol_bytes)
                            .take(plan.outputs())
                            .collect();
                        plan.apply(kernels, &input[..plan.inputs() * symbol_bytes], &mut outs);
                    }
                };
                let each = plans.len().div_ceil(threads.get()).max(1);
                let bytes = input
                    .chunks(each * input_bytes)
                    .zip(output.chunks_mut(each * output_bytes));
                let (run, count) = (&run, plans.len());
                thread::scope(|scope| {
                    for (index, (plans, (input, output))) in
                        plans.chunks(each).zip(bytes).enumerate()
                    {
                        if (index + 1) * each >= count {
                            run(plans, input, output)
                        } else {
                            drop(scope.spawn(move || run(plans, input, output)))
                        }
                    }
                });
            }
            Self::Cpu(work) => work.run(input, output),
        }
    }

    /// Whether two outputs of this work are equal, ignoring bytes that it does not write.
    pub fn is_same(&self, one: &[u8], other: &[u8]) -> bool {
        match self {
            Self::Nothing => true,
            Self::Product { .. } | Self::Cpu(_) => {
                one[..self.output_bytes()] == other[..self.output_bytes()]
            }
            Self::Replay {
                plans,
                symbol_bytes,
                outputs,
                ..
            } => {
                let blocks = one
                    .chunks(outputs * symbol_bytes)
                    .zip(other.chunks(outputs * symbol_bytes));
                plans.iter().zip(blocks).all(|(plan, (one, other))| {
                    let bytes = plan.outputs() * symbol_bytes;
                    one[..bytes] == other[..bytes]
                })
            }
        }
    }
}

/// Memory that is allocated once. For a GPU it is where it reads and writes fastest.
pub enum Memory {
    /// Ordinary memory.
    Plain(Vec<u8>),
    /// Pinned memory, which the GPU reads and writes directly.
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

/// Leaves out the bytes.
impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("bytes", &self.len())
            .field("is_pinned", &matches!(self, Self::Pinned(_)))
            .finish()
    }
}

/// A GPU that codes portions. It belongs to the thread that opens it.
pub trait Coder {
    /// Maximum bites under way at once.
    fn depth(&self) -> usize;
    /// Begins a bite: at least one portion, all of which go with each other.
    fn begin(&mut self, bite: Vec<Portion>) -> Result<(), Spat>;
    /// Waits for the oldest bite. There must be one.
    fn end(&mut self) -> (Vec<Portion>, Result<(), Error>);
    /// An allocator of memory that the GPU reads and writes fast. `None` if any memory is as fast.
    fn pinner(&self) -> Option<Pinner>;
}

/// A bite that could not begin.
#[derive(Debug)]
pub struct Spat {
    /// The bite as it was handed in.
    pub bite: Vec<Portion>,
    /// The reason.
    pub error: Error,
}

/// Allocates memory that a GPU reads and writes fast. Returns `None` if there is no room.
pub type Pinner = Box<dyn Fn(usize) -> Option<Memory> + Send + Sync>;
/// Opens a GPU on the thread that will own it.
pub type Opener = Box<dyn FnOnce() -> Result<Box<dyn Coder>, Error> + Send>;

/// Bites of a GPU that are under way at once: one is uploaded, one is computed, one is downloaded.
pub const LANES: usize = 3;
