//! A directory of chunk files back to the file.
//!
//! First the heads of all files are read: which files are chunks, and of what. Then stripe after
//! stripe is rebuilt from the first k pieces that are sound, native ones before code, verified, and
//! written. A chunk of which some pieces are damaged or gone is used for the others. A stripe that
//! is short does not stop the others from being looked at, so that one run tells all that is
//! missing. Pieces that nobody needs are not read.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use ncs_device::portions::{Demand, Portion, Work};
use ncs_net::console;
use ncs_proto::object::SegmentId;

use crate::block_file::{CHECK, Fault};
use crate::chunk_file::{HEAD, Head, Set, piece_check};
use crate::construction::{Construction, Rebuilder};
use crate::crew::{BITE_BYTES, Choice, Crew, Makers};
use crate::disk::{Parts, Readers};
use crate::flow::{crew_of, flow};
use crate::listing::Listing;
use crate::output::Output;
use crate::progress::Progress;
use crate::{Error, shown};

/// A file that came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// Its BLAKE3 hash, which has been checked.
    pub file: SegmentId,
    /// Its bytes.
    pub bytes: u64,
    /// Indices of the chunks that were there.
    pub present: Vec<u16>,
    /// Pieces of native chunks that were made of others.
    pub rebuilt_pieces: u64,
    /// Files in the directory that were of no use and have been named.
    pub skipped: u64,
    /// Who rebuilt how many stripes, if a GPU took part.
    pub makers: Option<Makers>,
}

impl fmt::Display for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            bytes,
            present,
            rebuilt_pieces,
            skipped,
            makers,
        } = self;
        write!(
            f,
            "{bytes} bytes from chunks {}, verified: BLAKE3 {file}",
            list(present)
        )?;
        if *rebuilt_pieces > 0 {
            write!(f, " (native pieces rebuilt: {rebuilt_pieces})")?;
        }
        if *skipped > 0 {
            write!(f, " (files skipped: {skipped})")?;
        }
        makers.map_or(Ok(()), |makers| write!(f, "\nstripes rebuilt {makers}"))
    }
}

/// What is short, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Short {
    /// What it comes to.
    summary: String,
    /// Chunks or stripes.
    listing: Listing,
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.summary, self.listing)
    }
}

/// Rebuilds the file that `directory` has chunks of, and verifies it before it appears as `output`.
///
/// On standard output each stripe appears when its pieces have been verified.
pub(super) fn decode(directory: &Path, output: &Path, choice: Choice) -> Result<Joined, Error> {
    decode_by(directory, output, |matrix, demand| {
        crew_of(matrix.coders(choice)?, demand)
    })
}

/// The same with any crew.
pub(super) fn decode_by(
    directory: &Path,
    output: &Path,
    crew: impl FnOnce(Construction, &Demand) -> Result<Crew, Error>,
) -> Result<Joined, Error> {
    let Census {
        set,
        mut chunks,
        faults,
        skipped,
    } = Census::take(directory)?;
    chunks.sort_by(|a, b| (a.index, &a.path).cmp(&(b.index, &b.path)));
    let mut present: Vec<u16> = chunks.iter().map(|chunk| chunk.index).collect();
    present.dedup();
    if present.len() < usize::from(set.k) {
        return Err(Error::Short(too_few(&set, &present, faults)));
    }
    let code = set.code().expect("the head was checked");
    let readers = Readers::start(set.k.into()).map_err(Error::read(directory))?;
    let progress = Progress::new("decoding", set.file_bytes);
    for chunk in chunks.iter().filter(|chunk| chunk.reach < set.stripes()) {
        let (path, reach, all) = (shown(&chunk.path), chunk.reach, set.stripes());
        progress.note(&format!(
            "{path}: ends early with {reach} of its {all} pieces, which are usable"
        ));
    }
    let input_bytes = usize::from(set.k) * set.piece(0);
    let output_bytes = usize::from(set.k.min(set.n - set.k)) * set.piece(0);
    let demand = Demand {
        input_bytes,
        output_bytes,
        bite_bytes: BITE_BYTES,
    };
    let crew = crew(set.matrix, &demand)?;
    let job = JoinJob {
        set,
        progress,
        rebuilt_pieces: 0,
        short: Short::default(),
        shorts: 0,
    };
    let joined = job.run(
        Pieces {
            set,
            chunks,
            readers,
        },
        Rebuilder::new(code),
        (&crew, &demand),
        output,
        present,
        faults,
    )?;
    Ok(Joined {
        skipped,
        makers: crew.makers(),
        ..joined
    })
}

fn too_few(set: &Set, present: &[u16], faults: Vec<String>) -> Short {
    let (k, n, held) = (set.k, set.n, present.len());
    let more = usize::from(k) - held;
    let summary = format!(
        "found {held} chunks of {}; any {k} of its {n} are needed: {more} more",
        describe(set)
    );
    Short {
        summary,
        ..presence(set, present, faults)
    }
}

/// Which chunks are there and which are not, and the files that cannot be used.
fn presence(set: &Set, present: &[u16], faults: Vec<String>) -> Short {
    let absent: Vec<u16> = (0..set.n)
        .filter(|index| !present.contains(index))
        .collect();
    let mut short = Short::default();
    short.listing.add(match absent.is_empty() {
        true => format!("found: chunks {}", list(present)),
        false => format!(
            "found: chunks {}; missing: chunks {}",
            list(present),
            list(&absent)
        ),
    });
    faults
        .into_iter()
        .for_each(|fault| short.listing.add(fault));
    short
}

/// What the directory has of the encoding with the most chunks in it.
struct Census {
    set: Set,
    chunks: Vec<Chunk>,
    /// Chunk files that cannot be used, and why.
    faults: Vec<String>,
    skipped: u64,
}

impl Census {
    fn take(directory: &Path) -> Result<Self, Error> {
        let mut sets: Vec<(Set, Vec<Chunk>)> = Vec::new();
        let (mut skipped, mut faults) = (0, Vec::new());
        for item in fs::read_dir(directory).map_err(Error::read(directory))? {
            let path = item.map_err(Error::read(directory))?.path();
            match Chunk::open(&path) {
                Ok((set, chunk)) => match sets.iter_mut().find(|(other, _)| *other == set) {
                    Some((_, chunks)) => chunks.push(chunk),
                    None => sets.push((set, vec![chunk])),
                },
                Err(fault) => {
                    skipped += 1;
                    console::note(format_args!("{}: skipped, {fault}", shown(&path)));
                    if !matches!(fault, Fault::Foreign(_)) {
                        faults.push(format!("{}: {fault}", shown(&path)));
                    }
                }
            }
        }
        sets.sort_by_key(|(_, chunks)| std::cmp::Reverse(distinct(chunks)));
        faults.sort();
        let mut sets = sets.into_iter();
        let Some((set, chunks)) = sets.next() else {
            let mut short = Short {
                summary: "no chunk can be used".into(),
                ..Short::default()
            };
            faults
                .into_iter()
                .for_each(|fault| short.listing.add(fault));
            return Err(Error::Short(short));
        };
        for (other, others) in sets {
            if distinct(&others) == distinct(&chunks) {
                return Err(Error::Ambiguous {
                    first: describe(&set),
                    second: describe(&other),
                });
            }
            skipped += others.len() as u64;
            for chunk in others {
                console::note(format_args!(
                    "{}: skipped, a chunk of {}",
                    shown(&chunk.path),
                    describe(&other)
                ));
                faults.push(format!(
                    "{}: a chunk of {}",
                    shown(&chunk.path),
                    describe(&other)
                ));
            }
        }
        faults.sort();
        Ok(Self {
            set,
            chunks,
            faults,
            skipped,
        })
    }
}

/// How many different chunks these are: a copy brings nothing new.
fn distinct(chunks: &[Chunk]) -> usize {
    let mut indices: Vec<u16> = chunks.iter().map(|chunk| chunk.index).collect();
    indices.sort_unstable();
    indices.dedup();
    indices.len()
}

/// A chunk file with the check of its head passed.
struct Chunk {
    index: u16,
    path: PathBuf,
    /// Opened when it is first read: a directory may have chunks of many other files.
    parts: Option<Parts>,
    /// Stripes of which it has the piece, sound or not.
    reach: u64,
    /// Pieces that were asked for and were not sound, and why the first one was not.
    bad: Option<(u64, String)>,
}

impl Chunk {
    fn open(path: &Path) -> Result<(Set, Self), Fault> {
        let metadata = fs::metadata(path).map_err(Fault::Read)?;
        if !metadata.is_file() {
            return Err(Fault::Foreign("chunk"));
        }
        let file = File::open(path).map_err(Fault::Read)?;
        let Head { set, index } = Head::read(&mut BufReader::with_capacity(HEAD, &file))?;
        let reach = set.reach(metadata.len());
        Ok((
            set,
            Self {
                index,
                path: path.into(),
                parts: None,
                reach,
                bad: None,
            },
        ))
    }

    /// Reads this stripe's piece; false if it is not sound.
    fn read(&mut self, set: &Set, readers: &Readers, stripe: u64, piece: &mut [u8]) -> bool {
        let mut expected = [0; CHECK];
        let offset = Set::offset(stripe, set.piece_bytes);
        let read = self.read_unchecked(readers, offset, piece, &mut expected);
        let fault = match read {
            Ok(()) if piece_check(&set.id, self.index, stripe, piece) == expected => return true,
            Ok(()) => "its checksum is wrong".to_owned(),
            Err(error) => error.to_string(),
        };
        self.bad
            .get_or_insert_with(|| (0, format!("that of stripe {stripe} first: {fault}")))
            .0 += 1;
        // However many chunks are bad, those that are read are few.
        self.parts = None;
        false
    }

    fn read_unchecked(
        &mut self,
        readers: &Readers,
        offset: u64,
        piece: &mut [u8],
        check: &mut [u8],
    ) -> io::Result<()> {
        let parts = match &mut self.parts {
            Some(parts) => parts,
            None => {
                let file = File::open(&self.path)?;
                let bytes = file.metadata()?.len();
                self.parts.insert(Parts::new(file, bytes, offset, readers))
            }
        };
        parts.read_exact_at(piece, offset)?;
        parts.read_exact_at(check, offset + piece.len() as u64)
    }
}

/// Where pieces come from.
struct Pieces {
    set: Set,
    chunks: Vec<Chunk>,
    readers: Readers,
}

/// The pieces of a stripe that were read.
#[derive(Debug, Clone, Default)]
struct Stripe {
    index: u64,
    /// Which chunks they are of, in order.
    indices: Vec<usize>,
    /// Chunks that had a piece that is not sound.
    unsound: Vec<u16>,
}

impl Pieces {
    /// Stripes that k different chunks reach.
    fn stripes(&self) -> u64 {
        let mut reaches = vec![0; usize::from(self.set.n)];
        for chunk in &self.chunks {
            let reach = &mut reaches[usize::from(chunk.index)];
            *reach = chunk.reach.max(*reach);
        }
        reaches.sort_unstable_by(|a, b| b.cmp(a));
        reaches[usize::from(self.set.k) - 1]
    }

    /// Reads pieces into `bytes` until there are k sound ones, or no more chunks.
    fn read(&mut self, index: u64, bytes: &mut [u8]) -> Stripe {
        let mut stripe = Stripe {
            index,
            ..Stripe::default()
        };
        let (k, piece) = (usize::from(self.set.k), self.set.piece(index));
        let mut places = bytes[..k * piece].chunks_exact_mut(piece);
        let mut place = places.next();
        for chunk in self.chunks.iter_mut().filter(|chunk| index < chunk.reach) {
            let Some(bytes) = place.as_deref_mut() else {
                break;
            };
            if stripe.indices.last() == Some(&chunk.index.into()) {
                continue;
            }
            if chunk.read(&self.set, &self.readers, index, bytes) {
                stripe.indices.push(chunk.index.into());
                place = places.next();
            } else {
                stripe.unsound.push(chunk.index);
            }
        }
        stripe
    }
}

struct JoinJob {
    set: Set,
    progress: Progress,
    rebuilt_pieces: u64,
    short: Short,
    /// Stripes that are short.
    shorts: u64,
}

impl JoinJob {
    /// While stripes are worked on, the next ones are read.
    fn run(
        mut self,
        mut pieces: Pieces,
        mut rebuilder: Rebuilder,
        (crew, demand): (&Crew, &Demand),
        output: &Path,
        present: Vec<u16>,
        faults: Vec<String>,
    ) -> Result<Joined, Error> {
        let mut result = Output::create(output)?;
        let mut hasher = blake3::Hasher::new();
        let (set, stripes) = (self.set, pieces.stripes());
        let (mut next, mut is_whole) = (0, true);
        let read = |portion: &mut Portion| {
            if next == stripes {
                return Ok(None);
            }
            let stripe = pieces.read(next, &mut portion.input);
            is_whole &= stripe.indices.len() == usize::from(set.k);
            portion.work = match is_whole {
                true => rebuilder.rebuilding(&stripe.indices, set.piece(next)),
                false => Work::Nothing,
            };
            next += 1;
            Ok(Some(stripe))
        };
        flow(crew, demand, read, |portion, stripe| {
            self.stripe(&stripe, portion, &mut |bytes| {
                hasher.update(bytes);
                result.write_all(bytes).map_err(Error::write(output))
            })?;
            self.progress.advance(set.native_bytes(stripe.index) as u64);
            Ok(())
        })?;
        self.unreached(stripes, &pieces.chunks);
        self.report(&pieces.chunks);
        if self.shorts > 0 {
            let (shorts, all, k) = (self.shorts, self.set.stripes(), self.set.k);
            let summary = format!(
                "{shorts} of the {all} stripes of {} have fewer than {k} intact pieces",
                describe(&self.set)
            );
            let mut short = Short {
                summary,
                ..presence(&self.set, &present, faults)
            };
            short.listing.append(self.short.listing);
            return Err(Error::Short(short));
        }
        if hasher.finalize().as_bytes() != self.set.file.as_bytes() {
            return Err(Error::ForgedChunks(list(&present)));
        }
        result.finish().map_err(Error::write(output))?;
        let Set {
            file,
            file_bytes: bytes,
            ..
        } = self.set;
        Ok(Joined {
            file,
            bytes,
            present,
            rebuilt_pieces: self.rebuilt_pieces,
            skipped: 0,
            makers: None,
        })
    }

    /// Hands the file's bytes in this stripe to `write`, unless something was short.
    fn stripe(
        &mut self,
        stripe: &Stripe,
        portion: &Portion,
        write: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (index, held, k) = (stripe.index, stripe.indices.len(), usize::from(self.set.k));
        if held < k {
            let (from, unsound) = (index * self.set.stripe_bytes(), list(&stripe.unsound));
            let line = format!(
                "stripe {index}, from byte {from} on: {held} intact pieces; damaged pieces in \
                 chunks {unsound}"
            );
            self.shorts += 1;
            self.short.listing.add(line);
        }
        if self.shorts > 0 {
            return Ok(());
        }
        let piece = self.set.piece(index);
        let mut held = stripe
            .indices
            .iter()
            .zip(portion.input.chunks_exact(piece))
            .peekable();
        let mut made = portion.output.chunks_exact(piece);
        let mut left = self.set.native_bytes(index);
        for native in 0..k {
            let kept = held
                .next_if(|(index, _)| **index == native)
                .map(|(_, bytes)| bytes);
            self.rebuilt_pieces += u64::from(kept.is_none());
            let bytes = kept
                .or_else(|| made.next())
                .expect("what is not held was made");
            let length = left.min(piece);
            write(&bytes[..length])?;
            left -= length;
        }
        Ok(())
    }

    /// Stripes from `from` on are reached by too few chunks.
    fn unreached(&mut self, from: u64, chunks: &[Chunk]) {
        let all = self.set.stripes();
        if from == all {
            return;
        }
        let mut early: Vec<u16> = chunks
            .iter()
            .filter(|chunk| chunk.reach <= from)
            .map(|chunk| chunk.index)
            .collect();
        early.dedup();
        let (last, start) = (all - 1, from * self.set.stripe_bytes());
        self.shorts += all - from;
        self.short.listing.add(format!(
            "stripes {from} to {last}, from byte {start} on: chunks {} end earlier",
            list(&early)
        ));
    }

    /// Names the chunks that had pieces that were not sound.
    fn report(&self, chunks: &[Chunk]) {
        for chunk in chunks {
            if let Some((count, first)) = &chunk.bad {
                let path = shown(&chunk.path);
                self.progress.note(&format!(
                    "{path}: {count} pieces are damaged ({first}), the others are usable"
                ));
            }
        }
    }
}

fn describe(set: &Set) -> String {
    let Set {
        file,
        file_bytes,
        k,
        n,
        matrix,
        ..
    } = set;
    let (file, id) = (
        &file.to_string()[..12],
        u32::from_be_bytes(*set.id.first_chunk().expect("16 bytes")),
    );
    format!("file {file}… ({file_bytes} bytes, {matrix} k = {k}, n = {n}, set {id:08x}…)")
}

/// Numbers with commas between them.
fn list(indices: &[u16]) -> String {
    indices
        .iter()
        .map(u16::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}
