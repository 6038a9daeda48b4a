//! What a processor does for the code: the tasks, and the interface that hides the processor.

use std::any::Any;
use std::sync::Arc;

use rand::{Rng, RngExt};

use super::block::Coded;
use super::hash::batch::Batch;
use super::shape::Shape;
use crate::shape::HashGroup as Group;
use ncs_gf::dense::Failed;
use ncs_gf::gfq::Element;

/// Draws coefficients for blocks coded at the source. No block gets only zeros, because it would
/// carry no information.
pub fn draw_rows(shape: Shape, count: usize, rng: &mut impl Rng) -> Vec<u32> {
    let mut rows: Vec<u32> = (0..count * shape.n()).map(|_| rng.random()).collect();
    for row in rows.chunks_exact_mut(shape.n()) {
        while row.iter().all(|coefficient| *coefficient == 0) {
            row.fill_with(|| rng.random());
        }
    }
    rows
}

/// Draws factors for `count` blocks made from `held` ones.
pub fn draw_factors(held: usize, count: usize, rng: &mut impl Rng) -> Vec<Element> {
    (0..count * held).map(|_| Element::random(rng)).collect()
}

/// Coded blocks to be made from a complete generation.
#[derive(Debug)]
pub struct Encode<'a> {
    /// The generation's bytes, one block after the other. Missing bytes at its end are zeros.
    pub source: &'a [u8],
    /// The place of the same bytes in a kept source, if there is one.
    pub kept: Option<Place<'a>>,
    /// n coefficients for each block.
    pub rows: &'a [u32],
    /// The payload of each.
    pub out: Vec<&'a mut [u8]>,
}

impl<'a> Encode<'a> {
    /// A task with a source that is not kept, into payloads one after the other.
    pub fn new(shape: Shape, source: &'a [u8], rows: &'a [u32], out: &'a mut [u8]) -> Self {
        Self {
            source,
            kept: None,
            rows,
            out: out.chunks_mut(shape.payload_bytes()).collect(),
        }
    }

    /// The number of wanted blocks.
    ///
    /// # Panics
    /// If its parts do not fit each other and the shape.
    pub fn count(&self, shape: Shape) -> usize {
        assert!(
            self.source.len() <= shape.source_bytes(),
            "the source of {shape:?}"
        );
        assert!(
            self.out
                .iter()
                .all(|out| out.len() == shape.payload_bytes()),
            "payloads of {shape:?}"
        );
        count(
            self.rows.len(),
            shape.n(),
            self.out.len() * shape.payload_bytes(),
            shape.payload_bytes(),
        )
    }
}

/// A source that [`Arithmetic::keep`] keeps until this is dropped.
pub trait Kept: Any + std::fmt::Debug + Send + Sync {
    /// Bytes of memory in use.
    fn bytes(&self) -> u64;

    /// Whether the copy still exists; it does not after a card was lost. Callers then use the bytes
    /// that came with it.
    fn is_alive(&self) -> bool;
}

/// The start of a generation in a kept source. The source is complete: missing bytes at its end are
/// zeros.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The source.
    pub kept: &'a dyn Kept,
    /// The offset in bytes.
    pub offset: usize,
}

/// Why a source is not kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotKept {
    /// There is no memory for so many bytes now; there may be after other sources are dropped.
    #[error("cannot allocate {0} bytes")]
    Memory(u64),
    /// The processor failed.
    #[error(transparent)]
    Failed(#[from] Failed),
}

/// Recoded blocks to be made from coded blocks of one generation.
#[derive(Debug)]
pub struct Recode<'a> {
    /// The blocks to combine, at least one.
    pub held: &'a [&'a Coded],
    /// A factor of each held block, for each wanted block.
    pub rows: &'a [Element],
    /// The vectors of the new blocks, in their encoding on the wire.
    pub vectors: &'a mut [u8],
    /// Their payloads, one after the other.
    pub payloads: &'a mut [u8],
}

impl Recode<'_> {
    /// The number of wanted blocks.
    ///
    /// # Panics
    /// If its parts do not fit each other and the shape.
    pub fn count(&self, shape: Shape) -> usize {
        self.held.iter().for_each(|block| block.check(shape));
        assert_eq!(
            self.vectors.len() / shape.recoded_vector_bytes(),
            self.payloads.len() / shape.payload_bytes(),
            "vectors"
        );
        assert_eq!(
            self.vectors.len() % shape.recoded_vector_bytes(),
            0,
            "whole vectors"
        );
        count(
            self.rows.len(),
            self.held.len(),
            self.payloads.len(),
            shape.payload_bytes(),
        )
    }
}

fn count(factors: usize, inner: usize, bytes: usize, each: usize) -> usize {
    assert!(
        inner > 0 && factors.is_multiple_of(inner) && bytes == factors / inner * each,
        "a payload for each row"
    );
    factors / inner
}

/// A generation to be rebuilt from as many blocks as it has.
#[derive(Debug)]
pub struct Decode<'a> {
    /// n blocks of the generation.
    pub blocks: &'a [&'a Coded],
    /// The source with all padding.
    pub out: &'a mut [u8],
}

impl Decode<'_> {
    /// # Panics
    /// If its parts do not fit each other and the shape.
    pub fn check(&self, shape: Shape) {
        self.blocks.iter().for_each(|block| block.check(shape));
        assert!(
            self.blocks.len() == shape.n() && self.out.len() == shape.source_bytes(),
            "a generation of {shape:?}"
        );
    }
}

/// The result of rebuilding a generation. The output is undefined unless the result is `Whole`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebuilt {
    /// The source is rebuilt.
    Whole,
    /// The blocks are not independent.
    Singular,
    /// A word of 2^256 or more: no source has it, so some block did not belong to this generation.
    Overflow,
}

/// A processor for the arithmetic. Calls may come from several threads. A card's calls may fail;
/// repeat them on [`Cores`](super::Cores) then.
pub trait Arithmetic: std::fmt::Debug + Send + Sync {
    /// Copies a source of generations to the processor's memory, so that [`Encode::kept`] saves
    /// each call the transfer: `padded` bytes, of which those after `source` are zeros. `None` if
    /// the processor needs no copy, or can keep no more sources.
    ///
    /// # Panics
    /// If `source` is longer than `padded`.
    fn keep(&self, source: &[u8], padded: usize) -> Result<Option<Arc<dyn Kept>>, NotKept>;

    /// Makes coded blocks from sources.
    ///
    /// # Panics
    /// If [`Encode::count`] does.
    fn encode(&self, shape: Shape, tasks: &mut [Encode<'_>]) -> Result<(), Failed>;

    /// Makes recoded blocks from coded blocks.
    ///
    /// # Panics
    /// If [`Recode::count`] does.
    fn recode(&self, shape: Shape, tasks: &mut [Recode<'_>]) -> Result<(), Failed>;

    /// Rebuilds generations, and returns the result of each.
    ///
    /// # Panics
    /// If [`Decode::check`] does.
    fn decode(&self, shape: Shape, tasks: &mut [Decode<'_>]) -> Result<Vec<Rebuilt>, Failed>;

    /// The hashes of plain blocks of at most `words` words each, one after the other,
    /// [`Group::hash_bytes`] each. Missing bytes at the end of a block are zeros.
    ///
    /// # Panics
    /// If a block is longer, or there are more words than [`Shape::WORDS_MAX`].
    fn hash(&self, group: Group, words: usize, blocks: &[&[u8]]) -> Result<Vec<u8>, Failed>;

    /// For each batch, whether the hash of its weighted sum of blocks equals the weighted product
    /// of the source's hashes. True if all of its blocks are right; otherwise false, except with
    /// probability 2^-96. [`sort_out`](crate::hash::sort_out) finds the wrong blocks.
    fn holds(&self, batches: &[Batch<'_>]) -> Result<Vec<bool>, Failed>;
}
