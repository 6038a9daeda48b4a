//! Generations as block files have them, whichever the code: what makes their symbols, and what collects their blocks until they suffice.
//!
//! Raptor10 knows no source block of fewer than four symbols, but files end as they do. Such a block is filled up with symbols of zeros. Both
//! sides know these, so they are never written.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ncs_codec::raptorq::{Method, Plan};
use ncs_codec::rlnc::{self};
use ncs_codec::{raptor10, raptorq};
use ncs_gf::Kernels;
use ncserverd::object::row_key;
use ncserverd::object::{Generation, SegmentId, Shape, ShapeError};

use crate::block_file::{Code, Label, Labelled, Set};

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

    /// Symbols that a plan for intermediate symbols is given, of k source symbols.
    fn inputs(self, k: u32) -> u32 {
        match self {
            Self::RaptorQ => raptorq::Parameters::new(k).map_or(k, |parameters| parameters.k_prime),
            Self::Raptor10 => k,
        }
    }

    /// Intermediate symbols of k source symbols.
    fn intermediate(self, k: u32) -> u32 {
        match self {
            Self::RaptorQ => raptorq::Parameters::new(k).map_or(0, |parameters| parameters.l),
            Self::Raptor10 => raptor10::Parameters::new(k).map_or(0, |parameters| parameters.l),
        }
    }

    /// The room that source blocks of such shapes need.
    pub(super) fn room<'a>(self, shapes: impl Iterator<Item = &'a Shape>) -> Room {
        let (mut room, mut k_max) = (Room::default(), 1);
        for shape in shapes {
            room.blocks = room.blocks.max(shape.generations() as usize);
            // The first one is one of the largest.
            let Some(first) = shape.generation(0) else { continue };
            (room.symbol_bytes, k_max) = (symbol_bytes(&first), k_max.max(self.padding(&first).end));
        }
        let count = |number: u32| number as usize;
        room.source = count(k_max);
        (room.inputs, room.intermediate) = (count(self.inputs(k_max)), count(self.intermediate(k_max)));
        room.received = room.source + count(if self == Self::RaptorQ { SPARE_RAPTORQ } else { SPARE_RAPTOR10 });
        room
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

/// For the source blocks of a segment at most: how many they are, and of each the symbols that are read to encode it, the intermediate
/// ones, those that are read to decode it, and its own.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Room {
    pub(super) blocks: usize,
    pub(super) symbol_bytes: usize,
    pub(super) inputs: usize,
    pub(super) intermediate: usize,
    pub(super) received: usize,
    pub(super) source: usize,
}

impl fmt::Display for Fountain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RaptorQ => "raptorq",
            Self::Raptor10 => "raptor10",
        })
    }
}

/// The plans for intermediate symbols. Source blocks of a file have few different numbers of symbols.
#[derive(Debug)]
pub(super) struct Plans {
    fountain: Fountain,
    /// By K', or K.
    plans: Vec<(u32, Arc<Plan>)>,
}

impl Plans {
    pub(super) const fn new(fountain: Fountain) -> Self {
        Self { fountain, plans: Vec::new() }
    }

    /// What makes the intermediate symbols of a generation.
    pub(super) fn plan(&mut self, generation: &Generation) -> Arc<Plan> {
        let k = self.fountain.padding(generation).end;
        let key = self.fountain.inputs(k);
        if let Some((_, plan)) = self.plans.iter().find(|(other, _)| *other == key) {
            return Arc::clone(plan);
        }
        let plan = match self.fountain {
            Fountain::RaptorQ => raptorq::EncodingPlan::new(k).map(raptorq::EncodingPlan::into_plan).ok(),
            Fountain::Raptor10 => raptor10::EncodingPlan::new(k).map(raptor10::EncodingPlan::into_plan).ok(),
        };
        let plan = Arc::new(plan.expect("the shape was checked"));
        self.plans.push((key, Arc::clone(&plan)));
        plan
    }
}

/// Source and intermediate symbols of a source block, of which its encoding symbols are made.
#[derive(Debug)]
pub(super) struct Source<'a> {
    parameters: Parameters,
    symbol_bytes: usize,
    source: &'a [u8],
    intermediate: &'a [u8],
    kernels: Kernels,
}

#[derive(Debug)]
enum Parameters {
    RaptorQ(raptorq::Parameters),
    Raptor10(raptor10::Parameters),
}

impl<'a> Source<'a> {
    /// Of a generation; both kinds of symbols are one behind the other.
    pub(super) fn new(
        fountain: Fountain,
        generation: &Generation,
        source: &'a [u8],
        intermediate: &'a [u8],
        kernels: Kernels,
    ) -> Self {
        let (k, symbol_bytes) = (fountain.padding(generation).end, symbol_bytes(generation));
        let parameters = match fountain {
            Fountain::RaptorQ => raptorq::Parameters::new(k).map(Parameters::RaptorQ).ok(),
            Fountain::Raptor10 => raptor10::Parameters::new(k).map(Parameters::Raptor10).ok(),
        };
        let source = &source[..k as usize * symbol_bytes];
        Self { parameters: parameters.expect("the shape was checked"), symbol_bytes, source, intermediate, kernels }
    }

    /// Writes an encoding symbol, whose id is not too large.
    ///
    /// # Panics
    /// If `out` is not as long as a symbol.
    pub(super) fn symbol(&self, esi: u32, out: &mut [u8]) {
        if let Some(symbol) = self.source.chunks_exact(self.symbol_bytes).nth(esi as usize) {
            return out.copy_from_slice(symbol);
        }
        let columns = match &self.parameters {
            Parameters::RaptorQ(parameters) => parameters.columns_of(esi),
            Parameters::Raptor10(parameters) => parameters.columns_of(esi),
        };
        out.fill(0);
        for column in columns {
            self.kernels.add(out, &self.intermediate[column as usize * self.symbol_bytes..][..self.symbol_bytes]);
        }
    }
}

pub(super) fn symbol_bytes(generation: &Generation) -> usize {
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
            Code::Rlnc => Self::Vectors(Box::new(rlnc::Decoder::gathering(generation, row_key(id, &generation), kernels))),
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
                format!("source block {index}: {held} of {n} symbols, at least {missing} missing")
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
    /// How the block is found, once it can be, and how many symbols are missing at least until then.
    found: Option<Found>,
    missing: usize,
}

/// The source symbols that are missing, ascending, and what makes them of those that came, unless none is.
pub(super) type Found = (Vec<u32>, Option<Plan>);

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
        match self.decoder.solution() {
            Ok(found) => (self.found, self.missing) = (Some(found), 0),
            Err(missing) => self.missing = missing,
        }
    }

    pub(super) fn generation(&self) -> &Generation {
        &self.generation
    }

    /// The ids of the symbols that came, those of padding in front, and the symbols, one behind the other.
    pub(super) fn received(&self) -> (&[u32], &[u8]) {
        match &self.decoder {
            Decoder::RaptorQ(decoder) => (decoder.received(), decoder.symbols()),
            Decoder::Raptor10(decoder) => (decoder.received(), decoder.symbols()),
        }
    }

    /// How the block is found.
    ///
    /// # Panics
    /// If symbols are missing, or it has been asked before.
    pub(super) fn take_found(&mut self) -> Found {
        self.found.take().expect("no symbol is missing")
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

    /// How the block is found, or how many symbols are missing at least.
    fn solution(&mut self) -> Result<Found, usize> {
        match self {
            Self::RaptorQ(decoder) => decoder.solution(),
            Self::Raptor10(decoder) => decoder.solution(),
        }
    }
}

/// Symbols beyond K for which there is room where a block is decoded. One in a million blocks of RaptorQ needs more, and one in some hundreds of
/// Raptor10.
const SPARE_RAPTORQ: u32 = 2;
const SPARE_RAPTOR10: u32 = 8;
