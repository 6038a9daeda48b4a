// Decoding block by block, as blocks arrive, and what recoding wants beside the encode kernels.
//
// Progressive decoding (nc_progress_*), one generation a launch, one arriving block or a group of them: Gauss-Jordan on [C | x] to
// reduced row echelon form, so that the identity on the left leaves the source blocks on the right, each where it belongs: row i is kept where source
// block i will be. As in the paper, every thread block of the grid keeps its own copy of all coefficients and a slice of every payload,
// n + slice bytes a row, so that nothing in a launch waits for another thread block. A copy costs n rows of nc_row_pitch(n) bytes.
//
//     for each arriving [c | x]
//         [c | x] += sum of c[i] * row i over the kept rows       kept rows are zero in each other's columns: one product, no chain
//         seek the first non-zero of c; none: redundant, dropped
//         divide by it; add its multiples to all kept rows; keep it
//
// Lanes take words of a row, warps rows; where few words are left, as in a slice of 32 bytes, several rows share a warp. The sum adds
// words bit by bit of the factors (masks from a table) and multiplies by powers of x at the end; the second product has one row and many factors, and
// takes three byte permutes a word. The entry points differ in the search, by one warp's votes or by an atomic minimum (_min), and in
// where the coefficients are during a launch: in shared memory (cached, n up to 416) or in global memory.
//
// Shared memory: NC_PROGRESS_FIXED_BYTES (tables, the row, partial sums of 16 warps), with `cached` n rows more: above 48 KB. 512 threads.
//
// What limits it: latency, 5,800 cycles an arriving block at n = 128 (sum 3,000, update 2,300, the rest search, division and barriers); a
// launch for each block adds 3.7 us. A generation of 128 x 4096 bytes in one launch: 421 us, from global memory 445 us (H200 at 1.76 GHz).
//
// Tried and dropped: factors' bits tested for every word, 801 us; a lane's place by division, 597 us.
//
// Recoding is encoding with the held blocks for sources: the same rows times coefficients and payloads. nc_join puts them side by side
// as one generation of nc_row_pitch(n) + k bytes a block, so that any encode kernel makes whole recoded blocks, coefficients first, in one task;
// nc_recode_vectors is a small kernel for the coefficients alone.
#include "nc_common.cuh"

#define THREADS NC_PROGRESS_THREADS
#define WARPS (THREADS / 32)

struct Scratch {
    nc_u32 masks[256][8];     // bit by bit, all ones where a coefficient's bit is set
    uint4 eights[256];        // a coefficient's products with 0 ... 7 and with 16 * (0 ... 7)
    nc_u32 fours[256];        // with 0, 8, 128, 136
    nc_u8 inverses[256];
    nc_u32 polynomial;
    nc_u32 leading;
    nc_u32 present[1024 / 4]; // bytes: 255 where a row is kept
    nc_u32 known[1024 / 4];   // bytes: the arriving coefficients of the rows that are kept
    nc_u8 factors[1024];      // of the kept rows, in the arriving row's column
    nc_u32 row[(1024 + NC_PROGRESS_SLICE_MAX) / 4]; // the arriving [c | x], reduced, then scaled
    nc_u32 partial[WARPS][(1024 + NC_PROGRESS_SLICE_MAX) / 4];
};
static_assert(sizeof(Scratch) <= NC_PROGRESS_FIXED_BYTES, "the host would give too little shared memory");
static_assert((1024 + NC_PROGRESS_SLICE_MAX) / 4 <= THREADS, "a thread holds one word of the arriving row");

__device__ __forceinline__ nc_u32 times_x(nc_u32 word, nc_u32 polynomial) {
    return ((word & 0x7F7F7F7Fu) << 1) ^ (((word >> 7) & 0x01010101u) * polynomial);
}

__device__ __forceinline__ nc_u32 bit_mask(nc_u32 factor, int bit) { return (nc_u32)((int)(factor << (31 - bit)) >> 31); }

// A word as selectors of byte permutes: bits 0 to 2 of its bytes, bits 4 to 6, and bits 3 and 7.
struct Selectors {
    nc_u32 low, high, rest;
    __device__ __forceinline__ explicit Selectors(nc_u32 word) {
        const nc_u32 lows = word & 0x0F0F0F0Fu, highs = word >> 4 & 0x0F0F0F0Fu;
        const nc_u32 l = __byte_perm(lows | lows >> 4, 0, 0x4420), h = __byte_perm(highs | highs >> 4, 0, 0x4420);
        low = l & 0x7777;
        high = h & 0x7777;
        rest = (l >> 3 & 0x1111) | (h >> 2 & 0x2222);
    }
    __device__ __forceinline__ nc_u32 times(const Scratch &scratch, nc_u32 factor) const {
        const uint4 eights = scratch.eights[factor];
        return __byte_perm(eights.x, eights.y, low) ^ __byte_perm(eights.z, eights.w, high) ^ __byte_perm(scratch.fours[factor], 0, rest);
    }
};

// This block's part of the kept rows: all coefficients, and `across - vectors` words of the payload.
struct Rows {
    nc_u32 *coefficients;
    nc_u8 *payload;
    nc_u32 payload_pitch, vectors, across, n;

    // Word w of the first row; `stride(w)` words further that of the next.
    __device__ __forceinline__ nc_u32 *word(nc_u32 w) const { return w < vectors ? coefficients + w : reinterpret_cast<nc_u32 *>(payload) + (w - vectors); }
    __device__ __forceinline__ nc_u32 stride(nc_u32 w) const { return w < vectors ? vectors : payload_pitch / 4; }
    __device__ __forceinline__ nc_u32 coefficient(nc_u32 row, nc_u32 column) const {
        return coefficients[row * vectors + column / 4] >> 8 * (column & 3) & 255;
    }
};

// Lanes beside each other take words of a row; where fewer than 32 words are left, several rows share a warp.
struct Place {
    nc_u32 word, first_row, row_step, split;
    bool inside;

    __device__ __forceinline__ Place(nc_u32 start, nc_u32 across) {
        const nc_u32 left = across - start, bits = left > 16 ? 5 : left > 8 ? 4 : left > 4 ? 3 : 2, lane = threadIdx.x & 31;
        split = 32 >> bits;
        word = start + (lane & ((1u << bits) - 1));
        first_row = threadIdx.x / 32 * split + (lane >> bits);
        row_step = WARPS * split;
        inside = word < across;
    }
};

// partial[warp][w] = sum of factor * row over this warp's rows
__device__ __forceinline__ void sum_rows(const Rows &rows, Scratch &scratch) {
    const nc_u8 *factors = reinterpret_cast<const nc_u8 *>(scratch.known);
    for (nc_u32 start = 0; start < rows.across; start += 32) {
        const Place place(start, rows.across);
        nc_u32 sums[8] = {};
        if (place.inside) {
            const nc_u32 *const at = rows.word(place.word);
            const nc_u32 stride = rows.stride(place.word);
#pragma unroll 4
            for (nc_u32 row = place.first_row; row < rows.n; row += place.row_step) {
                const nc_u32 word = at[row * stride];
                const uint4 *masks = reinterpret_cast<const uint4 *>(scratch.masks[factors[row]]);
                const uint4 low = masks[0], high = masks[1];
                sums[0] ^= word & low.x, sums[1] ^= word & low.y, sums[2] ^= word & low.z, sums[3] ^= word & low.w;
                sums[4] ^= word & high.x, sums[5] ^= word & high.y, sums[6] ^= word & high.z, sums[7] ^= word & high.w;
            }
        }
        nc_u32 sum = 0;
#pragma unroll
        for (int bit = 7; bit >= 0; bit--) sum = times_x(sum, scratch.polynomial) ^ sums[bit];
        for (nc_u32 distance = 16; distance >= 32 / place.split; distance /= 2) sum ^= __shfl_xor_sync(~0u, sum, distance);
        if (place.inside) scratch.partial[threadIdx.x / 32][place.word] = sum;
    }
}

// row += factor * the scaled arriving row, for all rows; the arriving row itself becomes row `leading`, which was zero
__device__ __forceinline__ void add_to_rows(const Rows &rows, const Scratch &scratch) {
    for (nc_u32 start = 0; start < rows.across; start += 32) {
        const Place place(start, rows.across);
        if (!place.inside) continue;
        const Selectors arriving(scratch.row[place.word]);
        nc_u32 *const at = rows.word(place.word);
        const nc_u32 stride = rows.stride(place.word);
        for (nc_u32 first = place.first_row; first < rows.n; first += 4 * place.row_step) {
            nc_u32 sums[4];
#pragma unroll
            for (nc_u32 i = 0; i < 4; i++) {
                const nc_u32 row = first + i * place.row_step;
                if (row < rows.n) sums[i] = at[row * stride] ^ arriving.times(scratch, scratch.factors[row]);
            }
#pragma unroll
            for (nc_u32 i = 0; i < 4; i++) {
                const nc_u32 row = first + i * place.row_step;
                if (row < rows.n) at[row * stride] = sums[i];
            }
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

__device__ __forceinline__ nc_u32 combinations(nc_u32 a, nc_u32 b) { return a << 8 | b << 16 | (a ^ b) << 24; }

template <bool AtomicMin, bool Cached>
__device__ __forceinline__ void progress_rows(const nc_progress &progress, const nc_tables *tables) {
    extern __shared__ uint4 memory[];
    Scratch &scratch = *reinterpret_cast<Scratch *>(memory);
    const nc_u32 polynomial = tables->polynomial & 255;
    for (nc_u32 i = threadIdx.x; i < 256; i += THREADS) {
        nc_u32 powers[8];
        powers[0] = i;
        for (int bit = 1; bit < 8; bit++) powers[bit] = times_x(powers[bit - 1], polynomial);
        for (int bit = 0; bit < 8; bit++) scratch.masks[i][bit] = bit_mask(i, bit);
        scratch.eights[i] = make_uint4(combinations(powers[0], powers[1]), combinations(powers[0], powers[1]) ^ 0x01010101u * powers[2],
                                       combinations(powers[4], powers[5]), combinations(powers[4], powers[5]) ^ 0x01010101u * powers[6]);
        scratch.fours[i] = combinations(powers[3], powers[7]);
        scratch.inverses[i] = i ? tables->exp[255 - tables->log[i]] : 0;
    }
    if (threadIdx.x == 0) scratch.polynomial = polynomial;

    const nc_u32 n = progress.n, vectors = nc_row_pitch(n) / 4;
    const nc_u32 begin = blockIdx.x * progress.slice < progress.k ? blockIdx.x * progress.slice : progress.k;
    const nc_u32 bytes = progress.k - begin < progress.slice ? progress.k - begin : progress.slice;
    nc_u32 *own = reinterpret_cast<nc_u32 *>(progress.coefficients) + (nc_u64)blockIdx.x * n * vectors;
    nc_u32 *cache = reinterpret_cast<nc_u32 *>(reinterpret_cast<nc_u8 *>(memory) + NC_PROGRESS_FIXED_BYTES);
    const Rows rows = {Cached ? cache : own, reinterpret_cast<nc_u8 *>(progress.blocks) + begin, progress.k, vectors, vectors + bytes / 4, n};
    if (Cached)
        for (nc_u32 i = threadIdx.x; i < n * vectors / 4; i += THREADS) reinterpret_cast<uint4 *>(cache)[i] = reinterpret_cast<const uint4 *>(own)[i];
    __syncthreads();

    const nc_u32 w = threadIdx.x;
    const nc_u8 *row_bytes = reinterpret_cast<const nc_u8 *>(scratch.row);
    for (nc_u32 i = threadIdx.x; i < 4 * vectors; i += THREADS)
        reinterpret_cast<nc_u8 *>(scratch.present)[i] = i < n && rows.coefficient(i, i) ? 255 : 0;
    const auto arriving_word = [&](nc_u32 arriving) -> nc_u32 {
        if (arriving >= progress.rows || w >= rows.across) return 0;
        if (w < vectors) return reinterpret_cast<const nc_u32 *>(progress.vectors)[(nc_u64)arriving * vectors + w];
        return reinterpret_cast<const nc_u32 *>(progress.payload + (nc_u64)arriving * progress.payload_pitch + begin)[w - vectors];
    };
    nc_u32 word = arriving_word(0);
    __syncthreads();
    for (nc_u32 arriving = 0; arriving < progress.rows; arriving++) {
        if (w < vectors) scratch.known[w] = word & scratch.present[w];
        __syncthreads();
        if (threadIdx.x == 0) scratch.leading = ~0u;
        const nc_u32 next = arriving_word(arriving + 1);
        sum_rows(rows, scratch);
        __syncthreads();
        if (w < rows.across) {
#pragma unroll
            for (int warp = 0; warp < WARPS; warp++) word ^= scratch.partial[warp][w];
            scratch.row[w] = word;
        }
        __syncthreads();
        const nc_u32 leading = find_leading<AtomicMin>(scratch, vectors);
        if (blockIdx.x == 0 && threadIdx.x == 0) reinterpret_cast<nc_u32 *>(progress.outcomes)[arriving] = leading < n;
        if (leading < n) {
            const nc_u32 inverse = scratch.inverses[row_bytes[leading]];
            for (nc_u32 i = threadIdx.x; i < n; i += THREADS) scratch.factors[i] = (nc_u8)(i == leading ? 1 : rows.coefficient(i, leading));
            __syncthreads();
            if (w < rows.across) scratch.row[w] = Selectors(word).times(scratch, inverse);
            if (threadIdx.x == 0) reinterpret_cast<nc_u8 *>(scratch.present)[leading] = 255;
            __syncthreads();
            add_to_rows(rows, scratch);
        }
        word = next;
    }
    __syncthreads();
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
