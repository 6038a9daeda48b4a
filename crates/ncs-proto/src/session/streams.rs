//! The streams that a peer asks for: those that it watches, and what is counted for each.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::event::Event;
use super::open::Open;
use super::tally::StreamTally;
use crate::time::Instant;

/// How long a peer counts as a viewer of a stream after a query for it; and how often it is checked
/// whether a viewer still has a request open.
const WATCHES_FOR: Duration = Duration::from_secs(30);
const WATCH_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Streams that are counted separately between two reads of the counts.
pub(super) const STREAMS_TALLIED_MAX: usize = 32;

/// The streams of one peer.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// GETs and SUBSCRIBEs without an answer.
    asking: HashMap<u64, Asking>,
    /// REQUESTs that are looked for or open.
    aliases: HashMap<u16, Asking>,
    /// The streams that the peer watches, and until when if nothing happens.
    watched: Vec<(Arc<str>, Instant)>,
    by_stream: Vec<(Arc<str>, StreamTally)>,
}

/// A query or request of the peer.
#[derive(Debug)]
struct Asking {
    /// The name of its stream; empty where it is not known.
    stream: Arc<str>,
    /// When it came.
    at: Instant,
}

impl Streams {
    /// A GET or SUBSCRIBE for a stream has come.
    pub(super) fn ask(&mut self, now: Instant, request: u64, stream: &str) {
        let stream = self.named(stream);
        self.asking.insert(request, Asking { stream, at: now });
    }

    /// When a GET or SUBSCRIBE came, if it has no answer yet.
    pub(super) fn asked_at(&self, request: u64) -> Option<Instant> {
        self.asking.get(&request).map(|asking| asking.at)
    }

    /// A GET or SUBSCRIBE is answered, or dropped.
    pub(super) fn answered(&mut self, request: u64) {
        self.asking.remove(&request);
    }

    /// A GET or SUBSCRIBE is refused.
    pub(super) fn refused(&mut self, request: u64) {
        let stream = self
            .asking
            .remove(&request)
            .map_or_else(|| "".into(), |asking| asking.stream);
        self.tally_of(&stream).refused += 1;
    }

    /// A REQUEST for a stream has come.
    pub(super) fn open(&mut self, now: Instant, alias: u16, stream: &str) {
        let stream = self.named(stream);
        self.aliases.insert(alias, Asking { stream, at: now });
    }

    /// When a REQUEST came, if it is open.
    pub(super) fn opened_at(&self, alias: u16) -> Option<Instant> {
        self.aliases.get(&alias).map(|asking| asking.at)
    }

    /// A REQUEST turns out to be for this stream, which the peer watches from now on.
    pub(super) fn watch_by(&mut self, now: Instant, alias: u16, stream: &str) -> Option<Event> {
        let stream = self.named(stream);
        let event = self.note_watched(now, &stream);
        self.aliases
            .entry(alias)
            .and_modify(|asking| asking.stream = stream);
        event
    }

    /// A REQUEST is over.
    pub(super) fn close(&mut self, alias: u16) {
        self.aliases.remove(&alias);
    }

    /// The peer watches a stream.
    pub(super) fn watch(&mut self, now: Instant, stream: &str) -> Option<Event> {
        let stream = self.named(stream);
        self.note_watched(now, &stream)
    }

    fn note_watched(&mut self, now: Instant, stream: &Arc<str>) -> Option<Event> {
        let until = now + WATCHES_FOR;
        if let Some((_, before)) = self
            .watched
            .iter_mut()
            .find(|(watched, _)| watched == stream)
        {
            *before = until;
            return None;
        }
        self.watched.push((Arc::clone(stream), until));
        Some(Event::Watches {
            stream: Arc::clone(stream),
            is_watched: true,
        })
    }

    /// Ends the streams that the peer does not watch any more.
    pub(super) fn expire(&mut self, now: Instant, requests: &BTreeMap<u16, Open>) -> Vec<Event> {
        let Self {
            watched, aliases, ..
        } = self;
        let mut events = Vec::new();
        watched.retain_mut(|(stream, until)| {
            if *until > now {
                return true;
            }
            let is_open = requests.keys().any(|alias| {
                aliases
                    .get(alias)
                    .is_some_and(|asking| asking.stream == *stream)
            });
            match is_open {
                true => *until = now + WATCH_LOOK_EVERY,
                false => events.push(Event::Watches {
                    stream: Arc::clone(stream),
                    is_watched: false,
                }),
            }
            is_open
        });
        events
    }

    /// When [`Streams::expire`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.watched.iter().map(|(_, until)| *until).min()
    }

    /// The counts of the stream of a REQUEST.
    pub(super) fn tally(&mut self, alias: u16) -> &mut StreamTally {
        let stream = self
            .aliases
            .get(&alias)
            .map_or_else(|| "".into(), |asking| Arc::clone(&asking.stream));
        self.tally_of(&stream)
    }

    /// Takes the counts of one stream.
    pub(super) fn take_tally(&mut self) -> Option<(Arc<str>, StreamTally)> {
        self.by_stream.pop()
    }

    fn tally_of(&mut self, stream: &Arc<str>) -> &mut StreamTally {
        // The peer chooses the names: beyond a number of them, the rest counts with requests whose
        // stream is not known.
        let name = if self.by_stream.len() < STREAMS_TALLIED_MAX {
            Arc::clone(stream)
        } else {
            "".into()
        };
        let at = self
            .by_stream
            .iter()
            .position(|(counted, _)| *counted == *stream || *counted == name)
            .unwrap_or_else(|| {
                self.by_stream.push((name, StreamTally::default()));
                self.by_stream.len() - 1
            });
        &mut self.by_stream[at].1
    }

    /// The name of a stream, shared where it is known.
    fn named(&self, name: &str) -> Arc<str> {
        let known = self.watched.iter().find(|(watched, _)| **watched == *name);
        known.map_or_else(|| name.into(), |(watched, _)| Arc::clone(watched))
    }
}
