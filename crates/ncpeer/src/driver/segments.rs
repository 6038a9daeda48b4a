//! Segments that arrive: decoded generations are tested, put together, and handed over.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ncs_codec::rlnc::System;
use ncs_proto::object::{SegmentId, Tree};
use tokio::sync::oneshot;
use tracing::Span;

use super::Driver;
use super::jobs::Done;
use crate::Error;
use crate::bulk;
use crate::flow::Flow;
use crate::proto::assembly::{Assembly, Examined, Taken, examine, join};
use crate::proto::{FetchId, Order};

/// A segment that arrives generation by generation.
pub(super) struct Rebuild {
    pub(super) order: Order,
    pub(super) assembly: Assembly,
    /// Generations being decoded.
    pub(super) decoding: usize,
    pub(super) flow: Arc<Flow>,
    pub(super) reply: oneshot::Sender<Result<Bytes, Error>>,
    /// The span of its log lines.
    pub(super) span: Span,
}

impl Driver {
    pub(super) fn done(&mut self, done: Done) {
        match done {
            Done::Gathered {
                fetch,
                generation,
                system: None,
            } => self.examined(fetch, examine(&generation, None, None)),
            Done::Gathered {
                fetch,
                system: Some(system),
                ..
            } => {
                if let Some(system) = self.bulk.add(Instant::now(), fetch, system) {
                    self.solve(fetch, system);
                }
            }
            Done::Examined { fetch, examined } => self.examined(fetch, examined),
            Done::Tested(tested) => self.proto.tested(Instant::now(), tested),
            Done::Joined { fetch, bytes } => self.joined(fetch, bytes),
        }
    }

    /// The tree that proves parts of a segment in progress.
    pub(super) fn tree(&self, fetch: FetchId) -> Option<Tree> {
        self.fetches.get(&fetch)?.assembly.tree().cloned()
    }

    fn solve(&mut self, fetch: FetchId, system: System) {
        let tree = self.tree(fetch);
        self.jobs.add(move || {
            let generation = system.generation;
            Done::Examined {
                fetch,
                examined: examine(
                    &generation,
                    system.solve().ok().map(Bytes::from),
                    tree.as_ref(),
                ),
            }
        });
    }

    /// Takes a generation with the result of its tests, and its bytes if it could be decoded.
    pub(super) fn examined(&mut self, fetch: FetchId, examined: Examined) {
        let Some(rebuild) = self.fetches.get_mut(&fetch) else {
            return;
        };
        rebuild.decoding -= 1;
        let Taken {
            refuted,
            settled,
            released: (mut at, pieces),
        } = rebuild.assembly.take(examined);
        for piece in pieces {
            rebuild.flow.put(at, &piece);
            at += piece.len() as u64;
        }
        settled
            .into_iter()
            .for_each(|generation| self.proto.settle(fetch, generation));
        let has_come = rebuild.assembly.is_proven() || rebuild.assembly.awaits_proof();
        let is_decoding = rebuild.decoding > 0;
        if has_come {
            let parts = rebuild.assembly.parts().unwrap_or_default();
            let (is_proven, id, codec) = (
                rebuild.assembly.is_proven(),
                rebuild.assembly.id(),
                rebuild.order.shape.codec(),
            );
            self.jobs.add(move || {
                let bytes = join(&parts);
                let is_right = is_proven || SegmentId::of_coded(&bytes, codec) == id;
                Done::Joined {
                    fetch,
                    bytes: is_right.then_some(bytes),
                }
            });
        }
        if !refuted.is_empty() {
            self.note_corrupt(fetch);
            if !self.proto.refute(Instant::now(), fetch, &refuted) {
                self.fail(fetch);
            }
        }
        // Nothing more would arrive, and no timer runs.
        if !has_come && !is_decoding && !self.proto.is_under_way(fetch) {
            self.fail(fetch);
        }
    }

    /// Handles the device's results.
    pub(super) fn decoded(&mut self, outcomes: Vec<bulk::Outcome>) {
        for outcome in outcomes {
            match outcome {
                bulk::Outcome::Decoded {
                    fetch,
                    generation,
                    bytes,
                    maker,
                } => {
                    self.stats.generations_on_device += 1;
                    self.stats.device = Some(maker);
                    let tree = self.tree(fetch);
                    self.jobs.add(move || Done::Examined {
                        fetch,
                        examined: examine(&generation, Some(bytes.into()), tree.as_ref()),
                    });
                }
                bulk::Outcome::Back { fetch, system } => self.solve(fetch, system),
            }
        }
    }

    /// Ends a segment with all of its bytes; without bytes, they were wrong.
    fn joined(&mut self, fetch: FetchId, bytes: Option<Bytes>) {
        let comes_again = self.proto.confirm(Instant::now(), fetch, bytes.is_some());
        let Some(bytes) = bytes else {
            self.note_corrupt(fetch);
            match self.fetches.get_mut(&fetch) {
                Some(rebuild) if comes_again => rebuild.assembly.forget(),
                _ => self.fail(fetch),
            }
            return;
        };
        let Some(rebuild) = self.fetches.remove(&fetch) else {
            return;
        };
        rebuild.flow.complete(bytes.clone());
        self.stats.segments_verified += 1;
        self.stats.bytes += bytes.len() as u64;
        let counts = self.proto.counts();
        self.stats.generations = counts.generations;
        self.stats.generations_progressive = counts.generations_progressive;
        // The caller should find the segment counted.
        self.publish.send_replace(self.stats.clone());
        let _ = rebuild.reply.send(Ok(bytes));
    }

    /// Notes that decoded bytes do not match the hash.
    fn note_corrupt(&mut self, fetch: FetchId) {
        self.stats.segments_corrupt += 1;
        if let Some(rebuild) = self.fetches.get(&fetch) {
            let _entered = rebuild.span.enter();
            tracing::warn!(
                segment = ?rebuild.order.segment,
                "the decoded bytes do not match the segment's hash",
            );
        }
    }

    /// Fails a segment that was wrong a second time.
    fn fail(&mut self, fetch: FetchId) {
        if let Some(rebuild) = self.fetches.remove(&fetch) {
            let _entered = rebuild.span.enter();
            tracing::warn!(
                segment = ?rebuild.order.segment,
                "the decoded bytes still do not match the segment's hash",
            );
            let _ = rebuild.reply.send(Err(Error::Corrupt));
        }
    }
}
