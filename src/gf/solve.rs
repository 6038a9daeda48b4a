//! Square systems: n rows, n payloads, and the n blocks that they are combinations of.

use std::num::NonZeroUsize;

use super::{Kernels, Panel, matrix};

impl Kernels {
    /// Finds the blocks of which `payloads` are the combinations with these rows, by inversion and one multiplication. False, and
    /// nothing is written, if the rows depend on each other.
    ///
    /// # Panics
    /// Unless there are n × n coefficients, as many bytes of payloads as go out, and those a multiple of n, which is not zero.
    pub fn solve(&self, n: usize, coefficients: &[u8], payloads: &[u8], out: &mut [u8]) -> bool {
        assert!(payloads.len() == out.len() && !out.is_empty() && out.len().is_multiple_of(n), "n blocks for n blocks");
        let Some(inverse) = matrix::invert(*self, n, coefficients, NonZeroUsize::MIN) else { return false };
        let block_bytes = out.len() / n;
        let panel = Panel::of(payloads, n, block_bytes);
        let rows: Vec<&[u8]> = inverse.chunks_exact(n).collect();
        let mut outs: Vec<&mut [u8]> = out.chunks_exact_mut(block_bytes).collect();
        self.combine(&rows, &panel, &mut outs);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gf::RowKey;

    #[test]
    fn what_was_combined_is_found() {
        let kernels = Kernels::detect();
        for (n, k) in [(1, 16), (2, 80), (31, 96), (128, 64)] {
            let mut coefficients = vec![0; n * n];
            let seeds = 0..u32::try_from(n).unwrap();
            let key = RowKey { key: 5, generation: 1 };
            seeds.zip(coefficients.chunks_exact_mut(n)).for_each(|(seed, row)| key.fill(seed, row));
            let source: Vec<u8> = (0..n * k).map(|i| u8::try_from(((i * i) >> 3) % 256).unwrap()).collect();
            let (mut payloads, mut out) = (vec![0; n * k], vec![0; n * k]);
            let rows: Vec<&[u8]> = coefficients.chunks_exact(n).collect();
            let mut outs: Vec<&mut [u8]> = payloads.chunks_exact_mut(k).collect();
            kernels.combine(&rows, &Panel::of(&source, n, k), &mut outs);
            assert!(kernels.solve(n, &coefficients, &payloads, &mut out) && out == source, "n = {n}");
            coefficients[..n].fill(0);
            assert!(!kernels.solve(n, &coefficients, &payloads, &mut out) && out == source);
        }
    }
}
