//! Encoding symbols of a source block.

use super::parameters::Parameters;
use super::plan::{Plan, Wanted};
use super::rows::Rows;
use super::solution::Solution;
use super::{ESI_END, Error};
use crate::gf::Kernels;
use crate::gf::simd::Line;

/// How the intermediate symbols of a block come from its source symbols: the same for all blocks of a K'. Worth keeping, as it takes
/// about as long to make as to use once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodingPlan {
    k_prime: u32,
    plan: Plan,
}

impl EncodingPlan {
    /// For blocks of `k` source symbols, and all others of the same K'.
    pub fn new(k: u32) -> Result<Self, Error> {
        let parameters = Parameters::new(Parameters::new(k)?.k_prime)?;
        let rows = Rows::new(&parameters, 0..parameters.k_prime);
        let solution = Solution::new(&parameters, &rows).expect("the systematic index makes the system regular");
        let inputs: Vec<Option<u32>> = (0..parameters.k_prime).map(Some).collect();
        let plan = Plan::new(&parameters, &rows, &solution, &inputs, Wanted::Intermediate);
        Ok(Self { k_prime: parameters.k_prime, plan })
    }

    /// K', the source symbols with padding.
    pub fn k_prime(&self) -> u32 {
        self.k_prime
    }

    /// The operations: K' inputs, L outputs, the intermediate symbols.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

/// Makes encoding symbols of one source block.
#[derive(Debug)]
pub struct Encoder {
    parameters: Parameters,
    symbol_bytes: usize,
    kernels: Kernels,
    source: Vec<u8>,
    /// The intermediate symbols, each on whole cache lines.
    intermediate: Vec<Line>,
}

impl Encoder {
    /// Takes a block, whole symbols of `symbol_bytes`, and a plan for as many.
    pub fn new(source: Vec<u8>, symbol_bytes: usize, plan: &EncodingPlan, kernels: Kernels) -> Result<Self, Error> {
        let k = count(source.len(), symbol_bytes)?;
        let parameters = Parameters::new(k)?;
        if parameters.k_prime != plan.k_prime {
            return Err(Error::Mismatch);
        }
        let stride = symbol_bytes.div_ceil(Line::BYTES);
        let mut intermediate = vec![Line::ZERO; stride * parameters.l as usize];
        let symbols = intermediate.chunks_exact_mut(stride).map(|lines| &mut Line::bytes_mut(lines)[..symbol_bytes]);
        plan.plan.apply(kernels, &source, &mut symbols.collect::<Vec<_>>());
        Ok(Self { parameters, symbol_bytes, kernels, source, intermediate })
    }

    /// The constants of the block.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Bytes of a symbol.
    pub fn symbol_bytes(&self) -> usize {
        self.symbol_bytes
    }

    /// Writes the encoding symbol `esi`: below K the source symbol, from there on a repair symbol.
    ///
    /// # Panics
    /// If `out` is not as long as a symbol.
    pub fn symbol(&self, esi: u32, out: &mut [u8]) -> Result<(), Error> {
        assert_eq!(out.len(), self.symbol_bytes, "a symbol");
        if esi >= ESI_END {
            return Err(Error::Esi { esi });
        }
        if esi < self.parameters.k {
            out.copy_from_slice(&self.source[esi as usize * self.symbol_bytes..][..self.symbol_bytes]);
            return Ok(());
        }
        let mut columns = Vec::with_capacity(32);
        self.parameters.columns(self.parameters.isi(esi), &mut columns);
        self.sum(&columns, out);
        Ok(())
    }

    /// The sum of some intermediate symbols.
    pub(super) fn sum(&self, columns: &[u32], out: &mut [u8]) {
        let stride = self.symbol_bytes.div_ceil(Line::BYTES);
        let symbol = |column: u32| &Line::bytes(&self.intermediate[column as usize * stride..][..stride])[..self.symbol_bytes];
        let (first, others) = columns.split_first().expect("a symbol is a sum of some");
        out.copy_from_slice(symbol(*first));
        others.iter().for_each(|&column| self.kernels.add(out, symbol(column)));
    }
}

/// Symbols in a block of so many bytes.
fn count(length: usize, symbol_bytes: usize) -> Result<u32, Error> {
    if symbol_bytes == 0 || !length.is_multiple_of(symbol_bytes) {
        let expected = length.checked_div(symbol_bytes).unwrap_or_default() * symbol_bytes;
        return Err(Error::Length { length, expected });
    }
    let k = length / symbol_bytes;
    u32::try_from(k).map_err(|_| Error::Symbols { k: u32::MAX })
}
