//! A generation under way, and what its sources are asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::SourceId;
use super::flight::Flight;
use super::path::Path;
use super::rebuilder::Rebuilder;
use crate::wire::message::Message;

/// A generation under way.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) decoder: Box<Rebuilder>,
    pub(super) asked: BTreeMap<SourceId, Asked>,
    /// Sources that are to be asked again then.
    pub(super) paused: BTreeMap<SourceId, Instant>,
    /// Sources that are not asked for more while others send their parts.
    pub(super) spared: BTreeSet<SourceId>,
    /// The first source block that nobody was asked for.
    pub(super) next_source: u16,
    /// Since when the deadline leaves no time to ask again.
    pub(super) near: Option<Instant>,
    /// Blocks that were asked for because they were needed, lost ones again, and beyond those ahead of need.
    pub(super) needed: u32,
    pub(super) ahead: u32,
    /// Blocks that nobody is asked for though they are needed.
    pub(super) lacking: u32,
    pub(super) lost: u64,
}

/// An open request.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) alias: u16,
    pub(super) deadline: Instant,
    pub(super) flight: Flight,
    /// When something last came for a request before this one that is over since. Until then the sender served that one, and this one's
    /// silence meant nothing.
    pub(super) served_before: Option<Instant>,
    pub(super) excess: u32,
    pub(super) useless: u32,
    pub(super) useless_seeded: u32,
    pub(super) unreported: u32,
    pub(super) reported_at: Instant,
}

impl Work {
    pub(super) fn new(decoder: Box<Rebuilder>) -> Self {
        Self {
            decoder,
            asked: BTreeMap::new(),
            paused: BTreeMap::new(),
            spared: BTreeSet::new(),
            next_source: 0,
            near: None,
            needed: 0,
            ahead: 0,
            lacking: 0,
            lost: 0,
        }
    }

    pub(super) fn block_bytes(&self) -> u32 {
        self.decoder.generation().block_bytes
    }

    /// How many of the blocks asked for ahead of need stood in for others, at least: for those that did not come, or brought nothing,
    /// and were not asked for again.
    pub(super) fn used_ahead(&self) -> u32 {
        let wanting = self.asked.values().map(|asked| saturated(asked.flight.missed() as u64) + asked.useless).sum::<u32>();
        let again = self.needed.saturating_sub(u32::from(self.decoder.n()));
        wanting.saturating_sub(again).min(self.ahead)
    }

    /// Blocks that a source has to send.
    pub(super) fn in_flight_at(&self, source: &SourceId) -> u32 {
        self.asked.get(source).map_or(0, Asked::in_flight)
    }

    /// Which source blocks a source may send that is asked for so many blocks: others than anybody was asked for before. `None` if there are
    /// none left, no ranges if all are its own.
    pub(super) fn source_blocks(&mut self, blocks: u32, is_only: bool) -> Option<Vec<(u16, u16)>> {
        let n = self.decoder.n();
        if self.decoder.rank() == 0 && self.asked.is_empty() {
            self.next_source = 0;
        }
        let first = self.next_source;
        let count = u16::try_from(blocks).unwrap_or(u16::MAX).min(n - first);
        self.next_source = if is_only { n } else { first + count };
        match (first, is_only) {
            (0, true) => Some(Vec::new()),
            _ if count > 0 => Some(vec![(first, count)]),
            _ => None,
        }
    }
}

impl Asked {
    pub(super) fn new(now: Instant, alias: u16, deadline: Instant, credit: u32) -> Self {
        let flight = Flight::new(now, credit);
        Self {
            alias,
            deadline,
            flight,
            served_before: None,
            excess: 0,
            useless: 0,
            useless_seeded: 0,
            unreported: 0,
            reported_at: now,
        }
    }

    pub(super) fn in_flight(&self) -> u32 {
        saturated(self.flight.in_flight())
    }

    /// Credit that the server allows besides what is in flight.
    pub(super) fn room(&self, credit_max: u32) -> u32 {
        credit_max.saturating_sub(self.in_flight())
    }

    /// When something last came for this request or one before it that is over, or credit was last given.
    pub(super) fn heard(&self) -> Instant {
        let heard = self.flight.heard();
        self.served_before.map_or(heard, |at| at.max(heard))
    }

    /// When silence means loss; never on a stream, and not while nothing is in flight. `heard` is when something last came for this
    /// request or one before it: while those are served, this one's silence means nothing.
    pub(super) fn silent_at(&self, heard: Instant, block_bytes: u32, path: &Path) -> Option<Instant> {
        let waiting = self.flight.in_flight() > 0 && !self.flight.is_reliable();
        waiting.then(|| heard + path.silence(block_bytes, self.flight.silences()))
    }

    pub(super) fn rank(&self, rank: u16) -> Message {
        Message::Rank { alias: self.alias, rank: u32::from(rank), useless: self.useless, lost: saturated(self.flight.lost()) }
    }
}

pub(super) fn saturated(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
