//! Queries about the blocks of a segment: GET_HASHES and GET_CHECKS.
//!
//! The right to hashes and checksums depends on the path of the segment, like the right to its
//! blocks. So the segment is found first, and only then asked about.

use bytes::Bytes;

use super::event::Event;
use super::proto::{About, Asked, Proto};
use super::refusals::{going_away, not_there};
use crate::object::{Held, Refusal, SegmentId};
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::message::{Checks, Meant, Message, RequestCode};

/// The answer to a query.
pub(super) enum Found {
    Hashes(Bytes),
    Checks(Checks),
}

impl Proto {
    /// Takes a query about a segment. It counts as unanswered until the whole answer has left.
    pub(super) fn handle_question(
        &mut self,
        now: Instant,
        request: u64,
        (segment, meant): (SegmentId, Meant),
        about: About,
    ) -> Result<(), Violation> {
        self.check_unused(request)?;
        if self.unanswered >= usize::from(self.config.requests_max) {
            return Err(Violation::Limit("unanswered GETs"));
        }
        self.unanswered += 1;
        self.count_question(now, 1);
        let is_dear = matches!(about, About::Checks(_));
        let asked = Asked {
            request,
            about,
            path: None,
        };
        if self.draining {
            self.answered(now, asked, Err(going_away()));
            return Ok(());
        }
        if is_dear && let Err(free) = self.limits.checks.take(now) {
            let reason = "too many questions for checksums".to_owned();
            let refusal = Refusal {
                code: RequestCode::Overload,
                retry_after: Some(free.saturating_duration_since(now)),
                reason,
            };
            self.answered(now, asked, Err(refusal));
            return Ok(());
        }
        match self.look_for(segment, meant) {
            Some(ticket) => drop(self.asked.insert(ticket, asked)),
            None => self.answered(now, asked, Err(not_there())),
        }
        Ok(())
    }

    /// Passes on a query about a segment that the peer may have.
    pub(super) fn ask(&mut self, ticket: u64, asked: Asked, held: Held) -> Result<(), Violation> {
        let path = held.path.clone();
        self.events.push_back(match &asked.about {
            About::Hashes => Event::Hashes { ticket, held },
            About::Checks(asked) if held.lease.shape.generation(asked.generation).is_none() => {
                return Err(Violation::Malformed("index of the generation"));
            }
            About::Checks(asked) => Event::Checks {
                ticket,
                held,
                asked: asked.clone(),
            },
        });
        self.asked.insert(ticket, Asked { path, ..asked });
        Ok(())
    }

    /// The answer to [`Event::Hashes`].
    pub fn hashes(&mut self, now: Instant, ticket: u64, answer: Result<Bytes, Refusal>) {
        if let Some(asked) = self.asked.remove(&ticket) {
            self.answered(now, asked, answer.map(Found::Hashes));
        }
    }

    /// The answer to [`Event::Checks`].
    pub fn checks(&mut self, now: Instant, ticket: u64, answer: Result<Checks, Refusal>) {
        if let Some(asked) = self.asked.remove(&ticket) {
            self.answered(now, asked, answer.map(Found::Checks));
        }
    }

    /// Hashes have left, or are not wanted any more.
    pub fn hashes_left(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    /// Answers a query, unless the peer has lost the right to the segment meanwhile.
    pub(super) fn answered(&mut self, now: Instant, asked: Asked, answer: Result<Found, Refusal>) {
        let Asked {
            request,
            path,
            about,
        } = asked;
        let is_allowed = self.access.allows_segment(path.as_deref());
        let answer = answer.and_then(|found| {
            let shares = match &found {
                _ if !is_allowed => return Err(not_there()),
                Found::Hashes(bytes) => self.ledgers.deliver(now, bytes)?,
                Found::Checks(_) => Vec::new(),
            };
            Ok((found, shares))
        });
        let counts = match about {
            About::Hashes => &mut self.tally.hashes,
            About::Checks(_) => &mut self.tally.checks,
        };
        match &answer {
            Ok(_) => counts.0 += 1,
            Err(_) => counts.1 += 1,
        }
        match answer {
            Ok((Found::Hashes(bytes), shares)) => {
                return self.events.push_back(Event::DeliverHashes {
                    request,
                    bytes,
                    shares,
                });
            }
            Ok((Found::Checks(checks), _)) => {
                self.send(Message::Checks(Checks { request, ..checks }))
            }
            Err(refusal) => self.say_no(request, &refusal),
        }
        self.unanswered = self.unanswered.saturating_sub(1);
    }
}
