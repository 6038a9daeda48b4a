//! One segment that is not verified yet: its kept rows, and how they are tested.

use ncs_codec::block::{Block, Vector};

use crate::integrity::checks::RowChecks;
use crate::integrity::hashes::BlockHashes;
use crate::object::{Generation, SegmentId};
use crate::peer::ids::{FetchId, SourceId};
use crate::peer::keyring::Proof;
use crate::peer::order::{Order, Place};
use crate::sorted::{SortedMap, SortedSet};
use crate::time::Instant;

/// A segment, and the evidence about its rows.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) order: Order,
    pub(super) place: Option<Place>,
    /// What the stream's key has signed about it.
    pub(super) proof: Option<Proof>,
    pub(super) parts: SortedMap<u32, GenerationEvidence>,
    pub(super) hashes: Option<BlockHashes>,
    pub(super) wants_hashes: bool,
    pub(super) refused: SortedSet<(SourceId, Topic)>,
    /// Sources that have named this segment themselves, with this coding.
    pub(super) named_by: SortedSet<SourceId>,
    /// Sources that have sent homomorphic hashes which differ from the signed ones. They are not
    /// asked again, on any connection.
    pub(super) forgers: SortedSet<SourceId>,
    pub(super) stage: Stage,
    pub(super) trials: u32,
    /// Wrong generations, to be repaired when the trial is over.
    pub(super) refuted: SortedSet<u32>,
    /// Generations that were complete, and have lost rows.
    pub(super) dropped: SortedSet<u32>,
    /// When a trial ends, whatever has been found.
    pub(super) tried_until: Option<Instant>,
    /// Generations that were fetched anew.
    pub(super) again: SortedSet<u32>,
    /// Whether they were fetched from the trusted source alone.
    pub(super) is_alone: bool,
    /// Servers whose blocks are wrong by the checksums of another source.
    pub(super) charges: SortedMap<SourceId, Pollution>,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Its blocks are on their way.
    Coming,
    /// Some of its bytes are wrong; these generations are to be tested.
    Trial(SortedSet<u32>),
}

/// The rows of a generation.
#[derive(Debug, Default)]
pub(super) struct GenerationEvidence {
    pub(super) rows: Vec<Row>,
    /// Checksums for rows as they come.
    pub(super) checks: Option<RowChecks>,
    /// Rows that have come and are not tested yet.
    pub(super) waiting: Vec<Row>,
    pub(super) is_asked: bool,
}

/// A block as it came, and its sender.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) source: SourceId,
    pub(crate) block: Block,
    /// Whether a test has shown that it is right.
    pub(crate) is_right: bool,
}

/// The subject of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    Hashes,
    Checks,
}

/// The result of a test.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) fetch: FetchId,
    pub(crate) generation: u32,
    pub(crate) wrong: Vec<Row>,
    /// Whether all rows so far are tested, and later ones will be.
    pub(crate) is_checked: bool,
}

/// A source has sent blocks that were proved wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pollution {
    pub(crate) source: SourceId,
    pub(crate) segment: SegmentId,
    pub(crate) generation: u32,
    pub(crate) blocks: u32,
}

/// The verdict on a block that has just come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Unknown.
    Unproved,
    /// It is right.
    Right,
    /// It is wrong.
    Wrong,
    /// It is kept, to be tested together with others.
    Later,
}

impl Case {
    pub(super) fn new(order: Order, place: Option<Place>, proof: Option<Proof>) -> Self {
        Self {
            order,
            place,
            proof,
            parts: SortedMap::new(),
            hashes: None,
            wants_hashes: false,
            refused: SortedSet::new(),
            named_by: SortedSet::new(),
            forgers: SortedSet::new(),
            stage: Stage::Coming,
            trials: 0,
            refuted: SortedSet::new(),
            dropped: SortedSet::new(),
            tried_until: None,
            again: SortedSet::new(),
            is_alone: false,
            charges: SortedMap::new(),
        }
    }

    pub(super) fn is_tried(&self) -> bool {
        matches!(self.stage, Stage::Trial(_))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.parts
            .values()
            .flat_map(|part| &part.rows)
            .map(Row::bytes)
            .sum()
    }

    /// Whether a source block matches its hash, if that is known.
    pub(super) fn fits(&self, generation: &Generation, block: &Block) -> Option<bool> {
        let Vector::Source(index) = block.vector else {
            return None;
        };
        let hashes = self.hashes.as_ref()?;
        let first = generation.offset / u64::from(generation.block_bytes);
        Some(hashes.fit(
            first + u64::from(index),
            &block.payload,
            generation.block_bytes,
        ))
    }

    /// Tests the source blocks of a generation by their hashes, and removes the wrong ones.
    pub(super) fn test_sources(&mut self, generation: &Generation) -> Vec<Row> {
        let Some(part) = self.parts.get_mut(&generation.index) else {
            return Vec::new();
        };
        let mut rows = std::mem::take(&mut part.rows);
        let wrong = |row: &mut Row| match self.fits(generation, &row.block) {
            Some(fits) => {
                row.is_right |= fits;
                !fits
            }
            None => false,
        };
        let wrong = rows.extract_if(.., wrong).collect();
        if let Some(part) = self.parts.get_mut(&generation.index) {
            part.rows = rows;
        }
        wrong
    }
}

impl GenerationEvidence {
    /// Tests the first `count` rows, and removes the wrong ones.
    pub(super) fn test(&mut self, checks: &RowChecks, count: usize) -> Vec<Row> {
        let rows = || self.rows.iter().take(count).filter(|row| !row.is_right);
        let blocks: Vec<_> = rows()
            .map(|row| (&row.block.vector, &row.block.payload[..]))
            .collect();
        let mut verdicts = checks.are_right(&blocks).into_iter();
        for row in self.rows.iter_mut().take(count).filter(|row| !row.is_right) {
            row.is_right = verdicts.next().unwrap_or_default();
        }
        self.rows.extract_if(..count, |row| !row.is_right).collect()
    }
}

impl Row {
    /// About how much memory it occupies, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let vector = match &self.block.vector {
            Vector::Explicit(vector)
            | Vector::Unverified(vector)
            | Vector::Narrow(vector)
            | Vector::Wide(vector) => vector.len(),
            _ => 0,
        };
        (self.block.payload.len() + vector + size_of::<Self>()) as u64
    }
}
