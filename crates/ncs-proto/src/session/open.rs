//! One open request: the blocks that it may still have, and the lease on its segment.
//!
//! A request holds a lease while blocks of it are to leave, and no longer. Without credit it keeps
//! nothing in memory, and takes the lease again when credit comes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::claim::{Route, Want};
use super::known::Name;
use super::ledgers::Ledgers;
use super::tally::Tally;
use crate::admission::Share;
use crate::object::{Birth, Codec, GRACE, Generation, GenerationKey, Lease, Released};
use crate::ring::{LineKey, LineKind};
use crate::time::Instant;
use crate::wire::message::{Accept, Request};
use crate::wire::{Violation, block};

/// An open request.
#[derive(Debug)]
pub(super) struct Open {
    /// The name of its segment.
    pub(super) name: Name,
    pub(super) path: Option<Arc<str>>,
    pub(super) birth: Option<Arc<Birth>>,
    pub(super) tenure: Tenure,
    pub(super) generation: Generation,
    pub(super) key: GenerationKey,
    /// The kind of its coded blocks.
    pub(super) kind: LineKind,
    pub(super) accept: Accept,
    pub(super) deadline: Instant,
    /// Blocks that may still leave.
    pub(super) credit: u32,
    /// Blocks to send by their numbers before all others, not yet registered at the ring:
    /// source blocks, and parity blocks behind them.
    pub(super) numbered: VecDeque<Range<u16>>,
    /// Blocks registered at the ring.
    pub(super) source_wanted: u32,
    pub(super) coded_wanted: u32,
    /// The number of its next datagram.
    pub(super) seq: u16,
    pub(super) on_stream: bool,
    /// Redundant and lost blocks, as the peer has reported them.
    pub(super) reported: (u32, u32),
    /// Blocks that have left.
    pub(super) left: u64,
    /// Whether blocks have waited for the peer: for its credit, its path, or its
    /// acknowledgements.
    pub(super) is_held_back: bool,
}

/// Whether a request keeps its segment in memory.
#[derive(Debug)]
pub(super) enum Tenure {
    /// Blocks are to leave.
    Leased(Tenancy),
    /// No block can leave before more credit comes, since this time.
    Idle(Released, Instant),
}

/// A lease, and its shares in the ledgers.
#[derive(Debug)]
pub(super) struct Tenancy {
    pub(super) lease: Lease,
    pub(super) shares: Vec<Share>,
    /// When blocks last left, or the lease was taken.
    used_at: Instant,
}

/// Why a request cannot keep its segment.
#[derive(Debug)]
pub(super) enum Unleased {
    /// The segment has gone.
    Gone,
    /// The session, address or token keeps too many others.
    Full,
}

impl Open {
    /// Takes or gives up the lease, depending on whether blocks are to leave.
    pub(super) fn settle(&mut self, now: Instant, ledgers: &Ledgers) -> Result<(), Unleased> {
        self.tenure = match (&self.tenure, self.is_due()) {
            (Tenure::Leased(tenancy), false) => Tenure::Idle(tenancy.lease.release(), now),
            (Tenure::Idle(released, _), true) => {
                let lease = released.renew().ok_or(Unleased::Gone)?;
                let shares = ledgers
                    .keep(now, lease.key, lease.shape.length())
                    .ok_or(Unleased::Full)?;
                Tenure::Leased(Tenancy {
                    lease,
                    shares,
                    used_at: now,
                })
            }
            _ => return Ok(()),
        };
        Ok(())
    }

    /// Whether blocks of it are to leave: registered and not sent, or still to be registered.
    fn is_due(&self) -> bool {
        let has_more =
            !self.numbered.is_empty() || (self.accept.coded && self.generation.codec.is_endless());
        self.source_wanted + self.coded_wanted > 0 || (self.credit > 0 && has_more)
    }

    /// Its lease, if it has one.
    pub(super) fn tenancy(&mut self) -> Option<&mut Tenancy> {
        match &mut self.tenure {
            Tenure::Leased(tenancy) => Some(tenancy),
            Tenure::Idle(..) => None,
        }
    }

    /// Blocks with this many bytes have left.
    pub(super) fn note_used(&mut self, now: Instant, bytes: u64, ledgers: &Ledgers) {
        if let Some(tenancy) = self.tenancy() {
            tenancy.note_used(now, bytes);
            self.settle(now, ledgers)
                .expect("what is leased is not leased again");
        }
    }

    /// Registers what the window has room for: blocks by their numbers first, then coded ones,
    /// never more than the credit.
    pub(super) fn next_want(&mut self, window: u32, room: u32) -> Option<Want> {
        let registered = self.source_wanted + self.coded_wanted;
        let room = self.credit.min(window).saturating_sub(registered).min(room);
        if room == 0 {
            return None;
        }
        while let Some(range) = self.numbered.front_mut() {
            let count = u32::from(range.end - range.start).min(room);
            let first = range.start;
            range.start += u16::try_from(count).expect("no more than the range has");
            let end = range.start;
            if range.start >= range.end {
                self.numbered.pop_front();
            }
            if count > 0 {
                self.source_wanted += count;
                return Some(Want::Source(self.key, first..end));
            }
        }
        if !self.accept.coded || !self.generation.codec.is_endless() {
            return None;
        }
        self.coded_wanted += room;
        Some(Want::Coded(self.line(), room))
    }

    /// The line of its coded blocks.
    pub(super) fn line(&self) -> LineKey {
        LineKey {
            generation: self.key,
            kind: self.kind,
        }
    }

    /// How its blocks travel: in datagrams where the peer takes them and every block fits. A
    /// request that is once on a stream stays there.
    pub(super) fn route(&mut self, datagram_max: Option<usize>, tally: &mut Tally) -> Route {
        if !self.accept.datagrams || self.on_stream {
            return Route::Stream;
        }
        let vector = match self.generation.codec {
            Codec::Rlnc if self.kind.is_explicit() => block::Kind::Explicit,
            Codec::Rlnc => block::Kind::Seeded,
            Codec::ReedSolomon { .. } => block::Kind::Shard,
            Codec::RaptorQ => block::Kind::Symbol,
            Codec::RlncQ { .. } => return Route::Stream,
        };
        let needed =
            vector.datagram_header_len(self.generation.n) + self.generation.block_bytes as usize;
        if datagram_max.is_some_and(|max| needed <= max) {
            return Route::Datagram;
        }
        self.on_stream = true;
        tally.moved += u64::from(self.seq > 0);
        Route::Stream
    }
}

impl Tenancy {
    /// Blocks with this many bytes have left for the request.
    pub(super) fn note_used(&mut self, now: Instant, bytes: u64) {
        self.used_at = now;
        self.lease.note_used(now, bytes);
        self.shares
            .iter_mut()
            .for_each(|share| share.note_read(now));
    }

    /// Stops the protection of a request that has received nothing for a while: it does not benefit
    /// from what others receive.
    pub(super) fn look(&mut self, now: Instant) {
        if self.used_at + GRACE <= now {
            self.lease.note_stalled();
            self.shares.iter_mut().for_each(Share::note_stalled);
        }
    }
}

/// The blocks that a request takes by their numbers, in the order in which they leave.
pub(super) fn numbered(
    request: &Request,
    generation: &Generation,
    begins_with_source: bool,
) -> Result<VecDeque<Range<u16>>, Violation> {
    let (n, end) = (generation.n, generation.numbered());
    let is_there = |(first, count): &(u16, u16)| {
        let last = first.checked_add(*count).filter(|last| *last <= end);
        last.map(|last| *first..last)
            .ok_or(Violation::Malformed("range of blocks"))
    };
    let all = request.ranges.is_empty().then_some(Ok(0..end));
    let ranges: Vec<Range<u16>> = request
        .ranges
        .iter()
        .map(is_there)
        .chain(all)
        .collect::<Result<_, _>>()?;
    let first = if request.accept.systematic && begins_with_source {
        0
    } else {
        n
    };
    let last = if request.accept.coded { end } else { n };
    let taken = ranges
        .into_iter()
        .map(|range| range.start.max(first)..range.end.min(last));
    Ok(taken.filter(|range| !range.is_empty()).collect())
}
