// What several kernels need: the tasks of a launch, Philox, small arithmetic. No includes beside the ABI.
#ifndef NC_COMMON_CUH
#define NC_COMMON_CUH

#include "nc_abi.h"

// The tasks of a launch, wherever they are.
__device__ __forceinline__ const nc_task *nc_tasks(const nc_launch &launch) {
    return launch.tasks ? reinterpret_cast<const nc_task *>(launch.tasks) : launch.few;
}

// The last task whose FIRST is not above `at`.
template <nc_u32 nc_task::*FIRST> __device__ __forceinline__ nc_u32 nc_task_at(const nc_task *tasks, nc_u32 count, nc_u32 at) {
    nc_u32 low = 0, high = count;
    while (high - low > 1) {
        const nc_u32 middle = (low + high) / 2;
        if (tasks[middle].*FIRST <= at) low = middle; else high = middle;
    }
    return low;
}

// The task that a unit of work belongs to, and the task that a row belongs to.
__device__ __forceinline__ nc_u32 nc_task_of_unit(const nc_task *tasks, nc_u32 count, nc_u32 unit) {
    return nc_task_at<&nc_task::first_unit>(tasks, count, unit);
}
__device__ __forceinline__ nc_u32 nc_task_of_row(const nc_task *tasks, nc_u32 count, nc_u32 row) {
    return nc_task_at<&nc_task::first_row>(tasks, count, row);
}

// Coefficients from one row to the next.
__device__ __forceinline__ nc_u32 nc_row_pitch(nc_u32 n) { return (n + NC_ROW_ALIGN - 1) & ~(nc_u32)(NC_ROW_ALIGN - 1); }

// Four words, byte i of each of which belongs together, as byte i's word.
__device__ __forceinline__ void nc_transpose(nc_u32 (&words)[4]) {
    const nc_u32 low01 = __byte_perm(words[0], words[1], 0x5140), high01 = __byte_perm(words[0], words[1], 0x7362);
    const nc_u32 low23 = __byte_perm(words[2], words[3], 0x5140), high23 = __byte_perm(words[2], words[3], 0x7362);
    words[0] = __byte_perm(low01, low23, 0x5410);
    words[1] = __byte_perm(low01, low23, 0x7632);
    words[2] = __byte_perm(high01, high23, 0x5410);
    words[3] = __byte_perm(high01, high23, 0x7632);
}

// Sixteen coefficients: call `q` of Philox4x32-10 (Salmon et al., SC11), the words little-endian. The same as `gf::rows`.
__device__ __forceinline__ uint4 nc_philox(nc_u32 q, nc_u32 seed, nc_u64 generation, nc_u64 key) {
    nc_u32 c0 = q, c1 = seed, c2 = (nc_u32)generation, c3 = (nc_u32)(generation >> 32);
    nc_u32 k0 = (nc_u32)key, k1 = (nc_u32)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const nc_u32 h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        const nc_u32 h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

// Sixteen bytes of a raw generation, from `offset` of block `source` on; zero where the block or the generation has ended.
__device__ __forceinline__ uint4 nc_raw16(const nc_form_task &task, nc_u32 source, nc_u32 offset) {
    const nc_u64 at = (nc_u64)source * task.k + offset;
    if (source >= task.n || offset >= task.k || at >= task.raw_length) return make_uint4(0, 0, 0, 0);
    const nc_u8 *bytes = reinterpret_cast<const nc_u8 *>(task.raw) + (nc_u64)source * task.raw_pitch + offset;
    if (at + 16 <= task.raw_length) return *reinterpret_cast<const uint4 *>(bytes);
    nc_u32 words[4] = {0, 0, 0, 0};
#pragma unroll
    for (nc_u32 i = 0; i < 16; i++)
        if (at + i < task.raw_length) words[i / 4] |= (nc_u32)bytes[i] << (i % 4 * 8);
    return make_uint4(words[0], words[1], words[2], words[3]);
}

#endif
