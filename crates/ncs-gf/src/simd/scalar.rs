//! The row operations in plain Rust: the reference for every other file in this folder.

use std::ops::Range;

use super::isa::Isa;
use super::sources::{Apart, Line, Strip};
use super::table::Table;
use crate::gf256;
use crate::sums::{Fold, Sums};

pub(super) static TABLE: Table = Table {
    isa: Isa::Scalar,
    add,
    scale,
    mul_add,
    combine,
    combine_apart,
    spread,
    sum,
    fold,
};

fn add(dst: &mut [u8], src: &[u8]) {
    dst.iter_mut().zip(src).for_each(|(sum, byte)| *sum ^= byte);
}

fn scale(dst: &mut [u8], c: u8) {
    dst.iter_mut().for_each(|byte| *byte = product(c, *byte));
}

fn mul_add(dst: &mut [u8], src: &[u8], c: u8) {
    dst.iter_mut()
        .zip(src)
        .for_each(|(sum, &byte)| *sum ^= product(c, byte));
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

fn combine_apart(
    sources: Apart<'_>,
    rows: &[&[u8]],
    outs: &mut [&mut [u8]],
    bytes: Range<usize>,
    _is_past_cache: bool,
) {
    for (row, out) in rows.iter().zip(outs) {
        let sum = &mut out[bytes.clone()];
        sum.fill(0);
        for (&c, source) in row.iter().zip(sources.sources) {
            mul_add(sum, &source[bytes.clone()], c);
        }
    }
}

fn spread(rows: &mut [Line], stride: usize, first: usize, factors: &[u8], source: &[Line]) {
    for (row, &c) in rows.chunks_exact_mut(stride).zip(factors) {
        mul_add(
            Line::bytes_mut(&mut row[first..first + source.len()]),
            Line::bytes(source),
            c,
        );
    }
}

fn sum(sums: &Sums, pieces: &mut [Line], width: usize) {
    for (target, accumulate, sources) in sums.each() {
        let mut total = vec![Line::ZERO; width];
        for &source in accumulate.then_some(&target).into_iter().chain(sources) {
            add(
                Line::bytes_mut(&mut total),
                Line::bytes(piece(pieces, source, width)),
            );
        }
        piece(pieces, target, width).copy_from_slice(&total);
    }
}

fn fold(fold: &Fold, pieces: &mut [Line], width: usize) {
    let mut running = vec![Line::ZERO; width];
    for step in &fold.steps {
        scale(Line::bytes_mut(&mut running), gf256::GENERATOR);
        if step.source != Fold::NOTHING {
            add(
                Line::bytes_mut(&mut running),
                Line::bytes(piece(pieces, step.source, width)),
            );
        }
        for target in step.targets {
            add(
                Line::bytes_mut(piece(pieces, target, width)),
                Line::bytes(&running),
            );
        }
    }
    scale(Line::bytes_mut(&mut running), gf256::GENERATOR);
    if fold.last != Fold::NOTHING {
        add(
            Line::bytes_mut(&mut running),
            Line::bytes(piece(pieces, fold.last, width)),
        );
    }
    for (&target, &c) in fold.powers.iter().zip(&gf256::EXP) {
        mul_add(
            Line::bytes_mut(piece(pieces, target, width)),
            Line::bytes(&running),
            c,
        );
    }
}

fn piece(pieces: &mut [Line], index: u32, width: usize) -> &mut [Line] {
    &mut pieces[index as usize * width..][..width]
}

/// [`gf256::mul`] through the tables of nibble products: a multiplication bit by bit would make the
/// tests slow.
fn product(c: u8, byte: u8) -> u8 {
    let products = &gf256::NIBBLE_PRODUCTS[usize::from(c)];
    products[usize::from(byte & 15)] ^ products[16 + usize::from(byte >> 4)]
}
