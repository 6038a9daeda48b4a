//! Streams and datagrams, and the blocks in them.

use std::time::Instant;

use bytes::{Buf, Bytes};
use ncs_codec::Outcome;
use ncs_codec::block::Vector;
use ncs_codec::numbers::Numbers;
use ncserverd::wire::Violation;
use ncserverd::wire::block::{Records, StreamHead, Vectors, parse_block, parse_datagram};
use quinn::RecvStream;

use super::fault::Fault;
use super::fetch::Check;
use super::{Doing, Viewer};

/// A playlist is not longer than this.
const OBJECT_MAX: usize = 8 << 20;

/// A stream of blocks that is being read.
pub(super) struct Incoming {
    pub(super) stream: RecvStream,
    pub(super) head: Vec<u8>,
    pub(super) alias: Option<u16>,
    pub(super) records: Option<Cut>,
    /// The object that it carries instead of blocks, and the request that asked for it.
    pub(super) object: Option<(u64, Vec<u8>)>,
}

impl Incoming {
    /// Nobody waits for it any more.
    pub(super) fn is_useless(&self) -> bool {
        self.alias.is_some() && self.records.is_none()
    }
}

pub(super) enum Cut {
    Vectors(Vectors),
    Records(Records),
}

impl Viewer<'_> {
    pub(super) fn take_stream(
        &mut self,
        incoming: &mut Incoming,
        mut bytes: Bytes,
    ) -> Result<(), Fault> {
        if let Some((_, object)) = &mut incoming.object {
            if object.len() + bytes.len() > OBJECT_MAX {
                return Err(Violation::Malformed("object stream").into());
            }
            object.extend_from_slice(&bytes);
            return Ok(());
        }
        if incoming.alias.is_none() {
            incoming.head.extend_from_slice(&bytes);
            let Some((head, length)) = StreamHead::parse(&incoming.head)? else {
                return Ok(());
            };
            let alias = match head {
                StreamHead::Blocks { alias } => alias,
                StreamHead::Object { request } => {
                    incoming.object = Some((request, incoming.head.split_off(length)));
                    return Ok(());
                }
                StreamHead::Hashes { .. } => {
                    return Err(Violation::Malformed("stream nobody asked for").into());
                }
            };
            bytes.advance(bytes.len() - (incoming.head.len() - length));
            incoming.alias = Some(alias);
            if let Doing::Fetching(fetch) = &self.doing
                && fetch.alias == alias
            {
                incoming.records = Some(match &fetch.rank {
                    Check::Rank(_) => Cut::Vectors(Vectors::new(fetch.generation)),
                    Check::Decoder(_) => Cut::Records(Records::new(fetch.generation)),
                });
            }
        }
        let Some(cut) = &mut incoming.records else {
            return Ok(());
        };
        match cut {
            Cut::Vectors(vectors) => {
                vectors.push(bytes);
                while let Some(vector) = vectors.next()? {
                    self.take_block(incoming.alias, &vector, None)?;
                }
            }
            Cut::Records(records) => {
                records.push(&bytes);
                while let Some(block) = records.next()? {
                    self.take_block(incoming.alias, &block.vector, Some(&block.payload))?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn take_datagram(&mut self, mut datagram: Bytes) -> Result<(), Fault> {
        let Some(head) = parse_datagram(&mut datagram) else {
            return Ok(());
        };
        let Doing::Fetching(fetch) = &self.doing else {
            return Ok(());
        };
        if fetch.alias != head.alias {
            return Ok(());
        }
        let Some(block) = parse_block(head.kind, &fetch.generation, datagram) else {
            return Ok(());
        };
        self.take_block(Some(head.alias), &block.vector, Some(&block.payload))
    }

    fn take_block(
        &mut self,
        alias: Option<u16>,
        vector: &Vector,
        payload: Option<&[u8]>,
    ) -> Result<(), Fault> {
        let Doing::Fetching(fetch) = &mut self.doing else {
            return Ok(());
        };
        if alias != Some(fetch.alias) {
            return Ok(());
        }
        let now = Instant::now();
        let totals = &self.shard.totals;
        if fetch.received == 0 {
            self.person.enter(now, totals);
            totals
                .first_block
                .add(now.saturating_duration_since(fetch.asked_at));
        }
        fetch.received += 1;
        fetch.heard_at = now;
        Numbers::number(vector).map(|number| fetch.held.insert(number));
        totals.blocks.add(1);
        totals.bytes.add(u64::from(fetch.generation.block_bytes));
        let outcome = match (&mut fetch.rank, payload) {
            (Check::Rank(rank), _) => rank.absorb(vector),
            (Check::Decoder(decoder), Some(payload)) => decoder.absorb(vector, payload),
            (Check::Decoder(_), None) => return Ok(()),
        };
        match outcome.map_err(|_| Violation::Malformed("block"))? {
            Outcome::Complete => self.complete(now),
            outcome => {
                totals.useless.add(u64::from(outcome == Outcome::Redundant));
                if fetch.received >= fetch.credited {
                    fetch.credit(
                        now,
                        self.shard.plan.accept,
                        &mut self.next_alias,
                        &mut self.out,
                    );
                }
            }
        }
        Ok(())
    }
}

/// The next chunks of the stream that is being read; `None` at its end, whatever that is.
pub(super) async fn read(incoming: &mut Option<Incoming>, chunks: &mut [Bytes]) -> Option<usize> {
    incoming
        .as_mut()?
        .stream
        .read_chunks(chunks)
        .await
        .ok()
        .flatten()
}
