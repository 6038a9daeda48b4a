//! Inverses of square matrices over GF(q).

use super::{Element, Factor};

/// The inverse of the `order` rows in `matrix`, one behind the other; nothing if there is none. Gauss and Jordan's method in place: what a
/// column of the matrix held before it became a unit vector takes no room of its own.
///
/// # Panics
/// If `matrix` is not square.
pub fn invert(order: usize, matrix: &[Element]) -> Option<Vec<Element>> {
    assert_eq!(matrix.len(), order * order, "a matrix of {order} rows");
    let mut rows = matrix.to_vec();
    // Row i of what is inverted is in row `places[i]` of the rows.
    let mut swaps = Vec::with_capacity(order);
    for column in 0..order {
        let pivot = (column..order).find(|row| rows[row * order + column] != Element::ZERO)?;
        swaps.push(pivot);
        if pivot != column {
            let (above, below) = rows.split_at_mut(pivot * order);
            above[column * order..][..order].swap_with_slice(&mut below[..order]);
        }
        let own = &mut rows[column * order..][..order];
        let inverse = own[column].inverse().expect("a pivot is not zero").factor();
        own[column] = Element::ONE;
        own.iter_mut().for_each(|element| *element = inverse.times(element));
        let own = own.to_vec();
        let others = rows.chunks_exact_mut(order).enumerate().filter(|&(row, _)| row != column);
        for (_, other) in others {
            let factor: Factor = other[column].neg().factor();
            other[column] = Element::ZERO;
            for (element, own) in other.iter_mut().zip(&own) {
                *element = element.add(&factor.times(own));
            }
        }
    }
    // Rows that were exchanged are columns of the inverse that have to be.
    for (column, &pivot) in swaps.iter().enumerate().rev() {
        rows.chunks_exact_mut(order).for_each(|row| row.swap(column, pivot));
    }
    Some(rows)
}
