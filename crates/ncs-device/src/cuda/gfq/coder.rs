//! Encoding over GF(q) for a server: sources stay in the card's memory, and several calls run at
//! once.
//!
//! A call is cut into portions, each of some rows of one or several tasks. A portion takes a
//! *lane*. Its rows are uploaded from pinned memory, kernels combine, and the blocks are copied to
//! their slots: in the order of one stream, without a wait in between. Sources at equal distances
//! that want equally many blocks share a launch. The other launches of a portion are spread over
//! further streams, because a few blocks of one source leave most of the card idle. A call takes up
//! to `LANES_A_CALL` lanes if they are free. It then prepares and combines its next portion while
//! the blocks of the one before are copied. A call waits for a lane only while it holds none, so
//! calls cannot wait for each other in a circle.
//!
//! The card writes blocks for pinned memory there itself: its copy engine does so where slots lie
//! at equal distances, a kernel where they are scattered. Other blocks pass through the lane's
//! pinned memory.
//!
//! The call uploads a source that is not kept, and frees it at its end. After a fault of the driver
//! all kept sources are lost, nothing is kept any more, and every later call fails.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use cudarc::driver::result;
use ncs_codec::gfq::{Encode, Kept, Place, Shape};
use ncs_gf::gfq::WORD_BYTES;

use super::super::card::{Card, number};
use super::super::driver::{
    self, Address, Buffer, Context, Event, Fault, Named, Pinned, Pool, Stream,
};
use super::super::engine::SCATTER_BLOCKS;
use super::super::host::HostMemory;
use super::super::image::Image;
use super::super::kernels::COPY_THREADS;
use super::super::lane::copy_run;
use super::super::launch::{self, Grid};
use super::super::plan::{self, Run, Way};
use super::layout::{PLACE_ALIGN, row_pitch};
use super::step::{Encoder, ROWS_MAX, Step, product};
use crate::abi;

/// Encodes on a card.
#[derive(Debug)]
pub struct Coder {
    /// Free lanes.
    idle: Mutex<Vec<CoderLane>>,
    returned: Condvar,
    keeper: Arc<Keeper>,
    host: HostMemory,
    field: abi::GfqField,
    /// Maximum bytes of a portion's blocks, and of sources uploaded for it.
    limits: (usize, usize),
    card: Arc<Card>,
}

impl Coder {
    pub fn new(
        card: &Arc<Card>,
        host: &HostMemory,
        field: abi::GfqField,
        work_bytes: usize,
    ) -> Result<Self, Fault> {
        host.set_context(&card.context);
        let keeper = Keeper {
            pool: Mutex::new(Pool::new(&card.context)?),
            stream: Mutex::new(Stream::new(&card.context)?),
            is_lost: AtomicBool::new(false),
            context: Arc::clone(&card.context),
        };
        let lanes = (0..LANES)
            .map(|_| CoderLane::new(&card.context))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            idle: Mutex::new(lanes),
            returned: Condvar::new(),
            keeper: Arc::new(keeper),
            host: host.clone(),
            field,
            limits: (PORTION_BYTES, work_bytes.min(SOURCE_BYTES)),
            card: Arc::clone(card),
        })
    }

    /// Limits its memory so far that all work is done in several portions.
    #[cfg(test)]
    pub fn limit(&mut self, bytes: usize) {
        self.limits = (self.limits.0.min(bytes), self.limits.1.min(bytes));
    }

    /// Lanes in use.
    #[cfg(test)]
    pub fn busy(&self) -> usize {
        LANES - lock(&self.idle).len()
    }

    /// A segment that claims to be kept but has no memory, so that the next kernel faults.
    #[cfg(test)]
    pub fn nothing(&self) -> Segment {
        Segment {
            address: PLACE_ALIGN as u64,
            len: usize::MAX,
            keeper: Arc::clone(&self.keeper),
        }
    }

    /// Uploads a source, padded with zeros to `padded` bytes. `None` if the card is lost.
    pub fn keep(&self, source: &[u8], padded: usize) -> Result<Option<Segment>, Fault> {
        if self.keeper.is_lost() {
            return Ok(None);
        }
        let stream = lock(&self.keeper.stream);
        self.mark(
            self.card
                .context
                .bind()
                .and_then(|()| self.keeper.keep(source, padded, &stream))
                .map(Some),
        )
    }

    pub fn encode(&self, shape: Shape, tasks: &mut [Encode<'_>]) -> Result<(), Fault> {
        if self.keeper.is_lost() {
            return Err(Fault::Driver("the card is lost".to_owned()));
        }
        self.mark(
            self.card
                .context
                .bind()
                .and_then(|()| self.begin_all(shape, tasks)),
        )
    }

    /// Records that a card is lost.
    fn mark<T>(&self, result: Result<T, Fault>) -> Result<T, Fault> {
        if let Err(Fault::Driver(_)) = result {
            self.keeper.is_lost.store(true, Ordering::Release);
        }
        result
    }

    fn begin_all(&self, shape: Shape, tasks: &mut [Encode<'_>]) -> Result<(), Fault> {
        let (out_bytes, source_bytes) = self.limits;
        let row = 4 * shape.n() + plan::ADDRESS_BYTES;
        let most = (out_bytes / row_pitch(shape.words()))
            .min((UPLOAD_BYTES - 2 * PLACE_ALIGN) / row)
            .clamp(1, ROWS_MAX);
        let brings = |task: &Encode<'_>| {
            if self.kept(shape, task).is_some() {
                0
            } else {
                shape.source_bytes()
            }
        };
        let costs: Vec<(usize, usize)> = tasks
            .iter()
            .map(|task| (task.out.len(), brings(task)))
            .collect();
        // The last task's uploaded source, if the task continues in the next portion.
        let mut brought = None;
        let mut under_way: VecDeque<Portion<'_>> = VecDeque::new();
        for pieces in portions(&costs, most, source_bytes) {
            let free = if under_way.len() < LANES_A_CALL {
                self.take(under_way.is_empty())
            } else {
                None
            };
            let lane = match free {
                Some(lane) => lane,
                None => under_way
                    .pop_front()
                    .expect("whoever has no lane waits for one")
                    .end(shape, tasks)?,
            };
            under_way.push_back(self.begin(lane, shape, tasks, pieces, &mut brought)?);
        }
        under_way
            .into_iter()
            .try_for_each(|portion| portion.end(shape, tasks).map(drop))
    }

    /// Takes a free lane. If the call needs one to continue, it waits for the next.
    fn take(&self, is_needed: bool) -> Option<Taken<'_>> {
        let mut idle = lock(&self.idle);
        loop {
            match idle.pop() {
                Some(lane) => {
                    return Some(Taken {
                        lane: Some(lane),
                        coder: self,
                    });
                }
                None if is_needed => {
                    idle = self
                        .returned
                        .wait(idle)
                        .unwrap_or_else(PoisonError::into_inner)
                }
                None => return None,
            }
        }
    }

    /// Address of a task's source, if this card keeps all of it.
    fn kept(&self, shape: Shape, task: &Encode<'_>) -> Option<Address> {
        let Place { kept, offset } = task.kept?;
        let kept: &dyn std::any::Any = kept;
        let segment = kept
            .downcast_ref::<Segment>()
            .filter(|segment| Arc::ptr_eq(&segment.keeper, &self.keeper))?;
        let has_all = offset
            .checked_add(shape.source_bytes())
            .is_some_and(|end| end <= segment.len);
        (has_all && offset.is_multiple_of(WORD_BYTES)).then(|| segment.address + offset as u64)
    }

    /// Begins a portion on an idle lane.
    fn begin<'a>(
        &'a self,
        lane: Taken<'a>,
        shape: Shape,
        tasks: &mut [Encode<'_>],
        pieces: Vec<Piece>,
        brought: &mut Option<(usize, Arc<Segment>)>,
    ) -> Result<Portion<'a>, Fault> {
        let mut portion = Portion {
            lane,
            sources: Vec::new(),
            pieces,
            way: Way::Copies,
        };
        let Portion {
            lane,
            sources,
            pieces,
            way,
        } = &mut portion;
        let mut places = Vec::with_capacity(pieces.len());
        for Piece { task, rows } in &*pieces {
            let source = match (self.kept(shape, &tasks[*task]), &*brought) {
                (Some(address), _) => address,
                (None, Some((of, segment))) if of == task => {
                    sources.push(Arc::clone(segment));
                    segment.address
                }
                _ => {
                    let segment = Arc::new(self.keeper.keep(
                        tasks[*task].source,
                        shape.source_bytes(),
                        &lane.stream,
                    )?);
                    sources.push(Arc::clone(&segment));
                    brought.insert((*task, segment)).1.address
                }
            };
            places.push((source, rows.len()));
        }
        let (slots, chosen) = self.slots(shape, tasks, pieces);
        *way = chosen;
        lane.uploaded = 0;
        let coefficients = lane.upload.address();
        for Piece { task, rows } in &*pieces {
            lane.put(&tasks[*task].rows[rows.start * shape.n()..rows.end * shape.n()]);
        }
        let addresses = (chosen == Way::Scatter).then(|| lane.put_addresses(&slots));
        lane.send()?;
        self.combine(lane, shape, coefficients, &launches(&places))?;
        self.deliver(
            lane,
            shape,
            places.iter().map(|(_, rows)| rows).sum(),
            chosen,
            &slots,
            addresses,
        )?;
        Ok(portion)
    }

    /// The slots of a portion's blocks, and the way there.
    fn slots(&self, shape: Shape, tasks: &mut [Encode<'_>], pieces: &[Piece]) -> (Vec<Run>, Way) {
        let (bytes, mut is_pinned, mut addresses) = (shape.payload_bytes(), true, Vec::new());
        let mut view = self.host.view();
        for Piece { task, rows } in pieces {
            addresses.extend(tasks[*task].out[rows.clone()].iter_mut().map(|out| {
                let address = out.as_mut_ptr() as usize;
                let range = view.range(address, bytes);
                is_pinned &= range.is_some();
                (address, range)
            }));
        }
        drop(view);
        let rows = addresses.len();
        let runs = plan::runs(addresses, bytes);
        let is_even = |run: &Run| (run.start | run.pitch).is_multiple_of(SCATTER_ALIGN);
        let is_aligned = bytes.is_multiple_of(SCATTER_ALIGN) && runs.iter().all(is_even);
        let way = match plan::way(rows * bytes, runs.len(), is_pinned, is_aligned) {
            // Kernels over words store at half the rate of the link.
            Way::Stores if runs.len() == 1 => Way::Copies,
            Way::Stores => Way::Scatter,
            way => way,
        };
        (runs, way)
    }

    /// Begins the kernels.
    fn combine(
        &self,
        lane: &CoderLane,
        shape: Shape,
        coefficients: Address,
        launches: &[Launch],
    ) -> Result<(), Fault> {
        let (n, pitch) = (shape.n(), row_pitch(shape.words()));
        let forks = &lane.forks[..launches.len().saturating_sub(1).min(lane.forks.len())];
        let streams: Vec<&Stream> = std::iter::once(&lane.stream)
            .chain(forks.iter().map(|(stream, _)| stream))
            .collect();
        // Each launch gets this share of the card.
        let sms = (self.card.sms / number(streams.len())).max(1);
        if !forks.is_empty() {
            lane.sent.record(&lane.stream)?;
            forks
                .iter()
                .try_for_each(|(stream, _)| lane.sent.hold(stream))?;
        }
        for (launch, stream) in launches.iter().zip(streams.into_iter().cycle()) {
            let at = |start: Address, each: usize| start + (launch.first_row * each) as u64;
            let product = abi::GfqProduct {
                source_step: launch.step,
                coefficients_step: (launch.rows * 4 * n) as u64,
                out_step: (launch.rows * pitch) as u64,
                source_pitch: number(shape.block_bytes()),
                coefficients_pitch: number(4 * n),
                tops: 0,
                ..product(
                    (launch.rows, n, shape.words()),
                    [
                        launch.source,
                        at(coefficients, 4 * n),
                        at(lane.out.address(), pitch),
                    ],
                    self.field,
                )
            };
            let step = Step::encode(Encoder::Fitting, product, launch.generations, sms);
            // SAFETY: sources are kept by the call or by the portion, which waits for its streams
            // before it releases them; rows and blocks are in memory of the lane, and `portions`
            // keeps within its size.
            unsafe { step.start(&self.card, stream) }?;
        }
        forks.iter().try_for_each(|(stream, done)| {
            done.record(stream)?;
            done.hold(&lane.stream)
        })
    }

    /// Begins to copy blocks to their slots.
    fn deliver(
        &self,
        lane: &mut CoderLane,
        shape: Shape,
        rows: usize,
        way: Way,
        slots: &[Run],
        addresses: Option<Address>,
    ) -> Result<(), Fault> {
        let (bytes, pitch, from) = (
            shape.payload_bytes(),
            row_pitch(shape.words()),
            lane.out.address(),
        );
        match (way, addresses) {
            (Way::Scatter, Some(addresses)) => {
                let function = self.card.function(Image::Forms, "nc_copy_to_slots", 0)?;
                let grid = Grid::line(SCATTER_BLOCKS, COPY_THREADS, 0);
                let (count, each) = (number(rows), (from, number(pitch)));
                // SAFETY: pinned and aligned, as `way` was told; the addresses were uploaded with
                // the rows.
                unsafe {
                    launch::scatter(
                        function,
                        grid,
                        addresses,
                        each,
                        (count, number(bytes)),
                        &lane.stream,
                    )
                }
            }
            (Way::Bounce, _) => {
                let bounce = match &mut lane.bounce {
                    Some(bounce) => bounce,
                    none => none.insert(Pinned::new(&self.card.context, lane.out.len())?),
                };
                // SAFETY: both are the lane's, and nobody reads before the stream is done.
                unsafe {
                    result::memcpy_dtoh_async(&mut bounce[..rows * pitch], from, lane.stream.raw)
                }
                .named("cuMemcpyDtoHAsync")
            }
            _ => slots
                .iter()
                .try_fold(0, |first, run| {
                    // SAFETY: pinned, as `way` was told, and nothing else uses them until the
                    // portion has ended.
                    unsafe {
                        copy_run(
                            from + (first * pitch) as u64,
                            pitch,
                            bytes,
                            run,
                            &lane.stream,
                        )
                    }?;
                    Ok(first + run.count)
                })
                .map(|_| ()),
        }
    }
}

/// Some rows of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    task: usize,
    rows: Range<usize>,
}

/// Cuts tasks into portions of about equal size. Each task has a number of rows, and a number of
/// source bytes to upload.
fn portions(tasks: &[(usize, usize)], rows_max: usize, source_bytes_max: usize) -> Vec<Vec<Piece>> {
    let rows: usize = tasks.iter().map(|(rows, _)| rows).sum();
    let each = rows.div_ceil(rows.div_ceil(rows_max).max(1));
    let (mut portions, mut room, mut bytes) = (Vec::<Vec<Piece>>::new(), 0, 0);
    for (task, &(rows, brought)) in tasks.iter().enumerate() {
        let mut first = 0;
        while first < rows {
            if room == 0 || bytes + brought > source_bytes_max {
                portions.push(Vec::new());
                (room, bytes) = (each, 0);
            }
            let count = room.min(rows - first);
            portions.last_mut().expect("one was begun").push(Piece {
                task,
                rows: first..first + count,
            });
            (first, room, bytes) = (first + count, room - count, bytes + brought);
        }
    }
    portions
}

/// Pieces for one launch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Launch {
    source: Address,
    /// Bytes from one source to the next.
    step: u64,
    generations: u32,
    /// Rows of each source.
    rows: usize,
    /// Index of its first row in the portion.
    first_row: usize,
}

/// Groups neighbours that have equally many rows and sources at equal distances.
fn launches(pieces: &[(Address, usize)]) -> Vec<Launch> {
    let (mut launches, mut first_row): (Vec<Launch>, _) = (Vec::new(), 0);
    for &(source, rows) in pieces {
        match launches
            .last_mut()
            .filter(|last| last.rows == rows && source >= last.source)
        {
            Some(last) if last.generations == 1 => {
                (last.step, last.generations) = (source - last.source, 2)
            }
            Some(last) if source - last.source == last.step * u64::from(last.generations) => {
                last.generations += 1
            }
            _ => launches.push(Launch {
                source,
                step: 0,
                generations: 1,
                rows,
                first_row,
            }),
        }
        first_row += rows;
    }
    launches
}

/// Streams, and memory for rows and blocks, of a portion.
#[derive(Debug)]
struct CoderLane {
    stream: Stream,
    /// Further streams for its launches, each with an event that marks the end of its work.
    forks: Vec<(Stream, Event)>,
    /// Marks the end of the upload.
    sent: Event,
    out: Buffer,
    upload: Buffer,
    upload_host: Pinned,
    uploaded: usize,
    /// Memory for blocks whose slots the card cannot write; allocated at first use.
    bounce: Option<Pinned>,
}

impl CoderLane {
    fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        let fork = |_| Ok::<_, Fault>((Stream::new(context)?, Event::untimed(context)?));
        Ok(Self {
            stream: Stream::new(context)?,
            forks: (0..FORKS).map(fork).collect::<Result<_, _>>()?,
            sent: Event::untimed(context)?,
            out: Buffer::new(context, PORTION_BYTES)?,
            upload: Buffer::new(context, UPLOAD_BYTES)?,
            upload_host: Pinned::new(context, UPLOAD_BYTES)?,
            uploaded: 0,
            bounce: None,
        })
    }

    /// Appends rows to the upload.
    fn put(&mut self, rows: &[u32]) {
        let at = self.uploaded;
        self.uploaded += size_of_val(rows);
        let places = self.upload_host[at..self.uploaded].as_chunks_mut().0;
        places
            .iter_mut()
            .zip(rows)
            .for_each(|(place, coefficient)| *place = coefficient.to_le_bytes());
    }

    /// Appends the addresses of all slots to the upload, and returns where they will be.
    fn put_addresses(&mut self, slots: &[Run]) -> Address {
        let at = self.uploaded.next_multiple_of(PLACE_ALIGN);
        let every = slots
            .iter()
            .flat_map(|run| (0..run.count).map(|index| (run.start + index * run.pitch) as u64));
        self.uploaded = at + slots.iter().map(|run| run.count).sum::<usize>() * plan::ADDRESS_BYTES;
        let places = self.upload_host[at..self.uploaded].as_chunks_mut().0;
        places
            .iter_mut()
            .zip(every)
            .for_each(|(place, address)| *place = address.to_le_bytes());
        self.upload.address() + at as u64
    }

    /// Sends the upload.
    fn send(&self) -> Result<(), Fault> {
        // SAFETY: both sides are the lane's, whose stream is waited for before either is written or
        // dropped.
        unsafe {
            result::memcpy_htod_async(
                self.upload.address(),
                &self.upload_host[..self.uploaded],
                self.stream.raw,
            )
        }
        .named("cuMemcpyHtoDAsync")
    }

    /// Waits for all streams, even if one fails.
    fn wait(&self) -> Result<(), Fault> {
        let forks = self.forks.iter().map(|(stream, _)| stream.synchronize());
        forks.fold(self.stream.synchronize(), Result::and)
    }
}

/// A lane in use. It is returned when no work on it is under way.
#[derive(Debug)]
struct Taken<'a> {
    /// `Some` until the lane is returned.
    lane: Option<CoderLane>,
    coder: &'a Coder,
}

impl Deref for Taken<'_> {
    type Target = CoderLane;

    fn deref(&self) -> &CoderLane {
        self.lane.as_ref().expect(HAS_LANE)
    }
}

impl DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut CoderLane {
        self.lane.as_mut().expect(HAS_LANE)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let Some(lane) = self.lane.take() else { return };
        // Nothing may write to slots that are given back, nor read their sources. A failed driver
        // writes no more.
        let _ = lane.wait();
        lock(&self.coder.idle).push(lane);
        self.coder.returned.notify_one();
    }
}

/// A portion under way. The fields' order matters: dropping the lane waits for the readers of the
/// sources.
#[derive(Debug)]
struct Portion<'a> {
    lane: Taken<'a>,
    /// The sources uploaded for it.
    sources: Vec<Arc<Segment>>,
    pieces: Vec<Piece>,
    way: Way,
}

impl<'a> Portion<'a> {
    /// Waits until the blocks are in their slots, and returns the lane.
    fn end(self, shape: Shape, tasks: &mut [Encode<'_>]) -> Result<Taken<'a>, Fault> {
        // This stream waits for the forks before later work.
        self.lane.stream.synchronize()?;
        let Self {
            lane, pieces, way, ..
        } = self;
        if let (Way::Bounce, Some(bounce)) = (way, &lane.bounce) {
            let mut made = bounce.chunks_exact(row_pitch(shape.words()));
            for Piece { task, rows } in pieces {
                let outs = tasks[task].out[rows].iter_mut();
                outs.zip(&mut made)
                    .for_each(|(out, made)| out.copy_from_slice(&made[..shape.payload_bytes()]));
            }
        }
        Ok(lane)
    }
}

/// The pool of kept sources. It lives as long as any of them.
#[derive(Debug)]
struct Keeper {
    pool: Mutex<Pool>,
    /// The stream that uploads them.
    stream: Mutex<Stream>,
    is_lost: AtomicBool,
    context: Arc<Context>,
}

impl Keeper {
    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Uploads a source, and waits until it is there.
    fn keep(
        self: &Arc<Self>,
        source: &[u8],
        padded: usize,
        stream: &Stream,
    ) -> Result<Segment, Fault> {
        let driver::Piece { address, len } = lock(&self.pool).take(padded)?;
        let segment = Segment {
            address,
            len,
            keeper: Arc::clone(self),
        };
        let (behind, rest) = (address + source.len() as u64, padded - source.len());
        // SAFETY: the piece is that long and not shared yet, and the stream is waited for whether
        // or not this succeeds.
        let sent = unsafe {
            let source = match source {
                [] => Ok(()),
                source => result::memcpy_htod_async(address, source, stream.raw)
                    .named("cuMemcpyHtoDAsync"),
            };
            let zeros = match rest {
                0 => Ok(()),
                rest => {
                    result::memset_d8_async(behind, 0, rest, stream.raw).named("cuMemsetD8Async")
                }
            };
            source.and(zeros)
        };
        stream.synchronize().and(sent)?;
        Ok(segment)
    }
}

/// A source on a card. Its readers are waited for before it is released.
#[derive(Debug)]
pub struct Segment {
    address: Address,
    len: usize,
    keeper: Arc<Keeper>,
}

impl Kept for Segment {
    fn bytes(&self) -> u64 {
        self.len as u64
    }

    fn is_alive(&self) -> bool {
        !self.keeper.is_lost()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // Any thread may run this. Memory that cannot be freed stays until the process ends.
        if self.keeper.context.bind().is_ok() {
            let _ = lock(&self.keeper.pool).free(driver::Piece {
                address: self.address,
                len: self.len,
            });
        }
    }
}

/// Poisoning is harmless: no code panics halfway through a change under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const HAS_LANE: &str = "it is there until it goes back";
/// Portions under way at once.
const LANES: usize = 4;
/// Lanes of one call: one is copied, one is combined, one is prepared. The fourth is left for other
/// callers.
const LANES_A_CALL: usize = 3;
/// Further streams of a lane.
const FORKS: usize = 7;
/// Bytes of a portion's blocks, which are copied at once. Copies of 16 MiB reach 99 % of the link's
/// rate, of 1 MiB 88 %.
const PORTION_BYTES: usize = 8 << 20;
/// Bytes of a portion's coefficients and of the addresses of its slots.
const UPLOAD_BYTES: usize = 4 << 20;
/// Bytes of sources uploaded for a portion.
const SOURCE_BYTES: usize = 64 << 20;
/// Alignment that the kernel for scattered slots needs.
const SCATTER_ALIGN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_are_of_one_size_and_leave_nothing_out() {
        let piece = |task, rows| Piece { task, rows };
        assert_eq!(portions(&[(5, 0)], 100, 0), [[piece(0, 0..5)]]);
        assert_eq!(
            portions(&[(5, 0), (0, 0), (4, 0)], 4, 0),
            [
                vec![piece(0, 0..3)],
                vec![piece(0, 3..5), piece(2, 0..1)],
                vec![piece(2, 1..4)],
            ]
        );
        // Each uploads its source, and only two fit.
        assert_eq!(
            portions(&[(1, 10), (1, 10), (1, 10)], 100, 25),
            [vec![piece(0, 0..1), piece(1, 0..1)], vec![piece(2, 0..1)]]
        );
        assert_eq!(
            portions(&[(2, 10)], 1, 5),
            [vec![piece(0, 0..1)], vec![piece(0, 1..2)]]
        );
        assert!(portions(&[], 1, 1).is_empty() && portions(&[(0, 7)], 1, 1).is_empty());
    }

    #[test]
    fn neighbours_share_a_launch() {
        let launch = |source, step, generations, rows, first_row| Launch {
            source,
            step,
            generations,
            rows,
            first_row,
        };
        assert_eq!(
            launches(&[(100, 8), (200, 8), (300, 8)]),
            [launch(100, 100, 3, 8, 0)]
        );
        // Any two sources have a distance. A source at a lower address, or with other rows, begins
        // a new launch.
        assert_eq!(
            launches(&[(100, 8), (500, 8), (600, 8), (50, 8), (60, 3)]),
            [
                launch(100, 400, 2, 8, 0),
                launch(600, 0, 1, 8, 16),
                launch(50, 0, 1, 8, 24),
                launch(60, 0, 1, 3, 32),
            ]
        );
        assert_eq!(
            launches(&[(100, 8), (100, 8), (100, 8)]),
            [launch(100, 0, 3, 8, 0)]
        );
        assert!(launches(&[]).is_empty());
    }
}
