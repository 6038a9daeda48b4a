//! Keeps the encoder from running ahead of the sessions.
//!
//! If blocks come faster than the CPU can encrypt and send them, they do not wait in the ring, in
//! the order of their deadlines, but in QUIC. There, thousands of connections take turns at a few
//! packets each: every turn finds the connection's state out of the caches, and acknowledgements
//! are late. A server that is slightly short of time then sends a third less than it could, and
//! does not recover when demand falls. So no batch is launched while runnable tasks wait long for a
//! thread and enough blocks are in the ring to keep all threads busy. The wait is measured by a
//! task that does nothing else.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use ncs_serve::turn::Turn;
use tokio::runtime::Handle;

/// The maximum scheduling latency: about as long as a batch takes until it is ready. With 1 ms, a
/// server on one core that had been stopped for half a second stayed short of time for seconds, and
/// with 5 ms for ever.
const TURN_WAIT_MAX: Duration = Duration::from_micros(300);

/// Bytes in the ring that keep one thread busy for some milliseconds: as much as its caches hold.
const ENOUGH_BYTES: usize = 1 << 20;

/// Blocks that a thread of the CPU back end makes in one batch: at 4 KiB, its core's caches hold
/// them until they are sent.
const BATCH_BLOCKS_PER_THREAD: u32 = 256;

/// Holds the encoder back while sessions lag behind.
#[derive(Debug)]
pub struct Pace {
    sessions: Option<Handle>,
    batch_blocks_max: u32,
    probe: Option<Turn>,
    is_behind: bool,
}

impl Pace {
    /// Measures the runtime of the sessions, which is not the encoder's own.
    pub fn of(sessions: Handle) -> Self {
        Self {
            sessions: Some(sessions),
            batch_blocks_max: u32::MAX,
            probe: None,
            is_behind: false,
        }
    }

    /// Never holds the encoder back.
    pub fn unlimited() -> Self {
        Self {
            sessions: None,
            batch_blocks_max: u32::MAX,
            probe: None,
            is_behind: false,
        }
    }

    /// The same, where this many threads of a CPU encode.
    pub fn with_cpu_threads(self, threads: usize) -> Self {
        let threads = u32::try_from(threads).unwrap_or(u32::MAX);
        Self {
            batch_blocks_max: BATCH_BLOCKS_PER_THREAD.saturating_mul(threads),
            ..self
        }
    }

    /// The maximum number of blocks per batch.
    pub(super) fn batch_blocks_max(&self) -> u32 {
        self.batch_blocks_max
    }

    /// Bytes that keep all threads of the sessions busy.
    pub(super) fn enough_bytes(&self) -> usize {
        self.sessions
            .as_ref()
            .map_or(0, |sessions| sessions.metrics().num_workers())
            * ENOUGH_BYTES
    }

    /// Whether the scheduling latency of sessions is short enough. If not, ask again after
    /// [`Pace::changed`].
    pub(super) fn is_open(&mut self, now: Instant) -> bool {
        // Take the result of a finished probe.
        let _ = self.changed().now_or_never();
        let Some(sessions) = &self.sessions else {
            return true;
        };
        let probe = self.probe.get_or_insert_with(|| Turn::of(sessions, now));
        self.is_behind |= probe.age(now) > TURN_WAIT_MAX;
        !self.is_behind
    }

    /// Waits for the next result of the probe; forever if none is running.
    pub(super) async fn changed(&mut self) {
        let Some(probe) = &mut self.probe else {
            return std::future::pending().await;
        };
        // A runtime that has ended has no sessions.
        let wait = probe.wait().await.unwrap_or_default();
        self.probe = None;
        self.is_behind = wait > TURN_WAIT_MAX;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Waits until the latency is short enough; the machine may be busy with other work.
    async fn opens(pace: &mut Pace) {
        let begun = Instant::now();
        while !pace.is_open(Instant::now()) {
            assert!(begun.elapsed() < Duration::from_secs(20));
            pace.changed().await;
        }
    }

    #[test]
    fn threads_of_the_cpu_bound_a_batch() {
        assert_eq!(Pace::unlimited().batch_blocks_max(), u32::MAX);
        let of = |threads| Pace::unlimited().with_cpu_threads(threads);
        assert_eq!(of(3).batch_blocks_max(), 3 * BATCH_BLOCKS_PER_THREAD);
        assert_eq!(of(usize::MAX).batch_blocks_max(), u32::MAX);
    }

    #[tokio::test]
    async fn nothing_is_launched_while_turns_are_long() {
        let sessions = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        let mut pace = Pace::of(sessions.handle().clone());
        assert!(pace.is_open(Instant::now()), "it is not known yet");
        pace.changed().await;
        opens(&mut pace).await;
        static STOP: AtomicBool = AtomicBool::new(false);
        let busy = sessions.spawn(async {
            while !STOP.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let begun = Instant::now();
        while pace.is_open(Instant::now()) {
            assert!(begun.elapsed() < Duration::from_secs(20));
            tokio::time::sleep(2 * TURN_WAIT_MAX).await;
        }
        STOP.store(true, Ordering::Relaxed);
        busy.await.unwrap();
        opens(&mut pace).await;
        sessions.shutdown_background();
        opens(&mut pace).await;
        assert!(Pace::unlimited().is_open(Instant::now()));
    }
}
