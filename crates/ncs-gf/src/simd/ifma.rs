//! Large numbers, eight at a time, by the 52-bit multiplications of AVX-512 IFMA.
//!
//! Each of eight numbers has a lane of 64 bits in as many vectors as it has limbs of 52 bits.
//! Carries therefore go from vector to vector, and lanes are independent. A product of two limbs
//! has 104 bits: one instruction adds the lower 52 to a vector, and another the upper ones. Twelve
//! bits are left for sums. (Gueron and Krasnov, "Software implementation of modular exponentiation,
//! using advanced vector instructions architectures", WAIFI 2012, for numbers that lie across
//! lanes; here each has its own.)

use std::arch::x86_64::*;
use std::array;

use crate::order;

/// The proof that this processor has the instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ifma(());

/// A limb of each of eight numbers.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct Octet(pub(crate) [u64; WIDTH]);

impl AsRef<[u64]> for Octet {
    fn as_ref(&self) -> &[u64] {
        &self.0
    }
}

/// Numbers at a time.
pub const WIDTH: usize = 8;
/// Bits of a limb.
pub const LIMB_BITS: usize = 52;
/// A limb of ones.
pub const LIMB: u64 = (1 << LIMB_BITS) - 1;

impl Ifma {
    /// The proof, if this processor has them.
    pub fn detect() -> Option<Self> {
        let is_there = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512ifma");
        is_there.then_some(Self(()))
    }

    /// a · b / 2^(52 L) modulo a number, in each lane, without a last subtraction: the factors may
    /// be up to twice the modulus, and so may the product, if the modulus is below 2^(52 L - 2).
    /// `inverse` is -1 / modulus, modulo 2^52.
    pub fn montgomery<const L: usize>(
        self,
        modulus: &[u64; L],
        inverse: u64,
        a: &[Octet; L],
        b: &[Octet; L],
    ) -> [Octet; L] {
        // SAFETY: `self` is the proof that the processor has the features.
        unsafe { montgomery(modulus, inverse, a, b) }
    }

    /// The numbers that begin at these elements of the table, with `L` limbs of 52 bits each. Whole
    /// groups of eight are read, so the table must have limbs after each number to fill its last
    /// group.
    ///
    /// # Panics
    /// If the table is too short for a number.
    pub fn gather<const L: usize>(self, table: &[u64], starts: [usize; WIDTH]) -> [Octet; L] {
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

/// A loop over limbs, written out. Otherwise the compiler leaves the sums in memory, which is a
/// third slower.
macro_rules! unrolled {
    ($index:ident in $first:expr, $end:expr => $body:block) => {
        unrolled!(
            @ $index,
            $first,
            $end,
            $body,
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19
            20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39
        )
    };
    (@ $index:ident, $first:expr, $end:expr, $body:block, $($each:literal)*) => {
        $({
            let $index: usize = $each;
            if $index >= $first && $index < $end $body
        })*
    };
}

#[target_feature(enable = "avx512f,avx512ifma")]
fn montgomery<const L: usize>(
    modulus: &[u64; L],
    inverse: u64,
    a: &[Octet; L],
    b: &[Octet; L],
) -> [Octet; L] {
    let (zero, inverse) = (
        _mm512_setzero_si512(),
        _mm512_set1_epi64(inverse.cast_signed()),
    );
    let mut sum = [zero; L];
    for b in b {
        let b = load(b);
        // Two vectors of what belongs to the lowest limb alone are between a limb and the next; the
        // others do not wait for them.
        let lowest = _mm512_madd52lo_epu64(sum[0], load(&a[0]), b);
        let factor = _mm512_madd52lo_epu64(zero, lowest, inverse);
        let lowest = _mm512_madd52lo_epu64(lowest, broadcast(modulus[0]), factor);
        let carry = _mm512_srli_epi64::<52>(lowest);
        unrolled!(index in 1, L => {
            let (a, modulus) = (load(&a[index]), broadcast(modulus[index]));
            sum[index] =
                _mm512_madd52lo_epu64(_mm512_madd52lo_epu64(sum[index], a, b), modulus, factor);
        });
        unrolled!(index in 1, L => {
            let (a, modulus) = (load(&a[index - 1]), broadcast(modulus[index - 1]));
            sum[index - 1] =
                _mm512_madd52hi_epu64(_mm512_madd52hi_epu64(sum[index], a, b), modulus, factor);
        });
        sum[0] = _mm512_add_epi64(sum[0], carry);
        let (a, modulus) = (load(&a[L - 1]), broadcast(modulus[L - 1]));
        sum[L - 1] = _mm512_madd52hi_epu64(_mm512_madd52hi_epu64(zero, a, b), modulus, factor);
    }
    stored(carried(sum))
}

/// Reduces sums to limbs again; the carry out of the last limb stays there.
#[inline]
#[target_feature(enable = "avx512f")]
fn carried<const L: usize>(mut sum: [__m512i; L]) -> [__m512i; L] {
    let limb = broadcast(LIMB);
    for index in 1..L {
        sum[index] = _mm512_add_epi64(sum[index], _mm512_srli_epi64::<52>(sum[index - 1]));
        sum[index - 1] = _mm512_and_si512(sum[index - 1], limb);
    }
    sum
}

/// # Safety
/// From each start on there are as many elements as whole groups of eight for `L` take.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn gather<const L: usize>(
    table: *const u64,
    starts: [usize; WIDTH],
) -> [Octet; L] {
    let mut out = [Octet::default(); L];
    for first in (0..L).step_by(WIDTH) {
        // SAFETY: the caller's promise.
        let rows = array::from_fn(|row| unsafe {
            _mm512_loadu_epi64(table.add(starts[row] + first).cast())
        });
        let columns = transpose(rows);
        out[first..]
            .iter_mut()
            .zip(columns)
            .for_each(|(out, column)| store(out, column));
    }
    out
}

/// Eight rows of eight, as columns.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(rows: [__m512i; WIDTH]) -> [__m512i; WIDTH] {
    // Pairs of lanes, then pairs of pairs, then halves.
    let pairs: [__m512i; WIDTH] = array::from_fn(|index| {
        let (low, high) = (rows[index & !1], rows[index | 1]);
        if index & 1 == 0 {
            _mm512_unpacklo_epi64(low, high)
        } else {
            _mm512_unpackhi_epi64(low, high)
        }
    });
    let quarters: [__m512i; WIDTH] = array::from_fn(|index| {
        let (low, high) = (pairs[index & !2], pairs[index | 2]);
        if index & 2 == 0 {
            _mm512_shuffle_i64x2::<0x88>(low, high)
        } else {
            _mm512_shuffle_i64x2::<0xdd>(low, high)
        }
    });
    array::from_fn(|index| {
        let (low, high) = (quarters[index & !4], quarters[index | 4]);
        if index & 4 == 0 {
            _mm512_shuffle_i64x2::<0x88>(low, high)
        } else {
            _mm512_shuffle_i64x2::<0xdd>(low, high)
        }
    })
}

#[inline]
#[target_feature(enable = "avx512f")]
fn broadcast(limb: u64) -> __m512i {
    _mm512_set1_epi64(limb.cast_signed())
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(octet: &Octet) -> __m512i {
    // SAFETY: an octet is a vector's width of memory, and begins at a multiple of it.
    unsafe { _mm512_load_epi64(octet.0.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store(octet: &mut Octet, vector: __m512i) {
    // SAFETY: an octet is a vector's width of memory, and begins at a multiple of it.
    unsafe { _mm512_store_epi64(octet.0.as_mut_ptr().cast(), vector) }
}

/// Elements of GF(q) in limbs of 52 bits, one in each lane.
pub type Elements = [Octet; LIMBS];

/// Sums of such elements, each times a weight of two limbs.
pub type Weighed = [Octet; LIMBS + 3];

/// Limbs of an element of GF(q).
pub const LIMBS: usize = 5;
/// Bits by which Montgomery's products of such elements are divided.
pub const RADIX_BITS: usize = LIMBS * LIMB_BITS;
/// Bytes of eight words of data.
pub const WORDS_BYTES: usize = 256;
/// Products with full factors that a sum can hold before it is carried.
const CARRY_AFTER: usize = 256;

/// q in limbs of 52 bits.
const Q: [u64; LIMBS] = limbs(&order::Q);
/// -1 / q modulo 2^52.
const Q_INVERSE: u64 = order::Q_INVERSE & LIMB;
/// 2^308 / q, rounded down: 2^320 / q, which has 64 bits, cut.
const RECIPROCAL: u64 = order::RECIPROCAL >> 12;

/// A number below 2^260 in limbs of 52 bits.
pub const fn limbs(number: &[u64; order::LIMBS]) -> [u64; LIMBS] {
    let [a, b, c, d, e] = *number;
    [
        a & LIMB,
        (a >> 52 | b << 12) & LIMB,
        (b >> 40 | c << 24) & LIMB,
        (c >> 28 | d << 36) & LIMB,
        (d >> 16 | e << 48) & LIMB,
    ]
}

/// A number below 2^104 in two such limbs.
#[expect(clippy::cast_possible_truncation, reason = "a limb is meant")]
pub const fn narrow_weight(weight: u128) -> [u64; 2] {
    [weight as u64 & LIMB, (weight >> LIMB_BITS) as u64 & LIMB]
}

/// The number with these limbs of 52 bits.
pub const fn whole(limbs: &[u64; LIMBS]) -> [u64; order::LIMBS] {
    let [a, b, c, d, e] = *limbs;
    [
        a | b << 52,
        b >> 12 | c << 40,
        c >> 24 | d << 28,
        d >> 36 | e << 16,
        e >> 48,
    ]
}

impl Ifma {
    /// Unpacks eight words of data, big-endian, with their top bits, the first word's in the least
    /// significant bit.
    pub fn unpack(self, words: &[u8; WORDS_BYTES], bits: u8) -> Elements {
        // SAFETY: `self` is the proof that the processor has the features.
        unsafe { unpack(words, bits) }
    }

    /// The low 256 bits of eight elements, and their top bits.
    pub fn pack(self, elements: &Elements, words: &mut [u8; WORDS_BYTES]) -> u8 {
        // SAFETY: `self` is the proof that the processor has the features.
        unsafe { pack(elements, words) }
    }

    /// Sums of sources times 32-bit factors, modulo q: a factor of each source for each of `R`
    /// sums, those of one source adjacent. Sources are words of data.
    ///
    /// # Panics
    /// If there are not as many factors, or 2^10 sources and more.
    pub fn narrow<const R: usize>(
        self,
        factors: &[[u64; R]],
        sources: &[Elements],
    ) -> [Elements; R] {
        assert!(
            factors.len() == sources.len() && sources.len() <= 1 << 10,
            "factors of {} sources",
            sources.len()
        );
        // SAFETY: `self` is the proof that the processor has the features.
        unsafe { narrow(factors, sources) }
    }

    /// Adds eight words at a time, times a weight of two limbs, to sums that begin with zeros and
    /// get 2^10 rows at most.
    ///
    /// # Panics
    /// If there are not as many bytes of top bits and sums as eights of words.
    pub fn weigh(
        self,
        weight: [u64; 2],
        words: &[[u8; WORDS_BYTES]],
        bits: &[u8],
        sums: &mut [Weighed],
    ) {
        assert!(
            words.len() == bits.len() && words.len() == sums.len(),
            "sums of {} times eight words",
            words.len()
        );
        // SAFETY: `self` is the proof that the processor has the features.
        unsafe { weigh(weight, words, bits, sums) }
    }

    /// Divides such a sum by 2^[`RADIX_BITS`], modulo q.
    pub fn settle(self, sum: &Weighed) -> Elements {
        // SAFETY: `self` is the proof that the processor has the features.
        unsafe { settle(sum) }
    }

    /// `base` + (the sum of sources times factors) / 2^[`RADIX_BITS`], modulo q.
    ///
    /// # Panics
    /// If there are not as many factors, or more than 2^10.
    pub fn dot(self, base: &Elements, factors: &[[u64; LIMBS]], sources: &[Elements]) -> Elements {
        assert!(
            factors.len() == sources.len() && sources.len() <= 1 << 10,
            "factors of {} sources",
            sources.len()
        );
        // SAFETY: `self` is the proof that the processor has the features.
        unsafe { dot(base, factors, sources) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn unpack(words: &[u8; WORDS_BYTES], bits: u8) -> Elements {
    stored(unpacked(words, bits))
}

#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn weigh(weight: [u64; 2], words: &[[u8; WORDS_BYTES]], bits: &[u8], sums: &mut [Weighed]) {
    for ((words, &bits), sums) in words.iter().zip(bits).zip(sums) {
        let source = unpacked(words, bits);
        let mut sum = array::from_fn(|limb| load(&sums[limb]));
        add_product(&mut sum, &weight, source);
        *sums = stored(sum);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn settle(sum: &Weighed) -> Elements {
    let sum = array::from_fn(|limb| load(sum.get(limb).unwrap_or(&Octet([0; WIDTH]))));
    let [.., a, b, c, d, e] = montgomery_reduced(carried(sum));
    barrett([a, b, c, d, e, _mm512_setzero_si512()])
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn unpacked(words: &[u8; WORDS_BYTES], bits: u8) -> [__m512i; LIMBS] {
    // Two words in each vector, the most significant limb first; bytes are turned about within
    // limbs.
    let turn = _mm512_set4_epi32(0x0809_0a0b, 0x0c0d_0e0f, 0x0001_0203, 0x0405_0607);
    let [a, b, c, d]: [__m512i; 4] = array::from_fn(|index| {
        // SAFETY: four vectors are as long as the words.
        _mm512_shuffle_epi8(
            unsafe { _mm512_loadu_epi64(words.as_ptr().add(64 * index).cast()) },
            turn,
        )
    });
    // From each pair the limbs of one place of four words: lanes of the first vector, then of the
    // second.
    let of = |first: i64| {
        let low = _mm512_setr_epi64(first, first + 4, first + 8, first + 12, 0, 0, 0, 0);
        let (low_half, high_half) = (
            _mm512_permutex2var_epi64(a, low, b),
            _mm512_permutex2var_epi64(c, low, d),
        );
        _mm512_shuffle_i64x2::<0x44>(low_half, high_half)
    };
    let (x3, x2, x1, x0) = (of(0), of(1), of(2), of(3));
    let limb = broadcast(LIMB);
    let low = |vector| _mm512_and_si512(vector, limb);
    let or = |a, b| _mm512_or_si512(a, b);
    let top = _mm512_maskz_set1_epi64(bits, 1 << 48);
    [
        low(x0),
        low(or(_mm512_srli_epi64::<52>(x0), _mm512_slli_epi64::<12>(x1))),
        low(or(_mm512_srli_epi64::<40>(x1), _mm512_slli_epi64::<24>(x2))),
        low(or(_mm512_srli_epi64::<28>(x2), _mm512_slli_epi64::<36>(x3))),
        or(_mm512_srli_epi64::<16>(x3), top),
    ]
}

#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn pack(elements: &Elements, words: &mut [u8; WORDS_BYTES]) -> u8 {
    let [a, b, c, d, e] = array::from_fn(|index| load(&elements[index]));
    let or = |a, b| _mm512_or_si512(a, b);
    let x0 = or(a, _mm512_slli_epi64::<52>(b));
    let x1 = or(_mm512_srli_epi64::<12>(b), _mm512_slli_epi64::<40>(c));
    let x2 = or(_mm512_srli_epi64::<24>(c), _mm512_slli_epi64::<28>(d));
    let x3 = or(_mm512_srli_epi64::<36>(d), _mm512_slli_epi64::<16>(e));
    // Words 2 i and 2 i + 1 beside each other, the most significant limb first.
    let (even_high, odd_high) = (_mm512_unpacklo_epi64(x3, x2), _mm512_unpackhi_epi64(x3, x2));
    let (even_low, odd_low) = (_mm512_unpacklo_epi64(x1, x0), _mm512_unpackhi_epi64(x1, x0));
    let turn = _mm512_set4_epi32(0x0809_0a0b, 0x0c0d_0e0f, 0x0001_0203, 0x0405_0607);
    for index in 0..4 {
        let pair = 2 * i64::try_from(index).unwrap_or_default();
        let picked = _mm512_setr_epi64(pair, pair + 1, pair + 8, pair + 9, 0, 0, 0, 0);
        let even = _mm512_permutex2var_epi64(even_high, picked, even_low);
        let odd = _mm512_permutex2var_epi64(odd_high, picked, odd_low);
        let both = _mm512_shuffle_epi8(_mm512_shuffle_i64x2::<0x44>(even, odd), turn);
        // SAFETY: four vectors are as long as the words.
        unsafe { _mm512_storeu_epi64(words.as_mut_ptr().add(64 * index).cast(), both) };
    }
    _mm512_test_epi64_mask(e, broadcast(1 << 48))
}

#[target_feature(enable = "avx512f,avx512ifma")]
fn narrow<const R: usize>(factors: &[[u64; R]], sources: &[Elements]) -> [Elements; R] {
    let mut sums = [[_mm512_setzero_si512(); LIMBS + 1]; R];
    for (factors, source) in factors.iter().zip(sources) {
        let source: [__m512i; LIMBS] = array::from_fn(|limb| load(&source[limb]));
        for row in 0..R {
            let factor = broadcast(factors[row]);
            for limb in 0..LIMBS {
                sums[row][limb] = _mm512_madd52lo_epu64(sums[row][limb], source[limb], factor);
                sums[row][limb + 1] =
                    _mm512_madd52hi_epu64(sums[row][limb + 1], source[limb], factor);
            }
        }
    }
    let mut out = [[Octet::default(); LIMBS]; R];
    out.iter_mut()
        .zip(sums)
        .for_each(|(out, sum)| *out = barrett(sum));
    out
}

/// Sums below 2^308, modulo q, by Barrett's method. The bits from 256 on, which fit one limb, give
/// the quotient, or up to two less.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn barrett(sum: [__m512i; LIMBS + 1]) -> Elements {
    let zero = _mm512_setzero_si512();
    let sum = carried(sum);
    let top = _mm512_or_si512(
        _mm512_srli_epi64::<48>(sum[LIMBS - 1]),
        _mm512_slli_epi64::<4>(sum[LIMBS]),
    );
    let quotient = _mm512_madd52hi_epu64(zero, top, broadcast(RECIPROCAL));
    // The rest is below 3 q, so that what is above the fifth limb does not count.
    let mut product = [zero; LIMBS + 1];
    for limb in 0..LIMBS {
        product[limb] = _mm512_madd52lo_epu64(product[limb], quotient, broadcast(Q[limb]));
        product[limb + 1] = _mm512_madd52hi_epu64(product[limb + 1], quotient, broadcast(Q[limb]));
    }
    let mut rest = array::from_fn(|limb| _mm512_sub_epi64(sum[limb], product[limb]));
    rest = borrowed(rest).0;
    stored(reduce_once(reduce_once(rest)))
}

/// Reduces differences of limbs to limbs again, modulo 2^260, and returns the lanes in which they
/// were below zero.
#[inline]
#[target_feature(enable = "avx512f")]
fn borrowed(mut rest: [__m512i; LIMBS]) -> ([__m512i; LIMBS], __mmask8) {
    let limb = broadcast(LIMB);
    for index in 1..LIMBS {
        rest[index] = _mm512_add_epi64(rest[index], _mm512_srai_epi64::<52>(rest[index - 1]));
        rest[index - 1] = _mm512_and_si512(rest[index - 1], limb);
    }
    let is_below = _mm512_cmplt_epi64_mask(rest[LIMBS - 1], _mm512_setzero_si512());
    rest[LIMBS - 1] = _mm512_and_si512(rest[LIMBS - 1], limb);
    (rest, is_below)
}

/// Numbers below 2q, modulo q.
#[inline]
#[target_feature(enable = "avx512f")]
fn reduce_once(number: [__m512i; LIMBS]) -> [__m512i; LIMBS] {
    let (rest, is_below) = borrowed(array::from_fn(|limb| {
        _mm512_sub_epi64(number[limb], broadcast(Q[limb]))
    }));
    array::from_fn(|limb| _mm512_mask_mov_epi64(rest[limb], is_below, number[limb]))
}

#[target_feature(enable = "avx512f,avx512ifma")]
fn dot(base: &Elements, factors: &[[u64; LIMBS]], sources: &[Elements]) -> Elements {
    let mut sum = [_mm512_setzero_si512(); 2 * LIMBS];
    for (factors, sources) in factors.chunks(CARRY_AFTER).zip(sources.chunks(CARRY_AFTER)) {
        for (factor, source) in factors.iter().zip(sources) {
            add_product(&mut sum, factor, array::from_fn(|limb| load(&source[limb])));
        }
        sum = carried(sum);
    }
    let sum = montgomery_reduced(sum);
    barrett(array::from_fn(|limb| match base.get(limb) {
        Some(base) => _mm512_add_epi64(sum[LIMBS + limb], load(base)),
        None => _mm512_setzero_si512(),
    }))
}

#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn add_product<const F: usize, const S: usize>(
    sum: &mut [__m512i; S],
    factor: &[u64; F],
    source: [__m512i; LIMBS],
) {
    for (place, &factor) in factor.iter().enumerate() {
        let factor = broadcast(factor);
        for limb in 0..LIMBS {
            sum[place + limb] = _mm512_madd52lo_epu64(sum[place + limb], source[limb], factor);
            sum[place + limb + 1] =
                _mm512_madd52hi_epu64(sum[place + limb + 1], source[limb], factor);
        }
    }
}

/// A sum plus the multiple of q that makes its lower half zero.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn montgomery_reduced(mut sum: [__m512i; 2 * LIMBS]) -> [__m512i; 2 * LIMBS] {
    for place in 0..LIMBS {
        let factor =
            _mm512_madd52lo_epu64(_mm512_setzero_si512(), sum[place], broadcast(Q_INVERSE));
        for limb in 0..LIMBS {
            sum[place + limb] =
                _mm512_madd52lo_epu64(sum[place + limb], factor, broadcast(Q[limb]));
            sum[place + limb + 1] =
                _mm512_madd52hi_epu64(sum[place + limb + 1], factor, broadcast(Q[limb]));
        }
        sum[place + 1] = _mm512_add_epi64(sum[place + 1], _mm512_srli_epi64::<52>(sum[place]));
    }
    sum
}

#[inline]
#[target_feature(enable = "avx512f")]
fn stored<const L: usize>(vectors: [__m512i; L]) -> [Octet; L] {
    let mut out = [Octet::default(); L];
    out.iter_mut()
        .zip(vectors)
        .for_each(|(out, vector)| store(out, vector));
    out
}
