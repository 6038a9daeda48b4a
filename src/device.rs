//! Back ends that hold segments and combine their blocks, each owned by one thread.
//!
//! A [`Device`] is a handle; the back end behind it lives on a thread of its own, because a GPU context likes one owner and
//! because combining takes a core for as long as it takes. Segments go in with [`Device::load`] and leave when their
//! [`Resident`] is dropped; in between [`Device::combine`] multiplies rows with them. The back end decides nothing: which rows
//! is the codec's business, when is the encoder's. In which form a segment is held is the back end's secret, one form a run.
//!
//! Two bounded queues lead to the thread, batches and loads. Batches go first, but after `BATCHES_IN_A_ROW` of them a waiting
//! load gets its turn, so that neither waits for long. When a queue is full the caller waits. A batch always comes back, done or
//! with an error.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use prometheus::Registry;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::sync::{mpsc, oneshot};

use crate::gf::{Isa, Rows};
use crate::object::Shape;

mod cpu;
mod cuda;
pub(crate) mod lab;
mod metrics;
mod worker;

pub use worker::Thread;

/// What a back end has to do. It is called from its own thread only.
///
/// No method has a default body: one that silently does nothing would look as if it worked.
pub(crate) trait Backend: Send {
    /// `cpu` or `cuda`.
    fn name(&self) -> &'static str;
    /// The kernel in use, as metrics and logs name it.
    fn kernel(&self) -> &'static str;
    /// Takes a segment under a number that has not been used before; returns the bytes of memory that it takes.
    fn load(&mut self, id: ResidentId, bytes: &[u8], shape: &Shape) -> Result<u64, Error>;
    /// Writes every block of the batch, or reports the first fault; then the contents of the outs are undefined.
    fn combine(&mut self, batch: &mut Batch) -> Result<(), Error>;
    /// Frees a segment.
    fn release(&mut self, id: ResidentId);
}

/// A handle on a device. Clones are cheap; when the last one is dropped, the thread ends.
#[derive(Debug, Clone)]
pub struct Device {
    backend: &'static str,
    kernel: &'static str,
    batches: mpsc::Sender<worker::Combine>,
    loads: mpsc::Sender<worker::Load>,
}

impl Device {
    /// Opens the back end that `config` asks for, on a thread of its own.
    ///
    /// `auto` looks for a GPU and says what it found. What is asked for by name and cannot be had is an error.
    pub fn open(config: &Config, registry: &Registry) -> Result<(Self, Thread), Error> {
        match config.backend {
            BackendChoice::Cuda => return Err(cuda::explain_absence()),
            BackendChoice::Auto => cuda::log_probe(),
            BackendChoice::Cpu => {}
        }
        let backend = cpu::Cpu::open(config)?;
        tracing::info!("segments are held in memory and combined on the CPU by the {} kernel", backend.kernel());
        worker::spawn(Box::new(backend), config.queue_batches, registry)
    }

    /// `cpu` or `cuda`.
    pub fn backend(&self) -> &'static str {
        self.backend
    }

    /// The kernel in use, such as `simd-avx512` or `table`.
    pub fn kernel(&self) -> &'static str {
        self.kernel
    }

    /// Brings a segment onto the device. Waits while the queue is full.
    pub async fn load(&self, bytes: Bytes, shape: Shape) -> Result<Resident, Error> {
        if bytes.len() as u64 != shape.length() {
            return Err(Error::Length { length: bytes.len(), shape: shape.length() });
        }
        let (reply, answer) = oneshot::channel();
        self.loads.send(worker::Load { bytes, shape, reply }).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }

    /// Combines rows with resident segments, writing into the slots that come with the batch. Waits while the queue is full.
    ///
    /// Dropping the future drops the batch once it is done.
    pub async fn combine(&self, batch: Batch) -> Result<Done, Failed> {
        let (reply, answer) = oneshot::channel();
        if let Err(mpsc::error::SendError(job)) = self.batches.send(worker::Combine { batch, reply }).await {
            return Err(Failed { batch: job.batch, error: Error::Closed });
        }
        let gone = |_| Err(Failed { batch: Batch::default(), error: Error::Closed });
        answer.await.unwrap_or_else(gone)
    }
}

/// A segment on the device, until this is dropped.
pub struct Resident {
    id: ResidentId,
    shape: Shape,
    bytes: u64,
    release: mpsc::UnboundedSender<(ResidentId, u64)>,
}

impl Resident {
    /// How the segment is cut.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes of device memory that it takes; on the CPU these are bytes of this process.
    pub fn resident_bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        // If the thread has ended, so has what it held.
        let _ = self.release.send((self.id, self.bytes));
    }
}

impl fmt::Debug for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resident").field("id", &self.id.0).field("shape", &self.shape).field("bytes", &self.bytes).finish()
    }
}

/// A segment's number on its device, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ResidentId(u64);

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
#[derive(Debug)]
pub struct Task {
    /// The segment.
    pub resident: Arc<Resident>,
    /// Index of the generation in it.
    pub generation: u32,
    /// What to combine its blocks with.
    pub rows: Rows,
    /// One slot for each row, at least `out_offset` + `block_bytes` long. What lies before and behind the block is left alone.
    pub out: Vec<BytesMut>,
    /// Where in each slot the block goes.
    pub out_offset: usize,
}

/// A batch whose slots are written.
#[derive(Debug)]
pub struct Done {
    /// As it was handed in.
    pub batch: Batch,
    /// How long the back end worked on it.
    pub elapsed: Duration,
}

/// A batch that could not be done.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Failed {
    /// As it was handed in; what the slots contain is undefined. Empty only if the thread died over it.
    pub batch: Batch,
    /// What was wrong.
    pub error: Error,
}

/// What can go wrong, by what can be done about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The back end that was asked for by name is not to be had.
    #[error("{0}")]
    Unavailable(String),
    /// The instruction set that was asked for by name is not to be had.
    #[error("device.cpu_isa = \"{0}\": this processor does not have it")]
    Isa(Isa),
    /// A thread could not be started.
    #[error("no thread for the device: {0}")]
    Thread(String),
    /// A metric could not be registered.
    #[error("{0}")]
    Metrics(String),
    /// The device has been closed.
    #[error("the device is closed")]
    Closed,
    /// There is no room for the segment. Evict another one, then try again.
    #[error("no memory for {bytes} bytes on the device")]
    Memory {
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// The bytes are not the segment that the shape speaks of.
    #[error("{length} bytes for a segment of {shape}")]
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
    /// A fault of ours inside the back end.
    #[error("the back end failed while combining")]
    Fault,
}

/// Section `[device]` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where segments are held and combined.
    pub backend: BackendChoice,
    /// How they are combined.
    pub kernel: KernelChoice,
    /// The instruction set of the CPU's `simd` kernel.
    pub cpu_isa: IsaChoice,
    /// Threads that combine on the CPU.
    pub cpu_threads: Threads,
    /// Batches, and as many loads, that wait for the device; when it is full the encoder waits.
    pub queue_batches: NonZeroU16,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            backend: BackendChoice::Auto,
            kernel: KernelChoice::Auto,
            cpu_isa: IsaChoice::Auto,
            cpu_threads: Threads::Auto,
            queue_batches: NonZeroU16::new(4).expect("4 is not zero"),
        }
    }
}

/// `device.backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendChoice {
    /// A GPU if there is one that this build can use, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU, or no start.
    Cuda,
}

/// `device.kernel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KernelChoice {
    /// The fastest of the back end.
    #[default]
    Auto,
    /// Vector instructions over packed bytes.
    Simd,
    /// Sums of logarithms and one table of powers, over segments held as logarithms: what GPUs do, and their oracle.
    Table,
}

/// `device.cpu_isa`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IsaChoice {
    /// The fastest that the processor has.
    #[default]
    Auto,
    /// [`Isa::Scalar`].
    Scalar,
    /// [`Isa::Ssse3`].
    Ssse3,
    /// [`Isa::Avx2`].
    Avx2,
    /// [`Isa::Avx512`].
    Avx512,
    /// [`Isa::Gfni`].
    Gfni,
}

impl IsaChoice {
    /// The instruction set, unless the choice is left to the processor.
    pub const fn isa(self) -> Option<Isa> {
        match self {
            Self::Auto => None,
            Self::Scalar => Some(Isa::Scalar),
            Self::Ssse3 => Some(Isa::Ssse3),
            Self::Avx2 => Some(Isa::Avx2),
            Self::Avx512 => Some(Isa::Avx512),
            Self::Gfni => Some(Isa::Gfni),
        }
    }
}

/// `device.cpu_threads`: a number, or `"auto"` for one a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Threads {
    /// One for each core that this process may use.
    #[default]
    Auto,
    /// This many.
    Count(NonZeroU16),
}

impl Threads {
    /// How many that is here.
    pub fn count(self) -> usize {
        match self {
            Self::Auto => std::thread::available_parallelism().map_or(1, usize::from),
            Self::Count(count) => usize::from(count.get()),
        }
    }
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Count(count) => write!(f, "{count}"),
        }
    }
}

impl FromStr for Threads {
    type Err = NotThreads;

    fn from_str(text: &str) -> Result<Self, NotThreads> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => text.parse().ok().filter(|count| *count <= THREADS_MAX).map(Self::Count).ok_or(NotThreads),
        }
    }
}

/// A text that is no number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("threads are \"auto\" or a number from 1 to {THREADS_MAX}")]
pub struct NotThreads;

impl Serialize for Threads {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Count(count) => serializer.serialize_u16(count.get()),
        }
    }
}

impl<'de> Deserialize<'de> for Threads {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Threads;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"auto\" or a number from 1 to {THREADS_MAX}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Threads, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Threads, E> {
                number.to_string().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Threads, E> {
                number.to_string().parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// Batches that are done while a load waits, before it gets its turn.
const BATCHES_IN_A_ROW: u32 = 4;

const THREADS_MAX: NonZeroU16 = NonZeroU16::new(1024).expect("1024 is not zero");

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "numbers of a test")]
mod tests {
    use super::*;
    use crate::gf::{Kernels, RowKey, gf256};

    const KEY: RowKey = RowKey { key: 7, generation: 0 };
    const HEADROOM: usize = 11;

    fn config(kernel: KernelChoice, threads: u16) -> Config {
        let cpu_threads = Threads::Count(NonZeroU16::new(threads).unwrap());
        Config { backend: BackendChoice::Cpu, kernel, cpu_threads, ..Config::default() }
    }

    fn slots(count: usize, block_bytes: usize) -> Vec<BytesMut> {
        vec![BytesMut::from(vec![0xEE; HEADROOM + block_bytes + 3].as_slice()); count]
    }

    fn rows(count: u32, n: u16) -> [Rows; 3] {
        let explicit = (0..count * u32::from(n)).map(|i| (i * 37 + i / 256) as u8).collect::<Vec<_>>();
        let source = (0..count).map(|i| (i % u32::from(n)) as u16).collect();
        [
            Rows::Seeded { key: KEY, first_seed: u32::MAX - 1, count },
            Rows::Explicit { n, coefficients: explicit.into() },
            Rows::Source { indices: source },
        ]
    }

    fn expected(bytes: &[u8], shape: &Shape, generation: u32, rows: &Rows, i: usize) -> Vec<u8> {
        let generation = shape.generation(generation).unwrap();
        let start = generation.offset as usize;
        let mut row = vec![0; usize::from(generation.n)];
        rows.fill(i, &mut row);
        let mut sum = vec![0; generation.block_bytes as usize];
        let blocks = bytes[start..start + generation.length as usize].chunks(sum.len());
        for (&c, block) in row.iter().zip(blocks) {
            sum.iter_mut().zip(block).for_each(|(sum, &byte)| *sum ^= gf256::mul(c, byte));
        }
        sum
    }

    #[tokio::test]
    async fn a_batch_over_many_generations_is_written_into_its_slots() {
        for (kernel, threads) in [(KernelChoice::Simd, 1), (KernelChoice::Simd, 3), (KernelChoice::Table, 2)] {
            let registry = Registry::new();
            let (device, thread) = Device::open(&config(kernel, threads), &registry).unwrap();
            let shape = Shape::new(9_999, 96, 24).unwrap();
            let bytes: Bytes = (0..9_999_u32).map(|i| ((i * i) >> 3) as u8).collect::<Vec<_>>().into();
            let resident = Arc::new(device.load(bytes.clone(), shape).await.unwrap());
            assert!(resident.resident_bytes() >= 9_999);
            let mut batch = Batch::default();
            for generation in 0..shape.generations() {
                for (rows, count) in rows(9, shape.generation(generation).unwrap().n).into_iter().zip([9, 9, 9]) {
                    let (resident, out) = (Arc::clone(&resident), slots(count, 96));
                    batch.tasks.push(Task { resident, generation, rows, out, out_offset: HEADROOM });
                }
            }
            let done = device.combine(batch).await.unwrap();
            for task in &done.batch.tasks {
                for (i, slot) in task.out.iter().enumerate() {
                    let block = expected(&bytes, &shape, task.generation, &task.rows, i);
                    assert_eq!(slot[HEADROOM..HEADROOM + 96], block);
                    assert!(slot[..HEADROOM].iter().chain(&slot[HEADROOM + 96..]).all(|&byte| byte == 0xEE));
                }
            }
            drop((done, resident));
            // Releases go before batches, so an answered batch proves that the release was taken.
            device.combine(Batch::default()).await.unwrap();
            let gauges = registry.gather().into_iter().filter(|family| family.name().contains("resident"));
            assert!(gauges.map(|family| family.get_metric()[0].get_gauge().get_value()).all(|value| value == 0.0));
            thread.close();
            assert_eq!(device.combine(Batch::default()).await.unwrap_err().error, Error::Closed);
        }
    }

    #[tokio::test]
    async fn a_bad_batch_comes_back_untouched() {
        let (device, _thread) = Device::open(&config(KernelChoice::Auto, 2), &Registry::new()).unwrap();
        let shape = Shape::new(640, 64, 10).unwrap();
        assert!(matches!(device.load(Bytes::from_static(b"short"), shape).await, Err(Error::Length { length: 5, shape: 640 })));
        let resident = Arc::new(device.load(vec![1; 640].into(), shape).await.unwrap());
        let good = |out_offset| Task {
            resident: Arc::clone(&resident),
            generation: 0,
            rows: Rows::Seeded { key: KEY, first_seed: 0, count: 2 },
            out: slots(2, 64),
            out_offset,
        };
        for bad in [
            Task { generation: 1, ..good(0) },
            Task { rows: Rows::Seeded { key: KEY, first_seed: 0, count: 3 }, ..good(0) },
            Task { rows: Rows::Explicit { n: 9, coefficients: vec![0; 18].into() }, ..good(0) },
            Task { rows: Rows::Source { indices: vec![0, 10] }, ..good(0) },
            good(HEADROOM + 4),
            good(usize::MAX),
        ] {
            let failed = device.combine(Batch { tasks: vec![good(0), bad] }).await.unwrap_err();
            assert!(matches!(failed.error, Error::Task { task: 1, .. }), "{}", failed.error);
            assert_eq!(failed.batch.blocks(), 4);
            assert!(failed.batch.tasks.iter().flat_map(|task| &task.out).flatten().all(|&byte| byte == 0xEE));
        }
        device.combine(Batch { tasks: vec![good(HEADROOM)] }).await.unwrap();
    }

    #[test]
    fn what_is_asked_for_by_name_is_had_or_refused() {
        for isa in ["scalar", "ssse3", "avx2", "avx512", "gfni"] {
            let config: Config = toml::from_str(&format!("backend = \"cpu\"\ncpu_isa = \"{isa}\"")).unwrap();
            let opened = Device::open(&config, &Registry::new()).map(|(device, _thread)| device.kernel());
            match Kernels::new(isa.parse().unwrap()) {
                Some(_) => assert_eq!(opened, Ok(format!("simd-{isa}")).as_deref().map_err(Error::clone)),
                None => assert_eq!(opened, Err(Error::Isa(isa.parse().unwrap()))),
            }
        }
        let config = Config { backend: BackendChoice::Cuda, ..Config::default() };
        assert!(matches!(Device::open(&config, &Registry::new()), Err(Error::Unavailable(_))));
    }

    #[test]
    fn the_section_reads_and_prints() {
        let text = "backend = \"cpu\"\nkernel = \"table\"\ncpu_isa = \"ssse3\"\ncpu_threads = 3\nqueue_batches = 2\n";
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!(config.cpu_isa.isa(), Some(Isa::Ssse3));
        assert_eq!(config.cpu_threads.count(), 3);
        assert_eq!(toml::to_string(&config).unwrap(), text);
        assert_eq!(toml::from_str::<Config>("").unwrap(), Config::default());
        assert_eq!(toml::from_str::<Config>("cpu_threads = \"auto\"").unwrap().cpu_threads, Threads::Auto);
        for bad in
            ["cpu_threads = 0", "cpu_threads = -1", "cpu_threads = 1025", "queue_batches = 0", "cpu_isa = \"mmx\"", "x = 1"]
        {
            assert!(toml::from_str::<Config>(bad).is_err(), "{bad}");
        }
    }
}
