//! Inverting a matrix over GF(q) by the method of Chu, Zhao and Wang (NETWORKING 2009, Algorithm
//! 1): kernels swap, scale and subtract rows; the host finds pivots and inverts them.

use std::time::{Duration, Instant};

use ncs_gf::gfq::{Element, LIMBS_32};
use ncserverd::device::abi::define;
use ncserverd::device::cuda::card::Card;
use ncserverd::device::cuda::driver::{Buffer, Fault, Stream};
use ncserverd::device::cuda::gfq::layout;
use ncserverd::device::cuda::image::Image;
use ncserverd::device::cuda::launch::{self, Grid};
use ncserverd::device::{Error, abi};

use super::basics;

/// A matrix that can be inverted repeatedly, and memory for it beside the identity.
pub(crate) struct GfqEliminationJob<'a> {
    card: &'a Card,
    stream: Stream,
    n: u32,
    matrix: Vec<Element>,
    extended: Buffer,
    column: Buffer,
    field: abi::GfqField,
    inverse: Option<Vec<Element>>,
}

impl<'a> GfqEliminationJob<'a> {
    pub(super) fn new(card: &'a Card, n: usize, matrix: &[Element]) -> Result<Self, Fault> {
        assert_eq!(matrix.len(), n * n, "a square matrix");
        let context = &card.context;
        Ok(Self {
            card,
            stream: Stream::new(context)?,
            n: u32::try_from(n).expect("a small order"),
            matrix: matrix.to_vec(),
            extended: Buffer::new(context, 2 * n * n * LIMBS_BYTES)?,
            column: Buffer::new(context, n * LIMBS_BYTES)?,
            field: layout::field(),
            inverse: None,
        })
    }

    fn start(
        &self,
        entry: &'static str,
        blocks: (u32, u32),
        step: &abi::GfqStep,
    ) -> Result<(), Fault> {
        let grid = Grid {
            blocks: (blocks.0, blocks.1, 1),
            threads: THREADS,
            shared_bytes: 0,
        };
        // SAFETY: the matrix and the column are as large as the step says, and the stream is waited
        // for before they go.
        unsafe { launch::words(self.card, (Image::Gfq, entry), grid, step, &self.stream) }
    }

    /// Downloads a column: one element of each row.
    fn column(&self, step: &abi::GfqStep) -> Result<Vec<Element>, Fault> {
        self.start("nc_gfq_step_column", (self.n.div_ceil(THREADS), 1), step)?;
        self.stream.synchronize()?;
        let mut bytes = vec![0; self.column.len()];
        basics::read(&self.column, 0, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(element_of).collect())
    }

    fn invert(&self) -> Result<Option<Vec<Element>>, Fault> {
        let (n, order) = (self.n, self.n as usize);
        self.extended.write(&extended(order, &self.matrix))?;
        let mut step = abi::GfqStep {
            extended: self.extended.address(),
            column: self.column.address(),
            n,
            row: 0,
            other: 0,
            lead: 0,
            factor: [0; LIMBS_32],
            reserved: 0,
            field: self.field,
        };
        let across = (2 * n).div_ceil(THREADS);
        for row in 0..n {
            (step.row, step.lead) = (row, row);
            let mut column = self.column(&step)?;
            let below = column[row as usize..]
                .iter()
                .position(|element| *element != Element::ZERO);
            let Some(below) = below else { return Ok(None) };
            if below > 0 {
                step.other = row + u32::try_from(below).expect("a row");
                self.start("nc_gfq_step_swap", (across, 1), &step)?;
                column = self.column(&step)?;
            }
            let inverse = column[row as usize].inverse().expect("it is not zero");
            step.factor = inverse
                .mul(&Element::from_limbs_32(&self.field.one).expect("below q"))
                .limbs_32();
            self.start("nc_gfq_step_scale", (across, 1), &step)?;
            self.start("nc_gfq_step_subtract", (across, n), &step)?;
        }
        self.stream.synchronize()?;
        let mut bytes = vec![0; self.extended.len()];
        basics::read(&self.extended, 0, &mut bytes)?;
        Ok(Some(right_half(order, &bytes)))
    }

    /// The host's time from the matrix to its inverse in host memory.
    pub(crate) fn run(&mut self) -> Result<Duration, Error> {
        self.card.context.bind()?;
        let start = Instant::now();
        let inverse = self.invert();
        let waited = self.stream.synchronize();
        self.inverse = inverse?;
        waited?;
        Ok(start.elapsed())
    }

    /// The result of the last run. `None` if the matrix has no inverse.
    pub(crate) fn inverse(&self) -> Option<&[Element]> {
        self.inverse.as_deref()
    }
}

/// The element with these limbs.
fn element_of(bytes: &[u8; LIMBS_BYTES]) -> Element {
    let mut limbs = bytes
        .as_chunks()
        .0
        .iter()
        .map(|limb| u32::from_le_bytes(*limb));
    let limbs = std::array::from_fn(|_| limbs.next().expect("nine limbs"));
    Element::from_limbs_32(&limbs).expect("kernels reduce")
}

/// Offset of limb `limb` of an element in bytes.
fn place(n: usize, row: usize, limb: usize, column: usize) -> usize {
    4 * ((row * LIMBS_32 + limb) * 2 * n + column)
}

/// The matrix beside the identity, in the layout of `nc_gfq_step`.
fn extended(n: usize, matrix: &[Element]) -> Vec<u8> {
    let mut bytes = vec![0; 2 * n * n * LIMBS_BYTES];
    for (row, elements) in matrix.chunks_exact(n).enumerate() {
        for (column, element) in elements.iter().enumerate() {
            for (limb, value) in element.limbs_32().into_iter().enumerate() {
                bytes[place(n, row, limb, column)..][..4].copy_from_slice(&value.to_le_bytes());
            }
        }
        bytes[place(n, row, 0, n + row)] = 1;
    }
    bytes
}

/// The right half, which began as the identity.
fn right_half(n: usize, bytes: &[u8]) -> Vec<Element> {
    let element = |row: usize, column: usize| {
        let mut limbs = [0; LIMBS_BYTES];
        for (limb, value) in limbs.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            value.copy_from_slice(&bytes[place(n, row, limb, n + column)..][..4]);
        }
        element_of(&limbs)
    };
    (0..n)
        .flat_map(|row| (0..n).map(move |column| element(row, column)))
        .collect()
}

const THREADS: u32 = define("NC_GFQ_STEP_THREADS");
const LIMBS_BYTES: usize = 4 * LIMBS_32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_stands_beside_the_matrix() {
        let matrix: Vec<Element> = (1..=9_u64).map(Element::from).collect();
        let bytes = extended(3, &matrix);
        assert_eq!(bytes.len(), 3 * 6 * 36);
        assert_eq!(bytes[place(3, 1, 0, 2)], 6);
        let identity: Vec<Element> = (0..9)
            .map(|index| u64::from(index % 4 == 0).into())
            .collect();
        assert_eq!(right_half(3, &bytes), identity);
    }
}
