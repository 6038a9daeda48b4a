//! Starts fetches of segments: when a path is answered, and for the recoder when a segment was
//! evicted, had no room, or failed.

use std::sync::Arc;
use std::time::Instant;

use ncs_net::secret::redacted_path;
use ncs_net::supervise::{ServerPart, Supervisor};
use ncs_proto::object::SegmentKey;
use ncs_serve::session::Ledgers;

use super::holdings::{Begun, Fetching, Holdings};
use crate::Client;

/// Fetches into the holdings. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Fetcher {
    client: Client,
    holdings: Arc<Holdings>,
    supervisor: Supervisor,
}

impl Fetcher {
    pub(super) fn new(client: Client, holdings: Arc<Holdings>, supervisor: Supervisor) -> Self {
        Self {
            client,
            holdings,
            supervisor,
        }
    }

    /// Fetches a leased segment, unless that is in progress or done. After a failure, or a lack of
    /// room, it starts again with the next request.
    pub(super) fn start(&self, segment: SegmentKey) {
        self.run(segment, self.holdings.start(segment, Instant::now()));
    }

    /// The same for a segment that is not leased yet.
    pub(super) fn start_ahead(&self, segment: SegmentKey, asker: &Ledgers) {
        self.run(
            segment,
            self.holdings.start_ahead(segment, Instant::now(), asker),
        );
    }

    fn run(&self, key: SegmentKey, begun: Option<Begun>) {
        let Some(Begun {
            meta,
            number,
            until,
        }) = begun
        else {
            return;
        };
        let fetching = Fetching {
            holdings: Arc::clone(&self.holdings),
            key,
            number,
        };
        let client = self.client.clone();
        tokio::spawn(self.supervisor.contained(ServerPart::Fetch, async move {
            let fetched = tokio::select! {
                fetched = client.fetch_segment(&meta) => fetched,
                _ = until => return,
            };
            match fetched {
                Ok(bytes) => {
                    let done = tokio::task::spawn_blocking(move || fetching.complete(&bytes));
                    done.await.expect("completing does not panic");
                }
                Err(error) => tracing::debug!(
                    path = redacted_path(&meta.path),
                    %error,
                    "a segment could not be fetched",
                ),
            }
        }));
    }
}
