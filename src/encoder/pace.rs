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

/// The maximum scheduling latency. Without overload it is a tenth of this.
const TURN_WAIT_MAX: Duration = Duration::from_millis(5);

/// Bytes in the ring that keep one thread busy for some milliseconds.
const ENOUGH_BYTES: usize = 4 << 20;

/// Holds the encoder back while sessions lag behind.
#[derive(Debug)]
pub struct Pace {
    sessions: Option<Handle>,
    probe: Option<Turn>,
    is_behind: bool,
}

impl Pace {
    /// Measures the runtime of the sessions, which is not the encoder's own.
    pub fn of(sessions: Handle) -> Self {
        Self {
            sessions: Some(sessions),
            probe: None,
            is_behind: false,
        }
    }

    /// Never holds the encoder back.
    pub fn unlimited() -> Self {
        Self {
            sessions: None,
            probe: None,
            is_behind: false,
        }
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
