// Each operation of nc_mp.cuh on arrays of numbers: what the library of Chu, Zhao and Wang (NETWORKING 2009, section 3) has, to be compared with another
// one. A thread a pair of numbers.
//
// Two numbers a and b of N limbs come to (the words behind are undefined):
//   0 compare               -1, 0 or 1
//   1 subtract              a - b, then the borrow
//   2, 3 modular add, subtract
//   4 multiply              2 N limbs
//   5 divide                the quotient of a + b 2^(32 N) by p, N + 1 limbs, then the remainder
//   6 inverse               of a, then 1 if there is one
//   7 Montgomery reduce     a + b 2^(32 N), b below p
//   8 Montgomery multiply   a b / R
//
// N is 9, 32 or 64. Nothing but tests launches this. The larger ones keep their numbers in local memory.
#include "nc_mp.cuh"

namespace {

template <int N> struct Operands {
    const nc_u32 *p;
    nc_u32 negated;
    __device__ __forceinline__ void multiply(nc_u32 *out, const nc_u32 *a, const nc_u32 *b) const {
        nc_mont_multiply_by<N>(out, a, [&](int i) { return make_uint4(b[i], b[i + 1], b[i + 2], b[i + 3]); }, p, negated);
    }
};
template <> __device__ __forceinline__ void Operands<9>::multiply(nc_u32 *out, const nc_u32 *a, const nc_u32 *b) const {
    nc_mont_multiply<9>(out, a, b, p, negated);
}

template <int N> __device__ __forceinline__ void operate(const nc_mp_operations &task) {
    const nc_u32 index = blockIdx.x * NC_MP_THREADS + threadIdx.x;
    if (index >= task.count) return;
    const nc_u32 *p = task.group.p, negated = task.group.negated;
    nc_u32 a[N], b[N], both[2 * N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        both[i] = a[i] = reinterpret_cast<const nc_u32 *>(task.a)[(nc_u64)index * N + i];
        both[N + i] = b[i] = reinterpret_cast<const nc_u32 *>(task.b)[(nc_u64)index * N + i];
    }
    nc_u32 *out = reinterpret_cast<nc_u32 *>(task.out) + (nc_u64)index * (2 * N + 1);
    nc_u32 one[N];
    switch (task.operation) {
    case 0: out[0] = (nc_u32)nc_mp_compare<N>(a, b); return;
    case 1: out[N] = nc_mp_subtract<N>(one, a, b); break;
    case 2: nc_mp_mod_add<N>(one, a, b, p); break;
    case 3: nc_mp_mod_subtract<N>(one, a, b, p); break;
    case 4: {
        nc_u32 product[2 * N];
        nc_mp_multiply<N>(product, a, b);
        nc_mp_copy<2 * N>(out, product);
        return;
    }
    case 5: {
        nc_u32 quotient[N + 1];
        nc_mp_divide<2 * N, N>(quotient, both, p);
        nc_mp_copy<N + 1>(out, quotient);
        nc_mp_copy<N>(out + N + 1, both);
        return;
    }
    case 6: out[N] = nc_mp_inverse<N>(one, a, p); break;
    case 7: nc_mont_reduce<N>(one, both, p, negated); break;
    default: Operands<N>{p, negated}.multiply(one, a, b); break;
    }
    nc_mp_copy<N>(out, one);
}

} // namespace

extern "C" __global__ void __launch_bounds__(NC_MP_THREADS) nc_mp_9(const nc_mp_operations task) { operate<9>(task); }
extern "C" __global__ void __launch_bounds__(NC_MP_THREADS) nc_mp_32(const nc_mp_operations task) { operate<32>(task); }
extern "C" __global__ void __launch_bounds__(NC_MP_THREADS) nc_mp_64(const nc_mp_operations task) { operate<64>(task); }
