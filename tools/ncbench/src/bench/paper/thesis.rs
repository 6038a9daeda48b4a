//! The algorithms of Vicente's thesis ("RaptorQ decoder using heterogeneous computing on a mobile
//! multi-core platform", Coimbra 2015), written as printed, over the field that it means: its
//! pseudo-code has integer `*` and `+`.
//!
//! One thread runs what the thesis calls sequential C (Algorithms 1, 4, 6, 8). Several run its
//! OpenMP version (11 to 13): each loop over rows or columns is cut into as many parts, with a
//! barrier after it. A product of matrices, which it leaves to a GPU with a thread for each element
//! (2, 3), is cut into runs of elements. Only the field is ours, and nothing is faster than on
//! paper: the codecs are measured beside this code and checked against it.
//!
//! Its slips, which are not repeated: Algorithm 12 divides `matrix` where it means `inverse`;
//! equation 2.2 takes x^256 + 1 for a multiple of the polynomial, which x^255 + 1 is; and "73 x 73"
//! for K = 60 (section 2.6) is K' + S, where the precode matrix is L x L, 83 x 83.

use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU8, Ordering};

use ncs_codec::raptorq::Parameters;
use ncs_gf::gf256;

use crate::bench::team::Member;

/// A field of q elements by logarithms and powers (section 2.2), the powers twice over.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Logarithms {
    log: [u8; 256],
    exp: [u8; 512],
    /// q - 1, after which powers come again.
    period: usize,
}

impl Logarithms {
    /// Tables of a field whose elements other than zero are the powers of one of them; `next`
    /// multiplies by that.
    pub(super) fn new(next: impl Fn(u8) -> u8) -> Self {
        let powers: Vec<u8> = std::iter::successors(Some(1), |&power| {
            Some(next(power)).filter(|&power| power != 1)
        })
        .collect();
        let mut log = [0; 256];
        powers
            .iter()
            .zip(0..)
            .for_each(|(&power, exponent)| log[usize::from(power)] = exponent);
        Self {
            log,
            exp: std::array::from_fn(|exponent| powers[exponent % powers.len()]),
            period: powers.len(),
        }
    }

    /// A power of the element that generates the field.
    pub(super) fn power(&self, exponent: usize) -> u8 {
        self.exp[exponent % self.period]
    }

    pub(super) fn product(&self, a: u8, b: u8) -> u8 {
        if a == 0 || b == 0 {
            0
        } else {
            self.exp[usize::from(self.log[usize::from(a)]) + usize::from(self.log[usize::from(b)])]
        }
    }

    /// `b` is not zero.
    fn quotient(&self, a: u8, b: u8) -> u8 {
        let exponent = usize::from(self.log[usize::from(a)]) + self.period
            - usize::from(self.log[usize::from(b)]);
        if a == 0 { 0 } else { self.exp[exponent] }
    }
}

/// GF(2^8) as RFC 6330 has it.
static BYTES: LazyLock<Logarithms> =
    LazyLock::new(|| Logarithms::new(|power| gf256::mul(power, gf256::GENERATOR)));

/// A matrix that several threads write, each its part.
#[derive(Debug)]
pub(super) struct Grid {
    elements: Vec<AtomicU8>,
    columns: usize,
}

impl Grid {
    pub(super) fn zeros(rows: usize, columns: usize) -> Self {
        Self::of(&vec![0; rows * columns], columns)
    }

    pub(super) fn of(bytes: &[u8], columns: usize) -> Self {
        Self {
            elements: bytes.iter().copied().map(AtomicU8::new).collect(),
            columns,
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.elements.len() / self.columns
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.elements.iter().map(get).collect()
    }

    fn row(&self, row: usize) -> &[AtomicU8] {
        &self.elements[row * self.columns..][..self.columns]
    }

    fn at(&self, row: usize, column: usize) -> u8 {
        get(&self.elements[row * self.columns + column])
    }

    fn put(&self, row: usize, column: usize, element: u8) {
        set(&self.elements[row * self.columns + column], element);
    }

    fn clear(&self, rows: Range<usize>) {
        self.elements[rows.start * self.columns..rows.end * self.columns]
            .iter()
            .for_each(|element| set(element, 0));
    }
}

fn get(element: &AtomicU8) -> u8 {
    element.load(Ordering::Relaxed)
}

fn set(element: &AtomicU8, value: u8) {
    element.store(value, Ordering::Relaxed);
}

/// What a member does of 0..count, as OpenMP deals out a loop.
fn mine(member: &Member<'_>, count: usize) -> Range<usize> {
    let each = count.div_ceil(member.threads);
    (member.index * each).min(count)..((member.index + 1) * each).min(count)
}

/// C = A B (Algorithms 1 to 3): element by element, down the columns of C.
pub(super) fn multiply(a: &Grid, b: &Grid, c: &Grid, member: &Member<'_>) {
    let (field, rows) = (&*BYTES, a.rows());
    for element in mine(member, rows * b.columns) {
        let (column, row) = (element / rows, element % rows);
        let factors = b.elements[column..].iter().step_by(b.columns);
        let sum = a
            .row(row)
            .iter()
            .zip(factors)
            .fold(0, |sum, (a, b)| sum ^ field.product(get(a), get(b)));
        c.put(row, column, sum);
    }
    member.wait();
}

/// Gauss-Jordan (Algorithms 4, 6, 8; 11 to 13 with several threads): `matrix` becomes the identity,
/// `inverse` its inverse. False if the matrix is singular.
pub(super) fn invert(matrix: &Grid, inverse: &Grid, member: &Member<'_>) -> bool {
    let n = matrix.columns;
    for row in mine(member, n) {
        inverse.clear(row..row + 1);
        inverse.put(row, row, 1);
    }
    member.wait();
    for i in 0..n {
        let Some(j) = (i..n).find(|&j| matrix.at(j, i) != 0) else {
            return false;
        };
        if j != i {
            member.wait();
            [matrix, inverse]
                .into_iter()
                .for_each(|grid| swap(grid, i, j, member));
            member.wait();
        }
        let pivot = matrix.at(i, i);
        if pivot != 1 {
            member.wait();
            [matrix, inverse]
                .into_iter()
                .for_each(|grid| divide(grid, i, pivot, member));
            member.wait();
        }
        for k in mine(member, n) {
            let factor = matrix.at(k, i);
            if factor != 0 && k != i {
                [matrix, inverse]
                    .into_iter()
                    .for_each(|grid| add(grid, k, i, factor));
            }
        }
        member.wait();
    }
    true
}

/// Row swap (Algorithms 4, 5, 11).
fn swap(grid: &Grid, i: usize, j: usize, member: &Member<'_>) {
    for column in mine(member, grid.columns) {
        let (of_i, of_j) = (grid.at(i, column), grid.at(j, column));
        grid.put(i, column, of_j);
        grid.put(j, column, of_i);
    }
}

/// Row division (Algorithms 6, 7, 12).
fn divide(grid: &Grid, i: usize, pivot: u8, member: &Member<'_>) {
    let field = &*BYTES;
    for element in &grid.row(i)[mine(member, grid.columns)] {
        set(element, field.quotient(get(element), pivot));
    }
}

/// Row sum (Algorithms 8, 9, 13).
fn add(grid: &Grid, k: usize, i: usize, factor: u8) {
    let field = &*BYTES;
    for (element, of_pivot) in grid.row(k).iter().zip(grid.row(i)) {
        set(element, field.product(factor, get(of_pivot)) ^ get(element));
    }
}

/// A block to be decoded by the first scheme (section 2.5): A' is inverted, L x L.
#[derive(Debug)]
pub(super) struct First {
    /// A': the precode's rows, then those of the symbols that came and of padding.
    pub(super) matrix: Grid,
    /// D': zeros, then these symbols, and zeros of padding.
    pub(super) symbols: Grid,
    /// The rows of the symbols that are missing.
    pub(super) wanted: Grid,
}

/// Where the first scheme works.
#[derive(Debug)]
pub(super) struct FirstBoard {
    matrix: Grid,
    inverse: Grid,
    intermediate: Grid,
    pub(super) made: Grid,
}

impl FirstBoard {
    pub(super) fn new(of: &First) -> Self {
        let (l, symbol_bytes) = (of.matrix.columns, of.symbols.columns);
        Self {
            matrix: Grid::zeros(l, l),
            inverse: Grid::zeros(l, l),
            intermediate: Grid::zeros(l, symbol_bytes),
            made: Grid::zeros(of.wanted.rows(), symbol_bytes),
        }
    }
}

impl First {
    /// C = A'^-1 D', then the missing symbols of C. False if A' is singular.
    pub(super) fn run(&self, board: &FirstBoard, member: &Member<'_>) -> bool {
        copy(&self.matrix, &board.matrix, member);
        member.wait();
        if !invert(&board.matrix, &board.inverse, member) {
            return false;
        }
        multiply(&board.inverse, &self.symbols, &board.intermediate, member);
        multiply(&self.wanted, &board.intermediate, &board.made, member);
        true
    }
}

fn copy(from: &Grid, to: &Grid, member: &Member<'_>) {
    let elements = mine(member, from.elements.len());
    to.elements[elements.clone()]
        .iter()
        .zip(&from.elements[elements])
        .for_each(|(to, from)| set(to, get(from)));
}

/// A block to be decoded by the second scheme, matrix-dimensionality reduction (section 2.6,
/// equations 2.6 to 2.9): with R symbols missing, R x R elements are inverted.
#[derive(Debug)]
pub(super) struct Second {
    /// G_LT of the repair symbols, R x L.
    pub(super) generator: Grid,
    /// D of what came of the source, zeros in place of what did not.
    pub(super) known: Grid,
    /// The repair symbols.
    pub(super) repair: Grid,
    /// Source symbols that did not come.
    pub(super) missing: Vec<u32>,
}

/// Where the second scheme works.
#[derive(Debug)]
pub(super) struct SecondBoard {
    reduced: Grid,
    sides: Grid,
    matrix: Grid,
    inverse: Grid,
    pub(super) made: Grid,
}

impl SecondBoard {
    pub(super) fn new(of: &Second) -> Self {
        let (count, symbol_bytes) = (of.missing.len(), of.repair.columns);
        Self {
            reduced: Grid::zeros(count, of.known.rows()),
            sides: Grid::zeros(count, symbol_bytes),
            matrix: Grid::zeros(count, count),
            inverse: Grid::zeros(count, count),
            made: Grid::zeros(count, symbol_bytes),
        }
    }
}

impl Second {
    /// Computes A'' = G_LT A^-1, removes the known part from the repair symbols, and solves for the
    /// missing symbols. `stored` is A^-1 without the columns of zeros in D. False if the matrix is
    /// singular.
    pub(super) fn run(&self, stored: &Grid, board: &SecondBoard, member: &Member<'_>) -> bool {
        multiply(&self.generator, stored, &board.reduced, member);
        multiply(&board.reduced, &self.known, &board.sides, member);
        for row in mine(member, self.missing.len()) {
            for (side, repair) in board.sides.row(row).iter().zip(self.repair.row(row)) {
                set(side, get(side) ^ get(repair));
            }
            for (column, &source) in self.missing.iter().enumerate() {
                board
                    .matrix
                    .put(row, column, board.reduced.at(row, source as usize));
            }
        }
        member.wait();
        if !invert(&board.matrix, &board.inverse, member) {
            return false;
        }
        multiply(&board.inverse, &board.sides, &board.made, member);
        true
    }
}

/// Where the precode matrix is made.
#[derive(Debug)]
pub(super) struct PrecodeBoard {
    /// H x (K' + S).
    mt: Grid,
    /// (K' + S) x (K' + S).
    gamma: Grid,
    dense: Grid,
    /// A, L x L.
    pub(super) matrix: Grid,
}

impl PrecodeBoard {
    pub(super) fn new(of: &Parameters) -> Self {
        let [coded, h, l] = [of.k_prime + of.s, of.h, of.l].map(|count| count as usize);
        Self {
            mt: Grid::zeros(h, coded),
            gamma: Grid::zeros(coded, coded),
            dense: Grid::zeros(h, coded),
            matrix: Grid::zeros(l, l),
        }
    }
}

/// The precode matrix A (section 5.4, Fig. 2.7; RFC 6330, section 5.3.3.3): LDPC rows, HDPC rows as
/// the product of MT and GAMMA, and the rows of the K' source symbols.
pub(super) fn precode(of: &Parameters, board: &PrecodeBoard, member: &Member<'_>) {
    let [s, h, w, b, p] = [of.s, of.h, of.w, of.b, of.p].map(|count| count as usize);
    let coded = board.gamma.columns;
    for row in mine(member, coded) {
        for (column, element) in board.gamma.row(row).iter().enumerate() {
            set(
                element,
                if column <= row {
                    BYTES.power(row - column)
                } else {
                    0
                },
            );
        }
    }
    board.matrix.clear(mine(member, board.matrix.rows()));
    if member.index == 0 {
        board.mt.clear(0..h);
        for (column, number) in (0..coded - 1).zip(0..) {
            of.hdpc_pair(number)
                .into_iter()
                .for_each(|row| board.mt.put(row as usize, column, 1));
        }
        (0..h).for_each(|row| board.mt.put(row, coded - 1, BYTES.power(row)));
    }
    member.wait();
    multiply(&board.mt, &board.gamma, &board.dense, member);
    if member.index == 0 {
        for i in 0..b {
            let a = 1 + i / s;
            [i % s, (i + a) % s, (i + 2 * a) % s]
                .into_iter()
                .for_each(|row| board.matrix.put(row, i, 1));
        }
        for i in 0..s {
            [b + i, w + i % p, w + (i + 1) % p]
                .into_iter()
                .for_each(|column| board.matrix.put(i, column, 1));
        }
        for row in 0..h {
            (0..coded).for_each(|column| {
                board
                    .matrix
                    .put(s + row, column, board.dense.at(row, column))
            });
            board.matrix.put(s + row, coded + row, 1);
        }
    }
    let mut columns = Vec::with_capacity(32);
    for symbol in mine(member, of.k_prime as usize) {
        columns.clear();
        of.columns(u32::try_from(symbol).expect("a symbol"), &mut columns);
        columns
            .iter()
            .for_each(|&column| board.matrix.put(s + h + symbol, column as usize, 1));
    }
    member.wait();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::team;

    /// Table 2.1 of section 2.1: products of the elements of GF(5) that are not zero.
    #[test]
    fn table_2_1_multiplies_in_gf_5() {
        const TABLE: [[u8; 4]; 4] = [[1, 2, 3, 4], [2, 4, 1, 3], [3, 1, 4, 2], [4, 3, 2, 1]];
        let field = Logarithms::new(|power| power * 2 % 5);
        assert_eq!(field.period, 4, "2 generates the group");
        for (a, row) in (1..).zip(TABLE) {
            for (b, product) in (1..).zip(row) {
                assert_eq!(field.product(a, b), product, "{a} times {b}");
                assert_eq!(field.quotient(product, b), a);
            }
        }
        assert_eq!((field.product(0, 3), field.product(3, 0)), (0, 0));
    }

    /// Table 2.2 of section 2.2: the powers of alpha in GF(2^3) of x^3 + x + 1, and the sum below
    /// it.
    #[test]
    fn table_2_2_builds_gf_8() {
        const TABLE: [u8; 7] = [0b001, 0b010, 0b100, 0b011, 0b110, 0b111, 0b101];
        let shifted = |power: u8| (power << 1) ^ if power & 0b100 != 0 { 0b1011 } else { 0 };
        let field = Logarithms::new(shifted);
        assert_eq!(field.period, 7);
        assert_eq!(
            (0..7)
                .map(|exponent| field.power(exponent))
                .collect::<Vec<_>>(),
            TABLE
        );
        assert_eq!(
            field.power(5) ^ field.power(6),
            field.power(1),
            "alpha^5 + alpha^6 = alpha"
        );
        assert!((1..7).all(|a| field.quotient(field.product(a, 6), 6) == a));
    }

    /// Section 2.2 says that x^8 + x^4 + x^3 + x^2 + 1 divides x^256 + 1. It divides x^255 + 1, as
    /// every primitive polynomial of this degree.
    #[test]
    fn the_same_construction_gives_the_field_of_the_codes() {
        let field = &*BYTES;
        assert_eq!(field.period, 255);
        let slipped = field.exp[256] ^ 1;
        assert_eq!(
            (field.exp[255] ^ 1, slipped),
            (0, 3),
            "x^255 + 1, and x^256 + 1 = x + 1"
        );
        assert_eq!(field.exp[..510], gf256::EXP[..510]);
        assert_eq!(field.log[1..], gf256::LOG[1..]);
        for (a, b) in (0..=255).flat_map(|a| (0..=255).map(move |b| (a, b))) {
            assert_eq!(field.product(a, b), gf256::mul(a, b));
            assert!(b == 0 || field.quotient(a, b) == gf256::div(a, b));
        }
    }

    /// The example of section 2.6: 60 source symbols of which 80 % arrive. "12 x 12" holds; "73 x
    /// 73" is K' + S, without the HDPC symbols.
    #[test]
    fn sixty_symbols_have_83_intermediate_ones_and_not_73() {
        let parameters = Parameters::new(60).unwrap();
        assert_eq!(
            (parameters.k_prime, parameters.s, parameters.h, parameters.l),
            (60, 13, 10, 83)
        );
        assert_eq!(parameters.k_prime + parameters.s, 73);
        assert_eq!(60 - 60 * 80 / 100, 12);
    }

    fn pseudo_random(count: usize) -> Vec<u8> {
        let steps = std::iter::successors(Some(7_u32), |&state| {
            Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
        });
        steps
            .skip(1)
            .take(count)
            .map(|state| state.to_be_bytes()[0])
            .collect()
    }

    #[test]
    fn matrices_are_multiplied_and_inverted_by_any_number_of_threads() {
        for (n, threads) in [(1, 1), (2, 2), (33, 1), (40, 2), (64, 3), (5, 7)] {
            let mut bytes = pseudo_random(n * n);
            // So that the first rows are swapped, and the last column is one of a regular matrix.
            bytes[0] = u8::from(n == 1);
            let (matrix, work) = (Grid::of(&bytes, n), Grid::of(&bytes, n));
            let (inverse, product) = (Grid::zeros(n, n), Grid::zeros(n, n));
            let (_, regular) = team::time(
                threads,
                1,
                |_| false,
                |is_regular, member, _| {
                    *is_regular = invert(&work, &inverse, member);
                    multiply(&matrix, &inverse, &product, member);
                },
            );
            assert_eq!(regular, vec![true; threads], "{n}");
            let identity: Vec<u8> = (0..n * n).map(|i| u8::from(i / n == i % n)).collect();
            assert_eq!(
                (work.bytes(), product.bytes()),
                (identity.clone(), identity),
                "{n} by {threads}"
            );
        }
    }

    #[test]
    fn what_has_no_inverse_is_told_apart() {
        let (matrix, inverse) = (Grid::of(&[1, 2, 3, 1, 2, 3, 0, 0, 1], 3), Grid::zeros(3, 3));
        let (_, regular) = team::time(
            2,
            1,
            |_| true,
            |is_regular, member, _| *is_regular = invert(&matrix, &inverse, member),
        );
        assert_eq!(regular, [false; 2]);
    }
}
