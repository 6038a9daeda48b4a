//! The segments of REQUESTs and queries, which are looked for before anything else is decided.

use super::event::Event;
use super::proto::Proto;
use super::refusals::not_there;
use crate::object::{Held, SegmentId};
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::message::{Meant, RequestCode};

impl Proto {
    /// Looks for the segment that the peer means, where there are several of one id. `None` if this
    /// server can have no such segment.
    pub(super) fn look_for(&mut self, id: SegmentId, meant: Meant) -> Option<u64> {
        let (ticket, find) = self.search(id, meant)?;
        self.events.push_back(find);
        Some(ticket)
    }

    /// The same, for the caller to begin: the search's ticket and event.
    pub(super) fn search(&mut self, id: SegmentId, meant: Meant) -> Option<(u64, Event)> {
        let (coding, told) = match (meant, self.known.find(id, meant)) {
            (Meant::Foreign, _) => return None,
            (_, Some((coding, told))) => (Some(coding), Some(told.key)),
            (Meant::Coded(coding), None) => (Some(coding), None),
            (Meant::LastNamed, None) => (None, None),
        };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let find = Event::Find {
            ticket,
            id,
            coding,
            told,
        };
        Some((ticket, find))
    }

    /// The answer to [`Event::Find`].
    pub fn found(
        &mut self,
        now: Instant,
        ticket: u64,
        held: Option<Held>,
    ) -> Result<(), Violation> {
        let held = held.map(|held| self.known.as_told(now, held));
        if let Some(asked) = self.asked.remove(&ticket) {
            return match held.filter(|held| self.access.allows_segment(held.path.as_deref())) {
                Some(held) => self.ask(ticket, asked, held),
                None => {
                    self.answered(now, asked, Err(not_there()));
                    Ok(())
                }
            };
        }
        // The request was stopped meanwhile.
        let Some(request) = self.finding.remove(&ticket) else {
            return Ok(());
        };
        match held.filter(|held| self.access.allows_segment(held.path.as_deref())) {
            Some(held) => self.open(now, request, held),
            None => {
                self.reject(request.alias, RequestCode::Unknown, None);
                Ok(())
            }
        }
    }
}
