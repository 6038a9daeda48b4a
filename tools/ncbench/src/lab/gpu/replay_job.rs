//! Replaying plans of RaptorQ, on symbols in a card's memory or through the card.

use std::ops::Range;
use std::time::Duration;

use cudarc::driver::result;
use ncserverd::device::Error;
use ncserverd::device::cuda::card::Card;
use ncserverd::device::cuda::driver::{Address, Buffer, Fault, Named, Pinned, Stream};
use ncserverd::device::cuda::replay_lane::{Blocks, ReplayShape, strips_of};

use super::basics::{self, Clock};
use crate::lab::{Planner, Replay};

/// Plans on a card that can be replayed repeatedly. Dropping it waits for the streams before memory
/// is freed.
pub(crate) struct ReplayJob<'a> {
    card: &'a Card,
    stream: Stream,
    clock: Clock,
    shape: ReplayShape,
    blocks: usize,
    symbol_bytes: usize,
    /// Bytes of a source block's inputs, and of its outputs.
    inputs: usize,
    outputs: usize,
    symbols: Buffer,
    made: Buffer,
    /// Slots in device memory, for `nc_replay_global`.
    work: Buffer,
    _plans: Vec<Buffer>,
    /// An address of a plan for each source block.
    places: Buffer,
    /// Maximum bytes of a plan, and maximum slots.
    plan_bytes: usize,
    slots: u32,
    distinct: Vec<u8>,
    host: Option<Host>,
}

/// Memory and streams for passing symbols through the card.
struct Host {
    /// Inputs, outputs and new plans in pinned memory.
    symbols: Pinned,
    made: Pinned,
    plans: Pinned,
    /// The new plans on the card, and the address of each.
    fresh: Buffer,
    fresh_places: Buffer,
    /// Maximum source blocks at a time.
    piece: usize,
    shape: ReplayShape,
    lanes: Vec<ReplayLane>,
}

/// The resources of one launch at a time.
struct ReplayLane {
    stream: Stream,
    work: Buffer,
}

/// What happens between the copies of a piece.
enum Between<'a, 'b> {
    Nothing,
    Replay,
    Plans(&'a mut Planner<'b>),
}

impl<'a> ReplayJob<'a> {
    pub(super) fn new(card: &'a Card, plan: &Replay<'_>) -> Result<Self, Error> {
        let (context, symbol_bytes) = (&card.context, plan.symbol_bytes);
        let first = plan.plans[0];
        let (inputs, outputs) = (
            first.inputs() * symbol_bytes,
            first.outputs() * symbol_bytes,
        );
        let is_alike = plan
            .plans
            .iter()
            .all(|each| (each.inputs(), each.outputs()) == (first.inputs(), first.outputs()));
        assert!(
            is_alike && symbol_bytes.is_multiple_of(4),
            "plans for as many symbols of whole words"
        );
        assert!(
            !plan.symbols.is_empty() && plan.symbols.len().is_multiple_of(inputs),
            "the inputs of whole source blocks"
        );
        let slots = plan
            .plans
            .iter()
            .map(|each| each.slots())
            .max()
            .unwrap_or_default();
        let count = |number: usize| u32::try_from(number).expect("fewer than 2^32");
        let slots = count(slots);
        let shape = ReplayShape::new(card, slots, count(plan.blocks * strips_of(symbol_bytes)), 1);
        let mut plans = Vec::with_capacity(plan.plans.len());
        let mut plan_bytes = 0;
        for each in plan.plans {
            let bytes = each.bytes();
            plan_bytes = plan_bytes.max(bytes.len().next_multiple_of(ALIGN));
            plans.push(basics::filled(card, &bytes)?);
        }
        let places = Buffer::new(context, plan.blocks * size_of::<Address>())?;
        write_addresses(
            &places,
            (0..plan.blocks).map(|block| plans[block % plans.len()].address()),
        )?;
        let job = Self {
            card,
            stream: Stream::new(context)?,
            clock: Clock::new(context)?,
            shape,
            blocks: plan.blocks,
            symbol_bytes,
            inputs,
            outputs,
            symbols: Buffer::new(context, plan.blocks * inputs)?,
            made: Buffer::new(context, plan.blocks * outputs)?,
            work: Buffer::new(context, shape.work_bytes())?,
            _plans: plans,
            places,
            plan_bytes,
            slots,
            distinct: plan.symbols.to_vec(),
            host: None,
        };
        for block in 0..job.blocks {
            let to = job.symbols.address() + (block * inputs) as u64;
            // SAFETY: inside `symbols`; memory that is not pinned is copied before the call
            // returns.
            unsafe { result::memcpy_htod_async(to, job.inputs_of(block), job.stream.raw) }
                .named("cuMemcpyHtoDAsync")?;
        }
        job.stream.synchronize()?;
        Ok(job)
    }

    fn inputs_of(&self, block: usize) -> &[u8] {
        let distinct = self.distinct.len() / self.inputs;
        &self.distinct[block % distinct * self.inputs..][..self.inputs]
    }

    /// Replays the plans whose addresses are in `places` on some source blocks.
    fn replay(
        &self,
        shape: ReplayShape,
        places: &Buffer,
        blocks: &Range<usize>,
        work: &Buffer,
        stream: &Stream,
    ) -> Result<(), Error> {
        let at = |buffer: &Buffer, pitch: usize| buffer.address() + (blocks.start * pitch) as u64;
        let blocks = Blocks {
            plans: at(places, size_of::<Address>()),
            symbols: at(&self.symbols, self.inputs),
            outputs: at(&self.made, self.outputs),
            symbols_pitch: self.inputs,
            outputs_pitch: self.outputs,
            work: work.address(),
            count: blocks.len(),
            symbol_bytes: self.symbol_bytes,
        };
        // SAFETY: all of it is memory of this job, whose streams are waited for before it is
        // dropped; plans write their words so that they stay inside, and the slots are those of the
        // largest.
        Ok(unsafe { shape.replay(self.card, &blocks, stream) }?)
    }

    /// The resources for pieces of `piece` source blocks, made at first use.
    fn host(&mut self, piece: usize) -> Result<Host, Fault> {
        assert!(piece > 0, "pieces of no source block");
        if let Some(host) = self.host.take().filter(|host| host.piece >= piece) {
            return Ok(host);
        }
        let context = &self.card.context;
        let mut symbols = Pinned::new(context, self.blocks * self.inputs)?;
        for (block, place) in symbols.chunks_exact_mut(self.inputs).enumerate() {
            place.copy_from_slice(self.inputs_of(block));
        }
        let lanes = LANES.min(self.blocks.div_ceil(piece));
        let count = |number: usize| u32::try_from(number).expect("fewer than 2^32");
        let shape = ReplayShape::new(
            self.card,
            self.slots,
            count(piece * strips_of(self.symbol_bytes)),
            count(lanes),
        );
        let lane = |_| {
            Ok(ReplayLane {
                stream: Stream::new(context)?,
                work: Buffer::new(context, shape.work_bytes())?,
            })
        };
        let fresh = Buffer::new(context, self.blocks * self.plan_bytes)?;
        let fresh_places = Buffer::new(context, self.blocks * size_of::<Address>())?;
        write_addresses(
            &fresh_places,
            (0..self.blocks).map(|block| fresh.address() + (block * self.plan_bytes) as u64),
        )?;
        Ok(Host {
            symbols,
            made: Pinned::new(context, self.blocks * self.outputs)?,
            plans: Pinned::new(context, self.blocks * self.plan_bytes)?,
            fresh,
            fresh_places,
            piece,
            shape,
            lanes: (0..lanes).map(lane).collect::<Result<_, Fault>>()?,
        })
    }

    fn pieces(
        &self,
        host: &mut Host,
        piece: usize,
        mut between: Between<'_, '_>,
    ) -> Result<(), Error> {
        for (index, first) in (0..self.blocks).step_by(piece).enumerate() {
            let blocks = first..self.blocks.min(first + piece);
            let bytes_of = |bytes: usize| blocks.start * bytes..blocks.end * bytes;
            let at =
                |buffer: &Buffer, bytes: usize| buffer.address() + bytes_of(bytes).start as u64;
            if let Between::Plans(plans) = &mut between {
                let places =
                    host.plans[bytes_of(self.plan_bytes)].chunks_exact_mut(self.plan_bytes);
                for (plan, place) in plans(blocks.clone()).iter().zip(places) {
                    place
                        .get_mut(..plan.len())
                        .expect("a plan of those that were there at first")
                        .copy_from_slice(plan);
                }
            }
            let ReplayLane { stream, work } = &host.lanes[index % host.lanes.len()];
            let symbols = &host.symbols[bytes_of(self.inputs)];
            // SAFETY: both are that large, and the streams are waited for before anybody reads,
            // writes or frees.
            unsafe {
                result::memcpy_htod_async(at(&self.symbols, self.inputs), symbols, stream.raw)
            }
            .named("cuMemcpyHtoDAsync")?;
            match between {
                Between::Nothing => {}
                Between::Replay => self.replay(host.shape, &self.places, &blocks, work, stream)?,
                Between::Plans(_) => {
                    let plans = &host.plans[bytes_of(self.plan_bytes)];
                    let to = at(&host.fresh, self.plan_bytes);
                    // SAFETY: as above.
                    unsafe { result::memcpy_htod_async(to, plans, stream.raw) }
                        .named("cuMemcpyHtoDAsync")?;
                    self.replay(host.shape, &host.fresh_places, &blocks, work, stream)?;
                }
            }
            let made = &mut host.made[bytes_of(self.outputs)];
            // SAFETY: as above.
            unsafe { result::memcpy_dtoh_async(made, at(&self.made, self.outputs), stream.raw) }
                .named("cuMemcpyDtoHAsync")?;
        }
        Ok(())
    }

    fn run(&mut self, piece: usize, between: Between<'_, '_>) -> Result<Duration, Error> {
        self.card.context.bind()?;
        let mut host = self.host(piece)?;
        let elapsed = basics::elapsed(
            &mut host,
            |host| self.pieces(host, piece, between),
            |host| {
                host.lanes
                    .iter()
                    .try_for_each(|lane| lane.stream.synchronize())
            },
        );
        self.host = Some(host);
        elapsed
    }

    /// The card's time for replaying on all source blocks, `repeats` times, in its own memory.
    pub(crate) fn time(&mut self, repeats: u32) -> Result<Duration, Error> {
        self.card.context.bind()?;
        self.clock.begin(&self.stream)?;
        for _ in 0..repeats {
            self.replay(
                self.shape,
                &self.places,
                &(0..self.blocks),
                &self.work,
                &self.stream,
            )?;
        }
        Ok(self.clock.end(&self.stream)?)
    }

    /// The host's time from inputs in pinned memory to outputs there, in pieces of `piece` source
    /// blocks, on streams in turn. Without `replay` it only copies.
    pub(crate) fn through(&mut self, piece: usize, replay: bool) -> Result<Duration, Error> {
        self.run(
            piece,
            if replay {
                Between::Replay
            } else {
                Between::Nothing
            },
        )
    }

    /// The same with plans that are uploaded with the pieces. `plans` returns the plans of some
    /// source blocks, as `Plan::bytes` has them, when their piece is next; earlier pieces
    /// continue meanwhile.
    pub(crate) fn planned(&mut self, piece: usize, plans: &mut Planner<'_>) -> Result<(), Error> {
        self.run(piece, Between::Plans(plans)).map(|_| ())
    }

    /// Fills the outputs with a pattern.
    pub(crate) fn poison(&mut self) -> Result<(), Error> {
        self.card.context.bind()?;
        basics::poison(&self.made, &self.stream)?;
        if let Some(host) = &mut self.host {
            host.made.fill(basics::POISON);
        }
        Ok(self.stream.synchronize()?)
    }

    /// Reads all outputs of a source block from the card or from pinned memory.
    pub(crate) fn read(
        &mut self,
        block: usize,
        is_on_host: bool,
        made: &mut [u8],
    ) -> Result<(), Error> {
        assert!(
            block < self.blocks && made.len() == self.outputs,
            "{} bytes of source block {block}",
            made.len()
        );
        let start = block * self.outputs;
        match (&self.host, is_on_host) {
            (Some(host), true) => made.copy_from_slice(&host.made[start..start + self.outputs]),
            (None, true) => {
                return Err(Fault::Driver("nothing has been brought to the host".into()).into());
            }
            (_, false) => {
                self.card.context.bind()?;
                basics::read(&self.made, start, made)?;
            }
        }
        Ok(())
    }
}

impl Drop for ReplayJob<'_> {
    fn drop(&mut self) {
        let _ = self.card.context.bind();
        let _ = self.stream.synchronize();
        for lane in self.host.iter().flat_map(|host| &host.lanes) {
            let _ = lane.stream.synchronize();
        }
    }
}

fn write_addresses(buffer: &Buffer, addresses: impl Iterator<Item = Address>) -> Result<(), Fault> {
    buffer.write(
        &addresses
            .flat_map(Address::to_le_bytes)
            .collect::<Vec<u8>>(),
    )
}

/// Pieces under way. A warp waits for each sum before the next, so it takes many strips at once to
/// keep a card busy.
const LANES: usize = 8;
/// Alignment of plans in bytes.
const ALIGN: usize = 16;
