//! Row operations for each instruction set, behind one table of functions.
//!
//! [`Kernels`] can be made only on a processor with its instruction set, so a value of it is the
//! permission to call. Every instruction set fills the same `Table`. Its file holds the differences
//! (the vector, the product, the number of rows that fit into the registers), and the macro
//! `kernels!` below holds the common loops.
//!
//! `combine` dominates the cost. It keeps R rows times C vectors of sums in registers while it
//! walks down the n pieces of a column. Each source vector is therefore loaded (and, with byte
//! shuffles, split into nibbles) once for R rows, and no sum goes to memory before it is done. A
//! product by shuffles costs two shuffles for a vector, and processors of the Skylake family have
//! one port for them: at best 32 bytes a cycle with 512 bits. A product by GFNI costs one
//! instruction.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::sums::{Fold, Sums};

/// The loops, for one instruction set.
///
/// The file that uses the macro defines `Vector` (`WIDTH` bytes), `Split` (a source vector ready to
/// be multiplied), `Factor` (a coefficient likewise), `STEP` (sources processed in one step) and,
/// with the same features enabled, the functions `zero`, `load`, `store`, `store_past_cache`,
/// `xor`, `split`, `factor`, `mul_add` (sum + split × factor) and `mul_add_step` (the same for
/// `STEP` sources). `columns` are the numbers of vectors whose sums one pass keeps, the largest
/// first; widths of sources are multiples of the last.
#[cfg(target_arch = "x86_64")]
macro_rules! kernels {
    ($isa:expr, $features:literal, columns: [$most:literal $(, $fewer:literal)*]) => {
        use std::arch::x86_64::_mm_sfence;
        use std::ops::Range;

        use super::super::gf256;
        use super::super::sums::{Fold, Sums};
        use super::{Apart, Isa, Kernels, Line, Sources, Strip, Table};

        pub(super) static TABLE: Table =
            Table { isa: $isa, add, scale, mul_add: mul_add_bytes, combine, combine_apart, spread, sum, fold };

        #[target_feature(enable = $features)]
        fn add(dst: &mut [u8], src: &[u8]) {
            let (dst, dst_rest) = dst.as_chunks_mut::<WIDTH>();
            let (src, src_rest) = src.as_chunks::<WIDTH>();
            for (dst, src) in dst.iter_mut().zip(src) {
                write(dst, xor(read(dst), read(src)));
            }
            dst_rest.iter_mut().zip(src_rest).for_each(|(sum, byte)| *sum ^= byte);
        }

        #[target_feature(enable = $features)]
        fn scale(dst: &mut [u8], c: u8) {
            let factor = factor(c);
            let (dst, rest) = dst.as_chunks_mut::<WIDTH>();
            for dst in dst {
                write(dst, mul_add(zero(), split(read(dst)), factor));
            }
            write_part(rest, mul_add(zero(), split(read_part(rest)), factor));
        }

        #[target_feature(enable = $features)]
        fn mul_add_bytes(dst: &mut [u8], src: &[u8], c: u8) {
            let factor = factor(c);
            let (dst, dst_rest) = dst.as_chunks_mut::<WIDTH>();
            let (src, src_rest) = src.as_chunks::<WIDTH>();
            for (dst, src) in dst.iter_mut().zip(src) {
                write(dst, mul_add(read(dst), split(read(src)), factor));
            }
            write_part(dst_rest, mul_add(read_part(dst_rest), split(read_part(src_rest)), factor));
        }

        #[target_feature(enable = $features)]
        fn combine(strip: Strip<'_>, rows: &[&[u8]], outs: &mut [&mut [u8]], at: usize, accumulate: bool) {
            // SAFETY: a strip has this many bytes of every source, and every row has a coefficient for each, as
            // `Kernels::combine_strip` has checked.
            unsafe { columns::<_, false>(strip, rows, outs, 0..strip.width * Line::BYTES, at, accumulate) }
        }

        #[target_feature(enable = $features)]
        fn combine_apart(sources: Apart<'_>, rows: &[&[u8]], outs: &mut [&mut [u8]], bytes: Range<usize>, is_past_cache: bool) {
            let at = bytes.start;
            if !is_past_cache {
                // SAFETY: `Kernels::combine_apart` has checked that every source has these bytes, whole lines of them, and every
                // row a coefficient for each.
                return unsafe { columns::<_, false>(sources, rows, outs, bytes, at, false) };
            }
            // SAFETY: as above; and it has checked that every out has these bytes, and whole lines of memory for them. Nobody
            // reads them before the fence.
            unsafe { columns::<_, true>(sources, rows, outs, bytes, at, false) };
            _mm_sfence();
        }

        /// Combines some bytes of the sources, a few rows and vectors at a time. Byte `bytes.start`
        /// of the sources goes to byte `at` of the outs.
        ///
        /// # Safety
        /// `bytes` are whole lines that every source has, and every row has a coefficient for each
        /// source. With `PAST_CACHE`, every out has as many from `at` on, where a line of memory
        /// begins.
        #[target_feature(enable = $features)]
        unsafe fn columns<S: Sources, const PAST_CACHE: bool>(
            sources: S,
            rows: &[&[u8]],
            outs: &mut [&mut [u8]],
            bytes: Range<usize>,
            at: usize,
            accumulate: bool,
        ) {
            for (rows, outs) in rows.chunks(Kernels::ROWS).zip(outs.chunks_mut(Kernels::ROWS)) {
                let (mut column, mut at) = (bytes.start, at);
                while column < bytes.end {
                    let vectors = ((bytes.end - column) / WIDTH).min($most);
                    // SAFETY: `column + vectors * WIDTH` is at most the end of the bytes; the rest is the caller's promise.
                    unsafe {
                        match (rows.len(), vectors) {
                            (1, $most) => block::<1, $most, S, PAST_CACHE>(sources, rows, outs, column, at, accumulate),
                            (2, $most) => block::<2, $most, S, PAST_CACHE>(sources, rows, outs, column, at, accumulate),
                            (3, $most) => block::<3, $most, S, PAST_CACHE>(sources, rows, outs, column, at, accumulate),
                            (4, $most) => block::<4, $most, S, PAST_CACHE>(sources, rows, outs, column, at, accumulate),
                            $(
                                (1, $fewer) => block::<1, $fewer, S, PAST_CACHE>(sources, rows, outs, column, at, accumulate),
                                (2, $fewer) => block::<2, $fewer, S, PAST_CACHE>(sources, rows, outs, column, at, accumulate),
                                (3, $fewer) => block::<3, $fewer, S, PAST_CACHE>(sources, rows, outs, column, at, accumulate),
                                (4, $fewer) => block::<4, $fewer, S, PAST_CACHE>(sources, rows, outs, column, at, accumulate),
                            )*
                            _ => unreachable!("lines are whole numbers of vectors"),
                        }
                    }
                    column += vectors * WIDTH;
                    at += vectors * WIDTH;
                }
            }
        }

        /// Combines `ROWS` rows with `COLUMNS` vectors of each source from byte `column` on, with
        /// all sums in registers.
        ///
        /// Never inlined: in `columns` AVX2 runs out of registers for it, which costs 4 %.
        ///
        /// # Safety
        /// Every source has `column + COLUMNS * WIDTH` bytes; there are `ROWS` rows, each with a
        /// coefficient for every source. With `PAST_CACHE`, every out has `at + COLUMNS * WIDTH`
        /// bytes, and at `at` begins a vector's width of memory.
        #[inline(never)]
        #[target_feature(enable = $features)]
        unsafe fn block<const ROWS: usize, const COLUMNS: usize, S: Sources, const PAST_CACHE: bool>(
            sources: S,
            rows: &[&[u8]],
            outs: &mut [&mut [u8]],
            column: usize,
            at: usize,
            accumulate: bool,
        ) {
            let mut coefficients = [std::ptr::null(); ROWS];
            let mut sums = [[zero(); COLUMNS]; ROWS];
            for row in 0..ROWS {
                coefficients[row] = rows[row].as_ptr();
                if accumulate {
                    for (index, sum) in sums[row].iter_mut().enumerate() {
                        *sum = read_at(outs[row], at + index * WIDTH);
                    }
                }
            }
            let mut source = 0;
            while source + STEP <= sources.count() {
                // SAFETY: sources `source` to `source + STEP - 1` exist; the rest is the caller's promise.
                unsafe { step::<ROWS, COLUMNS, S>(&mut sums, sources, coefficients, source, STEP, column) };
                source += STEP;
            }
            if source < sources.count() {
                // SAFETY: as above, for the sources that are left.
                unsafe { step::<ROWS, COLUMNS, S>(&mut sums, sources, coefficients, source, sources.count() - source, column) };
            }
            for row in 0..ROWS {
                for (index, sum) in sums[row].into_iter().enumerate() {
                    let at = at + index * WIDTH;
                    if PAST_CACHE {
                        // SAFETY: the out has these bytes, and they begin a vector's width of memory, by the caller's promise.
                        unsafe { store_past_cache(outs[row].as_mut_ptr().add(at), sum) };
                    } else {
                        write_at(outs[row], at, sum);
                    }
                }
            }
        }

        /// Adds the products with `count` sources, at most `STEP`, from `source` on.
        ///
        /// # Safety
        /// The sources exist and have `column + COLUMNS * WIDTH` bytes, and every pointer of
        /// `coefficients` leads to one for each source.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn step<const ROWS: usize, const COLUMNS: usize, S: Sources>(
            sums: &mut [[Vector; COLUMNS]; ROWS],
            sources: S,
            coefficients: [*const u8; ROWS],
            source: usize,
            count: usize,
            column: usize,
        ) {
            let mut factors = [[factor(0); STEP]; ROWS];
            for row in 0..ROWS {
                for index in 0..count {
                    // SAFETY: a coefficient for each source, by the caller's promise.
                    factors[row][index] = factor(unsafe { *coefficients[row].add(source + index) });
                }
            }
            for vector in 0..COLUMNS {
                let mut splits = [split(zero()); STEP];
                for index in 0..count {
                    // SAFETY: a source that exists and has these bytes, by the caller's promise.
                    splits[index] = split(unsafe { load(sources.at(source + index, column + vector * WIDTH)) });
                }
                for row in 0..ROWS {
                    sums[row][vector] = mul_add_step(sums[row][vector], splits, factors[row]);
                }
            }
        }

        #[target_feature(enable = $features)]
        fn spread(rows: &mut [Line], stride: usize, first: usize, factors: &[u8], source: &[Line]) {
            for (row, &c) in rows.chunks_exact_mut(stride).zip(factors) {
                if c == 0 {
                    continue;
                }
                let factor = factor(c);
                for (line, source) in row[first..first + source.len()].iter_mut().zip(source) {
                    for (dst, src) in line.0.as_chunks_mut::<WIDTH>().0.iter_mut().zip(source.0.as_chunks::<WIDTH>().0) {
                        write(dst, mul_add(read(dst), split(read(src)), factor));
                    }
                }
            }
        }

        #[target_feature(enable = $features)]
        fn sum(sums: &Sums, pieces: &mut [Line], width: usize) {
            match width {
                1 => sum_pieces::<1>(sums, pieces),
                2 => sum_pieces::<2>(sums, pieces),
                3 => sum_pieces::<3>(sums, pieces),
                4 => sum_pieces::<4>(sums, pieces),
                _ => unreachable!("pieces of four lines at most"),
            }
        }

        /// Sums pieces of `LINES` lines; each sum stays in registers until it is done.
        #[target_feature(enable = $features)]
        fn sum_pieces<const LINES: usize>(sums: &Sums, pieces: &mut [Line]) {
            let (pieces, _) = pieces.as_chunks_mut::<LINES>();
            for (target, accumulate, sources) in sums.each() {
                let mut total = [[zero(); Line::BYTES / WIDTH]; LINES];
                if accumulate {
                    add_piece(&mut total, &pieces[target as usize]);
                }
                for &source in sources {
                    add_piece(&mut total, &pieces[source as usize]);
                }
                write_piece(&mut pieces[target as usize], total);
            }
        }

        #[target_feature(enable = $features)]
        fn fold(fold: &Fold, pieces: &mut [Line], width: usize) {
            match width {
                1 => fold_pieces::<1>(fold, pieces),
                2 => fold_pieces::<2>(fold, pieces),
                3 => fold_pieces::<3>(fold, pieces),
                4 => fold_pieces::<4>(fold, pieces),
                _ => unreachable!("pieces of four lines at most"),
            }
        }

        /// Folds pieces of `LINES` lines, with the running value in registers.
        #[target_feature(enable = $features)]
        fn fold_pieces<const LINES: usize>(fold: &Fold, pieces: &mut [Line]) {
            let (pieces, _) = pieces.as_chunks_mut::<LINES>();
            let (doubling, mut running) = (factor(gf256::GENERATOR), [[zero(); Line::BYTES / WIDTH]; LINES]);
            for step in &fold.steps {
                multiply_piece(&mut running, doubling);
                if step.source != Fold::NOTHING {
                    add_piece(&mut running, &pieces[step.source as usize]);
                }
                for target in step.targets {
                    let mut total = running;
                    add_piece(&mut total, &pieces[target as usize]);
                    write_piece(&mut pieces[target as usize], total);
                }
            }
            multiply_piece(&mut running, doubling);
            if fold.last != Fold::NOTHING {
                add_piece(&mut running, &pieces[fold.last as usize]);
            }
            for (&target, &c) in fold.powers.iter().zip(&gf256::EXP) {
                let mut total = running;
                multiply_piece(&mut total, factor(c));
                add_piece(&mut total, &pieces[target as usize]);
                write_piece(&mut pieces[target as usize], total);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn add_piece<const LINES: usize>(total: &mut [[Vector; Line::BYTES / WIDTH]; LINES], piece: &[Line; LINES]) {
            for (total, line) in total.iter_mut().zip(piece) {
                for (total, vector) in total.iter_mut().zip(line.0.as_chunks::<WIDTH>().0) {
                    *total = xor(*total, read(vector));
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn multiply_piece<const LINES: usize>(piece: &mut [[Vector; Line::BYTES / WIDTH]; LINES], factor: Factor) {
            for vector in piece.iter_mut().flatten() {
                *vector = mul_add(zero(), split(*vector), factor);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn write_piece<const LINES: usize>(piece: &mut [Line; LINES], total: [[Vector; Line::BYTES / WIDTH]; LINES]) {
            for (line, total) in piece.iter_mut().zip(total) {
                for (vector, total) in line.0.as_chunks_mut::<WIDTH>().0.iter_mut().zip(total) {
                    write(vector, total);
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn read(bytes: &[u8; WIDTH]) -> Vector {
            // SAFETY: `WIDTH` bytes may be read, and `load` demands no alignment.
            unsafe { load(bytes.as_ptr()) }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn write(bytes: &mut [u8; WIDTH], vector: Vector) {
            // SAFETY: `WIDTH` bytes may be written, and `store` demands no alignment.
            unsafe { store(bytes.as_mut_ptr(), vector) }
        }

        /// Up to `WIDTH` bytes, padded with zeros.
        #[inline]
        #[target_feature(enable = $features)]
        fn read_part(bytes: &[u8]) -> Vector {
            let mut padded = [0; WIDTH];
            padded[..bytes.len()].copy_from_slice(bytes);
            read(&padded)
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn write_part(bytes: &mut [u8], vector: Vector) {
            let mut padded = [0; WIDTH];
            write(&mut padded, vector);
            bytes.copy_from_slice(&padded[..bytes.len()]);
        }

        /// Up to `WIDTH` bytes of `bytes` from `at` on.
        #[inline]
        #[target_feature(enable = $features)]
        fn read_at(bytes: &[u8], at: usize) -> Vector {
            let bytes = bytes.get(at..).unwrap_or_default();
            match bytes.first_chunk() {
                Some(whole) => read(whole),
                None => read_part(bytes),
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn write_at(bytes: &mut [u8], at: usize, vector: Vector) {
            let bytes = bytes.get_mut(at..).unwrap_or_default();
            match bytes.first_chunk_mut() {
                Some(whole) => write(whole, vector),
                None => write_part(bytes, vector),
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod cache;
#[cfg(target_arch = "x86_64")]
pub mod fma;
#[cfg(target_arch = "x86_64")]
mod gfni;
#[cfg(target_arch = "x86_64")]
pub mod ifma;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod ssse3;

/// An instruction set with row operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isa {
    /// Plain Rust with a table of products: the reference.
    Scalar,
    /// 128 bits, shuffles.
    Ssse3,
    /// 256 bits, shuffles.
    Avx2,
    /// 512 bits, shuffles (AVX-512 F and BW).
    Avx512,
    /// 512 bits, one affine instruction for a product (AVX-512 F and BW, GFNI).
    Gfni,
}

impl Isa {
    /// All instruction sets, the fastest last.
    pub const ALL: [Self; 5] = [Self::Scalar, Self::Ssse3, Self::Avx2, Self::Avx512, Self::Gfni];

    /// The name in the configuration, in metrics and in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Ssse3 => "ssse3",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Gfni => "gfni",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(text: &str) -> Result<Self, UnknownIsa> {
        Self::ALL.into_iter().find(|isa| isa.name() == text).ok_or_else(|| UnknownIsa(text.to_owned()))
    }
}

/// Error: the text names no instruction set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown instruction set `{0}`: expected scalar, ssse3, avx2, avx512 or gfni")]
pub struct UnknownIsa(String);

/// The row operations of one instruction set that this processor has.
#[derive(Clone, Copy)]
pub struct Kernels {
    table: &'static Table,
}

impl Kernels {
    /// Rows that a kernel combines in one pass. Divide work into multiples of it.
    pub const ROWS: usize = 4;

    /// The fastest kernels of this processor.
    pub fn detect() -> Self {
        let fastest = Isa::ALL.into_iter().rev().find_map(Self::new);
        fastest.unwrap_or(Self { table: &scalar::TABLE })
    }

    /// The kernels of `isa`, if this processor can run them.
    pub fn new(isa: Isa) -> Option<Self> {
        table(isa).map(|table| Self { table })
    }

    /// One value for each instruction set that this processor has, the fastest last.
    pub fn available() -> impl Iterator<Item = Self> {
        Isa::ALL.into_iter().filter_map(Self::new)
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.table.isa
    }

    /// `dst[i] += src[i]`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add(&self, dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len());
        // SAFETY: the table of an instruction set is only reached where `new` found it (see `table`); lengths are equal.
        unsafe { (self.table.add)(dst, src) }
    }

    /// `dst[i] = c * dst[i]`.
    pub fn scale(&self, dst: &mut [u8], c: u8) {
        // SAFETY: the table of an instruction set is only reached where `new` found it (see `table`).
        unsafe { (self.table.scale)(dst, c) }
    }

    /// `dst[i] += c * src[i]`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn mul_add(&self, dst: &mut [u8], src: &[u8], c: u8) {
        assert_eq!(dst.len(), src.len());
        // SAFETY: the table of an instruction set is only reached where `new` found it (see `table`); lengths are equal.
        unsafe { (self.table.mul_add)(dst, src, c) }
    }

    /// Writes row `i` times the sources of `strip` into `outs[i]`, from byte `at` on, up to the
    /// width of the strip or the length of the out. If `accumulate`, adds to the contents.
    pub fn combine_strip(&self, strip: Strip<'_>, rows: &[&[u8]], outs: &mut [&mut [u8]], at: usize, accumulate: bool) {
        assert_eq!(rows.len(), outs.len());
        assert!(rows.iter().all(|row| row.len() >= strip.count), "rows of {} coefficients", strip.count);
        assert!(outs.iter().all(|out| out.len() >= at), "outs of {at} bytes and more");
        // SAFETY: the table of an instruction set is only reached where `new` found it (see `table`); `Strip::new` has checked
        // the strip against its lines, and the lines above check rows and outs.
        unsafe { (self.table.combine)(strip, rows, outs, at, accumulate) }
    }

    /// Writes row `i` times these bytes of `sources` into the same bytes of `outs[i]`. They must be
    /// whole lines, and lines of memory if they are written past the caches.
    pub fn combine_apart(
        &self,
        rows: &[&[u8]],
        sources: &[&[u8]],
        outs: &mut [&mut [u8]],
        bytes: Range<usize>,
        is_past_cache: bool,
    ) {
        assert_eq!(rows.len(), outs.len());
        assert!(bytes.start <= bytes.end && bytes.len().is_multiple_of(Line::BYTES), "bytes {bytes:?}");
        assert!(rows.iter().all(|row| row.len() >= sources.len()), "rows of {} coefficients", sources.len());
        assert!(sources.iter().all(|source| source.len() >= bytes.end), "sources of {} bytes and more", bytes.end);
        for out in outs.iter() {
            assert!(out.len() >= bytes.end, "outs of {} bytes and more", bytes.end);
            assert!(!is_past_cache || out[bytes.start..].as_ptr().align_offset(Line::BYTES) == 0, "lines of memory");
        }
        // SAFETY: the table of an instruction set is only reached where `new` found it (see `table`); the lines above check all
        // that the bytes ask for.
        unsafe { (self.table.combine_apart)(Apart { sources }, rows, outs, bytes, is_past_cache) }
    }

    /// Adds `factors[i]` times `source` to row i of `rows`, whose rows are `stride` lines apart,
    /// from line `first` of each on.
    pub fn spread_lines(&self, rows: &mut [Line], stride: usize, first: usize, factors: &[u8], source: &[Line]) {
        assert!(rows.len() >= factors.len() * stride && first + source.len() <= stride, "{} rows", factors.len());
        // SAFETY: the table of an instruction set is only reached where `new` found it (see `table`); row i's lines end at
        // i * stride + first + source.len() at most, which the line above checks.
        unsafe { (self.table.spread)(rows, stride, first, factors, source) }
    }

    /// Makes the sums one after the other, over pieces of `width` lines, one to four.
    ///
    /// # Panics
    /// If a number does not lead to a piece.
    pub fn sum(&self, sums: &Sums, pieces: &mut [Line], width: usize) {
        // SAFETY: the table of an instruction set is only reached where `new` found it (see `table`); it demands nothing else.
        unsafe { (self.table.sum)(sums, pieces, width) }
    }

    /// Runs the steps of `fold` over pieces of `width` lines, one to four.
    ///
    /// # Panics
    /// If a number does not lead to a piece.
    pub fn fold(&self, fold: &Fold, pieces: &mut [Line], width: usize) {
        // SAFETY: the table of an instruction set is only reached where `new` found it (see `table`); it demands nothing else.
        unsafe { (self.table.fold)(fold, pieces, width) }
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kernels").field(&self.isa()).finish()
    }
}

/// The table of `isa`, if this processor can run it. There is no other way to a table.
#[cfg(target_arch = "x86_64")]
fn table(isa: Isa) -> Option<&'static Table> {
    let has_avx512 = || is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
    match isa {
        Isa::Scalar => Some(&scalar::TABLE),
        Isa::Ssse3 => is_x86_feature_detected!("ssse3").then_some(&ssse3::TABLE),
        Isa::Avx2 => is_x86_feature_detected!("avx2").then_some(&avx2::TABLE),
        Isa::Avx512 => has_avx512().then_some(&avx512::TABLE),
        Isa::Gfni => (has_avx512() && is_x86_feature_detected!("gfni")).then_some(&gfni::TABLE),
    }
}

/// The table of `isa`, if this processor can run it. There is no other way to a table.
#[cfg(not(target_arch = "x86_64"))]
fn table(isa: Isa) -> Option<&'static Table> {
    (isa == Isa::Scalar).then_some(&scalar::TABLE)
}

/// The functions of an instruction set.
///
/// All functions are unsafe for one reason: they use instructions that a processor may lack.
/// [`table`] returns a table only after it has checked the processor. The method of `Kernels` that
/// calls a function checks the function's other requirements.
struct Table {
    isa: Isa,
    add: unsafe fn(&mut [u8], &[u8]),
    scale: unsafe fn(&mut [u8], u8),
    mul_add: unsafe fn(&mut [u8], &[u8], u8),
    combine: Combine,
    combine_apart: CombineApart,
    spread: unsafe fn(&mut [Line], usize, usize, &[u8], &[Line]),
    sum: unsafe fn(&Sums, &mut [Line], usize),
    fold: unsafe fn(&Fold, &mut [Line], usize),
}

/// Multiplies rows by a strip into outs, from a byte of each on; adds to the contents, or replaces
/// them.
type Combine = unsafe fn(Strip<'_>, &[&[u8]], &mut [&mut [u8]], usize, bool);

/// Multiplies rows by sources into outs, some bytes of each; past the caches or not.
type CombineApart = unsafe fn(Apart<'_>, &[&[u8]], &mut [&mut [u8]], Range<usize>, bool);

/// A cache line: the unit of the sources' layout, aligned for every vector.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Line([u8; Self::BYTES]);

impl Line {
    /// Bytes of a line.
    pub const BYTES: usize = 64;
    /// A line of zeros.
    pub const ZERO: Self = Self([0; Self::BYTES]);

    /// The bytes of consecutive lines.
    pub fn bytes(lines: &[Self]) -> &[u8] {
        // SAFETY: a line is 64 bytes without padding (its size equals its alignment), so `lines` covers as many initialised
        // bytes, borrowed for as long.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
    }

    /// The bytes of consecutive lines, to change.
    pub fn bytes_mut(lines: &mut [Self]) -> &mut [u8] {
        // SAFETY: as in `bytes`; every value of these bytes is a valid line, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
    }
}

/// The places of a combination's sources.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only wide instructions read sources where they are"))]
trait Sources: Copy {
    /// The number of sources.
    fn count(self) -> usize;
    /// A pointer to a byte of a source.
    ///
    /// # Safety
    /// The source exists, and has so many bytes.
    unsafe fn at(self, source: usize, byte: usize) -> *const u8;
}

/// Sources anywhere in memory.
#[derive(Clone, Copy)]
struct Apart<'a> {
    sources: &'a [&'a [u8]],
}

impl Sources for Apart<'_> {
    #[inline(always)]
    fn count(self) -> usize {
        self.sources.len()
    }

    #[inline(always)]
    unsafe fn at(self, source: usize, byte: usize) -> *const u8 {
        // SAFETY: the caller's promise.
        unsafe { self.sources.get_unchecked(source).as_ptr().add(byte) }
    }
}

impl Sources for Strip<'_> {
    #[inline(always)]
    fn count(self) -> usize {
        self.count
    }

    #[inline(always)]
    unsafe fn at(self, source: usize, byte: usize) -> *const u8 {
        let start = (source * self.stride + self.first) * Line::BYTES + byte;
        // SAFETY: within the strip by the caller's promise, and within its lines by `Strip::new`.
        unsafe { self.lines.as_ptr().cast::<u8>().add(start) }
    }
}

/// `count` sources of `width` lines: source i starts at line i * `stride` + `first`.
#[derive(Debug, Clone, Copy)]
pub struct Strip<'a> {
    lines: &'a [Line],
    count: usize,
    stride: usize,
    first: usize,
    width: usize,
}

impl<'a> Strip<'a> {
    /// A strip; checks that all sources lie within `lines`.
    pub fn new(lines: &'a [Line], count: usize, stride: usize, first: usize, width: usize) -> Self {
        assert!(lines.len() >= count * stride && first + width <= stride, "{count} sources of {width} lines");
        Self { lines, count, stride, first, width }
    }

    fn source(&self, i: usize) -> &'a [u8] {
        let start = i * self.stride + self.first;
        Line::bytes(&self.lines[start..start + self.width])
    }
}
