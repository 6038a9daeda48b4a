//! Random linear network coding over GF(q), 257 bits wide, with homomorphic hashes that verify its
//! blocks (`super::hash`).
//!
//! After Chu, Zhao and Wang, "Practical Random Linear Network Coding on GPUs" (NETWORKING 2009). A
//! block is m words of 32 bytes, big-endian, each of them an element. An encoder that has the
//! source combines its blocks with coefficients of 32 bits, at a fifth of the cost of full ones,
//! and as much less on the wire. A recoder combines coded blocks with coefficients of the whole
//! field. A coded word no longer fits 32 bytes: with this q one word in 23 is 2^256 or more. A
//! coded payload is therefore m × 32 bytes, the low 256 bits of each word, followed by ceil(m / 8)
//! bytes with the words' top bits. The top bit of word i is bit i mod 8, counted from the least
//! significant, of byte i / 8. Bits without a word are zero.
//!
//! Every block has exactly one form: parsers refuse coefficients and words of q or more
//! ([`Vector`], [`Payload`]), and recoded blocks are reduced. [`Arithmetic`] hides the processor
//! that computes: [`Cores`], or a card.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use rand::{Rng, RngExt};

use super::hash::{Batch, Group};
use ncs_gf::gfq::{self, Element, WORD_BYTES};

pub use cores::Cores;
pub use cores::ROWS_A_PART;
pub use decoder::Decoder;
pub use ncs_gf::dense::Failed;

mod cores;
mod decoder;
#[cfg(test)]
mod tests;

/// The size of a code's generations: n blocks of a number of words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    n: u16,
    words: u16,
}

impl Shape {
    /// Maximum number of blocks of a generation.
    pub const N_MAX: u16 = 1024;
    /// Maximum number of words of a block: 64 KiB.
    pub const WORDS_MAX: u16 = 2048;

    /// The shape of `n` blocks of `words` words, at least one of each.
    pub const fn new(n: u16, words: u16) -> Option<Self> {
        let is_known = n > 0 && n <= Self::N_MAX && words > 0 && words <= Self::WORDS_MAX;
        if is_known { Some(Self { n, words }) } else { None }
    }

    /// Blocks of a generation.
    pub const fn n(&self) -> usize {
        self.n as usize
    }

    /// Words of a block.
    pub const fn words(&self) -> usize {
        self.words as usize
    }

    /// Bytes of a source block.
    pub const fn block_bytes(&self) -> usize {
        self.words() * WORD_BYTES
    }

    /// Bytes of a generation's source.
    pub const fn source_bytes(&self) -> usize {
        self.n() * self.block_bytes()
    }

    /// Bytes of a coded block's payload.
    pub const fn payload_bytes(&self) -> usize {
        self.block_bytes() + self.words().div_ceil(8)
    }

    /// Bytes of the vector of a block coded at the source.
    pub const fn source_vector_bytes(&self) -> usize {
        self.n() * size_of::<u32>()
    }

    /// Bytes of the vector of a recoded block.
    pub const fn recoded_vector_bytes(&self) -> usize {
        self.n() * gfq::BYTES
    }
}

/// Why bytes are not a block of a generation, or why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The length does not fit the shape.
    #[error("got {length} bytes, expected {expected}")]
    Length {
        /// The given length in bytes.
        length: usize,
        /// The required length in bytes.
        expected: usize,
    },
    /// A coefficient that is not below q.
    #[error("coefficient {0} is not below q")]
    Coefficient(usize),
    /// A word that is not below q.
    #[error("word {0} is not below q")]
    Word(usize),
    /// A bit after the last word's top bit is set.
    #[error("padding bits are set")]
    UnusedBits,
    /// A source block with an index outside the generation.
    #[error("source block {index} is out of range: the generation has {n}")]
    Index {
        /// Its index.
        index: usize,
        /// Blocks of the generation.
        n: usize,
    },
    /// Blocks are missing.
    #[error("{0} more independent blocks are needed")]
    Incomplete(usize),
    /// A decoded word does not fit 32 bytes: the received blocks were not combinations of source
    /// blocks.
    #[error("a decoded word has more than 256 bits")]
    Overflow,
    /// The processor failed.
    #[error(transparent)]
    Failed(#[from] Failed),
}

/// The coefficients of a coded block, one for each block of its generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vector {
    /// Coefficients of 32 bits each, as the source draws them. They take four bytes each on the
    /// wire, big-endian.
    Source(Box<[u32]>),
    /// Any elements: of a recoded block. They take 33 bytes each on the wire, big-endian.
    Recoded(Box<[Element]>),
}

impl Vector {
    /// Parses the coefficients of a block from the source.
    pub fn parse_source(shape: Shape, bytes: &[u8]) -> Result<Self, Error> {
        check_length(bytes, shape.source_vector_bytes())?;
        Ok(Self::Source(bytes.as_chunks().0.iter().map(|bytes| u32::from_be_bytes(*bytes)).collect()))
    }

    /// Parses the coefficients of a recoded block; refuses one that is not below q.
    pub fn parse_recoded(shape: Shape, bytes: &[u8]) -> Result<Self, Error> {
        check_length(bytes, shape.recoded_vector_bytes())?;
        let coefficients = bytes.as_chunks().0.iter().enumerate();
        let coefficients = coefficients.map(|(index, bytes)| Element::from_bytes(bytes).ok_or(Error::Coefficient(index)));
        Ok(Self::Recoded(coefficients.collect::<Result<_, _>>()?))
    }

    /// The vector of source block `index`.
    pub fn unit(shape: Shape, index: usize) -> Result<Self, Error> {
        let mut coefficients = vec![0; shape.n()];
        *coefficients.get_mut(index).ok_or_else(|| Error::Index { index, n: shape.n() })? = 1;
        Ok(Self::Source(coefficients.into()))
    }

    /// The number of coefficients.
    pub fn n(&self) -> usize {
        match self {
            Self::Source(coefficients) => coefficients.len(),
            Self::Recoded(coefficients) => coefficients.len(),
        }
    }

    /// A coefficient.
    ///
    /// # Panics
    /// If there is none with this index.
    pub fn element(&self, index: usize) -> Element {
        match self {
            Self::Source(coefficients) => u64::from(coefficients[index]).into(),
            Self::Recoded(coefficients) => coefficients[index],
        }
    }

    /// All coefficients.
    pub fn elements(&self) -> impl Iterator<Item = Element> + '_ {
        (0..self.n()).map(|index| self.element(index))
    }

    /// The encoding on the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Source(coefficients) => coefficients.iter().flat_map(|coefficient| coefficient.to_be_bytes()).collect(),
            Self::Recoded(coefficients) => coefficients.iter().flat_map(Element::to_bytes).collect(),
        }
    }
}

/// The words of a coded block, in their encoding on the wire: every word is below q.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload(Bytes);

impl Payload {
    /// Parses a payload; refuses another length, a word that is not below q, and set bits without a
    /// word.
    pub fn parse(shape: Shape, bytes: Bytes) -> Result<Self, Error> {
        check_length(&bytes, shape.payload_bytes())?;
        let payload = Self(bytes);
        let used = shape.words() % 8;
        if used > 0 && payload.0.last().is_some_and(|last| last >> used != 0) {
            return Err(Error::UnusedBits);
        }
        let (words, bits) = payload.parts();
        let is_low =
            |(index, word): (usize, &[u8; WORD_BYTES])| !bit(bits, index) || Element::from_word_and_bit(word, true).is_some();
        let is_all_low = bits.iter().all(|&bits| bits == 0) || words.iter().enumerate().all(is_low);
        if is_all_low {
            return Ok(payload);
        }
        let high = words.iter().enumerate().position(|word| !is_low(word));
        Err(Error::Word(high.unwrap_or_default()))
    }

    /// The payload of a source block of at most the shape's bytes; missing bytes at its end are
    /// zeros.
    pub fn of_source(shape: Shape, block: &[u8]) -> Result<Self, Error> {
        if block.len() > shape.block_bytes() {
            return Err(Error::Length { length: block.len(), expected: shape.block_bytes() });
        }
        let mut bytes = vec![0; shape.payload_bytes()];
        bytes[..block.len()].copy_from_slice(block);
        Ok(Self(bytes.into()))
    }

    /// The encoding on the wire.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The number of words.
    pub fn words(&self) -> usize {
        self.parts().0.len()
    }

    /// A word.
    ///
    /// # Panics
    /// If there is none with this index.
    pub fn element(&self, index: usize) -> Element {
        let (words, bits) = self.parts();
        Element::from_word_and_bit(&words[index], bit(bits, index)).expect("words that were checked")
    }

    /// All words.
    pub fn elements(&self) -> impl Iterator<Item = Element> + '_ {
        (0..self.words()).map(|index| self.element(index))
    }

    /// Low words, and bytes of top bits.
    fn parts(&self) -> (&[[u8; WORD_BYTES]], &[u8]) {
        // Of w words there are 32 w + ceil(w / 8) bytes, from which w follows.
        let words = self.0.len() * 8 / (8 * WORD_BYTES + 1);
        let (low, bits) = self.0.split_at(words * WORD_BYTES);
        (low.as_chunks().0, bits)
    }
}

/// Writes words as a payload; `out` is as long as one of so many.
fn pack(words: impl IntoIterator<Item = Element>, out: &mut [u8]) {
    let count = out.len() * 8 / (8 * WORD_BYTES + 1);
    let (low, bits) = out.split_at_mut(count * WORD_BYTES);
    bits.fill(0);
    for (index, (word, out)) in words.into_iter().zip(low.as_chunks_mut().0).enumerate() {
        *out = word.low_word();
        bits[index / 8] |= u8::from(word.is_wide()) << (index % 8);
    }
}

fn bit(bits: &[u8], index: usize) -> bool {
    bits[index / 8] >> (index % 8) & 1 == 1
}

fn check_length(bytes: &[u8], expected: usize) -> Result<(), Error> {
    if bytes.len() == expected { Ok(()) } else { Err(Error::Length { length: bytes.len(), expected }) }
}

/// A parsed block of a generation, with its coefficients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coded {
    /// The combination of source blocks.
    pub vector: Vector,
    /// The words.
    pub payload: Payload,
}

impl Coded {
    /// A source block of at most the shape's bytes.
    pub fn source(shape: Shape, index: usize, block: &[u8]) -> Result<Self, Error> {
        Ok(Self { vector: Vector::unit(shape, index)?, payload: Payload::of_source(shape, block)? })
    }

    /// Refuses a block of another shape.
    fn fits(&self, shape: Shape) -> Result<(), Error> {
        match (self.vector.n(), self.payload.words()) {
            (n, _) if n != shape.n() => Err(Error::Length { length: n, expected: shape.n() }),
            (_, words) if words != shape.words() => Err(Error::Length { length: words, expected: shape.words() }),
            _ => Ok(()),
        }
    }

    /// # Panics
    /// If it is none of this shape.
    pub(super) fn check(&self, shape: Shape) {
        assert_eq!(self.fits(shape), Ok(()), "a block of {shape:?}");
    }
}

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
        Self { source, kept: None, rows, out: out.chunks_mut(shape.payload_bytes()).collect() }
    }

    /// The number of wanted blocks.
    ///
    /// # Panics
    /// If its parts do not fit each other and the shape.
    pub fn count(&self, shape: Shape) -> usize {
        assert!(self.source.len() <= shape.source_bytes(), "the source of {shape:?}");
        assert!(self.out.iter().all(|out| out.len() == shape.payload_bytes()), "payloads of {shape:?}");
        count(self.rows.len(), shape.n(), self.out.len() * shape.payload_bytes(), shape.payload_bytes())
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
        assert_eq!(self.vectors.len() / shape.recoded_vector_bytes(), self.payloads.len() / shape.payload_bytes(), "vectors");
        assert_eq!(self.vectors.len() % shape.recoded_vector_bytes(), 0, "whole vectors");
        count(self.rows.len(), self.held.len(), self.payloads.len(), shape.payload_bytes())
    }
}

fn count(factors: usize, inner: usize, bytes: usize, each: usize) -> usize {
    assert!(inner > 0 && factors.is_multiple_of(inner) && bytes == factors / inner * each, "a payload for each row");
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
        assert!(self.blocks.len() == shape.n() && self.out.len() == shape.source_bytes(), "a generation of {shape:?}");
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
/// repeat them on [`Cores`] then.
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
    /// probability 2^-96. [`sort_out`](super::hash::sort_out) finds the wrong blocks.
    fn holds(&self, batches: &[Batch<'_>]) -> Result<Vec<bool>, Failed>;
}
