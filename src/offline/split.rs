//! Files to chunk files.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Read, Seek, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;

use super::chunk_file::{Head, PIECE_BYTES, Set, piece_check, piece_of};
use super::encode::open;
use super::output::Partial;
use super::progress::Progress;
use super::{Error, is_standard};
use crate::codec::rs::{Code, Matrix};
use crate::gf::Kernels;
use crate::object::SegmentId;

/// Chunk files: which code, and how a file is cut.
#[derive(Debug, Clone, Copy)]
pub struct ChunkPlan {
    /// How the code chunks are made.
    pub matrix: Matrix,
    /// Native chunks, and how many chunks rebuild the file.
    pub k: u16,
    /// Chunks in all.
    pub n: u16,
    /// Bytes of a piece: of each stripe of k pieces every chunk has one.
    pub piece_bytes: u32,
    /// What tells the chunks of this encoding from those of others.
    pub set: [u8; 16],
}

impl ChunkPlan {
    /// Bytes of a piece, if nothing else is asked for: large enough that files are read and written well, and small enough that a stripe
    /// of the largest code fits in memory.
    pub const PIECE_BYTES: u32 = 256 << 10;
}

/// What has been stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// BLAKE3 of the file.
    pub file: SegmentId,
    /// Its bytes.
    pub bytes: u64,
    /// Native chunks.
    pub k: u16,
    /// Chunks in all.
    pub n: u16,
    /// Bytes of all chunk files.
    pub stored_bytes: u64,
    /// Where they are.
    pub directory: PathBuf,
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, bytes, k, n, stored_bytes, directory } = self;
        let code = n - k;
        writeln!(f, "{bytes} bytes, BLAKE3 {file}: {k} native and {code} code chunks in {}", directory.display())?;
        let copies = u128::from(*bytes) * 3;
        let times = |stored: f64| if *bytes == 0 { String::new() } else { format!(", {:.2}x the file", stored / *bytes as f64) };
        write!(f, "stored: {stored_bytes} bytes{}, and any {code} chunks may be lost; ", times(*stored_bytes as f64))?;
        write!(f, "three copies: {copies} bytes{}, and any 2 may be lost", times(copies as f64))
    }
}

/// Writes the n chunk files of `input`, of which any k rebuild it, into `directory`, or if none is given into one beside the file.
///
/// The file is read once. The chunk files appear together when all of them are complete.
pub fn encode_chunks(plan: &ChunkPlan, input: &Path, directory: Option<&Path>) -> Result<Stored, Error> {
    let code = Code::new(plan.matrix, plan.k.into(), plan.n.into())?;
    if !PIECE_BYTES.contains(&plan.piece_bytes) {
        return Err(Error::Piece(plan.piece_bytes));
    }
    let directory = match directory {
        Some(directory) if !is_standard(directory) => directory.to_owned(),
        None if !is_standard(input) => beside(input),
        _ => return Err(Error::write(Path::new("-"))(io::Error::other("chunk files need a directory: name one with -o"))),
    };
    let bytes =
        if is_standard(input) { None } else { input.metadata().ok().filter(fs::Metadata::is_file).map(|file| file.len()) };
    let source = open(input)?;
    fs::create_dir_all(&directory).map_err(Error::write(&directory))?;
    let outs = (0..plan.n).map(|index| Out::create(plan, input, &directory, index)).collect::<Result<_, _>>()?;
    let progress = bytes.map_or_else(|| Progress::open("coding"), |bytes| Progress::new("coding", bytes));
    let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let job = Job { plan, code, input, directory, outs, progress, threads, kernels: Kernels::detect() };
    job.run(Source { source, hasher: blake3::Hasher::new() })
}

/// The directory for the chunks of a file that go beside it.
fn beside(input: &Path) -> PathBuf {
    let mut name = OsString::from(input);
    name.push(".chunks");
    name.into()
}

/// The file, with the hash of what has been read.
struct Source {
    source: Box<dyn Read + Send>,
    hasher: blake3::Hasher,
}

impl Source {
    /// Reads a whole stripe into `bytes`, or what is left of the file.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut length = 0;
        while length < bytes.len() {
            match self.source.read(&mut bytes[length..]) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.hasher.update(&bytes[..length]);
        Ok(length)
    }
}

/// A chunk file on its way.
struct Out {
    index: u16,
    partial: Partial,
    bytes: u64,
}

impl Out {
    /// With room for the head.
    fn create(plan: &ChunkPlan, input: &Path, directory: &Path, index: u16) -> Result<Self, Error> {
        let partial = Partial::create(&directory.join(name(input, index, plan.k)))?;
        let mut out = Self { index, partial, bytes: 0 };
        let head = plan.head(index, 0, SegmentId::from_bytes([0; 32]));
        out.write(&[&head.write()])?;
        Ok(out)
    }

    fn write(&mut self, parts: &[&[u8]]) -> Result<(), Error> {
        for part in parts {
            self.partial.writer().write_all(part).map_err(Error::write(self.partial.path()))?;
            self.bytes += part.len() as u64;
        }
        Ok(())
    }

    /// Writes the true head, and everything to the disk.
    fn complete(&mut self, head: &Head) -> Result<(), Error> {
        let writer = self.partial.writer();
        let written = writer.rewind().and_then(|()| writer.write_all(&head.write()));
        written.and_then(|()| self.partial.sync()).map_err(Error::write(self.partial.path()))
    }
}

impl ChunkPlan {
    fn head(&self, index: u16, file_bytes: u64, file: SegmentId) -> Head {
        let Self { matrix, k, n, piece_bytes, set: id } = *self;
        Head { set: Set { id, matrix, k, n, piece_bytes, file_bytes, file }, index }
    }
}

struct Job<'a> {
    plan: &'a ChunkPlan,
    code: Code,
    input: &'a Path,
    directory: PathBuf,
    outs: Vec<Out>,
    progress: Progress,
    threads: NonZeroUsize,
    kernels: Kernels,
}

impl Job<'_> {
    /// While a stripe is written, the next one is read.
    fn run(mut self, mut source: Source) -> Result<Stored, Error> {
        let input = self.input;
        let piece_bytes = self.plan.piece_bytes as usize;
        let (mut stripe, mut next) = (vec![0; self.code.k() * piece_bytes], vec![0; self.code.k() * piece_bytes]);
        let mut code = vec![0; (self.code.n() - self.code.k()) * piece_bytes];
        let mut length = source.read(&mut stripe).map_err(Error::read(input))?;
        let mut index = 0;
        while length > 0 {
            let is_last = length < stripe.len();
            length = thread::scope(|scope| {
                let next = (!is_last).then(|| scope.spawn(|| source.read(&mut next)));
                self.stripe(index, &mut stripe, length, &mut code)?;
                let read = next.map_or(Ok(0), |next| next.join().expect("reading does not panic"));
                read.map_err(Error::read(input))
            })?;
            std::mem::swap(&mut stripe, &mut next);
            index += 1;
        }
        self.finish(&source.hasher)
    }

    /// Codes and writes the stripe that begins with `length` bytes of the file.
    fn stripe(&mut self, index: u64, stripe: &mut [u8], length: usize, code: &mut [u8]) -> Result<(), Error> {
        let piece = piece_of(length, self.plan.k);
        let (stripe, code) = (&mut stripe[..piece * self.code.k()], &mut code[..piece * (self.code.n() - self.code.k())]);
        stripe[length..].fill(0);
        let native: Vec<&[u8]> = stripe.chunks_exact(piece).collect();
        let mut coded: Vec<&mut [u8]> = code.chunks_exact_mut(piece).collect();
        self.code.encode(self.kernels, &native, &mut coded, self.threads).expect("pieces of one length, as many as chunks");
        let pieces = native.into_iter().chain(code.chunks_exact(piece));
        for (out, piece) in self.outs.iter_mut().zip(pieces) {
            out.write(&[piece, &piece_check(&self.plan.set, out.index, index, piece)])?;
        }
        self.progress.advance(length as u64);
        Ok(())
    }

    fn finish(mut self, hasher: &blake3::Hasher) -> Result<Stored, Error> {
        let (file, bytes) = (SegmentId::from_bytes(*hasher.finalize().as_bytes()), hasher.count());
        for out in &mut self.outs {
            let head = self.plan.head(out.index, bytes, file);
            out.complete(&head)?;
        }
        let stored_bytes = self.outs.iter().map(|out| out.bytes).sum();
        for out in self.outs {
            out.partial.publish().map_err(Error::write(&self.directory))?;
        }
        Ok(Stored { file, bytes, k: self.plan.k, n: self.plan.n, stored_bytes, directory: self.directory })
    }
}

/// Names are for people and for order in listings; decoding does not look at them.
fn name(input: &Path, index: u16, k: u16) -> OsString {
    let stem = if is_standard(input) { None } else { input.file_name() };
    let mut name = stem.map_or_else(|| "standard-input".into(), OsString::from);
    name.push(format!(".{index:03}-{}.ncc", if index < k { "native" } else { "code" }));
    name
}
