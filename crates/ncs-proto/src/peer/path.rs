//! One source, as fetches see it: its limits, what is requested from it, and what can be expected.

use std::collections::VecDeque;
use std::time::Duration;

use ncs_codec::Outcome;
use ncs_codec::block::{Block, Vector};

use super::config::Config;
use super::counts::SourceCounts;
use super::ids::WorkId;
use super::order::Urgency;
use super::pace::{Pace, RATE_ASSUMED};
use crate::object::SegmentId;
use crate::sorted::SortedMap;
use crate::time::Instant;

/// Requests that are open at a source, however small the window of its path is.
const REQUESTS_MIN: usize = 2;
/// The window, in multiples of itself, while a fetch makes its first request. The path must carry
/// so many bytes within this part of the time after which a fetch has stalled.
const FIRST_WINDOWS: u64 = 2;
const STALL_PART: u32 = 3;

/// A silence of a neighbour that is nothing unusual: it serves others over a line as slow as
/// theirs, and may have to wait for rows itself.
const NEIGHBOUR_SILENCE: Duration = Duration::from_millis(500);

/// Streams that a neighbour is known to follow; no more are noted.
const FOLLOWED_MAX: usize = 16;
/// A neighbour that has lacked this many segments of a stream in a row is not expected to have the
/// next.
const MISSED_MAX: u8 = 4;

/// One block in this many may be wrong.
const WRONG_PER: u64 = 10;

/// A source and the path to it. It outlives connections.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) pace: Pace,
    /// Whether it takes new requests.
    pub(super) is_open: bool,
    /// Whether a server has named it for some segments. Then it is asked for these alone.
    pub(super) is_neighbour: bool,
    /// The segments that it is known to hold; those named last are at the end.
    pub(super) holds: VecDeque<SegmentId>,
    /// Streams of which it was named for a segment, and how many segments in a row it has lacked
    /// since.
    pub(super) follows: SortedMap<String, u8>,
    pub(super) trust: Trust,
    /// Whether it has sent blocks of another segment than requested. Then it has to name a segment
    /// itself before it is asked for it.
    pub(super) is_doubted: bool,
    pub(super) requests_max: usize,
    /// Most credit of one request.
    pub(super) credit_max: u32,
    pub(super) aliases: SortedMap<u16, WorkId>,
    pub(super) next_alias: u16,
    pub(super) counts: SourceCounts,
    /// Credit that it was given, in blocks, on all connections.
    pub(super) credited: u64,
    pub(super) late: u64,
    pub(super) stray: u64,
    /// Size in bytes from which blocks come on streams, although their requests take datagrams.
    pub(super) streams_from: Option<u32>,
    pub(super) load: Load,
}

/// What can be expected of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// It has sent nothing on this connection yet.
    New,
    /// It sends blocks.
    Proven,
    /// It has fallen silent while it had blocks to send.
    Suspect,
}

/// What is requested from a source; computed anew whenever credit is given.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    /// The number of requests, and bytes of credit in flight: for urgent fetches, and for all.
    pub(super) urgent: (usize, u64),
    pub(super) all: (usize, u64),
    /// When it was last heard.
    pub(super) heard: Option<Instant>,
    /// The longest usual silence.
    pub(super) silence: Duration,
    /// Bytes of credit in flight, in the order in which they are served: for everything before the
    /// present generation, and for it.
    pub(super) ahead: u64,
    pub(super) heard_ahead: Option<Instant>,
    /// Whether no other source is open.
    pub(super) is_only: bool,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            pace: Pace::new(),
            is_open: false,
            is_neighbour: false,
            holds: VecDeque::new(),
            follows: SortedMap::new(),
            trust: Trust::New,
            is_doubted: false,
            requests_max: 0,
            credit_max: 0,
            aliases: SortedMap::new(),
            next_alias: 0,
            counts: SourceCounts::default(),
            credited: 0,
            late: 0,
            stray: 0,
            streams_from: None,
            load: Load::default(),
        }
    }
}

impl Path {
    /// A neighbour holds a segment of this stream.
    pub(super) fn follow(&mut self, stream: &str) {
        if self.follows.len() < FOLLOWED_MAX || self.follows.contains_key(stream) {
            self.follows.insert(stream.to_owned(), 0);
        }
    }

    /// A neighbour has lacked a segment of a stream that it follows. One alone says little, because
    /// viewers read playlists at times of their own.
    pub(super) fn missed(&mut self, stream: &str) {
        if let Some(missed) = self.follows.get_mut(stream) {
            *missed += 1;
            if *missed == MISSED_MAX {
                self.follows.remove(stream);
            }
        }
    }

    /// Whether a request of this urgency may be opened. `is_first`: of a fetch that somebody waits
    /// for and of which nothing is requested. It may exceed the window, which other fetches fill,
    /// unless the path is so slow that the fetch would not progress in time.
    pub(super) fn has_room_for_request(
        &self,
        urgency: Urgency,
        is_first: bool,
        config: &Config,
    ) -> bool {
        let (requests, bytes) = self.load.of(urgency);
        let mut window = self.pace.window(config.window_min, config.window_max);
        if is_first
            && self.pace.time(0, FIRST_WINDOWS * window, RATE_ASSUMED)
                < config.stall_timeout / STALL_PART
        {
            window *= FIRST_WINDOWS;
        }
        self.is_open
            && self.aliases.len() < self.requests_max
            && (requests < REQUESTS_MIN || bytes < window)
    }

    /// How long a silence may last before the end of a flight counts as lost.
    pub(super) fn silence(&self, block_bytes: u32, silences: u32) -> Duration {
        let silence = self.pace.silence(block_bytes, silences);
        if self.is_neighbour {
            silence.max(NEIGHBOUR_SILENCE)
        } else {
            silence
        }
    }

    /// A block of this size came on the stream of a request that takes datagrams.
    pub(super) fn note_record(&mut self, block_bytes: u32) {
        self.streams_from = Some(
            self.streams_from
                .map_or(block_bytes, |from| from.min(block_bytes)),
        );
    }

    /// A block of this size came in a datagram.
    pub(super) fn note_datagram(&mut self, block_bytes: u32) {
        self.streams_from = self.streams_from.filter(|from| block_bytes < *from);
    }

    /// Whether silence about blocks of this size means that QUIC repeats a packet: they are
    /// expected on streams, and no other source could send them sooner.
    pub(super) fn expects_stream(&self, block_bytes: u32) -> bool {
        self.load.is_only && self.streams_from.is_some_and(|from| block_bytes >= from)
    }

    /// Whether so many of its blocks are wrong, without proof against it, that it gets no more
    /// credit than an unknown source.
    pub(super) fn is_doubtful(&self) -> bool {
        self.counts.wrong * WRONG_PER > self.counts.blocks
    }

    /// Takes the alias that was unused for the longest time, for this generation.
    pub(super) fn take_alias(&mut self, id: WorkId) -> u16 {
        let mut alias = self.next_alias;
        while self.aliases.contains_key(&alias) {
            alias = alias.wrapping_add(1);
        }
        self.aliases.insert(alias, id);
        self.next_alias = alias.wrapping_add(1);
        alias
    }

    /// Counts a block of an open request.
    pub(super) fn note_received(&mut self, block: &Block) {
        self.counts.blocks += 1;
        self.counts.payload_bytes += block.payload.len() as u64;
    }

    /// Counts a block of an open request that its decoder has absorbed.
    pub(super) fn note_absorbed(&mut self, block: &Block, outcome: Outcome) {
        self.note_received(block);
        let useless = u64::from(outcome == Outcome::Redundant);
        self.counts.innovative += 1 - useless;
        self.counts.useless += useless;
        self.counts.systematic += u64::from(matches!(block.vector, Vector::Source(_)));
    }

    pub(super) fn note_lost(&mut self, given_up: u64) {
        self.pace.lost(given_up);
        self.counts.lost += given_up;
    }
}

impl Load {
    pub(super) fn add(&mut self, urgency: Urgency, requests: usize, bytes: u64) {
        let all = [
            Some(&mut self.all),
            Some(&mut self.urgent).filter(|_| urgency == Urgency::Now),
        ];
        for (requests_at, bytes_at) in all.into_iter().flatten() {
            *requests_at += requests;
            *bytes_at += bytes;
        }
    }

    /// The number of requests, and bytes in flight, for fetches of at least this urgency.
    pub(super) fn of(&self, urgency: Urgency) -> (usize, u64) {
        match urgency {
            Urgency::Now => self.urgent,
            Urgency::Ahead => self.all,
        }
    }
}

/// The loss, by this estimate, and the rate of several paths together. Paths weigh by their rate.
pub(super) fn together<'a>(
    paths: impl Iterator<Item = &'a Path>,
    loss: fn(&Pace) -> f64,
) -> (f64, f64) {
    let (mut lost, mut rate, mut weight) = (0.0, 0.0, 0.0);
    for path in paths {
        let carries = path.pace.rate().max(1.0);
        lost += loss(&path.pace) * carries;
        weight += carries;
        rate += path.pace.rate();
    }
    (if weight > 0.0 { lost / weight } else { 0.0 }, rate)
}
