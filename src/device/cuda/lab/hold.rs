//! The part of a card that is taken away.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::super::card::Card;
use super::super::driver::{Context, Fault, Pinned, Stream};
use super::super::image::Image;
use super::super::launch::{self, Grid};

/// Multiprocessors that are kept busy until this is dropped.
pub(super) struct Hold {
    stream: Stream,
    words: Pinned,
    context: Arc<Context>,
}

impl Hold {
    /// Takes so many of them.
    pub(super) fn take(card: &Card, count: u32) -> Result<Self, Fault> {
        let words = Pinned::new(&card.context, 2 * WORD)?;
        let stream = Stream::new(&card.context)?;
        let function = card.function(Image::Hold, "nc_hold", card.shared_bytes)?;
        let addresses = (words.address(), words.address() + WORD as u64);
        // SAFETY: the words live until the stream has been waited for, in `drop`.
        unsafe { launch::hold(function, Grid::line(count, 32, card.shared_bytes), addresses, LONGEST_NS, &stream) }?;
        let hold = Self { stream, words, context: Arc::clone(&card.context) };
        let start = Instant::now();
        while hold.arrived() < count {
            if start.elapsed() > PATIENCE {
                return Err(Fault::Driver(format!("{} of {count} multiprocessors could be kept busy", hold.arrived())));
            }
            thread::yield_now();
        }
        Ok(hold)
    }

    fn arrived(&self) -> u32 {
        // SAFETY: four aligned bytes of the words, which the device changes: hence volatile.
        unsafe { self.words.as_ptr().add(WORD).cast::<u32>().read_volatile() }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // SAFETY: four aligned bytes of the words, which the device reads.
        unsafe { self.words.as_mut_ptr().cast::<u32>().write_volatile(1) };
        let _ = self.context.bind();
        let _ = self.stream.synchronize();
    }
}

/// Bytes from one word to the next: a line of its own for each.
const WORD: usize = 128;
/// What ends the wait if this process does not.
const LONGEST_NS: u64 = 20_000_000_000;
const PATIENCE: Duration = Duration::from_secs(2);
