// Coefficient rows: what the encode kernels multiply with, made in device memory once a batch.
//
// Idea. A row is made from its seed where it is used, so nothing but seeds crosses the link, and it is turned into logarithms once
// a batch instead of once a word of output (Shojania and Li, section 5.1.1). Philox is a counter: any sixteen coefficients of any
// row are one call with no state, so every thread makes sixteen by itself.
//
// Layout. Row r of a task starts at `coefficients` + r * nc_row_pitch(n) * (bytes of an entry); one byte an entry in the forms
// NC_ROW_BYTES, _LOGS and _LOGS1, two in NC_ROW_LOGS16. Behind the n-th coefficient, up to the pitch, stands the form's zero, so
// that readers take sixteen at a time. Eight neighbouring threads share a row: 128 coefficients in one step, stored as one line.
// With more than 128 coefficients a row, gridDim.y spreads the steps of a row over blocks.
//
//   nc_rows           all kinds of rows, as they are
//   nc_rows_nonzero   the same with ones for zeros: the fully dense rows of that paper's measurements, never used for transport
//
// Launch. NC_ROWS_THREADS threads a block; gridDim.x any, best ceil(rows / 32); gridDim.y any, best ceil(n / 128) for the largest n.
//
// Cost. About 110 integer instructions for sixteen coefficients, then sixteen lookups in a 256-byte table in shared memory for
// the logarithmic forms. 256 bytes of shared memory, no spills.

#include "nc_common.cuh"

namespace {

constexpr nc_u32 LANES = 8; // threads that share a row

// Sixteen coefficients from number 16 * q on. What lies behind the n-th is undefined.
__device__ __forceinline__ uint4 coefficients_of(const nc_task &task, nc_u32 row, nc_u32 q) {
    if (task.kind == NC_ROWS_SEEDED) return nc_philox(q, task.first_seed + row, task.generation, task.key);

    nc_u32 words[4] = {0, 0, 0, 0};
    if (task.kind == NC_ROWS_SOURCE) {
        const nc_u32 at = reinterpret_cast<const nc_u16 *>(task.given)[row] - 16 * q;
#pragma unroll
        for (nc_u32 w = 0; w < 4; w++) words[w] = at / 4 == w ? 1u << at % 4 * 8 : 0;
    } else {
        const nc_u8 *given = reinterpret_cast<const nc_u8 *>(task.given) + (nc_u64)row * task.n + 16 * q;
        const nc_u32 left = task.n - 16 * q;
        if (left >= 16 && (nc_u64)given % 16 == 0) return *reinterpret_cast<const uint4 *>(given);
#pragma unroll
        for (nc_u32 i = 0; i < 16; i++)
            if (i < left) words[i / 4] |= (nc_u32)given[i] << i % 4 * 8;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// One byte for each byte.
__device__ __forceinline__ nc_u32 mapped(nc_u32 word, const nc_u8 *map) {
    return map[word & 255] | map[word >> 8 & 255] << 8 | map[word >> 16 & 255] << 16 | (nc_u32)map[word >> 24] << 24;
}

// Two 16-bit entries from two bytes.
__device__ __forceinline__ nc_u32 mapped16(nc_u32 low, nc_u32 high, const nc_u16 *map) {
    return map[low] | (nc_u32)map[high] << 16;
}

template <bool NONZERO>
__device__ __forceinline__ void make_rows(const nc_launch &launch, const nc_tables *tables) {
    __shared__ nc_u8 bytes[256];
    __shared__ nc_u16 halves[256];
    const nc_u32 form = launch.row_form;
    for (nc_u32 i = threadIdx.x; i < 256; i += blockDim.x) {
        const nc_u32 log = tables->log[i];
        bytes[i] = (nc_u8)(log + (form == NC_ROW_LOGS1));
        halves[i] = (nc_u16)NC_ROW_LOGS16_ENTRY(log);
    }
    __syncthreads();

    const nc_task *tasks = nc_tasks(launch);
    const nc_u32 step = gridDim.x * blockDim.x / LANES;
    for (nc_u32 row = (blockIdx.x * blockDim.x + threadIdx.x) / LANES; row < launch.rows; row += step) {
        const nc_task &task = tasks[nc_task_of_row(tasks, launch.count, row)];
        const nc_u32 local = row - task.first_row, pitch = nc_row_pitch(task.n);
        for (nc_u32 q = blockIdx.y * LANES + threadIdx.x % LANES; q < pitch / 16; q += gridDim.y * LANES) {
            const uint4 made = coefficients_of(task, local, q);
            nc_u32 words[4] = {made.x, made.y, made.z, made.w};
#pragma unroll
            for (nc_u32 w = 0; w < 4; w++) {
                if (NONZERO) words[w] |= __vcmpeq4(words[w], 0) & 0x01010101u;
                const nc_u32 first = 16 * q + 4 * w;
                if (task.n < first + 4) words[w] = task.n <= first ? 0 : words[w] & ((1u << (task.n - first) * 8) - 1);
            }
            const nc_u64 at = (nc_u64)local * pitch + 16 * q;
            if (form == NC_ROW_LOGS16) {
                uint4 *out = reinterpret_cast<uint4 *>(task.coefficients + 2 * at);
                nc_u32 pairs[8];
#pragma unroll
                for (nc_u32 i = 0; i < 8; i++) {
                    const nc_u32 pair = words[i / 2] >> i % 2 * 16;
                    pairs[i] = mapped16(pair & 255, pair >> 8 & 255, halves);
                }
                out[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
                out[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
            } else {
                if (form != NC_ROW_BYTES) {
#pragma unroll
                    for (nc_u32 w = 0; w < 4; w++) words[w] = mapped(words[w], bytes);
                }
                *reinterpret_cast<uint4 *>(task.coefficients + at) = make_uint4(words[0], words[1], words[2], words[3]);
            }
        }
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(NC_ROWS_THREADS) nc_rows(const __grid_constant__ nc_launch launch, const nc_tables *tables) {
    make_rows<false>(launch, tables);
}

extern "C" __global__ void __launch_bounds__(NC_ROWS_THREADS) nc_rows_nonzero(const __grid_constant__ nc_launch launch, const nc_tables *tables) {
    make_rows<true>(launch, tables);
}
