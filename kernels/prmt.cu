// Products by byte permutation: eight three-bit selectors for three sources.
#include "nc_common.cuh"

namespace {

const nc_u32 ROWS = NC_PRMT_UNIT_ROWS, UNIT_BYTES = NC_PRMT_UNIT_BYTES, WARPS = NC_PRMT_THREADS / 32;
const nc_u32 WORDS = UNIT_BYTES / 128; // of four positions, a lane

struct Shared {
    uint4 low[256];                // products of c with 0 to 7, then with 0, 8, ... 56
    nc_u32 high[256];              // with 0, 64, 128, 192
    nc_u32 next;                   // unit of this block
    uint4 tables[WARPS][2][ROWS][5]; // four used
    uint4 selectors[WARPS][2][WORDS][32];
};

// Four bytes out of eight, by a selector in the low half of `selectors`. (`__byte_perm` would clear its sign bits first.)
__device__ __forceinline__ nc_u32 choose(nc_u32 low, nc_u32 high, nc_u32 selectors) {
    nc_u32 bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selectors));
    return bytes;
}

static_assert(sizeof(Shared) == NC_PRMT_SHARED, "the host reserves what the kernel lays out");

// Four bits each of four bytes, to 16 bits.
__device__ __forceinline__ nc_u32 pack(nc_u32 x) {
    x = (x | x >> 4) & 0x00FF00FFu;
    return (x | x >> 8) & 0xFFFFu;
}

// Three coefficients of a row, one a byte; zero outside the task.
__device__ __forceinline__ nc_u32 three_coefficients(const nc_u8 *row, nc_u32 first, nc_u32 n) {
    nc_u32 three = 0;
#pragma unroll
    for (nc_u32 i = 0; i < 3; i++)
        if (row && first + i < n) three |= (nc_u32)__ldg(row + first + i) << (8 * i);
    return three;
}

// Sixteen bytes on their way to shared memory. Only the thread that asked for them reads them.
__device__ __forceinline__ void fetch(uint4 *to, const uint4 *from) {
    nc_u64 address;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"((nc_u32)address), "l"(from) : "memory");
}

} // namespace

extern "C" __global__ void __launch_bounds__(NC_PRMT_THREADS, NC_PRMT_BLOCKS_PER_SM)
nc_prmt(const __grid_constant__ nc_launch launch, const nc_tables *tables) {
    extern __shared__ uint4 nc_shared[];
    Shared &shared = *reinterpret_cast<Shared *>(nc_shared);
    const nc_u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (nc_u32 c = threadIdx.x; c < 256; c += NC_PRMT_THREADS) {
        const nc_u32 *products = reinterpret_cast<const nc_u32 *>(tables->product + (c << 8));
        const nc_u8 *bytes = tables->product + (c << 8);
        nc_u32 words[3] = {0, 0, 0};
        for (int i = 0; i < 4; i++) {
            words[0] |= (nc_u32)bytes[8 * i] << (8 * i);
            words[1] |= (nc_u32)bytes[8 * i + 32] << (8 * i);
            words[2] |= (nc_u32)bytes[64 * i] << (8 * i);
        }
        shared.low[c] = make_uint4(products[0], products[1], words[0], words[1]);
        shared.high[c] = words[2];
    }
    const nc_u32 share = (launch.units + gridDim.x - 1) / gridDim.x, end = min((blockIdx.x + 1) * share, launch.units);
    if (threadIdx.x == 0) shared.next = blockIdx.x * share;
    __syncthreads();

    const nc_task *tasks = nc_tasks(launch);
    uint4(&table)[2][ROWS][5] = shared.tables[warp];
    uint4(&staged)[2][WORDS][32] = shared.selectors[warp];
    for (;;) {
        nc_u32 unit = lane ? 0 : atomicAdd(&shared.next, 1);
        unit = __shfl_sync(0xFFFFFFFFu, unit, 0);
        if (unit >= end) break;
        const nc_task &task = tasks[nc_task_of_unit(tasks, launch.count, unit)];
        const nc_u32 local = unit - task.first_unit, wide = (task.k + UNIT_BYTES - 1) / UNIT_BYTES;
        const nc_u32 group = local / wide, column = local - group * wide, first_row = group * ROWS;
        const nc_u32 n = task.n, triples = (n + 2) / 3, my_row = first_row + lane % ROWS, my_triple = lane / ROWS;
        const nc_u8 *coefficients = my_row < task.rows ? reinterpret_cast<const nc_u8 *>(task.coefficients) + (nc_u64)my_row * nc_row_pitch(n) : 0;
        const uint4 *selectors = reinterpret_cast<const uint4 *>(task.source) + (nc_u64)column * (NC_SELECTORS_SIZE / 16) + lane;
        const nc_u64 pitch = (nc_u64)wide * (NC_SELECTORS_SIZE / 16);

        nc_u32 sums[ROWS][WORDS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int w = 0; w < WORDS; w++) sums[r][w] = 0;

#pragma unroll
        for (int w = 0; w < WORDS; w++) fetch(&staged[0][w][lane], selectors + w * 32);
        asm volatile("cp.async.commit_group;" ::: "memory");
        nc_u32 three = three_coefficients(coefficients, my_triple * 3, n);
        for (nc_u32 triple = 0; triple < triples; triple++) {
            if (triple % 2 == 0) {
                const nc_u32 a = three & 255, b = three >> 8 & 255, c = three >> 16;
                const uint4 ta = shared.low[a], tb = shared.low[b], tc = shared.low[c];
                const nc_u32 ha = shared.high[a], hb = shared.high[b], hc = shared.high[c];
                __syncwarp();
                uint4 *mine = table[my_triple][lane % ROWS];
                mine[0] = ta;
                mine[1] = tb;
                mine[2] = tc;
                mine[3] = make_uint4(ha, ha ^ __byte_perm(hb, 0, 0x1111), hc, hc ^ __byte_perm(hb, 0, 0x2222));
                __syncwarp();
                three = three_coefficients(coefficients, (triple + 2 + my_triple) * 3, n);
            }
            uint4 packed[WORDS];
            asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
            for (int w = 0; w < WORDS; w++) packed[w] = staged[triple % 2][w][lane];
            selectors += pitch;
            if (triple + 1 < triples) {
#pragma unroll
                for (int w = 0; w < WORDS; w++) fetch(&staged[triple % 2 ^ 1][w][lane], selectors + w * 32);
                asm volatile("cp.async.commit_group;" ::: "memory");
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const uint4 a = table[triple % 2][r][0], b = table[triple % 2][r][1], c = table[triple % 2][r][2], d = table[triple % 2][r][3];
#pragma unroll
                for (int w = 0; w < WORDS; w++) {
                    nc_u32 sum = sums[r][w];
                    sum ^= choose(a.x, a.y, packed[w].x) ^ choose(a.z, a.w, packed[w].x >> 16);
                    sum ^= choose(b.x, b.y, packed[w].y) ^ choose(b.z, b.w, packed[w].y >> 16);
                    sum ^= choose(c.x, c.y, packed[w].z) ^ choose(c.z, c.w, packed[w].z >> 16);
                    sum ^= choose(d.x, d.y, packed[w].w) ^ choose(d.z, d.w, packed[w].w >> 16);
                    sums[r][w] = sum;
                }
            }
        }

        const nc_u32 offset = column * UNIT_BYTES + lane * 16;
        if (offset >= task.k) continue;
        nc_u8 *out = reinterpret_cast<nc_u8 *>(task.out) + (nc_u64)first_row * task.out_pitch + offset;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (first_row + r < task.rows)
                *reinterpret_cast<uint4 *>(out + (nc_u64)r * task.out_pitch) = make_uint4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
    }
}

// A selector is four nibbles, one a position: three bits that choose one of eight products. Of sources a, b, c: the low three bits
// and the middle three bits of each, then bits 6 and 7 of a with bit 6 of b, bits 6 and 7 of c with bit 7 of b.
extern "C" __global__ void nc_form_selectors(const nc_form_task *tasks, nc_u32 count, const nc_tables *) {
    if (blockIdx.y >= count) return;
    const nc_form_task task = tasks[blockIdx.y];
    const nc_u32 wide = (task.k + NC_SELECTORS_BYTES - 1) / NC_SELECTORS_BYTES;
    const nc_u64 items = (nc_u64)wide * ((task.n + 2) / 3) * 32;
    for (nc_u64 item = (nc_u64)blockIdx.x * blockDim.x + threadIdx.x; item < items; item += (nc_u64)gridDim.x * blockDim.x) {
        const nc_u32 lane = (nc_u32)item % 32, block = (nc_u32)(item / 32), triple = block / wide, column = block - triple * wide;
        nc_u32 words[3][4];
#pragma unroll
        for (int s = 0; s < 3; s++) {
            const uint4 bytes = nc_raw16(task, triple * 3 + s, column * NC_SELECTORS_BYTES + lane * 16);
            words[s][0] = bytes.x, words[s][1] = bytes.y, words[s][2] = bytes.z, words[s][3] = bytes.w;
        }
        uint4 *out = reinterpret_cast<uint4 *>(task.out) + (nc_u64)block * (NC_SELECTORS_SIZE / 16) + lane;
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const nc_u32 a = words[0][w], b = words[1][w], c = words[2][w];
            const nc_u32 mixed_a = (a >> 6 & 0x03030303u) | (b >> 4 & 0x04040404u), mixed_c = (c >> 6 & 0x03030303u) | (b >> 5 & 0x04040404u);
            out[w * 32] = make_uint4(pack(a & 0x07070707u) | pack(a >> 3 & 0x07070707u) << 16, pack(b & 0x07070707u) | pack(b >> 3 & 0x07070707u) << 16,
                                     pack(c & 0x07070707u) | pack(c >> 3 & 0x07070707u) << 16, pack(mixed_a) | pack(mixed_c) << 16);
        }
    }
}
