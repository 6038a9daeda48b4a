//! q, the order of GF(q), and what products modulo q need of it: the field (`gfq`) and the vector
//! instructions (`simd`) both know these numbers.

use crate::limbs::negative_inverse;

/// 64-bit limbs of an element, the least significant first.
pub const LIMBS: usize = 5;
/// q: a prime of 257 bits. docs/hashes.md gives its origin.
pub const Q: [u64; LIMBS] = [
    0x43c5_f2f4_9ac0_4917,
    0x7381_b606_31a3_9208,
    0x53fe_53b8_f21b_9893,
    0x0b91_c645_389f_aa41,
    1,
];
/// -1 / q modulo 2^64.
pub const Q_INVERSE: u64 = negative_inverse(Q[0]);
/// 2^320 / q, rounded down.
pub const RECIPROCAL: u64 = 0xf4ee_4a25_d882_9c86;
