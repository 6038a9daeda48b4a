//! Messages of a source's control stream.

use super::event::Event;
use super::ids::SourceId;
use super::keyring::Verdict;
use super::link::{Link, Source};
use super::proto::Proto;
use super::refusal::{refusal, refused};
use crate::object::{Refusal, RefusalCode};
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::message::{Delivery, Get, GetChecks, Message, Meta, RequestError, stream_of};

impl Proto {
    /// Takes a message of a source.
    pub fn handle_message(
        &mut self,
        now: Instant,
        source: SourceId,
        message: Message,
    ) -> Result<(), Violation> {
        match self.sources.get(&source).map(|source| &source.link) {
            None => return Ok(()),
            Some(Link::Greeting { .. }) => return self.handle_hello(now, source, message),
            Some(Link::Open { .. } | Link::Leaving) => {}
        }
        match message {
            Message::Meta(meta) => self.handle_meta(now, source, meta),
            Message::Error(error) => self.handle_error(now, source, error),
            Message::Reject {
                alias,
                code,
                retry_after_ms,
            } => {
                self.handle_reject(now, source, alias, code, retry_after_ms);
                Ok(())
            }
            Message::Grant { lasts_ms } => {
                if let Some(source) = self.sources.get_mut(&source) {
                    source.refuses = lasts_ms == 0;
                }
                if lasts_ms > 0 {
                    return Ok(());
                }
                self.effects.report(Event::TokenRefused(source));
                Ok(())
            }
            Message::SubscribeOk { .. } => Ok(()),
            Message::GoAway { .. } => {
                self.leave(source);
                Ok(())
            }
            Message::Hello(_) => Err(Violation::Unexpected("HELLO")),
            // A peer serves nothing.
            Message::Get(Get { request, .. })
            | Message::GetHashes { request, .. }
            | Message::GetChecks(GetChecks { request, .. }) => {
                let reason = "this side serves nothing".to_owned();
                let error = RequestError {
                    request,
                    code: RefusalCode::Unknown,
                    retry_after_ms: 0,
                    reason,
                };
                self.effects.send(source, Message::Error(error));
                self.effects.outbox.check(source)
            }
            Message::Request(request) => {
                let (alias, code) = (request.alias, RefusalCode::Unknown);
                self.effects.send(
                    source,
                    Message::Reject {
                        alias,
                        code,
                        retry_after_ms: 0,
                    },
                );
                self.effects.outbox.check(source)
            }
            Message::Subscribe(_) => Err(Violation::Unexpected("SUBSCRIBE")),
            // A neighbour, which a server has named, does not name others.
            Message::Peers { segment, peers } if !self.neighbours.contains(&source) => {
                self.effects.report(Event::Peers { segment, peers });
                Ok(())
            }
            // The same.
            Message::Alternates { moves, servers } if !self.neighbours.contains(&source) => {
                self.effects.report(Event::Alternates {
                    source,
                    moves,
                    servers,
                });
                Ok(())
            }
            // The server that this side trusts introduces pages, if they were offered to.
            Message::Page { identity } if self.is_introducer(source) => {
                self.effects.report(Event::Page { identity });
                Ok(())
            }
            Message::Pages { segment, pages } if self.is_introducer(source) => {
                self.effects.report(Event::Pages { segment, pages });
                Ok(())
            }
            Message::Signal { page, bytes } if self.is_introducer(source) => {
                self.effects.report(Event::Signal { page, bytes });
                Ok(())
            }
            Message::Checks(checks) => {
                if self.fetches.checks(source, &checks, &mut self.effects) {
                    return Ok(());
                }
                self.gets.check_known(checks.request)
            }
            // Not requested, or for servers alone.
            Message::Peers { .. }
            | Message::Page { .. }
            | Message::Pages { .. }
            | Message::Signal { .. }
            | Message::Alternates { .. }
            | Message::OfferPage { .. }
            | Message::Have(_)
            | Message::Offer { .. }
            | Message::Blame { .. }
            | Message::Auth(_)
            | Message::Unsubscribe { .. }
            | Message::Credit { .. }
            | Message::Reschedule { .. }
            | Message::Stop { .. }
            | Message::Rank { .. } => Ok(()),
        }
    }

    /// Takes ERROR: the refusal of a GET, a SUBSCRIBE, or a query about blocks.
    fn handle_error(
        &mut self,
        now: Instant,
        source: SourceId,
        error: RequestError,
    ) -> Result<(), Violation> {
        let RequestError {
            request,
            code,
            retry_after_ms,
            reason,
        } = error;
        if code == RefusalCode::GoingAway {
            // A query that came too late is asked of others, or on the next connection;
            // subscriptions too.
            self.leave(source);
            if !self.fetches.question_refused(now, request, source, None) {
                self.gets.postpone(request, source);
            }
            return Ok(());
        }
        self.note_trouble(
            now,
            source,
            refused("the question", code, retry_after_ms, &reason),
        );
        let refusal = self.in_plain_words(source, refusal(code, retry_after_ms, reason));
        if self
            .fetches
            .question_refused(now, request, source, refusal.retry_after)
        {
            return Ok(());
        }
        if self.unsubscribed(source, request, &refusal) {
            return Ok(());
        }
        let others = self.open_servers();
        self.gets
            .refused(request, source, refusal, &others, &mut self.effects)
    }

    /// Takes REJECT: the refusal of a REQUEST.
    fn handle_reject(
        &mut self,
        now: Instant,
        source: SourceId,
        alias: u16,
        code: RefusalCode,
        retry_after_ms: u64,
    ) {
        if code == RefusalCode::GoingAway {
            self.leave(source);
        }
        self.note_trouble(
            now,
            source,
            refused("the request", code, retry_after_ms, ""),
        );
        let refusal = refusal(code, retry_after_ms, String::new());
        let stranger = self
            .fetches
            .rejected(now, source, alias, refusal, &mut self.effects);
        if let Some((introduction, place)) = stranger {
            self.gets
                .introduce(introduction, place, now + self.config.answer_timeout);
        }
    }

    /// Takes META: the answer to a GET, or news of a subscribed stream.
    fn handle_meta(&mut self, now: Instant, source: SourceId, meta: Meta) -> Result<(), Violation> {
        let fits = match &meta.delivery {
            Delivery::Coded(shape) => self.config.hello.takes(shape),
            _ => meta.length <= self.config.hello.segment_bytes_max,
        };
        if !fits {
            return Err(Violation::Limit("META"));
        }
        if let Some(subscription) = self.subscriptions.get(&meta.request) {
            if stream_of(&meta.path) != subscription.stream {
                return Err(Violation::Unexpected("news of another stream"));
            }
            match self.keyring.judge(source, None, &meta) {
                Verdict::Taken => self.effects.report(Event::Announced {
                    request: meta.request,
                    meta,
                }),
                Verdict::Refused(_) => {}
                Verdict::Forged => self.condemn(now, source, None),
            }
            return Ok(());
        }
        let Some(path) = self.gets.path(meta.request, source) else {
            return self.gets.answered(source, meta, &mut self.effects);
        };
        match self.keyring.judge(source, Some(path), &meta) {
            Verdict::Taken => {
                self.answered_at = Some(now);
                self.gets.answered(source, meta, &mut self.effects)
            }
            Verdict::Refused(reason) => {
                let others = self.open_servers();
                let refusal = refusal(RefusalCode::Origin, 0, reason.to_owned());
                self.gets
                    .refused(meta.request, source, refusal, &others, &mut self.effects)
            }
            Verdict::Forged => {
                let others = self.open_servers();
                let refusal = refusal(RefusalCode::Origin, 0, "the answer is forged".to_owned());
                self.gets
                    .refused(meta.request, source, refusal, &others, &mut self.effects)?;
                self.condemn(now, source, None);
                Ok(())
            }
        }
    }

    /// Takes a refusal as the answer to a SUBSCRIBE. False if it is none. The subscription ends
    /// when no source is left that may have news.
    fn unsubscribed(&mut self, source: SourceId, request: u64, refusal: &Refusal) -> bool {
        let Some(subscription) = self.subscriptions.get_mut(&request) else {
            return false;
        };
        subscription.refused.insert(source);
        let mut servers = self
            .sources
            .keys()
            .filter(|source| !self.neighbours.contains(source));
        if servers.all(|source| subscription.refused.contains(source)) {
            self.subscriptions.remove(&request);
            self.effects.report(Event::Unsubscribed {
                request,
                refusal: refusal.clone(),
            });
        }
        true
    }

    /// Rewrites a refusal of a source that does not admit this side: it says that nothing exists,
    /// and has told before what is missing.
    fn in_plain_words(&self, source: SourceId, refusal: Refusal) -> Refusal {
        let reason = match self.sources.get(&source) {
            Some(Source {
                refuses: true,
                is_shown: true,
                ..
            }) => "the server rejects the token",
            Some(Source { refuses: true, .. }) => {
                "the server requires a token or a client certificate"
            }
            _ => return refusal,
        };
        if refusal.code != RefusalCode::Unknown {
            return refusal;
        }
        Refusal {
            code: RefusalCode::Forbidden,
            retry_after: None,
            reason: reason.to_owned(),
        }
    }
}
