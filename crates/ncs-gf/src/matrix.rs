//! Inversion of square matrices over the byte field, by one thread or by several together.
//!
//! Gauss-Jordan elimination in place: where a pivot column would become a unit vector, the column
//! of the inverse takes its place, so a row stays n bytes long. Row i is the i-th pivot row; the
//! search is for its *column*, the first free one with a non-zero element. Threads therefore need
//! no agreement on rows: each thread owns every T-th row, publishes it in its turn, and waits only
//! for the pivot rows of the others. The owner of the next pivot row reduces it before its other
//! rows, so that the other threads need not wait for it. There is no barrier.
//!
//! With pivot columns p, row p(i), column j of the inverse is the element in row i, column p(j).

use std::hint::spin_loop;
use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::thread;

use super::simd::Line;
use super::{Kernels, gf256, threads};

/// An inversion by `threads` cooperating members, each of which calls [`run`](Self::run).
#[derive(Debug)]
pub struct Inversion<'a> {
    kernels: Kernels,
    n: usize,
    matrix: &'a [u8],
    threads: usize,
    /// The pivot of each row, in their order; `None` inside if the row is zero after reduction.
    pivots: Vec<OnceLock<Option<Pivot>>>,
}

#[derive(Debug)]
struct Pivot {
    column: usize,
    row: Vec<Line>,
}

/// The rows of the inverse that one member has made.
#[derive(Debug)]
pub struct Share {
    n: usize,
    indices: Vec<usize>,
    bytes: Vec<u8>,
}

impl Share {
    /// Each row with its index.
    pub fn rows(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.indices
            .iter()
            .copied()
            .zip(self.bytes.chunks_exact(self.n))
    }
}

/// The number of threads, of at most `threads`, that pays for an n × n matrix.
pub fn inverters(n: usize, threads: NonZeroUsize) -> NonZeroUsize {
    let most = if n < INVERTED_BY_SEVERAL_MIN {
        1
    } else {
        n / ROWS_PER_INVERTER
    };
    threads.min(NonZeroUsize::new(most).expect("one at least"))
}

/// The inverse of an n × n matrix, whose rows are one after the other; `None` if it is singular.
///
/// # Panics
/// If the matrix is not n × n.
pub fn invert(kernels: Kernels, n: usize, matrix: &[u8], threads: NonZeroUsize) -> Option<Vec<u8>> {
    // Members wait for each other, which takes threads.
    let threads = if cfg!(target_family = "wasm") {
        NonZeroUsize::MIN
    } else {
        threads
    };
    let inversion = Inversion::new(kernels, n, matrix, threads);
    let shares = threads::share(0..inversion.threads, |member| inversion.run(member));
    let shares: Option<Vec<Share>> = shares.into_iter().collect();
    let mut inverse = vec![0; n * n];
    for share in shares? {
        share
            .rows()
            .for_each(|(index, row)| inverse[index * n..][..n].copy_from_slice(row));
    }
    Some(inverse)
}

impl<'a> Inversion<'a> {
    /// An inversion of an n × n matrix, whose rows are one after the other.
    ///
    /// # Panics
    /// If the matrix is not n × n.
    pub fn new(kernels: Kernels, n: usize, matrix: &'a [u8], threads: NonZeroUsize) -> Self {
        assert_eq!(matrix.len(), n * n, "a matrix of {n} rows");
        let pivots = (0..n).map(|_| OnceLock::new()).collect();
        Self {
            kernels,
            n,
            matrix,
            threads: threads.get(),
            pivots,
        }
    }

    /// Does the part of member `member`. Returns when it is done, which requires the other members;
    /// `None` if the matrix is singular.
    ///
    /// # Panics
    /// If a member runs twice.
    pub fn run(&self, member: usize) -> Option<Share> {
        let mut rows = Rows::new(self, member);
        rows.publish_if_mine(0);
        for step in 0..self.n {
            let pivot = self.wait(step)?;
            rows.take_factors(step, pivot.column);
            rows.reduce(step + 1, &pivot.row);
            rows.publish_if_mine(step + 1);
            rows.reduce_all(&pivot.row);
        }
        Some(rows.finish())
    }

    fn wait(&self, step: usize) -> Option<&Pivot> {
        for turn in 0_u32.. {
            if let Some(pivot) = self.pivots[step].get() {
                return pivot.as_ref();
            }
            if turn < SPINS {
                spin_loop()
            } else {
                thread::yield_now()
            }
        }
        None
    }
}

/// The rows of one member.
struct Rows<'a> {
    shared: &'a Inversion<'a>,
    member: usize,
    stride: usize,
    lines: Vec<Line>,
    factors: Vec<u8>,
    is_taken: Vec<bool>,
}

impl<'a> Rows<'a> {
    fn new(shared: &'a Inversion<'a>, member: usize) -> Self {
        let (n, stride) = (shared.n, shared.n.div_ceil(Line::BYTES));
        let mine = (member..n).step_by(shared.threads);
        let mut lines = vec![Line::ZERO; mine.len() * stride];
        let factors = vec![0; mine.len()];
        for (place, index) in lines.chunks_exact_mut(stride).zip(mine) {
            Line::bytes_mut(place)[..n].copy_from_slice(&shared.matrix[index * n..][..n]);
        }
        Self {
            shared,
            member,
            stride,
            lines,
            factors,
            is_taken: vec![false; n],
        }
    }

    /// The place of row `index`, if it belongs to this member.
    fn place(&self, index: usize) -> Option<usize> {
        let is_mine = index < self.shared.n && index % self.shared.threads == self.member;
        is_mine.then_some(index / self.shared.threads)
    }

    fn row_mut(&mut self, place: usize) -> &mut [Line] {
        &mut self.lines[place * self.stride..][..self.stride]
    }

    /// Publishes row `index` as the pivot row that all members wait for.
    fn publish_if_mine(&mut self, index: usize) {
        let Some(place) = self.place(index) else {
            return;
        };
        let (n, kernels) = (self.shared.n, self.shared.kernels);
        let row = Line::bytes(&self.lines[place * self.stride..][..self.stride]);
        let column = (0..n).find(|&column| !self.is_taken[column] && row[column] != 0);
        let pivot = column.map(|column| {
            let row = self.row_mut(place);
            let bytes = Line::bytes_mut(row);
            let leading = std::mem::replace(&mut bytes[column], 1);
            kernels.scale(bytes, gf256::inv(leading));
            Pivot {
                column,
                row: row.to_vec(),
            }
        });
        self.shared.pivots[index]
            .set(pivot)
            .expect("a row is published once");
    }

    /// Takes each row's element in the pivot column, which becomes zero, except in the pivot row
    /// itself.
    fn take_factors(&mut self, pivot: usize, column: usize) {
        self.is_taken[column] = true;
        let own = self.place(pivot);
        for (place, row) in self.lines.chunks_exact_mut(self.stride).enumerate() {
            let element = &mut Line::bytes_mut(row)[column];
            self.factors[place] = if own == Some(place) {
                0
            } else {
                std::mem::take(element)
            };
        }
    }

    /// Reduces row `index` before the others, if it belongs to this member.
    fn reduce(&mut self, index: usize, pivot: &[Line]) {
        let Some(place) = self.place(index) else {
            return;
        };
        let (stride, kernels, factor) = (
            self.stride,
            self.shared.kernels,
            std::mem::take(&mut self.factors[place]),
        );
        kernels.spread_lines(self.row_mut(place), stride, 0, &[factor], pivot);
    }

    fn reduce_all(&mut self, pivot: &[Line]) {
        self.shared
            .kernels
            .spread_lines(&mut self.lines, self.stride, 0, &self.factors, pivot);
    }

    fn finish(self) -> Share {
        let n = self.shared.n;
        let columns = self
            .shared
            .pivots
            .iter()
            .flat_map(|pivot| pivot.get().and_then(Option::as_ref));
        let columns: Vec<usize> = columns.map(|pivot| pivot.column).collect();
        let mut bytes = Vec::with_capacity(self.factors.len() * n);
        for row in self.lines.chunks_exact(self.stride) {
            let row = Line::bytes(row);
            bytes.extend(columns.iter().map(|&column| row[column]));
        }
        let indices = columns
            .iter()
            .copied()
            .skip(self.member)
            .step_by(self.shared.threads)
            .collect();
        Share { n, indices, bytes }
    }
}

/// Polls of a pivot row that has not come, before the thread yields the processor.
const SPINS: u32 = 2000;

/// Smaller matrices are inverted by one thread: several threads would wait for each other's pivots
/// longer than they work (row S1-15 of the benchmarks has one, four and sixteen threads).
pub(super) const INVERTED_BY_SEVERAL_MIN: usize = 256;
/// Minimum number of rows of a larger matrix for each thread, for the same reason.
const ROWS_PER_INVERTER: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RowKey;
    use crate::at_most;

    fn random(n: usize, seed: u32) -> Vec<u8> {
        let mut matrix = vec![0; n * n];
        RowKey {
            key: 7,
            generation: 0,
        }
        .fill(seed, &mut matrix);
        matrix
    }

    fn product(a: &[u8], b: &[u8], n: usize) -> Vec<u8> {
        let mut sums = vec![0; n * n];
        for (row, sum) in a.chunks_exact(n).zip(sums.chunks_exact_mut(n)) {
            for (&c, other) in row.iter().zip(b.chunks_exact(n)) {
                sum.iter_mut()
                    .zip(other)
                    .for_each(|(sum, &byte)| *sum ^= gf256::mul(c, byte));
            }
        }
        sums
    }

    fn identity(n: usize) -> Vec<u8> {
        (0..n * n).map(|i| u8::from(i / n == i % n)).collect()
    }

    #[test]
    fn threads_are_started_for_work_alone() {
        let of = |threads| {
            [1, 80, 255, 256, 319, 320, 5000]
                .map(|n| inverters(n, NonZeroUsize::new(threads).unwrap()).get())
        };
        assert_eq!(of(1), [1; 7]);
        assert_eq!(of(4), [1, 1, 1, 4, 4, 4, 4]);
        assert_eq!(of(16), [1, 1, 1, 4, 4, 5, 16]);
    }

    #[test]
    fn the_product_with_the_inverse_is_the_identity() {
        for kernels in Kernels::available() {
            for (n, threads) in [
                (1, 1),
                (2, 3),
                (31, 1),
                (37, 2),
                (64, 3),
                (65, 4),
                (128, 2),
                (130, 7),
            ] {
                let inverse = |seed| invert(kernels, n, &random(n, seed), at_most(threads));
                let (seed, inverse) = (0..).find_map(|seed| Some((seed, inverse(seed)?))).unwrap();
                assert_eq!(
                    product(&random(n, seed), &inverse, n),
                    identity(n),
                    "{n} by {threads}, {kernels:?}"
                );
                assert_eq!(product(&inverse, &random(n, seed), n), identity(n));
            }
        }
    }

    #[test]
    fn zeros_on_the_diagonal_are_no_obstacle() {
        let n = 70;
        let shifted: Vec<u8> = (0..n * n)
            .map(|i| if (i / n + 3) % n == i % n { 5 } else { 0 })
            .collect();
        let inverse = invert(Kernels::detect(), n, &shifted, at_most(3)).unwrap();
        assert_eq!(product(&shifted, &inverse, n), identity(n));
    }

    #[test]
    fn what_has_no_inverse_has_none() {
        for threads in [1, 2, 5] {
            let mut matrix = random(40, 1);
            matrix.copy_within(3 * 40..4 * 40, 39 * 40);
            assert_eq!(
                invert(Kernels::detect(), 40, &matrix, at_most(threads)),
                None
            );
            assert_eq!(
                invert(Kernels::detect(), 40, &[0; 1600], at_most(threads)),
                None
            );
        }
    }
}
