// Arithmetic on long numbers: the library of Chu, Zhao and Wang (NETWORKING 2009, section 3) as device functions. Numbers are arrays of 32-bit limbs, the
// least significant first; a modulus is odd, and its highest limb is not zero.
//
//   nc_mp_compare      -1, 0 or 1
//   nc_mp_subtract     a - b, and the borrow
//   nc_mp_mod_add      a + b mod p, both below p
//   nc_mp_mod_subtract a - b mod p
//   nc_mp_multiply     a b, twice as long
//   nc_mp_divide       quotient and remainder (Knuth, volume 2, algorithm D)
//   nc_mp_inverse      a^-1 mod p by the binary algorithm (Hankerson, Menezes and Vanstone, Guide to Elliptic Curve Cryptography, algorithm 2.22)
//   nc_mont_reduce     t R^-1 mod p, R = 2^(32 N) (Handbook of Applied Cryptography, 14.32)
//   nc_mont_multiply   a b R^-1 mod p (14.36), and nc_mont_sum, a b + c d in one go
//
// The products of a row, a[0..N) times one limb of b, overlap by a word. They are kept as two sums: those of even positions and those of odd ones, each of
// which is a chain of multiplications onto pairs of words that a carry goes through, one IMAD.WIDE each. Dividing by 2^32 behind each row is exchanging
// the two. Where N is even the modulus may fill all of its limbs, and one more bit is carried along; where N is odd there have to be five bits to spare.
#ifndef NC_MP_CUH
#define NC_MP_CUH

#include "nc_carry.cuh"
#include "nc_common.cuh"

// Loops over limbs are unrolled: arrays of limbs are registers.

template <int N> __device__ __forceinline__ int nc_mp_compare(const nc_u32 *a, const nc_u32 *b) {
    int order = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (a[i] != b[i]) order = a[i] < b[i] ? -1 : 1;
    return order;
}

template <int N> __device__ __forceinline__ bool nc_mp_is_zero(const nc_u32 *a) {
    nc_u32 any = 0;
#pragma unroll
    for (int i = 0; i < N; i++) any |= a[i];
    return any == 0;
}

template <int N> __device__ __forceinline__ void nc_mp_copy(nc_u32 *out, const nc_u32 *a) {
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = a[i];
}

// out = a if `chosen`
template <int N> __device__ __forceinline__ void nc_mp_copy_if(bool chosen, nc_u32 *out, const nc_u32 *a) {
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = chosen ? a[i] : out[i];
}

// The carry is returned.
template <int N> __device__ __forceinline__ nc_u32 nc_mp_add(nc_u32 *out, const nc_u32 *a, const nc_u32 *b) {
    out[0] = nc_add_cc(a[0], b[0]);
#pragma unroll
    for (int i = 1; i < N; i++) out[i] = nc_addc_cc(a[i], b[i]);
    return nc_addc(0, 0);
}

// The borrow is returned.
template <int N> __device__ __forceinline__ nc_u32 nc_mp_subtract(nc_u32 *out, const nc_u32 *a, const nc_u32 *b) {
    out[0] = nc_sub_cc(a[0], b[0]);
#pragma unroll
    for (int i = 1; i < N; i++) out[i] = nc_subc_cc(a[i], b[i]);
    return nc_subc(0, 0) & 1;
}

// a, with `carry` above it, minus p if it is not smaller: below p if it was below 2 p.
template <int N> __device__ __forceinline__ void nc_mp_reduce_once(nc_u32 *a, nc_u32 carry, const nc_u32 *p) {
    nc_u32 less[N];
    const nc_u32 borrow = nc_mp_subtract<N>(less, a, p);
    nc_mp_copy_if<N>(carry >= borrow, a, less);
}

template <int N> __device__ __forceinline__ void nc_mp_mod_add(nc_u32 *out, const nc_u32 *a, const nc_u32 *b, const nc_u32 *p) {
    const nc_u32 carry = nc_mp_add<N>(out, a, b);
    nc_mp_reduce_once<N>(out, carry, p);
}

template <int N> __device__ __forceinline__ void nc_mp_mod_subtract(nc_u32 *out, const nc_u32 *a, const nc_u32 *b, const nc_u32 *p) {
    nc_u32 more[N];
    const nc_u32 borrow = nc_mp_subtract<N>(out, a, b);
    nc_mp_add<N>(more, out, p);
    nc_mp_copy_if<N>(borrow != 0, out, more);
}

// out[0..N] += a[0..N) * b, where what is in out[N] stays below 2^32.
template <int N> __device__ __forceinline__ void nc_mp_add_row(nc_u32 *out, const nc_u32 *a, nc_u32 b) {
    out[0] = nc_mad_lo_cc(a[0], b, out[0]);
#pragma unroll
    for (int j = 1; j < N; j++) out[j] = nc_madc_lo_cc(a[j], b, out[j]);
    out[N] = nc_addc(out[N], 0);
    out[1] = nc_mad_hi_cc(a[0], b, out[1]);
#pragma unroll
    for (int j = 1; j < N - 1; j++) out[j + 1] = nc_madc_hi_cc(a[j], b, out[j + 1]);
    out[N] = nc_madc_hi(a[N - 1], b, out[N]);
}

// out has 2 N limbs, apart from a and b.
template <int N> __device__ __forceinline__ void nc_mp_multiply(nc_u32 *out, const nc_u32 *a, const nc_u32 *b) {
#pragma unroll
    for (int i = 0; i < 2 * N; i++) out[i] = 0;
#pragma unroll(N <= 10 ? N : 1)
    for (int i = 0; i < N; i++) nc_mp_add_row<N>(out + i, a, b[i]);
}

// The quotient has M - N + 1 limbs of the M of u, which becomes the remainder in its lower N limbs.
template <int M, int N> __device__ __forceinline__ void nc_mp_divide(nc_u32 *quotient, nc_u32 *u, const nc_u32 *divisor) {
    const nc_u32 shift = __clz(divisor[N - 1]);
    nc_u32 d[N], over = __funnelshift_l(u[M - 1], 0, shift); // what is shifted out
#pragma unroll
    for (int i = N - 1; i > 0; i--) d[i] = __funnelshift_l(divisor[i - 1], divisor[i], shift);
    d[0] = divisor[0] << shift;
#pragma unroll
    for (int i = M - 1; i > 0; i--) u[i] = __funnelshift_l(u[i - 1], u[i], shift);
    u[0] <<= shift;
#pragma unroll(M <= 20 ? M : 1)
    for (int i = M - N; i >= 0; i--) {
        const nc_u64 top = (nc_u64)over << 32 | u[i + N - 1];
        nc_u64 guess = over >= d[N - 1] ? 0xFFFFFFFFull : top / d[N - 1];
        nc_u64 rest = top - guess * d[N - 1];
        while (rest >> 32 == 0 && guess * d[N - 2] > (rest << 32 | u[i + N - 2])) {
            guess--;
            rest += d[N - 1];
        }
        nc_u32 product[N + 1];
#pragma unroll
        for (int j = 0; j <= N; j++) product[j] = 0;
        nc_mp_add_row<N>(product, d, (nc_u32)guess);
        const nc_u32 borrow = nc_mp_subtract<N>(u + i, u + i, product);
        if (over < product[N] + (nc_u64)borrow) {
            guess--;
            nc_mp_add<N>(u + i, u + i, d);
        }
        quotient[i] = (nc_u32)guess;
        over = u[i + N - 1];
    }
#pragma unroll
    for (int i = 0; i < N - 1; i++) u[i] = __funnelshift_r(u[i], u[i + 1], shift);
    u[N - 1] >>= shift;
}

// a / 2 mod p
template <int N> __device__ __forceinline__ void nc_mp_halve(nc_u32 *a, const nc_u32 *p) {
    nc_u32 sum[N];
    nc_u32 carry = nc_mp_add<N>(sum, a, p);
    const bool is_odd = a[0] & 1;
    nc_mp_copy_if<N>(is_odd, a, sum);
    carry = is_odd ? carry : 0;
#pragma unroll
    for (int i = 0; i < N - 1; i++) a[i] = __funnelshift_r(a[i], a[i + 1], 1);
    a[N - 1] = __funnelshift_r(a[N - 1], carry, 1);
}

template <int N> __device__ __forceinline__ void nc_mp_shift_right(nc_u32 *a) {
#pragma unroll
    for (int i = 0; i < N - 1; i++) a[i] = __funnelshift_r(a[i], a[i + 1], 1);
    a[N - 1] >>= 1;
}

// False, and zero, if a has no inverse.
template <int N> __device__ __forceinline__ bool nc_mp_inverse(nc_u32 *out, const nc_u32 *a, const nc_u32 *p) {
    nc_u32 u[N], v[N], x[N], y[N]; // a x = u, a y = v mod p
    nc_mp_copy<N>(u, a);
    nc_mp_copy<N>(v, p);
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = i == 0, y[i] = 0;
#pragma unroll 1
    while (!nc_mp_is_zero<N>(u)) {
        if (u[0] & 1) {
            nc_u32 less[N], difference[N];
            const bool is_below = nc_mp_subtract<N>(less, u, v) != 0;
            nc_mp_mod_subtract<N>(difference, x, y, p);
            if (is_below) { // the other way round, and the two change places
                nc_mp_subtract<N>(less, v, u);
                nc_mp_mod_subtract<N>(difference, y, x, p);
                nc_mp_copy<N>(v, u);
                nc_mp_copy<N>(y, x);
            }
            nc_mp_copy<N>(u, less);
            nc_mp_copy<N>(x, difference);
        } else {
            nc_mp_shift_right<N>(u);
            nc_mp_halve<N>(x, p);
        }
    }
    nc_u32 rest = v[0] ^ 1;
#pragma unroll
    for (int i = 1; i < N; i++) rest |= v[i];
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = rest ? 0 : y[i];
    return rest == 0;
}

// t R^-1 mod p for t < R p; t has 2 N limbs and is used up. `negated` is -p^-1 mod 2^32.
template <int N> __device__ __forceinline__ void nc_mont_reduce(nc_u32 *out, nc_u32 *t, const nc_u32 *p, nc_u32 negated) {
    nc_u32 over = 0;
#pragma unroll(N <= 10 ? N : 1)
    for (int i = 0; i < N; i++) {
        const nc_u32 m = t[i] * negated;
        t[i] = nc_mad_lo_cc(p[0], m, t[i]);
#pragma unroll
        for (int j = 1; j < N; j++) t[i + j] = nc_madc_lo_cc(p[j], m, t[i + j]);
        t[i + N] = nc_addc_cc(t[i + N], over);
        over = nc_addc(0, 0);
        t[i + 1] = nc_mad_hi_cc(p[0], m, t[i + 1]);
#pragma unroll
        for (int j = 1; j < N; j++) t[i + j + 1] = nc_madc_hi_cc(p[j], m, t[i + j + 1]);
        over = nc_addc(over, 0);
    }
    nc_mp_copy<N>(out, t + N);
    nc_mp_reduce_once<N>(out, over, p);
}

__device__ __forceinline__ nc_u32 nc_low(nc_u64 pair) { return (nc_u32)pair; }
__device__ __forceinline__ nc_u32 nc_high(nc_u64 pair) { return (nc_u32)(pair >> 32); }
__device__ __forceinline__ nc_u64 nc_pair(nc_u32 low, nc_u32 high) { return (nc_u64)high << 32 | low; }

// The two sums: words 2 i and 2 i + 1 of `even` are at these positions, those of `odd` at the positions behind. `top` is one bit above, where N is even;
// where N is odd, the last pair of `odd` has one word.
template <int N> struct nc_mont {
    nc_u64 even[(N + 1) / 2], odd[(N + 1) / 2];
    nc_u32 top;
};

// Adds a[0..N) * b to `even`, whose carry goes to `odd`.
template <int N> __device__ __forceinline__ void nc_mont_add_even(nc_u64 *even, nc_u64 *odd, nc_u32 &top, const nc_u32 *a, nc_u32 b) {
    constexpr int PAIRS = (N + 1) / 2;
    even[0] = nc_mad_wide_cc(a[0], b, even[0]);
#pragma unroll
    for (int i = 1; i < PAIRS; i++) even[i] = nc_madc_wide_cc(a[2 * i], b, even[i]);
    if (N % 2 == 0) {
        odd[PAIRS - 1] = nc_pair(nc_low(odd[PAIRS - 1]), nc_addc_cc(nc_high(odd[PAIRS - 1]), 0));
        top = nc_addc(top, 0);
    }
}

// Adds a[0..N) * b.
template <int N> __device__ __forceinline__ void nc_mont_add(nc_u64 *even, nc_u64 *odd, nc_u32 &top, const nc_u32 *a, nc_u32 b) {
    odd[0] = nc_mad_wide_cc(a[1], b, odd[0]);
#pragma unroll
    for (int i = 1; i < N / 2; i++) odd[i] = nc_madc_wide_cc(a[2 * i + 1], b, odd[i]);
    if (N & 1) odd[N / 2] = nc_addc(nc_low(odd[N / 2]), 0);
    else top = nc_addc(top, 0);
    nc_mont_add_even<N>(even, odd, top, a, b);
}

// Divides by 2^32 what has nothing at position 0, and adds a[0..N) * b. `even` is what was `odd` before, and the other way round.
template <int N> __device__ __forceinline__ void nc_mont_next(nc_u64 *even, nc_u64 *odd, nc_u32 &top, const nc_u32 *a, nc_u32 b) {
    constexpr int PAIRS = (N + 1) / 2;
    even[0] = nc_pair(nc_add_cc(nc_low(even[0]), nc_high(odd[0])), nc_high(even[0]));
#pragma unroll
    for (int i = 0; i < PAIRS - 1; i++) odd[i] = nc_madc_wide_cc(a[2 * i + 1], b, odd[i + 1]);
    if (N & 1) {
        odd[PAIRS - 1] = nc_addc(0, 0);
    } else {
        odd[PAIRS - 1] = nc_madc_wide_cc(a[N - 1], b, nc_pair(0, top));
        top = nc_addc(0, 0);
    }
    nc_mont_add_even<N>(even, odd, top, a, b);
}

// The row's multiple of p that leaves nothing at position 0.
template <int N> __device__ __forceinline__ void nc_mont_clear(nc_u64 *even, nc_u64 *odd, nc_u32 &top, const nc_u32 *p, nc_u32 negated) {
    nc_mont_add<N>(even, odd, top, p, nc_low(even[0]) * negated);
}

template <int N> __device__ __forceinline__ void nc_mont_begin(nc_mont<N> &sums) {
#pragma unroll
    for (int i = 0; i < (N + 1) / 2; i++) sums.even[i] = sums.odd[i] = 0;
    sums.top = 0;
}

// The sum of both, divided by 2^32. The carry is returned.
template <int N> __device__ __forceinline__ nc_u32 nc_mont_total(nc_u32 *out, const nc_u64 *even, const nc_u64 *odd) {
    nc_u32 one[N + 1], other[N + 1];
#pragma unroll
    for (int i = 0; i < (N + 1) / 2; i++) {
        one[2 * i] = nc_low(even[i]), one[2 * i + 1] = nc_high(even[i]);
        other[2 * i] = nc_low(odd[i]);
        if (2 * i + 1 < N) other[2 * i + 1] = nc_high(odd[i]);
    }
    if (N % 2 == 0) one[N] = 0;
    return nc_mp_add<N>(out, one + 1, other);
}

// The same, and less than p if it was less than 2 p.
template <int N>
__device__ __forceinline__ void nc_mont_end(nc_u32 *out, const nc_u64 *even, const nc_u64 *odd, nc_u32 top, const nc_u32 *p) {
    const nc_u32 carry = nc_mont_total<N>(out, even, odd);
    nc_mp_reduce_once<N>(out, top + carry, p);
}

// a b R^-1 mod p for numbers below p of an even number of limbs, a multiple of four. `load(i)` has the limbs i to i + 3 of b, i a multiple of four.
// Short code that is gone through again and again.
template <int N, class Load>
__device__ __forceinline__ void nc_mont_multiply_by(nc_u32 *out, const nc_u32 *a, Load load, const nc_u32 *p, nc_u32 negated) {
    static_assert(N % 4 == 0, "limbs by fours");
    nc_mont<N> sums;
    nc_mont_begin(sums);
#pragma unroll 1
    for (int i = 0; i < N; i += 4) {
        const uint4 b = load(i);
        nc_mont_next<N>(sums.even, sums.odd, sums.top, a, b.x);
        nc_mont_clear<N>(sums.even, sums.odd, sums.top, p, negated);
        nc_mont_next<N>(sums.odd, sums.even, sums.top, a, b.y);
        nc_mont_clear<N>(sums.odd, sums.even, sums.top, p, negated);
        nc_mont_next<N>(sums.even, sums.odd, sums.top, a, b.z);
        nc_mont_clear<N>(sums.even, sums.odd, sums.top, p, negated);
        nc_mont_next<N>(sums.odd, sums.even, sums.top, a, b.w);
        nc_mont_clear<N>(sums.odd, sums.even, sums.top, p, negated);
    }
    nc_mont_end<N>(out, sums.odd, sums.even, sums.top, p);
}

// (a b + c d) R^-1 mod p, where N is odd; without c and d if `IS_SUM` is not said. All of it unrolled.
template <int N, bool IS_SUM>
__device__ __forceinline__ void nc_mont_rows(nc_u32 *out, const nc_u32 *a, const nc_u32 *b, const nc_u32 *c, const nc_u32 *d, const nc_u32 *p,
                                             nc_u32 negated) {
    static_assert(N & 1, "see above for even numbers of limbs");
    nc_mont<N> sums;
    nc_mont_begin(sums);
#pragma unroll
    for (int i = 0; i < N; i++) {
        nc_u64 *even = i & 1 ? sums.odd : sums.even, *odd = i & 1 ? sums.even : sums.odd;
        nc_mont_next<N>(even, odd, sums.top, a, b[i]);
        if (IS_SUM) nc_mont_add<N>(even, odd, sums.top, c, d[i]);
        nc_mont_clear<N>(even, odd, sums.top, p, negated);
    }
    nc_mont_end<N>(out, sums.even, sums.odd, sums.top, p);
}
template <int N>
__device__ __forceinline__ void nc_mont_multiply(nc_u32 *out, const nc_u32 *a, const nc_u32 *b, const nc_u32 *p, nc_u32 negated) {
    nc_mont_rows<N, false>(out, a, b, a, b, p, negated);
}
template <int N>
__device__ __forceinline__ void nc_mont_sum(nc_u32 *out, const nc_u32 *a, const nc_u32 *b, const nc_u32 *c, const nc_u32 *d, const nc_u32 *p,
                                            nc_u32 negated) {
    nc_mont_rows<N, true>(out, a, b, c, d, p, negated);
}

#endif
