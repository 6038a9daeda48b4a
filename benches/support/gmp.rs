//! GMP, as it is linked (Debian: libgmp-dev): what of it multiplies modulo a large number.

use std::ffi::{c_int, c_long};

/// A limb of a number.
pub(crate) type Limb = u64;

/// An integer of any size, whose memory the library owns.
#[repr(C)]
struct Raw {
    allocated: c_int,
    size: c_int,
    limbs: *mut Limb,
}

#[link(name = "gmp")]
unsafe extern "C" {
    fn __gmpz_init(number: *mut Raw);
    fn __gmpz_clear(number: *mut Raw);
    fn __gmpz_import(
        number: *mut Raw,
        count: usize,
        order: c_int,
        size: usize,
        endian: c_int,
        nails: usize,
        limbs: *const Limb,
    );
    fn __gmpz_export(
        limbs: *mut Limb,
        count: *mut usize,
        order: c_int,
        size: usize,
        endian: c_int,
        nails: usize,
        number: *const Raw,
    );
    fn __gmpz_mul(product: *mut Raw, a: *const Raw, b: *const Raw);
    fn __gmpz_mod(rest: *mut Raw, number: *const Raw, modulus: *const Raw);
    fn __gmpz_addmul(sum: *mut Raw, a: *const Raw, b: *const Raw);
    fn __gmpz_powm(power: *mut Raw, base: *const Raw, exponent: *const Raw, modulus: *const Raw);
    fn __gmpz_invert(inverse: *mut Raw, number: *const Raw, modulus: *const Raw) -> c_int;
    fn __gmpn_mul_n(product: *mut Limb, a: *const Limb, b: *const Limb, count: c_long);
    fn __gmpn_sqr(square: *mut Limb, a: *const Limb, count: c_long);
    fn __gmpn_addmul_1(sum: *mut Limb, a: *const Limb, count: c_long, factor: Limb) -> Limb;
    fn __gmpn_add_n(sum: *mut Limb, a: *const Limb, b: *const Limb, count: c_long) -> Limb;
    fn __gmpn_sub_n(difference: *mut Limb, a: *const Limb, b: *const Limb, count: c_long) -> Limb;
    fn __gmpn_cmp(a: *const Limb, b: *const Limb, count: c_long) -> c_int;
}

/// An integer of any size that is not negative.
pub(crate) struct Integer(Raw);

impl Integer {
    /// The number with these limbs, the least significant first.
    pub(crate) fn new(limbs: &[Limb]) -> Self {
        let mut raw = Raw {
            allocated: 0,
            size: 0,
            limbs: std::ptr::null_mut(),
        };
        // SAFETY: a number is initialised before it is used, and no more limbs are read than there
        // are.
        unsafe {
            __gmpz_init(&raw mut raw);
            __gmpz_import(
                &raw mut raw,
                limbs.len(),
                -1,
                size_of::<Limb>(),
                0,
                0,
                limbs.as_ptr(),
            );
        }
        Self(raw)
    }

    /// Its limbs, so many of them.
    pub(crate) fn limbs(&self, count: usize) -> Vec<Limb> {
        let mut limbs = vec![0; count];
        assert!(
            usize::try_from(self.0.size).is_ok_and(|size| size <= count),
            "a number of {count} limbs"
        );
        // SAFETY: the number is initialised, and its limbs have room.
        unsafe {
            __gmpz_export(
                limbs.as_mut_ptr(),
                std::ptr::null_mut(),
                -1,
                size_of::<Limb>(),
                0,
                0,
                &raw const self.0,
            )
        };
        limbs
    }

    /// Becomes a · b.
    pub(crate) fn set_product(&mut self, a: &Self, b: &Self) {
        // SAFETY: all numbers are initialised; the library allows the same number in several
        // places, which references rule out.
        unsafe { __gmpz_mul(&raw mut self.0, &raw const a.0, &raw const b.0) }
    }

    /// Becomes the rest of `number`.
    pub(crate) fn set_rest(&mut self, number: &Self, modulus: &Self) {
        // SAFETY: as above, and the modulus is not zero where this is called.
        unsafe { __gmpz_mod(&raw mut self.0, &raw const number.0, &raw const modulus.0) }
    }

    /// Adds a · b.
    pub(crate) fn add_product(&mut self, a: &Self, b: &Self) {
        // SAFETY: as above.
        unsafe { __gmpz_addmul(&raw mut self.0, &raw const a.0, &raw const b.0) }
    }

    /// Becomes base^exponent.
    pub(crate) fn set_power(&mut self, base: &Self, exponent: &Self, modulus: &Self) {
        // SAFETY: as above, and the exponent is not negative.
        unsafe {
            __gmpz_powm(
                &raw mut self.0,
                &raw const base.0,
                &raw const exponent.0,
                &raw const modulus.0,
            )
        }
    }

    /// Becomes one divided by `number`, which has an inverse.
    pub(crate) fn set_inverse(&mut self, number: &Self, modulus: &Self) {
        // SAFETY: as above.
        let is_there =
            unsafe { __gmpz_invert(&raw mut self.0, &raw const number.0, &raw const modulus.0) };
        assert_ne!(is_there, 0, "an inverse");
    }
}

impl Drop for Integer {
    fn drop(&mut self) {
        // SAFETY: the number is initialised, and nobody uses it hereafter.
        unsafe { __gmpz_clear(&raw mut self.0) }
    }
}

/// Adds a · b to a sum that has room for it.
pub(crate) fn add_product(sum: &mut [Limb], a: &[Limb], b: &[Limb]) {
    assert!(sum.len() >= a.len() + b.len(), "room for a product");
    for (start, &factor) in b.iter().enumerate() {
        let (place, above) = sum[start..].split_at_mut(a.len());
        // SAFETY: both have as many limbs, one at least.
        let mut carry =
            unsafe { __gmpn_addmul_1(place.as_mut_ptr(), a.as_ptr(), count(a.len()), factor) };
        for limb in above {
            let (next, is_over) = limb.overflowing_add(carry);
            (*limb, carry) = (next, u64::from(is_over));
            if carry == 0 {
                break;
            }
        }
    }
}

fn count(limbs: usize) -> c_long {
    c_long::try_from(limbs).expect("few limbs")
}

/// Montgomery's product, from GMP's documented functions: one for the product, then one for each
/// limb that becomes zero. GMP's own reduction is not public.
pub(crate) struct Montgomery<const L: usize> {
    modulus: [Limb; L],
    inverse: Limb,
}

impl<const L: usize> Montgomery<L> {
    pub(crate) fn new(modulus: [Limb; L]) -> Self {
        let inverse = (0..6).fold(modulus[0], |inverse, _| {
            inverse.wrapping_mul(2_u64.wrapping_sub(modulus[0].wrapping_mul(inverse)))
        });
        Self {
            modulus,
            inverse: inverse.wrapping_neg(),
        }
    }

    pub(crate) fn product(&self, a: &[Limb; L], b: &[Limb; L]) -> [Limb; L] {
        let mut wide: [[Limb; L]; 2] = [[0; L]; 2];
        let (limbs, count) = (wide.as_mut_ptr().cast::<Limb>(), count(L));
        let mut out = [0; L];
        // SAFETY: the product has room for twice as many limbs as its factors, and there are `L`
        // limbs from each of the first `L` on.
        unsafe {
            if a == b {
                __gmpn_sqr(limbs, a.as_ptr(), count);
            } else {
                __gmpn_mul_n(limbs, a.as_ptr(), b.as_ptr(), count);
            }
            for index in 0..L {
                let factor = (*limbs.add(index)).wrapping_mul(self.inverse);
                // The limb that is zero now keeps what is carried.
                *limbs.add(index) =
                    __gmpn_addmul_1(limbs.add(index), self.modulus.as_ptr(), count, factor);
            }
            let carry = __gmpn_add_n(out.as_mut_ptr(), limbs.add(L), limbs, count);
            if carry != 0 || __gmpn_cmp(out.as_ptr(), self.modulus.as_ptr(), count) >= 0 {
                let sum = out;
                __gmpn_sub_n(out.as_mut_ptr(), sum.as_ptr(), self.modulus.as_ptr(), count);
            }
        }
        out
    }
}
