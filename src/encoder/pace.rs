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

/// The maximum scheduling latency. With 1 ms, a server on one core that had been stopped for half a
/// second stayed short of time for more than ten seconds, and with 5 ms for ever (ADR 0011).
const TURN_WAIT_MAX: Duration = Duration::from_micros(300);

/// The longest time for which a batch is held back. Where other work than blocks takes the threads'
/// time, holding blocks back does not shorten the latency.
const HELD_MAX: Duration = Duration::from_millis(5);

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
    /// When the batch that is held back would have been launched.
    held_since: Option<Instant>,
}

impl Pace {
    /// Measures the runtime of the sessions, which is not the encoder's own.
    pub fn of(sessions: Handle) -> Self {
        Self {
            sessions: Some(sessions),
            ..Self::unlimited()
        }
    }

    /// Never holds the encoder back.
    pub fn unlimited() -> Self {
        Self {
            sessions: None,
            batch_blocks_max: u32::MAX,
            probe: None,
            is_behind: false,
            held_since: None,
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
    fn enough_bytes(&self) -> usize {
        self.sessions
            .as_ref()
            .map_or(0, |sessions| sessions.metrics().num_workers())
            * ENOUGH_BYTES
    }

    /// Whether a batch is to be held back while slots of `used` bytes are out. If so, ask again
    /// after [`Pace::changed`].
    pub(super) fn holds(&mut self, now: Instant, used: usize) -> bool {
        let holds = !self.is_open(now) && used > self.enough_bytes() && {
            let since = *self.held_since.get_or_insert(now);
            now.saturating_duration_since(since) < HELD_MAX
        };
        if !holds {
            self.held_since = None;
        }
        holds
    }

    /// Whether the scheduling latency of sessions is short enough.
    fn is_open(&mut self, now: Instant) -> bool {
        // Take the result of a finished probe.
        let _ = self.changed().now_or_never();
        let Some(sessions) = &self.sessions else {
            return true;
        };
        let probe = self.probe.get_or_insert_with(|| Turn::of(sessions, now));
        self.is_behind |= probe.age(now) > TURN_WAIT_MAX;
        !self.is_behind
    }

    /// Waits for the next result of the probe, or until a batch has been held back for long enough;
    /// forever if neither is to come.
    pub(super) async fn changed(&mut self) {
        let held = async {
            match self.held_since {
                Some(since) => tokio::time::sleep_until((since + HELD_MAX).into()).await,
                None => std::future::pending().await,
            }
        };
        let Some(probe) = &mut self.probe else {
            return held.await;
        };
        // A runtime that has ended has no sessions.
        let wait = tokio::select! {
            wait = probe.wait() => wait.unwrap_or_default(),
            () = held => return,
        };
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
        let (now, much) = (Instant::now(), 2 * ENOUGH_BYTES);
        assert!(!pace.holds(now, ENOUGH_BYTES), "a thread would idle");
        assert!(pace.holds(now, much));
        assert!(pace.holds(now + HELD_MAX / 2, much));
        assert!(!pace.holds(now + HELD_MAX, much), "it was held for long");
        assert!(pace.holds(now + HELD_MAX, much), "the next one is held");
        STOP.store(true, Ordering::Relaxed);
        busy.await.unwrap();
        opens(&mut pace).await;
        sessions.shutdown_background();
        opens(&mut pace).await;
        assert!(Pace::unlimited().is_open(Instant::now()));
    }
}
