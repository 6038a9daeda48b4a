//! Sources come and go: connections, HELLO, certificates, silence, and polluters.

use std::collections::BTreeSet;
use std::time::Duration;

use super::alternates::{Health, Reach};
use super::event::Event;
use super::evidence::Pollution;
use super::ids::SourceId;
use super::keyring::FIRST;
use super::link::{Link, Source};
use super::proto::Proto;
use crate::integrity::signing::StreamKey;
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::message::{Credential, Hello, Message, Subscribe};

/// Certificates of sources that are remembered.
const IDENTITIES_MAX: usize = 1024;

impl Proto {
    /// A source is connected. It gets `credential` before any query.
    pub fn handle_connected(
        &mut self,
        now: Instant,
        source: SourceId,
        credential: Option<Credential>,
    ) {
        if self.polluters.contains(&source) {
            self.effects.report(Event::Polluter(source));
            return;
        }
        let hello_due = now + self.config.hello_timeout;
        self.sources
            .insert(source, Source::new(hello_due, credential.is_some()));
        self.effects.outbox.open(source);
        self.effects
            .send(source, Message::Hello(self.config.hello.clone()));
        if let Some(credential) = credential {
            self.effects.send(source, Message::Auth(credential));
        }
        if self.neighbours.contains(&source) {
            return;
        }
        for (request, subscription) in &mut self.subscriptions {
            subscription.refused.remove(&source);
            self.effects.send(
                source,
                Message::Subscribe(Subscribe {
                    request: *request,
                    stream: subscription.stream.clone(),
                }),
            );
        }
    }

    /// Takes HELLO, the first message of a source.
    pub(super) fn handle_hello(
        &mut self,
        now: Instant,
        source: SourceId,
        message: Message,
    ) -> Result<(), Violation> {
        let Message::Hello(server) = message else {
            return Err(Violation::Unexpected("message before HELLO"));
        };
        self.config.hello.agree(&server)?;
        self.fetches.opened(source, &server);
        if let Some(known) = self.sources.get_mut(&source) {
            if let Link::Greeting { due } = known.link {
                let left = due.saturating_duration_since(now);
                let took = self.config.hello_timeout.saturating_sub(left);
                self.fetches.answered(source, took);
            }
            known.link = Link::Open { server };
        }
        if !self.neighbours.contains(&source) {
            self.gets.lighten(now);
            self.fetches.set_dark(now, false);
        }
        self.effects.report(Event::Ready(source));
        if let Some(offer) = self
            .offer_to(source)
            .filter(|_| !self.neighbours.contains(&source))
        {
            offer
                .messages()
                .into_iter()
                .for_each(|message| self.effects.send(source, message));
        }
        Ok(())
    }

    /// A source takes no new requests.
    pub(super) fn leave(&mut self, id: SourceId) {
        if self.leave_source(id) {
            self.effects.report(Event::GoingAway(id));
        }
    }

    /// Sends a source no new requests, and lets the open ones finish. Close its connection when
    /// [`Proto::is_quiet_at`] says so. Whether it took requests so far.
    pub fn leave_source(&mut self, id: SourceId) -> bool {
        let Some(source) = self.sources.get_mut(&id) else {
            return false;
        };
        let is_open = matches!(source.link, Link::Open { .. });
        if is_open {
            source.link = Link::Leaving;
            self.gets.give_up_on(id, &mut self.effects);
            self.fetches.leaving(id);
        }
        is_open
    }

    /// The connection to a source is gone. `is_outage`: the source has fallen silent or leaves, and
    /// has not closed the connection for an error on it. After an outage, the time without any
    /// server does not count.
    pub fn handle_disconnected(&mut self, now: Instant, source: SourceId, is_outage: bool) {
        self.sources.remove(&source);
        self.silent.remove(&source);
        self.effects.outbox.close(source);
        self.gets.disconnected(source);
        self.gets.give_up_on(source, &mut self.effects);
        self.fetches.disconnected(now, source);
        // A polluter is not connected again.
        let comes_again = !self.polluters.contains(&source) && !self.neighbours.contains(&source);
        if is_outage && comes_again && self.open_servers().is_empty() {
            self.gets.darken(now);
            self.fetches.set_dark(now, true);
        }
    }

    /// Says whether a source is silent that owes an answer. While it is, paths are asked of others
    /// at once.
    pub fn set_silent(&mut self, source: SourceId, is_silent: bool) {
        if is_silent {
            self.silent.insert(source);
            self.gets.press(source);
            self.gets.give_up_on(source, &mut self.effects);
            self.fetches.suspect(source);
        } else {
            self.silent.remove(&source);
        }
    }

    /// How a source is, for the choice of servers.
    pub fn health(&self, source: SourceId, reach: Reach) -> Health {
        match reach {
            _ if self.is_leaving(source) => Health::Leaving,
            Reach::Down => Health::Down,
            Reach::Coming => Health::Coming,
            Reach::Connected { .. } if self.server(source).is_none() => Health::Coming,
            Reach::Connected { is_mute: true } => Health::Silent,
            Reach::Connected { is_mute: false } => Health::Good,
        }
    }

    /// Calls those silent that are, as long as another server answers, or is connected and can be
    /// asked: then nothing is awaited of them. `hushed` are those that were called so.
    pub fn hush(
        &mut self,
        hushed: &mut BTreeSet<SourceId>,
        health: &[(SourceId, Health)],
        is_connected: impl Fn(SourceId) -> bool,
    ) {
        let serves = |(source, health): &(SourceId, Health)| match health {
            Health::Good => true,
            Health::Coming => is_connected(*source),
            _ => false,
        };
        let has_other = health.iter().any(serves);
        for (source, health) in health {
            let is_silent = *health == Health::Silent && has_other;
            if is_silent && hushed.insert(*source) {
                self.set_silent(*source, true);
            } else if *health == Health::Good && hushed.remove(source) {
                self.set_silent(*source, false);
            }
        }
    }

    /// Whether a source is said to be silent.
    pub fn is_silent(&self, source: SourceId) -> bool {
        self.silent.contains(&source)
    }

    /// Whether a source has been asked for something and has not sent all of it.
    pub fn owes(&self, source: SourceId) -> bool {
        self.gets.unanswered(source) > 0 || self.fetches.awaits(source)
    }

    /// Pins the key of a stream, or of every stream that has none of its own. What another key has
    /// signed, or none, is not taken from then on.
    pub fn pin(&mut self, stream: Option<String>, key: StreamKey) {
        self.keyring.pin(stream, key);
    }

    /// Forgets the key of a stream: the trusted source names the next one.
    pub fn unpin(&mut self, stream: &str) {
        self.keyring.unpin(stream);
    }

    /// Sets the round trip to a source, as QUIC measures it. Call this before a round of polling.
    pub fn set_rtt(&mut self, source: SourceId, rtt: Duration) {
        self.fetches.set_rtt(source, rtt);
    }

    /// HELLO of a source, while it is connected and takes requests.
    pub fn server(&self, source: SourceId) -> Option<&Hello> {
        self.sources.get(&source)?.link.server()
    }

    /// Whether a source takes no new requests.
    pub fn is_leaving(&self, source: SourceId) -> bool {
        self.sources
            .get(&source)
            .is_some_and(|source| matches!(source.link, Link::Leaving))
    }

    /// Notes the identity of a source: SHA-256 of the certificate that it has shown.
    pub fn identify(&mut self, source: SourceId, identity: [u8; 32]) {
        self.identities.insert(source, identity);
        // Peers come and go under new names. The identities of the oldest are useless.
        if self.identities.len() > IDENTITIES_MAX {
            let oldest = self.identities.keys().find(|source| **source != FIRST);
            if let Some(oldest) = oldest.copied() {
                self.identities.remove(&oldest);
            }
        }
    }

    /// The identity of a source, if it is known.
    pub fn identity(&self, source: SourceId) -> Option<[u8; 32]> {
        self.identities.get(&source).copied()
    }

    /// Notes that something has gone wrong at a server. A fetch that fails later can name the last
    /// such thing. Neighbours do not count: they come and go, and may claim anything.
    pub fn note_trouble(&mut self, now: Instant, source: SourceId, what: String) {
        if !self.neighbours.contains(&source) {
            self.trouble = Some((now, source, what));
        }
    }

    /// The last thing that has gone wrong, if nothing has gone well since.
    pub fn trouble(&self) -> Option<(SourceId, &str)> {
        let good = self.answered_at.max(self.fetches.progress_at());
        let (at, source, what) = self.trouble.as_ref()?;
        good.is_none_or(|good| good <= *at)
            .then_some((*source, what))
    }

    /// Disconnects all sources that fetches have found to be polluters. True if there were any.
    pub(super) fn condemn_polluters(&mut self, now: Instant) -> bool {
        let mut has_polluted = false;
        while let Some(pollution) = self.fetches.next_polluter() {
            has_polluted = true;
            self.condemn(now, pollution.source, Some(pollution));
        }
        has_polluted
    }

    /// Disconnects a source that was proved to send wrong blocks or forged answers, and reports it.
    pub(super) fn condemn(&mut self, now: Instant, source: SourceId, pollution: Option<Pollution>) {
        if let Some(Pollution {
            segment,
            generation,
            blocks,
            ..
        }) = pollution
            && source != FIRST
            && let Some(identity) = self.identities.get(&source).copied()
        {
            self.effects.send(
                FIRST,
                Message::Blame {
                    segment,
                    generation,
                    blocks,
                    identity,
                },
            );
        }
        if self.polluters.insert(source) {
            self.note_trouble(
                now,
                source,
                "it sent blocks that are proved wrong and is no longer used".to_owned(),
            );
            self.handle_disconnected(now, source, false);
            self.fetches.forget(source);
            if source == FIRST {
                self.fetches.acquit_all(now, &mut self.effects);
            }
            self.effects.report(Event::Polluter(source));
        }
    }
}
