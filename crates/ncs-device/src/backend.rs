//! What a back end has to do, and what it is given.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ncs_codec::shape::{Generation, Shape};
use ncs_gf::Rows;

use super::decode::{Decode, Solved};
use super::{Error, Resident};
use std::sync::Arc;

/// A back end. It is called from its own thread only, and nothing it does waits for anything but
/// its own processor: what takes longer is begun by one call and asked for by another.
///
/// No method has a default body: one that silently does nothing would look as if it worked.
pub(crate) trait Backend: Send {
    /// `cpu` or `cuda`.
    fn name(&self) -> &'static str;
    /// The kernel in use, as metrics and logs name it.
    fn kernel(&self) -> &'static str;
    /// How many batches may be under way at once, and how many lists of generations to decode.
    fn depth(&self) -> usize;
    /// Begins to take a segment in, under a number that has not been used before. One at a time.
    fn load(&mut self, load: Loading);
    /// How the load under way ended: the bytes of memory that the segment takes. Asking moves it
    /// on.
    fn loaded(&mut self) -> Option<Result<u64, Error>>;
    /// Begins a batch.
    fn start(&mut self, batch: Vec<Work>);
    /// The batch begun first, if it has ended. Asking moves all of them on.
    fn ended(&mut self) -> Option<Ended>;
    /// Begins to decode. The jobs have been checked.
    fn decode(&mut self, jobs: Vec<Decode>);
    /// The jobs begun first, if all of them have ended. Asking moves all on.
    fn decoded(&mut self) -> Option<Solved>;
    /// Frees a segment. None of its work is under way.
    fn release(&mut self, id: ResidentId);
    /// The device's memory, if it has one of its own.
    fn memory(&self) -> Option<Memory>;
    /// Times and bytes since the last call.
    fn take_counts(&mut self) -> Counts;
}

/// A segment's number on its device, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ResidentId(pub(super) u64);

/// A segment on its way in.
#[derive(Debug)]
pub(crate) struct Loading {
    pub(super) id: ResidentId,
    pub(super) bytes: Bytes,
    pub(super) shape: Shape,
    /// Which of its generations.
    pub(super) share: Share,
}

/// Every `of`-th generation of a segment, from number `index` on.
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

    /// The generations of a segment that belong to it.
    pub(super) fn generations(self, shape: &Shape) -> impl Iterator<Item = Generation> + '_ {
        shape.iter().filter(move |generation| self.has(generation.index))
    }
}

/// Rows of one generation that is on the device, checked: the rows fit it, there is a slot for
/// each, and each is long enough.
#[derive(Debug)]
pub(crate) struct Work {
    pub(super) id: ResidentId,
    /// Keeps it resident.
    pub(super) _resident: Arc<Resident>,
    pub(super) generation: Generation,
    pub(super) rows: Rows,
    /// The row that goes into the first slot.
    pub(super) first_row: usize,
    pub(super) out: Vec<BytesMut>,
    pub(super) out_offset: usize,
    /// Which task of the batch this is a part of.
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

/// A batch that has ended. If it failed, the contents of the slots are undefined.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(super) batch: Vec<Work>,
    pub(super) result: Result<(), Error>,
    pub(super) elapsed: Duration,
}

/// Memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All of it, in bytes.
    pub total: u64,
    /// What nobody uses, in bytes.
    pub free: u64,
}

/// What a device has done.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Time that its kernels took.
    pub(super) kernel: Duration,
    /// Time that copies to the host took.
    pub(super) copy: Duration,
    /// Bytes of these copies.
    pub(super) copied_bytes: u64,
    /// Bytes written by kernels straight into memory of the host.
    pub(super) stored_bytes: u64,
}
