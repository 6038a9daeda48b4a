// Reed-Solomon for few code chunks of large native ones, where bytes moved are the limit and not arithmetic.
//
// A coefficient is the same for a whole chunk, so a product is a lookup in a table of one coefficient; and because four code chunks want products of
// the same source byte, four tables are one, of words: one lookup gives a byte of each. A thread holds sixteen bytes of each native chunk, looks
// each up, XORs the words of one position over all native chunks, and at the end turns sixteen words of four code chunks into four code chunks'
// sixteen bytes.
//
// Random lookups collide in the banks of shared memory: 32 lanes meet 3.4 on the worst of 32. So there are C copies of each table, word for word side by side, and a
// lane takes that of its number: with 32 copies every lane has a bank to itself. n * groups * C tables of 1 KiB must fit: 32 copies up to n = 7, 16 up to
// 14, and so on. They are written in a turn of their own for each lane, or 32 lanes would write to one bank. More code chunks than four are more groups; a
// thread block makes `groups` of them from the same bytes, which are in the first-level cache then.
//
//   entry            copies   threads   shared memory, dynamic      grid
//   nc_stripes_1 ..  1 ... 32 1024      groups * n * C * 1024       x: any, y: ceil(ceil(rows / 4) / groups)
//
// Ceilings, by accounting, 132 SMs at 1.75 GHz, n = 4. A warp's turn of 512 bytes of four native chunks is 395 instructions, of them 64 lookups and 205 of the
// ALU, which takes two a clock: 103 clocks. Two code chunks: a lookup of 32 copies takes one clock, so the ALU is the limit, 20 bytes of source a clock and
// SM, 4.6 TB/s. A copy moves 4.3 TB/s, of which four sixths are source: 2.9 TB/s. 196 code chunks: 16 copies of three groups' tables, a lookup takes two
// clocks, a turn 128 and makes 2 KiB of code chunks: 16 bytes a clock and SM, on 119 SMs 3.3 TB/s of code chunks from 68 GB/s of source.

#include "nc_common.cuh"

namespace {

// Byte `i` of a word, as the distance of its entry in a table whose entries are 1 << SCALE bytes apart.
template <nc_u32 SCALE> __device__ __forceinline__ nc_u32 entry_of(nc_u32 word, nc_u32 i) {
    const nc_u32 moved = 8 * i >= SCALE ? word >> (8 * i - SCALE) : word << (SCALE - 8 * i);
    return moved & (255u << SCALE);
}

__device__ __forceinline__ nc_u32 at(nc_u32 address) {
    nc_u32 value;
    asm("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address));
    return value;
}

// Adds what so many native chunks give. No branch is between loads and lookups: the compiler would move each load behind it, and each would be waited for.
template <nc_u32 COUNT, nc_u32 SCALE>
__device__ __forceinline__ void add(nc_u32 (&sums)[4][4], const nc_u8 *source, nc_u64 pitch, nc_u32 tables) {
    uint4 loaded[COUNT];
#pragma unroll
    for (nc_u32 s = 0; s < COUNT; s++) loaded[s] = __ldg(reinterpret_cast<const uint4 *>(source + s * pitch));
#pragma unroll
    for (nc_u32 s = 0; s < COUNT; s++) {
        const nc_u32 words[4] = {loaded[s].x, loaded[s].y, loaded[s].z, loaded[s].w};
#pragma unroll
        for (nc_u32 w = 0; w < 4; w++)
#pragma unroll
            for (nc_u32 i = 0; i < 4; i++) sums[w][i] ^= at(tables + (s << (8 + SCALE)) + entry_of<SCALE>(words[w], i));
    }
}

template <nc_u32 SHIFT> // 1 << SHIFT copies
__device__ __forceinline__ void stripes(const nc_chunks &chunks, const nc_tables *tables) {
    constexpr nc_u32 COPIES = 1u << SHIFT, SCALE = 2 + SHIFT, TABLE = 1024u << SHIFT;
    extern __shared__ nc_u32 packed[];
    const nc_u32 n = chunks.n, groups_in_all = (chunks.rows + 3) / 4, first = blockIdx.y * chunks.groups;
    const nc_u32 groups = min(chunks.groups, groups_in_all - first);
    const nc_u8 *matrix = reinterpret_cast<const nc_u8 *>(chunks.matrix);

    for (nc_u32 i = threadIdx.x; i < groups * n * 256; i += blockDim.x) {
        const nc_u32 byte = i % 256, j = i / 256 % n, group = i / 256 / n;
        nc_u32 word = 0;
#pragma unroll
        for (nc_u32 r = 0; r < 4; r++) {
            const nc_u32 row = 4 * (first + group) + r;
            if (row < chunks.rows) word |= (nc_u32)tables->product[256 * matrix[row * n + j] + byte] << 8 * r;
        }
        // Each lane begins where its neighbours do not: 32 lanes write to as many banks.
#pragma unroll 1
        for (nc_u32 copy = 0; copy < COPIES; copy++) packed[i * COPIES + (copy + i / (32 / COPIES)) % COPIES] = word;
    }
    __syncthreads();
    // A lane's own copy; the bits below an entry's distance are free.
    nc_u32 mine = (nc_u32)__cvta_generic_to_shared(packed) + 4 * (threadIdx.x % COPIES);
    asm volatile("" : "+r"(mine) : : "memory");

    const nc_u64 columns = chunks.bytes / 16, stride = (nc_u64)gridDim.x * blockDim.x;
    for (nc_u64 column = (nc_u64)blockIdx.x * blockDim.x + threadIdx.x; column < columns; column += stride) {
        const nc_u8 *source = reinterpret_cast<const nc_u8 *>(chunks.source) + 16 * column;
#pragma unroll 1
        for (nc_u32 group = 0; group < groups; group++) {
            nc_u32 sums[4][4] = {};
            const nc_u32 tables_of = mine + group * n * TABLE;
            nc_u32 j = 0;
#pragma unroll 1
            for (; j + 4 <= n; j += 4) add<4, SCALE>(sums, source + j * chunks.source_pitch, chunks.source_pitch, tables_of + j * TABLE);
            if (n & 2) {
                add<2, SCALE>(sums, source + j * chunks.source_pitch, chunks.source_pitch, tables_of + j * TABLE);
                j += 2;
            }
            if (n & 1) add<1, SCALE>(sums, source + j * chunks.source_pitch, chunks.source_pitch, tables_of + j * TABLE);
#pragma unroll
            for (nc_u32 w = 0; w < 4; w++) nc_transpose(sums[w]);
#pragma unroll
            for (nc_u32 r = 0; r < 4; r++) {
                const nc_u32 row = 4 * (first + group) + r;
                if (row >= chunks.rows) break;
                nc_u8 *out = reinterpret_cast<nc_u8 *>(chunks.out) + row * chunks.out_pitch + 16 * column;
                __stcs(reinterpret_cast<uint4 *>(out), make_uint4(sums[0][r], sums[1][r], sums[2][r], sums[3][r]));
            }
        }
    }
}

} // namespace

#define STRIPES(COPIES, SHIFT)                                                                                                             \
    extern "C" __global__ void __launch_bounds__(NC_STRIPES_THREADS, 1)                                                                   \
    nc_stripes_##COPIES(const __grid_constant__ nc_chunks chunks, const nc_tables *tables) {                                              \
        stripes<SHIFT>(chunks, tables);                                                                                                    \
    }

STRIPES(1, 0)
STRIPES(2, 1)
STRIPES(4, 2)
STRIPES(8, 3)
STRIPES(16, 4)
STRIPES(32, 5)
