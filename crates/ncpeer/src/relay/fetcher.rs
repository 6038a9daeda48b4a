//! Has segments fetched: by those who answer for a path, and by the recoder for what was evicted since, had no room, or failed.

use std::sync::Arc;
use std::time::Instant;

use ncs_net::supervise::{Part, Supervisor};
use ncs_proto::object::SegmentKey;
use ncs_serve::session::Ledgers;

use super::holdings::{Begun, Fetching, Holdings};
use crate::Client;

/// Fetches into the holdings. Clones do the same.
#[derive(Debug, Clone)]
pub(super) struct Fetcher {
    client: Client,
    holdings: Arc<Holdings>,
    supervisor: Supervisor,
}

impl Fetcher {
    pub(super) fn new(client: Client, holdings: Arc<Holdings>, supervisor: Supervisor) -> Self {
        Self { client, holdings, supervisor }
    }

    /// Has a segment fetched that is not yet, for whoever leases it. After a failure, or where there was no room for it, it is begun again
    /// when it is asked for again.
    pub(super) fn start(&self, segment: SegmentKey) {
        self.run(segment, self.holdings.start(segment, Instant::now()));
    }

    /// The same before anybody leases it.
    pub(super) fn start_ahead(&self, segment: SegmentKey, asker: &Ledgers) {
        self.run(segment, self.holdings.start_ahead(segment, Instant::now(), asker));
    }

    fn run(&self, key: SegmentKey, begun: Option<Begun>) {
        let Some(Begun { meta, number, until }) = begun else { return };
        let fetching = Fetching { holdings: Arc::clone(&self.holdings), key, number };
        let client = self.client.clone();
        tokio::spawn(self.supervisor.contained(Part::Fetch, async move {
            let fetched = tokio::select! {
                fetched = client.fetch_segment(&meta) => fetched,
                _ = until => return,
            };
            match fetched {
                Ok(bytes) => {
                    let done = tokio::task::spawn_blocking(move || fetching.complete(&bytes));
                    done.await.expect("completing does not panic");
                }
                Err(error) => tracing::debug!(path = meta.path, %error, "a segment could not be fetched"),
            }
        }));
    }
}
