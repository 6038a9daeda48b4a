//! GETs and SUBSCRIBEs: paths, their META, and new segments of streams.

use super::event::Event;
use super::known::named;
use super::limits::GET_COST;
use super::millis::millis;
use super::proto::Proto;
use super::refusals::{going_away, not_there};
use crate::object::{Body, Refusal, Resolved};
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::message::{
    Delivery, Get, Hello, Message, Meta, RequestCode, Subscribe, stream_of,
};

/// Stand for every path and stream that the peer may not have: no stream can have this name.
pub(super) const NOWHERE: &str = "/?/";
pub(super) const NO_STREAM: &str = "?";

impl Proto {
    /// Takes GET.
    pub(super) fn handle_get(&mut self, now: Instant, mut get: Get) -> Result<(), Violation> {
        self.check_unused(get.request)?;
        // Peers send GETs before they know this side's HELLO.
        if self.unanswered
            >= usize::from(self.config.requests_max.max(Hello::defaults().requests_max))
        {
            return Err(Violation::Limit("unanswered GETs"));
        }
        self.count_question(now, GET_COST);
        self.streams.ask(now, get.request, stream_of(&get.path));
        if self.draining {
            self.refuse(get.request, &going_away());
            return Ok(());
        }
        self.want_credential();
        if self.access.allows(&get.path) {
            self.place(stream_of(&get.path));
        } else {
            NOWHERE.clone_into(&mut get.path);
        }
        self.unanswered += 1;
        self.events.push_back(Event::Resolve(get));
        Ok(())
    }

    /// The peer wants this stream, and may have it.
    fn place(&mut self, stream: &str) {
        if !std::mem::replace(&mut self.is_placed, true) {
            self.placed = Some(stream.to_owned());
        }
    }

    /// The answer to [`Event::Resolve`].
    pub fn resolved(&mut self, now: Instant, request: u64, answer: Result<Resolved, Refusal>) {
        self.unanswered = self.unanswered.saturating_sub(1);
        match answer {
            Ok(resolved) if self.access.allows(&resolved.path) => {
                self.answer(now, request, resolved)
            }
            // The peer has lost the right to it meanwhile.
            Ok(_) => self.refuse(request, &not_there()),
            Err(refusal) => self.refuse(request, &refusal),
        }
        self.streams.answered(request);
    }

    /// Sends META, and the object where it is not coded.
    fn answer(&mut self, now: Instant, request: u64, resolved: Resolved) {
        let length = resolved.length;
        if self
            .peer
            .as_ref()
            .is_none_or(|peer| length > peer.segment_bytes_max)
        {
            let reason = format!("the segment has {length} bytes, more than this peer accepts");
            return self.refuse(
                request,
                &Refusal {
                    code: RequestCode::Limit,
                    retry_after: None,
                    reason,
                },
            );
        }
        let (delivery, tree, after) = match resolved.body {
            Body::Coded(held) => {
                let shape = held.lease.shape;
                if !self.peer.as_ref().is_some_and(|peer| peer.takes(&shape)) {
                    let is_coded_so = self
                        .peer
                        .as_ref()
                        .is_some_and(|peer| peer.codecs.have(shape.codec()));
                    let reason = match is_coded_so {
                        true => {
                            "the segment's block size or generation size exceeds this peer's limits"
                                .to_owned()
                        }
                        false => format!(
                            "the stream is coded with {}, which this peer does not support",
                            shape.codec().name()
                        ),
                    };
                    return self.refuse(
                        request,
                        &Refusal {
                            code: RequestCode::Limit,
                            retry_after: None,
                            reason,
                        },
                    );
                }
                let since = self.streams.asked_at(request).unwrap_or(now);
                let since = held
                    .birth
                    .as_ref()
                    .map_or(since, |birth| birth.at().max(since));
                let waited = now.saturating_duration_since(since);
                self.known.remember(
                    now,
                    &held.lease,
                    &resolved.path,
                    waited,
                    self.config.known_segments_max,
                );
                self.events
                    .extend(self.known.introduce(now, named(&held), &self.access));
                (Delivery::Coded(shape), held.tree, None)
            }
            Body::Inline(bytes) => (Delivery::Inline(bytes), None, None),
            Body::Whole(bytes) => match self.ledgers.deliver(now, &bytes) {
                Ok(shares) => (
                    Delivery::Stream,
                    None,
                    Some(Event::Deliver {
                        request,
                        bytes,
                        shares,
                    }),
                ),
                Err(refusal) => return self.refuse(request, &refusal),
            },
        };
        if self.streams.asked_at(request).is_some() {
            self.events
                .extend(self.streams.watch(now, stream_of(&resolved.path)));
        }
        self.send(Message::Meta(Meta {
            request,
            path: resolved.path,
            id: resolved.id,
            offset: resolved.offset,
            length,
            object_length: resolved.object_length,
            version: resolved.version,
            max_age_ms: millis(resolved.max_age),
            content_type: resolved.content_type,
            delivery,
            signature: resolved.signature,
            tree,
        }));
        self.events.extend(after);
    }

    /// Takes SUBSCRIBE.
    pub(super) fn handle_subscribe(
        &mut self,
        now: Instant,
        mut subscribe: Subscribe,
    ) -> Result<(), Violation> {
        self.check_unused(subscribe.request)?;
        self.count_question(now, GET_COST);
        self.streams.ask(now, subscribe.request, &subscribe.stream);
        if self.draining {
            self.refuse(subscribe.request, &going_away());
            return Ok(());
        }
        // No reason to close: HELLO does not name this limit, and a relay has the subscriptions of
        // all its peers.
        if self.subscriptions.len() >= usize::from(self.config.subscriptions_max) {
            let reason = "too many subscriptions".to_owned();
            self.refuse(
                subscribe.request,
                &Refusal {
                    code: RequestCode::Limit,
                    retry_after: None,
                    reason,
                },
            );
            return Ok(());
        }
        self.want_credential();
        if self.access.touches(&subscribe.stream) {
            self.place(&subscribe.stream);
        } else {
            NO_STREAM.clone_into(&mut subscribe.stream);
        }
        self.subscriptions.push(subscribe.request);
        self.events.push_back(Event::Subscribe(subscribe));
        Ok(())
    }

    /// Takes UNSUBSCRIBE.
    pub(super) fn handle_unsubscribe(&mut self, request: u64) {
        self.subscriptions.retain(|open| *open != request);
        self.streams.answered(request);
        self.events.push_back(Event::Unsubscribed { request });
    }

    /// The answer to [`Event::Subscribe`]. False if nothing is to be announced.
    pub fn subscribed(&mut self, request: u64, answer: Result<(), Refusal>) -> bool {
        if !self.subscriptions.contains(&request) {
            // It has ended meanwhile.
            return false;
        }
        match answer {
            Ok(()) => {
                self.streams.answered(request);
                self.send(Message::SubscribeOk { request });
                true
            }
            Err(refusal) => {
                self.refuse(request, &refusal);
                false
            }
        }
    }

    /// A new segment of a subscribed stream. False if the peer has unsubscribed.
    pub fn announced(&mut self, now: Instant, request: u64, resolved: Resolved) -> bool {
        if self.subscriptions.contains(&request) && self.access.allows(&resolved.path) {
            self.answer(now, request, resolved);
        }
        self.subscriptions.contains(&request)
    }

    /// A subscribed stream is not published any more.
    pub fn subscription_ended(&mut self, request: u64) {
        if self.subscriptions.contains(&request) {
            let reason = "the stream is published no more".to_owned();
            self.refuse(
                request,
                &Refusal {
                    code: RequestCode::Unknown,
                    retry_after: None,
                    reason,
                },
            );
        }
    }

    /// Checks that a number names one query at a time: two answers with one number could not be
    /// told apart.
    pub(super) fn check_unused(&self, request: u64) -> Result<(), Violation> {
        let is_used = self.streams.asked_at(request).is_some()
            || self.subscriptions.contains(&request)
            || self.asked.values().any(|asked| asked.request == request);
        if is_used {
            Err(Violation::Unexpected("number of a request that is in use"))
        } else {
            Ok(())
        }
    }
}
