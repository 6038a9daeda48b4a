// `table`: log-domain encoding, register-blocked. (Head page follows with the tuned version.)
#include "nc_common.cuh"

namespace {

constexpr nc_u32 LINE = 128;                                  // one word a lane
constexpr nc_u32 TABLE = 511 * LINE;                          // sums of two logarithms of 0 to 255
constexpr nc_u32 CHUNK = 32;                                  // source rows whose coefficients are staged at once
constexpr nc_u32 WARPS = NC_TABLE_THREADS / 32;
constexpr nc_u32 STAGE = CHUNK * NC_TABLE_ROWS * 2;           // bytes of a chunk of coefficients
static_assert(TABLE + WARPS * 2 * STAGE <= NC_TABLE_SHARED, "shared memory");

extern __shared__ __align__(128) nc_u8 shared[];

__device__ __forceinline__ nc_u32 lookup(nc_u32 address) {
    nc_u32 value;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(address));
    return value;
}

__device__ __forceinline__ void copy4(nc_u32 to, const nc_u8 *from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}

__device__ __forceinline__ void fill_table(const nc_tables *tables) {
    for (nc_u32 i = threadIdx.x; i < TABLE / 16; i += NC_TABLE_THREADS) {
        const nc_u32 value = i / 8 < 510 ? tables->exp[i / 8] : 0;
        reinterpret_cast<uint4 *>(shared)[i] = make_uint4(value, value, value, value);
    }
    __syncthreads();
}

// Offsets of four logarithms into the table.
__device__ __forceinline__ void unpack(nc_u32 word, nc_u32 lane_base, nc_u32 (&offsets)[4]) {
    const nc_u32 zero = (((word & 0x7F7F7F7Fu) + 0x01010101u) & word & 0x80808080u) >> 7;
#pragma unroll
    for (nc_u32 j = 0; j < 4; j++) offsets[j] = __dp4a(zero, 1u << 8 * j, __dp4a(word, 128u << 8 * j, lane_base));
}

__device__ __forceinline__ void encode_unit(const nc_task &task, nc_u32 local, nc_u32 table_base, nc_u32 stage_base) {
    constexpr nc_u32 ROWS = NC_TABLE_ROWS;
    const nc_u32 lane = threadIdx.x % 32;
    const nc_u32 n = task.n, k = task.k, rows = task.rows;
    const nc_u32 groups = (rows + ROWS - 1) / ROWS;
    const nc_u32 first_row = local % groups * ROWS, column = local / groups * NC_TABLE_BYTES + lane * 16;
    const nc_u32 pairs = (n + 1) / 2, lane_base = table_base + lane * 4;

    const nc_u8 *source = reinterpret_cast<const nc_u8 *>(task.source) + (column < k ? column : 0);
    const nc_u32 staged_row = first_row + lane % ROWS < rows ? first_row + lane % ROWS : rows - 1;
    const nc_u8 *coefficients = reinterpret_cast<const nc_u8 *>(task.coefficients) + (nc_u64)staged_row * nc_row_pitch(n) * 2;

    auto stage = [&](nc_u32 chunk) {
#pragma unroll
        for (nc_u32 i = 0; i < CHUNK / 2 * ROWS / 32; i++) {
            const nc_u32 pair = i * (32 / ROWS) + lane / ROWS, at = chunk * (CHUNK / 2) + pair;
            copy4(stage_base + chunk % 2 * STAGE + (pair * ROWS + lane % ROWS) * 4, coefficients + (at < pairs ? at : 0) * 4, at < pairs);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };

    nc_u32 sums[ROWS][16];
#pragma unroll
    for (nc_u32 r = 0; r < ROWS; r++)
#pragma unroll
        for (nc_u32 j = 0; j < 16; j++) sums[r][j] = 0;

    __syncwarp();
    stage(0);
    uint4 next0 = __ldg(reinterpret_cast<const uint4 *>(source));
    uint4 next1 = __ldg(reinterpret_cast<const uint4 *>(source + (n > 1 ? k : 0)));
    for (nc_u32 chunk = 0; chunk * (CHUNK / 2) < pairs; chunk++) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncwarp();
        if ((chunk + 1) * (CHUNK / 2) < pairs) stage(chunk + 1);
        const nc_u32 first = chunk * (CHUNK / 2), count = pairs - first < CHUNK / 2 ? pairs - first : CHUNK / 2;
        const uint4 *staged = reinterpret_cast<const uint4 *>(shared + (stage_base - table_base) + chunk % 2 * STAGE);
#pragma unroll 1
        for (nc_u32 p = 0; p < count; p++) {
            const nc_u32 words0[4] = {next0.x, next0.y, next0.z, next0.w}, words1[4] = {next1.x, next1.y, next1.z, next1.w};
            const nc_u32 after = 2 * (first + p) + 2;
            if (after < n) {
                next0 = __ldg(reinterpret_cast<const uint4 *>(source + (nc_u64)after * k));
                next1 = __ldg(reinterpret_cast<const uint4 *>(source + (nc_u64)(after + 1 < n ? after + 1 : after) * k));
            }
            nc_u32 low[ROWS], high[ROWS];
#pragma unroll
            for (nc_u32 r = 0; r < ROWS; r += 4) {
                const uint4 four = staged[p * (ROWS / 4) + r / 4];
                const nc_u32 pair[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (nc_u32 q = 0; q < 4; q++) low[r + q] = pair[q] & 0xFFFF, high[r + q] = pair[q] >> 16;
            }
#pragma unroll
            for (nc_u32 w = 0; w < 4; w++) {
                nc_u32 offsets0[4], offsets1[4];
                unpack(words0[w], lane_base, offsets0);
                unpack(words1[w], lane_base, offsets1);
#pragma unroll
                for (nc_u32 r = 0; r < ROWS; r++)
#pragma unroll
                    for (nc_u32 j = 0; j < 4; j++) sums[r][4 * w + j] ^= lookup(offsets0[j] + low[r]) ^ lookup(offsets1[j] + high[r]);
            }
        }
    }

    if (column >= k) return;
#pragma unroll
    for (nc_u32 r = 0; r < ROWS; r++) {
        if (first_row + r >= rows) break;
        nc_u32 words[4];
#pragma unroll
        for (nc_u32 w = 0; w < 4; w++)
            words[w] = __byte_perm(__byte_perm(sums[r][4 * w], sums[r][4 * w + 1], 0x0040), __byte_perm(sums[r][4 * w + 2], sums[r][4 * w + 3], 0x0040), 0x5410);
        *reinterpret_cast<uint4 *>(task.out + (nc_u64)(first_row + r) * task.out_pitch + column) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(NC_TABLE_THREADS, 1) nc_table(const __grid_constant__ nc_launch launch, const nc_tables *tables) {
    const nc_u32 base = (nc_u32)__cvta_generic_to_shared(shared), warp = threadIdx.x / 32;
    fill_table(tables);
    const nc_task *tasks = nc_tasks(launch);
    for (nc_u32 unit = blockIdx.x * WARPS + warp; unit < launch.units; unit += gridDim.x * WARPS) {
        const nc_task &task = tasks[nc_task_of_unit(tasks, launch.count, unit)];
        encode_unit(task, unit - task.first_unit, base, base + TABLE + warp * 2 * STAGE);
    }
}
