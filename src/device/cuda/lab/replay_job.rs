//! Plans of RaptorQ on a card, replayed on symbols in its memory or on their way through it.

use std::time::Duration;

use cudarc::driver::result;

use super::super::card::Card;
use super::super::driver::{Address, Buffer, Fault, Named, Pinned, Stream};
use super::super::replay_lane::{Blocks, ReplayShape, bytes_of_plan, strips_of};
use super::basics::{self, Clock};
use crate::device::Error;
use crate::device::lab::{Replay, ReplayWork};

/// Fields are dropped in this order: streams are waited for in `drop`, before memory goes.
pub(super) struct ReplayJob<'a> {
    card: &'a Card,
    stream: Stream,
    clock: Clock,
    shape: ReplayShape,
    blocks: usize,
    symbol_bytes: usize,
    /// Bytes of all inputs, and of all outputs, of a source block.
    inputs: usize,
    outputs: usize,
    symbols: Buffer,
    made: Buffer,
    /// The slots of `nc_replay_global`, which has them in device memory.
    work: Buffer,
    _plans: Vec<Buffer>,
    /// An address for each source block.
    places: Buffer,
    distinct: Vec<u8>,
    host: Option<Host>,
}

/// Inputs and outputs in memory that is pinned, and streams of their own.
struct Host {
    symbols: Pinned,
    made: Pinned,
    streams: Vec<Stream>,
}

impl<'a> ReplayJob<'a> {
    pub(super) fn new(card: &'a Card, plan: &Replay<'_>) -> Result<Self, Error> {
        let (context, symbol_bytes) = (&card.context, plan.symbol_bytes);
        let first = plan.plans[0];
        let (inputs, outputs) = (first.inputs() * symbol_bytes, first.outputs() * symbol_bytes);
        let is_alike = plan.plans.iter().all(|each| (each.inputs(), each.outputs()) == (first.inputs(), first.outputs()));
        assert!(is_alike && symbol_bytes.is_multiple_of(4), "plans for as many symbols of whole words");
        assert!(!plan.symbols.is_empty() && plan.symbols.len().is_multiple_of(inputs), "the inputs of whole source blocks");
        let slots = plan.plans.iter().map(|each| each.slots()).max().unwrap_or_default();
        let count = |number: usize| u32::try_from(number).expect("fewer than 2^32");
        let shape = ReplayShape::new(card, count(slots), count(plan.blocks * strips_of(symbol_bytes)));
        let mut plans = Vec::with_capacity(plan.plans.len());
        for each in plan.plans {
            let words = bytes_of_plan(each);
            let buffer = Buffer::new(context, words.len())?;
            buffer.write(&words)?;
            plans.push(buffer);
        }
        let places = Buffer::new(context, plan.blocks * size_of::<Address>())?;
        let addresses = (0..plan.blocks).flat_map(|block| plans[block % plans.len()].address().to_le_bytes());
        places.write(&addresses.collect::<Vec<u8>>())?;
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
            distinct: plan.symbols.to_vec(),
            host: None,
        };
        for block in 0..job.blocks {
            let to = job.symbols.address() + (block * inputs) as u64;
            // SAFETY: inside `symbols`; memory that is not pinned is copied before the call returns.
            unsafe { result::memcpy_htod_async(to, job.inputs_of(block), job.stream.raw) }.named("cuMemcpyHtoDAsync")?;
        }
        job.stream.synchronize()?;
        Ok(job)
    }

    fn inputs_of(&self, block: usize) -> &[u8] {
        let distinct = self.distinct.len() / self.inputs;
        &self.distinct[block % distinct * self.inputs..][..self.inputs]
    }

    /// On so many source blocks from `first` on. Launches on several streams at once must not need [`Self::work`].
    fn replay(&self, first: usize, blocks: usize, stream: &Stream) -> Result<(), Error> {
        let at = |buffer: &Buffer, pitch: usize| buffer.address() + (first * pitch) as u64;
        let blocks = Blocks {
            plans: at(&self.places, size_of::<Address>()),
            symbols: at(&self.symbols, self.inputs),
            outputs: at(&self.made, self.outputs),
            symbols_pitch: self.inputs,
            outputs_pitch: self.outputs,
            work: self.work.address(),
            count: blocks,
            symbol_bytes: self.symbol_bytes,
        };
        // SAFETY: all of it is memory of this job, whose streams are waited for before it is dropped; plans write their words so that
        // they stay inside, and the slots are those of the largest.
        Ok(unsafe { self.shape.replay(self.card, &blocks, stream) }?)
    }

    fn make_host(&mut self) -> Result<(), Fault> {
        if self.host.is_none() {
            let context = &self.card.context;
            let mut symbols = Pinned::new(context, self.blocks * self.inputs)?;
            for (block, place) in symbols.chunks_exact_mut(self.inputs).enumerate() {
                place.copy_from_slice(self.inputs_of(block));
            }
            // Slots in device memory are those of one launch at a time.
            let streams = if self.shape.work_bytes() > 0 { 1 } else { STREAMS };
            let streams = (0..streams).map(|_| Stream::new(context)).collect::<Result<_, Fault>>()?;
            self.host = Some(Host { symbols, made: Pinned::new(context, self.blocks * self.outputs)?, streams });
        }
        Ok(())
    }

    fn pieces(&self, host: &mut Host, piece: usize, replay: bool) -> Result<(), Error> {
        for (index, first) in (0..self.blocks).step_by(piece).enumerate() {
            let stream = &host.streams[index % host.streams.len()];
            let blocks = piece.min(self.blocks - first);
            let symbols = &host.symbols[first * self.inputs..][..blocks * self.inputs];
            let to = self.symbols.address() + (first * self.inputs) as u64;
            // SAFETY: both are that large, and the streams are waited for before anybody reads, writes or frees.
            unsafe { result::memcpy_htod_async(to, symbols, stream.raw) }.named("cuMemcpyHtoDAsync")?;
            if replay {
                self.replay(first, blocks, stream)?;
            }
            let made = &mut host.made[first * self.outputs..][..blocks * self.outputs];
            let from = self.made.address() + (first * self.outputs) as u64;
            // SAFETY: as above.
            unsafe { result::memcpy_dtoh_async(made, from, stream.raw) }.named("cuMemcpyDtoHAsync")?;
        }
        Ok(())
    }
}

impl ReplayWork for ReplayJob<'_> {
    fn time(&mut self, repeats: u32) -> Result<Duration, Error> {
        self.card.context.bind()?;
        self.clock.begin(&self.stream)?;
        for _ in 0..repeats {
            self.replay(0, self.blocks, &self.stream)?;
        }
        Ok(self.clock.end(&self.stream)?)
    }

    fn through(&mut self, piece: usize, replay: bool) -> Result<Duration, Error> {
        assert!(piece > 0, "pieces of no source block");
        self.card.context.bind()?;
        self.make_host()?;
        let mut host = self.host.take().expect("made a line ago");
        let elapsed = basics::elapsed(
            &mut host,
            |host| self.pieces(host, piece, replay),
            |host| host.streams.iter().try_for_each(Stream::synchronize),
        );
        self.host = Some(host);
        elapsed
    }

    fn poison(&mut self) -> Result<(), Error> {
        self.card.context.bind()?;
        basics::poison(&self.made, &self.stream)?;
        if let Some(host) = &mut self.host {
            host.made.fill(basics::POISON);
        }
        Ok(self.stream.synchronize()?)
    }

    fn read(&mut self, block: usize, is_on_host: bool, made: &mut [u8]) -> Result<(), Error> {
        assert!(block < self.blocks && made.len() == self.outputs, "{} bytes of source block {block}", made.len());
        let start = block * self.outputs;
        match (&self.host, is_on_host) {
            (Some(host), true) => made.copy_from_slice(&host.made[start..start + self.outputs]),
            (None, true) => return Err(Fault::Driver("nothing has been brought to the host".into()).into()),
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
        for stream in self.host.iter().flat_map(|host| &host.streams) {
            let _ = stream.synchronize();
        }
    }
}

/// One to copy while the other is worked on, and one to copy back.
const STREAMS: usize = 3;
