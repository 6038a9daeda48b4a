//! When a fetch fails: its deadline, a stall, a rate that is too low; and the time without a
//! server, which does not count.

use std::time::Duration;

use super::fetch::Fetch;
use super::state::Fetches;
use crate::object::{Refusal, RefusalCode};
use crate::peer::event::Failure;
use crate::peer::ids::{FetchId, SourceId};
use crate::time::Instant;

impl Fetches {
    /// Why a fetch has failed, if it has.
    pub(super) fn failure(&self, id: FetchId, now: Instant) -> Option<Failure> {
        let fetch = self.fetches.get(&id)?;
        if fetch.order.deadline.is_some_and(|deadline| deadline <= now) {
            return Some(Failure::Deadline);
        }
        if fetch.order.shape.codec().is_gfq() && !self.evidence.is_signed(id) {
            // Nothing could tell its right blocks from wrong ones.
            let reason = "the hashes of its blocks are not signed by the stream's key".to_owned();
            return Some(Failure::Refused(Refusal {
                code: RefusalCode::Origin,
                retry_after: None,
                reason,
            }));
        }
        if self.stalls_at(fetch) <= now {
            return Some(if fetch.trickles {
                Failure::Slow
            } else {
                Failure::Stalled
            });
        }
        self.drip.is_over(now, id).then_some(Failure::Slow)
    }

    /// When a fetch counts as stalled. One that waits for its turn is patient as long as others
    /// progress.
    pub(super) fn stalls_at(&self, fetch: &Fetch) -> Instant {
        let others = self.progress_at.filter(|_| fetch.works.is_empty());
        let outage = if self.dark_since.is_some() {
            fetch.outage_left
        } else {
            Duration::ZERO
        };
        fetch.touched.max(others.unwrap_or(fetch.touched)) + self.config.stall_timeout + outage
    }

    /// Watches the rate of the first fetch in `order` that has requests.
    pub(super) fn watch(&mut self, now: Instant, order: &[FetchId]) {
        let first = order.iter().find(|id| {
            self.fetches
                .get(id)
                .is_some_and(|fetch| !fetch.works.is_empty())
        });
        self.drip.watch(now, first.copied());
    }

    /// Bytes have come on the stream of a request, whether or not they complete a block.
    pub(in crate::peer) fn note_bytes(&mut self, source: SourceId, alias: u16) {
        let id = self
            .sources
            .get(source)
            .and_then(|path| path.aliases.get(&alias));
        if let Some(fetch) = id.and_then(|id| self.fetches.get_mut(&id.fetch)) {
            fetch.trickles = true;
        }
    }

    /// Says whether there is no connection to any server.
    pub(in crate::peer) fn set_dark(&mut self, now: Instant, is_dark: bool) {
        self.drip.set_dark(now, is_dark);
        if is_dark {
            self.dark_since.get_or_insert(now);
        } else if let Some(since) = self.dark_since.take() {
            self.outages += now.saturating_duration_since(since);
            self.fetches
                .values_mut()
                .for_each(|fetch| fetch.excuse(since, now));
        }
    }

    /// How long there was no connection to any server, in all, up to the end of the last outage.
    pub(in crate::peer) fn outages(&self) -> Duration {
        self.outages
    }
}
