//! Decoding of a source block from received symbols, by inactivation decoding (RFC 5053, section
//! 5.5.2).

use super::parameters::Parameters;
use super::{ESI_END, Error};
use crate::raptor::{self, Arrival, Held, Plan};
use ncs_gf::Kernels;

/// Collects symbols of one block until the source symbols can be found.
///
/// Stores at most K + [`SPARE`](Self::SPARE) symbols, and allocates memory as they arrive. If so
/// many do not suffice, symbols that depend on others are dropped to make room.
#[derive(Debug)]
pub struct Decoder {
    parameters: Parameters,
    kernels: Kernels,
    held: Held,
}

impl Decoder {
    /// Maximum number of symbols stored beyond K.
    pub const SPARE: usize = Held::SPARE;

    /// A decoder for a block of `k` source symbols of `symbol_bytes`.
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

    /// Stores the encoding symbol `esi`.
    pub fn push(&mut self, esi: u32, symbol: &[u8]) -> Result<Arrival, Error> {
        if esi >= ESI_END {
            return Err(Error::Esi { esi });
        }
        if symbol.len() != self.held.symbol_bytes() {
            return Err(Error::Length { length: symbol.len(), expected: self.held.symbol_bytes() });
        }
        Ok(self.held.push(esi, symbol))
    }

    /// The ids of the stored symbols, in the order of arrival.
    pub fn received(&self) -> &[u32] {
        self.held.esis()
    }

    /// Whether the minimum number of symbols has arrived, so that [`decode`](Self::decode) may
    /// succeed.
    pub fn is_ready(&self) -> bool {
        self.held.shortage() == 0
    }

    /// The block, K symbols, unless more symbols are needed. Call again when a symbol has been
    /// stored.
    pub fn decode(&mut self) -> Result<Vec<u8>, Error> {
        self.held.decoded(self.kernels, &self.parameters).map_err(|missing| Error::Incomplete { missing })
    }

    /// The stored symbols, in the order of arrival, one after the other.
    pub fn symbols(&self) -> &[u8] {
        self.held.symbols()
    }

    /// For callers that replay a plan themselves: the missing source symbols, and the plan that
    /// makes them from the stored ones (`None` if none is missing); or a lower bound of the number
    /// of symbols still needed. Call again when a symbol has been stored.
    pub fn solution(&mut self) -> Result<(Vec<u32>, Option<Plan>), usize> {
        self.held.solution(&self.parameters)
    }

    /// The block, decoded by a plan made for symbols with the same ids in the same order.
    pub fn decode_by(&self, plan: &DecodingPlan) -> Result<Vec<u8>, Error> {
        if plan.k != self.parameters.k || plan.esis != self.held.esis() {
            return Err(Error::Mismatch);
        }
        Ok(self.held.rebuilt(self.kernels, &plan.plan, &plan.missing))
    }
}

/// A plan that makes the missing source symbols from symbols with certain ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodingPlan {
    k: u32,
    esis: Vec<u32>,
    missing: Vec<u32>,
    plan: Plan,
}

impl DecodingPlan {
    /// A plan for a block of `k` source symbols, from received symbols with these ids, none twice.
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

/// Lower bound of the rank deficit of symbols with these ids, none twice, for a block of `k` source
/// symbols; zero if they determine it.
pub fn deficit(k: u32, esis: &[u32]) -> Result<usize, Error> {
    let parameters = Parameters::new(k)?;
    raptor::missing(k, ESI_END, esis).map_err(|esi| Error::Esi { esi })?;
    Ok(raptor::deficit(&parameters, esis))
}
