//! Back ends that hold segments and combine their blocks, each owned by one thread.
//!
//! A [`Device`] is a handle on one or several back ends: the CPU, a GPU, some GPUs, or both kinds
//! together. Each runs on a thread of its own, because a GPU context should have one owner and
//! because combining occupies a core. [`Device::load`] brings a segment in, and dropping its
//! [`Resident`] releases it. In between [`Device::combine`] multiplies rows with it.
//! [`Device::decode`] does the work of a receiver and needs no resident segment: it inverts the
//! coefficients of many generations at once, and multiplies.
//!
//! The back ends decide nothing: the codec chooses the rows, and the encoder chooses the time. The
//! resident form of segments is the back end's secret, and the same for a whole run. [`members`]
//! decides which back end does which part of a batch.
//!
//! Each thread has three bounded queues: batches, loads, and generations to decode. It works on all
//! three side by side. When a queue is full the caller waits. A batch always comes back, done or
//! with an error, and so do generations to decode.
//!
//! Files that are coded offline (`tools/nccodec`) hold no resident segments and use [`portions`]
//! instead.
//!
//! A GPU is given up for the rest of the run if a kernel or the card fails, if it hangs, or if its
//! thread dies. The CPU then takes its place. Segments that were resident there are lost
//! ([`Resident::is_alive`]) and must be loaded again, and [`Device::health`] reports it. The same
//! holds for a GPU that hangs while it computes over the prime field; if it only fails there, the
//! CPU repeats the failed call. If the CPU's own thread dies, nothing can replace it, and `health`
//! reports that too.
//!
//! GPUs are behind the feature `cuda`. Without it the crate does not depend on the CUDA driver
//! interface: the CPU does all the work, and a configuration that names a GPU gets
//! [`Error::NotBuilt`].

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
mod gfq_provider;
mod gpu;
mod kernel;
mod losses;
mod members;
pub mod portions;
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

use gfq_provider::GfqProvider;
use members::Members;
#[cfg(not(feature = "cuda"))]
use without_cuda as cuda;
use worker::ResidentPart;

/// A handle on a device. Clones are cheap. Dropping the last one ends its threads.
#[derive(Debug, Clone)]
pub struct Device {
    members: Arc<Members>,
    gfq: Arc<GfqProvider>,
}

impl Device {
    /// Opens the configured back ends, each on a thread of its own.
    ///
    /// `auto` looks for a GPU and logs what it found. A back end that is configured by name and
    /// cannot be opened is an error. `recorder` receives events of their work.
    pub fn open(
        config: &Config,
        recorder: impl Recorder + 'static,
    ) -> Result<(Self, Thread), Error> {
        Self::open_for(config, &Workload::default(), recorder)
    }

    /// The same for an expected workload, with which `device.kernel = "auto"` measures.
    pub fn open_for(
        config: &Config,
        workload: &Workload,
        recorder: impl Recorder + 'static,
    ) -> Result<(Self, Thread), Error> {
        let (members, owners) = Members::open(config, workload, Arc::new(recorder))?;
        Ok((Self::over(config, members), Thread { _owners: owners }))
    }

    fn over(config: &Config, members: Members) -> Self {
        let gfq = Arc::new(GfqProvider::new(config, members.host(), members.losses()));
        Self {
            members: Arc::new(members),
            gfq,
        }
    }

    /// Replaces its arithmetic over the prime field by `card`, which is given up if it completes no
    /// call for `hang_timeout`.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_gfq(self, card: Box<dyn Arithmetic>, hang_timeout: Duration) -> Self {
        let config = Config {
            hang_timeout,
            ..Config::default()
        };
        Self {
            gfq: Arc::new(GfqProvider::of(card, &config, self.members.losses())),
            ..self
        }
    }

    /// `cpu`, `cuda` or `hybrid`: the choice at the start.
    pub fn backend(&self) -> &'static str {
        self.members.backend()
    }

    /// The kernel in use, such as `simd-avx512` or `table`. With GPUs it is theirs.
    pub fn kernel(&self) -> &'static str {
        self.members.kernel()
    }

    /// Loads a segment onto the device. Waits while the queue is full.
    pub async fn load(&self, bytes: Bytes, shape: Shape) -> Result<Resident, Error> {
        if bytes.len() as u64 != shape.length() {
            return Err(Error::Length {
                length: bytes.len(),
                shape: shape.length(),
            });
        }
        self.members.load(bytes, shape).await
    }

    /// Combines rows with resident segments, and writes the blocks into the batch's slots. Waits
    /// while the queue is full.
    ///
    /// If the future is dropped, the batch is dropped once it is done.
    pub async fn combine(&self, batch: Batch) -> Result<Done, Failed> {
        let begun = Instant::now();
        let mut done = self.members.combine(batch).await?;
        done.turnaround = begun.elapsed();
        Ok(done)
    }

    /// Decodes generations and returns them in the same order. Several at a time keep a GPU busier
    /// than one. Waits while the queue is full.
    ///
    /// If the future is dropped, the generations are dropped once they are done.
    pub async fn decode(&self, jobs: Vec<Decode>) -> Result<Vec<Decoded>, Undecoded> {
        self.members.decode(jobs).await
    }

    /// The arithmetic over the prime field: a GPU's or the CPU's. The first call opens it, which
    /// can take as long as opening a GPU. Its calls do not wait for other work of this device, and
    /// can hang with a GPU.
    pub fn gfq(&self) -> Arc<dyn Arithmetic> {
        self.gfq.get()
    }

    /// Runs a job with this arithmetic on a thread where it blocks nobody. Returns [`Error::Lost`]
    /// if the GPU hangs: the job is then abandoned with everything in it, and the CPU does a
    /// repeated one.
    pub async fn compute<T: Send + 'static>(
        &self,
        job: impl FnOnce(&dyn Arithmetic) -> T + Send + 'static,
    ) -> Result<T, Error> {
        Arc::clone(&self.gfq).run(job).await
    }

    /// Uploads a segment that is coded over the prime field to the card that does this arithmetic,
    /// padded to whole blocks. `None` if the arithmetic uses the bytes in place, or if the card can
    /// keep nothing any more.
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

    /// Opens the arithmetic over the prime field now. A GPU that is configured by name and cannot
    /// do it is an error; otherwise the CPU does it.
    pub fn open_gfq(&self) -> Result<(), Error> {
        self.gfq.open().map(drop)
    }

    /// Notices threads that die while idle, for as long as this is polled. Calls notice threads
    /// that die during the call.
    pub async fn watch(&self) {
        self.members.watch().await;
    }

    /// Whether the device works as it was opened.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.members.health()
    }

    /// Total memory of its GPUs. `None` if it only uses this process's memory.
    pub fn memory(&self) -> Option<Memory> {
        self.members.memory()
    }

    /// Pins memory of this process for slots, so that a GPU can write into it. Slots in other
    /// memory work too, with an additional copy.
    ///
    /// Dropping the result unpins the memory, and must happen before the memory is freed. Does
    /// nothing and returns `None` if the device is the CPU or the system refuses.
    pub fn pin(&self, memory: &mut [u8]) -> Option<Box<dyn Any + Send + Sync>> {
        self.members.pin(memory)
    }
}

/// Opens a GPU for portions of files on the calling thread.
pub fn open_coder(gpu: u16, demand: &portions::Demand) -> Result<Box<dyn portions::Coder>, Error> {
    cuda::open_coder(gpu, demand)
}

/// Describes a GPU by its number in the driver's order.
pub fn describe(ordinal: u16) -> Result<Gpu, Error> {
    cuda::describe(ordinal)
}

/// Owns the device's threads. Closing or dropping it waits for the batches under way and ends the
/// threads; batches still in the queue come back with [`Error::Closed`].
#[derive(Debug)]
pub struct Thread {
    _owners: members::Owners,
}

impl Thread {
    /// Ends the threads and waits for them, as long as the batches under way take.
    pub fn close(self) {}
}

/// A segment on the device. Dropping it releases the segment.
pub struct Resident {
    shape: Shape,
    parts: Vec<ResidentPart>,
    /// The set of back ends that it belongs to, and the set in use now.
    epoch: u64,
    now: Arc<AtomicU64>,
}

impl Resident {
    /// The segment's shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes of device memory that it takes. On the CPU this is memory of the process.
    pub fn resident_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Whether it can still be combined. It cannot after a back end that held a part of it was lost
    /// or has ended; load the segment again then.
    pub fn is_alive(&self) -> bool {
        self.now.load(Ordering::Acquire) == self.epoch
            && self.parts.iter().all(ResidentPart::is_held)
    }
}

impl fmt::Debug for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resident")
            .field("shape", &self.shape)
            .field("parts", &self.parts)
            .field("epoch", &self.epoch)
            .finish()
    }
}

/// The size of a typical batch.
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
        Self {
            n: 128,
            block_bytes: 4096,
            batch_blocks: 1024,
        }
    }
}

/// Work for one call of [`Device::combine`].
#[derive(Debug, Default)]
pub struct Batch {
    /// Rows of generations, of one or several segments.
    pub tasks: Vec<Task>,
}

impl Batch {
    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.tasks.iter().map(|task| task.out.len()).sum()
    }
}

/// Rows of one generation.
pub struct Task {
    /// The segment.
    pub resident: Arc<Resident>,
    /// Index of the generation in the segment.
    pub generation: u32,
    /// The rows to combine its blocks with.
    pub rows: Rows,
    /// One slot for each row, at least `out_offset` + `block_bytes` long. The bytes before and
    /// after the block are left alone.
    ///
    /// A GPU writes fastest into adjacent slots of pinned memory ([`Device::pin`]) at multiples of
    /// 16 bytes.
    pub out: Vec<BytesMut>,
    /// Offset of the block in each slot.
    pub out_offset: usize,
}

/// Leaves out the bytes of its slots.
impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resident,
            generation,
            rows,
            out,
            out_offset,
        } = self;
        let mut task = f.debug_struct("Task");
        task.field("resident", resident)
            .field("generation", generation)
            .field("rows", &rows.count());
        task.field("slots", &out.len())
            .field("out_offset", out_offset)
            .finish()
    }
}

/// A batch whose blocks are in their slots.
#[derive(Debug)]
pub struct Done {
    /// The batch as it was handed in.
    pub batch: Batch,
    /// Time that the back end worked on it; the longest if there were several.
    pub elapsed: Duration,
    /// Time from the call to its return, including the wait in the queue.
    pub turnaround: Duration,
    /// The back ends that did it.
    pub makers: Vec<Maker>,
}

/// A back end's share of a batch.
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

/// A batch that failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Failed {
    /// The batch as it was handed in; the contents of its slots are undefined. Empty only if a
    /// thread died or hangs during the call.
    pub batch: Batch,
    /// The reason.
    pub error: Error,
}

/// Whether a device works as it was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Health {
    /// All back ends work.
    #[default]
    Good,
    /// A back end was lost for this reason, and the CPU does its work.
    Degraded(String),
    /// The CPU was lost for this reason, or it cannot replace a lost back end. The device codes
    /// nothing any more.
    Dead(String),
}

/// An error, by what the caller can do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A back end that was configured by name cannot be opened.
    #[error("{0}")]
    Unavailable(String),
    /// The configuration names GPUs, and this program was built without the feature `cuda`.
    #[error("this program was built without support for GPUs (feature `cuda` of ncs-device)")]
    NotBuilt,
    /// No GPU can be used, and the configuration requires one.
    #[error("device.backend = \"{}\": {reason}", .choice.name())]
    NoGpu {
        /// The configured value.
        choice: BackendChoice,
        /// Why no GPU can be used.
        reason: String,
    },
    /// The processor does not support the configured instruction set.
    #[error("device.cpu_isa = \"{0}\": this processor does not support it")]
    Isa(Isa),
    /// A thread could not be started.
    #[error("cannot start the device's thread: {0}")]
    Thread(String),
    /// The device has been closed.
    #[error("the device is closed")]
    Closed,
    /// No room for the segment. Evict another one, then try again.
    #[error("out of device memory: cannot allocate {bytes} bytes")]
    Memory {
        /// Bytes requested.
        bytes: u64,
    },
    /// The number of bytes is not that of the shape.
    #[error("got {length} bytes for a segment of {shape} bytes")]
    Length {
        /// Bytes handed in.
        length: usize,
        /// Bytes of the shape.
        shape: u64,
    },
    /// A task does not match its segment.
    #[error("task {task}: {reason}")]
    Task {
        /// Index of the first bad task.
        task: usize,
        /// The reason.
        reason: &'static str,
    },
    /// The segment was resident on a back end that has been lost. Load it again.
    #[error("the segment was on a device that was lost")]
    Stale,
    /// The back end is lost for the rest of the run. Another takes its place.
    #[error("lost the device: {0}")]
    Lost(String),
    /// An internal fault of the back end.
    #[error("the back end failed while combining")]
    Fault,
}

impl Error {
    /// The error's text without the configuration key, for programs that do not have that key.
    pub fn reason(&self) -> String {
        match self {
            Self::NoGpu { reason, .. } => reason.clone(),
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests;
