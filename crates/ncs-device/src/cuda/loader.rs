//! Loading segments onto the device: a megabyte at a time through two pinned buffers, then a kernel
//! that converts every generation into the run's form.

use std::collections::{HashMap, VecDeque};

use cudarc::driver::result;
use ncs_codec::shape::Generation;

use super::card::{Card, bytes_of};
use super::driver::{Address, Event, Fault, Named, Piece, Pinned, Pool, Stream};
use super::kernels::Form;
use super::launch;
use crate::abi;
use crate::backend::{Loading, ResidentId, Share};

/// Loads segments, one at a time.
#[derive(Debug)]
pub(super) struct Loader {
    form: Form,
    pool: Pool,
    stream: Stream,
    staging: [(Pinned, Event); 2],
    done: Event,
    current: Option<Current>,
    segments: HashMap<ResidentId, Segment>,
}

/// A segment in the run's form.
#[derive(Debug)]
pub(super) struct Segment {
    piece: Piece,
    share: Share,
    addresses: Vec<Address>,
}

impl Segment {
    /// Address of a generation of the share.
    pub(super) fn address(&self, generation: u32) -> Address {
        self.addresses[(generation / self.share.of) as usize]
    }
}

/// The segment that is being loaded.
#[derive(Debug)]
struct Current {
    load: Loading,
    segment: Segment,
    /// The bytes of its generations in order, each at a multiple of 16.
    raw: Piece,
    /// What is still to be copied: ranges of the segment's bytes, and where in `raw` they go.
    left: VecDeque<(std::ops::Range<usize>, usize)>,
    /// Index of the next staging buffer.
    turn: usize,
    tasks: Option<Piece>,
}

impl Loader {
    pub(super) fn new(card: &Card, form: Form) -> Result<Self, Fault> {
        let context = &card.context;
        let stream = Stream::new(context)?;
        let buffer = || {
            let event = Event::new(context)?;
            event.record(&stream)?;
            Ok::<_, Fault>((Pinned::new(context, STAGING_BYTES)?, event))
        };
        let staging = [buffer()?, buffer()?];
        Ok(Self {
            form,
            pool: Pool::new(context)?,
            stream,
            staging,
            done: Event::new(context)?,
            current: None,
            segments: HashMap::new(),
        })
    }

    /// Begins to load a segment.
    pub(super) fn begin(&mut self, load: Loading) -> Result<(), Fault> {
        let generations: Vec<Generation> = load.share.generations(&load.shape).collect();
        let (mut form_bytes, mut raw_bytes) = (0, 0);
        let (mut offsets, mut left) = (Vec::with_capacity(generations.len()), VecDeque::new());
        for generation in &generations {
            offsets.push(form_bytes as u64);
            form_bytes += self
                .form
                .bytes(generation.n.into(), size(generation.block_bytes))
                .next_multiple_of(FORM_ALIGN);
            let start = size(generation.offset);
            left.push_back((start..start + size(generation.length), raw_bytes));
            raw_bytes += size(generation.length).next_multiple_of(RAW_ALIGN);
        }
        let piece = self.pool.take(form_bytes)?;
        let raw = match self.pool.take(raw_bytes) {
            Ok(raw) => raw,
            Err(fault) => {
                self.pool.free(piece)?;
                return Err(fault);
            }
        };
        let addresses = offsets
            .iter()
            .map(|offset| piece.address + offset)
            .collect();
        let segment = Segment {
            piece,
            share: load.share,
            addresses,
        };
        self.current = Some(Current {
            load,
            segment,
            raw,
            left,
            turn: 0,
            tasks: None,
        });
        Ok(())
    }

    /// Advances the load. Returns the segment's size in device memory once it is in its form.
    pub(super) fn advance(&mut self, card: &Card) -> Result<Option<u64>, Fault> {
        let Some(current) = &mut self.current else {
            return Ok(None);
        };
        if current.tasks.is_none() {
            let (buffer, event) = &mut self.staging[current.turn];
            if !current.left.is_empty() && event.is_done()? {
                current.copy_some(buffer, &self.stream)?;
                event.record(&self.stream)?;
                current.turn = 1 - current.turn;
            }
            if current.left.is_empty() {
                current.tasks =
                    Some(current.transform(card, self.form, &self.pool, &self.stream)?);
                self.done.record(&self.stream)?;
            }
            return Ok(None);
        }
        if !self.done.is_done()? {
            return Ok(None);
        }
        let Some(Current {
            load,
            segment,
            raw,
            tasks,
            ..
        }) = self.current.take()
        else {
            return Ok(None);
        };
        self.pool.free(raw)?;
        tasks.map_or(Ok(()), |tasks| self.pool.free(tasks))?;
        let bytes = segment.piece.len as u64;
        self.segments.insert(load.id, segment);
        Ok(Some(bytes))
    }

    /// A loaded segment.
    pub(super) fn segment(&self, id: ResidentId) -> Option<&Segment> {
        self.segments.get(&id)
    }

    /// Gives up the load under way.
    pub(super) fn abandon(&mut self) {
        if let Some(Current {
            segment,
            raw,
            tasks,
            ..
        }) = self.current.take()
        {
            // If the driver has failed, this fails too, and the memory stays until the process
            // ends.
            let _ = self.stream.synchronize();
            for piece in [Some(segment.piece), Some(raw), tasks]
                .into_iter()
                .flatten()
            {
                let _ = self.pool.free(piece);
            }
        }
    }

    /// Frees a segment that nothing under way uses.
    pub(super) fn free(&mut self, id: ResidentId) -> Result<(), Fault> {
        self.segments
            .remove(&id)
            .map_or(Ok(()), |segment| self.pool.free(segment.piece))
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.abandon();
        for segment in std::mem::take(&mut self.segments).into_values() {
            // Memory that cannot be freed stays until the process ends.
            let _ = self.pool.free(segment.piece);
        }
    }
}

impl Current {
    /// Fills a staging buffer and sends it off.
    fn copy_some(&mut self, buffer: &mut Pinned, stream: &Stream) -> Result<(), Fault> {
        let mut filled = 0;
        while let Some((range, offset)) = self.left.pop_front() {
            let count = range.len().min(buffer.len() - filled);
            buffer[filled..filled + count]
                .copy_from_slice(&self.load.bytes[range.start..range.start + count]);
            // SAFETY: the destination is inside `raw`; the buffer is not touched before its event
            // is done.
            unsafe {
                let address = self.raw.address + offset as u64;
                result::memcpy_htod_async(address, &buffer[filled..filled + count], stream.raw)
                    .named("cuMemcpyHtoDAsync")?;
            }
            filled = (filled + count)
                .next_multiple_of(RAW_ALIGN)
                .min(buffer.len());
            if count < range.len() {
                self.left
                    .push_front((range.start + count..range.end, offset + count));
            }
            if filled == buffer.len() {
                break;
            }
        }
        Ok(())
    }

    /// Begins the kernel that makes the form. Returns the memory that holds its tasks.
    fn transform(
        &self,
        card: &Card,
        form: Form,
        pool: &Pool,
        stream: &Stream,
    ) -> Result<Piece, Fault> {
        let mut raw = self.raw.address;
        let generations: Vec<Generation> = self.load.share.generations(&self.load.shape).collect();
        let mut tasks = Vec::with_capacity(generations.len() * size_of::<abi::FormTask>());
        for (generation, &out) in generations.iter().zip(&self.segment.addresses) {
            let length =
                u32::try_from(generation.length).expect("a segment is shorter than 2^32 bytes");
            let (n, k) = (generation.n.into(), generation.block_bytes);
            let task = abi::FormTask {
                raw,
                out,
                raw_pitch: k,
                raw_length: length,
                n,
                k,
            };
            tasks.extend_from_slice(bytes_of(&task));
            raw += u64::from(length).next_multiple_of(RAW_ALIGN as u64);
        }
        let piece = pool.take(tasks.len().max(1))?;
        // In the kernel's stream: a copy on the default stream from memory that is not pinned might
        // arrive after the kernel has begun.
        // SAFETY: the piece is as long as the tasks, and the call returns when they have been read.
        unsafe { result::memcpy_htod_async(piece.address, &tasks, stream.raw) }
            .named("cuMemcpyHtoDAsync")?;
        let bytes = generations
            .first()
            .map_or(1, |generation| size(generation.padded_length()));
        for (first, some) in generations.chunks(FORM_TASKS_MAX).enumerate() {
            let address =
                piece.address + (first * FORM_TASKS_MAX * size_of::<abi::FormTask>()) as u64;
            let count = u32::try_from(some.len()).expect("at most FORM_TASKS_MAX");
            // SAFETY: tasks, raw bytes and forms live until `done`, which is recorded after this.
            unsafe { launch::form(card, form, form_blocks(bytes), (address, count), stream) }?;
        }
        Ok(piece)
    }
}

/// Thread blocks that convert a generation of this many bytes.
pub(super) fn form_blocks(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(FORM_BYTES_PER_BLOCK))
        .unwrap_or(u32::MAX)
        .clamp(1, FORM_BLOCKS_MAX)
}

fn size(number: impl TryInto<usize>) -> usize {
    number.try_into().ok().expect("a segment fits in memory")
}

const STAGING_BYTES: usize = 1 << 20;
pub(super) const FORM_ALIGN: usize = 1024;
const RAW_ALIGN: usize = 16;
/// Bytes that a thread block of the converting kernel takes at once.
const FORM_BYTES_PER_BLOCK: usize = 8 << 10;
const FORM_BLOCKS_MAX: u32 = 512;
/// The grid's second dimension has 16 bits.
const FORM_TASKS_MAX: usize = 65_535;

#[cfg(test)]
impl Loader {
    /// Points every segment to an invalid address, so that the next kernel faults.
    pub(super) fn poison(&mut self) {
        self.segments
            .values_mut()
            .for_each(|segment| segment.addresses.fill(16));
    }
}
