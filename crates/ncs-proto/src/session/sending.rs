//! Blocks that leave: demand for the ring, claims on its blocks, and headers.
//!
//! A window of each request's credit is registered at the ring, so that nothing is encoded for a
//! peer that does not read. The rest waits until blocks have left. Requests are served by earliest
//! deadline.

use std::time::Duration;

use ncs_codec::block::Vector;

use super::claim::{Claim, Header, Route, Stamp, Want};
use super::open::Open;
use super::proto::Proto;
use crate::ring::{LineKey, LineKind};
use crate::time::Instant;
use crate::wire::block;

impl Proto {
    /// The next demand to register at the ring, and its deadline. `share` is how many blocks the
    /// session may have there in all.
    pub fn poll_want(&mut self, share: u32) -> Option<(Want, Instant)> {
        let registered: u32 = self
            .requests
            .values()
            .map(|open| open.source_wanted + open.coded_wanted)
            .sum();
        let (room, window) = (share.saturating_sub(registered), self.config.window_blocks);
        if room == 0 {
            return None;
        }
        let mut requests: Vec<&mut Open> = self.requests.values_mut().collect();
        // Little room goes to the requests that are due first, as the blocks will.
        requests.sort_by_key(|open| open.deadline);
        requests.into_iter().find_map(|open| {
            open.next_want(window, room)
                .map(|want| (want, open.deadline))
        })
    }

    /// The requests that wait for blocks, earliest deadline first.
    pub fn claims(&mut self) -> Vec<Claim> {
        let (session, datagram_max) = (self.session, self.datagram_max);
        let mut claims = Vec::new();
        for (alias, open) in &mut self.requests {
            if open.source_wanted + open.coded_wanted == 0 {
                continue;
            }
            let route = open.route(datagram_max, &mut self.tally);
            let mut add = |kind, blocks| {
                let line = LineKey {
                    generation: open.key,
                    kind,
                };
                claims.push(Claim {
                    alias: *alias,
                    line,
                    blocks,
                    route,
                    deadline: open.deadline,
                });
            };
            if open.source_wanted > 0 {
                add(LineKind::Source(session), open.source_wanted);
            }
            if open.coded_wanted > 0 {
                add(open.kind, open.coded_wanted);
            }
        }
        claims.sort_by_key(|claim| claim.deadline);
        claims
    }

    /// Spends one block of a request's credit, and makes the header of the block that leaves for
    /// it. `None` if the request has ended.
    pub fn stamp(&mut self, alias: u16, vector: &Vector, route: Route) -> Option<Stamp> {
        let open = self.requests.get_mut(&alias)?;
        let payload = block::payload_len(vector, &open.generation)?;
        match vector {
            Vector::Source(_) | Vector::Shard(_) => {
                open.source_wanted = open.source_wanted.saturating_sub(1)
            }
            Vector::Seed(_)
            | Vector::Explicit(_)
            | Vector::Unverified(_)
            | Vector::Symbol(_)
            | Vector::Narrow(_)
            | Vector::Wide(_) => {
                open.coded_wanted = open.coded_wanted.saturating_sub(1);
            }
        }
        open.credit = open.credit.saturating_sub(1);
        let header = match route {
            Route::Datagram => {
                let (seq, last) = (open.seq, open.credit == 0);
                open.seq = open.seq.wrapping_add(1);
                let write =
                    |out: &mut [u8]| block::write_datagram_header(out, vector, alias, seq, last);
                Header::write(block::datagram_header_len(vector), write)
            }
            Route::Stream => Header::write(block::record_header_len(vector), |out| {
                block::write_record_header(out, vector)
            }),
        };
        Some(Stamp { header, payload })
    }

    /// This many blocks of a request have left, `coded` ones among them, with this many bytes of
    /// payload. Call it for a batch at a time.
    pub fn note_sent(&mut self, now: Instant, alias: u16, blocks: u64, coded: u64, bytes: u64) {
        let Some(open) = self.requests.get_mut(&alias) else {
            return;
        };
        open.note_used(now, bytes, &self.ledgers);
        let n = u64::from(open.generation.n);
        let repair = (open.left + blocks).saturating_sub(n.max(open.left));
        open.left += blocks;
        let tally = self.streams.tally(alias);
        tally.sent_bytes += bytes;
        tally.coded += coded;
        tally.repair += repair;
    }

    /// Blocks of a request have to wait for its peer.
    pub fn note_held_back(&mut self, alias: u16) {
        if let Some(open) = self.requests.get_mut(&alias) {
            open.is_held_back = true;
        }
    }

    /// How long the server took for the first block of a live segment, which leaves now: the time
    /// from the peer's query, or from when the segment was complete at its source if that was
    /// later, to META; and from REQUEST until now. `None` for other blocks, and where blocks had to
    /// wait for the peer.
    pub fn first_sent(&mut self, now: Instant, alias: u16) -> Option<Duration> {
        let open = self.requests.get(&alias)?;
        let is_first = open
            .birth
            .as_ref()
            .is_some_and(|birth| birth.is_first_sent());
        if !is_first || open.is_held_back {
            return None;
        }
        let asked = self.streams.opened_at(alias).unwrap_or(now);
        Some(self.known.waited(&open.name) + now.saturating_duration_since(asked))
    }

    /// The largest datagram that the path carries now; `None` if the peer takes none. To be read
    /// before each round of claims.
    pub fn set_datagram_max(&mut self, bytes: Option<usize>) {
        self.datagram_max = bytes.filter(|_| self.config.datagrams);
    }

    /// Whether any open request may have its blocks in datagrams, so that the room for them
    /// matters.
    pub fn takes_datagrams(&self) -> bool {
        self.requests
            .values()
            .any(|open| open.accept.datagrams && !open.on_stream)
    }

    /// Bytes of a coded block of an open request.
    pub fn block_bytes(&self, alias: u16) -> Option<u32> {
        self.requests
            .get(&alias)
            .map(|open| open.generation.coded_bytes())
    }

    /// Bytes of the largest source block of an open request, if there is one.
    pub fn block_bytes_max(&self) -> Option<u32> {
        self.requests
            .values()
            .map(|open| open.generation.block_bytes)
            .max()
    }

    /// The lines of coded blocks of the open requests.
    pub fn lines(&self) -> impl Iterator<Item = LineKey> {
        self.requests.values().map(Open::line)
    }
}
