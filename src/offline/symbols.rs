//! Generations as block files have them, whichever the code: what makes their blocks, and what collects them.

use super::block_file::{Code, Label, Labelled, Set};
use crate::codec::raptorq::{self, EncodingPlan, Method};
use crate::codec::rlnc::{self, row_key};
use crate::gf::Kernels;
use crate::object::{Generation, SegmentId};

/// Makes encoders of source blocks. Keeps the plan of the last one: most blocks of a file have as many symbols.
#[derive(Debug)]
pub(super) struct Encoders {
    kernels: Kernels,
    plan: Option<EncodingPlan>,
}

impl Encoders {
    pub(super) fn new(kernels: Kernels) -> Self {
        Self { kernels, plan: None }
    }

    /// The encoder of a generation with these bytes.
    pub(super) fn encoder(&mut self, generation: &Generation, bytes: &[u8]) -> raptorq::Encoder {
        let (k, symbol_bytes) = (u32::from(generation.n), symbol_bytes(generation));
        let plan = self.plan.take().filter(|plan| raptorq::Parameters::new(k).is_ok_and(|of_k| of_k.k_prime == plan.k_prime()));
        let plan = self.plan.insert(plan.unwrap_or_else(|| EncodingPlan::new(k).expect("the shape was checked")));
        raptorq::Encoder::new(padded(generation, bytes), symbol_bytes, plan, self.kernels)
            .expect("whole symbols, as many as planned for")
    }
}

/// The bytes of a generation with zeros behind them.
fn padded(generation: &Generation, bytes: &[u8]) -> Vec<u8> {
    let mut symbols = Vec::with_capacity(usize::from(generation.n) * symbol_bytes(generation));
    symbols.extend_from_slice(bytes);
    symbols.resize(symbols.capacity(), 0);
    symbols
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

/// Encoding symbols of a source block.
#[derive(Debug)]
pub(super) struct Symbols {
    generation: Generation,
    decoder: raptorq::Decoder,
    /// The block, once it has been found, and how many symbols are missing at least until then.
    found: Option<Vec<u8>>,
    missing: usize,
}

impl Collector {
    /// An empty one for a generation of the segment with this id.
    pub(super) fn new(set: &Set, id: &SegmentId, generation: Generation, kernels: Kernels) -> Self {
        match set.code {
            Code::Rlnc => Self::Vectors(Box::new(rlnc::Decoder::new(generation, row_key(id, &generation), kernels))),
            Code::RaptorQ => {
                let (k, symbol_bytes) = (u32::from(generation.n), symbol_bytes(&generation));
                let decoder = raptorq::Decoder::new(k, symbol_bytes, Method::Inactivation, kernels);
                let decoder = decoder.expect("the shape was checked");
                Self::Symbols(Box::new(Symbols { generation, decoder, found: None, missing: generation.n.into() }))
            }
        }
    }

    /// Takes a block that was checked against the generation.
    pub(super) fn absorb(&mut self, block: &Labelled) {
        match (self, &block.label) {
            (Self::Vectors(decoder), Label::Vector(vector)) => {
                decoder.absorb(vector, &block.payload).expect("the block was checked against the generation");
            }
            (Self::Symbols(symbols), Label::Symbol(esi)) => symbols.absorb(*esi, &block.payload),
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
                let (Generation { index, n, .. }, held) = (symbols.generation, symbols.decoder.received().len());
                format!("source block {index}: {held} symbols for {n}, {} missing at least", symbols.missing)
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

impl Symbols {
    fn absorb(&mut self, esi: u32, symbol: &[u8]) {
        let arrival = self.decoder.push(esi, symbol).expect("the symbol was checked against the source block");
        if arrival != raptorq::Arrival::Kept || self.found.is_some() {
            return;
        }
        match self.decoder.decode() {
            Ok(block) => (self.found, self.missing) = (Some(block), 0),
            Err(raptorq::Error::Incomplete { missing }) => self.missing = missing,
            Err(error) => unreachable!("{error}: symbols of this block are decoded, or too few"),
        }
    }
}
