//! Files to coded blocks.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use super::block_file::{Code, Head, Label, Set};
use super::output::{Output, Partial};
use super::progress::Progress;
use super::symbols::Encoders;
use super::{Error, is_standard};
use crate::block::Vector;
use crate::codec::rlnc::{Encoder, row_key};
use crate::gf::{Kernels, RowKey};
use crate::object::{Codec, Generation, SegmentId, Shape, ShapeError};

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

/// Writes the payloads of coded blocks of `input`, zero-padded to a generation, one behind the other.
///
/// Blocks may have any size here: no stream has such a generation, but another implementation may want to be compared on it.
pub fn encode_raw(raw: &Raw, input: &Path, output: &Path) -> Result<(), Error> {
    let (generation, bytes) = raw.generation(input)?;
    let encoder = Encoder::new(&generation, &bytes, raw.key, Kernels::detect()).expect("the generation has the file's length");
    let mut output_file = Output::create(output)?;
    let progress = Progress::new("coding", u64::from(raw.count) * u64::from(raw.block_bytes));
    let write = |payloads: &[u8]| output_file.write_all(payloads).map_err(Error::write(output));
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
        open(input)?.take(room + 1).read_to_end(&mut bytes).map_err(Error::read(input))?;
        let length = bytes.len() as u64;
        if length > room {
            return Err(Error::TooLong { path: input.into(), room, n: n_max, block_bytes });
        }
        let filled = u16::try_from(length.div_ceil(u64::from(block_bytes))).expect("no more than n_max");
        let n = self.n.unwrap_or(filled);
        if n == 0 {
            return Err(Error::Empty(input.into()));
        }
        Ok((Generation { index: 0, n, block_bytes, offset: 0, length, codec: Codec::Rlnc }, bytes))
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
    /// Seed of the first block of each generation; further ones count up, modulo 2^32. Or the id of the first encoding symbol.
    pub first: u32,
    /// How many blocks.
    pub amount: Amount,
}

impl Plan {
    /// Refuses symbols that have no id. `shape` is that of a segment with the largest generations.
    fn check(&self, shape: &Shape) -> Result<(), Error> {
        let Code::Fountain(fountain) = self.code else { return Ok(()) };
        let end = fountain.esi_end();
        let count = shape.generation(0).map_or(0, |generation| self.amount.blocks(generation.n));
        match self.first.checked_add(count).filter(|after| *after <= end) {
            Some(_) => Ok(()),
            None => Err(Error::Symbols { first: self.first, count, end }),
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
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, bytes, segments, generations, blocks } = self;
        write!(f, "{bytes} bytes, BLAKE3 {file}: {blocks} block files (segments: {segments}, generations: {generations})")
    }
}

/// Writes block files of `input` into `directory`, which is made if there is none.
///
/// The file is read twice, because every block carries the hash of the whole. Standard input is kept in a file meanwhile.
pub fn encode(plan: &Plan, input: &Path, directory: &Path) -> Result<Coded, Error> {
    if is_standard(directory) {
        return Err(Error::write(directory)(io::Error::other("block files need a directory; raw blocks, with --key, do not")));
    }
    fs::create_dir_all(directory).map_err(Error::write(directory))?;
    if is_standard(input) {
        let mut spool = Partial::create(&directory.join("standard-input"))?;
        io::copy(&mut io::stdin(), spool.writer()).and_then(|_| spool.writer().flush()).map_err(Error::write(spool.path()))?;
        let file = spool.writer().get_ref().try_clone().map_err(Error::read(input))?;
        return Job::new(plan, file, input, directory)?.run();
    }
    Job::new(plan, File::open(input).map_err(Error::read(input))?, input, directory)?.run()
}

/// One file on its way into a directory.
struct Job<'a> {
    plan: &'a Plan,
    set: Set,
    source: File,
    input: &'a Path,
    directory: &'a Path,
    kernels: Kernels,
    encoders: Option<Encoders>,
    progress: Progress,
    written: u64,
}

impl<'a> Job<'a> {
    /// Reads the file once, for its hash.
    fn new(plan: &'a Plan, mut source: File, input: &'a Path, directory: &'a Path) -> Result<Self, Error> {
        let mut hasher = blake3::Hasher::new();
        source.rewind().and_then(|()| hasher.update_reader(&mut source).map(drop)).map_err(Error::read(input))?;
        let file_bytes = hasher.count();
        if file_bytes == 0 {
            return Err(Error::Empty(input.into()));
        }
        let Plan { code, block_bytes, n_max, .. } = *plan;
        let file = SegmentId::from_bytes(*hasher.finalize().as_bytes());
        let set = Set { code, file, file_bytes, segment_bytes: SEGMENT_BYTES, block_bytes, n_max };
        let shape = code.shape(u64::from(SEGMENT_BYTES).min(file_bytes), block_bytes, n_max);
        plan.check(&shape.map_err(|error| Error::of_shape(code, error))?)?;
        u32::try_from(set.segments()).map_err(|_| ShapeError::Length(file_bytes))?;
        let (progress, kernels) = (Progress::new("coding", file_bytes), Kernels::detect());
        Ok(Self { plan, set, source, input, directory, kernels, encoders: None, progress, written: 0 })
    }

    fn run(mut self) -> Result<Coded, Error> {
        self.source.rewind().map_err(Error::read(self.input))?;
        let mut hasher = blake3::Hasher::new();
        let mut generations = 0;
        let mut segment = 0;
        while let Some(shape) = self.set.shape(segment) {
            let bytes = self.read(&shape)?;
            hasher.update(&bytes);
            let id = SegmentId::of(&bytes);
            for generation in shape.iter() {
                self.generation(segment, id, generation, &bytes)?;
            }
            generations += u64::from(shape.generations());
            segment += 1;
        }
        if hasher.finalize().as_bytes() != self.set.file.as_bytes() {
            return Err(Error::Changed(self.input.into()));
        }
        let Set { file, file_bytes, .. } = self.set;
        Ok(Coded { file, bytes: file_bytes, segments: self.set.segments(), generations, blocks: self.written })
    }

    fn read(&mut self, shape: &Shape) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; usize::try_from(shape.length()).expect("a segment fits in memory")];
        self.source.read_exact(&mut bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Error::Changed(self.input.into()),
            _ => Error::read(self.input)(error),
        })?;
        Ok(bytes)
    }

    fn generation(&mut self, segment: u32, id: SegmentId, generation: Generation, bytes: &[u8]) -> Result<(), Error> {
        let start = usize::try_from(generation.offset).expect("a segment fits in memory");
        let length = usize::try_from(generation.length).expect("a segment fits in memory");
        let source = &bytes[start..start + length];
        let head = |label| Head { set: self.set, segment, segment_id: id, generation, label };
        let (count, first) = (self.plan.amount.blocks(generation.n), self.plan.first);
        if let Code::Fountain(fountain) = self.set.code {
            let encoders = self.encoders.get_or_insert_with(|| Encoders::new(fountain, self.kernels));
            let encoder = encoders.encoder(&generation, source);
            let mut symbol = vec![0; encoder.symbol_bytes()];
            for esi in fountain.esis(&generation, first, count) {
                encoder.symbol(esi, &mut symbol);
                write(self.directory, &head(Label::Symbol(fountain, esi)), esi, &symbol)?;
            }
        } else {
            let encoder = Encoder::new(&generation, source, row_key(&id, &generation), self.kernels);
            let encoder = encoder.expect("the generation's own bytes");
            let mut seed = first;
            let silent = Progress::silent();
            blocks(&encoder, first, count, &silent, |payloads| {
                for payload in payloads.chunks_exact(encoder.block_bytes()) {
                    write(self.directory, &head(Label::Vector(Vector::Seed(seed))), seed, payload)?;
                    seed = seed.wrapping_add(1);
                }
                Ok(())
            })?;
        }
        self.written += u64::from(count);
        self.progress.advance(generation.length);
        Ok(())
    }
}

/// Writes a block file. `number` tells the blocks of a generation apart.
fn write(directory: &Path, head: &Head, number: u32, payload: &[u8]) -> Result<(), Error> {
    let path = directory.join(name(head, number));
    fs::write(&path, head.write(payload)).map_err(Error::write(&path))
}

/// Names are for people and for order in listings; decoding does not look at them.
fn name(head: &Head, number: u32) -> String {
    let file = head.set.file.to_string();
    format!("{}-s{:05}-g{:04}-{number:08x}.ncb", &file[..12], head.segment, head.generation.index)
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
    Ok(Box::new(File::open(path).map_err(Error::read(path))?))
}

/// As large as a server's segments are by default.
const SEGMENT_BYTES: u32 = 8 << 20;
/// Blocks coded at a time: enough for the kernels to share what they load, few enough to stay in the cache.
const BATCH_BLOCKS: u32 = 32;
