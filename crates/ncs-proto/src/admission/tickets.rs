//! Tickets: what a server gives its viewers for the peers that it names to them.

use std::sync::Arc;
use std::time::Duration;

use super::holder::Holder;
use super::scope::Scope;
use crate::integrity::signing::{Admitted, StreamKeys};
use crate::wire::message::Ticket;

/// What a peer needs that admits those who show a ticket for it.
#[derive(Debug, Clone)]
pub struct Tickets {
    /// SHA-256 of the certificate that this peer shows.
    pub identity: [u8; 32],
    /// The keys that tickets are signed with.
    pub keys: Arc<dyn StreamKeys>,
    /// Most peers with a ticket that are served at a time.
    pub served_max: Option<u32>,
}

/// What a ticket brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Right {
    /// The paths.
    pub scope: Scope,
    /// Since 1970, when it ends.
    pub until: Duration,
    /// Who is counted together.
    pub holder: Holder,
}

impl Tickets {
    /// What a ticket brings now: the stream that it names, until it ends.
    pub fn verify(&self, ticket: &Ticket, date: Duration) -> Option<Right> {
        let says = Admitted::by(ticket, |stream| self.keys.key_of(stream))?;
        let until = Duration::from_millis(says.until_ms);
        if says.identity != self.identity || until <= date {
            return None;
        }
        // A star in a stream's name would be taken for a pattern's.
        let scope = Scope::parse(&[format!("/{}/*", says.stream)]).ok()?;
        Some(Right { scope, until, holder: Holder::of("ticket", &[&says.nonce]) })
    }
}
