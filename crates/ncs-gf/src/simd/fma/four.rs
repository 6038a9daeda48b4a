//! Four at a time, by AVX2 with FMA.

use std::arch::x86_64::*;

/// The proof that this processor has the instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Four(());

/// A limb of each of four numbers.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(32))]
pub struct Quad(pub(crate) [u64; WIDTH]);

impl AsRef<[u64]> for Quad {
    fn as_ref(&self) -> &[u64] {
        &self.0
    }
}

/// Numbers at a time.
const WIDTH: usize = 4;

type Limb = Quad;
type Bits = __m256i;
type Double = __m256d;

products!(Four, "avx2,fma");

impl Four {
    /// The proof, if this processor has them.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
    }

    /// The numbers that begin at these elements of the table, with `L` limbs of 52 bits each. Whole
    /// groups of four are read, so the table must have limbs after each number to fill its last
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

/// # Safety
/// From each start on there are as many elements as whole groups of four for `L` take.
#[target_feature(enable = "avx2,fma")]
unsafe fn gather<const L: usize>(table: *const u64, starts: [usize; WIDTH]) -> [Limb; L] {
    let mut out = [Limb::default(); L];
    for first in (0..L).step_by(WIDTH) {
        // SAFETY: the caller's promise.
        let [a, b, c, d] =
            starts.map(|start| unsafe { _mm256_loadu_si256(table.add(start + first).cast()) });
        let (ab_even, ab_odd) = (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        let (cd_even, cd_odd) = (_mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d));
        let columns = [
            _mm256_permute2x128_si256::<0x20>(ab_even, cd_even),
            _mm256_permute2x128_si256::<0x20>(ab_odd, cd_odd),
            _mm256_permute2x128_si256::<0x31>(ab_even, cd_even),
            _mm256_permute2x128_si256::<0x31>(ab_odd, cd_odd),
        ];
        out[first..]
            .iter_mut()
            .zip(columns)
            .for_each(|(out, column)| store(out, column));
    }
    out
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn broadcast(limb: u64) -> Bits {
    _mm256_set1_epi64x(limb.cast_signed())
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn load(limb: &Limb) -> Bits {
    // SAFETY: a limb is a vector's width of memory, and begins at a multiple of it.
    unsafe { _mm256_load_si256(limb.0.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn store(limb: &mut Limb, vector: Bits) {
    // SAFETY: a limb is a vector's width of memory, and begins at a multiple of it.
    unsafe { _mm256_store_si256(limb.0.as_mut_ptr().cast(), vector) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn add(a: Bits, b: Bits) -> Bits {
    _mm256_add_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn sub(a: Bits, b: Bits) -> Bits {
    _mm256_sub_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn and(a: Bits, b: Bits) -> Bits {
    _mm256_and_si256(a, b)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn or(a: Bits, b: Bits) -> Bits {
    _mm256_or_si256(a, b)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn above_limb(vector: Bits) -> Bits {
    _mm256_srli_epi64::<52>(vector)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn double(bits: Bits) -> Double {
    _mm256_castsi256_pd(bits)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn bits(double: Double) -> Bits {
    _mm256_castpd_si256(double)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn minus(a: Double, b: Double) -> Double {
    _mm256_sub_pd(a, b)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn fused(a: Double, b: Double, c: Double) -> Double {
    _mm256_fmadd_pd(a, b, c)
}
