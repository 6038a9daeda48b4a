//! What the peer may have: its credential, and the rights that come with it.
//!
//! The driver brings the peer's [`Access`] with [`Proto::set_access`], and with [`Proto::judged`]
//! when [`Proto::poll_credential`] has given it a token to judge.

use super::event::Event;
use super::millis::millis;
use super::open::Open;
use super::proto::Proto;
use crate::admission::Access;
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::message::{Credential, GRANT_FOREVER, Message, RequestCode};

impl Proto {
    /// Takes AUTH.
    pub(super) fn handle_auth(
        &mut self,
        now: Instant,
        credential: Credential,
    ) -> Result<(), Violation> {
        self.limits
            .tokens
            .take(now)
            .map_err(|_| Violation::Limit("tokens"))?;
        self.knows_credentials = true;
        self.credential = Some(credential);
        Ok(())
    }

    /// The token or ticket of the last message, to be judged before the next message is taken.
    /// Answer with [`Proto::judged`].
    pub fn poll_credential(&mut self) -> Option<Credential> {
        self.credential.take()
    }

    /// The answer to [`Proto::poll_credential`]: whether the credential counts, and what the peer
    /// may have.
    pub fn judged(&mut self, now: Instant, counts: bool, access: Access) {
        self.set_access(access);
        let lasts_ms = match &self.access {
            _ if !counts => 0,
            Access::Free | Access::Granted { until: None, .. } => GRANT_FOREVER,
            Access::Granted {
                until: Some(until), ..
            } => millis(until.saturating_duration_since(now)).max(1),
            Access::Refused { .. } => 0,
        };
        self.send(Message::Grant { lasts_ms });
    }

    /// Sets what the peer may have from now on. Requests that it may not have any more end.
    pub fn set_access(&mut self, access: Access) {
        if let (Access::Refused { .. }, Access::Refused { .. }) = (&self.access, &access) {
            // The time of a peer without rights runs from the first refusal.
            return;
        }
        let before = std::mem::replace(&mut self.access, access);
        if let (Access::Granted { .. }, Access::Refused { .. }) = (&before, &self.access) {
            self.tally.lapsed += 1;
            self.send(Message::Grant { lasts_ms: 0 });
            // A peer without rights is not named to others either.
            if std::mem::take(&mut self.has_offered) {
                self.events.push_back(Event::Offer {
                    port: 0,
                    identity: [0; 32],
                });
            }
        }
        if let (Access::Granted { scope: before, .. }, Access::Granted { scope, .. }) =
            (&before, &self.access)
            && before == scope
        {
            return;
        }
        self.known.retain_allowed(&self.access);
        let access = &self.access;
        let is_over = |open: &Open| !access.allows_segment(open.path.as_deref());
        let over: Vec<u16> = self
            .requests
            .iter()
            .filter(|(_, open)| is_over(open))
            .map(|(alias, _)| *alias)
            .collect();
        for alias in over {
            self.reject(alias, RequestCode::Unknown, None);
            self.end(alias, true);
        }
    }

    /// Tells a peer without rights once that it needs a credential. This does not depend on its
    /// query, so that it learns nothing about what exists. Otherwise it would be disconnected soon
    /// without a reason.
    pub(super) fn want_credential(&mut self) {
        if matches!(self.access, Access::Refused { .. })
            && !std::mem::replace(&mut self.knows_credentials, true)
        {
            self.send(Message::Grant { lasts_ms: 0 });
        }
    }
}
