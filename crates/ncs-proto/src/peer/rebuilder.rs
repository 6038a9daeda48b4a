//! The decoder of a generation, of one of three kinds.

use ncs_codec::block::Vector;
#[cfg(feature = "gfq")]
use ncs_codec::gfq::Arithmetic;
use ncs_codec::rlnc::{Decoder, Progressive, System};
use ncs_codec::{Error, Outcome};

use super::config::Config;
use super::gfq::GfqGeneration;
use crate::object::{Generation, SegmentId, row_key};

/// A decoder, from the first block of a generation to its source.
#[derive(Debug)]
pub enum Rebuilder {
    /// Multiplies payloads once all blocks are there: the least work in all, and the usual way.
    Blocked(Decoder),
    /// Processes payloads as they come: the most work, and the least after the last block.
    Progressive(Progressive),
    /// Over the prime field: blocks are tested before they count.
    Gfq(Box<GfqGeneration>),
}

impl Rebuilder {
    /// An empty decoder for a generation. `is_pressed`: the deadline leaves too little time to
    /// multiply the payloads after the last block.
    pub(super) fn for_generation(
        config: &Config,
        segment: &SegmentId,
        generation: Generation,
        is_pressed: bool,
    ) -> Box<Self> {
        if let Some(gfq) = GfqGeneration::new(generation) {
            return Box::new(Self::Gfq(Box::new(gfq)));
        }
        let (key, kernels) = (row_key(segment, &generation), config.kernels);
        Box::new(match (config.gathers, is_pressed) {
            (true, _) => Self::Blocked(Decoder::gathering(generation, key, kernels)),
            (false, false) => Self::Blocked(Decoder::new(generation, key, kernels)),
            (false, true) => Self::Progressive(Progressive::new(generation, key, kernels)),
        })
    }

    /// Absorbs a block. An error over the prime field, where blocks are tested first.
    pub fn absorb(&mut self, vector: &Vector, payload: &[u8]) -> Result<Outcome, Error> {
        match self {
            Self::Blocked(decoder) => decoder.absorb(vector, payload),
            Self::Progressive(decoder) => decoder.absorb(vector, payload),
            Self::Gfq(gfq) => Err(foreign(gfq.generation())),
        }
    }

    /// The generation it decodes.
    pub fn generation(&self) -> &Generation {
        match self {
            Self::Blocked(decoder) => decoder.generation(),
            Self::Progressive(decoder) => decoder.generation(),
            Self::Gfq(gfq) => gfq.generation(),
        }
    }

    /// Blocks in the generation.
    pub fn n(&self) -> u16 {
        self.generation().n
    }

    /// Independent blocks held.
    pub fn rank(&self) -> u16 {
        match self {
            Self::Blocked(decoder) => decoder.rank(),
            Self::Progressive(decoder) => decoder.rank(),
            Self::Gfq(gfq) => gfq.rank(),
        }
    }

    /// Independent blocks still needed, if all untested ones are right.
    pub fn missing(&self) -> u16 {
        match self {
            Self::Gfq(gfq) => gfq.missing(),
            Self::Blocked(_) | Self::Progressive(_) => self.n() - self.rank(),
        }
    }

    /// Whether payloads are processed as they come.
    pub fn is_progressive(&self) -> bool {
        matches!(self, Self::Progressive(_))
    }

    /// Whether it is to be solved elsewhere.
    pub fn is_to_be_solved(&self) -> bool {
        matches!(self, Self::Blocked(decoder) if decoder.is_to_be_solved())
    }

    /// The bytes of the generation; `arithmetic` is for the prime field.
    #[cfg(feature = "gfq")]
    pub fn into_bytes(self, arithmetic: &dyn Arithmetic) -> Result<Vec<u8>, Error> {
        match self {
            Self::Gfq(gfq) => gfq.into_bytes(arithmetic),
            Self::Blocked(_) | Self::Progressive(_) => self.into_bytes_of_bytes(),
        }
    }

    /// The bytes of a generation that is not over the prime field.
    pub fn into_bytes_of_bytes(self) -> Result<Vec<u8>, Error> {
        match self {
            Self::Blocked(decoder) => decoder.into_bytes(),
            Self::Progressive(decoder) => decoder.into_bytes(),
            Self::Gfq(gfq) => Err(foreign(gfq.generation())),
        }
    }

    /// The system to solve, for a decoder that [`is_to_be_solved`](Self::is_to_be_solved); `None`
    /// for others.
    pub fn into_system(self) -> Option<System> {
        match self {
            Self::Blocked(decoder) => decoder.into_system().ok(),
            Self::Progressive(_) | Self::Gfq(_) => None,
        }
    }
}

/// What a generation over the prime field answers where bytes are meant.
fn foreign(generation: &Generation) -> Error {
    Error::Foreign {
        codec: generation.codec,
        n: generation.n,
    }
}
