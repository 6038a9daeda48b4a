//! Rebuilding generations: inverts their vectors and combines their payloads.

use ncs_codec::gfq::{Rebuilt, Shape};

use super::super::driver::Address;
use super::layout::{PLACE_ALIGN, Places, copy_rows, row_pitch};
use super::step::{Step, inversion, invert_work_bytes, product};
use crate::abi;

/// Bytes that rebuilding a generation of one shape takes.
#[derive(Debug, Clone, Copy)]
pub struct Rebuilding {
    shape: Shape,
    /// Bytes of the vectors, and of their inverse.
    pub matrix: usize,
    /// Bytes of the payloads, and of the rebuilt blocks.
    pub payloads: usize,
    work: usize,
}

/// Addresses for rebuilding several generations.
#[derive(Debug, Clone, Copy)]
pub struct RebuildingPlaces {
    pub matrices: Address,
    pub payloads: Address,
    inverses: Address,
    work: Address,
    pub status: Address,
    pub made: Address,
}

impl Rebuilding {
    pub fn of(shape: Shape) -> Self {
        let (n, words) = (shape.n(), shape.words());
        Self {
            shape,
            matrix: n * row_pitch(n),
            payloads: n * row_pitch(words),
            work: invert_work_bytes(n),
        }
    }

    /// Bytes of all places of a generation, approximately.
    pub(super) fn bytes(&self) -> usize {
        2 * self.matrix + 2 * self.payloads + self.work + 6 * PLACE_ALIGN
    }

    pub(super) fn places(&self, places: &mut Places, count: usize) -> RebuildingPlaces {
        RebuildingPlaces {
            matrices: places.take(count * self.matrix),
            payloads: places.take(count * self.payloads),
            inverses: places.take(count * self.matrix),
            work: places.take(count * self.work),
            status: places.take(count * 4),
            made: places.take(count * self.payloads),
        }
    }

    /// The places in memory that begins at `start`, and the bytes that they take.
    pub fn places_at(&self, start: Address, count: usize) -> (RebuildingPlaces, usize) {
        let mut places = Places::at(start);
        (self.places(&mut places, count), places.bytes)
    }

    /// The steps that invert the vectors and combine the payloads.
    pub fn steps(
        &self,
        places: &RebuildingPlaces,
        field: abi::GfqField,
        count: u32,
        sms: u32,
    ) -> Vec<Step> {
        let (n, words) = (self.shape.n(), self.shape.words());
        let inversion = inversion(
            n,
            [places.matrices, places.inverses, places.work, places.status],
            field,
        );
        let product = abi::GfqProduct {
            source_step: self.payloads as u64,
            coefficients_step: self.matrix as u64,
            out_step: self.payloads as u64,
            ..product(
                (n, n, words),
                [places.payloads, places.inverses, places.made],
                field,
            )
        };
        let mut steps = Step::invert(inversion, count, sms);
        steps.push(Step::combine(false, product, count));
        steps
    }
}

/// Copies the words of rebuilt blocks, if all of them are words of data.
pub(super) fn unpack(shape: Shape, made: &[u8], out: &mut [u8]) -> Rebuilt {
    let (pitch, bytes) = (row_pitch(shape.words()), shape.block_bytes());
    let is_wide = |row: &[u8]| {
        row[bytes..shape.payload_bytes()]
            .iter()
            .any(|&bits| bits != 0)
    };
    if made.chunks_exact(pitch).any(is_wide) {
        return Rebuilt::Overflow;
    }
    copy_rows(made, pitch, out, bytes);
    Rebuilt::Whole
}
