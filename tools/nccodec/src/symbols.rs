//! Generations as block files have them, whichever the code: what makes their symbols, and what
//! collects their blocks until they suffice.

use std::sync::Arc;

use ncs_codec::raptorq::{Method, Plan};
use ncs_codec::{raptor10, raptorq, rlnc};
use ncs_gf::Kernels;
use ncs_proto::object::{Generation, SegmentId, row_key};

use crate::block_file::{Code, Label, Labelled, Set};
use crate::fountain::{Fountain, symbol_bytes};

/// The plans for intermediate symbols. Source blocks of a file have few different numbers of
/// symbols.
#[derive(Debug)]
pub(super) struct Plans {
    fountain: Fountain,
    /// By K', or K.
    plans: Vec<(u32, Arc<Plan>)>,
}

impl Plans {
    pub(super) const fn new(fountain: Fountain) -> Self {
        Self {
            fountain,
            plans: Vec::new(),
        }
    }

    /// What makes the intermediate symbols of a generation.
    pub(super) fn plan(&mut self, generation: &Generation) -> Arc<Plan> {
        let k = self.fountain.padding(generation).end;
        let key = self.fountain.inputs(k);
        if let Some((_, plan)) = self.plans.iter().find(|(other, _)| *other == key) {
            return Arc::clone(plan);
        }
        let plan = match self.fountain {
            Fountain::RaptorQ => raptorq::EncodingPlan::new(k)
                .map(raptorq::EncodingPlan::into_plan)
                .ok(),
            Fountain::Raptor10 => raptor10::EncodingPlan::new(k)
                .map(raptor10::EncodingPlan::into_plan)
                .ok(),
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
        Self {
            parameters: parameters.expect("the shape was checked"),
            symbol_bytes,
            source,
            intermediate,
            kernels,
        }
    }

    /// Writes an encoding symbol, whose id is not too large.
    ///
    /// # Panics
    /// If `out` is not as long as a symbol.
    pub(super) fn symbol(&self, esi: u32, out: &mut [u8]) {
        if let Some(symbol) = self
            .source
            .chunks_exact(self.symbol_bytes)
            .nth(esi as usize)
        {
            return out.copy_from_slice(symbol);
        }
        let columns = match &self.parameters {
            Parameters::RaptorQ(parameters) => parameters.columns_of(esi),
            Parameters::Raptor10(parameters) => parameters.columns_of(esi),
        };
        out.fill(0);
        for column in columns {
            self.kernels.add(
                out,
                &self.intermediate[column as usize * self.symbol_bytes..][..self.symbol_bytes],
            );
        }
    }
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
            Code::Rlnc => Self::Vectors(Box::new(rlnc::Decoder::gathering(
                generation,
                row_key(id, &generation),
                kernels,
            ))),
            Code::Fountain(fountain) => {
                Self::Symbols(Box::new(Symbols::new(fountain, generation, kernels)))
            }
        }
    }

    /// Takes a block that was checked against the generation.
    pub(super) fn absorb(&mut self, block: &Labelled) {
        match (self, &block.label) {
            (Self::Vectors(decoder), Label::Vector(vector)) => {
                decoder
                    .absorb(vector, &block.payload)
                    .expect("the block was checked against the generation");
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
                let (index, held, n, missing) = (
                    decoder.generation().index,
                    decoder.rank(),
                    decoder.n(),
                    decoder.missing(),
                );
                format!("generation {index}: {held} independent blocks of {n}, {missing} missing")
            }
            Self::Symbols(symbols) => {
                let Symbols {
                    generation: Generation { index, n, .. },
                    held,
                    missing,
                    ..
                } = **symbols;
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
    /// How the block is found, once it can be, and how many symbols are missing at least until
    /// then.
    found: Option<Found>,
    missing: usize,
}

/// The source symbols that are missing, ascending, and what makes them of those that came, unless
/// none is.
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
            Fountain::RaptorQ => raptorq::Decoder::new(k, symbol_bytes, method, kernels)
                .map(Decoder::RaptorQ)
                .ok(),
            Fountain::Raptor10 => raptor10::Decoder::new(k, symbol_bytes, kernels)
                .map(Decoder::Raptor10)
                .ok(),
        };
        let mut decoder = decoder.expect("the shape was checked");
        padding.for_each(|esi| _ = decoder.push(esi, &vec![0; symbol_bytes]));
        Self {
            generation,
            decoder,
            held: 0,
            found: None,
            missing: generation.n.into(),
        }
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

    /// The ids of the symbols that came, those of padding in front, and the symbols, one behind the
    /// other.
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
