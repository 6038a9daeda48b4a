//! A source as fetches see it: what it takes, what it is asked for, what is to be expected of it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use ncs_codec::Outcome;
use ncs_codec::block::{Block, Vector};

use super::config::Config;
use super::counts::SourceCounts;
use super::ids::WorkId;
use super::order::Urgency;
use super::pace::Pace;
use crate::object::SegmentId;
use crate::time::Instant;

/// Requests that are open at a source however little its path holds.
const REQUESTS_MIN: usize = 2;

/// Silence of a neighbour that is nothing unusual: it has others to serve, over a line as slow as theirs, and may have to wait for rows itself.
const NEIGHBOUR_SILENCE: Duration = Duration::from_millis(500);

/// Streams that a neighbour is taken to follow; no more are noted.
const FOLLOWED_MAX: usize = 16;
/// A neighbour that has lacked so many segments of a stream in a row is not expected to have the next.
const MISSED_MAX: u8 = 4;

/// One block in so many may be wrong.
const WRONG_PER: u64 = 10;

/// A source, and the way to it. Outlives connections.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) pace: Pace,
    /// Whether it takes new requests.
    pub(super) is_open: bool,
    /// Whether a server has named it, as one that holds some segments: it is asked for these alone.
    pub(super) is_neighbour: bool,
    /// Which it holds, as far as is known; those named last are the last.
    pub(super) holds: VecDeque<SegmentId>,
    /// Streams of which it was named for some segment, and how many in a row it has been found to lack since.
    pub(super) follows: BTreeMap<String, u8>,
    pub(super) trust: Trust,
    /// Whether it has sent blocks of something else than it was asked for: it is asked for nothing before it has named it itself.
    pub(super) is_doubted: bool,
    pub(super) requests_max: usize,
    /// Credit that one request may have.
    pub(super) credit_max: u32,
    pub(super) aliases: HashMap<u16, WorkId>,
    pub(super) next_alias: u16,
    pub(super) counts: SourceCounts,
    /// Blocks that it has been given credit for, on all connections.
    pub(super) credited: u64,
    pub(super) late: u64,
    pub(super) stray: u64,
    /// Size in bytes from which blocks come on streams, although their requests take datagrams.
    pub(super) streams_from: Option<u32>,
    pub(super) load: Load,
}

/// What is to be expected of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// It has sent nothing on this connection yet.
    New,
    /// It sends.
    Proven,
    /// It was to send something and fell silent.
    Suspect,
}

/// What is asked of a source; found anew whenever credit is given.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    /// Requests and bytes of credit in flight: of urgent fetches, and of all.
    pub(super) urgent: (usize, u64),
    pub(super) all: (usize, u64),
    /// When it was last heard.
    pub(super) heard: Option<Instant>,
    /// The longest silence that is nothing unusual.
    pub(super) silence: Duration,
    /// The same credit in the order in which it is served: of what comes before the generation at hand, and of it.
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
            follows: BTreeMap::new(),
            trust: Trust::New,
            is_doubted: false,
            requests_max: 0,
            credit_max: 0,
            aliases: HashMap::new(),
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

    /// A neighbour has been found to lack a segment of a stream that it was taken to follow. Viewers read playlists at times of their own, so
    /// that one alone says little.
    pub(super) fn missed(&mut self, stream: &str) {
        if let Some(missed) = self.follows.get_mut(stream) {
            *missed += 1;
            if *missed == MISSED_MAX {
                self.follows.remove(stream);
            }
        }
    }

    /// Whether a request for something this urgent may be opened.
    pub(super) fn has_room_for_request(&self, urgency: Urgency, config: &Config) -> bool {
        let (requests, bytes) = self.load.of(urgency);
        let window = self.pace.window(config.window_min, config.window_max);
        self.is_open && self.aliases.len() < self.requests_max && (requests < REQUESTS_MIN || bytes < window)
    }

    /// How long nothing may come before the end of a flight is taken for lost.
    pub(super) fn silence(&self, block_bytes: u32, silences: u32) -> Duration {
        let silence = self.pace.silence(block_bytes, silences);
        if self.is_neighbour { silence.max(NEIGHBOUR_SILENCE) } else { silence }
    }

    /// A block of this size came on the stream of a request that takes datagrams.
    pub(super) fn note_record(&mut self, block_bytes: u32) {
        self.streams_from = Some(self.streams_from.map_or(block_bytes, |from| from.min(block_bytes)));
    }

    /// A block of this size came in a datagram.
    pub(super) fn note_datagram(&mut self, block_bytes: u32) {
        self.streams_from = self.streams_from.filter(|from| block_bytes < *from);
    }

    /// Whether silence about blocks of this size means that QUIC repeats a packet: they are expected
    /// on streams, and no other source could send them sooner.
    pub(super) fn expects_stream(&self, block_bytes: u32) -> bool {
        self.load.is_only && self.streams_from.is_some_and(|from| block_bytes >= from)
    }

    /// Whether so many of its blocks are wrong, without its being to blame, that it gets no more credit than a source that nothing is known of.
    pub(super) fn is_doubtful(&self) -> bool {
        self.counts.wrong * WRONG_PER > self.counts.blocks
    }

    /// The alias whose last use is the longest ago, from now on for this generation.
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
        let all = [Some(&mut self.all), Some(&mut self.urgent).filter(|_| urgency == Urgency::Now)];
        for (requests_at, bytes_at) in all.into_iter().flatten() {
            *requests_at += requests;
            *bytes_at += bytes;
        }
    }

    /// Requests and bytes in flight for what is at least this urgent.
    pub(super) fn of(&self, urgency: Urgency) -> (usize, u64) {
        match urgency {
            Urgency::Now => self.urgent,
            Urgency::Ahead => self.all,
        }
    }
}

/// Loss, by this estimate, and rate of paths together: who carries more weighs more.
pub(super) fn together<'a>(paths: impl Iterator<Item = &'a Path>, loss: fn(&Pace) -> f64) -> (f64, f64) {
    let (mut lost, mut rate, mut weight) = (0.0, 0.0, 0.0);
    for path in paths {
        let carries = path.pace.rate().max(1.0);
        lost += loss(&path.pace) * carries;
        weight += carries;
        rate += path.pace.rate();
    }
    (if weight > 0.0 { lost / weight } else { 0.0 }, rate)
}
