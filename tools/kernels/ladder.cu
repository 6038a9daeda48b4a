// The encode kernels of Shojania and Li, "Pushing the Envelope: Extreme Network Coding on the GPU" (ICDCS 2009), one entry point
// for each step of that paper, so that its ladder can be climbed again on today's chip. Their field is Rijndael's, 0x11B; here the
// field is whatever `nc_tables` holds.
//
//   nc_loop            multiplication by shift and XOR, a byte with four bytes at once; their baseline
//   nc_table0_global   logarithm and exp tables in device memory, past the first-level cache (theirs had none)
//   nc_table0          the same tables in shared memory
//   nc_table1          generation and rows as logarithms, exp in shared memory, zero is 255
//   nc_table2          one test of the coefficient a word
//   nc_table3          zero is 0, so that it is told by taking the byte out, and everything is predicated
//   nc_table4          exp by the read-only path;  nc_table4_texture  by a texture object
//   nc_table5          eight copies of exp, an element a word;  nc_table5_32  one copy for each bank
//   nc_table5_dummy    table5 on made-up input: what the loads cost
//
// Partition. A thread makes one word of one coded block, over all n sources. loop and table0 keep the paper's Figure 2: a block of
// 256 threads makes 1 KiB of a coded block, and neighbouring units of work are neighbours in it. For the others the paper says only
// that there was a new partition; here a unit is a warp's 128 bytes, and neighbouring units are the same columns of different rows,
// so that the warps of a block read the same source words and find them in the first-level cache. At n = 512 that is 6.5 instead of
// 5.8 GB/s, at n = 128 and k = 16384 26.1 instead of 22.3, at n = 128 and k = 4096 26.2 instead of 27.0. A block stages its tables
// once and then takes unit after unit; the grid is the device's capacity.
//
//   kernels              rows x bytes a unit   threads   units a turn   source, rows            shared memory
//   loop                 1 x 1024              256       1              bytes, NC_ROW_BYTES     -
//   table0_global        1 x 1024              256       1              bytes, NC_ROW_BYTES     -
//   table0               1 x 1024              256       1              bytes, NC_ROW_BYTES     768
//   table1, table2       1 x 128               256       8              logs, NC_ROW_LOGS       512
//   table3               1 x 128               256       8              logs1, NC_ROW_LOGS1     512
//   table4, _texture     1 x 128               256       8              logs1, NC_ROW_LOGS1     -
//   table5, _dummy       1 x 128               256       8              logs1, NC_ROW_LOGS1     16384
//   table5_32            1 x 128               1024      32             logs1, NC_ROW_LOGS1     65536, dynamic: raise the limit
//
// "Units a turn" is how many a block works on at a time: more blocks than units / that have nothing to do. 32 registers, 8 blocks
// of 256 threads or 2 of 1024 an SM; table4_texture takes 40, 6 blocks. It has a third argument, a texture object over linear
// memory: the first 66,304 bytes of nc_tables, one unsigned 8-bit channel, element type. table5_dummy reads neither source nor rows.
//
// Inside. Rows are read sixteen coefficients at a time, the same for a whole warp, and turned into logarithms once a batch by
// nc_rows. The four bytes of a word are summed in four registers and put together at the end: an XOR is then all that a product
// costs after its lookup. In table3 to table5 a product is four instructions: take the byte out and test it, add it to the
// coefficient's place in the table, look up, XOR. Shared memory is addressed in its own state space, with the tables' place opaque
// to the compiler: left to itself it works out the generic address anew for every lookup. The loop's tests of bits are predicates
// (R2P sets seven at once); as masks they were a third more instructions.
//
// Limits, per clock and SM, n = 128, k = 4096, 8,192 rows, one H200 (1 GB/s = 0.49 products):
//
//   loop       10.6 instructions a product, 8.3 of them on the ALU pipe (64 lanes): at most 7.7; reached 7.4
//   table0     two lookups a product of 2.0 wavefronts each, and 0.3 for word and coefficient: at most 7.4; reached 6.9
//   table1..3  the coefficient is the same for a warp, so its lookups fall into a window of 255 bytes, two words a bank: 2.0 wavefronts,
//              and 0.3 for the word: at most 13.8; reached 12.9. The tests, three steps of the ladder, are hidden behind it
//   table4     the same bytes through the first-level cache, which also checks tags of 2.9 lines a lookup: 11.3
//   texture    the texture units fetch four elements a clock and SM: 4.0; reached 3.8. One cache with table4 today, another way to it
//   table5     an element a word spreads the window over 8 KiB: 2.9 wavefronts instead of 2.0: at most 9.8; reached 9.2.
//              What was a gain of 23 % on sixteen banks, with a byte table that met three conflicts, is a loss on thirty-two
//   table5_32  one wavefront; then the ALU pipe, 3.8 of 5.9 instructions a product: at most 16.8; reached 14.3
//
// Dropped: making coefficients warp-uniform by a shuffle (the compiler keeps them in ordinary registers all the same); three blocks
// of 512 threads for table5_32 (24.9 against 29.3 GB/s: fewer warps).

#include "nc_common.cuh"

namespace {

// Bytes of an output word, each in a word of its own until the end.
struct Sums {
    nc_u32 byte[4] = {0, 0, 0, 0};
    __device__ __forceinline__ nc_u32 word() const {
        return __byte_perm(__byte_perm(byte[0], byte[1], 0x0040), __byte_perm(byte[2], byte[3], 0x0040), 0x5410);
    }
};

// One instruction, where a shift and a mask would be two.
__device__ __forceinline__ nc_u32 byte_of(nc_u32 word, nc_u32 i) { return __byte_perm(word, 0, 0x4440 + i); }

// --- How one coefficient is multiplied with four bytes. `add` adds the product to the sums.

struct Loop {
    // By predicate. Left to itself, the compiler makes a mask of every bit.
    static __device__ __forceinline__ void add_if(nc_u32 &sum, nc_u32 word, nc_u32 bit) {
        asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p xor.b32 %0, %0, %1; }" : "+r"(sum) : "r"(word), "r"(bit));
    }

    static constexpr bool PACKED = true;
    nc_u32 fold; // the polynomial without x^8, in each byte

    __device__ __forceinline__ explicit Loop(const nc_tables *tables) : fold((tables->polynomial & 255) * 0x01010101u) {}

    __device__ __forceinline__ void add(Sums &sums, nc_u32 c, nc_u32 word) const {
#pragma unroll
        for (nc_u32 bit = 0; bit < 8; bit++) {
            add_if(sums.byte[0], word, c & 1u << bit);
            nc_u32 carry; // each byte's top bit, eight times
            asm("prmt.b32 %0, %1, 0, 0xba98;" : "=r"(carry) : "r"(word));
            word = 2 * (word & 0x7f7f7f7fu) ^ (carry & fold);
        }
    }
};

// Figure 1: plain bytes, three lookups and two tests a product. TABLES has the bytes of nc_tables: log, and exp from byte 256 on.
template <class TABLES>
struct Plain {
    static constexpr bool PACKED = false;
    TABLES tables;

    __device__ __forceinline__ void add(Sums &sums, nc_u32 c, nc_u32 word) const {
        const nc_u32 log_c = 256 + tables.at(c);
#pragma unroll
        for (nc_u32 i = 0; i < 4; i++) {
            const nc_u32 x = byte_of(word, i);
            if (c != 0 && x != 0) sums.byte[i] ^= tables.at(log_c + tables.at(x));
        }
    }
};

// Figure 5: logarithms, 255 for zero. With ONE_TEST the coefficient is tested once a word.
template <bool ONE_TEST, class EXP>
struct Logs {
    static constexpr bool PACKED = false;
    EXP exp;

    __device__ __forceinline__ void add(Sums &sums, nc_u32 c, nc_u32 word) const {
        if (ONE_TEST && c == 255) word = 0xffffffffu;
#pragma unroll
        for (nc_u32 i = 0; i < 4; i++) {
            const nc_u32 x = byte_of(word, i);
            if ((ONE_TEST || c != 255) && x != 255) sums.byte[i] ^= exp.at(c + x);
        }
    }
};

// Logarithms plus one, 0 for zero, and exp moved by two to match. The test of a byte comes with taking it out of the word, and
// a zero coefficient clears the word, so that nothing branches.
template <class EXP>
struct Logs1 {
    static constexpr bool PACKED = false;
    EXP exp;

    __device__ __forceinline__ void add(Sums &sums, nc_u32 c, nc_u32 word) const {
        if (c == 0) word = 0;
        const typename EXP::Row row = exp.row(c);
#pragma unroll
        for (nc_u32 i = 0; i < 4; i++) {
            const nc_u32 x = word & 255u << 8 * i;
            if (EXP::ALWAYS) {
                const nc_u32 product = exp.at(row, x, 8 * i);
                if (x != 0) sums.byte[i] ^= product;
            } else if (x != 0) {
                sums.byte[i] ^= exp.at(row, x, 8 * i);
            }
        }
    }
};

// --- Where the tables are.

// In device memory, past the first-level cache.
struct GlobalBytes {
    const nc_u8 *table;

    __device__ __forceinline__ explicit GlobalBytes(const nc_tables *tables) : table(reinterpret_cast<const nc_u8 *>(tables)) {}
    __device__ __forceinline__ nc_u32 at(nc_u32 i) const { return __ldcg(table + i); }
};

// The address of staged bytes, as its own state space has it, and only once all have been staged.
__device__ __forceinline__ nc_u32 staged(const void *shared) {
    __syncthreads();
    nc_u32 address = (nc_u32)__cvta_generic_to_shared(shared);
    asm volatile("" : "+r"(address) : : "memory");
    return address;
}

// BYTES bytes of device memory in shared memory, four for each thread.
template <nc_u32 BYTES>
struct SharedBytes {
    nc_u32 base;

    __device__ __forceinline__ SharedBytes(const void *from, nc_u32 *shared) {
        for (nc_u32 i = threadIdx.x; i < BYTES / 4; i += blockDim.x) shared[i] = static_cast<const nc_u32 *>(from)[i];
        base = staged(shared);
    }

    __device__ __forceinline__ nc_u32 at(nc_u32 i) const {
        nc_u32 value;
        asm("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(base + i));
        return value;
    }
};

// exp moved by two in shared memory, COPIES of it, an element a byte (one copy) or a word.
template <nc_u32 COPIES>
struct SharedExp {
    typedef nc_u32 Row;
    static constexpr bool ALWAYS = false;
    static constexpr nc_u32 SHIFT = COPIES == 1 ? 0 : COPIES == 8 ? 5 : 7; // bytes from an element to the next, as a power of two
    nc_u32 base;

    __device__ __forceinline__ SharedExp(const nc_tables *tables, nc_u32 *shared) {
        for (nc_u32 i = threadIdx.x; i < 512 * COPIES; i += blockDim.x) {
            const nc_u32 element = i / COPIES;
            const nc_u8 value = element < 2 ? 0 : tables->exp[element - 2];
            if (COPIES == 1) reinterpret_cast<nc_u8 *>(shared)[i] = value;
            else shared[i] = value;
        }
        base = staged(shared) + (COPIES == 1 ? 0 : threadIdx.x % COPIES * 4);
    }

    __device__ __forceinline__ Row row(nc_u32 c) const { return base + (c << SHIFT); }

    // `x` stands `up` bits up in its word.
    __device__ __forceinline__ nc_u32 at(Row row, nc_u32 x, nc_u32 up) const {
        const nc_u32 address = row + (up > SHIFT ? x >> (up - SHIFT) : x << (SHIFT - up));
        nc_u32 value;
        if (COPIES == 1) asm("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(address));
        else asm("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address));
        return value;
    }
};

struct ReadOnlyExp {
    typedef nc_u64 Row;
    static constexpr bool ALWAYS = false;
    nc_u64 exp;

    __device__ __forceinline__ explicit ReadOnlyExp(const nc_tables *tables) : exp((nc_u64)tables->exp - 2) {
        asm volatile("" : "+l"(exp)); // kept in registers, not fetched for every product
    }
    __device__ __forceinline__ Row row(nc_u32 c) const { return exp + c; }
    __device__ __forceinline__ nc_u32 at(Row row, nc_u32 x, nc_u32 up) const {
        return __ldg(reinterpret_cast<const nc_u8 *>(row + (x >> up)));
    }
};

// A texture over the bytes of nc_tables: exp begins at its byte 256.
struct TextureExp {
    typedef nc_u32 Row;
    static constexpr bool ALWAYS = true; // a predicated fetch would load its descriptor again
    nc_u64 texture;

    __device__ __forceinline__ Row row(nc_u32 c) const { return 256 - 2 + c; }
    __device__ __forceinline__ nc_u32 at(Row row, nc_u32 x, nc_u32 up) const {
        nc_u32 value;
        asm volatile("{ .reg .u32 g, b, a; tex.1d.v4.u32.s32 {%0, g, b, a}, [%1, {%2}]; }"
                     : "=r"(value) : "l"(texture), "r"(row + (x >> up)));
        return value;
    }
};

// --- What is multiplied.

// A row and a column of words of a generation in device memory.
struct Stored {
    const nc_u8 *coefficients, *source;
    nc_u32 k;

    __device__ __forceinline__ Stored(const nc_task &task, nc_u32 row, nc_u32 column) : k(task.k) {
        coefficients = reinterpret_cast<const nc_u8 *>(task.coefficients) + (nc_u64)row * nc_row_pitch(task.n);
        source = reinterpret_cast<const nc_u8 *>(task.source) + column;
    }

    template <class MULTIPLY>
    __device__ __forceinline__ void combine(Sums &sums, const MULTIPLY &multiply, nc_u32 n) {
        nc_u32 left = n;
        for (; left >= 16; left -= 16, coefficients += 16) {
            const uint4 c = __ldg(reinterpret_cast<const uint4 *>(coefficients));
            const nc_u32 words[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
            for (nc_u32 i = 0; i < 16; i++, source += k)
                multiply.add(sums, byte_of(words[i / 4], i % 4), __ldg(reinterpret_cast<const nc_u32 *>(source)));
        }
#pragma unroll 1
        for (; left > 0; left--, source += k)
            multiply.add(sums, __ldg(coefficients++), __ldg(reinterpret_cast<const nc_u32 *>(source)));
    }
};

// The same amount of work on input that is made up: both sequences are linear congruential, the coefficient never zero.
struct Dummy {
    nc_u32 word, c;

    __device__ __forceinline__ Dummy(const nc_task &, nc_u32 row, nc_u32 column) : word(column * 0x9E3779B1u), c(row * 0x85EBCA6Bu) {
        word = (word ^ word >> 15) * 0x2C1B3C6Du;
        word ^= word >> 12;
    }

    template <class MULTIPLY>
    __device__ __forceinline__ void combine(Sums &sums, const MULTIPLY &multiply, nc_u32 n) {
#pragma unroll 16
        for (nc_u32 j = 0; j < n; j++) {
            multiply.add(sums, (c >> 25) + 1, word);
            word = word * 1664525u + 1013904223u;
            c = c * 1664525u + 1013904223u;
        }
    }
};

// --- Who does what: `WIDTH` neighbouring threads make 4 * WIDTH bytes of one coded block.

template <nc_u32 WIDTH, class INPUT, class MULTIPLY>
__device__ __forceinline__ void encode(const nc_launch &launch, const MULTIPLY &multiply) {
    const nc_task *tasks = nc_tasks(launch);
    const nc_u32 together = blockDim.x / WIDTH, step = gridDim.x * together;
    for (nc_u32 unit = blockIdx.x * together + threadIdx.x / WIDTH; unit < launch.units; unit += step) {
        const nc_task &task = tasks[nc_task_of_unit(tasks, launch.count, unit)];
        const nc_u32 k = task.k, columns = (k + 4 * WIDTH - 1) / (4 * WIDTH), local = unit - task.first_unit;
        const bool across = WIDTH == 256; // Figure 2: one block's parts are neighbours; otherwise the same part of all blocks
        const nc_u32 row = across ? local / columns : local % task.rows;
        const nc_u32 column = (across ? local % columns : local / task.rows) * (4 * WIDTH) + threadIdx.x % WIDTH * 4;
        if (column >= k) continue;
        Sums sums;
        INPUT(task, row, column).combine(sums, multiply, task.n);
        *reinterpret_cast<nc_u32 *>(task.out + (nc_u64)row * task.out_pitch + column) = MULTIPLY::PACKED ? sums.byte[0] : sums.word();
    }
}

} // namespace

#define NC_KERNEL(name, threads) \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ nc_launch launch, const nc_tables *tables)

NC_KERNEL(nc_loop, NC_S2_BLOCK_THREADS) { encode<256, Stored>(launch, Loop(tables)); }

NC_KERNEL(nc_table0_global, NC_S2_BLOCK_THREADS) { encode<256, Stored>(launch, Plain<GlobalBytes>{GlobalBytes(tables)}); }

NC_KERNEL(nc_table0, NC_S2_BLOCK_THREADS) {
    __shared__ nc_u32 shared[768 / 4];
    encode<256, Stored>(launch, Plain<SharedBytes<768>>{{tables, shared}});
}

NC_KERNEL(nc_table1, NC_S2_THREADS) {
    __shared__ nc_u32 shared[512 / 4];
    encode<32, Stored>(launch, Logs<false, SharedBytes<512>>{{tables->exp, shared}});
}

NC_KERNEL(nc_table2, NC_S2_THREADS) {
    __shared__ nc_u32 shared[512 / 4];
    encode<32, Stored>(launch, Logs<true, SharedBytes<512>>{{tables->exp, shared}});
}

NC_KERNEL(nc_table3, NC_S2_THREADS) {
    __shared__ nc_u32 shared[512 / 4];
    encode<32, Stored>(launch, Logs1<SharedExp<1>>{{tables, shared}});
}

NC_KERNEL(nc_table4, NC_S2_THREADS) { encode<32, Stored>(launch, Logs1<ReadOnlyExp>{ReadOnlyExp(tables)}); }

extern "C" __global__ void __launch_bounds__(NC_S2_THREADS)
nc_table4_texture(const __grid_constant__ nc_launch launch, const nc_tables *, nc_u64 texture) {
    encode<32, Stored>(launch, Logs1<TextureExp>{{texture}});
}

NC_KERNEL(nc_table5, NC_S2_THREADS) {
    __shared__ nc_u32 shared[512 * 8];
    encode<32, Stored>(launch, Logs1<SharedExp<8>>{{tables, shared}});
}

NC_KERNEL(nc_table5_dummy, NC_S2_THREADS) {
    __shared__ nc_u32 shared[512 * 8];
    encode<32, Dummy>(launch, Logs1<SharedExp<8>>{{tables, shared}});
}

NC_KERNEL(nc_table5_32, NC_TABLE5_32_THREADS) {
    extern __shared__ nc_u32 shared[];
    encode<32, Stored>(launch, Logs1<SharedExp<32>>{{tables, shared}});
}
