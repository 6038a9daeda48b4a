//! The keys of streams, as the servers of this side have named them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::integrity::signing::{StreamKey, StreamKeys};
use crate::wire::message::Meta;

/// Streams whose keys are kept; of more, none is.
const STREAMS_MAX: usize = 1024;

/// Which key each stream has, for who is shown tickets.
#[derive(Debug, Default)]
pub struct KnownKeys(Mutex<HashMap<String, StreamKey>>);

impl KnownKeys {
    /// Learns the key of a stream from metadata that was taken, unless it is known.
    pub(super) fn learn(&self, meta: &Meta) {
        let Some(stream) = meta.path.strip_prefix('/').and_then(|path| path.split('/').next()) else { return };
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if meta.signature.is_some()
            && keys.len() < STREAMS_MAX
            && !keys.contains_key(stream)
            && let Some(key) = StreamKey::of(meta)
        {
            keys.insert(stream.to_owned(), key);
        }
    }
}

impl StreamKeys for KnownKeys {
    fn key_of(&self, stream: &str) -> Option<StreamKey> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(stream).copied()
    }
}
