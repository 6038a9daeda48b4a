// tensor: coding as a product of bit matrices on the tensor cores (sm_90a).
#include "nc_common.cuh"

namespace {

constexpr nc_u32 STAGE = 8192;   // bytes of a place in the ring
constexpr nc_u32 BLOCK = 2048;   // 64 positions x 32 sources
constexpr nc_u32 HEAD = 1024;    // barriers and the expansion table
constexpr nc_u32 TILES = NC_TENSOR_UNIT_BYTES / 64;

__device__ __forceinline__ nc_u32 shared_address(const void *p) { return (nc_u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(nc_u32 barrier, nc_u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(nc_u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_expect(nc_u32 barrier, nc_u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(nc_u32 barrier, nc_u32 parity) {
    asm volatile("{\n.reg .pred p;\n"
                 "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ void bulk_load(nc_u32 to, nc_u64 from, nc_u32 bytes, nc_u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(barrier)
                 : "memory");
}

// One copy for both CTAs of a cluster: the same place, the same barrier.
__device__ __forceinline__ void bulk_load_both(nc_u32 to, nc_u64 from, nc_u32 bytes, nc_u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "h"((nc_u16)3)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive_at(nc_u32 barrier, nc_u32 rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(
                     barrier),
                 "r"(rank)
                 : "memory");
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

__device__ __forceinline__ nc_u32 cluster_rank() {
    nc_u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Descriptor of an operand whose rows are 32, 64 or 128 contiguous bytes, swizzled as far.
template <nc_u32 PITCH> __device__ __forceinline__ nc_u64 descriptor(nc_u32 address) {
    constexpr nc_u64 SWIZZLE = PITCH == 128 ? 1 : PITCH == 64 ? 2 : 3;
    return (nc_u64)((address & 0x3FFFF) >> 4) | (nc_u64)1 << 16 | (nc_u64)(PITCH * 8 >> 4) << 32 | SWIZZLE << 62;
}

// Where 16 sources of a row lie in an operand: whole rows of 32 * steps bytes (128 at most), their sixteens permuted so that no two of eight
// neighbouring rows meet in a bank.
__device__ __forceinline__ nc_u32 swizzled(nc_u32 row, nc_u32 sixteen, nc_u32 steps) {
    if (steps == 1) return row * 32 + (sixteen ^ (row >> 2 & 1)) * 16;
    if (steps == 2) return row * 64 + (sixteen ^ (row >> 1 & 3)) * 16;
    return row * 128 + (sixteen ^ (row & 7)) * 16;
}

__device__ __forceinline__ void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void mma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

#define NC_D8(a, i) "+r"(a[i]), "+r"(a[i + 1]), "+r"(a[i + 2]), "+r"(a[i + 3]), "+r"(a[i + 4]), "+r"(a[i + 5]), "+r"(a[i + 6]), "+r"(a[i + 7])

// counts (+)= 64 positions x 32 sources times 32 sources x 8 * BLOCKS bit rows.
template <int COLUMNS> __device__ __forceinline__ void mma(nc_u32 (&d)[COLUMNS / 2], nc_u64 a, nc_u64 b, nc_u32 add) {
    if constexpr (COLUMNS == 128) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k256.s32.b1.b1.and.popc "
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                     "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
                     " %64, %65, p;\n}"
                     : NC_D8(d, 0), NC_D8(d, 8), NC_D8(d, 16), NC_D8(d, 24), NC_D8(d, 32), NC_D8(d, 40), NC_D8(d, 48), NC_D8(d, 56)
                     : "l"(a), "l"(b), "r"(add));
    } else {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k256.s32.b1.b1.and.popc "
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                     " %32, %33, p;\n}"
                     : NC_D8(d, 0), NC_D8(d, 8), NC_D8(d, 16), NC_D8(d, 24)
                     : "l"(a), "l"(b), "r"(add));
    }
}

// Three-bit selectors of four coefficients for byte permutes.
__device__ __forceinline__ nc_u32 selectors(nc_u32 word, nc_u32 mask) {
    const nc_u32 low = word & mask;
    return __byte_perm(low | low >> 4, 0, 0x4420);
}

__device__ __forceinline__ nc_u32 steps_of(nc_u32 n) { return n <= 64 ? (n + 31) / 32 : (n + 127) / 128 * 4; }
__device__ __forceinline__ nc_u32 uniform(nc_u32 value) { return __shfl_sync(~0u, value, 0); }

// The units of a CTA, a block of rows at a time: all its units lie in one task and take the same rows.
template <nc_u32 ROWS> struct Walk {
    const nc_task *task;
    nc_u32 unit, until, last; // this block's first unit, the next block's, the CTA's end
    nc_u32 row0, super;

    __device__ __forceinline__ void start(const nc_launch &launch, nc_u32 from, nc_u32 to) {
        const nc_task *tasks = nc_tasks(launch);
        task = tasks + nc_task_of_unit(tasks, launch.count, from);
        last = to;
        place(from);
    }
    __device__ __forceinline__ bool next() {
        if (until >= last) return false;
        const nc_u32 at = until;
        while (at >= task->first_unit + (task->rows + ROWS - 1) / ROWS * supers()) task++;
        place(at);
        return true;
    }
    __device__ __forceinline__ nc_u32 supers() const { return (task->k + NC_TENSOR_UNIT_BYTES - 1) / NC_TENSOR_UNIT_BYTES; }
    __device__ __forceinline__ void place(nc_u32 at) {
        const nc_u32 local = at - task->first_unit, block = local / supers();
        unit = at;
        row0 = block * ROWS;
        super = local - block * supers();
        until = min(last, task->first_unit + (block + 1) * supers());
    }
};

// The bit rows of ROWS coefficient rows from row0 on and 128 sources (fewer if n is small), as operand B: groups of COLUMNS / 8 rows.
template <nc_u32 ROWS, int COLUMNS>
__device__ __forceinline__ void expand(nc_u8 *slot, const nc_u32 *table, const nc_task &task, nc_u32 row0, nc_u32 chunk, nc_u32 thread, nc_u32 threads) {
    const nc_u32 pitch = nc_row_pitch(task.n), steps = steps_of(task.n), calls = min(8u, steps * 2);
    // Eight rows to eight neighbouring lanes: their stores meet no bank twice.
#pragma unroll 1
    for (nc_u32 piece = thread; piece < ROWS * calls; piece += threads) {
        const nc_u32 octet = piece / 8 / calls, q = piece / 8 - octet * calls, local = octet * 8 + piece % 8, row = row0 + local, call = chunk * 8 + q;
        uint4 c = make_uint4(0, 0, 0, 0);
        if (row < task.rows && call * 16 < pitch) {
            if (task.coefficients) c = *reinterpret_cast<const uint4 *>(task.coefficients + (nc_u64)row * pitch + call * 16);
            else c = nc_philox(call, task.first_seed + row, task.generation, task.key);
        }
        const nc_u32 words[4] = {c.x, c.y, c.z, c.w};
        nc_u32 low[4], middle[4], high[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            low[i] = selectors(words[i], 0x07070707);
            middle[i] = selectors(words[i] >> 3, 0x07070707);
            high[i] = selectors(words[i] >> 6, 0x03030303);
        }
        const nc_u32 column = local % (COLUMNS / 8) / 8 * 64 + 2 * (local & 3) + (local >> 2 & 1), next = min(1024u, steps * 256);
        nc_u8 *to = slot + local / (COLUMNS / 8) * (COLUMNS * 128) + swizzled(column, q, steps);
#pragma unroll
        for (int bit = 0; bit < 8; bit++) {
            const uint4 t = *reinterpret_cast<const uint4 *>(table + bit * 8);
            const nc_u32 top = table[bit * 8 + 4];
            nc_u32 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = __byte_perm(t.x, t.y, low[i]) ^ __byte_perm(t.z, t.w, middle[i]) ^ __byte_perm(top, 0, high[i]);
            *reinterpret_cast<uint4 *>(to + bit * next) = make_uint4(v[0], v[1], v[2], v[3]);
        }
    }
}

// A place in a ring of tiles or coefficients, and the parity of its round.
struct Cursor {
    nc_u32 at, parity;

    __device__ __forceinline__ void advance(nc_u32 size) {
        if (++at == size) at = 0, parity ^= 1;
    }
};

// What a consumer warp knows of its CTA.
template <int PAIR> struct Consumer {
    nc_u32 full, empty, ring;            // tiles
    nc_u32 bits_full, bits_empty, slots; // coefficients
    nc_u32 operand;                      // of the warpgroup in slot 0
    nc_u32 owner, lane;
    Cursor tiles, bits;

    __device__ __forceinline__ void release_tiles(nc_u32 at) const {
        if constexpr (PAIR == 1) {
            if (lane == 0) barrier_arrive(empty + 8 * at);
        } else if (lane < 2) barrier_arrive_at(empty + 8 * at, lane);
    }
    __device__ __forceinline__ void release_bits(nc_u32 at) const {
        if (lane == 0) barrier_arrive(bits_empty + 8 * at);
    }
};

// Where a thread's bytes go: rows 4 apart from its first, `rows` that exist from it on.
struct Target {
    nc_u8 *out;
    nc_u32 rows, pitch, position, k;

    template <typename WORD> __device__ __forceinline__ void store(nc_u32 block, nc_u32 at, WORD word) const {
        if (block * 4 < rows) *reinterpret_cast<WORD *>(out + (nc_u64)(block * 4) * pitch + at) = word;
    }
};

// The counts of one tile. STEPS is 1 or 2 if a place of the ring holds several tiles, otherwise 0. `fresh`: the coefficients may still be in the
// making; `done`: nobody needs them after this tile.
template <int COLUMNS, int PAIR, int STAGES, nc_u32 SLOT, int STEPS>
__device__ __forceinline__ void count_tile(nc_u32 (&counts)[COLUMNS / 2], Consumer<PAIR> &me, nc_u32 steps, nc_u32 tile, bool final, bool fresh, bool done) {
    constexpr nc_u64 NEXT = 32 >> 4;
    if constexpr (STEPS) {
        constexpr nc_u32 PER = 4 / STEPS;
        if (tile % PER == 0) barrier_wait(me.full + 8 * me.tiles.at, me.tiles.parity);
        const nc_u64 at = descriptor<STEPS * 32>(me.ring + me.tiles.at * STAGE + tile % PER * STEPS * BLOCK);
        const nc_u64 b = descriptor<STEPS * 32>(me.operand + me.bits.at * SLOT);
        mma_fence();
        mma<COLUMNS>(counts, at, b, 0);
        if constexpr (STEPS == 2) mma<COLUMNS>(counts, at + NEXT, b + NEXT, 1);
        mma_commit();
        mma_wait<0>();
        if (final || tile % PER == PER - 1) {
            me.release_tiles(me.tiles.at);
            me.tiles.advance(STAGES);
        }
    } else {
        Cursor bits = me.bits;
        nc_u32 before = ~0u, before_bits = 0, step = 0;
#pragma unroll 1
        do {
            barrier_wait(me.full + 8 * me.tiles.at, me.tiles.parity);
            if (fresh) barrier_wait(me.bits_full + 8 * bits.at, bits.parity);
            const nc_u64 at = descriptor<128>(me.ring + me.tiles.at * STAGE), b = descriptor<128>(me.operand + bits.at * SLOT);
            mma_fence();
            mma<COLUMNS>(counts, at, b, step);
            mma<COLUMNS>(counts, at + NEXT, b + NEXT, 1);
            mma<COLUMNS>(counts, at + 2 * NEXT, b + 2 * NEXT, 1);
            mma<COLUMNS>(counts, at + 3 * NEXT, b + 3 * NEXT, 1);
            mma_commit();
            mma_wait<1>();
            if (before != ~0u) {
                me.release_tiles(before);
                if (done) me.release_bits(before_bits);
            }
            before = me.tiles.at;
            before_bits = bits.at;
            me.tiles.advance(STAGES);
            bits.advance(me.slots);
            step += 4;
        } while (step < steps);
        mma_wait<0>();
        me.release_tiles(before);
        if (done) me.release_bits(before_bits);
    }
}

// The low bits of a tile's counts: two bytes of each of the thread's blocks.
template <int COLUMNS> __device__ __forceinline__ void push(nc_u32 (&words)[COLUMNS / 32], const nc_u32 (&counts)[COLUMNS / 2]) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int bit = 0; bit < 8; bit++)
#pragma unroll
            for (int block = 0; block < COLUMNS / 32; block++)
                words[block] = __funnelshift_r(words[block], counts[(block / 2 * 8 + bit) * 4 + half * 2 + block % 2], 1);
}

template <int COLUMNS, int PAIR, int STAGES, nc_u32 SLOT, int STEPS>
__device__ __forceinline__ void consume(Consumer<PAIR> &me, nc_u32 steps, nc_u32 tiles, const Target &target, bool fresh, bool done) {
    constexpr nc_u32 BLOCKS = COLUMNS / 32;
    nc_u32 counts[COLUMNS / 2], low[BLOCKS], high[BLOCKS];
    if constexpr (STEPS)
        if (fresh) barrier_wait(me.bits_full + 8 * me.bits.at, me.bits.parity);
    if (tiles == TILES) {
#pragma unroll
        for (nc_u32 tile = 0; tile < TILES; tile++) {
            count_tile<COLUMNS, PAIR, STAGES, SLOT, STEPS>(counts, me, steps, tile, tile == TILES - 1, fresh && tile == 0, done && tile == TILES - 1);
            push<COLUMNS>(tile < 2 ? low : high, counts);
        }
        const nc_u32 at = target.position + me.owner * 8;
        if (at < target.k) {
#pragma unroll
            for (nc_u32 block = 0; block < BLOCKS; block++) target.store(block, at, make_uint2(low[block], high[block]));
        }
    } else {
#pragma unroll 1
        for (nc_u32 tile = 0; tile < tiles; tile++) {
            count_tile<COLUMNS, PAIR, STAGES, SLOT, STEPS>(counts, me, steps, tile, tile == tiles - 1, fresh && tile == 0, done && tile == tiles - 1);
            push<COLUMNS>(low, counts);
            const nc_u32 pair = target.position + me.owner * 4, single = target.position + tile * 64 + me.owner * 2;
            if (tile == 1 && pair < target.k) {
#pragma unroll
                for (nc_u32 block = 0; block < BLOCKS; block++) target.store(block, pair, low[block]);
            }
            if (tile % 2 == 0 && tile == tiles - 1 && single < target.k) {
#pragma unroll
                for (nc_u32 block = 0; block < BLOCKS; block++) target.store(block, single, (nc_u16)(low[block] >> 16));
            }
        }
    }
    if constexpr (STEPS)
        if (done) me.release_bits(me.bits.at);
}

template <int REGISTERS> __device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }
template <int REGISTERS> __device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }

template <int COLUMNS, int GROUPS, int PAIR, int STAGES, int MORE, int FEWER> __device__ __forceinline__ void encode(const nc_launch &launch, const nc_tables *tables) {
    constexpr nc_u32 OWN = GROUPS * COLUMNS / 8, ROWS = PAIR * OWN, CONSUMERS = GROUPS * 128, HELPERS = 96, SLOT = OWN * 1024;
    extern __shared__ __align__(1024) nc_u8 shared[];
    const nc_u32 base = shared_address(shared), ring = base + HEAD;
    const nc_u32 full = base, empty = full + 8 * STAGES, bits_full = base + 256, bits_empty = bits_full + 128;
    nc_u32 *table = reinterpret_cast<nc_u32 *>(shared + 512);
    nc_u8 *bits = shared + HEAD + STAGES * STAGE;
    nc_u32 size;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(size));
    const nc_u32 slots = min(16u, (size - HEAD - STAGES * STAGE) / SLOT);
    const nc_u32 thread = threadIdx.x, warp = uniform(thread / 32), lane = thread % 32;
    const nc_u32 share = blockIdx.x / PAIR, shares = gridDim.x / PAIR, rank = PAIR == 1 ? 0 : cluster_rank();
    const nc_u32 first = (nc_u32)((nc_u64)launch.units * share / shares), last = (nc_u32)((nc_u64)launch.units * (share + 1) / shares);
    if (first == last) return;

    if (warp == CONSUMERS / 32 && lane == 0) {
        for (nc_u32 i = 0; i < STAGES; i++) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, PAIR * GROUPS * 4);
        }
        for (nc_u32 i = 0; i < slots; i++) {
            barrier_init(bits_full + 8 * i, HELPERS / 32);
            barrier_init(bits_empty + 8 * i, GROUPS * 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    // For each bit of the product: what the low three, the middle three and the high two bits of a coefficient add to its row.
    if (thread < 64) {
        const nc_u32 bit = thread / 8, word = thread % 8;
        if (word < 5) {
            const nc_u8 *from = reinterpret_cast<const nc_u8 *>(tables->bits) + bit;
            nc_u32 value = 0;
#pragma unroll
            for (nc_u32 i = 0; i < 4; i++) value |= (nc_u32)from[((word & 1) * 4 + i << (word / 2 * 3)) * 8] << (8 * i);
            table[bit * 8 + word] = value;
        }
    }
    Walk<ROWS> walk;
    walk.start(launch, first, last);
    if constexpr (PAIR == 1) __syncthreads();
    else cluster_sync();

    if (warp >= CONSUMERS / 32) {
        fewer_registers<FEWER>();
        if (warp == CONSUMERS / 32) {
            if (lane != 0) return;
            Cursor tiles = {0, 1};
            do {
                const nc_u32 steps = steps_of(walk.task->n), all = (walk.task->k + 63) / 64;
                // A place of the ring takes several tiles if they are small, otherwise four steps of one tile.
                const nc_u32 most = steps <= 2 ? 4 / steps : 1;
                nc_u64 from = walk.task->source + (nc_u64)walk.super * TILES * steps * BLOCK;
                for (nc_u32 unit = walk.unit, super = walk.super; unit < walk.until; unit++, super++) {
                    const nc_u32 here = min(TILES, all - super * TILES);
                    for (nc_u32 tile = 0; tile < here; tile += most)
                        for (nc_u32 step = 0; step < steps; step += 4) {
                            const nc_u32 bytes = steps <= 2 ? min(most, here - tile) * steps * BLOCK : STAGE;
                            barrier_wait(empty + 8 * tiles.at, tiles.parity);
                            barrier_expect(full + 8 * tiles.at, bytes);
                            if constexpr (PAIR == 1) bulk_load(ring + tiles.at * STAGE, from, bytes, full + 8 * tiles.at);
                            else bulk_load_both(ring + tiles.at * STAGE + rank * bytes / 2, from + rank * bytes / 2, bytes / 2, full + 8 * tiles.at);
                            from += bytes;
                            tiles.advance(STAGES);
                        }
                }
            } while (walk.next());
            if constexpr (PAIR == 2) cluster_sync();
            return;
        }
        Cursor slot = {0, 1};
        bool together = true;
        do {
            const nc_u32 chunks = (steps_of(walk.task->n) + 3) / 4;
            for (nc_u32 chunk = 0; chunk < chunks; chunk++) {
                if (together) expand<OWN, COLUMNS>(bits + slot.at * SLOT, table, *walk.task, walk.row0 + rank * OWN, chunk, thread - 32, CONSUMERS + HELPERS);
                else {
                    barrier_wait(bits_empty + 8 * slot.at, slot.parity);
                    expand<OWN, COLUMNS>(bits + slot.at * SLOT, table, *walk.task, walk.row0 + rank * OWN, chunk, thread - CONSUMERS - 32, HELPERS);
                }
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                if (together) asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS + HELPERS) : "memory");
                else __syncwarp();
                if (lane == 0) barrier_arrive(bits_full + 8 * slot.at);
                slot.advance(slots);
            }
            together = false;
        } while (walk.next());
        if constexpr (PAIR == 2) cluster_sync();
        return;
    }

    // The first coefficients are made by everybody, later ones by the helpers alone.
    for (nc_u32 chunk = 0, chunks = (steps_of(walk.task->n) + 3) / 4; chunk < chunks; chunk++) {
        expand<OWN, COLUMNS>(bits + chunk * SLOT, table, *walk.task, walk.row0 + rank * OWN, chunk, thread, CONSUMERS + HELPERS);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS + HELPERS) : "memory");
    }
    more_registers<MORE>();
    const nc_u32 group = warp / 4, quarter = lane % 4;
    Consumer<PAIR> me;
    me.full = full, me.empty = empty, me.ring = ring, me.bits_full = bits_full, me.bits_empty = bits_empty, me.slots = slots;
    me.operand = shared_address(bits) + group * (SLOT / GROUPS);
    me.owner = warp % 4 * 8 + lane / 4, me.lane = lane;
    me.tiles = {0, 0}, me.bits = {0, 0};
    do {
        const nc_task &task = *walk.task;
        const nc_u32 steps = uniform(steps_of(task.n)), chunks = (steps + 3) / 4, all = (task.k + 63) / 64;
        const nc_u32 first_row = walk.row0 + rank * OWN + group * (COLUMNS / 8), units = uniform(walk.until - walk.unit);
        const bool idle = uniform(first_row >= task.rows);
        Target target;
        target.rows = first_row + quarter < task.rows ? task.rows - first_row - quarter : 0;
        target.pitch = task.out_pitch;
        target.k = task.k;
        target.out = reinterpret_cast<nc_u8 *>(task.out) + (nc_u64)(first_row + quarter) * task.out_pitch;
        for (nc_u32 i = 0; i < units; i++) {
            const nc_u32 super = walk.super + i, tiles = uniform(min(TILES, all - super * TILES));
            const bool fresh = i == 0, done = i == units - 1;
            target.position = super * NC_TENSOR_UNIT_BYTES;
            if (idle) {
                const nc_u32 places = steps > 2 ? tiles * chunks : steps == 2 ? (tiles + 1) / 2 : 1;
                for (nc_u32 place = 0; place < places; place++) {
                    barrier_wait(full + 8 * me.tiles.at, me.tiles.parity);
                    me.release_tiles(me.tiles.at);
                    me.tiles.advance(STAGES);
                }
                Cursor slot = me.bits;
                for (nc_u32 chunk = 0; done && chunk < chunks; chunk++) {
                    barrier_wait(bits_full + 8 * slot.at, slot.parity);
                    me.release_bits(slot.at);
                    slot.advance(slots);
                }
            } else if (steps == 1) consume<COLUMNS, PAIR, STAGES, SLOT, 1>(me, steps, tiles, target, fresh, done);
            else if (steps == 2) consume<COLUMNS, PAIR, STAGES, SLOT, 2>(me, steps, tiles, target, fresh, done);
            else consume<COLUMNS, PAIR, STAGES, SLOT, 0>(me, steps, tiles, target, fresh, done);
        }
        for (nc_u32 chunk = 0; chunk < chunks; chunk++) me.bits.advance(slots);
    } while (walk.next());
    if constexpr (PAIR == 2) cluster_sync();
}

} // namespace

#define NC_TENSOR_ENTRY(name, columns, groups, pair, stages, per_sm, more, fewer)                                                                     \
    extern "C" __global__ void __launch_bounds__(groups * 128 + 128, per_sm) __cluster_dims__(pair, 1, 1)                                            \
        name(const __grid_constant__ nc_launch launch, const nc_tables *tables) {                                                                    \
        encode<columns, groups, pair, stages, more, fewer>(launch, tables);                                                                          \
    }

NC_TENSOR_ENTRY(nc_tensor_64, 128, 4, 1, 8, 1, 104, 64)
NC_TENSOR_ENTRY(nc_tensor_32, 128, 2, 1, 8, 1, 128, 64)
NC_TENSOR_ENTRY(nc_tensor_16, 128, 1, 1, 6, 2, 128, 64)
NC_TENSOR_ENTRY(nc_tensor_8, 64, 1, 1, 6, 2, 128, 64)
NC_TENSOR_ENTRY(nc_tensor_pair, 128, 1, 2, 12, 1, 168, 64)

// Source blocks to tiles: 16 sources x 4 positions a thread.
extern "C" __global__ void __launch_bounds__(256) nc_form_tiles(const nc_form_task *forms, nc_u32 count, const nc_tables *) {
    if (blockIdx.y >= count) return;
    const nc_form_task task = forms[blockIdx.y];
    const nc_u32 tiles = (task.k + 63) / 64, steps = steps_of(task.n), quads = tiles * 16;
    const nc_u64 pieces = (nc_u64)steps * 2 * quads;
    for (nc_u64 piece = (nc_u64)blockIdx.x * blockDim.x + threadIdx.x; piece < pieces; piece += (nc_u64)gridDim.x * blockDim.x) {
        const nc_u32 sixteen = (nc_u32)(piece / quads), position = (nc_u32)(piece % quads) * 4;
        nc_u32 words[16];
#pragma unroll
        for (nc_u32 i = 0; i < 16; i++) {
            const nc_u32 source = sixteen * 16 + i;
            words[i] = 0;
            if (source < task.n && position < task.k) {
                const nc_u64 offset = (nc_u64)source * task.k + position;
                if (offset < task.raw_length) {
                    words[i] = *reinterpret_cast<const nc_u32 *>(task.raw + (nc_u64)source * task.raw_pitch + position);
                    const nc_u64 bytes = task.raw_length - offset;
                    if (bytes < 4) words[i] &= (1u << (8 * (nc_u32)bytes)) - 1;
                }
            }
        }
        // The tiles of a unit belong together: all four, or two and one at the end of a block.
        const nc_u32 unit = position / NC_TENSOR_UNIT_BYTES * TILES, rest = tiles - unit;
        nc_u32 from = unit, shift = 3;
        if (rest < TILES) {
            shift = rest >= 2 ? 2 : 1;
            if (rest == 3 && position / 64 - unit == 2) from += 2, shift = 1;
        }
#pragma unroll
        for (nc_u32 i = 0; i < 4; i++) {
            uint4 v;
            const nc_u32 select = i | (4 + i) << 4;
            nc_u32 packed[4];
#pragma unroll
            for (nc_u32 j = 0; j < 4; j++)
                packed[j] = __byte_perm(__byte_perm(words[4 * j], words[4 * j + 1], select), __byte_perm(words[4 * j + 2], words[4 * j + 3], select), 0x5410);
            v = make_uint4(packed[0], packed[1], packed[2], packed[3]);
            const nc_u32 x = position + i - from * 64, owner = x >> shift, byte = x & ((1u << shift) - 1);
            const nc_u32 tile = from + byte / 2, row = owner / 8 * 16 + byte % 2 * 8 + owner % 8;
            const nc_u64 to = task.out + (nc_u64)tile * steps * BLOCK + sixteen / 8 * STAGE + swizzled(row, sixteen % 8, steps);
            *reinterpret_cast<uint4 *>(to) = v;
        }
    }
}
