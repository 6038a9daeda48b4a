// Instructions that hand a carry to the next one, of which all arithmetic on long numbers is made (nc_mp.cuh).
//
// `_cc` sets the carry, `addc`, `subc` and `madc` take it. They are volatile, so they stay in the order in which they are written; what stands between
// two of them must be nothing that the compiler makes of other instructions with a carry, which are these alone. A `lo` and the `hi` behind it of the
// same factors, onto two neighbouring words, become one IMAD.WIDE with a carry in and out.
#ifndef NC_CARRY_CUH
#define NC_CARRY_CUH

#include "nc_abi.h"

#define NC_CARRY_TWO(name, instruction) \
    __device__ __forceinline__ nc_u32 name(nc_u32 a, nc_u32 b) { \
        nc_u32 out; \
        asm volatile(instruction ".u32 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b)); \
        return out; \
    }
#define NC_CARRY_THREE(name, instruction) \
    __device__ __forceinline__ nc_u32 name(nc_u32 a, nc_u32 b, nc_u32 c) { \
        nc_u32 out; \
        asm volatile(instruction ".u32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c)); \
        return out; \
    }

NC_CARRY_TWO(nc_add_cc, "add.cc")
NC_CARRY_TWO(nc_addc_cc, "addc.cc")
NC_CARRY_TWO(nc_addc, "addc")
NC_CARRY_TWO(nc_sub_cc, "sub.cc")
NC_CARRY_TWO(nc_subc_cc, "subc.cc")
NC_CARRY_TWO(nc_subc, "subc")
NC_CARRY_THREE(nc_mad_lo_cc, "mad.lo.cc")
NC_CARRY_THREE(nc_madc_lo_cc, "madc.lo.cc")
NC_CARRY_THREE(nc_mad_hi_cc, "mad.hi.cc")
NC_CARRY_THREE(nc_madc_hi_cc, "madc.hi.cc")
NC_CARRY_THREE(nc_madc_hi, "madc.hi")

// c + a b on two words in one register of 64 bits, which the compiler keeps in two neighbouring ones.
#define NC_CARRY_WIDE(name, low) \
    __device__ __forceinline__ nc_u64 name(nc_u32 a, nc_u32 b, nc_u64 c) { \
        nc_u64 out; \
        asm volatile("{\n\t.reg .u32 low, high;\n\tmov.b64 {low, high}, %3;\n\t" low ".u32 low, %1, %2, low;\n\t" \
                     "madc.hi.cc.u32 high, %1, %2, high;\n\tmov.b64 %0, {low, high};\n\t}" \
                     : "=l"(out) : "r"(a), "r"(b), "l"(c)); \
        return out; \
    }
NC_CARRY_WIDE(nc_mad_wide_cc, "mad.lo.cc")
NC_CARRY_WIDE(nc_madc_wide_cc, "madc.lo.cc")

#undef NC_CARRY_TWO
#undef NC_CARRY_THREE
#undef NC_CARRY_WIDE

#endif
