//! Decoding with dense matrices: the two schemes of Vicente's thesis (2015, chapter 2). The caller
//! provides the processor that inverts and multiplies ([`Algebra`]).

use super::encoder::EncodingPlan;
use super::error::Error;
use super::parameters::Parameters;
use crate::elimination::{Elimination, Tail};
use crate::raptor::Refusal;
use ncs_gf::Kernels;
use ncs_gf::dense::{Algebra, System};

/// Maximum number of source symbols for the methods with dense matrices: their memory grows with
/// the square of K, and the time of the first with its cube.
pub const DENSE_K_MAX: u32 = 4096;

/// Received symbols, one after the other, and their ids.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received<'a> {
    pub(super) symbols: &'a [u8],
    pub(super) esis: &'a [u32],
    pub(super) symbol_bytes: usize,
}

impl Received<'_> {
    fn symbol(&self, place: usize) -> &[u8] {
        &self.symbols[place * self.symbol_bytes..][..self.symbol_bytes]
    }
}

/// The first scheme: inverts the constraint matrix with the rows of the received symbols, L × L,
/// and makes the missing source symbols from it.
pub(super) fn invert(
    parameters: &Parameters,
    received: Received<'_>,
    missing: &[u32],
    outs: &mut [&mut [u8]],
    kernels: Kernels,
    algebra: &dyn Algebra,
) -> Result<(), Error> {
    let isis: Vec<u32> = (parameters.k..parameters.k_prime)
        .chain(received.esis.iter().map(|&esi| parameters.isi(esi)))
        .collect();
    let padding = isis.len() - received.esis.len();
    let precode = precode(parameters);
    let (order, zeros) = (parameters.l as usize, precode.len() / parameters.l as usize);
    let sums: Vec<Vec<u32>> = missing
        .iter()
        .map(|&source| columns(parameters, source))
        .collect();
    let mut solve = |chosen: &[usize]| {
        let matrix = with_rows(
            parameters,
            &precode,
            chosen.iter().map(|&place| isis[place]),
        );
        let of = |place: &usize| {
            place
                .checked_sub(padding)
                .map(|place| received.symbol(place))
        };
        let symbols: Vec<Option<&[u8]>> = (0..zeros)
            .map(|_| None)
            .chain(chosen.iter().map(of))
            .collect();
        algebra.solve(
            &System {
                order,
                matrix: &matrix,
                sums: &sums,
                symbols: &symbols,
            },
            outs,
        )
    };
    let first: Vec<usize> = (0..parameters.k_prime as usize).collect();
    if solve(&first)? {
        return Ok(());
    }
    let is_regular = solve(&independent(parameters, &precode, &isis, kernels)?)?;
    if is_regular {
        Ok(())
    } else {
        Err(Error::Algebra)
    }
}

/// The intermediate symbols as combinations of the K' source symbols: the part of the inverse of
/// the constraint matrix that all blocks of a K' share. L rows of K' bytes, 7 KB at K = 60 and 17
/// MB at the largest. Making it takes about as long as a plan on as many bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inverse {
    k_prime: u32,
    rows: Vec<u8>,
}

impl Inverse {
    /// The inverse for blocks of `k` source symbols, up to [`DENSE_K_MAX`], and all others of the
    /// same K'.
    pub fn new(k: u32, kernels: Kernels) -> Result<Self, Error> {
        if k > DENSE_K_MAX {
            return Err(Error::Dense { k });
        }
        // Of symbols that are the rows of the identity, the intermediate symbols are the rows of
        // the inverse.
        let plan = EncodingPlan::new(k)?;
        let parameters = Parameters::new(k)?;
        let width = parameters.k_prime as usize;
        let mut identity = vec![0; width * width];
        identity
            .iter_mut()
            .step_by(width + 1)
            .for_each(|element| *element = 1);
        let mut rows = vec![0; width * parameters.l as usize];
        plan.plan().apply(
            kernels,
            &identity,
            &mut rows.chunks_exact_mut(width).collect::<Vec<_>>(),
        );
        Ok(Self {
            k_prime: parameters.k_prime,
            rows,
        })
    }

    /// K', the source symbols with padding.
    pub fn k_prime(&self) -> u32 {
        self.k_prime
    }

    /// Rows of K' coefficients, one for each intermediate symbol.
    pub fn rows(&self) -> &[u8] {
        &self.rows
    }

    /// The second scheme: a repair symbol is a combination of source symbols. Subtracting the
    /// available ones leaves a combination of the missing ones.
    pub(super) fn reduce(
        &self,
        parameters: &Parameters,
        received: Received<'_>,
        missing: &[u32],
        outs: &mut [&mut [u8]],
        kernels: Kernels,
        algebra: &dyn Algebra,
    ) -> Result<(), Error> {
        let (width, count, symbol_bytes) =
            (self.k_prime as usize, missing.len(), received.symbol_bytes);
        let repair: Vec<usize> = (0..received.esis.len())
            .filter(|&place| received.esis[place] >= parameters.k)
            .collect();
        if repair.len() < count {
            return Err(Refusal::Incomplete {
                missing: count - repair.len(),
            }
            .into());
        }
        let row = |place: &usize| {
            sum(
                parameters,
                parameters.isi(received.esis[*place]),
                &self.rows,
                width,
                kernels,
            )
        };
        let mut known = vec![None; width];
        for (place, &esi) in received
            .esis
            .iter()
            .enumerate()
            .filter(|(_, esi)| **esi < parameters.k)
        {
            known[esi as usize] = Some(received.symbol(place));
        }
        let sums: Vec<Vec<u32>> = (0..).take(count).map(|row| vec![row]).collect();
        let mut solve = |chosen: &[usize]| {
            let rows: Vec<Vec<u8>> = chosen.iter().map(row).collect();
            let mut sides = vec![0; count * symbol_bytes];
            let mut targets: Vec<&mut [u8]> = sides.chunks_exact_mut(symbol_bytes).collect();
            algebra.multiply(
                &rows.iter().map(Vec::as_slice).collect::<Vec<_>>(),
                &known,
                &mut targets,
            )?;
            targets
                .iter_mut()
                .zip(chosen)
                .for_each(|(side, &place)| kernels.add(side, received.symbol(place)));
            let matrix: Vec<u8> = rows
                .iter()
                .flat_map(|row| missing.iter().map(|&source| row[source as usize]))
                .collect();
            let symbols: Vec<Option<&[u8]>> = sides.chunks_exact(symbol_bytes).map(Some).collect();
            algebra.solve(
                &System {
                    order: count,
                    matrix: &matrix,
                    sums: &sums,
                    symbols: &symbols,
                },
                outs,
            )
        };
        if solve(&repair[..count])? {
            return Ok(());
        }
        let rows = repair.iter().map(|place| {
            let row = row(place);
            missing.iter().map(|&source| row[source as usize]).collect()
        });
        let chosen: Vec<usize> = independent_of(kernels, count, rows)?
            .into_iter()
            .map(|index| repair[index])
            .collect();
        if solve(&chosen)? {
            Ok(())
        } else {
            Err(Error::Algebra)
        }
    }
}

/// The first of these rows that are independent of those before them, as many as there are columns.
fn independent_of(
    kernels: Kernels,
    count: usize,
    rows: impl Iterator<Item = Vec<u8>>,
) -> Result<Vec<usize>, Error> {
    let mut elimination = Elimination::new(kernels, count, Tail::None);
    let mut is_new = |row: &Vec<u8>| {
        elimination.absorb(|coefficients| coefficients.copy_from_slice(row), |_| ())
    };
    let found = rows
        .enumerate()
        .filter(|(_, row)| is_new(row))
        .map(|(index, _)| index);
    let found: Vec<usize> = found.take(count).collect();
    let missing = count - found.len();
    if missing > 0 {
        Err(Refusal::Incomplete { missing }.into())
    } else {
        Ok(found)
    }
}

/// The same by inversion of the whole matrix.
#[cfg(test)]
pub(super) fn source_inverse(
    parameters: &Parameters,
    isis: &[u32],
    kernels: Kernels,
) -> Option<Vec<u8>> {
    let (l, zeros) = (
        parameters.l as usize,
        (parameters.s + parameters.h) as usize,
    );
    let matrix = with_rows(parameters, &precode(parameters), isis.iter().copied());
    let inverse = ncs_gf::matrix::invert(kernels, l, &matrix, std::num::NonZeroUsize::MIN)?;
    Some(
        inverse
            .chunks_exact(l)
            .flat_map(|row| row[zeros..].to_vec())
            .collect(),
    )
}

/// The rows of an internal symbol's columns, added up.
fn sum(parameters: &Parameters, isi: u32, rows: &[u8], width: usize, kernels: Kernels) -> Vec<u8> {
    let mut sum = vec![0; width];
    columns(parameters, isi)
        .into_iter()
        .for_each(|column| kernels.add(&mut sum, &rows[column as usize * width..][..width]));
    sum
}

/// The intermediate symbols that an internal symbol is the sum of.
fn columns(parameters: &Parameters, isi: u32) -> Vec<u32> {
    let mut columns = Vec::with_capacity(32);
    parameters.columns(isi, &mut columns);
    columns
}

/// The rows that do not depend on the received symbols, S of LDPC and H of HDPC, of L elements
/// each.
pub fn precode(parameters: &Parameters) -> Vec<u8> {
    let l = parameters.l as usize;
    let mut matrix = vec![0; (parameters.s + parameters.h) as usize * l];
    let (ldpc, hdpc) = matrix.split_at_mut(parameters.s as usize * l);
    let mut columns = Vec::new();
    for (place, row) in ldpc.chunks_exact_mut(l).zip(0..) {
        columns.clear();
        parameters.ldpc_columns(row, &mut columns);
        columns
            .iter()
            .for_each(|&column| place[column as usize] = 1);
    }
    for (column, elements) in parameters.hdpc_columns().into_iter().enumerate() {
        hdpc.chunks_exact_mut(l)
            .zip(elements.to_le_bytes())
            .for_each(|(row, element)| row[column] = element);
    }
    matrix
}

/// The precode's rows, and behind them those of as many internal symbols as make it square.
fn with_rows(parameters: &Parameters, precode: &[u8], isis: impl Iterator<Item = u32>) -> Vec<u8> {
    let l = parameters.l as usize;
    let mut matrix = precode.to_vec();
    matrix.resize(l * l, 0);
    let mut columns = Vec::new();
    for (row, isi) in matrix[precode.len()..].chunks_exact_mut(l).zip(isis) {
        columns.clear();
        parameters.columns(isi, &mut columns);
        columns.iter().for_each(|&column| row[column as usize] = 1);
    }
    matrix
}

/// K' of these internal symbols whose rows are independent with the precode's, if there are as
/// many.
fn independent(
    parameters: &Parameters,
    precode: &[u8],
    isis: &[u32],
    kernels: Kernels,
) -> Result<Vec<usize>, Error> {
    let l = parameters.l as usize;
    let mut elimination = Elimination::new(kernels, l, Tail::None);
    for row in precode.chunks_exact(l) {
        elimination.absorb(|coefficients| coefficients.copy_from_slice(row), |_| ());
    }
    let mut columns = Vec::new();
    let is_new = |(_, isi): &(usize, &u32)| {
        columns.clear();
        parameters.columns(**isi, &mut columns);
        elimination.absorb(
            |coefficients| {
                columns
                    .iter()
                    .for_each(|&column| coefficients[column as usize] = 1)
            },
            |_| (),
        )
    };
    let chosen: Vec<usize> = isis
        .iter()
        .enumerate()
        .filter(is_new)
        .map(|(place, _)| place)
        .collect();
    let missing = parameters.k_prime as usize - chosen.len();
    if missing > 0 {
        Err(Refusal::Incomplete { missing }.into())
    } else {
        Ok(chosen)
    }
}
