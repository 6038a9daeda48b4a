//! Decoding: the device inverts many matrices at once, and combines with the inverses as rows.
//!
//! The jobs of a call are cut into *parts* of at most `GIVEN_BYTES`. A part has one piece of device
//! memory for everything, and a lane: a stream with two pinned buffers. Coefficients and payloads
//! are uploaded, and blocks downloaded, through these buffers in turn, so that no large memory is
//! pinned or copied at once. In between one stream runs the kernel that converts payloads into the
//! run's form, the inversions, the combination, and before it a kernel that converts the inverses
//! if the combination needs another form of rows. There are two lanes: one part computes or is
//! downloaded while the other is uploaded.
//!
//! A matrix that fits into shared memory is inverted there by one thread block, a larger one in
//! device memory. If the card has clusters, a few large ones are inverted by several thread blocks
//! each.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use cudarc::driver::result;

use super::card::Card;
use super::driver::{Address, Event, Fault, Named, Piece, Pinned, Pool, Stream};
use super::inversion::Inverter;
use super::kernels::{Combine, Variant};
use super::launch;
use super::loader::form_blocks;
use crate::Error;
use crate::abi::{self, RowForm};
use crate::backend::Counts;
use crate::decode::{Decode, Solved};
use layout::{Layout, Place, STATUS_BYTES, number, variant};

mod layout;

/// Decodes the generations of several calls.
pub(super) struct Solver {
    combine: &'static Combine,
    pool: Pool,
    calls: VecDeque<Call>,
    /// Number of the oldest call.
    first_call: u64,
    /// Made at the first call.
    lanes: Vec<SolverLane>,
}

/// A call under way.
struct Call {
    jobs: Vec<Decode>,
    solved: Vec<bool>,
    /// Index of the first job that is in no part yet.
    next: usize,
    parts: usize,
    begun: Instant,
    error: Option<Error>,
}

/// A stream with two buffers and the part that it works on.
struct SolverLane {
    part: Option<CallPart>,
    buffers: [Buffer; 2],
    /// Index of the next buffer.
    turn: usize,
    begun: Event,
    computed: Event,
    stream: Stream,
}

/// A pinned buffer, and the download that it holds.
struct Buffer {
    pinned: Pinned,
    used: Event,
    arriving: Vec<Transfer>,
}

/// Some jobs of a call.
struct CallPart {
    call: u64,
    jobs: Range<usize>,
    piece: Piece,
    layout: Layout,
    variant: Variant,
    /// Tasks and coefficients.
    head: Vec<u8>,
    /// Remaining uploads and downloads.
    up: VecDeque<Transfer>,
    down: VecDeque<Transfer>,
}

/// A copy between the host and the device.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    host: Host,
    start: usize,
    len: usize,
    device: Address,
}

/// Where its bytes are on the host.
#[derive(Debug, Clone, Copy)]
enum Host {
    Head,
    /// Of this job.
    Payload(usize),
    /// Status words of all jobs, four bytes each.
    Status,
    /// Of this job.
    Out(usize),
}

impl Solver {
    pub(super) fn new(card: &Card, combine: &'static Combine) -> Result<Self, Fault> {
        let pool = Pool::new(&card.context)?;
        Ok(Self {
            combine,
            pool,
            calls: VecDeque::new(),
            first_call: 0,
            lanes: Vec::new(),
        })
    }

    /// Begins a call, or files it as failed.
    pub(super) fn begin(&mut self, jobs: Vec<Decode>, error: Option<Error>) {
        let solved = vec![false; jobs.len()];
        self.calls.push_back(Call {
            jobs,
            solved,
            next: 0,
            parts: 0,
            begun: Instant::now(),
            error,
        });
    }

    /// Advances all calls.
    pub(super) fn advance(&mut self, card: &Card, counts: &mut Counts) -> Result<(), Fault> {
        if self.lanes.is_empty() && self.calls.iter().any(|call| !call.is_cut()) {
            match (0..LANES).map(|_| SolverLane::new(card)).collect() {
                Ok(lanes) => self.lanes = lanes,
                Err(Fault::Memory(bytes)) => self.refuse(bytes),
                Err(fault) => return Err(fault),
            }
        }
        for index in 0..self.lanes.len() {
            if let Some(part) = &self.lanes[index].part {
                let call = &mut self.calls[usize::try_from(part.call - self.first_call)
                    .expect("few calls are under way")];
                if self.lanes[index].advance(card, self.combine, call)? {
                    self.retire(index, counts)?;
                }
            }
            if self.lanes[index].part.is_none() {
                self.fill(index, card)?;
            }
        }
        Ok(())
    }

    /// The oldest call, once it has ended.
    pub(super) fn ended(&mut self) -> Option<Solved> {
        let Call {
            jobs,
            solved,
            begun,
            error,
            ..
        } = self
            .calls
            .pop_front_if(|call| call.parts == 0 && call.is_cut())?;
        self.first_call += 1;
        Some(Solved {
            jobs,
            result: error.map_or(Ok(solved), Err),
            elapsed: begun.elapsed(),
        })
    }

    /// Gives up all work after a fault of the driver.
    pub(super) fn lose(&mut self, reason: &str) {
        self.abandon();
        for call in &mut self.calls {
            call.parts = 0;
            call.error
                .get_or_insert_with(|| Error::Lost(reason.to_owned()));
        }
    }

    /// Waits for work under way as far as possible, and forgets it.
    fn abandon(&mut self) {
        for lane in &mut self.lanes {
            if let Some(part) = lane.part.take() {
                // If the driver has failed, these fail too, and the memory stays until the process
                // ends.
                let _ = lane.stream.synchronize();
                let _ = self.pool.free(part.piece);
            }
        }
    }

    /// Fails the jobs that have not begun for lack of memory.
    fn refuse(&mut self, bytes: u64) {
        self.calls
            .iter_mut()
            .filter(|call| !call.is_cut())
            .for_each(|call| {
                call.error.get_or_insert(Error::Memory { bytes });
            });
    }

    fn retire(&mut self, index: usize, counts: &mut Counts) -> Result<(), Fault> {
        let Some(part) = self.lanes[index].part.take() else {
            return Ok(());
        };
        counts.kernel += self.lanes[index].computed.since(&self.lanes[index].begun)?;
        let call = usize::try_from(part.call - self.first_call).expect("few calls are under way");
        self.calls[call].parts -= 1;
        self.pool.free(part.piece)
    }

    /// Gives a lane the next part of the oldest call that has one.
    fn fill(&mut self, index: usize, card: &Card) -> Result<(), Fault> {
        let Some(number) = self.calls.iter().position(|call| !call.is_cut()) else {
            return Ok(());
        };
        let call = &mut self.calls[number];
        let jobs = call.next..call.next + next_part(&call.jobs[call.next..], self.combine);
        let layout = Layout::new(&call.jobs[jobs.clone()], self.combine);
        let piece = match self.pool.take(layout.total) {
            Ok(piece) => piece,
            Err(Fault::Memory(bytes)) => {
                self.refuse(bytes);
                return Ok(());
            }
            Err(fault) => return Err(fault),
        };
        let variant = variant(card, self.combine, &layout)?;
        let head = layout.head(piece.address, &call.jobs[jobs.clone()], &variant);
        let transfer = |host, len, offset: usize| Transfer {
            host,
            start: 0,
            len,
            device: piece.address + offset as u64,
        };
        let places = || jobs.clone().zip(&layout.jobs);
        let payloads =
            places().map(|(job, place)| transfer(Host::Payload(job), place.bytes(), place.raw));
        let up = [transfer(Host::Head, layout.head, 0)]
            .into_iter()
            .chain(payloads)
            .collect();
        let outs = places().map(|(job, place)| transfer(Host::Out(job), place.bytes(), place.out));
        let status = transfer(Host::Status, jobs.len() * STATUS_BYTES, layout.status);
        let down = [status].into_iter().chain(outs).collect();
        call.next = jobs.end;
        call.parts += 1;
        self.lanes[index].part = Some(CallPart {
            call: self.first_call + number as u64,
            jobs,
            piece,
            layout,
            variant,
            head,
            up,
            down,
        });
        Ok(())
    }
}

impl Drop for Solver {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl Call {
    /// Whether no more of it is to begin.
    fn is_cut(&self) -> bool {
        self.error.is_some() || self.next == self.jobs.len()
    }
}

impl SolverLane {
    fn new(card: &Card) -> Result<Self, Fault> {
        let context = &card.context;
        let stream = Stream::new(context)?;
        let buffer = || {
            let used = Event::new(context)?;
            used.record(&stream)?;
            Ok::<_, Fault>(Buffer {
                pinned: Pinned::new(context, BUFFER_BYTES)?,
                used,
                arriving: Vec::new(),
            })
        };
        let buffers = [buffer()?, buffer()?];
        Ok(Self {
            part: None,
            buffers,
            turn: 0,
            begun: Event::new(context)?,
            computed: Event::new(context)?,
            stream,
        })
    }

    /// Does one step of its part if the next buffer is free. Returns true when the part is done.
    fn advance(
        &mut self,
        card: &Card,
        combine: &'static Combine,
        call: &mut Call,
    ) -> Result<bool, Fault> {
        let Some(part) = &mut self.part else {
            return Ok(true);
        };
        let buffer = &mut self.buffers[self.turn];
        if !buffer.used.is_done()? {
            return Ok(false);
        }
        if !part.up.is_empty() {
            buffer.send(part, &call.jobs, &self.stream)?;
            if part.up.is_empty() {
                self.begun.record(&self.stream)?;
                compute(card, combine, part, &self.stream)?;
                self.computed.record(&self.stream)?;
            }
        } else {
            buffer.deliver(part, call);
            buffer.fetch(part, &self.stream)?;
        }
        self.turn = 1 - self.turn;
        let is_empty = self.buffers.iter().all(|buffer| buffer.arriving.is_empty());
        let Some(part) = &self.part else {
            return Ok(true);
        };
        Ok(part.up.is_empty() && part.down.is_empty() && is_empty)
    }
}

impl Buffer {
    /// Fills the buffer with the next uploads, and sends them.
    fn send(&mut self, part: &mut CallPart, jobs: &[Decode], stream: &Stream) -> Result<(), Fault> {
        let mut filled = 0;
        while let Some(transfer) = next_transfer(&mut part.up, self.pinned.len() - filled) {
            let from = match transfer.host {
                Host::Head => &part.head,
                Host::Payload(job) => &jobs[job].payloads,
                Host::Status | Host::Out(_) => unreachable!("these come down"),
            };
            let to = &mut self.pinned[filled..filled + transfer.len];
            to.copy_from_slice(&from[transfer.start..transfer.start + transfer.len]);
            // SAFETY: the destination is inside the part's piece; the buffer is not touched before
            // its event is done.
            unsafe { result::memcpy_htod_async(transfer.device, to, stream.raw) }
                .named("cuMemcpyHtoDAsync")?;
            filled += transfer.len;
        }
        self.used.record(stream)
    }

    /// Begins the next downloads.
    fn fetch(&mut self, part: &mut CallPart, stream: &Stream) -> Result<(), Fault> {
        let mut filled = 0;
        while let Some(transfer) = next_transfer(&mut part.down, self.pinned.len() - filled) {
            let to = &mut self.pinned[filled..filled + transfer.len];
            // SAFETY: the source is inside the part's piece; nobody reads the buffer before its
            // event is done.
            unsafe { result::memcpy_dtoh_async(to, transfer.device, stream.raw) }
                .named("cuMemcpyDtoHAsync")?;
            filled += transfer.len;
            self.arriving.push(transfer);
        }
        self.used.record(stream)
    }

    /// Hands over the downloaded bytes.
    fn deliver(&mut self, part: &CallPart, call: &mut Call) {
        let mut rest: &[u8] = &self.pinned;
        for transfer in self.arriving.drain(..) {
            let (bytes, others) = rest.split_at(transfer.len);
            match transfer.host {
                Host::Out(job) => call.jobs[job].out[transfer.start..transfer.start + transfer.len]
                    .copy_from_slice(bytes),
                Host::Status => {
                    let solved = bytes
                        .chunks_exact(STATUS_BYTES)
                        .map(|status| status.iter().any(|&byte| byte != 0));
                    call.solved[part.jobs.clone()]
                        .iter_mut()
                        .zip(solved)
                        .for_each(|(place, is_solved)| *place = is_solved);
                }
                Host::Head | Host::Payload(_) => unreachable!("these go up"),
            }
            rest = others;
        }
    }
}

/// The next bytes to copy, at most `room` of them.
fn next_transfer(queue: &mut VecDeque<Transfer>, room: usize) -> Option<Transfer> {
    let front = queue.front_mut()?;
    let len = front.len.min(room);
    if len == 0 {
        return None;
    }
    let transfer = Transfer { len, ..*front };
    *front = Transfer {
        start: front.start + len,
        len: front.len - len,
        device: front.device + len as u64,
        ..*front
    };
    if front.len == 0 {
        queue.pop_front();
    }
    Some(transfer)
}

/// Number of jobs in the next part: at least one, and as many as the limits allow.
fn next_part(jobs: &[Decode], combine: &Combine) -> usize {
    let (mut given_bytes, mut form_bytes) = (0, 0);
    let fits = |job: &&Decode| {
        given_bytes += job.payloads.len() + job.coefficients.len();
        // Forms of short blocks can be many times larger than the blocks.
        form_bytes += combine.form.bytes(job.n(), job.block_bytes());
        given_bytes <= GIVEN_BYTES && form_bytes <= FORM_BYTES
    };
    jobs.iter().take(JOBS_MAX).take_while(fits).count().max(1)
}

/// Begins the kernels of a part whose upload has begun.
fn compute(card: &Card, combine: &Combine, part: &CallPart, stream: &Stream) -> Result<(), Fault> {
    let layout = &part.layout;
    let at = |offset: usize| part.piece.address + offset as u64;
    let count = number(layout.jobs.len());
    let largest = layout.jobs.iter().map(Place::bytes).max().unwrap_or(1);
    // SAFETY: here and below: the tasks describe memory of the part's piece, which is kept until
    // the stream is done.
    unsafe {
        launch::form(
            card,
            combine.form,
            form_blocks(largest),
            (at(layout.forms), count),
            stream,
        )
    }?;
    invert(card, part, stream)?;
    let CallPart { variant, .. } = part;
    let (row_form, rows, units) = (
        combine.row_form as u32,
        layout.blocks,
        layout.units(variant),
    );
    let launch = abi::Launch {
        tasks: at(layout.rows),
        count,
        units,
        rows,
        row_form,
        ..abi::Launch::default()
    };
    if combine.row_form != RowForm::Bytes {
        let n = layout.jobs.iter().map(Place::pitch).max().map_or(1, number);
        // SAFETY: as above.
        unsafe { launch::rows(card, &launch, n, stream) }?;
    }
    let launch = abi::Launch {
        tasks: at(layout.combinations),
        ..launch
    };
    // SAFETY: as above.
    unsafe { launch::combine(card, combine, variant, &launch, card.sms, stream) }
}

/// Begins the inversions. Consecutive jobs that use the same kernel share a launch.
fn invert(card: &Card, part: &CallPart, stream: &Stream) -> Result<(), Fault> {
    let alone = |place: &Place| Inverter::a_block_each(number(place.n), card);
    let is_alike = |one: &Place, other: &Place| alone(one).is_kernel_of(&alone(other));
    let mut tasks = part.piece.address + part.layout.inversions as u64;
    for run in part.layout.jobs.chunk_by(is_alike) {
        let (largest, count) = (
            run.iter().map(|place| number(place.n)).max().unwrap_or(1),
            number(run.len()),
        );
        // SAFETY: as in `compute`.
        unsafe { Inverter::fastest(largest, count, card).launch(card, tasks, count, stream) }?;
        tasks += (run.len() * size_of::<abi::InvertTask>()) as u64;
    }
    Ok(())
}

const LANES: usize = 2;
/// Size of a pinned buffer. Copies of this size reach nine tenths of the link's rate.
const BUFFER_BYTES: usize = 2 << 20;
/// Bytes of a part's payloads and coefficients.
const GIVEN_BYTES: usize = 64 << 20;
/// Bytes of a part's payloads in the run's form.
const FORM_BYTES: usize = 256 << 20;
/// Maximum jobs of a part.
const JOBS_MAX: usize = 4096;
