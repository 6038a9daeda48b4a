//! The server's side of a conversation, without I/O: what a peer may ask for, what it is owed, and
//! in which order.
//!
//! Messages go in with [`Proto::handle_message`]; answers of the rest of the server with
//! [`Proto::resolved`], [`Proto::found`] and [`Proto::announced`]. Out come messages
//! ([`Proto::poll_message`]), questions and endings ([`Proto::poll_event`]), demand for the ring
//! ([`Proto::poll_want`]), and the order in which requests may claim blocks ([`Proto::claims`]).
//! After any call that puts something in, poll all of them until they are empty; polling too often
//! is harmless. [`Proto::poll_timeout`] may have changed after any call.
//!
//! The rights of a peer are an [`Access`], which the driver brings.
//! Queries that it does not allow are passed on all the same, as queries for a path that cannot
//! exist: they take the way, and the time, of a query for a stream that does not exist.
//!
//! One file owns each part:
//!
//! - `access`: credentials and rights; `limits`, `ledgers`: how fast a peer may ask, and how much
//!   is kept in memory for it;
//! - `objects`: GET and SUBSCRIBE; `queries`: hashes and checksums; `known`: the segments that the
//!   peer was told of; `finding`: segments that are looked for;
//! - `requests`, `open`: REQUESTs; `sending`, `claim`: the blocks that leave for them;
//! - `peers`: offers, holdings, and reports of wrong blocks; `streams`: viewers, and counts of
//!   streams.

mod access;
mod claim;
mod config;
mod event;
mod finding;
mod known;
mod ledgers;
mod limits;
mod millis;
mod objects;
mod open;
mod peers;
mod proto;
mod queries;
mod refusals;
mod requests;
mod sending;
mod streams;
mod tally;

use std::sync::Arc;
use std::time::Duration;

use crate::admission::{Access, Ledger};
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::message::{Alternate, Message, VisitId};

pub use claim::{Claim, Route, Stamp, Want};
pub use config::Config;
pub use event::{Ended, Event};
pub use known::INTRODUCE_EVERY;
pub use ledgers::Ledgers;
use millis::millis;
use proto::About;
pub use proto::Proto;
pub use tally::{StreamTally, Tally};

/// Messages that wait for the control stream. A peer that lets more wait does not read.
const OUTBOX_MAX: usize = 1024;
/// How often it is checked whether the segment of a request still exists. Nothing else would tell
/// where a peer sends and reads nothing.
const LEASE_LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the peer sends.
impl Proto {
    /// Bytes have come on the control stream.
    pub fn handle_control_bytes(&mut self, now: Instant, bytes: usize) {
        self.limits.count_bytes(now, bytes);
    }

    /// When the control stream may be read again, if the peer has sent more than its share of bytes
    /// or queries. Until then QUIC's flow control holds it back.
    pub fn control_resumes(&self, now: Instant) -> Option<Instant> {
        self.limits.resumes(now, &self.ledgers)
    }

    /// Takes a message.
    pub fn handle_message(&mut self, now: Instant, message: Message) -> Result<(), Violation> {
        if self.peer.is_none() {
            return self.handle_hello(message);
        }
        match message {
            Message::Auth(credential) => self.handle_auth(now, credential),
            Message::Get(get) => self.handle_get(now, get),
            Message::Subscribe(subscribe) => self.handle_subscribe(now, subscribe),
            Message::Unsubscribe { request } => {
                self.handle_unsubscribe(request);
                Ok(())
            }
            Message::Request(request) => self.handle_request(now, request),
            Message::Credit { alias, blocks } => self.handle_credit(now, alias, blocks),
            Message::Reschedule { alias, deadline_ms } => {
                self.handle_reschedule(now, alias, deadline_ms);
                Ok(())
            }
            Message::Stop { alias, .. } => {
                self.handle_stop(alias);
                Ok(())
            }
            Message::Rank {
                alias,
                useless,
                lost,
                ..
            } => {
                self.handle_rank(alias, useless, lost);
                Ok(())
            }
            // A peer that leaves continues to request what it still wants.
            Message::GoAway { .. } => Ok(()),
            Message::GetHashes {
                request,
                segment,
                meant,
            } => self.handle_question(now, request, (segment, meant), About::Hashes),
            Message::GetChecks(asked) => self.handle_question(
                now,
                asked.request,
                (asked.segment, asked.meant),
                About::Checks(asked),
            ),
            Message::Blame {
                segment,
                generation,
                blocks,
                identity,
            } => {
                self.handle_blame(
                    now,
                    Event::Blame {
                        segment,
                        generation,
                        blocks,
                        identity,
                    },
                );
                Ok(())
            }
            Message::Offer { port, identity } => {
                self.handle_offer(now, port, identity);
                Ok(())
            }
            Message::Have(holdings) => {
                self.handle_have(now, holdings);
                Ok(())
            }
            Message::OfferPage { serves } => {
                self.handle_offer_page(now, serves);
                Ok(())
            }
            Message::Signal { page, bytes } => {
                self.handle_signal(now, page, bytes);
                Ok(())
            }
            // For consumers.
            Message::Peers { .. }
            | Message::Page { .. }
            | Message::Pages { .. }
            | Message::Alternates { .. } => Ok(()),
            Message::Checks(_) => Err(Violation::Unexpected("CHECKS")),
            Message::Hello(_) => Err(Violation::Unexpected("HELLO")),
            Message::Grant { .. } => Err(Violation::Unexpected("GRANT")),
            Message::Meta(_) => Err(Violation::Unexpected("META")),
            Message::Error(_) => Err(Violation::Unexpected("ERROR")),
            Message::SubscribeOk { .. } => Err(Violation::Unexpected("SUBSCRIBE_OK")),
            Message::Reject { .. } => Err(Violation::Unexpected("REJECT")),
        }
    }

    /// Takes HELLO, the first message.
    fn handle_hello(&mut self, message: Message) -> Result<(), Violation> {
        let Message::Hello(hello) = message else {
            return Err(Violation::Unexpected("message before HELLO"));
        };
        self.config.hello().agree(&hello)?;
        self.visit = hello.visit;
        self.peer = Some(hello);
        self.hello_due = None;
        Ok(())
    }
}

/// What the server says.
impl Proto {
    /// Nothing new from now on; open requests may finish.
    pub fn go_away(&mut self, drain: Duration) {
        if !self.draining {
            self.draining = true;
            self.send(Message::GoAway {
                drain_ms: millis(drain),
            });
        }
    }

    /// Names other servers, instead of those named before. `moves`: the peer is to go to one of
    /// them now. Naming the same again says nothing, and returns false.
    pub fn name_alternates(&mut self, moves: bool, servers: Vec<Alternate>) -> bool {
        let told = (moves, servers);
        if self.alternates == told {
            return false;
        }
        let (moves, servers) = told.clone();
        self.alternates = told;
        self.send(Message::Alternates { moves, servers });
        true
    }

    /// Whether another server has sent the peer here.
    pub fn is_sent(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.is_sent)
    }

    /// From now on, REQUESTs wait for admission: the peer is new to a server that admits peers one
    /// after the other, or has to leave. Open requests go on.
    pub fn await_admission(&mut self) {
        self.is_admitted = false;
    }

    /// Sets the ledgers of the peer's address and of the holder of its token. Leases from now on
    /// are counted there.
    pub fn set_ledgers(&mut self, address: Arc<Ledger>, token: Option<Arc<Ledger>>) {
        self.ledgers.share_with(address, token);
    }

    /// The ledgers of the segments that it keeps in memory.
    pub fn ledgers(&self) -> &Ledgers {
        &self.ledgers
    }
}

/// What the driver polls.
impl Proto {
    /// Does what is due. Calling it early is harmless.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), Violation> {
        if self.hello_due.is_some_and(|due| due <= now) {
            return Err(Violation::Timeout("HELLO"));
        }
        if let Some(lapsed) = self.access.lapsed(now) {
            self.set_access(lapsed);
        }
        if matches!(self.access, Access::Refused { until } if until <= now) {
            return Err(Violation::Unauthorised);
        }
        self.known.expire(now);
        self.events.extend(self.streams.expire(now, &self.requests));
        self.end_due(now);
        if self.outbox.len() > OUTBOX_MAX {
            Err(Violation::Timeout("reading of the control stream"))
        } else {
            Ok(())
        }
    }

    /// When [`Proto::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadlines = self.requests.values().map(|open| open.deadline);
        let look = (!self.requests.is_empty()).then_some(self.looked_at + LEASE_LOOK_EVERY);
        let due = self
            .requests
            .values()
            .filter_map(|open| self.idle_until(open))
            .chain(look);
        let others = [
            self.known.due(),
            self.streams.due(),
            self.hello_due,
            self.access.due(),
        ];
        deadlines
            .chain(due)
            .chain(others.into_iter().flatten())
            .min()
    }

    /// The next message to send.
    pub fn poll_message(&mut self) -> Option<Message> {
        self.outbox.pop_front()
    }

    /// The next thing to do.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front().or_else(|| self.next_rescheduled())
    }

    /// The visit that the peer has just named in HELLO.
    pub fn poll_visit(&mut self) -> Option<VisitId> {
        self.visit.take()
    }

    /// The first stream that the peer has named and may have. Tell it of other servers by
    /// [`Proto::name_alternates`] before it is answered.
    pub fn poll_place(&mut self) -> Option<String> {
        self.placed.take()
    }

    /// The number of messages that wait to be sent.
    pub fn backlog(&self) -> usize {
        self.outbox.len()
    }

    /// Whether nothing is owed to the peer.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
            && self.finding.is_empty()
            && self.unanswered == 0
            && self.outbox.is_empty()
    }

    /// Counts since the last call.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Counts of a stream since the last call; `None` when all streams have been read.
    pub fn poll_stream_tally(&mut self) -> Option<(Arc<str>, StreamTally)> {
        self.streams.take_tally()
    }
}

#[cfg(test)]
mod tests;
