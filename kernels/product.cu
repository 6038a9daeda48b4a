// Product tables in shared memory, by half bytes.
//
// Idea. A table of the products of 16 rows' coefficients with one value is 16 bytes: one LDS.128 yields 16 products. Over whole bytes
// such a table has 256 entries, and lanes that look up different entries meet in the same banks (2.6 wavefronts for one, measured; a
// limit of 102 GB/s). Over half bytes it has 16 entries, so that eight copies fit, one in each group of four banks: two look-ups for
// 16 products, but none ever waits for another.
//
//     for every source:
//         16 bytes of it -> registers (32 half bytes, each a byte of an address)
//         for every byte: sums[byte] += low[byte & 15] + high[byte >> 4]     (2 PRMT, 2 LDS.128, 4 LOP3)
//
// Layout. The generation as it came, rows of k bytes; a thread has 16 positions and reads 16 bytes of every source. The tables of a source
// take 4 KB: entry e at 256 e, low then high, 8 x 16 bytes each. The half byte is byte 1 of the shared address, made by one PRMT from
// the source word and the lane's base; a source's slot is the upper half of that byte. Two halves of eight slots: while one
// is read the other is made, by a warp a source, from the products with powers of two.
//
// Four units (16 rows x 1024 bytes) of one group of rows share tables; where fewer are left or k is smaller, each quarter
// of the block has its own two slots twice, its own task, and a barrier of its own.
//
// Host: 256 threads, NC_PRODUCT_SHARED bytes of dynamic shared memory (above 48 KB; tables must start at shared address 4096), two
// blocks an SM, rows as NC_ROW_BYTES, source as bytes. 128 registers: 64 sums, 8 source words, look-ups on their way.
//
// Limit. 8 lanes of LDS.128 a clock, 16 products for two: 64 products a clock and SM, 129 GB/s on an H200 at n = 128. Reached: 108, with
// the shared memory busy 97 % of the time: 5 % go to making tables, 3 % to the source, 3 % to SMs that 2048 units leave idle.
// At k = 1024 the tables serve a quarter of the positions: 82.
#include "nc_common.cuh"

namespace {

const nc_u32 ROWS = NC_PRODUCT_UNIT_ROWS, UNIT_BYTES = NC_PRODUCT_UNIT_BYTES;
const nc_u32 QUARTERS = 4, QUARTER = NC_PRODUCT_THREADS / QUARTERS;
const nc_u32 POWERS = 0, BASIS = 2048;                         // behind the tables: 256 x 8 bytes, 8 warps x 128 bytes
const nc_u32 FIRST_SLOT = 1, SLOTS = 16, SLOT = 4096;          // tables start at this shared address

__device__ __forceinline__ nc_u32 shared_address(const void *pointer) {
    nc_u64 address;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(pointer));
    return (nc_u32)address;
}
__device__ __forceinline__ uint4 load128(nc_u32 address) {
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "r"(address));
    return value;
}
__device__ __forceinline__ uint4 load128_high(nc_u32 address) {
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4 + 128];" : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "r"(address));
    return value;
}
__device__ __forceinline__ nc_u32 load32(nc_u32 address) {
    nc_u32 value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address));
    return value;
}
__device__ __forceinline__ void store8(nc_u32 address, nc_u32 value) {
    asm volatile("st.shared.u8 [%0], %1;" :: "r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store32(nc_u32 address, nc_u32 value) {
    asm volatile("st.shared.u32 [%0], %1;" :: "r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store128(nc_u32 address, uint4 value) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" :: "r"(address), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w) : "memory");
}
__device__ __forceinline__ void barrier(nc_u32 id, nc_u32 threads) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory"); }

__device__ __forceinline__ void xor_into(uint4 &sum, uint4 a, uint4 b) {
    sum.x ^= a.x ^ b.x;
    sum.y ^= a.y ^ b.y;
    sum.z ^= a.z ^ b.z;
    sum.w ^= a.w ^ b.w;
}

// Coefficient of row `lane % 16` for one source; zero outside the task.
__device__ __forceinline__ nc_u32 coefficient(const nc_task &task, nc_u32 first_row, nc_u32 source, nc_u32 lane) {
    const nc_u32 row = first_row + lane % 16;
    if (row >= task.rows || source >= task.n) return 0;
    return reinterpret_cast<const nc_u8 *>(task.coefficients)[(nc_u64)row * nc_row_pitch(task.n) + source];
}

// One warp makes the two tables of a source: entry e of the low one holds the 16 rows' products with e, of the high one with 16 e.
// Lane l makes entry l % 16 of table l / 16 from the rows' products with 1, 2, 4, 8 (times 16), and stores it in each of 8 bank groups.
__device__ __forceinline__ void build(nc_u32 slot, nc_u32 basis, nc_u32 powers, nc_u32 coefficient, nc_u32 lane) {
    const nc_u32 entry = lane % 16, high = lane / 16;
    const nc_u32 four = load32(powers + coefficient * 8 + high * 4);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; j++) store8(basis + (high * 4 + j) * 16 + entry, four >> (8 * j) & 255);
    __syncwarp();
    uint4 sum = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint4 product = load128(basis + (high * 4 + j) * 16);
        const nc_u32 mask = 0 - (entry >> j & 1);
        sum.x ^= product.x & mask;
        sum.y ^= product.y & mask;
        sum.z ^= product.z & mask;
        sum.w ^= product.w & mask;
    }
    const nc_u32 address = slot * SLOT + entry * 256 + high * 128;
#pragma unroll
    for (int i = 0; i < 8; i++) store128(address + ((lane + i) & 7) * 16, sum);
}

// A team of `quarters` quarters of the block makes as many neighbouring units of one group of 16 rows.
__device__ __forceinline__ void encode(const nc_task &task, nc_u32 first_row, nc_u32 first_column, nc_u32 first_slot, nc_u32 quarters,
                                       nc_u32 thread, nc_u32 barrier_id, nc_u32 powers, nc_u32 basis) {
    const nc_u32 lane = thread % 32, warp = thread / 32, warps = quarters * 2, threads = quarters * QUARTER;
    const nc_u32 offset = first_column * UNIT_BYTES + thread * 16;
    const bool inside = offset < task.k;
    const nc_u8 *source = reinterpret_cast<const nc_u8 *>(task.source) + (inside ? offset : 0);
    const nc_u32 n = task.n;

    uint4 sums[16];
#pragma unroll
    for (int i = 0; i < 16; i++) sums[i] = make_uint4(0, 0, 0, 0);

    nc_u32 next = coefficient(task, first_row, warp, lane);
    build(first_slot + warp, basis, powers, next, lane);
    next = coefficient(task, first_row, warps + warp, lane);
    uint4 bytes = __ldg(reinterpret_cast<const uint4 *>(source));
    nc_u32 half = 0;
    for (nc_u32 first = 0; first < n; first += warps, half ^= 1) {
        barrier(barrier_id, threads);
        if (first + warps < n) {
            build(first_slot + (half ^ 1) * warps + warp, basis, powers, next, lane);
            next = coefficient(task, first_row, first + 2 * warps + warp, lane);
        }
        const nc_u32 count = min(warps, n - first);
#pragma unroll 1
        for (nc_u32 i = 0; i < count; i++) {
            const uint4 now = bytes;
            if (first + i + 1 < n) bytes = __ldg(reinterpret_cast<const uint4 *>(source + (nc_u64)(first + i + 1) * task.k));
            const nc_u32 slot = first_slot + half * warps + i;
            const nc_u32 base = (slot >> 4) << 16 | lane % 8 * 16, above = (slot & 15) * 0x10101010u;
            const nc_u32 words[4] = {now.x, now.y, now.z, now.w};
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const nc_u32 low = (words[w] & 0x0F0F0F0Fu) | above, high = ((words[w] >> 4) & 0x0F0F0F0Fu) | above;
#pragma unroll
                for (int b = 0; b < 4; b++) {
                    const nc_u32 select = 0x7604 | b << 4;
                    xor_into(sums[w * 4 + b], load128(__byte_perm(low, base, select)), load128_high(__byte_perm(high, base, select)));
                }
            }
        }
    }

    if (!inside) return;
    nc_u8 *out = reinterpret_cast<nc_u8 *>(task.out) + (nc_u64)first_row * task.out_pitch + offset;
#pragma unroll
    for (int word = 0; word < 4; word++) {
        nc_u32 rows[4][4]; // of four rows, 16 bytes
#pragma unroll
        for (int q = 0; q < 4; q++) {
            nc_u32 x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint4 sum = sums[q * 4 + i];
                x[i] = word == 0 ? sum.x : word == 1 ? sum.y : word == 2 ? sum.z : sum.w;
            }
            const nc_u32 a = __byte_perm(x[0], x[1], 0x5140), b = __byte_perm(x[2], x[3], 0x5140);
            const nc_u32 c = __byte_perm(x[0], x[1], 0x7362), d = __byte_perm(x[2], x[3], 0x7362);
            rows[0][q] = __byte_perm(a, b, 0x5410);
            rows[1][q] = __byte_perm(a, b, 0x7632);
            rows[2][q] = __byte_perm(c, d, 0x5410);
            rows[3][q] = __byte_perm(c, d, 0x7632);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (first_row + word * 4 + i < task.rows)
                *reinterpret_cast<uint4 *>(out + (nc_u64)(word * 4 + i) * task.out_pitch) = make_uint4(rows[i][0], rows[i][1], rows[i][2], rows[i][3]);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(NC_PRODUCT_THREADS, NC_PRODUCT_BLOCKS_PER_SM)
nc_product(const __grid_constant__ nc_launch launch, const nc_tables *tables) {
    extern __shared__ uint4 nc_shared[];
    const nc_u32 powers = (FIRST_SLOT + SLOTS) * SLOT + POWERS, basis = (FIRST_SLOT + SLOTS) * SLOT + BASIS + threadIdx.x / 32 * 128;
    if (shared_address(nc_shared) > FIRST_SLOT * SLOT) __trap();
    for (nc_u32 i = threadIdx.x; i < 512; i += NC_PRODUCT_THREADS) {
        const nc_u32 c = i / 2, j = i % 2 * 4;
        nc_u32 four = 0;
        for (nc_u32 b = 0; b < 4; b++) four |= (nc_u32)tables->product[(c << 8) + (1 << (j + b))] << (8 * b);
        store32(powers + i * 4, four);
    }
    const nc_task *tasks = nc_tasks(launch);
    const nc_u32 share = (launch.units + gridDim.x - 1) / gridDim.x;
    nc_u32 unit = min(blockIdx.x * share, launch.units);
    const nc_u32 end = min(unit + share, launch.units);
    for (; unit < end; unit += QUARTERS) {
        __syncthreads();
        const nc_u32 quarter = threadIdx.x / QUARTER;
        const nc_task *task = tasks + nc_task_of_unit(tasks, launch.count, unit);
        nc_u32 local = unit - task->first_unit, wide = (task->k + UNIT_BYTES - 1) / UNIT_BYTES;
        nc_u32 group = local / wide, column = local - group * wide;
        nc_u32 quarters = QUARTERS, thread = threadIdx.x, slot = FIRST_SLOT, id = 1;
        if (unit + QUARTERS > end || column + QUARTERS > wide) {
            if (unit + quarter >= end) continue;
            task = tasks + nc_task_of_unit(tasks, launch.count, unit + quarter);
            local = unit + quarter - task->first_unit, wide = (task->k + UNIT_BYTES - 1) / UNIT_BYTES;
            group = local / wide, column = local - group * wide;
            quarters = 1, thread = threadIdx.x % QUARTER, slot = FIRST_SLOT + quarter * 4, id = 1 + quarter;
        }
        encode(*task, group * ROWS, column, slot, quarters, thread, id, powers, basis);
    }
}
