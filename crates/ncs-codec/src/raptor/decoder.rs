//! Decoding of a source block from received symbols.

use super::code::{Code, Refusal};
use super::held::{Arrival, Held, missing};
use super::plan::Plan;
use super::planning;
use ncs_gf::Kernels;

/// Collects symbols of one block until the source symbols can be found.
///
/// Stores at most K + [`SPARE`](Self::SPARE) symbols, and allocates memory as they arrive. If so
/// many do not suffice, symbols that depend on others are dropped to make room.
#[derive(Debug)]
pub struct Decoder<C: Code> {
    parameters: C,
    pub(crate) solver: C::Solver,
    kernels: Kernels,
    held: Held,
}

impl<C: Code> Decoder<C> {
    /// Maximum number of symbols stored beyond K. With RaptorQ, two are too few once in a million
    /// blocks.
    pub const SPARE: usize = Held::SPARE;

    /// A decoder for a block with these constants, of symbols of `symbol_bytes`.
    pub(crate) fn with_solver(
        parameters: C,
        symbol_bytes: usize,
        solver: C::Solver,
        kernels: Kernels,
    ) -> Result<Self, C::Error> {
        if symbol_bytes == 0 {
            return Err(Refusal::Length {
                length: 0,
                expected: 1,
            }
            .into());
        }
        let held = Held::new(parameters.size().k, symbol_bytes);
        Ok(Self {
            parameters,
            solver,
            kernels,
            held,
        })
    }

    /// The constants of the block.
    pub fn parameters(&self) -> &C {
        &self.parameters
    }

    /// Stores the encoding symbol `esi`.
    pub fn push(&mut self, esi: u32, symbol: &[u8]) -> Result<Arrival, C::Error> {
        if esi >= C::ESI_END {
            return Err(Refusal::Esi { esi }.into());
        }
        if symbol.len() != self.held.symbol_bytes() {
            return Err(Refusal::Length {
                length: symbol.len(),
                expected: self.held.symbol_bytes(),
            }
            .into());
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

    /// The block, K symbols, unless more symbols are needed, or dense algebra has failed. Call
    /// again when a symbol has been stored.
    pub fn decode(&mut self) -> Result<Vec<u8>, C::Error> {
        self.parameters
            .decode(&self.solver, &mut self.held, self.kernels)
    }

    /// The stored symbols, in the order of arrival, one after the other.
    pub fn symbols(&self) -> &[u8] {
        self.held.symbols()
    }

    /// For callers that replay a plan themselves: the missing source symbols, and the plan that
    /// makes them from the stored ones (`None` if none is missing), always by inactivation; or a
    /// lower bound of the number of symbols still needed. Call again when a symbol has been stored.
    pub fn solution(&mut self) -> Result<(Vec<u32>, Option<Plan>), usize> {
        self.held.solution(&self.parameters)
    }

    /// The block, decoded by a plan made for symbols with the same ids in the same order.
    pub fn decode_by(&self, plan: &DecodingPlan<C>) -> Result<Vec<u8>, C::Error> {
        if plan.parameters != self.parameters || plan.esis != self.held.esis() {
            return Err(Refusal::Mismatch.into());
        }
        Ok(self.held.rebuilt(self.kernels, &plan.plan, &plan.missing))
    }
}

/// A plan that makes the missing source symbols from symbols with certain ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodingPlan<C> {
    parameters: C,
    esis: Vec<u32>,
    missing: Vec<u32>,
    plan: Plan,
}

impl<C: Code> DecodingPlan<C> {
    /// A plan for a block of `k` source symbols, from received symbols with these ids, none twice.
    pub fn new(k: u32, esis: &[u32]) -> Result<Self, C::Error> {
        let parameters = C::of(k)?;
        let missing = missing(k, C::ESI_END, esis).map_err(|esi| Refusal::Esi { esi })?;
        let plan = planning::decoding_plan(&parameters, esis, &missing);
        let plan = plan.map_err(|deficit| Refusal::Incomplete {
            missing: deficit.missing,
        })?;
        Ok(Self {
            parameters,
            esis: esis.to_vec(),
            missing,
            plan,
        })
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
pub fn deficit<C: Code>(k: u32, esis: &[u32]) -> Result<usize, C::Error> {
    let parameters = C::of(k)?;
    missing(k, C::ESI_END, esis).map_err(|esi| Refusal::Esi { esi })?;
    Ok(planning::deficit(&parameters, esis))
}
