//! Inversion of square matrices over GF(q), by Gauss-Jordan elimination in place: the previous
//! contents of a column that becomes a unit vector need no memory of their own.

use std::num::NonZeroUsize;

use super::Element;
use super::dots::{Dots, Factors};

/// The inverse of the `order` rows in `matrix`, which are one after the other; `None` if there is
/// none.
///
/// # Panics
/// If `matrix` is not square.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "one thread does it plainly")
)]
pub fn invert(
    dots: Dots,
    order: usize,
    matrix: &[Element],
    threads: NonZeroUsize,
) -> Option<Factors> {
    assert_eq!(matrix.len(), order * order, "a matrix of {order} rows");
    match dots {
        #[cfg(target_arch = "x86_64")]
        Dots::Eight(ifma) => eight::invert(ifma, order, matrix, threads).map(Factors::Eight),
        Dots::Plain => plain(order, matrix).map(|inverse| Factors::new(dots, &inverse)),
    }
}

fn plain(order: usize, matrix: &[Element]) -> Option<Vec<Element>> {
    let mut rows = matrix.to_vec();
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
        own.iter_mut()
            .for_each(|element| *element = inverse.times(element));
        let own = own.to_vec();
        let others = rows
            .chunks_exact_mut(order)
            .enumerate()
            .filter(|&(row, _)| row != column);
        for (_, other) in others {
            let factor = other[column].neg().factor();
            other[column] = Element::ZERO;
            for (element, own) in other.iter_mut().zip(&own) {
                *element = element.add(&factor.times(own));
            }
        }
    }
    // Rows that were exchanged are columns of the inverse that have to be.
    for (column, &pivot) in swaps.iter().enumerate().rev() {
        rows.chunks_exact_mut(order)
            .for_each(|row| row.swap(column, pivot));
    }
    Some(rows)
}

/// Eight columns at a time: their changes to the others are one sum of eight products, which is
/// reduced once.
#[cfg(target_arch = "x86_64")]
mod eight {
    use std::num::NonZeroUsize;
    use std::thread;

    use super::super::dots::{RADIX, lane_of};
    use super::super::{Element, Factor};
    use crate::simd::ifma::{self, Elements, Ifma, LIMBS, WIDTH};

    /// The inverse, with every element times 2^260.
    pub(super) fn invert(
        ifma: Ifma,
        order: usize,
        matrix: &[Element],
        threads: NonZeroUsize,
    ) -> Option<Vec<[u64; LIMBS]>> {
        let width = order.div_ceil(WIDTH);
        let mut rows = vec![Elements::default(); order * width];
        for (row, elements) in rows.chunks_exact_mut(width).zip(matrix.chunks_exact(order)) {
            for (column, element) in elements.iter().enumerate() {
                put(
                    &mut row[column / WIDTH],
                    column % WIDTH,
                    &RADIX.times(element),
                );
            }
        }
        let mut swaps = Vec::with_capacity(order);
        for group in 0..width {
            let first = group * WIDTH;
            let count = WIDTH.min(order - first);
            pivots(&mut rows, width, first, count, &mut swaps)?;
            let corner = corner(&rows, width, first, count)?;
            // The rows of the pivots become what they would be if their part of the columns were
            // the unit matrix.
            let own = rows[first * width..][..count * width].to_vec();
            for (row, factors) in rows[first * width..]
                .chunks_exact_mut(width)
                .zip(corner.chunks_exact(count))
            {
                for (column, element) in row.iter_mut().enumerate() {
                    let sources: [Elements; WIDTH] = std::array::from_fn(|source| {
                        own.get(source * width + column)
                            .copied()
                            .unwrap_or_default()
                    });
                    *element = ifma.dot(&Elements::default(), factors, &sources[..count]);
                }
                row[group] = Elements::default();
                factors
                    .iter()
                    .enumerate()
                    .for_each(|(lane, factor)| set(&mut row[group], lane, factor));
            }
            // Column behind column, so that the rows of the pivots lie together.
            let mut sources = vec![Elements::default(); count * width];
            for (index, row) in rows[first * width..]
                .chunks_exact(width)
                .take(count)
                .enumerate()
            {
                row.iter()
                    .enumerate()
                    .for_each(|(column, &element)| sources[column * count + index] = element);
            }
            let (above, below) = rows.split_at_mut(first * width);
            let others: Vec<_> = above
                .chunks_exact_mut(width)
                .chain(below.chunks_exact_mut(width).skip(count))
                .collect();
            share(others, width * count, threads, |row| {
                clear(ifma, row, group, &sources, count)
            });
        }
        let mut inverse = Vec::with_capacity(order * order);
        for row in rows.chunks_exact(width) {
            inverse.extend((0..order).map(|column| {
                std::array::from_fn(|limb| row[column / WIDTH][limb].0[column % WIDTH])
            }));
        }
        // Rows that were exchanged are columns of the inverse that have to be.
        for (column, &pivot) in swaps.iter().enumerate().rev() {
            inverse
                .chunks_exact_mut(order)
                .for_each(|row: &mut [[u64; LIMBS]]| row.swap(column, pivot));
        }
        Some(inverse)
    }

    /// Eliminates the pivots' columns from another row.
    fn clear(ifma: Ifma, row: &mut [Elements], group: usize, sources: &[Elements], count: usize) {
        let mut factors = [[0; LIMBS]; WIDTH];
        for (lane, factor) in factors.iter_mut().enumerate().take(count) {
            *factor = ifma::limbs(lane_of(&row[group], lane).neg().limbs());
        }
        row[group] = Elements::default();
        for (element, sources) in row.iter_mut().zip(sources.chunks_exact(count)) {
            *element = ifma.dot(element, &factors[..count], sources);
        }
    }

    /// Moves rows that have pivots in these columns to their places. `None` if there are none.
    fn pivots(
        rows: &mut [Elements],
        width: usize,
        first: usize,
        count: usize,
        swaps: &mut Vec<usize>,
    ) -> Option<()> {
        let group = first / WIDTH;
        let mut panel: Vec<[Element; WIDTH]> = rows[first * width..]
            .chunks_exact(width)
            .map(|row| std::array::from_fn(|lane| lane_of(&row[group], lane)))
            .collect();
        for column in 0..count {
            let pivot = (column..panel.len()).find(|&row| panel[row][column] != Element::ZERO)?;
            swaps.push(first + pivot);
            panel.swap(column, pivot);
            let (above, below) = rows.split_at_mut((first + pivot) * width);
            if pivot != column {
                above[(first + column) * width..][..width].swap_with_slice(&mut below[..width]);
            }
            if column + 1 == count {
                break;
            }
            let inverse = panel[column][column]
                .inverse()
                .expect("a pivot is not zero")
                .factor();
            let own: [Factor; WIDTH] =
                std::array::from_fn(|lane| inverse.times(&panel[column][lane]).factor());
            for row in &mut panel[column + 1..] {
                let factor = row[column].neg();
                for lane in column + 1..count {
                    row[lane] = row[lane].add(&own[lane].times(&factor));
                }
            }
        }
        Some(())
    }

    /// The inverse of the pivots' own part of the matrix, as factors.
    fn corner(
        rows: &[Elements],
        width: usize,
        first: usize,
        count: usize,
    ) -> Option<Vec<[u64; LIMBS]>> {
        let own = rows[first * width..].chunks_exact(width).take(count);
        let elements: Vec<Element> = own
            .flat_map(|row| (0..count).map(|lane| lane_of(&row[first / WIDTH], lane)))
            .collect();
        // What is times 2^260 becomes what is divided by it; and is to be times 2^260.
        let inverse = super::plain(count, &elements)?;
        Some(
            inverse
                .iter()
                .map(|element| ifma::limbs(RADIX.times(&RADIX.times(element)).limbs()))
                .collect(),
        )
    }

    /// Processes all rows, on several threads if that pays.
    fn share(
        rows: Vec<&mut [Elements]>,
        work_a_row: usize,
        threads: NonZeroUsize,
        work: impl Fn(&mut [Elements]) + Sync,
    ) {
        let threads = (rows.len() * work_a_row / WORK_A_THREAD).clamp(1, threads.get());
        let mut rows = rows;
        let each = rows.len().div_ceil(threads).max(1);
        thread::scope(|scope| {
            let work = &work;
            let mut parts = rows.chunks_mut(each);
            let own = parts.next();
            parts.for_each(|part| {
                drop(scope.spawn(move || part.iter_mut().for_each(|row| work(row))))
            });
            own.into_iter().flatten().for_each(|row| work(row));
        });
    }

    fn put(elements: &mut Elements, lane: usize, element: &Element) {
        set(elements, lane, &ifma::limbs(element.limbs()));
    }

    fn set(elements: &mut Elements, lane: usize, limbs: &[u64; LIMBS]) {
        elements
            .iter_mut()
            .zip(limbs)
            .for_each(|(octet, &limb)| octet.0[lane] = limb);
    }

    /// Products of eight that justify a thread: some hundred microseconds.
    const WORK_A_THREAD: usize = 1 << 13;
}
