//! Prefetching of memory that is read soon, in an order that the processor cannot predict.

/// Prefetches the cache lines of these numbers.
pub fn prefetch(numbers: &[u64]) {
    #[cfg(target_arch = "x86_64")]
    for line in numbers.chunks(8) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has SSE, and a prefetch reads nothing that is to be seen.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = numbers;
}
