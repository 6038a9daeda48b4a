//! The loops of the row operations, written once for all vector instruction sets.

/// The loops, for one instruction set.
///
/// The file that uses the macro defines `Vector` (`WIDTH` bytes), `Split` (a source vector ready to
/// be multiplied), `Factor` (a coefficient likewise), `STEP` (sources processed in one step) and,
/// with the same features enabled, the functions `zero`, `load`, `store`, `store_past_cache`,
/// `fence`, `xor`, `split`, `factor`, `mul_add` (sum + split × factor) and `mul_add_step` (the same
/// for `STEP` sources). `columns` are the numbers of vectors whose sums one pass keeps, the largest
/// first; widths of sources are multiples of the last.
macro_rules! kernels {
    ($isa:expr, $features:literal, columns: [$most:literal $(, $fewer:literal)*]) => {
        use std::ops::Range;

        use super::isa::Isa;
        use super::sources::{Apart, Line, Sources, Strip};
        use super::table::{ROWS as ROWS_MAX, Table};
        use crate::gf256;
        use crate::sums::{Fold, Sums};

        pub(super) static TABLE: Table =
            Table {
                isa: $isa,
                add,
                scale,
                mul_add: mul_add_bytes,
                combine,
                combine_apart,
                spread,
                sum,
                fold,
            };

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
        fn combine(
            strip: Strip<'_>,
            rows: &[&[u8]],
            outs: &mut [&mut [u8]],
            at: usize,
            accumulate: bool,
        ) {
            let bytes = 0..strip.width * Line::BYTES;
            // SAFETY: a strip has this many bytes of every source, and every row has a coefficient
            // for each, as `Kernels::combine_strip` has checked.
            unsafe { columns::<_, false>(strip, rows, outs, bytes, at, accumulate) }
        }

        #[target_feature(enable = $features)]
        fn combine_apart(
            sources: Apart<'_>,
            rows: &[&[u8]],
            outs: &mut [&mut [u8]],
            bytes: Range<usize>,
            is_past_cache: bool,
        ) {
            let at = bytes.start;
            if !is_past_cache || cfg!(target_family = "wasm") {
                // SAFETY: `Kernels::combine_apart` has checked that every source has these bytes,
                // whole lines of them, and every row a coefficient for each.
                return unsafe { columns::<_, false>(sources, rows, outs, bytes, at, false) };
            }
            // SAFETY: as above; and it has checked that every out has these bytes, and whole lines
            // of memory for them. Nobody reads them before the fence.
            unsafe { columns::<_, true>(sources, rows, outs, bytes, at, false) };
            fence();
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
            for (rows, outs) in rows.chunks(ROWS_MAX).zip(outs.chunks_mut(ROWS_MAX)) {
                let (mut column, mut at) = (bytes.start, at);
                while column < bytes.end {
                    let vectors = ((bytes.end - column) / WIDTH).min($most);
                    // SAFETY: `column + vectors * WIDTH` is at most the end of the bytes; the rest
                    // is the caller's promise.
                    unsafe {
                        match (rows.len(), vectors) {
                            (1, $most) => block::<1, $most, S, PAST_CACHE>(
                                sources, rows, outs, column, at, accumulate,
                            ),
                            (2, $most) => block::<2, $most, S, PAST_CACHE>(
                                sources, rows, outs, column, at, accumulate,
                            ),
                            (3, $most) => block::<3, $most, S, PAST_CACHE>(
                                sources, rows, outs, column, at, accumulate,
                            ),
                            (4, $most) => block::<4, $most, S, PAST_CACHE>(
                                sources, rows, outs, column, at, accumulate,
                            ),
                            $(
                                (1, $fewer) => block::<1, $fewer, S, PAST_CACHE>(
                                    sources, rows, outs, column, at, accumulate,
                                ),
                                (2, $fewer) => block::<2, $fewer, S, PAST_CACHE>(
                                    sources, rows, outs, column, at, accumulate,
                                ),
                                (3, $fewer) => block::<3, $fewer, S, PAST_CACHE>(
                                    sources, rows, outs, column, at, accumulate,
                                ),
                                (4, $fewer) => block::<4, $fewer, S, PAST_CACHE>(
                                    sources, rows, outs, column, at, accumulate,
                                ),
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
        unsafe fn block<
            const ROWS: usize,
            const COLUMNS: usize,
            S: Sources,
            const PAST_CACHE: bool,
        >(
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
                // SAFETY: sources `source` to `source + STEP - 1` exist; the rest is the caller's
                // promise.
                unsafe {
                    step::<ROWS, COLUMNS, S>(&mut sums, sources, coefficients, source, STEP, column)
                };
                source += STEP;
            }
            if source < sources.count() {
                // SAFETY: as above, for the sources that are left.
                unsafe {
                    step::<ROWS, COLUMNS, S>(
                        &mut sums,
                        sources,
                        coefficients,
                        source,
                        sources.count() - source,
                        column,
                    )
                };
            }
            for row in 0..ROWS {
                for (index, sum) in sums[row].into_iter().enumerate() {
                    let at = at + index * WIDTH;
                    if PAST_CACHE {
                        // SAFETY: the out has these bytes, and they begin a vector's width of
                        // memory, by the caller's promise.
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
            if cfg!(target_family = "wasm") {
                // Engines keep this order, and have 16 registers on x86: for sums, splits, and one
                // factor at a time. With all factors at once decoding is slower by a quarter.
                const { assert!(cfg!(not(target_family = "wasm")) || STEP == 1, "one source") };
                let mut splits = [[split(zero()); STEP]; COLUMNS];
                for vector in 0..COLUMNS {
                    // SAFETY: a source that exists and has these bytes, by the caller's promise.
                    let bytes = unsafe { load(sources.at(source, column + vector * WIDTH)) };
                    splits[vector][0] = split(bytes);
                }
                for row in 0..ROWS {
                    // SAFETY: a coefficient for each source, by the caller's promise.
                    let factor = factor(unsafe { *coefficients[row].add(source) });
                    for vector in 0..COLUMNS {
                        sums[row][vector] =
                            mul_add_step(sums[row][vector], splits[vector], [factor; STEP]);
                    }
                }
                return;
            }
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
                    let byte = column + vector * WIDTH;
                    // SAFETY: a source that exists and has these bytes, by the caller's promise.
                    splits[index] = split(unsafe { load(sources.at(source + index, byte)) });
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
                    let (dst, src) = (line.0.as_chunks_mut().0, source.0.as_chunks::<WIDTH>().0);
                    for (dst, src) in dst.iter_mut().zip(src) {
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
            let (doubling, mut running) = (
                factor(gf256::GENERATOR),
                [[zero(); Line::BYTES / WIDTH]; LINES],
            );
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
        fn add_piece<const LINES: usize>(
            total: &mut [[Vector; Line::BYTES / WIDTH]; LINES],
            piece: &[Line; LINES],
        ) {
            for (total, line) in total.iter_mut().zip(piece) {
                for (total, vector) in total.iter_mut().zip(line.0.as_chunks::<WIDTH>().0) {
                    *total = xor(*total, read(vector));
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn multiply_piece<const LINES: usize>(
            piece: &mut [[Vector; Line::BYTES / WIDTH]; LINES],
            factor: Factor,
        ) {
            for vector in piece.iter_mut().flatten() {
                *vector = mul_add(zero(), split(*vector), factor);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn write_piece<const LINES: usize>(
            piece: &mut [Line; LINES],
            total: [[Vector; Line::BYTES / WIDTH]; LINES],
        ) {
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
