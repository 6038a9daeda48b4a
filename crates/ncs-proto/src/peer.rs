//! The peer's side of a conversation, without I/O: what to request, from which source, and what has
//! come.
//!
//! There may be any number of *sources*: servers and relays of the same content, each with a
//! connection of its own. A path is asked of one of them, and of the next one if the first refuses
//! it, is gone, or takes long. The blocks of a generation are requested from all sources, a part
//! from each; no source knows of another (`docs/protocol.md`, section 7, explains how credit is
//! computed and split).
//!
//! The network's input goes in with the `handle_` calls, the program's wishes with [`Proto::get`],
//! [`Proto::fetch`] and [`Proto::subscribe`]. Out come messages for each source
//! ([`Proto::poll_message`]), answers and full decoders ([`Proto::poll_event`]), and streams to
//! refuse ([`Proto::poll_stop`]). After any call that puts something in, poll all three until they
//! are empty, then read [`Proto::poll_timeout`], which may have changed. Several calls may go in
//! before one round of polling; polling too often is harmless. A [`Violation`] concerns one source:
//! close its connection; the others are not affected.
//!
//! Wishes outlive connections. What is not answered when a connection ends is asked of another
//! source, or on the next connection. Decoders keep their blocks, because a segment is the same at
//! every source.
//!
//! The first source is trusted. Others are believed if they can prove what they send (`keyring`,
//! `evidence`). A source that sends wrong blocks or forged answers is not used again
//! ([`Event::Polluter`]). All blocks over the prime field prove themselves (`gfq`), so that for
//! them no source is trusted.
//!
//! This file has the program's calls and the polls; `connections`, `messages` and `streams` take
//! the network's input. `gets` and `fetches` decide what to ask next.

pub mod alternates;
pub mod assembly;
mod config;
mod connections;
mod counts;
mod effects;
mod event;
mod evidence;
mod fetches;
mod flight;
mod gets;
#[cfg(feature = "gfq")]
mod gfq;
#[cfg(not(feature = "gfq"))]
#[path = "peer/without_gfq.rs"]
mod gfq;
mod ids;
mod keyring;
mod link;
mod messages;
mod offer;
mod order;
mod pace;
mod path;
mod proto;
mod rebuilder;
mod refusal;
mod shares;
pub mod silence;
mod streams;
mod work;

use std::time::Duration;

use bytes::Bytes;

use crate::integrity::signing::StreamKey;
use crate::object::SegmentId;
use crate::sorted::SortedSet;
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::message::{Credential, Holding, Message, Subscribe};

pub use config::{Config, Secret};
pub use counts::{Counts, Progress, SourceCounts};
pub use event::{Answer, Event, Failure};
#[cfg(feature = "gfq")]
pub use gfq::parsed;
pub use gfq::{GfqGeneration, Tested, Trial};
pub use ids::{FetchId, SourceId};
use keyring::FIRST;
pub use keyring::{Keys, Proof};
pub use link::StreamEnd;
use link::{Link, Source};
use offer::{Offer, have};
pub use order::{Cut, Order, Place, Urgency};
pub use proto::Proto;
use proto::Subscription;
pub use rebuilder::Rebuilder;

/// What the program wants.
impl Proto {
    /// Asks what a path leads to, from the byte `offset` on. The answer carries the returned
    /// number.
    pub fn get(&mut self, now: Instant, path: &str, offset: u64, length: Option<u64>) -> u64 {
        self.gets.ask(
            Place {
                path: path.to_owned(),
                offset,
                length,
            },
            now + self.config.answer_timeout,
        )
    }

    /// Asks one source alone what a path leads to; with `held_only`, this source asks nobody else
    /// for it. It fails as soon as the source is gone, silent or about to leave.
    pub fn get_of(
        &mut self,
        now: Instant,
        (source, held_only): (SourceId, bool),
        path: &str,
        offset: u64,
        length: Option<u64>,
    ) -> u64 {
        let place = Place {
            path: path.to_owned(),
            offset,
            length,
        };
        let due = now + self.config.answer_timeout;
        let request = self.gets.ask_only((source, held_only), place, due);
        if self.server(source).is_none() || self.is_silent(source) {
            self.gets.give_up_on(source, &mut self.effects);
        }
        request
    }

    /// Drops a GET. Its answer is not wanted any more.
    pub fn cancel_get(&mut self, request: u64) {
        self.gets.cancel(request);
    }

    /// Fetches a segment. Sources that do not know it are asked for `place`, the path that leads to
    /// it, if there is one.
    pub fn fetch(&mut self, now: Instant, order: Order, place: Option<Place>) -> FetchId {
        let key = place
            .as_ref()
            .and_then(|place| self.keyring.key(&place.path));
        let proof = order.proof.filter(|proof| key == Some(proof.key));
        let fetch = self.fetches.add(now, order, place, proof);
        self.ask_to_name(now);
        fetch
    }

    /// Changes whether somebody waits for a fetch.
    pub fn set_urgency(&mut self, now: Instant, fetch: FetchId, urgency: Urgency) {
        self.fetches
            .set_urgency(now, fetch, urgency, &mut self.effects);
    }

    /// Ends a fetch that is not wanted any more.
    pub fn cancel_fetch(&mut self, fetch: FetchId) {
        self.fetches.cancel(fetch, &mut self.effects);
    }

    /// Whether generations of a fetch are still to come, or under trial. Complete generations
    /// belong to the driver.
    pub fn is_under_way(&self, fetch: FetchId) -> bool {
        self.fetches.is_under_way(fetch)
    }

    /// Takes the verdict on the bytes of a fetch whose generations have all come: whether they have
    /// the hash that names them. True if they do not, and all generations come again.
    pub fn confirm(&mut self, now: Instant, fetch: FetchId, is_right: bool) -> bool {
        self.fetches.confirm(now, fetch, is_right)
    }

    /// Takes the verdict that some bytes of these complete generations do not have the hash of the
    /// segment's tree. True if the generations come again; otherwise the fetch is over.
    pub fn refute(&mut self, now: Instant, fetch: FetchId, generations: &SortedSet<u32>) -> bool {
        self.fetches.refute(now, fetch, generations)
    }

    /// Takes the verdict that all bytes of a complete generation are proven. Its rows are not kept
    /// any longer.
    pub fn settle(&mut self, fetch: FetchId, generation: u32) {
        self.fetches.settle(fetch, generation);
    }

    /// Takes the result of a test that [`Event::Test`] asked for.
    pub fn tested(&mut self, now: Instant, tested: Tested) {
        self.fetches.tested(now, tested, &mut self.effects);
    }

    /// Subscribes to new segments of a stream, at every server. A segment may be announced more
    /// than once.
    pub fn subscribe(&mut self, stream: &str) -> u64 {
        let request = self.gets.number();
        for source in self.servers() {
            self.effects.send(
                source,
                Message::Subscribe(Subscribe {
                    request,
                    stream: stream.to_owned(),
                }),
            );
        }
        self.subscriptions.insert(
            request,
            Subscription {
                stream: stream.to_owned(),
                refused: SortedSet::new(),
            },
        );
        request
    }

    /// Ends a subscription.
    pub fn unsubscribe(&mut self, request: u64) {
        if self.subscriptions.remove(&request).is_some() {
            for source in self.servers() {
                self.effects.send(source, Message::Unsubscribe { request });
            }
        }
    }

    /// Sends a newer credential to a source.
    pub fn authorise(&mut self, source: SourceId, credential: Credential) {
        if let Some(source) = self.sources.get_mut(&source) {
            source.is_shown = true;
        }
        self.effects.send(source, Message::Auth(credential));
    }

    /// Adds a source that a server has named, before it is connected. It is asked only for segments
    /// that it holds.
    pub fn add_neighbour(&mut self, source: SourceId) {
        self.neighbours.insert(source);
        self.fetches.add_neighbour(source);
    }

    /// A neighbour holds something of a segment.
    pub fn note_holding(&mut self, source: SourceId, segment: SegmentId) {
        self.fetches.note_holding(source, segment);
    }

    /// Removes a source that has no connection and gets none again.
    pub fn remove_source(&mut self, source: SourceId) {
        self.neighbours.remove(&source);
        self.fetches.remove_source(source);
    }

    /// Offers to all servers to serve others, on this UDP port, with the certificate of this
    /// SHA-256.
    pub fn offer(&mut self, port: u16, identity: [u8; 32]) {
        let offer = Offer::new(port, identity);
        self.make_offer(offer);
    }

    /// Offers to the trusted server to serve other web pages, which it introduces.
    pub fn offer_page(&mut self) {
        self.make_offer(Offer::to_pages());
    }

    fn make_offer(&mut self, offer: Offer) {
        self.offer = Some(offer);
        // Other servers are told after their HELLO.
        for source in self.open_servers() {
            if let Some(offer) = self.offer_to(source) {
                let message = offer.message();
                self.effects.send(source, message);
            }
        }
    }

    /// The offer, if it is made to this server.
    fn offer_to(&self, source: SourceId) -> Option<&Offer> {
        let offer = self.offer.as_ref()?;
        (source == FIRST || !offer.is_to_pages()).then_some(offer)
    }

    /// Whether this side has offered to serve pages, and this is the server that introduces them.
    fn is_introducer(&self, source: SourceId) -> bool {
        source == FIRST && self.offer.as_ref().is_some_and(Offer::is_to_pages)
    }

    /// Sends something to another page, through the trusted server.
    pub fn signal(&mut self, page: [u8; 32], bytes: Bytes) {
        self.effects.send(FIRST, Message::Signal { page, bytes });
    }

    /// Tells all servers which holdings have changed, if anything is offered. Call this a few times
    /// a second at most.
    pub fn tell_holdings(&mut self, changed: &[Holding]) {
        let Some(offer) = &mut self.offer else { return };
        offer.note(changed);
        for source in self.open_servers() {
            if self.offer_to(source).is_none() {
                continue;
            }
            have(changed).for_each(|message| self.effects.send(source, message));
        }
    }
}

/// What the driver polls.
impl Proto {
    /// Does what is due. Calling it early is harmless. Returns a source that has broken the rules
    /// by its silence, or earlier; after it is disconnected there may be another.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), (SourceId, Violation)> {
        for (id, source) in &self.sources {
            if let Link::Greeting { due } = source.link
                && due <= now
            {
                return Err((*id, Violation::Timeout("HELLO")));
            }
        }
        self.gets.expire(now, &mut self.effects);
        self.take_introductions();
        self.advance(now);
        self.fetches.next_broken().map_or(Ok(()), Err)
    }

    /// When [`Proto::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let hello = self
            .sources
            .values()
            .filter_map(|source| match source.link {
                Link::Greeting { due } => Some(due),
                _ => None,
            });
        let due = [self.gets.due(), self.fetches.due()];
        hello.chain(due.into_iter().flatten()).min()
    }

    /// The next message to send to a source.
    pub fn poll_message(&mut self, now: Instant, source: SourceId) -> Option<Message> {
        self.take_introductions();
        if self.fetches.is_stirred() {
            self.advance(now);
        }
        if self.effects.outbox.is_empty_for(source)
            && !self.neighbours.contains(&source)
            && let Some(unanswered_max) = self
                .sources
                .get(&source)
                .and_then(|source| source.link.unanswered_max())
            && let Some(question) = self.next_question(now, source, unanswered_max)
        {
            return Some(question);
        }
        self.effects.outbox.pop(source)
    }

    /// The next event. Poll it after [`Proto::poll_message`], which may cause some.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.effects.events.pop_front()
    }

    /// The next stream of a source to refuse with STOP_SENDING and DONE.
    pub fn poll_stop(&mut self, source: SourceId) -> Option<u64> {
        self.sources.get_mut(&source)?.stops.pop_front()
    }

    /// Lets fetches continue, and disconnects the polluters that they have found.
    fn advance(&mut self, now: Instant) {
        // Their other blocks are not to be tested.
        self.condemn_polluters(now);
        self.ask_to_name(now);
        self.fetches.advance(now, &mut self.effects);
        self.ask_to_name(now);
        if self.condemn_polluters(now) {
            // Their parts are requested from the others.
            self.fetches.advance(now, &mut self.effects);
        }
    }

    /// Asks for paths whose segments a source has to name before it is used for them.
    fn ask_to_name(&mut self, now: Instant) {
        while let Some((introduction, place)) = self.fetches.next_unnamed(&mut self.effects) {
            self.gets
                .introduce(introduction, place, now + self.config.answer_timeout);
        }
    }

    /// Tells fetches which sources now know their segments.
    fn take_introductions(&mut self) {
        while let Some((introduction, named)) = self.gets.next_introduced() {
            self.fetches
                .introduced(introduction, named, &mut self.effects);
        }
    }

    /// The next query to a source: a GET, or a query about blocks.
    fn next_question(
        &mut self,
        now: Instant,
        source: SourceId,
        unanswered_max: usize,
    ) -> Option<Message> {
        let answers = |id: &SourceId, source: &Source| {
            source.link.server().is_some() && !self.silent.contains(id)
        };
        let mut others = self
            .sources
            .iter()
            .filter(|(id, _)| **id != source && !self.neighbours.contains(id));
        if self.silent.contains(&source) && others.any(|(id, other)| answers(id, other)) {
            return None;
        }
        let left = unanswered_max.saturating_sub(self.fetches.questions(source));
        // The first source names the key of a stream, so it is asked first.
        let first_is_open = source != FIRST
            && self
                .sources
                .get(&FIRST)
                .is_some_and(|first| answers(&FIRST, first));
        let keyring = &self.keyring;
        let waits_for_key = |path: &str| first_is_open && keyring.key(path).is_none();
        if let Some(get) = self.gets.next_question(now, source, left, waits_for_key) {
            return Some(Message::Get(get));
        }
        if self.gets.unanswered(source) >= left {
            return None;
        }
        let gets = &mut self.gets;
        self.fetches.next_question(now, source, || gets.number())
    }
}

/// What can be read at any time.
impl Proto {
    /// Counts since the start.
    pub fn counts(&self) -> Counts {
        Counts {
            polluters: self.polluters.len() as u64,
            ..self.fetches.counts()
        }
    }

    /// Counts of one source since the start.
    pub fn source_counts(&self, source: SourceId) -> SourceCounts {
        SourceCounts {
            is_polluter: self.polluters.contains(&source),
            ..self.fetches.source_counts(source)
        }
    }

    /// The progress of all open generations.
    pub fn progress(&self) -> Vec<Progress> {
        self.fetches.progress()
    }

    /// The share of datagrams that are lost at present, and bytes of payload a second, over all
    /// sources.
    pub fn path(&self) -> (f64, f64) {
        self.fetches.path()
    }

    /// How long no server was connected, in all, up to the end of the last outage.
    pub fn outages(&self) -> Duration {
        self.fetches.outages()
    }

    /// The key that is pinned for the stream of this path.
    pub fn key(&self, path: &str) -> Option<StreamKey> {
        self.keyring.key(path)
    }

    /// Whether no request or message is open at a source.
    pub fn is_quiet_at(&self, source: SourceId) -> bool {
        self.fetches.is_quiet_at(source) && self.effects.outbox.is_empty_for(source)
    }

    /// Whether no request or message is open at any source.
    pub fn is_quiet(&self) -> bool {
        self.fetches.is_quiet() && self.effects.outbox.is_empty()
    }

    /// Whether every wish has been granted or refused.
    pub fn is_idle(&self) -> bool {
        self.gets.is_empty() && self.fetches.is_empty() && self.effects.outbox.is_empty()
    }
}

#[cfg(test)]
mod tests;
