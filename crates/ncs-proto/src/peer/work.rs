//! A generation under way, and its open requests.

use crate::sorted::{SortedMap, SortedSet};
use ncs_codec::block::Vector;
use ncs_codec::numbers::Numbers;

use super::flight::Flight;
use super::ids::SourceId;
use super::pace;
use super::path::Path;
use super::rebuilder::Rebuilder;
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::message::Message;

/// Redundant seeded blocks of a generation that a connection may bring while more than two blocks
/// are missing: an honest sender exceeds this with probability 2^-64.
const USELESS_MAX: u32 = 8;
/// Redundant blocks of a connection that are tolerated, for each block of their generation, where a
/// recoder may have made them: those with explicit vectors, and all over the prime field. Each
/// costs an elimination. An honest sender makes no more recoded ones than it has rows, and sends
/// each source block once.
const USELESS_PARTS_MAX: u32 = 2;
/// This many all-zero vectors count as n redundant ones: no sender draws them.
const ZEROS_PER_N: u32 = 4;

/// A generation under way.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) decoder: Box<Rebuilder>,
    /// When it is due, which decides its place among all generations.
    pub(super) due: Instant,
    pub(super) asked: SortedMap<SourceId, Asked>,
    /// Sources that are to be asked again at this time.
    pub(super) paused: SortedMap<SourceId, Instant>,
    /// Sources that are asked for nothing more while others send their parts.
    pub(super) spared: SortedSet<SourceId>,
    /// The first source block that was never requested.
    pub(super) next_source: u16,
    /// The blocks that have come, where blocks have numbers.
    pub(super) held: Numbers,
    /// Redundant blocks, by the connection that they came on.
    pub(super) useless: SortedMap<SourceId, Useless>,
    /// How many silences of a source in a row have ended requests.
    pub(super) silences: SortedMap<SourceId, u32>,
    /// Since when the deadline leaves no time to request a block again.
    pub(super) near: Option<Instant>,
    /// Blocks requested because they were needed, lost ones once more; and blocks requested ahead
    /// of need.
    pub(super) needed: u32,
    pub(super) ahead: u32,
    /// Missing blocks that no source is asked for.
    pub(super) lacking: u32,
    /// Whether neighbours could be asked for some of them, and have enough to do.
    pub(super) withholds: bool,
    pub(super) lost: u64,
}

/// Redundant blocks of a generation that one connection brought.
#[derive(Debug, Default)]
pub(super) struct Useless {
    /// Blocks whose vectors the sender chose: explicit ones, and all over the prime field.
    pub(super) chosen: u32,
    /// Blocks of a sender that has the whole segment.
    pub(super) seeded: u32,
}

/// An open request, with its credit.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) alias: u16,
    pub(super) deadline: Instant,
    pub(super) flight: Flight,
    /// The blocks that may come, and those that have come, where blocks have numbers.
    pub(super) numbers: Option<Numbers>,
    pub(super) came: Numbers,
    /// When the last block came for an earlier request that is over. Until then the source served
    /// that one, and the silence of this one meant nothing.
    pub(super) served_before: Option<Instant>,
    pub(super) excess: u32,
    pub(super) useless: u32,
    /// Whether its last block was redundant: a sender of combinations then has, but for one case in
    /// 256, nothing that this side lacks.
    pub(super) is_dry: bool,
    pub(super) unreported: u32,
    pub(super) reported_at: Instant,
}

impl Work {
    pub(super) fn new(decoder: Box<Rebuilder>, due: Instant) -> Self {
        Self {
            decoder,
            due,
            asked: SortedMap::new(),
            paused: SortedMap::new(),
            spared: SortedSet::new(),
            next_source: 0,
            held: Numbers::default(),
            useless: SortedMap::new(),
            silences: SortedMap::new(),
            near: None,
            needed: 0,
            ahead: 0,
            lacking: 0,
            withholds: false,
            lost: 0,
        }
    }

    pub(super) fn block_bytes(&self) -> u32 {
        self.decoder.generation().block_bytes
    }

    /// Counts a redundant block, for the request that brought it. A sender of too many is flooding.
    pub(super) fn note_redundant(
        &mut self,
        source: SourceId,
        vector: &Vector,
    ) -> Result<(), Violation> {
        if let Some(asked) = self.asked.get_mut(&source) {
            asked.useless += 1;
        }
        let n = u32::from(self.decoder.n());
        let is_gfq = self.decoder.generation().codec.is_gfq();
        let useless = self.useless.get_or_default(source);
        if is_gfq || matches!(vector, Vector::Explicit(_) | Vector::Unverified(_)) {
            useless.chosen += if is_zero(vector) {
                n.div_ceil(ZEROS_PER_N)
            } else {
                1
            };
        }
        let has_all = matches!(
            vector,
            Vector::Seed(_) | Vector::Symbol(_) | Vector::Narrow(_)
        );
        useless.seeded += u32::from(has_all);
        let is_unlikely = useless.seeded > USELESS_MAX && self.decoder.missing() > 2;
        if is_unlikely || useless.chosen > USELESS_PARTS_MAX * n {
            Err(Violation::Flood("useless blocks"))
        } else {
            Ok(())
        }
    }

    /// How many of the blocks requested ahead of need replaced others, at least: those that were
    /// lost or redundant, and were not requested again.
    pub(super) fn used_ahead(&self) -> u32 {
        let wanting = self
            .asked
            .values()
            .map(|asked| saturated(asked.flight.missed() as u64) + asked.useless)
            .sum::<u32>();
        let again = self.needed.saturating_sub(u32::from(self.decoder.n()));
        wanting.saturating_sub(again).min(self.ahead)
    }

    /// Blocks that a source still has to send.
    pub(super) fn in_flight_at(&self, source: &SourceId) -> u32 {
        self.asked.get(source).map_or(0, Asked::in_flight)
    }

    /// Chooses the source blocks that a source may send, for a request of this many blocks: none
    /// that was requested before. `None` if none are left; no ranges if all are its own.
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

    /// Chooses the blocks that a source may send, for a request of this many, where blocks have
    /// numbers: none that have come, and preferably none that another source may send. Each of
    /// `sources` also gets its part of the surplus, from the end, to continue with when some are
    /// lost. The only source gets all.
    pub(super) fn allot(&self, all: &Numbers, blocks: u32, sources: usize) -> Numbers {
        let lacking = all.without(&self.held);
        if sources <= 1 {
            return lacking;
        }
        let asked = || {
            self.asked
                .values()
                .filter_map(|asked| Some((asked, asked.numbers.as_ref()?)))
        };
        let theirs = asked().fold(Numbers::default(), |sum, (_, numbers)| sum.with(numbers));
        let awaited: u32 = self.asked.values().map(Asked::in_flight).sum();
        let of_others = u32::from(self.decoder.missing()).saturating_sub(awaited + blocks);
        let (free, blocks) = (lacking.without(&theirs), blocks as usize);
        let mut own: Numbers = free.iter().take(blocks).collect();
        let rest = free.without(&own);
        let more = rest.len().saturating_sub(of_others) as usize
            / sources.saturating_sub(self.asked.len()).max(1);
        own = rest.iter().rev().take(more).collect::<Numbers>().with(&own);
        // First the blocks that others are to continue with, then those that they have to send.
        let due = asked()
            .flat_map(|(asked, numbers)| numbers.iter().take(asked.in_all()).collect::<Vec<_>>());
        let due = due.collect::<Numbers>();
        let spare = lacking.without(&own).without(&due);
        own = spare
            .iter()
            .rev()
            .take(blocks.saturating_sub(own.len() as usize))
            .collect::<Numbers>()
            .with(&own);
        let rest = lacking.without(&own);
        rest.iter()
            .take(blocks.saturating_sub(own.len() as usize))
            .collect::<Numbers>()
            .with(&own)
    }
}

impl Asked {
    pub(super) fn new(now: Instant, alias: u16, deadline: Instant, flight: Flight) -> Self {
        Self {
            alias,
            deadline,
            flight,
            numbers: None,
            came: Numbers::default(),
            served_before: None,
            excess: 0,
            useless: 0,
            is_dry: false,
            unreported: 0,
            reported_at: now,
        }
    }

    pub(super) fn in_flight(&self) -> u32 {
        saturated(self.flight.in_flight())
    }

    /// Blocks requested in all.
    fn in_all(&self) -> usize {
        usize::try_from(self.flight.credited()).unwrap_or(usize::MAX)
    }

    /// Credit that the source allows in addition, and has blocks for.
    pub(super) fn room(&self, credit_max: u32) -> u32 {
        let left = |numbers: &Numbers| {
            numbers
                .len()
                .saturating_sub(saturated(self.flight.credited()))
        };
        credit_max
            .saturating_sub(self.in_flight())
            .min(self.numbers.as_ref().map_or(u32::MAX, left))
    }

    /// Whether all blocks that may come were requested. Lost ones do not come again.
    pub(super) fn is_exhausted(&self) -> bool {
        self.numbers
            .is_some_and(|numbers| u64::from(numbers.len()) <= self.flight.credited())
    }

    /// Notes a block. False if it is none of those that may come, or has come before.
    pub(super) fn expects(&mut self, vector: &Vector) -> bool {
        let Some(numbers) = &self.numbers else {
            return true;
        };
        Numbers::number(vector)
            .is_some_and(|number| numbers.contains(number) && self.came.insert(number))
    }

    /// When the last block came for this request or an earlier one, or credit was last given.
    pub(super) fn heard(&self) -> Instant {
        let heard = self.flight.heard();
        self.served_before.map_or(heard, |at| at.max(heard))
    }

    /// When silence means loss; never on a stream, and not while nothing is in flight. `heard` is
    /// when the last block came for this request or an earlier one: while earlier ones are served,
    /// the silence of this one means nothing.
    /// Before the first block of a request whose blocks are expected on a stream of the only
    /// source, the longest silence applies: the expectation may be wrong.
    pub(super) fn silent_at(
        &self,
        heard: Instant,
        block_bytes: u32,
        path: &Path,
    ) -> Option<Instant> {
        let waiting = self.flight.in_flight() > 0 && !self.flight.is_reliable();
        let is_on_stream = !self.flight.has_datagrams() && path.expects_stream(block_bytes);
        let silences = if is_on_stream {
            pace::SILENCES_MAX
        } else {
            let silences = self.flight.silences();
            silences.saturating_sub(path.pace.lost_silences())
        };
        waiting.then(|| heard + path.silence(block_bytes, silences))
    }

    pub(super) fn rank(&self, rank: u16) -> Message {
        Message::Rank {
            alias: self.alias,
            rank: u32::from(rank),
            useless: self.useless,
            lost: saturated(self.flight.lost()),
        }
    }
}

/// Whether a vector combines nothing; no sender draws such a vector.
fn is_zero(vector: &Vector) -> bool {
    use Vector::{Explicit, Narrow, Unverified, Wide};
    matches!(
        vector,
        Explicit(row) | Unverified(row) | Narrow(row) | Wide(row)
            if row.iter().all(|coefficient| *coefficient == 0)
    )
}

pub(super) fn saturated(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use ncs_codec::rlnc::Decoder;
    use ncs_gf::Kernels;

    use super::*;
    use crate::object::row_key;
    use crate::object::{Codec, SegmentId, Shape};

    /// An empty generation of 10 blocks with 6 parity blocks.
    fn work() -> (Work, Numbers) {
        let shape = Shape::new(640, 64, 10)
            .unwrap()
            .coded_with(Codec::ReedSolomon { parity: 6 })
            .unwrap();
        let generation = shape.generation(0).unwrap();
        let key = row_key(&SegmentId::of(b"x"), &generation);
        let decoder = Decoder::new(generation, key, Kernels::detect());
        (
            Work::new(Box::new(Rebuilder::Blocked(decoder)), Instant::now()),
            Numbers::of(&generation).unwrap(),
        )
    }

    fn ask(work: &mut Work, all: &Numbers, source: u32, blocks: u32, sources: usize) -> Vec<u16> {
        let numbers = work.allot(all, blocks, sources);
        let now = Instant::now();
        let asked = Asked {
            numbers: Some(numbers),
            ..Asked::new(now, 1, now, Flight::new(now, blocks, false))
        };
        work.asked.insert(SourceId(source), asked);
        numbers.iter().collect()
    }

    #[test]
    fn the_only_source_gets_all_that_is_not_there() {
        let (mut work, all) = work();
        work.held = [0, 3, 12].into_iter().collect();
        assert_eq!(
            ask(&mut work, &all, 0, 2, 1),
            [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15]
        );
        assert_eq!(
            work.asked[&SourceId(0)].room(100),
            11,
            "credit ends where blocks do"
        );
    }

    #[test]
    fn several_sources_get_other_blocks_and_some_to_go_on_with() {
        let (mut work, all) = work();
        assert_eq!(ask(&mut work, &all, 0, 5, 2), [0, 1, 2, 3, 4, 13, 14, 15]);
        assert_eq!(ask(&mut work, &all, 1, 5, 2), [5, 6, 7, 8, 9, 10, 11, 12]);
        // No block is left for a third source: it gets those that the others continue with.
        assert_eq!(ask(&mut work, &all, 2, 3, 3), [13, 14, 15]);
        // A block that has come is not requested again.
        work.held = (0..5).chain(11..16).collect();
        work.asked.clear();
        assert_eq!(ask(&mut work, &all, 0, 9, 2), [5, 6, 7, 8, 9, 10]);
        // All of them are due from another source: they are requested twice, and no more than
        // needed.
        assert_eq!(ask(&mut work, &all, 1, 2, 2), [5, 6]);
    }

    #[test]
    fn a_block_is_expected_once_if_it_may_come() {
        let (mut work, all) = work();
        ask(&mut work, &all, 0, 5, 2);
        let asked = work.asked.get_mut(&SourceId(0)).unwrap();
        assert!(asked.expects(&Vector::Source(0)) && !asked.expects(&Vector::Source(0)));
        assert!(
            asked.expects(&Vector::Shard(15))
                && !asked.expects(&Vector::Source(5))
                && !asked.expects(&Vector::Shard(300))
        );
        assert!(!asked.is_exhausted());
        asked.flight.credit(Instant::now(), 5, false);
        assert!(asked.is_exhausted() && asked.room(100) == 0);
    }
}
