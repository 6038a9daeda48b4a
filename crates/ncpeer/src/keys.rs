//! The keys of streams, as named by this side's servers.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use ncs_proto::integrity::signing::{StreamKey, StreamKeys};
use ncs_proto::wire::message::stream_of;

/// The maximum number of streams; keys of more are not kept.
const STREAMS_MAX: usize = 1024;

/// The key of each stream, to verify tickets.
#[derive(Debug, Default)]
pub struct KnownKeys(Mutex<HashMap<String, StreamKey>>);

impl KnownKeys {
    /// Records the key that is pinned for the stream of this path.
    pub(super) fn learn(&self, path: &str, key: StreamKey) {
        let stream = stream_of(path);
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.len() < STREAMS_MAX || keys.contains_key(stream) {
            keys.insert(stream.to_owned(), key);
        }
    }
}

impl StreamKeys for KnownKeys {
    fn key_of(&self, stream: &str) -> Option<StreamKey> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(stream)
            .copied()
    }
}
