//! Random linear network coding over GF(q), 257 bits wide, whose blocks homomorphic hashes prove (`super::hash`).
//!
//! After Chu, Zhao and Wang, "Practical Random Linear Network Coding on GPUs" (NETWORKING 2009). A block is m words of 32 bytes,
//! big-endian, each of them an element. Who holds the source combines its blocks with coefficients of 32 bits, which costs a fifth of
//! what full ones do and as much less on the wire; who holds coded blocks recodes them with coefficients of the whole field. What is coded
//! no longer fits 32 bytes: with this q one word in 23 is 2^256 or more. So a coded payload is m × 32 bytes, the low 256 bits of each word,
//! and ceil(m / 8) bytes behind them, with the words' top bits: that of word i is bit i mod 8, counted from the least significant, of byte
//! i / 8. Bits of no word are zero.
//!
//! Every block has one form alone: coefficients and words of q or more are refused where they are parsed ([`Vector`], [`Payload`]), and
//! what is recoded is reduced. Who does the arithmetic is behind [`Arithmetic`]: [`Cores`], or a card.

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

/// How large the generations of a code are: n blocks of so many words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    n: u16,
    words: u16,
}

impl Shape {
    /// Most blocks of a generation.
    pub const N_MAX: u16 = 1024;
    /// Most words of a block: 64 KiB.
    pub const WORDS_MAX: u16 = 2048;

    /// So many blocks of so many words, at least one of either.
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

    /// Bytes of the vector of a block that was coded at the source.
    pub const fn source_vector_bytes(&self) -> usize {
        self.n() * size_of::<u32>()
    }

    /// Bytes of the vector of a recoded block.
    pub const fn recoded_vector_bytes(&self) -> usize {
        self.n() * gfq::BYTES
    }
}

/// Why bytes are no block of a generation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another number of bytes than the shape has.
    #[error("got {length} bytes, expected {expected}")]
    Length {
        /// Bytes there were.
        length: usize,
        /// Bytes there have to be.
        expected: usize,
    },
    /// A coefficient that is not below q.
    #[error("coefficient {0} is not below q")]
    Coefficient(usize),
    /// A word that is not below q.
    #[error("word {0} is not below q")]
    Word(usize),
    /// A bit behind the last word's top bit is set.
    #[error("padding bits are set")]
    UnusedBits,
    /// A source block with an index that the generation does not have.
    #[error("source block {index} is out of range: the generation has {n}")]
    Index {
        /// The index it came with.
        index: usize,
        /// Blocks of the generation.
        n: usize,
    },
    /// Blocks are missing.
    #[error("{0} more independent blocks are needed")]
    Incomplete(usize),
    /// A decoded word does not fit 32 bytes: what came was no combination of source blocks.
    #[error("a decoded word has more than 256 bits")]
    Overflow,
    /// The processor did not do it.
    #[error(transparent)]
    Failed(#[from] Failed),
}

/// The coefficients of a coded block, one for each block of its generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vector {
    /// Of 32 bits each, as the source draws them. They travel in four bytes, big-endian.
    Source(Box<[u32]>),
    /// Any elements: of a block that was recoded. They travel in 33 bytes, big-endian.
    Recoded(Box<[Element]>),
}

impl Vector {
    /// The coefficients of a block from the source.
    pub fn parse_source(shape: Shape, bytes: &[u8]) -> Result<Self, Error> {
        check_length(bytes, shape.source_vector_bytes())?;
        Ok(Self::Source(bytes.as_chunks().0.iter().map(|bytes| u32::from_be_bytes(*bytes)).collect()))
    }

    /// The coefficients of a recoded block; one that is not below q is refused.
    pub fn parse_recoded(shape: Shape, bytes: &[u8]) -> Result<Self, Error> {
        check_length(bytes, shape.recoded_vector_bytes())?;
        let coefficients = bytes.as_chunks().0.iter().enumerate();
        let coefficients = coefficients.map(|(index, bytes)| Element::from_bytes(bytes).ok_or(Error::Coefficient(index)));
        Ok(Self::Recoded(coefficients.collect::<Result<_, _>>()?))
    }

    /// That of source block `index`.
    pub fn unit(shape: Shape, index: usize) -> Result<Self, Error> {
        let mut coefficients = vec![0; shape.n()];
        *coefficients.get_mut(index).ok_or_else(|| Error::Index { index, n: shape.n() })? = 1;
        Ok(Self::Source(coefficients.into()))
    }

    /// How many coefficients it has.
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

    /// All of them.
    pub fn elements(&self) -> impl Iterator<Item = Element> + '_ {
        (0..self.n()).map(|index| self.element(index))
    }

    /// As it travels.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Source(coefficients) => coefficients.iter().flat_map(|coefficient| coefficient.to_be_bytes()).collect(),
            Self::Recoded(coefficients) => coefficients.iter().flat_map(Element::to_bytes).collect(),
        }
    }
}

/// The words of a coded block, as they travel: every one is below q.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload(Bytes);

impl Payload {
    /// Refuses what has another length, a word that is not below q, and bits of no word.
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

    /// A source block of at most the shape's bytes; what is missing at its end is zeros.
    pub fn of_source(shape: Shape, block: &[u8]) -> Result<Self, Error> {
        if block.len() > shape.block_bytes() {
            return Err(Error::Length { length: block.len(), expected: shape.block_bytes() });
        }
        let mut bytes = vec![0; shape.payload_bytes()];
        bytes[..block.len()].copy_from_slice(block);
        Ok(Self(bytes.into()))
    }

    /// As it travels.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// How many words it has.
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

    /// All of them.
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

/// A block of a generation with its coefficients, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coded {
    /// Which combination it is.
    pub vector: Vector,
    /// Its words.
    pub payload: Payload,
}

impl Coded {
    /// A source block of at most the shape's bytes, as it is.
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

/// Coefficients for so many blocks that are coded at the source, of none of them all 0: that would be a block of nothing.
pub fn draw_rows(shape: Shape, count: usize, rng: &mut impl Rng) -> Vec<u32> {
    let mut rows: Vec<u32> = (0..count * shape.n()).map(|_| rng.random()).collect();
    for row in rows.chunks_exact_mut(shape.n()) {
        while row.iter().all(|coefficient| *coefficient == 0) {
            row.fill_with(|| rng.random());
        }
    }
    rows
}

/// Factors for so many blocks that are made of `held` ones.
pub fn draw_factors(held: usize, count: usize, rng: &mut impl Rng) -> Vec<Element> {
    (0..count * held).map(|_| Element::random(rng)).collect()
}

/// Blocks to be coded from a generation that is at hand as a whole.
#[derive(Debug)]
pub struct Encode<'a> {
    /// The generation's bytes, block behind block. What is missing at its end is zeros.
    pub source: &'a [u8],
    /// Where the same bytes are kept, if they are.
    pub kept: Option<Place<'a>>,
    /// n coefficients for each block.
    pub rows: &'a [u32],
    /// The payload of each.
    pub out: Vec<&'a mut [u8]>,
}

impl<'a> Encode<'a> {
    /// Of a source that is not kept, into payloads one behind the other.
    pub fn new(shape: Shape, source: &'a [u8], rows: &'a [u32], out: &'a mut [u8]) -> Self {
        Self { source, kept: None, rows, out: out.chunks_mut(shape.payload_bytes()).collect() }
    }

    /// How many blocks are wanted.
    ///
    /// # Panics
    /// If its parts do not fit each other and the shape.
    pub fn count(&self, shape: Shape) -> usize {
        assert!(self.source.len() <= shape.source_bytes(), "the source of {shape:?}");
        assert!(self.out.iter().all(|out| out.len() == shape.payload_bytes()), "payloads of {shape:?}");
        count(self.rows.len(), shape.n(), self.out.len() * shape.payload_bytes(), shape.payload_bytes())
    }
}

/// A source that [`Arithmetic::keep`] keeps, until this is dropped.
pub trait Kept: Any + std::fmt::Debug + Send + Sync {
    /// Bytes of memory that it takes.
    fn bytes(&self) -> u64;

    /// Whether it is still there: not after a card was lost. Whoever computes with what is not takes the bytes that came with it.
    fn is_alive(&self) -> bool;
}

/// Where a generation begins in a source that is kept. All of it is there: what is missing at its end is zeros.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The source.
    pub kept: &'a dyn Kept,
    /// In bytes.
    pub offset: usize,
}

/// Why a source is not kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotKept {
    /// There is no room for so many bytes; when something else has gone there may be.
    #[error("cannot allocate {0} bytes")]
    Memory(u64),
    /// The processor did not do it.
    #[error(transparent)]
    Failed(#[from] Failed),
}

/// Blocks to be made of coded blocks of one generation.
#[derive(Debug)]
pub struct Recode<'a> {
    /// What is combined, at least one block.
    pub held: &'a [&'a Coded],
    /// A factor of each held block, for each block that is wanted.
    pub rows: &'a [Element],
    /// The vectors of these, as they travel.
    pub vectors: &'a mut [u8],
    /// Their payloads, one behind the other.
    pub payloads: &'a mut [u8],
}

impl Recode<'_> {
    /// How many blocks are wanted.
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

/// A generation to be rebuilt of as many blocks as it has.
#[derive(Debug)]
pub struct Decode<'a> {
    /// n of them.
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

/// What came of rebuilding a generation. What is in its place is undefined, unless that is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebuilt {
    /// Its source.
    Whole,
    /// The blocks are not independent.
    Singular,
    /// A word of 2^256 or more: no source has it, so that some block was none of this generation.
    Overflow,
}

/// Who does the arithmetic. Calls may be made from several threads; a card's may fail, and are worth repeating on [`Cores`] then.
pub trait Arithmetic: std::fmt::Debug + Send + Sync {
    /// Brings a source of generations to where it is computed with, so that [`Encode::kept`] spares each call the way there: `padded` bytes, of
    /// which those behind `source` are zeros. Nothing if it is computed with where it is, or if nothing can be kept any more.
    ///
    /// # Panics
    /// If `source` is longer than `padded`.
    fn keep(&self, source: &[u8], padded: usize) -> Result<Option<Arc<dyn Kept>>, NotKept>;

    /// Makes coded blocks of sources.
    ///
    /// # Panics
    /// If [`Encode::count`] does.
    fn encode(&self, shape: Shape, tasks: &mut [Encode<'_>]) -> Result<(), Failed>;

    /// Makes coded blocks of coded blocks.
    ///
    /// # Panics
    /// If [`Recode::count`] does.
    fn recode(&self, shape: Shape, tasks: &mut [Recode<'_>]) -> Result<(), Failed>;

    /// Rebuilds generations, and says for each what came of it.
    ///
    /// # Panics
    /// If [`Decode::check`] does.
    fn decode(&self, shape: Shape, tasks: &mut [Decode<'_>]) -> Result<Vec<Rebuilt>, Failed>;

    /// The hashes of plain blocks of at most `words` words each, one behind the other, [`Group::hash_bytes`] of each. What is missing at
    /// the end of a block is zeros.
    ///
    /// # Panics
    /// If a block is longer, or there are more words than [`Shape::WORDS_MAX`].
    fn hash(&self, group: Group, words: usize, blocks: &[&[u8]]) -> Result<Vec<u8>, Failed>;

    /// For each batch, whether its weighted sum of blocks has the hash that the weighted hashes of the source make: true if all of its
    /// blocks are right, and otherwise false, but for one chance in 2^96. [`sort_out`](super::hash::sort_out) says which blocks are wrong.
    fn holds(&self, batches: &[Batch<'_>]) -> Result<Vec<bool>, Failed>;
}
