//! Dense systems on a card: it inverts matrices of one order, and sums of rows of the inverses
//! multiply symbols.
//!
//! A matrix that fits into shared memory is inverted there by one thread block
//! (`kernels/invert.cu`). Larger matrices, one or many, are inverted by the whole card
//! (`kernels/wide.cu`). Intermediate results stay in the card's memory.
//!
//! [`Calculator`] serves decoders: it takes systems from host memory, one at a time, and returns
//! the results there.

use std::sync::{Mutex, PoisonError};

use cudarc::driver::result;
use ncs_gf::dense::{Algebra, Failed, System, check_rows};

use super::card::{Card, bytes_of, number};
use super::driver::{Address, Buffer, Fault, Named, Stream};
use super::inversion::Inverter;
use super::launch::{self, Grid};
use crate::Field;
use crate::abi::{self, define};

/// The common shape of systems that are solved at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Rows of a matrix.
    pub order: usize,
    /// Number of matrices.
    pub count: usize,
    /// Symbols wanted of each system.
    pub wanted: usize,
    /// Terms of the sums of all systems.
    pub terms: usize,
    pub symbol_bytes: usize,
}

impl Shape {
    /// Bytes from one row of a matrix to the next.
    pub const fn pitch(&self) -> usize {
        self.order.next_multiple_of(abi::ROW_ALIGN)
    }

    /// Bytes from one symbol to the next.
    pub const fn symbol_pitch(&self) -> usize {
        self.symbol_bytes.next_multiple_of(SYMBOL_ALIGN)
    }

    pub const fn matrix_bytes(&self) -> usize {
        self.order * self.pitch()
    }

    /// Bytes of the symbols that belong to a matrix's rows.
    pub const fn symbols_bytes(&self) -> usize {
        self.order * self.symbol_pitch()
    }

    /// Bytes of the symbols that are wanted of a system.
    pub const fn made_bytes(&self) -> usize {
        self.wanted * self.symbol_pitch()
    }

    const fn padded(&self) -> usize {
        self.order.next_multiple_of(PANEL)
    }
}

/// Addresses of everything on the card.
#[derive(Debug, Clone, Copy, Default)]
pub struct Places {
    /// Matrices, with rows [`Shape::pitch`] apart.
    pub matrices: Address,
    pub inverses: Address,
    /// Working memory of inverting: see `nc_wide`.
    work: Address,
    factors: Address,
    pivots: Address,
    found: Address,
    order: Address,
    column_of: Address,
    tasks: Address,
    /// Four bytes per matrix.
    pub status: Address,
    /// Four bytes each: the terms of all sums, and where each sum ends.
    pub terms: Address,
    pub ends: Address,
    rows: Address,
    /// Symbols [`Shape::symbol_pitch`] apart, one for each row of a matrix.
    pub symbols: Address,
    /// The wanted symbols.
    pub made: Address,
}

impl Places {
    /// Lays everything out from `start` on. Also returns the bytes that this takes.
    pub fn new(shape: &Shape, way: &Inversion, start: Address) -> (Self, usize) {
        let mut end = 0;
        let mut take = |bytes: usize| {
            let at = start + end as u64;
            end += bytes.next_multiple_of(PLACE_ALIGN);
            at
        };
        let (count, padded) = (shape.count, shape.padded());
        let wide = |bytes: usize| {
            if matches!(way, Inversion::Wide) {
                count * bytes
            } else {
                0
            }
        };
        let places = Self {
            matrices: take(count * shape.matrix_bytes()),
            inverses: take(count * shape.matrix_bytes()),
            work: take(wide(padded * padded)),
            factors: take(wide(padded * PANEL)),
            pivots: take(wide(padded * PANEL)),
            found: take(wide(PANEL * PANEL)),
            order: take(wide(2 * padded)),
            column_of: take(wide(2 * padded)),
            tasks: take(count * size_of::<abi::InvertTask>()),
            status: take(4 * count),
            terms: take(4 * shape.terms),
            ends: take(4 * count * shape.wanted),
            rows: take(count * shape.wanted * shape.pitch()),
            symbols: take(count * shape.symbols_bytes()),
            made: take(count * shape.made_bytes()),
        };
        (places, end)
    }
}

/// How matrices are inverted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inversion {
    /// Each matrix by one thread block.
    Block(Inverter),
    /// All matrices by the whole card.
    Wide,
}

impl Inversion {
    /// Chooses a thread block per matrix, as long as shared memory holds the matrix.
    pub fn of(order: usize, card: &Card) -> Self {
        let small = u32::try_from(order)
            .ok()
            .and_then(|order| Inverter::shared(order, card));
        small
            .filter(|_| order <= SHARED_MAX)
            .map_or(Self::Wide, Self::Block)
    }
}

/// Systems of one shape in these places.
#[derive(Debug, Clone, Copy)]
pub struct Systems<'a> {
    pub card: &'a Card,
    pub shape: Shape,
    pub way: Inversion,
    pub places: Places,
}

impl Systems<'_> {
    /// Writes what inverting reads besides the matrices, and waits.
    pub fn prepare(&self) -> Result<(), Fault> {
        if let Inversion::Block(_) = self.way {
            let task = |index: usize| {
                let offset = (index * self.shape.matrix_bytes()) as u64;
                abi::InvertTask {
                    matrix: self.places.matrices + offset,
                    inverse: self.places.inverses + offset,
                    status: self.places.status + 4 * index as u64,
                    n: number(self.shape.order),
                    pitch: number(self.shape.pitch()),
                }
            };
            let tasks: Vec<u8> = (0..self.shape.count)
                .flat_map(|index| bytes_of(&task(index)).to_vec())
                .collect();
            // SAFETY: the place is that large.
            unsafe { upload(self.places.tasks, &tasks) }?;
        }
        Ok(())
    }

    /// Begins to invert all matrices.
    ///
    /// # Safety
    /// The places are laid out for this shape, in memory that stays allocated until the stream has
    /// passed this. Nothing else uses that memory meanwhile, and [`prepare`](Self::prepare) has
    /// been called.
    pub unsafe fn invert(&self, stream: &Stream) -> Result<(), Fault> {
        let (places, count) = (&self.places, number(self.shape.count));
        let Inversion::Block(inverter) = self.way else {
            // SAFETY: as the caller promises.
            return unsafe { self.invert_wide(stream) };
        };
        // SAFETY: the tasks describe these matrices, as `prepare` has written them.
        unsafe { inverter.launch(self.card, places.tasks, count, stream) }
    }

    /// # Safety
    /// The conditions of [`invert`](Self::invert).
    unsafe fn invert_wide(&self, stream: &Stream) -> Result<(), Fault> {
        let (shape, places, padded) = (&self.shape, &self.places, number(self.shape.padded()));
        let count = number(shape.count);
        let tiles = tiles(padded, count, self.card.sms);
        let mut wide = abi::Wide {
            matrices: places.matrices,
            inverses: places.inverses,
            work: places.work,
            factors: places.factors,
            pivots: places.pivots,
            found: places.found,
            order: places.order,
            column_of: places.column_of,
            status: places.status,
            n: number(shape.order),
            pitch: number(shape.pitch()),
            count,
            first: 0,
            tiles,
            reserved: 0,
        };
        let grid = |blocks: u32, shared_bytes: u32| Grid {
            blocks: (blocks, count, 1),
            threads: THREADS,
            shared_bytes,
        };
        let begin = grid((padded * padded / 4).div_ceil(THREADS * WORDS_A_THREAD), 0);
        let update = grid(
            padded.div_ceil(ROWS) * (padded / PANEL_U32).div_ceil(tiles),
            0,
        );
        // SAFETY: the places are as large as `nc_wide` says for this order, the grids are those of
        // `nc_abi.h`, and the caller keeps the memory.
        unsafe {
            launch::wide(self.card, "nc_wide_begin", begin, &wide, stream)?;
            for first in (0..padded).step_by(PANEL) {
                wide.first = first;
                launch::wide(self.card, "nc_wide_factor", grid(1, 0), &wide, stream)?;
                launch::wide(
                    self.card,
                    "nc_wide_panel",
                    grid(padded.div_ceil(THREADS), 0),
                    &wide,
                    stream,
                )?;
                launch::wide(self.card, "nc_wide_update", update, &wide, stream)?;
            }
            launch::wide(
                self.card,
                "nc_wide_arrange",
                grid(wide.n, padded),
                &wide,
                stream,
            )
        }
    }

    /// Begins to compute the wanted symbols from inverses and symbols.
    ///
    /// # Safety
    /// The conditions of [`invert`](Self::invert), and terms and ends describe sums of rows of the
    /// matrices.
    pub unsafe fn multiply(&self, stream: &Stream) -> Result<(), Fault> {
        let (shape, places) = (&self.shape, &self.places);
        if shape.wanted == 0 || shape.symbol_bytes == 0 {
            return Ok(());
        }
        let rows_bytes = shape.wanted * shape.pitch();
        let sums = abi::WideSums {
            from: places.inverses,
            out: places.rows,
            terms: places.terms,
            ends: places.ends,
            from_step: shape.matrix_bytes() as u64,
            out_step: rows_bytes as u64,
            rows: number(shape.wanted),
            pitch: number(shape.pitch()),
        };
        let product = abi::WideProduct {
            left: places.rows,
            right: places.symbols,
            out: places.made,
            left_step: rows_bytes as u64,
            right_step: shape.symbols_bytes() as u64,
            out_step: shape.made_bytes() as u64,
            rows: number(shape.wanted),
            inner: number(shape.order),
            columns: number(shape.symbol_pitch()),
            left_pitch: number(shape.pitch()),
            right_pitch: number(shape.symbol_pitch()),
            out_pitch: number(shape.symbol_pitch()),
            adds: 0,
            reserved: 0,
        };
        let grid = Grid {
            blocks: (sums.rows, number(shape.count), 1),
            threads: THREADS,
            shared_bytes: 0,
        };
        // SAFETY: as the caller promises; the places are as large as these say.
        unsafe {
            launch::wide(self.card, "nc_wide_sum", grid, &sums, stream)?;
            multiply(self.card, &product, shape.count, stream)
        }
    }
}

/// Begins `count` products.
///
/// # Safety
/// The task's matrices are as large as it says, in memory that stays allocated until the stream has
/// passed this, and nothing else writes there.
pub unsafe fn multiply(
    card: &Card,
    product: &abi::WideProduct,
    count: usize,
    stream: &Stream,
) -> Result<(), Fault> {
    let blocks = product.rows.div_ceil(ROWS) * product.columns.div_ceil(COLUMNS);
    let grid = Grid {
        blocks: (blocks, number(count), 1),
        threads: THREADS,
        shared_bytes: 0,
    };
    // SAFETY: the grid is that of `nc_abi.h`; the rest is the caller's promise.
    unsafe { launch::wide(card, "nc_wide_multiply", grid, product, stream) }
}

/// Tiles that a thread block computes side by side. More tiles share the block's first step, the
/// expansion of factors; but every multiprocessor needs some blocks.
fn tiles(padded: u32, count: u32, sms: u32) -> u32 {
    let (down, across) = (padded.div_ceil(ROWS) * count, padded / PANEL_U32);
    let blocks_across = (BLOCKS_A_SM * sms)
        .div_ceil(down.max(1))
        .clamp(1, across.max(1));
    across.div_ceil(blocks_across).clamp(1, TILES_MAX)
}

/// Solves systems from host memory, one at a time, in memory that it keeps for the next.
#[derive(Debug)]
pub struct Calculator {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    stream: Stream,
    memory: Option<Buffer>,
    card: Card,
}

impl Calculator {
    /// Opens the GPU with this number.
    pub fn open(ordinal: u16) -> Result<Self, Fault> {
        let card = Card::open(ordinal, Field::Standard)?;
        let inner = Inner {
            stream: Stream::new(&card.context)?,
            memory: None,
            card,
        };
        Ok(Self {
            inner: Mutex::new(inner),
        })
    }

    fn ask<T>(&self, ask: impl FnOnce(&mut Inner) -> Result<T, Fault>) -> Result<T, Failed> {
        // Poisoning is harmless: the next call overwrites this memory before use.
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let result = inner.card.context.bind().and_then(|()| ask(&mut inner));
        result.map_err(|fault| Failed(fault.to_string()))
    }
}

impl Algebra for Calculator {
    fn solve(&self, system: &System<'_>, outs: &mut [&mut [u8]]) -> Result<bool, Failed> {
        system.check(outs);
        self.ask(|inner| inner.solve(system, outs))
    }

    fn multiply(
        &self,
        rows: &[&[u8]],
        symbols: &[Option<&[u8]>],
        outs: &mut [&mut [u8]],
    ) -> Result<(), Failed> {
        check_rows(rows, symbols, outs);
        let Some(symbol_bytes) = outs.first().map(|out| out.len()) else {
            return Ok(());
        };
        if symbols.is_empty() {
            outs.iter_mut().for_each(|out| out.fill(0));
            return Ok(());
        }
        self.ask(|inner| inner.multiply(rows, symbols, symbol_bytes, outs))
    }
}

impl Inner {
    fn solve(&mut self, system: &System<'_>, outs: &mut [&mut [u8]]) -> Result<bool, Fault> {
        let shape = Shape {
            order: system.order,
            count: 1,
            wanted: outs.len(),
            terms: system.sums.iter().map(Vec::len).sum(),
            symbol_bytes: outs.first().map_or(0, |out| out.len()),
        };
        if shape.order > ORDER_MAX {
            return Err(Fault::Driver(format!(
                "matrices of {ORDER_MAX} rows at most"
            )));
        }
        let way = Inversion::of(shape.order, &self.card);
        let (_, bytes) = Places::new(&shape, &way, 0);
        let (places, _) = Places::new(
            &shape,
            &way,
            Buffer::reserve(&mut self.memory, &self.card.context, bytes)?,
        );
        let systems = Systems {
            card: &self.card,
            shape,
            way,
            places,
        };
        systems.prepare()?;
        let (terms, ends) = terms_and_ends(system.sums);
        // SAFETY: all places are as large as the shape says and inside the memory, which nothing
        // uses: every call waits for its work.
        unsafe {
            upload(
                places.matrices,
                &spaced(
                    system.matrix.chunks_exact(shape.order).map(Some),
                    shape.pitch(),
                ),
            )?;
            upload(places.terms, &terms)?;
            upload(places.ends, &ends)?;
            upload(
                places.symbols,
                &spaced(system.symbols.iter().copied(), shape.symbol_pitch()),
            )?;
            systems.invert(&self.stream)?;
            systems.multiply(&self.stream)?;
        }
        self.stream.synchronize()?;
        let mut status = [0; 4];
        // SAFETY: four bytes are there.
        unsafe { download(&mut status, places.status) }?;
        if u32::from_le_bytes(status) == 0 {
            return Ok(false);
        }
        // SAFETY: that many symbols are there.
        unsafe { download_symbols(places.made, shape.symbol_pitch(), outs) }?;
        Ok(true)
    }

    fn multiply(
        &mut self,
        rows: &[&[u8]],
        symbols: &[Option<&[u8]>],
        symbol_bytes: usize,
        outs: &mut [&mut [u8]],
    ) -> Result<(), Fault> {
        let (inner, pitch) = (symbols.len(), symbol_bytes.next_multiple_of(SYMBOL_ALIGN));
        let left_pitch = inner.next_multiple_of(abi::ROW_ALIGN);
        let left = spaced(rows.iter().copied().map(Some), left_pitch);
        let right = spaced(symbols.iter().copied(), pitch);
        let (left_bytes, right_bytes) = (
            left.len().next_multiple_of(PLACE_ALIGN),
            right.len().next_multiple_of(PLACE_ALIGN),
        );
        let at = Buffer::reserve(
            &mut self.memory,
            &self.card.context,
            left_bytes + right_bytes + outs.len() * pitch,
        )?;
        let product = abi::WideProduct {
            left: at,
            right: at + left_bytes as u64,
            out: at + (left_bytes + right_bytes) as u64,
            left_step: 0,
            right_step: 0,
            out_step: 0,
            rows: number(rows.len()),
            inner: number(inner),
            columns: number(pitch),
            left_pitch: number(left_pitch),
            right_pitch: number(pitch),
            out_pitch: number(pitch),
            adds: 0,
            reserved: 0,
        };
        // SAFETY: the memory is that large, and nothing uses it: every call waits for its work.
        unsafe {
            upload(product.left, &left)?;
            upload(product.right, &right)?;
            multiply(&self.card, &product, 1, &self.stream)?;
        }
        self.stream.synchronize()?;
        // SAFETY: that many symbols are there.
        unsafe { download_symbols(product.out, pitch, outs) }
    }
}

/// Copies rows to places `pitch` bytes apart. A missing row becomes zeros, and so do the bytes
/// behind a row.
pub fn spaced<'a>(rows: impl ExactSizeIterator<Item = Option<&'a [u8]>>, pitch: usize) -> Vec<u8> {
    let mut bytes = vec![0; rows.len() * pitch];
    for (place, row) in bytes.chunks_exact_mut(pitch.max(1)).zip(rows) {
        row.into_iter()
            .for_each(|row| place[..row.len()].copy_from_slice(row));
    }
    bytes
}

/// The terms of all sums in the card's format, and where each sum ends.
pub fn terms_and_ends<'a>(sums: impl IntoIterator<Item = &'a Vec<u32>>) -> (Vec<u8>, Vec<u8>) {
    let (mut terms, mut ends, mut end) = (Vec::new(), Vec::new(), 0_u32);
    for sum in sums {
        terms.extend(sum.iter().copied().flat_map(u32::to_le_bytes));
        end += number(sum.len());
        ends.extend(end.to_le_bytes());
    }
    (terms, ends)
}

/// Copies bytes to the card, and waits for the copy.
///
/// # Safety
/// The card's memory has room for the bytes at this address, and nothing uses it.
pub unsafe fn upload(to: Address, bytes: &[u8]) -> Result<(), Fault> {
    if bytes.is_empty() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { result::memcpy_htod_sync(to, bytes) }.named("cuMemcpyHtoD")?;
    // The copy returns when the bytes are in the driver's own memory, and our streams do not wait
    // for the default one.
    // SAFETY: null is the default stream of the context that is current.
    unsafe { result::stream::synchronize(std::ptr::null_mut()) }.named("cuStreamSynchronize")
}

/// # Safety
/// That many bytes are at this address, and their writer has been waited for.
pub unsafe fn download(bytes: &mut [u8], from: Address) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe { result::memcpy_dtoh_sync(bytes, from) }.named("cuMemcpyDtoH")
}

/// # Safety
/// As many symbols as `outs` are at this address, `pitch` bytes apart, and their writer has been
/// waited for.
unsafe fn download_symbols(
    from: Address,
    pitch: usize,
    outs: &mut [&mut [u8]],
) -> Result<(), Fault> {
    if outs.is_empty() {
        return Ok(());
    }
    let mut bytes = vec![0; outs.len() * pitch];
    // SAFETY: the caller's promise.
    unsafe { download(&mut bytes, from) }?;
    outs.iter_mut()
        .zip(bytes.chunks_exact(pitch))
        .for_each(|(out, symbol)| out.copy_from_slice(&symbol[..out.len()]));
    Ok(())
}

/// Maximum rows of a matrix.
pub const ORDER_MAX: usize = define("NC_WIDE_MAX") as usize;
const SHARED_MAX: usize = define("NC_INVERT_SHARED_MAX") as usize;
const PANEL_U32: u32 = define("NC_WIDE_PANEL");
const PANEL: usize = PANEL_U32 as usize;
const THREADS: u32 = define("NC_WIDE_THREADS");
const ROWS: u32 = define("NC_WIDE_ROWS");
const COLUMNS: u32 = define("NC_WIDE_COLUMNS");
const SYMBOL_ALIGN: usize = 16;
const PLACE_ALIGN: usize = 256;
/// Words that a thread copies in the first step of an inversion.
const WORDS_A_THREAD: u32 = 8;
/// Thread blocks of an update per multiprocessor: two at once, twice.
const BLOCKS_A_SM: u32 = 4;
/// With this many tiles, expanding the factors is one twentieth of a block's work.
const TILES_MAX: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_one_behind_the_other() {
        let shape = Shape {
            order: 33,
            count: 3,
            wanted: 5,
            terms: 17,
            symbol_bytes: 20,
        };
        assert_eq!(
            (shape.pitch(), shape.symbol_pitch(), shape.padded()),
            (48, 32, 64)
        );
        let (places, bytes) = Places::new(&shape, &Inversion::Wide, 1 << 20);
        let starts = [
            places.matrices,
            places.inverses,
            places.work,
            places.factors,
            places.pivots,
            places.found,
            places.order,
            places.column_of,
            places.tasks,
            places.status,
            places.terms,
            places.ends,
            places.rows,
            places.symbols,
            places.made,
        ];
        let sizes = [
            3 * 33 * 48,
            3 * 33 * 48,
            3 * 64 * 64,
            3 * 64 * 32,
            3 * 64 * 32,
            3 * 1024,
            3 * 128,
            3 * 128,
            3 * 32,
            12,
            68,
            60,
            15 * 48,
            99 * 32,
            15 * 32,
        ];
        assert_eq!(starts[0], 1 << 20);
        for (index, size) in sizes.into_iter().enumerate() {
            let next = starts
                .get(index + 1)
                .copied()
                .unwrap_or((1 << 20) + bytes as u64);
            assert!(
                next - starts[index] >= size
                    && next - starts[index] < size + 256
                    && starts[index] % 256 == 0,
                "place {index}"
            );
        }
    }

    #[test]
    fn every_multiprocessor_has_some_blocks() {
        // 69 x 138 tiles: 8 blocks across each row of blocks.
        assert_eq!(tiles(4416, 1, 132), 18);
        assert_eq!(tiles(32, 1, 132), 1);
        assert_eq!(tiles(640, 1, 132), 1);
        assert_eq!(tiles(2208, 256, 132), TILES_MAX);
        for (padded, count) in [(32, 1), (448, 1), (1024, 3), (4416, 1), (4416, 64)] {
            let tiles = tiles(padded, count, 132);
            assert!((1..=TILES_MAX).contains(&tiles) && tiles <= padded / 32);
        }
    }

    #[test]
    fn sums_are_lists_with_their_ends() {
        let (terms, ends) = terms_and_ends(&[vec![3, 1], vec![], vec![70_000]]);
        let words = |bytes: &[u8]| {
            bytes
                .chunks_exact(4)
                .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (words(&terms), words(&ends)),
            (vec![3, 1, 70_000], vec![2, 2, 3])
        );
    }

    #[test]
    fn rows_are_spaced_with_zeros() {
        let rows: [Option<&[u8]>; 3] = [Some(&[1, 2, 3]), None, Some(&[4])];
        assert_eq!(
            spaced(rows.into_iter(), 4),
            [1, 2, 3, 0, 0, 0, 0, 0, 4, 0, 0, 0]
        );
    }
}
