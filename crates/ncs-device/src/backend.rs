//! The interface of a back end, and the values that it takes and returns.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ncs_codec::shape::{Generation, Shape};
use ncs_gf::Rows;

use super::decode::{Decode, Solved};
use super::{Error, Resident};
use std::sync::Arc;

/// A back end. Only its own thread calls it. No call waits for anything but its own processor: one
/// call begins longer work, and another asks whether it has ended.
///
/// No method has a default body, because a default that silently does nothing looks as if it
/// worked.
pub(crate) trait Backend: Send {
    /// `cpu` or `cuda`.
    fn name(&self) -> &'static str;
    /// The kernel in use, as metrics and logs name it.
    fn kernel(&self) -> &'static str;
    /// How many batches may be under way at once; also how many calls to decode.
    fn depth(&self) -> usize;
    /// Begins to load a segment under a new number. At most one load is under way.
    fn load(&mut self, load: Loading);
    /// The result of the load under way, once it has ended: the memory that the segment takes, in
    /// bytes. Each call advances the load.
    fn loaded(&mut self) -> Option<Result<u64, Error>>;
    /// Begins a batch.
    fn start(&mut self, batch: Vec<Work>);
    /// The oldest batch, once it has ended. Each call advances all batches.
    fn ended(&mut self) -> Option<Ended>;
    /// Begins to decode. The jobs are checked.
    fn decode(&mut self, jobs: Vec<Decode>);
    /// The oldest jobs, once all of them have ended. Each call advances all of them.
    fn decoded(&mut self) -> Option<Solved>;
    /// Frees a segment that no work under way uses.
    fn release(&mut self, id: ResidentId);
    /// The device's memory, if it has one of its own.
    fn memory(&self) -> Option<Memory>;
    /// Times and bytes since the last call.
    fn take_counts(&mut self) -> Counts;
}

/// A segment's number on its device. A number is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ResidentId(pub(super) u64);

/// A segment to load.
#[derive(Debug)]
pub(crate) struct Loading {
    pub(super) id: ResidentId,
    pub(super) bytes: Bytes,
    pub(super) shape: Shape,
    /// Which of its generations to load.
    pub(super) share: Share,
}

/// Every `of`-th generation of a segment, starting with number `index`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(super) index: u32,
    pub(super) of: u32,
}

impl Share {
    /// All generations.
    pub(super) const ALL: Self = Self { index: 0, of: 1 };

    pub(super) const fn has(self, generation: u32) -> bool {
        generation % self.of == self.index
    }

    /// The generations of a segment that are in this share.
    pub(super) fn generations(self, shape: &Shape) -> impl Iterator<Item = Generation> + '_ {
        shape
            .iter()
            .filter(move |generation| self.has(generation.index))
    }
}

/// Rows of one resident generation, checked: the rows match the generation, each row has a slot,
/// and each slot is long enough.
#[derive(Debug)]
pub(crate) struct Work {
    pub(super) id: ResidentId,
    /// Keeps the segment resident.
    pub(super) _resident: Arc<Resident>,
    pub(super) generation: Generation,
    pub(super) rows: Rows,
    /// The row that goes into the first slot.
    pub(super) first_row: usize,
    pub(super) out: Vec<BytesMut>,
    pub(super) out_offset: usize,
    /// Index of the task that this work belongs to.
    pub(super) task: usize,
}

impl Work {
    pub(super) fn n(&self) -> usize {
        usize::from(self.generation.n)
    }

    pub(super) fn block_bytes(&self) -> usize {
        usize::try_from(self.generation.block_bytes).expect("a block fits in memory")
    }
}

/// A batch that has ended. After a failure the contents of its slots are undefined.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(super) batch: Vec<Work>,
    pub(super) result: Result<(), Error>,
    pub(super) elapsed: Duration,
}

/// A device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Total size in bytes.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
}

/// Times and bytes of a device's work.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Time that kernels took.
    pub(super) kernel: Duration,
    /// Time that copies to the host took.
    pub(super) copy: Duration,
    /// Bytes of these copies.
    pub(super) copied_bytes: u64,
    /// Bytes that kernels wrote straight into host memory.
    pub(super) stored_bytes: u64,
}
