//! Whether the server can serve, and if not, why: each part speaks for itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

/// What keeps the server from serving, by part. Clones share it.
#[derive(Debug, Clone)]
pub struct Readiness {
    reasons: Arc<Mutex<BTreeMap<&'static str, String>>>,
}

/// A part that cannot serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// Which.
    pub part: &'static str,
    /// Why.
    pub reason: String,
}

impl Readiness {
    /// Nothing is ready until the part `server` says that the start is over.
    pub fn new() -> Self {
        Self { reasons: Arc::new(Mutex::new(BTreeMap::from([("server", "starting".into())]))) }
    }

    /// This part can serve.
    pub fn ready(&self, part: &'static str) {
        self.lock().remove(part);
    }

    /// This part cannot serve. The latest reason counts.
    pub fn not_ready(&self, part: &'static str, reason: impl Into<String>) {
        self.lock().insert(part, reason.into());
    }

    /// What keeps the server from serving; nothing if it can.
    pub fn reasons(&self) -> Vec<Reason> {
        self.lock().iter().map(|(&part, reason)| Reason { part, reason: reason.clone() }).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
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
        assert_eq!(readiness.reasons(), [Reason { part: "streams", reason: "no streams".into() }]);
        shared.ready("streams");
        assert!(readiness.reasons().is_empty());
    }
}
