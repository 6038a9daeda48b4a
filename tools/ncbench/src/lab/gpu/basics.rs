//! What all works of a lab do with a card: time, and look at what was made.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::result;
use ncserverd::device::Error;
use ncserverd::device::cuda::card::Card;
use ncserverd::device::cuda::driver::{Buffer, Context, Event, Fault, Named, Stream};

/// Times what is put on a stream, by the card's own events.
pub(super) struct Clock {
    start: Event,
    stop: Event,
}

impl Clock {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        Ok(Self { start: Event::new(context)?, stop: Event::new(context)? })
    }

    /// What comes now on the stream is timed.
    pub(super) fn begin(&self, stream: &Stream) -> Result<(), Fault> {
        self.start.record(stream)
    }

    /// What comes on another stream waits for the beginning.
    pub(super) fn hold(&self, stream: &Stream) -> Result<(), Fault> {
        self.start.hold(stream)
    }

    /// Waits for all that has come on the stream, and tells the time since the beginning.
    pub(super) fn end(&self, stream: &Stream) -> Result<Duration, Fault> {
        self.stop.record(stream)?;
        stream.synchronize()?;
        self.stop.since(&self.start)
    }
}

/// The host's time for work that is put on streams, until these are done: they are waited for whatever has become of it, so that nothing
/// uses its memory any more.
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

/// Memory of a card, whose context is current, with these bytes.
pub(super) fn filled(card: &Card, bytes: &[u8]) -> Result<Buffer, Fault> {
    let buffer = Buffer::new(&card.context, bytes.len())?;
    buffer.write(bytes)?;
    Ok(buffer)
}

/// Fills all of a buffer, which nothing uses that is under way, with a pattern that no work makes.
pub(super) fn poison(buffer: &Buffer, stream: &Stream) -> Result<(), Fault> {
    poison_from(buffer, 0, stream)
}

/// The same from `at` on.
pub(super) fn poison_from(buffer: &Buffer, at: usize, stream: &Stream) -> Result<(), Fault> {
    assert!(at <= buffer.len(), "from {at} on of {}", buffer.len());
    // SAFETY: inside of the buffer, as has been asserted.
    unsafe { result::memset_d8_async(buffer.address() + at as u64, POISON, buffer.len() - at, stream.raw) }
        .named("cuMemsetD8Async")
}

/// Reads bytes of a buffer from `at` on; whoever writes it has been waited for.
pub(super) fn read(buffer: &Buffer, at: usize, bytes: &mut [u8]) -> Result<(), Fault> {
    assert!(at + bytes.len() <= buffer.len(), "{} bytes from {at} on of {}", bytes.len(), buffer.len());
    // SAFETY: inside of the buffer, as has been asserted.
    unsafe { result::memcpy_dtoh_sync(bytes, buffer.address() + at as u64) }.named("cuMemcpyDtoH")
}

/// The pattern.
pub(super) const POISON: u8 = 0xA5;
