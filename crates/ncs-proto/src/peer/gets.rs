//! GETs under way, and the bytes of whole objects that come for them.
//!
//! A path is asked of one source. It is asked of another one, too, when the first refuses, is gone,
//! or has not answered for a while; the first answer counts. The GET fails when every source that
//! takes requests has refused it.
//!
//! A source that does not know a segment may never have been asked for the path that leads to it.
//! Then it is asked for that path alone: an *introduction*.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::BytesMut;

use super::effects::Effects;
use super::event::{Answer, Event, Failure};
use super::ids::{FetchId, SourceId};
use super::order::Place;
use crate::media::media_type;
use crate::object::{Refusal, SegmentId, Shape};
use crate::sorted::{SortedMap, SortedSet};
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::message::{Delivery, Get, Meta};

/// How long a source is waited for before another one is asked as well: a server that has to ask
/// its origin takes that long.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same for a playlist. A player that polls it has a few seconds of media left, and another
/// source has the playlist already or asks for it as well.
const PLAYLIST_PATIENCE: Duration = Duration::from_millis(200);
/// How much longer a GET may take while there is no connection to any server.
pub(super) const OUTAGE_MAX: Duration = Duration::from_secs(300);

/// GETs under way.
#[derive(Debug)]
pub(super) struct Gets {
    open: SortedMap<u64, Question>,
    next: u64,
    object_bytes_max: u64,
    /// Since when there has been no connection to any server.
    dark_since: Option<Instant>,
    /// Introductions that are over, and the segment that the source has named, if any.
    introduced: VecDeque<(Introduction, Option<(SegmentId, Shape)>)>,
}

/// A GET that asks one source for the path of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Introduction {
    pub(super) fetch: FetchId,
    pub(super) source: SourceId,
}

#[derive(Debug)]
struct Question {
    place: Place,
    due: Instant,
    /// How much longer it may still be put off.
    outage_left: Duration,
    /// Sources that were asked and have not answered in full.
    asked: SortedMap<SourceId, Reply>,
    refused: SortedSet<SourceId>,
    /// When the sources that were asked have taken too long.
    patient_until: Option<Instant>,
    /// Whether one more source may be asked, though none has refused.
    is_pressing: bool,
    introduction: Option<Introduction>,
    /// The only source that is asked.
    only: Option<SourceId>,
    /// Whether it is to answer from what it holds.
    held_only: bool,
}

/// The answer of a source so far.
#[derive(Debug, Default)]
struct Reply {
    /// Set once META has said that the bytes come on a stream.
    meta: Option<Meta>,
    /// The bytes of the stream, which may come before META.
    object: BytesMut,
    finished: bool,
}

impl Gets {
    /// No GETs; objects may have at most this many bytes.
    pub(super) fn new(object_bytes_max: u64) -> Self {
        Self {
            open: SortedMap::new(),
            next: 1,
            object_bytes_max,
            dark_since: None,
            introduced: VecDeque::new(),
        }
    }

    /// A number for a GET or SUBSCRIBE.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    pub(super) fn ask(&mut self, place: Place, due: Instant) -> u64 {
        let request = self.number();
        self.open.insert(request, Question::new(place, due, None));
        request
    }

    /// Asks one source alone, perhaps for what it holds.
    pub(super) fn ask_only(
        &mut self,
        (source, held_only): (SourceId, bool),
        place: Place,
        due: Instant,
    ) -> u64 {
        let request = self.number();
        self.open.insert(
            request,
            Question {
                only: Some(source),
                held_only,
                ..Question::new(place, due, None)
            },
        );
        request
    }

    /// Asks one source for the path of a segment that a fetch needs.
    pub(super) fn introduce(&mut self, introduction: Introduction, place: Place, due: Instant) {
        let request = self.number();
        self.open
            .insert(request, Question::new(place, due, Some(introduction)));
    }

    /// The next introduction that is over.
    pub(super) fn next_introduced(&mut self) -> Option<(Introduction, Option<(SegmentId, Shape)>)> {
        self.introduced.pop_front()
    }

    pub(super) fn cancel(&mut self, request: u64) {
        self.open.remove(&request);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// A source does not answer a GET any more.
    pub(super) fn postpone(&mut self, request: u64, source: SourceId) {
        if let Some(question) = self.open.get_mut(&request) {
            question.asked.remove(&source);
        }
    }

    /// The connection of a source is gone: its GETs are asked again, of it or another.
    pub(super) fn disconnected(&mut self, source: SourceId) {
        self.open.retain(|_, question| {
            question
                .introduction
                .is_none_or(|introduction| introduction.source != source)
        });
        for question in self.open.values_mut() {
            question.asked.remove(&source);
            question.refused.remove(&source);
        }
    }

    /// A source is silent: its GETs may be asked of others at once.
    pub(super) fn press(&mut self, source: SourceId) {
        for question in self
            .open
            .values_mut()
            .filter(|question| question.asked.contains_key(&source))
        {
            (question.is_pressing, question.patient_until) = (true, None);
        }
    }

    /// A source is gone, silent or leaves: GETs that it alone may answer fail.
    pub(super) fn give_up_on(&mut self, source: SourceId, effects: &mut Effects) {
        self.open.retain(|request, question| {
            let is_over = question.only == Some(source);
            if is_over {
                effects.report(Event::Answered {
                    request: *request,
                    answer: Err(Failure::Gone),
                });
            }
            !is_over
        });
    }

    /// The last connection to a server is gone: all GETs wait for the next one.
    pub(super) fn darken(&mut self, now: Instant) {
        self.dark_since.get_or_insert(now);
    }

    /// A server is connected again. The time without one does not count.
    pub(super) fn lighten(&mut self, now: Instant) {
        let Some(since) = self.dark_since.take() else {
            return;
        };
        let outage = now.saturating_duration_since(since);
        for question in self.open.values_mut() {
            let added = outage.min(question.outage_left);
            question.due += added;
            question.outage_left -= added;
        }
    }

    /// The number of GETs that a source has not answered.
    pub(super) fn unanswered(&self, source: SourceId) -> usize {
        self.open
            .values()
            .filter(|question| question.asked.contains_key(&source))
            .count()
    }

    /// The path of a GET to a source, if no META has come for it.
    pub(super) fn path(&self, request: u64, source: SourceId) -> Option<&str> {
        let question = self.open.get(&request)?;
        question
            .asked
            .get(&source)
            .filter(|reply| reply.meta.is_none())
            .map(|_| question.place.path.as_str())
    }

    /// The next GET to send to a source, if it may leave one more unanswered. A path that `waits`
    /// for the trusted source is asked of others once that one has refused, or takes long.
    pub(super) fn next_question(
        &mut self,
        now: Instant,
        source: SourceId,
        unanswered_max: usize,
        waits: impl Fn(&str) -> bool,
    ) -> Option<Get> {
        if self.unanswered(source) >= unanswered_max {
            return None;
        }
        let may_be_asked = |question: &Question| {
            let is_anybodys = question.introduction.is_none() && question.only.is_none();
            let is_new = question.asked.is_empty() && question.refused.is_empty() && is_anybodys;
            question.may_be_asked(source) && !(is_new && waits(&question.place.path))
        };
        let (request, question) = self
            .open
            .iter_mut()
            .find(|(_, question)| may_be_asked(question))?;
        question.asked.insert(source, Reply::default());
        question.patient_until = Some(now + patience(&question.place.path));
        question.is_pressing = false;
        let Place {
            path,
            offset,
            length,
        } = question.place.clone();
        Some(Get {
            request: *request,
            path,
            offset,
            length,
            held_only: question.held_only,
        })
    }

    pub(super) fn answered(
        &mut self,
        source: SourceId,
        meta: Meta,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let request = meta.request;
        let Some(question) = self.open.get_mut(&request) else {
            return self.check_known(request);
        };
        let offset = question.place.offset;
        let covers =
            meta.offset <= offset && (meta.length == 0 || offset - meta.offset < meta.length);
        let reply = question
            .asked
            .get_mut(&source)
            .filter(|reply| reply.meta.is_none() && covers);
        let reply = reply.ok_or(Violation::Unexpected("META"))?;
        if let Some(introduction) = question.introduction {
            let named = match meta.delivery {
                Delivery::Coded(shape) => Some((meta.id, shape)),
                Delivery::Inline(_) | Delivery::Stream => None,
            };
            self.introduced.push_back((introduction, named));
            self.open.remove(&request);
            return Ok(());
        }
        let bytes = match &meta.delivery {
            Delivery::Coded(_) => None,
            Delivery::Inline(bytes) => Some(bytes.clone()),
            Delivery::Stream => {
                reply.meta = Some(meta);
                return self.complete(request, source, effects);
            }
        };
        self.open.remove(&request);
        effects.report(Event::Answered {
            request,
            answer: Ok(Answer {
                meta,
                bytes,
                source,
            }),
        });
        Ok(())
    }

    /// Takes a refusal; `sources` are those that take requests.
    pub(super) fn refused(
        &mut self,
        request: u64,
        source: SourceId,
        refusal: Refusal,
        sources: &SortedSet<SourceId>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let Some(question) = self.open.get_mut(&request) else {
            return self.check_known(request);
        };
        if let Some(introduction) = question.introduction {
            self.introduced.push_back((introduction, None));
            self.open.remove(&request);
            return Ok(());
        }
        question.asked.remove(&source);
        question.refused.insert(source);
        let is_last = question.only.is_some() || sources.is_subset(&question.refused);
        if question.asked.is_empty() && is_last {
            self.open.remove(&request);
            effects.report(Event::Answered {
                request,
                answer: Err(Failure::Refused(refusal)),
            });
        }
        Ok(())
    }

    /// Takes bytes of an object. False if they belong to no GET.
    pub(super) fn object_bytes(
        &mut self,
        request: u64,
        source: SourceId,
        bytes: &[u8],
    ) -> Result<bool, Violation> {
        let Some(question) = self.open.get_mut(&request) else {
            return self.check_known(request).map(|()| false);
        };
        let Some(reply) = question.asked.get_mut(&source) else {
            return Ok(false);
        };
        let most = reply
            .meta
            .as_ref()
            .map_or(self.object_bytes_max, |meta| meta.length);
        if (reply.object.len() + bytes.len()) as u64 > most {
            return Err(Violation::Malformed("object stream"));
        }
        reply.object.extend_from_slice(bytes);
        Ok(true)
    }

    /// The stream of an object has ended.
    pub(super) fn finished(
        &mut self,
        request: u64,
        source: SourceId,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        if let Some(reply) = self
            .open
            .get_mut(&request)
            .and_then(|question| question.asked.get_mut(&source))
        {
            reply.finished = true;
        }
        self.complete(request, source, effects)
    }

    pub(super) fn expire(&mut self, now: Instant, effects: &mut Effects) {
        let is_dark = self.dark_since.is_some();
        let is_late = |question: &Question| question.ends_at(is_dark) <= now;
        let late: Vec<u64> = self
            .open
            .iter()
            .filter(|(_, question)| is_late(question))
            .map(|(request, _)| *request)
            .collect();
        for request in late {
            let Some(question) = self.open.remove(&request) else {
                continue;
            };
            let has_come = question
                .asked
                .values()
                .any(|reply| !reply.object.is_empty());
            let failure = if has_come {
                Failure::Slow
            } else {
                Failure::Stalled
            };
            match question.introduction {
                Some(introduction) => self.introduced.push_back((introduction, None)),
                None => effects.report(Event::Answered {
                    request,
                    answer: Err(failure),
                }),
            }
        }
        for question in self.open.values_mut() {
            question.is_pressing |= question
                .patient_until
                .take_if(|until| *until <= now)
                .is_some();
        }
    }

    /// When [`Gets::expire`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let is_dark = self.dark_since.is_some();
        let due = |question: &Question| {
            let ends_at = question.ends_at(is_dark);
            question
                .patient_until
                .map_or(ends_at, |until| until.min(ends_at))
        };
        self.open.values().map(due).min()
    }

    /// Answers a GET if both META and the stream have come.
    fn complete(
        &mut self,
        request: u64,
        source: SourceId,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let reply = self
            .open
            .get_mut(&request)
            .and_then(|question| question.asked.get_mut(&source));
        let Some(Reply {
            meta: Some(meta),
            object,
            finished,
        }) = reply
        else {
            return Ok(());
        };
        let came = object.len() as u64;
        if came > meta.length || (*finished && came < meta.length) {
            return Err(Violation::Malformed("object stream"));
        }
        if *finished {
            let answer = Answer {
                meta: meta.clone(),
                bytes: Some(object.split().freeze()),
                source,
            };
            self.open.remove(&request);
            effects.report(Event::Answered {
                request,
                answer: Ok(answer),
            });
        }
        Ok(())
    }

    /// Checks that a GET of this number was ever sent: its answer may come after its end.
    pub(super) fn check_known(&self, request: u64) -> Result<(), Violation> {
        if request < self.next {
            Ok(())
        } else {
            Err(Violation::Unexpected("answer"))
        }
    }
}

fn patience(path: &str) -> Duration {
    match media_type(path) {
        "application/vnd.apple.mpegurl" | "application/dash+xml" => PLAYLIST_PATIENCE,
        _ => PATIENCE,
    }
}

impl Question {
    fn new(place: Place, due: Instant, introduction: Option<Introduction>) -> Self {
        let (asked, refused) = (SortedMap::new(), SortedSet::new());
        let outage_left = OUTAGE_MAX;
        Self {
            place,
            due,
            outage_left,
            asked,
            refused,
            patient_until: None,
            is_pressing: false,
            introduction,
            only: None,
            held_only: false,
        }
    }

    /// When it is given up.
    fn ends_at(&self, is_dark: bool) -> Instant {
        if is_dark {
            self.due + self.outage_left
        } else {
            self.due
        }
    }

    fn may_be_asked(&self, source: SourceId) -> bool {
        if let Some(introduction) = self.introduction {
            return introduction.source == source && self.asked.is_empty();
        }
        if self.only.is_some_and(|only| only != source) {
            return false;
        }
        let is_new = !self.asked.contains_key(&source) && !self.refused.contains(&source);
        is_new && (self.asked.is_empty() || self.is_pressing)
    }
}
