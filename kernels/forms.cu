// Plain forms of a generation, and blocks that go to places which do not lie side by side.
//
// Forms. Each is n * k bytes, row-major, block j at j * k, 16-byte aligned:
//
//   nc_form_bytes   the bytes themselves
//   nc_form_logs    the logarithm of each byte, 255 for zero (Shojania and Li's table-based-1 and -2)
//   nc_form_logs1   the logarithm plus one, 0 for zero (their table-based-3 to -5, where a zero is told by loading it)
//
// What lies behind `raw_length` counts as zero and is never read. One thread takes sixteen bytes: a load, sixteen lookups in 256
// bytes of shared memory, a store. gridDim.y = tasks, gridDim.x any (best enough for NC_FORM_THREADS * 16 bytes a block),
// NC_FORM_THREADS threads.
//
// nc_copy_to_slots writes `count` blocks of `bytes` bytes, the first at `from`, the next `from_pitch` behind it, to the
// addresses of a list, which may be in pinned host memory: for ring slots that are not neighbours, for which a copy each would cost
// more than the bytes. A warp stores 512 bytes that begin at a multiple of 128 in the slot's own address, so that the link sees
// whole lines. Addresses, `from`, `from_pitch` and `bytes` are multiples of 16. NC_COPY_THREADS threads, any grid: stores over the link
// are posted, so few blocks fill it and the rest of the device stays free.

#include "nc_common.cuh"

namespace {

__device__ __forceinline__ nc_u32 mapped(nc_u32 word, const nc_u8 *map) {
    return map[word & 255] | map[word >> 8 & 255] << 8 | map[word >> 16 & 255] << 16 | (nc_u32)map[word >> 24] << 24;
}

// Sixteen bytes of which only the first `length` are there.
__device__ __forceinline__ uint4 beginning(const nc_u8 *from, nc_u32 length) {
    nc_u32 words[4] = {0, 0, 0, 0};
#pragma unroll
    for (nc_u32 i = 0; i < 16; i++)
        if (i < length) words[i / 4] |= (nc_u32)from[i] << i % 4 * 8;
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// Each sixteen bytes of the generation of this block's task, through `map` unless it is null.
__device__ __forceinline__ void form(const nc_form_task task, const nc_u8 *map) {
    const nc_u8 *raw = reinterpret_cast<const nc_u8 *>(task.raw);
    uint4 *out = reinterpret_cast<uint4 *>(task.out);
    const nc_u32 width = task.k / 16, count = task.n * width;
    const nc_u32 step = gridDim.x * blockDim.x;
    for (nc_u32 v = blockIdx.x * blockDim.x + threadIdx.x; v < count; v += step) {
        const nc_u32 at = 16 * v; // below 2^26: n is at most 1024
        const nc_u8 *from = raw + (task.raw_pitch == task.k ? (nc_u64)at : (nc_u64)(v / width) * task.raw_pitch + v % width * 16);
        uint4 words;
        if (at + 16 <= task.raw_length) words = *reinterpret_cast<const uint4 *>(from);
        else words = beginning(from, at < task.raw_length ? task.raw_length - at : 0);
        if (map) words = make_uint4(mapped(words.x, map), mapped(words.y, map), mapped(words.z, map), mapped(words.w, map));
        out[v] = words;
    }
}

template <nc_u32 PLUS>
__device__ __forceinline__ void form_logs(const nc_form_task *tasks, const nc_tables *tables) {
    __shared__ nc_u8 map[256];
    for (nc_u32 i = threadIdx.x; i < 256; i += blockDim.x) map[i] = (nc_u8)(tables->log[i] + PLUS);
    __syncthreads();
    form(tasks[blockIdx.y], map);
}

} // namespace

extern "C" __global__ void __launch_bounds__(NC_FORM_THREADS) nc_form_bytes(const nc_form_task *tasks, nc_u32, const nc_tables *) {
    form(tasks[blockIdx.y], nullptr);
}

extern "C" __global__ void __launch_bounds__(NC_FORM_THREADS) nc_form_logs(const nc_form_task *tasks, nc_u32, const nc_tables *tables) {
    form_logs<0>(tasks, tables);
}

extern "C" __global__ void __launch_bounds__(NC_FORM_THREADS) nc_form_logs1(const nc_form_task *tasks, nc_u32, const nc_tables *tables) {
    form_logs<1>(tasks, tables);
}

extern "C" __global__ void __launch_bounds__(NC_COPY_THREADS)
nc_copy_to_slots(const nc_u64 *addresses, const nc_u8 *from, nc_u32 from_pitch, nc_u32 count, nc_u32 bytes) {
    const nc_u32 lane = threadIdx.x % 32, vectors = bytes / 16;
    const nc_u32 spans = vectors / 32 + 2; // warp-wide spans of a block, however it lies to a line
    const nc_u32 warps = gridDim.x * (blockDim.x / 32);
    for (nc_u32 span = (blockIdx.x * blockDim.x + threadIdx.x) / 32; span < count * spans; span += warps) {
        const nc_u32 block = span / spans;
        const nc_u64 to = addresses[block];
        const nc_u32 v = span % spans * 32 + lane - (nc_u32)(to / 16 % 8); // wraps below zero, and is then no vector
        if (v < vectors)
            reinterpret_cast<uint4 *>(to)[v] = reinterpret_cast<const uint4 *>(from + (nc_u64)block * from_pitch)[v];
    }
}
