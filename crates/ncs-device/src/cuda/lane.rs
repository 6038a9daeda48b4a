//! The resources of one launch: a stream, and memory for its rows, its blocks and its upload.

use std::ptr;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use super::card::Card;
use super::driver::{Address, Buffer, Event, Fault, Named, Pinned, Stream};
use super::plan::Run;

/// A stream with its memory. It is reused when its work is done.
#[derive(Debug)]
pub(super) struct BatchLane {
    pub(super) stream: Stream,
    /// Before the first kernel, after the last kernel, after the last copy.
    begun: Event,
    computed: Event,
    done: Event,
    /// Replaces the last two if nothing is copied: small launches end sooner without the GPU's
    /// clock.
    stored: Event,
    begun_at: Instant,
    copies: bool,
    /// Coded blocks, contiguous.
    pub(super) out: Buffer,
    /// Coefficients in the kernel's form.
    pub(super) rows: Buffer,
    upload: Buffer,
    upload_host: Pinned,
    uploaded: usize,
    /// Memory for blocks whose slots are not pinned; allocated at first use.
    bounce: Option<Pinned>,
}

impl BatchLane {
    pub(super) fn new(
        card: &Card,
        out_bytes: usize,
        row_bytes: usize,
        upload_bytes: usize,
    ) -> Result<Self, Fault> {
        let context = &card.context;
        Ok(Self {
            stream: Stream::new(context)?,
            begun: Event::new(context)?,
            computed: Event::new(context)?,
            done: Event::new(context)?,
            stored: Event::untimed(context)?,
            begun_at: Instant::now(),
            copies: false,
            out: Buffer::new(context, out_bytes)?,
            rows: Buffer::new(context, row_bytes)?,
            upload: Buffer::new(context, upload_bytes)?,
            upload_host: Pinned::new(context, upload_bytes)?,
            uploaded: 0,
            bounce: None,
        })
    }

    /// Begins a launch, with copies after its kernels or without, and an empty upload.
    pub(super) fn begin(&mut self, copies: bool) -> Result<(), Fault> {
        (self.uploaded, self.copies, self.begun_at) = (0, copies, Instant::now());
        if copies {
            self.begun.record(&self.stream)
        } else {
            Ok(())
        }
    }

    /// Adds bytes to the upload. Returns their device address, a multiple of 16.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Address {
        let start = self.uploaded.next_multiple_of(16);
        self.upload_host[start..start + bytes.len()].copy_from_slice(bytes);
        self.uploaded = start + bytes.len();
        self.upload.address() + start as u64
    }

    /// Sends the upload.
    pub(super) fn send(&self) -> Result<(), Fault> {
        if self.uploaded == 0 {
            return Ok(());
        }
        // SAFETY: both buffers live as long as the lane, whose work is waited for before it is
        // dropped, and nothing writes to the host's side before the lane is used again.
        unsafe {
            result::memcpy_htod_async(
                self.upload.address(),
                &self.upload_host[..self.uploaded],
                self.stream.raw,
            )
        }
        .named("cuMemcpyHtoDAsync")
    }

    /// Marks the end of the kernels.
    pub(super) fn mark_computed(&self) -> Result<(), Fault> {
        self.computed.record(&self.stream)
    }

    /// Marks the end of everything.
    pub(super) fn mark_done(&self) -> Result<(), Fault> {
        let event = if self.copies {
            &self.done
        } else {
            &self.stored
        };
        event.record(&self.stream)
    }

    /// Whether all its work is done.
    pub(super) fn is_done(&self) -> Result<bool, Fault> {
        let event = if self.copies {
            &self.done
        } else {
            &self.stored
        };
        event.is_done()
    }

    /// Times of the kernels and of the copies, once all work is done. They come from the GPU's
    /// clock, or from the host's if nothing was copied.
    pub(super) fn times(&self) -> Result<(Duration, Duration), Fault> {
        if !self.copies {
            return Ok((self.begun_at.elapsed(), Duration::ZERO));
        }
        Ok((
            self.computed.since(&self.begun)?,
            self.done.since(&self.computed)?,
        ))
    }

    /// Copies contiguous blocks of `k` bytes, from `offset` in the lane's blocks on, to a run of
    /// pinned slots.
    ///
    /// # Safety
    /// The slots are pinned, and nothing else uses them until the stream is done.
    pub(super) unsafe fn copy_to_run(
        &self,
        offset: usize,
        k: usize,
        run: &Run,
    ) -> Result<(), Fault> {
        // SAFETY: the source is inside `out`; the caller promises the destination.
        unsafe { copy_run(self.out.address() + offset as u64, k, k, run, &self.stream) }
    }

    /// Copies the first `bytes` bytes of the lane's blocks to its own pinned memory.
    pub(super) fn copy_to_bounce(&mut self, card: &Card, bytes: usize) -> Result<(), Fault> {
        if self.bounce.is_none() {
            self.bounce = Some(Pinned::new(&card.context, self.out.len())?);
        }
        let bounce = self.bounce.as_mut().expect("it was made a line ago");
        // SAFETY: both live as long as the lane, and nobody reads before the stream is done.
        unsafe {
            result::memcpy_dtoh_async(&mut bounce[..bytes], self.out.address(), self.stream.raw)
        }
        .named("cuMemcpyDtoHAsync")
    }

    /// The bytes copied there.
    pub(super) fn bounced(&self) -> &[u8] {
        self.bounce.as_deref().unwrap_or_default()
    }
}

/// Copies blocks of `k` bytes, `pitch` apart, to a run of slots.
///
/// # Safety
/// That many blocks are there, the slots are pinned, and nothing else uses either until the stream
/// is done.
pub(super) unsafe fn copy_run(
    from: Address,
    pitch: usize,
    k: usize,
    run: &Run,
    stream: &Stream,
) -> Result<(), Fault> {
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: ptr::null(),
        srcDevice: from,
        srcArray: ptr::null_mut(),
        srcPitch: pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: run.start as *mut _,
        dstDevice: 0,
        dstArray: ptr::null_mut(),
        dstPitch: run.pitch,
        WidthInBytes: k,
        Height: run.count,
    };
    // SAFETY: the caller's promise.
    unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, stream.raw) }
        .result()
        .named("cuMemcpy2DAsync")
}
