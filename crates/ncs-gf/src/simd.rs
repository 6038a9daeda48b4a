//! Row operations for each instruction set, behind one table of functions.
//!
//! [`Kernels`] can be made only on a processor with its instruction set, so a value of it is the
//! permission to call. Every instruction set fills the same `Table`. Its file holds the differences
//! (the vector, the product, the number of rows that fit into the registers), and the macro
//! `kernels!` below holds the common loops.
//!
//! `combine` dominates the cost. It keeps R rows times C vectors of sums in registers while it
//! walks down the n pieces of a column. Each source vector is therefore loaded (and, with byte
//! shuffles, split into nibbles) once for R rows, and no sum goes to memory before it is done. A
//! product by shuffles costs two shuffles for a vector, and processors of the Skylake family have
//! one port for them: at best 32 bytes a cycle with 512 bits. A product by GFNI costs one
//! instruction.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;

use crate::sums::{Fold, Sums};
use sources::Apart;
use table::Table;

pub use isa::{Isa, UnknownIsa};
pub use sources::{Line, Strip};

#[cfg(any(
    target_arch = "x86_64",
    all(target_arch = "wasm32", target_feature = "simd128")
))]
#[macro_use]
mod loops;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod cache;
#[cfg(target_arch = "x86_64")]
pub mod fma;
#[cfg(target_arch = "x86_64")]
mod gfni;
#[cfg(target_arch = "x86_64")]
pub mod ifma;
mod isa;
mod scalar;
mod sources;
#[cfg(target_arch = "x86_64")]
mod ssse3;
mod table;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod wasm;

/// The row operations of one instruction set that this processor has.
#[derive(Clone, Copy)]
pub struct Kernels {
    table: &'static Table,
}

impl Kernels {
    /// Rows that a kernel combines in one pass. Divide work into multiples of it.
    pub const ROWS: usize = table::ROWS;

    /// The fastest kernels of this processor.
    pub fn detect() -> Self {
        // A module that is compiled with vectors never needs the reference, and is smaller without.
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        return Self {
            table: wasm::table(),
        };
        #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
        Self::fastest()
    }

    #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
    fn fastest() -> Self {
        let fastest = Isa::ALL.into_iter().rev().find_map(Self::new);
        fastest.unwrap_or(Self {
            table: &scalar::TABLE,
        })
    }

    /// The kernels of `isa`, if this processor can run them.
    pub fn new(isa: Isa) -> Option<Self> {
        table(isa).map(|table| Self { table })
    }

    /// One value for each instruction set that this processor has, the fastest last.
    pub fn available() -> impl Iterator<Item = Self> {
        Isa::ALL.into_iter().filter_map(Self::new)
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.table.isa
    }

    /// `dst[i] += src[i]`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add(&self, dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len());
        // SAFETY: the table of an instruction set is only reached where `new` found it (see
        // `table`); lengths are equal.
        unsafe { (self.table.add)(dst, src) }
    }

    /// `dst[i] = c * dst[i]`.
    pub fn scale(&self, dst: &mut [u8], c: u8) {
        // SAFETY: the table of an instruction set is only reached where `new` found it (see
        // `table`).
        unsafe { (self.table.scale)(dst, c) }
    }

    /// `dst[i] += c * src[i]`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn mul_add(&self, dst: &mut [u8], src: &[u8], c: u8) {
        assert_eq!(dst.len(), src.len());
        // SAFETY: the table of an instruction set is only reached where `new` found it (see
        // `table`); lengths are equal.
        unsafe { (self.table.mul_add)(dst, src, c) }
    }

    /// Writes row `i` times the sources of `strip` into `outs[i]`, from byte `at` on, up to the
    /// width of the strip or the length of the out. If `accumulate`, adds to the contents.
    pub fn combine_strip(
        &self,
        strip: Strip<'_>,
        rows: &[&[u8]],
        outs: &mut [&mut [u8]],
        at: usize,
        accumulate: bool,
    ) {
        assert_eq!(rows.len(), outs.len());
        assert!(
            rows.iter().all(|row| row.len() >= strip.count),
            "rows of {} coefficients",
            strip.count
        );
        assert!(
            outs.iter().all(|out| out.len() >= at),
            "outs of {at} bytes and more"
        );
        // SAFETY: the table of an instruction set is only reached where `new` found it (see
        // `table`); `Strip::new` has checked the strip against its lines, and the lines above check
        // rows and outs.
        unsafe { (self.table.combine)(strip, rows, outs, at, accumulate) }
    }

    /// Writes row `i` times these bytes of `sources` into the same bytes of `outs[i]`. They must be
    /// whole lines, and lines of memory if they are written past the caches.
    pub fn combine_apart(
        &self,
        rows: &[&[u8]],
        sources: &[&[u8]],
        outs: &mut [&mut [u8]],
        bytes: Range<usize>,
        is_past_cache: bool,
    ) {
        assert_eq!(rows.len(), outs.len());
        assert!(
            bytes.start <= bytes.end && bytes.len().is_multiple_of(Line::BYTES),
            "bytes {bytes:?}"
        );
        assert!(
            rows.iter().all(|row| row.len() >= sources.len()),
            "rows of {} coefficients",
            sources.len()
        );
        assert!(
            sources.iter().all(|source| source.len() >= bytes.end),
            "sources of {} bytes and more",
            bytes.end
        );
        for out in outs.iter() {
            assert!(
                out.len() >= bytes.end,
                "outs of {} bytes and more",
                bytes.end
            );
            assert!(
                !is_past_cache || out[bytes.start..].as_ptr().align_offset(Line::BYTES) == 0,
                "lines of memory"
            );
        }
        // SAFETY: the table of an instruction set is only reached where `new` found it (see
        // `table`); the lines above check all that the bytes ask for.
        unsafe { (self.table.combine_apart)(Apart { sources }, rows, outs, bytes, is_past_cache) }
    }

    /// Adds `factors[i]` times `source` to row i of `rows`, whose rows are `stride` lines apart,
    /// from line `first` of each on.
    pub fn spread_lines(
        &self,
        rows: &mut [Line],
        stride: usize,
        first: usize,
        factors: &[u8],
        source: &[Line],
    ) {
        assert!(
            rows.len() >= factors.len() * stride && first + source.len() <= stride,
            "{} rows",
            factors.len()
        );
        // SAFETY: the table of an instruction set is only reached where `new` found it (see
        // `table`); row i's lines end at i * stride + first + source.len() at most, which the line
        // above checks.
        unsafe { (self.table.spread)(rows, stride, first, factors, source) }
    }

    /// Makes the sums one after the other, over pieces of `width` lines, one to four.
    ///
    /// # Panics
    /// If a number does not lead to a piece.
    pub fn sum(&self, sums: &Sums, pieces: &mut [Line], width: usize) {
        // SAFETY: the table of an instruction set is only reached where `new` found it (see
        // `table`); it demands nothing else.
        unsafe { (self.table.sum)(sums, pieces, width) }
    }

    /// Runs the steps of `fold` over pieces of `width` lines, one to four.
    ///
    /// # Panics
    /// If a number does not lead to a piece.
    pub fn fold(&self, fold: &Fold, pieces: &mut [Line], width: usize) {
        // SAFETY: the table of an instruction set is only reached where `new` found it (see
        // `table`); it demands nothing else.
        unsafe { (self.table.fold)(fold, pieces, width) }
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kernels").field(&self.isa()).finish()
    }
}

/// The table of `isa`, if this processor can run it. There is no other way to a table.
#[cfg(target_arch = "x86_64")]
fn table(isa: Isa) -> Option<&'static Table> {
    let has_avx512 = || is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
    match isa {
        Isa::Scalar => Some(&scalar::TABLE),
        Isa::Ssse3 => is_x86_feature_detected!("ssse3").then_some(&ssse3::TABLE),
        Isa::Avx2 => is_x86_feature_detected!("avx2").then_some(&avx2::TABLE),
        Isa::Avx512 => has_avx512().then_some(&avx512::TABLE),
        Isa::Gfni => (has_avx512() && is_x86_feature_detected!("gfni")).then_some(&gfni::TABLE),
    }
}

/// The table of `isa`, if this processor can run it, or if the module was compiled for it. There is
/// no other way to a table.
#[cfg(not(target_arch = "x86_64"))]
fn table(isa: Isa) -> Option<&'static Table> {
    match isa {
        Isa::Scalar => Some(&scalar::TABLE),
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Isa::Simd128 => Some(wasm::table()),
        _ => None,
    }
}
