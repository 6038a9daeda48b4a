// Inversion of many matrices over GF(2^8) at once.
//
// (header follows)
#include "nc_common.cuh"

#define PANEL 32
#define HALF 16
#define WINDOW 32
#define THREADS NC_INVERT_THREADS
#define WARPS (THREADS / 32)

// What a block keeps beside the matrix.
struct Scratch {
    uint4 powers;             // 65536, 2, 4, 16: not known to the compiler, which would shift and add on the busier pipe
    nc_u32 rows_of[2][256];   // [parity][c]: the bit rows parity, parity + 2, parity + 4, parity + 6 of coefficient c
    uint4 eights[256];        // products of the i-th power of the generator with 0 ... 7 and with 16 * (0 ... 7); the last are zero
    nc_u32 fours[256];        // with 0, 8, 128, 136
    nc_u16 log16[256];        // 16 * log, for zero a number too large
    nc_u8 log[256];
    nc_u8 exp[256];
    nc_u8 pivot_inverse[HALF * HALF];
    nc_u8 partner[HALF * HALF];   // the pivot rows in the other half of the panel
    nc_u8 basis[HALF * HALF];
    nc_u16 found[HALF];
    nc_u16 order[1024];       // pivot rows by column, then the rows not used yet
    nc_u16 column_of[1024];   // the inverse of `order` for the pivot rows, 0xFFFF for the others
    nc_u32 singular;
    nc_u32 polynomial;
};
static_assert(sizeof(Scratch) <= NC_INVERT_FIXED_BYTES, "the host would give too little shared memory");

// Where the matrix is. Rows and columns from n to the next multiple of 32 are those of the identity.
struct InShared {
    nc_u8 *base;
    nc_u32 pitch, n, padded;

    __device__ __forceinline__ nc_u32 word(nc_u32 row, nc_u32 column) const { return *reinterpret_cast<const nc_u32 *>(base + row * pitch + column); }
    __device__ __forceinline__ uint4 words(nc_u32 row, nc_u32 column) const { return *reinterpret_cast<const uint4 *>(base + row * pitch + column); }
    __device__ __forceinline__ nc_u16 half_word(nc_u32 row, nc_u32 column) const { return *reinterpret_cast<const nc_u16 *>(base + row * pitch + column); }
    __device__ __forceinline__ void put(nc_u32 row, nc_u32 column, nc_u32 value) const { *reinterpret_cast<nc_u32 *>(base + row * pitch + column) = value; }
    __device__ __forceinline__ void put_half(nc_u32 row, nc_u32 column, nc_u16 value) const { *reinterpret_cast<nc_u16 *>(base + row * pitch + column) = value; }
};

struct InGlobal {
    nc_u8 *base;
    nc_u32 pitch, n, padded;

    __device__ __forceinline__ nc_u32 word(nc_u32 row, nc_u32 column) const {
        if (row >= n) return column == (row & ~3u) ? 1u << 8 * (row & 3) : 0;
        return column < nc_row_pitch(n) ? *reinterpret_cast<const nc_u32 *>(base + (nc_u64)row * pitch + column) : 0;
    }
    __device__ __forceinline__ uint4 words(nc_u32 row, nc_u32 column) const {
        if (row >= n || column >= nc_row_pitch(n)) return make_uint4(word(row, column), word(row, column + 4), word(row, column + 8), word(row, column + 12));
        return *reinterpret_cast<const uint4 *>(base + (nc_u64)row * pitch + column);
    }
    __device__ __forceinline__ nc_u16 half_word(nc_u32 row, nc_u32 column) const { return (nc_u16)(word(row, column & ~3u) >> 8 * (column & 2)); }
    __device__ __forceinline__ void put(nc_u32 row, nc_u32 column, nc_u32 value) const {
        if (row < n && column < nc_row_pitch(n)) *reinterpret_cast<nc_u32 *>(base + (nc_u64)row * pitch + column) = value;
    }
    __device__ __forceinline__ void put_half(nc_u32 row, nc_u32 column, nc_u16 value) const {
        if (row < n && column < nc_row_pitch(n)) *reinterpret_cast<nc_u16 *>(base + (nc_u64)row * pitch + column) = value;
    }
};

__device__ __forceinline__ nc_u32 times_x(nc_u32 word, nc_u32 polynomial) {
    return ((word & 0x7F7F7F7Fu) << 1) ^ (((word >> 7) & 0x01010101u) * polynomial);
}

// row ^= factor * other
__device__ __forceinline__ void add_multiple(uint4 &row, nc_u32 factor, uint4 other, nc_u32 polynomial) {
#pragma unroll
    for (int bit = 0; bit < 8; bit++) {
        const nc_u32 mask = (nc_u32)((int)(factor << (31 - bit)) >> 31);
        row.x ^= other.x & mask;
        row.y ^= other.y & mask;
        row.z ^= other.z & mask;
        row.w ^= other.w & mask;
        if (bit == 7) break;
        other.x = times_x(other.x, polynomial);
        other.y = times_x(other.y, polynomial);
        other.z = times_x(other.z, polynomial);
        other.w = times_x(other.w, polynomial);
    }
}

__device__ __forceinline__ nc_u32 &part(uint4 &row, int index) { return index == 0 ? row.x : index == 1 ? row.y : index == 2 ? row.z : row.w; }
__device__ __forceinline__ nc_u32 byte_of(uint4 row, nc_u32 index) {
    const nc_u32 word = index < 8 ? (index < 4 ? row.x : row.y) : (index < 12 ? row.z : row.w);
    return word >> 8 * (index & 3) & 255;
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

__device__ __forceinline__ uint4 from_lane(uint4 row, int lane) {
    return make_uint4(__shfl_sync(~0u, row.x, lane), __shfl_sync(~0u, row.y, lane), __shfl_sync(~0u, row.z, lane), __shfl_sync(~0u, row.w, lane));
}

// Eliminates HALF columns among the first rows of `order` not used yet, one row a lane, in place: lane j ends with row j of the
// pivots' inverse. The pivot of column j is lane j's row, unless that has a zero there. False if those rows do not do.
template <class Matrix>
__device__ __forceinline__ bool factor_window(const Matrix &matrix, Scratch &scratch, nc_u32 first, nc_u32 rows) {
    const nc_u32 lane = threadIdx.x & 31;
    const bool present = lane < rows;
    nc_u32 row = present ? scratch.order[first + lane] : 0;
    uint4 mine = present ? matrix.words(row, first) : make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (nc_u32 four = 0; four < HALF; four += 4) {
#pragma unroll
        for (nc_u32 i = 0; i < 4; i++) {
            const nc_u32 j = four + i, shift = 8 * i;
            for (;;) {
                const nc_u32 value = mine.x >> shift & 255;
                const uint4 pivot = from_lane(mine, j);
                const nc_u32 log = scratch.log16[value], log_divisor = __shfl_sync(~0u, log, j);
                const nc_u32 difference = (lane == j ? 0 : log) - log_divisor;
                const nc_u32 at = min(min(difference, difference + 16 * 255), 16 * 255);
                const uint4 eights = *reinterpret_cast<const uint4 *>(reinterpret_cast<const nc_u8 *>(scratch.eights) + at);
                const nc_u32 fours = *reinterpret_cast<const nc_u32 *>(reinterpret_cast<const nc_u8 *>(scratch.fours) + at / 4);
                uint4 next = lane == j ? make_uint4(0, 0, 0, 0) : make_uint4(mine.x & ~(255u << shift), mine.y, mine.z, mine.w);
                add_product(next.x, next.y, (pivot.x & ~(255u << shift)) | 1u << shift, pivot.y, eights, fours);
                add_product(next.z, next.w, pivot.z, pivot.w, eights, fours);
                if (pivot.x >> shift & 255) {
                    mine = next;
                    break;
                }
                const nc_u32 candidates = __ballot_sync(~0u, lane > j && value != 0);
                if (candidates == 0) return false;
                const nc_u32 source = __ffs(candidates) - 1, from = lane == j ? source : lane == source ? j : lane;
                mine = from_lane(mine, from);
                row = __shfl_sync(~0u, row, from);
            }
        }
        mine = make_uint4(mine.y, mine.z, mine.w, mine.x);
    }
    if (lane < HALF) {
        *reinterpret_cast<uint4 *>(scratch.pivot_inverse + lane * HALF) = mine;
        *reinterpret_cast<uint4 *>(scratch.partner + lane * HALF) = matrix.words(row, first ^ HALF);
        scratch.column_of[row] = (nc_u16)(first + lane);
    }
    if (present) scratch.order[first + lane] = (nc_u16)row;
    __syncwarp();
    return true;
}

// Brings rows that are independent in the panel's columns to the front of those not used yet, looking at all of them. False if there
// are too few: the matrix is singular. Rarely needed for random matrices, always for sparse ones.
template <class Matrix>
__device__ __noinline__ bool find_rows(const Matrix matrix, Scratch &scratch, nc_u32 first) {
    const nc_u32 lane = threadIdx.x & 31;
    const nc_u32 polynomial = scratch.polynomial;
    nc_u32 count = 0, leading = 0;   // lane b of `leading`: the leading column of basis row b
    for (nc_u32 start = first; start < matrix.padded && count < HALF; start += 32) {
        uint4 mine = make_uint4(0, 0, 0, 0);
        if (start + lane < matrix.padded) mine = matrix.words(scratch.order[start + lane], first);
        for (nc_u32 b = 0; b < count; b++) {
            const nc_u32 column = __shfl_sync(~0u, leading, b);
            add_multiple(mine, byte_of(mine, column), *reinterpret_cast<const uint4 *>(scratch.basis + b * HALF), polynomial);
        }
        while (count < HALF) {
            const nc_u32 candidates = __ballot_sync(~0u, (mine.x | mine.y | mine.z | mine.w) != 0);
            if (candidates == 0) break;
            const int source = __ffs(candidates) - 1;
            const uint4 pivot = from_lane(mine, source);
            nc_u32 column = 0;
            while (byte_of(pivot, column) == 0) column++;
            uint4 scaled = make_uint4(0, 0, 0, 0);
            add_multiple(scaled, scratch.exp[255 - scratch.log[byte_of(pivot, column)]], pivot, polynomial);
            add_multiple(mine, byte_of(mine, column), scaled, polynomial);
            if (lane == 0) {
                *reinterpret_cast<uint4 *>(scratch.basis + count * HALF) = scaled;
                scratch.found[count] = (nc_u16)(start + source);
            }
            if (lane == count) leading = column;
            __syncwarp();
            count++;
        }
    }
    if (count < HALF) return false;
    if (lane == 0) {
        for (nc_u32 i = 0; i < HALF; i++) {
            const nc_u16 row = scratch.order[scratch.found[i]];
            scratch.order[scratch.found[i]] = scratch.order[first + i];
            scratch.order[first + i] = row;
        }
    }
    __syncwarp();
    return true;
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
__device__ __forceinline__ void expand(const Scratch &scratch, nc_u32 parity, nc_u32 coefficients, nc_u32 (&out)[4]) {
    const nc_u32 *rows = scratch.rows_of[parity];
    transpose(rows[coefficients & 255], rows[coefficients >> 8 & 255], rows[coefficients >> 16 & 255], rows[coefficients >> 24], out);
}

// 16 positions by 8 columns, of 16 and of 32 sources.
__device__ __forceinline__ void multiply(nc_u32 (&d)[4], nc_u32 a0, nc_u32 a1, nc_u32 b) {
    asm("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a0), "r"(a1), "r"(b), "r"(0));
}
__device__ __forceinline__ void multiply(nc_u32 (&d)[4], uint4 a, nc_u32 b0, nc_u32 b1) {
    asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1), "r"(0));
}

// 16 rows of 16 bytes as the A operand; position 2 * g is row g of the operand, position 2 * g + 1 its row g + 8.
struct Tile { nc_u32 a0, a1; };
__device__ __forceinline__ Tile load_tile(const nc_u8 *bytes) {
    const nc_u32 lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    nc_u32 pair[4];
#pragma unroll
    for (int t = 0; t < 4; t++) pair[t] = *reinterpret_cast<const nc_u16 *>(bytes + (4 * q + t) * HALF + 2 * g);
    const nc_u32 low = pair[0] | pair[1] << 16, high = pair[2] | pair[3] << 16;
    return {__byte_perm(low, high, 0x6420), __byte_perm(low, high, 0x7531)};
}

// Four rows by 16 positions by 16 sources: two bytes, of row q at positions 2 * g and 2 * g + 1.
__device__ __forceinline__ nc_u16 product(Tile tile, const nc_u32 (&b)[4]) {
    nc_u32 d[4][4], low = 0, high = 0;
#pragma unroll
    for (int s = 0; s < 4; s++) multiply(d[s], tile.a0, tile.a1, b[s]);
#pragma unroll
    for (int s = 0; s < 4; s++) {
        low = __funnelshift_r(low, d[s][0], 1);
        low = __funnelshift_r(low, d[s][1], 1);
        high = __funnelshift_r(high, d[s][2], 1);
        high = __funnelshift_r(high, d[s][3], 1);
    }
    return (nc_u16)__byte_perm(low, high, 0x0073);
}

// After half a panel is factored: the factors of all rows, which end in the half's own columns, and with them the other half.
template <class Matrix>
__device__ __forceinline__ void finish_half(const Matrix &matrix, const Scratch &scratch, nc_u32 half, nc_u32 groups) {
    const nc_u32 lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    const Tile inverse = load_tile(scratch.pivot_inverse), partner = load_tile(scratch.partner);
    for (nc_u32 start = threadIdx.x / 32; start < groups; start += 2 * WARPS) {
        const nc_u32 group[2] = {start, start + WARPS < groups ? start + WARPS : start};
        nc_u16 result[2];
        nc_u32 b[4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const nc_u32 row = 4 * group[i] + (g >> 1), slot = scratch.column_of[row] - half;
            nc_u32 coefficients = matrix.word(row, half + 4 * q);
            if (slot < HALF) coefficients = slot / 4 == q ? 1u << 8 * (slot & 3) : 0;
            expand(scratch, g & 1, coefficients, b);
            result[i] = product(inverse, b);
        }
        __syncwarp();
        matrix.put_half(4 * group[0] + q, half + 2 * g, result[0]);
        matrix.put_half(4 * group[1] + q, half + 2 * g, result[1]);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const nc_u32 row = 4 * group[i] + q;
            expand(scratch, g & 1, matrix.word(4 * group[i] + (g >> 1), half + 4 * q), b);
            const nc_u16 kept = (nc_u32)(scratch.column_of[row] - half) < HALF ? 0 : matrix.half_word(row, (half ^ HALF) + 2 * g);
            result[i] = product(partner, b) ^ kept;
        }
        __syncwarp();
        matrix.put_half(4 * group[0] + q, (half ^ HALF) + 2 * g, result[0]);
        matrix.put_half(4 * group[1] + q, (half ^ HALF) + 2 * g, result[1]);
    }
    __syncwarp();
}

// The panel's pivot rows as A operands: for every 32 columns two times 32 lanes of 16 bytes. Row g of the first operand is column
// 4 * g, row g + 8 the next one; the second operand has the two behind these.
template <class Matrix>
__device__ __forceinline__ void load_pivots(const Matrix &matrix, const Scratch &scratch, nc_u32 first, uint4 *pivots) {
    const nc_u32 lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    for (nc_u32 column = threadIdx.x / 32 * 32; column < matrix.padded; column += 32 * WARPS) {
        if (column == first) continue;
        nc_u32 low[4], high[4], word[8];
#pragma unroll
        for (int t = 0; t < 8; t++) word[t] = matrix.word(scratch.order[first + t / 4 * HALF + 4 * q + t % 4], column + 4 * g);
        transpose(word[0], word[1], word[2], word[3], low);
        transpose(word[4], word[5], word[6], word[7], high);
        pivots[column * 2 + lane] = make_uint4(low[0], low[1], high[0], high[1]);
        pivots[column * 2 + 32 + lane] = make_uint4(low[2], low[3], high[2], high[3]);
    }
}

// All other columns: what was there, or nothing in pivot rows, plus factors times pivot rows.
template <class Matrix>
__device__ __forceinline__ void update(const Matrix &matrix, const Scratch &scratch, nc_u32 first, nc_u32 groups, const uint4 *pivots) {
    const nc_u32 lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    const uint4 powers = scratch.powers;
    for (nc_u32 group = threadIdx.x / 32; group < groups; group += WARPS) {
        nc_u32 low[4], high[4];
        expand(scratch, g & 1, matrix.word(4 * group + (g >> 1), first + 4 * q), low);
        expand(scratch, g & 1, matrix.word(4 * group + (g >> 1), first + HALF + 4 * q), high);
        const nc_u32 row = 4 * group + q;
        const nc_u32 keep = (nc_u32)(scratch.column_of[row] - first) < PANEL ? 0 : ~0u;
        for (nc_u32 column = 0; column < matrix.padded; column += 32) {
            if (column == first) continue;
            const uint4 a = pivots[column * 2 + lane], c = pivots[column * 2 + 32 + lane];
            nc_u32 even[4], odd_low = 0, odd_high = 0;
#pragma unroll
            for (int s = 0; s < 4; s++) {
                nc_u32 d[4], e[4];
                multiply(d, a, low[s], high[s]);
                multiply(e, c, low[s], high[s]);
                even[s] = ((d[1] + e[1] * powers.x) & 0x00010001u) * powers.y + ((d[0] + e[0] * powers.x) & 0x00010001u);
                odd_low = __funnelshift_r(odd_low, d[2], 1);
                odd_high = __funnelshift_r(odd_high, e[2], 1);
                odd_low = __funnelshift_r(odd_low, d[3], 1);
                odd_high = __funnelshift_r(odd_high, e[3], 1);
            }
            const nc_u32 sum = ((even[3] * powers.z + even[2]) * powers.w + (even[1] * powers.z + even[0])) ^ __byte_perm(odd_low, odd_high, 0x7030);
            matrix.put(row, column + 4 * g, (matrix.word(row, column + 4 * g) & keep) ^ sum);
        }
    }
}

template <class Matrix>
__device__ __forceinline__ bool factor(const Matrix &matrix, Scratch &scratch, nc_u32 half) {
    const nc_u32 left = matrix.padded - half;
    return factor_window(matrix, scratch, half, left < WINDOW ? left : WINDOW)
        || (find_rows(matrix, scratch, half) && factor_window(matrix, scratch, half, HALF));
}

template <class Matrix>
__device__ __forceinline__ bool eliminate(const Matrix &matrix, Scratch &scratch, uint4 *pivots) {
    const nc_u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0), groups = matrix.padded / 4;
    for (nc_u32 first = 0; first < matrix.padded; first += PANEL) {
#pragma unroll 1
        for (nc_u32 half = first; half < first + PANEL; half += HALF) {
            __syncthreads();
            if (warp == 0) {
                const bool found = factor(matrix, scratch, half);
                if (threadIdx.x == 0) scratch.singular = !found;
            }
            __syncthreads();
            if (scratch.singular) return false;
            finish_half(matrix, scratch, half, groups);
        }
        load_pivots(matrix, scratch, first, pivots);
        __syncthreads();
        update(matrix, scratch, first, groups, pivots);
    }
    __syncthreads();
    return true;
}

__device__ __forceinline__ nc_u32 combinations(nc_u32 a, nc_u32 b) { return a << 8 | b << 16 | (a ^ b) << 24; }

__device__ __forceinline__ void fill_tables(Scratch &scratch, const nc_tables *tables) {
    for (nc_u32 i = threadIdx.x; i < 512; i += THREADS) {
        const nc_u64 bits = tables->bits[i & 255];
        nc_u32 word = 0;
        for (int s = 0; s < 4; s++) word |= (nc_u32)(bits >> (16 * s + 8 * (i >> 8)) & 255) << 8 * s;
        scratch.rows_of[i >> 8][i & 255] = word;
        if (i >= 256) continue;
        scratch.exp[i] = tables->exp[i];
        scratch.log[i] = tables->log[i];
        scratch.log16[i] = i ? 16 * tables->log[i] : 16 * 1024;
        nc_u32 power = i < 255 ? tables->exp[i] : 0, powers[8];
        for (int bit = 0; bit < 8; bit++, power = times_x(power, tables->polynomial & 255)) powers[bit] = power;
        scratch.eights[i] = make_uint4(combinations(powers[0], powers[1]), combinations(powers[0], powers[1]) ^ 0x01010101u * powers[2],
                                       combinations(powers[4], powers[5]), combinations(powers[4], powers[5]) ^ 0x01010101u * powers[6]);
        scratch.fours[i] = combinations(powers[3], powers[7]);
    }
    if (threadIdx.x == 0) {
        scratch.polynomial = tables->polynomial & 255;
        scratch.powers = make_uint4(65536, 2, 4, 16);
    }
}

__device__ __forceinline__ void start_order(Scratch &scratch, nc_u32 padded) {
    for (nc_u32 i = threadIdx.x; i < padded; i += THREADS) {
        scratch.order[i] = (nc_u16)i;
        scratch.column_of[i] = 0xFFFF;
    }
}

// Bytes of a row of the matrix from `column` on, those behind n as of the identity.
__device__ __forceinline__ uint4 given(const nc_invert_task &task, nc_u32 row, nc_u32 column) {
    nc_u32 word[4] = {0, 0, 0, 0};
    if (row < task.n) {
        if (column >= task.n) return make_uint4(0, 0, 0, 0);
        const uint4 raw = *reinterpret_cast<const uint4 *>(task.matrix + (nc_u64)row * task.pitch + column);
        word[0] = raw.x, word[1] = raw.y, word[2] = raw.z, word[3] = raw.w;
        const nc_u32 here = task.n - column;
#pragma unroll
        for (nc_u32 i = 0; i < 4; i++)
            if (here < 4 * i + 4) word[i] = here <= 4 * i ? 0 : word[i] & ((1u << 8 * (here - 4 * i)) - 1);
    } else {
        for (nc_u32 i = 0; i < 4; i++)
            if (column + 4 * i == (row & ~3u)) word[i] = 1u << 8 * (row & 3);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
nc_invert_shared(const nc_invert_task *tasks, nc_u32 count, const nc_tables *tables) {
    extern __shared__ uint4 memory[];
    Scratch &scratch = *reinterpret_cast<Scratch *>(memory);
    fill_tables(scratch, tables);
    for (nc_u32 t = blockIdx.x; t < count; t += gridDim.x) {
        const nc_invert_task task = tasks[t];
        const nc_u32 padded = (task.n + PANEL - 1) / PANEL * PANEL, stored = nc_row_pitch(task.n);
        const InShared matrix = {reinterpret_cast<nc_u8 *>(memory) + NC_INVERT_FIXED_BYTES, NC_INVERT_PITCH(task.n), task.n, padded};
        __syncthreads();
        start_order(scratch, padded);
        const nc_u32 across = matrix.pitch / 16;
        for (nc_u32 i = threadIdx.x; i < padded * across; i += THREADS) {
            const nc_u32 row = i / across, column = i % across * 16;
            *reinterpret_cast<uint4 *>(matrix.base + row * matrix.pitch + column) = given(task, row, column);
        }
        uint4 *pivots = reinterpret_cast<uint4 *>(matrix.base + padded * matrix.pitch);
        const bool regular = eliminate(matrix, scratch, pivots);
        if (threadIdx.x == 0) *reinterpret_cast<nc_u32 *>(task.status) = regular;
        if (!regular) continue;
        for (nc_u32 i = threadIdx.x; i < task.n * (stored / 16); i += THREADS) {
            const nc_u32 row = i / (stored / 16), column = i % (stored / 16) * 16;
            const nc_u8 *from = matrix.base + scratch.order[row] * matrix.pitch;
            nc_u32 word[4] = {0, 0, 0, 0};
#pragma unroll
            for (nc_u32 j = 0; j < 16; j++)
                if (column + j < task.n) word[j / 4] |= (nc_u32)from[scratch.column_of[column + j]] << 8 * (j % 4);
            *reinterpret_cast<uint4 *>(task.inverse + (nc_u64)row * task.pitch + column) = make_uint4(word[0], word[1], word[2], word[3]);
        }
    }
}

// The rows and columns of the matrix into their places, in global memory: first within the rows, then stripes of columns.
__device__ __forceinline__ void arrange(const InGlobal &matrix, const Scratch &scratch, nc_u8 *space) {
    const nc_u32 lane = threadIdx.x & 31, stored = nc_row_pitch(matrix.n);
    nc_u8 *buffer = space + threadIdx.x / 32 * 1024;
    for (nc_u32 row = threadIdx.x / 32; row < matrix.n; row += WARPS) {
        for (nc_u32 column = 16 * lane; column < stored; column += 512) *reinterpret_cast<uint4 *>(buffer + column) = matrix.words(row, column);
        __syncwarp();
        for (nc_u32 column = 4 * lane; column < stored; column += 128) {
            nc_u32 word = 0;
#pragma unroll
            for (nc_u32 j = 0; j < 4; j++)
                if (column + j < matrix.n) word |= (nc_u32)buffer[scratch.column_of[column + j]] << 8 * j;
            matrix.put(row, column, word);
        }
        __syncwarp();
    }
    for (nc_u32 column = 0; column < stored; column += NC_INVERT_STRIPE) {
        const nc_u32 across = (stored - column < NC_INVERT_STRIPE ? stored - column : NC_INVERT_STRIPE) / 16;
        __syncthreads();
        for (nc_u32 i = threadIdx.x; i < matrix.n * across; i += THREADS)
            *reinterpret_cast<uint4 *>(space + 16 * i) = matrix.words(scratch.order[i / across], column + i % across * 16);
        __syncthreads();
        for (nc_u32 i = threadIdx.x; i < matrix.n * across; i += THREADS)
            *reinterpret_cast<uint4 *>(matrix.base + (nc_u64)(i / across) * matrix.pitch + column + i % across * 16) = *reinterpret_cast<const uint4 *>(space + 16 * i);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
nc_invert_global(const nc_invert_task *tasks, nc_u32 count, const nc_tables *tables) {
    extern __shared__ uint4 memory[];
    Scratch &scratch = *reinterpret_cast<Scratch *>(memory);
    fill_tables(scratch, tables);
    for (nc_u32 t = blockIdx.x; t < count; t += gridDim.x) {
        const nc_invert_task task = tasks[t];
        const nc_u32 padded = (task.n + PANEL - 1) / PANEL * PANEL, stored = nc_row_pitch(task.n);
        const InGlobal matrix = {reinterpret_cast<nc_u8 *>(task.inverse), task.pitch, task.n, padded};
        __syncthreads();
        start_order(scratch, padded);
        for (nc_u32 i = threadIdx.x; i < task.n * (stored / 16); i += THREADS) {
            const nc_u32 row = i / (stored / 16), column = i % (stored / 16) * 16;
            *reinterpret_cast<uint4 *>(matrix.base + (nc_u64)row * matrix.pitch + column) = given(task, row, column);
        }
        uint4 *pivots = memory + NC_INVERT_FIXED_BYTES / 16;
        const bool regular = eliminate(matrix, scratch, pivots);
        if (threadIdx.x == 0) *reinterpret_cast<nc_u32 *>(task.status) = regular;
        if (regular) arrange(matrix, scratch, reinterpret_cast<nc_u8 *>(memory) + NC_INVERT_FIXED_BYTES);
    }
}
