//! Generations as block files have them, whichever the code: what makes their symbols, and what collects their blocks.
//!
//! Raptor10 knows no source block of fewer than four symbols, but files end as they do. Such a block is filled up with symbols of zeros. Both
//! sides know these, so they are never written.

use std::fmt;
use std::ops::Range;

use super::block_file::{Code, Label, Labelled, Set};
use crate::codec::raptorq::Method;
use crate::codec::rlnc::{self, row_key};
use crate::codec::{raptor10, raptorq};
use crate::gf::Kernels;
use crate::object::{Generation, SegmentId, Shape, ShapeError};

/// The codes of which block files have encoding symbols. The first ones of a source block are its source symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fountain {
    /// RaptorQ (RFC 6330).
    RaptorQ,
    /// Raptor10 (RFC 5053).
    Raptor10,
}

impl Fountain {
    /// How many source symbols a source block may be allowed to have, at least and at most.
    pub(super) const fn n_max(self) -> (u32, u32) {
        match self {
            Self::RaptorQ => (1, raptorq::Parameters::K_MAX),
            Self::Raptor10 => (raptor10::Parameters::K_MIN, raptor10::Parameters::K_MAX),
        }
    }

    /// Source symbols of a source block at most.
    pub fn n_limit(self) -> u16 {
        u16::try_from(self.n_max().1).expect("source symbols of a block are counted in 16 bits")
    }

    /// Source blocks of a segment at most: their numbers have to fit into a FEC payload id.
    pub(super) const fn blocks_max(self) -> u32 {
        match self {
            Self::RaptorQ => 255,
            Self::Raptor10 => 65_535,
        }
    }

    /// What the ids are below that are written. With Raptor10 they repeat from 65,521 on; up to three of them may be padding.
    pub(super) const fn esi_end(self) -> u32 {
        match self {
            Self::RaptorQ => raptorq::ESI_END,
            Self::Raptor10 => 65_518,
        }
    }

    /// How a segment of `length` bytes is cut: into source blocks as `Partition` cuts objects.
    pub(super) fn shape(self, length: u64, symbol_bytes: u32, n_max: u16) -> Result<Shape, ShapeError> {
        let (least, most) = self.n_max();
        if !(least..=most).contains(&n_max.into()) {
            return Err(ShapeError::NMax(n_max));
        }
        let shape = Shape::wide(length, symbol_bytes, n_max)?;
        if symbol_bytes > u16::MAX.into() {
            return Err(ShapeError::BlockBytes(symbol_bytes));
        }
        // Too many source blocks for so few symbols in each.
        if shape.generations() > self.blocks_max() { Err(ShapeError::NMax(n_max)) } else { Ok(shape) }
    }

    /// The symbols with which a source block is filled up.
    fn padding(self, generation: &Generation) -> Range<u32> {
        let n = u32::from(generation.n);
        n..n.max(self.n_max().0)
    }

    /// The ids of its symbols that are written, so many from `first` on.
    pub(super) fn esis(self, generation: &Generation, first: u32, count: u32) -> impl Iterator<Item = u32> + use<> {
        let padding = self.padding(generation);
        (first..).filter(move |esi| !padding.contains(esi)).take(count as usize)
    }

    /// The FEC payload id of a symbol: the number of its source block, and its own.
    ///
    /// # Panics
    /// If one of them does not fit.
    pub(super) fn payload_id(self, generation: &Generation, esi: u32) -> [u8; 4] {
        match self {
            Self::RaptorQ => {
                let block = u8::try_from(generation.index).expect("a segment has 255 source blocks at most");
                raptorq::PayloadId::new(block, esi).expect("ids are below 2^24").to_bytes()
            }
            Self::Raptor10 => {
                let block = u16::try_from(generation.index).expect("a segment has 65535 source blocks at most");
                let ([b0, b1], [e0, e1]) = (block.to_be_bytes(), u16::try_from(esi).expect("ids are below 2^16").to_be_bytes());
                [b0, b1, e0, e1]
            }
        }
    }

    /// The symbol that a FEC payload id names, if it is one of this source block, and not of its padding.
    pub(super) fn esi(self, generation: &Generation, id: [u8; 4]) -> Option<u32> {
        let (block, esi): (u32, u32) = match self {
            Self::RaptorQ => {
                let id = raptorq::PayloadId::from_bytes(id);
                (id.block.into(), id.esi())
            }
            Self::Raptor10 => {
                let [b0, b1, e0, e1] = id;
                (u16::from_be_bytes([b0, b1]).into(), u16::from_be_bytes([e0, e1]).into())
            }
        };
        (generation.index == block && !self.padding(generation).contains(&esi)).then_some(esi)
    }
}

impl fmt::Display for Fountain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RaptorQ => "raptorq",
            Self::Raptor10 => "raptor10",
        })
    }
}

/// Makes encoders of source blocks. Keeps the plan of the last one: most blocks of a file have as many symbols.
#[derive(Debug)]
pub(super) struct Encoders {
    fountain: Fountain,
    kernels: Kernels,
    plan: Option<Plan>,
}

#[derive(Debug)]
enum Plan {
    RaptorQ(raptorq::EncodingPlan),
    Raptor10(raptor10::EncodingPlan),
}

impl Encoders {
    pub(super) fn new(fountain: Fountain, kernels: Kernels) -> Self {
        Self { fountain, kernels, plan: None }
    }

    /// The encoder of a generation with these bytes.
    pub(super) fn encoder(&mut self, generation: &Generation, bytes: &[u8]) -> Encoder {
        let (k, symbol_bytes) = (self.fountain.padding(generation).end, symbol_bytes(generation));
        let mut symbols = vec![0; k as usize * symbol_bytes];
        symbols[..bytes.len()].copy_from_slice(bytes);
        let plan = self.plan.take().filter(|plan| plan.is_for(k)).unwrap_or_else(|| Plan::new(self.fountain, k));
        let encoder = match self.plan.insert(plan) {
            Plan::RaptorQ(plan) => raptorq::Encoder::new(symbols, symbol_bytes, plan, self.kernels).map(Encoder::RaptorQ).ok(),
            Plan::Raptor10(plan) => raptor10::Encoder::new(symbols, symbol_bytes, plan, self.kernels).map(Encoder::Raptor10).ok(),
        };
        encoder.expect("whole symbols, as many as planned for")
    }
}

impl Plan {
    fn new(fountain: Fountain, k: u32) -> Self {
        let plan = match fountain {
            Fountain::RaptorQ => raptorq::EncodingPlan::new(k).map(Self::RaptorQ).ok(),
            Fountain::Raptor10 => raptor10::EncodingPlan::new(k).map(Self::Raptor10).ok(),
        };
        plan.expect("the shape was checked")
    }

    fn is_for(&self, k: u32) -> bool {
        match self {
            Self::RaptorQ(plan) => raptorq::Parameters::new(k).is_ok_and(|parameters| parameters.k_prime == plan.k_prime()),
            Self::Raptor10(plan) => plan.k() == k,
        }
    }
}

/// Makes the symbols of a source block.
#[derive(Debug)]
pub(super) enum Encoder {
    RaptorQ(raptorq::Encoder),
    Raptor10(raptor10::Encoder),
}

impl Encoder {
    pub(super) fn symbol_bytes(&self) -> usize {
        match self {
            Self::RaptorQ(encoder) => encoder.symbol_bytes(),
            Self::Raptor10(encoder) => encoder.symbol_bytes(),
        }
    }

    /// Writes an encoding symbol.
    ///
    /// # Panics
    /// If the id is too large, or `out` is not as long as a symbol.
    pub(super) fn symbol(&self, esi: u32, out: &mut [u8]) {
        match self {
            Self::RaptorQ(encoder) => encoder.symbol(esi, out).expect("an id below 2^24"),
            Self::Raptor10(encoder) => encoder.symbol(esi, out).expect("an id below 2^16"),
        }
    }
}

fn symbol_bytes(generation: &Generation) -> usize {
    usize::try_from(generation.block_bytes).expect("a symbol fits in memory")
}

/// Collects blocks of a generation until they give it.
#[derive(Debug)]
pub(super) enum Collector {
    Vectors(Box<rlnc::Decoder>),
    Symbols(Box<Symbols>),
}

impl Collector {
    /// An empty one for a generation of the segment with this id.
    pub(super) fn new(set: &Set, id: &SegmentId, generation: Generation, kernels: Kernels) -> Self {
        match set.code {
            Code::Rlnc => Self::Vectors(Box::new(rlnc::Decoder::new(generation, row_key(id, &generation), kernels))),
            Code::Fountain(fountain) => Self::Symbols(Box::new(Symbols::new(fountain, generation, kernels))),
        }
    }

    /// Takes a block that was checked against the generation.
    pub(super) fn absorb(&mut self, block: &Labelled) {
        match (self, &block.label) {
            (Self::Vectors(decoder), Label::Vector(vector)) => {
                decoder.absorb(vector, &block.payload).expect("the block was checked against the generation");
            }
            (Self::Symbols(symbols), Label::Symbol(_, esi)) => symbols.absorb(*esi, &block.payload),
            _ => unreachable!("a block is labelled as its code is"),
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.missing() == 0
    }

    /// Blocks that are missing, at least.
    pub(super) fn missing(&self) -> u64 {
        match self {
            Self::Vectors(decoder) => decoder.missing().into(),
            Self::Symbols(symbols) => symbols.missing as u64,
        }
    }

    /// What is there of it and what is not.
    pub(super) fn report(&self) -> String {
        match self {
            Self::Vectors(decoder) => {
                let (index, held, n, missing) = (decoder.generation().index, decoder.rank(), decoder.n(), decoder.missing());
                format!("generation {index}: {held} independent blocks of {n}, {missing} missing")
            }
            Self::Symbols(symbols) => {
                let Symbols { generation: Generation { index, n, .. }, held, missing, .. } = **symbols;
                format!("source block {index}: {held} symbols for {n}, {missing} missing at least")
            }
        }
    }

    /// The generation's bytes, without padding.
    ///
    /// # Panics
    /// If blocks are missing.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Vectors(decoder) => decoder.into_bytes().expect("no block is missing"),
            Self::Symbols(symbols) => {
                let mut bytes = symbols.found.expect("no symbol is missing");
                bytes.truncate(usize::try_from(symbols.generation.length).expect("a generation fits in memory"));
                bytes
            }
        }
    }
}

/// Encoding symbols of a source block.
#[derive(Debug)]
pub(super) struct Symbols {
    generation: Generation,
    decoder: Decoder,
    /// How many have come, without repetitions.
    held: usize,
    /// The block, once it has been found, and how many symbols are missing at least until then.
    found: Option<Vec<u8>>,
    missing: usize,
}

#[derive(Debug)]
enum Decoder {
    RaptorQ(raptorq::Decoder),
    Raptor10(raptor10::Decoder),
}

impl Symbols {
    fn new(fountain: Fountain, generation: Generation, kernels: Kernels) -> Self {
        let (padding, symbol_bytes) = (fountain.padding(&generation), symbol_bytes(&generation));
        let (k, method) = (padding.end, Method::Inactivation);
        let decoder = match fountain {
            Fountain::RaptorQ => raptorq::Decoder::new(k, symbol_bytes, method, kernels).map(Decoder::RaptorQ).ok(),
            Fountain::Raptor10 => raptor10::Decoder::new(k, symbol_bytes, kernels).map(Decoder::Raptor10).ok(),
        };
        let mut decoder = decoder.expect("the shape was checked");
        padding.for_each(|esi| _ = decoder.push(esi, &vec![0; symbol_bytes]));
        Self { generation, decoder, held: 0, found: None, missing: generation.n.into() }
    }

    fn absorb(&mut self, esi: u32, symbol: &[u8]) {
        if self.found.is_some() || !self.decoder.push(esi, symbol) {
            return;
        }
        self.held += 1;
        match self.decoder.decode() {
            Ok(block) => (self.found, self.missing) = (Some(block), 0),
            Err(missing) => self.missing = missing,
        }
    }
}

impl Decoder {
    /// Takes a symbol that was checked against the source block; false if it brings nothing.
    fn push(&mut self, esi: u32, symbol: &[u8]) -> bool {
        let arrival = match self {
            Self::RaptorQ(decoder) => decoder.push(esi, symbol).ok(),
            Self::Raptor10(decoder) => decoder.push(esi, symbol).ok(),
        };
        arrival.expect("the symbol was checked against the source block") == raptorq::Arrival::Kept
    }

    /// The block, or how many symbols are missing at least.
    fn decode(&mut self) -> Result<Vec<u8>, usize> {
        match self {
            Self::RaptorQ(decoder) => decoder.decode().map_err(|error| match error {
                raptorq::Error::Incomplete { missing } => missing,
                error => unreachable!("{error}: symbols of this block are decoded, or too few"),
            }),
            Self::Raptor10(decoder) => decoder.decode().map_err(|error| match error {
                raptor10::Error::Incomplete { missing } => missing,
                error => unreachable!("{error}: symbols of this block are decoded, or too few"),
            }),
        }
    }
}
