// What kernels and their host share: numbers and the layout of what is passed. `src/device/abi.rs` repeats this file, and a test
// compares the two. Plain C that nvcc and NVRTC both read without a header.
//
// Words: a *generation* is n source blocks of k bytes; a *row* is n coefficients; a *task* is some rows of one generation; a
// *launch* is a list of tasks. A *form* is how the bytes of a generation are kept in device memory (see kernels/README.md).
#ifndef NC_ABI_H
#define NC_ABI_H

#define NC_ABI_VERSION 1

// Tasks that travel with the launch itself, so that a small launch waits for no copy.
#define NC_INLINE_TASKS 8

// Rows start at multiples of this, in coefficients; what lies behind the n-th is the row form's zero.
#define NC_ROW_ALIGN 16

// Where the rows of a task come from.
#define NC_ROWS_SEEDED 0   // Philox4x32-10 with key, generation and seeds first_seed, first_seed + 1, ...
#define NC_ROWS_EXPLICIT 1 // n bytes a row at `given`, without padding
#define NC_ROWS_SOURCE 2   // unit vectors; 16-bit indices at `given`

// How a coefficient is kept in `nc_task.coefficients`.
#define NC_ROW_BYTES 0   // one byte: the coefficient
#define NC_ROW_LOGS 1    // one byte: its logarithm, 255 for zero
#define NC_ROW_LOGS1 2   // one byte: its logarithm plus one, 0 for zero
#define NC_ROW_LOGS16 3  // two bytes: as the `table` kernel adds them (NC_TABLE_*)

typedef unsigned char nc_u8;
typedef unsigned short nc_u16;
typedef unsigned int nc_u32;
typedef unsigned long long nc_u64;

// Some rows of one generation. Addresses are device addresses; `out` may be pinned host memory.
typedef struct nc_task {
    nc_u64 source;       // the generation in the kernel's form
    nc_u64 out;          // first byte of row 0's block
    nc_u64 coefficients; // row 0, in the kernel's row form
    nc_u64 given;        // what NC_ROWS_EXPLICIT and NC_ROWS_SOURCE read
    nc_u64 key;          // of the generator
    nc_u64 generation;   // of the generator
    nc_u32 first_seed;   // of row 0
    nc_u32 kind;         // NC_ROWS_*
    nc_u32 rows;         // blocks to make
    nc_u32 out_pitch;    // bytes from one block to the next
    nc_u32 n;            // source blocks, 1 to 1024
    nc_u32 k;            // bytes of a block, a multiple of 16
    nc_u32 first_unit;   // the kernel's units of work in the tasks before this one
    nc_u32 first_row;    // rows of the tasks before this one
} nc_task;

// The only argument of every kernel over tasks, beside the tables.
typedef struct nc_launch {
    nc_u64 tasks;        // device address of the tasks, or 0: then they are in `few`
    nc_u32 count;        // tasks
    nc_u32 units;        // units of work in all of them
    nc_u32 rows;         // rows in all of them
    nc_u32 row_form;     // NC_ROW_*, for the kernel that makes rows
    nc_task few[NC_INLINE_TASKS];
} nc_launch;

// One generation to be put into a form.
typedef struct nc_form_task {
    nc_u64 raw;          // first byte of block 0
    nc_u64 out;          // where the form goes
    nc_u32 raw_pitch;    // bytes from one block to the next, a multiple of 16
    nc_u32 raw_length;   // bytes of the generation if raw_pitch = k: what lies behind them counts as zero. n * k otherwise
    nc_u32 n;
    nc_u32 k;
} nc_form_task;

// One matrix to be inverted. n x n bytes, rows `pitch` apart.
typedef struct nc_invert_task {
    nc_u64 matrix;       // left alone unless equal to `inverse`
    nc_u64 inverse;
    nc_u64 status;       // a u32: 1 if it was invertible, otherwise 0, and the inverse is undefined
    nc_u32 n;
    nc_u32 pitch;
} nc_invert_task;

// The field as data. Built by the host, for 0x11D or, in measurements of the papers' kernels, for 0x11B.
typedef struct nc_tables {
    nc_u8 log[256];       // 255 for zero
    nc_u8 exp[512];       // powers of the generator, period 255; the last two entries are not used
    nc_u8 product[65536]; // [a * 256 + b]
    nc_u64 bits[256];     // byte i holds the row that makes bit i of the product: its bit j is bit i of c * x^j
    nc_u32 polynomial;    // with its x^8
    nc_u32 generator;     // 2 for 0x11D, 3 for 0x11B
    nc_u32 reserved[2];
} nc_tables;

// tensor.cu. With steps(n) = ceil(n / 32) up to n = 64, 4 * ceil(n / 128) above: the form `tiles` takes
// ceil(k / 64) * steps(n) * NC_TENSOR_TILE_BYTES. Rows: NC_ROW_BYTES, or made by the kernel where `coefficients` is 0. Units of a task:
// ceil(rows / NC_TENSOR_<R>_ROWS) * ceil(k / NC_TENSOR_UNIT_BYTES). Dynamic shared memory of a launch whose largest n is n:
// NC_TENSOR_<R>_SHARED + slots * NC_TENSOR_<R>_SHARED_SLOT, at most NC_TENSOR_SHARED_MAX / NC_TENSOR_<R>_PER_SM, with at least
// ceil(n / 128) slots and, where they fit, twice as many: then the next rows are made while the last are multiplied.
#define NC_TENSOR_UNIT_BYTES 256
#define NC_TENSOR_TILE_BYTES 2048
#define NC_TENSOR_SHARED_MAX 232448
#define NC_TENSOR_64_ROWS 64
#define NC_TENSOR_64_THREADS 640
#define NC_TENSOR_64_PER_SM 1
#define NC_TENSOR_64_SHARED 66560
#define NC_TENSOR_64_SHARED_SLOT 65536
#define NC_TENSOR_32_ROWS 32
#define NC_TENSOR_32_THREADS 384
#define NC_TENSOR_32_PER_SM 1
#define NC_TENSOR_32_SHARED 66560
#define NC_TENSOR_32_SHARED_SLOT 32768
#define NC_TENSOR_16_ROWS 16
#define NC_TENSOR_16_THREADS 256
#define NC_TENSOR_16_PER_SM 2
#define NC_TENSOR_16_SHARED 50176
#define NC_TENSOR_16_SHARED_SLOT 16384
#define NC_TENSOR_8_ROWS 8
#define NC_TENSOR_8_THREADS 256
#define NC_TENSOR_8_PER_SM 2
#define NC_TENSOR_8_SHARED 50176
#define NC_TENSOR_8_SHARED_SLOT 8192
#define NC_TENSOR_PAIR_ROWS 32
#define NC_TENSOR_PAIR_THREADS 256
#define NC_TENSOR_PAIR_PER_SM 1
#define NC_TENSOR_PAIR_SHARED 99328
#define NC_TENSOR_PAIR_SHARED_SLOT 16384

#endif
