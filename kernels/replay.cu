// What a RaptorQ plan does to symbols, on many source blocks at once: thousands of short sums of symbols in a fixed order, and between two passes of them
// a small dense product over GF(2^8), Horner's rule for the HDPC rows before it. Raptor10's plans are the same with more sums in the place of that rule.
//
// A symbol's bytes do not meet those of another place in it, so a lane has four bytes of every slot, and no lane waits for another: a warp does a whole
// plan on a strip of 128 bytes of a source block's symbols. Slots of the strip are in shared memory, 128 bytes a slot, which no two lanes fight over: room
// for 1,816 slots on a card with 227 KiB. Where fewer than eight warps have room they are better in device memory (`global`), of which the caches hold a part.
//
// The plan is read by all warps in the same order, 32 terms at a time, and handed round. Lanes agree on every branch.
//
//   entry              threads        shared memory, dynamic   grid
//   nc_replay_shared   32 ... 512     warps * slots * 128      any: strips are taken in turn
//   nc_replay_global   32 ... 512     -                        any; `work` has 128 bytes a slot for each warp of it
//
// What limits it: the latency of one sum after the other, as long as warps are few.

#include "nc_common.cuh"

namespace {

// Four bytes, each doubled in the field of 0x11D.
__device__ __forceinline__ nc_u32 doubled(nc_u32 word) { return (word & 0x7F7F7F7Fu) << 1 ^ (word >> 7 & 0x01010101u) * 0x1Du; }

// Four bytes of a slot, for one lane.
struct Slots {
    nc_u32 *mine;
    __device__ __forceinline__ nc_u32 &operator[](nc_u32 slot) const { return mine[(nc_u64)slot * 32]; }
};

// Sums in their order.
__device__ __forceinline__ void add_up(const Slots &slots, const nc_u32 *terms, nc_u32 count) {
    const nc_u32 lane = threadIdx.x % 32;
    nc_u32 target = NC_NO_SLOT, sum = 0;
#pragma unroll 1
    for (nc_u32 first = 0; first < count; first += 32) {
        const nc_u32 mine = first + lane < count ? __ldg(terms + first + lane) : 0, here = min(32u, count - first);
#pragma unroll 4
        for (nc_u32 i = 0; i < here; i++) {
            const nc_u32 term = __shfl_sync(~0u, mine, i), slot = term & NC_TERM_SLOT;
            if (term & NC_TERM_HEAD) {
                if (target != NC_NO_SLOT) slots[target] = sum;
                target = slot;
                sum = term & NC_TERM_OWN ? slots[slot] : 0;
            } else {
                sum ^= slots[slot];
            }
        }
    }
    if (target != NC_NO_SLOT) slots[target] = sum;
}

// A word times 1, 2, 4 ... 128.
struct Multiples {
    nc_u32 power[8];
    __device__ __forceinline__ explicit Multiples(nc_u32 word) {
#pragma unroll
        for (nc_u32 bit = 0; bit < 8; bit++) {
            power[bit] = word;
            word = doubled(word);
        }
    }
    __device__ __forceinline__ nc_u32 times(nc_u32 c) const {
        nc_u32 product = 0;
#pragma unroll
        for (nc_u32 bit = 0; bit < 8; bit++) product ^= c & 1u << bit ? power[bit] : 0;
        return product;
    }
};

__device__ __forceinline__ void fold(const Slots &slots, const nc_plan &plan, const nc_u32 *words) {
    nc_u32 running = 0;
#pragma unroll 1
    for (nc_u32 step = 0; step < plan.step_count; step++) {
        const nc_u32 *at = words + plan.steps + 3 * step;
        const nc_u32 source = __ldg(at), first = __ldg(at + 1), second = __ldg(at + 2);
        running = doubled(running);
        if (source != NC_NO_SLOT) running ^= slots[source];
        slots[first] ^= running;
        slots[second] ^= running;
    }
    running = doubled(running);
    if (plan.last != NC_NO_SLOT) running ^= slots[plan.last];
#pragma unroll 1
    for (nc_u32 power = 0; power < plan.power_count; power++) {
        slots[__ldg(words + plan.powers + power)] ^= running;
        running = doubled(running);
    }
}

__device__ __forceinline__ void products(const Slots &slots, const nc_plan &plan, const nc_u32 *words) {
    const nc_u8 *rows = reinterpret_cast<const nc_u8 *>(words + plan.rows);
    const nc_u8 *inverse = reinterpret_cast<const nc_u8 *>(words + plan.inverse);
    const nc_u32 sides = plan.bound + plan.free;
#pragma unroll 1
    for (nc_u32 j = 0; j < plan.bound; j++) {
        const Multiples multiples(slots[j]);
#pragma unroll 1
        for (nc_u32 side = 0; side < plan.sides; side++) slots[sides + side] ^= multiples.times(__ldg(rows + side * plan.bound + j));
    }
#pragma unroll 1
    for (nc_u32 free = 0; free < plan.free; free++) slots[plan.bound + free] = 0;
#pragma unroll 1
    for (nc_u32 side = 0; side < plan.sides; side++) {
        const Multiples multiples(slots[sides + side]);
#pragma unroll 1
        for (nc_u32 free = 0; free < plan.free; free++) slots[plan.bound + free] ^= multiples.times(__ldg(inverse + free * plan.sides + side));
    }
}

__device__ __forceinline__ void load(const Slots &slots, const nc_plan &plan, const nc_u32 *words, nc_u32 count, const nc_u8 *symbols, nc_u32 bytes,
                                     bool is_inside) {
#pragma unroll 4
    for (nc_u32 i = 0; i < count; i++) {
        const nc_u32 slot = __ldg(words + plan.loads + 2 * i), input = __ldg(words + plan.loads + 2 * i + 1);
        slots[slot] = is_inside ? __ldg(reinterpret_cast<const nc_u32 *>(symbols + (nc_u64)input * bytes)) : 0;
    }
}

__device__ __forceinline__ void replay(const nc_replay &task, const Slots &slots, nc_u32 warp, nc_u32 warps) {
    const nc_u32 lane = threadIdx.x % 32, bytes = task.symbol_bytes, strips = (bytes + 127) / 128;
    const nc_u64 *plans = reinterpret_cast<const nc_u64 *>(task.plans);
#pragma unroll 1
    for (nc_u32 item = warp; item < task.blocks * strips; item += warps) {
        const nc_u32 block = item / strips, at = item % strips * 128 + lane * 4;
        const bool is_inside = at < bytes;
        const nc_plan &plan = *reinterpret_cast<const nc_plan *>(plans[block]);
        const nc_u32 *words = reinterpret_cast<const nc_u32 *>(&plan);
        const nc_u8 *symbols = reinterpret_cast<const nc_u8 *>(task.symbols + block * task.symbols_pitch) + at;
        nc_u8 *outputs = reinterpret_cast<nc_u8 *>(task.outputs + block * task.outputs_pitch) + at;
        load(slots, plan, words, plan.load_count, symbols, bytes, is_inside);
        add_up(slots, words + plan.forward, plan.forward_count);
        if (plan.sides > 0) {
            for (nc_u32 side = 0; side < plan.sides; side++) slots[plan.bound + plan.free + side] = 0;
            if (plan.power_count > 0) fold(slots, plan, words);
            add_up(slots, words + plan.walk, plan.walk_count);
            products(slots, plan, words);
        }
        load(slots, plan, words, plan.reload_count, symbols, bytes, is_inside);
        add_up(slots, words + plan.backward, plan.backward_count);
        if (!is_inside) continue;
#pragma unroll 4
        for (nc_u32 i = 0; i < plan.output_count; i++) {
            const nc_u32 word = slots[__ldg(words + plan.outputs + i)];
            __stcs(reinterpret_cast<nc_u32 *>(outputs + (nc_u64)i * bytes), word);
        }
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(32 * NC_REPLAY_WARPS_MAX, 1) nc_replay_shared(const __grid_constant__ nc_replay task) {
    extern __shared__ nc_u32 memory[];
    const nc_u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const Slots slots = {memory + (nc_u64)warp * task.slots * 32 + threadIdx.x % 32};
    // Neighbouring strips to neighbouring thread blocks: with few strips no multiprocessor has two while another has none.
    replay(task, slots, warp * gridDim.x + blockIdx.x, warps * gridDim.x);
}

extern "C" __global__ void __launch_bounds__(32 * NC_REPLAY_WARPS_MAX, 1) nc_replay_global(const __grid_constant__ nc_replay task) {
    const nc_u32 warp = threadIdx.x / 32 * gridDim.x + blockIdx.x, warps = blockDim.x / 32 * gridDim.x;
    const Slots slots = {reinterpret_cast<nc_u32 *>(task.work) + (nc_u64)warp * task.slots * 32 + threadIdx.x % 32};
    replay(task, slots, warp, warps);
}
