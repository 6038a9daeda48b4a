//! The solution of the system of a set of symbols, found on the structure alone: this module
//! touches no symbol.
//!
//! With pivots and inactive columns from phase 1, every pivot's symbol is a sum E of arrived
//! symbols plus a sum of inactive symbols, which a row of bits records. The rows that are not pivot
//! rows remain, over the inactive columns alone. They are binary, so they are eliminated first.
//! They leave at most H columns *free*, and the dense rows solve these. The right sides of dense
//! rows are zeros: the rows need no elimination of their own, only their product with all pivots, E
//! and bits alike. The product with the bits is computed in the opposite direction: from the last
//! pivot to the first, the coefficient of a dense row in a pivot's column goes to the other columns
//! of the pivot's row.
//!
//! The system is solved if and only if its rank is L, with one exception. Symbols chosen to have
//! many columns each leave thousands of columns inactive at large K, and time grows with the cube
//! of their number. The solver gives up there, and reports a missing symbol. Random symbols of
//! RaptorQ leave about 530 of 57,326 at the largest K.

use super::peel::Peeled;
use super::rows::{Rows, index};
use super::system::{Size, System};
use ncs_gf::gf256::{self, EXP, LOG};

/// How the inactive columns are solved, and all others from them.
#[derive(Debug)]
pub(super) struct Solution {
    pub(super) peeled: Peeled,
    /// Where each column is in `peeled`: in `pivots`, or behind those in `inactive`.
    pub(super) places: Vec<u32>,
    /// The inactive symbols in the sum of each pivot.
    pub(super) bits: Bits,
    /// The rows that are no pivot rows and are used.
    pub(super) rows: Vec<u32>,
    /// For each of these rows, the inactive column that it gives.
    pub(super) bound: Vec<u32>,
    /// Which of these rows add up to each such column's symbol, up to free ones.
    pub(super) transform: Bits,
    /// Inactive columns that they do not give, H at most.
    pub(super) free: Vec<u32>,
    /// Which of the free symbols are to be added.
    pub(super) free_bits: Bits,
    /// How the free ones come from the dense rows. None if nothing is free.
    pub(super) dense: Option<Dense>,
}

/// How free symbols come from the products of dense rows.
#[derive(Debug)]
pub(super) struct Dense {
    /// What the rows have in the bound columns: H rows, as long as `bound`.
    pub(super) rows: Vec<u8>,
    /// What to multiply the rows' right sides by: H coefficients for each free symbol.
    pub(super) inverse: Vec<u8>,
}

/// Rows without full rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Deficit {
    /// Lower bound of the rank deficit.
    pub missing: usize,
    /// Rows that depend on the others.
    pub(super) dependent: Vec<u32>,
}

impl Solution {
    pub(super) fn new(system: &impl System, rows: &Rows) -> Result<Self, Deficit> {
        let Size { w, l, .. } = system.size();
        let peeled = Peeled::new(rows, w, l);
        if peeled.inactive.len() > INACTIVE_MAX {
            return Err(Deficit {
                missing: 1,
                dependent: Vec::new(),
            });
        }
        let places = places(l, &peeled);
        let bits = pivot_bits(rows, &peeled, &places);
        let elimination = Elimination::new(rows, &peeled, &places, &bits);
        let Elimination {
            used,
            bound,
            free,
            transform,
            free_bits,
            dependent,
        } = elimination;
        let solution = Self {
            peeled,
            places,
            bits,
            rows: used,
            bound,
            transform,
            free,
            free_bits,
            dense: None,
        };
        if solution.free.is_empty() {
            return Ok(solution);
        }
        match solution.dense(system, rows) {
            Ok(dense) => Ok(Self {
                dense: Some(dense),
                ..solution
            }),
            Err(missing) => Err(Deficit { missing, dependent }),
        }
    }

    /// Inactive columns.
    pub(super) fn inactive(&self) -> usize {
        self.peeled.inactive.len()
    }

    /// What the dense rows have in each inactive column when pivots are expressed by inactive
    /// symbols.
    fn dense_columns(&self, system: &impl System, rows: &Rows) -> Vec<u128> {
        let mut columns = system.dense_columns();
        for &(row, pivot) in self.peeled.pivots.iter().rev() {
            let own = std::mem::take(&mut columns[pivot as usize]);
            rows.row(row)
                .iter()
                .for_each(|&column| columns[column as usize] ^= own);
            columns[pivot as usize] = 0;
        }
        self.peeled
            .inactive
            .iter()
            .map(|&column| columns[column as usize])
            .collect()
    }

    /// Solves for the free columns, or says how many rows are missing.
    fn dense(&self, system: &impl System, rows: &Rows) -> Result<Dense, usize> {
        let h = system.size().h as usize;
        let columns = self.dense_columns(system, rows);
        let mut matrix: Vec<u128> = self
            .free
            .iter()
            .map(|&column| columns[column as usize])
            .collect();
        let mut dense = vec![0; h * self.bound.len()];
        for (bound, &column) in self.bound.iter().enumerate() {
            let elements = columns[column as usize];
            for (row, element) in elements.to_le_bytes().into_iter().take(h).enumerate() {
                dense[row * self.bound.len() + bound] = element;
            }
            for bit in self.free_bits.ones(bound) {
                matrix[bit as usize] ^= elements;
            }
        }
        let inverse = left_inverse(&matrix, h)?;
        Ok(Dense {
            rows: dense,
            inverse,
        })
    }
}

fn places(l: u32, peeled: &Peeled) -> Vec<u32> {
    let mut places = vec![0; l as usize];
    let columns = peeled
        .pivots
        .iter()
        .map(|pivot| pivot.1)
        .chain(peeled.inactive.iter().copied());
    columns
        .zip(0..)
        .for_each(|(column, place)| places[column as usize] = place);
    places
}

/// The inactive symbols in each pivot's sum, from the first to the last.
fn pivot_bits(rows: &Rows, peeled: &Peeled, places: &[u32]) -> Bits {
    let mut bits = Bits::new(peeled.inactive.len(), peeled.pivots.len());
    for &(row, pivot) in &peeled.pivots {
        bits.push_row(rows.row(row), places, peeled.pivots.len(), pivot);
    }
    bits
}

/// Rows of bits.
#[derive(Debug)]
pub(super) struct Bits {
    words: usize,
    bits: Vec<u64>,
}

impl Bits {
    /// None yet, of `width` bits, with room for so many.
    fn new(width: usize, capacity: usize) -> Self {
        let words = width.div_ceil(64);
        Self {
            words,
            bits: Vec::with_capacity(words * capacity),
        }
    }

    pub(super) fn row(&self, row: usize) -> &[u64] {
        &self.bits[row * self.words..][..self.words]
    }

    /// The bits that are set in a row, ascending.
    pub(super) fn ones(&self, row: usize) -> impl Iterator<Item = u32> {
        ones(self.row(row))
    }

    /// Appends the sum of a row's columns: of pivots their bits, of inactive columns their own.
    fn push_row(&mut self, columns: &[u32], places: &[u32], pivots: usize, except: u32) {
        let start = self.bits.len();
        self.bits.resize(start + self.words, 0);
        let (held, sum) = self.bits.split_at_mut(start);
        add_row(
            sum,
            held,
            self.words,
            columns.iter().filter(|column| **column != except),
            places,
            pivots,
        );
    }
}

/// Adds a row's columns to `sum`.
pub(super) fn add_row<'a>(
    sum: &mut [u64],
    bits: &[u64],
    words: usize,
    columns: impl Iterator<Item = &'a u32>,
    places: &[u32],
    pivots: usize,
) {
    for &column in columns {
        let place = places[column as usize] as usize;
        match place.checked_sub(pivots) {
            None => add(sum, &bits[place * words..][..words]),
            Some(bit) => sum[bit / 64] ^= 1 << (bit % 64),
        }
    }
}

impl Solution {
    /// The inactive symbols in the sum of these columns.
    pub(super) fn sum_of(&self, columns: &[u32], sum: &mut [u64]) {
        add_row(
            sum,
            &self.bits.bits,
            self.bits.words,
            columns.iter(),
            &self.places,
            self.peeled.pivots.len(),
        );
    }
}

fn add(sum: &mut [u64], row: &[u64]) {
    sum.iter_mut().zip(row).for_each(|(sum, word)| *sum ^= word);
}

fn bit(row: &[u64], bit: usize) -> bool {
    row[bit / 64] >> (bit % 64) & 1 == 1
}

/// The bits that are set, ascending.
pub(super) fn ones(row: &[u64]) -> impl Iterator<Item = u32> {
    row.iter()
        .zip((0..).step_by(64))
        .flat_map(|(&word, first)| {
            std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)))
                .take_while(|word| *word != 0)
                .map(move |word| first + word.trailing_zeros())
        })
}

/// Gauss-Jordan elimination of the rows that are no pivot rows, over the inactive columns.
struct Elimination {
    used: Vec<u32>,
    bound: Vec<u32>,
    free: Vec<u32>,
    transform: Bits,
    free_bits: Bits,
    dependent: Vec<u32>,
}

impl Elimination {
    fn new(rows: &Rows, peeled: &Peeled, places: &[u32], bits: &Bits) -> Self {
        let (width, words, pivots) = (peeled.inactive.len(), bits.words, peeled.pivots.len());
        // A row is its bits, then those of the rows that it is the sum of.
        let stride = 2 * words;
        let mut held: Vec<u64> = Vec::with_capacity(width.min(peeled.rest.len()) * stride);
        let (mut used, mut bound, mut dependent) = (Vec::new(), Vec::new(), Vec::new());
        // LDPC rows have many columns, so they are taken last: with symbols to spare some are not
        // needed.
        for &row in peeled.rest.iter().rev() {
            if used.len() == width {
                break;
            }
            let start = held.len();
            held.resize(start + stride, 0);
            let (before, own) = held.split_at_mut(start);
            add_row(
                &mut own[..words],
                &bits.bits,
                words,
                rows.row(row).iter(),
                places,
                pivots,
            );
            for (other, &column) in before.chunks_exact(stride).zip(&bound) {
                if bit(own, column as usize) {
                    add(own, other);
                }
            }
            let Some(column) = ones(&own[..words]).next() else {
                held.truncate(start);
                dependent.push(row);
                continue;
            };
            own[words + used.len() / 64] |= 1 << (used.len() % 64);
            for other in before
                .chunks_exact_mut(stride)
                .filter(|other| bit(other, column as usize))
            {
                add(other, own);
            }
            used.push(row);
            bound.push(column);
        }
        let mut is_free = vec![true; width];
        bound
            .iter()
            .for_each(|&column| is_free[column as usize] = false);
        let free: Vec<u32> = (0..index(width))
            .filter(|&column| is_free[column as usize])
            .collect();
        let (mut transform, mut free_bits) = (
            Bits::new(used.len(), used.len()),
            Bits::new(free.len(), used.len()),
        );
        for row in held.chunks_exact(stride) {
            transform
                .bits
                .extend_from_slice(&row[words..][..transform.words]);
            let start = free_bits.bits.len();
            free_bits.bits.resize(start + free_bits.words, 0);
            for (place, &column) in free.iter().enumerate() {
                free_bits.bits[start + place / 64] |=
                    u64::from(bit(row, column as usize)) << (place % 64);
            }
        }
        Self {
            used,
            bound,
            free,
            transform,
            free_bits,
            dependent,
        }
    }
}

/// The left inverse of a matrix of `h` rows, at most 16: `h` elements for each of its columns,
/// which are given as in [`System::dense_columns`]. If there is none, the rank deficit.
fn left_inverse(columns: &[u128], h: usize) -> Result<Vec<u8>, usize> {
    // Each row with its own row of the identity behind it.
    let width = columns.len() + h;
    let mut matrix = vec![0; h * width];
    for (index, row) in matrix.chunks_exact_mut(width).enumerate() {
        row.iter_mut()
            .zip(columns)
            .for_each(|(element, column)| *element = column.to_le_bytes()[index]);
        row[columns.len() + index] = 1;
    }
    let mut rank = 0;
    for column in 0..columns.len() {
        let Some(found) = (rank..h).find(|row| matrix[row * width + column] != 0) else {
            continue;
        };
        for at in 0..width {
            matrix.swap(found * width + at, rank * width + at);
        }
        let inverse = gf256::inv(matrix[rank * width + column]);
        matrix[rank * width..][..width]
            .iter_mut()
            .for_each(|element| *element = product(inverse, *element));
        let pivot = matrix[rank * width..][..width].to_vec();
        for (_, row) in matrix
            .chunks_exact_mut(width)
            .enumerate()
            .filter(|(row, _)| *row != rank)
        {
            let factor = row[column];
            row.iter_mut()
                .zip(&pivot)
                .for_each(|(element, &other)| *element ^= product(factor, other));
        }
        rank += 1;
    }
    if rank < columns.len() {
        return Err(columns.len() - rank);
    }
    Ok(matrix
        .chunks_exact(width)
        .take(rank)
        .flat_map(|row| &row[columns.len()..])
        .copied()
        .collect())
}

/// By tables: the definition multiplies bit by bit.
fn product(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        0
    } else {
        EXP[usize::from(LOG[usize::from(a)]) + usize::from(LOG[usize::from(b)])]
    }
}

/// Maximum number of inactive columns: all that are possible up to K = 4096, and at any K eight
/// times as many as random symbols leave. So many take a second, and 40 MB.
const INACTIVE_MAX: usize = 4608;
