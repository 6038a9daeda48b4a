//! Blocks over the prime field, which prove themselves: they are collected, tested in batches by
//! the program, and absorbed when they are right.

use ncs_codec::block::Block;

use super::fetch::{Turn, find};
use super::state::Fetches;
use crate::peer::effects::Effects;
use crate::peer::event::{Event, Failure};
use crate::peer::evidence::Row;
use crate::peer::gfq::{Tested, Verdict};
use crate::peer::ids::{SourceId, WorkId};
use crate::peer::rebuilder::Rebuilder;
use crate::time::Instant;
use crate::wire::message::StopReason;

impl Fetches {
    /// Keeps a block until it is tested.
    pub(super) fn gather(&mut self, now: Instant, source: SourceId, id: WorkId, block: Block) {
        // Every source may have refused them before.
        self.evidence.want_hashes(id.fetch);
        if let Some(path) = self.sources.get_mut(source) {
            path.pace.arrived(now, block.payload.len());
        }
        let Some(work) = find(&mut self.fetches, id) else {
            return;
        };
        work.silences.remove(&source);
        if let Rebuilder::Gfq(gfq) = &mut *work.decoder {
            gfq.gather(now, source, block);
        }
    }

    /// Hands collected blocks to the program to be tested, those of the first fetch first, and no
    /// more batches than it runs at a time. The rest keeps collecting, and a polluter that is found
    /// meanwhile costs nothing more.
    pub(super) fn begin_tests(&mut self, now: Instant, effects: &mut Effects) {
        let proving = self
            .fetches
            .iter()
            .filter(|(_, fetch)| fetch.order.shape.codec().is_gfq());
        let mut turns: Vec<Turn> = proving.map(|(id, fetch)| fetch.turn(*id)).collect();
        turns.sort_unstable();
        for (.., id) in turns {
            let Some(hashes) = self.evidence.hashes(id) else {
                continue;
            };
            let Some(fetch) = self.fetches.get_mut(&id) else {
                continue;
            };
            let segment = fetch.order.segment;
            for work in fetch.works.values_mut() {
                if self.testing >= self.config.tests_max {
                    return;
                }
                let Rebuilder::Gfq(gfq) = &mut *work.decoder else {
                    continue;
                };
                let own = hashes.of_generation(gfq.generation());
                if let Some(trial) = gfq.begin_trial(now, (id, segment), self.next_trial, own) {
                    self.next_trial += 1;
                    self.testing += 1;
                    effects.report(Event::Test(Box::new(trial)));
                }
            }
        }
    }

    /// When [`Fetches::begin_tests`] has something to do.
    pub(super) fn tests_due(&self) -> Option<Instant> {
        if self.testing >= self.config.tests_max {
            return None;
        }
        let tested = self
            .fetches
            .iter()
            .filter(|(id, _)| self.evidence.hashes(**id).is_some());
        let due = tested
            .flat_map(|(_, fetch)| fetch.works.values())
            .filter_map(|work| match &*work.decoder {
                Rebuilder::Gfq(gfq) => gfq.due(),
                Rebuilder::Blocked(_) | Rebuilder::Progressive(_) => None,
            });
        due.min()
    }

    /// Takes the result of a test: absorbs right blocks, and accuses the senders of wrong ones.
    pub(in crate::peer) fn tested(
        &mut self,
        now: Instant,
        mut tested: Tested,
        effects: &mut Effects,
    ) {
        let Tested {
            fetch,
            segment,
            index,
            tested: (blocks, batches),
            is_hopeless,
            ..
        } = tested;
        let id = WorkId { fetch, index };
        self.testing = self.testing.saturating_sub(1);
        self.stirred = true;
        self.counts.tested += blocks;
        self.counts.tests += batches;
        let rows = std::mem::take(&mut tested.rows);
        // The generation may be over, or begun anew. Then its right blocks bring nothing, and
        // senders of wrong ones are accused all the same.
        let is_wanted = match find(&mut self.fetches, id).map(|work| &mut *work.decoder) {
            Some(Rebuilder::Gfq(gfq)) => gfq.end_trial(tested),
            _ => false,
        };
        if is_hopeless && is_wanted {
            return self.fail(fetch, Failure::Corrupt, StopReason::Cancelled, effects);
        }
        let mut wrong = Vec::new();
        for (row, verdict) in rows {
            if !matches!(verdict, Verdict::Right(_))
                && let Some(path) = self.sources.get_mut(row.source)
            {
                path.note_received(&row.block);
            }
            let outcome = match verdict {
                Verdict::Right(outcome) if is_wanted => outcome,
                Verdict::Right(_) | Verdict::Untested => continue,
                Verdict::Wrong => {
                    wrong.push(row);
                    continue;
                }
            };
            let source = row.source;
            if let Err(violation) = self.absorbed(
                now,
                id,
                Row {
                    is_right: true,
                    ..row
                },
                outcome,
                effects,
            ) {
                self.broken.push_back((now, source, violation));
            }
        }
        if !wrong.is_empty() {
            self.evidence.alarm();
            self.accuse(id, segment, true, &wrong);
        }
    }

    /// Drops all untested blocks of a source that is no longer used.
    pub(in crate::peer) fn forget(&mut self, source: SourceId) {
        for work in self
            .fetches
            .values_mut()
            .flat_map(|fetch| fetch.works.values_mut())
        {
            if let Rebuilder::Gfq(gfq) = &mut *work.decoder {
                gfq.forget(source);
            }
        }
        self.stirred = true;
    }
}
