//! Elements of GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1, written to be read: the reference for
//! every faster form.
//!
//! [`mul`] is the definition. The tables are computed from it at compile time: logarithms to the
//! base 2 for the log-domain form, nibble products for byte shuffles, and 8×8 bit matrices for the
//! affine instruction of GFNI.

/// The reducing polynomial, with its x^8. RaptorQ, ISA-L and most Reed-Solomon codes use the same.
pub const POLYNOMIAL: u16 = 0x11D;

/// The generator x, whose powers are all 255 non-zero elements.
pub const GENERATOR: u8 = 2;

/// The marker of zero among logarithms, which run from 0 to 254.
pub const LOG_OF_ZERO: u8 = 255;

/// The product of two elements: multiply as polynomials over GF(2), reduce as soon as x^8 appears.
pub const fn mul(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut product) = (a as u16, b, 0);
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a <<= 1;
        if a & 0x100 != 0 {
            a ^= POLYNOMIAL;
        }
        b >>= 1;
    }
    low_byte(product)
}

/// The multiplicative inverse of `a`.
///
/// # Panics
/// If `a` is zero, which has none.
pub const fn inv(a: u8) -> u8 {
    assert!(a != 0, "zero has no inverse");
    EXP[255 - LOG[a as usize] as usize]
}

/// `a` divided by `b`.
///
/// # Panics
/// If `b` is zero.
pub const fn div(a: u8, b: u8) -> u8 {
    mul(a, inv(b))
}

/// Powers of the generator, twice over, so that the sum of two logarithms needs no reduction.
pub const EXP: [u8; 512] = {
    let mut table = [0; 512];
    let mut power = 1;
    let mut i = 0;
    while i < table.len() {
        table[i] = power;
        power = mul(power, GENERATOR);
        i += 1;
    }
    table
};

/// Logarithms to the base of the generator; [`LOG_OF_ZERO`] for zero.
#[expect(clippy::cast_possible_truncation, reason = "indices below 256")]
pub const LOG: [u8; 256] = {
    let mut table = [LOG_OF_ZERO; 256];
    let mut i = 0;
    while i < 255 {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
};

/// Products with each coefficient: of the 16 low nibbles, then of the 16 high ones.
#[expect(clippy::cast_possible_truncation, reason = "indices below 256")]
pub static NIBBLE_PRODUCTS: [[u8; 32]; 256] = {
    let mut table = [[0; 32]; 256];
    let mut c = 0;
    while c < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            table[c][nibble] = mul(c as u8, nibble as u8);
            table[c][16 + nibble] = mul(c as u8, (nibble << 4) as u8);
            nibble += 1;
        }
        c += 1;
    }
    table
};

/// Multiplication by each coefficient, as the bit matrix that `gf2p8affineqb` takes: byte 7 - i is
/// the row that makes bit i of the product.
#[expect(clippy::cast_possible_truncation, reason = "indices below 256")]
pub static AFFINE_MATRICES: [u64; 256] = {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 256 {
        let mut column = 0;
        while column < 8 {
            let product = mul(c as u8, 1 << column);
            let mut bit = 0;
            while bit < 8 {
                let set = ((product >> bit) & 1) as u64;
                table[c] |= set << (8 * (7 - bit) + column);
                bit += 1;
            }
            column += 1;
        }
        c += 1;
    }
    table
};

#[expect(
    clippy::cast_possible_truncation,
    reason = "a reduced polynomial has no x^8"
)]
const fn low_byte(polynomial: u16) -> u8 {
    polynomial as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements() -> impl Iterator<Item = u8> {
        0..=255
    }

    #[test]
    fn known_products() {
        assert_eq!(mul(2, 0x80), 0x1D);
        assert_eq!(mul(0x53, 0xCA), 0x8F);
        assert_eq!(mul(0xFF, 0xFF), 0xE2);
        assert_eq!(&EXP[..12], [1, 2, 4, 8, 16, 32, 64, 128, 29, 58, 116, 232]);
        assert_eq!(EXP[255], 1);
    }

    #[test]
    fn it_is_a_field() {
        for a in elements() {
            assert_eq!(mul(a, 1), a);
            assert_eq!(mul(a, 0), 0);
            if a != 0 {
                assert_eq!(mul(a, inv(a)), 1);
                assert_eq!(div(a, a), 1);
            }
            for b in elements() {
                assert_eq!(mul(a, b), mul(b, a));
                assert!(mul(a, b) != 0 || a == 0 || b == 0);
                for c in [2, 0x1D, 0x8E, 0xFF] {
                    assert_eq!(mul(mul(a, b), c), mul(a, mul(b, c)));
                    assert_eq!(mul(a, b ^ c), mul(a, b) ^ mul(a, c));
                }
            }
        }
    }

    #[test]
    fn tables_agree_with_the_definition() {
        for a in elements() {
            for b in elements() {
                let product = mul(a, b);
                let nibbles = &NIBBLE_PRODUCTS[usize::from(a)];
                assert_eq!(
                    nibbles[usize::from(b & 15)] ^ nibbles[16 + usize::from(b >> 4)],
                    product
                );
                if a != 0 && b != 0 {
                    assert_eq!(
                        EXP[usize::from(LOG[usize::from(a)]) + usize::from(LOG[usize::from(b)])],
                        product
                    );
                }
                let affine = (0..8).fold(0, |byte, bit| {
                    let row = AFFINE_MATRICES[usize::from(a)].to_be_bytes()[bit];
                    byte | u8::from((row & b).count_ones() % 2 == 1) << bit
                });
                assert_eq!(affine, product);
            }
        }
        assert_eq!(LOG[0], LOG_OF_ZERO);
    }
}
