//! Blocks as they come: which request they belong to, whether it may have them, and what they
//! bring to their generation.

use bytes::Bytes;
use ncs_codec::Outcome;
use ncs_codec::block::{Block, Vector};
use ncs_codec::numbers::Numbers;

use super::fetch::find;
use super::state::Fetches;
use crate::peer::effects::Effects;
use crate::peer::event::Event;
use crate::peer::evidence::{Look, Row};
use crate::peer::flight::Arrival;
use crate::peer::gets::OUTAGE_MAX;
use crate::peer::ids::{SourceId, WorkId};
use crate::peer::keyring::FIRST;
use crate::peer::path::Trust;
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::block::{self, DatagramHead};

/// Blocks beyond the credit of a request that are tolerated.
const EXCESS_MAX: u32 = 8;
/// Stray datagrams of a source that are tolerated whatever their share.
const STRAY_MAX: u64 = 1000;
/// Blocks of this many of the newest aliases count as late, not as stray.
const LATE_ALIASES: u16 = 4096;
/// RANK goes out after at least this many blocks.
const RANK_BLOCKS: u32 = 8;

impl Fetches {
    /// Takes a datagram with a block.
    pub(in crate::peer) fn datagram(
        &mut self,
        now: Instant,
        source: SourceId,
        head: DatagramHead,
        rest: Bytes,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let Some(path) = self.sources.get_mut(source) else {
            return Ok(());
        };
        let Some(id) = path.aliases.get(&head.alias).copied() else {
            return self.late(source, head.alias);
        };
        let Some(work) = find(&mut self.fetches, id) else {
            return Ok(());
        };
        let Some(asked) = work.asked.get_mut(&source) else {
            return Ok(());
        };
        let (arrival, given_up) = asked.flight.datagram(now, head.seq, head.last);
        if let Some((took, was_busy)) = asked.flight.take_round_trip(now) {
            path.pace.answered(took, was_busy);
        }
        work.lost += given_up;
        path.note_lost(given_up);
        path.note_datagram(work.block_bytes());
        if arrival == Arrival::Returned {
            work.lost = work.lost.saturating_sub(1);
            path.counts.lost = path.counts.lost.saturating_sub(1);
        }
        self.stirred = true;
        match arrival {
            // QUIC delivers no datagram twice.
            Arrival::Duplicate => {
                self.counts.duplicate += 1;
                self.unwanted(source)
            }
            Arrival::Excess => self.excess(source, id),
            Arrival::New | Arrival::Returned => {
                match block::parse_block(head.kind, work.decoder.generation(), rest) {
                    Some(block) => self.take(now, source, id, block, effects),
                    None => self.stray(source),
                }
            }
        }
    }

    /// Takes a block that came on the stream of a request. False if the request is over.
    pub(in crate::peer) fn record(
        &mut self,
        now: Instant,
        source: SourceId,
        alias: u16,
        block: Block,
        effects: &mut Effects,
    ) -> Result<bool, Violation> {
        let Some(path) = self.sources.get_mut(source) else {
            return Ok(false);
        };
        let Some(id) = path.aliases.get(&alias).copied() else {
            path.late += 1;
            return Ok(false);
        };
        let Some(work) = find(&mut self.fetches, id) else {
            return Ok(false);
        };
        let block_bytes = work.block_bytes();
        let Some(asked) = work.asked.get_mut(&source) else {
            return Ok(false);
        };
        self.stirred = true;
        if !asked.flight.is_reliable() {
            path.note_record(block_bytes);
        }
        match asked.flight.record(now) {
            Arrival::New | Arrival::Returned => self.take(now, source, id, block, effects)?,
            Arrival::Duplicate | Arrival::Excess => self.excess(source, id)?,
        }
        Ok(true)
    }

    /// Counts a block of a request that is not open. It may come after the end of its request, but
    /// no more such blocks may come than were requested.
    fn late(&mut self, source: SourceId, alias: u16) -> Result<(), Violation> {
        let path = self.sources.entry(source);
        let is_recent = (1..=LATE_ALIASES).contains(&path.next_alias.wrapping_sub(alias));
        if is_recent && path.counts.blocks + path.late < path.credited {
            path.late += 1;
            return Ok(());
        }
        self.stray(source)
    }

    /// Counts a block beyond the credit of its request.
    fn excess(&mut self, source: SourceId, id: WorkId) -> Result<(), Violation> {
        let asked = find(&mut self.fetches, id).and_then(|work| work.asked.get_mut(&source));
        let excess = asked.map_or(0, |asked| {
            asked.excess += 1;
            asked.excess
        });
        self.counts.stray += 1;
        if excess > EXCESS_MAX {
            Err(Violation::Flood("blocks without credit"))
        } else {
            Ok(())
        }
    }

    /// Counts a datagram that belongs to no request.
    pub(in crate::peer) fn stray(&mut self, source: SourceId) -> Result<(), Violation> {
        self.counts.stray += 1;
        self.unwanted(source)
    }

    /// Counts a datagram that was not requested. A source may send some, as long as most of its
    /// datagrams were.
    fn unwanted(&mut self, source: SourceId) -> Result<(), Violation> {
        let path = self.sources.entry(source);
        path.stray += 1;
        let all = path.counts.blocks + path.late + path.stray;
        if path.stray > STRAY_MAX && path.stray * 10 > all {
            return Err(Violation::Flood("blocks that nobody asked for"));
        }
        Ok(())
    }

    /// Takes a block of an open request, and tests it first where that is possible.
    fn take(
        &mut self,
        now: Instant,
        source: SourceId,
        id: WorkId,
        block: Block,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let shape = self.fetches.get(&id.fetch).map(|fetch| fetch.order.shape);
        let Some(generation) = shape.and_then(|shape| shape.generation(id.index)) else {
            return Ok(());
        };
        let asked = find(&mut self.fetches, id).and_then(|work| work.asked.get_mut(&source));
        if !asked.is_none_or(|asked| asked.expects(&block.vector)) {
            return self.stray(source);
        }
        if generation.codec.is_gfq() {
            self.gather(now, source, id, block);
            return Ok(());
        }
        if source != FIRST && matches!(block.vector, Vector::Source(_)) {
            self.evidence.want_hashes(id.fetch);
        }
        if self.tests_early() {
            self.evidence.want_checks(id.fetch, id.index);
        }
        match self.evidence.look(id.fetch, &generation, source, &block) {
            look @ (Look::Unproved | Look::Right) => self.absorb(
                now,
                id,
                Row {
                    source,
                    block,
                    is_right: look == Look::Right,
                },
                effects,
            ),
            Look::Wrong => {
                self.turn_away(
                    now,
                    id,
                    vec![Row {
                        source,
                        block,
                        is_right: false,
                    }],
                );
                Ok(())
            }
            Look::Later => Ok(()),
        }
    }

    /// Adds a block to its decoder, if its request is still open.
    pub(super) fn absorb(
        &mut self,
        now: Instant,
        id: WorkId,
        row: Row,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let Some(path) = self.sources.get_mut(row.source) else {
            return Ok(());
        };
        let work = find(&mut self.fetches, id).filter(|work| work.asked.contains_key(&row.source));
        let Some(work) = work else { return Ok(()) };
        let Ok(outcome) = work.decoder.absorb(&row.block.vector, &row.block.payload) else {
            return self.stray(row.source);
        };
        path.pace.arrived(now, row.block.payload.len());
        self.absorbed(now, id, row, outcome, effects)
    }

    /// Counts a block that a decoder has absorbed; its request may be over.
    pub(super) fn absorbed(
        &mut self,
        now: Instant,
        id: WorkId,
        row: Row,
        outcome: Outcome,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let source = row.source;
        let keeps_rows = self.keeps_rows_of(source);
        let Some(path) = self.sources.get_mut(source) else {
            return Ok(());
        };
        let Some(fetch) = self.fetches.get_mut(&id.fetch) else {
            return Ok(());
        };
        let Some(work) = fetch.works.get_mut(&id.index) else {
            return Ok(());
        };
        work.silences.remove(&source);
        fetch.rests.remove(&source);
        Numbers::number(&row.block.vector).map(|number| work.held.insert(number));
        path.note_absorbed(&row.block, outcome);
        path.trust = Trust::Proven;
        if let Some(asked) = work.asked.get_mut(&source) {
            asked.unreported += 1;
            asked.is_dry = outcome == Outcome::Redundant;
        }
        match outcome {
            Outcome::Redundant => work.note_redundant(source, &row.block.vector)?,
            Outcome::Innovative | Outcome::Complete => {
                if path.is_neighbour {
                    fetch.fresh_until = Some(now + fetch.lull);
                }
                (
                    fetch.touched,
                    fetch.trickles,
                    fetch.is_put_off,
                    fetch.outage_left,
                ) = (now, false, false, OUTAGE_MAX);
                self.progress_at = Some(now);
                self.drip.brought(id.fetch, row.block.payload.len());
                if self.config.tells {
                    let (cut, block, is_checked) =
                        (fetch.order.cut(), row.block.clone(), row.is_right);
                    effects.report(Event::Brought {
                        cut,
                        generation: id.index,
                        source,
                        block,
                        is_checked,
                    });
                }
                // A block that proves itself is not kept for later tests.
                if keeps_rows && !fetch.order.shape.codec().is_gfq() {
                    self.evidence.keep(id.fetch, id.index, row);
                }
            }
        }
        if outcome == Outcome::Complete {
            self.evidence.finished(id.fetch, id.index);
            self.finish(id, effects);
        } else if let Some(asked) = work.asked.get_mut(&source)
            && asked.unreported >= RANK_BLOCKS
            && asked.reported_at + path.pace.rtt() / 2 <= now
        {
            effects.send(source, asked.rank(work.decoder.rank()));
            asked.unreported = 0;
            asked.reported_at = now;
        }
        Ok(())
    }
}
