// The encode kernels of Chu, Zhao and Wang, "Accelerating Network Coding on Many-core GPUs and Multi-core CPUs" (Journal of
// Communications, 2009): their two multiplications, their kernel for one coded block, and their batched one.
//
//   nc_product_global   Algorithm 1, a table of all 65,536 products, by loads that go past the first-level cache (theirs had none)
//   nc_product_ldg      the same by the read-only path;  nc_product_texture  by a texture object
//   nc_logexp_ldg       Algorithm 2, log and exp tables, by the read-only path;  nc_logexp_texture  by a texture object
//   nc_single           Algorithm 3, encoding a single block, with Algorithm 2
//   nc_tiled            Algorithm 4, batched encoding, with Algorithm 2
//   nc_tiled_...        what their four optimisations are worth: see below
//   nc_tiled_logs       Algorithm 4 on the other paper's logarithms
//
// Algorithm 4 has two readings, and both are here. Its text: tiles of k x k codewords, k * k / 4 threads, each four codewords of
// one row (k = 32 here, for whole 32-byte sectors); the five multiplication kernels are made so. Its Figure 7: tiles of k x k
// words, four codewords in each word of Bs and four rows in each word of Cs, so that a thread makes four codewords of four rows (k
// = 16: 64 x 64 codewords, 256 threads); the kernels called tiled are made so. The second takes 16 products from 2 words and 8
// logarithms, 1.5 lookups a product instead of 2.25, and is a third faster.
//
// The ablations, against tiled: tiled_global looks up past the cache ("use texture cache"); tiled_strided gives neighbouring
// threads neighbouring rows instead of neighbouring words ("exploit coalesced accesses"); tiled_rolled does not unroll ("use loop
// unrolling"); tiled_small has tiles of 8 x 8 words, 64 threads ("a large number of threads in each block"); tiled_bytes has 16 x
// 16 codewords and a thread for each ("we choose to use int"). "A large number of blocks" is the launch's grid.
//
//   kernels                                  rows x bytes a unit   threads   source, rows           shared memory   registers, blocks
//   product_*, logexp_*                      32 x 32               256       bytes, NC_ROW_BYTES    2048            40, 6
//   single                                   1 x 128               32        bytes, NC_ROW_BYTES    16512           128, 13
//   tiled, tiled_global, tiled_strided       64 x 64               256       bytes, NC_ROW_BYTES    2176            80, 3
//   tiled_rolled                             64 x 64               256       bytes, NC_ROW_BYTES    2176            64, 4
//   tiled_small                              32 x 32               64        bytes, NC_ROW_BYTES    576             78, 12
//   tiled_bytes                              16 x 16               256       bytes, NC_ROW_BYTES    512             32, 8
//   tiled_logs                               64 x 64               256       logs1, NC_ROW_LOGS1    2688            64, 4
//
// A block takes one unit at a time; all shared memory is static. Kernels on a texture have a third argument, a texture object over
// linear memory: the first 66,304 bytes of nc_tables, one unsigned 8-bit channel, element type. The papers ask that n, m and p be
// multiples of k; here the rest of a tile counts as zero, and is not read.
//
// Limits, per clock and SM, n = 128, k = 4096, 8,192 rows, one H200 (1 GB/s = 0.49 products):
//
//   textures           the texture units fetch four elements a clock and SM: Algorithm 1 at most 4.0 products, reached 3.8; Algorithm 2
//                      at most 1.8 (2.25 fetches), reached 1.8. The paper's order is turned round: one lookup beats three
//   product_ldg        a warp's lookups fall into eight lines of four rows of the table, 3.2 bank conflicts among them: reached 5.2
//   logexp_ldg         2.25 lookups a product from one line or three: reached 6.5
//   tiled              1.5 lookups a product: reached 8.7
//   product_global     a sector from the second-level cache for each product: 0.8
//   tiled_global       the same three times a product, and everything in six lines: 0.1
//   single             a tile of 16 KiB is stored and read once for 128 bytes: 4.8
//   tiled_logs         2.3 wavefronts a lookup, and the rest hidden: 12.3
//
// Unrolling, which paid then, costs 3 % now (tiled_rolled 18.4, tiled 17.8 GB/s): the body is 40 KB of instructions, and takes 80
// registers instead of 64. Coalescing is worth 4 %: the source is in the caches. Words instead of bytes are worth a factor of 2.2.
//
// Dropped: limits on registers for four or five blocks an SM (17.2 and 15.8 instead of 17.8 GB/s: they spill).

#include "nc_common.cuh"

namespace {

// --- Where the tables are: the bytes of nc_tables, log first, then exp, then the products.

constexpr nc_u32 EXP = 256, PRODUCT = 768;

// Loads that go past the first-level cache.
struct Global {
    nc_u64 base;
    __device__ __forceinline__ Global(const nc_tables *tables, nc_u64) : base((nc_u64)tables) { asm volatile("" : "+l"(base)); }
    __device__ __forceinline__ nc_u32 at(nc_u32 i) const { return __ldcg(reinterpret_cast<const nc_u8 *>(base + i)); }
};

// The read-only path.
struct ReadOnly {
    nc_u64 base;
    __device__ __forceinline__ ReadOnly(const nc_tables *tables, nc_u64) : base((nc_u64)tables) { asm volatile("" : "+l"(base)); }
    __device__ __forceinline__ nc_u32 at(nc_u32 i) const { return __ldg(reinterpret_cast<const nc_u8 *>(base + i)); }
};

// A texture object over these bytes.
struct Texture {
    nc_u64 texture;
    __device__ __forceinline__ Texture(const nc_tables *, nc_u64 texture) : texture(texture) {}
    __device__ __forceinline__ nc_u32 at(nc_u32 i) const {
        nc_u32 value;
        asm("{ .reg .u32 g, b, a; tex.1d.v4.u32.s32 {%0, g, b, a}, [%1, {%2}]; }" : "=r"(value) : "l"(texture), "r"(i));
        return value;
    }
};

// --- Mul.

// Algorithm 1: one lookup in a table of 64 KiB.
template <class TABLES>
struct Product {
    TABLES tables;
    __device__ __forceinline__ Product(const nc_tables *tables, nc_u64 texture) : tables(tables, texture) {}
    __device__ __forceinline__ nc_u32 operator()(nc_u32 x, nc_u32 y) const { return tables.at(PRODUCT + 256 * x + y); }
};

// Algorithm 2: two tests, three lookups, an addition.
template <class TABLES>
struct LogExp {
    TABLES tables;
    __device__ __forceinline__ LogExp(const nc_tables *tables, nc_u64 texture) : tables(tables, texture) {}
    __device__ __forceinline__ nc_u32 operator()(nc_u32 x, nc_u32 y) const {
        const nc_u32 product = tables.at(EXP + tables.at(x) + tables.at(y));
        return x == 0 || y == 0 ? 0 : product;
    }
};

// The last two steps of it, on logarithms plus one.
struct Exp {
    nc_u32 base;
    __device__ __forceinline__ Exp(const nc_tables *tables, nc_u32 *shared) {
        for (nc_u32 i = threadIdx.x; i < 512; i += blockDim.x) reinterpret_cast<nc_u8 *>(shared)[i] = tables->exp[i < 2 ? 0 : i - 2];
        __syncthreads();
        base = (nc_u32)__cvta_generic_to_shared(shared);
        asm volatile("" : "+r"(base) : : "memory"); // no lookup before the table is there
    }
    __device__ __forceinline__ nc_u32 operator()(nc_u32 x, nc_u32 y) const {
        nc_u32 product;
        asm("ld.shared.u8 %0, [%1];" : "=r"(product) : "r"(base + x + y));
        return x == 0 || y == 0 ? 0 : product;
    }
};

__device__ __forceinline__ nc_u32 byte_of(nc_u32 word, nc_u32 i) { return __byte_perm(word, 0, 0x4440 + i); }

__device__ __forceinline__ nc_u32 packed(const nc_u32 (&bytes)[4]) {
    return __byte_perm(__byte_perm(bytes[0], bytes[1], 0x0040), __byte_perm(bytes[2], bytes[3], 0x0040), 0x5410);
}

// --- A block's part of the launch: WIDE bytes of HIGH coded blocks at a time.

struct Place {
    const nc_u8 *coefficients, *source; // of the first row, of the first byte
    nc_u8 *out;
    nc_u32 n, k, pitch, out_pitch; // of the task
    nc_u32 rows, bytes;            // that are there, from here on
};

template <nc_u32 HIGH, nc_u32 WIDE>
__device__ __forceinline__ Place place(const nc_task *tasks, nc_u32 count, nc_u32 unit) {
    const nc_task &task = tasks[nc_task_of_unit(tasks, count, unit)];
    const nc_u32 across = (task.k + WIDE - 1) / WIDE, local = unit - task.first_unit;
    const nc_u32 row = local / across * HIGH, column = local % across * WIDE, pitch = nc_row_pitch(task.n);
    Place at;
    at.coefficients = reinterpret_cast<const nc_u8 *>(task.coefficients) + (nc_u64)row * pitch;
    at.source = reinterpret_cast<const nc_u8 *>(task.source) + column;
    at.out = reinterpret_cast<nc_u8 *>(task.out) + (nc_u64)row * task.out_pitch + column;
    at.n = task.n;
    at.k = task.k;
    at.pitch = pitch;
    at.out_pitch = task.out_pitch;
    at.rows = task.rows - row;
    at.bytes = task.k - column;
    return at;
}

__device__ __forceinline__ nc_u32 word_at(const nc_u8 *from) { return __ldg(reinterpret_cast<const nc_u32 *>(from)); }

// --- Algorithm 3: a piece of one coded block by one thread block of SIDE / 4 threads, four codewords a thread.

template <nc_u32 SIDE, class MUL>
__device__ __forceinline__ void encode_single(const nc_launch &launch, const MUL &mul) {
    __shared__ nc_u32 bs[SIDE][SIDE / 4];
    __shared__ __align__(4) nc_u8 cs[SIDE];
    const nc_task *tasks = nc_tasks(launch);
    const nc_u32 t = threadIdx.x;
    for (nc_u32 unit = blockIdx.x; unit < launch.units; unit += gridDim.x) {
        const Place at = place<1, SIDE>(tasks, launch.count, unit);
        const bool mine = 4 * t < at.bytes;
        nc_u32 sum[4] = {0, 0, 0, 0};
        for (nc_u32 j = 0; j < at.n; j += SIDE) {
            const nc_u32 deep = min(SIDE, at.n - j);
            if (4 * t < at.pitch - j) reinterpret_cast<nc_u32 *>(cs)[t] = word_at(at.coefficients + j + 4 * t);
            if (mine) {
#pragma unroll 16
                for (nc_u32 i = 0; i < deep; i++) bs[i][t] = word_at(at.source + (nc_u64)(j + i) * at.k + 4 * t);
            }
            __syncthreads();
#pragma unroll 8
            for (nc_u32 i = 0; i < deep; i++) {
                const nc_u32 b = bs[i][t], c = cs[i];
#pragma unroll
                for (nc_u32 m = 0; m < 4; m++) sum[m] ^= mul(c, byte_of(b, m));
            }
            __syncthreads();
        }
        if (mine) *reinterpret_cast<nc_u32 *>(at.out + 4 * t) = packed(sum);
    }
}

// --- Algorithm 4 as its text has it: tiles of SIDE x SIDE codewords, SIDE * SIDE / 4 threads, four codewords of a row each.

template <nc_u32 SIDE, class MUL>
__device__ __forceinline__ void encode_rows(const nc_launch &launch, const MUL &mul) {
    constexpr nc_u32 WORDS = SIDE / 4;
    __shared__ nc_u32 bs[SIDE][WORDS];
    __shared__ nc_u32 cs[SIDE][WORDS];
    const nc_task *tasks = nc_tasks(launch);
    const nc_u32 tx = threadIdx.x % WORDS, ty = threadIdx.x / WORDS;
    for (nc_u32 unit = blockIdx.x; unit < launch.units; unit += gridDim.x) {
        const Place at = place<SIDE, SIDE>(tasks, launch.count, unit);
        const bool row = ty < at.rows, column = 4 * tx < at.bytes;
        nc_u32 sum[4] = {0, 0, 0, 0};
        for (nc_u32 j = 0; j < at.n; j += SIDE) {
            bs[ty][tx] = j + ty < at.n && column ? word_at(at.source + (nc_u64)(j + ty) * at.k + 4 * tx) : 0;
            cs[ty][tx] = row && j + 4 * tx < at.pitch ? word_at(at.coefficients + (nc_u64)ty * at.pitch + j + 4 * tx) : 0;
            __syncthreads();
#pragma unroll
            for (nc_u32 i = 0; i < SIDE; i++) {
                const nc_u32 b = bs[i][tx], c = reinterpret_cast<const nc_u8 *>(cs[ty])[i];
#pragma unroll
                for (nc_u32 m = 0; m < 4; m++) sum[m] ^= mul(c, byte_of(b, m));
            }
            __syncthreads();
        }
        if (row && column) *reinterpret_cast<nc_u32 *>(at.out + (nc_u64)ty * at.out_pitch + 4 * tx) = packed(sum);
    }
}

// --- Algorithm 4 as Figure 7 has it: tiles of SIDE x SIDE words, SIDE * SIDE threads, four codewords of four rows each.

template <nc_u32 SIDE, bool COALESCED, nc_u32 UNROLL, class MUL>
__device__ __forceinline__ void encode_tiles(const nc_launch &launch, const MUL &mul) {
    __shared__ nc_u32 bs[SIDE][SIDE + 1]; // source, word
    __shared__ nc_u32 cs[SIDE][SIDE + 1]; // four rows, source
    const nc_task *tasks = nc_tasks(launch);
    const nc_u32 t = threadIdx.x;
    const nc_u32 tx = COALESCED ? t % SIDE : t / SIDE, ty = COALESCED ? t / SIDE : t % SIDE;
    const nc_u32 c_row = COALESCED ? t / (SIDE / 4) : t % (4 * SIDE), c_word = COALESCED ? t % (SIDE / 4) : t / (4 * SIDE);
    for (nc_u32 unit = blockIdx.x; unit < launch.units; unit += gridDim.x) {
        const Place at = place<4 * SIDE, 4 * SIDE>(tasks, launch.count, unit);
        const bool column = 4 * tx < at.bytes;
        nc_u32 sum[4][4] = {};
        for (nc_u32 j = 0; j < at.n; j += SIDE) {
            bs[ty][tx] = j + ty < at.n && column ? word_at(at.source + (nc_u64)(j + ty) * at.k + 4 * tx) : 0;
            const nc_u32 four = c_row < at.rows ? word_at(at.coefficients + (nc_u64)c_row * at.pitch + j + 4 * c_word) : 0;
#pragma unroll
            for (nc_u32 i = 0; i < 4; i++) reinterpret_cast<nc_u8 *>(&cs[c_row / 4][4 * c_word + i])[c_row % 4] = (nc_u8)(four >> 8 * i);
            __syncthreads();
#pragma unroll UNROLL
            for (nc_u32 i = 0; i < SIDE; i++) {
                const nc_u32 b = bs[i][tx], c = cs[ty][i];
#pragma unroll
                for (nc_u32 m = 0; m < 4; m++)
#pragma unroll
                    for (nc_u32 l = 0; l < 4; l++) sum[m][l] ^= mul(byte_of(c, m), byte_of(b, l));
            }
            __syncthreads();
        }
#pragma unroll
        for (nc_u32 m = 0; m < 4; m++)
            if (column && 4 * ty + m < at.rows)
                *reinterpret_cast<nc_u32 *>(at.out + (nc_u64)(4 * ty + m) * at.out_pitch + 4 * tx) = packed(sum[m]);
    }
}

// The same without words of four codewords: SIDE x SIDE codewords, a thread for each.
template <nc_u32 SIDE, class MUL>
__device__ __forceinline__ void encode_bytes(const nc_launch &launch, const MUL &mul) {
    __shared__ nc_u8 bs[SIDE][SIDE];
    __shared__ nc_u8 cs[SIDE][SIDE];
    const nc_task *tasks = nc_tasks(launch);
    const nc_u32 tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    for (nc_u32 unit = blockIdx.x; unit < launch.units; unit += gridDim.x) {
        const Place at = place<SIDE, SIDE>(tasks, launch.count, unit);
        const bool row = ty < at.rows, column = tx < at.bytes;
        nc_u32 sum = 0;
        for (nc_u32 j = 0; j < at.n; j += SIDE) {
            bs[ty][tx] = j + ty < at.n && column ? __ldg(at.source + (nc_u64)(j + ty) * at.k + tx) : 0;
            cs[ty][tx] = row ? __ldg(at.coefficients + (nc_u64)ty * at.pitch + j + tx) : 0;
            __syncthreads();
#pragma unroll
            for (nc_u32 i = 0; i < SIDE; i++) sum ^= mul(cs[ty][i], bs[i][tx]);
            __syncthreads();
        }
        if (row && column) at.out[(nc_u64)ty * at.out_pitch + tx] = (nc_u8)sum;
    }
}

} // namespace

#define NC_KERNEL(name, threads) \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ nc_launch launch, const nc_tables *tables)
#define NC_TEXTURE_KERNEL(name, threads)                    \
    extern "C" __global__ void __launch_bounds__(threads)   \
    name(const __grid_constant__ nc_launch launch, const nc_tables *tables, nc_u64 texture)

NC_KERNEL(nc_product_global, NC_S1_THREADS) { encode_rows<NC_S1_BYTES>(launch, Product<Global>(tables, 0)); }
NC_KERNEL(nc_product_ldg, NC_S1_THREADS) { encode_rows<NC_S1_BYTES>(launch, Product<ReadOnly>(tables, 0)); }
NC_TEXTURE_KERNEL(nc_product_texture, NC_S1_THREADS) { encode_rows<NC_S1_BYTES>(launch, Product<Texture>(tables, texture)); }
NC_KERNEL(nc_logexp_ldg, NC_S1_THREADS) { encode_rows<NC_S1_BYTES>(launch, LogExp<ReadOnly>(tables, 0)); }
NC_TEXTURE_KERNEL(nc_logexp_texture, NC_S1_THREADS) { encode_rows<NC_S1_BYTES>(launch, LogExp<Texture>(tables, texture)); }

NC_KERNEL(nc_single, NC_SINGLE_THREADS) { encode_single<NC_SINGLE_BYTES>(launch, LogExp<ReadOnly>(tables, 0)); }

NC_KERNEL(nc_tiled, NC_TILED_THREADS) { encode_tiles<16, true, 16>(launch, LogExp<ReadOnly>(tables, 0)); }
NC_KERNEL(nc_tiled_global, NC_TILED_THREADS) { encode_tiles<16, true, 16>(launch, LogExp<Global>(tables, 0)); }
NC_KERNEL(nc_tiled_strided, NC_TILED_THREADS) { encode_tiles<16, false, 16>(launch, LogExp<ReadOnly>(tables, 0)); }
NC_KERNEL(nc_tiled_rolled, NC_TILED_THREADS) { encode_tiles<16, true, 1>(launch, LogExp<ReadOnly>(tables, 0)); }
NC_KERNEL(nc_tiled_small, NC_TILED_SMALL_THREADS) { encode_tiles<8, true, 8>(launch, LogExp<ReadOnly>(tables, 0)); }
NC_KERNEL(nc_tiled_bytes, NC_TILED_BYTES_THREADS) { encode_bytes<NC_TILED_BYTES_BYTES>(launch, LogExp<ReadOnly>(tables, 0)); }

NC_KERNEL(nc_tiled_logs, NC_TILED_THREADS) {
    __shared__ nc_u32 exp[512 / 4];
    encode_tiles<16, true, 16>(launch, Exp(tables, exp));
}
