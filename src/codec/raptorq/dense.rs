//! Decoding with dense matrices: the two schemes of Vicente's thesis (2015, chapter 2).

use std::num::NonZeroUsize;

use super::encoder::EncodingPlan;
use super::parameters::Parameters;
use super::{DENSE_K_MAX, Error};
use crate::codec::elimination::{Elimination, Tail};
use crate::gf::{Kernels, Panel, matrix};

/// Symbols that arrived, one behind the other, and their ids.
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

/// The first scheme: inverts the constraint matrix with the rows of what arrived, L × L, and makes the missing source symbols of it.
pub(super) fn invert(
    parameters: &Parameters,
    received: Received<'_>,
    missing: &[u32],
    outs: &mut [&mut [u8]],
    kernels: Kernels,
) -> Result<(), Error> {
    let l = parameters.l as usize;
    let isis: Vec<u32> = (parameters.k..parameters.k_prime).chain(received.esis.iter().map(|&esi| parameters.isi(esi))).collect();
    let padding = isis.len() - received.esis.len();
    let precode = precode(parameters);
    let mut chosen: Vec<usize> = (0..parameters.k_prime as usize).collect();
    let inverse = match invert_rows(parameters, &precode, chosen.iter().map(|&place| isis[place]), kernels) {
        Some(inverse) => inverse,
        None => {
            chosen = independent(parameters, &precode, &isis, kernels)?;
            invert_rows(parameters, &precode, chosen.iter().map(|&place| isis[place]), kernels)
                .expect("these rows are independent")
        }
    };
    let mut panel = Panel::new(l, received.symbol_bytes);
    for (row, &place) in (precode.len() / l..).zip(&chosen) {
        if let Some(place) = place.checked_sub(padding) {
            panel.put(row, received.symbol(place));
        }
    }
    let rows: Vec<Vec<u8>> = missing.iter().map(|&source| sum(parameters, source, &inverse, l, kernels)).collect();
    kernels.combine(&rows.iter().map(Vec::as_slice).collect::<Vec<_>>(), &panel, outs);
    Ok(())
}

/// The intermediate symbols as combinations of the K' source symbols: the part of the inverse of the constraint matrix that all blocks
/// of a K' have in common. L rows of K' bytes, 7 KB at K = 60 and 17 MB at the largest; about a plan's work on as many bytes to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inverse {
    k_prime: u32,
    rows: Vec<u8>,
}

impl Inverse {
    /// For blocks of `k` source symbols, up to [`DENSE_K_MAX`], and all others of the same K'.
    pub fn new(k: u32, kernels: Kernels) -> Result<Self, Error> {
        if k > DENSE_K_MAX {
            return Err(Error::Dense { k });
        }
        // Of symbols that are the rows of the identity, the intermediate symbols are the rows of the inverse.
        let plan = EncodingPlan::new(k)?;
        let parameters = Parameters::new(k)?;
        let width = parameters.k_prime as usize;
        let mut identity = vec![0; width * width];
        identity.iter_mut().step_by(width + 1).for_each(|element| *element = 1);
        let mut rows = vec![0; width * parameters.l as usize];
        plan.plan().apply(kernels, &identity, &mut rows.chunks_exact_mut(width).collect::<Vec<_>>());
        Ok(Self { k_prime: parameters.k_prime, rows })
    }

    /// K', the source symbols with padding.
    pub fn k_prime(&self) -> u32 {
        self.k_prime
    }

    /// Rows of K' coefficients, one for each intermediate symbol.
    pub(crate) fn rows(&self) -> &[u8] {
        &self.rows
    }

    /// The second scheme: a repair symbol is a combination of source symbols, so what those that are here leave of it is one of those
    /// that are missing.
    pub(super) fn reduce(
        &self,
        parameters: &Parameters,
        received: Received<'_>,
        missing: &[u32],
        outs: &mut [&mut [u8]],
        kernels: Kernels,
    ) -> Result<(), Error> {
        let (width, count) = (self.k_prime as usize, missing.len());
        let mut elimination = Elimination::new(kernels, count, Tail::None);
        let (mut places, mut rows, mut reduced) = (Vec::new(), Vec::new(), Vec::with_capacity(count * count));
        for (place, &esi) in received.esis.iter().enumerate().filter(|(_, esi)| **esi >= parameters.k) {
            let row = sum(parameters, parameters.isi(esi), &self.rows, width, kernels);
            let of_missing: Vec<u8> = missing.iter().map(|&source| row[source as usize]).collect();
            if elimination.absorb(|coefficients| coefficients.copy_from_slice(&of_missing), |_| ()) {
                reduced.extend(of_missing);
                places.push(place);
                rows.push(row);
            }
            if rows.len() == count {
                break;
            }
        }
        if rows.len() < count {
            return Err(Error::Incomplete { missing: count - rows.len() });
        }
        let mut known = Panel::new(width, received.symbol_bytes);
        for (place, &esi) in received.esis.iter().enumerate().filter(|(_, esi)| **esi < parameters.k) {
            known.put(esi as usize, received.symbol(place));
        }
        let mut sides = vec![0; count * received.symbol_bytes];
        let mut targets: Vec<&mut [u8]> = sides.chunks_exact_mut(received.symbol_bytes).collect();
        kernels.combine(&rows.iter().map(Vec::as_slice).collect::<Vec<_>>(), &known, &mut targets);
        targets.iter_mut().zip(&places).for_each(|(side, &place)| kernels.add(side, received.symbol(place)));
        let inverse = matrix::invert(kernels, count, &reduced, NonZeroUsize::MIN).expect("these rows are independent");
        let sides = Panel::of(&sides, count, received.symbol_bytes);
        kernels.combine(&inverse.chunks_exact(count).collect::<Vec<_>>(), &sides, outs);
        Ok(())
    }
}

/// The same by inversion of the whole matrix.
#[cfg(test)]
pub(super) fn source_inverse(parameters: &Parameters, isis: &[u32], kernels: Kernels) -> Option<Vec<u8>> {
    let (l, zeros) = (parameters.l as usize, (parameters.s + parameters.h) as usize);
    let inverse = invert_rows(parameters, &precode(parameters), isis.iter().copied(), kernels)?;
    Some(inverse.chunks_exact(l).flat_map(|row| row[zeros..].to_vec()).collect())
}

/// The rows of an internal symbol's columns, added up.
fn sum(parameters: &Parameters, isi: u32, rows: &[u8], width: usize, kernels: Kernels) -> Vec<u8> {
    let (mut columns, mut sum) = (Vec::with_capacity(32), vec![0; width]);
    parameters.columns(isi, &mut columns);
    columns.iter().for_each(|&column| kernels.add(&mut sum, &rows[column as usize * width..][..width]));
    sum
}

/// The rows that do not depend on what arrived, S of LDPC and H of HDPC, of L elements each.
pub(crate) fn precode(parameters: &Parameters) -> Vec<u8> {
    let l = parameters.l as usize;
    let mut matrix = vec![0; (parameters.s + parameters.h) as usize * l];
    let (ldpc, hdpc) = matrix.split_at_mut(parameters.s as usize * l);
    let mut columns = Vec::new();
    for (place, row) in ldpc.chunks_exact_mut(l).zip(0..) {
        columns.clear();
        parameters.ldpc_columns(row, &mut columns);
        columns.iter().for_each(|&column| place[column as usize] = 1);
    }
    for (column, elements) in parameters.hdpc_columns().into_iter().enumerate() {
        hdpc.chunks_exact_mut(l).zip(elements.to_le_bytes()).for_each(|(row, element)| row[column] = element);
    }
    matrix
}

/// The inverse of the precode's rows with those of as many internal symbols as make it square.
fn invert_rows(parameters: &Parameters, precode: &[u8], isis: impl Iterator<Item = u32>, kernels: Kernels) -> Option<Vec<u8>> {
    let l = parameters.l as usize;
    let mut matrix = precode.to_vec();
    matrix.resize(l * l, 0);
    let mut columns = Vec::new();
    for (row, isi) in matrix[precode.len()..].chunks_exact_mut(l).zip(isis) {
        columns.clear();
        parameters.columns(isi, &mut columns);
        columns.iter().for_each(|&column| row[column as usize] = 1);
    }
    matrix::invert(kernels, l, &matrix, NonZeroUsize::MIN)
}

/// K' of these internal symbols whose rows are independent with the precode's, if there are as many.
fn independent(parameters: &Parameters, precode: &[u8], isis: &[u32], kernels: Kernels) -> Result<Vec<usize>, Error> {
    let l = parameters.l as usize;
    let mut elimination = Elimination::new(kernels, l, Tail::None);
    for row in precode.chunks_exact(l) {
        elimination.absorb(|coefficients| coefficients.copy_from_slice(row), |_| ());
    }
    let mut columns = Vec::new();
    let is_new = |(_, isi): &(usize, &u32)| {
        columns.clear();
        parameters.columns(**isi, &mut columns);
        elimination.absorb(|coefficients| columns.iter().for_each(|&column| coefficients[column as usize] = 1), |_| ())
    };
    let chosen: Vec<usize> = isis.iter().enumerate().filter(is_new).map(|(place, _)| place).collect();
    let missing = parameters.k_prime as usize - chosen.len();
    if missing > 0 { Err(Error::Incomplete { missing }) } else { Ok(chosen) }
}
