// Decoding block by block, as blocks arrive, and the joined form that recoding wants.
//
// (header follows)
#include "nc_common.cuh"

#define THREADS NC_PROGRESS_THREADS
#define WARPS (THREADS / 32)

struct Scratch {
    nc_u8 log[256];
    nc_u8 exp[512];
    nc_u32 polynomial;
    nc_u32 leading;
    nc_u32 factors[1024 / 4];                       // bytes: of the kept rows
    nc_u32 row[(1024 + NC_PROGRESS_SLICE_MAX) / 4]; // the arriving [c | x], reduced, then scaled
    nc_u32 partial[WARPS][(1024 + NC_PROGRESS_SLICE_MAX) / 4];
};
static_assert(sizeof(Scratch) <= NC_PROGRESS_FIXED_BYTES, "the host would give too little shared memory");

__device__ __forceinline__ nc_u32 times_x(nc_u32 word, nc_u32 polynomial) {
    return ((word & 0x7F7F7F7Fu) << 1) ^ (((word >> 7) & 0x01010101u) * polynomial);
}

__device__ __forceinline__ nc_u32 bit_mask(nc_u32 factor, int bit) { return (nc_u32)((int)(factor << (31 - bit)) >> 31); }

__device__ __forceinline__ nc_u32 scaled(nc_u32 word, nc_u32 factor, nc_u32 polynomial) {
    nc_u32 sum = 0;
#pragma unroll
    for (int bit = 7; bit >= 0; bit--) sum = times_x(sum, polynomial) ^ (word & bit_mask(factor, bit));
    return sum;
}

// This block's part of the kept rows: all coefficients, and `across - vectors` words of the payload.
struct Rows {
    nc_u32 *coefficients;
    nc_u8 *payload;
    nc_u64 payload_pitch;
    nc_u32 vectors, across, n;

    __device__ __forceinline__ nc_u32 *word(nc_u32 row, nc_u32 w) const {
        return w < vectors ? coefficients + row * vectors + w : reinterpret_cast<nc_u32 *>(payload + row * payload_pitch) + (w - vectors);
    }
    __device__ __forceinline__ nc_u32 coefficient(nc_u32 row, nc_u32 column) const {
        return coefficients[row * vectors + column / 4] >> 8 * (column & 3) & 255;
    }
};

// Lanes beside each other take words of a row; where fewer than 32 words are left, several rows share a warp.
struct Place {
    nc_u32 word, first_row, row_step, split;
    bool inside;

    __device__ __forceinline__ Place(nc_u32 start, nc_u32 across) {
        const nc_u32 left = across - start, width = left > 16 ? 32 : left > 8 ? 16 : left > 4 ? 8 : 4;
        const nc_u32 lane = threadIdx.x & 31;
        split = 32 / width;
        word = start + lane % width;
        first_row = threadIdx.x / 32 * split + lane / width;
        row_step = WARPS * split;
        inside = word < across;
    }
};

// partial[warp][w] = sum of factor * row over this warp's rows
__device__ __forceinline__ void sum_rows(const Rows &rows, Scratch &scratch) {
    const nc_u8 *factors = reinterpret_cast<const nc_u8 *>(scratch.factors);
    for (nc_u32 start = 0; start < rows.across; start += 32) {
        const Place place(start, rows.across);
        nc_u32 sums[8] = {};
        if (place.inside) {
#pragma unroll 4
            for (nc_u32 row = place.first_row; row < rows.n; row += place.row_step) {
                const nc_u32 factor = factors[row], word = *rows.word(row, place.word);
#pragma unroll
                for (int bit = 0; bit < 8; bit++) sums[bit] ^= word & bit_mask(factor, bit);
            }
        }
        nc_u32 sum = 0;
#pragma unroll
        for (int bit = 7; bit >= 0; bit--) sum = times_x(sum, scratch.polynomial) ^ sums[bit];
        for (nc_u32 distance = 16; distance >= 32 / place.split; distance /= 2) sum ^= __shfl_xor_sync(~0u, sum, distance);
        if (place.inside) scratch.partial[threadIdx.x / 32][place.word] = sum;
    }
}

// row += factor * the scaled arriving row, for all rows; the arriving row itself becomes row `leading`
__device__ __forceinline__ void add_to_rows(const Rows &rows, const Scratch &scratch, nc_u32 leading) {
    const nc_u8 *factors = reinterpret_cast<const nc_u8 *>(scratch.factors);
    for (nc_u32 start = 0; start < rows.across; start += 32) {
        const Place place(start, rows.across);
        if (!place.inside) continue;
        nc_u32 multiples[8];
        multiples[0] = scratch.row[place.word];
#pragma unroll
        for (int bit = 1; bit < 8; bit++) multiples[bit] = times_x(multiples[bit - 1], scratch.polynomial);
#pragma unroll 4
        for (nc_u32 row = place.first_row; row < rows.n; row += place.row_step) {
            const nc_u32 factor = factors[row];
            if (factor == 0) continue;
            nc_u32 *at = rows.word(row, place.word), sum = row == leading ? 0 : *at;
#pragma unroll
            for (int bit = 0; bit < 8; bit++) sum ^= multiples[bit] & bit_mask(factor, bit);
            *at = sum;
        }
    }
}

// The first coefficient that is not zero, or at least n. All threads call it.
template <bool AtomicMin>
__device__ __forceinline__ nc_u32 find_leading(Scratch &scratch, nc_u32 vectors) {
    if (AtomicMin) {
        for (nc_u32 w = threadIdx.x; w < vectors; w += THREADS) {
            const nc_u32 word = scratch.row[w];
            if (word) atomicMin(&scratch.leading, 4 * w + (__ffs(word) - 1) / 8);
        }
    } else if (threadIdx.x < 32) {
        nc_u32 leading = ~0u;
        for (nc_u32 start = 0; start < vectors && leading == ~0u; start += 32) {
            const nc_u32 word = start + threadIdx.x < vectors ? scratch.row[start + threadIdx.x] : 0;
            const nc_u32 candidates = __ballot_sync(~0u, word != 0);
            if (candidates == 0) continue;
            const int source = __ffs(candidates) - 1;
            leading = 4 * (start + source) + (__ffs(__shfl_sync(~0u, word, source)) - 1) / 8;
        }
        if (threadIdx.x == 0) scratch.leading = leading;
    }
    __syncthreads();
    return scratch.leading;
}

template <bool AtomicMin, bool Cached>
__device__ __forceinline__ void progress_rows(const nc_progress &progress, const nc_tables *tables) {
    extern __shared__ uint4 memory[];
    Scratch &scratch = *reinterpret_cast<Scratch *>(memory);
    for (nc_u32 i = threadIdx.x; i < 512; i += THREADS) {
        scratch.exp[i] = tables->exp[i];
        if (i < 256) scratch.log[i] = tables->log[i];
    }
    if (threadIdx.x == 0) scratch.polynomial = tables->polynomial & 255;

    const nc_u32 n = progress.n, vectors = nc_row_pitch(n) / 4;
    const nc_u32 begin = blockIdx.x * progress.slice < progress.k ? blockIdx.x * progress.slice : progress.k;
    const nc_u32 bytes = progress.k - begin < progress.slice ? progress.k - begin : progress.slice;
    nc_u32 *own = reinterpret_cast<nc_u32 *>(progress.coefficients) + (nc_u64)blockIdx.x * n * vectors;
    nc_u32 *cache = reinterpret_cast<nc_u32 *>(reinterpret_cast<nc_u8 *>(memory) + NC_PROGRESS_FIXED_BYTES);
    const Rows rows = {Cached ? cache : own, reinterpret_cast<nc_u8 *>(progress.blocks) + begin, progress.k, vectors, vectors + bytes / 4, n};
    if (Cached)
        for (nc_u32 i = threadIdx.x; i < n * vectors / 4; i += THREADS) reinterpret_cast<uint4 *>(cache)[i] = reinterpret_cast<const uint4 *>(own)[i];
    __syncthreads();

    nc_u8 *factors = reinterpret_cast<nc_u8 *>(scratch.factors);
    nc_u8 *row_bytes = reinterpret_cast<nc_u8 *>(scratch.row);
    for (nc_u32 arriving = 0; arriving < progress.rows; arriving++) {
        const nc_u8 *vector = reinterpret_cast<const nc_u8 *>(progress.vectors) + (nc_u64)arriving * 4 * vectors;
        const nc_u8 *payload = reinterpret_cast<const nc_u8 *>(progress.payload) + (nc_u64)arriving * progress.payload_pitch + begin;
        for (nc_u32 i = threadIdx.x; i < n; i += THREADS) factors[i] = rows.coefficient(i, i) ? vector[i] : 0;
        __syncthreads();
        if (threadIdx.x == 0) scratch.leading = ~0u;
        sum_rows(rows, scratch);
        __syncthreads();
        for (nc_u32 w = threadIdx.x; w < rows.across; w += THREADS) {
            nc_u32 sum = w < vectors ? reinterpret_cast<const nc_u32 *>(vector)[w] : reinterpret_cast<const nc_u32 *>(payload)[w - vectors];
#pragma unroll
            for (int warp = 0; warp < WARPS; warp++) sum ^= scratch.partial[warp][w];
            scratch.row[w] = sum;
        }
        __syncthreads();
        const nc_u32 leading = find_leading<AtomicMin>(scratch, vectors);
        if (blockIdx.x == 0 && threadIdx.x == 0) reinterpret_cast<nc_u32 *>(progress.outcomes)[arriving] = leading < n;
        if (leading >= n) continue;
        const nc_u32 inverse = scratch.exp[255 - scratch.log[row_bytes[leading]]];
        for (nc_u32 i = threadIdx.x; i < n; i += THREADS) factors[i] = i == leading ? 1 : rows.coefficient(i, leading);
        __syncthreads();
        for (nc_u32 w = threadIdx.x; w < rows.across; w += THREADS) scratch.row[w] = scaled(scratch.row[w], inverse, scratch.polynomial);
        __syncthreads();
        add_to_rows(rows, scratch, leading);
        __syncthreads();
    }
    if (Cached)
        for (nc_u32 i = threadIdx.x; i < n * vectors / 4; i += THREADS) reinterpret_cast<uint4 *>(own)[i] = reinterpret_cast<const uint4 *>(cache)[i];
}

#define PROGRESS(name, atomic_min, cached) \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ nc_progress progress, const nc_tables *tables) { \
        progress_rows<atomic_min, cached>(progress, tables); \
    }

PROGRESS(nc_progress_cached, false, true)
PROGRESS(nc_progress_cached_min, true, true)
PROGRESS(nc_progress_global, false, false)
PROGRESS(nc_progress_global_min, true, false)

// [C | x]: coefficient rows and payloads side by side, so that one multiplication recodes both.
extern "C" __global__ void nc_join(const nc_join_task *tasks, nc_u32 count) {
    for (nc_u32 t = blockIdx.y; t < count; t += gridDim.y) {
        const nc_join_task task = tasks[t];
        const nc_u32 vector = nc_row_pitch(task.n) / 16, across = vector + task.k / 16;
        for (nc_u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < task.rows * across; i += gridDim.x * blockDim.x) {
            const nc_u32 row = i / across, at = i % across;
            const uint4 *from = at < vector ? reinterpret_cast<const uint4 *>(task.vectors + (nc_u64)row * task.vectors_pitch) + at
                                            : reinterpret_cast<const uint4 *>(task.payload + (nc_u64)row * task.payload_pitch) + (at - vector);
            reinterpret_cast<uint4 *>(task.out)[i] = *from;
        }
    }
}

// Rows times kept coefficient rows. One warp a row of the result, 4 columns a lane; sources of a task are row-major bytes at the pitch
// of coefficient rows, as are coefficients (NC_ROW_BYTES).
extern "C" __global__ void __launch_bounds__(256) nc_recode_vectors(const __grid_constant__ nc_launch launch, const nc_tables *tables) {
    const nc_task *tasks = nc_tasks(launch);
    const nc_u32 polynomial = tables->polynomial & 255;
    for (nc_u32 unit = blockIdx.x * 8 + threadIdx.x / 32; unit < launch.units; unit += gridDim.x * 8) {
        const nc_task &task = tasks[nc_task_of_unit(tasks, launch.count, unit)];
        const nc_u32 row = unit - task.first_unit, words = task.k / 4;
        const nc_u8 *coefficients = reinterpret_cast<const nc_u8 *>(task.coefficients) + (nc_u64)row * nc_row_pitch(task.n);
        const nc_u32 *source = reinterpret_cast<const nc_u32 *>(task.source);
        for (nc_u32 w = threadIdx.x & 31; w < words; w += 32) {
            nc_u32 sums[8] = {};
#pragma unroll 4
            for (nc_u32 i = 0; i < task.n; i++) {
                const nc_u32 factor = coefficients[i], word = source[i * words + w];
#pragma unroll
                for (int bit = 0; bit < 8; bit++) sums[bit] ^= word & bit_mask(factor, bit);
            }
            nc_u32 sum = 0;
#pragma unroll
            for (int bit = 7; bit >= 0; bit--) sum = times_x(sum, polynomial) ^ sums[bit];
            reinterpret_cast<nc_u32 *>(task.out + (nc_u64)row * task.out_pitch)[w] = sum;
        }
    }
}
