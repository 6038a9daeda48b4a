// `nc_table`: encoding in the log domain, register-blocked. The default kernel. `nc_table_small`: the same look-ups for a single
// request, whose rows it makes itself.
//
// Idea. A product of two bytes is one look-up of the exponential of the sum of their logarithms. Sources lie in device memory as
// logarithms (form `logs`), coefficients as 16-bit offsets (row form NC_ROW_LOGS16), and nothing else is ever multiplied: one
// look-up in shared memory a product, which makes the look-ups, 32 lanes a clock and SM, the limit. The work of this file is to
// leave that pipe nothing else to do.
//
// Table. Line i holds exp(i) for i = 0 to 510, once for each lane, in the lowest byte of the lane's own word: 511 lines of 128
// bytes, no bank conflict ever, loads of one byte, which cost what loads of a word cost. The three upper bytes of every word are
// zero, and that is where zeros go: the logarithm of zero is 255, a line like any other, plus *one byte*. So
//     address = 128 * (log a + log b) + (a is zero) + (b is zero) + 4 * lane
// is right for all operands without a branch or a select, in 64 KB where a table with a region for zeros takes 128 KB (or 96 KB
// and a branch), and one kernel serves every card: those with 99 KB of shared memory too.
//
// Blocking. A warp makes a unit: 8 rows x 512 bytes. A lane has 16 bytes of each row, as 4 words 128 bytes apart, and takes 4
// source rows (a quad) at a time: 512 products. For each of them
//     1     look-up
//     1     sum: of a coefficient in the upper half of a word by LEA.HI, in the lower half by a dot product with (1, 0); neither
//           needs to be unpacked first
//     0.69  to merge: the products of three source rows are XORed by one LOP3 a byte, then four bytes become a word by three
//           IMADs, as do the bytes of the fourth source row, and one LOP3 takes both words into the sum
//     0.38  to unpack the source: a dot product each for 128 * log + 4 * lane and for the zero's byte, four for the zeros of a word
// which is 3.2 of 4 issue slots a look-up's clock, ALU and FMA pipes half used each.
//
// Pipeline. Warps do not wait for each other. Coefficients of 8 quads are copied to shared memory ahead (cp.async, two stages a
// warp); the words of the next quad are loaded as soon as those of this one are unpacked, also across the border to the next unit.
// (Without the __syncwarp in the loop ptxas moves those loads to the loop's end, where everyone waits for them.)
//
// Units and CTAs. A CTA takes an equal, contiguous share of the units, so that its warps read the same columns at about the same
// time and share them in L1. Twelve units at a time are one a warp; the last few are each cut by source rows among a team of
// warps, and so is the only unit of a CTA in a small launch. Units that do not divide among the CTAs are cut into fine units of
// 2 rows if that is shorter. Partial sums are joined in the place of the table, which nobody needs any more by then.
//
// Launch: NC_TABLE_THREADS threads, NC_TABLE_SHARED bytes of dynamic shared memory (more than 48 KB), one CTA an SM. Units of a
// task: ceil(rows / 8) * ceil(k / 512). 167 registers, no spills.
//
// Limit. 132 SMs * 32 * 1.98 GHz / n: 65.3 GB/s at n = 128. Of the pipe's slots the look-ups get 95.5 %: 1.6 % go to coefficients
// (a broadcast of 16 bytes takes two), 3.1 % to the source (4 bytes a lane and slot). The loop reaches 97 % of what that leaves.
//
// Tried and dropped, at n = 128, k = 4096, one generation of 8192 rows (58.7 to 59.0 GB/s now): one accumulator a byte, 8 warps of
// 252 registers 47.8; two bytes a word, 12 warps 58.2, but 56.4 over 64 generations, source loads being exposed; 16 rows x 8 bytes
// a lane 57.2 (and half of it lost on tasks of 8 rows); 16 warps of 128 registers 57.1, 13 49.3, 10 of 167 52.5; 8 rows x 8 bytes
// 56.0; 16 x 16 with a loop of 3,100 instructions 51.0, of 1,560 in 8 warps 56.8, in 12 58.0 (1 % more than this kernel at n = 1024,
// where its coarser units do not matter). Coefficients in uniform registers would save the sums (LDS takes a register plus a
// uniform one), but ptxas keeps no loaded value in a uniform register. Sources as 16-bit offsets save 0.25 instructions a product
// and cost 3 % of the slots and twice the memory.
//
// Small launches. One request of 128 rows is half a megabyte: 8 us of look-ups, and 10 us on the link if the blocks go straight to
// pinned memory. With `nc_rows` before it, and every CTA's bytes at the very end, nc_table makes these times a sum. So nc_table_small
//   - makes rows from their seeds where `coefficients` is 0, once for each CTA and stretch of units with the same rows, as nc_rows would,
//     while other warps make the table; otherwise it reads entries of NC_ROW_LOGS16, as nc_table does;
//   - takes small units, 4 rows x 128 bytes, and stores each as whole lines as soon as it is there. All 16 warps that look up share a
//     unit, each a sixteenth of the source rows; one more warp joins their parts while they are at the next unit. Two places for
//     parts, so that warps meet at no barrier: they arrive, and wait only if they are two units ahead of the one that joins.
// Four rows a pass unpack every source byte twice as often as eight: 260 instructions for 64 look-ups of a lane, so that it reaches
// 46 GB/s in large launches, which are nc_table's.
//
// Launch of nc_table_small: 544 threads, 90,256 bytes of dynamic shared memory, one CTA an SM. Units of a task: ceil(rows / 4) *
// ceil(k / 128), units of four rows one after the other. `out` and its pitch are multiples of 16; every task has a row. 95 registers, no
// spills.
//
// One H200, us from the launch to the end of the stream seen by polling an event, median / p99 of 1000; n = 128, k = 4096, seeded rows
// into pinned slots of 4160 bytes: 128 rows 23.4 / 29.6, with nc_rows and nc_table 35.0 / 43.7; 64 rows 17.7 (30.1), 32 rows 14.8
// (27.2), 8 rows 12.2 (25.4), 256 rows 35.0 (54.3). An empty kernel takes 8.0, a kernel that only stores 512 KiB 18.3 to 19.1. Of the
// 15 us that are left 1.1 are the start, 1.5 each of eight units, the rest the last stores. Launch after launch into device memory (one
// step before this version), two generations of 128 rows take as long as with nc_rows and nc_table, 27.7 us; above that these win.
//
// Tried and dropped for small launches (128 rows / 8 rows, us, in rounds that differ by 1 us): units of 8 rows 23.5 / 13.7 (this kernel
// 23.2 / 12.2 beside it), and 21.6 for 32 rows of n = 512 (16.9); of 2 rows 29.5 / 12.2; of 8 rows, in two halves where a CTA begins and
// ends, 25.2 / 12.8 (24.1 / 12.6); all warps at one barrier a unit 25.5 / 12.4; 14 warps that look up 25.1 / 12.3, since they do not
// divide evenly among the four schedulers; waiting for parts by polling, which takes slots of the look-ups, 24.7 / 12.4; two quads of
// source words under way, handed on by moves that wait for the loads, 27.3 / 12.6.
#include "nc_common.cuh"

namespace {

constexpr nc_u32 THREADS = NC_TABLE_THREADS, WARPS = THREADS / 32;
constexpr nc_u32 ROWS = NC_TABLE_ROWS;
constexpr nc_u32 FINE = 2;                     // rows of a fine unit
constexpr nc_u32 WORDS = NC_TABLE_BYTES / 128; // of a lane and row
constexpr nc_u32 LINES = 511, TABLE = LINES * 128;
constexpr nc_u32 CHUNK = 8;                    // quads whose coefficients are staged at once
constexpr nc_u32 STAGE = CHUNK * ROWS * 8;
static_assert(TABLE + WARPS * 2 * STAGE <= NC_TABLE_SHARED, "shared memory");
static_assert(WARPS * (ROWS + FINE) * WORDS * 128 <= TABLE, "partial sums take the table's place");

extern __shared__ __align__(128) nc_u8 shared[];

__device__ __forceinline__ nc_u32 lookup(nc_u32 address) {
    nc_u32 value;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(address));
    return value;
}

// Takes the lower half and adds it, in one instruction.
__device__ __forceinline__ nc_u32 add_low(nc_u32 pair, nc_u32 offset) {
    nc_u32 sum;
    asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(pair), "r"(1), "r"(offset));
    return sum;
}

__device__ __forceinline__ nc_u32 load(const nc_u8 *at) {
    nc_u32 value;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

// Offsets of four logarithms into the table.
__device__ __forceinline__ void unpack(nc_u32 word, nc_u32 lane_base, nc_u32 (&offsets)[4]) {
    const nc_u32 zero = (((word & 0x7F7F7F7Fu) + 0x01010101u) & word & 0x80808080u) >> 7;
#pragma unroll
    for (nc_u32 j = 0; j < 4; j++) offsets[j] = __dp4a(zero, 1u << 8 * j, __dp4a(word, 128u << 8 * j, lane_base));
}

__device__ __forceinline__ nc_u32 packed(const nc_u32 (&bytes)[4]) { return ((bytes[3] * 256 + bytes[2]) * 256 + bytes[1]) * 256 + bytes[0]; }

// Part of a unit: some quads of its source rows.
struct Work {
    const nc_u8 *source;       // row 0, this lane's first word
    const nc_u8 *coefficients; // of the row that this lane stages
    const nc_task *task;
    nc_u32 n, k, begin, end, row, column;
};

// Units that a CTA's warps make at once, all of so many rows each.
struct Round { nc_u32 first, count, rows; };
// What a lane has of four source rows.
struct Quad { nc_u32 words[4][WORDS]; };

// The task of a unit, found by a whole warp.
__device__ __forceinline__ nc_u32 task_of_unit(const nc_task *tasks, nc_u32 count, nc_u32 unit) {
    const nc_u32 lane = threadIdx.x % 32;
    nc_u32 low = 0;
    while (count > 1) {
        const nc_u32 step = (count + 31) / 32, at = lane * step;
        const nc_u32 found = __popc(__ballot_sync(~0u, at < count && tasks[low + at].first_unit <= unit)) - 1;
        low += found * step;
        count = count - found * step < step ? count - found * step : step;
    }
    return low;
}

// This warp's part of a round: its team's share of the source rows of one unit.
__device__ __forceinline__ bool open(Work &work, const nc_launch &launch, Round round) {
    const nc_u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = WARPS / round.count, member = warp % team;
    work.begin = work.end = 0;
    if (warp / team >= round.count) return false;
    const nc_u32 split = ROWS / round.rows, index = round.first + warp / team, unit = index / split;
    const nc_task *tasks = nc_tasks(launch);
    const nc_task &task = tasks[task_of_unit(tasks, launch.count, unit)];
    const nc_u32 groups = (task.rows + ROWS - 1) / ROWS, local = unit - task.first_unit;
    work.task = &task, work.n = task.n, work.k = task.k;
    work.row = local % groups * ROWS + index % split * round.rows;
    work.column = local / groups * NC_TABLE_BYTES + lane * 4;
    if (work.row >= task.rows) return false;
    const nc_u32 row = work.row + lane % round.rows, quads = (task.n + 3) / 4;
    work.source = reinterpret_cast<const nc_u8 *>(task.source) + work.column;
    work.coefficients = reinterpret_cast<const nc_u8 *>(task.coefficients) + (nc_u64)(row < task.rows ? row : task.rows - 1) * nc_row_pitch(task.n) * 2;
    work.begin = quads * member / team, work.end = quads * (member + 1) / team;
    return true;
}

// Copies the coefficients of the chunk that starts with quad `first`.
__device__ __forceinline__ void stage(const Work &work, nc_u32 first, nc_u32 rows, nc_u32 to) {
    const nc_u32 lane = threadIdx.x % 32;
    for (nc_u32 i = lane; i < CHUNK * rows; i += 32) {
        const nc_u32 at = first + i / rows;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to + i * 8), "l"(work.coefficients + (at < work.end ? at : work.begin) * 8) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void fetch(const Work &work, nc_u32 quad, Quad &into) {
#pragma unroll
    for (nc_u32 i = 0; i < 4; i++) {
        const nc_u8 *at = work.source + (nc_u64)(4 * quad + i < work.n ? 4 * quad + i : work.n - 1) * work.k;
#pragma unroll
        for (nc_u32 w = 0; w < WORDS; w++) if (work.column + w * 128 < work.k) into.words[i][w] = load(at + w * 128);
    }
}

// What a warp carries from one round to the next.
struct Pipeline {
    Work work;
    Quad quad;
    nc_u32 stages, which; // stages of coefficients, and which of them holds the next chunk
    bool there;
    __device__ __forceinline__ nc_u32 here() const { return stages + which * STAGE; }
    __device__ __forceinline__ nc_u32 other() const { return stages + (which ^ 1) * STAGE; }
};

// Sums of the pipeline's work; leaves the pipeline with its part of the next round under way.
template <nc_u32 R>
__device__ __forceinline__ void sweep(Pipeline &p, const nc_launch &launch, nc_u32 lane_base, Round next_round, nc_u32 (&sums)[R][WORDS]) {
#pragma unroll
    for (nc_u32 r = 0; r < R; r++)
#pragma unroll
        for (nc_u32 w = 0; w < WORDS; w++) sums[r][w] = 0;

    Work &work = p.work, next = p.work;
    bool next_there = false;
    if (work.begin == work.end && next_round.count) {
        next_there = open(next, launch, next_round);
        if (next_there) stage(next, next.begin, next_round.rows, p.here()), fetch(next, next.begin, p.quad);
    }
    for (nc_u32 begin = work.begin; begin < work.end; begin += CHUNK, p.which ^= 1) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncwarp();
        if (begin + CHUNK < work.end) stage(work, begin + CHUNK, R, p.other());
        else if (next_round.count) {
            next_there = open(next, launch, next_round);
            if (next_there) stage(next, next.begin, next_round.rows, p.other()); else next = work;
        }
        const nc_u32 end = work.end - begin < CHUNK ? work.end : begin + CHUNK;
        nc_u32 staged = p.here();
#pragma unroll 1
        for (nc_u32 q = begin; q < end; q++, staged += R * 8) {
            nc_u32 pairs[R][2];
#pragma unroll
            for (nc_u32 r = 0; r < R; r += 2)
                asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(pairs[r][0]), "=r"(pairs[r][1]), "=r"(pairs[r + 1][0]), "=r"(pairs[r + 1][1]) : "r"(staged + r * 8) : "memory");
            const bool more = q + 1 < work.end;
            const nc_u8 *from = more ? work.source : next.source;
            const nc_u32 row = 4 * (more ? q + 1 : next.begin), rows = more ? work.n : next.n, k = more ? work.k : next.k, column = more ? work.column : next.column;
            const nc_u8 *at[4];
#pragma unroll
            for (nc_u32 i = 0; i < 4; i++) at[i] = from + (nc_u64)(row + i < rows ? row + i : rows - 1) * k;
#pragma unroll
            for (nc_u32 w = 0; w < WORDS; w++) {
                nc_u32 offsets[4][4];
#pragma unroll
                for (nc_u32 i = 0; i < 4; i++) unpack(p.quad.words[i][w], lane_base, offsets[i]);
#pragma unroll
                for (nc_u32 i = 0; i < 4; i++) if (column + w * 128 < k) p.quad.words[i][w] = load(at[i] + w * 128);
#pragma unroll
                for (nc_u32 r = 0; r < R; r++) {
                    if (w == WORDS - 1 && r == R / 4) __syncwarp(); // keeps the loads above here
                    nc_u32 three[4], fourth[4];
#pragma unroll
                    for (nc_u32 j = 0; j < 4; j++) {
                        three[j] = lookup(add_low(pairs[r][0], offsets[0][j])) ^ lookup(offsets[1][j] + (pairs[r][0] >> 16)) ^ lookup(add_low(pairs[r][1], offsets[2][j]));
                        fourth[j] = lookup(offsets[3][j] + (pairs[r][1] >> 16));
                    }
                    sums[r][w] ^= packed(three) ^ packed(fourth);
                }
            }
        }
    }
    work = next, p.there = next_there;
    if (!next_there) work.begin = work.end = 0;
}

template <nc_u32 R>
__device__ __forceinline__ void put_part(const nc_u32 (&sums)[R][WORDS], nc_u32 *parts) {
    nc_u32 *mine = parts + threadIdx.x / 32 * R * WORDS * 32 + threadIdx.x % 32;
#pragma unroll
    for (nc_u32 i = 0; i < R * WORDS; i++) mine[i * 32] = sums[i / WORDS][i % WORDS];
}

template <nc_u32 R>
__device__ __forceinline__ void join_parts(const Work &work, nc_u32 team, const nc_u32 *parts) {
    const nc_u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, member = warp % team;
    const nc_u32 rows = work.task->rows, k = work.k, pitch = work.task->out_pitch;
    nc_u8 *out = reinterpret_cast<nc_u8 *>(work.task->out) + (nc_u64)work.row * pitch + work.column;
    parts += (warp - member) * R * WORDS * 32 + lane;
    for (nc_u32 i = member; i < R * WORDS; i += team) {
        if (work.row + i / WORDS >= rows || work.column + i % WORDS * 128 >= k) continue;
        nc_u32 sum = 0;
#pragma unroll 4
        for (nc_u32 m = 0; m < team; m++) sum ^= parts[(m * R * WORDS + i) * 32];
        *reinterpret_cast<nc_u32 *>(out + (nc_u64)(i / WORDS) * pitch + i % WORDS * 128) = sum;
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(NC_TABLE_THREADS, 1) nc_table(const __grid_constant__ nc_launch launch, const nc_tables *tables) {
    nc_u32 exps[(TABLE / 16 + THREADS - 1) / THREADS];
#pragma unroll
    for (nc_u32 i = 0; i < sizeof exps / 4; i++) {
        const nc_u32 line = (threadIdx.x + i * THREADS) / 8;
        exps[i] = tables->exp[line < LINES ? line : LINES - 1];
    }

    // Whole units, a CTA's worth each; what is left is cut finer where that evens it out.
    const nc_u32 ctas = gridDim.x, cta = blockIdx.x, each = launch.units / ctas, left = launch.units % ctas;
    const bool fine = left * 2 <= ctas;
    constexpr nc_u32 SPLIT = ROWS / FINE;
    nc_u32 first = each * cta + (fine ? 0 : cta < left ? cta : left), last = first + each + (!fine && cta < left);
    nc_u32 fine_first = 0, fine_count = 0;
    if (fine) {
        fine_first = left * SPLIT * cta / ctas;
        fine_count = left * SPLIT * (cta + 1) / ctas - fine_first;
        fine_first += each * ctas * SPLIT;
    }
    const Round fine_round = {fine_first, fine_count, FINE};
    auto round_at = [&](nc_u32 unit) { return unit < last ? Round{unit, last - unit < WARPS ? last - unit : WARPS, ROWS} : fine_round; };

    const nc_u32 base = (nc_u32)__cvta_generic_to_shared(shared), warp = threadIdx.x / 32, lane_base = base + threadIdx.x % 32 * 4;
    Pipeline p;
    p.stages = base + TABLE + warp * 2 * STAGE, p.which = 0;
    Round round = round_at(first);
    if (!round.count) return;
    p.there = open(p.work, launch, round);
    if (p.there) stage(p.work, p.work.begin, round.rows, p.here()), fetch(p.work, p.work.begin, p.quad);
#pragma unroll
    for (nc_u32 i = 0; i < sizeof exps / 4; i++) {
        const nc_u32 at = threadIdx.x + i * THREADS;
        if (at < TABLE / 16) reinterpret_cast<uint4 *>(shared)[at] = make_uint4(exps[i], exps[i], exps[i], exps[i]);
    }
    __syncthreads();

    nc_u32 sums[ROWS][WORDS];
    Work whole = p.work;
    nc_u32 team = 1;
    bool whole_there = false;
    for (; first < last; first += WARPS) {
        whole = p.work, whole_there = p.there;
        team = WARPS / round.count;
        round = round_at(first + WARPS);
        sweep<ROWS>(p, launch, lane_base, round, sums);
        if (team == 1 && whole_there) {
            const nc_u32 rows = whole.task->rows - whole.row, pitch = whole.task->out_pitch, k = whole.k;
            nc_u8 *out = reinterpret_cast<nc_u8 *>(whole.task->out) + (nc_u64)whole.row * pitch + whole.column;
#pragma unroll
            for (nc_u32 r = 0; r < ROWS; r++) {
                if (r >= rows) break;
#pragma unroll
                for (nc_u32 w = 0; w < WORDS; w++)
                    if (whole.column + w * 128 < k) *reinterpret_cast<nc_u32 *>(out + w * 128) = sums[r][w];
                out += pitch;
            }
        }
    }

    // Partial sums take the table's place.
    if (team == 1 && !fine_count) return;
    const Work part = p.work;
    const bool part_there = p.there;
    nc_u32 fine_sums[FINE][WORDS];
    if (fine_count) sweep<FINE>(p, launch, lane_base, Round{0, 0, FINE}, fine_sums);
    nc_u32 *parts = reinterpret_cast<nc_u32 *>(shared), *fine_parts = parts + WARPS * ROWS * WORDS * 32;
    __syncthreads();
    if (team > 1) put_part<ROWS>(sums, parts);
    if (fine_count) put_part<FINE>(fine_sums, fine_parts);
    __syncthreads();
    if (team > 1 && whole_there) join_parts<ROWS>(whole, team, parts);
    if (fine_count && part_there) join_parts<FINE>(part, WARPS / fine_count, fine_parts);
}

namespace {

constexpr nc_u32 SMALL_ROWS = NC_TABLE_SMALL_ROWS, LINE = NC_TABLE_SMALL_BYTES, SMALL_THREADS = NC_TABLE_SMALL_THREADS;
constexpr nc_u32 TAKERS = SMALL_THREADS / 32 - 1;                 // warps that look up; one more joins what they have
constexpr nc_u32 MAKERS = SMALL_ROWS * 2;                         // warps that make the first rows
constexpr nc_u32 FILLERS = TAKERS + 1 - MAKERS;                   // warps that make the table meanwhile
constexpr nc_u32 COEFFICIENTS = TABLE, PARTS = COEFFICIENTS + 256 * SMALL_ROWS * 8, PART = TAKERS * SMALL_ROWS * LINE;
constexpr nc_u32 LOGARITHMS = PARTS + 2 * PART, JOINED = LOGARITHMS + 256;
constexpr nc_u32 MAKING = 1, PUT = 2; // barriers: coefficients are being made; parts are there (two of them)
static_assert(JOINED + 16 == NC_TABLE_SMALL_SHARED, "what the host grants");
static_assert(SMALL_ROWS * LINE == 512, "a warp joins a unit");

__device__ __forceinline__ void arrive(nc_u32 barrier, nc_u32 threads) { asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }
__device__ __forceinline__ void meet(nc_u32 barrier, nc_u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }

// A barrier at which one warp waits without waiting for the others.
__device__ __forceinline__ void phase_init(nc_u32 phase) { asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(phase) : "memory"); }
__device__ __forceinline__ void phase_end(nc_u32 phase) { asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(phase) : "memory"); }
__device__ __forceinline__ void phase_wait(nc_u32 phase, nc_u32 parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra WAIT;\n}" ::"r"(phase), "r"(parity) : "memory");
#else
    asm volatile("{\n.reg .pred p;\nWAIT:\nmbarrier.test_wait.parity.shared.b64 p, [%0], %1;\n@!p bra WAIT;\n}" ::"r"(phase), "r"(parity) : "memory");
#endif
}

// Units from `unit` to `until` have the same rows.
struct Stretch {
    nc_u32 until, row0, column;
    bool ends_task;
    __device__ __forceinline__ Stretch(const nc_task &task, nc_u32 unit, nc_u32 last) {
        const nc_u32 lines = (task.k + LINE - 1) / LINE, local = unit - task.first_unit, group = local / lines;
        row0 = group * SMALL_ROWS, column = (local - group * lines) * LINE;
        until = min(last, task.first_unit + (group + 1) * lines);
        ends_task = row0 + SMALL_ROWS >= task.rows;
    }
};

// Coefficients of rows from `row0` on, as offsets into the table, by quads; from seeds where none are given.
__device__ __forceinline__ void make_rows(const nc_task &task, nc_u32 row0, nc_u32 threads) {
    const nc_u32 quads = (task.n + 3) / 4, pitch = nc_row_pitch(task.n);
#pragma unroll 1
    for (nc_u32 i = threadIdx.x; i < quads * SMALL_ROWS; i += threads) {
        const nc_u32 quad = i / SMALL_ROWS, row = min(row0 + i % SMALL_ROWS, task.rows - 1);
        uint2 made;
        if (task.coefficients) made = *reinterpret_cast<const uint2 *>(task.coefficients + ((nc_u64)row * pitch + 4 * quad) * 2);
        else {
            const uint4 all = nc_philox(quad / 4, task.first_seed + row, task.generation, task.key);
            const nc_u32 mine = quad & 2 ? quad & 1 ? all.w : all.z : quad & 1 ? all.y : all.x, left = task.n - 4 * quad;
            const nc_u32 word = left < 4 ? mine & ((1u << left * 8) - 1) : mine;
            nc_u32 entries[4];
#pragma unroll
            for (nc_u32 j = 0; j < 4; j++) {
                const nc_u32 logarithm = shared[LOGARITHMS + (word >> 8 * j & 255)];
                entries[j] = NC_ROW_LOGS16_ENTRY(logarithm);
            }
            made = make_uint2(entries[0] | entries[1] << 16, entries[2] | entries[3] << 16);
        }
        *reinterpret_cast<uint2 *>(shared + COEFFICIENTS + i * 8) = made;
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 1) nc_table_small(const __grid_constant__ nc_launch launch, const nc_tables *tables) {
    const nc_u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, base = (nc_u32)__cvta_generic_to_shared(shared);
    // The first task, before it is known whether it is this CTA's: its fields come from constant memory all at once.
    nc_u32 index;
    asm volatile("mov.u32 %0, 0;" : "=r"(index));
    nc_task task = launch.few[index];

    // The table is made by the warps that make no rows at first: a line a thread, its pieces in an order that meets no bank twice.
    nc_u32 exps[(LINES + FILLERS * 32 - 1) / (FILLERS * 32)], logs = 0;
    const nc_u32 filler = threadIdx.x - MAKERS * 32;
    if (threadIdx.x < 64) logs = reinterpret_cast<const nc_u32 *>(tables->log)[threadIdx.x];
    if (warp >= MAKERS) {
#pragma unroll
        for (nc_u32 i = 0; i < sizeof exps / 4; i++) exps[i] = tables->exp[min(filler + i * FILLERS * 32, LINES - 1)];
    }
    auto fill = [&]() {
#pragma unroll
        for (nc_u32 i = 0; i < sizeof exps / 4; i++) {
            const nc_u32 line = filler + i * FILLERS * 32;
            if (line >= LINES) break;
#pragma unroll
            for (nc_u32 j = 0; j < 8; j++) reinterpret_cast<uint4 *>(shared)[line * 8 + (lane + j) % 8] = make_uint4(exps[i], exps[i], exps[i], exps[i]);
        }
    };

    const nc_u32 each = (launch.units + gridDim.x - 1) / gridDim.x, first = each * blockIdx.x, last = min(first + each, launch.units);
    if (first >= last) return;
    if (launch.count > 1 || launch.tasks) {
        const nc_task *tasks = nc_tasks(launch);
        index = nc_task_of_unit(tasks, launch.count, first), task = tasks[index];
    }
    nc_u32 which = 0, parity = 0; // places of parts

    if (warp == TAKERS) {
        if (lane < 2) phase_init(base + JOINED + 8 * lane);
        fill();
        __syncthreads();
        for (nc_u32 unit = first;;) {
            const Stretch stretch(task, unit, last);
            const nc_u32 row = stretch.row0 + lane / 8;
            nc_u32 at = stretch.column + lane % 8 * 16;
            nc_u8 *const out = reinterpret_cast<nc_u8 *>(task.out) + (nc_u64)row * task.out_pitch;
            for (; unit < stretch.until; unit++, at += LINE) {
                meet(PUT + which, SMALL_THREADS);
                const uint4 *parts = reinterpret_cast<const uint4 *>(shared + PARTS + which * PART) + lane;
                uint4 sum = parts[0];
#pragma unroll
                for (nc_u32 m = 1; m < TAKERS; m++) {
                    const uint4 part = parts[m * 32];
                    sum.x ^= part.x, sum.y ^= part.y, sum.z ^= part.z, sum.w ^= part.w;
                }
                if (row < task.rows && at < task.k) *reinterpret_cast<uint4 *>(out + at) = sum;
                __syncwarp();
                if (lane == 0) phase_end(base + JOINED + 8 * which);
                parity ^= which, which ^= 1;
            }
            if (unit == last) return;
            if (stretch.ends_task) task = nc_tasks(launch)[++index];
        }
    }

    for (nc_u32 unit = first;;) {
        const Stretch stretch(task, unit, last);
        const nc_u32 quads = (task.n + 3) / 4, begin = quads * warp / TAKERS, end = quads * (warp + 1) / TAKERS;
        const nc_u32 source_last = task.n - 1, k = task.k;
        nc_u32 ahead = begin, ahead_column = stretch.column + lane * 4, words[4];
        const nc_u32 limit = begin == end ? 0 : min(k, ahead_column + (stretch.until - unit) * LINE);
        const nc_u8 *from = reinterpret_cast<const nc_u8 *>(task.source) + ahead_column;
        auto fetch = [&]() {
            if (ahead_column < limit) {
#pragma unroll
                for (nc_u32 i = 0; i < 4; i++) words[i] = load(from + (nc_u64)min(4 * ahead + i, source_last) * k);
            }
            if (++ahead >= end) ahead = begin, ahead_column += LINE, from += LINE;
        };
        fetch();
        if (unit == first) {
            if (warp < MAKERS) {
                if (threadIdx.x < 64) reinterpret_cast<nc_u32 *>(shared + LOGARITHMS)[threadIdx.x] = logs;
                meet(MAKING, MAKERS * 32);
                make_rows(task, stretch.row0, MAKERS * 32);
            } else fill();
            __syncthreads();
        } else {
            meet(MAKING, TAKERS * 32);
            make_rows(task, stretch.row0, TAKERS * 32);
            meet(MAKING, TAKERS * 32);
        }

        // The coefficients of the quad to come take the place of those that have been used.
        const nc_u32 first_staged = base + COEFFICIENTS + begin * SMALL_ROWS * 8, lane_base = base + lane * 4;
        nc_u32 pairs[SMALL_ROWS][2];
        auto take = [&](nc_u32 r, nc_u32 staged) {
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(pairs[r][0]), "=r"(pairs[r][1]), "=r"(pairs[r + 1][0]), "=r"(pairs[r + 1][1]) : "r"(staged + r * 8) : "memory");
        };
#pragma unroll
        for (nc_u32 r = 0; r < SMALL_ROWS; r += 2) take(r, first_staged);
        for (; unit < stretch.until; unit++) {
            nc_u32 sums[SMALL_ROWS], staged = first_staged;
#pragma unroll
            for (nc_u32 r = 0; r < SMALL_ROWS; r++) sums[r] = 0;
#pragma unroll 1
            for (nc_u32 q = begin; q < end; q++) {
                nc_u32 offsets[4][4];
                staged = q + 1 < end ? staged + SMALL_ROWS * 8 : first_staged;
#pragma unroll
                for (nc_u32 i = 0; i < 4; i++) unpack(words[i], lane_base, offsets[i]);
                fetch();
                __syncwarp();
#pragma unroll
                for (nc_u32 r = 0; r < SMALL_ROWS; r++) {
                    nc_u32 three[4], fourth[4];
#pragma unroll
                    for (nc_u32 j = 0; j < 4; j++) {
                        three[j] = lookup(add_low(pairs[r][0], offsets[0][j])) ^ lookup(offsets[1][j] + (pairs[r][0] >> 16)) ^ lookup(add_low(pairs[r][1], offsets[2][j]));
                        fourth[j] = lookup(offsets[3][j] + (pairs[r][1] >> 16));
                    }
                    sums[r] ^= packed(three) ^ packed(fourth);
                    if (r % 2) take(r - 1, staged);
                }
            }
            phase_wait(base + JOINED + 8 * which, parity ^ 1);
            nc_u32 *parts = reinterpret_cast<nc_u32 *>(shared + PARTS + which * PART) + warp * SMALL_ROWS * 32 + lane;
#pragma unroll
            for (nc_u32 r = 0; r < SMALL_ROWS; r++) parts[r * 32] = sums[r];
            arrive(PUT + which, SMALL_THREADS);
            parity ^= which, which ^= 1;
        }
        if (unit == last) return;
        if (stretch.ends_task) task = nc_tasks(launch)[++index];
    }
}
