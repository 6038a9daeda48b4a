//! Timing, poisoning and reading: what all jobs of a lab do with a card.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::result;
use ncserverd::device::Error;
use ncserverd::device::cuda::card::Card;
use ncserverd::device::cuda::driver::{Buffer, Context, Event, Fault, Named, Stream};

/// Measures time on a stream with the card's own events.
pub(super) struct Clock {
    start: Event,
    stop: Event,
}

impl Clock {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        Ok(Self {
            start: Event::new(context)?,
            stop: Event::new(context)?,
        })
    }

    /// Starts the time: it covers later work on this stream.
    pub(super) fn begin(&self, stream: &Stream) -> Result<(), Fault> {
        self.start.record(stream)
    }

    /// Makes later work on another stream wait for the start.
    pub(super) fn hold(&self, stream: &Stream) -> Result<(), Fault> {
        self.start.hold(stream)
    }

    /// Waits for all work on the stream. Returns the time since the start.
    pub(super) fn end(&self, stream: &Stream) -> Result<Duration, Fault> {
        self.stop.record(stream)?;
        stream.synchronize()?;
        self.stop.since(&self.start)
    }
}

/// The host's time for work that is put on streams, until it is done. The streams are waited for
/// even if a step fails, so that nothing uses their memory any more.
pub(super) fn elapsed<H>(
    host: &mut H,
    work: impl FnOnce(&mut H) -> Result<(), Error>,
    wait: impl FnOnce(&H) -> Result<(), Fault>,
) -> Result<Duration, Error> {
    let start = Instant::now();
    let result = work(host);
    let waited = wait(host);
    let elapsed = start.elapsed();
    result?;
    waited?;
    Ok(elapsed)
}

/// Memory with these bytes on a card, whose context must be current.
pub(super) fn filled(card: &Card, bytes: &[u8]) -> Result<Buffer, Fault> {
    let buffer = Buffer::new(&card.context, bytes.len())?;
    buffer.write(bytes)?;
    Ok(buffer)
}

/// Fills a buffer that no work under way uses with a pattern that no job makes.
pub(super) fn poison(buffer: &Buffer, stream: &Stream) -> Result<(), Fault> {
    poison_from(buffer, 0, stream)
}

/// The same from `at` on.
pub(super) fn poison_from(buffer: &Buffer, at: usize, stream: &Stream) -> Result<(), Fault> {
    assert!(at <= buffer.len(), "from {at} on of {}", buffer.len());
    // SAFETY: inside of the buffer, as has been asserted.
    unsafe {
        result::memset_d8_async(
            buffer.address() + at as u64,
            POISON,
            buffer.len() - at,
            stream.raw,
        )
    }
    .named("cuMemsetD8Async")
}

/// Reads bytes from `at` on. Work that writes them must have been waited for.
pub(super) fn read(buffer: &Buffer, at: usize, bytes: &mut [u8]) -> Result<(), Fault> {
    assert!(
        at + bytes.len() <= buffer.len(),
        "{} bytes from {at} on of {}",
        bytes.len(),
        buffer.len()
    );
    // SAFETY: inside of the buffer, as has been asserted.
    unsafe { result::memcpy_dtoh_sync(bytes, buffer.address() + at as u64) }.named("cuMemcpyDtoH")
}

/// The pattern.
pub(super) const POISON: u8 = 0xA5;
