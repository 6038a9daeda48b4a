//! The functions that every instruction set has.

use std::ops::Range;

use super::isa::Isa;
use super::sources::{Apart, Line, Strip};
use crate::sums::{Fold, Sums};

/// The functions of an instruction set.
///
/// All functions are unsafe for one reason: they use instructions that a processor may lack.
/// [`table`](fn@super::table) returns a table only after it has checked the processor. The method
/// of `Kernels` that calls a function checks the function's other requirements.
pub(super) struct Table {
    pub(super) isa: Isa,
    pub(super) add: unsafe fn(&mut [u8], &[u8]),
    pub(super) scale: unsafe fn(&mut [u8], u8),
    pub(super) mul_add: unsafe fn(&mut [u8], &[u8], u8),
    pub(super) combine: Combine,
    pub(super) combine_apart: CombineApart,
    pub(super) spread: unsafe fn(&mut [Line], usize, usize, &[u8], &[Line]),
    pub(super) sum: unsafe fn(&Sums, &mut [Line], usize),
    pub(super) fold: unsafe fn(&Fold, &mut [Line], usize),
}

/// Multiplies rows by a strip into outs, from a byte of each on; adds to the contents, or replaces
/// them.
pub(super) type Combine = unsafe fn(Strip<'_>, &[&[u8]], &mut [&mut [u8]], usize, bool);

/// Multiplies rows by sources into outs, some bytes of each; past the caches or not.
pub(super) type CombineApart = unsafe fn(Apart<'_>, &[&[u8]], &mut [&mut [u8]], Range<usize>, bool);

/// Rows that a kernel combines in one pass.
pub(super) const ROWS: usize = 4;
