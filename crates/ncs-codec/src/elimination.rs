//! Gauss-Jordan elimination, one row at a time, over any field.
//!
//! The stored rows are kept reduced. Each has a *pivot*, a column in which it is 1 and all others
//! are 0. The factors that reduce a new row are therefore its coefficients in the pivot columns,
//! all known at once. A row of the tail is the result of the same operations on its block's part.
//! With n rows stored, the coefficients are a permutation of the identity.
//!
//! A new row is reduced in its coefficients first. Its tail is touched only if the result is not
//! zero.
//!
//! Clearing a new pivot's column in all stored rows would load and store each of them for one
//! product. If no caller reads rows before all are there, this is postponed. The newest few rows
//! are *pending*: they are reduced among each other and by the rest, until there are enough of them
//! to clear their columns from the rest in one pass.
//!
//! A transform directly follows the coefficients and is processed with them, in one pass: a row of
//! both is a few cache lines, and preparing a factor costs as much as multiplying two of them. At
//! any time, half of the two together is zeros: the columns before the first one without a pivot,
//! except for the pivots themselves, and the transform's columns of rows that have not come. Row
//! operations leave both out.

use std::ops::Range;

use ncs_gf::{Field, RowPart};

/// The rows stored so far, reduced.
#[derive(Debug)]
pub(super) struct Elimination<F: Field> {
    field: F,
    n: usize,
    matrix: F::Matrix,
    /// Pivot column of each row, in the order of arrival.
    pivots: Vec<usize>,
    /// Row that has its pivot in this column.
    rows: Vec<Option<usize>>,
    factors: Vec<F::Element>,
    /// Number of rows before the pending ones.
    settled: usize,
    /// First column without the pivot of a settled row, or `n`.
    first_free: usize,
    tail: Tail,
}

/// The content of the second part of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    /// How the row is made of the arrived ones: as many columns as there are rows.
    Transform,
    /// That many further elements.
    Payload(usize),
    /// Nothing: for callers that only need to know which rows are independent.
    None,
}

impl<F: Field> Elimination<F> {
    /// Room for `n` rows of `n` coefficients, each with its tail.
    pub(super) fn new(field: F, n: usize, tail: Tail) -> Self {
        let matrix = match tail {
            Tail::Transform => field.matrix(n, 2 * n, 0),
            Tail::Payload(length) => field.matrix(n, n, length),
            Tail::None => field.matrix(n, n, 0),
        };
        let (pivots, rows, factors) = (Vec::with_capacity(n), vec![None; n], Vec::with_capacity(n));
        Self {
            field,
            n,
            matrix,
            pivots,
            rows,
            factors,
            settled: 0,
            first_free: 0,
            tail,
        }
    }

    /// The number of stored rows.
    pub(super) fn rank(&self) -> usize {
        self.pivots.len()
    }

    /// Stores a row whose coefficients and payload the two closures write over zeros, or drops it
    /// if it depends on the stored ones. `payload` is called only for an independent row, and only
    /// if the tail is a payload.
    pub(super) fn absorb(
        &mut self,
        coefficients: impl FnOnce(&mut [F::Element]),
        payload: impl FnOnce(&mut [F::Element]),
    ) -> bool {
        let row = self.rank();
        if row == self.n {
            return false;
        }
        let Some((pivot, leading)) = self.reduce_coefficients(row, coefficients) else {
            return false;
        };
        if matches!(self.tail, Tail::Payload(_)) {
            payload(self.field.row_mut(&mut self.matrix, row, RowPart::Tail));
            self.reduce(RowPart::Tail, 0..self.settled);
        }
        for part in self.parts() {
            self.field.divide(&mut self.matrix, row, *part, leading);
        }
        self.rows[pivot] = Some(row);
        self.pivots.push(pivot);
        self.clear_columns(self.settled..row, row..row + 1);
        if self.rank() - self.settled == self.pending_max() || self.rank() == self.n {
            self.clear_columns(0..self.settled, self.settled..self.rank());
            self.settled = self.rank();
            self.first_free += self.rows[self.first_free..]
                .iter()
                .take_while(|row| row.is_some())
                .count();
        }
        true
    }

    /// The row's pivot column and the coefficient there, unless the row is reduced to zero. If no
    /// row is pending, leaves the factors that reduced it.
    fn reduce_coefficients(
        &mut self,
        row: usize,
        coefficients: impl FnOnce(&mut [F::Element]),
    ) -> Option<(usize, F::Element)> {
        let n = self.n;
        let place = self
            .field
            .row_mut(&mut self.matrix, row, RowPart::Coefficients);
        place.fill(F::ZERO);
        coefficients(&mut place[..n]);
        if self.tail == Tail::Transform {
            place[n + row] = F::ONE;
        }
        // Pending rows have nothing in the pivots of settled ones, but not the other way round.
        self.factors.clear();
        for held in [0..self.settled, self.settled..row]
            .into_iter()
            .filter(|held| !held.is_empty())
        {
            self.factors.clear();
            self.field.gather(
                &self.matrix,
                row..row + 1,
                &self.pivots[held.clone()],
                &mut self.factors,
            );
            self.reduce(RowPart::Coefficients, held);
        }
        let place = self
            .field
            .row_mut(&mut self.matrix, row, RowPart::Coefficients);
        place[..self.first_free].fill(F::ZERO);
        let pivot = place[..n].iter().position(|&element| element != F::ZERO)?;
        Some((pivot, place[pivot]))
    }

    /// Reduces the newest row by these rows.
    fn reduce(&mut self, part: RowPart, rows: Range<usize>) {
        let (columns, target) = (self.columns_in_use(part, self.rank() + 1), self.rank());
        if !columns.is_empty() && self.factors.iter().any(|&factor| factor != F::ZERO) {
            self.field
                .reduce(&mut self.matrix, part, columns, rows, target, &self.factors);
        }
    }

    /// Maximum number of pending rows. A payload is read before all rows are there, and short rows
    /// cost little to load and store.
    fn pending_max(&self) -> usize {
        if matches!(self.tail, Tail::Payload(_)) || self.n <= SHORT {
            1
        } else {
            PENDING_MAX
        }
    }

    /// Clears the columns of the newest rows, `pivots`, in `rows`, which come directly before them.
    fn clear_columns(&mut self, rows: Range<usize>, pivots: Range<usize>) {
        self.factors.clear();
        self.field.gather(
            &self.matrix,
            rows.clone(),
            &self.pivots[pivots.clone()],
            &mut self.factors,
        );
        if self.factors.iter().any(|&factor| factor != F::ZERO) {
            for part in self.parts() {
                let columns = self.columns_in_use(*part, self.rank());
                self.field.spread(
                    &mut self.matrix,
                    *part,
                    columns,
                    rows.clone(),
                    pivots.len(),
                    &self.factors,
                );
            }
        }
    }

    /// The columns in which the first `rows` rows, outside of the pivots of settled ones, may be
    /// non-zero.
    fn columns_in_use(&self, part: RowPart, rows: usize) -> Range<usize> {
        match (part, self.tail) {
            (RowPart::Coefficients, Tail::Transform) => self.first_free..self.n + rows,
            (RowPart::Coefficients, _) => self.first_free..self.n,
            (RowPart::Tail, Tail::Payload(length)) => 0..length,
            (RowPart::Tail, _) => 0..0,
        }
    }

    /// The parts that a row has.
    fn parts(&self) -> &'static [RowPart] {
        if matches!(self.tail, Tail::Payload(_)) {
            &[RowPart::Coefficients, RowPart::Tail]
        } else {
            &[RowPart::Coefficients]
        }
    }

    /// The row with its pivot in `column`, if there is one, by its order of arrival.
    pub(super) fn row_of(&self, column: usize) -> Option<usize> {
        self.rows[column]
    }

    /// The coefficients of a row.
    fn coefficients(&self, row: usize) -> &[F::Element] {
        &self.field.row(&self.matrix, row, RowPart::Coefficients)[..self.n]
    }

    /// How a row is made of the arrived ones, in the order of arrival.
    ///
    /// # Panics
    /// If the tail is something else.
    pub(super) fn transform(&self, row: usize) -> &[F::Element] {
        assert_eq!(self.tail, Tail::Transform, "rows with a transform");
        &self.field.row(&self.matrix, row, RowPart::Coefficients)[self.n..]
    }

    /// A row's reduced payload.
    pub(super) fn payload(&self, row: usize) -> &[F::Element] {
        self.field.row(&self.matrix, row, RowPart::Tail)
    }

    /// All rows: coefficients, followed by the transform, in one part; payloads in the other.
    pub(super) fn matrix(&self) -> &F::Matrix {
        &self.matrix
    }

    /// Whether the source block `column` is known by itself: its row is a unit vector.
    pub(super) fn is_unit(&self, column: usize) -> bool {
        self.row_of(column).is_some_and(|row| {
            self.coefficients(row)
                .iter()
                .enumerate()
                .all(|(i, &element)| i == column || element == F::ZERO)
        })
    }
}

/// Enough rows to make loading and storing a row cheap beside multiplying, and few beside the rest.
const PENDING_MAX: usize = 8;
/// Rows up to this length are not postponed: measured at n = 32, where postponing costs a tenth.
const SHORT: usize = 64;

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, RngExt, SeedableRng};

    use super::*;
    use ncs_gf::Kernels;

    #[test]
    fn rows_stay_reduced_and_the_transform_explains_them() {
        let kernels = Kernels::detect();
        let rows: [[u8; 3]; 4] = [[2, 3, 4], [4, 6, 8], [0, 0, 9], [7, 1, 1]];
        let mut elimination = Elimination::new(kernels, 3, Tail::Transform);
        let mut taken = Vec::new();
        for row in rows {
            if elimination.absorb(
                |place| place.copy_from_slice(&row),
                |_| panic!("a transform has no payload"),
            ) {
                taken.push(row);
            }
        }
        assert_eq!(taken, [rows[0], rows[2], rows[3]]);
        for column in 0..3 {
            assert!(elimination.is_unit(column));
            let transform = elimination.transform(elimination.row_of(column).unwrap());
            let mut sum = [0; 3];
            transform
                .iter()
                .zip(&taken)
                .for_each(|(&c, row)| kernels.mul_add(&mut sum, row, c));
            let mut unit = [0; 3];
            unit[column] = 1;
            assert_eq!(sum, unit);
        }
        assert!(!elimination.absorb(|place| place.fill(1), |_| ()));
    }

    #[test]
    fn without_a_tail_the_same_rows_are_independent() {
        let rows: [[u8; 3]; 5] = [[2, 3, 4], [4, 6, 8], [0, 0, 9], [7, 1, 1], [1, 1, 1]];
        let taken = |tail| {
            let mut elimination = Elimination::new(Kernels::detect(), 3, tail);
            rows.map(|row| {
                elimination.absorb(
                    |place| place.copy_from_slice(&row),
                    |_| panic!("there is no payload"),
                )
            })
        };
        assert_eq!(taken(Tail::None), [true, false, true, true, false]);
        assert_eq!(taken(Tail::None), taken(Tail::Transform));
    }

    /// Rows are put off or not; which of them are independent does not depend on that.
    #[test]
    fn dependent_rows_are_found_whatever_is_pending() {
        let (n, mut rng) = (SHORT + 5 * PENDING_MAX + 3, SmallRng::seed_from_u64(1));
        let mut rows: Vec<Vec<u8>> = Vec::new();
        for index in 0..2 * n {
            let mut row = vec![0; n];
            match index % 3 {
                // Of those before, among them the newest.
                2 => rows
                    .iter()
                    .rev()
                    .take(1 + index % 11)
                    .for_each(|one| Kernels::detect().mul_add(&mut row, one, rng.random())),
                _ => rng.fill_bytes(&mut row),
            }
            rows.push(row);
        }
        let taken = |tail| -> Vec<bool> {
            let mut elimination = Elimination::new(Kernels::detect(), n, tail);
            rows.iter()
                .map(|row| elimination.absorb(|place| place.copy_from_slice(row), |_| ()))
                .collect()
        };
        let progressive = taken(Tail::Payload(5));
        assert_eq!(progressive.iter().filter(|taken| **taken).count(), n);
        assert!(
            (0..n)
                .filter(|index| index % 3 == 2)
                .all(|index| !progressive[index])
        );
        assert!(taken(Tail::Transform) == progressive && taken(Tail::None) == progressive);
    }

    #[test]
    fn a_dependent_row_costs_no_payload_work() {
        let mut elimination = Elimination::new(Kernels::detect(), 3, Tail::Payload(5));
        assert!(elimination.absorb(
            |place| place.copy_from_slice(&[0, 2, 2]),
            |payload| payload.fill(2)
        ));
        assert!(elimination.absorb(
            |place| place.copy_from_slice(&[0, 1, 0]),
            |payload| payload.fill(9)
        ));
        assert!(!elimination.absorb(
            |place| place.copy_from_slice(&[0, 0, 7]),
            |_| panic!("it is dependent")
        ));
        assert_eq!(elimination.payload(elimination.row_of(2).unwrap()), [8; 5]);
        assert!(elimination.is_unit(1) && elimination.is_unit(2) && !elimination.is_unit(0));
    }
}
