// Homomorphic hashes: products of powers modulo p, of 1024 or 2048 bits, as Chu, Zhao and Wang compute them (NETWORKING 2009, section 4), and as we do.
//
// A thread multiplies by itself (nc_mp.cuh): its own number in registers, the other one's limbs from memory, four at a time, p from constant memory. Eight
// times through a loop of four limbs that is small enough to stay where instructions are fetched from. The number of 1024 bits takes 32 registers and its
// two sums 64, so four thread blocks of 128 fit a multiprocessor; that of 2048 bits has one.
//
//   power_paper  Algorithm 2: a thread an exponentiation, bit by bit from the top, each result out of Montgomery form again; join multiplies them.
//   ladder       each base squared again and again, for the first entries of its table; a thread a base.
//   lanes        the same by a warp a base: a lane has one limb (two of 2048 bits), carries wait beside it until the end, where two ballots and an
//                addition tell each lane what it gets. For few bases, where threads by themselves would be alone on their multiprocessors.
//   table        each digit's power of each window of each base: a thread a window, a multiplication an entry.
//   fixed        products of powers by the tables, as Brickell, Gordon, McCurley and Wilson have it (EUROCRYPT '92): a multiplication for each digit that
//                is not zero and no squaring. A thread takes a share of the digits of a word, or several; a thread block multiplies what its threads have.
//   join         the product of a row's parts, out of Montgomery form, big-endian.
//
// Checking coded blocks is fold (gfq.cu) of payloads and vectors, fixed over the generators' tables, ladder or lanes, table and fixed over the hashes', and a
// comparison by the host.
//
// Memory of a table: bases * (256 / window + 1) * 2^window * 128 bytes, 553 MB for 512 generators and windows of 8 bits, 68 MB for 4. A multiplication reads
// one entry. Multiplications for a block of 512 words: 16,384 with windows of 8 bits and 511 to multiply all; 32,768 with 4; 197,119 by Algorithm 2 on average.
//
// Instructions of a multiplication of 1024 bits: eight times 304 (252 IMAD.WIDE) and some 230 around; in power_paper eight times 357; of 2048 bits sixteen
// times 683 (508). lanes: 32 times 22 and 80 at the end, by a warp; 2048 bits 32 times 57. Registers: power_paper 122, ladder 118, lanes 18, table 120, fixed
// 126, join 120; of 2048 bits 236, 232, 28, 230, 234, 240. Nothing spills; numbers to be multiplied with are in local memory where that is the thread's own.
// power_paper with a place to multiply for each line of Algorithm 2 had p in registers and 476 instructions.
#include "nc_mp.cuh"

#define THREADS NC_HASH_THREADS

namespace {

// A number in memory that starts at a multiple of 16 bytes, by fours of limbs.
struct Number {
    const nc_u32 *limbs;
    __device__ __forceinline__ uint4 operator()(int i) const { return *reinterpret_cast<const uint4 *>(limbs + i); }
};
template <int N> __device__ __forceinline__ void load(nc_u32 *out, const nc_u32 *limbs) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const uint4 four = Number{limbs}(i);
        out[i] = four.x, out[i + 1] = four.y, out[i + 2] = four.z, out[i + 3] = four.w;
    }
}
template <int N> __device__ __forceinline__ void store(nc_u32 *limbs, const nc_u32 *a) {
#pragma unroll
    for (int i = 0; i < N; i += 4) *reinterpret_cast<uint4 *>(limbs + i) = make_uint4(a[i], a[i + 1], a[i + 2], a[i + 3]);
}

template <int N> __device__ __forceinline__ void store_one(nc_u32 *limbs) {
#pragma unroll
    for (int i = 0; i < N; i++) limbs[i] = i == 0;
}

template <int N, class Load> __device__ __forceinline__ void multiply(nc_u32 *a, Load by, const nc_group &group) {
    nc_mont_multiply_by<N>(a, a, by, group.p, group.negated);
}
// `room` is for N limbs, as of Number.
template <int N> __device__ __forceinline__ void square(nc_u32 *a, nc_u32 *room, const nc_group &group) {
    store<N>(room, a);
    multiply<N>(a, Number{room}, group);
}

// Into Montgomery form.
template <int N> __device__ __forceinline__ void enter(nc_u32 *a, nc_u32 *room, const nc_group &group) {
    store<N>(room, group.square);
    multiply<N>(a, Number{room}, group);
}

// Exponents of a row.
struct Exponents {
    const nc_u8 *bytes;
    nc_u32 words, tops;

    __device__ __forceinline__ nc_u32 top(nc_u32 k) const { return tops ? bytes[(nc_u64)32 * words + k / 8] >> (k & 7) & 1 : 0; }
    // The bits from bit `at` of word k on, so many that no byte ends among them.
    __device__ __forceinline__ nc_u32 bits(nc_u32 k, nc_u32 at, nc_u32 count) const {
        return at == 256 ? top(k) : bytes[32 * k + 31 - at / 8] >> (at & 7) & ((1u << count) - 1);
    }
};
__device__ __forceinline__ Exponents exponents_of(const nc_hash &task, nc_u32 row) {
    return {reinterpret_cast<const nc_u8 *>(task.exponents) + (nc_u64)row * task.exponents_pitch, task.words, task.tops};
}

template <int N> __device__ __forceinline__ nc_u32 *table_of(const nc_hash &task, nc_u32 row, nc_u32 k, nc_u32 j) {
    nc_u32 *table = reinterpret_cast<nc_u32 *>(task.table + row * task.table_step);
    return table + (((nc_u64)k * task.windows + j) << task.window) * N;
}
template <int N> __device__ __forceinline__ const nc_u32 *base_of(const nc_hash &task, nc_u32 row, nc_u32 k) {
    return reinterpret_cast<const nc_u32 *>(task.bases + row * task.bases_step) + (nc_u64)k * N;
}

// Thread 0 gets the product of what all have.
template <int N> __device__ __forceinline__ void multiply_all(nc_u32 *a, const nc_group &group) {
    __shared__ uint4 others[N / 4][THREADS / 2];
#pragma unroll 1
    for (nc_u32 half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x >= half && threadIdx.x < 2 * half) {
#pragma unroll
            for (int i = 0; i < N; i += 4) others[i / 4][threadIdx.x - half] = make_uint4(a[i], a[i + 1], a[i + 2], a[i + 3]);
        }
        __syncthreads();
        if (threadIdx.x < half) multiply<N>(a, [&](int i) { return others[i / 4][threadIdx.x]; }, group);
    }
}

// Algorithm 2 of the paper, from its first line to its last. There is one place that multiplies, which keeps the code short: the turns before and behind
// those of the exponent's bits, 256 to 0, are those into Montgomery form and out of it.
template <int N> __device__ __forceinline__ void power_paper(const nc_hash &task) {
    const nc_u32 all = task.rows * task.words;
#pragma unroll 1
    for (nc_u32 index = blockIdx.x * blockDim.x + threadIdx.x; index < all; index += gridDim.x * blockDim.x) {
        const nc_u32 row = index / task.words, k = index % task.words;
        const Exponents exponents = exponents_of(task, row);
        alignas(16) nc_u32 base[N], other[N];
        nc_u32 a[N];
        load<N>(a, base_of<N>(task, row, k));
#pragma unroll 1
        for (int at = 257; at >= -1; at--) {
            const bool is_bit = at >= 0 && at <= 256;
            if (is_bit) store<N>(other, a);
            else if (at == 257) store<N>(other, task.group.square);
            else store_one<N>(other);
            const nc_u32 *by = other;
#pragma unroll 1
            for (nc_u32 turns = is_bit ? 1 + exponents.bits(k, at, 1) : 1; turns > 0; turns--) {
                multiply<N>(a, Number{by}, task.group);
                by = base;
            }
            if (at == 257) {
                store<N>(base, a);
#pragma unroll
                for (int i = 0; i < N; i++) a[i] = task.group.one[i];
            }
        }
        store<N>(reinterpret_cast<nc_u32 *>(task.parts) + (nc_u64)index * N, a);
    }
}

// Each base to the powers 2^(window * j): what the table has for a digit of one. A thread a base.
template <int N> __device__ __forceinline__ void ladder(const nc_hash &task) {
    const nc_u32 k = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y;
    if (k >= task.words) return;
    alignas(16) nc_u32 room[N];
    nc_u32 a[N];
    load<N>(a, base_of<N>(task, row, k));
    enter<N>(a, room, task.group);
#pragma unroll 1
    for (nc_u32 at = 0; at < task.windows * task.window; at++) {
        if (at % task.window == 0) store<N>(table_of<N>(task, row, k, at / task.window) + N, a);
        square<N>(a, room, task.group);
    }
}

// A number that a warp has: lane i its limbs from K * i on.
template <int K> struct Lanes {
    // Which lanes get a carry, and in bit 32 whether one comes out at the end: `made` are those that make one by themselves, `passing` those that pass one on.
    static __device__ __forceinline__ nc_u64 carries(bool made, bool passing) {
        const nc_u64 from = (nc_u64)__ballot_sync(~0u, made) << 1, through = __ballot_sync(~0u, passing);
        return (from + through) ^ through;
    }

    // words[0..K + 2) += a * b
    static __device__ __forceinline__ void add(nc_u32 *words, const nc_u32 *a, nc_u32 b) {
        words[0] = nc_mad_lo_cc(a[0], b, words[0]);
#pragma unroll
        for (int i = 1; i < K; i++) words[i] = nc_madc_lo_cc(a[i], b, words[i]);
        words[K] = nc_addc_cc(words[K], 0);
        words[K + 1] = nc_addc(words[K + 1], 0);
        words[1] = nc_mad_hi_cc(a[0], b, words[1]);
#pragma unroll
        for (int i = 1; i < K; i++) words[i + 1] = nc_madc_hi_cc(a[i], b, words[i + 1]);
        words[K + 1] = nc_addc(words[K + 1], 0);
    }

    static __device__ __forceinline__ void multiply(nc_u32 *out, const nc_u32 *a, const nc_u32 *b, const nc_u32 *p, nc_u32 negated) {
        const nc_u32 lane = threadIdx.x & 31;
        nc_u32 words[K + 2]; // the last but one belongs to the next lane, as a carry
#pragma unroll
        for (int i = 0; i < K + 2; i++) words[i] = 0;
#pragma unroll 1
        for (nc_u32 from = 0; from < 32; from++) {
#pragma unroll
            for (int i = 0; i < K; i++) {
                add(words, a, __shfl_sync(~0u, b[i], from));
                add(words, p, __shfl_sync(~0u, words[0] * negated, 0));
                const nc_u32 next = __shfl_down_sync(~0u, words[0], 1);
#pragma unroll
                for (int j = 0; j < K - 1; j++) words[j] = words[j + 1];
                words[K - 1] = nc_add_cc(words[K], lane == 31 ? 0 : next);
                words[K] = nc_addc(words[K + 1], 0);
                words[K + 1] = 0;
            }
        }
        const nc_u32 before = __shfl_up_sync(~0u, words[K], 1), top = __shfl_sync(~0u, words[K], 31);
        nc_u32 ones = ~0u;
        words[0] = nc_add_cc(words[0], lane == 0 ? 0 : before);
#pragma unroll
        for (int i = 1; i < K; i++) words[i] = nc_addc_cc(words[i], 0);
        const nc_u32 made = nc_addc(0, 0);
#pragma unroll
        for (int i = 0; i < K; i++) ones &= words[i];
        const nc_u64 in = carries(made != 0, ones == ~0u);
        words[0] = nc_add_cc(words[0], (nc_u32)(in >> lane) & 1);
#pragma unroll
        for (int i = 1; i < K; i++) words[i] = nc_addc_cc(words[i], 0);
        nc_addc(0, 0);
        nc_u32 less[K];
        const nc_u32 borrow = nc_mp_subtract<K>(less, words, p);
        const nc_u64 lent = carries(borrow != 0, nc_mp_is_zero<K>(less));
        less[0] = nc_sub_cc(less[0], (nc_u32)(lent >> lane) & 1);
#pragma unroll
        for (int i = 1; i < K; i++) less[i] = nc_subc_cc(less[i], 0);
        nc_subc(0, 0);
        const bool is_less = top + (nc_u32)(in >> 32) >= (nc_u32)(lent >> 32);
#pragma unroll
        for (int i = 0; i < K; i++) out[i] = is_less ? less[i] : words[i];
    }
};

// The same as `ladder`, by a warp a base.
template <int N> __device__ __forceinline__ void lanes(const nc_hash &task) {
    constexpr int K = N / 32;
    const nc_u32 k = blockIdx.x, row = blockIdx.y, first = threadIdx.x * K;
    nc_u32 a[K], p[K], factor[K];
#pragma unroll
    for (int i = 0; i < K; i++) {
        a[i] = base_of<N>(task, row, k)[first + i];
        p[i] = task.group.p[first + i];
        factor[i] = task.group.square[first + i];
    }
    Lanes<K>::multiply(a, a, factor, p, task.group.negated);
#pragma unroll 1
    for (nc_u32 at = 0; at < task.windows * task.window; at++) {
        if (at % task.window == 0) {
#pragma unroll
            for (int i = 0; i < K; i++) table_of<N>(task, row, k, at / task.window)[N + first + i] = a[i];
        }
        Lanes<K>::multiply(a, a, a, p, task.group.negated);
    }
}

// All other digits. A thread a window of a base.
template <int N> __device__ __forceinline__ void table(const nc_hash &task) {
    const nc_u32 index = blockIdx.x * THREADS + threadIdx.x, k = index / task.windows, j = index % task.windows;
    if (k >= task.words) return;
    nc_u32 *const entries = table_of<N>(task, blockIdx.y, k, j);
    nc_u32 a[N];
#pragma unroll
    for (int i = 0; i < N; i++) a[i] = task.group.one[i];
    store<N>(entries, a);
    load<N>(a, entries + N);
    const nc_u32 digits = j * task.window == 256 ? 2 : 1u << task.window;
#pragma unroll 1
    for (nc_u32 digit = 2; digit < digits; digit++) {
        multiply<N>(a, Number{entries + N}, task.group);
        store<N>(entries + digit * N, a);
    }
}

// The product of the powers of some words, by the table: a multiplication a digit.
template <int N> __device__ __forceinline__ void fixed(const nc_hash &task) {
    const nc_u32 row = blockIdx.y, shares = 256 / task.window / task.share;
    const Exponents exponents = exponents_of(task, row);
    nc_u32 a[N];
#pragma unroll
    for (int i = 0; i < N; i++) a[i] = task.group.one[i];
    bool is_one = true;
#pragma unroll 1
    for (nc_u32 i = 0; i < task.items; i++) {
        const nc_u32 item = (blockIdx.x * task.items + i) * THREADS + threadIdx.x, k = item / shares, share = item % shares;
        if (k >= task.words) break;
        const nc_u32 end = share + 1 == shares ? task.windows : (share + 1) * task.share;
#pragma unroll 1
        for (nc_u32 j = share * task.share; j < end; j++) {
            const nc_u32 digit = exponents.bits(k, j * task.window, task.window);
            if (digit == 0) continue;
            const nc_u32 *entry = table_of<N>(task, row, k, j) + digit * N;
            if (is_one) load<N>(a, entry);
            else multiply<N>(a, Number{entry}, task.group);
            is_one = false;
        }
    }
    multiply_all<N>(a, task.group);
    if (threadIdx.x == 0) store<N>(reinterpret_cast<nc_u32 *>(task.parts) + ((nc_u64)row * task.count + blockIdx.x) * N, a);
}

// The product of a row's parts, out of Montgomery form.
template <int N> __device__ __forceinline__ void join(const nc_hash &task) {
    const nc_u32 *parts = reinterpret_cast<const nc_u32 *>(task.parts) + (nc_u64)blockIdx.x * task.count * N;
    alignas(16) nc_u32 other[N];
    nc_u32 a[N];
#pragma unroll
    for (int i = 0; i < N; i++) a[i] = task.group.one[i];
    store<N>(other, task.group.square);
#pragma unroll 1
    for (nc_u32 i = threadIdx.x; i < task.count; i += THREADS) {
        const nc_u32 *by = parts + (nc_u64)i * N;
#pragma unroll 1
        for (nc_u32 turns = 1 + task.enters; turns > 0; turns--) {
            multiply<N>(a, Number{by}, task.group);
            by = other;
        }
    }
    multiply_all<N>(a, task.group);
    if (threadIdx.x != 0) return;
    store_one<N>(other);
    multiply<N>(a, Number{other}, task.group);
    nc_u32 *out = reinterpret_cast<nc_u32 *>(task.out) + (nc_u64)blockIdx.x * N;
#pragma unroll
    for (int i = 0; i < N; i++) out[N - 1 - i] = __byte_perm(a[i], 0, 0x0123);
}

} // namespace

extern "C" __global__ void __launch_bounds__(512) nc_hash_power_paper_1024(const nc_hash task) { power_paper<32>(task); }
extern "C" __global__ void __launch_bounds__(128) nc_hash_power_paper_2048(const nc_hash task) { power_paper<64>(task); }
extern "C" __global__ void __launch_bounds__(32) nc_hash_ladder_1024(const nc_hash task) { ladder<32>(task); }
extern "C" __global__ void __launch_bounds__(32) nc_hash_ladder_2048(const nc_hash task) { ladder<64>(task); }
extern "C" __global__ void __launch_bounds__(32) nc_hash_lanes_1024(const nc_hash task) { lanes<32>(task); }
extern "C" __global__ void __launch_bounds__(32) nc_hash_lanes_2048(const nc_hash task) { lanes<64>(task); }
extern "C" __global__ void __launch_bounds__(THREADS) nc_hash_table_1024(const nc_hash task) { table<32>(task); }
extern "C" __global__ void __launch_bounds__(THREADS) nc_hash_table_2048(const nc_hash task) { table<64>(task); }
extern "C" __global__ void __launch_bounds__(THREADS) nc_hash_fixed_1024(const nc_hash task) { fixed<32>(task); }
extern "C" __global__ void __launch_bounds__(THREADS) nc_hash_fixed_2048(const nc_hash task) { fixed<64>(task); }
extern "C" __global__ void __launch_bounds__(THREADS) nc_hash_join_1024(const nc_hash task) { join<32>(task); }
extern "C" __global__ void __launch_bounds__(THREADS) nc_hash_join_2048(const nc_hash task) { join<64>(task); }
