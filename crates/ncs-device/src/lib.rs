//! Back ends that hold segments and combine their blocks, each owned by one thread.
//!
//! A [`Device`] is a handle on one back end or several: the CPU, a GPU, some GPUs, or both kinds
//! together. Each lives on a thread of its own, because a GPU context likes one owner and because
//! combining takes a core for as long as it takes. Segments go in with [`Device::load`] and leave
//! when their [`Resident`] is dropped; in between [`Device::combine`] multiplies rows with them. A
//! receiver's work is done by [`Device::decode`], which needs nothing resident: it inverts the
//! coefficients of many generations at once and multiplies.
//!
//! The back ends decide nothing: which rows is the codec's business, when is the encoder's. In
//! which form a segment is held is the back end's secret, one form a run. Who does which part of a
//! batch is decided in [`members`].
//!
//! Three bounded queues lead to each thread, batches, loads and generations to decode; all three
//! are worked on side by side. When a queue is full the caller waits. A batch always comes back,
//! done or with an error, and so do generations to decode.
//!
//! Files that are coded offline (`tools/nccodec`) are nothing resident and go another way:
//! [`portions`] is what a GPU does of them.
//!
//! A GPU that fails, by a fault of a kernel or of itself, that hangs, or whose thread dies, is
//! given up for the rest of the run: the CPU takes its place, what was resident is no longer
//! ([`Resident::is_alive`]) and has to be loaded again, and [`Device::health`] says so. So it is
//! with one that computes over the prime field and hangs; if it fails, the CPU does what it has
//! failed at. If the CPU's own thread dies there is nothing left to fall back to, and that says so,
//! too.
//!
//! GPUs are the feature `cuda`. Without it the crate does not depend on the CUDA driver interface:
//! the CPU does all the work, and who asks for a GPU by name gets [`Error::NotBuilt`].

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use ncs_codec::gfq::{Arithmetic, NotKept};
use ncs_codec::shape::Shape;
use ncs_gf::{Isa, Rows};
use tokio::sync::watch;

#[cfg(feature = "lab")]
pub mod abi;
#[cfg(not(feature = "lab"))]
mod abi;
mod backend;
mod config;
mod cpu;
#[cfg(feature = "lab")]
pub mod cuda;
#[cfg(all(feature = "cuda", not(feature = "lab")))]
mod cuda;
mod decode;
pub mod dense;
pub mod gfq;
mod gpu;
mod kernel;
mod losses;
mod members;
pub mod portions;
mod prime;
mod recorder;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(not(feature = "cuda"))]
mod without_cuda;
mod worker;

pub use abi::Field;
pub use backend::Memory;
pub use config::{BackendChoice, Config, Gpus, IsaChoice, NotGpus, NotThreads, Threads};
pub use decode::{Decode, Decoded, Singular, Undecoded};
pub use gpu::Gpu;
pub use kernel::{Kernel, KernelChoice, UnknownKernel};
pub use ncs_codec::gfq::Kept;
pub use recorder::{Event, Recorder, Tally, Unrecorded};

use members::Members;
use prime::Prime;
#[cfg(not(feature = "cuda"))]
use without_cuda as cuda;
use worker::Part;

/// A handle on a device. Clones are cheap; when the last one is dropped, its threads end.
#[derive(Debug, Clone)]
pub struct Device {
    members: Arc<Members>,
    prime: Arc<Prime>,
}

impl Device {
    /// Opens the back ends that `config` asks for, each on a thread of its own.
    ///
    /// `auto` looks for a GPU and says what it found. What is asked for by name and cannot be had
    /// is an error. `recorder` takes note of what they do.
    pub fn open(config: &Config, recorder: impl Recorder + 'static) -> Result<(Self, Thread), Error> {
        Self::open_for(config, &Workload::default(), recorder)
    }

    /// The same for the work that is to come, which `device.kernel = "auto"` measures with.
    pub fn open_for(config: &Config, workload: &Workload, recorder: impl Recorder + 'static) -> Result<(Self, Thread), Error> {
        let (members, owners) = Members::open(config, workload, Arc::new(recorder))?;
        Ok((Self::over(config, members), Thread { _owners: owners }))
    }

    fn over(config: &Config, members: Members) -> Self {
        let prime = Arc::new(Prime::new(config, members.host(), members.losses()));
        Self { members: Arc::new(members), prime }
    }

    /// The same with somebody else for arithmetic over the prime field, who may end nothing for so
    /// long.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_prime(self, card: Box<dyn Arithmetic>, hang_timeout: Duration) -> Self {
        let config = Config { hang_timeout, ..Config::default() };
        Self { prime: Arc::new(Prime::of(card, &config, self.members.losses())), ..self }
    }

    /// `cpu`, `cuda` or `hybrid`: as it was opened.
    pub fn backend(&self) -> &'static str {
        self.members.backend()
    }

    /// The kernel in use, such as `simd-avx512` or `table`; of the GPUs, where there are any.
    pub fn kernel(&self) -> &'static str {
        self.members.kernel()
    }

    /// Brings a segment onto the device. Waits while the queue is full.
    pub async fn load(&self, bytes: Bytes, shape: Shape) -> Result<Resident, Error> {
        if bytes.len() as u64 != shape.length() {
            return Err(Error::Length { length: bytes.len(), shape: shape.length() });
        }
        self.members.load(bytes, shape).await
    }

    /// Combines rows with resident segments, writing into the slots that come with the batch. Waits
    /// while the queue is full.
    ///
    /// Dropping the future drops the batch once it is done.
    pub async fn combine(&self, batch: Batch) -> Result<Done, Failed> {
        let begun = Instant::now();
        let mut done = self.members.combine(batch).await?;
        done.turnaround = begun.elapsed();
        Ok(done)
    }

    /// Decodes generations, in the order in which they are given: several at a time keep a GPU
    /// busier than one. Waits while the queue is full.
    ///
    /// Dropping the future drops them once they are done.
    pub async fn decode(&self, jobs: Vec<Decode>) -> Result<Vec<Decoded>, Undecoded> {
        self.members.decode(jobs).await
    }

    /// Who does arithmetic over the prime field, found at the first call: it may take as long as
    /// opening a GPU. Its calls do not wait for those of this handle, and may hang with a GPU.
    pub fn prime(&self) -> Arc<dyn Arithmetic> {
        self.prime.get()
    }

    /// Has a job done by them, on a thread where that holds nobody up. [`Error::Lost`] if the GPU
    /// hangs: the job stays there with all that is in it, and done again it is done by the CPU.
    pub async fn compute<T: Send + 'static>(&self, job: impl FnOnce(&dyn Arithmetic) -> T + Send + 'static) -> Result<T, Error> {
        Arc::clone(&self.prime).run(job).await
    }

    /// Brings a segment that is coded over the prime field to where that arithmetic is done, all
    /// its blocks whole. Nothing if it is done with the bytes where they are, or if nothing can be
    /// kept any more.
    pub async fn keep(&self, bytes: Bytes, shape: Shape) -> Result<Option<Arc<dyn Kept>>, Error> {
        let kept = self.compute(move |arithmetic| {
            let padded = shape.blocks() * u64::from(shape.block_bytes());
            let padded = usize::try_from(padded).map_err(|_| NotKept::Memory(padded))?;
            arithmetic.keep(&bytes, padded)
        });
        match kept.await {
            Ok(Ok(kept)) => Ok(kept),
            Ok(Err(NotKept::Memory(bytes))) => Err(Error::Memory { bytes }),
            Ok(Err(NotKept::Failed(failed))) => Err(Error::Unavailable(failed.to_string())),
            Err(Error::Lost(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Finds that now. A GPU that is asked for by name and cannot do it is an error; elsewhere the
    /// CPU does it.
    pub fn open_prime(&self) -> Result<(), Error> {
        self.prime.open().map(drop)
    }

    /// Notices threads that die though nothing is asked of them, for as long as it is polled; what
    /// is asked of them notices that, too.
    pub async fn watch(&self) {
        self.members.watch().await;
    }

    /// Whether it is as it was opened.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.members.health()
    }

    /// Memory of its GPUs in all; `None` if it has no memory but this process's.
    pub fn memory(&self) -> Option<Memory> {
        self.members.memory()
    }

    /// Prepares memory of this process for slots, so that a GPU can write into it. Slots elsewhere
    /// work, too, by way of a copy.
    ///
    /// What comes back undoes it when dropped, which must happen before the memory is given back.
    /// Nothing is done, and nothing comes back, if the device is the CPU or the system refuses.
    pub fn pin(&self, memory: &mut [u8]) -> Option<Box<dyn Any + Send + Sync>> {
        self.members.pin(memory)
    }
}

/// Opens a GPU for portions of files, on the thread that calls.
pub fn open_coder(gpu: u16, demand: &portions::Demand) -> Result<Box<dyn portions::Coder>, Error> {
    cuda::open_coder(gpu, demand)
}

/// What a GPU is, by its number in the driver's order.
pub fn describe(ordinal: u16) -> Result<Gpu, Error> {
    cuda::describe(ordinal)
}

/// What a device's threads end with. Closing or dropping it ends them after the batches in hand and
/// waits for them; batches still in the queue come back with [`Error::Closed`].
#[derive(Debug)]
pub struct Thread {
    _owners: members::Owners,
}

impl Thread {
    /// Ends the threads and waits for them: as long as the batches under way take.
    pub fn close(self) {}
}

/// A segment on the device, until this is dropped.
pub struct Resident {
    shape: Shape,
    parts: Vec<Part>,
    /// Which set of back ends it belongs to, and which is in use now.
    epoch: u64,
    now: Arc<AtomicU64>,
}

impl Resident {
    /// How the segment is cut.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes of device memory that it takes; on the CPU these are bytes of this process.
    pub fn resident_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Whether it can still be combined. Not after a back end that held some of it was lost, or has
    /// ended: then load the segment again.
    pub fn is_alive(&self) -> bool {
        self.now.load(Ordering::Acquire) == self.epoch && self.parts.iter().all(Part::is_held)
    }
}

impl fmt::Debug for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resident").field("shape", &self.shape).field("parts", &self.parts).field("epoch", &self.epoch).finish()
    }
}

/// What most batches will be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Blocks of a generation.
    pub n: u16,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks of a batch.
    pub batch_blocks: u32,
}

impl Default for Workload {
    fn default() -> Self {
        Self { n: 128, block_bytes: 4096, batch_blocks: 1024 }
    }
}

/// Work for one launch.
#[derive(Debug, Default)]
pub struct Batch {
    /// Rows of generations, of the same or of different segments.
    pub tasks: Vec<Task>,
}

impl Batch {
    /// Blocks in it.
    pub fn blocks(&self) -> usize {
        self.tasks.iter().map(|task| task.out.len()).sum()
    }
}

/// Rows of one generation.
pub struct Task {
    /// The segment.
    pub resident: Arc<Resident>,
    /// Index of the generation in it.
    pub generation: u32,
    /// What to combine its blocks with.
    pub rows: Rows,
    /// One slot for each row, at least `out_offset` + `block_bytes` long. What lies before and
    /// behind the block is left alone.
    ///
    /// A GPU writes fastest into slots of pinned memory ([`Device::pin`]) that lie side by side, at
    /// multiples of 16 bytes.
    pub out: Vec<BytesMut>,
    /// Where in each slot the block goes.
    pub out_offset: usize,
}

/// Without the bytes of its slots.
impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resident, generation, rows, out, out_offset } = self;
        let mut task = f.debug_struct("Task");
        task.field("resident", resident).field("generation", generation).field("rows", &rows.count());
        task.field("slots", &out.len()).field("out_offset", out_offset).finish()
    }
}

/// A batch whose slots are written.
#[derive(Debug)]
pub struct Done {
    /// As it was handed in.
    pub batch: Batch,
    /// How long the back end worked on it; the longest if several did.
    pub elapsed: Duration,
    /// From handing it in to having it back: the same with the way through queue and thread.
    pub turnaround: Duration,
    /// Who made it.
    pub makers: Vec<Maker>,
}

/// A back end's part of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maker {
    /// `cpu` or `cuda`.
    pub backend: &'static str,
    /// Its kernel.
    pub kernel: &'static str,
    /// Coded blocks that it made.
    pub coded_blocks: u64,
    /// Their bytes.
    pub coded_bytes: u64,
}

/// A batch that could not be done.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Failed {
    /// As it was handed in; what the slots contain is undefined. Empty only if a thread died over
    /// it, or hangs.
    pub batch: Batch,
    /// What was wrong.
    pub error: Error,
}

/// Whether a device is as it was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Health {
    /// It is.
    #[default]
    Good,
    /// A back end was lost for this reason, and the CPU does its work.
    Degraded(String),
    /// The CPU was lost for this reason, or cannot take a lost back end's place: nothing is coded
    /// any more.
    Dead(String),
}

/// What can go wrong, by what can be done about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The back end that was asked for by name is not to be had.
    #[error("{0}")]
    Unavailable(String),
    /// GPUs were asked for by name, and this program was built without the feature `cuda`.
    #[error("this program was built without support for GPUs (feature `cuda` of ncs-device)")]
    NotBuilt,
    /// No GPU can be used, and the configuration requires one.
    #[error("device.backend = \"{}\": {reason}", .choice.name())]
    NoGpu {
        /// What the configuration says.
        choice: BackendChoice,
        /// Why no GPU can be used.
        reason: String,
    },
    /// The instruction set that was asked for by name is not to be had.
    #[error("device.cpu_isa = \"{0}\": this processor does not support it")]
    Isa(Isa),
    /// A thread could not be started.
    #[error("cannot start the device's thread: {0}")]
    Thread(String),
    /// The device has been closed.
    #[error("the device is closed")]
    Closed,
    /// There is no room for the segment. Evict another one, then try again.
    #[error("out of device memory: cannot allocate {bytes} bytes")]
    Memory {
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// The bytes are not the segment that the shape speaks of.
    #[error("got {length} bytes for a segment of {shape} bytes")]
    Length {
        /// Bytes handed in.
        length: usize,
        /// Bytes of the shape.
        shape: u64,
    },
    /// The batch asks for what the segment does not have.
    #[error("task {task}: {reason}")]
    Task {
        /// Index of the first bad task.
        task: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A resident of a back end that has been lost. Load the segment again.
    #[error("the segment was on a device that was lost")]
    Stale,
    /// The back end is lost for the rest of the run; another takes its place.
    #[error("lost the device: {0}")]
    Lost(String),
    /// A fault of ours inside the back end.
    #[error("the back end failed while combining")]
    Fault,
}

impl Error {
    /// The error without the configuration key, for programs that do not have that key.
    pub fn reason(&self) -> String {
        match self {
            Self::NoGpu { reason, .. } => reason.clone(),
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests;
