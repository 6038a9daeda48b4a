//! A source block with its intermediate symbols, of which all encoding symbols are sums.

use super::plan::Plan;
use super::system::{System, columns};
use ncs_gf::Kernels;
use ncs_gf::simd::Line;

/// Source symbols, and intermediate symbols, each of the latter on whole cache lines.
#[derive(Debug)]
pub(crate) struct Block {
    symbol_bytes: usize,
    kernels: Kernels,
    source: Vec<u8>,
    intermediate: Vec<Line>,
}

impl Block {
    /// A block of K whole symbols, with the plan for as many. `symbol_bytes` is not zero.
    pub(crate) fn new(
        system: &impl System,
        source: Vec<u8>,
        symbol_bytes: usize,
        plan: &Plan,
        kernels: Kernels,
    ) -> Self {
        let stride = symbol_bytes.div_ceil(Line::BYTES);
        let mut intermediate = vec![Line::ZERO; stride * system.size().l as usize];
        let symbols = intermediate
            .chunks_exact_mut(stride)
            .map(|lines| &mut Line::bytes_mut(lines)[..symbol_bytes]);
        plan.apply(kernels, &source, &mut symbols.collect::<Vec<_>>());
        Self {
            symbol_bytes,
            kernels,
            source,
            intermediate,
        }
    }

    pub(crate) fn symbol_bytes(&self) -> usize {
        self.symbol_bytes
    }

    /// Writes the encoding symbol `esi`: below K the source symbol, from K on a repair symbol.
    ///
    /// # Panics
    /// If `out` is not as long as a symbol.
    pub(crate) fn symbol(&self, system: &impl System, esi: u32, out: &mut [u8]) {
        assert_eq!(out.len(), self.symbol_bytes, "a symbol");
        if esi < system.size().k {
            out.copy_from_slice(
                &self.source[esi as usize * self.symbol_bytes..][..self.symbol_bytes],
            );
            return;
        }
        self.sum(&columns(system, esi), out);
    }

    /// The sum of some intermediate symbols.
    pub(crate) fn sum(&self, columns: &[u32], out: &mut [u8]) {
        let stride = self.symbol_bytes.div_ceil(Line::BYTES);
        let symbol = |column: u32| {
            &Line::bytes(&self.intermediate[column as usize * stride..][..stride])
                [..self.symbol_bytes]
        };
        let (first, others) = columns.split_first().expect("a symbol is a sum of some");
        out.copy_from_slice(symbol(*first));
        others
            .iter()
            .for_each(|&column| self.kernels.add(out, symbol(column)));
    }
}

/// The number of symbols in a block of so many bytes. If there are none, or the last one is not
/// whole, the required length.
pub(crate) fn count(length: usize, symbol_bytes: usize) -> Result<u32, usize> {
    if symbol_bytes == 0 || !length.is_multiple_of(symbol_bytes) {
        return Err(length.checked_div(symbol_bytes).unwrap_or_default() * symbol_bytes);
    }
    Ok(u32::try_from(length / symbol_bytes).unwrap_or(u32::MAX))
}
