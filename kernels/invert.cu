// Inversion of many matrices over GF(2^8) at once.
//
// (header follows)
#include "nc_common.cuh"

#define PANEL 16
#define WINDOW 32
#define THREADS NC_INVERT_THREADS
#define WARPS (THREADS / 32)

// What a block keeps beside the matrix.
struct Scratch {
    nc_u32 rows_of[2][256];   // [parity][c]: the bit rows parity, parity + 2, parity + 4, parity + 6 of coefficient c
    nc_u8 log[256];
    nc_u8 exp[512];
    nc_u8 pivot_inverse[PANEL * PANEL];
    nc_u8 basis[PANEL * PANEL];
    nc_u16 found[PANEL];
    nc_u16 order[1024];       // pivot rows by column, then the rows not used yet
    nc_u16 column_of[1024];   // the inverse of `order` for the pivot rows, 0xFFFF for the others
    nc_u32 singular;
    nc_u32 polynomial;
};
static_assert(sizeof(Scratch) <= NC_INVERT_FIXED_BYTES, "the host would give too little shared memory");

// Where the matrix is. Rows and columns from n to the next multiple of 16 are those of the identity.
struct InShared {
    nc_u8 *base;
    nc_u32 pitch, n, padded;

    __device__ __forceinline__ nc_u32 word(nc_u32 row, nc_u32 column) const { return *reinterpret_cast<const nc_u32 *>(base + row * pitch + column); }
    __device__ __forceinline__ uint4 words(nc_u32 row, nc_u32 column) const { return *reinterpret_cast<const uint4 *>(base + row * pitch + column); }
    __device__ __forceinline__ void put(nc_u32 row, nc_u32 column, nc_u32 value) const { *reinterpret_cast<nc_u32 *>(base + row * pitch + column) = value; }
    __device__ __forceinline__ void put_half(nc_u32 row, nc_u32 column, nc_u16 value) const { *reinterpret_cast<nc_u16 *>(base + row * pitch + column) = value; }
};

struct InGlobal {
    nc_u8 *base;
    nc_u32 pitch, n, padded;

    __device__ __forceinline__ nc_u32 word(nc_u32 row, nc_u32 column) const {
        if (row >= n) return column == (row & ~3u) ? 1u << 8 * (row & 3) : 0;
        return column < padded ? *reinterpret_cast<const nc_u32 *>(base + (nc_u64)row * pitch + column) : 0;
    }
    __device__ __forceinline__ uint4 words(nc_u32 row, nc_u32 column) const {
        if (row >= n) return make_uint4(word(row, column), word(row, column + 4), word(row, column + 8), word(row, column + 12));
        return *reinterpret_cast<const uint4 *>(base + (nc_u64)row * pitch + column);
    }
    __device__ __forceinline__ void put(nc_u32 row, nc_u32 column, nc_u32 value) const {
        if (row < n && column < padded) *reinterpret_cast<nc_u32 *>(base + (nc_u64)row * pitch + column) = value;
    }
    __device__ __forceinline__ void put_half(nc_u32 row, nc_u32 column, nc_u16 value) const {
        if (row < n) *reinterpret_cast<nc_u16 *>(base + (nc_u64)row * pitch + column) = value;
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

__device__ __forceinline__ uint4 from_lane(uint4 row, int lane) {
    return make_uint4(__shfl_sync(~0u, row.x, lane), __shfl_sync(~0u, row.y, lane), __shfl_sync(~0u, row.z, lane), __shfl_sync(~0u, row.w, lane));
}

// Eliminates PANEL columns among the first rows of `order` not used yet, one row a lane. False if those rows do not do.
template <class Matrix>
__device__ __forceinline__ bool factor_window(const Matrix &matrix, Scratch &scratch, nc_u32 first, nc_u32 rows) {
    const nc_u32 lane = threadIdx.x & 31;
    const bool present = lane < rows;
    const nc_u32 row = present ? scratch.order[first + lane] : 0;
    uint4 mine = present ? matrix.words(row, first) : make_uint4(0, 0, 0, 0);
    nc_u32 slot = present ? PANEL : PANEL + 1;
    const nc_u32 polynomial = scratch.polynomial;
#pragma unroll
    for (int j = 0; j < PANEL; j++) {
        const nc_u32 value = part(mine, j / 4) >> 8 * (j % 4) & 255;
        const nc_u32 candidates = __ballot_sync(~0u, slot == PANEL && value != 0);
        if (candidates == 0) return false;
        const int source = __ffs(candidates) - 1;
        const bool is_pivot = lane == (nc_u32)source;
        uint4 pivot = from_lane(mine, source);
        const nc_u32 divisor = part(pivot, j / 4) >> 8 * (j % 4) & 255;
        part(pivot, j / 4) = (part(pivot, j / 4) & ~(255u << 8 * (j % 4))) | 1u << 8 * (j % 4);
        const nc_u32 dividend = is_pivot ? 1 : value;
        const nc_u32 factor = dividend ? scratch.exp[scratch.log[dividend] + 255 - scratch.log[divisor]] : 0;
        if (is_pivot) {
            mine = make_uint4(0, 0, 0, 0);
            slot = j;
        }
        part(mine, j / 4) &= ~(255u << 8 * (j % 4));
        add_multiple(mine, factor, pivot, polynomial);
    }
    const nc_u32 others = __ballot_sync(~0u, slot == PANEL);
    if (slot < PANEL) {
        *reinterpret_cast<uint4 *>(scratch.pivot_inverse + slot * PANEL) = mine;
        scratch.column_of[row] = (nc_u16)(first + slot);
        scratch.order[first + slot] = (nc_u16)row;
    } else if (slot == PANEL) {
        scratch.order[first + PANEL + __popc(others & ((1u << lane) - 1))] = (nc_u16)row;
    }
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
    for (nc_u32 start = first; start < matrix.padded && count < PANEL; start += 32) {
        uint4 mine = make_uint4(0, 0, 0, 0);
        if (start + lane < matrix.padded) mine = matrix.words(scratch.order[start + lane], first);
        for (nc_u32 b = 0; b < count; b++) {
            const nc_u32 column = __shfl_sync(~0u, leading, b);
            add_multiple(mine, byte_of(mine, column), *reinterpret_cast<const uint4 *>(scratch.basis + b * PANEL), polynomial);
        }
        while (count < PANEL) {
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
                *reinterpret_cast<uint4 *>(scratch.basis + count * PANEL) = scaled;
                scratch.found[count] = (nc_u16)(start + source);
            }
            if (lane == count) leading = column;
            __syncwarp();
            count++;
        }
    }
    if (count < PANEL) return false;
    if (lane == 0) {
        for (nc_u32 i = 0; i < PANEL; i++) {
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

__device__ __forceinline__ void multiply(nc_u32 (&d)[4], nc_u32 a0, nc_u32 a1, nc_u32 b) {
    asm("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a0), "r"(a1), "r"(b), "r"(0));
}

// Two bytes, in the upper half: four rows by 16 positions by 16 sources.
__device__ __forceinline__ nc_u32 product(nc_u32 a0, nc_u32 a1, const nc_u32 (&b)[4]) {
    nc_u32 d[4][4];
#pragma unroll
    for (int s = 0; s < 4; s++) multiply(d[s], a0, a1, b[s]);
    nc_u32 low = 0, high = 0;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        low = __funnelshift_r(low, d[s][0], 1);
        low = __funnelshift_r(low, d[s][1], 1);
        high = __funnelshift_r(high, d[s][2], 1);
        high = __funnelshift_r(high, d[s][3], 1);
    }
    return __byte_perm(low, high, 0x7300);
}

// One panel's factors for the rows of a group: they end in the panel's own columns.
template <class Matrix>
__device__ __forceinline__ void make_factors(const Matrix &matrix, const Scratch &scratch, nc_u32 first, nc_u32 groups) {
    const nc_u32 lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    nc_u32 a0 = 0, a1 = 0;
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const nc_u32 pair = *reinterpret_cast<const nc_u16 *>(scratch.pivot_inverse + (4 * q + t) * PANEL + 2 * g);
        a0 |= (pair & 255) << 8 * t;
        a1 |= (pair >> 8) << 8 * t;
    }
    for (nc_u32 group = threadIdx.x / 32; group < groups; group += WARPS) {
        const nc_u32 row = 4 * group + (g >> 1);
        const nc_u32 slot = scratch.column_of[row] - first;
        nc_u32 coefficients = matrix.word(row, first + 4 * q);
        if (slot < PANEL) coefficients = slot / 4 == q ? 1u << 8 * (slot & 3) : 0;
        nc_u32 b[4];
        expand(scratch, g & 1, coefficients, b);
        const nc_u32 pair = product(a0, a1, b);
        __syncwarp();
        matrix.put_half(4 * group + q, first + 2 * g, (nc_u16)(pair >> 16));
    }
    __syncwarp();
}

#define CHUNK 4   // of 32 columns

template <class Matrix>
__device__ __forceinline__ void update(const Matrix &matrix, const Scratch &scratch, nc_u32 first, nc_u32 groups) {
    const nc_u32 lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    for (nc_u32 start = 0; start < matrix.padded; start += 32 * CHUNK) {
        nc_u32 data[CHUNK][4];
        nc_u32 rows[4];
#pragma unroll
        for (int t = 0; t < 4; t++) rows[t] = scratch.order[first + 4 * q + t];
#pragma unroll
        for (int c = 0; c < CHUNK; c++) {
            const nc_u32 column = start + 32 * c + 4 * g;
            data[c][0] = data[c][1] = data[c][2] = data[c][3] = 0;
            if (start + 32 * c < matrix.padded && column - first >= PANEL)
                transpose(matrix.word(rows[0], column), matrix.word(rows[1], column), matrix.word(rows[2], column), matrix.word(rows[3], column), data[c]);
        }
        __syncthreads();
        for (nc_u32 group = threadIdx.x / 32; group < groups; group += WARPS) {
            nc_u32 b[4];
            expand(scratch, g & 1, matrix.word(4 * group + (g >> 1), first + 4 * q), b);
            const nc_u32 row = 4 * group + q;
            const nc_u32 keep = (nc_u32)(scratch.column_of[row] - first) < PANEL ? 0 : ~0u;
#pragma unroll
            for (int c = 0; c < CHUNK; c++) {
                const nc_u32 column = start + 32 * c + 4 * g;
                if (start + 32 * c >= matrix.padded) break;
                const nc_u32 low = product(data[c][0], data[c][1], b), high = product(data[c][2], data[c][3], b);
                const nc_u32 sum = __byte_perm(low, high, 0x7632);
                if (column - first >= PANEL) matrix.put(row, column, (matrix.word(row, column) & keep) ^ sum);
            }
        }
    }
}

template <class Matrix>
__device__ __forceinline__ bool eliminate(const Matrix &matrix, Scratch &scratch) {
    for (nc_u32 first = 0; first < matrix.padded; first += PANEL) {
        __syncthreads();
        if (threadIdx.x < 32) {
            const nc_u32 left = matrix.padded - first;
            bool found = factor_window(matrix, scratch, first, left < WINDOW ? left : WINDOW);
            if (!found) found = find_rows(matrix, scratch, first) && factor_window(matrix, scratch, first, PANEL);
            if (threadIdx.x == 0) scratch.singular = !found;
        }
        __syncthreads();
        if (scratch.singular) return false;
        make_factors(matrix, scratch, first, matrix.padded / 4);
        update(matrix, scratch, first, matrix.padded / 4);
    }
    __syncthreads();
    return true;
}

__device__ __forceinline__ void fill_tables(Scratch &scratch, const nc_tables *tables) {
    for (nc_u32 i = threadIdx.x; i < 512; i += THREADS) {
        const nc_u64 bits = tables->bits[i & 255];
        nc_u32 word = 0;
        for (int s = 0; s < 4; s++) word |= (nc_u32)(bits >> (16 * s + 8 * (i >> 8)) & 255) << 8 * s;
        scratch.rows_of[i >> 8][i & 255] = word;
        scratch.exp[i] = tables->exp[i];
        if (i < 256) scratch.log[i] = tables->log[i];
    }
    if (threadIdx.x == 0) scratch.polynomial = tables->polynomial & 255;
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
        const nc_u32 padded = nc_row_pitch(task.n);
        const InShared matrix = {reinterpret_cast<nc_u8 *>(memory) + NC_INVERT_FIXED_BYTES, NC_INVERT_PITCH(task.n), task.n, padded};
        __syncthreads();
        start_order(scratch, padded);
        const nc_u32 across = matrix.pitch / 16;
        for (nc_u32 i = threadIdx.x; i < padded * across; i += THREADS) {
            const nc_u32 row = i / across, column = i % across * 16;
            *reinterpret_cast<uint4 *>(matrix.base + row * matrix.pitch + column) = column < padded ? given(task, row, column) : make_uint4(0, 0, 0, 0);
        }
        const bool regular = eliminate(matrix, scratch);
        if (threadIdx.x == 0) *reinterpret_cast<nc_u32 *>(task.status) = regular;
        if (!regular) continue;
        for (nc_u32 i = threadIdx.x; i < task.n * (padded / 16); i += THREADS) {
            const nc_u32 row = i / (padded / 16), column = i % (padded / 16) * 16;
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
    const nc_u32 lane = threadIdx.x & 31;
    nc_u8 *buffer = space + threadIdx.x / 32 * 1024;
    for (nc_u32 row = threadIdx.x / 32; row < matrix.n; row += WARPS) {
        for (nc_u32 column = 16 * lane; column < matrix.padded; column += 512) *reinterpret_cast<uint4 *>(buffer + column) = matrix.words(row, column);
        __syncwarp();
        for (nc_u32 column = 4 * lane; column < matrix.padded; column += 128) {
            nc_u32 word = 0;
#pragma unroll
            for (nc_u32 j = 0; j < 4; j++)
                if (column + j < matrix.n) word |= (nc_u32)buffer[scratch.column_of[column + j]] << 8 * j;
            matrix.put(row, column, word);
        }
        __syncwarp();
    }
    for (nc_u32 column = 0; column < matrix.padded; column += NC_INVERT_STRIPE) {
        const nc_u32 across = (matrix.padded - column < NC_INVERT_STRIPE ? matrix.padded - column : NC_INVERT_STRIPE) / 16;
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
        const nc_u32 padded = nc_row_pitch(task.n);
        const InGlobal matrix = {reinterpret_cast<nc_u8 *>(task.inverse), task.pitch, task.n, padded};
        __syncthreads();
        start_order(scratch, padded);
        for (nc_u32 i = threadIdx.x; i < task.n * (padded / 16); i += THREADS) {
            const nc_u32 row = i / (padded / 16), column = i % (padded / 16) * 16;
            *reinterpret_cast<uint4 *>(matrix.base + (nc_u64)row * matrix.pitch + column) = given(task, row, column);
        }
        const bool regular = eliminate(matrix, scratch);
        if (threadIdx.x == 0) *reinterpret_cast<nc_u32 *>(task.status) = regular;
        if (regular) arrange(matrix, scratch, reinterpret_cast<nc_u8 *>(memory) + NC_INVERT_FIXED_BYTES);
    }
}
