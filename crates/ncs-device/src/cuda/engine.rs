//! The back end of a GPU.
//!
//! A batch is cut into launches of at most `OUT_BYTES` of blocks. Each launch takes a *lane*. The
//! tasks are uploaded, one kernel makes the coefficients from their seeds, another combines, and
//! the blocks are copied to their slots: all in one stream, without a wait in between. There are
//! several lanes, so that the next launch computes while the blocks of the last one are copied; the
//! next may belong to the same batch or to a later one. Batches end in the order in which they
//! began.
//!
//! A fault of the driver ends all work. The engine waits for work under way as far as possible.
//! Every batch comes back with [`Error::Lost`], and so does every later request.

use std::collections::VecDeque;
use std::time::Instant;

use ncs_gf::Rows;

use super::card::{Card, bytes_of};
use super::driver::{Address, Context, Fault};
use super::host::HostMemory;
use super::image::Image;
use super::kernels::{COPY_THREADS, Combine, Demand, Variant};
use super::lane::BatchLane;
use super::launch::{self, Grid};
use super::loader::Loader;
use super::plan::{self, Cursor, Limits, Piece, Run, Way};
use super::solver::Solver;
use crate::Error;
use crate::abi;
use crate::backend::{Backend, Counts, Ended, Loading, Memory, ResidentId, Work};
use crate::decode::{Decode, Solved};

/// A GPU that holds segments and combines their blocks.
pub(super) struct Engine {
    combine: &'static Combine,
    batches: VecDeque<Running>,
    /// Number of the oldest batch.
    first_batch: u64,
    active: Vec<Active>,
    idle: Vec<BatchLane>,
    loader: Loader,
    solver: Solver,
    load_fault: Option<Fault>,
    host: HostMemory,
    counts: Counts,
    lost: Option<String>,
    /// Dropped last: the fields above hold memory of its context.
    card: Card,
}

/// A batch under way.
struct Running {
    batch: Vec<Work>,
    cursor: Cursor,
    launches: usize,
    begun: Instant,
    error: Option<Error>,
}

/// The blocks that a launch makes, and their way to their slots.
#[derive(Clone, Copy)]
struct LaunchPlan<'a> {
    works: &'a [Work],
    pieces: &'a [Piece],
    /// The slots of each piece.
    runs: &'a [Vec<Run>],
    way: Way,
}

/// A launch under way.
struct Active {
    /// `None` once the launch is done.
    lane: Option<BatchLane>,
    batch: u64,
    pieces: Vec<Piece>,
    way: Way,
    bytes: usize,
}

impl Engine {
    /// Allocates all device memory of a run, except for segments.
    pub(super) fn new(
        card: Card,
        combine: &'static Combine,
        host: HostMemory,
    ) -> Result<Self, Fault> {
        let lanes = (0..LANES).map(|_| BatchLane::new(&card, OUT_BYTES, ROW_BYTES, UPLOAD_BYTES));
        let engine = Self {
            combine,
            batches: VecDeque::new(),
            first_batch: 0,
            active: Vec::with_capacity(LANES),
            idle: lanes.collect::<Result<_, _>>()?,
            loader: Loader::new(&card, combine.form)?,
            solver: Solver::new(&card, combine)?,
            load_fault: None,
            host,
            counts: Counts::default(),
            lost: None,
            card,
        };
        engine.card.function(Image::Rows, "nc_rows", 0)?;
        engine.card.function(Image::Forms, "nc_copy_to_slots", 0)?;
        Ok(engine)
    }

    /// Returns the card without anything of this engine on it.
    pub(super) fn into_card(self) -> Card {
        self.card
    }

    fn limits(&self) -> Limits {
        let coefficient_bytes = self.combine.row_form.bytes();
        Limits {
            out_bytes: OUT_BYTES,
            row_bytes: ROW_BYTES,
            upload_bytes: UPLOAD_BYTES / 2,
            coefficient_bytes,
        }
    }

    /// Ends launches that are done, and begins launches on free lanes.
    fn advance(&mut self) -> Result<(), Fault> {
        let mut index = 0;
        while index < self.active.len() {
            if self.active[index]
                .lane
                .as_ref()
                .map_or(Ok(true), BatchLane::is_done)?
            {
                let active = self.active.swap_remove(index);
                self.retire(active)?;
            } else {
                index += 1;
            }
        }
        let limits = self.limits();
        for index in 0..self.batches.len() {
            while !self.idle.is_empty() && !self.batches[index].is_cut() {
                let Running { batch, cursor, .. } = &mut self.batches[index];
                let pieces = cursor.next(batch, &limits);
                self.launch(index, pieces)?;
            }
        }
        Ok(())
    }

    /// Accounts for a launch that is done, and copies its blocks to slots that the device could not
    /// reach.
    fn retire(&mut self, mut active: Active) -> Result<(), Fault> {
        let Some(lane) = active.lane.take() else {
            return Ok(());
        };
        let Active {
            batch, way, bytes, ..
        } = active;
        let (kernel, copy) = lane.times()?;
        self.counts.kernel += kernel;
        match way {
            Way::Stores => self.counts.stored_bytes += bytes as u64,
            Way::Copies | Way::Scatter | Way::Bounce => {
                self.counts.copy += copy;
                self.counts.copied_bytes += bytes as u64;
            }
        }
        let index = usize::try_from(batch - self.first_batch).expect("few batches are under way");
        let running = &mut self.batches[index];
        running.launches -= 1;
        if way == Way::Bounce {
            let mut rest = lane.bounced();
            for piece in &active.pieces {
                let work = &mut running.batch[piece.work];
                let (k, offset) = (work.block_bytes(), work.out_offset);
                for slot in &mut work.out[piece.slots.clone()] {
                    let (block, others) = rest.split_at(k);
                    slot[offset..offset + k].copy_from_slice(block);
                    rest = others;
                }
            }
        }
        self.idle.push(lane);
        Ok(())
    }

    /// Begins a launch on an idle lane.
    fn launch(&mut self, index: usize, pieces: Vec<Piece>) -> Result<(), Fault> {
        let Some(mut lane) = self.idle.pop() else {
            return Ok(());
        };
        let batch = self.first_batch + index as u64;
        let (way, bytes) = self.begin(&mut lane, index, &pieces)?;
        self.batches[index].launches += 1;
        self.active.push(Active {
            lane: Some(lane),
            batch,
            pieces,
            way,
            bytes,
        });
        Ok(())
    }

    fn begin(
        &mut self,
        lane: &mut BatchLane,
        index: usize,
        pieces: &[Piece],
    ) -> Result<(Way, usize), Fault> {
        let works = &mut self.batches[index].batch;
        let (mut bytes, mut runs, mut is_pinned, mut is_aligned) =
            (0, Vec::with_capacity(pieces.len()), true, true);
        let mut view = self.host.view();
        for piece in pieces {
            let work = &mut works[piece.work];
            let (k, offset) = (work.block_bytes(), work.out_offset);
            bytes += k * piece.slots.len();
            let addresses = work.out[piece.slots.clone()]
                .iter_mut()
                .map(|slot| slot.as_mut_ptr() as usize + offset);
            let addresses = addresses.map(|address| {
                let range = view.range(address, k);
                is_pinned &= range.is_some();
                is_aligned &= address.is_multiple_of(STORE_ALIGN);
                (address, range)
            });
            runs.push(plan::runs(addresses, k));
        }
        drop(view);
        is_aligned &= runs
            .iter()
            .flatten()
            .all(|run| run.pitch.is_multiple_of(STORE_ALIGN));
        let way = plan::way(
            bytes,
            runs.iter().map(Vec::len).sum(),
            is_pinned,
            is_aligned,
        );

        lane.begin(way != Way::Stores)?;
        let works = &self.batches[index].batch;
        let variant = self.variant(works, pieces)?;
        let plan = LaunchPlan {
            works,
            pieces,
            runs: &runs,
            way,
        };
        let tasks = self.tasks(lane, plan, &variant);
        let addresses = (way == Way::Scatter).then(|| put_addresses(lane, &runs));
        self.compute(lane, &tasks, &variant)?;
        if way != Way::Stores {
            lane.mark_computed()?;
            self.deliver(lane, plan, addresses, bytes)?;
        }
        lane.mark_done()?;
        Ok((way, bytes))
    }

    /// The variant of the kernel for these pieces.
    fn variant(&self, works: &[Work], pieces: &[Piece]) -> Result<Variant, Fault> {
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let shape = |piece: &Piece| {
            let work = &works[piece.work];
            (
                number(work.n()),
                number(piece.slots.len()),
                number(work.block_bytes()),
            )
        };
        let demand = Demand::of(pieces.iter().map(shape), &self.card);
        self.combine.variant_for(&demand)
    }

    /// The tasks of a launch. The rows and addresses that they point to are added to the upload.
    fn tasks(&self, lane: &mut BatchLane, plan: LaunchPlan<'_>, variant: &Variant) -> Tasks {
        let LaunchPlan {
            works,
            pieces,
            runs,
            way,
        } = plan;
        let mut tasks = Tasks {
            list: Vec::with_capacity(pieces.len()),
            units: 0,
            rows: 0,
            needs_rows: !variant.makes_rows,
        };
        let (mut out, mut coefficients) = (lane.out.address(), lane.rows.address());
        for (piece, runs) in pieces.iter().zip(runs) {
            let work = &works[piece.work];
            let segment = self
                .loader
                .segment(work.id)
                .expect("a batch is not begun without its segments");
            let (n, k) = (u32::from(work.generation.n), work.generation.block_bytes);
            let pitch = work.n().next_multiple_of(abi::ROW_ALIGN) * self.combine.row_form.bytes();
            let mut first = work.first_row + piece.slots.start;
            let destinations = match way {
                Way::Stores => runs.as_slice(),
                _ => &[Run {
                    start: 0,
                    pitch: 0,
                    count: piece.slots.len(),
                }],
            };
            for run in destinations {
                let (kind, given, first_seed, key) = given(lane, &work.rows, first, run.count);
                tasks.needs_rows |= kind != abi::ROWS_SEEDED;
                let rows = u32::try_from(run.count).expect("fewer rows than bytes of a launch");
                let (out_address, out_pitch) = match way {
                    Way::Stores => (
                        run.start as Address,
                        u32::try_from(run.pitch).expect("runs are closer than that"),
                    ),
                    _ => (out, k),
                };
                let task = abi::Task {
                    source: segment.address(work.generation.index),
                    out: out_address,
                    coefficients,
                    given,
                    key: key.0,
                    generation: key.1,
                    first_seed,
                    kind,
                    rows,
                    out_pitch,
                    n,
                    k,
                    first_unit: tasks.units,
                    first_row: tasks.rows,
                };
                tasks.units += variant.units(rows, k);
                tasks.rows += rows;
                tasks.list.push(task);
                out += u64::from(rows) * u64::from(k);
                coefficients += rows as u64 * pitch as u64;
                first += run.count;
            }
        }
        if !tasks.needs_rows {
            tasks.list.iter_mut().for_each(|task| task.coefficients = 0);
        }
        tasks
    }

    /// Begins the kernels.
    fn compute(&self, lane: &mut BatchLane, tasks: &Tasks, variant: &Variant) -> Result<(), Fault> {
        let count = u32::try_from(tasks.list.len()).expect("few tasks");
        let row_form = self.combine.row_form as u32;
        let mut launch = abi::Launch {
            tasks: 0,
            count,
            units: tasks.units,
            rows: tasks.rows,
            row_form,
            ..Default::default()
        };
        match launch.few.get_mut(..tasks.list.len()) {
            Some(few) => few.copy_from_slice(&tasks.list),
            None => {
                let mut address = None;
                for task in &tasks.list {
                    let at = lane.put(bytes_of(task));
                    address.get_or_insert(at);
                }
                launch.tasks = address.unwrap_or(0);
            }
        }
        lane.send()?;
        if tasks.needs_rows {
            let n = tasks.list.iter().map(|task| task.n).max().unwrap_or(1);
            // SAFETY: tasks describe memory of this lane and of segments that their works keep, and
            // the lane is not reused before its stream is done.
            unsafe { launch::rows(&self.card, &launch, n, &lane.stream) }?;
        }
        // SAFETY: as above; slots are pinned, and the caller that handed them in does not touch
        // them before the batch has ended.
        unsafe {
            launch::combine(
                &self.card,
                self.combine,
                variant,
                &launch,
                self.card.sms,
                &lane.stream,
            )
        }
    }

    /// Begins to copy the blocks to their slots.
    fn deliver(
        &self,
        lane: &mut BatchLane,
        plan: LaunchPlan<'_>,
        addresses: Option<Address>,
        bytes: usize,
    ) -> Result<(), Fault> {
        let LaunchPlan {
            works,
            pieces,
            runs,
            way,
        } = plan;
        let mut offset = 0;
        match way {
            Way::Stores => {}
            Way::Bounce => lane.copy_to_bounce(&self.card, bytes)?,
            Way::Copies => {
                for (piece, runs) in pieces.iter().zip(runs) {
                    let k = works[piece.work].block_bytes();
                    for run in runs {
                        // SAFETY: pinned, as `way` was told, and nothing else uses them until the
                        // batch has ended.
                        unsafe { lane.copy_to_run(offset, k, run) }?;
                        offset += k * run.count;
                    }
                }
            }
            Way::Scatter => {
                let function = self.card.function(Image::Forms, "nc_copy_to_slots", 0)?;
                let grid = Grid::line(SCATTER_BLOCKS, COPY_THREADS, 0);
                let mut addresses = addresses.expect("they were put");
                for piece in pieces {
                    let (k, count) = (works[piece.work].generation.block_bytes, piece.slots.len());
                    let from = lane.out.address() + offset as u64;
                    let count = u32::try_from(count).expect("fewer rows than bytes of a launch");
                    // SAFETY: pinned and aligned, as `way` was told; the addresses were uploaded
                    // with the tasks.
                    unsafe {
                        launch::scatter(
                            function,
                            grid,
                            addresses,
                            (from, k),
                            (count, k),
                            &lane.stream,
                        )
                    }?;
                    addresses += u64::from(count) * plan::ADDRESS_BYTES as u64;
                    offset += count as usize * k as usize;
                }
            }
        }
        Ok(())
    }

    /// Gives up all work after a fault of the driver.
    fn lose(&mut self, fault: &Fault) {
        let reason = fault.to_string();
        for active in std::mem::take(&mut self.active) {
            let index = usize::try_from(active.batch - self.first_batch)
                .expect("few batches are under way");
            self.batches[index].launches -= 1;
            // The drop waits. A failed driver reports its failure again; a working one stops
            // writing to slots.
        }
        for running in &mut self.batches {
            running
                .error
                .get_or_insert_with(|| Error::Lost(reason.clone()));
        }
        self.solver.lose(&reason);
        self.lost.get_or_insert(reason);
    }
}

impl Running {
    /// Whether no more of it is to begin.
    fn is_cut(&self) -> bool {
        self.error.is_some() || self.cursor.is_at_end(&self.batch)
    }
}

/// The tasks of a launch.
struct Tasks {
    list: Vec<abi::Task>,
    units: u32,
    rows: u32,
    /// Whether the kernel needs rows as input.
    needs_rows: bool,
}

/// Describes rows from number `first` on: their kind, the address of explicit ones, the first seed,
/// the key.
fn given(
    lane: &mut BatchLane,
    rows: &Rows,
    first: usize,
    count: usize,
) -> (u32, Address, u32, (u64, u64)) {
    match rows {
        Rows::Seeded {
            key, first_seed, ..
        } => {
            let offset = u32::try_from(first).expect("fewer rows than 2^32");
            (
                abi::ROWS_SEEDED,
                0,
                first_seed.wrapping_add(offset),
                (key.key, key.generation),
            )
        }
        Rows::Explicit { n, coefficients } => {
            let n = usize::from(*n);
            let address = lane.put(&coefficients[first * n..(first + count) * n]);
            (abi::ROWS_EXPLICIT, address, 0, (0, 0))
        }
        Rows::Source { indices } => {
            let bytes: Vec<u8> = indices[first..first + count]
                .iter()
                .flat_map(|index| index.to_le_bytes())
                .collect();
            (abi::ROWS_SOURCE, lane.put(&bytes), 0, (0, 0))
        }
    }
}

/// Adds the address of every slot to the upload.
fn put_addresses(lane: &mut BatchLane, runs: &[Vec<Run>]) -> Address {
    let every = runs
        .iter()
        .flatten()
        .flat_map(|run| (0..run.count).map(|i| (run.start + i * run.pitch) as u64));
    let bytes: Vec<u8> = every.flat_map(u64::to_le_bytes).collect();
    lane.put(&bytes)
}

impl Backend for Engine {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn kernel(&self) -> &'static str {
        self.combine.kernel
    }

    fn depth(&self) -> usize {
        LANES
    }

    fn load(&mut self, load: Loading) {
        self.load_fault = match &self.lost {
            Some(reason) => Some(Fault::Driver(reason.clone())),
            None => self.loader.begin(load).err(),
        };
    }

    fn loaded(&mut self) -> Option<Result<u64, Error>> {
        let result = match self.load_fault.take() {
            Some(fault) => Err(fault),
            None => self.loader.advance(&self.card),
        };
        match result {
            Ok(None) => None,
            Ok(Some(bytes)) => Some(Ok(bytes)),
            Err(fault) => {
                self.loader.abandon();
                if let Fault::Driver(_) = &fault {
                    self.lose(&fault);
                }
                Some(Err(fault.into()))
            }
        }
    }

    fn start(&mut self, batch: Vec<Work>) {
        let is_known = batch
            .iter()
            .all(|work| self.loader.segment(work.id).is_some());
        let error = match &self.lost {
            Some(reason) => Some(Error::Lost(reason.clone())),
            None => (!is_known).then_some(Error::Stale),
        };
        self.batches.push_back(Running {
            batch,
            cursor: Cursor::default(),
            launches: 0,
            begun: Instant::now(),
            error,
        });
        if let Err(fault) = self.advance() {
            self.lose(&fault);
        }
    }

    fn ended(&mut self) -> Option<Ended> {
        if self.lost.is_none()
            && let Err(fault) = self.advance()
        {
            self.lose(&fault);
        }
        let is_over = self
            .batches
            .front()
            .is_some_and(|running| running.launches == 0 && running.is_cut());
        let Running {
            batch,
            begun,
            error,
            ..
        } = self.batches.pop_front_if(|_| is_over)?;
        self.first_batch += 1;
        Some(Ended {
            batch,
            result: error.map_or(Ok(()), Err),
            elapsed: begun.elapsed(),
        })
    }

    fn decode(&mut self, jobs: Vec<Decode>) {
        self.solver.begin(jobs, self.lost.clone().map(Error::Lost));
    }

    fn decoded(&mut self) -> Option<Solved> {
        if self.lost.is_none()
            && let Err(fault) = self.solver.advance(&self.card, &mut self.counts)
        {
            self.lose(&fault);
        }
        self.solver.ended()
    }

    fn release(&mut self, id: ResidentId) {
        if let Err(fault) = self.loader.free(id) {
            self.lose(&fault);
        }
    }

    fn memory(&self) -> Option<Memory> {
        let (free, total) = Context::memory().unwrap_or_default();
        Some(Memory { total, free })
    }

    fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        // Nothing may write to slots and buffers after they are given back. If the work is done, or
        // the driver has failed, this wait is short.
        if let Some(lane) = &self.lane {
            let _ = lane.stream.synchronize();
        }
    }
}

/// Launches under way at once. Two copy and compute in turn while the third is prepared.
const LANES: usize = 3;
/// Blocks of one launch. Copies of 16 MiB reach 99 % of the link's rate, of 1 MiB 88 %.
const OUT_BYTES: usize = 16 << 20;
/// Coefficients of one launch.
const ROW_BYTES: usize = 32 << 20;
/// Upload of one launch: tasks and explicit rows, which are limited to half of this, and their
/// alignment.
const UPLOAD_BYTES: usize = 8 << 20;
/// Kernels store sixteen bytes at a time.
const STORE_ALIGN: usize = 16;
/// A few thread blocks fill the link.
pub(super) const SCATTER_BLOCKS: u32 = 16;

#[cfg(test)]
impl Engine {
    /// See [`Loader::poison`].
    pub(super) fn poison(&mut self) {
        self.loader.poison();
    }
}
