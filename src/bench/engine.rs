//! A device with a batch for it, including queue, thread and pool.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::runtime::{Builder, Runtime};

use super::Error;
use super::clock::Lap;
use super::work::Work;
use crate::device::{self, Batch, Config, Device, Task};
use crate::gf::Rows;
use crate::object::Shape;

/// The size of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// n coded blocks of each of several copies of the generation, up to the size of a segment and
    /// at most 4. All copies have the same rows, so that one expected result holds for all.
    Generations,
    /// 8 coded blocks of one generation, or n if that is less.
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

/// An open device with a batch for it. Fields are dropped in this order: the thread ends with the
/// last handle of the device.
pub struct Bed {
    _pin: Option<Box<dyn Any + Send + Sync>>,
    batch: Batch,
    device: Device,
    _thread: device::Thread,
    runtime: Runtime,
}

impl Bed {
    /// Opens the device, and loads as many copies of the work's generation as the load needs.
    pub fn open(config: &Config, work: &Work, load: Load) -> Result<Self, Error> {
        let runtime = Builder::new_current_thread().enable_time().build()?;
        let (device, thread) = Device::open(config, device::Unrecorded)?;
        let bytes = Bytes::from(work.source.repeat(load.generations(work)));
        let generation = &work.generation;
        let shape = Shape::new(bytes.len() as u64, generation.block_bytes, generation.n)
            .map_err(Error::Shape)?;
        let resident = Arc::new(runtime.block_on(device.load(bytes, shape))?);
        let rows = Rows::Seeded {
            key: work.key,
            first_seed: work.first_seed,
            count: load.rows(work).into(),
        };
        let of_task = usize::from(load.rows(work));
        let (mut slots, pin) = slots(
            &device,
            work.block_bytes(),
            of_task * load.generations(work),
        );
        let task = |generation: u32| {
            let (resident, out) = (
                Arc::clone(&resident),
                slots.by_ref().take(of_task).collect(),
            );
            Task {
                resident,
                generation,
                rows: rows.clone(),
                out,
                out_offset: 0,
            }
        };
        let batch = Batch {
            tasks: (0..shape.generations()).map(task).collect(),
        };
        Ok(Self {
            _pin: pin,
            batch,
            device,
            _thread: thread,
            runtime,
        })
    }

    /// Whether the last result matches the definition.
    pub fn is_right(&self, work: &Work) -> bool {
        let is_right = |task: &Task| {
            task.out
                .iter()
                .zip(work.coded.chunks_exact(work.block_bytes()))
                .all(|(one, other)| one == other)
        };
        self.batch.tasks.iter().all(is_right)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The batch, as combined last.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Combines the batch `repeats` times.
    pub fn combine(&mut self, repeats: u32) -> Result<Lap, device::Error> {
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

impl fmt::Debug for Bed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bed")
            .field("device", &self.device)
            .field("batch", &self.batch)
            .finish_non_exhaustive()
    }
}

/// Slots for blocks. For a device with memory of its own they are pinned and adjacent, as in the
/// ring.
fn slots(
    device: &Device,
    block_bytes: usize,
    count: usize,
) -> (
    impl Iterator<Item = BytesMut> + use<>,
    Option<Box<dyn Any + Send + Sync>>,
) {
    let mut memory = BytesMut::zeroed(if device.memory().is_some() {
        count * block_bytes
    } else {
        0
    });
    let pin = if memory.is_empty() {
        None
    } else {
        device.pin(&mut memory)
    };
    let slot = move |_| {
        if memory.is_empty() {
            BytesMut::zeroed(block_bytes)
        } else {
            memory.split_to(block_bytes)
        }
    };
    ((0..count).map(slot), pin)
}

#[expect(clippy::cast_possible_truncation, reason = "64 MiB")]
const SEGMENT_BYTES_MAX: usize = Shape::LENGTH_MAX as usize;
