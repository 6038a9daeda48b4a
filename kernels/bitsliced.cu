// Bit-sliced encoding: Four Russians over bit planes.
//
// Idea. A source is kept as eight planes: plane j holds bit j of every byte. A bit of a product with c is a sum of those planes that a
// row of eight bits, depending on c, selects. Of one source there are 256 such sums: they are made once, and serve all rows of
// a block. So a row costs eight look-ups a source, each of which yields 32 bits a lane; and since all lanes look up the same entry,
// each in its own bank, no look-up waits for another.
//
// Which eight bits. In the polynomial basis of the product they are eight unrelated bytes a coefficient. But let y_i be the top bit
// of z x^i: a product z = c a has y_i = sum over j of a_j h_(i + j), where h_m is the top bit of c x^m. The eight indices of a
// coefficient are the windows of eight among 15 bits, two bytes instead of eight. Sums over the sources are made in y, and
// z comes from y once an output word, at the end (28 AND-XOR with the polynomial's bits as masks).
//
//     for every two sources:
//         producers (4 warps): 2 x 256 sums of planes -> one half of the tables, while consumers read the other
//         consumers (16 warps): for each of up to 8 rows:
//             w = windows of both coefficients (16 bits each; one LDS.128 for four rows)
//             for i in 0 .. 7: v = w << (8 - i)             IMAD.SHL, on the pipe that has nothing else to do
//                 y[row][i] ^= table[v byte 1] ^ table'[v byte 3]     2 PRMT, 2 LDS, 1 LOP3
//
// Shared memory. The tables of a pair of sources are 64 KB, entry e at 256 e, 32 words of each source, two of these on multiples of
// 65,536 as shared addresses: so an index becomes an address by one PRMT that puts it into byte 1 of the lane's base. In front of
// them: 512 bytes of windows by coefficient, 256 bytes of spread windows a consumer (16 sources x 8 rows), and 4 KB of planes
// on their way (cp.async, three pairs ahead) a producer. Named barriers: 1 and 2 a table is full, 3 and 4 it is empty.
//
// Layout. The form `planes`: blocks of 1024 positions x one source, in the order [column of 1024][source], each eight planes of 32 words.
// Bit 8 b + j of lane l's word is position 512 (j / 4) + 16 l + 4 (j % 4) + b, so that an 8 x 8 bit transposition of the lane's eight words
// yields bytes in the order in which it stores them, 16 at a time. Size: ceil(k / 1024) * 1024 * n bytes.
//
// A unit is 16 rows x 1024 bytes. A block takes an even share of the line of units, in which the groups of rows of one column are
// neighbours, and makes up to eight of them in one pass: one row a consumer for each.
//
// Host: 640 threads, NC_BITSLICED_SHARED bytes of dynamic shared memory (above 48 KB, and above what sm_80 to sm_89 have: elsewhere than
// on sm_90 and sm_100 take `prmt`), one block an SM, rows as NC_ROW_BYTES. 64 sums in the registers of a consumer. 640 threads can
// have 96 registers each; on sm_90a producers give theirs up to 40, and consumers have 104.
//
// Limit. Wavefronts of shared memory for two sources and 128 rows: 2,048 look-ups, 64 windows, 512 to make tables, 50 for planes:
// 2,670 clocks for 262,144 products, 98 a clock and SM, or 200 GB/s on an H200 at n = 128, less 3 % since 2,048 units do not fill 132
// SMs. Reached: 2,900 clocks in the steady state, 166 GB/s in all. Few rows a pass are bound by the tables: 1,378 clocks with
// one row a warp.
//
// Tried and dropped, n = 128 k = 4096, one generation x 8,192 blocks / 64 x 128, GB/s (kept: 166 / 164). Eight index bytes a coefficient
// instead of windows: 154 / 152. 96 registers a consumer: 151 / 149; 112, with producers at 32 that spill: 165 / 163. Producers that store
// 4 bytes a lane: 154 / 152 with planes fetched ahead, 169 / 162 with plain loads one pair ahead. Eight producers: 160 / 157. In full passes
// (kept: 172): 20 x 6 rows 169, 24 x 5 166, 12 x 8 160; they fit 128 rows badly, too. By accounting only: Karatsuba over half bytes, a
// quarter fewer look-ups, but half more tables and sums; 64 positions a lane, half the addresses but twice the tables.
#include "nc_common.cuh"

namespace {

const nc_u32 CONSUMERS = 16, PRODUCERS = 4;          // warps
const nc_u32 UNIT_ROWS = NC_BITSLICED_UNIT_ROWS;     // of all consumers: a unit is one row a warp
const nc_u32 UNIT_BYTES = NC_BITSLICED_UNIT_BYTES;   // 32 lanes of 32 positions
const nc_u32 PASS_UNITS = 8;                         // units whose rows share one table
const nc_u32 CHUNK = 16;                             // sources whose coefficients are spread at a time
const nc_u32 STAGES = 4;                             // pairs of sources a producer has on their way
const nc_u32 SPREAD = CHUNK * PASS_UNITS * 2;         // bytes of a warp's spread coefficients
const nc_u32 ALL = 32 * (CONSUMERS + PRODUCERS);

__device__ __forceinline__ nc_u32 shared_address(const void *pointer) {
    nc_u64 address;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(pointer));
    return (nc_u32)address;
}
__device__ __forceinline__ nc_u32 load32(nc_u32 address) {
    nc_u32 value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address));
    return value;
}
__device__ __forceinline__ nc_u32 load32_odd(nc_u32 address) {
    nc_u32 value;
    asm volatile("ld.shared.u32 %0, [%1 + 128];" : "=r"(value) : "r"(address));
    return value;
}
__device__ __forceinline__ nc_u32 load16(nc_u32 address) {
    nc_u32 value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=r"(value) : "r"(address));
    return value;
}
__device__ __forceinline__ uint2 load64(nc_u32 address) {
    uint2 value;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address));
    return value;
}
__device__ __forceinline__ uint4 load128(nc_u32 address) {
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "r"(address));
    return value;
}
__device__ __forceinline__ void store32(nc_u32 address, nc_u32 value) {
    asm volatile("st.shared.u32 [%0], %1;" :: "r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store64(nc_u32 address, uint2 value) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" :: "r"(address), "r"(value.x), "r"(value.y) : "memory");
}
__device__ __forceinline__ void store16(nc_u32 address, nc_u32 value) {
    asm volatile("st.shared.u16 [%0], %1;" :: "r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void barrier_sync(nc_u32 id) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(ALL) : "memory"); }
__device__ __forceinline__ void barrier_arrive(nc_u32 id) { asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(ALL) : "memory"); }

// 640 threads begin with 96 registers each. Where the hardware lets warps trade them, consumers take 104 and producers keep 40.
__device__ __forceinline__ void set_registers_more() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
#endif
}
__device__ __forceinline__ void set_registers_fewer() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
#endif
}

const nc_u32 FULL = 1, EMPTY = 3; // named barriers, two of each

template <int STEP, nc_u32 LOW> __device__ __forceinline__ void swap_bits(nc_u32 (&words)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (i & STEP) continue;
        const nc_u32 a = words[i], b = words[i + STEP];
        words[i] = (a & LOW) | ((b << STEP) & ~LOW);
        words[i + STEP] = ((a >> STEP) & LOW) | (b & ~LOW);
    }
}

// Eight words as planes <-> eight words of bytes: bit j of byte b of word i changes place with bit i of byte b of word j.
__device__ __forceinline__ void transpose(nc_u32 (&words)[8]) {
    swap_bits<4, 0x0F0F0F0Fu>(words);
    swap_bits<2, 0x33333333u>(words);
    swap_bits<1, 0x55555555u>(words);
}

// Bit m is the top bit of c x^m, m = 0 to 14.
__device__ __forceinline__ nc_u32 tops(nc_u32 c, nc_u32 polynomial) {
    nc_u32 bits = 0;
#pragma unroll
    for (int m = 0; m < 15; m++) {
        bits |= (c >> 7 & 1) << m;
        c = c << 1 ^ (c & 128 ? polynomial : 0);
    }
    return bits;
}

// From the top bits of z, z x, ..., z x^7 to the bits of z, in place. The top bit of z x^i is the sum of z_b t_(b + i), where
// t_m = top bit of x^m is 0 below m = 7 and 1 at 7: so bit 7 - i follows from the higher ones.
__device__ __forceinline__ void to_planes(nc_u32 (&words)[8], nc_u32 polynomial) {
    const nc_u32 t = tops(1, polynomial);
    nc_u32 z[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        z[7 - i] = words[i];
#pragma unroll
        for (int b = 8 - i; b < 8; b++) z[7 - i] ^= z[b] & (0 - (t >> (b + i) & 1));
    }
#pragma unroll
    for (int i = 0; i < 8; i++) words[i] = z[i];
}

// What one pass of a block works on. Producers and consumers walk through the same passes.
struct Pass {
    const nc_task *task;
    nc_u32 first_row, column, units, pairs;
};

__device__ __forceinline__ Pass pass_at(const nc_launch &launch, nc_u32 unit, nc_u32 end) {
    const nc_task *tasks = nc_tasks(launch);
    Pass pass;
    pass.task = tasks + nc_task_of_unit(tasks, launch.count, unit);
    const nc_u32 local = unit - pass.task->first_unit;
    const nc_u32 high = (pass.task->rows + UNIT_ROWS - 1) / UNIT_ROWS;
    pass.column = local / high;
    const nc_u32 group = local - pass.column * high;
    pass.first_row = group * UNIT_ROWS;
    pass.units = min(min(PASS_UNITS, high - group), end - unit);
    pass.pairs = (pass.task->n + 1) / 2;
    return pass;
}

// The planes of one source on their way to shared memory. Zeros behind the last source.
__device__ __forceinline__ void fetch_planes(nc_u32 stage, const Pass &pass, nc_u32 pair, nc_u32 odd, nc_u32 lane) {
    const nc_u32 n = pass.task->n, source = min(2 * pair + odd, n - 1), bytes = 2 * pair + odd < n ? 16 : 0;
    if (pair < pass.pairs) {
        const nc_u64 planes = pass.task->source + ((nc_u64)pass.column * n + source) * UNIT_BYTES + lane * 16;
        const nc_u32 to = stage + pair % STAGES * 1024 + lane * 16;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(planes), "r"(bytes) : "memory");
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to + 512), "l"(planes + 512), "r"(bytes) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ uint2 sum_of(uint2 a, uint2 b) { return make_uint2(a.x ^ b.x, a.y ^ b.y); }

// Half of the table of one source: all sums of its planes 0 to 6, with plane 7 or without, in the order of a Gray code. A lane has
// two words of each plane; the lower half warp makes the sums without plane 0, the upper one those with it.
__device__ __forceinline__ void build(nc_u32 table, uint2 sum, const uint2 (&planes)[7]) {
#pragma unroll
    for (int step = 0; step < 64; step++) {
        const int changed = step & 1 ? 1 : step & 2 ? 2 : step & 4 ? 3 : step & 8 ? 4 : step & 16 ? 5 : 6;
        if (step) sum = sum_of(sum, planes[changed]);
        store64(table + (step ^ step >> 1) * 512, sum);
    }
}

template <int ROWS>
__device__ __forceinline__ void consume(const Pass &pass, nc_u32 turn, nc_u32 tables, nc_u32 windows, nc_u32 polynomial, nc_u32 spread, nc_u32 warp, nc_u32 lane) {
    const nc_task &task = *pass.task;
    const nc_u32 row = pass.first_row + warp * ROWS, pitch = nc_row_pitch(task.n);
    // Lane 4 r + q spreads coefficients 4 q to 4 q + 3 of row r of each chunk.
    const bool mine = lane / 4 < ROWS && row + lane / 4 < task.rows;
    const nc_u8 *coefficients = reinterpret_cast<const nc_u8 *>(task.coefficients) + (nc_u64)(mine ? row + lane / 4 : 0) * pitch + lane % 4 * 4;
    nc_u32 accumulators[ROWS][8];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < 8; i++) accumulators[r][i] = 0;

    nc_u32 four = mine ? __ldg(reinterpret_cast<const nc_u32 *>(coefficients)) : 0;
    for (nc_u32 chunk = 0; chunk < pass.pairs; chunk += CHUNK / 2) {
        __syncwarp();
        {
            const nc_u32 a = load16(windows + (four & 255) * 2) | load16(windows + (four >> 8 & 255) * 2) << 16;
            const nc_u32 b = load16(windows + (four >> 16 & 255) * 2) | load16(windows + (four >> 24) * 2) << 16;
            store32(spread + lane % 4 * 64 + lane / 4 * 4, a);
            store32(spread + lane % 4 * 64 + lane / 4 * 4 + 32, b);
        }
        __syncwarp();
        coefficients += CHUNK;
        if (mine && chunk + CHUNK / 2 < pass.pairs) four = __ldg(reinterpret_cast<const nc_u32 *>(coefficients));
        const nc_u32 pairs = min(pass.pairs - chunk, CHUNK / 2);
#pragma unroll 1
        for (nc_u32 pair = 0; pair < pairs; pair++, turn++) {
            const nc_u32 base = tables + (turn & 1) * 65536 + lane * 4;
            barrier_sync(FULL + (turn & 1));
            nc_u32 windows_of[8];
            {
                const uint4 w = load128(spread + pair * 32);
                windows_of[0] = w.x, windows_of[1] = w.y, windows_of[2] = w.z, windows_of[3] = w.w;
            }
            if (ROWS > 4) {
                const uint4 w = load128(spread + pair * 32 + 16);
                windows_of[4] = w.x, windows_of[5] = w.y, windows_of[6] = w.z, windows_of[7] = w.w;
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const nc_u32 window = i ? windows_of[r] << (8 - i) : windows_of[r];
                    accumulators[r][i] ^= load32(__byte_perm(window, base, i ? 0x7614 : 0x7604)) ^ load32_odd(__byte_perm(window, base, i ? 0x7634 : 0x7624));
                }
            }
            barrier_arrive(EMPTY + (turn & 1));
        }
    }

    const nc_u32 offset = pass.column * UNIT_BYTES + lane * 16;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        to_planes(accumulators[r], polynomial);
        transpose(accumulators[r]);
        if (row + r >= task.rows) continue;
        nc_u8 *out = reinterpret_cast<nc_u8 *>(task.out) + (nc_u64)(row + r) * task.out_pitch + offset;
        const nc_u32(&w)[8] = accumulators[r];
        if (offset < task.k) *reinterpret_cast<uint4 *>(out) = make_uint4(w[0], w[1], w[2], w[3]);
        if (offset + 512 < task.k) *reinterpret_cast<uint4 *>(out + 512) = make_uint4(w[4], w[5], w[6], w[7]);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(NC_BITSLICED_THREADS, 1)
nc_bitsliced(const __grid_constant__ nc_launch launch, const nc_tables *tables) {
    extern __shared__ uint4 nc_shared[];
    const nc_u32 start = shared_address(nc_shared);
    const nc_u32 windows = start, spread = start + 512, stages = spread + CONSUMERS * SPREAD;
    const nc_u32 table = (stages + PRODUCERS * STAGES * 1024 + 65535) & ~65535u;
    const nc_u32 polynomial = tables->polynomial;
    const nc_u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (nc_u32 c = threadIdx.x; c < 256; c += ALL) store16(windows + c * 2, tops(c, polynomial));
    __syncthreads();

    const nc_u32 share = (launch.units + gridDim.x - 1) / gridDim.x;
    nc_u32 unit = min(blockIdx.x * share, launch.units), turn = 0;
    const nc_u32 end = min(unit + share, launch.units);
    if (warp >= CONSUMERS) {
        set_registers_fewer();
        const nc_u32 odd = warp & 1, half = warp >> 1 & 1, stage = stages + (warp - CONSUMERS) * STAGES * 1024;
        const nc_u32 mine = table + half * 128 * 256 + lane / 16 * 256 + odd * 128 + lane % 16 * 8;
        while (unit < end) {
            const Pass pass = pass_at(launch, unit, end);
            unit += pass.units;
#pragma unroll
            for (nc_u32 pair = 0; pair < STAGES - 1; pair++) fetch_planes(stage, pass, pair, odd, lane);
            for (nc_u32 pair = 0; pair < pass.pairs; pair++, turn++) {
                asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
                __syncwarp();
                const nc_u32 from = stage + pair % STAGES * 1024 + lane % 16 * 8;
                uint2 planes[7], sum = make_uint2(0, 0);
                if (lane >= 16) sum = load64(from);
                if (half) sum = sum_of(sum, load64(from + 7 * 128));
#pragma unroll
                for (int i = 1; i < 7; i++) planes[i] = load64(from + i * 128);
                fetch_planes(stage, pass, pair + STAGES - 1, odd, lane);
                if (turn >= 2) barrier_sync(EMPTY + (turn & 1));
                build(mine + (turn & 1) * 65536, sum, planes);
                barrier_arrive(FULL + (turn & 1));
            }
        }
        for (nc_u32 last = 0; last < 2; last++, turn++)
            if (turn >= 2) barrier_sync(EMPTY + (turn & 1));
    } else {
        set_registers_more();
        const nc_u32 mine = spread + warp * SPREAD;
        while (unit < end) {
            const Pass pass = pass_at(launch, unit, end);
            unit += pass.units;
            switch (pass.units) {
            case 1: consume<1>(pass, turn, table, windows, polynomial, mine, warp, lane); break;
            case 2: consume<2>(pass, turn, table, windows, polynomial, mine, warp, lane); break;
            case 3: consume<3>(pass, turn, table, windows, polynomial, mine, warp, lane); break;
            case 4: consume<4>(pass, turn, table, windows, polynomial, mine, warp, lane); break;
            case 5: consume<5>(pass, turn, table, windows, polynomial, mine, warp, lane); break;
            case 6: consume<6>(pass, turn, table, windows, polynomial, mine, warp, lane); break;
            case 7: consume<7>(pass, turn, table, windows, polynomial, mine, warp, lane); break;
            default: consume<8>(pass, turn, table, windows, polynomial, mine, warp, lane); break;
            }
            turn += pass.pairs;
        }
    }
}

extern "C" __global__ void nc_form_planes(const nc_form_task *tasks, nc_u32 count, const nc_tables *) {
    if (blockIdx.y >= count) return;
    const nc_form_task task = tasks[blockIdx.y];
    const nc_u64 items = (nc_u64)((task.k + NC_PLANES_BYTES - 1) / NC_PLANES_BYTES) * task.n * 32;
    for (nc_u64 item = (nc_u64)blockIdx.x * blockDim.x + threadIdx.x; item < items; item += (nc_u64)gridDim.x * blockDim.x) {
        const nc_u32 lane = (nc_u32)item % 32, block = (nc_u32)(item / 32), column = block / task.n, source = block - column * task.n;
        const nc_u32 offset = column * NC_PLANES_BYTES + lane * 16;
        const uint4 a = nc_raw16(task, source, offset), b = nc_raw16(task, source, offset + 512);
        nc_u32 words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        transpose(words);
        nc_u32 *out = reinterpret_cast<nc_u32 *>(task.out) + (nc_u64)block * 256 + lane;
#pragma unroll
        for (int i = 0; i < 8; i++) out[i * 32] = words[i];
    }
}
