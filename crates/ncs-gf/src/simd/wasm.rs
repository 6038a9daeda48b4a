//! 128 bits of WebAssembly, products by byte shuffles: two lookups of 16 entries, one for each
//! nibble.
//!
//! The products of 256 coefficients with nibbles would be a tenth of a web page's module, so they
//! are made when the module is first asked for the table, before it can be used ([`table`]).
//!
//! An engine refuses a whole module if it does not know one instruction in it, so nothing is
//! detected at run time: the module has these functions if it is compiled with the feature.

use std::arch::wasm32::*;

#[cfg(target_feature = "atomics")]
compile_error!("the products are made without a lock");

kernels!(Isa::Simd128, "simd128", columns: [2]);

type Vector = v128;
/// Like [`gf256::NIBBLE_PRODUCTS`], once [`table`] has made it.
static mut PRODUCTS: [[u8; 32]; 256] = [[0; 32]; 256];

/// The table of this instruction set, whose functions find all products made.
pub(super) fn table() -> &'static Table {
    // SAFETY: a module that is compiled without atomics has one thread, and this reference ends
    // before anything else refers to the products.
    let products = unsafe { &mut *(&raw mut PRODUCTS) };
    // The last byte is a product of the highest coefficient, 255, with 240.
    if products[255][31] == 0 {
        for (c, products) in (0..=u8::MAX).zip(products) {
            let (low, high) = products.split_at_mut(16);
            for (nibble, (low, high)) in (0..).zip(low.iter_mut().zip(high)) {
                (*low, *high) = (gf256::mul(c, nibble), gf256::mul(c, nibble << 4));
            }
        }
    }
    &TABLE
}

/// Low and high nibbles.
type Split = [Vector; 2];
/// Products with the low nibbles and with the high ones.
type Factor = [Vector; 2];
const WIDTH: usize = size_of::<Vector>();
const STEP: usize = 1;

#[inline]
#[target_feature(enable = "simd128")]
fn zero() -> Vector {
    u64x2_splat(0)
}

/// # Safety
/// `WIDTH` bytes from `bytes` on may be read.
#[inline]
#[target_feature(enable = "simd128")]
unsafe fn load(bytes: *const u8) -> Vector {
    // SAFETY: the caller's promise; no alignment is demanded.
    unsafe { v128_load(bytes.cast()) }
}

/// # Safety
/// `WIDTH` bytes from `bytes` on may be written.
#[inline]
#[target_feature(enable = "simd128")]
unsafe fn store(bytes: *mut u8, vector: Vector) {
    // SAFETY: the caller's promise; no alignment is demanded.
    unsafe { v128_store(bytes.cast(), vector) }
}

/// # Safety
/// `WIDTH` bytes from `bytes` on may be written, a multiple of `WIDTH`, and no thread reads them
/// before a fence.
#[inline]
#[target_feature(enable = "simd128")]
unsafe fn store_past_cache(bytes: *mut u8, vector: Vector) {
    // SAFETY: the caller's promise; WebAssembly has no stores past the caches.
    unsafe { store(bytes, vector) }
}

/// Orders the stores past the caches before later stores.
#[inline]
#[target_feature(enable = "simd128")]
fn fence() {}

#[inline]
#[target_feature(enable = "simd128")]
fn xor(a: Vector, b: Vector) -> Vector {
    v128_xor(a, b)
}

#[inline]
#[target_feature(enable = "simd128")]
fn split(vector: Vector) -> Split {
    [v128_and(vector, u8x16_splat(15)), u8x16_shr(vector, 4)]
}

#[inline]
#[target_feature(enable = "simd128")]
fn factor(c: u8) -> Factor {
    // SAFETY: nothing writes them any more: every function here is reached through the result of
    // `table` alone. Both halves are 16 bytes.
    let [low, high] = unsafe {
        let products: &[u8; 32] = &(*(&raw const PRODUCTS))[usize::from(c)];
        let (low, high) = products.split_at(16);
        [
            v128_load(low.as_ptr().cast()),
            v128_load(high.as_ptr().cast()),
        ]
    };
    [low, high]
}

#[inline]
#[target_feature(enable = "simd128")]
fn mul_add(sum: Vector, [low, high]: Split, [low_products, high_products]: Factor) -> Vector {
    let (low, high) = (
        u8x16_swizzle(low_products, low),
        u8x16_swizzle(high_products, high),
    );
    v128_xor(sum, v128_xor(low, high))
}

#[inline]
#[target_feature(enable = "simd128")]
fn mul_add_step(sum: Vector, [split]: [Split; STEP], [factor]: [Factor; STEP]) -> Vector {
    mul_add(sum, split, factor)
}
