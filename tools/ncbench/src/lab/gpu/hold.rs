//! Keeping a part of a card busy.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::result;
use ncserverd::device::cuda::card::Card;
use ncserverd::device::cuda::driver::{Buffer, Context, Fault, Pinned, Stream};
use ncserverd::device::cuda::launch::Grid;

use super::kernels::HOLD;
use super::launch;

/// Multiprocessors that are kept busy until this is dropped.
pub(super) struct Hold {
    stream: Stream,
    /// Carries the release word past the stream that waits for it.
    release: Stream,
    released: Buffer,
    arrived: Pinned,
    context: Arc<Context>,
}

impl Hold {
    /// Keeps `count` multiprocessors busy.
    pub(super) fn take(card: &Card, count: u32) -> Result<Self, Fault> {
        let released = Buffer::new(&card.context, 4)?;
        released.write(&[0; 4])?;
        let arrived = Pinned::new(&card.context, 4)?;
        let (stream, release) = (Stream::new(&card.context)?, Stream::new(&card.context)?);
        let function = card.function(HOLD, "nc_hold", card.shared_bytes)?;
        let addresses = (released.address(), arrived.address());
        // SAFETY: both words live until the stream has been waited for, in `drop`.
        unsafe {
            launch::hold(
                function,
                Grid::line(count, 32, card.shared_bytes),
                addresses,
                LONGEST_NS,
                &stream,
            )
        }?;
        let hold = Self {
            stream,
            release,
            released,
            arrived,
            context: Arc::clone(&card.context),
        };
        let start = Instant::now();
        while hold.arrived() < count {
            if start.elapsed() > PATIENCE {
                return Err(Fault::Driver(format!(
                    "{} of {count} multiprocessors could be kept busy",
                    hold.arrived()
                )));
            }
            thread::yield_now();
        }
        Ok(hold)
    }

    fn arrived(&self) -> u32 {
        // SAFETY: four aligned bytes, which the device changes: hence volatile.
        unsafe { self.arrived.as_ptr().cast::<u32>().read_volatile() }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = self.context.bind();
        // SAFETY: all of the word; what is not pinned is copied before the call returns. If the
        // driver refuses, the kernel ends by itself.
        let _ = unsafe {
            result::memcpy_htod_async(self.released.address(), &[1_u32], self.release.raw)
        };
        let _ = self.release.synchronize();
        let _ = self.stream.synchronize();
    }
}

/// Ends the wait if this process does not.
const LONGEST_NS: u64 = 20_000_000_000;
const PATIENCE: Duration = Duration::from_secs(2);
