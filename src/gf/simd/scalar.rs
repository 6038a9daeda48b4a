//! The row operations in plain Rust: what every other file in this folder is tested against.

use super::super::gf256;
use super::{Isa, Line, Strip, Table};

pub(super) static TABLE: Table = Table { isa: Isa::Scalar, add, scale, mul_add, combine, spread };

fn add(dst: &mut [u8], src: &[u8]) {
    dst.iter_mut().zip(src).for_each(|(sum, byte)| *sum ^= byte);
}

fn scale(dst: &mut [u8], c: u8) {
    dst.iter_mut().for_each(|byte| *byte = product(c, *byte));
}

fn mul_add(dst: &mut [u8], src: &[u8], c: u8) {
    dst.iter_mut().zip(src).for_each(|(sum, &byte)| *sum ^= product(c, byte));
}

fn combine(strip: Strip<'_>, rows: &[&[u8]], outs: &mut [&mut [u8]], at: usize, accumulate: bool) {
    for (row, out) in rows.iter().zip(outs) {
        let width = (strip.width * Line::BYTES).min(out.len() - at);
        let sum = &mut out[at..at + width];
        if !accumulate {
            sum.fill(0);
        }
        for (i, &c) in row[..strip.count].iter().enumerate() {
            mul_add(sum, &strip.source(i)[..width], c);
        }
    }
}

fn spread(rows: &mut [Line], stride: usize, first: usize, factors: &[u8], source: &[Line]) {
    for (row, &c) in rows.chunks_exact_mut(stride).zip(factors) {
        mul_add(Line::bytes_mut(&mut row[first..first + source.len()]), Line::bytes(source), c);
    }
}

/// [`gf256::mul`] through the tables of nibble products: a multiplication bit by bit would make the tests slow.
fn product(c: u8, byte: u8) -> u8 {
    let products = &gf256::NIBBLE_PRODUCTS[usize::from(c)];
    products[usize::from(byte & 15)] ^ products[16 + usize::from(byte >> 4)]
}
