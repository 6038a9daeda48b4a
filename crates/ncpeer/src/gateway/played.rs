//! The answers to players that are under way, and the last that ended: for the gateway's own page.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ncs_net::secret::redacted_path;
use ncs_net::telemetry::now_ms;
use serde::Serialize;

/// The answers, oldest first.
#[derive(Debug, Default)]
pub(super) struct Played {
    answers: Mutex<VecDeque<Arc<Counts>>>,
}

#[derive(Debug)]
struct Counts {
    path: String,
    begun_ms: u64,
    bytes: AtomicU64,
    /// 0 while it is under way.
    ended_ms: AtomicU64,
}

/// An answer in progress. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Playing(Arc<Counts>);

/// An answer, for the page.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Shown {
    path: String,
    begun_ms: u64,
    ended_ms: Option<u64>,
    bytes: u64,
}

impl Played {
    /// Begins an answer. Their number is that of the gateway's requests at a time.
    pub(super) fn begin(&self, path: &str) -> Playing {
        let mut path = redacted_path(path);
        path.truncate(path.floor_char_boundary(PATH_SHOWN_MAX));
        let counts = Arc::new(Counts {
            path,
            begun_ms: now_ms(),
            bytes: AtomicU64::new(0),
            ended_ms: AtomicU64::new(0),
        });
        let mut answers = self.lock();
        let ended = answers.iter().filter(|counts| counts.has_ended()).count();
        if ended > ENDED_MAX {
            let oldest = answers.iter().position(|counts| counts.has_ended());
            oldest.and_then(|at| answers.remove(at));
        }
        answers.push_back(Arc::clone(&counts));
        Playing(counts)
    }

    /// The answers, latest first; those that have ended up to [`ENDED_MAX`].
    pub(super) fn shown(&self) -> Vec<Shown> {
        let mut ended = 0;
        let shown = |counts: &Arc<Counts>| {
            ended += usize::from(counts.has_ended());
            (!counts.has_ended() || ended <= ENDED_MAX).then(|| counts.shown())
        };
        self.lock().iter().rev().filter_map(shown).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Counts>>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn has_ended(&self) -> bool {
        self.ended_ms.load(Ordering::Relaxed) != 0
    }

    fn shown(&self) -> Shown {
        let ended_ms = self.ended_ms.load(Ordering::Relaxed);
        Shown {
            path: self.path.clone(),
            begun_ms: self.begun_ms,
            ended_ms: (ended_ms != 0).then_some(ended_ms),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

impl Playing {
    /// Counts bytes that go to the player.
    pub(super) fn add(&self, bytes: usize) {
        self.0.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        self.0.ended_ms.store(now_ms().max(1), Ordering::Relaxed);
    }
}

/// Answers that are shown after their end.
const ENDED_MAX: usize = 10;
/// The bytes of a path that are shown.
const PATH_SHOWN_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_under_way_and_the_last_ended_ones_are_shown() {
        let played = Played::default();
        let long = played.begin("/live/long.mp4?token=hunter2");
        long.add(100);
        for number in 0..1000 {
            let short = played.begin(&format!("/live/{number}.ts"));
            short.add(number);
        }
        let shown = played.shown();
        assert_eq!(shown.len(), ENDED_MAX + 1);
        assert!(played.lock().len() <= ENDED_MAX + 2, "memory is bounded");
        assert_eq!(
            (
                &shown[0].path[..],
                shown[0].bytes,
                shown[0].ended_ms.is_some()
            ),
            ("/live/999.ts", 999, true)
        );
        let oldest = shown.last().unwrap();
        assert_eq!((oldest.bytes, oldest.ended_ms), (100, None));
        assert_eq!(oldest.path, "/live/long.mp4?token=[hidden]");
        drop(long);
        assert!(played.shown().iter().all(|one| one.ended_ms.is_some()));
        let endless = played.begin(&"/ä".repeat(10_000));
        assert!(played.shown()[0].path.len() <= PATH_SHOWN_MAX);
        drop(endless);
    }
}
