//! Has segments fetched: by those who answer for a path, and by the recoder for what was evicted since, had no room, or failed.

use std::sync::Arc;
use std::time::Instant;

use super::holdings::Holdings;
use crate::object::SegmentKey;
use crate::peer::Client;

/// Fetches into the holdings. Clones do the same.
#[derive(Debug, Clone)]
pub(super) struct Fetcher {
    client: Client,
    holdings: Arc<Holdings>,
}

impl Fetcher {
    pub(super) fn new(client: Client, holdings: Arc<Holdings>) -> Self {
        Self { client, holdings }
    }

    /// Has a segment fetched that is not yet. After a failure, or where there was no room for it, it is begun again when it is asked for again.
    pub(super) fn start(&self, segment: SegmentKey) {
        let Some(meta) = self.holdings.start(segment, Instant::now()) else { return };
        let Self { client, holdings } = self.clone();
        tokio::spawn(async move {
            match client.fetch_segment(&meta).await {
                Ok(bytes) => {
                    let done = tokio::task::spawn_blocking(move || holdings.complete(segment, &bytes));
                    done.await.expect("completing does not panic");
                }
                Err(error) => {
                    tracing::debug!(path = meta.path, %error, "a segment could not be fetched");
                    holdings.fail(segment, Instant::now());
                }
            }
        });
    }
}
