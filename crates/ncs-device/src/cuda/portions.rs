//! Coding portions of files on a GPU. Several bites run at once. Each has a lane, which uploads the
//! bite's input, has it coded and downloads its output.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use cudarc::driver::result;
use ncs_codec::raptorq::Plan;

use super::card::Card;
use super::chunk_lane::{ChunkCode, Ends, Side, copy};
use super::chunks::{Limits, Way};
use super::driver::{Address, Buffer, Context, Fault, Named, Pinned, Stream};
use super::replay_lane::{Blocks, ReplayShape, strips_of};
use crate::Error;
use crate::portions::{Coder, Demand, LANES, Memory, Pinner, Portion, Spat, Work};

/// A card that codes portions. The fields' order matters: dropping the lanes waits for their work.
pub(super) struct FileCoder {
    lanes: Vec<PortionLane>,
    /// The lanes in use and their bites, oldest first.
    under_way: VecDeque<(usize, Vec<Portion>)>,
    card: Card,
}

impl FileCoder {
    pub(super) fn new(card: Card, demand: &Demand) -> Result<Self, Fault> {
        let lanes = (0..LANES)
            .map(|_| PortionLane::new(&card, demand))
            .collect::<Result<_, Fault>>()?;
        Ok(Self {
            lanes,
            under_way: VecDeque::new(),
            card,
        })
    }
}

impl Coder for FileCoder {
    fn depth(&self) -> usize {
        self.lanes.len()
    }

    fn begin(&mut self, mut bite: Vec<Portion>) -> Result<(), Spat> {
        let is_free = |index: &usize| self.under_way.iter().all(|(used, _)| used != index);
        let index = (0..self.lanes.len())
            .find(is_free)
            .expect("no more bites are begun than there are lanes");
        let lane = &mut self.lanes[index];
        match lane.begin(&self.card, &mut bite) {
            Ok(()) => {
                self.under_way.push_back((index, bite));
                Ok(())
            }
            Err(error) => {
                // Nothing may write to memory that the CPU uses next.
                let _ = lane.stream.synchronize();
                Err(Spat { bite, error })
            }
        }
    }

    fn end(&mut self) -> (Vec<Portion>, Result<(), Error>) {
        let (index, bite) = self.under_way.pop_front().expect("a bite is under way");
        (
            bite,
            self.lanes[index].stream.synchronize().map_err(Error::from),
        )
    }

    fn pinner(&self) -> Option<Pinner> {
        let context = Arc::clone(&self.card.context);
        Some(Box::new(move |bytes| match Shared::new(&context, bytes) {
            Ok(shared) => Some(Memory::Pinned(Box::new(shared))),
            Err(fault) => {
                tracing::warn!(
                    "cannot pin memory for files, so copies to the GPU are slower: {fault}"
                );
                None
            }
        }))
    }
}

/// Pinned memory that any thread may allocate and free.
struct Shared {
    /// `Some` until this is dropped.
    memory: Option<Pinned>,
    context: Arc<Context>,
}

impl Shared {
    fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, Fault> {
        context.bind()?;
        Ok(Self {
            memory: Some(Pinned::new(context, bytes)?),
            context: Arc::clone(context),
        })
    }
}

impl Deref for Shared {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory
            .as_deref()
            .expect("it is there until it is dropped")
    }
}

impl DerefMut for Shared {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory
            .as_deref_mut()
            .expect("it is there until it is dropped")
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.context.bind();
        drop(self.memory.take());
    }
}

/// A stream with memory for a bite, reused when the bite is done. Dropping it waits for the stream
/// before memory is freed.
struct PortionLane {
    stream: Stream,
    input: Buffer,
    output: Buffer,
    /// Coefficients, or plans.
    head: Buffer,
    /// Which coefficients or plans these are.
    held: Held,
    /// The address of each source block's plan.
    places: Buffer,
    /// Plans' slots that do not fit into shared memory.
    work: Buffer,
    context: Arc<Context>,
}

/// Contents of a lane's head.
enum Held {
    Nothing,
    Rows(Arc<[u8]>),
    /// Plans without repetition, and where each begins.
    Plans(Vec<(Arc<Plan>, usize)>),
}

impl PortionLane {
    fn new(card: &Card, demand: &Demand) -> Result<Self, Fault> {
        let context = &card.context;
        let room = |bytes: usize| demand.bite_bytes.max(bytes) + SLACK;
        Ok(Self {
            stream: Stream::new(context)?,
            input: Buffer::new(context, room(demand.input_bytes))?,
            output: Buffer::new(context, room(demand.output_bytes))?,
            head: Buffer::new(context, HEAD_BYTES)?,
            held: Held::Nothing,
            places: Buffer::new(context, PLACES_BYTES)?,
            work: Buffer::new(context, 0)?,
            context: Arc::clone(context),
        })
    }

    /// Puts all work of a bite into the stream, which must be empty.
    fn begin(&mut self, card: &Card, bite: &mut [Portion]) -> Result<(), Error> {
        match &bite[0].work {
            Work::Nothing => Ok(()),
            Work::Product { rows, n, .. } => {
                let (rows, n) = (Arc::clone(rows), *n);
                self.product(card, &rows, n, bite)
            }
            &Work::Replay {
                symbol_bytes,
                inputs,
                outputs,
                ..
            } => self.replay(
                card,
                &Layout {
                    symbol_bytes,
                    inputs,
                    outputs,
                },
                bite,
            ),
            Work::Cpu(_) => Err(Error::Lost("it was given work of the CPU".to_owned())),
        }
    }

    /// Codes with one launch per portion, all with the same rows.
    fn product(
        &mut self,
        card: &Card,
        rows: &Arc<[u8]>,
        n: usize,
        bite: &mut [Portion],
    ) -> Result<(), Error> {
        let count = rows.len() / n;
        let way = Way::of_files(&Limits::of(card), n, count);
        let code = ChunkCode {
            way,
            tile: (1, 256),
            n,
            rows: count,
        };
        // Chunks begin at multiples of 16 bytes.
        let pitch_of = |portion: &Portion| match portion.work {
            Work::Product { bytes, .. } => bytes.next_multiple_of(16),
            _ => 0,
        };
        let pitches: usize = bite.iter().map(pitch_of).sum();
        reserve(&self.context, &mut self.input, n * pitches)?;
        reserve(&self.context, &mut self.output, count * pitches)?;
        if !matches!(&self.held, Held::Rows(held) if Arc::ptr_eq(held, rows)) {
            self.held = Held::Nothing;
            reserve(&self.context, &mut self.head, rows.len())?;
            upload(&self.head, rows, &self.stream)?;
            self.held = Held::Rows(Arc::clone(rows));
        }
        let (mut input, mut output) = (self.input.address(), self.output.address());
        for portion in bite {
            let pitch = pitch_of(portion);
            let bytes = portion.work.input_bytes() / n;
            let host = Ends {
                sources: Side {
                    start: portion.input.as_ptr() as Address,
                    pitch: bytes,
                },
                out: Side {
                    start: portion.output.as_mut_ptr() as Address,
                    pitch: bytes,
                },
            };
            let device = Ends {
                sources: Side {
                    start: input,
                    pitch,
                },
                out: Side {
                    start: output,
                    pitch,
                },
            };
            // SAFETY: a crew only takes portions whose memory is as large as their work's input and
            // output; the lane has just been given room for all of them. Portions are returned, and
            // the lane is reused, only after the stream has been waited for.
            unsafe {
                code.through(
                    card,
                    Some(self.head.address()),
                    (host, device),
                    bytes,
                    &self.stream,
                )
            }?;
            input += (n * pitch) as Address;
            output += (count * pitch) as Address;
        }
        Ok(())
    }

    /// Codes the source blocks of all portions in one launch.
    fn replay(&mut self, card: &Card, layout: &Layout, bite: &mut [Portion]) -> Result<(), Error> {
        let Layout {
            symbol_bytes,
            inputs,
            outputs,
        } = *layout;
        // A thread takes four bytes of each symbol.
        let pitch = symbol_bytes.next_multiple_of(4);
        let plans: Vec<Arc<Plan>> = bite
            .iter()
            .flat_map(|portion| plans_of(&portion.work))
            .cloned()
            .collect();
        let count = plans.len();
        self.hold(&plans)?;
        reserve(
            &self.context,
            &mut self.places,
            count * size_of::<Address>(),
        )?;
        upload(&self.places, &self.addresses(&plans), &self.stream)?;
        reserve(&self.context, &mut self.input, count * inputs * pitch)?;
        reserve(&self.context, &mut self.output, count * outputs * pitch)?;
        let number = |number: usize| {
            u32::try_from(number)
                .map_err(|_| Error::Unavailable("too much for one launch".to_owned()))
        };
        let slots = number(
            plans
                .iter()
                .map(|plan| plan.slots())
                .max()
                .unwrap_or_default(),
        )?;
        let shape = ReplayShape::new(card, slots, number(count * strips_of(pitch))?, 1);
        reserve(&self.context, &mut self.work, shape.work_bytes())?;
        let (mut input, mut output) = (self.input.address(), self.output.address());
        for portion in bite.iter() {
            let symbols = plans_of(&portion.work).len() * inputs;
            let host = Side {
                start: portion.input.as_ptr() as Address,
                pitch: symbol_bytes,
            };
            // SAFETY: as for products.
            unsafe {
                copy(
                    Side {
                        start: input,
                        pitch,
                    },
                    host,
                    symbol_bytes,
                    symbols,
                    &self.stream,
                )
            }?;
            input += (symbols * pitch) as Address;
        }
        let blocks = Blocks {
            plans: self.places.address(),
            symbols: self.input.address(),
            outputs: self.output.address(),
            symbols_pitch: inputs * pitch,
            outputs_pitch: outputs * pitch,
            work: self.work.address(),
            count,
            symbol_bytes: pitch,
        };
        // SAFETY: all memory is this lane's, with room for all blocks; plans stay within the inputs
        // and outputs that they state, and the layout has room for as many.
        unsafe { shape.replay(card, &blocks, &self.stream) }?;
        for portion in bite {
            let symbols = plans_of(&portion.work).len() * outputs;
            let host = Side {
                start: portion.output.as_mut_ptr() as Address,
                pitch: symbol_bytes,
            };
            // SAFETY: as for products.
            unsafe {
                copy(
                    host,
                    Side {
                        start: output,
                        pitch,
                    },
                    symbol_bytes,
                    symbols,
                    &self.stream,
                )
            }?;
            output += (symbols * pitch) as Address;
        }
        Ok(())
    }

    /// Uploads plans, each once, unless the lane has them already.
    fn hold(&mut self, plans: &[Arc<Plan>]) -> Result<(), Fault> {
        if plans.iter().all(|plan| self.place(plan).is_some()) {
            return Ok(());
        }
        let (mut held, mut bytes) = (Vec::<(Arc<Plan>, usize)>::new(), Vec::new());
        for plan in plans {
            // Most blocks have the same plan as the block before.
            if held
                .iter()
                .rev()
                .all(|(other, _)| !Arc::ptr_eq(other, plan))
            {
                held.push((Arc::clone(plan), bytes.len()));
                bytes.extend(plan.bytes());
                bytes.resize(bytes.len().next_multiple_of(16), 0);
            }
        }
        self.held = Held::Nothing;
        reserve(&self.context, &mut self.head, bytes.len())?;
        upload(&self.head, &bytes, &self.stream)?;
        self.held = Held::Plans(held);
        Ok(())
    }

    /// Address of a plan that the lane has.
    fn place(&self, plan: &Arc<Plan>) -> Option<Address> {
        let Held::Plans(held) = &self.held else {
            return None;
        };
        let found = held
            .iter()
            .rev()
            .find(|(other, _)| Arc::ptr_eq(other, plan));
        found.map(|(_, at)| self.head.address() + *at as Address)
    }

    fn addresses(&self, plans: &[Arc<Plan>]) -> Vec<u8> {
        plans
            .iter()
            .flat_map(|plan| self.place(plan).expect("they are held").to_le_bytes())
            .collect()
    }
}

impl Drop for PortionLane {
    fn drop(&mut self) {
        let _ = self.context.bind();
        let _ = self.stream.synchronize();
    }
}

/// Layout of source blocks in portions.
struct Layout {
    symbol_bytes: usize,
    inputs: usize,
    outputs: usize,
}

fn plans_of(work: &Work) -> &[Arc<Plan>] {
    match work {
        Work::Replay { plans, .. } => plans,
        _ => &[],
    }
}

/// Ensures that a buffer has this size; no work under way uses it. Rarely allocates, because lanes
/// begin with the sizes that portions are expected to have.
fn reserve(context: &Arc<Context>, buffer: &mut Buffer, bytes: usize) -> Result<(), Fault> {
    if buffer.len() < bytes {
        *buffer = Buffer::new(context, bytes)?;
    }
    Ok(())
}

/// Uploads bytes to the beginning of a buffer, in the order of the stream.
fn upload(buffer: &Buffer, bytes: &[u8], stream: &Stream) -> Result<(), Fault> {
    assert!(
        bytes.len() <= buffer.len(),
        "{} bytes for a buffer of {}",
        bytes.len(),
        buffer.len()
    );
    // SAFETY: inside the buffer, as asserted; memory that is not pinned is copied before the call
    // returns.
    unsafe { result::memcpy_htod_async(buffer.address(), bytes, stream.raw) }
        .named("cuMemcpyHtoDAsync")
}

/// Room for alignment in a bite: up to 15 bytes for each chunk of a stripe.
const SLACK: usize = 64 << 10;
/// The largest matrix has 128 rows of 128 coefficients. Plans can need more.
const HEAD_BYTES: usize = 64 << 10;
const PLACES_BYTES: usize = 4 << 10;
