//! Blocks: their coefficients and their words, and the encoding of both on the wire.

use bytes::Bytes;

use super::error::Error;
use super::shape::Shape;
use ncs_gf::gfq::{Element, WORD_BYTES};

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
        Ok(Self::Source(
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|bytes| u32::from_be_bytes(*bytes))
                .collect(),
        ))
    }

    /// Parses the coefficients of a recoded block; refuses one that is not below q.
    pub fn parse_recoded(shape: Shape, bytes: &[u8]) -> Result<Self, Error> {
        check_length(bytes, shape.recoded_vector_bytes())?;
        let coefficients = bytes.as_chunks().0.iter().enumerate();
        let coefficients = coefficients
            .map(|(index, bytes)| Element::from_bytes(bytes).ok_or(Error::Coefficient(index)));
        Ok(Self::Recoded(coefficients.collect::<Result<_, _>>()?))
    }

    /// The vector of source block `index`.
    pub fn unit(shape: Shape, index: usize) -> Result<Self, Error> {
        let mut coefficients = vec![0; shape.n()];
        *coefficients.get_mut(index).ok_or_else(|| Error::Index {
            index,
            n: shape.n(),
        })? = 1;
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
            Self::Source(coefficients) => coefficients
                .iter()
                .flat_map(|coefficient| coefficient.to_be_bytes())
                .collect(),
            Self::Recoded(coefficients) => {
                coefficients.iter().flat_map(Element::to_bytes).collect()
            }
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
        let is_low = |(index, word): (usize, &[u8; WORD_BYTES])| {
            !bit(bits, index) || Element::from_word_and_bit(word, true).is_some()
        };
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
            return Err(Error::Length {
                length: block.len(),
                expected: shape.block_bytes(),
            });
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
        Element::from_word_and_bit(&words[index], bit(bits, index))
            .expect("words that were checked")
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
pub(super) fn pack(words: impl IntoIterator<Item = Element>, out: &mut [u8]) {
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
    if bytes.len() == expected {
        Ok(())
    } else {
        Err(Error::Length {
            length: bytes.len(),
            expected,
        })
    }
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
        Ok(Self {
            vector: Vector::unit(shape, index)?,
            payload: Payload::of_source(shape, block)?,
        })
    }

    /// Refuses a block of another shape.
    pub(super) fn fits(&self, shape: Shape) -> Result<(), Error> {
        match (self.vector.n(), self.payload.words()) {
            (n, _) if n != shape.n() => Err(Error::Length {
                length: n,
                expected: shape.n(),
            }),
            (_, words) if words != shape.words() => Err(Error::Length {
                length: words,
                expected: shape.words(),
            }),
            _ => Ok(()),
        }
    }

    /// # Panics
    /// If it is none of this shape.
    pub(super) fn check(&self, shape: Shape) {
        assert_eq!(self.fits(shape), Ok(()), "a block of {shape:?}");
    }
}
