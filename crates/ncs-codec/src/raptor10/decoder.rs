//! A source block from the symbols that arrive, by inactivation decoding (RFC 5053, section 5.5.2).

use super::parameters::Parameters;
use super::{ESI_END, Error};
use crate::raptor::{self, Arrival, Held, Plan};
use ncs_gf::Kernels;

/// Collects symbols of one block until the source symbols can be found.
///
/// Keeps K + [`SPARE`](Self::SPARE) symbols at most, in the memory of those that came. When so many do not suffice, those that depend
/// on others are dropped, so that others can come.
#[derive(Debug)]
pub struct Decoder {
    parameters: Parameters,
    kernels: Kernels,
    held: Held,
}

impl Decoder {
    /// Symbols that are kept beyond K.
    pub const SPARE: usize = Held::SPARE;

    /// For a block of `k` source symbols of `symbol_bytes`.
    pub fn new(k: u32, symbol_bytes: usize, kernels: Kernels) -> Result<Self, Error> {
        let parameters = Parameters::new(k)?;
        if symbol_bytes == 0 {
            return Err(Error::Length { length: 0, expected: 1 });
        }
        Ok(Self { parameters, kernels, held: Held::new(k, symbol_bytes) })
    }

    /// The constants of the block.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Takes the encoding symbol `esi`.
    pub fn push(&mut self, esi: u32, symbol: &[u8]) -> Result<Arrival, Error> {
        if esi >= ESI_END {
            return Err(Error::Esi { esi });
        }
        if symbol.len() != self.held.symbol_bytes() {
            return Err(Error::Length { length: symbol.len(), expected: self.held.symbol_bytes() });
        }
        Ok(self.held.push(esi, symbol))
    }

    /// The ids of the symbols that are kept, in the order of arrival.
    pub fn received(&self) -> &[u32] {
        self.held.esis()
    }

    /// Whether there are as many symbols as it takes at least, so that [`decode`](Self::decode) is worth a try.
    pub fn is_ready(&self) -> bool {
        self.held.shortage() == 0
    }

    /// The block, K symbols, unless more symbols are needed. Ask again when one has been kept.
    pub fn decode(&mut self) -> Result<Vec<u8>, Error> {
        self.held.decoded(self.kernels, &self.parameters).map_err(|missing| Error::Incomplete { missing })
    }

    /// The symbols that are kept, in the order of arrival, one behind the other.
    pub fn symbols(&self) -> &[u8] {
        self.held.symbols()
    }

    /// The source symbols that are missing, and what makes them of those that are kept, unless none is, for who replays it himself; or how
    /// many more symbols are needed at least. Ask again when a symbol has been kept.
    pub fn solution(&mut self) -> Result<(Vec<u32>, Option<Plan>), usize> {
        self.held.solution(&self.parameters)
    }

    /// The block, by a plan that was made for symbols of the same ids in the same order.
    pub fn decode_by(&self, plan: &DecodingPlan) -> Result<Vec<u8>, Error> {
        if plan.k != self.parameters.k || plan.esis != self.held.esis() {
            return Err(Error::Mismatch);
        }
        Ok(self.held.rebuilt(self.kernels, &plan.plan, &plan.missing))
    }
}

/// How the source symbols that are missing come from symbols with certain ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodingPlan {
    k: u32,
    esis: Vec<u32>,
    missing: Vec<u32>,
    plan: Plan,
}

impl DecodingPlan {
    /// For a block of `k` source symbols of which symbols with these ids have come, none twice.
    pub fn new(k: u32, esis: &[u32]) -> Result<Self, Error> {
        let parameters = Parameters::new(k)?;
        let missing = raptor::missing(k, ESI_END, esis).map_err(|esi| Error::Esi { esi })?;
        let plan = raptor::decoding_plan(&parameters, esis, &missing);
        let plan = plan.map_err(|deficit| Error::Incomplete { missing: deficit.missing })?;
        Ok(Self { k, esis: esis.to_vec(), missing, plan })
    }

    /// The source symbols that it makes, ascending.
    pub fn missing(&self) -> &[u32] {
        &self.missing
    }

    /// The operations: an input for each id, an output for each missing symbol.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

/// By how much the rank of symbols with these ids, none twice, is too low at least to give a block of `k` source symbols: zero if they
/// do.
pub fn deficit(k: u32, esis: &[u32]) -> Result<usize, Error> {
    let parameters = Parameters::new(k)?;
    raptor::missing(k, ESI_END, esis).map_err(|esi| Error::Esi { esi })?;
    Ok(raptor::deficit(&parameters, esis))
}
