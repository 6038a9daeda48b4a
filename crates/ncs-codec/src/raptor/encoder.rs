//! Encoding symbols of a source block.

use super::block::{Block, count};
use super::code::{Code, Refusal};
use super::plan::Plan;
use super::planning::encoding_plan;
use ncs_gf::Kernels;

/// A plan that makes the intermediate symbols of a block from its source symbols: the same for all
/// blocks of a K', with Raptor10 of a K. Keep it, because making it takes as long as using it once,
/// or longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodingPlan<C> {
    /// Of a block without padding.
    parameters: C,
    plan: Plan,
}

impl<C: Code> EncodingPlan<C> {
    /// A plan for blocks of `k` source symbols, and all others of the same K'.
    pub fn new(k: u32) -> Result<Self, C::Error> {
        let parameters = C::of(C::of(k)?.size().k_prime)?;
        Ok(Self {
            parameters,
            plan: encoding_plan(&parameters),
        })
    }

    /// K', the source symbols with padding. Raptor10 has no padding.
    pub fn k_prime(&self) -> u32 {
        self.parameters.size().k_prime
    }

    /// The operations: K' inputs, L outputs, the intermediate symbols.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The same, for callers that replay the operations themselves.
    pub fn into_plan(self) -> Plan {
        self.plan
    }
}

/// Makes encoding symbols of one source block.
#[derive(Debug)]
pub struct Encoder<C> {
    parameters: C,
    block: Block,
}

impl<C: Code> Encoder<C> {
    /// An encoder for a block, whole symbols of `symbol_bytes`, with a plan for as many.
    pub fn new(
        source: Vec<u8>,
        symbol_bytes: usize,
        plan: &EncodingPlan<C>,
        kernels: Kernels,
    ) -> Result<Self, C::Error> {
        let length = source.len();
        let k =
            count(length, symbol_bytes).map_err(|expected| Refusal::Length { length, expected })?;
        let parameters = C::of(k)?;
        if parameters.size().k_prime != plan.k_prime() {
            return Err(Refusal::Mismatch.into());
        }
        Ok(Self {
            parameters,
            block: Block::new(&parameters, source, symbol_bytes, &plan.plan, kernels),
        })
    }

    /// The constants of the block.
    pub fn parameters(&self) -> &C {
        &self.parameters
    }

    /// Bytes of a symbol.
    pub fn symbol_bytes(&self) -> usize {
        self.block.symbol_bytes()
    }

    /// Writes the encoding symbol `esi`: below K the source symbol, from K on a repair symbol.
    ///
    /// # Panics
    /// If `out` is not as long as a symbol.
    pub fn symbol(&self, esi: u32, out: &mut [u8]) -> Result<(), C::Error> {
        if esi >= C::ESI_END {
            return Err(Refusal::Esi { esi }.into());
        }
        self.block.symbol(&self.parameters, esi, out);
        Ok(())
    }

    /// The sum of some intermediate symbols.
    #[cfg(test)]
    pub(crate) fn sum(&self, columns: &[u32], out: &mut [u8]) {
        self.block.sum(columns, out);
    }
}
