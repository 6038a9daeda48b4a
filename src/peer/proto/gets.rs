//! GETs under way, and the bytes of whole objects that come for them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use bytes::BytesMut;

use super::{Answer, Event, Failure};
use crate::object::Refusal;
use crate::wire::Violation;
use crate::wire::message::{Delivery, Get, Meta};

/// GETs under way.
#[derive(Debug)]
pub(super) struct Gets {
    open: BTreeMap<u64, Question>,
    unsent: VecDeque<u64>,
    next: u64,
    object_bytes_max: u64,
}

#[derive(Debug)]
struct Question {
    path: String,
    offset: u64,
    length: Option<u64>,
    due: Instant,
    sent: bool,
    /// Set once META has said that the bytes come on a stream.
    meta: Option<Meta>,
    /// The bytes of the stream, which may come before META.
    object: BytesMut,
    finished: bool,
}

impl Gets {
    /// No GETs; objects of at most this many bytes are taken.
    pub(super) fn new(object_bytes_max: u64) -> Self {
        Self { open: BTreeMap::new(), unsent: VecDeque::new(), next: 1, object_bytes_max }
    }

    /// A number for a GET or SUBSCRIBE.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    pub(super) fn ask(&mut self, path: &str, offset: u64, length: Option<u64>, due: Instant) -> u64 {
        let request = self.number();
        let question = Question {
            path: path.to_owned(),
            offset,
            length,
            due,
            sent: false,
            meta: None,
            object: BytesMut::new(),
            finished: false,
        };
        self.open.insert(request, question);
        self.unsent.push_back(request);
        request
    }

    pub(super) fn cancel(&mut self, request: u64) {
        self.open.remove(&request);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// This one is to be asked again when it can be.
    pub(super) fn postpone(&mut self, request: u64) {
        if let Some(question) = self.open.get_mut(&request).filter(|question| question.sent) {
            question.sent = false;
            self.unsent.push_back(request);
        }
    }

    /// What was asked is to be asked again.
    pub(super) fn disconnected(&mut self) {
        for question in self.open.values_mut() {
            question.sent = false;
            question.meta = None;
            question.object.clear();
            question.finished = false;
        }
        self.unsent = self.open.keys().copied().collect();
    }

    /// The next GET to send, if one more may be unanswered.
    pub(super) fn next_question(&mut self, unanswered_max: usize) -> Option<Get> {
        if self.open.values().filter(|question| question.sent).count() >= unanswered_max {
            return None;
        }
        while let Some(request) = self.unsent.pop_front() {
            let Some(question) = self.open.get_mut(&request) else { continue };
            question.sent = true;
            let path = question.path.clone();
            return Some(Get { request, path, offset: question.offset, length: question.length });
        }
        None
    }

    pub(super) fn answered(&mut self, meta: Meta, events: &mut VecDeque<Event>) -> Result<(), Violation> {
        let request = meta.request;
        let Some(question) = self.open.get_mut(&request) else { return self.check_known(request) };
        let covers = meta.offset <= question.offset && (meta.length == 0 || question.offset - meta.offset < meta.length);
        if !question.sent || question.meta.is_some() || !covers {
            return Err(Violation::Unexpected("META"));
        }
        let bytes = match &meta.delivery {
            Delivery::Coded(_) => None,
            Delivery::Inline(bytes) => Some(bytes.clone()),
            Delivery::Stream => {
                question.meta = Some(meta);
                return self.complete(request, events);
            }
        };
        self.open.remove(&request);
        events.push_back(Event::Answered { request, answer: Ok(Answer { meta, bytes }) });
        Ok(())
    }

    pub(super) fn refused(&mut self, request: u64, refusal: Refusal, events: &mut VecDeque<Event>) -> Result<(), Violation> {
        if self.open.remove(&request).is_none() {
            return self.check_known(request);
        }
        events.push_back(Event::Answered { request, answer: Err(Failure::Refused(refusal)) });
        Ok(())
    }

    /// Bytes of an object came. False if nobody waits for them.
    pub(super) fn object_bytes(&mut self, request: u64, bytes: &[u8]) -> Result<bool, Violation> {
        let Some(question) = self.open.get_mut(&request) else { return self.check_known(request).map(|()| false) };
        let most = question.meta.as_ref().map_or(self.object_bytes_max, |meta| meta.length);
        if (question.object.len() + bytes.len()) as u64 > most {
            return Err(Violation::Malformed("object stream"));
        }
        question.object.extend_from_slice(bytes);
        Ok(true)
    }

    /// The stream of an object ended.
    pub(super) fn finished(&mut self, request: u64, events: &mut VecDeque<Event>) -> Result<(), Violation> {
        if let Some(question) = self.open.get_mut(&request) {
            question.finished = true;
        }
        self.complete(request, events)
    }

    pub(super) fn expire(&mut self, now: Instant, events: &mut VecDeque<Event>) {
        let late: Vec<u64> = self.open.iter().filter(|(_, question)| question.due <= now).map(|(request, _)| *request).collect();
        for request in late {
            self.open.remove(&request);
            events.push_back(Event::Answered { request, answer: Err(Failure::Stalled) });
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.open.values().map(|question| question.due).min()
    }

    /// Answers a GET whose META and stream have both come.
    fn complete(&mut self, request: u64, events: &mut VecDeque<Event>) -> Result<(), Violation> {
        let Some(question) = self.open.get(&request) else { return Ok(()) };
        let Some(meta) = &question.meta else { return Ok(()) };
        let came = question.object.len() as u64;
        if came > meta.length || (question.finished && came < meta.length) {
            return Err(Violation::Malformed("object stream"));
        }
        if !question.finished {
            return Ok(());
        }
        if let Some(Question { meta: Some(meta), object, .. }) = self.open.remove(&request) {
            let bytes = Some(object.freeze());
            events.push_back(Event::Answered { request, answer: Ok(Answer { meta, bytes }) });
        }
        Ok(())
    }

    /// An answer to a GET that was given up is no fault, one to a GET that never was is.
    fn check_known(&self, request: u64) -> Result<(), Violation> {
        if request < self.next { Ok(()) } else { Err(Violation::Unexpected("answer")) }
    }
}
