//! Gauss-Jordan elimination, one row at a time, over any field.
//!
//! The rows held are kept reduced: each has a *pivot*, a column in which it is 1 and all others are 0. So the factors by which a
//! new row has to be reduced are simply its coefficients in the pivot columns, all known at once, and a row of the tail is what
//! the same operations made of what its block brought. With n rows held the coefficients are a permutation of the identity.
//!
//! A new row is reduced in its coefficients first. Only if something is left of it is its tail touched.

use crate::gf::{Field, Part};

/// The rows held so far, reduced.
#[derive(Debug)]
pub(super) struct Elimination<F: Field> {
    field: F,
    n: usize,
    matrix: F::Matrix,
    /// Pivot column of each row, in the order in which rows came.
    pivots: Vec<usize>,
    /// Row that has its pivot in this column.
    rows: Vec<Option<usize>>,
    factors: Vec<F::Element>,
}

impl<F: Field> Elimination<F> {
    /// Room for `n` rows of `n` coefficients and `tail` further elements.
    pub(super) fn new(field: F, n: usize, tail: usize) -> Self {
        let matrix = field.matrix(n, n, tail);
        Self { field, n, matrix, pivots: Vec::with_capacity(n), rows: vec![None; n], factors: Vec::with_capacity(n) }
    }

    /// Rows held.
    pub(super) fn rank(&self) -> usize {
        self.pivots.len()
    }

    /// Takes a row whose coefficients and tail the two closures write, or drops it if it depends on those held; `tail` is then
    /// not called. Both write over zeros.
    pub(super) fn absorb(&mut self, coefficients: impl FnOnce(&mut [F::Element]), tail: impl FnOnce(&mut [F::Element])) -> bool {
        let row = self.rank();
        if row == self.n {
            return false;
        }
        let place = self.field.row_mut(&mut self.matrix, row, Part::Coefficients);
        place.fill(F::ZERO);
        coefficients(place);
        self.factors.clear();
        self.factors.extend(self.pivots.iter().map(|&pivot| place[pivot]));
        let dependent = self.factors.iter().any(|&factor| factor != F::ZERO);
        if dependent {
            self.field.reduce(&mut self.matrix, Part::Coefficients, &self.factors);
        }
        let left = self.field.row(&self.matrix, row, Part::Coefficients);
        let Some(pivot) = left.iter().position(|&element| element != F::ZERO) else {
            return false;
        };
        let leading = left[pivot];
        tail(self.field.row_mut(&mut self.matrix, row, Part::Tail));
        if dependent {
            self.field.reduce(&mut self.matrix, Part::Tail, &self.factors);
        }
        for part in [Part::Coefficients, Part::Tail] {
            self.field.divide(&mut self.matrix, row, part, leading);
        }
        self.clear_column(pivot);
        self.rows[pivot] = Some(row);
        self.pivots.push(pivot);
        true
    }

    /// The row with its pivot in `column`, if there is one, in the order of arrival.
    pub(super) fn row_of(&self, column: usize) -> Option<usize> {
        self.rows[column]
    }

    /// A part of a row.
    pub(super) fn row(&self, row: usize, part: Part) -> &[F::Element] {
        self.field.row(&self.matrix, row, part)
    }

    /// All rows.
    pub(super) fn matrix(&self) -> &F::Matrix {
        &self.matrix
    }

    /// Whether the source block `column` is known by itself: its row is a unit vector.
    pub(super) fn is_unit(&self, column: usize) -> bool {
        self.row_of(column).is_some_and(|row| {
            let coefficients = self.row(row, Part::Coefficients);
            coefficients.iter().enumerate().all(|(i, &element)| i == column || element == F::ZERO)
        })
    }

    /// Makes the newest row the only one with something in `pivot`.
    fn clear_column(&mut self, pivot: usize) {
        let (field, matrix) = (&self.field, &self.matrix);
        self.factors.clear();
        self.factors.extend((0..self.pivots.len()).map(|row| field.row(matrix, row, Part::Coefficients)[pivot]));
        if self.factors.iter().any(|&factor| factor != F::ZERO) {
            for part in [Part::Coefficients, Part::Tail] {
                self.field.spread(&mut self.matrix, part, &self.factors);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gf::Kernels;

    #[test]
    fn rows_stay_reduced_and_the_transform_explains_them() {
        let kernels = Kernels::detect();
        let rows: [[u8; 3]; 4] = [[2, 3, 4], [4, 6, 8], [0, 0, 9], [7, 1, 1]];
        let mut elimination = Elimination::new(kernels, 3, 3);
        let mut taken = Vec::new();
        for row in rows {
            let slot = taken.len();
            if elimination.absorb(|place| place.copy_from_slice(&row), |tail| tail[slot] = 1) {
                taken.push(row);
            }
        }
        assert_eq!(taken, [rows[0], rows[2], rows[3]]);
        for column in 0..3 {
            assert!(elimination.is_unit(column));
            let transform = elimination.row(elimination.row_of(column).unwrap(), Part::Tail);
            let mut sum = [0; 3];
            transform.iter().zip(&taken).for_each(|(&c, row)| kernels.mul_add(&mut sum, row, c));
            let mut unit = [0; 3];
            unit[column] = 1;
            assert_eq!(sum, unit);
        }
        assert!(!elimination.absorb(|place| place.fill(1), |_| panic!("a dependent row has no tail")));
    }
}
