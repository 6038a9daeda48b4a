//! The tickets of a peer, one for each stream for which it is named.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ncs_proto::integrity::signing::SigningKey;
use ncs_proto::wire::message::Ticket;

use crate::admission::Now;

/// The validity of a new ticket, and how long the same one is given out.
const TICKET_LASTS: Duration = Duration::from_secs(300);
const TICKET_GIVEN: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
pub(super) struct Tickets(HashMap<String, (Ticket, Instant)>);

impl Tickets {
    /// A ticket for the peer with this identity, and for how many milliseconds it counts.
    pub(super) fn give(
        &mut self,
        now: Now,
        stream: &str,
        key: &SigningKey,
        identity: [u8; 32],
    ) -> Option<(Ticket, u64)> {
        let until = now.date + TICKET_LASTS;
        let fresh = |at: &Instant| now.instant.saturating_duration_since(*at) < TICKET_GIVEN;
        self.0.retain(|_, (_, at)| fresh(at));
        let (ticket, at) = self.0.entry(stream.to_owned()).or_insert_with(|| {
            let until_ms = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
            (
                key.ticket(stream, until_ms, identity, rand::random()),
                now.instant,
            )
        });
        let left = (*at + TICKET_LASTS).checked_duration_since(now.instant)?;
        let lasts_ms = u64::try_from(left.as_millis()).ok()?;
        Some((ticket.clone(), lasts_ms))
    }

    /// Tickets of removed keys are invalid.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
