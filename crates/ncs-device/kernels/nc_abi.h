// What kernels and their host share: numbers and the layout of what is passed. `abi.rs` of ncs-device repeats this file; a test
// compares the two. Plain C that nvcc and NVRTC both read without a header.
//
// Words: a *generation* is n source blocks of k bytes; a *row* is n coefficients; a *task* is some rows of one generation; a
// *launch* is a list of tasks. A *form* is how the bytes of a generation are kept in device memory (see kernels/README.md).
#ifndef NC_ABI_H
#define NC_ABI_H

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
#define NC_ROW_LOGS16 3  // two bytes: where the `table` kernel's table has that logarithm
#define NC_ROW_LOGS16_ENTRY(log) ((log) * 128u + ((log) == 255)) // of a logarithm, 255 for zero: a line of the table, or byte 1 of a line

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

// --- rows.cu, forms.cu
#define NC_ROWS_THREADS 256 // threads of nc_rows and nc_rows_nonzero; eight share a row
#define NC_FORM_THREADS 256
#define NC_COPY_THREADS 512

// --- ladder.cu: rows and bytes of a unit, threads of a block, units a block takes at a time
#define NC_S2_BLOCK_ROWS 1 // loop, table0_global, table0
#define NC_S2_BLOCK_BYTES 1024
#define NC_S2_BLOCK_THREADS 256
#define NC_S2_BLOCK_UNITS 1
#define NC_S2_ROWS 1 // table1 ... table5
#define NC_S2_BYTES 128
#define NC_S2_THREADS 256
#define NC_S2_UNITS 8
#define NC_TABLE5_32_THREADS 1024 // otherwise as table5
#define NC_TABLE5_32_UNITS 32
#define NC_TABLE5_32_SHARED 65536 // bytes, dynamic

// --- tiled.cu
#define NC_S1_ROWS 32 // product_*, logexp_*
#define NC_S1_BYTES 32
#define NC_S1_THREADS 256
#define NC_SINGLE_ROWS 1
#define NC_SINGLE_BYTES 128
#define NC_SINGLE_THREADS 32
#define NC_TILED_ROWS 64 // tiled, tiled_global, tiled_strided, tiled_rolled, tiled_logs
#define NC_TILED_BYTES 64
#define NC_TILED_THREADS 256
#define NC_TILED_SMALL_ROWS 32
#define NC_TILED_SMALL_BYTES 32
#define NC_TILED_SMALL_THREADS 64
#define NC_TILED_BYTES_ROWS 16
#define NC_TILED_BYTES_BYTES 16
#define NC_TILED_BYTES_THREADS 256

// --- table.cu: source form `logs`, row form NC_ROW_LOGS16, the same for every card from compute capability 8.0 on
#define NC_TABLE_ROWS 8       // of a unit
#define NC_TABLE_BYTES 512    // of a unit
#define NC_TABLE_THREADS 384  // of a CTA
#define NC_TABLE_SHARED 77696 // dynamic, of a CTA
#define NC_TABLE_CTAS 1       // on an SM at once
// nc_table_small: rows NC_ROW_LOGS16, or made by the kernel where `coefficients` is 0; `out` and its pitch are multiples of 16.
#define NC_TABLE_SMALL_ROWS 4
#define NC_TABLE_SMALL_BYTES 128
#define NC_TABLE_SMALL_THREADS 544
#define NC_TABLE_SMALL_SHARED 90256
#define NC_TABLE_SMALL_CTAS 1

// bitsliced.cu. A unit is 16 rows x 1024 bytes; one block an SM.
#define NC_BITSLICED_UNIT_ROWS 16
#define NC_BITSLICED_UNIT_BYTES 1024
#define NC_BITSLICED_THREADS 640
#define NC_BITSLICED_SHARED 196608
#define NC_BITSLICED_BLOCKS_PER_SM 1
#define NC_BITSLICED_ROW_FORM NC_ROW_BYTES
// The form `planes`: ceil(k / NC_PLANES_BYTES) * NC_PLANES_BYTES * n bytes.
#define NC_PLANES_BYTES 1024

// prmt.cu. A unit is 16 rows x 512 bytes, and belongs to a warp.
#define NC_PRMT_UNIT_ROWS 16
#define NC_PRMT_UNIT_BYTES 512
#define NC_PRMT_THREADS 512
#define NC_PRMT_SHARED 111632
#define NC_PRMT_BLOCKS_PER_SM 1
#define NC_PRMT_ROW_FORM NC_ROW_BYTES
// The form `selectors`: ceil(n / 3) * ceil(k / NC_SELECTORS_BYTES) * NC_SELECTORS_SIZE bytes.
#define NC_SELECTORS_BYTES 512
#define NC_SELECTORS_SIZE 2048

// product.cu. A unit is 16 rows x 1024 bytes; four units at a time.
#define NC_PRODUCT_UNIT_ROWS 16
#define NC_PRODUCT_UNIT_BYTES 1024
#define NC_PRODUCT_THREADS 256
#define NC_PRODUCT_SHARED 77824
#define NC_PRODUCT_BLOCKS_PER_SM 2
#define NC_PRODUCT_ROW_FORM NC_ROW_BYTES

// tensor.cu. With steps(n) = ceil(n / 32) up to n = 64, 4 * ceil(n / 128) above: the form `tiles` takes
// ceil(k / 64) * steps(n) * NC_TENSOR_TILE_BYTES. Rows: NC_ROW_BYTES, or made by the kernel where `coefficients` is 0. Units of a task:
// ceil(rows / NC_TENSOR_<R>_ROWS) * ceil(k / NC_TENSOR_UNIT_BYTES). Dynamic shared memory of a launch whose largest n is n:
// NC_TENSOR_<R>_SHARED + slots * NC_TENSOR_<R>_SHARED_SLOT, at most NC_TENSOR_SHARED_MAX / NC_TENSOR_<R>_PER_SM if that holds ceil(n / 128)
// slots, otherwise at most NC_TENSOR_SHARED_MAX; slots: 2 * ceil(n / 128) (the next rows are made while the last are multiplied) or as many as
// fit, not fewer than ceil(n / 128). Grid: NC_TENSOR_<R>_PER_SM CTAs an SM at most, a multiple of NC_TENSOR_<R>_CLUSTER.
#define NC_TENSOR_UNIT_BYTES 512
#define NC_TENSOR_TILE_BYTES 2048
#define NC_TENSOR_SHARED_MAX 232448
#define NC_TENSOR_32_ROWS 32
#define NC_TENSOR_32_THREADS 384
#define NC_TENSOR_32_PER_SM 1
#define NC_TENSOR_32_CLUSTER 1
#define NC_TENSOR_32_N_MAX 512
#define NC_TENSOR_32_SHARED 66560
#define NC_TENSOR_32_SHARED_SLOT 32768
#define NC_TENSOR_16_ROWS 16
#define NC_TENSOR_16_THREADS 256
#define NC_TENSOR_16_PER_SM 2
#define NC_TENSOR_16_CLUSTER 1
#define NC_TENSOR_16_N_MAX 1024
#define NC_TENSOR_16_SHARED 50176
#define NC_TENSOR_16_SHARED_SLOT 16384
#define NC_TENSOR_8_ROWS 8
#define NC_TENSOR_8_THREADS 256
#define NC_TENSOR_8_PER_SM 2
#define NC_TENSOR_8_CLUSTER 1
#define NC_TENSOR_8_N_MAX 1024
#define NC_TENSOR_8_SHARED 50176
#define NC_TENSOR_8_SHARED_SLOT 8192
#define NC_TENSOR_PAIR_ROWS 32
#define NC_TENSOR_PAIR_THREADS 256
#define NC_TENSOR_PAIR_PER_SM 1
#define NC_TENSOR_PAIR_CLUSTER 2
#define NC_TENSOR_PAIR_N_MAX 1024
#define NC_TENSOR_PAIR_SHARED 99328
#define NC_TENSOR_PAIR_SHARED_SLOT 16384
// nc_tensor_chunks, over whole chunks (nc_chunks below) with `groups` times NC_TENSOR_CHUNKS_ROWS code chunks a thread block. Dynamic shared memory:
// NC_TENSOR_CHUNKS_FIXED + steps(n) * (units * NC_TENSOR_CHUNKS_TILES + groups * NC_TENSOR_CHUNKS_BITS), at most NC_TENSOR_SHARED_MAX; units:
// NC_TENSOR_CHUNKS_UNITS up to n = 128, 1 above. Grid: any in x, ceil(ceil(rows / NC_TENSOR_CHUNKS_ROWS) / groups) in y.
#define NC_TENSOR_CHUNKS_ROWS 32
#define NC_TENSOR_CHUNKS_THREADS 384
#define NC_TENSOR_CHUNKS_UNITS 2
#define NC_TENSOR_CHUNKS_FIXED 1024
#define NC_TENSOR_CHUNKS_TILES 16384
#define NC_TENSOR_CHUNKS_BITS 8192

// Inversion (invert.cu). Rows of matrix and inverse start at multiples of 16 bytes; those of the inverse are zero behind the n-th byte,
// as NC_ROW_BYTES asks. Any mix of n in a launch, dynamic shared memory for the largest:
//     kernel             n       threads                   grid                             dynamic shared memory
//     nc_invert_shared   <= 416  NC_INVERT_THREADS         matrices (or fewer; two a SM)    NC_INVERT_SHARED_BYTES(n)
//     nc_invert_global   <= 1024 NC_INVERT_GLOBAL_THREADS  the same, one a SM               NC_INVERT_GLOBAL_BYTES
//     nc_invert_cluster  <= 1024 NC_INVERT_THREADS         matrices * blocks, in clusters   NC_INVERT_CLUSTER_BYTES(n, blocks)
// The last is in the sm_90a code only; its matrix and inverse are not the same memory. Blocks of a cluster: 2 or 4 up to n = 512, 8, or 16
// with the attribute for non-portable cluster sizes.
#define NC_INVERT_THREADS 256
#define NC_INVERT_GLOBAL_THREADS 512
#define NC_INVERT_SHARED_MAX 416
#define NC_INVERT_FIXED_BYTES 13824
#define NC_INVERT_PITCH(n) ((((n) + 31) / 32 | 1) * 32) // of a row in shared memory: an odd number of 32 bytes
#define NC_INVERT_SHARED_BYTES(n) (NC_INVERT_FIXED_BYTES + ((n) + 31) / 32 * 32 * (NC_INVERT_PITCH(n) + 32))
#define NC_INVERT_STRIPE 64
#define NC_INVERT_GLOBAL_BYTES (NC_INVERT_FIXED_BYTES + 1024 * NC_INVERT_STRIPE)
#define NC_INVERT_CLUSTER_FIXED_BYTES 17408
#define NC_INVERT_CLUSTER_MIN 97 // smaller matrices are done by one block of the cluster
#define NC_INVERT_CLUSTER_ROWS(n, blocks) ((((n) + 31) / 32 * 2 + (blocks) - 1) / (blocks) * 16)
#define NC_INVERT_CLUSTER_MATRIX(n, blocks) (((n) + 31) / 32 * 32 * 32 + NC_INVERT_CLUSTER_ROWS(n, blocks) * NC_INVERT_PITCH(n))
#define NC_INVERT_CLUSTER_BYTES(n, blocks) (NC_INVERT_CLUSTER_FIXED_BYTES \
    + (NC_INVERT_CLUSTER_MATRIX(n, blocks) > 1024 * NC_INVERT_STRIPE ? NC_INVERT_CLUSTER_MATRIX(n, blocks) : 1024 * NC_INVERT_STRIPE))

// Inversion one pivot a step (invert_steps.cu), for comparison: the pivot sought by one thread (nc_invert_steps_serial), by one warp's
// votes (_ballot) or by everyone's atomic minimum (_min); the matrix in shared memory, n <= 448, or (_global, _global_min) in the place
// of the inverse, n <= 1024. A block a matrix, or fewer blocks.
#define NC_INVERT_STEPS_THREADS 512
#define NC_INVERT_STEPS_MAX 448
#define NC_INVERT_STEPS_FIXED_BYTES 24576 // dynamic shared memory of the global ones
#define NC_INVERT_STEPS_BYTES(n) (NC_INVERT_STEPS_FIXED_BYTES + (n) * (((n) + 15) / 16 * 16)) // of the others

// Large matrices over all of a card (wide.cu): `count` of one order, one behind the other, `pitch` = nc_row_pitch(n) bytes a row; and products of
// matrices of any size. padded is n rounded up to 32.
typedef struct nc_wide {
    nc_u64 matrices;
    nc_u64 inverses;     // like the matrices, and apart from them; zero behind the n-th byte of a row
    nc_u64 work;         // padded * padded bytes a matrix
    nc_u64 factors;      // padded * NC_WIDE_PANEL bytes a matrix
    nc_u64 pivots;       // padded * NC_WIDE_PANEL bytes a matrix
    nc_u64 found;        // NC_WIDE_PANEL * NC_WIDE_PANEL bytes a matrix
    nc_u64 order;        // padded u16 a matrix: pivot rows by column, then the rows that have not been pivots
    nc_u64 column_of;    // padded u16 a matrix: the column whose pivot a row is, or 0xFFFF
    nc_u64 status;       // a u32 a matrix: 1 if it was invertible, otherwise 0, and its inverse is undefined
    nc_u32 n;            // 1 to NC_WIDE_MAX
    nc_u32 pitch;
    nc_u32 count;        // blockIdx.y
    nc_u32 first;        // of the panel: a multiple of NC_WIDE_PANEL
    nc_u32 tiles;        // that a thread block of nc_wide_update takes side by side, NC_WIDE_PANEL columns each
    nc_u32 reserved;
} nc_wide;
//     kernel           threads          grid (x; y is the matrix)                                        dynamic shared memory
//     nc_wide_begin    NC_WIDE_THREADS  any                                                              0
//     nc_wide_factor   NC_WIDE_THREADS  1                                                                0
//     nc_wide_panel    NC_WIDE_THREADS  padded / NC_WIDE_THREADS, rounded up                             0
//     nc_wide_update   NC_WIDE_THREADS  (padded / NC_WIDE_ROWS) * (padded / 32 / tiles), each rounded up 0
//     nc_wide_arrange  NC_WIDE_THREADS  n                                                                padded
#define NC_WIDE_THREADS 256
#define NC_WIDE_PANEL 32
#define NC_WIDE_ROWS 64 // of a thread block of nc_wide_update and nc_wide_multiply
#define NC_WIDE_MAX 32768

// out = left * right, or what is there is added; `count` products of one shape, so many bytes from one to the next.
typedef struct nc_wide_product {
    nc_u64 left;         // rows * inner, rows left_pitch bytes apart
    nc_u64 right;        // inner * columns
    nc_u64 out;          // rows * columns
    nc_u64 left_step;    // from one product to the next; 0 for the same one; a multiple of 4
    nc_u64 right_step;
    nc_u64 out_step;
    nc_u32 rows;
    nc_u32 inner;
    nc_u32 columns;      // multiples of 4, as are the three pitches
    nc_u32 left_pitch;   // at least inner rounded up to 4; what lies behind inner is not looked at
    nc_u32 right_pitch;
    nc_u32 out_pitch;
    nc_u32 adds;         // 1: what is in `out` is added
    nc_u32 reserved;
} nc_wide_product;
//     nc_wide_multiply: NC_WIDE_THREADS threads; x: (rows / NC_WIDE_ROWS) * (columns / NC_WIDE_COLUMNS), each rounded up; y is the product
#define NC_WIDE_COLUMNS 128

// Row r of `out` is the sum of the rows terms[ends[r - 1]] ... terms[ends[r] - 1] of `from`, from terms[0] on for r = 0.
typedef struct nc_wide_sums {
    nc_u64 from;
    nc_u64 out;
    nc_u64 terms;        // u32, of all sums and matrices one behind the other
    nc_u64 ends;         // u32, of all sums and matrices
    nc_u64 from_step;    // from one matrix to the next
    nc_u64 out_step;
    nc_u32 rows;         // sums a matrix: blockIdx.x; y is the matrix
    nc_u32 pitch;        // of both, a multiple of 16
} nc_wide_sums;

// Elements of the field of 257 bits (gfq.cu, hash.cu). A row of words: 32 bytes each, big-endian, which are the lower 256 bits; behind all of them their
// highest bits, where words are elements and not source: that of word k is bit k % 8, from the least significant, of byte k / 8. Rows start at multiples
// of 16 bytes. Limbs are words of 32 bits, the least significant first.
#define NC_GFQ_LIMBS 9
typedef struct nc_gfq_field {
    nc_u32 q[9];
    nc_u32 negated;      // -q^-1 mod 2^32
    nc_u32 one[9];       // R mod q, R = 2^288
    nc_u32 square[9];    // R^2 mod q
    nc_u32 ratio_low;    // floor(2^320 / q)
    nc_u32 ratio_high;
} nc_gfq_field;

// Rows of words that are combined, `generations` of one shape.
typedef struct nc_gfq_product {
    nc_u64 source;       // n rows
    nc_u64 coefficients; // of encoding: n u32 a row; of combining: a row of n elements each; of folding: three limbs a source, 16 bytes apart
    nc_u64 out;          // rows of elements
    nc_u64 source_step;  // from one generation to the next
    nc_u64 coefficients_step;
    nc_u64 out_step;
    nc_u32 source_pitch; // from one row to the next
    nc_u32 coefficients_pitch; // of encoding: a multiple of 4
    nc_u32 out_pitch;
    nc_u32 n;            // 1 to NC_GFQ_N_MAX; of folding any number below 2^31
    nc_u32 rows;         // to be made of each generation
    nc_u32 words;        // of a row of source
    nc_u32 tops;         // 1 if the source's words are elements
    nc_u32 reserved;
    nc_gfq_field field;
} nc_gfq_product;
#define NC_GFQ_N_MAX 4096
//     kernel                 threads                  grid: x, all rounded up          y              z
//     nc_gfq_encode_paper    up to 512                words / threads                  rows           generations
//     nc_gfq_encode_R        NC_GFQ_ENCODE_THREADS    words / NC_GFQ_ENCODE_THREADS    rows / R       generations
//     nc_gfq_combine_paper   256                      words / 16                       rows / 16      generations
//     nc_gfq_combine         NC_GFQ_COMBINE_THREADS   words / 32                       rows / 4       generations
//     nc_gfq_fold            NC_GFQ_FOLD_THREADS      words / 32                       1              generations
// For R there are 1, 2, 4 and 8. nc_gfq_fold makes one row, with coefficients below 2^96.
#define NC_GFQ_ENCODE_THREADS 128
#define NC_GFQ_COMBINE_THREADS 128
#define NC_GFQ_COMBINE_ROWS 4
#define NC_GFQ_FOLD_THREADS 256

// Matrices over that field.
typedef struct nc_gfq_inversion {
    nc_u64 matrices;     // n rows of n elements each
    nc_u64 inverses;     // the same; may be the matrices
    nc_u64 work;         // NC_GFQ_INVERT_WORK(n) bytes a matrix
    nc_u64 status;       // a u32 a matrix: 1 if it was invertible, otherwise 0, and its inverse is undefined
    nc_u64 matrices_step;
    nc_u64 inverses_step;
    nc_u32 matrices_pitch;
    nc_u32 inverses_pitch;
    nc_u32 n;            // 1 to NC_GFQ_INVERT_MAX
    nc_u32 first;        // of a panel and an update: the panel's first column, a multiple of W
    nc_u32 parts;        // of an update: thread blocks for 32 columns
    nc_u32 reserved;
    nc_gfq_field field;
} nc_gfq_inversion;
//     nc_gfq_invert_begin      NC_GFQ_STEP_THREADS      n * (n rounded up to 32) / 256    matrices
//     nc_gfq_invert_panel_W    NC_GFQ_INVERT_THREADS    matrices                                      NC_GFQ_INVERT_SHARED(W, n) bytes of shared memory
//     nc_gfq_invert_update_W   NC_GFQ_UPDATE_THREADS    n / 32 * parts                    matrices
//     nc_gfq_invert_end        NC_GFQ_STEP_THREADS      n / 8                             matrices
// For W there are 8, 4 and 2, as wide as the shared memory of a multiprocessor allows; a panel and an update for every W columns.
#define NC_GFQ_INVERT_THREADS 512
#define NC_GFQ_UPDATE_THREADS 128
#define NC_GFQ_INVERT_MAX 1024
#define NC_GFQ_INVERT_WIDTH 8
#define NC_GFQ_INVERT_WORK(n) (((n) + 8) * (((n) + 31) / 32 * 32) * 36 + ((n) + 1) / 2 * 592)
#define NC_GFQ_INVERT_SHARED(w, n) ((36 * (w) + 4) * (n))

// A step of Gauss-Jordan elimination whose inverses of elements the host finds: of a matrix with the identity beside it, n rows of nine times 2 n words, all
// lowest limbs of a row first.
typedef struct nc_gfq_step {
    nc_u64 extended;
    nc_u64 column;       // nine limbs a row
    nc_u32 n;
    nc_u32 row;
    nc_u32 other;        // a row, of nc_gfq_step_swap
    nc_u32 lead;         // a column, of nc_gfq_step_column
    nc_u32 factor[9];    // of nc_gfq_step_scale: times R
    nc_u32 reserved;
    nc_gfq_field field;
} nc_gfq_step;
//     nc_gfq_step_column 256 threads, x: n / 256; _swap, _scale: x: 2 n / 256; _subtract: the same, y: n. All rounded up
#define NC_GFQ_STEP_THREADS 256

// A prime for homomorphic hashes, 1024 or 2048 bits (hash.cu). Limbs are words of 32 bits, the least significant first; where there are 32 of them the rest
// is zero. R = 2^1024 or 2^2048; what is said to be in Montgomery form is times R.
typedef struct nc_group {
    nc_u32 p[64];
    nc_u32 one[64];      // R mod p
    nc_u32 square[64];   // R^2 mod p
    nc_u32 negated;      // -p^-1 mod 2^32
    nc_u32 reserved;
} nc_group;

// Products of powers: row r of `exponents`, whose words are exponents, makes the product over k of base k to word k.
typedef struct nc_hash {
    nc_u64 bases;        // `words` numbers, not in Montgomery form
    nc_u64 table;        // powers of the bases: number (k * windows + j) * 2^window + d is base k to d * 2^(window * j), in Montgomery form
    nc_u64 exponents;    // rows of words, as of gfq.cu
    nc_u64 parts;        // numbers, `count` a row
    nc_u64 out;          // a number a row, big-endian
    nc_u64 bases_step;   // from the bases of one row to those of the next; 0 if all rows have the same
    nc_u64 table_step;   // likewise, a multiple of 16
    nc_u32 exponents_pitch;
    nc_u32 rows;
    nc_u32 words;
    nc_u32 tops;         // 1 if exponents have 257 bits
    nc_u32 window;       // 1, 2, 4 or 8 bits
    nc_u32 windows;      // 256 / window, and one more for the highest bit if exponents have 257 bits
    nc_u32 share;        // windows of a word that a thread takes; divides 256 / window, and the last one has that of the highest bit, too
    nc_u32 items;        // such shares that a thread takes, NC_HASH_THREADS apart
    nc_u32 count;        // parts of a row
    nc_u32 enters;       // of nc_hash_join: 1 if parts are not in Montgomery form
    nc_group group;
} nc_hash;
//     kernel, _1024 or _2048  threads           grid: x, rounded up                                            y
//     nc_hash_power_paper     up to 512, 128    any: a thread goes from one power to the next                  1
//     nc_hash_ladder          32                words / 32                                                     rows with bases of their own
//     nc_hash_lanes           32                words                                                          the same
//     nc_hash_table           128               words * windows / 128                                          the same
//     nc_hash_fixed           NC_HASH_THREADS   count = words * (256 / window / share) / (threads * items)     rows
//     nc_hash_join            NC_HASH_THREADS   rows                                                           1
#define NC_HASH_THREADS 128

// Each of the operations of nc_mp.cuh on `count` pairs of numbers (mp.cu), for tests.
typedef struct nc_mp_operations {
    nc_u64 a;            // numbers
    nc_u64 b;
    nc_u64 out;          // 2 * limbs + 1 words each
    nc_u32 count;
    nc_u32 operation;    // 0 compare, 1 subtract, 2 modular add, 3 modular subtract, 4 multiply, 5 divide, 6 inverse, 7 Montgomery reduce, 8 Montgomery multiply
    nc_group group;
} nc_mp_operations;
#define NC_MP_THREADS 64

// Decoding block by block (decode.cu), one generation a launch. Each thread block of the grid keeps a copy of the coefficients and has
// `slice` bytes of every payload, so that nothing in a launch waits for another thread block.
typedef struct nc_progress {
    nc_u64 coefficients; // grid * n rows of nc_row_pitch(n) bytes, all zero before the first block
    nc_u64 blocks;       // n rows of k bytes; source block i is row i when all are there. Zero before the first block
    nc_u64 vectors;      // of the arriving blocks, nc_row_pitch(n) bytes each, zero behind the n-th
    nc_u64 payload;      // of the arriving blocks
    nc_u64 outcomes;     // a u32 for each arriving block: 1 if it brought something new, otherwise 0
    nc_u32 payload_pitch;
    nc_u32 rows;         // arriving blocks
    nc_u32 n;
    nc_u32 k;
    nc_u32 slice;        // a multiple of 16, at most NC_PROGRESS_SLICE_MAX; slice * grid >= k. The same in all launches of a generation
    nc_u32 reserved;
} nc_progress;
#define NC_PROGRESS_THREADS 512
#define NC_PROGRESS_CACHED_MAX 416 // n of nc_progress_cached(_min)
#define NC_PROGRESS_SLICE_MAX 1024
#define NC_PROGRESS_FIXED_BYTES 52224                  // dynamic shared memory of nc_progress_global(_min)
#define NC_PROGRESS_CACHED_BYTES(n) (NC_PROGRESS_FIXED_BYTES + (n) * (((n) + 15) / 16 * 16)) // of nc_progress_cached(_min)

// Recoding (decode.cu). nc_join makes a generation of `rows` blocks of nc_row_pitch(n) + k bytes. nc_recode_vectors is over tasks; their
// units are rows, their source is row-major coefficient rows, n of them, and k = their pitch, which is nc_row_pitch of the generation's n;
// 256 threads, 8 units a block and turn. nc_join: 256 threads, blockIdx.y is the task, any number of blocks in x.
typedef struct nc_join_task {
    nc_u64 vectors;
    nc_u64 payload;
    nc_u64 out;
    nc_u32 vectors_pitch; // multiples of 16, as is k
    nc_u32 payload_pitch;
    nc_u32 rows;
    nc_u32 n;
    nc_u32 k;
    nc_u32 reserved;
} nc_join_task;

// Reed-Solomon over whole chunks (rs.cu, stripes.cu, tensor.cu): `rows` code chunks from n native ones. Addresses are device addresses, multiples of 16; chunks
// lie one behind the other.
typedef struct nc_chunks {
    nc_u64 source;       // native chunk 0
    nc_u64 out;          // code chunk 0
    nc_u64 matrix;       // n coefficients a code chunk
    nc_u64 source_pitch; // bytes from one chunk to the next, multiples of 16
    nc_u64 out_pitch;
    nc_u64 bytes;        // of a chunk, a multiple of 16
    nc_u32 n;            // 1 to 255
    nc_u32 rows;         // 1 to 255
    nc_u32 tile_rows;    // of rs.cu: what a thread block makes at a time; tile_rows * tile_columns threads
    nc_u32 tile_columns; // bytes, or words in kernels over words
    nc_u32 groups;       // groups of code chunks that a thread block makes, 4 each in stripes.cu, 32 in tensor.cu; blockIdx.y counts thread blocks of as many
    nc_u32 reserved;
} nc_chunks;

// rs.cu: dynamic shared memory is tile_rows * n + n * tile_columns bytes, rounded up to 16, with n * tile_columns words in kernels over words.
#define NC_RS_THREADS 256
// stripes.cu: nc_stripes_C with C copies of each table. Dynamic shared memory: groups * n * C * 1024 bytes.
#define NC_STRIPES_ROWS 4 // of a group
#define NC_STRIPES_THREADS 1024
#define NC_STRIPES_TABLE_BYTES 1024

// Plans of RaptorQ and Raptor10, replayed on the symbols of many source blocks (replay.cu). A plan is words: this head, and behind it what its numbers, which
// count words from the head's beginning, lead to. `codec::raptor::Plan` has what each does; slots are symbols of memory for the work.
typedef struct nc_plan {
    nc_u32 inputs;
    nc_u32 slots;
    nc_u32 loads;           // pairs of slot and input
    nc_u32 load_count;
    nc_u32 reload_count;    // of the same, once more
    nc_u32 forward;         // terms: NC_TERM_HEAD marks a sum's target, with NC_TERM_OWN if what is there is a term of it; the others are sources
    nc_u32 forward_count;
    nc_u32 backward;
    nc_u32 backward_count;
    nc_u32 walk;            // terms that make the sides, in place of the fold or behind it
    nc_u32 walk_count;
    nc_u32 steps;           // of the fold: source, target, target; NC_NO_SLOT for no source
    nc_u32 step_count;
    nc_u32 last;            // a slot, or NC_NO_SLOT
    nc_u32 powers;          // slots that get the fold's value times 1, 2, 4 and so on
    nc_u32 power_count;     // 0 for no fold
    nc_u32 sides;           // H, or 0 for neither fold nor walk nor products
    nc_u32 bound;           // the first slots; the next are the free ones, and the next are the sides
    nc_u32 free;
    nc_u32 rows;            // sides * bound bytes
    nc_u32 inverse;         // free * sides bytes
    nc_u32 outputs;         // slots
    nc_u32 output_count;
} nc_plan;
#define NC_TERM_HEAD 2147483648u
#define NC_TERM_OWN 1073741824u
#define NC_TERM_SLOT 1073741823u
#define NC_NO_SLOT 4294967295u

typedef struct nc_replay {
    nc_u64 plans;           // an address of an nc_plan for each source block; several may have the same
    nc_u64 symbols;         // of source block 0, one behind the other
    nc_u64 outputs;
    nc_u64 symbols_pitch;   // bytes from one source block to the next
    nc_u64 outputs_pitch;
    nc_u64 work;            // of nc_replay_global: 32 words a slot for each warp of the grid
    nc_u32 blocks;
    nc_u32 symbol_bytes;    // a multiple of 4
    nc_u32 slots;           // at least those of every plan
    nc_u32 reserved;
} nc_replay;
#define NC_REPLAY_WARPS_MAX 16
#define NC_REPLAY_SLOT_BYTES 128 // of each warp: dynamic shared memory of nc_replay_shared is warps * slots * this

// thesis.cu
#define NC_THESIS_THREADS_MAX 1024

#endif
