// Inversion of large matrices over GF(2^8) by all of a card, and products of large matrices: what decoding RaptorQ by dense matrices takes.
//
// Idea. That of invert.cu, with a launch for each step in the place of a barrier, so that every multiprocessor works on one matrix: Gauss-Jordan
// elimination in place, 32 pivots at a time, rows and columns in their places at the end. The matrix stays in device memory; up to an order of
// 6,000 that is the second-level cache of a large card. Several matrices of one order are worked on side by side (blockIdx.y).
//
//     nc_wide_begin       the matrix into memory of its own, padded to a multiple of 32 with the identity, which changes nothing else
//     for each panel of 32 columns, P the 32 x 32 bytes that its pivot rows have there:
//         nc_wide_factor  one thread block: looks among the rows that have not been pivots for 32 that are independent in the panel, a row a
//                         thread, and takes as many as it must: of a random matrix the first 32 or so, of a sparse one all. None left:
//                         singular, status 0, and all that follows does nothing. One warp then inverts P, a row a lane.
//         nc_wide_panel   every row's 32 bytes of the panel are put aside as its factors, those of pivot rows replaced by unit vectors; the pivot
//                         rows times P^-1, and P^-1 itself in the panel's place, become the tensor cores' operands
//         nc_wide_update  every row in every column: what was there (nothing for pivot rows, nothing in the panel) + its factors times the operands
//     nc_wide_arrange     rows and columns to their places, into the inverse
//
// Pivots may be any rows, so sparse matrices and zeros on the diagonal need nothing else. The basis that nc_wide_factor builds has rows that are
// zero in the leading columns of those before them; a row is reduced by them in their order.
//
// Layout. Work: padded rows of padded bytes. Factors: 32 bytes a row. Operands: for every 32 columns two times 32 lanes of 16 bytes, as `update` of
// invert.cu has them. A warp of nc_wide_update has two groups of four rows, whose factors it expands once, and goes along the columns. nc_wide_multiply
// makes 64 rows x 128 columns a thread block, 32 sources at a time, whose operands four of its warps bring to shared memory, twice: while one half is
// read, the other is written.
//
// Limits by accounting: n^3 products, of which `update` of invert.cu makes 4096 in 116 cycles of a quarter of a multiprocessor: 2.7 ms at n = 4,400 on 132
// at 1.76 GHz. The factoring of a panel is a chain of 32 steps with two barriers each and then of 32 steps of a warp, about 15 us, and three launches; 2 ms
// in all at that order, and nearly all of the time below 2,000. An H200 takes 50 us a panel. Registers: factor 40, panel 46, update 116, multiply 110; no spills.
#include "nc_bits.cuh"

#define PANEL NC_WIDE_PANEL
#define THREADS NC_WIDE_THREADS
#define WARPS (NC_WIDE_THREADS / 32)

static_assert(NC_WIDE_ROWS == 8 * WARPS, "two groups of four rows a warp");

// A row's bytes in the panel.
struct Part { uint4 low, high; };

__device__ __forceinline__ Part nothing() { return {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)}; }
__device__ __forceinline__ Part load_part(const nc_u8 *at) {
    return {*reinterpret_cast<const uint4 *>(at), *reinterpret_cast<const uint4 *>(at + 16)};
}
__device__ __forceinline__ void store_part(nc_u8 *at, Part part) {
    *reinterpret_cast<uint4 *>(at) = part.low;
    *reinterpret_cast<uint4 *>(at + 16) = part.high;
}
__device__ __forceinline__ nc_u32 any(Part part) {
    return part.low.x | part.low.y | part.low.z | part.low.w | part.high.x | part.high.y | part.high.z | part.high.w;
}
__device__ __forceinline__ nc_u32 word_of(Part part, nc_u32 index) {
    const uint4 half = index < 4 ? part.low : part.high;
    const nc_u32 first = index & 1 ? half.y : half.x, second = index & 1 ? half.w : half.z;
    return index & 2 ? second : first;
}
__device__ __forceinline__ nc_u32 byte_of(Part part, nc_u32 index) { return word_of(part, index / 4) >> 8 * (index & 3) & 255; }

// The first byte that is not zero; there is one.
__device__ __forceinline__ nc_u32 leading_byte(Part part) {
    nc_u32 index = 0;
    while (word_of(part, index) == 0) index++;
    return 4 * index + (__ffs(word_of(part, index)) - 1) / 8;
}

__device__ __forceinline__ void add_product(Part &sum, Part other, uint4 eights, nc_u32 four) {
    add_product(sum.low.x, sum.low.y, other.low.x, other.low.y, eights, four);
    add_product(sum.low.z, sum.low.w, other.low.z, other.low.w, eights, four);
    add_product(sum.high.x, sum.high.y, other.high.x, other.high.y, eights, four);
    add_product(sum.high.z, sum.high.w, other.high.z, other.high.w, eights, four);
}

__device__ __forceinline__ uint4 from_lane(uint4 row, nc_u32 lane) {
    return make_uint4(__shfl_sync(~0u, row.x, lane), __shfl_sync(~0u, row.y, lane), __shfl_sync(~0u, row.z, lane), __shfl_sync(~0u, row.w, lane));
}
__device__ __forceinline__ Part from_lane(Part part, nc_u32 lane) { return {from_lane(part.low, lane), from_lane(part.high, lane)}; }

__device__ __forceinline__ nc_u32 padded_of(nc_u32 n) { return (n + PANEL - 1) / PANEL * PANEL; }

// What a launch has of the matrix that this thread block works on.
struct Mine {
    nc_u8 *work, *factors, *pivots, *found;
    nc_u16 *order, *column_of;
    nc_u32 *status;
    nc_u32 padded;
};
__device__ __forceinline__ Mine mine_of(const nc_wide &wide) {
    const nc_u32 padded = padded_of(wide.n);
    const nc_u64 which = blockIdx.y;
    return {
        reinterpret_cast<nc_u8 *>(wide.work) + which * padded * padded,
        reinterpret_cast<nc_u8 *>(wide.factors) + which * padded * PANEL,
        reinterpret_cast<nc_u8 *>(wide.pivots) + which * padded * PANEL,
        reinterpret_cast<nc_u8 *>(wide.found) + which * PANEL * PANEL,
        reinterpret_cast<nc_u16 *>(wide.order) + which * padded,
        reinterpret_cast<nc_u16 *>(wide.column_of) + which * padded,
        reinterpret_cast<nc_u32 *>(wide.status) + which,
        padded,
    };
}

// Four bytes of a row of the matrix as it was given, those behind n as of the identity.
__device__ __forceinline__ nc_u32 given(const nc_u8 *matrix, nc_u32 n, nc_u32 pitch, nc_u32 row, nc_u32 column) {
    if (row >= n) return column == (row & ~3u) ? 1u << 8 * (row & 3) : 0;
    if (column >= n) return 0;
    const nc_u32 word = *reinterpret_cast<const nc_u32 *>(matrix + (nc_u64)row * pitch + column), left = n - column;
    return left >= 4 ? word : word & ((1u << 8 * left) - 1);
}

extern "C" __global__ void __launch_bounds__(NC_WIDE_THREADS)
nc_wide_begin(const nc_wide wide) {
    const Mine mine = mine_of(wide);
    const nc_u8 *matrix = reinterpret_cast<const nc_u8 *>(wide.matrices) + (nc_u64)blockIdx.y * wide.n * wide.pitch;
    const nc_u32 at = blockIdx.x * THREADS + threadIdx.x, all = gridDim.x * THREADS, across = mine.padded / 4;
    for (nc_u32 i = at; i < mine.padded * across; i += all)
        reinterpret_cast<nc_u32 *>(mine.work)[i] = given(matrix, wide.n, wide.pitch, i / across, i % across * 4);
    for (nc_u32 i = at; i < mine.padded; i += all) {
        mine.order[i] = (nc_u16)i;
        mine.column_of[i] = 0xFFFF;
    }
    if (at == 0) *mine.status = 1;
}

// What factoring keeps beside the matrix.
struct Factoring {
    alignas(16) nc_u8 basis[PANEL * PANEL];
    uint4 eights[256];
    nc_u32 fours[256];
    nc_u8 log[256];
    nc_u16 place[PANEL];  // in `order`, counted from those that have not been pivots: ascending
    nc_u16 moved[PANEL];
    nc_u16 is_found[PANEL];
    nc_u32 leading;
    nc_u32 elected[2];
};

// sum += factor * other, the factor by its logarithm, 255 for zero
__device__ __forceinline__ void add_multiple(const Factoring &shared, Part &sum, nc_u32 log, Part other) {
    add_product(sum, other, shared.eights[log], shared.fours[log]);
}

// Finds 32 rows among those from `used` on whose bytes in the panel are independent; false if there are none. By all threads.
__device__ __forceinline__ bool find_rows(const Mine &mine, Factoring &shared, nc_u32 used) {
    const nc_u32 lane = threadIdx.x & 31;
    nc_u32 leadings[PANEL / 4]; // of the basis, four a word; the same in all threads
#pragma unroll
    for (nc_u32 i = 0; i < PANEL / 4; i++) leadings[i] = 0;
    nc_u32 count = 0, turn = 0;
    for (nc_u32 start = used; start < mine.padded; start += THREADS) {
        const nc_u32 place = start + threadIdx.x;
        Part part = nothing();
        if (place < mine.padded) part = load_part(mine.work + (nc_u64)mine.order[place] * mine.padded + used);
#pragma unroll
        for (nc_u32 b = 0; b < PANEL; b++) {
            if (b >= count) break;
            add_multiple(shared, part, shared.log[byte_of(part, leadings[b / 4] >> 8 * (b % 4) & 255)], load_part(shared.basis + b * PANEL));
        }
        for (;;) {
            const nc_u32 candidates = __ballot_sync(~0u, any(part) != 0);
            if (lane == 0 && candidates) atomicMin(&shared.elected[turn], threadIdx.x + __ffs(candidates) - 1);
            __syncthreads();
            const nc_u32 elected = shared.elected[turn];
            if (elected == ~0u) {
                __syncthreads(); // nobody votes on the next rows before everyone has seen that these are done
                break;
            }
            if (threadIdx.x == elected) {
                const nc_u32 leading = leading_byte(part), log = shared.log[byte_of(part, leading)];
                Part scaled = nothing();
                add_multiple(shared, scaled, log ? 255 - log : 0, part);
                store_part(shared.basis + count * PANEL, scaled);
                shared.place[count] = (nc_u16)(place - used);
                shared.leading = leading;
                shared.elected[turn ^ 1] = ~0u;
            }
            __syncthreads();
            const nc_u32 leading = shared.leading;
            add_multiple(shared, part, shared.log[byte_of(part, leading)], load_part(shared.basis + count * PANEL));
#pragma unroll
            for (nc_u32 i = 0; i < PANEL / 4; i++)
                if (i == count / 4) leadings[i] |= leading << 8 * (count % 4);
            turn ^= 1;
            if (++count == PANEL) return true;
        }
    }
    return false;
}

// Inverts what these rows have in the panel, lane j ending with row j of it and with the row that is the pivot of column j. They are
// independent. By one warp.
__device__ __forceinline__ void invert_pivots(const Factoring &shared, Part &part, nc_u32 &row) {
    const nc_u32 lane = threadIdx.x & 31;
#pragma unroll 1
    for (nc_u32 four = 0; four < PANEL; four += 4) {
#pragma unroll
        for (nc_u32 i = 0; i < 4; i++) {
            const nc_u32 j = four + i, shift = 8 * i;
            const nc_u32 candidates = __ballot_sync(~0u, lane >= j && (part.low.x >> shift & 255) != 0);
            const nc_u32 source = __ffs(candidates) - 1, from = lane == j ? source : lane == source ? j : lane;
            part = from_lane(part, from);
            row = __shfl_sync(~0u, row, from);
            const nc_u32 log = shared.log[part.low.x >> shift & 255], log_divisor = __shfl_sync(~0u, log, j);
            const nc_u32 own = lane == j ? 0 : log;
            const nc_u32 quotient = own == 255 ? 255 : own >= log_divisor ? own - log_divisor : own + 255 - log_divisor;
            Part pivot = from_lane(part, j);
            pivot.low.x = (pivot.low.x & ~(255u << shift)) | 1u << shift;
            if (lane == j) part = nothing();
            part.low.x &= ~(255u << shift);
            add_multiple(shared, part, quotient, pivot);
        }
        const nc_u32 word = part.low.x;
        part.low = make_uint4(part.low.y, part.low.z, part.low.w, part.high.x);
        part.high = make_uint4(part.high.y, part.high.z, part.high.w, word);
    }
}

extern "C" __global__ void __launch_bounds__(NC_WIDE_THREADS)
nc_wide_factor(const nc_wide wide, const nc_tables *tables) {
    __shared__ Factoring shared;
    const Mine mine = mine_of(wide);
    const nc_u32 used = wide.first, lane = threadIdx.x & 31;
    if (*mine.status == 0) return;
    for (nc_u32 i = threadIdx.x; i < 256; i += THREADS) {
        multiples(tables, i, shared.eights[i], shared.fours[i]);
        shared.log[i] = tables->log[i];
    }
    if (threadIdx.x < 2) shared.elected[threadIdx.x] = ~0u;
    __syncthreads();
    if (!find_rows(mine, shared, used)) {
        if (threadIdx.x == 0) *mine.status = 0;
        return;
    }
    __syncthreads();
    if (threadIdx.x >= 32) return;
    const nc_u32 place = shared.place[lane], first_row = mine.order[used + lane];
    nc_u32 row = mine.order[used + place];
    // Rows at the front that are not pivots go to the places of the pivots that were not at the front, both in their order.
    shared.is_found[lane] = 0;
    __syncwarp();
    if (place < PANEL) shared.is_found[place] = 1;
    __syncwarp();
    const nc_u32 stays = shared.is_found[lane], below = (1u << lane) - 1;
    const nc_u32 movers = __ballot_sync(~0u, !stays), holes = __ballot_sync(~0u, place >= PANEL);
    if (!stays) shared.moved[__popc(movers & below)] = (nc_u16)first_row;
    __syncwarp();
    if (place >= PANEL) mine.order[used + place] = shared.moved[__popc(holes & below)];
    Part part = load_part(mine.work + (nc_u64)row * mine.padded + used);
    invert_pivots(shared, part, row);
    store_part(mine.found + lane * PANEL, part);
    mine.order[used + lane] = (nc_u16)row;
    mine.column_of[row] = (nc_u16)(used + lane);
}

// The tables that `expand` reads, and numbers that the compiler is not to know: it would shift and add on the busier pipe.
struct Bits {
    uint4 powers;
    nc_u32 rows_of[2][256];
};
__device__ __forceinline__ void fill(Bits &bits, const nc_tables *tables) {
    for (nc_u32 i = threadIdx.x; i < 512; i += THREADS) bits.rows_of[i >> 8][i & 255] = bit_rows(tables->bits[i & 255], i >> 8);
    if (threadIdx.x == 0) bits.powers = make_uint4(65536, 2, 4, 16);
    __syncthreads();
}

// Factors of four rows by 32 sources, as B operands.
struct Factors { nc_u32 low[4], high[4]; };
__device__ __forceinline__ void expand(const Bits &bits, nc_u32 low, nc_u32 high, Factors &out) {
    const nc_u32 parity = threadIdx.x >> 2 & 1;
    expand(bits.rows_of, parity, low, out.low);
    expand(bits.rows_of, parity, high, out.high);
}

// 32 rows by 32 columns, as A operands.
struct Operand { uint4 a, c; };
// `word(source)` has what source row `source` has in the four columns from 4 * g on.
template <class Word> __device__ __forceinline__ Operand operand_of(Word word) {
    const nc_u32 q = threadIdx.x & 3;
    nc_u32 low[4], high[4];
    transpose(word(4 * q), word(4 * q + 1), word(4 * q + 2), word(4 * q + 3), low);
    transpose(word(16 + 4 * q), word(16 + 4 * q + 1), word(16 + 4 * q + 2), word(16 + 4 * q + 3), high);
    return {make_uint4(low[0], low[1], high[0], high[1]), make_uint4(low[2], low[3], high[2], high[3])};
}
__device__ __forceinline__ nc_u32 begin_and_finish(Counts &next, Operand operand, const Factors &factors, const Counts &last, uint4 powers) {
    return begin_and_finish(next, operand.a, operand.c, factors.low, factors.high, last, powers);
}
__device__ __forceinline__ void begin(Counts &next, Operand operand, const Factors &factors) {
#pragma unroll
    for (int s = 0; s < 4; s++) {
        multiply(next.d[s], operand.a, factors.low[s], factors.high[s]);
        multiply(next.e[s], operand.c, factors.low[s], factors.high[s]);
    }
}

extern "C" __global__ void __launch_bounds__(NC_WIDE_THREADS)
nc_wide_panel(const nc_wide wide, const nc_tables *tables) {
    __shared__ Bits bits;
    __shared__ alignas(16) nc_u8 made[WARPS][PANEL * PANEL];
    const Mine mine = mine_of(wide);
    const nc_u32 lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, warp = threadIdx.x / 32, first = wide.first;
    if (*mine.status == 0) return;
    fill(bits, tables);
    const nc_u32 row = blockIdx.x * THREADS + threadIdx.x;
    if (row < mine.padded) {
        const nc_u32 slot = mine.column_of[row] - first;
        Part part = load_part(mine.work + (nc_u64)row * mine.padded + first);
        if (slot < PANEL) {
            nc_u32 unit[8];
#pragma unroll
            for (nc_u32 i = 0; i < 8; i++) unit[i] = i == slot / 4 ? 1u << 8 * (slot & 3) : 0;
            part = {make_uint4(unit[0], unit[1], unit[2], unit[3]), make_uint4(unit[4], unit[5], unit[6], unit[7])};
        }
        store_part(mine.factors + (nc_u64)row * PANEL, part);
    }
    const nc_u32 column = (blockIdx.x * WARPS + warp) * PANEL;
    if (column >= mine.padded) return;
    uint4 *out = reinterpret_cast<uint4 *>(mine.pivots + (nc_u64)column * PANEL);
    const auto of_found = [&](nc_u32 source) { return *reinterpret_cast<const nc_u32 *>(mine.found + source * PANEL + 4 * g); };
    Operand operand;
    if (column == first) operand = operand_of(of_found);
    else {
        const nc_u8 *work = mine.work + column + 4 * g;
        const nc_u16 *order = mine.order + first;
        const Operand pivots = operand_of([&](nc_u32 source) { return *reinterpret_cast<const nc_u32 *>(work + (nc_u64)order[source] * mine.padded); });
        const uint4 powers = bits.powers;
        Counts last;
#pragma unroll
        for (nc_u32 s = 0; s <= PANEL / 4; s++) {
            const nc_u32 *inverse = reinterpret_cast<const nc_u32 *>(mine.found + (4 * (s % (PANEL / 4)) + (g >> 1)) * PANEL);
            Factors factors;
            expand(bits, inverse[q], inverse[4 + q], factors);
            Counts next;
            if (s == 0) begin(next, pivots, factors);
            else *reinterpret_cast<nc_u32 *>(made[warp] + (4 * (s - 1) + q) * PANEL + 4 * g) = begin_and_finish(next, pivots, factors, last, powers);
            last = next;
        }
        __syncwarp();
        operand = operand_of([&](nc_u32 source) { return *reinterpret_cast<const nc_u32 *>(made[warp] + source * PANEL + 4 * g); });
    }
    out[lane] = operand.a;
    out[32 + lane] = operand.c;
}

extern "C" __global__ void __launch_bounds__(NC_WIDE_THREADS, 2)
nc_wide_update(const nc_wide wide, const nc_tables *tables) {
    __shared__ Bits bits;
    const Mine mine = mine_of(wide);
    const nc_u32 lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    if (*mine.status == 0) return;
    fill(bits, tables);
    const nc_u32 down = (mine.padded + NC_WIDE_ROWS - 1) / NC_WIDE_ROWS, across = mine.padded / PANEL, first = wide.first;
    const nc_u32 begin_tile = blockIdx.x / down * wide.tiles, end_tile = min(begin_tile + wide.tiles, across);
    const nc_u32 row = blockIdx.x % down * NC_WIDE_ROWS + threadIdx.x / 32 * 8, other_row = row + 4;
    if (row >= mine.padded || begin_tile >= end_tile) return;
    Factors factors, other_factors;
    const auto of_row = [&](nc_u32 from, Factors &out) {
        const nc_u32 *words = reinterpret_cast<const nc_u32 *>(mine.factors + (nc_u64)(from + (g >> 1)) * PANEL);
        expand(bits, words[q], words[4 + q], out);
    };
    of_row(row, factors);
    of_row(other_row, other_factors);
    const nc_u32 keep = (nc_u32)(mine.column_of[row + q] - first) < PANEL ? 0 : ~0u;
    const nc_u32 other_keep = (nc_u32)(mine.column_of[other_row + q] - first) < PANEL ? 0 : ~0u;
    nc_u8 *place = mine.work + (nc_u64)(row + q) * mine.padded + 4 * g, *other_place = place + (nc_u64)4 * mine.padded;
    const uint4 powers = bits.powers, *operands = reinterpret_cast<const uint4 *>(mine.pivots) + lane;
    Operand operand = {operands[begin_tile * 64], operands[begin_tile * 64 + 32]};
    Counts counts, other_counts;
    begin(counts, operand, factors);
#pragma unroll 1
    for (nc_u32 tile = begin_tile; tile < end_tile; tile++) {
        const nc_u32 column = tile * PANEL, stays = column == first ? 0 : ~0u, next = tile + 1 < end_tile ? tile + 1 : tile;
        nc_u32 *at = reinterpret_cast<nc_u32 *>(place + column), *other_at = reinterpret_cast<nc_u32 *>(other_place + column);
        const nc_u32 kept = *at & keep & stays, other_kept = *other_at & other_keep & stays;
        const nc_u32 sum = begin_and_finish(other_counts, operand, other_factors, counts, powers);
        operand = {operands[next * 64], operands[next * 64 + 32]};
        *at = kept ^ sum;
        *other_at = other_kept ^ begin_and_finish(counts, operand, factors, other_counts, powers);
    }
}

extern __shared__ uint4 memory[];

// Row c of the inverse is the pivot row of column c; its byte q is the byte that stands where row q was the pivot.
extern "C" __global__ void __launch_bounds__(NC_WIDE_THREADS)
nc_wide_arrange(const nc_wide wide) {
    const Mine mine = mine_of(wide);
    if (*mine.status == 0) return;
    nc_u8 *row = reinterpret_cast<nc_u8 *>(memory);
    const uint4 *from = reinterpret_cast<const uint4 *>(mine.work + (nc_u64)mine.order[blockIdx.x] * mine.padded);
    for (nc_u32 i = threadIdx.x; i < mine.padded / 16; i += THREADS) memory[i] = from[i];
    __syncthreads();
    nc_u8 *out = reinterpret_cast<nc_u8 *>(wide.inverses) + ((nc_u64)blockIdx.y * wide.n + blockIdx.x) * wide.pitch;
    for (nc_u32 column = 4 * threadIdx.x; column < wide.pitch; column += 4 * THREADS) {
        nc_u32 word = 0;
#pragma unroll
        for (nc_u32 j = 0; j < 4; j++)
            if (column + j < wide.n) word |= (nc_u32)row[mine.column_of[column + j]] << 8 * j;
        *reinterpret_cast<nc_u32 *>(out + column) = word;
    }
}

extern "C" __global__ void __launch_bounds__(NC_WIDE_THREADS)
nc_wide_sum(const nc_wide_sums sum) {
    const nc_u32 *terms = reinterpret_cast<const nc_u32 *>(sum.terms), *ends = reinterpret_cast<const nc_u32 *>(sum.ends);
    const nc_u32 which = blockIdx.y * sum.rows + blockIdx.x, begin = which ? ends[which - 1] : 0, end = ends[which];
    const nc_u8 *from = reinterpret_cast<const nc_u8 *>(sum.from) + blockIdx.y * sum.from_step;
    nc_u8 *out = reinterpret_cast<nc_u8 *>(sum.out) + blockIdx.y * sum.out_step + (nc_u64)blockIdx.x * sum.pitch;
    for (nc_u32 at = 16 * threadIdx.x; at < sum.pitch; at += 16 * THREADS) {
        uint4 total = make_uint4(0, 0, 0, 0);
        for (nc_u32 i = begin; i < end; i++) {
            const uint4 term = *reinterpret_cast<const uint4 *>(from + (nc_u64)terms[i] * sum.pitch + at);
            total = make_uint4(total.x ^ term.x, total.y ^ term.y, total.z ^ term.z, total.w ^ term.w);
        }
        *reinterpret_cast<uint4 *>(out + at) = total;
    }
}

#define TILES (NC_WIDE_COLUMNS / 32) // of a thread block

extern "C" __global__ void __launch_bounds__(NC_WIDE_THREADS)
nc_wide_multiply(const nc_wide_product product, const nc_tables *tables) {
    __shared__ Bits bits;
    __shared__ uint4 operands[2][TILES][64];
    fill(bits, tables);
    const nc_u32 lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, warp = threadIdx.x / 32;
    const nc_u32 down = (product.rows + NC_WIDE_ROWS - 1) / NC_WIDE_ROWS, left_column = blockIdx.x / down * NC_WIDE_COLUMNS;
    const nc_u32 row = blockIdx.x % down * NC_WIDE_ROWS + warp * 8;
    const nc_u8 *left = reinterpret_cast<const nc_u8 *>(product.left) + blockIdx.y * product.left_step;
    const nc_u8 *right = reinterpret_cast<const nc_u8 *>(product.right) + blockIdx.y * product.right_step;
    nc_u8 *out = reinterpret_cast<nc_u8 *>(product.out) + blockIdx.y * product.out_step;
    // Source rows from `first` on, in the columns of tile `warp`.
    const auto stage = [&](nc_u32 half, nc_u32 first) {
        if (warp >= TILES) return;
        const nc_u32 column = left_column + warp * 32 + 4 * g;
        const Operand operand = operand_of([&](nc_u32 source) -> nc_u32 {
            if (first + source >= product.inner || column >= product.columns) return 0;
            return *reinterpret_cast<const nc_u32 *>(right + (nc_u64)(first + source) * product.right_pitch + column);
        });
        operands[half][warp][lane] = operand.a;
        operands[half][warp][32 + lane] = operand.c;
    };
    // What this lane needs of the factors of four rows from `from` on, in four sources from `first` on.
    const auto factor = [&](nc_u32 from, nc_u32 first) -> nc_u32 {
        if (from + (g >> 1) >= product.rows || first >= product.inner) return 0;
        const nc_u32 word = *reinterpret_cast<const nc_u32 *>(left + (nc_u64)(from + (g >> 1)) * product.left_pitch + first), sources = product.inner - first;
        return sources >= 4 ? word : word & ((1u << 8 * sources) - 1);
    };
    nc_u32 sums[2 * TILES];
    Counts counts[2];
#pragma unroll
    for (nc_u32 i = 0; i < 2 * TILES; i++) sums[i] = 0;
#pragma unroll
    for (nc_u32 i = 0; i < 16; i++) counts[1].d[i / 4][i % 4] = counts[1].e[i / 4][i % 4] = 0;
    const uint4 powers = bits.powers;
    Factors factors[2];
    Operand operand;
    stage(0, 0);
    __syncthreads();
    nc_u32 half = 0;
#pragma unroll 1
    for (nc_u32 first = 0; first < product.inner; first += 32, half ^= 1) {
#pragma unroll
        for (nc_u32 i = 0; i < 2; i++) expand(bits, factor(row + 4 * i, first + 4 * q), factor(row + 4 * i, first + 16 + 4 * q), factors[i]);
        if (first + 32 < product.inner) stage(half ^ 1, first + 32);
        // While a product is begun, the one before is finished, that of the last step at first.
#pragma unroll
        for (nc_u32 p = 0; p < 2 * TILES; p++) {
            if (p % 2 == 0) operand = {operands[half][p / 2][lane], operands[half][p / 2][32 + lane]};
            sums[(p + 2 * TILES - 1) % (2 * TILES)] ^= begin_and_finish(counts[p % 2], operand, factors[p % 2], counts[(p + 1) % 2], powers);
        }
        __syncthreads();
    }
    sums[2 * TILES - 1] ^= begin_and_finish(counts[0], operand, factors[0], counts[1], powers);
#pragma unroll
    for (nc_u32 p = 0; p < 2 * TILES; p++) {
        const nc_u32 to = row + p % 2 * 4 + q, column = left_column + p / 2 * 32 + 4 * g;
        if (to >= product.rows || column >= product.columns) continue;
        nc_u32 *at = reinterpret_cast<nc_u32 *>(out + (nc_u64)to * product.out_pitch + column);
        *at = product.adds ? *at ^ sums[p] : sums[p];
    }
}
