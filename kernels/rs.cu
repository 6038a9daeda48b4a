// A ladder of Reed-Solomon encoders from a talk on two K20X: how bytes are multiplied, where tables lie, in which tiles the work is cut. One entry
// point for each step, so that it can be climbed again on today's chip. A small matrix, `rows` x n, is multiplied with a very wide one, n native
// chunks; the talk's (n, k) are n + rows and n here.
//
//   nc_rs_naive           a thread a byte, both matrices from device memory
//   nc_rs_square          tiles of 16 x 16, step by step along n
//   nc_rs_loop            from here on tiles as deep as n: multiplication by shift and XOR
//   nc_rs_full            a table of all products, 64 KiB in device memory behind the first-level cache
//   nc_rs_left_right      two tables of the products of a coefficient's halves, 4 KiB each: 2 lookups, 2 AND, a shift and an XOR
//   nc_rs_mod             logarithms: 3 lookups, a sum modulo 255, two branches; the talk's baseline
//   nc_rs_fold            its improvement 1: (s & 255) + (s >> 8) in place of the remainder. (The slide lacks brackets: in C it would be another sum.)
//   nc_rs_double          its improvement 2: exp twice as long, no remainder
//   nc_rs_zero            its improvement 3: the logarithm of zero points behind exp, where there are zeros: no branches
//   ..._constant          tables in constant memory, initialized at compile time
//   ..._serial            tables in shared memory, computed by one thread at the beginning; without a suffix they are loaded by all threads
//   ..._words             four bytes of each chunk a thread: the talk's word alignment
//
// Tiles. A thread block makes tile_rows x tile_columns bytes (words) of code chunks, a thread each, from n coefficients of each row and n bytes (words) of each column in shared memory.
// The talk's three strategies for one number of threads are launches of the same kernel: "Min AR" has tile_rows 1, "AR = 1" 16 x 16, "Max AR" has tile_columns 1.
// Blocks go through columns with the grid's width; blockIdx.y counts tiles of rows.
//
//   kernels                    threads                    shared memory
//   naive, square              256                        768 bytes of tables; square 512 more
//   all others                 tile_rows * tile_columns   tables: 768 bytes (mod, fold, double), 1,552 (zero), 8,192 (left_right), none (loop,
//                                                         full, constant); dynamic: tile_rows * n rounded up to 16, and n * tile_columns
//                                                         elements

#include "nc_common.cuh"

namespace {

// --- Tables of logarithms. NONE is what stands for the logarithm of zero.

struct Logs {
    static constexpr nc_u32 NONE = 255, EXPS = 512;
    typedef nc_u8 Log;
    Log log[256];
    nc_u8 exp[EXPS];
};

// Two logarithms are at most 254 each, so a sum with one of zero is 512 or more.
struct LogsOfZero {
    static constexpr nc_u32 NONE = 512, EXPS = 1040;
    typedef nc_u16 Log;
    Log log[256];
    nc_u8 exp[EXPS];
};

template <class TABLES> constexpr __host__ __device__ void fill(TABLES &tables, nc_u32 polynomial, nc_u32 generator) {
    nc_u32 power = 1;
    for (nc_u32 i = 0; i < TABLES::EXPS; i++) tables.exp[i] = 0;
    for (nc_u32 i = 0; i < 255; i++) {
        tables.exp[i] = (nc_u8)power;
        tables.exp[i + 255] = (nc_u8)power;
        tables.log[power] = (typename TABLES::Log)i;
        // Times the generator, which is 2 or 3.
        nc_u32 next = power << 1;
        if (next & 256) next ^= polynomial;
        power = generator == 3 ? next ^ power : next;
    }
    tables.log[0] = (typename TABLES::Log)TABLES::NONE;
}

// Constant memory is for one field: that of the talk, whose printed products are of 0x11D.
template <class TABLES> struct Compiled {
    TABLES tables;
    constexpr Compiled() : tables() { fill(tables, 0x11D, 2); }
};
__constant__ Compiled<Logs> CONSTANT_LOGS;
__constant__ Compiled<LogsOfZero> CONSTANT_ZERO;

// --- Where they lie.

struct Constant {
    template <class TABLES> static __device__ __forceinline__ const TABLES *place(const nc_tables *, TABLES *);
};
template <> __device__ __forceinline__ const Logs *Constant::place(const nc_tables *, Logs *) { return &CONSTANT_LOGS.tables; }
template <> __device__ __forceinline__ const LogsOfZero *Constant::place(const nc_tables *, LogsOfZero *) { return &CONSTANT_ZERO.tables; }

struct Serial {
    template <class TABLES> static __device__ __forceinline__ const TABLES *place(const nc_tables *tables, TABLES *shared) {
        if (threadIdx.x == 0) fill(*shared, tables->polynomial, tables->generator);
        __syncthreads();
        return shared;
    }
};

struct Parallel {
    template <class TABLES> static __device__ __forceinline__ const TABLES *place(const nc_tables *tables, TABLES *shared) {
        for (nc_u32 i = threadIdx.x; i < 256; i += blockDim.x) shared->log[i] = i ? (typename TABLES::Log)tables->log[i] : (typename TABLES::Log)TABLES::NONE;
        for (nc_u32 i = threadIdx.x; i < TABLES::EXPS; i += blockDim.x) shared->exp[i] = i < 510 ? tables->exp[i] : 0;
        __syncthreads();
        return shared;
    }
};

// --- How two bytes are multiplied.

struct Nothing {};

struct Loop {
    typedef Nothing Shared;
    nc_u32 fold;

    __device__ __forceinline__ Loop(const nc_tables *tables, Shared *) : fold(tables->polynomial & 255) {}
    __device__ __forceinline__ nc_u32 operator()(nc_u32 a, nc_u32 b) const {
        nc_u32 product = 0;
#pragma unroll
        for (nc_u32 bit = 0; bit < 8; bit++) {
            if (a & 1u << bit) product ^= b;
            b = b & 128 ? (b << 1 & 255) ^ fold : b << 1;
        }
        return product;
    }
};

struct Full {
    typedef Nothing Shared;
    const nc_u8 *product;

    __device__ __forceinline__ Full(const nc_tables *tables, Shared *) : product(tables->product) {}
    __device__ __forceinline__ nc_u32 operator()(nc_u32 a, nc_u32 b) const { return __ldg(product + 256 * a + b); }
};

struct LeftRight {
    struct Shared {
        nc_u8 left[16 * 256], right[16 * 256];
    };
    const Shared *shared;

    __device__ __forceinline__ LeftRight(const nc_tables *tables, Shared *halves) : shared(halves) {
        for (nc_u32 i = threadIdx.x; i < 16 * 256; i += blockDim.x) {
            halves->left[i] = tables->product[(i >> 8 << 4) * 256 + (i & 255)];
            halves->right[i] = tables->product[i];
        }
        __syncthreads();
    }
    __device__ __forceinline__ nc_u32 operator()(nc_u32 a, nc_u32 b) const {
        return shared->left[(a >> 4) * 256 + b] ^ shared->right[(a & 15) * 256 + b];
    }
};

template <class PLACE> struct Mod {
    typedef Logs Shared;
    const Logs *tables;

    __device__ __forceinline__ Mod(const nc_tables *from, Shared *shared) : tables(PLACE::place(from, shared)) {}
    __device__ __forceinline__ nc_u32 operator()(nc_u32 a, nc_u32 b) const {
        if (a == 0 || b == 0) return 0;
        return tables->exp[((nc_u32)tables->log[a] + tables->log[b]) % 255];
    }
};

template <class PLACE> struct Fold {
    typedef Logs Shared;
    const Logs *tables;

    __device__ __forceinline__ Fold(const nc_tables *from, Shared *shared) : tables(PLACE::place(from, shared)) {}
    __device__ __forceinline__ nc_u32 operator()(nc_u32 a, nc_u32 b) const {
        if (a == 0 || b == 0) return 0;
        const nc_u32 sum = (nc_u32)tables->log[a] + tables->log[b];
        return tables->exp[(sum & 255) + (sum >> 8)];
    }
};

template <class PLACE> struct Double {
    typedef Logs Shared;
    const Logs *tables;

    __device__ __forceinline__ Double(const nc_tables *from, Shared *shared) : tables(PLACE::place(from, shared)) {}
    __device__ __forceinline__ nc_u32 operator()(nc_u32 a, nc_u32 b) const {
        if (a == 0 || b == 0) return 0;
        return tables->exp[(nc_u32)tables->log[a] + tables->log[b]];
    }
};

template <class PLACE> struct Zero {
    typedef LogsOfZero Shared;
    const LogsOfZero *tables;

    __device__ __forceinline__ Zero(const nc_tables *from, Shared *shared) : tables(PLACE::place(from, shared)) {}
    __device__ __forceinline__ nc_u32 operator()(nc_u32 a, nc_u32 b) const { return tables->exp[(nc_u32)tables->log[a] + tables->log[b]]; }
};

// A coefficient times each byte of an element.
template <class MULTIPLY> __device__ __forceinline__ nc_u32 times(const MULTIPLY &multiply, nc_u32 c, nc_u8 element) { return multiply(c, element); }
template <class MULTIPLY> __device__ __forceinline__ nc_u32 times(const MULTIPLY &multiply, nc_u32 c, nc_u32 element) {
    nc_u32 product = 0;
#pragma unroll
    for (nc_u32 i = 0; i < 4; i++) product |= multiply(c, element >> 8 * i & 255) << 8 * i;
    return product;
}

// --- How the work is cut.

constexpr nc_u32 SQUARE = 16;

template <class MULTIPLY> __device__ __forceinline__ void naive(const nc_chunks &chunks, const nc_tables *tables) {
    __shared__ typename MULTIPLY::Shared shared;
    const MULTIPLY multiply(tables, &shared);
    const nc_u8 *matrix = reinterpret_cast<const nc_u8 *>(chunks.matrix), *source = reinterpret_cast<const nc_u8 *>(chunks.source);
    const nc_u32 x = threadIdx.x % SQUARE, y = threadIdx.x / SQUARE, row = blockIdx.y * SQUARE + y;
    if (row >= chunks.rows) return;
    for (nc_u64 at = (nc_u64)blockIdx.x * SQUARE + x; at < chunks.bytes; at += (nc_u64)gridDim.x * SQUARE) {
        nc_u32 sum = 0;
        for (nc_u32 j = 0; j < chunks.n; j++) sum ^= multiply(matrix[row * chunks.n + j], source[j * chunks.source_pitch + at]);
        reinterpret_cast<nc_u8 *>(chunks.out)[row * chunks.out_pitch + at] = (nc_u8)sum;
    }
}

template <class MULTIPLY> __device__ __forceinline__ void square(const nc_chunks &chunks, const nc_tables *tables) {
    __shared__ typename MULTIPLY::Shared shared;
    __shared__ nc_u8 coefficients[SQUARE][SQUARE], bytes[SQUARE][SQUARE];
    const MULTIPLY multiply(tables, &shared);
    const nc_u8 *matrix = reinterpret_cast<const nc_u8 *>(chunks.matrix), *source = reinterpret_cast<const nc_u8 *>(chunks.source);
    const nc_u32 x = threadIdx.x % SQUARE, y = threadIdx.x / SQUARE, row = blockIdx.y * SQUARE + y;
    // All threads of a block go round as often: the bytes of a chunk are a multiple of the tile's width.
    for (nc_u64 at = (nc_u64)blockIdx.x * SQUARE + x; at < chunks.bytes; at += (nc_u64)gridDim.x * SQUARE) {
        nc_u32 sum = 0;
        for (nc_u32 step = 0; step < chunks.n; step += SQUARE) {
            const nc_u32 column = step + x, chunk = step + y;
            coefficients[y][x] = row < chunks.rows && column < chunks.n ? matrix[row * chunks.n + column] : 0;
            bytes[y][x] = chunk < chunks.n ? source[chunk * chunks.source_pitch + at] : 0;
            __syncthreads();
            for (nc_u32 j = 0; j < SQUARE; j++) sum ^= multiply(coefficients[y][j], bytes[j][x]);
            __syncthreads();
        }
        if (row < chunks.rows) reinterpret_cast<nc_u8 *>(chunks.out)[row * chunks.out_pitch + at] = (nc_u8)sum;
    }
}

template <class MULTIPLY, class ELEMENT> __device__ __forceinline__ void tiles(const nc_chunks &chunks, const nc_tables *tables) {
    extern __shared__ uint4 dynamic[];
    __shared__ typename MULTIPLY::Shared shared;
    const MULTIPLY multiply(tables, &shared);
    const nc_u32 n = chunks.n, tile_rows = chunks.tile_rows, tile_columns = chunks.tile_columns;
    nc_u8 *coefficients = reinterpret_cast<nc_u8 *>(dynamic);
    ELEMENT *elements = reinterpret_cast<ELEMENT *>(coefficients + (tile_rows * n + 15) / 16 * 16);
    const nc_u8 *matrix = reinterpret_cast<const nc_u8 *>(chunks.matrix);
    const nc_u32 first_row = blockIdx.y * tile_rows;
    for (nc_u32 i = threadIdx.x; i < tile_rows * n; i += blockDim.x)
        coefficients[i] = first_row + i / n < chunks.rows ? matrix[first_row * n + i] : 0;
    const nc_u32 my_row = threadIdx.x / tile_columns, my_column = threadIdx.x % tile_columns;
    const nc_u64 columns = chunks.bytes / sizeof(ELEMENT);
    for (nc_u64 first = (nc_u64)blockIdx.x * tile_columns; first < columns; first += (nc_u64)gridDim.x * tile_columns) {
        __syncthreads();
        for (nc_u32 i = threadIdx.x; i < n * tile_columns; i += blockDim.x) {
            const nc_u64 column = first + i % tile_columns;
            const ELEMENT *chunk = reinterpret_cast<const ELEMENT *>(chunks.source + i / tile_columns * chunks.source_pitch);
            elements[i] = column < columns ? chunk[column] : (ELEMENT)0;
        }
        __syncthreads();
        const nc_u64 column = first + my_column;
        if (first_row + my_row < chunks.rows && column < columns) {
            nc_u32 sum = 0;
            for (nc_u32 j = 0; j < n; j++) sum ^= times(multiply, coefficients[my_row * n + j], elements[j * tile_columns + my_column]);
            reinterpret_cast<ELEMENT *>(chunks.out + (first_row + my_row) * chunks.out_pitch)[column] = (ELEMENT)sum;
        }
    }
}

} // namespace

#define ENTRY(NAME, THREADS, BODY)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ nc_chunks chunks, const nc_tables *tables) {       \
        BODY(chunks, tables);                                                                                                              \
    }
#define TILES(NAME, ...)                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(NC_RS_THREADS) NAME(const __grid_constant__ nc_chunks chunks, const nc_tables *tables) { \
        tiles<__VA_ARGS__>(chunks, tables);                                                                                                \
    }

ENTRY(nc_rs_naive, SQUARE * SQUARE, naive<Mod<Parallel>>)
ENTRY(nc_rs_square, SQUARE * SQUARE, square<Mod<Parallel>>)
TILES(nc_rs_loop, Loop, nc_u8)
TILES(nc_rs_full, Full, nc_u8)
TILES(nc_rs_left_right, LeftRight, nc_u8)
TILES(nc_rs_mod, Mod<Parallel>, nc_u8)
TILES(nc_rs_mod_serial, Mod<Serial>, nc_u8)
TILES(nc_rs_mod_constant, Mod<Constant>, nc_u8)
TILES(nc_rs_fold, Fold<Parallel>, nc_u8)
TILES(nc_rs_fold_serial, Fold<Serial>, nc_u8)
TILES(nc_rs_fold_constant, Fold<Constant>, nc_u8)
TILES(nc_rs_double, Double<Parallel>, nc_u8)
TILES(nc_rs_double_serial, Double<Serial>, nc_u8)
TILES(nc_rs_double_constant, Double<Constant>, nc_u8)
TILES(nc_rs_zero, Zero<Parallel>, nc_u8)
TILES(nc_rs_zero_serial, Zero<Serial>, nc_u8)
TILES(nc_rs_zero_constant, Zero<Constant>, nc_u8)
TILES(nc_rs_loop_words, Loop, nc_u32)
TILES(nc_rs_full_words, Full, nc_u32)
TILES(nc_rs_mod_words, Mod<Parallel>, nc_u32)
TILES(nc_rs_zero_words, Zero<Parallel>, nc_u32)
