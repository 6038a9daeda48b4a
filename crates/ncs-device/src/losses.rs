//! What is told of back ends that are lost.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Health, Recorder};

/// Whoever loses one tells it here. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Losses {
    health: watch::Sender<Health>,
    recorder: Arc<dyn Recorder>,
}

impl Losses {
    /// Nothing is lost yet.
    pub(super) fn new(recorder: Arc<dyn Recorder>) -> Self {
        Self { health: watch::Sender::new(Health::Good), recorder }
    }

    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// The CPU does from now on what a lost back end did.
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

    /// Nothing takes the place of what is lost.
    pub(super) fn dead(&self, reason: &str) {
        self.health.send_replace(Health::Dead(reason.to_owned()));
    }
}
