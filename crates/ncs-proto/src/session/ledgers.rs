//! What a session keeps in memory, and where that is counted: for itself, its address and its
//! token.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::config::Config;
use crate::admission::{Kept, Ledger, Share};
use crate::object::{Refusal, SegmentKey};
use crate::ring::SessionId;
use crate::time::Instant;
use crate::wire::message::RequestCode;

/// When a query or REQUEST may be sent again that would keep too much in memory.
pub(super) const LEASES_RETRY: Duration = Duration::from_millis(200);

/// The ledgers of a session, and how many bytes each may count. Clones count in the same ledgers.
#[derive(Debug, Clone)]
pub struct Ledgers {
    by: SessionId,
    /// Deliveries counted so far.
    deliveries: u64,
    session: (Arc<Ledger>, u64),
    address: (Option<Arc<Ledger>>, u64),
    token: (Option<Arc<Ledger>>, u64),
    /// Most queries of the address and of the token in a second.
    questions: (u32, u32),
}

impl Ledgers {
    /// The ledgers of a new session, whose address and token are unknown.
    pub fn new(by: SessionId, config: &Config) -> Self {
        Self {
            by,
            deliveries: 0,
            session: (Arc::default(), config.leased_bytes_max),
            address: (None, config.address_leased_bytes_max),
            token: (None, config.token_leased_bytes_max),
            questions: (
                config.address_questions_per_second,
                config.token_questions_per_second,
            ),
        }
    }

    /// Counts for this address and the holder of this token, too, from now on.
    pub(super) fn share_with(&mut self, address: Arc<Ledger>, token: Option<Arc<Ledger>>) {
        (self.address.0, self.token.0) = (Some(address), token);
    }

    /// Counts queries at address and token.
    pub(super) fn ask(&self, now: Instant, questions: u32) {
        for ((ledger, _), most) in [
            (&self.address, self.questions.0),
            (&self.token, self.questions.1),
        ] {
            ledger
                .iter()
                .for_each(|ledger| ledger.ask(now, questions, most));
        }
    }

    /// When address and token may send more queries, if not now.
    pub(super) fn resumes(&self, now: Instant) -> Option<Instant> {
        [&self.address, &self.token]
            .into_iter()
            .filter_map(|(ledger, _)| ledger.as_ref()?.resumes(now))
            .max()
    }

    /// Counts a segment in all ledgers, or in none if that is too much for one of them.
    pub fn keep(&self, now: Instant, segment: SegmentKey, bytes: u64) -> Option<Vec<Share>> {
        self.take(now, (Kept::Segment(segment), bytes))
    }

    /// Counts an object or hashes on their way to the peer.
    pub(super) fn deliver(&mut self, now: Instant, bytes: &Bytes) -> Result<Vec<Share>, Refusal> {
        self.deliveries += 1;
        let shares = self.take(
            now,
            (
                Kept::Delivery(self.by.0, self.deliveries),
                bytes.len() as u64,
            ),
        );
        shares.ok_or_else(|| {
            let reason = "too much is on the way".to_owned();
            Refusal {
                code: RequestCode::Overload,
                retry_after: Some(LEASES_RETRY),
                reason,
            }
        })
    }

    /// Counts something in all ledgers, or in none.
    fn take(&self, now: Instant, kept: (Kept, u64)) -> Option<Vec<Share>> {
        let shared = [&self.address, &self.token]
            .into_iter()
            .filter_map(|(ledger, most)| Some((ledger.as_ref()?, *most)));
        let all = std::iter::once((&self.session.0, self.session.1)).chain(shared);
        all.map(|(ledger, most)| ledger.take(now, kept, self.by.0, most))
            .collect()
    }
}
