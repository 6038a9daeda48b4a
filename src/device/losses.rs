//! What is told of back ends that are lost.

use prometheus::IntCounter;
use tokio::sync::watch;

use super::Health;

/// Whoever loses one tells it here. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Losses {
    health: watch::Sender<Health>,
    fallbacks: IntCounter,
}

impl Losses {
    /// Nothing is lost yet.
    pub(super) fn new(fallbacks: IntCounter) -> Self {
        Self { health: watch::Sender::new(Health::Good), fallbacks }
    }

    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// The CPU does from now on what a lost back end did.
    pub(super) fn degraded(&self, reason: &str) {
        self.fallbacks.inc();
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
