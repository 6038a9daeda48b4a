//! Whether the server can serve, and how well; each part reports for itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Parts that cannot serve, or not as intended. Clones share it.
#[derive(Debug, Clone)]
pub struct Readiness {
    words: Arc<Mutex<BTreeMap<&'static str, Word>>>,
    is_dead: Arc<AtomicBool>,
}

/// A part's report of a problem.
#[derive(Debug, Clone)]
struct Word {
    serves: bool,
    reason: String,
}

/// A part with a problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The part.
    pub part: &'static str,
    /// The problem.
    pub reason: String,
}

/// The status of the server as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// No part has a problem.
    Ready,
    /// It serves, but a part does so in another way than intended.
    Degraded,
    /// A part cannot serve.
    NotReady,
}

impl Readiness {
    /// Not ready until the part `server` reports the end of the start.
    pub fn new() -> Self {
        let readiness = Self {
            words: Arc::default(),
            is_dead: Arc::default(),
        };
        readiness.not_ready("server", "starting");
        readiness
    }

    /// The part has no problem.
    pub fn ready(&self, part: &'static str) {
        self.lock().remove(part);
    }

    /// The part serves, but not as intended. Its latest report counts.
    pub fn degraded(&self, part: &'static str, reason: impl Into<String>) {
        self.lock().insert(
            part,
            Word {
                serves: true,
                reason: reason.into(),
            },
        );
    }

    /// The part cannot serve. Its latest report counts.
    pub fn not_ready(&self, part: &'static str, reason: impl Into<String>) {
        self.lock().insert(
            part,
            Word {
                serves: false,
                reason: reason.into(),
            },
        );
    }

    /// The part has died, and the process ends.
    pub fn dead(&self, part: &'static str, reason: impl Into<String>) {
        self.not_ready(part, reason);
        self.is_dead.store(true, Ordering::Release);
    }

    /// Whether the process ends because a part has died.
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// Reports this part as not ready while `refused` returns the size of a segment without room,
    /// at two looks in a row or more.
    pub async fn heed_room(
        self,
        part: &'static str,
        every: Duration,
        refused: impl Fn(Instant) -> Option<u64>,
    ) {
        let mut was_refused = false;
        loop {
            tokio::time::sleep(every).await;
            let bytes = refused(Instant::now());
            match bytes {
                Some(bytes) if was_refused => {
                    self.not_ready(
                        part,
                        format!(
                            "no room for a segment of {bytes} bytes: every held segment is in use"
                        ),
                    );
                }
                Some(_) => {}
                None => self.ready(part),
            }
            was_refused = bytes.is_some();
        }
    }

    /// The status of the server, and the parts that cause it.
    pub fn status(&self) -> (Status, Vec<Reason>) {
        let words = self.lock();
        let status = match (words.is_empty(), words.values().all(|word| word.serves)) {
            (true, _) => Status::Ready,
            (false, true) => Status::Degraded,
            (false, false) => Status::NotReady,
        };
        let due = words
            .iter()
            .filter(|(_, word)| word.serves == (status == Status::Degraded));
        (
            status,
            due.map(|(&part, word)| Reason {
                part,
                reason: word.reason.clone(),
            })
            .collect(),
        )
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, Word>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_must_be_ready() {
        let readiness = Readiness::new();
        let shared = readiness.clone();
        shared.not_ready("streams", "no streams");
        readiness.ready("server");
        assert_eq!(
            readiness.status(),
            (
                Status::NotReady,
                vec![Reason {
                    part: "streams",
                    reason: "no streams".into()
                }]
            )
        );
        shared.ready("streams");
        assert_eq!(readiness.status(), (Status::Ready, Vec::new()));
    }

    #[test]
    fn what_is_degraded_serves() {
        let readiness = Readiness::new();
        readiness.degraded("device", "it fell back");
        assert_eq!(
            readiness.status(),
            (
                Status::NotReady,
                vec![Reason {
                    part: "server",
                    reason: "starting".into()
                }]
            )
        );
        readiness.ready("server");
        assert_eq!(
            readiness.status(),
            (
                Status::Degraded,
                vec![Reason {
                    part: "device",
                    reason: "it fell back".into()
                }]
            )
        );
        readiness.not_ready("device", "it is gone");
        assert_eq!(readiness.status().0, Status::NotReady);
        readiness.ready("device");
        assert_eq!(readiness.status().0, Status::Ready);
    }
}
