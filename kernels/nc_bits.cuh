// Products over GF(2^8) for the kernels that invert: by byte permutes, and by the one-bit tensor cores (see invert.cu).
#ifndef NC_BITS_CUH
#define NC_BITS_CUH

#include "nc_common.cuh"

__device__ __forceinline__ nc_u32 times_x(nc_u32 word, nc_u32 polynomial) {
    return ((word & 0x7F7F7F7Fu) << 1) ^ (((word >> 7) & 0x01010101u) * polynomial);
}

// a += factor * x and b += factor * y by three lookups in registers a byte: the factor's multiples of bits 0 to 2, of bits 4 to 6, and
// of bits 3 and 7.
__device__ __forceinline__ void add_product(nc_u32 &a, nc_u32 &b, nc_u32 x, nc_u32 y, uint4 eights, nc_u32 four) {
    const nc_u32 even = __byte_perm(x, y, 0x6420), odd = __byte_perm(x, y, 0x7531);
    const nc_u32 low = (even & 0x0F0F0F0Fu) | (odd << 4 & 0xF0F0F0F0u), high = (even >> 4 & 0x0F0F0F0Fu) | (odd & 0xF0F0F0F0u);
    const nc_u32 first = low & 0x77777777u, second = high & 0x77777777u, third = (low >> 3 & 0x11111111u) | (high >> 2 & 0x22222222u);
    a ^= __byte_perm(eights.x, eights.y, first) ^ __byte_perm(eights.z, eights.w, second) ^ __byte_perm(four, 0, third);
    b ^= __byte_perm(eights.x, eights.y, first >> 16) ^ __byte_perm(eights.z, eights.w, second >> 16) ^ __byte_perm(four, 0, third >> 16);
}

// Rows of bytes a, b, c, d become columns.
__device__ __forceinline__ void transpose(nc_u32 a, nc_u32 b, nc_u32 c, nc_u32 d, nc_u32 (&out)[4]) {
    const nc_u32 ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
    const nc_u32 cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
    out[0] = __byte_perm(ab_low, cd_low, 0x5410);
    out[1] = __byte_perm(ab_low, cd_low, 0x7632);
    out[2] = __byte_perm(ab_high, cd_high, 0x5410);
    out[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

// Four coefficients as this lane's part of the four B operands.
__device__ __forceinline__ void expand(const nc_u32 (&rows_of)[2][256], nc_u32 parity, nc_u32 coefficients, nc_u32 (&out)[4]) {
    const nc_u32 *rows = rows_of[parity];
    transpose(rows[coefficients & 255], rows[coefficients >> 8 & 255], rows[coefficients >> 16 & 255], rows[coefficients >> 24], out);
}

// 16 positions by 8 columns, of 32 sources.
__device__ __forceinline__ void multiply(nc_u32 (&d)[4], uint4 a, nc_u32 b0, nc_u32 b1) {
    asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1), "r"(0));
}

// Four rows by 32 columns by 32 sources: counts of common bits, whose lowest bits are the product's, ...
struct Counts {
    nc_u32 d[4][4], e[4][4];
};
// ... begun with these operands, while those of the product before become 4 bytes, of row q from column 4 * g on. Two of a word's bytes
// are counted side by side in a register and masked, the others shifted together bit by bit: that keeps two kinds of units busy, and
// the tensor cores at the same time.
__device__ __forceinline__ nc_u32 begin_and_finish(Counts &next, uint4 a, uint4 c, const nc_u32 (&low)[4], const nc_u32 (&high)[4], const Counts &last, uint4 powers) {
    nc_u32 even[4], second = 0, fourth = 0;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        multiply(next.d[s], a, low[s], high[s]);
        multiply(next.e[s], c, low[s], high[s]);
        even[s] = ((last.d[s][1] + last.e[s][1] * powers.x) & 0x00010001u) * powers.y + ((last.d[s][0] + last.e[s][0] * powers.x) & 0x00010001u);
        second = __funnelshift_r(second, last.d[s][2], 1);
        fourth = __funnelshift_r(fourth, last.e[s][2], 1);
        second = __funnelshift_r(second, last.d[s][3], 1);
        fourth = __funnelshift_r(fourth, last.e[s][3], 1);
    }
    return ((even[3] * powers.z + even[2]) * powers.w + (even[1] * powers.z + even[0])) ^ __byte_perm(second, fourth, 0x7030);
}

__device__ __forceinline__ nc_u32 combinations(nc_u32 a, nc_u32 b) { return a << 8 | b << 16 | (a ^ b) << 24; }

// Multiples of the i-th power of the generator, none for i = 255: `eights` and `four` of add_product.
__device__ __forceinline__ void multiples(const nc_tables *tables, nc_u32 i, uint4 &eights, nc_u32 &four) {
    nc_u32 power = i < 255 ? tables->exp[i] : 0, powers[8];
    for (int bit = 0; bit < 8; bit++, power = times_x(power, tables->polynomial & 255)) powers[bit] = power;
    eights = make_uint4(combinations(powers[0], powers[1]), combinations(powers[0], powers[1]) ^ 0x01010101u * powers[2],
                        combinations(powers[4], powers[5]), combinations(powers[4], powers[5]) ^ 0x01010101u * powers[6]);
    four = combinations(powers[3], powers[7]);
}

// The bit rows parity, parity + 2, parity + 4, parity + 6 of a coefficient, whose bit matrix this is.
__device__ __forceinline__ nc_u32 bit_rows(nc_u64 bits, nc_u32 parity) {
    nc_u32 word = 0;
    for (int s = 0; s < 4; s++) word |= (nc_u32)(bits >> (16 * s + 8 * parity) & 255) << 8 * s;
    return word;
}

#endif
