// `tensor`: coding as a product of bit matrices on the tensor cores of sm_90a.
//
// Multiplying by a coefficient is an 8 x 8 bit matrix. So bit i of a coded byte is the parity of (8n bits made of the row's coefficients) AND (the
// 8n bits of the n source bytes at that position): `wgmma ... b1.b1.and.popc` counts, the lowest bit of a count is the answer. One instruction is
// 64 positions x 32 sources (operand A, from the form `tiles`) times 32 sources x 16 coded blocks x 8 bits (operand B, made from coefficients).
//
// Form `tiles`, NC_TENSOR_* in nc_abi.h for its size. Tile t holds positions 64t ... 64t + 63 as rows of 32, 64 or 128 sources (n up to 32, up to
// 64, above), zero-padded, sixteen sources a chunk, chunks permuted the way the tensor cores' 32-, 64- and 128-byte swizzle reads them; above 128
// sources a tile is several such places of 8 KiB. So a place is one contiguous bulk copy, without tensor map. A thread of the encoder receives two
// rows of each tile, g and g + 8 of its warp's sixteen. Eight tiles belong together (a unit, 512 positions), and the sixteen bytes that a thread
// receives from them are neighbours: 16-byte stores straight from registers, 128-byte lines a warp, no staging. At the end of a block follow
// groups of four, two and one tile with narrower stores: k is padded to 64.
//
// Bits. Operand B holds for each coded block and bit a row of 8n bits. Column 64u + 8i + 2q + e is bit i of block 8u + 4e + q: so a thread's counts
// are all eight bits of its bytes, and eight lanes that write eight blocks meet no bank twice. A coefficient's eight row bytes come from byte
// permutes: three, three and two bits of it select from 20 bytes a bit of the product, made in the prologue from `tables->bits`. No table is looked
// up, four coefficients go at a time. Philox runs in the same step if the task brings no coefficients: a launch needs no other kernel.
//
// A CTA of nc_tensor_32: two warpgroups multiply, 16 blocks each (two sets of 64 counts a thread, 168 registers, raised to 208 by setmaxnreg); one
// warp copies tiles into a ring of eight places that both read; three warps, the helpers, make the next rows' bits while the last are multiplied,
// as far as shared memory has slots (a slot is 128 sources of all the CTA's rows, 32 KiB). The first bits are made by everybody. A CTA takes an
// equal share of the line of units, so it changes rows seldom. nc_tensor_16 and nc_tensor_8 have one multiplying warpgroup and 16 or 8 rows, two
// CTAs an SM: for tasks of few rows, and for small launches. At n = 1024 the bits of 16 rows fill 128 KiB, and
// every 16 rows would fetch all tiles again: the two CTAs of nc_tensor_pair hold 16 rows each and copy half of every place into both (multicast).
// All need more than 48 KB of dynamic shared memory.
//
// nc_tensor_chunks codes whole chunks (Reed-Solomon): native ones as they lie, tiles made on the way, bits made once; see `Turner`.
//
// Order. An issued wgmma holds its warp until the tensor core takes it. Warps that start together stay together: all multiply, then all collect
// bits. So each warpgroup has two sets of counts; it collects one set's bits between the issues of the other's products. Descriptors come out of
// warp reductions, which leave them in uniform registers: moved there one by one they cost 4 %. Collecting takes 0.53 ALU and 0.75 multiply-pipe
// instructions a bit: a multiply-add with 65536 joins two counts, a byte permute four, then AND and a multiply-add with 2.
//
// Limits (H200, k = 4096). Tensor cores that never rest run at 1.80 GHz, not 1.98, on zeros as on random data, and m64n128k256 takes 64 cycles: 950
// GB/s at n = 128. Above n = 128 long runs draw up to 695 W of 700 and the clock falls further (NVML: 1.67 to 1.83 GHz at n = 512, down to 1.38 at n
// = 1024): the same launch takes 177 us at n = 512 at best and 201 as a median of another run. ncu, n = 128, 64 generations x 128 blocks: tensor
// pipe busy 64 % of 100,448 cycles at 1.79 GHz, ALU 26 %, multiply pipe 28 %, issue 36 %, loads from shared memory 50 %, L2 27 %, device memory 37
// %: none is full. That launch takes 56 us alone on its stream and 51.5 where two streams alternate: 4.5 us of start and end that another launch can
// hide. Each 64 generations more take 48 to 50 us, 88,000 cycles for 63,500 of products. Beside running products a warp's other instructions are two
// to three times slower, presumably because counts pass between registers and tensor cores all the time: a loop of dependent multiply-adds takes 46
// cycles alone, 85 beside m64n128, 138 beside m64n256; collecting 128 counts a thread takes 260 cycles alone and 480 to 620 in a kernel. Operands
// from shared memory cost two warpgroups of m64n128 that do nothing else 4 %, with A in registers 1.6 %, two of m64n256 nothing. n <= 64: issue and
// the two integer pipes. n = 1024: one multiplying warpgroup an SM. Few rows: device memory, n bytes are read for every `rows` written.
//
// Tried and dropped (GB/s; k = 4096, 64 generations x 128 blocks; in brackets without): operands without swizzle, n = 512, 148 (178); one set of
// counts and 8-byte stores, n = 128, 485 (554 with two sets and 16-byte stores), and the same with four multiplying warpgroups, 447; warpgroups
// taking turns at the tensor cores by named barriers, 552 (579); a funnel shift a bit, n = 32, 939 (1,069); waiting for the next tile between the
// issues of this one, n = 128, 586 (606); a release of cluster scope in the pair, n = 1024, 25 (78: each waited for all stores); two warpgroups of 8
// rows in the pair, 74 (77).
// m64n256 with one set of counts, a warpgroup multiplying a tile for all 32 rows while the other collects, in strict turns, 8-byte stores: n = 32,
// 795 (1,065); 64, 687 (834); 128, 550 (602), without turns 582 (601); 256, 327 (331). At n = 128 a warpgroup's round of 1,565 cycles is 600 of
// products, 144 of waiting for its turn and 820 of everything else, more than the other's products: 580 collecting, 100 storing, 140 for the tile's
// barrier and descriptors. Passing the turn on earlier or later changes 1 %. The same over 256 sources at a time, later ones added to what is
// stored: n = 512, 149 (167); 1024, 71 (78, the pair): twice or four times the collecting, and the output is read again.
// Shares of tiles instead of units (2,048 units on 132 CTAs: 16 for the busiest, 15.5 in the mean), and the task sought by 32 lanes: n = 32, 948
// (1,065); 128, 577 (598), and one generation x 16,384 blocks 641 (658), though 650 (646) and 677 (669) in two streams; 256, 344 (347); 1024, 79
// (81). Tiles that fill no unit were multiplied and collected one after the other, by code of their own: that eats what even shares bring.
#include "nc_common.cuh"

namespace {

constexpr nc_u32 STAGE = 8192;   // bytes of a place in the ring
constexpr nc_u32 BLOCK = 2048;   // 64 positions x 32 sources
constexpr nc_u32 HEAD = 1024;    // barriers and the expansion table
constexpr nc_u32 TILES = NC_TENSOR_UNIT_BYTES / 64; // of a unit

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
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(
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

// Descriptor of an operand whose rows are 32, 64 or 128 contiguous bytes, swizzled as far: the word that depends on the address, and the other.
__device__ __forceinline__ nc_u32 descriptor(nc_u32 address) { return (address & 0x3FFFF) >> 4 | 1 << 16; }
template <int PITCH> constexpr nc_u32 descriptor_high = (PITCH * 8 >> 4) | (PITCH == 128 ? 1u : PITCH == 64 ? 2u : 3u) << 30;

// Where 16 sources of a row lie in an operand: rows of 32 * steps bytes, 128 at most, their sixteens permuted so that no two of eight neighbouring
// rows meet in a bank.
__device__ __forceinline__ nc_u32 swizzled(nc_u32 row, nc_u32 sixteen, nc_u32 steps) {
    if (steps == 1) return row * 32 + (sixteen ^ (row >> 2 & 1)) * 16;
    if (steps == 2) return row * 64 + (sixteen ^ (row >> 1 & 3)) * 16;
    return row * 128 + (sixteen ^ (row & 7)) * 16;
}

__device__ __forceinline__ void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void mma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

#define NC_D8(a, i) "+r"(a[i]), "+r"(a[i + 1]), "+r"(a[i + 2]), "+r"(a[i + 3]), "+r"(a[i + 4]), "+r"(a[i + 5]), "+r"(a[i + 6]), "+r"(a[i + 7])

// counts (+)= 64 positions x 32 sources times 32 sources x COLUMNS bit rows.
template <int COLUMNS, int PITCH> __device__ __forceinline__ void mma(nc_u32 (&d)[COLUMNS / 2], nc_u32 a, nc_u32 b, nc_u32 add) {
    if constexpr (COLUMNS == 128) {
        asm volatile("{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %66, 0;\nmov.b64 a, {%64, %67};\nmov.b64 b, {%65, %67};\n"
                     "wgmma.mma_async.sync.aligned.m64n128k256.s32.b1.b1.and.popc "
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                     "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
                     " a, b, p;\n}"
                     : NC_D8(d, 0), NC_D8(d, 8), NC_D8(d, 16), NC_D8(d, 24), NC_D8(d, 32), NC_D8(d, 40), NC_D8(d, 48), NC_D8(d, 56)
                     : "r"(a), "r"(b), "r"(add), "n"(descriptor_high<PITCH>));
    } else {
        asm volatile("{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %34, 0;\nmov.b64 a, {%32, %35};\nmov.b64 b, {%33, %35};\n"
                     "wgmma.mma_async.sync.aligned.m64n64k256.s32.b1.b1.and.popc "
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                     " a, b, p;\n}"
                     : NC_D8(d, 0), NC_D8(d, 8), NC_D8(d, 16), NC_D8(d, 24)
                     : "r"(a), "r"(b), "r"(add), "n"(descriptor_high<PITCH>));
    }
}

// Three-bit selectors of four coefficients for byte permutes.
__device__ __forceinline__ nc_u32 selectors(nc_u32 word, nc_u32 mask) {
    const nc_u32 low = word & mask;
    return __byte_perm(low | low >> 4, 0, 0x4420);
}

__device__ __forceinline__ nc_u32 steps_of(nc_u32 n) { return n <= 64 ? (n + 31) / 32 : (n + 127) / 128 * 4; }
// A value that all lanes agree on, in a uniform register.
__device__ __forceinline__ nc_u32 scalar(nc_u32 value) { return __reduce_or_sync(~0u, value); }
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

// The eight bit rows of sixteen coefficients, `next` bytes apart: what `expand` does, which is left alone, for with this in it nc_tensor_8 has other registers.
__device__ __forceinline__ void spread(nc_u8 *to, nc_u32 next, const nc_u32 *table, uint4 c) {
    const nc_u32 words[4] = {c.x, c.y, c.z, c.w};
    nc_u32 low[4], middle[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        low[i] = selectors(words[i], 0x07070707);
        middle[i] = selectors(words[i] >> 3, 0x07070707);
        high[i] = selectors(words[i] >> 6, 0x03030303);
    }
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

// The first of the bit rows of row `local` of those that a warpgroup multiplies.
__device__ __forceinline__ nc_u32 column_of(nc_u32 local) { return local / 8 * 64 + 2 * (local & 3) + (local >> 2 & 1); }

// For each bit of the product: what the low three, the middle three and the high two bits of a coefficient add to its row.
__device__ __forceinline__ void fill_table(nc_u32 *table, const nc_tables *tables, nc_u32 thread) {
    const nc_u32 bit = thread / 8, word = thread % 8;
    if (thread >= 64 || word >= 5) return;
    const nc_u8 *from = reinterpret_cast<const nc_u8 *>(tables->bits) + bit;
    nc_u32 value = 0;
#pragma unroll
    for (nc_u32 i = 0; i < 4; i++) value |= (nc_u32)from[((word & 1) * 4 + i << (word / 2 * 3)) * 8] << (8 * i);
    table[bit * 8 + word] = value;
}

// The bit rows of ROWS coefficient rows from row0 on and 128 sources (fewer if n is small), as operand B: groups of COLUMNS / 8 rows.
template <nc_u32 ROWS, int COLUMNS>
__device__ __forceinline__ void expand(nc_u8 *slot, const nc_u32 *table, const nc_task &task, nc_u32 row0, nc_u32 chunk, nc_u32 thread,
                                       nc_u32 threads) {
    const nc_u32 pitch = nc_row_pitch(task.n), steps = steps_of(task.n), calls = min(8u, steps * 2);
    // Eight rows to eight neighbouring lanes: their stores meet no bank twice.
#pragma unroll 1
    for (nc_u32 piece = thread; piece < ROWS * calls; piece += threads) {
        const nc_u32 octet = piece / 8 / calls, q = piece / 8 - octet * calls, local = octet * 8 + piece % 8;
        const nc_u32 row = row0 + local, call = chunk * 8 + q;
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

// A thread's bytes of one block of rows: rows 4 apart from its first, `rows` that exist from it on.
struct Target {
    nc_u8 *out;
    nc_u32 rows, pitch, k;

    template <typename WORD> __device__ __forceinline__ void store(nc_u32 block, nc_u32 at, WORD word) const {
        if (block * 4 < rows) *reinterpret_cast<WORD *>(out + (nc_u64)(block * 4) * pitch + at) = word;
    }
};

// A consumer warp.
template <int COLUMNS, int GROUPS, int PAIR, int STAGES, nc_u32 SLOT> struct Consumer {
    static constexpr nc_u32 BLOCKS = COLUMNS / 32;

    nc_u32 full, empty, ring;            // tiles; the descriptor of place 0
    nc_u32 bits_full, bits_empty, slots; // coefficients
    nc_u32 operand;                      // the descriptor of the warpgroup's in slot 0
    nc_u32 owner, lane;
    Cursor tiles, bits;
    nc_u32 high, two;                    // 65536 and 2, unknown to the compiler, which would shift instead: multiplications have their own pipe
    nc_u32 held;                         // the place in the ring that the tile before reads

    __device__ __forceinline__ void release_tiles(nc_u32 at) const {
        if constexpr (PAIR == 1) {
            if (lane == 0) barrier_arrive(empty + 8 * at);
        } else if (lane < 2) barrier_arrive_at(empty + 8 * at, lane);
    }
    __device__ __forceinline__ void release_bits(nc_u32 chunks) {
        for (nc_u32 chunk = 0; chunk < chunks; chunk++) {
            if (lane == 0) barrier_arrive(bits_empty + 8 * bits.at);
            bits.advance(slots);
        }
    }

    // Starts the product of a tile of one or two steps.
    template <int STEPS> __device__ __forceinline__ void start(nc_u32 (&counts)[COLUMNS / 2], nc_u32 a, nc_u32 b) {
        mma_fence();
        mma<COLUMNS, STEPS * 32>(counts, a, b, 0);
        if constexpr (STEPS == 2) mma<COLUMNS, STEPS * 32>(counts, a + 2, b + 2, 1);
        mma_commit();
    }

    // Starts four steps of a tile.
    __device__ __forceinline__ void start_four(nc_u32 (&counts)[COLUMNS / 2], nc_u32 a, nc_u32 b, nc_u32 add) const {
        mma_fence();
        mma<COLUMNS, 128>(counts, a, b, add);
        mma<COLUMNS, 128>(counts, a + 2, b + 2, 1);
        mma<COLUMNS, 128>(counts, a + 4, b + 4, 1);
        mma<COLUMNS, 128>(counts, a + 6, b + 6, 1);
        mma_commit();
    }

    // Starts the first steps of a tile and collects the bits of the tile before between the issues.
    template <int STEPS>
    __device__ __forceinline__ void advance_tile(nc_u32 (&now)[COLUMNS / 2], nc_u32 (&before)[COLUMNS / 2], nc_u32 (&into)[BLOCKS / 2], nc_u32 a, nc_u32 b,
                                                 bool collect, bool release) const {
        constexpr int PITCH = STEPS ? STEPS * 32 : 128, PARTS = STEPS ? STEPS : 4;
        mma_fence();
        mma<COLUMNS, PITCH>(now, a, b, 0);
        mma_commit();
        if (collect) {
            mma_wait<1>();
            if (release) release_tiles(held);
            push<PARTS, 0>(into, before);
        }
        if constexpr (PARTS > 1) {
            mma<COLUMNS, PITCH>(now, a + 2, b + 2, 1);
            if constexpr (PARTS == 2) mma_commit();
            if (collect) push<PARTS, 1>(into, before);
        }
        if constexpr (PARTS == 4) {
            mma<COLUMNS, PITCH>(now, a + 4, b + 4, 1);
            if (collect) push<PARTS, 2>(into, before);
            mma<COLUMNS, PITCH>(now, a + 6, b + 6, 1);
            mma_commit();
            if (collect) push<PARTS, 3>(into, before);
        }
    }

    // Operands, as descriptors.
    __device__ __forceinline__ nc_u32 tile_at(nc_u32 offset) const { return scalar(ring + tiles.at * (STAGE >> 4) + (offset >> 4)); }
    __device__ __forceinline__ nc_u32 bits_at(nc_u32 slot) const { return scalar(operand + slot * (SLOT >> 4)); }

    // The low bits of a tile's counts: two bytes of each of the thread's blocks, in words of two blocks.
    template <int PARTS, int PART> __device__ __forceinline__ void push(nc_u32 (&pairs)[BLOCKS / 2], const nc_u32 (&counts)[COLUMNS / 2]) const {
#pragma unroll
        for (int j = 0; j < 8 / PARTS; j++)
#pragma unroll
            for (int pair = 0; pair < BLOCKS / 2; pair++) {
                const int bit = 7 - (PART * (8 / PARTS) + j), at = (pair * 8 + bit) * 4;
                nc_u32 x, y, z;
                asm volatile("mad.lo.u32 %0, %1, %2, %3;" : "=r"(x) : "r"(counts[at + 2]), "r"(high), "r"(counts[at]));
                asm volatile("mad.lo.u32 %0, %1, %2, %3;" : "=r"(y) : "r"(counts[at + 3]), "r"(high), "r"(counts[at + 1]));
                asm volatile("prmt.b32 %0, %1, %2, 0x6420;" : "=r"(z) : "r"(x), "r"(y));
                asm volatile("and.b32 %0, %0, 0x01010101;" : "+r"(z));
                if (bit == 7) pairs[pair] = z;
                else asm volatile("mad.lo.u32 %0, %0, %1, %2;" : "+r"(pairs[pair]) : "r"(two), "r"(z));
            }
    }

    // The words of two tiles.
    static __device__ __forceinline__ void join(nc_u32 (&words)[BLOCKS], const nc_u32 (&first)[BLOCKS / 2], const nc_u32 (&second)[BLOCKS / 2]) {
#pragma unroll
        for (nc_u32 pair = 0; pair < BLOCKS / 2; pair++) {
            words[pair * 2] = __byte_perm(first[pair], second[pair], 0x5410);
            words[pair * 2 + 1] = __byte_perm(first[pair], second[pair], 0x7632);
        }
    }

    __device__ __forceinline__ void store(const Target &target, nc_u32 position, const nc_u32 (&words)[4][BLOCKS]) const {
        const nc_u32 at = position + owner * 16;
        if (at >= target.k) return;
#pragma unroll
        for (nc_u32 block = 0; block < BLOCKS; block++)
            target.store(block, at, make_uint4(words[0][block], words[1][block], words[2][block], words[3][block]));
    }

    // Whole units of eight tiles. The product of a tile runs while the bits of the one before are collected.
    template <int STEPS> __device__ __forceinline__ void whole(const Target &target, nc_u32 position, nc_u32 units, nc_u32 steps) {
        nc_u32 even[COLUMNS / 2], odd[COLUMNS / 2], words[4][BLOCKS], first_pairs[BLOCKS / 2], second_pairs[BLOCKS / 2];
        const nc_u32 b = bits_at(bits.at);
        bool first = true;
#pragma unroll 1
        for (nc_u32 unit = 0; unit < units; unit++) {
#pragma unroll
            for (nc_u32 tile = 0; tile < TILES; tile++) {
                constexpr nc_u32 PER = STEPS ? 4 / (STEPS ? STEPS : 1) : 1;
                const nc_u32 sub = tile % PER, sub_before = (tile + PER - 1) % PER;
                const bool release = tile && sub_before == PER - 1;
                const nc_u32 a = tile_at(sub * STEPS * BLOCK);
                if (sub == 0) barrier_wait(full + 8 * tiles.at, tiles.parity);
                if (tile % 2) advance_tile<STEPS>(odd, even, first_pairs, a, b, true, release);
                else {
                    advance_tile<STEPS>(even, odd, second_pairs, a, b, tile != 0, release);
                    if (tile) join(words[tile / 2 - 1], first_pairs, second_pairs);
                }
                if (sub == PER - 1) {
                    held = tiles.at;
                    tiles.advance(STAGES);
                }
                if constexpr (STEPS == 0) {
                    Cursor slot = bits;
#pragma unroll 1
                    for (nc_u32 step = 4; step < steps; step += 4) {
                        slot.advance(slots);
                        const nc_u32 next_a = tile_at(0), next_b = bits_at(slot.at);
                        barrier_wait(full + 8 * tiles.at, tiles.parity);
                        if (first) barrier_wait(bits_full + 8 * slot.at, slot.parity);
                        if (tile % 2) start_four(odd, next_a, next_b, 1);
                        else start_four(even, next_a, next_b, 1);
                        mma_wait<1>();
                        release_tiles(held);
                        held = tiles.at;
                        tiles.advance(STAGES);
                    }
                    first = false;
                }
            }
            mma_wait<0>();
            release_tiles(held);
            push<1, 0>(second_pairs, odd);
            join(words[3], first_pairs, second_pairs);
            store(target, position, words);
            position += NC_TENSOR_UNIT_BYTES;
        }
    }

    // The tiles at the end of a block that fill no unit: groups of four, two and one.
    __device__ __forceinline__ void rest(const Target &target, nc_u32 position, nc_u32 count, nc_u32 steps) {
        nc_u32 counts[COLUMNS / 2], words[BLOCKS], before[BLOCKS], first_pairs[BLOCKS / 2], second_pairs[BLOCKS / 2];
        nc_u32 piece = 4, in_piece = 0, sub = 0;
        const nc_u32 per = steps == 1 ? 4 : steps == 2 ? 2 : 1;
#pragma unroll 1
        for (nc_u32 tile = 0; tile < count; tile++) {
            while (in_piece == 0 && !(count & piece)) piece /= 2;
            if (sub == 0) barrier_wait(full + 8 * tiles.at, tiles.parity);
            const nc_u32 a = tile_at(sub * steps * BLOCK), b = bits_at(bits.at);
            if (steps == 1) start<1>(counts, a, b);
            else if (steps == 2) start<2>(counts, a, b);
            else {
                Cursor slot = bits;
                start_four(counts, a, b, 0);
#pragma unroll 1
                for (nc_u32 step = 4; step < steps; step += 4) {
                    held = tiles.at;
                    tiles.advance(STAGES);
                    slot.advance(slots);
                    barrier_wait(full + 8 * tiles.at, tiles.parity);
                    barrier_wait(bits_full + 8 * slot.at, slot.parity);
                    start_four(counts, tile_at(0), bits_at(slot.at), 1);
                    mma_wait<1>();
                    release_tiles(held);
                }
            }
            mma_wait<0>();
            if (++sub == per || tile == count - 1) {
                release_tiles(tiles.at);
                tiles.advance(STAGES);
                sub = 0;
            }
            if (in_piece == 2) {
#pragma unroll
                for (nc_u32 block = 0; block < BLOCKS; block++) before[block] = words[block];
            }
            if (in_piece % 2) {
                push<1, 0>(second_pairs, counts);
                join(words, first_pairs, second_pairs);
            } else {
                push<1, 0>(first_pairs, counts);
                join(words, first_pairs, first_pairs);
            }
            if (++in_piece == piece) {
                const nc_u32 at = position + owner * 2 * piece;
                if (at < target.k) {
#pragma unroll
                    for (nc_u32 block = 0; block < BLOCKS; block++) {
                        if (piece == 4) target.store(block, at, make_uint2(before[block], words[block]));
                        else if (piece == 2) target.store(block, at, words[block]);
                        else target.store(block, at, (nc_u16)(words[block] >> 16));
                    }
                }
                position += 64 * piece;
                piece /= 2;
                in_piece = 0;
            }
        }
    }
};

template <int REGISTERS> __device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }
template <int REGISTERS> __device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }

template <int COLUMNS, int GROUPS, int PAIR, int STAGES, int MORE, int FEWER>
__device__ __forceinline__ void encode(const nc_launch &launch, const nc_tables *tables) {
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
                if (together)
                    expand<OWN, COLUMNS>(bits + slot.at * SLOT, table, *walk.task, walk.row0 + rank * OWN, chunk, thread - 32, CONSUMERS + HELPERS);
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
    Consumer<COLUMNS, GROUPS, PAIR, STAGES, SLOT> me;
    me.full = full, me.empty = empty, me.ring = descriptor(ring), me.bits_full = bits_full, me.bits_empty = bits_empty, me.slots = slots;
    me.operand = descriptor(shared_address(bits) + group * (SLOT / GROUPS));
    me.owner = warp % 4 * 8 + lane / 4, me.lane = lane;
    me.tiles = {0, 0}, me.bits = {0, 0}, me.held = 0;
    asm volatile("mov.u32 %0, 65536;" : "=r"(me.high));
    asm volatile("mov.u32 %0, 2;" : "=r"(me.two));
    do {
        const nc_task &task = *walk.task;
        const nc_u32 steps = uniform(steps_of(task.n)), chunks = (steps + 3) / 4, all = (task.k + 63) / 64;
        const nc_u32 first_row = walk.row0 + rank * OWN + group * (COLUMNS / 8), position = walk.super * NC_TENSOR_UNIT_BYTES;
        // This block's tiles: those of whole units, and the rest of the coded blocks.
        const nc_u32 tiles = uniform(min((walk.until - walk.unit) * TILES, all - walk.super * TILES)), units = tiles / TILES, left = tiles % TILES;
        if (uniform(first_row >= task.rows)) {
            const nc_u32 per = steps == 1 ? 4 : steps == 2 ? 2 : 1;
            for (nc_u32 tile = 1; tile <= tiles; tile++) {
                if (tile % per && tile < tiles) continue;
                for (nc_u32 chunk = 0; chunk < chunks; chunk++) {
                    barrier_wait(full + 8 * me.tiles.at, me.tiles.parity);
                    me.release_tiles(me.tiles.at);
                    me.tiles.advance(STAGES);
                }
            }
            Cursor slot = me.bits;
            for (nc_u32 chunk = 0; chunk < chunks; chunk++) {
                barrier_wait(bits_full + 8 * slot.at, slot.parity);
                slot.advance(slots);
            }
        } else {
            Target target;
            target.rows = first_row + quarter < task.rows ? task.rows - first_row - quarter : 0;
            target.pitch = task.out_pitch;
            target.k = task.k;
            target.out = reinterpret_cast<nc_u8 *>(task.out) + (nc_u64)(first_row + quarter) * task.out_pitch;
            barrier_wait(bits_full + 8 * me.bits.at, me.bits.parity);
            if (units) {
                if (steps == 1) me.template whole<1>(target, position, units, steps);
                else if (steps == 2) me.template whole<2>(target, position, units, steps);
                else me.template whole<0>(target, position, units, steps);
            }
            if (left) me.rest(target, position + units * NC_TENSOR_UNIT_BYTES, left, steps);
        }
        me.release_bits(chunks);
    } while (walk.next());
    if constexpr (PAIR == 2) cluster_sync();
}

// Whole chunks: native ones as they lie, turned into tiles on the way into shared memory, and as many code chunks of them as have room there.
//
// Two warpgroups multiply as in nc_tensor_32. The four other warps take eight native chunks at a time, a lane sixteen bytes of each: those that a thread of the
// first receives from eight tiles, so a warp reads 512 bytes in a row, and its stores of eight bytes meet in a bank twice. While a warp turns eight chunks, it
// loads the next eight. Bit rows are made once, by everybody: they do not change. Tiles are multiplied by `groups` times 32 rows and are not read again.
struct Turner {
    nc_u32 full, empty, steps, place_bytes;
    nc_u8 *ring;
    nc_u32 warp, lane;

    static __device__ __forceinline__ void load(uint4 (&into)[8], const nc_chunks &chunks, nc_u32 octet, nc_u64 position) {
#pragma unroll
        for (nc_u32 i = 0; i < 8; i++) {
            const nc_u32 source = octet * 8 + i;
            into[i] = make_uint4(0, 0, 0, 0);
            if (source < chunks.n && position < chunks.bytes)
                into[i] = __ldg(reinterpret_cast<const uint4 *>(chunks.source + source * chunks.source_pitch + position));
        }
    }

    // Sixteen positions of eight sources: two in each tile, eight rows apart.
    __device__ __forceinline__ void turn(nc_u8 *place, nc_u32 octet, const uint4 (&from)[8]) const {
        const nc_u32 row = lane / 8 * 16 + lane % 8, eight_rows = min(steps, 4u) * 256;
        nc_u8 *to = place + octet / 16 * STAGE + swizzled(row, octet / 2 % 8, steps) + octet % 2 * 8;
#pragma unroll
        for (nc_u32 word = 0; word < 4; word++) {
            nc_u32 first[4], second[4];
#pragma unroll
            for (nc_u32 i = 0; i < 4; i++) {
                first[i] = word == 0 ? from[i].x : word == 1 ? from[i].y : word == 2 ? from[i].z : from[i].w;
                second[i] = word == 0 ? from[i + 4].x : word == 1 ? from[i + 4].y : word == 2 ? from[i + 4].z : from[i + 4].w;
            }
            nc_transpose(first);
            nc_transpose(second);
#pragma unroll
            for (nc_u32 i = 0; i < 4; i++) {
                const nc_u32 tile = word * 2 + i / 2;
                *reinterpret_cast<uint2 *>(to + tile * steps * BLOCK + i % 2 * eight_rows) = make_uint2(first[i], second[i]);
            }
        }
    }

    __device__ __forceinline__ void run(const nc_chunks &chunks, nc_u32 units, nc_u32 places) const {
        const nc_u32 octets = (chunks.n + 7) / 8;
        if (blockIdx.x >= units) return;
        Cursor at = {0, 1};
        nc_u32 unit = blockIdx.x, octet = warp;
        // A warp that has no eight sources of a unit arrives all the same.
        uint4 now[8], next[8];
        load(now, chunks, octet, (nc_u64)unit * NC_TENSOR_UNIT_BYTES + lane * 16);
#pragma unroll 1
        while (true) {
            const bool is_last = octet + 4 >= octets;
            const nc_u32 next_octet = is_last ? warp : octet + 4;
            const nc_u64 next_unit = is_last ? (nc_u64)unit + gridDim.x : unit;
            if (next_unit < units) load(next, chunks, next_octet, next_unit * NC_TENSOR_UNIT_BYTES + lane * 16);
            if (octet == warp) barrier_wait(empty + 8 * at.at, at.parity);
            if (octet < octets) turn(ring + at.at * place_bytes, octet, now);
            if (is_last) {
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                __syncwarp();
                if (lane == 0) barrier_arrive(full + 8 * at.at);
                at.advance(places);
            }
            if (next_unit >= units) return;
            unit = (nc_u32)next_unit;
            octet = next_octet;
#pragma unroll
            for (nc_u32 i = 0; i < 8; i++) now[i] = next[i];
        }
    }
};

// A warp of a multiplying warpgroup, over sixteen rows of each group of 32.
struct Multiplier {
    static constexpr int COLUMNS = 128;
    typedef Consumer<COLUMNS, 2, 1, 8, 32768> Tools;

    Tools tools;
    nc_u32 full, empty, tiles, bits; // the last two as descriptors, `bits` of the warpgroup's rows
    nc_u32 steps, place_bytes, group_bytes;
    nc_u32 first_row, quarter;

    // A group's rows of a unit.
    template <int STEPS> __device__ __forceinline__ void unit(const nc_chunks &chunks, nc_u32 place, nc_u32 b, nc_u32 row0, nc_u64 position) const {
        nc_u32 even[COLUMNS / 2], odd[COLUMNS / 2], words[4][4], first_pairs[2], second_pairs[2];
        const nc_u32 tile_bytes = (STEPS ? STEPS : steps) * BLOCK;
#pragma unroll
        for (nc_u32 tile = 0; tile < TILES; tile++) {
            const nc_u32 a = scalar(place + (tile * tile_bytes >> 4));
            if (tile % 2) tools.template advance_tile<STEPS>(odd, even, first_pairs, a, b, true, false);
            else {
                tools.template advance_tile<STEPS>(even, odd, second_pairs, a, b, tile != 0, false);
                if (tile) Tools::join(words[tile / 2 - 1], first_pairs, second_pairs);
            }
            if constexpr (STEPS == 0) {
#pragma unroll 1
                for (nc_u32 step = 4; step < steps; step += 4) {
                    const nc_u32 next_a = scalar(a + (step * BLOCK >> 4)), next_b = scalar(b + (step / 4 * (COLUMNS * 128) >> 4));
                    if (tile % 2) tools.start_four(odd, next_a, next_b, 1);
                    else tools.start_four(even, next_a, next_b, 1);
                }
            }
        }
        mma_wait<0>();
        tools.template push<1, 0>(second_pairs, odd);
        Tools::join(words[3], first_pairs, second_pairs);
        if (position >= chunks.bytes) return;
#pragma unroll
        for (nc_u32 block = 0; block < 4; block++) {
            const nc_u32 row = row0 + block * 4 + quarter;
            if (row < chunks.rows)
                *reinterpret_cast<uint4 *>(chunks.out + row * chunks.out_pitch + position) =
                    make_uint4(words[0][block], words[1][block], words[2][block], words[3][block]);
        }
    }

    template <int STEPS> __device__ __forceinline__ void run(const nc_chunks &chunks, nc_u32 units, nc_u32 places) const {
        Cursor at = {0, 0};
#pragma unroll 1
        for (nc_u64 index = blockIdx.x; index < units; index += gridDim.x) {
            const nc_u32 place = tiles + (at.at * place_bytes >> 4);
            barrier_wait(full + 8 * at.at, at.parity);
#pragma unroll 1
            for (nc_u32 group = 0; group < chunks.groups; group++) {
                const nc_u32 row0 = first_row + group * NC_TENSOR_CHUNKS_ROWS;
                if (uniform(row0 >= chunks.rows)) break;
                unit<STEPS>(chunks, place, scalar(bits + (group * group_bytes >> 4)), row0, index * NC_TENSOR_UNIT_BYTES + tools.owner * 16);
            }
            if (tools.lane == 0) barrier_arrive(empty + 8 * at.at);
            at.advance(places);
        }
    }
};

} // namespace

extern "C" __global__ void __launch_bounds__(NC_TENSOR_CHUNKS_THREADS, 1)
nc_tensor_chunks(const __grid_constant__ nc_chunks chunks, const nc_tables *tables) {
    extern __shared__ __align__(1024) nc_u8 shared[];
    const nc_u32 base = shared_address(shared), full = base, empty = base + 64;
    const nc_u32 thread = threadIdx.x, warp = uniform(thread / 32), lane = thread % 32;
    const nc_u32 steps = uniform(steps_of(chunks.n)), wide = (steps + 3) / 4, narrow = min(steps, 4u);
    const nc_u32 places = steps <= 4 ? NC_TENSOR_CHUNKS_UNITS : 1, place_bytes = steps * NC_TENSOR_CHUNKS_TILES;
    const nc_u32 group_bytes = steps * NC_TENSOR_CHUNKS_BITS, half_bytes = narrow * (NC_TENSOR_CHUNKS_BITS / 2);
    const nc_u32 units = (nc_u32)((chunks.bytes + NC_TENSOR_UNIT_BYTES - 1) / NC_TENSOR_UNIT_BYTES);
    const nc_u32 first = blockIdx.y * chunks.groups * NC_TENSOR_CHUNKS_ROWS;
    nc_u8 *ring = shared + NC_TENSOR_CHUNKS_FIXED, *bits = ring + places * place_bytes;
    nc_u32 *table = reinterpret_cast<nc_u32 *>(shared + 512);
    if (thread == 0) {
        for (nc_u32 i = 0; i < places; i++) {
            barrier_init(full + 8 * i, 4);
            barrier_init(empty + 8 * i, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    fill_table(table, tables, thread);
    __syncthreads();
    // Sixteen coefficients of a row a turn. A group is two halves of sixteen rows for each 128 sources.
    const nc_u32 sixteens = steps * 2, pieces = chunks.groups * NC_TENSOR_CHUNKS_ROWS * sixteens;
#pragma unroll 1
    for (nc_u32 piece = thread; piece < pieces; piece += NC_TENSOR_CHUNKS_THREADS) {
        const nc_u32 local = piece / sixteens, sixteen = piece % sixteens, row = first + local;
        const nc_u8 *from = reinterpret_cast<const nc_u8 *>(chunks.matrix) + (nc_u64)row * chunks.n;
        nc_u32 words[4] = {0, 0, 0, 0};
#pragma unroll
        for (nc_u32 i = 0; i < 16; i++) {
            const nc_u32 source = sixteen * 16 + i;
            if (row < chunks.rows && source < chunks.n) words[i / 4] |= (nc_u32)from[source] << i % 4 * 8;
        }
        nc_u8 *half = bits + local / 32 * group_bytes + (local % 32 / 16 * wide + sixteen / 8) * half_bytes;
        spread(half + swizzled(column_of(local % 16), sixteen % 8, steps), narrow * 256, table, make_uint4(words[0], words[1], words[2], words[3]));
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();

    if (warp >= 8) {
        fewer_registers<88>();
        Turner{full, empty, steps, place_bytes, ring, warp - 8, lane}.run(chunks, units, places);
        return;
    }
    more_registers<208>();
    Multiplier me;
    me.tools.owner = warp % 4 * 8 + lane / 4, me.tools.lane = lane, me.tools.held = 0;
    asm volatile("mov.u32 %0, 65536;" : "=r"(me.tools.high));
    asm volatile("mov.u32 %0, 2;" : "=r"(me.tools.two));
    me.full = full, me.empty = empty, me.tiles = descriptor(shared_address(ring));
    me.bits = descriptor(shared_address(bits) + warp / 4 * wide * half_bytes);
    me.steps = steps, me.place_bytes = place_bytes, me.group_bytes = group_bytes;
    me.first_row = first + warp / 4 * 16, me.quarter = lane % 4;
    if (steps == 1) me.run<1>(chunks, units, places);
    else if (steps == 2) me.run<2>(chunks, units, places);
    else me.run<0>(chunks, units, places);
}

#define NC_TENSOR_ENTRY(name, columns, groups, pair, stages, per_sm, more, fewer) \
    extern "C" __global__ void __launch_bounds__(groups * 128 + 128, per_sm) __cluster_dims__(pair, 1, 1)                                            \
        name(const __grid_constant__ nc_launch launch, const nc_tables *tables) {                                                                    \
        encode<columns, groups, pair, stages, more, fewer>(launch, tables);                                                                          \
    }

NC_TENSOR_ENTRY(nc_tensor_32, 128, 2, 1, 8, 1, 208, 88)
NC_TENSOR_ENTRY(nc_tensor_16, 128, 1, 1, 6, 2, 192, 64)
NC_TENSOR_ENTRY(nc_tensor_8, 64, 1, 1, 6, 2, 128, 64)
NC_TENSOR_ENTRY(nc_tensor_pair, 128, 1, 2, 12, 1, 224, 64)

// Source blocks to tiles: 16 sources x 8 positions a thread, lanes that share positions beside each other: they write whole rows of a tile.
extern "C" __global__ void __launch_bounds__(256) nc_form_tiles(const nc_form_task *forms, nc_u32 count, const nc_tables *) {
    if (blockIdx.y >= count) return;
    const nc_form_task task = forms[blockIdx.y];
    const nc_u32 tiles = (task.k + 63) / 64, steps = steps_of(task.n), sixteens = min(8u, steps * 2), eights = tiles * 8;
    const nc_u32 pieces = steps * 2 * eights;
    for (nc_u32 piece = blockIdx.x * blockDim.x + threadIdx.x; piece < pieces; piece += gridDim.x * blockDim.x) {
        const nc_u32 rest = piece / sixteens, chunk = rest / eights, sixteen = piece % sixteens, position = (rest - chunk * eights) * 8;
        uint2 words[16];
#pragma unroll
        for (nc_u32 i = 0; i < 16; i++) {
            const nc_u32 source = chunk * 128 + sixteen * 16 + i;
            const nc_u64 offset = (nc_u64)source * task.k + position;
            words[i] = make_uint2(0, 0);
            if (source < task.n && position < task.k && offset < task.raw_length) {
                words[i] = *reinterpret_cast<const uint2 *>(task.raw + (nc_u64)source * task.raw_pitch + position);
                const nc_u64 bytes = task.raw_length - offset;
                if (bytes < 4) words[i].x &= (1u << (8 * (nc_u32)bytes)) - 1;
                if (bytes <= 4) words[i].y = 0;
                else if (bytes < 8) words[i].y &= (1u << (8 * (nc_u32)(bytes - 4))) - 1;
            }
        }
        // A thread of the encoder owns two neighbouring positions a tile in all tiles of a group: eight, or at the end of a block four, two and one.
        const nc_u32 tile = position / 64, unit = tile / TILES * TILES, over = tiles - unit;
        nc_u32 from = unit, group = TILES;
        if (over < TILES) {
            group = 4;
            while (!(over & group) || tile >= from + group) {
                if (over & group) from += group;
                group /= 2;
            }
        }
        const nc_u32 shift = 32 - __clz(group);
#pragma unroll
        for (nc_u32 i = 0; i < 8; i++) {
            nc_u32 packed[4];
            const nc_u32 select = i % 4 | (4 + i % 4) << 4;
#pragma unroll
            for (nc_u32 j = 0; j < 4; j++) {
                const uint2 *w = words + 4 * j;
                packed[j] = i < 4 ? __byte_perm(__byte_perm(w[0].x, w[1].x, select), __byte_perm(w[2].x, w[3].x, select), 0x5410)
                                  : __byte_perm(__byte_perm(w[0].y, w[1].y, select), __byte_perm(w[2].y, w[3].y, select), 0x5410);
            }
            const nc_u32 x = position + i - from * 64, owner = x >> shift, byte = x & ((1u << shift) - 1);
            const nc_u32 row = owner / 8 * 16 + byte % 2 * 8 + owner % 8;
            const nc_u64 to = task.out + (nc_u64)(from + byte / 2) * steps * BLOCK + chunk * STAGE + swizzled(row, sixteen, steps);
            *reinterpret_cast<uint4 *>(to) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
        }
    }
}
