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

// Descriptor of an operand without swizzle: 8 rows of 16 bytes are contiguous, `across` bytes lie between the two halves of 32 sources.
__device__ __forceinline__ nc_u64 descriptor(nc_u32 address, nc_u32 across) {
    return (nc_u64)((address & 0x3FFFF) >> 4) | (nc_u64)(across >> 4) << 16 | (nc_u64)(128 >> 4) << 32;
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

// Where a unit lies.
struct Place {
    const nc_task *task;
    nc_u32 index, last_unit; // of the task: the first unit that is not its own any more
    nc_u32 steps, row0, super;
};

__device__ __forceinline__ nc_u32 steps_of(nc_u32 n) { return n <= 64 ? (n + 31) / 32 : (n + 127) / 128 * 4; }

template <nc_u32 ROWS> __device__ __forceinline__ nc_u32 units_of(const nc_task &task) {
    return (task.rows + ROWS - 1) / ROWS * ((task.k + NC_TENSOR_UNIT_BYTES - 1) / NC_TENSOR_UNIT_BYTES);
}

template <nc_u32 ROWS> __device__ __forceinline__ void place_unit(Place &place, nc_u32 unit) {
    const nc_task &task = *place.task;
    const nc_u32 supers = (task.k + NC_TENSOR_UNIT_BYTES - 1) / NC_TENSOR_UNIT_BYTES;
    const nc_u32 local = unit - task.first_unit;
    place.steps = steps_of(task.n);
    place.row0 = local / supers * ROWS;
    place.super = local % supers;
}

// The bit rows of ROWS coefficient rows from row0 on, as operand B: groups of COLUMNS / 8 rows, then steps of 32 sources.
template <nc_u32 ROWS, int COLUMNS>
__device__ __forceinline__ void expand(nc_u8 *bits, const nc_u32 *table, const nc_task &task, nc_u32 row0, nc_u32 steps, nc_u32 thread, nc_u32 threads) {
    constexpr nc_u32 STEP = COLUMNS * 32;
    const nc_u32 pitch = nc_row_pitch(task.n), calls = steps * 2;
    // Eight rows to eight neighbouring lanes: their stores meet no bank twice.
    for (nc_u32 piece = thread; piece < ROWS * calls; piece += threads) {
        const nc_u32 octet = piece / 8 / calls, q = piece / 8 - octet * calls, local = octet * 8 + piece % 8, row = row0 + local;
        uint4 c = make_uint4(0, 0, 0, 0);
        if (row < task.rows && q * 16 < pitch) {
            if (task.coefficients) c = *reinterpret_cast<const uint4 *>(task.coefficients + (nc_u64)row * pitch + q * 16);
            else c = nc_philox(q, task.first_seed + row, task.generation, task.key);
        }
        const nc_u32 words[4] = {c.x, c.y, c.z, c.w};
        nc_u32 low[4], middle[4], high[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            low[i] = selectors(words[i], 0x07070707);
            middle[i] = selectors(words[i] >> 3, 0x07070707);
            high[i] = selectors(words[i] >> 6, 0x03030303);
        }
        const nc_u32 slot = 2 * (local & 3) + (local >> 2 & 1);
        nc_u8 *to = bits + local / (COLUMNS / 8) * steps * STEP + (q >> 1) * STEP + (q & 1) * (STEP / 2) + local % (COLUMNS / 8) / 8 * 1024 + slot * 16;
#pragma unroll
        for (int bit = 0; bit < 8; bit++) {
            const uint4 t = *reinterpret_cast<const uint4 *>(table + bit * 8);
            const nc_u32 top = table[bit * 8 + 4];
            nc_u32 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = __byte_perm(t.x, t.y, low[i]) ^ __byte_perm(t.z, t.w, middle[i]) ^ __byte_perm(top, 0, high[i]);
            *reinterpret_cast<uint4 *>(to + bit * 128) = make_uint4(v[0], v[1], v[2], v[3]);
        }
    }
}

__device__ __forceinline__ nc_u32 uniform(nc_u32 value) { return __shfl_sync(~0u, value, 0); }

// The consumers' side of the ring.
template <int STAGES> struct Ring {
    nc_u32 barriers, stage, parity;

    __device__ __forceinline__ void wait() const { barrier_wait(barriers + 8 * stage, parity); }
    __device__ __forceinline__ void release(nc_u32 at, nc_u32 lane) const {
        if (lane == 0) barrier_arrive(barriers + 8 * (STAGES + at));
    }
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
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

// The counts of one tile. STEPS is 1 or 2 if a place of the ring holds several tiles, otherwise 0.
template <int COLUMNS, int STAGES, int STEPS>
__device__ __forceinline__ void count_tile(nc_u32 (&counts)[COLUMNS / 2], Ring<STAGES> &consumer, nc_u32 ring, nc_u64 operand, nc_u32 steps, nc_u32 tile, bool final,
                                           nc_u32 lane) {
    constexpr nc_u64 NEXT_A = BLOCK >> 4, NEXT_B = COLUMNS * 32 >> 4;
    if constexpr (STEPS) {
        constexpr nc_u32 PER = 4 / STEPS;
        if (tile % PER == 0) consumer.wait();
        const nc_u64 at = descriptor(ring + consumer.stage * STAGE + tile % PER * STEPS * BLOCK, 1024);
        mma_fence();
        mma<COLUMNS>(counts, at, operand, 0);
        if constexpr (STEPS == 2) mma<COLUMNS>(counts, at + NEXT_A, operand + NEXT_B, 1);
        mma_commit();
        mma_wait<0>();
        if (final || tile % PER == PER - 1) {
            consumer.release(consumer.stage, lane);
            consumer.advance();
        }
    } else {
        nc_u32 before = ~0u, step = 0;
#pragma unroll 1
        do {
            consumer.wait();
            const nc_u64 at = descriptor(ring + consumer.stage * STAGE, 1024);
            mma_fence();
            mma<COLUMNS>(counts, at, operand, step);
            mma<COLUMNS>(counts, at + NEXT_A, operand + NEXT_B, 1);
            mma<COLUMNS>(counts, at + 2 * NEXT_A, operand + 2 * NEXT_B, 1);
            mma<COLUMNS>(counts, at + 3 * NEXT_A, operand + 3 * NEXT_B, 1);
            mma_commit();
            operand += 4 * NEXT_B;
            mma_wait<1>();
            if (before != ~0u) consumer.release(before, lane);
            before = consumer.stage;
            consumer.advance();
            step += 4;
        } while (step < steps);
        mma_wait<0>();
        consumer.release(before, lane);
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

template <int COLUMNS, int STAGES, int STEPS>
__device__ __forceinline__ void consume(Ring<STAGES> &consumer, nc_u32 ring, nc_u64 operand, nc_u32 steps, nc_u32 tiles, const Target &target, nc_u32 owner, nc_u32 lane) {
    constexpr nc_u32 BLOCKS = COLUMNS / 32;
    nc_u32 counts[COLUMNS / 2], low[BLOCKS], high[BLOCKS];
    if (tiles == TILES) {
#pragma unroll
        for (nc_u32 tile = 0; tile < TILES; tile++) {
            count_tile<COLUMNS, STAGES, STEPS>(counts, consumer, ring, operand, steps, tile, tile == TILES - 1, lane);
            push<COLUMNS>(tile < 2 ? low : high, counts);
        }
        const nc_u32 at = target.position + owner * 8;
        if (at < target.k) {
#pragma unroll
            for (nc_u32 block = 0; block < BLOCKS; block++) target.store(block, at, make_uint2(low[block], high[block]));
        }
        return;
    }
    for (nc_u32 tile = 0; tile < tiles; tile++) {
        count_tile<COLUMNS, STAGES, STEPS>(counts, consumer, ring, operand, steps, tile, tile == tiles - 1, lane);
        push<COLUMNS>(low, counts);
        const nc_u32 pair = target.position + owner * 4, single = target.position + tile * 64 + owner * 2;
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

template <int COLUMNS, int GROUPS, int STAGES> __device__ __forceinline__ void encode(const nc_launch &launch, const nc_tables *tables) {
    constexpr nc_u32 ROWS = GROUPS * COLUMNS / 8, CONSUMERS = GROUPS * 128, STEP = COLUMNS * 32;
    extern __shared__ __align__(1024) nc_u8 shared[];
    const nc_u32 base = shared_address(shared), ring = base + HEAD;
    const nc_u32 full = base, empty = base + 8 * STAGES;
    nc_u32 *table = reinterpret_cast<nc_u32 *>(shared + 512);
    nc_u8 *bits = shared + HEAD + STAGES * STAGE;
    const nc_task *tasks = nc_tasks(launch);
    const nc_u32 thread = threadIdx.x;
    const nc_u32 first = (nc_u32)((nc_u64)launch.units * blockIdx.x / gridDim.x), last = (nc_u32)((nc_u64)launch.units * (blockIdx.x + 1) / gridDim.x);
    if (first == last) return;

    if (thread == 0) {
        for (nc_u32 i = 0; i < STAGES; i++) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, GROUPS * 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    // For each bit of the product: what the low three, the middle three and the high two bits of a coefficient add to its row.
    if (thread >= 32 && thread < 96) {
        const nc_u32 bit = (thread - 32) / 8, word = (thread - 32) % 8;
        if (word < 5) {
            const nc_u8 *from = reinterpret_cast<const nc_u8 *>(tables->bits) + bit;
            nc_u32 value = 0;
#pragma unroll
            for (nc_u32 i = 0; i < 4; i++) value |= (nc_u32)from[((word & 1) * 4 + i << (word / 2 * 3)) * 8] << (8 * i);
            table[bit * 8 + word] = value;
        }
    }
    __syncthreads();

    Place place;
    place.index = nc_task_of_unit(tasks, launch.count, first);
    place.task = tasks + place.index;
    place.last_unit = place.task->first_unit + units_of<ROWS>(*place.task);

    if (uniform(thread / 32) >= CONSUMERS / 32) {
        if (thread != CONSUMERS) return;
        nc_u32 stage = 0, parity = 1;
        for (nc_u32 unit = first; unit < last; unit++) {
            while (unit >= place.last_unit) {
                place.task++;
                place.last_unit = place.task->first_unit + units_of<ROWS>(*place.task);
            }
            place_unit<ROWS>(place, unit);
            const nc_u32 steps = place.steps, tiles = min(TILES, (place.task->k + 63) / 64 - place.super * TILES);
            nc_u64 from = place.task->source + (nc_u64)place.super * TILES * steps * BLOCK;
            // A place of the ring takes whole tiles if they are small, otherwise up to four steps of one tile.
            if (steps <= 2) {
                const nc_u32 per = 4 / steps;
                for (nc_u32 tile = 0; tile < tiles; tile += per) {
                    const nc_u32 bytes = min(per, tiles - tile) * steps * BLOCK;
                    barrier_wait(empty + 8 * stage, parity);
                    barrier_expect(full + 8 * stage, bytes);
                    bulk_load(ring + stage * STAGE, from, bytes, full + 8 * stage);
                    from += bytes;
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            } else {
                for (nc_u32 tile = 0; tile < tiles; tile++)
                    for (nc_u32 step = 0; step < steps; step += 4) {
                        barrier_wait(empty + 8 * stage, parity);
                        barrier_expect(full + 8 * stage, STAGE);
                        bulk_load(ring + stage * STAGE, from, STAGE, full + 8 * stage);
                        from += STAGE;
                        if (++stage == STAGES) stage = 0, parity ^= 1;
                    }
            }
        }
        return;
    }

    const nc_u32 group = uniform(thread / 128), lane = thread % 32, owner = thread % 128 / 32 * 8 + lane / 4, quarter = lane % 4;
    Ring<STAGES> consumer = {base, 0, 0};
    nc_u32 expanded_task = ~0u, expanded_row = 0;
    nc_u64 operand = 0;
    for (nc_u32 unit = first; unit < last; unit++) {
        while (unit >= place.last_unit) {
            place.task++;
            place.index++;
            place.last_unit = place.task->first_unit + units_of<ROWS>(*place.task);
        }
        place_unit<ROWS>(place, unit);
        const nc_task &task = *place.task;
        const nc_u32 steps = uniform(place.steps);
        if (expanded_task != place.index || expanded_row != place.row0) {
            expanded_task = place.index;
            expanded_row = place.row0;
            asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
            expand<ROWS, COLUMNS>(bits, table, task, place.row0, steps, thread, CONSUMERS);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
            operand = descriptor(shared_address(bits) + group * steps * STEP, STEP / 2);
        }
        const nc_u32 first_row = place.row0 + group * (COLUMNS / 8), tiles = uniform(min(TILES, (task.k + 63) / 64 - place.super * TILES));
        Target target;
        target.rows = task.rows - first_row - quarter; // wraps below
        target.pitch = task.out_pitch;
        target.position = place.super * NC_TENSOR_UNIT_BYTES;
        target.k = task.k;
        target.out = reinterpret_cast<nc_u8 *>(task.out) + (nc_u64)(first_row + quarter) * task.out_pitch;
        if (first_row + quarter >= task.rows) target.rows = 0;
        if (uniform(first_row >= task.rows)) {
            const nc_u32 chunks = steps > 2 ? tiles * (steps / 4) : steps == 2 ? (tiles + 1) / 2 : 1;
            for (nc_u32 chunk = 0; chunk < chunks; chunk++) {
                consumer.wait();
                consumer.release(consumer.stage, lane);
                consumer.advance();
            }
        } else if (steps == 1) consume<COLUMNS, STAGES, 1>(consumer, ring, operand, steps, tiles, target, owner, lane);
        else if (steps == 2) consume<COLUMNS, STAGES, 2>(consumer, ring, operand, steps, tiles, target, owner, lane);
        else consume<COLUMNS, STAGES, 0>(consumer, ring, operand, steps, tiles, target, owner, lane);
    }
}

} // namespace

#define NC_TENSOR_ENTRY(name, columns, groups, stages, per_sm)                                                                                       \
    extern "C" __global__ void __launch_bounds__(groups * 128 + 32, per_sm) name(const __grid_constant__ nc_launch launch, const nc_tables *tables) { \
        encode<columns, groups, stages>(launch, tables);                                                                                            \
    }

NC_TENSOR_ENTRY(nc_tensor_64, 128, 4, 8, 1)
NC_TENSOR_ENTRY(nc_tensor_32, 128, 2, 6, 2)
NC_TENSOR_ENTRY(nc_tensor_16, 128, 1, 4, 4)
NC_TENSOR_ENTRY(nc_tensor_8, 64, 1, 4, 4)

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
            const nc_u64 to = task.out + ((nc_u64)tile * steps + sixteen / 2) * BLOCK + sixteen % 2 * 1024 + row * 16;
            *reinterpret_cast<uint4 *>(to) = v;
        }
    }
}
