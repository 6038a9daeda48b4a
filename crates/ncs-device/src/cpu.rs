//! The CPU back end: a pool of threads that combines segments held as packed bytes or as
//! logarithms.
//!
//! `simd` holds each generation as a [`Panel`] and combines with the kernels of one instruction
//! set. `table` holds it as logarithms: a product is one addition, one look-up in the table of
//! powers, and a select for the marker of zero. It is the GPU's default kernel in plain Rust, slow
//! but exact.
//!
//! A batch is cut into units. A unit is a few rows of one generation: whole blocks, and at least
//! [`Kernels::ROWS`] of them, because the kernels load each source once for that many rows. If a
//! batch has too few units for all threads, it is cut across the blocks as well; a unit then has
//! the same range of bytes of each of its rows. The owner's thread and the pool's threads take
//! units from one queue until it is empty. They share no memory: a unit owns the slots that it
//! writes, or pieces of them. Slots are cut into pieces and joined again without a copy. The queue
//! keeps its buffers for the next batch.

use std::array;
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use bytes::BytesMut;
use ncs_codec::shape::{Generation, Shape};
use ncs_gf::gf256::{EXP, LOG, LOG_OF_ZERO};
use ncs_gf::panel::{are_sparse, part};
use ncs_gf::{Isa, Kernels, Panel, Rows};

use super::backend::{Backend, Counts, Ended, Loading, Memory, ResidentId, Share, Work};
use super::decode::{Decode, Solved};
use super::{Config, Error, KernelChoice, kernel};

/// The CPU back end.
#[derive(Debug)]
pub(super) struct Cpu {
    kernel: Kernel,
    pool: Pool,
    segments: HashMap<ResidentId, Arc<Segment>>,
    ended: Option<Ended>,
    loaded: Option<Result<u64, Error>>,
    solved: Option<Solved>,
}

#[derive(Debug, Clone, Copy)]
enum Kernel {
    Simd(Kernels),
    Table,
}

impl Cpu {
    /// Chooses the kernel and starts the pool.
    pub(super) fn open(config: &Config) -> Result<Self, Error> {
        let kernel = match (config.kernel, config.cpu_isa.isa()) {
            (KernelChoice::Named(kernel::Kernel::Table), _) => Kernel::Table,
            (
                KernelChoice::Default
                | KernelChoice::Auto
                | KernelChoice::Named(kernel::Kernel::Simd),
                isa,
            ) => Kernel::Simd(isa.map_or_else(
                || Ok(Kernels::detect()),
                |isa| Kernels::new(isa).ok_or(Error::Isa(isa)),
            )?),
            (KernelChoice::Named(kernel), _) => {
                return Err(Error::Unavailable(format!(
                    "device.kernel = \"{kernel}\": the CPU has \"simd\" and \"table\""
                )));
            }
        };
        let pool = Pool::start(config.cpu_threads.count(), kernel)?;
        Ok(Self {
            kernel,
            pool,
            segments: HashMap::new(),
            ended: None,
            loaded: None,
            solved: None,
        })
    }

    fn combine(&mut self, batch: &mut [Work]) -> Result<(), Error> {
        let segment = |work: &Work| self.segments.get(&work.id).cloned().ok_or(Error::Stale);
        let segments = batch.iter().map(segment).collect::<Result<Vec<_>, _>>()?;
        self.pool.combine(batch, &segments)
    }

    /// Solves one job per thread, or gives each job several threads if there are enough. The
    /// threads are started here, since the work takes much longer than their start. SIMD decodes
    /// even with the kernel `table`, because nothing here is resident.
    fn solve(&self, jobs: &mut [Decode]) -> Result<Vec<bool>, Error> {
        let kernels = match self.kernel {
            Kernel::Simd(kernels) => kernels,
            Kernel::Table => Kernels::detect(),
        };
        let threads = self.pool.threads();
        let each = NonZeroUsize::new(threads / jobs.len().max(1)).unwrap_or(NonZeroUsize::MIN);
        let workers = jobs.len().min(threads);
        let mut solved = vec![false; jobs.len()];
        let left = Mutex::new(jobs.iter_mut().zip(&mut solved));
        let take = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some((
                Decode {
                    n,
                    coefficients,
                    payloads,
                    out,
                },
                is_solved,
            )) = take()
            {
                *is_solved = kernels.solve(usize::from(*n), coefficients, payloads, out, each);
            }
        };
        let scope = || {
            std::thread::scope(|scope| {
                (1..workers).for_each(|_| drop(scope.spawn(work)));
                work();
            })
        };
        catch_unwind(AssertUnwindSafe(scope)).map_err(|_| Error::Fault)?;
        Ok(solved)
    }

    fn take_in(
        &mut self,
        Loading {
            id,
            bytes,
            shape,
            share,
        }: Loading,
    ) -> Result<u64, Error> {
        let segment = Segment::new(&bytes, &shape, share, self.kernel)?;
        let memory_bytes = segment.memory_bytes();
        self.segments.insert(id, Arc::new(segment));
        Ok(memory_bytes)
    }
}

/// Each call completes its work before it returns: the thread has nothing else to do.
impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn kernel(&self) -> &'static str {
        match self.kernel {
            Kernel::Table => "table",
            Kernel::Simd(kernels) => match kernels.isa() {
                Isa::Scalar => "simd-scalar",
                Isa::Ssse3 => "simd-ssse3",
                Isa::Avx2 => "simd-avx2",
                Isa::Avx512 => "simd-avx512",
                Isa::Gfni => "simd-gfni",
            },
        }
    }

    fn depth(&self) -> usize {
        1
    }

    fn load(&mut self, load: Loading) {
        self.loaded = Some(self.take_in(load));
    }

    fn loaded(&mut self) -> Option<Result<u64, Error>> {
        self.loaded.take()
    }

    fn start(&mut self, mut batch: Vec<Work>) {
        let begun = Instant::now();
        let result = self.combine(&mut batch);
        self.ended = Some(Ended {
            batch,
            result,
            elapsed: begun.elapsed(),
        });
    }

    fn ended(&mut self) -> Option<Ended> {
        self.ended.take()
    }

    fn decode(&mut self, mut jobs: Vec<Decode>) {
        let begun = Instant::now();
        let result = self.solve(&mut jobs);
        self.solved = Some(Solved {
            jobs,
            result,
            elapsed: begun.elapsed(),
        });
    }

    fn decoded(&mut self) -> Option<Solved> {
        self.solved.take()
    }

    fn release(&mut self, id: ResidentId) {
        self.segments.remove(&id);
    }

    fn memory(&self) -> Option<Memory> {
        None
    }

    fn take_counts(&mut self) -> Counts {
        Counts::default()
    }
}

/// A segment in resident form.
#[derive(Debug)]
struct Segment {
    share: Share,
    generations: Vec<Form>,
}

impl Segment {
    fn new(bytes: &[u8], shape: &Shape, share: Share, kernel: Kernel) -> Result<Self, Error> {
        let generations = share.generations(shape).map(|generation| {
            let start = usize::try_from(generation.offset).expect("a segment fits in memory");
            let length = usize::try_from(generation.length).expect("a segment fits in memory");
            Form::new(&bytes[start..start + length], &generation, kernel)
        });
        Ok(Self {
            share,
            generations: generations.collect::<Result<_, _>>()?,
        })
    }

    /// Index of a generation of the share among those held.
    fn index(&self, generation: u32) -> usize {
        usize::try_from(generation / self.share.of)
            .expect("a generation was found under this index")
    }

    fn memory_bytes(&self) -> u64 {
        let bytes = self.generations.iter().map(|form| match form {
            Form::Packed(panel) => panel.memory_bytes(),
            Form::Logs(logs) => logs.blocks.len(),
        });
        bytes.sum::<usize>() as u64
    }
}

/// A generation in resident form.
#[derive(Debug)]
enum Form {
    Packed(Panel),
    Logs(Logs),
}

impl Form {
    fn new(bytes: &[u8], generation: &Generation, kernel: Kernel) -> Result<Self, Error> {
        let (n, block_bytes) = (usize::from(generation.n), block_bytes(generation));
        let memory = |_| Error::Memory {
            bytes: generation.padded_length(),
        };
        Ok(match kernel {
            Kernel::Simd(_) => {
                let mut panel = Panel::try_new(n, block_bytes).map_err(memory)?;
                bytes
                    .chunks(block_bytes)
                    .enumerate()
                    .for_each(|(index, block)| panel.put(index, block));
                Self::Packed(panel)
            }
            Kernel::Table => {
                let mut blocks = Vec::new();
                blocks.try_reserve_exact(n * block_bytes).map_err(memory)?;
                blocks.extend(bytes.iter().map(|&byte| LOG[usize::from(byte)]));
                blocks.resize(n * block_bytes, LOG_OF_ZERO);
                Self::Logs(Logs {
                    block_bytes,
                    blocks,
                })
            }
        })
    }

    fn n(&self) -> usize {
        match self {
            Self::Packed(panel) => panel.n(),
            Self::Logs(logs) => logs.blocks.len() / logs.block_bytes,
        }
    }
}

/// The padded blocks of a generation, each byte as its logarithm.
#[derive(Debug)]
struct Logs {
    block_bytes: usize,
    blocks: Vec<u8>,
}

impl Logs {
    /// Computes these bytes of a row's sum of products.
    fn combine(&self, row: &[u8], bytes: Range<usize>, out: &mut [u8]) {
        out.fill(0);
        for (&c, block) in row.iter().zip(self.blocks.chunks_exact(self.block_bytes)) {
            let log = LOG[usize::from(c)];
            if log != LOG_OF_ZERO {
                let powers: &[u8; 256] = EXP[usize::from(log)..]
                    .first_chunk()
                    .expect("512 powers, logarithms below 255");
                out.iter_mut()
                    .zip(&block[bytes.clone()])
                    .for_each(|(sum, &log)| {
                        *sum ^= if log == LOG_OF_ZERO {
                            0
                        } else {
                            powers[usize::from(log)]
                        };
                    });
            }
        }
    }

    fn copy_to(&self, index: usize, out: &mut [u8]) {
        let block = &self.blocks[index * self.block_bytes..][..self.block_bytes];
        out.iter_mut().zip(block).for_each(|(byte, &log)| {
            *byte = if log == LOG_OF_ZERO {
                0
            } else {
                EXP[usize::from(log)]
            }
        });
    }
}

/// Some rows of a task, or a range of bytes of them, with their slots or pieces of these slots.
#[derive(Debug)]
struct Unit {
    task: usize,
    segment: Arc<Segment>,
    generation: usize,
    rows: Rows,
    first_row: usize,
    /// The range of bytes in a block.
    bytes: Range<usize>,
    slots: Vec<BytesMut>,
    /// Where this range begins in a slot.
    offset: usize,
    failed: bool,
}

impl Unit {
    fn run(&mut self, kernel: Kernel, scratch: &mut Vec<u8>) {
        let form = &self.segment.generations[self.generation];
        let (n, block) = (form.n(), self.offset..self.offset + self.bytes.len());
        if let Rows::Source { indices } = &self.rows {
            for (slot, &index) in self.slots.iter_mut().zip(&indices[self.first_row..]) {
                match form {
                    Form::Packed(panel) => {
                        panel.copy_to(usize::from(index), &mut slot[block.clone()])
                    }
                    Form::Logs(logs) => logs.copy_to(usize::from(index), &mut slot[block.clone()]),
                }
            }
            return;
        }
        scratch.resize(n * self.slots.len(), 0);
        for (row, i) in scratch.chunks_exact_mut(n).zip(self.first_row..) {
            self.rows.fill(i, row);
        }
        let count = self.slots.len();
        let rows = scratch.chunks_exact(n);
        let slots = self.slots.iter_mut().map(|slot| &mut slot[block.clone()]);
        match (form, kernel) {
            (Form::Logs(logs), _) => rows
                .zip(slots)
                .for_each(|(row, slot)| logs.combine(row, self.bytes.clone(), slot)),
            (Form::Packed(panel), Kernel::Simd(kernels)) => {
                let mut row_refs: [&[u8]; UNIT_ROWS_MAX] = [&[]; UNIT_ROWS_MAX];
                let mut outs: [&mut [u8]; UNIT_ROWS_MAX] =
                    array::from_fn(|_| <&mut [u8]>::default());
                row_refs
                    .iter_mut()
                    .zip(rows)
                    .for_each(|(place, row)| *place = row);
                outs.iter_mut()
                    .zip(slots)
                    .for_each(|(place, slot)| *place = slot);
                let (rows, outs) = (&row_refs[..count], &mut outs[..count]);
                // Seeded rows are dense.
                if matches!(self.rows, Rows::Explicit { .. }) && are_sparse(rows) {
                    kernels.combine_sparse(rows, panel, self.bytes.clone(), outs);
                } else {
                    kernels.combine_part(rows, panel, self.bytes.clone(), outs);
                }
            }
            (Form::Packed(_), Kernel::Table) => unreachable!("one form a run"),
        }
    }

    /// Splits off its bytes from `at` on as another unit, with pieces of its slots.
    fn split_off(&mut self, at: usize, mut pieces: Vec<BytesMut>) -> Self {
        let cut = self.offset + at - self.bytes.start;
        pieces.extend(self.slots.iter_mut().map(|slot| slot.split_off(cut)));
        let bytes = at..mem::replace(&mut self.bytes.end, at);
        let (segment, rows) = (Arc::clone(&self.segment), self.rows.clone());
        Self {
            segment,
            rows,
            bytes,
            slots: pieces,
            offset: 0,
            ..*self
        }
    }

    /// Appends its slots to those of the task's earlier rows, or joins its pieces with those before
    /// them. Returns the emptied list.
    fn give_back(mut self, out: &mut Vec<BytesMut>) -> Vec<BytesMut> {
        if self.bytes.start == 0 {
            out.append(&mut self.slots);
        } else {
            let first = out.len() - self.slots.len();
            out[first..]
                .iter_mut()
                .zip(self.slots.drain(..))
                .for_each(|(slot, piece)| slot.unsplit(piece));
        }
        self.slots
    }
}

/// Threads that take units from a queue, besides the owner's.
#[derive(Debug)]
struct Pool {
    kernel: Kernel,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    scratch: Vec<u8>,
    spare: Vec<Vec<BytesMut>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    finished: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Unit>,
    running: usize,
    done: Vec<Unit>,
    closed: bool,
}

impl Pool {
    fn start(threads: usize, kernel: Kernel) -> Result<Self, Error> {
        let shared = Arc::new(Shared::default());
        let mut pool = Self {
            kernel,
            shared,
            threads: Vec::new(),
            scratch: Vec::new(),
            spare: Vec::new(),
        };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("combine-{index}"));
            let join = thread
                .spawn(move || shared.serve(kernel))
                .map_err(|error| Error::Thread(error.to_string()))?;
            pool.threads.push(join);
        }
        Ok(pool)
    }

    fn combine(&mut self, tasks: &mut [Work], segments: &[Arc<Segment>]) -> Result<(), Error> {
        self.cut(tasks, segments);
        self.shared.work.notify_all();
        let mut queue = self.shared.lock();
        while let Some(unit) = queue.waiting.pop_front() {
            queue = self.shared.run(queue, unit, self.kernel, &mut self.scratch);
        }
        while queue.running > 0 {
            queue = self
                .shared
                .finished
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let mut done = mem::take(&mut queue.done);
        drop(queue);
        done.sort_unstable_by_key(|unit| (unit.task, unit.first_row, unit.bytes.start));
        let failed = done.iter().any(|unit| unit.failed);
        for unit in done.drain(..) {
            let out = &mut tasks[unit.task].out;
            self.spare.push(unit.give_back(out));
        }
        self.shared.lock().done = done;
        if failed { Err(Error::Fault) } else { Ok(()) }
    }

    fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Cuts tasks into units of about equal time, several per thread, and queues them.
    fn cut(&mut self, tasks: &mut [Work], segments: &[Arc<Segment>]) {
        let unit_cost = tasks
            .iter()
            .map(|task| task.out.len() * cost(task))
            .sum::<usize>()
            / (self.threads() * UNITS_PER_THREAD);
        let mut queue = self.shared.lock();
        for (index, (task, segment)) in tasks.iter_mut().zip(segments).enumerate() {
            let rows = unit_cost / cost(task);
            let rows = rows
                .next_multiple_of(Kernels::ROWS)
                .clamp(Kernels::ROWS, UNIT_ROWS_MAX);
            let is_cut_on = !self.threads.is_empty() && !matches!(task.rows, Rows::Source { .. });
            let (cost, block_bytes) = (cost(task), task.block_bytes());
            let mut slots = task.out.drain(..);
            for first_row in (0..slots.len()).step_by(rows) {
                let mut unit_slots = self.spare.pop().unwrap_or_default();
                unit_slots.extend(slots.by_ref().take(rows));
                let parts = if is_cut_on {
                    parts(unit_slots.len() * cost, unit_cost, block_bytes)
                } else {
                    1
                };
                let mut unit = Unit {
                    task: index,
                    segment: Arc::clone(segment),
                    generation: segment.index(task.generation.index),
                    rows: task.rows.clone(),
                    first_row: task.first_row + first_row,
                    bytes: 0..block_bytes,
                    slots: unit_slots,
                    offset: task.out_offset,
                    failed: false,
                };
                for bytes in (1..parts)
                    .rev()
                    .map(|index| part(block_bytes, index, parts))
                {
                    let pieces = self.spare.pop().unwrap_or_default();
                    queue.waiting.push_back(unit.split_off(bytes.start, pieces));
                }
                queue.waiting.push_back(unit);
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // It ends without a panic: panics of units are caught.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Poisoning is harmless: no code panics halfway through a change under this lock.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, kernel: Kernel) {
        let mut scratch = Vec::new();
        let mut queue = self.lock();
        while !queue.closed {
            queue = match queue.waiting.pop_front() {
                Some(unit) => self.run(queue, unit, kernel, &mut scratch),
                None => self
                    .work
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Runs a unit without holding the lock, then files it as done.
    fn run<'a>(
        &'a self,
        mut queue: MutexGuard<'a, Queue>,
        mut unit: Unit,
        kernel: Kernel,
        scratch: &mut Vec<u8>,
    ) -> MutexGuard<'a, Queue> {
        queue.running += 1;
        drop(queue);
        unit.failed = catch_unwind(AssertUnwindSafe(|| unit.run(kernel, scratch))).is_err();
        let mut queue = self.lock();
        queue.running -= 1;
        queue.done.push(unit);
        if queue.running == 0 {
            self.finished.notify_one();
        }
        queue
    }
}

/// Products that a task's row takes.
fn cost(task: &Work) -> usize {
    task.n() * task.block_bytes()
}

/// How many parts a unit of whole rows is cut into. It is more than one if the batch has too few
/// rows and the unit therefore takes at least twice its share. Each part draws the rows anew, and
/// must be worth waking a thread for.
fn parts(cost: usize, unit_cost: usize, block_bytes: usize) -> usize {
    let wanted = cost / unit_cost.max(1);
    wanted
        .min(cost / PART_COST_MIN)
        .min(block_bytes / PART_BYTES_MIN)
        .max(1)
}

fn block_bytes(generation: &Generation) -> usize {
    usize::try_from(generation.block_bytes).expect("a block fits in memory")
}

/// Maximum rows of a unit: the size of its arrays of references on the stack.
const UNIT_ROWS_MAX: usize = 64;
/// Minimum bytes of a part of a row: drawing a coefficient takes as long as 50 to 100 products.
const PART_BYTES_MIN: usize = 512;
/// Minimum products of a part of a unit: these take microseconds, as long as waking a thread.
const PART_COST_MIN: usize = 1 << 18;
/// More than one, so that other threads take over the units of a slow or late thread.
const UNITS_PER_THREAD: usize = 4;

#[cfg(test)]
mod tests;
