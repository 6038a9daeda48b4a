//! Square systems: n rows, n payloads, and the n blocks that the payloads combine.

use std::num::NonZeroUsize;
use std::ops::Range;

use super::{Kernels, Panel, matrix, panel, threads};

impl Kernels {
    /// Finds the blocks of which `payloads` are the combinations with these rows, by inversion and
    /// one multiplication, with at most so many threads. Returns false, and writes nothing, if the
    /// rows are linearly dependent.
    ///
    /// # Panics
    /// Unless there are n × n coefficients, as many bytes of payloads as go out, and those a
    /// multiple of n, which is not zero.
    pub fn solve(
        &self,
        n: usize,
        coefficients: &[u8],
        payloads: &[u8],
        out: &mut [u8],
        threads: NonZeroUsize,
    ) -> bool {
        assert!(
            payloads.len() == out.len() && !out.is_empty() && out.len().is_multiple_of(n),
            "n blocks for n blocks"
        );
        let Some(inverse) = matrix::invert(*self, n, coefficients, matrix::inverters(n, threads))
        else {
            return false;
        };
        let block_bytes = out.len() / n;
        let rows: Vec<&[u8]> = inverse.chunks_exact(n).collect();
        let multiply = |stripe: Stripe<'_>| stripe.multiply(self, &rows, payloads, block_bytes);
        let count = (out.len() * n / PRODUCTS_PER_THREAD).clamp(1, threads.get());
        threads::share(Stripe::cut(out, block_bytes, count), multiply);
        true
    }
}

/// The same bytes of every block, which one thread makes.
struct Stripe<'a> {
    bytes: Range<usize>,
    outs: Vec<&'a mut [u8]>,
}

impl<'a> Stripe<'a> {
    /// Cuts adjacent blocks into `count` stripes, or into fewer if they have fewer columns.
    fn cut(out: &'a mut [u8], block_bytes: usize, count: usize) -> Vec<Self> {
        let parts = (0..count)
            .map(|index| panel::part(block_bytes, index, count))
            .filter(|bytes| !bytes.is_empty());
        let mut stripes: Vec<Self> = parts
            .map(|bytes| Self {
                bytes,
                outs: Vec::new(),
            })
            .collect();
        for mut block in out.chunks_exact_mut(block_bytes) {
            for stripe in &mut stripes {
                stripe.outs.push(
                    block
                        .split_off_mut(..stripe.bytes.len())
                        .expect("parts tile a block"),
                );
            }
        }
        stripes
    }

    /// Packs the stripe's bytes of the payloads, and multiplies them.
    fn multiply(mut self, kernels: &Kernels, rows: &[&[u8]], payloads: &[u8], block_bytes: usize) {
        let mut panel = Panel::new(rows.len(), self.bytes.len());
        let payloads = payloads.chunks_exact(block_bytes).enumerate();
        payloads.for_each(|(index, payload)| panel.put(index, &payload[self.bytes.clone()]));
        kernels.combine(rows, &panel, &mut self.outs);
    }
}

/// Minimum number of products of two bytes for another thread: tens of microseconds of work, which
/// is also the cost of starting it.
const PRODUCTS_PER_THREAD: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RowKey, at_most, gf256};

    /// Rows from a seed, blocks, and what the definition makes of them.
    fn system(n: usize, k: usize, seed: u64) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let mut coefficients = vec![0; n * n];
        let seeds = 0..u32::try_from(n).unwrap();
        let key = RowKey {
            key: seed,
            generation: 1,
        };
        seeds
            .zip(coefficients.chunks_exact_mut(n))
            .for_each(|(seed, row)| key.fill(seed, row));
        let source: Vec<u8> = (0..n * k)
            .map(|i| u8::try_from(((i * i) >> 3) % 256).unwrap())
            .collect();
        let mut payloads = vec![0; n * k];
        for (row, payload) in coefficients
            .chunks_exact(n)
            .zip(payloads.chunks_exact_mut(k))
        {
            for (&c, block) in row.iter().zip(source.chunks_exact(k)) {
                payload
                    .iter_mut()
                    .zip(block)
                    .for_each(|(sum, &byte)| *sum ^= gf256::mul(c, byte));
            }
        }
        (coefficients, source, payloads)
    }

    #[test]
    fn what_was_combined_is_found_by_any_number_of_threads() {
        let sizes = [
            (1, 16),
            (2, 80),
            (31, 96),
            (128, 64),
            (64, 1040),
            (60, 4112),
            (300, 272),
        ];
        let [.., multiplied, inverted] = sizes;
        assert!(
            multiplied.0 * multiplied.0 * multiplied.1 >= 3 * PRODUCTS_PER_THREAD
                && inverted.0 >= matrix::INVERTED_BY_SEVERAL_MIN
        );
        for (n, k) in sizes {
            let (mut coefficients, source, payloads) = system(n, k, 5);
            for kernels in Kernels::available() {
                for threads in [1, 2, 3, 7].map(at_most) {
                    let mut out = vec![0xEE; n * k];
                    let is_solved = kernels.solve(n, &coefficients, &payloads, &mut out, threads);
                    assert!(
                        is_solved && out == source,
                        "n = {n}, k = {k}, {threads} threads, {kernels:?}"
                    );
                }
            }
            coefficients[..n].fill(0);
            for threads in [1, 2, 3, 7].map(at_most) {
                let mut out = vec![0xEE; n * k];
                let is_solved =
                    Kernels::detect().solve(n, &coefficients, &payloads, &mut out, threads);
                assert!(
                    !is_solved && out.iter().all(|&byte| byte == 0xEE),
                    "n = {n}, {threads} threads"
                );
            }
        }
    }

    #[test]
    fn stripes_are_as_many_as_threads_or_columns() {
        let mut out = vec![0; 3 * 1040];
        for (count, expected) in [(1, 1), (3, 3), (5, 5), (16, 5)] {
            let stripes = Stripe::cut(&mut out, 1040, count);
            assert_eq!(stripes.len(), expected);
            assert!(
                stripes
                    .iter()
                    .all(|stripe| stripe.outs.len() == 3
                        && stripe.outs[0].len() == stripe.bytes.len())
            );
        }
    }
}
