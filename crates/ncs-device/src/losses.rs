//! Reports of lost back ends.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Health, Recorder};

/// Receives reports of lost back ends. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Losses {
    health: watch::Sender<Health>,
    recorder: Arc<dyn Recorder>,
}

impl Losses {
    /// Nothing is lost yet.
    pub(super) fn new(recorder: Arc<dyn Recorder>) -> Self {
        Self {
            health: watch::Sender::new(Health::Good),
            recorder,
        }
    }

    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Reports that the CPU now does the work of a lost back end.
    pub(super) fn degraded(&self, reason: &str) {
        self.recorder.fell_back();
        self.health.send_if_modified(|health| {
            let is_alive = !matches!(health, Health::Dead(_));
            if is_alive {
                *health = Health::Degraded(reason.to_owned());
            }
            is_alive
        });
    }

    /// Reports that nothing can replace a lost back end.
    pub(super) fn dead(&self, reason: &str) {
        self.health.send_replace(Health::Dead(reason.to_owned()));
    }
}
