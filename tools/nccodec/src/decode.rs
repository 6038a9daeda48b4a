//! A directory of block files back to the file.
//!
//! First the heads of all files are read: which files are blocks, and of what. Then segment after
//! segment is decoded in order, verified, and written; a generation that is short does not stop the
//! others from being looked at, so that one run tells all that is missing. Payloads are read once,
//! and all of them, so that every damaged block is named.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufReader, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use ncs_codec::rlnc::{self, System};
use ncs_device::portions::{Demand, Portion, Work};
use ncs_gf::{Kernels, matrix};
use ncs_net::console;
use ncs_proto::object::{Generation, SegmentId, Shape};

use crate::block_file::{self, Code, Fault, Head, Labelled, Set};
use crate::crew::{BITE_BYTES, Choice, Crew, Makers};
use crate::encode::REPLAY_BITE_BYTES;
use crate::flow::{crew_of, flow};
use crate::fountain::Room;
use crate::listing::Listing;
use crate::output::Output;
use crate::progress::Progress;
use crate::symbols::{Collector, Symbols};
use crate::{Error, shown};

/// A file that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rebuilt {
    /// Its BLAKE3 hash, which has been checked.
    pub file: SegmentId,
    /// Its bytes.
    pub bytes: u64,
    /// Blocks that it was rebuilt from.
    pub blocks: u64,
    /// Files in the directory that were of no use and have been named.
    pub skipped: u64,
    /// Who decoded how many portions, if a GPU took part: generations, or with source blocks whole
    /// segments.
    pub makers: Option<Makers>,
}

impl fmt::Display for Rebuilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            bytes,
            blocks,
            skipped,
            makers,
        } = self;
        write!(
            f,
            "{bytes} bytes from {blocks} blocks, verified: BLAKE3 {file}"
        )?;
        if *skipped > 0 {
            write!(f, " (files skipped: {skipped})")?;
        }
        makers.map_or(Ok(()), |makers| write!(f, "\nportions decoded {makers}"))
    }
}

/// What is short, and by how much.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Missing {
    /// Independent blocks needed in all, or symbols, at least.
    pub blocks: u64,
    /// Whether they are symbols: of those, how many it takes is not certain.
    of_symbols: bool,
    /// Generations or segments that lack some.
    listing: Listing,
}

impl Missing {
    fn add(&mut self, blocks: u64, line: String) {
        self.blocks = self.blocks.saturating_add(blocks);
        self.listing.add(line);
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of_symbols {
            true => write!(f, "at least {} more symbols are needed", self.blocks)?,
            false => write!(f, "{} more independent blocks are needed", self.blocks)?,
        }
        self.listing.fmt(f)
    }
}

/// Rebuilds the file that `directory` has blocks of, and verifies it before it appears as `output`.
///
/// On standard output each segment appears when it has been verified.
pub(super) fn decode(directory: &Path, output: &Path, choice: Choice) -> Result<Rebuilt, Error> {
    decode_by(directory, output, |demand| crew_of(choice, demand))
}

/// The same with any crew.
pub(super) fn decode_by(
    directory: &Path,
    output: &Path,
    crew: impl FnOnce(&Demand) -> Result<Crew, Error>,
) -> Result<Rebuilt, Error> {
    let Census {
        set,
        mut entries,
        skipped,
        length,
    } = Census::take(directory)?;
    entries.sort_unstable_by(|a, b| {
        (a.segment, a.generation, &a.name).cmp(&(b.segment, b.generation, &b.name))
    });
    let progress = Progress::new("decoding", length);
    let missing = Missing {
        of_symbols: set.code.is_of_symbols(),
        ..Missing::default()
    };
    let place = Place::new(&set);
    let job = DecodeJob {
        directory,
        set,
        kernels: Kernels::detect(),
        progress,
        skipped,
        used: 0,
        missing,
        place,
        next: 0,
        at: None,
    };
    job.run(&entries, output, crew)
}

/// A block file with the check of its head passed.
#[derive(Debug)]
struct Entry {
    segment: u32,
    segment_id: SegmentId,
    generation: u32,
    name: OsString,
}

/// What the directory has of the file with the most blocks in it.
struct Census {
    set: Set,
    entries: Vec<Entry>,
    skipped: u64,
    /// Bytes of the block files.
    length: u64,
}

impl Census {
    fn take(directory: &Path) -> Result<Self, Error> {
        let mut sets: Vec<(Set, Vec<Entry>)> = Vec::new();
        let (mut skipped, mut length) = (0, 0);
        for item in fs::read_dir(directory).map_err(Error::read(directory))? {
            let path = item.map_err(Error::read(directory))?.path();
            match head(&path) {
                Ok((head, bytes)) => {
                    length += bytes;
                    let entry = Entry::new(&head, &path);
                    match sets.iter_mut().find(|(set, _)| *set == head.set) {
                        Some((_, entries)) => entries.push(entry),
                        None => sets.push((head.set, vec![entry])),
                    }
                }
                Err(fault) => {
                    skipped += 1;
                    console::note(format_args!("{}: skipped, {fault}", shown(&path)));
                }
            }
        }
        sets.sort_by_key(|(_, entries)| std::cmp::Reverse(entries.len()));
        let mut sets = sets.into_iter();
        let (set, entries) = sets
            .next()
            .ok_or_else(|| Error::NoBlocks(directory.into()))?;
        for (other, others) in sets {
            if others.len() == entries.len() {
                return Err(Error::Ambiguous {
                    first: describe(&set),
                    second: describe(&other),
                });
            }
            skipped += others.len() as u64;
            for entry in others {
                let path = directory.join(entry.name);
                console::note(format_args!(
                    "{}: skipped, a block of {}",
                    shown(&path),
                    describe(&other)
                ));
            }
        }
        Ok(Self {
            set,
            entries,
            skipped,
            length,
        })
    }
}

impl Entry {
    fn new(head: &Head, path: &Path) -> Self {
        let name = path.file_name().map(OsString::from).unwrap_or_default();
        Self {
            segment: head.segment,
            segment_id: head.segment_id,
            generation: head.generation.index,
            name,
        }
    }
}

struct DecodeJob<'a> {
    directory: &'a Path,
    set: Set,
    kernels: Kernels,
    progress: Progress,
    skipped: u64,
    used: u64,
    missing: Missing,
    place: Place,
    /// The segment behind the last one that was looked at.
    next: u64,
    at: Option<At<'a>>,
}

/// How generations lie in portions.
enum Place {
    /// Each is a portion: payloads of n blocks, which the inverse of their rows makes the source
    /// of.
    Vectors { n: usize, block_bytes: usize },
    /// Those of a segment are a portion: the symbols that came of each, those in front of which
    /// some have to be found.
    Symbols(Room),
}

impl Place {
    fn new(set: &Set) -> Self {
        let shapes: Vec<Shape> = set.shapes().collect();
        match set.code {
            Code::Rlnc => {
                let n = shapes
                    .iter()
                    .filter_map(|shape| shape.generation(0))
                    .map(|generation| generation.n)
                    .max();
                let block_bytes = usize::try_from(set.block_bytes).expect("a block fits in memory");
                Self::Vectors {
                    n: n.unwrap_or(1).into(),
                    block_bytes,
                }
            }
            Code::Fountain(fountain) => Self::Symbols(fountain.room(shapes.iter())),
        }
    }

    fn demand(&self) -> Demand {
        match *self {
            Self::Vectors { n, block_bytes } => Demand {
                input_bytes: n * block_bytes,
                output_bytes: n * block_bytes,
                bite_bytes: BITE_BYTES,
            },
            Self::Symbols(Room {
                blocks,
                symbol_bytes,
                received,
                source,
                ..
            }) => Demand {
                input_bytes: blocks * received * symbol_bytes,
                output_bytes: blocks * source * symbol_bytes,
                bite_bytes: REPLAY_BITE_BYTES,
            },
        }
    }
}

/// Where decoding is.
struct At<'a> {
    segment: u32,
    id: SegmentId,
    shape: Shape,
    generation: u32,
    /// Blocks of this generation and those behind it.
    entries: &'a [Entry],
}

/// What a portion has, of which segment.
struct Told {
    segment: u32,
    id: SegmentId,
    generations: Vec<Solved>,
    /// Whether the segment ends with it.
    is_last: bool,
}

/// Where the bytes of a generation are in its portion.
struct Solved {
    length: usize,
    /// Of encoding symbols: which of the portion's source blocks it is, the bytes of a symbol, and
    /// where each source symbol is.
    symbols: Option<(usize, usize, Vec<Whence>)>,
}

/// Where a source symbol is.
#[derive(Clone, Copy)]
enum Whence {
    Read(usize),
    Made(usize),
}

impl<'a> DecodeJob<'a> {
    /// While portions are decoded and written, blocks of the next ones are read.
    fn run(
        mut self,
        entries: &'a [Entry],
        output: &Path,
        crew: impl FnOnce(&Demand) -> Result<Crew, Error>,
    ) -> Result<Rebuilt, Error> {
        let demand = self.place.demand();
        let crew = crew(&demand)?;
        let mut result = Output::create(output)?;
        let (mut hasher, mut segment, mut rest) = (blake3::Hasher::new(), Vec::new(), entries);
        let read = |portion: &mut Portion| Ok(self.read(&mut rest, portion));
        flow(&crew, &demand, read, |portion, told: Told| {
            told.generations
                .iter()
                .for_each(|generation| generation.append(portion, &mut segment));
            if told.is_last {
                if SegmentId::of(&segment) != told.id {
                    return Err(Error::Forged {
                        segment: told.segment.into(),
                    });
                }
                hasher.update(&segment);
                result.write_all(&segment).map_err(Error::write(output))?;
                segment.clear();
            }
            Ok(())
        })?;
        if self.missing.blocks > 0 {
            return Err(Error::Missing(self.missing));
        }
        if hasher.finalize().as_bytes() != self.set.file.as_bytes() {
            return Err(Error::Forged {
                segment: self.set.segments(),
            });
        }
        result.finish().map_err(Error::write(output))?;
        let Set {
            file, file_bytes, ..
        } = self.set;
        Ok(Rebuilt {
            file,
            bytes: file_bytes,
            blocks: self.used,
            skipped: self.skipped,
            makers: crew.makers(),
        })
    }

    /// The next portion, none if nothing is left. After the first generation that is short there is
    /// none, but all others are looked at.
    fn read(&mut self, rest: &mut &'a [Entry], portion: &mut Portion) -> Option<Told> {
        loop {
            let Some(At {
                segment,
                id,
                shape,
                generation,
                mut entries,
            }) = self.at.take().or_else(|| self.enter(rest))
            else {
                self.absent(self.next, self.set.segments());
                self.next = self.set.segments();
                return None;
            };
            // All generations of a segment, or one.
            let end = if matches!(self.place, Place::Symbols(_)) {
                shape.generations()
            } else {
                generation + 1
            };
            let mut filled = Filled::default();
            for generation in (generation..end).filter_map(|index| shape.generation(index)) {
                let here = entries.partition_point(|entry| entry.generation <= generation.index);
                let (of_it, behind) = entries.split_at(here);
                entries = behind;
                let blocks = self.generation(segment, id, generation, of_it);
                if self.missing.blocks == 0 {
                    filled.add(&self.place, blocks, portion, self.kernels);
                }
            }
            let is_last = end == shape.generations();
            if !is_last {
                self.at = Some(At {
                    segment,
                    id,
                    shape,
                    generation: end,
                    entries,
                });
            }
            if self.missing.blocks == 0 {
                portion.work = filled.work;
                return Some(Told {
                    segment,
                    id,
                    generations: filled.generations,
                    is_last,
                });
            }
        }
    }

    /// Goes on to the next segment that has blocks.
    fn enter(&mut self, rest: &mut &'a [Entry]) -> Option<At<'a>> {
        let segment = rest.first()?.segment;
        let (entries, behind) =
            rest.split_at(rest.partition_point(|entry| entry.segment <= segment));
        *rest = behind;
        self.absent(self.next, u64::from(segment));
        self.next = u64::from(segment) + 1;
        let shape = self
            .set
            .shape(segment)
            .expect("the head was checked against the shape");
        Some(At {
            segment,
            id: most_frequent(entries),
            shape,
            generation: 0,
            entries,
        })
    }

    /// Segments from `from` to before `to` have no block at all. All but the last of a file are of
    /// one length.
    fn absent(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let blocks = |index: u64| {
            let shape = u32::try_from(index)
                .ok()
                .and_then(|index| self.set.shape(index));
            shape.as_ref().map_or(0, Shape::blocks)
        };
        let count = to - from;
        let needed = blocks(from)
            .saturating_mul(count - 1)
            .saturating_add(blocks(to - 1));
        let line = match count {
            1 => format!("segment {from}: no blocks found, {needed} missing"),
            _ => format!(
                "segments {from} to {}: no blocks found, {needed} missing",
                to - 1
            ),
        };
        self.missing.add(needed, line);
    }

    fn generation(
        &mut self,
        segment: u32,
        id: SegmentId,
        generation: Generation,
        entries: &[Entry],
    ) -> Collector {
        let mut blocks = Collector::new(&self.set, &id, generation, self.kernels);
        for entry in entries {
            let path = self.directory.join(&entry.name);
            let block = match self.block(&path, segment, id, generation) {
                Ok(block) => block,
                Err(fault) => {
                    self.skipped += 1;
                    self.progress
                        .note(&format!("{}: skipped, {fault}", shown(&path)));
                    continue;
                }
            };
            if !blocks.is_complete() {
                self.used += 1;
                blocks.absorb(&block);
            }
        }
        if !blocks.is_complete() {
            self.missing.add(
                blocks.missing(),
                format!("segment {segment}, {}", blocks.report()),
            );
        }
        blocks
    }

    fn block(
        &self,
        path: &Path,
        segment: u32,
        id: SegmentId,
        generation: Generation,
    ) -> Result<Labelled, Fault> {
        let mut file = File::open(path).map_err(Fault::Read)?;
        let (head, block) = block_file::read(&mut file)?;
        self.progress
            .advance(file.metadata().map_or(0, |metadata| metadata.len()));
        if (head.set, head.segment, head.generation) != (self.set, segment, generation) {
            return Err(Fault::Damaged("the file changed during reading"));
        }
        if head.segment_id != id {
            return Err(Fault::Impossible(
                "its segment hash differs from that of most other blocks",
            ));
        }
        Ok(block)
    }
}

/// What a portion is given.
struct Filled {
    work: Work,
    generations: Vec<Solved>,
    /// Source blocks that are whole as they came, which are behind the others.
    whole: usize,
}

impl Default for Filled {
    fn default() -> Self {
        Self {
            work: Work::Nothing,
            generations: Vec::new(),
            whole: 0,
        }
    }
}

impl Filled {
    /// Adds a generation of which nothing is missing.
    fn add(&mut self, place: &Place, blocks: Collector, portion: &mut Portion, kernels: Kernels) {
        let solved = match (place, blocks) {
            (Place::Vectors { .. }, Collector::Vectors(decoder)) => {
                self.add_vectors(*decoder, portion, kernels)
            }
            (Place::Symbols(room), Collector::Symbols(symbols)) => {
                self.add_symbols(room, *symbols, portion, kernels)
            }
            _ => unreachable!("generations are collected as they lie"),
        };
        self.generations.push(solved);
    }

    fn add_vectors(
        &mut self,
        decoder: rlnc::Decoder,
        portion: &mut Portion,
        kernels: Kernels,
    ) -> Solved {
        let System {
            generation,
            coefficients,
            payloads,
            ..
        } = decoder.into_system().expect("no block is missing");
        let n = usize::from(generation.n);
        let threads = matrix::inverters(
            n,
            thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        );
        let inverse = matrix::invert(kernels, n, &coefficients, threads)
            .expect("independent rows have an inverse");
        portion.input[..payloads.len()].copy_from_slice(&payloads);
        self.work = Work::Product {
            rows: inverse.into(),
            n,
            bytes: payloads.len() / n,
        };
        Solved {
            length: usize::try_from(generation.length).expect("a generation fits in memory"),
            symbols: None,
        }
    }

    fn add_symbols(
        &mut self,
        room: &Room,
        mut symbols: Symbols,
        portion: &mut Portion,
        kernels: Kernels,
    ) -> Solved {
        let &Room {
            blocks,
            symbol_bytes,
            received: inputs,
            source,
            ..
        } = room;
        let (pitch, n) = (inputs * symbol_bytes, usize::from(symbols.generation().n));
        let length =
            usize::try_from(symbols.generation().length).expect("a generation fits in memory");
        let (missing, plan) = symbols.take_found();
        let (esis, bytes) = symbols.received();
        let mut places = vec![Whence::Read(0); n];
        let of_source = |index: u32| (index as usize) < n;
        for (place, &esi) in esis.iter().enumerate().filter(|(_, esi)| of_source(**esi)) {
            places[esi as usize] = Whence::Read(place);
        }
        for (place, &esi) in missing
            .iter()
            .enumerate()
            .filter(|(_, esi)| of_source(**esi))
        {
            places[esi as usize] = Whence::Made(place);
        }
        let outputs = step(missing.len(), source);
        if !matches!(self.work, Work::Replay { .. }) {
            self.work = Work::Replay {
                plans: Vec::new(),
                symbol_bytes,
                inputs,
                outputs: 0,
            };
        }
        let Work::Replay {
            plans,
            outputs: outputs_now,
            ..
        } = &mut self.work
        else {
            unreachable!("it has just been made one")
        };
        let at = match plan {
            Some(plan) if bytes.len() <= pitch => {
                let at = plans.len();
                plans.push(Arc::new(plan));
                *outputs_now = outputs.max(*outputs_now);
                portion.input[at * pitch..][..bytes.len()].copy_from_slice(bytes);
                at
            }
            // All came, or more came than there is room for, which is rare: then the block is found
            // here.
            plan => {
                self.whole += 1;
                let at = blocks - self.whole;
                let place = &mut portion.input[at * pitch..][..pitch];
                let mut made = vec![0; missing.len() * symbol_bytes];
                if let Some(plan) = plan {
                    plan.apply(
                        kernels,
                        bytes,
                        &mut made.chunks_exact_mut(symbol_bytes).collect::<Vec<_>>(),
                    );
                }
                for (index, (place, from)) in place
                    .chunks_exact_mut(symbol_bytes)
                    .zip(&mut places)
                    .enumerate()
                {
                    let (of, at) = match *from {
                        Whence::Read(at) => (bytes, at),
                        Whence::Made(at) => (&made[..], at),
                    };
                    place.copy_from_slice(&of[at * symbol_bytes..][..symbol_bytes]);
                    *from = Whence::Read(index);
                }
                at
            }
        };
        Solved {
            length,
            symbols: Some((at, symbol_bytes, places)),
        }
    }
}

impl Solved {
    /// Appends the generation's bytes, without padding.
    fn append(&self, portion: &Portion, segment: &mut Vec<u8>) {
        let start = segment.len();
        match (&self.symbols, &portion.work) {
            (
                Some((at, symbol_bytes, places)),
                Work::Replay {
                    inputs, outputs, ..
                },
            ) => {
                for from in places {
                    let (bytes, symbol) = match *from {
                        Whence::Read(symbol) => (&portion.input, at * inputs + symbol),
                        Whence::Made(symbol) => (&portion.output, at * outputs + symbol),
                    };
                    segment.extend_from_slice(&bytes[symbol * symbol_bytes..][..*symbol_bytes]);
                }
            }
            _ => segment.extend_from_slice(&portion.output[..self.length]),
        }
        segment.truncate(start + self.length);
    }
}

/// So many symbols of so many, rounded up to eighths: portions with as many go to a GPU together.
fn step(count: usize, of: usize) -> usize {
    count.next_multiple_of(of.div_ceil(8)).min(of)
}

/// The head of a block file, and the file's bytes.
fn head(path: &PathBuf) -> Result<(Head, u64), Fault> {
    let metadata = fs::metadata(path).map_err(Fault::Read)?;
    if !metadata.is_file() {
        return Err(Fault::Foreign("block"));
    }
    let file = File::open(path).map_err(Fault::Read)?;
    Ok((
        Head::read(&mut BufReader::with_capacity(HEAD_BYTES, file))?,
        metadata.len(),
    ))
}

/// The hash that most blocks of a segment carry.
fn most_frequent(entries: &[Entry]) -> SegmentId {
    let mut counts: HashMap<SegmentId, usize> = HashMap::new();
    entries
        .iter()
        .for_each(|entry| *counts.entry(entry.segment_id).or_default() += 1);
    let most = counts.into_iter().max_by_key(|&(id, count)| (count, id));
    most.expect("a segment is only looked at if it has blocks")
        .0
}

fn describe(set: &Set) -> String {
    let Set {
        code,
        file,
        file_bytes,
        block_bytes,
        n_max,
        ..
    } = set;
    let file = &file.to_string()[..12];
    match code {
        Code::Fountain(fountain) => {
            format!(
                "file {file}… ({file_bytes} bytes in {fountain} symbols of {block_bytes}, {n_max} \
                 a source block)"
            )
        }
        Code::Rlnc => format!(
            "file {file}… ({file_bytes} bytes in blocks of {block_bytes}, {n_max} a generation)"
        ),
    }
}

/// A head fits in one read, with a short vector.
const HEAD_BYTES: usize = 256;
