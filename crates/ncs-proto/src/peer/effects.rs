//! What one call into the machine causes: messages to send, and events for the program.

use crate::sorted::SortedMap;
use std::collections::VecDeque;

use super::event::Event;
use super::ids::SourceId;
use crate::wire::Violation;
use crate::wire::message::Message;

/// Answers that a source may leave unread.
const UNREAD_MAX: usize = 4096;

/// Messages and events, in the order in which they arose, until the driver polls them.
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) outbox: Outbox,
    pub(super) events: VecDeque<Event>,
}

impl Effects {
    /// Sends a message to a source. Nothing happens without a connection: requests end with it.
    pub(super) fn send(&mut self, source: SourceId, message: Message) {
        if let Some(queue) = self.outbox.queues.get_mut(&source) {
            queue.push_back(message);
        }
    }

    /// Reports an event to the program.
    pub(super) fn report(&mut self, event: Event) {
        self.events.push_back(event);
    }
}

/// Messages to the connected sources.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queues: SortedMap<SourceId, VecDeque<Message>>,
}

impl Outbox {
    /// A source is connected.
    pub(super) fn open(&mut self, source: SourceId) {
        self.queues.insert(source, VecDeque::new());
    }

    /// The connection of a source has ended.
    pub(super) fn close(&mut self, source: SourceId) {
        self.queues.remove(&source);
    }

    pub(super) fn pop(&mut self, source: SourceId) -> Option<Message> {
        self.queues.get_mut(&source)?.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.values().all(VecDeque::is_empty)
    }

    pub(super) fn is_empty_for(&self, source: SourceId) -> bool {
        self.queues.get(&source).is_none_or(VecDeque::is_empty)
    }

    /// Rejects a source that asks and does not read the answers.
    pub(super) fn check(&self, source: SourceId) -> Result<(), Violation> {
        let unread = self.queues.get(&source).map_or(0, VecDeque::len);
        if unread > UNREAD_MAX {
            Err(Violation::Flood("questions"))
        } else {
            Ok(())
        }
    }
}
