//! Decoding of a source block from received symbols.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::dense;
use super::parameters::Parameters;
use super::{DENSE_K_MAX, ESI_END, Error, Method};
use crate::raptor::{self, Arrival, Held, Plan};
use ncs_gf::Kernels;
use ncs_gf::dense::{Algebra, Cores};

/// Collects symbols of one block until the source symbols can be found.
///
/// Stores at most K + [`SPARE`](Self::SPARE) symbols, and allocates memory as they arrive. If so
/// many do not suffice, symbols that depend on others are dropped to make room.
#[derive(Debug)]
pub struct Decoder {
    parameters: Parameters,
    method: Method,
    kernels: Kernels,
    algebra: Arc<dyn Algebra>,
    held: Held,
}

impl Decoder {
    /// Maximum number of symbols stored beyond K. Two are too few once in a million blocks.
    pub const SPARE: usize = Held::SPARE;

    /// A decoder for a block of `k` source symbols of `symbol_bytes`.
    pub fn new(k: u32, symbol_bytes: usize, method: Method, kernels: Kernels) -> Result<Self, Error> {
        let parameters = Parameters::new(k)?;
        match &method {
            Method::Inactivation => (),
            Method::Inversion | Method::Reduction(_) if k > DENSE_K_MAX => return Err(Error::Dense { k }),
            Method::Inversion => (),
            Method::Reduction(inverse) if inverse.k_prime() == parameters.k_prime => (),
            Method::Reduction(_) => return Err(Error::Mismatch),
        }
        if symbol_bytes == 0 {
            return Err(Error::Length { length: 0, expected: 1 });
        }
        let algebra = Arc::new(Cores::new(kernels, NonZeroUsize::MIN));
        Ok(Self { parameters, method, kernels, algebra, held: Held::new(k, symbol_bytes) })
    }

    /// The same decoder, with `algebra` (several threads, or a card) for inverting and multiplying
    /// dense matrices. The default is one thread. Inactivation does not use it.
    pub fn with_algebra(self, algebra: Arc<dyn Algebra>) -> Self {
        Self { algebra, ..self }
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

    /// The block, K symbols, unless more symbols are needed, or the algebra has failed. Call again
    /// when a symbol has been stored.
    pub fn decode(&mut self) -> Result<Vec<u8>, Error> {
        match &self.method {
            Method::Inactivation => {
                self.held.decoded(self.kernels, &self.parameters).map_err(|missing| Error::Incomplete { missing })
            }
            Method::Inversion => self.decode_densely(dense::invert),
            Method::Reduction(inverse) => {
                let inverse = Arc::clone(inverse);
                self.decode_densely(|parameters, received, missing, outs, kernels, algebra| {
                    inverse.reduce(parameters, received, missing, outs, kernels, algebra)
                })
            }
        }
    }

    fn decode_densely(
        &mut self,
        solve: impl FnOnce(&Parameters, dense::Received<'_>, &[u32], &mut [&mut [u8]], Kernels, &dyn Algebra) -> Result<(), Error>,
    ) -> Result<Vec<u8>, Error> {
        if !self.is_ready() {
            return Err(Error::Incomplete { missing: self.held.shortage() });
        }
        let mut block = self.held.block();
        let missing = self.held.missing();
        if missing.is_empty() {
            return Ok(block);
        }
        let mut outs = self.held.places(&mut block, &missing);
        let (symbols, esis, symbol_bytes) = (self.held.symbols(), self.held.esis(), self.held.symbol_bytes());
        let received = dense::Received { symbols, esis, symbol_bytes };
        if let Err(error) = solve(&self.parameters, received, &missing, &mut outs, self.kernels, self.algebra.as_ref()) {
            self.held.make_room(&self.parameters);
            return Err(error);
        }
        Ok(block)
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
