//! Files to coded blocks.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::ops::Range;
use std::path::Path;

use ncs_codec::block::Vector;
use ncs_codec::rlnc::Encoder;
use ncs_device::portions::{Demand, Portion, Work};
use ncs_gf::{Kernels, RowKey};
use ncs_proto::object::row_key;
use ncs_proto::object::{Codec, Generation, SegmentId, Shape, ShapeError};

use crate::block_file::{Code, Head, Label, Set};
use crate::crew::{BITE_BYTES, Choice, Crew, Makers};
use crate::disk::ReadAhead;
use crate::flow::{crew_of, flow};
use crate::fountain::{Fountain, Room};
use crate::output::Output;
use crate::partial::Partial;
use crate::progress::Progress;
use crate::symbols::{Plans, Source};
use crate::{Error, is_standard};

/// Raw blocks: which ones.
#[derive(Debug, Clone, Copy)]
pub struct Raw {
    /// What rows are drawn with.
    pub key: RowKey,
    /// Seed of the first block; further ones count up, modulo 2^32.
    pub first_seed: u32,
    /// How many blocks.
    pub count: u32,
    /// Blocks of the generation; as many as the file fills if not given.
    pub n: Option<u16>,
    /// Bytes of a block.
    pub block_bytes: u32,
}

/// Writes the payloads of coded blocks of `input`, zero-padded to a generation, one behind the
/// other.
///
/// Blocks may have any size here: no stream has such a generation, but another implementation may
/// want to be compared on it.
pub fn encode_raw(raw: &Raw, input: &Path, output: &Path) -> Result<(), Error> {
    let (generation, bytes) = raw.generation(input)?;
    let encoder = Encoder::new(&generation, &bytes, raw.key, Kernels::detect())
        .expect("the generation has the file's length");
    let mut output_file = Output::create(output)?;
    let progress = Progress::new("coding", u64::from(raw.count) * u64::from(raw.block_bytes));
    let write = |payloads: &[u8]| {
        output_file
            .write_all(payloads)
            .map_err(Error::write(output))
    };
    blocks(&encoder, raw.first_seed, raw.count, &progress, write)?;
    output_file.finish().map_err(Error::write(output))
}

impl Raw {
    /// The file as one generation.
    fn generation(&self, input: &Path) -> Result<(Generation, Vec<u8>), Error> {
        let block_bytes = self.block_bytes;
        if !(1..=Shape::BLOCK_BYTES_MAX).contains(&block_bytes) {
            return Err(ShapeError::BlockBytes(block_bytes).into());
        }
        let n_max = self.n.unwrap_or(Shape::N_LIMIT);
        if n_max == 0 || n_max > Shape::N_LIMIT {
            return Err(ShapeError::NMax(n_max).into());
        }
        let room = u64::from(n_max) * u64::from(block_bytes);
        let mut bytes = Vec::new();
        open(input)?
            .take(room + 1)
            .read_to_end(&mut bytes)
            .map_err(Error::read(input))?;
        let length = bytes.len() as u64;
        if length > room {
            return Err(Error::TooLong {
                path: input.into(),
                room,
                n: n_max,
                block_bytes,
            });
        }
        let filled =
            u16::try_from(length.div_ceil(u64::from(block_bytes))).expect("no more than n_max");
        let n = self.n.unwrap_or(filled);
        if n == 0 {
            return Err(Error::Empty(input.into()));
        }
        Ok((
            Generation {
                index: 0,
                n,
                block_bytes,
                offset: 0,
                length,
                codec: Codec::Rlnc,
            },
            bytes,
        ))
    }
}

/// Block files: how a file is cut and how many blocks are written.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The code.
    pub code: Code,
    /// Bytes of a block, or of a symbol.
    pub block_bytes: u32,
    /// Most blocks of a generation, or source symbols of a source block.
    pub n_max: u16,
    /// Seed of the first block of each generation; further ones count up, modulo 2^32. Or the id of
    /// the first encoding symbol.
    pub first: u32,
    /// How many blocks.
    pub amount: Amount,
}

impl Plan {
    /// Refuses symbols that have no id. `shape` is that of a segment with the largest generations.
    fn check(&self, shape: &Shape) -> Result<(), Error> {
        let Code::Fountain(fountain) = self.code else {
            return Ok(());
        };
        let end = fountain.esi_end();
        let count = shape
            .generation(0)
            .map_or(0, |generation| self.amount.blocks(generation.n));
        match self.first.checked_add(count).filter(|after| *after <= end) {
            Some(_) => Ok(()),
            None => Err(Error::Symbols {
                first: self.first,
                count,
                end,
            }),
        }
    }
}

/// Coded blocks of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// This many.
    Count(u32),
    /// This many more than it has source blocks.
    Extra(u32),
    /// An eighth more than it has source blocks, and four at least: some may get lost.
    Auto,
}

impl Amount {
    fn blocks(self, n: u16) -> u32 {
        let n = u32::from(n);
        match self {
            Self::Count(count) => count,
            Self::Extra(extra) => n.saturating_add(extra),
            Self::Auto => n + n.div_ceil(8).max(4),
        }
    }
}

/// What has been written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coded {
    /// BLAKE3 of the file.
    pub file: SegmentId,
    /// Its bytes.
    pub bytes: u64,
    /// Segments that it was cut into.
    pub segments: u64,
    /// Generations of all of them.
    pub generations: u64,
    /// Block files written.
    pub blocks: u64,
    /// Who coded how many portions, if a GPU took part: generations, or with source blocks whole
    /// segments.
    pub makers: Option<Makers>,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            bytes,
            segments,
            generations,
            blocks,
            makers,
        } = self;
        write!(
            f,
            "{bytes} bytes, BLAKE3 {file}: {blocks} block files (segments: {segments}, \
             generations: {generations})"
        )?;
        makers.map_or(Ok(()), |makers| write!(f, "\nportions coded {makers}"))
    }
}

/// Writes block files of `input` into `directory`, which is made if there is none.
///
/// The file is read twice, because every block carries the hash of the whole. Standard input is
/// kept in a file meanwhile.
pub fn encode(plan: &Plan, input: &Path, directory: &Path, choice: Choice) -> Result<Coded, Error> {
    encode_by(plan, input, directory, |demand| crew_of(choice, demand))
}

/// The same with any crew.
pub(super) fn encode_by(
    plan: &Plan,
    input: &Path,
    directory: &Path,
    crew: impl FnOnce(&Demand) -> Result<Crew, Error>,
) -> Result<Coded, Error> {
    if is_standard(directory) {
        return Err(Error::write(directory)(io::Error::other(
            "block files need a directory; raw blocks need --key",
        )));
    }
    fs::create_dir_all(directory).map_err(Error::write(directory))?;
    if is_standard(input) {
        let spool = Partial::create(&directory.join("standard-input"))?;
        io::copy(&mut io::stdin(), &mut spool.file()).map_err(Error::write(spool.path()))?;
        let file = spool.file().try_clone().map_err(Error::read(input))?;
        return EncodeJob::new(plan, file, input, directory)?.run(crew);
    }
    EncodeJob::new(
        plan,
        File::open(input).map_err(Error::read(input))?,
        input,
        directory,
    )?
    .run(crew)
}

/// One file on its way into a directory.
struct EncodeJob<'a> {
    plan: &'a Plan,
    segments: Segments<'a>,
    directory: &'a Path,
    progress: Progress,
    written: u64,
}

impl<'a> EncodeJob<'a> {
    /// Reads the file once, for its hash.
    fn new(
        plan: &'a Plan,
        mut source: File,
        input: &'a Path,
        directory: &'a Path,
    ) -> Result<Self, Error> {
        let mut hasher = blake3::Hasher::new();
        source
            .rewind()
            .and_then(|()| hasher.update_reader(&mut source).map(drop))
            .map_err(Error::read(input))?;
        let file_bytes = hasher.count();
        if file_bytes == 0 {
            return Err(Error::Empty(input.into()));
        }
        let Plan {
            code,
            block_bytes,
            n_max,
            ..
        } = *plan;
        let file = SegmentId::from_bytes(*hasher.finalize().as_bytes());
        let set = Set {
            code,
            file,
            file_bytes,
            segment_bytes: SEGMENT_BYTES,
            block_bytes,
            n_max,
        };
        let shape = code.shape(u64::from(SEGMENT_BYTES).min(file_bytes), block_bytes, n_max);
        plan.check(&shape.map_err(|error| Error::of_shape(code, error))?)?;
        u32::try_from(set.segments()).map_err(|_| ShapeError::Length(file_bytes))?;
        source.rewind().map_err(Error::read(input))?;
        let segments = Segments {
            source,
            input,
            set,
            hasher: blake3::Hasher::new(),
            next: 0,
            generations: 0,
        };
        Ok(Self {
            plan,
            segments,
            directory,
            progress: Progress::new("coding", file_bytes),
            written: 0,
        })
    }

    fn run(mut self, crew: impl FnOnce(&Demand) -> Result<Crew, Error>) -> Result<Coded, Error> {
        let makers = match self.plan.code {
            Code::Rlnc => self.vectors(crew)?,
            Code::Fountain(fountain) => self.symbols(fountain, crew)?,
        };
        let Segments {
            set,
            hasher,
            input,
            generations,
            ..
        } = self.segments;
        if hasher.finalize().as_bytes() != set.file.as_bytes() {
            return Err(Error::Changed(input.into()));
        }
        let Set {
            file, file_bytes, ..
        } = set;
        Ok(Coded {
            file,
            bytes: file_bytes,
            segments: set.segments(),
            generations,
            blocks: self.written,
            makers,
        })
    }

    /// Blocks that are combinations: some of a generation are a portion.
    fn vectors(
        &mut self,
        crew: impl FnOnce(&Demand) -> Result<Crew, Error>,
    ) -> Result<Option<Makers>, Error> {
        let (set, plan, k) = (self.segments.set, self.plan, self.plan.block_bytes as usize);
        let rows_max = (PORTION_BYTES / k).max(1);
        let most = set
            .shapes()
            .filter_map(|shape| shape.generation(0))
            .map(|generation| generation.n)
            .max()
            .unwrap_or(1);
        let rows = rows_max.min(plan.amount.blocks(most) as usize);
        let demand = Demand {
            input_bytes: usize::from(most) * k,
            output_bytes: rows * k,
            bite_bytes: BITE_BYTES,
        };
        let crew = crew(&demand)?;
        let (segments, mut at) = (&mut self.segments, None::<At>);
        let read = |portion: &mut Portion| loop {
            let Some(here) = &mut at else {
                let Some(segment) = segments.next()? else {
                    return Ok(None);
                };
                at = Some(At {
                    segment,
                    generation: 0,
                    done: 0,
                });
                continue;
            };
            let Some(generation) = here.segment.shape.generation(here.generation) else {
                at = None;
                continue;
            };
            let (first, left) = (
                plan.first.wrapping_add(here.done),
                plan.amount.blocks(generation.n) - here.done,
            );
            if left == 0 {
                (here.generation, here.done) = (here.generation + 1, 0);
                continue;
            }
            let count = left.min(u32::try_from(rows_max).unwrap_or(u32::MAX));
            let n = usize::from(generation.n);
            let (source, behind) = portion.input[..n * k].split_at_mut(range(&generation).len());
            source.copy_from_slice(&here.segment.bytes[range(&generation)]);
            behind.fill(0);
            let key = row_key(&here.segment.id, &generation);
            let mut rows = vec![0; count as usize * n];
            rows.chunks_exact_mut(n)
                .zip(0..)
                .for_each(|(row, index)| key.fill(first.wrapping_add(index), row));
            portion.work = Work::Product {
                rows: rows.into(),
                n,
                bytes: k,
            };
            here.done += count;
            return Ok(Some(Vectors {
                segment: here.segment.index,
                id: here.segment.id,
                generation,
                first,
                count,
            }));
        };
        let (written, directory, progress) = (&mut self.written, self.directory, &self.progress);
        flow(&crew, &demand, read, |portion, told: Vectors| {
            let Vectors {
                segment,
                id: segment_id,
                generation,
                first,
                count,
            } = told;
            for (payload, index) in portion.output.chunks_exact(k).zip(0..count) {
                let seed = first.wrapping_add(index);
                let head = Head {
                    set,
                    segment,
                    segment_id,
                    generation,
                    label: Label::Vector(Vector::Seed(seed)),
                };
                write(directory, &head, seed, payload)?;
            }
            *written += u64::from(count);
            progress.advance(if first == plan.first {
                generation.length
            } else {
                0
            });
            Ok(())
        })?;
        Ok(crew.makers())
    }

    /// Encoding symbols: the source blocks of a segment are a portion, of which a crew makes the
    /// intermediate symbols.
    fn symbols(
        &mut self,
        fountain: Fountain,
        crew: impl FnOnce(&Demand) -> Result<Crew, Error>,
    ) -> Result<Option<Makers>, Error> {
        let (set, plan, kernels) = (self.segments.set, self.plan, Kernels::detect());
        let Room {
            blocks,
            symbol_bytes,
            inputs,
            intermediate: outputs,
            ..
        } = fountain.room(set.shapes().collect::<Vec<_>>().iter());
        let (input_bytes, output_bytes) = (
            blocks * inputs * symbol_bytes,
            blocks * outputs * symbol_bytes,
        );
        let demand = Demand {
            input_bytes,
            output_bytes,
            bite_bytes: REPLAY_BITE_BYTES,
        };
        let crew = crew(&demand)?;
        let (segments, mut plans) = (&mut self.segments, Plans::new(fountain));
        let read = |portion: &mut Portion| {
            let Some(segment) = segments.next()? else {
                return Ok(None);
            };
            for (generation, place) in segment
                .shape
                .iter()
                .zip(portion.input.chunks_exact_mut(inputs * symbol_bytes))
            {
                let (source, behind) = place.split_at_mut(range(&generation).len());
                source.copy_from_slice(&segment.bytes[range(&generation)]);
                behind.fill(0);
            }
            let plans = segment
                .shape
                .iter()
                .map(|generation| plans.plan(&generation))
                .collect();
            portion.work = Work::Replay {
                plans,
                symbol_bytes,
                inputs,
                outputs,
            };
            Ok(Some((segment.index, segment.id, segment.shape)))
        };
        let (written, directory, progress) = (&mut self.written, self.directory, &self.progress);
        let mut symbol = vec![0; symbol_bytes];
        flow(
            &crew,
            &demand,
            read,
            |portion, (segment, segment_id, shape): (u32, SegmentId, Shape)| {
                let sources = portion.input.chunks_exact(inputs * symbol_bytes);
                let intermediate = portion.output.chunks_exact(outputs * symbol_bytes);
                for (generation, (source, intermediate)) in
                    shape.iter().zip(sources.zip(intermediate))
                {
                    let (source, count) = (
                        Source::new(fountain, &generation, source, intermediate, kernels),
                        plan.amount.blocks(generation.n),
                    );
                    for esi in fountain.esis(&generation, plan.first, count) {
                        source.symbol(esi, &mut symbol);
                        let head = Head {
                            set,
                            segment,
                            segment_id,
                            generation,
                            label: Label::Symbol(fountain, esi),
                        };
                        write(directory, &head, esi, &symbol)?;
                    }
                    *written += u64::from(count);
                    progress.advance(generation.length);
                }
                Ok(())
            },
        )?;
        Ok(crew.makers())
    }
}

/// A file, segment by segment.
struct Segments<'a> {
    source: File,
    input: &'a Path,
    set: Set,
    /// Of what has been read.
    hasher: blake3::Hasher,
    next: u32,
    generations: u64,
}

/// A segment that has been read.
struct Segment {
    index: u32,
    id: SegmentId,
    shape: Shape,
    bytes: Vec<u8>,
}

impl Segments<'_> {
    fn next(&mut self) -> Result<Option<Segment>, Error> {
        let Some(shape) = self.set.shape(self.next) else {
            return Ok(None);
        };
        let mut bytes = vec![0; usize::try_from(shape.length()).expect("a segment fits in memory")];
        self.source
            .read_exact(&mut bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => Error::Changed(self.input.into()),
                _ => Error::read(self.input)(error),
            })?;
        self.hasher.update(&bytes);
        let index = self.next;
        self.next += 1;
        self.generations += u64::from(shape.generations());
        Ok(Some(Segment {
            index,
            id: SegmentId::of(&bytes),
            shape,
            bytes,
        }))
    }
}

/// Where coding of blocks is: the segment, the generation in it, and how many of its blocks have
/// been begun.
struct At {
    segment: Segment,
    generation: u32,
    done: u32,
}

/// Which blocks a portion has: those of so many seeds.
struct Vectors {
    segment: u32,
    id: SegmentId,
    generation: Generation,
    first: u32,
    count: u32,
}

/// Where a generation is in its segment.
fn range(generation: &Generation) -> Range<usize> {
    let [start, length] = [generation.offset, generation.length]
        .map(|at| usize::try_from(at).expect("a segment fits in memory"));
    start..start + length
}

/// Writes a block file. `number` tells the blocks of a generation apart.
fn write(directory: &Path, head: &Head, number: u32, payload: &[u8]) -> Result<(), Error> {
    let path = directory.join(name(head, number));
    fs::write(&path, head.write(payload)).map_err(Error::write(&path))
}

/// Names are for people and for order in listings; decoding does not look at them.
fn name(head: &Head, number: u32) -> String {
    let file = head.set.file.to_string();
    format!(
        "{}-s{:05}-g{:04}-{number:08x}.ncb",
        &file[..12],
        head.segment,
        head.generation.index
    )
}

/// Hands the payloads of `count` blocks to `write`, some at a time.
fn blocks(
    encoder: &Encoder,
    first_seed: u32,
    count: u32,
    progress: &Progress,
    mut write: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let k = encoder.block_bytes();
    let mut payloads = vec![0; k * count.min(BATCH_BLOCKS) as usize];
    let (mut seed, mut left) = (first_seed, count);
    while left > 0 {
        let batch = left.min(BATCH_BLOCKS);
        let payloads = &mut payloads[..k * batch as usize];
        encoder.blocks(seed, &mut payloads.chunks_exact_mut(k).collect::<Vec<_>>());
        write(payloads)?;
        progress.advance(payloads.len() as u64);
        seed = seed.wrapping_add(batch);
        left -= batch;
    }
    Ok(())
}

/// A file, or standard input.
pub(super) fn open(path: &Path) -> Result<Box<dyn Read + Send>, Error> {
    if is_standard(path) {
        return Ok(Box::new(io::stdin()));
    }
    let file = File::open(path).map_err(Error::read(path))?;
    let metadata = file.metadata().map_err(Error::read(path))?;
    if !metadata.is_file() {
        return Ok(Box::new(file));
    }
    let read = ReadAhead::start(file, metadata.len());
    Ok(Box::new(read.map_err(Error::read(path))?))
}

/// As large as a server's segments are by default.
const SEGMENT_BYTES: u32 = 8 << 20;
/// Bytes of the blocks that are a portion, at most.
const PORTION_BYTES: usize = 4 << 20;
/// A GPU's thread has four bytes of a symbol and goes through a whole plan: with symbols of 4096
/// bytes a source block keeps 32 warps busy and no more, so a GPU is given many.
pub(super) const REPLAY_BITE_BYTES: usize = 64 << 20;
/// Blocks coded at a time: enough for the kernels to share what they load, few enough to stay in
/// the cache.
const BATCH_BLOCKS: u32 = 32;
