//! The device as a contender: queue, thread and pool included.

use std::any::Any;
use std::num::NonZeroU16;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use prometheus::Registry;
use tokio::runtime::{Builder, Runtime};

use super::Error;
use super::clock::Lap;
use super::operation::Checked;
use super::work::Work;
use crate::device::{self, BackendChoice, Batch, Config, Device, IsaChoice, Kernel, KernelChoice, Task, Threads};
use crate::gf::{Isa, Rows};
use crate::object::Shape;

/// A kernel of the CPU back end.
#[derive(Debug, Clone, Copy)]
pub(super) enum Engine {
    Simd(Isa),
    Table,
}

impl Engine {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Simd(Isa::Scalar) => "simd-scalar",
            Self::Simd(Isa::Ssse3) => "simd-ssse3",
            Self::Simd(Isa::Avx2) => "simd-avx2",
            Self::Simd(Isa::Avx512) => "simd-avx512",
            Self::Simd(Isa::Gfni) => "simd-gfni",
            Self::Table => "table",
        }
    }

    /// Loads the work's generation several times over and combines all copies in a batch. Their rows are the same, so that one
    /// expectation holds for all.
    pub(super) fn check(self, work: &Work, load: Load, threads: Threads) -> Result<Option<Checked>, Error> {
        let mut bed = Bed::open(&self.config(threads), work, load)?;
        bed.combine(1)?;
        let (is_right, made) = (bed.is_right(work), bed.batch.blocks() * work.block_bytes());
        Ok(Checked::new(is_right, made, move |repeats| bed.combine(repeats).expect("it has done the same before")))
    }

    fn config(self, threads: Threads) -> Config {
        let (kernel, cpu_isa) = match self {
            Self::Table => (KernelChoice::Named(Kernel::Table), IsaChoice::Auto),
            Self::Simd(Isa::Scalar) => (KernelChoice::Named(Kernel::Simd), IsaChoice::Scalar),
            Self::Simd(Isa::Ssse3) => (KernelChoice::Named(Kernel::Simd), IsaChoice::Ssse3),
            Self::Simd(Isa::Avx2) => (KernelChoice::Named(Kernel::Simd), IsaChoice::Avx2),
            Self::Simd(Isa::Avx512) => (KernelChoice::Named(Kernel::Simd), IsaChoice::Avx512),
            Self::Simd(Isa::Gfni) => (KernelChoice::Named(Kernel::Simd), IsaChoice::Gfni),
        };
        let queue_batches = NonZeroU16::MIN;
        Config { backend: BackendChoice::Cpu, kernel, cpu_isa, cpu_threads: threads, queue_batches, ..Config::default() }
    }
}

/// What a batch asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// n coded blocks of each of as many copies of the generation as a segment may have, and of 4 at most.
    Generations,
    /// 8 coded blocks of one, or n if that is less.
    FewBlocks,
}

impl Load {
    fn generations(self, work: &Work) -> usize {
        match self {
            Self::Generations => (SEGMENT_BYTES_MAX / work.source.len()).clamp(1, 4),
            Self::FewBlocks => 1,
        }
    }

    fn rows(self, work: &Work) -> u16 {
        match self {
            Self::Generations => work.generation.n,
            Self::FewBlocks => work.generation.n.min(8),
        }
    }
}

/// An open device with a batch for it. Fields are dropped in this order: the thread ends when nobody holds the device.
pub(super) struct Bed {
    _pin: Option<Box<dyn Any + Send + Sync>>,
    batch: Batch,
    device: Device,
    _thread: device::Thread,
    runtime: Runtime,
}

impl Bed {
    pub(super) fn open(config: &Config, work: &Work, load: Load) -> Result<Self, Error> {
        let runtime = Builder::new_current_thread().enable_time().build()?;
        let (device, thread) = Device::open(config, &Registry::new())?;
        let bytes = Bytes::from(work.source.repeat(load.generations(work)));
        let generation = &work.generation;
        let shape = Shape::new(bytes.len() as u64, generation.block_bytes, generation.n).map_err(Error::Shape)?;
        let resident = Arc::new(runtime.block_on(device.load(bytes, shape))?);
        let rows = Rows::Seeded { key: work.key, first_seed: work.first_seed, count: load.rows(work).into() };
        let of_task = usize::from(load.rows(work));
        let (mut slots, pin) = slots(&device, work.block_bytes(), of_task * load.generations(work));
        let task = |generation: u32| {
            let (resident, out) = (Arc::clone(&resident), slots.by_ref().take(of_task).collect());
            Task { resident, generation, rows: rows.clone(), out, out_offset: 0 }
        };
        let batch = Batch { tasks: (0..shape.generations()).map(task).collect() };
        Ok(Self { _pin: pin, batch, device, _thread: thread, runtime })
    }

    /// Whether what was combined is what the definition makes.
    pub(super) fn is_right(&self, work: &Work) -> bool {
        let is_right =
            |task: &Task| task.out.iter().zip(work.coded.chunks_exact(work.block_bytes())).all(|(one, other)| one == other);
        self.batch.tasks.iter().all(is_right)
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn batch(&self) -> &Batch {
        &self.batch
    }

    pub(super) fn combine(&mut self, repeats: u32) -> Result<Lap, device::Error> {
        let mut result = Ok(());
        let lap = Lap::process(|| {
            for _ in 0..repeats {
                let batch = std::mem::take(&mut self.batch);
                match self.runtime.block_on(self.device.combine(batch)) {
                    Ok(done) => self.batch = done.batch,
                    Err(failed) => result = Err(failed.error),
                }
            }
        });
        result.map(|()| lap)
    }
}

/// Slots for blocks. Where the device has memory of its own they are pinned and lie side by side, as in the ring.
fn slots(
    device: &Device,
    block_bytes: usize,
    count: usize,
) -> (impl Iterator<Item = BytesMut> + use<>, Option<Box<dyn Any + Send + Sync>>) {
    let mut memory = BytesMut::zeroed(if device.memory().is_some() { count * block_bytes } else { 0 });
    let pin = if memory.is_empty() { None } else { device.pin(&mut memory) };
    let slot = move |_| if memory.is_empty() { BytesMut::zeroed(block_bytes) } else { memory.split_to(block_bytes) };
    ((0..count).map(slot), pin)
}

#[expect(clippy::cast_possible_truncation, reason = "64 MiB")]
const SEGMENT_BYTES_MAX: usize = Shape::LENGTH_MAX as usize;
