//! Large numbers, several at a time, by fused multiplications of doubles: for processors without
//! AVX-512 IFMA.
//!
//! Numbers have limbs of 52 bits as in `ifma`, each number in a lane of its own. A product a b of
//! two limbs has 104 bits. 2^104 + a b, rounded once, lies where doubles are multiples of 2^52. Its
//! bits are therefore those of 2^104 plus the upper half of the product, rounded to the nearest. A
//! second fused multiplication makes a b + (2^104 - 1.5 2^52 - the first), which is exact: it is
//! the remainder of the rounding, at most 2^51, less 1.5 2^52. It lies where doubles are whole
//! numbers, so its bits are those of -1.5 2^52 less the remainder. (With a plus instead, 2^104 +
//! 1.5 2^52 is no double.)
//!
//! Bits are added up as whole numbers, including those of 2^104 and of -1.5 2^52. The number of
//! these in a sum is known in advance, and the sum begins with their negative. The rest of a sum
//! may be negative, so most sums begin with 2^60 more. (After Emmart, Zheng and Weems, "Faster
//! modular exponentiation using double precision floating point arithmetic on the GPU", ARITH 2018,
//! whose processors can be told to round toward zero.)
//!
//! A product of 52 bits by 52 thus takes two fused multiplications, a subtraction and two
//! additions. By AVX2's own multiplication, of 32 bits (Gueron and Krasnov, WAIFI 2012), it takes
//! three and a half multiplications and as many additions.
//!
//! The multiplier of the modulus depends on the sum that it settles, step by step. Limbs of the
//! second factor are therefore taken two at a time, so that this is done once for both. It is done
//! between the products of the two previous limbs, which wait for nothing.

pub use eight::Eight;
pub use four::{Four, Quad};

#[macro_use]
mod products;
mod eight;
mod four;
