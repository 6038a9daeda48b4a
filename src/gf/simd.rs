//! Row operations for each instruction set, behind one table of functions.
//!
//! [`Kernels`] is made only where the processor has the instruction set it names, so a value of it is the permission to call.
//! Every instruction set fills the same [`Table`]; its file holds what differs (the vector, how a product is made, how many rows
//! fit into the registers) and the macro `kernels!` below holds what does not (the loops).
//!
//! `combine` is the one that counts. It keeps R rows times C vectors of sums in registers while it walks down the n pieces of a
//! column, so that each source vector is loaded (and, with byte shuffles, split into nibbles) once for R rows and no sum goes to
//! memory before it is done. Products by shuffle cost two shuffles for a vector, and processors of the Skylake family have one
//! port for them: 32 bytes a cycle at best with 512 bits. Products by GFNI cost one instruction.
#![allow(unsafe_code)]

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

mod scalar;

/// An instruction set that the row operations are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isa {
    /// Plain Rust with a table of products: the oracle.
    Scalar,
    /// 128 bits, shuffles.
    Ssse3,
    /// 256 bits, shuffles.
    Avx2,
    /// 512 bits, shuffles (AVX-512 F and BW).
    Avx512,
    /// 512 bits, one affine instruction for a product (AVX-512 F and BW, GFNI).
    Gfni,
}

impl Isa {
    /// All of them, the fastest last.
    pub const ALL: [Self; 5] = [Self::Scalar, Self::Ssse3, Self::Avx2, Self::Avx512, Self::Gfni];

    /// Its name in the configuration, in metrics and in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Ssse3 => "ssse3",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Gfni => "gfni",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(text: &str) -> Result<Self, UnknownIsa> {
        Self::ALL.into_iter().find(|isa| isa.name() == text).ok_or_else(|| UnknownIsa(text.to_owned()))
    }
}

/// A text that names no instruction set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown instruction set `{0}`: scalar, ssse3, avx2, avx512 and gfni are known")]
pub struct UnknownIsa(String);

/// The row operations of one instruction set that this processor has.
#[derive(Clone, Copy)]
pub struct Kernels {
    table: &'static Table,
}

impl Kernels {
    /// Rows that a kernel combines in one pass; work is best cut into multiples of it.
    pub const ROWS: usize = 4;

    /// The fastest that this processor can run.
    pub fn detect() -> Self {
        let fastest = Isa::ALL.into_iter().rev().find_map(Self::new);
        fastest.unwrap_or(Self { table: &scalar::TABLE })
    }

    /// Those of `isa`, if this processor can run them.
    pub fn new(isa: Isa) -> Option<Self> {
        let table = match isa {
            Isa::Scalar => Some(&scalar::TABLE),
            _ => None,
        };
        table.map(|table| Self { table })
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
        // SAFETY: the table of an instruction set is only reached where `new` found it (see `Table`); lengths are equal.
        unsafe { (self.table.add)(dst, src) }
    }

    /// `dst[i] = c * dst[i]`.
    pub fn scale(&self, dst: &mut [u8], c: u8) {
        // SAFETY: the table of an instruction set is only reached where `new` found it (see `Table`).
        unsafe { (self.table.scale)(dst, c) }
    }

    /// `dst[i] += c * src[i]`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn mul_add(&self, dst: &mut [u8], src: &[u8], c: u8) {
        assert_eq!(dst.len(), src.len());
        // SAFETY: the table of an instruction set is only reached where `new` found it (see `Table`); lengths are equal.
        unsafe { (self.table.mul_add)(dst, src, c) }
    }

    /// Row `i` times the sources of `strip` into `outs[i]`, from byte `at` on and no further than the strip is wide or the out is
    /// long; added to what is there if `accumulate`.
    pub(crate) fn combine_strip(&self, strip: Strip<'_>, rows: &[&[u8]], outs: &mut [&mut [u8]], at: usize, accumulate: bool) {
        assert_eq!(rows.len(), outs.len());
        assert!(rows.iter().all(|row| row.len() >= strip.count), "rows of {} coefficients", strip.count);
        assert!(outs.iter().all(|out| out.len() >= at), "outs of {at} bytes and more");
        // SAFETY: the table of an instruction set is only reached where `new` found it (see `Table`); `Strip::new` has checked
        // the strip against its lines, and the lines above check rows and outs.
        unsafe { (self.table.combine)(strip, rows, outs, at, accumulate) }
    }

    /// Adds `factors[i]` times `source` to row i of `rows`, whose rows are `stride` lines apart, from line `first` of each on.
    pub(crate) fn spread_lines(&self, rows: &mut [Line], stride: usize, first: usize, factors: &[u8], source: &[Line]) {
        assert!(rows.len() >= factors.len() * stride && first + source.len() <= stride, "{} rows", factors.len());
        // SAFETY: the table of an instruction set is only reached where `new` found it (see `Table`); row i's lines end at
        // i * stride + first + source.len() at most, which the line above checks.
        unsafe { (self.table.spread)(rows, stride, first, factors, source) }
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kernels").field(&self.isa()).finish()
    }
}

/// What an instruction set provides.
///
/// All functions are unsafe for one reason: they use instructions that a processor may not have. `Kernels::new` hands out a table
/// only after it has asked the processor. What else each demands of its arguments is checked by the method of `Kernels` that
/// calls it.
struct Table {
    isa: Isa,
    add: unsafe fn(&mut [u8], &[u8]),
    scale: unsafe fn(&mut [u8], u8),
    mul_add: unsafe fn(&mut [u8], &[u8], u8),
    combine: unsafe fn(Strip<'_>, &[&[u8]], &mut [&mut [u8]], usize, bool),
    spread: unsafe fn(&mut [Line], usize, usize, &[u8], &[Line]),
}

/// A cache line: the unit in which sources are laid out, aligned for every vector.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; Self::BYTES]);

impl Line {
    pub(crate) const BYTES: usize = 64;
    pub(crate) const ZERO: Self = Self([0; Self::BYTES]);

    /// The bytes of consecutive lines.
    pub(crate) fn bytes(lines: &[Self]) -> &[u8] {
        // SAFETY: a line is 64 bytes without padding (its size equals its alignment), so `lines` covers as many initialised
        // bytes, borrowed for as long.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
    }

    /// The bytes of consecutive lines, to change.
    pub(crate) fn bytes_mut(lines: &mut [Self]) -> &mut [u8] {
        // SAFETY: as in `bytes`; every value of these bytes is a valid line, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
    }
}

/// `count` sources of `width` lines: source i starts at line i * `stride` + `first`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strip<'a> {
    lines: &'a [Line],
    count: usize,
    stride: usize,
    first: usize,
    width: usize,
}

impl<'a> Strip<'a> {
    /// Checks that all sources lie within `lines`.
    pub(crate) fn new(lines: &'a [Line], count: usize, stride: usize, first: usize, width: usize) -> Self {
        assert!(lines.len() >= count * stride && first + width <= stride, "{count} sources of {width} lines");
        Self { lines, count, stride, first, width }
    }

    fn source(&self, i: usize) -> &'a [u8] {
        let start = i * self.stride + self.first;
        Line::bytes(&self.lines[start..start + self.width])
    }
}
