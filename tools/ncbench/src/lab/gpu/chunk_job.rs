//! Coding chunks, in a card's memory or through the card.

use std::time::Duration;

use cudarc::driver::result;
use ncserverd::device::Error;
use ncserverd::device::cuda::card::Card;
use ncserverd::device::cuda::chunk_lane::{ChunkCode, Ends, Side};
use ncserverd::device::cuda::chunks::Way;
use ncserverd::device::cuda::driver::{Address, Buffer, Fault, Named, Pinned, Stream};

use super::basics::{self, Clock, filled};
use crate::lab::Chunks;

/// Chunks on a card that can be coded repeatedly. Dropping it waits for the streams of all cards
/// before memory is freed.
pub(crate) struct ChunkJob<'a> {
    card: &'a Card,
    stream: Stream,
    clock: Clock,
    code: ChunkCode,
    bytes: usize,
    sources: Buffer,
    out: Buffer,
    matrix: Buffer,
    /// One period of the native chunks' contents; chunks are contiguous.
    pattern: Vec<u8>,
    helpers: Vec<Helper<'a>>,
    host: Option<Host<'a>>,
}

/// Another card that takes a share of the pieces. Its memory is freed in its own context.
struct Helper<'a> {
    matrix: Buffer,
    card: &'a Card,
}

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        let _ = self.card.context.bind();
    }
}

/// Native and code chunks in memory that is pinned for all cards, and streams with room for a piece
/// each.
struct Host<'a> {
    lanes: Vec<ChunkLane<'a>>,
    sources: Pinned,
    out: Pinned,
    piece: usize,
}

/// A stream of a card. It is waited for before its memory is freed.
struct ChunkLane<'a> {
    stream: Stream,
    sources: Buffer,
    out: Buffer,
    matrix: Address,
    card: &'a Card,
}

impl<'a> ChunkLane<'a> {
    /// With room for `sources` and `out` bytes of native and code chunks. The matrix is in the
    /// card's memory.
    fn new((card, matrix): (&'a Card, Address), sources: usize, out: usize) -> Result<Self, Fault> {
        let context = &card.context;
        context.bind()?;
        let (sources, out) = (Buffer::new(context, sources)?, Buffer::new(context, out)?);
        Ok(Self {
            stream: Stream::new(context)?,
            sources,
            out,
            matrix,
            card,
        })
    }
}

impl Drop for ChunkLane<'_> {
    fn drop(&mut self) {
        let _ = self.card.context.bind();
        let _ = self.stream.synchronize();
    }
}

impl<'a> ChunkJob<'a> {
    /// Brings native chunks onto a card. `others` take a share of the pieces.
    pub(super) fn new(
        card: &'a Card,
        others: &'a [Card],
        plan: &Chunks<'_>,
    ) -> Result<Self, Error> {
        let unknown = || Error::Unavailable(format!("no kernel {} over chunks", plan.kernel));
        let way = Way::named(plan.kernel).ok_or_else(unknown)?;
        let (n, context) = (usize::from(plan.n), &card.context);
        let rows = plan.matrix.len() / n.max(1);
        assert!(
            plan.bytes.is_multiple_of(16) && plan.sources.len().is_multiple_of(16),
            "whole words of 16 bytes"
        );
        let helpers: Result<Vec<Helper<'a>>, Fault> = others
            .iter()
            .map(|card| {
                card.context.bind()?;
                Ok(Helper {
                    matrix: filled(card, plan.matrix)?,
                    card,
                })
            })
            .collect();
        let helpers = helpers?;
        context.bind()?;
        let job = Self {
            card,
            stream: Stream::new(context)?,
            clock: Clock::new(context)?,
            code: ChunkCode {
                way,
                tile: plan.tile.unwrap_or((1, 256)),
                n,
                rows,
            },
            bytes: plan.bytes,
            sources: Buffer::new(context, n * plan.bytes)?,
            out: Buffer::new(context, rows * plan.bytes)?,
            matrix: filled(card, plan.matrix)?,
            pattern: plan.sources.to_vec(),
            helpers,
            host: None,
        };
        job.code.shape(card, job.bytes)?;
        let mut at = 0;
        while at < n * job.bytes {
            let part = job.pattern_from(at, n * job.bytes - at);
            // SAFETY: inside `sources`; memory that is not pinned is copied before the call
            // returns.
            unsafe {
                result::memcpy_htod_async(job.sources.address() + at as u64, part, job.stream.raw)
            }
            .named("cuMemcpyHtoDAsync")?;
            at += part.len();
        }
        job.stream.synchronize()?;
        Ok(job)
    }

    /// Contents of the native chunks from byte `at` of all of them on, at most `most` bytes.
    fn pattern_from(&self, at: usize, most: usize) -> &[u8] {
        let rest = &self.pattern[at % self.pattern.len()..];
        &rest[..rest.len().min(most)]
    }

    /// Makes pinned memory with the native chunks, and streams.
    fn make_host(&mut self, streams: u32, piece: usize) -> Result<(), Fault> {
        let count = streams as usize * (1 + self.helpers.len());
        if self
            .host
            .as_ref()
            .is_some_and(|host| host.piece == piece && host.lanes.len() == count)
        {
            return Ok(());
        }
        let (context, ChunkCode { n, rows, .. }) = (&self.card.context, self.code);
        let (sources, out) = match self.host.take() {
            Some(host) => (host.sources, host.out),
            None => {
                let mut sources = Pinned::new(context, n * self.bytes)?;
                for part in sources.chunks_mut(self.pattern.len()) {
                    part.copy_from_slice(self.pattern_from(0, part.len()));
                }
                (sources, Pinned::new(context, rows * self.bytes)?)
            }
        };
        let helpers = self
            .helpers
            .iter()
            .map(|helper| (helper.card, helper.matrix.address()));
        let cards = std::iter::once((self.card, self.matrix.address())).chain(helpers);
        // The first of each card, then the second of each, and so on.
        let lanes = cards
            .cycle()
            .take(count)
            .map(|card| ChunkLane::new(card, n * piece, rows * piece));
        self.host = Some(Host {
            lanes: lanes.collect::<Result<_, Fault>>()?,
            sources,
            out,
            piece,
        });
        Ok(())
    }

    /// Puts all pieces on the streams in turn.
    fn pieces(&self, host: &Host<'a>, code: bool) -> Result<(), Error> {
        for (index, at) in (0..self.bytes).step_by(host.piece).enumerate() {
            let ChunkLane {
                stream,
                sources,
                out,
                matrix,
                card,
            } = &host.lanes[index % host.lanes.len()];
            let bytes = host.piece.min(self.bytes - at);
            let ends = |sources: u64, out: u64, pitch: usize| {
                let side = |start| Side { start, pitch };
                Ends {
                    sources: side(sources),
                    out: side(out),
                }
            };
            let of_host = ends(
                host.sources.address() + at as u64,
                host.out.address() + at as u64,
                self.bytes,
            );
            let sides = (of_host, ends(sources.address(), out.address(), host.piece));
            card.context.bind()?;
            // SAFETY: memory of this job, which is that large, and whose streams are waited for
            // before anybody reads, writes or frees.
            unsafe {
                self.code
                    .through(card, code.then_some(*matrix), sides, bytes, stream)
            }?;
        }
        Ok(())
    }

    /// The card's time for coding `repeats` times in its own memory.
    pub(crate) fn time(&mut self, repeats: u32) -> Result<Duration, Error> {
        self.card.context.bind()?;
        self.clock.begin(&self.stream)?;
        for _ in 0..repeats {
            let side = |buffer: &Buffer| Side {
                start: buffer.address(),
                pitch: self.bytes,
            };
            let chunks = Ends {
                sources: side(&self.sources),
                out: side(&self.out),
            };
            // SAFETY: the chunks are memory of this job, whose streams are waited for before it is
            // dropped.
            unsafe {
                self.code.code(
                    self.card,
                    self.matrix.address(),
                    chunks,
                    self.bytes,
                    &self.stream,
                )
            }?;
        }
        Ok(self.clock.end(&self.stream)?)
    }

    /// The card's time for copying `repeats` times within its memory. It copies half as many bytes
    /// as coding reads and writes, since a copy reads and writes each byte.
    pub(crate) fn time_copy(&mut self, repeats: u32) -> Result<Duration, Error> {
        self.card.context.bind()?;
        let bytes = (self.code.n + self.code.rows) * self.bytes / 2;
        let (from, to) = (
            Buffer::new(&self.card.context, bytes)?,
            Buffer::new(&self.card.context, bytes)?,
        );
        self.clock.begin(&self.stream)?;
        for _ in 0..repeats {
            // SAFETY: both are that long, and the stream is waited for before they are freed.
            unsafe {
                result::memcpy_dtod_async(to.address(), from.address(), bytes, self.stream.raw)
            }
            .named("cuMemcpyDtoDAsync")?;
        }
        Ok(self.clock.end(&self.stream)?)
    }

    /// The host's time from native chunks in pinned memory to code chunks there. It takes pieces of
    /// `piece` bytes of each chunk, on `streams` streams of each GPU in turn. Without `code` it
    /// only copies.
    pub(crate) fn through(
        &mut self,
        streams: u32,
        piece: usize,
        code: bool,
    ) -> Result<Duration, Error> {
        assert!(
            streams > 0 && piece > 0 && piece.is_multiple_of(16),
            "{streams} streams, pieces of {piece} bytes"
        );
        self.card.context.bind()?;
        self.make_host(streams, piece)?;
        let mut host = self.host.take().expect("made a line ago");
        let elapsed = basics::elapsed(
            &mut host,
            |host| self.pieces(host, code),
            |host| {
                host.lanes
                    .iter()
                    .try_for_each(|lane| lane.stream.synchronize())
            },
        );
        self.host = Some(host);
        elapsed
    }

    /// Fills the code chunks with a pattern.
    pub(crate) fn poison(&mut self) -> Result<(), Error> {
        self.card.context.bind()?;
        basics::poison(&self.out, &self.stream)?;
        if let Some(host) = &mut self.host {
            host.out.fill(basics::POISON);
        }
        Ok(self.stream.synchronize()?)
    }

    /// Reads bytes of a code chunk from the card or from pinned memory.
    pub(crate) fn read(
        &mut self,
        row: usize,
        at: usize,
        is_on_host: bool,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        assert!(
            row < self.code.rows && at + bytes.len() <= self.bytes,
            "{} bytes from {at} on of code chunk {row}",
            bytes.len()
        );
        let start = row * self.bytes + at;
        match (&self.host, is_on_host) {
            (Some(host), true) => bytes.copy_from_slice(&host.out[start..start + bytes.len()]),
            (None, true) => {
                return Err(Fault::Driver("nothing has been brought to the host".into()).into());
            }
            (_, false) => {
                self.card.context.bind()?;
                basics::read(&self.out, start, bytes)?;
            }
        }
        Ok(())
    }
}

impl Drop for ChunkJob<'_> {
    fn drop(&mut self) {
        self.host = None;
        self.helpers.clear();
        let _ = self.card.context.bind();
        let _ = self.stream.synchronize();
    }
}
