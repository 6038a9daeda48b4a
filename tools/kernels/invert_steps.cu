// Inversion one pivot a step, for comparison with invert.cu: what the papers do, and what their two refinements are worth today.
//
// Idea. Gauss-Jordan in place, one block a matrix, three to four barriers a pivot:
//
//     seek the first row with a non-zero in the pivot's column; all threads note the column's bytes
//     exchange two rows, divide the pivot row
//     each warp takes rows: row += its byte of the column * pivot row. A lane keeps the pivot row's word times x^0 ... x^7 and adds those that the
//     byte's bits select, the same for all lanes
//
// and the columns are put in order at the end. The entry points differ in the search: one thread, one warp by votes, or all threads by an
// atomic minimum in shared memory; and in where the matrix is: in shared memory up to n = 448, or (global) in the place of the inverse.
//
// Shared memory: NC_INVERT_STEPS_FIXED_BYTES and the matrix without padding. 512 threads, up to 64 registers.
//
// What limits it: the latency of a step, 3,000 cycles at n = 128 whatever the search. Measured on an H200 at 1.76 GHz, one matrix of
// n = 128 / 256: serial 220 / 1,169 us, votes 221 / 1,163, atomic minimum 224 / 1,189, in global memory 242 / 1,273: the atomic minimum, the
// paper's gain of 0.6 %, loses 1.4 %, since a random matrix has its pivot in the first row nearly always; keeping the matrix in
// shared memory gains 9 % (paper: 0.5 to 3.4 %, of progressive decoding).
#include "nc_common.cuh"

#define THREADS NC_INVERT_STEPS_THREADS
#define WARPS (THREADS / 32)

enum Search { SERIAL, BALLOT, ATOMIC_MIN };

struct Scratch {
    nc_u8 log[256];
    nc_u8 exp[256];
    nc_u32 pivot[1024 / 4];  // the scaled pivot row
    nc_u8 factors[1024];     // the pivot column
    nc_u16 swapped[1024];    // the row that came to a pivot's place
    nc_u16 column[1024];     // where a column of the result is
    nc_u8 buffer[WARPS][1024];
    nc_u32 found;
    nc_u32 polynomial;
};
static_assert(sizeof(Scratch) <= NC_INVERT_STEPS_FIXED_BYTES, "the host would give too little shared memory");

__device__ __forceinline__ nc_u32 times_x(nc_u32 word, nc_u32 polynomial) {
    return ((word & 0x7F7F7F7Fu) << 1) ^ (((word >> 7) & 0x01010101u) * polynomial);
}
__device__ __forceinline__ nc_u32 bit_mask(nc_u32 factor, int bit) { return (nc_u32)((int)(factor << (31 - bit)) >> 31); }

struct Matrix {
    nc_u32 *words;
    nc_u32 across, n;
    __device__ __forceinline__ nc_u32 &word(nc_u32 row, nc_u32 w) const { return words[row * across + w]; }
    __device__ __forceinline__ nc_u32 byte(nc_u32 row, nc_u32 column) const { return reinterpret_cast<const nc_u8 *>(words + row * across)[column]; }
};

// The first row from `step` on that is not zero in column `step`, or at least n. All threads call it after a barrier.
template <Search search>
__device__ __forceinline__ nc_u32 find(const Matrix &matrix, Scratch &scratch, nc_u32 step) {
    if (search == SERIAL) {
        if (threadIdx.x == 0) {
            nc_u32 row = step;
            while (row < matrix.n && matrix.byte(row, step) == 0) row++;
            scratch.found = row;
        }
    } else if (search == BALLOT) {
        if (threadIdx.x < 32) {
            nc_u32 found = matrix.n;
            for (nc_u32 start = step; start < matrix.n && found == matrix.n; start += 32) {
                const nc_u32 row = start + threadIdx.x, candidates = __ballot_sync(~0u, row < matrix.n && matrix.byte(row, step) != 0);
                if (candidates) found = start + __ffs(candidates) - 1;
            }
            if (threadIdx.x == 0) scratch.found = found;
        }
    } else {
        for (nc_u32 row = step + threadIdx.x; row < matrix.n; row += THREADS)
            if (matrix.byte(row, step)) atomicMin(&scratch.found, row);
    }
    __syncthreads();
    return scratch.found;
}

template <Search search>
__device__ __forceinline__ bool eliminate(const Matrix &matrix, Scratch &scratch) {
    const nc_u32 lane = threadIdx.x & 31;
    for (nc_u32 step = 0; step < matrix.n; step++) {
        const nc_u32 found = find<search>(matrix, scratch, step);
        if (found >= matrix.n) return false;
        const nc_u32 inverse = scratch.exp[255 - scratch.log[matrix.byte(found, step)]], one = 1u << 8 * (step & 3), clear = ~(255u << 8 * (step & 3));
        for (nc_u32 row = threadIdx.x; row < matrix.n; row += THREADS) scratch.factors[row] = (nc_u8)matrix.byte(row == found ? step : row, step);
        __syncthreads();
        if (threadIdx.x == 0) {
            scratch.swapped[step] = (nc_u16)found;
            scratch.found = ~0u;
        }
        for (nc_u32 w = threadIdx.x; w < matrix.across; w += THREADS) {
            nc_u32 word = matrix.word(found, w), sum = 0;
            matrix.word(found, w) = matrix.word(step, w);
            if (w == step / 4) word = (word & clear) | one;
#pragma unroll
            for (int bit = 7; bit >= 0; bit--) sum = times_x(sum, scratch.polynomial) ^ (word & bit_mask(inverse, bit));
            matrix.word(step, w) = sum;
            scratch.pivot[w] = sum;
        }
        __syncthreads();
        for (nc_u32 w = lane; w < matrix.across; w += 32) {
            nc_u32 multiples[8];
            multiples[0] = scratch.pivot[w];
#pragma unroll
            for (int bit = 1; bit < 8; bit++) multiples[bit] = times_x(multiples[bit - 1], scratch.polynomial);
            const nc_u32 keep = w == step / 4 ? clear : ~0u;
#pragma unroll 4
            for (nc_u32 row = threadIdx.x / 32; row < matrix.n; row += WARPS) {
                const nc_u32 factor = scratch.factors[row];
                if (row == step || factor == 0) continue;
                nc_u32 sum = matrix.word(row, w) & keep;
#pragma unroll
                for (int bit = 0; bit < 8; bit++) sum ^= multiples[bit] & bit_mask(factor, bit);
                matrix.word(row, w) = sum;
            }
        }
        __syncthreads();
    }
    return true;
}

template <Search search, bool cached>
__device__ __forceinline__ void invert(const nc_invert_task *tasks, nc_u32 count, const nc_tables *tables) {
    extern __shared__ uint4 memory[];
    Scratch &scratch = *reinterpret_cast<Scratch *>(memory);
    for (nc_u32 i = threadIdx.x; i < 256; i += THREADS) {
        scratch.log[i] = tables->log[i];
        scratch.exp[i] = tables->exp[i];
    }
    if (threadIdx.x == 0) scratch.polynomial = tables->polynomial & 255;
    for (nc_u32 t = blockIdx.x; t < count; t += gridDim.x) {
        const nc_invert_task task = tasks[t];
        const nc_u32 n = task.n, across = nc_row_pitch(n) / 4, pitch = task.pitch / 4;
        const Matrix matrix = {cached ? reinterpret_cast<nc_u32 *>(memory) + NC_INVERT_STEPS_FIXED_BYTES / 4 : reinterpret_cast<nc_u32 *>(task.inverse), cached ? across : pitch, n};
        __syncthreads();
        if (threadIdx.x == 0) scratch.found = ~0u;
        for (nc_u32 i = threadIdx.x; i < n * across; i += THREADS) {
            const nc_u32 row = i / across, w = i % across;
            nc_u32 word = 4 * w < n ? reinterpret_cast<const nc_u32 *>(task.matrix)[(nc_u64)row * pitch + w] : 0;
            if (n - 4 * w < 4) word &= (1u << 8 * (n & 3)) - 1;
            matrix.word(row, w) = word;
        }
        __syncthreads();
        const bool regular = eliminate<search>(Matrix{matrix.words, matrix.across, n}, scratch);
        if (threadIdx.x == 0) {
            *reinterpret_cast<nc_u32 *>(task.status) = regular;
            for (nc_u32 i = 0; i < n; i++) scratch.column[i] = (nc_u16)i;
            for (nc_u32 i = n; regular && i-- > 0;) {
                const nc_u16 other = scratch.swapped[i], kept = scratch.column[i];
                scratch.column[i] = scratch.column[other];
                scratch.column[other] = kept;
            }
        }
        __syncthreads();
        if (!regular) continue;
        nc_u8 *buffer = scratch.buffer[threadIdx.x / 32];
        for (nc_u32 row = threadIdx.x / 32; row < n; row += WARPS) {
            for (nc_u32 w = threadIdx.x & 31; w < across; w += 32) reinterpret_cast<nc_u32 *>(buffer)[w] = matrix.word(row, w);
            __syncwarp();
            for (nc_u32 w = threadIdx.x & 31; w < across; w += 32) {
                nc_u32 word = 0;
                for (nc_u32 j = 4 * w; j < 4 * w + 4 && j < n; j++) word |= (nc_u32)buffer[scratch.column[j]] << 8 * (j & 3);
                reinterpret_cast<nc_u32 *>(task.inverse)[(nc_u64)row * pitch + w] = word;
            }
            __syncwarp();
        }
    }
}

#define INVERT(name, search, cached) \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const nc_invert_task *tasks, nc_u32 count, const nc_tables *tables) { \
        invert<search, cached>(tasks, count, tables); \
    }

INVERT(nc_invert_steps_serial, SERIAL, true)
INVERT(nc_invert_steps_ballot, BALLOT, true)
INVERT(nc_invert_steps_min, ATOMIC_MIN, true)
INVERT(nc_invert_steps_global, BALLOT, false)
INVERT(nc_invert_steps_global_min, ATOMIC_MIN, false)
