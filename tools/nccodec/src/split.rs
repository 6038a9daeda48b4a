//! Files to chunk files.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use ncs_device::portions::{Demand, Portion};
use ncs_proto::object::SegmentId;

use crate::block_file::CHECK;
use crate::chunk_file::{HEAD, Head, PIECE_BYTES, Set, piece_check};
use crate::construction::{ChunkCode, Construction};
use crate::crew::{BITE_BYTES, Choice, Crew, Makers};
use crate::disk::{Target, Writers};
use crate::encode::open;
use crate::flow::{crew_of, flow};
use crate::partial::Partial;
use crate::progress::Progress;
use crate::{Error, is_standard};

/// Chunk files: which code, and how a file is cut.
#[derive(Debug, Clone, Copy)]
pub struct ChunkPlan {
    /// How the code chunks are made.
    pub matrix: Construction,
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
    /// Bytes of a piece, if nothing else is asked for: large enough that files are read and written
    /// well, and small enough that a stripe of the largest code fits in memory.
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
    /// Who coded how many stripes, if a GPU took part.
    pub makers: Option<Makers>,
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            bytes,
            k,
            n,
            stored_bytes,
            directory,
            makers,
        } = self;
        let code = n - k;
        writeln!(
            f,
            "{bytes} bytes, BLAKE3 {file}: {k} native and {code} code chunks in {}",
            directory.display()
        )?;
        let copies = u128::from(*bytes) * 3;
        let times = |stored: f64| {
            if *bytes == 0 {
                String::new()
            } else {
                format!(", {:.2}x the file", stored / *bytes as f64)
            }
        };
        write!(
            f,
            "stored: {stored_bytes} bytes{}, and any {code} chunks may be lost; ",
            times(*stored_bytes as f64)
        )?;
        write!(
            f,
            "three copies: {copies} bytes{}, and any 2 may be lost",
            times(copies as f64)
        )?;
        makers.map_or(Ok(()), |makers| write!(f, "\nstripes coded {makers}"))
    }
}

/// Writes the n chunk files of `input`, of which any k rebuild it, into `directory`, or if none is
/// given into one beside the file.
///
/// The file is read once. The chunk files appear together when all of them are complete.
pub fn encode_chunks(
    plan: &ChunkPlan,
    input: &Path,
    directory: Option<&Path>,
    choice: Choice,
) -> Result<Stored, Error> {
    let choice = plan.matrix.coders(choice)?;
    encode_by(plan, input, directory, |demand| crew_of(choice, demand))
}

/// The same with any crew.
pub(super) fn encode_by(
    plan: &ChunkPlan,
    input: &Path,
    directory: Option<&Path>,
    crew: impl FnOnce(&Demand) -> Result<Crew, Error>,
) -> Result<Stored, Error> {
    let code = ChunkCode::new(plan.matrix, plan.k, plan.n)?;
    if !PIECE_BYTES.contains(&plan.piece_bytes) {
        return Err(Error::Piece(plan.piece_bytes));
    }
    if !plan.matrix.takes(plan.piece_bytes) {
        return Err(Error::OddPiece(plan.piece_bytes));
    }
    let directory = match directory {
        Some(directory) if !is_standard(directory) => directory.to_owned(),
        None if !is_standard(input) => beside(input),
        _ => {
            return Err(Error::write(Path::new("-"))(io::Error::other(
                "chunk files need a directory: name it with -o",
            )));
        }
    };
    let crew = crew(&plan.demand())?;
    let bytes = if is_standard(input) {
        None
    } else {
        input
            .metadata()
            .ok()
            .filter(fs::Metadata::is_file)
            .map(|file| file.len())
    };
    let source = open(input)?;
    fs::create_dir_all(&directory).map_err(Error::write(&directory))?;
    let writers = Writers::start(plan.n.into()).map_err(Error::write(&directory))?;
    let outs = (0..plan.n)
        .map(|index| Out::create(plan, input, &directory, index, &writers))
        .collect::<Result<_, _>>()?;
    let progress = bytes.map_or_else(
        || Progress::open("coding"),
        |bytes| Progress::new("coding", bytes),
    );
    let job = SplitJob {
        plan,
        code,
        input,
        directory,
        outs,
        writers,
        progress,
    };
    job.run(
        Source {
            source,
            hasher: blake3::Hasher::new(),
        },
        &crew,
    )
}

/// The checks of all pieces of a stripe, by several threads if that pays: hashing many code pieces
/// takes longer than making them.
fn checks(set: &[u8; 16], stripe: u64, pieces: &[&[u8]]) -> Vec<[u8; CHECK]> {
    let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    let threads = thread::available_parallelism()
        .map_or(1, NonZeroUsize::get)
        .min(bytes / HASHED_PER_THREAD)
        .max(1);
    let each = pieces.len().div_ceil(threads);
    let check = |(index, piece): (u16, &&[u8])| piece_check(set, index, stripe, piece);
    let indices: Vec<(u16, &&[u8])> = (0..).zip(pieces).collect();
    thread::scope(|scope| {
        let mut parts = indices.chunks(each);
        let first = parts.next().unwrap_or_default();
        let others: Vec<_> = parts
            .map(|part| scope.spawn(move || part.iter().copied().map(check).collect::<Vec<_>>()))
            .collect();
        let mut checks: Vec<_> = first.iter().copied().map(check).collect();
        others
            .into_iter()
            .for_each(|other| checks.extend(other.join().expect("hashing does not panic")));
        checks
    })
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
    target: Target,
    bytes: u64,
}

impl Out {
    /// With room for the head.
    fn create(
        plan: &ChunkPlan,
        input: &Path,
        directory: &Path,
        index: u16,
        writers: &Writers,
    ) -> Result<Self, Error> {
        let partial = Partial::create(&directory.join(name(input, index, plan.k)))?;
        let mut out = Self {
            index,
            target: Target::new(partial, writers),
            bytes: 0,
        };
        // Nobody takes it for a chunk before it is one.
        out.write(&[0; HEAD], writers)?;
        Ok(out)
    }

    fn write(&mut self, bytes: &[u8], writers: &Writers) -> Result<(), Error> {
        self.bytes += bytes.len() as u64;
        self.target.write(bytes, writers).map_err(failed)
    }

    /// Writes the true head, and everything to the disk.
    fn complete(self, head: &Head) -> Result<Partial, Error> {
        let partial = self.target.finish().map_err(failed)?;
        let written = partial.file().write_all_at(&head.write(), 0);
        written
            .and_then(|()| partial.file().sync_all())
            .map_err(Error::write(partial.path()))?;
        Ok(partial)
    }
}

fn failed((path, error): (PathBuf, io::Error)) -> Error {
    Error::write(&path)(error)
}

impl ChunkPlan {
    /// A stripe is a portion.
    fn demand(&self) -> Demand {
        let piece_bytes = self.piece_bytes as usize;
        let (input_bytes, output_bytes) = (
            usize::from(self.k) * piece_bytes,
            usize::from(self.n - self.k) * piece_bytes,
        );
        Demand {
            input_bytes,
            output_bytes,
            bite_bytes: BITE_BYTES,
        }
    }

    fn head(&self, index: u16, file_bytes: u64, file: SegmentId) -> Head {
        let Self {
            matrix,
            k,
            n,
            piece_bytes,
            set: id,
        } = *self;
        Head {
            set: Set {
                id,
                matrix,
                k,
                n,
                piece_bytes,
                file_bytes,
                file,
            },
            index,
        }
    }
}

struct SplitJob<'a> {
    plan: &'a ChunkPlan,
    code: ChunkCode,
    input: &'a Path,
    directory: PathBuf,
    outs: Vec<Out>,
    writers: Writers,
    progress: Progress,
}

impl SplitJob<'_> {
    /// While stripes are coded and written, the next ones are read.
    fn run(mut self, mut source: Source, crew: &Crew) -> Result<Stored, Error> {
        let (k, input) = (usize::from(self.plan.k), self.input);
        let (plan, code) = (self.plan, &self.code);
        let mut is_last = false;
        let read = |stripe: &mut Portion| {
            let length = if is_last {
                0
            } else {
                source.read(&mut stripe.input).map_err(Error::read(input))?
            };
            is_last = length < stripe.input.len();
            let bytes = plan.matrix.piece_of(length, plan.k);
            stripe.input[length..k * bytes].fill(0);
            stripe.work = code.encoding(bytes);
            Ok((length > 0).then_some(length))
        };
        let (outs, writers, mut index) = (&mut self.outs, &self.writers, 0);
        let write = |stripe: &Portion, length: usize| {
            let bytes = plan.matrix.piece_of(length, plan.k);
            let native = stripe.input.chunks_exact(bytes).take(k);
            let pieces: Vec<&[u8]> = native
                .chain(stripe.output.chunks_exact(bytes))
                .take(outs.len())
                .collect();
            for ((out, piece), check) in
                outs.iter_mut()
                    .zip(&pieces)
                    .zip(checks(&self.plan.set, index, &pieces))
            {
                out.write(piece, writers)?;
                out.write(&check, writers)?;
            }
            index += 1;
            self.progress.advance(length as u64);
            Ok(())
        };
        flow(crew, &self.plan.demand(), read, write)?;
        self.finish(&source.hasher, crew.makers())
    }

    fn finish(self, hasher: &blake3::Hasher, makers: Option<Makers>) -> Result<Stored, Error> {
        let (file, bytes) = (
            SegmentId::from_bytes(*hasher.finalize().as_bytes()),
            hasher.count(),
        );
        self.writers.finish().map_err(failed)?;
        let stored_bytes = self.outs.iter().map(|out| out.bytes).sum();
        let complete = |out: Out| {
            let head = self.plan.head(out.index, bytes, file);
            out.complete(&head)
        };
        let whole = self.outs.into_iter().map(complete);
        for partial in whole.collect::<Result<Vec<_>, _>>()? {
            partial.publish().map_err(Error::write(&self.directory))?;
        }
        Ok(Stored {
            file,
            bytes,
            k: self.plan.k,
            n: self.plan.n,
            stored_bytes,
            directory: self.directory,
            makers,
        })
    }
}

/// Names are for people and for order in listings; decoding does not look at them.
fn name(input: &Path, index: u16, k: u16) -> OsString {
    let stem = if is_standard(input) {
        None
    } else {
        input.file_name()
    };
    let mut name = stem.map_or_else(|| "standard-input".into(), OsString::from);
    name.push(format!(
        ".{index:03}-{}.ncc",
        if index < k { "native" } else { "code" }
    ));
    name
}
/// Bytes of pieces for which another thread is started at least.
const HASHED_PER_THREAD: usize = 2 << 20;
