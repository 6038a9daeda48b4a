//! Encoding symbols of a source block.

use super::parameters::Parameters;
use super::{ESI_END, Error};
use crate::raptor::{self, Block, Plan};
use ncs_gf::Kernels;

/// A plan that makes the intermediate symbols of a block from its source symbols: the same for all
/// blocks of a K. Keep it, because making it takes longer than using it once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodingPlan {
    k: u32,
    plan: Plan,
}

impl EncodingPlan {
    /// A plan for blocks of `k` source symbols.
    pub fn new(k: u32) -> Result<Self, Error> {
        Ok(Self { k, plan: raptor::encoding_plan(&Parameters::new(k)?) })
    }

    /// K, the source symbols.
    pub fn k(&self) -> u32 {
        self.k
    }

    /// The operations: K inputs, L outputs, the intermediate symbols.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The same, for callers that replay the operations themselves.
    pub fn into_plan(self) -> Plan {
        self.plan
    }
}

impl Parameters {
    /// The intermediate symbols that add up to encoding symbol `esi`.
    pub fn columns_of(&self, esi: u32) -> Vec<u32> {
        raptor::columns(self, esi)
    }
}

/// Makes encoding symbols of one source block.
#[derive(Debug)]
pub struct Encoder {
    parameters: Parameters,
    block: Block,
}

impl Encoder {
    /// An encoder for a block, whole symbols of `symbol_bytes`, with a plan for as many.
    pub fn new(source: Vec<u8>, symbol_bytes: usize, plan: &EncodingPlan, kernels: Kernels) -> Result<Self, Error> {
        let length = source.len();
        let k = raptor::count(length, symbol_bytes).map_err(|expected| Error::Length { length, expected })?;
        let parameters = Parameters::new(k)?;
        if k != plan.k {
            return Err(Error::Mismatch);
        }
        Ok(Self { parameters, block: Block::new(&parameters, source, symbol_bytes, &plan.plan, kernels) })
    }

    /// The constants of the block.
    pub fn parameters(&self) -> &Parameters {
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
    pub fn symbol(&self, esi: u32, out: &mut [u8]) -> Result<(), Error> {
        if esi >= ESI_END {
            return Err(Error::Esi { esi });
        }
        self.block.symbol(&self.parameters, esi, out);
        Ok(())
    }

    /// The sum of some intermediate symbols.
    #[cfg(test)]
    pub(super) fn sum(&self, columns: &[u32], out: &mut [u8]) {
        self.block.sum(columns, out);
    }
}
