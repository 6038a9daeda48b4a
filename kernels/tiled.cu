// PAGE
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
