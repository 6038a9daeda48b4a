//! Reed-Solomon: k chunks and n - k combinations of them, any k of which rebuild all n.
//!
//! Systematic codes over GF(2^8)/0x11D. Chunk i < k is the i-th piece of the file, unchanged; the
//! others are the *parity rows* times these pieces. Other software uses several matrices, and a
//! chunk is useless unless its matrix is known. Each matrix therefore has its usual name, and makes
//! the same bytes as the software that it comes from ([`Matrix`]).
//!
//! Rebuilding inverts as little as possible. Of the k chunks in use, the data chunks stand for
//! themselves. With e data chunks lost and e parity chunks in their place, the e lost columns of
//! these e parity rows are a square matrix. Its inverse turns the parity chunks, minus the known
//! chunks' parts, into the lost chunks. A matrix is MDS exactly if every such part of it can be
//! inverted (MacWilliams and Sloane, "The Theory of Error-Correcting Codes", chapter 11, theorem
//! 8).
//!
//! This module computes rows; [`Kernels::combine_scattered`] multiplies. No allocation depends on a
//! number that a sender chose: a [`Code`] takes at most 16 KiB.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::str::FromStr;

use ncs_gf::{Kernels, gf256, matrix};

#[cfg(test)]
mod tests;

/// The construction of the parity rows. Indices of chunks count from zero, parity chunks from k on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Matrix {
    /// Row i, column j is 1 / (i xor j), a Cauchy matrix: ISA-L's `gf_gen_cauchy1_matrix`,
    /// klauspost's `WithCauchyMatrix`.
    #[default]
    Cauchy,
    /// The Vandermonde matrix of i^j times the inverse of its first k rows: Backblaze, klauspost's
    /// default, the crate `reed-solomon-erasure`.
    VandBb,
    /// The Vandermonde matrix whose last row stands for the point at infinity, times the inverse of
    /// its first k rows, then scaled so that the first parity row and the first column are ones:
    /// Jerasure's `reed_sol_van` (Plank and Ding, "Note: Correction to the 1997 Tutorial on
    /// Reed-Solomon Coding", 2005).
    VandJerasure,
    /// Row i, column j is 2^((i - k) j): ISA-L's `gf_gen_rs_matrix`. MDS only for some k and n;
    /// others are refused.
    IsalRs,
}

impl Matrix {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Cauchy, Self::VandBb, Self::VandJerasure, Self::IsalRs];

    /// The name on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cauchy => "cauchy",
            Self::VandBb => "vand-bb",
            Self::VandJerasure => "vand-jerasure",
            Self::IsalRs => "isal-rs",
        }
    }

    /// Whether any k of n chunks rebuild the others.
    fn is_mds(self, k: usize, n: usize) -> bool {
        match self {
            Self::Cauchy | Self::VandBb | Self::VandJerasure => true,
            // What the header of ISA-L promises. Beyond it there are chunks that depend on each
            // other: its issue 46.
            Self::IsalRs => {
                k <= 3
                    || n - k <= 3
                    || (k == 4 && n <= 25)
                    || (k == 5 && n <= 10)
                    || (k <= 21 && n - k == 4)
            }
        }
    }

    /// The parity rows, one after the other.
    fn parity(self, k: usize, n: usize) -> Vec<u8> {
        match self {
            Self::Cauchy => {
                let mut rows = vec![0; (n - k) * k];
                (k..n)
                    .zip(rows.chunks_exact_mut(k))
                    .for_each(|(i, row)| cauchy_row(i, row));
                rows
            }
            Self::VandBb => lagrange(k, k..n, false),
            Self::VandJerasure => {
                let mut rows = lagrange(k, k..n - 1, true);
                normalize(&mut rows, k);
                rows
            }
            Self::IsalRs => (0..n - k)
                .flat_map(|i| (0..k).map(move |j| gf256::EXP[i * j % 255]))
                .collect(),
        }
    }
}

/// Writes the parity row of chunk `index` of a Cauchy matrix ([`Matrix::Cauchy`]); k is the length
/// of the row. It does not depend on the number of chunks.
///
/// # Panics
/// If the index is below k, or above 255.
pub fn cauchy_row(index: usize, row: &mut [u8]) {
    assert!(
        index >= row.len(),
        "chunk {index} is no parity chunk with k = {}",
        row.len()
    );
    for (j, coefficient) in row.iter_mut().enumerate() {
        *coefficient = gf256::inv(element(index ^ j));
    }
}

/// The value at the points of `rows` (and at infinity behind them) of each polynomial of degree
/// below k that is 1 at one of the points 0 to k - 1 and 0 at the others: what the Vandermonde
/// matrix of these points becomes when its first k rows are made the identity.
fn lagrange(k: usize, rows: Range<usize>, has_infinity: bool) -> Vec<u8> {
    let differences = |point: usize| {
        (0..k)
            .filter(move |&i| i != point)
            .map(move |i| element(i ^ point))
    };
    let product = |point: usize| differences(point).fold(1, gf256::mul);
    let weights: Vec<u8> = (0..k).map(|j| gf256::inv(product(j))).collect();
    let mut elements = Vec::with_capacity((rows.len() + 1) * k);
    for point in rows {
        let all = product(point);
        elements
            .extend((0..k).map(|j| gf256::mul(all, gf256::div(weights[j], element(point ^ j)))));
    }
    if has_infinity {
        // The leading coefficients.
        elements.extend(weights);
    }
    elements
}

/// Divides each column by what it has in the first row, then each row by what it has in the first
/// column.
fn normalize(rows: &mut [u8], k: usize) {
    let first = rows[..k].to_vec();
    for row in rows.chunks_exact_mut(k) {
        row.iter_mut()
            .zip(&first)
            .for_each(|(element, &divisor)| *element = gf256::div(*element, divisor));
        let leading = row[0];
        row.iter_mut()
            .for_each(|element| *element = gf256::div(*element, leading));
    }
}

/// The element with this number.
fn element(number: usize) -> u8 {
    u8::try_from(number).expect("n is 256 at most")
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Matrix {
    type Err = UnknownMatrix;

    fn from_str(text: &str) -> Result<Self, UnknownMatrix> {
        Self::ALL
            .into_iter()
            .find(|matrix| matrix.name() == text)
            .ok_or_else(|| UnknownMatrix(text.to_owned()))
    }
}

/// Error: the text names no matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown matrix `{0}`: expected cauchy, vand-bb, vand-jerasure or isal-rs")]
pub struct UnknownMatrix(String);

/// An impossible code, or a call that does not fit the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Numbers outside the limits.
    #[error("k = {k}, n = {n}: k must be at least 1 and less than n, and n at most 256")]
    Shape {
        /// Data chunks.
        k: usize,
        /// All chunks.
        n: usize,
    },
    /// The matrix does not rebuild from every k chunks.
    #[error(
        "isal-rs does not rebuild from every {k} of {n} chunks: it takes k <= 3, n - k <= 3, k = 4 \
         with n <= 25, k = 5 with n <= 10, or n - k = 4 with k <= 21; cauchy takes any"
    )]
    NotMds {
        /// Data chunks.
        k: usize,
        /// All chunks.
        n: usize,
    },
    /// A wrong number of chunks.
    #[error("got {given} chunks, expected {expected}")]
    Count {
        /// The given number.
        given: usize,
        /// The required number.
        expected: usize,
    },
    /// Chunks of different lengths.
    #[error("a chunk has {length} bytes, expected {expected}")]
    Length {
        /// Bytes of the chunk.
        length: usize,
        /// Bytes of the first chunk.
        expected: usize,
    },
    /// A chunk index outside the code.
    #[error("chunk {index} is out of range: there are {n}")]
    Index {
        /// The index.
        index: usize,
        /// Chunks of the code.
        n: usize,
    },
    /// A chunk named twice.
    #[error("chunk {0} is given twice")]
    Repeated(usize),
    /// Fewer than k chunks.
    #[error("only {present} of the {k} chunks needed are present")]
    TooFew {
        /// The number of available chunks.
        present: usize,
        /// The number of required chunks.
        k: usize,
    },
}

/// An (n, k) code: k data chunks, n - k parity chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Code {
    matrix: Matrix,
    k: usize,
    n: usize,
    parity: Vec<u8>,
}

impl Code {
    /// Maximum number of chunks of a code, because the field has 256 elements.
    pub const N_MAX: usize = 256;

    /// The code of this matrix with k data chunks and n chunks in all, 1 <= k < n <=
    /// [`N_MAX`](Self::N_MAX).
    pub fn new(matrix: Matrix, k: usize, n: usize) -> Result<Self, Error> {
        if k < 1 || k >= n || n > Self::N_MAX {
            return Err(Error::Shape { k, n });
        }
        if !matrix.is_mds(k, n) {
            return Err(Error::NotMds { k, n });
        }
        Ok(Self {
            matrix,
            k,
            n,
            parity: matrix.parity(k, n),
        })
    }

    /// The matrix.
    pub fn matrix(&self) -> Matrix {
        self.matrix
    }

    /// The number of data chunks, and of chunks that rebuild all.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The number of all chunks.
    pub fn n(&self) -> usize {
        self.n
    }

    /// The n - k rows of k coefficients that make the parity chunks from the data chunks.
    pub fn parity_rows(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.parity.chunks_exact(self.k)
    }

    /// Makes the n - k parity chunks of these k data chunks, with at most `threads` threads. All
    /// chunks have the same length.
    pub fn encode(
        &self,
        kernels: Kernels,
        data: &[&[u8]],
        parity: &mut [&mut [u8]],
        threads: NonZeroUsize,
    ) -> Result<(), Error> {
        check_count(data.len(), self.k)?;
        check_count(parity.len(), self.n - self.k)?;
        let rows: Vec<&[u8]> = self.parity_rows().collect();
        multiply(kernels, &rows, data, parity, threads)
    }

    /// Plans the rebuilding of the chunks `wanted` from those of `present`, of which k are used:
    /// data chunks first, then parity chunks in the given order.
    pub fn repair(
        &self,
        kernels: Kernels,
        present: &[usize],
        wanted: &[usize],
    ) -> Result<Repair, Error> {
        let (mut is_present, n, k) = ([false; Self::N_MAX], self.n, self.k);
        for &index in present {
            if index >= n {
                return Err(Error::Index { index, n });
            }
            if std::mem::replace(&mut is_present[index], true) {
                return Err(Error::Repeated(index));
            }
        }
        if let Some(&index) = wanted.iter().find(|index| **index >= n) {
            return Err(Error::Index { index, n });
        }
        if present.len() < k {
            return Err(Error::TooFew {
                present: present.len(),
                k,
            });
        }
        let mut sources: Vec<usize> = (0..k).filter(|&index| is_present[index]).collect();
        let lost: Vec<usize> = (0..k).filter(|&index| !is_present[index]).collect();
        let kept = sources.len();
        sources.extend(present.iter().filter(|index| **index >= k).take(lost.len()));
        let restored = self.restore(kernels, &sources, kept, &lost);
        let mut rows = Vec::with_capacity(wanted.len() * k);
        for &index in wanted {
            let row = if index < k {
                &unit(index, k)
            } else {
                self.parity_row(index)
            };
            rows.extend(through(kernels, row, &sources[..kept], &lost, &restored));
        }
        Ok(Repair { k, sources, rows })
    }

    fn parity_row(&self, index: usize) -> &[u8] {
        &self.parity[(index - self.k) * self.k..][..self.k]
    }

    /// Rows over the sources that make the lost data chunks. The first `kept` sources are data
    /// chunks, the others parity chunks, as many as are lost.
    fn restore(&self, kernels: Kernels, sources: &[usize], kept: usize, lost: &[usize]) -> Vec<u8> {
        let (k, parity) = (self.k, &sources[kept..]);
        let columns = |row: usize| lost.iter().map(move |&column| self.parity_row(row)[column]);
        let square: Vec<u8> = parity.iter().flat_map(|&row| columns(row)).collect();
        if lost.is_empty() {
            return square;
        }
        let inverse = matrix::invert(kernels, lost.len(), &square, NonZeroUsize::MIN);
        let inverse = inverse.expect("every square part of an MDS matrix can be inverted");
        let mut rows = Vec::with_capacity(lost.len() * k);
        for factors in inverse.chunks_exact(lost.len()) {
            let mut sum = vec![0; k];
            parity.iter().zip(factors).for_each(|(&row, &factor)| {
                kernels.mul_add(&mut sum, self.parity_row(row), factor)
            });
            rows.extend(sources[..kept].iter().map(|&column| sum[column]));
            rows.extend(factors);
        }
        rows
    }
}

/// A row over the data chunks as one over the sources, `kept` and those that `restored` makes the
/// lost chunks of.
fn through(
    kernels: Kernels,
    row: &[u8],
    kept: &[usize],
    lost: &[usize],
    restored: &[u8],
) -> Vec<u8> {
    let mut sum: Vec<u8> = kept.iter().map(|&column| row[column]).collect();
    sum.resize(row.len(), 0);
    for (&column, restored) in lost
        .iter()
        .zip(restored.chunks_exact(row.len()))
        .filter(|(column, _)| row[**column] != 0)
    {
        kernels.mul_add(&mut sum, restored, row[column]);
    }
    sum
}

/// The row that makes data chunk `index` of data chunks.
fn unit(index: usize, k: usize) -> Vec<u8> {
    (0..k).map(|column| u8::from(column == index)).collect()
}

/// The chunks that are read to rebuild others, and their rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    k: usize,
    sources: Vec<usize>,
    rows: Vec<u8>,
}

impl Repair {
    /// Indices of the k chunks that are read, in the order of [`run`](Self::run)'s sources.
    pub fn sources(&self) -> &[usize] {
        &self.sources
    }

    /// A row of k coefficients over the sources for each wanted chunk.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.rows.chunks_exact(self.k)
    }

    /// Makes the wanted chunks from the sources, with at most `threads` threads. All chunks have
    /// the same length.
    pub fn run(
        &self,
        kernels: Kernels,
        sources: &[&[u8]],
        wanted: &mut [&mut [u8]],
        threads: NonZeroUsize,
    ) -> Result<(), Error> {
        check_count(sources.len(), self.k)?;
        check_count(wanted.len(), self.rows.len() / self.k)?;
        multiply(
            kernels,
            &self.rows().collect::<Vec<_>>(),
            sources,
            wanted,
            threads,
        )
    }
}

fn check_count(given: usize, expected: usize) -> Result<(), Error> {
    if given == expected {
        Ok(())
    } else {
        Err(Error::Count { given, expected })
    }
}

/// Rows times sources into outs, by several threads if that pays.
fn multiply(
    kernels: Kernels,
    rows: &[&[u8]],
    sources: &[&[u8]],
    outs: &mut [&mut [u8]],
    threads: NonZeroUsize,
) -> Result<(), Error> {
    let expected = sources.first().map_or(0, |source| source.len());
    let mut lengths = sources
        .iter()
        .map(|source| source.len())
        .chain(outs.iter().map(|out| out.len()));
    if let Some(length) = lengths.find(|&length| length != expected) {
        return Err(Error::Length { length, expected });
    }
    kernels.combine_threaded(rows, sources, outs, threads);
    Ok(())
}
