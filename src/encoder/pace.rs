//! Not faster than sessions can send.
//!
//! Blocks that come faster than the processors seal and send them do not wait in the ring, in the order of their deadlines, but with QUIC, where
//! thousands of connections then take turns at a few packets each: every turn finds the connection's state out of the caches, acknowledgements are
//! late, and a server that is short by a little sends a third less than it could, and does not recover when there is less to do.
//! So no batch is launched while what is ready waits long for its turn and there is enough for all threads to send. How long is measured by a task
//! that does nothing.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use ncs_serve::turn::Turn;
use tokio::runtime::Handle;

/// What is ready may wait for its turn for so long. Short of overload it is a tenth of that.
const TURN_WAIT_MAX: Duration = Duration::from_millis(5);

/// Blocks of so many bytes for each thread are enough: it has to do for some milliseconds.
const ENOUGH_BYTES: usize = 4 << 20;

/// Holds the encoder back while sessions are behind.
#[derive(Debug)]
pub struct Pace {
    sessions: Option<Handle>,
    probe: Option<Turn>,
    is_behind: bool,
}

impl Pace {
    /// By the turns that sessions of this runtime get, which is not the encoder's own.
    pub fn of(sessions: Handle) -> Self {
        Self { sessions: Some(sessions), probe: None, is_behind: false }
    }

    /// Never.
    pub fn unlimited() -> Self {
        Self { sessions: None, probe: None, is_behind: false }
    }

    /// What is enough to go on with for all threads of the sessions.
    pub(super) fn enough_bytes(&self) -> usize {
        self.sessions.as_ref().map_or(0, |sessions| sessions.metrics().num_workers()) * ENOUGH_BYTES
    }

    /// Whether sessions have their turns soon enough. If not, ask again after [`Pace::changed`].
    pub(super) fn is_open(&mut self, now: Instant) -> bool {
        // What has had its turn meanwhile.
        let _ = self.changed().now_or_never();
        let Some(sessions) = &self.sessions else { return true };
        let probe = self.probe.get_or_insert_with(|| Turn::of(sessions, now));
        self.is_behind |= probe.age(now) > TURN_WAIT_MAX;
        !self.is_behind
    }

    /// Waits until more is known of how long turns take; for ever, if nobody has asked.
    pub(super) async fn changed(&mut self) {
        let Some(probe) = &mut self.probe else { return std::future::pending().await };
        // A runtime that is gone has no sessions.
        let wait = probe.wait().await.unwrap_or_default();
        self.probe = None;
        self.is_behind = wait > TURN_WAIT_MAX;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Waits until sessions have their turns soon enough, as the machine may have other things to do.
    async fn opens(pace: &mut Pace) {
        let begun = Instant::now();
        while !pace.is_open(Instant::now()) {
            assert!(begun.elapsed() < Duration::from_secs(20));
            pace.changed().await;
        }
    }

    #[tokio::test]
    async fn nothing_is_launched_while_turns_are_long() {
        let sessions = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
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
