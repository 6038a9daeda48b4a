//! Coding chunks that pass through a card on one stream. Measurements and file coding share this.

use cudarc::driver::sys;

use super::card::Card;
use super::chunks::{Limits, Shape, Way};
use super::driver::{Address, Fault, Named, Stream};
use super::launch;
use crate::{Error, abi};

/// Code chunks made of n native ones, and the kernel that makes them.
#[derive(Debug, Clone, Copy)]
pub struct ChunkCode {
    pub way: Way,
    pub tile: (u32, u32),
    pub n: usize,
    pub rows: usize,
}

/// Rows of bytes at a constant distance.
#[derive(Debug, Clone, Copy)]
pub struct Side {
    pub start: Address,
    pub pitch: usize,
}

/// Where native chunks are and where code chunks go.
#[derive(Debug, Clone, Copy)]
pub struct Ends {
    pub sources: Side,
    pub out: Side,
}

impl ChunkCode {
    /// The launch for `bytes` bytes of each chunk.
    pub fn shape(&self, card: &Card, bytes: usize) -> Result<Shape, Error> {
        let (n, rows) = (
            u32::try_from(self.n).expect("few"),
            u32::try_from(self.rows).expect("few"),
        );
        let shape = self
            .way
            .shape(&Limits::of(card), n, rows, bytes as u64, self.tile);
        shape.ok_or_else(|| {
            Error::Unavailable(format!(
                "{:?} has no launch for {n} and {rows} chunks",
                self.way
            ))
        })
    }

    /// Codes `bytes` bytes of each chunk, a multiple of 16. Chunks and `matrix` are in the card's
    /// memory.
    ///
    /// # Safety
    /// The chunks and the n coefficients of each row are at these addresses, and nothing else uses
    /// them until the stream is done. Chunks begin at multiples of 16 bytes.
    pub unsafe fn code(
        &self,
        card: &Card,
        matrix: Address,
        chunks: Ends,
        bytes: usize,
        stream: &Stream,
    ) -> Result<(), Error> {
        let Shape {
            entry,
            grid,
            tile,
            groups,
        } = self.shape(card, bytes)?;
        let chunks = abi::Chunks {
            source: chunks.sources.start,
            out: chunks.out.start,
            matrix,
            source_pitch: chunks.sources.pitch as u64,
            out_pitch: chunks.out.pitch as u64,
            bytes: bytes as u64,
            n: u32::try_from(self.n).expect("few"),
            rows: u32::try_from(self.rows).expect("few"),
            tile_rows: tile.0,
            tile_columns: tile.1,
            groups,
            reserved: 0,
        };
        // SAFETY: the caller's promise; the grid is that of these chunks.
        Ok(unsafe { launch::chunks(card, entry, grid, &chunks, stream) }?)
    }

    /// Copies `bytes` bytes of each native chunk to the card, codes them there, and copies as many
    /// bytes of each code chunk back. Without a matrix it only copies.
    ///
    /// # Safety
    /// The conditions of [`ChunkCode::code`] hold for the memory on either side. The card's side
    /// has room for `bytes`, rounded up to 16, of each chunk.
    pub unsafe fn through(
        &self,
        card: &Card,
        matrix: Option<Address>,
        (host, device): (Ends, Ends),
        bytes: usize,
        stream: &Stream,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise, here and below.
        unsafe { copy(device.sources, host.sources, bytes, self.n, stream) }?;
        if let Some(matrix) = matrix {
            // SAFETY: as above. Bytes behind a chunk's last byte only affect bytes behind that of a
            // code chunk, which nobody reads.
            unsafe { self.code(card, matrix, device, bytes.next_multiple_of(16), stream) }?;
        }
        // SAFETY: as above.
        Ok(unsafe { copy(host.out, device.out, bytes, self.rows, stream) }?)
    }
}

/// Copies rows of `bytes` bytes between memory of the host and the card in either direction; both
/// have one address space.
///
/// # Safety
/// Both sides have that many rows, and nothing else uses them until the stream is done.
pub unsafe fn copy(
    to: Side,
    from: Side,
    bytes: usize,
    rows: usize,
    stream: &Stream,
) -> Result<(), Fault> {
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        srcHost: std::ptr::null(),
        srcDevice: from.start,
        srcArray: std::ptr::null_mut(),
        srcPitch: from.pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        dstHost: std::ptr::null_mut(),
        dstDevice: to.start,
        dstArray: std::ptr::null_mut(),
        dstPitch: to.pitch,
        WidthInBytes: bytes,
        Height: rows,
    };
    // SAFETY: the caller's promise.
    unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, stream.raw) }
        .result()
        .named("cuMemcpy2DAsync")
}
