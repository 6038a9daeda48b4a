//! A connected source: the state of its connection, and its streams.

use std::collections::VecDeque;

use bytes::BytesMut;

use crate::sorted::SortedMap;
use crate::time::Instant;
use crate::wire::block::Records;
use crate::wire::message::Hello;

/// A source that is connected.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) link: Link,
    pub(super) streams: SortedMap<u64, Incoming>,
    /// Streams to refuse.
    pub(super) stops: VecDeque<u64>,
    /// Whether it was sent a credential.
    pub(super) is_shown: bool,
    /// Whether it does not admit this side: then it answers as if nothing existed.
    pub(super) refuses: bool,
}

/// The state of a connection.
#[derive(Debug)]
pub(super) enum Link {
    /// HELLO of the source has not come yet.
    Greeting { due: Instant },
    /// The source takes requests.
    Open { server: Hello },
    /// The source takes no new requests.
    Leaving,
}

/// A stream that a source has opened.
#[derive(Debug)]
pub(super) enum Incoming {
    /// Its head is not complete yet.
    Head(BytesMut),
    Blocks {
        alias: u16,
        records: Records,
    },
    Object {
        request: u64,
    },
    Hashes {
        request: u64,
    },
    /// Bytes come until STOP_SENDING has arrived.
    Refused,
}

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// With FIN.
    Finished,
    /// With this code.
    Reset(u64),
}

impl Source {
    /// A source that has just connected.
    pub(super) fn new(hello_due: Instant, is_shown: bool) -> Self {
        Self {
            link: Link::Greeting { due: hello_due },
            streams: SortedMap::new(),
            stops: VecDeque::new(),
            is_shown,
            refuses: false,
        }
    }

    /// Refuses to read a stream any further.
    pub(super) fn refuse(&mut self, stream: u64) {
        self.streams.insert(stream, Incoming::Refused);
        self.stops.push_back(stream);
    }
}

impl Link {
    /// HELLO of the source, where it takes new requests.
    pub(super) fn server(&self) -> Option<&Hello> {
        match self {
            Self::Open { server } => Some(server),
            Self::Greeting { .. } | Self::Leaving => None,
        }
    }

    /// How many GETs may be unanswered, where any may be sent.
    pub(super) fn unanswered_max(&self) -> Option<usize> {
        match self {
            // GETs may follow our HELLO at once, before the source's has come.
            Self::Greeting { .. } => Some(usize::from(Hello::defaults().requests_max)),
            Self::Open { server } => Some(usize::from(server.requests_max)),
            Self::Leaving => None,
        }
    }
}
