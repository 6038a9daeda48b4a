//! A directory of block files back to the file.
//!
//! First the heads of all files are read: which files are blocks, and of what. Then segment after segment is decoded in order,
//! verified, and written; a generation that is short does not stop the others from being looked at, so that one run tells all
//! that is missing. Payloads are read once, and all of them, so that every damaged block is named.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};

use super::Error;
use super::block_file::{self, Code, Fault, Head, Labelled, Set};
use super::listing::Listing;
use super::output::Output;
use super::progress::Progress;
use super::symbols::Collector;
use crate::gf::Kernels;
use crate::object::{Generation, SegmentId, Shape};

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
}

impl fmt::Display for Rebuilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, bytes, blocks, skipped } = self;
        write!(f, "{bytes} bytes from {blocks} blocks, verified: BLAKE3 {file}")?;
        if *skipped > 0 { write!(f, " (files skipped: {skipped})") } else { Ok(()) }
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
            true => write!(f, "{} more symbols are needed at least", self.blocks)?,
            false => write!(f, "{} more independent blocks are needed", self.blocks)?,
        }
        self.listing.fmt(f)
    }
}

/// Rebuilds the file that `directory` has blocks of, and verifies it before it appears as `output`.
///
/// On standard output each segment appears when it has been verified.
pub(super) fn decode(directory: &Path, output: &Path) -> Result<Rebuilt, Error> {
    let Census { set, mut entries, skipped, length } = Census::take(directory)?;
    entries.sort_unstable_by(|a, b| (a.segment, a.generation, &a.name).cmp(&(b.segment, b.generation, &b.name)));
    let progress = Progress::new("decoding", length);
    let missing = Missing { of_symbols: set.code.is_of_symbols(), ..Missing::default() };
    let job = Job { directory, set, kernels: Kernels::detect(), progress, skipped, used: 0, missing };
    job.run(&entries, output)
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
                    eprintln!("{}: skipped, {fault}", path.display());
                }
            }
        }
        sets.sort_by_key(|(_, entries)| std::cmp::Reverse(entries.len()));
        let mut sets = sets.into_iter();
        let (set, entries) = sets.next().ok_or_else(|| Error::NoBlocks(directory.into()))?;
        for (other, others) in sets {
            if others.len() == entries.len() {
                return Err(Error::Ambiguous { first: describe(&set), second: describe(&other) });
            }
            skipped += others.len() as u64;
            for entry in others {
                let path = directory.join(entry.name);
                eprintln!("{}: skipped, a block of {}", path.display(), describe(&other));
            }
        }
        Ok(Self { set, entries, skipped, length })
    }
}

impl Entry {
    fn new(head: &Head, path: &Path) -> Self {
        let name = path.file_name().map(OsString::from).unwrap_or_default();
        Self { segment: head.segment, segment_id: head.segment_id, generation: head.generation.index, name }
    }
}

struct Job<'a> {
    directory: &'a Path,
    set: Set,
    kernels: Kernels,
    progress: Progress,
    skipped: u64,
    used: u64,
    missing: Missing,
}

impl Job<'_> {
    fn run(mut self, entries: &[Entry], output: &Path) -> Result<Rebuilt, Error> {
        let mut result = Output::create(output)?;
        let mut hasher = blake3::Hasher::new();
        let mut next = 0;
        for entries in entries.chunk_by(|a, b| a.segment == b.segment) {
            let Some(first) = entries.first() else { continue };
            self.absent(next, u64::from(first.segment));
            next = u64::from(first.segment) + 1;
            let Some(bytes) = self.segment(first.segment, entries)? else { continue };
            if self.missing.blocks == 0 {
                hasher.update(&bytes);
                result.write_all(&bytes).map_err(Error::write(output))?;
            }
        }
        self.absent(next, self.set.segments());
        if self.missing.blocks > 0 {
            return Err(Error::Missing(self.missing));
        }
        if hasher.finalize().as_bytes() != self.set.file.as_bytes() {
            return Err(Error::Forged { segment: self.set.segments() });
        }
        result.finish().map_err(Error::write(output))?;
        let Set { file, file_bytes, .. } = self.set;
        Ok(Rebuilt { file, bytes: file_bytes, blocks: self.used, skipped: self.skipped })
    }

    /// Segments from `from` to before `to` have no block at all. All but the last of a file are of one length.
    fn absent(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let blocks = |index: u64| {
            let shape = u32::try_from(index).ok().and_then(|index| self.set.shape(index));
            shape.as_ref().map_or(0, Shape::blocks)
        };
        let count = to - from;
        let needed = blocks(from).saturating_mul(count - 1).saturating_add(blocks(to - 1));
        let line = match count {
            1 => format!("segment {from}: no block at all, {needed} missing"),
            _ => format!("segments {from} to {}: no block at all, {needed} missing", to - 1),
        };
        self.missing.add(needed, line);
    }

    /// The bytes of a segment, unless some of its generations are short.
    fn segment(&mut self, index: u32, entries: &[Entry]) -> Result<Option<Vec<u8>>, Error> {
        let shape = self.set.shape(index).expect("the head was checked against the shape");
        let id = most_frequent(entries);
        let mut bytes = Vec::new();
        let mut rest = entries;
        for generation in shape.iter() {
            let here = rest.partition_point(|entry| entry.generation <= generation.index);
            let (entries, behind) = rest.split_at(here);
            rest = behind;
            let blocks = self.generation(index, id, generation, entries);
            if self.missing.blocks == 0 {
                bytes.extend(blocks.into_bytes());
            }
        }
        if self.missing.blocks > 0 {
            return Ok(None);
        }
        if SegmentId::of(&bytes) != id {
            return Err(Error::Forged { segment: index.into() });
        }
        Ok(Some(bytes))
    }

    fn generation(&mut self, segment: u32, id: SegmentId, generation: Generation, entries: &[Entry]) -> Collector {
        let mut blocks = Collector::new(&self.set, &id, generation, self.kernels);
        for entry in entries {
            let path = self.directory.join(&entry.name);
            let block = match self.block(&path, segment, id, generation) {
                Ok(block) => block,
                Err(fault) => {
                    self.skipped += 1;
                    self.progress.note(&format!("{}: skipped, {fault}", path.display()));
                    continue;
                }
            };
            if !blocks.is_complete() {
                self.used += 1;
                blocks.absorb(&block);
            }
        }
        if !blocks.is_complete() {
            self.missing.add(blocks.missing(), format!("segment {segment}, {}", blocks.report()));
        }
        blocks
    }

    fn block(&self, path: &Path, segment: u32, id: SegmentId, generation: Generation) -> Result<Labelled, Fault> {
        let mut file = File::open(path).map_err(Fault::Read)?;
        let (head, block) = block_file::read(&mut file)?;
        self.progress.advance(file.metadata().map_or(0, |metadata| metadata.len()));
        if (head.set, head.segment, head.generation) != (self.set, segment, generation) {
            return Err(Fault::Damaged("it changed while it was read"));
        }
        if head.segment_id != id {
            return Err(Fault::Impossible("most other blocks of this segment have another hash of it"));
        }
        Ok(block)
    }
}

/// The head of a block file, and the file's bytes.
fn head(path: &PathBuf) -> Result<(Head, u64), Fault> {
    let metadata = fs::metadata(path).map_err(Fault::Read)?;
    if !metadata.is_file() {
        return Err(Fault::Foreign("block"));
    }
    let file = File::open(path).map_err(Fault::Read)?;
    Ok((Head::read(&mut BufReader::with_capacity(HEAD_BYTES, file))?, metadata.len()))
}

/// The hash that most blocks of a segment carry.
fn most_frequent(entries: &[Entry]) -> SegmentId {
    let mut counts: HashMap<SegmentId, usize> = HashMap::new();
    entries.iter().for_each(|entry| *counts.entry(entry.segment_id).or_default() += 1);
    let most = counts.into_iter().max_by_key(|&(id, count)| (count, id));
    most.expect("a segment is only looked at if it has blocks").0
}

fn describe(set: &Set) -> String {
    let Set { code, file, file_bytes, block_bytes, n_max, .. } = set;
    let file = &file.to_string()[..12];
    match code {
        Code::Fountain(fountain) => {
            format!("file {file}… ({file_bytes} bytes in {fountain} symbols of {block_bytes}, {n_max} a source block)")
        }
        Code::Rlnc => format!("file {file}… ({file_bytes} bytes in blocks of {block_bytes}, {n_max} a generation)"),
    }
}

/// A head fits in one read, with a short vector.
const HEAD_BYTES: usize = 256;
