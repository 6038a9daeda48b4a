//! Tickets: credentials that a server gives its viewers for the peers that it names to them.

use std::sync::Arc;
use std::time::Duration;

use super::holder::Holder;
use super::scope::Scope;
use crate::integrity::signing::{Admitted, StreamKeys};
use crate::wire::message::Ticket;

/// The configuration of a peer that admits others by their tickets.
#[derive(Debug, Clone)]
pub struct Tickets {
    /// SHA-256 of this peer's certificate.
    pub identity: [u8; 32],
    /// The keys that sign tickets.
    pub keys: Arc<dyn StreamKeys>,
    /// Most peers with a ticket that are served at a time.
    pub served_max: Option<u32>,
}

/// The rights that a ticket brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Right {
    /// The paths.
    pub scope: Scope,
    /// When it ends, since 1970.
    pub until: Duration,
    /// The owner of its account.
    pub holder: Holder,
}

impl Tickets {
    /// The rights that a ticket brings now: the stream that it names, until it ends.
    pub fn verify(&self, ticket: &Ticket, date: Duration) -> Option<Right> {
        let says = Admitted::by(ticket, |stream| self.keys.key_of(stream))?;
        let until = Duration::from_millis(says.until_ms);
        if says.identity != self.identity || until <= date {
            return None;
        }
        // A star in a stream's name would act as that of a pattern.
        let scope = Scope::parse(&[format!("/{}/*", says.stream)]).ok()?;
        Some(Right {
            scope,
            until,
            holder: Holder::of("ticket", &[&says.nonce]),
        })
    }
}
