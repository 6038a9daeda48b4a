//! 512 bits, products by byte shuffles: two lookups of 16 entries, one for each nibble.

use std::arch::x86_64::*;

kernels!(Isa::Avx512, "avx512f,avx512bw", columns: [4, 3, 2, 1]);

type Vector = __m512i;
/// Low and high nibbles.
type Split = [Vector; 2];
/// Products with the low nibbles and with the high ones.
type Factor = [Vector; 2];
const WIDTH: usize = size_of::<Vector>();
const STEP: usize = 1;

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn zero() -> Vector {
    _mm512_setzero_si512()
}

/// # Safety
/// `WIDTH` bytes from `bytes` on may be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load(bytes: *const u8) -> Vector {
    // SAFETY: the caller's promise; no alignment is demanded.
    unsafe { _mm512_loadu_si512(bytes.cast()) }
}

/// # Safety
/// `WIDTH` bytes from `bytes` on may be written.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn store(bytes: *mut u8, vector: Vector) {
    // SAFETY: the caller's promise; no alignment is demanded.
    unsafe { _mm512_storeu_si512(bytes.cast(), vector) }
}

/// # Safety
/// `WIDTH` bytes from `bytes` on may be written, a multiple of `WIDTH`, and no thread reads them
/// before a fence.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn store_past_cache(bytes: *mut u8, vector: Vector) {
    // SAFETY: the caller's promise.
    unsafe { _mm512_stream_si512(bytes.cast(), vector) }
}

/// Orders the stores past the caches before later stores.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn fence() {
    _mm_sfence();
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn xor(a: Vector, b: Vector) -> Vector {
    _mm512_xor_si512(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn split(vector: Vector) -> Split {
    let low = _mm512_set1_epi8(15);
    [
        _mm512_and_si512(vector, low),
        _mm512_and_si512(_mm512_srli_epi16::<4>(vector), low),
    ]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn factor(c: u8) -> Factor {
    let (low, high) = gf256::NIBBLE_PRODUCTS[usize::from(c)].split_at(16);
    // SAFETY: both halves are 16 bytes.
    let [low, high] = unsafe {
        [
            _mm_loadu_si128(low.as_ptr().cast()),
            _mm_loadu_si128(high.as_ptr().cast()),
        ]
    };
    [_mm512_broadcast_i32x4(low), _mm512_broadcast_i32x4(high)]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn mul_add(sum: Vector, [low, high]: Split, [low_products, high_products]: Factor) -> Vector {
    let (low, high) = (
        _mm512_shuffle_epi8(low_products, low),
        _mm512_shuffle_epi8(high_products, high),
    );
    _mm512_ternarylogic_epi32::<XOR3>(sum, low, high)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn mul_add_step(sum: Vector, [split]: [Split; STEP], [factor]: [Factor; STEP]) -> Vector {
    mul_add(sum, split, factor)
}

/// The truth table of a ^ b ^ c.
const XOR3: i32 = 0x96;
