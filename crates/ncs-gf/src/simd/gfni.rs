//! 512 bits, products by the affine instruction of GFNI: a bit matrix for each coefficient.
//!
//! `gf2p8mulb` would multiply modulo 0x11B; a matrix reaches any polynomial at the same speed. A
//! step processes two sources, so that one instruction adds both products to the sum: otherwise
//! additions would compete with products for the ports.

use std::arch::x86_64::*;

kernels!(Isa::Gfni, "avx512f,avx512bw,gfni", columns: [4, 3, 2, 1]);

type Vector = __m512i;
type Split = Vector;
/// The coefficient's matrix in every eight bytes.
type Factor = Vector;
const WIDTH: usize = size_of::<Vector>();
const STEP: usize = 2;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn zero() -> Vector {
    _mm512_setzero_si512()
}

/// # Safety
/// `WIDTH` bytes from `bytes` on may be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn load(bytes: *const u8) -> Vector {
    // SAFETY: the caller's promise; no alignment is demanded.
    unsafe { _mm512_loadu_si512(bytes.cast()) }
}

/// # Safety
/// `WIDTH` bytes from `bytes` on may be written.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn store(bytes: *mut u8, vector: Vector) {
    // SAFETY: the caller's promise; no alignment is demanded.
    unsafe { _mm512_storeu_si512(bytes.cast(), vector) }
}

/// # Safety
/// `WIDTH` bytes from `bytes` on may be written, a multiple of `WIDTH`, and no thread reads them
/// before a fence.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn store_past_cache(bytes: *mut u8, vector: Vector) {
    // SAFETY: the caller's promise.
    unsafe { _mm512_stream_si512(bytes.cast(), vector) }
}

/// Orders the stores past the caches before later stores.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn fence() {
    _mm_sfence();
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn xor(a: Vector, b: Vector) -> Vector {
    _mm512_xor_si512(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn split(vector: Vector) -> Split {
    vector
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
#[expect(clippy::cast_possible_wrap, reason = "bits are bits")]
fn factor(c: u8) -> Factor {
    _mm512_set1_epi64(gf256::AFFINE_MATRICES[usize::from(c)] as i64)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn product(split: Split, factor: Factor) -> Vector {
    _mm512_gf2p8affine_epi64_epi8::<0>(split, factor)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn mul_add(sum: Vector, split: Split, factor: Factor) -> Vector {
    xor(sum, product(split, factor))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn mul_add_step(sum: Vector, splits: [Split; STEP], factors: [Factor; STEP]) -> Vector {
    _mm512_ternarylogic_epi64::<XOR3>(
        sum,
        product(splits[0], factors[0]),
        product(splits[1], factors[1]),
    )
}

/// The truth table of a ^ b ^ c.
const XOR3: i32 = 0x96;
