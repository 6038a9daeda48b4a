//! The byte field GF(2^8)/0x11D: elements, coefficient rows, row operations and their instruction
//! sets. [`gfq`] has the other field, GF(q).
//!
//! One operation is the base of every codec: *combine*, p rows of n coefficients times n source
//! blocks of k bytes. [`Kernels`] implements it for one instruction set. A value of [`Kernels`]
//! proves that this processor has that instruction set, so no caller checks again. Tests compare it
//! with the definition in [`gf256`].
//!
//! Sources are stored in a [`Panel`]: it is cut into columns of up to 256 bytes, and the pieces of
//! all n blocks of a column are adjacent. In the plain layout, the same offset of blocks of 4 KiB
//! maps to the same few cache sets and to one page each. That costs half the speed from n = 128 on.
//!
//! A block lost and found again:
//!
//! ```
//! use ncs_gf::{Kernels, gf256};
//!
//! let kernels = Kernels::detect();
//! let (first, second) = (*b"network ", *b"coding..");
//! // parity = first + 3 second
//! let mut parity = first;
//! kernels.mul_add(&mut parity, &second, 3);
//!
//! // second = (parity - first) / 3; a sum is a difference, too.
//! let mut found = parity;
//! kernels.add(&mut found, &first);
//! kernels.scale(&mut found, gf256::inv(3));
//! assert_eq!(found, second);
//! ```

use std::ops::Range;

pub mod dense;
pub mod gf256;
pub mod gfq;
mod limbs;
pub mod matrix;
pub mod montgomery;
mod order;
pub mod panel;
pub mod rows;
pub mod simd;
pub mod solve;
pub mod sums;
mod threads;

pub use panel::Panel;
pub use rows::{RowKey, Rows};
pub use simd::{Isa, Kernels};

use simd::{Line, Strip};

/// The field operations that elimination needs, so that it is written once for all fields.
///
/// A matrix belongs to the field, because the field determines its layout in memory. Its columns
/// have two *parts*: the coefficients, followed by a transform if there is one, and the payload,
/// which elimination touches only after the coefficients.
pub trait Field {
    /// One element.
    type Element: Copy + PartialEq + std::fmt::Debug;
    /// Rows of elements.
    type Matrix: std::fmt::Debug;

    /// The neutral element of addition.
    const ZERO: Self::Element;
    /// The neutral element of multiplication.
    const ONE: Self::Element;

    /// A matrix of zeros.
    fn matrix(&self, rows: usize, coefficients: usize, tail: usize) -> Self::Matrix;
    /// A part of a row.
    fn row<'a>(&self, matrix: &'a Self::Matrix, row: usize, part: RowPart) -> &'a [Self::Element];
    /// A part of a row, to change.
    fn row_mut<'a>(
        &self,
        matrix: &'a mut Self::Matrix,
        row: usize,
        part: RowPart,
    ) -> &'a mut [Self::Element];
    /// Appends the coefficients of these rows in these columns, row by row.
    fn gather(
        &self,
        matrix: &Self::Matrix,
        rows: Range<usize>,
        columns: &[usize],
        elements: &mut Vec<Self::Element>,
    );
    /// Divides this part of `row` by `divisor`, which is not zero.
    fn divide(&self, matrix: &mut Self::Matrix, row: usize, part: RowPart, divisor: Self::Element);
    /// Subtracts `factors[i]` times the i-th of `rows`, for every i, from row `target`, which comes
    /// after them, at least in these columns of the part.
    fn reduce(
        &self,
        matrix: &mut Self::Matrix,
        part: RowPart,
        columns: Range<usize>,
        rows: Range<usize>,
        target: usize,
        factors: &[Self::Element],
    );
    /// Subtracts `factors[i * count + j]` times the j-th of the `count` rows after `rows` from the
    /// i-th of `rows`, for every i and j, at least in these columns of the part.
    fn spread(
        &self,
        matrix: &mut Self::Matrix,
        part: RowPart,
        columns: Range<usize>,
        rows: Range<usize>,
        count: usize,
        factors: &[Self::Element],
    );
}

/// The columns of a matrix that an operation applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowPart {
    /// The coefficients, and their transform.
    Coefficients,
    /// The payload.
    Tail,
}

/// A matrix over the byte field. Every part of a row occupies whole cache lines.
#[derive(Debug)]
pub struct ByteMatrix {
    lines: Vec<Line>,
    coefficients: usize,
    tail: usize,
    /// Cache lines of a row's coefficients.
    split: usize,
    /// Cache lines of a row.
    stride: usize,
}

impl ByteMatrix {
    /// The first line of a part in its row, its number of lines, and its bytes without padding.
    fn extent(&self, part: RowPart) -> (usize, usize, usize) {
        match part {
            RowPart::Coefficients => (0, self.split, self.coefficients),
            RowPart::Tail => (self.split, self.stride - self.split, self.tail),
        }
    }

    /// The lines of a row that hold these columns.
    fn lines_of(&self, part: RowPart, columns: Range<usize>) -> Range<usize> {
        let (first, ..) = self.extent(part);
        first + columns.start / Line::BYTES..first + columns.end.div_ceil(Line::BYTES)
    }

    /// The first `count` rows as sources of a combination, in a part's columns from `column` on;
    /// and the first column of the strip, which begins at a cache line.
    pub fn strip(&self, part: RowPart, count: usize, column: usize) -> (Strip<'_>, usize) {
        let ((first, width, _), skipped) = (self.extent(part), column / Line::BYTES);
        let lines = &self.lines[..count * self.stride];
        (
            Strip::new(lines, count, self.stride, first + skipped, width - skipped),
            skipped * Line::BYTES,
        )
    }
}

impl Field for Kernels {
    type Element = u8;
    type Matrix = ByteMatrix;

    const ZERO: u8 = 0;
    const ONE: u8 = 1;

    fn matrix(&self, rows: usize, coefficients: usize, tail: usize) -> ByteMatrix {
        let split = coefficients.div_ceil(Line::BYTES);
        let stride = split + tail.div_ceil(Line::BYTES);
        ByteMatrix {
            lines: vec![Line::ZERO; rows * stride],
            coefficients,
            tail,
            split,
            stride,
        }
    }

    fn row<'a>(&self, matrix: &'a ByteMatrix, row: usize, part: RowPart) -> &'a [u8] {
        let (first, width, bytes) = matrix.extent(part);
        let start = row * matrix.stride + first;
        &Line::bytes(&matrix.lines[start..start + width])[..bytes]
    }

    fn row_mut<'a>(&self, matrix: &'a mut ByteMatrix, row: usize, part: RowPart) -> &'a mut [u8] {
        let (first, width, bytes) = matrix.extent(part);
        let start = row * matrix.stride + first;
        &mut Line::bytes_mut(&mut matrix.lines[start..start + width])[..bytes]
    }

    fn gather(
        &self,
        matrix: &ByteMatrix,
        rows: Range<usize>,
        columns: &[usize],
        elements: &mut Vec<u8>,
    ) {
        let lines = &matrix.lines[rows.start * matrix.stride..rows.end * matrix.stride];
        let rows = lines
            .chunks_exact(matrix.stride)
            .map(|row| &Line::bytes(row)[..matrix.coefficients]);
        match columns {
            [column] => elements.extend(rows.map(|row| row[*column])),
            _ => rows.for_each(|row| elements.extend(columns.iter().map(|&column| row[column]))),
        }
    }

    fn divide(&self, matrix: &mut ByteMatrix, row: usize, part: RowPart, divisor: u8) {
        self.scale(self.row_mut(matrix, row, part), gf256::inv(divisor));
    }

    fn reduce(
        &self,
        matrix: &mut ByteMatrix,
        part: RowPart,
        columns: Range<usize>,
        rows: Range<usize>,
        target: usize,
        factors: &[u8],
    ) {
        let (stride, lines) = (matrix.stride, matrix.lines_of(part, columns));
        let (held, behind) = matrix.lines.split_at_mut(target * stride);
        let held = &held[rows.start * stride..rows.end * stride];
        let strip = Strip::new(held, rows.len(), stride, lines.start, lines.len());
        self.combine_strip(
            strip,
            &[factors],
            &mut [Line::bytes_mut(&mut behind[lines])],
            0,
            true,
        );
    }

    fn spread(
        &self,
        matrix: &mut ByteMatrix,
        part: RowPart,
        columns: Range<usize>,
        rows: Range<usize>,
        count: usize,
        factors: &[u8],
    ) {
        let (stride, lines) = (matrix.stride, matrix.lines_of(part, columns));
        let (held, behind) = matrix.lines.split_at_mut(rows.end * stride);
        let held = &mut held[rows.start * stride..];
        if count == 1 {
            return self.spread_lines(held, stride, lines.start, factors, &behind[lines]);
        }
        let strip = Strip::new(
            &behind[..count * stride],
            count,
            stride,
            lines.start,
            lines.len(),
        );
        let factors: Vec<&[u8]> = factors.chunks_exact(count).collect();
        let outs = held
            .chunks_exact_mut(stride)
            .map(|row| Line::bytes_mut(&mut row[lines.clone()]));
        self.combine_strip(strip, &factors, &mut outs.collect::<Vec<_>>(), 0, true);
    }
}

/// A number of threads for a test: one in WebAssembly, which cannot start any.
#[cfg(test)]
fn at_most(threads: usize) -> std::num::NonZeroUsize {
    let threads = if cfg!(target_family = "wasm") {
        1
    } else {
        threads
    };
    std::num::NonZeroUsize::new(threads).expect("at least one")
}
