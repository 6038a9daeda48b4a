// Coding over GF(q), q of 257 bits, as Chu, Zhao and Wang have it ("Practical Random Linear Network Coding on GPUs", NETWORKING 2009), and as we do it.
//
// Elements are nine limbs of 32 bits; how rows of them lie in memory is in nc_abi.h. What all products have in common is `Sum`: a word times one limb,
// added to a sum that is not reduced, in two chains of multiplications onto pairs of words, of the word's even limbs and of its odd ones (nc_mp.cuh has
// why). Nothing but the carry at a chain's end is done beside them: of eight limbs 8 IMAD.WIDE and 2 additions, of nine 9 and 1.
//
//   encode     coefficients of 32 bits. A thread has one word of R rows: it loads the word of each source once, coefficients are broadcast from shared
//              memory, 128 sources at a time; the next source's word is on its way meanwhile. One reduction at the end, by Barrett.
//   combine    coefficients of all bits: nine limbs of a coefficient are nine coefficients of 32 bits, so a row is nine sums, added up where they belong
//              at the end and reduced once, by Montgomery. A warp a row, 32 words; words and coefficients of 16 sources in shared memory.
//   fold       the same with three limbs: weighted sums of many blocks, for checking them. Warps share the sources.
//   invert     Gauss-Jordan in place, by panels of W columns, of all matrices at once: _begin, then _panel and _update for each panel, then _end. A panel is in
//              shared memory and has its pivots found and is eliminated alone, by a thread block, without dividing: every row but the pivot's becomes
//              pivot * row - factor * pivot row. What rows have been multiplied by meanwhile are products of pivots, and one inverse takes them away again.
//              What then stands in the panel is what every row takes of the pivots' rows, so each element behind is updated once for all W pivots: W
//              products, one reduction. A lane has a column, and in its registers what the pivots' rows have there. Elements are not brought below q but
//              where they come into a panel: each update adds less than q and a little, and limbs have 31 bits to spare. Pivots may be any rows. The matrix
//              is in device memory, limbs of one position side by side. Given words need no conversion: as Montgomery forms they are the matrix divided by R,
//              and the end's factor takes that into account.
//   _paper     a thread a codeword, sums of ten limbs and one division at the end; products in tiles of 16 x 16; step_* are Algorithm 1, a kernel a line,
//              and the host inverts pivots.
//
// Instructions of the inner loops, a thread: encode_8 111 for eight products of a source (64 IMAD.WIDE), encode_4 70, encode_2 47, encode_1 37; combine 108
// for a product of 9 by 9 limbs (81 IMAD.WIDE); fold 60 (27); invert_update_8 890 an element for eight pivots (729). Registers: 185, 118, 72, 48; 202; 98; 128. Nothing spills.
// Where sums were arrays of 32-bit words, the compiler moved them from register to register to have pairs, 2.6 moves a multiplication; as 64-bit words they
// stay. Limits on registers for a third or fifth thread block of encode_8 and encode_4 on a multiprocessor spill in the loop.
#include "nc_mp.cuh"

#define LIMBS NC_GFQ_LIMBS
#define LONG (2 * NC_GFQ_LIMBS)

namespace {

__device__ __forceinline__ nc_u32 swapped(nc_u32 word) { return __byte_perm(word, 0, 0x0123); }

// The eight lower limbs of a word.
__device__ __forceinline__ void limbs_of(nc_u32 *limbs, uint4 first, uint4 second) {
    limbs[7] = swapped(first.x), limbs[6] = swapped(first.y), limbs[5] = swapped(first.z), limbs[4] = swapped(first.w);
    limbs[3] = swapped(second.x), limbs[2] = swapped(second.y), limbs[1] = swapped(second.z), limbs[0] = swapped(second.w);
}

struct Row {
    const nc_u8 *bytes;
    nc_u32 words, tops;

    __device__ __forceinline__ nc_u32 top(nc_u32 k) const { return tops ? bytes[(nc_u64)32 * words + k / 8] >> (k & 7) & 1 : 0; }
    __device__ __forceinline__ void load(nc_u32 *limbs, nc_u32 k) const {
        const uint4 *at = reinterpret_cast<const uint4 *>(bytes) + 2 * k;
        limbs_of(limbs, __ldg(at), __ldg(at + 1));
        limbs[8] = top(k);
    }
};

// By a warp: lane i has word k of the row, where k of lane 0 is a multiple of 32.
__device__ __forceinline__ void store(nc_u8 *row, nc_u32 words, nc_u32 k, const nc_u32 *limbs) {
    const nc_u32 lane = threadIdx.x & 31, tops = __ballot_sync(~0u, k < words && limbs[8] != 0);
    if (k < words) {
        uint4 *at = reinterpret_cast<uint4 *>(row) + 2 * k;
        at[0] = make_uint4(swapped(limbs[7]), swapped(limbs[6]), swapped(limbs[5]), swapped(limbs[4]));
        at[1] = make_uint4(swapped(limbs[3]), swapped(limbs[2]), swapped(limbs[1]), swapped(limbs[0]));
    }
    const nc_u32 byte = (k - lane) / 8 + lane;
    if (lane < 4 && byte < (words + 7) / 8) row[(nc_u64)32 * words + byte] = (nc_u8)(tops >> 8 * lane);
}

// A sum of products of words of S limbs with one limb each, not reduced: in two parts, of the words' even limbs and of their odd ones, whose first word
// is at position 1. Fewer than 2^31 products.
template <int S> struct Sum {
    static constexpr int EVEN = (S + 1) / 2;
    nc_u64 even[EVEN], odd[4];
    nc_u32 even_top, odd_top; // the former where S is even

    __device__ __forceinline__ Sum() {
#pragma unroll
        for (int i = 0; i < EVEN; i++) even[i] = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) odd[i] = 0;
        even_top = odd_top = 0;
    }
    __device__ __forceinline__ void add(const nc_u32 *word, nc_u32 factor) {
        even[0] = nc_mad_wide_cc(word[0], factor, even[0]);
#pragma unroll
        for (int i = 1; i < EVEN; i++) even[i] = nc_madc_wide_cc(word[2 * i], factor, even[i]);
        if (S == 8) even_top = nc_addc(even_top, 0);
        odd[0] = nc_mad_wide_cc(word[1], factor, odd[0]);
#pragma unroll
        for (int i = 1; i < 4; i++) odd[i] = nc_madc_wide_cc(word[2 * i + 1], factor, odd[i]);
        odd_top = nc_addc(odd_top, 0);
    }
    // Ten limbs.
    __device__ __forceinline__ void total(nc_u32 *limbs) const {
        nc_u32 one[10], other[10];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            one[2 * i] = (nc_u32)even[i], one[2 * i + 1] = (nc_u32)(even[i] >> 32);
            other[2 * i + 1] = (nc_u32)odd[i], other[2 * i + 2] = (nc_u32)(odd[i] >> 32);
        }
        one[8] = S == 8 ? even_top : (nc_u32)even[EVEN - 1];
        one[9] = S == 8 ? 0 : (nc_u32)(even[EVEN - 1] >> 32);
        other[0] = 0;
        other[9] = odd_top;
        nc_mp_add<10>(limbs, one, other);
    }
};

// Ten limbs modulo q: Barrett, with a quotient that is too small by two at most.
__device__ __forceinline__ void reduce(nc_u32 *out, nc_u32 *limbs, const nc_gfq_field &field) {
    const nc_u64 top = (nc_u64)limbs[9] << 32 | limbs[8], ratio = (nc_u64)field.ratio_high << 32 | field.ratio_low;
    const nc_u64 quotient = __umul64hi(top, ratio);
    nc_u32 multiple[LIMBS + 2];
#pragma unroll
    for (int i = 0; i < LIMBS + 2; i++) multiple[i] = 0;
    nc_mp_add_row<LIMBS>(multiple, field.q, (nc_u32)quotient);
    nc_mp_add_row<LIMBS>(multiple + 1, field.q, (nc_u32)(quotient >> 32));
    nc_mp_subtract<LIMBS>(out, limbs, multiple);
    nc_mp_reduce_once<LIMBS>(out, 0, field.q);
    nc_mp_reduce_once<LIMBS>(out, 0, field.q);
}

// Sums of products with the limbs of D limbs' factors.
template <int D> struct Digits {
    Sum<LIMBS> sums[D];

    __device__ __forceinline__ void add(const nc_u32 *word, const nc_u32 *factor) {
#pragma unroll
        for (int i = 0; i < D; i++) sums[i].add(word, factor[i]);
    }
    // Modulo q.
    __device__ __forceinline__ void total(nc_u32 *out, const nc_gfq_field &field) const {
        nc_u32 t[LONG];
#pragma unroll
        for (int i = 0; i < LONG; i++) t[i] = 0;
#pragma unroll
        for (int i = 0; i < D; i++) {
            nc_u32 limbs[10];
            sums[i].total(limbs);
            t[i] = nc_add_cc(t[i], limbs[0]);
#pragma unroll
            for (int j = 1; j < 10; j++) t[i + j] = nc_addc_cc(t[i + j], limbs[j]);
            if (i + 10 < LONG) t[i + 10] = nc_addc(t[i + 10], 0);
        }
        nc_mont_reduce<LIMBS>(out, t, field.q, field.negated);
        nc_mont_multiply<LIMBS>(out, out, field.square, field.q, field.negated);
    }
};

struct Generation {
    const nc_u8 *source, *coefficients;
    nc_u8 *out;
    __device__ __forceinline__ explicit Generation(const nc_gfq_product &product)
        : source(reinterpret_cast<const nc_u8 *>(product.source) + blockIdx.z * product.source_step),
          coefficients(reinterpret_cast<const nc_u8 *>(product.coefficients) + blockIdx.z * product.coefficients_step),
          out(reinterpret_cast<nc_u8 *>(product.out) + blockIdx.z * product.out_step) {}
};

#define CHUNK 128 // sources whose coefficients are in shared memory at a time

template <int R> __device__ __forceinline__ void encode(const nc_gfq_product &product) {
    alignas(16) __shared__ nc_u32 factors[CHUNK][R];
    const Generation mine(product);
    const nc_u32 k = blockIdx.x * NC_GFQ_ENCODE_THREADS + threadIdx.x, first = blockIdx.y * R, n = product.n;
    const nc_u32 loaded = min(k, product.words - 1);
    const nc_u8 *at = mine.source + (nc_u64)32 * loaded;
    Sum<8> sums[R];
    uint4 high = __ldg(reinterpret_cast<const uint4 *>(at)), low = __ldg(reinterpret_cast<const uint4 *>(at) + 1);
    for (nc_u32 start = 0; start < n; start += CHUNK) {
        const nc_u32 count = min(n - start, (nc_u32)CHUNK);
        __syncthreads();
        for (nc_u32 i = threadIdx.x; i < count * R; i += NC_GFQ_ENCODE_THREADS) {
            const nc_u32 row = first + i % R;
            const nc_u8 *coefficients = mine.coefficients + (nc_u64)row * product.coefficients_pitch;
            factors[i / R][i % R] = row < product.rows ? __ldg(reinterpret_cast<const nc_u32 *>(coefficients) + start + i / R) : 0;
        }
        __syncthreads();
#pragma unroll 1
        for (nc_u32 i = 0; i < count; i++) {
            nc_u32 word[8], factor[R];
            limbs_of(word, high, low);
            if (start + i + 1 < n) {
                at += product.source_pitch;
                high = __ldg(reinterpret_cast<const uint4 *>(at));
                low = __ldg(reinterpret_cast<const uint4 *>(at) + 1);
            }
            if (R % 4 == 0) {
#pragma unroll
                for (int r = 0; r < R / 4; r++) {
                    const uint4 four = reinterpret_cast<const uint4 *>(factors[i])[r];
                    factor[4 * r] = four.x, factor[4 * r + 1] = four.y, factor[4 * r + 2] = four.z, factor[4 * r + 3] = four.w;
                }
            } else {
#pragma unroll
                for (int r = 0; r < R; r++) factor[r] = factors[i][r];
            }
#pragma unroll
            for (int r = 0; r < R; r++) sums[r].add(word, factor[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        nc_u32 limbs[10], out[LIMBS];
        sums[r].total(limbs);
        reduce(out, limbs, product.field);
        if (first + r < product.rows) store(mine.out + (nc_u64)(first + r) * product.out_pitch, product.words, k, out);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(NC_GFQ_ENCODE_THREADS) nc_gfq_encode_1(const nc_gfq_product product) { encode<1>(product); }
extern "C" __global__ void __launch_bounds__(NC_GFQ_ENCODE_THREADS) nc_gfq_encode_2(const nc_gfq_product product) { encode<2>(product); }
extern "C" __global__ void __launch_bounds__(NC_GFQ_ENCODE_THREADS) nc_gfq_encode_4(const nc_gfq_product product) { encode<4>(product); }
extern "C" __global__ void __launch_bounds__(NC_GFQ_ENCODE_THREADS) nc_gfq_encode_8(const nc_gfq_product product) { encode<8>(product); }

// A thread a codeword: a dot product whose sum is not reduced, and one division at the end (the paper, section 3.1 and Fig. 1).
extern "C" __global__ void __launch_bounds__(512) nc_gfq_encode_paper(const nc_gfq_product product) {
    const Generation mine(product);
    const nc_u32 k = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    const Row source = {mine.source, product.words, 0};
    const nc_u32 *coefficients = reinterpret_cast<const nc_u32 *>(mine.coefficients + (nc_u64)row * product.coefficients_pitch);
    nc_u32 sum[10];
#pragma unroll
    for (int i = 0; i < 10; i++) sum[i] = 0;
#pragma unroll 1
    for (nc_u32 i = 0; i < product.n; i++) {
        nc_u32 word[LIMBS];
        const Row one = {source.bytes + (nc_u64)i * product.source_pitch, product.words, 0};
        one.load(word, min(k, product.words - 1));
        nc_mp_add_row<LIMBS>(sum, word, coefficients[i]);
    }
    nc_u32 quotient[2];
    nc_mp_divide<10, LIMBS>(quotient, sum, product.field.q);
    store(mine.out + (nc_u64)row * product.out_pitch, product.words, k, sum);
}

#define TILE 16

// A thread an element of the product, with tiles of both factors in shared memory (the paper, section 3.2 and Fig. 2).
extern "C" __global__ void __launch_bounds__(TILE * TILE) nc_gfq_combine_paper(const nc_gfq_product product) {
    __shared__ nc_u32 factors[TILE][TILE][LIMBS], words[TILE][TILE][LIMBS];
    __shared__ nc_u8 tops[TILE][TILE];
    const Generation mine(product);
    const nc_u32 x = threadIdx.x % TILE, y = threadIdx.x / TILE, k = blockIdx.x * TILE + x, row = blockIdx.y * TILE + y;
    nc_u32 sum[LONG + 1];
#pragma unroll
    for (int i = 0; i <= LONG; i++) sum[i] = 0;
    for (nc_u32 start = 0; start < product.n; start += TILE) {
        __syncthreads();
        const Row coefficients = {mine.coefficients + (nc_u64)row * product.coefficients_pitch, product.n, 1};
        const Row source = {mine.source + (nc_u64)(start + y) * product.source_pitch, product.words, product.tops};
        nc_u32 limbs[LIMBS];
#pragma unroll
        for (int l = 0; l < LIMBS; l++) limbs[l] = 0;
        if (row < product.rows && start + x < product.n) coefficients.load(limbs, start + x);
        nc_mp_copy<LIMBS>(factors[y][x], limbs);
#pragma unroll
        for (int l = 0; l < LIMBS; l++) limbs[l] = 0;
        if (start + y < product.n && k < product.words) source.load(limbs, k);
        nc_mp_copy<LIMBS>(words[y][x], limbs);
        __syncthreads();
#pragma unroll 1
        for (nc_u32 i = 0; i < TILE; i++) {
            nc_u32 one[LONG];
            nc_mp_multiply<LIMBS>(one, factors[y][i], words[i][x]);
            sum[LONG] += nc_mp_add<LONG>(sum, sum, one);
        }
    }
    nc_u32 quotient[LONG + 2 - LIMBS];
    nc_mp_divide<LONG + 1, LIMBS>(quotient, sum, product.field.q);
    tops[y][x] = (nc_u8)sum[8];
    __syncthreads();
    if (row >= product.rows) return;
    nc_u8 *out = mine.out + (nc_u64)row * product.out_pitch;
    if (k < product.words) {
        uint4 *at = reinterpret_cast<uint4 *>(out) + 2 * k;
        at[0] = make_uint4(swapped(sum[7]), swapped(sum[6]), swapped(sum[5]), swapped(sum[4]));
        at[1] = make_uint4(swapped(sum[3]), swapped(sum[2]), swapped(sum[1]), swapped(sum[0]));
    }
    if (x % 8 == 0 && k < product.words) {
        nc_u32 byte = 0;
        for (nc_u32 i = 0; i < 8; i++)
            if (k + i < product.words) byte |= (nc_u32)tops[y][x + i] << i;
        out[(nc_u64)32 * product.words + k / 8] = (nc_u8)byte;
    }
}

#define STEP 16 // sources at a time
#define COMBINE_WARPS (NC_GFQ_COMBINE_THREADS / 32)

// A warp a row, a lane a word.
extern "C" __global__ void __launch_bounds__(NC_GFQ_COMBINE_THREADS, 2) nc_gfq_combine(const nc_gfq_product product) {
    alignas(16) __shared__ nc_u32 factors[COMBINE_WARPS][STEP][12], words[STEP][LIMBS][32];
    static_assert(COMBINE_WARPS == NC_GFQ_COMBINE_ROWS, "a warp a row");
    const Generation mine(product);
    const nc_u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, k = blockIdx.x * 32 + lane, row = blockIdx.y * COMBINE_WARPS + warp;
    Digits<LIMBS> sums;
    for (nc_u32 start = 0; start < product.n; start += STEP) {
        __syncthreads();
#pragma unroll 1
        for (nc_u32 i = warp; i < STEP; i += COMBINE_WARPS) {
            nc_u32 limbs[LIMBS];
#pragma unroll
            for (int l = 0; l < LIMBS; l++) limbs[l] = 0;
            if (start + i < product.n && k < product.words) {
                const Row source = {mine.source + (nc_u64)(start + i) * product.source_pitch, product.words, product.tops};
                source.load(limbs, k);
            }
#pragma unroll
            for (int l = 0; l < LIMBS; l++) words[i][l][lane] = limbs[l];
        }
        if (lane < STEP) {
            nc_u32 limbs[LIMBS];
#pragma unroll
            for (int l = 0; l < LIMBS; l++) limbs[l] = 0;
            if (row < product.rows && start + lane < product.n) {
                const Row coefficients = {mine.coefficients + (nc_u64)row * product.coefficients_pitch, product.n, 1};
                coefficients.load(limbs, start + lane);
            }
            nc_mp_copy<LIMBS>(factors[warp][lane], limbs);
        }
        __syncthreads();
#pragma unroll 1
        for (nc_u32 i = 0; i < STEP; i++) {
            nc_u32 word[LIMBS], factor[12];
#pragma unroll
            for (int l = 0; l < LIMBS; l++) word[l] = words[i][l][lane];
#pragma unroll
            for (int l = 0; l < 12; l += 4) {
                const uint4 four = *reinterpret_cast<const uint4 *>(factors[warp][i] + l);
                factor[l] = four.x, factor[l + 1] = four.y, factor[l + 2] = four.z, factor[l + 3] = four.w;
            }
            sums.add(word, factor);
        }
    }
    nc_u32 out[LIMBS];
    sums.total(out, product.field);
    if (row < product.rows) store(mine.out + (nc_u64)row * product.out_pitch, product.words, k, out);
}

#define FOLD_WARPS (NC_GFQ_FOLD_THREADS / 32)

// One row of all sources: a warp a part of them, a lane a word.
extern "C" __global__ void __launch_bounds__(NC_GFQ_FOLD_THREADS) nc_gfq_fold(const nc_gfq_product product) {
    __shared__ nc_u32 parts[FOLD_WARPS][LIMBS][32];
    const Generation mine(product);
    const nc_u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, k = blockIdx.x * 32 + lane;
    Digits<3> sums;
#pragma unroll 2
    for (nc_u32 i = warp; i < product.n; i += FOLD_WARPS) {
        nc_u32 word[LIMBS], weight[3];
        const Row source = {mine.source + (nc_u64)i * product.source_pitch, product.words, product.tops};
        source.load(word, min(k, product.words - 1));
        const uint4 four = __ldg(reinterpret_cast<const uint4 *>(mine.coefficients) + i);
        weight[0] = four.x, weight[1] = four.y, weight[2] = four.z;
        sums.add(word, weight);
    }
    nc_u32 out[LIMBS];
    sums.total(out, product.field);
#pragma unroll
    for (int l = 0; l < LIMBS; l++) parts[warp][l][lane] = out[l];
    __syncthreads();
    if (warp != 0) return;
#pragma unroll 1
    for (nc_u32 i = 1; i < FOLD_WARPS; i++) {
        nc_u32 other[LIMBS];
#pragma unroll
        for (int l = 0; l < LIMBS; l++) other[l] = parts[i][l][lane];
        nc_mp_mod_add<LIMBS>(out, out, other, product.field.q);
    }
    store(mine.out, product.words, k, out);
}

namespace {

// A matrix in device memory: limbs of one position of a row side by side.
struct Matrix {
    nc_u32 *words;
    nc_u32 across;

    __device__ __forceinline__ nc_u32 *at(nc_u32 row, nc_u32 column) const { return words + (nc_u64)row * LIMBS * across + column; }
    __device__ __forceinline__ void load(nc_u32 *limbs, nc_u32 row, nc_u32 column) const {
#pragma unroll
        for (int l = 0; l < LIMBS; l++) limbs[l] = at(row, column)[l * across];
    }
    __device__ __forceinline__ void store(nc_u32 row, nc_u32 column, const nc_u32 *limbs) const {
#pragma unroll
        for (int l = 0; l < LIMBS; l++) at(row, column)[l * across] = limbs[l];
    }
};

// W columns of all rows: W words of each limb. In shared memory, threads that have elements one behind the other meet no bank twice.
template <int W> struct Panel {
    nc_u32 *words;

    __device__ __forceinline__ nc_u32 *at(nc_u32 row, nc_u32 column) const { return words + row * (LIMBS * W) + column; }
    __device__ __forceinline__ void load(nc_u32 *limbs, nc_u32 row, nc_u32 column) const {
#pragma unroll
        for (int l = 0; l < LIMBS; l++) limbs[l] = at(row, column)[l * W];
    }
    __device__ __forceinline__ void store(nc_u32 row, nc_u32 column, const nc_u32 *limbs) const {
#pragma unroll
        for (int l = 0; l < LIMBS; l++) at(row, column)[l * W] = limbs[l];
    }
    // This limb of the row's W elements.
    __device__ __forceinline__ void limb(nc_u32 *out, nc_u32 row, nc_u32 l) const {
        const nc_u32 *first = words + row * (LIMBS * W) + l * W;
        if (W % 4 == 0) {
#pragma unroll
            for (int i = 0; i < W / 4; i++) {
                const uint4 four = reinterpret_cast<const uint4 *>(first)[i];
                out[4 * i] = four.x, out[4 * i + 1] = four.y, out[4 * i + 2] = four.z, out[4 * i + 3] = four.w;
            }
        } else {
#pragma unroll
            for (int i = 0; i < W; i++) out[i] = first[i];
        }
    }
};

// What is being inverted, in its place in `work`: the matrix, and behind it the pivots' rows as they were before a panel; the panel; the row of each
// pivot, by its column; and the column of each row's pivot, or ~0.
struct Inversion {
    Matrix matrix;
    nc_u32 *panel, *row_of, *column_of, *status;

    __device__ __forceinline__ Inversion(const nc_gfq_inversion &task, nc_u32 index) {
        const nc_u32 n = task.n, across = (n + 31) / 32 * 32;
        nc_u32 *work = reinterpret_cast<nc_u32 *>(task.work) + (nc_u64)index * (NC_GFQ_INVERT_WORK(n) / 4);
        matrix = {work, across};
        panel = matrix.at(n + NC_GFQ_INVERT_WIDTH, 0);
        row_of = panel + n * LIMBS * NC_GFQ_INVERT_WIDTH;
        column_of = row_of + n;
        status = reinterpret_cast<nc_u32 *>(task.status) + index;
    }
};

// What a panel's elimination shares.
template <int W> struct Eliminated {
    nc_u32 row[LIMBS][W];        // the pivot's, and in its own column what its row has been multiplied by
    nc_u32 pivot[LIMBS];
    nc_u32 scales[W + 1][LIMBS]; // the products of the pivots before each, and of all
    nc_u32 inverse[LIMBS];       // of the last of these
    nc_u32 rows[W];              // of the pivots
    nc_u32 elected;
};

} // namespace

extern "C" __global__ void __launch_bounds__(NC_GFQ_STEP_THREADS) nc_gfq_invert_begin(const nc_gfq_inversion task) {
    const Inversion inversion(task, blockIdx.y);
    const nc_u32 n = task.n, across = inversion.matrix.across, i = blockIdx.x * NC_GFQ_STEP_THREADS + threadIdx.x;
    const nc_u8 *given = reinterpret_cast<const nc_u8 *>(task.matrices) + blockIdx.y * task.matrices_step;
    if (i == 0) *inversion.status = 1;
    if (i < n) inversion.column_of[i] = ~0u;
    if (i >= n * across) return;
    nc_u32 limbs[LIMBS];
#pragma unroll
    for (int l = 0; l < LIMBS; l++) limbs[l] = 0;
    const Row row = {given + (nc_u64)(i / across) * task.matrices_pitch, n, 1};
    if (i % across < n) row.load(limbs, i % across);
    inversion.matrix.store(i / across, i % across, limbs);
}

namespace {

// A matrix a thread block: eliminates the panel that begins at task.first, alone.
template <int W> __device__ __forceinline__ void invert_panel(const nc_gfq_inversion &task) {
    extern __shared__ __align__(16) nc_u32 nc_dynamic[];
    __shared__ Eliminated<W> shared;
    const Inversion inversion(task, blockIdx.x);
    if (*inversion.status == 0) return;
    const Matrix &matrix = inversion.matrix;
    const nc_gfq_field &field = task.field;
    const nc_u32 n = task.n, k = task.first, count = min(n - k, (nc_u32)W), lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const Panel<W> panel = {nc_dynamic}, out = {inversion.panel};
    nc_u32 *const column_of = nc_dynamic + LIMBS * W * n;
#pragma unroll 1
    for (nc_u32 i = threadIdx.x; i < n * W; i += NC_GFQ_INVERT_THREADS) {
        nc_u32 limbs[LIMBS + 1];
#pragma unroll
        for (int l = 0; l <= LIMBS; l++) limbs[l] = 0;
        if (i % W < count) matrix.load(limbs, i / W, k + i % W);
        reduce(limbs, limbs, field);
        panel.store(i / W, i % W, limbs);
    }
    for (nc_u32 i = threadIdx.x; i < n; i += NC_GFQ_INVERT_THREADS) column_of[i] = inversion.column_of[i];
    if (threadIdx.x < LIMBS) shared.scales[0][threadIdx.x] = field.one[threadIdx.x];
    if (threadIdx.x == 0) shared.elected = ~0u;
    __syncthreads();
#pragma unroll 1
    for (nc_u32 c = 0; c < count; c++) {
        for (nc_u32 row = threadIdx.x; row < n; row += NC_GFQ_INVERT_THREADS) {
            nc_u32 limbs[LIMBS];
            panel.load(limbs, row, c);
            if (column_of[row] == ~0u && !nc_mp_is_zero<LIMBS>(limbs)) atomicMin(&shared.elected, row);
        }
        __syncthreads();
        const nc_u32 pivot_row = shared.elected;
        if (pivot_row == ~0u) {
            if (threadIdx.x == 0) *inversion.status = 0;
            return;
        }
        if (threadIdx.x < LIMBS * W) {
            const nc_u32 l = threadIdx.x / W, column = threadIdx.x % W, limb = panel.at(pivot_row, column)[l * W];
            shared.row[l][column] = column == c ? shared.scales[c][l] : limb;
            if (column == c) shared.pivot[l] = limb;
        }
        __syncthreads();
        nc_u32 pivot[LIMBS];
        nc_mp_copy<LIMBS>(pivot, shared.pivot);
        if (threadIdx.x == NC_GFQ_INVERT_THREADS - 1) {
            shared.rows[c] = inversion.row_of[k + c] = pivot_row;
            column_of[pivot_row] = inversion.column_of[pivot_row] = k + c;
            shared.elected = ~0u;
            nc_u32 scale[LIMBS];
            nc_mont_multiply<LIMBS>(scale, shared.scales[c], pivot, field.q, field.negated);
            nc_mp_copy<LIMBS>(shared.scales[c + 1], scale);
        }
#pragma unroll 1
        for (nc_u32 start = 32 * warp; start < n * W; start += NC_GFQ_INVERT_THREADS) {
            const nc_u32 row = (start + lane) / W, column = (start + lane) % W;
            nc_u32 limbs[LIMBS], factor[LIMBS], above[LIMBS];
#pragma unroll
            for (int l = 0; l < LIMBS; l++) limbs[l] = factor[l] = 0;
            if (row < n) {
                if (column != c) panel.load(limbs, row, column);
                panel.load(factor, row, c);
            }
            __syncwarp(); // elements of a row are in one warp, whose factor is one of them
            if (!nc_mp_is_zero<LIMBS>(factor)) nc_mp_subtract<LIMBS>(factor, field.q, factor);
#pragma unroll
            for (int l = 0; l < LIMBS; l++) above[l] = shared.row[l][column];
            nc_mont_sum<LIMBS>(limbs, limbs, pivot, above, factor, field.q, field.negated);
            nc_mp_copy_if<LIMBS>(row == pivot_row, limbs, above);
            if (row < n) panel.store(row, column, limbs);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        nc_u32 inverse[LIMBS];
        nc_mp_copy<LIMBS>(inverse, shared.scales[count]);
        nc_mp_inverse<LIMBS>(inverse, inverse, field.q);
        nc_mont_multiply<LIMBS>(inverse, inverse, field.square, field.q, field.negated);
        nc_mont_multiply<LIMBS>(inverse, inverse, field.square, field.q, field.negated);
        nc_mp_copy<LIMBS>(shared.inverse, inverse);
    }
#pragma unroll 1
    for (nc_u32 i = threadIdx.x; i < W * matrix.across; i += NC_GFQ_INVERT_THREADS) {
        nc_u32 limbs[LIMBS];
#pragma unroll
        for (int l = 0; l < LIMBS; l++) limbs[l] = 0;
        if (i / matrix.across < count) matrix.load(limbs, shared.rows[i / matrix.across], i % matrix.across);
        matrix.store(n + i / matrix.across, i % matrix.across, limbs);
    }
    __syncthreads();
    if (threadIdx.x < count) {
        nc_u32 scale[LIMBS];
        nc_mont_multiply<LIMBS>(scale, shared.scales[threadIdx.x], shared.inverse, field.q, field.negated);
        nc_mp_copy<LIMBS>(shared.scales[threadIdx.x], scale);
    }
    __syncthreads();
#pragma unroll 1
    for (nc_u32 i = threadIdx.x; i < n * W; i += NC_GFQ_INVERT_THREADS) {
        const nc_u32 row = i / W, column = i % W, pivot = column_of[row] - k;
        nc_u32 limbs[LIMBS], scale[LIMBS];
        panel.load(limbs, row, column);
        nc_mp_copy<LIMBS>(scale, pivot < count ? shared.scales[pivot] : shared.inverse);
        nc_mont_multiply<LIMBS>(limbs, limbs, scale, field.q, field.negated);
        out.store(row, column, limbs);
        if (column < count) matrix.store(row, k + column, limbs);
    }
}

// The sum of W products, divided by R; not reduced.
template <int W>
__device__ __forceinline__ void sum_of_products(nc_u32 *out, const nc_u32 (*above)[LIMBS], const Panel<W> &panel, nc_u32 row, const nc_gfq_field &field) {
    nc_mont<LIMBS> sums;
    nc_mont_begin(sums);
#pragma unroll
    for (int i = 0; i < LIMBS; i++) {
        nc_u64 *even = i & 1 ? sums.odd : sums.even, *odd = i & 1 ? sums.even : sums.odd;
        nc_u32 factor[W];
        panel.limb(factor, row, i);
        nc_mont_next<LIMBS>(even, odd, sums.top, above[0], factor[0]);
#pragma unroll
        for (int j = 1; j < W; j++) nc_mont_add<LIMBS>(even, odd, sums.top, above[j], factor[j]);
        nc_mont_clear<LIMBS>(even, odd, sums.top, field.q, field.negated);
    }
    nc_mont_total<LIMBS>(out, sums.even, sums.odd);
}

// The columns that are not in the panel: a warp 32 of them, and every so many rows.
template <int W> __device__ __forceinline__ void invert_update(const nc_gfq_inversion &task) {
    const Inversion inversion(task, blockIdx.y);
    if (*inversion.status == 0) return;
    const Matrix &matrix = inversion.matrix;
    const Panel<W> panel = {inversion.panel};
    const nc_u32 n = task.n, k = task.first, count = min(n - k, (nc_u32)W), warps = NC_GFQ_UPDATE_THREADS / 32 * task.parts;
    const nc_u32 column = blockIdx.x / task.parts * 32 + (threadIdx.x & 31);
    nc_u32 above[W][LIMBS];
#pragma unroll
    for (int j = 0; j < W; j++) matrix.load(above[j], n + j, column);
#pragma unroll 1
    for (nc_u32 row = blockIdx.x % task.parts * (NC_GFQ_UPDATE_THREADS / 32) + threadIdx.x / 32; row < n; row += warps) {
        nc_u32 limbs[LIMBS], before[LIMBS];
#pragma unroll
        for (int l = 0; l < LIMBS; l++) before[l] = 0;
        if (inversion.column_of[row] - k >= count) matrix.load(before, row, column);
        sum_of_products<W>(limbs, above, panel, row, task.field);
        nc_mp_add<LIMBS>(limbs, limbs, before);
        if (column - k >= count) matrix.store(row, column, limbs);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(NC_GFQ_INVERT_THREADS) nc_gfq_invert_panel_8(const nc_gfq_inversion task) { invert_panel<8>(task); }
extern "C" __global__ void __launch_bounds__(NC_GFQ_INVERT_THREADS) nc_gfq_invert_panel_4(const nc_gfq_inversion task) { invert_panel<4>(task); }
extern "C" __global__ void __launch_bounds__(NC_GFQ_INVERT_THREADS) nc_gfq_invert_panel_2(const nc_gfq_inversion task) { invert_panel<2>(task); }
extern "C" __global__ void __launch_bounds__(NC_GFQ_UPDATE_THREADS, 4) nc_gfq_invert_update_8(const nc_gfq_inversion task) { invert_update<8>(task); }
extern "C" __global__ void __launch_bounds__(NC_GFQ_UPDATE_THREADS, 4) nc_gfq_invert_update_4(const nc_gfq_inversion task) { invert_update<4>(task); }
extern "C" __global__ void __launch_bounds__(NC_GFQ_UPDATE_THREADS, 4) nc_gfq_invert_update_2(const nc_gfq_inversion task) { invert_update<2>(task); }

// A warp a row.
extern "C" __global__ void __launch_bounds__(NC_GFQ_STEP_THREADS) nc_gfq_invert_end(const nc_gfq_inversion task) {
    const Inversion inversion(task, blockIdx.y);
    const nc_u32 n = task.n, k = blockIdx.x * (NC_GFQ_STEP_THREADS / 32) + threadIdx.x / 32;
    if (*inversion.status == 0 || k >= n) return;
    nc_u32 one[LIMBS], scale[LIMBS];
#pragma unroll
    for (int l = 0; l < LIMBS; l++) one[l] = l == 0;
    nc_mont_multiply<LIMBS>(scale, one, one, task.field.q, task.field.negated);
    nc_u8 *const inverse = reinterpret_cast<nc_u8 *>(task.inverses) + blockIdx.y * task.inverses_step;
    const nc_u32 row = inversion.row_of[k];
#pragma unroll 1
    for (nc_u32 column = threadIdx.x & 31; column < inversion.matrix.across; column += 32) {
        nc_u32 limbs[LIMBS];
#pragma unroll
        for (int l = 0; l < LIMBS; l++) limbs[l] = 0;
        if (column < n) inversion.matrix.load(limbs, row, inversion.column_of[column]);
        nc_mont_multiply<LIMBS>(limbs, limbs, scale, task.field.q, task.field.negated);
        store(inverse + (nc_u64)k * task.inverses_pitch, n, column, limbs);
    }
}

// Algorithm 1 of the paper, a kernel a step; the host looks for pivots and inverts them. Line 8's M[r, r], and what line 12 takes of each row:
extern "C" __global__ void __launch_bounds__(NC_GFQ_STEP_THREADS) nc_gfq_step_column(const nc_gfq_step step) {
    const nc_u32 row = blockIdx.x * NC_GFQ_STEP_THREADS + threadIdx.x;
    if (row >= step.n) return;
    const Matrix matrix = {reinterpret_cast<nc_u32 *>(step.extended), 2 * step.n};
    nc_u32 limbs[LIMBS];
    matrix.load(limbs, row, step.lead);
    nc_mp_copy<LIMBS>(reinterpret_cast<nc_u32 *>(step.column) + LIMBS * row, limbs);
}

// Line 7.
extern "C" __global__ void __launch_bounds__(NC_GFQ_STEP_THREADS) nc_gfq_step_swap(const nc_gfq_step step) {
    const nc_u32 column = blockIdx.x * NC_GFQ_STEP_THREADS + threadIdx.x;
    if (column >= 2 * step.n) return;
    const Matrix matrix = {reinterpret_cast<nc_u32 *>(step.extended), 2 * step.n};
    nc_u32 one[LIMBS], other[LIMBS];
    matrix.load(one, step.row, column);
    matrix.load(other, step.other, column);
    matrix.store(step.row, column, other);
    matrix.store(step.other, column, one);
}

// Line 9.
extern "C" __global__ void __launch_bounds__(NC_GFQ_STEP_THREADS) nc_gfq_step_scale(const nc_gfq_step step) {
    const nc_u32 column = blockIdx.x * NC_GFQ_STEP_THREADS + threadIdx.x;
    if (column >= 2 * step.n) return;
    const Matrix matrix = {reinterpret_cast<nc_u32 *>(step.extended), 2 * step.n};
    nc_u32 limbs[LIMBS];
    matrix.load(limbs, step.row, column);
    nc_mont_multiply<LIMBS>(limbs, limbs, step.factor, step.field.q, step.field.negated);
    matrix.store(step.row, column, limbs);
}

// Lines 11 to 13, with the column as it was before.
extern "C" __global__ void __launch_bounds__(NC_GFQ_STEP_THREADS) nc_gfq_step_subtract(const nc_gfq_step step) {
    const nc_u32 column = blockIdx.x * NC_GFQ_STEP_THREADS + threadIdx.x, row = blockIdx.y;
    if (column >= 2 * step.n || row == step.row) return;
    const Matrix matrix = {reinterpret_cast<nc_u32 *>(step.extended), 2 * step.n};
    nc_u32 factor[LIMBS], limbs[LIMBS], above[LIMBS];
    nc_mp_copy<LIMBS>(factor, reinterpret_cast<const nc_u32 *>(step.column) + LIMBS * row);
    nc_mont_multiply<LIMBS>(factor, factor, step.field.square, step.field.q, step.field.negated);
    matrix.load(above, step.row, column);
    nc_mont_multiply<LIMBS>(above, above, factor, step.field.q, step.field.negated);
    matrix.load(limbs, row, column);
    nc_mp_mod_subtract<LIMBS>(limbs, limbs, above, step.field.q);
    matrix.store(row, column, limbs);
}
