//! 128 bits, products by byte shuffles: two lookups of 16 entries, one for each nibble.

use std::arch::x86_64::*;

kernels!(Isa::Ssse3, "ssse3", columns: [2]);

type Vector = __m128i;
/// Low and high nibbles.
type Split = [Vector; 2];
/// Products with the low nibbles and with the high ones.
type Factor = [Vector; 2];
const WIDTH: usize = size_of::<Vector>();
const STEP: usize = 1;

#[inline]
#[target_feature(enable = "ssse3")]
fn zero() -> Vector {
    _mm_setzero_si128()
}

/// # Safety
/// `WIDTH` bytes from `bytes` on may be read.
#[inline]
#[target_feature(enable = "ssse3")]
unsafe fn load(bytes: *const u8) -> Vector {
    // SAFETY: the caller's promise; no alignment is demanded.
    unsafe { _mm_loadu_si128(bytes.cast()) }
}

/// # Safety
/// `WIDTH` bytes from `bytes` on may be written.
#[inline]
#[target_feature(enable = "ssse3")]
unsafe fn store(bytes: *mut u8, vector: Vector) {
    // SAFETY: the caller's promise; no alignment is demanded.
    unsafe { _mm_storeu_si128(bytes.cast(), vector) }
}

/// # Safety
/// `WIDTH` bytes from `bytes` on may be written, a multiple of `WIDTH`, and no thread reads them
/// before a fence.
#[inline]
#[target_feature(enable = "ssse3")]
unsafe fn store_past_cache(bytes: *mut u8, vector: Vector) {
    // SAFETY: the caller's promise.
    unsafe { _mm_stream_si128(bytes.cast(), vector) }
}

/// Orders the stores past the caches before later stores.
#[inline]
#[target_feature(enable = "ssse3")]
fn fence() {
    _mm_sfence();
}

#[inline]
#[target_feature(enable = "ssse3")]
fn xor(a: Vector, b: Vector) -> Vector {
    _mm_xor_si128(a, b)
}

#[inline]
#[target_feature(enable = "ssse3")]
fn split(vector: Vector) -> Split {
    let low = _mm_set1_epi8(15);
    [
        _mm_and_si128(vector, low),
        _mm_and_si128(_mm_srli_epi16::<4>(vector), low),
    ]
}

#[inline]
#[target_feature(enable = "ssse3")]
fn factor(c: u8) -> Factor {
    let (low, high) = gf256::NIBBLE_PRODUCTS[usize::from(c)].split_at(16);
    // SAFETY: both halves are 16 bytes.
    let [low, high] = unsafe {
        [
            _mm_loadu_si128(low.as_ptr().cast()),
            _mm_loadu_si128(high.as_ptr().cast()),
        ]
    };
    [low, high]
}

#[inline]
#[target_feature(enable = "ssse3")]
fn mul_add(sum: Vector, [low, high]: Split, [low_products, high_products]: Factor) -> Vector {
    let (low, high) = (
        _mm_shuffle_epi8(low_products, low),
        _mm_shuffle_epi8(high_products, high),
    );
    _mm_xor_si128(sum, _mm_xor_si128(low, high))
}

#[inline]
#[target_feature(enable = "ssse3")]
fn mul_add_step(sum: Vector, [split]: [Split; STEP], [factor]: [Factor; STEP]) -> Vector {
    mul_add(sum, split, factor)
}
