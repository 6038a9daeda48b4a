// `table`: log-domain encoding, register-blocked. (Head page follows with the tuned version.)
#include "nc_common.cuh"

namespace {

constexpr nc_u32 LINE = 128;                                  // one word a lane
constexpr nc_u32 TABLE = 511 * LINE;                          // sums of two logarithms of 0 to 255
constexpr nc_u32 CHUNK = 32;                                  // source rows whose coefficients are staged at once
#ifndef T_PACK
#define T_PACK 2
#endif
constexpr nc_u32 WARPS = NC_TABLE_THREADS / 32;
constexpr nc_u32 ROWS = NC_TABLE_ROWS;
constexpr nc_u32 LANE = NC_TABLE_BYTES / 32, WORDS = LANE / 4; // of a lane and row
constexpr nc_u32 PACK = T_PACK;
constexpr nc_u32 STAGE = CHUNK * NC_TABLE_ROWS * 2;           // bytes of a chunk of coefficients
static_assert(TABLE + WARPS * 2 * STAGE <= NC_TABLE_SHARED, "shared memory");
struct words_t { nc_u32 w[WORDS]; };
__device__ __forceinline__ words_t load(const nc_u8 *at) {
    words_t v;
    if constexpr (WORDS == 4) { const uint4 x = __ldg(reinterpret_cast<const uint4 *>(at)); v.w[0] = x.x; v.w[1] = x.y; v.w[2] = x.z; v.w[3] = x.w; }
    else if constexpr (WORDS == 2) { const uint2 x = __ldg(reinterpret_cast<const uint2 *>(at)); v.w[0] = x.x; v.w[1] = x.y; }
    else v.w[0] = __ldg(reinterpret_cast<const nc_u32 *>(at));
    return v;
}

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

// Where a unit lies in its task.
struct Place {
    nc_u32 row;    // first of it
    nc_u32 column; // first byte of this lane
};

__device__ __forceinline__ Place place_of(const nc_task &task, nc_u32 local) {
    const nc_u32 groups = (task.rows + ROWS - 1) / ROWS;
    return {local % groups * ROWS, local / groups * NC_TABLE_BYTES + threadIdx.x % 32 * LANE};
}

typedef nc_u32 Sums[ROWS][LANE / PACK];

__device__ __forceinline__ void accumulate(const nc_task &task, Place place, nc_u32 begin, nc_u32 end, nc_u32 table_base, nc_u32 stage_base, Sums &sums) {
    const nc_u32 lane = threadIdx.x % 32;
    const nc_u32 n = task.n, k = task.k, rows = task.rows;
    const nc_u32 lane_base = table_base + lane * 4;

    const nc_u8 *source = reinterpret_cast<const nc_u8 *>(task.source) + (place.column < k ? place.column : 0);
    const nc_u32 staged_row = place.row + lane % ROWS < rows ? place.row + lane % ROWS : rows - 1;
    const nc_u8 *coefficients = reinterpret_cast<const nc_u8 *>(task.coefficients) + (nc_u64)staged_row * nc_row_pitch(n) * 2;

    auto stage = [&](nc_u32 first) {
#pragma unroll
        for (nc_u32 i = 0; i < CHUNK / 2 * ROWS / 32; i++) {
            const nc_u32 pair = i * (32 / ROWS) + lane / ROWS, at = first + pair;
            copy4(stage_base + (first - begin) / (CHUNK / 2) % 2 * STAGE + (pair * ROWS + lane % ROWS) * 4, coefficients + (at < end ? at : 0) * 4, at < end);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };

#pragma unroll
    for (nc_u32 r = 0; r < ROWS; r++)
#pragma unroll
        for (nc_u32 j = 0; j < LANE / PACK; j++) sums[r][j] = 0;

    auto row = [&](nc_u32 i) { return load(source + (nc_u64)(i < n ? i : n - 1) * k); };
    auto multiply = [&](const uint4 *staged, const words_t &now0, const words_t &now1) {
        nc_u32 low[ROWS], high[ROWS];
#pragma unroll
        for (nc_u32 r = 0; r < ROWS; r += 4) {
            const uint4 four = staged[r / 4];
            const nc_u32 pair[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (nc_u32 q = 0; q < 4; q++) low[r + q] = pair[q] & 0xFFFF, high[r + q] = pair[q] >> 16;
        }
#pragma unroll
        for (nc_u32 w = 0; w < WORDS; w++) {
            nc_u32 offsets0[4], offsets1[4];
            unpack(now0.w[w], lane_base, offsets0);
            unpack(now1.w[w], lane_base, offsets1);
#pragma unroll
            for (nc_u32 r = 0; r < ROWS; r++) {
                nc_u32 t0[4], t1[4];
#pragma unroll
                for (nc_u32 j = 0; j < 4; j++) t0[j] = lookup(offsets0[j] + low[r]), t1[j] = lookup(offsets1[j] + high[r]);
#pragma unroll
                for (nc_u32 j = 0; j < 4; j += PACK) {
                    nc_u32 &sum = sums[r][(4 * w + j) / PACK];
                    if constexpr (PACK == 1) sum ^= t0[j] ^ t1[j];
                    if constexpr (PACK == 2) sum ^= (t0[j + 1] * 256 + t0[j]) ^ (t1[j + 1] * 256 + t1[j]);
                    if constexpr (PACK == 4) sum ^= (((t0[3] * 256 + t0[2]) * 256 + t0[1]) * 256 + t0[0]) ^ (((t1[3] * 256 + t1[2]) * 256 + t1[1]) * 256 + t1[0]);
                }
            }
        }
    };

    if (begin == end) return;
    __syncwarp();
    stage(begin);
    words_t a0 = row(2 * begin), a1 = row(2 * begin + 1);
    for (nc_u32 first = begin, which = 0; first < end; first += CHUNK / 2, which ^= 1) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncwarp();
        if (first + CHUNK / 2 < end) stage(first + CHUNK / 2);
        const nc_u32 count = end - first < CHUNK / 2 ? end - first : CHUNK / 2;
        const uint4 *staged = reinterpret_cast<const uint4 *>(shared + (stage_base - table_base) + which * STAGE);
#pragma unroll 1
        for (nc_u32 p = 0; p < count; p += 2) {
            const words_t b0 = row(2 * (first + p) + 2), b1 = row(2 * (first + p) + 3);
            multiply(staged, a0, a1);
            a0 = row(2 * (first + p) + 4), a1 = row(2 * (first + p) + 5);
            multiply(staged + ROWS / 4, b0, b1);
            staged += ROWS / 2;
        }
    }
}

__device__ __forceinline__ void store(nc_u8 *at, words_t out) {
    if constexpr (WORDS == 4) *reinterpret_cast<uint4 *>(at) = make_uint4(out.w[0], out.w[1], out.w[2], out.w[3]);
    else if constexpr (WORDS == 2) *reinterpret_cast<uint2 *>(at) = make_uint2(out.w[0], out.w[1]);
    else *reinterpret_cast<nc_u32 *>(at) = out.w[0];
}

__device__ __forceinline__ words_t bytes_of(const nc_u32 (&sums)[LANE / PACK]) {
        words_t out;
#pragma unroll
        for (nc_u32 w = 0; w < WORDS; w++) {
            if constexpr (PACK == 1) out.w[w] = __byte_perm(__byte_perm(sums[4 * w], sums[4 * w + 1], 0x0040), __byte_perm(sums[4 * w + 2], sums[4 * w + 3], 0x0040), 0x5410);
            if constexpr (PACK == 2) out.w[w] = __byte_perm(sums[2 * w], sums[2 * w + 1], 0x5410);
            if constexpr (PACK == 4) out.w[w] = sums[w];
        }
    return out;
}

} // namespace

extern "C" __global__ void __launch_bounds__(NC_TABLE_THREADS, 1) nc_table(const __grid_constant__ nc_launch launch, const nc_tables *tables) {
    const nc_u32 base = (nc_u32)__cvta_generic_to_shared(shared), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    fill_table(tables);
    const nc_task *tasks = nc_tasks(launch);
    const nc_u32 last = (nc_u32)((nc_u64)launch.units * (blockIdx.x + 1) / gridDim.x);
    for (nc_u32 first = (nc_u32)((nc_u64)launch.units * blockIdx.x / gridDim.x); first < last; first += WARPS) {
        const nc_u32 count = last - first < WARPS ? last - first : WARPS, team = WARPS / count;
        const nc_u32 unit = first + warp / team, member = warp % team;
        Sums sums;
        const nc_task *task = nullptr;
        Place place = {0, 0};
        if (warp / team < count) {
            task = tasks + nc_task_of_unit(tasks, launch.count, unit);
            place = place_of(*task, unit - task->first_unit);
            const nc_u32 quads = (task->n + 3) / 4;
            accumulate(*task, place, quads * member / team * 2, quads * (member + 1) / team * 2, base, base + TABLE + warp * 2 * STAGE, sums);
        }
        if (team == 1) {
            if (task && place.column < task->k) {
#pragma unroll
                for (nc_u32 r = 0; r < ROWS; r++) {
                    if (place.row + r >= task->rows) break;
                    store(reinterpret_cast<nc_u8 *>(task->out) + (nc_u64)(place.row + r) * task->out_pitch + place.column, bytes_of(sums[r]));
                }
            }
        } else {
            __syncthreads();
            if (task)
#pragma unroll
                for (nc_u32 r = 0; r < ROWS; r++) store(shared + ((warp * ROWS + r) * 32 + lane) * LANE, bytes_of(sums[r]));
            __syncthreads();
            if (task && place.column < task->k)
                for (nc_u32 r = member; r < ROWS && place.row + r < task->rows; r += team) {
                    words_t sum;
#pragma unroll
                    for (nc_u32 w = 0; w < WORDS; w++) sum.w[w] = 0;
                    for (nc_u32 m = 0; m < team; m++) {
                        const nc_u32 *part = reinterpret_cast<const nc_u32 *>(shared + (((warp - member + m) * ROWS + r) * 32 + lane) * LANE);
#pragma unroll
                        for (nc_u32 w = 0; w < WORDS; w++) sum.w[w] ^= part[w];
                    }
                    store(reinterpret_cast<nc_u8 *>(task->out) + (nc_u64)(place.row + r) * task->out_pitch + place.column, sum);
                }
        }
    }
}
