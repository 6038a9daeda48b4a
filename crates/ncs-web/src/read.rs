//! An object that a page reads: its parts, which arrive in any order, and what can be handed on.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use ncs_proto::object::{RefusalCode, SegmentId};
use ncs_proto::peer::assembly::Assembly;
use ncs_proto::peer::{Answer, Failure, FetchId, SourceId};
use ncs_proto::time::Instant;
use ncs_proto::wire::message::{Delivery, Meta};

/// Parts of an object that are fetched at a time. While lost blocks of one part are repeated, and
/// all of the next is requested, a third keeps the path busy.
const PARTS_AHEAD: usize = 3;
/// Bytes of parts above which no more are fetched ahead.
const BYTES_AHEAD: u64 = 16 << 20;
/// Attempts at a part whose segment is gone each time, and the pause before the second.
const ASKED_ANEW_MAX: u32 = 8;
const ASKED_ANEW_PAUSE: Duration = Duration::from_millis(200);
/// Attempts at a refused path if the server tells a time, and the longest such time.
const RETRIES: u32 = 3;
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);

/// What a reader is told of bytes that are proved wrong.
pub(crate) const WRONG: &str = "the bytes are not those that their hash names";

/// A read under way.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) path: String,
    /// The bytes that are still to be handed on.
    wanted: Range<u64>,
    parts: VecDeque<Part>,
    /// What the first META said.
    object: Option<Object>,
    /// The question for the next part, and attempts at it.
    pub(crate) question: Question,
    refused: u32,
    /// How often its next part was gone when its blocks were requested, since bytes have come.
    gone: u32,
    pub(crate) deadline: Option<Instant>,
    /// Bytes that its reader has room for.
    room: u64,
}

/// The question for the part behind the last.
#[derive(Debug)]
pub(crate) enum Question {
    /// It is to be asked.
    Due,
    /// By this GET.
    Asked(u64),
    /// Another source answers than the one before. It is asked for the part before by this GET, to
    /// show that it means the same object.
    Confirming(u64, Box<Answer>),
    /// Again at this time.
    Later(Instant),
    /// There is none.
    Over,
}

#[derive(Debug, Clone, Copy)]
struct Object {
    version: u64,
    length: Option<u64>,
}

/// A part of the object.
#[derive(Debug)]
struct Part {
    meta: Meta,
    source: SourceId,
    /// Bytes from the beginning on that are proved, and have not been handed on.
    proved: VecDeque<Bytes>,
    /// Where these begin, in the object.
    at: u64,
    fetch: Option<Fetch>,
}

/// The blocks of a part.
#[derive(Debug)]
struct Fetch {
    id: FetchId,
    assembly: Assembly,
}

/// What a read leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Ask for the part at this offset, of so many bytes at most.
    Get(u64, Option<u64>),
    /// These bytes are the next.
    Bytes(Bytes),
    /// All bytes have been handed on.
    Ended,
}

/// Why a read fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// The machine says so.
    Failed(Failure),
    /// The object has changed between two of its parts.
    Changed,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Changed => "the object has changed meanwhile",
            Self::Failed(Failure::Refused(refusal)) => return write!(f, "{}", refusal.reason),
            Self::Failed(Failure::Deadline) => "the deadline has passed",
            Self::Failed(Failure::Stalled) => "nothing has come for too long",
            Self::Failed(Failure::Gone) => "the server is gone",
            Self::Failed(Failure::Slow) => "too little has come for too long",
            Self::Failed(Failure::Corrupt) => WRONG,
        })
    }
}

impl Read {
    pub(crate) fn new(path: String, wanted: Range<u64>, deadline: Option<Instant>) -> Self {
        Self {
            path,
            wanted,
            parts: VecDeque::new(),
            object: None,
            question: Question::Due,
            refused: 0,
            gone: 0,
            deadline,
            room: 0,
        }
    }

    /// Its reader now has room for so many bytes.
    pub(crate) fn set_room(&mut self, bytes: u64) {
        self.room = bytes;
    }

    /// What is next at this time; `None` until something comes.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Next> {
        if let Some(bytes) = self.next_bytes() {
            return Some(Next::Bytes(bytes));
        }
        if let Question::Later(at) = self.question
            && at <= now
        {
            self.question = Question::Due;
        }
        let is_full = self.parts.len() >= PARTS_AHEAD
            || (self.parts.iter().map(|part| part.meta.length).sum::<u64>() >= BYTES_AHEAD
                && !self.parts.is_empty());
        if matches!(self.question, Question::Due) && !is_full {
            let offset = self.parts.back().map_or(self.wanted.start, end);
            let length = (self.wanted.end < u64::MAX).then(|| self.wanted.end - offset);
            return Some(Next::Get(offset, length));
        }
        let is_over = matches!(self.question, Question::Over) && self.parts.is_empty();
        is_over.then_some(Next::Ended)
    }

    /// Whether it has had no answer.
    pub(crate) fn is_new(&self) -> bool {
        self.object.is_none()
    }

    /// When something is due without any input.
    pub(crate) fn due(&self) -> Option<Instant> {
        match self.question {
            Question::Later(at) => Some(at),
            _ => None,
        }
    }

    /// The proved bytes at the front, as far as they are wanted. A piece may exceed the room.
    fn next_bytes(&mut self) -> Option<Bytes> {
        while self.room > 0
            && let Some(part) = self.parts.front_mut()
        {
            if let Some(bytes) = part.proved.pop_front() {
                let at = part.at;
                part.at += bytes.len() as u64;
                let (from, to) = (
                    self.wanted.start.clamp(at, part.at),
                    self.wanted.end.clamp(at, part.at),
                );
                if from < to {
                    self.wanted.start = to;
                    self.room = self.room.saturating_sub(to - from);
                    return Some(bytes.slice(place(from - at)..place(to - at)));
                }
                continue;
            }
            if part.fetch.is_some() || part.at < end(part) {
                return None;
            }
            self.parts.pop_front();
        }
        None
    }

    /// Takes the answer to the last question. A part whose blocks are to be fetched is returned.
    /// `Err(None)`: the answer is checked first, by a GET of the returned place at its source.
    pub(crate) fn answered(&mut self, answer: Answer) -> Result<Taken, Unfit> {
        let Answer { meta, source, .. } = &answer;
        let expected = self.parts.back().map(end);
        let covers = match expected {
            Some(offset) => meta.offset == offset && meta.length > 0,
            None => meta.offset <= self.wanted.start,
        };
        let object = self.object.get_or_insert(Object {
            version: meta.version,
            length: meta.object_length,
        });
        let same_length = match (object.length, meta.object_length) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        let is_whole = answer.bytes.is_some();
        if !covers
            || meta.version != object.version
            || !same_length
            || (is_whole && expected.is_some())
        {
            return Err(Unfit::Changed);
        }
        object.length = object.length.or(meta.object_length);
        if let Some(before) = self.parts.back()
            && before.source != *source
        {
            let place = (before.meta.offset, before.meta.length, *source);
            return Ok(Taken::Confirm(place, Box::new(answer)));
        }
        Ok(self.take(answer))
    }

    /// Takes the answer of another source for the part before.
    pub(crate) fn confirmed(&mut self, before: &Meta, answer: Answer) -> Result<Taken, Unfit> {
        let is_same = self.parts.back().is_some_and(|part| {
            part.meta.id == before.id
                && part.meta.version == before.version
                && part.meta.offset == before.offset
        });
        if is_same {
            Ok(self.take(answer))
        } else {
            Err(Unfit::Changed)
        }
    }

    fn take(&mut self, answer: Answer) -> Taken {
        let Answer {
            meta,
            bytes,
            source,
        } = answer;
        self.refused = 0;
        let next = meta.offset + meta.length;
        let length = self.object.and_then(|object| object.length);
        self.question = match next >= self.wanted.end || length.is_some_and(|length| next >= length)
        {
            true => Question::Over,
            false => Question::Due,
        };
        let is_coded = matches!(meta.delivery, Delivery::Coded(_));
        let at = meta.offset;
        self.parts.push_back(Part {
            meta: meta.clone(),
            source,
            proved: bytes.into_iter().collect(),
            at,
            fetch: None,
        });
        if is_coded {
            Taken::Fetch(Box::new(meta))
        } else {
            Taken::Whole
        }
    }

    /// The blocks of the part at this offset are being fetched.
    pub(crate) fn fetching(&mut self, offset: u64, id: FetchId, assembly: Assembly) {
        if let Some(part) = self
            .parts
            .iter_mut()
            .find(|part| part.meta.offset == offset)
        {
            part.fetch = Some(Fetch { id, assembly });
        }
    }

    /// The assembly of a fetch.
    pub(crate) fn assembly(&mut self, id: FetchId) -> Option<&mut Assembly> {
        self.fetched(id)
            .and_then(|part| part.fetch.as_mut())
            .map(|fetch| &mut fetch.assembly)
    }

    /// Bytes of a fetch are proved.
    pub(crate) fn proved(&mut self, id: FetchId, pieces: Vec<Bytes>) {
        if !pieces.is_empty() {
            self.gone = 0;
        }
        if let Some(part) = self.fetched(id) {
            part.proved.extend(pieces);
        }
    }

    /// All bytes of a fetch are proved.
    pub(crate) fn complete(&mut self, id: FetchId) {
        if let Some(part) = self.fetched(id) {
            part.fetch = None;
        }
    }

    /// A fetch has failed. The place to ask anew, if its segment was evicted meanwhile, and when.
    pub(crate) fn fetch_failed(
        &mut self,
        now: Instant,
        id: FetchId,
        failure: Failure,
    ) -> Result<(), Unfit> {
        let is_gone = matches!(&failure, Failure::Refused(refusal)
            if matches!(refusal.code, RefusalCode::Unknown | RefusalCode::Changed));
        let Some(index) = self
            .parts
            .iter()
            .position(|part| part.fetch.as_ref().is_some_and(|fetch| fetch.id == id))
        else {
            return Ok(());
        };
        let part = &self.parts[index];
        self.gone += 1;
        // What was handed on of it is not fetched again.
        if !is_gone || self.gone > ASKED_ANEW_MAX || part.at > part.meta.offset {
            return Err(Unfit::Failed(failure));
        }
        // The parts from here on are asked for again, in order.
        self.parts.truncate(index);
        self.question = Question::Later(now + ASKED_ANEW_PAUSE);
        Ok(())
    }

    /// A question has failed. It is asked again after the time that the server has told, or at
    /// once if the source that alone could confirm an answer is gone.
    pub(crate) fn question_failed(&mut self, now: Instant, failure: Failure) -> Result<(), Unfit> {
        let after = match &failure {
            Failure::Gone => Some(Duration::ZERO),
            Failure::Refused(refusal) if refusal.code != RefusalCode::Unknown => refusal
                .retry_after
                .filter(|after| *after <= RETRY_AFTER_MAX),
            _ => None,
        };
        self.refused += 1;
        match after {
            Some(after) if self.refused <= RETRIES => {
                self.question = Question::Later(now + after);
                Ok(())
            }
            _ => Err(Unfit::Failed(failure)),
        }
    }

    /// The fetches under way.
    pub(crate) fn fetches(&self) -> impl Iterator<Item = FetchId> {
        let fetches = self.parts.iter().filter_map(|part| part.fetch.as_ref());
        fetches.map(|fetch| fetch.id)
    }

    fn fetched(&mut self, id: FetchId) -> Option<&mut Part> {
        self.parts
            .iter_mut()
            .find(|part| part.fetch.as_ref().is_some_and(|fetch| fetch.id == id))
    }
}

/// What an answer leads to.
#[derive(Debug)]
pub(crate) enum Taken {
    /// All bytes are there, and verified.
    Whole,
    /// Its blocks are to be fetched.
    Fetch(Box<Meta>),
    /// Offset and length of the part before, which this source is to name, and the answer.
    Confirm((u64, u64, SourceId), Box<Answer>),
}

/// Whether the bytes of an answer, if any, are those that its META names.
pub(crate) fn is_right(answer: &Answer) -> bool {
    answer.bytes.as_ref().is_none_or(|bytes| {
        bytes.len() as u64 == answer.meta.length && SegmentId::of(bytes) == answer.meta.id
    })
}

fn end(part: &Part) -> u64 {
    part.meta.offset + part.meta.length
}

fn place(at: u64) -> usize {
    usize::try_from(at).expect("a part fits in memory")
}
