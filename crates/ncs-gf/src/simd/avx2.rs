//! 256 bits, products by byte shuffles: two lookups of 16 entries, one for each nibble.

use std::arch::x86_64::*;

kernels!(Isa::Avx2, "avx2", columns: [2]);

type Vector = __m256i;
/// Low and high nibbles.
type Split = [Vector; 2];
/// Products with the low nibbles and with the high ones.
type Factor = [Vector; 2];
const WIDTH: usize = size_of::<Vector>();
const STEP: usize = 1;

#[inline]
#[target_feature(enable = "avx2")]
fn zero() -> Vector {
    _mm256_setzero_si256()
}

/// # Safety
/// `WIDTH` bytes from `bytes` on may be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(bytes: *const u8) -> Vector {
    // SAFETY: the caller's promise; no alignment is demanded.
    unsafe { _mm256_loadu_si256(bytes.cast()) }
}

/// # Safety
/// `WIDTH` bytes from `bytes` on may be written.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store(bytes: *mut u8, vector: Vector) {
    // SAFETY: the caller's promise; no alignment is demanded.
    unsafe { _mm256_storeu_si256(bytes.cast(), vector) }
}

/// # Safety
/// `WIDTH` bytes from `bytes` on may be written, a multiple of `WIDTH`, and no thread reads them
/// before a fence.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_past_cache(bytes: *mut u8, vector: Vector) {
    // SAFETY: the caller's promise.
    unsafe { _mm256_stream_si256(bytes.cast(), vector) }
}

/// Orders the stores past the caches before later stores.
#[inline]
#[target_feature(enable = "avx2")]
fn fence() {
    _mm_sfence();
}

#[inline]
#[target_feature(enable = "avx2")]
fn xor(a: Vector, b: Vector) -> Vector {
    _mm256_xor_si256(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
fn split(vector: Vector) -> Split {
    let low = _mm256_set1_epi8(15);
    [
        _mm256_and_si256(vector, low),
        _mm256_and_si256(_mm256_srli_epi16::<4>(vector), low),
    ]
}

#[inline]
#[target_feature(enable = "avx2")]
fn factor(c: u8) -> Factor {
    let (low, high) = gf256::NIBBLE_PRODUCTS[usize::from(c)].split_at(16);
    // SAFETY: both halves are 16 bytes.
    let [low, high] = unsafe {
        [
            _mm_loadu_si128(low.as_ptr().cast()),
            _mm_loadu_si128(high.as_ptr().cast()),
        ]
    };
    [
        _mm256_broadcastsi128_si256(low),
        _mm256_broadcastsi128_si256(high),
    ]
}

#[inline]
#[target_feature(enable = "avx2")]
fn mul_add(sum: Vector, [low, high]: Split, [low_products, high_products]: Factor) -> Vector {
    let (low, high) = (
        _mm256_shuffle_epi8(low_products, low),
        _mm256_shuffle_epi8(high_products, high),
    );
    _mm256_xor_si256(sum, _mm256_xor_si256(low, high))
}

#[inline]
#[target_feature(enable = "avx2")]
fn mul_add_step(sum: Vector, [split]: [Split; STEP], [factor]: [Factor; STEP]) -> Vector {
    mul_add(sum, split, factor)
}
