// PAGE
#include "nc_common.cuh"

namespace {

// --- Multiplication: Mul of Figures 2 and 3.

// The bytes of nc_tables by loads that go past the first-level cache, by the read-only path, and by a texture over them.
struct Global {
    const nc_u8 *base;
    __device__ __forceinline__ Global(const nc_tables *tables, nc_u64) : base(tables->log) {}
    __device__ __forceinline__ nc_u32 at(nc_u32 i) const { return __ldcg(base + i); }
};

struct ReadOnly {
    nc_u64 base;
    __device__ __forceinline__ ReadOnly(const nc_tables *tables, nc_u64) : base((nc_u64)tables) { asm volatile("" : "+l"(base)); }
    __device__ __forceinline__ nc_u32 at(nc_u32 i) const { return __ldg(reinterpret_cast<const nc_u8 *>(base + i)); }
};

struct Texture {
    nc_u64 texture;
    __device__ __forceinline__ Texture(const nc_tables *, nc_u64 texture) : texture(texture) {}
    __device__ __forceinline__ nc_u32 at(nc_u32 i) const {
        nc_u32 value;
        asm volatile("{ .reg .u32 g, b, a; tex.1d.v4.u32.s32 {%0, g, b, a}, [%1, {%2}]; }" : "=r"(value) : "l"(texture), "r"(i));
        return value;
    }
};

// Where the tables stand in nc_tables.
constexpr nc_u32 EXP = 256, PRODUCT = 768;

// Algorithm 1: one lookup in a table of 64 KiB.
template <class TABLES>
struct Product : TABLES {
    static constexpr bool LOGS = false;
    using TABLES::TABLES;
    __device__ __forceinline__ nc_u32 prepared(nc_u32 x) const { return x; }
    __device__ __forceinline__ nc_u32 product(nc_u32 x, nc_u32 y) const { return this->at(PRODUCT + 256 * x + y); }
};

// Algorithm 2: two tests, three lookups and an addition.
template <class TABLES>
struct LogExp : TABLES {
    using TABLES::TABLES;
    __device__ __forceinline__ nc_u32 product(nc_u32 x, nc_u32 y) const {
        if (x == 0 || y == 0) return 0;
        return this->at(EXP + this->at(x) + this->at(y));
    }
};

} // namespace
