//! Eight at a time, by AVX-512 F.

use std::arch::x86_64::*;

use crate::simd::ifma::{Octet, WIDTH, gather, load, store};

/// The proof that this processor has the instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eight(());

type Limb = Octet;
type Bits = __m512i;
type Double = __m512d;

products!(Eight, "avx512f");

impl Eight {
    /// The proof, if this processor has them.
    pub fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Self(()))
    }

    /// The numbers that begin at these elements of the table, with `L` limbs of 52 bits each. Whole
    /// groups of eight are read, so the table must have limbs after each number to fill its last
    /// group.
    ///
    /// # Panics
    /// If the table is too short for a number.
    pub fn gather<const L: usize>(self, table: &[u64], starts: [usize; WIDTH]) -> [Limb; L] {
        let last = L.next_multiple_of(WIDTH);
        assert!(
            starts.iter().all(|&start| start + last <= table.len()),
            "numbers of the table"
        );
        // SAFETY: `self` is the proof that the processor has the features, and every number is in
        // the table.
        unsafe { gather(table.as_ptr(), starts) }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn broadcast(limb: u64) -> Bits {
    _mm512_set1_epi64(limb.cast_signed())
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add(a: Bits, b: Bits) -> Bits {
    _mm512_add_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn sub(a: Bits, b: Bits) -> Bits {
    _mm512_sub_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn and(a: Bits, b: Bits) -> Bits {
    _mm512_and_si512(a, b)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn or(a: Bits, b: Bits) -> Bits {
    _mm512_or_si512(a, b)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn above_limb(vector: Bits) -> Bits {
    _mm512_srli_epi64::<52>(vector)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn double(bits: Bits) -> Double {
    _mm512_castsi512_pd(bits)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn bits(double: Double) -> Bits {
    _mm512_castpd_si512(double)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn minus(a: Double, b: Double) -> Double {
    _mm512_sub_pd(a, b)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn fused(a: Double, b: Double, c: Double) -> Double {
    _mm512_fmadd_pd(a, b, c)
}
