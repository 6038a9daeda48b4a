//! The keys of streams, as the servers of this side have named them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use ncs_proto::integrity::signing::{StreamKey, StreamKeys};
use ncs_proto::wire::message::stream_of;

/// Streams whose keys are kept; of more, none is.
const STREAMS_MAX: usize = 1024;

/// Which key each stream has, for who is shown tickets.
#[derive(Debug, Default)]
pub struct KnownKeys(Mutex<HashMap<String, StreamKey>>);

impl KnownKeys {
    /// Learns the key that is pinned for the stream of this path.
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(stream).copied()
    }
}
