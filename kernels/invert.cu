// Inversion of many matrices over GF(2^8) at once: what decoding begins with.
//
// Idea. Gauss-Jordan elimination in place, 32 pivots at a time. Rows are never swapped: `order` lists which row was the pivot of which
// column, and rows and columns go to their places when the inverse is written. What a panel of 32 columns does to all others is one
// matrix product, of rank 32, and runs on the one-bit tensor cores (mma m16n8k256, and.popc), which every card from sm_80 on has; what
// is left is a chain of n small steps, which are kept within one warp, so that no pivot costs a barrier.
//
//     for each panel of 32 columns, for each half of it, 16 columns:
//         factor        one warp: 32 rows not used yet, one a lane, 16 bytes each. The pivot of column j is lane j's row unless that has a
//                       zero there. In the end lane j holds row j of W, the inverse of the 16 x 16 bytes of the pivot rows.
//         make_partner  four warps: W times what the pivot rows have in the other half, 16 x 16 by 16 x 16
//         finish_half   all warps: rows' 16 bytes c become c W in place, which are the factors of this half, and the other half gains
//                       c times the above. A pivot row has the unit vector for c and nothing in the other half.
//     load_pivots       32 pivot rows, transposed as the tensor cores' operands
//     update            all warps: in all other columns, row = row (nothing for pivot rows) + its 32 factors times the pivot rows
//
// If the 32 rows at hand have no 16 pivots (sparse matrices; a random one once in 10^38 halves), one warp looks through all unused
// rows by building a basis, and factoring is repeated with the rows found. None found: the matrix is singular, status 0. A matrix is
// padded to a multiple of 32 with the identity, which changes nothing else.
//
// Products. The field is data: a table turns a coefficient into the rows of its 8 x 8 bit matrix. In an mma 16 positions (rows of A) are
// bytes of the pivot rows, the 8 columns of B are two of the eight bits of four coefficients' products; four of them, with the columns
// arranged as `expand` does, give each lane all bits of four bytes of one row. Their counts' lowest bits are taken half by shifting
// (SHF), half by adding two counts in one register and masking (IMAD, LOP3). In `factor`, where each lane has its own
// factor and all have the same row, a product is three byte permutes: multiples of the factor for bits 0 to 2, bits 4 to 6, bits 3 and 7.
//
// Layout. nc_invert_shared (512 threads) and nc_invert_batch (256, two blocks a SM): a block a matrix, in shared memory, rows an odd number of 32 bytes
// apart, so that four rows of eight words fall into 32 banks; up to n = 416. nc_invert_global: a block a matrix, which stays in L2, where
// the inverse will be; any n. nc_invert_cluster (sm_90a): a matrix by 2 to 16 blocks, each with some of its rows; half a panel is factored by one
// block among its own rows, which sends W by distributed shared memory and the pivot rows through L2. Its matrix and inverse must be apart.
//
// Shared memory: NC_INVERT_FIXED_BYTES (tables 8 KB, lists 4 KB), the matrix, and 32 bytes a column for the pivot rows: above 48 KB for
// n > 160, so the host raises the limit. Registers: 126 (shared), 128 (global, 512 threads), 186 (cluster).
//
// What limits it (H200 at 1.76 GHz, one matrix, cycles in one block, n = 128 / 256): factoring 28,700 / 57,200, about 224 a pivot, the latency
// of two shuffles, two table lookups and the permutes; the other half panel and barriers 6,500 / 12,700; finish_half 12,700 / 46,400; load_pivots
// 2,000 / 4,400; update 15,600 / 107,700; beginning and end 5,300 / 15,000. In update a product of 32 columns by 4 rows takes about 116 cycles of a
// quarter of an SM, of which the tensor instructions alone would take 57 and the extraction of bits 60: they hardly overlap, neither within a warp nor
// among 2 or 4 warps, although they did in a test loop with a smaller extraction (63).
//
// Tried and dropped: rank 16 on m16n8k128, which takes 5.5 cycles where the twice deeper one takes 7.1, 55 us at n = 128 against 47; all bits
// by SHF; 512 threads a matrix in shared memory (130 against 136 us at n = 256, but 264 matrices of n = 128 78 against 65); three blocks a SM without
// the overlap in `begin_and_finish` (the same time for 264 matrices); factoring unrolled 16 times, or by another warp each time (instruction
// caches: 44 against 41.5 us); pivot rows of a cluster by remote stores (n = 512 by 8 blocks 382 us, through L2 256).
#include "nc_bits.cuh"

#define PANEL 32
#define HALF 16
#define THREADS blockDim.x
#define WARPS (blockDim.x / 32)
#define WINDOW 32

// What factoring half a panel has to say to all rows.
struct Message {
    alignas(16) nc_u8 pivot_inverse[HALF * HALF];
    nc_u8 partner[HALF * HALF]; // the inverse times the pivot rows in the other half of the panel
    nc_u16 pivots[HALF];        // which rows they are, in the whole matrix
    nc_u32 found;               // 0 if the rows at hand did not do
};

// What a block keeps beside the matrix.
struct Scratch {
    uint4 powers;             // 65536, 2, 4, 16: not known to the compiler, which would shift and add on the busier pipe
    nc_u32 rows_of[2][256];   // [parity][c]: the bit rows parity, parity + 2, parity + 4, parity + 6 of coefficient c
    uint4 eights[256];        // products of the i-th power of the generator with 0 ... 7 and with 16 * (0 ... 7); the last are zero
    nc_u32 fours[256];        // with 0, 8, 128, 136
    nc_u16 log16[256];        // 16 * log, for zero a number too large
    nc_u8 log[256];
    nc_u8 exp[256];
    Message message;
    alignas(16) nc_u8 other_half[HALF * HALF]; // the pivot rows in the other half of the panel
    alignas(16) nc_u8 basis[HALF * HALF];
    nc_u16 found[HALF];
    alignas(8) nc_u16 order[1024]; // pivot rows by column, then the rows not used yet
    alignas(8) nc_u16 column_of[1024]; // the inverse of `order` for the pivot rows, 0xFFFF for the others
    nc_u32 singular;
    nc_u32 polynomial;
};
static_assert(sizeof(Scratch) <= NC_INVERT_FIXED_BYTES, "the host would give too little shared memory");

// Where the matrix is. Rows and columns from n to the next multiple of 32 are those of the identity.
struct InShared {
    nc_u8 *base;
    nc_u32 pitch, n, padded, rows;

    __device__ __forceinline__ nc_u32 word(nc_u32 row, nc_u32 column) const { return *reinterpret_cast<const nc_u32 *>(base + row * pitch + column); }
    __device__ __forceinline__ uint4 words(nc_u32 row, nc_u32 column) const { return *reinterpret_cast<const uint4 *>(base + row * pitch + column); }
    __device__ __forceinline__ nc_u16 half_word(nc_u32 row, nc_u32 column) const { return *reinterpret_cast<const nc_u16 *>(base + row * pitch + column); }
    __device__ __forceinline__ void put(nc_u32 row, nc_u32 column, nc_u32 value) const { *reinterpret_cast<nc_u32 *>(base + row * pitch + column) = value; }
    __device__ __forceinline__ void put_half(nc_u32 row, nc_u32 column, nc_u16 value) const { *reinterpret_cast<nc_u16 *>(base + row * pitch + column) = value; }
};

struct InGlobal {
    nc_u8 *base;
    nc_u32 pitch, n, padded, rows;

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

__device__ __forceinline__ uint4 from_lane(uint4 row, int lane) {
    return make_uint4(__shfl_sync(~0u, row.x, lane), __shfl_sync(~0u, row.y, lane), __shfl_sync(~0u, row.z, lane), __shfl_sync(~0u, row.w, lane));
}

// Eliminates HALF columns among the first rows of `order` not used yet, one row a lane, in place: lane j ends with row j of the
// pivots' inverse. The pivot of column j is lane j's row, unless that has a zero there. False if those rows do not do.
template <class Matrix>
__device__ __forceinline__ bool factor_window(const Matrix &matrix, Scratch &scratch, nc_u32 first, nc_u32 used, nc_u32 rows) {
    const nc_u32 lane = threadIdx.x & 31;
    const bool present = lane < rows;
    nc_u32 row = present ? scratch.order[used + lane] : 0;
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
        *reinterpret_cast<uint4 *>(scratch.message.pivot_inverse + lane * HALF) = mine;
        *reinterpret_cast<uint4 *>(scratch.other_half + lane * HALF) = matrix.words(row, first ^ HALF);
        scratch.column_of[row] = (nc_u16)(first + lane);
    }
    if (present) scratch.order[used + lane] = (nc_u16)row;
    __syncwarp();
    return true;
}

// Brings rows that are independent in the panel's columns to the front of those not used yet, looking at all of them. False if there
// are too few: the matrix is singular. Rarely needed for random matrices, always for sparse ones.
template <class Matrix>
__device__ __noinline__ bool find_rows(const Matrix matrix, Scratch &scratch, nc_u32 first, nc_u32 used) {
    const nc_u32 lane = threadIdx.x & 31;
    const nc_u32 polynomial = scratch.polynomial;
    nc_u32 count = 0, leading = 0;   // lane b of `leading`: the leading column of basis row b
    for (nc_u32 start = used; start < matrix.rows && count < HALF; start += 32) {
        uint4 mine = make_uint4(0, 0, 0, 0);
        if (start + lane < matrix.rows) mine = matrix.words(scratch.order[start + lane], first);
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
        // Unrolled, it is compiled in several ways by chance: neighbouring loads become one or not.
#pragma unroll 1
        for (nc_u32 i = 0; i < HALF; i++) {
            const nc_u16 row = scratch.order[scratch.found[i]];
            scratch.order[scratch.found[i]] = scratch.order[used + i];
            scratch.order[used + i] = row;
        }
    }
    __syncwarp();
    return true;
}

// 16 positions by 8 columns, of 16 sources.
__device__ __forceinline__ void multiply(nc_u32 (&d)[4], nc_u32 a0, nc_u32 a1, nc_u32 b) {
    asm("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a0), "r"(a1), "r"(b), "r"(0));
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

// The pivots' inverse times what their rows have in the other half of the panel, by four warps.
__device__ __forceinline__ void make_partner(Scratch &scratch) {
    const nc_u32 lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, row = threadIdx.x / 32 * 4;
    if (row >= HALF) return;
    nc_u32 b[4];
    expand(scratch.rows_of, g & 1, *reinterpret_cast<const nc_u32 *>(scratch.message.pivot_inverse + (row + (g >> 1)) * HALF + 4 * q), b);
    *reinterpret_cast<nc_u16 *>(scratch.message.partner + (row + q) * HALF + 2 * g) = product(load_tile(scratch.other_half), b);
}

// After half a panel is factored: the whole panel in all rows, from what they had in that half.
template <class Matrix>
__device__ __forceinline__ void finish_half(const Matrix &matrix, const Scratch &scratch, const Message &message, nc_u32 half, nc_u32 groups) {
    const nc_u32 lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    const Tile inverse = load_tile(message.pivot_inverse), partner = load_tile(message.partner);
    for (nc_u32 group = threadIdx.x / 32; group < groups; group += 2 * WARPS) {
        const nc_u32 pair[2] = {group, group + WARPS < groups ? group + WARPS : group};
        nc_u32 coefficients[2], b[2][4];
        nc_u16 kept[2], own[2], other[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const nc_u32 slot = scratch.column_of[4 * pair[i] + (g >> 1)] - half, row = 4 * pair[i] + q;
            coefficients[i] = matrix.word(4 * pair[i] + (g >> 1), half + 4 * q);
            kept[i] = (nc_u32)(scratch.column_of[row] - half) < HALF ? 0 : matrix.half_word(row, (half ^ HALF) + 2 * g);
            if (slot < HALF) coefficients[i] = slot / 4 == q ? 1u << 8 * (slot & 3) : 0;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) expand(scratch.rows_of, g & 1, coefficients[i], b[i]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            own[i] = product(inverse, b[i]);
            other[i] = product(partner, b[i]) ^ kept[i];
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            matrix.put_half(4 * pair[i] + q, half + 2 * g, own[i]);
            matrix.put_half(4 * pair[i] + q, (half ^ HALF) + 2 * g, other[i]);
        }
    }
    __syncwarp();
}

// Pivot rows of half a panel as `update` wants them: 32 columns are 32 lanes of 16 bytes, of four rows in four columns from 4 * g on.
// `store` puts a lane's bytes at a place that counts 32 to 32 columns.
template <class Matrix, class Store>
__device__ __forceinline__ void load_pivots(const Matrix &matrix, const Scratch &scratch, nc_u32 first, nc_u32 used, Store store) {
    const nc_u32 lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    for (nc_u32 column = threadIdx.x / 32 * 32; column < matrix.padded; column += 32 * WARPS) {
        if (column == first) continue;
        nc_u32 word[4], out[4];
#pragma unroll
        for (int t = 0; t < 4; t++) word[t] = matrix.word(scratch.order[used + 4 * q + t], column + 4 * g);
        transpose(word[0], word[1], word[2], word[3], out);
        store(column + lane, make_uint4(out[0], out[1], out[2], out[3]));
    }
}

// The A operands of a panel: for every 32 columns two times 32 lanes of 16 bytes, 8 of them from each half of the panel. Row g of the
// first operand is column 4 * g, row g + 8 the next one; the second operand has the two behind these.
__device__ __forceinline__ void store_pivots(uint4 *pivots, nc_u32 second, nc_u32 place, uint4 value) {
    uint2 *out = reinterpret_cast<uint2 *>(pivots + (place & ~31u) * 2 + (place & 31)) + second;
    out[0] = make_uint2(value.x, value.y);
    out[64] = make_uint2(value.z, value.w);
}

// All columns outside the panel: what was there, or nothing in pivot rows, plus factors times pivot rows. Two groups of four rows at
// a time share the loads of the pivot rows.
template <class Matrix>
__device__ __forceinline__ void update(const Matrix &matrix, const Scratch &scratch, nc_u32 first, nc_u32 groups, const uint4 *pivots) {
    const nc_u32 lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    const uint4 powers = scratch.powers;
    if (matrix.padded == PANEL) return;
    for (nc_u32 group = threadIdx.x / 32; group < groups; group += 2 * WARPS) {
        const bool two = group + WARPS < groups;
        const nc_u32 other = two ? group + WARPS : group;
        nc_u32 low[4], high[4], other_low[4], other_high[4];
        expand(scratch.rows_of, g & 1, matrix.word(4 * group + (g >> 1), first + 4 * q), low);
        expand(scratch.rows_of, g & 1, matrix.word(4 * group + (g >> 1), first + HALF + 4 * q), high);
        expand(scratch.rows_of, g & 1, matrix.word(4 * other + (g >> 1), first + 4 * q), other_low);
        expand(scratch.rows_of, g & 1, matrix.word(4 * other + (g >> 1), first + HALF + 4 * q), other_high);
        const nc_u32 row = 4 * group + q, other_row = 4 * other + q;
        const nc_u32 keep = (nc_u32)(scratch.column_of[row] - first) < PANEL ? 0 : ~0u;
        const nc_u32 other_keep = (nc_u32)(scratch.column_of[other_row] - first) < PANEL ? 0 : ~0u;
        nc_u32 column = first + PANEL < matrix.padded ? first + PANEL : 0;
        uint4 a = pivots[column * 2 + lane], c = pivots[column * 2 + 32 + lane];
        Counts counts, other_counts;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            multiply(counts.d[s], a, low[s], high[s]);
            multiply(counts.e[s], c, low[s], high[s]);
        }
        do {
            const nc_u32 here = column + 4 * g, kept = matrix.word(row, here) & keep, other_kept = matrix.word(other_row, here) & other_keep;
            const nc_u32 sum = begin_and_finish(other_counts, a, c, other_low, other_high, counts, powers);
            column = column + PANEL < matrix.padded ? column + PANEL : 0;
            a = pivots[column * 2 + lane];
            c = pivots[column * 2 + 32 + lane];
            matrix.put(row, here, kept ^ sum);
            const nc_u32 other_sum = begin_and_finish(counts, a, c, low, high, other_counts, powers);
            if (two) matrix.put(other_row, here, other_kept ^ other_sum);
        } while (column != first);
    }
}

// Half a panel by one warp: `used` rows have been pivots before.
template <class Matrix>
__device__ __forceinline__ void factor(const Matrix &matrix, Scratch &scratch, nc_u32 half, nc_u32 used) {
    const nc_u32 left = matrix.rows - used;
    bool sought = false, done = false;
#pragma unroll 1
    for (nc_u32 rows = left < WINDOW ? left : WINDOW;; rows = HALF) {
        done = factor_window(matrix, scratch, half, used, rows);
        if (done || sought || !find_rows(matrix, scratch, half, used)) break;
        sought = true;
    }
    if ((threadIdx.x & 31) == 0) scratch.singular = !done;
}

template <class Matrix>
__device__ __forceinline__ bool eliminate(const Matrix &matrix, Scratch &scratch, uint4 *pivots) {
    const nc_u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0), groups = matrix.rows / 4;
    for (nc_u32 first = 0; first < matrix.padded; first += PANEL) {
#pragma unroll 1
        for (nc_u32 half = first; half < first + PANEL; half += HALF) {
            __syncthreads();
            if (warp == blockIdx.x / 4 % 4) factor(matrix, scratch, half, half);
            __syncthreads();
            if (scratch.singular) return false;
            make_partner(scratch);
            __syncthreads();
            finish_half(matrix, scratch, scratch.message, half, groups);
        }
        for (nc_u32 i = 0; i < 2; i++)
            load_pivots(matrix, scratch, first, first + i * HALF, [&](nc_u32 place, uint4 value) { store_pivots(pivots, i, place, value); });
        __syncthreads();
        update(matrix, scratch, first, groups, pivots);
    }
    __syncthreads();
    return true;
}

__device__ __forceinline__ void fill_tables(Scratch &scratch, const nc_tables *tables) {
    for (nc_u32 i = threadIdx.x; i < 512; i += THREADS) {
        scratch.rows_of[i >> 8][i & 255] = bit_rows(tables->bits[i & 255], i >> 8);
        if (i >= 256) continue;
        scratch.exp[i] = tables->exp[i];
        scratch.log[i] = tables->log[i];
        scratch.log16[i] = i ? 16 * tables->log[i] : 16 * 1024;
        multiples(tables, i, scratch.eights[i], scratch.fours[i]);
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

__device__ __forceinline__ void copy_async(void *to, const void *from) {
    asm volatile("{ .reg .u64 a; cvta.to.shared.u64 a, %0; cp.async.cg.shared.global [a], [%1], 16; }" :: "l"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Rows `begin` and following of the matrix into shared memory, what lies behind n as of the identity. Ends without a barrier.
__device__ __forceinline__ void load_rows(const InShared &matrix, const nc_invert_task &task, nc_u32 begin) {
    const nc_u32 across = matrix.pitch / 16, whole = task.n / 16;
    for (nc_u32 i = threadIdx.x; i < matrix.rows * across; i += THREADS) {
        const nc_u32 row = i / across, column = i % across;
        nc_u8 *to = matrix.base + row * matrix.pitch + 16 * column;
        if (begin + row < task.n && column < whole) copy_async(to, reinterpret_cast<const nc_u8 *>(task.matrix) + (nc_u64)(begin + row) * task.pitch + 16 * column);
        else *reinterpret_cast<uint4 *>(to) = given(task, begin + row, 16 * column);
    }
}

// The rows to where they belong: row `column_of[r]` of the inverse is row r here, its byte q is byte columns[q] here.
__device__ __forceinline__ void store_rows(const InShared &matrix, const nc_invert_task &task, const nc_u16 *column_of, const nc_u16 *columns) {
    const nc_u32 stored = nc_row_pitch(task.n);
    for (nc_u32 column = 4 * (threadIdx.x & 31); column < stored; column += 128) {
        const uint2 from = *reinterpret_cast<const uint2 *>(columns + column);
        const nc_u32 left = task.n > column ? task.n - column : 0, mask = left >= 4 ? ~0u : (1u << 8 * left) - 1;
        const nc_u32 c0 = left > 0 ? from.x & 0xFFFF : 0, c1 = left > 1 ? from.x >> 16 : 0, c2 = left > 2 ? from.y & 0xFFFF : 0, c3 = left > 3 ? from.y >> 16 : 0;
#pragma unroll 4
        for (nc_u32 row = threadIdx.x / 32; row < matrix.rows; row += WARPS) {
            const nc_u32 to = column_of[row];
            const nc_u8 *bytes = matrix.base + row * matrix.pitch;
            const nc_u32 word = bytes[c0] | bytes[c1] << 8 | bytes[c2] << 16 | (nc_u32)bytes[c3] << 24;
            if (to < task.n) *reinterpret_cast<nc_u32 *>(task.inverse + (nc_u64)to * task.pitch + column) = word & mask;
        }
    }
}

extern __shared__ uint4 memory[];

extern "C" __global__ void __launch_bounds__(NC_INVERT_THREADS, 2)
nc_invert_shared(const nc_invert_task *tasks, nc_u32 count, const nc_tables *tables) {
    Scratch &scratch = *reinterpret_cast<Scratch *>(memory);
    for (nc_u32 t = blockIdx.x; t < count; t += gridDim.x) {
        const nc_invert_task task = tasks[t];
        const nc_u32 padded = (task.n + PANEL - 1) / PANEL * PANEL;
        const InShared matrix = {reinterpret_cast<nc_u8 *>(memory) + NC_INVERT_FIXED_BYTES, NC_INVERT_PITCH(task.n), task.n, padded, padded};
        load_rows(matrix, task, 0);
        start_order(scratch, padded);
        if (t == blockIdx.x) fill_tables(scratch, tables);
        wait_copies();
        uint4 *pivots = reinterpret_cast<uint4 *>(matrix.base + padded * matrix.pitch);
        const bool regular = eliminate(matrix, scratch, pivots);
        if (threadIdx.x == 0) *reinterpret_cast<nc_u32 *>(task.status) = regular;
        if (regular) store_rows(matrix, task, scratch.column_of, scratch.column_of);
        __syncthreads();
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

// One matrix by one block, the matrix in global memory.
__device__ __noinline__ bool invert_in_place(const nc_invert_task &task, Scratch &scratch, nc_u8 *space) {
    const nc_u32 padded = (task.n + PANEL - 1) / PANEL * PANEL, stored = nc_row_pitch(task.n);
    const InGlobal matrix = {reinterpret_cast<nc_u8 *>(task.inverse), task.pitch, task.n, padded, padded};
    start_order(scratch, padded);
    for (nc_u32 i = threadIdx.x; i < task.n * (stored / 16); i += THREADS) {
        const nc_u32 row = i / (stored / 16), column = i % (stored / 16) * 16;
        *reinterpret_cast<uint4 *>(matrix.base + (nc_u64)row * matrix.pitch + column) = given(task, row, column);
    }
    const bool regular = eliminate(matrix, scratch, reinterpret_cast<uint4 *>(space));
    if (regular) arrange(matrix, scratch, space);
    return regular;
}

extern "C" __global__ void __launch_bounds__(NC_INVERT_GLOBAL_THREADS, 1)
nc_invert_global(const nc_invert_task *tasks, nc_u32 count, const nc_tables *tables) {
    Scratch &scratch = *reinterpret_cast<Scratch *>(memory);
    fill_tables(scratch, tables);
    for (nc_u32 t = blockIdx.x; t < count; t += gridDim.x) {
        __syncthreads();
        const bool regular = invert_in_place(tasks[t], scratch, reinterpret_cast<nc_u8 *>(memory) + NC_INVERT_FIXED_BYTES);
        if (threadIdx.x == 0) *reinterpret_cast<nc_u32 *>(tasks[t].status) = regular;
    }
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ __forceinline__ nc_u32 in_block(const void *address, nc_u32 rank) {
    nc_u32 out;
    asm("{ .reg .u64 a; cvta.to.shared.u64 a, %1; .reg .u32 b; cvt.u32.u64 b, a; mapa.shared::cluster.u32 %0, b, %2; }" : "=r"(out) : "l"(address), "r"(rank));
    return out;
}
__device__ __forceinline__ void store_remote(nc_u32 address, nc_u32 value) { asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(address), "r"(value) : "memory"); }
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

struct ClusterScratch {
    Scratch own;
    Message messages[2];
    alignas(8) nc_u16 column_of_row[1024]; // of the whole matrix
    nc_u16 unused[16];          // rows of each block that have not been pivots
};
static_assert(sizeof(ClusterScratch) <= NC_INVERT_CLUSTER_FIXED_BYTES, "the host would give too little shared memory");

// One matrix by the blocks of a cluster, each with some of the rows in its shared memory. Half a panel is factored by one block among
// its own rows; it writes what the others need into their shared memory, its pivot rows to where the inverse will be. If no block's
// rows alone are enough, which happens for sparse matrices, the first block begins again by itself.
extern "C" __global__ void __launch_bounds__(NC_INVERT_THREADS, 1)
nc_invert_cluster(const nc_invert_task *tasks, nc_u32 count, const nc_tables *tables) {
    ClusterScratch &shared = *reinterpret_cast<ClusterScratch *>(memory);
    Scratch &scratch = shared.own;
    nc_u32 rank, blocks;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    const nc_u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    fill_tables(scratch, tables);
    cluster_sync(); // nobody writes into the memory of a block that has not begun
    for (nc_u32 t = blockIdx.x / blocks; t < count; t += gridDim.x / blocks) {
        const nc_invert_task task = tasks[t];
        const nc_u32 padded = (task.n + PANEL - 1) / PANEL * PANEL;
        const nc_u32 most = (padded / HALF + blocks - 1) / blocks * HALF, begin = min(rank * most, padded), rows = min(most, padded - begin);
        const InShared matrix = {reinterpret_cast<nc_u8 *>(memory) + NC_INVERT_CLUSTER_FIXED_BYTES + 32 * padded, NC_INVERT_PITCH(task.n), task.n, padded, rows};
        uint4 *pivots = memory + NC_INVERT_CLUSTER_FIXED_BYTES / 16;
        start_order(scratch, rows);
        if (threadIdx.x < blocks) shared.unused[threadIdx.x] = (nc_u16)min(most, padded - min(threadIdx.x * most, padded));
        load_rows(matrix, task, begin);
        wait_copies();
        nc_u32 sent = 0;
        bool regular = true, alone = task.n < NC_INVERT_CLUSTER_MIN;
        for (nc_u32 half = 0; half < padded && regular && !alone; half += HALF) {
            const nc_u32 first = half & ~(PANEL - 1), second = half / HALF & 1;
            uint4 *sent_pivots = reinterpret_cast<uint4 *>(task.inverse) + half / HALF % 4 * padded;
            nc_u32 leader = half / PANEL % blocks, found = 0;
            for (nc_u32 tried = 0; tried < blocks && !found; tried++, leader = (leader + 1) % blocks) {
                __syncthreads();
                if (shared.unused[leader] < HALF) continue;
                if (rank == leader) {
                    if (warp == 0) factor(matrix, scratch, half, rows - shared.unused[rank]);
                    __syncthreads();
                    const bool done = !scratch.singular;
                    if (done) make_partner(scratch);
                    const nc_u32 used = rows - shared.unused[rank];
                    if (threadIdx.x < HALF) scratch.message.pivots[threadIdx.x] = (nc_u16)(begin + scratch.order[used + threadIdx.x]);
                    if (threadIdx.x == 0) scratch.message.found = done;
                    __syncthreads();
                    for (nc_u32 i = threadIdx.x; i < blocks * (sizeof(Message) / 4); i += THREADS) {
                        const nc_u32 word = i % (sizeof(Message) / 4);
                        store_remote(in_block(reinterpret_cast<const nc_u32 *>(&shared.messages[sent & 1]) + word, i / (sizeof(Message) / 4)), reinterpret_cast<const nc_u32 *>(&scratch.message)[word]);
                    }
                    if (done) load_pivots(matrix, scratch, first, used, [&](nc_u32 place, uint4 value) { sent_pivots[place] = value; });
                }
                cluster_sync();
                const Message &message = shared.messages[sent++ & 1];
                found = message.found;
                if (!found) continue;
                if (threadIdx.x < HALF) shared.column_of_row[message.pivots[threadIdx.x]] = (nc_u16)(half + threadIdx.x);
                if (threadIdx.x == 0) shared.unused[leader] -= HALF;
                uint4 received[1024 / NC_INVERT_THREADS];
#pragma unroll
                for (nc_u32 i = 0; i < 1024 / NC_INVERT_THREADS; i++)
                    if (threadIdx.x + i * NC_INVERT_THREADS < padded) received[i] = __ldcg(sent_pivots + threadIdx.x + i * NC_INVERT_THREADS);
                finish_half(matrix, scratch, message, half, rows / 4);
#pragma unroll
                for (nc_u32 i = 0; i < 1024 / NC_INVERT_THREADS; i++)
                    if (threadIdx.x + i * NC_INVERT_THREADS < padded) store_pivots(pivots, second, threadIdx.x + i * NC_INVERT_THREADS, received[i]);
            }
            regular = found;
            if (!found) {
                nc_u32 left = 0;
                for (nc_u32 i = 0; i < blocks; i++) left = max(left, (nc_u32)shared.unused[i]);
                alone = left < padded - half;
            }
            if (!found || !second) continue;
            __syncthreads();
            update(matrix, scratch, first, rows / 4, pivots);
        }
        cluster_sync();
        if (regular && !alone) store_rows(matrix, task, scratch.column_of, shared.column_of_row);
        cluster_sync();
        if (alone && rank == 0) regular = invert_in_place(task, scratch, reinterpret_cast<nc_u8 *>(memory) + NC_INVERT_CLUSTER_FIXED_BYTES);
        if (rank == 0 && threadIdx.x == 0) *reinterpret_cast<nc_u32 *>(task.status) = regular;
        cluster_sync();
    }
}
#endif
