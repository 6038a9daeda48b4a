//! Source blocks in the layout that the kernels read fastest.
//!
//! A panel cuts n blocks of k bytes into columns of up to four cache lines, and stores the n pieces
//! of a column one after the other. A kernel then streams through consecutive memory, whatever k
//! is. Columns differ by at most one line, because a column of one line costs nearly as much as one
//! of two.

use std::collections::TryReserveError;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::slice;

use super::simd::{Isa, Kernels, Line, Strip};
use super::threads::share;

/// `n` blocks of `block_bytes` bytes, cut into columns. It starts as zeros.
#[derive(Debug)]
pub struct Panel {
    n: usize,
    columns: Columns,
    lines: Vec<Line>,
}

impl Panel {
    /// A panel of zeros.
    pub fn new(n: usize, block_bytes: usize) -> Self {
        let columns = Columns::new(block_bytes);
        Self {
            n,
            columns,
            lines: vec![Line::ZERO; n * columns.lines()],
        }
    }

    /// A panel of zeros, if there is enough memory for it.
    pub fn try_new(n: usize, block_bytes: usize) -> Result<Self, TryReserveError> {
        let columns = Columns::new(block_bytes);
        let mut lines = Vec::new();
        lines.try_reserve_exact(n * columns.lines())?;
        lines.resize(n * columns.lines(), Line::ZERO);
        Ok(Self { n, columns, lines })
    }

    /// A panel of these bytes: blocks one after the other, the last ones padded with zeros.
    ///
    /// # Panics
    /// If there are more bytes than n blocks hold.
    pub fn of(bytes: &[u8], n: usize, block_bytes: usize) -> Self {
        let mut panel = Self::new(n, block_bytes);
        assert!(
            bytes.len() <= n * block_bytes,
            "{} bytes in {n} blocks of {block_bytes}",
            bytes.len()
        );
        for (index, block) in bytes.chunks(block_bytes).enumerate() {
            panel.put(index, block);
        }
        panel
    }

    /// The number of blocks.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.columns.block_bytes
    }

    /// Bytes of memory in use.
    pub fn memory_bytes(&self) -> usize {
        self.lines.len() * Line::BYTES
    }

    /// Writes block `index`. If `block` is shorter than `block_bytes`, the rest keeps its contents.
    ///
    /// # Panics
    /// If there is no such block, or the bytes are more than a block.
    pub fn put(&mut self, index: usize, block: &[u8]) {
        assert!(
            index < self.n && block.len() <= self.columns.block_bytes,
            "block {index} of {} bytes",
            block.len()
        );
        for column in self
            .columns
            .iter()
            .take_while(|column| column.start() < block.len())
        {
            let piece = &block[column.bytes(block.len())];
            let start = self.n * column.first + index * column.width;
            Line::bytes_mut(&mut self.lines[start..start + column.width])[..piece.len()]
                .copy_from_slice(piece);
        }
    }

    /// Reads block `index` into `block`, which is `block_bytes` long.
    ///
    /// # Panics
    /// If there is no such block, or `block` has another length.
    pub fn copy_to(&self, index: usize, block: &mut [u8]) {
        assert!(
            index < self.n && block.len() == self.columns.block_bytes,
            "block {index} into {} bytes",
            block.len()
        );
        for column in self.columns.iter() {
            let start = self.n * column.first + index * column.width;
            let piece = Line::bytes(&self.lines[start..start + column.width]);
            let out = &mut block[column.bytes(self.columns.block_bytes)];
            out.copy_from_slice(&piece[..out.len()]);
        }
    }

    fn strip(&self, column: Column) -> Strip<'_> {
        Strip::new(self.lines_of(column), self.n, column.width, 0, column.width)
    }

    /// The pieces of all blocks.
    fn lines_of(&self, column: Column) -> &[Line] {
        let start = self.n * column.first;
        &self.lines[start..start + self.n * column.width]
    }

    /// The columns that hold these bytes of a block, and the start of each in the outs.
    ///
    /// # Panics
    /// If an out does not have as many bytes, or these do not begin where a column does.
    fn columns_of(
        &self,
        bytes: Range<usize>,
        outs: &[&mut [u8]],
    ) -> impl Iterator<Item = (Column, usize)> + use<> {
        assert!(
            outs.iter().all(|out| out.len() == bytes.len()),
            "outs of {} bytes",
            bytes.len()
        );
        let begins = bytes.is_empty()
            || self
                .columns
                .iter()
                .any(|column| column.start() == bytes.start);
        assert!(
            begins && bytes.end <= self.block_bytes(),
            "bytes {bytes:?} of {}",
            self.block_bytes()
        );
        let columns = self
            .columns
            .iter()
            .filter(move |column| bytes.contains(&column.start()));
        let first = columns.clone().next().map_or(0, Column::start);
        columns.map(move |column| (column, column.start() - first))
    }
}

/// Whether [`Kernels::combine_sparse`] is faster than [`Kernels::combine`] for these rows.
pub fn are_sparse(rows: &[&[u8]]) -> bool {
    let all: usize = rows.iter().map(|row| row.len()).sum();
    let counting = rows
        .iter()
        .map(|row| row.iter().filter(|c| **c != 0).count());
    counting.sum::<usize>() * SPARSE_FROM <= all
}

/// The `index`-th of `count` parts of a block: whole columns, so that threads can make the parts
/// independently. Parts differ by one column at most; they are empty if there are fewer columns
/// than parts.
pub fn part(block_bytes: usize, index: usize, count: usize) -> Range<usize> {
    let columns = Columns::new(block_bytes);
    let start = |index: usize| {
        columns
            .at(index * columns.count() / count)
            .start()
            .min(block_bytes)
    };
    start(index)..start(index + 1)
}

impl Kernels {
    /// Writes row `i` times the blocks of `panel` into `outs[i]`, for every i.
    ///
    /// # Panics
    /// If there are not as many rows as outs, a row is shorter than the panel's n, or an out is not
    /// a block long.
    pub fn combine(&self, rows: &[&[u8]], panel: &Panel, outs: &mut [&mut [u8]]) {
        self.combine_part(rows, panel, 0..panel.block_bytes(), outs);
    }

    /// Like [`combine`](Self::combine), but only for some bytes of every block, such as a [`part`]
    /// of it.
    ///
    /// # Panics
    /// If there are not as many rows as outs, a row is shorter than the panel's n, an out does not
    /// have as many bytes as are made, or these do not begin where a column does.
    pub fn combine_part(
        &self,
        rows: &[&[u8]],
        panel: &Panel,
        bytes: Range<usize>,
        outs: &mut [&mut [u8]],
    ) {
        for (column, at) in panel.columns_of(bytes, outs) {
            self.combine_strip(panel.strip(column), rows, outs, at, false);
        }
    }

    /// Like [`combine_part`](Self::combine_part), but reads only blocks with a non-zero
    /// coefficient: the pieces of a column that a row needs are packed, then combined. This costs
    /// more for each of them, because rows share no load.
    ///
    /// # Panics
    /// As `combine_part`.
    pub fn combine_sparse(
        &self,
        rows: &[&[u8]],
        panel: &Panel,
        bytes: Range<usize>,
        outs: &mut [&mut [u8]],
    ) {
        assert!(
            rows.len() == outs.len() && rows.iter().all(|row| row.len() >= panel.n),
            "rows of {} coefficients",
            panel.n
        );
        let (mut sources, mut coefficients, mut counts) =
            (Vec::new(), Vec::new(), Vec::with_capacity(rows.len()));
        for row in rows {
            let before = sources.len();
            for (source, &c) in row[..panel.n].iter().enumerate().filter(|(_, c)| **c != 0) {
                sources.push(source);
                coefficients.push(c);
            }
            counts.push(sources.len() - before);
        }
        let mut packed =
            vec![Line::ZERO; counts.iter().copied().max().unwrap_or_default() * COLUMN_LINES];
        for (column, at) in panel.columns_of(bytes, outs) {
            let (lines, width, mut begin) = (panel.lines_of(column), column.width, 0);
            for (&count, out) in counts.iter().zip(outs.iter_mut()) {
                let of_row = begin..begin + count;
                for (place, &source) in packed.chunks_exact_mut(width).zip(&sources[of_row.clone()])
                {
                    place.copy_from_slice(&lines[source * width..(source + 1) * width]);
                }
                let strip = Strip::new(&packed[..count * width], count, width, 0, width);
                self.combine_strip(
                    strip,
                    &[&coefficients[of_row]],
                    slice::from_mut(out),
                    at,
                    false,
                );
                begin += count;
            }
        }
    }

    /// Like `combine`, over blocks anywhere in memory. A few sources are read in place; so are many
    /// sources for a few rows, because each byte is loaded once for four rows. Otherwise each
    /// column is packed before it is read. Outs larger than the caches near the processor are
    /// written past them.
    ///
    /// # Panics
    /// If there are not as many rows as outs, a row is shorter than `sources`, or blocks differ in
    /// length.
    pub fn combine_scattered(&self, rows: &[&[u8]], sources: &[&[u8]], outs: &mut [&mut [u8]]) {
        let Some(block_bytes) = outs.first().map(|out| out.len()) else {
            return;
        };
        let mut lengths = sources
            .iter()
            .map(|source| source.len())
            .chain(outs.iter().map(|out| out.len()));
        assert!(
            lengths.all(|length| length == block_bytes),
            "blocks of {block_bytes} bytes"
        );
        if self.is_in_place(rows.len(), sources.len()) {
            self.combine_in_place(rows, sources, outs, block_bytes);
        } else {
            self.combine_packed(rows, sources, outs, block_bytes);
        }
    }

    /// Like [`combine_scattered`](Self::combine_scattered) with at most so many threads, each for a
    /// part of every block, if that pays.
    ///
    /// # Panics
    /// As there.
    pub fn combine_threaded(
        &self,
        rows: &[&[u8]],
        sources: &[&[u8]],
        outs: &mut [&mut [u8]],
        threads: NonZeroUsize,
    ) {
        let block_bytes = outs.first().map_or(0, |out| out.len());
        let work = block_bytes.saturating_mul(rows.len() * sources.len());
        let count = (work / PRODUCTS_PER_THREAD).clamp(1, threads.get());
        if count == 1 {
            return self.combine_scattered(rows, sources, outs);
        }
        let part = block_bytes.div_ceil(count).next_multiple_of(PART);
        let mut rest: Vec<&mut [u8]> = outs.iter_mut().map(|out| &mut **out).collect();
        let parts = (0..block_bytes).step_by(part).map(|start| {
            let end = block_bytes.min(start + part);
            let outs = rest.iter_mut().map(|out| {
                out.split_off_mut(..end - start)
                    .expect("parts tile a block")
            });
            (start..end, outs.collect::<Vec<_>>())
        });
        share(parts, |(bytes, mut outs)| {
            let sources: Vec<&[u8]> = sources
                .iter()
                .map(|source| &source[bytes.clone()])
                .collect();
            self.combine_scattered(rows, &sources, &mut outs)
        });
    }

    /// Whether so many sources are read in place. A register file of 32 has room for their
    /// addresses.
    fn is_in_place(&self, rows: usize, sources: usize) -> bool {
        let (rows_max, sources_max) = if self.isa() >= Isa::Avx512 {
            IN_PLACE_WIDE
        } else {
            IN_PLACE_NARROW
        };
        rows <= rows_max || sources <= sources_max
    }

    /// Combines whole lines in pieces that stay in the cache while rows pass over them four by
    /// four; partial lines at the edges are packed.
    fn combine_in_place(
        &self,
        rows: &[&[u8]],
        sources: &[&[u8]],
        outs: &mut [&mut [u8]],
        block_bytes: usize,
    ) {
        let is_large = block_bytes.saturating_mul(outs.len()) >= PAST_CACHE_MIN;
        let before_line = if is_large { before_line(outs) } else { None };
        let start = before_line.unwrap_or(0).min(block_bytes);
        let end = start + (block_bytes - start) / Line::BYTES * Line::BYTES;
        // Who passes once needs no pieces, and long runs are fetched ahead best.
        let piece = if rows.len() <= Self::ROWS {
            end.max(1)
        } else {
            (IN_PLACE_BYTES / sources.len().max(1)).max(PIECE_MIN)
        };
        let piece = piece.next_multiple_of(Line::BYTES);
        for at in (start..end).step_by(piece) {
            self.combine_apart(
                rows,
                sources,
                outs,
                at..end.min(at + piece),
                before_line.is_some(),
            );
        }
        for around in [0..start, end..block_bytes]
            .into_iter()
            .filter(|around| !around.is_empty())
        {
            let sources: Vec<&[u8]> = sources
                .iter()
                .map(|source| &source[around.clone()])
                .collect();
            let mut outs: Vec<&mut [u8]> = outs
                .iter_mut()
                .map(|out| &mut out[around.clone()])
                .collect();
            self.combine_packed(rows, &sources, &mut outs, around.len());
        }
    }

    /// Each column of the blocks packed before it is read.
    fn combine_packed(
        &self,
        rows: &[&[u8]],
        sources: &[&[u8]],
        outs: &mut [&mut [u8]],
        block_bytes: usize,
    ) {
        let mut packed = vec![Line::ZERO; sources.len() * COLUMN_LINES];
        for column in Columns::new(block_bytes).iter() {
            let strip = column.pack(block_bytes, sources.iter().copied(), &mut packed);
            self.combine_strip(strip, rows, outs, column.start(), false);
        }
    }

    /// Replaces some blocks of `blocks` by combinations of all of them: `rows[i]` times the blocks,
    /// in the order of `order`, goes to place `targets[i]`.
    ///
    /// # Panics
    /// If `blocks` is not n blocks, an index is out of range, targets do not ascend, or there are
    /// not as many rows as targets.
    pub fn combine_within(
        &self,
        rows: &[&[u8]],
        blocks: &mut [u8],
        block_bytes: usize,
        order: &[u16],
        targets: &[u16],
    ) {
        assert!(
            rows.len() == targets.len() && blocks.len() == order.len() * block_bytes,
            "{} targets",
            targets.len()
        );
        let mut packed = vec![Line::ZERO; order.len() * COLUMN_LINES];
        for column in Columns::new(block_bytes).iter() {
            let sources = order
                .iter()
                .map(|&index| &blocks[usize::from(index) * block_bytes..][..block_bytes]);
            let strip = column.pack(block_bytes, sources, &mut packed);
            let bytes = column.bytes(block_bytes);
            let (mut places, mut next) = (blocks.chunks_exact_mut(block_bytes), 0);
            let outs = targets.iter().map(|&target| {
                let skipped = usize::from(target)
                    .checked_sub(next)
                    .expect("targets ascend");
                next += skipped + 1;
                &mut places.nth(skipped).expect("a target is a block")[bytes.clone()]
            });
            self.combine_strip(strip, rows, &mut outs.collect::<Vec<_>>(), 0, false);
        }
    }
}

/// Bytes of each out before the first whole line in memory, if it is the same for all of them.
fn before_line(outs: &[&mut [u8]]) -> Option<usize> {
    let mut skews = outs
        .iter()
        .map(|out| out.as_ptr().align_offset(Line::BYTES));
    let first = skews.next()?;
    skews.all(|skew| skew == first).then_some(first)
}

/// The division of a block into columns.
#[derive(Debug, Clone, Copy)]
struct Columns {
    block_bytes: usize,
}

impl Columns {
    fn new(block_bytes: usize) -> Self {
        Self { block_bytes }
    }

    fn lines(self) -> usize {
        self.block_bytes.div_ceil(Line::BYTES)
    }

    fn count(self) -> usize {
        self.lines().div_ceil(COLUMN_LINES)
    }

    fn iter(self) -> impl Iterator<Item = Column> + Clone {
        (0..self.count()).map(move |index| self.at(index))
    }

    /// Column `index`; after the last one there is an empty column.
    fn at(self, index: usize) -> Column {
        let (even, wider) = (
            self.lines() / self.count().max(1),
            self.lines() % self.count().max(1),
        );
        Column {
            first: index * even + index.min(wider),
            width: even + usize::from(index < wider),
        }
    }
}

/// `width` lines of every block from line `first` on.
#[derive(Debug, Clone, Copy)]
struct Column {
    first: usize,
    width: usize,
}

impl Column {
    fn start(self) -> usize {
        self.first * Line::BYTES
    }

    /// The end of the column. It may lie after the end of a block whose last line is not full.
    fn end(self) -> usize {
        (self.first + self.width) * Line::BYTES
    }

    /// The column's range of a block of so many bytes.
    fn bytes(self, block_bytes: usize) -> Range<usize> {
        self.start()..self.end().min(block_bytes)
    }

    /// Copies the column's pieces of these blocks one after the other.
    fn pack<'a>(
        self,
        block_bytes: usize,
        blocks: impl ExactSizeIterator<Item = &'a [u8]>,
        packed: &mut [Line],
    ) -> Strip<'_> {
        let (count, bytes) = (blocks.len(), self.bytes(block_bytes));
        for (place, block) in packed.chunks_exact_mut(self.width).zip(blocks) {
            Line::bytes_mut(place)[..bytes.len()].copy_from_slice(&block[bytes.clone()]);
        }
        Strip::new(packed, count, self.width, 0, self.width)
    }
}

/// Maximum number of lines of a column: as many as a register-blocked kernel processes at once.
const COLUMN_LINES: usize = 4;

/// Rows and sources up to which sources are read in place, with 512 bits; either condition
/// suffices. Above them, packing avoids conflicts in cache sets.
const IN_PLACE_WIDE: (usize, usize) = (16, 64);
/// The same with fewer bits, where loading addresses costs more than copying small columns.
const IN_PLACE_NARROW: (usize, usize) = (Kernels::ROWS, 16);
/// Bytes of all sources in a piece: a part of the second-level cache, which holds them until the
/// last row has passed.
const IN_PLACE_BYTES: usize = 128 << 10;
/// Minimum bytes of a piece: a few columns of the widest vectors.
const PIECE_MIN: usize = 1024;
/// Bytes of all outs from which they are written past the caches: more would push the sources out
/// of the second level. A store to memory that is not in the cache would read it first.
const PAST_CACHE_MIN: usize = 2 << 20;

/// Rows count as sparse if at most one of so many coefficients is non-zero. With GFNI, both ways
/// take equally long at the weight n / 8, in row S2-23 of `ncbench papers`. With byte shuffles
/// they meet at a larger weight.
const SPARSE_FROM: usize = 8;

/// Minimum number of products of two bytes for another thread: a multiple of the cost of starting
/// it.
const PRODUCTS_PER_THREAD: usize = 16 << 20;
/// Parts of threads begin on separate pages.
pub const PART: usize = 4096;

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "numbers of a test")]
mod tests {
    use super::*;

    #[test]
    fn columns_tile_a_block() {
        for block_bytes in (1..2000).chain([4096, 16_384]) {
            let mut next = 0;
            for column in Columns::new(block_bytes).iter() {
                assert_eq!(column.first, next);
                assert!((1..=COLUMN_LINES).contains(&column.width));
                next += column.width;
            }
            assert_eq!(next, block_bytes.div_ceil(Line::BYTES));
        }
    }

    #[test]
    fn sparse_rows_give_what_dense_ones_give() {
        for kernels in Kernels::available() {
            for (n, block_bytes) in [(1, 1), (3, 65), (37, 257), (64, 1088), (128, 4096)] {
                let bytes: Vec<u8> = (0..n * block_bytes)
                    .map(|i| (i * 7 + i / 251) as u8)
                    .collect();
                let panel = Panel::of(&bytes, n, block_bytes);
                // Of every weight up to five, so that rows of one call differ.
                let rows: Vec<Vec<u8>> = (0..6)
                    .map(|row| {
                        (0..n)
                            .map(|i| {
                                if (i * 31 + row) % n < row {
                                    (i + row) as u8 | 1
                                } else {
                                    0
                                }
                            })
                            .collect()
                    })
                    .collect();
                let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
                let made = |combine: &dyn Fn(&mut [&mut [u8]])| {
                    let mut outs = vec![vec![0xAA; block_bytes]; rows.len()];
                    combine(&mut outs.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
                    outs
                };
                let sparse =
                    made(&|outs| kernels.combine_sparse(&rows, &panel, 0..block_bytes, outs));
                let dense = made(&|outs| kernels.combine(&rows, &panel, outs));
                assert!(
                    sparse == dense,
                    "{} n = {n}, k = {block_bytes}",
                    kernels.isa()
                );
                assert!(sparse[0].iter().all(|&byte| byte == 0), "a row of zeros");
            }
        }
    }

    /// What `combine` writes into outs that begin `skews[i]` bytes behind a line of memory, with
    /// nothing written around them.
    fn skewed(
        skews: &[usize],
        length: usize,
        combine: impl FnOnce(&mut [&mut [u8]]),
    ) -> Vec<Vec<u8>> {
        let mut buffers: Vec<Vec<u8>> = skews
            .iter()
            .map(|skew| vec![0xEE; skew + length + 2 * Line::BYTES])
            .collect();
        let places = buffers
            .iter()
            .zip(skews)
            .map(|(buffer, skew)| buffer.as_ptr().align_offset(Line::BYTES) + skew);
        let places: Vec<Range<usize>> = places.map(|start| start..start + length).collect();
        let mut outs: Vec<&mut [u8]> = buffers
            .iter_mut()
            .zip(&places)
            .map(|(buffer, place)| &mut buffer[place.clone()])
            .collect();
        combine(&mut outs);
        for (buffer, place) in buffers.iter_mut().zip(places) {
            assert!(
                buffer[..place.start]
                    .iter()
                    .chain(&buffer[place.end..])
                    .all(|&byte| byte == 0xEE),
                "outside"
            );
            *buffer = buffer[place].to_vec();
        }
        buffers
    }

    #[test]
    fn sources_in_place_make_what_packed_ones_make() {
        let oracle = Kernels::new(Isa::Scalar).unwrap();
        for (count, n) in [
            (0, 3),
            (1, 0),
            (1, 1),
            (2, 4),
            (4, 3),
            (5, 16),
            (5, 17),
            (17, 64),
            (17, 65),
            (3, 130),
        ] {
            let rows: Vec<Vec<u8>> = (0..count)
                .map(|row| (0..n).map(|i| (i * 37 + row * 11) as u8).collect())
                .collect();
            let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
            for length in [0, 1, 63, 64, 65, 127, 300, 1088, 4103, 20_000] {
                let bytes: Vec<u8> = (0..n * length + 1)
                    .map(|i| (i * 7 + i / 251) as u8)
                    .collect();
                let sources: Vec<&[u8]> =
                    (0..n).map(|i| &bytes[1 + i * length..][..length]).collect();
                let skews: Vec<usize> = (0..count).map(|row| row * 9 % 64).collect();
                let expected = skewed(&skews, length, |outs| {
                    oracle.combine_packed(&rows, &sources, outs, length)
                });
                for kernels in Kernels::available() {
                    let name = format!("{kernels:?}, {count} rows of {n}, {length} bytes");
                    let made = skewed(&skews, length, |outs| {
                        kernels.combine_in_place(&rows, &sources, outs, length)
                    });
                    assert!(made == expected, "in place, {name}");
                    let made = skewed(&skews, length, |outs| {
                        kernels.combine_packed(&rows, &sources, outs, length)
                    });
                    assert!(made == expected, "packed, {name}");
                    let made = skewed(&skews, length, |outs| {
                        kernels.combine_scattered(&rows, &sources, outs)
                    });
                    assert!(made == expected, "{name}");
                }
            }
        }
    }

    #[test]
    fn large_outs_are_the_same_past_the_caches() {
        let length = PAST_CACHE_MIN / 2 + 77;
        let bytes: Vec<u8> = (0..3 * length).map(|i| (i * 7 + i / 251) as u8).collect();
        let sources: Vec<&[u8]> = bytes.chunks(length).collect();
        let rows: [&[u8]; 2] = [&[3, 1, 200], &[0, 77, 5]];
        let oracle = Kernels::new(Isa::Scalar).unwrap();
        let expected = skewed(&[0; 2], length, |outs| {
            oracle.combine_packed(&rows, &sources, outs, length)
        });
        for kernels in Kernels::available() {
            for skews in [[0, 0], [1, 1], [63, 63], [0, 1]] {
                let made = skewed(&skews, length, |outs| {
                    let before = before_line(outs);
                    assert_eq!(
                        before,
                        (skews[0] == skews[1]).then_some((64 - skews[0]) % 64)
                    );
                    kernels.combine_scattered(&rows, &sources, outs);
                });
                assert!(made == expected, "{kernels:?}, {skews:?}");
            }
        }
    }

    #[test]
    fn rows_are_sparse_by_what_is_not_zero() {
        let row = |weight: usize| (0..64).map(|i| u8::from(i < weight)).collect::<Vec<u8>>();
        let (light, least, heavy) = (row(1), row(64 / SPARSE_FROM), row(64));
        assert!(
            are_sparse(&[&least, &least])
                && are_sparse(&[&light, &least])
                && !are_sparse(&[&light, &heavy])
        );
    }

    #[test]
    fn parts_tile_a_block() {
        for block_bytes in (0..2000).chain([4096, 4097, 16_384]) {
            for count in [1, 2, 3, 7, 16, 70] {
                let mut next = 0;
                for part in (0..count).map(|index| part(block_bytes, index, count)) {
                    assert_eq!(part.start, next);
                    assert!(
                        part.is_empty()
                            || Columns::new(block_bytes)
                                .iter()
                                .any(|column| column.start() == part.start)
                    );
                    next = part.end;
                }
                assert_eq!(next, block_bytes, "in {count} parts");
            }
        }
    }

    #[test]
    fn parts_make_what_the_whole_makes() {
        let (n, rows) = (
            9,
            [
                [3; 9],
                [0, 1, 2, 3, 255, 5, 6, 7, 8],
                [0; 9],
                [1; 9],
                [77; 9],
            ],
        );
        let rows = rows.each_ref().map(<[u8; 9]>::as_slice);
        for kernels in Kernels::available() {
            for block_bytes in [1, 65, 257, 1088, 1500] {
                let bytes: Vec<u8> = (0..n * block_bytes)
                    .map(|i| (i * 7 + i / 251) as u8)
                    .collect();
                let panel = Panel::of(&bytes, n, block_bytes);
                let (mut whole, mut parted) =
                    (vec![0; 5 * block_bytes], vec![0xEE; 5 * block_bytes]);
                kernels.combine(
                    &rows,
                    &panel,
                    &mut whole.chunks_exact_mut(block_bytes).collect::<Vec<_>>(),
                );
                for bytes in (0..3).map(|index| part(block_bytes, index, 3)) {
                    let outs = parted
                        .chunks_exact_mut(block_bytes)
                        .map(|block| &mut block[bytes.clone()]);
                    kernels.combine_part(
                        &rows,
                        &panel,
                        bytes.clone(),
                        &mut outs.collect::<Vec<_>>(),
                    );
                }
                assert_eq!(whole, parted, "{kernels:?} {block_bytes}");
                for bytes in (0..2).map(|index| part(block_bytes, index, 2)) {
                    let outs = parted
                        .chunks_exact_mut(block_bytes)
                        .map(|block| &mut block[bytes.clone()]);
                    kernels.combine_sparse(
                        &rows,
                        &panel,
                        bytes.clone(),
                        &mut outs.collect::<Vec<_>>(),
                    );
                }
                assert_eq!(whole, parted, "sparse, {kernels:?} {block_bytes}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "bytes 64..200 of 1088")]
    fn a_part_begins_with_a_column() {
        let panel = Panel::new(1, 1088);
        Kernels::detect().combine_part(&[&[1]], &panel, 64..200, &mut [&mut [0; 136]]);
    }

    #[test]
    fn blocks_come_out_as_they_went_in() {
        for block_bytes in [1, 63, 64, 65, 255, 256, 257, 1088, 4096] {
            let bytes: Vec<u8> = (0..3 * block_bytes)
                .map(|i| (i * 7 + i / 251) as u8)
                .collect();
            let panel = Panel::of(&bytes[..3 * block_bytes - block_bytes / 2], 3, block_bytes);
            let mut block = vec![0xAA; block_bytes];
            for (index, expected) in bytes.chunks(block_bytes).enumerate() {
                panel.copy_to(index, &mut block);
                let kept = if index == 2 {
                    block_bytes - block_bytes / 2
                } else {
                    block_bytes
                };
                assert_eq!(block[..kept], expected[..kept]);
                assert!(block[kept..].iter().all(|&byte| byte == 0));
            }
        }
    }
}
