//! A part of an object on its way: what is asked for, and what has come of it.

use std::time::Instant;

use ncs_codec::numbers::Numbers;
use ncs_codec::rlnc::{Decoder, Rank};
use ncs_gf::Kernels;
use ncserverd::object::{Generation, SegmentId, Shape, row_key};
use ncserverd::wire::message::{Accept, Meant, Message, Meta, RANGES_MAX, Request, StopReason};

/// An hour.
const DEADLINE_MAX_MS: u64 = 3_600_000;

/// A part of an object on its way.
pub(super) struct Fetch {
    pub(super) meta: Meta,
    pub(super) shape: Shape,
    pub(super) generation: Generation,
    pub(super) alias: u16,
    pub(super) rank: Check,
    pub(super) credited: u64,
    pub(super) received: u64,
    /// Where all blocks have numbers: those that have come, and how many of those that the request
    /// names were not asked for.
    pub(super) held: Numbers,
    pub(super) left: u32,
    pub(super) asked_at: Instant,
    pub(super) heard_at: Instant,
    pub(super) deadline: Instant,
    /// What is decoded of the part so far.
    pub(super) bytes: Vec<u8>,
}

pub(super) enum Check {
    Rank(Box<Rank>),
    Decoder(Box<Decoder>),
}

impl Check {
    pub(super) fn new(
        id: &SegmentId,
        generation: Generation,
        kernels: Kernels,
        decodes: bool,
    ) -> Self {
        let key = row_key(id, &generation);
        match decodes {
            true => Self::Decoder(Box::new(Decoder::new(generation, key, kernels))),
            false => Self::Rank(Box::new(Rank::new(generation, key, kernels))),
        }
    }

    fn missing(&self) -> u16 {
        match self {
            Self::Rank(rank) => rank.missing(),
            Self::Decoder(decoder) => decoder.missing(),
        }
    }
}

impl Fetch {
    /// Asks for as many blocks of the generation as are missing, until then.
    pub(super) fn request(
        &mut self,
        deadline: Instant,
        now: Instant,
        accept: Accept,
        out: &mut Vec<u8>,
    ) {
        let credit = u32::from(self.rank.missing());
        (self.credited, self.received, self.deadline) = (credit.into(), 0, deadline);
        let time = deadline.saturating_duration_since(now);
        let deadline_ms = u64::try_from(time.as_millis())
            .unwrap_or(u64::MAX)
            .clamp(1, DEADLINE_MAX_MS);
        let (alias, segment, generation) = (self.alias, self.meta.id, self.generation.index);
        let ranges = match Numbers::of(&self.generation) {
            Some(all) if !self.held.is_empty() => all.without(&self.held).ranges(RANGES_MAX),
            _ => Vec::new(),
        };
        let named = ranges.iter().map(|(_, count)| u32::from(*count)).sum();
        let named = if ranges.is_empty() {
            self.generation.numbered().into()
        } else {
            named
        };
        self.left = u32::saturating_sub(named, credit);
        // Each block has a number, and comes once; source blocks are as good as others.
        let accept = Accept {
            systematic: accept.systematic || !self.generation.codec.is_endless(),
            ..accept
        };
        let meant = Meant::Coded(self.shape.coding());
        Message::Request(Request {
            alias,
            segment,
            generation,
            deadline_ms,
            credit,
            accept,
            ranges,
            meant,
        })
        .encode(out);
    }

    /// Asks for as many more as are missing: anew, where the request names no more.
    pub(super) fn credit(
        &mut self,
        now: Instant,
        accept: Accept,
        next_alias: &mut u16,
        out: &mut Vec<u8>,
    ) {
        let blocks = u32::from(self.rank.missing());
        if !self.generation.codec.is_endless() && blocks > self.left {
            Message::Stop {
                alias: self.alias,
                reason: StopReason::Cancelled,
            }
            .encode(out);
            *next_alias = next_alias.wrapping_add(1);
            self.alias = *next_alias;
            return self.request(self.deadline, now, accept, out);
        }
        self.left = self.left.saturating_sub(blocks);
        self.credited = self.received + u64::from(blocks);
        Message::Credit {
            alias: self.alias,
            blocks,
        }
        .encode(out);
    }
}
