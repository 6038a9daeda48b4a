//! The row operation that elimination repeats, with each instruction set. WebAssembly has no clock:
//! the caller measures.

use ncs_gf::Kernels;

/// A usual block. Two of them fit into the cache of any processor.
const BYTES: usize = 16 << 10;

/// The instruction sets, the fastest last.
pub fn each() -> Vec<Kernels> {
    Kernels::available().collect()
}

/// Adds a multiple of one row to another, `times` times; returns the bytes of all these rows.
pub fn add(kernels: Kernels, times: usize) -> usize {
    let (mut sum, row) = (vec![0; BYTES], vec![0x53; BYTES]);
    for coefficient in (2..=u8::MAX).cycle().take(times) {
        kernels.mul_add(&mut sum, &row, coefficient);
    }
    std::hint::black_box(sum);
    times * BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_added_by_each_instruction_set() {
        for kernels in each() {
            assert_eq!(add(kernels, 3), 3 * BYTES);
        }
    }
}
